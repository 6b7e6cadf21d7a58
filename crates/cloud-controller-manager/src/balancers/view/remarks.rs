//! What the owner of a Service should know about its annotations, though nothing is refused because of it.

use cloud_provider::Notice;
use harvester_api::{LoadBalancer, annotations};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::{
    data_path::DataPath,
    wishes::{IP_FAMILIES, REFUSED, Wishes},
};

/// Keys of later versions that are not a reason to refuse anything, in one sentence. `exists`: there is an object, so
/// what stands in kube-vip's annotation is ours, also when somebody took our finalizer off.
pub(super) fn later(wishes: &Wishes, path: DataPath, exists: bool) -> Option<String> {
    let told_elsewhere = |key: &&str| {
        let by_the_host_path = match *key {
            annotations::SERVICE_NETWORK | annotations::KUBE_VIP_LOADBALANCER_IPS => true,
            IP_FAMILIES => wishes.only_ipv6,
            _ => false,
        };
        REFUSED.contains(key)
            || (path == DataPath::Host && by_the_host_path)
            || (exists && *key == annotations::KUBE_VIP_LOADBALANCER_IPS)
    };
    let keys: Vec<&str> = wishes.later.iter().copied().filter(|key| !told_elsewhere(key)).collect();
    let explained = [
        (annotations::SERVICE_NETWORK, "the network chooses the pool, but no interface of the nodes"),
        (annotations::KUBE_VIP_LOADBALANCER_IPS, "that annotation gets the address that Harvester gives"),
        (IP_FAMILIES, "the address is IPv4"),
    ];
    let explained = explained.into_iter().filter(|(key, _)| keys.contains(key));
    let explained: String = explained.map(|(_, sentence)| format!("; {sentence}")).collect();
    (!keys.is_empty()).then(|| format!("this version does not act on {}{explained}", keys.join(", ")))
}

/// The address went, and nobody can make a kube-vip that runs let go of it.
pub(super) fn taken_back(service: &Service, lost: &str) -> Notice {
    let announcer = service.annotations().get(annotations::KUBE_VIP_VIP_HOST);
    let still = announcer.map(|node| {
        format!("; kube-vip on node {node} may go on announcing it until it is started again, whoever has it by then")
    });
    Notice::warning(
        "AddressTakenBack",
        format!("Harvester took {lost} back from this Service{}", still.unwrap_or_default()),
    )
}

/// Keys without effect that are none of a later version, an Event for each way to be wrong.
pub(super) fn keys(wishes: &Wishes) -> Vec<Notice> {
    let mut notices = Vec::new();
    if !wishes.misplaced.is_empty() {
        let sentence = format!(
            "no effect on a Service, only on objects in Harvester, have {}: use cloudprovider.harvesterhci.io/…",
            wishes.misplaced.join(", ")
        );
        notices.push(Notice::warning("AnnotationHasNoEffect", sentence));
    }
    if !wishes.unknown.is_empty() {
        let sentence = format!("unknown here: {}; is it misspelt?", wishes.unknown.join(", "));
        notices.push(Notice::warning("UnknownAnnotation", sentence));
    }
    if !wishes.without_port.is_empty() {
        let sentence = format!(
            "there is no health check: without annotation {} nothing is done with {}",
            annotations::HEALTH_CHECK_PORT,
            wishes.without_port.join(", ")
        );
        notices.push(Notice::warning("HealthCheckWithoutPort", sentence));
    }
    notices
}

/// What was decided at creation and is wished otherwise now.
pub(super) fn fixed(balancer: &LoadBalancer, wishes: &Wishes, path: DataPath) -> Vec<Notice> {
    let mut notices = Vec::new();
    if wishes.ipam.is_some_and(|ipam| ipam != balancer.spec.ipam()) {
        let sentence = format!(
            "annotation {} cannot be changed, the Service keeps its address: create it anew",
            annotations::IPAM
        );
        notices.push(Notice::warning("IPAMFixed", sentence));
    }
    let request = balancer.annotations().get(annotations::LB_NETWORK_REQUEST);
    if path == DataPath::Guest && request.is_some_and(|request| *request != wishes.network) {
        let sentence = format!(
            "annotation {} cannot be changed, the Service stays on network {:?}: create it anew",
            annotations::SERVICE_NETWORK,
            request.map(String::as_str).unwrap_or_default()
        );
        notices.push(Notice::warning("NetworkFixed", sentence));
    }
    notices
}
