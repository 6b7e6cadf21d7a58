//! The checks. Each is a pure function of the facts; a helper that ends with `?` answers for it where a request failed.

mod credential;
mod guest;
mod harvester;
mod leftovers;
mod replacement;
mod rights;
mod storage;
mod workloads;

use jiff::SignedDuration;
use serde_json::Value;

use super::{
    Check, Occasion, Outcome,
    facts::{Answer, Cluster, Config, Facts, Failed, Trouble},
    read,
};
use crate::json::{self, members, text};
use credential::{anew, end_of_authority, is_unknown_to_rancher, life, login, rancher_credential};
use guest::{agents, dhcp, machines, nodes, service_addresses, tunnel_address};
use harvester::{conversion, crd_fields, crds, load_balancer, pools, webhook};
use leftovers::leftovers;
use replacement::{
    attachments, cluster_name, one_machine, way_back_credential, way_back_data_path, way_back_fields,
};
use rights::{rights_load_balancers, rights_machines, rights_volumes};
use storage::{csi_driver, csi_leader, snapshot_crds, storage_classes};
use workloads::{ccm, kube_vip, one_provider};

const GUEST: &[&str] = &["guest-api"];
const HARVESTER: &[&str] = &["harvester-login"];
/// For what compares Services with LoadBalancers.
const BOTH: &[&str] = &["guest-api", "harvester-login", "load-balancer-crds"];
/// What gives a Service its address.
const SERVED: &[&str] = &["guest-api", "webhook", "load-balancer", "pools", "ccm", "kube-vip", "dhcp"];
const STORAGE: &[&str] = &["guest-api", "csi-driver"];

const fn check(
    id: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    look: fn(&Facts) -> Result<Outcome, Outcome>,
) -> Check {
    Check { id, about, needs, occasions: Occasion::ALL, look }
}

/// A check of these occasions alone.
const fn only(occasions: &'static [Occasion], check: Check) -> Check {
    Check { occasions, ..check }
}

const DAILY: &[Occasion] = &[Occasion::Daily];
const OURS_RUN: &[Occasion] = &[Occasion::Daily, Occasion::BeforeRollback];
const REPLACED: &[Occasion] = &[Occasion::BeforeUpgrade, Occasion::BeforeRollback];
const UPGRADED: &[Occasion] = &[Occasion::BeforeUpgrade];
const ROLLED_BACK: &[Occasion] = &[Occasion::BeforeRollback];

