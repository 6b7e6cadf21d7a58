//! Disks: formatted, checked, mounted, and their file systems grown.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use tonic::Code;

use super::Settings;
use super::content::{self, Content, FileSystem, HEAD};
use super::find::{self, Device};
use super::mounts::{Mount, Number};
use super::plan::{self, Disk, Shown, Stage, Wanted};
use super::size;
use super::system::{blocking, internal, mounts, shown, unmount_all};
use super::tools::{self, BLKID, E2FSCK, MKFS_EXT4, MKFS_XFS, MOUNT, RESIZE2FS, Tool, XFS_GROWFS};
use crate::refusal::Refusal;

/// Mounts a volume's device at its staging path, and makes its file system where there is none.
///
/// # Errors
/// As [`plan::stage`], and where a program or the disk fails.
pub(crate) async fn stage(
    settings: &Settings,
    device: &Device,
    wanted: &Wanted,
    staging: &Path,
) -> Result<Mount, Refusal> {
    let seen = mounts()?;
    let present = shown(settings, &seen, staging, Some(device.number));
    let disk = examine(settings, device, &seen, staging).await?;
    for step in plan::stage(&present, &disk, wanted)? {
        match step {
            Stage::Unmount => unmount_all(staging).await?,
            Stage::Format { again } => format(device, wanted.file_system, again).await?,
            Stage::Check => check(&device.path).await?,
            Stage::Mount => mount(&device.path, wanted, staging).await?,
            Stage::Grow => grow(wanted.file_system, &device.path, staging).await?,
        }
    }
    match shown(settings, &mounts()?, staging, Some(device.number)) {
        Shown::Volume(mount) => Ok(mount),
        _ => Err(Refusal::new(
            Code::Internal,
            format!("{} is mounted and not seen at {}", device.path.display(), staging.display()),
        )),
    }
}

async fn examine(
    settings: &Settings,
    device: &Device,
    seen: &[Mount],
    staging: &Path,
) -> Result<Disk, Refusal> {
    let name = device.path.display().to_string();
    let (size, head) = read(&device.path).await?;
    if size == 0 {
        let next = "look at the volume on the host";
        return Err(Refusal::precondition(format!("{name} has no bytes: {next}")));
    }
    let mounted = seen.iter().find(|mount| mount.device == device.number);
    let content = match mounted.map(|mount| (FileSystem::seen(&mount.file_system), mount)) {
        Some((Some(kind), _)) => Content::FileSystem(kind, content::size(kind, &head)),
        Some((None, mount)) => Content::Other(mount.file_system.clone()),
        None => {
            let arguments =
                [OsStr::new("-p"), OsStr::new("-o"), OsStr::new("export"), device.path.as_os_str()];
            let found = tools::run(BLKID, &arguments).await?;
            content::of(&found, &head)
                .map_err(|said| Refusal::new(Code::Internal, format!("examine {name} by blkid: {said}")))?
        }
    };
    let is_mounted = seen.iter().any(|mount| mount.device == device.number && mount.target != staging);
    let is_map = find::map_at(settings, device.number).is_some();
    let was_elsewhere = match mounted {
        Some(mount) => was_elsewhere(settings, mount).await?,
        None => false,
    };
    Ok(Disk { name, size, content, is_mounted, is_map, was_elsewhere })
}

