//! The places of open connections, shared out among peers.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Connections that are open at once.
pub(super) const CONNECTIONS: usize = 1_024;

/// The part of an address that tells peers apart: an IPv4 address, or the /64 of an IPv6 one, all of whose addresses one
/// machine may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress(IpAddr);

impl From<IpAddr> for PeerAddress {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The open connections.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    /// By the order in which they were accepted.
    connections: BTreeMap<u64, Connection>,
    /// The number of the next one. None is used twice: a connection that ends removes its own number only.
    next: u64,
}

struct Connection {
    peer: PeerAddress,
    /// The number of requests under way.
    requests: watch::Receiver<usize>,
    evicted: CancellationToken,
}

/// The numbers of the connections of one peer, the oldest first.
#[derive(Default)]
struct Held {
    all: Vec<u64>,
    /// Those without request under way.
    idle: Vec<u64>,
}

/// The place of one connection among the open ones, until it is dropped.
pub(super) struct Place {
    connections: Connections,
    number: u64,
    pub(super) requests: watch::Sender<usize>,
    /// Another connection has taken the place.
    pub(super) evicted: CancellationToken,
}

impl Connections {
    /// A place for one more connection. Where `most` are open, it is that of another one ([`Open::to_evict`]); `None`
    /// where this peer must not take any.
    pub(super) fn place(&self, peer: PeerAddress, most: usize) -> Option<Place> {
        let mut open = self.open();
        if open.connections.len() >= most {
            let number = open.to_evict(peer, most)?;
            if let Some(connection) = open.connections.remove(&number) {
                connection.evicted.cancel();
            }
        }
        let number = open.next;
        open.next += 1;
        let (requests, evicted) = (watch::Sender::new(0), CancellationToken::new());
        let connection = Connection { peer, requests: requests.subscribe(), evicted: evicted.clone() };
        open.connections.insert(number, connection);
        Some(Place { connections: self.clone(), number, requests, evicted })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().expect("no panic while connections are counted")
    }
}

