//! Volumes whose disk is in a machine, and that no VolumeAttachment names any more: somebody removed it by force.

use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::json;
use tonic::Code;

use super::bench::{Bench, GIB, NAMESPACE, UID, volume};

const KUBEVIRT: &str = "kubevirt.io/v1";
const STORAGE: &str = "storage.k8s.io/v1";

/// What may use the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Nothing,
    VolumeAttachment,
    Kubelet,
    AnotherMachine,
    /// No CSINode says that the machine is a node of this cluster.
    AnotherCluster,
    NodeIsGone,
    /// Its kubelet may have mounted the disk since it reported last.
    NodeIsSilent,
}

/// A machine that has the disk, by our annotation too.
async fn machine(bench: &Bench, name: &str) {
    let spec = json!({
        "volumes": [{"name": UID, "persistentVolumeClaim": {"claimName": UID, "hotpluggable": true}}],
        "domain": {"devices": {"disks": [{"name": UID, "disk": {"bus": "scsi"}}]}}});
    let vm =
        json!({"metadata": {"name": name}, "spec": {"runStrategy": "Halted", "template": {"spec": spec}}});
    bench.create(KUBEVIRT, "VirtualMachine", NAMESPACE, vm).await;
    let uid = bench.api(KUBEVIRT, "VirtualMachine", NAMESPACE).get(name).await.unwrap().metadata.uid;
    let text = json!({"vm": name, "vmUid": uid, "op": "attach", "holder": "pod"}).to_string();
    let annotation = json!({"metadata": {"annotations": {"driver.harvesterhci.io/attach": text}}});
    bench.patch("v1", "PersistentVolumeClaim", UID, annotation).await;
}

async fn left_behind(used: Use) -> Bench {
    let bench = Bench::new().await.with_guest();
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    machine(&bench, "node-1").await;
    if used == Use::AnotherMachine {
        machine(&bench, "node-2").await;
    }
    if used != Use::AnotherCluster {
        let node = json!({"metadata": {"name": "worker-1"}, "spec": {"drivers":
            [{"name": "driver.harvesterhci.io", "nodeID": "node-1", "topologyKeys": null}]}});
        bench.create(STORAGE, "CSINode", "", node).await;
    }
    if used != Use::NodeIsGone {
        bench.create("v1", "Node", "", json!({"metadata": {"name": "worker-1"}})).await;
    }
    if used != Use::NodeIsGone {
        let ready = if used == Use::NodeIsSilent { "Unknown" } else { "True" };
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let nodes = bench.api("v1", "Node", "");
        nodes.patch_status("worker-1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
    if used == Use::Kubelet {
        let mounted = format!("kubernetes.io/csi/driver.harvesterhci.io^{UID}");
        let status = Patch::Merge(json!({"status": {"volumesInUse": [mounted]}}));
        let nodes = bench.api("v1", "Node", "");
        nodes.patch_status("worker-1", &PatchParams::default(), &status).await.unwrap();
    }
    if used == Use::VolumeAttachment {
        let attachment = json!({"metadata": {"name": "va"}, "spec": {"attacher": "driver.harvesterhci.io",
            "nodeName": "worker-1", "source": {"persistentVolumeName": UID}}});
        bench.create(STORAGE, "VolumeAttachment", "", attachment).await;
    }
    bench
}

impl Bench {
    async fn template_has_disk(&self) -> bool {
        let vm = self.api(KUBEVIRT, "VirtualMachine", NAMESPACE).get("node-1").await.unwrap();
        vm.data["spec"]["template"].to_string().contains(UID)
    }
}

// docs/storage.md, section Healing
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_left_in_a_machine_leaves_it_when_it_is_deleted() {
    let bench = left_behind(Use::Nothing).await;
    bench.delete_volume(UID).await.unwrap();
    assert!(!bench.template_has_disk().await);
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

#[rstest]
#[case(Use::VolumeAttachment, "for VolumeAttachment va of Node worker-1: end the Pods")]
#[case(Use::Kubelet, "kubelet of Node worker-1 has volume")]
#[case(Use::AnotherMachine, "VirtualMachine shop/node-1 and shop/node-2 on the host: detach it first")]
#[case(Use::AnotherCluster, "no CSINode of this cluster names VirtualMachine node-1 on the host")]
#[case(Use::NodeIsGone, "Node worker-1, which is VirtualMachine node-1 on the host, is gone")]
#[case(Use::NodeIsSilent, "Node worker-1, which is VirtualMachine node-1 on the host, does not report")]
#[tokio::test(start_paused = true)]
async fn a_volume_that_may_be_in_use_stays_in_its_machine_and_is_not_deleted(
    #[case] used: Use,
    #[case] says: &str,
) {
    let bench = left_behind(used).await;
    let refused = bench.delete_volume(UID).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(says), "{refused}");
    assert!(bench.template_has_disk().await);
    assert!(bench.claims().get_opt(UID).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn where_nobody_knows_whether_a_volume_is_used_it_stays_and_the_next_call_may_know() {
    let bench = left_behind(Use::Nothing).await;
    // a process that reads no VolumeAttachments
    let bench = Bench { service: Bench::another(&bench.server), ..bench };
    let refused = bench.delete_volume(UID).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(bench.template_has_disk().await && bench.claims().get_opt(UID).await.unwrap().is_some());
}
