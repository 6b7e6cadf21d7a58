//! A volume of which nobody wrote whether it is a disk or an export.

use std::time::Duration;

use harvester_api::{VirtualMachine, annotations::CSI_ATTACH};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::VolumeAttachment};
use serde_json::{Value, json};
use test_cluster::TestCluster;
use tonic::Code;

use super::exports::{Bed, VOLUME, machine};

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#exports: both at once write to one file system
    async fn a_volume_is_a_disk_or_an_export_and_never_both(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        machine(&cluster, "vm-a").await;
        let refusal = bed.publish_disk("vm-a").await.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal}");
        assert!(refusal.message().contains("ask for ReadWriteMany"), "{refusal}");

        // as the Go driver makes it
        let claim = format!("{}/{VOLUME}", cluster.guest_cluster().vm_namespace);
        let bare = json!({"metadata": {"annotations": {"driver.harvesterhci.io/volume": null}}});
        cluster.harvester.patch::<PersistentVolumeClaim>(&claim, bare).await;
        bed.attachment("node-a").await;
        bed.publish("vm-a").await.unwrap();
        let version = async || {
            cluster.harvester.get::<PersistentVolumeClaim>(&claim).await.unwrap().metadata.resource_version
        };
        let before = version().await;
        let refusal = bed.publish_disk("vm-a").await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        assert!(refusal.message().contains("is exported by NetworkFilesystem harvester-system/"), "{refusal}");
        // a node that the export is published to meanwhile takes an annotation for a disk
        assert_eq!(version().await, before, "nothing is written");
        // of a process that ended between the export and its second look at the claim
        let annotated = |text: Value| json!({"metadata": {"annotations": {CSI_ATTACH: text}}});
        let text = json!({"vm": "vm-a", "vmUid": "uid", "op": "attach", "holder": "other"}).to_string();
        cluster.harvester.patch::<PersistentVolumeClaim>(&claim, annotated(text.into())).await;
        let refusal = bed.publish("vm-a").await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        assert!(refusal.message().contains("is a disk of a machine"), "{refusal}");
        assert_eq!(bed.export().await.spec.desired_state, "Enabled");
        cluster.harvester.patch::<PersistentVolumeClaim>(&claim, annotated(json!(null))).await;
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.leave("vm-a").await.unwrap();
        bed.until_export("the export is off", |export| export.status.state == "Disabled").await;

        bed.publish_disk("vm-a").await.unwrap();
        let refusal = bed.publish("vm-a").await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        assert!(refusal.message().contains("is a disk of a machine"), "{refusal}");
        assert_eq!(bed.export().await.spec.desired_state, "Disabled");
        bed.leave("vm-a").await.unwrap();
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#exports
    #[simulated_only("a minute passes")]
    async fn an_annotation_that_a_process_left_behind_keeps_no_node_from_an_export(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        machine(&cluster, "vm-a").await;
        let namespace = cluster.guest_cluster().vm_namespace.clone();
        let claim = format!("{namespace}/{VOLUME}");
        let vm = cluster.harvester.get::<VirtualMachine>(&format!("{namespace}/vm-a")).await.unwrap();
        bed.attachment("node-b").await;
        let of = |uid: &str| json!({"vm": "vm-a", "vmUid": uid, "op": "attach", "holder": "other"}).to_string();
        // the machine of now, one that was there before it, and a text that is none of ours
        for text in [of(&vm.metadata.uid.unwrap()), of("former"), "x".to_owned()] {
            let left = json!({"metadata": {"annotations":
                {"driver.harvesterhci.io/volume": null, CSI_ATTACH: text}}});
            cluster.harvester.patch::<PersistentVolumeClaim>(&claim, left).await;
            let refusal = bed.publish("vm-b").await.unwrap_err();
            assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
            cluster.advance(Duration::from_secs(61)).await;
            bed.publish("vm-b").await.unwrap();
            let annotations = cluster.harvester.get::<PersistentVolumeClaim>(&claim).await.unwrap().metadata.annotations;
            assert_eq!(annotations.unwrap_or_default().get(CSI_ATTACH), None);
        }
        // one by which a machine has the disk stays
        cluster.guest.delete::<VolumeAttachment>("va-node-b").await;
        bed.leave("vm-b").await.unwrap();
        bed.until_export("the export is off", |export| export.status.state == "Disabled").await;
        bed.publish_disk("vm-a").await.unwrap();
        bed.publish("vm-b").await.unwrap_err();
        cluster.advance(Duration::from_secs(61)).await;
        let refusal = bed.publish("vm-b").await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        bed.leave("vm-a").await.unwrap();
        bed.tasks.end().await;
    }
}
