//! The Nodes that may be backends of a load balancer.

use std::sync::{Arc, Mutex};

use controller_kit::{Cache, Change};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The eligible Nodes in the order of their names, kept current. Cheap to clone.
///
/// A Node counts unless it is being deleted, is excluded by label, or the autoscaler is about to delete it.
/// Readiness does not matter: it comes and goes, and health checks see it sooner.
#[derive(Clone, Default)]
pub(super) struct EligibleNodes(Arc<Mutex<Arc<[Arc<Node>]>>>);

impl EligibleNodes {
    /// Follows `nodes`, and calls `changed` after a change that load balancers depend on.
    pub(super) fn follow(nodes: &Cache<Node>, changed: impl Fn() + Send + Sync + 'static) -> Self {
        let eligible = Self::default();
        let (source, into) = (nodes.clone(), eligible.clone());
        nodes.on_change(move |change| {
            if matters(change) {
                into.look_at(&source);
                changed();
            }
        });
        eligible
    }

    /// The Nodes of this moment.
    pub(super) fn get(&self) -> Arc<[Arc<Node>]> {
        self.0.lock().expect("no panic while swapping").clone()
    }

    /// Lists under the lock: the watch and our own writes report changes at the same time, and the older of two lists
    /// must not replace the newer.
    fn look_at(&self, nodes: &Cache<Node>) {
        let mut eligible = self.0.lock().expect("no panic while swapping");
        *eligible = nodes.list().into_iter().filter(|node| is_eligible(node)).collect();
    }
}

/// Whether a change is about more than a Node's heartbeat.
fn matters(change: &Change<Node>) -> bool {
    let essence = |node: &Option<Arc<Node>>| {
        let node = node.as_ref()?;
        let provider = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        Some((node.uid(), is_eligible(node), provider))
    };
    essence(&change.old) != essence(&change.new)
}

/// Whether the Node may be a backend.
pub fn is_eligible(node: &Node) -> bool {
    let excluded = node.labels().get(EXCLUDED).is_some_and(|value| excludes(value));
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    node.metadata.deletion_timestamp.is_none()
        && !excluded
        && taints.iter().all(|taint| taint.key != AUTOSCALER_TAINT)
}

/// The label is a boolean since Kubernetes 1.34; every other value excludes, as it always did.
fn excludes(value: &str) -> bool {
    !matches!(value, "0" | "f" | "F" | "false" | "FALSE" | "False")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn node(metadata: &Value, spec: &Value) -> Node {
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[rstest]
    #[case::plain(json!({"name": "a"}), json!({}), true)]
    #[case::excluded(json!({"labels": {EXCLUDED: "true"}}), json!({}), false)]
    #[case::excluded_by_presence(json!({"labels": {EXCLUDED: ""}}), json!({}), false)]
    #[case::not_excluded(json!({"labels": {EXCLUDED: "false"}}), json!({}), true)]
    #[case::going(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({}), false)]
    #[case::condemned(json!({}), json!({"taints": [{"key": AUTOSCALER_TAINT, "effect": "NoSchedule"}]}), false)]
    #[case::tainted_otherwise(json!({}), json!({"taints": [{"key": "other", "effect": "NoSchedule"}]}), true)]
    fn eligibility(#[case] metadata: Value, #[case] spec: Value, #[case] expected: bool) {
        assert_eq!(is_eligible(&node(&metadata, &spec)), expected);
    }

    #[test]
    fn no_change_is_lost_when_several_come_at_once() {
        const ROUNDS: usize = 1000;
        let (nodes, names) = (Cache::empty(), ["a", "b", "c", "d"]);
        let eligible = EligibleNodes::follow(&nodes, || ());
        let (begin, end) = (Barrier::new(names.len() + 1), Barrier::new(names.len() + 1));
        let change = |name: &str, round: usize| {
            let labels = json!({EXCLUDED: if round.is_multiple_of(2) { "false" } else { "true" }});
            let metadata = json!({"name": name, "resourceVersion": round.to_string(), "labels": labels});
            nodes.wrote(node(&metadata, &json!({})));
        };
        let lost = std::thread::scope(|scope| {
            for name in names {
                let (begin, end, change) = (&begin, &end, &change);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        begin.wait();
                        change(name, round);
                        end.wait();
                    }
                });
            }
            let wrong = |round: &usize| {
                begin.wait();
                end.wait();
                eligible.get().len() != if round.is_multiple_of(2) { names.len() } else { 0 }
            };
            (1..=ROUNDS).filter(wrong).count()
        });
        assert_eq!(lost, 0);
    }

    // docs/contract/cloud-controller-manager.md#L27: in the Go program every node event runs a full sync of all
    // Services
    #[test]
    fn a_heartbeat_changes_nothing_for_load_balancers() {
        let before = node(&json!({"name": "a", "uid": "1", "resourceVersion": "1"}), &json!({}));
        let mut after = before.clone();
        after.metadata.resource_version = Some("2".into());
        let change = |old: &Node, new: &Node| Change {
            key: controller_kit::ObjectKey::of(old),
            old: Some(Arc::new(old.clone())),
            new: Some(Arc::new(new.clone())),
        };
        assert!(!matters(&change(&before, &after)));
        after.labels_mut().insert(EXCLUDED.into(), "true".into());
        assert!(matters(&change(&before, &after)));
    }
}
