//! Records of machines' static addresses in Harvester's IPPools: a claim and a release as pure functions from the pool that
//! was read to the pool to write.
//!
//! The load balancer gives addresses from the same pools. Its rules hold here too, by the crates `ipam` and `ip-pools`: what a
//! range gives, what rests, quotas of namespaces, pools that overlap. It knows a record that it did not make by the writer in
//! the pool's managedFields, and never releases one.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use harvester_api::{IPPool, annotations};
use ipam::{Claim, Family, Ranges, Record, Request, Resting, Tenant};
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::{Value, json};

/// The writer of the driver's records in a pool's managedFields.
pub(crate) const MANAGER: &str = ip_pools::managers::NODE_DRIVER;

/// etcd refuses objects of 1.5 MB. The load balancer stops here too.
const RECORD_LIMIT: usize = 1_200_000;

/// What a machine's NIC gets from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// With the length of the subnet's prefix: `192.0.2.9/24`.
    pub address: String,
    pub gateway: Option<String>,
}

/// A claim that can be had.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub lease: Lease,
    /// The pool to write; none where it has the record already.
    pub put: Option<DynamicObject>,
}

/// Who asks for an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    /// `namespace/name` of the VM.
    pub holder: &'a str,
    /// Seconds since 1970.
    pub now: i64,
}

/// Gives the holder an IPv4 address of the pool: the one that the pool records for it, else the one that it had last, else
/// the next one. `all` are all pools, as far as they may be read.
///
/// # Errors
/// One sentence: why the pool gives none.
pub(crate) fn claim(
    read: &DynamicObject,
    all: &[DynamicObject],
    asking: Asking<'_>,
) -> Result<Claimed, String> {
    let pool = parse(read)?;
    let name = pool.name_any();
    let others: Vec<IPPool> = all
        .iter()
        .filter(|other| other.metadata.name != read.metadata.name)
        .filter_map(|other| parse(other).ok())
        .collect();
    let checked = ip_pools::check(&pool, &others);
    let ranges = &checked.pool.ranges;
    let mut record = ip_pools::record(&pool);
    let held: Vec<IpAddr> = record.of(asking.holder).filter(IpAddr::is_ipv4).collect();
    if let Some(address) = held.iter().find(|address| !is_ours(&pool, **address)) {
        let writer = ip_pools::managers::foreign(&pool, *address);
        return Err(format!(
            "IPPool {name} gives {address} to {} already, by the word of {}: something else has the machine's name; choose \
             another one",
            asking.holder,
            writer.as_deref().unwrap_or("its load balancer")
        ));
    }
    let mut resting = ip_pools::resting(&pool, asking.now);
    let request = Request { family: Some(Family::V4), resting: Some(&resting), ..Request::of(asking.holder) };
    if held.is_empty() {
        if let Some(blocked) = &checked.blocked {
            return Err(format!("IPPool {name} gives no address: {blocked}"));
        }
        within_quota(&checked.pool, &record, &resting, request)?;
    }
    let of_others: Vec<Record> = others.iter().map(ip_pools::record).collect();
    let taken = |address: IpAddr| of_others.iter().any(|record| record.holder(address).is_some());
    let claim = record.claim(ranges, request, taken).map_err(|_| {
        format!("IPPool {name} has no free IPv4 address: give it another range, or name another pool")
    })?;
    let address = claim.address();
    let Some(range) = ranges.covering(address) else {
        return Err(format!(
            "IPPool {name} gives {address} to {}, and none of its ranges has that address: give it back its range",
            asking.holder
        ));
    };
    if range.subnet().prefix_len() == 32 {
        return Err(format!(
            "IPPool {name} has {address} as a subnet of one address, which has no way to its gateway: give the range the subnet of \
             its network, and the address as rangeStart and rangeEnd"
        ));
    }
    let gateway = range.gateway().map(|gateway| gateway.to_string());
    let lease = Lease { address: format!("{address}/{}", range.subnet().prefix_len()), gateway };
    let put = match claim {
        Claim::Adopted(_) => None,
        Claim::Recorded(_) => {
            resting.end(address);
            let put = written(read, &pool, &record, ranges, &resting)?;
            let size = serde_json::to_vec(&put).map_or(0, |text| text.len());
            if size > RECORD_LIMIT {
                return Err(format!("IPPool {name} is full: it has {} records", record.count()));
            }
            Some(put)
        }
    };
    Ok(Claimed { lease, put })
}

