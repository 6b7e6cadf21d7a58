//! The process. With rancher-machine's token in its environment it is a plugin and ignores its arguments, which are
//! rancher-machine's own. Without the token it has two commands for people.

mod command_line;

use std::{ffi::OsString, io, io::Write as _, process::ExitCode, sync::Arc};

use crate::{
    access,
    driver::{Dependencies, Driver},
    flags, kubeconfig,
    output::Output,
    plugin::{self, Shutdown},
    ssh_key,
};
use command_line::Command;

/// rancher-machine sets it for a plugin.
const TOKEN: &str = "MACHINE_PLUGIN_TOKEN";
const TOKEN_VALUE: &str = "42";

const ABOUT: &str = "\
This is the Harvester driver of rancher-machine (plugin API version 1). rancher-machine starts it by itself; it is not
meant to be run directly, except for support:

  check   asks Harvester everything that is asked before a machine is made, and makes nothing
  render  prints the objects that a machine would be made of, and asks Harvester nothing

Usage: docker-machine-driver-harvester check|render [FLAGS] <machine name>

Every flag can be given by its environment variable too (HARVESTER_CPU_COUNT for --harvester-cpu-count):
";

/// Runs the process; `args` begins with the program's name. Exit code 0 after Close, 1 after a failure or without a client,
/// 2 for wrong arguments.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if std::env::var_os(TOKEN).is_some_and(|token| token == TOKEN_VALUE) {
        return plugin(&args);
    }
    match command_line::parse(&args, |variable| std::env::var(variable).ok()) {
        Ok(Command::Check { machine, options }) => run(async move {
            let driver = Driver::new(dependencies(Output::to_stdout(), None));
            driver.name_machine(&machine);
            driver.set_config_from_flags(&options).map_err(|error| error.to_string())?;
            driver.pre_create_check().await.map_err(|error| error.to_string())?;
            Ok(format!("machine {machine} can be made\n"))
        }),
        Ok(Command::Render { machine, options }) => {
            run(async move { crate::render::render(&machine, &options).map_err(|faults| faults.join("\n")) })
        }
        Ok(Command::Explain) => {
            // a closed terminal is no reason to fail in another way
            drop(explain());
            ExitCode::FAILURE
        }
        Err(fault) => {
            complain(&fault);
            ExitCode::from(2)
        }
    }
}

/// Writes to standard error and ignores errors.
fn complain(text: &str) {
    // a parent that is gone is no reason to panic
    writeln!(io::stderr(), "{text}").ok();
}

fn explain() -> io::Result<()> {
    let mut err = io::stderr().lock();
    write!(err, "{ABOUT}")?;
    for flag in &flags::ALL {
        writeln!(err, "  --{:36} {}", flag.name, flag.usage)?;
    }
    Ok(())
}

fn dependencies(output: Output, kubeconfig: Option<String>) -> Dependencies {
    Dependencies {
        connect: access::connect(),
        make_key: ssh_key::generate,
        output,
        now: time_of_day,
        seed: fastrand::u64(..),
        kubeconfig,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "here the time enters; the controllers' clock would bring their kit along"
)]
fn time_of_day() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Prints the address before it starts anything else: rancher-machine waits for it.
fn plugin(args: &[OsString]) -> ExitCode {
    let listener = match plugin::listen(&mut io::stdout().lock()) {
        Ok(listener) => listener,
        Err(error) => {
            complain(&format!("listen on 127.0.0.1 and say where: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let variable = std::env::var("HARVESTER_KUBECONFIG_CONTENT").ok();
    let given = kubeconfig::given(args, variable.as_deref());
    in_runtime(async move {
        let driver = Arc::new(Driver::new(dependencies(Output::to_stdout(), given)));
        match plugin::serve(listener, driver).await {
            Ok(Shutdown::Closed) => ExitCode::SUCCESS,
            Ok(Shutdown::ClientGone) => ExitCode::FAILURE,
            Err(error) => {
                complain(&format!("serve rancher-machine: {error}"));
                ExitCode::FAILURE
            }
        }
    })
}

fn run(command: impl Future<Output = Result<String, String>>) -> ExitCode {
    in_runtime(async move {
        match command.await {
            Ok(text) => match io::stdout().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            },
            Err(text) => {
                complain(&text);
                ExitCode::FAILURE
            }
        }
    })
}

/// Runs on one thread, for a small process.
fn in_runtime(work: impl Future<Output = ExitCode>) -> ExitCode {
    // a second one in this process would be a mistake in a test, and do no harm
    rustls::crypto::ring::default_provider().install_default().ok();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(work);
    // a key in the making is not waited for
    runtime.shutdown_background();
    code
}
