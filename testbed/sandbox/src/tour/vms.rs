//! Rancher makes a further machine through the node driver; it joins as a node. Somebody deletes its VM, and
//! Rancher replaces it. Then Rancher removes the new one, and nothing of both is left. The cloud controller manager
//! removes the node of each, where its role lets it.

use anyhow::{Context, Result, ensure};
use harvester_api::VirtualMachine;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolumeClaim, Secret},
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};

use super::Tour;
use crate::{manifests::plain, options::Rights};

/// Names as Rancher makes them: cluster, pool, machine set, machine.
const FOURTH: &str = "demo-pool1-x7k2m-9d4tq";
const REPLACEMENT: &str = "demo-pool1-x7k2m-w2b7c";

/// The cloud controller manager initialises the node of a machine.
async fn joins(tour: &Tour<'_>, name: &str) -> Result<Node> {
    let nodes = Api::<Node>::all(tour.guest.clone());
    tour.observer()
        .wait(&format!("node {name} to be initialised"), || async {
            let node = nodes.get(name).await.map_err(plain)?;
            let provider = node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref());
            ensure!(provider.is_some(), "node {name} has no provider ID");
            Ok(node)
        })
        .await
}

/// Nothing is heard of the node any more, and it goes. In the end no Service sends anybody there: until then requests
/// may fail, in any cluster.
async fn leaves(tour: &Tour<'_>, name: &str, address: &str) -> Result<()> {
    let nodes = Api::<Node>::all(tour.guest.clone());
    if tour.environment.rights == Rights::Existing {
        // the charts' role lets nobody but Rancher remove it
        tour.observer()
            .wait(&format!("node {name} to fall silent"), || async {
                let status = nodes.get(name).await.map_err(plain)?.status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let ready = conditions
                    .iter()
                    .any(|condition| condition.type_ == "Ready" && condition.status == "True");
                ensure!(!ready, "it is ready");
                Ok(())
            })
            .await?;
        nodes.delete(name, &DeleteParams::default()).await.map_err(plain)?;
    }
    tour.observer()
        .wait(&format!("node {name} to be removed"), || async {
            ensure!(nodes.get_opt(name).await.map_err(plain)?.is_none(), "it is there");
            Ok(())
        })
        .await?;
    tour.observer()
        .wait(&format!("nobody to be sent to {name}"), || async {
            for cluster in [&tour.guest, &tour.harvester] {
                let slices = Api::<EndpointSlice>::all(cluster.clone());
                let slices = slices.list(&ListParams::default()).await.map_err(plain)?;
                let sent =
                    slices.iter().find(|slice| slice.endpoints.iter().any(|to| leads(to, name, address)));
                ensure!(
                    sent.is_none(),
                    "EndpointSlice {} still does",
                    sent.map(ResourceExt::name_any).unwrap_or_default()
                );
            }
            Ok(())
        })
        .await
}

/// Whether an endpoint is the machine, or a pod on it.
fn leads(to: &Endpoint, node: &str, address: &str) -> bool {
    to.node_name.as_deref() == Some(node) || to.addresses.iter().any(|at| at == address)
}

pub(super) async fn through_the_driver(tour: &Tour<'_>) -> Result<String> {
    let rancher = tour.environment.rancher()?;
    let vms = Api::<VirtualMachine>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);

    let (fourth, address) = rancher.create(FOURTH).await?;
    let node = joins(tour, &fourth.name).await?;
    let vm = vms.get(FOURTH).await.map_err(plain)?;
    let provider = node.spec.unwrap_or_default().provider_id;
    let expected = vm.uid().map(|uid| format!("harvester://{uid}"));
    ensure!(provider == expected, "the node says {provider:?}, its VM is {expected:?}");

    // behind Rancher's back; it sees the node go, forgets the machine and makes another
    vms.delete(FOURTH, &DeleteParams::default()).await.map_err(plain)?;
    leaves(tour, FOURTH, &address).await?;
    rancher.remove(&fourth).await.context("remove a machine whose VM is lost")?;
    let (replacement, next) = rancher.create(REPLACEMENT).await?;
    joins(tour, REPLACEMENT).await?;
    rancher.remove(&replacement).await?;
    ensure!(vms.get_opt(REPLACEMENT).await.map_err(plain)?.is_none(), "VM {REPLACEMENT} is left");
    leaves(tour, REPLACEMENT, &next).await?;
    nothing_is_left(tour, REPLACEMENT).await?;
    forget_lost_volumes(tour).await?;
    Ok(format!(
        "{FOURTH} at {address} joined and was lost, {REPLACEMENT} at {next} took its place and was removed"
    ))
}

/// The machine's own volume and its cloud-init data went with it.
async fn nothing_is_left(tour: &Tour<'_>, name: &str) -> Result<()> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    let secrets = Api::<Secret>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    tour.observer()
        .wait(&format!("everything of {name} to be gone"), || async {
            let claims = claims.list(&Default::default()).await.map_err(plain)?;
            let secrets = secrets.list(&Default::default()).await.map_err(plain)?;
            let names =
                claims.iter().map(ResourceExt::name_any).chain(secrets.iter().map(ResourceExt::name_any));
            let left: Vec<_> = names.filter(|left| left.starts_with(name)).collect();
            ensure!(left.is_empty(), "{} are left", left.join(", "));
            Ok(())
        })
        .await
}

/// A user who deletes a VM by hand keeps its volumes, as on a real Harvester: they are deleted by hand too.
async fn forget_lost_volumes(tour: &Tour<'_>) -> Result<()> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    for claim in claims.list(&Default::default()).await.map_err(plain)? {
        if claim.name_any().starts_with(FOURTH) {
            claims.delete(&claim.name_any(), &DeleteParams::default()).await.map_err(plain)?;
        }
    }
    Ok(())
}
