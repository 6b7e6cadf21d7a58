//! The command line, before anybody looks at the values.

use std::collections::HashMap;

use super::{FlagType, Table};

/// The values that were given, in the order of the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given(HashMap<&'static str, Vec<String>>);

impl Given {
    /// Whether a switch is on; the last one counts.
    pub fn is_on(&self, name: &str) -> bool {
        self.last(name).and_then(boolean).unwrap_or(false)
    }

    /// The last value given.
    pub fn last(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.last().map(String::as_str)
    }

    /// All values, joined by commas: repeating a list is as good as commas in it.
    pub fn joined(&self, name: &str) -> Option<String> {
        Some(self.0.get(name)?.join(","))
    }
}

impl Table {
    /// The words of a command line, and its flags with their values: words may stand before, between and after flags.
    pub fn split(&self, args: impl IntoIterator<Item = String>) -> (Vec<String>, Vec<String>) {
        let (mut words, mut flags) = (Vec::new(), Vec::new());
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let Some(name) = arg.strip_prefix('-').map(|name| name.trim_start_matches('-')) else {
                words.push(arg);
                continue;
            };
            let has_value = self.find(name).is_some_and(|flag| flag.flag_type == FlagType::Value);
            flags.push(arg);
            if has_value {
                flags.extend(args.next());
            }
        }
        (words, flags)
    }

    /// Reads the arguments after the program's name: what was given, and a sentence for each that cannot be read.
    pub fn parse(&self, args: &[String]) -> (Given, Vec<String>) {
        let (mut given, mut faults) = (Given::default(), Vec::new());
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let Some(text) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                if !arg.is_empty() {
                    faults.push(format!("{} does not take any arguments, got {arg:?}", self.program));
                }
                continue;
            };
            let (name, inline) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            let found = self.find(name).map(|flag| (flag, inline));
            let Some((flag, inline)) = found.or_else(|| self.shorthand(arg)) else {
                faults.push(format!("unknown flag: {arg}"));
                continue;
            };
            let value = match (flag.flag_type, inline) {
                (_, Some(value)) => value,
                (FlagType::Switch, None) => "true".to_owned(),
                (FlagType::Value, None) => match args.next() {
                    Some(value) => value.clone(),
                    None => {
                        faults.push(format!("flag needs an argument: --{}", flag.name));
                        continue;
                    }
                },
            };
            if flag.flag_type == FlagType::Switch && boolean(&value).is_none() {
                faults.push(format!("--{}={value}: use true or false", flag.name));
                continue;
            }
            given.0.entry(flag.name).or_default().push(value);
        }
        (given, faults)
    }

    /// `-h`, and `-v3` where there is a flag `v`.
    fn shorthand(&self, arg: &str) -> Option<(&'static super::Flag, Option<String>)> {
        if arg == "-h" {
            return Some((self.find("help")?, None));
        }
        let rest = arg.strip_prefix('-')?;
        let (name, value) = (rest.get(..1)?, rest.get(1..)?);
        value.parse::<u32>().ok()?;
        Some((self.find(name)?, Some(value.to_owned())))
    }
}

/// Go's boolean words.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
