//! A Service that shares the address of another one, its primary, and has no object of its own.
//!
//! ```text
//! guest   label: primary, loadbalancerIPs: X    in one PATCH; kube-vip announces X for this Service too
//! host    label: primary, kube-vip.io/ignore    in one PATCH; then the ports join the primary's listeners, then the
//!                                               status says X
//! ```
//! The label says who uses an address: while it is there the primary's object stays. So it comes with the address, and
//! goes with it or after it. A Service that was given another address keeps the former primary too, by its status, as long
//! as that shows the former address. On the host datapath the former primary's object carries its ports so long.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cloud_provider::{Decision, IngressAddress, Labels, LoadBalancerState, Publish, Removal, View};
use controller_kit::{Explanation, ObjectKey, PendingEvent, RawObject};
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Found, Phase, Seen, Write, allocated, events,
    families::{listed, same},
    handover,
    host_datapath::{hinders_sharing, keep_for_secondaries},
    ingress, settled_datapath, status_address,
};
use crate::{
    datapath::{Datapath, choose},
    load_balancers::{
        object::{ForService, listeners_of_secondary, object as object_at, prefix_of_secondary},
        sharing::{label, label_value},
    },
};

/// A Service's part in sharing.
#[derive(Clone, Debug)]
pub(crate) enum Sharing {
    /// It asks for no address of another Service.
    Own,
    With(Primary),
    /// What is missing may come; the sentence says what.
    Waits(String),
    Refused {
        /// `None`: the faults of the Service say it.
        fault: Option<Explanation>,
        /// It uses the address, and may no longer.
        revoked: bool,
    },
}

/// The Service that shares its address, and its object.
#[derive(Clone, Debug)]
pub(crate) struct Primary {
    pub(crate) service: ObjectKey,
    pub(crate) path: Datapath,
    pub(crate) address: Option<String>,
    /// Of its address: its annotation may have changed since the object was made.
    pub(crate) network: Option<String>,
    /// Host datapath: the ports of this Service are among the listeners of the object.
    pub(crate) carries: bool,
    /// Harvester took the address back.
    pub(crate) taken_back: bool,
}

/// The address that a Service was given with its label.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Held {
    /// There is no label.
    #[default]
    Nothing,
    /// The object of the primary that the label names has it.
    Proven,
    /// Nothing says that this primary has it no more. The annotations that say that it has it are written by whoever writes
    /// the two Services.
    Valid,
    /// Host datapath: the status shows the address of a primary that the label names no more, and that carries the ports
    /// until another one does.
    Former,
    /// The primary is gone, or has another address, or none.
    Lost,
    /// The primary has it, and no place for this Service.
    Refused(Explanation),
}

impl Held {
    /// Whether the Service may use it no more.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost | Self::Refused(_))
    }
}

/// The Services that use the address of this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secondaries {
    pub(crate) all: Vec<ObjectKey>,
    /// Their ports are to be listeners on the host datapath.
    pub(crate) carried: Vec<Arc<Service>>,
    /// The status of one that we serve shows the address.
    pub(crate) shown: bool,
}

impl Secondaries {
    /// Gives the object the listeners of the secondaries that it carries, and no other secondary's. Its own stay, and no
    /// port is there twice.
    pub(super) fn carry(&self, json: &mut Value) {
        let spec = object_at(json, "spec");
        let listeners = spec.get("listeners").and_then(Value::as_array);
        let is_own = |it: &&Value| prefix_of_secondary(it["name"].as_str().unwrap_or_default()).is_none();
        let mut wanted: Vec<_> = listeners.into_iter().flatten().filter(is_own).cloned().collect();
        // one that cannot be carried was not admitted
        for listener in self.carried.iter().flat_map(|it| listeners_of_secondary(it).unwrap_or_default()) {
            let has = |it: &Value| it["port"] == listener.port && it["protocol"] == *listener.protocol;
            if !wanted.iter().any(has) {
                wanted.push(json!(listener));
            }
        }
        if listeners.map_or(&[][..], Vec::as_slice) != wanted {
            spec.insert("listeners".to_owned(), Value::Array(wanted));
        }
    }
}

