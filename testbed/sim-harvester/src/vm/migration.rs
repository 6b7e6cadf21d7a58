//! Moving an instance to another host: the life of a `VirtualMachineInstanceMigration`.

use std::collections::BTreeMap;

use kube::{CustomResource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use controller_kit::RawObject;

use super::{Instance, instance};
use crate::{
    host::{Host, place},
    merge_patch,
    settings::MIGRATION,
};

/// A request to move the instance of this name to another host.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstanceMigration",
    plural = "virtualmachineinstancemigrations",
    shortname = "vmim",
    shortname = "vmims",
    namespaced,
    schema = "disabled",
    status = "MigrationStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct MigrationSpec {
    pub vmi_name: String,
    /// Labels that the target must have besides those that the instance asks for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub added_node_selector: BTreeMap<String, String>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// How far a migration has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationStatus {
    /// Empty, `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

pub(super) type Migration = RawObject<VirtualMachineInstanceMigration>;

/// The state of the cluster at one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) migration: &'a Migration,
    pub(super) instance: Option<&'a Instance>,
    pub(super) hosts: &'a [Host],
    pub(super) vms_on: &'a BTreeMap<String, usize>,
    /// UIDs of the migrations that have not ended.
    pub(super) open: &'a [String],
    /// Now, as RFC 3339.
    pub(super) now: &'a str,
}

/// One write; merge patches.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    PatchInstance(Value),
    PatchMigrationStatus(Value),
}

/// Whether nothing will happen to it any more.
pub(super) fn ended(migration: &Migration) -> bool {
    let phase = migration.status.as_ref().map_or("", |status| status.phase.as_str());
    migration.metadata.deletion_timestamp.is_some() || matches!(phase, "Succeeded" | "Failed")
}

/// The end of a migration that somebody deleted while it was under way, as KubeVirt writes it into the instance. `known` are
/// the UIDs of all migrations.
pub(super) fn abort(instance: &Instance, known: &[String], now: &str) -> Option<Value> {
    let state = instance.status.as_ref()?.migration_state.as_ref()?;
    let mover = state.rest.get("migrationUid")?.as_str()?;
    (!state.completed && known.iter().all(|uid| uid != mover)).then(
        || json!({"status": {"migrationState": {"completed": true, "failed": true, "endTimestamp": now}}}),
    )
}

/// The next write, if any. Its event brings us back for the one after it.
pub(super) fn decide(seen: &Seen<'_>) -> Option<Step> {
    let Seen { migration, instance, hosts, vms_on, open, now } = *seen;
    if ended(migration) {
        return None;
    }
    let enter = |phase: &str| {
        merge_patch::needed(&migration.json(), json!({"status": {"phase": phase}}))
            .map(Step::PatchMigrationStatus)
    };
    let Some(instance) = instance else { return enter("Failed") };
    let status = instance.status.clone().unwrap_or_default();
    if status.phase != "Running" {
        return enter("Pending");
    }
    let uid = migration.uid().unwrap_or_default();
    let state = status.migration_state.unwrap_or_default();
    let mover = state.rest.get("migrationUid").and_then(Value::as_str);
    if mover == Some(uid.as_str()) {
        let entered = migration.status.as_ref().is_some_and(|status| status.phase == "Running");
        return match (state.completed, entered) {
            (true, _) => enter("Succeeded"),
            (false, true) if is_stuck(migration) => None,
            (false, true) => complete(instance, state.rest.get("targetNode")?.as_str()?, hosts, now),
            (false, false) => enter("Running"),
        };
    }
    // its own object has not said yet that it is over
    if mover.is_some_and(|mover| open.iter().any(|uid| uid == mover)) {
        return enter("Pending");
    }
    let mut selector = instance::node_selector(instance);
    selector.extend(migration.spec.added_node_selector.clone());
    match place(hosts, vms_on, &selector, Some(&status.node_name)) {
        None => enter("Pending"),
        Some(target) => Some(Step::PatchInstance(json!({"status": {"migrationState": {
            "migrationUid": uid,
            "sourceNode": status.node_name,
            "targetNode": target.name,
            "startTimestamp": now,
            "endTimestamp": Value::Null,
            "completed": false,
            "failed": Value::Null,
        }}}))),
    }
}

fn is_stuck(migration: &Migration) -> bool {
    migration.annotations().get(MIGRATION).is_some_and(|value| value == "stuck")
}

