//! DeleteVolume (docs/contract/csi-driver.md#delete).

mod left_behind;

use std::sync::Mutex;

use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations::CSI_ATTACH};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    create, machine_disk,
    needed::Needed,
    published::{Machines, virtual_machines},
    wait,
};
use crate::{
    attach::{Attacher, export::Users, hotplug, on_for, ownership::Ownership},
    guest::User,
    healing::CALL_LASTS,
    host::{self, Host},
    refusal::Refusal,
    volume::{access::Reach, name::HostName, record},
};

/// A claim that others write again and again is deleted at the next call.
const TRIES: usize = 5;

/// The answer for a volume that is gone is OK.
pub(super) async fn delete_volume(
    host: &Host,
    attacher: &Attacher,
    needed: &Needed,
    name: &HostName,
    until: Instant,
) -> Result<(), Refusal> {
    let mut claim = create::read(host, name).await?;
    let plan = decide(claim.as_ref());
    let mut was_detached = false;
    if let Some(claim) = &claim {
        host.check_owner(claim).await?;
        machine_disk::refuse_deletion(host, claim)?;
        if plan.must_list_machines {
            let (machines, with) = machines_with(host, name).await?;
            let ownership = claim.annotations().get(CSI_ATTACH).and_then(|text| Ownership::parse(text));
            if !with.is_empty() {
                let Some(machine) = left_behind::in_machine(&with, ownership.as_ref(), &machines) else {
                    return Err(attached(host.namespace(), name, &with));
                };
                Box::pin(left_behind::refuse_if_attached_or_mounted(attacher, name, machine)).await?;
            }
            if let Some(machine) = ownership.and_then(|ownership| recorded(&ownership, &machines)) {
                // somebody is about to put it there, or has died while it left, or has removed its VolumeAttachment, or the
                // Go driver, which writes no annotation, has taken it away
                let within = wait::end(until, CALL_LASTS).saturating_duration_since(Instant::now());
                attacher.detach(name, &machine, &Mutex::default(), within).await?;
                was_detached = true;
            }
        }
        if plan.may_be_needed {
            needed.volume(host, name).await?;
        }
        // last, because the first such question of a process begins the watches
        if !plan.must_list_machines && is_shown_in_machine(attacher, name).await {
            let (_, with) = machines_with(host, name).await?;
            if !with.is_empty() {
                return Err(attached(host.namespace(), name, &with));
            }
        }
    }
    match plan.restore {
        Restore::None => {}
        restore => delete_restore(host, name, restore).await?,
    }
    if was_detached {
        claim = create::read(host, name).await?;
        if claim.as_ref().is_some_and(|claim| claim.annotations().contains_key(CSI_ATTACH)) {
            return Err(Refusal::aborted(format!("volume {name} is being attached again: call again")));
        }
    }
    let Some(claim) = claim else { return Ok(()) };
    if plan.may_have_export {
        delete_export(host, attacher.users(), name, &claim).await?;
    }
    // it goes with the VolumeRemoteRestore, which changes it
    if plan.restore == Restore::There {
        let this = host::of_uid(claim.uid().as_deref());
        return gone(host.claims().delete(name.as_str(), &this).await)
            .map_err(|error| refusal(host, name, &error));
    }
    delete_as_read(host, name, claim).await
}

fn gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A process that says meanwhile that the volume is its machine's would put a claim there that is gone. Others write the
/// claim too: the host binds it and notes its size.
async fn delete_as_read(
    host: &Host,
    name: &HostName,
    mut claim: PersistentVolumeClaim,
) -> Result<(), Refusal> {
    let mut tries = 0;
    loop {
        let deleted = host.claims().delete(name.as_str(), &host::of_version(&claim.metadata)).await;
        let Err(error) = gone(deleted) else { return Ok(()) };
        tries += 1;
        let is_newer = matches!(&error, kube::Error::Api(status) if is_of_precondition(&status.message));
        if !is_newer || tries == TRIES {
            return Err(refusal(host, name, &error));
        }
        let Some(read) = create::read(host, name).await? else { return Ok(()) };
        let what_counts = |it: &PersistentVolumeClaim| (it.uid(), it.annotations().get(CSI_ATTACH).cloned());
        if what_counts(&read) != what_counts(&claim) {
            return Err(refusal(host, name, &error));
        }
        claim = read;
    }
}

