//! What an operator of Harvester says of a pool's addresses: a range that goes, and how many a guest cluster may have.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use harvester_api::{annotations, condition};
use serde_json::{Value, json};

use super::{Observer, Tour, addresses::create, observer::published, pools};

/// The last bytes of the range that goes, and of the one that stays.
const GOING: RangeInclusive<u8> = 10..=14;
const STAYING: RangeInclusive<u8> = 20..=24;

const SHRINKING: &str = "shrinking";
const LIMITED: &str = "limited";

/// A range that drains gives nothing new, and who has an address of it keeps that. It may be removed when nobody has one.
pub(super) async fn drain(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let subnet = tour.environment.address_plan.demandable();
    let at = |last: u8| Ipv4Addr::from(u32::from(subnet.network()) + u32::from(last));
    let range = |of: &RangeInclusive<u8>, drains: bool| json!({"subnet": subnet, "rangeStart": at(*of.start()), "rangeEnd": at(*of.end()), "drain": drains});
    let is_in = |address: IpAddr, of: &RangeInclusive<u8>| {
        (at(*of.start())..=at(*of.end())).contains(&match address {
            IpAddr::V4(v4) => v4,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        })
    };
    let both = |drains| json!({"ranges": [range(&GOING, drains), range(&STAYING, false)]});
    pools::add_with(tour, SHRINKING, both(false)).await?;
    create(&observer, "stays", &[(annotations::SERVICE_IP_POOL, SHRINKING)]).await?;
    let kept = observer.address("stays").await?;
    ensure!(is_in(kept, &GOING), "{kept} is not of the first range");
    observer.answers(kept, 80).await?;

    pools::add_with(tour, SHRINKING, both(true)).await?;
    create(&observer, "next", &[(annotations::SERVICE_IP_POOL, SHRINKING)]).await?;
    let next = observer.address("next").await?;
    ensure!(is_in(next, &STAYING), "{next} is of the range that drains");
    observer.answers(kept, 80).await?;
    let without: Value = json!({"ranges": [range(&STAYING, false)]});
    let refused = match pools::add_with(tour, SHRINKING, without.clone()).await {
        Err(refused) => format!("{refused:#}"),
        Ok(()) => anyhow::bail!("the range was removed while {kept} is held"),
    };
    ensure!(refused.contains(&kept.to_string()), "the refusal does not name {kept}: {refused}");
    observer.delete(&["stays"]).await?;
    observer
        .wait("the range to be free, and removed", || pools::add_with(tour, SHRINKING, without.clone()))
        .await?;
    observer.answers(next, 80).await?;
    observer.delete(&["next"]).await?;
    pools::remove(tour, SHRINKING).await?;
    Ok(format!(
        "{kept} stayed where it was, {next} came from the other range, and the range went after {kept}"
    ))
}

/// A guest cluster has no more addresses of a pool than its quota gives; who comes then waits for one of them.
pub(super) async fn quota(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let subnet = tour.environment.address_plan.demandable();
    let spec = json!({"ranges": [{"subnet": subnet}],
        "quota": [{"guestCluster": crate::GUEST_CLUSTER, "max": 1}]});
    pools::add_with(tour, LIMITED, spec).await?;
    create(&observer, "first", &[(annotations::SERVICE_IP_POOL, LIMITED)]).await?;
    let address = observer.address("first").await?;
    create(&observer, "second", &[(annotations::SERVICE_IP_POOL, LIMITED)]).await?;
    let why = waits(&observer, "second", "QuotaExceeded").await?;
    ensure!(published(&observer.service("second").await?).is_none(), "Service second has an address");
    observer.delete(&["first"]).await?;
    let next = observer.address("second").await?;
    observer.answers(next, 80).await?;
    observer.delete(&["second"]).await?;
    pools::remove(tour, LIMITED).await?;
    Ok(format!("{address}, and of the second one: {why:?}; {next} when the first was gone"))
}

/// The message of the Ready condition of a Service's object, once it is false for this reason.
async fn waits(observer: &Observer, service: &str, reason: &str) -> Result<String> {
    observer
        .wait(&format!("{reason} of Service {service}"), || async {
            let status = observer.balancer(service).await?.status.unwrap_or_default();
            let ready = condition::ready(&status.conditions);
            ensure!(ready.is_some_and(|ready| ready.reason == reason), "its condition is {ready:?}");
            Ok(ready.map(|ready| ready.message.clone()).unwrap_or_default())
        })
        .await
}
