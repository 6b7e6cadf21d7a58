use rstest::rstest;

use super::*;

const IGNORE: (&str, &str) = ("cloud.example/ignore", "true");

fn set(pairs: &[(&str, &str)]) -> Annotations {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned()))).collect()
}

fn unset(keys: &[&str]) -> Annotations {
    keys.iter().map(|key| ((*key).to_owned(), None)).collect()
}

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn ip(text: &str) -> Vec<IngressAddress> {
    vec![IngressAddress::parse(text)]
}

/// A state, and whether the cloud has a write for it.
type State = (LoadBalancerState, bool);

const ABSENT: State = (LoadBalancerState::Absent, true);
const DELETING: State = (LoadBalancerState::Deleting, false);

fn present(in_step: bool, address: Option<&str>) -> State {
    (LoadBalancerState::Present { addresses: address.map(ip).unwrap_or_default() }, !in_step)
}

fn unknown(why: Option<&str>) -> State {
    (LoadBalancerState::Unknown(why.map(str::to_owned)), false)
}

/// A Service that wants a load balancer whose address is handed over by annotation.
fn wanted((load_balancer, has_write): State) -> Seen {
    Seen { wanted: true, has_write, view: View { load_balancer, ..View::default() }, ..Seen::default() }
}

/// A Service that was served and is being deleted.
fn leaving(state: State) -> Seen {
    Seen { wanted: false, deleting: true, has_finalizer: true, has_write: false, ..wanted(state) }
}

fn with(seen: Seen, change: impl FnOnce(&mut Seen)) -> Seen {
    let mut seen = seen;
    change(&mut seen);
    seen
}

fn prepare(add_finalizer: bool, pairs: &[(&str, &str)]) -> Step {
    Step::Prepare { add_finalizer, annotations: set(pairs), labels: Labels::new() }
}

fn release(keys: &[&str]) -> Step {
    Step::Release { annotations: unset(keys), labels: Labels::new() }
}

fn has_finalizer(seen: &mut Seen) {
    seen.has_finalizer = true;
}

/// The controller publishes the address itself, and an annotation must precede that.
fn publishing(seen: &mut Seen) {
    seen.view.annotations = set(&[IGNORE]);
    seen.view.publish = Publish::Addresses(ip("10.0.0.9"));
    seen.view.removal = Removal::Foreground;
}

#[rstest]
#[case::new(wanted(ABSENT), vec![prepare(true, &[]), Step::Apply])]
#[case::finalizer_and_annotation_in_one_patch(
    with(wanted(ABSENT), publishing), vec![prepare(true, &[IGNORE]), Step::Apply])]
#[case::vanished_in_the_cloud(with(wanted(ABSENT), has_finalizer), vec![Step::Apply])]
#[case::waiting(with(wanted(present(true, None)), has_finalizer), vec![])]
#[case::drifted(with(wanted(present(false, None)), has_finalizer), vec![Step::Apply])]
#[case::taken_over(wanted(present(true, None)), vec![prepare(true, &[])])]
#[case::address_by_annotation(
    with(wanted(present(true, Some("10.0.0.9"))), |seen| {
        has_finalizer(seen);
        seen.view.annotations = set(&[("vip", "10.0.0.9")]);
    }),
    vec![prepare(false, &[("vip", "10.0.0.9")])])]
#[case::settled(
    with(wanted(present(true, Some("10.0.0.9"))), |seen| {
        has_finalizer(seen);
        seen.view.annotations = set(&[("vip", "10.0.0.9")]);
        seen.annotations = annotations(&[("vip", "10.0.0.9"), ("foreign", "stays")]);
        seen.published = ip("10.0.0.7");
    }),
    vec![])]
#[case::no_status_before_the_annotation_is_seen(
    with(wanted(present(true, Some("10.0.0.9"))), |seen| { has_finalizer(seen); publishing(seen); }),
    vec![prepare(false, &[IGNORE])])]
