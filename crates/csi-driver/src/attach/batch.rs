//! Disks that several calls of this process add to one machine at once: one write adds them all, on the version of the
//! machine that each of the calls had read before it wrote its annotation ([`super::publish`]).
//!
//! ```text
//! join ─► (each writes its own annotation) ─► add ─► the last one, or who has waited for a second, writes for all
//! ```
//! A call may end anywhere. What it had asked for may be written for it, as a write of its own that was on its way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use harvester_api::VirtualMachine;
use tokio::{sync::watch, time::timeout};

use super::{
    pace::TOGETHER_WITHIN,
    plug::{self, Plug, Written},
};
use crate::refusal::Refusal;

/// A machine at a version.
type Key = (String, String);

/// The batches that are open. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Batches(Arc<Mutex<HashMap<Key, Arc<Batch>>>>);

#[derive(Default)]
struct Batch(watch::Sender<State>);

#[derive(Default)]
struct State {
    /// Calls that write their annotations.
    joining: usize,
    /// Volumes whose annotations are written.
    volumes: Vec<String>,
    /// Somebody writes for all.
    is_closed: bool,
    outcome: Option<Outcome>,
}

/// What came of the write for all; nothing where it was cut.
type Outcome = Option<Result<Written, Refusal>>;

/// A call that is about to write its annotation.
pub(super) struct Place {
    batches: Batches,
    key: Key,
    batch: Arc<Batch>,
    is_added: bool,
}

/// What came of an addition.
pub(super) struct Together {
    pub(super) written: Outcome,
    /// So many volumes were to be added by one write.
    pub(super) count: usize,
}

impl Batches {
    /// Joins those that add to this version of the machine, where it has `room` for one more.
    pub(super) fn join(&self, vm: &VirtualMachine, room: usize) -> Option<Place> {
        let key = (vm.metadata.name.clone().unwrap_or_default(), plug::version(vm));
        let mut open = self.open();
        let known = open.get(&key).filter(|batch| !batch.0.borrow().is_closed).cloned();
        let batch = known.unwrap_or_default();
        let has_room = batch.0.send_if_modified(|state| {
            let has_room = state.joining + state.volumes.len() < room;
            state.joining += usize::from(has_room);
            has_room
        });
        if !has_room {
            return None;
        }
        open.insert(key.clone(), batch.clone());
        Some(Place { batches: self.clone(), key, batch, is_added: false })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Key, Arc<Batch>>> {
        self.0.lock().expect("no panic while the batches are changed")
    }

    fn close(&self, key: &Key) {
        self.open().remove(key);
    }
}

impl Place {
    /// Adds the volume with all others that have joined.
    pub(super) async fn add(mut self, plug: &Plug, vm: &VirtualMachine, volume: &str) -> Together {
        self.is_added = true;
        let is_late = !self.batch.0.send_if_modified(|state| {
            state.joining -= 1;
            if !state.is_closed {
                state.volumes.push(volume.to_owned());
            }
            !state.is_closed
        });
        if is_late {
            return Together { written: None, count: 1 };
        }
        let mut changes = self.batch.0.subscribe();
        let is_due = |state: &State| state.is_closed || state.joining == 0;
        // one that is slow goes by itself
        drop(timeout(TOGETHER_WITHIN, changes.wait_for(is_due)).await);
        let is_closer = self.batch.0.send_if_modified(|state| !std::mem::replace(&mut state.is_closed, true));
        if is_closer {
            self.batches.close(&self.key);
            let volumes = self.batch.0.borrow().volumes.clone();
            let cut = Cut(self.batch.clone());
            let written = plug.add(vm, &volumes).await;
            cut.0.0.send_modify(|state| state.outcome = Some(Some(written)));
        }
        match changes.wait_for(|state| state.outcome.is_some()).await {
            Ok(state) => Together { written: state.outcome.clone().flatten(), count: state.volumes.len() },
            Err(_) => Together { written: None, count: 1 },
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_added {
            return;
        }
        self.batch.0.send_modify(|state| state.joining -= 1);
        let is_empty = {
            let state = self.batch.0.borrow();
            state.joining == 0 && state.volumes.is_empty() && !state.is_closed
        };
        if is_empty {
            self.batches.close(&self.key);
        }
    }
}

/// The write for all: who waits for it hears when it is cut.
struct Cut(Arc<Batch>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.0.send_if_modified(|state| {
            let is_cut = state.outcome.is_none();
            state.outcome.get_or_insert(None);
            is_cut
        });
    }
}
