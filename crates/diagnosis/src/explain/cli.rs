//! The command line: `explain service NAMESPACE/NAME`.
//!
//! Exit codes: 0 the Service is explained, also while it waits; 1 the guest cluster cannot be read, or a kubeconfig; 2 wrong
//! arguments; 3 there is no such Service.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use cloud_config::{CloudConfig, Connection, Local};
use cloud_controller_manager::cli::rules;
use controller_kit::ObjectKey;
use load_balancer::PoolChoice;
use program::{
    complain, failed,
    flags::{Flag, Reader, Table},
};

use super::{Assumed, Clusters, Error, explain, render, report::Report};
use crate::{
    access::with_token_in_use,
    flags::{CLOUD_CONFIG, GUEST, NAMESPACE, OUTPUT, PROGRAM, is_json, refuse},
};

const NO_SUCH_SERVICE: u8 = 3;

/// The flags.
pub const FLAGS: Table = Table {
    program: "harvester-cloud-provider explain service NAMESPACE/NAME",
    about: "Explains what is decided about one Service of type LoadBalancer, by which rule, and what would change it. \
            Writes nothing.",
    flags: &[
        GUEST,
        CLOUD_CONFIG,
        NAMESPACE,
        OUTPUT,
        Flag::value("cluster-name", "NAME", "as the cloud controller manager has it").default("kubernetes"),
        Flag::value("data-path", "PATH", "as the cloud controller manager has it").default("guest"),
        Flag::value("allowed-data-paths", "LIST", "as the cloud controller manager has it")
            .default("guest,host"),
        Flag::value("management-network", "NETWORK", "as the cloud controller manager has it"),
        Flag::value("annotation-aliases", "LIST", "as the cloud controller manager has it"),
        Flag::switch("restrict-shared-address", "as the cloud controller manager has it"),
        Flag::switch("disable-hostname-lookup", "as the cloud controller manager has it"),
        Flag::switch("disable-vmi-controller", "as the cloud controller manager has it"),
        Flag::switch("fall-over-when-full", "as the load balancer in Harvester has it"),
        Flag::switch("strict-global-network", "as the load balancer in Harvester has it"),
        Flag::switch("enforce-named-pool-scope", "as the load balancer in Harvester has it"),
    ],
};

/// The command line as checked values.
#[derive(Debug, PartialEq)]
struct Options {
    service: ObjectKey,
    kubeconfig: Option<PathBuf>,
    cloud_config: Option<PathBuf>,
    namespace: Option<String>,
    json: bool,
    assumed: Assumed,
}

