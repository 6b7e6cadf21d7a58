//! A vm object that has an address: its slice, its Service, and the status that tells what they do.

use std::time::Duration;

use controller_kit::{PendingEvent, RawObject};
use harvester_api::{AllocatedAddress, LoadBalancer};
use ipam::Family;

use super::{
    Plan, Seen, Step, Told, applied, is_finalized, is_needed,
    lost::{is_of_others, leave_lost_address},
    ready, refusal_of,
};
use crate::{
    condition::Ready,
    controller::address,
    controller::status::{self, Shown},
    host_datapath::{
        self, Served, TOO_MANY_LISTENERS, probes,
        slice::{self, Changed},
        source_ranges,
        write::Write,
    },
};

/// Told to an object whose backends are not listed.
pub(super) const NO_BACKENDS: &str = "the CRD of LoadBalancer objects has no field status.backends, or may not be read: install that of this project";

/// The object's finalizer and address are stored before the network carries anything for it.
pub(super) fn serve(
    seen: &Seen,
    lb: &RawObject<LoadBalancer>,
    address: &AllocatedAddress,
    told: Told,
    plan: &mut Plan,
) {
    let Told { waiting, note } = told;
    // what the address has to say comes last, where it is looked for
    let note = probes::fault(lb.spec.health_check.as_ref())
        .into_iter()
        .chain(note)
        .reduce(|check, address| format!("{check}; {address}"));
    let view = host_datapath::Seen {
        lb,
        address: &address.ip,
        service: seen.service.as_deref(),
        slice: seen.slice.as_deref(),
        backends: &seen.backends,
        // of two the one that hinders the other's way out is told
        refused: refusal_of(seen, "Service").or(seen.refused_writes.first()),
        is_slice_refused: refusal_of(seen, "EndpointSlice").is_some(),
        backend_due_in: &seen.backend_due_in,
        dummy: seen.dummy_endpoint,
        now: &seen.now,
    };
    let host_datapath::DatapathPlan { slice, service, probes, mut served, returns_in, unwatched } =
        host_datapath::decide(&view);
    // the VMs were seen at addresses of the former family: with the new address stored they are seen anew
    let is_seen_otherwise =
        view.family() != host_datapath::seen_family(lb, seen.service.as_deref().map(|service| &**service));
    if !is_seen_otherwise {
        plan.probes = Some(probes);
    }
    plan.unwatched = unwatched;
    if let Some(later) = returns_in {
        plan.look_again(later);
    }
    // the server may refuse a slice without backends as well; then those of before stay in it
    let slice = if refusal_of(seen, "EndpointSlice").is_some() { Write::Nothing } else { slice };
    let slice = pace(seen, slice);
    let is_held_back = slice.is_err();
    if let Err(later) = slice {
        plan.look_again(later);
        served = host_datapath::served_by_slice(&view);
    }
    if is_of_others(seen, lb, &served.address) {
        served.address.clear();
    }
    let moves = leave_lost_address(seen, lb, address);
    let is_new = seen.service.is_none()
        && seen.slice.is_none()
        && moves.is_empty()
        && !is_seen_otherwise
        && !is_held_back;
    let writes = if is_seen_otherwise {
        Vec::new()
    } else if moves.is_empty() {
        let mut writes = Vec::from_iter(slice.into_iter().chain([Step::WriteService(service)]));
        if seen.service.is_none() && view.family() == Family::V6 {
            // where the cluster makes no Service of IPv6 a slice of IPv6 would stand in the way of one of IPv4 for ever
            writes.reverse();
        }
        writes
    } else {
        moves
    };
    let writes: Vec<_> = writes.into_iter().filter(is_needed).collect();
    let has = lb.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    let applied = applied(seen, lb);
    // nothing is confirmed while the Service is about to get it, or to lose it
    let is_outdated = source_ranges::confirmed(lb).is_some_and(|confirmed| applied != Some(Some(confirmed)));
    let is_stored =
        is_finalized(lb) && has.and_then(AllocatedAddress::primary) == address.primary() && !is_outdated;
    if !is_stored && !is_new {
        let setting_up =
            Ready::no("SettingUp", "Service and EndpointSlice are being set up").with_note(note.as_deref());
        let without_address = lb.status.as_ref().filter(|status| is_of_others(seen, lb, &status.address));
        let without_address = without_address
            .map(|status| Served { backend_servers: status.backend_servers.clone(), ..Served::default() });
        let served = without_address.as_ref();
        let shown = Shown {
            address: Some(address),
            has_addresses_field: seen.has_addresses_field,
            ready: setting_up,
            served,
            backends: None,
            applied,
        };
        plan.steps.extend(status::write(lb, &shown, &seen.now).map(Step::WriteObject));
    }
    if !writes.is_empty() && (is_stored || !is_new) {
        // the status says what the writes lead to: it is decided anew with their answers
        plan.steps.extend(writes);
        return;
    }
    if !plan.steps.is_empty() {
        return;
    }
    // a list that no slice follows is not paced by the writes of one
    let is_carried = seen.slice.is_some()
        && seen.refused_writes.is_empty()
        && served.waiting.as_ref().is_none_or(|waiting| waiting.reason != TOO_MANY_LISTENERS);
    let waiting = waiting.or_else(|| served.waiting.clone());
    // a refused wish is read from the condition up to its end
    let has_nowhere_to_tell = !seen.has_backends_field && !served.backends.is_empty();
    let no_field = has_nowhere_to_tell.then(|| NO_BACKENDS.to_owned());
    let no_room = served.no_room().filter(|_| seen.has_backends_field);
    let note = address::joined([no_field, no_room, served.note.clone(), note]);
    if let Some(refusal) = waiting.as_ref().filter(|waiting| waiting.reason == TOO_MANY_LISTENERS)
        && shown_reason(lb) != Some(TOO_MANY_LISTENERS)
    {
        plan.events.push(PendingEvent::warning(refusal.reason, refusal.message.clone()));
    }
    let shown = Shown {
        address: Some(address),
        has_addresses_field: seen.has_addresses_field,
        ready: ready(seen, Told { waiting, note }),
        served: Some(&served),
        // the state of the backends is told with the slice
        backends: (seen.has_backends_field && !is_held_back).then_some(&served.backends),
        applied,
    };
    if !is_stored {
        // nothing carries traffic for a new object yet, so that this one write says what the other ones lead to too
        plan.steps.extend(status::write(lb, &shown, &seen.now).map(Step::WriteObject));
        plan.steps.extend(writes);
        return;
    }
    let Some(json) = status::write(lb, &shown, &seen.now) else { return };
    if !status::is_only_backend_status(lb, &json, is_carried) {
        plan.steps.push(Step::WriteObject(json));
    } else if let Some(later) = seen.backend_status_in {
        plan.look_again(later);
    } else {
        plan.steps.push(Step::WriteBackendStatus(json));
    }
}

