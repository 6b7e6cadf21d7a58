//! The decision about one Service.

use std::{collections::BTreeMap, time::Duration};

use crate::{Balancer, Notice, Publish, View};

/// A backstop for a lost watch. What wakes us is the watch on what we wait for.
const BACKSTOP: Duration = Duration::from_secs(300);

/// What the world looked like when we looked. `decide` knows nothing else.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The Service's type and class ask for a balancer of ours.
    pub(super) wanted: bool,
    /// Its class asks for somebody else's.
    pub(super) foreign: bool,
    pub(super) deleting: bool,
    pub(super) finalized: bool,
    pub(super) annotations: BTreeMap<String, String>,
    /// Addresses in `status.loadBalancer`.
    pub(super) published: Vec<String>,
    /// A delete of ours was answered since the Service last wanted a balancer.
    pub(super) deleted: bool,
    pub(super) view: View,
}

/// Annotations of one PATCH: a value, or `None` to take the key away.
pub(super) type Marks = BTreeMap<String, Option<String>>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Finalizer (if `finalize`) and annotations, in one PATCH.
    Mark {
        finalize: bool,
        marks: Marks,
    },
    Ensure,
    /// `status.loadBalancer` with this address.
    Publish(String),
    Delete,
    /// `status.loadBalancer` without address.
    Unpublish,
    /// The finalizer and our annotations go, in one PATCH.
    Release {
        marks: Marks,
    },
}

/// The steps to take now, in order, what to tell, and when to look again if nothing changes before then.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) notices: Vec<Notice>,
    /// What is so when all steps are done, and not before (pitfalls-ccm.md L31).
    pub(super) outcome: Option<Notice>,
    pub(super) again: Option<Duration>,
}

pub(super) fn decide(seen: &Seen) -> Plan {
    if seen.wanted && !seen.deleting { provide(seen) } else { clean_up(seen) }
}

fn provide(seen: &Seen) -> Plan {
    let view = &seen.view;
    let mut notices = view.notices.clone();
    notices.extend(view.refusals.iter().cloned());
    let mut plan = Plan { notices, again: view.again, ..Plan::default() };
    let refused = !view.refusals.is_empty();
    let mut marks = missing(&view.before, &seen.annotations);
    let prepared = marks.is_empty();

    match &view.balancer {
        Balancer::Unreadable(why) => {
            plan.notices.push(Notice::warning("SyncLoadBalancerFailed", why.clone()));
            return plan;
        }
        Balancer::Leaving => {
            let why = "Error syncing load balancer: the former one is still being removed";
            plan.notices.push(Notice::normal("WaitingForRemoval", why));
            plan.again = plan.again.or(Some(BACKSTOP));
            return plan;
        }
        Balancer::Absent if refused || view.held => return plan,
        Balancer::Absent => {
            if !seen.finalized || !prepared {
                plan.steps.push(Step::Mark { finalize: !seen.finalized, marks });
            }
            plan.steps.push(Step::Ensure);
            return plan;
        }
        Balancer::Present { in_step, address } => {
            marks.extend(missing(&view.after, &seen.annotations));
            if !seen.finalized || !marks.is_empty() {
                plan.steps.push(Step::Mark { finalize: !seen.finalized, marks });
            }
            if view.publish == Publish::Withdrawn && !seen.published.is_empty() {
                plan.steps.push(Step::Unpublish);
            }
            if !in_step && !refused {
                plan.steps.push(Step::Ensure);
            }
            if address.is_none() {
                plan.again = plan.again.or(Some(BACKSTOP));
                if let Some(waiting) = &view.waiting {
                    let why =
                        format!("Error syncing load balancer: failed to ensure load balancer: {waiting}");
                    plan.notices.push(Notice::warning("SyncLoadBalancerFailed", why));
                }
            }
        }
    }
    // the status only after our own cache shows the annotations that must precede it
    if let Publish::Address(address) = &view.publish
        && prepared
        && seen.published != [address.clone()]
    {
        plan.steps.push(Step::Publish(address.clone()));
    }
    // told when something is handed over, so that a restart tells nothing
    if let Balancer::Present { address: Some(address), .. } = &view.balancer
        && !plan.steps.is_empty()
    {
        let message = format!("Load balancer has address {address}");
        plan.outcome = Some(Notice::normal("EnsuredLoadBalancer", message));
    }
    plan
}

