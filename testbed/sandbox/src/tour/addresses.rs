//! Services get addresses, in the three ways there are.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use harvester_api::{WorkloadType, annotations, names};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::{Value, json};

use super::{
    Observer, Tour,
    observer::{NAMESPACE, TOUR},
    outage, pools,
};
use crate::manifests::plain;

/// Renewals of the lease that the address must outlive.
const RENEWALS: u32 = 2;

/// A Service of the tour, as a manifest.
pub(super) fn service(name: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {TOUR: "true"}, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}})
}

pub(super) async fn create(observer: &Observer, name: &str, annotations: &[(&str, &str)]) -> Result<()> {
    create_with(observer, service(name, annotations)).await
}

pub(super) async fn create_with(observer: &Observer, manifest: Value) -> Result<()> {
    let service: Service = serde_json::from_value(manifest).context("describe a Service")?;
    let services = Api::namespaced(observer.guest.clone(), NAMESPACE);
    services.create(&PostParams::default(), &service).await.map_err(plain).map(drop)
}

/// A Service as documented, with health check: the host datapath, an address of the pool that selection prefers, and all
/// VMs behind it.
pub(super) async fn host_path(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let check = outage::CHECK.annotations();
    let mut annotations = vec![(annotations::IPAM, "pool")];
    annotations.extend(check.iter().map(|(key, value)| (*key, value.as_str())));
    create(&observer, "checked", &annotations).await?;
    let address = observer.address("checked").await?;
    within(address, tour.environment.address_plan.vips())?;
    let balancer = observer.balancer("checked").await?;
    ensure!(balancer.spec.workload() == WorkloadType::Vm, "the object is not of type vm");
    let pool = balancer.status.and_then(|status| status.allocated_address).unwrap_or_default().ip_pool;
    ensure!(pool == "edge", "the address is of pool {pool}, not of the preferred one, edge");
    observer.answers(address, 80).await?;
    // the verdicts on the VMs come one by one, within a period of the health check
    let vms = pools::vms(tour);
    observer.wait("all VMs to serve", || observer.reaches_all(address, 80, &vms)).await?;
    Ok(format!("http://{address} of pool {pool}, answered by all {} VMs", tour.environment.vms.len()))
}

/// A Service without health check: announced in the guest, address in kube-vip's annotation, then in the status.
pub(super) async fn guest_path(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    create(&observer, "plain", &[]).await?;
    let address = observer.address("plain").await?;
    within(address, tour.environment.address_plan.vips())?;
    let service = observer.service("plain").await?;
    let told = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).cloned().unwrap_or_default();
    ensure!(told == address.to_string(), "{} is {told}", annotations::KUBE_VIP_LOADBALANCER_IPS);
    let balancer = observer.balancer("plain").await?;
    ensure!(balancer.spec.workload() == WorkloadType::Cluster, "the object is not of type cluster");
    observer.answers(address, 80).await?;
    Ok(format!("http://{address}, annotation and status agree"))
}

/// A lease of the simulated DHCP server, kept over renewals and over the death of both controllers.
pub(super) async fn dhcp(tour: &mut Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    create(&observer, "leased", &[(annotations::IPAM, "dhcp")]).await?;
    let address = observer.address("leased").await?;
    within(address, tour.environment.address_plan.leases())?;
    let allocated = observer
        .wait("the LoadBalancer object to know the lease", || async {
            let status = observer.balancer("leased").await?.status.unwrap_or_default();
            ensure!(status.address == address.to_string(), "its address is {:?}", status.address);
            Ok(status.allocated_address.unwrap_or_default().ip)
        })
        .await?;
    ensure!(allocated == names::DHCP_ADDRESS, "allocatedAddress is {allocated}");
    observer.answers(address, 80).await?;
    tour.environment.kill_controllers().await?;
    tour.environment.start_controllers_again()?;
    let lease = Duration::from_secs(u64::from(tour.environment.lease_seconds));
    tokio::time::sleep(lease / 2 * RENEWALS + Duration::from_secs(1)).await;
    ensure!(observer.address("leased").await? == address, "the lease changed");
    observer.answers(address, 80).await.context("after the renewals")?;
    Ok(format!("{address}, the same after {RENEWALS} renewals and a restart"))
}

fn within(address: IpAddr, net: Ipv4Net) -> Result<()> {
    let inside = matches!(address, IpAddr::V4(v4) if net.contains(&v4));
    ensure!(inside, "{address} is not in {net}");
    Ok(())
}
