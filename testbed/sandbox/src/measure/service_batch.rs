//! Many Services at once, and when each got its address.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use controller_kit::Cache;
use futures::{StreamExt, TryStreamExt, stream};
use harvester_api::{LoadBalancer, annotations};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    runtime::watcher,
};
use program::TaskGroup;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::manifests::plain;

/// Requests of the driver under way at once.
const AT_ONCE: usize = 32;
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "default";

/// The times of a creation.
pub(super) struct Burst {
    /// From each Service's creation to its address annotation.
    pub(super) one_by_one: Vec<Duration>,
    /// From the first creation to the last annotation.
    pub(super) total: Duration,
}

/// The events of both clusters' watches so far.
#[derive(Default)]
struct Told {
    /// When each Service was first seen with an address.
    addressed: BTreeMap<String, Instant>,
    services: usize,
    balancers: usize,
}

pub(super) struct ServiceBatch {
    guest: Client,
    told: Arc<Mutex<Told>>,
    moved: watch::Receiver<()>,
    alive: Vec<String>,
    tasks: TaskGroup,
}

impl Drop for ServiceBatch {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl ServiceBatch {
    pub(super) async fn watch(guest: Client, harvester: Client) -> Result<Self> {
        let tasks = TaskGroup::new();
        let services: Cache<Service> =
            Cache::start(&tasks, Api::namespaced(guest.clone(), NAMESPACE), watcher::Config::default());
        let balancers: Cache<LoadBalancer> =
            Cache::start(&tasks, Api::all(harvester), watcher::Config::default());
        let told = Arc::new(Mutex::new(Told::default()));
        let (tell, moved) = watch::channel(());
        let tell = Arc::new(tell);

        let (into, bell) = (told.clone(), tell.clone());
        services.on_change(move |change| {
            let of_type = |service: &Arc<Service>| {
                service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
            };
            let mut told = into.lock().expect("no panic while noting");
            match (
                change.old.as_ref().filter(|old| of_type(old)),
                change.new.as_ref().filter(|new| of_type(new)),
            ) {
                (None, Some(_)) => told.services += 1,
                (Some(_), None) => told.services -= 1,
                _ => {}
            }
            let addressed = |service: &Arc<Service>| {
                service.annotations().contains_key(annotations::KUBE_VIP_LOADBALANCER_IPS)
            };
            if change.new.as_ref().is_some_and(addressed) {
                told.addressed.entry(change.key.name.clone()).or_insert_with(Instant::now);
            } else if change.new.is_none() {
                told.addressed.remove(&change.key.name);
            }
            bell.send_replace(());
        });
        let into = told.clone();
        balancers.on_change(move |change| {
            let mut told = into.lock().expect("no panic while noting");
            match (&change.old, &change.new) {
                (None, Some(_)) => told.balancers += 1,
                (Some(_), None) => told.balancers -= 1,
                _ => {}
            }
            tell.send_replace(());
        });
        services.ready().await;
        balancers.ready().await;
        Ok(Self { guest, told, moved, alive: Vec::new(), tasks })
    }

    /// Creates `count` Services named after `stem`, and waits until all have an address.
    pub(super) async fn create(&mut self, stem: &str, count: usize) -> Result<Burst> {
        self.create_these((0..count).map(|index| service(&format!("{stem}-{index}"))).collect()).await
    }

    /// Creates Services of the guest data path, and waits until all have an address.
    pub(super) async fn create_these(&mut self, manifests: Vec<Value>) -> Result<Burst> {
        let services = Api::<Service>::namespaced(self.guest.clone(), NAMESPACE);
        let wanted: Vec<Service> = manifests
            .into_iter()
            .map(serde_json::from_value)
            .collect::<Result<_, _>>()
            .context("describe a Service")?;
        let names: Vec<_> = wanted.iter().map(ResourceExt::name_any).collect();
        let first = Instant::now();
        let begun: BTreeMap<String, Instant> = stream::iter(wanted)
            .map(|service| {
                let services = services.clone();
                async move {
                    let begun = Instant::now();
                    services.create(&PostParams::default(), &service).await.map_err(plain)?;
                    anyhow::Ok((service.name_any(), begun))
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        self.alive.extend(names.iter().cloned());
        let there = self.alive.len();
        self.until(|told| told.addressed.len() >= there, "have an address").await?;
        let addressed = &self.told.lock().expect("no panic while noting").addressed;
        let one_by_one =
            names.iter().map(|name| addressed[name].saturating_duration_since(begun[name])).collect();
        let last = names.iter().map(|name| addressed[name]).max().context("at least one Service")?;
        Ok(Burst { one_by_one, total: last.duration_since(first) })
    }

    /// Waits until the watches have told enough.
    async fn until(&mut self, enough: impl Fn(&Told) -> bool, what: &str) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.moved.borrow_and_update();
            let counts = {
                let told = self.told.lock().expect("no panic while noting");
                if enough(&told) {
                    return Ok(());
                }
                (told.addressed.len(), told.services, told.balancers)
            };
            if tokio::time::timeout_at(give_up, self.moved.changed()).await.is_err() {
                let (addressed, services, balancers) = counts;
                bail!(
                    "not all {what} after {} s: {services} Services, {addressed} with an address, {balancers} LoadBalancers",
                    PATIENCE.as_secs()
                );
            }
        }
    }

    /// Deletes every Service, and answers how long it took until none and no LoadBalancer object was left.
    pub(super) async fn delete_all(&mut self) -> Result<Duration> {
        let services = Api::<Service>::namespaced(self.guest.clone(), NAMESPACE);
        let begun = Instant::now();
        stream::iter(std::mem::take(&mut self.alive))
            .map(|name| {
                let services = services.clone();
                async move { services.delete(&name, &DeleteParams::default()).await.map_err(plain).map(drop) }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.until(|told| told.services == 0 && told.balancers == 0, "are gone").await?;
        Ok(begun.elapsed())
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

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}
