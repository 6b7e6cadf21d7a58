use std::collections::BTreeSet;

use controller_kit::ObjectKey;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn owner() -> Owner {
    Owner { key: ObjectKey::new("shop", "web"), uid: "lb-uid".to_owned() }
}

fn listeners() -> Vec<Listener> {
    vec![Listener { name: "http".to_owned(), port: 80, protocol: "TCP".to_owned(), backend_port: 8080 }]
}

fn backend(name: &str, last: u8) -> Backend {
    let id = BackendId { uid: format!("uid-{name}"), address: IpAddr::from([192, 168, 7, last]) };
    Backend { id, name: name.to_owned() }
}

const DUMMY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 52, 0, 255));

fn created(backends: &[(Backend, bool)]) -> Value {
    match write(None, &owner(), &listeners(), backends, DUMMY) {
        Write::Create(slice) => slice,
        other => panic!("{other:?}"),
    }
}

/// As the server stores it: with a version and defaults.
fn stored(mut slice: Value) -> RawObject<EndpointSlice> {
    slice["metadata"]["resourceVersion"] = "7".into();
    slice["metadata"]["uid"] = "slice-uid".into();
    RawObject::from_json(slice).unwrap()
}

fn replaced(existing: &RawObject<EndpointSlice>, backends: &[(Backend, bool)]) -> Option<Value> {
    match write(Some(existing), &owner(), &listeners(), backends, DUMMY) {
        Write::Nothing => None,
        Write::Replace(slice) => Some(slice),
        Write::Create(slice) => panic!("{slice}"),
    }
}

#[test]
fn a_new_slice_has_the_contracts_shape() {
    let slice = created(&[(backend("web-1", 11), true), (backend("web-2", 12), false)]);
    assert_eq!(
        slice,
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop", "name": "web",
                "labels": {
                    "loadbalancer.harvesterhci.io/servicelb": "true",
                    "kubernetes.io/service-name": "web",
                    "endpointslice.kubernetes.io/managed-by": "harvester-load-balancer",
                },
                "ownerReferences": [{
                    "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer", "name": "web", "uid": "lb-uid",
                }],
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": [
                {"addresses": ["192.168.7.11"], "conditions": {"ready": true},
                 "targetRef": {"namespace": "shop", "name": "web-1", "uid": "uid-web-1"}},
                {"addresses": ["192.168.7.12"], "conditions": {"ready": false},
                 "targetRef": {"namespace": "shop", "name": "web-2", "uid": "uid-web-2"}},
            ],
        })
    );
}

#[test]
fn a_slice_behind_an_ipv6_address_has_endpoints_of_ipv6_alone() {
    let id = BackendId { uid: "uid-web-1".to_owned(), address: "fd00:7::10".parse().unwrap() };
    let backends = [(Backend { id, name: "web-1".to_owned() }, false)];
    let dummy = dummy(Family::V6, Ipv4Addr::new(10, 52, 0, 255));
    let Write::Create(slice) = write(None, &owner(), &listeners(), &backends, dummy) else {
        panic!("it is new")
    };
    assert_eq!(slice["addressType"], "IPv6");
    let addresses: Vec<_> =
        slice["endpoints"].as_array().unwrap().iter().map(|of| &of["addresses"]).collect();
    assert_eq!(addresses, [&json!(["fd00:7::10"]), &json!(["100::1"])]);
    let slice = stored(slice);
    assert!(is_of(&slice, Family::V6) && !is_of(&slice, Family::V4));
}

