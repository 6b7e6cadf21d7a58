//! What the driver writes down about a volume and a snapshot, on the host's object, by an annotation. Pure.
//!
//! The claim alone does not say it: its size is rounded, its name may be a digest, and a claim with a file system is a
//! disk or an export. Objects of the Go driver have no such annotation; what their form says has to do
//! (docs/contract/csi-driver.md#records).

use harvester_api::annotations::{CSI_SNAPSHOT, CSI_VOLUME};
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::access::Reach;

/// More than any annotation of ours has.
const LONGEST: usize = 4096;
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// The annotation of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// What CSI calls it: two names may have one digest only if somebody asks for the digest.
    pub name: String,
    /// The size that CSI was told.
    pub size: u64,
    pub reach: Reach,
    /// `snapshot/<id>` or `volume/<id>`: where its content came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl VolumeRecord {
    /// That of a claim. `None` where there is none, or one that no process of ours writes.
    pub fn of(claim: &PersistentVolumeClaim) -> Option<Self> {
        read(&claim.metadata, CSI_VOLUME)
    }
}

/// The annotation of a snapshot and of a remote backup. Labels say part of it for the Go driver, in 63 characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRecord {
    /// What CSI calls it.
    pub name: String,
    /// The size of the volume as CSI was told.
    pub size: u64,
    pub reach: Reach,
    /// The host's StorageClass of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// `Block` or `Filesystem`.
    pub volume_mode: String,
    /// The guest cluster by the volume's label: whose the snapshot is when the volume is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

impl SnapshotRecord {
    /// That of a snapshot's object. `None` where there is none, or one that no process of ours writes.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        read(metadata, CSI_SNAPSHOT)
    }
}

/// Whether a claim is a volume of this driver: it has the annotation, or the name that the provisioner gives, as those
/// of the Go driver. Disks of machines have other names.
pub fn is_volume(claim: &PersistentVolumeClaim) -> bool {
    VolumeRecord::of(claim).is_some() || claim.metadata.name.as_deref().is_some_and(is_of_provisioner)
}

/// Whether a volume reaches nodes as a disk or as an export; `None` where nobody wrote it down and a claim of its form
/// may be either.
pub fn reach_of(claim: &PersistentVolumeClaim) -> Option<Reach> {
    match VolumeRecord::of(claim) {
        Some(record) => Some(record.reach),
        None if is_block(claim) => Some(Reach::Disk),
        None => None,
    }
}

/// Whether a volume reaches nodes in this way, else why not. Of a volume of the Go driver it may be unknown, and then it is believed.
pub fn fits(claim: &PersistentVolumeClaim, asked: Reach) -> Result<(), String> {
    match reach_of(claim) {
        Some(Reach::Disk) if asked == Reach::Export => {
            Err("the volume is a disk, which one node has at a time".to_owned())
        }
        Some(Reach::Export) if asked == Reach::Disk => {
            Err("the volume is exported to many nodes and is no disk of one: ask for ReadWriteMany"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether the host's claim is a raw device. Kubernetes' default is a file system.
pub fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"))
}

fn read<T: DeserializeOwned>(metadata: &ObjectMeta, key: &str) -> Option<T> {
    let text = metadata.annotations.as_ref()?.get(key)?;
    (text.len() <= LONGEST).then(|| serde_json::from_str(text).ok()).flatten()
}

/// `pvc-<uuid>`.
fn is_of_provisioner(name: &str) -> bool {
    let is_hexadecimal = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    name.strip_prefix("pvc-")
        .is_some_and(|uuid| uuid.split('-').map(str::len).eq(UUID) && uuid.split('-').all(is_hexadecimal))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn claim(name: &str, annotation: Option<&str>, mode: &str) -> PersistentVolumeClaim {
        let annotations = annotation.map(|text| json!({CSI_VOLUME: text}));
        let claim =
            json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"volumeMode": mode}});
        serde_json::from_value(claim).unwrap()
    }

    const UID: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";
    const OURS: &str = r#"{"name":"Data","size":5,"reach":"export"}"#;

    // docs/contract/csi-driver.md#records
    #[rstest]
    #[case::of_the_go_driver(UID, None, true)]
    #[case::ours("data-cec3a9b8", Some(OURS), true)]
    #[case::disk_of_a_machine("pool1-abcde-disk-0-xyz12", None, false)]
    #[case::another_prefix("pvc-1", None, false)]
    #[case::no_hexadecimal("pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c1z", None, false)]
    #[case::longer("pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11-x", None, false)]
    #[case::strange_text("data", Some("{}"), false)]
    fn a_volume_is_known_by_its_annotation_or_by_the_name_that_the_provisioner_gives(
        #[case] name: &str,
        #[case] annotation: Option<&str>,
        #[case] expected: bool,
    ) {
        assert_eq!(is_volume(&claim(name, annotation, "Block")), expected);
    }

    #[rstest]
    #[case(Some(OURS), "Filesystem", Some(Reach::Export))]
    #[case(None, "Block", Some(Reach::Disk))]
    #[case(None, "Filesystem", None)]
    fn a_claim_with_a_file_system_and_no_annotation_may_be_a_disk_or_an_export(
        #[case] annotation: Option<&str>,
        #[case] mode: &str,
        #[case] expected: Option<Reach>,
    ) {
        assert_eq!(reach_of(&claim(UID, annotation, mode)), expected);
    }

    #[test]
    fn the_annotation_is_json_with_the_names_of_the_contract() {
        let claim = claim("data", Some(OURS), "Block");
        let record = VolumeRecord::of(&claim).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), OURS);
        let long = format!(r#"{{"name":"{}","size":5,"reach":"disk"}}"#, "x".repeat(5000));
        assert_eq!(VolumeRecord::of(&self::claim("data", Some(&long), "Block")), None);
    }
}
