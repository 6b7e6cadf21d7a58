use json_patch::merge;
use rstest::rstest;

use super::*;

fn volume(name: &str) -> Value {
    json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}})
}

fn disk(name: &str) -> Value {
    json!({"name": name, "disk": {"bus": "scsi"}})
}

fn spec(hot: &[&str]) -> Value {
    let root = json!({"name": "root", "persistentVolumeClaim": {"claimName": "root"}});
    let root_disk = json!({"name": "root", "disk": {"bus": "virtio"}});
    let volumes: Vec<_> = [root].into_iter().chain(hot.iter().map(|name| volume(name))).collect();
    let disks: Vec<_> = [root_disk].into_iter().chain(hot.iter().map(|name| disk(name))).collect();
    json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}})
}

fn vm(hot: &[&str]) -> Value {
    json!({"metadata": {"name": "guest-1", "resourceVersion": "1"}, "spec": {"template": {"spec": spec(hot)}}})
}

fn instance(hot: &[&str]) -> Value {
    json!({"metadata": {"name": "guest-1", "uid": "u", "resourceVersion": "2"}, "spec": spec(hot),
        "status": {"phase": "Running"}})
}

fn pvc(name: &str) -> Option<PersistentVolumeClaim> {
    let phase = match name {
        "missing" => return None,
        "unbound" => "Pending",
        _ => "Bound",
    };
    let json = json!({"metadata": {"name": name}, "spec": {"volumeMode": "Block", "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": phase, "capacity": {"storage": "1Gi"}}});
    Some(serde_json::from_value(json).unwrap())
}

/// A VM and its instance, changed by what is decided for them.
struct World {
    vm: Value,
    instance: Option<Value>,
    way: HotPlug,
    works: bool,
    pods_start: bool,
}

impl World {
    fn new(way: HotPlug, template: &[&str], plugged: &[&str]) -> Self {
        Self { vm: vm(template), instance: Some(instance(plugged)), way, works: true, pods_start: true }
    }

    fn step(&mut self) -> Option<Step> {
        let step = decide(&Seen {
            vm: &self.vm,
            instance: self.instance.as_ref(),
            claim: &pvc,
            way: self.way,
            works: self.works,
            has_started: &|_| self.pods_start,
        })?;
        match &step {
            Step::Vm(patch) | Step::VmStatus(patch) => merge(&mut self.vm, patch),
            Step::Instance(patch) => merge(self.instance.as_mut().unwrap(), patch),
        }
        Some(step)
    }

    /// The phases that watchers of the instance see of a volume until nothing moves any more.
    fn phases(&mut self, of: &str) -> Vec<String> {
        let mut seen = vec![];
        for _ in 0..20 {
            if self.step().is_none() {
                return seen;
            }
            let phase = match self.status(of) {
                Some(status) => status["phase"].as_str().unwrap_or_default().to_owned(),
                None => "none".to_owned(),
            };
            if seen.last() != Some(&phase) {
                seen.push(phase);
            }
        }
        panic!("it does not come to rest: {seen:?}");
    }

    fn status(&self, of: &str) -> Option<&Value> {
        of_volumes(self.instance.as_ref()?).iter().find(|status| name(status) == of)
    }

    fn phase(&self, of: &str) -> &str {
        self.status(of).map_or("none", |status| status["phase"].as_str().unwrap())
    }

    fn plugged(&self) -> Vec<&str> {
        volumes(&self.instance.as_ref().unwrap()["spec"])
            .iter()
            .filter(|volume| is_hot(volume))
            .map(name)
            .collect()
    }
}

const ATTACHED: [&str; 5] = ["none", "Bound", "AttachedToNode", "MountedToPod", "Ready"];

