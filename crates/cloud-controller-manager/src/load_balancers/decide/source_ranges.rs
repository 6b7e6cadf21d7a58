//! Source ranges on the host datapath (docs/contract/data-paths.md#row-15).
//!
//! ```text
//! made        source-ranges: W                             no selector: nothing is reachable
//! confirmed   source-ranges: W, source-ranges-applied: W   the selector; then the address is published
//! narrowed    source-ranges: N, source-ranges-applied: W   no selector until N is confirmed
//! widened     source-ranges: M                             the selector stays: no more than M is ever in force
//! ```
//! The rule behind all four: an object has a selector only while the ranges in force admit nobody whom the Service
//! does not admit. It reads the object alone, so it holds over every restart. The load balancer of this project
//! confirms in the same breath in which it would empty the slice, so new connections wait for less than a second.
//!
//! It holds for an object too that otherwise stays as it is, because the Service has a fault or its VMs are not known.
//!
//! One that confirms nothing is given up: its object goes, unless the Service's address is published already.

use std::time::Duration;

use controller_kit::{Explanation, PendingEvent, RawObject};
use harvester_api::{Condition, LoadBalancer, annotations};
use kube::ResourceExt;
use serde_json::Value;

use super::{ANSWER, Phase, Seen, Write, allocated, ingress, not_ready, requested::is_of_this_project};
use crate::{
    datapath::Datapath,
    load_balancers::object::object as object_at,
    service_config::{SOURCE_RANGES, ServiceConfig},
    source_ranges::SourceRanges,
};

/// What came of the last try to have source ranges enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::load_balancers) struct GivenUp {
    /// Until the next try.
    pub(in crate::load_balancers) again: Duration,
    /// The answer of Harvester, where it refused the object.
    pub(in crate::load_balancers) refusal: Option<String>,
}

/// Whether traffic may flow: nobody is admitted whom the Service does not admit.
pub(super) fn may_flow(wanted: Option<&SourceRanges>, object: Option<&LoadBalancer>) -> bool {
    let Some(wanted) = wanted else { return true };
    let Some(object) = object else { return false };
    let is_confirmed = SourceRanges::confirmed(object).is_some_and(|ranges| ranges.are_within(wanted));
    // The two were written together, so what was in force then was within these ranges, and the load balancer has gone
    // on to nothing else since. It takes its confirmation away while it does.
    let was_confirmed = || {
        let asked = object.annotations().get(annotations::SOURCE_RANGES);
        asked.is_some_and(|asked| *asked == wanted.to_string())
            && !object.spec.backend_server_selector.is_empty()
    };
    is_confirmed || was_confirmed()
}

/// Whether this object, of either datapath, has no traffic because of the ranges of its Service.
pub(super) fn keep_out(config: &ServiceConfig, object: &LoadBalancer) -> bool {
    match &config.source_ranges {
        Some(Ok(wanted)) if Datapath::of_object(&object.spec) == Datapath::Host => {
            !may_flow(Some(wanted), Some(object))
        }
        _ => false,
    }
}

/// Gives the ranges to an object of which nothing else is changed: neither a fault of the Service nor VMs that are not
/// known may keep somebody admitted whom the Service does not admit.
pub(super) fn enforce(seen: &Seen<'_>, object: &LoadBalancer, json: &mut Value) {
    let Some(Ok(wanted)) = &seen.config.source_ranges else { return };
    if Datapath::of_object(&object.spec) != Datapath::Host {
        return;
    }
    let asked = object_at(&mut json["metadata"], "annotations");
    asked.insert(annotations::SOURCE_RANGES.to_owned(), wanted.to_string().into());
    if !may_flow(Some(wanted), Some(object)) {
        object_at(json, "spec").remove("backendServerSelector");
    }
}

