//! The newest [`World`]. It is made anew at the first look after a change: making it for every connection would cost most
//! of the time.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use controller_kit::Queue;

use super::{Changed, World};

/// Clones are the same picture.
#[derive(Clone, Default)]
pub(crate) struct Picture(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Queue<Changed>,
    changes: AtomicU64,
    /// After how many changes it was drawn.
    drawn: Mutex<Option<(u64, Arc<World>)>>,
}

impl Picture {
    /// Something that it shows is not as it was.
    pub(crate) fn changed(&self) {
        self.0.changes.fetch_add(1, Ordering::AcqRel);
        self.0.queue.add(Changed);
    }

    /// Gets an item with every change.
    pub(crate) fn changes(&self) -> &Queue<Changed> {
        &self.0.queue
    }

    /// The world that `draw` drew after the last change.
    pub(crate) fn world(&self, draw: impl FnOnce() -> World) -> Arc<World> {
        // counted first: what changes while it is drawn is seen by the next look
        let now = self.0.changes.load(Ordering::Acquire);
        if let Some((_, world)) = self.drawn().as_ref().filter(|(then, _)| *then == now) {
            return world.clone();
        }
        // nothing is locked meanwhile: the parts that are drawn report changes while they are locked themselves
        let world = Arc::new(draw());
        let mut drawn = self.drawn();
        // who drew at the same time was first
        if let Some((_, first)) = drawn.as_ref().filter(|(then, _)| *then >= now) {
            return first.clone();
        }
        *drawn = Some((now, world.clone()));
        world
    }

    fn drawn(&self) -> std::sync::MutexGuard<'_, Option<(u64, Arc<World>)>> {
        self.0.drawn.lock().expect("no panic while the picture is locked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_drawn_once_for_each_change_that_somebody_looks_after() {
        let (picture, mut drawn) = (Picture::default(), 0);
        let mut look = |picture: &Picture| {
            drop(picture.world(|| {
                drawn += 1;
                World::default()
            }));
            drawn
        };
        assert_eq!([look(&picture), look(&picture)], [1, 1]);
        picture.changed();
        picture.changed();
        assert_eq!([look(&picture), look(&picture)], [2, 2]);
    }
}
