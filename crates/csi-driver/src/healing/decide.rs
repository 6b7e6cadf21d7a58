//! What is to be done for one volume, from all that is seen of it. Pure.
//!
//! ```text
//! VolumeAttachment   volume in the machine     annotation      to do
//! ────────────────   ───────────────────────   ─────────────   ─────────────────────────────────────────────
//! wants a            in a, ready               any             nothing; the attacher is woken where it says "false"
//! wants a            on its way into a         a, attach       the host is awaited, and told of when it is late
//! wants a, "false"   on its way for 30 s       a, attach       the call is made, which takes it out again (attach::give_back)
//! wants a            nowhere                   any             bring it into a: the attachment waits where it must
//! wants a            in b, which nobody wants  any             take it out of b, where b is a node of this cluster whose
//!                                                              kubelet does not have it mounted
//! wants a            in b, which wants it too  any             tell a
//! wants a and b      in both                   any             tell both: neither is provably wrong
//! leaves a           in a                      any             take it out of a
//! any                in a and b                b, leaving a    take it out of a: a call was cut that had added it there
//! leaves a           nowhere                   any             wake the attacher
//! ```
//! The attacher's own call comes first ([`GRACE`]). Nothing here writes around [`crate::attach::ownership`].

use std::time::Duration;

use crate::attach::{
    TAKEN_WITHIN, UNMOUNTED_FOR,
    hotplug::{Disk, is_mounted},
    ownership::{Operation, Recorded, STALE_AFTER},
};

/// A state that lasts so long is nobody's work under way.
pub const GRACE: Duration = Duration::from_secs(2);
/// A state that lasts so long is told.
pub const TELL_AFTER: Duration = Duration::from_secs(8);

/// A VolumeAttachment of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub name: String,
    pub uid: String,
    pub node: String,
    /// The node's ID, which is the name of its machine; unknown where neither CSINode nor attacher noted it.
    pub machine: Option<String>,
    pub is_attached: bool,
    /// It is being deleted.
    pub is_leaving: bool,
    /// Seconds of the guest's clock.
    pub created: i64,
}

/// Whether there is an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    Missing,
    Leaving,
    Yes,
}

/// A machine that has the volume, or that a VolumeAttachment names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    pub uid: String,
    pub machine: There,
    pub disk: Disk,
    /// The running instance has taken the volume from the template.
    pub is_taken: bool,
    /// The machine is a node of this guest cluster.
    pub is_node: bool,
}

/// All that is seen of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub attachments: Vec<Attachment>,
    pub places: Vec<Place>,
    /// The host's claim (PersistentVolumeClaim).
    pub claim: There,
    pub recorded: Recorded,
    /// For how long it has been so.
    pub unchanged_for: Duration,
    /// The reconciler has begun to heal the volume: nobody else is waited for.
    pub is_ours: bool,
}

/// One thing to be done. Attachments are those whose people hear of what hinders it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Decide again when it has lasted longer.
    Look(Duration),
    /// The host is at work on it, since so long.
    Await {
        attachments: Vec<String>,
        machine: String,
    },
    Detach {
        attachments: Vec<String>,
        machine: String,
    },
    Attach {
        attachment: String,
        machine: String,
    },
    /// The external attacher has to look at it.
    Nudge {
        attachment: String,
    },
    Tell {
        attachments: Vec<String>,
        why: Blocked,
    },
}

/// Why nothing can be done before somebody changes something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// Another VolumeAttachment has it.
    InUse {
        machine: String,
        by: String,
    },
    InTwoMachines {
        machines: Vec<String>,
    },
    /// The machine is no node of this cluster.
    Elsewhere {
        machine: String,
    },
    /// Somebody else gave it to the machine, under this name.
    Fixed {
        machine: String,
        volume: String,
    },
    NoMachine {
        machine: String,
        node: String,
    },
    MachineLeaves {
        machine: String,
    },
    NoNodeId {
        node: String,
    },
    NoClaim,
    ClaimLeaves,
}

