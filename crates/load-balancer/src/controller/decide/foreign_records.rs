//! Records that other programs made for an object that has departed from them: an administrator wrote one back, or a pool came
//! back from a backup. They stay while the object does.

use std::net::IpAddr;

use harvester_api::LoadBalancer;

use super::Seen;
use crate::reuse;

/// Those of which nothing shows the addresses any more: the object does not wait until they are given back. One that is
/// shown may be announced, and counts among what the object holds.
pub(super) fn find(seen: &Seen, lb: &LoadBalancer) -> Vec<(String, IpAddr)> {
    let announced = lb.status.as_ref().and_then(|status| status.address.parse::<IpAddr>().ok());
    let is_shown = |address: IpAddr| {
        announced == Some(address)
            || lb.pool_addresses().any(|(_, has)| has == address)
            || seen
                .service
                .as_deref()
                .is_some_and(|service| reuse::named(service).any(|named| named == address))
    };
    let is_foreign =
        |record: &&(String, IpAddr)| seen.address.made_by_others.contains_key(*record) && !is_shown(record.1);
    seen.address.recorded.iter().filter(is_foreign).cloned().collect()
}

/// Told to an object that waits.
pub(super) fn note(seen: &Seen, foreign_records: &[(String, IpAddr)]) -> Option<String> {
    let record = foreign_records.first()?;
    let maker = seen.address.made_by_others.get(record).filter(|maker| !maker.is_empty());
    let maker = maker.map_or("another program", String::as_str);
    let (pool, address) = record;
    Some(format!(
        "pool {pool} records {address} for this load balancer too, and keeps it as long as the load balancer is there: \
         {maker} made that record"
    ))
}
