//! The addresses that Services of this cluster announce: no Node has them.
//!
//! kube-vip in the guest binds the address of a Service to an interface of the Node that announces it. The guest agent
//! reports it with the others, and the Go program made it an ExternalIP, or the InternalIP where it came first
//! (docs/contract/cloud-controller-manager.md#N10).
//!
//! A VM reports such an address for some time after its Service is gone: KubeVirt asks guest agents every ten seconds, and
//! kube-vip never takes an address off its interface whose Service had another type when it went
//! (docs/contract/kube-vip.md). An address that a VM had before a Service asked for it is the VM's again at once.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use controller_kit::{Cache, ObjectKey, RawObject};
use guest_vms::GuestVms;
use harvester_api::{LoadBalancer, annotations, names};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use program::Subscribers;
use tokio::time::Instant;

use crate::load_balancers::{allocated, ingress};

/// The announced addresses of this moment. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Announced(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Whose reports tell whether an address that comes or goes is a VM's.
    vms: OnceLock<GuestVms>,
    subscribers: Subscribers<BTreeSet<IpAddr>>,
}

#[derive(Debug, Default)]
struct State {
    /// Of Services: what their status says.
    shown: Sources,
    /// Of Services: what kube-vip is asked for. Whoever may write a Service may write any address there, so one counts
    /// only while Harvester has given it.
    asked: Sources,
    /// Of LoadBalancer objects: what Harvester has given.
    given: Sources,
    /// Of the announced addresses, those that a VM reported when the first Service came.
    of_vms: HashSet<IpAddr>,
    /// Addresses that no Service announces any more.
    let_go: HashMap<IpAddr, LetGo>,
}

/// The addresses that objects of one kind name.
#[derive(Debug, Default)]
struct Sources {
    of: HashMap<ObjectKey, BTreeSet<IpAddr>>,
    /// Several may name one address.
    naming: HashMap<IpAddr, usize>,
}

/// An address that Services announced until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LetGo {
    /// No VM has been seen to report it since then; one still may.
    Since(Instant),
    /// A VM reports it.
    Reported,
}

impl LetGo {
    fn is_over(self) -> bool {
        matches!(self, Self::Since(since) if since.elapsed() >= LET_GO)
    }
}

/// A guest agent may report an address for so long after its Service let go of it, the answers of KubeVirt on their way
/// included.
const LET_GO: Duration = Duration::from_secs(60);

/// Addresses that one Service may ask kube-vip for here; we ask for one of each family.
const ASKED_MAX: usize = 8;

impl Announced {
    /// Follows `services`, which should be ready, and `objects`.
    pub(crate) fn follow(services: &Cache<Service>, objects: &Cache<RawObject<LoadBalancer>>) -> Self {
        let this = Self::default();
        let (into, read) = (this.clone(), objects.clone());
        objects.on_change(move |change| {
            into.change(|state| {
                let now = read.get(&change.key).map(|object| given(&object)).unwrap_or_default();
                state.set_object(&change.key, now)
            });
        });
        let (into, read) = (this.clone(), services.clone());
        services.on_change(move |change| {
            into.change(|state| {
                let service = read.get(&change.key);
                let now = service.map(|service| (shown(&service), asked(&service))).unwrap_or_default();
                state.set_service(&change.key, now)
            });
        });
        this
    }

    /// Whether the address is a Service's rather than a Node's. `is_of_node`: the Node has it as InternalIP already.
    ///
    /// Such an address is the Node's unless Harvester has given it: who may write Services has kube-vip announce and
    /// show any address, one of a Node too.
    pub(crate) fn contains(&self, ip: IpAddr, is_of_node: bool) -> bool {
        let state = self.state();
        if is_of_node {
            return state.is_announced(ip) && state.given.name(ip);
        }
        state.is_announced(ip) || state.let_go.get(&ip).is_some_and(|it| !it.is_over())
    }

    /// Looks from now on whether VMs report the addresses that come and go, before anybody hears of them.
    pub(crate) fn compare(&self, vms: &GuestVms) {
        self.0.vms.get_or_init(|| vms.clone());
        let (this, reports) = (self.clone(), vms.clone());
        vms.on_change(move || this.state().reports_changed(|| reports.reported()));
    }

    /// Calls `subscriber` with the addresses that came or went.
    pub(crate) fn on_change(&self, subscriber: impl Fn(&BTreeSet<IpAddr>) + Send + Sync + 'static) {
        self.0.subscribers.add(subscriber);
    }

    /// `set` changes the state and returns the addresses that came or went. It reads the caches itself: changes are told
    /// by several threads, and one that read before it waited here would put a former version over a newer one.
    fn change(&self, set: impl FnOnce(&mut State) -> BTreeSet<IpAddr>) {
        let mut state = self.state();
        let changed = set(&mut state);
        if changed.is_empty() {
            return;
        }
        if let Some(vms) = self.0.vms.get() {
            state.turned(&changed, &vms.reported());
        }
        drop(state);
        self.0.subscribers.tell(&changed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while counting")
    }
}

impl State {
    fn is_announced(&self, ip: IpAddr) -> bool {
        self.shown.name(ip) || self.asked.name(ip) && self.given.name(ip)
    }