#[case::published_by_us(
    with(wanted(present(true, Some("10.0.0.9"))), |seen| {
        has_finalizer(seen);
        publishing(seen);
        seen.annotations = annotations(&[IGNORE]);
    }),
    vec![Step::Publish(ip("10.0.0.9"))])]
#[case::follows_the_address(
    with(wanted(present(true, Some("10.0.0.9"))), |seen| {
        has_finalizer(seen);
        publishing(seen);
        seen.annotations = annotations(&[IGNORE]);
        seen.published = ip("10.0.0.7");
    }),
    vec![Step::Publish(ip("10.0.0.9"))])]
#[case::both_families(
    with(wanted(present(true, Some("10.0.0.9"))), |seen| {
        has_finalizer(seen);
        seen.view.publish = Publish::Addresses([ip("10.0.0.9"), ip("fd00::9")].concat());
        seen.published = ip("10.0.0.9");
    }),
    vec![Step::Publish([ip("10.0.0.9"), ip("fd00::9")].concat())])]
#[case::taken_back(
    with(wanted(present(false, None)), |seen| {
        has_finalizer(seen);
        seen.view.annotations = unset(&["vip"]);
        seen.view.publish = Publish::Withdrawn;
        seen.annotations = annotations(&[("vip", "10.0.0.9")]);
        seen.published = ip("10.0.0.9");
    }),
    vec![Step::Prepare { add_finalizer: false, annotations: unset(&["vip"]), labels: Labels::new() }, Step::Unpublish,
        Step::Apply])]
#[case::taken_back_before_one_is_made(
    with(wanted((LoadBalancerState::Absent, false)), |seen| {
        has_finalizer(seen);
        seen.view.publish = Publish::Withdrawn;
        seen.published = ip("10.0.0.9");
    }),
    vec![Step::Unpublish])]
#[case::taken_back_and_one_is_made_again(
    with(wanted(ABSENT), |seen| {
        has_finalizer(seen);
        seen.view.annotations = unset(&["vip"]);
        seen.view.publish = Publish::Withdrawn;
        seen.annotations = annotations(&[("vip", "10.0.0.9")]);
        seen.published = ip("10.0.0.9");
    }),
    vec![Step::Prepare { add_finalizer: false, annotations: unset(&["vip"]), labels: Labels::new() }, Step::Unpublish,
        Step::Apply])]
#[case::not_made_anew_while_the_old_one_leaves(with(wanted(DELETING), has_finalizer), vec![])]
#[case::refused_nothing_is_created(with(wanted(ABSENT), |seen| seen.has_write = false), vec![])]
#[case::refused_what_exists_stays_as_it_is(
    with(wanted(present(false, Some("10.0.0.9"))), |seen| { has_finalizer(seen); seen.has_write = false; }),
    vec![])]
#[case::nothing_is_made_while_the_cloud_has_not_read_its_lists(wanted(unknown(None)), vec![])]
// docs/contract/cloud-controller-manager.md#L1: the object that never got an address is deleted too
#[case::deleted_before_it_had_an_address(leaving(present(true, None)), vec![Step::Delete])]
// docs/contract/cloud-controller-manager.md#L1: and the one that the cache does not show
#[case::deleted_by_name_when_none_is_seen(leaving(ABSENT), vec![Step::Delete])]
#[case::not_deleted_while_the_cloud_has_not_read_its_lists(leaving(unknown(None)), vec![])]
#[case::released_when_gone(with(leaving(ABSENT), |seen| seen.deleted = true), vec![release(&[])])]
#[case::released_while_it_leaves(leaving(DELETING), vec![release(&[])])]
#[case::kept_while_a_load_balancer_leaves_in_the_foreground(with(leaving(DELETING), publishing), vec![])]
#[case::kept_while_something_blocks_the_removal(
    with(leaving(present(true, None)), |seen| seen.view.removal = Removal::Blocked("used".into())), vec![])]
#[case::kept_while_something_blocks_the_removal_of_what_no_cache_shows(
    with(leaving(ABSENT), |seen| seen.view.removal = Removal::Blocked("used".into())), vec![])]
