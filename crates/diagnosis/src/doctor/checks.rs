//! The checks. Each is a pure function of the facts; a helper that ends with `?` answers for it where a request failed.

use std::{collections::BTreeSet, net::IpAddr};

use cloud_config::expiry::{Expiry, WARN_BEFORE};
use harvester_api::{annotations, names};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    Check, Outcome,
    facts::{Answer, Cluster, Config, Facts, Failed, Trouble},
    read,
};

const GUEST: &[&str] = &["guest-api"];
const HARVESTER: &[&str] = &["harvester-login"];
const BOTH: &[&str] = &["guest-api", "harvester-login"];
const STORAGE: &[&str] = &["guest-api", "csi-driver"];

const fn check(
    id: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    look: fn(&Facts) -> Result<Outcome, Outcome>,
) -> Check {
    Check { id, about, needs, look }
}

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
    check("harvester-login", "Harvester knows the cloud-config's credential", &["harvester-ca"], login),
    check("credential-life", "the credential lasts for two weeks and more", &["cloud-config"], life),
    check("clock", "the clocks of Harvester and of this machine agree", HARVESTER, clock),
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
    check(
        "conversion",
        "LoadBalancers of the former version can be read",
        &["load-balancer-crds"],
        conversion,
    ),
    check(
        "webhook",
        "Harvester's webhook answers to a LoadBalancer",
        &["load-balancer-crds", "rights-load-balancers"],
        webhook,
    ),
    check("pools", "some IPPool has free addresses", &["load-balancer-crds"], pools),
    check("ccm", "somebody leads the cloud controller managers", GUEST, ccm),
    check("one-provider", "one cloud provider and one CSI driver run", GUEST, one_provider),
    check("nodes", "every Node has its VirtualMachine", GUEST, nodes),
    check(
        "guest-agents",
        "the guest agent of every Node's machine is connected",
        &["nodes", "harvester-login", "rights-machines"],
        agents,
    ),
    check("kube-vip", "kube-vip runs in the guest cluster, where Services need it", GUEST, kube_vip),
    check(
        "tunnel-address",
        "no network plugin took a Service's address for its tunnels",
        GUEST,
        tunnel_address,
    ),
    check("dhcp", "Services with DHCP have their addresses", &["guest-api", "kube-vip"], dhcp),
    check("leftovers", "no LoadBalancer is left without its Service", BOTH, leftovers),
    check("csi-driver", "the CSI driver is registered on every Node that runs it", GUEST, csi_driver),
    check("csi-leader", "somebody heals attachments", STORAGE, csi_leader),
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
    Ok(got(cluster, path)?["items"].as_array().map(Vec::as_slice).unwrap_or_default())
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// `namespace/name`.
fn key(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), name(object))
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
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
    Ok(match answer(&facts.guest, read::VERSION) {
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
            Outcome::green(format!("{}: {}, namespace {}", config.file, config.server, config.namespace))
        }
        Err(why) => {
            Outcome::red(why.clone(), "make one with deploy/generate_addon.sh, and name it by --cloud-config")
        }
    })
}

fn endpoint(facts: &Facts) -> Result<Outcome, Outcome> {
    let config = config(facts)?;
    Ok(match answer(&facts.harvester, read::VERSION) {
        Err(Failed { trouble: Trouble::NoAnswer, why }) => Outcome::red(
            format!("{} does not answer: {why}", config.server),
            "check that this machine reaches Harvester's VIP, and that the cloud-config names its server",
        ),
        _ => Outcome::green(config.server.clone()),
    })
}

fn ca(facts: &Facts) -> Result<Outcome, Outcome> {
    Ok(match answer(&facts.harvester, read::VERSION) {
        Err(Failed { trouble: Trouble::Certificate, why }) => Outcome::red(
            why.clone(),
            "make the cloud-config anew: Harvester's certificate was changed, or another server answers there",
        ),
        _ => Outcome::green("the server's certificate is trusted"),
    })
}

