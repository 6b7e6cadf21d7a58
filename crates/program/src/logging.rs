//! Log lines on stderr, at the levels of the Go programs: logrus' words, or klog's numbers.

use std::{io::IsTerminal, process::ExitCode};

use tracing_subscriber::{
    Layer as _, filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::flags::Table;

/// How a program logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    filter: String,
    json: bool,
    /// Modules are named, colours are not used, and `RUST_LOG` counts.
    plain: bool,
}

/// Libraries that repeat what we log with the object that it is about.
const QUIET: &str = "kube_runtime=off,kube_client=off";

impl Logging {
    /// At a level of logrus; an unknown one means debug. Libraries are not for `debug`.
    pub fn logrus(level: &str) -> Self {
        let level = match level.to_ascii_lowercase().as_str() {
            "panic" | "fatal" | "error" => "error",
            "warn" | "warning" => "warn",
            "info" => "info",
            "trace" => "trace",
            _ => "debug",
        };
        let filter = match level {
            "debug" | "trace" => {
                format!("{level},hyper=info,hyper_util=info,h2=info,tower=info,rustls=info,kube=info,{QUIET}")
            }
            _ => format!("{level},{QUIET}"),
        };
        Self { filter, json: false, plain: false }
    }

    /// At the verbosity of klog's flag `v`, for these crates; others only warn. The flags `v` and `logging-format` of
    /// `table` count also beside wrong flags, whose faults are logged too.
    pub fn klog(table: &Table, args: &[String], crates: &[&str]) -> Self {
        let read = |name: &str| {
            let alone = |window: &[String]| table.parse(window).0.last(name).map(str::to_owned);
            args.iter()
                .enumerate()
                .rev()
                .find_map(|(at, _)| alone(&args[at..=at]).or_else(|| args.get(at..at + 2).and_then(alone)))
        };
        let level = match read("v").and_then(|text| text.parse::<u32>().ok()).unwrap_or(0) {
            0..=2 => "info",
            3..=4 => "debug",
            _ => "trace",
        };
        let ours: Vec<_> = crates.iter().map(|name| format!("{name}={level}")).collect();
        let filter = format!("warn,{QUIET},{}", ours.join(","));
        Self { filter, json: read("logging-format").as_deref() == Some("json"), plain: true }
    }

    /// Starts logging. A second call in one process changes nothing.
    pub fn start(&self) {
        let lines = fmt::layer()
            .with_target(self.plain)
            .with_ansi(!self.plain && std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        let lines = if self.json { lines.json().boxed() } else { lines.boxed() };
        let given = if self.plain { given_levels() } else { None };
        let levels = given.or_else(|| levels(&self.filter)).unwrap_or_default();
        let started = tracing_subscriber::registry().with(levels).with(lines).try_init();
        if let Err(error) = started {
            tracing::debug!("logging was started before: {error}");
        }
    }
}

/// The levels of modules: `warn,kube=info`. `None` where the text is none, or empty.
pub fn levels(text: &str) -> Option<Targets> {
    (!text.is_empty()).then(|| text.parse().ok()).flatten()
}

/// The levels that the variable `RUST_LOG` gives.
pub fn given_levels() -> Option<Targets> {
    levels(&std::env::var("RUST_LOG").ok()?)
}

/// Logs what is wrong with flags or environment. Returns the exit code for that.
pub fn refuse(faults: &[String]) -> ExitCode {
    Logging::logrus("").start();
    faults.iter().for_each(|fault| tracing::error!("{fault}"));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::flags::Flag;

    #[rstest]
    #[case("panic", "error")]
    #[case("WARN", "warn")]
    #[case("info", "info")]
    fn levels_are_logruss(#[case] level: &str, #[case] expected: &str) {
        assert_eq!(Logging::logrus(level).filter, format!("{expected},{QUIET}"));
    }

    #[test]
    fn a_level_counts_for_modules_by_their_beginning_and_what_is_none_counts_for_nothing() {
        let levels = |text| levels(text).map(|levels| levels.to_string());
        assert!(
            levels("warn,kube=info").is_some_and(|all| all.contains("kube=info") && all.contains("warn"))
        );
        assert_eq!((levels(""), levels("loud=9")), (None, None));
        assert!(levels(&Logging::logrus("debug").filter).is_some());
    }

    #[test]
    fn an_unknown_level_means_debug() {
        assert!(Logging::logrus("loud").filter.starts_with("debug,"));
        assert!(Logging::logrus("trace").filter.starts_with("trace,"));
    }

    const TABLE: Table = Table {
        program: "part",
        about: "",
        flags: &[Flag::value("v", "LEVEL", "level"), Flag::value("logging-format", "FORMAT", "form")],
    };

    #[rstest]
    #[case(&[], ("info", false))]
    #[case(&["-v=3"], ("debug", false))]
    #[case(&["--v", "5", "--nope"], ("trace", false))]
    #[case(&["--nope", "-v4", "--logging-format=json"], ("debug", true))]
    #[case(&["--v=x"], ("info", false))]
    fn verbosity_counts_also_beside_wrong_flags(#[case] args: &[&str], #[case] expected: (&str, bool)) {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let logging = Logging::klog(&TABLE, &args, &["part"]);
        let (level, json) = expected;
        assert_eq!(logging, Logging { filter: format!("warn,{QUIET},part={level}"), json, plain: true });
    }
}
