//! The process `harvester-load-balancer-webhook`: flags and environment of the Go program, and ours.

use std::ffi::OsString;
use std::net::{Ipv6Addr, TcpListener};
use std::process::ExitCode;

use anyhow::Context as _;
use axum::http::Uri;
use clap::Parser;
use cloud_config::{Local, Options, local};
use controller_kit::{Clock, Life};

use super::{Address, Config, Policy, run};
use crate::cli::{log_at, two_dashes};

/// Judges and completes LoadBalancer objects and IPPools before they are stored.
#[derive(Debug, Parser)]
#[command(name = "harvester-load-balancer-webhook", version)]
struct Flags {
    /// How much is logged: panic, fatal, error, warn, info, debug, trace.
    #[arg(long, env = "LOGLEVEL", default_value = "info")]
    loglevel: String,
    /// Accepted because the Go program has it; reviews are judged as they come.
    #[arg(long, env = "THREADINESS", default_value_t = 2)]
    threadiness: usize,
    /// Port to serve on; also from HARVESTER_WEBHOOK_SERVER_HTTPS_PORT. [default: 8443]
    #[arg(long, env = "WEBHOOK_SERVER_HTTPS_PORT")]
    https_port: Option<u16>,
    /// Namespace of the chart: of the Service and of the secrets with the certificates.
    #[arg(long, env = "NAMESPACE", default_value = "harvester-system")]
    namespace: String,
    /// Accepted because the Go program has it; no rule uses it. Also from HARVESTER_CONTROLLER_USER_NAME.
    #[arg(long, env = "CONTROLLER_USER_NAME")]
    controller_user: Option<String>,
    /// Accepted because the Go program has it; no rule uses it.
    #[arg(long, env = "GARBAGE_COLLECTION_USER_NAME")]
    gc_user: Option<String>,
    /// The one user who may write addresses and the records of pools.
    /// [default: system:serviceaccount:<namespace>:harvester-load-balancer]
    #[arg(long)]
    status_writer: Option<String>,
    /// Tell the API server this address instead of the chart's Service, e.g. https://127.0.0.1:8443. For a single
    /// replica: two with addresses of their own would overwrite each other's.
    #[arg(long, value_parser = https)]
    url: Option<String>,
    /// Kubeconfig; else the environment variable KUBECONFIG, else the pod's service account.
    #[arg(long)]
    kubeconfig: Option<std::path::PathBuf>,
}

/// Runs the process; `args` begins with the program's name. Exit code 0 after SIGTERM, 1 after a failure, 2 for
/// wrong flags.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = match Flags::try_parse_from(args.into_iter().map(two_dashes)) {
        Ok(flags) => flags,
        Err(error) => {
            // a closed terminal is no reason to fail in another way
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    log_at(&flags.loglevel);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime.context("start the runtime").and_then(|runtime| runtime.block_on(serve(&flags)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(flags: &Flags) -> anyhow::Result<()> {
    let user_agent = format!("harvester-load-balancer-webhook/{}", env!("CARGO_PKG_VERSION"));
    let client =
        local(&Local { kubeconfig: flags.kubeconfig.clone(), master: None }, &Options::named(&user_agent))?;
    let life = Life::new();
    life.stop_on_signals().context("listen for signals")?;
    let port = port(flags.https_port, std::env::var("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT").ok())?;
    // all addresses of both families; where there is no IPv6, those of IPv4
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    let listener = listener.with_context(|| format!("listen on port {port}"))?;
    run(client, Clock::system(), config(flags), listener, &life).await?;
    life.end().await;
    Ok(())
}

fn config(flags: &Flags) -> Config {
    let Flags { namespace, status_writer, url, .. } = flags;
    let writer = || format!("system:serviceaccount:{namespace}:harvester-load-balancer");
    Config {
        namespace: namespace.clone(),
        policy: Policy { status_writer: status_writer.clone().unwrap_or_else(writer) },
        address: url.clone().map_or(Address::Service, Address::Url),
    }
}

/// The port by flag or by the name that the Go program reads, else by the name that the chart sets.
fn port(given: Option<u16>, by_chart: Option<String>) -> anyhow::Result<u16> {
    match (given, by_chart.filter(|text| !text.is_empty())) {
        (Some(port), _) => Ok(port),
        (None, Some(text)) => text
            .parse()
            .with_context(|| format!("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT {text:?} is not a port")),
        (None, None) => Ok(8443),
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

    fn flags(args: &[&str]) -> Result<Flags, clap::Error> {
        let args = ["harvester-load-balancer-webhook"].iter().chain(args).map(OsString::from);
        Flags::try_parse_from(args.map(two_dashes))
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
    }

    #[test]
    fn the_go_programs_flags_are_taken_with_one_dash_or_two() {
        let flags =
            flags(&["-https-port", "9443", "--controller-user=x", "--gc-user", "y", "-threadiness", "5"])
                .unwrap();
        assert_eq!(flags.https_port, Some(9443));
    }

    #[rstest]
    #[case(Some(9443), Some("1"), Some(9443))]
    #[case(None, Some("9444"), Some(9444))]
    #[case(None, Some(""), Some(8443))]
    #[case(None, None, Some(8443))]
    #[case(None, Some("high"), None)]
    fn the_port_comes_from_either_spelling(
        #[case] given: Option<u16>,
        #[case] by_chart: Option<&str>,
        #[case] expected: Option<u16>,
    ) {
        // pitfalls-load-balancer.md WH-10: there, the chart sets names that the program does not read
        assert_eq!(port(given, by_chart.map(ToOwned::to_owned)).ok(), expected);
    }

    #[rstest]
    #[case("https://127.0.0.1:8443", true)]
    #[case("http://127.0.0.1:8443", false)]
    #[case("127.0.0.1:8443", false)]
    fn an_address_of_our_own_is_https(#[case] url: &str, #[case] expected: bool) {
        assert_eq!(flags(&["--url", url]).is_ok(), expected);
    }
}
