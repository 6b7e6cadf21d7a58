//! Services that share an address, and Services whose ports change.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{IDLE, QUIET, ServiceBatch, Tally, settled};
use crate::{environment::Environment, manifests::plain, measure::percentile};

/// Secondaries, created one after the other.
const SECONDARIES: u16 = 50;
/// Changes of the port of one Service.
const CHANGES: u16 = 10;
const PRIMARY: &str = "bench-primary";
const NAMESPACE: &str = "default";
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(10);

/// From the creation of a secondary to its address annotation.
pub(super) async fn shared(batch: &mut ServiceBatch, say: impl Fn(&str, f64)) -> Result<()> {
    batch.create_these(vec![service(PRIMARY, 80, &[])]).await?;
    let mut times = Vec::new();
    for number in 1..=SECONDARIES {
        tokio::time::sleep(IDLE).await;
        let name = format!("bench-secondary-{number}");
        let secondary = service(&name, 80 + number, &[(annotations::PRIMARY_SERVICE, PRIMARY)]);
        let burst = batch.create_these(vec![secondary]).await?;
        times.extend(burst.one_by_one.iter().map(|time| time.as_secs_f64() * 1_000.0));
    }
    say("shared-create-p50-ms", percentile(&mut times, 0.50));
    batch.delete_all().await.map(drop)
}

/// Requests of the cloud controller manager in Harvester for a change of one port, on both data paths.
pub(super) async fn port_changes(
    environment: &Environment,
    batch: &mut ServiceBatch,
    say: impl Fn(&str, f64),
) -> Result<()> {
    batch.create_these(vec![service("bench-ports", 80, &[])]).await?;
    settled(environment).await?;
    let mut asked = Tally::new(environment.audit_files());
    for change in 1..=CHANGES {
        set_port(&environment.guest, "bench-ports", 80 + change).await?;
        // a change that comes sooner may be seen together with this one
        tokio::time::sleep(IDLE).await;
    }
    asked.quiet(QUIET).await?;
    say(
        "port-change-harvester-requests-guest",
        asked.total().ccm_in_harvester_of_its_own as f64 / f64::from(CHANGES),
    );
    batch.delete_all().await?;

    let services = Api::<Service>::namespaced(environment.guest.clone(), NAMESPACE);
    let host = service("bench-ports-host", 80, &[(annotations::DATA_PATH, "host")]);
    let host: Service = serde_json::from_value(host).context("describe a Service")?;
    services.create(&PostParams::default(), &host).await.map_err(plain)?;
    listens(&environment.harvester, 80).await?;
    settled(environment).await?;
    let mut asked = Tally::new(environment.audit_files());
    for change in 1..=CHANGES {
        set_port(&environment.guest, "bench-ports-host", 80 + change).await?;
        listens(&environment.harvester, 80 + change).await?;
        tokio::time::sleep(IDLE).await;
    }
    asked.quiet(QUIET).await?;
    say(
        "port-change-harvester-requests-host",
        asked.total().ccm_in_harvester_of_its_own as f64 / f64::from(CHANGES),
    );
    services.delete("bench-ports-host", &DeleteParams::default()).await.map_err(plain)?;
    // nothing is alive in the batch: it waits until the last of other Services is gone
    batch.delete_all().await.map(drop)
}

async fn set_port(guest: &Client, service: &str, port: u16) -> Result<()> {
    let services = Api::<Service>::namespaced(guest.clone(), NAMESPACE);
    let patch = json!({"spec": {"ports": [port_of(port)]}});
    services.patch(service, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(plain).map(drop)
}

/// Waits until the LoadBalancer object of the host data path has one listener, on this port.
async fn listens(harvester: &Client, port: u16) -> Result<()> {
    let balancers = Api::<LoadBalancer>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
    let of_service = ListParams::default().labels(&format!("{}=bench-ports-host", labels::SERVICE_NAME));
    let give_up = Instant::now() + PATIENCE;
    loop {
        let there = balancers.list(&of_service).await.map_err(plain)?;
        let ports = there.iter().flat_map(|it| &it.spec.listeners).map(|listener| listener.port);
        if ports.eq([i32::from(port)]) {
            return Ok(());
        }
        if Instant::now() > give_up {
            bail!("no LoadBalancer object listens on port {port} after {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(GLANCE).await;
    }
}

fn port_of(port: u16) -> Value {
    json!({"name": "http", "port": port, "targetPort": 8080})
}

fn service(name: &str, port: u16, with: &[(&str, &str)]) -> Value {
    let annotations: std::collections::BTreeMap<_, _> = with.iter().copied().collect();
    json!({"metadata": {"name": name, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [port_of(port)]}})
}
