//! The hosts of the Harvester cluster: its Node objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use harvester_api::annotations::{TOPOLOGY_REGION, TOPOLOGY_ZONE};

/// Kubernetes' label and, on an instance, Harvester's annotation with the name of the host.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// One host, as far as placing VMs on it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Ready, as far as anybody says, and not cordoned.
    pub takes_vms: bool,
}

impl Host {
    pub fn of(node: &Node) -> Self {
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
        let labels = node.labels().clone();
        Self { name: node.name_any(), labels, takes_vms: !cordoned && is_ready(node) }
    }

    /// The labels that Harvester copies to the instances of the node driver: region, zone and host name, with `None` for a label
    /// that the host does not have.
    pub fn topology(&self) -> [(&'static str, Option<&String>); 3] {
        [TOPOLOGY_REGION, TOPOLOGY_ZONE, HOSTNAME].map(|key| (key, self.labels.get(key)))
    }
}

/// Whether a Node says that it is ready. A Node without conditions is: nobody plays the kubelet of a host.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_none_or(|conditions| {
        conditions
            .iter()
            .filter(|condition| condition.type_ == "Ready")
            .all(|condition| condition.status == "True")
    })
}

/// The host for a VM: of those that fit, the one with the fewest VMs, then the first by name.
pub fn place<'a>(
    hosts: &'a [Host],
    vms_on: &BTreeMap<String, usize>,
    selector: &BTreeMap<String, String>,
    not_on: Option<&str>,
) -> Option<&'a Host> {
    hosts
        .iter()
        .filter(|host| host.takes_vms && Some(host.name.as_str()) != not_on)
        .filter(|host| selector.iter().all(|(key, value)| host.labels.get(key) == Some(value)))
        .min_by_key(|host| (vms_on.get(&host.name).copied().unwrap_or_default(), &host.name))
}

#[cfg(test)]
pub(crate) fn host(name: &str, zone: &str) -> Host {
    let labels = [(TOPOLOGY_ZONE, zone), (TOPOLOGY_REGION, "eu"), (HOSTNAME, name)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Host { name: name.to_owned(), labels, takes_vms: true }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::fewest_vms(&[("a", 1), ("b", 0)], None, None, Some("b"))]
    #[case::first_by_name(&[], None, None, Some("a"))]
    #[case::not_where_it_is(&[], None, Some("a"), Some("b"))]
    #[case::by_zone(&[], Some("west"), None, Some("b"))]
    #[case::nowhere(&[], Some("south"), None, None)]
    fn places(
        #[case] vms: &[(&str, usize)],
        #[case] zone: Option<&str>,
        #[case] not_on: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let cordoned = Host { takes_vms: false, ..host("0-cordoned", "west") };
        let hosts = [cordoned, host("a", "east"), host("b", "west")];
        let vms = vms.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let selector = zone.map(|zone| (TOPOLOGY_ZONE.to_owned(), zone.to_owned())).into_iter().collect();
        let place = place(&hosts, &vms, &selector, not_on);
        assert_eq!(place.map(|host| host.name.as_str()), expected);
    }

    #[rstest]
    #[case::nobody_says(json!({}), true)]
    #[case::cordoned(json!({"spec": {"unschedulable": true}}), false)]
    #[case::not_ready(json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}), false)]
    #[case::ready(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}), true)]
    fn a_cordoned_or_unready_host_takes_no_vms(#[case] node: serde_json::Value, #[case] expected: bool) {
        assert_eq!(Host::of(&serde_json::from_value(node).unwrap()).takes_vms, expected);
    }
}
