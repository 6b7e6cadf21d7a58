//! The process: flags in, exit code out. It goes by `harvester-cloud-provider` and takes the flags of the Go program.
//!
//! Exit codes: 0 stopped by a signal; 1 a flag, the local cluster or the Lease; 255 the cloud-config or another
//! provider. Each but 0 with a banner that names the cause, because charts show people the last lines of a log.

mod flags;
mod options;
mod topology_labels;

use std::{ffi::OsString, net::SocketAddr, process::ExitCode, sync::Arc};

use cloud_config::{Connection, Local, Observer};
use credential_rotation::{
    Rotation, RotationMetrics,
    life::{self, Life},
};
use program::{
    Process,
    flags::{Reader, Table},
    http,
    logging::Logging,
    pod::{Identity, OwnPod},
    serving,
};

pub use self::flags::FLAGS;
use self::options::Options;
use crate::{
    AddressRules, Parts, Settings, answers::Answers, load_balancers::ServiceSettings, metrics::RestClient,
    notices::Notices, run, run::ElectionSettings,
};

/// Name in usage texts, User-Agent and managedFields.
pub const PROGRAM: &str = "harvester-cloud-provider";
/// Kind of the configuration that `/configz` shows, as in the Go program.
const CONFIG: &str = "cloudcontrollermanager.config.k8s.io";
const EXIT_CLOUD_CONFIG: u8 = 255;
/// Crates that log at the level of `-v`.
const OURS: [&str; 7] = [
    "cloud_config",
    "cloud_controller_manager",
    "cloud_provider",
    "controller_kit",
    "guest_vms",
    "harvester_cloud_provider",
    "program",
];

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

/// The settings that hold for every Service, from the flags of [`FLAGS`] that decide them: `--cluster-name`, `--data-path`,
/// `--allowed-data-paths`, `--management-network` and `--restrict-shared-address`. The namespace in Harvester is empty:
/// the cloud-config names it.
pub fn rules(reader: &mut Reader<'_>) -> ServiceSettings {
    options::rules(reader)
}

/// Runs the program; `args` begins with its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = program::words(args);
    Logging::klog(&FLAGS, &args, &OURS).start();
    let called = Table { program: PROGRAM, ..FLAGS };
    if let Some(text) = program::asked_for(&called, env!("CARGO_PKG_VERSION"), &args) {
        return program::show(&text);
    }
    let options = Options::from(FLAGS.read(&args, |name| std::env::var(name).ok()));
    let outcome = options.map_err(Fatal::Flags).and_then(|options| {
        program::run(|process| serve(options, process)).map_err(Fatal::System).and_then(|outcome| outcome)
    });
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

