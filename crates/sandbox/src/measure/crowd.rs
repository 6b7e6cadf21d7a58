//! Many Services at once, and when each got its address.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use harvester_api::{LoadBalancer, annotations};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::manifests::plain;

/// Requests of the driver under way at once.
const AT_ONCE: usize = 32;
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "default";

/// What a creation took.
pub(super) struct Burst {
    /// From each Service's creation to its address annotation.
    pub(super) one_by_one: Vec<Duration>,
    /// From the first creation to the last annotation.
    pub(super) total: Duration,
}

/// When each Service was first seen with an address.
type Seen = BTreeMap<String, Instant>;

pub(super) struct Crowd {
    guest: Client,
    harvester: Client,
    addressed: Arc<Mutex<Seen>>,
    moved: watch::Receiver<()>,
    alive: Vec<String>,
    task: JoinHandle<()>,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Crowd {
    pub(super) async fn watch(guest: Client, harvester: Client) -> Result<Self> {
        let addressed = Arc::new(Mutex::new(Seen::new()));
        let (tell, moved) = watch::channel(());
        let into = addressed.clone();
        let services = Api::<Service>::namespaced(guest.clone(), NAMESPACE);
        let task = tokio::spawn(async move {
            let mut events = watcher(services, watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = events.next().await {
                if let Ok(watcher::Event::Apply(service) | watcher::Event::InitApply(service)) = event
                    && service.annotations().contains_key(annotations::KUBE_VIP_LOADBALANCER_IPS)
                {
                    into.lock()
                        .expect("no panic while noting")
                        .entry(service.name_any())
                        .or_insert_with(Instant::now);
                    tell.send_replace(());
                }
            }
        });
        Ok(Self { guest, harvester, addressed, moved, alive: Vec::new(), task })
    }

    /// Creates `count` Services named after `stem`, and waits until all have an address.
    pub(super) async fn create(&mut self, stem: &str, count: usize) -> Result<Burst> {
        let services = Api::<Service>::namespaced(self.guest.clone(), NAMESPACE);
        let names: Vec<_> = (0..count).map(|index| format!("{stem}-{index}")).collect();
        let first = Instant::now();
        let begun: BTreeMap<String, Instant> = stream::iter(names.clone())
            .map(|name| {
                let services = services.clone();
                async move {
                    let begun = Instant::now();
                    services.create(&PostParams::default(), &service(&name)?).await.map_err(plain)?;
                    anyhow::Ok((name, begun))
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        self.alive.extend(names.iter().cloned());
        let give_up = first + PATIENCE;
        loop {
            let seen = self.addressed.lock().expect("no panic while noting").clone();
            if names.iter().all(|name| seen.contains_key(name)) {
                let one_by_one =
                    names.iter().map(|name| seen[name].saturating_duration_since(begun[name])).collect();
                let last = names.iter().map(|name| seen[name]).max().context("at least one Service")?;
                return Ok(Burst { one_by_one, total: last.duration_since(first) });
            }
            if tokio::time::timeout_at(give_up, self.moved.changed()).await.is_err() {
                let missing = names.iter().filter(|name| !seen.contains_key(*name)).count();
                bail!("{missing} of {count} Services have no address after {} s", PATIENCE.as_secs());
            }
        }
    }

    /// Deletes every Service, and answers how long it took until none and no LoadBalancer object was left.
    pub(super) async fn delete_all(&mut self) -> Result<Duration> {
        let services = Api::<Service>::namespaced(self.guest.clone(), NAMESPACE);
        let balancers = Api::<LoadBalancer>::all(self.harvester.clone());
        let begun = Instant::now();
        stream::iter(std::mem::take(&mut self.alive))
            .map(|name| {
                let services = services.clone();
                async move { services.delete(&name, &DeleteParams::default()).await.map_err(plain).map(drop) }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        loop {
            let one = ListParams::default().limit(1);
            let left = services.list_metadata(&ListParams::default()).await.map_err(plain)?;
            let left = left.iter().filter(|service| service.name_any() != "kubernetes").count();
            if left == 0 && balancers.list_metadata(&one).await.map_err(plain)?.items.is_empty() {
                self.addressed.lock().expect("no panic while noting").clear();
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > PATIENCE {
                bail!("{left} Services are still there after {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Events that tell a user of a conflict between two writers.
    pub(super) async fn conflict_events(&self) -> Result<usize> {
        let events = Api::<Event>::namespaced(self.guest.clone(), NAMESPACE);
        let events = events.list(&ListParams::default()).await.map_err(plain)?;
        let tells = |event: &&Event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.type_.as_deref() == Some("Warning")
                && (message.contains("conflict") || message.contains("the object has been modified"))
        };
        Ok(events.iter().filter(tells).count())
    }
}

fn service(name: &str) -> Result<Service> {
    let service = json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
    serde_json::from_value(service).context("describe a Service")
}
