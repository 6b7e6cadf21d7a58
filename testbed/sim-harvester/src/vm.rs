//! VMs as KubeVirt and Harvester keep them: a `VirtualMachine` that is to run gets a `VirtualMachineInstance`.
//!
//! ```text
//! VirtualMachine ──runStrategy, requests──► decide ──► address (kept as annotation on the VM)
//!                                                 ├──► VirtualMachineInstance: Pending, then Running on a host
//!                                                 └──► status of the VM: created, ready, printableStatus
//! ```
//! The instance's topology annotations follow the labels of the host that it is on; moving it to another one is
//! `migration`. What keeps an instance from starting, a volume, a Secret or a quota, is `obstacle`. Disks that come and go
//! while it runs are `hotplug`.

pub(crate) mod controller;
mod hotplug;
mod instance;
mod migration;
pub(crate) mod obstacle;
mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use ipnet::Ipv4Net;
use kube::ResourceExt;
use serde_json::{Value, json};

use controller_kit::RawObject;
use harvester_api::{VirtualMachine, VirtualMachineInstance};

use crate::{host::Host, merge_patch, settings};
use obstacle::Obstacle;

pub(crate) use instance::guest_os;
pub use migration::{MigrationSpec, MigrationStatus, VirtualMachineInstanceMigration};
pub use state::VmState;
pub(crate) use state::hostname;

pub(crate) type Vm = RawObject<VirtualMachine>;
pub(crate) type Instance = RawObject<VirtualMachineInstance>;

/// The state of the cluster at one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) vm: Option<&'a Vm>,
    pub(crate) instance: Option<&'a Instance>,
    pub(crate) hosts: &'a [Host],
    /// How many instances each host has.
    pub(crate) vms_on: &'a BTreeMap<String, usize>,
    /// Addresses that other VMs have.
    pub(crate) taken: &'a BTreeSet<Ipv4Addr>,
    /// Where VMs get their addresses from.
    pub(crate) network: Ipv4Net,
    /// The obstacle that keeps the VM from starting now.
    pub(crate) obstacle: Option<&'a Obstacle>,
    /// The addresses that kube-vip has put on the interfaces of the guest, with the interface asked for.
    pub(crate) vips: &'a [(Option<String>, IpAddr)],
}

/// One write. The patches are merge patches that name only what differs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    PatchVm(Value),
    CreateInstance(Value),
    PatchInstance(Value),
    DeleteInstance {
        uid: String,
    },
    PatchVmStatus(Value),
    /// A warning on the instance.
    Warn {
        reason: &'static str,
        message: String,
    },
}

/// The steps to take now, in order. Every one of them is a change that brings us back here.
pub(crate) fn decide(seen: &Seen<'_>) -> Vec<Step> {
    let Some(vm) = seen.vm.filter(|vm| vm.metadata.deletion_timestamp.is_none()) else {
        // the VM is gone or going; garbage collection would do the same a little later
        return seen.instance.map(delete).into_iter().collect();
    };
    let Some(address) = address(vm) else {
        return match free_address(seen.network, seen.taken) {
            Some(address) => vec![Step::PatchVm(json!({"metadata": {"annotations":
                {settings::ADDRESS: address.to_string()}}}))],
            None => status(vm, None, "ErrorUnschedulable"),
        };
    };
    match (wanted(vm, seen.instance), seen.instance) {
        (_, Some(instance)) if instance.metadata.deletion_timestamp.is_some() => status(vm, None, "Stopping"),
        (false, None) => status(vm, None, "Stopped"),
        (false, Some(instance)) => vec![delete(instance)],
        // an instance of this name that is somebody else's: its end brings us back
        (true, Some(instance)) if !belongs(instance, vm) => vec![delete(instance)],
        (true, Some(instance)) if instance::has_failed(instance) => over(vm, instance),
        (true, None) => vec![Step::CreateInstance(instance::pending(vm))],
        (true, Some(instance)) if !instance::is_placed(instance) && seen.obstacle.is_some() => {
            seen.obstacle.map(|obstacle| held(vm, instance, obstacle)).unwrap_or_default()
        }
        (true, Some(_)) if vm.annotations().contains_key(obstacle::QUOTA) => {
            vec![Step::PatchVm(json!({"metadata": {"annotations": {obstacle::QUOTA: null}}}))]
        }
        (true, Some(instance)) => {
            let host = match instance.status.as_ref().map(|status| status.node_name.as_str()) {
                None | Some("") => {
                    crate::host::place(seen.hosts, seen.vms_on, &instance::node_selector(instance), None)
                }
                Some(name) => seen.hosts.iter().find(|host| host.name == name),
            };
            let running = instance::is_running(instance);
            let Some(host) = host else {
                // a host that vanished takes nothing from an instance that runs; without one nothing starts
                return if running {
                    followed(vm, instance)
                } else {
                    status(vm, Some(instance), "ErrorUnschedulable")
                };
            };
            match merge_patch::needed(
                &instance.json(),
                instance::running(vm, instance, host, address, seen.vips),
            ) {
                Some(patch) => vec![Step::PatchInstance(patch)],
                None => followed(vm, instance),
            }
        }
    }
}

