//! Volumes: created, listed, grown, deleted.

use std::time::Duration;

use csi_driver::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetVolumeRequest, CreateVolumeRequest, ListVolumesRequest,
    ListVolumesResponse, ValidateVolumeCapabilitiesRequest, controller_server::Controller,
    volume_capability::access_mode::Mode,
};
use harvester_api::annotations::CSI_ATTACH;
use kube::ResourceExt;
use rstest::rstest;
use serde_json::json;
use sim_apiserver::faults::{Answer, Rule, When};
use tonic::{Code, Request, Status};

use super::bench::{Bench, GIB, NAMESPACE, UID, files, from_volume, volume, volume_for};

async fn expand(bench: &Bench, id: &str, required: i64) -> Result<ControllerExpandVolumeResponse, Status> {
    let request = ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: required, limit_bytes: 0 }),
        ..ControllerExpandVolumeRequest::default()
    };
    bench.service.controller_expand_volume(Request::new(request)).await.map(tonic::Response::into_inner)
}

async fn list(bench: &Bench, max_entries: i32, token: &str) -> Result<ListVolumesResponse, Status> {
    let request = ListVolumesRequest { max_entries, starting_token: token.to_owned() };
    bench.service.list_volumes(Request::new(request)).await.map(tonic::Response::into_inner)
}

#[tokio::test(start_paused = true)]
async fn the_service_can_do_what_it_says() {
    let bench = Bench::new().await;
    let request = Request::new(ControllerGetCapabilitiesRequest {});
    let capabilities =
        bench.service.controller_get_capabilities(request).await.unwrap().into_inner().capabilities;
    assert_eq!(capabilities.len(), 13);
}

// docs/contract/csi-driver.md#create
#[tokio::test(start_paused = true)]
async fn a_volume_is_created_once_however_often_it_is_asked_for() {
    let bench = Bench::new().await;
    bench.requests();
    let first = bench.create_volume(volume(UID, GIB + 1)).await.unwrap();
    assert_eq!((first.volume_id.as_str(), first.capacity_bytes), (UID, GIB + 1));
    assert_eq!(
        bench.requests(),
        [format!("get {UID}"), "get longhorn".to_owned(), "create persistentvolumeclaims".to_owned()]
    );
    for _ in 0..10 {
        assert_eq!(bench.create_volume(volume(UID, GIB + 1)).await.unwrap(), first);
    }
    assert_eq!(bench.requests().len(), 10);
    let other = bench.create_volume(volume(UID, 2 * GIB)).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_creation_had_no_answer_is_found_again() {
    let bench = Bench::new().await;
    let mut rule = Rule::new(Answer::Drop);
    rule.user = Some("csi".to_owned());
    rule.verb = Some("create".to_owned());
    rule.when = When::After;
    rule.nth = Some(1);
    bench.server.faults().add(rule);
    let lost = bench.create_volume(volume(UID, GIB)).await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "the provisioner takes it for under way");
    assert_eq!(bench.create_volume(volume(UID, GIB)).await.unwrap().volume_id, UID);
}

// docs/contract/csi-driver.md#names
#[tokio::test(start_paused = true)]
async fn a_name_that_no_claim_can_have_has_a_volume_of_its_own() {
    let bench = Bench::new().await;
    let one = bench.create_volume(volume("Sanity-1A2B", GIB)).await.unwrap().volume_id;
    let other = bench.create_volume(volume("sanity-1a2b", GIB)).await.unwrap().volume_id;
    assert_ne!(one, other);
    assert_eq!(bench.create_volume(volume("Sanity-1A2B", GIB)).await.unwrap().volume_id, one);
    let digest = bench.create_volume(volume(&one, GIB)).await.unwrap_err();
    assert_eq!(digest.code(), Code::AlreadyExists, "somebody asks for the digest itself");
}

