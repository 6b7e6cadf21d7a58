//! The plan of an import: a pure function.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use controller_kit::{ObjectKey, refusal};
use harvester_api::{
    IPPool, IPPoolSpec, IPPoolStatus, PoolRange, PoolScope, PoolSelector, annotations, labels,
};
use ipam::{Range, RangeSpec, Ranges, Record, legacy::Legacy};
use kube::{ResourceExt, core::Status};
use serde_json::Value;

use super::in_use::{Holders, InUse};
use crate::pool::{RECORD_LIMIT, bytes_in_store};

/// Name of the pool for everybody.
pub(super) const GLOBAL: &str = "global";
/// Longest text of the annotation that lists what could not be imported.
const REPORT_MAX: usize = 8192;

/// The most bytes of history that the import gives a pool: the rest of the object is for its records. A pool that is there
/// already may have less room. Its writer passes over what finds none, and no fault says so.
const HISTORY_LIMIT: usize = RECORD_LIMIT / 4 * 3;

/// Everything that the import depends on.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The data of the ConfigMap.
    pub(super) data: BTreeMap<String, String>,
    pub(super) in_use: Vec<InUse>,
    /// A sentence for each ConfigMap of addresses in use that cannot be read.
    pub(super) unread: Vec<String>,
    /// The addresses that the load balancers named in `in_use` show.
    pub(super) shown: BTreeMap<ObjectKey, IpAddr>,
    /// The pools that are there already, by name.
    pub(super) pools: BTreeMap<String, IPPool>,
}

/// The objects to create, the addresses to remember, and a report.
#[derive(Debug, Default)]
pub(super) struct ImportPlan {
    pub(super) create: Vec<IPPool>,
    pub(super) remember: Vec<Remembered>,
    /// The entries that cannot be imported, one line each.
    pub(super) faults: Vec<String>,
}

/// An address in use, for the history of a pool that is there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    pub(super) pool: String,
    pub(super) address: IpAddr,
    pub(super) holder: ObjectKey,
}

/// Decides. A pool that is there already stays as it is, and only learns which addresses were in use.
pub(super) fn decide(seen: &Seen) -> ImportPlan {
    let Seen { data, in_use, unread, shown, pools } = seen;
    let holders = Holders::new(in_use, shown);
    let legacy = Legacy::read(data, |pool, address| holders.showing(pool, address).is_some());
    let mut plan = ImportPlan {
        faults: legacy.faults.iter().map(ToString::to_string).collect(),
        ..ImportPlan::default()
    };
    let mut records: BTreeMap<&str, (Ranges, Record)> = BTreeMap::new();
    for (name, specs) in &legacy.pools {
        match Ranges::parse(specs) {
            Ok(ranges) => drop(records.insert(name, (ranges, Record::default()))),
            Err(faults) => plan.faults.extend(faults.iter().map(|fault| format!("pool {name}: {fault}"))),
        }
    }
    let offers = |pool: &str, address| records.get(pool).is_some_and(|(ranges, _)| ranges.offers(address));
    let Settled { remembered, faults } = settle(&holders, pools, offers, &legacy.left_out);
    plan.faults.extend(faults);
    let is_shown = |one: &Remembered| holders.showing(&one.pool, one.address).is_some();
    let (remembered, faults) = limited(remembered, is_shown);
    plan.faults.extend(faults);
    for Remembered { pool, address, holder } in remembered {
        match records.get_mut(&*pool) {
            Some((_, record)) if !pools.contains_key(&pool) => record.remember(address, &holder.to_string()),
            _ => plan.remember.push(Remembered { pool, address, holder }),
        }
    }
    for (name, (ranges, record)) in records {
        let pool = pool(name, &legacy.pools[name], &ranges, &record);
        match pools.get(name) {
            Some(there) => plan.faults.extend(lacks(&pool, there)),
            None => plan.create.push(pool),
        }
    }
    plan.faults.extend(unread.iter().cloned());
    plan
}

/// The addresses whose holders the import believes, and sentences about the others.
struct Settled {
    remembered: Vec<Remembered>,
    faults: Vec<String>,
}

