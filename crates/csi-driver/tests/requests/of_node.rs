//! The fields of requests to the node service.

use csi_driver::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    volume_capability::{AccessType, BlockVolume, access_mode::Mode},
};
use tonic::Code;

use super::{
    driver::{Driver, VOLUME},
    rows::{Rows, capabilities, capability, map, mount, secrets},
};

pub(crate) fn node(rows: &mut Rows, driver: &Driver) {
    let (id, one) = (|| VOLUME.to_owned(), || Some(mount("ext4", &[])));
    std::os::unix::fs::symlink("/etc", driver.path("link")).unwrap();
    std::fs::create_dir(driver.path("staging")).unwrap();
    let staging = driver.path("staging");
    let paths = |absent: Code, outside: Code| {
        [
            ("missing", String::new(), Code::InvalidArgument),
            ("too long", format!("/{}", "a/".repeat(3000)), Code::InvalidArgument),
            ("a long part", driver.path(&"a".repeat(300)), Code::InvalidArgument),
            ("elsewhere", "/etc/passwd".to_owned(), Code::InvalidArgument),
            ("the root itself", driver.path(""), Code::InvalidArgument),
            ("path traversal", driver.path("../../../etc"), Code::InvalidArgument),
            ("a control character", driver.path("a\0b"), Code::InvalidArgument),
            ("a link", driver.path("link"), Code::FailedPrecondition),
            ("below a link", driver.path("link/x"), Code::FailedPrecondition),
            ("relative", "some/path".to_owned(), outside),
            ("absent", driver.path("absent"), absent),
        ]
    };
    let volumes = |unknown: Code| {
        [
            ("missing", String::new(), Code::InvalidArgument),
            ("too long", "a".repeat(300), Code::InvalidArgument),
            ("a control character", "a\u{0}".to_owned(), Code::InvalidArgument),
            ("path traversal", "../pvc-1".to_owned(), unknown),
        ]
    };
    let stage = NodeStageVolumeRequest {
        volume_id: id(),
        staging_target_path: staging.clone(),
        volume_capability: one(),
        ..Default::default()
    };
    let publish = NodePublishVolumeRequest {
        volume_id: id(),
        staging_target_path: staging.clone(),
        target_path: driver.path("target"),
        volume_capability: one(),
        ..Default::default()
    };
    let expand =
        NodeExpandVolumeRequest { volume_id: id(), volume_path: staging.clone(), ..Default::default() };
    for (what, volume_id, code) in volumes(Code::NotFound) {
        rows.add(
            "Node/NodeStageVolume",
            "volume_id",
            what,
            &NodeStageVolumeRequest { volume_id: volume_id.clone(), ..stage.clone() },
            code,
        );
        rows.add(
            "Node/NodePublishVolume",
            "volume_id",
            what,
            &NodePublishVolumeRequest { volume_id, ..publish.clone() },
            code,
        );
    }
    for (what, volume_id, code) in volumes(Code::Ok) {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: driver.path("absent"),
        };
        rows.add("Node/NodeUnstageVolume", "volume_id", what, &request, code);
        rows.add(
            "Node/NodeUnpublishVolume",
            "volume_id",
            what,
            &NodeUnpublishVolumeRequest { volume_id, target_path: driver.path("absent") },
            code,
        );
    }
    for (what, volume_id, code) in volumes(Code::NotFound) {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume_id.clone(),
            volume_path: driver.path("absent"),
            ..Default::default()
        };
        rows.add("Node/NodeGetVolumeStats", "volume_id", what, &request, code);
        rows.add(
            "Node/NodeExpandVolume",
            "volume_id",
            what,
            &NodeExpandVolumeRequest { volume_id, volume_path: driver.path("absent"), ..expand.clone() },
            code,
        );
    }
    for (what, path, code) in paths(Code::FailedPrecondition, Code::InvalidArgument) {
        let request = NodeStageVolumeRequest { staging_target_path: path, ..stage.clone() };
        rows.add("Node/NodeStageVolume", "staging_target_path", what, &request, code);
    }
    // volumes of the Go driver are not staged; the disk does not come
    for (what, path, code) in paths(Code::NotFound, Code::InvalidArgument) {
        let code = if what == "missing" { Code::FailedPrecondition } else { code };
        let request = NodePublishVolumeRequest { staging_target_path: path, ..publish.clone() };
        rows.add("Node/NodePublishVolume", "staging_target_path", what, &request, code);
    }
    for (what, path, code) in paths(Code::Ok, Code::InvalidArgument) {
        let request = NodeUnstageVolumeRequest { volume_id: id(), staging_target_path: path.clone() };
        rows.add("Node/NodeUnstageVolume", "staging_target_path", what, &request, code);
        rows.add(
            "Node/NodeUnpublishVolume",
            "target_path",
            what,
            &NodeUnpublishVolumeRequest { volume_id: id(), target_path: path },
            code,
        );
    }
    for (what, path, code) in paths(Code::NotFound, Code::InvalidArgument) {
        rows.add(
            "Node/NodePublishVolume",
            "target_path",
            what,
            &NodePublishVolumeRequest { target_path: path, ..publish.clone() },
            code,
        );
    }
    for (what, path, code) in paths(Code::NotFound, Code::NotFound) {
        let request =
            NodeGetVolumeStatsRequest { volume_id: id(), volume_path: path.clone(), ..Default::default() };
        rows.add("Node/NodeGetVolumeStats", "volume_path", what, &request, code);
        rows.add(
            "Node/NodeExpandVolume",
            "volume_path",
            what,
            &NodeExpandVolumeRequest { volume_path: path, ..expand.clone() },
            code,
        );
    }
    let odd = [
        ("an unknown file system", mount("ntfs", &[])),
        ("an empty option", mount("ext4", &[""])),
        ("a control character", mount("ext4", &["ro\n"])),
        ("another operation", mount("ext4", &["bind"])),
        ("long options", mount("ext4", &[&"x".repeat(5000)])),
    ];
    let odd = odd.into_iter().map(|(what, one)| (what, Some(one)));
    for (what, volume_capability) in capabilities().into_iter().chain(odd) {
        rows.add(
            "Node/NodeStageVolume",
            "volume_capability",
            what,
            &NodeStageVolumeRequest { volume_capability: volume_capability.clone(), ..stage.clone() },
            Code::InvalidArgument,
        );
        rows.add(
            "Node/NodePublishVolume",
            "volume_capability",
            what,
            &NodePublishVolumeRequest { volume_capability, ..publish.clone() },
            Code::InvalidArgument,
        );
    }
    // nobody needs these, and the disk does not come
    for any in secrets() {
        let all = NodeStageVolumeRequest {
            secrets: any.clone(),
            volume_context: any.clone(),
            publish_context: any,
            ..stage.clone()
        };
        for field in ["secrets", "volume_context", "publish_context"] {
            rows.add("Node/NodeStageVolume", field, "any", &all, Code::NotFound);
        }
    }
    for field in ["secrets", "volume_context", "publish_context", "readonly"] {
        let any = map("key", "value");
        let request = NodePublishVolumeRequest {
            secrets: any.clone(),
            volume_context: any.clone(),
            publish_context: any,
            readonly: true,
            ..publish.clone()
        };
        rows.add("Node/NodePublishVolume", field, "any", &request, Code::NotFound);
    }
    // kubelet keeps the pod from writing: it is the disk alone that is missing
    let block = |mode| Some(capability(mode, AccessType::Block(BlockVolume {})));
    for (what, mode, code) in [
        ("block", Mode::SingleNodeWriter, Code::NotFound),
        ("block in a mode that only reads", Mode::SingleNodeReaderOnly, Code::FailedPrecondition),
        ("block in a mode that only reads, on many nodes", Mode::MultiNodeReaderOnly, Code::InvalidArgument),
    ] {
        let request =
            NodePublishVolumeRequest { volume_capability: block(mode), readonly: true, ..publish.clone() };
        rows.add("Node/NodePublishVolume", "readonly", what, &request, code);
    }
    let range = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });
    for (what, capacity_range, code) in
        [("negative", range(-1, 0), Code::InvalidArgument), ("a limit below", range(2, 1), Code::OutOfRange)]
    {
        rows.add(
            "Node/NodeExpandVolume",
            "capacity_range",
            what,
            &NodeExpandVolumeRequest { capacity_range, ..expand.clone() },
            code,
        );
    }
    for (field, request) in [
        (
            "staging_target_path",
            NodeExpandVolumeRequest { staging_target_path: "/etc".to_owned(), ..expand.clone() },
        ),
        ("volume_capability", NodeExpandVolumeRequest { volume_capability: one(), ..expand.clone() }),
        ("secrets", NodeExpandVolumeRequest { secrets: map("a", "b"), ..expand }),
    ] {
        rows.add("Node/NodeExpandVolume", field, "any", &request, Code::FailedPrecondition);
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: id(),
        volume_path: driver.path("absent"),
        staging_target_path: "/etc".to_owned(),
    };
    rows.add("Node/NodeGetVolumeStats", "staging_target_path", "any", &request, Code::NotFound);
}
