//! Which machine a node is and who uses a volume, from both clusters, with the rights that the driver has there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use csi_driver::{
    guest::{Guest, User as VolumeUser},
    host::{Host, reach::Reached},
    node_id::Finder,
};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use program::health::Health;
use test_cluster::{TestCluster, User, component_tests};
use tokio::sync::watch;

const MACHINES: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: node-a, namespace: team-a}
spec: {domain: {devices: {}}, networks: [{name: nic-0}]}
status: {interfaces: [{name: nic-0, mac: '52:54:00:00:00:0a'}]}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm-1, namespace: team-a}
spec: {domain: {devices: {}}, networks: [{name: nic-0}]}
status: {interfaces: [{name: nic-0, mac: '52:54:00:00:00:01'}]}
";

const NOTED: &str = "
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-a}
spec:
  drivers:
  - {name: other.example.com, nodeID: other, topologyKeys: null}
  - {name: driver.harvesterhci.io, nodeID: vm-1, topologyKeys: null}
";

const VOLUMES: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  csi: {driver: driver.harvesterhci.io, volumeHandle: pvc-1}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: others}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  csi: {driver: other.example.com, volumeHandle: pvc-1}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: by-name}
spec: {attacher: driver.harvesterhci.io, nodeName: node-b, source: {persistentVolumeName: pvc-1}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: by-handle}
spec: {attacher: driver.harvesterhci.io, nodeName: node-a, source: {persistentVolumeName: shared}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: of-another-driver}
spec: {attacher: other.example.com, nodeName: node-c, source: {persistentVolumeName: others}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: of-another-volume}
spec: {attacher: driver.harvesterhci.io, nodeName: node-c, source: {persistentVolumeName: pvc-2}}
";

/// What a node with a MAC address finds of its machine.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    name: Option<String>,
    confirmed: Option<String>,
    /// Why it finds none.
    why: String,
}

async fn found(cluster: &TestCluster, host: Reached, address: &str) -> Found {
    let folder = tempfile::tempdir().unwrap();
    interface(folder.path(), address);
    let (_reached, host) = watch::channel(host);
    let finder = Finder {
        node: "node-a".to_owned(),
        guest: Guest::new(cluster.guest.client(User::CsiDriver)),
        host,
        interfaces: folder.path().to_owned(),
    };
    let ((name, told), (confirms, confirmed), health) =
        (watch::channel(None), watch::channel(None), Health::default());
    let finding = tokio::spawn(finder.find(name, confirms, health.readiness("node-id")));
    cluster.settle().await;
    let (name, confirmed) = (told.borrow().clone(), confirmed.borrow().clone());
    finding.abort();
    Found { name, confirmed, why: health.readiness_report() }
}

fn interface(folder: &Path, address: &str) {
    std::fs::create_dir(folder.join("enp1s0")).unwrap();
    std::fs::write(folder.join("enp1s0/address"), address).unwrap();
}

fn host(cluster: &TestCluster) -> Reached {
    Ok(Host::new(cluster.harvester.client(User::CsiDriver), "team-a"))
}

component_tests! {
    // docs/contract/csi-driver.md#node-id
    async fn the_machine_of_a_node_is_the_one_with_its_mac_address(cluster: TestCluster) {
        cluster.harvester.apply(MACHINES).await;
        cluster.guest.apply(NOTED).await;
        let name = |name: &str| Found { name: Some(name.to_owned()), confirmed: Some(name.to_owned()), why: String::new() };
        assert_eq!(found(&cluster, host(&cluster), "52:54:00:00:00:0a").await, name("node-a"));
        assert_eq!(found(&cluster, host(&cluster), "52:54:00:00:00:01").await, name("vm-1"));
    }

    // docs/contract/csi-driver.md#exits
    async fn while_the_host_is_away_the_machine_is_the_one_that_kubelet_noted(cluster: TestCluster) {
        let away = || Err("the host is away".to_owned());
        let Found { name, why, .. } = found(&cluster, away(), "52:54:00:00:00:01").await;
        assert_eq!((name, why.contains("the host is away")), (None, true));
        cluster.guest.apply(NOTED).await;
        let noted = Found { name: Some("vm-1".to_owned()), confirmed: None, why: String::new() };
        assert_eq!(found(&cluster, away(), "52:54:00:00:00:01").await, noted);
    }

    // docs/contract/csi-driver.md#cluster-label
    async fn a_machine_that_merely_has_the_nodes_name_does_not_say_whose_volumes_are_ours(cluster: TestCluster) {
        cluster.harvester.apply(MACHINES).await;
        let found = found(&cluster, host(&cluster), "52:54:00:00:00:0f").await;
        assert_eq!(found, Found { name: Some("node-a".to_owned()), confirmed: None, why: String::new() });
    }

    async fn the_users_of_a_volume_are_the_nodes_with_an_attachment_of_it(cluster: TestCluster) {
        cluster.guest.apply(VOLUMES).await;
        let attached = serde_json::json!({"status": {"attached": true}});
        cluster.guest.patch_status::<VolumeAttachment>("by-handle", attached).await;
        let users = Guest::new(cluster.guest.client(User::CsiDriver)).users("pvc-1").await.unwrap();
        let user = |node: &str, attachment: &str, is_attached| VolumeUser {
            node: node.to_owned(),
            attachment: attachment.to_owned(),
            is_attached,
            is_leaving: false,
        };
        assert_eq!(users, [user("node-a", "by-handle", true), user("node-b", "by-name", false)]);
    }
}
