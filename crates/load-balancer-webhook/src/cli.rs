//! The process `harvester-load-balancer-webhook`: flags and environment of the Go program, and ours.

use std::ffi::OsString;
use std::net::{Ipv6Addr, TcpListener};
use std::process::ExitCode;

use anyhow::Context as _;
use axum::http::Uri;
use clap::Parser;
use cloud_config::{Local, Options, local};
use program::{Clock, TaskGroup};

use super::{Address, Config, Policy, run};
use program::logging::{log_at, two_dashes, wrong};

/// Judges and completes LoadBalancer objects and IPPools before they are stored.
#[derive(Debug, Parser)]
#[command(name = "harvester-load-balancer-webhook", version)]
struct Flags {
    /// How much is logged: panic, fatal, error, warn, info, debug, trace [env: LOGLEVEL] [default: info].
    #[arg(long)]
    loglevel: Option<String>,
    /// Accepted because the Go program has it; reviews are judged as they come.
    #[arg(long)]
    threadiness: Option<usize>,
    /// Port to serve on [env: WEBHOOK_SERVER_HTTPS_PORT, HARVESTER_WEBHOOK_SERVER_HTTPS_PORT] [default: 8443].
    #[arg(long)]
    https_port: Option<u16>,
    /// Namespace of the chart: of the Service and of the secrets with the certificates [env: NAMESPACE]
    /// [default: harvester-system].
    #[arg(long)]
    namespace: Option<String>,
    /// Accepted because the Go program has it; no rule uses it.
    #[arg(long)]
    controller_user: Option<String>,
    /// Accepted because the Go program has it; no rule uses it.
    #[arg(long)]
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
    let flags = match flags.completed(|name| std::env::var(name).ok()) {
        Ok(flags) => flags,
        Err(fault) => return wrong(&fault),
    };
    log_at(flags.loglevel.as_deref().unwrap_or("info"));
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
    let tasks = TaskGroup::new();
    tasks.stop_on_signals().context("listen for signals")?;
    let port = flags.https_port.unwrap_or(8443);
    // all addresses of both families; where there is no IPv6, those of IPv4
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    let listener = listener.with_context(|| format!("listen on port {port}"))?;
    run(client, Clock::system(), config(flags), listener, &tasks).await?;
    tasks.end().await;
    Ok(())
}

fn config(flags: &Flags) -> Config {
    let Flags { namespace, status_writer, url, .. } = flags;
    let namespace = namespace.as_deref().unwrap_or("harvester-system");
    let writer = || format!("system:serviceaccount:{namespace}:harvester-load-balancer");
    Config {
        namespace: namespace.to_owned(),
        policy: Policy { status_writer: status_writer.clone().unwrap_or_else(writer) },
        address: url.clone().map_or(Address::Service, Address::Url),
    }
}

impl Flags {
    /// What was not given comes from the environment, where an empty text counts as nothing. The port has two names
    /// there: the one that the Go program reads, and the one that the chart sets.
    fn completed(mut self, environment: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let text = |name: &str| environment(name).filter(|text| !text.is_empty());
        let port = |name: &str| {
            let port = text(name).map(|text| text.parse().map_err(|_| format!("{text:?} is no port")));
            port.transpose().map_err(|fault| format!("environment variable {name}: {fault}"))
        };
        if self.https_port.is_none() {
            self.https_port = port("WEBHOOK_SERVER_HTTPS_PORT")?;
        }
        if self.https_port.is_none() {
            self.https_port = port("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT")?;
        }
        self.loglevel = self.loglevel.or_else(|| text("LOGLEVEL"));
        self.namespace = self.namespace.or_else(|| text("NAMESPACE"));
        Ok(self)
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
    #[case::flag(&["--https-port=9443"], &[("WEBHOOK_SERVER_HTTPS_PORT", "1")], Some(Some(9443)))]
    #[case::go(&[], &[("WEBHOOK_SERVER_HTTPS_PORT", "9442"), ("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", "1")], Some(Some(9442)))]
    #[case::chart(&[], &[("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", "9444")], Some(Some(9444)))]
    #[case::empty(&[], &[("WEBHOOK_SERVER_HTTPS_PORT", ""), ("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", ""), ("THREADINESS", "")],
        Some(None))]
    #[case::no_port(&[], &[("HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", "high")], None)]
    fn the_port_comes_from_either_spelling(
        #[case] args: &[&str],
        #[case] environment: &[(&str, &str)],
        #[case] expected: Option<Option<u16>>,
    ) {
        // pitfalls-load-balancer.md WH-10: there, the chart sets names that the program does not read
        let find = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let completed = flags(args).unwrap().completed(find);
        assert_eq!(completed.ok().map(|flags| flags.https_port), expected);
    }

    #[rstest]
    #[case("https://127.0.0.1:8443", true)]
    #[case("http://127.0.0.1:8443", false)]
    #[case("127.0.0.1:8443", false)]
    fn an_address_of_our_own_is_https(#[case] url: &str, #[case] expected: bool) {
        assert_eq!(flags(&["--url", url]).is_ok(), expected);
    }
}
