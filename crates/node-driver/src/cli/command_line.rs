//! The command line for people: the same flags that rancher-machine takes.

use std::ffi::OsString;

use crate::{
    flags::{self, FlagType},
    options::{FlagValue, Options},
};

/// What the program shall do.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Explain,
    Check { machine: String, options: Options },
    Render { machine: String, options: Options },
}

/// Reads arguments, and variables for flags that are not among them.
///
/// # Errors
/// A sentence about the first argument that cannot be.
pub(super) fn parse(args: &[OsString], variable: impl Fn(&str) -> Option<String>) -> Result<Command, String> {
    let mut args = args.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    let build: fn(String, Options) -> Command = match args.next().as_deref() {
        Some("check") => |machine, options| Command::Check { machine, options },
        Some("render") => |machine, options| Command::Render { machine, options },
        Some("help" | "--help" | "-h") | None => return Ok(Command::Explain),
        Some(other) => {
            return Err(format!(
                "{other} is neither check nor render; without arguments this program explains itself"
            ));
        }
    };
    let mut options = Options::defaults();
    for name in ["swarm-host", "swarm-discovery"] {
        options.set(name, FlagValue::Text(String::new()));
    }
    options.set("swarm-master", FlagValue::Switch(false));
    for flag in &flags::ALL {
        if let Some(text) = variable(&flag.variable()).filter(|text| !text.is_empty()) {
            options.set(flag.name, given(flag.flag_type, Some(text), flag.name)?);
        }
    }
    let mut machine = None;
    while let Some(arg) = args.next() {
        let Some(option) = arg.strip_prefix("--") else {
            if let Some(first) = machine.replace(arg) {
                return Err(format!("one machine at a time: {first} is one already"));
            }
            continue;
        };
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value.to_owned())));
        let known = flags::ALL.iter().find(|flag| flag.name == name);
        let flag = known.ok_or_else(|| format!("there is no flag --{name}"))?;
        let value = match (flag.flag_type, value) {
            (FlagType::Switch, value) => value,
            (_, None) => Some(args.next().ok_or_else(|| format!("--{name} needs a value"))?),
            (_, value) => value,
        };
        options.set(flag.name, given(flag.flag_type, value, flag.name)?);
    }
    let machine = machine.ok_or("which machine? Its name comes last, for example demo-pool1-x7k2m-9d4tq")?;
    Ok(build(machine, options))
}

fn given(flag_type: FlagType, text: Option<String>, name: &str) -> Result<FlagValue, String> {
    match (flag_type, text) {
        (FlagType::Switch, text) => match text.as_deref() {
            None | Some("true" | "1") => Ok(FlagValue::Switch(true)),
            Some("false" | "0") => Ok(FlagValue::Switch(false)),
            Some(other) => Err(format!("--{name}: {other} is neither true nor false")),
        },
        (FlagType::Number(_), Some(text)) => {
            text.parse().map(FlagValue::Number).map_err(|_| format!("--{name}: {text} is no number"))
        }
        (_, text) => Ok(FlagValue::Text(text.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(args: &str, variables: &[(&str, &str)]) -> Result<Command, String> {
        let args: Vec<OsString> = args.split(' ').map(OsString::from).collect();
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        parse(&args, find)
    }

    #[test]
    fn flags_come_from_arguments_then_variables_then_defaults() {
        let command = read(
            "driver render --harvester-cpu-count=8 --harvester-enable-efi --harvester-user-data a=b demo-1",
            &[
                ("HARVESTER_CPU_COUNT", "4"),
                ("HARVESTER_MEMORY_SIZE", "16"),
                ("HARVESTER_ENABLE_TPM", "true"),
            ],
        );
        let Ok(Command::Render { machine, options }) = command else { panic!("{command:?}") };
        assert_eq!(machine, "demo-1");
        for (name, expected) in [
            (flags::CPU_COUNT, FlagValue::Number(8)),
            (flags::MEMORY_SIZE, FlagValue::Number(16)),
            (flags::ENABLE_EFI, FlagValue::Switch(true)),
            (flags::ENABLE_TPM, FlagValue::Switch(true)),
            (flags::USER_DATA, FlagValue::Text("a=b".into())),
            (flags::SSH_PORT, FlagValue::Number(22)),
        ] {
            assert_eq!(options.get(name), Some(&expected), "{name}");
        }
    }

    #[rstest]
    #[case::other_word("driver create demo-1", "create is neither check nor render")]
    #[case::no_machine("driver check", "which machine?")]
    #[case::two_machines("driver check a b", "one machine at a time")]
    #[case::unknown_flag("driver check --harvester-cpu 3 a", "there is no flag --harvester-cpu")]
    #[case::no_number("driver check --harvester-cpu-count many a", "many is no number")]
    #[case::no_value("driver check a --harvester-cpu-count", "needs a value")]
    fn a_mistake_is_named(#[case] args: &str, #[case] part: &str) {
        let fault = read(args, &[]).unwrap_err();
        assert!(fault.contains(part), "{fault}");
    }

    #[test]
    fn without_arguments_it_explains_itself() {
        assert_eq!(parse(&["driver".into()], |_| None), Ok(Command::Explain));
    }
}
