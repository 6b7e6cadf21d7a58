//! Guest clusters that are being removed: their load balancers go with them.

use controller_kit::{Action, Cache, Change, ObjectKey, RawObject};
use harvester_api::{LoadBalancer, annotations, labels, names};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Preconditions},
};

use crate::caches::VmMetadata;

/// A failure after which the queue tries again.
#[derive(Debug, thiserror::Error)]
#[error("delete load balancer {key} of the removed guest cluster {cluster}")]
pub(crate) struct Error {
    key: ObjectKey,
    cluster: String,
    source: kube::Error,
}

/// The guest cluster, by namespace and name, that is removed with this VM: the node driver made the VM, it is deleted,
/// and Rancher has marked its volumes for removal. Any number of guest clusters of a namespace have the default name, and one
/// that is removed takes nothing of the others along.
pub(crate) fn removed_cluster(change: &Change<VmMetadata>) -> Option<ObjectKey> {
    let vm = change.new.as_ref().or(change.old.as_ref())?;
    let marked = vm.annotations().get(annotations::REMOVE_ALL_PVCS).is_some_and(|value| value == "true");
    let is_node_drivers =
        vm.labels().get(labels::CREATOR).is_some_and(|creator| creator == labels::NODE_DRIVER);
    let cluster = vm.labels().get(labels::GUEST_CLUSTER)?;
    if cluster.is_empty() || cluster == names::DEFAULT_CLUSTER_NAME {
        return None;
    }
    let deleted = change.new.is_none() || vm.meta().deletion_timestamp.is_some();
    (marked && is_node_drivers && deleted).then(|| ObjectKey::new(&change.key.namespace, cluster))
}

/// Deletes the load balancers of a guest cluster that is being removed, those of type vm too: the Go program left them
/// (docs/contract/data-paths.md#row-13).
///
/// # Errors
/// Those that may pass.
pub(crate) async fn reconcile_removed_cluster(
    client: Client,
    load_balancers: Cache<RawObject<LoadBalancer>>,
    key: ObjectKey,
) -> Result<Action, Error> {
    let (namespace, cluster) = (key.namespace.as_str(), key.name.as_str());
    let all = load_balancers.list_in(namespace);
    let of_cluster = all.iter().filter(|lb| {
        lb.labels().get(labels::CLUSTER).is_some_and(|name| name == cluster)
            && lb.meta().deletion_timestamp.is_none()
    });
    let mut failed = None;
    for lb in of_cluster {
        tracing::info!(load_balancer = %ObjectKey::of(&***lb), cluster, "its guest cluster is being removed: deleted");
        let preconditions = Preconditions { uid: lb.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api = Api::<LoadBalancer>::namespaced(client.clone(), namespace);
        match api.delete(&lb.name_any(), &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(source) => {
                let (key, cluster) = (ObjectKey::of(&***lb), cluster.to_owned());
                // one that may not be deleted keeps no other
                failed.get_or_insert(Error { key, cluster, source });
            }
        }
    }
    failed.map_or(Ok(Action::AwaitChange), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn vm(annotation: &str, creator: &str, deleted: Option<&str>) -> VmMetadata {
        of_cluster("gc1", annotation, creator, deleted)
    }

    fn of_cluster(cluster: &str, annotation: &str, creator: &str, deleted: Option<&str>) -> VmMetadata {
        serde_json::from_value(json!({"metadata": {"name": "gc1-1", "namespace": "team",
            "deletionTimestamp": deleted, "annotations": {annotations::REMOVE_ALL_PVCS: annotation},
            "labels": {labels::CREATOR: creator, labels::GUEST_CLUSTER: cluster}}}))
        .unwrap()
    }

    // docs/contract/load-balancer.md#S-6
    #[rstest]
    #[case::removed(vm("true", labels::NODE_DRIVER, Some("2026-01-01T00:00:00Z")), true)]
    #[case::still_there(vm("true", labels::NODE_DRIVER, None), false)]
    #[case::one_vm_of_many(vm("", labels::NODE_DRIVER, Some("2026-01-01T00:00:00Z")), false)]
    #[case::not_a_guest_cluster(vm("true", "terraform", Some("2026-01-01T00:00:00Z")), false)]
    #[case::the_default_name(
        of_cluster("kubernetes", "true", labels::NODE_DRIVER, Some("2026-01-01T00:00:00Z")),
        false
    )]
    fn a_guest_cluster_is_being_removed(#[case] vm: VmMetadata, #[case] expected: bool) {
        let (key, vm) = (ObjectKey::new("team", "gc1-1"), Arc::new(vm));
        let change = Change { key: key.clone(), old: None, new: Some(vm.clone()) };
        assert_eq!(removed_cluster(&change), expected.then(|| ObjectKey::new("team", "gc1")));
        let gone = Change { key, old: Some(vm.clone()), new: None };
        let marked = vm.labels()[labels::GUEST_CLUSTER] == "gc1"
            && vm.labels()[labels::CREATOR] == labels::NODE_DRIVER
            && vm.annotations()[annotations::REMOVE_ALL_PVCS] == "true";
        assert_eq!(removed_cluster(&gone).is_some(), marked);
    }
}