/// Takes the holder's addresses back. The answer is the pool to write, if the driver made a record for the holder.
///
/// # Errors
/// One sentence: the pool cannot be read.
pub(crate) fn release(read: &DynamicObject, asking: Asking<'_>) -> Result<Option<DynamicObject>, String> {
    let pool = parse(read)?;
    let mut record = ip_pools::record(&pool);
    let ours: Vec<IpAddr> = record.of(asking.holder).filter(|address| is_ours(&pool, *address)).collect();
    if ours.is_empty() {
        return Ok(None);
    }
    let mut resting = ip_pools::resting(&pool, asking.now);
    let end = Resting::end_of_new(asking.now, pool.spec.quarantine_seconds);
    for address in ours {
        let rests = resting.clone();
        record.release(address, asking.holder, |past| rests.end_of(past).is_some());
        if let Some(end) = end {
            resting.begin(address, end);
        }
    }
    let ranges = ip_pools::definition(&pool).map(|definition| definition.ranges).unwrap_or_default();
    written(read, &pool, &record, &ranges, &resting).map(Some)
}

/// Whether the driver made the record of this address.
fn is_ours(pool: &IPPool, address: IpAddr) -> bool {
    ip_pools::managers::foreign(pool, address).is_some_and(|manager| manager == MANAGER)
}

/// A quota of the VM's namespace counts machines and load balancers, and what rests of them. Which machines are of a guest
/// cluster a pool does not say, so a quota of a guest cluster counts its load balancers alone.
fn within_quota(
    pool: &ipam::Pool,
    record: &Record,
    resting: &Resting,
    request: Request<'_>,
) -> Result<(), String> {
    let back = u64::from(record.resting_for(request).is_some());
    let is_full = |(tenant, max): &(Tenant, u64)| {
        let used = record.held_by(tenant, |_| vec![]) + record.resting_by(tenant, resting, |_| vec![]);
        used.saturating_sub(back) >= *max
    };
    match pool.quotas.of(request.holder, None).iter().find(|quota| is_full(quota)) {
        None => Ok(()),
        Some((tenant, max)) => {
            Err(format!("IPPool {} gives no more to {tenant}: its quota of {max} is used up", pool.name))
        }
    }
}

fn parse(read: &DynamicObject) -> Result<IPPool, String> {
    let pool = serde_json::to_value(read).and_then(serde_json::from_value);
    pool.map_err(|error| format!("IPPool {} cannot be read: {error}", read.name_any()))
}

/// The pool as it was read, with this record: fields that the driver does not know stay as they are.
fn written(
    read: &DynamicObject,
    pool: &IPPool,
    record: &Record,
    ranges: &Ranges,
    resting: &Resting,
) -> Result<DynamicObject, String> {
    let mut put = read.clone();
    let rests = |(address, _): &(IpAddr, i64)| ranges.gives(*address) && record.holder(*address).is_none();
    let (total, available) = record.counts(ranges, resting.iter().filter(rests).count());
    let mut status = put.data["status"].as_object().cloned().unwrap_or_default();
    status.insert("total".to_owned(), json!(total));
    status.insert("available".to_owned(), json!(available));
    status.insert("lastAllocated".to_owned(), json!(record.last_allocated()));
    for (key, map) in [("allocated", record.allocated()), ("allocatedHistory", record.allocated_history())] {
        match map.is_empty() {
            true => drop(status.remove(key)),
            false => drop(status.insert(key.to_owned(), json!(map))),
        }
    }
    let Some(data) = put.data.as_object_mut() else {
        return Err(format!("IPPool {} is no object", pool.name_any()));
    };
    data.insert("status".to_owned(), Value::Object(status));
    match ip_pools::resting_text(resting) {
        Some(text) => drop(put.annotations_mut().insert(annotations::QUARANTINE.to_owned(), text)),
        None => drop(put.annotations_mut().remove(annotations::QUARANTINE)),
    }
    Ok(put)
}