/// Decides who had which address, in the pool of the own namespace or else in the global one. `left_out` are addresses at
/// the edges of ranges, which became no ranges of their own.
fn settle(
    holders: &Holders<'_>,
    pools: &BTreeMap<String, IPPool>,
    offers: impl Fn(&str, IpAddr) -> bool,
    left_out: &BTreeSet<(String, IpAddr)>,
) -> Settled {
    let (mut remembered, mut disputed, mut at_edges) = (Vec::new(), Vec::new(), Vec::new());
    for (address, named) in holders.all() {
        let of_whom = || named.iter().take(2).map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let mut homes = named.iter().map(|holder| &*holder.namespace).chain([GLOBAL]);
        let is_known = |pool: &str| pools.get(pool).is_some_and(|pool| is_recorded(pool, address));
        let is_given = |pool: &str| pools.get(pool).is_some_and(|pool| gives(pool, address));
        let is_left_out = |pool: &str| left_out.contains(&(pool.to_owned(), address)) && !is_given(pool);
        // the ranges of two pools do not overlap
        match homes.clone().find(|pool| offers(pool, address)) {
            Some(pool) if is_known(pool) => {}
            Some(pool) => match holders.believed(pool, address) {
                Some(holder) => {
                    let (pool, holder) = (pool.to_owned(), holder.clone());
                    remembered.push(Remembered { pool, address, holder });
                }
                None => disputed.push(format!("{address} of {}", of_whom())),
            },
            None if homes.any(is_left_out) => at_edges.push(format!("{address} of {}", of_whom())),
            None => {}
        }
    }
    let first_of = |addresses: &[String], why: &str| {
        let first = addresses.first()?;
        Some(format!("{} addresses in use {why}; the first is {first}", addresses.len()))
    };
    let disputed = first_of(
        &disputed,
        "are not remembered, because several namespaces name them and not one alone has a load balancer of type vm \
         that shows them",
    );
    let at_edges = first_of(
        &at_edges,
        "are at the edge of a subnet (network, broadcast or first address), where pools give none, and no load balancer \
         of type vm shows them, or several do: add a range of one address (/32 or /128) for each that must stay in use",
    );
    Settled { remembered, faults: disputed.into_iter().chain(at_edges).collect() }
}

/// The addresses for which there is room, and a sentence for each pool that has not room for all. Those that load balancers
/// show come first: one at an edge of a range is there for its holder alone. Of each kind the namespaces take turns: one
/// that names thousands of addresses leaves room for the few of another.
fn limited(all: Vec<Remembered>, is_shown: impl Fn(&Remembered) -> bool) -> (Vec<Remembered>, Vec<String>) {
    let (mut turns, mut sizes, mut beyond) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let place = |one: Remembered| {
        let is_shown = is_shown(&one);
        let turn: &mut usize =
            turns.entry((is_shown, one.pool.clone(), one.holder.namespace.clone())).or_default();
        *turn += 1;
        ((!is_shown, *turn), one)
    };
    let mut all: Vec<_> = all.into_iter().map(place).collect();
    all.sort_by_key(|(place, _)| *place);
    let has_room = |one: &Remembered| {
        let size: &mut usize = sizes.entry(one.pool.clone()).or_default();
        let larger = *size + bytes_in_store(&one.address.to_string(), &one.holder.to_string());
        if larger > HISTORY_LIMIT {
            *beyond.entry(one.pool.clone()).or_insert(0) += 1;
            return false;
        }
        *size = larger;
        true
    };
    let remembered = all.into_iter().map(|(_, one)| one).filter(has_room).collect();
    let full = beyond.iter().map(|(name, count)| {
        format!("pool {name}: its object has no room to remember who had {count} of the addresses in use")
    });
    (remembered, full.collect())
}

fn is_recorded(pool: &IPPool, address: IpAddr) -> bool {
    let text = address.to_string();
    pool.status.as_ref().is_some_and(|status| {
        status.allocated.contains_key(&text) || status.allocated_history.contains_key(&text)
    })
}

fn gives(pool: &IPPool, address: IpAddr) -> bool {
    ip_pools::definition(pool).is_ok_and(|pool| pool.ranges.offers(address))
}

