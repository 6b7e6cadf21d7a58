//! Finds out why a VM does not come up, and says it in one line on which a user can act.
//!
//! Upstream waits ten minutes and reports that its retries are used up, although the objects show the cause all the time
//! (docs/contract/node-driver.md#B3). A final cause ends the wait early.

use harvester_api::{
    VirtualMachine, VirtualMachineInstance, annotations::INSUFFICIENT_QUOTA, kubevirt::VmCondition,
};
use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::Value;

use crate::{address, cloud_init::AGENT_USER_DATA, seen::Seen};

/// The resources in quotas that a VM needs.
const MACHINE_RESOURCES: [&str; 9] = [
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
];
/// How much the clocks of Rancher's and Harvester's nodes may differ.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(30);
/// After so many failed starts in a row the cause is final.
const FAILED_STARTS: i64 = 3;

/// Why a VM is not up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// One line.
    pub text: String,
    pub cause_type: CauseType,
}

/// Whether waiting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CauseType {
    /// Waiting does not help.
    Final,
    /// It may pass; the driver prints it meanwhile.
    Passing,
    /// Each VM looks like that for a while; a cause only at the end of the time.
    Late,
}

fn lasting(text: &str) -> Cause {
    Cause { text: one_line(text), cause_type: CauseType::Final }
}

fn passing(text: &str) -> Cause {
    Cause { text: one_line(text), cause_type: CauseType::Passing }
}

fn late(text: &str) -> Cause {
    Cause { text: one_line(text), cause_type: CauseType::Late }
}

/// The most useful cause for a VM that exists and is not up; `name` is `namespace/name` of the VM.
pub(crate) fn of(seen: &Seen, name: &str) -> Cause {
    let Some(vm) = seen.vm() else {
        return match (seen.vm.known(), &seen.error) {
            (true, _) => lasting(&format!("VM {name} was deleted in the meantime")),
            (false, Some(error)) => passing(&format!("Harvester could not be asked: {error}")),
            (false, None) => late(&format!("nothing was heard of VM {name}")),
        };
    };
    let found = of_vm(vm, name)
        .or_else(|| seen.instance().and_then(of_start))
        .or_else(|| seen.claims.iter().find_map(|claim| of_claim(claim, seen)))
        .or_else(|| seen.pods.iter().find_map(of_pod))
        .or_else(|| seen.instance().and_then(of_instance))
        .or_else(|| of_status(vm))
        .or_else(|| of_quota(seen))
        .or_else(|| {
            newest_warning(seen, &vm.name_any()).map(|text| passing(&format!("last warning: {text}")))
        })
        .or_else(|| {
            seen.error.as_ref().map(|text| passing(&format!("Harvester could not be asked: {text}")))
        });
    found.unwrap_or_else(|| {
        let status = vm.status.as_ref().map_or("", |status| status.printable_status.as_str());
        let status = if status.is_empty() { "no status yet" } else { status };
        late(&format!("VM {name} does not get on ({status}), and nothing says why"))
    })
}

fn of_vm(vm: &VirtualMachine, name: &str) -> Option<Cause> {
    if vm.metadata.deletion_timestamp.is_some() {
        return Some(lasting(&format!("VM {name} was deleted in the meantime")));
    }
    if vm.spec.run_strategy == "Halted" {
        // the annotation outlives the stop: Harvester takes it away when the VM runs again
        let quota = vm.annotations().get(INSUFFICIENT_QUOTA).filter(|text| !text.is_empty());
        return Some(lasting(&match quota {
            Some(quota) => format!(
                "Harvester stopped VM {name} because a quota is used up: {quota}; raise the quota or remove machines"
            ),
            None => format!("VM {name} was stopped (runStrategy Halted) in the meantime"),
        }));
    }
    let rest = &vm.status.as_ref()?.rest;
    let failed = rest.get("startFailure").and_then(|failure| failure.get("consecutiveFailCount")?.as_i64());
    if failed? < FAILED_STARTS {
        return None;
    }
    let why = conditions(rest).into_iter().find(|condition| condition.r#type == "Failure");
    let why = why.map_or(String::new(), |condition| format!(": {}", condition.message));
    Some(lasting(&format!("VM {name} fails to start again and again{why}")))
}

fn conditions(rest: &serde_json::Map<String, Value>) -> Vec<VmCondition> {
    let conditions = rest.get("conditions").cloned().unwrap_or_default();
    serde_json::from_value(conditions).unwrap_or_default()
}

fn condition<'a>(instance: &'a VirtualMachineInstance, kind: &str) -> Option<&'a VmCondition> {
    instance.status.as_ref()?.conditions.iter().find(|condition| condition.r#type == kind)
}