/// The write of the slice.
///
/// # Errors
/// The time after which it may go out: one that only repeats what flaps waits, unless nobody has been ready so far, and one
/// that only says who is ready waits until the rate of its namespace allows it. A VM that comes or leaves waits for nothing: one
/// that comes back before its time is in no write.
fn pace(seen: &Seen, write: Write) -> Result<Step, Duration> {
    let (Some(slice), Write::Replace(json)) = (&seen.slice, &write) else {
        return Ok(Step::WriteSlice(write));
    };
    let Some(changed) = slice::changed(slice, json) else { return Ok(Step::WriteSlice(write)) };
    let Changed { flipped, left, joined } = changed;
    if !left.is_empty() || !joined.is_empty() {
        return Ok(Step::WriteSliceWithout { write, left });
    }
    if let Some(later) = seen.slice_readiness_in {
        return Err(later);
    }
    let waits: Vec<_> = flipped.iter().filter_map(|id| seen.backend_due_in.get(id)).collect();
    let is_anybody_ready = slice::recorded_readiness(slice).values().any(|ready| *ready);
    match waits.iter().min() {
        Some(first) if is_anybody_ready && waits.len() == flipped.len() => Err(**first),
        _ => Ok(Step::WriteSliceReadiness { write, flipped }),
    }
}

fn shown_reason(lb: &LoadBalancer) -> Option<&str> {
    let conditions = lb.status.as_ref().map_or(&[][..], |status| &status.conditions);
    harvester_api::condition::ready(conditions).map(|ready| ready.reason.as_str())
}