/// The ranges that an object with an address has not confirmed, though it asks for them.
pub(super) fn unconfirmed(config: &ServiceConfig, object: &LoadBalancer) -> Option<String> {
    let Some(Ok(wanted)) = &config.source_ranges else { return None };
    let asked = object.annotations().get(annotations::SOURCE_RANGES);
    let is_asked = Datapath::of_object(&object.spec) == Datapath::Host
        && !allocated(object).is_empty()
        && asked.is_some_and(|asked| *asked == wanted.to_string());
    let is_confirmed = || SourceRanges::confirmed(object).as_ref() == Some(wanted);
    (is_asked && !is_confirmed()).then(|| wanted.to_string())
}

/// The ranges that the load balancer should have confirmed by now.
fn late(seen: &Seen<'_>) -> Option<String> {
    let Some(Phase::Confirmation(ranges)) = seen.phase() else { return None };
    (seen.waited >= ANSWER && seen.load_balancers_out_of_reach.is_none()).then_some(ranges)
}

/// What hinders the load balancer of this project. It is waited for.
fn hindrance(object: &LoadBalancer) -> Option<&Condition> {
    not_ready(object).filter(|_| is_of_this_project(object))
}

/// The ranges of which nothing says why they are not confirmed.
fn overdue(seen: &Seen<'_>, object: &LoadBalancer) -> Option<String> {
    late(seen).filter(|_| hindrance(object).is_none())
}

/// The end of an object that confirms nothing and whose address nobody was told.
pub(super) fn give_up(seen: &Seen<'_>, object: &RawObject<LoadBalancer>) -> Option<Write> {
    let ranges = overdue(seen, object)?;
    let is_used = !ingress(seen.service).is_empty() || !seen.secondaries.all.is_empty();
    let service_uid = seen.service.metadata.uid.clone().unwrap_or_default();
    (keep_out(&seen.config, object) && !is_used).then(|| Write::GiveUp {
        key: seen.key.clone(),
        service_uid,
        ranges,
    })
}

/// About an object that stays though it confirms nothing.
pub(super) fn told(seen: &Seen<'_>, object: &RawObject<LoadBalancer>) -> Option<PendingEvent> {
    let ranges = late(seen).filter(|_| give_up(seen, object).is_none())?;
    let now = match keep_out(&seen.config, object) {
        true => "nobody reaches the Service until it does",
        false => "the former ones, which are narrower, stay in force",
    };
    let what =
        format!("the load balancer in Harvester does not confirm {SOURCE_RANGES} {}: {now}", cut(&ranges));
    match hindrance(object) {
        // of one without an address the failed sync tells
        Some(_) if ingress(seen.service).is_empty() => None,
        Some(ready) => {
            Some(PendingEvent::warning(HINDERED, format!("{what}; it says: {}", cut(&ready.message))))
        }
        None => Some(PendingEvent::warning(UNSUPPORTED, format!("{what}; {WAY_OUT}"))),
    }
}

/// Why no object is made for a while.
pub(super) fn fault(given_up: &GivenUp) -> Explanation {
    let why = match &given_up.refusal {
        Some(refusal) => format!(
            "it refused an object without VMs, which source ranges need until they are in force ({})",
            cut(refusal)
        ),
        None => "its load balancer did not confirm them".to_owned(),
    };
    let minutes = RETRY.as_secs() / 60;
    let sentence = format!(
        "Harvester does not enforce {SOURCE_RANGES}: {why}; {WAY_OUT}; the next try comes within {minutes} min"
    );
    Explanation::new(UNSUPPORTED, sentence)
}

/// What stands in an Event of a list that may have any length.
fn cut(text: &str) -> String {
    const SHOWN: usize = 300;
    text.chars().take(SHOWN).collect()
}

/// A load balancer that enforces no source ranges is asked again after this time: somebody may have put another one in
/// its place, and no event tells.
pub(in crate::load_balancers) const RETRY: Duration = Duration::from_secs(10 * 60);
const HINDERED: &str = "SourceRangesNotInForce";
const UNSUPPORTED: &str = "SourceRangesUnsupported";
const WAY_OUT: &str = "install the load balancer of this project in Harvester, remove the ranges, or use data-path: guest \
    on a new Service";

#[cfg(test)]
mod tests;
