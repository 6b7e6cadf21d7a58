//! DaemonSets and Deployments of the guest: the pods that they want, placed and made without schedulers and
//! ReplicaSets between. A pod is made from the template as it is then and never changed; of what the template says of Nodes
//! `nodeSelector` counts, and taints keep nobody away.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Node, Pod, PodTemplateSpec},
};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::pod_is_ready;
use crate::merge_patch;

/// How many pods are wanted, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// One on every Node.
    EveryNode,
    /// So many, each on the Node that has the fewest of them.
    Replicas(usize),
}

/// One DaemonSet or Deployment, as far as its pods go.
#[derive(Clone, Debug)]
pub(super) struct Wants {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    owner: Value,
    template: PodTemplateSpec,
    spread: Spread,
    generation: i64,
    /// The object as read, to compare its status with.
    json: Value,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Create(Value),
    Delete { pod: String },
    PatchStatus(Value),
}

impl Wants {
    pub(super) fn of_daemon_set(set: &DaemonSet) -> Option<Self> {
        let template = set.spec.as_ref()?.template.clone();
        Some(Self::of(set, template, Spread::EveryNode, json!(set)))
    }

    pub(super) fn of_deployment(deployment: &Deployment) -> Option<Self> {
        let spec = deployment.spec.as_ref()?;
        let replicas = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
        Some(Self::of(deployment, spec.template.clone(), Spread::Replicas(replicas), json!(deployment)))
    }

    fn of<K: Resource<DynamicType = ()>>(
        object: &K,
        template: PodTemplateSpec,
        spread: Spread,
        json: Value,
    ) -> Self {
        let mut owner = json!(object.owner_ref(&()));
        owner["controller"] = true.into();
        owner["blockOwnerDeletion"] = true.into();
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            owner,
            template,
            spread,
            generation: object.meta().generation.unwrap_or_default(),
            json,
        }
    }

    /// Whether a pod was made for it.
    pub(super) fn owns(&self, pod: &Pod) -> bool {
        pod.owner_references().iter().any(|owner| owner.uid == self.uid)
    }

    /// Whether the template lets its pods be on this Node.
    pub(super) fn selects(&self, node: &Node) -> bool {
        let selector = self.template.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
        selector.into_iter().flatten().all(|(key, value)| node.labels().get(key) == Some(value))
    }

    fn pod(&self, name: &str, node: &str) -> Value {
        let metadata = self.template.metadata.clone().unwrap_or_default();
        let mut spec = json!(self.template.spec);
        spec["nodeName"] = node.into();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": metadata.labels,
                "annotations": metadata.annotations, "ownerReferences": [self.owner]},
            "spec": spec,
        })
    }
}

/// The steps that bring its pods and its status to what it wants. `nodes` are those whose VMs run and that it selects; `pods`
/// are all that it owns.
pub(super) fn decide(wants: &Wants, nodes: &BTreeSet<String>, pods: &[&Pod]) -> Vec<Step> {
    let node_of = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let mut steps = Vec::new();
    let names: BTreeSet<_> = pods.iter().map(|pod| pod.name_any()).collect();
    let wanted = match wants.spread {
        Spread::EveryNode => {
            for node in nodes {
                let name = format!("{}-{node}", wants.name);
                if !names.contains(&name) {
                    steps.push(Step::Create(wants.pod(&name, node)));
                }
            }
            nodes.len()
        }
        Spread::Replicas(count) => {
            let mut on: BTreeMap<&String, usize> = nodes.iter().map(|node| (node, 0)).collect();
            for pod in pods {
                if let Some(count) = on.get_mut(&node_of(pod)) {
                    *count += 1;
                }
            }
            let free =
                (0..).map(|index| format!("{}-{index}", wants.name)).filter(|name| !names.contains(name));
            for name in free.take(count.saturating_sub(pods.len())) {
                let Some(node) = on.iter().min_by_key(|(_, count)| **count).map(|(node, _)| *node) else {
                    break;
                };
                on.entry(node).and_modify(|count| *count += 1);
                steps.push(Step::Create(wants.pod(&name, node)));
            }
            // those that serve nobody go first, then the youngest
            let mut surplus: Vec<_> = pods.iter().map(|pod| (!pod_is_ready(pod), pod.name_any())).collect();
            surplus.sort();
            let gone = surplus.into_iter().rev().take(pods.len().saturating_sub(count));
            steps.extend(gone.map(|(_, pod)| Step::Delete { pod }));
            count
        }
    };
    let ready = pods.iter().filter(|pod| pod_is_ready(pod)).count();
    let status = merge_patch::needed(&wants.json, status(wants, wanted, pods.len(), ready));
    steps.extend(status.map(Step::PatchStatus));
    steps
}

