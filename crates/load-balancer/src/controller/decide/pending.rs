//! An order that the pool has not carried out: what waits for it, and what goes on.
//!
//! An object has one order at a time. Until the answer comes its decision goes without claims and releases, and everything
//! else in it is done. A failed order that may not be sent again yet keeps back itself, and a claim that would rest on
//! it; the claim of a pool that the object asks for only since then goes out at once.

use std::{net::IpAddr, time::Duration};

use controller_kit::Explanation;
use harvester_api::LoadBalancer;

use super::{Plan, Release, Seen, Step};
use crate::pool::{
    Order, Refused, WaitingFor,
    orders::{Failed, Pending},
};

/// A pool has this long to answer a claim before the controller decides about the rest of the object: a quick answer lets a
/// Service move straight from a lost address to the new one.
pub(super) const LATE_ANSWER: Duration = Duration::from_secs(1);

impl Pending {
    pub(super) fn is_under_way(&self) -> bool {
        self.retry_in.is_none()
    }

    /// The server denied the claim, and will deny it until somebody mends that.
    pub(super) fn is_denied(&self) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.is_denied)
    }

    /// The changes of pools that may end the wait of a claim from `pool`, which `refused` had refused before.
    pub(super) fn waits_for(
        &self,
        lb: &LoadBalancer,
        pool: &str,
        refused: &[(String, Refused)],
    ) -> WaitingFor {
        if self.is_under_way() {
            return WaitingFor::Anything;
        }
        let before = refused.iter().map(|(pool, _)| pool.clone());
        WaitingFor::after(&lb.spec.ip_pool, before.chain([pool.to_owned()]).collect())
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

/// Takes the releases out of the plan that have to wait: all of them while an order is under way, and those of a pool
/// that could not be written for a release a moment ago.
pub(super) fn hold_back_releases(seen: &Seen, plan: &mut Plan) {
    let Some(pending) = &seen.address.pending else { return };
    let failed_in = |pool: &str| matches!(pending.order, Order::Release { .. }) && pending.pool == pool;
    plan.steps.retain(|step| match step {
        Step::Release(Release { pool, .. }) => !pending.is_under_way() && !failed_in(pool),
        _ => true,
    });
    if let Some(retry_in) = pending.retry_in {
        plan.look_again(retry_in);
    }
}
