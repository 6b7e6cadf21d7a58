//! IPPool objects: numbers, condition and finalizer kept true, and releases by hand.
//!
//! The pool's own task ([`super::Writers`]) writes all of it; this controller submits the orders.

use std::{net::IpAddr, time::Duration};

use controller_kit::{Action, Cache, ObjectKey, PendingEvent, RawObject, Recorder};
use harvester_api::{IPPool, LoadBalancer, annotations};
use kube::{Api, Client, Resource, ResourceExt};
use program::Clock;

use super::{Failure, Order, Writers};
use crate::{
    host_datapath::write,
    reuse::{self, Holder, InUse},
    status_reverted,
};

/// A rest ends by the wall clock, and the wait for it goes by another one, which stands while the host sleeps. Claims see by
/// the wall clock at once that a rest is over; who waits hears of it no later than that.
const CLOCK_PERIOD: Duration = Duration::from_secs(600);

/// The controller of IPPool objects.
pub(crate) struct PoolController {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) pools: Cache<RawObject<IPPool>>,
    pub(crate) writers: Writers,
    pub(crate) clock: Clock,
}

/// A failure after which the queue tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Pool(#[from] Failure),
    #[error("look for load balancer {holder}, whose address {address} is to be released by hand")]
    Holder { holder: ObjectKey, address: IpAddr, source: kube::Error },
    #[error("look what announces address {address}, which is to be released by hand")]
    Service { address: IpAddr, source: write::Error },
}

/// Everything that the order depends on.
enum Seen<'a> {
    /// Nobody asks for anything by hand.
    NoRequest,
    /// The annotation names no record of the pool: why.
    BadRequest { annotation: &'a str, why: String },
    /// The annotation names this record. `holder_exists`, and whether something may still announce the address, are read
    /// afresh.
    Request {
        annotation: &'a str,
        address: IpAddr,
        holder: ObjectKey,
        holder_exists: bool,
        reuse: Result<(), InUse>,
    },
}

impl PoolController {
    /// Brings one pool up to date.
    ///
    /// # Errors
    /// Those that may pass.
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pool) = self.pools.get(&key) else {
            self.writers.forget(&key.name);
            return Ok(Action::AwaitChange);
        };
        let order = decide(self.see(&pool).await?);
        if let Order::Manual { release: Err(why), .. } = &order {
            tracing::warn!(pool = pool.name_any(), why, "not released by hand");
            let message = format!("annotation {} released nothing: {why}", annotations::MANUALLY_RELEASE_IP);
            self.warn(&pool, "ManualReleaseRefused", &message);
        }
        let outcome = self.writers.order(&key.name, order).await;
        if let Err(failure @ Failure::StatusReverted { .. }) = &outcome {
            self.warn(&pool, status_reverted::REASON, &failure.to_string());
        }
        outcome?;
        Ok(self.rested_in(&key).map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    /// When to look whether the first address of the pool has rested. That is the only look that a pool needs without a
    /// change.
    fn rested_in(&self, key: &ObjectKey) -> Option<Duration> {
        let (pool, now) = (self.pools.get(key)?, self.clock.now());
        let first = ip_pools::resting(&pool, now.as_second()).iter().map(|(_, end)| end).min()?;
        Some(look_in(first, now.as_millisecond()))
    }

    // docs/contract/load-balancer.md#IP-13: the Go program looked for the holder in a cache
    async fn see<'a>(&self, pool: &'a IPPool) -> Result<Seen<'a>, Error> {
        let Some(annotation) = pool.annotations().get(annotations::MANUALLY_RELEASE_IP) else {
            return Ok(Seen::NoRequest);
        };
        let (address, holder) = match named_record(pool, annotation) {
            Ok(record) => record,
            Err(why) => return Ok(Seen::BadRequest { annotation, why }),
        };
        let api = Api::<LoadBalancer>::namespaced(self.client.clone(), &holder.namespace);
        let found = api.get_opt(&holder.name).await;
        let found = found.map_err(|source| Error::Holder { holder: holder.clone(), address, source })?;
        let service = write::read_service(&self.client, &holder).await;
        let service = service.map_err(|source| Error::Service { address, source })?;
        let reuse = reuse::may_be_given_away(&holder, Holder::Gone, address, service.as_deref());
        Ok(Seen::Request { annotation, address, holder, holder_exists: found.is_some(), reuse })
    }

    fn warn(&self, pool: &IPPool, reason: &'static str, message: &str) {
        self.recorder.publish(&pool.object_ref(&()), &PendingEvent::warning(reason, message));
    }
}

/// The time until the look at a rest that ends at `end`, in seconds since 1970; `now` in milliseconds.
fn look_in(end: i64, now: i64) -> Duration {
    let left = end.saturating_mul(1000).saturating_sub(now);
    Duration::from_millis(u64::try_from(left).unwrap_or(0)).min(CLOCK_PERIOD)
}

