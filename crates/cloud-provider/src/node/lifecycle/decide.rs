//! The decision about the life of one Node.

use controller_kit::PendingEvent;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;

use crate::InstanceState;

/// Keeps pods away from a Node whose instance is stopped, and tells Kubernetes that its volumes are no longer in use.
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const NO_SCHEDULE: &str = "NoSchedule";

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// `spec.taints`, the whole list.
    Taint(Vec<Taint>),
    Delete,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) step: Option<Step>,
    /// Recorded before the step.
    pub(super) event: Option<PendingEvent>,
}

/// `state` is asked only about a Node that it can change something about. `role` is the one that grants `nodes: delete`,
/// for people.
pub(super) fn decide(
    node: &Node,
    state: impl FnOnce() -> InstanceState,
    may_delete: bool,
    role: &str,
) -> Plan {
    let tainted = taints(node).iter().any(is_shutdown);
    let ready = is_ready(node);
    if node.metadata.deletion_timestamp.is_some() || (ready && !tainted) {
        return Plan::default();
    }
    let step = |step| Plan { step: Some(step), event: None };
    let name = node.name_any();
    match state() {
        InstanceState::Foreign => Plan::default(),
        _ if ready => {
            step(Step::Taint(taints(node).iter().filter(|taint| !is_shutdown(taint)).cloned().collect()))
        }
        InstanceState::Stopped if !tainted => {
            let shutdown = Taint { key: SHUTDOWN.into(), effect: NO_SCHEDULE.into(), ..Taint::default() };
            step(Step::Taint(taints(node).iter().cloned().chain([shutdown]).collect()))
        }
        InstanceState::Gone(why) if may_delete => {
            let event = PendingEvent::normal("DeletingNode", format!("node {name} is removed: {why}"));
            Plan { step: Some(Step::Delete), event: Some(event) }
        }
        InstanceState::Gone(why) => Plan { step: None, event: Some(not_allowed(&name, &why, role)) },
        InstanceState::Doubtful(why) => {
            Plan { step: None, event: Some(PendingEvent::warning(why.reason, why.message)) }
        }
        InstanceState::Running | InstanceState::Stopped | InstanceState::Unknown => Plan::default(),
    }
}

/// The role does not let us delete the Node.
fn not_allowed(node: &str, why: &str, role: &str) -> PendingEvent {
    let message = format!(
        "node {node} stays: {why}, but {role} does not grant verb delete on resource nodes. Grant it, and the node goes \
         within a minute, or delete the node"
    );
    PendingEvent::warning("DeletingNodeFailed", message)
}

/// A Node without a condition `Ready` has not been heard of.
pub(super) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn is_shutdown(taint: &Taint) -> bool {
    taint.key == SHUTDOWN && taint.effect == NO_SCHEDULE
}

#[cfg(test)]
mod tests {
    use controller_kit::Explanation;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const ROLE: &str = "the role ccm";

    /// A Node with another taint, by the status of its condition `Ready`; an empty one for none.
    fn node(ready: &str, tainted: bool) -> Node {
        let mut taints = vec![json!({"key": "dedicated", "effect": "NoSchedule"})];
        if tainted {
            taints.push(json!({"key": SHUTDOWN, "effect": "NoSchedule"}));
        }
        let mut conditions = vec![json!({"type": "DiskPressure", "status": "True"})];
        if !ready.is_empty() {
            conditions.push(json!({"type": "Ready", "status": ready}));
        }
        let json = json!({"metadata": {"name": "worker-1"}, "spec": {"taints": taints},
            "status": {"conditions": conditions}});
        serde_json::from_value(json).unwrap()
    }

    fn gone() -> InstanceState {
        InstanceState::Gone("its VM 7 was deleted".into())
    }

    fn doubtful() -> InstanceState {
        InstanceState::Doubtful(Explanation::new("NodeKept", "no VM of any node is there"))
    }

    /// The step as words: taints by key, or `delete`.
    fn step(plan: &Plan) -> String {
        match &plan.step {
            None => String::new(),
            Some(Step::Delete) => "delete".into(),
            Some(Step::Taint(taints)) => {
                taints.iter().map(|taint| taint.key.rsplit('/').next().unwrap()).collect::<Vec<_>>().join(" ")
            }
        }
    }

    // docs/contract/cloud-controller-manager.md#18.5, and #N11: a Node that is not ready is none that is stopped
    #[rstest]
    #[case::runs("Unknown", false, InstanceState::Running, "", None)]
    #[case::stopped("Unknown", false, InstanceState::Stopped, "dedicated shutdown", None)]
    #[case::stopped_and_says_so("False", false, InstanceState::Stopped, "dedicated shutdown", None)]
    #[case::stopped_and_never_heard_of("", false, InstanceState::Stopped, "dedicated shutdown", None)]
    #[case::stopped_and_tainted("Unknown", true, InstanceState::Stopped, "", None)]
    #[case::starts_again("Unknown", true, InstanceState::Running, "", None)]
    #[case::is_back("True", true, InstanceState::Running, "dedicated", None)]
    #[case::is_back_while_the_cloud_is_away("True", true, InstanceState::Unknown, "dedicated", None)]
    #[case::gone("Unknown", true, gone(), "delete", Some("DeletingNode"))]
    #[case::gone_and_still_ready("True", false, gone(), "", None)]
    #[case::doubtful("Unknown", false, doubtful(), "", Some("NodeKept"))]
    #[case::cannot_tell("Unknown", false, InstanceState::Unknown, "", None)]
    #[case::foreign("Unknown", false, InstanceState::Foreign, "", None)]
    #[case::foreign_and_tainted_by_its_owner("True", true, InstanceState::Foreign, "", None)]
    fn a_node_follows_its_instance(
        #[case] ready: &str,
        #[case] tainted: bool,
        #[case] state: InstanceState,
        #[case] expected: &str,
        #[case] reason: Option<&str>,
    ) {
        let plan = decide(&node(ready, tainted), || state, true, ROLE);
        assert_eq!((&*step(&plan), plan.event.map(|event| event.reason)), (expected, reason));
    }

    // docs/contract/cloud-controller-manager.md#C1
    #[test]
    fn a_role_without_the_right_is_told_with_verb_resource_and_role() {
        let plan = decide(&node("Unknown", false), gone, false, ROLE);
        let event = plan.event.unwrap();
        assert_eq!((plan.step, event.reason), (None, "DeletingNodeFailed"));
        assert_eq!(
            event.message,
            "node worker-1 stays: its VM 7 was deleted, but the role ccm does not grant verb delete on resource nodes. \
             Grant it, and the node goes within a minute, or delete the node"
        );
    }

    // docs/contract/cloud-controller-manager.md#N12
    #[test]
    fn the_cloud_is_not_asked_about_a_ready_node() {
        let asked = || panic!("nobody asks");
        assert_eq!(decide(&node("True", false), asked, true, ROLE), Plan::default());
        let mut going = node("Unknown", false);
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(decide(&going, asked, true, ROLE), Plan::default());
    }
}