/// What is looked at before a claim is deleted, and what is deleted before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    must_list_machines: bool,
    may_be_needed: bool,
    restore: Restore,
    may_have_export: bool,
}

/// Whether there is a VolumeRemoteRestore, whose right came with Harvester 1.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restore {
    None,
    Perhaps,
    There,
}

fn decide(claim: Option<&PersistentVolumeClaim>) -> Plan {
    let Some(claim) = claim else {
        // the host would make the claim, which is not there yet
        let restore = Restore::Perhaps;
        return Plan { must_list_machines: false, may_be_needed: false, restore, may_have_export: false };
    };
    let is_restored = create::is_restored(claim);
    Plan {
        // Harvester keeps a claim that a machine uses, but not from the garbage collector; others are looked for in what
        // is watched
        must_list_machines: is_restored || claim.annotations().contains_key(CSI_ATTACH),
        may_be_needed: claim.metadata.deletion_timestamp.is_none(),
        restore: if is_restored { Restore::There } else { Restore::None },
        may_have_export: record::reach_of(claim) != Some(Reach::Disk),
    }
}

async fn instances(host: &Host) -> Result<Vec<VirtualMachineInstance>, Refusal> {
    host::list(&host.instances()).await.map_err(|error| {
        let doing = format!("list the VirtualMachineInstances of namespace {} on the host", host.namespace());
        Refusal::of_host(&doing, &error)
    })
}

/// Whether the watches show the volume in a machine, which costs no request while they run: the Go driver writes no
/// annotation, and somebody may have removed ours. Harvester's webhook looks at no instance. Where the watches do not work
/// it is left to the webhook.
async fn is_shown_in_machine(attacher: &Attacher, name: &HostName) -> bool {
    let call = attacher.watches().begin_for_machines();
    let (machines, instances) = tokio::join!(call.machines(), call.instances());
    machines.is_some_and(|all| all.list().iter().any(|vm| has(vm, name)))
        || instances.is_some_and(|all| all.list().iter().any(|vmi| instance_has(vmi, name)))
}

/// The machines of the host, and the names of those that have the volume, by lists of now: a watch may be old.
async fn machines_with(host: &Host, name: &HostName) -> Result<(Machines, Vec<String>), Refusal> {
    let (machines, running) = (virtual_machines(host).await?, instances(host).await?);
    let with = with_volume(name, &machines, &running);
    Ok((Machines::of(&machines), with))
}

/// Whether the machine has the volume in its template, or was asked for it.
fn has(vm: &VirtualMachine, name: &HostName) -> bool {
    hotplug::disk(Some(vm), None, name.as_str()) != hotplug::Disk::Absent
}

/// Whether the instance has the volume, also where its machine gave it up and it has not left yet.
fn instance_has(vmi: &VirtualMachineInstance, name: &HostName) -> bool {
    hotplug::disk(None, Some(vmi), name.as_str()) != hotplug::Disk::Absent
}

/// The machines that have the volume.
fn with_volume(
    name: &HostName,
    machines: &[VirtualMachine],
    running: &[VirtualMachineInstance],
) -> Vec<String> {
    let mut with: Vec<_> = machines.iter().filter(|vm| has(vm, name)).map(ResourceExt::name_any).collect();
    with.extend(running.iter().filter(|vmi| instance_has(vmi, name)).map(ResourceExt::name_any));
    with.sort();
    with.dedup();
    with
}

/// These machines have the volume.
fn attached(namespace: &str, name: &HostName, with: &[String]) -> Refusal {
    let machines: Vec<_> = with.iter().map(|machine| format!("{namespace}/{machine}")).collect();
    Refusal::precondition(format!(
        "volume {name} is in VirtualMachine {} on the host: detach it first: end the Pods that use it, or, where no \
         VolumeAttachment names it, remove the disk from the machine there",
        machines.join(" and ")
    ))
}

/// The machine of the annotation, to which a write may still be on its way, also of one whose detachment was begun: one that
/// is complete leaves no annotation. A machine that was deleted takes no write.
fn recorded(ownership: &Ownership, machines: &Machines) -> Option<String> {
    machines.name_of(&ownership.vm_uid).map(str::to_owned)
}

