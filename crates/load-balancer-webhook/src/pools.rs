//! Lists of all pools: one list serves every review that waits for it.
//!
//! Pools are read afresh, so that two that are created one after the other see each other: a review takes no list
//! that began before it asked. Everybody in the cluster's network can send reviews, and each list reads every pool, so
//! a few are under way at once and the reviews that come meanwhile share the next one.
//!
//! Conversion is another matter: an API server that lists a thousand objects sends a thousand reviews, one after the other.
//! They share a list for a moment, and so do load balancers that name a pool, which the load balancer judges again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use harvester_api::{IPPool, IPPoolSpec, IPPoolStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Client, Resource as _, core::Request};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// A second list starts where the first hangs.
const LISTS_AT_ONCE: usize = 2;
/// How long a list serves the reviews of load balancers that come after it.
const KEPT_FOR: Duration = Duration::from_secs(1);

type Answer = Result<Arc<[IPPool]>, Arc<kube::Error>>;
type Waiting = WeakShared<BoxFuture<'static, Answer>>;

/// The lists of one process.
#[derive(Clone)]
pub(crate) struct Pools(Arc<Lists>);

struct Lists {
    client: Client,
    /// Whether the pools have their records.
    records: bool,
    turns: Semaphore,
    /// The list that has not begun yet.
    next: Mutex<Option<Waiting>>,
    /// The last list, for a moment.
    last: Mutex<Option<Arc<[IPPool]>>>,
}

impl Pools {
    /// Lists of the specs alone.
    pub(crate) fn new(client: Client) -> Self {
        Self::of(client, false)
    }

    /// Lists with the records of all addresses.
    pub(crate) fn with_records(client: Client) -> Self {
        Self::of(client, true)
    }

    fn of(client: Client, records: bool) -> Self {
        let turns = Semaphore::new(LISTS_AT_ONCE);
        Self(Arc::new(Lists { client, records, turns, next: Mutex::default(), last: Mutex::default() }))
    }

    /// All pools, read no longer than a moment ago.
    pub(crate) async fn recent(&self) -> Answer {
        if let Some(pools) = self.0.last().clone() {
            return Ok(pools);
        }
        let pools = self.list().await?;
        // whoever reads a list ends it: the records of large pools are not held for longer
        if self.0.last().replace(pools.clone()).is_none() {
            let (lists, until) = (self.0.clone(), Instant::now() + KEPT_FOR);
            tokio::spawn(async move {
                tokio::time::sleep_until(until).await;
                *lists.last() = None;
            });
        }
        Ok(pools)
    }

    /// All pools, read after this call began.
    pub(crate) async fn list(&self) -> Answer {
        let list = {
            let mut next = self.0.next.lock().expect("no panic while a list is chosen");
            // nobody waits any more for a list that cannot be upgraded
            next.as_ref().and_then(WeakShared::upgrade).unwrap_or_else(|| {
                let list: Shared<BoxFuture<'static, Answer>> = self.0.clone().read().boxed().shared();
                *next = list.downgrade();
                list
            })
        };
        list.await
    }
}

impl Lists {
    fn last(&self) -> MutexGuard<'_, Option<Arc<[IPPool]>>> {
        self.last.lock().expect("no panic while a list is kept")
    }

    async fn read(self: Arc<Self>) -> Answer {
        let _turn = self.turns.acquire().await.expect("nothing closes this semaphore");
        *self.next.lock().expect("no panic while a list is chosen") = None;
        let request = Request::new(IPPool::url_path(&(), None)).list(&kube::api::ListParams::default());
        let request = request.map_err(|error| Arc::new(kube::Error::BuildRequest(error)))?;
        let mut list: List = self.client.request(request).await.map_err(Arc::new)?;
        if !self.records {
            list.items.iter_mut().for_each(|item| item.status = None);
        }
        // a pool that cannot be read has no ranges that could overlap
        Ok(list.items.into_iter().filter_map(Item::pool).collect())
    }
}

/// The parts of a list that are needed: no `managedFields`.
#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Option<Records>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Records {
    allocated: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    creation_timestamp: Option<Time>,
}

impl Item {
    fn pool(self) -> Option<IPPool> {
        let Metadata { name, creation_timestamp } = self.metadata;
        let spec: IPPoolSpec = serde_json::from_value(self.spec).ok()?;
        let metadata = ObjectMeta { name, creation_timestamp, ..ObjectMeta::default() };
        let status =
            self.status.map(|Records { allocated }| IPPoolStatus { allocated, ..IPPoolStatus::default() });
        Some(IPPool { metadata, spec, status })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use axum::http::{Request, Response};
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_reviews_of_conversion_one_after_the_other_cost_one_list_of_pools() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let service = tower::service_fn(move |_: Request<kube::client::Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let list = json!({"items": [{"metadata": {"name": "lab"}, "spec": {"ranges": []}}]}).to_string();
            async move { Ok::<_, Infallible>(Response::new(Body::from(list))) }
        });
        let pools = Pools::with_records(Client::new(service, "default"));
        for expected in [1, 2] {
            for _ in 0..1_000 {
                assert_eq!(pools.recent().await.unwrap().len(), 1);
            }
            assert_eq!(asked.load(Ordering::SeqCst), expected);
            // it is not older than a moment
            tokio::time::advance(KEPT_FOR).await;
            tokio::task::yield_now().await;
        }
        // admission sees what is there now
        for _ in 0..2 {
            pools.list().await.unwrap();
        }
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }
}
