//! A volume with the content of a snapshot or of another volume: it is there when the host has filled it, and then grown it
//! to a larger size than its source's (docs/contract/csi-driver.md#filled).
//!
//! With the answer the guest lets go of what the content comes from.

use harvester_api::annotations::CSI_ATTACH;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use tokio::time::Instant;
use tonic::Code;

use super::super::{classes, expand, needed::Needed, wait};
use super::{claim, plan, request::Asked};
use crate::{
    host::{self, Host, LONGHORN_SYSTEM, bound_volume, kinds::longhorn},
    refusal::Refusal,
    volume::{name::HostName, record::VolumeRecord},
};

/// A copy that the host could not make.
pub(super) struct Failed {
    claim: PersistentVolumeClaim,
    why: String,
}

/// A claim that asks for another size than one that were made now: its source has grown since, or a growth of it was taken
/// back, and the host, which copies between equal sizes only, fills it never. One whose size cannot be known now may be
/// filled.
async fn outdated(
    host: &Host,
    asked: &Asked,
    claim: &PersistentVolumeClaim,
    until: Instant,
) -> Result<Option<Failed>, Refusal> {
    let has_volume = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
    // of one that is not waited for, CreateVolume has told the guest
    if has_volume || !is_waited_for(host, asked, claim).await? {
        return Ok(None);
    }
    let claimed = claim::claimed(claim).unwrap_or(0);
    let why = match plan(host, asked, until).await {
        Ok(plan) if plan.claimed != claimed => {
            format!("it asks for {claimed} bytes, and what is copied has {} by now", plan.claimed)
        }
        Err(refusal) if refusal.code == Code::OutOfRange => refusal.message,
        Ok(_) | Err(_) => return Ok(None),
    };
    Ok(Some(Failed { claim: claim.clone(), why }))
}

/// Waits until the host has filled the volume of the claim, and grown it, or could not fill it.
pub(super) async fn finish(
    host: &Host,
    asked: &Asked,
    claim: PersistentVolumeClaim,
    is_new: bool,
    until: Instant,
) -> Result<Option<Failed>, Refusal> {
    if !is_new && let Some(outdated) = outdated(host, asked, &claim, until).await? {
        return Ok(Some(outdated));
    }
    let Some(claim) = bound(host, asked, claim, until).await? else { return Ok(None) };
    if let Some(volume) = bound_volume(&claim)
        && let Some(why) = failure(host, asked, volume, until).await?
    {
        return Ok(Some(Failed { claim, why }));
    }
    grow(host, asked, claim, until).await.map(|()| None)
}

/// Deletes a claim that could not be filled, so that the next call makes it anew: no machine can use it, and the guest has no PersistentVolume of it before our answer. The code is final, for nothing is left behind.
pub(super) async fn undo(host: &Host, needed: &Needed, name: &HostName, copy: &Failed) -> Refusal {
    let failed = format!("the host could not copy into {}: {}", host.claim_name(name), copy.why);
    match delete(host, needed, name, &copy.claim).await {
        Ok(()) => Refusal::precondition(format!("{failed}: it was deleted, and the next call makes it anew")),
        Err(refusal) => Refusal::unavailable(format!("{failed}; it stays there: {}", refusal.message)),
    }
}

async fn delete(
    host: &Host,
    needed: &Needed,
    name: &HostName,
    claim: &PersistentVolumeClaim,
) -> Result<(), Refusal> {
    if VolumeRecord::of(claim).is_none() || claim.annotations().contains_key(CSI_ATTACH) {
        return Err(Refusal::precondition(
            "a PersistentVolume may name it: delete the volume and make it anew",
        ));
    }
    host.check_owner(claim).await?;
    needed.volume(host, name).await?;
    match host.claims().delete(name.as_str(), &host::of_version(&claim.metadata)).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(Refusal::of_host(&format!("delete {}", host.claim_name(name)), &error)),
    }
}

async fn grow(
    host: &Host,
    asked: &Asked,
    claim: PersistentVolumeClaim,
    until: Instant,
) -> Result<(), Refusal> {
    let (name, size) = (&asked.name, wanted(asked, &claim));
    if claim::claimed(&claim) == Some(size) {
        return expand::wait_until_grown(host, name, &claim, size, until).await;
    }
    let patch = expand::growth(&claim, size);
    let patched = host.claims().patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
    let claim = patched.map_err(|error| expand::refusal_of_growth(host, name, &error))?;
    expand::wait_until_grown(host, name, &claim, size, until).await
}

/// What the claim is to ask for in the end: Longhorn's begins with the size of its source.
fn wanted(asked: &Asked, claim: &PersistentVolumeClaim) -> u64 {
    asked.size.on_host_with(claim::claimed(claim).unwrap_or(0))
}

