//! The process `harvester-load-balancer`: flags and environment of the Go program, and ours.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use cloud_config::{Local, Options, local};
use ipnet::IpNet;
use program::{
    Process,
    flags::{Flag, Reader, Table},
    logging::Logging,
    pod::Identity,
    serving,
};
use tokio::net::TcpListener;

use crate::{Config, ElectionTimes, Parts, PoolChoice, run};

/// Objects that are worked on at once for each of `--threadiness`: work is mostly waiting for answers, and what
/// waits together shares a PUT of its pool.
pub(crate) const AT_ONCE: usize = 16;
/// `--threadiness` of the Go program.
pub(crate) const THREADINESS: usize = 2;
pub(crate) const POD_CIDRS: &str = "10.52.0.0/16";
pub(crate) const SERVICE_CIDRS: &str = "10.53.0.0/16";
/// As under CATTLE_DEV_MODE in the Go program: nobody takes over while somebody sits in a debugger.
const DEV_LEASE: Duration = Duration::from_secs(45 * 3600);
const DEV_RENEW_DEADLINE: Duration = Duration::from_secs(30 * 3600);

/// The flags of the Go program, and ours.
pub const FLAGS: Table = Table {
    program: "harvester-load-balancer",
    about: "Gives LoadBalancer objects of Harvester their addresses, and carries the traffic of those for virtual machines.",
    flags: &[
        Flag::LOGLEVEL,
        Flag::value("threadiness", "NUMBER", "how much is done at once: 16 objects of a kind for each")
            .env(&["THREADINESS"])
            .default("2"),
        Flag::switch(
            "leader-elect",
            "act only while holding the Lease; without it only one process may run",
        )
        .default("true"),
        Flag::value(
            "lease-duration",
            "DURATION",
            "how long others must see no sign of the leader before they take over: 45s (default), 1m30s",
        )
        .env(&["CATTLE_ELECTION_LEASE_DURATION"]),
        Flag::value(
            "renew-deadline",
            "DURATION",
            "a leader that could not renew its Lease for so long writes nothing more and ends (default 30s)",
        )
        .env(&["CATTLE_ELECTION_RENEW_DEADLINE"]),
        Flag::value("retry-period", "DURATION", "time between two tries to get or renew the Lease (default 2s)")
            .env(&["CATTLE_ELECTION_RETRY_PERIOD"]),
        Flag::value(
            "pod-cidrs",
            "CIDRS",
            "addresses of pods: a backend may have one only on an interface of the pod network",
        )
        .default(POD_CIDRS),
        Flag::value("service-cidrs", "CIDRS", "addresses of Services: no backend may have one")
            .default(SERVICE_CIDRS),
        Flag::value(
            "dummy-endpoint",
            "ADDRESS",
            "the endpoint that swallows traffic while no backend is ready: an address that nobody has",
        )
        .default(harvester_api::names::DUMMY_ENDPOINT_ADDRESS),
        Flag::switch(
            "fall-over-when-full",
            "a load balancer whose pool has nothing to give gets an address of the next pool that matches",
        ),
        Flag::switch(
            "strict-global-network",
            "the global pool serves load balancers of its own network alone, not of all networks",
        ),
        Flag::switch(
            "enforce-named-pool-scope",
            "an object gets an address of the pool that it names only if the selector of the pool admits it; give it to the \
             webhook too, which judges what objects say of themselves",
        ),
        Flag::METRICS_ADDRESS,
        Flag::KUBECONFIG,
        Flag::value(
            "pod-token-file",
            "FILE",
            "the token by which the process knows its Pod, where it is not at the usual place",
        ),
        // for the sandbox: other builds do not know it
        #[cfg(feature = "sandbox")]
        Flag::value(
            "dial-map",
            "NETWORKS",
            "dial backends of the first network at the same place in the second, e.g. 198.18.0.0/16=127.18.0.0/16",
        )
        .hidden(),
    ],
};

