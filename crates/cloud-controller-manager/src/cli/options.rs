//! The flags as checked values. The program names every fault, not only the first.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use cloud_config::{Places, RequestLimit};
use cloud_provider::Duties;
use credential_rotation::SecretName;
use guest_vms::TopologyLabels;
use ipnet::IpNet;

use program::{flags::Reader, serving::Certificate};

use super::{PROGRAM, topology_labels};
use crate::{
    cluster::GuestCluster,
    datapath::{AllowedDatapaths, Policy},
    load_balancers::ServiceSettings,
    requested::Aliases,
    run::ElectionSettings,
};

/// The only cloud provider of this program.
pub(super) const PROVIDER: &str = "harvester";

/// The command line, as checked values.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// `--cloud-provider`; anything but [`PROVIDER`] is fatal.
    pub(super) provider: String,
    pub(super) cloud_config: Places,
    /// Where the leader keeps a copy with a newer token.
    pub(super) rotated_secret: Option<SecretName>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) master: Option<String>,
    pub(super) cluster: GuestCluster,
    /// As it was given, for the warning.
    cluster_flag: String,
    pub(super) policy: Policy,
    pub(super) allowed: AllowedDatapaths,
    pub(super) restrict_sharing: bool,
    pub(super) aliases: Aliases,
    pub(super) management_network: Option<String>,
    pub(super) node_prefixes: Vec<IpNet>,
    pub(super) node_excluded: Vec<IpNet>,
    /// `--disable-annotation-alpha-provided-ip-addr`.
    pub(super) ignores_annotations: bool,
    pub(super) topology: TopologyLabels,
    pub(super) pod_token_file: Option<PathBuf>,
    /// Without the identity.
    pub(super) election: Option<ElectionSettings>,
    pub(super) services: bool,
    pub(super) nodes: Duties,
    pub(super) node_lifecycle: bool,
    /// Guest agents may be asked for host names.
    pub(super) host_names: bool,
    pub(super) service_workers: Option<NonZeroUsize>,
    pub(super) node_workers: usize,
    pub(super) requests: cloud_config::Options,
    pub(super) serving: Serving,
    effective: Vec<(&'static str, String)>,
}

/// The endpoint of health and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Serving {
    pub(super) address: IpAddr,
    /// 0: nowhere.
    pub(super) port: u16,
    pub(super) certificate: Certificate,
    pub(super) open_paths: Vec<String>,
    /// Where metrics alone are served over plain HTTP.
    pub(super) plain_metrics: Option<SocketAddr>,
}

