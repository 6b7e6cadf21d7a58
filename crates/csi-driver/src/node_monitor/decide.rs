//! What is to be done about a Node. Pure: times are those of the process's own clock.

use std::time::Duration;

use controller_kit::PendingEvent;
use harvester_api::{labels, names::CSI_DRIVER};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};

use super::machine::Machine;

/// Kubernetes takes this taint for the word that nothing runs on the Node any more: it removes the Pods and has their
/// volumes detached, whether kubelet answers or not.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const NO_EXECUTE: &str = "NoExecute";
/// For so long the Node has to be not ready and its machine not to run, without a break. The Go program taints at the
/// first look (docs/contract/csi-driver.md#node-lost).
pub const LOST_FOR: Duration = Duration::from_secs(60);

/// A Node, and for how long it has been so.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub node: &'a Node,
    pub machine: &'a Machine,
    /// Not ready without a break, whatever its machine did.
    pub unready_for: Duration,
    /// Not ready and its machine lost, without a break.
    pub lost_for: Duration,
    /// The role lets us write Nodes, as far as we know.
    pub may_write: bool,
    /// The role that should.
    pub role: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Taint,
    Untaint,
}

/// A write, an Event, and when to look again where nothing changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub step: Option<Step>,
    pub event: Option<PendingEvent>,
    pub again: Option<Duration>,
}

pub fn decide(seen: &Seen<'_>) -> Plan {
    let Seen { node, machine, unready_for, lost_for, may_write, role } = *seen;
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let step = match readiness(node) {
        _ if node.metadata.deletion_timestamp.is_some() => None,
        Readiness::Unsaid => None,
        Readiness::Ready if has_own_taint(node) => Some(Step::Untaint),
        Readiness::Ready if has_taint(node) => {
            let message = format!(
                "node {name} is ready and has the taint {OUT_OF_SERVICE}, which this driver did not set: no Pods come to \
                 it before you remove the taint"
            );
            return Plan {
                event: Some(PendingEvent::warning("NodeStaysOutOfService", message)),
                ..Plan::default()
            };
        }
        Readiness::Ready => None,
        Readiness::Unready if has_taint(node) || is_others_affair(node) => None,
        Readiness::Unready => match machine {
            Machine::Runs => None,
            Machine::Unknown(_) if unready_for < LOST_FOR => {
                return Plan { again: Some(LOST_FOR - unready_for), ..Plan::default() };
            }
            Machine::Unknown(why) => {
                let message = format!(
                    "node {name} is not ready, and whether its machine runs is not known: {why}. Its Pods and volumes \
                     stay where they are; if nothing of the machine runs, set the taint {OUT_OF_SERVICE} by hand"
                );
                return Plan {
                    event: Some(PendingEvent::warning("MachineUnknown", message)),
                    ..Plan::default()
                };
            }
            Machine::Lost(_) if lost_for < LOST_FOR => {
                return Plan { again: Some(LOST_FOR - lost_for), ..Plan::default() };
            }
            Machine::Lost(_) => Some(Step::Taint),
        },
    };
    match step {
        Some(step) if !may_write => {
            let doing = match step {
                Step::Taint => "is to get",
                Step::Untaint => "is to lose",
            };
            let message = format!(
                "node {name} {doing} the taint {OUT_OF_SERVICE}, and the right to update nodes is missing: grant it by \
                 {role}; it is asked for every 30 s"
            );
            Plan { event: Some(PendingEvent::warning("TaintRefused", message)), ..Plan::default() }
        }
        step => Plan { step, ..Plan::default() },
    }
}

/// The Event for a step that was done.
pub fn done(step: Step, node: &str, machine: &Machine) -> PendingEvent {
    match (step, machine) {
        (Step::Taint, Machine::Lost(why)) => PendingEvent::warning(
            "NodeOutOfService",
            format!(
                "node {node} has not been ready for {} s, and {why}: Kubernetes removes its Pods and detaches their \
                 volumes. The taint {OUT_OF_SERVICE} goes when the node is ready again",
                LOST_FOR.as_secs()
            ),
        ),
        _ => PendingEvent::normal(
            "NodeInService",
            format!("node {node} is ready again: the taint {OUT_OF_SERVICE} is removed"),
        ),
    }
}

/// Whether the Node says that it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Ready,
    /// Kubelet says that it is not, or is silent.
    Unready,
    /// A Node that has just been created has no conditions.
    Unsaid,
}

fn readiness(node: &Node) -> Readiness {
    match condition(node).map(|condition| condition.status.as_str()) {
        Some("True") => Readiness::Ready,
        Some(_) => Readiness::Unready,
        None => Readiness::Unsaid,
    }
}

/// Whether kubelet says that the Node is not ready, or is silent.
pub fn is_unready(node: &Node) -> bool {
    readiness(node) == Readiness::Unready
}

/// The condition `Ready`, if the Node has one.
fn condition(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

/// Since when the Node is as it is, in the API server's words: two equal ones mean that it was so all the time between.
pub fn spell(node: &Node) -> String {
    let since = condition(node).map(|condition| (&condition.status, &condition.last_transition_time));
    format!("{:?} {since:?}", node.metadata.uid)
}

/// Whether the Node is no machine of Harvester by the word of its administrator.
fn is_others_affair(node: &Node) -> bool {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(labels::EXTERNALLY_MANAGED));
    label.is_some_and(|value| value == "true")
}

/// The value tells our taint from those of people and of the Go program, which have others or none.
pub fn own_taint() -> Taint {
    Taint {
        key: OUT_OF_SERVICE.to_owned(),
        value: Some(CSI_DRIVER.to_owned()),
        effect: NO_EXECUTE.to_owned(),
        ..Taint::default()
    }
}

pub fn is_own(taint: &Taint) -> bool {
    taint.key == OUT_OF_SERVICE && taint.value.as_deref() == Some(CSI_DRIVER)
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

pub fn has_own_taint(node: &Node) -> bool {
    taints(node).iter().any(is_own)
}

/// Whether the Node has the taint, whoever set it.
pub fn has_taint(node: &Node) -> bool {
    taints(node).iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
