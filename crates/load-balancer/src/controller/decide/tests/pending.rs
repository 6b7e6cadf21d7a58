//! Orders that pools have not carried out.

use super::*;
use crate::pool::orders::{Failed, UnderWay, WriteError};

const RETRY: Duration = Duration::from_secs(7);

fn claim(pool: &str, error: Option<WriteError>) -> Pending {
    order(pool, Order::Claim { holder: "shop/web".to_owned(), known: None, family: None }, error)
}

fn release(pool: &str, address: &str, error: Option<WriteError>) -> Pending {
    order(pool, Order::Release { holder: "shop/web".to_owned(), address: address.parse().unwrap() }, error)
}

/// An order that is under way, or that failed.
fn order(pool: &str, order: Order, error: Option<WriteError>) -> Pending {
    let pool = pool.to_owned();
    match error {
        None => Pending { under_way: Some(UnderWay { pool, order, last_error: None }), ..Pending::default() },
        Some(error) => {
            Pending { failed: vec![Failed { pool, order, error, retry_in: RETRY }], ..Pending::default() }
        }
    }
}

fn both(one: Pending, other: Pending) -> Pending {
    let failed = one.failed.into_iter().chain(other.failed).collect();
    Pending { under_way: one.under_way.or(other.under_way), failed }
}

fn failed(is_denied: bool) -> Option<WriteError> {
    Some(WriteError { why: "no answer in time".to_owned(), is_denied })
}

fn with(seen: Seen, pending: Pending) -> Seen {
    Seen { address: SeenAddress { pending, ..seen.address }, ..seen }
}

/// The object asks for another pool, and a listener of it is not served yet.
fn moving() -> Seen {
    serving(&json!({"spec": {"ipPool": "core",
        "listeners": [{"name": "https", "port": 443, "protocol": "TCP", "backendPort": 8443}]}}))
}

/// The pool gives its address to somebody else.
fn lost() -> Seen {
    let mut lost = serving(&json!({"status": {"backendServers": ["192.168.7.11"]}}));
    lost.address.holder = RecordedHolder::SomebodyElse;
    lost.address.recorded.clear();
    lost
}

fn new() -> Seen {
    Seen { object: object("vm", &json!({})), ..seen() }
}

fn ending() -> Seen {
    Seen { object: settled("vm", &deleting()), ..seen() }
}

#[rstest]
#[case::under_way(claim("core", None), &["write slice", "write service"])]
#[case::failed(claim("core", failed(false)), &["write slice", "write service"])]
#[case::refused(claim("core", failed(true)), &["write slice", "write service"])]
#[case::release_under_way(release("lab", "10.0.3.5", None), &["write slice", "write service"])]
#[case::release_failed_in_that_pool(release("core", "10.0.2.5", failed(false)), &["write slice", "write service"])]
fn an_object_that_moves_is_served_while_its_claim_waits(#[case] pending: Pending, #[case] expected: &[&str]) {
    assert_eq!(steps(&with(moving(), pending)), expected);
}

#[rstest]
#[case::none(Pending::default())]
#[case::failed_in_a_pool_that_it_does_not_ask_for_any_more(claim("lab", failed(false)))]
#[case::release_failed_in_another_pool(release("lab", "10.0.3.5", failed(false)))]
fn an_object_that_moves_claims_when_no_order_is_in_the_way(#[case] pending: Pending) {
    assert_eq!(steps(&with(moving(), pending)), ["claim from core"]);
}

// the pool may have given it to another object meanwhile, and the Services of both would announce it
#[rstest]
#[case::under_way(claim("edge", None), &[])]
#[case::failed(claim("edge", failed(false)), &[])]
#[case::denied(claim("edge", failed(true)), &["write object"])]
fn no_service_is_made_for_an_address_that_no_pool_records(
    #[case] pending: Pending,
    #[case] expected: &[&str],
) {
    let mut erased = serving(&json!({"status": {"address": "10.0.1.7"}}));
    erased.address.holder = RecordedHolder::Nobody;
    erased.address.recorded.clear();
    erased.service = None;
    assert_eq!(steps(&with(erased, pending)), expected);
}

