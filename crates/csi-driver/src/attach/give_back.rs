//! Disks that the host does not bring. One that is not mounted after a while leaves the machine again, since the pod that
//! it keeps waiting brings all later disks too, and takes away those that leave ([`super::pace`]).

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use tokio::time::Instant;

use super::{
    hotplug::{self, Direction},
    ownership::{Operation, Recorded},
    pace::{self, Coming, UNMOUNTED_FOR},
    session::{Session, is_bound},
    why::Claims,
};
use crate::refusal::Refusal;

impl Session<'_> {
    /// The disks on their way into the machine, this one among them.
    pub(super) async fn coming(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Vec<Coming> {
        let seen = hotplug::on_their_way(vm, vmi);
        let ages = self.attacher.pace.look(machine, &seen);
        let claims = self.call.claims().await;
        let is_unbound = |volume: &str| {
            let claim = claims.as_ref().and_then(|claims| claims.get(&self.call.key(volume)));
            claim.is_some_and(|claim| !is_bound(&claim))
        };
        let coming = ages.into_iter().filter(|(volume, _)| seen.get(volume) == Some(&Direction::In));
        let coming = coming.map(|(volume, since)| Coming {
            is_doubtful: is_unbound(&volume) || self.attacher.pace.was_kept_out(machine, &volume),
            volume,
            since,
        });
        coming.collect()
    }

    /// When the disk of this volume is to leave the machine again, unless it is mounted by then.
    pub(super) async fn leaves_at(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Option<Instant> {
        // one that the instance has not taken from the template is in no pod
        vmi.filter(|vmi| hotplug::is_taken(vmi, self.volume.as_str()))?;
        let mut coming = self.coming(machine, vm, vmi).await;
        let own = coming.iter().position(|one| one.volume == self.volume.as_str())?;
        let own = coming.swap_remove(own);
        if pace::must_leave(&own, &coming) {
            return Some(Instant::now());
        }
        let next = [UNMOUNTED_FOR, 2 * UNMOUNTED_FOR].into_iter().find(|limit| own.since < *limit)?;
        Some(Instant::now() + (next - own.since))
    }

    /// Takes the disk out of the machine again, where it is not mounted still and nobody else works on it.
    ///
    /// # Errors
    /// ABORTED where it was taken out, with what it waited for.
    pub(super) async fn give_back(&self, machine: &str) -> Result<(), Refusal> {
        let why = self.waits_for.lock().expect("no panic while the text is replaced").clone();
        let seen = self.see(machine, true).await?;
        let uid = seen.vm.as_ref().and_then(|vm| vm.metadata.uid.clone());
        let is_ours = matches!(seen.recorded(), Recorded::Ownership(it)
            if it.operation == Operation::Attach && it.vm == machine && Some(&it.vm_uid) == uid.as_ref());
        let on_their_way = hotplug::on_their_way(seen.vm.as_deref(), seen.vmi.as_deref());
        if !is_ours || on_their_way.get(self.volume.as_str()) != Some(&Direction::In) {
            return Ok(());
        }
        let pause = self.attacher.pace.keep_out(machine, self.volume.as_str(), &why);
        self.wait_for(format!("{why}; it is taken out of the machine again, so that others come into it"));
        Box::pin(self.detach_at_once(machine)).await?;
        Err(Refusal::aborted(format!(
            "{why}; it was taken out of the machine again, so that others come into it, and is added again after {} s",
            pause.as_secs()
        )))
    }

    /// ABORTED while the disk is kept out of the machine.
    pub(super) fn may_come_again(&self, machine: &str) -> Result<(), Refusal> {
        match self.attacher.pace.kept_out(machine, self.volume.as_str()) {
            None => Ok(()),
            Some((why, rest)) => Err(Refusal::aborted(format!(
                "{why}; it was taken out of the machine again, so that others come into it, and is added again after {} s",
                rest.as_secs().max(1)
            ))),
        }
    }

    /// Until when the change waits for other disks on their way into the machine and out of it.
    pub(super) fn waits_for_others(
        &self,
        machine: &str,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
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