/// A claim that the host made of a backup would be made again. It goes before the claim, and takes it along.
async fn delete_restore(host: &Host, name: &HostName, there: Restore) -> Result<(), Refusal> {
    let doing = |verb: &str| format!("{verb} {}", host.name_of("VolumeRemoteRestore", name));
    let restore = match host.restores().get(name.as_str()).await {
        Ok(restore) => restore,
        Err(error) if host::is_not_found(&error) => return Ok(()),
        Err(error) if host::is_refused(&error) && there == Restore::Perhaps => return Ok(()),
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
    let Some(volume) = host::bound_volume(claim) else { return Ok(()) };
    let doing = |verb: &str| format!("{verb} NetworkFilesystem {volume} on the host");
    let export = match host.network_filesystems().get(volume).await {
        Ok(export) => export,
        Err(error) if host::is_not_found(&error) => return Ok(()),
        // a host before 1.4 has no exports, and nothing that says what its claims are
        Err(error) if host::is_refused(&error) && record::reach_of(claim).is_none() => return Ok(()),
        Err(error) => return Err(Refusal::of_host(&doing("read"), &error)),
    };
    if export.spec.desired_state != "Disabled" {
        let others = host.other_clusters(on_for::clusters(&export)).await?;
        refuse_if_of_others(name, &others)?;
        refuse_if_used(name, users(name.as_str()).await)?;
    }
    // on its version: another cluster may switch it on
    let this = host::of_version(&export.metadata);
    match host.network_filesystems().delete(volume, &this).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(Refusal::of_host(&doing("delete"), &error)),
    }
}

/// Their Pods are not seen from here.
fn refuse_if_of_others(name: &HostName, others: &[String]) -> Result<(), Refusal> {
    if others.is_empty() {
        return Ok(());
    }
    Err(Refusal::precondition(format!(
        "guest cluster {} has the export of volume {name} on: end its Pods there first",
        others.join(" and ")
    )))
}

