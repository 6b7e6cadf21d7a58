//! Requests for volumes and claims that are there, as tables.

use std::collections::HashMap;

use harvester_api::annotations::VOLUME_FOR_VM;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, TypedLocalObjectReference},
    storage::v1::StorageClass,
};
use kube::ResourceExt;
use proptest::prelude::*;
use prost::Message as _;
use rstest::rstest;
use serde_json::{Value, json};
use tonic::Code;

use super::{
    super::Settings,
    claim::{Content, empty, filled, manifest, matches},
    request::{Asked, Source},
};
use crate::{
    csi::{
        CapacityRange, CreateVolumeRequest, Topology, TopologyRequirement, VolumeCapability,
        VolumeContentSource,
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
        volume_content_source::{SnapshotSource, Type, VolumeSource},
    },
    volume::{access::Reach, name::HostName},
};

const GIB: i64 = 1 << 30;
const STEP: i64 = 2 << 20;
const UID: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";

fn capability(mode: Mode, access_type: AccessType) -> VolumeCapability {
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
}

fn files(mode: Mode) -> VolumeCapability {
    capability(mode, AccessType::Mount(MountVolume::default()))
}

fn request() -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: UID.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: GIB, limit_bytes: 0 }),
        volume_capabilities: vec![files(Mode::SingleNodeWriter)],
        ..CreateVolumeRequest::default()
    }
}

fn with(parameters: &[(&str, &str)]) -> CreateVolumeRequest {
    let parameters = parameters.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    CreateVolumeRequest { parameters: parameters.collect(), ..request() }
}

fn for_many() -> CreateVolumeRequest {
    CreateVolumeRequest { volume_capabilities: vec![files(Mode::MultiNodeMultiWriter)], ..request() }
}

fn from(source: Type) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..request()
    }
}

fn from_snapshot(id: &str) -> CreateVolumeRequest {
    from(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }))
}

fn from_volume(id: &str) -> CreateVolumeRequest {
    from(Type::Volume(VolumeSource { volume_id: id.to_owned() }))
}

fn asked(request: &CreateVolumeRequest) -> Asked {
    Asked::of(request, &Settings::default()).unwrap()
}

fn class(provisioner: &str, binding: &str) -> StorageClass {
    serde_json::from_value(
        json!({"metadata": {"name": "gold"}, "provisioner": provisioner, "volumeBindingMode": binding}),
    )
    .unwrap()
}

fn segments() -> TopologyRequirement {
    let zone = HashMap::from([("zone".to_owned(), "east".to_owned())]);
    TopologyRequirement { requisite: vec![Topology { segments: zone }], preferred: vec![] }
}

// docs/contract/csi-driver.md#create
#[rstest]
#[case::no_name(CreateVolumeRequest { name: String::new(), ..request() }, Code::InvalidArgument, "name of the volume")]
#[case::long_name(CreateVolumeRequest { name: "x".repeat(129), ..request() }, Code::InvalidArgument, "129 bytes")]
#[case::no_capability(CreateVolumeRequest { volume_capabilities: vec![], ..request() }, Code::InvalidArgument, "capability")]
#[case::block_for_many(CreateVolumeRequest {
    volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, AccessType::Block(BlockVolume {}))], ..request()
}, Code::InvalidArgument, "raw block")]
#[case::limit(CreateVolumeRequest {
    capacity_range: Some(CapacityRange { required_bytes: 2 * GIB, limit_bytes: GIB }), ..request()
}, Code::OutOfRange, "at most")]
#[case::empty_class(with(&[("hostStorageClass", "")]), Code::InvalidArgument, "hostStorageClass")]
#[case::long_parameters(with(&[("a", &"x".repeat(5000))]), Code::InvalidArgument, "4096 bytes")]
#[case::file_system(CreateVolumeRequest {
    volume_capabilities: vec![capability(Mode::SingleNodeWriter, AccessType::Mount(MountVolume {
        fs_type: "btrfs".to_owned(), ..MountVolume::default()
    }))], ..request()
}, Code::InvalidArgument, "btrfs")]
#[case::mutable(CreateVolumeRequest {
    mutable_parameters: HashMap::from([("iops".to_owned(), "5".to_owned())]), ..request()
}, Code::InvalidArgument, "VolumeAttributesClass")]
#[case::topology(CreateVolumeRequest { accessibility_requirements: Some(segments()), ..request() },
    Code::ResourceExhausted, "allowedTopologies")]
