//! What the machine shows and does: its mounts, and the system calls that change them.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use tonic::Code;

use super::Settings;
use super::find;
use super::mounts::{self, Mount, Number};
use super::place;
use super::plan::Shown;
use crate::refusal::Refusal;

/// As many mounts are taken away from one path. The Go driver stacked them.
const LAYERS: usize = 256;

/// All mounts that this process sees.
///
/// # Errors
/// INTERNAL without `/proc`.
pub(crate) fn mounts() -> Result<Vec<Mount>, Refusal> {
    let text =
        fs::read("/proc/self/mountinfo").map_err(|error| internal("read /proc/self/mountinfo", &error))?;
    Ok(mounts::parse(&text))
}

/// What is mounted at `path` in view of the volume's device.
pub(crate) fn shown(settings: &Settings, mounts: &[Mount], path: &Path, volume: Option<Number>) -> Shown {
    match mounts::at(mounts, path) {
        None => Shown::Nothing,
        Some(mount) if Some(mount.device) == volume => Shown::Volume(mount.clone()),
        Some(mount) if is_gone(settings, mount.device) => Shown::Gone,
        Some(mount) => Shown::Other(mount.source.display().to_string()),
    }
}

/// The same for a device that is mounted on a file.
pub(crate) fn shown_block(mounts: &[Mount], path: &Path, volume: Number) -> Shown {
    match mounts::at(mounts, path) {
        None => Shown::Nothing,
        Some(mount) if find::number(path) == Some(volume) => Shown::Volume(mount.clone()),
        // the file of a device that was pulled
        Some(mount) if mount.root.to_string_lossy().ends_with("//deleted") => Shown::Gone,
        Some(mount) => Shown::Other(mount.root.display().to_string()),
    }
}

/// Whether a disk that is mounted has left the machine. Numbers without a disk are of file systems without one. A map
/// stays: multipathd removes none that is in use when the last of its disks goes, and puts the disk that comes back into it.
pub(crate) fn is_gone(settings: &Settings, device: Number) -> bool {
    let all = settings.sysfs.join("dev/block");
    let has_left = || !all.join(device.to_string()).exists();
    let has_no_disk = || find::map_at(settings, device).is_some_and(|map| map.disks.is_empty());
    device.major != 0 && all.is_dir() && (has_left() || has_no_disk())
}

/// Mounts a folder or a device at a second place.
///
/// # Errors
/// INTERNAL with the system's reason.
pub(crate) fn bind(from: &Path, to: &Path) -> Result<(), Refusal> {
    mount_bind(from, to)
        .map_err(|error| internal(&format!("mount {} at {}", from.display(), to.display()), &error.into()))
}

/// Gives the mount at `path` its own options.
///
/// # Errors
/// INTERNAL with the system's reason.
pub(crate) fn set_options(path: &Path, options: MountFlags) -> Result<(), Refusal> {
    mount_remount(path, MountFlags::BIND | options, "").map_err(|error| {
        internal(&format!("set the options of the mount at {}", path.display()), &error.into())
    })
}

/// Takes away all mounts at `path`. It takes as long as the file system needs to write what it has.
///
/// # Errors
/// FAILED_PRECONDITION while one of them is in use.
pub(crate) async fn unmount_all(path: &Path) -> Result<(), Refusal> {
    for _ in 0..LAYERS {
        if mounts::at(&mounts()?, path).is_none() {
            return Ok(());
        }
        let target = path.to_owned();
        let unmounted = blocking(move || unmount(&target, UnmountFlags::NOFOLLOW)).await?;
        match unmounted {
            // somebody else unmounted it
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(Errno::BUSY) => return Err(place::busy(path)),
            Err(error) => return Err(internal(&format!("unmount {}", path.display()), &error.into())),
        }
    }
    Err(Refusal::new(Code::Internal, format!("{} is still mounted after {LAYERS} unmounts", path.display())))
}

/// Runs what may wait for a disk or a server.
///
/// # Errors
/// INTERNAL after a panic.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Refusal::new(Code::Internal, error.to_string()))
}

pub(crate) fn internal(doing: &str, error: &io::Error) -> Refusal {
    Refusal::new(Code::Internal, format!("{doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    const MAP: Number = Number { major: 253, minor: 0 };

    /// Settings of a machine with device-mapper's `dm-0` over `sda`, which may have left.
    fn machine(folder: &Path, uuid: &str, disk: Option<&str>) -> Settings {
        let settings = Settings { sysfs: folder.to_owned(), ..Settings::default() };
        let (map, disks) = (folder.join("devices/virtual/block/dm-0"), folder.join("devices/pci0/block"));
        for folder in [&folder.join("dev/block"), &map.join("dm"), &map.join("slaves"), &disks.join("sda")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(map.join("dm/uuid"), uuid).unwrap();
        fs::write(disks.join("sda/dev"), "8:0\n").unwrap();
        symlink(&map, folder.join("dev/block/253:0")).unwrap();
        if let Some(disk) = disk {
            symlink(disks.join(disk), map.join("slaves").join(disk)).unwrap();
        }
        settings
    }

    #[rstest]
    #[case::with_its_disk("mpath-0QEMU", Some("sda"), false)]
    #[case::taken_out_of_the_map("mpath-0QEMU", None, true)]
    #[case::pulled_and_still_in_the_map("mpath-0QEMU", Some("sdz"), true)]
    #[case::of_another_program("LVM-0QEMU", None, false)]
    fn a_map_whose_disk_was_pulled_is_gone_although_it_stays(
        #[case] uuid: &str,
        #[case] disk: Option<&str>,
        #[case] expected: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let settings = machine(folder.path(), uuid, disk);
        assert_eq!(is_gone(&settings, MAP), expected);
    }

    #[test]
    fn the_mount_of_a_map_without_a_disk_is_taken_for_that_of_a_pulled_disk() {
        let folder = tempfile::tempdir().unwrap();
        let settings = machine(folder.path(), "mpath-0QEMU", None);
        let mounts = mounts::parse(b"36 22 253:0 / /staging rw - ext4 /dev/dm-0 rw\n");
        // the disk that has come back is not in the map yet
        let back = Some(Number { major: 8, minor: 16 });
        for volume in [None, back] {
            assert_eq!(shown(&settings, &mounts, Path::new("/staging"), volume), Shown::Gone);
        }
    }
}
