//! The commands of a page of `docs/`, for tests that type them: each one is typed, or stands in a list with the reason why not.

use std::{collections::BTreeSet, fs, path::Path};

/// What is done with the commands that begin so.
pub(crate) struct Rule {
    pub(crate) begins: &'static str,
    /// It is not typed here, and why.
    pub(crate) left_out: &'static str,
    /// What the text, or another page, says to do before.
    pub(crate) before: &'static str,
    /// It ends with this code.
    pub(crate) ends: i32,
}

/// What is done with a command that no rule is for.
pub(crate) const TYPED: Rule = Rule { begins: "", left_out: "", before: "", ends: 0 };

/// A command to type.
pub(crate) struct Step {
    pub(crate) before: &'static str,
    pub(crate) line: String,
    pub(crate) ends: i32,
}

/// The text of a page.
pub(crate) fn text(page: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap()
}

/// The indented lines of a page, those that go on as one.
pub(crate) fn indented(text: &str) -> Vec<String> {
    let (mut found, mut is_drawing, mut goes_on) = (Vec::<String>::new(), false, false);
    for line in text.lines() {
        is_drawing ^= line.starts_with("```");
        let Some(line) = line.strip_prefix("    ").filter(|_| !is_drawing) else { continue };
        let part = line.strip_suffix('\\').unwrap_or(line);
        match found.last_mut().filter(|_| goes_on) {
            Some(command) => *command += part.trim_start(),
            None => found.push(part.to_owned()),
        }
        goes_on = part.len() < line.len();
    }
    found
}

/// What to type of a page, in its order. Every rule has to be for something.
pub(crate) fn steps(page: &str, rules: &[Rule]) -> Vec<Step> {
    let commands = indented(&text(page));
    assert!(!commands.is_empty(), "{page}");
    let (mut used, mut steps) = (BTreeSet::new(), Vec::new());
    for line in commands {
        let found = rules.iter().position(|rule| line.starts_with(rule.begins));
        used.extend(found);
        let &Rule { left_out, before, ends, .. } = found.map_or(&TYPED, |at| &rules[at]);
        if left_out.is_empty() {
            steps.push(Step { before, line, ends });
        }
    }
    let of_nothing = (0..rules.len()).filter(|at| !used.contains(at)).map(|at| rules[at].begins);
    assert_eq!(of_nothing.collect::<Vec<_>>(), [""; 0], "{page} has no such commands");
    steps
}
