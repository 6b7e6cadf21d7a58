use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::seen::Objects;

const LIMIT: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(60);

fn vm(extra: &Value) -> Objects<VirtualMachine> {
    let mut vm =
        json!({"metadata": {"name": "demo-1", "uid": "vm"}, "spec": {"runStrategy": "RerunOnFailure"}});
    for (key, value) in extra.as_object().unwrap() {
        vm["metadata"][key] = value.clone();
    }
    Objects::these(vec![serde_json::from_value(vm).unwrap()])
}

fn instance(phase: &str, address: &str) -> Objects<VirtualMachineInstance> {
    let instance = json!({"metadata": {"name": "demo-1", "uid": "one"}, "spec": {},
        "status": {"phase": phase, "interfaces": [{"name": "nic-0", "ipAddress": address}]}});
    Objects::these(vec![serde_json::from_value(instance).unwrap()])
}

fn owned(vm: &str) -> Objects<VirtualMachineInstance> {
    let owner =
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo-1", "uid": vm});
    let instance = json!({"metadata": {"name": "demo-1", "uid": "one", "ownerReferences": [owner]}, "spec": {},
        "status": {"phase": "Running", "interfaces": [{"name": "nic-0", "ipAddress": "192.0.2.9"}]}});
    Objects::these(vec![serde_json::from_value(instance).unwrap()])
}

fn up() -> Goal {
    Goal::Up { not: None }
}

fn gone() -> Goal {
    Goal::Gone { uid: "vm".into() }
}

fn since(total: Duration) -> Elapsed {
    Elapsed { total, ran_after: None }
}

const WAIT: Step = Step::Wait { until: GRACE, investigate: false, look: false };

fn done(address: &str) -> Step {
    Step::Done(Some(address.parse().unwrap()))
}

#[rstest]
#[case::nothing_seen(up(), Seen::default(), SOON, WAIT)]
#[case::starting(up(), Seen { vm: vm(&json!({})), instance: instance("Scheduling", ""), ..Seen::default() }, SOON, WAIT)]
#[case::no_address_yet(up(), Seen { vm: vm(&json!({})), instance: instance("Running", ""), ..Seen::default() }, SOON, WAIT)]
#[case::long_without_address(up(), Seen { vm: vm(&json!({})), instance: instance("Running", ""), ..Seen::default() }, LATER,
    Step::Wait { until: LIMIT, investigate: true, look: false })]
// a watch that died without a word
#[case::nothing_heard(up(), Seen::default(), LATER, Step::Wait { until: LIMIT, investigate: true, look: true })]
#[case::nothing_heard_of_the_instance(up(), Seen { vm: vm(&json!({})), ..Seen::default() }, LATER,
    Step::Wait { until: LIMIT, investigate: true, look: true })]
#[case::no_instance_is_known(up(), Seen { vm: vm(&json!({})), instance: Objects::these(vec![]), ..Seen::default() }, LATER,
    Step::Wait { until: LIMIT, investigate: true, look: false })]
#[case::nothing_heard_of_an_end(gone(), Seen::default(), LATER, Step::Wait { until: LIMIT, investigate: false, look: true })]
#[case::an_end_has_no_instance(gone(), Seen { vm: vm(&json!({})), ..Seen::default() }, LATER,
    Step::Wait { until: LIMIT, investigate: false, look: false })]
#[case::up(up(), Seen { vm: vm(&json!({})), instance: instance("Running", "192.0.2.9"), ..Seen::default() }, SOON,
    done("192.0.2.9"))]
#[case::address_of_the_last_run(up(), Seen { vm: vm(&json!({})), instance: instance("Succeeded", "192.0.2.9"), ..Seen::default() },
    SOON, WAIT)]
#[case::old_instance(Goal::Up { not: Some("one".into()) },
    Seen { vm: vm(&json!({})), instance: instance("Running", "192.0.2.9"), ..Seen::default() }, SOON, WAIT)]
#[case::new_instance(Goal::Up { not: Some("zero".into()) },
    Seen { vm: vm(&json!({})), instance: instance("Running", "192.0.2.9"), ..Seen::default() }, SOON, done("192.0.2.9"))]