/// For a Service that may share the address of this primary.
pub(super) fn share(seen: &Seen<'_>, primary: &Primary) -> Decision<Write> {
    let service = seen.service;
    let parse = |text: &String| text.split(',').map(IngressAddress::parse).collect::<Vec<_>>();
    let addresses = primary.address.as_ref().map(parse).unwrap_or_default();
    let mut view = View { labels: labelled(&label_value(&primary.service)), ..View::default() };
    let own = seen.load_balancer.object();
    let (in_place, arrives);
    match primary.path {
        Datapath::Guest => {
            let address = primary.address.as_deref().unwrap_or_default();
            let shared: Vec<_> = listed(address).collect();
            let before = service.annotations().get(annotations::ALLOCATED_ADDRESS).map(String::as_str);
            (view.annotations, view.publish) = handover::hand_over(service, &shared, before);
            // as the Go program does (docs/contract/cloud-controller-manager.md#9.3)
            view.annotations.extend(
                [annotations::KUBE_VIP_SERVICE_INTERFACE, annotations::IPAM]
                    .map(|key| (key.to_owned(), None)),
            );
            let network = primary.network.clone().filter(|network| !network.is_empty());
            view.annotations.extend(network.map(|it| (annotations::SERVICE_NETWORK.to_owned(), Some(it))));
            view.load_balancer = LoadBalancerState::Present { addresses };
            // Harvester gives the address of an object that goes to the next one at once
            let is_own = |ip: &str| {
                own.is_some_and(|own| {
                    allocated(own).into_iter().chain(status_address(own)).any(|own| same(own, ip))
                })
            };
            let is_shared = |ip: &str| shared.iter().any(|shared| same(shared, ip));
            in_place = !ingress(service).into_iter().any(|ip| is_own(ip) && !is_shared(ip));
            arrives = false;
        }
        Datapath::Host => {
            view.annotations = super::on_host();
            view.removal = Removal::Foreground;
            let published = if primary.carries { addresses } else { Vec::new() };
            let is_lost = seen.held.is_lost() && published.is_empty() && !shows_own(seen);
            view.publish = match &published[..] {
                // another controller would write its own again
                _ if (primary.taken_back || is_lost) && !seen.shown_by_others => Publish::Withdrawn,
                _ if primary.taken_back => Publish::Unchanged,
                [] => Publish::Unchanged,
                _ => Publish::Addresses(published.clone()),
            };
            let shown: Vec<_> = ingress(service).into_iter().map(IngressAddress::parse).collect();
            in_place = !published.is_empty() && shown == published;
            arrives = !published.is_empty() && !in_place && !primary.taken_back;
            view.load_balancer = LoadBalancerState::Present { addresses: published };
        }
    }
    // what this Service had before it shared goes when it is used no more
    let own = own.filter(|own| own.metadata.deletion_timestamp.is_none());
    let write = match own {
        Some(_) if in_place && seen.secondaries.all.is_empty() => Some(Write::Delete(seen.key.clone())),
        // it is written after the address is shown: as long as the write is refused it would hold the Service off from that
        Some(_) if arrives => None,
        Some(own) => kept(seen, own).map(Write::Update),
        None => None,
    };
    let mut events = events::keys(&seen.config);
    events.extend(events::about_sharing(&seen.config));
    events.extend(events::overdue_announcement(seen));
    events.extend(loss(seen).filter(|_| view.publish == Publish::Withdrawn));
    view.again = again(seen);
    Decision { view, write, events }
}

