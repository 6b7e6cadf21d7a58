//! The scope of a pool that an object names, where `--enforce-named-pool-scope` says that it counts.
//!
//! It is asked before an object draws from the pool. One that has an address of the pool, or a record in it, keeps that,
//! however the selector changes.

use controller_kit::Explanation;
use ipam::{Rejection, admits};
use kube::ResourceExt as _;

use super::{Seen, checked, requirement, selection::mode, shown, standing, stays};

/// The reason of the condition.
pub(crate) const NOT_ALLOWED: &str = "PoolNotAllowed";

/// Why the object may not draw from the pool that it names.
pub(super) fn obstacle(seen: &Seen<'_>) -> Option<Explanation> {
    let named = seen.lb.spec.ip_pool.as_str();
    if !seen.pool_choice.enforce_named_pool_scope || named.is_empty() {
        return None;
    }
    let has = shown(seen).is_some_and(|has| has.ip_pool == named);
    if has || seen.recorded.iter().any(|(pool, _)| pool == named) {
        return None;
    }
    let mut requirement = requirement(seen.lb);
    // the namespace of the object itself, and the pool has its own word on families
    requirement.namespace = seen.lb.namespace().unwrap_or_default();
    requirement.family = None;
    let selector = &checked(seen.pools, named)?.pool.selector;
    let why = match admits(selector, &requirement, mode(seen.lb)) {
        Ok(()) => return None,
        // its name may be another tenant's
        Err(Rejection::Network(_)) => "it is for another network".to_owned(),
        Err(why) => why.to_string(),
    };
    let message = format!(
        "pool {named} does not serve this load balancer, which has {requirement}: {why}; name another pool, or none, or \
         have the selector of the pool changed"
    );
    Some(Explanation::new(NOT_ALLOWED, message + &stays(&standing(seen).meanwhile)))
}
