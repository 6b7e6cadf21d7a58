//! The calls that change what is mounted, from a request to the steps of its plan.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;
use tokio::time::Instant;

use super::mounts::{self, Mount, Number};
use super::place::{self, Kind, Place};
use super::plan::{self, Publication, Publish, Wanted};
use super::system::{bind, is_gone, mounts, set_options, shown, shown_block, unmount_all};
use super::{Settings, disk, export, find, request, size, stats};
use crate::csi::volume_capability::access_mode::Mode;
use crate::csi::{
    NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};
use crate::refusal::Refusal;
use crate::volume::access::{Access, Reach};

/// How a volume with files comes to the node.
enum Files<'a> {
    Disk(Wanted),
    Export { context: &'a HashMap<String, String>, options: Vec<String>, read_only: bool },
}

impl<'a> Files<'a> {
    /// `None` for a raw block device.
    fn of(access: &Access, context: &'a HashMap<String, String>) -> Result<Option<Self>, Refusal> {
        let reach = access.reach().map_err(|error| Refusal::invalid(error.to_string()))?;
        let Some(mount) = &access.mount else { return Ok(None) };
        Ok(Some(match reach {
            Reach::Disk => Self::Disk(request::wanted(access, mount)?),
            Reach::Export => {
                Self::Export { context, options: mount.options.clone(), read_only: access.only_reads() }
            }
        }))
    }

    fn options(&self) -> MountFlags {
        let (options, read_only) = match self {
            Self::Disk(wanted) => (&wanted.options, wanted.read_only),
            Self::Export { options, read_only, .. } => (options, *read_only),
        };
        plan::flags(options) | if read_only { MountFlags::RDONLY } else { MountFlags::empty() }
    }
}

/// NodeStageVolume: a disk with files and an export are mounted at the staging path. A raw block device only has to be
/// there.
pub(crate) async fn stage(
    settings: &Settings,
    request: &NodeStageVolumeRequest,
    until: Instant,
) -> Result<(), Refusal> {
    request::volume(&request.volume_id)?;
    let staging = settings.checked("staging_target_path", &request.staging_target_path)?;
    let access = request::access(request.volume_capability.as_ref())?;
    let files = Files::of(&access, &request.publish_context)?;
    let handle = request::handle(&request.volume_id)?;
    match files {
        None => find::wait(settings, handle, until).await.map(drop),
        Some(files) => stage_files(settings, handle, &files, &staging, until).await.map(drop),
    }
}

async fn stage_files(
    settings: &Settings,
    handle: &str,
    files: &Files<'_>,
    staging: &Path,
    until: Instant,
) -> Result<Mount, Refusal> {
    let place = settings.place(staging, &mounts()?)?;
    if place.kind == Kind::Absent {
        return Err(Refusal::precondition(format!(
            "staging_target_path {} does not exist: the caller has to make it",
            staging.display()
        )));
    }
    match files {
        Files::Disk(wanted) => {
            let held = find::hold(settings, handle, until).await?;
            disk::stage(settings, &held.device, wanted, &place.path).await
        }
        Files::Export { context, options, read_only } => {
            export::stage(settings, handle, context, options, *read_only, &place.path).await
        }
    }
}

/// NodeUnstageVolume: takes away what is mounted at the staging path. Volumes of the Go driver have nothing there.
pub(crate) async fn unstage(settings: &Settings, request: &NodeUnstageVolumeRequest) -> Result<(), Refusal> {
    let staging = settings.checked("staging_target_path", &request.staging_target_path)?;
    let place = settings.place(&staging, &mounts()?)?;
    if place.kind != Kind::Mounted {
        return Ok(());
    }
    if let Some(mount) = mounts::at(&mounts()?, &place.path)
        // a disk that cannot be read is not written either, and the call has to end
        && disk::was_elsewhere(settings, mount).await.unwrap_or(false)
    {
        return Err(plan::was_elsewhere(&mount.source.display().to_string()));
    }
    unmount_all(&place.path).await
}

