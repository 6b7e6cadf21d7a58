//! Waiting for a machine: `decide` says after each piece of news whether it is over, and [`until`] brings the news.
//!
//! ```text
//! watches of VM and instance ──► Seen ──decide──► Done | Failed(cause) | Wait
//!         (after GRACE also pods, claims, quotas, warnings: what may say why)
//! ```

use std::{net::Ipv4Addr, time::Duration};

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
        Host,
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

/// What follows from what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is there; the address of a machine that is up.
    Done(Option<Ipv4Addr>),
    /// It will not be, or the time is over: the cause.
    Failed(String),
    /// Look again when there is news, and at this time since the start at the latest.
    Wait {
        until: Duration,
        /// Also look at what may say why it takes long.
        investigate: bool,
    },
}

/// Decides; `name` is `namespace/name` of the VM, `elapsed` the time since the wait began.
pub fn decide(goal: &Goal, seen: &Seen, name: &str, elapsed: Duration, limit: Duration) -> Step {
    let over = elapsed >= limit;
    let seconds = limit.as_secs();
    match goal {
        Goal::Up { not } => {
            // one of an earlier VM of this name may still be on its way out
            let of_vm =
                |owner: &OwnerReference| seen.vm().is_some_and(|vm| vm.uid().as_ref() == Some(&owner.uid));
            let instance = seen.instance().filter(|instance| {
                (not.is_none() || instance.uid() != *not) && instance.owner_references().iter().all(of_vm)
            });
            let running = instance
                .filter(|instance| instance.status.as_ref().is_some_and(|status| status.phase == "Running"));
            if let Some(address) = running.and_then(address::of) {
                return Step::Done(Some(address));
            }
            let known = seen.vm.known();
            let cause = cause::of(seen, name);
            match (known && cause.weight == Weight::Final, over) {
                (true, _) => return Step::Failed(cause.text),
                (false, true) => {
                    return Step::Failed(format!("VM {name} is not up after {seconds} s: {}", cause.text));
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
                return Step::Failed(format!(
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
                    return Step::Failed(format!(
                        "VM {name} still exists after {seconds} s: {held}; try again"
                    ));
                }
                (_, None) if over => {
                    let trouble = seen.trouble.as_deref().unwrap_or("nothing was heard of it");
                    return Step::Failed(format!(
                        "whether VM {name} is gone is unknown after {seconds} s: {trouble}"
                    ));
                }
                _ => {}
            }
        }
    }
    let investigate = matches!(goal, Goal::Up { .. }) && elapsed >= GRACE;
    Step::Wait { until: if elapsed < GRACE { GRACE.min(limit) } else { limit }, investigate }
}

/// Waits until the goal is reached.
///
/// # Errors
/// The cause, in one line.
pub async fn until(
    host: &Host,
    machine: &str,
    name: &str,
    goal: &Goal,
    limit: Duration,
    start: Start,
    say: &Say,
) -> Result<Option<Ipv4Addr>, String> {
    let (tell, mut hear) = mpsc::channel(QUEUE);
    let mut followed = Followed { tasks: JoinSet::new(), tell };
    let by_name = || Select::Name(machine.to_owned());
    followed.add(host.any::<VirtualMachine>(), by_name(), start, |news| Heard::Vm(news.read()));
    if !matches!(goal, Goal::Gone { .. }) {
        let instances = host.any::<VirtualMachineInstance>();
        followed.add(instances, by_name(), start, |news| Heard::Instance(news.read()));
    }
    let (began, mut seen, mut investigating) = (Instant::now(), Seen::default(), false);
    let mut told: Vec<String> = vec![];
    loop {
        match decide(goal, &seen, name, began.elapsed(), limit) {
            Step::Done(address) => return Ok(address),
            Step::Failed(cause) => return Err(cause),
            Step::Wait { until, investigate } => {
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
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::seen::Objects;

    const LIMIT: Duration = Duration::from_secs(600);
    const SOON: Duration = Duration::from_secs(1);
    const LATER: Duration = Duration::from_secs(60);

    fn vm(extra: &Value) -> Objects<VirtualMachine> {
        let mut vm =
            json!({"metadata": {"name": "demo-1", "uid": "vm"}, "spec": {"runStrategy": "RerunOnFailure"}});
        for (key, value) in extra.as_object().unwrap() {
            vm["metadata"][key] = value.clone();
        }
        Objects::these(vec![serde_json::from_value(vm).unwrap()])
    }

    fn instance(phase: &str, address: &str) -> Objects<VirtualMachineInstance> {
        let instance = json!({"metadata": {"name": "demo-1", "uid": "one"}, "spec": {},
            "status": {"phase": phase, "interfaces": [{"name": "nic-0", "ipAddress": address}]}});
        Objects::these(vec![serde_json::from_value(instance).unwrap()])
    }

    fn owned(vm: &str) -> Objects<VirtualMachineInstance> {
        let owner =
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo-1", "uid": vm});
        let instance = json!({"metadata": {"name": "demo-1", "uid": "one", "ownerReferences": [owner]}, "spec": {},
            "status": {"phase": "Running", "interfaces": [{"name": "nic-0", "ipAddress": "192.0.2.9"}]}});
        Objects::these(vec![serde_json::from_value(instance).unwrap()])
    }

    fn up() -> Goal {
        Goal::Up { not: None }
    }

    fn gone() -> Goal {
        Goal::Gone { uid: "vm".into() }
    }

    const WAIT: Step = Step::Wait { until: GRACE, investigate: false };

    fn done(address: &str) -> Step {
        Step::Done(Some(address.parse().unwrap()))
    }

    #[rstest]
    #[case::nothing_seen(up(), Seen::default(), SOON, WAIT)]
    #[case::starting(up(), Seen { vm: vm(&json!({})), instance: instance("Scheduling", ""), ..Seen::default() }, SOON, WAIT)]
    #[case::no_address_yet(up(), Seen { vm: vm(&json!({})), instance: instance("Running", ""), ..Seen::default() }, SOON, WAIT)]
    #[case::long_without_address(up(), Seen { vm: vm(&json!({})), instance: instance("Running", ""), ..Seen::default() }, LATER,
        Step::Wait { until: LIMIT, investigate: true })]
    #[case::up(up(), Seen { vm: vm(&json!({})), instance: instance("Running", "192.0.2.9"), ..Seen::default() }, SOON,
        done("192.0.2.9"))]
    #[case::address_of_the_last_run(up(), Seen { vm: vm(&json!({})), instance: instance("Succeeded", "192.0.2.9"), ..Seen::default() },
        SOON, WAIT)]
    #[case::old_instance(Goal::Up { not: Some("one".into()) },
        Seen { vm: vm(&json!({})), instance: instance("Running", "192.0.2.9"), ..Seen::default() }, SOON, WAIT)]
    #[case::new_instance(Goal::Up { not: Some("zero".into()) },
        Seen { vm: vm(&json!({})), instance: instance("Running", "192.0.2.9"), ..Seen::default() }, SOON, done("192.0.2.9"))]
    #[case::instance_of_an_earlier_vm(up(), Seen { vm: vm(&json!({})), instance: owned("older"), ..Seen::default() }, SOON, WAIT)]
    #[case::instance_of_this_vm(up(), Seen { vm: vm(&json!({})), instance: owned("vm"), ..Seen::default() }, SOON, done("192.0.2.9"))]
    #[case::whose_instance_is_not_known_yet(up(), Seen { instance: owned("vm"), ..Seen::default() }, SOON, WAIT)]
    #[case::still_runs(Goal::Stopped, Seen { instance: instance("Running", ""), ..Seen::default() }, SOON, WAIT)]
    #[case::stopped(Goal::Stopped, Seen { instance: Objects::these(vec![]), ..Seen::default() }, SOON, Step::Done(None))]
    // pitfalls-node-driver.md B27
    #[case::lingers(Goal::Stopped, Seen { instance: instance("Succeeded", ""), ..Seen::default() }, SOON, Step::Done(None))]
    #[case::unknown_is_not_stopped(Goal::Stopped, Seen::default(), SOON, WAIT)]
    #[case::unknown_is_not_gone(gone(), Seen::default(), SOON, WAIT)]
    #[case::there(gone(), Seen { vm: vm(&json!({})), ..Seen::default() }, SOON, WAIT)]
    #[case::gone(gone(), Seen { vm: Objects::these(vec![]), ..Seen::default() }, SOON, Step::Done(None))]
    #[case::another_of_that_name(gone(), Seen { vm: vm(&json!({"uid": "next"})), ..Seen::default() }, SOON, Step::Done(None))]
    fn what_was_seen_decides(
        #[case] goal: Goal,
        #[case] seen: Seen,
        #[case] elapsed: Duration,
        #[case] expected: Step,
    ) {
        assert_eq!(decide(&goal, &seen, "shop/demo-1", elapsed, LIMIT), expected);
    }

    #[rstest]
    #[case::deleted(up(), Seen { vm: Objects::these(vec![]), ..Seen::default() }, SOON, "was deleted in the meantime")]
    #[case::agent(up(), Seen { vm: vm(&json!({})), instance: instance("Running", ""), ..Seen::default() }, LIMIT,
        "VM shop/demo-1 is not up after 600 s: guest agent missing")]
    #[case::does_not_stop(Goal::Stopped, Seen { instance: instance("Running", ""), ..Seen::default() }, LIMIT, "still runs after 600 s")]
    #[case::held(gone(), Seen { vm: vm(&json!({"finalizers": ["a/b"]})), ..Seen::default() }, LIMIT, "still exists after 600 s: held by a/b")]
    #[case::not_known(gone(), Seen { trouble: Some("no route".into()), ..Seen::default() }, LIMIT, "is unknown after 600 s: no route")]
    fn an_end_without_success_says_why(
        #[case] goal: Goal,
        #[case] seen: Seen,
        #[case] elapsed: Duration,
        #[case] part: &str,
    ) {
        let Step::Failed(cause) = decide(&goal, &seen, "shop/demo-1", elapsed, LIMIT) else {
            panic!("no failure")
        };
        assert!(cause.contains(part), "{cause}");
        assert_eq!(cause, crate::host::calm(&cause), "never the words for an absent machine");
    }
}