#[case::no_source(CreateVolumeRequest {
    volume_content_source: Some(VolumeContentSource { r#type: None }), ..request()
}, Code::InvalidArgument, "source")]
#[case::empty_snapshot(from_snapshot(""), Code::InvalidArgument, "ID of the snapshot")]
#[case::empty_volume(from_volume(""), Code::InvalidArgument, "ID of the volume")]
#[case::impossible_snapshot(from_snapshot("../a"), Code::NotFound, "there is no snapshot")]
#[case::impossible_backup(from_snapshot("backup:a"), Code::NotFound, "there is no snapshot")]
#[case::impossible_volume(from_volume("a/b"), Code::NotFound, "there is no volume")]
#[case::filled_for_many(CreateVolumeRequest { volume_capabilities: for_many().volume_capabilities, ..from_snapshot("s") },
    Code::InvalidArgument, "begins empty")]
fn a_request_that_no_volume_can_meet_is_refused_with_csis_code(
    #[case] request: CreateVolumeRequest,
    #[case] code: Code,
    #[case] words: &str,
) {
    let refusal = Asked::of(&request, &Settings::default()).unwrap_err();
    assert_eq!(refusal.code, code);
    assert!(refusal.message.contains(words), "{refusal}");
}

#[rstest]
#[case(&[], None, None)]
#[case(&[], Some(""), None)]
#[case(&[], Some("flag"), Some("flag"))]
#[case(&[("hostStorageClass", "gold")], Some("flag"), Some("gold"))]
fn the_class_of_the_parameter_wins_over_the_one_of_the_flag(
    #[case] parameters: &[(&str, &str)],
    #[case] flag: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let settings = Settings { host_storage_class: flag.map(str::to_owned), topology: None };
    assert_eq!(Asked::of(&with(parameters), &settings).unwrap().class.as_deref(), expected);
}

#[test]
fn secrets_are_not_kept_and_every_parameter_comes_back() {
    let mut request = with(&[("hostStorageClass", "gold"), ("other", "x")]);
    request.secrets = HashMap::from([("password".to_owned(), "hunter2".to_owned())]);
    let asked = asked(&request);
    assert!(!format!("{asked:?}").contains("hunter2"));
    let volume = asked.answer(5).volume.unwrap();
    assert_eq!((volume.volume_context, volume.capacity_bytes), (request.parameters, 5));
}

// docs/contract/csi-driver.md#create
#[rstest]
#[case::disk(request(), None, "Block", false)]
#[case::disk_on_another(request(), Some("lvm"), "Block", false)]
#[case::disk_with_files(with(&[("hostVolumeMode", "filesystem")]), Some("driver.longhorn.io"), "Filesystem", false)]
#[case::disk_with_files_on_another(with(&[("hostVolumeMode", "filesystem")]), Some("lvm"), "Filesystem", true)]
#[case::disk_with_files_on_an_unknown_class(with(&[("hostVolumeMode", "filesystem")]), None, "Filesystem", false)]
#[case::other_word(with(&[("hostVolumeMode", "Filesystem")]), None, "Block", false)]
#[case::for_many(for_many(), Some("driver.longhorn.io"), "Filesystem", false)]
fn the_claim_has_the_form_that_harvester_and_the_go_driver_expect(
    #[case] request: CreateVolumeRequest,
    #[case] provisioner: Option<&str>,
    #[case] mode: &str,
    #[case] needs_image: bool,
) {
    let request = CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: GIB + 1, limit_bytes: GIB + 1 }),
        ..request
    };
    let class = provisioner.map(|name| class(name, "Immediate"));
    let asked = asked(&request);
    let plan = empty(&asked, class.as_ref()).unwrap();
    assert_eq!(plan.size as i64, GIB + 1);
    let claim = manifest(&asked, plan);
    assert_eq!(claim.name_any(), UID);
    assert_eq!(claim.annotations().get(VOLUME_FOR_VM).map(String::as_str), needs_image.then_some("true"));
    assert!(claim.labels().is_empty());
    let spec = serde_json::to_value(claim.spec).unwrap();
    let expected = json!({"accessModes": ["ReadWriteMany"], "volumeMode": mode, "resources": {"requests": {"storage": "1026Mi"}}});
    assert_eq!(spec, expected);
}

