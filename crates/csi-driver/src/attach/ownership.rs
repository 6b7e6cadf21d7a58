//! Which machine a volume belongs to, by an annotation of the host's claim (PersistentVolumeClaim). Pure.
//! The Go driver has nothing of the kind (docs/contract/csi-driver.md#claims).
//!
//! ```text
//! attach to a ─► {a, attach} ─► disk added to a … in use … detach ─► {a, detach} ─► disk seen gone ─► no annotation
//! ```
//! The annotation ([`harvester_api::annotations::CSI_ATTACH`]) is written before a machine is touched, on the version of
//! the PersistentVolumeClaim that was decided on, so of two processes one loses. It stays while the disk is in the
//! machine. A process may die or stop between any
//! two of its writes, so what an annotation says of its writer ends: a writer begins no write later than [`WRITES_FOR`]
//! after its annotation, and after [`STALE_AFTER`] without a change others may take over. A write that was on its way
//! all the time fails on the version of the machine, which whoever takes over changes first ([`Step::TakeOver`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::volume::name::HostName;

/// The writer of an annotation touches the machine for so long, by its own clock, from the moment before the write.
pub const WRITES_FOR: Duration = Duration::from_secs(30);
/// An annotation counts as left behind when whoever looks has seen the PersistentVolumeClaim unchanged for so long, by
/// its own clock. No clocks are compared.
pub const STALE_AFTER: Duration = Duration::from_secs(60);
/// Another detachment of the same volume from the same machine that wrote its annotation so lately is alive, and removes
/// it: two that write one after the other would never end.
pub const JOINED_FOR: Duration = Duration::from_secs(1);
/// More than any annotation of ours has.
const LONGEST: usize = 2048;

/// What is to become of the volume in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// It is being added, or it is there.
    Attach,
    /// It is being removed.
    Detach,
}

/// One VirtualMachine. One that was made again under its name is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub name: String,
    pub uid: String,
}

/// The content of the annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ownership {
    pub vm: String,
    pub vm_uid: String,
    #[serde(rename = "op")]
    pub operation: Operation,
    /// The process that wrote it, for people, and how many it has written: no two writes are equal, so that each gives
    /// the PersistentVolumeClaim a new version, from which others count [`STALE_AFTER`].
    #[serde(default)]
    pub holder: String,
    /// Another machine, to which a write of a former holder may still be on its way ([`Step::TakeOver`]). Nobody adds
    /// the disk or removes the annotation before that write can succeed no more, also not after the death of the
    /// process that began to take over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Another machine, to which a call of ours added the disk while a driver that ignores annotations brought it to
    /// `vm`. Nobody was told that it is there, so whoever reads this takes it out, also after the death of that call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<String>,
    /// How the volume is used in the machine; absent for a detachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// How a volume is used in its machine. CSI asks for ALREADY_EXISTS where it is there for another use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// CSI's access mode, and `block` or `mount`.
    pub access: String,
    pub read_only: bool,
}

impl Ownership {
    pub fn new(machine: Machine, operation: Operation) -> Self {
        let Machine { name: vm, uid: vm_uid } = machine;
        Self { vm, vm_uid, operation, holder: String::new(), from: None, leaving: None, usage: None }
    }

    /// Reads the annotation. `None` for what no process of ours writes.
    pub fn parse(text: &str) -> Option<Self> {
        let ownership: Self = (text.len() <= LONGEST).then(|| serde_json::from_str(text).ok()).flatten()?;
        // they become parts of paths
        let is_name = |name: &str| HostName::from_handle(name).is_some();
        let others = [&ownership.from, &ownership.leaving];
        (is_name(&ownership.vm) && others.into_iter().flatten().all(|name| is_name(name)))
            .then_some(ownership)
    }

    pub(super) fn is_for(&self, machine: &Machine) -> bool {
        self.vm_uid == machine.uid
    }
}

/// What is known of the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    Nothing,
    Ownership(Ownership),
    /// Somebody else's text, or that of a later version.
    Unreadable,
}

impl Recorded {
    /// The ownership, and the machine that the disk is to leave, whoever wants it where ([`Ownership::leaving`]).
    pub fn leaving(&self) -> Option<(&Ownership, &str)> {
        let Self::Ownership(ownership) = self else { return None };
        let leaving = ownership.leaving.as_deref().filter(|name| *name != ownership.vm)?;
        Some((ownership, leaving))
    }

