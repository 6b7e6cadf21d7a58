//! The address that kube-vip in the guest is asked for: handed over, and withdrawn when Harvester took it back.
//!
//! ```text
//! allocated   loadbalancerIPs: X, allocated-address: X   kube-vip announces X, the Service's status says X
//! taken back                      allocated-address: X   while the status says X, the controller empties it
//! another     loadbalancerIPs: Z, allocated-address: Z,X while the status says X, which kube-vip has not written over yet
//! of two addresses, Y taken back:
//!             loadbalancerIPs: X, allocated-address: X,Y   while the status says Y, the controller takes Y out of it
//! gone        as taken back: the object is gone, and none is made
//! X again                         allocated-address: X   the controller writes X into the status, and then asks kube-vip,
//!                                                        which goes on announcing X and does not write it a second time
//! ```
//! Others write these fields too: users name an address themselves, other load balancers write the status. The record
//! of the address that we handed over distinguishes theirs from ours, over any restart between two writes.

use cloud_provider::{Annotations, FINALIZER, IngressAddress, LoadBalancerState, Publish, View};
use controller_kit::RawObject;
use harvester_api::{LoadBalancer, annotations, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{
    super::object::StatusAddress,
    Found, Seen, allocated,
    families::{Families, Family, listed, same, served},
    ingress, is_leased, settled,
    sharing::{Held, Sharing},
};
use crate::{datapath::Datapath, load_balancers::sharing::label};

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
    } else if let Some(object) = object {
        let served = served(service, object);
        if !served.is_empty() {
            let given = given(service, Some(&**object));
            let (handed, published) = hand_over(service, &served, given.as_deref());
            annotations.extend(handed);
            // what was not given before is what somebody else asks for, by chance the same
            if given.is_some() {
                record_address_of_go_program(&mut annotations);
            }
            publish = published;
        }
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
pub(super) fn given(service: &Service, object: Option<&LoadBalancer>) -> Option<String> {
    let text = |key: &str| service.annotations().get(key).map(String::as_str).filter(|text| !text.is_empty());
    let asked = text(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let by_go =
        || asked.filter(|asked| object.and_then(|object| super::status_address(object)) == Some(asked));
    text(annotations::ALLOCATED_ADDRESS).or_else(by_go).map(str::to_owned)
}

/// Whether the lists are of the Harvester of this cluster as it is now, as far as they tell: they can be read, and the
/// machine of a Node is there, by its UID. With a cloud-config for another one, or for another namespace, no object is there
/// either, and machines of the same names may be.
pub(super) fn is_right_harvester(seen: &Seen<'_>) -> bool {
    let is_current = seen.load_balancers_out_of_reach.is_none();
    is_current && seen.backends.as_ref().is_some_and(|backends| backends.are_identified)
}

/// The datapath on which the Service was given an address that nothing in Harvester holds any more: its object is not
/// there, and none is made. The pool gives such an address to others. `forbidden`: by a fault of the Service.
pub(super) fn path_of_orphaned_address(seen: &Seen<'_>, forbidden: bool) -> Option<Datapath> {
    let is_absent = matches!(seen.load_balancer, Found::Absent) && (forbidden || seen.creation_refused);
    // the primary's object holds a shared address; that this Service has none says nothing
    if !is_absent || seen.held != Held::Nothing || !is_right_harvester(seen) {
        return None;
    }
    let path = settled(seen.service, None)?;
    let was_given = match path {
        Datapath::Host => !seen.shown_by_others,
        Datapath::Guest => orphaned(seen.service).is_some(),
    };
    was_given.then_some(path)
}

/// The writer of what a Service's status shows next: [`Seen::shown_by_others`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load_balancers) enum StatusOwner {
    /// The status is empty, or shows what another controller wrote, and this program has nothing to write.
    Others,
    /// The status shows something, and nothing new tells whose that is.
    AsBefore,
    /// This program, or kube-vip on its behalf, may write it now.
    Ours,
}

/// On the host datapath only this program writes, and only what a decision publishes; in the guest kube-vip does. The first line
/// that fits counts:
///
/// ```text
/// the objects were never listed                           AsBefore   nothing is written meanwhile
/// no load balancer is wanted                              Ours       the clean-up empties the status
/// shares an address of the guest                          Ours       kube-vip may write
/// not on the host: has an address, or a primary's label   Ours       the same
/// addresses are published                                 Ours       this program writes
/// the status is empty, or the Service has no trace of us  Others
/// else                                                    AsBefore
/// ```
/// The record of the host datapath comes and goes with the finalizer: a Service that has neither, and no object, has no trace
/// of us.
pub(in crate::load_balancers) fn status_owner(seen: &Seen<'_>, publish: &Publish) -> StatusOwner {
    if matches!(seen.load_balancer, Found::Unlisted) {
        return StatusOwner::AsBefore;
    }
    let (service, object) = (seen.service, seen.load_balancer.object());
    let by_kube_vip = match &seen.sharing {
        // it needs no object of its own
        Sharing::With(primary) => primary.path == Datapath::Guest,
        Sharing::Own | Sharing::Waits(_) | Sharing::Refused { .. } => {
            let has_address = object.is_some_and(|object| super::status_address(object).is_some());
            let is_on_host = settled(service, object) == Some(Datapath::Host);
            !is_on_host && (has_address || label(service).is_some())
        }
    };
    let by_this_program = matches!(publish, Publish::Addresses(_));
    let has_finalizer = service.finalizers().iter().any(|name| name == FINALIZER);
    let has_record = service.annotations().contains_key(annotations::RECORDED_DATA_PATH);
    // an object that cannot be read is there all the same
    let is_without_trace = matches!(seen.load_balancer, Found::Absent) && !has_finalizer && !has_record;
    if !seen.wanted || by_kube_vip || by_this_program {
        StatusOwner::Ours
    } else if ingress(service).is_empty() || is_without_trace {
        StatusOwner::Others
    } else {
        StatusOwner::AsBefore
    }
}

/// The address in the guest that nothing in Harvester holds once the Service's object is gone. A lease is kube-vip's own.
pub(super) fn orphaned(service: &Service) -> Option<String> {
    given(service, None).filter(|given| latest(given) != DHCP_ADDRESS)
}

/// Adds the record of an address that the Go program handed over. While its object is there that proves the address; once
/// it is gone, and a fault or a refusal of Harvester keeps another from being made, nothing else does.
fn record_address_of_go_program(annotations: &mut Annotations) {
    if let Some(Some(ips)) = annotations.get(annotations::KUBE_VIP_LOADBALANCER_IPS).cloned() {
        annotations.entry(annotations::ALLOCATED_ADDRESS.to_owned()).or_insert(Some(ips));
    }
}

/// The service controller writes the annotations of an absent load balancer only with its creation. Where the Service
/// `loses` its address and no creation comes, the state is `Present` without an address, so that they are written now.
pub(super) fn write_annotations_now(seen: &Seen<'_>, loses: bool, view: &mut View) {
    if loses && view.load_balancer == LoadBalancerState::Absent && settled(seen.service, None).is_some() {
        view.load_balancer = LoadBalancerState::Present { addresses: Vec::new() };
    }
}

/// Whether kube-vip is asked for `lost`, or the status shows it because of that.
pub(super) fn is_still_announced(lost: &str, service: &Service) -> bool {
    is_asked_for(lost, service) || came_of(lost, service)
}

/// Whether kube-vip is asked for nothing else than `lost`, which may name one more, of another family, that went before.
pub(super) fn is_asked_for(lost: &str, service: &Service) -> bool {
    let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let is_lost = |asked: &str| listed(lost).any(|lost| same(lost, asked));
    asked.is_some_and(|asked| !asked.is_empty() && listed(asked).all(is_lost))
}

/// The latest address of each family among those `given`: former ones come after it.
pub(super) fn latest(given: &str) -> String {
    let mut latest: Vec<&str> = Vec::new();
    for address in listed(given) {
        if !latest.iter().any(|of| Family::of(of) == Family::of(address)) {
            latest.push(address);
        }
    }
    latest.join(",")
}

/// Asks kube-vip for these addresses. One that the Go program handed over to a secondary needs no record of ours: the label
/// is one. Those that were `given` before are remembered as long as the status shows them: where the new one is taken back
/// before kube-vip wrote it, they would stay there for ever. One of a family that the Service has no more is taken out of
/// the status.
pub(super) fn hand_over(
    service: &Service,
    addresses: &[&str],
    given: Option<&str>,
) -> (Annotations, Publish) {
    let ips = addresses.join(",");
    if comes_back(service, &ips, given) {
        let addresses = addresses.iter().map(|ip| IngressAddress::parse(ip)).collect();
        return (Annotations::new(), Publish::Addresses(addresses));
    }
    let shown = ingress(service);
    let is_among = |all: &[&str], ip: &str| all.iter().any(|it| same(it, ip));
    let given = given.unwrap_or_default();
    // the record of a lease is the request for one, and any address that is shown may be of that
    let was_given = |ip: &str| listed(given).any(|given| given == DHCP_ADDRESS || same(given, ip));
    let is_given = |ip: &str| addresses.contains(&DHCP_ADDRESS) || is_among(addresses, ip);
    let mut former = shown.clone();
    former.retain(|shown| was_given(shown) && !is_given(shown));
    let mut gone = lost_families(addresses, given);
    gone.retain(|gone| is_among(&former, gone));
    let publish = if gone.is_empty() {
        Publish::NotOurs
    } else {
        let stay = shown.into_iter().filter(|ip| !is_among(&gone, ip));
        Publish::Addresses(stay.map(IngressAddress::parse).collect())
    };
    let record: Vec<_> = addresses.iter().chain(&former).copied().collect();
    let mut annotations = Annotations::new();
    let there = service.annotations();
    if there.get(annotations::KUBE_VIP_LOADBALANCER_IPS) != Some(&ips)
        || there.contains_key(annotations::ALLOCATED_ADDRESS)
        || !former.is_empty()
    {
        annotations.insert(annotations::ALLOCATED_ADDRESS.to_owned(), Some(record.join(",")));
    }
    annotations.insert(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned(), Some(ips));
    (annotations, publish)
}

/// Whether the Service gets just what was withdrawn from it, and kube-vip announces that still, as far as its annotation
/// tells. It writes an address once (docs/contract/kube-vip.md#written-once), so the status is written here. That comes
/// before kube-vip is asked again: who stops in between finds it there, and kube-vip takes the same from the status. The
/// address of a lease only kube-vip knows. A status that has any entry, a host name too, is somebody's own.
pub(super) fn comes_back(service: &Service, ips: &str, given: Option<&str>) -> bool {
    let has = |key: &str| service.annotations().get(key).is_some_and(|text| !text.is_empty());
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let entries = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    given.is_some_and(|given| latest(given) == ips)
        && ips != DHCP_ADDRESS
        && has(annotations::KUBE_VIP_VIP_HOST)
        && !has(annotations::KUBE_VIP_LOADBALANCER_IPS)
        && entries.is_empty()
}

/// The addresses among those `given` whose family has none now. One of a family that has another address stays until
/// kube-vip writes that one over it.
fn lost_families<'a>(addresses: &[&str], given: &'a str) -> Vec<&'a str> {
    let has = |family: Family| addresses.iter().any(|address| Family::of(address) == family);
    listed(given).filter(|given| !has(Family::of(given))).collect()
}

