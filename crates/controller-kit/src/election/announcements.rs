//! What a watch on the Lease tells a candidate: when to look at it, and that it changed. The candidate takes a Lease only
//! after it has read it itself, so an event that is late, stale or missing costs time and no second leader: each one can
//! only put off the moment from which a silent holder counts as gone.

use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{WatchEvent, WatchParams},
};
use program::{
    TaskGroup,
    capabilities::{Capabilities, Right, Wanted},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use super::{Election, decide::Seen};

/// The server ends the watch after this time; then a new one begins.
const WATCH_FOR: Duration = Duration::from_secs(290);

/// The last word about the Lease.
#[derive(Clone, Debug)]
enum Word {
    /// No watch works.
    Silence,
    /// Somebody holds it.
    Held(Box<Lease>),
    /// Nobody holds it.
    Free,
}

/// How a candidate hears of the Lease. The watch ends when this is dropped.
pub(super) struct Announcements {
    last: watch::Receiver<Word>,
    retry_period: Duration,
    _life: tokio_util::sync::DropGuard,
}

impl Announcements {
    /// Watches the Lease where the role grants that, and until `tasks` ends.
    pub(super) fn start(tasks: &TaskGroup, client: Client, election: &Election) -> Self {
        let own = tasks.child();
        // by name: the Leases of others are no business of ours, and a role that says so is enough
        let right = Right::new("watch", "coordination.k8s.io", "leases")
            .named(election.name.clone())
            .within(&election.namespace);
        let wanted = Wanted { rights: vec![right.clone()], fields: Vec::new() };
        let capabilities = Capabilities::start(&own, client.clone(), wanted);
        let (into, last) = watch::channel(Word::Silence);
        let listener = Listener {
            api: Api::namespaced(client, &election.namespace),
            name: election.name.clone(),
            retry_period: election.retry_period,
            capabilities,
            right,
            into,
        };
        own.spawn_until_stop(listener.listen());
        Self { last, retry_period: election.retry_period, _life: own.stop.drop_guard() }
    }

    /// Until the candidate should look again: after the retry period, or as soon as the Lease is said to be free. Each
    /// renewal that the watch tells puts the look off, by half a period more than leaders wait: a watch that has died
    /// costs no more than that. Other changes of the Lease, such as of an annotation, say nothing of its holder.
    pub(super) async fn wait(&mut self, seen: &mut Seen) {
        let mut since = Instant::now();
        loop {
            let patience = match *self.last.borrow() {
                Word::Held(_) => self.retry_period * 3 / 2,
                Word::Silence | Word::Free => self.retry_period,
            };
            match timeout_at(since + patience, self.last.changed()).await {
                Err(_) => return,
                // the watch has ended for good
                Ok(Err(_)) => return sleep(self.retry_period).await,
                Ok(Ok(())) => match self.last.borrow_and_update().clone() {
                    Word::Free => return,
                    Word::Held(lease) => {
                        if seen.observe(Some(*lease), Instant::now()) {
                            since = Instant::now();
                        }
                    }
                    Word::Silence => {}
                },
            }
        }
    }
}

struct Listener {
    api: Api<Lease>,
    name: String,
    retry_period: Duration,
    capabilities: Capabilities,
    right: Right,
    into: watch::Sender<Word>,
}

impl Listener {
    async fn listen(self) {
        self.capabilities.known().await;
        loop {
            if self.capabilities.allows(&self.right)
                && let Err(error) = self.hear().await
            {
                if matches!(&error, kube::Error::Api(status) if status.is_forbidden()) {
                    self.capabilities.refused(&self.right);
                }
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    lease = self.name,
                    "cannot watch the Lease"
                );
            }
            self.into
                .send_if_modified(|word| !matches!(std::mem::replace(word, Word::Silence), Word::Silence));
            sleep(self.retry_period).await;
        }
    }

    /// One watch from its beginning, with the Lease as it is, to its end.
    async fn hear(&self) -> kube::Result<()> {
        let seconds = u32::try_from(WATCH_FOR.as_secs()).unwrap_or(u32::MAX);
        let this = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(seconds);
        let mut events = std::pin::pin!(self.api.watch(&this, "0").await?);
        self.capabilities.worked(&self.right);
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
                    let is_held = holder.is_some_and(|holder| !holder.is_empty());
                    self.into.send_replace(if is_held { Word::Held(Box::new(lease)) } else { Word::Free });
                }
                WatchEvent::Deleted(_) => drop(self.into.send_replace(Word::Free)),
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
