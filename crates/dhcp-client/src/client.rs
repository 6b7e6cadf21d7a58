//! The states of a client, and the transitions between them (RFC 2131, figure 5).

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dhcproto::v4::MessageType;

use crate::Mac;
use crate::packet::{Answer, Destination, Lease, Request, Times, read, write};

/// The first wait for an answer; each further one is longer by as much, up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_secs(10);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The number of requests for a certain address before the client asks for any.
const TRIES: u32 = 3;
/// The shortest wait before a renewal is repeated.
const RENEWAL_WAIT_MIN: Duration = Duration::from_secs(1);

/// The identity of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub mac: Mac,
    /// The address of an earlier lease; the client asks for it first.
    pub requested: Option<Ipv4Addr>,
    /// Option 12, and as bytes without a type option 61.
    pub host_name: Option<String>,
    /// Chooses the transaction ids.
    pub seed: u64,
}

impl Config {
    /// A client without former address and host name.
    #[must_use]
    pub fn new(mac: Mac, seed: u64) -> Self {
        Self { mac, requested: None, host_name: None, seed }
    }
}

/// An input of the client.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    Start,
    /// A UDP payload that arrived at port 68.
    Packet(&'a [u8]),
    /// The time of the last [`Command::AlarmAt`] has come.
    Alarm,
    /// The caller wants the address no longer.
    Stop,
}

/// An output of the client. The caller carries the commands out in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send this UDP payload.
    Send { packet: Vec<u8>, to: Destination },
    /// Send [`Event::Alarm`] at this time. Replaces the former alarm.
    AlarmAt(Instant),
    /// The client has this address from now on.
    Use(Lease),
    /// The server extended the lease of the address in use.
    Renewed(Lease),
    /// The address in use is the client's no longer.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Stopped,
    /// Asks for the address of an earlier lease.
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
    /// Uses the address, and asks for more time: the server that gave it, or any server when `rebinding`.
    Extending {
        lease: Lease,
        times: Times,
        rebinding: bool,
    },
}

/// A DHCP client without its socket.
#[derive(Clone, Debug)]
pub struct Client {
    config: Config,
    state: State,
    random: fastrand::Rng,
    transaction: u32,
}

