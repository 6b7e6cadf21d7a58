//! What a call has to do, from what is mounted, what is on the disk and what is asked. Pure.
//!
//! Each plan begins from what is there and not from what a former call did: a process may have died after any step.

use std::path::Path;

use rustix::mount::MountFlags;
use tonic::Code;

use super::content::{Content, FileSystem};
use super::mounts::Mount;
use crate::refusal::Refusal;

/// How a file system is to be mounted.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) file_system: FileSystem,
    /// Else what is there is mounted, and a blank disk refused.
    pub(crate) may_make: bool,
    /// They may hold secrets.
    pub(crate) options: Vec<String>,
    pub(crate) read_only: bool,
}

/// What is mounted at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    /// The volume.
    Volume(Mount),
    /// A disk that was pulled.
    Gone,
    /// Something else, by its source.
    Other(String),
}

/// The disk of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Such as `/dev/sdb`.
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) content: Content,
    /// Mounted at another place than the staging path: for a pod, and by the Go driver straight for pods.
    pub(crate) is_mounted: bool,
    /// A map of multipathd, and not the disk itself.
    pub(crate) is_map: bool,
    /// A map that is mounted, and whose disk another machine has mounted since.
    pub(crate) was_elsewhere: bool,
}

/// A step of NodeStageVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Takes away the mount of a disk that was pulled, or may have been.
    Unmount,
    /// Makes the file system; `again` over one that was begun.
    Format {
        again: bool,
    },
    /// Repairs what a crash left.
    Check,
    Mount,
    /// Lets the file system fill its disk.
    Grow,
}

/// A file system is grown when its disk has more bytes to offer than a block and its rounding.
const WORTH_GROWING: u64 = 64 << 10;

/// How a disk comes to be mounted at its staging path.
///
/// # Errors
/// FAILED_PRECONDITION where its disk was in another machine while it was mounted here, where something else is on the disk or mounted at the path; ALREADY_EXISTS where the volume is
/// mounted there in another way.
pub(crate) fn stage(shown: &Shown, disk: &Disk, wanted: &Wanted) -> Result<Vec<Stage>, Refusal> {
    let name = &disk.name;
    if disk.was_elsewhere {
        return Err(was_elsewhere(name));
    }
    let mut steps = Vec::new();
    // A map keeps its number while its disk is away, perhaps in another machine that writes to it, and what the kernel
    // holds of the file system is older then. Kubelet asks for what is mounted already after a restart, and where it had no
    // answer: then it costs a moment.
    let shown = match shown {
        Shown::Volume(_) if disk.is_map && !disk.is_mounted => &Shown::Gone,
        shown => shown,
    };
    match shown {
        Shown::Other(source) => return Err(other_at("staging_target_path", source)),
        Shown::Gone => steps.push(Stage::Unmount),
        Shown::Nothing | Shown::Volume(_) => {}
    }
    let size = match &disk.content {
        Content::Blank | Content::Unfinished if wanted.read_only => {
            return Err(Refusal::precondition(format!(
                "{name} has no file system, and is to be read only: write to the volume first"
            )));
        }
        Content::Blank if !wanted.may_make => {
            return Err(Refusal::precondition(format!(
                "{name} is blank, and the driver makes no ext2 and no ext3: make the volume anew with fsType ext4 or xfs"
            )));
        }
        Content::Blank => {
            steps.extend([Stage::Format { again: false }, Stage::Mount]);
            return Ok(steps);
        }
        Content::Unfinished if wanted.file_system == FileSystem::Xfs => {
            steps.extend([Stage::Format { again: true }, Stage::Mount]);
            return Ok(steps);
        }
        Content::Unfinished => return Err(other_on(name, "the beginning of xfs", wanted)),
        Content::Other(what) => return Err(other_on(name, what, wanted)),
        Content::FileSystem(kind, _) if *kind != wanted.file_system => {
            return Err(other_on(name, kind.name(), wanted));
        }
        Content::FileSystem(_, size) => *size,
    };
    if size.is_some_and(|size| size > disk.size) {
        return Err(Refusal::precondition(format!(
            "the file system on {name} has {} bytes and the disk only {}: give the host's claim its former size",
            size.unwrap_or_default(),
            disk.size
        )));
    }
    match shown {
        Shown::Volume(mount) if mount.has("ro") && !wanted.read_only => {
            return Err(Refusal::new(
                Code::AlreadyExists,
                format!("{name} is mounted at the staging path already, to be read only: unstage it first"),
            ));
        }
        Shown::Volume(_) => {}
        _ => {
            // a file system in use is not checked, and journals of xfs are replayed by mount
            if wanted.file_system == FileSystem::Ext4 && !wanted.read_only && !disk.is_mounted {
                steps.push(Stage::Check);
            }
            steps.push(Stage::Mount);
        }
    }
    let is_smaller = size.is_some_and(|size| disk.size - size >= WORTH_GROWING);
    if is_smaller && !wanted.read_only {
        steps.push(Stage::Grow);
    }
    Ok(steps)
}