#[tokio::test(start_paused = true)]
async fn a_class_that_does_not_exist_is_named_and_no_claim_is_left() {
    let bench = Bench::new().await;
    let mut request = volume(UID, GIB);
    request.parameters.insert("hostStorageClass".to_owned(), "gold".to_owned());
    let refused = bench.create_volume(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("StorageClass gold does not exist on the host"), "{refused}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

/// The secrets of an encrypted class are the host's: its own provisioner reads them by the parameters of that class.
#[rstest]
#[case::absent(&[])]
#[case::present(&[("CRYPTO_KEY_VALUE", "sesame-4711"), ("CRYPTO_KEY_PROVIDER", "secret")])]
#[tokio::test(start_paused = true)]
async fn a_volume_of_an_encrypted_class_is_created_whatever_secrets_the_guest_sends_and_none_is_written(
    #[case] secrets: &[(&str, &str)],
) {
    let bench = Bench::new().await;
    let parameters = json!({"encrypted": "true", "csi.storage.k8s.io/provisioner-secret-name": "longhorn-crypto",
        "csi.storage.k8s.io/provisioner-secret-namespace": "longhorn-system"});
    let class = json!({"metadata": {"name": "sealed"}, "provisioner": "driver.longhorn.io",
        "volumeBindingMode": "Immediate", "parameters": parameters});
    bench.create("storage.k8s.io/v1", "StorageClass", "", class).await;
    let mut request = volume(UID, GIB);
    request.parameters.insert("hostStorageClass".to_owned(), "sealed".to_owned());
    request.secrets = secrets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let made = bench.create_volume(request.clone()).await.unwrap();
    assert_eq!((made.volume_id.as_str(), made.capacity_bytes), (UID, GIB));
    let claim = bench.claim(UID).await;
    assert_eq!(claim.spec.as_ref().unwrap().storage_class_name.as_deref(), Some("sealed"));
    let text = serde_json::to_string(&(&claim, &made.volume_context)).unwrap();
    for (key, value) in secrets {
        assert!(!text.contains(key) && !text.contains(value), "{text}");
    }
    request.secrets.clear();
    assert_eq!(bench.create_volume(request).await.unwrap(), made, "another call has the same volume");
}

// docs/contract/csi-driver.md#optional
#[tokio::test(start_paused = true)]
async fn a_class_that_may_not_be_read_is_used_as_it_is() {
    let bench = Bench::new().await;
    bench.fault("get", "storageclasses", None, Answer::Code(403));
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    let spec = bench.claim(UID).await.spec.unwrap();
    assert_eq!(spec.storage_class_name.as_deref(), Some("longhorn"));
}

// docs/contract/csi-driver.md#consumer
#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_for_its_consumer_is_not_waited_for() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    assert!(bench.claim(UID).await.spec.unwrap().volume_name.is_none());
}

// docs/contract/csi-driver.md#export
#[tokio::test(start_paused = true)]
async fn a_volume_for_many_nodes_has_an_export_when_its_claim_is_bound() {
    let bench = Bench::new().await;
    let request = volume_for(UID, GIB, Mode::MultiNodeMultiWriter);
    let late = bench.create_volume(request.clone()).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("is not bound, and"), "{late}");
    let (answer, ()) = tokio::join!(bench.create_volume(request.clone()), async {
        tokio::time::sleep(Duration::from_secs(8)).await;
        bench.bind(UID, "1Gi").await;
    });
    assert_eq!(answer.unwrap().capacity_bytes, GIB);
    let exports = bench.api("harvesterhci.io/v1beta1", "NetworkFilesystem", "harvester-system");
    let export = exports.get(&format!("pvc-of-{UID}")).await.unwrap();
    assert_eq!(
        export.data["spec"],
        json!({"networkFSName": format!("pvc-of-{UID}"), "desiredState": "Disabled", "provisioner": "Longhorn"})
    );
    bench.create_volume(request).await.unwrap();
    bench.delete_volume(UID).await.unwrap();
    assert!(exports.get_opt(&format!("pvc-of-{UID}")).await.unwrap().is_none());
}

// docs/contract/csi-driver.md#codes
#[tokio::test(start_paused = true)]
async fn a_volume_whose_export_is_refused_counts_as_under_way_since_its_claim_is_there() {
    let bench = Bench::new().await;
    bench.fault("create", "networkfilesystems", None, Answer::Code(403));
    let request = volume_for(UID, GIB, Mode::MultiNodeMultiWriter);
    let (answer, ()) = tokio::join!(bench.create_volume(request), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.bind(UID, "1Gi").await;
    });
    let refused = answer.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains(&format!("pvc-of-{UID}")), "{refused}");
}

