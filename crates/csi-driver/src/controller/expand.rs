//! ControllerExpandVolume (docs/contract/csi-driver.md#growth).

use std::collections::BTreeMap;

use harvester_api::annotations::{CSI_ATTACH, CSI_FORMER_GROWTH, CSI_VOLUME};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use super::{classes, create, inspect, machine_disk, published::Machines, wait};
use crate::{
    attach::ownership::{Operation, Ownership},
    csi::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse},
    host::{Host, quantity},
    refusal::Refusal,
    volume::{
        access::{Access, Reach},
        name::HostName,
        record::{self, VolumeRecord},
        size::Size,
    },
};

/// The claim is read and written so often in one call while others write it too.
const ATTEMPTS: usize = 5;
/// Harvester's refusals to grow a volume begin with it.
const REFUSED_BY_HARVESTER: &str = "PVC_EXPAND";
const STORAGE: &str = "storage";
/// Kubernetes' refusal where the class does not allow it.
const REFUSED_BY_CLASS: &str = "must support resize";

/// What is to be done for a size.
#[derive(Clone, Debug, PartialEq)]
struct Decision {
    /// What CSI is told.
    size: u64,
    /// What the claim has to ask for.
    claimed: u64,
    /// The merge patch, if the claim does not say so yet.
    patch: Option<Value>,
}

pub(super) async fn expand(
    host: &Host,
    name: &HostName,
    request: &ControllerExpandVolumeRequest,
    until: Instant,
) -> Result<ControllerExpandVolumeResponse, Refusal> {
    let Some(range) = &request.capacity_range else {
        return Err(Refusal::invalid("the size that the volume is to have is missing"));
    };
    let size = Size::of(Some(range))?;
    let access = request.volume_capability.as_ref().map(|one| Access::of(Some(one))).transpose()?;
    if access.is_some_and(|access| access.reach() != Ok(Reach::Disk)) {
        return Err(no_growth(name));
    }
    let (decision, claim) = write(host, name, size, until).await?;
    // one that is made at its first attachment has the size then
    if !waits_for_use(host, &claim).await? {
        wait_until_grown(host, name, &claim, decision.claimed, until).await?;
    }
    Ok(ControllerExpandVolumeResponse {
        capacity_bytes: i64::try_from(decision.size).unwrap_or(i64::MAX),
        node_expansion_required: is_in_use(host, name, &claim).await?,
    })
}

async fn write(
    host: &Host,
    name: &HostName,
    size: Size,
    until: Instant,
) -> Result<(Decision, PersistentVolumeClaim), Refusal> {
    for _ in 0..ATTEMPTS {
        let claim = inspect::existing(host, name).await?;
        let decision = decide(name, &claim, size)?;
        let Some(patch) = &decision.patch else { return Ok((decision, claim)) };
        machine_disk::refuse(host, &claim, "grow").await?;
        if patch.get("spec").is_some() && !is_bound(&claim) {
            // the host grows no volume that is not there yet, and no wait makes one that waits itself
            if waits_for_use(host, &claim).await? {
                return Err(Refusal::unavailable(format!(
                    "{} is not bound: the host makes the volume at its first attachment, and it grows after that",
                    host.claim_name(name)
                )));
            }
            let what = format!("{} is not bound", host.claim_name(name));
            let is_settled = |claim: &PersistentVolumeClaim| {
                is_bound(claim) || claim.metadata.deletion_timestamp.is_some()
            };
            while_it_changes(host, name, &what, until, is_settled).await?;
            continue;
        }
        match host.claims().patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(claim) => return Ok((decision, claim)),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            // Kubernetes before 1.32 takes no growth back
            Err(kube::Error::Api(status))
                if status.code == 422 && create::claimed(&claim) > Some(decision.claimed) =>
            {
                return Err(no_shrinking(name, create::claimed(&claim).unwrap_or_default(), size));
            }
            Err(error) => return Err(refusal_of_growth(host, name, &error)),
        }
    }
    Err(Refusal::aborted(format!("others write {} all the time: call again", host.claim_name(name))))
}

