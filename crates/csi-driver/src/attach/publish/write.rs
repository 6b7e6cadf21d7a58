//! The writes of an attachment: the annotation, then the machine.

use std::sync::Arc;

use harvester_api::VirtualMachine;
use tokio::time::Instant;
use tonic::Code;

use super::decide::{Write, room};
use crate::{
    attach::{
        hotplug::{self, Direction, Disk},
        others::Added,
        ownership::{Machine, Operation, Ownership, Recorded, Usage, WRITES_FOR},
        pace::TOGETHER_WITHIN,
        plug::{self, Written},
        session::{Seen, Session, class, is_bound},
        settle::Settled,
    },
    refusal::Refusal,
};

/// What came of the writes.
pub(super) enum Wrote {
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

impl Session<'_> {
    pub(super) async fn write(
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
        if write.add && self.go_driver_may_have_it(claim).await {
            let others = self.machines_with_volume(Some(machine), true).await?;
            if !others.is_empty() {
                // of which the watches had not told
                self.call.relist_silent();
                self.attacher.pace.gives_way(machine, self.volume.as_str());
                return Err(self.in_use(&others));
            }
        }
        // An annotation keeps nodes from the export. The look after it is for one that is switched on meanwhile.
        if write.add {
            self.is_not_exported(claim).await?;
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
        let most = self.attacher.options.max_volumes_per_node;
        let room = if is_new { room(hotplug::count(vm), most) } else { usize::MAX };
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
            let unbound_class = class(&claim).filter(|_| !is_bound(&claim));
            self.attacher.pace.wrote(machine, self.volume.as_str(), Direction::In, unbound_class);
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
                let how = Added::OnVersion(plug::version(&vm));
                Ok(Wrote::Added { vm: self.known_machine(*vm).await, how, begun })
            }
            Written::Done(None) => match self.read_machine(machine).await? {
                Some(vm) => Ok(Wrote::Added { vm, how: Added::Blindly, begun }),
                None => Ok(Wrote::Again),
            },
            Written::Refused { version, why } => Ok(Wrote::Refused { version, why }),
            Written::OtherWay(why) => Ok(Wrote::OtherWay(why)),
        }
    }
}
