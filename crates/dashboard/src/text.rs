//! Text of other people: names, sentences, errors. It is cut, because the page of one who looks must not grow with what
//! another one writes; the page shows it as text and never as markup.

use serde_json::Value;

/// Longest sentence.
const SENTENCE: usize = 1_000;
/// Longest name: `namespace/name` of Kubernetes fits.
const NAME: usize = 320;
/// The greatest number that JavaScript counts to.
const EXACT: u128 = 1 << 53;

pub(crate) fn sentence(text: &str) -> String {
    cut(text, SENTENCE)
}

pub(crate) fn name(text: &str) -> String {
    cut(text, NAME)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
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
    fn long_text_is_cut_between_letters() {
        assert_eq!(cut("wörter", 2), "wö…");
        assert_eq!(cut("wö", 2), "wö");
        assert_eq!(name(&"ü".repeat(10_000)).chars().count(), NAME + 1);
    }

    #[test]
    fn a_number_that_javascript_would_round_is_text() {
        assert_eq!(number(1 << 53), 9_007_199_254_740_992_u64);
        assert_eq!(number(1 << 64), "18446744073709551616");
    }
}
