//! docs/load-balancing.md explains the reason of every Event and condition that people see.

use std::{collections::BTreeSet, fs};

use super::{names::literals, product, root};

/// The crates that publish Events and write conditions.
const CRATES: &[&str] = &["load-balancer", "cloud-controller-manager", "cloud-provider", "guest-vms"];

/// Words of Kubernetes and KubeVirt in the same spelling.
const NO_REASONS: &[&str] = &[
    "AgentConnected",
    "EndpointSlice",
    "ExternalIP",
    "InternalIP",
    "LoadBalancer",
    "LoadBalancers",
    "NoSchedule",
    "RerunOnFailure",
    "SingleStack",
    "ToBeDeletedByClusterAutoscaler",
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstances",
    "VirtualMachines",
];

/// Whether a text is spelt as a reason of several words.
fn is_reason(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphabetic())
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().skip(2).any(|c| c.is_ascii_uppercase())
        && text.chars().any(|c| c.is_ascii_lowercase())
}

#[test]
fn every_reason_of_an_event_or_a_condition_is_explained() {
    let document = fs::read_to_string(root().join("docs/load-balancing.md")).unwrap();
    let (mut found, mut missing) = (BTreeSet::new(), Vec::new());
    for line in product::lines() {
        if !line.place.split('/').nth(1).is_some_and(|of| CRATES.contains(&of)) {
            continue;
        }
        for text in literals(&line.text) {
            let is_new = is_reason(text) && !NO_REASONS.contains(&text) && found.insert(text.to_owned());
            if is_new && !document.contains(&format!("`{text}`")) {
                missing.push(format!("{}: {text}", line.place));
            }
        }
    }
    assert!(found.len() > 50, "the reasons are found: {}", found.len());
    assert!(missing.is_empty(), "explain these in docs/load-balancing.md: {missing:#?}");
}

#[test]
fn a_reason_is_told_from_other_words() {
    assert!(is_reason("PoolNotFound") && is_reason("InvalidIPAM"));
    assert!(!is_reason("Ready") && !is_reason("TCP") && !is_reason("metadata") && !is_reason("no Reason"));
}
