//! Contents of hot-plugged volumes. Only root may have them as block devices.

use std::{
    fs,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use controller_kit::ObjectKey;
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, api::DeleteParams};
use program::TaskGroup;
use serde_json::json;
use sim_harvester::{VolumeSnapshot, disks, host_objects};
use test_cluster::{TestCluster, User};

use crate::{
    hotplug::{HOST, bound, claim, phase, plug, vm},
    remote::{backup, restore, when},
    servers::{start, until},
};

/// Makes the disks of a test's simulation; `None` for whoever may not.
async fn world(cluster: &TestCluster, tasks: &TaskGroup, folder: &Path) -> Option<Client> {
    if fs::File::options().write(true).open("/dev/loop-control").is_err() {
        eprintln!("left out: a test that makes loop devices (only root may)");
        return None;
    }
    let harvester = cluster.harvester.client(User::Driver);
    host_objects::apply(&harvester, "v1.8.0").await.unwrap();
    start(cluster, tasks).serve_disks(folder, tasks).unwrap();
    machines(cluster, &harvester).await;
    Some(harvester)
}

/// Two VMs that run, and a claim that is bound.
async fn machines(cluster: &TestCluster, harvester: &Client) {
    cluster.harvester.apply(HOST).await;
    for name in ["guest-1", "guest-2"] {
        cluster.harvester.apply(&vm(name)).await;
        let ready = |vm: &VirtualMachine| vm.status.as_ref().is_some_and(|status| status.ready);
        until::<VirtualMachine>(harvester, name, ready).await;
    }
    cluster.harvester.apply(&claim("pvc-1", host_objects::STORAGE_CLASS, "Block")).await;
    until::<PersistentVolumeClaim>(harvester, "pvc-1", bound).await;
}

/// Machines that look at no disk: its file is enough.
struct Files;