/// Whether the host makes the volume at its first attachment, and has not yet.
async fn waits_for_use(host: &Host, claim: &PersistentVolumeClaim) -> Result<bool, Refusal> {
    if is_bound(claim) {
        return Ok(false);
    }
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    match classes::of(host, class).await {
        Err(refusal) if classes::is_gone(&refusal) => Ok(false),
        class => Ok(class?.as_ref().is_some_and(classes::waits_for_consumer)),
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn decide(name: &HostName, claim: &PersistentVolumeClaim, size: Size) -> Result<Decision, Refusal> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::aborted(format!("volume {name} is being deleted")));
    }
    if record::reach_of(claim) == Some(Reach::Export) {
        return Err(no_growth(name));
    }
    let claimed = create::claimed(claim).ok_or_else(|| {
        Refusal::precondition(format!(
            "the claim of volume {name} asks for no size: set resources.requests.storage"
        ))
    })?;
    let recorded = VolumeRecord::of(claim);
    let told = recorded.as_ref().map(|record| record.size);
    if size.asked <= claimed {
        // a growth that the rounding has already is none, and no fault (docs/contract/csi-driver.md#sizes)
        if told != Some(size.asked) && size.on_host() < claimed {
            let has = capacity(claim).filter(|_| !is_grown(claim, claimed)).unwrap_or(claimed);
            if size.on_host() <= has {
                return is_large_enough(name, claim, recorded, size, has);
            }
            // a growth that the host could not do may be taken back to a smaller one
            let (size, claimed) = (size.asked, size.on_host());
            return Ok(Decision { size, claimed, patch: Some(patch(claim, recorded, size, Some(claimed))) });
        }
        let size = told.filter(|told| size.allows(*told)).unwrap_or(size.asked);
        let patch =
            recorded.filter(|record| record.size < size).map(|record| patch(claim, Some(record), size, None));
        return Ok(Decision { size, claimed, patch });
    }
    let (size, claimed) = (size.asked, size.on_host());
    Ok(Decision { size, claimed, patch: Some(patch(claim, recorded, size, Some(claimed))) })
}

/// The answer for a volume that has more than is asked for: OK, unless it may not have as much.
fn is_large_enough(
    name: &HostName,
    claim: &PersistentVolumeClaim,
    recorded: Option<VolumeRecord>,
    asked: Size,
    has: u64,
) -> Result<Decision, Refusal> {
    let told = recorded.as_ref().map(|record| record.size.min(has)).filter(|told| *told >= asked.asked);
    let size = told.unwrap_or(has);
    if !asked.allows(size) {
        return Err(no_shrinking(name, size, asked));
    }
    let outdated = recorded.filter(|record| record.size < size);
    let patch = outdated.map(|record| patch(claim, Some(record), size, None));
    Ok(Decision { size, claimed: has, patch })
}

fn no_shrinking(name: &HostName, has: u64, size: Size) -> Refusal {
    let limit = size.limit().map(|limit| format!(" and at most {limit}")).unwrap_or_default();
    Refusal::new(
        Code::OutOfRange,
        format!(
            "volume {name} has {has} bytes and does not shrink, and is to have {}{limit}: ask for a larger size",
            size.asked
        ),
    )
}

pub(super) fn capacity(claim: &PersistentVolumeClaim) -> Option<u64> {
    storage(claim.status.as_ref()?.capacity.as_ref())
}

/// The size of a volume as CSI is told. A growth that the host has not done does not count.
pub(super) fn size(claim: &PersistentVolumeClaim) -> Option<u64> {
    let claimed = create::claimed(claim);
    let told = VolumeRecord::of(claim).map(|record| record.size).or(claimed)?;
    let capacity = capacity(claim).filter(|_| !is_grown(claim, claimed.unwrap_or(told)));
    Some(capacity.map_or(told, |capacity| told.min(capacity)))
}

