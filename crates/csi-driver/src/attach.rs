//! Which machine a volume belongs to, and how its disk comes into the machine and out of it.
//!
//! ```text
//!                        ┌─ ownership  whose volume it is, by an annotation of the host's PersistentVolumeClaim (pure)
//! publish, unpublish ────┼─ hotplug  what a machine has of it, and the patches (pure)
//!   (a session each)     ├─ plug     the writes, by patch or by subresources
//!                        ├─ follow   hosts where instances do not follow their machines' templates
//!                        ├─ settle   writes of processes that died
//!                        ├─ others   drivers that ignore the annotation
//!                        ├─ migrations  for how long a machine is believed that it migrates
//!                        ├─ pace     when a machine whose disks are on their way gets another one (pure, but for memory)
//!                        ├─ batch    several disks by one write
//!                        ├─ give_back  disks that the host does not bring
//!                        ├─ why      what a volume waits for, as a sentence
//!                        ├─ watches  what the host has, while there are calls
//!                        ├─ worker   how many calls of the reconciler are at work at once
//!                        └─ export   volumes for many nodes: NFS exports of the host; on_for: which clusters have one on
//!                                    (pure); moved: those that nodes have to mount anew
//! ```
//! ControllerPublishVolume answers OK when the disk is in the running instance. A machine that does not run gets the
//! volume into its template: the disk comes with the next start, and the node service waits for its device. The name of
//! a node in these calls is that of its VirtualMachine, and is never compared with names of Nodes
//! (docs/contract/csi-driver.md#node-names).

mod batch;
pub mod export;
mod follow;
mod give_back;
pub mod hotplug;
mod migrations;
pub mod moved;
pub(crate) mod on_for;
mod others;
pub mod ownership;
mod pace;
pub mod plug;
mod publish;
mod session;
mod settle;
mod unpublish;
pub mod watches;
mod why;
pub mod worker;

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use program::TaskGroup;
use tokio::{sync::watch, time::timeout};
use tonic::Code;

use crate::{
    csi::{
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
        volume_capability::access_mode::Mode,
    },
    guest::Guest,
    host::Host,
    refusal::Refusal,
    volume::{
        access::{Access, Reach},
        name::HostName,
    },
};
use ownership::Usage;
use session::{Ages, Holder, Session, Turns};
use worker::Worker;

pub use follow::TAKEN_WITHIN;
pub use migrations::BELIEVED_FOR;
pub use pace::{TOGETHER_WITHIN, UNMOUNTED_FOR, WAITED_FOR};
pub use publish::TRIES;
pub use session::{BLOCKED_FOR, LOOK_AGAIN, SILENT_FOR};
pub(crate) use {
    session::recorded,
    why::{ClaimPhase, Pod, Waiting, why_not},
};

/// CSI allows names of nodes so long.
const NODE_ID_MAX: usize = 256;

/// What an [`Attacher`] is told at its start.
#[derive(Clone)]
pub struct Options {
    /// The name of this process in annotations, for people: that of its pod.
    pub holder: String,
    /// A machine gets no more hot-plugged volumes than so many.
    pub max_volumes_per_node: Option<usize>,
    /// Who else uses an export.
    pub users: Arc<export::Users>,
    /// Says what its Nodes have mounted.
    pub guest: Option<Guest>,
    /// Sees exports that have moved.
    pub exports: Option<moved::Exports>,
    /// Told when somebody calls the controller service of this process.
    pub called: watch::Sender<bool>,
}

impl Options {
    /// No limit but KubeVirt's; exports are never switched off.
    pub fn new(holder: impl Into<String>) -> Self {
        let users: Arc<export::Users> =
            Arc::new(|_| Box::pin(async { Err("this process does not read them".to_owned()) }));
        let called = watch::Sender::new(false);
        let holder = holder.into();
        Self { holder, max_volumes_per_node: None, users, guest: None, exports: None, called }
    }
}

