//! IPPool objects: numbers, condition and finalizer kept true, and releases by hand.
//!
//! Everything is written by the pool's own task ([`super::Writers`]); here is only what it should be asked for.

use std::{net::IpAddr, sync::Arc};

use controller_kit::{Action, EventType, ObjectKey};
use harvester_api::{IPPool, LoadBalancer, annotations};
use kube::{Api, Resource, ResourceExt};

use super::{Failure, Order};
use crate::{context::Context, put_back};

/// What went wrong; the queue tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Pool(#[from] Failure),
    #[error("look for load balancer {holder}, whose address {address} is to be released by hand")]
    Holder { holder: ObjectKey, address: IpAddr, source: kube::Error },
}

/// Brings one pool up to date.
///
/// # Errors
/// Those that may pass.
pub async fn reconcile(cx: Arc<Context>, key: ObjectKey) -> Result<Action, Error> {
    let Some(pool) = cx.caches.pools.get(&key) else {
        cx.pools.forget(&key.name);
        return Ok(Action::AwaitChange);
    };
    let order = match pool.annotations().get(annotations::MANUALLY_RELEASE_IP) {
        None => Order::Refresh,
        Some(text) => manual(&cx, &pool, text).await?,
    };
    let outcome = cx.pools.order(&key.name, order).await;
    if let Err(failure @ Failure::PutBack { .. }) = &outcome {
        cx.recorder.publish(
            &pool.object_ref(&()),
            EventType::Warning,
            put_back::REASON,
            &failure.to_string(),
        );
    }
    outcome?;
    Ok(Action::AwaitChange)
}

/// Whatever the annotation says, it goes; the address only if its holder is really gone.
// pitfalls-load-balancer.md IP-13: the holder was looked for in a cache
async fn manual(cx: &Context, pool: &IPPool, text: &str) -> Result<Order, Error> {
    let release = match named_record(pool, text) {
        Ok((address, holder)) if exists(cx, address, &holder).await? => {
            Err(format!("{text:?}: {address} belongs to load balancer {holder}, which exists: delete that"))
        }
        named => named.map(|(address, holder)| (address, holder.to_string())),
    };
    if let Err(why) = &release {
        tracing::warn!(pool = pool.name_any(), why, "not released by hand");
        let message = format!("annotation {} released nothing: {why}", annotations::MANUALLY_RELEASE_IP);
        cx.recorder.publish(&pool.object_ref(&()), EventType::Warning, "ManualReleaseRefused", &message);
    }
    Ok(Order::Manual { annotation: text.to_owned(), release })
}

async fn exists(cx: &Context, address: IpAddr, holder: &ObjectKey) -> Result<bool, Error> {
    let api = Api::<LoadBalancer>::namespaced(cx.client.clone(), &holder.namespace);
    let found = api.get_opt(&holder.name).await;
    let found = found.map_err(|source| Error::Holder { holder: holder.clone(), address, source })?;
    Ok(found.is_some())
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
    Some((address.trim().parse().ok()?, holder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_is_read_with_blanks_and_with_ipv6() {
        let holder = ObjectKey::new("shop", "web");
        assert_eq!(parse(" 10.0.0.7 :  shop/web "), Some(([10, 0, 0, 7].into(), holder.clone())));
        assert_eq!(parse("fd00::7: shop/web"), Some(("fd00::7".parse().unwrap(), holder)));
        for bad in ["10.0.0.7", "10.0.0.7: web", "x: shop/web", "10.0.0.7: shop/web: x", ""] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
