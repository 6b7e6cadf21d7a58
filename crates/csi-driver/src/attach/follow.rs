//! Hosts up to Harvester 1.7 take nothing from the template of a machine that runs, and say nothing of that
//! (docs/contract/csi-driver.md#ways). Where the role lets this driver patch machines, a volume may so be in the template
//! alone, or in the instance alone. Which volumes those are is seen of each volume by itself: this process may have
//! learned of the other way by another volume, or be new. What a watch shows of them is a reason to look, and none to write: a
//! subresource knows no version, and a disk that came is never pulled.

use std::sync::Arc;

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use tokio::time::{Duration, Instant};

use super::{
    hotplug::{self, Unfollowed},
    plug::Written,
    session::{LOOK_AGAIN, Session},
};
use crate::refusal::Refusal;

/// A running instance that has not followed its machine's template after so long: the host may have no declarative way.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// For how long an instance has not followed its template, for one volume and one call.
#[derive(Default)]
pub(super) struct Following {
    /// The host's version is read then.
    ask_at: Option<Instant>,
    /// The host surely has the declarative way.
    is_declarative: bool,
}

/// Whether something was to be done.
pub(super) enum Followed {
    /// Not now: look again at a change, or then.
    Wait(Option<Instant>),
    /// It was done: decide again.
    Healed,
    /// The host refused the write for the version that it was for, or for another reason.
    Refused { version: String, why: Refusal },
}

impl Session<'_> {
    /// Carries by subresources, or back, what the instance does not take from its machine's template.
    pub(super) async fn follow(
        &self,
        following: &mut Following,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
    ) -> Result<Followed, Refusal> {
        let volume = self.volume.as_str();
        let unfollowed = vm.and_then(|vm| Some((vm, hotplug::unfollowed(vm, vmi, volume)?)));
        let Some((vm, unfollowed)) = unfollowed else {
            following.ask_at = None;
            return Ok(Followed::Wait(None));
        };
        if following.is_declarative {
            return Ok(Followed::Wait(None));
        }
        let now = Instant::now();
        let ask_at = *following.ask_at.get_or_insert(now + TAKEN_WITHIN);
        if now < ask_at {
            return Ok(Followed::Wait(Some(ask_at)));
        }
        let plug = &self.attacher.plug;
        match plug.ask_version().await {
            Some(true) => {}
            is_old => {
                following.is_declarative = is_old.is_some();
                following.ask_at = Some(now + LOOK_AGAIN);
                return Ok(Followed::Wait(following.ask_at));
            }
        }
        let name = vm.metadata.name.as_deref().unwrap_or_default();
        let (vm, vmi) = self.past_watches(name).await?;
        let is_so =
            |vm: &&Arc<VirtualMachine>| hotplug::unfollowed(vm, vmi.as_deref(), volume) == Some(unfollowed);
        let Some(vm) = vm.as_ref().filter(is_so) else {
            following.ask_at = None;
            return Ok(Followed::Wait(None));
        };
        let written = match unfollowed {
            // it goes in again by the way that this host has
            Unfollowed::Added => match plug.remove_from_template(vm, volume).await? {
                Written::OtherWay(_) => plug.remove(vm, volume).await?,
                written => written,
            },
            Unfollowed::Removed => plug.remove_from_instance(vm, volume).await?,
        };
        self.gets_on();
        match written {
            Written::Done(_) => {
                following.ask_at = Some(now + TAKEN_WITHIN);
                Ok(Followed::Healed)
            }
            Written::OtherWay(why) => Err(why),
            Written::Refused { version, why } if unfollowed == Unfollowed::Added => {
                Ok(Followed::Refused { version, why })
            }
            // of the instance the machine's version says nothing
            Written::Refused { why, .. } => {
                let vmi = self.read_instance(name).await?;
                match hotplug::unfollowed(vm, vmi.as_deref(), volume) {
                    Some(_) => Err(why),
                    None => Ok(Followed::Healed),
                }
            }
        }
    }

    /// The machine and its instance as they are now. Where watches show less the caches know it from now on, and the call wakes.
    async fn past_watches(
        &self,
        name: &str,
    ) -> Result<(Option<Arc<VirtualMachine>>, Option<Arc<VirtualMachineInstance>>), Refusal> {
        let (vm, vmi) = tokio::try_join!(self.read_machine(name), self.read_instance(name))?;
        if let (Some(vmi), Some(instances)) = (&vmi, self.call.instances().await) {
            instances.saw(VirtualMachineInstance::clone(vmi));
        }
        Ok((vm, vmi))
    }
}
