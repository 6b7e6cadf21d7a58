//! The decision about one Node.

use std::{collections::BTreeMap, net::IpAddr};

use controller_kit::PendingEvent;
use k8s_openapi::api::core::v1::{Node, NodeAddress, Taint};
use kube::ResourceExt;

use super::{REGION_LABELS, UNINITIALISED, ZONE_LABELS, waits_for_cloud};
use crate::{Instance, InstanceMetadata, node::Duties};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// `status.addresses`, the whole list.
    Addresses(Vec<NodeAddress>),
    /// Labels by a PATCH of their own keys.
    Label(BTreeMap<String, String>),
    /// Provider ID, labels and the taint in one PATCH on the version that was seen.
    Initialise { provider_id: Option<String>, labels: BTreeMap<String, String>, taints: Vec<Taint> },
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Recorded after the steps.
    pub(super) events: Vec<PendingEvent>,
}

pub(super) fn decide(node: &Node, instance: &Instance, duties: Duties) -> Plan {
    let mut plan = Plan::default();
    if node.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let waits = waits_for_cloud(node) && duties.initialise;
    let metadata = match instance {
        Instance::Found(metadata) => metadata,
        Instance::Missing(why) | Instance::Unknown(Some(why)) => {
            if waits {
                plan.events.push(PendingEvent::warning(why.reason, why.message.as_str()));
            }
            return plan;
        }
        Instance::Unknown(None) => return plan,
    };
    let labels = labels(node, metadata);
    if duties.initialise
        && let Some(addresses) = addresses(node, &metadata.internal_ips)
    {
        // a write of its own, before the Node can be used; the next round decides the rest on its answer
        plan.steps.push(Step::Addresses(addresses));
    } else if waits && internal_ips(node).next().is_none() {
        let message = format!(
            "node {} has no InternalIP and its instance {} reports no address for it, so it stays tainted: {}, or give \
             the kubelet --node-ip",
            node.name_any(),
            metadata.provider_id,
            metadata.address_hint.unwrap_or("see that the instance reports one")
        );
        plan.events.push(PendingEvent::warning("NodeWithoutAddress", message));
    } else if waits {
        let spec = node.spec.as_ref();
        let there = spec.and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let provider_id = there.is_empty().then(|| metadata.provider_id.clone());
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let taints = taints.iter().filter(|taint| taint.key != UNINITIALISED).cloned().collect();
        plan.steps.push(Step::Initialise { provider_id, labels, taints });
        plan.events.push(PendingEvent::normal("Synced", "Node synced successfully"));
    } else if !waits_for_cloud(node) && duties.follow_topology && !labels.is_empty() {
        plan.steps.push(Step::Label(labels));
    }
    plan
}

fn internal_ips(node: &Node) -> impl Iterator<Item = &NodeAddress> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    addresses.iter().filter(|address| address.type_ == "InternalIP")
}

/// The labels that differ. A label that the instance does not mention stays, since a person may have set it; so does
/// one that is no longer true of any host (docs/contract/cloud-controller-manager.md#V4: compared one way, no
/// flapping).
fn labels(node: &Node, metadata: &InstanceMetadata) -> BTreeMap<String, String> {
    let wanted = [(&metadata.zone, ZONE_LABELS), (&metadata.region, REGION_LABELS)];
    let pairs = wanted
        .into_iter()
        .filter_map(|(value, keys)| Some((value.as_ref().filter(|v| !v.is_empty())?, keys)));
    pairs
        .flat_map(|(value, keys)| keys.map(|key| (key.to_owned(), value.clone())))
        .filter(|(key, value)| node.labels().get(key) != Some(value))
        .collect()
}