// docs/contract/csi-driver.md#export
#[rstest]
#[case::another_provisioner("lvm.driver.harvesterhci.io", "Immediate", "lvm.driver.harvesterhci.io")]
#[case::waits("driver.longhorn.io", "WaitForFirstConsumer", "volumeBindingMode Immediate")]
fn a_volume_for_many_nodes_is_refused_where_it_would_never_be_exported(
    #[case] provisioner: &str,
    #[case] binding: &str,
    #[case] words: &str,
) {
    let refusal = empty(&asked(&for_many()), Some(&class(provisioner, binding))).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidArgument);
    assert!(refusal.message.contains(words), "{refusal}");
}

fn content(claimed: Option<i64>, reach: Option<Reach>) -> Content {
    Content {
        claimed: claimed.map(|bytes| bytes as u64),
        class: Some("gold".to_owned()),
        copies_equals: false,
        waits: false,
        grows: true,
        copied_into: None,
        is_block: false,
        reach,
        data_source: TypedLocalObjectReference {
            api_group: None,
            kind: "VolumeSnapshot".to_owned(),
            name: "s".to_owned(),
        },
    }
}

#[rstest]
#[case::same(Some(GIB), GIB, 0, Ok((GIB, GIB)))]
#[case::larger(Some(GIB), 2 * GIB, 0, Ok((2 * GIB, 2 * GIB)))]
#[case::within_the_rounding(Some(GIB + STEP), GIB + 1, 0, Ok((GIB + 1, GIB + STEP)))]
#[case::no_wish(Some(GIB), 0, 0, Ok((GIB, GIB)))]
#[case::unknown(None, GIB, 0, Ok((GIB, GIB)))]
#[case::smaller(Some(2 * GIB), GIB, 0, Err(Code::OutOfRange))]
#[case::limit(Some(2 * GIB), 0, GIB, Err(Code::OutOfRange))]
fn a_volume_with_content_is_as_large_as_its_source(
    #[case] source: Option<i64>,
    #[case] required: i64,
    #[case] limit: i64,
    #[case] expected: Result<(i64, i64), Code>,
) {
    let range = CapacityRange { required_bytes: required, limit_bytes: limit };
    let request = CreateVolumeRequest { capacity_range: Some(range), ..from_snapshot("s") };
    let plan = filled(&asked(&request), content(source, None));
    let sizes = plan.map(|plan| {
        assert_eq!((plan.class.as_deref(), plan.is_block), (Some("gold"), false), "they are the source's");
        (plan.size as i64, plan.claimed as i64)
    });
    assert_eq!(sizes.map_err(|refusal| refusal.code), expected);
}

