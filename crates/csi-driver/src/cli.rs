//! The process `harvester-csi-driver`: flags and environment of the Go program, and ours.
//!
//! It ends with 0 after SIGTERM, with 1 where the guest cluster's own configuration is of no use or nobody can call it, and
//! with 2 for wrong flags; never for anything about the host (docs/contract/csi-driver.md#exits). A driver without the guest
//! cluster is of no use for long (the attacher's objects and the node ID are there), and kubelet starts it again: mounts
//! stay meanwhile.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use cloud_config::{Local, Options};
use credential_rotation::SecretName;
use program::{
    Process,
    flags::{Flag, Reader, Table, listen_address},
    http,
    logging::Logging,
    pod::Identity,
    serving,
};

use crate::{
    endpoint::Endpoint,
    node_id::INTERFACES,
    run,
    run::{Parts, Settings},
};

/// Name in usage texts, User-Agent and managedFields.
pub const PROGRAM: &str = "harvester-csi-driver";

/// The flags of the Go program, and ours.
pub const FLAGS: Table = Table {
    program: PROGRAM,
    about: "Gives Pods volumes of the Harvester cluster: the CSI services of a node, on one socket.",
    flags: &[
        Flag::value("endpoint", "ENDPOINT", "where calls are taken: unix://PATH or tcp://ADDRESS")
            .default("unix:///csi/csi.sock"),
        Flag::value("nodeid", "NAME", "name of the Node that this runs on"),
        Flag::value(
            "kubeconfig",
            "PATH",
            "kubeconfig for Harvester: a file, or a directory that holds it; else /etc/kubernetes/cloud-config",
        ),
        Flag::value(
            "rotated-cloud-config",
            "DIRECTORY",
            "where the Secret of --rotated-credential-secret is mounted: its newer token counts, while it is of this kubeconfig",
        ),
        Flag::value(
            "rotated-credential-secret",
            "NAMESPACE/NAME",
            "renew a token that was made by cloud-config generate --rotate in this Secret of the guest cluster",
        ),
        Flag::value(
            "host-storage-class",
            "NAME",
            "Harvester's StorageClass for volumes whose class names none",
        )
        .env(&["HOST_STORAGE_CLASS"]),
        Flag::switch("debug", "log more").env(&["DEBUG"]),
        Flag::value(
            "http-endpoint",
            "ADDRESS",
            "serve health and metrics over plain HTTP here, e.g. :9402 or 127.0.0.1:9402; off by default",
        )
        .env(&["HTTP_ENDPOINT"]),
        Flag::value(
            "guest-kubeconfig",
            "FILE",
            "kubeconfig for the guest cluster; else the variable KUBECONFIG, else the pod's service account",
        ),
        Flag::value("device-directory", "PATH", "the links to disks by their identifiers")
            .default("/dev/disk/by-id"),
        Flag::value("kubelet-root", "PATH", "kubelet's folder, in which volumes are mounted")
            .default("/var/lib/kubelet"),
        Flag::value(
            "max-volumes-per-node",
            "NUMBER",
            "how many volumes the scheduler gives this node at most, and how many ControllerPublishVolume lets a machine \
             have; without it as many as have room: KubeVirt's 256 less the machine's own",
        ),
        Flag::switch(
            "topology",
            "tell the scheduler region and zone of Nodes, and of volumes whose class is for a part of them; for good",
        ),
        Flag::value("interfaces", "PATH", "network interfaces of this machine").default(INTERFACES).hidden(),
    ],
};

/// The most volumes, and the most disks, that KubeVirt takes in one machine (docs/contract/csi-driver.md#limits).
const MOST_VOLUMES: u16 = 256;

/// The checked values.
struct Flags {
    settings: Settings,
    guest_kubeconfig: Option<PathBuf>,
    http_endpoint: Option<SocketAddr>,
}

/// Runs the process; `args` begins with the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // the Go program's short form
    let args = args.into_iter().map(|arg| if arg == "-v" { "--version".into() } else { arg });
    let check = |mut reader: Reader<'_>| {
        let flags = read(&mut reader);
        let level = if reader.is_on("debug") { "debug" } else { "info" };
        reader.finish((Logging::logrus(level), flags))
    };
    program::main(&FLAGS, env!("CARGO_PKG_VERSION"), args, check, serve)
}

fn read(reader: &mut Reader<'_>) -> Flags {
    let path = |reader: &Reader<'_>, name: &str| reader.text(name).map(PathBuf::from);
    let settings = Settings {
        endpoint: reader.read("endpoint", Endpoint::Unix(PathBuf::new()), str::parse),
        node: reader.text("nodeid").unwrap_or_default(),
        holder: Identity::of_process(None).text(false).to_owned(),
        kubeconfig: path(reader, "kubeconfig"),
        rotated: path(reader, "rotated-cloud-config"),
        rotated_secret: reader.optional("rotated-credential-secret", SecretName::read),
        user_agent: user_agent(),
        host_storage_class: reader.text("host-storage-class"),
        device_directory: path(reader, "device-directory").unwrap_or_default(),
        kubelet_root: path(reader, "kubelet-root").unwrap_or_default(),
        max_volumes_per_node: reader.optional("max-volumes-per-node", volumes),
        topology: reader.is_on("topology"),
        interfaces: path(reader, "interfaces").unwrap_or_default(),
    };
    Flags {
        settings,
        guest_kubeconfig: path(reader, "guest-kubeconfig"),
        http_endpoint: reader.optional("http-endpoint", listen_address),
    }
}

