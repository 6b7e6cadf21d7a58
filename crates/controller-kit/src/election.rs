//! Leader election over a Lease, by the rules of client-go, because during an upgrade a Go program holds the same
//! Lease: a record is stale when **our** clock has not seen it change for as long as it says that it lasts (wall
//! clocks of two machines are never compared), and every write is a PUT with the version that was read.
//!
//! One rule is ours. A process that was killed in a Pod that stays would wait for its own Lease; a candidate takes that
//! Lease at once where the kernel proves that the holder is dead ([`program::pod`]).
//!
//! A candidate reads the Lease once in each retry period. Where its role grants a watch on Leases, which the existing
//! roles do not, the watch tells it when to look (`announcements`): a Lease that is given back is taken at once. A try to
//! renew lasts at most half of the renew deadline: one request that hangs costs no Lease.

mod announcements;
mod decide;
mod fence;

use std::{future::Future, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, Client, api::PostParams};
use program::{
    Clock, TaskGroup,
    health::{Check, Health},
};
use tokio::time::{Instant, error::Elapsed, sleep, timeout};
use tokio_util::sync::CancellationToken;

use announcements::Announcements;
use decide::{Seen, Step, decide};
pub use fence::Leadership;
pub use program::pod::Identity;

/// A leader whose Lease is overdue by this time hangs: its liveness check fails (as with client-go).
const OVERDUE: Duration = Duration::from_secs(20);
/// How long the end of a candidate waits for the answer to a write that is under way.
const ENDING: Duration = Duration::from_secs(5);
/// Name of the liveness and of the readiness check.
const CHECK: &str = "leader-election";

/// The Lease, our identity, and the periods.
#[derive(Clone, Debug)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique among all candidates.
    pub identity: Identity,
    /// How long others must see no change before they take over.
    pub lease: Duration,
    /// A leader that has not renewed for so long starts no write and gives up.
    pub renew_deadline: Duration,
    /// Time between two tries, to get the Lease or to renew it.
    pub retry_period: Duration,
    /// Liveness fails while a Lease of our own is overdue by 20 s. Readiness passes for a leader, and for a candidate
    /// that could read the Lease and waits for another one's.
    pub health: Health,
}

/// Why [`lead`] ended before `tasks` was cancelled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("lost the Lease {namespace}/{name}: not renewed within {deadline:?}: {why}")]
    Lost { namespace: String, name: String, deadline: Duration, why: String },
    #[error("lost the Lease {namespace}/{name} to {holder}")]
    Taken { namespace: String, name: String, holder: String },
}

/// Waits until the Lease is ours, then runs `work` and renews the Lease beside it. When `tasks` is cancelled, `work`
/// must end; then the leader gives the Lease back, so that the next one need not wait.
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
    let leadership = Leadership::new(election.renew_deadline);
    let (own, lease) = (leadership.clone(), election.lease);
    election.health.liveness_by(CHECK, move || {
        let overdue = own.overdue(lease).filter(|overdue| *overdue >= OVERDUE)?;
        Some(format!("the Lease is overdue by {} s", overdue.as_secs()))
    });
    let mut candidate = Candidate {
        api: Api::namespaced(client, &election.namespace),
        ready: election.health.readiness(CHECK),
        leadership,
        election,
        clock,
        seen: Seen::default(),
    };
    let announcements = Announcements::start(tasks, candidate.api.clone().into_client(), &candidate.election);
    let acquired = candidate.acquire(&tasks.stop, announcements).await;
    if tasks.stop.is_cancelled() {
        candidate.leadership.end();
        if acquired != Acquired::No {
            candidate.release().await;
        }
        return Ok(());
    }
    let (lease, identity) = (&candidate.election.name, candidate.seen.holder());
    tracing::info!(lease, identity, "leading");
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

/// How a candidate's wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acquired {
    Yes,
    No,
    /// A write was sent and its answer did not come before the end.
    Perhaps,
}

struct Candidate {
    api: Api<Lease>,
    election: Election,
    clock: Clock,
    leadership: Leadership,
    ready: Check,
    seen: Seen,
}

impl Candidate {
    /// Tries until the Lease is ours or `stop`. A look is dropped at `stop`; a write is waited for, because the Lease
    /// may be ours when its answer comes.
    async fn acquire(&mut self, stop: &CancellationToken, mut announcements: Announcements) -> Acquired {
        let limit = self.try_timeout();
        let (mut unsure, mut quick, mut waits_for) = (false, false, None);
        loop {
            let Some(looked) = stop.run_until_cancelled(timeout(limit, self.look())).await else { break };
            let looked = in_time(looked, limit);
            unsure &= looked.is_err();
            let tried = match looked {
                Ok(()) => in_time(self.take_before_the_end(stop).await, limit),
                Err(error) => Err(error),
            };
            let was_quick = std::mem::take(&mut quick);
            match tried {
                Ok(true) => {
                    self.ready.pass();
                    return Acquired::Yes;
                }
                Ok(false) => {
                    self.ready.pass();
                    let holder = Some(self.seen.holder().to_owned());
                    if waits_for != holder {
                        tracing::info!(lease = self.election.name, holder, "waiting for the Lease");
                        waits_for = holder;
                    }
                }
                Err(error) => {
                    self.cannot(&error);
                    unsure |= !matches!(error, kube::Error::Api(_));
                    // another candidate was quicker: its Lease is looked at before a pause, once
                    quick =
                        matches!(&error, kube::Error::Api(refusal) if refusal.is_conflict()) && !was_quick;
                }
            }
            if !quick && stop.run_until_cancelled(announcements.wait(&mut self.seen)).await.is_none() {
                break;
            }
        }
        if unsure { Acquired::Perhaps } else { Acquired::No }
    }