/// The new sizes on the version of the claim that was decided on. A volume of the Go driver stays without our annotation.
fn patch(
    claim: &PersistentVolumeClaim,
    recorded: Option<VolumeRecord>,
    size: u64,
    claimed: Option<u64>,
) -> Value {
    let mut patch = match claimed {
        Some(claimed) => growth(claim, claimed),
        None => json!({"metadata": {"resourceVersion": claim.resource_version()}}),
    };
    if let Some(record) = recorded {
        let text =
            serde_json::to_string(&VolumeRecord { size, ..record }).expect("a struct of texts and numbers");
        patch["metadata"]["annotations"][CSI_VOLUME] = text.into();
    }
    patch
}

/// A claim for so many bytes, on the version that was decided on. What the host still says of an earlier growth is noted:
/// the call may end before the host has begun, and the next one has to know it.
pub(super) fn growth(claim: &PersistentVolumeClaim, claimed: u64) -> Value {
    let mut patch = json!({"metadata": {"resourceVersion": claim.resource_version()},
        "spec": {"resources": {"requests": {"storage": quantity::of_bytes(claimed)}}}});
    let former = pending(claim).map(since);
    if former.as_ref() != claim.annotations().get(CSI_FORMER_GROWTH) {
        patch["metadata"]["annotations"][CSI_FORMER_GROWTH] = former.into();
    }
    patch
}

/// CSI's code where a volume cannot do what its capability asks for.
fn no_growth(name: &HostName) -> Refusal {
    Refusal::invalid(format!(
        "volume {name} is exported to many nodes, and the host does not grow exports: copy it into a larger one"
    ))
}

/// What the host's answer to a larger size means.
pub(super) fn refusal_of_growth(host: &Host, name: &HostName, error: &kube::Error) -> Refusal {
    of_growth(&format!("grow {}", host.claim_name(name)), error)
}

fn of_growth(doing: &str, error: &kube::Error) -> Refusal {
    let refusal = Refusal::of_host(doing, error);
    match error {
        kube::Error::Api(status)
            if status.message.contains(REFUSED_BY_HARVESTER) || status.message.contains(REFUSED_BY_CLASS) =>
        {
            Refusal::precondition(refusal.message)
        }
        _ => refusal,
    }
}

/// The claim when it is as wanted. The host may not have as much as is asked for, now or ever.
async fn while_it_changes(
    host: &Host,
    name: &HostName,
    what: &str,
    until: Instant,
    is_done: impl Fn(&PersistentVolumeClaim) -> bool,
) -> Result<Option<PersistentVolumeClaim>, Refusal> {
    let status = |claim: &PersistentVolumeClaim| claim.status.clone();
    let end = wait::end(until, wait::WAITS_FOR);
    wait::while_it_changes(end, host.claims(), name.as_str(), what, status, is_done).await
}

/// Waits until the host's volume has `claimed` bytes.
pub(super) async fn wait_until_grown(
    host: &Host,
    name: &HostName,
    claim: &PersistentVolumeClaim,
    claimed: u64,
    until: Instant,
) -> Result<(), Refusal> {
    let is_done = |claim: &PersistentVolumeClaim| is_grown(claim, claimed);
    if is_done(claim) {
        return Ok(());
    }
    let what = format!("{} has not grown to {claimed} bytes", host.claim_name(name));
    let grown = while_it_changes(host, name, &what, until, is_done).await;
    match grown {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(inspect::no_volume(host, name)),
        Err(refusal) => {
            let claim = create::read(host, name).await.ok().flatten();
            let condition = claim
                .as_ref()
                .map(|claim| inspect::condition(claim, None))
                .filter(|condition| condition.abnormal);
            let reason = condition.map(|condition| format!("; {}", condition.message)).unwrap_or_default();
            Err(Refusal::new(refusal.code, format!("{}{reason}", refusal.message)))
        }
    }
}

/// Whether the host says that it cannot grow the volume; it may go on trying.
pub(super) fn has_failed(claim: &PersistentVolumeClaim) -> bool {
    let Some(status) = &claim.status else { return false };
    let states = status.allocated_resource_statuses.as_ref();
    inspect::failed_growth(claim).is_some()
        || states.and_then(|all| all.get(STORAGE)).is_some_and(|state| state.ends_with("Infeasible"))
}

