//! The disks of hot-plugged volumes as block devices of this computer: what a node service finds in its VM.
//!
//! ```text
//! folder/volumes/<namespace>.<claim>       a sparse file of the claim's size, until the claim is deleted
//! folder/snapshots/<namespace>.<snapshot>  what was in the claim's file when the snapshot came, until it is deleted
//!            ▲ loop device
//! folder/links/<namespace>/<VM>/scsi-0QEMU_QEMU_HARDDISK_drive-ua-<volume>      while the volume is Ready in the VM
//! ```
//! A claim with a source begins with what is in the file of its snapshot or claim when a VM has it first.
//! Only root may make loop devices. They go with the simulation, however it ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Notify;

use controller_kit::{Cache, ObjectKey};
use program::TaskGroup;

use crate::{
    quota::thousandths,
    storage::snapshot::VolumeSnapshot,
    vm::{Instance, controller::VmController},
    volumes::{claim, name, volumes},
};

/// udev's name of a disk up to the name of its volume.
const LINK: &str = "scsi-0QEMU_QEMU_HARDDISK_drive-ua-";
/// A loop device that could not be made is tried again: nothing tells of one that becomes free.
const AGAIN: Duration = Duration::from_secs(1);

/// As many disks as all tests that run at once have.
const NODES: u32 = 64;
/// The kernel's number of the driver.
const LOOP_MAJOR: &str = "7";

/// The folder that stands for `/dev/disk/by-id` in a VM.
pub fn links(folder: &Path, vm: &ObjectKey) -> PathBuf {
    folder.join("links").join(&vm.namespace).join(&vm.name)
}

/// One disk in one VM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Disk {
    vm: ObjectKey,
    volume: String,
    claim: String,
}

impl Disk {
    fn of_claim(&self) -> ObjectKey {
        ObjectKey::new(&self.vm.namespace, &self.claim)
    }

    fn link(&self, folder: &Path) -> PathBuf {
        links(folder, &self.vm).join(format!("{LINK}{}", self.volume))
    }
}

/// The disks that an instance has: its hot-plugged volumes that are ready.
fn of_instance(vm: &ObjectKey, instance: &Value) -> Vec<Disk> {
    let statuses = instance["status"]["volumeStatus"].as_array().map_or(&[][..], Vec::as_slice);
    let ready =
        statuses.iter().filter(|status| status["phase"] == "Ready" && status["hotplugVolume"].is_object());
    let disk = |status: &Value| {
        // it stays after the volume has left the spec, until it is unplugged
        let of_spec =
            volumes(&instance["spec"]).iter().find(|volume| name(volume) == name(status)).and_then(claim);
        let claim = of_spec.or_else(|| status["persistentVolumeClaimInfo"]["claimName"].as_str())?.to_owned();
        Some(Disk { vm: vm.clone(), volume: name(status).to_owned(), claim })
    };
    ready.filter_map(disk).collect()
}

/// The bytes of a claim's volume.
fn bytes(claim: &PersistentVolumeClaim) -> Option<u64> {
    let capacity = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    u64::try_from(thousandths(&capacity.0)? / 1_000).ok()
}

/// A claim, as far as its file goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Claim {
    size: Option<u64>,
    /// The snapshot or the claim that its contents come from.
    source: Option<Source>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Snapshot(ObjectKey),
    Claim(ObjectKey),
}

fn source(claim: &PersistentVolumeClaim) -> Option<Source> {
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    let source = claim.spec.as_ref()?.data_source.as_ref()?;
    let key = ObjectKey::new(namespace, &source.name);
    match source.kind.as_str() {
        "VolumeSnapshot" => Some(Source::Snapshot(key)),
        "PersistentVolumeClaim" => Some(Source::Claim(key)),
        _ => None,
    }
}

/// Copies a file. A volume that no VM has had yet has none, and nothing in it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.exists() {
        return fs::File::create(to).map(drop);
    }
    // a process that dies in the middle leaves no half file under the name
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let output = Command::new("cp").arg("--sparse=always").args([from, part.as_path()]).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    fs::rename(part, to)
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

/// The disks that are there.
#[derive(Debug)]
struct Disks {
    folder: PathBuf,
    attached: BTreeMap<Disk, Loop>,
}

