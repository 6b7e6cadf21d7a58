//! Go's way with arguments: `--name=value`, `--name value`, `-v=3`, `-v3`, `_` for `-`; and one dash before a long
//! name, which old documents show.

use std::collections::HashMap;

use super::flags::{Kind, find};

/// What was given: values in the order of the command line.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Given(HashMap<&'static str, Vec<String>>);

impl Given {
    /// Whether a switch is on; the last one counts.
    pub(super) fn has(&self, name: &str) -> bool {
        self.switch(name).unwrap_or(false)
    }

    /// The switch, if it was given. [`read`] has made sure that it is one.
    pub(super) fn switch(&self, name: &str) -> Option<bool> {
        self.last(name).and_then(boolean)
    }

    /// The last value given.
    pub(super) fn last(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.last().map(String::as_str)
    }

    /// All values of a list: repeated flags and commas.
    pub(super) fn list(&self, name: &str) -> Option<Vec<&str>> {
        let items = self.0.get(name)?.iter().flat_map(|value| value.split(',')).map(str::trim);
        Some(items.filter(|item| !item.is_empty()).collect())
    }
}

/// Reads the arguments after the program's name: what was given, and a sentence for each that cannot be read.
pub(super) fn read(args: &[String]) -> (Given, Vec<String>) {
    let (mut given, mut faults) = (Given::default(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(text) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            if !arg.is_empty() {
                faults.push(format!("cloud-controller-manager does not take any arguments, got {arg:?}"));
            }
            continue;
        };
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let shorthand = || {
            // -v3, -h
            let rest = arg.strip_prefix("-v").filter(|rest| rest.parse::<u32>().is_ok());
            rest.map(|rest| ("v", Some(rest.to_owned()))).or((arg == "-h").then_some(("help", None)))
        };
        let (flag, inline) = match (find(name), shorthand()) {
            (Some(flag), _) => (flag, inline),
            (None, Some((name, inline))) => (find(name).expect("both are in the table"), inline),
            (None, None) => {
                faults.push(format!("unknown flag: {arg}"));
                continue;
            }
        };
        let value = match (flag.kind, inline) {
            (_, Some(value)) => value,
            (Kind::Switch, None) => "true".to_owned(),
            (Kind::Value, None) => match args.next() {
                Some(value) => value.clone(),
                None => {
                    faults.push(format!("flag needs an argument: --{}", flag.name));
                    continue;
                }
            },
        };
        if flag.kind == Kind::Switch && boolean(&value).is_none() {
            faults.push(format!("--{}={value}: use true or false", flag.name));
            continue;
        }
        given.0.entry(flag.name).or_default().push(value);
    }
    (given, faults)
}

/// Go's boolean words.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn words(args: &[&str]) -> Vec<String> {
        args.iter().map(|arg| (*arg).to_owned()).collect()
    }

    #[rstest]
    #[case::equals(&["--cluster-name=prod"], "cluster-name", Some("prod"))]
    #[case::two_words(&["--cluster-name", "prod"], "cluster-name", Some("prod"))]
    #[case::underscores(&["--cluster_name=prod"], "cluster-name", Some("prod"))]
    #[case::one_dash(&["-cluster-name=prod"], "cluster-name", Some("prod"))]
    #[case::value_with_equals(&["--feature-gates=A=true,B=false"], "feature-gates", Some("A=true,B=false"))]
    #[case::value_with_dash(&["--controllers", "-service"], "controllers", Some("-service"))]
    #[case::last_wins(&["--v=2", "-v", "4"], "v", Some("4"))]
    #[case::verbosity(&["-v=3"], "v", Some("3"))]
    // pitfalls-ccm.md S7
    #[case::verbosity_joined(&["-v5"], "v", Some("5"))]
    #[case::switch(&["--leader-elect"], "leader-elect", Some("true"))]
    #[case::switch_off(&["--leader-elect=false"], "leader-elect", Some("false"))]
    #[case::empty(&["--cloud-config="], "cloud-config", Some(""))]
    #[case::absent(&[], "cloud-config", None)]
    fn every_form_is_read(#[case] args: &[&str], #[case] name: &str, #[case] expected: Option<&str>) {
        let (given, faults) = read(&words(args));
        assert_eq!((given.last(name), faults), (expected, vec![]));
    }

    #[test]
    fn every_fault_is_told() {
        let args = ["--nope", "--leader-elect=maybe", "stray", "--cluster-name"];
        let (given, faults) = read(&words(&args));
        assert_eq!(given, Given::default());
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert_eq!(faults[0], "unknown flag: --nope");
        assert_eq!(faults[3], "flag needs an argument: --cluster-name");
    }

    #[test]
    fn a_list_is_repeated_or_has_commas() {
        let (given, _) = read(&words(&["--node-exclude-ip-ranges=a, b,", "--node-exclude-ip-ranges", "c"]));
        assert_eq!(given.list("node-exclude-ip-ranges"), Some(vec!["a", "b", "c"]));
    }
}