/// An instance that has failed makes room for the next one, where the VM's strategy has one follow.
fn over(vm: &Vm, instance: &Instance) -> Vec<Step> {
    match strategy(vm).as_str() {
        "Always" => vec![delete(instance)],
        "RerunOnFailure" => {
            let start = json!({"status": {"stateChangeRequests": [{"action": "Start"}]}});
            let start = merge_patch::needed(&vm.json(), start).map(Step::PatchVmStatus);
            start.into_iter().chain([delete(instance)]).collect()
        }
        _ => status(vm, Some(instance), "Stopped"),
    }
}

/// An instance that cannot start says why; Harvester stops what a quota refuses.
fn held(vm: &Vm, instance: &Instance, obstacle: &Obstacle) -> Vec<Step> {
    let name = vm.name_any();
    if let Some(patch) = merge_patch::needed(&instance.json(), obstacle.instance(&name)) {
        let (reason, message) = obstacle.event(&name);
        return vec![Step::PatchInstance(patch), Step::Warn { reason, message }];
    }
    match obstacle.halts(&name) {
        Some(patch) => vec![Step::PatchVm(patch)],
        None => status(vm, Some(instance), obstacle.printable()),
    }
}

/// The VM's status for an instance that is as it should be.
fn followed(vm: &Vm, instance: &Instance) -> Vec<Step> {
    let migrating = instance::migrating(instance);
    status(vm, Some(instance), if migrating { "Migrating" } else { "Running" })
}

fn delete(instance: &Instance) -> Step {
    Step::DeleteInstance { uid: instance.uid().unwrap_or_default() }
}

/// Whether the VM should run, by KubeVirt's rules for its strategies.
fn wanted(vm: &Vm, instance: Option<&Instance>) -> bool {
    let stop = instance.is_some_and(|instance| requests(vm).any(|request| asks_to_stop(request, instance)));
    let start = requests(vm).any(|request| request["action"] == "Start");
    match strategy(vm).as_str() {
        "Always" => !stop,
        "Halted" => false,
        _ if instance.is_some() => !stop,
        "Manual" => start,
        // it starts once, when the strategy is new, and then when somebody asks
        other => start || last_strategy(vm) != Some(other),
    }
}

/// `runStrategy`, or what the older `running` says.
fn strategy(vm: &Vm) -> String {
    match vm.spec.run_strategy.as_str() {
        "" if vm.spec.rest.get("running").and_then(Value::as_bool).unwrap_or_default() => "Always".to_owned(),
        "" => "Halted".to_owned(),
        strategy => strategy.to_owned(),
    }
}

fn last_strategy(vm: &Vm) -> Option<&str> {
    vm.status.as_ref()?.rest.get("runStrategy")?.as_str()
}

fn requests(vm: &Vm) -> impl Iterator<Item = &Value> {
    let requests = vm.status.as_ref().and_then(|status| status.rest.get("stateChangeRequests"));
    requests.and_then(Value::as_array).into_iter().flatten()
}

fn asks_to_stop(request: &Value, instance: &Instance) -> bool {
    request["action"] == "Stop" && request["uid"].as_str() == instance.uid().as_deref()
}

fn belongs(instance: &Instance, vm: &Vm) -> bool {
    instance.owner_references().iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())
}

/// The address that a VM was given.
pub(crate) fn address(vm: &Vm) -> Option<Ipv4Addr> {
    vm.annotations().get(settings::ADDRESS)?.trim().parse().ok()
}

/// The lowest address that nobody has; the first nine stay free for gateways and the like.
fn free_address(network: Ipv4Net, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    network.hosts().skip(9).find(|address| !taken.contains(address))
}