// docs/contract/csi-driver.md#filled
#[rstest]
#[case::larger(Some(GIB), 2 * GIB, false, Ok((2 * GIB, GIB)))]
#[case::same(Some(GIB), GIB, true, Ok((GIB, GIB)))]
#[case::within_the_rounding(Some(GIB + STEP), GIB + 1, true, Ok((GIB + 1, GIB + STEP)))]
#[case::larger_and_later(Some(GIB), 2 * GIB, true, Err(Code::FailedPrecondition))]
#[case::unknown(None, 2 * GIB, false, Ok((2 * GIB, 2 * GIB)))]
fn where_the_host_copies_between_equal_sizes_the_claim_begins_with_its_sources(
    #[case] source: Option<i64>,
    #[case] required: i64,
    #[case] waits: bool,
    #[case] expected: Result<(i64, i64), Code>,
) {
    let range = CapacityRange { required_bytes: required, limit_bytes: 0 };
    let request = CreateVolumeRequest { capacity_range: Some(range), ..from_snapshot("s") };
    let content = Content { copies_equals: true, waits, ..content(source, None) };
    let plan = filled(&asked(&request), content);
    let sizes = plan.map(|plan| (plan.size as i64, plan.claimed as i64));
    assert_eq!(sizes.map_err(|refusal| refusal.code), expected);
}

#[test]
fn the_files_of_a_volume_for_many_nodes_become_no_disk() {
    let refused = filled(&asked(&from_volume("v")), content(Some(GIB), Some(Reach::Export))).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
}

fn claim(name: &str, record: Option<&str>, extra: &Value) -> PersistentVolumeClaim {
    let annotations = record.map(|text| json!({"driver.harvesterhci.io/volume": text}));
    let mut json = json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"volumeMode": "Block",
        "storageClassName": "gold", "resources": {"requests": {"storage": (GIB + STEP).to_string()}}}});
    for (key, value) in extra.as_object().unwrap() {
        *json.pointer_mut(key).unwrap() = value.clone();
    }
    serde_json::from_value(json).unwrap()
}

fn record(name: &str, size: i64, reach: &str, source: Option<&str>) -> String {
    json!({"name": name, "size": size, "reach": reach, "source": source}).to_string()
}

fn sized(required: i64, limit: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: required, limit_bytes: limit }),
        ..request()
    }
}

// docs/contract/csi-driver.md#create
#[rstest]
#[case::again(sized(GIB + 1, 0), Some(record(UID, GIB + 1, "disk", None)), Ok(GIB + 1))]
#[case::again_with_limit(sized(GIB + 1, GIB + 1), Some(record(UID, GIB + 1, "disk", None)), Ok(GIB + 1))]
#[case::grown_since(sized(GIB, 0), Some(record(UID, GIB + 1, "disk", None)), Ok(GIB + 1))]
#[case::of_the_go_driver(sized(GIB + 1, GIB + 1), None, Ok(GIB + 1))]
#[case::larger_of_the_go_driver(sized(GIB, 0), None, Ok(GIB + STEP))]
#[case::larger(sized(2 * GIB, 2 * GIB), Some(record(UID, GIB, "disk", None)), Err("it has another size"))]
#[case::smaller_by_one(sized(GIB, GIB), Some(record(UID, GIB + 1, "disk", None)), Err("it has another size"))]
#[case::larger_than_the_go_drivers(sized(2 * GIB, 0), None, Err("it has another size"))]
#[case::other_name(request(), Some(record("Data", GIB, "disk", None)), Err("it was created as \"Data\""))]
#[case::other_reach(for_many(), Some(record(UID, GIB, "disk", None)), Err("for one node"))]
#[case::other_content(
    request(),
    Some(record(UID, GIB, "disk", Some("snapshot/s"))),
    Err("came from elsewhere")
)]
#[case::content(from_snapshot("s"), Some(record(UID, GIB, "disk", Some("snapshot/s"))), Ok(GIB))]
#[case::other_snapshot(
    from_snapshot("t"),
    Some(record(UID, GIB, "disk", Some("snapshot/s"))),
    Err("came from elsewhere")
)]
#[case::volume(
    from_volume("s"),
    Some(record(UID, GIB, "disk", Some("snapshot/s"))),
    Err("came from elsewhere")
)]
#[case::backup(
    from_snapshot("backup:a/s"),
    Some(record(UID, GIB, "disk", Some("snapshot/backup:a/s"))),
    Ok(GIB)
)]
#[case::other_mode(with(&[("hostVolumeMode", "filesystem")]), Some(record(UID, GIB, "disk", None)), Err("volumeMode"))]
#[case::other_class(with(&[("hostStorageClass", "silver")]), Some(record(UID, GIB, "disk", None)), Err("its StorageClass on the host is gold"))]
#[case::class(with(&[("hostStorageClass", "gold")]), Some(record(UID, GIB, "disk", None)), Ok(GIB))]
fn the_same_request_has_the_same_answer_and_another_one_of_the_name_is_refused(
    #[case] request: CreateVolumeRequest,
    #[case] record: Option<String>,
    #[case] expected: Result<i64, &str>,
) {
    let answer = matches(&asked(&request), &claim(UID, record.as_deref(), &json!({})));
    match (answer, expected) {
        (Ok(size), Ok(expected)) => assert_eq!(size as i64, expected),
        (Err(refusal), Err(words)) => {
            assert_eq!(refusal.code, Code::AlreadyExists);
            assert!(refusal.message.contains(words), "{refusal}");
        }
        (got, expected) => panic!("{got:?} instead of {expected:?}"),
    }
}

