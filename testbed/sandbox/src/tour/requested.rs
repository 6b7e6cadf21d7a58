//! Services ask for an address, or for the pool that it comes from.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, ensure};
use harvester_api::annotations;

use super::{Tour, addresses::create, observer::published, pools};

/// Further addresses in Harvester, which the pool of the example is preferred to.
const POOL: &str = "wished";

/// A Service that names a pool has an address of it. One that demands an address has that one; a second one is told who
/// holds it, and has it when it is free.
pub(super) async fn addresses(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let net = tour.environment.address_plan.demandable();
    pools::add(tour, POOL, &net.to_string()).await?;

    create(&observer, "choosy", &[(annotations::SERVICE_IP_POOL, POOL)]).await?;
    let chosen = observer.address("choosy").await?;
    ensure!(matches!(chosen, IpAddr::V4(v4) if net.contains(&v4)), "{chosen} is not of pool {POOL}");
    observer.answers(chosen, 80).await?;

    let wanted = Ipv4Addr::from(u32::from(net.network()) + 77).to_string();
    create(&observer, "demanding", &[(annotations::SERVICE_IP, &wanted)]).await?;
    let address = observer.address("demanding").await?;
    ensure!(address.to_string() == wanted, "the address is {address}, not {wanted}");
    observer.answers(address, 80).await?;
    create(&observer, "late", &[(annotations::SERVICE_IP, &wanted)]).await?;
    let why = observer.told("late", "AddressInUse").await?;
    ensure!(published(&observer.service("late").await?).is_none(), "Service late has an address");
    observer.delete(&["demanding"]).await?;
    let next = observer.address("late").await?;
    ensure!(next == address, "Service late has {next}, not {wanted}");
    observer.answers(address, 80).await?;

    observer.delete(&["late", "choosy"]).await?;
    pools::remove(tour, POOL).await?;
    Ok(format!(
        "{chosen} of pool {POOL} by name; {wanted} on demand, and of the one that waited for it: {why:?}"
    ))
}
