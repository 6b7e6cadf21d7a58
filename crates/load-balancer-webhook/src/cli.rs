//! The process `harvester-load-balancer-webhook`: flags and environment of the Go program, and ours.

use std::ffi::OsString;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use axum::http::Uri;
use cloud_config::{Local, Options, local};
use program::flags::{Flag, Reader, Table, listen_address};
use program::logging::Logging;
use program::{Process, http, serving};

use super::{Address, Config, Metrics, Policy, prepare};

/// The flags of the Go program, and ours.
pub const FLAGS: Table = Table {
    program: "harvester-load-balancer-webhook",
    about: "Judges and completes LoadBalancer objects and IPPools before they are stored.",
    flags: &[
        Flag::LOGLEVEL,
        Flag::value(
            "threadiness",
            "NUMBER",
            "accepted because the Go program has it; reviews are judged as they come",
        ),
        Flag::value("https-port", "PORT", "port to serve on")
            .env(&["WEBHOOK_SERVER_HTTPS_PORT", "HARVESTER_WEBHOOK_SERVER_HTTPS_PORT"])
            .default("8443"),
        Flag::value(
            "namespace",
            "NAMESPACE",
            "namespace of the chart: of the Service and of the secrets with the certificates",
        )
        .env(&["NAMESPACE"])
        .default("harvester-system"),
        Flag::value("controller-user", "USER", "accepted because the Go program has it; no rule uses it"),
        Flag::value("gc-user", "USER", "accepted because the Go program has it; no rule uses it"),
        Flag::value(
            "status-writer",
            "USER",
            "the one user who may write addresses and the records of pools; else \
             system:serviceaccount:<namespace>:harvester-load-balancer",
        ),
        Flag::switch(
            "enforce-named-pool-scope",
            "a load balancer may name a pool only if the selector of the pool admits it, and says nothing untrue of its \
             project, network and guest cluster; give it to the load balancer too",
        ),
        Flag::value(
            "url",
            "URL",
            "tell the API server this address instead of the chart's Service, e.g. https://127.0.0.1:8443; for a single \
             replica: two with addresses of their own would overwrite each other's",
        ),
        Flag::METRICS_ADDRESS,
        Flag::KUBECONFIG,
    ],
};

/// The checked values.
struct Flags {
    https_port: u16,
    namespace: String,
    status_writer: Option<String>,
    enforce_named_pool_scope: bool,
    url: Option<String>,
    metrics_address: Option<SocketAddr>,
    kubeconfig: Option<PathBuf>,
}

/// Runs the process; `args` begins with the program's name. Exit code 0 after SIGTERM, 1 after a failure, 2 for
/// wrong flags.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let check = |mut reader: Reader<'_>| {
        let flags = read(&mut reader);
        let logging = Logging::logrus(&reader.text("loglevel").unwrap_or_default());
        reader.finish((logging, flags))
    };
    program::main(&FLAGS, env!("CARGO_PKG_VERSION"), args, check, serve)
}

fn read(reader: &mut Reader<'_>) -> Flags {
    // taken for its form only
    reader.number("threadiness", 0_usize);
    Flags {
        https_port: reader
            .read("https-port", 0, |text| text.parse().map_err(|_| format!("{text:?} is no port"))),
        namespace: reader.text("namespace").unwrap_or_default(),
        status_writer: reader.text("status-writer"),
        enforce_named_pool_scope: reader.is_on("enforce-named-pool-scope"),
        url: reader.optional("url", https),
        metrics_address: reader.optional("metrics-address", listen_address),
        kubeconfig: reader.text("kubeconfig").map(PathBuf::from),
    }
}

async fn serve(flags: Flags, process: Process) -> anyhow::Result<()> {
    let user_agent = format!("harvester-load-balancer-webhook/{}", env!("CARGO_PKG_VERSION"));
    let client =
        local(&Local { kubeconfig: flags.kubeconfig.clone(), master: None }, &Options::named(&user_agent))?;
    let port = flags.https_port;
    let listener = serving::listen((Ipv6Addr::UNSPECIFIED, port).into());
    let listener = listener.with_context(|| format!("listen on port {port}"))?;
    if let Some(address) = flags.metrics_address {
        let router = http::router(process.health.clone(), process.metrics.clone());
        serving::http(&process.tasks, address, router).map_err(anyhow::Error::msg)?;
    }
    let ready = process.health.readiness("certificates");
    let metrics = Metrics::default();
    metrics.register(&mut process.metrics.lock().expect("no panic while registering metrics"));
    let (router, certificates) =
        prepare(client, process.clock, config(&flags), &metrics, &process.tasks).await?;
    ready.pass();
    serving::tls(&process.tasks, listener, certificates, router).await.context("listen for admission reviews")
}

