//! The part of the webhook that the requests of one peer may take at a time: a quarter, so that no peer holds up the
//! others.
//!
//! Every pod can connect, and API servers show no client certificate unless an admin configures one. So nothing but its
//! address tells an API server from another peer. Three to five API servers have an address each, and four peers find
//! room at once. Behind konnectivity all API servers may have one address: a quarter serves them too, because an
//! ordinary review is decided within milliseconds, and the others wait in the line of their peer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use program::serving::PeerAddress;
use tokio::sync::Semaphore;

use crate::body::LARGE_BODIES;

/// The peers that can take their whole part at once.
const PEERS: usize = 4;
/// The turns of one peer.
pub(crate) const TURNS_OF_PEER: u32 = 4;
/// So many reviews are parsed and decided at once; the others wait. A review in memory is many times its body.
pub(crate) const TURNS: usize = PEERS * TURNS_OF_PEER as usize;

/// The peers with requests under way.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<PeerAddress, Weak<Peer>>>);

/// The part of one peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: PeerAddress,
    /// The turns of its reviews.
    pub(crate) turns: Semaphore,
    /// The turn of its heavy reviews. There is one, so that those of two peers are decided at once.
    pub(crate) heavy: Semaphore,
    /// Its bodies that may take memory of the budget.
    pub(crate) large_bodies: Arc<Semaphore>,
}

impl Peers {
    /// The part of the peer at this address. All its requests hold the same one.
    pub(crate) fn at(&self, address: PeerAddress) -> Arc<Peer> {
        let mut peers = self.0.lock().expect("no panic while peers are looked up");
        peers.retain(|_, peer| peer.strong_count() > 0);
        let known = peers.get(&address).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let peer = Arc::new(Peer::new(address));
            peers.insert(address, Arc::downgrade(&peer));
            peer
        })
    }
}

impl Peer {
    pub(crate) fn new(address: PeerAddress) -> Self {
        Self {
            address,
            turns: Semaphore::new(TURNS_OF_PEER as usize),
            heavy: Semaphore::new(1),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES / PEERS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(last: u8) -> PeerAddress {
        IpAddr::from([192, 0, 2, last]).into()
    }

    #[test]
    fn the_requests_of_one_peer_share_its_part_until_the_last_one_ends() {
        let peers = Peers::default();
        let [one, other] = [1, 2].map(|last| peers.at(address(last)));
        assert!(Arc::ptr_eq(&one, &peers.at(address(1))));
        assert!(!Arc::ptr_eq(&one, &other));
        drop(one);
        peers.at(address(3));
        let known = peers.0.lock().unwrap();
        assert!(!known.contains_key(&address(1)), "nothing is kept of a peer that is gone");
        assert!(known.contains_key(&address(2)));
    }
}
