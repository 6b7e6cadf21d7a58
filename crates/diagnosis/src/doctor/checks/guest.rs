//! Who works in the guest cluster: the cloud controller manager, kube-vip, Nodes and Services.

use std::{collections::BTreeSet, net::IpAddr};

use harvester_api::{annotations, labels, names};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::explain::cut;

use super::{
    super::{
        Outcome,
        facts::{Facts, Failed, Trouble},
        read,
    },
    CLOCKS_DIFFER, annotation, answer, config, got, items, key, name, some, text,
};

/// Somebody holds the Lease, and renewed it in time.
pub(super) fn leader(facts: &Facts, path: &str, program: &str) -> Result<Outcome, Outcome> {
    let stopped = |what: String| {
        Outcome::red(
            what,
            format!("start {program} in the guest cluster; `kubectl -n kube-system get pods` shows why not"),
        )
    };
    let lease = match answer(&facts.guest, path) {
        Err(Failed { trouble: Trouble::NotFound, .. }) => {
            return Ok(stopped(format!(
                "there is no Lease of {program}: it never ran, or has another name for it"
            )));
        }
        _ => got(&facts.guest, path)?,
    };
    let holder = &cut(text(lease, "/spec/holderIdentity"));
    let renewed: Option<Timestamp> = text(lease, "/spec/renewTime").parse().ok();
    let lasts = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or_default();
    Ok(match renewed {
        Some(at)
            if !holder.is_empty()
                && facts.now_in_guest().duration_since(at).as_secs() <= lasts + CLOCKS_DIFFER.as_secs() =>
        {
            Outcome::green(format!("{holder} leads"))
        }
        _ if holder.is_empty() => stopped(format!("nobody holds the Lease of {program}")),
        _ => stopped(format!("{holder} renews the Lease of {program} no more")),
    })
}

pub(super) fn ccm(facts: &Facts) -> Result<Outcome, Outcome> {
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

/// kube-vip's image, under its own name or as Rancher mirrors it.
fn is_kube_vip(workload: &Value) -> bool {
    containers(workload)
        .map(|container| image(container).trim_start_matches("mirrored-kube-vip-"))
        .any(|image| matches!(image, "kube-vip" | "kube-vip-iptables"))
}

fn runs(workload: &Value, what: &str) -> bool {
    containers(workload).any(|container| image(container).contains(what))
}

pub(super) fn one_provider(facts: &Facts) -> Result<Outcome, Outcome> {
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
    if !all.iter().any(|it| runs(it, "harvester-cloud-provider") && !is_of_csi(it)) {
        return Err(Outcome::not_asked("no Deployment or DaemonSet has an image harvester-cloud-provider"));
    }
    Ok(Outcome::green("no two of one kind"))
}

pub(super) fn is_of_csi(workload: &Value) -> bool {
    let is_driver = |container: &Value| {
        let args = container["args"].as_array().into_iter().chain(container["command"].as_array()).flatten();
        let words: Vec<_> = args.filter_map(Value::as_str).collect();
        image(container).contains("harvester-csi-driver")
            || words.iter().any(|word| *word == "csi-driver" || word.ends_with("harvester-csi-driver"))
    };
    containers(workload).any(is_driver)
}

const UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Somebody keeps it out of the cloud controller manager's hands.
fn is_foreign(node: &Value) -> bool {
    node["metadata"]["labels"][labels::EXTERNALLY_MANAGED] == "true"
}

fn own_nodes(facts: &Facts) -> Result<impl Iterator<Item = &Value> + Clone, Outcome> {
    Ok(items(&facts.guest, read::NODES)?.iter().filter(|node| !is_foreign(node)))
}

/// The UID of the Node's VirtualMachine; empty where it has none.
fn machine_uid(node: &Value) -> &str {
    text(node, "/spec/providerID").strip_prefix(names::PROVIDER_ID_PREFIX).unwrap_or_default()
}

pub(super) fn nodes(facts: &Facts) -> Result<Outcome, Outcome> {
    let nodes = own_nodes(facts)?;
    let is_lost = |node: &&Value| {
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        machine_uid(node).is_empty() || taints.clone().any(|taint| taint["key"] == UNINITIALISED)
    };
    let lost: Vec<_> = nodes.clone().filter(is_lost).map(name).collect();
    Ok(if lost.is_empty() {
        Outcome::green(format!("{} Nodes", nodes.count()))
    } else {
        Outcome::red(
            format!("not known to be machines of Harvester: {}", some(&lost)),
            "the name of a Node is its VirtualMachine's name or host name, in the namespace of the cloud-config; the log \
             of the cloud controller manager names what it looked for",
        )
    })
}

pub(super) fn machines(facts: &Facts) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let there: BTreeSet<_> = items(&facts.harvester, &read::machines(namespace))?
        .iter()
        .map(|machine| text(machine, "/metadata/uid"))
        .collect();
    let nodes = own_nodes(facts)?;
    let gone: Vec<_> = nodes.clone().filter(|node| !there.contains(machine_uid(node))).map(name).collect();
    Ok(if gone.is_empty() {
        Outcome::green(format!("{} VirtualMachines", nodes.count()))
    } else if gone.len() == nodes.count() {
        Outcome::red(
            format!("no Node's VirtualMachine is in namespace {namespace}"),
            "this cloud-config is another cluster's, or its context has the wrong namespace: give the one of this cluster",
        )
    } else {
        Outcome::red(
            format!("their VirtualMachine is not in namespace {namespace}: {}", some(&gone)),
            "delete the Node if its machine is gone for good",
        )
    })
}

