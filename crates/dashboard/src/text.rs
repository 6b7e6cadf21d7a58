//! Text of other people: names, sentences, errors. It is cut, because the page of one who looks must not grow with what
//! another one writes; the page shows it as text and never as markup.

use program::text::cut_clean;
use serde_json::Value;

/// Longest sentence.
const SENTENCE: usize = 1_000;
/// Longest name: `namespace/name` of Kubernetes fits.
const NAME: usize = 320;
/// The greatest number that JavaScript counts to.
const EXACT: u128 = 1 << 53;

pub(crate) fn sentence(text: &str) -> String {
    cut_clean(text, SENTENCE)
}

pub(crate) fn name(text: &str) -> String {
    cut_clean(text, NAME)
}

/// A number as the page can read it: text where JavaScript would round it.
pub(crate) fn number(number: u128) -> Value {
    match u64::try_from(number) {
        Ok(small) if number <= EXACT => small.into(),
        _ => number.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_and_shows_what_nobody_sees() {
        assert_eq!(name(&"ü".repeat(10_000)).chars().count(), NAME + 1);
        assert_eq!(name("blue\u{202e}der\u{200b}"), "blue\u{fffd}der\u{fffd}");
    }

    #[test]
    fn a_number_that_javascript_would_round_is_text() {
        assert_eq!(number(1 << 53), 9_007_199_254_740_992_u64);
        assert_eq!(number(1 << 64), "18446744073709551616");
    }
}
