//! EndpointSlices: what kube-proxy believes, so what a real server checks. Port numbers it does not check.

use std::net::IpAddr;

use serde_json::Value;

use super::{address, elements, named, names, text};
use crate::json::is_unset;
use crate::status::Cause;

const TYPES: &[&str] = &["FQDN", "IPv4", "IPv6"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const ENDPOINTS: usize = 1000;
const ADDRESSES: usize = 100;

pub(super) fn faults(old: Option<&Value>, slice: &Value, causes: &mut Vec<Cause>) {
    let family = text(&slice["addressType"]);
    if family.is_empty() {
        causes.push(Cause::required("addressType", ""));
    } else if !TYPES.contains(&family) {
        causes.push(Cause::not_supported("addressType", &slice["addressType"], TYPES));
    }
    if old.is_some_and(|old| old["addressType"] != slice["addressType"]) {
        causes.push(Cause::invalid("addressType", &slice["addressType"], "field is immutable"));
    }
    let endpoints = elements(&slice["endpoints"]);
    if endpoints.len() > ENDPOINTS {
        causes.push(Cause::too_many("endpoints", endpoints.len(), ENDPOINTS));
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        endpoint_faults(&format!("endpoints[{i}]"), family, endpoint, causes);
    }
    let mut seen = vec![];
    for (i, port) in elements(&slice["ports"]).iter().enumerate() {
        let at = |field: &str| format!("ports[{i}].{field}");
        let name = text(&port["name"]);
        if !name.is_empty() {
            named(&at("name"), name, names::dns1123_label(name), causes);
        }
        if seen.contains(&name) {
            causes.push(Cause::duplicate(&at("name"), &port["name"]));
        }
        seen.push(name);
        if !PROTOCOLS.contains(&text(&port["protocol"])) {
            causes.push(Cause::not_supported(&at("protocol"), &port["protocol"], PROTOCOLS));
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            named(&at("appProtocol"), protocol, names::label_key(protocol), causes);
        }
    }
}

fn endpoint_faults(path: &str, family: &str, endpoint: &Value, causes: &mut Vec<Cause>) {
    let addresses = elements(&endpoint["addresses"]);
    let field = format!("{path}.addresses");
    if addresses.is_empty() {
        causes.push(Cause::required(&field, "must contain at least 1 address"));
    } else if addresses.len() > ADDRESSES {
        causes.push(Cause::too_many(&field, addresses.len(), ADDRESSES));
    }
    for (i, value) in addresses.iter().enumerate() {
        let at = format!("{field}[{i}]");
        match family {
            "FQDN" => named(&at, text(value), names::dns1123_subdomain(text(value)), causes),
            "IPv4" | "IPv6" => {
                let Some(ip) = address::read(&at, value, causes) else { continue };
                if matches!(ip, IpAddr::V4(_)) != (family == "IPv4") {
                    // it names the list here where it names the item everywhere else
                    causes.push(Cause::invalid(&field, value, &format!("must be an {family} address")));
                }
                address::refuse_special(&at, value, ip, causes);
            }
            _ => {}
        }
    }
    for (name, check) in [
        ("nodeName", names::dns1123_subdomain as fn(&str) -> Vec<String>),
        ("hostname", names::dns1123_label),
    ] {
        if !is_unset(&endpoint[name]) {
            named(&format!("{path}.{name}"), text(&endpoint[name]), check(text(&endpoint[name])), causes);
        }
    }
}
