//! Bytes that nobody meant, against the services as they are on the socket.

use csi_driver::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest, GetSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest,
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, ValidateVolumeCapabilitiesRequest,
    VolumeCapability, VolumeContentSource,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    volume_content_source::{SnapshotSource, Type},
};
use proptest::{prelude::*, test_runner::TestRunner};
use prost::Message as _;
use tonic::Code;

use super::driver::Driver;

/// A request that is whole, for a volume that is not there.
fn whole(driver: &Driver) -> Vec<(&'static str, Vec<u8>)> {
    let id = || "absent".to_owned();
    let capability = VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            mount_flags: vec!["noatime".to_owned()],
            volume_mount_group: String::new(),
        })),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    };
    let one = || Some(capability.clone());
    let range = Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 1 << 31 });
    let source = Type::Snapshot(SnapshotSource { snapshot_id: id() });
    let (staging, target) = (driver.path("staging"), driver.path("target"));
    let create = CreateVolumeRequest {
        name: id(),
        capacity_range: range,
        volume_capabilities: vec![capability.clone()],
        parameters: [("hostStorageClass".to_owned(), "absent".to_owned())].into(),
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..Default::default()
    };
    let publish = ControllerPublishVolumeRequest {
        volume_id: id(),
        node_id: "absent".to_owned(),
        volume_capability: one(),
        ..Default::default()
    };
    let unpublish = ControllerUnpublishVolumeRequest {
        volume_id: id(),
        node_id: "absent".to_owned(),
        ..Default::default()
    };
    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: id(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let expand = ControllerExpandVolumeRequest {
        volume_id: id(),
        capacity_range: range,
        volume_capability: one(),
        ..Default::default()
    };
    let snapshot =
        CreateSnapshotRequest { source_volume_id: id(), name: "snapshot".to_owned(), ..Default::default() };
    let stage = NodeStageVolumeRequest {
        volume_id: id(),
        staging_target_path: staging.clone(),
        volume_capability: one(),
        ..Default::default()
    };
    let node_publish = NodePublishVolumeRequest {
        volume_id: id(),
        staging_target_path: staging.clone(),
        target_path: target.clone(),
        volume_capability: one(),
        ..Default::default()
    };
    let node_expand = NodeExpandVolumeRequest {
        volume_id: id(),
        volume_path: target.clone(),
        capacity_range: range,
        staging_target_path: staging.clone(),
        volume_capability: one(),
        ..Default::default()
    };
    let stats = NodeGetVolumeStatsRequest {
        volume_id: id(),
        volume_path: target.clone(),
        staging_target_path: staging.clone(),
    };
    vec![
        ("Identity/Probe", vec![]),
        ("Controller/CreateVolume", create.encode_to_vec()),
        (
            "Controller/DeleteVolume",
            DeleteVolumeRequest { volume_id: id(), ..Default::default() }.encode_to_vec(),
        ),
        ("Controller/ControllerPublishVolume", publish.encode_to_vec()),
        ("Controller/ControllerUnpublishVolume", unpublish.encode_to_vec()),
        ("Controller/ValidateVolumeCapabilities", validate.encode_to_vec()),
        (
            "Controller/ListVolumes",
            ListVolumesRequest { max_entries: 2, starting_token: "after:a".to_owned() }.encode_to_vec(),
        ),
        ("Controller/GetCapacity", vec![]),
        ("Controller/CreateSnapshot", snapshot.encode_to_vec()),
        (
            "Controller/DeleteSnapshot",
            DeleteSnapshotRequest { snapshot_id: id(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "Controller/ListSnapshots",
            ListSnapshotsRequest { snapshot_id: id(), max_entries: 2, ..Default::default() }.encode_to_vec(),
        ),
        (
            "Controller/GetSnapshot",
            GetSnapshotRequest { snapshot_id: id(), ..Default::default() }.encode_to_vec(),
        ),
        ("Controller/ControllerExpandVolume", expand.encode_to_vec()),
        ("Controller/ControllerGetVolume", ControllerGetVolumeRequest { volume_id: id() }.encode_to_vec()),
        ("Controller/ControllerModifyVolume", vec![]),
        ("Node/NodeStageVolume", stage.encode_to_vec()),
        (
            "Node/NodeUnstageVolume",
            NodeUnstageVolumeRequest { volume_id: id(), staging_target_path: staging }.encode_to_vec(),
        ),
        ("Node/NodePublishVolume", node_publish.encode_to_vec()),
        (
            "Node/NodeUnpublishVolume",
            NodeUnpublishVolumeRequest { volume_id: id(), target_path: target }.encode_to_vec(),
        ),
        ("Node/NodeGetVolumeStats", stats.encode_to_vec()),
        ("Node/NodeExpandVolume", node_expand.encode_to_vec()),
    ]
}

/// A change at one place of a message: a bit, a byte, or a piece that goes or comes twice.
#[derive(Clone, Debug)]
enum Edit {
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
    Cut(usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = 0..400_usize;
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, bits)| Edit::Flip(at, bits)),
        (at.clone(), proptest::collection::vec(any::<u8>(), 1..8))
            .prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (at.clone(), 1..20_usize).prop_map(|(at, count)| Edit::Remove(at, count)),
        (at.clone(), 1..60_usize).prop_map(|(at, count)| Edit::Repeat(at, count)),
        at.prop_map(Edit::Cut),
    ]
}

