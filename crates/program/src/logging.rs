//! Log lines on stderr, at the levels of the Go programs.

use std::{ffi::OsString, io::IsTerminal, process::ExitCode};

use tracing_subscriber::EnvFilter;

/// Says what is wrong with flags or environment, and the exit code for that.
pub fn wrong(fault: &str) -> ExitCode {
    log_at("");
    tracing::error!("{fault}");
    ExitCode::from(2)
}

/// The Go program takes `-loglevel` as well as `--loglevel`.
pub fn two_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => {
            format!("-{text}").into()
        }
        _ => arg,
    }
}

/// What they have to say we say too, with the object that it is about.
const QUIET: &str = "kube_runtime=off,kube_client=off";

/// Text of the Go program's levels to a filter; what it does not know means debug. Libraries are not for `debug`.
fn filter(level: &str) -> String {
    let level = match level.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "info" => "info",
        "trace" => "trace",
        _ => "debug",
    };
    match level {
        "debug" | "trace" => {
            format!("{level},hyper=info,hyper_util=info,h2=info,tower=info,rustls=info,kube=info,{QUIET}")
        }
        _ => format!("{level},{QUIET}"),
    }
}

pub fn log_at(level: &str) {
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter(level))).with_target(false);
    // in a test somebody else may log already
    drop(subscriber.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).try_init());
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("panic", "error")]
    #[case("WARN", "warn")]
    #[case("info", "info")]
    fn levels_are_logruss(#[case] level: &str, #[case] expected: &str) {
        assert_eq!(filter(level), format!("{expected},{QUIET}"));
    }

    #[test]
    fn an_unknown_level_means_debug() {
        assert!(filter("loud").starts_with("debug,"));
        assert!(filter("trace").starts_with("trace,"));
    }
}
