//! The decision about the object of one Service. No clock, no cache, no client.

mod events;
pub(super) mod families;
mod handover;
mod host_datapath;
mod network;
pub(super) mod requested;
pub(super) mod sharing;
pub(super) mod source_ranges;

use std::{fmt, sync::Arc, time::Duration};

use cloud_provider::{
    Annotations, Decision, FINALIZER, IngressAddress, LoadBalancerState, Publish, Removal, View,
};
use controller_kit::{EventType, ObjectKey, PendingEvent, RawObject};
use guest_vms::Backends;
use harvester_api::{
    Condition, ConditionStatus, Ipam, LoadBalancer, annotations, condition, names::DHCP_ADDRESS,
};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::Value;

pub(super) use self::handover::{StatusOwner, leased, status_owner};
pub(super) use self::host_datapath::{hinders_sharing, was_announced_in_guest};
use self::{
    sharing::{Held, Secondaries, Sharing},
    source_ranges::GivenUp,
};
use super::{
    fingerprint,
    object::{ClusterIdentity, DatapathFields, ForService, StatusAddress, Wanted},
    sharing::label,
};
use crate::{
    datapath::{AllowedDatapaths, Datapath, Policy, choose},
    networks::Interface,
    requested::Addresses,
    service_config::ServiceConfig,
};

/// Harvester answers a new object within a fraction of a second; after this time the Service gets a failed sync.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// An address that was allocated for so long and is not announced will not be announced by itself; one that kube-vip in
/// the guest was asked for and does not show will not be shown.
const ANNOUNCEMENT: Duration = Duration::from_secs(60);

/// In the words of Kubernetes' own service controller.
const NO_NODES: &str = "There are no available nodes for the load balancer";

/// A Service, its object and its VMs, as the caches show them.
#[derive(Clone, Debug)]
pub(super) struct Seen<'a> {
    pub(super) identity: ClusterIdentity,
    pub(super) policy: Policy,
    pub(super) allowed: AllowedDatapaths,
    /// The object, or the one that will be made.
    pub(super) key: ObjectKey,
    pub(super) service: &'a Service,
    pub(super) config: ServiceConfig,
    /// Of the network that the Service asks for, on the guest datapath.
    pub(super) interface: Interface,
    /// The Service asks for a load balancer, and is not being deleted.
    pub(super) wanted: bool,
    pub(super) load_balancer: Found,
    /// `None` while the VMs are not known.
    pub(super) backends: Option<Backends>,
    /// Why LoadBalancer objects cannot be listed, for longer than a moment.
    pub(super) load_balancers_out_of_reach: Option<String>,
    /// As above, for VMs.
    pub(super) vms_out_of_reach: Option<String>,
    pub(super) sharing: Sharing,
    pub(super) held: Held,
    /// An object has listeners for its ports as for those of a secondary.
    pub(super) is_carried: bool,
    pub(super) secondaries: Secondaries,
    /// What came of the last try to have the source ranges of the Service enforced, if that is not long ago.
    pub(super) given_up: Option<GivenUp>,
    /// Harvester refused to make the object, and will until somebody changes a rule or a right there.
    pub(super) creation_refused: bool,
    /// This program has written nothing since the status was empty, or the Service new. On the host datapath, where no annotation
    /// says whose address a status shows, another controller wrote this one, and would write it again.
    pub(super) shown_by_others: bool,
    /// How long the Service has been in its [`Phase`].
    pub(super) waited: Duration,
}

/// The object of the Service.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// The objects were never listed.
    Unlisted,
    Absent,
    Present(Arc<RawObject<LoadBalancer>>),
    /// The sentence says why.
    Unreadable(String),
}

impl Found {
    pub(super) fn object(&self) -> Option<&RawObject<LoadBalancer>> {
        match self {
            Self::Present(object) => Some(object),
            Self::Unlisted | Self::Absent | Self::Unreadable(_) => None,
        }
    }
}

impl Seen<'_> {
    /// The phase of the Service, while it asks for a load balancer.
    pub(super) fn phase(&self) -> Option<Phase> {
        if let Sharing::With(primary) = &self.sharing {
            return sharing::phase(self.service, primary).filter(|_| self.wanted);
        }
        if sharing::goes_on(self) && self.load_balancer.object().is_none() {
            return sharing::phase_of_kept(self.service, settled_datapath(self)).filter(|_| self.wanted);
        }
        if network::withholds(self) {
            return None;
        }
        phase(self.load_balancer.object().filter(|_| self.wanted)?, self.service, &self.config)
    }
}

