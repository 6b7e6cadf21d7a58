//! Events.

use serde_json::Value;

use super::text;
use crate::status::Cause;

/// An Event is in the namespace of what it is about; those about cluster-scoped objects are in `default`.
pub(super) fn faults(stored: &Value, causes: &mut Vec<Cause>) {
    let about = text(&stored["involvedObject"]["namespace"]);
    let place = text(&stored["metadata"]["namespace"]);
    if place != if about.is_empty() { "default" } else { about } {
        let detail = "does not match event.namespace";
        causes.push(Cause::invalid("involvedObject.namespace", &about.into(), detail));
    }
}
