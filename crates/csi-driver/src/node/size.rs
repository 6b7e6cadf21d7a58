//! How large a disk is, and the wait until it is as large as the host has made it.
//!
//! The machine's kernel hears of a growth when it asks the disk again. A map of multipathd keeps its size until multipathd
//! is told to resize it (`auto_resize` is `never` unless somebody configured it). That goes by what udev has said of the
//! disk, which may be late: multipathd answers "ok" then, and nothing has changed, so it is told again.

use std::fs;
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::Settings;
use super::find::{self, Map};
use super::mounts::Number;
use super::system::{blocking, internal};
use super::tools::{self, NSENTER, Output};
use crate::refusal::Refusal;

/// The host has grown a disk before the machine's kernel knows. sysfs tells nobody when a size changes, so the node
/// service asks again.
const SIZE_AGAIN: Duration = Duration::from_millis(500);
/// As long as it asks.
const SIZE_WITHIN: Duration = Duration::from_secs(10);

/// The size of a disk, of the kernel's own knowledge where sysfs has it: a disk that hangs lets nobody open it.
///
/// # Errors
/// Those of the system.
pub(crate) fn now(settings: &Settings, path: &Path) -> io::Result<u64> {
    match find::number(path).and_then(|number| shown(settings, number)) {
        Some(size) => Ok(size),
        None => fs::File::open(path)?.seek(io::SeekFrom::End(0)),
    }
}

/// The size of a disk as sysfs has it.
fn shown(settings: &Settings, number: Number) -> Option<u64> {
    const SECTOR: u64 = 512;
    let file = folder(settings, number).join("size");
    fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()?.checked_mul(SECTOR)
}

/// By the disk's number: a raw device is published under the name of its pod's volume.
fn folder(settings: &Settings, number: Number) -> PathBuf {
    settings.sysfs.join("dev/block").join(number.to_string())
}

/// What to do for a disk that is too small.
#[derive(Debug, PartialEq, Eq)]
enum Next<'a> {
    /// Ask these disks for their sizes again.
    Rescan(Vec<Number>),
    /// Have multipathd resize its map.
    Resize(&'a str),
}

/// `size_of` has the size of a disk below a map.
fn next<'a>(
    disk: Option<Number>,
    map: Option<&'a Map>,
    required: u64,
    size_of: impl Fn(Number) -> Option<u64>,
) -> Next<'a> {
    match map {
        None => Next::Rescan(disk.into_iter().collect()),
        Some(map) if map.disks.iter().all(|disk| size_of(*disk) >= Some(required)) => Next::Resize(&map.name),
        Some(map) => Next::Rescan(map.disks.clone()),
    }
}

/// The size of a disk that the host has grown to `required` bytes.
///
/// # Errors
/// UNAVAILABLE while it is smaller, by however little: kubelet never calls again after an answer. (A disk that the host
/// keeps as a file, a little smaller than its claim, does not grow in a machine: docs/contract/csi-driver.md#hot-plug-refused.)
pub(crate) async fn grown(settings: &Settings, device: &Path, required: u64) -> Result<u64, Refusal> {
    grown_by(settings, device, find::number(device), required, resize).await
}

