//! Events for the owner of a Service about matters that refuse nothing.

use controller_kit::{Explanation, ObjectKey, PendingEvent, RawObject};
use harvester_api::{LoadBalancer, annotations, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{
    ANNOUNCEMENT, Phase, Seen,
    handover::{given, is_asked_for, is_wished, latest},
    host_datapath, ingress,
};
use crate::{
    datapath::Datapath,
    requested::{Asked, WISH},
    service_config::ServiceConfig,
};

/// An Event names at most so many Services.
const NAMED: usize = 20;

/// Kube-vip's own annotation asks for an address. `exists`: there is an object, so the address there is ours, also when
/// somebody took our finalizer off. On the host datapath that annotation is a fault.
pub(super) fn kube_vip_sentence(config: &ServiceConfig, path: Datapath, exists: bool) -> Option<String> {
    let sentence = || {
        format!(
            "annotation {} has no effect as a request, it gets the address that Harvester gives: ask with annotation {}",
            annotations::KUBE_VIP_LOADBALANCER_IPS,
            annotations::SERVICE_IP
        )
    };
    (config.asks_kube_vip && !exists && path == Datapath::Guest).then(sentence)
}

/// Harvester gave the address to another.
pub(super) fn taken_back(service: &Service, lost: &str) -> PendingEvent {
    let sentence = format!("Harvester took {} back from this Service", latest(lost));
    gone(service, lost, &sentence)
}

/// Somebody deleted the object that held the address, and no other can be made.
pub(super) fn orphaned(service: &Service, lost: &str) -> PendingEvent {
    deleted(service, lost, "and cannot be made again")
}

/// As above, and no other is made while the Service waits for a primary.
pub(super) fn orphaned_while_it_waits(service: &Service, lost: &str) -> PendingEvent {
    deleted(service, lost, "and is not made again while the Service asks for the address of another one")
}

/// As [`orphaned`], on the host datapath: nothing says whose address the status shows.
pub(super) fn orphaned_on_host(service: &Service, lost: &str) -> PendingEvent {
    without_object(service, lost, "none can be made")
}

/// As [`orphaned_on_host`], while the Service waits for a primary.
pub(super) fn orphaned_on_host_while_it_waits(service: &Service, lost: &str) -> PendingEvent {
    without_object(service, lost, "none is made while the Service asks for the address of another one")
}

fn without_object(service: &Service, lost: &str, why_none: &str) -> PendingEvent {
    let sentence = format!(
        "this Service has no LoadBalancer object in Harvester and {why_none}, so {lost} is taken out of its status: a \
         pool that gave it may give it to another; if another controller gave it, that one will write it again"
    );
    gone(service, lost, &sentence)
}

fn deleted(service: &Service, lost: &str, why_none: &str) -> PendingEvent {
    let sentence = format!(
        "the LoadBalancer object of this Service was deleted in Harvester {why_none}, so its address {} may be given to \
         another and is announced no more",
        latest(lost)
    );
    gone(service, lost, &sentence)
}

/// The address went. Nobody can make a running kube-vip let go of it, and it takes a wish once it is asked for nothing.
fn gone(service: &Service, lost: &str, sentence: &str) -> PendingEvent {
    let text = |key: &str| service.annotations().get(key).map(String::as_str).filter(|text| !text.is_empty());
    let still = text(annotations::KUBE_VIP_VIP_HOST).map(|node| {
        format!("; kube-vip on node {node} may go on announcing it until it is started again, whoever has it by then")
    });
    let asks_for_more =
        text(annotations::KUBE_VIP_LOADBALANCER_IPS).is_some() && !is_asked_for(lost, service);
    let is_passed_over = text(annotations::KUBE_VIP_IGNORE) == Some("true");
    let wish = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let wish = wish.filter(|wish| !wish.is_empty() && !asks_for_more && !is_passed_over);
    let remove = wish
        .map(|wish| format!("; remove {WISH}, because kube-vip in the guest announces {wish} by itself now"));
    let (still, remove) = (still.unwrap_or_default(), remove.unwrap_or_default());
    PendingEvent::warning("AddressTakenBack", format!("{sentence}{still}{remove}"))
}

/// The Event about an address that should have been announced by now.
pub(super) fn overdue_announcement(seen: &Seen<'_>) -> Option<PendingEvent> {
    match seen.phase().filter(|_| seen.waited >= ANNOUNCEMENT)? {
        Phase::Allocation | Phase::Demand(_) | Phase::Confirmation(_) | Phase::Wish(_) => None,
        Phase::Announcement => {
            let sentence = "Harvester has allocated an address and does not announce it: its kube-vip may need the load \
                balancer of this project; annotation cloudprovider.harvesterhci.io/data-path: guest on a new Service \
                has it announced in the guest";
            Some(PendingEvent::warning("HostNotAnnouncing", sentence))
        }
        Phase::Publication(address) => Some(not_published(seen.service, &address)),
    }
}

/// kube-vip in the guest reads `spec.loadBalancerIP` while it is asked for no address, and announces that one by itself.
pub(super) fn not_allocated(service: &Service) -> Option<PendingEvent> {
    let text = |key: &str| service.annotations().get(key).map(String::as_str).unwrap_or_default();
    let is_asked = !text(annotations::KUBE_VIP_LOADBALANCER_IPS).is_empty();
    let shown = ingress(service).into_iter().find(|ip| is_wished(service, ip))?;
    let sentence = format!(
        "kube-vip in the guest announces {shown} because of {WISH}, and Harvester has not given it to this Service: \
         remove the field, as another may have that address"
    );
    let is_by_itself = !is_asked && text(annotations::KUBE_VIP_IGNORE) != "true";
    is_by_itself.then(|| PendingEvent::warning("AddressNotAllocated", sentence))
}

/// kube-vip in the guest was asked for the address and does not show it. It does not write the status of an address that
/// it announces already (docs/contract/kube-vip.md#written-once), or that no endpoint is behind
/// (docs/contract/kube-vip.md#endpoints), and on this datapath nobody else writes it.
fn not_published(service: &Service, address: &str) -> PendingEvent {
    let text = |key: &str| service.annotations().get(key).map(String::as_str).filter(|text| !text.is_empty());
    let address = if address == DHCP_ADDRESS { "an address of DHCP" } else { address };
    let sentence = if text(annotations::KUBE_VIP_IGNORE) == Some("true") {
        format!(
            "the Service is to have {address}, and kube-vip passes over it for its annotation {}: remove the annotation",
            annotations::KUBE_VIP_IGNORE
        )
    } else {
        let place = text(annotations::KUBE_VIP_VIP_HOST).map(|node| format!(" on node {node}"));
        let place = place.unwrap_or_default();
        // the other address of the Service may be shown
        let two = text(annotations::KUBE_VIP_LOADBALANCER_IPS).is_some_and(|asked| asked.contains(','));
        let two = if two { ". It announces two addresses of a Service from version 0.7 on" } else { "" };
        format!(
            "kube-vip was asked to announce {address} and has not written it to the Service's status: from version 1.2 \
             on it waits until a Pod behind the Service is ready; restart kube-vip{place} if the Service was of another \
             type for a while, because kube-vip passes over that and does not write an address again; else its log \
             says more{two}"
        )
    };
    PendingEvent::warning("AddressNotPublished", sentence)
}

/// The controller leaves the Service, and kube-vip goes on announcing its address: kube-vip up to 1.2.3 passes over
/// every event of a Service of another type, or with `ignore`, its deletion included.
pub(super) fn still_announced(
    service: &Service,
    object: Option<&RawObject<LoadBalancer>>,
) -> Option<PendingEvent> {
    let text = |key: &str| service.annotations().get(key).map(String::as_str).unwrap_or_default();
    let spec_type = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()).unwrap_or_default();
    let passed_over = spec_type != "LoadBalancer" || text(annotations::KUBE_VIP_IGNORE) == "true";
    let address = given(service, object.map(|object| &**object))?;
    let node = text(annotations::KUBE_VIP_VIP_HOST);
    if !passed_over
        || node.is_empty() && !ingress(service).iter().any(|ip| address.split(',').any(|it| it == *ip))
    {
        return None;
    }
    let place = if node.is_empty() { String::new() } else { format!(" on node {node}") };
    let address = if address == DHCP_ADDRESS { "the address of its DHCP lease" } else { &address };
    Some(PendingEvent::warning(
        "VipStillAnnounced",
        format!(
            "kube-vip{place} does not let go of {address} by itself, and another Service may get it: restart kube-vip there"
        ),
    ))
}

