use rstest::rstest;
use serde_json::json;

use super::*;
use crate::seen::Objects;

fn vm(extra: &Value) -> Value {
    let mut vm = json!({"metadata": {"name": "demo-1", "namespace": "shop", "uid": "u"}, "spec": {"runStrategy": "RerunOnFailure"}});
    json_merge(&mut vm, extra);
    vm
}

fn json_merge(into: &mut Value, extra: &Value) {
    match (into, extra) {
        (Value::Object(into), Value::Object(extra)) => {
            for (key, value) in extra {
                json_merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, extra) => *into = extra.clone(),
    }
}

fn read<K: serde::de::DeserializeOwned + kube::Resource>(objects: Value) -> Objects<K> {
    Objects::these(serde_json::from_value(objects).unwrap())
}

#[derive(Default)]
struct World {
    vm: Value,
    instance: Value,
    pods: Value,
    claims: Value,
    quotas: Value,
    warnings: Value,
}

impl World {
    fn seen(self) -> Seen {
        let list = |value: Value| match value {
            Value::Null => json!([]),
            Value::Array(_) => value,
            one => json!([one]),
        };
        Seen {
            since: Some("2026-11-21T12:00:00Z".parse().unwrap()),
            vm: read(list(if self.vm.is_null() { vm(&json!({})) } else { self.vm })),
            instance: read(list(self.instance)),
            pods: read(list(self.pods)),
            claims: read(list(self.claims)),
            quotas: read(list(self.quotas)),
            warnings: read(list(self.warnings)),
            error: None,
        }
    }
}

fn instance(phase: &str, conditions: &Value) -> Value {
    json!({"metadata": {"name": "demo-1"}, "spec": {"networks": [{"name": "nic-0", "multus": {"networkName": "default/vlan1"}}]},
        "status": {"phase": phase, "conditions": conditions, "interfaces": [{"name": "nic-0"}]}})
}

fn warning(about: &str, reason: &str, message: &str, at: &str) -> Value {
    json!({"metadata": {"name": format!("{about}.{reason}")}, "type": "Warning", "reason": reason, "message": message,
        "involvedObject": {"name": about}, "lastTimestamp": at})
}

use CauseType::{Final as FINAL, Late as LATE, Passing as PASSING};

#[rstest]
#[case::deleting(World { vm: vm(&json!({"metadata": {"deletionTimestamp": "2026-11-21T12:00:00Z"}})), ..World::default() },
    FINAL, "VM shop/demo-1 was deleted in the meantime")]
#[case::quota_of_harvester(World { vm: vm(&json!({"metadata": {"annotations": {INSUFFICIENT_QUOTA: "limits.memory"}},
    "spec": {"runStrategy": "Halted"}})), ..World::default() },
    FINAL, "a quota is used up: limits.memory; raise the quota")]
#[case::quota_that_was_raised(World { vm: vm(&json!({"metadata": {"annotations": {INSUFFICIENT_QUOTA: "limits.memory"}}})), ..World::default() },
    LATE, "does not get on (no status yet)")]
#[case::stopped(World { vm: vm(&json!({"spec": {"runStrategy": "Halted"}})), ..World::default() },
    FINAL, "was stopped (runStrategy Halted)")]
#[case::fails_to_start(World { vm: vm(&json!({"status": {"startFailure": {"consecutiveFailCount": 3},
    "conditions": [{"type": "Failure", "message": "no such GPU"}]}})), ..World::default() },
    FINAL, "fails to start again and again: no such GPU")]
#[case::pod_over_quota(World { instance: instance("Pending", &json!([{"type": "Synchronized", "status": "False",
    "message": "pods \"x\" is forbidden: exceeded quota: default"}])), ..World::default() },
    FINAL, "exceeded quota: default; raise the quota")]
#[case::pod_refused(World { instance: instance("Pending", &json!([{"type": "Synchronized", "status": "False",
    "message": "webhook is away"}])), ..World::default() },
    PASSING, "the VM's pod cannot be made: webhook is away")]
#[case::lost(World { claims: json!({"metadata": {"name": "demo-1-disk-0-abcde"}, "status": {"phase": "Lost"}}), ..World::default() },
    FINAL, "volume demo-1-disk-0-abcde has lost its data")]
#[case::claim_waits(World { claims: json!({"metadata": {"name": "demo-1-disk-0-abcde"}, "status": {"phase": "Pending"}}),
    warnings: warning("demo-1-disk-0-abcde", "ProvisioningFailed", "no space", "2026-11-21T12:00:00Z"), ..World::default() },
    PASSING, "volume demo-1-disk-0-abcde is not ready: ProvisioningFailed: no space")]
#[case::unschedulable(World { pods: json!({"metadata": {"name": "virt-launcher-demo-1-x"}, "status": {"conditions": [
    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient memory."}]}}), ..World::default() },
    PASSING, "no host can take the VM: 0/3 nodes are available: 3 Insufficient memory.")]
#[case::image_pull(World { pods: json!({"metadata": {"name": "p"}, "status": {"containerStatuses": [{"name": "compute", "image": "", "imageID": "",
    "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no route"}}}]}}), ..World::default() },
    PASSING, "the VM's pod does not start: ImagePullBackOff no route")]