#[test]
fn a_pool_that_refused_before_is_waited_for_as_well() {
    let refused = [("edge".to_owned(), Refused::NoSuchPool { pool: "edge".to_owned() })];
    let waits = with(new(), claim("core", failed(true)));
    let waits_for = in_the_way_of_claim(&waits, "core").unwrap().waits_for("", "core", &refused);
    assert_eq!(waits_for, WaitingFor::Selection(vec!["edge".to_owned(), "core".to_owned()]));
}

#[test]
fn a_claim_that_is_sent_again_goes_on_saying_why_the_last_one_failed() {
    let mut sent_again = claim("edge", None);
    sent_again.under_way.as_mut().unwrap().last_error = failed(true);
    let waits = with(lost(), sent_again);
    assert_eq!(reason(&written(&waits)), (false, "PoolNotWritten".to_owned()));
}

#[test]
fn an_object_that_has_sent_no_claim_yet_says_which_release_it_waits_for() {
    let waits = with(lost(), release("core", "10.0.2.5", None));
    let status = written(&waits);
    assert_eq!(reason(&status), (false, "ReleaseUnderWay".to_owned()));
    assert_eq!(
        status["conditions"][0]["message"],
        "waiting until pool core has taken 10.0.2.5 back, then for an address of pool edge"
    );
}

#[rstest]
#[case::under_way(claim("edge", None), "ClaimUnderWay", None)]
#[case::failed(claim("edge", failed(false)), "PoolNotWritten", Some(RETRY))]
#[case::refused(claim("edge", failed(true)), "PoolNotWritten", Some(RETRY))]
fn a_lost_address_is_withdrawn_while_the_claim_of_another_waits(
    #[case] pending: Pending,
    #[case] expected: &str,
    #[case] again: Option<Duration>,
) {
    assert_eq!(steps(&lost()), ["claim from edge"], "the Service may go straight to the new address");
    assert_eq!(decide(&lost()).again, Some(LATE_ANSWER));

    let waits = with(lost(), pending);
    assert_eq!(steps(&waits), ["write slice", "delete service", "write object"]);
    let status = written(&waits);
    for field in ["address", "allocatedAddress", "backendServers"] {
        assert_eq!(status.get(field), None, "{field} of {status}");
    }
    assert_eq!(reason(&status), (false, expected.to_owned()));
    assert_eq!((decide(&waits).again, decide(&waits).events.len()), (again, 1));
}

#[rstest]
#[case::under_way(claim("edge", None), None)]
#[case::failed(claim("edge", failed(false)), Some(RETRY))]
#[case::release_failed(release("edge", "10.0.1.9", failed(false)), Some(RETRY))]
fn a_new_object_is_not_written_before_the_pool_has_answered(
    #[case] pending: Pending,
    #[case] again: Option<Duration>,
) {
    let plan = decide(&with(new(), pending));
    assert_eq!((plan.steps, plan.again), (vec![], again));
}

#[rstest]
#[case::a_new_one(
    new(),
    "fail to reserve an address in pool edge: the pool cannot be written: no answer in time"
)]
#[case::one_that_moves(
    serving(&json!({"spec": {"ipPool": "core"}})),
    "fail to reserve an address in pool core: the pool cannot be written: no answer in time"
)]
fn an_object_whose_claim_the_server_refuses_says_why(#[case] seen: Seen, #[case] expected: &str) {
    let pool = seen.object.as_ref().unwrap().spec.ip_pool.clone();
    let refused = with(seen, claim(&pool, failed(true)));
    assert_eq!(steps(&refused), ["write object"]);
    let status = written(&refused);
    assert_eq!(reason(&status), (false, "PoolNotWritten".to_owned()));
    assert_eq!(status["conditions"][0]["message"], expected);
    assert_eq!(decide(&refused).again, Some(RETRY));
}

