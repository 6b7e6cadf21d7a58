//! Nodes of the guest cluster, their machines, and Services.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use guest_vms::{is_id_of_other_cloud, may_run_etcd, recreation_advice_of_some};
use harvester_api::{annotations, labels, names};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    super::{Outcome, Verdict, facts::Facts, read},
    config, items, some,
    workloads::ccm,
};
use crate::{
    json::{annotation, is_deleted, is_true, key, members, name, text},
    shell::shell_word,
    whose::{TUNNELS, machine_id, machine_of, shown},
};

const UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Somebody keeps it out of the cloud controller manager's hands.
fn is_foreign(node: &Value) -> bool {
    node["metadata"]["labels"][labels::EXTERNALLY_MANAGED] == "true"
}

/// At least one: of a cluster without Nodes nothing is known.
fn own_nodes(facts: &Facts) -> Result<impl Iterator<Item = &Value> + Clone, Outcome> {
    let nodes = items(&facts.guest, read::NODES)?.iter().filter(|node| !is_foreign(node));
    match nodes.clone().next() {
        Some(_) => Ok(nodes),
        None => Err(Outcome::not_asked("there is no Node that is a machine of Harvester")),
    }
}

/// Cloud controllers that a distribution has built in: how their provider IDs begin, whose they are, and what turns them off in
/// the configuration of its servers.
const BUILT_IN: [(&str, &str, &str); 2] = [
    ("k3s://", "K3s", "disable-cloud-controller: true and kubelet-arg: [cloud-provider=external]"),
    ("rke2://", "RKE2", "cloud-provider-name: harvester (external, where you install the charts yourself)"),
];

fn provider_id(node: &Value) -> &str {
    text(node, "/spec/providerID")
}

fn is_of_other_cloud(node: &Value) -> bool {
    is_id_of_other_cloud(provider_id(node))
}

/// Whether the Node waits for a cloud controller manager.
fn is_uninitialised(node: &Value) -> bool {
    members(&node["spec"]["taints"]).iter().any(|taint| taint["key"] == UNINITIALISED)
}

/// Its kubelet ran without `--cloud-provider=external`: no cloud controller manager gives it a provider ID.
fn is_unasked(node: &Value) -> bool {
    provider_id(node).is_empty() && !is_uninitialised(node)
}

fn is_lost(node: &Value) -> bool {
    machine_id(node).is_empty() || is_uninitialised(node)
}

fn named(nodes: &[&Value]) -> String {
    some(&nodes.iter().map(|node| name(node)).collect::<Vec<_>>())
}

fn is_server(node: &Value) -> bool {
    may_run_etcd(|role| !node["metadata"]["labels"][role].is_null())
}

/// What helps Nodes whose provider ID is wrong. `which`: those of them that are meant, in words.
fn recreation_advice(which: &str, nodes: &[&Value]) -> String {
    let servers: Vec<_> = nodes.iter().copied().filter(|node| is_server(node)).collect();
    let then = "start its kubelet anew without --provider-id";
    let mend = recreation_advice_of_some(which, &named(&servers), then);
    format!("{mend}; a provider ID does not change")
}

pub(super) fn nodes(facts: &Facts) -> Result<Outcome, Outcome> {
    let nodes = own_nodes(facts)?;
    let of_scheme =
        |scheme: &str| nodes.clone().filter(|node| provider_id(node).starts_with(scheme)).collect::<Vec<_>>();
    let built_in = BUILT_IN.map(|(scheme, whose, setting)| (of_scheme(scheme), whose, setting));
    if let Some((took, whose, setting)) = built_in.iter().find(|(took, ..)| !took.is_empty()) {
        return Ok(Outcome::red(
            format!("the cloud controller that {whose} has built in took {}", named(took)),
            format!(
                "set {setting} in the configuration of {whose}'s servers; then {}",
                recreation_advice("each of these Nodes", took)
            ),
        ));
    }
    let which = |is: fn(&Value) -> bool| nodes.clone().filter(|node| is(node)).collect::<Vec<_>>();
    let [of_others, unasked, lost] = [is_of_other_cloud, is_unasked, is_lost].map(which);
    Ok(if !of_others.is_empty() {
        Outcome::red(
            format!("their provider ID is another cloud's, so they are left alone: {}", named(&of_others)),
            format!(
                "{}; give each that is none the label {}=true",
                recreation_advice("each that is a VirtualMachine of Harvester", &of_others),
                labels::EXTERNALLY_MANAGED
            ),
        )
    } else if let Some(first) = unasked.first() {
        Outcome::red(
            format!("without provider ID, and without the taint that asks for one: {}", named(&unasked)),
            asking(facts, name(first)),
        )
    } else if lost.is_empty() {
        Outcome::green(format!("{} Nodes", nodes.count()))
    } else {
        Outcome::red(
            format!("not known to be machines of Harvester: {}", named(&lost)),
            "the name of a Node is its VirtualMachine's name or host name, in the namespace of the cloud-config; the log \
             of the cloud controller manager names what it looked for",
        )
    })
}

