//! The device of a volume in the machine, and the wait for it.
//!
//! KubeVirt says that a disk is ready when QEMU has it. The kernel and udev of the machine need a moment more, so the
//! first call may come before the device is there.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

use super::Settings;
use super::device::{is_link_of, is_page_of, is_way_to_hot_plugged};
use super::mounts::Number;
use super::system::{blocking, internal};
use crate::refusal::Refusal;

/// Between two looks where the kernel refuses a watch: a machine has a limited number of them.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) path: PathBuf,
    pub(crate) number: Number,
}

/// A disk that is open, and was the volume's after it was opened. While it is open, the kernel gives neither its path nor
/// its number to another disk: a program that is run on it finds this disk or none.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) device: Device,
    _open: fs::File,
}

/// The number of the block device at `path`.
pub(crate) fn number(path: &Path) -> Option<Number> {
    number_of(&fs::metadata(path).ok()?)
}

fn number_of(found: &fs::Metadata) -> Option<Number> {
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    found.file_type().is_block_device().then_some(Number { major, minor })
}

/// The device of a volume as the machine shows it now: by udev's link, and by the pages of all disks. A link leads to one
/// disk, whichever came last, and udev may have made none.
///
/// # Errors
/// FAILED_PRECONDITION where two disks have the volume's identifier.
pub(crate) fn look(settings: &Settings, handle: &str) -> Result<Option<Device>, Refusal> {
    let links = names(&settings.device_directory);
    let named = |name: String| {
        let path = settings.devices.join(name);
        Some(Device { number: number(&path)?, path })
    };
    let linked = links.iter().filter(|name| is_link_of(name, handle)).filter_map(|name| {
        let path = fs::canonicalize(settings.device_directory.join(name)).ok()?;
        let number = number(&path)?;
        let folder = settings.sysfs.join("dev/block").join(number.to_string());
        if !leads_to(settings, &folder, handle) {
            return None;
        }
        map_over(settings, &folder, handle).map_or(Some(Device { path, number }), named)
    });
    let shown = shown(settings, handle).into_iter().filter_map(named);
    one(handle, linked.chain(shown))
}

/// Whether the end of a link is the volume's disk: no partition, and no disk that took the place of the volume's since
/// the link was made.
fn leads_to(settings: &Settings, folder: &Path, handle: &str) -> bool {
    let may_be_disk =
        || page(folder).is_none_or(|page| is_page_of(&page, handle)) && may_be_hot_plugged(settings, folder);
    !folder.join("partition").exists() && (may_be_disk() || is_map_of(settings, folder, handle))
}

/// The names of the disks whose page names the volume, or of the maps of them.
fn shown(settings: &Settings, handle: &str) -> Vec<String> {
    let blocks = settings.sysfs.join("block");
    let disks = names(&blocks).into_iter().filter(|name| is_disk_of(settings, &blocks.join(name), handle));
    disks.map(|name| map_over(settings, &blocks.join(&name), handle).unwrap_or(name)).collect()
}

/// The map that multipathd made of the disk, which it keeps to itself: the map is the disk then, whatever links lead to.
fn map_over(settings: &Settings, folder: &Path, handle: &str) -> Option<String> {
    let mut holders = names(&folder.join("holders")).into_iter();
    holders.find(|holder| is_map_of(settings, &settings.sysfs.join("block").join(holder), handle))
}

fn is_disk_of(settings: &Settings, folder: &Path, handle: &str) -> bool {
    page(folder).is_some_and(|page| is_page_of(&page, handle)) && may_be_hot_plugged(settings, folder)
}

/// A map of multipathd, by the kernel's name for it, and the disks below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) name: String,
    pub(crate) disks: Vec<Number>,
}

/// The map that has this number.
pub(crate) fn map_at(settings: &Settings, number: Number) -> Option<Map> {
    let folder = fs::canonicalize(settings.sysfs.join("dev/block").join(number.to_string())).ok()?;
    let name = folder.file_name()?.to_str()?.to_owned();
    let slaves = folder.join("slaves");
    let disks = names(&slaves)
        .into_iter()
        .filter_map(|disk| Number::parse(fs::read_to_string(slaves.join(disk).join("dev")).ok()?.trim()));
    is_map(&folder).then(|| Map { name, disks: disks.collect() })
}

/// The device of a disk that the machine has.
pub(crate) fn path_of(settings: &Settings, disk: Number) -> Option<PathBuf> {
    let folder = fs::canonicalize(settings.sysfs.join("dev/block").join(disk.to_string())).ok()?;
    Some(settings.devices.join(folder.file_name()?))
}