/// The address that Harvester took back of a Service that keeps the one of its other family. One of a family that the
/// Service gave up itself is not taken back.
pub(super) fn taken_back_of_one_family(
    service: &Service,
    object: Option<&RawObject<LoadBalancer>>,
) -> Option<String> {
    let object = object?;
    let served = served(service, object);
    let given = given(service, Some(&**object)).filter(|_| !served.is_empty())?;
    let gone = Families::of(service).pick(&lost_families(&served, &given));
    (!gone.is_empty()).then(|| gone.join(","))
}

/// Asks kube-vip for `lost` no more, and remembers it. An address that somebody else asks for stays.
pub(super) fn withdrawing(service: &Service, lost: String) -> Annotations {
    let mut annotations = Annotations::new();
    if is_asked_for(&lost, service) {
        annotations.insert(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned(), None);
    }
    annotations.insert(annotations::ALLOCATED_ADDRESS.to_owned(), Some(lost));
    annotations
}

/// Whether the address in the Service's status is there because kube-vip was asked for `lost`. Another address, or one
/// that `spec.loadBalancerIP` asks for too, is somebody else's: taking it away would only make them write it again.
pub(super) fn came_of(lost: &str, service: &Service) -> bool {
    let is_lost = |ip: &str| lost == DHCP_ADDRESS || listed(lost).any(|lost| same(lost, ip));
    ingress(service).first().is_some_and(|ip| is_lost(ip) && !is_wished(service, ip))
}

