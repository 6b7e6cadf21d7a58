//! Finds the address of a machine in its VMI's status.

use std::net::Ipv4Addr;

use harvester_api::{VirtualMachineInstance, kubevirt::VmInterface};

/// The IPv4 address in the network of the first NIC. Upstream takes the first address of the first interface in the list,
/// whichever that is (docs/contract/node-driver.md#B1, #B2).
///
/// If the guest's NIC is part of a bridge or bond, the agent reports the address for that interface, which has the NIC's
/// hardware address.
pub(crate) fn of(instance: &VirtualMachineInstance) -> Option<Ipv4Addr> {
    let interfaces = &instance.status.as_ref()?.interfaces;
    let first = match instance.spec.networks.first() {
        Some(network) => interfaces.iter().find(|interface| interface.name == network.name),
        None => interfaces.first(),
    }?;
    let same_hardware =
        |other: &&VmInterface| !first.mac.is_empty() && other.mac.eq_ignore_ascii_case(&first.mac);
    address(first).or_else(|| interfaces.iter().filter(same_hardware).find_map(address))
}

fn address(interface: &VmInterface) -> Option<Ipv4Addr> {
    let texts = std::iter::once(&interface.ip_address).chain(&interface.ip_addresses);
    let parsed = texts.filter_map(|text| text.split('/').next()?.trim().parse::<Ipv4Addr>().ok());
    parsed
        .into_iter()
        .find(|address| !(address.is_loopback() || address.is_link_local() || address.is_unspecified()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::usual(json!([{"name": "nic-0", "ipAddress": "192.0.2.9"}]), Some("192.0.2.9"))]
    #[case::with_prefix(json!([{"name": "nic-0", "ipAddress": "192.0.2.9/24"}]), Some("192.0.2.9"))]
    // docs/contract/node-driver.md#B1: upstream panics
    #[case::none_yet(json!([]), None)]
    #[case::no_address_yet(json!([{"name": "nic-0"}]), None)]
    // docs/contract/node-driver.md#B2
    #[case::ipv6_first(json!([{"name": "nic-0", "ipAddress": "2001:db8::9",
        "ipAddresses": ["2001:db8::9", "192.0.2.9"]}]), Some("192.0.2.9"))]
    #[case::another_interface_first(json!([{"name": "nic-1", "ipAddress": "198.51.100.9"},
        {"name": "nic-0", "ipAddress": "192.0.2.9"}]), Some("192.0.2.9"))]
    #[case::only_another_network(json!([{"name": "nic-1", "ipAddress": "198.51.100.9"}]), None)]
    #[case::link_local_is_none(json!([{"name": "nic-0", "ipAddress": "169.254.3.4"}]), None)]
    #[case::under_a_bridge(json!([{"name": "nic-0", "mac": "02:00:00:00:00:aa"},
        {"name": "", "interfaceName": "br0", "mac": "02:00:00:00:00:AA", "ipAddress": "192.0.2.9"}]), Some("192.0.2.9"))]
    fn the_first_nics_ipv4_address_is_the_machines(
        #[case] interfaces: Value,
        #[case] expected: Option<&str>,
    ) {
        let instance = serde_json::from_value(json!({"metadata": {"name": "demo-1"},
            "spec": {"networks": [{"name": "nic-0"}, {"name": "nic-1"}]},
            "status": {"phase": "Running", "interfaces": interfaces}}))
        .unwrap();
        assert_eq!(of(&instance).map(|address| address.to_string()).as_deref(), expected);
    }
}
