//! Nodes follow their VMs: their addresses, and a stop and a start.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::{Context, Result, ensure};
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use sim_harvester::settings;

use super::{Tour, pools};
use crate::{environment::GuestVm, manifests::plain};

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// What the guest agent reports beside the VM's own address.
const FURTHER: [&str; 2] = ["198.51.100.7", "2001:db8::7"];

/// The guest agent reports more addresses, and the Node gets them; what kube-vip put on an interface is none of a Node's.
pub(super) async fn addresses(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let vm = tour.environment.vms.first().context("there is a VM")?;
    let vip = observer.address("plain").await?;
    let further = json!({"default": FURTHER}).to_string();
    annotate(tour, vm, settings::ADDRESSES, json!(further)).await?;
    let wanted = BTreeSet::from([
        format!("InternalIP {}", vm.address),
        format!("ExternalIP {}", FURTHER[0]),
        format!("InternalIP {}", FURTHER[1]),
    ]);
    let reported = observer.wait("the guest agent to report the VIP too", || async {
        let reported = reported(tour, vm).await?;
        ensure!(reported.contains(&vip.to_string()), "it reports {reported:?}");
        Ok(reported)
    });
    let reported = reported.await?;
    let has = async |wanted: &BTreeSet<String>| {
        let of_node = of_node(tour, vm).await?;
        ensure!(of_node == *wanted, "node {} has {of_node:?}", vm.node);
        Ok(())
    };
    observer.wait("the Node to follow", || has(&wanted)).await?;
    annotate(tour, vm, settings::ADDRESSES, Value::Null).await?;
    let own = BTreeSet::from([format!("InternalIP {}", vm.address)]);
    observer.wait("the Node to have its own address alone", || has(&own)).await?;
    Ok(format!(
        "the agent of {} reports {} addresses, its node had {}, and not {vip} of a Service",
        vm.node,
        reported.len(),
        wanted.into_iter().collect::<Vec<_>>().join(", ")
    ))
}

/// A VM is stopped: its Node has a taint until it runs again, and stays. A VM that is deleted takes its Node along
/// ([`super::vms`]).
pub(super) async fn stop_and_start(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let vm = tour.environment.vms.last().context("there is a VM")?;
    run(tour, vm, "Halted").await?;
    observer.wait("the taint of a Node whose VM is stopped", || tainted(tour, vm, true)).await?;
    run(tour, vm, "RerunOnFailure").await?;
    observer.wait("the taint to go", || tainted(tour, vm, false)).await?;
    let (address, vms) = (observer.address("checked").await?, pools::vms(tour));
    observer.wait("all VMs to serve again", || observer.reaches_all(address, 80, &vms)).await?;
    Ok(format!("node {} had taint {SHUTDOWN} while its VM was stopped, and has none now", vm.node))
}

pub(super) async fn run(tour: &Tour<'_>, vm: &GuestVm, strategy: &str) -> Result<()> {
    patch(tour, vm, json!({"spec": {"runStrategy": strategy}})).await
}

async fn annotate(tour: &Tour<'_>, vm: &GuestVm, key: &str, value: Value) -> Result<()> {
    patch(tour, vm, json!({"metadata": {"annotations": {key: value}}})).await
}

async fn patch(tour: &Tour<'_>, vm: &GuestVm, patch: Value) -> Result<()> {
    let vms = Api::<VirtualMachine>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    vms.patch(&vm.name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(plain).map(drop)
}

async fn tainted(tour: &Tour<'_>, vm: &GuestVm, expected: bool) -> Result<()> {
    let node = Api::<Node>::all(tour.guest.clone()).get(&vm.node).await.map_err(plain)?;
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let keys: Vec<_> = taints.into_iter().map(|taint| taint.key).collect();
    ensure!(keys.iter().any(|key| key == SHUTDOWN) == expected, "node {} has taints {keys:?}", vm.node);
    Ok(())
}

async fn reported(tour: &Tour<'_>, vm: &GuestVm) -> Result<Vec<String>> {
    let instances = Api::<VirtualMachineInstance>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    let status = instances.get(&vm.name).await.map_err(plain)?.status.unwrap_or_default();
    Ok(status.interfaces.into_iter().flat_map(|interface| interface.ip_addresses).collect())
}

/// As `InternalIP 198.18.0.10`.
async fn of_node(tour: &Tour<'_>, vm: &GuestVm) -> Result<BTreeSet<String>> {
    let node = Api::<Node>::all(tour.guest.clone()).get(&vm.node).await.map_err(plain)?;
    let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
    let ips = addresses.into_iter().filter(|it| it.address.parse::<IpAddr>().is_ok());
    Ok(ips.map(|it| format!("{} {}", it.type_, it.address)).collect())
}