/// Whether another machine has mounted the disk of a map since this one mounted the map. xfs shows nobody what it holds, so
/// that it counts as the disk's.
///
/// # Errors
/// Where the map or its disk cannot be read.
pub(crate) async fn was_elsewhere(settings: &Settings, mount: &Mount) -> Result<bool, Refusal> {
    let Some(FileSystem::Ext4) = FileSystem::seen(&mount.file_system) else { return Ok(false) };
    let Some(map) = find::map_at(settings, mount.device) else { return Ok(false) };
    // ext4 keeps its superblock where reads of the device find it
    let (_, held) = read(&settings.devices.join(&map.name)).await?;
    for disk in map.disks.iter().filter_map(|disk| find::path_of(settings, *disk)) {
        if content::was_elsewhere(&held, &read_past_memory(&disk).await?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first bytes of a disk as they are on it, and not as the kernel remembers them.
async fn read_past_memory(path: &Path) -> Result<Vec<u8>, Refusal> {
    /// The kernel has the disk write to it.
    #[repr(align(4096))]
    struct Aligned([u8; HEAD]);

    let of = path.to_owned();
    let directly = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    let read = blocking(move || -> io::Result<_> {
        let mut file = fs::OpenOptions::new().read(true).custom_flags(directly).open(of)?;
        let mut head = Box::new(Aligned([0; HEAD]));
        file.read_exact(&mut head.0)?;
        Ok(head.0.to_vec())
    });
    read.await?.map_err(|error| internal(&format!("read {}", path.display()), &error))
}

/// The size of a disk and its first bytes. A disk that cannot be read is never taken for a blank one.
async fn read(path: &Path) -> Result<(u64, Vec<u8>), Refusal> {
    let of = path.to_owned();
    let read = blocking(move || -> io::Result<_> {
        let mut file = fs::File::open(of)?;
        let size = file.seek(io::SeekFrom::End(0))?;
        file.rewind()?;
        let mut head = Vec::with_capacity(HEAD);
        file.take(HEAD as u64).read_to_end(&mut head)?;
        Ok((size, head))
    });
    read.await?.map_err(|error| internal(&format!("read {}", path.display()), &error))
}

async fn format(device: &Device, file_system: FileSystem, again: bool) -> Result<(), Refusal> {
    let path = device.path.clone();
    // a mkfs that outlived its driver, or a program that owns the disk, such as multipathd
    let exclusively = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
    let opened =
        blocking(move || fs::OpenOptions::new().read(true).custom_flags(exclusively).open(path)).await?;
    let name = device.path.display();
    match opened {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            return Err(Refusal::aborted(format!(
                "format {name}: another program uses the disk (an earlier mkfs, multipathd, LVM): call again when it \
                 has ended"
            )));
        }
        opened => drop(opened.map_err(|error| internal(&format!("open {name}"), &error))?),
    }
    let (tool, options): (Tool, &[&str]) = match file_system {
        // as Kubernetes does: no question, and no blocks kept for root
        FileSystem::Ext4 => (MKFS_EXT4, &["-q", "-F", "-m0"]),
        // without -f it refuses a disk with a signature, should one have come since the disk was examined
        FileSystem::Xfs if again => (MKFS_XFS, &["-q", "-f"]),
        FileSystem::Xfs => (MKFS_XFS, &["-q"]),
    };
    let arguments: Vec<_> = options.iter().map(OsStr::new).chain([device.path.as_os_str()]).collect();
    tracing::info!(device = %name, file_system = file_system.name(), "format the disk, which is blank");
    tools::run(tool, &arguments).await?.succeeded(&format!("format {name}"), tool).map(drop)
}

async fn check(path: &Path) -> Result<(), Refusal> {
    const CORRECTED: [i32; 3] = [0, 1, 2];
    const UNCORRECTED: i32 = 4;
    let output = tools::run(E2FSCK, &[OsStr::new("-p"), path.as_os_str()]).await?;
    match output.code {
        Some(code) if CORRECTED.contains(&code) => Ok(()),
        Some(code) if code & UNCORRECTED != 0 => Err(Refusal::precondition(format!(
            "e2fsck -p does not repair {0}: take a snapshot and run e2fsck {0} by hand: {1}",
            path.display(),
            output.said()
        ))),
        // whether it can be mounted is for the kernel to say, as with Kubernetes
        _ => {
            tracing::warn!(device = %path.display(), said = output.said(), "e2fsck could not check the file system");
            Ok(())
        }
    }
}

async fn mount(path: &Path, wanted: &Wanted, staging: &Path) -> Result<(), Refusal> {
    let options = options(wanted);
    let text = ["-t", wanted.file_system.name(), "-o", &options, "--"].map(OsStr::new);
    let arguments: Vec<_> = text.into_iter().chain([path.as_os_str(), staging.as_os_str()]).collect();
    let doing = format!("mount {} at {}", path.display(), staging.display());
    tools::run(MOUNT, &arguments).await?.succeeded(&doing, MOUNT).map(drop)
}

/// A clone and a restored snapshot of an xfs have its UUID, and the kernel mounts one UUID once: `nouuid`
/// (docs/contract/csi-driver.md#nouuid). What an ext4 does with a fault is otherwise for its superblock to say, and whoever
/// had the volume as a raw device wrote that: `panic` would end the node.
fn options(wanted: &Wanted) -> String {
    let mut options: Vec<&str> = wanted.options.iter().map(String::as_str).collect();
    if wanted.read_only && !options.contains(&"ro") {
        options.push("ro");
    }
    if wanted.file_system == FileSystem::Xfs && !options.contains(&"nouuid") {
        options.push("nouuid");
    }
    let says_errors = options.iter().any(|option| option.split('=').next() == Some("errors"));
    if wanted.file_system == FileSystem::Ext4 && !says_errors {
        options.push("errors=remount-ro");
    }
    if options.is_empty() { "defaults".to_owned() } else { options.join(",") }
}

/// Lets a mounted file system fill its disk; nothing happens where it does.
async fn grow(file_system: FileSystem, device: &Path, at: &Path) -> Result<(), Refusal> {
    let (tool, arguments) = match file_system {
        FileSystem::Ext4 => (RESIZE2FS, vec![device.as_os_str()]),
        FileSystem::Xfs => (XFS_GROWFS, vec![OsStr::new("-d"), at.as_os_str()]),
    };
    let doing = format!("grow the file system on {}", device.display());
    tools::run(tool, &arguments).await?.succeeded(&doing, tool).map(drop)
}

/// Lets what is mounted at `path` fill its disk, which is to have `required` bytes. Returns the size of the disk.
///
/// # Errors
/// FAILED_PRECONDITION where no file system of a disk is mounted at `path`; UNAVAILABLE while the disk is too small.
pub(crate) async fn expand(
    settings: &Settings,
    handle: &str,
    mount: &Mount,
    path: &Path,
    required: u64,
) -> Result<u64, Refusal> {
    let device = match find::look(settings, handle)? {
        Some(device) if device.number != mount.device => {
            return Err(Refusal::precondition(format!(
                "{} is mounted at {}, and volume {handle} is {}: the path is another volume's",
                mount.source.display(),
                path.display(),
                device.path.display()
            )));
        }
        Some(device) => device.path,
        None if find::number(&mount.source) == Some(mount.device) => mount.source.clone(),
        None => {
            let text =
                format!("the disk of volume {handle}, mounted at {}, has left the machine", path.display());
            return Err(Refusal::new(Code::Unavailable, text));
        }
    };
    let Some(kind) = FileSystem::seen(&mount.file_system) else {
        return Err(Refusal::precondition(format!(
            "{} has {}, which the driver does not grow: grow it by hand",
            path.display(),
            mount.file_system
        )));
    };
    let size = size::grown(settings, &device, required).await?;
    grow(kind, &device, path).await?;
    Ok(size)
}

/// Another place below kubelet's root at which a whole file system is mounted too.
pub(crate) fn another<'a>(
    root: &Path,
    seen: &'a [Mount],
    device: Number,
    folder: &Path,
    but: &[&Path],
) -> Option<&'a Path> {
    let mut others = seen.iter().filter(|mount| {
        mount.device == device
            && mount.root == folder
            && mount.target.starts_with(root)
            && !but.contains(&mount.target.as_path())
    });
    others.next().map(|mount| mount.target.as_path())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // docs/contract/csi-driver.md#nouuid
    #[rstest]
    #[case(FileSystem::Ext4, &[], false, "errors=remount-ro")]
    #[case(FileSystem::Ext4, &["noatime", "context=\"a:b:c0,c1\""], false, "noatime,context=\"a:b:c0,c1\",errors=remount-ro")]
    #[case(FileSystem::Ext4, &["ro"], true, "ro,errors=remount-ro")]
    #[case::as_the_class_says(FileSystem::Ext4, &["errors=continue"], false, "errors=continue")]
    #[case(FileSystem::Xfs, &[], true, "ro,nouuid")]
    #[case(FileSystem::Xfs, &["nouuid"], false, "nouuid")]
    fn the_options_of_a_class_are_kept_and_no_content_of_a_volume_ends_the_node(
        #[case] file_system: FileSystem,
        #[case] options: &[&str],
        #[case] read_only: bool,
        #[case] expected: &str,
    ) {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let wanted = Wanted { file_system, may_make: true, options, read_only };
        assert_eq!(super::options(&wanted), expected);
    }
}
