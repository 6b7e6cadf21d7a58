//! An outage as the requests of a user show it: whether the verdicts came when they were due, and whether traffic
//! obeyed them.

use std::{fmt, time::Duration};

use anyhow::{Result, bail, ensure};
use tokio::time::Instant;

use super::HealthCheck;
use crate::tour::load::Request;

/// The delay that a busy computer may add to the time in which a verdict is due; less than that time itself.
const SLACK: Duration = Duration::from_secs(3);
/// kube-vip and kube-proxy may hear of a verdict this long after us, or before.
const SPREAD: Duration = Duration::from_millis(500);
/// Chance sends this many standard deviations more to one backend than its share once in thirty thousand outages.
const DEVIATIONS: f64 = 4.0;

/// When what happened to the backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) stopped: Instant,
    /// The verdict "not ready" was seen.
    pub(super) down: Instant,
    pub(super) healed: Instant,
    /// The verdict "ready" was seen.
    pub(super) up: Instant,
}

/// An outage as it should be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Account {
    down_after: Duration,
    up_after: Duration,
    /// Requests before the verdict, and how many of them failed.
    before: usize,
    failed: usize,
    /// Requests from the verdict on: none of them failed.
    after: usize,
}

impl fmt::Display for Account {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { down_after, up_after, before, failed, after } = self;
        let (down_after, up_after) = (down_after.as_secs_f64(), up_after.as_secs_f64());
        write!(
            out,
            "verdict after {down_after:.1} s, {failed} of {before} requests failed before it, 0 of {after} after it; \
             back after {up_after:.1} s"
        )
    }
}

/// Judges the outage of `vm`, one of `backends` that connections are spread over by chance.
///
/// # Errors
/// The first thing that is not as it should be.
pub(super) fn account(
    requests: &[Request],
    at: &Moments,
    check: HealthCheck,
    vm: &str,
    backends: usize,
) -> Result<Account> {
    let (down_after, up_after) = (at.down - at.stopped, at.up - at.healed);
    within("it stopped", down_after, check.down_within())?;
    within("it answered again", up_after, check.up_within())?;
    ensure!(
        up_after + SPREAD >= check.up_after(),
        "{vm} was ready {:.1} s after it answered again: that many good probes take {:.1} s at least",
        up_after.as_secs_f64(),
        check.up_after().as_secs_f64()
    );

    let before = || requests.iter().filter(|request| at.stopped <= request.begun && request.begun < at.down);
    let (total, failed) = (before().count(), before().filter(|request| request.answer.is_err()).count());
    ensure!(
        before().any(|request| request.answer.is_ok() && !request.reached(vm)),
        "no other backend answered while {vm} was failing"
    );
    ensure!(
        failed <= share(total, backends),
        "{failed} of {total} requests failed, and only one of {backends} VMs was down"
    );

    let after: Vec<_> = requests.iter().filter(|request| request.begun >= at.down + SPREAD).collect();
    for request in &after {
        if let Err(why) = &request.answer {
            let when = (request.begun - at.down).as_secs_f64();
            bail!("a request failed {when:.1} s after the verdict: {why}");
        }
        ensure!(
            request.begun + SPREAD >= at.up || !request.reached(vm),
            "{vm} was reached while the verdict was against it, {:.1} s before the next",
            (at.up - request.begun).as_secs_f64()
        );
    }
    Ok(Account { down_after, up_after, before: total, failed, after: after.len() })
}

fn within(what: &str, took: Duration, due: Duration) -> Result<()> {
    ensure!(
        took <= due + SLACK,
        "the verdict came {:.1} s after {what}; it is due within {} s",
        took.as_secs_f64(),
        due.as_secs()
    );
    Ok(())
}