/// Why the object of a primary stays: in the words of the Go program (docs/contract/cloud-controller-manager.md#13).
pub(super) fn in_use(object: &ObjectKey, secondaries: &[ObjectKey]) -> String {
    let mut names: Vec<_> = secondaries.iter().take(NAMED).map(ToString::to_string).collect();
    if let Some(more) = secondaries.len().checked_sub(NAMED).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    format!(
        "could not delete load balancer {}, it is still used by other services: {}; delete them first, or remove their \
         annotation {}, and the label of that name from those of another type",
        object.name,
        names.join(", "),
        annotations::PRIMARY_SERVICE
    )
}

/// Settings of a Service that shares the address of another one.
pub(super) fn about_sharing(config: &ServiceConfig) -> Vec<PendingEvent> {
    let mut events: Vec<_> = config
        .faults
        .iter()
        .map(|fault| PendingEvent::warning(fault.reason, fault.message.as_str()))
        .collect();
    let requested = &config.requested;
    events.extend(requested.events.clone());
    if requested.wish.is_some() || matches!(requested.pool, Asked::For(_)) {
        let sentence = format!(
            "a Service that shares an address has the one of its primary: {WISH} and annotation {} have no effect here",
            annotations::SERVICE_IP_POOL
        );
        events.push(PendingEvent::warning("RequestedAddressNotUsed", sentence));
    }
    if config.health_port {
        let sentence =
            "a Service that shares an address has no health check of its own: the one of its primary counts";
        events.push(PendingEvent::warning("HealthCheckNotEnforced", sentence));
    }
    events
}

