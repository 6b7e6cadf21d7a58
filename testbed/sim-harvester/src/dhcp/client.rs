//! The client's side, as kube-vip leases: it asks for the address that it had, renews at half of the lease, rebinds at
//! seven eighths, and starts over when the lease ends or is refused.

use std::{net::Ipv4Addr, time::Duration};

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use tokio::time::Instant;

use super::{Mac, address_option, kind, lease_seconds};

/// First wait for an answer; each further one is longer by as much, up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_secs(10);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often a remembered address is asked for before any address will do.
const REBOOTS: u32 = 2;
/// Length of a lease when the server names none.
const DEFAULT_LEASE: u32 = 3600;

/// What a client hears.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Start,
    Packet(Message),
    /// The alarm that was asked for last.
    Alarm,
    /// The address is not wanted any more.
    Stop,
}

/// What a client wants done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    Send(Message),
    /// Call back then; replaces the alarm before.
    AlarmAt(Instant),
    /// The address is ours from now on.
    Use(Ipv4Addr),
    /// The address that was in use is not ours any more.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    address: Ipv4Addr,
    server: Ipv4Addr,
    rebind: Instant,
    end: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Asks for the address of an earlier life.
    Rebooting {
        address: Ipv4Addr,
        tries: u32,
    },
    /// Asks for any address.
    Selecting {
        tries: u32,
    },
    /// Has chosen an offer.
    Requesting {
        address: Ipv4Addr,
        server: Ipv4Addr,
        tries: u32,
    },
    Bound {
        lease: Lease,
    },
    /// Uses the address and asks the server that gave it for more time, or any server when `rebinding`.
    Extending {
        lease: Lease,
        rebinding: bool,
    },
    Stopped,
}

/// A DHCP client without its socket.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    mac: Mac,
    /// The address to ask for.
    wish: Option<Ipv4Addr>,
    state: State,
    random: fastrand::Rng,
    transaction: u32,
}

impl Client {
    pub(crate) fn new(mac: Mac, wish: Option<Ipv4Addr>, seed: u64) -> Self {
        let state = State::Stopped;
        Self { mac, wish, state, random: fastrand::Rng::with_seed(seed), transaction: 0 }
    }

    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Vec<Command> {
        match (event, self.state) {
            (Event::Start, _) => self.start(now),
            (Event::Stop, State::Bound { lease } | State::Extending { lease, .. }) => {
                self.state = State::Stopped;
                let mut release = self.message(MessageType::Release);
                release.set_ciaddr(lease.address);
                release.opts_mut().insert(DhcpOption::ServerIdentifier(lease.server));
                vec![Command::Send(release), Command::Lost]
            }
            (Event::Stop, _) => {
                self.state = State::Stopped;
                Vec::new()
            }
            (Event::Packet(packet), state) => {
                let ours = packet.opcode() == Opcode::BootReply && packet.xid() == self.transaction;
                if ours && Mac::of(&packet) == Some(self.mac) {
                    self.heard(&packet, state, now)
                } else {
                    Vec::new()
                }
            }
            (Event::Alarm, state) => self.alarm(state, now),
        }
    }

    fn heard(&mut self, packet: &Message, state: State, now: Instant) -> Vec<Command> {
        let server = address_option(packet, OptionCode::ServerIdentifier).unwrap_or(packet.siaddr());
        match (kind(packet), state) {
            (Some(MessageType::Offer), State::Selecting { .. }) => {
                self.request(State::Requesting { address: packet.yiaddr(), server, tries: 0 }, now)
            }
            (
                Some(MessageType::Ack),
                State::Rebooting { .. } | State::Requesting { .. } | State::Extending { .. },
            ) => self.bind(packet, server, state, now),
            (Some(MessageType::Nak), State::Rebooting { .. } | State::Requesting { .. }) => {
                self.wish = None;
                self.start(now)
            }
            (Some(MessageType::Nak), State::Extending { .. }) => self.lose(None, now),
            _ => Vec::new(),
        }
    }