/// What has Nodes that nobody gave a provider ID get one. A kubelet without the flag goes on writing the addresses of its Node,
/// against the cloud controller manager; and only that one takes the taint away.
fn asking(facts: &Facts, first: &str) -> String {
    const FLAG: &str = "start their kubelets with --cloud-provider=external";
    if ccm(facts).is_ok_and(|found| found.verdict == Verdict::Green) {
        format!(
            "{FLAG}; then, with the guest cluster's kubeconfig, `kubectl taint node {} {UNINITIALISED}=true:NoSchedule` asks the \
             cloud controller manager for it, once for each Node",
            shell_word(first)
        )
    } else {
        format!(
            "{FLAG}, mend `ccm`, and ask again: the taint keeps Pods away until a cloud controller manager takes it off"
        )
    }
}

pub(super) fn machines(facts: &Facts) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let there = items(&facts.harvester, &read::machines(namespace))?;
    let nodes = own_nodes(facts)?;
    let mut of_machines: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    let mut gone = Vec::new();
    for node in nodes.clone() {
        match machine_of(node, there) {
            Some(machine) => of_machines.entry(name(machine)).or_default().push(node),
            None => gone.push(node),
        }
    }
    let shared: Vec<_> = of_machines.into_iter().filter(|(_, nodes)| nodes.len() > 1).collect();
    if !shared.is_empty() {
        let pair = |(machine, nodes): &(&str, Vec<&Value>)| {
            let nodes: Vec<_> = nodes.iter().map(|node| name(node)).collect();
            format!("{} ({machine})", nodes.join(" and "))
        };
        let pairs: Vec<_> = shared.iter().map(pair).collect();
        let nodes: Vec<&Value> = shared.into_iter().flat_map(|(_, nodes)| nodes).collect();
        return Ok(Outcome::red(
            format!("Nodes with one provider ID, and its VirtualMachine: {}", some(&pairs)),
            recreation_advice("each Node that does not run in that machine", &nodes),
        ));
    }
    let is_there = |node: &&Value| there.iter().any(|machine| name(machine) == name(node));
    let (outdated, lost): (Vec<&Value>, Vec<&Value>) = gone.iter().copied().partition(is_there);
    let outdated = (!outdated.is_empty()).then(|| {
        let which = format!("each Node whose name a VirtualMachine has ({})", named(&outdated));
        recreation_advice(&which, &outdated)
    });
    Ok(if gone.is_empty() {
        Outcome::green(format!("{} VirtualMachines", nodes.count()))
    } else if gone.len() == nodes.count() {
        let other = "this cloud-config is another cluster's, or its context has the wrong namespace: give the one of this cluster";
        let outdated = outdated.map(|mend| format!("; where it is the right one, {mend}"));
        Outcome::red(
            format!("no Node's VirtualMachine is in namespace {namespace}"),
            other.to_owned() + &outdated.unwrap_or_default(),
        )
    } else {
        let lost =
            (!lost.is_empty()).then(|| format!("delete {} if the machine is gone for good", named(&lost)));
        let mends: Vec<_> = outdated.into_iter().chain(lost).collect();
        Outcome::red(
            format!("their VirtualMachine is not in namespace {namespace}: {}", named(&gone)),
            mends.join("; "),
        )
    })
}

