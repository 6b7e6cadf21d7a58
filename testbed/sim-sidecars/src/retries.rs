//! When what failed is tried again.

use std::{
    collections::HashMap,
    fmt::Display,
    hash::Hash,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{Action, Queue, error_message};
use program::TaskGroup;
use tokio::time::Instant;

use crate::{
    Pace,
    world::{Problem, World},
};

/// The failures of each item, and when it is due. A change of an object does not make it due earlier: the originals write
/// their failures into objects too, and do not wake themselves by that.
#[derive(Clone, Debug)]
pub(crate) struct Retries<T> {
    pace: Pace,
    failed: Arc<Mutex<HashMap<T, (u32, Instant)>>>,
}

impl<T: Clone + Eq + Hash + Display + Send + Sync + 'static> Retries<T> {
    fn new(pace: Pace) -> Self {
        Self { pace, failed: Arc::default() }
    }

    /// What is wanted of the item is something else now.
    pub(crate) fn forget(&self, item: &T) {
        self.failed().remove(item);
    }

    fn left(&self, item: &T) -> Option<Duration> {
        let (_, due) = *self.failed().get(item)?;
        due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    fn note(&self, item: &T) -> Duration {
        let mut failed = self.failed();
        let (count, due) = failed.entry(item.clone()).or_insert((0, Instant::now()));
        let wait = (self.pace.first * 2_u32.pow((*count).min(16))).min(self.pace.longest);
        *count += 1;
        *due = Instant::now() + wait;
        wait
    }

    fn failed(&self) -> std::sync::MutexGuard<'_, HashMap<T, (u32, Instant)>> {
        self.failed.lock().expect("no panic while noting")
    }
}

/// Works until `tasks` ends, as [`run`] does, on all `items` whenever anything in the world has changed.
pub(crate) fn start<T, W>(
    world: &Arc<World>,
    tasks: &TaskGroup,
    items: impl Fn(&World) -> Vec<T> + Clone + Send + Sync + 'static,
    work: impl Fn(Arc<World>, T) -> W + Clone + Send + Sync + 'static,
) where
    T: Clone + Eq + Hash + Display + Send + Sync + 'static,
    W: Future<Output = Result<(), Problem>> + Send + 'static,
{
    let queue = Queue::new();
    let (add, seen) = (queue.clone(), world.clone());
    world.on_change(move || items(&seen).into_iter().for_each(|item| add.add(item)));
    let (world, in_life) = (world.clone(), tasks.clone());
    tasks.spawn_until_stop(async move {
        world.ready().await;
        let pace = world.pace;
        run(&queue, pace, &in_life, move |item| {
            let done = work(world.clone(), item);
            async { done.await.map(|()| Action::AwaitChange) }
        });
    });
}

/// Works on the items of `queue` until `tasks` ends, ten at once as the sidecars do.
pub(crate) fn run<T, W>(
    queue: &Queue<T>,
    pace: Pace,
    tasks: &TaskGroup,
    work: impl Fn(T) -> W + Clone + Send + Sync + 'static,
) -> Retries<T>
where
    T: Clone + Eq + Hash + Display + Send + Sync + 'static,
    W: Future<Output = Result<Action, Problem>> + Send,
{
    let retries = Retries::new(pace);
    let known = retries.clone();
    queue.run(tasks, 10, move |item: T| {
        let (work, retries) = (work.clone(), known.clone());
        async move {
            if let Some(left) = retries.left(&item) {
                return Ok::<_, Problem>(Action::RequeueAfter(left));
            }
            match work(item.clone()).await {
                Ok(next) => {
                    retries.forget(&item);
                    Ok(next)
                }
                Err(problem) => {
                    let wait = retries.note(&item);
                    tracing::debug!(%item, retry_in = ?wait, "{}", error_message(&problem));
                    Ok(Action::RequeueAfter(wait))
                }
            }
        }
    });
    retries
}
