//! Orders that pools have not carried out: what waits for them, and what goes on.
//!
//! An object has one order under way at a time. Until the answer comes its decision goes without claims and releases, and
//! everything else in it is done. An order that failed, and that may not be sent again yet, keeps back orders of its kind to
//! its pool. A release that failed keeps back a claim from the pool as well, which would find the record that is to go.
//! Orders to other pools go out at once.

use std::{net::IpAddr, time::Duration};

use controller_kit::Explanation;

use super::{Plan, Release, Seen, Step};
use crate::pool::{
    Order, Refused, WaitingFor,
    orders::{Failed, Pending, UnderWay, WriteError},
};

/// A pool has this long to answer a claim before the controller decides about the rest of the object: a quick answer lets a
/// Service move straight from a lost address to the new one.
pub(super) const LATE_ANSWER: Duration = Duration::from_secs(1);

/// The order for which a claim has to wait.
#[derive(Clone, Copy)]
pub(super) enum InTheWay<'a> {
    UnderWay(&'a UnderWay),
    Failed(&'a Failed),
}

/// The order for which a claim from `pool` has to wait. A claim that failed comes before an order that is under way: its
/// condition stands until the pool has answered.
pub(super) fn in_the_way_of_claim<'a>(seen: &'a Seen, pool: &str) -> Option<InTheWay<'a>> {
    let Pending { under_way, failed } = &seen.address.pending;
    let failed = |is_claim| {
        let of_pool = failed.iter().filter(|failed| failed.pool == pool);
        of_pool.map(InTheWay::Failed).find(|failed| failed.order().is_claim() == is_claim)
    };
    failed(true).or_else(|| under_way.as_ref().map(InTheWay::UnderWay)).or_else(|| failed(false))
}

impl InTheWay<'_> {
    fn order(&self) -> &Order {
        match self {
            Self::UnderWay(UnderWay { order, .. }) | Self::Failed(Failed { order, .. }) => order,
        }
    }

    fn error(&self) -> Option<&WriteError> {
        match self {
            Self::UnderWay(order) => order.last_error.as_ref(),
            Self::Failed(order) => Some(&order.error),
        }
    }

    /// The server denied the claim, and will deny it until somebody mends that.
    pub(super) fn is_denied(&self) -> bool {
        self.error().is_some_and(|error| error.is_denied)
    }

    /// The changes of pools that may end the wait of a claim from `pool`, which `refused` had refused before. `named`:
    /// the object names this pool, unless it is empty.
    pub(super) fn waits_for(&self, named: &str, pool: &str, refused: &[(String, Refused)]) -> WaitingFor {
        match self {
            Self::UnderWay(_) => WaitingFor::Anything,
            Self::Failed(_) => {
                let before = refused.iter().map(|(pool, _)| pool.clone());
                WaitingFor::after(named, before.chain([pool.to_owned()]).collect())
            }
        }
    }

    /// Why the object has no address of `wanted` yet.
    pub(super) fn explain(&self, wanted: &str) -> Explanation {
        let (Self::UnderWay(UnderWay { pool, .. }) | Self::Failed(Failed { pool, .. })) = self;
        let not_written = |doing: &str, WriteError { why, .. }: &WriteError| {
            let message =
                format!("fail to {doing} an address in pool {pool}: the pool cannot be written: {why}");
            Explanation::new("PoolNotWritten", message)
        };
        match (self.order(), self.error()) {
            (Order::Release { .. }, Some(error)) => not_written("release", error),
            (Order::Release { address, .. }, None) => {
                let message = format!(
                    "waiting until pool {pool} has taken {address} back, then for an address of pool {wanted}"
                );
                Explanation::new("ReleaseUnderWay", message)
            }
            (_, Some(error)) => not_written("reserve", error),
            (_, None) => {
                Explanation::new("ClaimUnderWay", format!("waiting for an address of pool {wanted}"))
            }
        }
    }
}

/// The records on which the object may count: all but those that it is giving back.
pub(super) fn lasting_records(seen: &Seen) -> Vec<(String, IpAddr)> {
    let Pending { under_way, failed } = &seen.address.pending;
    let under_way = under_way.iter().map(|order| (&order.pool, &order.order));
    let orders: Vec<_> = under_way.chain(failed.iter().map(|failed| (&failed.pool, &failed.order))).collect();
    let is_going = |(pool, address): &(String, IpAddr)| {
        let gives_back =
            |order: &Order| matches!(order, Order::Release { address: given, .. } if given == address);
        orders.iter().any(|(of, order)| *of == pool && gives_back(order))
    };
    seen.address.recorded.iter().filter(|record| !is_going(record)).cloned().collect()
}

/// Takes the releases out of the plan that have to wait: all of them while an order is under way, and those of a pool
/// that could not be written for a release a moment ago.
pub(super) fn hold_back_releases(seen: &Seen, plan: &mut Plan) {
    let Pending { under_way, failed } = &seen.address.pending;
    let failed_in = |pool: &str| failed.iter().any(|failed| failed.pool == pool && !failed.order.is_claim());
    plan.steps.retain(|step| match step {
        Step::Release(Release { pool, .. }) => under_way.is_none() && !failed_in(pool),
        _ => true,
    });
}
