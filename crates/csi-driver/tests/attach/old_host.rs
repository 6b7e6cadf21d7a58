//! A host up to Harvester 1.7, whose role lets the driver patch machines all the same: instances take nothing from their
//! machines' templates, and subresources add and remove disks (docs/contract/csi-driver.md#ways).

use std::{sync::atomic::Ordering, time::Duration};

use csi_driver::attach::hotplug;
use futures::future::join_all;
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use http::{Response, StatusCode};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    client::Body,
};
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule};
use tokio::time::sleep;

use super::host::{Bed, NAMESPACE, Process, VOLUME};

const VOLUMES: [&str; 2] = ["pvc-1", "pvc-2"];

impl Bed {
    pub(crate) async fn old() -> Self {
        let bed = Self::new().await;
        sim_harvester::host_objects::apply(&bed.admin, "v1.7.1").await.unwrap();
        bed.is_old.store(true, Ordering::Relaxed);
        bed.volume("pvc-2").await;
        bed
    }

    /// Volumes in the instance of the machine.
    pub(crate) async fn in_instance(&self, machine: &str) -> Vec<String> {
        let vmi = self.instances().get(machine).await.unwrap();
        let mut names: Vec<_> =
            in_spec(&vmi).iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// Only the template of the machine gets the volume, or loses it.
    async fn patched(&self, machine: &str, patch: impl FnOnce(&VirtualMachine) -> Option<Value>) {
        let vm = self.machines().get(machine).await.unwrap();
        assert!(write(&self.machines(), machine, patch(&vm)).await);
    }
}

/// `addvolume` and `removevolume`, carried out at once; `None` for any other request.
pub(crate) async fn subresource(admin: &Client, path: &str, body: &[u8]) -> Option<Response<Body>> {
    let path = path.strip_prefix("/apis/subresources.kubevirt.io/v1/namespaces/shop/")?;
    let [kind, machine, verb] = path.split('/').collect::<Vec<_>>()[..] else { panic!("{path}") };
    let body: Value = serde_json::from_slice(body).unwrap();
    let claim = body["name"].as_str().unwrap();
    let machines: Api<VirtualMachine> = Api::namespaced(admin.clone(), NAMESPACE);
    let instances: Api<VirtualMachineInstance> = Api::namespaced(admin.clone(), NAMESPACE);
    let mut is_begun = false;
    loop {
        let (vm, vmi) = (machines.get(machine).await.unwrap(), instances.get(machine).await.unwrap());
        let mut volumes = in_spec(&vmi);
        let is_there = volumes.iter().any(|volume| volume["name"] == claim);
        let (patch, is_possible) = match (kind, verb) {
            ("virtualmachines", "addvolume") => (hotplug::add(&vm, claim), !is_there),
            ("virtualmachines", "removevolume") => (hotplug::remove(&vm, claim), true),
            _ => (None, is_there),
        };
        let is_begun = std::mem::replace(&mut is_begun, true);
        if !is_begun && (!is_possible || (kind == "virtualmachines" && patch.is_none())) {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409,
                "reason": "Conflict", "message": format!("unable to {verb} {claim}: as it is")});
            let answer = Response::builder().status(StatusCode::CONFLICT);
            return Some(answer.body(Body::from(status.to_string().into_bytes())).unwrap());
        }
        volumes.retain(|volume| volume["name"] != claim);
        if verb == "addvolume" {
            let source = json!({"claimName": claim, "hotpluggable": true});
            volumes.push(json!({"name": claim, "persistentVolumeClaim": source}));
        }
        let spec = json!({"metadata": {"resourceVersion": vmi.metadata.resource_version}, "spec": {"volumes": volumes}});
        // another request was faster
        if !write(&machines, machine, patch).await
            || instances.patch(machine, &PatchParams::default(), &Patch::Merge(spec)).await.is_err()
        {
            continue;
        }
        return Some(Response::builder().status(StatusCode::ACCEPTED).body(Body::empty()).unwrap());
    }
}

/// What a role up to Harvester 1.7 has an API server say.
pub(crate) fn no_right_to_patch() -> Response<Body> {
    let message = "virtualmachines.kubevirt.io is forbidden: User \"csi\" cannot patch resource \"virtualmachines\" in \
                   API group \"kubevirt.io\" in the namespace \"shop\"";
    status(StatusCode::FORBIDDEN, message)
}

/// An API server refuses a request.
pub(crate) fn status(code: StatusCode, message: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "reason": "Refused", "message": message});
    let answer = Response::builder().status(code);
    answer.body(Body::from(status.to_string().into_bytes())).unwrap()
}

