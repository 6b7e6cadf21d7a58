//! The VMs behind a load balancer, each with its address.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use harvester_api::kubevirt::VmInterface;
use harvester_api::{LoadBalancer, VirtualMachineInstance};
use ipam::Family;
use kube::ResourceExt as _;

use super::networks::{self, Network, Taken, Wish};
use super::plausible::{Implausible, Nic, Rules};

/// Label key to accepted values, as in `spec.backendServerSelector`: every key must have one of its values. Without keys
/// it selects nothing, and so does a key without values. In sets, because a tenant may name tens of thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector(BTreeMap<String, HashSet<String>>);

impl Selector {
    pub(crate) fn of(lb: &LoadBalancer) -> Self {
        let keys = &lb.spec.backend_server_selector;
        Self(keys.iter().map(|(key, values)| (key.clone(), values.iter().cloned().collect())).collect())
    }

    /// Whether it may select a VM at all.
    pub(crate) fn is_any(&self) -> bool {
        !self.0.is_empty() && self.0.values().all(|values| !values.is_empty())
    }

    /// Whether VMs with these labels are selected.
    pub(crate) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let is_accepted = |(key, values): (&String, &HashSet<String>)| {
            labels.get(key).is_some_and(|label| values.contains(label))
        };
        !self.0.is_empty() && self.0.iter().all(is_accepted)
    }
}

/// Names a backend: VMs can have one address twice, and a VM's address can change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackendId {
    /// UID of the VirtualMachineInstance.
    pub(crate) uid: String,
    pub(crate) address: IpAddr,
}

/// A selected VM with an address that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) id: BackendId,
    pub(crate) name: String,
}

/// A selected VM without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unusable {
    pub(crate) name: String,
    /// The first address that was refused, and why; nothing when the VM reports no address of the family at all.
    pub(crate) refused: Option<(IpAddr, Implausible)>,
}

/// Every selected VM, in one list or the other, each in the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) backends: Vec<Backend>,
    pub(crate) unusable: Vec<Unusable>,
    /// The networks of those backends that had a choice, or none left of it.
    pub(crate) taken: Vec<Taken>,
    pub(crate) wish: Wish,
}

impl Selected {
    /// Tells on which networks these backends are reached, where there was a choice.
    pub(crate) fn note(&self, served: &[(Backend, bool)]) -> Option<String> {
        let served: HashSet<_> =
            served.iter().map(|(Backend { id, name }, _)| (name.as_str(), id.address)).collect();
        let is_served = |taken: &&Taken| served.contains(&(taken.vm.as_str(), taken.address));
        networks::note(self.taken.iter().filter(is_served), &self.wish)
    }
}

/// The backends among `vmis`, which the load balancer selects. `previous` has the address by which each VM (by UID)
/// served so far.
pub(crate) fn select<'a>(
    vmis: impl IntoIterator<Item = &'a VirtualMachineInstance>,
    previous: &BTreeMap<String, IpAddr>,
    wish: &Wish,
    rules: &Rules<'_>,
) -> Selected {
    let stays = |vmi: &&VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_none();
    let mut vmis: Vec<_> = vmis.into_iter().filter(stays).collect();
    vmis.sort_by_key(|vmi| vmi.name_any());

    let mut selected = Selected { wish: wish.clone(), ..Selected::default() };
    for vmi in vmis {
        let (name, uid) = (vmi.name_any(), vmi.uid().unwrap_or_default());
        match choose(vmi, previous.get(&uid).copied(), wish, rules) {
            Ok(Chosen { address, of_several }) => {
                selected.taken.extend(of_several);
                selected.backends.push(Backend { id: BackendId { uid, address }, name });
            }
            Err(refused) => selected.unusable.push(Unusable { name, refused }),
        }
    }
    selected
}

#[derive(Debug)]
struct Chosen {
    address: IpAddr,
    /// Where there is something to tell about its network.
    of_several: Option<Taken>,
}

/// The address of a VM, among the plausible addresses of the family that it reports: one on the network that the object names; else
/// the previous one, so that no VM moves without need; else one on the management network; else the first one. Within an
/// interface `ipAddress` comes before `ipAddresses`: a guest agent that lists an IPv6 address first turns the former
/// into that one.
fn choose(
    vmi: &VirtualMachineInstance,
    previous: Option<IpAddr>,
    wish: &Wish,
    rules: &Rules<'_>,
) -> Result<Chosen, Option<(IpAddr, Implausible)>> {
    let mut usable = Vec::new();
    let mut refused = None;
    for interface in vmi.status.iter().flat_map(|status| &status.interfaces) {
        let network = Network::of(vmi, interface);
        let nic = if network == Network::Pod { Nic::PodNetwork } else { Nic::Other };
        for address in addresses(interface).filter(|address| Family::of(*address) == rules.family) {
            match rules.refuse(address, nic) {
                Some(why) => refused = refused.or(Some((address, why))),
                None => usable.push((address, network.clone())),
            }
        }
    }
    // of equals the first one
    let best = usable.iter().min_by_key(|(address, network)| {
        (!wish.names(network), previous != Some(*address), wish.rank(network))
    });
    let (address, network) = best.ok_or(refused)?;
    let attached = |(_, other): &(IpAddr, Network)| *other != Network::OfTheGuest && other != network;
    let instead = wish.names_any() && !wish.names(network);
    let of_several = (instead || usable.iter().any(attached)).then(|| Taken {
        vm: vmi.name_any(),
        address: *address,
        network: network.clone(),
        instead,
    });
    Ok(Chosen { address: *address, of_several })
}

