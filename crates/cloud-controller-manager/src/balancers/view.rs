//! What there is and what should be, for one Service: the decision. No clock, no cache, no client.

mod handover;
mod host;
mod remarks;

use std::{collections::BTreeMap, time::Duration};

use cloud_provider::{Balancer, FINALIZER, Notice, Publish, View};
use controller_kit::RawObject;
use harvester_api::{Condition, ConditionStatus, LoadBalancer, annotations, condition, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::object::{Announced, Carried, Identity, Wanted};
use crate::{
    data_path::{Allowed, DataPath, Policy, choose},
    machines::Backends,
    wishes::{Fault, Wishes},
};

/// Harvester answers a new object within a fraction of a second; after this time its silence is told.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// An address that was allocated for so long and is not announced: nothing will announce it.
pub(super) const ANNOUNCEMENT: Duration = Duration::from_secs(60);

/// In the words of Kubernetes' own service controller.
const NO_NODES: &str = "There are no available nodes for the load balancer";

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
    Present(&'a RawObject<LoadBalancer>),
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
    // it belongs to somebody else, or may at any time: two would announce it
    let taken_back =
        present.is_some_and(|balancer| allocated(balancer).is_empty() && not_ready(balancer).is_some());
    let carried = match path {
        DataPath::Guest if taken_back => Some(Carried::Guest(Announced::Withdrawn)),
        DataPath::Guest => Some(Carried::Guest(handover::announced(service, present))),
        DataPath::Host => host::carried(sight, present.is_some(), &mut faults, &mut view.notices),
    };
    let (identity, service, wishes) = (*identity, *service, *wishes);
    let wanted = carried.map(|carried| Wanted { identity, service, wishes, carried });
    let later = remarks::later(wishes, path, present.is_some());
    let forbidden = !faults.is_empty() && present.is_none();
    let more = later.as_deref().filter(|_| forbidden);
    let refused = refusal(service, &faults, more, present.is_some());
    if forbidden {
        // what would be so if there were a load balancer is no news now
        view.notices.retain(|notice| notice.warning);
    } else {
        view.notices.extend(later.map(|sentence| Notice::warning("NotSupported", sentence)));
        view.notices.extend(around(sight, path));
    }
    view.notices.extend(remarks::keys(wishes));
    view.own_annotations.push(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned());
    view.balancer = match balancer {
        Found::Absent => Balancer::Absent,
        Found::Unreadable(why) => Balancer::Unreadable((*why).to_owned()),
        Found::Present(balancer) if balancer.metadata.deletion_timestamp.is_some() => Balancer::Leaving,
        Found::Present(balancer) => {
            view.notices.extend(remarks::fixed(balancer, wishes, path));
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
            if taken_back {
                if let Some(lost) = handover::given(service, present) {
                    view.notices.push(remarks::taken_back(service, &lost));
                    if handover::came_of(&lost, service) {
                        view.publish = Publish::Withdrawn;
                    }
                    view.after = handover::withdrawing(service, lost);
                }
            } else if let Some(balancer) = present.filter(|balancer| !allocated(balancer).is_empty()) {
                view.after = handover::handing_over(service, allocated(balancer));
            }
            view.own_annotations.push(annotations::ALLOCATED_ADDRESS.to_owned());
        }
        DataPath::Host => {
            view.before = BTreeMap::from([
                (annotations::KUBE_VIP_IGNORE.to_owned(), Some("true".to_owned())),
                (annotations::RECORDED_DATA_PATH.to_owned(), Some(DataPath::Host.word().to_owned())),
            ]);
            view.own_annotations.extend(view.before.keys().cloned());
            view.outlives = true;
            let address = present.and_then(|balancer| announced(balancer));
            view.publish = match address {
                _ if taken_back => Publish::Withdrawn,
                Some(address) => Publish::Address(address.to_owned()),
                None => Publish::Nothing,
            };
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

/// The path that is settled: by the object; without one, by the marks that we leave on a Service that has our
/// finalizer. They tell how to clean up, and on which path an object comes back that somebody deleted in Harvester.
fn recorded(service: &Service, present: Option<&RawObject<LoadBalancer>>) -> Option<DataPath> {
    let mark = |key: &str| service.annotations().get(key).map(String::as_str).unwrap_or_default();
    match present {
        Some(balancer) => Some(DataPath::recorded(&balancer.spec)),
        None if !service.finalizers().iter().any(|name| name == FINALIZER) => None,
        None if mark(annotations::RECORDED_DATA_PATH) == DataPath::Host.word() => Some(DataPath::Host),
        // the Go program leaves only the first of the two
        None if !mark(annotations::KUBE_VIP_LOADBALANCER_IPS).is_empty() => Some(DataPath::Guest),
        None if !mark(annotations::ALLOCATED_ADDRESS).is_empty() => Some(DataPath::Guest),
        None => None,
    }
}

/// What the owner of a Service that is served should know about the cluster around it.
fn around(sight: &Sight<'_>, path: DataPath) -> Vec<Notice> {
    let mut notices = Vec::new();
    let nobody = |backends: &Backends| backends.eligible.is_empty() && backends.nodes_without_vm.is_empty();
    // on the host path it is a fault
    if path == DataPath::Guest && sight.backends.as_ref().is_some_and(nobody) {
        notices.push(Notice::warning("UnAvailableLoadBalancer", NO_NODES));
    }
    // once for each Service, and not again after every restart (user-docs.md 17 e)
    let is_new = !sight.service.finalizers().iter().any(|name| name == FINALIZER);
    let cluster = &sight.identity.cluster;
    if is_new && cluster.is_anonymous() {
        let sentence = format!(
            "this guest cluster has no name of its own (--cluster-name is {:?}), so Harvester cannot tell its load \
             balancers from those of other nameless clusters: set global.cattle.clusterName in the chart",
            cluster.name()
        );
        notices.push(Notice::warning("ClusterNameNotSet", sentence));
    }
    notices
}

/// All faults in one Event, and what else is to be said.
fn refusal(service: &Service, faults: &[Fault], more: Option<&str>, exists: bool) -> Option<Notice> {
    let first = faults.first()?;
    let sentences: Vec<_> = faults.iter().map(|fault| fault.message.as_str()).chain(more).collect();
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let what = if exists { "the load balancer stays as it is" } else { "no load balancer" };
    Some(Notice::warning(
        first.reason,
        format!("{what} for service {namespace}/{name}: {}", sentences.join("; ")),
    ))
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
    let hint = match path {
        DataPath::Host => {
            " (annotation cloudprovider.harvesterhci.io/data-path: guest on a new Service may have another pool)"
        }
        DataPath::Guest => "",
    };
    match not_ready(balancer).map(|ready| ready.message.as_str()).filter(|message| !message.is_empty()) {
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

/// The load balancer controller's answer, if that is no.
fn not_ready(balancer: &LoadBalancer) -> Option<&Condition> {
    let conditions = balancer.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    condition::ready(conditions).filter(|ready| ready.status == ConditionStatus::False)
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

#[cfg(test)]
mod tests;