/// The claim when it is bound; `None` where the host binds it at the first attachment, or does not say when.
async fn bound(
    host: &Host,
    asked: &Asked,
    claim: PersistentVolumeClaim,
    until: Instant,
) -> Result<Option<PersistentVolumeClaim>, Refusal> {
    if bound_volume(&claim).is_some() {
        return Ok(Some(claim));
    }
    if !is_waited_for(host, asked, &claim).await? {
        return Ok(None);
    }
    let what = format!("{} is not filled", host.claim_name(&asked.name));
    let is_settled = |claim: &PersistentVolumeClaim| {
        bound_volume(claim).is_some() || claim.metadata.deletion_timestamp.is_some()
    };
    let status = |claim: &PersistentVolumeClaim| claim.status.clone();
    let (end, name) = (wait::end(until, wait::WAITS_FOR), asked.name.as_str());
    match wait::while_it_changes(end, host.claims(), name, &what, status, is_settled).await? {
        Some(claim) if claim.metadata.deletion_timestamp.is_none() => Ok(Some(claim)),
        _ => Err(Refusal::aborted(format!("{} was deleted: call again", host.claim_name(&asked.name)))),
    }
}

/// Whether CreateVolume answers when the claim is bound, and no earlier.
async fn is_waited_for(host: &Host, asked: &Asked, claim: &PersistentVolumeClaim) -> Result<bool, Refusal> {
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let class = classes::of(host, class).await?;
    // a class that we may not read may wait, but not where the volume has to grow
    let is_to_grow = claim::claimed(claim) != Some(wanted(asked, claim));
    Ok(class.map_or(is_to_grow, |class| !classes::waits_for_consumer(&class)))
}

/// Waits until the copy has ended, and returns why it failed. Longhorn copies after it has told Kubernetes of the volume.
/// Other provisioners have no such object, and older hosts do not let us read it.
async fn failure(
    host: &Host,
    asked: &Asked,
    volume: &str,
    until: Instant,
) -> Result<Option<String>, Refusal> {
    let what = format!("Longhorn has not copied all of {}", host.claim_name(&asked.name));
    let api = host.longhorn_volumes();
    let is_settled = |volume: &longhorn::Volume| state(volume) != State::Copies;
    let status = |volume: &longhorn::Volume| format!("{:?}", volume.status);
    let end = wait::end(until, wait::WAITS_FOR);
    let read = match wait::by_reading(end, api, volume, &what, status, is_settled).await {
        Ok(read) => read,
        Err(refusal) if refusal.code == Code::PermissionDenied => return Ok(None),
        Err(refusal) => return Err(refusal),
    };
    Ok(read.filter(|volume| state(volume) == State::Failed).map(|volume| why_failed(&volume)))
}

/// What Longhorn says about the volume; why a copy failed it says in Events alone, which no role lets us read.
fn why_failed(volume: &longhorn::Volume) -> String {
    let words = volume.status.conditions.iter().map(|one| one.message.as_str());
    let words: Vec<_> = words.filter(|message| !message.is_empty()).collect();
    let said = if words.is_empty() { String::new() } else { format!("{}, and ", words.join("; ")) };
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    format!("{said}Events about volume {name} in namespace {LONGHORN_SYSTEM} say more")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Copies,
    Failed,
    /// Also of a volume that is made of nothing.
    Filled,
}

fn state(volume: &longhorn::Volume) -> State {
    let is_copy = !volume.spec.data_source.is_empty();
    match volume.status.clone_status.state.as_str() {
        _ if volume.status.restore_required => State::Copies,
        _ if !is_copy => State::Filled,
        "failed" => State::Failed,
        // the copy is there, and is not yet on as many hosts as it shall be
        "completed" | "copy-completed-awaiting-healthy" => State::Filled,
        _ => State::Copies,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const OF: &str = "snap://pvc-1/snapshot-1";

    // docs/contract/csi-driver.md#filled
    #[rstest]
    #[case::of_nothing(json!({"spec": {"size": "1"}, "status": {"state": "detached"}}), State::Filled)]
    #[case::odd(json!({"spec": 1, "status": "x"}), State::Filled)]
    #[case::not_begun(json!({"spec": {"dataSource": OF}}), State::Copies)]
    #[case::begun(json!({"spec": {"dataSource": OF}, "status": {"cloneStatus": {"state": "initiated"}}}), State::Copies)]
    #[case::done(json!({"spec": {"dataSource": OF}, "status": {"cloneStatus": {"state": "completed"}}}), State::Filled)]
    #[case::one_copy(
        json!({"spec": {"dataSource": OF}, "status": {"cloneStatus": {"state": "copy-completed-awaiting-healthy"}}}),
        State::Filled
    )]
    #[case::failed(json!({"spec": {"dataSource": OF}, "status": {"cloneStatus": {"state": "failed"}}}), State::Failed)]
    #[case::of_a_backup(json!({"spec": {"fromBackup": "s3://"}, "status": {"restoreRequired": true}}), State::Copies)]
    #[case::restored(json!({"spec": {"fromBackup": "s3://"}, "status": {"restoreRequired": false}}), State::Filled)]
    fn a_copy_of_longhorn_is_there_when_its_status_says_so(#[case] volume: Value, #[case] expected: State) {
        assert_eq!(state(&serde_json::from_value(volume).unwrap()), expected);
    }
}