/// What is to be done; nothing where all is well.
pub fn decide(seen: &Seen) -> Vec<Step> {
    if let Some(place) = seen.left_behind() {
        let attachments = seen.attachments.iter().map(|one| one.name.clone()).collect();
        return vec![seen.in_time(Step::Detach { attachments, machine: place.name.clone() })];
    }
    let mut steps = Vec::new();
    let wanted: Vec<_> = seen.attachments.iter().filter(|one| !one.is_leaving).collect();
    let wanting: Vec<_> = wanted.iter().map(|one| one.name.clone()).collect();
    for leaving in seen.attachments.iter().filter(|one| one.is_leaving) {
        let Some(machine) = &leaving.machine else {
            steps.push(tell(vec![leaving.name.clone()], Blocked::NoNodeId { node: leaving.node.clone() }));
            continue;
        };
        match seen.place(machine) {
            Some(place) if place.disk != Disk::Absent => {
                steps.push(leave(seen, place, with(leaving, &wanting)));
            }
            _ => steps.push(Step::Nudge { attachment: leaving.name.clone() }),
        }
    }
    if !wanted.is_empty() {
        for place in seen.holders().filter(|place| !seen.has_attachment(&place.name)) {
            steps.push(match &place.disk {
                Disk::Fixed(volume) => tell(
                    wanting.clone(),
                    Blocked::Fixed { machine: place.name.clone(), volume: volume.clone() },
                ),
                _ if !place.is_node => {
                    tell(wanting.clone(), Blocked::Elsewhere { machine: place.name.clone() })
                }
                _ => leave(seen, place, wanting.clone()),
            });
        }
        want(seen, &wanted, &mut steps);
    }
    steps.into_iter().map(|step| seen.in_time(step)).collect()
}

/// Whether a step that is under way is to be ended: the reason for it is gone.
pub fn is_void(step: &Step, seen: &Seen) -> bool {
    let wants = |machine: &str| {
        seen.attachments.iter().any(|one| !one.is_leaving && one.machine.as_deref() == Some(machine))
    };
    match step {
        Step::Attach { machine, .. } => !wants(machine),
        Step::Detach { machine, .. } if seen.recorded.is_leaving(machine) => false,
        Step::Detach { machine, .. } => wants(machine),
        _ => false,
    }
}

impl Seen {
    pub fn place(&self, machine: &str) -> Option<&Place> {
        self.places.iter().find(|place| place.name == machine)
    }

    /// The machine that has the volume yet though the annotation says that it is to leave, whoever wants it where.
    fn left_behind(&self) -> Option<&Place> {
        let place = self.place(self.recorded.leaving()?.1)?;
        matches!(place.disk, Disk::InTemplate | Disk::Adding(_) | Disk::Ready).then_some(place)
    }

    /// The running machine that a step takes the volume from, if no VolumeAttachment names it.
    pub(super) fn runs_unwanted<'a>(&self, step: &'a Step) -> Option<&'a str> {
        let Step::Detach { machine, .. } = step else { return None };
        let runs = self.place(machine).is_some_and(|place| place.disk != Disk::InTemplate);
        (runs && !self.has_attachment(machine)).then_some(machine)
    }

    fn holders(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(|place| place.disk != Disk::Absent)
    }

    fn has_attachment(&self, machine: &str) -> bool {
        self.attachments.iter().any(|one| one.machine.as_deref() == Some(machine))
    }

    /// A step when its time has come, else when to look again.
    fn in_time(&self, step: Step) -> Step {
        let due = match &step {
            Step::Look(_) => return step,
            Step::Await { .. } | Step::Tell { .. } => TELL_AFTER,
            Step::Attach { .. } | Step::Detach { .. } | Step::Nudge { .. } if self.is_ours => Duration::ZERO,
            Step::Attach { .. } | Step::Detach { .. } | Step::Nudge { .. } => GRACE,
        };
        match due.checked_sub(self.unchanged_for).filter(|rest| !rest.is_zero()) {
            Some(rest) => Step::Look(rest),
            None => step,
        }
    }
}

/// The volume is to leave this machine.
fn leave(seen: &Seen, place: &Place, attachments: Vec<String>) -> Step {
    let machine = place.name.clone();
    match &place.disk {
        Disk::Fixed(volume) => tell(attachments, Blocked::Fixed { machine, volume: volume.clone() }),
        // whoever removed it from the template waits for the host, and so does everybody else
        Disk::Removing(_) if seen.unchanged_for < STALE_AFTER => Step::Await { attachments, machine },
        _ => Step::Detach { attachments, machine },
    }
}