/// A write of a LoadBalancer object: its whole JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    Create {
        json: Value,
        /// Of the Service that it was made for, as it was.
        fingerprint: u64,
    },
    /// Made from the version that was read.
    Update(Value),
    Delete(ObjectKey),
    /// Deletion of an object whose source ranges nobody enforces. It is not made again for a while.
    GiveUp {
        key: ObjectKey,
        service_uid: String,
        ranges: String,
    },
}

/// The next thing that happens to a Service that is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Harvester allocates an address.
    Allocation,
    /// Harvester gives the addresses that the Service demands.
    Demand(Addresses),
    /// Harvester confirms these source ranges.
    Confirmation(String),
    /// Harvester's kube-vip announces the address.
    Announcement,
    /// kube-vip in the guest writes these addresses to the status of the Service.
    Publication(String),
    /// Harvester gives the addresses that the Service wishes for. It is served meanwhile.
    Wish(Addresses),
}

impl fmt::Display for Phase {
    /// Completes the sentence "it waits until …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocation => f.write_str("the load balancer in Harvester allocates an address"),
            Self::Demand(addresses) => {
                write!(f, "the load balancer in Harvester answers the demand for {addresses}")
            }
            Self::Confirmation(ranges) => {
                write!(f, "the load balancer in Harvester confirms the source ranges {ranges}")
            }
            Self::Wish(addresses) => {
                write!(f, "the load balancer in Harvester answers the request for {addresses}")
            }
            Self::Announcement => f.write_str("Harvester's kube-vip announces the address"),
            Self::Publication(address) => {
                write!(f, "kube-vip in the guest writes {address} to the Service's status")
            }
        }
    }
}

/// The phase of an object whose Service waits for its address.
fn phase(object: &RawObject<LoadBalancer>, service: &Service, config: &ServiceConfig) -> Option<Phase> {
    let requested = &config.requested;
    if let Some(demand) = requested::unmet_demand(service, requested, object) {
        return Some(Phase::Demand(demand));
    }
    if let Some(ranges) = source_ranges::unconfirmed(config, object) {
        return Some(Phase::Confirmation(ranges));
    }
    let allocated = allocated(object);
    let next = match Datapath::of_object(&object.spec) {
        _ if allocated.is_empty() => Some(Phase::Allocation),
        Datapath::Host => status_address(object).is_none().then_some(Phase::Announcement),
        // the rest of it
        Datapath::Guest if !families::lacking(service, object).is_empty() => Some(Phase::Allocation),
        Datapath::Guest => handover::not_shown(service, object).map(Phase::Publication),
    };
    next.or_else(|| requested::unmet_wish(requested, object).map(Phase::Wish))
}

pub(super) fn decide(seen: &Seen<'_>) -> Decision<Write> {
    if matches!(seen.load_balancer, Found::Unlisted) {
        let load_balancer = LoadBalancerState::Unknown(seen.load_balancers_out_of_reach.clone());
        return Decision { view: View { load_balancer, ..View::default() }, ..Decision::default() };
    }
    match &seen.sharing {
        _ if !seen.wanted => clean_up(seen),
        Sharing::With(primary) => sharing::share(seen, primary),
        // what it has of its own serves it until it shares
        Sharing::Waits(_) | Sharing::Refused { .. } if seen.load_balancer.object().is_none() => {
            sharing::hold(seen)
        }
        Sharing::Own | Sharing::Waits(_) | Sharing::Refused { .. } => serve(seen),
    }
}

