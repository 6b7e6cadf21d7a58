//! The node service where it belongs: in virtual machines with a kernel, udev and file systems of their own, whose disks the
//! simulated Harvester plugs and pulls.
//!
//! `cargo xtask test --all` runs these tests, which nothing else does: each boots one or two machines, which takes ten
//! seconds and more without KVM.

mod calls;
mod export;
mod machine;
mod qmp;
mod whole_way;

use std::{fs, net::Ipv4Addr};

use controller_kit::ObjectKey;
use csi_driver::csi::volume_capability::access_mode::Mode;
use harvester_api::VirtualMachine;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;
use test_cluster::{GuestCluster, Rights};

use self::{
    calls::{Driver, files, staging, target},
    export::Export,
    machine::{Equipment, Forward, Machine},
    qmp::Monitors,
};
use crate::harvester::Lab;

const GIB: i64 = 1 << 30;
/// How many disks of SCSI the machine has.
const DISKS: &str = "ls /sys/class/scsi_disk | wc -l";
const CLAIM: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec: {accessModes: [ReadWriteOnce], storageClassName: harvester, resources: {requests: {storage: 1Gi}}}
";

/// Two clusters, and what plugs disks into their machines.
struct Bed {
    lab: Lab,
    monitors: Monitors,
}

impl Bed {
    async fn new() -> Self {
        let lab = Lab::without_machines("v1.8.0", Rights::Existing).await;
        let monitors = Monitors::default();
        lab.sim.plug_disks(&lab.path().join("disks"), Box::new(monitors.clone()), &lab.tasks).unwrap();
        Self { lab, monitors }
    }

    /// Boots VM `vm-<number>`, which is Node `node-<number>`, with the driver in it.
    async fn node(&self, number: usize) -> (Machine, Driver, String) {
        self.node_with(number, &[]).await
    }

    async fn node_with(&self, number: usize, others: &[Forward]) -> (Machine, Driver, String) {
        let vm = ObjectKey::new(&GuestCluster::default().vm_namespace, format!("vm-{number}"));
        let mac = self.lab.machine(&vm.name).await;
        let (harvester, to_harvester) = self.kubeconfig("harvester.kubeconfig", 100);
        let (guest, to_guest) = self.kubeconfig("guest.kubeconfig", 101);
        let start = format!(
            "#!/bin/sh\nexec /node/driver csi-driver --nodeid=node-{number} --kubeconfig=/node/harvester.kubeconfig \
             --guest-kubeconfig=/node/guest.kubeconfig\n"
        );
        let equipment = Equipment {
            files: [("harvester.kubeconfig", harvester), ("guest.kubeconfig", guest), ("start", start)]
                .map(|(name, text)| (name.to_owned(), text))
                .into(),
            forwards: [&[to_harvester, to_guest], others].concat(),
        };
        let monitors = self.monitors.clone();
        let machine = tokio::task::spawn_blocking(move || Machine::boot(&vm, &mac, &equipment, &monitors));
        let machine = machine.await.unwrap();
        let driver = Driver::of(&machine);
        let node_id = driver.node_id().await;
        (machine, driver, node_id)
    }

    /// A kubeconfig for use in a machine, where the server has address `10.0.2.<last>`.
    fn kubeconfig(&self, name: &str, last: u8) -> (String, Forward) {
        let text = fs::read_to_string(self.lab.path().join(name)).unwrap();
        let (before, rest) = text.split_once("https://127.0.0.1:").unwrap();
        let (port, rest) = rest.split_once('\n').unwrap();
        let forward = Forward { at: (Ipv4Addr::new(10, 0, 2, last), 6443), to: port.parse().unwrap() };
        let address = forward.at.0;
        // the certificate is for the names of this computer
        let text = format!("{before}https://{address}:6443\n    tls-server-name: localhost\n{rest}");
        (text, forward)
    }

    /// Makes a claim in the guest cluster; what the provisioner calls its volume.
    async fn claim(&self) -> String {
        self.lab.clusters.guest.apply(CLAIM).await;
        let claim = self.lab.clusters.guest.get::<PersistentVolumeClaim>("default/data").await.unwrap();
        format!("pvc-{}", claim.metadata.uid.unwrap())
    }

    /// Harvester sees that a machine does not run.
    async fn lose(&self, vm: &str) {
        let halted = json!({"spec": {"runStrategy": "Halted"}});
        self.lab.clusters.harvester.patch::<VirtualMachine>(&format!("team-a/{vm}"), halted).await;
    }
}

