//! What the load balancer tells Prometheus. Each metric has a row in docs/messages.md.

mod pools;
mod probes;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicI64},
};

use controller_kit::{Change, ObjectKey, RawObject};
use harvester_api::{
    IPPool, LoadBalancer,
    condition::{self, ConditionStatus},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::time::Instant;

pub(crate) use self::probes::Probes;
use crate::{
    condition::known_reason,
    pool::{RecordChange, record_change},
    steps::step,
};

/// What a reason counts as that this program does not know. Where the webhook of another program admits a tenant's writes
/// of the status, he chooses them: they take no place of another, and make no series without end.
const OTHER: &str = "Other";

/// The reason of an object after a look that failed, and of the Event that says why. No condition has it: it could not be
/// written.
pub(crate) const NOT_WRITTEN: &str = "NotWritten";

/// Whether this process leads.
pub(crate) type Leading = Gauge<i64, AtomicI64>;

/// Registered before the election, so that Prometheus hears also of a process that only stands by.
pub(crate) fn leading(registry: &mut Registry) -> Leading {
    let leading = Leading::default();
    registry.register("leading", "1 while this process leads, 0 while it stands by", leading.clone());
    leading
}

/// The metrics of the process that leads. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    total: Family<PoolFamilyLabel, Gauge<i64, AtomicI64>>,
    available: Family<PoolFamilyLabel, Gauge<i64, AtomicI64>>,
    resting: Family<PoolFamilyLabel, Gauge<i64, AtomicI64>>,
    draining: Family<PoolFamilyLabel, Gauge<i64, AtomicI64>>,
    held: Family<PoolFamilyLabel, Gauge<i64, AtomicI64>>,
    allocations: Family<PoolLabel, Counter>,
    releases: Family<PoolLabel, Counter>,
    repairs: Family<RepairLabel, Counter>,
    not_ready: Family<ReasonLabel, Gauge<i64, AtomicI64>>,
    refusals: Family<ReasonLabel, Counter>,
    until_address: Histogram,
    /// Records that other programs made in our pools.
    pub(crate) foreign: Gauge<i64, AtomicI64>,
    /// Services that keep addresses without load balancer.
    pub(crate) orphans: Gauge<i64, AtomicI64>,
    pub(crate) probes: Probes,
    objects: Arc<Mutex<Objects>>,
    counted: Arc<Mutex<Counted>>,
}

