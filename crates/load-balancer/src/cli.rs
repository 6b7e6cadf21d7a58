//! The process `harvester-load-balancer`: flags and environment of the Go program, and ours.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use cloud_config::{Local, Options, local};
use ipnet::IpNet;
use jiff::SignedDuration;
use program::logging::{log_at, two_dashes, wrong};
use program::{Clock, TaskGroup, health::Health, pod::Identity};
use tokio::net::TcpListener;

use crate::{Config, ElectionTimes, Parts, run};

/// Objects that are worked on at once for each of `--threadiness`: work is mostly waiting for answers, and what
/// waits together shares a PUT of its pool.
const AT_ONCE: usize = 16;
/// `--threadiness` of the Go program.
const THREADINESS: usize = 2;
/// As under CATTLE_DEV_MODE in the Go program: nobody takes over while somebody sits in a debugger.
const DEV_LEASE: Duration = Duration::from_secs(45 * 3600);
const DEV_RENEW_DEADLINE: Duration = Duration::from_secs(30 * 3600);

/// Gives LoadBalancer objects of Harvester their addresses, and carries the traffic of those for virtual machines.
#[derive(Debug, Parser)]
#[command(name = "harvester-load-balancer", version)]
struct Flags {
    /// How much is logged: panic, fatal, error, warn, info, debug, trace [env: LOGLEVEL] [default: info].
    #[arg(long)]
    loglevel: Option<String>,
    /// How much is done at once: 16 objects of a kind for each [env: THREADINESS] [default: 2].
    #[arg(long)]
    threadiness: Option<usize>,
    /// How long others must see no sign of the leader before they take over, e.g. 45s or 1m30s
    /// [env: CATTLE_ELECTION_LEASE_DURATION] [default: 45s].
    #[arg(long, value_parser = duration)]
    lease_duration: Option<Duration>,
    /// A leader that could not renew its Lease for so long writes nothing more and ends
    /// [env: CATTLE_ELECTION_RENEW_DEADLINE] [default: 30s].
    #[arg(long, value_parser = duration)]
    renew_deadline: Option<Duration>,
    /// Time between two tries to get or renew the Lease [env: CATTLE_ELECTION_RETRY_PERIOD] [default: 2s].
    #[arg(long, value_parser = duration)]
    retry_period: Option<Duration>,
    /// Addresses of pods: a backend may have one only on an interface of the pod network.
    #[arg(long, value_delimiter = ',', default_value = "10.52.0.0/16")]
    pod_cidrs: Vec<IpNet>,
    /// Addresses of Services: no backend may have one.
    #[arg(long, value_delimiter = ',', default_value = "10.53.0.0/16")]
    service_cidrs: Vec<IpNet>,
    /// The endpoint that swallows traffic while no backend is ready: an address that nobody has.
    #[arg(long, default_value = harvester_api::names::DUMMY_ENDPOINT_ADDRESS)]
    dummy_endpoint: Ipv4Addr,
    /// Serve health and metrics over plain HTTP here, e.g. :9402 or 127.0.0.1:9402. Off by default.
    #[arg(long, value_parser = listen_address)]
    metrics_address: Option<SocketAddr>,
    /// Kubeconfig; else the environment variable KUBECONFIG, else the pod's service account.
    #[arg(long)]
    kubeconfig: Option<std::path::PathBuf>,
    /// The token of this process, by which it knows its Pod, where it is not at the usual place.
    #[arg(long)]
    pod_token_file: Option<std::path::PathBuf>,
    /// Dial backends of the first network at the same place in the second, e.g. 198.18.0.0/16=127.18.0.0/16.
    #[cfg(feature = "sandbox")]
    #[arg(long, value_parser = dial_map)]
    dial_map: Option<DialMap>,
}