#[rstest]
#[case::lacks_the_kind(404, Code::InvalidArgument)]
#[case::lacks_the_right(403, Code::PermissionDenied)]
#[tokio::test(start_paused = true)]
async fn a_host_without_exports_refuses_a_volume_for_many_nodes_before_there_is_a_claim(
    #[case] answer: u16,
    #[case] code: Code,
) {
    let bench = Bench::new().await;
    bench.fault("list", "networkfilesystems", None, Answer::Code(answer));
    let refused = bench.create_volume(volume_for(UID, GIB, Mode::MultiNodeMultiWriter)).await.unwrap_err();
    assert_eq!(refused.code(), code);
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_copied_from_another() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB + 1)).await.unwrap();
    let copy = bench.filled(from_volume(volume(UID, GIB + 1), "source")).await.unwrap();
    assert!(copy.content_source.is_some());
    let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
    assert_eq!(spec["dataSource"], json!({"kind": "PersistentVolumeClaim", "name": "source"}));
    assert_eq!(spec["resources"]["requests"]["storage"], "1026Mi");
    let small = bench.create_volume(from_volume(volume("small", GIB / 2), "source")).await.unwrap_err();
    assert_eq!(small.code(), Code::OutOfRange);
    let absent = bench.create_volume(from_volume(volume("c", GIB), "absent")).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
}

/// The class of the host's volumes waits for a first consumer.
async fn class_waits(bench: &Bench) {
    let classes = bench.api("storage.k8s.io/v1", "StorageClass", "");
    classes.delete("longhorn", &kube::api::DeleteParams::default()).await.unwrap();
    let class = json!({"metadata": {"name": "longhorn"}, "provisioner": "driver.longhorn.io",
        "volumeBindingMode": "WaitForFirstConsumer"});
    bench.create("storage.k8s.io/v1", "StorageClass", "", class).await;
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_clone_on_a_class_that_waits_is_refused() {
    let bench = Bench::new().await;
    class_waits(&bench).await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.bind("source", "1Gi").await;
    let refused = bench.create_volume(from_volume(volume(UID, GIB), "source")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("take a snapshot and restore it"), "{refused}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_there_yet_is_not_copied() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    let late = bench.create_volume(from_volume(volume(UID, GIB), "source")).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(
        late.message().contains("shop/source on the host, which is to be copied, is not bound"),
        "{late}"
    );
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_being_copied_is_not_deleted() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.bind("source", "1Gi").await;
    bench.waits_for_its_first_consumer(UID, "PersistentVolumeClaim", "source").await;
    let refused = bench.delete_volume("source").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&format!("into PersistentVolumeClaim {UID}")), "{refused}");
    bench.bind(UID, "1Gi").await;
    bench.delete_volume("source").await.unwrap();
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_copied_is_kept_where_classes_may_not_be_read() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.bind("source", "1Gi").await;
    bench.fault("get", "storageclasses", None, Answer::Code(403));
    // the answer comes before the copy, since the class may wait
    bench.create_volume(from_volume(volume(UID, GIB), "source")).await.unwrap();
    let refused = bench.delete_volume("source").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&format!("into PersistentVolumeClaim {UID}")), "{refused}");
    bench.bind(UID, "1Gi").await;
    bench.delete_volume("source").await.unwrap();
}

// docs/contract/csi-driver.md#delete
#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_and_is_gone_however_often_it_is_asked_for() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    for id in [UID, UID, "never-was", "../secrets"] {
        bench.delete_volume(id).await.unwrap();
    }
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
    assert_eq!(bench.delete_volume("").await.unwrap_err().code(), Code::InvalidArgument);
}

