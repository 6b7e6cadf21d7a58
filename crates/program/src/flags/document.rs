//! The table as people read it.

use std::fmt::Write as _;

use super::{Flag, FlagType, Table};

impl Table {
    /// The text of `--help`.
    pub fn help(&self) -> String {
        let mut text = format!("{}\n\nUsage: {} [flags]\n\nFlags:\n", self.about, self.program);
        for flag in self.shown() {
            let dashes = if flag.name.len() == 1 { "-" } else { "--" };
            let value =
                if flag.value_name.is_empty() { String::new() } else { format!(" {}", flag.value_name) };
            let name = format!("{dashes}{}{value}", flag.name);
            let more = notes(flag, "");
            line(&mut text, &format!("  {name:<40} {}{more}", flag.help));
        }
        let mut ignored = self.ignored().peekable();
        if ignored.peek().is_some() {
            text.push_str("\nTaken and ignored, as far as the program that this one replaces knows them:\n");
            ignored.for_each(|flag| line(&mut text, &format!("  --{}", flag.name)));
        }
        text
    }

    /// A section of Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("## `{}`\n\n{}\n\n", self.program, self.about);
        text.push_str("| Flag | Environment | Default | Meaning |\n|---|---|---|---|\n");
        for flag in self.shown() {
            let code = |text: &str| format!("`{text}`");
            let variables: Vec<_> = flag.variables.iter().map(|name| code(name)).collect();
            let default = match (flag.default, flag.flag_type) {
                (Some(text), _) => code(text),
                (None, FlagType::Switch) => "off".to_owned(),
                (None, FlagType::Value) => String::new(),
            };
            // without its backslash a word in angle brackets is a tag, which nobody sees
            let (value, help) = (flag.value_name, flag.help.replace('|', "\\|").replace('<', "\\<"));
            let name = if value.is_empty() { flag.name.to_owned() } else { format!("{}={value}", flag.name) };
            line(&mut text, &format!("| `--{name}` | {} | {default} | {help} |", variables.join(", ")));
        }
        let ignored: Vec<_> = self.ignored().map(|flag| format!("`--{}`", flag.name)).collect();
        if !ignored.is_empty() {
            line(&mut text, &format!("\nTaken and ignored: {}.", ignored.join(", ")));
        }
        text
    }

    pub(super) fn shown(&self) -> impl Iterator<Item = &'static Flag> {
        self.all().filter(|flag| !flag.hidden && !flag.is_ignored())
    }

    fn ignored(&self) -> impl Iterator<Item = &'static Flag> {
        self.all().filter(|flag| !flag.hidden && flag.is_ignored())
    }
}

fn notes(flag: &Flag, none: &str) -> String {
    let mut text = none.to_owned();
    if !flag.variables.is_empty() {
        write!(text, " [env: {}]", flag.variables.join(", ")).expect("a String takes any text");
    }
    if let Some(default) = flag.default {
        write!(text, " [default: {default}]").expect("a String takes any text");
    }
    text
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}
