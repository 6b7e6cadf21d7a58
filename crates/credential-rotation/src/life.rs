//! The credential of the cloud-config: how long it lasts, and that somebody is told in time.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_config::{
    Followed,
    expiry::{self, Expiry},
};
use controller_kit::PendingEvent;
use jiff::{SignedDuration, Timestamp};
use program::Clock;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use tokio::{sync::watch, time::timeout};

use crate::token::Claims;

/// The longest time between two looks at the clock: it may be set, and a Rancher may lengthen the life of a token.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
/// The name that users asked for.
const METRIC: &str = "cloud_config_token_expiry_seconds";
/// By this no alert comes for an end that does not come.
const ROTATES: &str = "cloud_config_token_rotates";

/// How near the end is; the later ones are more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Fortnight,
    Week,
    Day,
    Over,
}

/// The stages, and what is left of the credential when they begin.
const STAGES: [(Stage, SignedDuration); 4] = [
    (Stage::Over, SignedDuration::ZERO),
    (Stage::Day, SignedDuration::from_hours(24)),
    (Stage::Week, SignedDuration::from_hours(7 * 24)),
    (Stage::Fortnight, SignedDuration::from_hours(14 * 24)),
];

impl Stage {
    fn of(remaining: SignedDuration) -> Option<Self> {
        STAGES.into_iter().find(|(_, begins)| remaining <= *begins).map(|(stage, _)| stage)
    }
}

/// Until the next stage begins.
fn next_look(remaining: Option<SignedDuration>) -> Duration {
    let Some(remaining) = remaining else { return LOOK_AGAIN };
    let next = STAGES.into_iter().rev().find(|(_, begins)| *begins < remaining);
    let wait = next.and_then(|(_, begins)| Duration::try_from(remaining - begins).ok());
    wait.map_or(LOOK_AGAIN, |wait| wait.min(LOOK_AGAIN))
}

/// The end of the credential in use, as a metric: seconds until then, below zero after it, and nothing where it does
/// not end or nobody knows.
#[derive(Clone, Debug)]
pub struct Life {
    now: Arc<Mutex<InForce>>,
    clock: Clock,
}

/// What is known of the credential in use.
#[derive(Clone, Debug, Default)]
struct InForce {
    end: Option<Timestamp>,
    /// What it says of itself, where the leader renews it.
    rotates: Option<Claims>,
}

impl Life {
    pub fn new(clock: Clock) -> Self {
        Self { now: Arc::default(), clock }
    }

    pub fn set(&self, expiry: Expiry) {
        self.set_with(expiry, None);
    }

    fn set_with(&self, expiry: Expiry, rotates: Option<Claims>) {
        let end = match expiry {
            Expiry::At(end) => Some(end),
            Expiry::Never | Expiry::Unknown => None,
        };
        *self.now.lock().expect("no panic while the end is written") = InForce { end, rotates };
    }
}

impl Collector for Life {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let InForce { end, rotates } = self.now.lock().expect("no panic while the end is written").clone();
        let Some(end) = end else { return Ok(()) };
        let left = end.duration_since(self.clock.now());
        let renewed = i64::from(is_renewed_in_time(rotates.as_ref(), left));
        let left = left.as_secs();
        let help = "1 while the credential of the cloud-config is left to its renewal";
        ConstGauge::new(renewed).encode(encoder.encode_descriptor(
            ROTATES,
            help,
            None,
            MetricType::Gauge,
        )?)?;
        let help = "Seconds until the credential of the cloud-config ends";
        ConstGauge::new(left).encode(encoder.encode_descriptor(METRIC, help, None, MetricType::Gauge)?)
    }
}

/// Whether a token is left to whoever renews it: that happens at two thirds of its life, and nobody need know of an end
/// that does not come. From three quarters on, something is wrong.
pub(crate) fn is_renewed_in_time(claims: Option<&Claims>, remaining: SignedDuration) -> bool {
    let life = claims.filter(|claims| claims.is_made_to_rotate()).and_then(Claims::life);
    life.is_some_and(|(life, _)| remaining > life / 4)
}

/// The Event of a stage; `end` is that of the credential of `file`.
fn event(stage: Stage, file: &str, end: Timestamp, remaining: SignedDuration) -> PendingEvent {
    let renew = "make a new one and replace the file; no restart is needed where the file changes inside the container \
                 (with a subPath mount it does not)";
    if stage == Stage::Over {
        let what = format!("the credential of cloud-config {file} ended at {end:.0}: {renew}");
        return PendingEvent::warning("CredentialExpired", what);
    }
    let (days, hours) = (remaining.as_hours() / 24, remaining.as_hours() % 24);
    let (count, unit) = if days > 0 { (days, "day") } else { (hours, "hour") };
    let left = format!("{count} {unit}{}", if count == 1 { "" } else { "s" });
    let what = format!("the credential of cloud-config {file} ends at {end:.0}, in {left}: {renew}");
    PendingEvent::warning("CredentialExpires", what)
}

