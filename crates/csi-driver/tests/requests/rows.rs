//! Rows of the table: a request with one field that is not as it should be.

use std::collections::HashMap;

use csi_driver::csi::{
    VolumeCapability,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use prost::Message;
use tonic::Code;

/// The rows: method, field, what is wrong with it, the message, the code.
#[derive(Default)]
pub(crate) struct Rows(pub(crate) Vec<(&'static str, &'static str, &'static str, Vec<u8>, Code)>);

impl Rows {
    pub(crate) fn add(
        &mut self,
        method: &'static str,
        field: &'static str,
        what: &'static str,
        message: &impl Message,
        code: Code,
    ) {
        self.0.push((method, field, what, message.encode_to_vec(), code));
    }
}

pub(crate) fn capability(mode: Mode, access_type: AccessType) -> VolumeCapability {
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
}

pub(crate) fn mount(fs_type: &str, flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let mount = MountVolume { fs_type: fs_type.to_owned(), mount_flags, volume_mount_group: String::new() };
    capability(Mode::SingleNodeWriter, AccessType::Mount(mount))
}

pub(crate) fn map(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value.to_owned())])
}

/// Capabilities that are none.
pub(crate) fn capabilities() -> [(&'static str, Option<VolumeCapability>); 5] {
    let unknown = VolumeCapability { access_mode: Some(AccessMode { mode: 99 }), ..mount("", &[]) };
    [
        ("missing", None),
        ("without a type", Some(VolumeCapability { access_type: None, ..mount("", &[]) })),
        ("without a mode", Some(VolumeCapability { access_mode: None, ..mount("", &[]) })),
        ("an unknown mode", Some(unknown)),
        (
            "block for many nodes",
            Some(capability(Mode::MultiNodeMultiWriter, AccessType::Block(BlockVolume {}))),
        ),
    ]
}

/// Secrets that nobody needs: absent or not, long or odd, the answer is the same.
pub(crate) fn secrets() -> [HashMap<String, String>; 3] {
    [HashMap::new(), map("key", "value"), map("", &"x".repeat(10_000))]
}
