//! How many calls without a caller are at work at once. One that waits for what the host does is not at work: volumes
//! that hang, however many, hold nobody back.

use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The workers of a reconciler. Whoever has waited longest gets the next one.
pub struct Workers(Arc<Semaphore>);

/// A worker, or the wait for the next one.
pub struct Worker {
    all: Arc<Semaphore>,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Workers {
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// Takes a worker when one is free.
    pub fn take(&self) -> impl Future<Output = Worker> + Send + use<> {
        let all = self.0.clone();
        async move {
            let worker = Worker { all, held: Mutex::default() };
            worker.hold().await;
            worker
        }
    }
}

impl Worker {
    async fn hold(&self) {
        let permit = self.all.clone().acquire_owned().await.expect("nobody closes it");
        *self.held.lock().expect("no panic while it is changed") = Some(permit);
    }

    /// Lets others have the worker during a wait.
    pub(super) async fn free_during<T>(&self, wait: impl Future<Output = T>) -> T {
        drop(self.held.lock().expect("no panic while it is changed").take());
        let waited = wait.await;
        self.hold().await;
        waited
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_lets_others_work_and_comes_after_them() {
        let workers = Workers::new(1);
        let first = workers.take().await;
        let (second, third) = (workers.take(), workers.take());
        tokio::pin!(second, third);
        assert!(second.as_mut().now_or_never().is_none());
        let wait = first.free_during(sleep(Duration::from_secs(1)));
        let other = async {
            let worker = second.await;
            sleep(Duration::from_secs(5)).await;
            drop(worker);
        };
        tokio::join!(wait, other);
        assert!(third.as_mut().now_or_never().is_none(), "the first one works again");
        drop(first);
        third.await;
    }
}
