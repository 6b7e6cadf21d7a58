//! Checks cloud-init's network configuration before a VM is created with it: a mistake would show only after minutes, as a
//! VM without address. The text is passed on unchanged.
//!
//! Upstream understands only `physical` and `nameserver` of version 1, and panics on other shapes
//! (docs/contract/node-driver.md#B18, #B19).

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::{pools::Lease, yaml};

/// A NIC of a machine with static addresses.
#[derive(Clone, Debug)]
pub(crate) struct Placed<'a> {
    pub mac: &'a str,
    /// None: DHCP.
    pub lease: Option<&'a Lease>,
    pub nameservers: &'a [IpAddr],
}

/// The network data of a machine with static addresses. cloud-init finds each NIC by its MAC address, under all
/// distributions. The first address with a gateway has the default route: a guest has use for one.
pub(crate) fn of(nics: &[Placed<'_>]) -> String {
    let mut routed = false;
    let entry = |(at, nic): (usize, &Placed<'_>)| {
        let mut subnet = json!({"type": "dhcp"});
        if let Some(Lease { address, gateway }) = nic.lease {
            subnet = json!({"type": "static", "address": address});
            if let (Some(gateway), false) = (gateway, routed) {
                subnet["gateway"] = json!(gateway);
                routed = true;
            }
            if !nic.nameservers.is_empty() {
                subnet["dns_nameservers"] = json!(nic.nameservers);
            }
        }
        let mac = nic.mac.replace('-', ":").to_ascii_lowercase();
        json!({"type": "physical", "name": format!("eth{at}"), "mac_address": mac, "subnets": [subnet]})
    };
    let config: Vec<Value> = nics.iter().enumerate().map(entry).collect();
    serde_saphyr::to_string(&json!({"version": 1, "config": config})).expect("plain data")
}

/// The static addresses of network data that [`of`] made, without their prefixes, in the order of the NICs. Of other network
/// data there may be none.
pub(crate) fn addresses(text: &str) -> Vec<String> {
    let root: Value = serde_saphyr::from_str(text).unwrap_or_default();
    let entries = root["config"].as_array().into_iter().flatten();
    let subnets = entries.flat_map(|entry| entry["subnets"].as_array().into_iter().flatten());
    let of_static = subnets.filter(|subnet| subnet["type"] == "static");
    let addresses = of_static.filter_map(|subnet| subnet["address"].as_str()?.split('/').next());
    addresses.map(str::to_owned).collect()
}

/// The pools whose addresses a VM does not have. `wanted` are those that the pools give, `own` those of the VM.
pub(crate) fn lost<'a>(pools: &[&'a str], wanted: &[String], own: &[String]) -> Vec<&'a str> {
    let pairs = pools.iter().enumerate();
    pairs.filter(|(at, _)| wanted.get(*at) != own.get(*at)).map(|(_, pool)| *pool).collect()
}

/// The parts of a configuration that bring a guest on the network.
#[derive(Debug, Default)]
struct Found {
    gateways: Vec<String>,
    gateways_v6: usize,
    automatic: bool,
    nameservers: bool,
}

