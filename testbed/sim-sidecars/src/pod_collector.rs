//! Removes the pods of nodes of which somebody has vouched that nothing runs there any more: what the eviction by taints and
//! the collection of terminating pods of kube-controller-manager come to together.

use std::sync::Arc;

use controller_kit::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
};
use program::TaskGroup;
use sim_harvester::guest::OUT_OF_SERVICE;

use crate::{
    retries,
    scheduler::tolerates,
    world::{Problem, World, node_of},
};

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let items = |world: &World| {
        let pods = world.pods.list().into_iter().filter(|pod| is_lost(world, pod));
        pods.map(|pod| ObjectKey::of(&*pod)).collect()
    };
    retries::start(world, tasks, items, |world, key| async move { collect(&world, &key).await });
}

fn is_lost(world: &World, pod: &Pod) -> bool {
    let node = node_of(pod).and_then(|node| world.nodes.get(&ObjectKey::new("", node)));
    node.is_some_and(|node| is_lost_with(&node, pod))
}

/// Whether a pod goes with its node. A node that is ready keeps its pods, whatever somebody says of it: its kubelet ends them.
fn is_lost_with(node: &Node, pod: &Pod) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.filter(|one| one.type_ == "Ready").any(|one| one.status == "True");
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taint = taints.find(|taint| taint.key == OUT_OF_SERVICE && taint.effect == "NoExecute");
    taint.is_some_and(|taint| !is_ready && !tolerates(pod, taint))
}

async fn collect(world: &World, key: &ObjectKey) -> Result<(), Problem> {
    let Some(pod) = world.pods.get(key).filter(|pod| is_lost(world, pod)) else { return Ok(()) };
    let only = Preconditions { uid: pod.uid(), resource_version: None };
    // nobody is there who would end its containers
    let how = DeleteParams { preconditions: Some(only), ..DeleteParams::default() }.grace_period(0);
    match Api::<Pod>::namespaced(world.guest.clone(), &key.namespace).delete(&key.name, &how).await {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        answer => Ok(answer.map(drop)?),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::vouched_for(OUT_OF_SERVICE, "NoExecute", "Unknown", json!([]), true)]
    #[case::only_silent("other", "NoExecute", "Unknown", json!([]), false)]
    #[case::only_not_for_new_ones(OUT_OF_SERVICE, "NoSchedule", "Unknown", json!([]), false)]
    #[case::ready(OUT_OF_SERVICE, "NoExecute", "True", json!([]), false)]
    #[case::tolerant(OUT_OF_SERVICE, "NoExecute", "Unknown", json!([{"operator": "Exists"}]), false)]
    fn a_pod_goes_with_a_node_that_somebody_has_vouched_for(
        #[case] key: &str,
        #[case] effect: &str,
        #[case] ready: &str,
        #[case] tolerations: Value,
        #[case] expected: bool,
    ) {
        let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": effect}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "tolerations": tolerations}});
        let is_lost =
            is_lost_with(&serde_json::from_value(node).unwrap(), &serde_json::from_value(pod).unwrap());
        assert_eq!(is_lost, expected);
    }
}