/// The version of each pool that the numbers are of.
type Counted = HashMap<String, Arc<RawObject<IPPool>>>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabel {
    pool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolFamilyLabel {
    pool: String,
    family: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabel {
    repair: &'static str,
}

/// What is known of the load balancers that are not ready, or have no address yet.
#[derive(Default)]
struct Objects {
    not_ready: HashMap<ObjectKey, &'static str>,
    without_address: HashMap<ObjectKey, Instant>,
}

/// What was put right that should never have been wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    /// A record whose load balancer is gone was released.
    AbandonedRecord,
    /// A load balancer let go of an address that a pool gives to another.
    LostAddress,
}

impl Repair {
    fn label(self) -> RepairLabel {
        let repair = match self {
            Self::AbandonedRecord => "abandoned_record",
            Self::LostAddress => "lost_address",
        };
        RepairLabel { repair }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            total: Family::default(),
            available: Family::default(),
            resting: Family::default(),
            draining: Family::default(),
            held: Family::default(),
            allocations: Family::default(),
            releases: Family::default(),
            repairs: Family::default(),
            not_ready: Family::default(),
            refusals: Family::default(),
            // five milliseconds to eighty seconds
            until_address: Histogram::new(exponential_buckets(0.005, 2.0, 15)),
            foreign: Gauge::default(),
            orphans: Gauge::default(),
            probes: Probes::default(),
            objects: Arc::default(),
            counted: Arc::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("pool_addresses", "Usable addresses of a family of a pool", self.total.clone());
        registry.register(
            "pool_addresses_available",
            "Addresses of a family that may be given out",
            self.available.clone(),
        );
        registry.register(
            "pool_addresses_resting",
            "Released addresses of a family that only their former holders get yet",
            self.resting.clone(),
        );
        registry.register(
            "pool_addresses_draining",
            "Usable addresses of a family, held or not, of ranges that drain",
            self.draining.clone(),
        );
        registry.register("pool_addresses_held", "Addresses of a family that are held", self.held.clone());
        registry.register("pool_allocations", "Addresses that a pool gave", self.allocations.clone());
        registry.register("pool_releases", "Addresses that a pool took back", self.releases.clone());
        registry.register(
            "pool_records_foreign",
            "Records that other programs made in our pools and that name no load balancer",
            self.foreign.clone(),
        );
        registry.register(
            "services_orphaned",
            "Services that keep addresses without load balancer, and that we may not delete",
            self.orphans.clone(),
        );
        registry.register("repairs", "Faults that the program put right by itself", self.repairs.clone());
        registry.register(
            "balancers_not_ready",
            "LoadBalancer objects whose Ready condition is false, or at which the last look failed",
            self.not_ready.clone(),
        );
        registry.register(
            "balancers_refusals",
            "LoadBalancer objects that became not ready, or not ready for another reason",
            self.refusals.clone(),
        );
        registry.register(
            "balancers_address_delay_seconds",
            "From the first look at a LoadBalancer object without address until it has one",
            self.until_address.clone(),
        );
        self.probes.register(registry);
    }

    /// A pool came, changed or went: counts from the version that was counted last to the `newest`. Changes are told in any
    /// order, and one that was stored while the first list was read is told twice.
    ///
    /// `records` are those of the change, which is mostly just that step: a pool may have ten thousand others.
    pub(crate) fn pool_changed(
        &self,
        change: &Change<RawObject<IPPool>>,
        records: &RecordChange<'_>,
        newest: impl FnOnce() -> Option<Arc<RawObject<IPPool>>>,
    ) {
        let label = PoolLabel { pool: change.key.name.clone() };
        let families = pools::FAMILIES.map(|family| PoolFamilyLabel { pool: label.pool.clone(), family });
        // two who are told at once must not both count from the same version
        let mut counted = self.counted.lock().expect("no panic while pools are counted");
        let Some(new) = newest() else {
            counted.remove(&label.pool);
            self.allocations.remove(&label);
            self.releases.remove(&label);
            for family in &families {
                self.held.remove(family);
                self.set_numbers(family, None);
            }
            return;
        };
        let old = counted.insert(label.pool.clone(), new.clone());
        let is = |one: Option<&Arc<_>>, other: Option<&Arc<_>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let (had_one, step) =
            (old.is_some(), Change { key: change.key.clone(), old, new: Some(new.clone()) });
        let is_told =
            is(step.old.as_ref(), change.old.as_ref()) && is(step.new.as_ref(), change.new.as_ref());
        let missed = (!is_told).then(|| RecordChange::of(&step));
        let records = missed.as_ref().unwrap_or(records);
        for (entries, sign) in [(&records.come, 1), (&records.gone, -1)] {
            for (family, count) in families.iter().zip(by_family(entries)) {
                self.held.get_or_create(family).inc_by(sign * count);
            }
        }
        let held = [0, 1].map(|index| self.held.get_or_create(&families[index]).get());
        for (family, numbers) in families.iter().zip(pools::by_family(&new, held)) {
            self.set_numbers(family, numbers);
        }
        // those that stood before the program started are no news
        if had_one {
            let count = |entries: &[_]| u64::try_from(entries.len()).unwrap_or(u64::MAX);
            self.allocations.get_or_create(&label).inc_by(count(&records.come));
            self.releases.get_or_create(&label).inc_by(count(&records.gone));
        }
    }

    /// `None`: the pool has no such addresses.
    fn set_numbers(&self, family: &PoolFamilyLabel, numbers: Option<pools::Numbers>) {
        let Some(pools::Numbers { total, available, resting, draining }) = numbers else {
            self.total.remove(family);
            self.available.remove(family);
            self.resting.remove(family);
            self.draining.remove(family);
            return;
        };
        self.total.get_or_create(family).set(total);
        self.available.get_or_create(family).set(available);
        self.resting.get_or_create(family).set(resting);
        self.draining.get_or_create(family).set(draining);
    }

    pub(crate) fn repaired(&self, repair: Repair) {
        self.repairs.get_or_create(&repair.label()).inc();
    }

    /// The controller looks at an object. Of one without address the time begins with the first look.
    pub(crate) fn looked_at(&self, key: &ObjectKey, lb: &LoadBalancer) {
        if !has_address(lb) && lb.metadata.deletion_timestamp.is_none() {
            self.objects().without_address.entry(key.clone()).or_insert_with(Instant::now);
        }
    }

    /// The object shows what the controller decided; `None`: it is gone.
    pub(crate) fn settled(&self, key: &ObjectKey, lb: Option<&LoadBalancer>) {
        let reason = lb.and_then(why_not_ready);
        let mut objects = self.objects();
        match lb {
            Some(lb) if has_address(lb) => {
                if let Some(since) = objects.without_address.remove(key) {
                    self.until_address.observe(since.elapsed().as_secs_f64());
                }
            }
            Some(lb) if lb.metadata.deletion_timestamp.is_none() => {}
            _ => drop(objects.without_address.remove(key)),
        }
        self.count(&mut objects, key, reason.map(|reason| known_reason(reason).unwrap_or(OTHER)));
    }

    /// The controller's look at the object failed. Its condition is that of an earlier look until it settles.
    pub(crate) fn failed(&self, key: &ObjectKey) {
        self.count(&mut self.objects(), key, Some(NOT_WRITTEN));
    }

    /// Counts the object under this reason, and under none that it had before.
    fn count(&self, objects: &mut Objects, key: &ObjectKey, reason: Option<&'static str>) {
        let before = objects.not_ready.get(key).copied();
        if before == reason {
            return;
        }
        objects.not_ready.remove(key);
        if let Some(reason) = before {
            self.not_ready.get_or_create(&ReasonLabel { reason }).dec();
        }
        if let Some(reason) = reason {
            let label = ReasonLabel { reason };
            self.not_ready.get_or_create(&label).inc();
            self.refusals.get_or_create(&label).inc();
            objects.not_ready.insert(key.clone(), reason);
        }
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().expect("no panic while metrics are counted")
    }
}

/// How many of the records are of IPv4, or can be read as no address, and how many of IPv6.
fn by_family(records: &[(&str, &str)]) -> [i64; 2] {
    let is_ipv6 = |(key, _): &&(&str, &str)| {
        step();
        record_change::address(key).is_some_and(|ip| ip.is_ipv6())
    };
    let of_ipv6 = records.iter().filter(is_ipv6).count();
    [records.len() - of_ipv6, of_ipv6].map(|count| i64::try_from(count).unwrap_or(i64::MAX))
}

fn has_address(lb: &LoadBalancer) -> bool {
    let given = lb.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    given.is_some_and(|given| !given.ip.is_empty())
}

/// The reason of a Ready condition that is false.
fn why_not_ready(lb: &LoadBalancer) -> Option<&str> {
    let ready = condition::ready(&lb.status.as_ref()?.conditions)?;
    (ready.status != ConditionStatus::True).then_some(ready.reason.as_str())
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use serde_json::{Value, json};

    use super::*;
    use crate::steps::steps_of;

    fn lb(status: &Value) -> LoadBalancer {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {}, "status": status})).unwrap()
    }

    fn not_ready(reason: &str) -> LoadBalancer {
        lb(&json!({"conditions": [{"type": "Ready", "status": "False", "reason": reason}]}))
    }

    fn addressed() -> LoadBalancer {
        lb(
            &json!({"allocatedAddress": {"ip": "192.0.2.7"}, "conditions": [{"type": "Ready", "status": "True"}]}),
        )
    }

    fn lines(metrics: &Metrics) -> Vec<String> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn has(metrics: &Metrics, line: &str) -> bool {
        lines(metrics).iter().any(|other| other == line)
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_waits_counts_under_its_reason_until_it_is_ready() {
        let (metrics, key) = (Metrics::default(), ObjectKey::new("shop", "web"));
        for _ in 0..2 {
            metrics.settled(&key, Some(&not_ready("PoolExhausted")));
        }
        assert!(has(&metrics, r#"balancers_not_ready{reason="PoolExhausted"} 1"#));
        metrics.settled(&key, Some(&not_ready("NoMatchingPool")));
        assert!(has(&metrics, r#"balancers_not_ready{reason="PoolExhausted"} 0"#));
        metrics.settled(&key, Some(&addressed()));
        assert!(has(&metrics, r#"balancers_not_ready{reason="NoMatchingPool"} 0"#));
        assert!(has(&metrics, r#"balancers_refusals_total{reason="PoolExhausted"} 1"#));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_at_which_looks_fail_counts_once_until_it_settles() {
        let (metrics, key) = (Metrics::default(), ObjectKey::new("shop", "web"));
        metrics.settled(&key, Some(&not_ready("PoolExhausted")));
        for _ in 0..2 {
            metrics.failed(&key);
        }
        assert!(has(&metrics, r#"balancers_not_ready{reason="NotWritten"} 1"#));
        assert!(has(&metrics, r#"balancers_not_ready{reason="PoolExhausted"} 0"#));
        metrics.settled(&key, Some(&addressed()));
        assert!(has(&metrics, r#"balancers_not_ready{reason="NotWritten"} 0"#));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_to_an_address_begins_with_the_first_look_and_ends_once() {
        let (metrics, key) = (Metrics::default(), ObjectKey::new("shop", "web"));
        metrics.looked_at(&key, &lb(&json!({})));
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        metrics.looked_at(&key, &lb(&json!({})));
        metrics.settled(&key, Some(&lb(&json!({}))));
        for _ in 0..2 {
            metrics.settled(&key, Some(&addressed()));
        }
        assert!(has(&metrics, "balancers_address_delay_seconds_count 1"));
        assert!(has(&metrics, "balancers_address_delay_seconds_sum 3.0"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_goes_without_address_leaves_nothing_behind() {
        let (metrics, key) = (Metrics::default(), ObjectKey::new("shop", "web"));
        metrics.looked_at(&key, &not_ready("PoolExhausted"));
        metrics.settled(&key, Some(&not_ready("PoolExhausted")));
        metrics.settled(&key, None);
        let objects = metrics.objects();
        assert!(objects.not_ready.is_empty() && objects.without_address.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn reasons_that_a_tenant_writes_make_one_series_and_take_no_place_of_another() {
        let metrics = Metrics::default();
        for number in 0..500 {
            let key = ObjectKey::new("shop", format!("web-{number}"));
            metrics.settled(&key, Some(&not_ready(&format!("Reason{number}"))));
        }
        metrics.settled(&ObjectKey::new("shop", "waits"), Some(&not_ready("PoolExhausted")));
        assert!(has(&metrics, r#"balancers_not_ready{reason="Other"} 500"#));
        assert!(has(&metrics, r#"balancers_not_ready{reason="PoolExhausted"} 1"#));
        let series = lines(&metrics).iter().filter(|line| line.starts_with("balancers_not_ready{")).count();
        assert_eq!(series, 2);
    }

    #[test]
    fn records_that_come_and_go_are_counted_by_pool_and_family() {
        let pool = |allocated: &Value| {
            let pool = json!({"metadata": {"name": "edge"}, "spec": {"ranges": []},
                "status": {"total": 9, "available": 7, "lastAllocated": "", "allocated": allocated}});
            Some(Arc::new(serde_json::from_value(pool).unwrap()))
        };
        let change = |old, new| Change { key: ObjectKey::new("", "edge"), old, new };
        let metrics = Metrics::default();
        let tell = |change: &Change<_>| {
            metrics.pool_changed(change, &RecordChange::of(change), || change.new.clone());
        };
        let before = json!({"192.0.2.1": "a/a", "192.0.2.2": "a/b"});
        let after = json!({"192.0.2.2": "a/c", "fd00::1": "a/d", "::ffff:192.0.2.3": "a/e"});
        let (before, after) = (pool(&before), pool(&after));
        tell(&change(None, before.clone()));
        assert!(
            !lines(&metrics).iter().any(|line| line.starts_with("pool_allocations")),
            "no news at a start"
        );
        tell(&change(before, after.clone()));
        for line in [
            r#"pool_allocations_total{pool="edge"} 3"#,
            r#"pool_releases_total{pool="edge"} 2"#,
            r#"pool_addresses_held{pool="edge",family="IPv4"} 2"#,
            r#"pool_addresses_held{pool="edge",family="IPv6"} 1"#,
        ] {
            assert!(has(&metrics, line), "{line}: {:#?}", lines(&metrics));
        }
        tell(&change(after, None));
        assert!(!lines(&metrics).iter().any(|line| line.contains(r#"pool="edge""#)));
    }

    #[test]
    fn a_pool_that_loses_a_family_loses_its_series() {
        let pool = |ranges: Value| {
            let pool = json!({"metadata": {"name": "edge"}, "spec": {"ranges": ranges},
                "status": {"total": 6, "available": 5, "lastAllocated": "", "allocated": {"192.0.2.1": "a/a"}}});
            Arc::new(serde_json::from_value::<RawObject<IPPool>>(pool).unwrap())
        };
        let both =
            pool(json!([{"subnet": "192.0.2.0/29", "gateway": "192.0.2.6"}, {"subnet": "fd00::/120"}]));
        let metrics = Metrics::default();
        tell(&metrics, None, Some(&both), Some(&both));
        for line in [
            r#"pool_addresses{pool="edge",family="IPv4"} 5"#,
            r#"pool_addresses_available{pool="edge",family="IPv4"} 4"#,
            r#"pool_addresses_held{pool="edge",family="IPv4"} 1"#,
        ] {
            assert!(has(&metrics, line), "{line}: {:#?}", lines(&metrics));
        }
        let is_ipv6 = |line: &String| line.starts_with("pool_addresses{") && line.contains("IPv6");
        assert!(lines(&metrics).iter().any(is_ipv6));
        let one = pool(json!([{"subnet": "192.0.2.0/29"}]));
        tell(&metrics, Some(&both), Some(&one), Some(&one));
        assert!(has(&metrics, r#"pool_addresses_available{pool="edge",family="IPv4"} 5"#));
        assert!(!lines(&metrics).iter().any(is_ipv6), "{:#?}", lines(&metrics));
    }

    /// Pool `edge` with so many records.
    fn edge(records: usize) -> Arc<RawObject<IPPool>> {
        let allocated: std::collections::BTreeMap<_, _> =
            (0..records).map(|n| (format!("fd00::{n}"), format!("shop/web-{n}"))).collect();
        let pool = json!({"metadata": {"name": "edge"}, "spec": {"ranges": []},
            "status": {"total": 9, "available": 7, "lastAllocated": "", "allocated": allocated}});
        Arc::new(serde_json::from_value(pool).unwrap())
    }

    type Version<'a> = Option<&'a Arc<RawObject<IPPool>>>;

    /// Tells of the change at a time when the cache has `newest`.
    fn tell(metrics: &Metrics, old: Version<'_>, new: Version<'_>, newest: Version<'_>) {
        let change = Change { key: ObjectKey::new("", "edge"), old: old.cloned(), new: new.cloned() };
        metrics.pool_changed(&change, &RecordChange::of(&change), || newest.cloned());
    }

    #[test]
    fn a_pool_whose_last_change_is_told_after_its_deletion_leaves_no_series() {
        let (metrics, one, two) = (Metrics::default(), edge(1), edge(2));
        tell(&metrics, None, Some(&one), Some(&one));
        tell(&metrics, Some(&two), None, None);
        tell(&metrics, Some(&one), Some(&two), None);
        assert!(
            !lines(&metrics).iter().any(|line| line.contains(r#"pool="edge""#)),
            "{:#?}",
            lines(&metrics)
        );
        let again = edge(1);
        tell(&metrics, None, Some(&again), Some(&again));
        assert!(has(&metrics, r#"pool_addresses_held{pool="edge",family="IPv6"} 1"#));
    }

    #[test]
    fn a_change_that_the_first_list_has_too_is_counted_once() {
        let (metrics, one, two) = (Metrics::default(), edge(1), edge(2));
        tell(&metrics, Some(&one), Some(&two), Some(&two));
        tell(&metrics, None, Some(&two), Some(&two));
        assert!(
            has(&metrics, r#"pool_addresses_held{pool="edge",family="IPv6"} 2"#),
            "{:#?}",
            lines(&metrics)
        );
        assert!(has(&metrics, r#"pool_allocations_total{pool="edge"} 0"#), "two were there before");
    }

    #[test]
    fn a_change_of_one_record_counts_no_other() {
        let (metrics, old, new) = (Metrics::default(), edge(500), edge(501));
        tell(&metrics, None, Some(&old), Some(&old));
        let change = Change { key: ObjectKey::new("", "edge"), old: Some(old), new: Some(new.clone()) };
        let records = RecordChange::of(&change);
        assert_eq!(steps_of(|| metrics.pool_changed(&change, &records, || Some(new))), 1);
        assert!(has(&metrics, r#"pool_allocations_total{pool="edge"} 1"#));
    }
}