fn clean_up(seen: &Seen) -> Plan {
    let view = &seen.view;
    let steps = |steps| Plan { steps, ..Plan::default() };
    match &view.balancer {
        Balancer::Present { .. } => return steps(vec![Step::Delete]),
        _ if seen.foreign && !seen.deleting => return Plan::default(),
        // by name, and before the finalizer goes: a cache may be behind (pitfalls-ccm.md L1)
        Balancer::Absent | Balancer::Unreadable(_) if seen.finalized && !seen.deleted => {
            return steps(vec![Step::Delete]);
        }
        Balancer::Unreadable(why) if seen.finalized && view.outlives => {
            let notice = Notice::warning("SyncLoadBalancerFailed", why.clone());
            return Plan { notices: vec![notice], again: Some(BACKSTOP), ..Plan::default() };
        }
        Balancer::Leaving if view.outlives => return Plan { again: Some(BACKSTOP), ..Plan::default() },
        Balancer::Absent | Balancer::Leaving | Balancer::Unreadable(_) => {}
    }
    if !seen.finalized {
        return Plan::default();
    }
    let mut plan = steps(vec![]);
    let ours = view.publish != Publish::NotOurs;
    if !seen.published.is_empty() && (ours || !seen.deleting) {
        plan.steps.push(Step::Unpublish);
    }
    let kept = if seen.deleting { &[][..] } else { &view.own_annotations[..] };
    let present = kept.iter().filter(|key| seen.annotations.contains_key(*key));
    plan.steps.push(Step::Release { marks: present.map(|key| (key.clone(), None)).collect() });
    plan.outcome = Some(Notice::normal("DeletedLoadBalancer", "Deleted load balancer"));
    plan
}

