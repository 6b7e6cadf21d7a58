//! EndpointSlices: what kube-proxy believes, so what a real server checks.

use std::net::IpAddr;

use serde_json::{Value, json};
use sim_apimachinery::status::Cause;
use sim_apimachinery::validate::names;

use super::{elements, items_mut, set_default};

const TYPES: &[&str] = &["FQDN", "IPv4", "IPv6"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const ENDPOINTS: usize = 1000;
const ADDRESSES: usize = 100;

pub(crate) fn defaults(slice: &mut Value) {
    if slice["endpoints"].is_null() {
        slice["endpoints"] = json!([]);
    }
    for port in items_mut(slice, "/ports") {
        set_default(port, "protocol", "TCP");
        if port["name"].is_null() {
            port["name"] = "".into();
        }
    }
}

pub(crate) fn validate(old: Option<&Value>, slice: &Value, causes: &mut Vec<Cause>) {
    let family = slice["addressType"].as_str().unwrap_or_default();
    if family.is_empty() {
        causes.push(Cause::required("addressType", ""));
    } else if !TYPES.contains(&family) {
        causes.push(Cause::not_supported("addressType", &slice["addressType"], TYPES));
    }
    if let Some(old) = old
        && old["addressType"] != slice["addressType"]
    {
        causes.push(Cause::invalid("addressType", &slice["addressType"], "field is immutable"));
    }
    let endpoints = elements(&slice["endpoints"]);
    let count = endpoints.count();
    if count > ENDPOINTS {
        causes.push(Cause::too_many("endpoints", count, ENDPOINTS));
    }
    for (i, endpoint) in elements(&slice["endpoints"]).enumerate() {
        let addresses = elements(&endpoint["addresses"]).count();
        let field = format!("endpoints[{i}].addresses");
        if addresses == 0 {
            causes.push(Cause::required(&field, "must contain at least 1 address"));
        } else if addresses > ADDRESSES {
            causes.push(Cause::too_many(&field, addresses, ADDRESSES));
        }
        for (j, address) in elements(&endpoint["addresses"]).enumerate() {
            validate_address(&format!("{field}[{j}]"), family, address, causes);
        }
    }
    let mut seen = vec![];
    for (i, port) in elements(&slice["ports"]).enumerate() {
        let at = |field: &str| format!("ports[{i}].{field}");
        let name = port["name"].as_str().unwrap_or_default();
        if !name.is_empty() {
            let faults = names::dns1123_label(name);
            causes.extend(faults.iter().map(|f| Cause::invalid(&at("name"), &port["name"], f)));
        }
        if seen.contains(&name) {
            causes.push(Cause::duplicate(&at("name"), &port["name"]));
        }
        seen.push(name);
        if !port["protocol"].as_str().is_some_and(|protocol| PROTOCOLS.contains(&protocol)) {
            causes.push(Cause::not_supported(&at("protocol"), &port["protocol"], PROTOCOLS));
        }
        if !port["port"].is_null() && !port["port"].as_u64().is_some_and(|n| (1..=65_535).contains(&n)) {
            let detail = "must be between 1 and 65535, inclusive";
            causes.push(Cause::invalid(&at("port"), &port["port"], detail));
        }
    }
}

fn validate_address(field: &str, family: &str, value: &Value, causes: &mut Vec<Cause>) {
    let text = value.as_str().unwrap_or_default();
    let address = match (family, text.parse::<IpAddr>()) {
        ("FQDN", _) => {
            let faults = names::dns1123_subdomain(text);
            causes.extend(faults.iter().map(|f| Cause::invalid(field, value, f)));
            return;
        }
        ("IPv4", Ok(address @ IpAddr::V4(_))) | ("IPv6", Ok(address @ IpAddr::V6(_))) => address,
        ("IPv4" | "IPv6", Ok(_)) => {
            causes.push(Cause::invalid(field, value, &format!("must be an {family} address")));
            return;
        }
        ("IPv4" | "IPv6", Err(_)) => {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            causes.push(Cause::invalid(field, value, detail));
            return;
        }
        _ => return,
    };
    let mut refuse = |detail: &str| causes.push(Cause::invalid(field, value, detail));
    if address.is_unspecified() {
        refuse(&format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        refuse("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    match address {
        IpAddr::V4(v4) if v4.is_link_local() => {
            refuse("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
        }
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            refuse("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
        }
        IpAddr::V4(v4) if v4.octets()[..3] == [224, 0, 0] => {
            refuse("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
        }
        IpAddr::V6(v6) if v6.segments()[0] == 0xff02 => {
            refuse("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("IPv4", "198.18.0.1", None)]
    #[case("IPv4", "127.0.0.1", Some("may not be in the loopback range (127.0.0.0/8, ::1/128)"))]
    #[case("IPv4", "169.254.0.1", Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)"))]
    #[case("IPv4", "0.0.0.0", Some("may not be unspecified (0.0.0.0)"))]
    #[case("IPv4", "::1", Some("must be an IPv4 address"))]
    #[case("IPv6", "2001:db8::1", None)]
    fn addresses_that_no_backend_can_have_are_refused(
        #[case] family: &str,
        #[case] address: &str,
        #[case] fault: Option<&str>,
    ) {
        let slice = json!({"addressType": family, "endpoints": [{"addresses": [address]}]});
        let mut causes = vec![];
        validate(None, &slice, &mut causes);
        let details: Vec<_> = causes.iter().map(|cause| cause.message.clone()).collect();
        assert_eq!(details.len(), usize::from(fault.is_some()), "{details:?}");
        assert!(fault.is_none_or(|fault| details[0].ends_with(fault)), "{details:?}");
    }
}