fn login(facts: &Facts) -> Result<Outcome, Outcome> {
    let config = config(facts)?;
    // everybody may read /version; the list shows whether the credential counts
    let answers = [read::balancers(&config.namespace), read::VERSION.to_owned()];
    for failed in answers.iter().filter_map(|path| answer(&facts.harvester, path).as_ref().err()) {
        if failed.why.contains("clusters.management.cattle.io") {
            return Ok(Outcome::red(
                format!("Rancher does not know this Harvester any more: {}", failed.why),
                "Harvester was imported into Rancher anew (rancher issue 53642): make the cloud credential and the \
                 cloud-config anew",
            ));
        }
        if failed.trouble == Trouble::Unauthorized {
            return Ok(Outcome::red(
                format!("Harvester refuses the credential: {}", failed.why),
                "make the cloud-config anew: the token was revoked or has ended (harvester issue 5827)",
            ));
        }
    }
    got(&facts.harvester, read::VERSION)?;
    Ok(Outcome::green("the credential is valid"))
}

/// Two weeks: time to make a new one.
fn life(facts: &Facts) -> Result<Outcome, Outcome> {
    let expiry = config(facts)?.expiry;
    let mend = "make the cloud-config anew, or let it be rotated";
    Ok(match (expiry, expiry.remaining(facts.now)) {
        (Expiry::At(end), Some(left)) if !left.is_positive() => {
            Outcome::red(format!("it ended at {end} (harvester issue 5827)"), mend)
        }
        (Expiry::At(end), Some(left)) if left < WARN_BEFORE * 2 => {
            Outcome::amber(format!("it ends at {end}, in {} days", left.as_hours() / 24), mend)
        }
        (Expiry::At(end), _) => Outcome::green(format!("it ends at {end}")),
        (Expiry::Never, _) => Outcome::green("it does not end"),
        (Expiry::Unknown, _) => Outcome::not_asked("the credential does not say when it ends"),
    })
}

/// Leases and tokens bear less.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(30);

fn clock(facts: &Facts) -> Result<Outcome, Outcome> {
    let there = facts.harvester_time.ok_or_else(|| Outcome::not_asked("Harvester's answers have no time"))?;
    let apart = facts.now.duration_since(there).abs();
    Ok(if apart > CLOCKS_DIFFER {
        Outcome::red(
            format!("Harvester's clock shows {there}, this machine's {}", facts.now),
            "run chrony on both: tokens and Leases are judged by the clock",
        )
    } else {
        Outcome::green(format!("{} s apart", apart.as_secs()))
    })
}

fn harvester_version(facts: &Facts) -> Result<Outcome, Outcome> {
    let setting = got(&facts.harvester, read::HARVESTER_VERSION)?;
    let version = [text(setting, "/value"), text(setting, "/default")].into_iter().find(|it| !it.is_empty());
    Ok(served("Harvester", version.unwrap_or("of unknown release"), OLDEST_HARVESTER))
}

/// Whether each grant of a check is given.
fn rights(facts: &Facts, check: &str, feature: &str) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let of_check = || facts.grants.iter().filter(|(grant, _)| grant.check == check);
    if of_check().any(|(_, allowed)| allowed.is_none()) {
        return Err(Outcome::not_asked("Harvester does not answer to questions about rights"));
    }
    let missing: Vec<_> = of_check()
        .filter(|(_, allowed)| *allowed == Some(false))
        .map(|(grant, _)| match grant.subresource {
            "" => format!("{} {}", grant.verb, grant.resource),
            sub => format!("{} {}/{sub}", grant.verb, grant.resource),
        })
        .collect();
    Ok(if missing.is_empty() {
        Outcome::green(format!("all that {feature} need, in namespace {namespace}"))
    } else {
        Outcome::red(
            format!("not allowed in namespace {namespace}: {}", some(&missing)),
            format!(
                "bind the role of deploy/rbac in namespace {namespace} to the cloud-config's ServiceAccount; without it \
                 {feature} are not served"
            ),
        )
    })
}

fn rights_load_balancers(facts: &Facts) -> Result<Outcome, Outcome> {
    rights(facts, "rights-load-balancers", "Services of type LoadBalancer")
}

