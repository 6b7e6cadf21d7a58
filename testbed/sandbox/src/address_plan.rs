//! The loopback addresses of one sandbox: a /24 for VIPs and a /24 for VMs. Each sandbox holds its stretch of addresses
//! while it lives, so two can run at once.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use ipnet::{Ipv4Net, Ipv6Net};
use sim_harvester::Stretch;

/// Addresses of one sandbox.
#[derive(Debug)]
pub(crate) struct AddressPlan(Stretch);

impl AddressPlan {
    /// Takes the first range that no sandbox holds.
    ///
    /// # Errors
    /// When all are taken, or this system does not let 127.0.0.0/8 be used (another system than Linux).
    pub(crate) fn take() -> Result<Self> {
        Stretch::take().map(Self).context(
            "no free stretch of 127.18.0.0/16 for the VMs: end another sandbox; systems other than Linux need \
             `ip addr`-like aliases of the loopback interface first",
        )
    }

    /// The addresses of VIPs.
    pub(crate) fn vips(&self) -> Ipv4Net {
        net(Ipv4Addr::new(127, 19, self.0.number(), 0))
    }

    /// The addresses of VIPs from the legacy pool ConfigMap.
    pub(crate) fn legacy_vips(&self) -> Ipv4Net {
        net(Ipv4Addr::new(127, 20, self.0.number(), 0))
    }

    /// The addresses of the simulated DHCP server.
    pub(crate) fn leases(&self) -> Ipv4Net {
        net(Ipv4Addr::new(127, 21, self.0.number(), 0))
    }

    /// Addresses that a Service may demand: loopback ones are refused there. On the wire 127.22.x.y stands for 198.19.x.y.
    pub(crate) fn demandable(&self) -> Ipv4Net {
        net(Ipv4Addr::new(198, 19, self.0.number(), 0))
    }

    /// IPv6 addresses of VIPs; on the wire each is an address of 127.23.0.0/16.
    pub(crate) fn ipv6_vips(&self) -> Ipv6Net {
        let network = sim_harvester::ipv6(Ipv4Addr::new(127, 23, self.0.number(), 0));
        Ipv6Net::new(network, 120).expect("120 is a prefix length")
    }

    /// Addresses of VMs and pods in objects; on the wire 127.18.x.y stands for 198.18.x.y.
    pub(crate) fn vms(&self) -> Ipv4Net {
        self.0.vms()
    }
}

fn net(address: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new(address, 24).expect("24 is a prefix length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sandboxes_have_different_addresses() {
        let (one, other) = (AddressPlan::take().unwrap(), AddressPlan::take().unwrap());
        assert_ne!(one.vips(), other.vips());
        assert_ne!(one.vms(), other.vms());
        assert_ne!(one.ipv6_vips(), other.ipv6_vips());
        assert_ne!(one.demandable(), other.demandable());
    }
}
