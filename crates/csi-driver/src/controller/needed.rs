//! What on the host still needs a volume or a snapshot, so that it is not deleted (docs/contract/csi-driver.md#needed).

mod shared;

use std::collections::{BTreeMap, btree_map::Entry};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::classes::{self, LONGHORN};
use crate::{
    host::{
        self, Host,
        kinds::{VolumeSnapshot, VolumeSnapshotClass},
    },
    refusal::Refusal,
    volume::{name::HostName, record::VolumeRecord},
};
use shared::Shared;

/// Types of Longhorn's snapshots that are copies elsewhere: backups (in two spellings) and backing images.
const COPIES: [&str; 3] = ["bak", "bs", "bi"];
const CLAIM: &str = "PersistentVolumeClaim";
const SNAPSHOT: &str = "VolumeSnapshot";

/// Looks for what needs a volume or a snapshot. Nothing else than lists of the whole namespace tells it, so calls share
/// them.
#[derive(Debug, Default)]
pub(super) struct Needed {
    snapshots: Shared<Vec<Taken>>,
    waiting: Shared<Vec<Waiting>>,
}

/// A snapshot, as far as it may need its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    name: String,
    /// What people delete to be rid of it: its owner, or itself.
    object: String,
    /// The claim.
    source: String,
    class: String,
    /// A copy is complete.
    is_ready: bool,
    is_going: bool,
}

/// A claim that is still to be made of something.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    name: String,
    /// This driver made it.
    is_ours: bool,
    class: Option<String>,
    /// Kind and name of what it is made of.
    source: (String, String),
}

impl Needed {
    /// Refuses while the volume has snapshots that would go with it, or is to be copied, as itself or as a snapshot of it.
    pub(super) async fn volume(&self, host: &Host, name: &HostName) -> Result<(), Refusal> {
        let snapshots = self.snapshots.get(snapshots(host)).await?;
        let of_it: Vec<_> = snapshots.iter().filter(|one| one.source == name.as_str()).collect();
        by_snapshots(host, name, &of_it).await?;
        let is_source = |kind: &str, source: &str| match kind {
            CLAIM => source == name.as_str(),
            SNAPSHOT => of_it.iter().any(|one| one.name == source),
            _ => false,
        };
        self.by_claims(host, &format!("volume {name}"), is_source).await
    }

    /// Refuses while a volume is to be made of the snapshot.
    pub(super) async fn snapshot(&self, host: &Host, name: &HostName) -> Result<(), Refusal> {
        let is_source = |kind: &str, source: &str| kind == SNAPSHOT && source == name.as_str();
        self.by_claims(host, &format!("snapshot {name}"), is_source).await
    }

    /// With a class that waits for a first consumer the host fills a claim when it is attached.
    async fn by_claims(
        &self,
        host: &Host,
        what: &str,
        is_source: impl Fn(&str, &str) -> bool,
    ) -> Result<(), Refusal> {
        // nothing less than a list is safe: the API server selects neither claims nor snapshots by their sources, and a
        // cache may not show the one that was made a moment ago
        let (mut named, mut classes) = (vec![], BTreeMap::new());
        let waiting = self.waiting.get(waiting(host)).await?;
        for claim in waiting.iter().filter(|claim| is_source(&claim.source.0, &claim.source.1)) {
            let class = claim.class.as_deref();
            let waits = match classes.entry(class) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => *unknown.insert(waits(host, class).await?),
            };
            if waits.unwrap_or(claim.is_ours) {
                named.push(claim.name.clone());
            }
        }
        if named.is_empty() {
            return Ok(());
        }
        Err(Refusal::precondition(format!(
            "{what} is still to be copied into PersistentVolumeClaim {} in namespace {} on the host: wait until that is \
             bound, or delete it first",
            named.join(" and "),
            host.namespace()
        )))
    }
}

