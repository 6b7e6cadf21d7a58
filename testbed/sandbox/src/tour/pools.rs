//! What an operator of Harvester does: pools and migrations.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use harvester_api::{ConditionStatus, IPPool, VirtualMachineInstance, annotations, condition};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::{Value, json};

use super::{Observer, Tour};
use crate::manifests::{apply, plain};

/// The example brings one pool as an IPPool and two in the ConfigMap of kube-vip-cloud-provider.
pub(super) async fn both_ways(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let mut seen = Vec::new();
    for name in ["edge", "default", "development"] {
        let pool = observer.wait(&format!("IPPool {name} to be ready"), || ready(&observer, name)).await?;
        let (total, status) = (&pool.spec.ranges[0].subnet, pool.status.unwrap_or_default());
        ensure!(status.total > 0, "pool {name} counts no address");
        seen.push(format!("{name} {total} ({} addresses)", status.total));
    }
    Ok(seen.join(", "))
}

/// Priority of a further pool: below that of the example's, 10, and above those of the ConfigMap, 0.
const PRIORITY: i64 = 5;

/// Another pool for the guest cluster, less preferred than that of the example; ready when this ends.
pub(super) async fn add(tour: &Tour<'_>, name: &str, subnet: &str) -> Result<()> {
    add_with(tour, name, json!({"ranges": [{"subnet": subnet}]})).await
}

/// The same with this spec, which selects nobody yet; of a pool that is there it replaces what was applied before.
pub(super) async fn add_with(tour: &Tour<'_>, name: &str, mut spec: Value) -> Result<()> {
    spec["selector"] = json!({"priority": PRIORITY, "scope": [
        {"namespace": crate::VM_NAMESPACE, "project": "*", "guestCluster": crate::GUEST_CLUSTER}]});
    let pool = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": name}, "spec": spec});
    apply(&tour.harvester, "pool", &pool.to_string()).await?;
    let observer = tour.observer();
    observer.wait(&format!("IPPool {name} to be ready"), || ready(&observer, name)).await.map(drop)
}

/// Removes a pool of which every address is free, or becomes free.
pub(super) async fn remove(tour: &Tour<'_>, name: &str) -> Result<()> {
    let pools = Api::<IPPool>::all(tour.harvester.clone());
    // the webhook refuses while an address is in use: each look that finds the pool asks again
    let delete = || async {
        if pools.get_opt(name).await.map_err(plain)?.is_some() {
            pools.delete(name, &DeleteParams::default()).await.map_err(plain)?;
            bail!("it is there");
        }
        Ok(())
    };
    tour.observer().wait(&format!("IPPool {name} to go"), delete).await
}

/// The pool, if its Ready condition holds.
async fn ready(observer: &Observer, name: &str) -> Result<IPPool> {
    let pool = observer.pool(name).await?;
    let status = pool.status.clone().unwrap_or_default();
    let ready = condition::ready(&status.conditions).context("no Ready condition yet")?;
    ensure!(ready.status == ConditionStatus::True, "{}: {}", ready.reason, ready.message);
    Ok(pool)
}

/// A VM migrates to a host in another zone, and the labels of its node follow.
pub(super) async fn topology(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let vm = tour.environment.vms.last().context("there is a vm")?.clone();
    let zone_of = |node: Node| node.labels().get(annotations::TOPOLOGY_ZONE).cloned().unwrap_or_default();
    let nodes = Api::<Node>::all(tour.guest.clone());
    let instances = Api::<VirtualMachineInstance>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    let before = zone_of(nodes.get(&vm.node).await.map_err(plain)?);
    let host = instances.get(&vm.name).await.map_err(plain)?.status.unwrap_or_default().node_name;

    let migration = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "tour", "namespace": crate::VM_NAMESPACE}, "spec": {"vmiName": vm.name}});
    apply(&tour.harvester, "migration", &migration.to_string()).await?;
    let target = observer
        .wait("the VM to run on another host", || async {
            let status = instances.get(&vm.name).await.map_err(plain)?.status.unwrap_or_default();
            let done = status.migration_state.as_ref().is_some_and(|migration| migration.completed);
            ensure!(done && status.node_name != host, "still on {}", status.node_name);
            Ok(status.node_name)
        })
        .await?;
    let hosts = Api::<Node>::all(tour.harvester.clone());
    let wanted = zone_of(hosts.get(&target).await.map_err(plain)?);
    ensure!(wanted != before, "host {target} is in the same zone as {host}");
    observer
        .wait("the node's zone to follow", || async {
            let zone = zone_of(nodes.get(&vm.node).await.map_err(plain)?);
            ensure!(zone == wanted, "node {} is labelled {zone}, its VM runs in {wanted}", vm.node);
            Ok(())
        })
        .await?;
    let migrations = Api::<kube::api::DynamicObject>::namespaced_with(
        tour.harvester.clone(),
        crate::VM_NAMESPACE,
        &kube::discovery::ApiResource::from_gvk_with_plural(
            &kube::core::GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstanceMigration"),
            "virtualmachineinstancemigrations",
        ),
    );
    migrations.delete("tour", &DeleteParams::default()).await.map_err(plain)?;
    Ok(format!("{}: {host} to {target}, {before} to {wanted}", vm.node))
}

/// The names by which the example backends answer.
pub(super) fn vms(tour: &Tour<'_>) -> BTreeSet<String> {
    tour.environment.vms.iter().map(|vm| vm.name.clone()).collect()
}
