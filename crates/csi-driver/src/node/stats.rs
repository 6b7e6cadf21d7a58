//! How full a volume is, and whether it is well. No request leaves the machine.

use std::path::Path;
use std::time::Duration;

use rustix::fs::{StatVfs, statvfs};
use tonic::Code;

use super::Settings;
use super::mounts::{self, Mount};
use super::plan;
use super::system::{blocking, is_gone, mounts};
use super::{disk, find};
use crate::csi::volume_usage::Unit;
use crate::csi::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use crate::in_flight::Call;
use crate::refusal::Refusal;

/// A file system that has not answered by then is told as not well: an NFS server is away.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Of the volume at `path`. `look` is held until the file system answers, which may be never.
///
/// # Errors
/// NOT_FOUND where no volume is at `path`.
pub(crate) async fn of(
    settings: &Settings,
    handle: &str,
    path: &Path,
    look: Result<Call, Refusal>,
) -> Result<NodeGetVolumeStatsResponse, Refusal> {
    let seen = mounts()?;
    let Some(mount) = mounts::at(&seen, path) else {
        let path = path.display();
        return Err(Refusal::not_found(format!(
            "no volume is mounted at {path}: publish {handle} there first"
        )));
    };
    if is_device(mount) {
        return Ok(match find::number(path) {
            Some(number) if !is_gone(settings, number) => match disk::size(path).await {
                Ok(size) => answer(vec![bytes(size)], None),
                Err(refusal) => answer(vec![], Some(&refusal.message)),
            },
            _ => answer(vec![], Some("the disk has left the machine")),
        });
    }
    if is_gone(settings, mount.device) {
        return Ok(answer(vec![], Some("the disk has left the machine")));
    }
    let Ok(look) = look else {
        return Ok(answer(vec![], Some("an earlier look at the file system has not been answered")));
    };
    let target = path.to_owned();
    let found = blocking(move || {
        let found = statvfs(&target);
        drop(look);
        found
    });
    Ok(match tokio::time::timeout(ANSWERS_WITHIN, found).await {
        Err(_) => answer(vec![], Some("the file system does not answer")),
        Ok(found) => match found? {
            Ok(found) => {
                let fault = plan::fault(seen.iter().filter(|other| other.device == mount.device));
                answer(usage(&found), fault)
            }
            Err(error) => answer(vec![], Some(&format!("the file system answers: {error}"))),
        },
    })
}

/// Whether a device is mounted on a file.
pub(crate) fn is_device(mount: &Mount) -> bool {
    mount.file_system == "devtmpfs" || mount.file_system == "tmpfs" && mount.root != Path::new("/")
}

fn answer(usage: Vec<VolumeUsage>, fault: Option<&str>) -> NodeGetVolumeStatsResponse {
    let condition = VolumeCondition {
        abnormal: fault.is_some(),
        message: fault.unwrap_or("the volume is mounted and answers").to_owned(),
    };
    NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) }
}

fn bytes(total: u64) -> VolumeUsage {
    VolumeUsage {
        total: i64::try_from(total).unwrap_or(i64::MAX),
        unit: Unit::Bytes.into(),
        ..VolumeUsage::default()
    }
}

fn usage(found: &StatVfs) -> Vec<VolumeUsage> {
    let block = found.f_frsize;
    vec![
        counted(
            Unit::Bytes,
            [found.f_blocks, found.f_bfree, found.f_bavail].map(|blocks| blocks.saturating_mul(block)),
        ),
        counted(Unit::Inodes, [found.f_files, found.f_ffree, found.f_ffree]),
    ]
}

/// Total, free, and free for all users.
fn counted(unit: Unit, [total, free, available]: [u64; 3]) -> VolumeUsage {
    let [total, used, available] =
        [total, total.saturating_sub(free), available].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    VolumeUsage { available, total, used, unit: unit.into() }
}

/// No volume is at a path that is not there.
pub(crate) fn absent(path: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::NotFound, format!("{path} does not exist: publish the volume first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_csis_are_the_largest() {
        let usage = counted(Unit::Bytes, [u64::MAX, 10, 5]);
        assert_eq!((usage.total, usage.used, usage.available), (i64::MAX, i64::MAX, 5));
        assert_eq!(counted(Unit::Inodes, [5, 10, 5]).used, 0);
    }
}