#[case::what_others_no_longer_need_goes_from_a_load_balancer_that_stays_for_them(
    with(leaving(present(false, None)), |seen| {
        seen.view.removal = Removal::Blocked("used".into());
        seen.has_write = true;
    }),
    vec![Step::Apply])]
#[case::labels_come_with_annotations(
    with(wanted(present(true, Some("10.0.0.9"))), |seen| {
        publishing(seen);
        seen.view.labels = set(&[("of", "web")]);
        seen.labels = annotations(&[("of", "api"), ("foreign", "stays")]);
    }),
    vec![Step::Prepare { add_finalizer: true, annotations: set(&[IGNORE]), labels: set(&[("of", "web")]) }])]
#[case::labels_go_with_the_finalizer(
    with(wanted(ABSENT), |seen| {
        has_finalizer(seen);
        (seen.wanted, seen.deleted) = (false, true);
        seen.labels = annotations(&[("of", "web"), ("foreign", "stays")]);
        seen.view.labels = unset(&["of", "other"]);
    }),
    vec![Step::Release { annotations: Annotations::new(), labels: unset(&["of"]) }])]
#[case::our_status_goes_before_the_finalizer(
    with(leaving(ABSENT), |seen| {
        publishing(seen);
        seen.deleted = true;
        seen.published = ip("10.0.0.9");
    }),
    vec![Step::Unpublish, release(&[])])]
#[case::a_foreign_status_goes_with_the_service(
    with(leaving(ABSENT), |seen| {
        seen.deleted = true;
        seen.published = ip("10.0.0.9");
    }),
    vec![release(&[])])]
// docs/contract/cloud-controller-manager.md#L15: nothing of ours stays on a Service that became a ClusterIP
#[case::type_changed(
    with(wanted(ABSENT), |seen| {
        has_finalizer(seen);
        seen.wanted = false;
        seen.deleted = true;
        seen.published = ip("10.0.0.9");
        seen.annotations = annotations(&[("vip", "10.0.0.9"), ("foreign", "stays")]);
        seen.view.annotations = unset(&["vip", "interface"]);
    }),
    vec![Step::Unpublish, release(&["vip"])])]
// docs/contract/cloud-controller-manager.md#14.1: the finalizer is a common one, and status and annotations are its
// owner's
#[case::of_another_class(
    with(wanted(ABSENT), |seen| {
        has_finalizer(seen);
        (seen.wanted, seen.foreign) = (false, true);
        seen.published = ip("10.0.0.9");
    }),
    vec![])]
#[case::of_another_class_and_was_ours(
    with(wanted(present(true, None)), |seen| {
        has_finalizer(seen);
        (seen.wanted, seen.foreign) = (false, true);
    }),
    vec![Step::Delete])]
#[case::of_another_class_and_deleted(
    with(leaving(ABSENT), |seen| (seen.foreign, seen.deleted) = (true, true)),
    vec![release(&[])])]
#[case::never_asked(Seen::default(), vec![])]
#[case::finalizer_lost(with(wanted(present(true, None)), |seen| seen.wanted = false), vec![Step::Delete])]
fn plans(#[case] seen: Seen, #[case] steps: Vec<Step>) {
    assert_eq!(decide(&seen).steps, steps);
}

#[test]
fn a_load_balancer_without_address_is_a_failed_sync_with_its_reason() {
    let seen = with(wanted(present(true, None)), |seen| {
        has_finalizer(seen);
        seen.view.waiting = Some("no pool matches".into());
    });
    let plan = decide(&seen);
    let [event] = &plan.events[..] else { panic!("{plan:?}") };
    assert_eq!(*event, failed_sync(ENSURE, "no pool matches"));
    assert_eq!(plan.again, Some(BACKSTOP));
}

