//! ValidateVolumeCapabilities, ControllerGetVolume and ListVolumes: what a volume is and where it is
//! (docs/contract/csi-driver.md#list).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use super::{create, expand, page::page, published::Machines};
use crate::{
    attach::moved::{Exports, Moved},
    csi::{
        ControllerGetVolumeResponse, ListVolumesRequest, ListVolumesResponse,
        ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume, VolumeCondition,
        controller_get_volume_response, list_volumes_response,
        validate_volume_capabilities_response::Confirmed,
    },
    host::{self, Host},
    refusal::{LONGEST, Refusal, cut},
    volume::{
        access::{self, AccessError, Reach},
        name::HostName,
        record::{self, SnapshotRecord},
    },
};

/// The volume of a handle, checked.
///
/// # Errors
/// For an empty handle, and for one that no volume can have.
pub(super) fn name_of(handle: &str) -> Result<HostName, Refusal> {
    if handle.is_empty() {
        return Err(Refusal::invalid("the ID of the volume is missing"));
    }
    HostName::from_handle(handle).ok_or_else(|| {
        Refusal::not_found(format!("there is no volume {handle:?}: no claim of the host has such a name"))
    })
}

pub(super) fn no_volume(host: &Host, name: &HostName) -> Refusal {
    Refusal::not_found(format!("there is no {}", host.claim_name(name)))
}

/// The claim of a volume of this cluster.
pub(super) async fn existing(host: &Host, name: &HostName) -> Result<PersistentVolumeClaim, Refusal> {
    let claim = create::read(host, name).await?.ok_or_else(|| no_volume(host, name))?;
    host.check_owner(&claim).await?;
    Ok(claim)
}

/// The claim that a snapshot or a backup is of, where it is there still. What is of a volume belongs to whom the volume
/// belongs to; where that is gone, to whom it belonged when the snapshot was taken, as far as that was written down.
///
/// # Errors
/// PERMISSION_DENIED for a volume of another cluster.
pub(super) async fn source(
    host: &Host,
    snapshot: &ObjectMeta,
    handle: Option<&str>,
) -> Result<Option<PersistentVolumeClaim>, Refusal> {
    let claim = match handle.and_then(HostName::from_handle) {
        Some(name) => create::read(host, &name).await?,
        None => None,
    };
    match (&claim, SnapshotRecord::of(snapshot).and_then(|record| record.cluster)) {
        (Some(claim), _) => host.check_owner(claim).await?,
        (None, Some(cluster)) => {
            let name = snapshot.name.as_deref().unwrap_or_default();
            host.check_owner_of_snapshot(name, &cluster).await?;
        }
        (None, None) => {}
    }
    Ok(claim)
}

pub(super) async fn validate(
    host: &Host,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Refusal> {
    let name = name_of(&request.volume_id)?;
    let asked = access::all(&request.volume_capabilities);
    if let Err(error @ (AccessError::Missing | AccessError::NoType | AccessError::NoMode)) = &asked {
        return Err(Refusal::invalid(error.to_string()));
    }
    let claim = existing(host, &name).await?;
    let verdict = match asked {
        Err(error) => Err(error.to_string()),
        Ok(_) if !request.mutable_parameters.is_empty() => {
            Err("a volume has no parameters that change".to_owned())
        }
        Ok((reach, uses)) => match create::request::unknown_file_system(reach, &uses) {
            Some(name) => Err(format!("the driver makes ext4 and xfs, and no {name:?}")),
            None => record::fits(&claim, reach),
        },
    };
    Ok(match verdict {
        Err(message) => ValidateVolumeCapabilitiesResponse { confirmed: None, message },
        Ok(()) => ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        },
    })
}

pub(super) async fn get(
    host: &Host,
    exports: Option<&Exports>,
    handle: &str,
) -> Result<ControllerGetVolumeResponse, Refusal> {
    let name = name_of(handle)?;
    let claim = existing(host, &name).await?;
    let machines = Machines::list(host).await?;
    let moved = moved(host, exports, std::slice::from_ref(&claim), Some(&name)).await;
    Ok(ControllerGetVolumeResponse {
        volume: Some(volume(&claim)),
        status: Some(controller_get_volume_response::VolumeStatus {
            published_node_ids: machines.with(name.as_str()).to_vec(),
            volume_condition: Some(condition(&claim, moved.get(name.as_str()))),
        }),
    })
}

/// The exports of these claims that nodes have where they are no more.
async fn moved(
    host: &Host,
    exports: Option<&Exports>,
    claims: &[PersistentVolumeClaim],
    only: Option<&HostName>,
) -> BTreeMap<String, Moved> {
    let may_be_export = |claim: &PersistentVolumeClaim| {
        record::is_volume(claim) && record::reach_of(claim) != Some(Reach::Disk)
    };
    match exports.filter(|_| claims.iter().any(may_be_export)) {
        Some(exports) => exports.moved(host, only).await,
        None => BTreeMap::new(),
    }
}

pub(super) async fn list(
    host: &Host,
    exports: Option<&Exports>,
    request: &ListVolumesRequest,
) -> Result<ListVolumesResponse, Refusal> {
    // a strange token is refused without a list of everything
    page(Vec::<String>::new(), String::as_str, request.max_entries, &request.starting_token)?;
    let claims = host::list(&host.claims()).await.map_err(|error| {
        let doing = format!("list the PersistentVolumeClaims of namespace {} on the host", host.namespace());
        Refusal::of_host(&doing, &error)
    })?;
    let machines = Machines::list(host).await?;
    let moved = moved(host, exports, &claims, None).await;
    let entries = entries(&claims, &machines, &moved);
    let (entries, next_token) = page(entries, id_of, request.max_entries, &request.starting_token)?;
    Ok(ListVolumesResponse { entries, next_token })
}

