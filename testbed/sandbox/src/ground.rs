//! The stretch of loopback that one sandbox stands on: a /24 for VIPs and a /24 for VMs. Two sandboxes can run at
//! once because each holds a UDP socket on its ground for as long as it lives.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Context, Result};
use ipnet::Ipv4Net;

/// A sandbox holds its ground by a socket on this port of the last address of its VMs' /24.
const HOLD: u16 = 39_172;
/// Grounds to try.
const GROUNDS: u8 = 200;

/// Addresses of one sandbox.
#[derive(Debug)]
pub(crate) struct Ground {
    number: u8,
    _held: UdpSocket,
}

impl Ground {
    /// Takes the first ground that nobody holds.
    ///
    /// # Errors
    /// When all are taken, or this system does not let 127.0.0.0/8 be used (another system than Linux).
    pub(crate) fn take() -> Result<Self> {
        let mut last = None;
        for number in 1..=GROUNDS {
            match UdpSocket::bind((Ipv4Addr::new(127, 18, number, 254), HOLD)) {
                Ok(held) => return Ok(Self { number, _held: held }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one was tried")).context(
            "no free stretch of 127.18.0.0/16 for the VMs: end another sandbox; systems other than Linux need \
             `ip addr`-like aliases of the loopback interface first",
        )
    }

    /// VIPs come from here.
    pub(crate) fn vips(&self) -> Ipv4Net {
        net(Ipv4Addr::new(127, 19, self.number, 0))
    }

    /// VIPs that come from the legacy pool ConfigMap.
    pub(crate) fn legacy_vips(&self) -> Ipv4Net {
        net(Ipv4Addr::new(127, 20, self.number, 0))
    }

    /// Leases of the simulated DHCP server.
    pub(crate) fn leases(&self) -> Ipv4Net {
        net(Ipv4Addr::new(127, 21, self.number, 0))
    }

    /// Addresses of VMs and pods in objects; on the wire 127.18.x.y stands for 198.18.x.y.
    pub(crate) fn vms(&self) -> Ipv4Net {
        net(Ipv4Addr::new(198, 18, self.number, 0))
    }
}

fn net(address: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new(address, 24).expect("24 is a prefix length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sandboxes_stand_on_different_ground() {
        let (one, other) = (Ground::take().unwrap(), Ground::take().unwrap());
        assert_ne!(one.vips(), other.vips());
        assert_ne!(one.vms(), other.vms());
    }
}
