//! Reads the answers of servers, and writes the requests of the client.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Encodable};

use crate::Mac;

/// A longer packet is no answer to a request of ours: it does not fit into a frame.
const PACKET_MAX: usize = 1500;
/// RFC 2131, 3.3: the length of a lease that never ends.
const INFINITE: u32 = u32::MAX;
/// The length of a lease where the server names none.
const DEFAULT_LEASE: u32 = 3600;
/// A shorter lease ends before it can be renewed.
const LEASE_MIN: u32 = 2;

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// 255.255.255.255, port 67.
    Broadcast,
    /// This server, port 67, from the leased address.
    Server(Ipv4Addr),
}

/// An address, and how long the client may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub address: Ipv4Addr,
    /// Option 54 of the server that gave the lease.
    pub server: Ipv4Addr,
    /// Option 1.
    pub mask: Option<Ipv4Addr>,
    /// The first router of option 3.
    pub router: Option<Ipv4Addr>,
    /// The times of the lease; `None` for a lease that never ends.
    pub times: Option<Times>,
}

/// The times of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// T1: the client asks the server for more time.
    pub renew: Instant,
    /// T2: the client asks any server for more time.
    pub rebind: Instant,
    /// The client may not use the address any more.
    pub end: Instant,
}

/// An answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Offer { address: Ipv4Addr, server: Ipv4Addr },
    Ack(Lease),
    Nak,
}

/// Reads the answer to the request with this transaction id; `None` for everything else.
pub(crate) fn read(packet: &[u8], transaction: u32, mac: Mac, now: Instant) -> Option<Answer> {
    if packet.len() > PACKET_MAX {
        return None;
    }
    let message = Message::from_bytes(packet).ok()?;
    let is_answer = message.opcode() == Opcode::BootReply && message.xid() == transaction;
    if !is_answer || message.chaddr().get(..6) != Some(&mac.0) {
        return None;
    }
    let options = message.opts();
    let server = match options.get(OptionCode::ServerIdentifier) {
        Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
        _ => None,
    };
    let address = Some(message.yiaddr()).filter(|address| is_usable(*address));
    match options.msg_type()? {
        MessageType::Offer => Some(Answer::Offer { address: address?, server: server? }),
        MessageType::Nak => Some(Answer::Nak),
        MessageType::Ack => {
            let mask = match options.get(OptionCode::SubnetMask) {
                Some(DhcpOption::SubnetMask(mask)) => Some(*mask),
                _ => None,
            };
            let router = match options.get(OptionCode::Router) {
                Some(DhcpOption::Router(routers)) => routers.first().copied(),
                _ => None,
            };
            let times = times(&message, now)?;
            Some(Answer::Ack(Lease { address: address?, server: server?, mask, router, times }))
        }
        _ => None,
    }
}

fn is_usable(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_broadcast() && !address.is_multicast()
}

/// The times of an acknowledged lease; the outer `None` refuses it.
fn times(message: &Message, now: Instant) -> Option<Option<Times>> {
    let options = message.opts();
    let seconds = match options.get(OptionCode::AddressLeaseTime) {
        Some(DhcpOption::AddressLeaseTime(seconds)) => *seconds,
        _ => DEFAULT_LEASE,
    };
    if seconds == INFINITE {
        return Some(None);
    }
    if seconds < LEASE_MIN {
        return None;
    }
    let length = Duration::from_secs(seconds.into());
    let named = |code| match options.get(code)? {
        DhcpOption::Renewal(seconds) | DhcpOption::Rebinding(seconds) => {
            Some(Duration::from_secs((*seconds).into()))
        }
        _ => None,
    };
    // a server's times count only in their order (RFC 2131, 4.4.5)
    let in_order = |(t1, t2): &(Duration, Duration)| !t1.is_zero() && t1 < t2 && *t2 < length;
    let named = named(OptionCode::Renewal).zip(named(OptionCode::Rebinding)).filter(in_order);
    let (t1, t2) = named.unwrap_or((length / 2, length * 7 / 8));
    Some(Some(Times { renew: now + t1, rebind: now + t2, end: now + length }))
}

/// A request of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) message_type: MessageType,
    pub(crate) transaction: u32,
    pub(crate) mac: Mac,
    pub(crate) host_name: Option<&'a str>,
    /// The address that the client uses.
    pub(crate) using: Option<Ipv4Addr>,
    /// Option 50.
    pub(crate) requested: Option<Ipv4Addr>,
    /// Option 54.
    pub(crate) server: Option<Ipv4Addr>,
}

pub(crate) fn write(request: &Request<'_>) -> Vec<u8> {
    let mut message = Message::default();
    message.set_opcode(Opcode::BootRequest).set_xid(request.transaction).set_chaddr(&request.mac.0);
    message.set_ciaddr(request.using.unwrap_or(Ipv4Addr::UNSPECIFIED));
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(request.message_type));
    if let Some(address) = request.requested {
        options.insert(DhcpOption::RequestedIpAddress(address));
    }
    if let Some(server) = request.server {
        options.insert(DhcpOption::ServerIdentifier(server));
    }
    if let Some(name) = request.host_name {
        options.insert(DhcpOption::Hostname(name.to_owned()));
        options.insert(DhcpOption::ClientIdentifier(name.as_bytes().to_vec()));
    }
    message.to_vec().expect("a request of these options can be written")
}