    async fn take_before_the_end(&mut self, stop: &CancellationToken) -> Result<kube::Result<bool>, Elapsed> {
        let end = async {
            stop.cancelled().await;
            sleep(ENDING).await;
        };
        let write = timeout(self.try_timeout(), self.take_or_renew());
        tokio::select! {
            written = write => written,
            () = end => timeout(Duration::ZERO, std::future::pending()).await,
        }
    }

    /// A try lasts no longer, so that another one fits in before the renew deadline.
    fn try_timeout(&self) -> Duration {
        self.election.renew_deadline / 2
    }

    fn cannot(&self, error: &kube::Error) {
        self.ready.fail(format!(
            "cannot get the Lease {}: {}",
            self.election.name,
            crate::error_message(error)
        ));
        let error = error as &dyn std::error::Error;
        tracing::warn!(error, lease = self.election.name, "cannot get the Lease yet");
    }

    /// Renews until it does not succeed any more, and says why.
    async fn keep(&mut self) -> Error {
        let mut why = "no answer".to_owned();
        loop {
            sleep(self.election.retry_period).await;
            let Some(deadline) = self.leadership.deadline() else {
                let Election { namespace, name, renew_deadline, .. } = &self.election;
                let (namespace, name, deadline) = (namespace.clone(), name.clone(), *renew_deadline);
                return Error::Lost { namespace, name, deadline, why };
            };
            let until = deadline.min(Instant::now() + self.try_timeout());
            match tokio::time::timeout_at(until, self.try_once()).await {
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
                    why = crate::error_message(&error);
                }
                Err(_) => {
                    tracing::warn!(lease = self.election.name, "no answer to the renewal of the Lease");
                    "no answer".clone_into(&mut why);
                }
            }
        }
    }

    /// Renews, and says whether the Lease is ours still. A refused write is followed by a look and a second one: a user
    /// who deletes the Lease, or changes it without taking it, ends no leader (as with client-go).
    async fn try_once(&mut self) -> kube::Result<bool> {
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
        let Election { identity, namespace, name, lease, .. } = &self.election;
        let holds = identity.hold(namespace, name);
        let lease = match decide(identity, holds, &self.seen, *lease, started) {
            Step::Wait => return Ok(false),
            Step::Create => self.write(None, 0, holds).await?,
            Step::Renew => self.write(self.seen.record.clone(), self.seen.transitions(), holds).await?,
            Step::TakeOver { transitions } => {
                if identity.is_predecessor(self.seen.holder()) {
                    tracing::info!(
                        lease = name,
                        holder = self.seen.holder(),
                        "its holder in this Pod is dead"
                    );
                }
                self.write(self.seen.record.clone(), transitions, holds).await?
            }
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

    async fn write(&self, lease: Option<Lease>, transitions: i32, holds: bool) -> kube::Result<Lease> {
        let now = MicroTime(self.clock.now());
        let create = lease.is_none();
        let mut lease = lease.unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        let ours = self.election.identity.is(spec.holder_identity.as_deref().unwrap_or_default());
        *spec = LeaseSpec {
            holder_identity: Some(self.election.identity.text(holds).to_owned()),
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

    /// Gives the Lease back as client-go does: no holder, one second. A write whose answer was not waited for may have
    /// changed it meanwhile, so a refusal is followed by a look.
    async fn release(&mut self) {
        match timeout(ENDING, self.try_release()).await {
            Ok(Ok(true)) => tracing::info!(lease = self.election.name, "gave the Lease back"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not give the Lease back");
            }
            Err(_) => tracing::warn!("could not give the Lease back in time"),
        }
    }

    async fn try_release(&mut self) -> kube::Result<bool> {
        for _ in 0..2 {
            if self.election.identity.is(self.seen.holder()) {
                match self.write_release().await {
                    Err(kube::Error::Api(refusal)) if refusal.is_conflict() => {}
                    outcome => return outcome.map(|()| true),
                }
            }
            self.look().await?;
        }
        if self.election.identity.is(self.seen.holder()) {
            self.write_release().await.map(|()| true)
        } else {
            Ok(false)
        }
    }

    async fn write_release(&self) -> kube::Result<()> {
        let mut lease = self.seen.record.clone().unwrap_or_default();
        let now = MicroTime(self.clock.now());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.acquire_time = Some(now.clone());
        spec.renew_time = Some(now);
        self.api.replace(&self.election.name, &PostParams::default(), &lease).await.map(drop)
    }
}

fn in_time<T>(answer: Result<kube::Result<T>, Elapsed>, limit: Duration) -> kube::Result<T> {
    answer.unwrap_or_else(|_| Err(kube::Error::Service(Box::new(Late(limit)))))
}

/// A request that was given up.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct Late(Duration);

fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests;
