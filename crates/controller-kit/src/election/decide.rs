//! The decision: whose Lease is it, and may we have it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use program::pod::Identity;
use tokio::time::Instant;

/// The record as we know it, and when our own clock saw it change last.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) record: Option<Lease>,
    pub(super) changed: Option<Instant>,
}

impl Seen {
    /// Answers whether the record says something else now.
    pub(super) fn observe(&mut self, record: Option<Lease>, now: Instant) -> bool {
        let spec = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.spec.clone());
        let moved = self.changed.is_none() || spec(&record) != spec(&self.record);
        if moved {
            self.changed = Some(now);
        }
        self.record = record;
        moved
    }

    pub(super) fn holder(&self) -> &str {
        let spec = self.record.as_ref().and_then(|lease| lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
    }

    pub(super) fn transitions(&self) -> i32 {
        let spec = self.record.as_ref().and_then(|lease| lease.spec.as_ref());
        spec.and_then(|spec| spec.lease_transitions).unwrap_or_default()
    }

    /// How long the record says that it lasts; `ours` where it says nothing.
    fn lasts(&self, ours: Duration) -> Duration {
        let spec = self.record.as_ref().and_then(|lease| lease.spec.as_ref());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        seconds.map_or(ours, |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Renew,
    TakeOver { transitions: i32 },
    Wait,
}

/// `holds`: we have the socket that every process of our Pod holds for life whose identity names the Pod.
pub(super) fn decide(me: &Identity, holds: bool, seen: &Seen, lease: Duration, now: Instant) -> Step {
    if seen.record.is_none() {
        return Step::Create;
    }
    if me.is(seen.holder()) {
        return Step::Renew;
    }
    let fresh = seen.changed.is_some_and(|at| now < at + seen.lasts(lease));
    let dead = holds && me.is_predecessor(seen.holder());
    if !seen.holder().is_empty() && fresh && !dead {
        return Step::Wait;
    }
    Step::TakeOver { transitions: seen.transitions().saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use program::pod::Sources;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn held(holder: &str, seconds: i64) -> Lease {
        serde_json::from_value(
            json!({"metadata": {}, "spec": {"holderIdentity": holder, "leaseTransitions": 3,
            "leaseDurationSeconds": seconds}}),
        )
        .unwrap()
    }

    #[rstest]
    #[case::nobody_made_it_yet(None, 0, Step::Create)]
    #[case::ours(Some(held("me", 15)), 1000, Step::Renew)]
    #[case::given_back(Some(held("", 1)), 0, Step::TakeOver { transitions: 4 })]
    #[case::held_and_fresh(Some(held("other", 15)), 14, Step::Wait)]
    #[case::held_and_silent(Some(held("other", 15)), 15, Step::TakeOver { transitions: 4 })]
    #[case::its_own_duration_counts_not_ours(Some(held("other", 45)), 44, Step::Wait)]
    #[case::a_negative_duration_is_none(Some(held("other", -5)), 0, Step::TakeOver { transitions: 4 })]
    fn a_lease_is_taken_only_when_it_is_free(
        #[case] record: Option<Lease>,
        #[case] after: u64,
        #[case] step: Step,
    ) {
        let now = Instant::now();
        let mut seen = Seen::default();
        seen.observe(record, now);
        let at = now + Duration::from_secs(after);
        assert_eq!(decide(&"me".into(), false, &seen, Duration::from_secs(15), at), step);
    }

    #[test]
    fn a_renewal_by_the_holder_starts_the_wait_anew() {
        let now = Instant::now();
        let later = now + Duration::from_secs(10);
        let mut seen = Seen::default();
        seen.observe(Some(held("other", 15)), now);
        let mut renewed = held("other", 15);
        renewed.spec.as_mut().unwrap().lease_transitions = Some(4);
        seen.observe(Some(renewed), later);
        let at = now + Duration::from_secs(16);
        assert_eq!(decide(&"me".into(), false, &seen, Duration::from_secs(15), at), Step::Wait);
    }

    fn identity(host_name: &str, uid: &str, random: u64) -> Identity {
        let (downward_uid, place) = (Some(uid.into()), Some("here".into()));
        let sources = Sources { host_name: host_name.into(), downward_uid, place, ..Sources::default() };
        Identity::new(&sources, random)
    }

    const AT_ONCE: Step = Step::TakeOver { transitions: 4 };

    #[rstest]
    #[case::dead_predecessor(identity("part-0", "a-1", 1).text(true).to_owned(), true, AT_ONCE)]
    // a second container of the Pod, or a predecessor under SIGSTOP
    #[case::somebody_holds_the_socket(identity("part-0", "a-1", 1).text(true).to_owned(), false, Step::Wait)]
    #[case::holder_never_had_the_socket(identity("part-0", "a-1", 1).text(false).to_owned(), true, Step::Wait)]
    #[case::one_uid_on_two_hosts(identity("part-1", "a-1", 1).text(true).to_owned(), true, Step::Wait)]
    #[case::another_pod(identity("part-0", "b-2", 1).text(true).to_owned(), true, Step::Wait)]
    #[case::a_go_program("part-0_7d0f6f0c-7c0b-4b57-9d6c-0c9a8b7a6d5e".to_owned(), true, Step::Wait)]
    #[case::itself(identity("part-0", "a-1", 2).text(true).to_owned(), true, Step::Renew)]
    #[case::itself_before_it_had_the_socket(identity("part-0", "a-1", 2).text(false).to_owned(), true, Step::Renew)]
    fn a_fresh_lease_is_taken_from_a_dead_process_of_this_pod_only(
        #[case] holder: String,
        #[case] holds: bool,
        #[case] step: Step,
    ) {
        let (me, now) = (identity("part-0", "a-1", 2), Instant::now());
        let mut seen = Seen::default();
        seen.observe(Some(held(&holder, 45)), now);
        assert_eq!(decide(&me, holds, &seen, Duration::from_secs(45), now), step);
    }
}
