//! The NFS export of a volume for many nodes (docs/contract/csi-driver.md#export).

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ListParams, PostParams};
use tokio::time::Instant;

use super::super::wait;
use crate::{
    host::{self, Host, bound_volume, kinds::NetworkFilesystem},
    refusal::Refusal,
    volume::name::HostName,
};

/// Refuses where the host has no exports, before there is a claim that nobody can use.
pub(super) async fn check(host: &Host) -> Result<(), Refusal> {
    match host.network_filesystems().list(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Err(Refusal::invalid(
            "the host exports no volumes to many nodes: ask for ReadWriteOnce; Harvester from 1.4 on does",
        )),
        Err(error) => Err(Refusal::of_host("list the NetworkFilesystems on the host", &error)),
    }
}

/// Creates the export, switched off, when the claim has its volume.
pub(super) async fn ensure(
    host: &Host,
    name: &HostName,
    claim: PersistentVolumeClaim,
    until: Instant,
) -> Result<(), Refusal> {
    let export = match bound_volume(&claim) {
        Some(volume) => volume.to_owned(),
        None => {
            let what = format!("{} is not bound", host.claim_name(name));
            let status = |claim: &PersistentVolumeClaim| claim.status.clone();
            let is_bound = |claim: &PersistentVolumeClaim| bound_volume(claim).is_some();
            let end = wait::end(until, wait::WAITS_FOR);
            let bound =
                wait::while_it_changes(end, host.claims(), name.as_str(), &what, status, is_bound).await?;
            match bound.as_ref().and_then(bound_volume) {
                Some(volume) => volume.to_owned(),
                None => return Err(Refusal::aborted(format!("{} was deleted", host.claim_name(name)))),
            }
        }
    };
    let object = NetworkFilesystem::disabled(&export);
    match host.network_filesystems().create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => {
            Err(Refusal::of_host(&format!("create the export {export} of volume {name} on the host"), &error))
        }
    }
}