#[case::instance_of_an_earlier_vm(up(), Seen { vm: vm(&json!({})), instance: owned("older"), ..Seen::default() }, SOON, WAIT)]
#[case::instance_of_this_vm(up(), Seen { vm: vm(&json!({})), instance: owned("vm"), ..Seen::default() }, SOON, done("192.0.2.9"))]
#[case::whose_instance_is_not_known_yet(up(), Seen { instance: owned("vm"), ..Seen::default() }, SOON, WAIT)]
#[case::still_runs(Goal::Stopped, Seen { instance: instance("Running", ""), ..Seen::default() }, SOON, WAIT)]
#[case::stopped(Goal::Stopped, Seen { instance: Objects::these(vec![]), ..Seen::default() }, SOON, Step::Done(None))]
// docs/contract/node-driver.md#B27
#[case::lingers(Goal::Stopped, Seen { instance: instance("Succeeded", ""), ..Seen::default() }, SOON, Step::Done(None))]
#[case::unknown_is_not_stopped(Goal::Stopped, Seen::default(), SOON, WAIT)]
#[case::unknown_is_not_gone(gone(), Seen::default(), SOON, WAIT)]
#[case::there(gone(), Seen { vm: vm(&json!({})), ..Seen::default() }, SOON, WAIT)]
#[case::gone(gone(), Seen { vm: Objects::these(vec![]), ..Seen::default() }, SOON, Step::Done(None))]
#[case::another_of_that_name(gone(), Seen { vm: vm(&json!({"uid": "next"})), ..Seen::default() }, SOON, Step::Done(None))]
fn what_was_seen_decides(
    #[case] goal: Goal,
    #[case] seen: Seen,
    #[case] elapsed: Duration,
    #[case] expected: Step,
) {
    assert_eq!(decide(&goal, &seen, "shop/demo-1", since(elapsed), LIMIT), expected);
}

#[rstest]
#[case::deleted(up(), Seen { vm: Objects::these(vec![]), ..Seen::default() }, SOON, "was deleted in the meantime")]
#[case::agent(up(), Seen { vm: vm(&json!({})), instance: instance("Running", ""), ..Seen::default() }, LIMIT,
    "VM shop/demo-1 is not up after 600 s of waiting for it to run: guest agent missing")]
#[case::does_not_stop(Goal::Stopped, Seen { instance: instance("Running", ""), ..Seen::default() }, LIMIT, "still runs after 600 s")]
#[case::held(gone(), Seen { vm: vm(&json!({"finalizers": ["a/b"]})), ..Seen::default() }, LIMIT, "still exists after 600 s: held by a/b")]
#[case::not_known(gone(), Seen { error: Some("no route".into()), ..Seen::default() }, LIMIT, "is unknown after 600 s: no route")]
fn an_end_without_success_says_why(
    #[case] goal: Goal,
    #[case] seen: Seen,
    #[case] elapsed: Duration,
    #[case] part: &str,
) {
    let cause = match decide(&goal, &seen, "shop/demo-1", since(elapsed), LIMIT) {
        Step::Failed(cause) if elapsed < LIMIT => cause,
        Step::Over(cause) if elapsed >= LIMIT => cause,
        step => panic!("{step:?}"),
    };
    assert!(cause.contains(part), "{cause}");
    assert_eq!(cause, harvester::mask_not_found(&cause), "never the words for an absent machine");
}

#[rstest]
#[case::runs_in_time(590, Some(590), Step::Wait { until: Duration::from_secs(1190), investigate: true, look: false })]
#[case::just_before_its_end(1189, Some(590), Step::Wait { until: Duration::from_secs(1190), investigate: true, look: false })]
fn a_vm_that_runs_has_the_whole_limit_for_its_address(
    #[case] total: u64,
    #[case] ran_after: Option<u64>,
    #[case] expected: Step,
) {
    let seen = Seen { vm: vm(&json!({})), instance: instance("Running", ""), ..Seen::default() };
    let elapsed =
        Elapsed { total: Duration::from_secs(total), ran_after: ran_after.map(Duration::from_secs) };
    assert_eq!(decide(&up(), &seen, "shop/demo-1", elapsed, LIMIT), expected);
    let elapsed = Elapsed { total: Duration::from_secs(1190), ..elapsed };
    let Step::Over(cause) = decide(&up(), &seen, "shop/demo-1", elapsed, LIMIT) else { panic!("not over") };
    assert!(
        cause.starts_with("VM shop/demo-1 is not up after 600 s of waiting for its address: "),
        "{cause}"
    );
}