/// The volume has the size. That of a claim with a file system, which the host grows when a pod uses it next, has it too.
pub(super) fn is_grown(claim: &PersistentVolumeClaim, claimed: u64) -> bool {
    let Some(status) = &claim.status else { return false };
    if storage(status.capacity.as_ref()).is_some_and(|capacity| capacity >= claimed) {
        return true;
    }
    let Some(pending) = pending(claim) else { return false };
    let is_of_this = claim.annotations().get(CSI_FORMER_GROWTH) != Some(&since(pending));
    let Some(allocated) = storage(status.allocated_resources.as_ref()) else { return is_of_this };
    // newer hosts say how large the growth is that they speak of, and who has to go on with it
    let state = status.allocated_resource_statuses.as_ref().and_then(|all| all.get(STORAGE));
    allocated >= claimed && state.map_or(is_of_this, |state| state.starts_with("Node"))
}

/// That a pod has to use the volume before its file system grows; of this growth, or of an earlier one.
fn pending(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|one| one.type_ == "FileSystemResizePending" && one.status == "True")
}

/// The resizer removes the condition of an earlier growth when it begins, so each growth has a time of its own.
fn since(pending: &PersistentVolumeClaimCondition) -> String {
    pending.last_transition_time.as_ref().map(|time| time.0.to_string()).unwrap_or_default()
}

fn storage(quantities: Option<&BTreeMap<String, Quantity>>) -> Option<u64> {
    quantity::bytes(quantities?.get(STORAGE)?)
}