impl disks::Machines for Files {
    fn plug(&mut self, _: &ObjectKey, _: &str, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn pull(&mut self, _: &ObjectKey, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn grow(&mut self, _: &ObjectKey, _: &str, _: u64) -> io::Result<()> {
        Ok(())
    }
}

fn device(folder: &Path, vm: &str) -> Option<fs::File> {
    let link = disks::links(folder, &ObjectKey::new("default", vm));
    fs::File::options().read(true).write(true).open(link.join("scsi-0QEMU_QEMU_HARDDISK_drive-ua-pvc-1")).ok()
}

test_cluster::component_tests! {
    #[simulated_only("loop devices are this computer's: the server makes no difference")]
    async fn what_is_written_to_a_volume_is_there_in_the_next_vm_that_has_it(cluster: TestCluster) {
        let (tasks, folder) = (TaskGroup::new(), tempfile::tempdir().unwrap());
        let folder = folder.path();
        let Some(harvester) = world(&cluster, &tasks, folder).await else { return };
        plug(&harvester, "guest-1", &["pvc-1"]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-1", phase("pvc-1", "Ready")).await;
        cluster.settle().await;
        assert!(device(folder, "guest-2").is_none());
        let mut disk = device(folder, "guest-1").unwrap();
        assert_eq!(disk.seek(SeekFrom::End(0)).unwrap(), 1 << 30);
        disk.seek(SeekFrom::Start(1 << 20)).unwrap();
        disk.write_all(b"kept").unwrap();
        disk.sync_all().unwrap();
        drop(disk);

        plug(&harvester, "guest-1", &[]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-1", phase("pvc-1", "")).await;
        cluster.settle().await;
        assert!(device(folder, "guest-1").is_none());
        let grown = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        plug(&harvester, "guest-2", &["pvc-1"]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-2", phase("pvc-1", "Ready")).await;
        cluster.harvester.patch::<PersistentVolumeClaim>("default/pvc-1", grown).await;
        cluster.settle().await;
        let mut disk = device(folder, "guest-2").unwrap();
        assert_eq!(disk.seek(SeekFrom::End(0)).unwrap(), 2 << 30);
        disk.seek(SeekFrom::Start(1 << 20)).unwrap();
        let mut read = [0; 4];
        disk.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"kept");
        drop(disk);

        plug(&harvester, "guest-2", &[]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-2", phase("pvc-1", "")).await;
        assert!(folder.join("volumes/default.pvc-1").exists());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(harvester.clone(), "default");
        claims.delete("pvc-1", &DeleteParams::default()).await.unwrap();
        cluster.settle().await;
        assert_eq!(fs::read_dir(folder.join("volumes")).unwrap().count(), 0);
        tasks.end().await;
    }

    #[simulated_only("loop devices are this computer's: the server makes no difference")]
    async fn the_devices_go_with_the_simulation_and_the_contents_stay(cluster: TestCluster) {
        let (tasks, folder) = (TaskGroup::new(), tempfile::tempdir().unwrap());
        let folder = folder.path();
        let Some(harvester) = world(&cluster, &tasks, folder).await else { return };
        plug(&harvester, "guest-1", &["pvc-1"]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-1", phase("pvc-1", "Ready")).await;
        cluster.settle().await;
        let devices = || {
            let output = std::process::Command::new("losetup").args(["--associated"]).arg(folder.join("volumes/default.pvc-1")).output();
            output.unwrap().stdout
        };
        assert!(!devices().is_empty());
        tasks.end().await;
        assert!(device(folder, "guest-1").is_none());
        // it goes with its last user, and whoever lists devices is one for a moment
        assert!((0..1_000).any(|_| devices().is_empty()));
        let tasks = TaskGroup::new();
        start(&cluster, &tasks).serve_disks(folder, &tasks).unwrap();
        cluster.settle().await;
        assert!(device(folder, "guest-1").is_some());
        tasks.end().await;
    }

    #[simulated_only("files are this computer's: the server makes no difference")]
    async fn a_restored_volume_has_what_was_in_its_backup_when_volume_and_backup_are_gone(cluster: TestCluster) {
        let (tasks, folder) = (TaskGroup::new(), tempfile::tempdir().unwrap());
        let (folder, harvester) = (folder.path(), cluster.harvester.client(User::Driver));
        host_objects::apply(&harvester, "v1.8.0").await.unwrap();
        start(&cluster, &tasks).plug_disks(folder, Box::new(Files), &tasks).unwrap();
        machines(&cluster, &harvester).await;
        plug(&harvester, "guest-1", &["pvc-1"]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-1", phase("pvc-1", "Ready")).await;
        cluster.settle().await;
        let file = |claim: &str| folder.join(format!("volumes/default.{claim}"));
        let write = |text: &str| {
            let mut disk = fs::File::options().write(true).open(file("pvc-1")).unwrap();
            disk.write_all(text.as_bytes()).unwrap();
        };
        for name in ["copy-1", "copy-2"] {
            write(name);
            cluster.harvester.apply(&backup(name, "pvc-1")).await;
            when(&harvester, "VolumeRemoteBackup", name, "Operation complete").await;
        }
        write("no-one");

        plug(&harvester, "guest-1", &[]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-1", phase("pvc-1", "")).await;
        cluster.harvester.delete::<PersistentVolumeClaim>("default/pvc-1").await;
        cluster.settle().await;
        assert!(!file("pvc-1").exists());
        cluster.harvester.apply(&restore("again", "copy-1")).await;
        when(&harvester, "VolumeRemoteRestore", "again", "Operation complete").await;
        cluster.settle().await;
        // as with their backups: the restore keeps a file of its own
        for name in ["copy-1", "copy-2"] {
            cluster.harvester.delete::<VolumeSnapshot>(&format!("default/{name}")).await;
        }
        cluster.settle().await;
        assert_eq!(fs::read_dir(folder.join("snapshots")).unwrap().count(), 1);
        plug(&harvester, "guest-2", &["again"]).await.unwrap();
        until::<VirtualMachineInstance>(&harvester, "guest-2", phase("again", "Ready")).await;
        cluster.settle().await;
        let (mut disk, mut read) = (fs::File::open(file("again")).unwrap(), [0; 6]);
        disk.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"copy-1");
        tasks.end().await;
    }
}