impl Open {
    /// The connection that ends for one more of `newcomer`: one of that peer, or of a peer that has more. An idle one
    /// ends before any with a request under way: the oldest of the peer that has the most idle ones. Only a peer with
    /// less than half of an equal part keeps its idle ones, because an API server may have just opened them. Where all
    /// others have requests, the oldest of the peer that has the most ends; `None` where that peer is the newcomer.
    fn to_evict(&self, newcomer: PeerAddress, most: usize) -> Option<u64> {
        let mut peers = HashMap::from([(newcomer, Held::default())]);
        for (number, connection) in &self.connections {
            let held = peers.entry(connection.peer).or_default();
            held.all.push(*number);
            if *connection.requests.borrow() == 0 {
                held.idle.push(*number);
            }
        }
        let (own, half) = (peers[&newcomer].all.len(), most / peers.len() / 2);
        peers.retain(|peer, held| *peer == newcomer || held.all.len() > own);
        let of_idle = peers
            .iter()
            .filter(|(_, held)| held.all.len() >= half)
            .max_by_key(|(peer, held)| (held.idle.len(), **peer == newcomer, Reverse(held.idle.first())))
            .and_then(|(_, held)| held.idle.first().copied());
        of_idle.or_else(|| {
            peers.remove(&newcomer);
            let most = peers.values().max_by_key(|held| (held.all.len(), Reverse(held.all.first())))?;
            most.all.first().copied()
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.open().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn of(last: u8) -> PeerAddress {
        IpAddr::from([192, 0, 2, last]).into()
    }

    fn place(connections: &Connections, last: u8) -> Option<Place> {
        connections.place(of(last), 4)
    }

    fn busy(connections: &Connections, last: u8) -> Place {
        let place = place(connections, last).unwrap();
        place.requests.send_replace(1);
        place
    }

    fn evicted<const N: usize>(places: [&Place; N]) -> [bool; N] {
        places.map(|place| place.evicted.is_cancelled())
    }

    /// The places in this list of those that are evicted.
    fn evicted_of(places: &[Place]) -> Vec<usize> {
        let evicted = places.iter().enumerate().filter(|(_, place)| place.evicted.is_cancelled());
        evicted.map(|(number, _)| number).collect()
    }

    #[test]
    fn a_new_connection_takes_the_place_of_one_without_request_of_the_peer_that_has_the_most() {
        let connections = Connections::default();
        let place = |last| place(&connections, last).unwrap();
        let (busy, first, second) = (busy(&connections, 1), place(1), place(1));
        let of_another = place(2);
        assert_eq!(connections.open().connections.len(), 4);

        let newest = place(3);
        assert_eq!(
            evicted([&busy, &first, &second, &of_another, &newest]),
            [false, true, false, false, false]
        );
        drop(first);
        assert_eq!(connections.open().connections.len(), 4);
        drop((busy, second, of_another, newest));
        assert!(connections.open().connections.is_empty(), "nothing is kept of a connection that is closed");
    }

    #[test]
    fn requests_under_way_keep_no_place_from_a_peer_that_has_fewer() {
        let connections = Connections::default();
        let [oldest, second, third, fourth] = [1; 4].map(|last| busy(&connections, last));
        let of_another = place(&connections, 2).unwrap();
        assert_eq!(
            evicted([&oldest, &second, &third, &fourth, &of_another]),
            [true, false, false, false, false]
        );
        assert!(place(&connections, 1).is_none(), "the peer that has the most takes no place from others");
        assert!(!of_another.evicted.is_cancelled(), "though it has no request under way");
        let (next, last) = (busy(&connections, 2), place(&connections, 3).unwrap());
        assert_eq!(
            evicted([&second, &third, &fourth, &of_another, &next, &last]),
            [true, false, false, true, false, false]
        );
        assert_eq!(connections.open().connections.len(), 4);
    }

    #[test]
    fn a_peer_that_has_as_many_as_another_takes_a_place_of_its_own() {
        let connections = Connections::default();
        let others = [2, 2].map(|last| place(&connections, last).unwrap());
        let own = [busy(&connections, 1), place(&connections, 1).unwrap()];
        let next = busy(&connections, 1);
        assert_eq!(
            evicted([&others[0], &others[1], &own[0], &own[1], &next]),
            [false, false, false, true, false]
        );
        assert!(place(&connections, 1).is_none());
    }

    #[test]
    fn a_connection_that_ends_while_another_takes_its_place_leaves_that_one_open() {
        let connections = Connections::default();
        let place = |last| connections.place(of(last), 1).unwrap();
        let (mut ended, newest) = (place(1), place(2));
        assert_eq!(evicted([&ended, &newest]), [true, false]);
        // as if it had ended just before
        ended.evicted = CancellationToken::new();
        drop(ended);
        let left = connections.open().connections.len();
        assert_eq!(left, 1);
    }

    #[test]
    fn a_request_under_way_keeps_its_connection_while_others_have_none() {
        let connections = Connections::default();
        let place = |last| place(&connections, last).unwrap();
        let reviews = [1, 1].map(|last| busy(&connections, last));
        let (second, third) = (place(2), place(3));
        let newest = place(4);
        assert_eq!(
            evicted([&reviews[0], &reviews[1], &second, &third, &newest]),
            [false, false, true, false, false]
        );
    }

    #[test]
    fn peers_that_open_many_connections_without_request_end_no_request_of_another() {
        let connections = Connections::default();
        let place = |last| connections.place(of(last), CONNECTIONS);
        let reviews: Vec<_> = (0..130).map(|_| place(1).unwrap()).collect();
        reviews.iter().for_each(|review| review.requests.send_modify(|count| *count = 1));
        let idle: Vec<_> = (2..=10).cycle().take(3_000).filter_map(place).collect();
        assert_eq!(idle.len(), 3_000);
        assert!(evicted_of(&reviews).is_empty());
        assert_eq!(connections.open().connections.len(), CONNECTIONS);
    }

    #[test]
    fn peers_whose_connections_all_have_requests_leave_a_peer_with_few_those_that_it_just_opened() {
        let connections = Connections::default();
        let place = |last| connections.place(of(last), CONNECTIONS);
        let requests = |last| {
            let opened = place(last);
            opened.iter().for_each(|place| place.requests.send_modify(|count| *count = 1));
            opened
        };
        let _busy: Vec<_> = (2..=10).cycle().take(CONNECTIONS).map(requests).collect();
        let opened: Vec<_> = (0..20).map(|_| place(1).unwrap()).collect();
        let _more: Vec<_> = (2..=21).cycle().take(1_000).map(requests).collect();
        assert!(evicted_of(&opened).is_empty());
        assert_eq!(connections.open().connections.len(), CONNECTIONS);
    }

    #[rstest]
    #[case::v4("192.0.2.1", "192.0.2.2", false)]
    #[case::mapped("192.0.2.1", "::ffff:192.0.2.1", true)]
    #[case::of_one_64("2001:db8::1", "2001:db8::ffff:0:1", true)]
    #[case::of_two_64("2001:db8::1", "2001:db8:0:1::1", false)]
    fn a_peer_may_have_many_addresses(#[case] one: &str, #[case] other: &str, #[case] same: bool) {
        let of = |text: &str| PeerAddress::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of(one) == of(other), same);
    }
}