/// Names the ranges and the namespace of the ConfigMap's pool that the pool `there` does not serve. Both have one name.
fn lacks(wanted: &IPPool, there: &IPPool) -> Option<String> {
    let name = wanted.name_any();
    let wanted = ip_pools::definition(wanted).ok()?;
    let there = ip_pools::definition(there).unwrap_or_else(|_| ip_pools::bare(there));
    let gives = |range: &Range| {
        there.ranges.iter().any(|other| other.covers(range.start()) && other.covers(range.end()))
    };
    let absent: Vec<_> =
        wanted.ranges.iter().filter(|range| !gives(range)).map(ToString::to_string).collect();
    let serves = if wanted.selector.is_global() {
        there.selector.is_global()
    } else {
        let own = &wanted.selector.scopes;
        own.iter().all(|scope| there.selector.scopes.iter().any(|other| other.matches(scope)))
    };
    let whom = if name == GLOBAL { "everybody".to_owned() } else { format!("namespace {name}") };
    let lacks = [
        (!absent.is_empty()).then(|| format!("without {}", absent.join(", "))),
        (!serves).then(|| format!("not for {whom}")),
    ];
    let lacks: Vec<_> = lacks.into_iter().flatten().collect();
    (!lacks.is_empty()).then(|| {
        let lacks = lacks.join(", and ");
        format!(
            "pool {name}: there is an IPPool of this name already, {lacks}: change it if somebody needs that"
        )
    })
}

fn pool(name: &str, specs: &[RangeSpec], ranges: &Ranges, record: &Record) -> IPPool {
    let range = |spec: &RangeSpec| PoolRange {
        subnet: spec.subnet.clone(),
        range_start: spec.start.clone(),
        range_end: spec.end.clone(),
        gateway: spec.gateway.clone(),
        ..PoolRange::default()
    };
    let namespace = if name == GLOBAL { "*" } else { name };
    let any = || "*".to_owned();
    let scope = PoolScope { project: any(), namespace: namespace.to_owned(), guest_cluster: any() };
    let spec = IPPoolSpec {
        description: String::new(),
        ranges: specs.iter().map(range).collect(),
        selector: PoolSelector { scope: vec![scope], ..PoolSelector::default() },
        ..IPPoolSpec::default()
    };
    let (total, available) = ranges.counts(0, 0);
    let mut pool = IPPool::new(name, spec);
    // the webhook sets it too; without one it would be missing
    let global = (name == GLOBAL).to_string();
    pool.labels_mut().insert(labels::GLOBAL_IP_POOL.to_owned(), global);
    pool.labels_mut().insert(labels::VID.to_owned(), "0".to_owned());
    pool.status = Some(IPPoolStatus {
        total,
        available,
        allocated_history: record.allocated_history(),
        ..IPPoolStatus::default()
    });
    pool
}

/// Whether the server will give the same answer to the same object again.
pub(super) fn is_final_refusal(status: &Status) -> bool {
    refusal::is_about_the_object(status)
}

