//! Services: defaults, what stays over an update, what is wrong.
//!
//! The rules follow the type: `ExternalName` has no address, `ClusterIP` one, `NodePort` ports of the nodes besides,
//! `LoadBalancer` (unless told otherwise) those too, and with local traffic policy a port for health checks.

pub(crate) mod allocate;

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};
use sim_apimachinery::status::Cause;
use sim_apimachinery::validate::names;

use super::{elements, is_unset, items_mut, set_default, unset};

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const POLICIES: &[&str] = &["Cluster", "Local"];
/// How long a client is kept with its backend by session affinity, in seconds.
const AFFINITY: u64 = 10_800;

fn type_of(service: &Value) -> &str {
    service["spec"]["type"].as_str().unwrap_or("ClusterIP")
}

fn is_headless(service: &Value) -> bool {
    service["spec"]["clusterIP"] == "None"
}

fn wants_address(service: &Value) -> bool {
    type_of(service) != "ExternalName"
}

fn wants_node_ports(service: &Value) -> bool {
    match type_of(service) {
        "NodePort" => true,
        "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

fn is_external(service: &Value) -> bool {
    matches!(type_of(service), "NodePort" | "LoadBalancer")
}

fn wants_health_port(service: &Value) -> bool {
    type_of(service) == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local"
}

/// Fills in what a real server fills in.
pub(crate) fn defaults(service: &mut Value) {
    if !service["spec"].is_object() {
        service["spec"] = json!({});
    }
    let spec = &mut service["spec"];
    set_default(spec, "type", "ClusterIP");
    set_default(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "ClientIP"
        && spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].is_null()
    {
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": AFFINITY}});
    }
    for port in items_mut(spec, "/ports") {
        set_default(port, "protocol", "TCP");
        if is_unset(&port["targetPort"]) || port["targetPort"] == 0 {
            port["targetPort"] = port["port"].clone();
        }
        if port["nodePort"] == 0 || port["nodePort"].is_null() {
            unset(port, "nodePort");
        }
        if is_unset(&port["name"]) {
            unset(port, "name");
        }
    }
    if spec["healthCheckNodePort"] == 0 {
        unset(spec, "healthCheckNodePort");
    }
    for field in ["clusterIP", "loadBalancerIP", "externalName"] {
        if is_unset(&spec[field]) {
            unset(spec, field);
        }
    }
    if spec["type"] != "ExternalName" {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    if spec["type"] == "NodePort" || spec["type"] == "LoadBalancer" {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if spec["type"] == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"].is_null() {
        spec["allocateLoadBalancerNodePorts"] = true.into();
    }
    if !service["status"]["loadBalancer"].is_object() {
        service["status"]["loadBalancer"] = json!({});
    }
    for ingress in items_mut(service, "/status/loadBalancer/ingress") {
        if !is_unset(&ingress["ip"]) {
            set_default(ingress, "ipMode", "VIP");
        }
    }
}

/// Keeps over an update what the server has given, where the writer does not say otherwise, and drops what a new
/// type does not have.
pub(crate) fn carry_over(old: &Value, new: &mut Value) {
    // a new address in the one field is meant for the other, too
    let spec = &new["spec"];
    if spec["clusterIPs"] == old["spec"]["clusterIPs"]
        && spec["clusterIP"] != old["spec"]["clusterIP"]
        && !is_unset(&spec["clusterIP"])
    {
        new["spec"]["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    if wants_address(old) && wants_address(new) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if is_unset(&new["spec"][field]) && !old["spec"][field].is_null() {
                new["spec"][field] = old["spec"][field].clone();
            }
        }
    }
    if wants_node_ports(old) && wants_node_ports(new) {
        keep_node_ports(old, new);
    }
    if wants_health_port(old) && wants_health_port(new) && new["spec"]["healthCheckNodePort"].is_null() {
        new["spec"]["healthCheckNodePort"] = old["spec"]["healthCheckNodePort"].clone();
    }
    drop_foreign_fields(old, new);
}

fn port_key(port: &Value) -> (Option<&str>, Option<i64>) {
    (port["protocol"].as_str(), port["port"].as_i64())
}

fn keep_node_ports(old: &Value, new: &mut Value) {
    let given: BTreeSet<i64> =
        elements(&new["spec"]["ports"]).filter_map(|port| port["nodePort"].as_i64()).collect();
    for port in items_mut(new, "/spec/ports") {
        let before = elements(&old["spec"]["ports"]).find(|other| port_key(other) == port_key(port));
        if let Some(number) = before.and_then(|before| before["nodePort"].as_i64())
            && port["nodePort"].is_null()
            && !given.contains(&number)
        {
            port["nodePort"] = number.into();
        }
    }
}

fn drop_foreign_fields(old: &Value, new: &mut Value) {
    let same = |new: &Value, field: &str| new["spec"][field] == old["spec"][field];
    if wants_address(old) && !wants_address(new) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            if same(new, field) {
                unset(&mut new["spec"], field);
            }
        }
    }
    if wants_node_ports(old) && !wants_node_ports(new) && type_of(new) != "LoadBalancer" {
        let ports_of = |service: &Value| -> Vec<Value> {
            elements(&service["spec"]["ports"]).map(|port| port["nodePort"].clone()).collect()
        };
        if ports_of(old) == ports_of(new) {
            for port in items_mut(new, "/spec/ports") {
                unset(port, "nodePort");
            }
        }
    }
    if wants_health_port(old) && !wants_health_port(new) && same(new, "healthCheckNodePort") {
        unset(&mut new["spec"], "healthCheckNodePort");
    }
    if type_of(old) == "LoadBalancer" && type_of(new) != "LoadBalancer" {
        new["status"]["loadBalancer"] = json!({});
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(new, field) {
                unset(&mut new["spec"], field);
            }
        }
    }
    if is_external(old) && !is_external(new) && same(new, "externalTrafficPolicy") {
        unset(&mut new["spec"], "externalTrafficPolicy");
    }
}

