//! Load balancers that wait for a pool: a change of pools wakes them, and none asks again and again.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex},
};

use controller_kit::{Change, ObjectKey, Queue, RawObject};
use harvester_api::{ConditionStatus, IPPool, LoadBalancer, annotations, condition};
use kube::ResourceExt as _;

use super::{Orders, PoolIndex, orders::Changed};
use crate::steps::step;

/// The change of pools that a load balancer waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitingFor {
    /// Any change: a worker decides about the load balancer now, or a pool's writer has its order.
    Anything,
    /// The pool that its spec names.
    Named(String),
    /// It asks for this address and no other: whoever asks for one that is taken hears of no other's release.
    Address(IpAddr),
    /// It lacks addresses of both families: any of these changes may bring one.
    EitherOf(Box<[WaitingFor; 2]>),
    /// It is placed by selection: another outcome of that, or an address of these pools, which had none to give.
    Selection(Vec<String>),
}

impl WaitingFor {
    /// After nothing came of asking: `named` is the pool of the spec, empty where there is none, `asked` those that
    /// refused.
    pub(crate) fn after(named: &str, asked: Vec<String>) -> Self {
        if named.is_empty() { Self::Selection(asked) } else { Self::Named(named.to_owned()) }
    }

    /// Either of two changes.
    pub(crate) fn or(self, other: Self) -> Self {
        if self == other { self } else { Self::EitherOf(Box::new([self, other])) }
    }

    /// Whether the news may end the wait.
    fn may_end(&self, news: &News) -> bool {
        match (self, news) {
            // a pool that comes or goes may free an address that another one overlaps
            (Self::Anything, _) | (_, News::Choice) => true,
            (Self::EitherOf(both), _) => both.iter().any(|one| one.may_end(news)),
            (Self::Named(named), News::Freed { pools, .. }) => pools.contains(named),
            (Self::Address(address), News::Freed { addresses, .. }) => addresses.contains(address),
            (Self::Selection(asked), News::Freed { pools, .. }) => {
                asked.iter().any(|asked| pools.contains(asked))
            }
        }
    }
}

/// The meaning of a change for load balancers that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// These addresses came free, or went to other holders, which these pools may give.
    Freed { addresses: BTreeSet<IpAddr>, pools: BTreeSet<String> },
    /// Selection may answer otherwise: a pool came or went, or has another spec or other faults.
    Choice,
}

/// The load balancers that wait. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolWaiters(Arc<Mutex<HashMap<ObjectKey, WaitingFor>>>);

impl PoolWaiters {
    /// Enter with [`WaitingFor::Anything`] before looking at the pools: what happens after the look then wakes.
    pub(crate) fn enter(&self, key: &ObjectKey, waiting_for: WaitingFor) {
        self.waiters().insert(key.clone(), waiting_for);
    }

    pub(crate) fn leave(&self, key: &ObjectKey) {
        self.waiters().remove(key);
    }

    /// The load balancers whose wait the news may end.
    fn concerned_by(&self, news: &News) -> Vec<ObjectKey> {
        let waiters = self.waiters();
        let called = waiters.iter().inspect(|_| step()).filter(|(_, waiting_for)| waiting_for.may_end(news));
        called.map(|(key, _)| key.clone()).collect()
    }

    fn waiters(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, WaitingFor>> {
        self.0.lock().expect("no panic while the waiters are locked")
    }
}

/// Wakes load balancers that wait. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PoolNews {
    pub(crate) waiters: PoolWaiters,
    pub(crate) index: PoolIndex,
    pub(crate) orders: Orders,
    pub(crate) queue: Queue<ObjectKey>,
    /// Of pools: what their conditions say.
    pub(crate) pools: Queue<ObjectKey>,
}

impl PoolNews {
    /// A pool has changed. A claim is no news: in a burst there is one for each of those who wait.
    pub(crate) fn pool_changed(&self, old: Option<&IPPool>, new: Option<&IPPool>) {
        if let Some(news) = news(old, new, |addresses| self.index.offering(addresses)) {
            let changed = new.map(|pool| Changed {
                pool: pool.metadata.name.as_deref().unwrap_or_default(),
                version: Some(pool.metadata.resource_version.as_deref().unwrap_or_default()),
            });
            self.tell(&news, changed);
        }
    }

    /// The object `key` or its Service has changed, and may keep addresses from those who wait no more.
    pub(crate) fn keeper_changed(&self, key: &ObjectKey) {
        self.freed(&self.index.no_longer_kept(key));
    }

