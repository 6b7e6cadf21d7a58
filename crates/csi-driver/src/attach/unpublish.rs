//! A disk on its way out of a machine.
//!
//! ```text
//! read machine ─► write annotation ─► write machine ─► wait until nothing of it is there ─► remove annotation
//! ```
//! The annotation goes only after this process has changed the machine's version: a write that was to add the disk and
//! is still on its way fails then, and the next machine may have the volume ([`super::publish`]). What is next, [`decide`] says;
//! here it is done.

mod decide;

use std::{sync::Arc, time::Duration};

use harvester_api::VirtualMachine;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::{Instant, sleep_until};

use super::{
    follow::{Followed, Following},
    hotplug::{self, Direction, Disk},
    ownership::{Machine, Operation, Ownership, Recorded, STALE_AFTER},
    plug::{self, Written},
    session::{BLOCKED_FOR, Seen, Session, is_later, recorded},
    settle::Settled,
    watches::Changes,
};
use crate::refusal::Refusal;
use decide::{Facts, Step};

impl Session<'_> {
    /// Brings the volume out of all machines that have it.
    pub(super) async fn detach_everywhere(&self) -> Result<(), Refusal> {
        let mut machines = self.machines_with_volume(None, true).await?;
        let claim = self.attacher.host.claims().get_opt(self.volume.as_str()).await;
        let claim = claim.map_err(|error| {
            Refusal::of_host(&format!("read {}", self.attacher.host.claim_name(self.volume)), &error)
        })?;
        if let Some(Recorded::Ownership(ownership)) = claim.as_ref().map(recorded)
            && !machines.contains(&ownership.vm)
        {
            machines.push(ownership.vm);
        }
        for machine in &machines {
            self.detach(machine).await?;
        }
        Ok(())
    }

    /// Brings the volume out of the machine, and returns when nothing of it is there.
    pub(super) async fn detach(&self, machine: &str) -> Result<(), Refusal> {
        self.attacher.pace.is_unwanted(machine, self.volume.as_str());
        self.detach_by(machine, Own::default()).await
    }

    /// [`Session::detach`], where a part of it may be done.
    pub(super) async fn detach_by(&self, machine: &str, mut own: Own) -> Result<(), Refusal> {
        let changes = self.call.changes_of(machine).with(self.volume.as_str());
        let (mut is_fresh, mut tries, mut has_changed_way) = (false, 0, false);
        let mut refused: Option<(String, Refusal)> = None;
        let (mut following, mut waits_since, mut has_finished) = (Following::default(), None, false);
        loop {
            let turn = self.attacher.turns.alone(machine).await;
            let seen = self.see(machine, is_fresh).await?;
            if let Some((ownership, leaving)) = seen.recorded().leaving()
                && !std::mem::replace(&mut has_finished, true)
            {
                drop(turn);
                if let Err(why) = self.finish(ownership, leaving).await {
                    // a machine that does not let the disk go keeps it in no other
                    tracing::warn!("{why}");
                }
                is_fresh = true;
                continue;
            }
            if own.has_left && seen.is_attached() {
                // another detachment was faster, and somebody has attached the volume since
                return Ok(());
            }
            if let (Some(vm), Some((version, why))) = (&seen.vm, refused.take())
                && plug::version(vm) == version
            {
                return Err(why);
            }
            is_fresh = true;
            match self.remove(machine, &seen, &mut own, &mut waits_since).await? {
                Removed::Done => return Ok(()),
                Removed::Again => tries = self.again(tries, machine)?,
                Removed::Refused { version, why } => {
                    tries = self.again(tries, machine)?;
                    refused = Some((version, why));
                }
                Removed::OtherWay(why) if has_changed_way => return Err(why),
                Removed::OtherWay(_) => has_changed_way = true,
                Removed::At(then) => {
                    drop(turn);
                    self.change(&changes, Some(then)).await;
                }
                Removed::Later(then) => {
                    drop(turn);
                    self.in_patience(self.change(&changes, then)).await?;
                    is_fresh = false;
                }
                Removed::Arrives(then) => {
                    drop(turn);
                    self.wait(sleep_until(then)).await;
                    own.is_settled = true;
                }
                Removed::Leaving(vm) => {
                    drop(turn);
                    tries = self.again(tries, machine)?;
                    self.gets_on();
                    match self.until_gone(machine, vm, &mut following, &changes).await? {
                        // the annotation is removed from what is known: a version that is old is refused
                        Gone::Yes => (own.has_left, is_fresh) = (true, false),
                        Gone::AddedAgain => {}
                    }
                    own.is_settled = true;
                }
            }
        }
    }

    /// Decides, and does it.
    async fn remove(
        &self,
        machine: &str,
        seen: &Seen,
        own: &mut Own,
        waits_since: &mut Option<Instant>,
    ) -> Result<Removed, Refusal> {
        let unchanged_for = match &seen.claim {
            Some(claim) => self.attacher.ages.unchanged_for(claim),
            None => Duration::ZERO,
        };
        let volume = self.volume.as_str();
        let step = decide::decide(&Facts { volume, machine, seen, unchanged_for, own });
        let host = &self.attacher.host;
        match (step, &seen.claim) {
            (Step::Done, _) => Ok(Removed::Done),
            (Step::Fixed(name), _) => Err(Refusal::precondition(format!(
                "{} has the volume as {name:?}, which this driver did not add: remove it from the machine by hand",
                host.machine_name(machine)
            ))),
            (Step::Unplug, _) => self.unplug(seen).await,
            (Step::Leaving, _) => Ok(Removed::Leaving(seen.vm.clone())),
            (Step::WaitUnknown(rest), _) => {
                self.wait_for(format!(
                    "annotation {} of {} has a text that this driver does not know: it counts for nothing when nobody has \
                     written the claim for {} s, so look for a newer driver if it stays",
                    harvester_api::annotations::CSI_ATTACH,
                    host.claim_name(self.volume),
                    STALE_AFTER.as_secs()
                ));
                Ok(Removed::At(Instant::now() + rest))
            }
            (Step::WaitOther(rest), _) => {
                self.wait_for(format!(
                    "another detachment of volume {volume} from {} is under way",
                    host.machine_name(machine)
                ));
                Ok(Removed::At(Instant::now() + rest))
            }
            (Step::WaitMigration, _) => {
                let (vm, vmi) = (seen.vm.as_deref(), seen.vmi.as_deref());
                let progress = hotplug::how_far(vmi, volume);
                self.explain("is still in", machine, &progress, vm, vmi, BLOCKED_FOR).await;
                Ok(Removed::Later(None))
            }
            (Step::Forget, Some(claim)) => self.forget(machine, claim).await,
            (Step::Write(this), Some(claim)) => {
                let (vm, vmi) = (seen.vm.as_deref(), seen.vmi.as_deref());
                let disk = hotplug::disk(vm, vmi, volume);
                if !matches!(disk, Disk::Absent | Disk::Removing(_))
                    && let Some(then) = self.waits_for_others(machine, vm, vmi, waits_since)
                {
                    return Ok(Removed::Later(Some(then)));
                }
                self.write_detach(this, claim, seen, &disk, own).await
            }
            (Step::ReadAfresh | Step::Forget | Step::Write(_), _) => Ok(Removed::Again),
        }
    }

    /// The annotation, then the machine.
    async fn write_detach(
        &self,
        this: Machine,
        claim: &PersistentVolumeClaim,
        seen: &Seen,
        disk: &Disk,
        own: &mut Own,
    ) -> Result<Removed, Refusal> {
        let machine = this.name.clone();
        let ours = Ownership { from: former(claim), ..Ownership::new(this, Operation::Detach) };
        let Some(claim) = self.annotate(claim, Some(ours)).await? else {
            return Ok(Removed::Again);
        };
        (own.holder, own.is_settled) = (holder(&claim), false);
        match (&seen.vm, disk) {
            (None, Disk::Absent) => Ok(Removed::Again),
            (None, _) => Ok(Removed::Leaving(None)),
            (Some(vm), Disk::Absent | Disk::Removing(_)) => {
                match self.attacher.plug.fence(vm, &self.attacher.next_holder()).await? {
                    Written::Done(Some(vm)) => Ok(Removed::Leaving(Some(self.known_machine(*vm).await))),
                    Written::Refused { version, why } => Ok(Removed::Refused { version, why }),
                    // what may be on its way to the machine has time to arrive
                    Written::Done(None) | Written::OtherWay(_) => Ok(self.arrives(&claim, &machine)),
                }
            }
            _ => self.unplug(seen).await,
        }
    }

    /// Removes the annotation, once no write that it speaks of can bring the volume into another machine.
    async fn forget(&self, machine: &str, claim: &PersistentVolumeClaim) -> Result<Removed, Refusal> {
        if let Some(from) = former(claim) {
            match self.settle(&from, machine, claim).await? {
                Settled::Yes => {}
                Settled::Again => return Ok(Removed::Again),
                Settled::At(then) => return Ok(Removed::At(then)),
                Settled::HasVolume(former) => {
                    self.annotate(claim, Some(former)).await?;
                    return Ok(Removed::Again);
                }
            }
        }
        match self.annotate(claim, None).await? {
            Some(_) => {
                self.attacher.ages.forget(self.volume.as_str());
                Ok(Removed::Done)
            }
            None => Ok(Removed::Again),
        }
    }

    /// By subresources: when the annotation is as old as no write of a former holder is.
    fn arrives(&self, claim: &PersistentVolumeClaim, machine: &str) -> Removed {
        self.wait_for(format!(
            "a write that was begun before may still be on its way to {}: it is waited for {} s",
            self.attacher.host.machine_name(machine),
            STALE_AFTER.as_secs()
        ));
        let unchanged_for = self.attacher.ages.unchanged_for(claim);
        Removed::Arrives(Instant::now() + STALE_AFTER.saturating_sub(unchanged_for))
    }

    async fn unplug(&self, seen: &Seen) -> Result<Removed, Refusal> {
        let Some(vm) = &seen.vm else { return Ok(Removed::Leaving(None)) };
        let disk = hotplug::disk(Some(vm), seen.vmi.as_deref(), self.volume.as_str());
        if matches!(disk, Disk::Absent | Disk::Removing(_)) {
            return Ok(Removed::Leaving(Some(vm.clone())));
        }
        let name = vm.metadata.name.as_deref().unwrap_or_default();
        match self.attacher.plug.remove(vm, self.volume.as_str()).await? {
            Written::Done(Some(vm)) => {
                self.attacher.pace.wrote(name, self.volume.as_str(), Direction::Out, None);
                Ok(Removed::Leaving(Some(self.known_machine(*vm).await)))
            }
            Written::Done(None) => {
                self.attacher.pace.wrote(name, self.volume.as_str(), Direction::Out, None);
                Ok(Removed::Leaving(self.read_machine(name).await?))
            }
            Written::Refused { version, why } => Ok(Removed::Refused { version, why }),
            Written::OtherWay(why) => Ok(Removed::OtherWay(why)),
        }
    }

    /// Waits until template, instance and status have the volume no more, or somebody added it again. A watch may be late
    /// by a whole stay of the volume: the instance is read, unless the watch shows it as of after the write `vm` of this call.
    async fn until_gone(
        &self,
        machine: &str,
        vm: Option<Arc<VirtualMachine>>,
        following: &mut Following,
        changes: &Changes,
    ) -> Result<Gone, Refusal> {
        loop {
            let written = vm.as_deref().map(plug::version).unwrap_or_default();
            let vm = match self.call.machines().await {
                Some(machines) => machines.get(&self.call.key(machine)),
                None => vm.clone(),
            };
            let volume = self.volume.as_str();
            let mut vmi = match self.call.instances().await {
                Some(instances) => self.watched_instance(&instances, machine),
                None => None,
            };
            let mut disk = hotplug::disk(vm.as_deref(), vmi.as_deref(), volume);
            if disk == Disk::Absent && !is_later(vmi.as_deref(), &written) {
                vmi = self.read_instance(machine).await?;
                disk = hotplug::disk(vm.as_deref(), vmi.as_deref(), volume);
            }
            let progress = match &disk {
                Disk::Removing(progress) => progress,
                Disk::Absent => return Ok(Gone::Yes),
                _ => return Ok(Gone::AddedAgain),
            };
            let (vm, vmi) = (vm.as_deref(), vmi.as_deref());
            self.explain("is still in", machine, progress, vm, vmi, BLOCKED_FOR).await;
            match self.follow(following, vm, vmi).await? {
                Followed::Wait(until) => self.in_patience(self.change(changes, until)).await?,
                Followed::Healed => {}
                Followed::Refused { .. } => return Ok(Gone::AddedAgain),
            }
        }
    }
}