/// The faults of a Service.
pub(crate) fn validate(old: Option<&Value>, service: &Value, causes: &mut Vec<Cause>) {
    let spec = &service["spec"];
    let mut one_of = |field: &str, allowed: &[&str]| {
        if let Some(value) = spec.get(field).filter(|value| !is_unset(value))
            && !value.as_str().is_some_and(|text| allowed.contains(&text))
        {
            causes.push(Cause::not_supported(&format!("spec.{field}"), value, allowed));
        }
    };
    one_of("type", TYPES);
    one_of("sessionAffinity", &["ClientIP", "None"]);
    one_of("internalTrafficPolicy", POLICIES);
    one_of("ipFamilyPolicy", &["SingleStack", "PreferDualStack", "RequireDualStack"]);
    if is_external(service) {
        one_of("externalTrafficPolicy", POLICIES);
    } else if !is_unset(&spec["externalTrafficPolicy"]) {
        let detail = "may only be set for externally-accessible services";
        causes.push(Cause::invalid("spec.externalTrafficPolicy", &spec["externalTrafficPolicy"], detail));
    }
    let ports = spec["ports"].as_array().map_or(&[][..], Vec::as_slice);
    if ports.is_empty() && type_of(service) != "ExternalName" && !is_headless(service) {
        causes.push(Cause::required("spec.ports", ""));
    }
    if type_of(service) == "ExternalName" {
        let name = spec["externalName"].as_str().unwrap_or_default().trim_end_matches('.');
        if name.is_empty() {
            causes.push(Cause::required("spec.externalName", ""));
        } else {
            let faults = names::dns1123_subdomain(name);
            causes.extend(faults.iter().map(|f| Cause::invalid("spec.externalName", &json!(name), f)));
        }
    }
    if type_of(service) == "LoadBalancer" && is_headless(service) {
        let detail = "may not be set to 'None' for LoadBalancer services";
        causes.push(Cause::invalid("spec.clusterIPs[0]", &json!("None"), detail));
    }
    for (key, value) in spec["selector"].as_object().into_iter().flatten() {
        let mut faults = names::label_key(key);
        let key = json!(key);
        causes.extend(faults.iter().map(|f| Cause::invalid("spec.selector", &key, f)));
        faults = value.as_str().map(names::label_value).unwrap_or_default();
        causes.extend(faults.iter().map(|f| Cause::invalid("spec.selector", value, f)));
    }
    validate_ports(ports, causes);
    validate_addresses(spec, causes);
    validate_load_balancer(old, service, causes);
    if let Some(old) = old {
        validate_change(old, service, causes);
    }
}

fn port_number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

const RANGE: &str = "must be between 1 and 65535, inclusive";

fn validate_ports(ports: &[Value], causes: &mut Vec<Cause>) {
    let mut names_seen = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = |field: &str| format!("spec.ports[{i}].{field}");
        match port["name"].as_str().unwrap_or_default() {
            "" if ports.len() > 1 => causes.push(Cause::required(&at("name"), "")),
            "" => {}
            name => {
                let faults = names::dns1123_label(name);
                causes.extend(faults.iter().map(|f| Cause::invalid(&at("name"), &port["name"], f)));
                if !names_seen.insert(name) {
                    causes.push(Cause::duplicate(&at("name"), &port["name"]));
                }
            }
        }
        if port_number(&port["port"]).is_none() {
            let value = if port["port"].is_null() { json!(0) } else { port["port"].clone() };
            causes.push(Cause::invalid(&at("port"), &value, RANGE));
        }
        if !port["protocol"].as_str().is_some_and(|protocol| PROTOCOLS.contains(&protocol)) {
            causes.push(Cause::not_supported(&at("protocol"), &port["protocol"], PROTOCOLS));
        }
        match &port["targetPort"] {
            Value::String(name) => {
                let faults = names::port_name(name);
                causes
                    .extend(faults.iter().map(|f| Cause::invalid(&at("targetPort"), &port["targetPort"], f)));
            }
            Value::Null => {}
            number if port_number(number).is_none() => {
                causes.push(Cause::invalid(&at("targetPort"), number, RANGE));
            }
            _ => {}
        }
        if !seen.insert((port_key(port).0.map(str::to_owned), port_key(port).1)) {
            let value = json!({
                "Name": "", "Protocol": port["protocol"], "AppProtocol": null, "Port": port["port"], "TargetPort": 0,
                "NodePort": 0,
            });
            causes.push(Cause::duplicate(&format!("spec.ports[{i}]"), &value));
        }
    }
}