#[test]
fn a_volume_of_the_template_comes_into_a_vm_that_runs_phase_by_phase() {
    let mut world = World::new(HotPlug::Declarative, &["a", "b"], &["b"]);
    assert_eq!(world.phases("a"), ATTACHED);
    let status = world.status("a").unwrap();
    assert!(status["hotplugVolume"]["attachPodName"].as_str().unwrap().starts_with("hp-volume-"), "{status}");
    assert_eq!(status["hotplugVolume"]["attachPodUID"].as_str().unwrap().len(), 36);
    assert_eq!(status["persistentVolumeClaimInfo"]["claimName"], "a");
    let targets = ["root", "a", "b"].map(|name| world.status(name).unwrap()["target"].clone());
    assert_eq!(targets, [json!("vda"), json!("sdb"), json!("sda")], "b was there before");
    assert_eq!(world.status("root").unwrap().get("hotplugVolume"), None);
}

#[test]
fn a_volume_that_leaves_the_template_leaves_the_vm_phase_by_phase() {
    let mut world = World::new(HotPlug::Declarative, &["a"], &["a"]);
    world.phases("a");
    world.vm = vm(&[]);
    assert_eq!(world.phases("a"), ["Ready", "UnMountedFromPod", "Detaching", "none"]);
    assert_eq!(world.plugged(), [""; 0]);
    assert_eq!(world.instance.unwrap()["spec"]["domain"]["devices"]["disks"].as_array().unwrap().len(), 1);
}

#[test]
fn a_volume_comes_again_when_its_former_entry_is_gone() {
    let mut world = World::new(HotPlug::Declarative, &["a"], &["a"]);
    world.phases("a");
    world.vm = vm(&[]);
    while world.status("a").unwrap()["phase"] != "Detaching" {
        world.step().unwrap();
    }
    let before = world.status("a").unwrap()["hotplugVolume"].clone();
    world.vm = vm(&["a"]);
    world.instance.as_mut().unwrap()["metadata"]["resourceVersion"] = "9".into();
    assert_eq!(world.phases("a"), ATTACHED);
    assert_ne!(world.status("a").unwrap()["hotplugVolume"], before, "another pod");
}

// docs/contract/csi-driver.md#hot-plug-pod
#[rstest]
#[case::unbound("unbound", "AttachedToNode", "AttachedToNode")]
#[case::no_claim("missing", "Pending", "Bound")]
fn a_volume_that_cannot_come_keeps_all_later_ones_out_and_those_that_leave_in(
    #[case] name: &str,
    #[case] phase: &str,
    #[case] others: &str,
) {
    let mut world = World::new(HotPlug::Declarative, &["before", "leaves"], &[]);
    world.phases("before");
    world.vm = vm(&["before", "leaves", name]);
    world.phases(name);
    assert_eq!(world.phase(name), phase);
    world.vm = vm(&["before", name, "later"]);
    world.phases("later");
    let phases = ["before", "leaves", name, "later"].map(|name| world.phase(name));
    assert_eq!(phases, ["Ready", "Detaching", phase, others]);
    world.vm = vm(&["before", "later"]);
    world.phases("later");
    let phases = ["before", "leaves", name, "later"].map(|name| world.phase(name));
    assert_eq!(phases, ["Ready", "none", "none", "Ready"]);
}

#[test]
fn one_pod_has_all_hot_plugged_volumes_and_another_one_each_other_set() {
    let mut world = World::new(HotPlug::Declarative, &["a"], &[]);
    world.phases("a");
    let first = world.status("a").unwrap()["hotplugVolume"].clone();
    (world.vm, world.pods_start) = (vm(&["a", "b"]), false);
    world.instance.as_mut().unwrap()["metadata"]["resourceVersion"] = "9".into();
    assert_eq!(world.phases("b"), ["none", "Bound", "AttachedToNode"]);
    let pods = ["a", "b"].map(|name| world.status(name).unwrap()["hotplugVolume"].clone());
    assert_eq!(pods[0], pods[1]);
    assert_ne!(pods[0]["attachPodName"], first["attachPodName"]);
    assert_eq!(pods[0].get("attachPodUID"), None, "it does not run yet");
    assert_eq!(world.phase("a"), "Ready");
    // replaced before it runs
    world.vm = vm(&["a", "b", "c"]);
    world.instance.as_mut().unwrap()["metadata"]["resourceVersion"] = "10".into();
    world.phases("c");
    assert_ne!(world.status("b").unwrap()["hotplugVolume"], pods[1]);
    world.pods_start = true;
    assert_eq!(world.phases("b"), ["AttachedToNode", "MountedToPod", "Ready"]);
    assert_eq!(world.phase("c"), "Ready");
}

