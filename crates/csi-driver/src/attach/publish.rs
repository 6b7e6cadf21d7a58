//! A disk on its way into a machine.
//!
//! ```text
//! read machine ─► write annotation ─► write machine on the version that was read ─► wait until it is ready
//! ```
//! Nobody adds a disk but who wrote the annotation last, and on a version of the machine that it had read before. So
//! a process that dies or stops anywhere fails with its write when another one has taken over: who takes over changes
//! the version of the machine after the annotation ([`super::ownership`]).

use std::sync::Arc;

use harvester_api::VirtualMachine;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::Instant;
use tonic::Code;

use super::{
    follow::{Followed, Following},
    hotplug::{self, Direction, Disk, MOST_VOLUMES},
    others::Added,
    ownership::{
        self, Elsewhere, Machine, Operation, Ownership, Recorded, STALE_AFTER, Step, There, Usage, WRITES_FOR,
    },
    pace::{TOGETHER_WITHIN, UNMOUNTED_FOR},
    plug::{self, Written},
    session::{BLOCKED_FOR, SILENT_FOR, Seen, Session, class, is_bound, is_later},
    settle::Settled,
    watches::Changes,
};
use crate::{
    refusal::Refusal,
    volume::{access::Reach, record},
};

/// A call reads and decides again so often after a write that somebody else's made void.
pub const TRIES: usize = 50;

/// What an attachment does next.
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

struct Write {
    /// A machine to which a former holder's write may be on its way: settled before the annotation is written.
    settle: Option<String>,
    /// Written into the annotation, to be settled in the next turn.
    from: Option<String>,
    add: bool,
}

