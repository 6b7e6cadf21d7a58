//! Which claims are volumes that nobody needs.

use std::collections::BTreeSet;

use csi_driver::{attach::ownership::Ownership, volume::record};
use harvester_api::{annotations, labels};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::Value;

use super::{
    Deletion, Kept, Kind, Orphan, Report,
    decide::{Life, Seen, is_past},
    facts,
};
use crate::{
    doctor::read,
    json::{annotation, is_deleted, label, members, name, text, uid},
    screen::cut,
    whose::Whose,
};

/// The PersistentVolume of a younger claim may not be there yet.
const YOUNG: SignedDuration = SignedDuration::from_hours(1);

pub(super) fn decide(seen: &Seen<'_>, report: &mut Report) {
    let namespace = &seen.facts.namespace;
    let claims = seen.of_harvester(&facts::claims(namespace)).unwrap_or_default();
    let claims: Vec<_> = claims.iter().filter(|claim| is_volume(claim) && !is_deleted(claim)).collect();
    if claims.is_empty() {
        return;
    }
    let used = used(seen);
    for claim in claims {
        let of = label(claim, labels::GUEST_CLUSTER);
        let kind = Kind::PersistentVolumeClaim;
        let found = match &used {
            Ok(used) if used.contains(name(claim)) || is_owned(claim) => continue,
            Err(why) => Err(why.clone()),
            Ok(_) => doubt(seen, claim, of),
        };
        match found {
            Err(why) => report.kept.push(Kept { kind, name: name(claim).to_owned(), why }),
            Ok(doubt) => report.orphans.push(Orphan {
                kind,
                namespace: Some(namespace.clone()),
                name: name(claim).to_owned(),
                of: cut(of.unwrap_or("-")),
                delete: Deletion::Typed,
                sentence: sentence(seen, of),
                doubt,
                next: None,
                object: claim.clone(),
            }),
        }
    }
}

fn sentence(seen: &Seen<'_>, of: Option<&str>) -> String {
    let mut sentence = match seen.facts.of_guest(facts::VOLUMES) {
        Ok(_) => "no PersistentVolume, VirtualMachine, Pod or snapshot names it".to_owned(),
        Err(_) => "no VirtualMachine, Pod or snapshot names it, and no PersistentVolume was read".to_owned(),
    };
    if of.is_none() {
        // the CSI driver labels claims whose PersistentVolumes delete them, and no others
        sentence.push_str("; it may be one that its PersistentVolume retained");
    }
    sentence
}

fn is_volume(claim: &Value) -> bool {
    serde_json::from_value::<PersistentVolumeClaim>(claim.clone())
        .is_ok_and(|claim| record::is_volume(&claim))
}

fn is_owned(claim: &Value) -> bool {
    let by_machines = annotation(claim, annotations::OWNED_BY).unwrap_or_default();
    !members(&claim["metadata"]["ownerReferences"]).is_empty() || !matches!(by_machines, "" | "[]" | "null")
}

/// What speaks against the deletion of a claim that no list names.
///
/// # Errors
/// Why it stays.
fn doubt(seen: &Seen<'_>, claim: &Value, of: Option<&str>) -> Result<Option<String>, String> {
    let attached = claim["metadata"]["annotations"][annotations::CSI_ATTACH].as_str();
    if let Some(why) = attached.and_then(|attached| in_machine(seen, attached)) {
        return Err(why);
    }
    if !is_past(claim, "/metadata/creationTimestamp", YOUNG, seen.facts.now) {
        return Err("it is younger than an hour: its PersistentVolume may be on its way".to_owned());
    }
    // what the guest's own PersistentVolumes do not name is nobody's of that cluster
    match seen.machines.whose_claim(claim) {
        Whose::Ours => return Ok(None),
        Whose::Doubtful(machine) => return Ok(Some(seen.may_be_its(machine))),
        Whose::Another(machine) => return Err(seen.may_be_its(machine)),
        Whose::Unproved => {}
    }
    match seen.life(of) {
        Life::Gone => Ok(None),
        // a machine without a label has claims without one, and they may hold what a living cluster retained
        Life::Unclear(doubt) if of.is_none() => Err(doubt),
        Life::Unclear(doubt) => Ok(Some(doubt)),
        Life::Likely(why) => Err(why),
    }
}