fn rights_machines(facts: &Facts) -> Result<Outcome, Outcome> {
    rights(facts, "rights-machines", "Nodes")
}

fn rights_volumes(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    rights(facts, "rights-volumes", "volumes")
}

// ---- Harvester

fn crds(facts: &Facts) -> Result<Outcome, Outcome> {
    let none = || {
        Outcome::red(
            "Harvester does not serve loadbalancer.harvesterhci.io/v1beta1",
            "install the chart harvester-load-balancer in Harvester",
        )
    };
    let group = match answer(&facts.harvester, read::BALANCER_GROUP) {
        Err(Failed { trouble: Trouble::NotFound, .. }) => return Ok(none()),
        _ => got(&facts.harvester, read::BALANCER_GROUP)?,
    };
    let versions = group["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(if versions.iter().any(|version| version["version"] == "v1beta1") {
        Outcome::green("v1beta1 is served")
    } else {
        none()
    })
}

fn conversion(facts: &Facts) -> Result<Outcome, Outcome> {
    let path = read::former(&config(facts)?.namespace);
    Ok(match answer(&facts.harvester, &path) {
        Ok(_) => Outcome::green("v1alpha1 can be read"),
        Err(Failed { trouble: Trouble::NotFound, .. }) => Outcome::green("v1alpha1 is not served"),
        Err(Failed { trouble: Trouble::Refused, why }) => Outcome::red(
            format!("LoadBalancers cannot be converted: {why}"),
            "start the webhook in Harvester; its log says who may write the conversion of the CRD",
        ),
        Err(failed) => unread(&path, failed),
    })
}

fn webhook(facts: &Facts) -> Result<Outcome, Outcome> {
    Ok(match &facts.trial {
        Ok(()) => Outcome::green("a LoadBalancer was accepted for a trial, and not stored"),
        // an answer of the webhook is an answer
        Err(failed)
            if failed.trouble == Trouble::Refused && failed.why.contains("failed calling webhook") =>
        {
            Outcome::red(
                failed.why.clone(),
                "start harvester-load-balancer-webhook in Harvester; its log tells of the certificate",
            )
        }
        Err(failed) if failed.trouble == Trouble::Refused => {
            Outcome::green(format!("a LoadBalancer was refused for a trial: {}", failed.why))
        }
        Err(failed) => Outcome::not_asked(failed.why.clone()),
    })
}

fn pools(facts: &Facts) -> Result<Outcome, Outcome> {
    let pools = items(&facts.harvester, read::POOLS)?;
    let free = |pool: &Value| pool["status"]["available"].as_i64().unwrap_or_default();
    let all: i64 = pools.iter().map(free).sum();
    Ok(match pools.len() {
        0 => Outcome::red(
            "Harvester has no IPPool",
            "make one: Services with IPAM pool wait until there is one",
        ),
        count if all == 0 => {
            Outcome::red(format!("none of {count} IPPools has a free address"), "add a range to one of them")
        }
        count => Outcome::green(format!("{all} free addresses in {count} IPPools")),
    })
}

// ---- load balancers in the guest

/// Somebody holds the Lease, and renewed it in time.
fn leader(facts: &Facts, path: &str, program: &str) -> Result<Outcome, Outcome> {
    let stopped = |what: String| {
        Outcome::red(
            what,
            format!("start {program} in the guest cluster; `kubectl -n kube-system get pods` shows why not"),
        )
    };
    let lease = match answer(&facts.guest, path) {
        Err(Failed { trouble: Trouble::NotFound, .. }) => {
            return Ok(stopped(format!("there is no Lease of {program}: it never ran")));
        }
        _ => got(&facts.guest, path)?,
    };
    let holder = text(lease, "/spec/holderIdentity");
    let renewed: Option<Timestamp> = text(lease, "/spec/renewTime").parse().ok();
    let lasts = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or_default();
    Ok(match renewed {
        Some(at)
            if !holder.is_empty()
                && facts.now.duration_since(at).as_secs() <= lasts + CLOCKS_DIFFER.as_secs() =>
        {
            Outcome::green(format!("{holder} leads"))
        }
        _ if holder.is_empty() => stopped(format!("nobody holds the Lease of {program}")),
        _ => stopped(format!("{holder} renews the Lease of {program} no more")),
    })
}

