//! Writes of former holders of the annotation that may be on their way still ([`super::ownership`]).

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::Instant;

use super::{
    hotplug::{self, Disk},
    ownership::{Machine, Operation, Ownership, STALE_AFTER},
    plug::{self, Written},
    session::Session,
};
use crate::refusal::Refusal;

/// Whether a former holder's write can reach its machine no more.
pub(super) enum Settled {
    Yes,
    /// Decide again then, or when something changes.
    At(Instant),
    /// Decide again at once.
    Again,
    /// The machine has the volume.
    HasVolume(Ownership),
}

impl Session<'_> {
    /// Sees to it that no write of a former holder brings the volume into `from` any more.
    pub(super) async fn settle(
        &self,
        from: &str,
        wanted: &str,
        claim: &PersistentVolumeClaim,
    ) -> Result<Settled, Refusal> {
        let (vm, vmi) = tokio::try_join!(self.read_machine(from), self.read_instance(from))?;
        let Some(vm) = vm else { return Ok(Settled::Yes) };
        if from != wanted && hotplug::disk(Some(&vm), vmi.as_deref(), self.volume.as_str()) != Disk::Absent {
            let former = Machine { name: from.to_owned(), uid: vm.metadata.uid.clone().unwrap_or_default() };
            return Ok(Settled::HasVolume(Ownership::new(former, Operation::Attach)));
        }
        match self.attacher.plug.fence(&vm, &self.attacher.next_holder()).await? {
            Written::Done(_) => Ok(Settled::Yes),
            Written::Refused { version, why } => match self.read_machine(from).await? {
                Some(vm) if plug::version(&vm) == version => Err(why),
                _ => Ok(Settled::Again),
            },
            // no write of this host can be made to fail: what was on its way has time to arrive
            Written::OtherWay(_) => {
                let unchanged_for = self.attacher.ages.unchanged_for(claim);
                if unchanged_for >= STALE_AFTER {
                    return Ok(Settled::Yes);
                }
                self.wait_for(format!(
                    "a write of a process that died may still be on its way to {}: it is waited for {} s",
                    self.attacher.host.machine_name(from),
                    STALE_AFTER.as_secs()
                ));
                Ok(Settled::At(Instant::now() + STALE_AFTER.saturating_sub(unchanged_for)))
            }
        }
    }
}
