//! The addresses of a VM that its Node may have as InternalIP.

use std::net::IpAddr;

use harvester_api::VirtualMachineInstance;
use ipnet::IpNet;
use kube::ResourceExt;

/// `--management-network` and `--node-ip-cidr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// With namespace.
    pub management_network: Option<String>,
    /// Empty: every address will do.
    pub prefixes: Vec<IpNet>,
}

impl AddressRules {
    /// Addresses of one network of the VM, in the order of its status: the management network; without that flag
    /// the first multus network, or the pod network of a VM that has no other
    /// (docs/contract/cloud-controller-manager.md#N4). An address that cannot be read is passed over.
    pub(crate) fn internal_ips(&self, instance: &VirtualMachineInstance) -> Vec<IpAddr> {
        let namespace = instance.namespace().unwrap_or_default();
        // a bare name means the VM's namespace
        let full =
            |name: &str| if name.contains('/') { name.to_owned() } else { format!("{namespace}/{name}") };
        let networks = &instance.spec.networks;
        let multus = |wanted: Option<&str>| {
            networks.iter().find(|network| {
                let name = network.multus.as_ref().map(|multus| full(&multus.network_name));
                name.is_some_and(|name| wanted.is_none_or(|wanted| name == wanted))
            })
        };
        let chosen = match &self.management_network {
            Some(network) => multus(Some(network)),
            None => multus(None).or_else(|| networks.iter().find(|network| network.pod.is_some())),
        };
        let interfaces = instance.status.as_ref().map(|status| &status.interfaces[..]).unwrap_or_default();
        let Some(interface) = chosen.and_then(|network| interfaces.iter().find(|it| it.name == network.name))
        else {
            return Vec::new();
        };
        let texts = match &interface.ip_addresses[..] {
            [] => std::slice::from_ref(&interface.ip_address),
            texts => texts,
        };
        let wanted =
            |ip: &IpAddr| self.prefixes.is_empty() || self.prefixes.iter().any(|net| net.contains(ip));
        texts.iter().filter_map(|text| text.parse().ok()).filter(is_usable).filter(wanted).collect()
    }
}

fn is_usable(ip: &IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn vm(networks: &Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm-a", "namespace": "default"},
            "spec": {"networks": networks},
            "status": {"interfaces": [
                {"name": "nic-0", "ipAddresses": ["192.168.1.10", "bad", "192.168.1.200", "fd00::10", "fe80::1"]},
                {"name": "nic-1", "ipAddress": "10.0.0.5"},
                {"name": "pod", "ipAddresses": ["10.52.0.7", "127.0.0.1"]}]},
        }))
        .unwrap()
    }

    fn two() -> Value {
        json!([{"name": "nic-0", "multus": {"networkName": "default/mgmt"}},
            {"name": "nic-1", "multus": {"networkName": "net2"}}])
    }

    #[rstest]
    #[case::first_network(two(), None, None, &["192.168.1.10", "192.168.1.200", "fd00::10"])]
    #[case::management_network(two(), Some("default/net2"), None, &["10.0.0.5"])]
    #[case::unknown_network(two(), Some("default/none"), None, &[])]
    #[case::prefix(two(), None, Some("192.168.1.128/25"), &["192.168.1.200"])]
    #[case::pod_network_only(json!([{"name": "pod", "pod": {}}]), None, None, &["10.52.0.7"])]
    #[case::none(json!([]), None, None, &[])]
    fn internal_ips(
        #[case] networks: Value,
        #[case] management: Option<&str>,
        #[case] prefix: Option<&str>,
        #[case] expected: &[&str],
    ) {
        let rules = AddressRules {
            management_network: management.map(str::to_owned),
            prefixes: prefix.into_iter().map(|text| text.parse().unwrap()).collect(),
        };
        let texts: Vec<_> = rules.internal_ips(&vm(&networks)).iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected);
    }
}