    pub fn is_leaving(&self, machine: &str) -> bool {
        self.leaving().is_some_and(|(_, leaving)| leaving == machine)
    }
}

/// What an uncached read of the annotation's machine has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum There {
    #[default]
    NotAsked,
    /// There is no machine of that UID.
    NoMachine,
    /// The machine's template, its running instance or the instance's status has the volume.
    Volume,
    /// None of them has it.
    NoVolume,
}

/// Machines with the volume, without the one that is wanted. Volumes of the Go driver have no annotation, and it moves
/// those that have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Elsewhere {
    #[default]
    NotAsked,
    /// By watches, which may be old.
    Watched(Vec<String>),
    /// By an uncached list of all machines.
    In(Vec<String>),
}

/// What is known when somebody wants the volume in a machine.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    pub wanted: &'a Machine,
    pub recorded: Recorded,
    /// For how long this process has seen the PersistentVolumeClaim at this version.
    pub unchanged_for: Duration,
    pub there: There,
    pub elsewhere: Elsewhere,
    /// The wanted machine lacks the disk, and nothing stands in the way of it.
    pub is_to_be_added: bool,
}

/// What to do next for an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The annotation is there: add the disk, or find that it is there.
    Join,
    /// Write the annotation on the version that was seen, then [`Step::Join`].
    Annotate,
    /// Read the annotation's machine afresh, then decide again.
    ReadMachine(String),
    /// Look by watches which machines have the volume, then decide again.
    LookAtMachines,
    /// List all machines afresh, then decide again.
    ListMachines,
    /// Write the annotation; then change the version of the former machine, so that a write that is still on its way
    /// to it fails; then read it, and give the annotation back where the volume is there after all.
    TakeOver { from: String },
    /// Another process is at work. CSI's code is ABORTED: the caller comes again.
    Wait { machine: Option<String> },
    /// CSI's code is FAILED_PRECONDITION, with the machines' names.
    InUse { machines: Vec<String> },
}

/// What to do next so that the volume comes into the wanted machine, and into no other.
pub fn attach(seen: &Seen<'_>) -> Step {
    let step = by_annotation(seen);
    if !adds(seen, &step) {
        return step;
    }
    // the annotation says where processes of ours have the volume; the Go driver may have moved it since
    match &seen.elsewhere {
        Elsewhere::NotAsked => Step::LookAtMachines,
        Elsewhere::Watched(machines) | Elsewhere::In(machines) if machines.is_empty() => step,
        Elsewhere::Watched(_) => Step::ListMachines,
        Elsewhere::In(machines) => Step::InUse { machines: machines.clone() },
    }
}

/// Whether the step adds the disk, on the word of an annotation. One that is to be settled is put right first.
fn adds(seen: &Seen<'_>, step: &Step) -> bool {
    let Recorded::Ownership(ownership) = &seen.recorded else { return false };
    let is_settled = match step {
        Step::Join => ownership.from.is_none(),
        Step::Annotate => ownership.from.is_none() && former(ownership, seen).is_none(),
        _ => false,
    };
    is_settled && seen.is_to_be_added
}

/// The machine to which a write may be on its way that was begun for an annotation of before ([`Ownership::from`]).
pub fn former<'a>(ownership: &'a Ownership, seen: &Seen<'_>) -> Option<&'a str> {
    (!ownership.is_for(seen.wanted) && seen.there != There::NoMachine).then_some(&ownership.vm)
}

fn by_annotation(seen: &Seen<'_>) -> Step {
    let is_stale = seen.unchanged_for >= STALE_AFTER;
    match &seen.recorded {
        Recorded::Unreadable if !is_stale => Step::Wait { machine: None },
        Recorded::Nothing | Recorded::Unreadable => match &seen.elsewhere {
            Elsewhere::NotAsked | Elsewhere::Watched(_) => Step::ListMachines,
            Elsewhere::In(machines) if machines.is_empty() => Step::Annotate,
            Elsewhere::In(machines) => Step::InUse { machines: machines.clone() },
        },
        Recorded::Ownership(ownership) if ownership.is_for(seen.wanted) => match ownership.operation {
            Operation::Attach => Step::Join,
            // the machine is read so that a detachment that is complete is not waited for
            Operation::Detach => match seen.there {
                There::NotAsked => Step::ReadMachine(ownership.vm.clone()),
                There::NoVolume | There::NoMachine => Step::Annotate,
                There::Volume => wait_or_take_over(ownership, is_stale),
            },
        },
        Recorded::Ownership(ownership) => match (seen.there, ownership.operation) {
            (There::NotAsked, _) => Step::ReadMachine(ownership.vm.clone()),
            // a machine that is gone takes no write any more
            (There::NoMachine, _) | (There::NoVolume, Operation::Detach) => Step::Annotate,
            (There::Volume, Operation::Attach) => Step::InUse { machines: vec![ownership.vm.clone()] },
            (There::Volume, Operation::Detach) => Step::Wait { machine: Some(ownership.vm.clone()) },
            // its writer may be about to add the disk
            (There::NoVolume, Operation::Attach) => wait_or_take_over(ownership, is_stale),
        },
    }
}