fn ccm(facts: &Facts) -> Result<Outcome, Outcome> {
    leader(facts, read::CCM_LEASE, "the cloud controller manager")
}

/// Deployments and DaemonSets.
fn workloads(facts: &Facts) -> Result<impl Iterator<Item = &Value>, Outcome> {
    Ok(items(&facts.guest, read::DEPLOYMENTS)?.iter().chain(items(&facts.guest, read::DAEMON_SETS)?))
}

fn containers(workload: &Value) -> impl Iterator<Item = &Value> {
    workload["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten()
}

/// The name of the image without registry and tag.
fn image(container: &Value) -> &str {
    let image = container["image"].as_str().unwrap_or_default();
    let image = image.split('@').next().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

fn runs(workload: &Value, what: &str) -> bool {
    containers(workload).any(|container| image(container).contains(what))
}

fn one_provider(facts: &Facts) -> Result<Outcome, Outcome> {
    let all: Vec<_> = workloads(facts)?.collect();
    let providers: Vec<_> = all
        .iter()
        .filter(|it| runs(it, "harvester-cloud-provider") && !is_of_csi(it))
        .map(|it| key(it))
        .collect();
    let nodes = items(&facts.guest, read::DAEMON_SETS)?;
    let drivers: Vec<_> = nodes.iter().filter(|it| is_of_csi(it)).map(key).collect();
    for (what, found) in [("cloud providers", providers), ("CSI drivers", drivers)] {
        if found.len() > 1 {
            return Ok(Outcome::red(
                format!("two {what} run: {}", some(&found)),
                "remove all but one, with the release or manifest that it came from",
            ));
        }
    }
    Ok(Outcome::green("no two of one kind"))
}

fn is_of_csi(workload: &Value) -> bool {
    let is_driver = |container: &Value| {
        let args = container["args"].as_array().into_iter().chain(container["command"].as_array()).flatten();
        let words: Vec<_> = args.filter_map(Value::as_str).collect();
        image(container).contains("harvester-csi-driver")
            || words.iter().any(|word| *word == "csi-driver" || word.ends_with("harvester-csi-driver"))
    };
    containers(workload).any(is_driver)
}

const UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

fn nodes(facts: &Facts) -> Result<Outcome, Outcome> {
    let nodes = items(&facts.guest, read::NODES)?;
    let is_lost = |node: &&Value| {
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        !text(node, "/spec/providerID").starts_with(names::PROVIDER_ID_PREFIX)
            || taints.clone().any(|taint| taint["key"] == UNINITIALISED)
    };
    let lost: Vec<_> = nodes.iter().filter(is_lost).map(name).collect();
    Ok(if lost.is_empty() {
        Outcome::green(format!("{} Nodes", nodes.len()))
    } else {
        Outcome::red(
            format!("not known to be machines of Harvester: {}", some(&lost)),
            "the name of a Node is its VirtualMachine's name or host name, in the namespace of the cloud-config; the log \
             of the cloud controller manager names what it looked for",
        )
    })
}

fn agents(facts: &Facts) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let machines = items(&facts.harvester, &read::machines(namespace))?;
    let instances = items(&facts.harvester, &read::instances(namespace))?;
    let is_connected = |instance: &Value| {
        let conditions = instance["status"]["conditions"].as_array().into_iter().flatten();
        conditions.clone().any(|it| it["type"] == "AgentConnected" && it["status"] == "True")
    };
    let of_nodes: BTreeSet<_> = items(&facts.guest, read::NODES)?
        .iter()
        .filter_map(|node| text(node, "/spec/providerID").strip_prefix(names::PROVIDER_ID_PREFIX))
        .collect();
    let of_nodes = machines.iter().filter(|machine| of_nodes.contains(text(machine, "/metadata/uid")));
    let silent: Vec<_> = of_nodes
        .map(name)
        .filter(|machine| {
            instances.iter().any(|instance| name(instance) == *machine && !is_connected(instance))
        })
        .collect();
    Ok(if silent.is_empty() {
        Outcome::green("every machine's agent is connected")
    } else {
        Outcome::red(
            format!("no guest agent in {}", some(&silent)),
            "install and start qemu-guest-agent there: host names, addresses of further networks and frozen file systems \
             come from it",
        )
    })
}

/// Services of type LoadBalancer.
fn balanced(facts: &Facts) -> Result<Vec<&Value>, Outcome> {
    let services = items(&facts.guest, read::SERVICES)?;
    Ok(services.iter().filter(|service| text(service, "/spec/type") == "LoadBalancer").collect())
}

fn shown(service: &Value) -> impl Iterator<Item = IpAddr> {
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    ingress.filter_map(|ingress| ingress["ip"].as_str()?.parse().ok())
}

fn kube_vip(facts: &Facts) -> Result<Outcome, Outcome> {
    let asking: Vec<_> = balanced(facts)?
        .into_iter()
        .filter(|service| !annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS).is_empty())
        .map(key)
        .collect();
    let sets: Vec<_> = workloads(facts)?.filter(|workload| runs(workload, "kube-vip")).collect();
    let is_ready = |set: &&&Value| {
        set["status"]["numberReady"]
            .as_i64()
            .or_else(|| set["status"]["readyReplicas"].as_i64())
            .unwrap_or_default()
            > 0
    };
    Ok(match sets.first() {
        None if asking.is_empty() => Outcome::green("no Service needs it"),
        None => Outcome::red(
            format!("there is no kube-vip, and it is to announce the address of {}", some(&asking)),
            "turn kube-vip on in the chart harvester-cloud-provider",
        ),
        Some(_) if sets.iter().any(|set| is_ready(&set)) => Outcome::green("it is ready"),
        Some(set) => Outcome::red(
            format!("no Pod of {} is ready", key(set)),
            format!(
                "`kubectl -n {} describe daemonset {}` shows why",
                text(set, "/metadata/namespace"),
                name(set)
            ),
        ),
    })
}

