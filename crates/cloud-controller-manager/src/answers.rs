//! What the answers of the two API servers show besides their content: a clock that goes wrong, and a credential that is
//! not taken any more. Each is told once, and again after it had ended.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_config::Answered;
use controller_kit::PendingEvent;
use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};
use program::Clock;
use tokio::time::Instant;

use crate::notices::Notices;

/// Clocks that are so far apart are told.
const SKEW: SignedDuration = SignedDuration::from_secs(60);
/// An answer that took longer says little about the time.
const PROMPT: Duration = Duration::from_secs(10);
/// While a credential is replaced, some requests still have the old one.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Looks at the answers of one server. Clones look together.
#[derive(Clone)]
pub struct Answers(Arc<Inner>);

struct Inner {
    /// Whose answers they are: `Harvester`.
    of: &'static str,
    /// Where the credential comes from.
    credential: String,
    clock: Clock,
    notices: Notices,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    skewed: bool,
    /// Since when the credential is refused, and whether that was told.
    refused: Option<(Instant, bool)>,
}

/// How far our clock is ahead of the server's, where that is too far.
fn skew(date: &str, now: Timestamp) -> Result<Option<SignedDuration>, jiff::Error> {
    let theirs = DateTimeParser::new().parse_timestamp(date)?;
    let ahead = now.duration_since(theirs);
    Ok((ahead.abs() > SKEW).then_some(ahead))
}

impl Answers {
    pub fn new(of: &'static str, credential: String, clock: Clock, notices: Notices) -> Self {
        Self(Arc::new(Inner { of, credential, clock, notices, state: Mutex::default() }))
    }

    /// Looks at one answer.
    pub fn saw(&self, answered: &Answered<'_>) {
        let date = answered.headers.and_then(|headers| headers.get("date")?.to_str().ok());
        if let Some(date) = date.filter(|_| answered.took < PROMPT)
            && let Ok(skew) = skew(date, self.0.clock.now())
        {
            self.saw_time(skew);
        }
        match answered.code {
            Some(401) => self.saw_refusal(),
            // a server that is in trouble, or one in front of it, knows nothing of credentials
            Some(code) if code < 500 && code != 429 => self.state().refused = None,
            _ => {}
        }
    }

    fn saw_time(&self, skew: Option<SignedDuration>) {
        let Inner { of, notices, .. } = &*self.0;
        let was = std::mem::replace(&mut self.state().skewed, skew.is_some());
        if let Some(ahead) = skew.filter(|_| !was) {
            let (seconds, how) =
                (ahead.abs().as_secs(), if ahead.is_positive() { "ahead of" } else { "behind" });
            notices.tell(&PendingEvent::warning(
                "ClockSkew",
                format!(
                    "the clock here is {seconds} s {how} that of the API server of {of}: tokens and certificates seem to \
                     end at other times, and times in Events and Leases mislead; set the time on both by NTP"
                ),
            ));
        }
    }

    fn saw_refusal(&self) {
        let Inner { of, credential, notices, .. } = &*self.0;
        let now = Instant::now();
        let tell = {
            let mut state = self.state();
            let (since, told) = state.refused.get_or_insert((now, false));
            let lasts = now.duration_since(*since) >= REFUSED_FOR;
            lasts && !std::mem::replace(told, lasts)
        };
        if tell {
            notices.tell(&PendingEvent::warning(
                "CredentialRefused",
                format!(
                    "{of} does not know the credential of {credential} (401 Unauthorized): it was revoked or has ended; \
                     make a new one and replace the file, no restart is needed where the file changes inside the container"
                ),
            ));
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while answers are looked at")
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::same("Thu, 01 Jan 2026 00:00:00 GMT", None)]
    #[case::a_minute("Wed, 31 Dec 2025 23:59:00 GMT", None)]
    #[case::ahead("Wed, 31 Dec 2025 23:58:00 GMT", Some(120))]
    #[case::behind("Thu, 01 Jan 2026 01:00:00 GMT", Some(-3600))]
    fn clocks_more_than_a_minute_apart_are_told(#[case] date: &str, #[case] ahead: Option<i64>) {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(skew(date, now).unwrap().map(|ahead| ahead.as_secs()), ahead);
    }

    fn answers() -> Answers {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        Answers::new("Harvester", "cloud-config file".into(), clock, Notices::default())
    }

    fn saw(
        answers: &Answers,
        code: Option<u16>,
        date: Option<&'static str>,
        took: u64,
    ) -> (bool, Option<bool>) {
        let mut headers = HeaderMap::new();
        if let Some(date) = date {
            headers.insert("date", date.parse().unwrap());
        }
        let (took, queued) = (Duration::from_secs(took), Duration::ZERO);
        let headers = code.map(|_| &headers);
        answers.saw(&Answered { method: &Method::GET, host: "h", code, headers, took, queued });
        let state = answers.state();
        (state.skewed, state.refused.map(|(_, told)| told))
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_credential_is_told_once_when_it_lasts_and_anew_after_it_was_taken() {
        let answers = answers();
        for _ in 0..2 {
            assert_eq!(saw(&answers, Some(401), None, 0).1, Some(false));
            tokio::time::sleep(Duration::from_secs(9)).await;
            assert_eq!(saw(&answers, Some(401), None, 0).1, Some(false), "it may be replaced just now");
            assert_eq!(saw(&answers, Some(500), None, 0).1, Some(false));
            assert_eq!(saw(&answers, None, None, 0).1, Some(false));
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(saw(&answers, Some(401), None, 0).1, Some(true));
            assert_eq!(saw(&answers, Some(403), None, 0).1, None, "who is refused by name is known");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_clock_is_seen_in_prompt_answers_and_ends_with_a_right_one() {
        let (answers, late) = (answers(), Some("Thu, 01 Jan 2026 01:00:00 GMT"));
        assert!(!saw(&answers, Some(200), late, 11).0, "a slow answer");
        assert!(!saw(&answers, Some(200), Some("yesterday"), 0).0);
        assert!(saw(&answers, Some(200), late, 0).0);
        assert!(saw(&answers, Some(200), None, 0).0, "an answer without a date says nothing");
        assert!(!saw(&answers, Some(200), Some("Thu, 01 Jan 2026 00:00:01 GMT"), 0).0);
    }
}
