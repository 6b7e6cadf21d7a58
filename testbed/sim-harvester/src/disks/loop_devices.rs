//! Disks as block devices of this computer, for a node service that runs on it.
//!
//! ```text
//! folder/volumes/…
//!    ▲ loop device
//! folder/links/<namespace>/<VM>/scsi-0QEMU_QEMU_HARDDISK_drive-ua-<volume>      while the disk is plugged in
//! ```
//! Only root may make loop devices. They go with the simulation, however it ends.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use controller_kit::ObjectKey;

use super::Machines;

/// udev's name of a disk up to the name of its volume.
const LINK: &str = "scsi-0QEMU_QEMU_HARDDISK_drive-ua-";
/// As many disks as all tests that run at once have, or a node of the benchmark with a hundred volumes.
const NODES: u32 = 160;
/// The kernel's number of the driver.
const LOOP_MAJOR: &str = "7";

/// The folder that stands for `/dev/disk/by-id` in a VM.
pub fn links(folder: &Path, vm: &ObjectKey) -> PathBuf {
    folder.join("links").join(&vm.namespace).join(&vm.name)
}

/// A loop device over a file: its path. The kernel makes as many as are asked for, but a container may lack the device
/// nodes of all but the first few; these are made here.
///
/// # Errors
/// What `losetup` says.
pub fn attach(file: &Path) -> io::Result<String> {
    let arguments = ["--find", "--show", text(file)?];
    losetup(&arguments).or_else(|_| {
        make_nodes()?;
        losetup(&arguments)
    })
}

fn make_nodes() -> io::Result<()> {
    for number in 0..NODES {
        let (path, minor) = (format!("/dev/loop{number}"), number.to_string());
        if !Path::new(&path).exists() {
            // somebody else may be making it
            Command::new("mknod").args(["-m", "660", &path, "b", LOOP_MAJOR, &minor]).output()?;
        }
    }
    Ok(())
}

/// Runs `losetup` and returns what it says.
fn losetup(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("losetup").args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("losetup {}: {why}", arguments.join(" "))))
}

fn text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other(format!("{} is no UTF-8", path.display())))
}

/// A loop device; it goes with this value and its last user, also when this process is killed.
#[derive(Debug)]
struct Loop {
    path: String,
    _open: fs::File,
}

impl Loop {
    fn over(file: &Path) -> io::Result<Self> {
        let path = attach(file)?;
        let open = fs::File::open(&path)?;
        // the kernel does it when nobody has the device open any more
        losetup(&["--detach", &path])?;
        Ok(Self { path, _open: open })
    }
}

/// VMs whose disks are loop devices.
#[derive(Debug)]
pub(crate) struct LoopDevices {
    folder: PathBuf,
    plugged: BTreeMap<PathBuf, Loop>,
}

impl LoopDevices {
    /// Of the volumes in `folder`.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        let this = Self { folder: folder.to_owned(), plugged: BTreeMap::new() };
        match fs::remove_dir_all(folder.join("links")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(folder.join("links"))?;
        Ok(this)
    }

    fn link(&self, vm: &ObjectKey, volume: &str) -> PathBuf {
        links(&self.folder, vm).join(format!("{LINK}{volume}"))
    }
}

impl Drop for LoopDevices {
    fn drop(&mut self) {
        // a device's number may be another volume's next
        for link in self.plugged.keys() {
            drop(fs::remove_file(link));
        }
    }
}

impl Machines for LoopDevices {
    fn plug(&mut self, vm: &ObjectKey, volume: &str, file: &Path) -> io::Result<()> {
        let device = Loop::over(file)?;
        let link = self.link(vm, volume);
        if let Some(parent) = link.parent() {
            fs::create_dir_all(parent)?;
        }
        symlink(&device.path, &link)?;
        self.plugged.insert(link, device);
        Ok(())
    }

    fn pull(&mut self, vm: &ObjectKey, volume: &str) -> io::Result<()> {
        let link = self.link(vm, volume);
        if self.plugged.remove(&link).is_some() {
            fs::remove_file(&link)?;
        }
        Ok(())
    }

    fn grow(&mut self, vm: &ObjectKey, volume: &str, _: u64) -> io::Result<()> {
        let device = self.plugged.get(&self.link(vm, volume));
        device.map_or(Ok(()), |device| losetup(&["--set-capacity", &device.path]).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_link_that_udev_makes() {
        let devices = LoopDevices { folder: "/run/disks".into(), plugged: BTreeMap::new() };
        let link = devices.link(&ObjectKey::new("shop", "guest-1"), "a");
        assert_eq!(link, Path::new("/run/disks/links/shop/guest-1/scsi-0QEMU_QEMU_HARDDISK_drive-ua-a"));
    }
}
