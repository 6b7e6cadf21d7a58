//! The commands of a page of `docs/`, for tests that type them: each one is typed, or stands in a list with the reason why not.

use std::{fs, path::Path};

/// What is done with the commands that begin so.
pub(crate) struct Rule {
    pub(crate) begins: &'static str,
    /// So many of the page. One more asks anew what is to be done with it.
    pub(crate) lines: usize,
    /// It is not typed here, and why.
    pub(crate) left_out: &'static str,
    /// What the text, or another page, says to do before.
    pub(crate) before: &'static str,
    /// It ends with this code.
    pub(crate) ends: i32,
}

/// What is done with a command that no rule is for.
pub(crate) const TYPED: Rule = Rule { begins: "", lines: 1, left_out: "", before: "", ends: 0 };

/// The words with which a section, or the text before the first one, says for which cluster its commands are.
const OF_HARVESTER: &str = "`KUBECONFIG` names Harvester";

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

/// The indented lines of a page, those that go on as one. Of a block with prompts the lines after a prompt, and none of what they
/// print. What stands between fences is a drawing or a file: commands there would be seen by nobody.
pub(crate) fn indented(text: &str) -> Vec<String> {
    const PROGRAMS: [&str; 6] =
        ["kubectl ", "helm ", "cargo ", "harvester-cloud-provider ", "sudo ", "curl "];
    let (mut found, mut is_fenced, mut goes_on) = (Vec::<String>::new(), false, false);
    let (mut has_prompts, mut is_typed_in) = (false, false);
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            assert!(["", "text", "yaml"].contains(&language), "indent commands instead of a fence: {line}");
            is_fenced = !is_fenced;
        }
        if is_fenced {
            let line = line.trim_start_matches("$ ");
            assert!(
                !PROGRAMS.iter().any(|program| line.starts_with(program)),
                "indent it, without a fence: {line}"
            );
            continue;
        }
        let Some(line) = line.strip_prefix("    ") else {
            has_prompts &= line.is_empty();
            continue;
        };
        let prompted = line.strip_prefix("$ ");
        has_prompts |= prompted.is_some();
        let line = prompted.unwrap_or(line);
        if is_typed_in {
            // the document that the command reads
            is_typed_in = line != "EOF";
            if let Some(command) = found.last_mut() {
                command.extend(["\n", line]);
            }
            continue;
        }
        if has_prompts && prompted.is_none() && !goes_on {
            continue;
        }
        let part = line.strip_suffix('\\').unwrap_or(line);
        match found.last_mut().filter(|_| goes_on) {
            Some(command) => *command += part.trim_start(),
            None => found.push(part.to_owned()),
        }
        goes_on = part.len() < line.len();
        is_typed_in = line.ends_with("<<EOF");
    }
    found
}

/// What to type of a page, in its order. Every rule has to be for as many commands as it says.
pub(crate) fn steps(page: &str, rules: &[Rule]) -> Vec<Step> {
    let text = text(page);
    let is_of_harvester = |part: &str| part.contains(OF_HARVESTER);
    let of_page = text.split("\n## ").next().is_some_and(is_of_harvester);
    let (mut counts, mut steps) = (vec![0; rules.len()], Vec::new());
    for section in text.split("\n## ") {
        let cluster =
            if of_page || is_of_harvester(section) { "export KUBECONFIG=harvester.kubeconfig; " } else { "" };
        for line in indented(section) {
            let found = rules.iter().position(|rule| line.starts_with(rule.begins));
            let &Rule { left_out, before, ends, .. } = found.map_or(&TYPED, |at| &rules[at]);
            found.into_iter().for_each(|at| counts[at] += 1);
            if left_out.is_empty() {
                steps.push(Step { before, line: format!("{cluster}{line}"), ends });
            }
        }
    }
    assert!(!steps.is_empty() || !rules.is_empty(), "{page} has no commands");
    let others = rules.iter().zip(&counts).filter(|(rule, count)| rule.lines != **count);
    let others: Vec<_> =
        others.map(|(rule, count)| format!("{}: {count}, not {}", rule.begins, rule.lines)).collect();
    assert_eq!(others, [""; 0], "{page}: look what is to be done with each");
    steps
}
