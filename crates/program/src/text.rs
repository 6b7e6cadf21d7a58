//! Text of other people, which is cut: what a program shows or stores must not grow with what another one writes.

/// At most so many letters, and a sign where there were more.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// [`cut`], for a terminal or a page: what nobody sees, and what turns the text after it round, is shown as a sign. One
/// tenant's name would read like another's.
pub fn cut_clean(text: &str, most: usize) -> String {
    cut(text, most).chars().map(seen).collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_letters_and_text_that_fits_is_not() {
        assert_eq!(cut("wörter", 2), "wö…");
        // three bytes, two letters
        assert_eq!(cut("wö", 2), "wö");
        assert_eq!(cut("", 0), "");
    }

    #[test]
    fn what_turns_text_round_or_is_not_seen_is_shown_as_a_sign() {
        let clean = |text: &str| cut_clean(text, 100);
        assert_eq!(clean("blue\u{202e}der\u{200b}"), "blue\u{fffd}der\u{fffd}");
        assert_eq!(clean("\u{2066}blue\u{2069}\u{1b}[1m"), "\u{fffd}blue\u{fffd}\u{fffd}[1m");
        assert_eq!(clean("one\nother, größer, 日本 – …"), "one other, größer, 日本 – …");
        assert_eq!(cut_clean("a\u{202e}bc", 2), "a\u{fffd}…");
    }
}
