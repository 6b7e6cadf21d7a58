//! An `IPPool` object as the crate `ipam` sees it, and what speaks against it.

use std::{borrow::Cow, net::IpAddr};

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
    #[cfg(test)]
    tests::READ.set(tests::READ.get() + 1);
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

/// Whether two versions of a pool say the same about who gets what of it. One that was made again is younger, and of two
/// that overlap the older is right.
pub fn same_rules(one: &IPPool, other: &IPPool) -> bool {
    one.spec == other.spec
        && is_by_name_only(one) == is_by_name_only(other)
        && one.creation_timestamp() == other.creation_timestamp()
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

/// Checks a pool beside the others. Of two that disagree the older one is right (equal age: the name that comes
/// first), so two that were created at once do not block each other.
pub fn check<'a>(pool: &IPPool, others: impl IntoIterator<Item = &'a IPPool>) -> CheckedPool {
    let read = match definition(pool) {
        Ok(own) => {
            let others: Vec<_> = others.into_iter().map(parsed).collect();
            let older: Vec<_> = others.iter().filter(|other| is_older(other, &own)).collect();
            check_beside(pool, own, older)
        }
        Err(faults) => unreadable(pool, &faults),
    };
    with_records(read, pool)
}

/// The pool, whose spec is checked, with the faults of its records: those that no range covers. They keep nobody from
/// drawing.
pub fn with_records(mut checked: CheckedPool, pool: &IPPool) -> CheckedPool {
    // ranges that cannot be read say nothing about records
    if let (true, Some(status)) = (checked.pool.ranges.iter().next().is_some(), &pool.status) {
        let excluded = checked.pool.excluded(&status.allocated);
        let more = excluded.len().saturating_sub(NAMED);
        checked.faults.extend(excluded.iter().take(NAMED).map(ToString::to_string));
        if more > 0 {
            checked.faults.push(format!("{more} addresses more are excluded"));
        }
    }
    checked
}

/// Checks the spec of every pool of a list: everything that keeps somebody from drawing, and nothing about records. Each
/// pool is read once.
pub fn check_specs<'a>(pools: impl IntoIterator<Item = &'a IPPool>) -> Vec<CheckedPool> {
    let pools: Vec<(&IPPool, _)> = pools.into_iter().map(|pool| (pool, definition(pool))).collect();
    let mut by_age: Vec<Cow<'_, Pool>> = pools
        .iter()
        .map(|(pool, read)| match read {
            Ok(read) => Cow::Borrowed(read),
            Err(_) => Cow::Owned(bare(pool)),
        })
        .collect();
    by_age.sort_by(|one, other| age(one).cmp(&age(other)));
    let check = |(pool, read): &(&IPPool, Result<Pool, Vec<RangeFault>>)| match read {
        Ok(own) => {
            let older = by_age.partition_point(|other| is_older(other, own));
            check_beside(pool, own.clone(), by_age[..older].iter().map(|other| &**other))
        }
        Err(faults) => unreadable(pool, faults),
    };
    pools.iter().map(check).collect()
}

fn age(pool: &Pool) -> (i64, &str) {
    (pool.created, &pool.name)
}

fn is_older(other: &Pool, own: &Pool) -> bool {
    other.name != own.name && age(other) < age(own)
}

fn parsed(pool: &IPPool) -> Pool {
    definition(pool).unwrap_or_else(|_| bare(pool))
}

fn unreadable(pool: &IPPool, faults: &[RangeFault]) -> CheckedPool {
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    let blocked = Some(faults.join("; "));
    CheckedPool { pool: bare(pool), faults, blocked }
}

fn check_beside<'a>(pool: &IPPool, own: Pool, older: impl IntoIterator<Item = &'a Pool>) -> CheckedPool {
    let faults = own.faults(older);
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
    CheckedPool { pool: own, faults: texts, blocked: (!blocked.is_empty()).then(|| blocked.join("; ")) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    thread_local! {
        pub(super) static READ: Cell<usize> = const { Cell::new(0) };
    }

    fn pool(number: usize, subnet: &str) -> IPPool {
        let (name, created) = (format!("pool-{number}"), format!("2026-01-01T00:{:02}:00Z", number % 60));
        let object = json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"ranges": [{"subnet": subnet}]},
            "status": {"total": 9, "available": 7, "lastAllocated": "",
                "allocated": {"192.0.2.1": "a/a", "192.0.2.2": "a/b", "192.0.2.3": "a/c", "192.0.2.4": "a/d"}}});
        serde_json::from_value(object).unwrap()
    }

    fn told(checked: &CheckedPool) -> (&str, &[String], Option<&str>) {
        (&checked.pool.name, &checked.faults, checked.blocked.as_deref())
    }

    #[test]
    fn a_pool_is_read_once_for_the_check_of_all() {
        let pools: Vec<_> = (0..200).map(|n| pool(n, &format!("10.0.{n}.0/24"))).collect();
        let before = READ.get();
        assert!(check_specs(&pools).iter().all(|checked| checked.faults.is_empty()));
        assert_eq!(READ.get() - before, 200);
    }

    #[test]
    fn a_pool_has_the_same_faults_alone_and_among_all() {
        let subnets =
            ["10.0.0.0/24", "10.0.0.128/25", "10.0.0.0/16", "nonsense", "10.1.0.0/24", "10.0.0.128/25"];
        let pools: Vec<_> = subnets.iter().enumerate().map(|(n, subnet)| pool(n, subnet)).collect();
        for (own, checked) in pools.iter().zip(check_specs(&pools)) {
            let alone = check(own, &pools);
            assert_eq!(told(&with_records(checked, own)), told(&alone));
        }
        let last = check(&pools[4], &pools);
        let ends: Vec<_> = last.faults.iter().map(|fault| fault.split(' ').next().unwrap()).collect();
        assert_eq!(ends, ["allocated", "allocated", "allocated", "1"]);
    }
}