/// The volume is to be in one of these machines.
fn want(seen: &Seen, wanted: &[&Attachment], steps: &mut Vec<Step>) {
    let is_in = |one: &&&Attachment| {
        one.machine
            .as_deref()
            .and_then(|machine| seen.place(machine))
            .is_some_and(|it| it.disk != Disk::Absent)
    };
    let inside: Vec<_> = wanted.iter().filter(is_in).copied().collect();
    if let [_, _, ..] = inside[..] {
        let machines = inside.iter().filter_map(|one| one.machine.clone()).collect();
        let attachments = inside.iter().map(|one| one.name.clone()).collect();
        steps.push(tell(attachments, Blocked::InTwoMachines { machines }));
        return;
    }
    for one in wanted.iter().filter(|one| one.machine.is_none()) {
        steps.push(tell(vec![one.name.clone()], Blocked::NoNodeId { node: one.node.clone() }));
    }
    let Some(target) = inside.first().copied().or_else(|| chosen(seen, wanted)) else { return };
    let machine = target.machine.clone().unwrap_or_default();
    for other in wanted.iter().filter(|one| one.name != target.name && one.machine.is_some()) {
        let why = Blocked::InUse { machine: machine.clone(), by: target.name.clone() };
        steps.push(tell(vec![other.name.clone()], why));
    }
    let place = seen.place(&machine);
    let disk = place.map_or(&Disk::Absent, |place| &place.disk);
    let is_elsewhere = seen.holders().any(|place| place.name != machine);
    let attach = Step::Attach { attachment: target.name.clone(), machine: machine.clone() };
    let about = vec![target.name.clone()];
    let is_recorded_leaving = matches!(&seen.recorded, Recorded::Ownership(ownership)
        if ownership.operation == Operation::Detach && place.is_some_and(|place| place.uid == ownership.vm_uid));
    let is_recorded_elsewhere = matches!(&seen.recorded, Recorded::Ownership(ownership)
        if place.is_some_and(|place| place.uid != ownership.vm_uid));
    let there = place.map_or(There::Missing, |place| place.machine);
    let step = match (there, disk) {
        (There::Missing, _) => {
            tell(about, Blocked::NoMachine { machine: machine.clone(), node: target.node.clone() })
        }
        (There::Leaving, Disk::Absent) => tell(about, Blocked::MachineLeaves { machine: machine.clone() }),
        (_, Disk::Fixed(volume)) => {
            tell(about, Blocked::Fixed { machine: machine.clone(), volume: volume.clone() })
        }
        // the other machine's step comes first
        _ if is_elsewhere => return,
        (_, Disk::Absent) if seen.claim == There::Missing => tell(about, Blocked::NoClaim),
        (_, Disk::Absent) if seen.claim == There::Leaving => tell(about, Blocked::ClaimLeaves),
        (_, Disk::Ready | Disk::InTemplate) if is_recorded_leaving || is_recorded_elsewhere => attach,
        (_, Disk::Ready | Disk::InTemplate) if target.is_attached => return,
        (_, Disk::Ready | Disk::InTemplate) => Step::Nudge { attachment: target.name.clone() },
        // the call takes it out again, so that others may come; where it is attached the machine was restarted with it
        (_, Disk::Adding(progress))
            if !target.is_attached && !is_mounted(progress) && seen.unchanged_for >= UNMOUNTED_FOR =>
        {
            attach
        }
        (_, Disk::Adding(_)) if place.is_some_and(|place| place.is_taken) => {
            Step::Await { attachments: about, machine: machine.clone() }
        }
        (_, Disk::Adding(_)) if seen.unchanged_for < TAKEN_WITHIN => {
            Step::Look(TAKEN_WITHIN.saturating_sub(seen.unchanged_for))
        }
        _ => attach,
    };
    steps.push(step);
}

/// Of several that want the volume, which is nowhere: the one that has it by its status, then by the annotation, then
/// the oldest. One whose machine is gone comes last.
fn chosen<'a>(seen: &Seen, wanted: &[&'a Attachment]) -> Option<&'a Attachment> {
    let recorded = match &seen.recorded {
        Recorded::Ownership(ownership) if ownership.operation == Operation::Attach => Some(&ownership.vm_uid),
        _ => None,
    };
    let rank = |one: &&&Attachment| {
        let place = one.machine.as_deref().and_then(|machine| seen.place(machine));
        let is_recorded = place.is_some_and(|place| Some(&place.uid) == recorded);
        let is_gone = place.is_none_or(|place| place.machine != There::Yes);
        (is_gone, !one.is_attached, !is_recorded, one.created, one.name.clone())
    };
    wanted.iter().filter(|one| one.machine.is_some()).min_by_key(rank).copied()
}

fn with(leaving: &Attachment, wanting: &[String]) -> Vec<String> {
    let mut all = vec![leaving.name.clone()];
    all.extend_from_slice(wanting);
    all
}

fn tell(attachments: Vec<String>, why: Blocked) -> Step {
    Step::Tell { attachments, why }
}

#[cfg(test)]
mod tests;
