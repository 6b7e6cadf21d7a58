use std::sync::Arc;

use controller_kit::RawObject;
use rstest::rstest;

use super::{
    super::{
        Decision, Write,
        sharing::Secondaries,
        tests::{decided, object, service},
    },
    *,
};

const CHECK: &str = annotations::HEALTH_CHECK_PORT;

/// An object on the host datapath with these listeners, each a port and a node port.
fn leading(listeners: &[(i32, i32)]) -> RawObject<LoadBalancer> {
    let listener = |(port, node_port): &(i32, i32)| json!({"name": format!("tcp-{port}"), "port": port, "protocol": "TCP", "backendPort": node_port});
    let mut json = object("vm", &json!({"address": "10.0.0.9"})).json();
    json["spec"]["listeners"] = listeners.iter().map(listener).collect();
    json["spec"]["healthCheck"] = json!({"port": 30080, "periodSeconds": 5});
    json["spec"]["backendServerSelector"] = json!({"guestcluster.harvesterhci.io/name": ["blue"]});
    RawObject::from_json(json).unwrap()
}

/// The listeners, the health check and whether the object leads to VMs.
fn written(decision: &Decision<Write>) -> (Vec<(i64, i64)>, Value, bool) {
    let Some(Write::Update(json)) = &decision.write else { panic!("{decision:?}") };
    let listeners = json["spec"]["listeners"].as_array().unwrap().iter();
    let number = |it: &Value, key: &str| it[key].as_i64().unwrap();
    let listeners = listeners.map(|it| (number(it, "port"), number(it, "backendPort"))).collect();
    let check = json["spec"]["healthCheck"]["port"].clone();
    (listeners, check, json["spec"].get("backendServerSelector").is_some())
}

#[test]
fn who_wished_for_an_address_that_kube_vip_took_by_itself_is_told_to_demand_it() {
    let annotations = json!({annotations::DATA_PATH: "host", annotations::KUBE_VIP_VIP_HOST: "worker-1"});
    let object = leading(&[(80, 30080)]);
    for stands in [None, Some(&object)] {
        let told = |spec: &Value| {
            let decision = decided(&service(&annotations, spec), stands, |_| ());
            decision.events.iter().map(|event| event.message.as_str()).collect::<String>()
        };
        let part = "anew for the data path host with annotation cloudprovider.harvesterhci.io/ip in place of";
        let part =
            if stands.is_some() { part.replace(" for the data path host", "") } else { part.to_owned() };
        let (wishing, other) = (told(&json!({"loadBalancerIP": "10.0.0.7"})), told(&json!({})));
        assert!(wishing.contains(&part) && !other.contains("in place of"), "{wishing}; {other}");
    }
}

#[rstest]
#[case::host("host", "ClientIP", 1)]
#[case::none("host", "None", 0)]
// kube-proxy in the guest sees to it
#[case::guest("guest", "ClientIP", 0)]
fn session_affinity_is_told_to_have_no_effect_where_nobody_carries_it(
    #[case] path: &str,
    #[case] affinity: &str,
    #[case] expected: usize,
) {
    let wanting = service(&json!({annotations::DATA_PATH: path}), &json!({"sessionAffinity": affinity}));
    let decision = decided(&wanting, None, |_| ());
    assert!(decision.write.is_some(), "it is served all the same: {decision:?}");
    assert_eq!(decision.events.iter().filter(|event| event.reason == "NotSupported").count(), expected);
}

/// docs/contract/data-paths.md#row-12: port 80 of the Service is gone, and its node port 30080 may be another's.
#[rstest]
#[case::check(json!({CHECK: "80"}), json!({}), |_: &mut Seen<'_>| ())]
#[case::local(json!({}), json!({"externalTrafficPolicy": "Local"}), |_: &mut Seen<'_>| ())]
#[case::sctp(json!({}), json!({"ports": [{"port": 443, "nodePort": 30443},
    {"port": 90, "protocol": "SCTP", "nodePort": 30090}]}), |_: &mut Seen<'_>| ())]
#[case::no_node_port(json!({}), json!({"ports": [{"port": 443, "nodePort": 30443}, {"port": 80}]}),
    |_: &mut Seen<'_>| ())]
#[case::too_many(json!({}), json!({"ports": (1..=101).map(|n| json!({"port": n + 442, "nodePort": n + 30442}))
    .collect::<Vec<_>>()}), |_: &mut Seen<'_>| ())]
