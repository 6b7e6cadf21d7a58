//! An object of type vm at fd00:6::7 of pool six.

use super::*;

const AT: (&str, &str) = ("six", "fd00:6::7");

fn at_ipv6(object: Option<Arc<RawObject<LoadBalancer>>>) -> Seen {
    let seen = recorded(Seen { object, ..seen() }, &[AT]);
    Seen { address: SeenAddress { pools: dual::pools(), ..seen.address }, ..seen }
}

/// With the address in its status.
fn stored() -> Seen {
    let address =
        json!({"ipPool": "six", "ip": "fd00:6::7", "mask": "ffff:ffff:ffff:ffff::", "gateway": "fd00:6::1"});
    at_ipv6(settled("vm", &json!({"spec": {"ipPool": "six"}, "status": {"allocatedAddress": address}})))
}

fn carrying(families: &Value) -> Option<Arc<RawObject<Service>>> {
    let mut json = service(Some("u1"), AT.1, AT.1).unwrap().json();
    json["spec"]["ipFamilies"] = families.clone();
    Some(Arc::new(RawObject::from_json(json).unwrap()))
}

fn slice_of(family: &str) -> Option<Arc<RawObject<EndpointSlice>>> {
    let mut json = slice("u1").unwrap().json();
    json["addressType"] = family.into();
    if family == "IPv6" {
        json["endpoints"][0]["addresses"] = json!(["100::1"]);
    }
    Some(Arc::new(RawObject::from_json(json).unwrap()))
}

fn refused_family() -> Vec<RefusedWrite> {
    let why = "Service \"web\" is invalid: spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster";
    vec![RefusedWrite { kind: "Service", why: why.to_owned() }]
}

/// Of a cluster that makes no Service of IPv6.
pub(super) fn refused() -> Seen {
    Seen { refused_writes: refused_family(), ..stored() }
}

#[rstest]
// its VMs were seen at IPv4 addresses
#[case::its_address_is_stored_before_its_vms_are_seen(
    at_ipv6(object("vm", &json!({"metadata": {"annotations": {annotations::IP_FAMILIES: "IPv6"}}, "spec": {"ipPool": "six"}}))),
    &["write object"])]
// a slice of IPv6 would stand in the way of one of IPv4
#[case::the_service_comes_first_where_the_cluster_may_have_none(stored(), &["write service", "write slice"])]
#[case::then_the_slice(Seen { service: carrying(&json!(["IPv6"])), ..stored() }, &["write slice"])]
#[case::no_slice_where_the_cluster_has_none(Seen { refused_writes: refused_family(), ..stored() }, &["write object"])]
fn a_vm_object_at_an_ipv6_address_takes_these_steps(#[case] seen: Seen, #[case] expected: &[&str]) {
    assert_eq!(steps(&seen), expected);
}

#[rstest]
#[case::the_service_carries_it(
    Seen { service: carrying(&json!(["IPv6"])), slice: slice_of("IPv6"), ..stored() }, "NoBackends", "no running")]
#[case::the_service_is_of_ipv4(
    Seen { service: carrying(&json!(["IPv4"])), slice: slice_of("IPv4"), ..stored() }, "IPFamilyNotSupported",
    "nobody is reached at fd00:6::7: its Service is one of IPv4, which the API fixes when a Service is made; name a pool \
     of IPv4 in spec.ipPool")]
#[case::the_cluster_has_none(
    Seen { refused_writes: refused_family(), ..stored() }, "IPFamilyNotSupported",
    "nobody is reached at fd00:6::7: the server makes no Service of IPv6: Service \"web\" is invalid")]
#[case::a_slice_of_ipv4_is_left(
    Seen { service: carrying(&json!(["IPv6"])), slice: slice_of("IPv4"), ..stored() }, "IPFamilyNotSupported",
    "the EndpointSlice shop/web is of IPv4, and the Service of IPv6: delete the EndpointSlice")]
fn a_vm_object_at_an_ipv6_address_says_what_carries_it(
    #[case] seen: Seen,
    #[case] expected: &str,
    #[case] begin: &str,
) {
    let status = written(&seen);
    let ready = &status["conditions"][0];
    assert_eq!(ready["reason"], expected, "{ready}");
    assert!(ready["message"].as_str().unwrap().starts_with(begin), "{ready}");
}
