//! LoadBalancer objects that are posted to Harvester's API server directly, as fast as it takes them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

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
/// Namespace and pool of the objects.
const NAME: &str = "bench-direct";

/// A namespace with a pool of its own, and what a watch tells of its objects.
pub(super) struct Direct {
    harvester: Client,
    objects: Cache<LoadBalancer>,
    moved: watch::Receiver<()>,
    tasks: TaskGroup,
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Direct {
    pub(super) async fn prepare(harvester: Client) -> Result<Self> {
        create::<Namespace>(&Api::all(harvester.clone()), json!({"metadata": {"name": NAME}})).await?;
        let pool = json!({"metadata": {"name": NAME}, "spec": {"ranges": [{"subnet": "10.200.0.0/16"}],
            "selector": {"scope": [{"namespace": NAME, "project": "*", "guestCluster": "*"}]}}});
        create::<IPPool>(&Api::all(harvester.clone()), pool).await?;
        let tasks = TaskGroup::new();
        let objects =
            Cache::start(&tasks, Api::namespaced(harvester.clone(), NAME), watcher::Config::default());
        let (tell, moved) = watch::channel(());
        objects.on_change(move |_| tell.send_replace(()));
        objects.ready().await;
        Ok(Self { harvester, objects, moved, tasks })
    }

    /// Posts `count` objects, and answers how long it took from the first post until all have an address.
    pub(super) async fn create(&mut self, stem: &str, count: usize) -> Result<Duration> {
        let api = Api::<LoadBalancer>::namespaced(self.harvester.clone(), NAME);
        let names: BTreeSet<String> = (0..count).map(|index| format!("{stem}-{index}")).collect();
        let begun = Instant::now();
        stream::iter(names.iter().cloned())
            .map(|name| {
                let api = api.clone();
                let object =
                    json!({"metadata": {"name": name}, "spec": {"workloadType": "cluster", "ipam": "pool"}});
                async move { create(&api, object).await }
            })
            .buffer_unordered(CONNECTIONS)
            .try_collect::<()>()
            .await?;
        let addressed = |object: &Arc<LoadBalancer>| {
            let status = object.status.as_ref().and_then(|status| status.allocated_address.as_ref());
            let named = object.metadata.name.as_ref().is_some_and(|name| names.contains(name));
            named && status.is_some_and(|address| !address.ip.is_empty())
        };
        self.until(|all| all.iter().filter(|one| addressed(one)).count() == count, "have an address").await?;
        Ok(begun.elapsed())
    }

    /// Takes everything away again.
    pub(super) async fn remove(mut self) -> Result<()> {
        let api = Api::<LoadBalancer>::namespaced(self.harvester.clone(), NAME);
        for object in self.objects.list() {
            let name = object.metadata.name.clone().context("a listed object has a name")?;
            api.delete(&name, &DeleteParams::default()).await.map_err(plain)?;
        }
        self.until(<[_]>::is_empty, "are gone").await?;
        let pools = Api::<IPPool>::all(self.harvester.clone());
        pools.delete(NAME, &DeleteParams::default()).await.map_err(plain)?;
        let namespaces = Api::<Namespace>::all(self.harvester.clone());
        namespaces.delete(NAME, &DeleteParams::default()).await.map_err(plain)?;
        Ok(())
    }

    async fn until(&mut self, enough: impl Fn(&[Arc<LoadBalancer>]) -> bool, what: &str) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.moved.borrow_and_update();
            if enough(&self.objects.list()) {
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