/// Runs the process; `args` begins with the program's name. Exit code 0 after SIGTERM, 1 after a failure or a lost
/// Lease, 2 for wrong flags.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = match Flags::try_parse_from(args.into_iter().map(two_dashes)) {
        Ok(flags) => flags,
        Err(error) => {
            // a closed terminal is no reason to fail in another way
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let dev_mode = std::env::var_os("CATTLE_DEV_MODE").is_some();
    let completed = flags.completed(|name| std::env::var(name).ok());
    let (flags, times) = match completed.and_then(|flags| Ok((checked(times(&flags, dev_mode))?, flags))) {
        Ok((times, flags)) => (flags, times),
        Err(fault) => return wrong(&fault),
    };
    log_at(flags.loglevel.as_deref().unwrap_or("info"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome =
        runtime.context("start the runtime").and_then(|runtime| runtime.block_on(lead(flags, times)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Flags {
    /// What was not given comes from the environment, where an empty text counts as nothing.
    fn completed(mut self, environment: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let text = |name: &str| environment(name).filter(|text| !text.is_empty());
        let read = |name: &str| {
            let value = text(name).map(|text| duration(&text));
            value.transpose().map_err(|fault| format!("environment variable {name}: {fault}"))
        };
        if let (None, Some(text)) = (self.threadiness, text("THREADINESS")) {
            let number = text
                .parse()
                .map_err(|_| format!("environment variable THREADINESS: {text:?} is no number"))?;
            self.threadiness = Some(number);
        }
        self.loglevel = self.loglevel.or_else(|| text("LOGLEVEL"));
        self.lease_duration = self.lease_duration.or(read("CATTLE_ELECTION_LEASE_DURATION")?);
        self.renew_deadline = self.renew_deadline.or(read("CATTLE_ELECTION_RENEW_DEADLINE")?);
        self.retry_period = self.retry_period.or(read("CATTLE_ELECTION_RETRY_PERIOD")?);
        Ok(self)
    }
}

async fn lead(flags: Flags, times: ElectionTimes) -> anyhow::Result<()> {
    let user_agent = format!("{}/{}", ip_pools::managers::OURS, env!("CARGO_PKG_VERSION"));
    let from = Local { kubeconfig: flags.kubeconfig.clone(), master: None };
    let client = local(&from, &Options::named(&user_agent))?;
    let tasks = TaskGroup::new();
    tasks.stop_on_signals().context("listen for signals")?;
    let metrics = match flags.metrics_address {
        None => None,
        Some(address) => {
            let listener = TcpListener::bind(address).await;
            Some(listener.with_context(|| format!("serve metrics at {address}"))?)
        }
    };
    let parts = Parts {
        client,
        clock: Clock::system(),
        dial: dial(&flags),
        seed: fastrand::u64(..),
        identity: Identity::of_process(flags.pod_token_file.as_deref()),
        metrics,
        health: Health::default(),
    };
    Box::pin(run(parts, times, config(&flags), tasks.clone())).await?;
    tasks.end().await;
    Ok(())
}

fn times(flags: &Flags, dev_mode: bool) -> ElectionTimes {
    let usual = ElectionTimes::default();
    let (lease, renew_deadline) =
        if dev_mode { (DEV_LEASE, DEV_RENEW_DEADLINE) } else { (usual.lease, usual.renew_deadline) };
    ElectionTimes {
        lease: flags.lease_duration.unwrap_or(lease),
        renew_deadline: flags.renew_deadline.unwrap_or(renew_deadline),
        retry_period: flags.retry_period.unwrap_or(usual.retry_period),
    }
}

/// Times that keep two leaders apart: whoever may still write has its Lease.
fn checked(times: ElectionTimes) -> Result<ElectionTimes, String> {
    let ElectionTimes { lease, renew_deadline, retry_period } = times;
    if lease <= renew_deadline {
        return Err(format!(
            "the lease duration ({lease:?}) must be longer than the renew deadline ({renew_deadline:?}): set both, by \
             --lease-duration and --renew-deadline or CATTLE_ELECTION_LEASE_DURATION and CATTLE_ELECTION_RENEW_DEADLINE"
        ));
    }
    if renew_deadline <= retry_period {
        return Err(format!(
            "the renew deadline ({renew_deadline:?}) must be longer than the retry period ({retry_period:?}): set both, \
             by --renew-deadline and --retry-period or CATTLE_ELECTION_RENEW_DEADLINE and CATTLE_ELECTION_RETRY_PERIOD"
        ));
    }
    Ok(times)
}

fn config(flags: &Flags) -> Config {
    Config {
        workers: flags.threadiness.unwrap_or(THREADINESS).clamp(1, 64) * AT_ONCE,
        pod_cidrs: flags.pod_cidrs.clone(),
        service_cidrs: flags.service_cidrs.clone(),
        dummy_endpoint: flags.dummy_endpoint,
    }
}

/// A duration as Go writes it: `45s`, `1m30s`, `1.5h`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text
        .parse::<SignedDuration>()
        .map_err(|_| format!("{text:?} is no duration; write it as 45s or 1m30s"))?;
    let duration = Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())?;
    if duration.is_zero() { Err("a duration cannot be zero".to_owned()) } else { Ok(duration) }
}

/// `host:port`, or `:port` for all addresses.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse().map_err(|_| "write it as 127.0.0.1:9402 or :9402".to_owned())
}

#[cfg(not(feature = "sandbox"))]
fn dial(_: &Flags) -> health_check::Dial {
    health_check::tcp()
}

#[cfg(feature = "sandbox")]
fn dial(flags: &Flags) -> health_check::Dial {
    let (map, tcp) = (flags.dial_map, health_check::tcp());
    std::sync::Arc::new(move |address| tcp(map.map_or(address, |map| map.apply(address))))
}

/// Where addresses of one network are found on the wire: at the same place of another.
#[cfg(feature = "sandbox")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DialMap {
    from: ipnet::Ipv4Net,
    to: ipnet::Ipv4Net,
}

#[cfg(feature = "sandbox")]
impl DialMap {
    fn apply(self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.from.contains(v4.ip()) => {
                let host = u32::from(*v4.ip()) & u32::from(self.from.hostmask());
                SocketAddr::new(Ipv4Addr::from(u32::from(self.to.network()) | host).into(), v4.port())
            }
            other => other,
        }
    }
}

