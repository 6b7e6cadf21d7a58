//! One call at a time for each volume, snapshot or name. A second one is refused with ABORTED, as CSI asks, and comes
//! again; calls in other processes are kept apart by the API alone ([`crate::attach::ownership`]).

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

use crate::refusal::Refusal;

/// The objects of the calls under way. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Calls>);

#[derive(Debug, Default)]
struct Calls {
    objects: Mutex<BTreeSet<String>>,
    /// Told at the end of each call.
    ended: Notify,
}

/// A call under way: it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the call counts as ended when this is dropped"]
pub struct Call {
    calls: InFlight,
    object: String,
}

impl InFlight {
    /// Begins a call for `object`.
    ///
    /// # Errors
    /// ABORTED while another call for it is under way.
    pub fn begin(&self, object: &str) -> Result<Call, Refusal> {
        let is_first =
            self.0.objects.lock().expect("no panic while the set is changed").insert(object.to_owned());
        if is_first {
            Ok(Call { calls: self.clone(), object: object.to_owned() })
        } else {
            Err(Refusal::aborted(format!("another call for {object} is under way: call again later")))
        }
    }
}

impl InFlight {
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
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.0.objects.lock().expect("no panic while the set is changed").remove(&self.object);
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
}
