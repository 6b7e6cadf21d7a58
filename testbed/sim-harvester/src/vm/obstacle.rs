//! The obstacles that keep an instance from starting, in the words of KubeVirt and Harvester.

use serde_json::{Value, json};

use super::Vm;

/// Harvester writes here why it stopped a VM.
pub(crate) const QUOTA: &str = "harvesterhci.io/insufficient-resource-quota";

/// One thing that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A claim that a volume names.
    NoClaim(String),
    /// A claim that has no volume yet.
    Unbound(String),
    /// The Secret with cloud-init's data: the pod waits for it.
    NoSecret(String),
    /// The refusal of the pod by Kubernetes.
    Quota(String),
}

/// The outcome of a look at the VM's namespace.
pub(crate) struct Around<'a> {
    /// Whether a claim is bound; `None` where there is none of this name.
    pub(crate) bound: &'a dyn Fn(&str) -> Option<bool>,
    pub(crate) has_secret: &'a dyn Fn(&str) -> bool,
    /// Why the VM's pod would be refused.
    pub(crate) refusal: Option<String>,
}

/// The first thing that is missing, in the order in which a real one stumbles.
pub(crate) fn of(vm: &Vm, around: &Around<'_>) -> Option<Obstacle> {
    let claims = claims_of_a_start(vm);
    if let Some(missing) = claims.iter().find(|claim| (around.bound)(claim).is_none()) {
        return Some(Obstacle::NoClaim(missing.clone()));
    }
    if let Some(refusal) = &around.refusal {
        return Some(Obstacle::Quota(refusal.clone()));
    }
    if let Some(unbound) = claims.iter().find(|claim| (around.bound)(claim) == Some(false)) {
        return Some(Obstacle::Unbound(unbound.clone()));
    }
    secrets(vm).into_iter().find(|secret| !(around.has_secret)(secret)).map(Obstacle::NoSecret)
}

fn volumes(vm: &Vm) -> impl Iterator<Item = &Value> {
    let template = vm.spec.rest.get("template");
    template.and_then(|template| template["spec"]["volumes"].as_array()).into_iter().flatten()
}

/// Names of the claims of a VM's volumes.
pub(crate) fn claims(vm: &Vm) -> Vec<String> {
    volumes(vm).filter_map(crate::volumes::claim).map(str::to_owned).collect()
}

/// Those without which it does not start. A volume that may come and go comes later.
fn claims_of_a_start(vm: &Vm) -> Vec<String> {
    let cold = volumes(vm).filter(|volume| !crate::volumes::is_hot(volume));
    cold.filter_map(crate::volumes::claim).map(str::to_owned).collect()
}

fn secrets(vm: &Vm) -> Vec<String> {
    let sources = ["cloudInitNoCloud", "cloudInitConfigDrive"];
    let references = ["secretRef", "networkDataSecretRef"];
    volumes(vm)
        .flat_map(|volume| sources.map(|source| &volume[source]))
        .flat_map(|source| references.map(|reference| source[reference]["name"].as_str()))
        .flatten()
        .map(str::to_owned)
        .collect()
}

impl Obstacle {
    /// The Event on the instance: reason and message.
    pub(crate) fn event(&self, name: &str) -> (&'static str, String) {
        match self {
            Self::NoClaim(claim) => ("FailedPvcNotFound", format!("PVC {claim} does not exist")),
            Self::Unbound(_) => ("FailedScheduling", UNBOUND.to_owned()),
            Self::NoSecret(secret) => (
                "FailedMount",
                format!(
                    "MountVolume.SetUp failed for volume \"cloudinitdisk-udata\": secret \"{secret}\" not found"
                ),
            ),
            Self::Quota(why) => ("FailedCreate", format!("Error creating pod: {}", forbidden(name, why))),
        }
    }