/// The annotation goes in any case; the record only if its holder is really gone, and nothing may announce its address.
fn decide(seen: Seen<'_>) -> Order {
    let (annotation, release) = match seen {
        Seen::NoRequest => return Order::Refresh,
        Seen::BadRequest { annotation, why } => (annotation, Err(why)),
        Seen::Request { annotation, address, holder, holder_exists: true, .. } => {
            let why = format!(
                "{annotation:?}: {address} belongs to load balancer {holder}, which exists: delete that"
            );
            (annotation, Err(why))
        }
        Seen::Request { annotation, address, holder, reuse: Err(in_use), .. } => {
            let why = format!(
                "{annotation:?}: {address} may still be announced, {in_use}: delete Service {holder}"
            );
            (annotation, Err(why))
        }
        Seen::Request { annotation, address, holder, holder_exists: false, reuse: Ok(()) } => {
            (annotation, Ok((address, holder.to_string())))
        }
    };
    Order::Manual { annotation: annotation.to_owned(), release }
}

/// The record that the annotation names.
fn named_record(pool: &IPPool, text: &str) -> Result<(IpAddr, ObjectKey), String> {
    let records = |(address, holder): &(IpAddr, ObjectKey)| {
        ip_pools::record(pool).holder(*address) == Some(holder.to_string().as_str())
    };
    let advice = "write <ip>: <namespace>/<load balancer>";
    parse(text).filter(records).ok_or_else(|| format!("{text:?} is no record of this pool: {advice}"))
}

/// `<ip>: <namespace>/<name>`; the address may be IPv6, so the text is split at the last colon.
fn parse(text: &str) -> Option<(IpAddr, ObjectKey)> {
    let (address, holder) = text.rsplit_once(':')?;
    let holder = ObjectKey::parse(holder.trim()).filter(|holder| !holder.namespace.is_empty())?;
    // the record knows a mapped address, as another program may have written it, by its IPv4 one
    Some((address.trim().parse::<IpAddr>().ok()?.to_canonical(), holder))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn asked(holder_exists: bool, reuse: Result<(), InUse>) -> Seen<'static> {
        let (annotation, holder) = ("10.0.0.7: shop/web", ObjectKey::new("shop", "web"));
        Seen::Request { annotation, address: [10, 0, 0, 7].into(), holder, holder_exists, reuse }
    }

    #[rstest]
    #[case::nobody_asks(Seen::NoRequest, None)]
    #[case::nonsense(Seen::BadRequest { annotation: "x", why: "is no record".to_owned() }, Some(Err("is no record")))]
    #[case::holder_exists(asked(true, Err(InUse::ServiceLeft)), Some(Err("which exists: delete that")))]
    #[case::service_is_left(
        asked(false, Err(InUse::ServiceLeft)),
        Some(Err("is left: delete Service shop/web"))
    )]
    #[case::holder_is_gone(asked(false, Ok(())), Some(Ok("shop/web")))]
    fn a_release_by_hand_is_for_records_that_nothing_stands_behind(
        #[case] seen: Seen<'_>,
        #[case] expected: Option<Result<&str, &str>>,
    ) {
        match (decide(seen), expected) {
            (Order::Refresh, None) => {}
            (Order::Manual { release: Ok((_, holder)), .. }, Some(Ok(expected))) => {
                assert_eq!(holder, expected);
            }
            (Order::Manual { release: Err(why), .. }, Some(Err(expected))) => {
                assert!(why.contains(expected), "{why}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    // the clock may be set, and a host may sleep for a day
    #[rstest]
    #[case::soon(1_000, 999_500, 500)]
    #[case::tomorrow(86_400, 0, 600_000)]
    #[case::over(1_000, 1_000_001, 0)]
    #[case::forged(i64::MAX, 0, 600_000)]
    fn a_wait_for_the_end_of_a_rest_looks_at_the_wall_clock_every_ten_minutes(
        #[case] end: i64,
        #[case] now: i64,
        #[case] milliseconds: u64,
    ) {
        assert_eq!(look_in(end, now), Duration::from_millis(milliseconds));
    }

    // docs/contract/load-balancer.md#IP-10
    #[test]
    fn the_annotation_is_read_with_blanks_and_with_ipv6() {
        let holder = ObjectKey::new("shop", "web");
        assert_eq!(parse(" 10.0.0.7 :  shop/web "), Some(([10, 0, 0, 7].into(), holder.clone())));
        assert_eq!(parse("fd00::7: shop/web"), Some(("fd00::7".parse().unwrap(), holder)));
        // as the pool shows the key of another program
        let machine = ObjectKey::new("capi", "m-1");
        assert_eq!(parse("::ffff:10.0.0.5: capi/m-1"), Some(([10, 0, 0, 5].into(), machine)));
        for bad in ["10.0.0.7", "10.0.0.7: web", "x: shop/web", "10.0.0.7: shop/web: x", ""] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