/// The addresses of the lease that kube-vip got for the Service. It announces `spec.loadBalancerIP` before it is asked for a
/// lease, and nobody gave that address: of a leased one it writes the hardware address and the address itself
/// (docs/contract/kube-vip.md#writes).
pub(in crate::load_balancers) fn leased(service: &Service) -> Vec<&str> {
    let text = |key: &str| service.annotations().get(key).map(String::as_str).unwrap_or_default();
    let by_lease = if text(annotations::KUBE_VIP_HWADDR).is_empty() {
        ""
    } else {
        text(annotations::KUBE_VIP_REQUESTED_IP)
    };
    let was_leased = |ip: &str| listed(by_lease).any(|leased| same(leased, ip));
    ingress(service).into_iter().filter(|ip| was_leased(ip) || !is_wished(service, ip)).collect()
}

/// Whether `spec.loadBalancerIP` names this address.
pub(super) fn is_wished(service: &Service, ip: &str) -> bool {
    let wish = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    listed(wish.unwrap_or_default()).any(|wish| same(wish, ip))
}

/// The Service's address, if it is one that Harvester gave. With a lease that is any; Harvester knows nothing of
/// another, and its webhook would put the old one back.
pub(super) fn shown_in_guest(service: &Service, object: Option<&RawObject<LoadBalancer>>) -> StatusAddress {
    let Some(object) = object else { return StatusAddress::Keep };
    let given = served(service, object);
    let shown = ingress(service);
    let address = match is_leased(object) {
        true => leased(service).into_iter().next().filter(|_| !given.is_empty()),
        // the first that the object has: its field holds one, and the load balancer gives a former first address to others
        // once it reads another one here
        false => allocated(object)
            .into_iter()
            .next()
            .filter(|ip| given.contains(ip) && shown.iter().any(|shown| same(shown, ip))),
    };
    address.map_or(StatusAddress::Keep, |ip| StatusAddress::Set(ip.to_owned()))
}

/// The addresses, with commas, that kube-vip was asked for and does not show.
pub(super) fn not_shown(service: &Service, object: &LoadBalancer) -> Option<String> {
    let shown = ingress(service);
    let is_shown = |ip: &str| match is_leased(object) {
        true => !leased(service).is_empty(),
        false => shown.iter().any(|shown| same(shown, ip)),
    };
    let missing: Vec<_> = served(service, object).into_iter().filter(|ip| !is_shown(ip)).collect();
    (!missing.is_empty()).then(|| missing.join(","))
}

#[cfg(test)]
mod tests;