// docs/contract/csi-driver.md#optional
#[rstest]
#[case(403)]
#[case(404)]
#[tokio::test(start_paused = true)]
async fn a_host_without_remote_restores_deletes_volumes(#[case] code: u16) {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.fault("get", "volumeremoterestores", None, Answer::Code(code));
    for _ in 0..2 {
        bench.delete_volume(UID).await.unwrap();
    }
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

/// The host would make such a claim again.
#[tokio::test(start_paused = true)]
async fn a_volume_of_a_remote_backup_stays_while_its_restore_may_not_be_read() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    let (version, kind) = ("harvesterhci.io/v1beta1", "VolumeRemoteRestore");
    bench.create(version, kind, NAMESPACE, json!({"metadata": {"name": UID}})).await;
    let uid = bench.api(version, kind, NAMESPACE).get(UID).await.unwrap().metadata.uid;
    let owner = json!([{"apiVersion": version, "kind": kind, "name": UID, "uid": uid}]);
    bench.patch("v1", "PersistentVolumeClaim", UID, json!({"metadata": {"ownerReferences": owner}})).await;
    bench.fault("get", "volumeremoterestores", Some(1), Answer::Code(403));
    assert_eq!(bench.delete_volume(UID).await.unwrap_err().code(), Code::PermissionDenied);
    assert!(bench.claims().get_opt(UID).await.unwrap().is_some());
    bench.delete_volume(UID).await.unwrap();
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_a_machine_is_not_deleted_and_the_machine_is_named() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.machine_with("node-1", UID).await;
    let claim = r#"{"vm":"node-1","vmUid":"u","op":"attach","holder":"pod"}"#;
    bench
        .patch("v1", "PersistentVolumeClaim", UID, json!({"metadata": {"annotations": {CSI_ATTACH: claim}}}))
        .await;
    let refused = bench.delete_volume(UID).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("VirtualMachine shop/node-1 on the host"), "{refused}");
    // a volume of the Go driver has no annotation, and Harvester's webhook knows
    bench
        .patch("v1", "PersistentVolumeClaim", UID, json!({"metadata": {"annotations": {CSI_ATTACH: null}}}))
        .await;
    bench.fault("delete", "persistentvolumeclaims", Some(1), Answer::Code(409));
    assert_eq!(bench.delete_volume(UID).await.unwrap_err().code(), Code::FailedPrecondition);
}

// docs/contract/csi-driver.md#list
#[tokio::test(start_paused = true)]
async fn volumes_are_listed_in_pages_with_the_machines_that_have_them() {
    let bench = Bench::new().await;
    assert!(list(&bench, 0, "").await.unwrap().entries.is_empty());
    for name in ["c", "a", "b"] {
        bench.create_volume(volume(name, GIB)).await.unwrap();
    }
    bench
        .create("v1", "PersistentVolumeClaim", "shop", json!({"metadata": {"name": "vm-disk-0"}, "spec": {}}))
        .await;
    bench.machine_with("node-1", "b").await;
    let first = list(&bench, 2, "").await.unwrap();
    let told = |page: &ListVolumesResponse| -> Vec<(String, String)> {
        let entry = |entry: &csi_driver::csi::list_volumes_response::Entry| {
            let nodes = entry.status.as_ref().unwrap().published_node_ids.join(",");
            (entry.volume.as_ref().unwrap().volume_id.clone(), nodes)
        };
        page.entries.iter().map(entry).collect()
    };
    let pair = |name: &str, nodes: &str| (name.to_owned(), nodes.to_owned());
    assert_eq!(told(&first), [pair("a", ""), pair("b", "node-1")]);
    let rest = list(&bench, 0, &first.next_token).await.unwrap();
    assert_eq!((told(&rest), rest.next_token.as_str()), (vec![pair("c", "")], ""));
    assert_eq!(list(&bench, 0, "invalid-token").await.unwrap_err().code(), Code::Aborted);
    assert_eq!(list(&bench, -1, "").await.unwrap_err().code(), Code::InvalidArgument);
}

