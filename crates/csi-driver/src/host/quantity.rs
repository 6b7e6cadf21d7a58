//! Sizes as Kubernetes writes them: `10Gi`, `1500M`, `2e9`, `1.5Ti`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// More than any quantity that a server has looked at.
const LONGEST: usize = 64;
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 9] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// The bytes of a quantity, rounded up; `None` for anything that is none, or negative, or beyond 64 bits with a sign.
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    parse(&quantity.0)
}

/// Bytes in the largest binary unit that divides them, as Kubernetes writes them.
pub fn of_bytes(bytes: u64) -> Quantity {
    let divides = |(_, shift): &&(&str, u32)| bytes > 0 && bytes.is_multiple_of(1 << shift);
    let unit = BINARY.iter().rev().find(divides);
    Quantity(unit.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift)))
}

/// The bytes of a JSON text or number; `None` for anything else.
pub(super) fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(text) => parse(&text),
        Value::Number(number) => number.as_u64().filter(|bytes| i64::try_from(*bytes).is_ok()),
        _ => None,
    })
}

fn parse(text: &str) -> Option<u64> {
    if text.len() > LONGEST {
        return None;
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.contains('.') {
        return None;
    }
    let digits: u128 = digits.parse().ok()?;
    let places = u32::try_from(fraction.len()).ok()?;
    let (shift, exponent) = match BINARY.iter().find(|(name, _)| *name == unit) {
        Some((_, shift)) => (*shift, 0),
        None => (0, exponent(unit)?),
    };
    let up = 10_u128.checked_pow(u32::try_from(exponent).unwrap_or(0))?;
    let down = 10_u128.checked_pow(u32::try_from(-exponent).unwrap_or(0))?;
    let scaled = digits.checked_mul(1 << shift)?.checked_mul(up)?;
    let divisor = 10_u128.checked_pow(places)?.checked_mul(down)?;
    let bytes = u64::try_from(scaled.div_ceil(divisor)).ok()?;
    i64::try_from(bytes).is_ok().then_some(bytes)
}

/// The power of ten of a unit.
fn exponent(unit: &str) -> Option<i32> {
    if unit.is_empty() {
        return Some(0);
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == unit) {
        return Some(*exponent);
    }
    let digits = unit.strip_prefix(['e', 'E'])?;
    digits.parse::<i32>().ok().filter(|exponent| exponent.abs() < 30)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10Gi", Some(10 << 30))]
    #[case("1.5Ti", Some(3 << 39))]
    #[case("1500M", Some(1_500_000_000))]
    #[case("2e9", Some(2_000_000_000))]
    #[case("1E3", Some(1000))]
    #[case("1E", Some(1_000_000_000_000_000_000))]
    #[case("1073741825", Some((1 << 30) + 1))]
    #[case::rounded_up("1500m", Some(2))]
    #[case("0", Some(0))]
    #[case("", None)]
    #[case(".", None)]
    #[case("-1", None)]
    #[case("1.2.3", None)]
    #[case("1gb", None)]
    #[case("9Ei", None)]
    #[case("1e99", None)]
    fn a_quantity_is_read_as_kubernetes_reads_it(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(parse(text), expected);
    }

    #[rstest]
    #[case(10 << 30, "10Gi")]
    #[case((1 << 30) + (2 << 20), "1026Mi")]
    #[case((1 << 30) + 1, "1073741825")]
    #[case(0, "0")]
    fn a_size_is_written_in_its_largest_unit(#[case] bytes: u64, #[case] expected: &str) {
        assert_eq!(of_bytes(bytes).0, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_again(size in 0..=i64::MAX as u64) {
            prop_assert_eq!(bytes(&of_bytes(size)), Some(size));
        }

        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn no_number_panics(text in "[0-9.eE+-]{0,70}[numkKMGTPEi]{0,2}") {
            let _ = parse(&text);
        }
    }
}
