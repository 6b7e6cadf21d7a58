//! The labels that a VM gives its Node: where it runs, what kind of machine it is, and what flags choose.
//!
//! Harvester copies zone and region of a host to the instances that run there, as annotations, and takes them away
//! where the host has none. An instance that has just started has none yet either.

use std::collections::BTreeMap;

use harvester_api::{VirtualMachineInstance, annotations, labels::is_value};
use kube::ResourceExt;
use serde_json::{Map, Value};

use crate::{addresses::shown, host_names::has_agent, vms::stays_put};

/// Annotations of KubeVirt that name the instance type of a VM.
const TYPE_NAMES: [&str; 2] = ["kubevirt.io/instancetype-name", "kubevirt.io/cluster-instancetype-name"];
/// Where a trimmed instance keeps its type.
const KEPT_TYPE: &str = "instanceType";

/// The labels of a Node by the annotation of its VM's instance that has the value.
pub type TopologyLabels = BTreeMap<String, String>;

/// What an instance says of labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceLabels {
    /// `None` while the VM migrates or stops, or where its host has no zone.
    pub zone: Option<String>,
    /// As [`InstanceLabels::zone`].
    pub region: Option<String>,
    pub instance_type: Option<String>,
    /// What flags choose.
    pub chosen: BTreeMap<String, String>,
    /// The instance runs for a while and stays where it is, and all its values are label values: what is not here is not
    /// so.
    pub is_complete: bool,
    /// Values that are no label values, each as a sentence with the next step.
    pub faults: Vec<String>,
}

impl InstanceLabels {
    pub(crate) fn of(instance: &VirtualMachineInstance, topology: &TopologyLabels) -> Self {
        let mut labels = Self::default();
        match kept_type(instance) {
            Some(kind) if is_value(kind) => labels.instance_type = Some(kind.to_owned()),
            Some(kind) => {
                let keys = TYPE_NAMES.join(" or ");
                labels.fault(&format!("the instance type (annotation {keys})"), instance, kind);
            }
            None => {}
        }
        if !stays_put(instance) {
            return labels;
        }
        labels.zone = labels.value(instance, annotations::TOPOLOGY_ZONE);
        labels.region = labels.value(instance, annotations::TOPOLOGY_REGION);
        for (label, annotation) in topology {
            if let Some(value) = labels.value(instance, annotation) {
                labels.chosen.insert(label.clone(), value);
            }
        }
        let is_running = instance.status.as_ref().is_some_and(|status| status.phase == "Running");
        // an agent answers long after Harvester has copied the annotations; a value that no label can be has not gone
        labels.is_complete = is_running && has_agent(instance) && labels.faults.is_empty();
        labels
    }

    fn value(&mut self, instance: &VirtualMachineInstance, annotation: &str) -> Option<String> {
        let value = instance.annotations().get(annotation)?;
        if is_value(value) {
            return Some(value.clone());
        }
        self.fault(&format!("annotation {annotation}"), instance, value);
        None
    }

    fn fault(&mut self, what: &str, instance: &VirtualMachineInstance, value: &str) {
        self.faults.push(format!(
            "{what} of VirtualMachineInstance {} is {}, which no label can be, so the node keeps its label: \
             use at most 63 letters, digits, '-', '_' and '.'",
            instance.name_any(),
            shown(value)
        ));
    }
}

/// The start of a longer value is kept: enough for a message, and no label value either. An instance has room for 256 KiB
/// of annotations, and whoever may write it may fill them.
const KEPT_LEN: usize = 200;

/// Keeps of an instance what [`InstanceLabels::of`] reads.
pub(crate) fn trim(instance: &mut VirtualMachineInstance, topology: &TopologyLabels) {
    let kind = instance_type(instance);
    instance.spec.rest.clear();
    if let Some(mut kind) = kind {
        cut(&mut kind);
        instance.spec.rest.insert(KEPT_TYPE.to_owned(), kind.into());
    }
    if let Some(annotations) = &mut instance.metadata.annotations {
        let places = [annotations::TOPOLOGY_ZONE, annotations::TOPOLOGY_REGION];
        annotations.retain(|key, _| places.contains(&&**key) || topology.values().any(|it| it == key));
        annotations.values_mut().for_each(cut);
    }
}

fn cut(value: &mut String) {
    if let Some((end, _)) = value.char_indices().nth(KEPT_LEN) {
        *value = value[..end].to_owned();
    }
}

fn kept_type(instance: &VirtualMachineInstance) -> Option<&str> {
    instance.spec.rest.get(KEPT_TYPE)?.as_str()
}

/// The name of KubeVirt's instance type; without one the cores and the memory, as `4vcpu-8Gi`.
fn instance_type(instance: &VirtualMachineInstance) -> Option<String> {
    let named = TYPE_NAMES.iter().find_map(|key| instance.annotations().get(*key)).cloned();
    named.or_else(|| size(instance.spec.rest.get("domain")?.as_object()?))
}

