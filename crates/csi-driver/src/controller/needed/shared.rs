//! One list for all the calls that ask for it at the same time.
//!
//! A namespace is deleted, and a hundred volumes with it: each call needs a list of the host's namespace. A list shows the
//! state in which it began, so it answers every call that asked before that, and no other.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Mutex;

use crate::refusal::Refusal;

/// A list, and who has asked for it.
#[derive(Debug)]
pub(super) struct Shared<T> {
    asked: AtomicU64,
    last: Mutex<Option<Last<T>>>,
}

#[derive(Debug)]
struct Last<T> {
    /// It began when so many calls had asked.
    answers: u64,
    found: Result<Arc<T>, Refusal>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { asked: AtomicU64::new(0), last: Mutex::default() }
    }
}

impl<T> Shared<T> {
    /// What `read` finds, or what it found for another call, if that reading began after this call asked.
    pub(super) async fn get(
        &self,
        read: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<Arc<T>, Refusal> {
        let turn = self.asked.fetch_add(1, Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some(last) = last.as_ref().filter(|last| turn < last.answers) {
            return last.found.clone();
        }
        let answers = self.asked.load(Ordering::SeqCst);
        let found = read.await.map(Arc::new);
        *last = Some(Last { answers, found: found.clone() });
        found
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use futures::future::join_all;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    const TAKES: Duration = Duration::from_secs(1);

    /// A reading that knows when it began.
    async fn reading(count: &Cell<usize>) -> Result<Instant, Refusal> {
        count.set(count.get() + 1);
        let begun = Instant::now();
        sleep(TAKES).await;
        Ok(begun)
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_calls_at_once_need_two_lists_and_none_gets_one_that_began_before_it_asked() {
        let (shared, count) = (Shared::default(), Cell::new(0));
        let call = async |after: u64| {
            sleep(Duration::from_millis(after)).await;
            let asked = Instant::now();
            assert!(*shared.get(reading(&count)).await.unwrap() >= asked);
        };
        join_all((0..100).map(|after| call(after * 5))).await;
        assert_eq!(count.get(), 2);
        call(0).await;
        assert_eq!(count.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_failed_has_failed_for_all_who_waited_for_it_and_not_for_the_next() {
        let shared = Shared::<()>::default();
        let fails = async || {
            sleep(TAKES).await;
            Err(Refusal::unavailable("the host is away"))
        };
        let [first, second, third] =
            <[_; 3]>::try_from(join_all([0; 3].map(|_| shared.get(fails()))).await).unwrap();
        assert!(first.is_err() && second.is_err() && third.is_err());
        assert!(shared.get(async { Ok(()) }).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_caller_goes_away_leaves_its_turn_to_the_next() {
        let (shared, count) = (Shared::default(), Cell::new(0));
        let (gone, served) =
            tokio::join!(timeout(TAKES / 2, shared.get(reading(&count))), shared.get(reading(&count)));
        assert!(gone.is_err() && served.is_ok());
    }
}