/// Where network plugins write the address of their tunnels (harvester issues 8072 and 9767).
const TUNNELS: [&str; 3] =
    ["flannel.alpha.coreos.com/public-ip", "projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address"];

fn tunnel_address(facts: &Facts) -> Result<Outcome, Outcome> {
    let vips: BTreeSet<IpAddr> = balanced(facts)?.into_iter().flat_map(shown).collect();
    let took: Vec<_> = items(&facts.guest, read::NODES)?
        .iter()
        .filter_map(|node| {
            let addresses = TUNNELS.iter().map(|key| annotation(node, key));
            // Calico writes the length of the prefix too
            let mut addresses = addresses.filter_map(|it| it.split('/').next()?.parse::<IpAddr>().ok());
            let vip = addresses.find(|address| vips.contains(address))?;
            Some(format!("{} ({vip})", name(node)))
        })
        .collect();
    Ok(if took.is_empty() {
        Outcome::green("tunnels have the Nodes' own addresses")
    } else {
        Outcome::red(
            format!("the network plugin took a Service's address for its tunnels on {}", some(&took)),
            "name the interface to the plugin: for Calico IP_AUTODETECTION_METHOD=kubernetes-internal-ip, for flannel \
             --iface",
        )
    })
}

/// A lease takes some seconds.
const LEASED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

fn dhcp(facts: &Facts) -> Result<Outcome, Outcome> {
    let waits = |service: &&Value| {
        let made: Option<Timestamp> = text(service, "/metadata/creationTimestamp").parse().ok();
        annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS) == names::DHCP_ADDRESS
            && shown(service).next().is_none()
            && made.is_some_and(|made| facts.now.duration_since(made) > LEASED_WITHIN)
    };
    let waiting: Vec<_> = balanced(facts)?.into_iter().filter(waits).map(key).collect();
    Ok(if waiting.is_empty() {
        Outcome::green("nobody waits for a lease")
    } else {
        Outcome::red(
            format!("without an address of DHCP: {}", some(&waiting)),
            "on the Nodes load the kernel module macvlan (`sudo modprobe macvlan`), and see that their network has a DHCP \
             server",
        )
    })
}

