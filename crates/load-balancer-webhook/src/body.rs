//! Reads the bodies of reviews within one budget of memory and within the time that the API server waits.
//!
//! Everybody in the cluster's network can connect and send. So a body takes memory by what has arrived of it, not by
//! what its peer announces: a peer that announces much and sends nothing holds up nobody. Ordinary reviews take
//! nothing of the budget, and never wait for large ones. Large ones of one peer wait for each other before they take up
//! a quarter of it. Where those of several have used up the budget before any of them is complete, one after the other
//! is read beside it, so that they cannot wait for each other for ever.
//!
//! An answer may restore as much as its review holds. So a large one keeps the memory of the review until the peer has
//! taken it, and is given up where the peer does not.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::{StreamExt as _, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::peers::Peer;
use crate::registration::TIMEOUT;

/// A review holds an object twice, each at most what etcd takes (1.5 MiB), with room for the rest.
pub(crate) const LARGEST: usize = 8 << 20;
/// A review of conversion holds all objects of a list. Of ten thousand load balancers it has some 20 MiB.
pub(crate) const LARGEST_LIST: usize = 4 * LARGEST;
/// An ordinary review is smaller, and a connection takes as much memory itself.
const FREE: usize = 32 << 10;
/// The bytes that all bodies together may take beside the free part of each and the one that is read out of turn.
const BUDGET: usize = LARGE_BODIES * LARGEST;
/// The bodies of the largest size that find room in the budget.
pub(crate) const LARGE_BODIES: usize = 16;
/// The bytes that a body takes from the budget at a time.
const SHARE: u32 = 64 << 10;
/// Bytes of a large answer that leave the budget at a time.
const PART: usize = 16 << 10;
/// How long a peer may pause, or take a large answer.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a body may take, waiting for the budget included: the decision takes its time too.
const BODY_WITHIN: Duration = TIMEOUT.saturating_sub(Duration::from_secs(2));

/// The memory for all bodies.
#[derive(Debug)]
pub(crate) struct Budget {
    shares: Arc<Semaphore>,
    /// Held by the one body that is read although the budget is used up.
    out_of_turn: Arc<Semaphore>,
}

/// A complete body, and the memory that it takes.
#[derive(Debug)]
pub(crate) struct Complete {
    pub(crate) bytes: Vec<u8>,
    pub(crate) memory: Memory,
}

/// A part of the budget and the place among the large bodies of a peer, until it is dropped. Ordinary bodies have none.
#[derive(Debug)]
pub(crate) struct Memory(Vec<OwnedSemaphorePermit>);