/// A question about nodes that gets no answer never counts as "none".
fn refuse_if_used(name: &HostName, users: Result<Vec<User>, String>) -> Result<(), Refusal> {
    let users = users.map_err(|why| {
        Refusal::unavailable(format!("whether nodes use the export of volume {name} is not known: {why}"))
    })?;
    let stay = users.into_iter().filter(|user| !user.is_leaving);
    let mut nodes: Vec<_> = stay.map(|user| user.node).collect();
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

/// Harvester's webhook answers 409, as does a server whose object is another one by now, or another version.
fn refusal(host: &Host, name: &HostName, error: &kube::Error) -> Refusal {
    let refusal = Refusal::of_host(&format!("delete {}", host.claim_name(name)), error);
    match error {
        kube::Error::Api(status) if is_of_precondition(&status.message) => {
            Refusal::aborted(format!("{}: call again", refusal.message))
        }
        kube::Error::Api(status) if status.code == 409 || status.message.contains("admission webhook") => {
            Refusal::precondition(refusal.message)
        }
        _ => refusal,
    }
}

/// Two places of a server refuse it, each in words of its own.
fn is_of_precondition(message: &str) -> bool {
    ["Precondition failed", "in the precondition ("].iter().any(|part| message.contains(part))
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

    const RECORD: &str = "driver.harvesterhci.io/volume";

    #[rstest]
    #[case::a_disk(json!({}), "Block", plan(false, true, Restore::None, false))]
    #[case::attached(json!({"annotations": {CSI_ATTACH: ATTACH}}), "Block", plan(true, true, Restore::None, false))]
    #[case::of_a_backup(
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "VolumeRemoteRestore", "name": "pvc-1", "uid": "u"}]}),
        "Block",
        plan(true, true, Restore::There, false)
    )]
    #[case::going(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "Block", plan(false, false, Restore::None, false))]
    #[case::for_many_nodes(
        json!({"annotations": {RECORD: r#"{"name":"pvc-1","size":1,"reach":"export"}"#}}),
        "Filesystem",
        plan(false, true, Restore::None, true)
    )]
    #[case::a_disk_in_a_file(
        json!({"annotations": {RECORD: r#"{"name":"pvc-1","size":1,"reach":"disk"}"#}}),
        "Filesystem",
        plan(false, true, Restore::None, false)
    )]
    #[case::nobody_says(json!({}), "Filesystem", plan(false, true, Restore::None, true))]
    fn a_claim_says_what_is_looked_at_before_it_is_deleted(
        #[case] metadata: serde_json::Value,
        #[case] mode: &str,
        #[case] expected: Plan,
    ) {
        let claim =
            serde_json::from_value(json!({"metadata": metadata, "spec": {"volumeMode": mode}})).unwrap();
        assert_eq!(decide(Some(&claim)), expected);
    }

    #[test]
    fn without_a_claim_the_host_may_be_about_to_make_one_of_a_backup() {
        assert_eq!(decide(None), plan(false, false, Restore::Perhaps, false));
    }

    fn plan(machine: bool, needed: bool, restore: Restore, export: bool) -> Plan {
        Plan { must_list_machines: machine, may_be_needed: needed, restore, may_have_export: export }
    }

    fn user(node: &str, is_leaving: bool) -> User {
        let attachment = format!("va-{node}");
        User { node: node.to_owned(), attachment, is_attached: true, is_leaving }
    }

    #[rstest]
    #[case::nobody(Ok(vec![]), None)]
    #[case::nodes(Ok(vec![user("b", false), user("a", false)]), Some(Code::FailedPrecondition))]
    #[case::one_that_leaves(Ok(vec![user("a", true)]), None)]
    #[case::nobody_knows(Err("forbidden".to_owned()), Some(Code::Unavailable))]
    fn an_export_that_nodes_use_is_not_deleted(
        #[case] users: Result<Vec<User>, String>,
        #[case] expected: Option<Code>,
    ) {
        let name = HostName::from_handle("pvc-1").unwrap();
        let refusal = refuse_if_used(&name, users).err();
        assert_eq!(refusal.as_ref().map(|refusal| refusal.code), expected);
        assert!(expected != Some(Code::FailedPrecondition) || refusal.unwrap().message.contains("a and b"));
    }

    #[rstest]
    #[case::attached("pvc-1", &["a"])]
    #[case::another("pvc-2", &[])]
    fn an_attached_volume_is_in_the_machine_whose_template_lists_it(
        #[case] claim: &str,
        #[case] expected: &[&str],
    ) {
        let name = HostName::from_handle("pvc-1").unwrap();
        let claim = json!([{"name": claim, "persistentVolumeClaim": {"claimName": claim}}]);
        assert_eq!(with_volume(&name, &[machine("a", &claim)], &[]), expected);
    }

    // a subresource asks by the status first
    #[test]
    fn a_volume_is_in_a_machine_that_was_asked_for_it_or_has_it_as_datavolume() {
        let name = HostName::from_handle("pvc-1").unwrap();
        let options = json!({"addVolumeOptions": {"name": "pvc-1", "volumeSource":
            {"persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": true}}}});
        let asked = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {},
            "status": {"volumeRequests": [options]}}));
        let data_volume = json!([{"name": "disk-0", "dataVolume": {"name": "pvc-1"}}]);
        let machines = [asked.unwrap(), machine("b", &data_volume), machine("c", &json!([]))];
        assert_eq!(with_volume(&name, &machines, &[]), ["a", "b"]);
    }

    #[test]
    fn an_attached_volume_is_not_deleted_and_people_hear_what_to_do() {
        let name = HostName::from_handle("pvc-1").unwrap();
        let refused = attached("shop", &name, &["a".to_owned(), "b".to_owned()]);
        assert_eq!(refused.code, Code::FailedPrecondition);
        for part in ["VirtualMachine shop/a and shop/b on the host: detach it first", "remove the disk"] {
            assert!(refused.message.contains(part), "{part}: {refused}");
        }
    }

    #[rstest]
    #[case::on_its_way_or_taken_away(ATTACH, Some("a"))]
    #[case::half_detached(DETACH, Some("a"))]
    #[case::the_machine_is_gone(FORMER, None)]
    #[case::strange_text("?", None)]
    fn a_machine_that_the_annotation_names_is_asked_to_let_go(
        #[case] annotation: &str,
        #[case] expected: Option<&str>,
    ) {
        let machines = Machines::of(&[machine("a", &json!([]))]);
        let ownership = Ownership::parse(annotation);
        assert_eq!(ownership.and_then(|it| recorded(&it, &machines)).as_deref(), expected);
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
        assert_eq!(with_volume(&name, &[], &running) == ["a"], is_refused);
    }
}
