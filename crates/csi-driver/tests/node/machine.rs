//! A machine for one test: disks, their links, kubelet's folders, and the node service.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use csi_driver::csi::node_server::Node as _;
use csi_driver::csi::volume_capability::access_mode::Mode;
use csi_driver::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_driver::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
};
use csi_driver::node::mounts::{self, Mount};
use csi_driver::node::{NodeService, Settings};
use csi_driver::node_id::Told;
use tokio::sync::watch;
use tonic::{Request, Status};

/// Programs that a test needs.
pub(crate) const EXT4: &[&str] =
    &["unshare", "losetup", "mount", "blkid", "mkfs.ext4", "e2fsck", "resize2fs"];
pub(crate) const EXT3: &[&str] = &["unshare", "losetup", "mount", "blkid", "mkfs.ext3", "e2fsck"];
/// The kernel lets only a process with this capability grow a mounted ext4. Some test machines take it away.
pub(crate) const EXT4_GROWTH: &[&str] =
    &["unshare", "losetup", "mount", "blkid", "mkfs.ext4", "e2fsck", "resize2fs", SYS_RESOURCE];
pub(crate) const XFS: &[&str] = &["unshare", "losetup", "mount", "blkid", "mkfs.xfs", "xfs_growfs"];

const SYS_RESOURCE: &str = "CAP_SYS_RESOURCE";
/// Its bit among the capabilities.
const SYS_RESOURCE_BIT: u64 = 1 << 24;

/// Set in a process that has a mount namespace of its own: a folder for programs that are found before the machine's.
const CHILD: &str = "CSI_DRIVER_IN_NAMESPACE";

/// Runs the test `name` in a process with a mount namespace of its own, where that can be.
pub(crate) fn in_own_namespace(name: &str, tools: &[&str], test: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        return test();
    }
    if let Some(missing) = missing(tools) {
        let said = writeln!(std::io::stderr(), "left out: {name}: {missing}");
        return said.expect("standard error can be written to");
    }
    let programs = tempfile::tempdir().unwrap();
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [programs.path().to_owned()].into_iter().chain(env::split_paths(&path));
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, programs.path())
        .env("PATH", env::join_paths(folders).unwrap())
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn missing(tools: &[&str]) -> Option<String> {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return Some("only root may mount".to_owned());
    }
    if tools.contains(&SYS_RESOURCE) && !may_use_resources() {
        return Some(format!("root lacks {SYS_RESOURCE} here"));
    }
    let tools = tools.iter().filter(|tool| **tool != SYS_RESOURCE);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> =
        env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), "/sbin".into()]).collect();
    let missing = tools.into_iter().find(|tool| !folders.iter().any(|folder| folder.join(tool).exists()))?;
    Some(format!(
        "there is no {missing}: the packages e2fsprogs, util-linux and xfsprogs have what is needed"
    ))
}

fn may_use_resources() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    u64::from_str_radix(held, 16).unwrap() & SYS_RESOURCE_BIT != 0
}

/// Runs a program of the machine.
pub(crate) fn run(program: &[&str], paths: &[&Path]) -> String {
    let output = Command::new(program[0]).args(&program[1..]).args(paths).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?} {paths:?}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Lets a program note the files that the driver has open before it does its work. Returns the note's path.
