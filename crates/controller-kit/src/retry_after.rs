//! When a busy server wants to be asked again.

use std::{error::Error, time::Duration};

use kube::core::Status;

/// A server that asks for more is asked after this time all the same: a longer wait would hide a recovery.
const LONGEST: Duration = Duration::from_secs(300);

/// The wait that the server asked for by `Retry-After` (429 and 503), anywhere in the chain of causes.
pub fn retry_after(error: &(dyn Error + 'static)) -> Option<Duration> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(status) = crate::error_message::status(error) {
            return of_status(status);
        }
        next = error.source();
    }
    None
}

pub(crate) fn of_status(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    let asks = matches!(status.code, 429 | 503) && seconds > 0;
    asks.then(|| Duration::from_secs(seconds.into()).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("write the Service")]
    struct Step(#[source] kube::Error);

    #[rstest]
    #[case(429, 7, Some(7))]
    #[case(503, 7, Some(7))]
    #[case(503, 100_000, Some(300))]
    #[case(429, 0, None)]
    #[case(500, 7, None)]
    fn a_wait_is_found_below_the_step_that_failed(
        #[case] code: u16,
        #[case] seconds: u32,
        #[case] expected: Option<u64>,
    ) {
        let details = serde_json::from_value(json!({"retryAfterSeconds": seconds})).unwrap();
        let status = Status::failure("busy", "Busy").with_code(code).with_details(details);
        let error = Step(kube::Error::Api(Box::new(status)));
        assert_eq!(retry_after(&error), expected.map(Duration::from_secs));
    }
}