/// The list with an InternalIP, for a Node that has none: the first address of each family. A Node that has one
/// keeps its list, also while its instance reports nothing (docs/contract/cloud-controller-manager.md#N3).
fn addresses(node: &Node, reported: &[IpAddr]) -> Option<Vec<NodeAddress>> {
    let there = node.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
    let first = |of: fn(&IpAddr) -> bool| reported.iter().copied().find(of);
    let found: Vec<IpAddr> = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)].into_iter().flatten().collect();
    if found.is_empty() || internal_ips(node).next().is_some() {
        return None;
    }
    let entry = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let mut list: Vec<_> = found.into_iter().map(|ip| entry("InternalIP", ip.to_string())).collect();
    if there.iter().all(|address| address.type_ != "Hostname") {
        list.push(entry("Hostname", node.name_any()));
    }
    list.extend(there);
    Some(list)
}

#[cfg(test)]
mod tests {
    use controller_kit::Explanation;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const ALL: Duties = Duties { initialise: true, follow_topology: true };

    fn node(json: &Value) -> Node {
        serde_json::from_value(json.clone()).unwrap()
    }

    fn fresh() -> Value {
        json!({"metadata": {"name": "worker-1"},
            "spec": {"taints": [{"key": UNINITIALISED, "value": "true", "effect": "NoSchedule"},
                {"key": "dedicated", "effect": "NoSchedule"}]},
            "status": {"addresses": [{"type": "Hostname", "address": "worker-1"}]}})
    }

    fn metadata() -> InstanceMetadata {
        InstanceMetadata {
            provider_id: "cloud://7".into(),
            zone: Some("zone-a".into()),
            region: Some("region-1".into()),
            internal_ips: ["198.18.0.5", "198.18.0.6", "fd00::5"].map(|ip| ip.parse().unwrap()).into(),
            address_hint: None,
        }
    }

    fn topology(zone: &str, region: &str) -> BTreeMap<String, String> {
        let keys = [("topology.kubernetes.io", ""), ("failure-domain.beta.kubernetes.io", "")];
        keys.iter()
            .flat_map(|(prefix, _)| [(format!("{prefix}/zone"), zone), (format!("{prefix}/region"), region)])
            .map(|(key, value)| (key, value.to_owned()))
            .collect()
    }

