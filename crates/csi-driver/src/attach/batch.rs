//! Disks that several calls of this process add to one machine at once: one write adds them all, on the version of the
//! machine that each of the calls had read before it wrote its annotation ([`super::publish`]).
//!
//! ```text
//! join ─► (each writes its own annotation) ─► add ─► the last one, or who has waited for a second, writes for all
//! ```
//! A call may end anywhere. Before the batch is closed its volume goes with it, or an hour later somebody would write what
//! nobody asks for any more; a batch that is closed is being written, as a write of each of its own.

use std::{
    collections::{BTreeSet, HashMap},
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

type Batch = watch::Sender<State>;

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// Somebody writes for all.
    is_closed: bool,
    outcome: Option<Outcome>,
}

/// A call that adds a volume.
struct Call {
    number: u64,
    volume: String,
    /// Its annotation is written.
    is_ready: bool,
}

/// What came of the write for all; nothing where it was cut.
type Outcome = Option<Result<Written, Refusal>>;

/// The place of a call in a batch. It is given up when this is dropped.
pub(super) struct Place {
    batches: Batches,
    key: Key,
    batch: Arc<Batch>,
    number: u64,
}

/// What came of an addition.
pub(super) struct Together {
    pub(super) written: Outcome,
    /// So many volumes were to be added by one write.
    pub(super) count: usize,
}

impl Batches {
    /// Joins those that add to this version of the machine, where it has `room` for one volume more.
    pub(super) fn join(&self, vm: &VirtualMachine, volume: &str, room: usize) -> Option<Place> {
        let key = (vm.metadata.name.clone().unwrap_or_default(), plug::version(vm));
        let mut open = self.open();
        let known = open.get(&key).filter(|batch| !batch.borrow().is_closed).cloned();
        let batch = known.unwrap_or_default();
        let mut number = None;
        batch.send_if_modified(|state| {
            let others: BTreeSet<_> = state.volumes(|call| call.volume != volume);
            if others.len() < room {
                let next = state.calls.last().map_or(0, |call| call.number + 1);
                state.calls.push(Call { number: next, volume: volume.to_owned(), is_ready: false });
                number = Some(next);
            }
            number.is_some()
        });
        let number = number?;
        open.insert(key.clone(), batch.clone());
        Some(Place { batches: self.clone(), key, batch, number })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Key, Arc<Batch>>> {
        self.0.lock().expect("no panic while the batches are changed")
    }

    /// Nobody joins this batch any more.
    fn close(&self, key: &Key, batch: &Arc<Batch>) {
        let mut open = self.open();
        if open.get(key).is_some_and(|known| Arc::ptr_eq(known, batch)) {
            open.remove(key);
        }
    }
}

impl State {
    /// Each volume once, whoever adds it.
    fn volumes(&self, which: impl Fn(&Call) -> bool) -> BTreeSet<String> {
        self.calls.iter().filter(|call| which(call)).map(|call| call.volume.clone()).collect()
    }
}

impl Place {
    /// Adds the volume with those of all others that are ready.
    pub(super) async fn add(self, plug: &Plug, vm: &VirtualMachine) -> Together {
        let mut changes = self.batch.subscribe();
        let is_late = !self.batch.send_if_modified(|state| {
            let own = state.calls.iter_mut().find(|call| call.number == self.number);
            own.filter(|_| !state.is_closed).map(|call| call.is_ready = true).is_some()
        });
        if is_late {
            return Together { written: None, count: 1 };
        }
        let is_due = |state: &State| state.is_closed || state.calls.iter().all(|call| call.is_ready);
        // one that is slow goes by itself
        drop(timeout(TOGETHER_WITHIN, changes.wait_for(is_due)).await);
        let is_closer = self.batch.send_if_modified(|state| !std::mem::replace(&mut state.is_closed, true));
        if is_closer {
            self.batches.close(&self.key, &self.batch);
            let volumes: Vec<_> = self.batch.borrow().volumes(|call| call.is_ready).into_iter().collect();
            let cut = Cut(self.batch.clone());
            let written = plug.add(vm, &volumes).await;
            cut.0.send_modify(|state| state.outcome = Some(Some(written)));
        }
        let count = |state: &State| state.volumes(|call| call.is_ready).len();
        match changes.wait_for(|state| state.outcome.is_some()).await {
            Ok(state) => Together { written: state.outcome.clone().flatten(), count: count(&state) },
            Err(_) => Together { written: None, count: 1 },
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut is_empty = false;
        self.batch.send_if_modified(|state| {
            // one that is closed is being written: who is in it hears so
            if !state.is_closed {
                state.calls.retain(|call| call.number != self.number);
                is_empty = state.calls.is_empty();
            }
            !state.is_closed
        });
        if is_empty {
            self.batches.close(&self.key, &self.batch);
        }
    }
}

/// The write for all: who waits for it hears when it is cut.
struct Cut(Arc<Batch>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.send_if_modified(|state| {
            let is_cut = state.outcome.is_none();
            state.outcome.get_or_insert(None);
            is_cut
        });
    }
}
