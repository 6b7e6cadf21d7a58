//! Durations as Go writes them: `15s`, `1m30s`, `1.5h`, `500ms`, `0`.

use std::time::Duration;

/// # Errors
/// A sentence that names the form.
pub fn parse(text: &str) -> Result<Duration, String> {
    let fault = || format!("{text:?} is no duration: use a number with a unit, such as 15s or 1m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fault)?;
        let number: f64 = rest[..digits].parse().map_err(|_| fault())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return Err(fault()),
            };
        rest = &rest[unit..];
    }
    if text.is_empty() { Err(fault()) } else { Duration::try_from_secs_f64(seconds).map_err(|_| fault()) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("15s", Some(15_000))]
    #[case("1m30s", Some(90_000))]
    #[case("1.5h", Some(5_400_000))]
    #[case("500ms", Some(500))]
    #[case("0", Some(0))]
    #[case("", None)]
    #[case("15", None)]
    #[case("s", None)]
    #[case("-1s", None)]
    #[case("1 m", None)]
    fn durations(#[case] text: &str, #[case] millis: Option<u64>) {
        assert_eq!(parse(text).ok(), millis.map(Duration::from_millis));
    }
}
