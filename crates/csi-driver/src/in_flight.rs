//! One call at a time for each volume, snapshot or name. A second one is refused with ABORTED, as CSI asks, and comes
//! again; calls in other processes are kept apart by the API alone ([`crate::attach::ownership`]).
//!
//! An export has many nodes, for which it is published at once: such calls keep out those for the same node, and those for
//! the volume as a whole.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::Notify;

use crate::refusal::Refusal;

/// The objects of the calls under way. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Calls>);

#[derive(Debug, Default)]
struct Calls {
    objects: Mutex<BTreeMap<String, Holding>>,
    /// Told at the end of each call.
    ended: Notify,
}

/// The calls under way for one object.
#[derive(Debug)]
enum Holding {
    /// One call for the whole of it.
    Whole,
    /// Calls for these parts of it, at least one.
    Parts(BTreeSet<String>),
}

/// A call under way: it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the call counts as ended when this is dropped"]
pub struct Call {
    calls: InFlight,
    object: String,
    part: Option<String>,
}

impl InFlight {
    /// Begins a call for `object`.
    ///
    /// # Errors
    /// ABORTED while another call for it, or for a part of it, is under way.
    pub fn begin(&self, object: &str) -> Result<Call, Refusal> {
        match self.objects().entry(object.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(Holding::Whole);
            }
            Entry::Occupied(_) => return Err(under_way(object)),
        }
        Ok(Call { calls: self.clone(), object: object.to_owned(), part: None })
    }

    /// Begins a call for a part of `object`.
    ///
    /// # Errors
    /// ABORTED while another call for the same part, or for the whole of it, is under way.
    pub fn begin_part(&self, object: &str, part: &str) -> Result<Call, Refusal> {
        let mut objects = self.objects();
        let holding = objects.entry(object.to_owned()).or_insert_with(|| Holding::Parts(BTreeSet::new()));
        let is_first = match holding {
            Holding::Parts(parts) => parts.insert(part.to_owned()),
            Holding::Whole => false,
        };
        if !is_first {
            return Err(under_way(object));
        }
        Ok(Call { calls: self.clone(), object: object.to_owned(), part: Some(part.to_owned()) })
    }

    /// Begins a call for a part of `object` beside others for parts of it, and else for the whole of it.
    ///
    /// # Errors
    /// ABORTED while another call for the same part, or for the whole of it, is under way.
    pub fn begin_beside(&self, object: &str, part: &str) -> Result<Call, Refusal> {
        let has_parts = matches!(self.objects().get(object), Some(Holding::Parts(_)));
        if has_parts { self.begin_part(object, part) } else { self.begin(object) }
    }

    /// Begins a call for `object` when those under way have ended.
    pub async fn next(&self, object: &str) -> Call {
        loop {
            let mut ended = pin!(self.0.ended.notified());
            // from now on no end is missed
            ended.as_mut().enable();
            if let Ok(call) = self.begin(object) {
                return call;
            }
            ended.await;
        }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Holding>> {
        self.0.objects.lock().expect("no panic while the set is changed")
    }
}

fn under_way(object: &str) -> Refusal {
    Refusal::aborted(format!("another call for {object} is under way: call again later"))
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut objects = self.calls.objects();
        let is_last = match (objects.get_mut(&self.object), &self.part) {
            (Some(Holding::Parts(parts)), Some(part)) => parts.remove(part) && parts.is_empty(),
            _ => true,
        };
        if is_last {
            objects.remove(&self.object);
        }
        drop(objects);
        self.calls.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_second_call_for_one_volume_is_aborted_until_the_first_has_ended() {
        let calls = InFlight::default();
        let first = calls.begin("pvc-1").unwrap();
        assert_eq!(calls.begin("pvc-1").unwrap_err().code, Code::Aborted);
        assert!(calls.begin("pvc-2").is_ok());
        drop(first);
        assert!(calls.begin("pvc-1").is_ok());
    }

    #[test]
    fn calls_for_parts_keep_out_those_for_the_same_part_and_for_the_whole() {
        let calls = InFlight::default();
        let parts = ["node-a", "node-b"].map(|node| calls.begin_part("pvc-1", node).unwrap());
        let beside = calls.begin_beside("pvc-1", "node-c").unwrap();
        for refused in
            [calls.begin("pvc-1"), calls.begin_part("pvc-1", "node-a"), calls.begin_beside("pvc-1", "node-a")]
        {
            assert_eq!(refused.unwrap_err().code, Code::Aborted);
        }
        drop(parts);
        assert_eq!(calls.begin("pvc-1").unwrap_err().code, Code::Aborted);
        drop(beside);
        let whole = calls.begin_beside("pvc-1", "node-a").unwrap();
        assert_eq!(calls.begin_part("pvc-1", "node-b").unwrap_err().code, Code::Aborted);
        drop(whole);
        assert!(calls.begin("pvc-1").is_ok());
    }
}