async fn grown_by(
    settings: &Settings,
    device: &Path,
    number: Option<Number>,
    required: u64,
    resize: impl AsyncFn(&str) -> Result<(), Refusal>,
) -> Result<u64, Refusal> {
    let until = Instant::now() + SIZE_WITHIN;
    let map = number.and_then(|number| find::map_at(settings, number));
    loop {
        let found = match number.and_then(|number| shown(settings, number)) {
            Some(size) => size,
            None => {
                let (of, path) = (settings.clone(), device.to_owned());
                let read = blocking(move || now(&of, &path)).await?;
                read.map_err(|error| internal(&format!("read the size of {}", device.display()), &error))?
            }
        };
        if found >= required {
            return Ok(found);
        }
        let next = next(number, map.as_ref(), required, |disk| shown(settings, disk));
        if Instant::now() >= until {
            let device = device.display();
            let why = match next {
                Next::Resize(map) => format!(
                    ", though the disk below it has, and multipathd says ok to `multipathd resize map {map}`"
                ),
                Next::Rescan(_) => String::new(),
            };
            return Err(Refusal::new(
                Code::Unavailable,
                format!(
                    "{device} has {found} bytes yet, and the volume is to have {required}{why}: call again later"
                ),
            ));
        }
        match next {
            Next::Rescan(disks) => disks.into_iter().for_each(|disk| rescan(settings, disk)),
            Next::Resize(map) => resize(map).await?,
        }
        tokio::time::sleep(SIZE_AGAIN).await;
    }
}

/// Asks a SCSI disk for its size again; other disks have no such file.
fn rescan(settings: &Settings, number: Number) {
    let asked = fs::OpenOptions::new().write(true).open(folder(settings, number).join("device/rescan"));
    if let Err(error) = asked.and_then(|mut file| io::Write::write_all(&mut file, b"1")) {
        tracing::debug!(%number, %error, "the disk is not asked for its size");
    }
}

/// Tells the machine's own multipathd. Its socket is one of the machine's network, and the program is one of the machine:
/// process 1 has both where the pod sees the machine's processes (`hostPID`).
async fn resize(map: &str) -> Result<(), Refusal> {
    let enter = ["--mount=/proc/1/ns/mnt", "--net=/proc/1/ns/net", "--"];
    let arguments = [&enter[..], &["multipathd", "resize", "map", map]].concat();
    is_resized(map, &tools::run(NSENTER, &arguments).await?)
}

