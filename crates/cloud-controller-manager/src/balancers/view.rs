//! What there is and what should be, for one Service: the decision. No clock, no cache, no client.

use std::{collections::BTreeMap, time::Duration};

use cloud_provider::{Balancer, Notice, Publish, View};
use controller_kit::Kept;
use harvester_api::{ConditionStatus, LoadBalancer, annotations, condition, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{
    object::{Carried, Identity, Wanted, listeners},
    selector::select,
};
use crate::{
    data_path::{Allowed, DataPath, Policy, choose},
    machines::Backends,
    wishes::{Fault, REFUSED, Wishes, health_check},
};

/// Harvester answers a new object within a fraction of a second; after this time its silence is told.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// An address that was allocated for so long and is not announced: nothing will announce it.
pub(super) const ANNOUNCEMENT: Duration = Duration::from_secs(60);

/// What the world looked like.
#[derive(Clone, Debug)]
pub(super) struct Sight<'a> {
    pub(super) identity: &'a Identity,
    pub(super) policy: Policy,
    pub(super) allowed: Allowed,
    pub(super) service: &'a Service,
    pub(super) wishes: &'a Wishes,
    pub(super) balancer: Found<'a>,
    /// `None` while the VMs are not known.
    pub(super) backends: Option<Backends>,
    /// How long the object has been in its [`Phase`].
    pub(super) waited: Duration,
}

/// The object of the Service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    Absent,
    Present(&'a Kept<LoadBalancer>),
    Unreadable(&'a str),
}

/// What an object waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Allocation,
    Announcement,
}

/// What `balancer` waits for, if anything.
pub(super) fn phase(balancer: &LoadBalancer) -> Option<Phase> {
    let path = DataPath::recorded(&balancer.spec);
    match (allocated(balancer), path) {
        ("", _) => Some(Phase::Allocation),
        (_, DataPath::Host) if announced(balancer).is_none() => Some(Phase::Announcement),
        _ => None,
    }
}

/// The view, and the object as it should be, where that is known and nothing forbids it.
pub(super) fn judge<'a>(sight: &Sight<'a>) -> (View, Option<Wanted<'a>>) {
    let Sight { identity, policy, allowed, service, wishes, balancer, backends: _, waited } = sight;
    let present = match balancer {
        Found::Present(balancer) => Some(*balancer),
        Found::Absent | Found::Unreadable(_) => None,
    };
    let choice = choose(*policy, *allowed, wishes, recorded(service, present));
    let path = choice.path;
    let mut faults = wishes.faults.clone();
    faults.extend(choice.refusal);
    let mut view = View { notices: choice.notices, ..View::default() };
    let carried = match path {
        DataPath::Guest => Some(Carried::Guest { announced: ingress(service) }),
        DataPath::Host => host(sight, present.is_some(), &mut faults, &mut view.notices),
    };
    let (identity, service, wishes) = (*identity, *service, *wishes);
    let wanted = carried.map(|carried| Wanted { identity, service, wishes, carried });
    let refused = refusal(service, &faults, present.is_some());
    let forbidden = refused.is_some() && present.is_none();

    view.notices.extend(remarks(wishes, path));
    view.own_annotations.push(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned());
    view.balancer = match balancer {
        Found::Absent => Balancer::Absent,
        Found::Unreadable(why) => Balancer::Unreadable((*why).to_owned()),
        Found::Present(balancer) if balancer.metadata.deletion_timestamp.is_some() => Balancer::Leaving,
        Found::Present(balancer) => {
            view.notices.extend(fixed(balancer, wishes, path));
            let in_step =
                wanted.as_ref().is_none_or(|wanted| balancer.edited(|json| wanted.apply(json)).is_none());
            Balancer::Present { in_step, address: working(balancer, service, path) }
        }
    };
    if let Some(balancer) = present {
        let (waiting, again) = waiting(balancer, path, *waited);
        (view.waiting, view.again) = (waiting, again);
        if path == DataPath::Host && phase(balancer) == Some(Phase::Announcement) && *waited >= ANNOUNCEMENT {
            let sentence = "Harvester has allocated an address and does not announce it: its kube-vip may need the load \
                balancer of this project; annotation cloudprovider.harvesterhci.io/data-path: guest on a new Service \
                has it announced in the guest";
            view.notices.push(Notice::warning("HostNotAnnouncing", sentence));
        }
    }
    match path {
        DataPath::Guest => {
            if let Some(ip) = present.map(|balancer| allocated(balancer)).filter(|ip| !ip.is_empty()) {
                view.after = mark(annotations::KUBE_VIP_LOADBALANCER_IPS, ip);
            }
        }
        DataPath::Host => {
            view.before = mark(annotations::KUBE_VIP_IGNORE, "true");
            view.own_annotations.push(annotations::KUBE_VIP_IGNORE.to_owned());
            view.outlives = true;
            let address = present.and_then(|balancer| announced(balancer));
            view.publish = address.map_or(Publish::Nothing, |address| Publish::Address(address.to_owned()));
        }
    }
    match refused {
        Some(notice) if forbidden => view.refusals.push(notice),
        Some(notice) => view.notices.push(notice),
        // not known yet: nothing to tell, and nothing to make
        None => view.held = wanted.is_none() && present.is_none(),
    }
    (view, wanted.filter(|_| !forbidden))
}

