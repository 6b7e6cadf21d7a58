//! The server's side: one pool, one lease for each hardware address.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use tokio::time::Instant;

use dhcp_client::Mac;

use super::{address_option, mac_of, message_type};
use crate::settings::Dhcp;

/// The server keeps an offered address this long for the client.
const OFFERED: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    mac: Mac,
    until: Instant,
}

/// A DHCP server without its socket.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Option 54, by which clients tell servers apart.
    identifier: Ipv4Addr,
    settings: Dhcp,
    leases: BTreeMap<Ipv4Addr, Lease>,
}

impl Server {
    pub(crate) fn new(identifier: Ipv4Addr, settings: Dhcp) -> Self {
        Self { identifier, settings, leases: BTreeMap::new() }
    }

    /// Other settings from now on; leases that were given stay what they are.
    pub(crate) fn reconfigure(&mut self, settings: Dhcp) {
        self.settings = settings;
    }

    /// The answer to a packet, if there is one.
    pub(crate) fn on(&mut self, message: &Message, now: Instant) -> Option<Message> {
        self.leases.retain(|_, lease| lease.until > now);
        let mac = mac_of(message)?;
        let requested = address_option(message, OptionCode::RequestedIpAddress);
        if self.settings.silent || message.opcode() != Opcode::BootRequest {
            return None;
        }
        match message_type(message)? {
            MessageType::Discover => {
                let address = self.choose(mac, requested)?;
                self.leases.insert(address, Lease { mac, until: now + OFFERED });
                Some(self.answer(message, MessageType::Offer, Some(address)))
            }
            MessageType::Request => {
                let chosen = address_option(message, OptionCode::ServerIdentifier);
                if chosen.is_some_and(|server| server != self.identifier) {
                    return None;
                }
                // SELECTING and INIT-REBOOT name the address in option 50, RENEWING and REBINDING in `ciaddr`
                let address = requested.unwrap_or(message.ciaddr());
                if !self.may_have(mac, address) {
                    return Some(self.answer(message, MessageType::Nak, None));
                }
                self.leases.retain(|_, lease| lease.mac != mac);
                let until = now + Duration::from_secs(self.settings.lease_seconds.into());
                self.leases.insert(address, Lease { mac, until });
                Some(self.answer(message, MessageType::Ack, Some(address)))
            }
            MessageType::Release => {
                self.leases.retain(|address, lease| *address != message.ciaddr() || lease.mac != mac);
                None
            }
            _ => None,
        }
    }

    /// The address that the client has, the one that it asks for, else the lowest free one.
    fn choose(&self, mac: Mac, requested: Option<Ipv4Addr>) -> Option<Ipv4Addr> {
        let held = self.leases.iter().find(|(_, lease)| lease.mac == mac).map(|(address, _)| *address);
        let (first, last) = self.settings.pool;
        let pool = (u32::from(first)..=u32::from(last)).map(Ipv4Addr::from);
        let candidates = held.into_iter().chain(requested).chain(pool);
        candidates.into_iter().find(|address| self.may_have(mac, *address))
    }

    fn may_have(&self, mac: Mac, address: Ipv4Addr) -> bool {
        let (first, last) = self.settings.pool;
        (first..=last).contains(&address) && self.leases.get(&address).is_none_or(|lease| lease.mac == mac)
    }

    fn answer(&self, to: &Message, answer_type: MessageType, address: Option<Ipv4Addr>) -> Message {
        let mut answer = Message::default();
        answer.set_opcode(Opcode::BootReply).set_xid(to.xid()).set_chaddr(to.chaddr()).set_flags(to.flags());
        if answer_type != MessageType::Nak {
            answer.set_ciaddr(to.ciaddr());
        }
        let options = answer.opts_mut();
        options.insert(DhcpOption::MessageType(answer_type));
        options.insert(DhcpOption::ServerIdentifier(self.identifier));
        if let Some(address) = address {
            options.insert(DhcpOption::AddressLeaseTime(self.settings.lease_seconds));
            options.insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
            answer.set_yiaddr(address);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 254);

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 77, 0, last)
    }

    fn server() -> Server {
        Server::new(ME, Dhcp { pool: (ip(10), ip(11)), lease_seconds: 60, silent: false })
    }

    fn message(kind: MessageType, mac: u8, requested: Option<Ipv4Addr>, using: Option<Ipv4Addr>) -> Message {
        let mut message = Message::default();
        message.set_chaddr(&[0, 0, 0x6c, 0, 0, mac]);
        message.set_ciaddr(using.unwrap_or(Ipv4Addr::UNSPECIFIED));
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        if let Some(address) = requested {
            message.opts_mut().insert(DhcpOption::RequestedIpAddress(address));
        }
        message
    }

    fn check(
        server: &mut Server,
        message: &Message,
        now: Instant,
        expected: Option<(MessageType, Ipv4Addr)>,
    ) {
        let answer = server.on(message, now);
        assert_eq!(answer.map(|answer| (message_type(&answer).unwrap(), answer.yiaddr())), expected);
    }

    #[test]
    fn an_address_is_leased_to_one_client_until_its_lease_ends() {
        use MessageType::{Ack, Discover, Nak, Offer, Release, Request};
        let (mut server, start) = (server(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        check(&mut server, &message(Discover, 1, None, None), at(0), Some((Offer, ip(10))));
        check(&mut server, &message(Request, 1, Some(ip(10)), None), at(0), Some((Ack, ip(10))));
        check(&mut server, &message(Discover, 2, Some(ip(10)), None), at(1), Some((Offer, ip(11))));
        check(
            &mut server,
            &message(Request, 2, Some(ip(10)), None),
            at(1),
            Some((Nak, Ipv4Addr::UNSPECIFIED)),
        );
        check(&mut server, &message(Request, 2, Some(ip(11)), None), at(1), Some((Ack, ip(11))));
        check(&mut server, &message(Discover, 3, None, None), at(2), None);
        // the first renews, the second does not
        check(&mut server, &message(Request, 1, None, Some(ip(10))), at(40), Some((Ack, ip(10))));
        check(&mut server, &message(Discover, 3, None, None), at(62), Some((Offer, ip(11))));
        // what is given back is free at once
        check(&mut server, &message(Release, 1, None, Some(ip(10))), at(63), None);
        check(&mut server, &message(Request, 2, Some(ip(10)), None), at(63), Some((Ack, ip(10))));
    }

    #[test]
    fn a_client_that_starts_again_gets_the_address_that_it_asks_for() {
        let (mut server, now) = (server(), Instant::now());
        let reboot = message(MessageType::Request, 9, Some(ip(11)), None);
        check(&mut server, &reboot, now, Some((MessageType::Ack, ip(11))));
        let outside = message(MessageType::Request, 8, Some(ip(99)), None);
        check(&mut server, &outside, now, Some((MessageType::Nak, Ipv4Addr::UNSPECIFIED)));
    }

    #[test]
    fn a_silent_server_hears_and_does_not_answer() {
        let mut server = server();
        server.reconfigure(Dhcp { pool: (ip(10), ip(11)), lease_seconds: 60, silent: true });
        check(&mut server, &message(MessageType::Discover, 1, None, None), Instant::now(), None);
    }
}