#[rstest]
#[case("virtualmachines")]
#[case("persistentvolumeclaims")]
#[tokio::test(start_paused = true)]
async fn a_list_fails_rather_than_be_short(#[case] resource: &str) {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.fault("list", resource, None, Answer::Code(500));
    assert_eq!(list(&bench, 0, "").await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_shown_with_its_node_and_its_state() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB + 1)).await.unwrap();
    bench.machine_with("node-1", UID).await;
    let get = |id: &str| Request::new(ControllerGetVolumeRequest { volume_id: id.to_owned() });
    let answer = bench.service.controller_get_volume(get(UID)).await.unwrap().into_inner();
    let (volume, status) = (answer.volume.unwrap(), answer.status.unwrap());
    assert_eq!((volume.capacity_bytes, status.published_node_ids), (GIB + 1, vec!["node-1".to_owned()]));
    assert!(!status.volume_condition.unwrap().abnormal);
    assert_eq!(bench.service.controller_get_volume(get("absent")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(bench.service.controller_get_volume(get("")).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_confirmed_where_the_volume_has_them() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    let ask = async |id: &str, capabilities: Vec<_>| {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities: capabilities,
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        let answer = bench.service.validate_volume_capabilities(Request::new(request)).await;
        answer.map(|answer| answer.into_inner().confirmed.is_some()).map_err(|status| status.code())
    };
    assert_eq!(ask(UID, vec![files(Mode::SingleNodeWriter)]).await, Ok(true));
    assert_eq!(ask(UID, vec![files(Mode::MultiNodeMultiWriter)]).await, Ok(false));
    assert_eq!(ask(UID, vec![]).await, Err(Code::InvalidArgument));
    assert_eq!(ask("", vec![files(Mode::SingleNodeWriter)]).await, Err(Code::InvalidArgument));
    assert_eq!(ask("absent", vec![files(Mode::SingleNodeWriter)]).await, Err(Code::NotFound));
}

// docs/contract/csi-driver.md#growth
#[tokio::test(start_paused = true)]
async fn a_volume_has_grown_when_the_answer_comes() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    let late = expand(&bench, UID, 2 * GIB).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let (answer, ()) = tokio::join!(expand(&bench, UID, 2 * GIB), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        bench.bind(UID, "2Gi").await;
    });
    let answer = answer.unwrap();
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (2 * GIB, false));
    bench.requests();
    bench.machine_with("node-1", UID).await;
    assert!(expand(&bench, UID, 2 * GIB).await.unwrap().node_expansion_required);
    assert_eq!(bench.requests(), [format!("get {UID}"), "list virtualmachines".to_owned()]);
    assert_eq!(bench.create_volume(volume(UID, GIB)).await.unwrap().capacity_bytes, 2 * GIB);
}

// docs/contract/csi-driver.md#growth
#[tokio::test(start_paused = true)]
async fn a_file_system_that_waited_for_a_pod_before_is_not_taken_for_grown() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    let says = async |at: &str| {
        let condition =
            json!([{"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": at}]);
        let status = json!({"status": {"conditions": condition}});
        let (params, patch) = (kube::api::PatchParams::default(), kube::api::Patch::Merge(status));
        bench.claims().patch_status(UID, &params, &patch).await.unwrap();
    };
    says("2026-01-01T00:00:00Z").await;
    let (answer, ()) = tokio::join!(expand(&bench, UID, 2 * GIB), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let size = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
        assert_eq!(size["resources"]["requests"]["storage"], "2Gi");
    });
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    // nor by the call that comes again, in another process perhaps
    assert_eq!(expand(&bench, UID, 2 * GIB).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(list(&bench, 0, "").await.unwrap().entries[0].volume.as_ref().unwrap().capacity_bytes, GIB);
    let (answer, ()) = tokio::join!(expand(&bench, UID, 3 * GIB), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        says("2026-01-01T00:01:00Z").await;
    });
    assert_eq!(answer.unwrap().capacity_bytes, 3 * GIB);
}

// docs/contract/csi-driver.md#growth
#[tokio::test(start_paused = true)]
async fn a_growth_that_failed_can_be_taken_back_to_a_smaller_one() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    assert_eq!(expand(&bench, UID, 100 * GIB).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(bench.taken("s", UID, None).await.unwrap().size_bytes, GIB);
    let listed = list(&bench, 0, "").await.unwrap().entries.remove(0).volume.unwrap();
    assert_eq!(listed.capacity_bytes, GIB);
    bench.fault("patch", "persistentvolumeclaims", Some(1), Answer::Code(422));
    assert_eq!(expand(&bench, UID, 2 * GIB).await.unwrap_err().code(), Code::OutOfRange);
    let (answer, ()) = tokio::join!(expand(&bench, UID, 2 * GIB), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
        assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
        bench.bind(UID, "2Gi").await;
    });
    assert_eq!(answer.unwrap().capacity_bytes, 2 * GIB);
}

