//! What the node service says to requests, without any disk.

use std::path::Path;
use std::time::Duration;

use csi_driver::csi::node_server::Node as _;
use csi_driver::csi::node_service_capability::Type;
use csi_driver::csi::volume_capability::access_mode::Mode;
use csi_driver::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use csi_driver::csi::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
};
use csi_driver::node::{NodeService, Settings};
use csi_driver::node_id::Told;
use tokio::sync::watch;
use tonic::{Code, Request, Status};

fn service(root: &Path) -> NodeService {
    let settings = Settings {
        device_directory: root.join("by-id"),
        kubelet_root: root.to_owned(),
        max_volumes_per_node: 8,
        ..Settings::default()
    };
    NodeService::new(settings, watch::channel(None).1)
}

fn files(mode: Mode) -> Option<VolumeCapability> {
    let access_type = Some(AccessType::Mount(MountVolume::default()));
    Some(VolumeCapability { access_type, access_mode: Some(AccessMode { mode: mode.into() }) })
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

#[tokio::test(start_paused = true)]
async fn a_node_has_no_name_until_the_host_has_answered_once() {
    let (known, node_id) = watch::channel(None);
    let settings = Settings { max_volumes_per_node: 8, ..Settings::default() };
    let service = NodeService::new(settings, node_id);
    let info = || service.node_get_info(Request::new(NodeGetInfoRequest {}));
    assert_eq!(code(info().await), Code::Unavailable);
    known.send_replace(Some(Told::named("web-1")));
    let answer = info().await.unwrap().into_inner();
    assert_eq!((answer.node_id.as_str(), answer.max_volumes_per_node), ("web-1", 8));
    let answer = service.node_get_capabilities(Request::new(NodeGetCapabilitiesRequest {})).await.unwrap();
    let mut numbers: Vec<_> = answer
        .into_inner()
        .capabilities
        .into_iter()
        .map(|one| match one.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type,
            None => 0,
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}

// the registrar ends with a registration that failed, and comes back after the container's growing pauses
#[tokio::test(start_paused = true)]
async fn the_first_registration_of_a_node_waits_for_the_host_to_answer_once() {
    let (known, machine) = watch::channel(None);
    let service = NodeService::new(Settings::default(), machine);
    let (answer, ()) = tokio::join!(service.node_get_info(Request::new(NodeGetInfoRequest {})), async {
        tokio::task::yield_now().await;
        known.send_replace(Some(Told { is_asked: true, ..Told::named("web-1") }));
    });
    assert_eq!(answer.unwrap().into_inner().node_id, "web-1");
}

// docs/contract/csi-driver.md#limits
#[tokio::test(start_paused = true)]
async fn kubelet_hears_how_many_volumes_have_room_as_soon_as_the_host_says_it() {
    let noted = Told { noted: Some(250), is_asked: false, ..Told::named("web-1") };
    let (known, machine) = watch::channel(Some(noted.clone()));
    let service = NodeService::new(Settings::default(), machine);
    let info = || service.node_get_info(Request::new(NodeGetInfoRequest {}));
    let most = async || info().await.unwrap().into_inner().max_volumes_per_node;
    let (of_host, ()) = tokio::join!(most(), async {
        tokio::task::yield_now().await;
        known.send_replace(Some(Told { room: Some(253), is_asked: true, ..noted.clone() }));
    });
    assert_eq!(of_host, 253);
    // a host that is away holds nothing up
    known.send_replace(Some(noted));
    assert_eq!(most().await, 250);
}

#[tokio::test]
async fn a_missing_field_is_an_invalid_argument_and_an_absent_path_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path());
    let path = folder.path().join("x").to_str().unwrap().to_owned();
    let id = "pvc-1".to_owned();
    let writer = files(Mode::SingleNodeWriter);

    let good = NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: path.clone(),
        volume_capability: writer.clone(),
        ..NodeStageVolumeRequest::default()
    };
    for request in [
        NodeStageVolumeRequest { volume_id: String::new(), ..good.clone() },
        NodeStageVolumeRequest { volume_id: "a".repeat(1000), ..good.clone() },
        NodeStageVolumeRequest { staging_target_path: String::new(), ..good.clone() },
        NodeStageVolumeRequest { staging_target_path: "/etc".to_owned(), ..good.clone() },
        NodeStageVolumeRequest { staging_target_path: format!("{path}/../../y"), ..good.clone() },
        NodeStageVolumeRequest { volume_capability: None, ..good.clone() },
        NodeStageVolumeRequest { volume_capability: Some(VolumeCapability::default()), ..good.clone() },
    ] {
        assert_eq!(code(service.node_stage_volume(Request::new(request)).await), Code::InvalidArgument);
    }
    let unknown = NodeStageVolumeRequest { volume_id: "../pvc-1".to_owned(), ..good.clone() };
    assert_eq!(code(service.node_stage_volume(Request::new(unknown)).await), Code::NotFound);
    let absent = service.node_stage_volume(Request::new(good)).await;
    assert_eq!(code(absent), Code::FailedPrecondition);

    let good = NodePublishVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: path.clone(),
        target_path: path.clone(),
        volume_capability: writer.clone(),
        ..NodePublishVolumeRequest::default()
    };
    for (request, expected) in [
        (NodePublishVolumeRequest { volume_id: String::new(), ..good.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { target_path: String::new(), ..good.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { target_path: "/etc".to_owned(), ..good.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { volume_capability: None, ..good.clone() }, Code::InvalidArgument),
        (
            NodePublishVolumeRequest { staging_target_path: String::new(), ..good.clone() },
            Code::FailedPrecondition,
        ),
    ] {
        assert_eq!(code(service.node_publish_volume(Request::new(request)).await), expected);
    }

    for (volume_id, staging_target_path, expected) in [
        ("", path.as_str(), Code::InvalidArgument),
        ("pvc-1", "", Code::InvalidArgument),
        ("pvc-1", "relative", Code::InvalidArgument),
        ("pvc-1", &path, Code::Ok),
    ] {
        let (volume_id, at) = (volume_id.to_owned(), staging_target_path.to_owned());
        let request =
            NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path: at.clone() };
        assert_eq!(code(service.node_unstage_volume(Request::new(request)).await), expected);
        let request = NodeUnpublishVolumeRequest { volume_id, target_path: at };
        assert_eq!(code(service.node_unpublish_volume(Request::new(request)).await), expected);
    }

    for (volume_id, volume_path, expected) in [
        ("", "some/path", Code::InvalidArgument),
        ("pvc-1", "", Code::InvalidArgument),
        ("pvc-1", "/etc", Code::InvalidArgument),
        ("pvc-1", "some/path", Code::NotFound),
        ("pvc-1", &path, Code::NotFound),
    ] {
        let (volume_id, volume_path) = (volume_id.to_owned(), volume_path.to_owned());
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume_id.clone(),
            volume_path: volume_path.clone(),
            ..NodeGetVolumeStatsRequest::default()
        };
        assert_eq!(code(service.node_get_volume_stats(Request::new(request)).await), expected);
        let request =
            NodeExpandVolumeRequest { volume_id, volume_path, ..NodeExpandVolumeRequest::default() };
        assert_eq!(code(service.node_expand_volume(Request::new(request)).await), expected);
    }
}

