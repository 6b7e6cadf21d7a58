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
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{Cache, ObjectKey};
use guest_vms::GuestVms;
use harvester_api::{annotations, names};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use program::Subscribers;
use tokio::time::Instant;

use crate::load_balancers::ingress;

/// The announced addresses of this moment. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    subscribers: Subscribers<BTreeSet<IpAddr>>,
}

#[derive(Debug, Default)]
struct State {
    of_service: HashMap<ObjectKey, BTreeSet<IpAddr>>,
    /// Several Services may share one address.
    services_with: HashMap<IpAddr, usize>,
    /// Of these, those that a VM reported when the first Service came.
    of_vms: HashSet<IpAddr>,
    /// Addresses that no Service announces any more.
    let_go: HashMap<IpAddr, LetGo>,
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

impl Announced {
    /// Follows `services`, which should be ready.
    pub(crate) fn follow(services: &Cache<Service>) -> Self {
        let this = Self::default();
        let (into, read) = (this.clone(), services.clone());
        services.on_change(move |change| {
            let now = read.get(&change.key).map(|service| addresses(&service)).unwrap_or_default();
            let changed = into.state().set(&change.key, now);
            if !changed.is_empty() {
                into.0.subscribers.tell(&changed);
            }
        });
        this
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        let state = self.state();
        state.services_with.contains_key(&ip) || state.let_go.get(&ip).is_some_and(|it| !it.is_over())
    }

    /// Looks from now on whether VMs report the addresses that come and go, before anybody hears of them.
    pub(crate) fn compare(&self, vms: &GuestVms) {
        let (this, reports) = (self.clone(), vms.clone());
        self.on_change(move |ips| this.turned(ips, |ip| reports.report_any(|reported| reported == ip)));
        let (this, reports) = (self.clone(), vms.clone());
        vms.on_change(move || this.reports_changed(|ip| reports.report_any(|reported| reported == ip)));
    }

    /// These addresses came or went. `is_reported`: by a VM.
    fn turned(&self, ips: &BTreeSet<IpAddr>, is_reported: impl Fn(IpAddr) -> bool) {
        let mut state = self.state();
        for ip in ips {
            if state.services_with.contains_key(ip) {
                if state.let_go.remove(ip).is_none() && is_reported(*ip) {
                    state.of_vms.insert(*ip);
                }
            } else if !state.of_vms.remove(ip) {
                let now = if is_reported(*ip) { LetGo::Reported } else { LetGo::Since(Instant::now()) };
                state.let_go.insert(*ip, now);
            }
        }
    }

    /// VMs report other addresses now.
    fn reports_changed(&self, is_reported: impl Fn(IpAddr) -> bool) {
        self.state().let_go.retain(|ip, now| {
            let (is_over, reported) = (now.is_over(), is_reported(*ip));
            if reported {
                *now = LetGo::Reported;
            }
            !is_over && (reported || *now != LetGo::Reported)
        });
    }