/// For a Service that asks for a load balancer of its own.
fn serve(seen: &Seen<'_>) -> Decision<Write> {
    let Seen { identity, service, config, key, .. } = seen;
    let object = seen.load_balancer.object();
    let choice = choose(seen.policy, seen.allowed, config, settled_datapath(seen));
    let (path, mut events) = (choice.path, choice.events);
    let mut faults = config.faults.clone();
    faults.extend(choice.refusal);
    let ipam = object.map(|object| object.spec.ipam()).or(config.ipam).unwrap_or(Ipam::Pool);
    let asked = config.requested.with_ipam(ipam, &mut faults, &mut events);
    events.extend(config.requested.events.clone());
    match &seen.sharing {
        Sharing::Refused { fault, .. } => faults.extend(fault.clone()),
        Sharing::Waits(_) => events.extend(sharing::told(seen, true)),
        Sharing::Own | Sharing::With(_) => {}
    }
    // the address belongs to another object, or may at any time: two would announce it
    let taken_back = is_taken_back(object);
    let comes_from_host =
        path == Datapath::Guest && object.is_none() && handover::shows_address_of_host_datapath(service);
    let datapath = match path {
        Datapath::Guest if comes_from_host => None,
        Datapath::Guest if taken_back => Some(DatapathFields::Guest(StatusAddress::Clear)),
        Datapath::Guest => Some(DatapathFields::Guest(handover::shown_in_guest(service, object))),
        Datapath::Host => host_datapath::datapath(seen, object.is_some(), &mut faults, &mut events),
    };
    let made_for = ForService { identity, service };
    let wanted = datapath.map(|datapath| Wanted { made_for, config, requested: asked, datapath });
    let kube_vip_sentence = events::kube_vip_sentence(config, path, object.is_some());
    let forbidden = !faults.is_empty() && object.is_none();
    let orphaned_on = handover::path_of_orphaned_address(seen, forbidden).filter(|_| !comes_from_host);
    let taken_back = taken_back || orphaned_on.is_some();
    if forbidden {
        // an Event about a load balancer that does not exist is no news
        events.retain(|event| event.event_type == EventType::Warning);
    } else {
        let no_effect = |sentence: &String| PendingEvent::warning("AnnotationHasNoEffect", sentence.clone());
        events.extend(kube_vip_sentence.as_ref().map(no_effect));
        events.extend(around(seen, path));
    }
    events.extend(events::keys(config));
    if let Some(object) = object.filter(|object| object.metadata.deletion_timestamp.is_none()) {
        events.extend(events::fixed(object, config, path));
        events.extend(events::overdue_announcement(seen));
        events.extend(families::told(seen, object, path));
        events.extend(requested::told(seen, object));
        events.extend(source_ranges::told(seen, object));
    }
    if path == Datapath::Guest && !forbidden {
        events.extend(network::told(seen));
    }
    let write = match (&seen.load_balancer, &wanted) {
        (Found::Absent, Some(wanted)) if !forbidden => {
            let json = wanted.fresh(&key.namespace, &key.name);
            Some(Write::Create { json, fingerprint: fingerprint(service) })
        }
        (Found::Present(object), wanted) if object.metadata.deletion_timestamp.is_none() => {
            // the report of objects without Service goes by the UID: it is written even while a fault keeps other fields
            let edited = object.edited(|json| match wanted {
                Some(wanted) => wanted.apply(json),
                None => {
                    made_for.mark(json);
                    host_datapath::freeze(seen, object, json);
                }
            });
            source_ranges::give_up(seen, object).or(edited.map(Write::Update))
        }
        _ => None,
    };
    let mut view = View { load_balancer: state(seen, path), ..View::default() };
    let withheld = object.is_some_and(|object| requested::is_withheld(service, config, object));
    if let (LoadBalancerState::Present { addresses }, true) = (&mut view.load_balancer, withheld) {
        addresses.clear();
    }
    let has_address = object.is_some_and(|object| {
        !withheld
            && match path {
                Datapath::Guest => !families::served(service, object).is_empty() && !network::withholds(seen),
                Datapath::Host => status_address(object).is_some() && !taken_back,
            }
    });
    match object {
        Some(object) => (view.waiting, view.again) = waiting(seen, object, path),
        // it is not made before the VMs are known, and then the sentence says what hinders
        None if path == Datapath::Host && wanted.is_none() && faults.is_empty() => {
            view.waiting.clone_from(&seen.vms_out_of_reach);
        }
        None => view.again = seen.given_up.as_ref().map(|given_up| given_up.again),
    }
    // an address that is gone is withdrawn where it was given, also where the flags exclude that now
    match orphaned_on.filter(|path| *path == Datapath::Guest).unwrap_or(path) {
        Datapath::Guest if comes_from_host => view.publish = Publish::Withdrawn,
        Datapath::Guest => {
            let lost = match &seen.held {
                Held::Nothing => handover::given(service, object.map(|object| &**object))
                    .filter(|_| taken_back || withheld),
                // the address of its former primary serves until it has one of its own
                Held::Proven | Held::Valid | Held::Former => None,
                Held::Lost | Held::Refused(_) => sharing::given_with_former(service).filter(|_| !has_address),
            };
            handover::write_annotations_now(seen, lost.is_some() && write.is_none(), &mut view);
            let published = object.filter(|_| !withheld);
            let is_refused = matches!(seen.held, Held::Refused(_));
            let is_of_another =
                |lost: &str| object.is_none_or(|it| allocated(it).join(",") != handover::latest(lost));
            let is_news = |lost: &&String| match orphaned_on {
                Some(_) => handover::is_still_announced(lost, service),
                None => !is_refused && (taken_back || is_of_another(lost)),
            };
            let one_family = handover::taken_back_of_one_family(service, published);
            let news = lost.as_ref().filter(is_news).or(one_family.as_ref());
            let told = if orphaned_on.is_some() { events::orphaned } else { events::taken_back };
            events.extend(news.map(|lost| told(service, lost)));
            (view.annotations, view.publish) = handover::decide(service, published, lost);
            network::bind(seen, &mut view.annotations);
        }
        Datapath::Host => {
            view.annotations = on_host();
            view.removal = Removal::Foreground;
            let lost = orphaned_on.map(|_| ingress(service).join(",")).filter(|lost| !lost.is_empty());
            events.extend(lost.map(|lost| events::orphaned_on_host(service, &lost)));
            let goes = (taken_back || withheld) && seen.held == Held::Nothing || seen.held.is_lost();
            view.publish = match object.and_then(|object| status_address(object)) {
                Some(address) if !taken_back && !withheld => {
                    Publish::Addresses(vec![IngressAddress::parse(address)])
                }
                _ if goes && !seen.shown_by_others => Publish::Withdrawn,
                _ => Publish::Unchanged,
            };
        }
    }
    // as long as it shows the address of its former primary, that one stays
    let leaves = match path {
        Datapath::Guest => seen.held.is_lost() && view.publish != Publish::Withdrawn,
        // there the label comes before the address
        Datapath::Host => {
            let has_nothing = seen.held != Held::Nothing && ingress(service).is_empty() && !seen.is_carried;
            has_nothing || seen.held == Held::Former
        }
    };
    if has_address || leaves {
        view.labels = sharing::own_labels(service);
    }
    if !has_address {
        events.extend(sharing::loss(seen));
        let is_answered = object.is_some_and(|object| not_ready(object).is_some()) || seen.waited >= ANSWER;
        if path == Datapath::Guest && (is_answered || withheld || forbidden || seen.creation_refused) {
            events.extend(events::not_allocated(service));
        }
        if leaves && path == Datapath::Guest {
            // its own object never gave that address, and takes none back
            view.annotations.insert(annotations::ALLOCATED_ADDRESS.to_owned(), None);
        }
    }
    let more = kube_vip_sentence.as_deref().filter(|_| forbidden);
    events.extend(events::refusal(seen, path, &faults, more));
    view.refused = faults;
    Decision { view, write, events }
}

