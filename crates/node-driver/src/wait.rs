//! Waits for a VM: [`until`] follows the objects, and [`decide`] says after each change whether the wait is over.
//!
//! ```text
//! watches of VM and instance ──► Seen ──decide──► Done | Failed(cause) | Over(cause) | Wait
//!         (after GRACE also pods, claims, quotas, warnings, for the cause)
//! ```
//! A watch can die in silence. So the driver reads VM and instance if no change has come by GRACE, and once more before it
//! declares that the time is over: it must not delete a VM that is up because a watch did not tell.

use std::{net::Ipv4Addr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, PersistentVolumeClaim, Pod, ResourceQuota},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, ResourceExt as _, api::DynamicObject};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};

use harvester_api::{VirtualMachine, VirtualMachineInstance, labels::VM_NAME};

use crate::{
    address,
    cause::{self, Cause, CauseType},
    harvester::{
        self, Harvester,
        follow::{Change, Select, Start, follow},
    },
    output::Output,
    reference::Reference,
    seen::{Seen, Update},
};

/// If the VM is not up by then, the driver looks for the cause.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// Changes that wait to be applied.
const QUEUE: usize = 64;
/// How many causes the driver prints during a wait. Rancher keeps only the end of the log, which is for the last cause.
const MOST_PRINTED: usize = 4;

/// The state for which the driver waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// An instance with another UID than `not` runs and has an address.
    Up { not: Option<String> },
    /// No instance runs.
    Stopped,
    /// The VM with this UID is gone.
    Gone { uid: String },
}

impl Goal {
    /// Whether the instance matters too.
    fn has_instance(&self) -> bool {
        !matches!(self, Self::Gone { .. })
    }
}

/// A wait for one VM.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub vm_ref: Reference,
    pub goal: Goal,
    /// For each phase.
    pub limit: Duration,
    /// How the watches begin.
    pub start: Start,
    /// Wall time of its beginning.
    pub since: Timestamp,
}

/// How long a wait has lasted. Two phases lead to a VM that is up: until its instance runs (Longhorn copies the image), and
/// until its guest has an address (the agent starts). As with upstream, each phase has the whole limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elapsed {
    /// Since the wait began.
    pub total: Duration,
    /// When the instance was first seen running.
    pub ran_after: Option<Duration>,
}

impl Elapsed {
    /// When the present phase is over.
    fn deadline(&self, limit: Duration) -> Duration {
        self.ran_after.unwrap_or_default() + limit
    }

    fn phase(&self) -> &'static str {
        if self.ran_after.is_some() { "for its address" } else { "for it to run" }
    }
}

/// The decision after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The goal is reached; the address of a VM that is up.
    Done(Option<Ipv4Addr>),
    /// The goal will not be reached, for this cause.
    Failed(String),
    /// The time is over, for this cause, unless a last read shows another state.
    Over(String),
    /// Decide again after the next change, and at this time since the beginning at the latest.
    Wait {
        until: Duration,
        /// Also follow the objects that may show the cause.
        investigate: bool,
        /// Read VM and instance: the watches should have brought them by now.
        look: bool,
    },
}

/// The instance that counts for this goal, if it runs.
fn running<'a>(goal: &Goal, seen: &'a Seen) -> Option<&'a VirtualMachineInstance> {
    let Goal::Up { not } = goal else { return None };
    // an instance of an earlier VM of this name may still be on its way out
    let of_vm = |owner: &OwnerReference| seen.vm().is_some_and(|vm| vm.uid().as_ref() == Some(&owner.uid));
    let instance = seen.instance()?;
    let counts = (not.is_none() || instance.uid() != *not) && instance.owner_references().iter().all(of_vm);
    let runs = instance.status.as_ref().is_some_and(|status| status.phase == "Running");
    Some(instance).filter(|_| counts && runs)
}

