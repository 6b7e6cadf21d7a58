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
    let mut cut: String = text.chars().take(most).map(seen).collect();
    if text.chars().nth(most).is_some() {
        cut.push('…');
    }
    cut
}

/// What nobody sees, and what turns the text after it round, would let one tenant's name read like another's.
fn seen(letter: char) -> char {
    let is_unseen = matches!(letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    match letter {
        '\t' | '\n' | '\r' => ' ',
        _ if is_unseen || letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
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
    fn what_turns_text_round_or_is_not_seen_is_shown_as_a_sign() {
        assert_eq!(name("blue\u{202e}der\u{200b}"), "blue\u{fffd}der\u{fffd}");
        assert_eq!(name("\u{2066}blue\u{2069}\u{1b}[1m"), "\u{fffd}blue\u{fffd}\u{fffd}[1m");
        assert_eq!(sentence("one\nother, größer, 日本 – …"), "one other, größer, 日本 – …");
    }

    #[test]
    fn a_number_that_javascript_would_round_is_text() {
        assert_eq!(number(1 << 53), 9_007_199_254_740_992_u64);
        assert_eq!(number(1 << 64), "18446744073709551616");
    }
}
