//! How many requests each caller may send, how many are in work, and how often refusals are told. Pure but for the clock
//! that it is given.
//!
//! A caller is an address with a token: many people are behind one address of a NAT, a load balancer or a node.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use program::serving::PeerAddress;
use tokio::time::Instant;

/// Requests are counted for so long.
const WINDOW: Duration = Duration::from_secs(60);
/// So many a caller may send in that time. A person sends one for a cluster.
const REQUESTS: u32 = 30;
/// So many all callers of one address may send.
const REQUESTS_OF_PEER: u32 = 300;
/// Counters of callers, and of addresses. Whom a digest leads to the same one shares it, so that nobody fills them for others.
const COUNTERS: usize = 1 << 16;

/// The requests of the current minute.
#[derive(Debug)]
pub(crate) struct Rate<S = RandomState> {
    since: Instant,
    digests: S,
    callers: Vec<u32>,
    peers: Vec<u32>,
}

impl<S: BuildHasher + Default> Rate<S> {
    pub(crate) fn starting(now: Instant) -> Self {
        Self { since: now, digests: S::default(), callers: vec![0; COUNTERS], peers: vec![0; COUNTERS] }
    }

    /// The token's digest, by which a caller is known.
    pub(crate) fn digest(&self, token: &str) -> u64 {
        self.digests.hash_one(token)
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The caller, or all of its address, have sent enough: how long to wait.
    pub(crate) fn admit(&mut self, peer: PeerAddress, token: u64, now: Instant) -> Result<(), Duration> {
        if now.duration_since(self.since) >= WINDOW {
            self.since = now;
            self.callers.fill(0);
            self.peers.fill(0);
        }
        let place = |digest: u64| usize::try_from(digest % COUNTERS as u64).unwrap_or_default();
        let of_caller = place(self.digests.hash_one((peer, token)));
        let of_peer = place(self.digests.hash_one(peer));
        if self.callers[of_caller] >= REQUESTS || self.peers[of_peer] >= REQUESTS_OF_PEER {
            return Err(WINDOW - now.duration_since(self.since));
        }
        self.callers[of_caller] += 1;
        self.peers[of_peer] += 1;
        Ok(())
    }
}

/// Requests in work at once …
const AT_ONCE: usize = 8;
/// … and of them with one token: Harvester may let a request wait for half a minute.
const AT_ONCE_OF_TOKEN: usize = 2;

/// The requests in work, by the digests of their tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work(Arc<Mutex<Vec<u64>>>);

/// One request in work, until it is dropped.
#[derive(Debug)]
pub(crate) struct InWork {
    work: Work,
    token: u64,
}

impl Work {
    /// `None`: there is no room.
    pub(crate) fn begin(&self, token: u64) -> Option<InWork> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_token = all.iter().filter(|one| **one == token).count();
        if all.len() >= AT_ONCE || of_token >= AT_ONCE_OF_TOKEN {
            return None;
        }
        all.push(token);
        Some(InWork { work: self.clone(), token })
    }
}

impl Drop for InWork {
    fn drop(&mut self) {
        let mut all = self.work.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|one| *one == self.token) {
            all.swap_remove(at);
        }
    }
}

/// Refusals that were not told yet.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    told: Option<Instant>,
    count: u64,
}

impl Refusals {
    /// Counts one; how many there were, if that is to be told now: once a minute at most.
    pub(crate) fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.told.is_some_and(|told| now.duration_since(told) < WINDOW) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        hash::{BuildHasherDefault, DefaultHasher},
        net::IpAddr,
    };

    use super::*;

    /// With digests that are the same each time.
    type Fixed = Rate<BuildHasherDefault<DefaultHasher>>;

    fn peer(number: u32) -> PeerAddress {
        IpAddr::from(number.to_be_bytes()).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_sent_thirty_requests_waits_for_the_rest_of_the_minute_and_others_do_not() {
        let start = Instant::now();
        let mut rate = Fixed::starting(start);
        let later = start + Duration::from_secs(20);
        assert!((0..30).all(|_| rate.admit(peer(1), 1, later).is_ok()));
        assert_eq!(rate.admit(peer(1), 1, later), Err(Duration::from_secs(40)));
        assert!(rate.admit(peer(2), 1, later).is_ok());
        assert!(rate.admit(peer(1), 2, later).is_ok(), "somebody else behind the same address");
        assert!(rate.admit(peer(1), 1, start + WINDOW).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_many_tokens_waits_too() {
        let now = Instant::now();
        let mut rate = Fixed::starting(now);
        let admitted = (0..10_000).filter(|token| rate.admit(peer(1), *token, now).is_ok()).count();
        assert_eq!(admitted, REQUESTS_OF_PEER as usize);
        assert!(rate.admit(peer(2), 1, now).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_addresses_lock_nobody_else_out_and_take_no_more_memory() {
        let now = Instant::now();
        let mut rate = Fixed::starting(now);
        for number in 0..1_024 {
            let admitted = (0..REQUESTS_OF_PEER).filter(|_| rate.admit(peer(number), 1, now).is_ok());
            assert!(admitted.count() <= REQUESTS as usize);
        }
        let others = (5_000..6_000).filter(|number| rate.admit(peer(*number), 2, now).is_ok()).count();
        assert!(others > 950, "{others}");
        assert_eq!((rate.callers.len(), rate.peers.len()), (COUNTERS, COUNTERS));
    }

    #[test]
    fn two_requests_with_one_token_are_in_work_at_once_and_eight_in_all() {
        let work = Work::default();
        let first = work.begin(1).unwrap();
        let _second = work.begin(1).unwrap();
        assert!(work.begin(1).is_none());
        let others: Vec<_> = (2..8).filter_map(|token| work.begin(token)).collect();
        assert_eq!(others.len(), 6);
        assert!(work.begin(9).is_none(), "eight are in work");
        drop(first);
        assert!(work.begin(9).is_some() && work.begin(1).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_told_once_a_minute_with_their_number() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        assert_eq!(refusals.add(start), Some(1));
        for second in 1..60 {
            assert_eq!(refusals.add(start + Duration::from_secs(second)), None);
        }
        assert_eq!(refusals.add(start + WINDOW), Some(60));
        assert_eq!(refusals.add(start + WINDOW), None);
    }
}