impl Options {
    /// # Errors
    /// One sentence for each wrong flag.
    pub(super) fn from(mut reader: Reader<'_>) -> Result<Self, Vec<String>> {
        let given = reader.given().clone();
        // an empty name is one that is warned of
        let cluster_flag = given.last("cluster-name").unwrap_or("kubernetes").to_owned();
        let node_prefixes = reader.read("node-ip-cidr", vec![], prefixes);
        let excluded = reader.list("node-exclude-ip-ranges", prefix);
        let ignores_annotations = reader.is_on("disable-annotation-alpha-provided-ip-addr");
        let topology = reader.list("topology-labels", topology_labels::read);
        let rules = rules(&mut reader);
        let ServiceSettings {
            cluster,
            management_network,
            policy,
            allowed,
            restrict_sharing,
            aliases,
            namespace: _,
        } = rules;
        let controllers = reader.list("controllers", |name| Ok(name.to_owned()));
        let controllers: Vec<_> = controllers.iter().map(String::as_str).collect();
        unknown_controllers(&controllers).into_iter().for_each(|fault| reader.fault(fault));
        let on = |name| is_enabled(&controllers, name);
        let service_workers = match given.last("concurrent-service-syncs") {
            Some(_) => NonZeroUsize::new(reader.number("concurrent-service-syncs", 1)),
            None => None,
        };
        let options = Self {
            provider: reader.text("cloud-provider").unwrap_or_else(|| PROVIDER.to_owned()),
            cloud_config: Places {
                given: reader.text("cloud-config").map(PathBuf::from),
                rotated: reader.text("rotated-cloud-config").map(PathBuf::from),
            },
            rotated_secret: reader.optional("rotated-credential-secret", SecretName::read),
            kubeconfig: reader.text("kubeconfig").map(PathBuf::from),
            master: reader.text("master"),
            cluster,
            policy,
            allowed,
            restrict_sharing,
            aliases,
            pod_token_file: reader.text("pod-token-file").map(PathBuf::from),
            election: election(&mut reader),
            services: on(SERVICE),
            nodes: Duties { initialise: on(NODE), follow_topology: !reader.is_on("disable-vmi-controller") },
            node_lifecycle: on(LIFECYCLE),
            host_names: !reader.is_on("disable-hostname-lookup"),
            service_workers,
            node_workers: reader.number("concurrent-node-syncs", 1),
            requests: requests(&mut reader),
            serving: serving(&mut reader),
            effective: vec![
                ("cluster-name", cluster_flag.clone()),
                ("controllers", controllers.join(",")),
                ("management-network", management_network.clone().unwrap_or_default()),
                ("node-ip-cidr", reader.text("node-ip-cidr").unwrap_or_default()),
                (
                    "node-exclude-ip-ranges",
                    excluded.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                ),
                ("disable-annotation-alpha-provided-ip-addr", ignores_annotations.to_string()),
                ("topology-labels", reader.text("topology-labels").unwrap_or_default()),
                ("disable-vmi-controller", reader.is_on("disable-vmi-controller").to_string()),
                ("show-full-help-on-error", reader.is_on("show-full-help-on-error").to_string()),
                ("data-path", reader.text("data-path").unwrap_or_else(|| "guest".to_owned())),
                (
                    "allowed-data-paths",
                    reader.text("allowed-data-paths").unwrap_or_else(|| "guest,host".to_owned()),
                ),
                ("restrict-shared-address", reader.is_on("restrict-shared-address").to_string()),
                ("annotation-aliases", reader.text("annotation-aliases").unwrap_or_default()),
            ],
            cluster_flag,
            management_network,
            node_prefixes,
            node_excluded: excluded,
            ignores_annotations,
            topology: topology.into_iter().collect(),
        };
        reader.finish(options)
    }

