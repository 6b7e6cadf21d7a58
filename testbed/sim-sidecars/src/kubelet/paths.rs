//! Where kubelet has a volume, below its root.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{CSI_DRIVER, PersistentVolume, ResourceExt, capability, handle};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The plugin's folder.
const PLUGIN: &str = "plugins/kubernetes.io/csi";

/// Where a file system is staged.
pub fn staging_path(root: &Path, handle: &str) -> PathBuf {
    let digest = Sha256::digest(handle);
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    root.join(PLUGIN).join(CSI_DRIVER).join(digits).join("globalmount")
}

/// Where the pod of this UID finds a file system.
pub fn publish_path(root: &Path, pod: &str, volume: &str) -> PathBuf {
    root.join("pods").join(pod).join("volumes/kubernetes.io~csi").join(volume).join("mount")
}

/// The files of a node.
pub trait Files: Send + Sync + 'static {
    /// Makes a folder, and those above it.
    ///
    /// # Errors
    /// Kubelet tries again.
    fn make(&self, folder: &Path) -> io::Result<()>;

    /// Writes a file.
    ///
    /// # Errors
    /// Kubelet tries again.
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;

    /// Removes a file, or a folder that has nothing in it; what is not there is no error.
    ///
    /// # Errors
    /// Kubelet tries again.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// Those of this computer.
pub(crate) struct OwnFiles;

impl Files for OwnFiles {
    fn make(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        fs::write(file, text)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// The paths of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    root: PathBuf,
    name: String,
    is_block: bool,
    pub(super) handle: String,
    pub(super) staging: PathBuf,
}

impl Places {
    pub(super) fn new(root: &Path, volume: &PersistentVolume) -> Self {
        let (name, is_block) = (volume.name_any(), capability::is_block(volume));
        let handle = handle(volume).unwrap_or_default().to_owned();
        let staging = if is_block {
            root.join(PLUGIN).join("volumeDevices/staging").join(&name)
        } else {
            staging_path(root, &handle)
        };
        Self { root: root.to_owned(), name, is_block, handle, staging }
    }

    pub(super) fn target(&self, pod: &str) -> PathBuf {
        if self.is_block {
            self.root.join(PLUGIN).join("volumeDevices/publish").join(&self.name).join(pod)
        } else {
            publish_path(&self.root, pod, &self.name)
        }
    }

    /// The folder, and the file from which kubelet knows the volume after it was started again.
    pub(super) fn make_staging(&self, files: &dyn Files) -> io::Result<()> {
        files.make(&self.staging)?;
        if self.is_block {
            return Ok(());
        }
        let data = json!({"driverName": CSI_DRIVER, "volumeHandle": self.handle});
        files.write(&self.staging.with_file_name("vol_data.json"), &data.to_string())
    }

    /// After NodeUnstageVolume. A folder with something in it stays: it may be a mount.
    pub(super) fn clear_staging(&self, files: &dyn Files) -> io::Result<()> {
        files.remove(&self.staging)?;
        match self.staging.parent() {
            Some(parent) if !self.is_block => {
                files.remove(&parent.join("vol_data.json"))?;
                files.remove(parent)
            }
            _ => Ok(()),
        }
    }

    /// Before NodePublishVolume: the driver makes the target itself.
    pub(super) fn make_target(&self, files: &dyn Files, pod: &str) -> io::Result<()> {
        self.target(pod).parent().map_or(Ok(()), |parent| files.make(parent))
    }

    /// After NodeUnpublishVolume: what kubelet made above the target.
    pub(super) fn clear_target(&self, files: &dyn Files, pod: &str) -> io::Result<()> {
        match self.target(pod).parent() {
            Some(parent) if !self.is_block => files.remove(parent),
            _ => Ok(()),
        }
    }
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}