async fn serve(options: Options, process: Process) -> Result<(), Fatal> {
    options.log();
    if options.provider != options::PROVIDER {
        return Err(Fatal::Provider(options.provider));
    }
    let config = options.cloud_config.read().map_err(Fatal::CloudConfig)?;
    let Process { tasks, clock, health, metrics } = process;
    let (notices, requests) = (Notices::default(), RestClient::default());
    let observed = |of: &'static str, credential: String| {
        let (answers, requests) = (Answers::new(of, credential, clock, notices.clone()), requests.clone());
        let observer = Observer::new(move |answered| {
            requests.count(answered);
            answers.saw(answered);
        });
        cloud_config::Options { observer, ..options.requests.clone() }
    };
    let of_harvester = observed("Harvester", format!("cloud-config {}", config.file));
    let connection = Connection::open(&config, &of_harvester).map_err(Fatal::CloudConfig)?;
    let from = Local { kubeconfig: options.kubeconfig.clone(), master: options.master.clone() };
    let of_guest = observed("the guest cluster", "--kubeconfig, or the Pod's service account".to_owned());
    let guest = cloud_config::local(&from, &of_guest).map_err(Fatal::Local)?;
    tracing::info!(file = config.file, server = config.server(), namespace = config.namespace, "Harvester");

    let (life, rotations) = (Life::new(clock), RotationMetrics::default());
    {
        let mut registry = metrics.lock().expect("no panic while registering");
        requests.register(&mut registry);
        registry.register_collector(Box::new(life.clone()));
        if options.rotated_secret.is_some() {
            rotations.register(&mut registry);
        }
    }
    let at = &options.serving;
    if at.port != 0 {
        let router = http::router(health.clone(), Arc::clone(&metrics))
            .merge(http::configz(CONFIG, &options.config()));
        let router = serving::guarded(router, &at.open_paths);
        let address = SocketAddr::new(at.address, at.port);
        serving::https(&tasks, address, &at.certificate, router).await.map_err(Fatal::Serving)?;
    }
    if let Some(address) = at.plain_metrics {
        // the Pod is in the node's network, where somebody else may have the port: metrics are no reason to do nothing
        serving::http_once_free(&tasks, address, http::metrics(Arc::clone(&metrics)));
    }
    notices.write_to(&tasks, guest.clone(), clock, OwnPod::of_process(options.pod_token_file.as_deref()));
    let (asking, rotates, teller) =
        (options.requests.clone(), options.cloud_config.rotated.is_some(), notices.clone());
    let followed = connection.followed();
    tasks.spawn_until_stop(async move {
        life::follow(followed, asking, clock, life, rotates, |event| teller.tell(event)).await;
    });
    let rotation = options.rotated_secret.clone().map(|secret| {
        let (teller, asking) = (notices.clone(), options.requests.clone());
        let tell = Arc::new(move |event: &_| teller.tell(event));
        Rotation::new(connection.followed(), secret, asking, clock, rotations, tell)
    });
    let (followed, parts) = (Some(connection.followed()), Parts::new(guest, connection.client(), clock));
    let parts = Parts { health, metrics, notices, rotation, followed, ..parts };
    let namespace = connection.namespace().to_owned();
    tasks.spawn(connection.follow(options.cloud_config.clone(), tasks.stop.clone()));
    Ok(run(parts, settings(options, namespace), &tasks).await?)
}

fn settings(options: Options, namespace: String) -> Settings {
    Settings {
        addresses: AddressRules {
            management_network: options.management_network.clone(),
            prefixes: options.node_prefixes,
            excluded: options.node_excluded,
            ignore_annotations: options.ignores_annotations,
        },
        topology: options.topology,
        rules: ServiceSettings {
            cluster: options.cluster,
            namespace,
            management_network: options.management_network,
            policy: options.policy,
            allowed: options.allowed,
            restrict_sharing: options.restrict_sharing,
            aliases: options.aliases,
        },
        election: options.election.map(|times| ElectionSettings {
            identity: Identity::of_process(options.pod_token_file.as_deref()),
            ..times
        }),
        services: options.services,
        nodes: options.nodes,
        node_lifecycle: options.node_lifecycle,
        host_names: options.host_names,
        service_workers: options.service_workers,
        node_workers: options.node_workers,
    }
}

/// Whether all flags are to be listed. Other flags may be wrong.
fn is_full_help(args: &[String]) -> bool {
    let mut given = args.iter().map(String::as_str);
    given.any(|arg| matches!(arg, "--show-full-help-on-error" | "--show-full-help-on-error=true"))
}

/// The last lines of a log are what people see first.
fn banner(fatal: &Fatal, args: &[String]) {
    let line = "=".repeat(80);
    let full_help = is_full_help(args);
    if full_help {
        tracing::error!("{}", FLAGS.help());
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
    fn all_flags_are_listed_for_who_asks_for_them_alone() {
        let asked = |flag: &str| is_full_help(&["--no-such-flag".to_owned(), flag.to_owned()]);
        assert!(asked("--show-full-help-on-error") && asked("--show-full-help-on-error=true"));
        assert!(!asked("--show-full-help-on-error=false") && !asked("--v=4"));
    }

    #[test]
    fn wrong_flags_end_the_program_with_one() {
        let code = |args: &[&str]| format!("{:?}", main(args.iter().map(OsString::from)));
        assert_eq!(code(&["name", "--no-such-flag"]), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(code(&["name", "--help"]), format!("{:?}", ExitCode::SUCCESS));
    }

    // docs/contract/cloud-controller-manager.md#S5
    // docs/contract/cloud-controller-manager.md#5.2: an unreadable cloud-config is fatal with 255
    #[test]
    fn a_missing_cloud_config_and_another_provider_end_the_program_with_255() {
        for wrong in ["--cloud-config=/nowhere/cloud-config", "--cloud-provider=aws"] {
            let code = main(["name", wrong].iter().map(OsString::from));
            assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(255)));
        }
    }
}