/// KubeVirt cannot create the instance's pod.
fn of_start(instance: &VirtualMachineInstance) -> Option<Cause> {
    let synchronized = condition(instance, "Synchronized").filter(|condition| condition.status == "False")?;
    let text = format!("the VM's pod cannot be made: {}", synchronized.message);
    let over_quota = synchronized.message.contains("exceeded quota");
    Some(if over_quota { lasting(&(text + "; raise the quota or remove machines")) } else { passing(&text) })
}

fn of_claim(claim: &DynamicObject, seen: &Seen) -> Option<Cause> {
    let name = claim.name_any();
    match claim.data["status"]["phase"].as_str() {
        Some("Lost") => Some(lasting(&format!("volume {name} has lost its data: make the machine anew"))),
        Some("Bound") => None,
        _ => {
            let why = newest_warning(seen, &name)?;
            Some(passing(&format!("volume {name} is not ready: {why}")))
        }
    }
}

fn of_pod(pod: &DynamicObject) -> Option<Cause> {
    let status = &pod.data["status"];
    let unscheduled =
        listed(&status["conditions"]).find(|it| it["type"] == "PodScheduled" && it["status"] == "False");
    if let Some(unscheduled) = unscheduled {
        let why = unscheduled["message"].as_str().unwrap_or("the scheduler does not say why");
        return Some(passing(&format!("no host can take the VM: {why}")));
    }
    let containers = listed(&status["containerStatuses"]).chain(listed(&status["initContainerStatuses"]));
    let mut waiting = containers.map(|container| &container["state"]["waiting"]);
    let usual = |reason: &str| matches!(reason, "ContainerCreating" | "PodInitializing");
    let waiting = waiting.find(|waiting| waiting["reason"].as_str().is_some_and(|reason| !usual(reason)))?;
    let (reason, message) = (waiting["reason"].as_str().unwrap_or_default(), waiting["message"].as_str());
    Some(passing(&format!("the VM's pod does not start: {reason} {}", message.unwrap_or_default())))
}

