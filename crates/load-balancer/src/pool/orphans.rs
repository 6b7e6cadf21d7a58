//! Services that keep an address without load balancer: those that `kubectl delete --cascade=orphan` left behind and that
//! our role may not delete, and strangers' that name the address. Nobody withdraws it, so the record stays, and the pool
//! says so.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, atomic::AtomicI64},
};

use controller_kit::ObjectKey;
use prometheus_client::metrics::gauge::Gauge;

/// The orphaned Services, by the name that they share with their LoadBalancer object. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orphans {
    keys: Arc<Mutex<BTreeSet<ObjectKey>>>,
    count: Gauge<i64, AtomicI64>,
}

impl Orphans {
    /// `count` shows how many there are.
    pub(crate) fn counted_by(count: Gauge<i64, AtomicI64>) -> Self {
        Self { keys: Arc::default(), count }
    }

    /// Notes whether the Service `key` is an orphan. Answers whether that is news.
    pub(crate) fn set(&self, key: &ObjectKey, orphaned: bool) -> bool {
        let mut keys = self.keys.lock().expect("no panic while the list of orphans is locked");
        let news = if orphaned { keys.insert(key.clone()) } else { keys.remove(key) };
        self.count.set(i64::try_from(keys.len()).unwrap_or(i64::MAX));
        news
    }

    pub(crate) fn list(&self) -> Vec<ObjectKey> {
        self.keys.lock().expect("no panic while the list of orphans is locked").iter().cloned().collect()
    }
}
