//! Which Leases this process holds, for Prometheus.

use std::sync::atomic::AtomicI64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

/// One for the process. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Leading {
    holds: Family<LeaseLabel, Gauge<i64, AtomicI64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaseLabel {
    name: &'static str,
}

/// Counts as leader until it is dropped.
pub(crate) struct Leads(Leading, &'static str);

impl Leading {
    /// The name is that of Kubernetes' components.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "leader_election_master_status",
            "1 while this process holds the Lease, 0 while it stands by",
            self.holds.clone(),
        );
    }

    /// This process stands for the Lease.
    pub(crate) fn stands_by(&self, name: &'static str) {
        self.holds.get_or_create(&LeaseLabel { name }).set(0);
    }

    /// This process holds the Lease until the answer is dropped.
    pub(crate) fn leads(&self, name: &'static str) -> Leads {
        self.holds.get_or_create(&LeaseLabel { name }).set(1);
        Leads(self.clone(), name)
    }
}

impl Drop for Leads {
    fn drop(&mut self) {
        self.0.stands_by(self.1);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn text(leading: &Leading) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        leading.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_lease_that_is_lost_counts_as_one_that_others_hold() {
        let leading = Leading::default();
        assert!(!text(&leading).contains("lease-a"), "who does not stand for a Lease says nothing of it");
        leading.stands_by("lease-a");
        assert!(text(&leading).contains(r#"leader_election_master_status{name="lease-a"} 0"#));
        let leads = leading.leads("lease-a");
        assert!(text(&leading).contains(r#"leader_election_master_status{name="lease-a"} 1"#));
        drop(leads);
        assert!(text(&leading).contains(r#"leader_election_master_status{name="lease-a"} 0"#));
    }
}
