//! Ten thousand health checks a second: what they cost the load balancer, and how late they come, as the backends see it.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use program::TaskGroup;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::Instant};

use super::{cpu, percentile};
use crate::{commands, environment::Environment, manifests::plain};

/// Each has `MACHINES` VMs, and `BALANCERS` load balancers with all of them: a namespace begins 2,000 dials a second at most.
const NAMESPACES: usize = 10;
const MACHINES: usize = 100;
const BALANCERS: usize = 10;
const TARGETS: usize = NAMESPACES * MACHINES * BALANCERS;
const PERIOD: Duration = Duration::from_secs(1);
/// The time over which is measured.
const WINDOW: Duration = Duration::from_secs(20);
/// Every target was probed so often before: the verdicts are written.
const BEFORE: usize = 5;
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(300);
/// Requests under way at once.
const AT_ONCE: usize = 16;
/// The label that load balancers select.
const LABEL: &str = "bench.harvesterhci.io/probed";

/// When each backend was probed.
type Arrivals = Arc<Mutex<HashMap<SocketAddr, Vec<Instant>>>>;

/// Measures, and tells both figures. The simulation ends: VMs are objects alone, and all of their ports lead here.
pub(super) async fn all(environment: &mut Environment, say: impl Fn(&str, f64)) -> Result<()> {
    environment.end_simulation().await;
    let (tasks, arrivals) = (TaskGroup::new(), Arrivals::default());
    let mut ports = Vec::new();
    for _ in 0..BALANCERS {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.context("listen for probes")?;
        ports.push(listener.local_addr().context("listen for probes")?.port());
        tasks.spawn(note(listener, arrivals.clone(), tasks.stop.clone()));
    }
    post(&environment.harvester, &ports).await?;
    until_probed(&arrivals, BEFORE).await?;

    let pid = environment.pid(commands::LOAD_BALANCER)?;
    arrivals.lock().expect("no panic while noting").clear();
    let (begun, before) = (Instant::now(), cpu::seconds(pid)?);
    tokio::time::sleep(WINDOW).await;
    let (took, used) = (begun.elapsed(), cpu::seconds(pid)? - before);
    tasks.end().await;
    let arrivals = std::mem::take(&mut *arrivals.lock().expect("no panic while noting"));
    ensure!(arrivals.len() == TARGETS, "{} of {TARGETS} backends were probed", arrivals.len());
    let mut late: Vec<f64> = arrivals.values().flat_map(|times| lateness(times)).collect();
    say("probe-10000-cpu", used / took.as_secs_f64());
    say("probe-10000-late-p99-ms", percentile(&mut late, 0.99) * 1_000.0);
    Ok(())
}

/// Seconds by which each probe of a target came later than the one that came earliest, each by its own due time.
fn lateness(times: &[Instant]) -> Vec<f64> {
    let Some(first) = times.first() else { return Vec::new() };
    let after_due: Vec<f64> = (0_u32..)
        .zip(times)
        .map(|(number, time)| (*time - *first).as_secs_f64() - (PERIOD * number).as_secs_f64())
        .collect();
    let earliest = after_due.iter().copied().fold(0.0, f64::min);
    after_due.into_iter().map(|after| after - earliest).collect()
}

/// Takes connections, and notes which backend each was for.
async fn note(listener: TcpListener, arrivals: Arrivals, stop: tokio_util::sync::CancellationToken) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let now = Instant::now();
        // a probe ends in a reset, which may be there before its connection is taken
        let Ok((stream, _)) = accepted else { continue };
        let Ok(backend) = stream.local_addr() else { continue };
        arrivals.lock().expect("no panic while noting").entry(backend).or_default().push(now);
    }
}

/// Waits until each target was probed so often.
async fn until_probed(arrivals: &Arrivals, times: usize) -> Result<()> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let probed = {
            let arrivals = arrivals.lock().expect("no panic while noting");
            arrivals.values().filter(|each| each.len() >= times).count()
        };
        if probed == TARGETS {
            return Ok(());
        }
        ensure!(Instant::now() < give_up, "{probed} of {TARGETS} backends were probed {times} times");
        tokio::time::sleep(PERIOD).await;
    }
}

async fn post(harvester: &Client, ports: &[u16]) -> Result<()> {
    let name = |number: usize| format!("bench-probes-{number}");
    for number in 0..NAMESPACES {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name(number)}}))
            .context("describe a Namespace")?;
        Api::all(harvester.clone()).create(&PostParams::default(), &namespace).await.map_err(plain)?;
    }
    let all: Vec<Value> = (0..NAMESPACES)
        .flat_map(|number| {
            let machines = (0..MACHINES).map(move |machine| vmi(&name(number), number, machine));
            machines.chain(ports.iter().map(move |port| balancer(&name(number), *port)))
        })
        .collect();
    stream::iter(all)
        .map(|object| async move {
            let object: DynamicObject = serde_json::from_value(object).context("describe an object")?;
            let types = object.types.clone().context("an object has a kind")?;
            let kind = GroupVersionKind::try_from(&types).context("an object has a kind")?;
            let namespace = object.metadata.namespace.clone().unwrap_or_default();
            let api = Api::<DynamicObject>::namespaced_with(
                harvester.clone(),
                &namespace,
                &ApiResource::from_gvk(&kind),
            );
            api.create(&PostParams::default(), &object).await.map_err(plain)
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |_| Ok(()))
        .await
}

/// A VM that runs; on the wire its address is one of 127.18.0.0/16.
fn vmi(namespace: &str, number: usize, machine: usize) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": format!("machine-{machine}"), "namespace": namespace, "labels": {LABEL: "true"}},
        "spec": {"domain": {"devices": {"interfaces": [{"name": "nic-0", "bridge": {}}]}},
            "networks": [{"name": "nic-0", "multus": {"networkName": "default/vlan1"}}]},
        "status": {"phase": "Running", "interfaces": [{"name": "nic-0", "mac": "52:54:00:00:00:01",
            "ipAddress": format!("198.18.{}.{}", 100 + number, 1 + machine)}]}})
}

fn balancer(namespace: &str, port: u16) -> Value {
    json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": format!("web-{port}"), "namespace": namespace},
        "spec": {"workloadType": "vm", "ipam": "dhcp",
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": port}],
            "backendServerSelector": {LABEL: ["true"]},
            "healthCheck": {"port": port, "successThreshold": 1, "failureThreshold": 3,
                "periodSeconds": PERIOD.as_secs(), "timeoutSeconds": 1}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_is_as_late_as_it_came_after_the_earliest_of_its_target() {
        let first = Instant::now();
        let at = |milliseconds: u64| first + Duration::from_millis(milliseconds);
        let late = lateness(&[at(0), at(990), at(2_040), at(2_990)]);
        let rounded: Vec<f64> = late.iter().map(|late| (late * 1_000.0).round()).collect();
        assert_eq!(rounded, [10.0, 0.0, 50.0, 0.0]);
        assert_eq!(lateness(&[]), Vec::<f64>::new());
    }
}