/// For a Service that asks for the address of another one and cannot have it now: it has no object of its own. It keeps
/// what it was given before, as long as that is its to use.
pub(super) fn hold(seen: &Seen<'_>) -> Decision<Write> {
    let service = seen.service;
    let path = settled_datapath(seen).unwrap_or(Datapath::Guest);
    let (mut events, revoked) = (events::keys(&seen.config), is_revoked(seen));
    let mut view = View::default();
    let given = match seen.held {
        // by an object of its own, which is gone
        Held::Nothing => handover::orphaned(service),
        Held::Proven | Held::Valid | Held::Former | Held::Lost | Held::Refused(_) => {
            given_with_former(service)
        }
    };
    let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let is_asked = given.is_some() && asked == given.as_deref().map(handover::latest).as_ref();
    let is_of_others = path == Datapath::Host && seen.shown_by_others;
    let shows = match path {
        Datapath::Host => !ingress(service).is_empty() && !is_of_others || seen.is_carried,
        Datapath::Guest => given.as_ref().is_some_and(|lost| handover::came_of(lost, service)),
    };
    let goes_on = goes_on(seen);
    if seen.held == Held::Nothing && (!is_asked && !shows || !handover::is_right_harvester(seen)) {
        // a wish that kube-vip announces by itself was not given to the Service
        let keeps = is_asked || ingress(service).iter().any(|ip| !handover::is_wished(service, ip));
        events.extend(told(seen, keeps));
        events.extend(events::not_allocated(service));
        return Decision { view, write: None, events };
    }
    events.extend(told(seen, goes_on));
    if path == Datapath::Host {
        view.annotations = super::on_host();
        view.removal = Removal::Foreground;
        view.publish = Publish::Unchanged;
    }
    if goes_on {
        if seen.held == Held::Former {
            // it has come to nothing at the primary that the label names
            view.labels = own_labels(service);
        }
        let addresses = ingress(service).into_iter().map(IngressAddress::parse).collect();
        view.load_balancer = LoadBalancerState::Present { addresses };
        if let Some(given) = given.filter(|_| path == Datapath::Guest && asked.is_none_or(String::is_empty)) {
            // it was of another type for a while, or was to let go of the address
            let latest = handover::latest(&given);
            let addresses: Vec<_> = listed(&latest).collect();
            // no author of Services has any address written into a status
            if seen.held == Held::Proven || !handover::comes_back(service, &latest, Some(&given)) {
                let (handed, publish) = handover::hand_over(service, &addresses, Some(&given));
                view.annotations.extend(handed);
                view.publish = publish;
            }
        }
        let asks = asked.is_some_and(|asked| !asked.is_empty())
            || view.annotations.contains_key(annotations::KUBE_VIP_LOADBALANCER_IPS);
        events.extend(events::overdue_announcement(seen).filter(|_| asks));
        view.again = again(seen);
        return Decision { view, write: None, events };
    }
    if path == Datapath::Guest {
        events.extend(events::not_allocated(service));
    }
    view.load_balancer = LoadBalancerState::Present { addresses: Vec::new() };
    if shows {
        // what another controller shows it would show again
        view.publish = if is_of_others { Publish::Unchanged } else { Publish::Withdrawn };
    } else {
        // the last word: from now on the primary may go
        view.labels = own_labels(service);
    }
    let is_orphaned = seen.held == Held::Nothing;
    if path == Datapath::Host && is_orphaned && view.publish == Publish::Withdrawn {
        let lost = Some(ingress(service).join(",")).filter(|lost| !lost.is_empty());
        events.extend(lost.map(|lost| events::orphaned_on_host_while_it_waits(service, &lost)));
    }
    if path == Datapath::Guest
        && let Some(lost) = given
    {
        let told = if is_orphaned { events::orphaned_while_it_waits } else { events::taken_back };
        events.extend((!revoked && (shows || is_asked)).then(|| told(service, &lost)));
        view.annotations.extend(handover::withdrawing(service, lost));
    }
    Decision { view, write: None, events }
}

/// How the object of a Service that gives its load balancer up goes while others use its address, and what is written to
/// it until then.
pub(super) fn keep(seen: &Seen<'_>, path: Datapath) -> Option<(Removal, Option<Write>)> {
    let users = &seen.secondaries;
    // without an object no secondary loses its address
    if users.all.is_empty() || matches!(seen.load_balancer, Found::Absent) {
        return None;
    }
    let object = seen.load_balancer.object();
    if object.is_some_and(|object| object.metadata.deletion_timestamp.is_some()) {
        // nobody keeps it, and until it is gone it leads to the node ports of those that use it
        return Some((Removal::Foreground, None));
    }
    let kept = object.and_then(|object| kept(seen, object));
    let is_empty = |json: &Value| {
        path == Datapath::Host && json["spec"]["listeners"].as_array().is_some_and(Vec::is_empty)
    };
    let blocked = Removal::Blocked(events::in_use(&seen.key, &users.all));
    match kept {
        // no object is without listeners: this one goes, and then those that wait for it. A Service that others serve had
        // none there
        Some(json) if is_empty(&json) => None,
        kept => Some((blocked, kept.map(Write::Update))),
    }
}