/// For a Service that gives its load balancer up.
fn clean_up(seen: &Seen<'_>) -> Decision<Write> {
    let (service, object) = (seen.service, seen.load_balancer.object());
    let path = settled_datapath(seen).unwrap_or(Datapath::Guest);
    let mut ours = vec![annotations::KUBE_VIP_LOADBALANCER_IPS, annotations::ALLOCATED_ADDRESS];
    let mut view = View { load_balancer: state(seen, path), ..View::default() };
    let mut events = Vec::new();
    match path {
        Datapath::Guest => {
            events.extend(events::still_announced(service, object));
            // without a network it is the user's own
            if !seen.config.network.is_empty() {
                ours.push(annotations::KUBE_VIP_SERVICE_INTERFACE);
            }
        }
        Datapath::Host => {
            ours.extend([annotations::KUBE_VIP_IGNORE, annotations::RECORDED_DATA_PATH]);
            view.removal = Removal::Foreground;
            view.publish = if is_taken_back(object) { Publish::Withdrawn } else { Publish::Unchanged };
        }
    }
    let mut write = None;
    if let Some(kept) = sharing::keep(seen, path) {
        (view.removal, write) = kept;
    }
    if view.load_balancer == LoadBalancerState::Absent && seen.is_carried {
        // node ports are reused: the object of the primary lets go of them first
        (view.load_balancer, view.removal) = (LoadBalancerState::Deleting, Removal::Foreground);
    }
    view.labels = sharing::released_labels(service);
    let record = sharing::record(service).filter(|_| label(service).is_some() && view.labels.is_empty());
    ours.retain(|key| Some(*key) != record);
    view.annotations = ours.into_iter().map(|key| (key.to_owned(), None)).collect();
    Decision { view, write, events }
}