/// Checks a configuration.
///
/// # Errors
/// All faults, one sentence each.
pub(crate) fn check(text: &str) -> Result<(), Vec<String>> {
    yaml::check_size(text).map_err(|fault| vec![format!("the network data is too long: {fault}")])?;
    let root: Value =
        serde_saphyr::from_str(text).map_err(|_| vec!["the network data is no YAML".to_owned()])?;
    let root = root.get("network").unwrap_or(&root);
    let Some(root) = root.as_object() else {
        return Err(vec![
            "the network data is no mapping with a version, at its top or under the key network".to_owned(),
        ]);
    };
    let version = match root.get("version") {
        Some(Value::Number(number)) => number.as_i64(),
        Some(Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    let mut faults = vec![];
    match version {
        Some(1) => check_v1(root, &mut faults),
        Some(2) => check_v2(root, &mut faults),
        _ => faults.push("the network data has no version 1 or 2".to_owned()),
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn check_v1(root: &Map<String, Value>, faults: &mut Vec<String>) {
    let Some(entries) = root.get("config").and_then(Value::as_array) else {
        return faults.push("network data of version 1 needs a list config".to_owned());
    };
    let mut found = Found::default();
    for (at, entry) in entries.iter().enumerate() {
        let Some(kind) = entry.get("type").and_then(Value::as_str) else {
            faults.push(format!("network data: entry {at} of config has no type"));
            continue;
        };
        match kind {
            "nameserver" => match texts(entry.get("address")) {
                Some(addresses) => found.nameservers |= !addresses.is_empty(),
                None => faults.push(format!("network data: nameserver entry {at} has no address")),
            },
            "route" => route(entry, &mut found),
            "physical" | "bond" | "bridge" | "vlan" | "infiniband" => match entry.get("subnets") {
                Some(Value::Array(subnets)) => {
                    for subnet in subnets {
                        check_subnet(subnet, at, &mut found, faults);
                    }
                }
                // a member of a bond or bridge has none
                None | Some(Value::Null) => {}
                Some(_) => faults.push(format!("network data: subnets of entry {at} are no list")),
            },
            _ => {}
        }
    }
    if !faults.is_empty() {
        return;
    }
    if found.gateways.len() > 1 {
        faults.push(format!("the network data has more than one gateway: {}", found.gateways.join(", ")));
    }
    if found.gateways.is_empty() && found.gateways_v6 == 0 && !found.automatic {
        faults.push(
            "the network data has neither a gateway nor DHCP: the machine would not reach Rancher".to_owned(),
        );
    }
    if !found.nameservers && !found.automatic {
        faults.push("the network data names no nameserver".to_owned());
    }
}

fn check_subnet(subnet: &Value, at: usize, found: &mut Found, faults: &mut Vec<String>) {
    let Some(kind) = subnet.get("type").and_then(Value::as_str) else {
        return faults.push(format!("network data: a subnet of entry {at} has no type"));
    };
    if kind.starts_with("dhcp") || kind.starts_with("ipv6_") {
        found.automatic = true;
    }
    if kind == "static" && subnet.get("address").is_none() {
        faults.push(format!("network data: a static subnet of entry {at} has no address"));
    }
    if let Some(gateway) = subnet.get("gateway").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        add_gateway(gateway, found);
    }
    found.nameservers |= texts(subnet.get("dns_nameservers")).is_some_and(|list| !list.is_empty());
    for entry in subnet.get("routes").and_then(Value::as_array).into_iter().flatten() {
        route(entry, found);
    }
}

/// A default route counts as a gateway.
fn route(entry: &Value, found: &mut Found) {
    let to = ["destination", "network", "to"].into_iter().find_map(|key| entry.get(key)?.as_str());
    let gateway = ["gateway", "via"].into_iter().find_map(|key| entry.get(key)?.as_str());
    let prefix = entry.get("netmask").or_else(|| entry.get("prefix"));
    let everywhere = match to {
        Some("0.0.0.0/0" | "::/0" | "default") => true,
        Some("0.0.0.0" | "::") => prefix.is_none_or(|mask| mask == "0.0.0.0" || mask == "::" || mask == 0),
        _ => false,
    };
    if let Some(gateway) = gateway.filter(|_| everywhere) {
        add_gateway(gateway, found);
    }
}

fn add_gateway(gateway: &str, found: &mut Found) {
    if gateway.contains(':') {
        found.gateways_v6 += 1;
    } else {
        found.gateways.push(gateway.to_owned());
    }
}

/// A text or a list of texts.
fn texts(value: Option<&Value>) -> Option<Vec<&str>> {
    match value? {
        Value::String(text) => Some(text.split([' ', ',']).filter(|part| !part.is_empty()).collect()),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// Checks the shapes of version 2; netplan checks the rest.
fn check_v2(root: &Map<String, Value>, faults: &mut Vec<String>) {
    for section in ["ethernets", "bonds", "bridges", "vlans", "wifis"] {
        let Some(devices) = root.get(section) else { continue };
        let Some(devices) = devices.as_object() else {
            faults.push(format!("network data: {section} is no mapping of names to devices"));
            continue;
        };
        for (name, device) in devices {
            if !device.is_object() {
                faults.push(format!("network data: {section}.{name} is no mapping"));
                continue;
            }
            for list in ["addresses", "routes"] {
                if device.get(list).is_some_and(|value| !value.is_array()) {
                    faults.push(format!("network data: {list} of {section}.{name} are no list"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const STATIC: &str = "
version: 1
config:
- {type: physical, name: enp1s0, subnets: [{type: static, address: 192.0.2.9/24, gateway: 192.0.2.1}]}
- {type: nameserver, address: [192.0.2.53]}
";

    #[test]
    fn network_data_of_static_addresses_has_one_default_route_and_passes_its_own_check() {
        let lease = |address: &str, gateway: &str| Lease {
            address: address.to_owned(),
            gateway: Some(gateway.to_owned()),
        };
        let (one, two) = (lease("192.0.2.9/24", "192.0.2.1"), lease("198.51.100.9/25", "198.51.100.1"));
        let servers = [IpAddr::from([192, 0, 2, 53])];
        let nic = |mac, lease, nameservers| Placed { mac, lease, nameservers };
        let text = of(&[
            nic("02-00-00-00-00-0A", Some(&one), &servers),
            nic("02:00:00:00:00:0b", None, &[]),
            nic("02:00:00:00:00:0c", Some(&two), &[]),
        ]);
        assert_eq!(check(&text), Ok(()), "{text}");
        assert_eq!(addresses(&text), ["192.0.2.9", "198.51.100.9"]);
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        let expected = json!({"version": 1, "config": [
            {"type": "physical", "name": "eth0", "mac_address": "02:00:00:00:00:0a", "subnets": [
                {"type": "static", "address": "192.0.2.9/24", "gateway": "192.0.2.1", "dns_nameservers": ["192.0.2.53"]}]},
            {"type": "physical", "name": "eth1", "mac_address": "02:00:00:00:00:0b", "subnets": [{"type": "dhcp"}]},
            {"type": "physical", "name": "eth2", "mac_address": "02:00:00:00:00:0c", "subnets": [
                {"type": "static", "address": "198.51.100.9/25"}]},
        ]});
        assert_eq!(read, expected);
    }

    #[rstest]
    #[case::as_before(&["192.0.2.9", "198.51.100.9"], &[])]
    #[case::another(&["192.0.2.9", "198.51.100.8"], &["lab"])]
    #[case::none(&[], &["edge", "lab"])]
    fn a_pool_whose_address_the_vm_does_not_have_has_lost_its_record(
        #[case] own: &[&str],
        #[case] expected: &[&str],
    ) {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let wanted = texts(&["192.0.2.9", "198.51.100.9"]);
        assert_eq!(lost(&["edge", "lab"], &wanted, &texts(own)), expected);
    }

    #[test]
    fn aliases_that_write_out_too_much_are_refused_before_they_are() {
        let mut text = format!("version: 2\nethernets: {{a: &a '{}'}}\nb: [", "x".repeat(1000));
        text.push_str(&vec!["*a"; 100_000].join(", "));
        text.push(']');
        let faults = check(&text).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains("more than 1 MiB"), "{faults:?}");
    }

    #[rstest]
    #[case::static_v1(STATIC)]
    #[case::dhcp("version: 1\nconfig: [{type: physical, name: a, subnets: [{type: dhcp}]}]")]
    #[case::under_network(
        "network: {version: 1, config: [{type: physical, name: a, subnets: [{type: dhcp}]}]}"
    )]
    #[case::version_2("version: 2\nethernets: {enp1s0: {dhcp4: true}}")]
    #[case::nothing_inside("version: 2")]
    // docs/contract/node-driver.md#B18: legal for cloud-init, fatal for upstream
    #[case::one_nameserver_as_text(&STATIC.replace("[192.0.2.53]", "192.0.2.53"))]
    #[case::version_as_text(&STATIC.replace("version: 1", "version: '1'"))]
    // docs/contract/node-driver.md#B19
    #[case::dhcp4(
        "version: 1\nconfig: [{type: bond, name: b, subnets: [{type: dhcp4}]}, {type: physical, name: a}]"
    )]
    #[case::nameserver_of_the_subnet(
        "{version: 1, config: [{type: vlan, name: v, subnets:
        [{type: static, address: 192.0.2.9/24, gateway: 192.0.2.1, dns_nameservers: [192.0.2.53]}]}]}"
    )]
    #[case::default_route(
        "{version: 1, config: [{type: physical, name: a, subnets: [{type: static, address: 192.0.2.9/24,
        dns_nameservers: 192.0.2.53, routes: [{network: 0.0.0.0, netmask: 0.0.0.0, gateway: 192.0.2.1}]}]}]}"
    )]
    #[case::both_families(
        "{version: 1, config: [{type: physical, name: a, subnets: [
        {type: static, address: 192.0.2.9/24, gateway: 192.0.2.1, dns_nameservers: [192.0.2.53]},
        {type: static6, address: '2001:db8::9/64', gateway: '2001:db8::1'}]}]}"
    )]
    fn good_configurations_pass(#[case] text: &str) {
        assert_eq!(check(text), Ok(()));
    }

    #[rstest]
    #[case::no_yaml("a: [", "no YAML")]
    #[case::text("just text", "no mapping with a version")]
    #[case::list("[1]", "no mapping with a version")]
    // docs/contract/node-driver.md#B18: these end upstream's process
    #[case::network_is_text("network: text", "no mapping with a version")]
    #[case::no_version("config: []", "no version 1 or 2")]
    #[case::no_config("version: 1", "needs a list config")]
    #[case::config_is_text("{version: 1, config: x}", "needs a list config")]
    #[case::no_type("{version: 1, config: [{name: a}]}", "entry 0 of config has no type")]
    #[case::subnets_are_text(
        "{version: 1, config: [{type: physical, subnets: x}]}",
        "subnets of entry 0 are no list"
    )]
    #[case::subnet_without_type(
        "{version: 1, config: [{type: physical, subnets: [{}]}]}",
        "a subnet of entry 0 has no type"
    )]
    #[case::no_way_out(&STATIC.replace(", gateway: 192.0.2.1", ""), "neither a gateway nor DHCP")]
    #[case::two_gateways(&STATIC.replace("subnets: [", "subnets: [{type: static, address: 198.51.100.9/24, gateway: 198.51.100.1}, "),
        "more than one gateway: 198.51.100.1, 192.0.2.1")]
    #[case::no_nameserver(&STATIC.replace("- {type: nameserver, address: [192.0.2.53]}", ""), "names no nameserver")]
    #[case::v2_shape("{version: 2, ethernets: [a]}", "ethernets is no mapping")]
    #[case::v2_addresses(
        "{version: 2, ethernets: {a: {addresses: 192.0.2.9/24}}}",
        "addresses of ethernets.a are no list"
    )]
    fn what_cannot_work_is_named(#[case] text: &str, #[case] part: &str) {
        let faults = check(text).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains(part), "{faults:?}");
    }
}
