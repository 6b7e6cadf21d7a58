use controller_kit::ObjectKey;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn owner() -> Owner {
    Owner { key: ObjectKey::new("shop", "web"), uid: "lb-uid".to_owned() }
}

fn listener(name: &str, port: i32, protocol: &str, backend_port: i32) -> Listener {
    Listener { name: name.to_owned(), port, protocol: protocol.to_owned(), backend_port }
}

fn created(listeners: &[Listener], address: &str) -> Value {
    match write(None, &owner(), listeners, address, None) {
        Write::Create(service) => service,
        other => panic!("{other:?}"),
    }
}

/// As the server stores it: with node ports and defaults.
fn stored(mut service: Value) -> RawObject<Service> {
    service["metadata"]["uid"] = "service-uid".into();
    service["spec"]["clusterIP"] = "10.53.0.7".into();
    service["spec"]["externalTrafficPolicy"] = "Cluster".into();
    service["spec"]["allocateLoadBalancerNodePorts"] = true.into();
    for (port, number) in service["spec"]["ports"].as_array_mut().unwrap().iter_mut().zip(30_001..) {
        port["nodePort"] = number.into();
        if port["name"] == "" {
            port.as_object_mut().unwrap().remove("name");
        }
    }
    RawObject::from_json(service).unwrap()
}

fn replaced(existing: &RawObject<Service>, listeners: &[Listener], address: &str) -> Option<Value> {
    match write(Some(existing), &owner(), listeners, address, None) {
        Write::Nothing => None,
        Write::Replace(service) => Some(service),
        Write::Create(service) => panic!("{service}"),
    }
}

#[rstest]
#[case::to_be_made(None, "10.0.0.9", Family::V4)]
#[case::to_be_made_for_ipv6(None, "fd00::9", Family::V6)]
#[case::to_be_made_for_a_lease(None, "0.0.0.0", Family::V4)]
#[case::of_ipv4(Some(json!(["IPv4"])), "fd00::9", Family::V4)]
#[case::of_ipv6(Some(json!(["IPv6"])), "10.0.0.9", Family::V6)]
// somebody asked for both by spec.ipFamilyPolicy
#[case::of_both(Some(json!(["IPv4", "IPv6"])), "fd00::9", Family::V6)]
#[case::of_a_server_that_knows_no_families(Some(json!(null)), "fd00::9", Family::V4)]
fn backends_are_of_the_addresss_family_where_the_service_carries_it(
    #[case] carried: Option<Value>,
    #[case] address: &str,
    #[case] expected: Family,
) {
    let service =
        carried.map(|families| serde_json::from_value(json!({"spec": {"ipFamilies": families}})).unwrap());
    assert_eq!(family(service.as_ref(), address), expected);
}

#[test]
fn a_new_service_for_an_ipv6_address_is_one_of_ipv6_alone() {
    let spec = created(&[listener("https", 443, "TCP", 8443)], "fd00::9")["spec"].clone();
    assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&json!(["IPv6"]), &json!("SingleStack")));
    assert_eq!(spec["loadBalancerIP"], "fd00::9");
}

#[test]
fn a_new_service_has_the_contracts_shape_and_asks_both_ways() {
    let listeners = [listener("https", 443, "TCP", 8443), listener("dns", 53, "UDP", 53)];
    assert_eq!(
        created(&listeners, "10.0.0.9"),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "namespace": "shop", "name": "web",
                "labels": {"loadbalancer.harvesterhci.io/servicelb": "true"},
                "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.9"},
                "ownerReferences": [{
                    "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer", "name": "web", "uid": "lb-uid",
                }],
            },
            "spec": {
                "type": "LoadBalancer", "loadBalancerIP": "10.0.0.9", "allocateLoadBalancerNodePorts": false,
                "ports": [
                    {"name": "https", "protocol": "TCP", "port": 443, "targetPort": 8443},
                    {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 53},
                ],
            },
        })
    );
}

#[rstest]
#[case::named("http")]
#[case::unnamed("")]
fn a_service_that_is_as_it_should_be_is_not_written(#[case] name: &str) {
    // docs/contract/load-balancer.md#LB-5: the Go program takes node ports for a difference, and PUTs at every look
    let listeners = [listener(name, 80, "TCP", 8080)];
    let service = stored(created(&listeners, "10.0.0.9"));
    assert_eq!(replaced(&service, &listeners, "10.0.0.9"), None);
}