/// Every check, in the order in which they are shown.
pub const CHECKS: &[Check] = &[
    check("guest-api", "the guest cluster's API server answers", &[], guest_api),
    check("guest-version", "the guest cluster's Kubernetes is one that is served", GUEST, guest_version),
    check("cloud-config", "there is a cloud-config, and it can be read", &[], cloud_config),
    check("harvester-endpoint", "somebody answers at the cloud-config's server", &["cloud-config"], endpoint),
    check(
        "harvester-ca",
        "the cloud-config's CA signed the server's certificate",
        &["harvester-endpoint"],
        ca,
    ),
    check("credential-life", "the credential lasts for a week and more", &["cloud-config"], life),
    check(
        "harvester-login",
        "Harvester knows the cloud-config's credential",
        &["harvester-ca", "credential-life"],
        login,
    ),
    check(
        "rancher-credential",
        "the cloud credential by which Rancher makes machines is valid, and lasts",
        &[],
        rancher_credential,
    ),
    check("clock", "the clocks of both clusters and of this machine agree", HARVESTER, clock),
    check("harvester-version", "Harvester is a release that is served", HARVESTER, harvester_version),
    check(
        "rights-load-balancers",
        "the credential may do what load balancers need",
        HARVESTER,
        rights_load_balancers,
    ),
    check(
        "rights-machines",
        "the credential may read the guest cluster's machines",
        HARVESTER,
        rights_machines,
    ),
    check("load-balancer-crds", "Harvester has the kinds LoadBalancer and IPPool", HARVESTER, crds),
    // the Go programs know none of them
    only(
        DAILY,
        check(
            "load-balancer-fields",
            "the kinds have the fields of this project, where its load balancer serves them",
            &["load-balancer-crds"],
            crd_fields,
        ),
    ),
    check(
        "webhook",
        "Harvester's webhook answers to a LoadBalancer",
        &["load-balancer-crds", "rights-load-balancers"],
        webhook,
    ),
    check(
        "conversion",
        "LoadBalancers of the former version can be read",
        &["load-balancer-crds", "webhook"],
        conversion,
    ),
    check(
        "load-balancer",
        "no LoadBalancer waits for Harvester's load balancer",
        &["load-balancer-crds"],
        load_balancer,
    ),
    check("pools", "some IPPool has free addresses", &["load-balancer-crds"], pools),
    check("ccm", "somebody leads the cloud controller managers", GUEST, ccm),
    check(
        "one-provider",
        "one cloud provider and one CSI driver run, and nothing else gives Services addresses",
        GUEST,
        one_provider,
    ),
    check("nodes", "every Node is known to be a machine of Harvester", GUEST, nodes),
    check(
        "machines",
        "every Node's VirtualMachine is in the namespace of the cloud-config",
        &["nodes", "harvester-login", "rights-machines"],
        machines,
    ),
    check("guest-agents", "the guest agent of every Node's machine is connected", &["machines"], agents),
    check(
        "kube-vip",
        "kube-vip runs in the guest cluster, where Services need it, and one alone announces them",
        GUEST,
        kube_vip,
    ),
    check(
        "tunnel-address",
        "no network plugin took a Service's address for its tunnels",
        GUEST,
        tunnel_address,
    ),
    check("dhcp", "Services with DHCP have their addresses", &["guest-api", "kube-vip"], dhcp),
    check("service-addresses", "every Service of type LoadBalancer is served", SERVED, service_addresses),
    check("leftovers", "no LoadBalancer is left without its Service", BOTH, leftovers),
    check("csi-driver", "the CSI driver is registered on every Node that runs it", GUEST, csi_driver),
    // the Go driver has no such Lease
    only(OURS_RUN, check("csi-leader", "somebody heals attachments", STORAGE, csi_leader)),
    check(
        "rights-volumes",
        "the credential may do what volumes need",
        &["harvester-login", "csi-driver"],
        rights_volumes,
    ),
    check("snapshot-crds", "the guest cluster has the kinds of snapshots", STORAGE, snapshot_crds),
    check(
        "storage-classes",
        "the host classes that StorageClasses name are there",
        &["harvester-login", "csi-driver"],
        storage_classes,
    ),
    only(REPLACED, check("attachments", "no volume is being attached or detached", STORAGE, attachments)),
    only(
        REPLACED,
        check(
            "one-machine",
            "no volume is in two machines",
            &["harvester-login", "csi-driver", "rights-machines"],
            one_machine,
        ),
    ),
    only(
        UPGRADED,
        check(
            "cluster-name",
            "the guest cluster's load balancers carry one name of a cluster, for the chart to keep",
            BOTH,
            cluster_name,
        ),
    ),
    only(
        ROLLED_BACK,
        check(
            "way-back-data-path",
            "no load balancer has a data path that the Go program cannot change",
            BOTH,
            way_back_data_path,
        ),
    ),
    only(
        ROLLED_BACK,
        check(
            "way-back-fields",
            "no load balancer and no pool asks for what the Go programs do not know",
            &["load-balancer-crds"],
            way_back_fields,
        ),
    ),
    only(
        ROLLED_BACK,
        check(
            "way-back-credential",
            "the cloud-config does not end, as the Go programs do not renew it",
            &["cloud-config"],
            way_back_credential,
        ),
    ),
];

// ---- what was read

fn answer<'a>(cluster: &'a Cluster, path: &str) -> &'a Answer {
    static NEVER: Answer = Err(Failed { trouble: Trouble::NoAnswer, why: String::new() });
    cluster.answers.get(path).unwrap_or(&NEVER)
}

/// The answer of use, or the outcome of a check that needs it.
fn got<'a>(cluster: &'a Cluster, path: &str) -> Result<&'a Value, Outcome> {
    answer(cluster, path).as_ref().map_err(|failed| unread(path, failed))
}

fn unread(path: &str, failed: &Failed) -> Outcome {
    Outcome::not_asked(format!("GET {path} failed: {}", failed.why))
}

fn items<'a>(cluster: &'a Cluster, path: &str) -> Result<&'a [Value], Outcome> {
    Ok(json::items_or_none(got(cluster, path)?))
}

