//! An IPPool as rows of the page: one with its ranges and counts, and one for every 256 addresses among which some are
//! held or rest. Free addresses are what is left of a range, so a subnet of IPv6 costs no more than what is held in it,
//! and a change of one address is told in one small row.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use harvester_api::{IPPool, IPPoolStatus, annotations, condition};
use ipam::Range;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use crate::{
    model::Row,
    text::{self, number},
};

/// Addresses in a row.
const BLOCK: u128 = 256;
/// Ranges with a map; those of a pool with more are counted.
const RANGES: usize = 64;
/// Scopes, quotas, and addresses outside of all ranges that are named.
const NAMED: usize = 100;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolRow {
    kind: &'static str,
    name: String,
    description: String,
    /// The Ready condition.
    ready: &'static str,
    reason: String,
    message: String,
    leaving: bool,
    priority: i64,
    network: String,
    global: bool,
    /// Project, namespace and guest cluster.
    scopes: Vec<[String; 3]>,
    quotas: Vec<QuotaRow>,
    quarantine_seconds: i64,
    total: Value,
    free: Value,
    held: usize,
    resting: usize,
    /// Neither held nor resting, in ranges that give out no more.
    draining: Value,
    ranges: Vec<RangeRow>,
    more_ranges: usize,
    /// Held, in none of the ranges above.
    outside: Vec<[String; 2]>,
    more_outside: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QuotaRow {
    guest_cluster: String,
    namespace: String,
    max: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RangeRow {
    start: String,
    end: String,
    subnet: String,
    /// The gateway, where it lies between start and end.
    gateway: Option<String>,
    total: Value,
    held: u128,
    resting: u128,
    drain: bool,
}

#[derive(Default, Serialize)]
struct BlockRow {
    kind: &'static str,
    pool: String,
    range: usize,
    /// Address and holder.
    held: Vec<[String; 2]>,
    /// Address, the end of its rest, and who had it last: for the quota of that one it counts.
    resting: Vec<[String; 3]>,
}

/// What is known of an address that nobody may get.
enum Use<'a> {
    Held(&'a str),
    Resting(String),
}

/// The beginning of the names of all rows of a pool.
pub(crate) fn prefix(pool: &str) -> String {
    format!("pool/{pool}/")
}

/// The rows of a pool.
pub(crate) fn rows(pool: &IPPool) -> Vec<Row> {
    let name = pool.name_any();
    let definition = ip_pools::definition(pool);
    let (ranges, faults): (Vec<&Range>, _) = match &definition {
        Ok(definition) => (definition.ranges.iter().collect(), Vec::new()),
        Err(faults) => (Vec::new(), faults.iter().map(ToString::to_string).collect()),
    };
    let is_drained = |index: usize| pool.spec.ranges.get(index).is_some_and(|range| range.drain);
    let (uses, strange) = uses(pool);

    let mut by_start: Vec<_> = (0..ranges.len()).collect();
    by_start.sort_by_key(|index| ranges[*index].start());
    let covering = |address: IpAddr| {
        let below = by_start.partition_point(|index| ranges[*index].start() <= address);
        let index = *by_start[..below].last()?;
        ranges[index].covers(address).then_some(index)
    };
    let mut counts = vec![(0_u128, 0_u128); ranges.len()];
    let mut blocks: BTreeMap<(usize, u128), BlockRow> = BTreeMap::new();
    let mut outside: Vec<[String; 2]> = strange;
    let (mut held, mut resting) = (outside.len(), 0);
    for (address, used) in uses {
        let range = covering(address);
        match &used {
            Use::Held(_) => held += 1,
            Use::Resting(_) if range.is_none() => continue,
            Use::Resting(_) => resting += 1,
        }
        let shown = range.filter(|index| *index < RANGES);
        if let Some(index) = range {
            let (held, resting) = &mut counts[index];
            *(if matches!(used, Use::Held(_)) { held } else { resting }) += 1;
        }
        match (shown, used) {
            (Some(index), used) => {
                let offset = bits(address) - bits(ranges[index].start());
                let block = blocks.entry((index, offset / BLOCK)).or_insert_with(|| BlockRow {
                    kind: "block",
                    pool: name.clone(),
                    range: index,
                    ..BlockRow::default()
                });
                match used {
                    Use::Held(holder) => block.held.push([address.to_string(), text::name(holder)]),
                    Use::Resting(end) => {
                        let last = pool.status.as_ref().and_then(|status| last_holder(status, address));
                        let last = last.map(text::name).unwrap_or_default();
                        block.resting.push([address.to_string(), end, last]);
                    }
                }
            }
            (None, Use::Held(holder)) => outside.push([address.to_string(), text::name(holder)]),
            (None, Use::Resting(_)) => {}
        }
    }

    let (mut total, mut free, mut draining) = (0_u128, 0_u128, 0_u128);
    for (index, range) in ranges.iter().enumerate() {
        let (held, resting) = counts[index];
        // somebody may hold the gateway
        let left = range.total().saturating_sub(held + resting);
        total = total.saturating_add(range.total());
        let kind = if is_drained(index) { &mut draining } else { &mut free };
        *kind = kind.saturating_add(left);
    }
    let range_row = |(index, range): (usize, &&Range)| RangeRow {
        start: range.start().to_string(),
        end: range.end().to_string(),
        subnet: range.subnet().to_string(),
        gateway: range.gateway().filter(|gateway| range.covers(*gateway)).map(|gateway| gateway.to_string()),
        total: number(range.total()),
        held: counts[index].0,
        resting: counts[index].1,
        drain: is_drained(index),
    };
    let status = pool.status.as_ref();
    let ready = status.and_then(|status| condition::ready(&status.conditions));
    let message = ready.map_or("", |ready| ready.message.as_str());
    let spec = &pool.spec;
    let more_outside = outside.len().saturating_sub(NAMED);
    outside.truncate(NAMED);
    let head = PoolRow {
        kind: "pool",
        name: name.clone(),
        description: text::sentence(&spec.description),
        ready: crate::balancer::word(ready),
        reason: ready.map(|ready| text::name(&ready.reason)).unwrap_or_default(),
        message: text::sentence(if message.is_empty() {
            faults.first().map_or("", |it| it)
        } else {
            message
        }),
        leaving: pool.metadata.deletion_timestamp.is_some(),
        priority: spec.selector.priority,
        network: text::name(&spec.selector.network),
        global: spec.is_global(),
        scopes: spec.selector.scope.iter().take(NAMED).map(scope).collect(),
        quotas: spec.quota.iter().take(NAMED).map(quota).collect(),
        quarantine_seconds: spec.quarantine_seconds,
        total: number(total),
        free: number(free),
        held,
        resting,
        draining: number(draining),
        ranges: ranges.iter().enumerate().take(RANGES).map(range_row).collect(),
        more_ranges: ranges.len().saturating_sub(RANGES),
        outside,
        more_outside,
    };
    let prefix = prefix(&name);
    let mut rows = vec![(prefix.clone(), crate::json(&head))];
    rows.extend(
        blocks.iter().map(|((range, block), row)| (format!("{prefix}{range}/{block}"), crate::json(row))),
    );
    rows
}

fn scope(scope: &harvester_api::PoolScope) -> [String; 3] {
    [&scope.project, &scope.namespace, &scope.guest_cluster].map(|part| text::name(part))
}

fn quota(quota: &harvester_api::PoolQuota) -> QuotaRow {
    QuotaRow {
        guest_cluster: text::name(&quota.guest_cluster),
        namespace: text::name(&quota.namespace),
        max: quota.max,
    }
}

/// The addresses that nobody may get, and records under what is no address.
fn uses(pool: &IPPool) -> (BTreeMap<IpAddr, Use<'_>>, Vec<[String; 2]>) {
    let mut uses: BTreeMap<_, _> =
        resting(pool).into_iter().map(|(address, end)| (address, Use::Resting(end))).collect();
    let mut strange = Vec::new();
    let mut seen = BTreeSet::new();
    for (key, holder) in pool.status.iter().flat_map(|status| &status.allocated) {
        match key.parse() {
            Ok(address) if seen.insert(address) => {
                uses.insert(address, Use::Held(holder));
            }
            _ => strange.push([text::name(key), text::name(holder)]),
        }
    }
    (uses, strange)
}

/// Who had an address last. Programs write addresses as their shortest text.
fn last_holder(status: &IPPoolStatus, address: IpAddr) -> Option<&str> {
    status.allocated_history.get(&address.to_string()).map(String::as_str)
}

/// Removes what is not shown, of which a pool may have thousands: the history, but for what rests.
pub(crate) fn trim(pool: &mut IPPool) {
    let resting = resting(pool);
    if let Some(status) = &mut pool.status {
        let rests = |address: &String| address.parse::<IpAddr>().is_ok_and(|it| resting.contains_key(&it));
        status.allocated_history.retain(|address, _| rests(address));
    }
}

/// Addresses and the ends of their rest, as RFC 3339. What cannot be read is left out: it is a picture, and no decision.
fn resting(pool: &IPPool) -> BTreeMap<IpAddr, String> {
    let annotation = pool.annotations().get(annotations::QUARANTINE);
    let read = annotation.and_then(|text| serde_json::from_str::<BTreeMap<String, Value>>(text).ok());
    let entries = read.unwrap_or_default().into_iter().filter_map(|(address, end)| {
        let end: Timestamp = end.as_str()?.parse().ok()?;
        Some((address.parse().ok()?, end.to_string()))
    });
    entries.collect()
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(spec: Value, allocated: Value, quarantine: Option<&str>) -> IPPool {
        let mut json = json!({"metadata": {"name": "edge"}, "spec": spec,
            "status": {"total": 0, "available": 0, "lastAllocated": "", "allocated": allocated,
                "conditions": [{"type": "Ready", "status": "True", "reason": "RangesValid"}]}});
        if let Some(quarantine) = quarantine {
            json["metadata"]["annotations"] = json!({ annotations::QUARANTINE: quarantine });
        }
        serde_json::from_value(json).unwrap()
    }

    fn shown(pool: &IPPool) -> BTreeMap<String, Value> {
        rows(pool).into_iter().map(|(name, json)| (name, serde_json::from_str(&json).unwrap())).collect()
    }

    fn ranges(ranges: Value) -> Value {
        json!({ "ranges": ranges })
    }

    #[test]
    fn every_address_of_a_pool_is_free_or_held_or_resting_or_draining() {
        let spec = ranges(json!([{"subnet": "10.0.0.0/29"}, {"subnet": "10.0.1.0/29", "drain": true}]));
        let allocated = json!({"10.0.0.2": "shop/web", "10.0.1.2": "shop/api", "10.0.1.3": "shop/db"});
        let quarantine = r#"{"10.0.0.3": "2026-01-05T09:01:00Z", "10.0.0.2": "2026-01-05T09:01:00Z"}"#;
        let mut pool = pool(spec, allocated, Some(quarantine));
        let history = [("10.0.0.3", "shop/gone"), ("10.0.0.4", "shop/long-gone")];
        let history = history.map(|(address, holder)| (address.to_owned(), holder.to_owned()));
        pool.status.as_mut().unwrap().allocated_history = history.into();
        trim(&mut pool);
        assert_eq!(
            pool.status.as_ref().unwrap().allocated_history.len(),
            1,
            "what does not rest is not kept"
        );
        let shown = shown(&pool);
        let head = &shown["pool/edge/"];
        // five of six: the first is the gateway
        let counts = ["total", "held", "resting", "draining", "free"].map(|of| head[of].as_u64().unwrap());
        assert_eq!(counts, [10, 3, 1, 3, 3]);
        assert_eq!(counts[0], counts[1..].iter().sum::<u64>());
        let rows: Vec<_> = shown.keys().collect();
        assert_eq!(rows, ["pool/edge/", "pool/edge/0/0", "pool/edge/1/0"]);
        let block = &shown["pool/edge/0/0"];
        assert_eq!(block["held"], json!([["10.0.0.2", "shop/web"]]), "what is held does not rest");
        assert_eq!(block["resting"], json!([["10.0.0.3", "2026-01-05T09:01:00Z", "shop/gone"]]));
        assert_eq!(head["ranges"][1]["drain"], true);
        assert_eq!(head["ranges"][0]["gateway"], "10.0.0.1");
        assert_eq!(head["ready"], "true");
    }

    #[test]
    fn a_pool_of_ipv6_costs_no_more_than_what_is_held_in_it() {
        let spec = ranges(json!([{"subnet": "fd00::/64"}]));
        let rows = rows(&pool(spec, json!({"fd00::5": "a/b", "fd00::ffff:0:1": "a/c"}), None));
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|(_, json)| json.len() < 1_000));
        let head: Value = serde_json::from_str(&rows[0].1).unwrap();
        assert_eq!((&head["total"], &head["held"]), (&json!("18446744073709551614"), &json!(2)));
    }

    #[test]
    fn a_pool_of_65536_addresses_with_15000_records_changes_by_one_small_row() {
        let spec = ranges(json!([{"subnet": "10.1.0.0/16"}]));
        let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0a01_0002 + number).to_string();
        let mut allocated: BTreeMap<_, _> =
            (0..15_000).map(|number| (address(number), format!("team/lb-{number}"))).collect();
        let before = shown(&pool(spec.clone(), json!(allocated), None));
        assert!(before.len() < 70);
        allocated.remove(&address(7_000));
        let after = shown(&pool(spec, json!(allocated), None));
        let changed: Vec<_> = after.iter().filter(|(name, row)| before.get(*name) != Some(row)).collect();
        assert_eq!(changed.len(), 2, "the counts, and a block");
        assert!(changed.iter().all(|(_, row)| row.to_string().len() < 20_000));
    }

    #[test]
    fn ten_thousand_ranges_are_counted_and_some_are_shown() {
        let many: Vec<_> =
            (0..10_000).map(|n| json!({"subnet": format!("10.{}.{}.0/30", n / 256, n % 256)})).collect();
        let shown = shown(&pool(ranges(json!(many)), json!({"10.39.15.2": "a/b"}), None));
        let head = &shown["pool/edge/"];
        assert_eq!(head["ranges"].as_array().unwrap().len(), RANGES);
        assert_eq!((&head["moreRanges"], &head["total"]), (&json!(10_000 - RANGES), &json!(10_000)));
        assert_eq!(head["outside"], json!([["10.39.15.2", "a/b"]]));
    }

    #[test]
    fn records_that_no_range_covers_are_shown_and_what_is_no_address_too() {
        let held = json!({"10.9.9.9": "a/b", "nonsense": "<img onerror=alert(1)>", "10.0.0.2": "a/c"});
        let shown = shown(&pool(ranges(json!([{"subnet": "10.0.0.0/30"}])), held, Some("]")));
        let head = &shown["pool/edge/"];
        assert_eq!(head["outside"], json!([["nonsense", "<img onerror=alert(1)>"], ["10.9.9.9", "a/b"]]));
        assert_eq!((&head["held"], &head["free"]), (&json!(3), &json!(0)));
    }

    #[test]
    fn wrong_ranges_are_named_and_what_is_held_is_shown_all_the_same() {
        let mut pool = pool(ranges(json!([{"subnet": "nowhere"}])), json!({"10.0.0.2": "a/c"}), None);
        pool.status.as_mut().unwrap().conditions.clear();
        let head = &shown(&pool)["pool/edge/"];
        assert_eq!(head["message"], "range nowhere: subnet \"nowhere\" is not a CIDR such as 192.168.1.0/24");
        assert_eq!((&head["ready"], &head["outside"]), (&json!("unknown"), &json!([["10.0.0.2", "a/c"]])));
    }

    #[test]
    fn a_rest_that_cannot_be_read_hides_no_other() {
        let quarantine =
            r#"{"10.0.0.2": 7, "x": "2026-01-05T09:01:00Z", "10.0.0.3": "2026-01-05T10:01:00+01:00"}"#;
        let pool = pool(ranges(json!([{"subnet": "10.0.0.0/29"}])), json!({}), Some(quarantine));
        let expected = BTreeMap::from([("10.0.0.3".parse().unwrap(), "2026-01-05T09:01:00Z".to_owned())]);
        assert_eq!(resting(&pool), expected);
    }
}