/// The checked values.
#[derive(Debug)]
struct Flags {
    threadiness: usize,
    leader_elect: bool,
    lease_duration: Option<Duration>,
    renew_deadline: Option<Duration>,
    retry_period: Option<Duration>,
    pod_cidrs: Vec<IpNet>,
    service_cidrs: Vec<IpNet>,
    dummy_endpoint: Ipv4Addr,
    pool_choice: PoolChoice,
    metrics_address: Option<SocketAddr>,
    kubeconfig: Option<PathBuf>,
    pod_token_file: Option<PathBuf>,
    #[cfg(feature = "sandbox")]
    dial_map: Option<DialMap>,
}

/// Runs the process; `args` begins with the program's name. Exit code 0 after SIGTERM, 1 after a failure or a lost
/// Lease, 2 for wrong flags.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let dev_mode = std::env::var_os("CATTLE_DEV_MODE").is_some();
    let check = |mut reader: Reader<'_>| {
        let flags = read(&mut reader);
        let times = checked(times(&flags, dev_mode)).map_err(|fault| reader.fault(fault));
        let logging = Logging::logrus(&reader.text("loglevel").unwrap_or_default());
        reader.finish((logging, (flags, times.unwrap_or_default())))
    };
    program::main(&FLAGS, env!("CARGO_PKG_VERSION"), args, check, |(flags, times), process| {
        lead(flags, times, process)
    })
}

fn read(reader: &mut Reader<'_>) -> Flags {
    let network = |text: &str| text.parse::<IpNet>().map_err(|_| format!("{text:?} is no CIDR"));
    Flags {
        threadiness: reader.number("threadiness", THREADINESS),
        leader_elect: reader.is_on("leader-elect"),
        lease_duration: reader.optional("lease-duration", duration),
        renew_deadline: reader.optional("renew-deadline", duration),
        retry_period: reader.optional("retry-period", duration),
        pod_cidrs: reader.list("pod-cidrs", network),
        service_cidrs: reader.list("service-cidrs", network),
        dummy_endpoint: reader.read("dummy-endpoint", Ipv4Addr::UNSPECIFIED, |text| {
            text.parse().map_err(|_| format!("{text:?} is no IPv4 address"))
        }),
        pool_choice: PoolChoice {
            fall_over_when_full: reader.is_on("fall-over-when-full"),
            strict_global_network: reader.is_on("strict-global-network"),
            enforce_named_pool_scope: reader.is_on("enforce-named-pool-scope"),
        },
        metrics_address: reader.optional("metrics-address", program::flags::listen_address),
        kubeconfig: reader.text("kubeconfig").map(PathBuf::from),
        pod_token_file: reader.text("pod-token-file").map(PathBuf::from),
        #[cfg(feature = "sandbox")]
        dial_map: reader.optional("dial-map", dial_map),
    }
}

async fn lead(flags: Flags, times: ElectionTimes, process: Process) -> anyhow::Result<()> {
    let user_agent = format!("{}/{}", ip_pools::managers::OURS, env!("CARGO_PKG_VERSION"));
    let from = Local { kubeconfig: flags.kubeconfig.clone(), master: None };
    let client = local(&from, &Options::named(&user_agent))?;
    let metrics = match flags.metrics_address {
        None => None,
        Some(address) => {
            let listener = serving::listen(address).and_then(TcpListener::from_std);
            Some(listener.with_context(|| format!("serve metrics at {address}"))?)
        }
    };
    let parts = Parts {
        client,
        clock: process.clock,
        dial: dial(&flags),
        seed: fastrand::u64(..),
        identity: Identity::of_process(flags.pod_token_file.as_deref()),
        metrics,
        health: process.health,
    };
    let times = flags.leader_elect.then_some(times);
    Box::pin(run(parts, times, config(&flags), process.tasks)).await?;
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

/// Times that keep two leaders apart: a process that may still write still has its Lease.
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
        workers: flags.threadiness.clamp(1, 64) * AT_ONCE,
        pod_cidrs: flags.pod_cidrs.clone(),
        service_cidrs: flags.service_cidrs.clone(),
        dummy_endpoint: flags.dummy_endpoint,
        pool_choice: flags.pool_choice,
    }
}

