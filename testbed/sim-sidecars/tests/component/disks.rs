//! Real disks: loop devices, mounts, and processes in pods' places. Only root may.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use controller_kit::ObjectKey;
use csi_driver::{
    csi::node_server::NodeServer,
    node::{self, NodeService},
    node_id::Told,
};
use harvester_api::VirtualMachine;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, api::DeleteParams};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_harvester::disks;
use sim_sidecars::{
    Pace,
    kinds::VolumeSnapshot,
    machine,
    pod_process::{self, From},
    publish_path, staging_path,
};
use test_cluster::{Rights, TestCluster, User};
use tokio::sync::watch;
use tonic::service::Routes;

use crate::{
    lab::{BACKUP, Lab, NODES, OF_BACKUP, OF_SNAPSHOT, SNAPSHOT, claim, pod, root},
    order::apply_snapshot,
};

/// Set in the process that has a mount namespace of its own.
const CHILD: &str = "SIM_SIDECARS_IN_NAMESPACE";
const TEST: &str = "disks::what_a_pod_wrote_is_there_for_the_next_one_on_another_node";

/// Past the test harness, which keeps what a test that passes prints.
fn leave_out(what: &str) {
    let said = writeln!(std::io::stderr(), "left out: {what}");
    said.unwrap();
}

/// Runs a test again in a process with a mount namespace of its own, or says why it cannot.
fn in_own_namespace(test: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        return test();
    }
    if let Some(why) = machine::lacking() {
        return leave_out(&format!("{TEST}: {why}"));
    }
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The node service in a VM of this name.
fn service(folder: &Path, node: &str) -> Routes {
    let (name, node_id) = watch::channel(Some(Told::named(node)));
    // it has to be known for as long as the service lives
    std::mem::forget(name);
    let settings = node::Settings {
        device_directory: disks::links(&folder.join("disks"), &ObjectKey::new("team-a", node)),
        kubelet_root: root(folder, node),
        ..node::Settings::default()
    };
    fs::create_dir_all(&settings.kubelet_root).unwrap();
    Routes::new(NodeServer::new(NodeService::new(settings, node_id))).prepare()
}

#[test]
fn what_a_pod_wrote_is_there_for_the_next_one_on_another_node() {
    in_own_namespace(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(story());
    });
}

async fn story() {
    let (tasks, folder) = (TaskGroup::new(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let cluster = TestCluster::simulated(Rights::Ours).await;
    let lab = Lab::start(&cluster, &tasks, Pace::quick(), Clock::system()).await;
    lab.simulation.serve_disks(&folder.join("disks"), &tasks).unwrap();
    let kubelets = NODES.map(|node| {
        let machine = TaskGroup::new();
        let plugin = lab.calls.plugin(service(folder, node));
        lab.sidecars.kubelet(node, plugin, &root(folder, node), &machine);
        machine
    });
    let place = |(node, uid): &(String, String), volume: &str| publish_path(&root(folder, node), uid, volume);
    let first: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let read = |at: PathBuf| pod_process::read(&From::Here, &at, "file").unwrap();

    cluster.guest.apply(&claim("data", "320Mi", "")).await;
    let volume = lab.bound("data").await;
    cluster.guest.apply(&pod("writer", "data", NODES[0])).await;
    let at = place(&lab.mounted("writer").await, &volume);
    pod_process::write(&From::Here, &at, "file", &first).unwrap();
    apply_snapshot(&lab, SNAPSHOT).await;
    apply_snapshot(&lab, BACKUP).await;
    pod_process::write(&From::Here, &at, "file", b"later").unwrap();

    // elsewhere, and larger while it is used
    lab.delete::<Pod>("writer").await;
    cluster.guest.apply(&pod("reader", "data", NODES[1])).await;
    let at = place(&lab.mounted("reader").await, &volume);
    assert_eq!(read(at.clone()), b"later");
    if machine::growing_file_system().is_some() {
        grow(&cluster, &lab, &at).await;
    } else {
        leave_out(&format!("growth: {}", machine::NO_GROWTH));
    }

    cluster.guest.apply(&claim("restored", "320Mi", OF_SNAPSHOT)).await;
    let restored = lab.bound("restored").await;
    cluster.guest.apply(&pod("old", "restored", NODES[0])).await;
    let lost = lab.mounted("old").await;
    let at = place(&lost, &restored);
    assert_eq!(read(at.clone()), first);

    // the machine of the first node is lost, and its Node is removed
    kubelets[0].end().await;
    for mount in [at, staging_path(&root(folder, NODES[0]), &restored)] {
        assert!(Command::new("umount").arg(mount).status().unwrap().success());
    }
    let vms = Api::<VirtualMachine>::namespaced(cluster.harvester.client(User::Driver), "team-a");
    vms.delete(NODES[0], &DeleteParams::default()).await.unwrap();
    cluster.guest.delete::<Node>(NODES[0]).await;
    cluster.guest.apply(&pod("rescue", "restored", NODES[1])).await;
    let at = place(&lab.mounted("rescue").await, &restored);
    assert_eq!(read(at), first);

    for name in ["reader", "rescue"] {
        lab.delete::<Pod>(name).await;
    }
    lab.none::<VolumeAttachment>().await;
    lab.delete::<VolumeSnapshot>("before").await;
    for name in ["data", "restored"] {
        lab.delete::<PersistentVolumeClaim>(name).await;
    }
    lab.none::<PersistentVolume>().await;

    // the backup is all that is left
    cluster.guest.apply(&claim("again", "320Mi", OF_BACKUP)).await;
    let again = lab.bound("again").await;
    cluster.guest.apply(&pod("last", "again", NODES[1])).await;
    let at = place(&lab.mounted("last").await, &again);
    assert_eq!(read(at), first);
    lab.delete::<Pod>("last").await;
    lab.none::<VolumeAttachment>().await;
    lab.delete::<PersistentVolumeClaim>("again").await;
    lab.none::<PersistentVolume>().await;
    lab.delete::<VolumeSnapshot>("kept").await;
    lab.none::<VolumeSnapshot>().await;
    kubelets[1].end().await;
    tasks.end().await;
}

async fn grow(cluster: &TestCluster, lab: &Lab, at: &Path) {
    let before = pod_process::size(&From::Here, at).unwrap();
    let larger = json!({"spec": {"resources": {"requests": {"storage": "384Mi"}}}});
    cluster.guest.patch::<PersistentVolumeClaim>("default/data", larger).await;
    lab.has_size("data", "384Mi").await;
    assert!(pod_process::size(&From::Here, at).unwrap() > before);
}
