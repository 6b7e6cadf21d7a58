//! A request budget, so that a mistake of ours cannot flood an API server. High enough not to be felt: we are quick
//! by asking little.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

/// How many requests may be sent: `burst` at once, `per_second` in the long run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestLimit {
    pub per_second: f64,
    pub burst: u32,
}

impl Default for RequestLimit {
    fn default() -> Self {
        Self { per_second: 500.0, burst: 1000 }
    }
}

/// What is left of the budget: a token bucket in which a debt is a waiting time.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: RequestLimit,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    at: Instant,
}

impl Budget {
    pub(crate) fn new(limit: RequestLimit, now: Instant) -> Self {
        Self { limit, state: Mutex::new(State { tokens: f64::from(limit.burst.max(1)), at: now }) }
    }

    /// Takes one request out of the budget; the answer is how long it must wait. Waiting requests keep their order,
    /// since each takes the next free moment.
    pub(crate) fn take(&self, now: Instant) -> Duration {
        let RequestLimit { per_second, burst } = self.limit;
        if per_second <= 0.0 {
            return Duration::ZERO;
        }
        let mut state = self.state.lock().expect("no panic while counting");
        let earned = now.saturating_duration_since(state.at).as_secs_f64() * per_second;
        state.tokens = (state.tokens + earned).min(f64::from(burst.max(1))) - 1.0;
        state.at = state.at.max(now);
        Duration::from_secs_f64((-state.tokens / per_second).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_free_and_then_the_rate_holds() {
        let start = Instant::now();
        let budget = Budget::new(RequestLimit { per_second: 10.0, burst: 3 }, start);
        let waits: Vec<u128> = (0..5).map(|_| budget.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(budget.take(start + Duration::from_secs(60)).as_millis(), 0, "the budget fills up again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_of_zero_means_no_limit() {
        let budget = Budget::new(RequestLimit { per_second: 0.0, burst: 0 }, Instant::now());
        assert!((0..100).all(|_| budget.take(Instant::now()) == Duration::ZERO));
    }
}