/// An unmount would write the superblock as it was before, and an empty journal.
pub(crate) fn was_elsewhere(disk: &str) -> Refusal {
    Refusal::precondition(format!(
        "{disk} is mounted here, and another machine has mounted its disk since: an unmount or a shutdown would write over \
         what that machine wrote; reset this machine without a shutdown (`echo b > /proc/sysrq-trigger` on the node)"
    ))
}

fn other_on(disk: &str, what: &str, wanted: &Wanted) -> Refusal {
    let wanted = wanted.file_system.name();
    Refusal::precondition(format!(
        "{disk} carries {what} and the volume is to have {wanted}: it is not formatted; set fsType to what is there, or \
         save the data and wipe the disk by hand"
    ))
}

fn other_at(field: &str, source: &str) -> Refusal {
    Refusal::precondition(format!(
        "{source} is mounted at {field}, which is not the volume: unmount it by hand"
    ))
}

/// A step of NodePublishVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Takes away the mount of a disk that was pulled.
    Unmount,
    Bind,
    /// Sets the options of the mount alone.
    Options(MountFlags),
}

/// How a volume is to be published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publication<'a> {
    /// All options that the mount at the target is to have.
    pub(crate) options: MountFlags,
    /// SINGLE_NODE_SINGLE_WRITER: there is one target.
    pub(crate) is_alone: bool,
    /// Another target that the volume is mounted at.
    pub(crate) another: Option<&'a Path>,
}

/// How a volume comes to be mounted at its target path. A mount that is there is not covered by another one.
///
/// # Errors
/// FAILED_PRECONDITION where something else is mounted there, or where the volume may have one target and has another;
/// ALREADY_EXISTS where it is mounted there read-only and is to be written.
pub(crate) fn publish(shown: &Shown, wanted: Publication<'_>) -> Result<Vec<Publish>, Refusal> {
    if let Shown::Volume(mount) = shown {
        let present = flags(&mount.options);
        return if present.contains(MountFlags::RDONLY) && !wanted.options.contains(MountFlags::RDONLY) {
            Err(Refusal::new(
                Code::AlreadyExists,
                "the volume is mounted at target_path already, to be read only: unpublish it first",
            ))
        } else if present.contains(wanted.options) {
            Ok(vec![])
        } else {
            Ok(vec![Publish::Options(wanted.options)])
        };
    }
    if let (true, Some(another)) = (wanted.is_alone, wanted.another) {
        return Err(Refusal::precondition(format!(
            "the volume may be used by one pod at a time (SINGLE_NODE_SINGLE_WRITER) and is at {} already: wait for that \
             pod's end",
            another.display()
        )));
    }
    match shown {
        Shown::Other(source) => Err(other_at("target_path", source)),
        Shown::Gone => Ok(vec![Publish::Unmount, Publish::Bind, Publish::Options(wanted.options)]),
        _ => Ok(vec![Publish::Bind, Publish::Options(wanted.options)]),
    }
}

/// The options that one mount of a file system can have for itself. All others belong to the file system.
pub(crate) fn flags<S: AsRef<str>>(options: &[S]) -> MountFlags {
    let flags = options.iter().filter_map(|option| match option.as_ref() {
        "ro" => Some(MountFlags::RDONLY),
        "nosuid" => Some(MountFlags::NOSUID),
        "nodev" => Some(MountFlags::NODEV),
        "noexec" => Some(MountFlags::NOEXEC),
        "noatime" => Some(MountFlags::NOATIME),
        "nodiratime" => Some(MountFlags::NODIRATIME),
        "relatime" => Some(MountFlags::RELATIME),
        _ => None,
    });
    let flags: MountFlags = flags.collect();
    // the kernel keeps one of the two, as mount(8) does
    if flags.contains(MountFlags::NOATIME) { flags - MountFlags::RELATIME } else { flags }
}

/// Why writes to a disk fail although its mounts allow them, if they do.
pub(crate) fn fault<'a>(mounts: impl IntoIterator<Item = &'a Mount>) -> Option<&'static str> {
    mounts.into_iter().find_map(|mount| {
        let shares = |option: &str| mount.shared_options.iter().any(|other| other == option);
        if shares("shutdown") {
            Some("the kernel shut the file system down after an error")
        } else if shares("emergency_ro") || shares("ro") && !mount.has("ro") {
            Some("the file system has become read-only, as the kernel makes it after an error")
        } else {
            None
        }
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
