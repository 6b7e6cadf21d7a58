//! The disks of hot-plugged volumes: what a node service finds in its VM.
//!
//! ```text
//! folder/volumes/<namespace>.<claim>       a sparse file of the claim's size, until the claim is deleted
//! folder/snapshots/<namespace>.<snapshot>  what was in the claim's file when the snapshot came, until it is deleted
//!            ▲ plugged into the VM while the volume is Ready there
//! Machines:  loop devices of this computer (loop_devices), or virtual machines that a test runs
//! ```
//! A claim with a source begins with what is in the file of its snapshot or claim when a VM has it first. A backup's contents
//! are those of the snapshot of its name, and the snapshot of a restore has a file of its own with them.

mod loop_devices;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Notify;

use controller_kit::{Cache, ObjectKey};
use program::TaskGroup;

use crate::{
    quota::thousandths,
    storage::snapshot::{OF_BACKUP, VolumeSnapshot},
    vm::{Instance, controller::VmController},
    volumes::{claim, name, volumes},
};

pub(crate) use self::loop_devices::LoopDevices;
pub use self::loop_devices::{attach, links};

/// A disk that could not be plugged is tried again: nothing tells of a loop device that becomes free.
const AGAIN: Duration = Duration::from_secs(1);

/// The machines that disks are plugged into. A call may block for some milliseconds.
pub trait Machines: Send + 'static {
    /// Plugs the disk in `file` into a machine, for a volume of this name.
    ///
    /// # Errors
    /// It is tried again later.
    fn plug(&mut self, vm: &ObjectKey, volume: &str, file: &Path) -> io::Result<()>;

    /// Pulls the disk out. A machine that is gone has none, which is no error.
    ///
    /// # Errors
    /// It is tried again later.
    fn pull(&mut self, vm: &ObjectKey, volume: &str) -> io::Result<()>;

    /// Shows a machine the size that the file of a disk has grown to.
    ///
    /// # Errors
    /// They are told.
    fn grow(&mut self, vm: &ObjectKey, volume: &str, size: u64) -> io::Result<()>;
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

/// The disks that are there.
struct Disks {
    folder: PathBuf,
    machines: Box<dyn Machines>,
    attached: BTreeSet<Disk>,
}

impl Disks {
    fn new(folder: &Path, machines: Box<dyn Machines>) -> io::Result<Self> {
        fs::create_dir_all(folder.join("volumes"))?;
        fs::create_dir_all(folder.join("snapshots"))?;
        Ok(Self { folder: folder.to_owned(), machines, attached: BTreeSet::new() })
    }

    fn file(&self, claim: &ObjectKey) -> PathBuf {
        // neither name has a slash; a namespace has no dot
        self.folder.join("volumes").join(format!("{}.{}", claim.namespace, claim.name))
    }

    fn snapshot(&self, snapshot: &ObjectKey) -> PathBuf {
        self.folder.join("snapshots").join(format!("{}.{}", snapshot.namespace, snapshot.name))
    }

    /// The file of what a claim or a snapshot is made of.
    fn contents(&self, source: &Source) -> PathBuf {
        match source {
            Source::Snapshot(of) => self.snapshot(of),
            Source::Claim(of) => self.file(of),
        }
    }

    /// Keeps the contents of what there is a snapshot of, by snapshot, and forgets those of the others.
    fn keep(&self, snapshots: &BTreeMap<ObjectKey, Source>) -> io::Result<()> {
        let mut in_order: Vec<_> = snapshots.iter().collect();
        // a restore has what its backup has by then
        in_order.sort_by_key(|(_, source)| matches!(source, Source::Snapshot(_)));
        for (snapshot, source) in in_order {
            let file = self.snapshot(snapshot);
            if !file.exists() {
                copy(&self.contents(source), &file)?;
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
        snapshots: &BTreeMap<ObjectKey, Source>,
    ) -> io::Result<()> {
        let mut failed = None;
        let mut note = |done: io::Result<()>| failed = done.err().or(failed.take());
        note(self.keep(snapshots));
        for disk in self.attached.difference(wanted).cloned().collect::<Vec<_>>() {
            let pulled = self.machines.pull(&disk.vm, &disk.volume);
            if pulled.is_ok() {
                self.attached.remove(&disk);
            }
            note(pulled);
        }
        for (key, claim) in claims {
            note(self.grow(key, claim.size.unwrap_or_default()));
        }
        for disk in wanted {
            if let Some(Claim { size: Some(size), source }) = claims.get(&disk.of_claim())
                && !self.attached.contains(disk)
            {
                note(self.attach(disk, *size, source.as_ref()));
            }
        }
        note(self.forget(claims));
        failed.map_or(Ok(()), Err)
    }

    fn attach(&mut self, disk: &Disk, size: u64, source: Option<&Source>) -> io::Result<()> {
        let path = self.file(&disk.of_claim());
        if let Some(source) = source.filter(|_| !path.exists()) {
            copy(&self.contents(source), &path)?;
        }
        let file = fs::File::options().create(true).append(true).open(&path)?;
        if file.metadata()?.len() < size {
            file.set_len(size)?;
        }
        self.machines.plug(&disk.vm, &disk.volume, &path)?;
        self.attached.insert(disk.clone());
        Ok(())
    }

    /// A volume that has grown is larger in all VMs that have it.
    fn grow(&mut self, claim: &ObjectKey, size: u64) -> io::Result<()> {
        let Ok(file) = fs::File::options().append(true).open(self.file(claim)) else { return Ok(()) };
        if file.metadata()?.len() >= size {
            return Ok(());
        }
        file.set_len(size)?;
        let mut disks = self.attached.iter().filter(|disk| disk.of_claim() == *claim);
        disks.try_for_each(|disk| self.machines.grow(&disk.vm, &disk.volume, size))
    }

    /// Removes the files of claims that are gone.
    fn forget(&self, claims: &BTreeMap<ObjectKey, Claim>) -> io::Result<()> {
        let known: BTreeSet<_> = claims.keys().map(|claim| self.file(claim)).collect();
        let attached: BTreeSet<_> = self.attached.iter().map(|disk| self.file(&disk.of_claim())).collect();
        for file in fs::read_dir(self.folder.join("volumes"))? {
            let file = file?.path();
            if !known.contains(&file) && !attached.contains(&file) {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }
}

/// Has the volumes in `folder`, and plugs them into `machines`, until `tasks` ends.
pub(crate) fn start(
    tasks: &TaskGroup,
    harvester: &Client,
    folder: &Path,
    machines: Box<dyn Machines>,
    vm_controller: &VmController,
) -> io::Result<()> {
    let mut disks = Disks::new(folder, machines)?;
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

/// What each snapshot is made of: a claim, or the snapshot of a backup.
fn sources(snapshots: &Cache<VolumeSnapshot>) -> BTreeMap<ObjectKey, Source> {
    let of = |snapshot: &VolumeSnapshot| {
        let key = ObjectKey::of(snapshot);
        let source = match &snapshot.spec.source.persistent_volume_claim_name {
            Some(claim) => Source::Claim(ObjectKey::new(&key.namespace, claim)),
            None => Source::Snapshot(ObjectKey::parse(snapshot.annotations().get(OF_BACKUP)?)?),
        };
        Some((key, source))
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
    }
}