// docs/contract/load-balancer.md#EP-7: v0.1.x gave all ports the number of the last listener
#[test]
fn each_listener_has_a_port_of_its_own_in_the_slice() {
    let listener = |name: &str, port: i32, backend_port: i32| Listener {
        name: name.to_owned(),
        port,
        protocol: "TCP".to_owned(),
        backend_port,
    };
    let listeners = [listener("http", 80, 8080), listener("https", 443, 8443)];
    let dummy = [10, 52, 0, 255].into();
    let Write::Create(mut slice) = write(None, &owner(), &listeners, &[], dummy) else { panic!("it is new") };
    let ports = |slice: &Value| {
        slice["ports"].as_array().unwrap().iter().map(|port| port["port"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ports(&slice), [8080, 8443]);
    slice["ports"][0]["port"] = 8443.into();
    let Write::Replace(mended) = write(Some(&stored(slice)), &owner(), &listeners, &[], dummy) else {
        panic!("it has a wrong port")
    };
    assert_eq!(ports(&mended), [8080, 8443]);
}

#[rstest]
#[case::nobody(&[], true)]
#[case::nobody_ready(&[false, false], true)]
#[case::one_ready(&[false, true], false)]
fn the_dummy_is_there_exactly_while_nobody_is_ready(#[case] ready: &[bool], #[case] expected: bool) {
    let backends: Vec<_> =
        ready.iter().zip(11..).map(|(ready, last)| (backend(&format!("web-{last}"), last), *ready)).collect();
    let slice = created(&backends);
    let dummies: Vec<_> = slice["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|endpoint| endpoint["targetRef"]["uid"] == names::DUMMY_ENDPOINT_UID)
        .collect();
    assert_eq!(dummies.len(), usize::from(expected));
    for dummy in dummies {
        let target = json!({"namespace": "shop", "name": "web", "uid": names::DUMMY_ENDPOINT_UID});
        assert_eq!(
            *dummy,
            json!({"addresses": ["10.52.0.255"], "conditions": {"ready": true}, "targetRef": target})
        );
    }
}

#[test]
fn membership_readiness_and_dummy_change_in_one_write_and_then_nothing_is_written() {
    // docs/contract/load-balancer.md#EP-1: in the Go program the dummy goes and comes with every look at an unhealthy
    // load balancer
    let before = stored(created(&[(backend("web-1", 11), false)]));
    assert_eq!(replaced(&before, &[(backend("web-1", 11), false)]), None);
    let after = replaced(&before, &[(backend("web-2", 12), true)]).unwrap();
    let uids: Vec<_> =
        after["endpoints"].as_array().unwrap().iter().map(|e| e["targetRef"]["uid"].clone()).collect();
    assert_eq!(uids, ["uid-web-2"]);
    assert_eq!(replaced(&stored(after), &[(backend("web-2", 12), true)]), None);
}

#[test]
fn what_others_put_on_a_slice_survives_and_is_no_reason_to_write() {
    let mut slice = created(&[(backend("web-1", 11), true)]);
    slice["metadata"]["annotations"]["team"] = "shop".into();
    slice["metadata"]["labels"]["zone"] = "a".into();
    slice["endpoints"][0]["nodeName"] = "host-1".into();
    let slice = stored(slice);
    assert_eq!(replaced(&slice, &[(backend("web-1", 11), true)]), None);
    let after = replaced(&slice, &[(backend("web-1", 11), true), (backend("web-2", 12), true)]).unwrap();
    assert_eq!(after["metadata"]["annotations"]["team"], "shop");
    assert_eq!(after["endpoints"][0]["nodeName"], "host-1");
}

#[test]
fn the_order_of_endpoints_is_no_reason_to_write() {
    let slice = stored(created(&[(backend("web-2", 12), true), (backend("web-1", 11), true)]));
    assert_eq!(replaced(&slice, &[(backend("web-1", 11), true), (backend("web-2", 12), true)]), None);
}

#[test]
fn a_slice_of_the_go_program_is_taken_over_with_its_verdicts() {
    // docs/contract/load-balancer.md#EP-2: an endpoint without targetRef must not end the process
    let mut slice = created(&[(backend("web-1", 11), true), (backend("web-2", 12), false)]);
    slice["metadata"]["labels"].as_object_mut().unwrap().remove(labels::SLICE_MANAGED_BY);
    slice["endpoints"].as_array_mut().unwrap().push(json!({"addresses": ["192.168.7.13"], "conditions": {}}));
    let slice = stored(slice);
    assert_eq!(
        recorded_readiness(&slice),
        BTreeMap::from([(backend("web-1", 11).id, true), (backend("web-2", 12).id, false)])
    );
    let after = replaced(&slice, &[(backend("web-1", 11), true)]).unwrap();
    assert_eq!(after["endpoints"].as_array().unwrap().len(), 1);
}

// docs/contract/load-balancer.md#EP-3
#[test]
fn the_dummy_is_no_verdict_whatever_its_address() {
    let mut slice = created(&[]);
    slice["endpoints"][0]["addresses"] = json!(["192.0.2.1"]);
    assert_eq!(recorded_readiness(&stored(slice)), BTreeMap::new());
}

#[test]
fn an_emptied_slice_is_emptied_once() {
    let slice = stored(created(&[(backend("web-1", 11), true)]));
    let Write::Replace(emptied) = write_empty(&slice) else { panic!("nothing to write") };
    assert_eq!(emptied["endpoints"], json!([]));
    assert_eq!(write_empty(&stored(emptied)), Write::Nothing);
}

/// Backends by number, with their readiness.
fn any_backends() -> impl Strategy<Value = Vec<(Backend, bool)>> {
    proptest::collection::btree_map(1..9_u8, any::<bool>(), 0..6).prop_map(|some| {
        some.into_iter().map(|(last, ready)| (backend(&format!("web-{last}"), last), ready)).collect()
    })
}

proptest! {
    #[test]
    fn from_any_slice_one_write_leads_to_any_other_and_none_follows(
        before in any_backends(),
        after in any_backends(),
    ) {
        let existing = stored(created(&before));
        let written = replaced(&existing, &after).map_or(existing, |slice| RawObject::from_json(slice).unwrap());
        prop_assert_eq!(replaced(&written, &after), None);
        prop_assert_eq!(recorded_readiness(&written), after.iter().map(|(backend, ready)| (backend.id.clone(), *ready)).collect());
        let ready: BTreeSet<bool> = written.endpoints.iter().filter_map(|e| e.conditions.as_ref()?.ready).collect();
        prop_assert!(ready.contains(&true), "somebody is always ready, if only the dummy");
    }
}