fn validate_addresses(spec: &Value, causes: &mut Vec<Cause>) {
    let is_address = |value: &Value| value.as_str().is_some_and(|text| text.parse::<IpAddr>().is_ok());
    const DETAIL: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
    for (i, address) in elements(&spec["externalIPs"]).enumerate() {
        if !is_address(address) {
            causes.push(Cause::invalid(&format!("spec.externalIPs[{i}]"), address, DETAIL));
        }
    }
    if let Some(address) = spec.get("clusterIP").filter(|address| !is_unset(address) && *address != "None")
        && !is_address(address)
    {
        causes.push(Cause::invalid("spec.clusterIPs[0]", address, DETAIL));
    }
    if let (Some(one), Some(first)) = (spec.get("clusterIP"), spec["clusterIPs"].get(0))
        && one != first
    {
        let detail = "first value must match `clusterIP`";
        causes.push(Cause::invalid("spec.clusterIPs", &spec["clusterIPs"], detail));
    }
}

fn validate_load_balancer(old: Option<&Value>, service: &Value, causes: &mut Vec<Cause>) {
    let spec = &service["spec"];
    let balanced = type_of(service) == "LoadBalancer";
    for (i, range) in elements(&spec["loadBalancerSourceRanges"]).enumerate() {
        let text = range.as_str().unwrap_or_default().trim();
        let network = text.split_once('/').and_then(|(address, length)| {
            let address: IpAddr = address.parse().ok()?;
            let length: u8 = length.parse().ok()?;
            (length <= if address.is_ipv4() { 32 } else { 128 }).then_some(())
        });
        if network.is_none() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            causes.push(Cause::invalid(&format!("spec.LoadBalancerSourceRanges[{i}]"), range, detail));
        }
    }
    let only = "may only be used when `type` is 'LoadBalancer'";
    for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        if !balanced && !spec[field].is_null() {
            causes.push(Cause::forbidden(&format!("spec.{field}"), only));
        }
    }
    if !spec["healthCheckNodePort"].is_null() && !wants_health_port(service) {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        causes.push(Cause::invalid("spec.healthCheckNodePort", &spec["healthCheckNodePort"], detail));
    }
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        let faults = names::label_key(class);
        causes.extend(
            faults.iter().map(|f| Cause::invalid("spec.loadBalancerClass", &spec["loadBalancerClass"], f)),
        );
    }
    if let Some(old) = old.filter(|old| type_of(old) == "LoadBalancer")
        && balanced
        && old["spec"]["loadBalancerClass"] != spec["loadBalancerClass"]
    {
        let value = &spec["loadBalancerClass"];
        causes.push(Cause::invalid("spec.loadBalancerClass", value, "may not change once set"));
    }
}

fn validate_change(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let before = &old["spec"]["clusterIPs"];
    let after = &new["spec"]["clusterIPs"];
    let gave_up = type_of(new) == "ExternalName";
    if wants_address(old) && !gave_up && !before.is_null() && before != after {
        causes.push(Cause::invalid("spec.clusterIPs[0]", after, "may not change once set"));
    }
    if gave_up && !is_unset(&new["spec"]["clusterIP"]) {
        let detail = "may not be set for ExternalName services";
        causes.push(Cause::invalid("spec.clusterIPs", &new["spec"]["clusterIPs"], detail));
    }
}

/// The faults of a Service's status.
pub(crate) fn validate_status(service: &Value, causes: &mut Vec<Cause>) {
    let ingresses = &service["status"]["loadBalancer"]["ingress"];
    if elements(ingresses).next().is_some() && type_of(service) != "LoadBalancer" {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        causes.push(Cause::forbidden("status.loadBalancer.ingress", detail));
    }
    for (i, ingress) in elements(ingresses).enumerate() {
        let at = |field: &str| format!("status.loadBalancer.ingress[{i}].{field}");
        if let Some(ip) = ingress["ip"].as_str().filter(|ip| !ip.is_empty())
            && ip.parse::<IpAddr>().is_err()
        {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            causes.push(Cause::invalid(&at("ip"), &ingress["ip"], detail));
        }
        if let Some(hostname) = ingress["hostname"].as_str().filter(|hostname| !hostname.is_empty()) {
            let faults = names::dns1123_subdomain(hostname);
            causes.extend(faults.iter().map(|f| Cause::invalid(&at("hostname"), &ingress["hostname"], f)));
            if hostname.parse::<IpAddr>().is_ok() {
                let detail = "must be a DNS name, not an IP address";
                causes.push(Cause::invalid(&at("hostname"), &ingress["hostname"], detail));
            }
        }
    }
}
