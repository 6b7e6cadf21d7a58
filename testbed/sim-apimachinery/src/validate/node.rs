//! Nodes.

use serde_json::Value;

use super::{address, elements, named, names, text};
use crate::json::{in_order, is_unset};
use crate::status::Cause;

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn faults(old: Option<&Value>, node: &Value, causes: &mut Vec<Cause>) {
    taints(elements(&node["spec"]["taints"]), causes);
    networks(&node["spec"], causes);
    if let Some(old) = old {
        change(old, node, causes);
    }
}

fn change(old: &Value, node: &Value, causes: &mut Vec<Cause>) {
    for (field, named) in [("providerID", "providerID"), ("podCIDR", "podCIDRs")] {
        let before = &old["spec"][field];
        if !is_unset(before) && node["spec"][field] != *before {
            let detail = format!("node updates may not change {field} except from \"\" to valid");
            causes.push(Cause::forbidden(&format!("spec.{named}"), &detail));
        }
    }
    let addresses = elements(&node["status"]["addresses"]);
    for (i, address) in addresses.iter().enumerate() {
        if addresses[..i].contains(address) {
            causes.push(Cause::duplicate(&format!("status.addresses[{i}]"), address));
        }
    }
}

/// The real server has them in `metadata` when it speaks of them.
fn taints(taints: &[Value], causes: &mut Vec<Cause>) {
    let mut seen = vec![];
    for (i, taint) in taints.iter().enumerate() {
        let at = |field: &str| format!("metadata.taints[{i}].{field}");
        let (key, value, effect) = (text(&taint["key"]), text(&taint["value"]), text(&taint["effect"]));
        named(&at("key"), key, names::label_key(key), causes);
        named(&at("value"), value, names::label_value(value), causes);
        if effect.is_empty() {
            causes.push(Cause::required(&at("effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            causes.push(Cause::not_supported(&at("effect"), &taint["effect"], EFFECTS));
        }
        if seen.contains(&(key, effect)) {
            let shown = in_order([
                ("Key", key.into()),
                ("Value", value.into()),
                ("Effect", effect.into()),
                ("TimeAdded", taint["timeAdded"].clone()),
            ]);
            let message = format!("Duplicate value: {shown}: taints must be unique by key and effect pair");
            causes.push(Cause::new("FieldValueDuplicate", &format!("metadata.taints[{i}]"), message));
        }
        seen.push((key, effect));
    }
}

fn networks(spec: &Value, causes: &mut Vec<Cause>) {
    let one = std::slice::from_ref(&spec["podCIDR"]);
    let all = if elements(&spec["podCIDRs"]).is_empty() { one } else { elements(&spec["podCIDRs"]) };
    let networks: Vec<&Value> = all.iter().filter(|network| !is_unset(network)).collect();
    let before = causes.len();
    for (i, network) in networks.iter().enumerate() {
        if let Some(detail) = address::network_fault(text(network)) {
            causes.push(Cause::invalid(&format!("spec.podCIDRs[{i}]"), network, detail));
        }
    }
    let of_v6 = networks.iter().filter(|network| text(network).contains(':')).count();
    if causes.len() == before && (of_v6 > 1 || networks.len() - of_v6 > 1) {
        let detail = "may specify no more than one CIDR for each IP family";
        causes.push(Cause::invalid("spec.podCIDRs", &spec["podCIDRs"], detail));
    }
}
