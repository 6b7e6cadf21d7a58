//! The decision about one Node.

use controller_kit::PendingEvent;
use k8s_openapi::api::core::v1::{Node, NodeAddress, Taint};
use kube::ResourceExt;

use super::{UNINITIALISED, labels::LabelChanges, waits_for_cloud};
use crate::{Instance, InstanceMetadata, node::Duties};

/// Types of a Node's addresses.
const INTERNAL: &str = "InternalIP";
const EXTERNAL: &str = "ExternalIP";
const HOSTNAME: &str = "Hostname";

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// `status.addresses`, the whole list.
    Addresses(Vec<NodeAddress>),
    /// Labels and annotations by a PATCH of their own keys.
    Label(LabelChanges),
    /// Provider ID, labels and the taint in one PATCH on the version that was seen.
    Initialise { provider_id: Option<String>, labels: LabelChanges, taints: Vec<Taint> },
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Recorded after the steps.
    pub(super) events: Vec<PendingEvent>,
    /// Recorded once.
    pub(super) notice: Option<PendingEvent>,
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
        Instance::Foreign(why) => {
            plan.notice = why.as_ref().map(|why| PendingEvent::normal(why.reason, why.message.as_str()));
            return plan;
        }
        Instance::Unknown(None) => return plan,
    };
    let labels = if waits || duties.follow_topology {
        LabelChanges::of(node, metadata)
    } else {
        LabelChanges::of_annotations(node, metadata)
    };
    let addresses = addresses(node, metadata);
    if duties.initialise
        && let Some(list) = &addresses
        && list != present(node)
    {
        // a write of its own, before the Node can be used; the next round decides the rest on its answer
        plan.steps.push(Step::Addresses(list.clone()));
        return plan;
    }
    let has_address = present(node).iter().any(|it| [INTERNAL, EXTERNAL].contains(&&*it.type_));
    if waits && has_address {
        let spec = node.spec.as_ref();
        let there = spec.and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let provider_id = there.is_empty().then(|| metadata.provider_id.clone());
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let taints = taints.iter().filter(|taint| taint.key != UNINITIALISED).cloned().collect();
        plan.steps.push(Step::Initialise { provider_id, labels, taints });
        plan.events.push(PendingEvent::normal("Synced", "Node synced successfully"));
    } else if !waits_for_cloud(node) && !labels.is_empty() {
        plan.steps.push(Step::Label(labels));
    }
    if duties.initialise {
        plan.events.extend(problem(node, metadata, addresses.is_some(), has_address, waits));
        plan.events
            .extend(metadata.remarks.iter().map(|it| PendingEvent::warning(it.reason, it.message.as_str())));
    }
    plan
}

fn present(node: &Node) -> &[NodeAddress] {
    node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default()
}

fn has_internal_ip(list: &[NodeAddress]) -> bool {
    list.iter().any(|address| address.type_ == INTERNAL)
}

/// The list that the Node should have, or nothing where it keeps the one that it has: while its instance reports nothing,
/// where it would lose its last InternalIP (docs/contract/cloud-controller-manager.md#N3 and #N9), and where another
/// program wrote the InternalIP of a Node that this cloud did not finish: a kubelet that expects no cloud does so again
/// and again.
fn addresses(node: &Node, metadata: &InstanceMetadata) -> Option<Vec<NodeAddress>> {
    let reported = &metadata.addresses;
    let may_be_written = !has_internal_ip(present(node))
        || has_internal_ip(reported) && (waits_for_cloud(node) || is_of_this_cloud(node, metadata));
    (may_be_written && !reported.is_empty()).then(|| {
        let hostname = NodeAddress { type_: HOSTNAME.to_owned(), address: node.name_any() };
        reported.iter().cloned().chain([hostname]).collect()
    })
}

/// Whether the provider ID of the Node is one of this cloud's.
fn is_of_this_cloud(node: &Node, metadata: &InstanceMetadata) -> bool {
    let cloud = |id: &str| id.split_once("://").map(|(cloud, _)| cloud.to_owned());
    let there = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
    cloud(there).is_some_and(|there| cloud(&metadata.provider_id) == Some(there))
}

