//! The PUT of a LoadBalancer object: finalizer and our fields of its status. Everything else in the object stays as it
//! was read.

use controller_kit::RawObject;
use harvester_api::{AllocatedAddress, BackendStatus, LoadBalancer, condition::READY, finalizers};
use serde_json::{Map, Value, json};

use super::{families, requested};
use crate::{
    condition::{self, Ready},
    host_datapath::{self, MOST_LISTED, Served, source_ranges},
};

/// The status that the object should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown<'a> {
    /// `None`: the object has no address.
    pub(crate) address: Option<&'a AllocatedAddress>,
    /// Whether the CRD has `status.addresses`: the server drops unknown fields, and we would write them for ever.
    pub(crate) has_addresses_field: bool,
    pub(crate) ready: Ready,
    /// The address and the backend servers of the host datapath. `None` leaves them alone: for guest clusters the cloud
    /// controller manager writes them.
    pub(crate) served: Option<&'a Served>,
    /// `None` leaves them as they are.
    pub(crate) backends: Option<&'a [BackendStatus]>,
    /// The source ranges that the Service has, of a load balancer of VMs. `None` leaves their confirmation alone.
    pub(crate) applied: Option<Option<&'a str>>,
}

/// The object to PUT, if it differs from what was read.
pub(crate) fn write(lb: &RawObject<LoadBalancer>, shown: &Shown<'_>, now: &str) -> Option<Value> {
    lb.edited(|json| {
        condition::add_finalizer(json, finalizers::LOAD_BALANCER);
        if let Some(applied) = shown.applied {
            source_ranges::confirm(json, applied);
        }
        let status = condition::status_of(json);
        write_address(status, shown.address);
        if shown.has_addresses_field {
            set_list(status, "addresses", json!(families::both(lb, shown.address)));
        }
        condition::write_ready(status, &shown.ready, now);
        if let Some(served) = shown.served {
            set_text(status, "address", &served.address);
            set_list(status, "backendServers", json!(served.backend_servers));
        }
        if let Some(backends) = shown.backends {
            set_list(status, "backends", json!(backends));
        }
    })
}

/// Whether `written` says nothing new but the state of backends, which are those that `lb` shows, on which networks these are, and
/// which VMs have no usable address: a user who labels one of these changes the status of every load balancer that selects by the
/// label. Where no slice carries the list (`is_carried`), that holds for every VM: no traffic follows it.
pub(crate) fn is_only_backend_status(
    lb: &RawObject<LoadBalancer>,
    written: &Value,
    is_carried: bool,
) -> bool {
    let mut read = lb.json();
    let (before, after) = (usable(&read), usable(written));
    // of more backends than the list takes readiness decides which are in it
    if is_carried && before != after && before.len().min(after.len()) < MOST_LISTED {
        return false;
    }
    let status = condition::status_of(&mut read);
    match written.pointer("/status/backends") {
        Some(backends) => status.insert("backends".to_owned(), backends.clone()),
        None => status.remove("backends"),
    };
    let before = status.get_mut("conditions").and_then(Value::as_array_mut);
    let before = before.and_then(|all| all.iter_mut().find(|condition| condition["type"] == READY));
    let after = written.pointer("/status/conditions").and_then(Value::as_array);
    let after = after.and_then(|all| all.iter().find(|condition| condition["type"] == READY));
    if let (Some(before), Some(after)) = (before, after)
        && before["status"] == after["status"]
        && refused_wishes(before) == refused_wishes(after)
        && host_datapath::may_differ_by_vms(explained(before), explained(after))
    {
        *before = after.clone();
    }
    read == *written
}

/// Names and addresses of the listed backends that have a usable address.
fn usable(json: &Value) -> Vec<[&str; 2]> {
    let backends = json.pointer("/status/backends").and_then(Value::as_array);
    let listed = backends.into_iter().flatten();
    let usable = listed
        .filter(|backend| host_datapath::is_usable(text(backend, "address"), text(backend, "lastError")));
    usable.map(|backend| [text(backend, "name"), text(backend, "address")]).collect()
}

