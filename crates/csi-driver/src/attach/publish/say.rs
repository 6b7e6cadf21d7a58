//! What an attachment says when it is refused, and while it waits.

use tokio::time::Instant;
use tonic::Code;

use super::decide::{Facts, For, Why};
use crate::{
    attach::{
        BLOCKED_FOR, hotplug,
        ownership::{STALE_AFTER, Usage},
        session::Session,
    },
    refusal::Refusal,
};

impl Session<'_> {
    pub(super) fn refusal(&self, machine: &str, why: Why) -> Refusal {
        let host = &self.attacher.host;
        let (claim, vm) = (host.claim_name(self.volume), host.machine_name(machine));
        match why {
            Why::NoClaim => Refusal::not_found(format!("there is no {claim}")),
            Why::ClaimIsDeleted => {
                Refusal::precondition(format!("{claim} is being deleted: wait for a new volume"))
            }
            Why::Owner(why) => why,
            Why::Record(why) => Refusal::invalid(why),
            Why::NoMachine => Refusal::not_found(format!("there is no {vm}")),
            Why::MachineIsDeleted => {
                Refusal::precondition(format!("{vm} is being deleted: the pod needs another node"))
            }
            Why::Fixed(volume) => Refusal::precondition(format!(
                "{vm} has the volume as {volume:?}, which this driver did not add: remove it from the machine first"
            )),
            Why::Full(all, ours) => Refusal::new(
                Code::ResourceExhausted,
                format!("{vm} has {all} volumes, {ours} of them hot-plugged, and may have no more"),
            ),
            Why::OtherUse(usage) => Refusal::new(
                Code::AlreadyExists,
                format!(
                    "volume {} is in {vm} for another use ({}): detach it first",
                    self.volume,
                    describe(&usage)
                ),
            ),
            Why::InUse(machines) => self.in_use(&machines),
        }
    }

    pub(in crate::attach) fn in_use(&self, machines: &[String]) -> Refusal {
        let machines: Vec<_> = machines.iter().map(|name| self.attacher.host.machine_name(name)).collect();
        Refusal::precondition(format!(
            "volume {} is in {}: it is in one machine at a time, so detach it there first",
            self.volume,
            machines.join(" and ")
        ))
    }

    /// Says whom the call waits for. Returns until when.
    pub(super) async fn waits(&self, facts: &Facts<'_>, whom: For) -> Option<Instant> {
        let (host, volume, machine) = (&self.attacher.host, self.volume, facts.machine);
        if matches!(whom, For::Leaves(_) | For::Process(..)) {
            self.attacher.pace.gives_way(machine, volume.as_str());
        }
        match whom {
            For::Binding => {
                let name = host.claim_name(volume);
                self.wait_for(format!("{name} is not bound yet: look at its Events and its class"));
            }
            For::Other(other) => self.wait_for(format!(
                "volume {volume} comes into {} after {}: volumes that did not come before, and unbound ones of their class, \
                 come one at a time, after all others",
                host.machine_name(machine),
                host.claim_name(other)
            )),
            For::Migration => {
                let (vm, vmi) = (facts.seen.vm.as_deref(), facts.seen.vmi.as_deref());
                let progress = hotplug::how_far(vmi, volume.as_str());
                self.explain("is not in", machine, &progress, vm, vmi, BLOCKED_FOR).await;
            }
            For::Removal(progress) => {
                let (vm, vmi) = (facts.seen.vm.as_deref(), facts.seen.vmi.as_deref());
                self.explain("is still in", machine, &progress, vm, vmi, BLOCKED_FOR).await;
            }
            For::Leaves(other) => self.wait_for(format!(
                "volume {volume} is on its way out of {}: look at VirtualMachineInstance {}/{other} on the host",
                host.machine_name(&other),
                host.namespace()
            )),
            For::Process(other, rest) => {
                let other =
                    other.map_or_else(String::new, |other| format!(" for {}", host.machine_name(other)));
                self.wait_for(format!(
                    "another process of this driver works on volume {volume}{other}: its annotation on {} counts as left \
                     behind when it has not changed for {} s",
                    host.claim_name(volume),
                    STALE_AFTER.as_secs()
                ));
                return Some(Instant::now() + rest);
            }
        }
        None
    }
}

fn describe(usage: &Usage) -> String {
    format!("{}{}", usage.access, if usage.read_only { ", read-only" } else { "" })
}