/// What of `wanted` is not so.
fn missing(wanted: &Marks, there: &BTreeMap<String, String>) -> Marks {
    let differs = |(key, value): &(&String, &Option<String>)| there.get(*key) != value.as_ref();
    wanted.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const IGNORE: (&str, &str) = ("kube-vip.io/ignore", "true");

    fn set(pairs: &[(&str, &str)]) -> Marks {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned()))).collect()
    }

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// A Service that wants a balancer whose address is handed over by annotation.
    fn wanted(balancer: Balancer) -> Seen {
        Seen { wanted: true, view: View { balancer, ..View::default() }, ..Seen::default() }
    }

    fn with(seen: Seen, change: impl FnOnce(&mut Seen)) -> Seen {
        let mut seen = seen;
        change(&mut seen);
        seen
    }

    fn present(in_step: bool, address: Option<&str>) -> Balancer {
        Balancer::Present { in_step, address: address.map(str::to_owned) }
    }

    fn mark(finalize: bool, marks: &[(&str, &str)]) -> Step {
        Step::Mark { finalize, marks: set(marks) }
    }

    fn release(keys: &[&str]) -> Step {
        Step::Release { marks: keys.iter().map(|key| ((*key).to_owned(), None)).collect() }
    }

    fn finalized(seen: &mut Seen) {
        seen.finalized = true;
    }

    /// The controller publishes the address itself, and an annotation must precede that.
    fn publishing(seen: &mut Seen) {
        seen.view.before = set(&[IGNORE]);
        seen.view.publish = Publish::Address("10.0.0.9".into());
        seen.view.outlives = true;
        seen.view.own_annotations = vec![IGNORE.0.into()];
    }

    #[rstest]
    #[case::new(wanted(Balancer::Absent), vec![mark(true, &[]), Step::Ensure])]
    #[case::finalizer_and_annotation_in_one_patch(
        with(wanted(Balancer::Absent), publishing), vec![mark(true, &[IGNORE]), Step::Ensure])]
    #[case::vanished_in_the_cloud(with(wanted(Balancer::Absent), finalized), vec![Step::Ensure])]
    #[case::waiting(with(wanted(present(true, None)), finalized), vec![])]
    #[case::drifted(with(wanted(present(false, None)), finalized), vec![Step::Ensure])]
    #[case::taken_over(wanted(present(true, None)), vec![mark(true, &[])])]
    #[case::address_by_annotation(
        with(wanted(present(true, Some("10.0.0.9"))), |seen| {
            finalized(seen);
            seen.view.after = set(&[("vip", "10.0.0.9")]);
        }),
        vec![mark(false, &[("vip", "10.0.0.9")])])]
    #[case::settled(
        with(wanted(present(true, Some("10.0.0.9"))), |seen| {
            finalized(seen);
            seen.view.after = set(&[("vip", "10.0.0.9")]);
            seen.annotations = annotations(&[("vip", "10.0.0.9"), ("foreign", "stays")]);
            seen.published = vec!["10.0.0.7".into()];
        }),
        vec![])]
    #[case::no_status_before_the_annotation_is_seen(
        with(wanted(present(true, Some("10.0.0.9"))), |seen| { finalized(seen); publishing(seen); }),
        vec![mark(false, &[IGNORE])])]
    #[case::published_by_us(
        with(wanted(present(true, Some("10.0.0.9"))), |seen| {
            finalized(seen);
            publishing(seen);
            seen.annotations = annotations(&[IGNORE]);
        }),
        vec![Step::Publish("10.0.0.9".into())])]
    #[case::follows_the_address(
        with(wanted(present(true, Some("10.0.0.9"))), |seen| {
            finalized(seen);
            publishing(seen);
            seen.annotations = annotations(&[IGNORE]);
            seen.published = vec!["10.0.0.7".into()];
        }),
        vec![Step::Publish("10.0.0.9".into())])]
    #[case::taken_back(
        with(wanted(present(false, None)), |seen| {
            finalized(seen);
            seen.view.after = [("vip".to_owned(), None)].into();
            seen.view.publish = Publish::Withdrawn;
            seen.annotations = annotations(&[("vip", "10.0.0.9")]);
            seen.published = vec!["10.0.0.9".into()];
        }),
        vec![Step::Mark { finalize: false, marks: [("vip".to_owned(), None)].into() }, Step::Unpublish, Step::Ensure])]
    #[case::not_made_anew_while_the_old_one_leaves(with(wanted(Balancer::Leaving), finalized), vec![])]
    #[case::refused_nothing_is_created(
        with(wanted(Balancer::Absent), |seen| seen.view.refusals = vec![Notice::warning("No", "no")]), vec![])]
    #[case::held_until_the_cloud_knows(with(wanted(Balancer::Absent), |seen| seen.view.held = true), vec![])]
    #[case::refused_what_exists_stays_as_it_is(
        with(wanted(present(false, Some("10.0.0.9"))), |seen| {
            finalized(seen);
            seen.view.refusals = vec![Notice::warning("No", "no")];
        }),
        vec![])]
    // pitfalls-ccm.md L1: the object that never got an address is deleted too
    #[case::deleted_before_it_had_an_address(
        with(wanted(present(true, None)), |seen| { finalized(seen); seen.deleting = true; }), vec![Step::Delete])]
    // pitfalls-ccm.md L1: and the one that the cache does not show
    #[case::deleted_by_name_when_none_is_seen(
        with(wanted(Balancer::Absent), |seen| { finalized(seen); seen.deleting = true; }), vec![Step::Delete])]
    #[case::released_when_gone(
        with(wanted(Balancer::Absent), |seen| { finalized(seen); seen.deleting = true; seen.deleted = true; }),
        vec![release(&[])])]
    #[case::released_while_it_leaves(
        with(wanted(Balancer::Leaving), |seen| { finalized(seen); seen.deleting = true; }), vec![release(&[])])]
    #[case::kept_while_a_balancer_leaves_that_outlives(
        with(wanted(Balancer::Leaving), |seen| { finalized(seen); publishing(seen); seen.deleting = true; }), vec![])]
    #[case::our_status_goes_before_the_finalizer(
        with(wanted(Balancer::Absent), |seen| {
            finalized(seen);
            publishing(seen);
            seen.deleting = true;
            seen.deleted = true;
            seen.published = vec!["10.0.0.9".into()];
        }),
        vec![Step::Unpublish, release(&[])])]
    #[case::a_foreign_status_goes_with_the_service(
        with(wanted(Balancer::Absent), |seen| {
            finalized(seen);
            seen.deleting = true;
            seen.deleted = true;
            seen.published = vec!["10.0.0.9".into()];
        }),
        vec![release(&[])])]
    // pitfalls-ccm.md L15: nothing of ours stays on a Service that became a ClusterIP
    #[case::type_changed(
        with(wanted(Balancer::Absent), |seen| {
            finalized(seen);
            seen.wanted = false;
            seen.deleted = true;
            seen.published = vec!["10.0.0.9".into()];
            seen.annotations = annotations(&[("vip", "10.0.0.9"), ("foreign", "stays")]);
            seen.view.own_annotations = vec!["vip".into(), "interface".into()];
        }),
        vec![Step::Unpublish, release(&["vip"])])]
    // contract 14.1: the finalizer is a common one, and status and annotations are its owner's
    #[case::of_another_class(
        with(wanted(Balancer::Absent), |seen| {
            finalized(seen);
            (seen.wanted, seen.foreign) = (false, true);
            seen.published = vec!["10.0.0.9".into()];
        }),
        vec![])]
    #[case::of_another_class_and_was_ours(
        with(wanted(present(true, None)), |seen| {
            finalized(seen);
            (seen.wanted, seen.foreign) = (false, true);
        }),
        vec![Step::Delete])]
    #[case::of_another_class_and_deleted(
        with(wanted(Balancer::Absent), |seen| {
            finalized(seen);
            (seen.wanted, seen.foreign, seen.deleting, seen.deleted) = (false, true, true, true);
        }),
        vec![release(&[])])]
    #[case::never_asked(Seen::default(), vec![])]
    #[case::finalizer_lost(with(wanted(present(true, None)), |seen| seen.wanted = false), vec![Step::Delete])]
    fn plans(#[case] seen: Seen, #[case] steps: Vec<Step>) {
        assert_eq!(decide(&seen).steps, steps);
    }

    #[test]
    fn a_balancer_without_address_is_told_with_its_reason() {
        let seen = with(wanted(present(true, None)), |seen| {
            finalized(seen);
            seen.view.waiting = Some("no pool matches".into());
        });
        let plan = decide(&seen);
        let [notice] = &plan.notices[..] else { panic!("{plan:?}") };
        assert_eq!((notice.reason, notice.warning), ("SyncLoadBalancerFailed", true));
        assert!(notice.message.ends_with("failed to ensure load balancer: no pool matches"));
        assert_eq!(plan.again, Some(BACKSTOP));
    }

    #[test]
    fn an_address_is_announced_when_it_is_there_and_not_before() {
        let told = |balancer| decide(&with(wanted(balancer), publishing)).outcome.map(|notice| notice.reason);
        assert_eq!(told(present(true, None)), None);
        assert_eq!(told(present(true, Some("10.0.0.9"))), Some("EnsuredLoadBalancer"));
        let settled = decide(&with(wanted(present(true, Some("10.0.0.9"))), finalized));
        assert_eq!(settled, Plan::default());
    }

    proptest::proptest! {
        /// Whatever was seen, the finalizer goes only when nothing is left to delete, and goes last.
        #[test]
        fn the_finalizer_goes_last(wanted: bool, deleting: bool, deleted: bool, which in 0..4u8, outlives: bool) {
            let balancer = match which {
                0 => Balancer::Absent,
                1 => present(true, None),
                2 => Balancer::Leaving,
                _ => Balancer::Unreadable("why".into()),
            };
            let view = View { balancer: balancer.clone(), outlives, ..View::default() };
            let seen = Seen { wanted, deleting, deleted, finalized: true, view, ..Seen::default() };
            let steps = decide(&seen).steps;
            if let Some(at) = steps.iter().position(|step| matches!(step, Step::Release { .. })) {
                proptest::prop_assert_eq!(at, steps.len() - 1);
                let present = matches!(balancer, Balancer::Present { .. });
                proptest::prop_assert!(!present);
                proptest::prop_assert!(!wanted || deleting);
                proptest::prop_assert!(balancer != Balancer::Leaving || !outlives);
            }
        }
    }
}
