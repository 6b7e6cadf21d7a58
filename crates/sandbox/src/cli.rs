//! `sandbox` on the command line.

use std::{ffi::OsString, process::ExitCode};

use clap::Parser;
use controller_kit::Life;
use tracing_subscriber::EnvFilter;

use crate::{announce::Announcer, faults, given::Given, measure, options::Options, stage::Stage, tour};

/// Wrong options, wrong manifests: the caller's to mend.
const USAGE: u8 = 2;

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
    let options = match Cli::try_parse_from(args) {
        Ok(cli) => cli.options,
        Err(error) => {
            let asked = !error.use_stderr();
            if error.print().is_err() {
                return ExitCode::FAILURE;
            }
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    let announcer = Announcer;
    if options.help_faults {
        announcer.note(&faults::help());
        return ExitCode::SUCCESS;
    }
    let given = match Given::read(&options) {
        Ok(given) => given,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::from(USAGE);
        }
    };
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,kube_client=off,sim_harvester=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("the sandbox cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&options, &given, &announcer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: {error:#}");
            if error.is::<crate::WrongInput>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(options: &Options, given: &Given, announcer: &Announcer) -> anyhow::Result<()> {
    let life = Life::new();
    life.stop_on_signals()?;
    let mut stage = match life.stop.run_until_cancelled(Box::pin(Stage::set(options, given, announcer))).await
    {
        Some(stage) => stage?,
        None => return Ok(()),
    };
    let outcome = if options.check {
        let walk = tour::walk(&mut stage, announcer);
        life.stop.run_until_cancelled(walk).await.unwrap_or_else(|| Err(anyhow::anyhow!("interrupted")))
    } else if options.measure {
        life.stop.run_until_cancelled(measure::all(&mut stage, announcer)).await.unwrap_or(Ok(()))
    } else {
        stage.say_what_to_type(announcer);
        tokio::select! {
            () = life.stop.cancelled() => Ok(()),
            ended = stage.watch_parts(announcer) => ended,
        }
    };
    stage.strike().await;
    outcome
}