    /// The merge patch of an instance that cannot start.
    pub(crate) fn instance(&self, name: &str) -> Value {
        let condition = |kind: &str, reason: &str, message: String| json!([{"type": kind, "status": "False", "reason": reason, "message": message}]);
        let (phase, conditions) = match self {
            Self::NoClaim(claim) => (
                "Pending",
                condition("Synchronized", "FailedPvcNotFound", format!("PVC {claim} does not exist")),
            ),
            Self::Unbound(_) => {
                ("Scheduling", condition("PodScheduled", "Unschedulable", UNBOUND.to_owned()))
            }
            Self::NoSecret(_) => (
                "Scheduling",
                condition("Ready", "GuestNotRunning", "Guest VM is not reported as running".to_owned()),
            ),
            Self::Quota(why) => (
                "Pending",
                condition(
                    "Synchronized",
                    "FailedCreate",
                    format!("failed to create virtual machine pod: {}", forbidden(name, why)),
                ),
            ),
        };
        json!({"status": {"phase": phase, "conditions": conditions}})
    }

    /// KubeVirt's word for the VM.
    pub(crate) fn printable(&self) -> &'static str {
        match self {
            Self::NoClaim(_) => "ErrorPvcNotFound",
            Self::Unbound(_) => "ErrorUnschedulable",
            Self::NoSecret(_) | Self::Quota(_) => "Starting",
        }
    }

    /// Harvester stops what a quota refuses.
    pub(crate) fn halts(&self, name: &str) -> Option<Value> {
        let Self::Quota(why) = self else { return None };
        Some(json!({"metadata": {"annotations": {QUOTA: forbidden(name, why)}},
            "spec": {"runStrategy": "Halted", "running": null}}))
    }
}

const UNBOUND: &str = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes \
    are available: 3 Preemption is not helpful for scheduling.";

fn forbidden(name: &str, why: &str) -> String {
    format!("pods \"virt-launcher-{name}\" is forbidden: {why}")
}

#[cfg(test)]
mod tests {
    use controller_kit::RawObject;
    use rstest::rstest;

    use super::*;

    fn vm() -> Vm {
        RawObject::from_json(
            json!({"metadata": {"name": "demo-4"}, "spec": {"template": {"spec": {"volumes": [
            {"name": "cloudinitdisk", "cloudInitNoCloud": {"secretRef": {"name": "demo-4-cloudinit"},
                "networkDataSecretRef": {"name": "demo-4-cloudinit"}}},
            {"name": "disk-0", "persistentVolumeClaim": {"claimName": "root"}},
            {"name": "disk-1", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "disk-2", "persistentVolumeClaim": {"claimName": "later", "hotpluggable": true}}]}}}}),
        )
        .unwrap()
    }

    #[rstest]
    #[case::nothing(&["root", "data"], &[], true, None, None)]
    #[case::no_claim(&["root"], &[], true, None, Some(Obstacle::NoClaim("data".into())))]
    #[case::unbound(&["root", "data"], &["data"], true, None, Some(Obstacle::Unbound("data".into())))]
    #[case::no_secret(&["root", "data"], &[], false, None, Some(Obstacle::NoSecret("demo-4-cloudinit".into())))]
    #[case::quota(&["root", "data"], &["data"], false, Some("exceeded"), Some(Obstacle::Quota("exceeded".into())))]
    fn the_first_thing_that_is_missing_holds_a_vm(
        #[case] there: &[&str],
        #[case] unbound: &[&str],
        #[case] secret: bool,
        #[case] refusal: Option<&str>,
        #[case] expected: Option<Obstacle>,
    ) {
        let around = Around {
            bound: &|claim| there.contains(&claim).then(|| !unbound.contains(&claim)),
            has_secret: &|_| secret,
            refusal: refusal.map(str::to_owned),
        };
        assert_eq!(of(&vm(), &around), expected);
    }

    #[test]
    fn only_a_quota_stops_the_vm_and_says_so_on_it() {
        let halts = Obstacle::Quota("exceeded quota: small".into()).halts("demo-4").unwrap();
        assert_eq!(halts["spec"]["runStrategy"], "Halted");
        let said = halts["metadata"]["annotations"][QUOTA].as_str().unwrap();
        assert_eq!(said, "pods \"virt-launcher-demo-4\" is forbidden: exceeded quota: small");
        assert_eq!(Obstacle::NoClaim("root".into()).halts("demo-4"), None);
    }
}