impl Client {
    /// A client that sends nothing before [`Event::Start`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        let random = fastrand::Rng::with_seed(config.seed);
        Self { config, state: State::Stopped, random, transaction: 0 }
    }

    /// The address in use.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        match self.state {
            State::Bound { lease } | State::Extending { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// The commands that follow from an event at this time.
    pub fn on(&mut self, event: Event<'_>, now: Instant) -> Vec<Command> {
        match event {
            Event::Start => self.start(now),
            Event::Stop => self.stop(),
            Event::Packet(packet) => match read(packet, self.transaction, self.config.mac, now) {
                Some(answer) => self.answered(answer, now),
                None => Vec::new(),
            },
            Event::Alarm => self.alarm(now),
        }
    }

    fn start(&mut self, now: Instant) -> Vec<Command> {
        let state = match self.config.requested {
            Some(address) => State::Rebooting { address, tries: 0 },
            None => State::Selecting { tries: 0 },
        };
        self.request(state, now)
    }

    fn stop(&mut self) -> Vec<Command> {
        let lease = self.lease();
        self.state = State::Stopped;
        let Some(lease) = lease else { return Vec::new() };
        let release = Request {
            using: Some(lease.address),
            server: Some(lease.server),
            ..self.message(MessageType::Release)
        };
        let send = Command::Send { packet: write(&release), to: Destination::Server(lease.server) };
        vec![send, Command::Lost]
    }

    fn answered(&mut self, answer: Answer, now: Instant) -> Vec<Command> {
        match (answer, self.state) {
            (Answer::Offer { address, server }, State::Selecting { .. }) => {
                self.request(State::Requesting { address, server, tries: 0 }, now)
            }
            (Answer::Ack(lease), State::Requesting { server, .. }) if lease.server != server => Vec::new(),
            (Answer::Ack(lease), State::Rebooting { .. } | State::Requesting { .. }) => {
                self.bind(lease, Command::Use(lease))
            }
            (Answer::Ack(lease), State::Extending { lease: former, .. }) => {
                let same = lease.address == former.address;
                self.bind(lease, if same { Command::Renewed(lease) } else { Command::Use(lease) })
            }
            (Answer::Nak, State::Rebooting { .. } | State::Requesting { .. }) => {
                self.config.requested = None;
                self.start(now)
            }
            (Answer::Nak, State::Extending { .. }) => self.lose(None, now),
            _ => Vec::new(),
        }
    }

    fn bind(&mut self, lease: Lease, command: Command) -> Vec<Command> {
        self.config.requested = Some(lease.address);
        self.state = State::Bound { lease };
        let alarm = lease.times.map(|times| Command::AlarmAt(times.renew));
        alarm.into_iter().chain([command]).collect()
    }

    fn alarm(&mut self, now: Instant) -> Vec<Command> {
        match self.state {
            State::Stopped => Vec::new(),
            State::Rebooting { tries, .. } | State::Requesting { tries, .. } if tries >= TRIES => {
                self.request(State::Selecting { tries: 0 }, now)
            }
            state @ (State::Rebooting { .. } | State::Selecting { .. } | State::Requesting { .. }) => {
                self.request(state, now)
            }
            State::Bound { lease } => match lease.times {
                // an alarm of an earlier state
                None => Vec::new(),
                Some(times) if now < times.renew => vec![Command::AlarmAt(times.renew)],
                Some(times) => self.extend(lease, times, now),
            },
            State::Extending { lease, times, .. } => self.extend(lease, times, now),
        }
    }

    fn extend(&mut self, lease: Lease, times: Times, now: Instant) -> Vec<Command> {
        if now >= times.end {
            return self.lose(Some(lease.address), now);
        }
        self.request(State::Extending { lease, times, rebinding: now >= times.rebind }, now)
    }

    /// Starts over, with a wish for this address.
    fn lose(&mut self, requested: Option<Ipv4Addr>, now: Instant) -> Vec<Command> {
        self.config.requested = requested;
        let mut commands = vec![Command::Lost];
        commands.extend(self.start(now));
        commands
    }

    /// Enters `state`, sends its packet and sets its alarm.
    fn request(&mut self, state: State, now: Instant) -> Vec<Command> {
        // the answer to an offer belongs to the offer's transaction (RFC 2131, 3.1)
        if !matches!(state, State::Requesting { tries: 0, .. }) {
            self.transaction = self.random.u32(..);
        }
        let (request, to, alarm, state) = match state {
            State::Rebooting { address, tries } => (
                Request { requested: Some(address), ..self.message(MessageType::Request) },
                Destination::Broadcast,
                now + wait(tries),
                State::Rebooting { address, tries: tries + 1 },
            ),
            State::Selecting { tries } => (
                Request { requested: self.config.requested, ..self.message(MessageType::Discover) },
                Destination::Broadcast,
                now + wait(tries),
                State::Selecting { tries: tries + 1 },
            ),
            State::Requesting { address, server, tries } => (
                Request {
                    requested: Some(address),
                    server: Some(server),
                    ..self.message(MessageType::Request)
                },
                Destination::Broadcast,
                now + wait(tries),
                State::Requesting { address, server, tries: tries + 1 },
            ),
            State::Extending { lease, times, rebinding } => {
                let (to, next) = if rebinding {
                    (Destination::Broadcast, times.end)
                } else {
                    (Destination::Server(lease.server), times.rebind)
                };
                let alarm = (now + ((next - now) / 2).max(RENEWAL_WAIT_MIN)).min(next);
                let request = Request { using: Some(lease.address), ..self.message(MessageType::Request) };
                (request, to, alarm, state)
            }
            // no packet belongs to these states
            State::Bound { .. } | State::Stopped => return Vec::new(),
        };
        let packet = write(&request);
        self.state = state;
        vec![Command::Send { packet, to }, Command::AlarmAt(alarm)]
    }

    fn message(&self, message_type: MessageType) -> Request<'_> {
        Request {
            message_type,
            transaction: self.transaction,
            mac: self.config.mac,
            host_name: self.config.host_name.as_deref(),
            using: None,
            requested: None,
            server: None,
        }
    }
}

fn wait(tries: u32) -> Duration {
    (WAIT * (tries + 1)).min(WAIT_MAX)
}

#[cfg(test)]
mod tests;
