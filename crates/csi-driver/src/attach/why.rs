//! What a volume waits for that is not in its machine yet, or still is: one sentence that names whom to look at.

use std::fmt;

use harvester_api::{VirtualMachine, VirtualMachineInstance};

use super::hotplug::{self, Direction, Progress};
use crate::{host::Host, volume::name::HostName};

/// So many claims are named in one sentence.
const NAMED: usize = 4;

/// The claims that the pod of a volume waits for, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pod {
    /// They are not bound.
    unbound: Vec<String>,
    /// They are on their way too, and bound.
    others: Vec<String>,
}

impl Pod {
    pub(crate) fn of(
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
        volume: &str,
        is_bound: impl Fn(&str) -> Option<bool>,
    ) -> Self {
        let coming = hotplug::on_their_way(vm, vmi).into_iter().filter(|(_, way)| *way == Direction::In);
        let (unbound, others): (Vec<_>, Vec<_>) =
            coming.map(|(name, _)| name).partition(|name| is_bound(name) == Some(false));
        Self { unbound, others: others.into_iter().filter(|name| name != volume).collect() }
    }
}

/// A volume, its machine, and how far it is.
pub(crate) struct Waiting<'a> {
    pub(crate) volume: &'a HostName,
    pub(crate) doing: &'a str,
    pub(crate) machine: &'a str,
    pub(crate) progress: &'a Progress,
    pub(crate) vmi: Option<&'a VirtualMachineInstance>,
    pub(crate) pod: &'a Pod,
}

/// Whom the machine waits for.
pub(crate) fn why_not(host: &Host, waiting: &Waiting<'_>) -> String {
    let Waiting { volume, doing, machine, progress, vmi, pod: with } = waiting;
    let Progress { phase, reason, message, pod } = progress;
    let namespace = host.namespace();
    let status = vmi.and_then(|vmi| vmi.status.as_ref());
    let node = status.map(|status| status.node_name.as_str()).filter(|node| !node.is_empty());
    let the_pod = || format!("Pod {namespace}/{pod} on the host");
    let is_in_pod = matches!(phase.as_str(), "AttachedToNode" | "Detaching" | "UnMountedFromPod");
    let is_before = !matches!(phase.as_str(), "MountedToPod" | "Ready");
    let blocked_by = match phase.as_str() {
        _ if vmi.is_some_and(hotplug::migrates) => "the live migration of the machine".to_owned(),
        _ if is_before && !with.unbound.is_empty() => {
            let bring =
                if pod.is_empty() { String::new() } else { format!(", for which {} waits", the_pod()) };
            format!("{}, not bound{bring}", Claims(host, &with.unbound))
        }
        "Pending" => host.claim_name(volume),
        _ if is_in_pod && !pod.is_empty() && !with.others.is_empty() => {
            format!("{}, which is to bring {} too", the_pod(), Claims(host, &with.others))
        }
        _ if is_in_pod && !pod.is_empty() => the_pod(),
        "MountedToPod" | "AttachedToNode" | "Ready" => {
            format!("virt-handler on host node {}", node.unwrap_or("(none)"))
        }
        _ => format!("virt-controller and VirtualMachineInstance {namespace}/{machine} on the host"),
    };
    let phase = if phase.is_empty() { "none yet" } else { phase };
    let reason = if reason.is_empty() { String::new() } else { format!(", {reason}") };
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    let machine = host.machine_name(machine);
    format!("volume {volume} {doing} {machine} (phase {phase}{reason}{message}): look at {blocked_by}")
}

/// Some claims of the host, by names.
pub(super) struct Claims<'a>(pub(super) &'a Host, pub(super) &'a [String]);

impl fmt::Display for Claims<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, names) = self;
        let shown: Vec<_> =
            names.iter().take(NAMED).map(|name| format!("{}/{name}", host.namespace())).collect();
        let more = match names.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let kind = if names.len() == 1 { "PersistentVolumeClaim" } else { "PersistentVolumeClaims" };
        write!(out, "{kind} {}{more} on the host", shown.join(", "))
    }
}