#[case::agent(World { instance: instance("Running", &json!([])), ..World::default() },
    LATE, "guest agent missing: the VM runs, but no qemu-guest-agent")]
#[case::no_dhcp(World { instance: instance("Running", &json!([{"type": "AgentConnected", "status": "True"}])), ..World::default() },
    LATE, "no IPv4 address on default/vlan1: a DHCP server")]
#[case::failed(World { instance: instance("Failed", &json!([{"type": "Ready", "status": "False", "message": "qemu died"}])), ..World::default() },
    PASSING, "the VM has failed: qemu died")]
#[case::quota_used_up(World { quotas: json!({"metadata": {"name": "default"},
    "status": {"hard": {"limits.memory": "8Gi"}, "used": {"limits.memory": "8Gi"}}}), ..World::default() },
    PASSING, "quota default of the namespace is used up: limits.memory 8Gi of 8Gi")]
#[case::status(World { vm: vm(&json!({"status": {"printableStatus": "ErrorPvcNotFound"}})), ..World::default() },
    PASSING, "a volume of the VM is missing")]
#[case::status_before_quota(World { vm: vm(&json!({"status": {"printableStatus": "ErrorPvcNotFound"}})),
    quotas: json!({"metadata": {"name": "default"}, "status": {"hard": {"pods": "3"}, "used": {"pods": "3"}}}), ..World::default() },
    PASSING, "a volume of the VM is missing")]
#[case::quotas_of_nothing_and_of_other_things(World { quotas: json!({"metadata": {"name": "default"}, "status": {
    "hard": {"services.loadbalancers": "0", "limits.cpu": "0", "secrets": "7", "pods": "9"},
    "used": {"services.loadbalancers": "0", "limits.cpu": "0", "secrets": "7", "pods": "8"}}}), ..World::default() },
    LATE, "does not get on")]
#[case::newest_warning(World { warnings: json!([
    warning("virt-launcher-demo-1-x", "FailedMount", "old", "2026-11-21T12:00:10Z"),
    warning("virt-launcher-demo-1-x", "FailedMount", "new", "2026-11-21T12:00:20Z"),
    warning("other", "FailedMount", "other", "2026-11-21T13:00:00Z")]), ..World::default() },
    PASSING, "last warning: FailedMount: new")]
#[case::warnings_of_others_and_of_an_earlier_life(World { warnings: json!([
    warning("demo-10", "SyncFailed", "another machine", "2026-11-21T12:00:10Z"),
    warning("virt-launcher-demo-1-2-x", "FailedMount", "another machine's pod", "2026-11-21T12:00:10Z"),
    warning("demo-1", "SyncFailed", "before the wait", "2026-11-21T11:59:00Z")]), ..World::default() },
    LATE, "does not get on")]
#[case::nothing_known(World { vm: vm(&json!({"status": {"printableStatus": "Starting"}})), ..World::default() },
    LATE, "VM shop/demo-1 does not get on (Starting), and nothing says why")]
fn the_cause_is_named_in_one_line(#[case] world: World, #[case] cause_type: CauseType, #[case] part: &str) {
    let cause = of(&world.seen(), "shop/demo-1");
    assert!(cause.text.contains(part), "{}", cause.text);
    assert_eq!((cause.cause_type, cause.text.lines().count()), (cause_type, 1), "{}", cause.text);
}

#[test]
fn a_vm_that_is_gone_was_deleted_and_one_that_was_never_heard_of_is_not() {
    let gone = Seen { vm: Objects::these(vec![]), ..Seen::default() };
    assert_eq!(of(&gone, "shop/demo-1").cause_type, FINAL);
    let silent = Seen { error: Some("no route to host".into()), ..Seen::default() };
    assert_eq!(of(&silent, "shop/demo-1"), passing("Harvester could not be asked: no route to host"));
}

#[rstest]
#[case::vm("a-x1", true)]
#[case::pod("virt-launcher-a-x1-b2c3d", true)]
#[case::volume("a-x1-disk-0-b2c3d", true)]
#[case::another_machine("a-x10", false)]
#[case::pod_of_another("virt-launcher-a-x10-b2c3d", false)]
#[case::pod_of_a_longer_name("virt-launcher-a-x1-2-b2c3d", false)]
#[case::volume_of_another("a-x10-disk-0-b2c3d", false)]
#[case::something_that_begins_alike("a-x1-backup", false)]
fn a_warning_is_about_one_machine(#[case] object: &str, #[case] expected: bool) {
    assert_eq!(belongs_to(object, "a-x1"), expected);
}

#[test]
fn a_warning_that_repeats_is_as_new_as_its_last_repetition() {
    let mut event = warning("demo-1", "SyncFailed", "again", "2026-11-21T10:00:00Z");
    event["series"] = json!({"count": 9, "lastObservedTime": "2026-11-21T12:00:05.000001Z"});
    let world = World { warnings: json!([event]), ..World::default() };
    assert_eq!(of(&world.seen(), "shop/demo-1"), passing("last warning: SyncFailed: again"));
}