#[tokio::test(start_paused = true)]
async fn a_growth_against_another_writer_is_decided_again() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "4Gi").await;
    bench.fault("patch", "persistentvolumeclaims", Some(1), Answer::Code(409));
    assert_eq!(expand(&bench, UID, 2 * GIB).await.unwrap().capacity_bytes, 2 * GIB);
    bench.server.faults().clear();
    bench.fault("patch", "persistentvolumeclaims", None, Answer::Code(409));
    assert_eq!(expand(&bench, UID, 3 * GIB).await.unwrap_err().code(), Code::Aborted);
}

// docs/contract/csi-driver.md#growth
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_larger_than_asked_is_no_fault_of_a_growth() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    // an administrator of the host makes it larger
    let spec = json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}});
    bench.patch("v1", "PersistentVolumeClaim", UID, spec).await;
    bench.bind(UID, "5Gi").await;
    assert_eq!(expand(&bench, UID, 2 * GIB).await.unwrap().capacity_bytes, 5 * GIB);
    let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
    assert_eq!(spec["resources"]["requests"]["storage"], "5Gi");
    assert_eq!(
        list(&bench, 0, "").await.unwrap().entries[0].volume.as_ref().unwrap().capacity_bytes,
        5 * GIB
    );
}

// docs/contract/csi-driver.md#growth
#[tokio::test(start_paused = true)]
async fn a_growth_of_a_volume_that_is_bound_at_its_first_use_keeps_no_worker() {
    let bench = Bench::new().await;
    class_waits(&bench).await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    let refused = expand(&bench, UID, 2 * GIB).await.unwrap_err();
    // nobody waited, and the resizer comes again, also while a pod uses the volume
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("at its first attachment"), "{refused}");
    assert_eq!(expand(&bench, UID, GIB).await.unwrap().capacity_bytes, GIB, "it will have that size");
    bench.bind(UID, "2Gi").await;
    assert_eq!(expand(&bench, UID, 2 * GIB).await.unwrap().capacity_bytes, 2 * GIB);
}

#[tokio::test(start_paused = true)]
async fn a_growth_without_a_volume_or_a_size_is_refused() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, 2 * GIB)).await.unwrap();
    assert_eq!(expand(&bench, "", GIB).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(expand(&bench, "absent", GIB).await.unwrap_err().code(), Code::NotFound);
    let no_range = ControllerExpandVolumeRequest {
        volume_id: UID.to_owned(),
        ..ControllerExpandVolumeRequest::default()
    };
    let refused = bench.service.controller_expand_volume(Request::new(no_range)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn two_calls_for_one_volume_do_not_run_at_once() {
    let bench = Bench::new().await;
    bench.fault("get", "persistentvolumeclaims", Some(1), Answer::Delay(Duration::from_secs(5)));
    let (first, second) = tokio::join!(bench.create_volume(volume(UID, GIB)), bench.delete_volume(UID));
    assert!(first.is_ok());
    assert_eq!(second.unwrap_err().code(), Code::Aborted);
    bench.delete_volume(UID).await.unwrap();
}

/// Two processes, one name: the API keeps them apart.
#[tokio::test(start_paused = true)]
async fn two_processes_make_one_volume() {
    let bench = Bench::new().await;
    let other = Bench::another(&bench.server);
    for round in 0..20 {
        let request: CreateVolumeRequest = volume(&format!("pvc-{round}"), GIB);
        let (one, two) = tokio::join!(
            bench.create_volume(request.clone()),
            other.create_volume(Request::new(request.clone()))
        );
        let codes = [one.err().map(|status| status.code()), two.err().map(|status| status.code())];
        assert!(codes.contains(&None), "{codes:?}");
        assert!(codes.iter().flatten().all(|code| *code == Code::Aborted), "{codes:?}");
        assert!(bench.create_volume(request).await.is_ok());
    }
    let count = bench
        .claims()
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .iter()
        .map(ResourceExt::name_any)
        .count();
    assert_eq!(count, 20);
}
