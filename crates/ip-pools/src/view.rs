//! An `IPPool` object as the crate `ipam` sees it, and what speaks against it.

use std::net::IpAddr;

use harvester_api::{IPPool, annotations};
use ipam::{
    LONGEST_REST, Pool, PoolFault, QuotaFault, QuotaSpec, Quotas, RangeFault, RangeSpec, Ranges, Record,
    Scope, Selector,
};
use kube::{Resource, ResourceExt};

use crate::written_rests;

/// The record in the pool's status.
pub fn record(pool: &IPPool) -> Record {
    let status = pool.status.as_ref();
    status.map_or_else(Record::default, |status| {
        Record::read(&status.allocated, &status.allocated_history, &status.last_allocated)
    })
}

/// `status.total` and `status.available`; nothing where the ranges are wrong.
pub fn counts(pool: &IPPool) -> Option<(i64, i64)> {
    let ranges = definition(pool).ok()?.ranges;
    let record = record(pool);
    let rests = |address: &IpAddr| ranges.gives(*address) && record.holder(*address).is_none();
    let resting = written_rests(pool).into_keys().filter(rests).count();
    Some(record.counts(&ranges, resting))
}

/// The pool that the spec describes.
///
/// # Errors
/// Every fault of its ranges.
pub fn definition(pool: &IPPool) -> Result<Pool, Vec<RangeFault>> {
    let text = str::to_owned;
    let ranges = pool.spec.ranges.iter().map(|range| RangeSpec {
        subnet: text(&range.subnet),
        start: text(&range.range_start),
        end: text(&range.range_end),
        gateway: text(&range.gateway),
        drain: range.drain,
    });
    Ok(Pool { ranges: Ranges::parse(&ranges.collect::<Vec<_>>())?, ..bare(pool) })
}

/// The pool without its ranges: what is left of one whose ranges are wrong.
pub fn bare(pool: &IPPool) -> Pool {
    let selector = &pool.spec.selector;
    let scopes = selector.scope.iter().map(|scope| Scope {
        project: scope.project.clone(),
        namespace: scope.namespace.clone(),
        guest_cluster: scope.guest_cluster.clone(),
    });
    Pool {
        name: pool.name_any(),
        created: pool.creation_timestamp().map_or(0, |time| time.0.as_second()),
        ranges: Ranges::default(),
        selector: Selector {
            priority: selector.priority,
            network: selector.network.clone(),
            scopes: scopes.collect(),
        },
        by_name_only: is_by_name_only(pool),
        quotas: quotas(pool).0,
    }
}

/// What each tenant may hold, and what is wrong with that.
pub fn quotas(pool: &IPPool) -> (Quotas, Vec<QuotaFault>) {
    let specs = pool.spec.quota.iter().map(|quota| QuotaSpec {
        guest_cluster: quota.guest_cluster.clone(),
        namespace: quota.namespace.clone(),
        max: quota.max,
    });
    Quotas::parse(&specs.collect::<Vec<_>>())
}

/// What is wrong with the rest of released addresses.
pub fn quarantine_fault(pool: &IPPool) -> Option<String> {
    let seconds = pool.spec.quarantine_seconds;
    (!(0..=LONGEST_REST).contains(&seconds)).then(|| {
        format!("spec.quarantineSeconds {seconds} is outside of 0 to {LONGEST_REST}, which is a year")
    })
}

/// Whether the pool serves only load balancers that name it: an annotation says so, which every schema has.
pub fn is_by_name_only(pool: &IPPool) -> bool {
    let auto_assign = pool.annotations().get(annotations::AUTO_ASSIGN);
    auto_assign.is_some_and(|text| text.trim().eq_ignore_ascii_case("false"))
}

/// Whether two versions of a pool say the same about who gets what of it.
pub fn same_rules(one: &IPPool, other: &IPPool) -> bool {
    one.spec == other.spec && is_by_name_only(one) == is_by_name_only(other)
}

/// A pool and what speaks against it.
#[derive(Clone, Debug)]
pub struct CheckedPool {
    pub pool: Pool,
    /// Every fault, for the Ready condition.
    pub faults: Vec<String>,
    /// Why no address may be taken from it; faults of the selector alone do not keep anybody from it. Tenants who may
    /// not see other pools read this, so it names none.
    pub blocked: Option<String>,
}

/// So many records outside of the ranges are named.
const NAMED: usize = 3;

/// Whether the records of a pool are checked too. They keep nobody from drawing, and a pool may have thousands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Records {
    Checked,
    Ignored,
}

/// Checks a pool beside the others. Of two that disagree the older one is right (equal age: the name that comes
/// first), so two that were created at once do not block each other.
pub fn check<'a>(pool: &IPPool, others: impl IntoIterator<Item = &'a IPPool>) -> CheckedPool {
    check_with(pool, others, Records::Checked)
}

fn check_with<'a>(
    pool: &IPPool,
    others: impl IntoIterator<Item = &'a IPPool>,
    records: Records,
) -> CheckedPool {
    let own = match definition(pool) {
        Ok(own) => own,
        Err(faults) => {
            let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
            let blocked = Some(faults.join("; "));
            return CheckedPool { pool: bare(pool), faults, blocked };
        }
    };
    let age = |pool: &Pool| (pool.created, pool.name.clone());
    let older: Vec<_> = others
        .into_iter()
        .map(|other| definition(other).unwrap_or_else(|_| bare(other)))
        .filter(|other| other.name != own.name && age(other) < age(&own))
        .collect();
    let (mut faults, mut more) = (own.faults(&older), 0);
    if let (Records::Checked, Some(status)) = (records, &pool.status) {
        let mut excluded = own.excluded(&status.allocated);
        more = excluded.len().saturating_sub(NAMED);
        excluded.truncate(NAMED);
        faults.extend(excluded);
    }
    let mut blocked = Vec::new();
    if faults.iter().any(|fault| matches!(fault, PoolFault::Overlap { .. })) {
        blocked.push("its ranges overlap those of an older pool".to_owned());
    }
    if pool.meta().deletion_timestamp.is_some() {
        blocked.push("it is being deleted".to_owned());
    }
    let mut texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
    texts.extend(quarantine_fault(pool));
    texts.extend(quotas(pool).1.iter().map(ToString::to_string));
    if more > 0 {
        texts.push(format!("{more} addresses more are excluded"));
    }
    CheckedPool { pool: own, faults: texts, blocked: (!blocked.is_empty()).then(|| blocked.join("; ")) }
}

/// Checks the spec of every pool of a list: everything that keeps somebody from drawing, and nothing about records.
pub fn check_specs<'a>(pools: impl IntoIterator<Item = &'a IPPool>) -> Vec<CheckedPool> {
    let pools: Vec<&IPPool> = pools.into_iter().collect();
    pools.iter().map(|pool| check_with(pool, pools.iter().copied(), Records::Ignored)).collect()
}
