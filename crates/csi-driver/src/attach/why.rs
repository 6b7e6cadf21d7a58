//! What a volume waits for that is not in its machine yet, or still is: one sentence that names whom to look at.

use std::fmt;

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::{
    hotplug::{self, Direction, Progress},
    session::is_bound,
};
use crate::{host::Host, volume::name::HostName};

/// So many claims are named in one sentence.
const NAMED: usize = 4;

/// What is known of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimPhase {
    /// The claims are not watched.
    NotWatched,
    /// It is not there: the host makes no pod for the disks of a machine that is to have it.
    Missing,
    Unbound,
    Bound,
}

impl ClaimPhase {
    /// Of the claim as a watch that works shows it.
    pub(crate) fn of(watched: Option<&PersistentVolumeClaim>) -> Self {
        match watched {
            None => Self::Missing,
            Some(claim) if is_bound(claim) => Self::Bound,
            Some(_) => Self::Unbound,
        }
    }
}

/// The claims that the pod of a volume waits for, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pod {
    /// They are not there.
    missing: Vec<String>,
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
        phase_of: impl Fn(&str) -> ClaimPhase,
    ) -> Self {
        let coming = hotplug::on_their_way(vm, vmi).into_iter().filter(|(_, way)| *way == Direction::In);
        let mut pod = Self::default();
        for (name, _) in coming {
            match phase_of(&name) {
                ClaimPhase::Missing => pod.missing.push(name),
                ClaimPhase::Unbound => pod.unbound.push(name),
                ClaimPhase::Bound | ClaimPhase::NotWatched if name != volume => pod.others.push(name),
                ClaimPhase::Bound | ClaimPhase::NotWatched => {}
            }
        }
        pod
    }
}

/// A volume, its machine, and how far it is.
pub(crate) struct Waiting<'a> {
    pub(crate) volume: &'a HostName,
    pub(crate) doing: &'a str,
    pub(crate) machine: &'a str,
    pub(crate) progress: &'a Progress,
    pub(crate) vm: Option<&'a VirtualMachine>,
    pub(crate) vmi: Option<&'a VirtualMachineInstance>,
    pub(crate) pod: &'a Pod,
}