    /// The load balancer may be of another guest cluster now, whose quota it counts for.
    pub(crate) fn tenant_changed(&self, change: &Change<RawObject<LoadBalancer>>) {
        let Some(pools) = self.index.pools_of_moved(change) else { return };
        // a refusal may be on its way that counted it for the former one
        self.orders.outdate(&change.key, None);
        self.queue.add(change.key.clone());
        // a tenant that held more than its quota gives may hold less now; it may write its objects as often as it likes
        for pool in pools {
            let (news, name) = (self.clone(), pool.clone());
            self.orders
                .refresh(&change.key.namespace, &pool, &self.pools, move || news.counts_otherwise(&name));
        }
    }

    /// The pool has been looked at since something else counts for its quotas. What it answers from then on is by that.
    fn counts_otherwise(&self, pool: &str) {
        let news = News::Freed { addresses: BTreeSet::new(), pools: [pool.to_owned()].into() };
        self.tell(&news, Some(Changed { pool, version: None }));
    }

    /// Nothing but a record can keep these addresses from anybody now.
    pub(crate) fn freed(&self, addresses: &[IpAddr]) {
        let free = |address: &IpAddr| self.index.holders_of(*address).is_empty();
        let free: Vec<_> = addresses.iter().copied().filter(free).collect();
        if !free.is_empty() {
            let pools = self.index.offering(&free);
            self.tell(&News::Freed { addresses: free.into_iter().collect(), pools }, None);
        }
    }

    /// `changed` is the pool whose change the news is.
    fn tell(&self, news: &News, changed: Option<Changed<'_>>) {
        let helps = changed.filter(|changed| match news {
            News::Freed { pools, .. } => pools.iter().all(|pool| pool == changed.pool),
            News::Choice => false,
        });
        for key in self.waiters.concerned_by(news) {
            self.orders.outdate(&key, helps);
            self.queue.add(key);
        }
    }
}

/// `offering` tells the pools that have one of these addresses to give: any of them may have waited for it.
fn news(
    old: Option<&IPPool>,
    new: Option<&IPPool>,
    offering: impl Fn(&[IpAddr]) -> BTreeSet<String>,
) -> Option<News> {
    let (Some(old), Some(new)) = (old, new) else { return Some(News::Choice) };
    // what is wrong with it counts too: one fault that is mended may have been the one that kept everybody away. What a pool that
    // is ready says besides (of quotas, rests, orphans) keeps nobody away, nor does how many hold one that is being deleted
    let faults = |pool: &IPPool| {
        let conditions = pool.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition::ready(conditions).map(|ready| {
            let is_fault = ready.status != ConditionStatus::True && ready.reason != "Deleting";
            (ready.status, is_fault.then(|| ready.message.clone()))
        })
    };
    if !ip_pools::same_rules(old, new) || faults(old) != faults(new) {
        return Some(News::Choice);
    }
    // one that went straight to another holder is news to those who wait for its end: they may stop
    let now = |address: &String| new.status.as_ref().and_then(|status| status.allocated.get(address));
    let before = old.status.iter().flat_map(|status| status.allocated.iter());
    let freed: Vec<_> = before.filter(|(address, holder)| now(address) != Some(*holder)).collect();
    let rested = rested(old, new);
    if freed.is_empty() && rested.is_empty() {
        return None;
    }
    // another program may have written an IPv4 address as a mapped one
    let parsed = |key: &String| key.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    let addresses: Vec<_> = freed.iter().filter_map(|(key, _)| parsed(key)).chain(rested.clone()).collect();
    let is_free = |address: &IpAddr| now(&address.to_string()).is_none();
    let free: Vec<_> = addresses.iter().copied().filter(is_free).collect();
    let mut pools = if free.is_empty() { BTreeSet::new() } else { offering(&free) };
    // the record, or the quota of who had the address, has room again; not where it went back to who laid it to rest
    if !freed.is_empty() || rested.iter().any(|address| !is_back(old, new, *address)) {
        pools.extend(old.metadata.name.clone());
    }
    Some(News::Freed { addresses: addresses.into_iter().collect(), pools })
}

/// Whether who had the address last has it again: then it counts for the same quotas as while it rested. A Service of that
/// name may be one of another guest cluster.
fn is_back(old: &IPPool, new: &IPPool, address: IpAddr) -> bool {
    let key = address.to_string();
    let last = old.status.as_ref().and_then(|status| status.allocated_history.get(&key));
    let now = new.status.as_ref().and_then(|status| status.allocated.get(&key));
    let limits_clusters = new.spec.quota.iter().any(|quota| !quota.guest_cluster.is_empty());
    last.zip(now)
        .is_some_and(|(last, now)| last == now || !limits_clusters && ipam::is_same_service(last, now))
}

/// Addresses whose rest is over.
fn rested(old: &IPPool, new: &IPPool) -> Vec<IpAddr> {
    let text = |pool: &IPPool| pool.annotations().get(annotations::QUARANTINE).cloned();
    if text(old).is_none() || text(old) == text(new) {
        return Vec::new();
    }
    let now = ip_pools::written_rests(new);
    ip_pools::written_rests(old).into_keys().filter(|address| !now.contains_key(address)).collect()
}

