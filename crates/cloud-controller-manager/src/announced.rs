//! The addresses that Services of this cluster announce: no Node has them.
//!
//! kube-vip in the guest binds the address of a Service to an interface of the Node that announces it. The guest agent
//! reports it with the others, and the Go program made it an ExternalIP, or the InternalIP where it came first
//! (docs/contract/cloud-controller-manager.md#N10).

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use controller_kit::{Cache, ObjectKey};
use harvester_api::{annotations, names};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use program::Subscribers;

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
}

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
        self.state().services_with.contains_key(&ip)
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
