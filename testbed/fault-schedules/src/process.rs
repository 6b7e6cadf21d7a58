//! A program that can die or be stopped: everything that it asks goes through a client that knows its fates.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// What is asked by a program that was stopped for longer gets no further: the programs' renew deadline has passed, and
/// their clients start no write any more.
const DEADLINE: Duration = Duration::from_secs(10);

/// One life of a program. Clones are the same life.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    name: Arc<str>,
    dead: CancellationToken,
    fates: Fates,
    stopped: Arc<Mutex<Option<Stopped>>>,
    late: LateMakings,
}

/// LoadBalancers that stopped programs made when they went on, of all programs. Clones are the same count.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateMakings(Arc<AtomicUsize>);

impl LateMakings {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What happens to a program at some of its writes, one after the other. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fates(Arc<Mutex<VecDeque<Fate>>>);

/// What happens at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    /// Writes that still go well.
    pub(crate) writes: u32,
    /// Only writes to objects of this plural count; empty: all.
    pub(crate) plural: &'static str,
    pub(crate) turn: Turn,
}

/// What becomes of a program with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It dies, and the write never reaches the server.
    DieBefore,
    /// It dies when the server has answered.
    DieAfter,
    /// SIGSTOP, and SIGCONT so much later: the write has passed every check, and goes on then.
    Stop(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Stopped {
    since: Instant,
    until: Instant,
}

impl Fates {
    /// Perhaps stopped, then dead, each within sixty writes.
    pub(crate) fn drawn(random: &mut fastrand::Rng) -> Self {
        let mut fates = VecDeque::new();
        if random.bool() {
            let time = Duration::from_millis(random.u64(1_000..70_000));
            fates.push_back(Fate { writes: random.u32(..60), plural: "", turn: Turn::Stop(time) });
        }
        let turn = if random.bool() { Turn::DieAfter } else { Turn::DieBefore };
        fates.push_back(Fate { writes: random.u32(..60), plural: "", turn });
        Self(Arc::new(Mutex::new(fates)))
    }

    /// Only this one.
    pub(crate) fn one(fate: Fate) -> Self {
        Self(Arc::new(Mutex::new(VecDeque::from([fate]))))
    }

    /// Nothing will happen.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn turn(&self, method: &Method, path: &str) -> Option<Turn> {
        let mut fates = lock(&self.0);
        let fate = fates.front_mut()?;
        let counts = fate.plural.is_empty() || path.split('/').any(|part| part == fate.plural);
        if !is_write(method) || !counts {
            return None;
        }
        if fate.writes == 0 {
            return fates.pop_front().map(|fate| fate.turn);
        }
        fate.writes -= 1;
        None
    }
}

impl Process {
    /// `name` is for the log.
    pub(crate) fn new(name: &str, fates: Fates, late: LateMakings) -> Self {
        Self { name: name.into(), dead: CancellationToken::new(), fates, stopped: Arc::default(), late }
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

    /// Waits while the program is stopped; says for how long it was.
    pub(crate) async fn goes_on(&self) -> Duration {
        match self.stopped() {
            Some(Stopped { since, until }) => {
                sleep_until(until).await;
                until - since
            }
            None => Duration::ZERO,
        }
    }

    /// A client whose requests stop in the middle when the process dies: the dead do not learn what became of them.
    pub(crate) fn client(&self, client: Client) -> Client {
        let (process, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (process, client) = (process.clone(), client.clone());
            async move {
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let turn = process.meet(&method, &path);
                let sent = process.send(&client, request);
                let Some(answer) = process.run_until_dead(sent).await else {
                    return pending().await;
                };
                if turn == Some(Turn::DieAfter) {
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

    /// What comes over the program at this request; it has come when this returns, but for a death afterwards.
    pub(crate) fn meet(&self, method: &Method, path: &str) -> Option<Turn> {
        let turn = self.fates.turn(method, path)?;
        tracing::info!(name = &*self.name, ?turn, %method, path);
        match turn {
            Turn::DieBefore => self.die(),
            Turn::Stop(time) => self.stop(time),
            Turn::DieAfter => {}
        }
        Some(turn)
    }

    async fn send(&self, client: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        match self.stopped() {
            // already on its way: a stopped program takes nothing back, and whoever ends it comes too late
            Some(Stopped { since, until }) if since == Instant::now() => {
                let (client, late) = (client.clone(), self.late.clone());
                let late = tokio::spawn(async move {
                    sleep_until(until).await;
                    if request.method() == Method::POST && request.uri().path().ends_with("/loadbalancers") {
                        late.0.fetch_add(1, Ordering::Relaxed);
                    }
                    client.send(request).await
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
    fn a_fate_comes_after_as_many_writes_of_its_kind_as_it_says() {
        let fates = Fates::one(Fate { writes: 1, plural: "loadbalancers", turn: Turn::DieAfter });
        let turns = [
            (Method::PUT, "/apis/a/v1/ippools/lab"),
            (Method::PUT, "/apis/a/v1/namespaces/b/loadbalancers/web"),
            (Method::GET, "/apis/a/v1/namespaces/b/loadbalancers/web"),
            (Method::PUT, "/apis/a/v1/namespaces/b/loadbalancers/web"),
            (Method::PUT, "/apis/a/v1/namespaces/b/loadbalancers/web"),
        ]
        .map(|(method, path)| fates.turn(&method, path));
        assert_eq!(turns, [None, None, None, Some(Turn::DieAfter), None]);
        assert!(fates.is_empty());
    }
}