    /// Returns the addresses that somebody announces now and nobody before, or the other way round.
    fn set_service(
        &mut self,
        key: &ObjectKey,
        (shown, asked): (BTreeSet<IpAddr>, BTreeSet<IpAddr>),
    ) -> BTreeSet<IpAddr> {
        let mut ips = self.shown.touched(key, &shown);
        ips.append(&mut self.asked.touched(key, &asked));
        self.changed(ips, |state| {
            state.shown.set(key, shown);
            state.asked.set(key, asked);
        })
    }

    /// As [`Self::set_service`].
    fn set_object(&mut self, key: &ObjectKey, given: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let ips = self.given.touched(key, &given);
        self.changed(ips, |state| state.given.set(key, given))
    }

    fn changed(&mut self, mut ips: BTreeSet<IpAddr>, set: impl FnOnce(&mut Self)) -> BTreeSet<IpAddr> {
        let before: HashSet<_> = ips.iter().copied().filter(|ip| self.is_announced(*ip)).collect();
        set(self);
        ips.retain(|ip| before.contains(ip) != self.is_announced(*ip));
        ips
    }

    /// These addresses came or went. `reported`: by VMs.
    fn turned(&mut self, ips: &BTreeSet<IpAddr>, reported: &HashSet<IpAddr>) {
        self.let_go.retain(|_, now| !now.is_over());
        for ip in ips {
            if self.is_announced(*ip) {
                if self.let_go.remove(ip).is_none() && reported.contains(ip) {
                    self.of_vms.insert(*ip);
                }
            } else if !self.of_vms.remove(ip) {
                let is_reported = reported.contains(ip);
                let now = if is_reported { LetGo::Reported } else { LetGo::Since(Instant::now()) };
                self.let_go.insert(*ip, now);
            }
        }
    }

    /// VMs report other addresses now.
    fn reports_changed(&mut self, reported: impl FnOnce() -> HashSet<IpAddr>) {
        if self.let_go.is_empty() {
            return;
        }
        let reported = reported();
        self.let_go.retain(|ip, now| {
            let (is_over, reported) = (now.is_over(), reported.contains(ip));
            if reported {
                *now = LetGo::Reported;
            }
            !is_over && (reported || *now != LetGo::Reported)
        });
    }
}

impl Sources {
    fn name(&self, ip: IpAddr) -> bool {
        self.naming.contains_key(&ip)
    }

    /// The addresses that the object named and will not, or the other way round.
    fn touched(&self, key: &ObjectKey, now: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        match self.of.get(key) {
            Some(before) => before.symmetric_difference(now).copied().collect(),
            None => now.clone(),
        }
    }

    fn set(&mut self, key: &ObjectKey, now: BTreeSet<IpAddr>) {
        for ip in &now {
            *self.naming.entry(*ip).or_default() += 1;
        }
        for ip in self.of.remove(key).unwrap_or_default() {
            let left = self.naming.get(&ip).map_or(0, |count| count - 1);
            if left == 0 {
                self.naming.remove(&ip);
            } else {
                self.naming.insert(ip, left);
            }
        }
        if !now.is_empty() {
            self.of.insert(key.clone(), now);
        }
    }
}

/// The addresses that a Service shows as kube-vip's. Other programs may show the addresses of Nodes in the status of their
/// Services: theirs are those of another class, whatever kube-vip is asked for there, unless kube-vip says that it
/// announces them.
fn shown(service: &Service) -> BTreeSet<IpAddr> {
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    let announcer = service.annotations().get(annotations::KUBE_VIP_VIP_HOST);
    let is_of_kube_vip = class.is_none_or(|class| class == names::LOAD_BALANCER_CLASS)
        || announcer.is_some_and(|node| !node.is_empty());
    if is_of_kube_vip { ips(ingress(service)).collect() } else { BTreeSet::new() }
}

/// The first addresses that kube-vip is asked for.
fn asked(service: &Service) -> BTreeSet<IpAddr> {
    let text = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    ips(text.into_iter().flat_map(|text| text.split(','))).take(ASKED_MAX).collect()
}

/// The addresses that Harvester has given.
fn given(object: &LoadBalancer) -> BTreeSet<IpAddr> {
    ips(allocated(object)).collect()
}

fn ips<'a>(texts: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = IpAddr> {
    let ips = texts.into_iter().filter_map(|text| text.trim().parse().ok());
    // 0.0.0.0 asks for a lease
    ips.map(|ip: IpAddr| ip.to_canonical()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests;
