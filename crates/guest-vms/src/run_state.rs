//! Whether a VM is stopped until somebody starts it: by its run strategy and the phase of its instance.
//!
//! The Go program asked whether the VM is ready, which one that starts, is paused or fails a probe is not either
//! (docs/contract/cloud-controller-manager.md#N11).

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use serde_json::Value;

/// The fields of a VM's status that [`is_stopped`] reads.
pub(crate) const STATUS_FIELDS: [&str; 2] = ["runStrategy", "stateChangeRequests"];

/// Whether nothing runs, and KubeVirt starts nothing by itself. In doubt it is not.
pub(crate) fn is_stopped(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> bool {
    if is_asked_to_start(vm) {
        return false;
    }
    let end = instance.map(end);
    match strategy(vm) {
        "Halted" | "Manual" => end.is_none_or(|end| end.is_some()),
        // KubeVirt starts it once when the strategy is new, and again after a failure
        "RerunOnFailure" => match end {
            Some(end) => end == Some("Succeeded"),
            None => status_field(vm, "runStrategy").and_then(Value::as_str) == Some("RerunOnFailure"),
        },
        "Once" => end.is_some_and(|end| end.is_some()),
        _ => false,
    }
}

/// The phase of an instance that has ended.
pub(crate) fn end(instance: &VirtualMachineInstance) -> Option<&str> {
    let phase = instance.status.as_ref().map(|status| &*status.phase);
    phase.filter(|phase| matches!(*phase, "Succeeded" | "Failed"))
}

/// Everything of the VM that [`is_stopped`] reads.
pub(crate) fn facts(vm: &VirtualMachine) -> (&str, bool, Option<&Value>) {
    (strategy(vm), is_asked_to_start(vm), status_field(vm, "runStrategy"))
}

/// `runStrategy`, or what the older `running` says; KubeVirt takes a VM with neither for a halted one.
fn strategy(vm: &VirtualMachine) -> &str {
    match vm.spec.run_strategy.as_str() {
        "" if vm.spec.rest.get("running").and_then(Value::as_bool) == Some(true) => "Always",
        "" => "Halted",
        strategy => strategy,
    }
}

fn is_asked_to_start(vm: &VirtualMachine) -> bool {
    let requests = status_field(vm, "stateChangeRequests").and_then(Value::as_array);
    requests
        .into_iter()
        .flatten()
        .any(|request| request.get("action").and_then(Value::as_str) == Some("Start"))
}

fn status_field<'a>(vm: &'a VirtualMachine, name: &str) -> Option<&'a Value> {
    vm.status.as_ref()?.rest.get(name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn strategy(name: &str) -> Value {
        json!({"runStrategy": name})
    }

    const NONE: Option<&str> = None;

    // docs/contract/cloud-controller-manager.md#N11
    #[rstest]
    #[case::halted(strategy("Halted"), json!({}), NONE, true)]
    #[case::halted_and_shutting_down(strategy("Halted"), json!({}), Some("Running"), false)]
    #[case::halted_and_ended(strategy("Halted"), json!({}), Some("Succeeded"), true)]
    #[case::not_running(json!({"running": false}), json!({}), NONE, true)]
    #[case::running(json!({"running": true}), json!({}), NONE, false)]
    #[case::neither(json!({}), json!({}), NONE, true)]
    #[case::starting(strategy("Always"), json!({}), NONE, false)]
    #[case::scheduling(strategy("Always"), json!({}), Some("Scheduling"), false)]
    #[case::runs_and_is_not_ready(strategy("Always"), json!({"ready": false}), Some("Running"), false)]
    #[case::started_again(strategy("Always"), json!({}), Some("Failed"), false)]
    #[case::manual(strategy("Manual"), json!({}), NONE, true)]
    #[case::manual_and_asked_to_start(strategy("Manual"), json!({"stateChangeRequests": [{"action": "Start"}]}), NONE, false)]
    #[case::manual_and_asked_to_stop(strategy("Manual"), json!({"stateChangeRequests": [{"action": "Stop"}]}), Some("Running"), false)]
    #[case::manual_and_runs(strategy("Manual"), json!({}), Some("Running"), false)]
    #[case::shut_down_inside(strategy("RerunOnFailure"), json!({}), Some("Succeeded"), true)]
    #[case::rerun_after_failure(strategy("RerunOnFailure"), json!({}), Some("Failed"), false)]
    #[case::rerun_is_new(strategy("RerunOnFailure"), json!({}), NONE, false)]
    #[case::rerun_stays_stopped(strategy("RerunOnFailure"), json!({"runStrategy": "RerunOnFailure"}), NONE, true)]
    #[case::rerun_is_asked(strategy("RerunOnFailure"),
        json!({"runStrategy": "RerunOnFailure", "stateChangeRequests": [{"action": "Start"}]}), NONE, false)]
    #[case::once_is_over(strategy("Once"), json!({}), Some("Failed"), true)]
    #[case::once_begins(strategy("Once"), json!({}), NONE, false)]
    #[case::receives_a_migration(strategy("WaitAsReceiver"), json!({}), NONE, false)]
    fn a_vm_is_stopped_when_nothing_runs_and_kubevirt_starts_nothing(
        #[case] spec: Value,
        #[case] status: Value,
        #[case] phase: Option<&str>,
        #[case] stopped: bool,
    ) {
        let vm = json!({"metadata": {"name": "vm-a"}, "spec": spec, "status": status});
        let instance = phase
            .map(|phase| json!({"metadata": {"name": "vm-a"}, "spec": {}, "status": {"phase": phase}}))
            .map(|json| serde_json::from_value(json).unwrap());
        assert_eq!(is_stopped(&serde_json::from_value(vm).unwrap(), instance.as_ref()), stopped);
    }
}
