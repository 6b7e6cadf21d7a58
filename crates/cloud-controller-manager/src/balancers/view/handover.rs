//! The address that kube-vip in the guest is asked for: handed over, and withdrawn when Harvester took it back.
//!
//! ```text
//! allocated   loadbalancerIPs: X, allocated-address: X   kube-vip announces X, the Service's status says X
//! taken back                      allocated-address: X   while the status says X, it is emptied
//! ```
//! Others write these fields too: users name an address themselves, other load balancers write the status. The record of
//! what we handed over tells theirs from ours, over any restart between two writes.

use std::collections::BTreeMap;

use controller_kit::RawObject;
use harvester_api::{LoadBalancer, annotations, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{super::object::Announced, allocated, ingress, mark};

/// The address that was handed over: by us, or by the Go program, whose objects have it in `status.address`.
pub(super) fn given(service: &Service, present: Option<&RawObject<LoadBalancer>>) -> Option<String> {
    let said = |key: &str| service.annotations().get(key).map(String::as_str).filter(|said| !said.is_empty());
    let asked = said(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let by_go =
        || asked.filter(|asked| present.and_then(|balancer| super::announced(balancer)) == Some(asked));
    said(annotations::ALLOCATED_ADDRESS).or_else(by_go).map(str::to_owned)
}

/// Asks kube-vip for `ip`. What the Go program handed over needs no record of ours.
pub(super) fn handing_over(service: &Service, ip: &str) -> BTreeMap<String, Option<String>> {
    let mut marks = mark(annotations::KUBE_VIP_LOADBALANCER_IPS, ip);
    let there = service.annotations();
    if there.get(annotations::KUBE_VIP_LOADBALANCER_IPS).map(String::as_str) != Some(ip)
        || there.contains_key(annotations::ALLOCATED_ADDRESS)
    {
        marks.extend(mark(annotations::ALLOCATED_ADDRESS, ip));
    }
    marks
}

/// Asks kube-vip for `lost` no more, and remembers it. What somebody else asks for stays.
pub(super) fn withdrawing(service: &Service, lost: String) -> BTreeMap<String, Option<String>> {
    let mut marks = BTreeMap::new();
    if service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS) == Some(&lost) {
        marks.insert(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned(), None);
    }
    marks.insert(annotations::ALLOCATED_ADDRESS.to_owned(), Some(lost));
    marks
}

/// Whether the Service's status says what it says because kube-vip was asked for `lost`. Another address there, or one
/// that `spec.loadBalancerIP` asks for too, is somebody else's: taking it away would only make them write it again.
pub(super) fn came_of(lost: &str, service: &Service) -> bool {
    let stands = ingress(service);
    let fixed = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    stands.is_some()
        && (lost == DHCP_ADDRESS || stands.as_deref() == Some(lost))
        && fixed != stands.as_deref()
}

/// The Service's address, if it is the one that Harvester gave. With a lease that is any; of another Harvester knows
/// nothing, and its webhook would put it back.
pub(super) fn announced(service: &Service, present: Option<&RawObject<LoadBalancer>>) -> Announced {
    let given = present.map(|balancer| allocated(balancer)).unwrap_or_default();
    let address = ingress(service).filter(|ip| ip == given || given == DHCP_ADDRESS);
    address.map_or(Announced::Unknown, Announced::Address)
}