/// Decides; `name` is `namespace/name` of the VM, `limit` that of each phase.
pub(crate) fn decide(goal: &Goal, seen: &Seen, name: &str, elapsed: Elapsed, limit: Duration) -> Step {
    let deadline = elapsed.deadline(limit);
    let over = elapsed.total >= deadline;
    let seconds = limit.as_secs();
    match goal {
        Goal::Up { .. } => {
            if let Some(address) = running(goal, seen).and_then(address::of) {
                return Step::Done(Some(address));
            }
            let known = seen.vm.known();
            let cause = cause::of(seen, name);
            match (known && cause.cause_type == CauseType::Final, over) {
                (true, _) => return Step::Failed(cause.text),
                (false, true) => {
                    let phase = elapsed.phase();
                    return Step::Over(format!(
                        "VM {name} is not up after {seconds} s of waiting {phase}: {}",
                        cause.text
                    ));
                }
                (false, false) => {}
            }
        }
        Goal::Stopped => {
            let running = seen
                .instance()
                .and_then(|instance| instance.status.as_ref())
                .is_some_and(|status| !matches!(status.phase.as_str(), "Succeeded" | "Failed"));
            if seen.instance.known() && !running {
                return Step::Done(None);
            }
            if over {
                return Step::Over(format!(
                    "VM {name} still runs after {seconds} s: the guest does not shut down; kill stops it without asking"
                ));
            }
        }
        Goal::Gone { uid } => {
            let there = seen.vm().filter(|vm| vm.uid().as_ref() == Some(uid));
            match (seen.vm.known(), there) {
                (true, None) => return Step::Done(None),
                (_, Some(vm)) if over => {
                    let held = vm.finalizers().join(", ");
                    let held = if held.is_empty() {
                        "nothing holds it".to_owned()
                    } else {
                        format!("held by {held}")
                    };
                    return Step::Over(format!(
                        "VM {name} still exists after {seconds} s: {held}; try again"
                    ));
                }
                (_, None) if over => {
                    let error = seen.error.as_deref().unwrap_or("nothing was heard of it");
                    return Step::Over(format!(
                        "whether VM {name} is gone is unknown after {seconds} s: {error}"
                    ));
                }
                _ => {}
            }
        }
    }
    let late = elapsed.total >= GRACE;
    Step::Wait {
        until: if late { deadline } else { GRACE.min(deadline) },
        investigate: late && matches!(goal, Goal::Up { .. }),
        look: late && !(seen.vm.known() && (seen.instance.known() || !goal.has_instance())),
    }
}

/// Waits until the goal is reached.
///
/// # Errors
/// The cause, in one line.
pub(crate) async fn until(
    harvester: &Harvester,
    wait: &Wait,
    output: &Output,
) -> Result<Option<Ipv4Addr>, String> {
    let Wait { vm_ref, goal, limit, start, since } = wait;
    let (machine, name) = (&vm_ref.name, vm_ref.to_string());
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    let mut watches = Watches { tasks: JoinSet::new(), sender };
    let by_name = || Select::Name(machine.clone());
    watches.add(harvester.any::<VirtualMachine>(), by_name(), *start, |change| Update::Vm(change.read()));
    if goal.has_instance() {
        let instances = harvester.any::<VirtualMachineInstance>();
        watches.add(instances, by_name(), *start, |change| Update::Instance(change.read()));
    }
    let mut seen = Seen { since: Some(*since), ..Seen::default() };
    let (began, mut investigating, mut looked) = (Instant::now(), false, false);
    // the phase at whose end both were read
    let mut looked_last = None;
    let (mut printed, mut ran_after) = (Vec::<String>::new(), None);
    loop {
        let total = began.elapsed();
        ran_after = ran_after.or(running(goal, &seen).map(|_| total));
        let elapsed = Elapsed { total, ran_after };
        match decide(goal, &seen, &name, elapsed, *limit) {
            Step::Done(address) => return Ok(address),
            Step::Over(_) if looked_last != Some(elapsed.phase()) => {
                looked_last = Some(elapsed.phase());
                look(harvester, machine, goal, &mut seen).await;
            }
            Step::Failed(cause) | Step::Over(cause) => return Err(cause),
            Step::Wait { look: true, .. } if !looked => {
                looked = true;
                look(harvester, machine, goal, &mut seen).await;
            }
            Step::Wait { until, investigate, .. } => {
                if investigate && !investigating {
                    investigating = watches.investigate(harvester, machine, &seen);
                }
                let Cause { text, cause_type } = cause::of(&seen, &name);
                let worth = investigate && cause_type == CauseType::Passing;
                if worth && printed.len() < MOST_PRINTED && !printed.contains(&text) {
                    output.line(&format!("waiting for VM {name}: {text}"));
                    printed.push(text);
                }
                tokio::select! {
                    update = receiver.recv() => seen.apply(update.expect("this function holds a sender")),
                    () = sleep(until.saturating_sub(began.elapsed())) => {}
                }
            }
        }
    }
}