fn volumes(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_VOLUMES).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number from 1 to {MOST_VOLUMES}"))
}

fn user_agent() -> String {
    format!("{PROGRAM}/{}", env!("CARGO_PKG_VERSION"))
}

async fn serve(flags: Flags, process: Process) -> anyhow::Result<()> {
    let Flags { settings, guest_kubeconfig, http_endpoint } = flags;
    tracing::info!("{PROGRAM} {} {settings:?}", env!("CARGO_PKG_VERSION"));
    let Process { tasks, clock, health, metrics } = process;
    let local = Local { kubeconfig: guest_kubeconfig, master: None };
    let guest = cloud_config::local(&local, &Options::named(&user_agent()))
        .map_err(|error| anyhow::Error::msg(error.to_string().replace("--kubeconfig", "--guest-kubeconfig")))
        .context("the guest cluster")?;
    if let Some(address) = http_endpoint {
        let router = http::router(health.clone(), metrics.clone());
        serving::http(&tasks, address, router).map_err(anyhow::Error::msg)?;
    }
    Ok(run::run(Parts { guest, clock, health, metrics }, settings, &tasks).await?)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn flags(args: &[&str], environment: &[(&str, &str)]) -> Result<Flags, Vec<String>> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut reader = FLAGS.read(&args, |name| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        });
        let flags = read(&mut reader);
        reader.finish(flags)
    }

    // docs/contract/csi-driver.md#flags
    #[test]
    fn without_flags_the_defaults_of_the_go_program_hold() {
        let Flags { settings, guest_kubeconfig, http_endpoint } = flags(&[], &[]).unwrap();
        assert_eq!(settings.endpoint, Endpoint::Unix("/csi/csi.sock".into()));
        assert_eq!(
            (settings.kubeconfig, settings.host_storage_class, settings.node, settings.topology),
            (None, None, String::new(), false)
        );
        assert_eq!((guest_kubeconfig, http_endpoint), (None, None));
    }

    // docs/contract/csi-driver.md#flags
    #[test]
    fn the_arguments_of_the_charts_daemon_set_are_taken() {
        let chart = [
            "--nodeid=node-a",
            "--endpoint=unix:///csi/csi.sock",
            "--kubeconfig=/var/lib/harvester/cloud-provider-config",
            "--host-storage-class=fast",
        ];
        let settings = flags(&chart, &[("HOST_STORAGE_CLASS", "slow"), ("DEBUG", "true")]).unwrap().settings;
        assert_eq!(
            (settings.node.as_str(), settings.host_storage_class.as_deref()),
            ("node-a", Some("fast"))
        );
        assert_eq!(settings.kubeconfig, Some("/var/lib/harvester/cloud-provider-config".into()));
        let settings = flags(&[], &[("HOST_STORAGE_CLASS", "slow")]).unwrap().settings;
        assert_eq!(settings.host_storage_class.as_deref(), Some("slow"));
    }

    #[test]
    fn the_variable_alone_has_health_and_metrics_served() {
        let environment = [("HTTP_ENDPOINT", "127.0.0.1:9402")];
        let endpoint = |args: &[&str]| flags(args, &environment).unwrap().http_endpoint.unwrap().to_string();
        assert_eq!(endpoint(&[]), "127.0.0.1:9402");
        assert_eq!(endpoint(&["--http-endpoint=:9433"]), "[::]:9433");
        assert_eq!(flags(&["--http-endpoint="], &environment).unwrap().http_endpoint, None);
    }

    #[rstest]
    #[case::endpoint(&["--endpoint=/csi/csi.sock"], "unix://PATH")]
    #[case::drivername(&["--drivername=x"], "unknown flag")]
    #[case::http(&["--http-endpoint=9402"], ":9402")]
    #[case::no_volumes(&["--max-volumes-per-node=0"], "from 1 to 256")]
    #[case::too_many(&["--max-volumes-per-node=257"], "from 1 to 256")]
    fn a_wrong_value_is_refused_with_its_flag(#[case] args: &[&str], #[case] part: &str) {
        let faults = flags(args, &[]).err().unwrap();
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }

    // docs/contract/csi-driver.md#exits
    #[test]
    fn a_guest_cluster_that_is_not_configured_ends_it_with_another_code_than_zero() {
        let code = |args: &[&str]| format!("{:?}", main(args.iter().map(OsString::from)));
        let endpoint = "--endpoint=unix:///nowhere/csi.sock";
        assert_eq!(
            code(&["name", endpoint, "--guest-kubeconfig=/nowhere/guest"]),
            format!("{:?}", ExitCode::FAILURE)
        );
        assert_eq!(code(&["name", "-v"]), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(&["name", "--no-such-flag"]), format!("{:?}", ExitCode::from(2)));
    }
}
