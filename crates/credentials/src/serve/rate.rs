//! How many requests each peer may send, and how many are in work. Pure but for the clock that it is given.

use std::{collections::HashMap, time::Duration};

use program::serving::PeerAddress;
use tokio::time::Instant;

/// Requests of a peer are counted for so long.
const WINDOW: Duration = Duration::from_secs(60);
/// So many a peer may send in that time. A person sends one for a cluster.
const REQUESTS: u32 = 30;
/// Peers that are counted apart. All others count as one.
const PEERS: usize = 1_024;

/// The requests of the current minute.
#[derive(Debug)]
pub(crate) struct Rate {
    since: Instant,
    peers: HashMap<PeerAddress, u32>,
    others: u32,
}

impl Rate {
    pub(crate) fn starting(now: Instant) -> Self {
        Self { since: now, peers: HashMap::new(), others: 0 }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The peer has sent enough: how long it has to wait.
    pub(crate) fn admit(&mut self, peer: PeerAddress, now: Instant) -> Result<(), Duration> {
        if now.duration_since(self.since) >= WINDOW {
            *self = Self::starting(now);
        }
        let is_room = self.peers.len() < PEERS;
        let count = match self.peers.get_mut(&peer) {
            Some(count) => count,
            None if is_room => self.peers.entry(peer).or_default(),
            None => &mut self.others,
        };
        if *count >= REQUESTS {
            return Err(WINDOW - now.duration_since(self.since));
        }
        *count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn peer(number: u32) -> PeerAddress {
        IpAddr::from(number.to_be_bytes()).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sent_thirty_requests_waits_for_the_rest_of_the_minute_and_others_do_not() {
        let start = Instant::now();
        let mut rate = Rate::starting(start);
        let later = start + Duration::from_secs(20);
        assert!((0..30).all(|_| rate.admit(peer(1), later).is_ok()));
        assert_eq!(rate.admit(peer(1), later), Err(Duration::from_secs(40)));
        assert!(rate.admit(peer(2), later).is_ok());
        assert!(rate.admit(peer(1), start + WINDOW).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_million_peers_take_the_memory_of_a_thousand() {
        let now = Instant::now();
        let mut rate = Rate::starting(now);
        let admitted = (0..10_000).filter(|number| rate.admit(peer(*number), now).is_ok()).count();
        assert_eq!((admitted, rate.peers.len()), (PEERS + REQUESTS as usize, PEERS));
    }
}