/// Reads the VM and its instance, without a watch.
async fn look(harvester: &Harvester, machine: &str, goal: &Goal, seen: &mut Seen) {
    fn change<K>(read: Result<Option<K>, harvester::Error>) -> Change<K> {
        read.map_or_else(
            |error| Change::Failed(error.to_string()),
            |found| Change::Replaced(found.into_iter().collect()),
        )
    }
    let instance = async { if goal.has_instance() { Some(harvester.instance(machine).await) } else { None } };
    let (vm, instance) = futures::join!(harvester.vm(machine), instance);
    seen.apply(Update::Vm(change(vm)));
    if let Some(instance) = instance {
        seen.apply(Update::Instance(change(instance)));
    }
}

/// Watches that end with the wait.
struct Watches {
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Update>,
}

impl Watches {
    fn add(
        &mut self,
        api: Api<DynamicObject>,
        select: Select,
        start: Start,
        update: fn(Change<DynamicObject>) -> Update,
    ) {
        let (sender, mut receiver) = mpsc::channel(1);
        let to = self.sender.clone();
        self.tasks.spawn(async move {
            let forward = async {
                while let Some(change) = receiver.recv().await {
                    if to.send(update(change)).await.is_err() {
                        return;
                    }
                }
            };
            tokio::join!(follow(api, select, start, sender), forward);
        });
    }

    /// Follows the objects that may show the cause. `false`: the VM and so its claims are not known yet.
    fn investigate(&mut self, harvester: &Harvester, machine: &str, seen: &Seen) -> bool {
        let Some(vm) = seen.vm() else { return false };
        for claim in claim_names(vm, |_| true) {
            self.add(
                harvester.any::<PersistentVolumeClaim>(),
                Select::Name(claim),
                Start::Read,
                Update::Claim,
            );
        }
        let pods = Select::Labels(format!("{VM_NAME}={machine}"));
        self.add(harvester.any::<Pod>(), pods, Start::Read, Update::Pods);
        self.add(
            harvester.any::<ResourceQuota>(),
            Select::Fields(String::new()),
            Start::Read,
            Update::Quotas,
        );
        let warnings = Select::Fields("type=Warning".to_owned());
        self.add(harvester.any::<Event>(), warnings, Start::Read, Update::Warnings);
        true
    }
}

/// Names of the claims in the VM's volumes for which `interest` is true, in their order.
pub(crate) fn claim_names(vm: &VirtualMachine, interest: impl Fn(&serde_json::Value) -> bool) -> Vec<String> {
    let volumes = vm.spec.rest.get("template").and_then(|template| template["spec"]["volumes"].as_array());
    let claims = volumes.into_iter().flatten().map(|volume| &volume["persistentVolumeClaim"]);
    claims
        .filter(|claim| interest(claim))
        .filter_map(|claim| Some(claim["claimName"].as_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests;