fn is_map(folder: &Path) -> bool {
    fs::read(folder.join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with(b"mpath-"))
}

/// Whether multipathd made a map of the volume's disk and of no other: it goes by what disks call themselves.
fn is_map_of(settings: &Settings, folder: &Path, handle: &str) -> bool {
    let slaves = folder.join("slaves");
    let disks = names(&slaves);
    is_map(folder)
        && !disks.is_empty()
        && disks.iter().all(|disk| is_disk_of(settings, &slaves.join(disk), handle))
}

/// Whether a disk may be one that KubeVirt plugged in. Whoever runs an iSCSI server decides what its disks call
/// themselves. True also where sysfs does not show the way to the disk.
fn may_be_hot_plugged(settings: &Settings, folder: &Path) -> bool {
    let way = fs::canonicalize(folder).ok();
    let devices = fs::canonicalize(settings.sysfs.join("devices")).ok();
    let way = way.zip(devices).and_then(|(way, devices)| Some(way.strip_prefix(devices).ok()?.to_owned()));
    way.is_none_or(|way| is_way_to_hot_plugged(&way))
}

/// The page of identifiers of a disk. A page has a length of two bytes.
fn page(folder: &Path) -> Option<Vec<u8>> {
    use std::io::Read as _;

    let mut bytes = Vec::new();
    let file = fs::File::open(folder.join("device/vpd_pg83")).ok()?;
    file.take((1 << 16) + 4).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn one(handle: &str, devices: impl Iterator<Item = Device>) -> Result<Option<Device>, Refusal> {
    let mut devices = devices;
    let Some(first) = devices.next() else { return Ok(None) };
    match devices.find(|other| other.number != first.number) {
        None => Ok(Some(first)),
        Some(other) => Err(Refusal::precondition(format!(
            "{} and {} both have the identifier drive-ua-{handle}: detach one of them from the machine",
            first.path.display(),
            other.path.display()
        ))),
    }
}

/// The device of a volume, as soon as it is there.
///
/// # Errors
/// NOT_FOUND when it is not there by `until`.
pub(crate) async fn wait(settings: &Settings, handle: &str, until: Instant) -> Result<Device, Refusal> {
    loop {
        // watched before it looks, so that nothing that comes in between is missed
        let arrivals = Arrivals::of(settings).map(|all| (all.count.subscribe(), all));
        if let Some(device) = look(settings, handle)? {
            return Ok(device);
        }
        if Instant::now() >= until {
            return Err(absent(settings, handle));
        }
        match arrivals {
            Ok((mut seen, arrivals)) => {
                // late or not, the loop looks once more
                drop(tokio::time::timeout_at(until, arrivals.next(&mut seen)).await);
            }
            Err(error) => {
                tracing::debug!(%error, "the folder of devices cannot be watched");
                tokio::time::sleep_until(until.min(Instant::now() + LOOK_AGAIN)).await;
            }
        }
    }
}

/// The device of a volume, as soon as it is there, for what reads or writes it.
///
/// # Errors
/// NOT_FOUND when it is not there by `until`; INTERNAL where it cannot be opened.
pub(crate) async fn hold(settings: &Settings, handle: &str, until: Instant) -> Result<Held, Refusal> {
    loop {
        let device = wait(settings, handle, until).await?;
        let path = device.path.clone();
        let opened = blocking(move || {
            let file = fs::File::open(path)?;
            let number = number_of(&file.metadata()?);
            io::Result::Ok((file, number))
        });
        match opened.await? {
            // another disk may have taken the place of the one that was found, before it was opened
            Ok((open, number)) if number == Some(device.number) => {
                if look(settings, handle)?.as_ref() == Some(&device) {
                    return Ok(Held { device, _open: open });
                }
            }
            Ok(_) => {}
            Err(error) if has_left(&error) => {}
            Err(error) => return Err(internal(&format!("open {}", device.path.display()), &error)),
        }
        if Instant::now() >= until {
            return Err(absent(settings, handle));
        }
        tokio::time::sleep_until(until.min(Instant::now() + LOOK_AGAIN)).await;
    }
}

/// Whether a disk that was found a moment ago is not in the machine any more.
fn has_left(error: &io::Error) -> bool {
    let codes = [Errno::NOENT, Errno::NXIO, Errno::NODEV];
    error.raw_os_error().is_some_and(|code| codes.iter().any(|one| one.raw_os_error() == code))
}

fn absent(settings: &Settings, handle: &str) -> Refusal {
    let folder = settings.device_directory.display();
    Refusal::new(
        Code::NotFound,
        format!(
            "no disk has the identifier drive-ua-{handle}: neither a link in {folder} nor a page of sysfs names it; look \
             whether the VirtualMachineInstance of this node shows the volume as Ready"
        ),
    )
}

/// Tells of each device that comes: of links by the folder of links or, as long as it does not exist, its nearest
/// parent, and of devices by the kernel's folder, for machines without udev. All calls that wait share it: Linux gives root
/// 128 instances of inotify in all, and kubelet needs some.
struct Arrivals {
    events: AsyncFd<OwnedFd>,
    count: watch::Sender<u64>,
}

static SHARED: Mutex<BTreeMap<[PathBuf; 2], Weak<Arrivals>>> = Mutex::new(BTreeMap::new());

impl Arrivals {
    fn of(settings: &Settings) -> io::Result<Arc<Self>> {
        let key = [settings.device_directory.clone(), settings.devices.clone()];
        let mut shared = SHARED.lock().expect("no panic while an entry is changed");
        shared.retain(|_, one| one.strong_count() > 0);
        let all = match shared.get(&key).and_then(Weak::upgrade) {
            Some(all) => all,
            None => {
                let all = Arc::new(Self::new()?);
                shared.insert(key, Arc::downgrade(&all));
                all
            }
        };
        let events = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // again each time: the folder of links may have come
        let folder = settings.device_directory.ancestors().find(|folder| folder.is_dir());
        for folder in folder.into_iter().chain([settings.devices.as_path()]) {
            inotify::add_watch(all.events.get_ref(), folder, events)?;
        }
        Ok(all)
    }

    #[expect(deprecated, reason = "the other way is unsafe code, for descriptors that their owner may close")]
    fn new() -> io::Result<Self> {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let events = AsyncFd::with_interest(events, Interest::READABLE)?;
        Ok(Self { events, count: watch::Sender::new(0) })
    }

    /// Returns when something has come since `seen` was subscribed. Of the calls that wait one reads, and tells the others.
    async fn next(&self, seen: &mut watch::Receiver<u64>) {
        tokio::select! {
            changed = seen.changed() => drop(changed),
            ready = self.events.readable() => {
                let Ok(mut ready) = ready else { return };
                while rustix::io::read(ready.get_inner(), &mut [0_u8; 4096]).is_ok_and(|bytes| bytes > 0) {}
                ready.clear_ready();
                self.count.send_modify(|count| *count += 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn settings(folder: &Path) -> Settings {
        Settings {
            device_directory: folder.join("disk/by-id"),
            sysfs: folder.join("sys"),
            devices: folder.join("dev"),
            ..Settings::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_does_not_come_is_named_at_the_callers_deadline() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("dev")).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let refusal = wait(&settings(folder.path()), "pvc-1", until).await.unwrap_err();
        assert_eq!(refusal.code, Code::NotFound);
        assert!(refusal.message.contains("drive-ua-pvc-1"), "{refusal}");
        assert!(Instant::now() >= until);
    }

    #[tokio::test]
    async fn calls_that_wait_for_their_disks_share_one_watch_and_each_hears_of_what_comes() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("dev")).unwrap();
        let settings = settings(folder.path());
        let (first, second) = (Arrivals::of(&settings).unwrap(), Arrivals::of(&settings).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        let (mut of_first, mut of_second) = (first.count.subscribe(), second.count.subscribe());
        fs::write(folder.path().join("dev/sda"), "").unwrap();
        first.next(&mut of_first).await;
        // the first has read what came
        second.next(&mut of_second).await;
        fs::create_dir_all(&settings.device_directory).unwrap();
        tokio::join!(first.next(&mut of_first), second.next(&mut of_second));
    }

    #[test]
    fn a_disk_counts_by_its_way_where_sysfs_shows_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let sysfs = |path: &str| settings.sysfs.join(path);
        let ways = [
            ("sda", "pci0/virtio3/host0/block/sda", true),
            ("sdb", "platform/host7/session1/block/sdb", false),
        ];
        fs::create_dir_all(sysfs("block")).unwrap();
        for (name, way, expected) in ways {
            fs::create_dir_all(sysfs("devices").join(way)).unwrap();
            std::os::unix::fs::symlink(sysfs("devices").join(way), sysfs("block").join(name)).unwrap();
            assert_eq!(may_be_hot_plugged(&settings, &sysfs("block").join(name)), expected, "{name}");
        }
        assert!(may_be_hot_plugged(&settings, &sysfs("block/absent")));
    }

    /// A disk in sysfs with this way and the page of the volume.
    fn disk(settings: &Settings, name: &str, way: &str) {
        let (folder, blocks) = (settings.sysfs.join("devices").join(way), settings.sysfs.join("block"));
        for folder in [&folder.join("device"), &folder.join("holders"), &folder.join("slaves"), &blocks] {
            fs::create_dir_all(folder).unwrap();
        }
        let page = [&[0, 0x83, 0, 18, 2, 0, 0, 14], &b"drive-ua-pvc-1"[..]].concat();
        fs::write(folder.join("device/vpd_pg83"), page).unwrap();
        std::os::unix::fs::symlink(&folder, blocks.join(name)).unwrap();
    }

    /// A map of device-mapper over these disks. Returns its folder.
    fn map(settings: &Settings, name: &str, uuid: &str, disks: &[&str]) -> PathBuf {
        let folder = settings.sysfs.join("devices/virtual/block").join(name);
        let blocks = settings.sysfs.join("block");
        for folder in [&folder.join("dm"), &folder.join("slaves"), &folder.join("holders"), &blocks] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(folder.join("dm/uuid"), format!("{uuid}\n")).unwrap();
        std::os::unix::fs::symlink(&folder, blocks.join(name)).unwrap();
        for disk in disks {
            let below = fs::canonicalize(blocks.join(disk)).unwrap();
            std::os::unix::fs::symlink(&folder, below.join("holders").join(name)).unwrap();
            std::os::unix::fs::symlink(&below, folder.join("slaves").join(disk)).unwrap();
        }
        folder
    }

    const MULTIPATH: &str = "mpath-0QEMU_QEMU_HARDDISK_drive-ua-pvc-1";
    const OWN: (&str, &str) = ("sda", "pci0/virtio3/host0/block/sda");
    const OF_A_SERVER: (&str, &str) = ("sdb", "platform/host7/session1/block/sdb");

    #[rstest]
    #[case::of_the_disk(&[OWN], MULTIPATH, true, &["dm-0"])]
    #[case::of_a_servers_disk(&[OF_A_SERVER], MULTIPATH, false, &[])]
    #[case::of_both(&[OWN, OF_A_SERVER], MULTIPATH, false, &["sda"])]
    #[case::of_another_program(&[OWN], "LVM-0QEMU", false, &["sda"])]
    #[case::of_no_disk(&[], MULTIPATH, false, &[])]
    fn a_disk_that_multipathd_has_a_map_of_is_the_map(
        #[case] disks: &[(&str, &str)],
        #[case] uuid: &str,
        #[case] is_linked: bool,
        #[case] expected: &[&str],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        for (name, way) in disks {
            disk(&settings, name, way);
        }
        let names: Vec<_> = disks.iter().map(|(name, _)| *name).collect();
        let map_of_disks = map(&settings, "dm-0", uuid, &names);
        assert_eq!(leads_to(&settings, &map_of_disks, "pvc-1"), is_linked);
        assert!(!leads_to(&settings, &map_of_disks, "pvc-2"));
        assert_eq!(shown(&settings, "pvc-1"), expected);
        assert!(shown(&settings, "pvc-2").is_empty());
        // of a partition of the map: its link ends in the handle too
        let part = map(&settings, "dm-1", "part1-mpath-0QEMU_QEMU_HARDDISK_drive-ua-pvc-1", &["dm-0"]);
        assert!(!leads_to(&settings, &part, "pvc-1"));
    }

    #[test]
    fn a_disk_without_a_map_is_itself() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        disk(&settings, OWN.0, OWN.1);
        disk(&settings, OF_A_SERVER.0, OF_A_SERVER.1);
        assert_eq!(shown(&settings, "pvc-1"), ["sda"]);
    }

    #[test]
    fn two_disks_of_one_name_are_both_named() {
        let device = |path: &str, minor| Device { path: path.into(), number: Number { major: 8, minor } };
        let (linked, shown) = (device("/dev/sda", 0), device("/dev/sdb", 16));
        let same = one("pvc-1", [linked.clone(), device("/dev/sda", 0)].into_iter());
        assert_eq!(same, Ok(Some(linked.clone())));
        let refusal = one("pvc-1", [linked, shown].into_iter()).unwrap_err();
        assert_eq!(refusal.code, Code::FailedPrecondition);
        assert!(refusal.message.contains("/dev/sda and /dev/sdb"), "{refusal}");
    }

    #[test]
    fn a_link_to_something_that_is_no_device_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        fs::create_dir_all(&settings.device_directory).unwrap();
        let link = settings.device_directory.join("scsi-0QEMU_QEMU_HARDDISK_drive-ua-pvc-1");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert_eq!(look(&settings, "pvc-1"), Ok(None));
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/nowhere", &link).unwrap();
        assert_eq!(look(&settings, "pvc-1"), Ok(None));
    }
}
