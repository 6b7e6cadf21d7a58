//! The rules for the addresses that a backend may have.
//!
//! They come from the guest agent, that is, from inside the tenant's VM: a guest could name the API server, a node
//! or a load balancer's address, and both traffic and probes would go there. Any other address is taken as the VM's own: nothing
//! here knows whose machine has it, within the network of the pods neither.

use std::fmt;
use std::net::IpAddr;

use ipam::Family;
use ipnet::IpNet;

/// Addresses that must not be a backend's.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    /// Those of the other one are passed over.
    pub(crate) family: Family,
    pub(crate) pod_cidrs: &'a [IpNet],
    pub(crate) service_cidrs: &'a [IpNet],
    /// [`Implausible::Node`] for an address of a Harvester node, [`Implausible::Vip`] for one of a load balancer.
    pub(crate) taken: &'a dyn Fn(IpAddr) -> Option<Implausible>,
}

impl Default for Rules<'_> {
    fn default() -> Self {
        Self { family: Family::V4, pod_cidrs: &[], service_cidrs: &[], taken: &|_| None }
    }
}

/// The sort of NIC that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nic {
    PodNetwork,
    Other,
}

/// Why an address is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implausible {
    Unspecified,
    Loopback,
    LinkLocal,
    Multicast,
    Service,
    Pod,
    Node,
    Vip,
}

impl fmt::Display for Implausible {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Unspecified => "is not the address of one machine",
            Self::Loopback => "is a loopback address",
            Self::LinkLocal => "is a link-local address",
            Self::Multicast => "is a multicast address",
            Self::Service => "belongs to the Services of the Harvester cluster",
            Self::Pod => "belongs to the pods of the Harvester cluster, and the VM has it on another network",
            Self::Node => "is the address of a Harvester node",
            Self::Vip => "is the address of a load balancer",
        })
    }
}

impl Rules<'_> {
    /// Why `address` on a NIC of that sort is refused; nothing when it is not.
    pub(crate) fn refuse(&self, address: IpAddr, nic: Nic) -> Option<Implausible> {
        // an IPv4 address in the notation of IPv6 is that address
        let address = address.to_canonical();
        let within = |cidrs: &[IpNet]| cidrs.iter().any(|cidr| cidr.contains(&address));
        let (no_single, link_local) = match address {
            IpAddr::V4(v4) => (v4.octets()[0] == 0 || v4.is_broadcast(), v4.is_link_local()),
            IpAddr::V6(v6) => (v6.is_unspecified(), v6.is_unicast_link_local()),
        };
        let rules = [
            (no_single, Implausible::Unspecified),
            (address.is_loopback(), Implausible::Loopback),
            (link_local, Implausible::LinkLocal),
            (address.is_multicast(), Implausible::Multicast),
            (within(self.service_cidrs), Implausible::Service),
            (nic != Nic::PodNetwork && within(self.pod_cidrs), Implausible::Pod),
        ];
        rules.into_iter().find_map(|(broken, why)| broken.then_some(why)).or_else(|| (self.taken)(address))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("192.168.7.10", Nic::Other, None)]
    #[case("198.18.0.10", Nic::Other, None)]
    #[case("0.0.0.0", Nic::Other, Some(Implausible::Unspecified))]
    #[case("255.255.255.255", Nic::Other, Some(Implausible::Unspecified))]
    #[case("127.0.0.1", Nic::PodNetwork, Some(Implausible::Loopback))]
    #[case("fd00::10", Nic::Other, None)]
    #[case("::", Nic::Other, Some(Implausible::Unspecified))]
    #[case("::1", Nic::Other, Some(Implausible::Loopback))]
    #[case("fe80::1", Nic::Other, Some(Implausible::LinkLocal))]
    #[case("ff02::1", Nic::Other, Some(Implausible::Multicast))]
    #[case("169.254.169.254", Nic::Other, Some(Implausible::LinkLocal))]
    #[case("224.0.0.1", Nic::Other, Some(Implausible::Multicast))]
    #[case("10.53.0.1", Nic::PodNetwork, Some(Implausible::Service))]
    #[case("10.52.3.4", Nic::PodNetwork, None)]
    #[case("10.52.3.4", Nic::Other, Some(Implausible::Pod))]
    #[case("192.168.7.1", Nic::Other, Some(Implausible::Node))]
    #[case("10.52.3.1", Nic::PodNetwork, Some(Implausible::Node))]
    #[case("192.168.7.200", Nic::Other, Some(Implausible::Vip))]
    #[case("fd00:53::1", Nic::PodNetwork, Some(Implausible::Service))]
    #[case("fd00:52::9", Nic::PodNetwork, None)]
    #[case("fd00:52::9", Nic::Other, Some(Implausible::Pod))]
    #[case("fd00:7::1", Nic::Other, Some(Implausible::Node))]
    #[case("::ffff:127.0.0.1", Nic::Other, Some(Implausible::Loopback))]
    #[case("::ffff:10.53.0.1", Nic::PodNetwork, Some(Implausible::Service))]
    #[case("::ffff:192.168.7.1", Nic::Other, Some(Implausible::Node))]
    fn addresses_of_harvester_of_load_balancers_and_of_no_single_machine_are_refused(
        #[case] address: IpAddr,
        #[case] nic: Nic,
        #[case] expected: Option<Implausible>,
    ) {
        // docs/contract/load-balancer.md#S-1, #S-7
        let rules = Rules {
            family: Family::of(address),
            pod_cidrs: &["10.52.0.0/16", "fd00:52::/64"].map(|cidr| cidr.parse().unwrap()),
            service_cidrs: &["10.53.0.0/16", "fd00:53::/64"].map(|cidr| cidr.parse().unwrap()),
            taken: &|address| match address.to_string().as_str() {
                "192.168.7.1" | "10.52.3.1" | "fd00:7::1" => Some(Implausible::Node),
                "192.168.7.200" => Some(Implausible::Vip),
                _ => None,
            },
        };
        assert_eq!(rules.refuse(address, nic), expected);
    }
}