/// Whether the host may fill the claim at the first attachment, which is said of a class that may not be read, as
/// CreateVolume has it. Of other classes CreateVolume answers when the claim is filled, and until then the guest cluster
/// keeps snapshot and source: a claim that stays Pending is one that the host refuses, perhaps for ever, and holds nothing.
/// `None` is said of a class that is gone: somebody may be making it anew, and then the host fills claims of ours that the
/// guest counts as bound. A claim of others may name a class that never was, and holds nothing.
async fn waits(host: &Host, class: Option<&str>) -> Result<Option<bool>, Refusal> {
    match classes::of(host, class).await {
        Ok(class) => Ok(Some(class.as_ref().is_none_or(classes::waits_for_consumer))),
        Err(refusal) if classes::is_gone(&refusal) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

async fn by_snapshots(host: &Host, name: &HostName, of_it: &[&Taken]) -> Result<(), Refusal> {
    let mut classes = BTreeMap::new();
    for snapshot in of_it.iter().filter(|one| !one.is_going) {
        if !classes.contains_key(&snapshot.class) {
            classes.insert(snapshot.class.clone(), outlives(host, &snapshot.class).await?);
        }
    }
    match why_kept(of_it, |class| classes.get(class) == Some(&true)) {
        Some(why) => {
            let namespace = host.namespace();
            Err(Refusal::precondition(format!(
                "volume {name} has snapshots in namespace {namespace} on the host: {why}"
            )))
        }
        None => Ok(()),
    }
}

/// What is to be done before the volume of these snapshots may go. `is_copy` says which classes make copies elsewhere; one
/// that is not complete needs the volume still.
fn why_kept(of_it: &[&Taken], is_copy: impl Fn(&str) -> bool) -> Option<String> {
    let named = |is_half: bool| {
        let needs_it =
            |one: &&&Taken| !one.is_going && is_copy(&one.class) == is_half && !(is_half && one.is_ready);
        let named: Vec<_> = of_it.iter().filter(needs_it).map(|one| one.object.as_str()).collect();
        (!named.is_empty()).then(|| named.join(" and "))
    };
    let inside = named(false).map(|named| format!("delete {named} first, which would go with it"));
    let half = named(true).map(|named| format!("wait until {named} is complete, or delete it first"));
    let all: Vec<_> = inside.into_iter().chain(half).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The snapshots of the namespace; none on a host without snapshots.
async fn snapshots(host: &Host) -> Result<Vec<Taken>, Refusal> {
    match host::list(&host.snapshots()).await {
        Ok(snapshots) => Ok(snapshots.iter().filter_map(taken).collect()),
        Err(error) if host::is_absent(&error) => Ok(vec![]),
        Err(error) => {
            let doing = format!("list the VolumeSnapshots of namespace {} on the host", host.namespace());
            Err(Refusal::of_host(&doing, &error))
        }
    }
}

/// One that nobody has begun to take, of a class that is not there for one, needs nothing.
fn taken(snapshot: &VolumeSnapshot) -> Option<Taken> {
    let (name, status) = (snapshot.name_any(), &snapshot.status);
    let is_ready = status.ready_to_use == Some(true);
    let is_begun = status.bound_volume_snapshot_content_name.is_some() || status.creation_time.is_some();
    if !is_ready && !is_begun {
        return None;
    }
    // a backup makes its snapshot again, and one of a machine is of no use without it
    let owner = snapshot.owner_references().iter().find(|owner| owner.controller == Some(true));
    let object = owner.map(|owner| format!("{} {}", owner.kind, owner.name));
    Some(Taken {
        object: object.unwrap_or_else(|| format!("{SNAPSHOT} {name}")),
        name,
        source: snapshot.spec.source.persistent_volume_claim_name.clone()?,
        class: snapshot.spec.volume_snapshot_class_name.clone().unwrap_or_default(),
        is_ready,
        is_going: snapshot.metadata.deletion_timestamp.is_some(),
    })
}

async fn waiting(host: &Host) -> Result<Vec<Waiting>, Refusal> {
    let claims = host::list(&host.claims()).await.map_err(|error| {
        let doing = format!("list the PersistentVolumeClaims of namespace {} on the host", host.namespace());
        Refusal::of_host(&doing, &error)
    })?;
    let waiting = |claim: &PersistentVolumeClaim| {
        let (kind, source) = source_of(claim)?;
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
        let is_ours = VolumeRecord::of(claim).is_some();
        Some(Waiting { name: claim.name_any(), is_ours, class, source: (kind.to_owned(), source.to_owned()) })
    };
    Ok(claims.iter().filter_map(waiting).collect())
}

/// Kind and name of what a claim that is not bound is to be made of.
fn source_of(claim: &PersistentVolumeClaim) -> Option<(&str, &str)> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if !matches!(phase, None | Some("Pending")) || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    let old = spec.data_source.as_ref().map(|source| (&*source.kind, &*source.name));
    let reference = spec.data_source_ref.as_ref().filter(|source| source.namespace.is_none());
    old.or_else(|| reference.map(|source| (&*source.kind, &*source.name)))
}

/// Whether snapshots of this class are there without the volume; where the host does not say it, they are not.
pub(super) async fn outlives(host: &Host, class: &str) -> Result<bool, Refusal> {
    // anybody may have written it, and it becomes part of a request's path
    if HostName::from_handle(class).is_none() {
        return Ok(false);
    }
    match host.snapshot_classes().get(class).await {
        Ok(class) => Ok(is_copy(&class)),
        Err(error) if host::is_absent(&error) => Ok(false),
        Err(error) => Err(Refusal::of_host(&format!("read VolumeSnapshotClass {class} on the host"), &error)),
    }
}

fn is_copy(class: &VolumeSnapshotClass) -> bool {
    let kind = class.parameters.get("type").map_or("", String::as_str);
    class.driver == LONGHORN && COPIES.contains(&kind)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::clone(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}), "Pending", Some("a"))]
    #[case::restore(json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}), "Pending", Some("s"))]
    #[case::by_reference(json!({"dataSourceRef": {"kind": "VolumeSnapshot", "name": "s"}}), "Pending", Some("s"))]
    #[case::of_elsewhere(json!({"dataSourceRef": {"kind": "VolumeSnapshot", "name": "s", "namespace": "n"}}), "Pending", None)]
    #[case::filled(json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}), "Bound", None)]
    #[case::lost(json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}), "Lost", None)]
    #[case::empty(json!({}), "Pending", None)]
    fn a_claim_needs_its_source_until_it_is_bound(
        #[case] spec: Value,
        #[case] phase: &str,
        #[case] expected: Option<&str>,
    ) {
        let claim = serde_json::from_value(json!({"spec": spec, "status": {"phase": phase}})).unwrap();
        assert_eq!(source_of(&claim).map(|(_, name)| name), expected);
    }

    #[rstest]
    #[case::none(&[], None)]
    #[case::inside(&[("a", "snap", true)], Some("delete VolumeSnapshot a first, which would go with it"))]
    #[case::inside_and_not_cut(&[("a", "snap", false)], Some("delete VolumeSnapshot a first, which would go with it"))]
    #[case::a_complete_copy(&[("a", "bak", true)], None)]
    #[case::a_copy_that_is_made(&[("a", "bak", false)], Some("wait until VolumeSnapshot a is complete, or delete it first"))]
    #[case::several(
        &[("a", "snap", true), ("b", "snap", true), ("c", "bak", false), ("d", "bak", true)],
        Some("delete VolumeSnapshot a and VolumeSnapshot b first, which would go with it; wait until VolumeSnapshot c is \
              complete, or delete it first")
    )]
    fn a_volume_is_kept_for_snapshots_inside_it_and_for_copies_that_are_not_complete(
        #[case] snapshots: &[(&str, &str, bool)],
        #[case] expected: Option<&str>,
    ) {
        let all: Vec<_> =
            snapshots.iter().map(|(name, class, ready)| snapshot(name, class, *ready)).collect();
        let why = why_kept(&all.iter().collect::<Vec<_>>(), |class| class == "bak");
        assert_eq!(why.as_deref(), expected);
        let going: Vec<_> = all.into_iter().map(|one| Taken { is_going: true, ..one }).collect();
        assert_eq!(why_kept(&going.iter().collect::<Vec<_>>(), |class| class == "bak"), None);
    }

    fn snapshot(name: &str, class: &str, ready: bool) -> Taken {
        let spec =
            json!({"source": {"persistentVolumeClaimName": "pvc-1"}, "volumeSnapshotClassName": class});
        let status = json!({"readyToUse": ready, "boundVolumeSnapshotContentName": "content"});
        let json = json!({"metadata": {"name": name}, "spec": spec, "status": status});
        taken(&serde_json::from_value(json).unwrap()).unwrap()
    }

    #[rstest]
    #[case::of_a_remote_backup("VolumeRemoteBackup", true, "VolumeRemoteBackup b")]
    #[case::of_a_machine("VirtualMachineBackup", true, "VirtualMachineBackup b")]
    #[case::that_is_no_controller("VirtualMachine", false, "VolumeSnapshot s")]
    fn a_snapshot_that_somebody_makes_again_is_named_by_its_owner(
        #[case] kind: &str,
        #[case] controller: bool,
        #[case] expected: &str,
    ) {
        let owner = json!([{"apiVersion": "harvesterhci.io/v1beta1", "kind": kind, "name": "b", "uid": "u", "controller": controller}]);
        let json = json!({"metadata": {"name": "s", "ownerReferences": owner},
            "spec": {"source": {"persistentVolumeClaimName": "pvc-1"}}, "status": {"readyToUse": true}});
        assert_eq!(taken(&serde_json::from_value(json).unwrap()).unwrap().object, expected);
    }

    #[rstest]
    #[case::backup(json!({"driver": LONGHORN, "parameters": {"type": "bak"}}), true)]
    #[case::backup_of_old(json!({"driver": LONGHORN, "parameters": {"type": "bs"}}), true)]
    #[case::image(json!({"driver": LONGHORN, "parameters": {"type": "bi"}}), true)]
    #[case::inside(json!({"driver": LONGHORN, "parameters": {"type": "snap"}}), false)]
    #[case::not_said(json!({"driver": LONGHORN}), false)]
    #[case::another_driver(json!({"driver": "lvm.driver.harvesterhci.io", "parameters": {"type": "bak"}}), false)]
    #[case::odd(json!({"driver": 5, "parameters": "bak"}), false)]
    fn a_snapshot_outlives_its_volume_where_its_class_says_so(#[case] class: Value, #[case] expected: bool) {
        assert_eq!(is_copy(&serde_json::from_value(class).unwrap()), expected);
    }
}
