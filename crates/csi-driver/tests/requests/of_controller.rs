//! The fields of requests to the controller service.

use csi_driver::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest, GetSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest, Topology,
    TopologyRequirement, ValidateVolumeCapabilitiesRequest, VolumeContentSource,
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use tonic::Code;

use super::{
    driver::{MACHINE, VOLUME},
    rows::{Rows, capabilities, map, mount, secrets},
};

/// Names that no object has, and what CSI says to each where the volume has to exist.
fn ids() -> [(&'static str, String, Code); 6] {
    [
        ("missing", String::new(), Code::InvalidArgument),
        ("too long", "a".repeat(300), Code::NotFound),
        ("path traversal", "../../nodes/a".to_owned(), Code::NotFound),
        ("capitals", "PVC-1".to_owned(), Code::NotFound),
        ("a query", "pvc-1?force=true".to_owned(), Code::NotFound),
        ("unknown", "absent".to_owned(), Code::NotFound),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn controller(rows: &mut Rows) {
    let (id, one) = (|| VOLUME.to_owned(), || Some(mount("ext4", &[])));
    let gib = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });

    let method = "Controller/CreateVolume";
    let good = CreateVolumeRequest {
        name: "new".to_owned(),
        volume_capabilities: vec![mount("ext4", &[])],
        ..Default::default()
    };
    for (what, name) in
        [("missing", String::new()), ("too long", "n".repeat(129)), ("a control character", "a\0".to_owned())]
    {
        rows.add(method, "name", what, &CreateVolumeRequest { name, ..good.clone() }, Code::InvalidArgument);
    }
    rows.add(
        method,
        "name",
        "path traversal",
        &CreateVolumeRequest { name: "../../x".to_owned(), ..good.clone() },
        Code::Ok,
    );
    rows.add(
        method,
        "volume_capabilities",
        "missing",
        &CreateVolumeRequest { volume_capabilities: vec![], ..good.clone() },
        Code::InvalidArgument,
    );
    for (what, capability) in capabilities().into_iter().filter_map(|(what, one)| Some((what, one?))) {
        let request = CreateVolumeRequest { volume_capabilities: vec![capability], ..good.clone() };
        rows.add(method, "volume_capabilities", what, &request, Code::InvalidArgument);
    }
    let request = CreateVolumeRequest { volume_capabilities: vec![mount("ntfs", &[])], ..good.clone() };
    rows.add(method, "volume_capabilities", "an unknown file system", &request, Code::InvalidArgument);
    for (what, capacity_range) in [
        ("negative", gib(-1, 0)),
        ("a limit below", gib(2 << 30, 1 << 30)),
        ("too large", gib(i64::MAX, 0)),
        ("a small limit", gib(0, 1)),
    ] {
        rows.add(
            method,
            "capacity_range",
            what,
            &CreateVolumeRequest { capacity_range, ..good.clone() },
            Code::OutOfRange,
        );
    }
    for (what, parameters, code) in [
        ("too long", map("a", &"x".repeat(5000)), Code::InvalidArgument),
        ("an empty class", map("hostStorageClass", ""), Code::InvalidArgument),
        ("a class with a path", map("hostStorageClass", "../nodes"), Code::InvalidArgument),
        ("a class that is not there", map("hostStorageClass", "gold"), Code::NotFound),
    ] {
        rows.add(method, "parameters", what, &CreateVolumeRequest { parameters, ..good.clone() }, code);
    }
    let mutable_parameters = map("iops", "5");
    rows.add(
        method,
        "mutable_parameters",
        "any",
        &CreateVolumeRequest { mutable_parameters, ..good.clone() },
        Code::InvalidArgument,
    );
    let from = |source| Some(VolumeContentSource { r#type: source });
    let snapshot = |id: &str| Some(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }));
    let volume = |id: &str| Some(Type::Volume(VolumeSource { volume_id: id.to_owned() }));
    for (what, source, code) in [
        ("of no type", None, Code::InvalidArgument),
        ("no snapshot", snapshot(""), Code::InvalidArgument),
        ("no volume", volume(""), Code::InvalidArgument),
        ("a snapshot with a path", snapshot("../x"), Code::NotFound),
        ("a volume with a path", volume("../x"), Code::NotFound),
        ("a backup with a path", snapshot("backup:../../x"), Code::NotFound),
        ("an unknown snapshot", snapshot("absent"), Code::NotFound),
        ("an unknown volume", volume("absent"), Code::NotFound),
        ("an unknown backup", snapshot("backup:shop/absent"), Code::NotFound),
    ] {
        let request = CreateVolumeRequest { volume_content_source: from(source), ..good.clone() };
        rows.add(method, "volume_content_source", what, &request, code);
    }
    let requisite = vec![Topology { segments: map("zone", "a") }];
    let places = Some(TopologyRequirement { requisite, preferred: vec![] });
    let request = CreateVolumeRequest { accessibility_requirements: places, ..good.clone() };
    rows.add(method, "accessibility_requirements", "a place", &request, Code::ResourceExhausted);
    for secrets in secrets() {
        rows.add(method, "secrets", "any", &CreateVolumeRequest { secrets, ..good.clone() }, Code::Ok);
    }

    for (what, volume_id, code) in ids() {
        // what is not there is deleted, and detached
        let gone = if code == Code::NotFound { Code::Ok } else { code };
        rows.add(
            "Controller/DeleteVolume",
            "volume_id",
            what,
            &DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() },
            gone,
        );
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: MACHINE.to_owned(),
            ..Default::default()
        };
        rows.add("Controller/ControllerUnpublishVolume", "volume_id", what, &request, gone);
        rows.add(
            "Controller/ControllerGetVolume",
            "volume_id",
            what,
            &ControllerGetVolumeRequest { volume_id: volume_id.clone() },
            code,
        );
        let request = ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: MACHINE.to_owned(),
            volume_capability: one(),
            ..Default::default()
        };
        rows.add("Controller/ControllerPublishVolume", "volume_id", what, &request, code);
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.clone(),
            volume_capabilities: vec![mount("", &[])],
            ..Default::default()
        };
        rows.add("Controller/ValidateVolumeCapabilities", "volume_id", what, &request, code);
        let request = ControllerExpandVolumeRequest {
            volume_id: volume_id.clone(),
            capacity_range: gib(1 << 30, 0),
            ..Default::default()
        };
        rows.add("Controller/ControllerExpandVolume", "volume_id", what, &request, code);
        let request = CreateSnapshotRequest {
            source_volume_id: volume_id.clone(),
            name: "s".to_owned(),
            ..Default::default()
        };
        rows.add("Controller/CreateSnapshot", "source_volume_id", what, &request, code);
        rows.add(
            "Controller/DeleteSnapshot",
            "snapshot_id",
            what,
            &DeleteSnapshotRequest { snapshot_id: volume_id.clone(), ..Default::default() },
            gone,
        );
        rows.add(
            "Controller/GetSnapshot",
            "snapshot_id",
            what,
            &GetSnapshotRequest { snapshot_id: volume_id.clone(), ..Default::default() },
            code,
        );
        let request = ListSnapshotsRequest { snapshot_id: volume_id.clone(), ..Default::default() };
        rows.add("Controller/ListSnapshots", "snapshot_id", what, &request, Code::Ok);
        let request = ListSnapshotsRequest { source_volume_id: volume_id.clone(), ..Default::default() };
        rows.add("Controller/ListSnapshots", "source_volume_id", what, &request, Code::Ok);
        // nowhere is everywhere
        let request = ControllerUnpublishVolumeRequest {
            volume_id: id(),
            node_id: volume_id.clone(),
            ..Default::default()
        };
        rows.add("Controller/ControllerUnpublishVolume", "node_id", what, &request, Code::Ok);
        let request = ControllerPublishVolumeRequest {
            volume_id: id(),
            node_id: volume_id,
            volume_capability: one(),
            ..Default::default()
        };
        rows.add("Controller/ControllerPublishVolume", "node_id", what, &request, code);
    }

    let good = ControllerPublishVolumeRequest {
        volume_id: id(),
        node_id: MACHINE.to_owned(),
        volume_capability: one(),
        ..Default::default()
    };
    let method = "Controller/ControllerPublishVolume";
    for (what, volume_capability) in capabilities() {
        rows.add(
            method,
            "volume_capability",
            what,
            &ControllerPublishVolumeRequest { volume_capability, ..good.clone() },
            Code::InvalidArgument,
        );
    }
    for secrets in secrets() {
        rows.add(
            method,
            "secrets",
            "any",
            &ControllerPublishVolumeRequest { secrets: secrets.clone(), ..good.clone() },
            Code::Ok,
        );
        rows.add(
            method,
            "volume_context",
            "any",
            &ControllerPublishVolumeRequest { volume_context: secrets.clone(), ..good.clone() },
            Code::Ok,
        );
        let request = ControllerUnpublishVolumeRequest {
            volume_id: "absent".to_owned(),
            secrets: secrets.clone(),
            ..Default::default()
        };
        rows.add("Controller/ControllerUnpublishVolume", "secrets", "any", &request, Code::Ok);
        rows.add(
            "Controller/DeleteVolume",
            "secrets",
            "any",
            &DeleteVolumeRequest { volume_id: "absent".to_owned(), secrets: secrets.clone() },
            Code::Ok,
        );
        rows.add(
            "Controller/DeleteSnapshot",
            "secrets",
            "any",
            &DeleteSnapshotRequest { snapshot_id: "absent".to_owned(), secrets: secrets.clone() },
            Code::Ok,
        );
        rows.add(
            "Controller/ListSnapshots",
            "secrets",
            "any",
            &ListSnapshotsRequest { secrets: secrets.clone(), ..Default::default() },
            Code::Ok,
        );
        rows.add(
            "Controller/GetSnapshot",
            "secrets",
            "any",
            &GetSnapshotRequest { snapshot_id: "absent".to_owned(), secrets: secrets.clone() },
            Code::NotFound,
        );
        let request = CreateSnapshotRequest {
            source_volume_id: "absent".to_owned(),
            name: "s".to_owned(),
            secrets: secrets.clone(),
            ..Default::default()
        };
        rows.add("Controller/CreateSnapshot", "secrets", "any", &request, Code::NotFound);
        let request = ControllerExpandVolumeRequest {
            volume_id: id(),
            capacity_range: gib(1 << 30, 0),
            secrets: secrets.clone(),
            ..Default::default()
        };
        rows.add("Controller/ControllerExpandVolume", "secrets", "any", &request, Code::Ok);
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: id(),
            volume_capabilities: vec![mount("", &[])],
            secrets: secrets.clone(),
            ..Default::default()
        };
        rows.add("Controller/ValidateVolumeCapabilities", "secrets", "any", &request, Code::Ok);
    }
    // the volume is in the machine by now, to be written
    rows.add(
        method,
        "readonly",
        "another",
        &ControllerPublishVolumeRequest { readonly: true, ..good },
        Code::AlreadyExists,
    );

    let method = "Controller/ValidateVolumeCapabilities";
    let good = ValidateVolumeCapabilitiesRequest {
        volume_id: id(),
        volume_capabilities: vec![mount("", &[])],
        ..Default::default()
    };
    for (what, capability) in capabilities() {
        let code = if what == "block for many nodes" { Code::Ok } else { Code::InvalidArgument };
        let request = ValidateVolumeCapabilitiesRequest {
            volume_capabilities: capability.into_iter().collect(),
            ..good.clone()
        };
        rows.add(method, "volume_capabilities", what, &request, code);
    }
    rows.add(
        method,
        "volume_context",
        "any",
        &ValidateVolumeCapabilitiesRequest { volume_context: map("a", "b"), ..good.clone() },
        Code::Ok,
    );
    rows.add(
        method,
        "parameters",
        "any",
        &ValidateVolumeCapabilitiesRequest { parameters: map("a", "b"), ..good.clone() },
        Code::Ok,
    );
    rows.add(
        method,
        "mutable_parameters",
        "any",
        &ValidateVolumeCapabilitiesRequest { mutable_parameters: map("a", "b"), ..good },
        Code::Ok,
    );

    for (what, max_entries, token, code) in [
        ("negative", -1, "", Code::InvalidArgument),
        ("unknown", 0, "invalid-token", Code::Aborted),
        ("a path", 0, "after:../../x", Code::Ok),
        ("too many", i32::MAX, "", Code::Ok),
    ] {
        let field = if token.is_empty() { "max_entries" } else { "starting_token" };
        let starting_token = token.to_owned();
        let request = ListVolumesRequest { max_entries, starting_token: starting_token.clone() };
        rows.add("Controller/ListVolumes", field, what, &request, code);
        let request = ListSnapshotsRequest { max_entries, starting_token, ..Default::default() };
        rows.add("Controller/ListSnapshots", field, what, &request, code);
    }

    let method = "Controller/CreateSnapshot";
    let good = CreateSnapshotRequest { source_volume_id: id(), name: "s".to_owned(), ..Default::default() };
    for (what, name) in [
        ("missing", String::new()),
        ("too long", "n".repeat(129)),
        ("a control character", "a\u{7}".to_owned()),
    ] {
        rows.add(
            method,
            "name",
            what,
            &CreateSnapshotRequest { name, ..good.clone() },
            Code::InvalidArgument,
        );
    }
    rows.add(
        method,
        "parameters",
        "too long",
        &CreateSnapshotRequest { parameters: map("a", &"x".repeat(5000)), ..good },
        Code::InvalidArgument,
    );

    let method = "Controller/ControllerExpandVolume";
    let good = ControllerExpandVolumeRequest {
        volume_id: id(),
        capacity_range: gib(1 << 30, 0),
        ..Default::default()
    };
    for (what, capacity_range, code) in [
        ("missing", None, Code::InvalidArgument),
        ("negative", gib(-1, 0), Code::OutOfRange),
        ("a limit below", gib(2 << 30, 1 << 30), Code::OutOfRange),
        ("smaller", gib(1 << 29, 0), Code::Ok),
    ] {
        rows.add(
            method,
            "capacity_range",
            what,
            &ControllerExpandVolumeRequest { capacity_range, ..good.clone() },
            code,
        );
    }
    for (what, volume_capability) in capabilities() {
        let code = if what == "missing" { Code::Ok } else { Code::InvalidArgument };
        rows.add(
            method,
            "volume_capability",
            what,
            &ControllerExpandVolumeRequest { volume_capability, ..good.clone() },
            code,
        );
    }
    for (method, field) in [
        ("Controller/GetCapacity", "volume_capabilities"),
        ("Controller/GetCapacity", "parameters"),
        ("Controller/GetCapacity", "accessible_topology"),
        ("Controller/ControllerModifyVolume", "volume_id"),
        ("Controller/ControllerModifyVolume", "secrets"),
        ("Controller/ControllerModifyVolume", "mutable_parameters"),
    ] {
        rows.add(method, field, "any", &(), Code::Unimplemented);
    }
}
