//! While Harvester's objects cannot be listed, the program does nothing for Services and Nodes that need them: here
//! these are told so, and why.
//!
//! A cloud-config with the wrong namespace, an expired token or a server that is not there would otherwise show in the
//! log only, where the owner of a Service does not look.

use std::{collections::HashSet, future::Future, time::Duration};

use cloud_provider::{FINALIZER, LoadBalancers, asks_for_another_class, asks_for_balancer, waits_for_cloud};
use controller_kit::{Cache, EventType, RawObject, Recorder};
use harvester_api::{LoadBalancer, names};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Service};
use kube::{Resource, ResourceExt};
use program::http::Health;
use tokio::time::timeout;

use crate::{balancers::Balancers, machines::Machines};

/// A list that takes longer than this has a reason that people should know.
const PATIENCE: Duration = Duration::from_secs(10);
/// Objects that came meanwhile, and another reason, are told after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// A kind of Harvester that cannot be listed, and why.
pub(crate) type Trouble = (&'static str, String);

/// An Event: about what, its reason and its message.
type Told = (ObjectReference, &'static str, String);

/// Who tells, and where health is reported.
pub(crate) struct Outage {
    /// Of the cloud-config.
    pub(crate) namespace: String,
    pub(crate) recorder: Recorder,
    pub(crate) health: Health,
}

impl Outage {
    /// Waits until `objects` are listed; while they are not, every Service is told that waits for an address, or to
    /// be rid of its balancer.
    pub(crate) async fn of_balancers(
        &self,
        objects: &Cache<RawObject<LoadBalancer>>,
        services: &Cache<Service>,
    ) {
        let troubles = || objects.trouble().map(|why| ("LoadBalancers", why)).into_iter().collect();
        let concerned = |why: &str| {
            let about = |service: &Service| Some(failed_sync(service, hindered(service)?, why));
            services.list().iter().filter_map(|service| about(service)).collect()
        };
        self.watch("harvester", objects.ready(), troubles, concerned).await;
    }

    /// Waits until the VMs are listed; while they are not, Services on the host path wait for their balancers.
    pub(crate) async fn of_backends(
        &self,
        machines: &Machines,
        balancers: &Balancers,
        services: &Cache<Service>,
    ) {
        let is_held = |service: &Service| {
            asks(service)
                && service.metadata.deletion_timestamp.is_none()
                && balancers.view(service, &[]).held
        };
        let concerned = |why: &str| {
            let held = services.list().into_iter().filter(|service| is_held(service));
            held.map(|service| failed_sync(&service, ENSURE, why)).collect()
        };
        self.watch("services on the host path", machines.ready(), || machines.troubles(), concerned).await;
    }

    /// Waits until the VMs are listed; while they are not, new Nodes wait for what only their VMs can tell.
    pub(crate) async fn of_nodes(&self, machines: &Machines, nodes: &Cache<Node>) {
        let concerned = |why: &str| {
            let waiting = nodes.list().into_iter().filter(|node| waits_for_cloud(node));
            let message = |node: &Node| format!("node {} waits for its VM: {why}", node.name_any());
            waiting.map(|node| (node.object_ref(&()), "MachinesNotListed", message(&node))).collect()
        };
        self.watch("nodes", machines.ready(), || machines.troubles(), concerned).await;
    }

    /// Waits for `listed`. `name` is what does not work meanwhile, `concerned` who is told the reason.
    async fn watch(
        &self,
        name: &'static str,
        listed: impl Future<Output = ()>,
        troubles: impl Fn() -> Vec<Trouble>,
        concerned: impl Fn(&str) -> Vec<Told>,
    ) {
        self.health.wrong(name, "what is in Harvester is not listed yet");
        tokio::pin!(listed);
        let (mut told, mut patience) = (HashSet::new(), PATIENCE);
        while timeout(patience, &mut listed).await.is_err() {
            patience = LOOK_AGAIN;
            let Some(why) = sentence(&self.namespace, &troubles()) else { continue };
            tracing::error!(hindered = name, "{why}");
            self.health.wrong(name, why.clone());
            for (about, reason, message) in concerned(&why) {
                if told.insert((about.uid.clone(), message.clone())) {
                    self.recorder.publish(&about, EventType::Warning, reason, &message);
                }
            }
        }
        self.health.right(name);
    }
}

/// In the words of Kubernetes' own service controller.
const ENSURE: &str = "failed to ensure load balancer";
const DELETE: &str = "failed to delete load balancer";

fn failed_sync(service: &Service, what: &str, why: &str) -> Told {
    let message = format!("Error syncing load balancer: {what}: {why}");
    (service.object_ref(&()), "SyncLoadBalancerFailed", message)
}

/// Everything that hinders, and what to do about it.
fn sentence(namespace: &str, troubles: &[Trouble]) -> Option<String> {
    let each = |(kind, why): &Trouble| {
        format!("{kind} in namespace {namespace} of Harvester cannot be listed: {why}")
    };
    let all: Vec<_> = troubles.iter().map(each).collect();
    (!all.is_empty()).then(|| {
        format!(
            "{}; correct the cloud-config of the cloud controller manager, or what it may do in Harvester",
            all.join("; ")
        )
    })
}

/// What a Service waits for that cannot be; others go on as they are.
fn hindered(service: &Service) -> Option<&'static str> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let has_address =
        status.and_then(|balancer| balancer.ingress.as_ref()).is_some_and(|list| !list.is_empty());
    let asks = asks(service);
    if asks && service.metadata.deletion_timestamp.is_none() {
        return (!has_address).then_some(ENSURE);
    }
    let foreign = asks_for_another_class(service, Some(names::LOAD_BALANCER_CLASS));
    let finalized = service.finalizers().iter().any(|name| name == FINALIZER);
    (finalized && !foreign).then_some(DELETE)
}

fn asks(service: &Service) -> bool {
    asks_for_balancer(service, Some(names::LOAD_BALANCER_CLASS))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn served() -> Value {
        json!({"metadata": {"name": "web", "namespace": "shop", "finalizers": [FINALIZER]},
            "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.1"}]}}})
    }

    fn with(mut service: Value, pointer: &str, key: &str, value: Value) -> Value {
        service.pointer_mut(pointer).unwrap()[key] = value;
        service
    }

    #[rstest]
    #[case::served(served(), None)]
    #[case::without_address(with(served(), "", "status", Value::Null), Some(ENSURE))]
    #[case::new(json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer"}}), Some(ENSURE))]
    #[case::of_our_class(json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": names::LOAD_BALANCER_CLASS}}),
        Some(ENSURE))]
    #[case::never_ours(json!({"metadata": {"name": "web"}, "spec": {"type": "ClusterIP"}}), None)]
    // contract 13
    #[case::going(with(served(), "/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z")), Some(DELETE))]
    #[case::of_another_type(with(served(), "/spec", "type", json!("ClusterIP")), Some(DELETE))]
    #[case::of_another_class(with(served(), "/spec", "loadBalancerClass", json!("example.com/other")), None)]
    #[case::going_and_never_served(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"type": "LoadBalancer"}}), None)]
    fn a_service_is_hindered_in_what_it_waits_for(
        #[case] service: Value,
        #[case] expected: Option<&'static str>,
    ) {
        assert_eq!(hindered(&serde_json::from_value(service).unwrap()), expected);
    }

    #[test]
    fn a_sentence_names_every_kind_and_what_to_do() {
        assert_eq!(sentence("team-a", &[]), None);
        let told = sentence("team-a", &[("VirtualMachines", "no rights".into()), ("Others", "gone".into())]);
        assert_eq!(
            told.unwrap(),
            "VirtualMachines in namespace team-a of Harvester cannot be listed: no rights; Others in namespace team-a of \
             Harvester cannot be listed: gone; correct the cloud-config of the cloud controller manager, or what it may do \
             in Harvester"
        );
    }
}
