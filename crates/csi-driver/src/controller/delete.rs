//! DeleteVolume (docs/contract/csi-driver.md#delete).

use std::sync::Mutex;

use harvester_api::{VirtualMachineInstance, annotations::CSI_ATTACH};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{create, needed::Needed, published::Machines, wait};
use crate::{
    attach::{
        Attacher,
        claim::{Claim, Operation},
        export::Users,
        hotplug,
    },
    host::{self, Host},
    refusal::Refusal,
    volume::{access::Reach, name::HostName, record},
};

/// The answer for a volume that is gone is OK.
pub(super) async fn delete_volume(
    host: &Host,
    attacher: &Attacher,
    needed: &Needed,
    name: &HostName,
) -> Result<(), Refusal> {
    let claim = create::read(host, name).await?;
    if let Some(claim) = &claim {
        host.check_owner(claim).await?;
        let annotation = claim.annotations().get(CSI_ATTACH);
        // Harvester keeps a claim that a machine uses, but not from the garbage collector
        if annotation.is_some() || create::is_restored(claim) {
            let (machines, running) = (Machines::list(host).await?, instances(host).await?);
            refuse_if_attached(name, &machines, &running)?;
            if let Some(machine) = annotation.and_then(|text| recorded(text, &machines)) {
                // somebody is about to put it there, or the Go driver, which writes no annotation, has taken it away
                attacher.take(name, &machine, &Mutex::default(), wait::WAITS_FOR).await?;
            }
        }
        if claim.metadata.deletion_timestamp.is_none() {
            needed.volume(host, name).await?;
        }
    }
    // a claim that nobody restored has no VolumeRemoteRestore, whose right came with Harvester 1.8
    let is_restored = claim.as_ref().map(create::is_restored);
    if is_restored != Some(false) {
        delete_restore(host, name, is_restored == Some(true)).await?;
    }
    let Some(claim) = claim else { return Ok(()) };
    delete_export(host, attacher.users(), name, &claim).await?;
    match host.claims().delete(name.as_str(), &host::of_uid(claim.uid().as_deref())).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(refusal(host, name, &error)),
    }
}

async fn instances(host: &Host) -> Result<Vec<VirtualMachineInstance>, Refusal> {
    host::list(&host.instances()).await.map_err(|error| {
        let doing = format!("list the VirtualMachineInstances of namespace {} on the host", host.namespace());
        Refusal::of_host(&doing, &error)
    })
}

/// A machine has the volume.
fn refuse_if_attached(
    name: &HostName,
    machines: &Machines,
    running: &[VirtualMachineInstance],
) -> Result<(), Refusal> {
    let mut with = machines.with(name.as_str()).to_vec();
    // its machine gave it up, and it has not left yet
    let has_it = |vmi: &&VirtualMachineInstance| {
        hotplug::disk(None, Some(vmi), name.as_str()) != hotplug::Disk::Absent
    };
    with.extend(running.iter().filter(has_it).map(ResourceExt::name_any));
    with.sort();
    with.dedup();
    if with.is_empty() {
        return Ok(());
    }
    Err(Refusal::precondition(format!(
        "volume {name} is in VirtualMachine {}: detach it first",
        with.join(" and ")
    )))
}

/// The machine that the annotation says the volume is in. One that was deleted has no disk any more.
fn recorded(annotation: &str, machines: &Machines) -> Option<String> {
    let claim = Claim::parse(annotation).filter(|claim| claim.operation == Operation::Attach)?;
    machines.name_of(&claim.vm_uid).map(str::to_owned)
}

/// A claim that the host made of a backup would be made again. It goes before the claim, and takes it along.
async fn delete_restore(host: &Host, name: &HostName, is_there: bool) -> Result<(), Refusal> {
    let doing = |verb: &str| format!("{verb} {}", host.name_of("VolumeRemoteRestore", name));
    let restore = match host.restores().get(name.as_str()).await {
        Ok(restore) => restore,
        Err(error) if host::is_not_found(&error) => return Ok(()),
        Err(error) if host::is_refused(&error) && !is_there => return Ok(()),
        Err(error) => return Err(Refusal::of_host(&doing("read"), &error)),
    };
    match host.restores().delete(name.as_str(), &host::of_uid(restore.metadata.uid.as_deref())).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(Refusal::of_host(&doing("delete"), &error)),
    }
}

/// The export of a volume for many nodes. Where nobody wrote down what the volume is, there is an export or there is none.
/// One that is on may be in use: it is off when its last node has left.
async fn delete_export(
    host: &Host,
    users: &Users,
    name: &HostName,
    claim: &PersistentVolumeClaim,
) -> Result<(), Refusal> {
    let reach = record::reach_of(claim);
    let Some(volume) = host::bound_volume(claim).filter(|_| reach != Some(Reach::Disk)) else {
        return Ok(());
    };
    let doing = |verb: &str| format!("{verb} NetworkFilesystem {volume} on the host");
    let export = match host.network_filesystems().get(volume).await {
        Ok(export) => export,
        Err(error) if host::is_not_found(&error) => return Ok(()),
        // a host before 1.4 has no exports, and nothing that says what its claims are
        Err(error) if host::is_refused(&error) && reach.is_none() => return Ok(()),
        Err(error) => return Err(Refusal::of_host(&doing("read"), &error)),
    };
    if export.spec.desired_state != "Disabled" {
        refuse_if_used(name, users(name.as_str()).await)?;
    }
    let this = host::of_uid(export.metadata.uid.as_deref());
    match host.network_filesystems().delete(volume, &this).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(Refusal::of_host(&doing("delete"), &error)),
    }
}