/// Host, topology and end in one write: nobody sees a VM on one host with the zone of another.
fn complete(instance: &Instance, target: &str, hosts: &[Host], now: &str) -> Option<Step> {
    let host = hosts.iter().find(|host| host.name == target).cloned();
    let host = host.unwrap_or_else(|| Host { name: target.to_owned(), ..Host::default() });
    Some(Step::PatchInstance(json!({
        "metadata": {
            "labels": {"kubevirt.io/nodeName": target},
            "annotations": instance::topology(instance, &host),
        },
        "status": {"nodeName": target, "migrationState": {"completed": true, "endTimestamp": now}},
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::host;

    const NOW: &str = "2026-11-21T12:00:00Z";

    fn instance() -> Instance {
        let json = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "guest-1", "namespace": "shop",
                "labels": {"harvesterhci.io/creator": "docker-machine-driver-harvester"}},
            "spec": {}, "status": {"phase": "Running", "nodeName": "host-1"}});
        RawObject::from_json(json).unwrap()
    }

    fn migration(uid: &str) -> Migration {
        let json = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": uid, "namespace": "shop", "uid": uid}, "spec": {"vmiName": "guest-1"}});
        RawObject::from_json(json).unwrap()
    }

    /// Carries out what is decided until nothing is left, and answers the names of the steps.
    fn run(
        migration: &mut Migration,
        instance: &mut Instance,
        hosts: &[Host],
        open: &[String],
    ) -> Vec<String> {
        let vms_on = &BTreeMap::new();
        let mut log = Vec::new();
        loop {
            let seen = Seen { migration, instance: Some(instance), hosts, vms_on, open, now: NOW };
            match decide(&seen) {
                None => return log,
                Some(Step::PatchInstance(patch)) => {
                    log.push(format!("completed={}", patch["status"]["migrationState"]["completed"]));
                    let mut json = instance.json();
                    json_patch::merge(&mut json, &patch);
                    *instance = RawObject::from_json(json).unwrap();
                }
                Some(Step::PatchMigrationStatus(patch)) => {
                    log.push(patch["status"]["phase"].as_str().unwrap().to_owned());
                    let mut json = migration.json();
                    json_patch::merge(&mut json, &patch);
                    *migration = RawObject::from_json(json).unwrap();
                }
            }
        }
    }

    #[test]
    fn an_instance_moves_to_another_host_and_its_topology_with_it() {
        let (mut migration, mut instance) = (migration("m1"), instance());
        let hosts = [host("host-1", "east"), host("host-2", "west")];
        let log = run(&mut migration, &mut instance, &hosts, &["m1".to_owned()]);
        assert_eq!(log, ["completed=false", "Running", "completed=true", "Succeeded"]);
        let json = instance.json();
        assert_eq!(json["status"]["nodeName"], "host-2");
        assert_eq!(json["metadata"]["annotations"]["topology.kubernetes.io/zone"], "west");
        assert_eq!(json["status"]["migrationState"]["sourceNode"], "host-1");
    }

    #[test]
    fn one_that_is_stuck_goes_on_when_it_is_no_longer() {
        let says = |migration: &Migration, how: &str| -> Migration {
            let mut json = migration.json();
            json["metadata"]["annotations"] = json!({MIGRATION: how});
            RawObject::from_json(json).unwrap()
        };
        let (mut migration, mut instance) = (says(&migration("m1"), "stuck"), instance());
        let hosts = [host("host-1", "east"), host("host-2", "west")];
        let log = run(&mut migration, &mut instance, &hosts, &["m1".to_owned()]);
        assert_eq!(log, ["completed=false", "Running"]);
        let mut migration = says(&migration, "ok");
        let log = run(&mut migration, &mut instance, &hosts, &["m1".to_owned()]);
        assert_eq!(log, ["completed=true", "Succeeded"]);
    }

    #[test]
    fn without_another_host_it_waits() {
        let (mut migration, mut instance) = (migration("m1"), instance());
        let hosts = [host("host-1", "east")];
        assert_eq!(run(&mut migration, &mut instance, &hosts, &["m1".to_owned()]), ["Pending"]);
    }

    #[test]
    fn a_second_migration_waits_for_the_first_and_one_that_was_deleted_holds_up_nobody() {
        let hosts = [host("host-1", "east"), host("host-2", "west")];
        let mut moving = instance().json();
        moving["status"]["migrationState"] =
            json!({"migrationUid": "m0", "targetNode": "host-2", "completed": false});
        let mut instance: Instance = RawObject::from_json(moving).unwrap();
        let mut second = migration("m1");
        let both = ["m0".to_owned(), "m1".to_owned()];
        assert_eq!(run(&mut second, &mut instance, &hosts, &both), ["Pending"]);
        let mut arrived = instance.json();
        arrived["status"]["migrationState"]["completed"] = true.into();
        let mut arrived = RawObject::from_json(arrived).unwrap();
        assert_eq!(
            run(&mut second, &mut arrived, &hosts, &both),
            [""; 0],
            "the first has not noted that it is over"
        );
        let log = run(&mut second, &mut instance, &hosts, &both[1..]);
        assert_eq!(log.last().map(String::as_str), Some("Succeeded"));
    }

    #[test]
    fn a_migration_that_is_deleted_while_it_is_under_way_has_failed() {
        let mut moving = instance().json();
        moving["status"]["migrationState"] = json!({"migrationUid": "m0", "completed": false});
        let moving: Instance = RawObject::from_json(moving).unwrap();
        assert_eq!(abort(&moving, &["m0".to_owned()], NOW), None);
        let ended = abort(&moving, &["m1".to_owned()], NOW).unwrap();
        assert_eq!(ended["status"]["migrationState"]["failed"], true);
        let mut json = moving.json();
        json_patch::merge(&mut json, &ended);
        let mut aborted = RawObject::from_json(json).unwrap();
        assert_eq!(abort(&aborted, &[], NOW), None);
        assert_eq!(abort(&instance(), &[], NOW), None);
        run(&mut migration("m1"), &mut aborted, &[host("host-2", "west")], &["m1".to_owned()]);
        let state = &aborted.json()["status"]["migrationState"];
        assert_eq!((&state["failed"], &state["completed"]), (&Value::Null, &json!(true)), "of the next one");
        assert_eq!(state["startTimestamp"], NOW);
    }

    #[test]
    fn an_instance_that_is_not_there_fails_the_migration() {
        let (migration, vms_on) = (migration("m1"), &BTreeMap::new());
        let seen = Seen { migration: &migration, instance: None, hosts: &[], vms_on, open: &[], now: NOW };
        assert_eq!(decide(&seen), Some(Step::PatchMigrationStatus(json!({"status": {"phase": "Failed"}}))));
    }
}
