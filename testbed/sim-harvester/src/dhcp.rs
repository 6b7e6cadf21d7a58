//! DHCPv4 between the simulated kube-vip and a simulated server: real packets, over sockets or in memory.
//!
//! ```text
//!   dhcp_client::Client ──packet──► Lan ──packet──► Server
//!        ▲                                             │
//!        └────────────────── packet ◄──────────────────┘
//! ```
//! Client and server are pure: packets and the time go in, packets and alarms come out. Loopback has no broadcasts, so all
//! packets go to the one server; a client cannot tell the difference.

mod lan;
pub(crate) mod server;

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};

use dhcp_client::Mac;

pub use lan::Lan;
pub(crate) use lan::{Leasing, lease, serve};

fn mac_of(message: &Message) -> Option<Mac> {
    message.chaddr().get(..6)?.try_into().ok().map(Mac)
}

fn message_type(message: &Message) -> Option<MessageType> {
    message.opts().msg_type()
}

fn address_option(message: &Message, code: OptionCode) -> Option<Ipv4Addr> {
    match message.opts().get(code)? {
        DhcpOption::RequestedIpAddress(address) | DhcpOption::ServerIdentifier(address) => Some(*address),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