#[test]
fn the_content_of_a_volume_of_the_go_driver_is_known_by_its_data_source() {
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let mut made = claim(UID, None, &json!({}));
    made.spec.as_mut().unwrap().data_source = serde_json::from_value(source).unwrap();
    assert!(matches(&asked(&from_snapshot("s")), &made).is_ok());
    assert_eq!(matches(&asked(&request()), &made).unwrap_err().code, Code::AlreadyExists);
}

#[test]
fn a_claim_that_is_being_deleted_is_waited_for_and_a_strange_one_is_not_taken() {
    let mut going = claim(UID, None, &json!({}));
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(matches(&asked(&request()), &going).unwrap_err().code, Code::Aborted);
    let disk = CreateVolumeRequest { name: "vm-disk-0".to_owned(), ..request() };
    let refused = matches(&asked(&disk), &claim("vm-disk-0", None, &json!({}))).unwrap_err();
    assert_eq!(refused.code, Code::AlreadyExists);
    assert!(refused.message.contains("was not made by this driver"), "{refused}");
}

#[test]
fn the_sources_of_a_request_are_the_objects_of_the_host() {
    let local = Source::Snapshot(HostName::from_handle("s").unwrap());
    assert_eq!(asked(&from_snapshot("s")).source, Some(local));
    let backup = Source::Backup { namespace: "shop".to_owned(), name: "s".to_owned() };
    assert_eq!(asked(&from_snapshot("backup:shop/s")).source, Some(backup));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_that_are_a_request_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = CreateVolumeRequest::decode(bytes.as_slice()) {
            drop(Asked::of(&request, &Settings::default()));
        }
    }

    #[test]
    fn no_texts_and_sizes_panic(
        name in ".{0,140}",
        id in ".{0,40}",
        required in any::<i64>(),
        limit in any::<i64>(),
        source in any::<u64>(),
        storage in ".{0,10}",
    ) {
        let range = CapacityRange { required_bytes: required, limit_bytes: limit };
        let request = CreateVolumeRequest { name, capacity_range: Some(range), ..from_snapshot(&id) };
        drop(Asked::of(&request, &Settings::default()));
        let request = CreateVolumeRequest { capacity_range: Some(range), ..from_volume("v") };
        if let Ok(asked) = Asked::of(&request, &Settings::default()) {
            drop(filled(&asked, Content { claimed: Some(source), ..content(None, None) }));
            drop(matches(&asked, &claim(UID, Some(&storage), &json!({"/spec/resources/requests/storage": storage}))));
        }
    }
}
