//! Drivers that ignore the annotation, as the Go driver does, may bring the volume into another machine at the same moment
//! (docs/contract/csi-driver.md#claims). No call answers then that the volume is attached. A disk that this call added is
//! in use by nobody yet: it goes, and the annotation says where the volume is.

use super::{
    claim::{Claim, Machine, Operation, Recorded},
    hotplug::{self, Disk},
    plug::{self, Written},
    session::Session,
};
use crate::refusal::Refusal;

/// Whether the call has added the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    No,
    /// On a version of the machine that it had read before.
    OnVersion,
    /// By a subresource, which knows no versions.
    Blindly,
}

/// What becomes of the annotation when another machine has the volume, which this call has added to `machine`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    /// Somebody else's: it stays.
    Kept,
    /// It names the other machine.
    Is(Claim),
    /// The other machine is gone but for its instance: it names none, and others look where the volume is.
    Unknown,
}

/// The annotation that is true once the disk has left `machine` for `other`.
fn truth(machine: &Machine, recorded: &Recorded, other: Option<Machine>) -> Truth {
    match recorded {
        Recorded::Claim(claim) if claim.is_for(machine) && claim.operation == Operation::Attach => {
            match other {
                Some(Machine { name, uid }) => Truth::Is(Claim {
                    vm: name,
                    vm_uid: uid,
                    operation: Operation::Attach,
                    holder: String::new(),
                    from: None,
                    usage: None,
                }),
                None => Truth::Unknown,
            }
        }
        _ => Truth::Kept,
    }
}

impl Session<'_> {
    /// The end of an attachment: refused where another machine has the volume too.
    pub(super) async fn alone_in(&self, machine: &str, added: Added) -> Result<(), Refusal> {
        let is_sure = added == Added::Blindly;
        if self.others(machine, is_sure).await?.is_empty() {
            return Ok(());
        }
        // what a watch says may be old
        let others = self.machines_with_volume(Some(machine), true).await?;
        if others.is_empty() {
            return Ok(());
        }
        let mut why = self.in_use(&others);
        if added != Added::No
            && let Err(stays) = self.give_way(machine, &others[0]).await
        {
            // the attacher must not take the volume for detached
            let message =
                format!("{}; it could not be taken out of this machine again: {stays}", why.message);
            why = Refusal::aborted(message);
        }
        Err(why)
    }

    /// Other machines with the volume, as far as it is known without a request, unless `is_sure`.
    async fn others(&self, machine: &str, is_sure: bool) -> Result<Vec<String>, Refusal> {
        if is_sure || self.call.machines().await.is_some() {
            return self.machines_with_volume(Some(machine), is_sure).await;
        }
        // the first call of a process watches the instances alone
        match self.call.instances().await {
            Some(_) => self.with_volume([], Some(machine), false).await,
            None => Ok(vec![]),
        }
    }

    /// Takes the disk that this call added out of the machine. The annotation comes first: after it no process of ours
    /// adds the disk here again.
    async fn give_way(&self, machine: &str, other: &str) -> Result<(), Refusal> {
        let _turn = self.attacher.turns.of(machine).await;
        let (mut tries, mut refused, mut has_changed_way) = (0, None, false);
        loop {
            let (sight, other) = tokio::try_join!(self.see(machine, true), self.read_machine(other))?;
            let Some(vm) = &sight.vm else { return Ok(()) };
            if let Some((version, why)) = refused.take()
                && plug::version(vm) == version
            {
                return Err(why);
            }
            tries = self.again(tries, machine)?;
            let this = Machine { name: machine.to_owned(), uid: vm.metadata.uid.clone().unwrap_or_default() };
            let other = other.map(|other| Machine {
                name: other.metadata.name.clone().unwrap_or_default(),
                uid: other.metadata.uid.clone().unwrap_or_default(),
            });
            if let Some(claim) = &sight.claim {
                let written = match truth(&this, &sight.recorded(), other) {
                    Truth::Kept => true,
                    Truth::Is(truth) => self.write_claim(claim, Some(truth)).await?.is_some(),
                    Truth::Unknown => self.write_claim(claim, None).await?.is_some(),
                };
                if !written {
                    continue;
                }
            }
            match hotplug::disk(Some(vm), sight.vmi.as_deref(), self.volume.as_str()) {
                Disk::Ready | Disk::InTemplate | Disk::Adding(_) => {}
                Disk::Absent | Disk::Removing(_) | Disk::Fixed(_) => return Ok(()),
            }
            match self.attacher.plug.remove(vm, self.volume.as_str()).await? {
                Written::Done(_) => return Ok(()),
                Written::Refused { version, why } => refused = Some((version, why)),
                Written::OtherWay(why) if has_changed_way => return Err(why),
                Written::OtherWay(_) => has_changed_way = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Operation::{Attach, Detach};
    use super::*;

    fn machine(name: &str) -> Machine {
        Machine { name: name.to_owned(), uid: format!("uid-{name}") }
    }

    fn claim(name: &str, operation: Operation) -> Claim {
        let Machine { name: vm, uid: vm_uid } = machine(name);
        Claim { vm, vm_uid, operation, holder: String::new(), from: None, usage: None }
    }

    #[rstest]
    #[case::ours(Recorded::Claim(claim("a", Attach)), Some("b"), Truth::Is(claim("b", Attach)))]
    #[case::ours_and_the_other_is_gone(Recorded::Claim(claim("a", Attach)), None, Truth::Unknown)]
    #[case::somebody_detaches_here(Recorded::Claim(claim("a", Detach)), Some("b"), Truth::Kept)]
    #[case::somebody_wrote_the_other(Recorded::Claim(claim("b", Attach)), Some("b"), Truth::Kept)]
    #[case::nobody(Recorded::Nothing, Some("b"), Truth::Kept)]
    #[case::strange_text(Recorded::Unreadable, Some("b"), Truth::Kept)]
    fn an_annotation_of_ours_names_the_machine_that_keeps_the_volume(
        #[case] recorded: Recorded,
        #[case] other: Option<&str>,
        #[case] expected: Truth,
    ) {
        assert_eq!(truth(&machine("a"), &recorded, other.map(machine)), expected);
    }
}
