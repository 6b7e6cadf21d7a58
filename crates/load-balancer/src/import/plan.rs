//! The plan of an import: a pure function.

use std::{collections::BTreeMap, net::IpAddr};

use harvester_api::{
    IPPool, IPPoolSpec, IPPoolStatus, Ipam, LoadBalancer, PoolRange, PoolScope, PoolSelector, WorkloadType,
    annotations, labels,
};
use ipam::{Range, RangeSpec, Ranges, Record, legacy::Legacy};
use kube::{ResourceExt, core::Status};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    pool::{RECORD_LIMIT, bytes_in_store},
    refusal,
};

/// Name of the pool for everybody.
const GLOBAL: &str = "global";
/// Longest text of the annotation that lists what could not be imported.
const REPORT_MAX: usize = 8192;

/// The most bytes of history that the import gives a pool: the rest of the object is for its records.
const HISTORY_LIMIT: usize = RECORD_LIMIT / 4 * 3;

/// An address that was given out under the old rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InUse {
    pub(super) namespace: String,
    pub(super) service: String,
    pub(super) address: IpAddr,
}

/// Everything that the import depends on.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The data of the ConfigMap.
    pub(super) data: BTreeMap<String, String>,
    pub(super) in_use: Vec<InUse>,
    /// A sentence for each ConfigMap of addresses in use that cannot be read.
    pub(super) unread: Vec<String>,
    /// The addresses that the load balancers named in `in_use` show, by `namespace/name`.
    pub(super) shown: BTreeMap<String, IpAddr>,
    /// The pools that are there already, by name.
    pub(super) pools: BTreeMap<String, IPPool>,
}

/// The objects to create, the addresses to remember, and a report.
#[derive(Debug, Default)]
pub(super) struct Plan {
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
    pub(super) holder: String,
}

/// Decides. A pool that is there already stays as it is, and only learns which addresses were in use.
pub(super) fn decide(seen: &Seen) -> Plan {
    let Seen { data, in_use, unread, pools, shown: _ } = seen;
    let addresses: Vec<_> = in_use.iter().map(|entry| entry.address).collect();
    let legacy = Legacy::read(data, &addresses);
    let mut plan =
        Plan { faults: legacy.faults.iter().map(ToString::to_string).collect(), ..Plan::default() };
    let mut records: BTreeMap<&str, (Ranges, Record)> = BTreeMap::new();
    for (name, specs) in &legacy.pools {
        match Ranges::parse(specs) {
            Ok(ranges) => drop(records.insert(name, (ranges, Record::default()))),
            Err(faults) => plan.faults.extend(faults.iter().map(|fault| format!("pool {name}: {fault}"))),
        }
    }
    remember(seen, &mut records, &mut plan);
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

/// Remembers who had which address, in the pool of the own namespace or else in the global one. Tenants write these
/// ConfigMaps: of several namespaces that name an address only one can have had it.
fn remember<'a>(seen: &'a Seen, records: &mut BTreeMap<&'a str, (Ranges, Record)>, plan: &mut Plan) {
    let mut named: BTreeMap<(&str, IpAddr), BTreeMap<&str, &str>> = BTreeMap::new();
    for InUse { namespace, service, address } in &seen.in_use {
        let covers =
            |name: &&str| records.get(name).is_some_and(|(ranges, _)| ranges.covering(*address).is_some());
        if let Some(home) = [namespace.as_str(), GLOBAL].into_iter().find(covers) {
            named.entry((home, *address)).or_default().insert(namespace, service);
        }
    }
    let (mut disputed, mut settled, mut turns) = (Vec::new(), Vec::new(), BTreeMap::new());
    for ((name, address), holders) in named {
        let there = seen.pools.get(name);
        if there.is_some_and(|pool| is_recorded(pool, address)) {
            continue;
        }
        let holders: Vec<_> =
            holders.iter().map(|(namespace, service)| format!("{namespace}/{service}")).collect();
        let Some(holder) = only_holder(&holders, address, &seen.shown) else {
            disputed.push((address, holders));
            continue;
        };
        // one namespace that names thousands of addresses leaves room for the few of another
        let namespace = holder.split('/').next().unwrap_or_default().to_owned();
        let turn: &mut usize = turns.entry((name, namespace)).or_default();
        *turn += 1;
        settled.push((*turn, name, address, holder.to_owned()));
    }
    settled.sort_by_key(|(turn, ..)| *turn);
    let (mut sizes, mut beyond) = (BTreeMap::new(), BTreeMap::new());
    for (_, name, address, holder) in settled {
        let size: &mut usize = sizes.entry(name).or_default();
        let larger = *size + bytes_in_store(&address.to_string(), &holder);
        if larger > HISTORY_LIMIT {
            *beyond.entry(name).or_insert(0) += 1;
            continue;
        }
        *size = larger;
        if seen.pools.contains_key(name) {
            plan.remember.push(Remembered { pool: name.to_owned(), address, holder });
        } else if let Some((_, record)) = records.get_mut(name) {
            record.remember(address, &holder);
        }
    }
    let full = beyond.iter().map(|(name, count)| {
        format!("pool {name}: its object has no room to remember who had {count} of the addresses in use")
    });
    plan.faults.extend(full);
    if let Some((address, holders)) = disputed.first() {
        plan.faults.push(format!(
            "{} addresses in use are not remembered, because several namespaces name them and not one alone has a load \
             balancer that shows them; the first is {address} of {}",
            disputed.len(),
            holders.iter().take(2).map(String::as_str).collect::<Vec<_>>().join(" and ")
        ));
    }
}