    /// The effective values, for `/configz`.
    pub(super) fn config(&self) -> serde_json::Value {
        self.effective.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// The effective values in one line, and what is doubtful about them.
    pub(super) fn log(&self) {
        let flags: Vec<_> =
            self.effective.iter().map(|(name, value)| format!("--{name}={value:?}")).collect();
        tracing::info!("{PROGRAM} {} {}", env!("CARGO_PKG_VERSION"), flags.join(" "));
        if let Some(warning) = self.cluster.warning(&self.cluster_flag) {
            tracing::warn!("{warning}");
        }
        if !self.node_excluded.is_empty() && self.node_prefixes.is_empty() {
            tracing::warn!("--node-exclude-ip-ranges excludes nothing without --node-ip-cidr");
        }
        if self.management_network.is_none() {
            tracing::warn!(
                "--management-network is not set: the addresses of a node are those of the network of its kubelet's --node-ip, \
                 else of the first network of its VM"
            );
        }
    }
}

const SERVICE: &[&str] = &["service-lb-controller", "service", "service-lb", "loadbalancer"];
const NODE: &[&str] = &["cloud-node-controller", "cloud-node"];
const LIFECYCLE: &[&str] = &["cloud-node-lifecycle-controller", "cloud-node-lifecycle"];
const ROUTE: &[&str] = &["node-route-controller", "route"];

/// The first entry that names it decides, else whether there is a `*`.
fn is_enabled(list: &[&str], names: &[&str]) -> bool {
    for entry in list {
        if names.contains(entry) {
            return true;
        }
        if entry.strip_prefix('-').is_some_and(|name| names.contains(&name)) {
            return false;
        }
    }
    list.contains(&"*")
}

/// Forms, charts and versions know four names of one controller; all are taken (docs/contract/user-docs.md#17o).
fn unknown_controllers(list: &[&str]) -> Vec<String> {
    let known = [SERVICE, NODE, LIFECYCLE, ROUTE];
    let is_known = |entry: &&&str| {
        let name = entry.strip_prefix('-').unwrap_or(entry);
        **entry == "*" || known.iter().any(|names| names.contains(&name))
    };
    let names: Vec<_> = known.iter().map(|names| names[0]).collect();
    list.iter()
        .filter(|entry| !is_known(entry))
        .map(|entry| {
            format!("--controllers: {entry:?} is not in the list of known controllers: {}", names.join(", "))
        })
        .collect()
}

fn election(reader: &mut Reader<'_>) -> Option<ElectionSettings> {
    let usual = ElectionSettings::usual("");
    reader.read("leader-elect-resource-lock", (), |text| match text {
        "leases" => Ok(()),
        _ => Err(format!("{text:?}: leases is the only value")),
    });
    let settings = ElectionSettings {
        identity: "".into(),
        namespace: reader.text("leader-elect-resource-namespace").unwrap_or(usual.namespace),
        name: reader.text("leader-elect-resource-name").unwrap_or(usual.name),
        lease: reader.duration("leader-elect-lease-duration", usual.lease),
        renew_deadline: reader.duration("leader-elect-renew-deadline", usual.renew_deadline),
        retry_period: reader.duration("leader-elect-retry-period", usual.retry_period),
    };
    if settings.lease <= settings.renew_deadline {
        reader.fault("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline");
    }
    if settings.renew_deadline <= settings.retry_period || settings.retry_period < Duration::from_millis(1) {
        reader.fault("--leader-elect-renew-deadline must be longer than --leader-elect-retry-period");
    }
    reader.is_on("leader-elect").then_some(settings)
}

/// The settings that hold for every Service; the namespace in Harvester is the cloud-config's, and empty here.
pub(super) fn rules(reader: &mut Reader<'_>) -> ServiceSettings {
    let policy = reader.read("data-path", Policy::default(), |text| match text {
        "guest" => Ok(Policy::Guest),
        "annotation" => Ok(Policy::Annotation),
        "host" => Ok(Policy::Host),
        _ => Err(format!("{text:?}: use guest, annotation or host")),
    });
    let allowed = reader.read("allowed-data-paths", AllowedDatapaths::default(), paths);
    if policy == Policy::Host && !allowed.host || policy != Policy::Host && !allowed.guest {
        reader.fault("--allowed-data-paths excludes the path that --data-path chooses");
    }
    // an empty name is one that is warned of
    let cluster = reader.given().last("cluster-name").unwrap_or("kubernetes");
    ServiceSettings {
        cluster: GuestCluster::new(cluster),
        namespace: String::new(),
        management_network: reader.read("management-network", None, network),
        policy,
        allowed,
        restrict_sharing: reader.is_on("restrict-shared-address"),
        aliases: reader.read("annotation-aliases", Aliases::default(), programs),
    }
}

fn requests(reader: &mut Reader<'_>) -> cloud_config::Options {
    let usual = RequestLimit::default();
    cloud_config::Options {
        user_agent: format!("{PROGRAM}/{}", env!("CARGO_PKG_VERSION")),
        limit: RequestLimit {
            per_second: reader.number("kube-api-qps", usual.per_second),
            burst: reader.number("kube-api-burst", usual.burst),
        },
        observer: cloud_config::Observer::default(),
    }
}

fn serving(reader: &mut Reader<'_>) -> Serving {
    let address = reader.read("bind-address", IpAddr::from([0, 0, 0, 0]), |text| {
        text.parse().map_err(|_| format!("{text:?} is no IP address"))
    });
    let certificate = match (reader.text("tls-cert-file"), reader.text("tls-private-key-file")) {
        (Some(certificate), Some(key)) => {
            Certificate::Files { certificate: certificate.into(), key: key.into() }
        }
        (None, None) => Certificate::SelfSigned,
        _ => {
            reader.fault("--tls-cert-file and --tls-private-key-file need each other");
            Certificate::SelfSigned
        }
    };
    Serving {
        address,
        port: reader.number("secure-port", 10258),
        certificate,
        open_paths: reader.list("authorization-always-allow-paths", |path| Ok(path.to_owned())),
        plain_metrics: reader.optional("metrics-bind-address", program::flags::listen_address),
    }
}

/// `namespace/name`; a bare name is in `default`.
fn network(text: &str) -> Result<Option<String>, String> {
    match text.split('/').collect::<Vec<_>>()[..] {
        [name] => Ok(Some(format!("default/{name}"))),
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => Ok(Some(text.to_owned())),
        _ => Err(format!("{text:?} is no network: use namespace/name")),
    }
}

fn paths(text: &str) -> Result<AllowedDatapaths, String> {
    let mut allowed = AllowedDatapaths { guest: false, host: false };
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word {
            "guest" => allowed.guest = true,
            "host" => allowed.host = true,
            _ => return Err(format!("{word:?}: use guest, host, or both with a comma")),
        }
    }
    Ok(allowed)
}