fn config(flags: &Flags) -> Config {
    let Flags { namespace, status_writer, enforce_named_pool_scope, url, .. } = flags;
    let writer = || format!("system:serviceaccount:{namespace}:harvester-load-balancer");
    Config {
        namespace: namespace.clone(),
        policy: Policy {
            status_writer: status_writer.clone().unwrap_or_else(writer),
            enforce_named_pool_scope: *enforce_named_pool_scope,
        },
        address: url.clone().map_or(Address::Service, Address::Url),
    }
}

fn https(text: &str) -> Result<String, String> {
    let uri =
        text.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("https") && uri.host().is_some());
    uri.map(|_| text.to_owned()).ok_or_else(|| "write it as https://127.0.0.1:8443".to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn flags(args: &[&str]) -> Result<Flags, Vec<String>> {
        with_environment(args, &[])
    }

    fn with_environment(args: &[&str], environment: &[(&str, &str)]) -> Result<Flags, Vec<String>> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut reader = FLAGS.read(&args, |name| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        });
        let flags = read(&mut reader);
        reader.finish(flags)
    }

    #[test]
    fn without_flags_the_chart_is_the_harvester_one() {
        let config = config(&flags(&[]).unwrap());
        let writer = "system:serviceaccount:harvester-system:harvester-load-balancer";
        assert_eq!(
            (config.namespace.as_str(), config.policy.status_writer.as_str()),
            ("harvester-system", writer)
        );
        assert_eq!(config.address, Address::Service);
        assert!(!config.policy.enforce_named_pool_scope);
    }

    // Harvester's own chart gives no arguments
    #[test]
    fn the_variable_alone_has_metrics_served() {
        let environment = [("METRICS_ADDRESS", ":9402")];
        let address = |args: &[&str]| {
            with_environment(args, &environment).unwrap().metrics_address.unwrap().to_string()
        };
        assert_eq!(address(&[]), "[::]:9402");
        assert_eq!(address(&["--metrics-address=127.0.0.1:9433"]), "127.0.0.1:9433");
    }

    #[test]
    fn the_go_programs_flags_are_taken_with_one_dash_or_two() {
        let flags =
            flags(&["-https-port", "9443", "--controller-user=x", "--gc-user", "y", "-threadiness", "5"])
                .unwrap();
        assert_eq!(flags.https_port, 9443);
    }

    #[rstest]
    #[case::flag(&["--https-port=9443"], &[("WEBHOOK_SERVER_HTTPS_PORT", "1")], Some(9443))]
    #[case::go(&[], &[("WEBHOOK_SERVER_HTTPS_PORT", "9442"), ("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", "1")], Some(9442))]
    #[case::chart(&[], &[("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", "9444")], Some(9444))]
    #[case::empty(&[], &[("WEBHOOK_SERVER_HTTPS_PORT", ""), ("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", ""), ("THREADINESS", "")],
        Some(8443))]
    #[case::no_port(&[], &[("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", "high")], None)]
    fn the_port_comes_from_either_spelling(
        #[case] args: &[&str],
        #[case] environment: &[(&str, &str)],
        #[case] expected: Option<u16>,
    ) {
        // docs/contract/load-balancer.md#WH-10: the chart of the Go program sets names that the program does not read
        let port = with_environment(args, environment).map(|flags| flags.https_port);
        assert_eq!(port.ok(), expected);
    }

    #[rstest]
    #[case("https://127.0.0.1:8443", true)]
    #[case("http://127.0.0.1:8443", false)]
    #[case("127.0.0.1:8443", false)]
    fn an_address_of_our_own_is_https(#[case] url: &str, #[case] expected: bool) {
        assert_eq!(flags(&["--url", url]).is_ok(), expected);
    }
}
