//! Admission that reverts our own status: the webhook takes another user for the one who may write addresses, and
//! answers a PUT that it reverted as if it were done.

use harvester_api::{AllocatedAddress, IPPool, LoadBalancer};
use serde_json::Value;

/// Reason of the Event.
pub(crate) const REASON: &str = "StatusPutBack";

/// The fault and the next step.
pub(crate) const ADVICE: &str = "admission put its status back: start harvester-load-balancer-webhook with \
                                 --status-writer=<user of this controller> (`kubectl auth whoami` tells it)";

/// Whether the server stored another address for a load balancer than it was sent.
pub(crate) fn address(sent: &Value, stored: &LoadBalancer) -> bool {
    let sent = sent.pointer("/status/allocatedAddress").cloned();
    let sent = sent.and_then(|sent| serde_json::from_value::<AllocatedAddress>(sent).ok());
    let stored = stored.status.as_ref().and_then(|status| status.allocated_address.clone());
    sent.unwrap_or_default() != stored.unwrap_or_default()
}

/// Whether the server stored another record for a pool than it was sent.
pub(crate) fn record(sent: &Value, stored: &IPPool) -> bool {
    let sent = sent.pointer("/status/allocated").and_then(Value::as_object);
    let holder = |address: &str| sent.and_then(|sent| sent.get(address)?.as_str());
    let stored = stored.status.as_ref().map(|status| &status.allocated);
    let mut entries = stored.into_iter().flatten();
    sent.map_or(0, |sent| sent.len()) != stored.map_or(0, |stored| stored.len())
        || entries.any(|(address, by)| holder(address) != Some(by))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::taken(json!({"ip": "10.0.0.7", "ipPool": "edge"}), json!({"ip": "10.0.0.7", "ipPool": "edge"}), false)]
    #[case::none(json!(null), json!(null), false)]
    #[case::dropped(json!({"ip": "10.0.0.7", "ipPool": "edge"}), json!(null), true)]
    #[case::put_back(json!({"ip": "10.0.0.7", "ipPool": "edge"}), json!({"ip": "10.0.0.9", "ipPool": "edge"}), true)]
    #[case::not_taken_away(json!(null), json!({"ip": "10.0.0.9", "ipPool": "edge"}), true)]
    // what the CRD does not know, the server drops
    #[case::unknown_field(json!({"ip": "10.0.0.7", "mark": "x"}), json!({"ip": "10.0.0.7"}), false)]
    fn an_address_that_was_not_stored_is_seen(
        #[case] sent: Value,
        #[case] stored: Value,
        #[case] expected: bool,
    ) {
        let object = |allocated: Value| json!({"metadata": {"name": "web"}, "spec": {}, "status": {"allocatedAddress": allocated}});
        let stored = serde_json::from_value(object(stored)).unwrap();
        assert_eq!(address(&object(sent), &stored), expected);
    }

    #[rstest]
    #[case::taken(json!({"10.0.0.7": "shop/web"}), json!({"10.0.0.7": "shop/web"}), false)]
    #[case::none(json!(null), json!(null), false)]
    #[case::empty(json!(null), json!({}), false)]
    #[case::not_released(json!(null), json!({"10.0.0.7": "shop/web"}), true)]
    #[case::not_claimed(json!({"10.0.0.7": "shop/web", "10.0.0.8": "shop/api"}), json!({"10.0.0.7": "shop/web"}), true)]
    #[case::somebody_elses(json!({"10.0.0.7": "shop/web"}), json!({"10.0.0.7": "shop/api"}), true)]
    fn a_record_that_was_not_stored_is_seen(
        #[case] sent: Value,
        #[case] stored: Value,
        #[case] expected: bool,
    ) {
        let object = |allocated: Value| {
            let mut status = json!({"total": 9, "available": 8, "lastAllocated": ""});
            if !allocated.is_null() {
                status["allocated"] = allocated;
            }
            json!({"metadata": {"name": "edge"}, "spec": {"ranges": []}, "status": status})
        };
        let stored = serde_json::from_value(object(stored)).unwrap();
        assert_eq!(record(&object(sent), &stored), expected);
    }
}