/// Keys without effect, an Event for each kind of mistake.
pub(super) fn keys(config: &ServiceConfig) -> Vec<PendingEvent> {
    let mut events = Vec::new();
    if !config.misplaced.is_empty() {
        let sentence = format!(
            "no effect on a Service, only on objects in Harvester, have {}: use cloudprovider.harvesterhci.io/…",
            config.misplaced.join(", ")
        );
        events.push(PendingEvent::warning("AnnotationHasNoEffect", sentence));
    }
    if !config.unknown.is_empty() {
        let sentence = format!("unknown here: {}; is it misspelt?", config.unknown.join(", "));
        events.push(PendingEvent::warning("UnknownAnnotation", sentence));
    }
    if !config.without_port.is_empty() {
        let sentence = format!(
            "there is no health check: without annotation {} nothing is done with {}",
            annotations::HEALTH_CHECK_PORT,
            config.without_port.join(", ")
        );
        events.push(PendingEvent::warning("HealthCheckWithoutPort", sentence));
    }
    events
}

/// One Event with all faults, with `more`, and with what becomes of the load balancer.
pub(super) fn refusal(
    seen: &Seen<'_>,
    path: Datapath,
    faults: &[Explanation],
    more: Option<&str>,
) -> Option<PendingEvent> {
    let (service, first) = (seen.service, faults.first()?);
    let sentences: Vec<_> = faults.iter().map(|fault| fault.message.as_str()).chain(more).collect();
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let what = match seen.load_balancer.object() {
        None => "no load balancer",
        Some(_) if path == Datapath::Guest => "the load balancer stays as it is",
        Some(object) if host_datapath::is_anything_left(seen, object) => {
            "the load balancer stays as it is, but for ports that are gone,"
        }
        Some(_) => "the load balancer leads to no VM, because no port that it had is left,",
    };
    let message = format!("{what} for service {namespace}/{name}: {}", sentences.join("; "));
    Some(PendingEvent::warning(first.reason, message))
}

/// Settings that were decided when the object was made, and have changed since.
pub(super) fn fixed(object: &LoadBalancer, config: &ServiceConfig, path: Datapath) -> Vec<PendingEvent> {
    let mut events = Vec::new();
    if config.ipam.is_some_and(|ipam| ipam != object.spec.ipam()) {
        let sentence = format!(
            "annotation {} cannot be changed, the Service keeps its address: create it anew",
            annotations::IPAM
        );
        events.push(PendingEvent::warning("IPAMFixed", sentence));
    }
    let request = object.annotations().get(annotations::LB_NETWORK_REQUEST);
    if path == Datapath::Guest && request.is_some_and(|request| *request != config.network) {
        let sentence = format!(
            "annotation {} cannot be changed, the Service stays on network {:?}: create it anew",
            annotations::SERVICE_NETWORK,
            request.map(String::as_str).unwrap_or_default()
        );
        events.push(PendingEvent::warning("NetworkFixed", sentence));
    }
    events
}
