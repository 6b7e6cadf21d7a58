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
    /// Something to happen to this pool.
    Pool(String),
    /// Some pool to appear, or to match.
    AnyPool,
}

/// The load balancers that wait. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct WaitingRoom(Arc<Mutex<HashMap<ObjectKey, WaitingFor>>>);

impl WaitingRoom {
    /// Enter before looking at the pools: what happens after the look then wakes.
    pub fn enter(&self, balancer: &ObjectKey, waiting_for: WaitingFor) {
        self.seats().insert(balancer.clone(), waiting_for);
    }

    pub fn leave(&self, balancer: &ObjectKey) {
        self.seats().remove(balancer);
    }

    /// Whom a change of this pool concerns.
    pub fn called_by(&self, pool: &str) -> Vec<ObjectKey> {
        let seats = self.seats();
        let called = seats.iter().filter(|(_, waiting_for)| match waiting_for {
            WaitingFor::Pool(name) => name == pool,
            WaitingFor::AnyPool => true,
        });
        called.map(|(key, _)| key.clone()).collect()
    }

    fn seats(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, WaitingFor>> {
        self.0.lock().expect("no panic while the waiting room is locked")
    }
}

/// Whether a change of a pool can serve somebody who could not be served before: another spec, another
/// verdict, or an address that came free. A claim alone wakes nobody.
pub fn can_help(old: Option<&IPPool>, new: &IPPool) -> bool {
    let Some(old) = old else { return true };
    let ready = |pool: &IPPool| {
        let conditions = pool.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition::ready(conditions).map(|ready| ready.status)
    };
    let (before, after) = (old.status.as_ref(), new.status.as_ref());
    let freed = match (before, after) {
        (Some(before), Some(after)) => {
            before.allocated.keys().any(|address| !after.allocated.contains_key(address))
        }
        (Some(_), None) => true,
        (None, _) => false,
    };
    freed || old.spec != new.spec || ready(old) != ready(new)
}

#[cfg(test)]
mod tests {
    use harvester_api::{IPPoolSpec, IPPoolStatus};

    use super::*;

    fn pool(addresses: &[&str]) -> IPPool {
        let allocated =
            addresses.iter().map(|address| ((*address).to_owned(), "shop/web".to_owned())).collect();
        let status = IPPoolStatus { allocated, ..IPPoolStatus::default() };
        IPPool { status: Some(status), ..IPPool::new("edge", IPPoolSpec::default()) }
    }

    #[test]
    fn a_claim_wakes_nobody_and_a_release_does() {
        assert!(!can_help(Some(&pool(&["10.0.0.1"])), &pool(&["10.0.0.1", "10.0.0.2"])));
        assert!(can_help(Some(&pool(&["10.0.0.1", "10.0.0.2"])), &pool(&["10.0.0.1"])));
        assert!(can_help(Some(&pool(&["10.0.0.1", "10.0.0.2"])), &pool(&["10.0.0.2", "10.0.0.3"])));
        assert!(can_help(None, &pool(&[])));
        let mut wider = pool(&[]);
        wider.spec.ranges.push(harvester_api::PoolRange::default());
        assert!(can_help(Some(&pool(&[])), &wider));
    }

    #[test]
    fn those_who_wait_for_another_pool_are_not_called() {
        let (room, key) = (WaitingRoom::default(), |name: &str| ObjectKey::new("shop", name));
        room.enter(&key("a"), WaitingFor::Pool("edge".into()));
        room.enter(&key("b"), WaitingFor::Pool("core".into()));
        room.enter(&key("c"), WaitingFor::AnyPool);
        room.enter(&key("d"), WaitingFor::AnyPool);
        room.leave(&key("d"));
        let mut called = room.called_by("edge");
        called.sort();
        assert_eq!(called, [key("a"), key("c")]);
    }
}
