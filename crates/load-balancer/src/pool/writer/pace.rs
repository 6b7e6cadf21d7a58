//! How often one namespace may have a pool written: each write sends the whole object, with everybody's records.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

/// So many writes one after the other wait for nothing.
const BURST: u32 = 200;
/// Between two further ones.
const APART: Duration = Duration::from_millis(5);
/// The same, of an object of more than [`LARGE`] bytes.
const APART_WHERE_LARGE: Duration = Duration::from_millis(250);
const LARGE: usize = 64 * 1024;

/// Between two writes of an object of so many bytes.
pub(super) fn apart(bytes: usize) -> Duration {
    if bytes > LARGE { APART_WHERE_LARGE } else { APART }
}

/// What the namespaces have had written of one pool, each as the time at which it may have its whole burst again. A write carries
/// out all orders that wait, so that thousands of objects at once need few.
#[derive(Debug, Default)]
pub(super) struct Pace {
    apart: Duration,
    settled: HashMap<String, Instant>,
}

impl Pace {
    /// From now on this lies between two writes: who has used up so many of its burst still has, however large the pool is.
    pub(super) fn go_by(&mut self, apart: Duration) {
        if apart == self.apart {
            return;
        }
        let now = Instant::now();
        for settled in self.settled.values_mut() {
            let left = settled.saturating_duration_since(now);
            *settled = now + left.mul_f64(apart.as_secs_f64() / self.apart.as_secs_f64());
        }
        self.apart = apart;
    }

    /// The time from which the namespace may cause a write; it may be over. `None`: at any time.
    pub(super) fn turn(&self, namespace: &str) -> Option<Instant> {
        self.settled.get(namespace)?.checked_sub(self.apart * (BURST - 1))
    }

    pub(super) fn has_turn(&self, namespace: &str, now: Instant) -> bool {
        self.turn(namespace).is_none_or(|turn| turn <= now)
    }

    /// A write that was sent had orders of these namespaces in it, refused claims apart, or objects of theirs had the pool
    /// looked at; it counts for those whose turn it was.
    pub(super) fn caused(&mut self, namespaces: &BTreeSet<String>) {
        let now = Instant::now();
        self.settled.retain(|_, settled| *settled > now);
        for namespace in namespaces {
            if self.has_turn(namespace, now) {
                *self.settled.entry(namespace.clone()).or_insert(now) += self.apart;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // the clock goes on between two looks at it, which a paused one does not
    #[test]
    fn what_a_namespace_has_written_counts_from_the_first_time_on() {
        let mut pace = Pace::default();
        pace.go_by(APART_WHERE_LARGE);
        pace.caused(&["shop".to_owned()].into());
        assert!(pace.settled.contains_key("shop"));
        assert!(pace.has_turn("lab", Instant::now()));
    }
}
