//! How long a caller waits for its answer.

use std::time::Duration;

use tonic::metadata::MetadataMap;

use super::timeout;

/// The header with the time that a caller waits.
pub(super) const TIMEOUT: &str = "grpc-timeout";

/// A caller without a deadline waits so long; the sidecars of the chart wait 110 s, and kubelet 120 s.
const DEFAULT: Duration = Duration::from_secs(100);
/// No call lasts longer, whatever its caller asks for.
const LONGEST: Duration = Duration::from_secs(600);
/// The answer is on its way so long before the deadline: after it the caller hears nothing of why.
const AHEAD: Duration = Duration::from_secs(1);

/// How long a call may work, by its header.
pub(crate) fn of(metadata: &MetadataMap) -> Duration {
    let asked = metadata.get(TIMEOUT).and_then(|text| timeout(text.to_str().ok()?));
    let Some(asked) = asked else { return DEFAULT };
    asked.min(LONGEST).checked_sub(AHEAD).unwrap_or_default().max(asked.min(LONGEST) / 2)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("110S", Duration::from_secs(109))]
    #[case("2M", Duration::from_secs(119))]
    #[case("1H", Duration::from_secs(599))]
    #[case("99999999H", Duration::from_secs(599))]
    #[case("10000m", Duration::from_secs(9))]
    #[case("1S", Duration::from_millis(500))]
    #[case("500m", Duration::from_millis(250))]
    #[case("0S", Duration::ZERO)]
    #[case("", DEFAULT)]
    #[case("S", DEFAULT)]
    #[case("999999999S", DEFAULT)]
    #[case("-1S", DEFAULT)]
    #[case("1x", DEFAULT)]
    fn the_answer_comes_before_the_caller_is_gone(#[case] text: &str, #[case] expected: Duration) {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().unwrap());
        assert_eq!(of(&metadata), expected);
        assert_eq!(of(&MetadataMap::new()), DEFAULT);
    }
}
