//! LoadBalancer objects that are posted to Harvester's API server directly, as fast as it takes them.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use controller_kit::Cache;
use futures::{StreamExt, TryStreamExt, stream};
use harvester_api::{IPPool, LoadBalancer};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, PostParams},
    runtime::watcher,
};
use program::TaskGroup;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::manifests::plain;

/// Connections over which objects are posted.
const CONNECTIONS: usize = 16;
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(300);
/// A namespace with a pool of its own, and what a watch tells of its objects.
pub(super) struct Direct {
    harvester: Client,
    /// Of the namespace and of the pool.
    name: &'static str,
    objects: Cache<LoadBalancer>,
    /// Names of the objects that have an address. Counted while they come: to look at all of them after each change would
    /// use more of the machine than the programs that are measured.
    addressed: Arc<Mutex<HashSet<String>>>,
    moved: watch::Receiver<()>,
    tasks: TaskGroup,
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Direct {
    /// `name`: another one each time, because a namespace takes a while to go.
    pub(super) async fn prepare(harvester: Client, name: &'static str) -> Result<Self> {
        Self::with_range(harvester, name, json!({"subnet": "10.200.0.0/16"})).await
    }

    /// [`Direct::prepare`] with this range in the pool.
    pub(super) async fn with_range(harvester: Client, name: &'static str, range: Value) -> Result<Self> {
        create::<Namespace>(&Api::all(harvester.clone()), json!({"metadata": {"name": name}})).await?;
        let pool = json!({"metadata": {"name": name}, "spec": {"ranges": [range],
            "selector": {"scope": [{"namespace": name, "project": "*", "guestCluster": "*"}]}}});
        create::<IPPool>(&Api::all(harvester.clone()), pool).await?;
        let tasks = TaskGroup::new();
        let objects: Cache<LoadBalancer> =
            Cache::start(&tasks, Api::namespaced(harvester.clone(), name), watcher::Config::default());
        let (tell, moved) = watch::channel(());
        let addressed = Arc::new(Mutex::new(HashSet::new()));
        let into = addressed.clone();
        objects.on_change(move |change| {
            let has_address = change.new.as_ref().is_some_and(|object| {
                let status = object.status.as_ref().and_then(|status| status.allocated_address.as_ref());
                status.is_some_and(|address| !address.ip.is_empty())
            });
            let mut addressed = into.lock().expect("no panic while noting");
            if has_address {
                addressed.insert(change.key.name.clone());
            } else {
                addressed.remove(&change.key.name);
            }
            tell.send_replace(());
        });
        objects.ready().await;
        Ok(Self { harvester, name, objects, addressed, moved, tasks })
    }

    /// Posts `count` objects, and answers how long it took from the first post until all have an address.
    pub(super) async fn create(&mut self, stem: &str, count: usize) -> Result<Duration> {
        let (before, begun) = (self.addressed(), Instant::now());
        self.post(stem, count).await?;
        self.until(|this| this.addressed() == before + count, "have an address").await?;
        Ok(begun.elapsed())
    }

    /// Posts `count` objects.
    pub(super) async fn post(&self, stem: &str, count: usize) -> Result<()> {
        let api = Api::<LoadBalancer>::namespaced(self.harvester.clone(), self.name);
        stream::iter(0..count)
            .map(|index| {
                let (api, name) = (api.clone(), format!("{stem}-{index}"));
                let object =
                    json!({"metadata": {"name": name}, "spec": {"workloadType": "cluster", "ipam": "pool"}});
                async move { create(&api, object).await }
            })
            .buffer_unordered(CONNECTIONS)
            .try_collect()
            .await
    }

    /// Deletes the object that is the `index`th of those with an address, and answers how long it took from then until
    /// another one has its address.
    pub(super) async fn hand_on(&mut self, index: usize) -> Result<Duration> {
        let api = Api::<LoadBalancer>::namespaced(self.harvester.clone(), self.name);
        let before = self.names();
        let name = before.get(index % before.len().max(1)).context("no object has an address")?;
        let begun = Instant::now();
        api.delete(name, &DeleteParams::default()).await.map_err(plain)?;
        let moved = |this: &Self| {
            let now = this.names();
            now.len() == before.len() && !now.contains(name)
        };
        self.until(moved, "have the address of the one that was deleted").await?;
        Ok(begun.elapsed())
    }

    /// The objects that have an address.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.addressed.lock().expect("no panic while noting").iter().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Takes everything away again.
    pub(super) async fn remove(mut self) -> Result<()> {
        let api = Api::<LoadBalancer>::namespaced(self.harvester.clone(), self.name);
        for object in self.objects.list() {
            let name = object.metadata.name.clone().context("a listed object has a name")?;
            api.delete(&name, &DeleteParams::default()).await.map_err(plain)?;
        }
        self.until(|this| this.addressed() == 0 && this.objects.list().is_empty(), "are gone").await?;
        let pools = Api::<IPPool>::all(self.harvester.clone());
        pools.delete(self.name, &DeleteParams::default()).await.map_err(plain)?;
        let namespaces = Api::<Namespace>::all(self.harvester.clone());
        namespaces.delete(self.name, &DeleteParams::default()).await.map_err(plain)?;
        Ok(())
    }

    fn addressed(&self) -> usize {
        self.addressed.lock().expect("no panic while noting").len()
    }

    async fn until(&mut self, enough: impl Fn(&Self) -> bool, what: &str) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.moved.borrow_and_update();
            if enough(self) {
                return Ok(());
            }
            let changed = tokio::time::timeout_at(give_up, self.moved.changed()).await;
            changed.with_context(|| format!("not all {what} after {} s", PATIENCE.as_secs()))??;
        }
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let object = serde_json::from_value(object).context("describe an object")?;
    api.create(&PostParams::default(), &object).await.map_err(plain).map(drop)
}