#[case::ranges(json!({}), json!({"loadBalancerSourceRanges": ["office"]}), |_: &mut Seen<'_>| ())]
#[case::family(json!({}), json!({"ipFamilies": ["IPv6"]}), |_: &mut Seen<'_>| ())]
#[case::vms_not_known(json!({}), json!({}), |seen: &mut Seen<'_>| seen.backends = None)]
#[case::no_nodes(json!({}), json!({}), |seen: &mut Seen<'_>| seen.backends = Some(guest_vms::Backends::default()))]
#[case::not_selectable(json!({}), json!({}), |seen: &mut Seen<'_>| {
    let backends = seen.backends.as_mut().unwrap();
    backends.all.clear();
    backends.eligible = ["x".to_owned()].into();
})]
fn an_object_that_otherwise_stays_as_it_is_leads_to_no_node_port_that_its_service_let_go_of(
    #[case] annotations: Value,
    #[case] spec: Value,
    #[case] change: fn(&mut Seen<'_>),
) {
    let mut all = json!({"ports": [{"port": 443, "nodePort": 30443}]});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let wanting = service(&annotations, &all);
    let decision = decided(&wanting, Some(&leading(&[(80, 30080), (443, 30443)])), change);
    assert_eq!(written(&decision), (vec![(443, 30443)], json!(30443), true));
    // no object is without listeners
    let decision = decided(&wanting, Some(&leading(&[(80, 30080)])), change);
    let (listeners, _, leads) = written(&decision);
    assert_eq!((listeners, leads), (vec![(80, 30080)], false));
    // the rest of it stays
    let Some(Write::Update(json)) = decision.write else { unreachable!() };
    let stays = decided(&wanting, Some(&RawObject::from_json(json).unwrap()), change);
    assert_eq!(stays.write, None);
}

#[test]
fn the_event_about_a_fault_says_whether_the_load_balancer_goes_on() {
    let wanting = service(&json!({CHECK: "80"}), &json!({"ports": [{"port": 443, "nodePort": 30443}]}));
    let told = |listeners: &[(i32, i32)]| {
        let decision = decided(&wanting, Some(&leading(listeners)), |_| ());
        let event = decision.events.iter().find(|event| event.reason == "InvalidHealthCheck");
        event.map(|event| event.message.clone()).unwrap_or_default()
    };
    let (left, nothing) = (told(&[(80, 30080), (443, 30443)]), told(&[(80, 30080)]));
    assert!(left.starts_with("the load balancer stays as it is, but for ports that are gone, for"), "{left}");
    assert!(nothing.starts_with("the load balancer leads to no VM, because"), "{nothing}");
}

/// A secondary has the port that its primary let go of, though the node port behind it is in use.
#[rstest]
#[case::let_go(&[(80, 30080)])]
#[case::given_another_port(&[(80, 30443)])]
fn a_port_that_the_service_let_go_of_is_a_secondarys_on_an_object_that_otherwise_stays_as_it_is(
    #[case] before: &[(i32, i32)],
) {
    let api = json!({"metadata": {"namespace": "shop", "name": "api"},
        "spec": {"ports": [{"port": 80, "nodePort": 30001}]}});
    let api: Service = serde_json::from_value(api).unwrap();
    let wanting = service(&json!({CHECK: "80"}), &json!({"ports": [{"port": 443, "nodePort": 30443}]}));
    let mut object = leading(before).json();
    for leads in [true, false] {
        if !leads {
            object["spec"].as_object_mut().unwrap().remove("backendServerSelector");
        }
        let own = RawObject::from_json(object.clone()).unwrap();
        let decision = decided(&wanting, Some(&own), |seen| {
            seen.secondaries = Secondaries { carried: vec![Arc::new(api.clone())], ..Secondaries::default() };
        });
        assert_eq!(written(&decision), (vec![(80, 30001)], json!(30001), true), "{leads}");
    }
}

/// A secondary that is deleted waits until it is in no object.
#[test]
fn an_object_that_leads_nowhere_has_no_listener_of_a_secondary() {
    let mut json = leading(&[(81, 30001)]).json();
    json["spec"]["listeners"][0]["name"] = json!("api-0123abcd-tcp-81");
    let wanting = service(&json!({CHECK: "80"}), &json!({"ports": [{"port": 443, "nodePort": 30443}]}));
    let decision = decided(&wanting, Some(&RawObject::from_json(json).unwrap()), |_| ());
    let Some(Write::Update(json)) = decision.write else { panic!("{decision:?}") };
    assert_eq!(json["spec"]["listeners"][0]["name"], "tcp-81");
    assert_eq!(json["spec"].get("backendServerSelector"), None);
}