/// NodePublishVolume.
pub(crate) async fn publish(
    settings: &Settings,
    request: &NodePublishVolumeRequest,
    until: Instant,
) -> Result<(), Refusal> {
    request::volume(&request.volume_id)?;
    let target = settings.checked("target_path", &request.target_path)?;
    let access = request::access(request.volume_capability.as_ref())?;
    let files = Files::of(&access, &request.publish_context)?;
    if request.staging_target_path.is_empty() {
        return Err(Refusal::precondition(
            "staging_target_path is missing: the volume has to be staged first",
        ));
    }
    let staging = settings.checked("staging_target_path", &request.staging_target_path)?;
    let handle = request::handle(&request.volume_id)?;
    let is_alone = access.mode == Mode::SingleNodeSingleWriter;
    match files {
        Some(files) => {
            let readonly = if request.readonly { MountFlags::RDONLY } else { MountFlags::empty() };
            let options = files.options() | readonly;
            publish_files(settings, handle, &files, [&staging, &target], (options, is_alone), until).await
        }
        // A read-only mount does not stop writes to a device, and the device's own switch stops those of all pods.
        // Kubernetes asks for no such mode, so no kubelet keeps the user from writing.
        None if access.only_reads() => Err(Refusal::precondition(
            "a raw block device cannot be published with SINGLE_NODE_READER_ONLY, for Linux would let its user write: \
             ask for SINGLE_NODE_WRITER, or use a file system",
        )),
        // Kubelet, which sends `readonly`, gives the container no right to write to the device.
        None => publish_block(settings, handle, &target, is_alone, until).await,
    }
}

async fn publish_files(
    settings: &Settings,
    handle: &str,
    files: &Files<'_>,
    [staging, target]: [&Path; 2],
    (options, is_alone): (MountFlags, bool),
    until: Instant,
) -> Result<(), Refusal> {
    let seen = mounts()?;
    let staging = settings.place(staging, &seen)?.path;
    let place = settings.place(target, &seen)?;
    let mut staged = mounts::at(&seen, &staging).filter(|mount| !is_gone(settings, mount.device)).cloned();
    let number = match (files, &staged) {
        (Files::Disk(_), Some(mount)) => is_of(settings, handle, mount)?,
        (Files::Disk(_), None) => find::wait(settings, handle, until).await?.number,
        (Files::Export { .. }, Some(mount)) => mount.device,
        // mounted by the Go driver for a pod, or not at all
        (Files::Export { .. }, None) => {
            staged.insert(stage_files(settings, handle, files, &staging, until).await?).device
        }
    };
    let folder = staged.as_ref().map_or(Path::new("/"), |mount| &mount.root);
    let but = [staging.as_path(), place.path.as_path()];
    let another = disk::another(&settings.real_root(), &seen, number, folder, &but);
    let wanted = Publication { options, is_alone, another };
    let steps = plan::publish(&shown(settings, &seen, &place.path, Some(number)), wanted)?;
    if steps.is_empty() {
        return Ok(());
    }
    // The Go driver staged nothing, and kubelet stages no volume twice: the second pod of a node comes here.
    let staged = match staged {
        Some(mount) => mount,
        None => stage_files(settings, handle, files, &staging, until).await?,
    };
    run(settings, &steps, &staging, &place, Kind::Folder, plan::flags(&staged.options)).await
}

/// The device of what is staged, which has to be the volume's as far as the machine shows it.
fn is_of(settings: &Settings, handle: &str, staged: &Mount) -> Result<Number, Refusal> {
    match find::look(settings, handle)? {
        Some(device) if device.number != staged.device => Err(Refusal::precondition(format!(
            "{} is mounted at staging_target_path, and volume {handle} is {}: unstage it and stage the volume",
            staged.source.display(),
            device.path.display()
        ))),
        _ => Ok(staged.device),
    }
}

