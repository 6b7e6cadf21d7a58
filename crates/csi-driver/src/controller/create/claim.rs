//! The PersistentVolumeClaim of a volume: its form, and whether one that is there is the volume that somebody asks for.
//! Pure.

use std::collections::BTreeMap;

use harvester_api::annotations::{CSI_VOLUME, VOLUME_FOR_VM};
use k8s_openapi::{
    api::{
        core::v1::{
            PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference,
            VolumeResourceRequirements,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use tonic::Code;

use super::super::classes::{self, LONGHORN};
use super::request::{Asked, Source};
use crate::{
    host::quantity,
    refusal::Refusal,
    volume::{
        access::Reach,
        record::{self, VolumeRecord},
        size::Size,
    },
};

pub(in super::super) const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

/// How a claim that is not there is made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The size that CSI is told.
    pub(super) size: u64,
    /// The size of the claim.
    pub(super) claimed: u64,
    pub(super) class: Option<String>,
    pub(super) is_block: bool,
    /// Harvester up to 1.7 is asked for a disk image in it.
    pub(super) needs_image: bool,
    pub(super) data_source: Option<TypedLocalObjectReference>,
}

/// A snapshot or a volume that another volume is made of.
#[derive(Clone, Debug)]
pub(super) struct Content {
    /// Size of the source's claim; `None` where the host does not say.
    pub(super) claimed: Option<u64>,
    /// The size that the host copies into, where it is another: the source of a snapshot may have grown.
    pub(super) copied_into: Option<u64>,
    pub(super) class: Option<String>,
    /// Whether the host copies between equal sizes only, as Longhorn does: a larger volume is grown afterwards.
    pub(super) copies_equals: bool,
    /// Whether the host copies when somebody uses the volume.
    pub(super) waits: bool,
    /// Volumes of its class may grow, or nobody says.
    pub(super) grows: bool,
    pub(super) is_block: bool,
    /// `None` where nobody wrote it down.
    pub(super) reach: Option<Reach>,
    pub(super) data_source: TypedLocalObjectReference,
}

/// An empty volume; `class` is the host's class as far as it is known.
pub(super) fn empty(asked: &Asked, class: Option<&StorageClass>) -> Result<Plan, Refusal> {
    let is_longhorn = class.is_none_or(|class| class.provisioner == LONGHORN);
    if asked.reach == Reach::Export
        && let Some(class) = class
    {
        let name = class.name_any();
        if !is_longhorn {
            return Err(Refusal::invalid(format!(
                "StorageClass {name} on the host is of {}, and Harvester exports volumes of {LONGHORN} alone to many nodes: \
                 name a class of Longhorn by hostStorageClass, or ask for ReadWriteOnce",
                class.provisioner
            )));
        }
        if classes::waits_for_consumer(class) {
            return Err(Refusal::invalid(format!(
                "StorageClass {name} on the host waits for a first consumer, and an export has none: name a class with \
                 volumeBindingMode Immediate by hostStorageClass"
            )));
        }
    }
    Ok(Plan {
        size: asked.size.asked,
        claimed: asked.size.on_host(),
        class: asked.class.clone(),
        is_block: asked.is_block,
        needs_image: !asked.is_block && !is_longhorn,
        data_source: None,
    })
}

/// A volume with content. Class and volumeMode are the source's: hosts copy between equal ones.
pub(super) fn filled(asked: &Asked, content: Content) -> Result<Plan, Refusal> {
    if content.reach == Some(Reach::Export) {
        return Err(Refusal::invalid(
            "the source is a volume for many nodes, whose files are no disk: copy its files by a pod that mounts both",
        ));
    }
    let size = match content.claimed {
        Some(claimed) => Size::from_source(asked.range.as_ref(), claimed)?,
        None => asked.size,
    };
    let size = match content.copied_into {
        Some(least) if size.on_host() < least => size.raised_to(least)?,
        _ => size,
    };
    let source = content.copied_into.or(content.claimed);
    let whole = source.map_or_else(|| size.on_host(), |source| size.on_host_with(source));
    let claimed = source.filter(|_| content.copies_equals).unwrap_or(whole);
    if !content.grows && claimed < whole {
        return Err(Refusal::precondition(format!(
            "the host copies into a volume of the source's size, {claimed} bytes, and volumes of StorageClass {} on the host \
             do not grow: ask for that size, or set allowVolumeExpansion there",
            content.class.as_deref().unwrap_or_default()
        )));
    }
    if content.waits && claimed < whole {
        return Err(Refusal::precondition(format!(
            "the host copies into a volume of the source's size, {claimed} bytes, and StorageClass {} on the host does it at \
             the first attachment: ask for that size, and grow the volume when it is attached",
            content.class.as_deref().unwrap_or_default()
        )));
    }
    Ok(Plan {
        size: size.asked,
        claimed,
        class: content.class,
        is_block: content.is_block,
        needs_image: false,
        data_source: Some(content.data_source),
    })
}

/// The claim to create.
pub(super) fn manifest(asked: &Asked, plan: Plan) -> PersistentVolumeClaim {
    let mut annotations = BTreeMap::from([annotation(asked, plan.size)]);
    if plan.needs_image {
        annotations.insert(VOLUME_FOR_VM.to_owned(), "true".to_owned());
    }
    let requests = BTreeMap::from([("storage".to_owned(), quantity::of_bytes(plan.claimed))]);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(asked.name.to_string()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            // for ReadWriteOnce too: a machine migrates between two hosts, and both have the disk for a moment
            access_modes: Some(vec!["ReadWriteMany".to_owned()]),
            data_source: plan.data_source,
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: plan.class,
            volume_mode: Some(if plan.is_block { "Block" } else { "Filesystem" }.to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// The annotation of a volume of this size.
pub(super) fn annotation(asked: &Asked, size: u64) -> (String, String) {
    let record = VolumeRecord {
        name: asked.csi_name.clone(),
        size,
        reach: asked.reach,
        source: asked.source.as_ref().map(Source::record),
    };
    (CSI_VOLUME.to_owned(), serde_json::to_string(&record).expect("a struct of texts and numbers"))
}

/// The size of the volume that is there, as CSI is told, if it is the one that is asked for.
pub(super) fn matches(asked: &Asked, claim: &PersistentVolumeClaim) -> Result<u64, Refusal> {
    let name = &asked.name;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::aborted(format!("volume {name} is being deleted: call again when it is gone")));
    }
    let differs = |why: &str| {
        Refusal::new(
            Code::AlreadyExists,
            format!("volume {name} is there already, and {why}: take another name, or delete it first"),
        )
    };
    if !record::is_volume(claim) {
        return Err(differs("its PersistentVolumeClaim on the host was not made by this driver"));
    }
    let claimed = claimed(claim).unwrap_or(0);
    let recorded = VolumeRecord::of(claim);
    let size = match &recorded {
        Some(record) if record.name != asked.csi_name => {
            return Err(differs(&format!("it was created as {:?}", record.name)));
        }
        Some(record) if record.reach != asked.reach => {
            return Err(differs("it is for one node where this is for many, or the other way round"));
        }
        Some(record) if asked.size.allows(record.size) => record.size,
        // a volume of the Go driver, which told CSI what it was asked for
        None if asked.size.is_met_by(claimed) && asked.size.on_host() == claimed => asked.size.asked,
        None if asked.size.allows(claimed) => claimed,
        Some(_) | None => return Err(differs("it has another size")),
    };
    let came_from = recorded.map_or_else(|| data_source(claim), |record| record.source);
    if came_from != asked.source.as_ref().map(Source::record) {
        return Err(differs("its content came from elsewhere"));
    }
    // those of a volume with content are its source's
    if asked.source.is_none() {
        if record::is_block(claim) != asked.is_block {
            return Err(differs("its volumeMode on the host is another one"));
        }
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        if asked.class.is_some() && asked.class.as_deref() != class {
            return Err(differs(&format!("its StorageClass on the host is {}", class.unwrap_or("none"))));
        }
    }
    Ok(size)
}

/// What a claim asks for, in bytes.
pub(in super::super) fn claimed(claim: &PersistentVolumeClaim) -> Option<u64> {
    quantity::bytes(claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?)
}

/// Where the content of a volume of the Go driver came from, as an annotation would have it.
fn data_source(claim: &PersistentVolumeClaim) -> Option<String> {
    let from = claim.spec.as_ref()?.data_source.as_ref()?;
    match from.kind.as_str() {
        "VolumeSnapshot" => Some(format!("snapshot/{}", from.name)),
        "PersistentVolumeClaim" => Some(format!("volume/{}", from.name)),
        _ => None,
    }
}