// docs/contract/csi-driver.md#nfs
#[tokio::test]
async fn an_export_without_its_address_names_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let staging = folder.path().join("staging");
    std::fs::create_dir(&staging).unwrap();
    let request = NodeStageVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        staging_target_path: staging.to_str().unwrap().to_owned(),
        volume_capability: files(Mode::MultiNodeMultiWriter),
        ..NodeStageVolumeRequest::default()
    };
    let refusal = service(folder.path()).node_stage_volume(Request::new(request)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert!(refusal.message().contains("delete its VolumeAttachment"), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_gave_up_keeps_others_from_its_volume_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let staging = folder.path().join("staging");
    std::fs::create_dir(&staging).unwrap();
    let path = staging.to_str().unwrap().to_owned();
    let service = service(folder.path());
    let request = NodeStageVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        staging_target_path: path.clone(),
        volume_capability: files(Mode::SingleNodeWriter),
        ..NodeStageVolumeRequest::default()
    };
    let unstage = |id: &str| {
        let request =
            NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: path.clone() };
        service.node_unstage_volume(Request::new(request))
    };
    // the disk does not come
    let staged =
        tokio::time::timeout(Duration::from_secs(1), service.node_stage_volume(Request::new(request)));
    assert!(staged.await.is_err());
    assert_eq!(code(unstage("pvc-1").await), Code::Aborted);
    assert_eq!(code(unstage("pvc-2").await), Code::Ok);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(code(unstage("pvc-1").await), Code::Ok);
}
