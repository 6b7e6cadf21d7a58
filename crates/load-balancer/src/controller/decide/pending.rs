//! An order that the pool has not carried out: what waits for it, and what goes on.
//!
//! An object has one order at a time. Until the answer comes, or a failed order may be sent again, its decision goes
//! without claims and releases, and everything else in it is done.

use std::{net::IpAddr, time::Duration};

use controller_kit::Explanation;
use harvester_api::LoadBalancer;

use super::{Plan, Seen, Step};
use crate::pool::{
    Order, WaitingFor,
    orders::{Failed, Pending},
};

/// A claim that has no answer after this time keeps nothing else waiting: before then a Service at an address that was lost
/// may still go straight to the new one.
pub(super) const LATE_ANSWER: Duration = Duration::from_secs(1);

impl Pending {
    pub(super) fn is_under_way(&self) -> bool {
        self.failed.is_none()
    }

    /// A claim that the server refused, and will refuse until somebody mends that.
    pub(super) fn is_refusal(&self) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.is_refusal)
    }

    /// The changes of pools that may end the wait of a claim from `pool`.
    pub(super) fn waits_for(&self, lb: &LoadBalancer, pool: &str) -> WaitingFor {
        if self.is_under_way() {
            WaitingFor::Anything
        } else {
            WaitingFor::after(&lb.spec.ip_pool, vec![pool.to_owned()])
        }
    }

    /// Why the object has no address of `pool` yet.
    pub(super) fn explain(&self, pool: &str) -> Explanation {
        let Some(Failed { why, .. }) = &self.failed else {
            return Explanation::new("ClaimUnderWay", format!("waiting for an address of pool {pool}"));
        };
        let doing = if matches!(self.order, Order::Claim { .. }) { "reserve" } else { "release" };
        let written = &self.pool;
        let message =
            format!("fail to {doing} an address in pool {written}: the pool cannot be written: {why}");
        Explanation::new("PoolNotWritten", message)
    }

    /// A claim waits for every order, but not for a failed claim from another pool: since then somebody has changed what
    /// the object asks for.
    fn holds_back_claim(&self, pool: &str) -> bool {
        let is_claim = matches!(self.order, Order::Claim { .. });
        self.is_under_way() || !is_claim || self.pool == pool
    }

    fn gives_back(&self, (pool, address): &(String, IpAddr)) -> bool {
        let is_of = matches!(&self.order, Order::Release { address: released, .. } if released == address);
        is_of && self.pool == *pool
    }
}

/// The order for which a claim from `pool` has to wait.
pub(super) fn in_the_way_of_claim<'a>(seen: &'a Seen, pool: &str) -> Option<&'a Pending> {
    seen.address.pending.as_ref().filter(|pending| pending.holds_back_claim(pool))
}

/// The records on which the object may count: all but the one that it is giving back.
pub(super) fn lasting_records(seen: &Seen) -> Vec<(String, IpAddr)> {
    let is_going = |record: &(String, IpAddr)| {
        seen.address.pending.as_ref().is_some_and(|pending| pending.gives_back(record))
    };
    seen.address.recorded.iter().filter(|record| !is_going(record)).cloned().collect()
}

/// Takes the releases out of the plan, while an order is in their way.
pub(super) fn hold_back_releases(seen: &Seen, plan: &mut Plan) {
    let Some(pending) = &seen.address.pending else { return };
    plan.steps.retain(|step| !matches!(step, Step::Release(_)));
    if let Some(Failed { retry_in, .. }) = pending.failed {
        plan.look_again(retry_in);
    }
}
