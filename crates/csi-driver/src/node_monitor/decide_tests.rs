use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn node(ready: &str, taints: &Value, labels: &Value) -> Node {
    let conditions = match ready {
        "" => json!([{"type": "MemoryPressure", "status": "False"}]),
        ready => json!([{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]),
    };
    let node = json!({"metadata": {"name": "worker-1", "uid": "1", "labels": labels},
        "spec": {"taints": taints}, "status": {"conditions": conditions}});
    serde_json::from_value(node).unwrap()
}

fn taint(value: Option<&str>) -> Value {
    json!([{"key": "other", "effect": "NoSchedule"}, {"key": OUT_OF_SERVICE, "value": value, "effect": NO_EXECUTE}])
}

fn lost() -> Machine {
    Machine::Lost("VirtualMachine team-a/worker-1 on the host is gone".to_owned())
}

fn unknown() -> Machine {
    Machine::Unknown("the host is away".to_owned())
}

/// Not ready for so many seconds, and lost for so many of them.
fn plan(node: &Node, machine: &Machine, unready_for: u64, lost_for: u64) -> Plan {
    decide(&Seen {
        node,
        machine,
        unready_for: Duration::from_secs(unready_for),
        lost_for: Duration::from_secs(lost_for),
        may_write: true,
        role: "ClusterRole harvester-csi-driver",
    })
}

fn told(plan: &Plan) -> String {
    let Plan { step, event, again } = plan;
    let step = step.map(|step| format!("{step:?}"));
    let event = event.as_ref().map(|event| event.reason.to_owned());
    let again = again.map(|again| format!("again in {}", again.as_secs()));
    [step, event, again].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

// docs/contract/csi-driver.md#node-lost
#[rstest]
#[case::well("True", Machine::Runs, 0, 0, "")]
#[case::well_while_the_host_is_away("True", unknown(), 0, 0, "")]
#[case::ready_although_its_machine_is_stopped("True", lost(), 0, 0, "")]
#[case::kubelet_is_ill("False", Machine::Runs, 9999, 0, "")]
#[case::silent_while_its_machine_runs("Unknown", Machine::Runs, 9999, 0, "")]
#[case::the_first_look("Unknown", lost(), 0, 0, "again in 60")]
#[case::unready_for_long_and_lost_just_now("Unknown", lost(), 9999, 0, "again in 60")]
#[case::a_second_too_early("Unknown", lost(), 59, 59, "again in 1")]
#[case::lost("Unknown", lost(), 60, 60, "Taint")]
#[case::lost_after_kubelet_said_so("False", lost(), 60, 60, "Taint")]
#[case::an_error_is_not_gone("Unknown", unknown(), 59, 0, "again in 1")]
#[case::an_error_is_never_gone("Unknown", unknown(), 9999, 0, "MachineUnknown")]
#[case::without_conditions("", lost(), 9999, 9999, "")]
fn a_node_is_tainted_after_a_minute_of_silence_in_which_its_machine_did_not_run(
    #[case] ready: &str,
    #[case] machine: Machine,
    #[case] unready_for: u64,
    #[case] lost_for: u64,
    #[case] expected: &str,
) {
    let node = node(ready, &json!([]), &json!({}));
    assert_eq!(told(&plan(&node, &machine, unready_for, lost_for)), expected);
}

#[rstest]
#[case::ours_and_back("True", Some(CSI_DRIVER), Machine::Runs, "Untaint")]
#[case::ours_and_back_while_the_host_is_away("True", Some(CSI_DRIVER), unknown(), "Untaint")]
#[case::ours_and_lost("Unknown", Some(CSI_DRIVER), lost(), "")]
#[case::ours_and_its_machine_starts("Unknown", Some(CSI_DRIVER), Machine::Runs, "")]
#[case::of_a_user("True", Some("nodeshutdown"), Machine::Runs, "NodeStaysOutOfService")]
#[case::of_a_user_or_the_go_program("True", None, Machine::Runs, "NodeStaysOutOfService")]
#[case::of_a_user_and_lost("Unknown", Some("nodeshutdown"), lost(), "")]
#[case::without_conditions("", Some(CSI_DRIVER), Machine::Runs, "")]
fn only_our_own_taint_is_removed_and_only_from_a_node_that_is_ready(
    #[case] ready: &str,
    #[case] value: Option<&str>,
    #[case] machine: Machine,
    #[case] expected: &str,
) {
    let node = node(ready, &taint(value), &json!({}));
    assert_eq!(told(&plan(&node, &machine, 9999, 9999)), expected);
}

#[test]
fn a_node_that_is_no_machine_of_harvester_is_left_alone() {
    let labels = json!({labels::EXTERNALLY_MANAGED: "true"});
    assert_eq!(plan(&node("Unknown", &json!([]), &labels), &lost(), 9999, 9999), Plan::default());
}

#[test]
fn a_node_that_is_being_deleted_is_left_alone() {
    let mut leaving = serde_json::to_value(node("Unknown", &json!([]), &json!({}))).unwrap();
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let leaving = serde_json::from_value(leaving).unwrap();
    assert_eq!(plan(&leaving, &lost(), 9999, 9999), Plan::default());
}

#[rstest]
#[case("Unknown", json!([]))]
#[case("True", taint(Some(CSI_DRIVER)))]
fn a_missing_right_is_told_with_verb_resource_and_role(#[case] ready: &str, #[case] taints: Value) {
    let (node, machine) = (node(ready, &taints, &json!({})), lost());
    let role = "ClusterRole harvester-csi-driver";
    let times = (Duration::from_secs(60), Duration::from_secs(60));
    let seen = Seen {
        node: &node,
        machine: &machine,
        unready_for: times.0,
        lost_for: times.1,
        may_write: false,
        role,
    };
    let Plan { step, event, .. } = decide(&seen);
    let message = event.unwrap().message;
    assert_eq!(step, None);
    assert!(message.contains("update nodes") && message.contains(role), "{message}");
}

#[test]
fn what_is_said_names_the_cause_and_the_end_of_the_taint() {
    let PendingEvent { reason, message, .. } = done(Step::Taint, "worker-1", &lost());
    assert_eq!(reason, "NodeOutOfService");
    assert!(message.contains("VirtualMachine team-a/worker-1 on the host is gone"), "{message}");
    assert!(message.contains("ready again"), "{message}");
}

#[test]
fn a_spell_ends_when_the_node_was_otherwise_in_between() {
    let silent = node("Unknown", &json!([]), &json!({}));
    let mut again = serde_json::to_value(&silent).unwrap();
    again["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:05:00Z".into();
    assert_ne!(spell(&silent), spell(&serde_json::from_value(again).unwrap()));
    assert_eq!(spell(&silent), spell(&silent.clone()));
}
