//! Load balancers on Harvester: a decision of the record, one that waits, one for VMs, and ten thousand of them beside
//! five thousand VMs.

mod many;
mod vm;

use std::{hint::black_box, net::IpAddr};

use anyhow::{Context, Result, ensure};
use ipam::{RangeSpec, Ranges, Record, Request};
use serde_json::json;
use tokio::time::Instant;

use super::{QUIET, Told, audit::Tally, direct::Direct, percentile};
use crate::environment::Environment;

/// The pool of a decision, and how many of its addresses are held.
const SUBNET: &str = "10.0.0.0/16";
const HELD: usize = 60_000;
/// Decisions that are timed together, and how often.
const DECISIONS: u32 = 100;
const ROUNDS: u32 = 20;
/// Objects that wait for the few addresses of a pool, and how often one of those goes to the next.
const HELD_AT_FIRST: usize = 14;
const WAITING: usize = 150;
const HANDED_ON: usize = 100;

/// Measures, and tells each figure. The simulation of VMs ends meanwhile, and many objects stay behind.
pub(super) async fn all(environment: &mut Environment, told: &Told<'_>) -> Result<()> {
    told.figure("allocate-us", decision()?);
    told.figure("waiter-p99-ms", waiter(environment).await.context("objects that wait")?);
    environment.end_simulation().await;
    vm::all(environment, told).await.context("a load balancer for VMs")?;
    many::all(environment, told).await.context("ten thousand load balancers")
}

/// Microseconds of one claim of the pure record, for a new holder each time. The median of the rounds: one in which another
/// process has the core for its time slice of some milliseconds is twenty times as long as the others.
fn decision() -> Result<f64> {
    let spec = RangeSpec { subnet: SUBNET.to_owned(), ..RangeSpec::default() };
    let ranges = Ranges::parse(&[spec]).ok().context("a subnet is a range")?;
    let mut record = Record::default();
    // free addresses lie everywhere, as after a while
    let mut addresses: Vec<IpAddr> = ranges.turn(None).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut addresses);
    ensure!(addresses.len() > HELD + (DECISIONS * ROUNDS) as usize, "the pool is too small");
    for (number, address) in addresses.iter().take(HELD).enumerate() {
        record.put(*address, &format!("shop/web-{number}"));
    }
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let holders: Vec<_> = (0..DECISIONS).map(|number| format!("bench/web-{round}-{number}")).collect();
        let begun = Instant::now();
        for holder in &holders {
            black_box(record.claim(&ranges, Request::of(holder), |_| false)).context("an address is free")?;
        }
        rounds.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(DECISIONS));
    }
    Ok(percentile(&mut rounds, 0.5))
}

/// Milliseconds from the request that deletes an object until one of those that wait has its address.
async fn waiter(environment: &Environment) -> Result<f64> {
    let few = json!({"subnet": "10.199.0.0/24", "rangeStart": "10.199.0.10", "rangeEnd": "10.199.0.23"});
    let mut direct = Direct::with_range(environment.harvester.clone(), "bench-waiter", few).await?;
    direct.create("holds", HELD_AT_FIRST).await?;
    direct.post("waits", WAITING).await?;
    settled(environment).await?;
    let mut times = Vec::new();
    for number in 0..HANDED_ON {
        times.push(direct.hand_on(number).await?.as_secs_f64() * 1_000.0);
    }
    settled(environment).await?;
    direct.remove().await.context("after objects that waited")?;
    Ok(percentile(&mut times, 0.99))
}

/// Waits until nobody asks for anything.
async fn settled(environment: &Environment) -> Result<()> {
    Tally::new(environment.audit_files()).quiet(QUIET).await.map(drop)
}