/// The condition alone remembers that a wish was answered.
fn refused_wishes(condition: &Value) -> &str {
    let message = text(condition, "message");
    &message[requested::refused_wishes_at(message)..]
}

fn explained(condition: &Value) -> [&str; 2] {
    [text(condition, "reason"), text(condition, "message")]
}

fn text<'a>(json: &'a Value, key: &str) -> &'a str {
    json[key].as_str().unwrap_or_default()
}

/// The object without our finalizer, if it has it.
pub(crate) fn write_without_finalizer(lb: &RawObject<LoadBalancer>) -> Option<Value> {
    lb.edited(|json| condition::remove_finalizer(json, finalizers::LOAD_BALANCER))
}

fn write_address(status: &mut Map<String, Value>, address: Option<&AllocatedAddress>) {
    let AllocatedAddress { ip_pool, ip, mask, gateway, ipv6_pool, ipv6_ip, ipv6_mask, ipv6_gateway } =
        address.cloned().unwrap_or_default();
    let mut map = status.get("allocatedAddress").and_then(Value::as_object).cloned().unwrap_or_default();
    let first = [("ipPool", ip_pool), ("ip", ip), ("mask", mask), ("gateway", gateway)];
    let second = [
        ("ipv6Pool", ipv6_pool),
        ("ipv6IP", ipv6_ip),
        ("ipv6Mask", ipv6_mask),
        ("ipv6Gateway", ipv6_gateway),
    ];
    for (key, text) in first.into_iter().chain(second) {
        set_text(&mut map, key, &text);
    }
    if map.is_empty() {
        status.remove("allocatedAddress");
    } else {
        status.insert("allocatedAddress".into(), map.into());
    }
}

/// Absent and empty are the same, and neither replaces the other.
fn set_text(map: &mut Map<String, Value>, key: &str, text: &str) {
    if map.get(key).and_then(Value::as_str).unwrap_or_default() == text {
        return;
    }
    if text.is_empty() {
        map.remove(key);
    } else {
        map.insert(key.into(), text.into());
    }
}