fn leftovers(facts: &Facts) -> Result<Outcome, Outcome> {
    let path = read::balancers(&config(facts)?.namespace);
    let left: Vec<_> = items(&facts.harvester, &path)?
        .iter()
        .filter(|object| !annotation(object, annotations::WITHOUT_SERVICE).is_empty())
        .map(key)
        .collect();
    Ok(if left.is_empty() {
        Outcome::green("none")
    } else {
        Outcome::red(
            format!("their Services are gone: {}", some(&left)),
            "look at each in Harvester, and delete it there: it holds an address that nobody uses",
        )
    })
}

// ---- storage

/// Whether the guest cluster has the driver; an outcome where it has none.
fn uses_storage(facts: &Facts) -> Result<(), Outcome> {
    let is_there =
        items(&facts.guest, read::CSI_DRIVERS)?.iter().any(|driver| name(driver) == names::CSI_DRIVER)
            || items(&facts.guest, read::DAEMON_SETS)?.iter().any(is_of_csi);
    if is_there { Ok(()) } else { Err(Outcome::green("the CSI driver is not installed")) }
}

fn csi_driver(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    if !items(&facts.guest, read::CSI_DRIVERS)?.iter().any(|driver| name(driver) == names::CSI_DRIVER) {
        return Ok(Outcome::red(
            format!("there is no CSIDriver {}", names::CSI_DRIVER),
            "install the chart harvester-csi-driver anew: kubelet mounts nothing without it",
        ));
    }
    let has_driver = |node: &&Value| {
        let drivers = node["spec"]["drivers"].as_array().into_iter().flatten();
        drivers.clone().any(|driver| driver["name"] == names::CSI_DRIVER)
    };
    let nodes = items(&facts.guest, read::CSI_NODES)?;
    let registered = nodes.iter().filter(has_driver).count();
    let sets = items(&facts.guest, read::DAEMON_SETS)?;
    let wanted = sets.iter().filter(|set| is_of_csi(set));
    let wanted = wanted.filter_map(|set| set["status"]["desiredNumberScheduled"].as_u64()).max();
    Ok(match wanted {
        Some(wanted) if (registered as u64) < wanted => {
            let without: Vec<_> = nodes.iter().filter(|node| !has_driver(node)).map(name).collect();
            Outcome::red(
                format!("registered on {registered} of {wanted} Nodes; not on {}", some(&without)),
                "the log of the Pod of harvester-csi-driver there, and of its node-driver-registrar, says why",
            )
        }
        _ => Outcome::green(format!("registered on {registered} Nodes")),
    })
}

fn csi_leader(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    leader(facts, read::CSI_LEASE, "the CSI driver")
}

fn snapshot_crds(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    let path = read::SNAPSHOTS;
    Ok(match answer(&facts.guest, path) {
        Ok(_) => Outcome::green("snapshot.storage.k8s.io is served"),
        Err(Failed { trouble: Trouble::NotFound, .. }) => Outcome::red(
            "snapshot.storage.k8s.io is not served: no snapshot can be made",
            "install the CRDs and the controller of kubernetes-csi/external-snapshotter",
        ),
        Err(failed) => unread(path, failed),
    })
}

fn storage_classes(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    let there: BTreeSet<_> = items(&facts.harvester, read::STORAGE_CLASSES)?.iter().map(name).collect();
    let missing: Vec<_> = items(&facts.guest, read::STORAGE_CLASSES)?
        .iter()
        .filter(|class| text(class, "/provisioner") == names::CSI_DRIVER)
        .filter_map(|class| Some((name(class), class["parameters"]["hostStorageClass"].as_str()?)))
        .filter(|(_, host)| !there.contains(host))
        .map(|(class, host)| format!("{class} names {host}"))
        .collect();
    Ok(if missing.is_empty() {
        Outcome::green("each names one that is there, or none")
    } else {
        Outcome::red(
            format!("not in Harvester: {}", some(&missing)),
            "make the class in Harvester, or a StorageClass in the guest cluster that names another one",
        )
    })
}