#[test]
fn what_others_put_on_the_service_survives() {
    let listeners = [listener("http", 80, "TCP", 8080)];
    let mut service = created(&listeners, "0.0.0.0");
    service["metadata"]["annotations"]["kube-vip.io/hwaddr"] = "00:00:6c:01:02:03".into();
    service["metadata"]["annotations"]["kube-vip.io/requestedIP"] = "10.0.0.77".into();
    service["metadata"]["labels"]["team"] = "shop".into();
    service["spec"]["sessionAffinity"] = "ClientIP".into();
    let service = stored(service);
    assert_eq!(replaced(&service, &listeners, "0.0.0.0"), None);
    let after = replaced(&service, &[listener("http", 81, "TCP", 8080)], "0.0.0.0").unwrap();
    assert_eq!(after["metadata"]["annotations"]["kube-vip.io/hwaddr"], "00:00:6c:01:02:03");
    assert_eq!(after["metadata"]["annotations"]["kube-vip.io/requestedIP"], "10.0.0.77");
    assert_eq!(
        (&after["metadata"]["labels"]["team"], &after["spec"]["sessionAffinity"]),
        (&"shop".into(), &"ClientIP".into())
    );
    assert_eq!(after["spec"]["clusterIP"], "10.53.0.7");
}

#[test]
fn a_port_keeps_its_node_port_through_every_change_but_that_of_port_and_protocol() {
    let service =
        stored(created(&[listener("http", 80, "TCP", 8080), listener("dns", 53, "UDP", 53)], "10.0.0.9"));
    let listeners = [listener("dns", 53, "TCP", 53), listener("web", 80, "TCP", 9090)];
    let after = replaced(&service, &listeners, "10.0.0.9").unwrap();
    assert_eq!(
        after["spec"]["ports"],
        json!([
            {"name": "dns", "protocol": "TCP", "port": 53, "targetPort": 53},
            {"name": "web", "protocol": "TCP", "port": 80, "targetPort": 9090, "nodePort": 30_001},
        ])
    );
}

#[test]
fn another_address_is_asked_for_both_ways() {
    let listeners = [listener("http", 80, "TCP", 8080)];
    let service = stored(created(&listeners, "10.0.0.9"));
    let after = replaced(&service, &listeners, "10.0.0.10").unwrap();
    assert_eq!(after["spec"]["loadBalancerIP"], "10.0.0.10");
    assert_eq!(after["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], "10.0.0.10");
}

#[rstest]
#[case::nothing(json!({}), None)]
#[case::waiting_for_a_lease(json!({"loadBalancer": {"ingress": [{"ip": "0.0.0.0"}]}}), None)]
#[case::hostname_only(json!({"loadBalancer": {"ingress": [{"hostname": "web.example"}]}}), None)]
#[case::announced(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}, {"ip": "10.0.0.10"}]}}), Some("10.0.0.9"))]
fn the_first_ingress_is_what_is_announced(#[case] status: Value, #[case] expected: Option<&str>) {
    let mut service = created(&[listener("http", 80, "TCP", 8080)], "10.0.0.9");
    service["status"] = status;
    assert_eq!(announced(&stored(service)), expected);
}

fn any_listeners() -> impl Strategy<Value = Vec<Listener>> {
    let one =
        (any::<bool>(), 8000..8004_i32).prop_map(|(tcp, backend)| (if tcp { "TCP" } else { "UDP" }, backend));
    proptest::collection::btree_map(80..84_i32, one, 1..4).prop_map(|some| {
        some.into_iter()
            .map(|(port, (protocol, backend))| listener(&format!("p{port}"), port, protocol, backend))
            .collect()
    })
}

proptest! {
    #[test]
    fn from_any_service_one_write_leads_to_any_other_and_none_follows(
        before in any_listeners(),
        after in any_listeners(),
    ) {
        let existing = stored(created(&before, "10.0.0.9"));
        let written = replaced(&existing, &after, "10.0.0.10").expect("another address");
        let node_ports = |service: &Value| -> Vec<i64> {
            service["spec"]["ports"].as_array().unwrap().iter().filter_map(|port| port["nodePort"].as_i64()).collect()
        };
        let mut seen = node_ports(&written);
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), node_ports(&written).len(), "no node port twice");
        prop_assert_eq!(replaced(&RawObject::from_json(written).unwrap(), &after, "10.0.0.10"), None);
    }
}