/// Whom the machine waits for.
pub(crate) fn why_not(host: &Host, waiting: &Waiting<'_>) -> String {
    let Waiting { volume, doing, machine, progress, vm, vmi, pod: with } = waiting;
    let Progress { phase, reason, message, pod } = progress;
    let namespace = host.namespace();
    let status = vmi.and_then(|vmi| vmi.status.as_ref());
    let node = status.map(|status| status.node_name.as_str()).filter(|node| !node.is_empty());
    let the_pod = || format!("Pod {namespace}/{pod} on the host");
    let is_in_pod = matches!(phase.as_str(), "AttachedToNode" | "Detaching" | "UnMountedFromPod");
    let is_before = !matches!(phase.as_str(), "MountedToPod" | "Ready");
    let is_copied = vm.is_some_and(|vm| {
        hotplug::copies_volumes(vm) && hotplug::unfollowed(vm, *vmi, volume.as_str()).is_some()
    });
    let blocked_by = match phase.as_str() {
        _ if vmi.is_some_and(hotplug::migrates) => "the live migration of the machine".to_owned(),
        _ if is_copied => format!(
            "spec.updateVolumesStrategy of {}, which is Migration: KubeVirt plugs no volume in or out until the field is \
             removed",
            host.machine_name(machine)
        ),
        _ if is_before && !with.missing.is_empty() => {
            let claims = Claims(host, &with.missing);
            if with.missing.len() == 1 {
                format!(
                    "the machine's disk of {claims}, which is missing: remove the disk, or restore the claim"
                )
            } else {
                format!(
                    "the machine's disks of {claims}, which are missing: remove the disks, or restore the claims"
                )
            }
        }
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::host::reach::unreached;

    /// What is said of pvc-2, which waits in a machine for pvc-1.
    fn said(of_first: ClaimPhase, phase: &str) -> String {
        let volumes = ["pvc-1", "pvc-2"].map(
            |name| json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}}),
        );
        let vm: VirtualMachine = serde_json::from_value(json!({"metadata": {"name": "node-1"},
            "spec": {"template": {"spec": {"volumes": volumes}}}}))
        .unwrap();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({"metadata": {"name": "node-1"},
            "spec": {"volumes": volumes},
            "status": {"phase": "Running", "volumeStatus": [
                {"name": "pvc-1", "phase": "Pending", "reason": "FailedPvcNotFound", "hotplugVolume": {}},
                {"name": "pvc-2", "phase": phase, "hotplugVolume": {"attachPodName": "hp-volume-1"}}]}}))
        .unwrap();
        let phase_of = |name: &str| if name == "pvc-1" { of_first } else { ClaimPhase::Bound };
        let pod = &Pod::of(Some(&vm), Some(&vmi), "pvc-2", phase_of);
        let progress = &hotplug::how_far(Some(&vmi), "pvc-2");
        let (volume, vm, vmi) = (&HostName::from_handle("pvc-2").unwrap(), Some(&vm), Some(&vmi));
        let waiting = Waiting { volume, doing: "is not in", machine: "node-1", progress, vm, vmi, pod };
        why_not(&unreached("nobody asks it"), &waiting)
    }

    #[rstest]
    #[case::gone(
        ClaimPhase::Missing,
        "Bound",
        "look at the machine's disk of PersistentVolumeClaim default/pvc-1 on the host, which is missing: remove the disk"
    )]
    #[case::not_bound(
        ClaimPhase::Unbound,
        "Bound",
        "look at PersistentVolumeClaim default/pvc-1 on the host, not bound"
    )]
    #[case::bound(
        ClaimPhase::Bound,
        "AttachedToNode",
        "look at Pod default/hp-volume-1 on the host, which is to bring PersistentVolumeClaim default/pvc-1"
    )]
    #[case::not_known(
        ClaimPhase::NotWatched,
        "AttachedToNode",
        "look at Pod default/hp-volume-1 on the host, which is to bring PersistentVolumeClaim default/pvc-1"
    )]
    #[case::mounted(ClaimPhase::Missing, "MountedToPod", "look at virt-handler on host node (none)")]
    #[tokio::test]
    async fn the_claim_that_keeps_a_disk_out_of_its_machine_is_named(
        #[case] of_first: ClaimPhase,
        #[case] phase: &str,
        #[case] expected: &str,
    ) {
        let said = said(of_first, phase);
        assert!(said.contains(expected), "{said}");
    }

    #[rstest]
    #[case::on_its_way_in(true, "is not in")]
    #[case::on_its_way_out(false, "is still in")]
    #[tokio::test]
    async fn the_field_by_which_kubevirt_copies_volumes_instead_of_plugging_them_is_named(
        #[case] is_in_template: bool,
        #[case] doing: &str,
    ) {
        let volume = json!([{"name": "pvc-1",
            "persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": true}}]);
        let (wanted, has) = if is_in_template { (volume, json!([])) } else { (json!([]), volume) };
        let said = |strategy: &str| {
            let vm: VirtualMachine = serde_json::from_value(json!({"metadata": {"name": "node-1"},
                "spec": {"updateVolumesStrategy": strategy, "template": {"spec": {"volumes": wanted}}}}))
            .unwrap();
            let vmi: VirtualMachineInstance = serde_json::from_value(json!({"metadata": {"name": "node-1"},
                "spec": {"volumes": has}, "status": {"phase": "Running"}}))
            .unwrap();
            let (volume, vm, vmi) = (&HostName::from_handle("pvc-1").unwrap(), Some(&vm), Some(&vmi));
            let (progress, pod) = (&Progress::default(), &Pod::default());
            let waiting = Waiting { volume, doing, machine: "node-1", progress, vm, vmi, pod };
            why_not(&unreached("nobody asks it"), &waiting)
        };
        let expected = "look at spec.updateVolumesStrategy of VirtualMachine default/node-1 on the host, which is Migration";
        assert!(said("Migration").contains(expected), "{}", said("Migration"));
        assert!(said("Replacement").contains("look at virt-controller"), "{}", said("Replacement"));
    }

    #[rstest]
    #[case::gone("null", ClaimPhase::Missing)]
    #[case::new("{}", ClaimPhase::Unbound)]
    #[case::pending(r#"{"status": {"phase": "Pending"}}"#, ClaimPhase::Unbound)]
    #[case::bound(r#"{"status": {"phase": "Bound"}}"#, ClaimPhase::Bound)]
    fn a_claim_that_is_not_there_is_another_thing_than_one_that_is_not_bound(
        #[case] claim: &str,
        #[case] expected: ClaimPhase,
    ) {
        let claim: Option<PersistentVolumeClaim> = serde_json::from_str(claim).unwrap();
        assert_eq!(ClaimPhase::of(claim.as_ref()), expected);
    }
}