/// Those of the kinds that are not served under the path of their group and version.
fn unserved(cluster: &Cluster, path: &str, kinds: &[&'static str]) -> Result<Vec<&'static str>, Outcome> {
    let there = match answer(cluster, path) {
        Err(Failed { trouble: Trouble::NotFound, .. }) => &[],
        _ => members(&got(cluster, path)?["resources"]),
    };
    let is_missing = |kind: &&str| !there.iter().any(|resource| resource["name"] == **kind);
    Ok(kinds.iter().copied().filter(is_missing).collect())
}

/// The first few, and how many more.
fn some<T: AsRef<str>>(names: &[T]) -> String {
    const NAMED: usize = 3;
    let named: Vec<_> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(NAMED);
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

fn config(facts: &Facts) -> Result<&Config, Outcome> {
    facts.config.as_ref().map_err(Outcome::not_asked)
}

// ---- the guest cluster and the way to Harvester

fn guest_api(facts: &Facts) -> Result<Outcome, Outcome> {
    let kinds = answer(&facts.guest, read::HARVESTER_KINDS).as_ref().map(|list| members(&list["resources"]));
    Ok(match answer(&facts.guest, read::VERSION) {
        Ok(_) if kinds.is_ok_and(|kinds| kinds.iter().any(|kind| kind["name"] == "settings")) => {
            Outcome::red(
                "this is a Harvester and no guest cluster: it has the kind settings.harvesterhci.io",
                "give the guest cluster's kubeconfig by --kubeconfig, and Harvester's by --cloud-config",
            )
        }
        Ok(version) => Outcome::green(format!("Kubernetes {}", text(version, "/gitVersion"))),
        Err(failed) => Outcome::red(
            failed.why.clone(),
            "give the guest cluster's kubeconfig by --kubeconfig, and check that its server is reached from here",
        ),
    })
}

/// Kubernetes before it lacks fields that all parts rely on.
const OLDEST_KUBERNETES: (u32, u32) = (1, 25);
const OLDEST_HARVESTER: (u32, u32) = (1, 3);

/// `v1.31.4+rke2r1`, `1.5.0`.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn served(what: &str, version: &str, oldest: (u32, u32)) -> Outcome {
    let (major, minor) = oldest;
    match release(version) {
        Some(release) if release < oldest => Outcome::red(
            format!("{what} {version} is older than {major}.{minor}"),
            format!("bring it to {major}.{minor} or later: older ones are not served"),
        ),
        // a build of the master branch has no number
        _ => Outcome::green(version),
    }
}

fn guest_version(facts: &Facts) -> Result<Outcome, Outcome> {
    Ok(served("Kubernetes", text(got(&facts.guest, read::VERSION)?, "/gitVersion"), OLDEST_KUBERNETES))
}

fn cloud_config(facts: &Facts) -> Result<Outcome, Outcome> {
    Ok(match &facts.config {
        Ok(config) => {
            let found = format!("{}: {}, namespace {}", config.file, config.server, config.namespace);
            Outcome::green(found).and(config.note.as_deref())
        }
        // a new one would be refused for the same reason
        Err(why) if why.contains(": proxy: ") => Outcome::red(
            why.clone(),
            "mend the variable HTTPS_PROXY of this shell, or proxy-url in the file; NO_PROXY names servers that need no proxy",
        ),
        Err(why) => Outcome::red(
            why.clone(),
            "with an administrator's kubeconfig of Harvester in KUBECONFIG run `(umask 077; deploy/generate_addon_csi.sh CLUSTER \
             NAMESPACE --format kubeconfig > new-cloud-config)`, and name the file by --cloud-config",
        ),
    })
}

fn endpoint(facts: &Facts) -> Result<Outcome, Outcome> {
    let config = config(facts)?;
    Ok(match answer(&facts.harvester, read::VERSION) {
        Err(Failed { trouble: Trouble::NoAnswer, why }) if why.contains("tunnel error") => Outcome::red(
            format!("{} is not reached through the proxy: {why}", config.server),
            "check the proxy (the variable HTTPS_PROXY, or proxy-url in the cloud-config), or name the server in NO_PROXY",
        ),
        Err(Failed { trouble: Trouble::NoAnswer, why }) => Outcome::red(
            format!("{} does not answer: {why}", config.server),
            "check that this machine reaches Harvester's VIP, and that the cloud-config names its server",
        ),
        // an API server tells its version to whom it knows; a proxy, another port and Rancher's path of a cluster that is away
        // answer to everything in their own way
        Err(failed)
            if matches!(failed.trouble, Trouble::NotFound | Trouble::Refused)
                && !is_unknown_to_rancher(failed) =>
        {
            Outcome::red(
                format!("{} answers GET {} with an error: {}", config.server, read::VERSION, failed.why),
                "check the port and the path of the server that the cloud-config names, and what stands between, such as Rancher; \
                 then ask again",
            )
        }
        _ => Outcome::green(config.server.clone()),
    })
}

fn ca(facts: &Facts) -> Result<Outcome, Outcome> {
    let config = config(facts)?;
    Ok(match answer(&facts.harvester, read::VERSION) {
        Err(Failed { trouble: Trouble::Certificate, why }) if why.contains("certificate expired") => {
            Outcome::red(
                why.clone(),
                "the server's own certificate has ended, and no cloud-config helps: have it renewed on Harvester's hosts",
            )
        }
        Err(Failed { trouble: Trouble::Certificate, why }) => Outcome::red(
            why.clone(),
            format!("Harvester's certificate was changed, or another server answers there: {}", anew(config)),
        ),
        _ if config.trusts_everybody => Outcome::amber(
            "insecure-skip-tls-verify is set: whoever answers there gets the token",
            "take it out of the cloud-config, and name the CA instead (certificate-authority-data)",
        ),
        _ => match end_of_authority(config, facts) {
            Some(sentence) => {
                Outcome::amber(sentence, format!("have it renewed in Harvester; then {}", anew(config)))
            }
            None => Outcome::green("the server's certificate is trusted"),
        },
    })
}

/// Leases and tokens bear less.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(30);

fn clock(facts: &Facts) -> Result<Outcome, Outcome> {
    let of_servers = [("Harvester", facts.harvester_time), ("the guest cluster", facts.guest_time)];
    let of_servers: Vec<_> =
        of_servers.into_iter().filter_map(|(whose, time)| Some((whose, time?))).collect();
    if of_servers.is_empty() {
        return Err(Outcome::not_asked("the servers' answers have no time"));
    }
    let clocks = || of_servers.iter().copied().chain([("this machine", facts.now)]);
    let [first, last] = [clocks().map(|(_, time)| time).min(), clocks().map(|(_, time)| time).max()];
    let apart = last.unwrap_or(facts.now).duration_since(first.unwrap_or(facts.now));
    Ok(if apart > CLOCKS_DIFFER {
        let shown: Vec<_> = clocks().map(|(whose, time)| format!("{whose} shows {time}")).collect();
        Outcome::red(
            format!("clocks differ: {}", shown.join(", ")),
            "run chrony on all of them: tokens and Leases are judged by the clock",
        )
    } else {
        Outcome::green(format!("{} s apart", apart.as_secs()))
    })
}

/// The cluster answers, and has none of the kinds that every Harvester has.
fn is_no_harvester(facts: &Facts) -> bool {
    let kinds = answer(&facts.harvester, read::HARVESTER_KINDS);
    kinds.as_ref().is_err_and(|failed| failed.trouble == Trouble::NotFound)
}

/// What mends a Harvester makes nothing better in another cluster: `harvester-version` tells of that alone.
fn asked_of_harvester(facts: &Facts) -> Result<(), Outcome> {
    if is_no_harvester(facts) { Err(Outcome::waits_for("harvester-version")) } else { Ok(()) }
}

fn harvester_version(facts: &Facts) -> Result<Outcome, Outcome> {
    if is_no_harvester(facts) {
        return Ok(Outcome::red(
            format!("{} is no Harvester: it has no kinds of harvesterhci.io", config(facts)?.server),
            "name Harvester's cloud-config by --cloud-config: this one is of another cluster, perhaps of the guest cluster itself",
        ));
    }
    let version = harvester_version_of(got(&facts.harvester, read::HARVESTER_VERSION)?);
    let version =
        version.ok_or_else(|| Outcome::not_asked("setting server-version of Harvester is empty"))?;
    Ok(served("Harvester", version, OLDEST_HARVESTER))
}

fn harvester_version_of(setting: &Value) -> Option<&str> {
    [text(setting, "/value"), text(setting, "/default")].into_iter().find(|it| !it.is_empty())
}

/// `None`: it cannot be read, or is a build without a number.
fn harvester_release(facts: &Facts) -> Option<(u32, u32)> {
    release(harvester_version_of(answer(&facts.harvester, read::HARVESTER_VERSION).as_ref().ok()?)?)
}