/// More of `total` connections do not go to one of `backends` by chance.
fn share(total: usize, backends: usize) -> usize {
    let (total, one) = (total as f64, 1.0 / backends as f64);
    (total * one + DEVIATIONS * (total * one * (1.0 - one)).sqrt()).floor() as usize
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::tour::outage::CHECK;

    const BEAT: u64 = 20;

    /// An outage, in milliseconds from its beginning; `answer` says who answers the request that is begun then.
    fn outage(down: u64, healed: u64, up: u64, answer: impl Fn(u64) -> &'static str) -> Result<String> {
        let start = Instant::now();
        let moment = |millis| start + Duration::from_millis(millis);
        let at = Moments { stopped: start, down: moment(down), healed: moment(healed), up: moment(up) };
        let request = |millis| Request {
            begun: moment(millis),
            answer: match answer(millis) {
                "" => Err("timed out".to_owned()),
                vm => Ok(vm.to_owned()),
            },
        };
        let requests: Vec<_> = (0..up + 1_000).step_by(BEAT as usize).map(request).collect();
        account(&requests, &at, CHECK, "a", 3).map(|account| account.to_string())
    }

    /// Each backend in turn, `a` failing from the beginning until it is told to be up again.
    fn turns(millis: u64, down: u64, up: u64) -> &'static str {
        match (millis / BEAT) % 3 {
            0 if millis < down => "",
            0 if millis >= up => "a",
            1 => "b",
            _ => "c",
        }
    }

    #[test]
    fn an_outage_as_it_should_be() {
        let told = outage(3_500, 5_500, 9_000, |millis| turns(millis, 3_500, 9_000)).unwrap();
        assert_eq!(
            told,
            "verdict after 3.5 s, 59 of 175 requests failed before it, 0 of 300 after it; back after 3.5 s"
        );
    }

    #[test]
    fn whoever_hears_of_a_verdict_a_little_earlier_or_later_than_we_does_no_wrong() {
        outage(3_500, 5_500, 9_000, |millis| turns(millis, 3_900, 8_600)).unwrap();
    }

    #[rstest]
    #[case::a_late_verdict(
        12_700,
        14_700,
        18_000,
        "the verdict came 12.7 s after it stopped; it is due within 4 s"
    )]
    #[case::late_to_come_back(
        3_500,
        5_500,
        14_000,
        "the verdict came 8.5 s after it answered again; it is due within 5 s"
    )]
    #[case::one_good_probe_is_not_enough(
        3_500,
        5_500,
        6_600,
        "a was ready 1.1 s after it answered again: that many good probes take 2.0 s at least"
    )]
    fn verdicts_come_when_they_are_due(
        #[case] down: u64,
        #[case] healed: u64,
        #[case] up: u64,
        #[case] expected: &str,
    ) {
        let error = outage(down, healed, up, |millis| turns(millis, down, up)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[rstest]
    #[case::too_many(0, 3_500, 2, "88 of 175 requests failed, and only one of 3 VMs was down")]
    #[case::all(0, 3_500, 1, "no other backend answered while a was failing")]
    #[case::after_the_verdict(4_000, 4_020, 1, "a request failed 0.5 s after the verdict: timed out")]
    #[case::when_it_is_back(9_500, 9_520, 1, "a request failed 6.0 s after the verdict: timed out")]
    fn only_connections_to_what_is_down_may_fail_and_only_before_the_verdict(
        #[case] from: u64,
        #[case] to: u64,
        #[case] every: u64,
        #[case] expected: &str,
    ) {
        let fails = |millis: u64| (from..to).contains(&millis) && (millis / BEAT).is_multiple_of(every);
        let answer = |millis| match (fails(millis), millis < 3_500) {
            (true, _) => "",
            (false, true) => "b",
            (false, false) => turns(millis, 3_500, 9_000),
        };
        assert_eq!(outage(3_500, 5_500, 9_000, answer).unwrap_err().to_string(), expected);
    }

    #[rstest]
    #[case::while_it_is_down(4_500)]
    #[case::before_enough_good_probes(6_000)]
    fn nothing_is_sent_to_it_while_the_verdict_is_against_it(#[case] early: u64) {
        let answer = |millis| if millis == early { "a" } else { turns(millis, 3_500, 9_000) };
        let error = outage(3_500, 5_500, 9_000, answer).unwrap_err().to_string();
        assert!(error.starts_with("a was reached while the verdict was against it"), "{error}");
    }

    #[rstest]
    #[case::none(0, 3, 0)]
    #[case::a_third(150, 3, 73)]
    #[case::half(150, 2, 99)]
    fn the_share_of_one_backend_is_near_its_part(
        #[case] total: usize,
        #[case] backends: usize,
        #[case] expected: usize,
    ) {
        assert_eq!(share(total, backends), expected);
    }
}
