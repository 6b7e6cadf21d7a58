//! Waiting for a machine: `decide` says after each piece of news whether it is over, and [`until`] brings the news.
//!
//! ```text
//! watches of VM and instance ──► Seen ──decide──► Done | Failed(cause) | Over(cause) | Wait
//!         (after GRACE also pods, claims, quotas, warnings: what may say why)
//! ```
//! A watch can die without a word. So both are read where nothing was heard by GRACE, and once more before the time is said
//! to be over: a machine that is up must not be taken back because nobody told.

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
    cause::{self, Cause, Weight},
    host::{
        self, Host,
        follow::{News, Select, Start, follow},
    },
    say::Say,
    seen::{Heard, Seen},
};

/// A machine that is not up by then is asked why.
pub const GRACE: Duration = Duration::from_secs(10);
/// News that wait to be taken in.
const QUEUE: usize = 64;
/// So many different causes are told while waiting; the log's end must stay free for the last one.
const MOST_TOLD: usize = 4;

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// An instance runs and has an address; one with the UID `not` does not count.
    Up { not: Option<String> },
    /// Nothing runs.
    Stopped,
    /// The VM with this UID is gone.
    Gone { uid: String },
}

impl Goal {
    /// Whether it is about the VM's instance too.
    fn has_instance(&self) -> bool {
        !matches!(self, Self::Gone { .. })
    }
}

/// One wait.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Name of the VM.
    pub machine: String,
    /// `namespace/name` of the VM, as people read it.
    pub name: String,
    pub goal: Goal,
    /// For each phase.
    pub limit: Duration,
    /// What is known of the VM.
    pub start: Start,
    /// When it begins, by the clock on the wall.
    pub since: Timestamp,
}

/// How long a wait has lasted. A VM that is to be up goes through two phases: until its instance runs (the image is
/// copied), and until its guest has an address (the agent starts). Each has the whole limit, as each has with upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elapsed {
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

