//! One load balancer for VMs: the writes of its creation, those of a minute in which nothing happens, and those when a
//! backend ends. Whoever measures stands in for kube-vip, and answers for the backends.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context, Result, ensure};
use harvester_api::{IPPool, LoadBalancer, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::Instant};

use crate::{
    environment::Environment,
    manifests::plain,
    measure::{MINUTE, QUIET, Told, audit::Tally},
};

const NAME: &str = "bench-vm";
const LABEL: &str = "bench.harvesterhci.io/backend";
/// On the wire these are addresses of 127.18.0.0/16.
const BACKENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 99, 1), Ipv4Addr::new(198, 18, 99, 2)];
/// Longer than a health check takes to find a backend well or not.
const JUDGED: Duration = Duration::from_secs(6);
const GLANCE: Duration = Duration::from_millis(10);
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn all(environment: &Environment, told: &Told<'_>) -> Result<()> {
    let harvester = &environment.harvester;
    let port = free_port(BACKENDS).await?;
    let mut listeners = Vec::new();
    for address in BACKENDS {
        listeners.push(listen(address, port).await?);
    }
    let everywhere = Api::all(harvester.clone());
    create::<Namespace>(&everywhere, json!({"metadata": {"name": NAME}})).await?;
    let scope = json!({"namespace": NAME, "project": "*", "guestCluster": "*"});
    let pool = json!({"metadata": {"name": NAME}, "spec": {"ranges": [{"subnet": "10.198.0.0/24"}],
        "selector": {"scope": [scope]}}});
    create::<IPPool>(&Api::all(harvester.clone()), pool).await?;
    for (number, address) in BACKENDS.into_iter().enumerate() {
        let instances = Api::<VirtualMachineInstance>::namespaced(harvester.clone(), NAME);
        create(&instances, vmi(number, address)).await?;
    }
    super::settled(environment).await?;

    let mut creation = Tally::new(environment.audit_files());
    post(harvester, "plain", port, None).await?;
    creation.quiet(QUIET).await?;
    told.figure("vm-lb-create-writes", creation.total().load_balancer_writes as f64);
    let check = json!({"port": port, "successThreshold": 1, "failureThreshold": 2, "periodSeconds": 1,
        "timeoutSeconds": 1});
    let mut checked = Tally::new(environment.audit_files());
    post(harvester, "checked", port, Some(check)).await?;
    tokio::time::sleep(JUDGED).await;
    checked.quiet(QUIET).await?;
    let writes = checked.total().load_balancer_writes;
    told.remark(&format!("with a health check, until its first verdicts are written: {writes} writes"));

    let mut steady = Tally::new(environment.audit_files());
    tokio::time::sleep(MINUTE).await;
    told.figure("vm-lb-steady-writes", steady.count()?.load_balancer_writes as f64);
    let mut flip = Tally::new(environment.audit_files());
    drop(listeners.pop());
    tokio::time::sleep(JUDGED).await;
    flip.quiet(QUIET).await?;
    told.figure("backend-flip-writes", flip.total().load_balancer_writes as f64);
    Ok(())
}

/// Posts a load balancer, and shows its address in its Service as kube-vip does.
async fn post(harvester: &Client, name: &str, port: u16, check: Option<Value>) -> Result<()> {
    let balancers = Api::<LoadBalancer>::namespaced(harvester.clone(), NAME);
    let services = Api::<Service>::namespaced(harvester.clone(), NAME);
    let mut object = json!({"metadata": {"name": name},
        "spec": {"workloadType": "vm", "ipam": "pool",
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": port}],
            "backendServerSelector": {LABEL: ["true"]}}});
    if let Some(check) = check {
        object["spec"]["healthCheck"] = check;
    }
    create(&balancers, object).await?;
    let begun = Instant::now();
    while services.get_opt(name).await.map_err(plain)?.is_none() {
        ensure!(begun.elapsed() < PATIENCE, "load balancer {name} has no Service");
        tokio::time::sleep(GLANCE).await;
    }
    let address =
        balancers.get(name).await.map_err(plain)?.status.and_then(|status| status.allocated_address);
    let address = address.context("a load balancer with a Service has an address")?.ip;
    let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
    services.patch_status(name, &PatchParams::default(), &Patch::Merge(shown)).await.map_err(plain)?;
    Ok(())
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let object = serde_json::from_value(object).context("describe an object")?;
    api.create(&PostParams::default(), &object).await.map_err(plain).map(drop)
}

fn vmi(number: usize, address: Ipv4Addr) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": format!("machine-{number}"), "labels": {LABEL: "true"}},
        "spec": {"domain": {"devices": {"interfaces": [{"name": "nic-0", "bridge": {}}]}},
            "networks": [{"name": "nic-0", "multus": {"networkName": "default/vlan1"}}]},
        "status": {"phase": "Running", "interfaces": [{"name": "nic-0", "mac": "52:54:00:00:00:01",
            "ipAddress": address}]}})
}

fn on_wire(address: Ipv4Addr) -> Ipv4Addr {
    let [_, second, third, fourth] = address.octets();
    Ipv4Addr::new(127, second, third, fourth)
}

/// A port that is free on all of these.
async fn free_port(addresses: [Ipv4Addr; 2]) -> Result<u16> {
    let first = TcpListener::bind((on_wire(addresses[0]), 0)).await.context("listen for probes")?;
    Ok(first.local_addr().context("listen for probes")?.port())
}

/// A backend; it is well until the answer is dropped.
async fn listen(address: Ipv4Addr, port: u16) -> Result<Backend> {
    let listener = TcpListener::bind((on_wire(address), port)).await.context("listen for probes")?;
    let task = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    Ok(Backend(task))
}

struct Backend(tokio::task::JoinHandle<()>);

impl Drop for Backend {
    fn drop(&mut self) {
        self.0.abort();
    }
}