    /// Calls `subscriber` with the addresses that came or went.
    pub(crate) fn on_change(&self, subscriber: impl Fn(&BTreeSet<IpAddr>) + Send + Sync + 'static) {
        self.0.subscribers.add(subscriber);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while counting")
    }
}

impl State {
    /// Returns the addresses that somebody announces now and nobody before, or the other way round.
    fn set(&mut self, key: &ObjectKey, now: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let before = self.of_service.remove(key).unwrap_or_default();
        let mut changed = BTreeSet::new();
        for ip in now.difference(&before) {
            let count = self.services_with.entry(*ip).or_default();
            *count += 1;
            if *count == 1 {
                changed.insert(*ip);
            }
        }
        for ip in before.difference(&now) {
            let left = self.services_with.get(ip).map_or(0, |count| count - 1);
            if left == 0 {
                self.services_with.remove(ip);
                changed.insert(*ip);
            } else {
                self.services_with.insert(*ip, left);
            }
        }
        if !now.is_empty() {
            self.of_service.insert(key.clone(), now);
        }
        changed
    }
}

/// The addresses that kube-vip is asked for, and those that it shows. Other programs may show the addresses of Nodes in
/// the status of their Services: theirs are those of another class, which no kube-vip announces.
fn addresses(service: &Service) -> BTreeSet<IpAddr> {
    let text = |key| service.annotations().get(key).map(String::as_str).unwrap_or_default();
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    let is_of_kube_vip = class.is_none_or(|class| class == names::LOAD_BALANCER_CLASS)
        || !text(annotations::KUBE_VIP_VIP_HOST).is_empty();
    let shown = if is_of_kube_vip { ingress(service) } else { Vec::new() };
    let asked = text(annotations::KUBE_VIP_LOADBALANCER_IPS).split(',').map(str::trim);
    let ips = asked.chain(shown).filter_map(|text| text.parse().ok());
    // 0.0.0.0 asks for a lease
    ips.map(|ip: IpAddr| ip.to_canonical()).filter(|ip| !ip.is_unspecified()).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;

    fn ips(list: &[&str]) -> BTreeSet<IpAddr> {
        list.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[rstest]
    #[case::nothing(json!({}), None, &[], &[])]
    #[case::asked(json!({ASKED: "10.0.0.9, FD00::9"}), None, &[], &["10.0.0.9", "fd00::9"])]
    #[case::shown(json!({}), None, &["10.0.0.9"], &["10.0.0.9"])]
    #[case::asked_and_shown(json!({ASKED: "10.0.0.9"}), None, &["10.0.0.9"], &["10.0.0.9"])]
    #[case::leased(json!({ASKED: "0.0.0.0"}), None, &["10.0.0.7"], &["10.0.0.7"])]
    #[case::our_class(json!({}), Some("harvesterhci.io/load-balancer"), &["10.0.0.9"], &["10.0.0.9"])]
    // such a controller may show the addresses of Nodes
    #[case::another_class(json!({}), Some("io.cilium/node"), &["10.0.0.9"], &[])]
    #[case::another_class_of_kube_vip(json!({"kube-vip.io/vipHost": "worker-1"}), Some("kube-vip.io/kube-vip-class"),
        &["10.0.0.9"], &["10.0.0.9"])]
    #[case::no_address(json!({ASKED: "x,,10.0.0.0/8"}), None, &[""], &[])]
    fn a_service_announces_what_kube_vip_is_asked_for_and_shows(
        #[case] annotations: Value,
        #[case] class: Option<&str>,
        #[case] shown: &[&str],
        #[case] expected: &[&str],
    ) {
        let ingress: Vec<_> = shown.iter().map(|ip| json!({"ip": ip})).collect();
        let service = json!({"metadata": {"annotations": annotations},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": class},
            "status": {"loadBalancer": {"ingress": ingress}}});
        assert_eq!(addresses(&serde_json::from_value(service).unwrap()), ips(expected));
    }

    /// The state after a Service with an address came and went; `before`: a VM had the address already.
    fn after_a_service(before: bool) -> Announced {
        let (announced, ips) = (Announced::default(), ips(&[VIP]));
        for now in [ips.clone(), BTreeSet::new()] {
            let changed = announced.state().set(&ObjectKey::new("shop", "a"), now);
            announced.turned(&changed, |_| before);
        }
        announced
    }

    const VIP: &str = "10.0.0.9";

    #[tokio::test(start_paused = true)]
    async fn an_address_is_no_nodes_until_the_agent_that_reports_it_has_been_asked_again() {
        let (announced, ip) = (after_a_service(false), VIP.parse().unwrap());
        // reported late, for an hour, and then no more
        for (reported, wait, contained) in
            [(false, 59, true), (true, 1, true), (true, 3_600, true), (false, 0, false), (true, 0, false)]
        {
            announced.reports_changed(|_| reported);
            assert_eq!(announced.contains(ip), contained, "{reported}");
            tokio::time::advance(Duration::from_secs(wait)).await;
        }
        assert!(announced.state().let_go.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_no_agent_reports_may_be_a_nodes_after_a_minute() {
        let (announced, ip) = (after_a_service(false), VIP.parse().unwrap());
        assert!(announced.contains(ip));
        tokio::time::advance(LET_GO).await;
        assert!(!announced.contains(ip));
        announced.reports_changed(|_| true);
        assert!(!announced.contains(ip));
    }

    #[test]
    fn an_address_that_a_vm_had_before_a_service_asked_for_it_is_the_vms_again_at_once() {
        assert!(!after_a_service(true).contains(VIP.parse().unwrap()));
    }

    #[test]
    fn an_address_that_services_share_is_announced_until_the_last_one_lets_go() {
        let mut state = State::default();
        let [a, b] = ["a", "b"].map(|name| ObjectKey::new("shop", name));
        let shared = ips(&["10.0.0.9"]);
        assert_eq!(state.set(&a, shared.clone()), shared);
        assert_eq!(state.set(&b, ips(&["10.0.0.9", "10.0.0.8"])), ips(&["10.0.0.8"]));
        assert_eq!(state.set(&a, ips(&[])), ips(&[]));
        assert_eq!(state.set(&b, shared.clone()), ips(&["10.0.0.8"]));
        assert_eq!(state.set(&b, ips(&[])), shared);
        assert!(state.services_with.is_empty() && state.of_service.is_empty());
    }
}
