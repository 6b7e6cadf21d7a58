//! What an attachment does next. Pure.
//!
//! ```text
//! what was read, and the answers so far ──decide──► Ask one more question, then decide again
//!                                               └─► Refuse · Wait · Write · WaitReady · Done …
//! ```
//! Questions take requests, so each is asked when all before it have let the attachment pass, and no other. What a watch
//! says may be old: it is a reason to wait or to write, since a write names the version that it is for, and none to refuse
//! or to be done.

use std::time::Duration;

use crate::{
    attach::{
        hotplug::{self, Disk, MOST_VOLUMES, Progress},
        ownership::{self, Elsewhere, Machine, Ownership, Recorded, STALE_AFTER, There, Usage},
        session::Seen,
    },
    refusal::Refusal,
    volume::{access::Reach, record},
};

/// What is known without a question.
pub(super) struct Facts<'a> {
    pub(super) volume: &'a str,
    pub(super) machine: &'a str,
    /// For whatever use where nobody says one.
    pub(super) usage: Option<&'a Usage>,
    pub(super) seen: &'a Seen,
    /// For how long this process has seen the claim at its version.
    pub(super) unchanged_for: Duration,
    /// The host takes no patch of machines.
    pub(super) by_subresources: bool,
    /// A machine gets no more hot-plugged volumes than so many.
    pub(super) most: Option<usize>,
    /// No other call is about to write the machine.
    pub(super) is_alone: bool,
}

/// What is not asked has no answer.
#[derive(Clone, Default)]
pub(super) struct Answers {
    /// Whether the claim is this cluster's.
    pub(super) owner: Option<Result<(), Refusal>>,
    /// Whether the claim is bound, or is bound by its first use.
    pub(super) may_be_used: Option<bool>,
    pub(super) order: Option<Order>,
    pub(super) there: There,
    pub(super) elsewhere: Elsewhere,
}

/// When the disk may come, beside others on their way into the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Now,
    /// It is doubtful: it comes alone, and after this one.
    After(String),
    /// It is doubtful, and the first of those that wait.
    Alone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Owner,
    Use,
    Order,
    /// What the machine of the annotation has of the volume.
    There,
    /// Which machines have the volume, by watches, which may be old.
    Watched,
    /// The same by a list, where all else was read afresh too.
    Listed,
}

/// What an attachment does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Then decide again.
    Ask(Question),
    /// Read all of it afresh, then decide again.
    ReadAfresh,
    Refuse(Why),
    /// The disk is in the machine.
    Done,
    /// The disk is on its way.
    WaitReady,
    Wait(For),
    /// Decide again while no other call is about to write the machine.
    Alone,
    Write(Write),
}

/// Why an attachment is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    NoClaim,
    ClaimIsDeleted,
    /// The claim is another cluster's, or nobody can say whose it is.
    Owner(Refusal),
    /// The claim is of a volume of another kind.
    Record(String),
    NoMachine,
    MachineIsDeleted,
    /// The machine has the volume by this name, and no driver added it.
    Fixed(String),
    /// The machine has so many volumes, and so many of them hot-plugged.
    Full(usize, usize),
    /// It is in the machine for this use.
    OtherUse(Usage),
    InUse(Vec<String>),
}

/// Whom an attachment waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// Whoever binds the claim.
    Binding,
    /// Another disk, which comes first.
    Other(String),
    /// The live migration of the machine.
    Migration,
    /// The host, which takes the disk out of this machine still.
    Removal(Progress),
    /// The host, which takes the disk out of another one.
    Leaves(String),
    /// Another process, which is at work, for another machine perhaps. It has so long yet.
    Process(Option<String>, Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// A machine to which a former holder's write may be on its way: settled before the annotation is written.
    pub(super) settle: Option<String>,
    /// Written into the annotation, to be settled in the next turn.
    pub(super) from: Option<String>,
    pub(super) add: bool,
}

/// So many volumes more may come into a machine that has so many, and so many of them hot-plugged.
pub(super) fn room((all, ours): (usize, usize), most: Option<usize>) -> usize {
    MOST_VOLUMES.saturating_sub(all).min(most.unwrap_or(MOST_VOLUMES).saturating_sub(ours))
}

pub(super) fn decide(facts: &Facts<'_>, answers: &Answers) -> Step {
    match by_all(facts, answers) {
        Step::Refuse(_) | Step::Done if !facts.seen.is_fresh => Step::ReadAfresh,
        step => step,
    }
}

