//! How Kubernetes' access modes become those of CSI.

use csi_driver::csi::{
    VolumeCapability,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use k8s_openapi::api::core::v1::PersistentVolume;

/// For drivers with the capability SINGLE_NODE_MULTI_WRITER.
fn mode(modes: &[String]) -> Mode {
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    match () {
        () if has("ReadWriteMany") => Mode::MultiNodeMultiWriter,
        () if has("ReadOnlyMany") && has("ReadWriteOnce") => Mode::MultiNodeMultiWriter,
        () if has("ReadOnlyMany") => Mode::MultiNodeReaderOnly,
        () if has("ReadWriteOncePod") => Mode::SingleNodeSingleWriter,
        () => Mode::SingleNodeMultiWriter,
    }
}

/// The capability of a volume with these access modes.
pub(crate) fn capability(
    modes: &[String],
    is_block: bool,
    fs_type: &str,
    mount_flags: &[String],
) -> VolumeCapability {
    let access_type = if is_block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: mount_flags.to_vec(),
            ..MountVolume::default()
        })
    };
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode(modes).into() }),
    }
}

pub(crate) fn is_block(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

/// The capability of a volume.
pub(crate) fn of(volume: &PersistentVolume) -> VolumeCapability {
    let spec = volume.spec.clone().unwrap_or_default();
    let fs_type = spec.csi.and_then(|csi| csi.fs_type).unwrap_or_default();
    let flags = spec.mount_options.unwrap_or_default();
    capability(&spec.access_modes.unwrap_or_default(), is_block(volume), &fs_type, &flags)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&["ReadWriteOnce"], Mode::SingleNodeMultiWriter)]
    #[case(&["ReadWriteOncePod"], Mode::SingleNodeSingleWriter)]
    #[case(&["ReadWriteMany"], Mode::MultiNodeMultiWriter)]
    #[case(&["ReadOnlyMany"], Mode::MultiNodeReaderOnly)]
    #[case(&["ReadWriteOnce", "ReadOnlyMany"], Mode::MultiNodeMultiWriter)]
    fn access_modes_are_translated(#[case] modes: &[&str], #[case] expected: Mode) {
        let modes: Vec<_> = modes.iter().map(|mode| (*mode).to_owned()).collect();
        assert_eq!(mode(&modes), expected);
    }
}