fn in_spec(vmi: &VirtualMachineInstance) -> Vec<Value> {
    vmi.spec.rest.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Whether the patch was for the version that the machine has.
async fn write(machines: &Api<VirtualMachine>, machine: &str, patch: Option<Value>) -> bool {
    let Some(patch) = patch else { return true };
    let patch = Patch::<VirtualMachine>::Json(serde_json::from_value(patch).unwrap());
    machines.patch(machine, &PatchParams::default(), &patch).await.is_ok()
}

// each request is for one volume, and tells of no other
#[rstest]
#[tokio::test(start_paused = true)]
async fn volumes_at_once_come_into_a_machine_and_leave_it(
    #[values(2, 20)] count: usize,
    #[values(true, false)] by_another: bool,
    #[values(true, false)] may_patch: bool,
) {
    let bed = Bed::old().await;
    bed.may_patch.store(may_patch, Ordering::Relaxed);
    let mut volumes: Vec<_> = (1..=count).map(|number| format!("pvc-{number}")).collect();
    for volume in &volumes[VOLUMES.len()..] {
        bed.volume(volume).await;
    }
    volumes.sort();
    let (driver, other) = (Process::new(&bed, "p1"), Process::new(&bed, "p2"));
    for answer in join_all(volumes.iter().map(|volume| driver.publish_volume(volume, "a"))).await {
        answer.unwrap();
    }
    assert_eq!(bed.in_instance("a").await, volumes);
    let driver = if by_another { &other } else { &driver };
    for answer in join_all(volumes.iter().map(|volume| driver.unpublish_volume(volume, "a"))).await {
        answer.unwrap();
    }
    assert!(bed.in_instance("a").await.is_empty());
    assert!(bed.with_volume().await.is_empty());
}

/// Both volumes are in the template, or in the instance, by a process that died; this one learns of the way by the first.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_process_that_knows_the_way_of_the_host_heals_the_next_volume_too(
    #[values(true, false)] is_publish: bool,
) {
    let bed = Bed::old().await;
    let driver = Process::new(&bed, "p1");
    if !is_publish {
        for volume in VOLUMES {
            driver.publish_volume(volume, "a").await.unwrap();
        }
    }
    for volume in VOLUMES {
        let patch = |vm: &VirtualMachine| {
            if is_publish { hotplug::add(vm, volume) } else { hotplug::remove(vm, volume) }
        };
        bed.patched("a", patch).await;
    }
    let another = Process::new(&bed, "p2");
    for volume in VOLUMES {
        if is_publish {
            another.publish_volume(volume, "a").await.unwrap();
        } else {
            another.unpublish_volume(volume, "a").await.unwrap();
        }
    }
    assert_eq!(bed.in_instance("a").await, if is_publish { VOLUMES.to_vec() } else { vec![] });
}

#[tokio::test(start_paused = true)]
async fn a_healing_write_that_was_refused_is_tried_again_or_told() {
    let bed = Bed::old().await;
    let driver = Process::new(&bed, "p1");
    let mut rule = Rule::new(Answer::Code(422));
    rule.user = Some("p1".to_owned());
    rule.verb = Some("patch".to_owned());
    rule.resource = Some("virtualmachines".to_owned());
    // the first patch adds the volume, and the second is to take it out of the template
    rule.nth = Some(2);
    bed.server.faults().add(rule);
    let refusal = driver.publish("a").await.unwrap_err();
    assert!(refusal.message.contains("remove a volume from VirtualMachine shop/a"), "{refusal}");
    driver.publish("a").await.unwrap();
    assert_eq!(bed.in_instance("a").await, ["pvc-1"]);
}

impl Bed {
    /// Looks for ten seconds. Once the disk is in the machine it stays there.
    async fn keeps_its_disk(&self, machine: &str) {
        let whole = (vec![VOLUME.to_owned()], vec![machine.to_owned()]);
        let mut has_come = false;
        for _ in 0..100 {
            let now = (self.in_instance(machine).await, self.with_volume().await);
            assert!(now == whole || !has_come, "the disk was pulled: {now:?}");
            has_come |= now == whole;
            sleep(Duration::from_millis(100)).await;
        }
        assert!(has_come);
    }
}

impl Process {
    /// From then on all is watched, and the process knows the way of the host.
    async fn learns_the_way(&self) {
        self.publish("b").await.unwrap();
        self.unpublish("b").await.unwrap();
        sleep(Duration::from_secs(3)).await;
    }
}

/// It was brought by this process, or by another one, and is in use.
// docs/contract/csi-driver.md#ways
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_disk_that_came_is_not_pulled_where_the_watch_of_instances_is_silent(
    #[values(true, false)] may_patch: bool,
    #[values(true, false)] by_another: bool,
) {
    let bed = Bed::old().await;
    bed.may_patch.store(may_patch, Ordering::Relaxed);
    let (other, driver) = (Process::new(&bed, "p1"), Process::new(&bed, "p2"));
    driver.learns_the_way().await;
    bed.silence_one_watch_of("p2", Some("virtualmachineinstances")).await;
    if by_another {
        other.publish("a").await.unwrap();
    }
    let (answer, ()) = tokio::join!(driver.publish("a"), bed.keeps_its_disk("a"));
    answer.unwrap();
}

/// Somebody else adds it while a detachment waits. The annotation still says that it leaves.
#[tokio::test(start_paused = true)]
async fn a_disk_that_was_added_again_is_not_taken_out_of_the_instance_alone() {
    let bed = Bed::old().await;
    let driver = Process::new(&bed, "p1");
    driver.learns_the_way().await;
    driver.publish("a").await.unwrap();
    bed.works.store(false, Ordering::Relaxed);
    let host = async {
        sleep(Duration::from_millis(500)).await;
        assert!(bed.with_volume().await.is_empty(), "the detachment waits for the instance");
        bed.silence_one_watch_of("p1", Some("virtualmachines")).await;
        let path =
            format!("/apis/subresources.kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/a/addvolume");
        subresource(&bed.admin, &path, json!({"name": VOLUME}).to_string().as_bytes()).await.unwrap();
        for _ in 0..80 {
            let (in_instance, with_volume) = (bed.in_instance("a").await, bed.with_volume().await);
            assert!(with_volume.is_empty() || !in_instance.is_empty(), "the template alone has it");
            sleep(Duration::from_millis(100)).await;
        }
        bed.works.store(true, Ordering::Relaxed);
        bed.wake();
    };
    let (answer, ()) = tokio::join!(driver.unpublish("a"), host);
    answer.unwrap();
    assert!(bed.in_instance("a").await.is_empty() && bed.with_volume().await.is_empty());
}