fn id_of(entry: &list_volumes_response::Entry) -> &str {
    entry.volume.as_ref().map_or("", |volume| &volume.volume_id)
}

fn entries(
    claims: &[PersistentVolumeClaim],
    machines: &Machines,
    moved: &BTreeMap<String, Moved>,
) -> Vec<list_volumes_response::Entry> {
    // a claim that is being deleted is a volume for as long as a machine has it
    let is_there = |claim: &&PersistentVolumeClaim| {
        claim.metadata.deletion_timestamp.is_none() || !machines.with(&claim.name_any()).is_empty()
    };
    let ours = claims.iter().filter(|claim| record::is_volume(claim)).filter(is_there);
    ours.map(|claim| list_volumes_response::Entry {
        volume: Some(volume(claim)),
        status: Some(list_volumes_response::VolumeStatus {
            published_node_ids: machines.with(&claim.name_any()).to_vec(),
            volume_condition: Some(condition(claim, moved.get(&claim.name_any()))),
        }),
    })
    .collect()
}

fn volume(claim: &PersistentVolumeClaim) -> Volume {
    let size = expand::size(claim);
    Volume {
        volume_id: claim.name_any(),
        capacity_bytes: size.and_then(|size| i64::try_from(size).ok()).unwrap_or(0),
        ..Volume::default()
    }
}

/// Whether something is wrong with a volume, and what the host says about it.
pub(super) fn condition(claim: &PersistentVolumeClaim, moved: Option<&Moved>) -> VolumeCondition {
    let status = claim.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let (abnormal, message) = if claim.metadata.deletion_timestamp.is_some() {
        (true, "the PersistentVolumeClaim on the host is being deleted".to_owned())
    } else if phase == "Lost" {
        (true, "the PersistentVolumeClaim on the host has lost its PersistentVolume".to_owned())
    } else if let Some(failed) = failed_growth(claim) {
        (true, format!("the host cannot grow the volume: {}", failed.message.as_deref().unwrap_or_default()))
    } else if let Some(moved) = moved {
        (true, moved.message.clone())
    } else if phase == "Pending" {
        // a class that waits for a first consumer leaves it so until the volume is attached
        (false, "the PersistentVolumeClaim on the host is not bound yet".to_owned())
    } else {
        (false, "the PersistentVolumeClaim on the host is bound".to_owned())
    };
    VolumeCondition { abnormal, message: cut(&message, LONGEST) }
}

/// What the host says of a growth that it could not do.
pub(super) fn failed_growth(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|one| one.type_.ends_with("ResizeError") && one.status == "True")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::published::tests::machine;
    use super::*;

    const UID: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";

    fn claim(name: &str, metadata: &Value, status: &Value) -> PersistentVolumeClaim {
        let mut json = json!({"metadata": {"name": name}, "status": status,
            "spec": {"volumeMode": "Block", "resources": {"requests": {"storage": "1026Mi"}}}});
        for (key, value) in metadata.as_object().unwrap() {
            json["metadata"][key] = value.clone();
        }
        serde_json::from_value(json).unwrap()
    }

    #[rstest]
    #[case(json!({}), json!({"phase": "Bound"}), false)]
    #[case(json!({}), json!({"phase": "Pending"}), false)]
    #[case::without_a_status(json!({}), json!(null), false)]
    #[case(json!({}), json!({"phase": "Lost"}), true)]
    #[case(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({"phase": "Bound"}), true)]
    #[case(json!({}), json!({"phase": "Bound", "conditions":
        [{"type": "ControllerResizeError", "status": "True", "message": "no space"}]}), true)]
    fn the_hosts_claim_says_whether_a_volume_is_well(
        #[case] metadata: Value,
        #[case] status: Value,
        #[case] abnormal: bool,
    ) {
        assert_eq!(condition(&claim(UID, &metadata, &status), None).abnormal, abnormal);
    }

    // docs/contract/csi-driver.md#list
    #[test]
    fn the_list_has_volumes_of_ours_and_of_the_go_driver_and_where_they_are() {
        let ours = json!({"annotations": {"driver.harvesterhci.io/volume": r#"{"name":"D","size":1073741825,"reach":"disk"}"#}});
        let gone = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let used = UID.replace('6', "7");
        let claims = [
            claim(UID, &json!({}), &json!({"phase": "Bound"})),
            claim("d-1", &ours, &json!({})),
            claim("vm-disk-0", &json!({}), &json!({})),
            claim(&UID.replace('6', "8"), &gone, &json!({})),
            claim(&used, &gone, &json!({})),
        ];
        let machines =
            Machines::of(&[machine("a", &json!([{"persistentVolumeClaim": {"claimName": used}}]))]);
        let list = entries(&claims, &machines, &BTreeMap::new());
        let told: Vec<_> = list
            .iter()
            .map(|entry| {
                let (volume, status) = (entry.volume.as_ref().unwrap(), entry.status.as_ref().unwrap());
                (volume.volume_id.as_str(), volume.capacity_bytes, status.published_node_ids.join(","))
            })
            .collect();
        let none = String::new();
        let expected = [
            (UID, 1026 << 20, none.clone()),
            ("d-1", 1_073_741_825, none),
            (used.as_str(), 1026 << 20, "a".to_owned()),
        ];
        assert_eq!(told, expected);
    }
}