    fn bind(&mut self, packet: &Message, server: Ipv4Addr, state: State, now: Instant) -> Vec<Command> {
        let seconds = lease_seconds(packet).unwrap_or(DEFAULT_LEASE);
        let length = Duration::from_secs(seconds.into());
        let address = packet.yiaddr();
        self.wish = Some(address);
        self.state = State::Bound {
            lease: Lease { address, server, rebind: now + length * 7 / 8, end: now + length },
        };
        let used = matches!(state, State::Extending { lease, .. } if lease.address == address);
        let mut commands = vec![Command::AlarmAt(now + length / 2)];
        if !used {
            commands.push(Command::Use(address));
        }
        commands
    }

    fn alarm(&mut self, state: State, now: Instant) -> Vec<Command> {
        match state {
            State::Stopped => Vec::new(),
            State::Rebooting { tries, .. } if tries >= REBOOTS => {
                self.request(State::Selecting { tries: 0 }, now)
            }
            State::Rebooting { address, tries } => self.request(State::Rebooting { address, tries }, now),
            State::Selecting { tries } => self.request(State::Selecting { tries }, now),
            State::Requesting { tries, .. } if tries >= REBOOTS => {
                self.request(State::Selecting { tries: 0 }, now)
            }
            State::Requesting { address, server, tries } => {
                self.request(State::Requesting { address, server, tries }, now)
            }
            State::Bound { lease } | State::Extending { lease, .. } if now >= lease.end => {
                self.lose(Some(lease.address), now)
            }
            State::Bound { lease } | State::Extending { lease, .. } => {
                self.request(State::Extending { lease, rebinding: now >= lease.rebind }, now)
            }
        }
    }

    fn start(&mut self, now: Instant) -> Vec<Command> {
        let state = match self.wish {
            Some(address) => State::Rebooting { address, tries: 0 },
            None => State::Selecting { tries: 0 },
        };
        self.request(state, now)
    }

    fn lose(&mut self, wish: Option<Ipv4Addr>, now: Instant) -> Vec<Command> {
        self.wish = wish;
        let mut commands = vec![Command::Lost];
        commands.extend(self.start(now));
        commands
    }

    /// Enters `state`, sends its packet and sets its alarm.
    fn request(&mut self, state: State, now: Instant) -> Vec<Command> {
        // an offer is answered within the transaction that it belongs to
        if !matches!(state, State::Requesting { tries: 0, .. }) {
            self.transaction = self.random.u32(..);
        }
        let kind = if matches!(state, State::Selecting { .. }) {
            MessageType::Discover
        } else {
            MessageType::Request
        };
        let mut message = self.message(kind);
        let (alarm, state) = match state {
            State::Rebooting { address, tries } => {
                message.opts_mut().insert(DhcpOption::RequestedIpAddress(address));
                (now + wait(tries), State::Rebooting { address, tries: tries + 1 })
            }
            State::Selecting { tries } => {
                if let Some(wish) = self.wish {
                    message.opts_mut().insert(DhcpOption::RequestedIpAddress(wish));
                }
                (now + wait(tries), State::Selecting { tries: tries + 1 })
            }
            State::Requesting { address, server, tries } => {
                message.opts_mut().insert(DhcpOption::RequestedIpAddress(address));
                message.opts_mut().insert(DhcpOption::ServerIdentifier(server));
                (now + wait(tries), State::Requesting { address, server, tries: tries + 1 })
            }
            State::Extending { lease, rebinding } => {
                message.set_ciaddr(lease.address);
                let next = if rebinding { lease.end } else { lease.rebind };
                // half of what is left, as the protocol wants, but not in ever smaller steps
                ((now + ((next - now) / 2).max(Duration::from_secs(1))).min(next), state)
            }
            State::Bound { .. } | State::Stopped => unreachable!("nothing is asked for in these"),
        };
        self.state = state;
        vec![Command::Send(message), Command::AlarmAt(alarm)]
    }

    fn message(&self, kind: MessageType) -> Message {
        let mut message = Message::default();
        message.set_opcode(Opcode::BootRequest).set_xid(self.transaction).set_chaddr(&self.mac.0);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        message
    }
}