/// Brings disks into machines and out of them.
pub struct Attacher {
    host: Host,
    options: Options,
    plug: plug::Plug,
    watches: watches::Watches,
    ages: Ages,
    turns: Turns,
    batches: batch::Batches,
    pace: pace::Pace,
    lately: give_back::Lately,
    migrations: migrations::Migrations,
    holder: Holder,
}

impl Attacher {
    /// The watches end with `tasks`.
    pub fn new(host: Host, tasks: &TaskGroup, options: Options) -> Self {
        // a process that was started again under its name is another
        let process = RandomState::new().build_hasher().finish();
        let holder = Holder { name: format!("{}-{process:016x}", options.holder), written: 0.into() };
        let (plug, watches) = (plug::Plug::new(host.clone()), watches::Watches::new(host.clone(), tasks));
        let (ages, turns, batches, pace, lately, migrations) = Default::default();
        Self { host, options, plug, watches, ages, turns, batches, pace, lately, migrations, holder }
    }

    pub(crate) fn exports(&self) -> Option<&moved::Exports> {
        self.options.exports.as_ref()
    }

    /// The watches, for others that follow what the attacher follows.
    pub fn watches(&self) -> &watches::Watches {
        &self.watches
    }

    /// ControllerPublishVolume: answers within that time, when the disk is in the machine or the export is ready, with
    /// the publish context.
    ///
    /// # Errors
    /// With CSI's code and one line with the next step.
    pub async fn publish(
        &self,
        request: &ControllerPublishVolumeRequest,
        within: Duration,
    ) -> Result<HashMap<String, String>, Refusal> {
        if request.volume_id.is_empty() {
            return Err(Refusal::invalid(
                "the id of the volume is missing: say which volume is to be published",
            ));
        }
        if request.node_id.is_empty() {
            return Err(Refusal::invalid(
                "the id of the node is missing: say where the volume is to be published",
            ));
        }
        let access = Access::of(request.volume_capability.as_ref());
        let access = access.map_err(|error| Refusal::invalid(error.to_string()))?;
        let reach = access.reach().map_err(|error| Refusal::invalid(error.to_string()))?;
        let volume = HostName::from_handle(&request.volume_id);
        let volume = volume.ok_or_else(|| no_volume(&request.volume_id))?;
        let machine = machine(&request.node_id)
            .ok_or_else(|| Refusal::not_found(format!("there is no node {}", shortened(&request.node_id))))?;
        let waits_for = Mutex::new(String::new());
        let session = Session::of_caller(self, &volume, &waits_for);
        let work = async {
            match reach {
                Reach::Export => {
                    let context = session.export().await?;
                    match &self.options.exports {
                        Some(exports) => exports.with_former(&volume, machine, context).await,
                        None => Ok(context),
                    }
                }
                Reach::Disk if !volume.fits_a_disk() => Err(Refusal::precondition(format!(
                    "{} has a name that KubeVirt allows for no disk: use a volume with a shorter name without dots",
                    self.host.claim_name(&volume)
                ))),
                Reach::Disk => session
                    .attach(machine, Some(&usage(&access, request.readonly)))
                    .await
                    .map(|()| HashMap::new()),
            }
        };
        let answer = timeout(within, work).await.unwrap_or_else(|_| Err(self.too_late(&volume, &waits_for)));
        session.call.complete();
        answer
    }

    /// ControllerUnpublishVolume: answers within that time, when the disk is in the machine no more. Without the id of
    /// a node all machines are meant.
    ///
    /// # Errors
    /// With CSI's code and one line with the next step.
    pub async fn unpublish(
        &self,
        request: &ControllerUnpublishVolumeRequest,
        within: Duration,
    ) -> Result<(), Refusal> {
        if request.volume_id.is_empty() {
            return Err(Refusal::invalid(
                "the id of the volume is missing: say which volume is to be unpublished",
            ));
        }
        // nothing can be in a machine by a name that nothing can have
        let Some(volume) = HostName::from_handle(&request.volume_id) else { return Ok(()) };
        let machine = machine(&request.node_id);
        if machine.is_none() && !request.node_id.is_empty() {
            return Ok(());
        }
        let waits_for = Mutex::new(String::new());
        let session = Session::of_caller(self, &volume, &waits_for);
        let work = async {
            match machine {
                Some(machine) => session.detach(machine).await?,
                None => session.detach_everywhere().await?,
            }
            session.end_export().await
        };
        let answer = timeout(within, work).await.unwrap_or_else(|_| Err(self.too_late(&volume, &waits_for)));
        session.call.complete();
        answer
    }

