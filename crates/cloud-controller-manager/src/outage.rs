//! While Harvester's objects cannot be listed, the program does nothing for Services: here they are told so, and why.
//!
//! A cloud-config with the wrong namespace, an expired token or a server that is not there would otherwise show in the
//! log only, where the owner of a Service does not look.

use std::{collections::HashSet, time::Duration};

use cloud_provider::asks_for_balancer;
use controller_kit::{Cache, EventKind, Kept, Recorder, http::Health};
use harvester_api::{LoadBalancer, names};
use k8s_openapi::api::core::v1::Service;
use kube::{Resource, ResourceExt};
use tokio::time::timeout;

/// A list that takes longer than this has a reason that people should know.
const PATIENCE: Duration = Duration::from_secs(10);
/// Services that came meanwhile, and another reason, are told after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Waits until `objects`, those of `namespace`, are listed, and tells `services` while they are not.
pub(crate) async fn listed(
    objects: &Cache<Kept<LoadBalancer>>,
    namespace: &str,
    services: &Cache<Service>,
    recorder: &Recorder,
    health: &Health,
) {
    health.wrong("harvester", "LoadBalancers are not listed yet");
    let (mut told, mut patience) = (HashSet::new(), PATIENCE);
    while timeout(patience, objects.ready()).await.is_err() {
        patience = LOOK_AGAIN;
        let Some(trouble) = objects.trouble() else { continue };
        let why = format!(
            "LoadBalancers in namespace {namespace} of Harvester cannot be listed: {trouble}; correct the cloud-config of \
             the cloud controller manager, or what it may do in Harvester"
        );
        tracing::error!("{why}");
        health.wrong("harvester", why.clone());
        let message = format!("Error syncing load balancer: failed to ensure load balancer: {why}");
        for service in services.list().iter().filter(|service| waits(service)) {
            if told.insert((service.uid(), why.clone())) {
                let about = service.object_ref(&());
                recorder.publish(&about, EventKind::Warning, "SyncLoadBalancerFailed", &message);
            }
        }
    }
    health.right("harvester");
}

/// Whether a Service wants an address and has none: others go on as they are.
fn waits(service: &Service) -> bool {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let has_address =
        status.and_then(|balancer| balancer.ingress.as_ref()).is_some_and(|list| !list.is_empty());
    asks_for_balancer(service, Some(names::LOAD_BALANCER_CLASS)) && !has_address
}
