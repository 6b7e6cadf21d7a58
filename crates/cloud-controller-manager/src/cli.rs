//! The process: flags in, exit code out. It goes by `harvester-cloud-provider` and takes the flags of the Go program.
//!
//! Exit codes: 0 stopped by a signal; 1 a flag, the local cluster or the Lease; 255 the cloud-config or another
//! provider. Each but 0 with a banner that names the cause, because charts show people the last lines of a log.

mod arguments;
mod duration;
mod flags;
mod logging;
mod options;
mod serving;

use std::{ffi::OsString, process::ExitCode, sync::Arc};

use cloud_config::{CloudConfig, Connection, Local};
use program::{Clock, TaskGroup, pod::Identity};

use self::options::Options;
use crate::{Parts, Settings, balancers::Rules, machines::AddressRules, run, run::ElectionSettings};

/// Name in usage texts, User-Agent and managedFields.
pub const PROGRAM: &str = "harvester-cloud-provider";
const EXIT_CLOUD_CONFIG: u8 = 255;

/// Why the program did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
enum Fatal {
    /// One line for each fault.
    #[error("{}", .0.join("; "))]
    Flags(Vec<String>),
    #[error("unknown cloud provider {0:?}: harvester is the only one")]
    Provider(String),
    #[error("{0}")]
    CloudConfig(cloud_config::Error),
    #[error("{0}")]
    Local(cloud_config::Error),
    #[error("{0}")]
    Serving(String),
    #[error("{0}")]
    Election(#[from] controller_kit::election::Error),
    #[error("{0}")]
    System(std::io::Error),
}

/// Runs the program; `args` begins with its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    logging::start(&args);
    let (given, mut faults) = arguments::read(&args);
    if faults.is_empty() && given.has("help") {
        show(&flags::usage());
        return ExitCode::SUCCESS;
    }
    if faults.is_empty() && given.has("version") {
        show(&format!("{PROGRAM} {}\n", env!("CARGO_PKG_VERSION")));
        return ExitCode::SUCCESS;
    }
    let options = Options::from(&given).map_err(|more| faults.extend(more));
    let outcome = match options {
        Ok(options) if faults.is_empty() => live(options),
        _ => Err(Fatal::Flags(faults)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            banner(&fatal, &args);
            match fatal {
                Fatal::CloudConfig(_) | Fatal::Provider(_) => ExitCode::from(EXIT_CLOUD_CONFIG),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn live(options: Options) -> Result<(), Fatal> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // somebody may have been quicker: there is one provider in this program, so it is the same
        drop(rustls::crypto::ring::default_provider().install_default());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Fatal::System)?;
    runtime.block_on(serve(options))
}

async fn serve(options: Options) -> Result<(), Fatal> {
    options.log();
    if options.provider != options::PROVIDER {
        return Err(Fatal::Provider(options.provider));
    }
    let file = cloud_config::find(options.cloud_config.as_deref()).map_err(Fatal::CloudConfig)?;
    let config = CloudConfig::read(&file).map_err(Fatal::CloudConfig)?;
    let connection = Connection::open(&config, &options.requests).map_err(Fatal::CloudConfig)?;
    let from = Local { kubeconfig: options.kubeconfig.clone(), master: options.master.clone() };
    let guest = cloud_config::local(&from, &options.requests).map_err(Fatal::Local)?;
    tracing::info!(file = config.file, server = config.server(), namespace = config.namespace, "Harvester");

    let tasks = TaskGroup::new();
    tasks.stop_on_signals().map_err(Fatal::System)?;
    let parts = Parts::new(guest, connection.client(), Clock::system());
    serving::start(&tasks, &options.serving, parts.health.clone(), Arc::clone(&parts.metrics))
        .await
        .map_err(Fatal::Serving)?;
    let namespace = connection.namespace().to_owned();
    tasks.spawn(connection.follow(file, tasks.stop.clone()));

    let outcome = run(parts, settings(options, namespace), &tasks).await;
    tasks.end().await;
    Ok(outcome?)
}

fn settings(options: Options, namespace: String) -> Settings {
    Settings {
        addresses: AddressRules {
            management_network: options.management_network.clone(),
            prefixes: options.node_prefixes,
        },
        rules: Rules {
            cluster: options.cluster,
            namespace,
            management_network: options.management_network,
            policy: options.policy,
            allowed: options.allowed,
        },
        election: options.election.map(|times| ElectionSettings {
            identity: Identity::of_process(options.pod_token_file.as_deref()),
            ..times
        }),
        services: options.services,
        nodes: options.nodes,
        host_names: options.host_names,
        service_workers: options.service_workers,
        node_workers: options.node_workers,
    }
}

#[expect(clippy::print_stdout, reason = "help and version are what was asked for")]
fn show(text: &str) {
    print!("{text}");
}

/// The last lines of a log are what people see first.
fn banner(fatal: &Fatal, args: &[String]) {
    let line = "=".repeat(80);
    let full_help = args
        .iter()
        .any(|arg| matches!(arg.as_str(), "--show-full-help-on-error" | "--show-full-help-on-error=true"));
    if full_help {
        tracing::error!("{}", flags::usage());
    }
    tracing::error!("{line}");
    tracing::error!(
        "FATAL: cloudprovider.harvesterhci.io: the cloud provider failed to start or had to stop"
    );
    match fatal {
        Fatal::Flags(faults) => {
            for fault in faults {
                tracing::error!("error: {fault}");
            }
            tracing::error!("cause: a flag of the command line is unknown or has a wrong value");
            tracing::error!("check the value extraArgs of the chart harvester-cloud-provider");
            tracing::error!("flags have the form --name=value");
            if !full_help {
                tracing::info!("all flags are listed with --show-full-help-on-error=true");
            }
        }
        other => tracing::error!("error: {other}"),
    }
    tracing::error!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_flags_end_the_program_with_one() {
        let code = |args: &[&str]| format!("{:?}", main(args.iter().map(OsString::from)));
        assert_eq!(code(&["name", "--no-such-flag"]), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(code(&["name", "--help"]), format!("{:?}", ExitCode::SUCCESS));
    }

    // contract 5.2: an unreadable cloud-config is fatal with 255
    #[test]
    fn a_missing_cloud_config_and_another_provider_end_the_program_with_255() {
        for wrong in ["--cloud-config=/nowhere/cloud-config", "--cloud-provider=aws"] {
            let code = main(["name", wrong].iter().map(OsString::from));
            assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(255)));
        }
    }
}
