//! The taints of Nodes, as Kubernetes' node lifecycle controller keeps them: what a Node says of itself, told to
//! schedulers and to readers of `kubectl describe node`.
//!
//! No cluster here runs that controller, the real ones neither: it would believe the Leases of kubelets, and hosts have
//! none. Pods are not evicted.

use controller_kit::{Action, Cache, ObjectKey, Queue};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use program::{Clock, TaskGroup};
use serde_json::{Value, json};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const KEYS: [&str; 3] = [NOT_READY, UNREACHABLE, UNSCHEDULABLE];

/// The patch that gives a Node the taints of its condition and keeps those of others, if it has not. A Node without
/// condition keeps what it has: nobody plays its kubelet.
fn decide(node: &Node, now: &str) -> Option<Value> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let spec = node.spec.clone().unwrap_or_default();
    let mut wanted = match ready.status.as_str() {
        "True" => vec![],
        "False" => vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
        _ => vec![(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
    };
    if spec.unschedulable == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let taints = spec.taints.unwrap_or_default();
    let is = |taint: &Taint, (key, effect): &(&str, &str)| taint.key == *key && taint.effect == *effect;
    let stays =
        |taint: &&Taint| !KEYS.contains(&&*taint.key) || wanted.iter().any(|wanted| is(taint, wanted));
    let missing = |wanted: &&(&str, &str)| !taints.iter().any(|taint| is(taint, wanted));
    let added = wanted
        .iter()
        .filter(missing)
        .map(|(key, effect)| json!({"key": key, "effect": effect, "timeAdded": now}));
    let before: Vec<_> = taints.iter().map(|taint| json!(taint)).collect();
    let after: Vec<_> = taints.iter().filter(stays).map(|taint| json!(taint)).chain(added).collect();
    // a list is written whole: only over the one that was read
    let version = &node.metadata.resource_version;
    (after != before).then(|| json!({"metadata": {"resourceVersion": version}, "spec": {"taints": after}}))
}

/// Keeps the taints of `nodes` until `tasks` ends.
pub(crate) fn start(tasks: &TaskGroup, client: &Client, nodes: &Cache<Node>, clock: Clock) {
    let queue = Queue::<ObjectKey>::new();
    let add = queue.clone();
    nodes.on_change(move |change| add.add(change.key.clone()));
    let (api, nodes) = (Api::<Node>::all(client.clone()), nodes.clone());
    queue.run(tasks, 1, move |key| {
        let (api, nodes) = (api.clone(), nodes.clone());
        async move {
            let patch = nodes.get(&key).and_then(|node| decide(&node, &clock.now_text()));
            let Some(patch) = patch else { return Ok(Action::AwaitChange) };
            match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(node) => drop(nodes.wrote(node)),
                // the watch tells of what came before us
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                Err(error) => return Err(error),
            }
            Ok(Action::AwaitChange)
        }
    });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: &str = "2026-11-21T12:00:00Z";

    fn node(ready: Option<&str>, cordoned: bool, taints: &[&str]) -> Value {
        let taints = taints.iter().map(|taint| {
            let (key, effect) = taint.split_once(':').unwrap();
            json!({"key": key, "effect": effect})
        });
        let ready = ready.map(|status| json!([{"type": "Ready", "status": status}]));
        json!({"metadata": {"name": "guest-1", "resourceVersion": "7"}, "status": {"conditions": ready},
            "spec": {"unschedulable": cordoned, "taints": taints.collect::<Vec<_>>()}})
    }

    const FRESH: &str = "node.kubernetes.io/not-ready:NoSchedule";
    const FOREIGN: &str = "node.cloudprovider.kubernetes.io/uninitialized:NoSchedule";
    const CORDONED: &str = "node.kubernetes.io/unschedulable:NoSchedule";

    #[rstest]
    #[case::ready(Some("True"), false, &[FOREIGN, FRESH], &[FOREIGN])]
    #[case::not_ready(Some("False"), false, &[FRESH], &[FRESH, "node.kubernetes.io/not-ready:NoExecute"])]
    #[case::silent(Some("Unknown"), false, &[FRESH, FOREIGN],
        &[FOREIGN, "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"])]
    #[case::cordoned(Some("True"), true, &[], &[CORDONED])]
    #[case::uncordoned(Some("True"), false, &[CORDONED], &[])]
    #[case::nobody_plays_its_kubelet(None, true, &[FRESH], &[FRESH])]
    fn taints_follow_what_a_node_says_of_itself(
        #[case] ready: Option<&str>,
        #[case] cordoned: bool,
        #[case] before: &[&str],
        #[case] after: &[&str],
    ) {
        let mut json = node(ready, cordoned, before);
        let read = |json: &Value| serde_json::from_value(json.clone()).unwrap();
        if let Some(patch) = decide(&read(&json), NOW) {
            assert_eq!(patch["metadata"]["resourceVersion"], "7", "only over what was read");
            json_patch::merge(&mut json, &patch);
        }
        let taints = json["spec"]["taints"].as_array().unwrap().iter();
        let seen: Vec<_> =
            taints.map(|taint| format!("{}:{}", taint["key"], taint["effect"]).replace('"', "")).collect();
        assert_eq!(seen, after);
        assert_eq!(decide(&read(&json), "2026-11-21T13:00:00Z"), None, "nothing moves");
    }
}