/// The addresses of an interface, of both families, the preferred one first.
pub(crate) fn addresses(interface: &VmInterface) -> impl Iterator<Item = IpAddr> {
    let all = std::iter::once(&interface.ip_address).chain(&interface.ip_addresses);
    all.filter_map(|text| text.parse::<IpAddr>().ok()).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use harvester_api::annotations;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn vmi(name: &str, interfaces: &Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}"), "labels": {"tier": "api", "app": name}},
            "spec": {"networks": [{"name": "mgmt", "pod": {}}, {"name": "vlan", "multus": {"networkName": "shop/vlan"}},
                {"name": "vlan2", "multus": {"networkName": "shop/vlan2"}}]},
            "status": {"interfaces": interfaces},
        }))
        .unwrap()
    }

    fn pod_cidrs() -> Vec<ipnet::IpNet> {
        vec!["10.52.0.0/16".parse().unwrap()]
    }

    #[rstest]
    #[case::one(json!([{"name": "vlan", "ipAddress": "192.168.7.10"}]), None, Some("192.168.7.10"))]
    #[case::management_network_before_others(
        json!([{"name": "vlan", "ipAddress": "192.168.7.10"}, {"name": "mgmt", "ipAddress": "10.52.0.9"}]), None, Some("10.52.0.9"))]
    // docs/contract/load-balancer.md#5.5: the Go program took the first one, and it is still right
    #[case::previous_before_the_management_network(
        json!([{"name": "vlan", "ipAddress": "192.168.7.10"}, {"name": "mgmt", "ipAddress": "10.52.0.9"}]), Some("192.168.7.10"), Some("192.168.7.10"))]
    #[case::first_in_list_order(
        json!([{"name": "vlan2", "ipAddress": "192.168.8.10"}, {"name": "vlan", "ipAddress": "192.168.7.10"}]), None, Some("192.168.8.10"))]
    #[case::bridge_of_the_guests_containers_last(
        json!([{"interfaceName": "docker0", "ipAddress": "172.17.0.1"}, {"name": "vlan", "ipAddress": "192.168.7.10"}]), None, Some("192.168.7.10"))]
    #[case::only_the_guest_knows_it(json!([{"interfaceName": "eth0.7", "ipAddress": "192.168.7.10"}]), None, Some("192.168.7.10"))]
    // docs/contract/load-balancer.md#EP-5: in the Go program the backend vanishes while the agent lists IPv6 first
    #[case::ipv6_first(
        json!([{"name": "vlan", "ipAddress": "fe80::1", "ipAddresses": ["fe80::1", "192.168.7.10"]}]), None, Some("192.168.7.10"))]
    #[case::interface_without_ipv4_is_passed_over(
        json!([{"name": "vlan", "ipAddress": "fd00::1"}, {"name": "mgmt", "ipAddress": "10.52.0.9"}]), None, Some("10.52.0.9"))]
    #[case::implausible_is_passed_over(
        json!([{"name": "lo", "ipAddress": "127.0.0.1"}, {"name": "vlan", "ipAddress": "192.168.7.10"}]), None, Some("192.168.7.10"))]
    #[case::pod_address_on_the_pod_network(json!([{"name": "mgmt", "ipAddress": "10.52.0.9"}]), None, Some("10.52.0.9"))]
    #[case::pod_address_elsewhere(json!([{"name": "vlan", "ipAddress": "10.52.0.9"}]), None, None)]
    #[case::previous_still_there(
        json!([{"name": "vlan", "ipAddress": "192.168.7.99", "ipAddresses": ["192.168.7.99", "192.168.7.10"]}]), Some("192.168.7.10"), Some("192.168.7.10"))]
    #[case::previous_gone(json!([{"name": "vlan", "ipAddress": "192.168.7.99"}]), Some("192.168.7.10"), Some("192.168.7.99"))]
    #[case::previous_no_longer_plausible(json!([{"name": "lo", "ipAddresses": ["127.0.0.1"]}]), Some("127.0.0.1"), None)]
    #[case::no_address(json!([{"name": "vlan"}]), None, None)]
    #[case::nonsense(json!([{"name": "vlan", "ipAddress": "192.168.7.10/24"}]), None, None)]
    #[case::no_interface(json!([]), None, None)]
    fn the_address_of_a_vm_is_plausible_and_stays_while_it_is_reported(
        #[case] interfaces: Value,
        #[case] previous: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let parsed = |text: Option<&str>| text.map(|text| text.parse::<IpAddr>().unwrap());
        let pods = pod_cidrs();
        let rules = Rules { pod_cidrs: &pods, ..Rules::default() };
        let chosen = choose(&vmi("web", &interfaces), parsed(previous), &Wish::default(), &rules);
        assert_eq!(chosen.ok().map(|chosen| chosen.address), parsed(expected));
    }

    #[rstest]
    #[case::one(json!([{"name": "vlan", "ipAddress": "192.168.7.10", "ipAddresses": ["192.168.7.10", "fd00:7::10"]}]),
        Ok("fd00:7::10"))]
    #[case::link_local_is_passed_over(
        json!([{"name": "vlan", "ipAddress": "fe80::1", "ipAddresses": ["fe80::1", "fd00:7::10"]}]), Ok("fd00:7::10"))]
    #[case::pod_address_elsewhere_is_passed_over(
        json!([{"name": "vlan", "ipAddress": "fd00:52::9"}, {"name": "vlan2", "ipAddress": "fd00:8::10"}]), Ok("fd00:8::10"))]
    #[case::link_local_alone(json!([{"name": "vlan", "ipAddress": "fe80::1"}]), Err(Some("fe80::1")))]
    #[case::none(json!([{"name": "vlan", "ipAddress": "192.168.7.10"}]), Err(None))]
    // an IPv4 address in the notation of IPv6 is one of IPv4
    #[case::mapped(json!([{"name": "vlan", "ipAddress": "::ffff:192.168.7.10"}]), Err(None))]
    fn a_vm_behind_an_ipv6_address_is_reached_at_an_ipv6_address(
        #[case] interfaces: Value,
        #[case] expected: Result<&str, Option<&str>>,
    ) {
        let pods = ["fd00:52::/64".parse().unwrap()];
        let rules = Rules { family: Family::V6, pod_cidrs: &pods, ..Rules::default() };
        let chosen = choose(&vmi("web", &interfaces), None, &Wish::default(), &rules);
        let text = |address: IpAddr| address.to_string();
        let chosen =
            chosen.map(|chosen| text(chosen.address)).map_err(|why| why.map(|(address, _)| text(address)));
        assert_eq!(chosen, expected.map(str::to_owned).map_err(|refused| refused.map(str::to_owned)));
    }

    const ON_ALL: [(&str, &str); 3] =
        [("vlan", "192.168.7.10"), ("vlan2", "192.168.8.10"), ("mgmt", "10.52.0.9")];

    // docs/contract/load-balancer.md#EP-5: the Go program takes an address that the hosts may not reach
    #[rstest]
    #[case::the_named_one(&ON_ALL, json!({annotations::LB_NETWORK: "shop/vlan2"}), None, "192.168.8.10",
        Some("VM web is reached on network shop/vlan2"))]
    #[case::of_the_own_namespace(&ON_ALL, json!({annotations::LB_NETWORK: "vlan2"}), None, "192.168.8.10",
        Some("VM web is reached on network shop/vlan2"))]
    #[case::named_later(&ON_ALL, json!({annotations::LB_NETWORK: "shop/vlan2"}), Some("192.168.7.10"), "192.168.8.10",
        Some("VM web is reached on network shop/vlan2"))]
    #[case::no_longer_named(&ON_ALL, json!({}), Some("192.168.8.10"), "192.168.8.10",
        Some("VM web is reached on network shop/vlan2"))]
    #[case::one_that_the_vm_does_not_have(&ON_ALL, json!({annotations::LB_NETWORK: "infra/vlan"}), None, "10.52.0.9",
        Some("VM web is reached on the management network, without a usable address on network infra/vlan"))]
    #[case::not_usable(&[("vlan2", "127.0.0.1"), ("vlan", "192.168.7.10")], json!({annotations::LB_NETWORK: "shop/vlan2"}), None,
        "192.168.7.10", Some("VM web is reached on network shop/vlan, without a usable address on network shop/vlan2"))]
    #[case::management_of_the_guest_cluster(&ON_ALL, json!({annotations::MANAGEMENT_NETWORK: "shop/vlan2"}), None,
        "192.168.8.10", Some("VM web is reached on network shop/vlan2"))]
    #[case::previous_before_it(&ON_ALL, json!({annotations::MANAGEMENT_NETWORK: "shop/vlan2"}), Some("192.168.7.10"),
        "192.168.7.10", Some("VM web is reached on network shop/vlan"))]
    #[case::named_before_it(&ON_ALL, json!({annotations::MANAGEMENT_NETWORK: "shop/vlan2", annotations::LB_NETWORK: "shop/vlan"}),
        None, "192.168.7.10", Some("VM web is reached on network shop/vlan"))]
    #[case::empty(&ON_ALL, json!({annotations::LB_NETWORK: " "}), None, "10.52.0.9",
        Some("VM web is reached on the management network"))]
    #[case::no_choice(&[("vlan", "192.168.7.10"), ("vlan2", "fe80::1"), ("", "172.17.0.1")], json!({}), None, "192.168.7.10", None)]
    fn a_vm_with_several_networks_is_reached_on_the_named_one_else_as_before_else_on_the_management_network(
        #[case] interfaces: &[(&str, &str)],
        #[case] annotations: Value,
        #[case] previous: Option<&str>,
        #[case] expected: &str,
        #[case] note: Option<&str>,
    ) {
        let lb =
            json!({"metadata": {"name": "web", "namespace": "shop", "annotations": annotations}, "spec": {}});
        let wish = Wish::of(&serde_json::from_value(lb).unwrap());
        let interfaces: Vec<_> =
            interfaces.iter().map(|(name, address)| json!({"name": name, "ipAddress": address})).collect();
        let previous = previous.map(|address| ("uid-web".to_owned(), address.parse().unwrap()));
        let pods = pod_cidrs();
        let rules = Rules { pod_cidrs: &pods, ..Rules::default() };
        let selected =
            select([&vmi("web", &json!(interfaces))], &previous.into_iter().collect(), &wish, &rules);
        assert_eq!(selected.backends[0].id.address.to_string(), expected);
        let [backend] = &selected.backends[..] else { panic!("{selected:?}") };
        assert_eq!(selected.note(&[(backend.clone(), false)]).as_deref(), note);
    }

    // docs/contract/load-balancer.md#EP-4: in the Go program the verdict of one is that of both
    #[test]
    fn two_vms_with_one_address_are_two_backends() {
        let vmis =
            ["web-1", "web-2"].map(|name| vmi(name, &json!([{"name": "vlan", "ipAddress": "192.168.7.10"}])));
        let selected = select(&vmis, &BTreeMap::new(), &Wish::default(), &Rules::default());
        let [one, other] = &selected.backends[..] else { panic!("{selected:?}") };
        assert_eq!(one.id.address, other.id.address);
        assert_ne!(one.id, other.id);
    }

    fn selecting(selector: &Value) -> Selector {
        let lb = json!({"metadata": {"name": "web"}, "spec": {"backendServerSelector": selector}});
        Selector::of(&serde_json::from_value(lb).unwrap())
    }

    #[rstest]
    #[case(json!({}), false)]
    #[case(json!({"tier": ["api"]}), true)]
    #[case(json!({"tier": ["web", "api"]}), true)]
    #[case(json!({"tier": ["api"], "app": ["db"]}), false)]
    #[case(json!({"tier": ["api"], "app": ["db", "web"]}), true)]
    #[case(json!({"zone": ["a"]}), false)]
    // docs/contract/load-balancer.md#LB-16: in the Go program such a selector stops its whole namespace
    #[case(json!({"tier": []}), false)]
    #[case(json!({"not a label": ["api"]}), false)]
    fn keys_are_anded_and_values_ored(#[case] selector: Value, #[case] expected: bool) {
        assert_eq!(selecting(&selector).selects(vmi("web", &json!([])).labels()), expected);
    }

    #[test]
    fn every_vm_that_stays_is_either_a_backend_or_named_with_the_reason() {
        let mut leaving = vmi("leaving", &json!([{"ipAddress": "192.168.7.14"}]));
        leaving.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-08-20T10:00:00Z")).unwrap());
        let vmis = [
            vmi("web-2", &json!([{"ipAddress": "192.168.7.12"}])),
            vmi("web-1", &json!([{"ipAddress": "192.168.7.11"}])),
            vmi("bold", &json!([{"ipAddress": "127.0.0.1"}])),
            vmi("silent", &json!([])),
            leaving,
        ];
        let selected = select(&vmis, &BTreeMap::new(), &Wish::default(), &Rules::default());
        let named: Vec<_> =
            selected.backends.iter().map(|backend| (backend.name.as_str(), backend.id.address)).collect();
        assert_eq!(
            named,
            [("web-1", IpAddr::from([192, 168, 7, 11])), ("web-2", IpAddr::from([192, 168, 7, 12]))]
        );
        assert_eq!(
            selected.unusable,
            [
                Unusable {
                    name: "bold".to_owned(),
                    refused: Some((IpAddr::from([127, 0, 0, 1]), Implausible::Loopback))
                },
                Unusable { name: "silent".to_owned(), refused: None },
            ]
        );
    }
}
