//! The decision: whose Lease is it, and may we have it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// The record as we know it, and when our own clock saw it change last.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) record: Option<Lease>,
    pub(super) changed: Option<Instant>,
}

impl Seen {
    pub(super) fn observe(&mut self, record: Option<Lease>, now: Instant) {
        let spec = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.spec.clone());
        if self.changed.is_none() || spec(&record) != spec(&self.record) {
            self.changed = Some(now);
        }
        self.record = record;
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

pub(super) fn decide(me: &str, seen: &Seen, lease: Duration, now: Instant) -> Step {
    if seen.record.is_none() {
        return Step::Create;
    }
    if seen.holder() == me {
        return Step::Renew;
    }
    let fresh = seen.changed.is_some_and(|at| now < at + seen.lasts(lease));
    if !seen.holder().is_empty() && fresh {
        return Step::Wait;
    }
    Step::TakeOver { transitions: seen.transitions().saturating_add(1) }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(decide("me", &seen, Duration::from_secs(15), now + Duration::from_secs(after)), step);
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
        assert_eq!(decide("me", &seen, Duration::from_secs(15), now + Duration::from_secs(16)), Step::Wait);
    }
}