    #[test]
    fn an_uninitialised_node_gets_everything_and_loses_only_that_taint() {
        let mut seen = node(&fresh());
        let plan = decide(&seen, &Instance::Found(metadata()), ALL);
        let [Step::Addresses(addresses)] = &plan.steps[..] else { panic!("{plan:?}") };
        let list: Vec<_> = addresses.iter().map(|entry| (&*entry.type_, &*entry.address)).collect();
        assert_eq!(list, [("InternalIP", "198.18.0.5"), ("InternalIP", "fd00::5"), ("Hostname", "worker-1")]);

        seen.status.as_mut().unwrap().addresses = Some(addresses.clone());
        let plan = decide(&seen, &Instance::Found(metadata()), ALL);
        let [Step::Initialise { provider_id, labels, taints }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(provider_id.as_deref(), Some("cloud://7"));
        assert_eq!(*labels, topology("zone-a", "region-1"));
        assert_eq!(taints.iter().map(|taint| &*taint.key).collect::<Vec<_>>(), ["dedicated"]);
        assert_eq!(plan.events[0].reason, "Synced");
    }

    #[test]
    fn a_provider_id_is_written_once() {
        let mut json = fresh();
        json["spec"]["providerID"] = "cloud://other".into();
        json["status"]["addresses"] = json!([{"type": "InternalIP", "address": "198.18.0.99"}]);
        let plan = decide(&node(&json), &Instance::Found(metadata()), ALL);
        assert!(
            plan.steps.iter().any(|step| matches!(step, Step::Initialise { provider_id: None, .. })),
            "{plan:?}"
        );
    }

    fn why() -> Explanation {
        Explanation::new("OutOfReach", "the cloud does not answer")
    }

    #[rstest]
    #[case::missing(Instance::Missing(why()), Some(why()))]
    #[case::out_of_reach(Instance::Unknown(Some(why())), Some(why()))]
    #[case::not_listed_yet(Instance::Unknown(None), None)]
    fn a_node_without_instance_stays_tainted_and_gets_the_explanation_of_its_cloud(
        #[case] instance: Instance,
        #[case] told: Option<Explanation>,
    ) {
        let told: Vec<_> =
            told.map(|why| PendingEvent::warning(why.reason, why.message)).into_iter().collect();
        let plan = decide(&node(&fresh()), &instance, ALL);
        assert_eq!((plan.steps, plan.events), (vec![], told));
        assert_eq!(decide(&node(&settled("a", "b")), &instance, ALL), Plan::default());
    }

    #[test]
    fn a_node_without_any_address_stays_tainted_and_an_event_says_what_to_do() {
        let address_hint = Some("start its agent");
        let silent = InstanceMetadata { internal_ips: vec![], address_hint, ..metadata() };
        let plan = decide(&node(&fresh()), &Instance::Found(silent.clone()), ALL);
        let reasons: Vec<_> = plan.events.iter().map(|event| event.reason).collect();
        assert_eq!((plan.steps, reasons), (vec![], vec!["NodeWithoutAddress"]));
        assert!(plan.events[0].message.ends_with(": start its agent, or give the kubelet --node-ip"));
        // a kubelet with --node-ip has brought one along
        let mut json = fresh();
        json["status"]["addresses"] = json!([{"type": "InternalIP", "address": "198.18.0.99"}]);
        let plan = decide(&node(&json), &Instance::Found(silent), ALL);
        assert!(matches!(plan.steps[..], [Step::Initialise { .. }]), "{plan:?}");
    }

    fn settled(zone: &str, region: &str) -> Value {
        json!({"metadata": {"name": "worker-1", "labels": topology(zone, region)}, "spec": {"providerID": "cloud://7"},
            "status": {"addresses": [{"type": "InternalIP", "address": "198.18.0.99"}]}})
    }

    #[rstest]
    #[case::in_step(settled("zone-a", "region-1"), metadata(), vec![])]
    #[case::moved(settled("zone-b", "region-1"), metadata(), vec!["failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone"])]
    // docs/contract/cloud-controller-manager.md#V4: a removed annotation is no difference
    #[case::instance_says_nothing(settled("zone-b", "region-1"), InstanceMetadata { zone: None, region: None, ..metadata() }, vec![])]
    #[case::instance_says_empty(settled("zone-b", "region-1"),
        InstanceMetadata { zone: Some(String::new()), region: None, ..metadata() }, vec![])]
    fn labels_follow_the_instance(
        #[case] node_json: Value,
        #[case] metadata: InstanceMetadata,
        #[case] keys: Vec<&str>,
    ) {
        let plan = decide(&node(&node_json), &Instance::Found(metadata), ALL);
        let written = match &plan.steps[..] {
            [] => vec![],
            [Step::Label(labels)] => labels.keys().map(String::as_str).collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!(written, keys);
    }

    // docs/contract/cloud-controller-manager.md#N3: a silent instance takes no address away
    #[test]
    fn addresses_that_a_node_has_stay_whatever_the_instance_reports() {
        for ips in [vec![], metadata().internal_ips] {
            let metadata = InstanceMetadata { internal_ips: ips, ..metadata() };
            let plan = decide(&node(&settled("zone-a", "region-1")), &Instance::Found(metadata), ALL);
            assert_eq!(plan.steps, []);
        }
    }

    #[rstest]
    #[case::no_initialisation(fresh(), Duties { initialise: false, follow_topology: true })]
    #[case::no_topology(settled("zone-b", "region-2"), Duties { initialise: true, follow_topology: false })]
    #[case::going(json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}), ALL)]
    fn what_is_not_a_duty_is_left_alone(#[case] json: Value, #[case] duties: Duties) {
        assert_eq!(decide(&node(&json), &Instance::Found(metadata()), duties), Plan::default());
    }
}
