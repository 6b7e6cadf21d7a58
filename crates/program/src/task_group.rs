//! Start and end of a part: one token that says stop, one tracker that knows which tasks still run.

use std::{future::Future, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long [`TaskGroup::end`] waits for tasks after `stop` was cancelled.
const GRACE: Duration = Duration::from_secs(10);

/// Cloned into everything that runs.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    /// Cancelled once: from then on nothing new begins.
    pub stop: CancellationToken,
    /// Everything that was spawned and has not ended.
    pub tasks: TaskTracker,
}

impl TaskGroup {
    pub fn new() -> Self {
        Self::default()
    }

    /// A life that ends with this one or earlier, with tasks of its own.
    pub fn child(&self) -> Self {
        Self { stop: self.stop.child_token(), tasks: TaskTracker::new() }
    }

    /// Runs `task` until it ends by itself; a task that runs for ever must watch [`TaskGroup::stop`].
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Runs `task` and drops it where it stands when the life ends.
    pub fn spawn_until_stop(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled_owned(task).await;
        });
    }

    /// Says stop and waits for the tasks, at most ten seconds.
    pub async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "some tasks did not stop in time");
        }
    }

    /// Says stop on SIGTERM or SIGINT.
    ///
    /// # Errors
    /// When the process may not install signal handlers.
    pub fn stop_on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
            }
            stop.cancel();
        });
        Ok(())
    }
}