#[cfg(test)]
mod tests {
    use harvester_api::{IPPoolSpec, IPPoolStatus};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pool(addresses: &[&str]) -> IPPool {
        let allocated =
            addresses.iter().map(|address| ((*address).to_owned(), "shop/web".to_owned())).collect();
        let status = IPPoolStatus { allocated, ..IPPoolStatus::default() };
        IPPool { status: Some(status), ..IPPool::new("edge", IPPoolSpec::default()) }
    }

    fn of_another(address: &str) -> IPPool {
        let mut pool = pool(&[]);
        let status = pool.status.as_mut().unwrap();
        status.allocated.insert(address.to_owned(), "shop/api".to_owned());
        pool
    }

    fn checked(fault: &str) -> IPPool {
        let ready = json!({"type": condition::READY, "status": if fault.is_empty() { "True" } else { "False" },
            "message": fault});
        let mut pool = pool(&[]);
        pool.status.as_mut().unwrap().conditions.push(serde_json::from_value(ready).unwrap());
        pool
    }

    fn says(status: &str, reason: &str, message: &str) -> Option<IPPool> {
        let ready = json!({"type": condition::READY, "status": status, "reason": reason, "message": message});
        let mut pool = pool(&[]);
        pool.status.as_mut().unwrap().conditions.push(serde_json::from_value(ready).unwrap());
        Some(pool)
    }

    fn by_name(auto_assign: &str) -> IPPool {
        let mut pool = pool(&[]);
        let annotation = (annotations::AUTO_ASSIGN.to_owned(), auto_assign.to_owned());
        pool.metadata.annotations = Some([annotation].into());
        pool
    }

    fn resting(addresses: &[&str]) -> IPPool {
        let mut pool = pool(&[]);
        let ends: Value =
            addresses.iter().map(|ip| ((*ip).to_owned(), json!("2026-01-01T00:00:00Z"))).collect();
        pool.metadata.annotations = Some([(annotations::QUARANTINE.to_owned(), ends.to_string())].into());
        pool
    }

    fn of_priority(priority: i64) -> IPPool {
        let mut pool = pool(&[]);
        pool.spec.selector.priority = priority;
        pool
    }