#[test]
fn where_virt_handler_is_stuck_nothing_is_mounted_or_unmounted() {
    let mut world = World { works: false, ..World::new(HotPlug::Declarative, &["a"], &[]) };
    assert_eq!(world.phases("a"), ["none", "Bound", "AttachedToNode"]);
    world.vm = vm(&[]);
    assert_eq!(
        world.phases("a"),
        ["AttachedToNode", "Detaching", "none"],
        "what was never mounted need not be unmounted"
    );
    let mut world = World::new(HotPlug::Declarative, &["a"], &["a"]);
    world.phases("a");
    (world.works, world.vm) = (false, vm(&[]));
    assert_eq!(world.phases("a"), ["Ready"]);
}

#[test]
fn a_vm_of_an_older_release_does_not_follow_its_template() {
    let mut world = World::new(HotPlug::Requests, &["a"], &[]);
    world.phases("a");
    assert_eq!(world.plugged(), [""; 0]);
    let mut world = World::new(HotPlug::Declarative, &["a"], &[]);
    world.vm["spec"]["updateVolumesStrategy"] = "Migration".into();
    world.phases("a");
    assert_eq!(world.plugged(), [""; 0]);
}

fn add(name: &str) -> Value {
    json!({"addVolumeOptions": {"name": name, "disk": {"disk": {"bus": "scsi"}},
        "volumeSource": {"persistentVolumeClaim": {"claimName": name}}}})
}

#[test]
fn a_request_changes_the_template_then_the_instance_and_then_goes() {
    let mut world = World::new(HotPlug::Requests, &[], &[]);
    world.vm["status"] = json!({"volumeRequests": [add("a"), add("b")]});
    assert!(matches!(world.step(), Some(Step::Vm(_))));
    assert!(matches!(world.step(), Some(Step::Instance(_))));
    let Some(Step::VmStatus(patch)) = world.step() else { panic!("the request stays") };
    assert_eq!(patch["status"]["volumeRequests"], json!([add("b")]));
    world.phases("b");
    assert_eq!(world.plugged(), ["a", "b"]);
    assert_eq!(world.vm["spec"]["template"]["spec"], spec(&["a", "b"]));
    assert_eq!(world.status("a").unwrap()["phase"], "Ready");
    world.vm["status"] = json!({"volumeRequests": [{"removeVolumeOptions": {"name": "a"}}]});
    world.phases("a");
    assert_eq!((world.plugged(), world.status("a")), (vec!["b"], None));
    assert_eq!(world.vm["status"].get("volumeRequests"), None);
}

#[test]
fn a_request_to_a_vm_that_is_stopped_changes_its_template() {
    let mut world = World::new(HotPlug::Requests, &[], &[]);
    world.instance = None;
    world.vm["status"] = json!({"volumeRequests": [add("a")]});
    assert_eq!(world.phases("a"), ["none"]);
    assert_eq!(world.vm["spec"]["template"]["spec"], spec(&["a"]));
    assert_eq!(world.vm["status"].get("volumeRequests"), None);
}

#[test]
fn disks_have_names_of_two_letters_when_one_letter_does_not_do() {
    let taken: Vec<_> = (b'a'..=b'z').map(|letter| format!("sd{}", char::from(letter))).collect();
    assert_eq!(free_target(&disk("a"), &taken), "sdaa");
    assert_eq!(free_target(&json!({"disk": {"bus": "virtio"}}), &taken), "vda");
}
