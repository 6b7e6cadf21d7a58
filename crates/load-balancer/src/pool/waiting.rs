//! Who waits for a pool, so that a change of pools wakes them and nobody asks again and again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use controller_kit::ObjectKey;
use harvester_api::{IPPool, condition};

/// What a load balancer waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// It is being looked at: whatever happens meanwhile.
    Anything,
    /// The pool that its spec names.
    Named(String),
    /// It is placed by selection: another outcome of that, or an address of these pools, which had none to give.
    Selection(Vec<String>),
}

impl WaitingFor {
    /// After nothing came of asking: `named` is the pool of the spec, empty where there is none, `asked` those that
    /// refused.
    pub fn after(named: &str, asked: Vec<String>) -> Self {
        if named.is_empty() { Self::Selection(asked) } else { Self::Named(named.to_owned()) }
    }

    /// Whether news of this pool may end the wait.
    fn may_end(&self, pool: &str, news: News) -> bool {
        match (self, news) {
            (Self::Anything, _) | (Self::Selection(_), News::Choice) => true,
            (Self::Named(named), _) => named == pool,
            (Self::Selection(asked), News::Freed) => asked.iter().any(|asked| asked == pool),
        }
    }
}

/// What a change of a pool is to those who could not be served before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// An address came free.
    Freed,
    /// Selection may answer otherwise: the pool came or went, or has another spec or verdict.
    Choice,
}

/// The load balancers that wait. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct WaitingRoom(Arc<Mutex<HashMap<ObjectKey, WaitingFor>>>);

impl WaitingRoom {
    /// Enter with [`WaitingFor::Anything`] before looking at the pools: what happens after the look then wakes.
    pub fn enter(&self, balancer: &ObjectKey, waiting_for: WaitingFor) {
        self.seats().insert(balancer.clone(), waiting_for);
    }

    pub fn leave(&self, balancer: &ObjectKey) {
        self.seats().remove(balancer);
    }

    /// Whom news of this pool concern.
    pub fn called_by(&self, pool: &str, news: News) -> Vec<ObjectKey> {
        let seats = self.seats();
        let called = seats.iter().filter(|(_, waiting_for)| waiting_for.may_end(pool, news));
        called.map(|(key, _)| key.clone()).collect()
    }

    fn seats(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, WaitingFor>> {
        self.0.lock().expect("no panic while the waiting room is locked")
    }
}

/// What a change of a pool is to those who wait. A claim is nothing: in a burst there is one for each of them.
pub fn news(old: Option<&IPPool>, new: Option<&IPPool>) -> Option<News> {
    let (Some(old), Some(new)) = (old, new) else { return Some(News::Choice) };
    // what is wrong with it counts too: one fault that is mended may have been the one that kept everybody away
    let verdict = |pool: &IPPool| {
        let conditions = pool.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition::ready(conditions).map(|ready| (ready.status, ready.message.clone()))
    };
    if old.spec != new.spec || verdict(old) != verdict(new) {
        return Some(News::Choice);
    }
    let held =
        |pool: &IPPool| pool.status.as_ref().map(|status| status.allocated.clone()).unwrap_or_default();
    let after = held(new);
    held(old).keys().any(|address| !after.contains_key(address)).then_some(News::Freed)
}

#[cfg(test)]
mod tests {
    use harvester_api::{IPPoolSpec, IPPoolStatus};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn pool(addresses: &[&str]) -> IPPool {
        let allocated =
            addresses.iter().map(|address| ((*address).to_owned(), "shop/web".to_owned())).collect();
        let status = IPPoolStatus { allocated, ..IPPoolStatus::default() };
        IPPool { status: Some(status), ..IPPool::new("edge", IPPoolSpec::default()) }
    }

    fn judged(fault: &str) -> IPPool {
        let ready = json!({"type": condition::READY, "status": if fault.is_empty() { "True" } else { "False" },
            "message": fault});
        let mut pool = pool(&[]);
        pool.status.as_mut().unwrap().conditions.push(serde_json::from_value(ready).unwrap());
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
    #[case::released(Some(pool(&["10.0.0.1", "10.0.0.2"])), Some(pool(&["10.0.0.1"])), Some(News::Freed))]
    #[case::both(Some(pool(&["10.0.0.1", "10.0.0.2"])), Some(pool(&["10.0.0.2", "10.0.0.3"])), Some(News::Freed))]
    #[case::appeared(None, Some(pool(&[])), Some(News::Choice))]
    #[case::gone(Some(pool(&[])), None, Some(News::Choice))]
    #[case::other_priority(Some(pool(&[])), Some(of_priority(7)), Some(News::Choice))]
    #[case::first_verdict(Some(pool(&[])), Some(judged("")), Some(News::Choice))]
    #[case::a_fault_less(Some(judged("overlap; excluded")), Some(judged("excluded")), Some(News::Choice))]
    #[case::same_verdict(Some(judged("overlap")), Some(judged("overlap")), None)]
    fn a_claim_is_no_news(
        #[case] old: Option<IPPool>,
        #[case] new: Option<IPPool>,
        #[case] expected: Option<News>,
    ) {
        assert_eq!(news(old.as_ref(), new.as_ref()), expected);
    }

    #[rstest]
    #[case::a_release(News::Freed, &["looked_at", "full", "named"])]
    // load-balancer.md 5.3: one that was placed goes where selection says now
    #[case::another_choice(News::Choice, &["elsewhere", "full", "looked_at", "named", "without"])]
    fn those_whom_it_may_help_are_called(#[case] news: News, #[case] expected: &[&str]) {
        let (room, key) = (WaitingRoom::default(), |name: &str| ObjectKey::new("shop", name));
        let pools = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        room.enter(&key("looked_at"), WaitingFor::Anything);
        room.enter(&key("named"), WaitingFor::after("edge", pools(&["edge"])));
        room.enter(&key("named_elsewhere"), WaitingFor::after("core", pools(&["core"])));
        room.enter(&key("full"), WaitingFor::after("", pools(&["core", "edge"])));
        room.enter(&key("elsewhere"), WaitingFor::after("", pools(&["core"])));
        room.enter(&key("without"), WaitingFor::after("", Vec::new()));
        room.enter(&key("served"), WaitingFor::Anything);
        room.leave(&key("served"));
        let mut expected: Vec<_> = expected.iter().map(|name| key(name)).collect();
        expected.sort();
        let mut called = room.called_by("edge", news);
        called.sort();
        assert_eq!(called, expected);
    }
}
