//! A user who keeps asking, whatever becomes of the answers.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};
use tokio_util::task::TaskTracker;

use super::observer::backend_of;
use crate::{curl::curl, environment::wire_port};

/// Between two requests.
const BEAT: Duration = Duration::from_millis(20);

/// One request that has come to its end.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) begun: Instant,
    /// The VM that answered, or why nobody did.
    pub(super) answer: Result<String, String>,
}

impl Request {
    pub(super) fn reached(&self, vm: &str) -> bool {
        self.answer.as_ref().is_ok_and(|answered| answered == vm)
    }
}

pub(super) struct Load {
    log: Arc<Mutex<Vec<Request>>>,
    beat: JoinHandle<()>,
    under_way: TaskTracker,
}

impl Load {
    pub(super) fn on(address: IpAddr, port: u16) -> Self {
        let socket = SocketAddr::new(address, wire_port(port));
        let (log, under_way) = (Arc::new(Mutex::new(Vec::new())), TaskTracker::new());
        let (into, requests) = (log.clone(), under_way.clone());
        let beat = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                let into = into.clone();
                requests.spawn(async move {
                    let answer = match curl(socket).await {
                        Ok(text) => backend_of(&text).map_err(|error| error.to_string()),
                        Err(error) => Err(error.to_string()),
                    };
                    into.lock().expect("no panic while logging").push(Request { begun, answer });
                });
                tokio::time::sleep(BEAT).await;
            }
        });
        Self { log, beat, under_way }
    }

    /// Whether a request that was begun at `since` or later was answered by this VM.
    pub(super) fn has_reached(&self, vm: &str, since: Instant) -> bool {
        let log = self.log.lock().expect("no panic while logging");
        log.iter().any(|request| request.begun >= since && request.reached(vm))
    }

    /// Asks no more, and answers all requests when the last of them has ended: one that hangs has failed too.
    pub(super) async fn end(self) -> Vec<Request> {
        self.beat.abort();
        self.under_way.close();
        self.under_way.wait().await;
        std::mem::take(&mut *self.log.lock().expect("no panic while logging"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.beat.abort();
    }
}
