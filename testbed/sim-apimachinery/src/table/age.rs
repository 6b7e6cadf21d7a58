//! Ages as kubectl prints them: two units where the first is small, one where it is large.

use jiff::Timestamp;
use serde_json::Value;

/// The time from an RFC 3339 text until `now`, such as `5m30s`; `<unknown>` if there is no time, `<invalid>` if it is
/// none or lies in the future.
pub fn age(since: &Value, now: Timestamp) -> String {
    let Some(text) = since.as_str().filter(|text| !text.is_empty()) else { return "<unknown>".to_owned() };
    match text.parse::<Timestamp>() {
        Ok(since) => since_seconds(now.as_second() - since.as_second()),
        Err(_) => "<invalid>".to_owned(),
    }
}

fn since_seconds(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{small_unit}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(-2, "<invalid>")]
    #[case(-1, "0s")]
    #[case(0, "0s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(599, "9m59s")]
    #[case(600, "10m")]
    #[case(3 * 3600, "3h")]
    #[case(3 * 3600 + 61, "3h1m")]
    #[case(47 * 3600, "47h")]
    #[case(48 * 3600 + 3600, "2d1h")]
    #[case(8 * 86400, "8d")]
    #[case(800 * 86400, "2y70d")]
    #[case(9 * 365 * 86400, "9y")]
    fn ages_read_as_kubectl_prints_them(#[case] seconds: i64, #[case] expected: &str) {
        assert_eq!(since_seconds(seconds), expected);
    }

    #[test]
    fn no_time_is_unknown() {
        assert_eq!(age(&json!(null), Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(age(&json!("soon"), Timestamp::UNIX_EPOCH), "<invalid>");
    }
}
