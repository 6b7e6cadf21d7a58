//! A process that can die or be stopped: all its requests go through a client that follows its crash plan.

use std::collections::{BTreeSet, VecDeque};
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller_kit::ObjectKey;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::conditions::UnconditionalWrites;

/// The renew deadline of the programs. A program that was stopped for longer starts no write any more, so its requests
/// fail.
const DEADLINE: Duration = Duration::from_secs(10);

/// One process of a program. Clones are the same process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    name: Arc<str>,
    dead: CancellationToken,
    plan: CrashPlan,
    stopped: Arc<Mutex<Option<Stopped>>>,
    late: LateCreations,
    unconditional: UnconditionalWrites,
}

/// The objects that stopped programs created after they went on: a POST carries no condition, and nothing can take it
/// back. And those that they patched, whose condition holds where nobody wrote meanwhile. Clones are the same lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateCreations {
    created: Arc<Mutex<Vec<(String, ObjectKey)>>>,
    patched: Arc<Mutex<Vec<(String, ObjectKey)>>>,
}

impl LateCreations {
    /// The objects of this plural.
    pub(crate) fn of(&self, plural: &str) -> BTreeSet<ObjectKey> {
        of(&lock(&self.created), plural)
    }

    /// The objects of this plural that were patched.
    pub(crate) fn patched(&self, plural: &str) -> BTreeSet<ObjectKey> {
        of(&lock(&self.patched), plural)
    }

    /// Notes the object that this request creates or patches, if it does, and returns the request.
    async fn note(&self, request: Request<Body>) -> kube::Result<Request<Body>> {
        let path = request.uri().path().trim_end_matches('/').to_owned();
        let mut parts = path.rsplit('/');
        let (Some(plural), Some(namespace)) = (parts.next(), parts.next()) else { return Ok(request) };
        if request.method() == Method::PATCH {
            let (name, plural, namespace) = (plural, namespace, parts.next().unwrap_or_default());
            lock(&self.patched).push((plural.to_owned(), ObjectKey::new(namespace, name)));
        }
        if request.method() != Method::POST {
            return Ok(request);
        }
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let object: Value = serde_json::from_slice(&body).unwrap_or_default();
        if let Some(name) = object["metadata"]["name"].as_str() {
            lock(&self.created).push((plural.to_owned(), ObjectKey::new(namespace, name)));
        }
        Ok(Request::from_parts(head, Body::from(body)))
    }
}

fn of(list: &[(String, ObjectKey)], plural: &str) -> BTreeSet<ObjectKey> {
    list.iter().filter(|(of, _)| of == plural).map(|(_, key)| key.clone()).collect()
}

/// The interruptions of a process, one after the other. Clones are the same plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct CrashPlan(Arc<Mutex<VecDeque<CrashPoint>>>);

/// One interruption of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CrashPoint {
    /// The number of writes before it that go well.
    pub(crate) writes: u32,
    /// Only writes to objects of this plural count; all where it is empty.
    pub(crate) plural: &'static str,
    pub(crate) interruption: Interruption,
}

/// The way in which a write interrupts a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The process dies, and the write never reaches the server.
    DieBefore,
    /// The process dies when the server has answered.
    DieAfter,
    /// SIGSTOP, and SIGCONT after this time. The write has passed every check of the program, and reaches the server
    /// then.
    Stop(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Stopped {
    since: Instant,
    until: Instant,
}

impl CrashPlan {
    /// Perhaps a stop, then a death, each within sixty writes.
    pub(crate) fn drawn(random: &mut fastrand::Rng) -> Self {
        let mut plan = VecDeque::new();
        if random.bool() {
            let time = Duration::from_millis(random.u64(1_000..70_000));
            plan.push_back(CrashPoint {
                writes: random.u32(..60),
                plural: "",
                interruption: Interruption::Stop(time),
            });
        }
        let interruption = if random.bool() { Interruption::DieAfter } else { Interruption::DieBefore };
        plan.push_back(CrashPoint { writes: random.u32(..60), plural: "", interruption });
        Self(Arc::new(Mutex::new(plan)))
    }

    /// Adds an interruption after the others.
    pub(crate) fn push(&self, point: CrashPoint) {
        lock(&self.0).push_back(point);
    }

    /// Drops the interruptions that have not happened.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn next(&self, method: &Method, path: &str) -> Option<Interruption> {
        let mut plan = lock(&self.0);
        let point = plan.front_mut()?;
        let counts = point.plural.is_empty() || path.split('/').any(|part| part == point.plural);
        if !is_write(method) || !counts {
            return None;
        }
        if point.writes == 0 {
            return plan.pop_front().map(|point| point.interruption);
        }
        point.writes -= 1;
        None
    }
}