/// The annotations of a Service on the host datapath.
pub(super) fn on_host() -> Annotations {
    let word = Datapath::Host.word().to_owned();
    Annotations::from([
        (annotations::KUBE_VIP_IGNORE.to_owned(), Some("true".to_owned())),
        (annotations::RECORDED_DATA_PATH.to_owned(), Some(word)),
    ])
}

fn state(seen: &Seen<'_>, path: Datapath) -> LoadBalancerState {
    match &seen.load_balancer {
        Found::Unlisted => LoadBalancerState::Unknown(seen.load_balancers_out_of_reach.clone()),
        Found::Absent => LoadBalancerState::Absent,
        Found::Unreadable(why) => LoadBalancerState::Unreadable(why.clone()),
        Found::Present(object) if object.metadata.deletion_timestamp.is_some() => LoadBalancerState::Deleting,
        Found::Present(_) if network::withholds(seen) => LoadBalancerState::Present { addresses: Vec::new() },
        Found::Present(object) => {
            LoadBalancerState::Present { addresses: addresses(object, seen.service, path) }
        }
    }
}

pub(super) fn is_taken_back(object: Option<&RawObject<LoadBalancer>>) -> bool {
    object.is_some_and(|object| allocated(object).is_empty() && not_ready(object).is_some())
}

/// The datapath that is settled: by the object; without one, by the annotations that we leave on a Service that has our
/// finalizer: the clean-up needs them, and so does an object that somebody deleted in Harvester and that comes back.
/// A Service may bring such annotations along, so they choose no datapath that the flags exclude.
pub(super) fn settled_datapath(seen: &Seen<'_>) -> Option<Datapath> {
    let settled = settled(seen.service, seen.load_balancer.object());
    let by_object = seen.load_balancer.object().is_some();
    settled.filter(|path| by_object || !seen.wanted || seen.allowed.admits(*path))
}

/// The same, whatever the flags say. `object`: the Service's own.
pub(super) fn settled(service: &Service, object: Option<&RawObject<LoadBalancer>>) -> Option<Datapath> {
    if let Some(object) = object {
        return Some(Datapath::of_object(&object.spec));
    }
    let is_set = |key: &str, value: Option<&str>| {
        let text = service.annotations().get(key).map(String::as_str).unwrap_or_default();
        value.map_or(!text.is_empty(), |value| text == value)
    };
    if !service.finalizers().iter().any(|name| name == FINALIZER) {
        None
    } else if is_set(annotations::RECORDED_DATA_PATH, Some(Datapath::Host.word())) {
        Some(Datapath::Host)
    } else if is_set(annotations::KUBE_VIP_LOADBALANCER_IPS, None)
        // the Go program leaves only the first of the two
        || is_set(annotations::ALLOCATED_ADDRESS, None)
    {
        Some(Datapath::Guest)
    } else {
        None
    }
}

/// Events about the cluster around a Service that asks for a load balancer.
fn around(seen: &Seen<'_>, path: Datapath) -> Vec<PendingEvent> {
    let mut events = Vec::new();
    let nobody = |backends: &Backends| backends.eligible.is_empty() && backends.nodes_without_vm.is_empty();
    // on the host datapath it is a fault
    if path == Datapath::Guest && seen.backends.as_ref().is_some_and(nobody) {
        events.push(PendingEvent::warning("UnAvailableLoadBalancer", NO_NODES));
    }
    // once for each Service, and not again after every restart (docs/contract/user-docs.md#17e)
    let is_new = !seen.service.finalizers().iter().any(|name| name == FINALIZER);
    let cluster = &seen.identity.cluster;
    if is_new && cluster.is_anonymous() {
        let sentence = format!(
            "this guest cluster has no name of its own (--cluster-name is {:?}), so Harvester cannot tell its load \
             balancers from those of other nameless clusters: set global.cattle.clusterName in the chart",
            cluster.name()
        );
        events.push(PendingEvent::warning("ClusterNameNotSet", sentence));
    }
    events
}