fn status(wants: &Wants, wanted: usize, there: usize, ready: usize) -> Value {
    match wants.spread {
        Spread::EveryNode => json!({"status": {
            "desiredNumberScheduled": wanted, "currentNumberScheduled": there, "updatedNumberScheduled": there,
            "numberReady": ready, "numberAvailable": ready, "numberMisscheduled": 0,
            "observedGeneration": wants.generation}}),
        Spread::Replicas(_) => {
            let available = if ready >= wanted { "True" } else { "False" };
            json!({"status": {
                "replicas": there, "updatedReplicas": there, "readyReplicas": ready, "availableReplicas": ready,
                "observedGeneration": wants.generation,
                "conditions": [{"type": "Available", "status": available, "reason": "PodsReady", "message": ""}]}})
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn deployment(replicas: usize) -> Wants {
        let json = json!({"metadata": {"name": "api", "namespace": "shop", "uid": "d"},
            "spec": {"replicas": replicas, "selector": {}, "template": {
                "metadata": {"labels": {"app": "api"}}, "spec": {"containers": [{"name": "api"}]}}}});
        Wants::of_deployment(&serde_json::from_value(json).unwrap()).unwrap()
    }

    fn daemon_set() -> Wants {
        let json = json!({"metadata": {"name": "agent", "namespace": "shop", "uid": "d"},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "agent"}]}}}});
        Wants::of_daemon_set(&serde_json::from_value(json).unwrap()).unwrap()
    }

    fn pod(name: &str, node: &str, ready: &str) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
        )
        .unwrap()
    }

    fn texts(steps: &[Step]) -> Vec<String> {
        let text = |step: &Step| match step {
            Step::Create(pod) => Some(format!(
                "+{}@{}",
                pod["metadata"]["name"].as_str().unwrap(),
                pod["spec"]["nodeName"].as_str().unwrap()
            )),
            Step::Delete { pod } => Some(format!("-{pod}")),
            Step::PatchStatus(_) => None,
        };
        steps.iter().filter_map(text).collect()
    }

    fn nodes() -> BTreeSet<String> {
        ["n1", "n2"].map(str::to_owned).into()
    }

    #[rstest]
    #[case::fresh(3, &[], &["+api-0@n1", "+api-1@n2", "+api-2@n1"])]
    #[case::one_is_gone(3, &[("api-1", "n1", "True"), ("api-2", "n1", "True")], &["+api-0@n2"])]
    #[case::scaled_down(1, &[("api-0", "n1", "True"), ("api-1", "n2", "True")], &["-api-1"])]
    #[case::the_unready_goes_first(1, &[("api-0", "n1", "False"), ("api-1", "n2", "True")], &["-api-0"])]
    #[case::enough(1, &[("api-0", "n1", "True")], &[])]
    fn a_deployment_has_so_many_pods_spread_over_nodes(
        #[case] replicas: usize,
        #[case] pods: &[(&str, &str, &str)],
        #[case] expected: &[&str],
    ) {
        let pods: Vec<_> = pods.iter().map(|(name, node, ready)| pod(name, node, ready)).collect();
        let pods: Vec<_> = pods.iter().collect();
        assert_eq!(texts(&decide(&deployment(replicas), &nodes(), &pods)), expected);
    }

    #[test]
    fn a_daemon_set_has_a_pod_on_every_node() {
        let there = pod("agent-n1", "n1", "True");
        assert_eq!(texts(&decide(&daemon_set(), &nodes(), &[&there])), ["+agent-n2@n2"]);
    }

    #[rstest]
    #[case::it_has_none(json!({}), true)]
    #[case::that_it_carries(json!({"zone": "a"}), true)]
    #[case::of_another_value(json!({"zone": "b"}), false)]
    #[case::one_of_two(json!({"zone": "a", "disk": "fast"}), false)]
    fn a_node_is_selected_by_its_labels(#[case] selector: Value, #[case] expected: bool) {
        let json = json!({"metadata": {"name": "agent"}, "spec": {"selector": {},
            "template": {"spec": {"containers": [{"name": "agent"}], "nodeSelector": selector}}}});
        let wants = Wants::of_daemon_set(&serde_json::from_value(json).unwrap()).unwrap();
        let node = serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a"}}}));
        assert_eq!(wants.selects(&node.unwrap()), expected);
    }

    #[test]
    fn a_status_that_says_so_already_is_not_written_again() {
        let there = pod("api-0", "n1", "True");
        let mut wants = deployment(1);
        let steps = decide(&wants, &nodes(), &[&there]);
        let [Step::PatchStatus(patch)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(patch["status"]["readyReplicas"], 1);
        json_patch::merge(&mut wants.json, patch);
        assert_eq!(decide(&wants, &nodes(), &[&there]), []);
    }

    #[test]
    fn without_nodes_nothing_is_made() {
        assert_eq!(texts(&decide(&deployment(2), &BTreeSet::new(), &[])), Vec::<String>::new());
    }
}
