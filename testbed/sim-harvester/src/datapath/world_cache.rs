//! Caches the newest [`World`]. The first read after a change builds it anew: building it for every connection would cost
//! most of the time.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use controller_kit::Queue;

use super::{Changed, World};

/// Clones share the cache.
#[derive(Clone, Default)]
pub(crate) struct WorldCache(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Queue<Changed>,
    changes: AtomicU64,
    /// The world, and the number of changes before it was built.
    built: Mutex<Option<(u64, Arc<World>)>>,
}

impl WorldCache {
    /// Counts a change of an object that the world shows.
    pub(crate) fn changed(&self) {
        self.0.changes.fetch_add(1, Ordering::AcqRel);
        self.0.queue.add(Changed);
    }

    /// Returns the queue that gets an item with every change.
    pub(crate) fn changes(&self) -> &Queue<Changed> {
        &self.0.queue
    }

    /// Returns the world that `build` built after the last change.
    pub(crate) fn world(&self, build: impl FnOnce() -> World) -> Arc<World> {
        // counted first: the next read sees what changes during the build
        let now = self.0.changes.load(Ordering::Acquire);
        if let Some((_, world)) = self.built().as_ref().filter(|(then, _)| *then == now) {
            return world.clone();
        }
        // holds no lock: the parts of the world report changes while they are locked themselves
        let world = Arc::new(build());
        let mut built = self.built();
        // another thread built it at the same time, and was first
        if let Some((_, first)) = built.as_ref().filter(|(then, _)| *then >= now) {
            return first.clone();
        }
        *built = Some((now, world.clone()));
        world
    }

    fn built(&self) -> std::sync::MutexGuard<'_, Option<(u64, Arc<World>)>> {
        self.0.built.lock().expect("no panic while the world is locked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_built_once_for_each_change_that_a_read_follows() {
        let (cache, mut built) = (WorldCache::default(), 0);
        let mut read = |cache: &WorldCache| {
            drop(cache.world(|| {
                built += 1;
                World::default()
            }));
            built
        };
        assert_eq!([read(&cache), read(&cache)], [1, 1]);
        cache.changed();
        cache.changed();
        assert_eq!([read(&cache), read(&cache)], [2, 2]);
    }
}
