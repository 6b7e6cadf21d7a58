//! The parameters of a health check, turned from loose numbers into durations once.

use std::time::Duration;

use crate::{HttpGet, Thresholds};

/// Longest period or time-out: more is a typing error, and would overflow the arithmetic of time.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How a backend is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub thresholds: Thresholds,
    /// From the start of one probe to the start of the next.
    pub period: Duration,
    /// A dial fails after this time, and after 30 s at the latest.
    pub timeout: Duration,
    /// The request; without one the check is a TCP connect.
    pub http: Option<HttpGet>,
}

impl Default for Check {
    /// A TCP connect with the documented values: 1 success, 3 failures, every 5 s, 3 s for an answer.
    fn default() -> Self {
        Self {
            thresholds: Thresholds { success: 1, failure: 3 },
            period: Duration::from_secs(5),
            timeout: Duration::from_secs(3),
            http: None,
        }
    }
}

impl Check {
    /// A TCP connect with the numbers that a user wrote. Zero, negative and absent ones become the defaults; durations are cut to
    /// one day.
    pub fn from_numbers(
        success_threshold: Option<i64>,
        failure_threshold: Option<i64>,
        period_seconds: Option<i64>,
        timeout_seconds: Option<i64>,
    ) -> Self {
        let default = Self::default();
        Self {
            thresholds: Thresholds {
                success: count(success_threshold).unwrap_or(default.thresholds.success),
                failure: count(failure_threshold).unwrap_or(default.thresholds.failure),
            },
            period: duration(period_seconds).unwrap_or(default.period),
            timeout: duration(timeout_seconds).unwrap_or(default.timeout),
            http: None,
        }
    }
}

fn count(number: Option<i64>) -> Option<u32> {
    number.filter(|number| *number > 0).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn duration(seconds: Option<i64>) -> Option<Duration> {
    let seconds = u64::try_from(seconds?).ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::all_given([Some(2), Some(4), Some(7), Some(1)], (2, 4, 7, 1))]
    #[case::nothing_given([None; 4], (1, 3, 5, 3))]
    #[case::zero_is_absent([Some(0); 4], (1, 3, 5, 3))]
    #[case::negative_is_absent([Some(-1); 4], (1, 3, 5, 3))]
    #[case::one_by_one([Some(9), None, Some(0), Some(2)], (9, 3, 5, 2))]
    #[case::absurd([Some(i64::MAX); 4], (u32::MAX, u32::MAX, 86_400, 86_400))]
    fn numbers_become_a_check_or_its_defaults(
        #[case] numbers: [Option<i64>; 4],
        #[case] expected: (u32, u32, u64, u64),
    ) {
        let [success, failure, period, timeout] = numbers;
        let Check { thresholds, period, timeout, http: _ } =
            Check::from_numbers(success, failure, period, timeout);
        assert_eq!((thresholds.success, thresholds.failure, period.as_secs(), timeout.as_secs()), expected);
    }
}
