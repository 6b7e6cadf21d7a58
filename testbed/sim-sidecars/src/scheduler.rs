//! Gives a pod a node that has room for its volumes, after its claims have theirs; a claim that waits for its first pod is
//! told the node first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controller_kit::ObjectKey;
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{Api, ResourceExt, api::PostParams};
use program::TaskGroup;
use serde_json::json;

use crate::{
    binder::SELECTED_NODE,
    retries,
    world::{Problem, World, is_going, is_over, node_of, patch, used},
};

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let items = |world: &World| {
        let pods = world.pods.list().into_iter().filter(|pod| node_of(pod).is_none());
        pods.map(|pod| ObjectKey::of(&*pod)).collect()
    };
    retries::start(world, tasks, items, |world, key| async move { schedule(&world, &key).await });
}

async fn schedule(world: &World, key: &ObjectKey) -> Result<(), Problem> {
    let Some(pod) = world.pods.get(key).filter(|pod| node_of(pod).is_none() && !is_going(&**pod)) else {
        return Ok(());
    };
    let (nodes, pods) = (world.nodes.list(), world.pods.list());
    let mut load: BTreeMap<&str, usize> = BTreeMap::new();
    pods.iter().filter_map(|pod| node_of(pod)).for_each(|node| *load.entry(node).or_default() += 1);
    let fitting = nodes.iter().filter(|node| fits(node, &pod)).map(|node| node.name_any());
    let fitting = fitting.filter(|node| has_room(world, node, &pod, &pods));
    let Some(node) =
        fitting.min_by_key(|name| (load.get(name.as_str()).copied().unwrap_or_default(), name.clone()))
    else {
        world.warn(&*pod, "FailedScheduling", format!("0/{} nodes are available", nodes.len()));
        return Ok(());
    };
    for used in used(&pod) {
        let Some(claim) = world.claims.get(&used.claim) else {
            let why = format!("persistentvolumeclaim \"{}\" not found", used.claim.name);
            world.warn(&*pod, "FailedScheduling", why);
            return Ok(());
        };
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") {
            continue;
        }
        let class = world.class_of(&claim);
        let waits =
            class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        if !waits {
            world.warn(
                &*pod,
                "FailedScheduling",
                "pod has unbound immediate PersistentVolumeClaims".to_owned(),
            );
        } else if !claim.annotations().contains_key(SELECTED_NODE) {
            let choice = json!({"metadata": {"annotations": {SELECTED_NODE: node}}});
            let claims = world.claims_in(&used.claim.namespace);
            patch(&claims, &world.claims, &used.claim.name, choice).await?;
        }
        return Ok(());
    }
    let api = Api::<Pod>::namespaced(world.guest.clone(), &key.namespace);
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
    let binding = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": key.name, "namespace": key.namespace}, "target": target});
    let how = PostParams::default();
    let bound = api.create_subresource::<_, serde_json::Value>("binding", &key.name, &how, &binding);
    match bound.await {
        // the simulated server has no bindings
        Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 405 => {
            Ok(patch(&api, &world.pods, &key.name, json!({"spec": {"nodeName": node}})).await?)
        }
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
        answer => Ok(answer.map(drop)?),
    }
}

/// Whether the node is ready, has what the pod selects, and no taint that the pod does not tolerate.
fn fits(node: &Node, pod: &Pod) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.filter(|one| one.type_ == "Ready").any(|one| one.status == "True");
    let spec = pod.spec.as_ref();
    let selector = spec.and_then(|spec| spec.node_selector.clone()).unwrap_or_default();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    is_ready
        && selector.iter().all(|(key, value)| node.labels().get(key) == Some(value))
        && taints.filter(|taint| taint.effect != "PreferNoSchedule").all(|taint| tolerates(pod, taint))
}

/// Whether the node takes the volumes of the pod beside those of its own pods. All volumes are of this driver.
fn has_room(world: &World, node: &str, pod: &Pod, pods: &[Arc<Pod>]) -> bool {
    let most = world.csi_nodes.get(&ObjectKey::new("", node)).and_then(|known| {
        let driver = known.spec.drivers.iter().find(|driver| driver.name == CSI_DRIVER)?;
        usize::try_from(driver.allocatable.as_ref()?.count?).ok()
    });
    let there = pods.iter().filter(|other| node_of(other) == Some(node) && !is_over(other));
    let claims: BTreeSet<_> =
        there.flat_map(|other| used(other)).chain(used(pod)).map(|used| used.claim).collect();
    most.is_none_or(|most| claims.len() <= most)
}

pub(crate) fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.any(|one| {
        let same_effect = one.effect.as_ref().is_none_or(|effect| *effect == taint.effect);
        let same_key = one.key.as_ref().is_none_or(|key| *key == taint.key);
        let exists = one.operator.as_deref() == Some("Exists");
        same_effect && same_key && (exists || (one.key.is_some() && one.value == taint.value))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain(json!({"containers": []}), json!({}), "True", true)]
    #[case::not_ready(json!({"containers": []}), json!({}), "Unknown", false)]
    #[case::tainted(json!({"containers": []}), json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}), "True", false)]
    #[case::tolerated(json!({"containers": [], "tolerations": [{"operator": "Exists"}]}),
        json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}), "True", true)]
    #[case::preferred(json!({"containers": []}), json!({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}), "True", true)]
    #[case::elsewhere(json!({"containers": [], "nodeSelector": {"zone": "b"}}), json!({}), "True", false)]
    fn a_pod_goes_where_it_fits(
        #[case] pod: serde_json::Value,
        #[case] node: serde_json::Value,
        #[case] ready: &str,
        #[case] expected: bool,
    ) {
        let node = json!({"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": node,
            "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let pod = json!({"metadata": {"name": "p"}, "spec": pod});
        let fits = fits(&serde_json::from_value(node).unwrap(), &serde_json::from_value(pod).unwrap());
        assert_eq!(fits, expected);
    }
}