fn edited(mut bytes: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    for edit in edits {
        let length = bytes.len();
        if length == 0 {
            return bytes;
        }
        match edit {
            Edit::Flip(at, bits) => bytes[at % length] ^= bits,
            Edit::Insert(at, piece) => drop(bytes.splice(at % length..at % length, piece.iter().copied())),
            Edit::Remove(at, count) => {
                let from = at % length;
                bytes.drain(from..(from + count).min(length));
            }
            Edit::Repeat(at, count) => {
                let from = at % length;
                let piece = bytes[from..(from + count).min(length)].to_vec();
                bytes.extend(piece);
            }
            Edit::Cut(at) => bytes.truncate(at % length),
        }
    }
    bytes
}

/// Calls with each message. Bytes that are no message are Internal for tonic, as gRPC has it, and no fault of ours.
fn check(cases: u32, messages: &impl Strategy<Value = Vec<Edit>>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let driver = runtime.block_on(Driver::new());
    for (method, message) in whole(&driver) {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let run = TestRunner::new(config).run(messages, |edits| {
            let status = runtime.block_on(driver.answer(method, &edited(message.clone(), &edits)));
            let is_fault = [Code::Internal, Code::Unknown].contains(&status.code());
            prop_assert!(!is_fault, "{} {}", method, status);
            prop_assert!(!status.message().contains('\n'), "{}", status);
            Ok(())
        });
        run.unwrap_or_else(|error| panic!("{method}: {error}"));
    }
    // nothing was made or mounted by them
    let left = std::fs::read_dir(driver.folder.path().join("kubelet")).unwrap().count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn bytes_that_are_no_message_are_the_callers_fault() {
    let driver = Driver::new().await;
    for method in ["Controller/DeleteVolume", "Node/NodeUnstageVolume"] {
        let status = driver.answer(method, &[10, 1, 0xff]).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{method} {status}");
        assert!(status.message().contains("is no message of this method"), "{method} {status}");
    }
}

#[test]
fn changed_bytes_of_a_request_have_an_answer_and_never_a_fault() {
    check(150, &proptest::collection::vec(edit(), 1..6));
}

#[test]
fn bytes_at_random_have_an_answer_and_never_a_fault() {
    let random = proptest::collection::vec(any::<u8>(), 0..200);
    check(50, &random.prop_map(|bytes| vec![Edit::Cut(1), Edit::Insert(0, bytes)]));
}
