//! The address that kube-vip in the guest is asked for: handed over, and withdrawn when Harvester took it back.
//!
//! ```text
//! allocated   loadbalancerIPs: X, allocated-address: X   kube-vip announces X, the Service's status says X
//! taken back                      allocated-address: X   while the status says X, the controller empties it
//! ```
//! Others write these fields too: users name an address themselves, other load balancers write the status. The record
//! of the address that we handed over distinguishes theirs from ours, over any restart between two writes.

use cloud_provider::{Annotations, Publish};
use controller_kit::RawObject;
use harvester_api::{LoadBalancer, annotations, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{super::object::StatusAddress, allocated, ingress, is_leased};
use crate::datapath::Datapath;

/// The annotations for kube-vip, and whether the status must go. `lost`: the address that Harvester took back.
pub(super) fn decide(
    service: &Service,
    object: Option<&RawObject<LoadBalancer>>,
    lost: Option<String>,
) -> (Annotations, Publish) {
    let mut annotations = Annotations::new();
    if let Some(recorded) = service.annotations().get(annotations::RECORDED_DATA_PATH) {
        annotations.insert(annotations::RECORDED_DATA_PATH.to_owned(), None);
        // the two come in one PATCH; by itself `ignore` is the user's
        if recorded == Datapath::Host.word() {
            annotations.insert(annotations::KUBE_VIP_IGNORE.to_owned(), None);
        }
    }
    let mut publish = Publish::NotOurs;
    if let Some(lost) = lost {
        if came_of(&lost, service) {
            publish = Publish::Withdrawn;
        }
        annotations.extend(withdrawing(service, lost));
    } else if let Some(object) = object.filter(|object| !allocated(object).is_empty()) {
        annotations.extend(handing_over(service, &allocated(object).join(",")));
    }
    (annotations, publish)
}

/// Whether the status may show the address that the Service had on the host datapath, from which it comes: its object is
/// gone and the flags exclude that datapath now. kube-vip takes an address from the status too, and this one may be
/// another's, so it goes before `ignore` does (docs/contract/data-paths.md#row-2).
pub(super) fn shows_address_of_host_datapath(service: &Service) -> bool {
    let recorded = service.annotations().get(annotations::RECORDED_DATA_PATH);
    recorded.is_some_and(|recorded| recorded == Datapath::Host.word()) && !ingress(service).is_empty()
}

/// The address that we handed over, or the Go program, whose objects have it in `status.address`.
pub(super) fn given(service: &Service, object: Option<&RawObject<LoadBalancer>>) -> Option<String> {
    let text = |key: &str| service.annotations().get(key).map(String::as_str).filter(|text| !text.is_empty());
    let asked = text(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let by_go =
        || asked.filter(|asked| object.and_then(|object| super::status_address(object)) == Some(asked));
    text(annotations::ALLOCATED_ADDRESS).or_else(by_go).map(str::to_owned)
}

/// Asks kube-vip for `ips`. An address that the Go program handed over needs no record of ours.
pub(super) fn handing_over(service: &Service, ips: &str) -> Annotations {
    let set = |key: &str| (key.to_owned(), Some(ips.to_owned()));
    let mut annotations = Annotations::from([set(annotations::KUBE_VIP_LOADBALANCER_IPS)]);
    let there = service.annotations();
    if there.get(annotations::KUBE_VIP_LOADBALANCER_IPS).map(String::as_str) != Some(ips)
        || there.contains_key(annotations::ALLOCATED_ADDRESS)
    {
        annotations.extend([set(annotations::ALLOCATED_ADDRESS)]);
    }
    annotations
}

/// Asks kube-vip for `lost` no more, and remembers it. An address that somebody else asks for stays.
pub(super) fn withdrawing(service: &Service, lost: String) -> Annotations {
    let mut annotations = Annotations::new();
    if service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS) == Some(&lost) {
        annotations.insert(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned(), None);
    }
    annotations.insert(annotations::ALLOCATED_ADDRESS.to_owned(), Some(lost));
    annotations
}

/// Whether the address in the Service's status is there because kube-vip was asked for `lost`. Another address, or one
/// that `spec.loadBalancerIP` asks for too, is somebody else's: taking it away would only make them write it again.
pub(super) fn came_of(lost: &str, service: &Service) -> bool {
    let fixed = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let is_lost = |ip: &str| lost == DHCP_ADDRESS || lost.split(',').any(|lost| lost == ip);
    ingress(service).first().is_some_and(|ip| is_lost(ip) && fixed != Some(ip))
}

/// The Service's address, if it is one that Harvester gave. With a lease that is any; Harvester knows nothing of
/// another, and its webhook would put the old one back.
pub(super) fn shown_in_guest(service: &Service, object: Option<&RawObject<LoadBalancer>>) -> StatusAddress {
    let Some(object) = object else { return StatusAddress::Keep };
    let given = allocated(object);
    let address = ingress(service).into_iter().find(|ip| is_leased(object) || given.contains(ip));
    address.map_or(StatusAddress::Keep, |ip| StatusAddress::Set(ip.to_owned()))
}