fn wait(tries: u32) -> Duration {
    (WAIT * (tries + 1)).min(WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dhcp::server::Server, settings::Dhcp};

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 77, 0, last)
    }

    fn settings(silent: bool) -> Dhcp {
        Dhcp { pool: (ip(10), ip(20)), lease_seconds: 800, silent }
    }

    /// Runs client and server against each other until `until` seconds have passed; answers what the client said about
    /// its address and what it sent, with the second.
    fn run(
        client: &mut Client,
        server: &mut Server,
        until: u64,
        mut meanwhile: impl FnMut(u64, &mut Server),
    ) -> Vec<(u64, String)> {
        let start = Instant::now();
        let (mut log, mut now, mut alarm) = (Vec::new(), start, None);
        let mut events = vec![Event::Start];
        loop {
            while let Some(event) = events.pop() {
                let second = (now - start).as_secs();
                for command in client.on(event, now) {
                    match command {
                        Command::Send(message) => {
                            log.push((second, format!("{:?}", kind(&message).unwrap())));
                            events.extend(server.on(&message, now).map(Event::Packet));
                        }
                        Command::AlarmAt(at) => alarm = Some(at),
                        Command::Use(address) => log.push((second, address.to_string())),
                        Command::Lost => log.push((second, "lost".to_owned())),
                    }
                }
            }
            match alarm.take() {
                Some(at) if at <= start + Duration::from_secs(until) => now = at,
                _ => return log,
            }
            meanwhile((now - start).as_secs(), server);
            events.push(Event::Alarm);
        }
    }

    fn texts(log: &[(u64, String)]) -> Vec<(u64, &str)> {
        log.iter().map(|(second, text)| (*second, text.as_str())).collect()
    }

    #[test]
    fn a_lease_is_had_and_renewed_at_half_its_length() {
        let (mut client, mut server) =
            (Client::new(Mac([0, 0, 0x6c, 1, 2, 3]), None, 1), Server::new(ip(254), settings(false)));
        let log = run(&mut client, &mut server, 900, |_, _| ());
        let expected =
            [(0, "Discover"), (0, "Request"), (0, "127.77.0.10"), (400, "Request"), (800, "Request")];
        assert_eq!(texts(&log), expected);
    }

    #[test]
    fn an_unanswered_renewal_is_repeated_then_rebound_and_the_address_is_lost_with_the_lease() {
        let (mut client, mut server) =
            (Client::new(Mac([0, 0, 0x6c, 1, 2, 3]), None, 1), Server::new(ip(254), settings(false)));
        let log = run(&mut client, &mut server, 820, |_, server| server.reconfigure(settings(true)));
        let first = texts(&log)[3];
        assert_eq!(first, (400, "Request"));
        let lost = log.iter().position(|(_, text)| text == "lost").expect("the lease ends");
        assert_eq!(log[lost].0, 800);
        assert_eq!(log[lost + 1], (800, "Request".to_owned()), "it asks for the address that it had");
        assert!(lost < 40, "not in ever smaller steps: {log:?}");
    }

    #[test]
    fn a_server_that_answers_again_before_the_end_saves_the_lease() {
        let (mut client, mut server) =
            (Client::new(Mac([0, 0, 0x6c, 1, 2, 3]), None, 1), Server::new(ip(254), settings(false)));
        let log = run(&mut client, &mut server, 1000, |second, server| {
            server.reconfigure(settings((400..700).contains(&second)));
        });
        assert!(log.iter().all(|(_, text)| text != "lost"), "{log:?}");
    }

    #[test]
    fn after_a_restart_it_asks_for_the_address_that_it_had_and_takes_another_when_refused() {
        let mac = Mac([0, 0, 0x6c, 1, 2, 3]);
        let mut server = Server::new(ip(254), settings(false));
        let log = run(&mut Client::new(mac, Some(ip(17)), 1), &mut server, 10, |_, _| ());
        assert_eq!(texts(&log), [(0, "Request"), (0, "127.77.0.17")]);
        let other = Mac([0, 0, 0x6c, 9, 9, 9]);
        let log = run(&mut Client::new(other, Some(ip(17)), 1), &mut server, 10, |_, _| ());
        assert_eq!(texts(&log), [(0, "Request"), (0, "Discover"), (0, "Request"), (0, "127.77.0.10")]);
    }

    #[test]
    fn without_an_answer_it_asks_less_and_less_often() {
        let (mut client, mut server) =
            (Client::new(Mac([0, 0, 0x6c, 1, 2, 3]), None, 1), Server::new(ip(254), settings(true)));
        let log = run(&mut client, &mut server, 215, |_, _| ());
        let seconds: Vec<_> = log.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 10, 30, 60, 100, 150, 210]);
    }
}
