//! What this computer lets the node service of a driver do.

use std::{env, fs, path::PathBuf};

/// Not every user has them in the search path, and the driver looks there too.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// What disks, mounts and pods' processes take.
const TOOLS: [&str; 6] = ["unshare", "nsenter", "losetup", "blkid", "mkfs.ext4", "e2fsck"];
/// The bit of CAP_SYS_RESOURCE among the capabilities.
const SYS_RESOURCE: u64 = 1 << 24;

fn has(tool: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders.into_iter().any(|folder| folder.join(tool).exists())
}

/// Why no pod can have a volume here.
pub fn lacking() -> Option<String> {
    if fs::File::options().write(true).open("/dev/loop-control").is_err() {
        return Some("only root may make loop devices and mount".to_owned());
    }
    let missing = TOOLS.into_iter().find(|tool| !has(tool))?;
    Some(format!("there is no {missing}: the packages util-linux and e2fsprogs have what is needed"))
}

/// A file system that grows while it is mounted. The kernel lets only a process with CAP_SYS_RESOURCE grow ext4, and some
/// containers lack it; without xfsprogs there is no xfs.
pub fn growing_file_system() -> Option<&'static str> {
    if ["mkfs.xfs", "xfs_growfs"].into_iter().all(has) {
        return Some("xfs");
    }
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?.trim();
    let held = u64::from_str_radix(held, 16).ok()?;
    (held & SYS_RESOURCE != 0 && has("resize2fs")).then_some("ext4")
}

/// What is said where there is none.
pub const NO_GROWTH: &str = "xfsprogs is not installed, and this process lacks CAP_SYS_RESOURCE for ext4";