#[rstest]
#[case::new(wanted(unknown(Some("down"))), Some(ENSURE))]
#[case::not_late_yet(wanted(unknown(None)), None)]
#[case::served(with(wanted(unknown(Some("down"))), |seen| { has_finalizer(seen); seen.published = ip("10.0.0.9"); }), None)]
// docs/contract/cloud-controller-manager.md#13
#[case::going(with(leaving(unknown(Some("down"))), |seen| seen.published = ip("10.0.0.9")), Some(DELETE))]
#[case::of_another_type(with(leaving(unknown(Some("down"))), |seen| seen.deleting = false),
    Some(DELETE))]
#[case::of_another_class(
    with(leaving(unknown(Some("down"))), |seen| (seen.deleting, seen.foreign) = (false, true)), None)]
#[case::never_ours(with(wanted(unknown(Some("down"))), |seen| seen.wanted = false), None)]
#[case::going_and_never_served(with(leaving(unknown(Some("down"))), |seen| seen.has_finalizer = false), None)]
fn a_service_that_waits_for_a_cloud_out_of_reach_gets_a_failed_sync(
    #[case] seen: Seen,
    #[case] failure: Option<&str>,
) {
    let plan = decide(&seen);
    let expected: Vec<_> = failure.map(|what| failed_sync(what, "down")).into_iter().collect();
    assert_eq!((plan.events, plan.steps), (expected, vec![]));
}

#[test]
fn the_events_of_the_cloud_are_recorded_while_the_service_is_ours() {
    let event = PendingEvent::warning("StillAnnounced", "restart it");
    let with_event = |seen: Seen| with(seen, |seen| seen.events = vec![event.clone()]);
    for ours in [wanted(ABSENT), leaving(present(true, None)), leaving(DELETING)] {
        assert_eq!(decide(&with_event(ours)).events, std::slice::from_ref(&event));
    }
    let released = with(wanted(ABSENT), |seen| seen.wanted = false);
    assert_eq!(decide(&with_event(released)).events, []);
}

// docs/contract/cloud-controller-manager.md#L31
#[test]
fn an_address_is_announced_when_it_is_there_and_not_before() {
    let outcome = |state| decide(&with(wanted(state), publishing)).outcome.map(|event| event.reason);
    assert_eq!(outcome(present(true, None)), None);
    assert_eq!(outcome(present(true, Some("10.0.0.9"))), Some("EnsuredLoadBalancer"));
    let settled = decide(&with(wanted(present(true, Some("10.0.0.9"))), has_finalizer));
    assert_eq!(settled, Plan::default());
}

proptest::proptest! {
    /// The finalizer goes only when nothing is left to delete, and goes last.
    #[test]
    fn the_finalizer_goes_last(
        wanted: bool, deleting: bool, deleted: bool, foreign: bool, which in 0..5u8, removal in 0..3u8,
    ) {
        let load_balancer = match which {
            0 => LoadBalancerState::Absent,
            1 => present(true, None).0,
            2 => LoadBalancerState::Deleting,
            3 => LoadBalancerState::Unknown(None),
            _ => LoadBalancerState::Unreadable("why".into()),
        };
        let removal = match removal {
            0 => Removal::Background,
            1 => Removal::Foreground,
            _ => Removal::Blocked("used".into()),
        };
        let view = View { load_balancer: load_balancer.clone(), removal: removal.clone(), ..View::default() };
        let wanted = wanted && !deleting;
        let seen = Seen { wanted, deleting, deleted, foreign, has_finalizer: true, view, ..Seen::default() };
        let steps = decide(&seen).steps;
        if let Some(at) = steps.iter().position(|step| matches!(step, Step::Release { .. })) {
            proptest::prop_assert_eq!(at, steps.len() - 1);
            let in_use = matches!(load_balancer, LoadBalancerState::Present { .. } | LoadBalancerState::Unknown(_));
            proptest::prop_assert!(!in_use);
            proptest::prop_assert!(!wanted);
            proptest::prop_assert!(load_balancer != LoadBalancerState::Deleting || removal != Removal::Foreground);
        }
        let removes = |step: &Step| matches!(step, Step::Delete | Step::Release { .. });
        if matches!(removal, Removal::Blocked(_)) && !deleted {
            proptest::prop_assert!(!steps.iter().any(removes));
        }
    }
}