fn set_list(map: &mut Map<String, Value>, key: &str, list: Value) {
    let empty = list.as_array().is_none_or(Vec::is_empty);
    if empty && map.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty) {
        return;
    }
    if empty {
        map.remove(key);
    } else {
        map.insert(key.into(), list);
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::annotations;
    use rstest::rstest;

    use super::*;

    fn read(status: &Value) -> RawObject<LoadBalancer> {
        let object = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"name": "web", "namespace": "shop", "finalizers": [finalizers::LOAD_BALANCER]},
            "spec": {"workloadType": "cluster", "future": {"field": 1}}, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn address() -> AllocatedAddress {
        let text = str::to_owned;
        AllocatedAddress {
            ip_pool: text("edge"),
            ip: text("10.0.0.7"),
            mask: text("255.255.255.0"),
            gateway: text("10.0.0.1"),
            ..AllocatedAddress::default()
        }
    }

    fn shown(address: Option<&AllocatedAddress>) -> Shown<'_> {
        Shown {
            address,
            has_addresses_field: true,
            ready: Ready::yes("AddressAllocated"),
            served: None,
            backends: None,
            applied: None,
        }
    }

    #[test]
    fn a_guest_clusters_address_and_unknown_fields_are_left_alone() {
        let lb = read(&json!({"address": "10.0.0.9", "backendServers": ["10.1.1.1"], "extra": true}));
        let after = write(&lb, &shown(Some(&address())), "now").unwrap();
        assert_eq!(after["spec"]["future"]["field"], 1);
        assert_eq!(
            after["status"],
            json!({"address": "10.0.0.9", "backendServers": ["10.1.1.1"], "extra": true,
                "allocatedAddress": {"ipPool": "edge", "ip": "10.0.0.7", "mask": "255.255.255.0", "gateway": "10.0.0.1"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "AddressAllocated", "message": "",
                    "lastUpdateTime": "now", "lastTransitionTime": "now"}]})
        );
    }

    #[test]
    fn what_the_go_program_wrote_is_not_written_again() {
        let lb = read(&json!({"address": "",
            "allocatedAddress": {"ipPool": "edge", "ip": "10.0.0.7", "mask": "255.255.255.0", "gateway": "10.0.0.1"},
            "conditions": [{"type": "Ready", "status": "True", "lastUpdateTime": "then"}]}));
        let (address, served) = (address(), Served::default());
        assert_eq!(write(&lb, &shown(Some(&address)), "now"), None);
        let shown = Shown { served: Some(&served), ..shown(Some(&address)) };
        assert_eq!(write(&lb, &shown, "now"), None);
    }

    /// The object `web`, which asks for these families and is ready at `address`, with `addresses` in its status.
    fn at(address: &AllocatedAddress, families: &str, addresses: &Value) -> RawObject<LoadBalancer> {
        let mut json = read(&json!({"allocatedAddress": address,
            "conditions": [{"type": "Ready", "status": "True", "lastUpdateTime": "then"}]}))
        .json();
        json["metadata"]["annotations"] = json!({annotations::IP_FAMILIES: families});
        if !addresses.is_null() {
            json["status"]["addresses"] = addresses.clone();
        }
        serde_json::from_value(json).unwrap()
    }

    // docs/contract/addresses.md#9
    #[rstest]
    #[case::two("IPv4,IPv6", "fd00::7", json!(null), Some(json!(["10.0.0.7", "fd00::7"])))]
    #[case::in_the_other_order("IPv6,IPv4", "fd00::7", json!(null), Some(json!(["fd00::7", "10.0.0.7"])))]
    #[case::by_policy_alone("", "fd00::7", json!(null), Some(json!(["10.0.0.7", "fd00::7"])))]
    #[case::as_they_stand("IPv6,IPv4", "fd00::7", json!(["fd00::7", "10.0.0.7"]), None)]
    #[case::another_one("IPv4,IPv6", "fd00::7", json!(["10.0.0.7", "fd00::9"]), Some(json!(["10.0.0.7", "fd00::7"])))]
    // as the Go program writes it, and this one
    #[case::one("IPv4", "", json!(null), None)]
    #[case::one_of_two("IPv4,IPv6", "", json!(null), None)]
    #[case::one_and_an_empty_list("IPv4", "", json!([]), None)]
    #[case::one_that_is_left("IPv4,IPv6", "", json!(["10.0.0.7", "fd00::7"]), Some(json!(null)))]
    fn the_addresses_of_an_object_that_has_two_are_listed(
        #[case] families: &str,
        #[case] ipv6: &str,
        #[case] addresses: Value,
        #[case] expected: Option<Value>,
    ) {
        let address = AllocatedAddress { ipv6_ip: ipv6.to_owned(), ..address() };
        let lb = at(&address, families, &addresses);
        let written = write(&lb, &shown(Some(&address)), "now");
        assert_eq!(written.map(|json| json["status"]["addresses"].clone()), expected);
        // the server drops them, and they would be written for ever
        let without_field = Shown { has_addresses_field: false, ..shown(Some(&address)) };
        assert_eq!(write(&lb, &without_field, "now"), None);
    }

    #[test]
    fn the_addresses_go_with_the_last_one() {
        let two = AllocatedAddress { ipv6_ip: "fd00::7".to_owned(), ..address() };
        let lb = at(&two, "IPv4,IPv6", &json!(["10.0.0.7", "fd00::7"]));
        let after = write(&lb, &shown(None), "now").unwrap();
        let left = |field: &str| after["status"].get(field).cloned();
        assert_eq!((left("allocatedAddress"), left("addresses")), (None, None));
    }

    #[test]
    fn an_address_that_is_gone_leaves_fields_of_others() {
        let lb = read(
            &json!({"allocatedAddress": {"ipPool": "edge", "ip": "10.0.0.7", "ipv6IP": "fd00::7", "mark": "x"}}),
        );
        let after = write(&lb, &shown(None), "now").unwrap();
        assert_eq!(after["status"]["allocatedAddress"], json!({"mark": "x"}));
    }

    fn listed(name: &str, address: &str, last_error: &str) -> Value {
        json!({"name": name, "address": address, "ready": false, "lastError": last_error})
    }

    const REFUSED: &str = "not used: 10.1.1.1 is a VIP";

    #[rstest]
    #[case::another_error(json!([listed("a", "10.1.1.1", "HTTP 503")]), json!([listed("a", "10.1.1.1", "HTTP 500")]), true)]
    #[case::one_is_usable_more(json!([]), json!([listed("a", "10.1.1.1", "")]), false)]
    #[case::one_is_usable_less(json!([listed("a", "10.1.1.1", "")]), json!([]), false)]
    #[case::its_address_is_refused(json!([listed("a", "10.1.1.1", "")]), json!([listed("a", "10.1.1.1", REFUSED)]), false)]
    #[case::another_vm_has_the_address(json!([listed("a", "10.1.1.1", "")]), json!([listed("b", "10.1.1.1", "")]), false)]
    #[case::one_without_address_more(json!([]), json!([listed("a", "", "the VM reports no IPv4 address")]), true)]
    #[case::one_with_a_refused_address_less(
        json!([listed("a", "10.1.1.1", REFUSED), listed("b", "10.1.1.2", "")]), json!([listed("b", "10.1.1.2", "")]), true)]
    fn vms_without_usable_address_are_told_as_the_state_of_backends_is(
        #[case] before: Value,
        #[case] after: Value,
        #[case] expected: bool,
    ) {
        let status = |backends: Value| {
            let mut status = json!({"address": "10.0.0.7"});
            if backends != json!([]) {
                status["backends"] = backends;
            }
            read(&status)
        };
        assert_eq!(is_only_backend_status(&status(before), &status(after).json(), true), expected);
    }

    #[test]
    fn readiness_that_decides_which_backends_a_full_list_has_is_no_more_than_readiness() {
        let full = |first: usize| {
            let backends: Vec<_> =
                (first..first + MOST_LISTED).map(|n| listed(&format!("web-{n}"), "10.1.1.1", "")).collect();
            read(&json!({"backends": backends}))
        };
        assert!(is_only_backend_status(&full(0), &full(1).json(), true));
    }

    #[rstest]
    #[case::nobody_has_an_address(["False", "NoBackends", ""], ["False", "BackendsWithoutAddress", ""], true)]
    #[case::nobody_is_left(["False", "BackendsWithoutAddress", ""], ["False", "NoBackends", ""], true)]
    #[case::another_address_is_refused(
        ["False", "BackendsWithoutAddress", "a"], ["False", "BackendsWithoutAddress", "b"], true)]
    // it is the address of which another note tells
    #[case::another_note(["False", "NoBackends", "a"], ["False", "NoBackends", "b"], false)]
    #[case::serving(["False", "BackendsWithoutAddress", ""], ["True", "AddressAllocated", ""], false)]
    #[case::unhealthy(["False", "NoBackends", ""], ["False", "NoHealthyBackend", ""], false)]
    #[case::no_room(["True", "AddressAllocated", ""],
        ["True", "AddressAllocated", "status.backends has no room for 1 more of the selected VMs"], true)]
    fn a_turn_between_two_reasons_of_no_backend_is_told_as_the_state_of_backends_is(
        #[case] before: [&str; 3],
        #[case] after: [&str; 3],
        #[case] expected: bool,
    ) {
        let status = |[status, reason, message]: [&str; 3]| {
            read(&json!({"conditions": [{"type": "Other", "status": "True"},
                {"type": "Ready", "status": status, "reason": reason, "message": message, "lastUpdateTime": message}]}))
        };
        assert_eq!(is_only_backend_status(&status(before), &status(after).json(), true), expected);
    }

    #[test]
    fn only_our_finalizer_goes() {
        let lb = read(&json!({}));
        assert_eq!(write_without_finalizer(&lb).unwrap()["metadata"].get("finalizers"), None);
        let other = serde_json::from_value::<RawObject<LoadBalancer>>(json!({"metadata": {"name": "web",
            "finalizers": ["a/b"]}, "spec": {}}));
        assert_eq!(write_without_finalizer(&other.unwrap()), None);
    }
}
