//! Whether the machine of a Node runs, by what the host shows of it. Pure.
//!
//! An answer that is missing never counts as a machine that is missing: the taint that follows from it ends Pods and takes
//! their volumes away (docs/contract/csi-driver.md#node-lost).

use harvester_api::{VirtualMachine, VirtualMachineInstance};

/// A Node's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// It runs, or it may.
    Runs,
    /// Nothing of it runs: the sentence says how the host shows it.
    Lost(String),
    /// Nobody can say: the sentence says why.
    Unknown(String),
}

/// What shows that a machine that the host does not have was there once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// The host's watch told its deletion, by its UID, or by its name where that is known to be the Node's machine's.
    pub deleted: bool,
    /// The Node or a volume names it by what only a machine of this host has: the cloud controller manager's provider
    /// ID, a node ID that is not the Node's own name, or the annotation of an attached volume of this guest.
    pub named: bool,
    /// The namespace has machines of other Nodes of this cluster, so it is the right one.
    pub has_others: bool,
}

impl Traces {
    fn prove(self) -> bool {
        self.deleted || self.named && self.has_others
    }
}

/// `machine` names it in sentences.
pub fn state(
    machine: &str,
    vm: Option<&VirtualMachine>,
    vmi: Option<&VirtualMachineInstance>,
    traces: Traces,
) -> Machine {
    let status = vmi.and_then(|vmi| vmi.status.as_ref());
    let phase = status.map_or("", |status| status.phase.as_str());
    let node = status.map_or("", |status| status.node_name.as_str());
    let has_ended = matches!(phase, "Succeeded" | "Failed");
    match (vm, vmi) {
        (None, None) if traces.prove() => Machine::Lost(format!("{machine} is gone")),
        (None, Some(_)) if has_ended && traces.prove() => Machine::Lost(format!("{machine} is gone")),
        (None, None) => Machine::Unknown(format!(
            "there is no {machine}, and nothing proves that there was: if the machine is gone for good, delete the Node; \
             else see that the kubeconfig names the right Harvester and namespace"
        )),
        (Some(_), None) => Machine::Lost(format!("{machine} is stopped and has no instance")),
        (_, Some(_)) if has_ended => {
            let reason = status.and_then(|status| status.rest.get("reason")?.as_str());
            let reason = reason.filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(", {reason}")).unwrap_or_default();
            Machine::Lost(format!("the instance of {machine} has ended ({phase}{reason})"))
        }
        // KubeVirt's word for an instance whose host node does not answer
        (_, Some(_)) if phase == "Unknown" => {
            let node = if node.is_empty() { String::new() } else { format!(" {node}") };
            Machine::Lost(format!("host node{node} of {machine} does not answer"))
        }
        (_, Some(_)) if node.is_empty() && matches!(phase, "" | "Pending" | "Scheduling") => {
            Machine::Lost(format!("the instance of {machine} has no host node yet"))
        }
        _ => Machine::Runs,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const NOTHING: Traces = Traces { deleted: false, named: false, has_others: false };
    const DELETED: Traces = Traces { deleted: true, ..NOTHING };
    const NAMED: Traces = Traces { named: true, ..NOTHING };
    const OTHERS: Traces = Traces { has_others: true, ..NOTHING };
    const PROVED: Traces = Traces { named: true, has_others: true, ..NOTHING };

    // docs/contract/csi-driver.md#node-lost
    #[rstest]
    #[case::runs(true, Some(json!({"phase": "Running", "nodeName": "h1"})), NOTHING, "runs")]
    #[case::is_not_ready(true, Some(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]})), NOTHING, "runs")]
    #[case::starts(true, Some(json!({"phase": "Scheduled", "nodeName": "h1"})), NOTHING, "runs")]
    #[case::is_handed_over(true, Some(json!({"phase": "Scheduling", "nodeName": "h1"})), NOTHING, "runs")]
    #[case::a_phase_of_later_releases(true, Some(json!({"phase": "WaitingForSync"})), NOTHING, "runs")]
    #[case::runs_without_its_machine(false, Some(json!({"phase": "Running"})), PROVED, "runs")]
    #[case::stopped(true, None, NOTHING, "lost: vm-1 is stopped and has no instance")]
    #[case::shut_down(true, Some(json!({"phase": "Succeeded"})), NOTHING, "lost: the instance of vm-1 has ended (Succeeded)")]
    #[case::host_given_up(true, Some(json!({"phase": "Failed", "reason": "NodeUnresponsive"})), NOTHING,
        "lost: the instance of vm-1 has ended (Failed, NodeUnresponsive)")]
    #[case::host_lost(true, Some(json!({"phase": "Unknown", "nodeName": "h1"})), NOTHING,
        "lost: host node h1 of vm-1 does not answer")]
    #[case::finds_no_host(true, Some(json!({"phase": "Scheduling"})), NOTHING, "lost: the instance of vm-1 has no host node yet")]
    #[case::seen_to_be_deleted(false, None, DELETED, "lost: vm-1 is gone")]
    #[case::gone_beside_others(false, None, PROVED, "lost: vm-1 is gone")]
    #[case::gone_and_its_instance_ends(false, Some(json!({"phase": "Failed"})), PROVED, "lost: vm-1 is gone")]
    #[case::perhaps_another_namespace(false, None, NAMED, "unknown")]
    #[case::perhaps_no_machine_of_this_host(false, None, OTHERS, "unknown")]
    #[case::never_seen(false, None, NOTHING, "unknown")]
    fn a_machine_is_lost_when_the_host_shows_that_nothing_of_it_runs(
        #[case] has_machine: bool,
        #[case] status: Option<Value>,
        #[case] traces: Traces,
        #[case] expected: &str,
    ) {
        let vm = json!({"metadata": {"name": "vm-1"}, "spec": {"runStrategy": "Always"}});
        let vm: VirtualMachine = serde_json::from_value(vm).unwrap();
        let vmi = status.map(|status| json!({"metadata": {"name": "vm-1"}, "spec": {}, "status": status}));
        let vmi: Option<VirtualMachineInstance> = vmi.map(|vmi| serde_json::from_value(vmi).unwrap());
        let told = match state("vm-1", has_machine.then_some(&vm), vmi.as_ref(), traces) {
            Machine::Runs => "runs".to_owned(),
            Machine::Lost(why) => format!("lost: {why}"),
            Machine::Unknown(_) => "unknown".to_owned(),
        };
        assert_eq!(told, expected);
    }
}