/// The path that is settled: by the object; without one, by the mark that we leave on a Service of the host path,
/// which tells a later process how to clean up.
fn recorded(service: &Service, present: Option<&Kept<LoadBalancer>>) -> Option<DataPath> {
    let marked =
        || service.annotations().get(annotations::KUBE_VIP_IGNORE).is_some_and(|value| value == "true");
    let leaving = service.metadata.deletion_timestamp.is_some()
        || service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) != Some("LoadBalancer");
    present
        .map(|balancer| DataPath::recorded(&balancer.spec))
        .or_else(|| (leaving && marked()).then_some(DataPath::Host))
}

/// What the host path needs of a Service and of the cluster; faults and remarks are added where they belong.
fn host(
    sight: &Sight<'_>,
    exists: bool,
    faults: &mut Vec<Fault>,
    notices: &mut Vec<Notice>,
) -> Option<Carried> {
    let Sight { identity, service, wishes, backends, .. } = sight;
    let spec = service.spec.as_ref();
    let own = faults.len();
    let listeners = listeners(service).map_err(|found| faults.extend(found)).ok();
    let check = health_check(service).map_err(|found| faults.extend(found)).ok();
    if !wishes.network.is_empty() {
        let sentence = format!(
            "annotation {} is not for the data path host, which speaks on the management network: remove it, or use data-path: guest",
            annotations::SERVICE_NETWORK
        );
        faults.push(Fault::new("NetworkNotSupported", sentence));
    }
    if spec.and_then(|spec| spec.ip_families.as_deref()).is_some_and(|families| families == ["IPv6"]) {
        faults.push(Fault::new("IPFamilyNotSupported", "the data path host has IPv4 addresses only"));
    }
    if spec.and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local") {
        if matches!(check, Some(None)) {
            let sentence = format!(
                "externalTrafficPolicy Local needs a health check on the data path host: set annotation {}",
                annotations::HEALTH_CHECK_PORT
            );
            faults.push(Fault::new("HealthCheckNeeded", sentence));
        }
        let sentence =
            "externalTrafficPolicy Local does not preserve the client's address on the data path host";
        notices.push(Notice::normal("ClientAddressNotPreserved", sentence));
    }
    let has = |key: &str| service.annotations().get(key).is_some_and(|value| !value.is_empty());
    let shown = has(annotations::KUBE_VIP_VIP_HOST);
    if exists && shown {
        let sentence = "kube-vip in the guest announces this address too and does not let go of it: restart kube-vip, or \
            create the Service anew";
        notices.push(Notice::warning("VipAnnouncedTwice", sentence));
    } else if !exists && (shown || has(annotations::KUBE_VIP_LOADBALANCER_IPS)) {
        let sentence = "kube-vip in the guest has announced this Service and would announce its address a second time: \
            create the Service anew for the data path host";
        faults.push(Fault::new("AnnouncedInGuest", sentence));
    }

    let backends = backends.as_ref()?;
    if !backends.nodes_without_vm.is_empty() {
        let sentence =
            format!("no VM is known for nodes {}: they get no traffic", backends.nodes_without_vm.join(", "));
        notices.push(Notice::warning("NodeWithoutVM", sentence));
    }
    if backends.eligible.is_empty() {
        let sentence = "There are no available nodes for the load balancer";
        if exists {
            notices.push(Notice::warning("UnAvailableLoadBalancer", sentence));
        } else {
            faults.push(Fault::new("UnAvailableLoadBalancer", sentence));
        }
        return None;
    }
    let selector = select(&identity.cluster, &backends.eligible, &backends.all).map_err(|vms| {
        let sentence = format!(
            "VMs {} have neither label guestcluster.harvesterhci.io/name={} nor harvesterhci.io/vmName: label them and their templates in Harvester",
            vms.join(", "),
            identity.cluster.name()
        );
        faults.push(Fault::new("NodesNotSelectable", sentence));
    });
    let carried = Carried::Host { listeners: listeners?, selector: selector.ok()?, health_check: check? };
    // an object that exists follows what can be followed; a new one is made only without fault
    (exists && faults.len() == own || faults.is_empty()).then_some(carried)
}