/// Whether a machine has the volume. In one that has not, the node service grows the file system when it comes.
async fn is_in_use(host: &Host, name: &HostName, claim: &PersistentVolumeClaim) -> Result<bool, Refusal> {
    let ownership = claim.annotations().get(CSI_ATTACH).and_then(|text| Ownership::parse(text));
    if ownership.is_some_and(|ownership| ownership.operation == Operation::Attach) {
        return Ok(true);
    }
    Ok(!Machines::list(host).await?.with(name.as_str()).is_empty())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::csi::CapacityRange;

    const GIB: i64 = 1 << 30;
    const STEP: i64 = 2 << 20;

    fn claim(record: Option<&str>, storage: i64) -> PersistentVolumeClaim {
        let annotations = record.map(|text| json!({CSI_VOLUME: text}));
        serde_json::from_value(
            json!({"metadata": {"name": "pvc-1", "resourceVersion": "7", "annotations": annotations},
            "spec": {"volumeMode": "Block", "resources": {"requests": {"storage": storage.to_string()}}}}),
        )
        .unwrap()
    }

    fn decision(record: Option<&str>, claimed: i64, required: i64, limit: i64) -> Result<Decision, Refusal> {
        let size = Size::of(Some(&CapacityRange { required_bytes: required, limit_bytes: limit }))?;
        decide(&HostName::from_handle("pvc-1").unwrap(), &claim(record, claimed), size)
    }

    const OURS: &str = r#"{"name":"D","size":1073741825,"reach":"disk"}"#;

    // docs/contract/csi-driver.md#sizes
    #[rstest]
    #[case::grows(None, GIB, 2 * GIB, 0, 2 * GIB, 2 * GIB, true)]
    #[case::grows_rounded(None, GIB, GIB + 1, 0, GIB + 1, GIB + STEP, true)]
    #[case::of_the_go_driver_within_the_rounding(None, GIB + STEP, GIB + 5, 0, GIB + 5, GIB + STEP, false)]
    #[case::within_the_rounding(Some(OURS), GIB + STEP, GIB + 5, 0, GIB + 5, GIB + STEP, true)]
    #[case::again(Some(OURS), GIB + STEP, GIB + 1, 0, GIB + 1, GIB + STEP, false)]
    #[case::less_within_the_rounding(Some(OURS), GIB + STEP, GIB + 1, GIB + 1, GIB + 1, GIB + STEP, false)]
    #[case::same(None, GIB, GIB, GIB, GIB, GIB, false)]
    #[case::unrounded_claim(None, GIB + 1, GIB + 1, 0, GIB + 1, GIB + 1, false)]
    #[case::its_source_was_larger(Some(OURS), 2 * GIB, GIB + 1, 0, GIB + 1, 2 * GIB, false)]
    fn a_volume_grows_to_the_size_that_is_asked_for(
        #[case] record: Option<&str>,
        #[case] has: i64,
        #[case] required: i64,
        #[case] limit: i64,
        #[case] told: i64,
        #[case] claimed: i64,
        #[case] writes: bool,
    ) {
        let decision = decision(record, has, required, limit).unwrap();
        let sizes = (decision.size as i64, decision.claimed as i64, decision.patch.is_some());
        assert_eq!(sizes, (told, claimed, writes));
    }

    #[test]
    fn a_growth_is_written_on_the_version_that_was_decided_on_with_what_csi_is_told() {
        let patch = decision(Some(OURS), GIB + STEP, 2 * GIB, 0).unwrap().patch.unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["resources"]["requests"]["storage"], "2Gi");
        let record = patch["metadata"]["annotations"][CSI_VOLUME].as_str().unwrap();
        assert_eq!(record, r#"{"name":"D","size":2147483648,"reach":"disk"}"#);
    }

    #[rstest]
    #[case::shrinks_to_a_limit(None, 2 * GIB, 0, GIB, Code::OutOfRange)]
    #[case::export(Some(r#"{"name":"D","size":1,"reach":"export"}"#), GIB, 2 * GIB, 0, Code::InvalidArgument)]
    #[case::limit_below(None, GIB, 2 * GIB, GIB, Code::OutOfRange)]
    fn a_volume_does_not_shrink(
        #[case] record: Option<&str>,
        #[case] has: i64,
        #[case] required: i64,
        #[case] limit: i64,
        #[case] code: Code,
    ) {
        assert_eq!(decision(record, has, required, limit).unwrap_err().code, code);
    }

    // docs/contract/csi-driver.md#growth
    #[rstest]
    #[case::to_a_smaller_growth(100 * GIB, 10 * GIB, 20 * GIB, 20 * GIB, Some("20Gi"))]
    #[case::to_what_it_has(100 * GIB, 10 * GIB, 10 * GIB, 10 * GIB, None)]
    #[case::below_what_it_has(100 * GIB, 10 * GIB, 5 * GIB, 10 * GIB, None)]
    #[case::it_has_grown(100 * GIB, 100 * GIB, 20 * GIB, 100 * GIB, None)]
    fn a_growth_is_taken_back_to_no_less_than_the_volume_has(
        #[case] claimed: i64,
        #[case] capacity: i64,
        #[case] required: i64,
        #[case] told: i64,
        #[case] written: Option<&str>,
    ) {
        let mut claim = claim(Some(OURS), claimed);
        claim.status =
            serde_json::from_value(json!({"capacity": {"storage": capacity.to_string()}})).unwrap();
        let size = Size::of(Some(&CapacityRange { required_bytes: required, limit_bytes: 0 })).unwrap();
        let decision = decide(&HostName::from_handle("pvc-1").unwrap(), &claim, size).unwrap();
        let patch = decision.patch.unwrap();
        assert_eq!(patch["spec"]["resources"]["requests"]["storage"].as_str(), written);
        let record = patch["metadata"]["annotations"][CSI_VOLUME].as_str().unwrap();
        assert!(record.contains(&format!("\"size\":{told},")), "{record}");
        assert_eq!(decision.size, told as u64);
        assert!(written.is_some() || is_grown(&claim, decision.claimed), "nothing is waited for");
    }

    #[rstest]
    #[case::as_told(Some(GIB + 1), Some(GIB + STEP), GIB + STEP, GIB + 1)]
    #[case::grows(Some(100 * GIB), Some(10 * GIB), 100 * GIB, 10 * GIB)]
    #[case::of_the_go_driver(None, Some(10 * GIB), 100 * GIB, 10 * GIB)]
    #[case::not_bound(Some(GIB), None, GIB, GIB)]
    fn a_growth_that_the_host_has_not_done_is_no_size(
        #[case] recorded: Option<i64>,
        #[case] capacity: Option<i64>,
        #[case] claimed: i64,
        #[case] expected: i64,
    ) {
        let record = recorded.map(|size| json!({"name": "D", "size": size, "reach": "disk"}).to_string());
        let mut claim = claim(record.as_deref(), claimed);
        let capacity = capacity.map(|bytes| json!({"storage": bytes.to_string()}));
        claim.status = serde_json::from_value(json!({"capacity": capacity})).unwrap();
        assert_eq!(size(&claim), Some(expected as u64));
    }

    const GROWN: &str = "NodeResizePending";
    const GROWS: &str = "ControllerResizeInProgress";

    // docs/contract/csi-driver.md#growth
    #[rstest]
    #[case::of_a_host_that_says_no_size(None, None, None, true)]
    #[case::of_an_earlier_growth(None, None, Some("1"), false)]
    #[case::of_a_smaller_size(Some(GIB), Some(GROWN), None, false)]
    #[case::of_this_size(Some(2 * GIB), Some(GROWN), Some("1"), true)]
    #[case::is_not_done(Some(2 * GIB), Some(GROWS), None, false)]
    #[case::nobody_is_named(Some(2 * GIB), None, None, true)]
    #[case::nobody_is_named_for_an_earlier_one(Some(2 * GIB), None, Some("1"), false)]
    fn a_condition_of_the_last_growth_is_no_answer_to_this_one(
        #[case] allocated: Option<i64>,
        #[case] state: Option<&str>,
        #[case] former: Option<&str>,
        #[case] expected: bool,
    ) {
        let condition = json!({"type": "FileSystemResizePending", "status": "True", "message": "1"});
        let mut claim = claim(None, 2 * GIB);
        claim.status =
            serde_json::from_value(json!({"capacity": {"storage": "1Gi"}, "conditions": [condition],
            "allocatedResources": allocated.map(|bytes| json!({"storage": bytes.to_string()})),
            "allocatedResourceStatuses": state.map(|state| json!({"storage": state}))}))
            .unwrap();
        if former.is_some() {
            // as it is when this growth is asked for
            let patch = growth(&claim, 2 << 30);
            let note = patch["metadata"]["annotations"][CSI_FORMER_GROWTH].as_str().unwrap().to_owned();
            claim.metadata.annotations = Some(BTreeMap::from([(CSI_FORMER_GROWTH.to_owned(), note)]));
        }
        assert_eq!(is_grown(&claim, 2 << 30), expected);
    }

    #[test]
    fn a_note_of_an_earlier_growth_goes_with_the_next_one() {
        let mut claim = claim(None, GIB);
        assert!(growth(&claim, 2 << 30)["metadata"].get("annotations").is_none());
        claim.metadata.annotations =
            Some(BTreeMap::from([(CSI_FORMER_GROWTH.to_owned(), "2026-01-01T00:00:00Z".to_owned())]));
        let patch = growth(&claim, 2 << 30);
        assert_eq!(patch["metadata"]["annotations"], json!({CSI_FORMER_GROWTH: null}));
    }

    #[rstest]
    #[case(403, "PVC_EXPAND: volume is hot-plugged", Code::FailedPrecondition)]
    #[case(
        403,
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        Code::FailedPrecondition
    )]
    #[case(403, "persistentvolumeclaims is forbidden", Code::PermissionDenied)]
    #[case(500, "internal", Code::Unavailable)]
    fn a_refusal_of_the_host_to_grow_is_passed_on(
        #[case] status: u16,
        #[case] message: &str,
        #[case] code: Code,
    ) {
        let status = kube::core::Status::failure(message, "Forbidden").with_code(status);
        let error = kube::Error::Api(Box::new(status));
        let refusal = of_growth("grow the claim", &error);
        assert_eq!(refusal.code, code);
        assert!(refusal.message.contains(message), "{refusal}");
    }
}