// docs/contract/csi-driver.md#device
#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots virtual machines: cargo xtask test --all"]
async fn a_file_that_was_synced_outlives_its_machine_and_is_there_in_the_next_one() {
    let bed = Bed::new().await;
    let used = files("ext4", Mode::SingleNodeMultiWriter);
    let (first, driver, node_id) = bed.node(1).await;
    let name = bed.claim().await;
    assert_eq!(first.run(DISKS).trim(), "0");

    let volume = driver.create(&name, GIB, &used).await;
    let context = driver.attach(&volume, &node_id, &used).await;
    driver.mount(&first, &volume, &context, &used).await;
    // QEMU cuts a serial after 20 characters, and this disk has none
    let link = format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_drive-ua-{volume}");
    let device = first.run(&format!("readlink -f {link}"));
    let mounted = first.run(&format!("awk '$2 == \"{}\" {{print $1}}' /proc/mounts", staging(&volume)));
    assert_eq!(mounted, device);
    // a pod has a mount namespace of its own
    let write =
        format!("unshare --mount sh -c 'head -c 5000000 /dev/urandom >{}/file; sync'", target(&volume));
    first.run(&write);
    let checksum = first.run(&format!("sha256sum <{}/file", target(&volume)));

    first.kill();
    bed.lose("vm-1").await;
    let (second, driver, other_id) = bed.node(2).await;
    assert_ne!(node_id, other_id);
    assert_eq!(second.run(DISKS).trim(), "0");
    driver.detach(&volume, &node_id).await;
    let context = driver.attach(&volume, &other_id, &used).await;
    driver.mount(&second, &volume, &context, &used).await;
    assert_eq!(second.run(&format!("sha256sum <{}/file", target(&volume))), checksum);

    driver.unmount(&volume).await;
    driver.detach(&volume, &other_id).await;
    second.run(&format!("while [ \"$({DISKS})\" != 0 ]; do sleep 0.1; done; ! grep {volume} /proc/mounts"));
}

/// The bytes of the file system at a path.
fn size_of_file_system(machine: &Machine, path: &str) -> i64 {
    machine.run(&format!("echo $(($(stat -f -c '%b * %S' {path})))")).trim().parse().unwrap()
}

// docs/contract/csi-driver.md#growth
#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots virtual machines: cargo xtask test --all"]
async fn ext4_and_xfs_grow_under_a_process_that_writes_to_them() {
    let bed = Bed::new().await;
    let (machine, driver, node_id) = bed.node(1).await;
    for file_system in ["ext4", "xfs"] {
        let used = files(file_system, Mode::SingleNodeMultiWriter);
        let volume = driver.create(&format!("pvc-{file_system}"), GIB, &used).await;
        let context = driver.attach(&volume, &node_id, &used).await;
        driver.mount(&machine, &volume, &context, &used).await;
        let pod = target(&volume);
        let before = size_of_file_system(&machine, &pod);
        assert!((GIB / 10 * 9..=GIB).contains(&before), "{file_system}: {before}");
        machine.run(&format!(
            "(while echo line; do sleep 0.01; done) >{pod}/file 2>/dev/null & echo $! >/tmp/writer"
        ));
        driver.expand(&volume, 2 * GIB, &used).await;
        let after = size_of_file_system(&machine, &pod);
        assert!((GIB / 10 * 18..=2 * GIB).contains(&after), "{file_system}: {after}");
        machine
            .run("kill $(cat /tmp/writer); while kill -0 $(cat /tmp/writer) 2>/dev/null; do sleep 0.1; done");
        assert_eq!(machine.run(&format!("sort -u {pod}/file")), "line\n");
        driver.unmount(&volume).await;
    }
}

// docs/contract/csi-driver.md#nfs
#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots virtual machines: cargo xtask test --all"]
async fn two_machines_share_the_files_of_an_export() {
    const VOLUME: &str = "pvc-shared";
    let bed = Bed::new().await;
    let server = Ipv4Addr::new(10, 0, 2, 102);
    let mut export = Export::start(VOLUME);
    let forward = [export.forward(server)];
    let (first, first_driver, _) = bed.node_with(1, &forward).await;
    let (second, second_driver, _) = bed.node_with(2, &forward).await;
    let used = files("", Mode::MultiNodeMultiWriter);
    let context = [("nfs-endpoint", server.to_string()), ("nfs-export", format!("/{VOLUME}"))]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
    first_driver.mount(&first, VOLUME, &context, &used).await;
    second_driver.mount(&second, VOLUME, &context, &used).await;
    let file = format!("{}/file", target(VOLUME));
    let mounted = first.run(&format!("awk '$2 == \"{}\" {{print $1, $3}}' /proc/mounts", staging(VOLUME)));
    assert_eq!(mounted, format!("{server}:/{VOLUME} nfs4\n"));
    first.run(&format!("echo from the first >{file}; sync"));
    assert_eq!(fs::read_to_string(export.data().join("file")).unwrap(), "from the first\n");
    // a server that ends and comes back is a stall
    export.restart();
    second.run(&format!("grep -x 'from the first' {file}; echo from the second >>{file}; sync"));
    // what was written before its machine ends stays
    second.kill();
    first_driver.unmount(VOLUME).await;
    assert_eq!(first.run("grep -c nfs4 /proc/mounts || true").trim(), "0");
    first_driver.mount(&first, VOLUME, &context, &used).await;
    assert_eq!(first.run(&format!("cat {file}")), "from the first\nfrom the second\n");
    first_driver.unmount(VOLUME).await;
}
