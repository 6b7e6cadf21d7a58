//! Drivers that ignore the annotation, as the Go driver does, may bring the volume into another machine at the same moment
//! (docs/contract/csi-driver.md#claims). No call answers then that the volume is attached. A disk that this call added is
//! in use by nobody yet: it goes, and the annotation says where the volume is. It says too what is to go, until it has: a
//! process may die between the two writes.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::{
    hotplug::{self, Disk},
    ownership::{Machine, Operation, Ownership, Recorded},
    plug::{self, Written},
    session::Session,
};
use crate::{refusal::Refusal, volume::record::VolumeRecord};

/// Whether the call has added the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Added {
    #[default]
    No,
    /// By a PATCH on the version of the machine that it had read before, which made this version.
    OnVersion(String),
    /// By a subresource, which knows no versions.
    Blindly,
}

/// What becomes of the annotation when another machine has the volume, which this call has added to `machine`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    /// Somebody else's: it stays.
    Kept,
    /// It names the other machine.
    Is(Ownership),
    /// The other machine is gone but for its instance: it names none, and others look where the volume is.
    Unknown,
}

/// The annotation that is true while the disk leaves `machine`, since it is in `other`.
fn truth(machine: &Machine, recorded: &Recorded, other: Option<Machine>) -> Truth {
    match recorded {
        Recorded::Ownership(ownership)
            if ownership.is_for(machine) && ownership.operation == Operation::Attach =>
        {
            match other {
                Some(other) => Truth::Is(Ownership {
                    leaving: Some(machine.name.clone()),
                    ..Ownership::new(other, Operation::Attach)
                }),
                None => Truth::Unknown,
            }
        }
        _ => Truth::Kept,
    }
}

impl Session<'_> {
    /// The end of an attachment: refused where another machine has the volume too. A watch that has delivered our own write, or
    /// what came of it, has delivered all earlier ones, so the caches show where the volume was at that write: a template
    /// may have it no more, and its instance yet. Of a disk that an earlier call has added there is no such proof: then a
    /// cache that has been quiet for a while is not trusted.
    pub(super) async fn alone_in(&self, machine: &str, added: &Added) -> Result<(), Refusal> {
        let uncached = match added {
            Added::No => self.call.may_be_silent().await,
            Added::OnVersion(version) => !self.call.echoes(machine, version).await,
            Added::Blindly => true,
        };
        let mut others = self.machines_with_volume(Some(machine), uncached).await?;
        if !others.is_empty() && !uncached {
            // what a watch says may be old
            others = self.machines_with_volume(Some(machine), true).await?;
        }
        if others.is_empty() {
            return Ok(());
        }
        if *added != Added::No
            && let Err(why) = self.give_way(machine, &others[0]).await
        {
            return Err(self.stays(machine, &others, &why));
        }
        Err(self.in_use(&others))
    }

    /// Whether the Go driver may have attached the volume unseen. Not a volume with our record: that driver did not make it.
    pub(super) async fn go_driver_may_have_it(&self, claim: &PersistentVolumeClaim) -> bool {
        VolumeRecord::of(claim).is_none() && self.call.may_be_silent().await
    }

    /// The attacher must not take the volume for detached.
    fn stays(&self, machine: &str, others: &[String], why: &Refusal) -> Refusal {
        let machine = self.attacher.host.machine_name(machine);
        let elsewhere = self.in_use(others).message;
        Refusal::aborted(format!("{elsewhere}; it could not be taken out of {machine} again: {why}"))
    }

    /// Takes back what another call was to take back, and did not.
    pub(super) async fn finish(&self, ownership: &Ownership, leaving: &str) -> Result<(), Refusal> {
        let done = self.take_back(leaving, true).await;
        done.map_err(|why| self.stays(leaving, std::slice::from_ref(&ownership.vm), &why))
    }

    /// Takes the disk that this call added out of the machine. The annotation comes first: after it no process of ours
    /// adds the disk here again, and each takes it out.
    async fn give_way(&self, machine: &str, other: &str) -> Result<(), Refusal> {
        let mut tries = 0;
        let is_marked = loop {
            let (seen, other) = tokio::try_join!(self.see(machine, true), self.read_machine(other))?;
            let Some(vm) = &seen.vm else { return Ok(()) };
            let this = Machine { name: machine.to_owned(), uid: vm.metadata.uid.clone().unwrap_or_default() };
            let other = other.map(|other| Machine {
                name: other.metadata.name.clone().unwrap_or_default(),
                uid: other.metadata.uid.clone().unwrap_or_default(),
            });
            let Some(claim) = &seen.claim else { break false };
            let recorded = seen.recorded();
            if recorded.is_leaving(machine) {
                break true;
            }
            let (truth, is_marked) = match truth(&this, &recorded, other) {
                Truth::Kept => break false,
                Truth::Is(truth) => (Some(truth), true),
                Truth::Unknown => (None, false),
            };
            if self.annotate(claim, truth).await?.is_some() {
                break is_marked;
            }
            tries = self.again(tries, machine)?;
        };
        self.take_back(machine, is_marked).await
    }

    /// Takes a disk that nobody was told of out of the machine, and its mark out of the annotation. Where it is marked,
    /// somebody else may have done it already. A live migration is no reason to wait: nobody uses the disk, and another
    /// machine has the volume.
    async fn take_back(&self, machine: &str, is_marked: bool) -> Result<(), Refusal> {
        let _turn = self.attacher.turns.alone(machine).await;
        let (mut tries, mut refused, mut has_changed_way) = (0, None, false);
        loop {
            let seen = self.see(machine, true).await?;
            let recorded = seen.recorded();
            if is_marked && !recorded.is_leaving(machine) {
                return Ok(());
            }
            if let (Some(vm), Some((version, why))) = (&seen.vm, refused.take())
                && plug::version(vm) == version
            {
                return Err(why);
            }
            tries = self.again(tries, machine)?;
            let disk = hotplug::disk(seen.vm.as_deref(), seen.vmi.as_deref(), self.volume.as_str());
            let has_it = matches!(disk, Disk::Ready | Disk::InTemplate | Disk::Adding(_));
            if let Some(vm) = seen.vm.as_deref().filter(|_| has_it) {
                match self.attacher.plug.remove(vm, self.volume.as_str()).await? {
                    Written::Done(_) if !is_marked => return Ok(()),
                    Written::Done(_) => {}
                    Written::Refused { version, why } => refused = Some((version, why)),
                    Written::OtherWay(why) if has_changed_way => return Err(why),
                    Written::OtherWay(_) => has_changed_way = true,
                }
                continue;
            }
            let (true, Some(on), Recorded::Ownership(ownership)) = (is_marked, &seen.claim, recorded) else {
                return Ok(());
            };
            if self.annotate(on, Some(Ownership { leaving: None, ..ownership })).await?.is_some() {
                return Ok(());
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

    fn claim(name: &str, operation: Operation) -> Ownership {
        Ownership::new(machine(name), operation)
    }

    fn leaving_a(name: &str) -> Ownership {
        Ownership { leaving: Some("a".to_owned()), ..claim(name, Attach) }
    }

    #[rstest]
    #[case::ours(Recorded::Ownership(claim("a", Attach)), Some("b"), Truth::Is(leaving_a("b")))]
    #[case::ours_and_the_other_is_gone(Recorded::Ownership(claim("a", Attach)), None, Truth::Unknown)]
    #[case::somebody_detaches_here(Recorded::Ownership(claim("a", Detach)), Some("b"), Truth::Kept)]
    #[case::somebody_wrote_the_other(Recorded::Ownership(claim("b", Attach)), Some("b"), Truth::Kept)]
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