/// Runs the program; `args` begins with its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (words, flags) = FLAGS.split(program::words(args));
    if let Some(text) = program::asked_for(&FLAGS, env!("CARGO_PKG_VERSION"), &flags) {
        return program::show(&text);
    }
    let options = match Options::from(&words, FLAGS.read(&flags, |name| std::env::var(name).ok())) {
        Ok(options) => options,
        Err(faults) => return refuse(&faults),
    };
    let json = options.json;
    let outcome = program::run_tool(|process| async move { run(options, process.clock.now()).await });
    match outcome {
        Ok(Ok(report)) if json => match serde_json::to_string_pretty(&report) {
            Ok(text) => program::show(&(text + "\n")),
            Err(error) => failed(&error.to_string()),
        },
        Ok(Ok(report)) => program::show(&render(&report)),
        Ok(Err(error)) => {
            complain(&error.to_string());
            match error {
                Fatal::Explain(Error::NotFound { .. }) => ExitCode::from(NO_SUCH_SERVICE),
                _ => ExitCode::FAILURE,
            }
        }
        Err(error) => failed(&format!("start the runtime: {error}")),
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
enum Fatal {
    #[error("{0}")]
    Kubeconfig(#[from] cloud_config::Error),
    #[error("{0}")]
    Explain(#[from] Error),
}

async fn run(options: Options, now: jiff::Timestamp) -> Result<Report, Fatal> {
    let Options { service, kubeconfig, cloud_config, namespace, mut assumed, json: _ } = options;
    let agent = format!("{PROGRAM}/{} explain", env!("CARGO_PKG_VERSION"));
    let settings = cloud_config::Options::named(&agent);
    let guest_name = match &kubeconfig {
        Some(file) => format!("--kubeconfig {}", file.display()),
        None => match std::env::var("KUBECONFIG").ok().filter(|files| !files.is_empty()) {
            Some(files) => format!("KUBECONFIG={files}"),
            None => "the pod's service account".to_owned(),
        },
    };
    let guest = cloud_config::local(&Local { kubeconfig, master: None }, &settings)?;
    // a file that somebody names must be good; without one the guest's half is explained
    let is_named = cloud_config.is_some();
    let config = match cloud_config::find(cloud_config.as_deref()) {
        Ok(file) => CloudConfig::read(&file),
        Err(error) => Err(error),
    };
    let config = with_token_in_use(config, Ok(&guest), &settings).await.map(|used| used.config);
    let config = unless_named(config, is_named)?;
    let in_config = config.as_ref().map(|config| config.namespace.clone()).ok();
    assumed.rules.namespace = namespace.or(in_config).unwrap_or_else(|| "default".to_owned());
    let harvester = match config {
        Ok(config) => {
            let opened = Connection::open(&config, &settings);
            unless_named(opened.map(|connection| connection.client()), is_named)?
        }
        Err(why) => Err(why),
    };
    let clusters = Clusters { guest, guest_name, harvester };
    let explained = Box::pin(explain(&clusters, assumed, &service, now));
    Ok(program::progress("reading both clusters", explained).await?)
}

/// The sentence about a file that nobody named; about one that somebody named the error.
fn unless_named<T>(
    outcome: Result<T, cloud_config::Error>,
    is_named: bool,
) -> Result<Result<T, String>, cloud_config::Error> {
    match outcome {
        Err(error) if is_named => Err(error),
        outcome => Ok(outcome.map_err(|error| error.to_string())),
    }
}

impl Options {
    /// # Errors
    /// One sentence for each wrong argument.
    fn from(words: &[String], mut reader: Reader<'_>) -> Result<Self, Vec<String>> {
        let service = match words {
            [kind, name] if matches!(kind.as_str(), "service" | "services" | "svc") => service(name),
            _ => Err("say what to explain: explain service NAMESPACE/NAME".to_owned()),
        };
        let service = service.map_err(|fault| reader.fault(fault)).unwrap_or_default();
        let options = Self {
            service,
            kubeconfig: reader.text("kubeconfig").map(PathBuf::from),
            cloud_config: reader.text("cloud-config").map(PathBuf::from),
            namespace: reader.text("harvester-namespace"),
            json: is_json(&mut reader),
            assumed: Assumed {
                rules: rules(&mut reader),
                host_names: !reader.is_on("disable-hostname-lookup"),
                follows_vms: !reader.is_on("disable-vmi-controller"),
                pool_choice: PoolChoice {
                    fall_over_when_full: reader.is_on("fall-over-when-full"),
                    strict_global_network: reader.is_on("strict-global-network"),
                    enforce_named_pool_scope: reader.is_on("enforce-named-pool-scope"),
                },
            },
        };
        reader.finish(options)
    }
}

/// Longest name of a namespace or a Service.
const NAME_MAX: usize = 63;

fn service(text: &str) -> Result<ObjectKey, String> {
    let is_name = |name: &str| {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
        !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(allowed)
    };
    match text.split('/').collect::<Vec<_>>()[..] {
        [namespace, name] if is_name(namespace) && is_name(name) => Ok(ObjectKey::new(namespace, name)),
        _ => {
            let shown: String = text.chars().take(2 * NAME_MAX).collect();
            Err(format!("{shown:?} is no Service: write it as NAMESPACE/NAME, such as shop/web"))
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn options(args: &[&str]) -> Result<Options, Vec<String>> {
        let (words, flags) = FLAGS.split(args.iter().map(|arg| (*arg).to_owned()));
        Options::from(&words, FLAGS.read(&flags, |_| None))
    }

    #[test]
    fn a_bad_cloud_config_ends_the_program_only_where_somebody_named_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cloud-config");
        std::fs::write(&file, "]").unwrap();
        let read = || CloudConfig::read(&file).map(|_| ());
        assert!(unless_named(read(), true).is_err());
        let sentence = unless_named(read(), false).unwrap().unwrap_err();
        assert!(sentence.contains("cannot be parsed"), "{sentence}");
    }

    #[test]
    fn flags_may_stand_before_and_after_the_service() {
        let read = options(&[
            "--output",
            "json",
            "service",
            "--cluster-name=blue",
            "shop/web",
            "-data-path",
            "host",
        ]);
        let read = read.unwrap();
        assert_eq!((read.service, read.json), (ObjectKey::new("shop", "web"), true));
        assert_eq!(
            (read.assumed.rules.cluster.name(), read.assumed.rules.policy),
            ("blue", cloud_controller_manager::datapath::Policy::Host)
        );
    }

    #[rstest]
    #[case::asked(&[], true, true)]
    #[case::host_names_off(&["--disable-hostname-lookup"], false, true)]
    #[case::vmis_off(&["--disable-vmi-controller"], true, false)]
    #[case::on_again(&["--disable-vmi-controller=false"], true, true)]
    fn what_the_controller_does_not_read_is_not_read_here(
        #[case] flags: &[&str],
        #[case] host_names: bool,
        #[case] follows_vms: bool,
    ) {
        let args: Vec<_> = ["service", "shop/web"].into_iter().chain(flags.iter().copied()).collect();
        let Assumed { host_names: asks, follows_vms: follows, .. } = options(&args).unwrap().assumed;
        assert_eq!((asks, follows), (host_names, follows_vms));
    }

    #[rstest]
    #[case::nothing(&[], "explain service NAMESPACE/NAME")]
    #[case::another_kind(&["node", "worker-1"], "explain service NAMESPACE/NAME")]
    #[case::no_name(&["service"], "explain service NAMESPACE/NAME")]
    #[case::no_namespace(&["service", "web"], "shop/web")]
    #[case::too_many_parts(&["service", "a/b/c"], "shop/web")]
    #[case::no_name_after_the_namespace(&["service", "shop/"], "shop/web")]
    #[case::no_such_form(&["service", "a/b", "--output=yaml"], "text or json")]
    #[case::wrong_path(&["service", "a/b", "--data-path=left"], "guest, annotation or host")]
    #[case::unknown_flag(&["service", "a/b", "--what"], "unknown flag: --what")]
    fn a_wrong_argument_is_told_with_the_right_form(#[case] args: &[&str], #[case] part: &str) {
        let faults = options(args).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }

    #[test]
    fn a_name_of_ten_thousand_characters_is_told_in_part() {
        let faults = options(&["service", &"w".repeat(10_000)]).unwrap_err();
        assert!(faults.len() == 1 && faults[0].len() < 300, "{faults:?}");
    }

    fn code(args: &[&str]) -> String {
        format!("{:?}", main(["explain"].iter().chain(args).map(OsString::from)))
    }

    #[test]
    fn the_exit_code_tells_wrong_arguments_from_a_kubeconfig_that_cannot_be_read() {
        assert_eq!(code(&["--help"]), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(&["service", "web"]), format!("{:?}", ExitCode::from(2)));
        let nowhere = ["service", "shop/web", "--kubeconfig=/nowhere/kubeconfig"];
        assert_eq!(code(&nowhere), format!("{:?}", ExitCode::from(1)));
    }

    #[test]
    fn a_server_that_does_not_answer_is_a_failure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [],
            clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]}";
        std::fs::write(file.path(), text).unwrap();
        let path = format!("--kubeconfig={}", file.path().display());
        assert_eq!(code(&["service", "shop/web", &path]), format!("{:?}", ExitCode::from(1)));
    }

    #[rstest]
    #[case("as the cloud", &cloud_controller_manager::cli::FLAGS)]
    #[case("as the load balancer", &load_balancer::cli::FLAGS)]
    fn flags_of_other_programs_have_their_names_and_defaults(#[case] help: &str, #[case] of: &Table) {
        let flags: Vec<_> = FLAGS.flags.iter().filter(|flag| flag.help.starts_with(help)).collect();
        assert!(flags.len() >= 3);
        for flag in flags {
            let theirs = of.find(flag.name).expect("it has this flag");
            assert_eq!((flag.default, flag.flag_type), (theirs.default, theirs.flag_type), "{}", flag.name);
        }
    }
}
