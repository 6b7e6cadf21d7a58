//! Leases.

use serde_json::Value;

use crate::status::Cause;

pub(super) fn faults(lease: &Value, causes: &mut Vec<Cause>) {
    let spec = &lease["spec"];
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64()
        && seconds <= 0
    {
        let value = &spec["leaseDurationSeconds"];
        causes.push(Cause::invalid("spec.leaseDurationSeconds", value, "must be greater than 0"));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|transitions| transitions < 0) {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid("spec.leaseTransitions", &spec["leaseTransitions"], detail));
    }
}