    #[rstest]
    #[case::claimed(Some(pool(&["10.0.0.1"])), Some(pool(&["10.0.0.1", "10.0.0.2"])), None)]
    #[case::first_claim(Some(IPPool::new("edge", IPPoolSpec::default())), Some(pool(&["10.0.0.1"])), None)]
    #[case::released(
        Some(pool(&["10.0.0.1", "10.0.0.2"])), Some(pool(&["10.0.0.1"])), Some(freed("10.0.0.2", &["edge", "has 10.0.0.2"])))]
    // another program wrote the key so: those who wait know the address by its own family
    #[case::release_of_a_mapped_key(
        Some(pool(&["::ffff:10.0.0.2"])), Some(pool(&[])), Some(freed("10.0.0.2", &["edge", "has 10.0.0.2"])))]
    #[case::both(
        Some(pool(&["10.0.0.1", "10.0.0.2"])), Some(pool(&["10.0.0.2", "10.0.0.3"])), Some(freed("10.0.0.1", &["edge", "has 10.0.0.1"])))]
    // the quota of who had it has room
    #[case::to_another_holder(
        Some(pool(&["10.0.0.1"])), Some(of_another("10.0.0.1")), Some(freed("10.0.0.1", &["edge"])))]
    #[case::appeared(None, Some(pool(&[])), Some(News::Choice))]
    #[case::gone(Some(pool(&[])), None, Some(News::Choice))]
    #[case::other_priority(Some(pool(&[])), Some(of_priority(7)), Some(News::Choice))]
    #[case::for_everybody_again(Some(by_name("false")), Some(by_name("true")), Some(News::Choice))]
    #[case::begins_to_rest(Some(pool(&[])), Some(resting(&["10.0.0.2"])), None)]
    #[case::rested(
        Some(resting(&["10.0.0.2", "10.0.0.3"])), Some(resting(&["10.0.0.3"])), Some(freed("10.0.0.2", &["edge", "has 10.0.0.2"])))]
    #[case::first_condition(Some(pool(&[])), Some(checked("")), Some(News::Choice))]
    #[case::a_fault_less(Some(checked("overlap; excluded")), Some(checked("excluded")), Some(News::Choice))]
    #[case::another_note(
        says("True", "QuotaExceeded", "by namespace shop"),
        says("True", "QuotaExceeded", "by namespace lab"),
        None
    )]
    #[case::first_note(says("True", "RangesValid", ""), says("True", "NoRoomForRests", "no room"), None)]
    #[case::one_holds_less(
        says("False", "Deleting", "9 addresses are held"),
        says("False", "Deleting", "8 addresses are held"),
        None
    )]
    #[case::begins_to_go(
        says("True", "RangesValid", ""),
        says("False", "Deleting", "9 addresses are held"),
        Some(News::Choice)
    )]
    #[case::same_condition(Some(checked("overlap")), Some(checked("overlap")), None)]
    fn a_claim_is_no_news(
        #[case] old: Option<IPPool>,
        #[case] new: Option<IPPool>,
        #[case] expected: Option<News>,
    ) {
        let offering =
            |addresses: &[IpAddr]| addresses.iter().map(|address| format!("has {address}")).collect();
        assert_eq!(news(old.as_ref(), new.as_ref(), offering), expected);
    }

    // five hundred Services that are made again in a full pool called everybody who waits for it five hundred times
    #[rstest]
    #[case::who_had_it("shop/web-1a2b3c4d", "shop/web-9f8e7d6c", json!([{"namespace": "shop", "max": 2}]), &[])]
    #[case::somebody_else_after_its_rest("shop/web-1a2b3c4d", "shop/api-1a2b3c4d", json!([]), &["edge"])]
    #[case::maybe_of_another_guest_cluster(
        "shop/web-1a2b3c4d", "shop/web-9f8e7d6c", json!([{"guestCluster": "blue", "max": 2}]), &["edge"])]
    #[case::the_very_same("shop/web-1a2b3c4d", "shop/web-1a2b3c4d", json!([{"guestCluster": "blue", "max": 2}]), &[])]
    fn who_takes_back_what_rests_wakes_only_who_asked_for_that_address_or_has_its_quota_back(
        #[case] last: &str,
        #[case] now: &str,
        #[case] quota: Value,
        #[case] pools: &[&str],
    ) {
        let (mut old, mut new) = (resting(&["10.0.0.2"]), pool(&[]));
        for pool in [&mut old, &mut new] {
            pool.spec.quota = serde_json::from_value(quota.clone()).unwrap();
        }
        old.status.as_mut().unwrap().allocated_history.insert("10.0.0.2".to_owned(), last.to_owned());
        new.status.as_mut().unwrap().allocated.insert("10.0.0.2".to_owned(), now.to_owned());
        let told = news(Some(&old), Some(&new), |_| panic!("no other pool may give it"));
        assert_eq!(told, Some(freed("10.0.0.2", pools)));
    }

    fn freed(address: &str, pools: &[&str]) -> News {
        let pools = pools.iter().map(|pool| (*pool).to_owned()).collect();
        News::Freed { addresses: [address.parse().unwrap()].into(), pools }
    }

    #[rstest]
    #[case::a_release(freed("10.0.0.9", &["edge"]), &["looked_at", "full", "named"])]
    // a thousand who ask for addresses that are taken are not called for every release of their pool
    #[case::the_release_of_an_address_that_one_asks_for(
        freed("10.0.0.7", &["edge"]), &["looked_at", "asking", "full", "named"])]
    #[case::a_release_where_pools_overlap(
        freed("10.0.0.9", &["core", "edge"]), &["elsewhere", "full", "looked_at", "named", "named_elsewhere"])]
    // docs/contract/load-balancer.md#5.3: one that was placed goes where selection says now
    #[case::another_choice(News::Choice, &["asking", "elsewhere", "full", "looked_at", "named", "named_elsewhere", "without"])]
    fn those_whom_it_may_help_are_called(#[case] news: News, #[case] expected: &[&str]) {
        let (waiters, key) = (PoolWaiters::default(), |name: &str| ObjectKey::new("shop", name));
        let pools = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        waiters.enter(&key("looked_at"), WaitingFor::Anything);
        waiters.enter(&key("named"), WaitingFor::after("edge", pools(&["edge"])));
        waiters.enter(&key("named_elsewhere"), WaitingFor::after("core", pools(&["core"])));
        waiters.enter(&key("asking"), WaitingFor::Address([10, 0, 0, 7].into()));
        waiters.enter(&key("full"), WaitingFor::after("", pools(&["core", "edge"])));
        waiters.enter(&key("elsewhere"), WaitingFor::after("", pools(&["core"])));
        waiters.enter(&key("without"), WaitingFor::after("", Vec::new()));
        waiters.enter(&key("served"), WaitingFor::Anything);
        waiters.leave(&key("served"));
        let mut expected: Vec<_> = expected.iter().map(|name| key(name)).collect();
        expected.sort();
        let mut called = waiters.concerned_by(&news);
        called.sort();
        assert_eq!(called, expected);
    }
}
