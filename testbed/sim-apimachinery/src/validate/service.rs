//! Services and their published addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{address, elements, named, names, text};
use crate::json::{entries, in_order, is_unset};
use crate::service::{is_external, is_headless, port_key, type_of, wants_address, wants_health_port};
use crate::status::Cause;

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const POLICIES: &[&str] = &["Cluster", "Local"];
const FAMILIES: &[&str] = &["IPv4", "IPv6"];
const FAMILY_POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];
const DISTRIBUTIONS: &[&str] = &["PreferClose", "PreferSameZone", "PreferSameNode"];
const MODES: &[&str] = &["Proxy", "VIP"];
const RANGE: &str = "must be between 1 and 65535, inclusive";
/// Longest time for which a client is kept with its backend, in seconds.
const MAX_AFFINITY: i64 = 86_400;

pub(super) fn faults(old: Option<&Value>, service: &Value, causes: &mut Vec<Cause>) {
    let spec = &service["spec"];
    let mut one_of = |field: &str, allowed: &[&str]| {
        if let Some(value) = spec.get(field).filter(|value| !is_unset(value))
            && !allowed.contains(&text(value))
        {
            causes.push(Cause::not_supported(&format!("spec.{field}"), value, allowed));
        }
    };
    one_of("type", TYPES);
    one_of("sessionAffinity", &["ClientIP", "None"]);
    one_of("internalTrafficPolicy", POLICIES);
    one_of("trafficDistribution", DISTRIBUTIONS);
    if is_external(service) {
        one_of("externalTrafficPolicy", POLICIES);
    } else if !is_unset(&spec["externalTrafficPolicy"]) {
        let detail = "may only be set for externally-accessible services";
        causes.push(Cause::invalid("spec.externalTrafficPolicy", &spec["externalTrafficPolicy"], detail));
    }
    if wants_address(service) {
        cluster_addresses(service, causes);
    } else {
        external_name(old, spec, causes);
    }
    affinity(spec, causes);
    for (key, value) in entries(&spec["selector"]) {
        named("spec.selector", key, names::label_key(key), causes);
        named("spec.selector", text(value), names::label_value(text(value)), causes);
    }
    let all = elements(&spec["ports"]);
    if all.is_empty() && wants_address(service) && !is_headless(service) {
        causes.push(Cause::required("spec.ports", ""));
    }
    ports(all, causes);
    for (i, value) in elements(&spec["externalIPs"]).iter().enumerate() {
        let field = format!("spec.externalIPs[{i}]");
        if let Some(ip) = address::read(&field, value, causes) {
            address::refuse_special(&field, value, ip, causes);
        }
    }
    load_balancer(service, causes);
    if let Some(old) = old {
        change(old, service, causes);
    }
}

fn external_name(old: Option<&Value>, spec: &Value, causes: &mut Vec<Cause>) {
    // what an update leaves in the one field is not looked at
    if !elements(&spec["clusterIPs"]).is_empty() || (old.is_none() && !is_unset(&spec["clusterIP"])) {
        causes.push(Cause::forbidden("spec.clusterIPs", "may not be set for ExternalName services"));
    }
    match text(&spec["externalName"]).trim_end_matches('.') {
        "" => causes.push(Cause::required("spec.externalName", "")),
        name => named("spec.externalName", name, names::dns1123_subdomain(name), causes),
    }
}

fn affinity(spec: &Value, causes: &mut Vec<Cause>) {
    let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
    if spec["sessionAffinity"] == "ClientIP"
        && seconds.as_i64().is_some_and(|seconds| !(1..=MAX_AFFINITY).contains(&seconds))
    {
        let detail = "must be greater than 0 and less than 86400";
        causes.push(Cause::invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, detail));
    }
}

fn port_number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