/// Why the volume may be in a machine, by the CSI driver's annotation, which stays when a machine is deleted.
fn in_machine(seen: &Seen<'_>, attached: &str) -> Option<String> {
    let Some(Ownership { vm, vm_uid, from, leaving, .. }) = Ownership::parse(attached) else {
        return Some(format!("which machine it is in cannot be read: {}", cut(attached)));
    };
    let namespace = &seen.facts.namespace;
    let names: Vec<_> = [Some(vm), from, leaving].into_iter().flatten().collect();
    for path in [read::machines(namespace), read::instances(namespace)] {
        let machines = match seen.of_harvester(&path) {
            Ok(machines) => machines,
            Err(why) => return Some(why),
        };
        let is_meant =
            |machine: &&Value| names.iter().any(|known| known == name(machine)) || uid(machine) == vm_uid;
        if let Some(machine) = machines.iter().find(is_meant) {
            return Some(format!("the CSI driver says that it is in machine {}", cut(name(machine))));
        }
    }
    None
}

/// The names of claims that something names.
fn used(seen: &Seen<'_>) -> Result<BTreeSet<String>, String> {
    let namespace = &seen.facts.namespace;
    let mut used = BTreeSet::new();
    match seen.facts.of_guest(facts::VOLUMES) {
        Ok(volumes) => {
            used.extend(volumes.iter().map(|volume| text(volume, "/spec/csi/volumeHandle").to_owned()));
        }
        Err(why) if seen.facts.guest.is_ok() && !seen.is_deserted() => return Err(why),
        // a cluster that is gone has no API server
        Err(_) => {}
    }
    let machines =
        [(read::machines(namespace), "/spec/template/spec"), (read::instances(namespace), "/spec")];
    for (path, spec) in machines.into_iter().chain([(facts::pods(namespace), "/spec")]) {
        for object in seen.of_harvester(&path)? {
            used.extend(of_volumes(object.pointer(spec).unwrap_or(&Value::Null)));
            used.extend(of_templates(object));
            let status = members(&object["status"]["volumeStatus"]);
            used.extend(status.iter().map(|it| text(it, "/persistentVolumeClaimInfo/claimName").to_owned()));
        }
    }
    for snapshot in seen.of_harvester(&facts::snapshots(namespace))? {
        used.insert(text(snapshot, "/spec/source/persistentVolumeClaimName").to_owned());
    }
    // an export is in no machine: the host serves it
    for export in seen.of_harvester(facts::EXPORTS)? {
        if text(export, "/spec/desiredState") == "Enabled"
            || annotation(export, annotations::CSI_EXPORT_ON_FOR).is_some()
        {
            used.extend([name(export), text(export, "/spec/networkFSName")].map(str::to_owned));
        }
    }
    // a copy that is still being made reads its source
    for claim in seen.of_harvester(&facts::claims(namespace))? {
        for source in ["/spec/dataSource", "/spec/dataSourceRef"] {
            if text(claim, &format!("{source}/kind")) == "PersistentVolumeClaim"
                && text(claim, "/status/phase") != "Bound"
            {
                used.insert(text(claim, &format!("{source}/name")).to_owned());
            }
        }
    }
    Ok(used)
}

fn of_volumes(spec: &Value) -> impl Iterator<Item = String> {
    let names = |volume: &Value| {
        ["/persistentVolumeClaim/claimName", "/dataVolume/name"].map(|field| text(volume, field).to_owned())
    };
    members(&spec["volumes"]).iter().flat_map(names).collect::<Vec<_>>().into_iter()
}

/// Claims that Harvester makes for a machine, and names of those that it deletes with it.
fn of_templates(machine: &Value) -> Vec<String> {
    let templates = annotation(machine, annotations::CLAIM_TEMPLATES).unwrap_or_default();
    let templates: Vec<Value> = serde_json::from_str(templates).unwrap_or_default();
    templates.iter().map(|template| name(template).to_owned()).collect()
}
