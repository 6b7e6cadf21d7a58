//! The programs that work in the guest cluster: leaders, the cloud controller manager, the CSI driver, kube-vip.
//!
//! Whoever may make Deployments in one namespace must not decide what is said here: see [`trusted`].

use std::collections::BTreeSet;

use harvester_api::{annotations, names};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    super::{
        Outcome, Verdict,
        facts::{Facts, Failed, Trouble},
        read,
    },
    CLOCKS_DIFFER, answer, got,
    guest::{balanced, waits},
    items, some,
};
use crate::{
    json::{annotation, key, members, name, text},
    screen::cut,
    shell::shell_word,
};

/// Somebody holds the Lease, and renewed it in time.
pub(super) fn leader(facts: &Facts, path: &str, program: &str) -> Result<Outcome, Outcome> {
    let stopped = |what: String| {
        Outcome::red(
            what,
            format!("start {program} in the guest cluster; `kubectl get pods -A` shows why not"),
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
    let leads = leader(facts, read::CCM_LEASE, "the cloud controller manager")?;
    // it leads by a Role of its namespace
    Ok(match unbound(facts) {
        Some(account) if leads.verdict == Verdict::Green => Outcome::red(
            format!(
                "{}, and no ClusterRoleBinding gives its ServiceAccount {account} a right",
                leads.sentence
            ),
            "make it anew by `helm upgrade` of the release, or from the manifest that it came from",
        ),
        _ => leads,
    })
}

/// The ServiceAccount of a cloud provider that may do nothing outside of namespaces.
fn unbound(facts: &Facts) -> Option<String> {
    let bindings = items(&facts.guest, read::BINDINGS).ok()?;
    let providers =
        running(facts).ok()?.filter(|workload| is_provider(workload) && !has_own_kubeconfig(workload));
    let mut accounts = providers.filter_map(|workload| {
        let account = workload["spec"]["template"]["spec"]["serviceAccountName"].as_str()?;
        Some((text(workload, "/metadata/namespace"), account))
    });
    let unbound =
        accounts.find(|(namespace, name)| !bindings.iter().any(|binding| is_for(binding, namespace, name)));
    unbound.map(|(namespace, name)| format!("{namespace}/{name}"))
}

/// Whether a container names a kubeconfig, so that the ServiceAccount counts for nothing.
fn has_own_kubeconfig(workload: &Value) -> bool {
    members(&workload["spec"]["template"]["spec"]["containers"]).iter().any(|container| {
        let mut words = ["command", "args"].into_iter().flat_map(|key| members(&container[key]));
        let is_named = words.any(|word| {
            word.as_str().is_some_and(|word| word.trim_start_matches('-').starts_with("kubeconfig"))
        });
        is_named || members(&container["env"]).iter().any(|variable| variable["name"] == "KUBECONFIG")
    })
}

/// Whether the binding is for the ServiceAccount: as such, as a user, or by a group that it is in. What Kubernetes' own bindings
/// give to everybody is not meant.
fn is_for(binding: &Value, namespace: &str, account: &str) -> bool {
    let is_of_kubernetes = text(binding, "/roleRef/name").starts_with("system:");
    members(&binding["subjects"]).iter().any(|subject| {
        let name = text(subject, "/name");
        match text(subject, "/kind") {
            "ServiceAccount" => name == account && text(subject, "/namespace") == namespace,
            "User" => name == format!("system:serviceaccount:{namespace}:{account}"),
            "Group" => {
                name == format!("system:serviceaccounts:{namespace}")
                    || !is_of_kubernetes && ["system:serviceaccounts", "system:authenticated"].contains(&name)
            }
            _ => false,
        }
    })
}

/// Those that no user of one namespace can have made: in kube-system, or with a ServiceAccount that has rights in the whole
/// cluster, which each of these programs needs.
pub(super) fn trusted<'a>(
    facts: &'a Facts,
    path: &str,
) -> Result<impl Iterator<Item = &'a Value> + Clone, Outcome> {
    let bindings = items(&facts.guest, read::BINDINGS)?.iter();
    let subjects = bindings.flat_map(|binding| members(&binding["subjects"]));
    let accounts = subjects.filter(|subject| subject["kind"] == "ServiceAccount");
    let accounts: BTreeSet<_> = accounts.map(|it| (text(it, "/namespace"), text(it, "/name"))).collect();
    Ok(items(&facts.guest, path)?.iter().filter(move |workload| {
        let namespace = text(workload, "/metadata/namespace");
        let account = workload["spec"]["template"]["spec"]["serviceAccountName"].as_str();
        namespace == names::KUBE_SYSTEM || accounts.contains(&(namespace, account.unwrap_or("default")))
    }))
}

