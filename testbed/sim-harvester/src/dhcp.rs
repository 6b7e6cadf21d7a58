//! DHCPv4 between the simulated kube-vip and a simulated server: real packets, over sockets or in memory.
//!
//! ```text
//!   client machine ──packet──► Lan ──packet──► server machine
//!        ▲                                          │
//!        └────────────── packet ◄───────────────────┘
//! ```
//! Both machines are pure: packets and the time go in, packets and alarms come out. Broadcasts do not exist on
//! loopback, so everything is sent to the one server; a client behind it cannot tell.

pub(crate) mod client;
mod lan;
pub(crate) mod server;

use std::{fmt, net::Ipv4Addr};

use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};

pub use lan::Lan;
pub(crate) use lan::{Leasing, lease, serve};

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// As kube-vip makes them: a fixed prefix and three random bytes.
    pub(crate) fn random(random: &mut fastrand::Rng) -> Self {
        Self([0x00, 0x00, 0x6c, random.u8(..), random.u8(..), random.u8(..)])
    }

    /// Reads `00:00:6c:01:02:03`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut bytes {
            *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }

    fn of(message: &Message) -> Option<Self> {
        message.chaddr().get(..6)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

fn kind(message: &Message) -> Option<MessageType> {
    message.opts().msg_type()
}

fn address_option(message: &Message, code: OptionCode) -> Option<Ipv4Addr> {
    match message.opts().get(code)? {
        DhcpOption::RequestedIpAddress(address) | DhcpOption::ServerIdentifier(address) => Some(*address),
        _ => None,
    }
}

fn lease_seconds(message: &Message) -> Option<u32> {
    match message.opts().get(OptionCode::AddressLeaseTime)? {
        DhcpOption::AddressLeaseTime(seconds) => Some(*seconds),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_address_reads_back_what_it_prints() {
        let mac = Mac::random(&mut fastrand::Rng::with_seed(1));
        assert_eq!(Mac::parse(&mac.to_string()), Some(mac));
        assert!(mac.to_string().starts_with("00:00:6c:"));
        assert_eq!(Mac::parse("00:00:6c:01:02"), None);
        assert_eq!(Mac::parse("00:00:6c:01:02:03:04"), None);
    }
}
