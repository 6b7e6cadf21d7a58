//! A load balancer for each Service that asks for one.
//!
//! `see` reads caches, `decide` decides, the writer writes; nothing else here talks to a cluster. A reconcile repeats
//! the three until nothing is left to do: the answers to our own writes are in the caches at once, so creating a load
//! balancer takes no detour over the watch.

mod controller;
mod decide;
mod dry_run;
mod eligible;
mod writer;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

pub use controller::ServiceController;
pub use dry_run::{DryRun, dry_run};
use eligible::EligibleNodes;
pub use eligible::is_eligible;

use crate::IngressAddress;

/// Keeps a Service until its load balancer was cleaned up. Kubernetes' own name: a roll-back finds it.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Whether the Service wants a load balancer of `class`: it asks for one of this class or of no class, and nobody has
/// deleted it.
pub fn wants_load_balancer(service: &Service, class: Option<&str>) -> bool {
    asks_for_load_balancer(service, class) && service.metadata.deletion_timestamp.is_none()
}

fn asks_for_load_balancer(service: &Service, class: Option<&str>) -> bool {
    let asked = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    is_of_type_load_balancer(service) && asked.is_none_or(|asked| Some(asked) == class)
}

/// Whether the Service asks for a load balancer of another class. Its controller may use the same finalizer.
fn asks_for_another_class(service: &Service, class: Option<&str>) -> bool {
    is_of_type_load_balancer(service) && !asks_for_load_balancer(service, class)
}

fn is_of_type_load_balancer(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

fn has_finalizer(service: &Service) -> bool {
    service.finalizers().iter().any(|name| name == FINALIZER)
}

/// The Service, without the decision of the cloud. `deleted`: the cloud accepted a deletion of ours since the Service
/// last wanted a load balancer.
fn see(service: &Service, class: Option<&str>, deleted: bool) -> decide::Seen {
    decide::Seen {
        wanted: wants_load_balancer(service, class),
        foreign: asks_for_another_class(service, class),
        deleting: service.metadata.deletion_timestamp.is_some(),
        has_finalizer: has_finalizer(service),
        annotations: service.annotations().clone(),
        labels: service.labels().clone(),
        published: published(service),
        deleted,
        ..decide::Seen::default()
    }
}

/// The entries of `status.loadBalancer.ingress`: the address of each, or its host name where it has no address.
fn published(service: &Service) -> Vec<IngressAddress> {
    let ingress = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|status| status.ingress.as_deref())
        .unwrap_or_default();
    let text = |entry: &k8s_openapi::api::core::v1::LoadBalancerIngress| {
        entry.ip.clone().or_else(|| entry.hostname.clone())
    };
    ingress.iter().filter_map(text).map(|text| IngressAddress::parse(&text)).collect()
}
