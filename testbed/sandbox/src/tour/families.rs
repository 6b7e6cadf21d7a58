//! Services ask for the families of their addresses. The guest's API server has both.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use harvester_api::annotations;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Observer, Tour,
    addresses::{create_with, service},
    pools,
};

/// IPv6 addresses in Harvester.
const POOL: &str = "edge-ipv6";

/// While there are IPv4 pools alone, who prefers both families has an IPv4 address. A Service of IPv6 alone has an
/// address of the IPv6 pool.
pub(super) async fn one_of_two(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    ask(&observer, "either", json!({"ipFamilyPolicy": "PreferDualStack"})).await?;
    let families =
        observer.service("either").await?.spec.and_then(|spec| spec.ip_families).unwrap_or_default();
    ensure!(families == ["IPv4", "IPv6"], "the API server gives Service either the families {families:?}");
    let v4 = serves(&observer, "either", &["IPv4"]).await?[0];
    observer.delete(&["either"]).await?;

    pools::add(tour, POOL, &tour.environment.address_plan.ipv6_vips().to_string()).await?;
    ask(&observer, "modern", json!({"ipFamilies": ["IPv6"]})).await?;
    let v6 = serves(&observer, "modern", &["IPv6"]).await?[0];
    observer.delete(&["modern"]).await?;
    pools::remove(tour, POOL).await?;
    Ok(format!("prefers both, has {v4} where there is no IPv6 pool; asks for IPv6, has {v6}"))
}

/// A Service that requires both families has an address of each, in the order of its families.
pub(super) async fn both(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    pools::add(tour, POOL, &tour.environment.address_plan.ipv6_vips().to_string()).await?;
    ask(&observer, "both", json!({"ipFamilyPolicy": "RequireDualStack"})).await?;
    let both = serves(&observer, "both", &["IPv4", "IPv6"]).await?;
    observer.delete(&["both"]).await?;
    pools::remove(tour, POOL).await?;
    Ok(format!("requires both, has {} and {}", both[0], both[1]))
}

async fn ask(observer: &Observer, name: &str, spec: Value) -> Result<()> {
    let mut manifest = service(name, &[]);
    for (field, value) in spec.as_object().into_iter().flatten() {
        manifest["spec"][field] = value.clone();
    }
    create_with(observer, manifest).await
}

/// The addresses of a Service on the guest datapath: of these families in this order, in kube-vip's annotation as in the
/// status, and each is answered.
async fn serves(observer: &Observer, name: &str, families: &[&str]) -> Result<Vec<IpAddr>> {
    let word = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let addresses = observer
        .wait(&format!("{} addresses of Service {name}", families.join(" and ")), || async {
            let addresses = observer.addresses_now(name).await?;
            let seen: Vec<_> = addresses.iter().map(word).collect();
            ensure!(seen == families, "its status has {addresses:?}");
            Ok(addresses)
        })
        .await?;
    let service = observer.service(name).await?;
    let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let asked = asked.context("kube-vip is asked for no address")?;
    let listed: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    ensure!(*asked == listed.join(","), "kube-vip is asked for {asked}, the status has {listed:?}");
    for address in &addresses {
        observer.answers(*address, 80).await?;
    }
    Ok(addresses)
}
