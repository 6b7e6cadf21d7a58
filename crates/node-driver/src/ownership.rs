//! Decides whether a VM of the machine's name, and its Secret, belong to the machine: before `Create` continues with it, and
//! before `Remove` deletes it.

use harvester_api::{
    VirtualMachine,
    annotations::{MACHINE_ATTEMPT, MACHINE_INPUTS},
    labels::{CREATOR, GUEST_CLUSTER, NODE_DRIVER},
};
use kube::{ResourceExt as _, api::DynamicObject};

use crate::{labels, objects::InputHash};

/// Who created a VM, as `Create` sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// This attempt: it may continue with the VM, and delete it after a failure.
    ThisAttempt,
    /// An earlier attempt with the same inputs: this one may continue with the VM, and must not delete it.
    EarlierAttempt,
    /// The VM is being deleted.
    Terminating,
    /// Somebody else, or an attempt with other inputs.
    Foreign,
}

/// Compares creator, inputs and attempt. Without inputs (no key exists yet) each VM is foreign.
pub(crate) fn of(vm: &VirtualMachine, inputs: Option<&InputHash>, attempt: Option<&str>) -> Ownership {
    let annotation = |key: &str| vm.annotations().get(key).map(String::as_str);
    let ours = vm.labels().get(CREATOR).is_some_and(|creator| creator == NODE_DRIVER);
    let same = inputs.is_some_and(|inputs| annotation(MACHINE_INPUTS) == Some(inputs.to_string().as_str()));
    match (ours && same, vm.metadata.deletion_timestamp.is_some()) {
        (true, true) => Ownership::Terminating,
        (true, false) if attempt.is_some() && annotation(MACHINE_ATTEMPT) == attempt => {
            Ownership::ThisAttempt
        }
        (true, false) => Ownership::EarlierAttempt,
        (false, _) => Ownership::Foreign,
    }
}

/// The refusal to continue with a VM.
pub(crate) fn refusal(ownership: &Ownership, name: &str) -> Option<String> {
    match ownership {
        Ownership::ThisAttempt | Ownership::EarlierAttempt => None,
        Ownership::Terminating => Some(format!("VM {name} is being deleted: try again when it is gone")),
        Ownership::Foreign => Some(format!(
            "VM {name} exists and was not made by this machine: delete it or choose another name"
        )),
    }
}

/// The refusal to remove a VM of the machine's name that is not the machine's. `uid` is that of the VM that `Create` brought
/// up, if it is stored.
///
/// Upstream's driver sets the creator, and the guest cluster if it knows it; it stores no UID.
pub(crate) fn removal_refusal(vm: &VirtualMachine, name: &str, cluster: &str, uid: &str) -> Option<String> {
    let label = |key: &str| vm.labels().get(key).map(String::as_str).unwrap_or_default();
    let creator = label(CREATOR);
    if creator != NODE_DRIVER {
        let made_by = if creator.is_empty() {
            "without label harvesterhci.io/creator".to_owned()
        } else {
            format!("creator {creator}")
        };
        return Some(format!(
            "VM {name} was not made by the node driver ({made_by}): remove it in Harvester, then the machine"
        ));
    }
    let (of, ours) = (label(GUEST_CLUSTER), labels::legal(cluster));
    if !of.is_empty() && !ours.is_empty() && of != ours {
        return Some(format!(
            "VM {name} belongs to guest cluster {of}, this machine to {ours}: remove the VM in Harvester if it is of no use"
        ));
    }
    if !uid.is_empty() && vm.uid().as_deref() != Some(uid) {
        return Some(format!(
            "VM {name} is another one than this machine's, whose UID is {uid}: somebody made it anew; remove it in \
             Harvester if it is of no use"
        ));
    }
    None
}

/// Whether a Secret of this driver or of upstream's belongs to a VM of this name. Without an owner the label decides.
pub(crate) fn is_secret_of(secret: &DynamicObject, vm: &str) -> bool {
    let owners = secret.owner_references();
    if owners.is_empty() {
        return secret.labels().get(CREATOR).is_some_and(|creator| creator == NODE_DRIVER);
    }
    owners.iter().any(|owner| owner.kind == "VirtualMachine" && owner.name == vm)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{config::Config, machine::Machine};

    fn inputs() -> InputHash {
        let config = Config {
            machine_name: "demo-1".into(),
            vm_namespace: "shop".into(),
            cpu: 1,
            memory_size: "1Gi".into(),
            disk_info: Some(crate::config::DiskInfo::default()),
            network_info: Some(crate::config::NetworkInfo::default()),
            ..Config::default()
        };
        InputHash::of(&Machine::check(&config).unwrap(), "", "key")
    }

    fn vm(creator: &str, hash: &str, attempt: &str, deleting: bool) -> VirtualMachine {
        let mut vm = json!({"metadata": {"name": "demo-1", "labels": {CREATOR: creator},
            "annotations": {MACHINE_INPUTS: hash, MACHINE_ATTEMPT: attempt}}, "spec": {}});
        vm["metadata"]["deletionTimestamp"] =
            if deleting { json!("2026-11-21T12:00:00Z") } else { Value::Null };
        serde_json::from_value(vm).unwrap()
    }

    #[rstest]
    #[case::made(NODE_DRIVER, true, "a", false, Ownership::ThisAttempt)]
    #[case::left(NODE_DRIVER, true, "b", false, Ownership::EarlierAttempt)]
    #[case::going(NODE_DRIVER, true, "a", true, Ownership::Terminating)]
    #[case::other_inputs(NODE_DRIVER, false, "a", false, Ownership::Foreign)]
    #[case::somebody_elses("harvester", true, "a", false, Ownership::Foreign)]
    fn creator_and_inputs_decide(
        #[case] creator: &str,
        #[case] same: bool,
        #[case] attempt: &str,
        #[case] deleting: bool,
        #[case] expected: Ownership,
    ) {
        let hash = if same { inputs().to_string() } else { "0".into() };
        let vm = vm(creator, &hash, attempt, deleting);
        assert_eq!(of(&vm, Some(&inputs()), Some("a")), expected);
        let usable = matches!(expected, Ownership::ThisAttempt | Ownership::EarlierAttempt);
        assert_eq!(refusal(&expected, "shop/demo-1").is_none(), usable);
    }

    #[test]
    fn without_a_key_no_vm_is_ours() {
        assert_eq!(of(&vm(NODE_DRIVER, &inputs().to_string(), "a", false), None, None), Ownership::Foreign);
    }
}
