//! The actions of a user of the two clusters: apply, look, wait, `curl`.

use std::{
    collections::BTreeSet,
    future::Future,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use harvester_api::{IPPool, LoadBalancer, labels};
use k8s_openapi::api::{
    core::v1::{Event, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::Value;

use crate::{
    curl::curl,
    environment::{on_wire, wire_port},
    manifests::plain,
};

/// Whatever a step waits for has happened long before, or never will.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const GLANCE: Duration = Duration::from_millis(50);
/// Where the tour makes its Services: beside the backends.
pub(crate) const NAMESPACE: &str = "default";
/// Label of everything that the tour makes in the guest cluster.
pub(crate) const TOUR: &str = "tour";

/// Both clusters through their API servers.
#[derive(Clone)]
pub(crate) struct Observer {
    pub(crate) guest: Client,
    pub(crate) harvester: Client,
}

impl Observer {
    /// Looks until `look` finds what it wants; the error says what it saw last.
    pub(crate) async fn wait<T, L>(&self, what: &str, look: impl Fn() -> L) -> Result<T>
    where
        L: Future<Output = Result<T>>,
    {
        self.wait_for(PATIENCE, what, look).await
    }

    /// [`Observer::wait`], where a part of it takes its time.
    pub(crate) async fn wait_for<T, L>(
        &self,
        patience: Duration,
        what: &str,
        look: impl Fn() -> L,
    ) -> Result<T>
    where
        L: Future<Output = Result<T>>,
    {
        let give_up = tokio::time::Instant::now() + patience;
        loop {
            match look().await {
                Ok(found) => return Ok(found),
                Err(seen) if tokio::time::Instant::now() > give_up => {
                    return Err(seen.context(format!("waited {} s for {what}", patience.as_secs())));
                }
                Err(_) => tokio::time::sleep(GLANCE).await,
            }
        }
    }

    pub(crate) async fn service(&self, name: &str) -> Result<Service> {
        Api::namespaced(self.guest.clone(), NAMESPACE).get(name).await.map_err(plain)
    }

    /// The address in the Service's status, once there is one.
    pub(crate) async fn address(&self, name: &str) -> Result<IpAddr> {
        self.wait(&format!("an address of Service {name}"), || async {
            let service = self.service(name).await?;
            published(&service).context("status.loadBalancer is empty")
        })
        .await
    }

    /// All addresses in the Service's status, which may have none yet.
    pub(crate) async fn addresses_now(&self, name: &str) -> Result<Vec<IpAddr>> {
        Ok(all_published(&self.service(name).await?).collect())
    }

    /// The LoadBalancer object of a Service.
    pub(crate) async fn balancer(&self, name: &str) -> Result<LoadBalancer> {
        let selector = format!("{}={NAMESPACE},{}={name}", labels::SERVICE_NAMESPACE, labels::SERVICE_NAME);
        let api = Api::<LoadBalancer>::all(self.harvester.clone());
        let found = api.list(&ListParams::default().labels(&selector)).await.map_err(plain)?.items;
        ensure!(found.len() == 1, "{} LoadBalancer objects for Service {name}", found.len());
        found.into_iter().next().context("there is one")
    }

    pub(crate) async fn pool(&self, name: &str) -> Result<IPPool> {
        Api::all(self.harvester.clone()).get(name).await.map_err(plain)
    }

    /// Whether the endpoint with `address` is ready in Harvester's slice of a LoadBalancer object.
    pub(crate) async fn is_ready(&self, balancer: &LoadBalancer, address: &str) -> Result<bool> {
        let namespace = balancer.namespace().unwrap_or_default();
        let api = Api::<EndpointSlice>::namespaced(self.harvester.clone(), &namespace);
        let slice = api.get(&balancer.name_any()).await.map_err(plain)?;
        let endpoint =
            slice.endpoints.iter().find(|endpoint| endpoint.addresses.iter().any(|ip| ip == address));
        let endpoint = endpoint.with_context(|| format!("no endpoint {address}"))?;
        Ok(endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or_default())
    }

    /// `curl`s until every backend in `wanted` has answered.
    pub(crate) async fn reaches_all(
        &self,
        address: IpAddr,
        port: u16,
        wanted: &BTreeSet<String>,
    ) -> Result<()> {
        let socket = SocketAddr::new(address, wire_port(port));
        let mut answered = BTreeSet::new();
        for _ in 0..40 * wanted.len() {
            let answer = curl(socket).await.with_context(|| format!("curl http://{socket}"))?;
            answered.insert(backend_of(&answer)?);
            if answered.is_superset(wanted) {
                return Ok(());
            }
        }
        bail!("http://{socket} was answered only by {answered:?}, not by all of {wanted:?}")
    }

    /// Waits until `curl` gets an answer: kube-vip needs a moment after the address is known.
    pub(crate) async fn answers(&self, address: IpAddr, port: u16) -> Result<String> {
        let socket = on_wire(SocketAddr::new(address, port));
        self.wait(&format!("an answer of http://{socket}"), || async { Ok(curl(socket).await?) }).await
    }

    /// The message of the Event about a Service with this reason, once there is one.
    pub(crate) async fn told(&self, service: &str, reason: &str) -> Result<String> {
        let events = Api::<Event>::namespaced(self.guest.clone(), NAMESPACE);
        let is_it = |event: &&Event| {
            event.involved_object.name.as_deref() == Some(service) && event.reason.as_deref() == Some(reason)
        };
        self.wait(&format!("an Event {reason} about Service {service}"), || async {
            let all = events.list(&ListParams::default()).await.map_err(plain)?;
            let event = all.iter().find(is_it).context("there is none")?;
            Ok(event.message.clone().unwrap_or_default())
        })
        .await
    }

    /// Deletes these Services of the tour, and waits until they are gone.
    pub(crate) async fn delete(&self, names: &[&str]) -> Result<()> {
        let services = Api::<Service>::namespaced(self.guest.clone(), NAMESPACE);
        for name in names {
            services.delete(name, &DeleteParams::default()).await.map_err(plain)?;
        }
        self.wait("the Services to go", || async {
            for name in names {
                ensure!(services.get_opt(name).await.map_err(plain)?.is_none(), "Service {name} is there");
            }
            Ok(())
        })
        .await
    }

    /// Deletes every Service of the tour, and waits until none is left.
    pub(crate) async fn delete_services(&self) -> Result<()> {
        let services = Api::<Service>::namespaced(self.guest.clone(), NAMESPACE);
        let ours = ListParams::default().labels(TOUR);
        for service in services.list(&ours).await.map_err(plain)? {
            services.delete(&service.name_any(), &DeleteParams::default()).await.map_err(plain)?;
        }
        self.wait("the Services to go", || async {
            let left = services.list(&ours).await.map_err(plain)?.items.len();
            ensure!(left == 0, "{left} Services are still there");
            Ok(())
        })
        .await
    }
}

/// The first address in a Service's status.
pub(crate) fn published(service: &Service) -> Option<IpAddr> {
    all_published(service).next()
}

fn all_published(service: &Service) -> impl Iterator<Item = IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok())
}

/// The VM that an answer of the example backend names.
pub(crate) fn backend_of(answer: &str) -> Result<String> {
    let answer: Value = serde_json::from_str(answer).with_context(|| format!("the answer is {answer:?}"))?;
    Ok(answer["vm"].as_str().context("the answer names no VM")?.to_owned())
}
