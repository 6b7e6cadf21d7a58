//! The whole way, where nobody is called but by those who call in a cluster: a claim and a pod of the guest, the sidecars, kubelet,
//! and a disk in a machine.

use std::{io, path::Path, sync::Arc, time::Duration};

use harvester_api::{VirtualMachine, labels};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, api::DeleteParams};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_sidecars::{Files, Options, Pace, Plugin, Sidecars, kinds, publish_path};
use test_cluster::User;
use tonic::transport::Channel;

use super::{
    Bed, CLAIM, DISKS,
    machine::{Machine, Shell},
};
use crate::{Running, driver};

/// Kubelet's folder in a machine.
const ROOT: &str = "/var/lib/kubelet";
const CLASS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: harvester}
provisioner: driver.harvesterhci.io
reclaimPolicy: Delete
volumeBindingMode: Immediate
";

/// A pod with the claim, on this node.
fn pod(name: &str, node: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  containers: [{{name: main, image: busybox}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
"
    )
}

/// Kubelet works on the files of its machine.
impl Files for Shell {
    fn make(&self, folder: &Path) -> io::Result<()> {
        self.run(&format!("mkdir -p {}", folder.display()));
        Ok(())
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        self.run(&format!("echo '{text}' >{}", file.display()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.display();
        self.run(&format!("if [ -d {path} ]; then rmdir {path}; else rm -f {path}; fi"));
        Ok(())
    }
}

/// Looks until there is something.
async fn found<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    for _ in 0..3_600 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited three minutes for {what}");
}

impl Bed {
    /// Starts the controller service beside the machines, and everybody who calls it.
    async fn callers(&self) -> (Running, Sidecars) {
        let guest = self.lab.clusters.guest.client(User::Driver);
        kinds::apply(&guest).await.unwrap();
        self.lab.clusters.guest.apply(CLASS).await;
        let mut controller = driver(self.lab.path());
        for (flag, name) in [("kubeconfig", "harvester.kubeconfig"), ("guest-kubeconfig", "guest.kubeconfig")]
        {
            controller.arg(format!("--{flag}={}", self.lab.path().join(name).display()));
        }
        let controller_service = Plugin::at(&self.lab.socket());
        let options =
            Options { guest, controller: controller_service, pace: Pace::quick(), clock: Clock::system() };
        let sidecars = Sidecars::start(options, &self.lab.tasks);
        (Running(controller.spawn().unwrap()), sidecars)
    }

    /// A machine joins the guest cluster, and its kubelet starts; it ends with what this answers.
    async fn join(&self, sidecars: &Sidecars, number: usize, machine: &Machine) -> TaskGroup {
        let (name, clusters) = (format!("node-{number}"), &self.lab.clusters);
        let of_guest = json!({"metadata": {"labels": {labels::GUEST_CLUSTER: clusters.guest_cluster().name}},
            "spec": {"template": {"spec": {"hostname": name}}}});
        clusters.harvester.patch::<VirtualMachine>(&format!("team-a/vm-{number}"), of_guest).await;
        found(&format!("{name} to be ready"), async || {
            let status = clusters.guest.get::<Node>(&name).await?.status?;
            status.conditions?.into_iter().find(|one| one.type_ == "Ready" && one.status == "True")
        })
        .await;
        // nobody initialises it here
        clusters.guest.patch::<Node>(&name, json!({"spec": {"taints": null}})).await;
        let plugin = Plugin::of(Channel::from_shared(machine.driver()).unwrap().connect_lazy());
        let life = TaskGroup::new();
        sidecars.kubelet_elsewhere(&name, plugin, Path::new(ROOT), Arc::new(machine.shell()), &life);
        life
    }

    /// Waits until a pod runs; the path of a file in its volume.
    async fn file_of(&self, pod: &str) -> String {
        let guest = &self.lab.clusters.guest;
        let uid = found(&format!("pod {pod} to run"), async || {
            let pod = guest.get::<Pod>(&format!("default/{pod}")).await?;
            pod.status?.phase.filter(|phase| phase == "Running")?;
            pod.metadata.uid
        })
        .await;
        let claim = guest.get::<PersistentVolumeClaim>("default/data").await.unwrap();
        let volume = claim.spec.unwrap().volume_name.unwrap();
        publish_path(Path::new(ROOT), &uid, &volume).join("file").display().to_string()
    }

    async fn end_pod(&self, name: &str) {
        let pods = Api::<Pod>::namespaced(self.lab.clusters.guest.client(User::Driver), "default");
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
}

// docs/contract/csi-driver.md#device
#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots virtual machines: cargo xtask test --all"]
async fn what_a_pod_of_the_guest_wrote_outlives_its_machine_and_is_there_for_the_next_pod() {
    let bed = Bed::new().await;
    let (_controller, sidecars) = bed.callers().await;
    let (first, ..) = bed.node(1).await;
    let kubelet = bed.join(&sidecars, 1, &first).await;
    bed.lab.clusters.guest.apply(CLAIM).await;
    bed.lab.clusters.guest.apply(&pod("writer", "node-1")).await;
    let file = bed.file_of("writer").await;
    // a pod has a mount namespace of its own
    first.run(&format!("unshare --mount sh -c 'head -c 5000000 /dev/urandom >{file}; sync'"));
    let checksum = first.run(&format!("sha256sum <{file}"));

    kubelet.end().await;
    first.kill();
    bed.lose("vm-1").await;
    bed.end_pod("writer").await;
    let (second, ..) = bed.node(2).await;
    let kubelet = bed.join(&sidecars, 2, &second).await;
    bed.lab.clusters.guest.apply(&pod("reader", "node-2")).await;
    let file = bed.file_of("reader").await;
    assert_eq!(second.run(&format!("sha256sum <{file}")), checksum);

    bed.end_pod("reader").await;
    bed.lab.clusters.guest.delete::<PersistentVolumeClaim>("default/data").await;
    found("the volume to go", async || {
        let volumes = Api::<PersistentVolume>::all(bed.lab.clusters.guest.client(User::Driver));
        volumes.list(&Default::default()).await.unwrap().items.is_empty().then_some(())
    })
    .await;
    second.run(&format!("[ \"$({DISKS})\" = 0 ]; ! grep {ROOT} /proc/mounts"));
    kubelet.end().await;
}
