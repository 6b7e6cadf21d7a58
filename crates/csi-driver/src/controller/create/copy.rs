//! A volume with the content of a snapshot or of another volume: it is there when the host has filled it, and then grown it
//! to a larger size than its source's (docs/contract/csi-driver.md#filled).
//!
//! With the answer the guest lets go of what the content comes from.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use tonic::Code;

use super::super::{classes, expand, wait};
use super::{claim, request::Asked};
use crate::{
    host::{Host, bound_volume, kinds::longhorn},
    refusal::Refusal,
};

/// Waits until the host has filled the volume of the claim, and grown it.
pub(super) async fn finish(host: &Host, asked: &Asked, claim: PersistentVolumeClaim) -> Result<(), Refusal> {
    let Some(claim) = bound(host, asked, claim).await? else { return Ok(()) };
    if let Some(volume) = bound_volume(&claim) {
        filled(host, asked, volume).await?;
    }
    grow(host, asked, claim).await
}

async fn grow(host: &Host, asked: &Asked, claim: PersistentVolumeClaim) -> Result<(), Refusal> {
    let (name, size) = (&asked.name, wanted(asked, &claim));
    if claim::claimed(&claim) == Some(size) {
        return expand::wait_until_grown(host, name, &claim, size).await;
    }
    let patch = expand::growth(&claim, size);
    let patched = host.claims().patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
    let claim = patched.map_err(|error| expand::refusal_of_growth(host, name, &error))?;
    expand::wait_until_grown(host, name, &claim, size).await
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
) -> Result<Option<PersistentVolumeClaim>, Refusal> {
    if bound_volume(&claim).is_some() {
        return Ok(Some(claim));
    }
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let class = classes::of(host, class).await?;
    // a class that we may not read may wait, but not where the volume has to grow
    let is_to_grow = claim::claimed(&claim) != Some(wanted(asked, &claim));
    if class.map_or(!is_to_grow, |class| classes::waits_for_consumer(&class)) {
        return Ok(None);
    }
    let what = format!("{} is not filled", host.claim_name(&asked.name));
    let is_settled = |claim: &PersistentVolumeClaim| {
        bound_volume(claim).is_some() || claim.metadata.deletion_timestamp.is_some()
    };
    match wait::until(host.claims(), asked.name.as_str(), &what, is_settled).await? {
        Some(claim) if claim.metadata.deletion_timestamp.is_none() => Ok(Some(claim)),
        _ => Err(Refusal::aborted(format!("{} was deleted: call again", host.claim_name(&asked.name)))),
    }
}

/// Longhorn copies after it has told Kubernetes of the volume. Other provisioners have no such object, and older hosts
/// do not let us read it.
async fn filled(host: &Host, asked: &Asked, volume: &str) -> Result<(), Refusal> {
    let what = format!("Longhorn has not copied all of {}", host.claim_name(&asked.name));
    let api = host.longhorn_volumes();
    let is_settled = |volume: &longhorn::Volume| state(volume) != State::Copies;
    let read = match wait::by_reading(api, volume, &what, is_settled).await {
        Ok(read) => read,
        Err(refusal) if refusal.code == Code::PermissionDenied => return Ok(()),
        Err(refusal) => return Err(refusal),
    };
    match read.as_ref().map(state) {
        Some(State::Failed) => Err(Refusal::new(
            Code::Unavailable,
            format!(
                "Longhorn could not fill volume {volume} of {}: look at it there, or delete the claim and make it anew",
                host.claim_name(&asked.name)
            ),
        )),
        _ => Ok(()),
    }
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
