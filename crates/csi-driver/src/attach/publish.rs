//! A disk on its way into a machine.
//!
//! ```text
//! read machine ─► write annotation ─► write machine on the version that was read ─► wait until it is ready
//! ```
//! Nobody adds a disk but who wrote the annotation last, and on a version of the machine that it had read before. So
//! a process that dies or stops anywhere fails with its write when another one has taken over: who takes over changes
//! the version of the machine after the annotation ([`super::ownership`]). What is next, [`decide`] says; here it is done.

mod decide;
mod say;
mod write;

use std::{sync::Arc, time::Duration};

use harvester_api::VirtualMachine;
use tokio::time::Instant;

use super::{
    follow::{Followed, Following},
    give_back::GivenBack,
    hotplug::{self, Disk},
    others::Added,
    ownership::{Elsewhere, Recorded, There, Usage},
    pace::UNMOUNTED_FOR,
    plug,
    session::{BLOCKED_FOR, LOOK_AGAIN, SILENT_FOR, Seen, Session, class, is_bound, is_later},
    watches::Changes,
};
use crate::refusal::Refusal;
use decide::{Answers, Facts, Order, Question, Step, Why, Write};
use write::Wrote;

/// A call reads and decides again so often after a write that somebody else's made void.
pub const TRIES: usize = 50;

/// How far an attachment is.
#[derive(Default)]
struct Course {
    is_fresh: bool,
    is_alone: bool,
    has_changed_way: bool,
    tries: usize,
    added: Added,
    /// When the annotation was written that this call added the disk by.
    annotated: Option<Instant>,
    /// The version of the machine for which the host refused a write, and why.
    refused: Option<(String, Refusal)>,
    /// The same of a write for several volumes: any of them may be the reason.
    refused_together: Option<String>,
    following: Following,
    /// Since when it waits for other disks of the machine: for no longer than [`super::WAITED_FOR`], however many come
    /// meanwhile.
    waits_since: Option<Instant>,
    /// The disk stays in its machine until then: somebody was asked, and said so.
    stays_until: Option<Instant>,
}

/// What follows a write.
enum After {
    /// Decide again, and count a try.
    Again,
    Decide,
    Wait(Instant),
    Added(Arc<VirtualMachine>),
}

impl Course {
    /// After a refusal: on the version that was refused it was no conflict.
    ///
    /// # Errors
    /// The host's reason.
    fn look(&mut self, seen: &Seen) -> Result<bool, Refusal> {
        if let Some((version, why)) = self.refused.take()
            && seen.has_version(&version)
        {
            return Err(why);
        }
        let is_for_itself =
            self.refused_together.take().is_some_and(|version| seen.has_version(&version)) && !self.is_alone;
        self.is_alone |= is_for_itself;
        Ok(is_for_itself)
    }

    /// # Errors
    /// Where neither way of hot-plug works.
    fn after(&mut self, wrote: Wrote) -> Result<After, Refusal> {
        self.is_fresh = true;
        match wrote {
            Wrote::Again => return Ok(After::Again),
            Wrote::Wait(until) => return Ok(After::Wait(until)),
            Wrote::Refused { version, why } => {
                self.refused = Some((version, why));
                return Ok(After::Again);
            }
            Wrote::RefusedTogether { version } => {
                self.refused_together = Some(version);
                return Ok(After::Again);
            }
            Wrote::Alone => self.is_alone = true,
            Wrote::OtherWay(why) if self.has_changed_way => return Err(why),
            Wrote::OtherWay(_) => self.has_changed_way = true,
            Wrote::Added { vm, how, begun } => {
                (self.added, self.annotated) = (how, Some(begun));
                return Ok(After::Added(vm));
            }
        }
        Ok(After::Decide)
    }
}

