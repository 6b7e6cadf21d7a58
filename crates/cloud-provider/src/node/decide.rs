//! The decision about one Node.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::{Node, NodeAddress, Taint};
use kube::ResourceExt;

use super::{REGION_LABELS, UNINITIALISED, ZONE_LABELS, waits_for_cloud};
use crate::{Instance, Machine, Notice, node::Duties};

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
    /// Told after the steps.
    pub(super) notices: Vec<Notice>,
}

pub(super) fn decide(node: &Node, instance: &Instance, duties: Duties) -> Plan {
    let mut plan = Plan::default();
    if node.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tainted = waits_for_cloud(node);
    let machine = match instance {
        Instance::Found(machine) => machine,
        Instance::Missing(why) => {
            if tainted && duties.initialise {
                plan.notices.push(Notice::warning("MachineNotFound", why.clone()));
            }
            return plan;
        }
    };
    let labels = labels(node, machine);
    if duties.initialise
        && let Some(addresses) = addresses(node, &machine.internal_ips)
    {
        // a write of its own, before the Node can be used; the rest is decided on what it answers
        plan.steps.push(Step::Addresses(addresses));
    } else if tainted && duties.initialise {
        let there = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let provider_id = there.is_empty().then(|| machine.provider_id.clone());
        let taints = taints.iter().filter(|taint| taint.key != UNINITIALISED).cloned().collect();
        plan.steps.push(Step::Initialise { provider_id, labels, taints });
        plan.notices.push(Notice::normal("Synced", "Node synced successfully"));
    } else if !tainted && duties.follow_topology && !labels.is_empty() {
        plan.steps.push(Step::Label(labels));
    }
    plan
}

/// The labels that differ. What the machine does not say is left alone, since a person may have set it; so a label
/// that is no longer true of any host stays (pitfalls-ccm.md V4: compared one way, no flapping).
fn labels(node: &Node, machine: &Machine) -> BTreeMap<String, String> {
    let wanted = [(&machine.zone, ZONE_LABELS), (&machine.region, REGION_LABELS)];
    let pairs = wanted
        .into_iter()
        .filter_map(|(value, keys)| Some((value.as_ref().filter(|v| !v.is_empty())?, keys)));
    pairs
        .flat_map(|(value, keys)| keys.map(|key| (key.to_owned(), value.clone())))
        .filter(|(key, value)| node.labels().get(key) != Some(value))
        .collect()
}

/// The list with an InternalIP, for a Node that has none: the first address of each family. A Node that has one
/// keeps its list, also while its machine reports nothing (pitfalls-ccm.md N3).
fn addresses(node: &Node, reported: &[IpAddr]) -> Option<Vec<NodeAddress>> {
    let there = node.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
    let first = |of: fn(&IpAddr) -> bool| reported.iter().copied().find(of);
    let found: Vec<IpAddr> = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)].into_iter().flatten().collect();
    if found.is_empty() || there.iter().any(|address| address.type_ == "InternalIP") {
        return None;
    }
    let entry = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    let mut list: Vec<_> = found.into_iter().map(|ip| entry("InternalIP", ip.to_string())).collect();
    if there.iter().all(|address| address.type_ != "Hostname") {
        list.push(entry("Hostname", node.name_any()));
    }
    list.extend(there);
    Some(list)
}

#[cfg(test)]
mod tests {
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

    fn machine() -> Machine {
        Machine {
            provider_id: "cloud://7".into(),
            zone: Some("zone-a".into()),
            region: Some("region-1".into()),
            internal_ips: ["198.18.0.5", "198.18.0.6", "fd00::5"].map(|ip| ip.parse().unwrap()).into(),
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
        let plan = decide(&seen, &Instance::Found(machine()), ALL);
        let [Step::Addresses(addresses)] = &plan.steps[..] else { panic!("{plan:?}") };
        let list: Vec<_> = addresses.iter().map(|entry| (&*entry.type_, &*entry.address)).collect();
        assert_eq!(list, [("InternalIP", "198.18.0.5"), ("InternalIP", "fd00::5"), ("Hostname", "worker-1")]);

        seen.status.as_mut().unwrap().addresses = Some(addresses.clone());
        let plan = decide(&seen, &Instance::Found(machine()), ALL);
        let [Step::Initialise { provider_id, labels, taints }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(provider_id.as_deref(), Some("cloud://7"));
        assert_eq!(*labels, topology("zone-a", "region-1"));
        assert_eq!(taints.iter().map(|taint| &*taint.key).collect::<Vec<_>>(), ["dedicated"]);
        assert_eq!(plan.notices[0].reason, "Synced");
    }

    #[test]
    fn a_provider_id_is_written_once() {
        let mut json = fresh();
        json["spec"]["providerID"] = "cloud://other".into();
        let machine = Machine { internal_ips: vec![], ..machine() };
        let plan = decide(&node(&json), &Instance::Found(machine), ALL);
        assert!(
            plan.steps.iter().any(|step| matches!(step, Step::Initialise { provider_id: None, .. })),
            "{plan:?}"
        );
    }

    #[test]
    fn a_node_without_machine_stays_tainted_and_says_why() {
        let plan = decide(&node(&fresh()), &Instance::Missing("no VM worker-1".into()), ALL);
        assert_eq!((plan.steps.len(), plan.notices[0].message.as_str()), (0, "no VM worker-1"));
    }

    fn settled(zone: &str, region: &str) -> Value {
        json!({"metadata": {"name": "worker-1", "labels": topology(zone, region)}, "spec": {"providerID": "cloud://7"},
            "status": {"addresses": [{"type": "InternalIP", "address": "198.18.0.99"}]}})
    }

    #[rstest]
    #[case::in_step(settled("zone-a", "region-1"), machine(), vec![])]
    #[case::moved(settled("zone-b", "region-1"), machine(), vec!["failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone"])]
    // pitfalls-ccm.md V4: a removed annotation is no difference
    #[case::machine_says_nothing(settled("zone-b", "region-1"), Machine { zone: None, region: None, ..machine() }, vec![])]
    #[case::machine_says_empty(settled("zone-b", "region-1"),
        Machine { zone: Some(String::new()), region: None, ..machine() }, vec![])]
    fn labels_follow_the_machine(
        #[case] node_json: Value,
        #[case] machine: Machine,
        #[case] keys: Vec<&str>,
    ) {
        let plan = decide(&node(&node_json), &Instance::Found(machine), ALL);
        let written = match &plan.steps[..] {
            [] => vec![],
            [Step::Label(labels)] => labels.keys().map(String::as_str).collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!(written, keys);
    }

    // pitfalls-ccm.md N3: a silent guest agent takes no address away
    #[test]
    fn addresses_that_a_node_has_stay_whatever_the_machine_reports() {
        for ips in [vec![], machine().internal_ips] {
            let machine = Machine { internal_ips: ips, ..machine() };
            let plan = decide(&node(&settled("zone-a", "region-1")), &Instance::Found(machine), ALL);
            assert_eq!(plan.steps, []);
        }
    }

    #[rstest]
    #[case::no_initialisation(fresh(), Duties { initialise: false, follow_topology: true })]
    #[case::no_topology(settled("zone-b", "region-2"), Duties { initialise: true, follow_topology: false })]
    #[case::going(json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}), ALL)]
    fn what_is_not_a_duty_is_left_alone(#[case] json: Value, #[case] duties: Duties) {
        assert_eq!(decide(&node(&json), &Instance::Found(machine()), duties), Plan::default());
    }
}