fn size(domain: &Map<String, Value>) -> Option<String> {
    let cpu = domain.get("cpu")?;
    let cores = ["sockets", "cores", "threads"].iter().map(|part| cpu[part].as_u64().unwrap_or(1).max(1));
    let cores = cores.fold(1, u64::saturating_mul);
    let of_resources = |kind: &str| domain.get("resources")?.get(kind)?.get("memory")?.as_str();
    let guest = || domain.get("memory")?.get("guest")?.as_str();
    // what a person asked for; Harvester takes its overhead off the memory of the guest
    let memory = of_resources("limits").or_else(guest).or_else(|| of_resources("requests"))?;
    Some(format!("{cores}vcpu-{memory}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn instance(annotations: &Value, spec: &Value, status: &Value) -> VirtualMachineInstance {
        let json =
            json!({"metadata": {"name": "vm-a", "annotations": annotations}, "spec": spec, "status": status});
        let mut instance = serde_json::from_value(json).unwrap();
        trim(&mut instance, &racks());
        instance
    }

    fn racks() -> TopologyLabels {
        TopologyLabels::from([("example.com/host".to_owned(), "kubernetes.io/hostname".to_owned())])
    }

    // docs/contract/cloud-controller-manager.md#N17
    #[rstest]
    #[case::named(json!({"kubevirt.io/cluster-instancetype-name": "u1.large"}), json!({"cpu": {"cores": 4}}), Some("u1.large"))]
    #[case::harvester(json!({}), json!({"cpu": {"cores": 4, "sockets": 1, "threads": 1}, "memory": {"guest": "8092Mi"},
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}}}), Some("4vcpu-8Gi"))]
    #[case::sockets(json!({}), json!({"cpu": {"cores": 2, "sockets": 2}, "memory": {"guest": "4Gi"}}), Some("4vcpu-4Gi"))]
    #[case::no_memory(json!({}), json!({"cpu": {"cores": 2}}), None)]
    #[case::nothing(json!({}), json!({"devices": {}}), None)]
    #[case::no_label(json!({"kubevirt.io/instancetype-name": "a b"}), json!({}), None)]
    fn the_type_of_a_machine_is_its_instance_type_or_its_size(
        #[case] annotations: Value,
        #[case] domain: Value,
        #[case] expected: Option<&str>,
    ) {
        let instance = instance(&annotations, &json!({"domain": domain}), &json!({"phase": "Running"}));
        assert_eq!(InstanceLabels::of(&instance, &racks()).instance_type.as_deref(), expected);
        assert!(instance.spec.rest.keys().all(|key| key == KEPT_TYPE), "nothing else is kept");
    }

    fn running(agent: &str) -> Value {
        json!({"phase": "Running", "conditions": [{"type": "AgentConnected", "status": agent}]})
    }

    #[rstest]
    #[case::runs(running("True"), true)]
    #[case::has_just_started(running("False"), false)]
    #[case::starts(json!({"phase": "Scheduled"}), false)]
    #[case::migrates(json!({"phase": "Running", "migrationState": {"completed": false},
        "conditions": [{"type": "AgentConnected", "status": "True"}]}), false)]
    fn an_instance_has_said_everything_when_its_agent_answers_and_it_stays(
        #[case] status: Value,
        #[case] expected: bool,
    ) {
        assert_eq!(
            InstanceLabels::of(&instance(&json!({}), &json!({}), &status), &racks()).is_complete,
            expected
        );
    }

    #[test]
    fn flags_choose_annotations_and_what_is_no_label_value_is_told_and_left_out() {
        let annotations = json!({"kubernetes.io/hostname": "host-1", "topology.kubernetes.io/zone": "Zone A",
            "topology.kubernetes.io/region": "x".repeat(10_000), "other": "1"});
        let instance = instance(&annotations, &json!({}), &running("True"));
        assert_eq!(instance.annotations().len(), 3);
        let labels = InstanceLabels::of(&instance, &racks());
        assert_eq!(labels.chosen, BTreeMap::from([("example.com/host".to_owned(), "host-1".to_owned())]));
        assert_eq!((labels.zone, labels.region), (None, None));
        assert!(labels.faults[0].contains("is \"Zone A\", which no label can be"), "{:?}", labels.faults);
        assert!(labels.faults[1].len() < 400, "{:?}", labels.faults);
        assert!(!labels.is_complete, "the labels of the Node stay");
    }

    #[test]
    fn of_a_long_value_as_much_is_kept_as_tells_its_fault() {
        let long = "x".repeat(250_000);
        let annotations = json!({"kubevirt.io/instancetype-name": long, "topology.kubernetes.io/zone": long,
            "kubernetes.io/hostname": "ä".repeat(100_000)});
        let instance = instance(&annotations, &json!({}), &running("True"));
        let kept = instance.annotations().values().map(String::capacity).max();
        assert!(kept < Some(500) && kept_type(&instance).unwrap().len() < 300, "{kept:?}");
        let labels = InstanceLabels::of(&instance, &racks());
        assert_eq!((labels.faults.len(), labels.is_complete), (3, false), "{:?}", labels.faults);
        assert_eq!((labels.instance_type, labels.zone, labels.chosen), (None, None, BTreeMap::new()));
    }

    #[test]
    fn an_instance_type_that_is_no_label_value_is_told_and_takes_no_label_away() {
        let annotations = json!({"kubevirt.io/instancetype-name": "a b"});
        let labels = InstanceLabels::of(&instance(&annotations, &json!({}), &running("True")), &racks());
        assert_eq!((labels.instance_type, labels.is_complete), (None, false));
        let told = "the instance type (annotation kubevirt.io/instancetype-name or \
                    kubevirt.io/cluster-instancetype-name) of VirtualMachineInstance vm-a is \"a b\", which no label can be";
        assert!(labels.faults[0].starts_with(told), "{:?}", labels.faults);
    }
}