/// The Event about a Node whose instance gives it no address, or no InternalIP.
fn problem(
    node: &Node,
    metadata: &InstanceMetadata,
    is_followed: bool,
    has_address: bool,
    waits: bool,
) -> Option<PendingEvent> {
    let name = node.name_any();
    let (why, is_passing) = match &metadata.address_problem {
        Some(problem) => (problem.why.clone(), problem.is_passing),
        None if !metadata.addresses.is_empty() => return None,
        None => (format!("its instance {} reports none", metadata.provider_id), true),
    };
    let (reason, message) = if !has_address && waits {
        let what =
            format!("node {name} has no address, so it stays tainted: {why}, or give the kubelet --node-ip");
        ("NodeWithoutAddress", what)
    } else if is_passing {
        return None;
    } else if is_followed {
        ("NodeWithoutInternalIP", format!("node {name} has no InternalIP: {why}"))
    } else {
        ("NodeAddressesKept", format!("node {name} keeps the addresses that it has: {why}"))
    };
    Some(PendingEvent::warning(reason, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use controller_kit::Explanation;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::AddressProblem;

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
            addresses: addresses(&[INTERNAL_V4, ("ExternalIP", "198.18.0.6"), INTERNAL_V6]),
            ..InstanceMetadata::default()
        }
    }

    const INTERNAL_V4: (&str, &str) = ("InternalIP", "198.18.0.5");
    const INTERNAL_V6: (&str, &str) = ("InternalIP", "fd00::5");
    const OLD: (&str, &str) = ("InternalIP", "198.18.0.99");
    const NAME: (&str, &str) = ("Hostname", "worker-1");

    fn addresses(list: &[(&str, &str)]) -> Vec<NodeAddress> {
        let entry = |(type_, address): &(&str, &str)| NodeAddress {
            type_: (*type_).to_owned(),
            address: (*address).to_owned(),
        };
        list.iter().map(entry).collect()
    }

    fn silent(why: &str, is_passing: bool) -> InstanceMetadata {
        let address_problem = Some(AddressProblem { why: why.to_owned(), is_passing });
        InstanceMetadata { addresses: vec![], address_problem, ..metadata() }
    }

    fn topology(zone: &str, region: &str) -> BTreeMap<String, Option<String>> {
        let keys = [("topology.kubernetes.io", ""), ("failure-domain.beta.kubernetes.io", "")];
        keys.iter()
            .flat_map(|(prefix, _)| [(format!("{prefix}/zone"), zone), (format!("{prefix}/region"), region)])
            .map(|(key, value)| (key, Some(value.to_owned())))
            .collect()
    }

    #[test]
    fn an_uninitialised_node_gets_everything_and_loses_only_that_taint() {
        let mut seen = node(&fresh());
        let plan = decide(&seen, &Instance::Found(Box::new(metadata())), ALL);
        let [Step::Addresses(addresses)] = &plan.steps[..] else { panic!("{plan:?}") };
        let list: Vec<_> = addresses.iter().map(|entry| (&*entry.type_, &*entry.address)).collect();
        assert_eq!(list, [INTERNAL_V4, ("ExternalIP", "198.18.0.6"), INTERNAL_V6, NAME]);

        seen.status.as_mut().unwrap().addresses = Some(addresses.clone());
        let plan = decide(&seen, &Instance::Found(Box::new(metadata())), ALL);
        let [Step::Initialise { provider_id, labels, taints }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(provider_id.as_deref(), Some("cloud://7"));
        assert_eq!(labels.labels, topology("zone-a", "region-1"));
        assert_eq!(taints.iter().map(|taint| &*taint.key).collect::<Vec<_>>(), ["dedicated"]);
        assert_eq!(plan.events[0].reason, "Synced");
    }

    #[test]
    fn a_provider_id_is_written_once() {
        let mut json = fresh();
        json["spec"]["providerID"] = "cloud://other".into();
        json["status"]["addresses"] = json!([{"type": "InternalIP", "address": "198.18.0.99"}]);
        let plan = decide(&node(&json), &Instance::Found(Box::new(silent("", true))), ALL);
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

    fn reasons(plan: &Plan) -> Vec<&str> {
        plan.events.iter().map(|event| event.reason).collect()
    }

    #[test]
    fn a_node_without_any_address_stays_tainted_and_an_event_says_what_to_do() {
        let silent = silent("its agent is silent: start it", true);
        let plan = decide(&node(&fresh()), &Instance::Found(Box::new(silent.clone())), ALL);
        assert_eq!((&plan.steps[..], reasons(&plan)), (&[][..], vec!["NodeWithoutAddress"]));
        assert!(
            plan.events[0]
                .message
                .ends_with(": its agent is silent: start it, or give the kubelet --node-ip")
        );
        // a kubelet with --node-ip has brought one along
        let mut json = fresh();
        json["status"]["addresses"] = json!([{"type": "InternalIP", "address": "198.18.0.99"}]);
        let plan = decide(&node(&json), &Instance::Found(Box::new(silent)), ALL);
        assert!(matches!(plan.steps[..], [Step::Initialise { .. }]), "{plan:?}");
        assert_eq!(reasons(&plan), ["Synced"]);
    }

    fn settled(zone: &str, region: &str) -> Value {
        json!({"metadata": {"name": "worker-1", "labels": topology(zone, region)}, "spec": {"providerID": "cloud://7"},
            "status": {"addresses": addresses(&[INTERNAL_V4, ("ExternalIP", "198.18.0.6"), INTERNAL_V6, NAME])}})
    }

    #[rstest]
    #[case::in_step(settled("zone-a", "region-1"), metadata(), vec![])]
    #[case::moved(settled("zone-b", "region-1"), metadata(), vec!["failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone"])]
    // docs/contract/cloud-controller-manager.md#V4: a removed annotation is no difference where nothing is recorded
    #[case::instance_says_nothing(settled("zone-b", "region-1"), InstanceMetadata { zone: None, region: None, ..metadata() }, vec![])]
    #[case::instance_says_empty(settled("zone-b", "region-1"),
        InstanceMetadata { zone: Some(String::new()), region: None, ..metadata() }, vec![])]
    fn labels_follow_the_instance(
        #[case] node_json: Value,
        #[case] metadata: InstanceMetadata,
        #[case] keys: Vec<&str>,
    ) {
        let plan = decide(&node(&node_json), &Instance::Found(Box::new(metadata)), ALL);
        let written = match &plan.steps[..] {
            [] => vec![],
            [Step::Label(changes)] => changes.labels.keys().map(String::as_str).collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!(written, keys);
    }

    // docs/contract/cloud-controller-manager.md#18.4, #N3 and #N9
    #[rstest]
    #[case::follows_its_instance("cloud://7", &[OLD, NAME], metadata(), &[INTERNAL_V4,
        ("ExternalIP", "198.18.0.6"), INTERNAL_V6, NAME], &[])]
    #[case::order_counts("cloud://7", &[INTERNAL_V6, ("ExternalIP", "198.18.0.6"), INTERNAL_V4, NAME], metadata(),
        &[INTERNAL_V4, ("ExternalIP", "198.18.0.6"), INTERNAL_V6, NAME], &[])]
    // docs/contract/cloud-controller-manager.md#N14: the Go program wrote this list again every five minutes
    #[case::in_step("cloud://7", &[INTERNAL_V4, ("ExternalIP", "198.18.0.6"), INTERNAL_V6, NAME], metadata(),
        &[], &[])]
    #[case::a_silent_instance_takes_nothing("cloud://7", &[OLD, NAME], silent("agent", true), &[], &[])]
    #[case::a_fault_takes_nothing("cloud://7", &[OLD, NAME], silent("no network", false), &[],
        &["NodeAddressesKept"])]
    #[case::the_last_internal_ip_stays("cloud://7", &[OLD, NAME], outside(), &[], &["NodeAddressesKept"])]
    #[case::no_internal_ip_yet("cloud://7", &[NAME], outside(), &[("ExternalIP", "198.18.0.6"), NAME], &[])]
    #[case::no_internal_ip("cloud://7", &[("ExternalIP", "198.18.0.6"), NAME], outside(), &[],
        &["NodeWithoutInternalIP"])]
    // its kubelet would write its own list again, and so on
    #[case::of_another_cloud("other://7", &[OLD, NAME], metadata(), &[], &[])]
    #[case::of_no_cloud("", &[OLD, NAME], metadata(), &[], &[])]
    #[case::without_any("", &[], metadata(), &[INTERNAL_V4, ("ExternalIP", "198.18.0.6"), INTERNAL_V6, NAME],
        &[])]
    fn addresses_follow_what_an_instance_reports(
        #[case] provider_id: &str,
        #[case] there: &[(&str, &str)],
        #[case] metadata: InstanceMetadata,
        #[case] written: &[(&str, &str)],
        #[case] events: &[&str],
    ) {
        let mut json = settled("zone-a", "region-1");
        json["spec"]["providerID"] = provider_id.into();
        json["status"]["addresses"] = json!(addresses(there));
        let plan = decide(&node(&json), &Instance::Found(Box::new(metadata)), ALL);
        let written = (!written.is_empty()).then(|| Step::Addresses(addresses(written)));
        let expected: Vec<_> = written.into_iter().collect();
        assert_eq!((&plan.steps, &reasons(&plan)[..]), (&expected, events));
    }

    /// An instance whose addresses are none that its Node may have as InternalIP.
    fn outside() -> InstanceMetadata {
        let addresses = addresses(&[("ExternalIP", "198.18.0.6")]);
        InstanceMetadata { addresses, ..silent("the flag excludes them", false) }
    }

    #[rstest]
    #[case::waits(fresh())]
    #[case::settled(settled("zone-b", "region-2"))]
    fn a_node_of_another_cloud_is_left_alone_and_told_so(#[case] json: Value) {
        let notice = Some(PendingEvent::normal(why().reason, why().message));
        let plan = decide(&node(&json), &Instance::Foreign(Some(why())), ALL);
        assert_eq!(plan, Plan { notice, ..Plan::default() });
        assert_eq!(decide(&node(&json), &Instance::Foreign(None), ALL), Plan::default());
    }

    #[rstest]
    #[case::every_duty(ALL)]
    #[case::no_topology(Duties { initialise: true, follow_topology: false })]
    fn a_node_that_another_program_initialised_gets_the_annotations_by_one_write(#[case] duties: Duties) {
        let annotations = BTreeMap::from([("cloud/place".to_owned(), "here".to_owned())]);
        let found = InstanceMetadata { annotations: annotations.clone(), ..metadata() };
        let instance = Instance::Found(Box::new(found));
        let mut json = settled("zone-a", "region-1");
        let plan = decide(&node(&json), &instance, duties);
        let [Step::Label(changes)] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!((&changes.annotations, changes.labels.len()), (&annotations, 0));
        json["metadata"]["annotations"] = json!(annotations);
        assert_eq!(decide(&node(&json), &instance, duties), Plan::default());
    }

    #[test]
    fn remarks_of_the_cloud_become_events() {
        let metadata = InstanceMetadata { remarks: vec![why()], ..silent("agent", true) };
        let plan = decide(&node(&settled("zone-a", "region-1")), &Instance::Found(Box::new(metadata)), ALL);
        assert_eq!(reasons(&plan), ["OutOfReach"]);
    }

    #[rstest]
    #[case::no_initialisation(fresh(), Duties { initialise: false, follow_topology: true })]
    #[case::no_topology(settled("zone-b", "region-2"), Duties { initialise: true, follow_topology: false })]
    #[case::going(json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}), ALL)]
    fn what_is_not_a_duty_is_left_alone(#[case] json: Value, #[case] duties: Duties) {
        assert_eq!(decide(&node(&json), &Instance::Found(Box::new(metadata())), duties), Plan::default());
    }
}
