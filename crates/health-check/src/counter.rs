//! Thresholds as a machine: answers in, verdicts out.

/// How many answers in a row make a verdict. Zero counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Good answers in a row before a backend is ready.
    pub success: u32,
    /// Bad answers in a row before it is not.
    pub failure: u32,
}

/// Counts answers. It does not hold the verdict: a restart of the process resets counters, never verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    successes: u32,
    failures: u32,
}

impl Counter {
    /// Counts one answer; `Some(ready)` whenever a threshold is reached, also when it was reached before.
    pub(crate) fn count(&mut self, good: bool, thresholds: Thresholds) -> Option<bool> {
        let (count, other, threshold) = if good {
            (&mut self.successes, &mut self.failures, thresholds.success)
        } else {
            (&mut self.failures, &mut self.successes, thresholds.failure)
        };
        *other = 0;
        *count += 1;
        if *count < threshold {
            return None;
        }
        *count = 0;
        Some(good)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// `+` and `-` are answers; the verdicts come out as `R` (ready), `N` (not ready) and `.` (none).
    fn verdicts(success: u32, failure: u32, answers: &str) -> String {
        let mut counter = Counter::default();
        answers
            .chars()
            .map(|answer| match counter.count(answer == '+', Thresholds { success, failure }) {
                Some(true) => 'R',
                Some(false) => 'N',
                None => '.',
            })
            .collect()
    }

    #[rstest]
    #[case::at_once(1, 1, "+-+", "RNR")]
    #[case::three_bad_ones(1, 3, "+---", "R..N")]
    #[case::a_good_one_in_between_starts_afresh(1, 3, "--+--", "..R..")]
    #[case::two_good_ones(2, 3, "+-++", "...R")]
    #[case::reported_again_whenever_reached_again(2, 2, "++++----", ".R.R.N.N")]
    #[case::zero_counts_as_one(0, 0, "+-", "RN")]
    fn a_threshold_is_a_run_of_equal_answers(
        #[case] success: u32,
        #[case] failure: u32,
        #[case] answers: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(verdicts(success, failure, answers), expected);
    }

    /// The verdict that stands after each answer, computed by looking back over all answers so far.
    fn naive(start: bool, thresholds: Thresholds, answers: &[bool]) -> Vec<bool> {
        let mut standing = start;
        (1..=answers.len())
            .map(|end| {
                let last = answers[end - 1];
                let run = answers[..end].iter().rev().take_while(|answer| **answer == last).count();
                let threshold = if last { thresholds.success } else { thresholds.failure };
                if run >= threshold as usize {
                    standing = last;
                }
                standing
            })
            .collect()
    }

    proptest! {
        #[test]
        fn standing_verdicts_equal_those_of_a_naive_model(
            start: bool,
            success in 1..5_u32,
            failure in 1..5_u32,
            answers in proptest::collection::vec(any::<bool>(), 0..60),
        ) {
            let thresholds = Thresholds { success, failure };
            let mut counter = Counter::default();
            let mut standing = start;
            let counted: Vec<bool> = answers
                .iter()
                .map(|answer| {
                    standing = counter.count(*answer, thresholds).unwrap_or(standing);
                    standing
                })
                .collect();
            prop_assert_eq!(counted, naive(start, thresholds, &answers));
        }
    }
}