fn wait_or_take_over(ownership: &Ownership, is_stale: bool) -> Step {
    let machine = ownership.vm.clone();
    if is_stale { Step::TakeOver { from: machine } } else { Step::Wait { machine: Some(machine) } }
}

/// What to do next for a detachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Remove the disk from this machine, or find that it is gone; then remove the annotation.
    Join,
    /// Write the annotation, then [`Removal::Join`].
    Annotate,
    /// Nothing is to be done for this machine: the volume belongs to another, or to none.
    Done,
    /// Somebody adds the disk to this machine right now: the caller comes again.
    Wait,
    /// Read the machine afresh, then decide again.
    ReadMachine,
    /// Remove the annotation: it is of a machine that is gone, and the one of its name has nothing of the volume.
    Forget,
}

/// What to do next so that the volume leaves `machine`; `there` is what the machine has.
pub fn detach(machine: &Machine, recorded: &Recorded, there: There) -> Removal {
    match recorded {
        Recorded::Ownership(ownership) if ownership.is_for(machine) => match ownership.operation {
            Operation::Detach => Removal::Join,
            Operation::Attach => Removal::Annotate,
        },
        _ => match there {
            There::NotAsked => Removal::ReadMachine,
            // two machines of one name are never there at once
            There::NoMachine | There::NoVolume if matches!(recorded, Recorded::Ownership(it) if it.vm == machine.name) => {
                Removal::Forget
            }
            There::NoMachine | There::NoVolume => Removal::Done,
            // the annotation says another machine, and this one has the disk too: it has to leave
            There::Volume if matches!(recorded, Recorded::Ownership(_)) => Removal::Join,
            There::Volume if *recorded == Recorded::Unreadable => Removal::Wait,
            There::Volume => Removal::Annotate,
        },
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Operation::{Attach, Detach};
    use super::*;

    const FRESH: Duration = Duration::from_secs(59);

    fn machine(name: &str) -> Machine {
        Machine { name: name.to_owned(), uid: format!("uid-{name}") }
    }

    fn ownership(name: &str, operation: Operation) -> Recorded {
        Recorded::Ownership(Ownership {
            holder: "pod-1".to_owned(),
            ..Ownership::new(machine(name), operation)
        })
    }

    fn step(recorded: Recorded, unchanged_for: Duration, there: There, elsewhere: Elsewhere) -> Step {
        let wanted = &machine("a");
        attach(&Seen { wanted, recorded, unchanged_for, there, elsewhere, is_to_be_added: false })
    }

    fn elsewhere(machines: &[&str], is_fresh: bool) -> Elsewhere {
        let machines = machines.iter().map(|&name| name.to_owned()).collect();
        if is_fresh { Elsewhere::In(machines) } else { Elsewhere::Watched(machines) }
    }

    /// The annotation of a taker that died before it had settled with `b`.
    fn unsettled() -> Recorded {
        let Recorded::Ownership(ownership) = ownership("a", Attach) else { unreachable!() };
        Recorded::Ownership(Ownership { from: Some("b".to_owned()), ..ownership })
    }

    // docs/contract/csi-driver.md#claims
    #[rstest]
    #[case::not_looked(ownership("a", Attach), There::NotAsked, Elsewhere::NotAsked, Step::LookAtMachines)]
    #[case::alone(ownership("a", Attach), There::NotAsked, elsewhere(&[], false), Step::Join)]
    #[case::an_old_watch(ownership("a", Attach), There::NotAsked, elsewhere(&["b"], false), Step::ListMachines)]
    #[case::alone_after_all(ownership("a", Attach), There::NotAsked, elsewhere(&[], true), Step::Join)]
    #[case::moved(ownership("a", Attach), There::NotAsked, elsewhere(&["b"], true), in_use("b"))]
    #[case::detached_here(ownership("a", Detach), There::NoVolume, Elsewhere::NotAsked, Step::LookAtMachines)]
    #[case::detached_here_alone(ownership("a", Detach), There::NoVolume, elsewhere(&[], false), Step::Annotate)]
    #[case::detached_here_and_moved(ownership("a", Detach), There::NoVolume, elsewhere(&["b"], true), in_use("b"))]
    #[case::of_a_machine_that_is_gone(
        ownership("c", Attach),
        There::NoMachine,
        Elsewhere::NotAsked,
        Step::LookAtMachines
    )]
    #[case::of_a_gone_machine_and_moved(ownership("c", Attach), There::NoMachine, elsewhere(&["b"], true), in_use("b"))]
    #[case::to_be_settled(unsettled(), There::NotAsked, Elsewhere::NotAsked, Step::Join)]
    // the next turn settles, and adds
    #[case::left_another(ownership("b", Detach), There::NoVolume, Elsewhere::NotAsked, Step::Annotate)]
    #[case::nobody_knows(Recorded::Nothing, There::NotAsked, Elsewhere::NotAsked, Step::ListMachines)]
    #[case::nobody_knows_and_a_watch_says_nowhere(Recorded::Nothing, There::NotAsked, elsewhere(&[], false), Step::ListMachines)]
    #[case::nobody_knows_and_nowhere(Recorded::Nothing, There::NotAsked, elsewhere(&[], true), Step::Annotate)]
    fn a_disk_is_added_where_no_other_machine_has_it_and_an_old_watch_refuses_nothing(
        #[case] recorded: Recorded,
        #[case] there: There,
        #[case] elsewhere: Elsewhere,
        #[case] expected: Step,
    ) {
        let seen = Seen {
            wanted: &machine("a"),
            recorded,
            unchanged_for: FRESH,
            there,
            elsewhere,
            is_to_be_added: true,
        };
        assert_eq!(attach(&seen), expected);
        if expected == Step::LookAtMachines {
            let there_already = Seen { is_to_be_added: false, ..seen };
            assert!(matches!(attach(&there_already), Step::Join | Step::Annotate));
        }
    }

    fn read(name: &str) -> Step {
        Step::ReadMachine(name.to_owned())
    }

    fn wait(name: &str) -> Step {
        Step::Wait { machine: Some(name.to_owned()) }
    }

    fn take_over(name: &str) -> Step {
        Step::TakeOver { from: name.to_owned() }
    }

    fn in_use(name: &str) -> Step {
        Step::InUse { machines: vec![name.to_owned()] }
    }

    #[rstest]
    #[case::nobody_knows(Recorded::Nothing, FRESH, There::NotAsked, Step::ListMachines)]
    #[case::joined(ownership("a", Attach), FRESH, There::NotAsked, Step::Join)]
    #[case::joined_when_old(ownership("a", Attach), STALE_AFTER, There::NotAsked, Step::Join)]
    #[case::leaving_here(ownership("a", Detach), FRESH, There::NotAsked, read("a"))]
    #[case::still_leaving_here(ownership("a", Detach), FRESH, There::Volume, wait("a"))]
    #[case::stuck_leaving_here(ownership("a", Detach), STALE_AFTER, There::Volume, take_over("a"))]
    #[case::left(ownership("a", Detach), FRESH, There::NoVolume, Step::Annotate)]
    #[case::anothers(ownership("b", Attach), FRESH, There::NotAsked, read("b"))]
    #[case::in_another(ownership("b", Attach), FRESH, There::Volume, in_use("b"))]
    #[case::in_another_for_long(ownership("b", Attach), STALE_AFTER, There::Volume, in_use("b"))]
    #[case::on_its_way_to_another(ownership("b", Attach), FRESH, There::NoVolume, wait("b"))]
    #[case::never_came_to_another(ownership("b", Attach), STALE_AFTER, There::NoVolume, take_over("b"))]
    #[case::other_is_gone(ownership("b", Attach), FRESH, There::NoMachine, Step::Annotate)]
    #[case::leaving_another(ownership("b", Detach), STALE_AFTER, There::Volume, wait("b"))]
    #[case::left_another(ownership("b", Detach), FRESH, There::NoVolume, Step::Annotate)]
    #[case::strange_text(Recorded::Unreadable, FRESH, There::NotAsked, Step::Wait { machine: None })]
    #[case::strange_text_for_long(Recorded::Unreadable, STALE_AFTER, There::NotAsked, Step::ListMachines)]
    fn a_volume_comes_into_a_machine_only_where_no_other_can_have_it(
        #[case] recorded: Recorded,
        #[case] unchanged_for: Duration,
        #[case] there: There,
        #[case] expected: Step,
    ) {
        assert_eq!(step(recorded, unchanged_for, there, Elsewhere::NotAsked), expected);
    }

    #[rstest]
    #[case(vec![], Step::Annotate)]
    #[case(vec!["b".to_owned()], in_use("b"))]
    fn a_volume_of_the_go_driver_is_where_the_list_of_machines_says(
        #[case] machines: Vec<String>,
        #[case] expected: Step,
    ) {
        assert_eq!(step(Recorded::Nothing, FRESH, There::NotAsked, Elsewhere::In(machines)), expected);
    }

    /// An attachment to a machine that was deleted, and made again under its name.
    fn former(name: &str) -> Recorded {
        let Recorded::Ownership(ownership) = ownership(name, Attach) else { unreachable!() };
        Recorded::Ownership(Ownership { vm_uid: "uid-former".to_owned(), ..ownership })
    }

    #[test]
    fn a_machine_that_was_made_again_under_its_name_is_another() {
        let former = former("a");
        assert_eq!(step(former.clone(), FRESH, There::NotAsked, Elsewhere::NotAsked), read("a"));
        assert_eq!(step(former, FRESH, There::NoMachine, Elsewhere::NotAsked), Step::Annotate);
    }

    #[rstest]
    #[case::ours(ownership("a", Attach), There::NotAsked, Removal::Annotate)]
    #[case::under_way(ownership("a", Detach), There::NotAsked, Removal::Join)]
    #[case::another(ownership("b", Attach), There::NotAsked, Removal::ReadMachine)]
    #[case::another_alone(ownership("b", Attach), There::NoVolume, Removal::Done)]
    #[case::both(ownership("b", Attach), There::Volume, Removal::Join)]
    #[case::of_the_go_driver(Recorded::Nothing, There::Volume, Removal::Annotate)]
    #[case::nowhere(Recorded::Nothing, There::NoVolume, Removal::Done)]
    #[case::no_machine(Recorded::Nothing, There::NoMachine, Removal::Done)]
    #[case::strange_text(Recorded::Unreadable, There::Volume, Removal::Wait)]
    #[case::of_a_former_machine(former("a"), There::NoVolume, Removal::Forget)]
    #[case::of_a_former_machine_not_read(former("a"), There::NotAsked, Removal::ReadMachine)]
    #[case::of_a_former_machine_and_there_again(former("a"), There::Volume, Removal::Join)]
    #[case::of_another_former_machine(former("b"), There::NoVolume, Removal::Done)]
    fn a_volume_leaves_the_machine_that_it_is_in(
        #[case] recorded: Recorded,
        #[case] there: There,
        #[case] expected: Removal,
    ) {
        assert_eq!(detach(&machine("a"), &recorded, there), expected);
    }

    #[test]
    fn the_annotation_is_json_with_the_names_of_the_contract() {
        let Recorded::Ownership(ownership) = ownership("a", Attach) else { unreachable!() };
        let text = serde_json::to_string(&ownership).unwrap();
        assert_eq!(text, r#"{"vm":"a","vmUid":"uid-a","op":"attach","holder":"pod-1"}"#);
        assert_eq!(Ownership::parse(&text), Some(ownership));
    }

    #[rstest]
    #[case("")]
    #[case("a")]
    #[case(r#"{"vm":"a"}"#)]
    #[case(r#"{"vm":"a","vmUid":"u","op":"move"}"#)]
    #[case::no_name(r#"{"vm":"","vmUid":"u","op":"attach"}"#)]
    #[case::a_path(r#"{"vm":"../a","vmUid":"u","op":"attach"}"#)]
    #[case::no_name_of_another(r#"{"vm":"a","vmUid":"u","op":"attach","from":"a b"}"#)]
    #[case::no_name_of_one_that_leaves(r#"{"vm":"a","vmUid":"u","op":"attach","leaving":"/b"}"#)]
    #[case(format!(r#"{{"vm":"{}","vmUid":"u","op":"attach"}}"#, "x".repeat(3000)))]
    fn what_no_process_of_ours_writes_is_no_annotation_of_ours(#[case] text: impl AsRef<str>) {
        assert_eq!(Ownership::parse(text.as_ref()), None);
    }
}
