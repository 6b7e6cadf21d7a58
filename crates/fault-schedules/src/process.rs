//! A program that can die: everything that it asks goes through a client that knows its fate.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use tokio_util::sync::CancellationToken;

/// One life of a program. Clones are the same life.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    dead: CancellationToken,
    fate: Arc<Mutex<Option<Fate>>>,
}

/// Death at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    /// Writes that still go well.
    writes: u32,
    /// Whether the last one reaches the server.
    reaches: bool,
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Live,
    DieBefore,
    DieAfter,
}

impl Process {
    /// A life of at most sixty writes.
    pub(crate) fn doomed(random: &mut fastrand::Rng) -> Self {
        Self::with(Some(Fate { writes: random.u32(..60), reaches: random.bool() }))
    }

    pub(crate) fn immortal() -> Self {
        Self::with(None)
    }

    fn with(fate: Option<Fate>) -> Self {
        Self { dead: CancellationToken::new(), fate: Arc::new(Mutex::new(fate)) }
    }

    /// Takes its fate away.
    pub(crate) fn spare(&self) {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn die(&self) {
        self.dead.cancel();
    }

    pub(crate) async fn died(&self) {
        self.dead.cancelled().await;
    }

    /// A client whose requests stop in the middle when the process dies: the dead do not learn what became of them.
    pub(crate) fn client(&self, client: Client) -> Client {
        let (process, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (process, client) = (process.clone(), client.clone());
            async move {
                let turn = if is_write(request.method()) { process.turn() } else { Turn::Live };
                if turn == Turn::DieBefore {
                    process.die();
                }
                let Some(answer) = process.dead.run_until_cancelled(client.send(request)).await else {
                    return pending().await;
                };
                if turn == Turn::DieAfter {
                    process.die();
                    return pending().await;
                }
                answer
            }
        });
        Client::new(service, namespace)
    }

    fn turn(&self) -> Turn {
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        match fate.as_mut() {
            None => Turn::Live,
            Some(Fate { writes: 0, reaches: false }) => Turn::DieBefore,
            Some(Fate { writes: 0, reaches: true }) => Turn::DieAfter,
            Some(Fate { writes, .. }) => {
                *writes -= 1;
                Turn::Live
            }
        }
    }
}

fn is_write(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_as_many_writes_as_its_fate_says() {
        let process = Process::with(Some(Fate { writes: 2, reaches: true }));
        assert_eq!(
            [(); 4].map(|()| process.turn()),
            [Turn::Live, Turn::Live, Turn::DieAfter, Turn::DieAfter]
        );
        process.spare();
        assert_eq!(process.turn(), Turn::Live);
    }
}