/// All faults in one Event.
fn refusal(service: &Service, faults: &[Fault], exists: bool) -> Option<Notice> {
    let first = faults.first()?;
    let sentences: Vec<_> = faults.iter().map(|fault| fault.message.as_str()).collect();
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let what = if exists { "the load balancer stays as it is" } else { "no load balancer" };
    Some(Notice::warning(
        first.reason,
        format!("{what} for service {namespace}/{name}: {}", sentences.join("; ")),
    ))
}

/// Keys without effect, in one Event.
fn remarks(wishes: &Wishes, path: DataPath) -> Vec<Notice> {
    let mut notices = Vec::new();
    let told_elsewhere = |key: &&str| {
        REFUSED.contains(key) || (path == DataPath::Host && *key == annotations::SERVICE_NETWORK)
    };
    let keys: Vec<&str> = wishes.later.iter().copied().filter(|key| !told_elsewhere(key)).collect();
    if !keys.is_empty() {
        let network = if keys.contains(&annotations::SERVICE_NETWORK) {
            "; the network chooses the pool, but no interface of the nodes"
        } else {
            ""
        };
        let sentence = format!("this version does not act on {}{network}", keys.join(", "));
        notices.push(Notice::warning("NotSupported", sentence));
    }
    if !wishes.misplaced.is_empty() {
        let sentence = format!(
            "{} are keys of objects in Harvester and have no effect on a Service: use cloudprovider.harvesterhci.io/…",
            wishes.misplaced.join(", ")
        );
        notices.push(Notice::warning("AnnotationHasNoEffect", sentence));
    }
    notices
}

/// What was decided at creation and is wished otherwise now.
fn fixed(balancer: &LoadBalancer, wishes: &Wishes, path: DataPath) -> Vec<Notice> {
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

/// Why there is no address, and when to look again.
fn waiting(balancer: &LoadBalancer, path: DataPath, waited: Duration) -> (Option<String>, Option<Duration>) {
    let Some(phase) = phase(balancer) else { return (None, None) };
    let limit = match phase {
        Phase::Allocation => ANSWER,
        Phase::Announcement => ANNOUNCEMENT,
    };
    let again = limit.checked_sub(waited).filter(|rest| !rest.is_zero());
    if phase == Phase::Announcement {
        return (None, again);
    }
    let conditions = balancer.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let not_ready = condition::ready(conditions).filter(|ready| ready.status == ConditionStatus::False);
    let hint = match path {
        DataPath::Host => {
            " (annotation cloudprovider.harvesterhci.io/data-path: guest on a new Service may have another pool)"
        }
        DataPath::Guest => "",
    };
    match not_ready.map(|ready| ready.message.as_str()).filter(|message| !message.is_empty()) {
        Some(message) => (Some(format!("{message}{hint}")), None),
        None if again.is_none() => {
            let sentence = format!(
                "Harvester has not answered for {} s: is its load balancer running?",
                limit.as_secs()
            );
            (Some(sentence), None)
        }
        None => (None, again),
    }
}

/// The address by which the Service can be reached, as far as we know.
fn working(balancer: &LoadBalancer, service: &Service, path: DataPath) -> Option<String> {
    match path {
        DataPath::Host => announced(balancer).map(str::to_owned),
        DataPath::Guest if allocated(balancer) == DHCP_ADDRESS => ingress(service),
        DataPath::Guest => Some(allocated(balancer).to_owned()).filter(|ip| !ip.is_empty()),
    }
}

fn allocated(balancer: &LoadBalancer) -> &str {
    let status = balancer.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    status.map(|address| address.ip.as_str()).unwrap_or_default()
}

/// `status.address`, once that is a real address.
fn announced(balancer: &LoadBalancer) -> Option<&str> {
    let address = balancer.status.as_ref().map(|status| status.address.as_str()).unwrap_or_default();
    (!address.is_empty() && address != DHCP_ADDRESS).then_some(address)
}

/// The address that kube-vip wrote into the Service's status.
fn ingress(service: &Service) -> Option<String> {
    let balancer = service.status.as_ref()?.load_balancer.as_ref()?;
    balancer.ingress.as_deref()?.iter().find_map(|entry| entry.ip.clone()).filter(|ip| !ip.is_empty())
}

fn mark(key: &str, value: &str) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(key.to_owned(), Some(value.to_owned()))])
}