fn ports(ports: &[Value], causes: &mut Vec<Cause>) {
    let mut names_seen = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = |field: &str| format!("spec.ports[{i}].{field}");
        match text(&port["name"]) {
            "" if ports.len() > 1 => causes.push(Cause::required(&at("name"), "")),
            "" => {}
            name => {
                named(&at("name"), name, names::dns1123_label(name), causes);
                if !names_seen.insert(name) {
                    causes.push(Cause::duplicate(&at("name"), &port["name"]));
                }
            }
        }
        if port_number(&port["port"]).is_none() {
            let value = if port["port"].is_null() { json!(0) } else { port["port"].clone() };
            causes.push(Cause::invalid(&at("port"), &value, RANGE));
        }
        if !PROTOCOLS.contains(&text(&port["protocol"])) {
            causes.push(Cause::not_supported(&at("protocol"), &port["protocol"], PROTOCOLS));
        }
        match &port["targetPort"] {
            Value::String(name) => named(&at("targetPort"), name, names::port_name(name), causes),
            Value::Null => {}
            number if port_number(number).is_none() => {
                causes.push(Cause::invalid(&at("targetPort"), number, RANGE));
            }
            _ => {}
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            named(&at("appProtocol"), protocol, names::label_key(protocol), causes);
        }
        if !seen.insert(port_key(port)) {
            let shown = in_order([
                ("Name", "".into()),
                ("Protocol", port["protocol"].clone()),
                ("AppProtocol", Value::Null),
                ("Port", port["port"].clone()),
                ("TargetPort", 0.into()),
                ("NodePort", 0.into()),
            ]);
            let message = format!("Duplicate value: {shown}");
            causes.push(Cause::new("FieldValueDuplicate", &format!("spec.ports[{i}]"), message));
        }
    }
}

fn cluster_addresses(service: &Value, causes: &mut Vec<Cause>) {
    let spec = &service["spec"];
    if !is_unset(&spec["ipFamilyPolicy"]) && !FAMILY_POLICIES.contains(&text(&spec["ipFamilyPolicy"])) {
        causes.push(Cause::not_supported("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], FAMILY_POLICIES));
    }
    let families = elements(&spec["ipFamilies"]);
    for (i, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{i}]");
        if !FAMILIES.contains(&text(family)) {
            causes.push(Cause::not_supported(&field, family, FAMILIES));
        } else if families[..i].contains(family) {
            causes.push(Cause::duplicate(&field, family));
        }
    }
    if is_external(service) && is_headless(service) {
        let detail = format!("may not be set to 'None' for {} services", type_of(service));
        causes.push(Cause::invalid("spec.clusterIPs[0]", &json!("None"), &detail));
        return;
    }
    let one = &spec["clusterIP"];
    let all = elements(&spec["clusterIPs"]);
    if !all.is_empty() && is_unset(one) {
        let detail = "must be empty when `clusterIP` is not specified";
        causes.push(Cause::invalid("spec.clusterIPs", &spec["clusterIPs"], detail));
    } else if all.first().is_some_and(|first| first != one) {
        let detail = "first value must match `clusterIP`";
        causes.push(Cause::invalid("spec.clusterIPs", &spec["clusterIPs"], detail));
    }
    if all.len() > 2 {
        let detail = "may only hold up to 2 values";
        causes.push(Cause::invalid("spec.clusterIPs", &spec["clusterIPs"], detail));
    }
    if let [Value::String(one), Value::String(other)] = all
        && one.contains(':') == other.contains(':')
    {
        let detail = "may specify no more than one IP for each IP family";
        causes.push(Cause::invalid("spec.clusterIPs", &spec["clusterIPs"], detail));
    }
    let all = if all.is_empty() && !is_unset(one) { std::slice::from_ref(one) } else { all };
    for (i, value) in all.iter().enumerate().filter(|(_, value)| *value != "None") {
        let field = format!("spec.clusterIPs[{i}]");
        let Some(ip) = address::read(&field, value, causes) else { continue };
        let family = if matches!(ip, IpAddr::V4(_)) { "IPv4" } else { "IPv6" };
        if let Some(wanted) = families.get(i).map(text).filter(|wanted| FAMILIES.contains(wanted))
            && wanted != family
        {
            let detail = format!("expected an {wanted} value as indicated by `ipFamilies[{i}]`");
            causes.push(Cause::invalid(&field, value, &detail));
        }
    }
}

fn load_balancer(service: &Value, causes: &mut Vec<Cause>) {
    let spec = &service["spec"];
    let balanced = type_of(service) == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    for field in ["loadBalancerSourceRanges", "allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        if !balanced && !spec[field].is_null() {
            // it writes this one as its Go field
            let field = field.replace("loadBalancerSourceRanges", "LoadBalancerSourceRanges");
            causes.push(Cause::forbidden(&format!("spec.{field}"), only));
        }
    }
    let ranges = elements(&spec["loadBalancerSourceRanges"]).iter().enumerate();
    for (i, range) in ranges.filter(|_| balanced) {
        if let Some(detail) = address::network_fault(text(range).trim()) {
            causes.push(Cause::invalid(&format!("spec.LoadBalancerSourceRanges[{i}]"), range, detail));
        }
    }
    if !spec["healthCheckNodePort"].is_null() && !wants_health_port(service) {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        causes.push(Cause::invalid("spec.healthCheckNodePort", &spec["healthCheckNodePort"], detail));
    }
    if !is_external(service) {
        for (i, port) in elements(&spec["ports"]).iter().enumerate() {
            if !port["nodePort"].is_null() {
                let detail = format!("may not be used when `type` is '{}'", type_of(service));
                causes.push(Cause::forbidden(&format!("spec.ports[{i}].nodePort"), &detail));
            }
        }
    }
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        named("spec.loadBalancerClass", class, names::label_key(class), causes);
    }
}