/// A duration as Go writes it: `45s`, `1m30s`, `1.5h`; no zero.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = program::duration::parse(text)?;
    if duration.is_zero() { Err("a duration cannot be zero".to_owned()) } else { Ok(duration) }
}

#[cfg(not(feature = "sandbox"))]
fn dial(_: &Flags) -> health_check::Dial {
    health_check::network()
}

#[cfg(feature = "sandbox")]
fn dial(flags: &Flags) -> health_check::Dial {
    let map = flags.dial_map;
    health_check::network_by(move |address| map.map_or(address, |map| map.apply(address)))
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

    fn flags(args: &[&str]) -> Result<Flags, Vec<String>> {
        with_environment(args, &[]).map(|(flags, _)| flags)
    }

    fn with_environment(args: &[&str], environment: &[(&str, &str)]) -> Result<(Flags, String), Vec<String>> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut reader = FLAGS.read(&args, |name| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        });
        let flags = read(&mut reader);
        let level = reader.text("loglevel").unwrap_or_default();
        reader.finish((flags, level))
    }

    #[test]
    fn the_environment_counts_where_no_flag_was_given_and_an_empty_text_is_nothing() {
        let environment =
            [("THREADINESS", "7"), ("LOGLEVEL", ""), ("CATTLE_ELECTION_LEASE_DURATION", "1m30s")];
        let (both, level) = with_environment(&["--threadiness", "3"], &environment).unwrap();
        assert_eq!(
            (both.threadiness, level.as_str(), both.lease_duration),
            (3, "info", Some(Duration::from_secs(90)))
        );
        let faults = with_environment(&[], &[("THREADINESS", "many")]).unwrap_err();
        assert_eq!(faults, ["environment variable THREADINESS: \"many\" is no number"]);
        assert!(with_environment(&[], &[("CATTLE_ELECTION_RETRY_PERIOD", "soon")]).is_err());
    }

    // Harvester's own chart gives no arguments
    #[test]
    fn the_variable_alone_has_metrics_served() {
        let environment = [("METRICS_ADDRESS", ":9402")];
        let address = |args: &[&str]| {
            with_environment(args, &environment).unwrap().0.metrics_address.unwrap().to_string()
        };
        assert_eq!(address(&[]), "[::]:9402");
        assert_eq!(address(&["--metrics-address=127.0.0.1:9433"]), "127.0.0.1:9433");
    }

    #[test]
    fn without_flags_everything_is_as_in_the_go_program() {
        assert!(!flags(&["--leader-elect=false"]).unwrap().leader_elect);
        let flags = flags(&[]).unwrap();
        assert!(flags.leader_elect);
        assert_eq!(times(&flags, false), ElectionTimes::default());
        let expected = Config {
            workers: 32,
            pod_cidrs: vec!["10.52.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.53.0.0/16".parse().unwrap()],
            dummy_endpoint: Ipv4Addr::new(10, 52, 0, 255),
            pool_choice: PoolChoice::default(),
        };
        assert_eq!(Config::default(), expected);
        assert_eq!((config(&flags), flags.metrics_address), (expected, None));
    }

    #[test]
    fn the_choice_of_a_pool_is_another_where_flags_ask_for_it() {
        let both = flags(&["--fall-over-when-full", "--strict-global-network"]).unwrap();
        let expected =
            PoolChoice { fall_over_when_full: true, strict_global_network: true, ..PoolChoice::default() };
        assert_eq!(config(&both).pool_choice, expected);
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
        assert_eq!(flags(&["-loglevel", "trace", "-threadiness=5"]).unwrap().threadiness, 5);
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
