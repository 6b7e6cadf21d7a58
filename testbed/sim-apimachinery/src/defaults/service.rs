//! Services: what they have unless told otherwise, and what they keep over an update.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::json::{elements, is_unset, items_mut, set_default, unset};
use crate::service::{is_external, port_key, type_of, wants_address, wants_health_port, wants_node_ports};

/// Seconds for which session affinity keeps a client with its backend.
const AFFINITY: u64 = 10_800;

/// Fills in what a real server fills in.
pub(super) fn fill(service: &mut Value) {
    if !service["spec"].is_object() {
        service["spec"] = json!({});
    }
    let spec = &mut service["spec"];
    set_default(spec, "type", "ClusterIP");
    set_default(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "None" {
        unset(spec, "sessionAffinityConfig");
    }
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
pub fn carry_over(old: &Value, new: &mut Value) {
    // a new address in the one field is meant for the other, too
    let spec = &new["spec"];
    let untouched = spec["clusterIPs"].is_null() || spec["clusterIPs"] == old["spec"]["clusterIPs"];
    if wants_address(new)
        && untouched
        && !is_unset(&spec["clusterIP"])
        && spec["clusterIP"] != old["spec"]["clusterIP"]
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

fn keep_node_ports(old: &Value, new: &mut Value) {
    let given: BTreeSet<i64> =
        elements(&new["spec"]["ports"]).iter().filter_map(|port| port["nodePort"].as_i64()).collect();
    for port in items_mut(new, "/spec/ports") {
        let before = elements(&old["spec"]["ports"]).iter().find(|other| port_key(other) == port_key(port));
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
            elements(&service["spec"]["ports"]).iter().map(|port| port["nodePort"].clone()).collect()
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