async fn publish_block(
    settings: &Settings,
    handle: &str,
    target: &Path,
    is_alone: bool,
    until: Instant,
) -> Result<(), Refusal> {
    let held = find::hold(settings, handle, until).await?;
    let device = &held.device;
    let seen = mounts()?;
    let place = settings.place(target, &seen)?;
    let root = settings.real_root();
    let another = seen.iter().find(|mount| {
        stats::is_device(mount)
            && mount.target.starts_with(&root)
            && mount.target != place.path
            && find::number(&mount.target) == Some(device.number)
    });
    let another = another.map(|mount| mount.target.as_path());
    let wanted = Publication { options: MountFlags::empty(), is_alone, another };
    let steps = plan::publish(&shown_block(&seen, &place.path, device.number), wanted)?;
    run(settings, &steps, &device.path, &place, Kind::File, MountFlags::empty()).await
}

async fn run(
    settings: &Settings,
    steps: &[Publish],
    from: &Path,
    place: &Place,
    kind: Kind,
    of_staged: MountFlags,
) -> Result<(), Refusal> {
    for step in steps {
        match step {
            Publish::Unmount => unmount_all(&place.path).await?,
            Publish::Bind => {
                // what was mounted there may have gone in the step before
                let place = place::resolve(&settings.real_root(), &place.path, &mounts()?)?;
                place::make(&place, kind)?;
                bind(from, &place.path)?;
            }
            Publish::Options(options) if options.is_empty() => {}
            Publish::Options(options) => set_options(&place.path, *options | of_staged)?,
        }
    }
    Ok(())
}

/// NodeUnpublishVolume: takes away what is mounted at the target path, whoever mounted it there, and the path.
pub(crate) async fn unpublish(
    settings: &Settings,
    request: &NodeUnpublishVolumeRequest,
) -> Result<(), Refusal> {
    let target = settings.checked("target_path", &request.target_path)?;
    let place = settings.place(&target, &mounts()?)?;
    if place.kind == Kind::Mounted {
        unmount_all(&place.path).await?;
    }
    place::remove(&place.path)
}

/// NodeExpandVolume: the file system at the volume's path fills its disk. Returns the size of the volume.
pub(crate) async fn expand(settings: &Settings, request: &NodeExpandVolumeRequest) -> Result<u64, Refusal> {
    let handle = request::volume(&request.volume_id)?;
    let required = request::required(request.capacity_range.as_ref())?;
    if request.volume_capability.is_some() {
        request::access(request.volume_capability.as_ref())?;
    }
    let path = settings.existing("volume_path", &request.volume_path)?;
    let seen = mounts()?;
    let place = settings.place(&path, &seen)?;
    if place.kind == Kind::Absent {
        return Err(stats::absent(path.display()));
    }
    // volumes of the Go driver are mounted for their pods alone
    let mount = match mounts::at(&seen, &place.path) {
        None => mounted_elsewhere(settings, handle, &seen)?,
        found => found,
    };
    let Some(mount) = mount else {
        return Err(Refusal::precondition(format!(
            "volume {handle} is not mounted at {}: publish it first",
            path.display()
        )));
    };
    if stats::is_device(mount) {
        size::grown(settings, &mount.target, required).await
    } else if mount.device.major == 0 {
        // an export grows on its server
        Ok(required)
    } else {
        disk::expand(settings, handle, mount, &mount.target, required).await
    }
}

fn mounted_elsewhere<'a>(
    settings: &Settings,
    handle: &str,
    seen: &'a [Mount],
) -> Result<Option<&'a Mount>, Refusal> {
    let root = settings.real_root();
    let device = find::look(settings, handle)?;
    Ok(device.and_then(|device| {
        seen.iter().find(|mount| mount.device == device.number && mount.target.starts_with(&root))
    }))
}

impl Settings {
    fn checked(&self, field: &str, text: &str) -> Result<PathBuf, Refusal> {
        place::checked(&self.kubelet_root, field, text)
    }

    /// A path at which a volume is: a relative one names none.
    pub(super) fn existing(&self, field: &str, text: &str) -> Result<PathBuf, Refusal> {
        if !text.is_empty() && !text.starts_with('/') {
            return Err(stats::absent(format!("{field} {text:?}")));
        }
        self.checked(field, text)
    }

    pub(super) fn place(&self, path: &Path, seen: &[Mount]) -> Result<Place, Refusal> {
        place::resolve(&self.kubelet_root, path, seen)
    }
}