/// What came of the wait for a disk to leave.
enum Gone {
    Yes,
    /// It is there again: decide again.
    AddedAgain,
}

/// The annotation that this call wrote.
#[derive(Clone, Default)]
pub(super) struct Own {
    holder: Option<String>,
    /// The machine was written after it, or nothing older can reach the machine for another reason.
    is_settled: bool,
    /// After a write of this call nothing of the disk was in the machine any more.
    has_left: bool,
    /// Only what this annotation left behind is to go, and no disk that another one has brought since.
    left_by: Option<String>,
}

impl Own {
    /// The annotation is written, and after it the template, which has the disk no more.
    pub(super) fn written(claim: &PersistentVolumeClaim) -> Self {
        Self { holder: holder(claim), is_settled: true, ..Self::default() }
    }

    /// The annotation was left behind, and nothing of the disk is in the machine.
    pub(super) fn left_behind(annotation: &Ownership) -> Self {
        Self { left_by: Some(annotation.holder.clone()), ..Self::default() }
    }
}

/// The machine to which a write of before may be on its way.
fn former(claim: &PersistentVolumeClaim) -> Option<String> {
    match recorded(claim) {
        Recorded::Ownership(ownership) => ownership.from,
        _ => None,
    }
}

fn holder(claim: &PersistentVolumeClaim) -> Option<String> {
    match recorded(claim) {
        Recorded::Ownership(ownership) => Some(ownership.holder),
        _ => None,
    }
}

enum Removed {
    Done,
    /// Decide again.
    Again,
    /// Decide again, once; then the answer of the other way counts.
    OtherWay(Refusal),
    /// Decide again then, or when something changes.
    At(Instant),
    /// Others are waited for, in a caller's patience: until something changes, and no longer than until then.
    Later(Option<Instant>),
    /// From then on no older write reaches the machine.
    Arrives(Instant),
    Refused {
        version: String,
        why: Refusal,
    },
    /// This process wrote the machine after its annotation; the instance may have the disk yet.
    Leaving(Option<Arc<VirtualMachine>>),
}