/// A question about nodes that gets no answer never counts as "none".
fn refuse_if_used(name: &HostName, users: Result<Vec<String>, String>) -> Result<(), Refusal> {
    let mut nodes = users.map_err(|why| {
        Refusal::unavailable(format!("whether nodes use the export of volume {name} is not known: {why}"))
    })?;
    nodes.sort();
    nodes.dedup();
    if nodes.is_empty() {
        return Ok(());
    }
    Err(Refusal::precondition(format!(
        "volume {name} has VolumeAttachments on Node {}, where its export is mounted: end the Pods there first",
        nodes.join(" and ")
    )))
}

/// Harvester's webhook answers 409, as does a server whose object has another UID by now.
fn refusal(host: &Host, name: &HostName, error: &kube::Error) -> Refusal {
    let refusal = Refusal::of_host(&format!("delete {}", host.claim_name(name)), error);
    match error {
        kube::Error::Api(status) if status.message.contains("Precondition failed") => {
            Refusal::aborted(format!("{}: call again", refusal.message))
        }
        kube::Error::Api(status) if status.code == 409 || status.message.contains("admission webhook") => {
            Refusal::precondition(refusal.message)
        }
        _ => refusal,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;
    use tonic::Code;

    use super::super::published::tests::machine;
    use super::*;

    const ATTACH: &str = r#"{"vm":"a","vmUid":"uid-a","op":"attach","holder":"pod"}"#;
    const DETACH: &str = r#"{"vm":"a","vmUid":"uid-a","op":"detach","holder":"pod"}"#;
    const FORMER: &str = r#"{"vm":"a","vmUid":"uid-former","op":"attach","holder":"pod"}"#;

    #[rstest]
    #[case::nobody(Ok(vec![]), None)]
    #[case::nodes(Ok(vec!["b".to_owned(), "a".to_owned()]), Some(Code::FailedPrecondition))]
    #[case::nobody_knows(Err("forbidden".to_owned()), Some(Code::Unavailable))]
    fn an_export_that_nodes_use_is_not_deleted(
        #[case] users: Result<Vec<String>, String>,
        #[case] expected: Option<Code>,
    ) {
        let name = HostName::from_handle("pvc-1").unwrap();
        let refusal = refuse_if_used(&name, users).err();
        assert_eq!(refusal.as_ref().map(|refusal| refusal.code), expected);
        assert!(expected != Some(Code::FailedPrecondition) || refusal.unwrap().message.contains("a and b"));
    }

    #[rstest]
    #[case::attached("pvc-1", Some("volume pvc-1 is in VirtualMachine a: detach it first"))]
    #[case::another("pvc-2", None)]
    fn an_attached_volume_is_not_deleted(#[case] claim: &str, #[case] expected: Option<&str>) {
        let machines =
            Machines::of(&[machine("a", &json!([{"persistentVolumeClaim": {"claimName": claim}}]))]);
        let name = HostName::from_handle("pvc-1").unwrap();
        let refused = refuse_if_attached(&name, &machines, &[]).err();
        assert_eq!(refused.as_ref().map(|refusal| refusal.message.as_str()), expected);
        assert!(refused.is_none_or(|refusal| refusal.code == Code::FailedPrecondition));
    }

    #[rstest]
    #[case::on_its_way_or_taken_away(ATTACH, Some("a"))]
    #[case::left(DETACH, None)]
    #[case::the_machine_is_gone(FORMER, None)]
    #[case::strange_text("?", None)]
    fn a_machine_that_the_annotation_names_is_asked_to_let_go(
        #[case] annotation: &str,
        #[case] expected: Option<&str>,
    ) {
        let machines = Machines::of(&[machine("a", &json!([]))]);
        assert_eq!(recorded(annotation, &machines).as_deref(), expected);
    }

    #[rstest]
    #[case::on_its_way_out("Running", true)]
    #[case::the_host_node_is_silent("Unknown", true)]
    #[case::ended("Failed", false)]
    fn a_volume_that_has_not_left_its_instance_is_not_deleted(#[case] phase: &str, #[case] is_refused: bool) {
        let vmi = json!({"metadata": {"name": "a"}, "spec": {},
            "status": {"phase": phase, "volumeStatus": [{"name": "pvc-1", "phase": "Detaching"}]}});
        let running = [serde_json::from_value(vmi).unwrap()];
        let name = HostName::from_handle("pvc-1").unwrap();
        let refused = refuse_if_attached(&name, &Machines::default(), &running).err();
        assert_eq!(refused.is_some_and(|refusal| refusal.message.contains("VirtualMachine a")), is_refused);
    }
}