/// The VM's status, with the requests that have been met taken out.
fn status(vm: &Vm, instance: Option<&Instance>, printable: &str) -> Vec<Step> {
    let ready = instance.is_some_and(instance::is_ready);
    let open: Vec<&Value> = requests(vm)
        .filter(|request| match instance {
            Some(instance) => asks_to_stop(request, instance),
            None => request["action"] == "Start",
        })
        .collect();
    let mut conditions = vec![json!({"type": "Ready", "status": if ready { "True" } else { "False" },
        "reason": if ready { "" } else if instance.is_some() { "GuestNotRunning" } else { "VMINotExists" },
        "message": ""})];
    conditions.extend(instance.map(instance::complaints).unwrap_or_default());
    let wish = json!({"status": {
        "created": instance.is_some(),
        "ready": ready,
        "printableStatus": printable,
        "runStrategy": strategy(vm),
        "stateChangeRequests": if open.is_empty() { Value::Null } else { json!(open) },
        "conditions": conditions,
    }});
    merge_patch::needed(&vm.json(), wish).map(Step::PatchVmStatus).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::host::host;

    const UID: &str = "11111111-1111-1111-1111-111111111111";

    fn vm(strategy: &str, status: &Value) -> Vm {
        let json = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "guest-1", "namespace": "shop", "uid": "vm-uid",
                "labels": {"guestcluster.harvesterhci.io/name": "demo"},
                "annotations": {settings::ADDRESS: "198.18.7.20"}},
            "spec": {"runStrategy": strategy, "template": {
                "metadata": {"labels": {"harvesterhci.io/creator": "docker-machine-driver-harvester"}},
                "spec": {"networks": [{"name": "nic-0", "multus": {"networkName": "default/mgmt"}}]}}},
            "status": status});
        RawObject::from_json(json).unwrap()
    }

    fn after(vm: &Vm, hosts: &[Host]) -> Instance {
        let mut json = instance::pending(vm);
        json["metadata"]["uid"] = UID.into();
        let pending: Instance = RawObject::from_json(json.clone()).unwrap();
        let patch = steps(vm, Some(&pending), hosts);
        let [Step::PatchInstance(patch)] = patch.as_slice() else { panic!("a start, not {patch:?}") };
        json_patch::merge(&mut json, patch);
        RawObject::from_json(json).unwrap()
    }

    fn steps(vm: &Vm, instance: Option<&Instance>, hosts: &[Host]) -> Vec<Step> {
        decide(&Seen {
            vm: Some(vm),
            instance,
            hosts,
            vms_on: &BTreeMap::new(),
            taken: &BTreeSet::new(),
            network: "198.18.7.0/25".parse().unwrap(),
            obstacle: None,
            vips: &[],
        })
    }

    fn names(steps: &[Step]) -> Vec<&'static str> {
        let name = |step: &Step| match step {
            Step::PatchVm(_) => "address",
            Step::CreateInstance(_) => "create",
            Step::PatchInstance(_) => "instance",
            Step::DeleteInstance { .. } => "delete",
            Step::PatchVmStatus(_) => "status",
            Step::Warn { .. } => "warn",
        };
        steps.iter().map(name).collect()
    }

    #[rstest]
    #[case::always("Always", json!({}), false, "create")]
    #[case::always_again("Always", json!({"runStrategy": "Always"}), false, "create")]
    #[case::halted("Halted", json!({}), false, "status")]
    #[case::halted_running("Halted", json!({}), true, "delete")]
    #[case::rerun_new("RerunOnFailure", json!({}), false, "create")]
    #[case::rerun_after_a_stop("RerunOnFailure", json!({"runStrategy": "RerunOnFailure"}), false, "status")]
    #[case::rerun_asked_to_start("RerunOnFailure",
        json!({"runStrategy": "RerunOnFailure", "stateChangeRequests": [{"action": "Start"}]}), false, "create")]
    #[case::rerun_asked_to_stop("RerunOnFailure",
        json!({"runStrategy": "RerunOnFailure", "stateChangeRequests": [{"action": "Stop", "uid": UID}]}), true, "delete")]
    #[case::stop_of_an_earlier_instance("RerunOnFailure",
        json!({"runStrategy": "RerunOnFailure", "stateChangeRequests": [{"action": "Stop", "uid": "other"}]}), true, "status")]
    #[case::manual("Manual", json!({}), false, "status")]
    #[case::restart_of_always("Always", json!({"stateChangeRequests": [{"action": "Stop", "uid": UID}, {"action": "Start"}]}),
        true, "delete")]
    fn runs_as_its_strategy_says(
        #[case] strategy: &str,
        #[case] status: Value,
        #[case] running: bool,
        #[case] expected: &str,
    ) {
        let vm = vm(strategy, &status);
        let hosts = [host("host-1", "east")];
        let instance = running.then(|| after(&self::vm("Always", &json!({})), &hosts));
        assert_eq!(names(&steps(&vm, instance.as_ref(), &hosts)), [expected]);
    }

    #[test]
    fn a_vm_gets_the_lowest_free_address_and_keeps_it() {
        let mut json = vm("Always", &json!({})).json();
        json["metadata"]["annotations"] = json!({});
        let vm = RawObject::from_json(json).unwrap();
        let taken = BTreeSet::from([Ipv4Addr::new(198, 18, 7, 10), Ipv4Addr::new(198, 18, 7, 11)]);
        let seen = Seen {
            vm: Some(&vm),
            instance: None,
            hosts: &[],
            vms_on: &BTreeMap::new(),
            taken: &taken,
            network: "198.18.7.0/25".parse().unwrap(),
            obstacle: None,
            vips: &[],
        };
        let expected = json!({"metadata": {"annotations": {settings::ADDRESS: "198.18.7.12"}}});
        assert_eq!(decide(&seen), [Step::PatchVm(expected)]);
    }

    #[test]
    fn a_started_instance_has_host_address_agent_and_topology_and_then_nothing_moves() {
        let hosts = [host("host-1", "east")];
        let vm = vm("Always", &json!({}));
        let instance = after(&vm, &hosts);
        let json = instance.json();
        assert_eq!(json["status"]["phase"], "Running");
        assert_eq!(json["status"]["nodeName"], "host-1");
        assert_eq!(json["status"]["interfaces"][0]["ipAddress"], "198.18.7.20");
        assert_eq!(json["status"]["interfaces"][0]["name"], "nic-0");
        assert_eq!(json["metadata"]["annotations"]["topology.kubernetes.io/zone"], "east");
        assert_eq!(json["metadata"]["annotations"]["kubernetes.io/hostname"], "host-1");
        assert_eq!(json["metadata"]["labels"]["guestcluster.harvesterhci.io/name"], "demo");
        assert_eq!(json["metadata"]["labels"]["harvesterhci.io/vmName"], "guest-1");
        let steps = steps(&vm, Some(&instance), &hosts);
        let [Step::PatchVmStatus(patch)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(patch["status"]["printableStatus"], "Running");
        let mut json = vm.json();
        json_patch::merge(&mut json, patch);
        assert_eq!(self::steps(&RawObject::from_json(json).unwrap(), Some(&instance), &hosts), []);
    }

    #[test]
    fn topology_annotations_follow_the_labels_of_the_host_and_go_with_them() {
        let vm = vm("Always", &json!({}));
        let instance = after(&vm, &[host("host-1", "east")]);
        let mut moved = host("host-1", "west");
        moved.labels.remove("topology.kubernetes.io/region");
        let steps = steps(&vm, Some(&instance), &[moved]);
        let [Step::PatchInstance(patch)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(patch["metadata"]["annotations"]["topology.kubernetes.io/zone"], "west");
        assert_eq!(patch["metadata"]["annotations"]["topology.kubernetes.io/region"], Value::Null);
    }

    #[test]
    fn a_silent_agent_takes_addresses_and_the_agent_condition_away() {
        let hosts = [host("host-1", "east")];
        let mut json = vm("Always", &json!({})).json();
        json["metadata"]["annotations"][settings::AGENT] = "silent".into();
        let instance = after(&RawObject::from_json(json).unwrap(), &hosts).json();
        assert_eq!(instance["status"]["interfaces"][0].get("ipAddress"), None);
        let conditions = instance["status"]["conditions"].as_array().unwrap();
        assert!(conditions.iter().all(|condition| condition["type"] != "AgentConnected"));
    }

    /// Two NICs with definitions and one on the pod network, further addresses of both families, VIPs of Services.
    fn interfaces(agent: &str) -> Value {
        let hosts = [host("host-1", "east")];
        let mut json = vm("Always", &json!({})).json();
        json["metadata"]["annotations"][settings::AGENT] = agent.into();
        json["metadata"]["annotations"][settings::ADDRESSES] =
            r#"{"nic-0": ["fd00::20"], "nic-1": ["10.20.0.11"]}"#.into();
        json["spec"]["template"]["spec"]["networks"] = json!([{"name": "default", "pod": {}},
            {"name": "nic-0", "multus": {"networkName": "default/mgmt"}},
            {"name": "nic-1", "multus": {"networkName": "vlan1"}}]);
        let vm: Vm = RawObject::from_json(json).unwrap();
        let pending: Instance = RawObject::from_json(instance::pending(&vm)).unwrap();
        let vips = [(None, "127.79.0.1"), (Some("enp3s0"), "fd00::9"), (Some("eth9"), "127.79.0.2")];
        let vips = vips.map(|(wish, ip)| (wish.map(str::to_owned), ip.parse().unwrap()));
        let steps = decide(&Seen {
            vm: Some(&vm),
            instance: Some(&pending),
            hosts: &hosts,
            vms_on: &BTreeMap::new(),
            taken: &BTreeSet::new(),
            network: "198.18.7.0/25".parse().unwrap(),
            obstacle: None,
            vips: &vips,
        });
        let [Step::PatchInstance(patch)] = steps.as_slice() else { panic!("a start, not {steps:?}") };
        let short = |nic: &Value| json!([nic["interfaceName"], nic["infoSource"], nic["ipAddresses"]]);
        patch["status"]["interfaces"].as_array().unwrap().iter().map(short).collect()
    }

    #[test]
    fn an_agent_reports_everything_on_each_interface_vips_too() {
        assert_eq!(
            interfaces("ok"),
            json!([
                ["enp1s0", "domain, guest-agent", ["198.18.7.20", "127.79.0.1"]],
                ["enp2s0", "domain, guest-agent, multus-status", ["fd00::20"]],
                ["enp3s0", "domain, guest-agent, multus-status", ["10.20.0.11", "fd00::9"]],
            ])
        );
    }

    #[test]
    fn of_a_silent_agents_vm_only_the_address_of_the_pod_network_is_known() {
        assert_eq!(
            interfaces("silent"),
            json!([
                [null, "domain", ["198.18.7.20"]],
                [null, "domain, multus-status", null],
                [null, "domain, multus-status", null],
            ])
        );
    }

    #[test]
    fn without_a_host_it_waits_and_says_so() {
        let vm = vm("Always", &json!({}));
        let pending: Instance = RawObject::from_json(instance::pending(&vm)).unwrap();
        let steps = steps(&vm, Some(&pending), &[]);
        let [Step::PatchVmStatus(patch)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(patch["status"]["printableStatus"], "ErrorUnschedulable");
    }

    #[rstest]
    #[case::volume(Obstacle::Unbound("root".into()), "ErrorUnschedulable", false)]
    #[case::claim(Obstacle::NoClaim("root".into()), "ErrorPvcNotFound", false)]
    #[case::secret(Obstacle::NoSecret("user-data".into()), "Starting", false)]
    #[case::quota(Obstacle::Quota("exceeded quota: small".into()), "", true)]
    fn an_obstacle_is_told_once_and_only_a_quota_stops_the_vm(
        #[case] obstacle: Obstacle,
        #[case] printable: &str,
        #[case] stops: bool,
    ) {
        let vm = vm("RerunOnFailure", &json!({}));
        let hosts = [host("host-1", "east")];
        let decide = |instance: &Instance| {
            decide(&Seen {
                vm: Some(&vm),
                instance: Some(instance),
                hosts: &hosts,
                vms_on: &BTreeMap::new(),
                taken: &BTreeSet::new(),
                network: "198.18.7.0/25".parse().unwrap(),
                obstacle: Some(&obstacle),
                vips: &[],
            })
        };
        let mut json = instance::pending(&vm);
        let steps = decide(&RawObject::from_json(json.clone()).unwrap());
        let [Step::PatchInstance(patch), Step::Warn { .. }] = steps.as_slice() else { panic!("{steps:?}") };
        json_patch::merge(&mut json, patch);
        match decide(&RawObject::from_json(json).unwrap()).as_slice() {
            [Step::PatchVm(patch)] => {
                assert!(stops);
                assert_eq!(patch["spec"]["runStrategy"], "Halted");
            }
            [Step::PatchVmStatus(patch)] => {
                assert!(!stops);
                assert_eq!(patch["status"]["printableStatus"], printable);
            }
            steps => panic!("{steps:?}"),
        }
        // what runs is not stopped by what is missing for a start
        let runs = after(&vm, &hosts);
        assert_eq!(names(&decide(&runs)), ["status"]);
    }

    #[test]
    fn an_instance_goes_with_its_vm() {
        let hosts = [host("host-1", "east")];
        let instance = after(&vm("Always", &json!({})), &hosts);
        let seen = Seen {
            vm: None,
            instance: Some(&instance),
            hosts: &hosts,
            vms_on: &BTreeMap::new(),
            taken: &BTreeSet::new(),
            network: "198.18.7.0/25".parse().unwrap(),
            obstacle: None,
            vips: &[],
        };
        assert_eq!(decide(&seen), [Step::DeleteInstance { uid: UID.to_owned() }]);
    }
}