fn is_recorded(pool: &IPPool, address: IpAddr) -> bool {
    let text = address.to_string();
    pool.status.as_ref().is_some_and(|status| {
        status.allocated.contains_key(&text) || status.allocated_history.contains_key(&text)
    })
}

/// The only one who names the address, or who shows it too.
fn only_holder<'a>(
    holders: &'a [String],
    address: IpAddr,
    shown: &BTreeMap<String, IpAddr>,
) -> Option<&'a str> {
    if let [holder] = holders {
        return Some(holder);
    }
    let mut showing = holders.iter().filter(|holder| shown.get(*holder) == Some(&address));
    showing.next().filter(|_| showing.next().is_none()).map(String::as_str)
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
    };
    let namespace = if name == GLOBAL { "*" } else { name };
    let any = || "*".to_owned();
    let scope = PoolScope { project: any(), namespace: namespace.to_owned(), guest_cluster: any() };
    let spec = IPPoolSpec {
        description: String::new(),
        ranges: specs.iter().map(range).collect(),
        selector: PoolSelector { scope: vec![scope], ..PoolSelector::default() },
    };
    let (total, available) = ranges.counts(0);
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

#[derive(Deserialize)]
struct Services {
    #[serde(default)]
    services: Vec<ServiceEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ServiceEntry {
    vip: String,
    service_name: String,
}

/// The most characters of an error: it quotes the text, which a tenant writes.
const ERROR_MAX: usize = 200;

/// Reads the key `kubevip-services` of a namespace's ConfigMap. Entries that are no addresses are passed over, and so are
/// those of names that no Service can have.
///
/// # Errors
/// The text is no list of Services: a sentence that says so.
pub(super) fn services(namespace: &str, text: &str) -> Result<Vec<InUse>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let read = serde_json::from_str::<Services>(text).map_err(|error| {
        let error: String = error.to_string().chars().take(ERROR_MAX).collect();
        format!("ConfigMap {namespace}/kubevip, kubevip-services cannot be read, so addresses in use are not known: {error}")
    });
    let entries = read?.services;
    let of = |entry: ServiceEntry| {
        let address = entry.vip.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified())?;
        is_label(&entry.service_name).then(|| InUse {
            namespace: namespace.to_owned(),
            service: entry.service_name,
            address,
        })
    };
    Ok(entries.into_iter().filter_map(of).collect())
}

/// As Kubernetes asks it of a Service's name; where a `-` stands does not matter here.
fn is_label(name: &str) -> bool {
    let is_admitted = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(is_admitted)
}

/// The address of a pool that a load balancer shows and that its tenant cannot write: the webhook restores the status of
/// objects of type vm, and with DHCP the address comes from elsewhere.
pub(super) fn shown_by(lb: &LoadBalancer) -> Option<IpAddr> {
    let is_trusted = lb.spec.workload() == WorkloadType::Vm && lb.spec.ipam() == Ipam::Pool;
    lb.status.as_ref().filter(|_| is_trusted)?.address.parse().ok()
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

    use super::*;

    fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn decided(entries: &[(&str, &str)], in_use: &[InUse]) -> Plan {
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

    fn history<'a>(plan: &'a Plan, pool: &str) -> Vec<(&'a str, &'a str)> {
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
        let shown = shown.iter().map(|(holder, ip)| ((*holder).to_owned(), ip.parse().unwrap())).collect();
        let mut seen = Seen { data: data(&GLOBAL_MAP), in_use, shown, ..Seen::default() };
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
        let again: Vec<_> = decide(&seen).remember.into_iter().map(|one| one.holder).collect();
        assert_eq!(again, expected.iter().map(|(_, holder)| (*holder).to_owned()).collect::<Vec<_>>());
    }

    #[rstest]
    #[case::of_a_pool(json!({"workloadType": "vm", "ipam": "pool"}), Some([10, 0, 0, 7]))]
    #[case::as_converted(json!({}), Some([10, 0, 0, 7]))]
    #[case::with_dhcp(json!({"workloadType": "vm", "ipam": "dhcp"}), None)]
    #[case::of_a_guest_cluster(json!({"workloadType": "cluster", "ipam": "pool"}), None)]
    fn only_an_address_that_no_tenant_writes_counts_as_shown(
        #[case] spec: Value,
        #[case] expected: Option<[u8; 4]>,
    ) {
        let lb = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec, "status": {"address": "10.0.0.7"}});
        let lb: LoadBalancer = serde_json::from_value(lb).unwrap();
        assert_eq!(shown_by(&lb), expected.map(IpAddr::from));
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
        let size: usize = found.iter().map(|(key, holder)| stored(key, holder)).sum();
        assert!(size <= HISTORY_LIMIT, "{size}");
    }

    #[test]
    fn a_config_map_that_cannot_be_read_is_a_short_sentence() {
        let why = services("evil", &json!({"services": "a".repeat(900_000)}).to_string()).unwrap_err();
        assert!(why.len() < 400, "{}", why.len());
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
        let remembered: Vec<_> = again.remember.iter().map(|entry| (&*entry.pool, &*entry.holder)).collect();
        assert_eq!(remembered, [("default", "default/lb2")], "a pool that was there and does not know it");
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
