//! Leader election over a Lease, by the rules of client-go, because during an upgrade a Go program holds the same
//! Lease: a record is stale when **our** clock has not seen it change for as long as it says that it lasts (wall
//! clocks of two machines are never compared), and every write is a PUT with the version that was read.
//!
//! A Lease of somebody else cannot be watched with the rights that the existing roles grant, so a candidate reads
//! it once in each retry period.

mod decide;
mod fence;

use std::{future::Future, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::Instant;

use decide::{Seen, Step, decide};
pub use fence::{Leadership, NotLeading};
use program::{Clock, TaskGroup};

/// Which Lease, who we are, and how long things last.
#[derive(Clone, Debug)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique among all candidates, for example `<host name>_<random>`.
    pub identity: String,
    /// How long others must see no change before they take over.
    pub lease: Duration,
    /// A leader that has not renewed for so long starts no write and gives up.
    pub renew_deadline: Duration,
    /// Time between two tries, to get the Lease or to renew it.
    pub retry_period: Duration,
}

/// Why [`lead`] ended other than by being told to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("lost the Lease {namespace}/{name}: not renewed within {deadline:?}")]
    Lost { namespace: String, name: String, deadline: Duration },
    #[error("lost the Lease {namespace}/{name} to {holder}")]
    Taken { namespace: String, name: String, holder: String },
}

/// Waits until the Lease is ours, then runs `work` and renews the Lease beside it. When `tasks` is told to stop,
/// `work` is expected to end, and the Lease is given back so that the next leader need not wait.
///
/// # Errors
/// When the Lease was lost: `work` is dropped at once, and the process should end, because nothing that writes may
/// outlive the Lease.
pub async fn lead<F, W>(
    client: Client,
    election: Election,
    clock: Clock,
    tasks: &TaskGroup,
    work: F,
) -> Result<(), Error>
where
    F: FnOnce(Leadership) -> W,
    W: Future<Output = ()>,
{
    let mut candidate = Candidate {
        api: Api::namespaced(client, &election.namespace),
        leadership: Leadership::new(election.renew_deadline),
        election,
        clock,
        seen: Seen::default(),
    };
    if tasks.stop.run_until_cancelled(candidate.acquire()).await.is_none() {
        return Ok(());
    }
    tracing::info!(lease = candidate.election.name, identity = candidate.election.identity, "leading");
    let work = work(candidate.leadership.clone());
    tokio::pin!(work);
    let outcome = tokio::select! {
        () = &mut work => Ok(()),
        lost = candidate.keep() => Err(lost),
    };
    candidate.leadership.end();
    if outcome.is_ok() {
        candidate.release().await;
    }
    outcome
}

struct Candidate {
    api: Api<Lease>,
    election: Election,
    clock: Clock,
    leadership: Leadership,
    seen: Seen,
}

impl Candidate {
    async fn acquire(&mut self) {
        let mut waits_for = None;
        loop {
            match self.try_once().await {
                Ok(true) => return,
                Ok(false) => {
                    let holder = Some(self.seen.holder().to_owned());
                    if waits_for != holder {
                        tracing::info!(lease = self.election.name, holder, "waiting for the Lease");
                        waits_for = holder;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot get the Lease yet");
                }
            }
            tokio::time::sleep(self.election.retry_period).await;
        }
    }

    /// Renews until it does not succeed any more, and says why.
    async fn keep(&mut self) -> Error {
        loop {
            tokio::time::sleep(self.election.retry_period).await;
            match tokio::time::timeout_at(self.leadership.deadline(), self.try_once()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    return Error::Taken {
                        namespace: self.election.namespace.clone(),
                        name: self.election.name.clone(),
                        holder: self.seen.holder().to_owned(),
                    };
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot renew the Lease");
                }
                Err(_) => {}
            }
            if !self.leadership.is_current() {
                return Error::Lost {
                    namespace: self.election.namespace.clone(),
                    name: self.election.name.clone(),
                    deadline: self.election.renew_deadline,
                };
            }
        }
    }

    /// Says whether the Lease is ours now. A refused write is followed by a look and a second one: whoever deleted the
    /// Lease, or changed it without taking it, ends no leader (as with client-go).
    async fn try_once(&mut self) -> kube::Result<bool> {
        // a leader knows its own record; only a refusal says that it must look
        if !self.leadership.is_current() || self.seen.record.is_none() {
            self.look().await?;
        }
        match self.take_or_renew().await {
            Err(kube::Error::Api(refusal)) => {
                tracing::debug!(lease = self.election.name, refusal.message, "looking at the Lease again");
                self.look().await?;
                self.take_or_renew().await
            }
            outcome => outcome,
        }
    }

    /// At most one write, by what was seen last.
    async fn take_or_renew(&mut self) -> kube::Result<bool> {
        let started = Instant::now();
        let lease = match decide(&self.election.identity, &self.seen, self.election.lease, started) {
            Step::Wait => return Ok(false),
            Step::Create => self.write(None, 0).await?,
            Step::Renew => self.write(self.seen.record.clone(), self.seen.transitions()).await?,
            Step::TakeOver { transitions } => self.write(self.seen.record.clone(), transitions).await?,
        };
        self.seen.observe(Some(lease), Instant::now());
        self.leadership.renewed(started);
        Ok(true)
    }

    async fn look(&mut self) -> kube::Result<()> {
        let lease = self.api.get_opt(&self.election.name).await?;
        self.seen.observe(lease, Instant::now());
        Ok(())
    }

    async fn write(&self, lease: Option<Lease>, transitions: i32) -> kube::Result<Lease> {
        let now = MicroTime(self.clock.now());
        let create = lease.is_none();
        let mut lease = lease.unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        let ours = spec.holder_identity.as_deref() == Some(&*self.election.identity);
        *spec = LeaseSpec {
            holder_identity: Some(self.election.identity.clone()),
            lease_duration_seconds: Some(whole_seconds(self.election.lease)),
            acquire_time: if ours { spec.acquire_time.take() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..std::mem::take(spec)
        };
        if create {
            lease.metadata.name = Some(self.election.name.clone());
            lease.metadata.namespace = Some(self.election.namespace.clone());
            self.api.create(&PostParams::default(), &lease).await
        } else {
            self.api.replace(&self.election.name, &PostParams::default(), &lease).await
        }
    }

    /// Gives the Lease back as client-go does: no holder, one second.
    async fn release(&self) {
        let Some(mut lease) = self.seen.record.clone() else { return };
        let now = MicroTime(self.clock.now());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.acquire_time = Some(now.clone());
        spec.renew_time = Some(now);
        let how = PostParams::default();
        let write = self.api.replace(&self.election.name, &how, &lease);
        match tokio::time::timeout(self.election.retry_period, write).await {
            Ok(Ok(_)) => tracing::info!(lease = self.election.name, "gave the Lease back"),
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not give the Lease back");
            }
            Err(_) => tracing::warn!("could not give the Lease back in time"),
        }
    }
}

fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests;