impl Session<'_> {
    /// Brings the volume into the machine, and returns when its disk is there. Without a usage any is as well.
    pub(super) async fn attach(&self, machine: &str, usage: Option<&Usage>) -> Result<(), Refusal> {
        let mut changes = self.call.changes_of(machine).with(self.volume.as_str());
        let mut course = Course::default();
        loop {
            let turns = &self.attacher.turns;
            let turn = if course.is_alone || self.attacher.plug.is_by_subresources() {
                turns.alone(machine).await
            } else {
                turns.beside_others(machine).await
            };
            let seen = self.see(machine, course.is_fresh).await?;
            if let Some((ownership, leaving)) = seen.recorded().leaving() {
                drop(turn);
                self.finish(ownership, leaving).await?;
                course.is_fresh = true;
                continue;
            }
            if let Recorded::Ownership(recorded) = seen.recorded() {
                changes.add(&recorded.vm);
            }
            if course.look(&seen)? {
                continue;
            }
            let vm = match self.next(machine, usage, &seen, course.is_alone).await? {
                Next::Alone => {
                    course.is_alone = true;
                    continue;
                }
                Next::ReadAfresh => {
                    course.is_fresh = true;
                    continue;
                }
                Next::Done => {
                    drop(turn);
                    let volume = self.volume.as_str();
                    let disk = hotplug::disk(seen.vm.as_deref(), seen.vmi.as_deref(), volume);
                    self.attacher.pace.came(machine, volume, disk == Disk::Ready);
                    return self.alone_in(machine, &course.added).await;
                }
                Next::Wait(until) => {
                    drop(turn);
                    match until {
                        Some(_) => self.change(&changes, until).await,
                        None => self.in_patience(self.change(&changes, None)).await?,
                    }
                    course.is_fresh = false;
                    continue;
                }
                Next::WaitReady => seen.vm.clone(),
                Next::Write(write) => {
                    let (vm, vmi) = (seen.vm.as_deref(), seen.vmi.as_deref());
                    if write.add
                        && let Some(until) = self.waits_for_others(machine, vm, vmi, &mut course.waits_since)
                    {
                        drop(turn);
                        self.attacher.pace.wants(machine, self.volume.as_str());
                        self.in_patience(self.change(&changes, Some(until))).await?;
                        course.is_fresh = false;
                        continue;
                    }
                    match course.after(self.write(machine, usage, &seen, &write).await?)? {
                        After::Again => {
                            course.tries = self.again(course.tries, machine)?;
                            continue;
                        }
                        After::Decide => continue,
                        After::Wait(until) => {
                            drop(turn);
                            self.change(&changes, Some(until)).await;
                            continue;
                        }
                        After::Added(vm) => {
                            self.gets_on();
                            Some(vm)
                        }
                    }
                }
            };
            drop(turn);
            let Some(vm) = vm else { continue };
            course.is_fresh = true;
            match self.until_ready(machine, vm, &mut course, &changes).await? {
                // nobody gives a disk back so early
                Ready::Yes if course.annotated.is_some_and(|begun| begun.elapsed() < UNMOUNTED_FOR) => {
                    return self.alone_in(machine, &course.added).await;
                }
                // the annotation is read now that the disk is there: somebody may be about to take it out
                Ready::Yes => continue,
                // it may be another call's when it comes again
                Ready::Again => (course.added, course.annotated) = (Added::No, None),
                Ready::Refused { version, why } => course.refused = Some((version, why)),
            }
            course.tries = self.again(course.tries, machine)?;
        }
    }

    /// Counts one more try.
    pub(super) fn again(&self, tries: usize, machine: &str) -> Result<usize, Refusal> {
        if tries < TRIES {
            return Ok(tries + 1);
        }
        Err(Refusal::aborted(format!(
            "others write {} or {} again and again: call again later",
            self.attacher.host.claim_name(self.volume),
            self.attacher.host.machine_name(machine)
        )))
    }

    /// Decides, and asks for what the decision lacks.
    async fn next(
        &self,
        machine: &str,
        usage: Option<&Usage>,
        seen: &Seen,
        is_alone: bool,
    ) -> Result<Next, Refusal> {
        let facts = Facts {
            volume: self.volume.as_str(),
            machine,
            usage,
            seen,
            unchanged_for: seen
                .claim
                .as_ref()
                .map_or(Duration::ZERO, |claim| self.attacher.ages.unchanged_for(claim)),
            by_subresources: self.attacher.plug.is_by_subresources(),
            most: self.attacher.options.max_volumes_per_node,
            is_alone,
        };
        let mut answers = Answers::default();
        loop {
            return match decide::decide(&facts, &answers) {
                Step::Ask(question) => {
                    self.ask(question, &facts, &mut answers).await?;
                    continue;
                }
                Step::Refuse(why) => {
                    if matches!(why, Why::InUse(_)) {
                        self.attacher.pace.gives_way(machine, self.volume.as_str());
                    }
                    Err(self.refusal(machine, why))
                }
                Step::Wait(whom) => Ok(Next::Wait(self.waits(&facts, whom).await)),
                Step::ReadAfresh => Ok(Next::ReadAfresh),
                Step::Done => Ok(Next::Done),
                Step::WaitReady => Ok(Next::WaitReady),
                Step::Alone => Ok(Next::Alone),
                Step::Write(write) => Ok(Next::Write(write)),
            };
        }
    }

    /// # Errors
    /// Where a question gets no answer, and while the disk is kept out of the machine.
    async fn ask(&self, question: Question, facts: &Facts<'_>, answers: &mut Answers) -> Result<(), Refusal> {
        let (seen, machine) = (facts.seen, facts.machine);
        let (Some(claim), vm) = (&seen.claim, seen.vm.as_deref()) else { return Ok(()) };
        match (question, vm) {
            (Question::Owner, _) => answers.owner = Some(self.check_owner(claim).await),
            (Question::Use, _) => answers.may_be_used = Some(self.may_be_used(claim).await?),
            (Question::Order, None) => {}
            (Question::Order, Some(vm)) => {
                let vmi = seen.vmi.as_deref();
                self.may_come_again(machine, vm, vmi)?;
                let unbound_class = class(claim).filter(|_| !is_bound(claim));
                let is_doubtful =
                    self.attacher.pace.is_doubtful(machine, self.volume.as_str(), unbound_class);
                answers.order = Some(match is_doubtful {
                    false => Order::Now,
                    true => {
                        self.call.complete();
                        self.comes_before(machine, vm, vmi).await.map_or(Order::Alone, Order::After)
                    }
                });
            }
            (Question::There, _) => {
                let Recorded::Ownership(former) = seen.recorded() else { return Ok(()) };
                let (there, vm) = self.there(&former).await?;
                // made again under its name: the volume is in the machine that is wanted, or nowhere
                let is_former_self = former.vm == machine && vm.is_none();
                answers.there = if is_former_self { There::NoMachine } else { there };
            }
            (Question::Watched, _) => {
                answers.elsewhere =
                    Elsewhere::Watched(self.machines_with_volume(Some(machine), false).await?);
            }
            (Question::Listed, _) => {
                answers.elsewhere =
                    Elsewhere::In(self.machines_with_volume(Some(machine), seen.is_fresh).await?);
            }
        }
        Ok(())
    }

    /// Waits until the instance has the disk, or the machine does not run. Not so where somebody took it away again. A watch
    /// may be late by a whole stay of the volume: the instance is read, unless the watch shows it as of after `vm`.
    async fn until_ready(
        &self,
        machine: &str,
        vm: Arc<VirtualMachine>,
        course: &mut Course,
        changes: &Changes,
    ) -> Result<Ready, Refusal> {
        loop {
            let watched = match self.call.machines().await {
                Some(machines) => machines.get(&self.call.key(machine)),
                None => Some(vm.clone()),
            };
            let mut vmi = match self.call.instances().await {
                Some(instances) => self.watched_instance(&instances, machine),
                None => self.read_instance(machine).await?,
            };
            let volume = self.volume.as_str();
            let mut disk = hotplug::disk(watched.as_deref(), vmi.as_deref(), volume);
            // an instance that the watch does not show, or not yet, may run
            let is_proved = match disk {
                Disk::Ready => is_later(vmi.as_deref(), &plug::version(&vm)),
                Disk::InTemplate => false,
                _ => true,
            };
            if !is_proved {
                vmi = self.read_instance(machine).await?;
                disk = hotplug::disk(watched.as_deref(), vmi.as_deref(), volume);
            }
            match disk {
                Disk::Ready | Disk::InTemplate => {
                    self.attacher.pace.came(machine, volume, disk == Disk::Ready);
                    return Ok(Ready::Yes);
                }
                Disk::Absent | Disk::Removing(_) | Disk::Fixed(_) => return Ok(Ready::Again),
                Disk::Adding(progress) => {
                    let patience = if hotplug::is_blocked(vmi.as_deref()) { BLOCKED_FOR } else { SILENT_FOR };
                    let (vm, vmi) = (watched.as_deref(), vmi.as_deref());
                    self.explain("is not in", machine, &progress, vm, vmi, patience).await;
                }
            }
            let (watched, vmi) = (watched.as_deref(), vmi.as_deref());
            let leaves_at = self.leaves_at(machine, watched, vmi, course.stays_until).await;
            if leaves_at.is_some_and(|then| then <= Instant::now()) {
                if self.give_back(machine, watched, vmi, course.stays_until).await? == GivenBack::IsHeld {
                    course.stays_until = Some(Instant::now() + LOOK_AGAIN);
                }
                // it has got on, or another call works on it: the watch will show it
                self.change(changes, None).await;
                return Ok(Ready::Again);
            }
            match self.follow(&mut course.following, watched, vmi).await? {
                Followed::Wait(until) => {
                    let until = until.into_iter().chain(leaves_at).min();
                    self.in_patience(self.change(changes, until)).await?;
                }
                Followed::Healed => return Ok(Ready::Again),
                Followed::Refused { version, why } => return Ok(Ready::Refused { version, why }),
            }
        }
    }
}

/// What came of the wait for a disk.
enum Ready {
    Yes,
    /// Decide again.
    Again,
    Refused {
        version: String,
        why: Refusal,
    },
}

/// What an attachment does next, when nothing is left to be asked.
enum Next {
    /// Decide again from what is read afresh.
    ReadAfresh,
    Done,
    WaitReady,
    /// Wait for a change, and no longer than until then.
    Wait(Option<Instant>),
    /// Decide again while no other call is about to write the machine.
    Alone,
    Write(Write),
}
