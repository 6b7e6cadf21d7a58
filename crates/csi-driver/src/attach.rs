//! Which machine a volume belongs to, and how its disk comes into the machine and out of it.

pub mod claim;
pub mod hotplug;

use crate::{
    csi::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest},
    host::Host,
    refusal::Refusal,
};

/// Brings disks into machines and out of them.
pub struct Attacher {
    host: Host,
}

impl Attacher {
    pub fn new(host: Host) -> Self {
        Self { host }
    }

    /// ControllerPublishVolume: answers when the disk is in the machine.
    ///
    /// # Errors
    /// With CSI's code and one line with the next step.
    pub async fn publish(&self, request: &ControllerPublishVolumeRequest) -> Result<(), Refusal> {
        let _ = (&self.host, request);
        Err(Refusal::new(tonic::Code::Unimplemented, "ControllerPublishVolume is not served"))
    }

    /// ControllerUnpublishVolume: answers when the disk is in the machine no more.
    ///
    /// # Errors
    /// With CSI's code and one line with the next step.
    pub async fn unpublish(&self, request: &ControllerUnpublishVolumeRequest) -> Result<(), Refusal> {
        let _ = (&self.host, request);
        Err(Refusal::new(tonic::Code::Unimplemented, "ControllerUnpublishVolume is not served"))
    }
}