pub(super) fn agents(facts: &Facts) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let machines = items(&facts.harvester, &read::machines(namespace))?;
    let instances = items(&facts.harvester, &read::instances(namespace))?;
    let is_connected = |instance: &Value| is_true(instance, "AgentConnected");
    let of_nodes = own_nodes(facts)?.filter_map(|node| machine_of(node, machines));
    let of_nodes: BTreeSet<&str> = of_nodes.map(name).collect();
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
            "start these VirtualMachines; of machines that are gone for good delete the Nodes",
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

pub(super) fn tunnel_address(facts: &Facts) -> Result<Outcome, Outcome> {
    let vips: BTreeSet<IpAddr> = balanced(facts)?.into_iter().flat_map(shown).collect();
    let (mut are_told, mut took, mut strange) = (false, Vec::new(), Vec::new());
    for node in items(&facts.guest, read::NODES)? {
        let own = members(&node["status"]["addresses"]).iter();
        let own: BTreeSet<IpAddr> = own.filter_map(|it| text(it, "/address").parse().ok()).collect();
        let told = TUNNELS.iter().filter_map(|key| annotation(node, key));
        // Calico writes the length of the prefix too
        for address in told.filter_map(|it| it.split('/').next()?.parse().ok()) {
            are_told = true;
            let line = || format!("{} ({address})", name(node));
            if vips.contains(&address) {
                took.push(line());
            } else if !own.is_empty() && !own.contains(&address) {
                strange.push(line());
            }
        }
    }
    if !are_told {
        return Err(Outcome::not_asked("no Node says which address its tunnels have"));
    }
    let mend = "name the interface to the plugin: for Calico IP_AUTODETECTION_METHOD=kubernetes-internal-ip, for flannel --iface";
    Ok(if !took.is_empty() {
        let sentence = "the network plugin took a Service's address for its tunnels on";
        Outcome::red(format!("{sentence} {}", some(&took)), mend)
    } else if !strange.is_empty() {
        let sentence = "tunnels have an address that is none of the Node's, as of a Service that is gone, on";
        Outcome::amber(format!("{sentence} {}", some(&strange)), mend)
    } else {
        Outcome::green("tunnels have the Nodes' own addresses")
    })
}

/// A lease takes some seconds.
const LEASED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Whether the Service has had no address for longer than it takes to announce one.
pub(super) fn waits(facts: &Facts, service: &Value) -> bool {
    let made: Option<Timestamp> = text(service, "/metadata/creationTimestamp").parse().ok();
    shown(service).next().is_none()
        && made.is_some_and(|made| facts.now_in_guest().duration_since(made) > LEASED_WITHIN)
}

pub(super) fn dhcp(facts: &Facts) -> Result<Outcome, Outcome> {
    let is_leased = |service: &&Value| {
        annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS) == Some(names::DHCP_ADDRESS)
    };
    let waiting: Vec<_> =
        balanced(facts)?.into_iter().filter(is_leased).filter(|it| waits(facts, it)).map(key).collect();
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

/// A Service of no class, or of the class of these programs.
fn is_ours(service: &Value) -> bool {
    matches!(text(service, "/spec/loadBalancerClass"), "" | names::LOAD_BALANCER_CLASS)
}

pub(super) fn service_addresses(facts: &Facts) -> Result<Outcome, Outcome> {
    let mut ours = balanced(facts)?;
    ours.retain(|service| is_ours(service) && !is_deleted(service));
    let is_unserved = |service: &Value| {
        members(&service["status"]["loadBalancer"]["ingress"]).is_empty() && waits(facts, service)
    };
    let waiting: Vec<_> = ours.iter().filter(|it| is_unserved(it)).map(|it| key(it)).collect();
    Ok(match waiting.first() {
        None => Outcome::green(format!("{} Services", ours.len())),
        Some(first) => Outcome::amber(
            format!("older than a minute, and without an address: {}", some(&waiting)),
            format!(
                "`harvester-cloud-provider explain service {}` says why; find out before you replace programs, or it will look \
                 as if that had been the reason",
                shell_word(first)
            ),
        ),
    })
}