/// The object of a Service that gives it up, while others use its address or it has no other one: its labels are how a
/// change of it finds them.
fn kept(seen: &Seen<'_>, object: &RawObject<LoadBalancer>) -> Option<Value> {
    object.edited(|json| {
        ForService { identity: &seen.identity, service: seen.service }.mark(json);
        // a secondary that is deleted waits until it is in no object. On the guest datapath listeners are none of ours
        if Datapath::of_object(&object.spec) == Datapath::Host {
            keep_for_secondaries(seen, object, json);
        }
    })
}

/// Whether a Service that cannot share now keeps what it was given. On the host datapath the label comes before the
/// address: without that it keeps the primary for nothing.
pub(super) fn goes_on(seen: &Seen<'_>) -> bool {
    let has_it = || settled_datapath(seen) != Some(Datapath::Host) || !ingress(seen.service).is_empty();
    match (&seen.sharing, &seen.held) {
        (Sharing::Own | Sharing::With(_), _) | (_, Held::Nothing | Held::Lost | Held::Refused(_)) => false,
        // no word of the next primary is about the former one
        (_, Held::Former) => true,
        (Sharing::Refused { revoked, .. }, Held::Proven | Held::Valid) => !revoked && has_it(),
        (Sharing::Waits(_), Held::Proven | Held::Valid) => has_it(),
    }
}

fn is_revoked(seen: &Seen<'_>) -> bool {
    matches!(seen.sharing, Sharing::Refused { revoked: true, .. })
}

/// Whether the status shows an address of the own object.
fn shows_own(seen: &Seen<'_>) -> bool {
    let own = seen.load_balancer.object();
    let own: Vec<_> =
        own.into_iter().flat_map(|own| allocated(own).into_iter().chain(status_address(own))).collect();
    ingress(seen.service).iter().any(|shown| own.iter().any(|ip| same(ip, shown)))
}

/// When to look whether kube-vip shows the address.
fn again(seen: &Seen<'_>) -> Option<Duration> {
    let publishes = matches!(seen.phase(), Some(Phase::Publication(_)));
    super::ANNOUNCEMENT.checked_sub(seen.waited).filter(|rest| !rest.is_zero() && publishes)
}