pub(crate) fn note_open_files(tool: &str) -> PathBuf {
    let folder = PathBuf::from(env::var_os(CHILD).unwrap());
    let (program, note) = (folder.join(tool), folder.join(format!("{tool}.note")));
    let script = format!(
        "#!/bin/sh\nfor file in /proc/$PPID/fd/*; do readlink \"$file\"; done >> {}\nPATH=${{PATH#*:}} exec {tool} \"$@\"\n",
        note.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    note
}

pub(crate) fn files(file_system: &str, mode: Mode) -> VolumeCapability {
    let mount = MountVolume { fs_type: file_system.to_owned(), ..MountVolume::default() };
    VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn block(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// A disk of the machine.
pub(crate) struct Disk {
    file: PathBuf,
    device: PathBuf,
}

impl Disk {
    fn new(file: PathBuf, size: u64) -> Self {
        fs::File::create(&file).unwrap().set_len(size).unwrap();
        let device = sim_harvester::disks::attach(&file).unwrap().into();
        Self { file, device }
    }

    /// The same disk, as another machine has it.
    pub(crate) fn again(&self) -> Self {
        let device = sim_harvester::disks::attach(&self.file).unwrap().into();
        Self { file: self.file.clone(), device }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.device
    }

    /// As the host does.
    pub(crate) fn grow(&self, size: u64) {
        fs::OpenOptions::new().write(true).open(&self.file).unwrap().set_len(size).unwrap();
        run(&["losetup", "--set-capacity"], &[&self.device]);
    }

    /// As no host should.
    pub(crate) fn shrink(&self, size: u64) {
        self.grow(size);
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let device = fs::OpenOptions::new().write(true).open(&self.device).unwrap();
        device.write_all_at(bytes, at).unwrap();
        device.sync_all().unwrap();
    }

    pub(crate) fn checksum(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        fs::read(&self.device).unwrap().hash(&mut hasher);
        hasher.finish()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // while it is mounted, the kernel keeps it until the namespace ends
        run(&["losetup", "--detach"], &[&self.device]);
    }
}

pub(crate) struct Machine {
    folder: tempfile::TempDir,
    settings: Settings,
    service: NodeService,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            device_directory: folder.path().join("disk/by-id"),
            sysfs: folder.path().join("sys"),
            kubelet_root: folder.path().join("kubelet"),
            ..Settings::default()
        };
        fs::create_dir(&settings.kubelet_root).unwrap();
        fs::create_dir(&settings.sysfs).unwrap();
        let (_, node_id) = watch::channel(Some(Told::named("web-1")));
        Self { folder, service: NodeService::new(settings.clone(), node_id), settings }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.settings.device_directory.join(name)
    }

    /// A disk with the link that udev makes, and with that of a partition.
    pub(crate) fn disk(&self, handle: &str, size: u64) -> Disk {
        let disk = Disk::new(self.folder().join(handle), size);
        fs::create_dir_all(&self.settings.device_directory).unwrap();
        let name = format!("scsi-0QEMU_QEMU_HARDDISK_drive-ua-{handle}");
        symlink("/dev/null", self.link(&format!("{name}-part1"))).unwrap();
        symlink(disk.path(), self.link(&name)).unwrap();
        disk
    }

    /// A disk with a map of multipathd over it, and the map. A second look at the file of a disk stands in for the map: both
    /// have a memory of their own in the kernel, as in a machine.
    pub(crate) fn map(&self, handle: &str, size: u64) -> (Disk, Disk) {
        let map = self.disk(handle, size);
        let disk = map.again();
        let blocks = self.settings.sysfs.join("block");
        let [map_folder, disk_folder] = [&map, &disk].map(|one| {
            let folder = blocks.join(one.path().file_name().unwrap());
            fs::create_dir_all(&folder).unwrap();
            let number = fs::metadata(one.path()).unwrap().rdev();
            let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
            fs::write(folder.join("dev"), &number).unwrap();
            fs::create_dir_all(self.settings.sysfs.join("dev/block")).unwrap();
            symlink(&folder, self.settings.sysfs.join("dev/block").join(number)).unwrap();
            folder
        });
        for name in ["dm", "slaves"] {
            fs::create_dir(map_folder.join(name)).unwrap();
        }
        fs::write(map_folder.join("dm/uuid"), format!("mpath-0QEMU_QEMU_HARDDISK_drive-ua-{handle}"))
            .unwrap();
        symlink(&disk_folder, map_folder.join("slaves").join(disk_folder.file_name().unwrap())).unwrap();
        (map, disk)
    }

    /// A disk that only sysfs names.
    pub(crate) fn disk_without_link(&self, handle: &str, size: u64) -> Disk {
        let disk = Disk::new(self.folder().join(handle), size);
        let name = disk.path().file_name().unwrap();
        let folder = self.settings.sysfs.join("block").join(name).join("device");
        fs::create_dir_all(&folder).unwrap();
        let identifier = format!("drive-ua-{handle}");
        let length = u8::try_from(identifier.len()).unwrap();
        let page = [&[0, 0x83, 0, length + 4, 2, 0, 0, length], identifier.as_bytes()].concat();
        fs::write(folder.join("vpd_pg83"), page).unwrap();
        disk
    }

    pub(crate) fn staging(&self, handle: &str) -> PathBuf {
        self.settings.kubelet_root.join("plugins/kubernetes.io/csi").join(handle).join("globalmount")
    }

    pub(crate) fn target(&self, pod: &str) -> PathBuf {
        self.settings.kubelet_root.join("pods").join(pod).join("mount")
    }

    fn mounts(&self) -> Vec<Mount> {
        mounts::parse(&fs::read("/proc/self/mountinfo").unwrap())
    }

    /// How many mounts are at a path.
    pub(crate) fn layers(&self, path: &Path) -> usize {
        self.mounts().iter().filter(|mount| mount.target == path).count()
    }

    pub(crate) fn mounted_from(&self, path: &Path) -> PathBuf {
        mounts::at(&self.mounts(), path).unwrap().source.clone()
    }

    pub(crate) async fn stage(&self, handle: &str, used: &VolumeCapability) -> Result<(), Status> {
        self.stage_at(handle, &self.staging(handle), used).await
    }

    pub(crate) async fn stage_at(
        &self,
        handle: &str,
        at: &Path,
        used: &VolumeCapability,
    ) -> Result<(), Status> {
        // kubelet makes it
        fs::create_dir_all(at).unwrap();
        let request = NodeStageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(at),
            volume_capability: Some(used.clone()),
            ..NodeStageVolumeRequest::default()
        };
        self.service.node_stage_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn unstage(&self, handle: &str) -> Result<(), Status> {
        let staging_target_path = text(&self.staging(handle));
        let request = NodeUnstageVolumeRequest { volume_id: handle.to_owned(), staging_target_path };
        self.service.node_unstage_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn publish(
        &self,
        handle: &str,
        pod: &str,
        used: &VolumeCapability,
    ) -> Result<(), Status> {
        self.publish_from(handle, &self.staging(handle), pod, used).await
    }

    pub(crate) async fn publish_from(
        &self,
        handle: &str,
        from: &Path,
        pod: &str,
        used: &VolumeCapability,
    ) -> Result<(), Status> {
        let request = self.publication(handle, from, pod, used);
        self.service.node_publish_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn publish_read_only(
        &self,
        handle: &str,
        pod: &str,
        used: &VolumeCapability,
    ) -> Result<(), Status> {
        let request = self.publication(handle, &self.staging(handle), pod, used);
        let request = NodePublishVolumeRequest { readonly: true, ..request };
        self.service.node_publish_volume(Request::new(request)).await.map(drop)
    }

    fn publication(
        &self,
        handle: &str,
        from: &Path,
        pod: &str,
        used: &VolumeCapability,
    ) -> NodePublishVolumeRequest {
        fs::create_dir_all(from).unwrap();
        NodePublishVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(from),
            target_path: text(&self.target(pod)),
            volume_capability: Some(used.clone()),
            publish_context: HashMap::new(),
            ..NodePublishVolumeRequest::default()
        }
    }

    pub(crate) async fn unpublish(&self, handle: &str, pod: &str) -> Result<(), Status> {
        let target_path = text(&self.target(pod));
        let request = NodeUnpublishVolumeRequest { volume_id: handle.to_owned(), target_path };
        self.service.node_unpublish_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn stats(
        &self,
        handle: &str,
        path: &Path,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: text(path),
            ..NodeGetVolumeStatsRequest::default()
        };
        Ok(self.service.node_get_volume_stats(Request::new(request)).await?.into_inner())
    }

    /// The size of the file system that a pod sees.
    pub(crate) async fn bytes(&self, handle: &str, pod: &str) -> u64 {
        let stats = self.stats(handle, &self.target(pod)).await.unwrap();
        u64::try_from(stats.usage[0].total).unwrap()
    }

    pub(crate) async fn expand(&self, handle: &str, path: &Path, size: u64) -> Result<u64, Status> {
        let range = CapacityRange { required_bytes: i64::try_from(size).unwrap(), limit_bytes: 0 };
        let request = NodeExpandVolumeRequest {
            volume_id: handle.to_owned(),
            volume_path: text(path),
            capacity_range: Some(range),
            ..NodeExpandVolumeRequest::default()
        };
        let answer = self.service.node_expand_volume(Request::new(request)).await?.into_inner();
        Ok(u64::try_from(answer.capacity_bytes).unwrap())
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
