//! Waiting for the host, by a watch on one object, for as long as a call may take.

use std::{
    error::Error,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::Watched;
use kube::{Api, runtime::wait::await_condition};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;

use crate::{
    host::{is_not_found, is_refused, rights},
    refusal::{Refusal, error_message},
};

/// A call waits so long for the host, then the caller comes again. The sidecars of the chart give up after 110 s, others
/// earlier, and with them a call ends at once: nothing waits on behalf of a caller that is gone
/// (docs/contract/csi-driver.md#deadlines).
pub(crate) const WAITS_FOR: Duration = Duration::from_secs(60);

/// For a snapshot: the snapshotter gives up after 60 s, and would not hear why.
pub(crate) const SNAPSHOT_WAITS_FOR: Duration = Duration::from_secs(50);

/// Where the host may work for hours, or for ever, a caller hears of it after so long without a change of the object's
/// status: the sidecars have few workers for all volumes, and one tenant would hold them.
pub(crate) const QUIET_FOR: Duration = Duration::from_secs(10);

/// Where the role grants no watch, the object is read again after so long.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// When a call stops to wait: `limit` from now, or at its deadline, after which its caller would not hear why.
pub(super) fn end(deadline: Instant, limit: Duration) -> Instant {
    deadline.min(Instant::now() + limit)
}

/// The object when it is as wanted, or `None` when there is none. `what` says what is waited for, as in
/// "PersistentVolumeClaim shop/pvc-1 on the host is not bound".
pub(super) async fn until<K: Watched>(
    end: Instant,
    api: Api<K>,
    name: &str,
    what: &str,
    is_done: impl Fn(&K) -> bool,
) -> Result<Option<K>, Refusal> {
    let begun = Instant::now();
    timeout_at(end, watched(api, name, what, is_done)).await.unwrap_or_else(|_| Err(late(what, begun)))
}

/// The same, and no longer than the object's status changes.
pub(super) async fn while_it_changes<K: Watched, S: PartialEq + Send>(
    end: Instant,
    api: Api<K>,
    name: &str,
    what: &str,
    status: impl Fn(&K) -> S,
    is_done: impl Fn(&K) -> bool,
) -> Result<Option<K>, Refusal> {
    let changes = Changes::default();
    let done = watched(api, name, what, |object: &K| {
        changes.note(status(object));
        is_done(object)
    });
    changes.patiently(end, what, Box::pin(done)).await
}

/// The same for a kind that no role lets us watch.
pub(super) async fn by_reading<K: Watched, S: PartialEq + Send>(
    end: Instant,
    api: Api<K>,
    name: &str,
    what: &str,
    status: impl Fn(&K) -> S,
    is_done: impl Fn(&K) -> bool,
) -> Result<Option<K>, Refusal> {
    let changes = Changes::default();
    let done = read(api, name, what, |object: &K| {
        changes.note(status(object));
        is_done(object)
    });
    changes.patiently(end, what, Box::pin(done)).await
}

/// The last status of an object, and when it was first seen.
struct Changes<S>(Mutex<(Instant, Option<S>)>);

impl<S> Default for Changes<S> {
    fn default() -> Self {
        Self(Mutex::new((Instant::now(), None)))
    }
}

impl<S: PartialEq> Changes<S> {
    fn note(&self, status: S) {
        let (status, mut seen) = (Some(status), self.seen());
        if seen.1 != status {
            *seen = (Instant::now(), status);
        }
    }

    /// Waits for `done` until `end`, and no longer than the status changes.
    async fn patiently<T>(
        &self,
        end: Instant,
        what: &str,
        mut done: impl Future<Output = Result<T, Refusal>> + Unpin,
    ) -> Result<T, Refusal> {
        let begun = Instant::now();
        loop {
            let until = end.min(self.quiet_at());
            match timeout_at(until, &mut done).await {
                Ok(done) => return done,
                Err(_) if until == end => return Err(late(what, begun)),
                Err(_) if until < self.quiet_at() => {}
                Err(_) => return Err(quiet(what)),
            }
        }
    }

    fn quiet_at(&self) -> Instant {
        self.seen().0 + QUIET_FOR
    }

    fn seen(&self) -> MutexGuard<'_, (Instant, Option<S>)> {
        self.0.lock().expect("no panic while the status is compared")
    }
}

async fn watched<K: Watched>(
    api: Api<K>,
    name: &str,
    what: &str,
    is_done: impl Fn(&K) -> bool,
) -> Result<Option<K>, Refusal> {
    let is_as_wanted = |object: Option<&K>| object.is_none_or(&is_done);
    let error = match await_condition(api.clone(), name, is_as_wanted).await {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    let cause = kubernetes(&error);
    if !cause.is_some_and(is_refused) {
        let why = cause.map_or_else(|| error_message(&error), |cause| error_message(cause));
        return Err(Refusal::new(Code::Unavailable, format!("{what}: {}", rights::explained(why))));
    }
    read(api, name, what, is_done).await
}

async fn read<K: Watched>(
    api: Api<K>,
    name: &str,
    what: &str,
    is_done: impl Fn(&K) -> bool,
) -> Result<Option<K>, Refusal> {
    loop {
        let object = match api.get(name).await {
            Ok(object) => Some(object),
            // also where the host lacks the kind
            Err(error) if is_not_found(&error) => None,
            Err(error) => return Err(Refusal::of_host(what, &error)),
        };
        if object.as_ref().is_none_or(&is_done) {
            return Ok(object);
        }
        sleep(READ_AGAIN).await;
    }
}

fn late(what: &str, begun: Instant) -> Refusal {
    let seconds = begun.elapsed().as_secs();
    Refusal::new(Code::DeadlineExceeded, format!("{what} after {seconds} s: it goes on, call again"))
}

fn quiet(what: &str) -> Refusal {
    let seconds = QUIET_FOR.as_secs();
    let text = format!("{what}, and its status has not changed for {seconds} s: it may go on, call again");
    Refusal::new(Code::DeadlineExceeded, text)
}

/// What an API server said, below the words of whoever watched.
fn kubernetes<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a kube::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
