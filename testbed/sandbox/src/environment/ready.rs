//! The waits of the start, each with its own message when it ends in vain.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use harvester_api::VirtualMachineInstance;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    coordination::v1::Lease,
    core::v1::{Node, Service},
    storage::v1::CSINode,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use sim_harvester::SimHarvester;
use tokio::time::{Instant, timeout};

use super::GuestVm;
use crate::{commands, curl::curl, example, manifests::plain};

const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(20);
/// An answer on loopback that takes longer does not come.
const AT_ONCE: Duration = Duration::from_millis(100);

async fn until<T, L>(what: &str, look: impl Fn() -> L) -> Result<T>
where
    L: Future<Output = Result<T>>,
{
    let give_up = Instant::now() + PATIENCE;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(seen) if Instant::now() > give_up => {
                return Err(seen.context(format!("waited {} s for {what}", PATIENCE.as_secs())));
            }
            Err(_) => tokio::time::sleep(GLANCE).await,
        }
    }
}

/// All VMs run, and each is a node of the guest.
pub(super) async fn vms(guest: &Client, harvester: &Client, count: u8) -> Result<Vec<GuestVm>> {
    let instances = Api::<VirtualMachineInstance>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
    let nodes = Api::<Node>::all(guest.clone());
    until("the VMs to run", || async {
        let mut vms = Vec::new();
        for instance in instances.list(&ListParams::default()).await.map_err(plain)? {
            let status = instance.status.clone().unwrap_or_default();
            let address =
                status.interfaces.first().map(|interface| interface.ip_address.clone()).unwrap_or_default();
            ensure!(!address.is_empty(), "{} has no address", instance.name_any());
            let node = nodes.get(&instance.name_any()).await.map_err(plain)?;
            vms.push(GuestVm { name: instance.name_any(), node: node.name_any(), address });
        }
        ensure!(vms.len() == usize::from(count), "{} of {count} run", vms.len());
        Ok(vms)
    })
    .await
}

/// The webhook's configurations are there.
pub(super) async fn webhook(harvester: &Client) -> Result<()> {
    until("the admission webhook to register", || async {
        Api::<ValidatingWebhookConfiguration>::all(harvester.clone())
            .get(commands::WEBHOOK)
            .await
            .map_err(plain)?;
        Api::<MutatingWebhookConfiguration>::all(harvester.clone())
            .get(commands::WEBHOOK)
            .await
            .map_err(plain)?;
        Ok(())
    })
    .await
}

/// The webhook's configurations are gone.
pub(super) async fn no_webhook(harvester: &Client) -> Result<()> {
    let how = DeleteParams::default();
    let validating = Api::<ValidatingWebhookConfiguration>::all(harvester.clone());
    validating.delete(commands::WEBHOOK, &how).await.map_err(plain)?;
    let mutating = Api::<MutatingWebhookConfiguration>::all(harvester.clone());
    mutating.delete(commands::WEBHOOK, &how).await.map_err(plain)?;
    Ok(())
}

/// Both controllers lead, and every node is initialised.
pub(super) async fn controllers(guest: &Client, harvester: &Client, vms: &[GuestVm]) -> Result<()> {
    held(harvester, commands::LOAD_BALANCER).await?;
    held(guest, "cloud-controller-manager").await?;
    let nodes = Api::<Node>::all(guest.clone());
    until("the nodes to be initialised", || async {
        for vm in vms {
            let node = nodes.get(&vm.node).await.map_err(plain)?;
            let spec = node.spec.unwrap_or_default();
            ensure!(spec.provider_id.is_some(), "{} has no provider ID", vm.node);
        }
        Ok(())
    })
    .await
}

/// Somebody holds this Lease.
async fn held(client: &Client, lease: &str) -> Result<()> {
    let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
    until(&format!("the Lease kube-system/{lease} to be held"), || async {
        let spec = leases.get(lease).await.map_err(plain)?.spec.unwrap_or_default();
        ensure!(spec.holder_identity.is_some_and(|holder| !holder.is_empty()), "nobody holds it");
        Ok(())
    })
    .await
}

/// Every one of these Nodes has the CSI driver, and somebody heals attachments.
pub(super) async fn storage(guest: &Client, nodes: &[String]) -> Result<()> {
    let noted = Api::<CSINode>::all(guest.clone());
    until("the CSI driver to be registered on every node", || async {
        for node in nodes {
            noted.get(node).await.map_err(plain)?;
        }
        Ok(())
    })
    .await?;
    held(guest, "harvester-csi-attach").await
}

/// The example's Service has its address.
pub(super) async fn example(guest: &Client) -> Result<IpAddr> {
    let services = Api::<Service>::namespaced(guest.clone(), "default");
    until("the example's Service to get an address", || async {
        let service = services.get(example::SERVICE).await.map_err(plain)?;
        let status = service.status.unwrap_or_default().load_balancer.unwrap_or_default();
        let ingress = status.ingress.unwrap_or_default();
        let ip =
            ingress.first().and_then(|ingress| ingress.ip.clone()).context("status.loadBalancer is empty")?;
        Ok(ip.parse()?)
    })
    .await
}

/// The example's Service answers where it is served; `false` where this machine cannot carry the traffic of its address.
pub(super) async fn answers(simulation: &SimHarvester, address: IpAddr, on_wire: SocketAddr) -> Result<bool> {
    until("the example's Service to answer", || async {
        if simulation.cannot_carry().iter().any(|cannot| cannot.destination.at.ip() == address) {
            return Ok(false);
        }
        // until a backend is found healthy nobody answers, and a new attempt is sooner than the old one sent again
        timeout(AT_ONCE, curl(on_wire)).await.context("no answer yet")??;
        Ok(true)
    })
    .await
}
