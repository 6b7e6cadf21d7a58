//! Disks that the host does not bring. One that is not mounted after a while leaves the machine again where others wait,
//! since the pod that it keeps waiting brings all later disks too, and takes away those that leave ([`super::pace`]).
//!
//! A disk that came is never pulled:
//! ```text
//! give back: annotation says detach ─► read the instance ─► not mounted: remove the disk from the template
//!                                                        └► else: annotation says attach again
//! attach:    see that the disk is ready ─► read the annotation ─► attach: OK
//!                                                              └► else: not yet
//! ```
//! Whichever of the first steps comes first, the other one's second step sees it. An attachment need not read the
//! annotation while its own is younger than [`UNMOUNTED_FOR`]: nobody gives back under one that is. What a restarted
//! machine is to get again is in use without another answer: VolumeAttachments are asked first.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use controller_kit::Cache;
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::{Duration, Instant};

use super::{
    hotplug::{self, Direction, Disk},
    ownership::{Machine, Operation, Ownership, Recorded, WRITES_FOR},
    pace::{self, Coming, UNMOUNTED_FOR, WAITED_FOR},
    plug::Written,
    session::{LOOK_AGAIN, Seen, Session, class, is_bound, recorded},
    unpublish::Own,
    why::Claims,
};
use crate::refusal::Refusal;

/// What VolumeAttachments said lately: on a host where nothing gets on, each of many calls asks about all other disks,
/// and each answer takes a list of all VolumeAttachments.
#[derive(Default)]
pub(super) struct Lately(Mutex<HashMap<String, (Instant, bool)>>);

impl Lately {
    fn of(&self, volume: &str) -> Option<bool> {
        let known = self.0.lock().expect("no panic while it is changed");
        known.get(volume).filter(|(then, _)| then.elapsed() < LOOK_AGAIN).map(|(_, is_attached)| *is_attached)
    }

    fn said(&self, volume: &str, is_attached: bool) {
        let mut known = self.0.lock().expect("no panic while it is changed");
        known.retain(|_, (then, _)| then.elapsed() < LOOK_AGAIN);
        known.insert(volume.to_owned(), (Instant::now(), is_attached));
    }
}

/// A disk that was given back is a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenBack {
    /// Not now: it has got on, or another call works on it.
    No,
    /// It stays: somebody uses it, or its place would help nobody.
    IsHeld,
}