/// Marks the ConfigMap as imported, with what could not be.
pub(super) fn mark(json: &mut Value, faults: &[String]) {
    let Some(metadata) = json.pointer_mut("/metadata").and_then(Value::as_object_mut) else { return };
    let map = metadata.entry("annotations").or_insert_with(|| serde_json::json!({}));
    let Some(map) = map.as_object_mut() else { return };
    map.insert(annotations::AFTER_CONVERSION.to_owned(), "true".into());
    if faults.is_empty() {
        map.remove(annotations::IMPORT_ERRORS);
        return;
    }
    let report: String = faults.join("\n").chars().take(REPORT_MAX).collect();
    map.insert(annotations::IMPORT_ERRORS.to_owned(), report.into());
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::{super::in_use::services, *};

    fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn decided(entries: &[(&str, &str)], in_use: &[InUse]) -> ImportPlan {
        decide(&Seen { data: data(entries), in_use: in_use.to_vec(), ..Seen::default() })
    }

    fn entries(namespace: &str, vips: &[(&str, &str)]) -> Vec<InUse> {
        let services = vips.iter().map(
            |(vip, name)| json!({"vip": vip, "port": 80, "type": "tcp", "uid": "u", "serviceName": name}),
        );
        services_of(namespace, &json!({"services": services.collect::<Vec<_>>()}))
    }

    fn services_of(namespace: &str, value: &Value) -> Vec<InUse> {
        services(namespace, &value.to_string()).unwrap()
    }

    fn history<'a>(plan: &'a ImportPlan, pool: &str) -> Vec<(&'a str, &'a str)> {
        let pool = plan.create.iter().find(|candidate| candidate.name_any() == pool).unwrap();
        let history = &pool.status.as_ref().unwrap().allocated_history;
        history.iter().map(|(address, holder)| (address.as_str(), holder.as_str())).collect()
    }

    #[test]
    fn a_pool_serves_its_namespace_and_the_global_one_everybody() {
        let plan = decided(&[("cidr-default", "192.168.10.0/24"), ("cidr-global", "192.168.0.0/24")], &[]);
        let [default, global] = plan.create.as_slice() else { panic!("{:?}", plan.create) };
        let scope = |namespace: &str| PoolScope {
            project: "*".into(),
            namespace: namespace.into(),
            guest_cluster: "*".into(),
        };
        assert_eq!(
            default.spec.selector,
            PoolSelector { scope: vec![scope("default")], ..PoolSelector::default() }
        );
        assert_eq!(
            default.spec.ranges,
            [PoolRange { subnet: "192.168.10.0/24".into(), ..PoolRange::default() }]
        );
        assert!(global.spec.is_global() && !default.spec.is_global());
        assert_eq!(default.status.as_ref().unwrap().total, 253);
        assert_eq!(default.labels()[labels::GLOBAL_IP_POOL], "false");
    }

    #[rstest]
    #[case::the_same(json!([{"subnet": "192.168.10.0/24"}]), "default", None)]
    #[case::wider(json!([{"subnet": "192.168.0.0/16"}]), "*", None)]
    #[case::other_ranges(json!([{"subnet": "10.0.0.0/24"}]), "default", Some("without 192.168.10.1-192.168.10.254"))]
    #[case::for_others(json!([{"subnet": "192.168.10.0/24"}]), "shop", Some("not for namespace default"))]
    #[case::both(json!([{"subnet": "x"}]), "shop", Some("192.168.10.254, and not for namespace default"))]
    fn a_pool_that_is_there_already_is_compared(
        #[case] ranges: Value,
        #[case] namespace: &str,
        #[case] lack: Option<&str>,
    ) {
        let plan = decided(&[("cidr-default", "192.168.10.0/24")], &[]);
        let scope = json!([{"namespace": namespace, "project": "*", "guestCluster": "*"}]);
        let there = json!({"metadata": {"name": "default"}, "spec": {"ranges": ranges, "selector": {"scope": scope}}});
        let found = lacks(&plan.create[0], &serde_json::from_value(there).unwrap());
        assert_eq!(found.is_some(), lack.is_some(), "{found:?}");
        assert!(lack.is_none_or(|part| found.as_deref().unwrap_or_default().contains(part)), "{found:?}");
    }

    const GLOBAL_MAP: [(&str, &str); 2] = [("cidr-global", "10.0.0.0/16"), ("cidr-shop", "192.168.10.0/24")];

    fn showing(shown: &[(&str, &str)]) -> BTreeMap<ObjectKey, IpAddr> {
        shown.iter().filter_map(|(holder, ip)| Some((ObjectKey::parse(holder)?, ip.parse().ok()?))).collect()
    }

    // docs/contract/load-balancer.md#8.5
    #[rstest]
    #[case::nobody_shows_it(&[], &[])]
    #[case::one_shows_it(&[("shop/web", "10.0.0.7")], &[("10.0.0.7", "shop/web")])]
    #[case::one_shows_another(&[("shop/web", "10.0.0.8")], &[])]
    #[case::both_show_it(&[("shop/web", "10.0.0.7"), ("zzz/mine", "10.0.0.7")], &[])]
    fn an_address_that_two_namespaces_name_goes_to_the_one_that_shows_it_or_to_neither(
        #[case] shown: &[(&str, &str)],
        #[case] expected: &[(&str, &str)],
    ) {
        let mut in_use = entries("shop", &[("10.0.0.7", "web")]);
        in_use.extend(entries("zzz", &[("10.0.0.7", "mine")]));
        let mut seen = Seen { data: data(&GLOBAL_MAP), in_use, shown: showing(shown), ..Seen::default() };
        let plan = decide(&seen);
        assert_eq!(history(&plan, "global"), expected);
        assert_eq!(
            plan.faults.iter().filter(|fault| fault.contains("10.0.0.7 of shop/web")).count(),
            usize::from(expected.is_empty()),
            "{:?}",
            plan.faults
        );
        let mut there = plan.create.into_iter().find(|pool| pool.name_any() == "global").unwrap();
        there.status = None;
        seen.pools.insert("global".to_owned(), there);
        let again: Vec<_> = decide(&seen).remember.iter().map(|one| one.holder.to_string()).collect();
        assert_eq!(again, expected.iter().map(|(_, holder)| (*holder).to_owned()).collect::<Vec<_>>());
    }

    #[test]
    fn a_namespace_that_names_anothers_addresses_takes_no_history_of_its_own_pool() {
        let mut in_use = entries("shop", &[("192.168.10.7", "web")]);
        in_use.extend(entries("zzz", &[("192.168.10.7", "mine")]));
        assert_eq!(history(&decided(&GLOBAL_MAP, &in_use), "shop"), [("192.168.10.7", "shop/web")]);
    }

    #[test]
    fn a_pool_is_made_with_no_more_history_than_its_object_has_room_for() {
        let vips: Vec<_> = (2..30_002_u32).map(|n| format!("10.0.{}.{}", n >> 8, n & 255)).collect();
        let name = "one-of-many-thousands-of-services";
        let services: Vec<_> = vips.iter().map(|vip| (vip.as_str(), name)).collect();
        let plan = decided(&GLOBAL_MAP, &entries("zzz", &services));
        let size: usize =
            history(&plan, "global").iter().map(|(key, holder)| bytes_in_store(key, holder)).sum();
        assert!((RECORD_LIMIT / 2..RECORD_LIMIT).contains(&size), "{size}");
        assert!(plan.faults[0].contains("pool global: "), "{:?}", plan.faults);
    }

    #[test]
    fn a_name_that_no_service_can_have_takes_no_room() {
        let long = "a".repeat(900_000);
        let mut in_use = entries("evil", &[("10.0.0.1", &long), ("10.0.0.2", "A_b"), ("10.0.0.3", "a/b")]);
        in_use.extend(entries("shop", &[("10.0.0.7", "web")]));
        assert_eq!(history(&decided(&GLOBAL_MAP, &in_use), "global"), [("10.0.0.7", "shop/web")]);
    }

    #[test]
    fn a_namespace_that_names_thousands_of_addresses_leaves_room_for_those_of_others() {
        let vips: Vec<_> = (2..30_002_u32).map(|n| format!("10.0.{}.{}", n >> 8, n & 255)).collect();
        let services: Vec<_> = vips.iter().map(|vip| (vip.as_str(), "mine")).collect();
        let mut in_use = entries("evil", &services);
        in_use.extend(entries("shop", &[("10.0.200.1", "web"), ("10.0.200.2", "api")]));
        let plan = decided(&GLOBAL_MAP, &in_use);
        let found = history(&plan, "global");
        let of_shop: Vec<_> = found.iter().filter(|(_, holder)| holder.starts_with("shop/")).collect();
        assert_eq!(of_shop, [&("10.0.200.1", "shop/web"), &("10.0.200.2", "shop/api")]);
        assert!(found.len() > 5_000, "{}", found.len());
        let size: usize = found.iter().map(|(key, holder)| bytes_in_store(key, holder)).sum();
        assert!(size <= HISTORY_LIMIT, "{size}");
    }

    const EDGES: [(&str, &str); 2] = [("cidr-global", "10.0.0.0/24"), ("cidr-shop", "10.0.1.0/24")];

    // docs/contract/load-balancer.md#IM-3
    #[rstest]
    #[case::nobody_shows_it("10.0.0.1", &[("evil", "")], None, true)]
    #[case::its_load_balancer_shows_it("10.0.0.1", &[("evil", "10.0.0.1")], Some("10.0.0.1/32"), false)]
    #[case::it_shows_another("10.0.0.255", &[("evil", "10.0.0.7")], None, true)]
    #[case::two_show_it("10.0.0.0", &[("shop", "10.0.0.0"), ("evil", "10.0.0.0")], None, true)]
    #[case::of_another_namespaces_pool("10.0.1.1", &[("evil", "10.0.1.1")], None, false)]
    #[case::of_its_own_pool("10.0.1.0", &[("shop", "10.0.1.0")], Some("10.0.1.0/32"), false)]
    #[case::of_its_own_pool_and_named_elsewhere(
        "10.0.1.0", &[("shop", "10.0.1.0"), ("evil", "10.0.1.0")], Some("10.0.1.0/32"), false)]
    fn an_address_at_the_edge_of_a_range_is_given_only_to_the_load_balancer_that_shows_it(
        #[case] ip: &str,
        #[case] named_and_shown: &[(&str, &str)],
        #[case] opened: Option<&str>,
        #[case] is_told: bool,
    ) {
        let in_use = named_and_shown.iter().flat_map(|(namespace, _)| entries(namespace, &[(ip, "web")]));
        let shown: Vec<_> =
            named_and_shown.iter().map(|(namespace, ip)| (format!("{namespace}/web"), *ip)).collect();
        let shown: Vec<_> = shown.iter().map(|(holder, ip)| (holder.as_str(), *ip)).collect();
        let seen =
            Seen { data: data(&EDGES), in_use: in_use.collect(), shown: showing(&shown), ..Seen::default() };
        let plan = decide(&seen);
        let subnets =
            plan.create.iter().flat_map(|pool| &pool.spec.ranges).map(|range| range.subnet.as_str());
        assert_eq!(subnets.filter(|subnet| subnet.ends_with("/32")).collect::<Vec<_>>(), opened.as_slice());
        let remembered = plan.create.iter().flat_map(|pool| history(&plan, &pool.name_any()));
        assert_eq!(remembered.count(), usize::from(opened.is_some()));
        assert_eq!(
            plan.faults.iter().filter(|fault| fault.contains(ip)).count(),
            usize::from(is_told),
            "{:?}",
            plan.faults
        );
    }

    #[test]
    fn an_address_that_its_load_balancer_shows_is_remembered_before_all_that_nobody_shows() {
        let vips: Vec<_> = (2..30_002_u32).map(|n| format!("10.0.{}.{}", n >> 8, n & 255)).collect();
        let services: Vec<_> = vips.iter().map(|vip| (vip.as_str(), "mine")).collect();
        let mut in_use = entries("shop", &services);
        in_use.extend(entries("shop", &[("10.0.255.255", "web")]));
        let shown = showing(&[("shop/web", "10.0.255.255")]);
        let plan = decide(&Seen { data: data(&GLOBAL_MAP), in_use, shown, ..Seen::default() });
        let global = plan.create.iter().find(|pool| pool.name_any() == "global").unwrap();
        assert_eq!(global.spec.ranges[0].subnet, "10.0.255.255/32", "anybody may draw from it");
        assert!(history(&plan, "global").contains(&("10.0.255.255", "shop/web")));
    }

    #[rstest]
    #[case::as_it_was_imported(&["10.0.0.0/24"], 1)]
    #[case::with_the_range_that_the_fault_asks_for(&["10.0.0.0/24", "10.0.0.255/32"], 0)]
    fn an_edge_that_the_pool_gives_by_now_is_no_fault(#[case] subnets: &[&str], #[case] faults: usize) {
        let in_use = entries("shop", &[("10.0.0.255", "web")]);
        let mut there = decided(&EDGES, &[]).create.remove(0);
        let range = |subnet: &&str| PoolRange { subnet: (*subnet).to_owned(), ..PoolRange::default() };
        there.spec.ranges = subnets.iter().map(range).collect();
        let pools = [("global".to_owned(), there)].into();
        let plan = decide(&Seen { data: data(&EDGES), in_use, pools, ..Seen::default() });
        assert_eq!(plan.faults.len(), faults, "{:?}", plan.faults);
    }

    #[test]
    fn an_address_that_a_tenant_names_thousands_of_times_is_one_fault() {
        let in_use = entries("evil", &[("10.0.0.0", "web"); 10_000]);
        let plan = decided(&EDGES, &in_use);
        assert_eq!(plan.faults.len(), 1, "{:?}", &plan.faults[..2]);
        assert!(
            plan.faults[0].len() < 500 && plan.create[0].spec.ranges.len() == 1,
            "{:?}",
            plan.create[0].spec
        );
    }

    #[test]
    fn addresses_in_use_are_remembered_where_they_belong() {
        let mut in_use =
            entries("default", &[("192.168.10.73", "lb2"), ("192.168.0.162", "lb1"), ("0.0.0.0", "lb0")]);
        in_use.extend(entries("harvester-system", &[("192.168.0.16", "lb3"), ("192.168.10.7", "lb4")]));
        let map = [("cidr-default", "192.168.10.0/24"), ("cidr-global", "192.168.0.0/24")];
        let plan = decided(&map, &in_use);
        assert_eq!(history(&plan, "default"), [("192.168.10.73", "default/lb2")]);
        assert_eq!(
            history(&plan, "global"),
            [("192.168.0.16", "harvester-system/lb3"), ("192.168.0.162", "default/lb1")]
        );
        assert_eq!(plan.remember, [], "the new pools come with their history");
        let pools = plan.create.iter().map(|pool| {
            let mut there = pool.clone();
            there.status = (pool.name_any() == "global").then(|| pool.status.clone().unwrap());
            (pool.name_any(), there)
        });
        let seen = Seen { data: data(&map), in_use, pools: pools.collect(), ..Seen::default() };
        let again = decide(&seen);
        assert_eq!((again.create.len(), again.faults.len()), (0, 0));
        let remembered: Vec<_> =
            again.remember.iter().map(|one| (&*one.pool, one.holder.to_string())).collect();
        assert_eq!(
            remembered,
            [("default", "default/lb2".to_owned())],
            "a pool that was there and does not know it"
        );
    }

    // docs/contract/load-balancer.md#IM-1: any of these ended the Go program, again and again
    #[test]
    fn bad_entries_are_named_and_the_others_imported() {
        let map = [("nodash", "x"), ("cidr-a", "10.0.1.0/24, nonsense"), ("range-b", "10.0.2.7-10.0.2.7")];
        let unreadable = services("a", "not json").unwrap_err();
        assert!(
            unreadable.starts_with("ConfigMap a/kubevip, kubevip-services cannot be read"),
            "{unreadable}"
        );
        let plan = decided(&map, &[]);
        assert_eq!(plan.create.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(plan.faults.len(), 2);
        let mut json = json!({"metadata": {}});
        mark(&mut json, &plan.faults);
        let report = json["metadata"]["annotations"][annotations::IMPORT_ERRORS].as_str().unwrap();
        assert_eq!(report.lines().count(), 2, "{report}");
        assert!(report.contains("cidr-a: \"nonsense\" is not usable"), "{report}");
        assert_eq!(json["metadata"]["annotations"][annotations::AFTER_CONVERSION], "true");
    }

    #[test]
    fn a_map_without_data_is_done_at_once() {
        let plan = decided(&[], &[]);
        assert!(plan.create.is_empty() && plan.faults.is_empty());
        let mut json = json!({"metadata": {"annotations": {"a": "b", annotations::IMPORT_ERRORS: "old"}}});
        mark(&mut json, &plan.faults);
        assert_eq!(json["metadata"]["annotations"], json!({"a": "b", annotations::AFTER_CONVERSION: "true"}));
    }

    #[rstest]
    #[case(
        500,
        "admission webhook \"x\" denied the request: Internal error occurred: can't create IP pool",
        true
    )]
    #[case(500, "Internal error occurred: failed calling webhook \"x\": connection refused", false)]
    #[case(422, "IPPool \"A_B\" is invalid: metadata.name", true)]
    #[case(403, "admission webhook \"x\" denied the request: can't create IP pool", true)]
    #[case(403, "ippools is forbidden: User \"x\" cannot create resource \"ippools\"", false)]
    #[case(401, "Unauthorized", false)]
    #[case(429, "too many requests", false)]
    #[case(503, "the server is currently unable to handle the request", false)]
    fn a_refusal_is_final(#[case] code: u16, #[case] message: &str, #[case] expected: bool) {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        assert_eq!(is_final_refusal(&status), expected);
    }
}