impl Process {
    /// `name` is for the log.
    pub(crate) fn new(
        name: &str,
        plan: CrashPlan,
        late: LateCreations,
        unconditional: UnconditionalWrites,
    ) -> Self {
        let (dead, stopped) = (CancellationToken::new(), Arc::default());
        Self { name: name.into(), dead, plan, stopped, late, unconditional }
    }

    pub(crate) fn die(&self) {
        self.dead.cancel();
    }

    pub(crate) async fn died(&self) {
        self.dead.cancelled().await;
    }

    /// The outcome, unless the program dies first.
    pub(crate) async fn run_until_dead<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.dead.run_until_cancelled(work).await
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Waits while the process is stopped. Returns for how long it was.
    pub(crate) async fn goes_on(&self) -> Duration {
        match self.stopped() {
            Some(Stopped { since, until }) => {
                sleep_until(until).await;
                until - since
            }
            None => Duration::ZERO,
        }
    }

    /// A client whose requests never return once the process is dead.
    pub(crate) fn client(&self, client: Client) -> Client {
        let (process, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (process, client) = (process.clone(), client.clone());
            async move {
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let interruption = process.interrupt(&method, &path);
                let sent = process.send(&client, request);
                let Some(answer) = process.run_until_dead(sent).await else {
                    return pending().await;
                };
                if interruption == Some(Interruption::DieAfter) {
                    process.die();
                    return pending().await;
                }
                process.goes_on().await;
                if is_write(&method) && !path.contains("/leases/") {
                    let answer = answer.as_ref().map(Response::status);
                    tracing::debug!(name = &*process.name, %method, path, ?answer);
                }
                answer
            }
        });
        Client::new(service, namespace)
    }

    /// Carries out the interruption that the plan has for this request, all but [`Interruption::DieAfter`], which is
    /// the caller's.
    pub(crate) fn interrupt(&self, method: &Method, path: &str) -> Option<Interruption> {
        let interruption = self.plan.next(method, path)?;
        tracing::info!(name = &*self.name, ?interruption, %method, path);
        match interruption {
            Interruption::DieBefore => self.die(),
            Interruption::Stop(time) => self.stop(time),
            Interruption::DieAfter => {}
        }
        Some(interruption)
    }

    async fn send(&self, client: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        let request = self.unconditional.read(request).await?;
        match self.stopped() {
            // the request is on its way: a stopped process takes nothing back, not even when it is killed
            Some(Stopped { since, until }) if since == Instant::now() => {
                let (client, late) = (client.clone(), self.late.clone());
                let late = tokio::spawn(async move {
                    sleep_until(until).await;
                    client.send(late.note(request).await?).await
                });
                late.await.expect("a request does not panic")
            }
            _ if self.goes_on().await > DEADLINE => {
                let broken = io::Error::new(io::ErrorKind::ConnectionReset, "the program was stopped");
                Err(kube::Error::Service(Box::new(broken)))
            }
            _ => client.send(request).await,
        }
    }

    fn stop(&self, time: Duration) {
        let since = Instant::now();
        *lock(&self.stopped) = Some(Stopped { since, until: since + time });
    }

    fn stopped(&self) -> Option<Stopped> {
        lock(&self.stopped).filter(|stopped| Instant::now() < stopped.until)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_write(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_comes_after_as_many_writes_to_its_plural_as_it_says() {
        let plan = CrashPlan::default();
        plan.push(CrashPoint { writes: 1, plural: "loadbalancers", interruption: Interruption::DieAfter });
        let interruptions = [
            (Method::PUT, "/apis/a/v1/ippools/lab"),
            (Method::PUT, "/apis/a/v1/namespaces/b/loadbalancers/web"),
            (Method::GET, "/apis/a/v1/namespaces/b/loadbalancers/web"),
            (Method::PUT, "/apis/a/v1/namespaces/b/loadbalancers/web"),
            (Method::PUT, "/apis/a/v1/namespaces/b/loadbalancers/web"),
        ]
        .map(|(method, path)| plan.next(&method, path));
        assert_eq!(interruptions, [None, None, None, Some(Interruption::DieAfter), None]);
        assert!(plan.is_empty());
    }
}