impl Session<'_> {
    /// The disks on their way into the machine, this one among them.
    pub(super) async fn coming(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Vec<Coming> {
        let seen = hotplug::on_their_way(vm, vmi);
        let pace = &self.attacher.pace;
        let ages = pace.look(machine, &seen);
        let claims = self.call.claims().await;
        let is_unbound = |volume: &str| self.unbound(claims.as_ref(), volume).is_some();
        let coming = ages.into_iter().filter(|(volume, _)| seen.get(volume) == Some(&Direction::In));
        let coming = coming.map(|(volume, since)| Coming {
            is_bound: !is_unbound(&volume),
            times: pace.times(machine, &volume),
            volume,
            since,
        });
        coming.collect()
    }

    /// The claim of this volume, where the watch shows that it is not bound.
    fn unbound(
        &self,
        claims: Option<&Cache<PersistentVolumeClaim>>,
        volume: &str,
    ) -> Option<Arc<PersistentVolumeClaim>> {
        claims?.get(&self.call.key(volume)).filter(|claim| !is_bound(claim))
    }

    /// The disk that comes into the machine, or leaves it, before this one, which is doubtful.
    pub(super) async fn comes_before(
        &self,
        machine: &str,
        vm: &VirtualMachine,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Option<String> {
        let (pace, own) = (&self.attacher.pace, self.volume.as_str());
        let claims = self.call.claims().await;
        let is_doubtful = |volume: &str| {
            let unbound = self.unbound(claims.as_ref(), volume);
            pace.is_doubtful(machine, volume, unbound.as_deref().and_then(class))
        };
        pace.wants(machine, own);
        // two that are doubtful would keep one another out, and each all others
        let mut on_their_way = hotplug::on_their_way(Some(vm), vmi).into_iter().filter(|(it, _)| it != own);
        let other = on_their_way.find(|(it, direction)| *direction == Direction::In || !is_doubtful(it));
        let other = other.map(|(volume, _)| volume);
        other.or_else(|| pace::before(own, &pace.waiting(machine), is_doubtful).map(str::to_owned))
    }

    /// When the disk of this volume is to leave the machine again, unless it is mounted by then. Not while it keeps nobody
    /// waiting, and not before `stays_until`.
    pub(super) async fn leaves_at(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
        stays_until: Option<Instant>,
    ) -> Option<Instant> {
        let (pace, volume) = (&self.attacher.pace, self.volume.as_str());
        let known_for =
            self.watched_claim().await.and_then(|claim| self.known_for(machine, &recorded(&claim)));
        // one that the instance has not taken from the template is in no pod
        vmi.filter(|vmi| hotplug::is_taken(vmi, volume))?;
        if !self.is_waited_for(machine, vm, vmi) {
            return None;
        }
        let claims = self.call.claims().await;
        let is_blameless = |other: &String| {
            other != volume
                && pace.times(machine, other) == 0
                && self.unbound(claims.as_ref(), other).is_none()
        };
        let keeps_blameless = hotplug::on_their_way(vm, vmi).keys().any(is_blameless)
            || pace.waiting(machine).keys().any(is_blameless);
        let mut coming = self.coming(machine, vm, vmi).await;
        let own = coming.iter().position(|one| one.volume == volume)?;
        let mut own = coming.swap_remove(own);
        own.since = own.since.min(known_for.unwrap_or(own.since));
        let rest = pace::leaves_in(&own, &coming, pace.was_freed(machine), keeps_blameless)?;
        Some(stays_until.into_iter().chain([Instant::now() + rest]).max().unwrap_or_else(Instant::now))
    }

    /// Whether others wait for what this disk waits for.
    fn is_waited_for(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
    ) -> bool {
        let volume = self.volume.as_str();
        hotplug::on_their_way(vm, vmi).keys().any(|other| other != volume)
            || self.attacher.pace.is_waited_for(machine, volume)
    }

    /// Takes the disk out of the machine again, where it has not come still, and nobody else works on it.
    ///
    /// # Errors
    /// ABORTED where it was taken out, with what it waited for.
    pub(super) async fn give_back(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
        stays_until: Option<Instant>,
    ) -> Result<GivenBack, Refusal> {
        let why = self.waits_for.lock().expect("no panic while the text is replaced").clone();
        // the guest may be slow: nobody waits for its answer at the machine
        if self.is_held(machine, vm, vmi).await {
            return Ok(GivenBack::IsHeld);
        }
        let turn = self.attacher.turns.alone(machine).await;
        let seen = self.see(machine, true).await?;
        let (Some(claim), Some(vm)) = (&seen.claim, &seen.vm) else { return Ok(GivenBack::No) };
        let Some(former) = self.may_be_given_back(machine, &seen) else { return Ok(GivenBack::No) };
        // another one may have left meanwhile: this one has its time now
        let leaves_at = self.leaves_at(machine, Some(vm), seen.vmi.as_deref(), stays_until).await;
        if leaves_at.is_none_or(|then| then > Instant::now()) {
            return Ok(GivenBack::No);
        }
        let begun = Instant::now();
        let this = Machine { name: machine.to_owned(), uid: former.vm_uid.clone() };
        let leaves = Ownership::new(this, Operation::Detach);
        let Some(claim) = self.annotate(claim, Some(leaves)).await? else { return Ok(GivenBack::No) };
        let vmi = self.read_instance(machine).await;
        let is_to_leave = vmi.is_ok_and(|vmi| self.is_unmounted(vm, vmi.as_deref()));
        let removed = match is_to_leave && begun.elapsed() < WRITES_FOR {
            // a write whose end is not known may arrive yet: the annotation stays, and whoever takes over fences it
            true => Some(self.attacher.plug.remove(vm, self.volume.as_str()).await?),
            false => None,
        };
        let Some(Written::Done(after)) = removed else {
            // it came, or somebody else wrote the machine first
            return self.leave_in(machine, claim, former).await.map(|()| GivenBack::No);
        };
        if let Some(vm) = after {
            self.known_machine(*vm).await;
        }
        let pace = &self.attacher.pace;
        pace.wrote(machine, self.volume.as_str(), Direction::Out, None);
        let class = class(&claim).filter(|_| !is_bound(&claim));
        let pause = pace.keep_out(machine, self.volume.as_str(), class, &why);
        drop(turn);
        self.wait_for(format!("{why}; it is taken out of the machine again, so that others come into it"));
        Box::pin(self.detach_by(machine, Own::written(&claim))).await?;
        Err(Refusal::aborted(format!(
            "{why}; it was taken out of the machine again, so that others come into it, and is added again after {} s",
            pause.as_secs()
        )))
    }

    /// The annotation, where what was read afresh is an attachment to this machine that the host has not brought for a while.
    fn may_be_given_back(&self, machine: &str, seen: &Seen) -> Option<Ownership> {
        let vm = seen.vm.as_ref()?;
        let Recorded::Ownership(ownership) = seen.recorded() else { return None };
        let is_ours = ownership.operation == Operation::Attach
            && ownership.vm == machine
            && Some(&ownership.vm_uid) == vm.metadata.uid.as_ref()
            && ownership.from.is_none()
            && ownership.leaving.is_none();
        // an attachment that is younger answers without another look at its annotation
        let is_old = self.known_for(machine, &seen.recorded()).is_some_and(|known| known >= UNMOUNTED_FOR);
        (is_ours && is_old && self.is_unmounted(vm, seen.vmi.as_deref())).then_some(ownership)
    }

    /// Has the annotation say again that the disk is attached, unless somebody else has written it since.
    async fn leave_in(
        &self,
        machine: &str,
        mut claim: Arc<PersistentVolumeClaim>,
        former: Ownership,
    ) -> Result<(), Refusal> {
        let own = recorded(&claim);
        let mut tries = 0;
        while recorded(&claim) == own && self.annotate(&claim, Some(former.clone())).await?.is_none() {
            tries = self.again(tries, machine)?;
            match self.read_claim().await? {
                Some(read) => claim = read,
                None => break,
            }
        }
        Ok(())
    }

    fn known_for(&self, machine: &str, recorded: &Recorded) -> Option<Duration> {
        let Recorded::Ownership(ownership) = recorded else { return None };
        Some(self.attacher.pace.known_for(machine, self.volume.as_str(), &ownership.holder))
    }

    fn is_unmounted(&self, vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
        let disk = hotplug::disk(Some(vm), vmi, self.volume.as_str());
        matches!(disk, Disk::Adding(progress) if !hotplug::is_mounted(&progress))
    }

    /// Whether the disk may not be taken out, or it would help nobody: one that is attached stays, and keeps others out.
    async fn is_held(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
    ) -> bool {
        let own = self.volume.as_str();
        if self.is_attached(own).await {
            return true;
        }
        let (own, others): (Vec<_>, Vec<_>) =
            self.coming(machine, vm, vmi).await.into_iter().partition(|one| one.volume == own);
        if own.iter().any(Coming::may_be_to_blame) {
            return false;
        }
        for other in &others {
            let is_attached = match self.attacher.lately.of(&other.volume) {
                Some(known) => known,
                None => self.is_attached(&other.volume).await,
            };
            if is_attached {
                return true;
            }
        }
        false
    }

    /// Whether a VolumeAttachment says that the volume is attached: its Node uses the disk when it comes, without a further
    /// call. Where that cannot be asked, it may be so.
    async fn is_attached(&self, volume: &str) -> bool {
        let users = (self.attacher.options.users)(volume).await;
        match users {
            Ok(users) => {
                let is_attached = users.iter().any(|user| user.is_attached);
                self.attacher.lately.said(volume, is_attached);
                is_attached
            }
            Err(why) => {
                tracing::warn!("volume {volume} stays where it keeps others out: {why}");
                true
            }
        }
    }

    /// ABORTED while the disk is kept out of the machine.
    pub(super) fn may_come_again(
        &self,
        machine: &str,
        vm: &VirtualMachine,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Result<(), Refusal> {
        let is_alone = !self.is_waited_for(machine, Some(vm), vmi);
        match self.attacher.pace.kept_out(machine, self.volume.as_str(), is_alone) {
            None => Ok(()),
            Some((why, rest)) => Err(Refusal::aborted(format!(
                "{why}; it was taken out of the machine again, so that others come into it, and is added again after {} s",
                rest.as_secs().max(1)
            ))),
        }
    }

    /// Until when the change waits for other disks on their way into the machine and out of it. `since` is when the call
    /// began to wait for them.
    pub(super) fn waits_for_others(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
        since: &mut Option<Instant>,
    ) -> Option<Instant> {
        let mut seen = hotplug::on_their_way(vm, vmi);
        // one that is not mounted keeps others waiting: it may leave at once
        if seen.get(self.volume.as_str()) == Some(&Direction::In) {
            return None;
        }
        let mut ages = self.attacher.pace.look(machine, &seen);
        seen.remove(self.volume.as_str());
        ages.remove(self.volume.as_str());
        let rest = pace::waits(ages.values().copied())?;
        let since = since.get_or_insert_with(Instant::now);
        let rest = rest.min(WAITED_FOR.checked_sub(since.elapsed()).filter(|rest| !rest.is_zero())?);
        let others: Vec<_> = seen.into_keys().collect();
        let host = &self.attacher.host;
        self.wait_for_long(
            format!(
                "volume {} waits for other disks of {}, which are on their way: look at {}",
                self.volume,
                host.machine_name(machine),
                Claims(host, &others)
            ),
            super::SILENT_FOR,
        );
        Some(Instant::now() + rest)
    }
}