    /// Brings the disk into the machine without a caller, for whatever use; `waits_for` says meanwhile what is awaited.
    ///
    /// # Errors
    /// As [`Attacher::publish`] has them.
    pub async fn attach(
        &self,
        volume: &HostName,
        machine: &str,
        waits_for: &Mutex<String>,
        worker: &Worker,
        within: Duration,
    ) -> Result<(), Refusal> {
        let session = Session::new(self, volume, waits_for).by(Some(worker));
        let work = session.attach(machine, None);
        timeout(within, work).await.unwrap_or_else(|_| Err(self.too_late(volume, waits_for)))
    }

    /// Takes the disk out of the machine without a caller, as [`Attacher::attach`] brings it in.
    ///
    /// # Errors
    /// As [`Attacher::unpublish`] has them.
    pub async fn detach(
        &self,
        volume: &HostName,
        machine: &str,
        waits_for: &Mutex<String>,
        within: Duration,
    ) -> Result<(), Refusal> {
        self.detach_by(volume, machine, waits_for, None, within).await
    }

    /// [`Attacher::detach`] by this worker.
    ///
    /// # Errors
    /// As [`Attacher::unpublish`] has them.
    pub async fn detach_by(
        &self,
        volume: &HostName,
        machine: &str,
        waits_for: &Mutex<String>,
        worker: Option<&Worker>,
        within: Duration,
    ) -> Result<(), Refusal> {
        let session = Session::new(self, volume, waits_for).by(worker);
        let work = session.detach(machine);
        timeout(within, work).await.unwrap_or_else(|_| Err(self.too_late(volume, waits_for)))
    }

    pub(crate) fn users(&self) -> &export::Users {
        &*self.options.users
    }

    pub(crate) fn guest(&self) -> Option<&Guest> {
        self.options.guest.as_ref()
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Somebody calls the controller service of this process.
    pub(crate) fn note_call(&self) {
        self.options.called.send_if_modified(|called| !std::mem::replace(called, true));
    }

    fn next_holder(&self) -> String {
        self.holder.next()
    }

    /// The work goes on with the caller's next call; until then the host does what it was asked to do.
    fn too_late(&self, volume: &HostName, waits_for: &Mutex<String>) -> Refusal {
        let waits_for = waits_for.lock().expect("no panic while the text is replaced").clone();
        if !waits_for.is_empty() {
            return Refusal::new(Code::DeadlineExceeded, waits_for);
        }
        let text = format!(
            "the host has not answered in time what there is of {}, and which machine has it: look at its API server",
            self.host.claim_name(volume)
        );
        Refusal::new(Code::DeadlineExceeded, text)
    }
}

/// The name of a VirtualMachine. `None` for what no object can be called: it never becomes part of a request's path.
fn machine(node_id: &str) -> Option<&str> {
    (node_id.len() <= NODE_ID_MAX && HostName::from_handle(node_id).is_some()).then_some(node_id)
}

fn no_volume(id: &str) -> Refusal {
    Refusal::not_found(format!("there is no volume {}", shortened(id)))
}

/// A text of the caller, for a sentence.
fn shortened(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

fn usage(access: &Access, read_only: bool) -> Usage {
    let kind = if access.mount.is_some() { "mount" } else { "block" };
    Usage { access: format!("{} {kind}", Mode::as_str_name(&access.mode)), read_only }
}