/// The items of a list; none of a value that is no list.
fn listed(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The instance does not run, or it runs without an address.
fn of_instance(instance: &VirtualMachineInstance) -> Option<Cause> {
    let status = instance.status.as_ref()?;
    match status.phase.as_str() {
        "Running" if address::of(instance).is_none() => Some(without_address(instance)),
        "Failed" => {
            let why = newest_reason(&status.conditions).unwrap_or("KubeVirt does not say why");
            Some(passing(&format!("the VM has failed: {why}")))
        }
        _ => None,
    }
}

/// The guest runs without an address. This is never final: some images take minutes to install the agent.
fn without_address(instance: &VirtualMachineInstance) -> Cause {
    let connected = condition(instance, "AgentConnected").is_some_and(|agent| agent.status == "True");
    if !connected {
        return late(&format!(
            "guest agent missing: the VM runs, but no qemu-guest-agent in it reports an address; use an image with it, or \
             user data that installs it: {AGENT_USER_DATA}"
        ));
    }
    let network = instance.spec.networks.first().and_then(|network| network.multus.as_ref());
    let network = network.map_or("the pod network", |multus| multus.network_name.as_str());
    late(&format!(
        "the guest has no IPv4 address on {network}: a DHCP server must answer there, or network data must set an address"
    ))
}

fn newest_reason(conditions: &[VmCondition]) -> Option<&str> {
    conditions.iter().rev().map(|condition| condition.message.as_str()).find(|message| !message.is_empty())
}

/// A quota is used up. Limits of zero (`services.loadbalancers: 0` is usual in Rancher's projects) and resources that VMs
/// do not need are left out.
fn of_quota(seen: &Seen) -> Option<Cause> {
    let running = seen
        .instance()
        .and_then(|instance| instance.status.as_ref())
        .is_some_and(|status| matches!(status.phase.as_str(), "Running" | "Scheduled"));
    if running {
        return None;
    }
    seen.quotas.iter().find_map(|quota| {
        let status = &quota.data["status"];
        let (hard, used) = (status["hard"].as_object()?, &status["used"]);
        let used_up = |(what, limit): &(&String, &Value)| {
            MACHINE_RESOURCES.contains(&what.as_str())
                && **limit != "0"
                && used.get(what.as_str()) == Some(limit)
        };
        let (what, limit) = hard.iter().find(used_up)?;
        let (name, limit) = (quota.name_any(), limit.as_str()?);
        Some(passing(&format!("quota {name} of the namespace is used up: {what} {limit} of {limit}")))
    })
}

/// The VM's `printableStatus` names an error.
fn of_status(vm: &VirtualMachine) -> Option<Cause> {
    let status = vm.status.as_ref()?;
    let text = match status.printable_status.as_str() {
        "ErrorUnschedulable" => "no host can take the VM",
        "ErrorPvcNotFound" => "a volume of the VM is missing: Harvester did not make it",
        "ErrorDataVolumeNotFound" | "DataVolumeError" => "a volume of the VM cannot be filled from its image",
        "ErrImagePull" | "ImagePullBackOff" => "a host cannot get the image of the VM's pod",
        "CrashLoopBackOff" => "the VM fails to start",
        _ => return None,
    };
    let why =
        conditions(&status.rest).into_iter().map(|condition| condition.message).find(|text| !text.is_empty());
    Some(passing(&why.map_or_else(|| text.to_owned(), |why| format!("{text}: {why}"))))
}

/// The newest warning since the wait began about the object of this name; for a VM also about its pod and its volumes.
fn newest_warning(seen: &Seen, name: &str) -> Option<String> {
    let about = |event: &&DynamicObject| {
        let involved = event.data["involvedObject"]["name"].as_str();
        event.data["type"] == "Warning" && involved.is_some_and(|involved| belongs_to(involved, name))
    };
    let time = |event: &&DynamicObject| {
        let parsed = |text: &Value| text.as_str()?.parse::<Timestamp>().ok();
        let (data, last) = (&event.data, parsed(&event.data["series"]["lastObservedTime"]));
        last.or_else(|| parsed(&data["lastTimestamp"])).or_else(|| parsed(&data["eventTime"]))
    };
    let of_this_life = |event: &&DynamicObject| match (time(event), seen.since) {
        (Some(at), Some(since)) => since.duration_since(at) <= CLOCKS_DIFFER,
        _ => true,
    };
    let warnings = seen.warnings.iter().filter(about).filter(of_this_life);
    let event = &warnings.max_by_key(time)?.data;
    let (reason, message) = (event["reason"].as_str()?, event["message"].as_str().unwrap_or_default());
    Some(format!("{reason}: {message}"))
}

/// Whether an object has this name, or is the pod or a volume of the VM of this name.
fn belongs_to(object: &str, name: &str) -> bool {
    let pod =
        object.strip_prefix("virt-launcher-").and_then(|rest| rest.strip_prefix(name)?.strip_prefix('-'));
    // the machine a-x has pods virt-launcher-a-x-…, which are none of the machine a
    object == name
        || pod.is_some_and(|suffix| !suffix.contains('-'))
        || object.strip_prefix(name).is_some_and(|rest| rest.starts_with("-disk-"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