/// Why there is no address, and when to decide again.
fn waiting(
    seen: &Seen<'_>,
    object: &RawObject<LoadBalancer>,
    path: Datapath,
) -> (Option<String>, Option<Duration>) {
    let Some(phase) = seen.phase() else { return (None, None) };
    let lacks_family = path == Datapath::Guest && !families::lacking(seen.service, object).is_empty();
    if phase == Phase::Allocation && lacks_family {
        // an Event says why
        return (None, families::again(seen));
    }
    let limit = match phase {
        Phase::Allocation | Phase::Demand(_) | Phase::Confirmation(_) | Phase::Wish(_) => ANSWER,
        Phase::Announcement | Phase::Publication(_) => ANNOUNCEMENT,
    };
    let again = limit.checked_sub(seen.waited).filter(|rest| !rest.is_zero());
    match (&phase, &seen.load_balancers_out_of_reach) {
        (Phase::Publication(_) | Phase::Wish(_), _) | (Phase::Announcement, None) => return (None, again),
        // an answer of Harvester would not arrive
        (Phase::Allocation | Phase::Demand(_) | Phase::Confirmation(_) | Phase::Announcement, Some(why)) => {
            return (Some(why.clone()), again);
        }
        // Events say it
        (Phase::Allocation | Phase::Demand(_), None) if requested::is_refused(object, &phase) => {
            return (None, None);
        }
        (Phase::Allocation, None) => {}
        (Phase::Confirmation(_), None) => {
            let hindered =
                not_ready(object).filter(|_| again.is_none() && requested::is_of_this_project(object));
            return (hindered.map(|ready| ready.message.clone()), again);
        }
        (Phase::Demand(_), None) if again.is_some() || requested::is_of_this_project(object) => {}
        (Phase::Demand(_), None) => {
            let message = not_ready(object).map(|ready| ready.message.clone());
            return (message.filter(|message| !message.is_empty()), None);
        }
    }
    let hint = match path {
        Datapath::Host => {
            " (annotation cloudprovider.harvesterhci.io/data-path: guest on a new Service may have another pool)"
        }
        Datapath::Guest => "",
    };
    match not_ready(object).map(|ready| ready.message.as_str()).filter(|message| !message.is_empty()) {
        Some(message) => (Some(format!("{message}{hint}")), None),
        None if again.is_none() => {
            let seconds = limit.as_secs();
            (Some(format!("Harvester has not answered for {seconds} s: is its load balancer running?")), None)
        }
        None => (None, again),
    }
}

/// The addresses by which the Service can be reached, as far as we know.
fn addresses(object: &LoadBalancer, service: &Service, path: Datapath) -> Vec<IngressAddress> {
    let parse = |texts: Vec<&str>| texts.into_iter().map(IngressAddress::parse).collect();
    match path {
        Datapath::Host => parse(status_address(object).into_iter().collect()),
        Datapath::Guest if is_leased(object) && !families::served(service, object).is_empty() => {
            parse(leased(service))
        }
        Datapath::Guest => parse(families::served(service, object)),
    }
}

/// The load balancer controller's answer, if that is no.
fn not_ready(object: &LoadBalancer) -> Option<&Condition> {
    let conditions = object.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    condition::ready(conditions).filter(|ready| ready.status == ConditionStatus::False)
}

/// The addresses that Harvester allocated, IPv4 first; [`DHCP_ADDRESS`] where kube-vip gets one by DHCP.
pub(crate) fn allocated(object: &LoadBalancer) -> Vec<&str> {
    let Some(allocated) = object.status.as_ref().and_then(|status| status.allocated_address.as_ref()) else {
        return Vec::new();
    };
    allocated.primary().into_iter().chain(allocated.ipv6()).map(|(_, ip)| ip).collect()
}

pub(super) fn is_leased(object: &LoadBalancer) -> bool {
    allocated(object) == [DHCP_ADDRESS]
}

/// `status.address`, once that is a real address.
pub(super) fn status_address(object: &LoadBalancer) -> Option<&str> {
    let address = object.status.as_ref().map(|status| status.address.as_str()).unwrap_or_default();
    (!address.is_empty() && address != DHCP_ADDRESS).then_some(address)
}

/// The addresses in the Service's status; on the guest datapath kube-vip writes them.
pub(crate) fn ingress(service: &Service) -> Vec<&str> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let entries = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    entries.iter().filter_map(|entry| entry.ip.as_deref()).filter(|ip| !ip.is_empty()).collect()
}

#[cfg(test)]
mod tests;
