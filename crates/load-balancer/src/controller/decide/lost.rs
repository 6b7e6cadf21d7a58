//! An address that the object lost: the pools give it to another holder, and nothing may announce it for this one.

use std::net::IpAddr;

use controller_kit::{PendingEvent, RawObject};
use harvester_api::{AllocatedAddress, LoadBalancer};
use k8s_openapi::api::core::v1::Service;
use kube::Resource as _;

use super::{Seen, SeenAddress, Step, delete, empty_slice, is_needed, refusal_of, show_to_kube_vip};
use crate::{host_datapath::service, ownership::Owner, reuse};

/// Whether the object lost the address: the pools give it to others. A leased address is in no pool of ours.
pub(super) fn is_of_others(seen: &Seen, lb: &LoadBalancer, address: &str) -> bool {
    let SeenAddress { of_others, recorded, outranked, .. } = &seen.address;
    let has =
        |records: &[(String, IpAddr)], address| records.iter().any(|(_, recorded)| *recorded == address);
    let is_leased = lb.spec.ipam() == harvester_api::Ipam::Dhcp;
    let is_lost =
        |address| of_others.contains(&address) || has(outranked, address) && !has(recorded, address);
    !is_leased && address.parse().is_ok_and(is_lost)
}

/// The object's Service, if it asks for an address that another holder has.
pub(super) fn at_lost_address<'a>(
    seen: &'a Seen,
    lb: &RawObject<LoadBalancer>,
) -> Option<&'a RawObject<Service>> {
    let owner = Owner::of(lb);
    let service = seen.service.as_deref()?;
    let is_lost = |address: IpAddr| is_of_others(seen, lb, &address.to_string());
    let ours = owner.ownership(service.meta()).is_writable();
    (ours && reuse::asked_for(service).any(is_lost)).then_some(service)
}

/// The Service asks for the new address before anything else is written, whatever else is in the way, and it goes if the
/// server refuses that.
pub(super) fn leave_lost_address(
    seen: &Seen,
    lb: &RawObject<LoadBalancer>,
    address: &AllocatedAddress,
) -> Vec<Step> {
    let Some(found) = at_lost_address(seen, lb) else { return Vec::new() };
    if refusal_of(seen, "Service").is_some() || found.meta().deletion_timestamp.is_some() {
        return withdrawal(seen, lb);
    }
    let write = Step::WriteService(service::write_address(found, &address.ip));
    Vec::from_iter(Some(write).filter(is_needed))
}

/// Another holder has the address: the Service must not ask for it any longer.
pub(super) fn withdrawal(seen: &Seen, lb: &RawObject<LoadBalancer>) -> Vec<Step> {
    let owner = Owner::of(lb);
    let service = seen.service.as_deref();
    let Some(service) = service.filter(|service| owner.ownership(service.meta()).is_writable()) else {
        return Vec::new();
    };
    let mut steps = Vec::from_iter(empty_slice(seen, &owner));
    let Ok(shown) = show_to_kube_vip(seen, service) else { return steps };
    steps.extend(shown);
    if seen.may_delete_services && service.meta().deletion_timestamp.is_none() {
        steps.push(delete(service));
    }
    steps
}

/// Why the Service goes on asking for the lost address, where the server refuses the write that comes before its deletion.
/// The condition says why the object has no address, and not this.
pub(super) fn refused_withdrawal(seen: &Seen, lb: &RawObject<LoadBalancer>) -> Option<PendingEvent> {
    show_to_kube_vip(seen, at_lost_address(seen, lb)?).err()
}