fn change(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let differs = |field: &str| old["spec"][field] != new["spec"][field];
    let addressed = wants_address(old) && wants_address(new);
    let (before, after) = (elements(&old["spec"]["clusterIPs"]), elements(&new["spec"]["clusterIPs"]));
    for (i, (before, after)) in before.iter().zip(after).enumerate() {
        // of the first, the other field is the one that counts
        let changes = if i == 0 { differs("clusterIP") } else { before != after };
        if addressed && changes {
            let field = format!("spec.clusterIPs[{i}]");
            causes.push(Cause::invalid(&field, &new["spec"]["clusterIPs"], "may not change once set"));
        }
    }
    if wants_health_port(old) && wants_health_port(new) && differs("healthCheckNodePort") {
        causes.push(Cause::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
    let balanced = |service: &Value| type_of(service) == "LoadBalancer";
    if balanced(old) && balanced(new) && differs("loadBalancerClass") {
        let value = &new["spec"]["loadBalancerClass"];
        causes.push(Cause::invalid("spec.loadBalancerClass", value, "may not change once set"));
    }
}

/// The faults of a Service's status, which has a path of its own.
pub fn status_faults(service: &Value) -> Vec<Cause> {
    let mut causes = vec![];
    let ingresses = elements(&service["status"]["loadBalancer"]["ingress"]);
    if !ingresses.is_empty() && type_of(service) != "LoadBalancer" {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        causes.push(Cause::forbidden("status.loadBalancer.ingress", detail));
    }
    for (i, ingress) in ingresses.iter().enumerate() {
        let at = |field: &str| format!("status.loadBalancer.ingress[{i}].{field}");
        if !is_unset(&ingress["ip"]) {
            address::read(&at("ip"), &ingress["ip"], &mut causes);
        }
        match text(&ingress["ipMode"]) {
            "" => {}
            _ if is_unset(&ingress["ip"]) => {
                causes.push(Cause::forbidden(&at("ipMode"), "may not be specified when `ip` is not set"));
            }
            mode if !MODES.contains(&mode) => {
                causes.push(Cause::not_supported(&at("ipMode"), &ingress["ipMode"], MODES));
            }
            _ => {}
        }
        let hostname = text(&ingress["hostname"]);
        if !hostname.is_empty() {
            named(&at("hostname"), hostname, names::dns1123_subdomain(hostname), &mut causes);
            if hostname.parse::<IpAddr>().is_ok() {
                let detail = "must be a DNS name, not an IP address";
                causes.push(Cause::invalid(&at("hostname"), &ingress["hostname"], detail));
            }
        }
    }
    causes
}
