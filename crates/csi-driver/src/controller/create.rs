//! CreateVolume: the claim on the host, made once (docs/contract/csi-driver.md#create).
//!
//! ```text
//! request ──► claim there? ─ yes ► is it this volume? ──────────────► answer
//!                          └ no ─► class, source ──► create the claim ─► answer     (for many nodes: its export too)
//!                                └ with content: when the host has copied it
//!                                └ backup ─► VolumeRemoteRestore ─► the host makes the claim ─► annotate and grow it
//! ```

mod claim;
mod content;
mod copy;
mod export;
pub(super) mod request;
mod restore;
#[cfg(test)]
mod tests;

pub(super) use claim::claimed;
pub(super) use restore::{LONGHORN_BACKUP, is_restored, said};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::PostParams;
use tokio::time::Instant;
use tonic::Code;

use super::{classes, needed::Needed};
use crate::{
    csi::CreateVolumeResponse,
    host::Host,
    refusal::Refusal,
    volume::{access::Reach, name::HostName},
};
use claim::Plan;
use request::{Asked, Source};

pub(super) async fn create_volume(
    host: &Host,
    needed: &Needed,
    asked: &Asked,
    until: Instant,
) -> Result<CreateVolumeResponse, Refusal> {
    let existing = read(host, &asked.name).await?;
    if let Some(claim) = &existing {
        // clusters that were restored from one backup give volumes the same names
        host.check_owner(claim).await?;
    }
    if let Some(Source::Backup { namespace, name }) = &asked.source {
        return restore::restore(host, asked, namespace, name, existing, until).await;
    }
    let is_new = existing.is_none();
    let (size, claim) = match existing {
        Some(claim) => (claim::matches(asked, &claim)?, claim),
        None => create(host, asked, until).await?,
    };
    if asked.reach == Reach::Export {
        export::ensure(host, &asked.name, claim, until).await.map_err(under_way)?;
    } else if asked.source.is_some() {
        let failed = Box::pin(copy::finish(host, asked, claim, is_new, until)).await.map_err(under_way)?;
        if let Some(failed) = failed {
            return Err(copy::undo(host, needed, &asked.name, &failed).await);
        }
    }
    Ok(asked.answer(size))
}

/// The refusal of a call that has made something on the host. For the provisioner most codes say that there is no volume,
/// and it would leave behind what is there (docs/contract/csi-driver.md#codes).
fn under_way(refusal: Refusal) -> Refusal {
    match refusal.code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted => refusal,
        _ => Refusal::new(Code::Unavailable, refusal.message),
    }
}

/// The claim of a volume.
pub(super) async fn read(host: &Host, name: &HostName) -> Result<Option<PersistentVolumeClaim>, Refusal> {
    let claim = host.claims().get_opt(name.as_str()).await;
    claim.map_err(|error| Refusal::of_host(&format!("read {}", host.claim_name(name)), &error))
}

async fn create(host: &Host, asked: &Asked, until: Instant) -> Result<(u64, PersistentVolumeClaim), Refusal> {
    let plan = plan(host, asked, until).await?;
    let size = plan.size;
    let manifest = claim::manifest(asked, plan);
    match host.claims().create(&PostParams::default(), &manifest).await {
        Ok(claim) => Ok((size, claim)),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Err(Refusal::aborted(format!(
            "{} was created by somebody else just now: call again",
            host.claim_name(&asked.name)
        ))),
        Err(error) => {
            let doing = format!("create {}", host.claim_name(&asked.name));
            Err(Refusal::of_host(&doing, &error))
        }
    }
}

async fn plan(host: &Host, asked: &Asked, until: Instant) -> Result<Plan, Refusal> {
    match &asked.source {
        Some(Source::Snapshot(name)) => claim::filled(asked, content::snapshot(host, name).await?),
        Some(Source::Volume(name)) => claim::filled(asked, content::volume(host, name, until).await?),
        Some(Source::Backup { .. }) | None => {
            let class = match &asked.class {
                Some(name) => classes::named(host, name).await?,
                // a raw device is the same in each class
                None if asked.is_block => None,
                None => classes::default(host).await?,
            };
            let plan = claim::empty(asked, class.as_ref())?;
            if asked.reach == Reach::Export {
                export::check(host).await?;
            }
            Ok(plan)
        }
    }
}
