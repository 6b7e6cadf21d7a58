//! The VMs behind a load balancer, each with its address.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use harvester_api::kubevirt::VmInterface;
use harvester_api::{LoadBalancer, VirtualMachineInstance};
use ipam::Family;
use kube::ResourceExt as _;

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
    /// The first address that was refused, and why; nothing when the VM reports no IPv4 address at all.
    pub(crate) refused: Option<(IpAddr, Implausible)>,
}

/// Every selected VM, in one list or the other, each in the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) backends: Vec<Backend>,
    pub(crate) unusable: Vec<Unusable>,
}

/// The backends among `vmis`, which the load balancer selects. `previous` has the address by which each VM (by UID)
/// served so far.
pub(crate) fn select<'a>(
    vmis: impl IntoIterator<Item = &'a VirtualMachineInstance>,
    previous: &BTreeMap<String, IpAddr>,
    rules: &Rules<'_>,
) -> Selected {
    let stays = |vmi: &&VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_none();
    let mut vmis: Vec<_> = vmis.into_iter().filter(stays).collect();
    vmis.sort_by_key(|vmi| vmi.name_any());

    let mut selected = Selected::default();
    for vmi in vmis {
        let (name, uid) = (vmi.name_any(), vmi.uid().unwrap_or_default());
        match address(vmi, previous.get(&uid).copied(), rules) {
            Ok(address) => selected.backends.push(Backend { id: BackendId { uid, address }, name }),
            Err(refused) => selected.unusable.push(Unusable { name, refused }),
        }
    }
    selected
}

/// The address of a VM: the previous one while the VM still reports it, else the first plausible IPv4 address of
/// the first interface that has one. Within an interface `ipAddress` comes before `ipAddresses`: a guest agent that
/// lists an IPv6 address first turns the former into that one.
fn address(
    vmi: &VirtualMachineInstance,
    previous: Option<IpAddr>,
    rules: &Rules<'_>,
) -> Result<IpAddr, Option<(IpAddr, Implausible)>> {
    let mut first = None;
    let mut refused = None;
    for interface in vmi.status.iter().flat_map(|status| &status.interfaces) {
        let nic = nic(vmi, interface);
        for address in addresses(interface) {
            match rules.refuse(address, nic) {
                Some(why) => refused = refused.or(Some((address, why))),
                None if previous == Some(address) => return Ok(address),
                None => first = first.or(Some(address)),
            }
        }
    }
    first.ok_or(refused)
}

/// The family of the backends: Services of two families come later.
pub(crate) const FAMILY: Family = Family::V4;

/// The addresses of an interface in our [`FAMILY`], the preferred one first.
pub(crate) fn addresses(interface: &VmInterface) -> impl Iterator<Item = IpAddr> {
    let all = std::iter::once(&interface.ip_address).chain(&interface.ip_addresses);
    all.filter_map(|text| text.parse().ok()).filter(|address| Family::of(*address) == FAMILY)
}

fn nic(vmi: &VirtualMachineInstance, interface: &VmInterface) -> Nic {
    let network = vmi.spec.networks.iter().find(|network| network.name == interface.name);
    if network.is_some_and(|network| network.pod.is_some()) { Nic::PodNetwork } else { Nic::Other }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn vmi(name: &str, interfaces: &Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}"), "labels": {"tier": "api", "app": name}},
            "spec": {"networks": [{"name": "mgmt", "pod": {}}, {"name": "vlan", "multus": {"networkName": "shop/vlan"}}]},
            "status": {"interfaces": interfaces},
        }))
        .unwrap()
    }

    fn pod_cidrs() -> Vec<ipnet::IpNet> {
        vec!["10.52.0.0/16".parse().unwrap()]
    }

    #[rstest]
    #[case::one(json!([{"name": "vlan", "ipAddress": "192.168.7.10"}]), None, Some("192.168.7.10"))]
    #[case::first_in_list_order(
        json!([{"name": "vlan", "ipAddress": "192.168.7.10"}, {"name": "mgmt", "ipAddress": "10.52.0.9"}]), None, Some("192.168.7.10"))]
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
    fn the_address_of_a_vm_is_its_first_plausible_ipv4_or_the_one_it_had(
        #[case] interfaces: Value,
        #[case] previous: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let parsed = |text: Option<&str>| text.map(|text| text.parse::<IpAddr>().unwrap());
        let pods = pod_cidrs();
        let rules = Rules { pod_cidrs: &pods, ..Rules::default() };
        assert_eq!(address(&vmi("web", &interfaces), parsed(previous), &rules).ok(), parsed(expected));
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
        let selected = select(&vmis, &BTreeMap::new(), &Rules::default());
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