/// Deployments and DaemonSets that are to have a Pod.
fn running(facts: &Facts) -> Result<impl Iterator<Item = &Value> + Clone, Outcome> {
    let all = trusted(facts, read::DEPLOYMENTS)?.chain(trusted(facts, read::DAEMON_SETS)?);
    Ok(all.filter(|workload| is_wanted(workload)))
}

/// Whether it is to have a Pod.
fn is_wanted(workload: &Value) -> bool {
    workload["spec"]["replicas"] != 0 && workload["status"]["desiredNumberScheduled"] != 0
}

fn containers(workload: &Value) -> impl Iterator<Item = &Value> {
    members(&workload["spec"]["template"]["spec"]["containers"]).iter()
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

/// Whether a kube-vip announces Services of any class. It has to be asked to: some are for the control plane's address, or for one
/// class.
fn announces_services(workload: &Value) -> bool {
    containers(workload).any(|container| {
        is_on(container, "svc_enable", "--services") && !is_on(container, "lb_class_only", "--lbClassOnly")
    })
}

/// Whether a switch of kube-vip is on. Its variable counts before its flag, and without either it is off.
fn is_on(container: &Value, variable: &str, flag: &str) -> bool {
    // what Go takes for true
    let is_true = |value: &str| ["1", "t", "T", "true", "TRUE", "True"].contains(&value);
    let set = members(&container["env"]).iter().rfind(|it| text(it, "/name") == variable);
    let set = set.map(|it| text(it, "/value")).filter(|value| !value.is_empty());
    let words = ["command", "args"].into_iter().flat_map(|field| members(&container[field]));
    let mut given = words.filter_map(|word| word.as_str()?.strip_prefix(flag));
    set.map_or_else(
        || given.any(|rest| rest.is_empty() || rest.strip_prefix('=').is_some_and(is_true)),
        is_true,
    )
}

/// The program that a container runs, and its subcommand if there is one. One image has several of these programs.
fn program(container: &Value) -> (&str, Option<&str>) {
    let words = |field: &str| members(&container[field]).iter().filter_map(Value::as_str);
    let named = words("command").next().and_then(|file| file.rsplit('/').next());
    let first = words("command").skip(1).chain(words("args")).next();
    (named.unwrap_or(image(container)), first.filter(|word| !word.starts_with('-')))
}

fn is_provider(workload: &Value) -> bool {
    containers(workload).map(program).any(|(name, word)| name.contains(PROVIDER) && word.is_none())
}

pub(super) fn is_of_csi(workload: &Value) -> bool {
    containers(workload).map(program).any(|(name, word)| {
        name.contains("harvester-csi-driver") || name.contains(PROVIDER) && word == Some("csi-driver")
    })
}

const PROVIDER: &str = "harvester-cloud-provider";

pub(super) fn one_provider(facts: &Facts) -> Result<Outcome, Outcome> {
    let providers: Vec<_> = running(facts)?.filter(|it| is_provider(it)).map(key).collect();
    let nodes = trusted(facts, read::DAEMON_SETS)?.filter(|it| is_wanted(it));
    let drivers: Vec<_> = nodes.filter(|it| is_of_csi(it)).map(key).collect();
    for (what, found) in [("cloud providers", &providers), ("CSI drivers", &drivers)] {
        if found.len() > 1 {
            return Ok(Outcome::red(
                format!("two {what} run: {}", some(found)),
                "remove all but one, with the release or manifest that it came from",
            ));
        }
    }
    let of_k3s: Vec<_> = running(facts)?.filter(|it| is_of_service_lb(it)).map(key).collect();
    if !of_k3s.is_empty() {
        return Ok(Outcome::red(
            format!("K3s' ServiceLB writes addresses of Nodes into Services too: {}", some(&of_k3s)),
            "set disable: [servicelb] in the configuration of K3s' servers, start them anew, and delete those of these DaemonSets \
             that stay",
        ));
    }
    if providers.is_empty() {
        return Err(Outcome::not_asked("no Deployment or DaemonSet has an image harvester-cloud-provider"));
    }
    let of_metallb: Vec<_> = running(facts)?.filter(|it| is_metallb(it)).map(key).collect();
    Ok(if of_metallb.is_empty() {
        Outcome::green("no two of one kind")
    } else {
        Outcome::amber(
            format!("MetalLB gives addresses to Services without a class too: {}", some(&of_metallb)),
            "remove it, or give it a class of its own (loadBalancerClass of its chart)",
        )
    })
}

/// K3s makes one DaemonSet for each Service of type LoadBalancer, also where its cloud controller is off.
fn is_of_service_lb(workload: &Value) -> bool {
    containers(workload).any(|container| image(container) == "klipper-lb")
}

/// The controller of a MetalLB that was given no class of Services.
fn is_metallb(workload: &Value) -> bool {
    containers(workload).any(|container| {
        let path = container["image"].as_str().unwrap_or_default();
        let mut words = members(&container["args"]).iter().filter_map(Value::as_str);
        let is_its = match image(container) {
            "controller" => path.contains("metallb/controller"),
            image => image == "metallb-controller",
        };
        is_its && !words.any(|word| word.starts_with("--lb-class="))
    })
}

pub(super) fn kube_vip(facts: &Facts) -> Result<Outcome, Outcome> {
    let asking: Vec<_> = balanced(facts)?
        .into_iter()
        .filter(|service| annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS).is_some())
        .collect();
    let waiting: Vec<_> = asking.iter().filter(|service| waits(facts, service)).map(|it| key(it)).collect();
    let sets: Vec<_> = running(facts)?.filter(|workload| is_kube_vip(workload)).collect();
    let mut unwanted = trusted(facts, read::DAEMON_SETS)?.filter(|set| is_kube_vip(set) && !is_wanted(set));
    let (found, turn_on) = match unwanted.next() {
        Some(set) => (
            format!("no Node matches DaemonSet {}", key(set)),
            "have kube-vip.nodeSelector and kube-vip.affinity of the chart harvester-cloud-provider match the Nodes that are to \
             announce",
        ),
        None => ("no kube-vip is seen".to_owned(), "turn kube-vip on in the chart harvester-cloud-provider"),
    };
    let is_ready = |set: &&Value| {
        let status = &set["status"];
        status["numberReady"].as_i64().or_else(|| status["readyReplicas"].as_i64()).unwrap_or_default() > 0
    };
    let announcing: Vec<_> = sets.iter().filter(|set| announces_services(set)).map(|set| key(set)).collect();
    Ok(match sets.first() {
        Some(_) if sets.iter().any(is_ready) && announcing.len() > 1 => Outcome::amber(
            format!("more than one announces Services: {}", some(&announcing)),
            "set svc_enable to \"false\" in those that have the control plane's address; else remove all but one of those that are \
             for Services alone",
        ),
        Some(_) if sets.iter().any(is_ready) => Outcome::green("it is ready"),
        Some(set) if !asking.is_empty() => Outcome::red(
            format!("no Pod of {} is ready", key(set)),
            why_not_ready(if set["spec"]["replicas"].is_null() { "daemonset" } else { "deployment" }, set),
        ),
        _ if asking.is_empty() => Outcome::green("no Service needs it"),
        // kube-vip leaves its addresses in the status when it ends
        _ if waiting.is_empty() => Outcome::amber(
            format!("{found}, and it is to announce the addresses of {} Services", asking.len()),
            format!("see that a static Pod or another program announces them; else {turn_on}"),
        ),
        _ => {
            Outcome::red(format!("{found}, and it is to announce the address of {}", some(&waiting)), turn_on)
        }
    })
}

/// The command that shows why no Pod of it is ready.
pub(super) fn why_not_ready(kind: &str, workload: &Value) -> String {
    let namespace = shell_word(text(workload, "/metadata/namespace"));
    format!("`kubectl -n {namespace} describe {kind} {}` shows why", shell_word(name(workload)))
}