// the release fails, waits and is sent again, and the condition must not follow it to and fro
#[rstest]
#[case::waits(release("lab", "10.0.3.5", failed(false)))]
#[case::is_under_way(release("lab", "10.0.3.5", None))]
fn a_release_takes_the_reason_of_a_denied_claim_from_no_condition(#[case] release: Pending) {
    let moving = serving(&json!({"spec": {"ipPool": "core"}}));
    let denied = with(moving.clone(), claim("core", failed(true)));
    let both = with(moving, both(claim("core", failed(true)), release));
    assert_eq!(reason(&written(&denied)), (false, "PoolNotWritten".to_owned()));
    assert_eq!((steps(&both), written(&both)), (steps(&denied), written(&denied)));
}

#[rstest]
#[case::no_order(Pending::default(), &["release 10.0.2.5 of core"], None)]
#[case::under_way(release("core", "10.0.2.5", None), &[], None)]
#[case::failed(release("core", "10.0.2.5", failed(false)), &[], Some(RETRY))]
#[case::failed_there_and_elsewhere(
    both(release("lab", "10.0.3.5", failed(false)), release("core", "10.0.2.6", failed(false))), &[], Some(RETRY))]
// a release of another pool, or one beside a claim that failed, has nothing to wait for
#[case::beside_a_release_that_failed(
    release("lab", "10.0.3.5", failed(false)), &["release 10.0.2.5 of core"], Some(RETRY))]
#[case::beside_a_claim_that_failed(claim("lab", failed(false)), &["release 10.0.2.5 of core"], Some(RETRY))]
#[case::beside_a_claim_under_way(claim("lab", None), &[], None)]
fn a_second_record_goes_back_when_no_order_is_in_the_way(
    #[case] pending: Pending,
    #[case] expected: &[&str],
    #[case] again: Option<Duration>,
) {
    let seen = recorded(serving(&json!({})), &[("core", "10.0.2.5"), ("edge", "10.0.1.7")]);
    let seen = with(seen, pending);
    assert_eq!(
        (steps(&seen), decide(&seen).again),
        (expected.iter().map(|&step| step.to_owned()).collect(), again)
    );
}

#[rstest]
#[case::its_release_is_under_way(recorded(ending(), &[("edge", "10.0.1.7")]), release("edge", "10.0.1.7", None), &[])]
#[case::its_release_failed(
    recorded(ending(), &[("edge", "10.0.1.7")]), release("edge", "10.0.1.7", failed(false)), &[])]
#[case::a_claim_is_under_way_that_may_record_an_address(ending(), claim("edge", None), &[])]
#[case::its_claim_failed(ending(), claim("edge", failed(false)), &["write object"])]
#[case::its_service_is_there(
    serving(&deleting()), release("core", "10.0.2.5", failed(false)), &["write slice", "delete service"])]
#[case::gone(recorded(seen(), &[("edge", "10.0.1.7")]), release("edge", "10.0.1.7", None), &[])]
#[case::gone_with_an_orphan(
    Seen { object: None, service: service(None, "10.0.1.7", "10.0.1.7"), ..serving(&json!({})) },
    release("core", "10.0.2.5", None), &["delete orphan"])]
fn an_object_ends_as_far_as_it_can_while_an_order_is_in_the_way(
    #[case] seen: Seen,
    #[case] pending: Pending,
    #[case] expected: &[&str],
) {
    assert_eq!(steps(&with(seen, pending)), expected);
}

// the release would take the address from an object that shows it by then
#[rstest]
#[case::under_way(None)]
#[case::failed(failed(false))]
fn nobody_counts_on_a_record_that_is_being_given_back(#[case] error: Option<WriteError>) {
    let made_again =
        with(recorded(new(), &[("edge", "10.0.1.7")]), release("edge", "10.0.1.7", error.clone()));
    assert_eq!(steps(&made_again), [""; 0]);
    let records = [("core", "10.0.2.5"), ("edge", "10.0.1.7")];
    let back_again = recorded(serving(&json!({"spec": {"ipPool": "core"}})), &records);
    assert_eq!(steps(&with(back_again, release("core", "10.0.2.5", error))), [""; 0], "it stays where it is");
}
