//! Numbers of passed and failed tests, read from what the test runner prints.

use std::iter::Sum;

use crate::seeds;

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |all, one| Self {
            passed: all.passed + one.passed,
            failed: all.failed + one.failed,
        })
    }
}

/// Adds up the `test result:` lines of `output`. A step without any is one check of its own; one that failed without
/// a failed test (it did not compile, a process died) counts as one failure more.
pub(crate) fn of(output: &str, succeeded: bool) -> Counts {
    let results: Vec<Counts> = output.lines().filter_map(result).collect();
    let mut counts: Counts = results.iter().copied().sum();
    if !succeeded && counts.failed == 0 {
        counts.failed = 1;
    } else if results.is_empty() {
        counts.passed = 1;
    }
    counts
}

/// Which tests failed, as they are named on a command line, and which seeds; what was run, where its output names none.
pub(crate) fn failures(run: &str, output: &str, succeeded: bool) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    let seed = |line: &str| line.starts_with(seeds::FAILED).then(|| line.to_owned());
    let named = output.lines().filter_map(|line| name(line).or_else(|| seed(line)));
    let failures: Vec<_> = named.map(|name| format!("{run}: {name}")).collect();
    if succeeded || !failures.is_empty() { failures } else { vec![run.to_owned()] }
}

fn result(line: &str) -> Option<Counts> {
    let numbers = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |name: &str| {
        numbers.split(';').find_map(|part| part.trim().strip_suffix(name)?.trim_end().parse().ok())
    };
    Some(Counts { passed: number("passed")?, failed: number("failed")? })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const OK: &str =
        "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
    const BAD: &str =
        "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";

    const BOTH: &str =
        "test a::b ... ok\ntest a::c ... FAILED\n---- a::c stdout ----\nthese seeds failed, try: [7]\n";

    #[rstest]
    #[case::a_test_and_a_seed(BOTH, false, &["csi attach: a::c", "csi attach: these seeds failed, try: [7]"])]
    #[case::a_runner_that_died("test a::b ... ok\nsignal: 9", false, &["csi attach"])]
    #[case::nothing("test a::b ... ok\n", true, &[])]
    fn what_failed_is_named(#[case] output: &str, #[case] succeeded: bool, #[case] expected: &[&str]) {
        assert_eq!(failures("csi attach", output, succeeded), expected);
    }

    #[rstest]
    #[case::one_runner(OK, true, 3, 0)]
    #[case::several_runners(&format!("noise\n{OK}\n\n{BAD}\n"), false, 5, 1)]
    #[case::a_check_that_runs_no_tests("    Checking ipam\n    Finished\n", true, 1, 0)]
    #[case::a_check_that_fails("error: unused variable", false, 0, 1)]
    #[case::a_runner_that_died(&format!("{OK}\nerror: test failed, signal: 9"), false, 3, 1)]
    #[case::runners_without_tests("test result: ok. 0 passed; 0 failed; 0 ignored", true, 0, 0)]
    fn results_are_added_up(
        #[case] output: &str,
        #[case] succeeded: bool,
        #[case] passed: usize,
        #[case] failed: usize,
    ) {
        assert_eq!(of(output, succeeded), Counts { passed, failed });
    }
}
