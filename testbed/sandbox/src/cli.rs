//! `sandbox` on the command line.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, error::ErrorKind};
use program::{
    TaskGroup,
    logging::{given_levels, levels},
};
use tracing_subscriber::{fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::{
    environment::Environment, faults, measure, options::Options, output::Output, tour,
    user_manifests::UserManifests,
};

/// Wrong options, wrong manifests: the caller's to mend.
const USAGE: u8 = 2;
/// The tour stops one VM and looks for the traffic on another.
const TOUR_NODES: u8 = 2;
/// The log filter unless RUST_LOG names another. In this process only the simulation uses `controller_kit`: a request
/// that is refused and tried again is its own affair.
const LOGGED: &str = "warn,kube_client=off,sim_harvester=error,controller_kit=error";

#[derive(Parser)]
#[command(
    name = "sandbox",
    bin_name = "harvester-cloud-provider sandbox",
    about = "Two clusters on this machine, and the real controllers between them"
)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// Runs the sandbox with `args` (the program's name first) and answers its exit code: 0, 1 when it could not start or
/// its tour failed, 2 when the arguments are wrong.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let options = match read(args) {
        Ok(options) => options,
        Err(error) => {
            let asked = !error.use_stderr();
            if error.print().is_err() {
                return ExitCode::FAILURE;
            }
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    let output = Output;
    if options.help_faults {
        output.note(&faults::help());
        return ExitCode::SUCCESS;
    }
    let manifests = match UserManifests::read(&options) {
        Ok(manifests) => manifests,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::from(USAGE);
        }
    };
    let levels = given_levels().or_else(|| levels(LOGGED)).unwrap_or_default();
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry().with(levels).with(lines).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("the sandbox cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&options, &manifests, &output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: {error:#}");
            if error.is::<crate::WrongInput>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// The options, if they go together.
fn read(args: Vec<OsString>) -> Result<Options, clap::Error> {
    let options = Cli::try_parse_from(args)?.options;
    if options.check && options.guest_nodes < TOUR_NODES {
        let what = format!("--check needs --guest-nodes {TOUR_NODES} at least: it stops one of them");
        return Err(Cli::command().error(ErrorKind::ValueValidation, what));
    }
    Ok(options)
}

async fn run(options: &Options, manifests: &UserManifests, output: &Output) -> anyhow::Result<()> {
    let tasks = TaskGroup::new();
    tasks.stop_on_signals()?;
    let mut environment =
        match tasks.stop.run_until_cancelled(Box::pin(Environment::set(options, manifests, output))).await {
            Some(environment) => environment?,
            None => return Ok(()),
        };
    let outcome = if options.check {
        let walk = tour::walk(&mut environment, output);
        tasks.stop.run_until_cancelled(walk).await.unwrap_or_else(|| Err(anyhow::anyhow!("interrupted")))
    } else if options.measure {
        let figures = measure::figures(options.only, &mut environment, output);
        tasks.stop.run_until_cancelled(Box::pin(figures)).await.unwrap_or(Ok(()))
    } else {
        environment.say_what_to_type(output);
        tokio::select! {
            () = tasks.stop.cancelled() => Ok(()),
            ended = environment.watch_parts(output) => ended,
        }
    };
    environment.strike().await;
    outcome
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", None)]
    #[case::a_tour("--check --server real --rights existing --dir d --guest-nodes 2", None)]
    #[case::clusters_alone("--no-controllers --guest-nodes 1", None)]
    #[case::a_tour_without_controllers(
        "--check --no-controllers",
        Some("the argument '--check' cannot be used with '--no-controllers'")
    )]
    #[case::a_tour_without_the_example(
        "--no-example --check",
        Some("the argument '--no-example' cannot be used with '--check'")
    )]
    #[case::a_tour_of_something_else(
        "--check --guest-manifest f",
        Some("the argument '--check' cannot be used with '--guest-manifest <FILE>'")
    )]
    #[case::a_tour_on_other_pools(
        "--check --harvester-manifest f",
        Some("the argument '--check' cannot be used with '--harvester-manifest <FILE>'")
    )]
    #[case::a_tour_of_one_machine(
        "--check --guest-nodes 1",
        Some("--check needs --guest-nodes 2 at least: it stops one of them")
    )]
    #[case::two_things_at_once(
        "--measure --check",
        Some("the argument '--measure' cannot be used with '--check'")
    )]
    #[case::nothing_to_measure(
        "--measure --no-controllers",
        Some("the argument '--measure' cannot be used with '--no-controllers'")
    )]
    fn options_that_do_not_go_together_are_refused_at_once(
        #[case] line: &str,
        #[case] expected: Option<&str>,
    ) {
        let args = ["sandbox"].into_iter().chain(line.split_whitespace());
        let refusal = read(args.map(OsString::from).collect()).err();
        let said = refusal.as_ref().map(ToString::to_string).unwrap_or_default();
        assert_eq!(said.lines().next().and_then(|line| line.strip_prefix("error: ")), expected);
        assert!(refusal.is_none_or(|refusal| refusal.use_stderr()));
    }
}