#[cfg(feature = "sandbox")]
fn dial_map(text: &str) -> Result<DialMap, String> {
    let fault = || "write it as 198.18.0.0/16=127.18.0.0/16, both of one size".to_owned();
    let (from, to) = text.split_once('=').ok_or_else(fault)?;
    let network = |text: &str| text.parse::<ipnet::Ipv4Net>().map_err(|_| fault());
    let map = DialMap { from: network(from)?, to: network(to)? };
    if map.from.prefix_len() == map.to.prefix_len() { Ok(map) } else { Err(fault()) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn flags(args: &[&str]) -> Result<Flags, clap::Error> {
        let args = ["harvester-load-balancer"].iter().chain(args).map(OsString::from);
        Flags::try_parse_from(args.map(two_dashes))
    }

    fn with_environment(args: &[&str], environment: &[(&str, &str)]) -> Result<Flags, String> {
        let find = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        flags(args).unwrap().completed(find)
    }

    #[test]
    fn the_environment_counts_where_no_flag_was_given_and_an_empty_text_is_nothing() {
        let environment =
            [("THREADINESS", "7"), ("LOGLEVEL", ""), ("CATTLE_ELECTION_LEASE_DURATION", "1m30s")];
        let both = with_environment(&["--threadiness", "3"], &environment).unwrap();
        assert_eq!(
            (both.threadiness, both.loglevel, both.lease_duration),
            (Some(3), None, Some(Duration::from_secs(90)))
        );
        let fault = with_environment(&[], &[("THREADINESS", "many")]).unwrap_err();
        assert_eq!(fault, "environment variable THREADINESS: \"many\" is no number");
        assert!(with_environment(&[], &[("CATTLE_ELECTION_RETRY_PERIOD", "soon")]).is_err());
    }

    #[test]
    fn without_flags_everything_is_as_in_the_go_program() {
        let flags = flags(&[]).unwrap();
        assert_eq!(times(&flags, false), ElectionTimes::default());
        let pods = "10.52.0.0/16".parse().unwrap();
        let services = "10.53.0.0/16".parse().unwrap();
        let expected = Config {
            workers: 32,
            pod_cidrs: vec![pods],
            service_cidrs: vec![services],
            dummy_endpoint: Ipv4Addr::new(10, 52, 0, 255),
        };
        assert_eq!((config(&flags), flags.metrics_address), (expected, None));
    }

    #[test]
    fn dev_mode_makes_the_lease_long_and_a_flag_wins() {
        let long = times(&flags(&[]).unwrap(), true);
        assert_eq!((long.lease, long.renew_deadline), (DEV_LEASE, DEV_RENEW_DEADLINE));
        let short = times(&flags(&["--lease-duration", "1m30s"]).unwrap(), true);
        assert_eq!(short.lease, Duration::from_secs(90));
    }

    // with a lease that ends before the leader stops to write, two would write at once
    #[rstest]
    #[case::defaults(&[], None)]
    #[case::dev_mode(&["--lease-duration", "46h", "--renew-deadline", "45h"], None)]
    #[case::lease_alone(&["--lease-duration", "10s"], Some("CATTLE_ELECTION_RENEW_DEADLINE"))]
    #[case::equal(&["--lease-duration", "30s"], Some("must be longer than the renew deadline (30s)"))]
    #[case::slow_retries(&["--retry-period", "1m"], Some("must be longer than the retry period (60s)"))]
    fn times_that_admit_two_leaders_are_refused(#[case] args: &[&str], #[case] part: Option<&str>) {
        let checked = checked(times(&flags(args).unwrap(), false));
        let fault = checked.err().unwrap_or_default();
        assert!(part.map_or(fault.is_empty(), |part| fault.contains(part)), "{fault}");
    }

    #[test]
    fn one_dash_is_as_good_as_two() {
        assert_eq!(flags(&["-loglevel", "trace", "-threadiness=5"]).unwrap().threadiness, Some(5));
    }

    #[rstest]
    #[case("45s", Some(45_000))]
    #[case("1m30s", Some(90_000))]
    #[case("1.5h", Some(5_400_000))]
    #[case("300ms", Some(300))]
    #[case("-5s", None)]
    #[case("0s", None)]
    #[case("45", None)]
    #[case("soon", None)]
    fn durations_are_gos(#[case] text: &str, #[case] milliseconds: Option<u64>) {
        assert_eq!(duration(text).ok(), milliseconds.map(Duration::from_millis), "{text}");
    }

    #[cfg(feature = "sandbox")]
    #[test]
    fn an_address_is_dialled_at_the_same_place_of_the_other_network() {
        let map = dial_map("198.18.0.0/16=127.18.0.0/16").unwrap();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(map.apply(at("198.18.7.9:80")), at("127.18.7.9:80"));
        assert_eq!(map.apply(at("192.0.2.1:80")), at("192.0.2.1:80"));
        assert!(dial_map("198.18.0.0/16=127.18.0.0/24").is_err());
    }
}
