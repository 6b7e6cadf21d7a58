//! One round: two Pods on two machines want the same volume, one after the other or both at once.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use csi_driver::attach::hotplug::{self, Disk};
use harvester_api::VirtualMachine;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    bed::{Bed, MACHINES, VOLUME},
    process::{Process, Stop},
    replay::Answered,
};

/// Whoever has not had the volume by then never will.
const WITHIN: Duration = Duration::from_secs(1_800);

/// Who answers the calls of the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// Another process of this driver.
    Ours,
    /// The Go driver.
    Go,
}

/// What a seed has chosen.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) against: Against,
    /// For each Pod: milliseconds until it wants the volume, and for which it keeps it.
    pods: [(u64, u64); 2],
    /// The machine of the first Pod.
    first: usize,
    /// For each process, where it stops.
    pub(crate) stops: [Option<Stop>; 2],
    /// Of a hundred calls so many go to the other process.
    strays: u8,
    seed: u64,
}

impl Plan {
    /// A process that stops does so for so many seconds.
    pub(crate) fn drawn(against: Against, stops_for: u64, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pod = || (random.u64(..3_000), random.u64(..5_000));
        let pods = [pod(), pod()];
        let mut stop = || {
            let (after, lasts) = (random.u32(..6), Duration::from_secs(stops_for));
            let stop = Stop { after, is_sent: random.bool(), lasts };
            (random.u8(..3) == 0).then_some(stop)
        };
        let stops = [stop(), stop()];
        let strays = [0, 25, 50][random.usize(..3)];
        Self { against, pods, first: random.usize(..2), stops, strays, seed }
    }
}

/// The two sides of a round.
pub(crate) struct Sides<'a> {
    pub(crate) bed: &'a Bed,
    pub(crate) processes: &'a [Process; 2],
    /// The guest has VolumeAttachments, for processes that reconcile.
    has_attachments: bool,
    /// Machines whose VolumeAttachment says that it is attached.
    attached: Mutex<BTreeSet<String>>,
    answers: Mutex<Vec<Answered>>,
}

impl<'a> Sides<'a> {
    pub(crate) fn new(bed: &'a Bed, processes: &'a [Process; 2]) -> Self {
        let (attached, answers) = (Mutex::default(), Mutex::default());
        Self { bed, processes, has_attachments: false, attached, answers }
    }

    /// The same, with VolumeAttachments of the Pods in the guest.
    pub(crate) fn with_attachments(self) -> Self {
        Self { has_attachments: true, ..self }
    }

    /// Plays the round. Returns the good answers of this driver.
    pub(crate) async fn play(&self, plan: &Plan) -> Vec<Answered> {
        for (index, process) in self.processes.iter().enumerate() {
            process.stop_at(plan.stops[index], plan.seed.wrapping_mul(3).wrapping_add(index as u64));
        }
        let machine = |pod: usize| MACHINES[(plan.first + pod) % 2];
        tokio::join!(self.pod(plan, 0, machine(0)), self.pod(plan, 1, machine(1)));
        for process in self.processes {
            process.stop_at(None, 0);
        }
        std::mem::take(&mut *self.answers.lock().unwrap())
    }

    async fn pod(&self, plan: &Plan, pod: usize, machine: &str) {
        let mut random = fastrand::Rng::with_seed(plan.seed.wrapping_mul(2).wrapping_add(pod as u64));
        let (begins, keeps) = plan.pods[pod];
        sleep(Duration::from_millis(begins)).await;
        if self.has_attachments {
            self.bed.wants(machine).await;
        }
        self.until_done(plan, pod, true, machine, &mut random).await;
        self.attached.lock().unwrap().insert(machine.to_owned());
        if self.has_attachments {
            self.bed.is_told_attached(machine).await;
        }
        sleep(Duration::from_millis(keeps)).await;
        if self.has_attachments {
            self.bed.no_longer_wants(machine).await;
        }
        self.until_done(plan, pod, false, machine, &mut random).await;
        self.attached.lock().unwrap().remove(machine);
        if self.has_attachments {
            self.bed.is_told_detached(machine).await;
        }
    }

