//! How full a volume is, and whether it is well. No request leaves the machine.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{StatVfs, statvfs};
use tonic::Code;

use super::Settings;
use super::mounts::{self, Mount};
use super::plan;
use super::system::{blocking, is_gone, mounts};
use super::{find, size};
use crate::csi::volume_usage::Unit;
use crate::csi::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use crate::in_flight::InFlight;
use crate::refusal::Refusal;

/// A volume that has not answered by then is told as not well: an NFS server is away, or a disk hangs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Of the volume at `path`. A look is held until the file system answers, which may be never.
///
/// # Errors
/// NOT_FOUND where no volume is at `path`.
pub(crate) async fn of(
    settings: &Settings,
    handle: &str,
    path: &Path,
    looks: &InFlight,
) -> Result<NodeGetVolumeStatsResponse, Refusal> {
    let seen = mounts()?;
    let Some(mount) = mounts::at(&seen, path) else {
        let path = path.display();
        return Err(Refusal::not_found(format!(
            "no volume is mounted at {path}: publish {handle} there first"
        )));
    };
    let is_device = is_device(mount);
    let device = if is_device { find::number(path) } else { Some(mount.device) };
    if device.is_none_or(|device| is_gone(settings, device)) {
        return Ok(answer(vec![], Some("the disk has left the machine")));
    }
    let (settings, target) = (settings.clone(), path.to_owned());
    let found = looked(looks, handle, move || {
        if is_device {
            Ok(vec![bytes(size::now(&settings, &target)?)])
        } else {
            Ok(usage(&statvfs(&target)?))
        }
    });
    let fault = plan::fault(seen.iter().filter(|other| other.device == mount.device));
    Ok(match found.await? {
        Ok(usage) => answer(usage, fault.filter(|_| !is_device)),
        Err(why) => answer(vec![], Some(&why)),
    })
}

/// What a disk or a file system answers, or why it has not. A look is held until it does, which may be never: of one volume
/// one thread waits. Pods of a node that share a volume are asked for at one moment, and take turns.
async fn looked(
    looks: &InFlight,
    handle: &str,
    ask: impl FnOnce() -> io::Result<Vec<VolumeUsage>> + Send + 'static,
) -> Result<Result<Vec<VolumeUsage>, String>, Refusal> {
    let Ok(look) = tokio::time::timeout(ANSWERS_WITHIN, looks.next(handle)).await else {
        return Ok(Err("an earlier look at the volume has not been answered".to_owned()));
    };
    let found = blocking(move || {
        let found = ask();
        drop(look);
        found
    });
    Ok(match tokio::time::timeout(ANSWERS_WITHIN, found).await {
        Err(_) => Err("the volume does not answer".to_owned()),
        Ok(found) => found?.map_err(|error| format!("the volume answers: {error}")),
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
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_hangs_holds_one_thread_and_no_call() {
        let looks = InFlight::default();
        let (answer, hangs) = mpsc::channel::<()>();
        let of_first = looks.clone();
        let first = tokio::spawn(async move {
            let ask = move || {
                assert!(hangs.recv().is_err(), "nobody answers");
                Ok(vec![])
            };
            looked(&of_first, "pvc-1", ask).await
        });
        tokio::task::yield_now().await;
        tokio::time::advance(ANSWERS_WITHIN + Duration::from_secs(1)).await;
        assert_eq!(first.await.unwrap().unwrap(), Err("the volume does not answer".to_owned()));
        let of_second = looks.clone();
        let second = tokio::spawn(async move {
            looked(&of_second, "pvc-1", || unreachable!("a thread of this volume hangs already")).await
        });
        tokio::task::yield_now().await;
        tokio::time::advance(ANSWERS_WITHIN + Duration::from_secs(1)).await;
        assert!(second.await.unwrap().unwrap().unwrap_err().contains("earlier look"));
        let other = looked(&looks, "pvc-2", || Ok(vec![]));
        assert_eq!(other.await.unwrap(), Ok(vec![]));
        drop(answer);
    }

    #[tokio::test(start_paused = true)]
    async fn two_pods_that_share_a_volume_both_hear_how_full_it_is() {
        let looks = InFlight::default();
        let first = looks.next("pvc-1").await;
        let other = looks.clone();
        let second = tokio::spawn(async move { looked(&other, "pvc-1", || Ok(vec![])).await });
        tokio::time::sleep(ANSWERS_WITHIN / 2).await;
        assert!(!second.is_finished());
        drop(first);
        assert_eq!(second.await.unwrap(), Ok(Ok(vec![])));
    }

    #[test]
    fn numbers_beyond_csis_are_the_largest() {
        let usage = counted(Unit::Bytes, [u64::MAX, 10, 5]);
        assert_eq!((usage.total, usage.used, usage.available), (i64::MAX, i64::MAX, 5));
        assert_eq!(counted(Unit::Inodes, [5, 10, 5]).used, 0);
    }
}