/// Follows the kubeconfig in use: its end goes to `life`, each stage on the way there and each file that cannot be used
/// is told once. `rotates`: the part that leads renews its token.
pub async fn follow(
    mut followed: watch::Receiver<Followed>,
    options: cloud_config::Options,
    clock: Clock,
    life: Life,
    rotates: bool,
    tell: impl Fn(&PendingEvent),
) {
    let (mut told, mut told_fault) = (None, None);
    loop {
        let Followed { config, fault } = followed.borrow_and_update().clone();
        if fault != told_fault {
            if let Some(fault) = &fault {
                tell(&PendingEvent::warning("CloudConfigNotUsed", fault.as_str()));
            }
            told_fault = fault;
        }
        let expiry = expiry::of(&config, &options).await;
        let rotating = config.token().filter(|_| rotates).and_then(Claims::of);
        life.set_with(expiry, rotating.clone());
        let remaining = expiry.remaining(clock.now());
        if let (Expiry::At(end), Some(left)) = (expiry, remaining)
            && let Some(stage) = Stage::of(left)
            && !is_renewed_in_time(rotating.as_ref(), left)
        {
            let is_news = told.is_none_or(|(of, before)| of != end || stage > before);
            if is_news {
                tell(&event(stage, &config.file, end, left));
                told = Some((end, stage));
            }
        }
        if let Ok(Err(_)) = timeout(next_look(remaining), followed.changed()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};
    use rstest::rstest;

    use super::*;

    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    // what is left, the stage, seconds until the next look
    #[rstest]
    #[case::long(30 * DAY, None, HOUR)]
    #[case::soon_a_fortnight(14 * DAY + 60, None, 60)]
    #[case::a_fortnight(14 * DAY, Some(Stage::Fortnight), HOUR)]
    #[case::between(10 * DAY, Some(Stage::Fortnight), HOUR)]
    #[case::a_week(7 * DAY, Some(Stage::Week), HOUR)]
    #[case::soon_a_day(DAY + 1, Some(Stage::Week), 1)]
    #[case::a_day(DAY, Some(Stage::Day), HOUR)]
    #[case::nearly_over(90, Some(Stage::Day), 90)]
    #[case::over(0, Some(Stage::Over), HOUR)]
    #[case::long_over(-DAY, Some(Stage::Over), HOUR)]
    fn the_nearest_stage_counts_and_the_next_one_is_not_missed(
        #[case] left: i64,
        #[case] stage: Option<Stage>,
        #[case] look: i64,
    ) {
        let left = SignedDuration::from_secs(left);
        assert_eq!(Stage::of(left), stage);
        assert_eq!(next_look(Some(left)).as_secs(), u64::try_from(look).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn the_metric_counts_down_and_is_absent_where_a_credential_does_not_end() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let life = Life::new(Clock::starting_at(start));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(life.clone()));
        let value = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text.lines()
                .find_map(|line| line.strip_prefix("cloud_config_token_expiry_seconds "))
                .map(str::to_owned)
        };
        assert_eq!(value(), None);
        life.set(Expiry::At(start + SignedDuration::from_hours(1)));
        assert_eq!(value().as_deref(), Some("3600"));
        tokio::time::sleep(Duration::from_secs(4000)).await;
        assert_eq!(value().as_deref(), Some("-400"));
        life.set(Expiry::Never);
        assert_eq!(value(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_renewed_is_known_as_such_until_that_is_late() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let life = Life::new(Clock::starting_at(start));
        let ends = start + SignedDuration::from_hours(4);
        let (namespace, account, bound_to) = ("vms".into(), "demo".into(), Some("demo-credentials".into()));
        let claims = Claims { namespace, account, issued: start, ends: Some(ends), bound_to };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(life.clone()));
        let value = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let found = text.lines().find_map(|line| line.strip_prefix("cloud_config_token_rotates "));
            found.map(str::to_owned)
        };
        life.set_with(Expiry::At(ends), Some(claims));
        tokio::time::sleep(Duration::from_secs(3 * 3600 - 60)).await;
        assert_eq!(value().as_deref(), Some("1"));
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(value().as_deref(), Some("0"));
        life.set(Expiry::At(ends));
        assert_eq!(value().as_deref(), Some("0"));
    }

    #[rstest]
    #[case::before_it_is_due("demo-credentials", 11 * DAY, true)]
    #[case::while_it_is_renewed("demo-credentials", 9 * DAY, true)]
    #[case::nobody_renewed_it("demo-credentials", 7 * DAY, false)]
    #[case::not_made_to_rotate("other", 11 * DAY, false)]
    fn a_token_that_rotates_is_told_only_when_that_did_not_happen(
        #[case] bound: &str,
        #[case] left: i64,
        #[case] expected: bool,
    ) {
        let issued = Timestamp::UNIX_EPOCH;
        let (ends, bound_to) = (Some(issued + SignedDuration::from_secs(30 * DAY)), Some(bound.to_owned()));
        let claims = Claims { namespace: "vms".into(), account: "demo".into(), issued, ends, bound_to };
        assert_eq!(is_renewed_in_time(Some(&claims), SignedDuration::from_secs(left)), expected);
        assert!(!is_renewed_in_time(None, SignedDuration::from_secs(left)));
    }

    #[test]
    fn an_event_says_when_it_ends_and_what_to_do() {
        let end = "2026-02-01T00:00:00Z".parse().unwrap();
        let told = event(Stage::Week, "/etc/cloud-config", end, SignedDuration::from_hours(7 * 24));
        assert_eq!(told.reason, "CredentialExpires");
        let begins = "the credential of cloud-config /etc/cloud-config ends at 2026-02-01T00:00:00Z, in 7 days: make a new";
        assert!(told.message.starts_with(begins), "{}", told.message);
        for (hours, left) in
            [(24, "in 1 day:"), (47, "in 1 day:"), (48, "in 2 days:"), (1, "in 1 hour:"), (0, "in 0 hours:")]
        {
            let told = event(Stage::Day, "f", end, SignedDuration::from_hours(hours)).message;
            assert!(told.contains(left), "{told}");
        }
        assert_eq!(event(Stage::Over, "f", end, SignedDuration::ZERO).reason, "CredentialExpired");
    }
}