/// What follows from what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is there; the address of a machine that is up.
    Done(Option<Ipv4Addr>),
    /// It will not be: the cause.
    Failed(String),
    /// The time is over: the cause, unless a last look shows something else.
    Over(String),
    /// Look again when there is news, and at this time since the start at the latest.
    Wait {
        until: Duration,
        /// Also look at what may say why it takes long.
        investigate: bool,
        /// Do not rely on the watches, which should have told something by now.
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
pub fn decide(goal: &Goal, seen: &Seen, name: &str, elapsed: Elapsed, limit: Duration) -> Step {
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
            match (known && cause.weight == Weight::Final, over) {
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
                    let trouble = seen.trouble.as_deref().unwrap_or("nothing was heard of it");
                    return Step::Over(format!(
                        "whether VM {name} is gone is unknown after {seconds} s: {trouble}"
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
pub async fn until(host: &Host, wait: &Wait, say: &Say) -> Result<Option<Ipv4Addr>, String> {
    let Wait { machine, name, goal, limit, start, since } = wait;
    let (tell, mut hear) = mpsc::channel(QUEUE);
    let mut followed = Followed { tasks: JoinSet::new(), tell };
    let by_name = || Select::Name(machine.clone());
    followed.add(host.any::<VirtualMachine>(), by_name(), *start, |news| Heard::Vm(news.read()));
    if goal.has_instance() {
        let instances = host.any::<VirtualMachineInstance>();
        followed.add(instances, by_name(), *start, |news| Heard::Instance(news.read()));
    }
    let mut seen = Seen { since: Some(*since), ..Seen::default() };
    let (began, mut investigating, mut looked) = (Instant::now(), false, false);
    // the phase at whose end both were read
    let mut looked_last = None;
    let (mut told, mut ran_after) = (Vec::<String>::new(), None);
    loop {
        let total = began.elapsed();
        ran_after = ran_after.or(running(goal, &seen).map(|_| total));
        let elapsed = Elapsed { total, ran_after };
        match decide(goal, &seen, name, elapsed, *limit) {
            Step::Done(address) => return Ok(address),
            Step::Over(_) if looked_last != Some(elapsed.phase()) => {
                looked_last = Some(elapsed.phase());
                look(host, machine, goal, &mut seen).await;
            }
            Step::Failed(cause) | Step::Over(cause) => return Err(cause),
            Step::Wait { look: true, .. } if !looked => {
                looked = true;
                look(host, machine, goal, &mut seen).await;
            }
            Step::Wait { until, investigate, .. } => {
                if investigate && !investigating {
                    investigating = followed.investigate(host, machine, &seen);
                }
                let Cause { text, weight } = cause::of(&seen, name);
                let worth = investigate && weight == Weight::Passing;
                if worth && told.len() < MOST_TOLD && !told.contains(&text) {
                    say.line(&format!("waiting for VM {name}: {text}"));
                    told.push(text);
                }
                tokio::select! {
                    heard = hear.recv() => seen.take(heard.expect("this function holds a sender")),
                    () = sleep(until.saturating_sub(began.elapsed())) => {}
                }
            }
        }
    }
}

/// Reads the VM and its instance, without a watch.
async fn look(host: &Host, machine: &str, goal: &Goal, seen: &mut Seen) {
    fn news<K>(read: Result<Option<K>, host::Error>) -> News<K> {
        read.map_or_else(
            |error| News::Trouble(error.to_string()),
            |found| News::All(found.into_iter().collect()),
        )
    }
    let instance = async { if goal.has_instance() { Some(host.instance(machine).await) } else { None } };
    let (vm, instance) = futures::join!(host.vm(machine), instance);
    seen.take(Heard::Vm(news(vm)));
    if let Some(instance) = instance {
        seen.take(Heard::Instance(news(instance)));
    }
}

/// Watches that end with the wait.
struct Followed {
    tasks: JoinSet<()>,
    tell: mpsc::Sender<Heard>,
}

impl Followed {
    fn add(
        &mut self,
        api: Api<DynamicObject>,
        select: Select,
        start: Start,
        heard: fn(News<DynamicObject>) -> Heard,
    ) {
        let (tell, mut hear) = mpsc::channel(1);
        let to = self.tell.clone();
        self.tasks.spawn(async move {
            let forward = async {
                while let Some(news) = hear.recv().await {
                    if to.send(heard(news)).await.is_err() {
                        return;
                    }
                }
            };
            tokio::join!(follow(api, select, start, tell), forward);
        });
    }

    /// Follows what may say why; answers whether the VM's claims are among it.
    fn investigate(&mut self, host: &Host, machine: &str, seen: &Seen) -> bool {
        let Some(vm) = seen.vm() else { return false };
        for claim in claim_names(vm, |_| true) {
            self.add(host.any::<PersistentVolumeClaim>(), Select::Name(claim), Start::Read, Heard::Claim);
        }
        let pods = Select::Labels(format!("{VM_NAME}={machine}"));
        self.add(host.any::<Pod>(), pods, Start::Read, Heard::Pods);
        self.add(host.any::<ResourceQuota>(), Select::Fields(String::new()), Start::Read, Heard::Quotas);
        let warnings = Select::Fields("type=Warning".to_owned());
        self.add(host.any::<Event>(), warnings, Start::Read, Heard::Warnings);
        true
    }
}

/// Names of the claims of a VM whose volumes are of interest, in their order.
pub fn claim_names(vm: &VirtualMachine, interest: impl Fn(&serde_json::Value) -> bool) -> Vec<String> {
    let volumes = vm.spec.rest.get("template").and_then(|template| template["spec"]["volumes"].as_array());
    let claims = volumes.into_iter().flatten().map(|volume| &volume["persistentVolumeClaim"]);
    claims
        .filter(|claim| interest(claim))
        .filter_map(|claim| Some(claim["claimName"].as_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests;