    /// Calls until the answer is good, as the attacher does.
    async fn until_done(
        &self,
        plan: &Plan,
        pod: usize,
        is_publish: bool,
        machine: &str,
        random: &mut fastrand::Rng,
    ) {
        let begun = Instant::now();
        let mut why = String::new();
        while begun.elapsed() < WITHIN {
            let who = if random.u8(..100) < plan.strays { 1 - pod } else { pod };
            let answer = match (plan.against, who) {
                (Against::Go, 1) if is_publish => self.go_publishes(machine).await,
                (Against::Go, 1) => self.go_unpublishes(machine).await,
                _ => {
                    let answer = self.processes[who].call(is_publish, machine).await;
                    if is_publish && answer.is_ok() {
                        let answered =
                            Answered { machine: machine.to_owned(), revision: self.bed.server.revision() };
                        self.answers.lock().unwrap().push(answered);
                    }
                    answer.map_err(|status| status.to_string())
                }
            };
            match answer {
                Ok(()) => return,
                Err(refused) => why = refused,
            }
            sleep(Duration::from_millis(random.u64(500..3_000))).await;
        }
        let log = self.processes[0].log();
        panic!("{plan:?}: machine {machine}, publish {is_publish}: never; the last answer is {why}\n{log}");
    }

    /// ControllerPublishVolume of the Go driver on Harvester from 1.8 on (docs/contract/csi-driver.md#ways).
    pub(crate) async fn go_publishes(&self, machine: &str) -> Result<(), String> {
        let begun = Instant::now();
        while self.attached.lock().unwrap().iter().any(|other| other != machine) {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("the volume is attached to another node".to_owned());
            }
            sleep(Duration::from_secs(2)).await;
        }
        let (vm, disk) = self.go_looks(machine).await;
        if disk == Disk::Absent || matches!(disk, Disk::Removing(_)) {
            let Some(patch) = hotplug::add(&vm, VOLUME) else { return Ok(()) };
            self.go_patches(machine, patch).await?;
            sleep(Duration::from_secs(3)).await;
        }
        for _ in 0..5 {
            if let (_, Disk::Adding(_) | Disk::Ready) = self.go_looks(machine).await {
                return Ok(());
            }
            sleep(Duration::from_secs(3)).await;
        }
        Err("hot-plug volume is not ready".to_owned())
    }

    /// ControllerUnpublishVolume of the Go driver: at least two calls.
    pub(crate) async fn go_unpublishes(&self, machine: &str) -> Result<(), String> {
        let (vm, disk) = self.go_looks(machine).await;
        if disk == Disk::Absent {
            return Ok(());
        }
        let spec = &vm.spec.rest["template"]["spec"];
        let without = |list: &serde_json::Value| {
            let all = list.as_array().into_iter().flatten();
            all.filter(|one| one["name"] != VOLUME).cloned().collect::<Vec<_>>()
        };
        let patch = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": vm.metadata.resource_version},
            {"op": "replace", "path": "/spec/template/spec/volumes", "value": without(&spec["volumes"])},
            {"op": "replace", "path": "/spec/template/spec/domain/devices/disks",
                "value": without(&spec["domain"]["devices"]["disks"])},
        ]);
        self.go_patches(machine, patch).await?;
        Err("the volume is being removed".to_owned())
    }

    async fn go_looks(&self, machine: &str) -> (VirtualMachine, Disk) {
        sleep(Duration::from_millis(5)).await;
        let vm = self.bed.machines().get(machine).await.unwrap();
        let vmi = self.bed.instances().get_opt(machine).await.unwrap();
        let disk = hotplug::disk(Some(&vm), vmi.as_ref(), VOLUME);
        (vm, disk)
    }

    async fn go_patches(&self, machine: &str, patch: serde_json::Value) -> Result<(), String> {
        sleep(Duration::from_millis(10)).await;
        let patch = Patch::<VirtualMachine>::Json(serde_json::from_value(patch).unwrap());
        let answer = self.bed.machines().patch(machine, &PatchParams::default(), &patch).await;
        answer.map(drop).map_err(|error| error.to_string())
    }
}

/// What every process did, together.
pub(crate) type Deeds = Arc<Mutex<super::process::Deeds>>;