/// # Errors
/// UNAVAILABLE where multipathd refuses, or is not there. Older clients of it end with 0 when it answers "fail".
fn is_resized(map: &str, output: &Output) -> Result<(), Refusal> {
    if output.code == Some(0) && output.stdout.trim_start().starts_with("ok") {
        return Ok(());
    }
    Err(Refusal::new(
        Code::Unavailable,
        format!(
            "{map} is a map that multipathd made of the volume's disk, and grows by `multipathd resize map {map}` alone, \
             which fails on this node ({}): run it there, then the growth goes on; a blacklist in /etc/multipath.conf keeps \
             multipathd from disks of QEMU",
            output.said()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rstest::rstest;

    use super::*;

    // kubelet takes the answer for the growth, and never asks again
    #[tokio::test(start_paused = true)]
    async fn a_growth_of_less_than_a_tenth_waits_for_the_disk_too() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        disk.as_file().set_len(100).unwrap();
        let refusal = grown(&Settings::default(), disk.path(), 101).await.unwrap_err();
        assert_eq!(refusal.code, Code::Unavailable, "{refusal}");
        disk.as_file().set_len(101).unwrap();
        assert_eq!(grown(&Settings::default(), disk.path(), 101).await, Ok(101));
    }

    // the target of a pod is no name of sysfs
    #[test]
    fn a_raw_disk_is_asked_for_its_size_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { sysfs: folder.path().to_owned(), ..Settings::default() };
        let device = folder.path().join("dev/block/8:16/device");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("rescan"), "").unwrap();
        rescan(&settings, DISK);
        assert_eq!(fs::read_to_string(device.join("rescan")).unwrap(), "1");
    }

    const DISK: Number = Number { major: 8, minor: 16 };
    const MAP: Number = Number { major: 252, minor: 0 };

    fn map() -> Map {
        Map { name: "dm-0".to_owned(), disks: vec![DISK] }
    }

    #[rstest]
    #[case::a_disk(None, 1, Next::Rescan(vec![MAP]))]
    #[case::a_map_of_a_disk_that_has_not_grown(Some(map()), 1, Next::Rescan(vec![DISK]))]
    #[case::a_map_of_a_disk_that_has_grown(Some(map()), 2, Next::Resize("dm-0"))]
    fn multipathd_is_told_when_the_disk_below_its_map_has_grown(
        #[case] map: Option<Map>,
        #[case] size: u64,
        #[case] expected: Next<'static>,
    ) {
        assert_eq!(next(Some(MAP), map.as_ref(), 2, |disk| (disk == DISK).then_some(size)), expected);
    }

    /// sysfs with a map over a disk, of one sector each.
    fn sysfs(folder: &Path) -> Settings {
        let settings = Settings { sysfs: folder.to_owned(), ..Settings::default() };
        for (name, number) in [("sdb", DISK), ("dm-0", MAP)] {
            let block = folder.join("devices").join(name);
            for part in ["device", "dm", "slaves"] {
                fs::create_dir_all(block.join(part)).unwrap();
            }
            fs::create_dir_all(folder.join("dev/block")).unwrap();
            fs::write(block.join("dev"), format!("{number}\n")).unwrap();
            fs::write(block.join("device/rescan"), "").unwrap();
            std::os::unix::fs::symlink(&block, folder.join("dev/block").join(number.to_string())).unwrap();
        }
        fs::write(folder.join("devices/dm-0/dm/uuid"), "mpath-0QEMU\n").unwrap();
        std::os::unix::fs::symlink(folder.join("devices/sdb"), folder.join("devices/dm-0/slaves/sdb"))
            .unwrap();
        settings
    }

    #[tokio::test(start_paused = true)]
    async fn a_map_of_multipathd_grows_with_its_disk_however_late_udev_is() {
        let folder = tempfile::tempdir().unwrap();
        let settings = sysfs(folder.path());
        let size = |name: &str, sectors: u32| {
            fs::write(folder.path().join("devices").join(name).join("size"), sectors.to_string()).unwrap();
        };
        size("dm-0", 1);
        size("sdb", 2);
        let told = RefCell::new(vec![]);
        let resize = async |map: &str| {
            told.borrow_mut().push(map.to_owned());
            if told.borrow().len() == 3 {
                size("dm-0", 2);
            }
            Ok(())
        };
        let device = Path::new("/dev/dm-0");
        assert_eq!(grown_by(&settings, device, Some(MAP), 1024, resize).await, Ok(1024));
        assert_eq!(*told.borrow(), ["dm-0"; 3]);

        // the disk has not grown yet
        let refusal = grown_by(&settings, device, Some(MAP), 2048, async |_: &str| -> Result<(), Refusal> {
            unreachable!()
        })
        .await
        .unwrap_err();
        assert_eq!(refusal.code, Code::Unavailable, "{refusal}");
        assert_eq!(fs::read_to_string(folder.path().join("devices/sdb/device/rescan")).unwrap().trim(), "1");
        size("sdb", 4);
        let refusal = grown_by(&settings, device, Some(MAP), 2048, async |_: &str| Ok(())).await.unwrap_err();
        assert!(refusal.message.contains("says ok to `multipathd resize map dm-0`"), "{refusal}");
    }

    #[rstest]
    #[case::done(Some(0), "ok\n", true)]
    #[case::refused(Some(0), "fail\n", false)]
    #[case::no_daemon(Some(1), "", false)]
    #[case::no_program(Some(127), "", false)]
    #[case::ended(None, "ok\n", false)]
    fn a_growth_that_multipathd_refuses_names_its_command(
        #[case] code: Option<i32>,
        #[case] stdout: &str,
        #[case] is_done: bool,
    ) {
        let output = Output { code, stdout: stdout.to_owned(), stderr: String::new() };
        match is_resized("dm-0", &output) {
            Ok(()) => assert!(is_done),
            Err(refusal) => {
                assert!(!is_done, "{refusal}");
                assert!(refusal.message.contains("`multipathd resize map dm-0`"), "{refusal}");
            }
        }
    }
}