fn by_all(facts: &Facts<'_>, answers: &Answers) -> Step {
    let seen = facts.seen;
    let Some(claim) = &seen.claim else { return Step::Refuse(Why::NoClaim) };
    if claim.metadata.deletion_timestamp.is_some() {
        return Step::Refuse(Why::ClaimIsDeleted);
    }
    match &answers.owner {
        None => return Step::Ask(Question::Owner),
        Some(Err(why)) => return Step::Refuse(Why::Owner(why.clone())),
        Some(Ok(())) => {}
    }
    if let Err(why) = record::fits(claim, Reach::Disk) {
        return Step::Refuse(Why::Record(why));
    }
    let Some(vm) = &seen.vm else { return Step::Refuse(Why::NoMachine) };
    if vm.metadata.deletion_timestamp.is_some() {
        return Step::Refuse(Why::MachineIsDeleted);
    }
    let disk = hotplug::disk(Some(vm), seen.vmi.as_deref(), facts.volume);
    if let Disk::Fixed(name) = disk {
        return Step::Refuse(Why::Fixed(name));
    }
    let is_whole = hotplug::add(vm, facts.volume).is_none();
    let is_leaving = matches!(disk, Disk::Removing(_));
    // by subresources a volume that leaves cannot be added again, and one that was asked for need not
    let is_asked_for = facts.by_subresources && disk != Disk::Absent && !is_whole;
    let part =
        Part { is_there: is_whole && !is_leaving, must_wait: is_asked_for || is_whole && is_leaving, disk };
    if !part.is_there
        && let Some(step) = obstacle(facts, answers, &part.disk, hotplug::count(vm))
    {
        return step;
    }
    let wanted = Machine { name: facts.machine.to_owned(), uid: vm.metadata.uid.clone().unwrap_or_default() };
    match by_owner(facts, answers, &part, &wanted) {
        Step::Write(Write { add: true, .. }) if seen.vmi.as_deref().is_some_and(hotplug::migrates) => {
            Step::Wait(For::Migration)
        }
        step => step,
    }
}

/// What the machine has of the disk.
struct Part {
    disk: Disk,
    /// Nothing of it lacks.
    is_there: bool,
    /// Nothing can be added to it now.
    must_wait: bool,
}

/// Why the disk is not to be added now, whatever the annotation says.
fn obstacle(facts: &Facts<'_>, answers: &Answers, disk: &Disk, count: (usize, usize)) -> Option<Step> {
    if *disk == Disk::Absent && room(count, facts.most) == 0 {
        return Some(Step::Refuse(Why::Full(count.0, count.1)));
    }
    match answers.may_be_used {
        None => return Some(Step::Ask(Question::Use)),
        // a volume that cannot be attached would keep all later ones out of the machine
        Some(false) => return Some(Step::Wait(For::Binding)),
        Some(true) if *disk != Disk::Absent => return None,
        Some(true) => {}
    }
    match &answers.order {
        None => Some(Step::Ask(Question::Order)),
        Some(Order::Now) => None,
        Some(Order::After(other)) => Some(Step::Wait(For::Other(other.clone()))),
        Some(Order::Alone) => (!facts.is_alone).then_some(Step::Alone),
    }
}

/// By the annotation, and by what all machines have.
fn by_owner(facts: &Facts<'_>, answers: &Answers, part: &Part, wanted: &Machine) -> Step {
    let known = ownership::Seen {
        wanted,
        recorded: facts.seen.recorded(),
        unchanged_for: facts.unchanged_for,
        there: answers.there,
        elsewhere: answers.elsewhere.clone(),
        is_to_be_added: !part.is_there && !part.must_wait,
    };
    let former = match &known.recorded {
        Recorded::Ownership(ownership) => Some(ownership),
        _ => None,
    };
    let settle = former.and_then(|ownership| ownership.from.clone());
    match ownership::attach(&known) {
        ownership::Step::ReadMachine(_) => Step::Ask(Question::There),
        ownership::Step::LookAtMachines => Step::Ask(Question::Watched),
        ownership::Step::ListMachines => Step::Ask(Question::Listed),
        ownership::Step::Join => joined(facts, part, former, settle),
        ownership::Step::Annotate => {
            // what is recorded of another machine may have a write on its way that adds the disk there
            let from = former.and_then(|it| ownership::former(it, &known)).map(str::to_owned);
            let add = settle.is_none() && from.is_none() && known.is_to_be_added;
            Step::Write(Write { settle, from, add })
        }
        ownership::Step::TakeOver { from } => Step::Write(Write { settle, from: Some(from), add: false }),
        ownership::Step::Wait { machine: Some(other) } if answers.there == There::Volume => {
            Step::Wait(For::Leaves(other))
        }
        ownership::Step::Wait { machine } => {
            Step::Wait(For::Process(machine, STALE_AFTER.saturating_sub(facts.unchanged_for)))
        }
        ownership::Step::InUse { machines } => Step::Refuse(Why::InUse(machines)),
    }
}

/// The annotation says that the disk is this machine's.
fn joined(facts: &Facts<'_>, part: &Part, former: Option<&Ownership>, settle: Option<String>) -> Step {
    let usage = former.and_then(|ownership| ownership.usage.as_ref());
    let other_use = usage.filter(|it| facts.usage.is_some_and(|usage| *it != usage));
    let add = |add| Step::Write(Write { settle: None, from: None, add });
    match (&part.disk, other_use) {
        // all machines are looked at when it is settled, and before the disk is added
        _ if settle.is_some() => Step::Write(Write { settle, from: None, add: false }),
        (Disk::Absent, _) => add(true),
        (_, Some(other)) => Step::Refuse(Why::OtherUse(other.clone())),
        // who attached it without a caller did not know the use
        _ if facts.usage.is_some() && usage.is_none() => add(false),
        (Disk::Ready | Disk::InTemplate, _) if part.is_there => Step::Done,
        (Disk::Removing(progress), _) if part.must_wait => Step::Wait(For::Removal(progress.clone())),
        _ if part.is_there || part.must_wait => Step::WaitReady,
        _ => add(true),
    }
}

#[cfg(test)]
mod tests;