/// `--annotation-aliases`.
fn programs(text: &str) -> Result<Aliases, String> {
    let mut aliases = Aliases::default();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        match item {
            "metallb" => aliases.metallb = true,
            "cilium" => aliases.cilium = true,
            _ => return Err(format!("{item:?}: use metallb, cilium or both, separated by commas")),
        }
    }
    Ok(aliases)
}

/// One address or prefix. Host bits are allowed, as Go has it.
fn prefix(text: &str) -> Result<IpNet, String> {
    let single = text.parse::<IpAddr>().map(IpNet::from).ok();
    single
        .or_else(|| text.parse().ok())
        .ok_or_else(|| format!("{text:?} is neither an IP address nor a CIDR"))
}

/// Prefixes for InternalIPs: at most one of each family, of addresses that a node can have.
fn prefixes(text: &str) -> Result<Vec<IpNet>, String> {
    let mut found: Vec<IpNet> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let net = prefix(item)?;
        let ip = net.addr();
        let local = match ip {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() {
            return Err(format!("{item:?} cannot be the address of a node"));
        }
        if found.iter().any(|other| other.addr().is_ipv4() == ip.is_ipv4()) {
            return Err(format!("{item:?} is the second entry of its IP family"));
        }
        found.push(net);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cli::FLAGS;

    fn options(args: &[&str]) -> Result<Options, Vec<String>> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Options::from(FLAGS.read(&args, |_| None))
    }

    #[test]
    fn without_flags_the_defaults_of_the_go_program_hold() {
        let options = options(&[]).unwrap();
        assert_eq!(options.cluster.name(), "kubernetes");
        assert_eq!((options.policy, options.allowed), (Policy::Guest, AllowedDatapaths::default()));
        assert_eq!(options.election, Some(ElectionSettings::usual("")));
        assert_eq!((options.serving.port, options.services), (10258, true));
        assert_eq!(options.nodes, Duties { initialise: true, follow_topology: true });
        assert!(options.node_lifecycle);
    }

    #[rstest]
    #[case::unknown_flag(&["--nope=1"], "unknown flag")]
    #[case::network_parts(&["--management-network=a/b/c"], "a/b/c")]
    #[case::network_empty_part(&["--management-network=/b"], "namespace/name")]
    #[case::aliases(&["--annotation-aliases=metallb,istio"], "istio")]
    #[case::cidr(&["--node-ip-cidr=x"], "neither")]
    #[case::cidr_twice(&["--node-ip-cidr=10.0.0.0/8,11.0.0.0/8"], "second entry")]
    #[case::cidr_loopback(&["--node-ip-cidr=127.0.0.0/8"], "cannot be the address")]
    #[case::cidr_link_local(&["--node-ip-cidr=fe80::/64"], "cannot be the address")]
    #[case::cidr_broadcast(&["--node-ip-cidr=255.255.255.255"], "cannot be the address")]
    #[case::topology_hostname(&["--topology-labels=kubernetes.io/hostname"], "written by others")]
    #[case::topology_key(&["--topology-labels=a b"], "no key of a label")]
    #[case::topology_annotation(&["--topology-labels=a/b="], "no key of a label")]
    #[case::exclude(&["--node-exclude-ip-ranges=10.0.0.0/8,y"], "\"y\"")]
    #[case::controllers(&["--controllers=*,nodes"], "\"nodes\"")]
    #[case::lock(&["--leader-elect-resource-lock=endpoints"], "leases")]
    #[case::times(&["--leader-elect-lease-duration=5s"], "longer")]
    #[case::path(&["--data-path=both"], "guest, annotation or host")]
    #[case::excluded(&["--data-path=host", "--allowed-data-paths=guest"], "excludes")]
    #[case::half_a_pair(&["--tls-cert-file=a"], "need each other")]
    #[case::port(&["--secure-port=99999"], "no number")]
    #[case::metrics_without_port(&["--metrics-bind-address=0.0.0.0"], ":9402")]
    fn a_wrong_value_is_refused_with_its_flag(#[case] args: &[&str], #[case] part: &str) {
        let faults = options(args).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }

    #[test]
    fn the_configuration_has_the_effective_values() {
        let config = options(&["--cluster-name=blue"]).unwrap().config();
        assert_eq!((&config["cluster-name"], &config["data-path"]), (&"blue".into(), &"guest".into()));
    }

    #[test]
    fn all_wrong_values_are_told_together() {
        let wrong = ["--node-ip-cidr=x", "--data-path=y", "--controllers=z", "--no-such-flag"];
        assert_eq!(options(&wrong).unwrap_err().len(), 4);
    }

    #[test]
    fn every_flag_about_addresses_of_nodes_is_taken() {
        let options = options(&[
            "--node-exclude-ip-ranges=10.0.0.0/8, 10.1.2.3",
            "--node-exclude-ip-ranges=fd00::/64",
            "--disable-annotation-alpha-provided-ip-addr",
        ])
        .unwrap();
        let ranges: Vec<_> = options.node_excluded.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["10.0.0.0/8", "10.1.2.3/32", "fd00::/64"]);
        assert!(options.ignores_annotations);
    }

    // docs/contract/user-docs.md#17o
    #[test]
    fn each_flag_that_the_published_documents_name_does_what_they_say() {
        let options = options(&[
            "--controllers=cloud-node-controller,cloud-node-lifecycle-controller,node-route-controller",
            "--v=4",
            "--cluster-name=demo",
            "--cloud-config=/etc/kubernetes/cloud-config",
            "--disable-vmi-controller",
            "--show-full-help-on-error",
            "--management-network=default/vlan-100",
            "--node-ip-cidr=192.168.100.0/25",
            "--node-exclude-ip-ranges=192.168.100.128/25",
            "--disable-annotation-alpha-provided-ip-addr=true",
        ])
        .unwrap();
        assert_eq!(options.nodes, Duties { initialise: true, follow_topology: false });
        assert_eq!((options.services, options.node_lifecycle), (false, true));
        assert_eq!(options.cluster.name(), "demo");
        assert_eq!(options.cloud_config.given, Some("/etc/kubernetes/cloud-config".into()));
        assert_eq!(options.management_network.as_deref(), Some("default/vlan-100"));
        assert_eq!((options.node_prefixes.len(), options.node_excluded.len()), (1, 1));
        assert!(options.ignores_annotations);
        assert_eq!(options.config()["show-full-help-on-error"], "true");
    }

    #[test]
    fn blanks_and_host_bits_are_taken() {
        let options =
            options(&["--node-ip-cidr= 10.1.2.3/8 ,, fd00::1", "--management-network=mgmt"]).unwrap();
        assert_eq!(options.node_prefixes.len(), 2);
        assert_eq!(options.management_network.as_deref(), Some("default/mgmt"));
    }

    // docs/contract/user-docs.md#17o
    #[rstest]
    #[case(&["*"], true)]
    #[case(&["*", "-service"], false)]
    #[case(&["*", "-loadbalancer"], false)]
    #[case(&["-service-lb-controller", "*"], false)]
    #[case(&["*", "-service-lb"], false)]
    #[case(&["cloud-node"], false)]
    #[case(&["loadbalancer"], true)]
    fn every_name_of_the_service_controller_is_known(#[case] list: &[&str], #[case] expected: bool) {
        assert_eq!(unknown_controllers(list), Vec::<String>::new());
        assert_eq!(is_enabled(list, SERVICE), expected);
    }

    #[rstest]
    #[case("*", true)]
    #[case("*,-cloud-node-lifecycle", false)]
    #[case("*,-cloud-node-lifecycle-controller", false)]
    #[case("cloud-node", false)]
    #[case("cloud-node-lifecycle", true)]
    fn every_name_of_the_lifecycle_controller_is_known(#[case] list: &str, #[case] expected: bool) {
        let options = options(&[&format!("--controllers={list}")]).unwrap();
        assert_eq!(options.node_lifecycle, expected);
    }
}
