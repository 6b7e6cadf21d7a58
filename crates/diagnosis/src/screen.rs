//! Text for terminals: tables, colours, and a screen that is written anew.

use std::io::IsTerminal as _;

use program::text::cut_clean;

/// Longest text of others that is repeated: the longest message of an Event.
const TEXT_MAX: usize = 1024;

/// The text without what nobody sees, and cut.
pub(crate) fn cut(text: &str) -> String {
    cut_clean(text, TEXT_MAX)
}

/// Whether what is printed has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Colour(pub(crate) bool);

impl Colour {
    /// For standard output: on terminals, unless NO_COLOR or TERM=dumb say otherwise (<https://no-color.org>).
    pub fn of_stdout() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self::of(std::io::stdout().is_terminal(), variable)
    }

    fn of(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let is_refused = variable("NO_COLOR").is_some_and(|text| !text.is_empty());
        Self(is_terminal && !is_refused && variable("TERM").as_deref() != Some("dumb"))
    }

    pub(crate) fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub(crate) fn amber(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }
}

/// The page in place of the one before: each line is ended, and what was below is cleared. Nothing flickers.
pub(crate) fn over(page: &str) -> String {
    format!("\u{1b}[H{}\u{1b}[J", page.replace('\n', "\u{1b}[K\n"))
}

/// A table of at most so many rows.
pub(crate) fn table<const N: usize>(heads: [&str; N], mut rows: Vec<[String; N]>, most: usize) -> String {
    let more = rows.len().saturating_sub(most);
    rows.truncate(most);
    rows.insert(0, heads.map(str::to_owned));
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    });
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let more = if more > 0 { format!("and {more} more: --output json has all\n") } else { String::new() };
    rows.iter().map(line).chain([more]).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::on_a_terminal(true, None, None, true)]
    #[case::in_a_pipe(false, None, None, false)]
    #[case::refused(true, Some("1"), None, false)]
    #[case::an_empty_variable_is_none(true, Some(""), Some("xterm"), true)]
    #[case::a_terminal_that_cannot(true, None, Some("dumb"), false)]
    fn colours_are_for_terminals_alone(
        #[case] is_terminal: bool,
        #[case] no_color: Option<&str>,
        #[case] term: Option<&str>,
        #[case] expected: bool,
    ) {
        let variable = |name: &str| if name == "NO_COLOR" { no_color } else { term }.map(str::to_owned);
        let colour = Colour::of(is_terminal, variable);
        assert_eq!((colour.0, colour.red("x").contains('\u{1b}')), (expected, expected));
    }

    #[test]
    fn a_table_says_how_many_rows_it_leaves_out() {
        let rows = ["a", "bcd", "e"].map(|name| [name.to_owned(), "x".to_owned()]).to_vec();
        assert_eq!(
            table(["N", "WHY"], rows, 2),
            "N    WHY\na    x\nbcd  x\nand 1 more: --output json has all\n"
        );
    }

    #[test]
    fn a_new_page_clears_what_the_former_one_had() {
        assert_eq!(over("a\nb\n"), "\u{1b}[Ha\u{1b}[K\nb\u{1b}[K\n\u{1b}[J");
    }
}
