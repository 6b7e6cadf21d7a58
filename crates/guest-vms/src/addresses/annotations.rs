//! What the annotations of a Node say about its addresses.

use std::net::IpAddr;

use harvester_api::annotations::{ADDITIONAL_INTERNAL_IPS, PROVIDED_NODE_IP};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::report::read;

/// Characters of a wrong value in a message.
const VALUE_SHOWN: usize = 80;

pub(super) struct Annotations {
    /// The addresses at which the kubelet serves: none, one, or one of each family. Otherwise why that cannot be told;
    /// then the addresses stay as they are, since they may be those.
    pub(super) provided: Result<Vec<IpAddr>, String>,
    /// Addresses that are not shown as ExternalIP. The name of the annotation misleads: it makes no InternalIPs.
    pub(super) hidden: Vec<IpAddr>,
    pub(super) faults: Vec<String>,
}

impl Default for Annotations {
    fn default() -> Self {
        Self { provided: Ok(Vec::new()), hidden: Vec::new(), faults: Vec::new() }
    }
}

impl Annotations {
    pub(super) fn of(node: &Node) -> Self {
        let text = |key| node.annotations().get(key).map(|text| text.trim()).unwrap_or_default();
        let provided = provided(text(PROVIDED_NODE_IP)).ok_or_else(|| {
            format!(
                "annotation {PROVIDED_NODE_IP} of node {} is {}: use one IP address, or an IPv4 and an IPv6 address \
                 with a comma; the kubelet writes it from its --node-ip",
                node.name_any(),
                shown(text(PROVIDED_NODE_IP))
            )
        });
        let (hidden, fault) = hidden(text(ADDITIONAL_INTERNAL_IPS));
        let faults = fault.then(|| {
            format!(
                "annotation {ADDITIONAL_INTERNAL_IPS} of node {} is {}: use a JSON list of IP addresses that are not \
                 shown, as [\"10.0.0.7\"]; what is no IP address there hides nothing",
                node.name_any(),
                shown(text(ADDITIONAL_INTERNAL_IPS))
            )
        });
        Self { provided, hidden, faults: faults.into_iter().collect() }
    }
}

fn provided(text: &str) -> Option<Vec<IpAddr>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let ips: Vec<_> = text.split(',').map(read).collect::<Option<_>>()?;
    match ips[..] {
        [_] => Some(ips),
        [first, second] if first.is_ipv4() != second.is_ipv4() => Some(ips),
        _ => None,
    }
}

/// The addresses in a JSON list, and whether there is something else.
fn hidden(text: &str) -> (Vec<IpAddr>, bool) {
    if text.is_empty() {
        return (Vec::new(), false);
    }
    match serde_json::from_str::<Option<Vec<String>>>(text) {
        Ok(list) => {
            let texts = list.unwrap_or_default();
            let ips: Vec<_> = texts.iter().filter_map(|text| read(text)).collect();
            let is_wrong = ips.len() < texts.len();
            (ips, is_wrong)
        }
        Err(_) => (Vec::new(), true),
    }
}

/// A value may be as long as 256 KiB.
pub(crate) fn shown(value: &str) -> String {
    let start: String = value.chars().take(VALUE_SHOWN).collect();
    format!("{start:?}{}", if start.len() < value.len() { "…" } else { "" })
}