impl Drop for Disks {
    fn drop(&mut self) {
        // a device's number may be another volume's next
        for disk in self.attached.keys() {
            drop(fs::remove_file(disk.link(&self.folder)));
        }
    }
}

impl Disks {
    fn new(folder: &Path) -> io::Result<Self> {
        let this = Self { folder: folder.to_owned(), attached: BTreeMap::new() };
        match fs::remove_dir_all(folder.join("links")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(folder.join("links"))?;
        fs::create_dir_all(folder.join("volumes"))?;
        fs::create_dir_all(folder.join("snapshots"))?;
        Ok(this)
    }

    fn file(&self, claim: &ObjectKey) -> PathBuf {
        // neither name has a slash; a namespace has no dot
        self.folder.join("volumes").join(format!("{}.{}", claim.namespace, claim.name))
    }

    fn snapshot(&self, snapshot: &ObjectKey) -> PathBuf {
        self.folder.join("snapshots").join(format!("{}.{}", snapshot.namespace, snapshot.name))
    }

    /// Keeps the contents of claims of which there is a snapshot, by snapshot, and forgets those of the others.
    fn keep(&self, snapshots: &BTreeMap<ObjectKey, ObjectKey>) -> io::Result<()> {
        for (snapshot, claim) in snapshots {
            let file = self.snapshot(snapshot);
            if !file.exists() {
                copy(&self.file(claim), &file)?;
            }
        }
        let known: BTreeSet<_> = snapshots.keys().map(|snapshot| self.snapshot(snapshot)).collect();
        for file in fs::read_dir(self.folder.join("snapshots"))? {
            let file = file?.path();
            if !known.contains(&file) {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }

    /// Makes it so that `wanted` are attached, with volumes of these bytes, and that there are files of these claims alone.
    /// What fails does not keep the rest from being done; the last failure is told.
    fn follow(
        &mut self,
        wanted: &BTreeSet<Disk>,
        claims: &BTreeMap<ObjectKey, Claim>,
        snapshots: &BTreeMap<ObjectKey, ObjectKey>,
    ) -> io::Result<()> {
        let mut failed = None;
        let mut note = |done: io::Result<()>| failed = done.err().or(failed.take());
        note(self.keep(snapshots));
        let gone: Vec<_> = self.attached.keys().filter(|disk| !wanted.contains(disk)).cloned().collect();
        for disk in gone {
            note(fs::remove_file(disk.link(&self.folder)));
            self.attached.remove(&disk);
        }
        for (key, claim) in claims {
            note(self.grow(key, claim.size.unwrap_or_default()));
        }
        for disk in wanted {
            if let Some(Claim { size: Some(size), source }) = claims.get(&disk.of_claim())
                && !self.attached.contains_key(disk)
            {
                note(self.attach(disk, *size, source.as_ref()));
            }
        }
        note(self.forget(claims));
        failed.map_or(Ok(()), Err)
    }

    fn attach(&mut self, disk: &Disk, size: u64, source: Option<&Source>) -> io::Result<()> {
        let path = self.file(&disk.of_claim());
        match source.filter(|_| !path.exists()) {
            Some(Source::Snapshot(of)) => copy(&self.snapshot(of), &path)?,
            Some(Source::Claim(of)) => copy(&self.file(of), &path)?,
            None => {}
        }
        let file = fs::File::options().create(true).append(true).open(&path)?;
        if file.metadata()?.len() < size {
            file.set_len(size)?;
        }
        let device = Loop::over(&path)?;
        let link = disk.link(&self.folder);
        if let Some(parent) = link.parent() {
            fs::create_dir_all(parent)?;
        }
        symlink(&device.path, &link)?;
        self.attached.insert(disk.clone(), device);
        Ok(())
    }

    /// A volume that has grown is larger in all VMs that have it.
    fn grow(&self, claim: &ObjectKey, size: u64) -> io::Result<()> {
        let Ok(file) = fs::File::options().append(true).open(self.file(claim)) else { return Ok(()) };
        if file.metadata()?.len() >= size {
            return Ok(());
        }
        file.set_len(size)?;
        let devices = self.attached.iter().filter(|(disk, _)| disk.of_claim() == *claim);
        devices
            .map(|(_, device)| losetup(&["--set-capacity", &device.path]))
            .try_for_each(|done| done.map(drop))
    }

    /// Removes the files of claims that are gone.
    fn forget(&self, claims: &BTreeMap<ObjectKey, Claim>) -> io::Result<()> {
        let known: BTreeSet<_> = claims.keys().map(|claim| self.file(claim)).collect();
        let attached: BTreeSet<_> = self.attached.keys().map(|disk| self.file(&disk.of_claim())).collect();
        for file in fs::read_dir(self.folder.join("volumes"))? {
            let file = file?.path();
            if !known.contains(&file) && !attached.contains(&file) {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }
}

/// Has the disks of all VMs in `folder` until `tasks` ends.
pub(crate) fn start(
    tasks: &TaskGroup,
    harvester: &Client,
    folder: &Path,
    vm_controller: &VmController,
) -> io::Result<()> {
    let mut disks = Disks::new(folder)?;
    let snapshots: Cache<VolumeSnapshot> =
        Cache::start(tasks, Api::all(harvester.clone()), Default::default());
    let (instances, claims) = (vm_controller.instances.clone(), vm_controller.claims.clone());
    let changed = Arc::new(Notify::new());
    let wake = changed.clone();
    instances.on_change(move |_| wake.notify_one());
    let wake = changed.clone();
    claims.on_change(move |_| wake.notify_one());
    let wake = changed.clone();
    snapshots.on_change(move |_| wake.notify_one());
    let known = vm_controller.clone();
    tasks.spawn_until_stop(async move {
        // before that no claim seems to be there, and their files would go
        known.ready().await;
        snapshots.ready().await;
        loop {
            let done = disks.follow(&wanted(&instances), &known_claims(&claims), &sources(&snapshots));
            match done {
                Ok(()) => changed.notified().await,
                Err(error) => {
                    tracing::warn!(%error, "a disk is not as it should be");
                    drop(tokio::time::timeout(AGAIN, changed.notified()).await);
                }
            }
        }
    });
    Ok(())
}

fn wanted(instances: &Cache<Instance>) -> BTreeSet<Disk> {
    let instances = instances.list();
    instances.iter().flat_map(|instance| of_instance(&ObjectKey::of(&**instance), &instance.json())).collect()
}

fn known_claims(claims: &Cache<PersistentVolumeClaim>) -> BTreeMap<ObjectKey, Claim> {
    let claims = claims.list();
    let known = |claim: &PersistentVolumeClaim| Claim { size: bytes(claim), source: source(claim) };
    claims.iter().map(|claim| (ObjectKey::of(&**claim), known(claim))).collect()
}

/// The claim of each snapshot.
fn sources(snapshots: &Cache<VolumeSnapshot>) -> BTreeMap<ObjectKey, ObjectKey> {
    let of = |snapshot: &VolumeSnapshot| {
        let key = ObjectKey::of(snapshot);
        let claim = snapshot.spec.source.persistent_volume_claim_name.as_ref()?;
        let claim = ObjectKey::new(&key.namespace, claim);
        Some((key, claim))
    };
    snapshots.list().iter().filter_map(|snapshot| of(snapshot)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vm_has_the_disks_of_hot_plugged_volumes_that_are_ready() {
        let status = |name: &str, phase: &str| {
            json!({"name": name, "phase": phase, "hotplugVolume": {},
                "persistentVolumeClaimInfo": {"claimName": format!("claim-{name}")}})
        };
        let instance = json!({
            "spec": {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "claim-a"}}]},
            "status": {"volumeStatus": [status("a", "Ready"), status("leaves", "Ready"), status("b", "MountedToPod"),
                {"name": "root", "target": "vda"}]}});
        let vm = ObjectKey::new("shop", "guest-1");
        let disks = of_instance(&vm, &instance);
        let names: Vec<_> = disks.iter().map(|disk| (&*disk.volume, &*disk.claim)).collect();
        assert_eq!(names, [("a", "claim-a"), ("leaves", "claim-leaves")]);
        let link = disks[0].link(Path::new("/run/disks"));
        assert_eq!(link, Path::new("/run/disks/links/shop/guest-1/scsi-0QEMU_QEMU_HARDDISK_drive-ua-a"));
    }
}