pub(super) fn agents(facts: &Facts) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let machines = items(&facts.harvester, &read::machines(namespace))?;
    let instances = items(&facts.harvester, &read::instances(namespace))?;
    let is_connected = |instance: &Value| {
        let conditions = instance["status"]["conditions"].as_array().into_iter().flatten();
        conditions.clone().any(|it| it["type"] == "AgentConnected" && it["status"] == "True")
    };
    let of_nodes: BTreeSet<_> = own_nodes(facts)?.map(machine_uid).collect();
    let of_nodes = machines.iter().filter(|machine| of_nodes.contains(text(machine, "/metadata/uid")));
    let of_nodes: Vec<_> = of_nodes.map(name).collect();
    let instance = |machine: &&&str| instances.iter().find(|instance| name(instance) == **machine);
    let stopped: Vec<_> = of_nodes.iter().filter(|machine| instance(machine).is_none()).collect();
    let silent = of_nodes.iter().filter(|machine| instance(machine).is_some_and(|it| !is_connected(it)));
    let silent: Vec<_> = silent.collect();
    Ok(if !silent.is_empty() {
        Outcome::red(
            format!("no guest agent in {}", some(&silent)),
            "install and start qemu-guest-agent there: host names, addresses of further networks and frozen file systems \
             come from it",
        )
    } else if !stopped.is_empty() {
        Outcome::amber(
            format!("without an instance: {}", some(&stopped)),
            "start these VirtualMachines, or delete their Nodes",
        )
    } else {
        Outcome::green("every machine's agent is connected")
    })
}

/// Services of type LoadBalancer.
pub(super) fn balanced(facts: &Facts) -> Result<Vec<&Value>, Outcome> {
    let services = items(&facts.guest, read::SERVICES)?;
    Ok(services.iter().filter(|service| text(service, "/spec/type") == "LoadBalancer").collect())
}

pub(super) fn shown(service: &Value) -> impl Iterator<Item = IpAddr> {
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    ingress.filter_map(|ingress| ingress["ip"].as_str()?.parse().ok())
}

pub(super) fn kube_vip(facts: &Facts) -> Result<Outcome, Outcome> {
    let asking: Vec<_> = balanced(facts)?
        .into_iter()
        .filter(|service| !annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS).is_empty())
        .map(key)
        .collect();
    let sets: Vec<_> = workloads(facts)?.filter(|workload| is_kube_vip(workload)).collect();
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

pub(super) fn tunnel_address(facts: &Facts) -> Result<Outcome, Outcome> {
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

pub(super) fn dhcp(facts: &Facts) -> Result<Outcome, Outcome> {
    let waits = |service: &&Value| {
        let made: Option<Timestamp> = text(service, "/metadata/creationTimestamp").parse().ok();
        annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS) == names::DHCP_ADDRESS
            && shown(service).next().is_none()
            && made.is_some_and(|made| facts.now_in_guest().duration_since(made) > LEASED_WITHIN)
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

/// By `--cluster-name` of the cloud controller manager, if that is a name of its own.
fn cluster_name(facts: &Facts) -> Option<&str> {
    let args = workloads(facts).ok()?.flat_map(containers);
    let args = args.flat_map(|container| container["args"].as_array().into_iter().flatten());
    let name = args.filter_map(Value::as_str).find_map(|arg| arg.strip_prefix("--cluster-name="))?;
    (name != names::DEFAULT_CLUSTER_NAME).then_some(name)
}

/// As the cloud controller manager decides it: by the UID of Service `default/kubernetes`, else by the name of the cluster.
pub(super) fn leftovers(facts: &Facts) -> Result<Outcome, Outcome> {
    let services = items(&facts.guest, read::SERVICES)?;
    let uid = services.iter().find(|it| key(it) == "default/kubernetes").map(|it| text(it, "/metadata/uid"));
    let named = cluster_name(facts);
    let is_of_this_cluster = |object: &&Value| match annotation(object, annotations::CLUSTER_UID) {
        "" => named.is_some_and(|name| object["metadata"]["labels"][labels::CLUSTER] == name),
        its => uid == Some(its),
    };
    let services: BTreeSet<String> = services.iter().map(key).collect();
    let has_service = |object: &Value| {
        let label = |key: &str| object["metadata"]["labels"][key].as_str().unwrap_or_default();
        services.contains(&format!("{}/{}", label(labels::SERVICE_NAMESPACE), label(labels::SERVICE_NAME)))
    };
    let left: Vec<_> = items(&facts.harvester, &read::balancers(&config(facts)?.namespace))?
        .iter()
        .filter(is_of_this_cluster)
        .filter(|object| !has_service(object))
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