/// What stands in the way of sharing.
pub(super) fn told(seen: &Seen<'_>, goes_on: bool) -> Option<PendingEvent> {
    let key = ObjectKey::of(seen.service);
    let (fault, why) = match &seen.sharing {
        Sharing::Own | Sharing::With(_) => return None,
        Sharing::Waits(why) => (None, Some(why.as_str())),
        Sharing::Refused { fault, .. } => (fault.as_ref(), None),
    };
    let path = choose(seen.policy, seen.allowed, &seen.config, settled_datapath(seen)).path;
    let hinders =
        if path == Datapath::Host { hinders_sharing(seen.service, &seen.config) } else { Vec::new() };
    let mut faults: Vec<&Explanation> = Vec::new();
    for fault in fault.into_iter().chain(&seen.config.faults).chain(&hinders) {
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    let sentences: Vec<_> = faults.iter().map(|fault| fault.message.as_str()).chain(why).collect();
    let now = match given(seen.service).filter(|_| goes_on) {
        _ if goes_on && !ingress(seen.service).is_empty() => "it keeps the address that it has".to_owned(),
        Some(given) => format!("it keeps {given}, which its status does not show yet"),
        None => "it has no address".to_owned(),
    };
    let sentences = sentences.join("; ");
    Some(match faults.first() {
        Some(first) => PendingEvent::warning(
            first.reason,
            format!("service {key} does not share an address: {sentences}; {now}"),
        ),
        None => PendingEvent::normal(
            "WaitingForPrimary",
            format!("service {key} waits: {sentences}; until then {now}"),
        ),
    })
}

/// The Event about a Service that waits for another address and may not use the shared one so long.
pub(super) fn loss(seen: &Seen<'_>) -> Option<PendingEvent> {
    // one that is refused by the next primary is told so
    let (Held::Refused(fault), Sharing::Own | Sharing::Waits(_) | Sharing::With(_)) =
        (&seen.held, &seen.sharing)
    else {
        return None;
    };
    let asked = seen.service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let shown = ingress(seen.service);
    let lost = asked
        .filter(|asked| !asked.is_empty())
        .cloned()
        .or_else(|| shown.first().map(|ip| (*ip).to_owned()))?;
    let key = ObjectKey::of(seen.service);
    let sentence = format!(
        "service {key} lost {lost}, which it shared, before it has another address: {}",
        fault.message
    );
    Some(PendingEvent::warning(fault.reason, sentence))
}

/// The label of a Service that gives its load balancer up. While kube-vip may announce the address it stays: the
/// primary keeps its object as long (docs/contract/cloud-controller-manager.md#L15).
pub(super) fn released_labels(service: &Service) -> Labels {
    let announcer = service.annotations().get(annotations::KUBE_VIP_VIP_HOST);
    let announced = label(service).is_some() && announcer.is_some_and(|node| !node.is_empty());
    if announced { Labels::new() } else { BTreeMap::from([(labels::PRIMARY_SERVICE.to_owned(), None)]) }
}

/// The annotation that says which address came with the label, as [`given`]. With the label it says that the primary has to
/// keep that address; by itself the label may be anybody's.
pub(super) fn record(service: &Service) -> Option<&'static str> {
    let has = |key: &&str| service.annotations().get(*key).is_some_and(|text| !text.is_empty());
    // kube-vip does not act on our record
    [annotations::ALLOCATED_ADDRESS, annotations::KUBE_VIP_LOADBALANCER_IPS].into_iter().find(has)
}

/// The label of a Service that uses the address of no other any more.
pub(super) fn own_labels(service: &Service) -> Labels {
    if label(service).is_some() { labelled("") } else { Labels::new() }
}

fn labelled(value: &str) -> Labels {
    BTreeMap::from([(labels::PRIMARY_SERVICE.to_owned(), Some(value.to_owned()))])
}

/// The address that came with the label; the Go program keeps no record of it.
pub(crate) fn given(service: &Service) -> Option<String> {
    let text = |key: &str| service.annotations().get(key).filter(|text| !text.is_empty()).cloned();
    let recorded = || text(annotations::ALLOCATED_ADDRESS).map(|recorded| handover::latest(&recorded));
    text(annotations::KUBE_VIP_LOADBALANCER_IPS).or_else(recorded)
}

/// As [`given`], with the former addresses that the status may still show.
pub(super) fn given_with_former(service: &Service) -> Option<String> {
    let given = given(service)?;
    let recorded = service.annotations().get(annotations::ALLOCATED_ADDRESS);
    Some(recorded.filter(|recorded| handover::latest(recorded) == given).cloned().unwrap_or(given))
}

/// Phase of a Service that keeps the address that it was given, and that kube-vip does not show.
pub(super) fn phase_of_kept(service: &Service, path: Option<Datapath>) -> Option<Phase> {
    let given = given(service).filter(|_| path != Some(Datapath::Host))?;
    let shown = ingress(service);
    let missing: Vec<_> = listed(&given).filter(|ip| !shown.iter().any(|shown| same(shown, ip))).collect();
    (!missing.is_empty()).then(|| Phase::Publication(missing.join(",")))
}

/// Phase of a Service on the guest datapath that waits for kube-vip to announce the shared address too.
pub(super) fn phase(service: &Service, primary: &Primary) -> Option<Phase> {
    let address = primary.address.as_ref().filter(|_| primary.path == Datapath::Guest)?;
    let shown = ingress(service);
    let missing: Vec<_> = listed(address).filter(|ip| !shown.iter().any(|shown| same(shown, ip))).collect();
    (!missing.is_empty()).then(|| Phase::Publication(missing.join(",")))
}

#[cfg(test)]
mod tests;