impl Session<'_> {
    /// Brings the volume into the machine, and returns when its disk is there. Without a usage any is as well.
    pub(super) async fn attach(&self, machine: &str, usage: Option<&Usage>) -> Result<(), Refusal> {
        let mut changes = self.call.changes_of(machine).with(self.volume.as_str());
        let (mut is_fresh, mut added, mut tries, mut has_changed_way) = (false, Added::No, 0, false);
        // when the annotation was written that this call added the disk by
        let mut annotated: Option<Instant> = None;
        let mut following = Following::default();
        // the version of the machine for which the host refused a write, and why
        let mut refused: Option<(String, Refusal)> = None;
        // the same of a write for several volumes: any of them may be the reason
        let mut refused_together: Option<String> = None;
        let mut is_alone = false;
        loop {
            let turns = &self.attacher.turns;
            let turn = if is_alone || self.attacher.plug.is_by_subresources() {
                turns.alone(machine).await
            } else {
                turns.beside_others(machine).await
            };
            let seen = self.see(machine, is_fresh).await?;
            if let Some((ownership, leaving)) = seen.recorded().leaving() {
                drop(turn);
                self.finish(ownership, leaving).await?;
                is_fresh = true;
                continue;
            }
            if let Recorded::Ownership(recorded) = seen.recorded() {
                changes.add(&recorded.vm);
            }
            if let (Some(vm), Some((version, why))) = (&seen.vm, refused.take())
                && plug::version(vm) == version
            {
                // the same version: it was no conflict
                return Err(why);
            }
            if refused_together.take().is_some_and(|version| seen.has_version(&version)) && !is_alone {
                is_alone = true;
                continue;
            }
            let next = self.next(machine, usage, &seen, is_alone).await?;
            let vm = match next {
                Next::Alone => {
                    is_alone = true;
                    continue;
                }
                Next::ReadAfresh => {
                    is_fresh = true;
                    continue;
                }
                Next::Done => {
                    drop(turn);
                    let class = seen.claim.as_deref().and_then(class);
                    self.attacher.pace.came(machine, self.volume.as_str(), class);
                    return self.alone_in(machine, added).await;
                }
                Next::Wait(until) => {
                    drop(turn);
                    match until {
                        Some(_) => self.change(&changes, until).await,
                        None => self.in_patience(self.change(&changes, None)).await?,
                    }
                    is_fresh = false;
                    continue;
                }
                Next::WaitReady => seen.vm.clone(),
                Next::Write(write) => {
                    let (vm, vmi) = (seen.vm.as_deref(), seen.vmi.as_deref());
                    if write.add
                        && let Some(until) = self.waits_for_others(machine, vm, vmi)
                    {
                        drop(turn);
                        self.attacher.pace.wants(machine, self.volume.as_str());
                        self.in_patience(self.change(&changes, Some(until))).await?;
                        is_fresh = false;
                        continue;
                    }
                    is_fresh = true;
                    match self.write(machine, usage, &seen, &write).await? {
                        Wrote::Again => {
                            tries = self.again(tries, machine)?;
                            continue;
                        }
                        Wrote::Wait(until) => {
                            drop(turn);
                            self.change(&changes, Some(until)).await;
                            continue;
                        }
                        Wrote::Refused { version, why } => {
                            tries = self.again(tries, machine)?;
                            refused = Some((version, why));
                            continue;
                        }
                        Wrote::RefusedTogether { version } => {
                            tries = self.again(tries, machine)?;
                            refused_together = Some(version);
                            continue;
                        }
                        Wrote::Alone => {
                            is_alone = true;
                            continue;
                        }
                        Wrote::OtherWay(why) if has_changed_way => return Err(why),
                        Wrote::OtherWay(_) => {
                            has_changed_way = true;
                            continue;
                        }
                        Wrote::Added { vm, how, begun } => {
                            self.gets_on();
                            (added, annotated) = (how, Some(begun));
                            Some(vm)
                        }
                    }
                }
            };
            drop(turn);
            let Some(vm) = vm else { continue };
            match self.until_ready(machine, vm, &mut following, &changes).await? {
                // nobody gives a disk back so early
                Ready::Yes if annotated.is_some_and(|begun| begun.elapsed() < UNMOUNTED_FOR) => {
                    return self.alone_in(machine, added).await;
                }
                // the annotation is read now that the disk is there: somebody may be about to take it out
                Ready::Yes => {
                    is_fresh = true;
                    continue;
                }
                // it may be another call's when it comes again
                Ready::Again => (added, annotated) = (Added::No, None),
                Ready::Refused { version, why } => refused = Some((version, why)),
            }
            tries = self.again(tries, machine)?;
            is_fresh = true;
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

    async fn next(
        &self,
        machine: &str,
        usage: Option<&Usage>,
        seen: &Seen,
        is_alone: bool,
    ) -> Result<Next, Refusal> {
        // what a watch says may be old: it is no reason to refuse
        let refuse = |why: Refusal| if seen.is_fresh { Err(why) } else { Ok(Next::ReadAfresh) };
        let host = &self.attacher.host;
        let Some(claim) = &seen.claim else {
            return refuse(Refusal::not_found(format!("there is no {}", host.claim_name(self.volume))));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            let name = host.claim_name(self.volume);
            return refuse(Refusal::precondition(format!("{name} is being deleted: wait for a new volume")));
        }
        if let Err(why) = self.check_owner(claim).await {
            return refuse(why);
        }
        if let Err(why) = record::fits(claim, Reach::Disk) {
            return refuse(Refusal::invalid(why));
        }
        let Some(vm) = &seen.vm else {
            return refuse(Refusal::not_found(format!("there is no {}", host.machine_name(machine))));
        };
        if vm.metadata.deletion_timestamp.is_some() {
            let name = host.machine_name(machine);
            return refuse(Refusal::precondition(format!(
                "{name} is being deleted: the pod needs another node"
            )));
        }
        let disk = hotplug::disk(Some(vm), seen.vmi.as_deref(), self.volume.as_str());
        if let Disk::Fixed(volume) = &disk {
            return refuse(Refusal::precondition(format!(
                "{} has the volume as {volume:?}, which this driver did not add: remove it from the machine first",
                host.machine_name(machine)
            )));
        }
        let unchanged_for = self.attacher.ages.unchanged_for(claim);
        let stale_at = Instant::now() + STALE_AFTER.saturating_sub(unchanged_for);
        let wanted = Machine { name: machine.to_owned(), uid: vm.metadata.uid.clone().unwrap_or_default() };
        let recorded = seen.recorded();
        let (former, settle) = match &recorded {
            Recorded::Ownership(ownership) => (Some(ownership), ownership.from.clone()),
            _ => (None, None),
        };
        let is_whole = hotplug::add(vm, self.volume.as_str()).is_none();
        // by subresources a volume that leaves cannot be added again, and one that was asked for need not
        let is_asked_for = self.attacher.plug.is_by_subresources() && disk != Disk::Absent && !is_whole;
        let is_to_leave = is_whole && matches!(disk, Disk::Removing(_));
        let must_wait = is_asked_for || is_to_leave;
        let is_there = is_whole && !matches!(disk, Disk::Removing(_));
        if !is_there && let Some(next) = self.obstacle(claim, vm, seen, &disk, is_alone).await? {
            return match next {
                Ok(next) => Ok(next),
                Err(why) => refuse(why),
            };
        }
        let (mut there, mut elsewhere) = (There::NotAsked, Elsewhere::NotAsked);
        loop {
            let known = ownership::Seen {
                wanted: &wanted,
                recorded: recorded.clone(),
                unchanged_for,
                there,
                elsewhere: elsewhere.clone(),
                is_to_be_added: !is_there && !must_wait,
            };
            let step = ownership::attach(&known);
            if matches!(step, Step::InUse { .. } | Step::Wait { .. }) {
                self.attacher.pace.gives_way(machine, self.volume.as_str());
            }
            return match step {
                Step::ReadMachine(_) => {
                    let former = former.expect("the decision asks for the machine of an annotation");
                    let (read, vm) = self.there(former).await?;
                    // made again under its name: the volume is in the machine that is wanted, or nowhere
                    let is_former_self = former.vm == machine && vm.is_none();
                    there = if is_former_self { There::NoMachine } else { read };
                    continue;
                }
                Step::LookAtMachines => {
                    elsewhere = Elsewhere::Watched(self.machines_with_volume(Some(machine), false).await?);
                    continue;
                }
                Step::ListMachines => {
                    elsewhere = Elsewhere::In(self.machines_with_volume(Some(machine), seen.is_fresh).await?);
                    continue;
                }
                Step::Join => {
                    let other_use = former
                        .and_then(|ownership| ownership.usage.as_ref())
                        .filter(|it| usage.is_some_and(|usage| *it != usage));
                    match disk {
                        // all machines are looked at when it is settled, and before the disk is added
                        _ if settle.is_some() => Ok(Next::Write(Write { settle, from: None, add: false })),
                        Disk::Absent => Ok(Next::Write(Write { settle, from: None, add: true })),
                        _ if other_use.is_some() => refuse(Refusal::new(
                            Code::AlreadyExists,
                            format!(
                                "volume {} is in {} for another use ({}): detach it first",
                                self.volume,
                                host.machine_name(machine),
                                other_use.map(describe).unwrap_or_default()
                            ),
                        )),
                        // who attached it without a caller did not know the use
                        _ if usage.is_some() && former.is_some_and(|ownership| ownership.usage.is_none()) => {
                            Ok(Next::Write(Write { settle, from: None, add: false }))
                        }
                        Disk::Ready | Disk::InTemplate if is_there && seen.is_fresh => Ok(Next::Done),
                        Disk::Ready | Disk::InTemplate if is_there => Ok(Next::ReadAfresh),
                        Disk::Removing(progress) if must_wait => {
                            let vmi = seen.vmi.as_deref();
                            self.explain("is still in", machine, &progress, Some(vm), vmi, BLOCKED_FOR).await;
                            Ok(Next::Wait(None))
                        }
                        _ if is_there || must_wait => Ok(Next::WaitReady),
                        _ => Ok(Next::Write(Write { settle, from: None, add: true })),
                    }
                }
                Step::Annotate => {
                    // what is recorded of another machine may have a write on its way that adds the disk there
                    let from = former.and_then(|it| ownership::former(it, &known)).map(str::to_owned);
                    let add = settle.is_none() && from.is_none() && !is_there && !must_wait;
                    Ok(Next::Write(Write { settle, from, add }))
                }
                Step::TakeOver { from } => Ok(Next::Write(Write { settle, from: Some(from), add: false })),
                Step::Wait { machine: Some(other) } if there == There::Volume => {
                    self.wait_for(format!(
                        "volume {} is on its way out of {}: look at VirtualMachineInstance {}/{other} on the host",
                        self.volume,
                        host.machine_name(&other),
                        host.namespace()
                    ));
                    Ok(Next::Wait(None))
                }
                Step::Wait { machine: other } => {
                    let other =
                        other.map_or_else(String::new, |other| format!(" for {}", host.machine_name(other)));
                    self.wait_for(format!(
                        "another process of this driver works on volume {}{other}: its annotation on {} counts as left \
                         behind when it has not changed for {} s",
                        self.volume,
                        host.claim_name(self.volume),
                        STALE_AFTER.as_secs()
                    ));
                    Ok(Next::Wait(Some(stale_at)))
                }
                Step::InUse { machines } => refuse(self.in_use(&machines)),
            };
        }
    }

    pub(super) fn in_use(&self, machines: &[String]) -> Refusal {
        let machines: Vec<_> = machines.iter().map(|name| self.attacher.host.machine_name(name)).collect();
        Refusal::precondition(format!(
            "volume {} is in {}: it is in one machine at a time, so detach it there first",
            self.volume,
            machines.join(" and ")
        ))
    }

    /// Why the disk is not to be added now, whatever the annotation says.
    async fn obstacle(
        &self,
        claim: &PersistentVolumeClaim,
        vm: &VirtualMachine,
        seen: &Seen,
        disk: &Disk,
        is_alone: bool,
    ) -> Result<Option<Result<Next, Refusal>>, Refusal> {
        let name = vm.metadata.name.as_deref().unwrap_or_default();
        let machine = self.attacher.host.machine_name(name);
        if *disk == Disk::Absent && self.room(vm) == 0 {
            let (all, ours) = hotplug::count(vm);
            let why =
                format!("{machine} has {all} volumes, {ours} of them hot-plugged, and may have no more");
            return Ok(Some(Err(Refusal::new(Code::ResourceExhausted, why))));
        }
        if !self.may_be_used(claim).await? {
            // a volume that cannot be attached would keep all later ones out of the machine
            let name = self.attacher.host.claim_name(self.volume);
            self.wait_for(format!("{name} is not bound yet: look at its Events and its class"));
            return Ok(Some(Ok(Next::Wait(None))));
        }
        if *disk != Disk::Absent {
            return Ok(None);
        }
        self.may_come_again(name, vm, seen.vmi.as_deref())?;
        let unbound_class = class(claim).filter(|_| !is_bound(claim));
        if !self.attacher.pace.is_doubtful(name, self.volume.as_str(), unbound_class) {
            return Ok(None);
        }
        self.call.complete();
        if let Some(other) = self.comes_before(name, vm, seen.vmi.as_deref()).await {
            self.wait_for(format!(
                "volume {} comes into {machine} after {}: volumes that did not come before, and unbound ones of their \
                 class, come one at a time, after all others",
                self.volume,
                self.attacher.host.claim_name(other)
            ));
            return Ok(Some(Ok(Next::Wait(None))));
        }
        Ok((!is_alone).then_some(Ok(Next::Alone)))
    }

    /// So many volumes more may come into the machine.
    fn room(&self, vm: &VirtualMachine) -> usize {
        let (all, ours) = hotplug::count(vm);
        let most = self.attacher.options.max_volumes_per_node.unwrap_or(MOST_VOLUMES);
        MOST_VOLUMES.saturating_sub(all).min(most.saturating_sub(ours))
    }

    async fn write(
        &self,
        machine: &str,
        usage: Option<&Usage>,
        seen: &Seen,
        write: &Write,
    ) -> Result<Wrote, Refusal> {
        let (Some(claim), Some(vm)) = (&seen.claim, &seen.vm) else { return Ok(Wrote::Again) };
        if let Some(from) = &write.settle {
            match self.settle(from, machine, claim).await? {
                Settled::Yes => {}
                Settled::Again => return Ok(Wrote::Again),
                Settled::At(then) => return Ok(Wrote::Wait(then)),
                Settled::HasVolume(former) => {
                    let machines = [former.vm.clone()];
                    self.annotate(claim, Some(former)).await?;
                    return Err(self.in_use(&machines));
                }
            }
        }
        let begun = Instant::now();
        let vm_uid = vm.metadata.uid.clone().unwrap_or_default();
        let known = match seen.recorded() {
            Recorded::Ownership(ownership) if ownership.vm_uid == vm_uid => ownership.usage,
            _ => None,
        };
        let this = Machine { name: machine.to_owned(), uid: vm_uid };
        let (from, usage) = (write.from.clone(), usage.cloned().or(known));
        let ours = Ownership { from, usage, ..Ownership::new(this, Operation::Attach) };
        // what is there in part needs no room
        let is_new = hotplug::disk(Some(vm), seen.vmi.as_deref(), self.volume.as_str()) == Disk::Absent;
        let room = if is_new { self.room(vm) } else { usize::MAX };
        let place = if write.add { self.attacher.batches.join(vm, self.volume.as_str(), room) } else { None };
        if write.add && place.is_none() {
            return Ok(Wrote::Alone);
        }
        let Some(claim) = self.annotate(claim, Some(ours)).await? else { return Ok(Wrote::Again) };
        if place.is_some()
            && let Err(why) = self.is_not_exported(&claim).await
        {
            // Nothing was begun under the first one. One that was there before may have a write on its way, which is
            // fenced by it alone.
            if is_new && seen.recorded() == Recorded::Nothing {
                self.annotate(&claim, None).await?;
            }
            return Err(why);
        }
        // the write for all begins within that time
        let is_in_time = begun.elapsed() < WRITES_FOR - TOGETHER_WITHIN;
        let Some(place) = place.filter(|_| is_in_time) else { return Ok(Wrote::Again) };
        let together = place.add(&self.attacher.plug, vm).await;
        let Some(written) = together.written else { return Ok(Wrote::Again) };
        if let Ok(Written::Done(_)) = written {
            self.attacher.pace.wrote(machine, self.volume.as_str(), Direction::In);
        }
        let written = match written {
            // one of them may be the reason; who is asked to wait, or is not known, is so alone too
            Err(why)
                if together.count > 1
                    && !matches!(why.code, Code::Unauthenticated | Code::ResourceExhausted) =>
            {
                return Ok(Wrote::RefusedTogether { version: plug::version(vm) });
            }
            written => written?,
        };
        match written {
            Written::Refused { version, .. } if together.count > 1 => Ok(Wrote::RefusedTogether { version }),
            Written::Done(Some(vm)) => {
                Ok(Wrote::Added { vm: self.known_machine(*vm).await, how: Added::OnVersion, begun })
            }
            Written::Done(None) => match self.read_machine(machine).await? {
                Some(vm) => Ok(Wrote::Added { vm, how: Added::Blindly, begun }),
                None => Ok(Wrote::Again),
            },
            Written::Refused { version, why } => Ok(Wrote::Refused { version, why }),
            Written::OtherWay(why) => Ok(Wrote::OtherWay(why)),
        }
    }

    /// Waits until the instance has the disk, or the machine does not run. Not so where somebody took it away again. A watch
    /// may be late by a whole stay of the volume: the instance is read, unless the watch shows it as of after `vm`.
    async fn until_ready(
        &self,
        machine: &str,
        vm: Arc<VirtualMachine>,
        following: &mut Following,
        changes: &Changes,
    ) -> Result<Ready, Refusal> {
        loop {
            let watched = match self.call.machines().await {
                Some(machines) => machines.get(&self.call.key(machine)),
                None => Some(vm.clone()),
            };
            let mut vmi = match self.call.instances().await {
                Some(instances) => instances.get(&self.call.key(machine)),
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
                    let claim = self.watched_claim().await;
                    self.attacher.pace.came(machine, volume, claim.as_deref().and_then(class));
                    return Ok(Ready::Yes);
                }
                Disk::Absent | Disk::Removing(_) | Disk::Fixed(_) => return Ok(Ready::Again),
                Disk::Adding(progress) => {
                    let patience = if hotplug::is_blocked(vmi.as_deref()) { BLOCKED_FOR } else { SILENT_FOR };
                    let (vm, vmi) = (watched.as_deref(), vmi.as_deref());
                    self.explain("is not in", machine, &progress, vm, vmi, patience).await;
                }
            }
            let leaves_at = self.leaves_at(machine, watched.as_deref(), vmi.as_deref()).await;
            if leaves_at.is_some_and(|then| then <= Instant::now()) {
                self.give_back(machine, watched.as_deref(), vmi.as_deref()).await?;
                // it has got on, or another call works on it: the watch will show it
                self.change(changes, None).await;
                return Ok(Ready::Again);
            }
            match self.follow(following, watched.as_deref(), vmi.as_deref()).await? {
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

enum Wrote {
    /// Decide again.
    Again,
    /// Decide again, once; then the answer of the other way counts.
    OtherWay(Refusal),
    Wait(Instant),
    Refused {
        version: String,
        why: Refusal,
    },
    RefusedTogether {
        version: String,
    },
    /// Decide again while no other call is about to write the machine.
    Alone,
    Added {
        vm: Arc<VirtualMachine>,
        how: Added,
        /// Before the annotation was written.
        begun: Instant,
    },
}

fn describe(usage: &Usage) -> String {
    format!("{}{}", usage.access, if usage.read_only { ", read-only" } else { "" })
}
