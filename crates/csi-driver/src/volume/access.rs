//! What a volume is used for, from the capabilities that CSI asks of it.
//!
//! ```text
//! one node              any mode for a single node                            a disk of the node's machine
//! many nodes            a mode for several nodes, only reading too, as files    an NFS export of the host
//! many nodes, as block  refused: the host lets no disk into two machines
//! ```

use serde::{Deserialize, Serialize};

use super::options::{self, OptionError};
use crate::csi::VolumeCapability;
use crate::csi::volume_capability::AccessType;
use crate::csi::volume_capability::access_mode::Mode;

/// How a volume reaches nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// A disk that is hot-plugged into one virtual machine at a time.
    Disk,
    /// An NFS export that any node may mount.
    Export,
}

/// Why a set of capabilities cannot be had. CSI's code is INVALID_ARGUMENT.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("the capability of the volume is missing: say how it is accessed")]
    Missing,
    #[error("a capability of the volume is neither block nor mount: say which")]
    NoType,
    #[error("a capability of the volume has no access mode: say which")]
    NoMode,
    #[error("a raw block volume is used by one node at a time: ask for ReadWriteOnce, or for a file system")]
    BlockOnManyNodes,
    #[error(
        "a volume is used either by one node at a time or by many at once, and its capabilities ask for both"
    )]
    OneNodeAndMany,
    #[error(transparent)]
    Options(#[from] OptionError),
}

/// One capability, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: Mode,
    /// `None` for a raw block device.
    pub mount: Option<Mount>,
}

/// How a file system is mounted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Mount {
    /// `None` where the caller leaves the choice to the driver.
    pub file_system: Option<String>,
    /// Options of the class, each by itself. They may hold secrets, so they are never printed.
    pub options: Vec<String>,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("file_system", &self.file_system)
            .field("options", &format_args!("{} options", self.options.len()))
            .finish()
    }
}

impl Access {
    /// # Errors
    /// For a capability without a type or a mode, and for options that do not say how a volume is mounted.
    pub fn of(capability: Option<&VolumeCapability>) -> Result<Self, AccessError> {
        let capability = capability.ok_or(AccessError::Missing)?;
        let mount = match capability.access_type.as_ref().ok_or(AccessError::NoType)? {
            AccessType::Block(_) => None,
            AccessType::Mount(mount) => Some(Mount {
                file_system: Some(mount.fs_type.clone()).filter(|name| !name.is_empty()),
                options: mount.mount_flags.clone(),
            }),
        };
        let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
        let mode = mode.filter(|mode| *mode != Mode::Unknown).ok_or(AccessError::NoMode)?;
        let mut access = Self { mode, mount };
        if let (Ok(reach), Some(mount)) = (access.reach(), &mut access.mount) {
            mount.options = options::of_class(&mount.options, reach)?;
        }
        Ok(access)
    }

    /// Whether this use only reads.
    pub fn only_reads(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }

    /// How a volume with this use alone reaches nodes.
    ///
    /// # Errors
    /// For a raw block device on many nodes.
    pub fn reach(&self) -> Result<Reach, AccessError> {
        match self.mode {
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
                if self.mount.is_some() { Ok(Reach::Export) } else { Err(AccessError::BlockOnManyNodes) }
            }
            _ => Ok(Reach::Disk),
        }
    }
}

/// All uses of one volume, and how it reaches nodes.
///
/// # Errors
/// Where no volume can have all of them.
pub fn all(capabilities: &[VolumeCapability]) -> Result<(Reach, Vec<Access>), AccessError> {
    let uses: Vec<_> = capabilities.iter().map(|one| Access::of(Some(one))).collect::<Result<_, _>>()?;
    let reaches: Vec<_> = uses.iter().map(Access::reach).collect::<Result<_, _>>()?;
    match reaches.first() {
        None => Err(AccessError::Missing),
        Some(reach) if reaches.iter().all(|other| other == reach) => Ok((*reach, uses)),
        Some(_) => Err(AccessError::OneNodeAndMany),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn capability(mode: Mode, access_type: AccessType) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    fn files(mode: Mode) -> VolumeCapability {
        capability(mode, AccessType::Mount(MountVolume::default()))
    }

    fn block(mode: Mode) -> VolumeCapability {
        capability(mode, AccessType::Block(BlockVolume {}))
    }

    #[rstest]
    #[case(files(Mode::SingleNodeWriter), Ok(Reach::Disk))]
    #[case(block(Mode::SingleNodeWriter), Ok(Reach::Disk))]
    #[case::read_write_once_pod(files(Mode::SingleNodeSingleWriter), Ok(Reach::Disk))]
    #[case(block(Mode::SingleNodeMultiWriter), Ok(Reach::Disk))]
    #[case(files(Mode::SingleNodeReaderOnly), Ok(Reach::Disk))]
    #[case(files(Mode::MultiNodeMultiWriter), Ok(Reach::Export))]
    #[case::read_only_many(files(Mode::MultiNodeReaderOnly), Ok(Reach::Export))]
    #[case(files(Mode::MultiNodeSingleWriter), Ok(Reach::Export))]
    #[case(block(Mode::MultiNodeMultiWriter), Err(AccessError::BlockOnManyNodes))]
    #[case(block(Mode::MultiNodeReaderOnly), Err(AccessError::BlockOnManyNodes))]
    #[case(files(Mode::Unknown), Err(AccessError::NoMode))]
    #[case(VolumeCapability::default(), Err(AccessError::NoType))]
    fn the_mode_says_how_a_volume_reaches_nodes(
        #[case] capability: VolumeCapability,
        #[case] reach: Result<Reach, AccessError>,
    ) {
        assert_eq!(all(&[capability]).map(|(reach, _)| reach), reach);
    }

    #[test]
    fn one_volume_is_no_disk_and_export_at_once() {
        let both = [files(Mode::SingleNodeWriter), files(Mode::MultiNodeMultiWriter)];
        assert_eq!(all(&both), Err(AccessError::OneNodeAndMany));
        assert_eq!(all(&[]), Err(AccessError::Missing));
    }

    #[test]
    fn an_unnamed_file_system_is_left_to_the_driver_and_options_are_not_printed() {
        let mount = MountVolume { mount_flags: vec!["password=x".to_owned()], ..MountVolume::default() };
        let access = Access::of(Some(&capability(Mode::SingleNodeWriter, AccessType::Mount(mount)))).unwrap();
        assert_eq!(access.mount.as_ref().unwrap().file_system, None);
        assert!(!format!("{access:?}").contains("password"));
        assert!(!access.only_reads());
    }
}