/// The answer to a request whose body cannot be read.
pub(crate) type Refusal = (StatusCode, &'static str);

const TOO_LARGE: Refusal =
    (StatusCode::PAYLOAD_TOO_LARGE, "an admission review has at most 8 MiB, and one of conversion 32 MiB");
const TOO_SLOW: Refusal = (StatusCode::REQUEST_TIMEOUT, "the review did not arrive in time");
const BROKEN: Refusal = (StatusCode::BAD_REQUEST, "the review ended before it was complete");

impl Budget {
    pub(crate) fn new() -> Self {
        Self { shares: Arc::new(Semaphore::new(BUDGET)), out_of_turn: Arc::new(Semaphore::new(1)) }
    }

    /// Reads a whole body of at most `largest` bytes, and of no more than its head announces.
    ///
    /// # Errors
    /// The body is too large, or does not arrive in time, or breaks off.
    pub(crate) async fn read(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        body: Body,
        largest: usize,
    ) -> Result<Complete, Refusal> {
        let announced =
            headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > largest) {
            return Err(TOO_LARGE);
        }
        // what an API server asks to convert is one object, and seldom a large body
        let largest = announced.unwrap_or(largest);
        timeout(BODY_WITHIN, self.collect(peer, body, largest)).await.unwrap_or(Err(TOO_SLOW))
    }

    async fn collect(&self, peer: &Peer, body: Body, largest: usize) -> Result<Complete, Refusal> {
        let mut body = body.into_data_stream();
        let (mut bytes, mut shares, mut room) = (Vec::new(), Vec::new(), FREE);
        while let Some(part) = timeout(PAUSE, body.next()).await.map_err(|_| TOO_SLOW)? {
            let part: Bytes = part.map_err(|_| BROKEN)?;
            let length = bytes.len() + part.len();
            if length > largest {
                return Err(TOO_LARGE);
            }
            if length > FREE && shares.is_empty() {
                // one of a list counts for as many as it may be, and waits for all at once: two lists that had some each
                // would wait for each other
                let count = u32::try_from(largest.div_ceil(LARGEST)).unwrap_or(u32::MAX);
                let large = peer.large_bodies.clone().acquire_many_owned(count).await;
                shares.push(large.expect("nothing closes this semaphore"));
            }
            while length > room {
                tokio::select! {
                    biased;
                    share = self.shares.clone().acquire_many_owned(SHARE) => {
                        shares.push(share.expect("nothing closes this semaphore"));
                        room += SHARE as usize;
                    }
                    turn = self.out_of_turn.clone().acquire_owned() => {
                        shares.push(turn.expect("nothing closes this semaphore"));
                        room = largest;
                    }
                }
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Complete { bytes, memory: Memory(shares) })
    }
}

impl Memory {
    /// The answer, which keeps this memory until its peer has taken it, or until it is given up.
    pub(crate) async fn kept_by(self, answer: Response, peer: Arc<Peer>) -> Response {
        let (head, body) = answer.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.expect("the body of an answer is one piece");
        if self.0.is_empty() || bytes.len() <= FREE {
            return Response::from_parts(head, bytes.into());
        }
        let left = Arc::new(Mutex::new(Some((bytes, self, peer))));
        let watched = Arc::downgrade(&left);
        // a connection whose peer takes nothing does not ask for the next part
        tokio::spawn(async move {
            sleep(PAUSE).await;
            if let Some(left) = watched.upgrade() {
                *left.lock().expect("no panic while a part is taken") = None;
            }
        });
        let parts = stream::unfold(left, async |left| {
            let part = {
                let mut left = left.lock().expect("no panic while a part is taken");
                // a copy, because a part of the whole would keep all of it
                let next = |(bytes, ..): &mut (Bytes, Self, Arc<Peer>)| {
                    Bytes::copy_from_slice(&bytes.split_to(bytes.len().min(PART)))
                };
                left.as_mut().map(next).ok_or(io::ErrorKind::TimedOut)
            };
            let is_end = part.as_ref().is_ok_and(Bytes::is_empty);
            (!is_end).then_some((part, left))
        });
        Response::from_parts(head, Body::from_stream(parts.map(|part| part.map_err(io::Error::from))))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::IpAddr;

    use futures::channel::mpsc::{UnboundedSender, unbounded};
    use futures::future::join_all;
    use futures::stream;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    /// A body of which the peer sends what the test gives it.
    fn sent_by_hand() -> (UnboundedSender<Result<Vec<u8>, Infallible>>, Body) {
        let (sender, parts) = unbounded();
        (sender, Body::from_stream(parts))
    }

    fn leak() -> &'static Budget {
        Box::leak(Box::new(Budget::new()))
    }

    /// A peer that sends nothing else.
    fn peer() -> &'static Peer {
        Box::leak(Box::new(Peer::new(IpAddr::from([192, 0, 2, 1]).into())))
    }

    /// Reads a body until it is complete and holds it from then on.
    fn read(budget: &'static Budget, body: Body) -> JoinHandle<Result<Complete, Refusal>> {
        read_from(peer(), budget, body)
    }

    fn read_from(
        peer: &'static Peer,
        budget: &'static Budget,
        body: Body,
    ) -> JoinHandle<Result<Complete, Refusal>> {
        tokio::spawn(async move { budget.read(peer, &HeaderMap::new(), body, LARGEST).await })
    }

    fn announcing(bytes: usize) -> HeaderMap {
        [(header::CONTENT_LENGTH, bytes.into())].into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_object_to_convert_leaves_room_for_large_reviews_of_its_peer() {
        let (budget, peer) = (leak(), peer());
        let mut held = Vec::new();
        for (bytes, left) in [(FREE + 1, 3), (LARGEST, 2), (LARGEST + 1, 0)] {
            let body = Body::from(vec![b'x'; bytes]);
            held.push(budget.read(peer, &announcing(bytes), body, LARGEST_LIST).await.unwrap());
            assert_eq!(peer.large_bodies.available_permits(), left, "{bytes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_say_how_large_it_is_takes_the_whole_part_of_its_peer() {
        let (budget, peer) = (leak(), peer());
        let held = budget.read(peer, &HeaderMap::new(), large(), LARGEST_LIST).await.unwrap();
        assert_eq!(peer.large_bodies.available_permits(), 0);
        drop(held);
        let body = Body::from(vec![b'x'; LARGEST_LIST]);
        assert_eq!(
            budget.read(peer, &HeaderMap::new(), body, LARGEST_LIST).await.unwrap().bytes.len(),
            LARGEST_LIST
        );
    }

    fn large() -> Body {
        Body::from(vec![b'x'; LARGEST])
    }

    /// Lets every task go as far as it can.
    async fn rest() {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    }

    /// Starts 16 bodies that arrive but for their last byte, so that they have used up the budget.
    async fn use_up(budget: &'static Budget) -> Vec<UnboundedSender<Result<Vec<u8>, Infallible>>> {
        let mut senders = Vec::new();
        while budget.shares.available_permits() >= SHARE as usize {
            let (sender, body) = sent_by_hand();
            sender.unbounded_send(Ok(vec![b'x'; LARGEST - 1])).unwrap();
            read(budget, body);
            senders.push(sender);
            rest().await;
        }
        senders
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_arrive_are_held_within_the_budget() {
        let budget = leak();
        let mut bodies: Vec<_> = (0..100).map(|_| read(budget, large())).collect();
        let start = Instant::now();
        while !bodies.is_empty() {
            rest().await;
            let (complete, waiting): (Vec<_>, Vec<_>) = bodies.into_iter().partition(JoinHandle::is_finished);
            // sixteen within the budget, and one out of turn
            assert!((1..=17).contains(&complete.len()), "{} are complete", complete.len());
            for body in complete {
                assert_eq!(body.await.unwrap().unwrap().bytes.len(), LARGEST);
            }
            bodies = waiting;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!((budget.shares.available_permits(), budget.out_of_turn.available_permits()), (BUDGET, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_ordinary_review_never_waits_for_large_ones() {
        let budget = leak();
        let senders = use_up(budget).await;
        let (stalled, body) = sent_by_hand();
        stalled.unbounded_send(Ok(vec![b'x'; LARGEST - 1])).unwrap();
        read(budget, body);
        rest().await;
        assert_eq!(budget.out_of_turn.available_permits(), 0, "all memory is taken");
        let start = Instant::now();
        let body =
            budget.read(peer(), &HeaderMap::new(), Body::from(vec![b'x'; FREE]), LARGEST).await.unwrap();
        assert_eq!((body.bytes.len(), start.elapsed()), (FREE, Duration::ZERO));
        drop((senders, stalled));
    }

    #[tokio::test(start_paused = true)]
    async fn large_reviews_are_read_one_by_one_where_slow_ones_have_used_up_the_budget() {
        let budget = leak();
        let senders = use_up(budget).await;
        let start = Instant::now();
        for _ in 0..50 {
            drop(budget.read(peer(), &HeaderMap::new(), large(), LARGEST).await.unwrap());
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        drop(senders);
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_of_one_peer_leave_three_quarters_of_the_memory_to_the_others() {
        let (budget, one) = (leak(), peer());
        let mut senders = Vec::new();
        for _ in 0..20 {
            let (sender, body) = sent_by_hand();
            sender.unbounded_send(Ok(vec![b'x'; LARGEST - 1])).unwrap();
            read_from(one, budget, body);
            senders.push(sender);
        }
        rest().await;
        assert_eq!(
            (budget.shares.available_permits(), budget.out_of_turn.available_permits()),
            (BUDGET / 4 * 3, 1)
        );
        // they take turns, and none of them is lost
        for sender in &senders {
            sender.unbounded_send(Ok(vec![b'x'])).unwrap();
        }
        drop(senders);
        rest().await;
        assert_eq!((budget.shares.available_permits(), one.large_bodies.available_permits()), (BUDGET, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_arrive_side_by_side_do_not_wait_for_each_other_for_ever() {
        let budget = leak();
        // parts of all 100 arrive in turn: together they use up the budget before the first is complete
        let parts = || {
            let parts = stream::iter(0..128).then(|_| async {
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(vec![b'x'; LARGEST / 128])
            });
            Body::from_stream(parts)
        };
        let bodies = join_all((0..100).map(|_| async move {
            let body = budget.read(peer(), &HeaderMap::new(), parts(), LARGEST).await;
            body.map(|body| body.bytes.len())
        }));
        assert!(bodies.await.into_iter().all(|body| body == Ok(LARGEST)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_announces_much_and_sends_nothing_takes_nothing() {
        let budget = leak();
        let (mut headers, mut senders) = (HeaderMap::new(), Vec::new());
        headers.insert(header::CONTENT_LENGTH, LARGEST.into());
        for _ in 0..1_000 {
            let (sender, body) = sent_by_hand();
            let headers = headers.clone();
            tokio::spawn(async move { budget.read(peer(), &headers, body, LARGEST).await.map(drop) });
            senders.push(sender);
        }
        rest().await;
        assert_eq!(budget.shares.available_permits(), BUDGET);
        drop(senders);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_pauses_is_given_up_after_five_seconds() {
        let budget = leak();
        let (sender, body) = sent_by_hand();
        sender.unbounded_send(Ok(vec![b'x'; LARGEST - 1])).unwrap();
        let start = Instant::now();
        assert_eq!(budget.read(peer(), &HeaderMap::new(), body, LARGEST).await.unwrap_err(), TOO_SLOW);
        assert_eq!((start.elapsed(), budget.shares.available_permits()), (PAUSE, BUDGET));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_of_one_byte_a_second_is_given_up_before_the_api_server_gives_up() {
        let budget = leak();
        let drops = stream::unfold((), |()| async {
            sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>(b"x".to_vec()), ()))
        });
        let start = Instant::now();
        assert_eq!(
            budget.read(peer(), &HeaderMap::new(), Body::from_stream(drops), LARGEST).await.unwrap_err(),
            TOO_SLOW
        );
        assert_eq!(start.elapsed(), BODY_WITHIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_over_the_limit_is_refused_as_soon_as_that_is_known() {
        let budget = leak();
        let (_sender, silent) = sent_by_hand();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, (LARGEST + 1).into());
        assert_eq!(budget.read(peer(), &headers, silent, LARGEST).await.unwrap_err(), TOO_LARGE);
        let (sender, endless) = sent_by_hand();
        for _ in 0..9 {
            sender.unbounded_send(Ok(vec![b'x'; 1 << 20])).unwrap();
        }
        let start = Instant::now();
        assert_eq!(budget.read(peer(), &HeaderMap::new(), endless, LARGEST).await.unwrap_err(), TOO_LARGE);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
