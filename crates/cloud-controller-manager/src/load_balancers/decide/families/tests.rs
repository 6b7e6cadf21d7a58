use cloud_provider::{Decision, IngressAddress, LoadBalancerState, Publish};
use kube::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    super::{
        Write,
        sharing::{Primary, Sharing},
        tests::{decided, object, reasons, service},
    },
    *,
};

const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;
const GIVEN: &str = annotations::ALLOCATED_ADDRESS;
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

fn spec(families: &[&str], policy: &str) -> Value {
    json!({"ipFamilies": families, "ipFamilyPolicy": policy})
}

/// A Service with these families, for which kube-vip was asked for `given`, and shows `shown`.
fn asking(families: &[&str], policy: &str, given: &str, shown: &[&str]) -> Service {
    let annotations = if given.is_empty() { json!({}) } else { json!({ASKED: given, GIVEN: given}) };
    let mut service = service(&annotations, &spec(families, policy));
    show(&mut service, shown);
    service
}

fn show(service: &mut Service, shown: &[&str]) {
    let ingress: Vec<_> = shown.iter().map(|ip| json!({"ip": ip})).collect();
    service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": ingress}})).unwrap();
}

fn allocation(ip: &str, ipv6: &str) -> Value {
    json!({"allocatedAddress": {"ip": ip, "ipv6IP": ipv6}})
}

/// What kube-vip is asked for by a decision.
fn asked(decision: &Decision<Write>) -> Option<&str> {
    decision.view.annotations.get(ASKED).and_then(Option::as_deref)
}

fn request(families: &[&str], policy: &str, host: bool) -> (Value, Value) {
    let annotations =
        if host { json!({"cloudprovider.harvesterhci.io/data-path": "host"}) } else { json!({}) };
    let Some(Write::Create { json, .. }) =
        decided(&service(&annotations, &spec(families, policy)), None, |_| ()).write
    else {
        panic!("not made")
    };
    let annotations = &json["metadata"]["annotations"];
    (annotations[annotations::IP_FAMILIES].clone(), annotations[annotations::IP_FAMILY_POLICY].clone())
}

// docs/contract/kube-vip.md#two-addresses
#[rstest]
#[case::usual(&["IPv4"], "SingleStack", None)]
#[case::usual_on_a_cluster_of_one_family(&["IPv4"], PREFER, None)]
#[case::of_an_old_server(&[], "", None)]
#[case::ipv6_alone(&["IPv6"], "SingleStack", Some(("IPv6", "SingleStack")))]
#[case::ipv6_on_a_cluster_of_one_family(&["IPv6"], PREFER, Some(("IPv6", "SingleStack")))]
#[case::preferred(&["IPv4", "IPv6"], PREFER, Some(("IPv4,IPv6", PREFER)))]
#[case::in_the_other_order(&["IPv6", "IPv4"], REQUIRE, Some(("IPv6,IPv4", REQUIRE)))]
fn families_are_asked_for_where_they_are_not_one_ipv4_address(
    #[case] families: &[&str],
    #[case] policy: &str,
    #[case] expected: Option<(&str, &str)>,
) {
    let expected = expected.map_or((Value::Null, Value::Null), |(list, policy)| (json!(list), json!(policy)));
    assert_eq!(request(families, policy, false), expected);
}

#[test]
fn an_object_on_the_host_datapath_asks_for_no_families() {
    assert_eq!(request(&["IPv4", "IPv6"], PREFER, true), (Value::Null, Value::Null));
}

#[rstest]
#[case::both(&["IPv4", "IPv6"], PREFER, "10.0.0.9", "fd00::9", Some("10.0.0.9,fd00::9"))]
#[case::in_the_other_order(&["IPv6", "IPv4"], REQUIRE, "10.0.0.9", "fd00::9", Some("fd00::9,10.0.0.9"))]
#[case::preferred_and_one_there(&["IPv6", "IPv4"], PREFER, "10.0.0.9", "", Some("10.0.0.9"))]
#[case::preferred_and_the_other_there(&["IPv4", "IPv6"], PREFER, "fd00::9", "", Some("fd00::9"))]
#[case::required_and_one_there(&["IPv4", "IPv6"], REQUIRE, "10.0.0.9", "", None)]
#[case::ipv6(&["IPv6"], "SingleStack", "fd00::9", "", Some("fd00::9"))]
// a load balancer that knows no families
#[case::ipv6_and_an_ipv4_address(&["IPv6"], "SingleStack", "10.0.0.9", "", None)]
#[case::ipv4_alone(&["IPv4"], "SingleStack", "10.0.0.9", "fd00::9", Some("10.0.0.9"))]
#[case::ipv4_and_an_ipv6_address(&["IPv4"], "SingleStack", "fd00::9", "", None)]
#[case::a_lease(&["IPv4", "IPv6"], PREFER, "0.0.0.0", "", Some("0.0.0.0"))]
#[case::a_lease_where_both_are_required(&["IPv4", "IPv6"], REQUIRE, "0.0.0.0", "", None)]
fn kube_vip_is_asked_for_the_addresses_of_the_services_families_in_their_order(
    #[case] families: &[&str],
    #[case] policy: &str,
    #[case] ip: &str,
    #[case] ipv6: &str,
    #[case] expected: Option<&str>,
) {
    let object = object("cluster", &allocation(ip, ipv6));
    let decision = decided(&asking(families, policy, "", &[]), Some(&object), |_| ());
    assert_eq!(asked(&decision), expected);
    assert_eq!(decision.view.annotations.get(GIVEN).cloned().flatten().as_deref(), expected);
    assert_eq!(decision.view.publish, Publish::NotOurs);
    let LoadBalancerState::Present { addresses } = decision.view.load_balancer else { panic!("not there") };
    let shown: Vec<_> = expected.filter(|it| *it != "0.0.0.0").into_iter().flat_map(listed).collect();
    assert_eq!(addresses, shown.iter().map(|ip| IngressAddress::parse(ip)).collect::<Vec<_>>());
}

#[rstest]
#[case::first_the_one_with_a_field_for_it(&["IPv6", "IPv4"], &["fd00::9", "10.0.0.9"], Some("10.0.0.9"))]
// kube-vip may announce the former first address still
#[case::never_the_second(&["IPv4", "IPv6"], &["10.0.0.8", "fd00:0::9"], None)]
#[case::of_a_family_that_the_service_does_not_have(&["IPv4"], &["fd00::9"], None)]
#[case::in_other_letters(&["IPv4", "IPv6"], &["::ffff:10.0.0.9", "10.0.0.9"], Some("10.0.0.9"))]
fn harvester_is_told_the_first_address_once_kube_vip_shows_it(
    #[case] families: &[&str],
    #[case] shown: &[&str],
    #[case] expected: Option<&str>,
) {
    let object = object("cluster", &allocation("10.0.0.9", "fd00::9"));
    let decision = decided(&asking(families, PREFER, "", shown), Some(&object), |_| ());
    let Some(Write::Update(json)) = decision.write else { panic!("{decision:?}") };
    assert_eq!(json["status"]["address"].as_str(), expected);
}

#[rstest]
#[case::both(&["10.0.0.9", "fd00::9"], None)]
#[case::in_other_letters(&["10.0.0.9", "FD00:0::9"], None)]
#[case::one(&["10.0.0.9"], Some("announce fd00::9 and"))]
#[case::none(&[], Some("announce 10.0.0.9,fd00::9 and"))]
fn an_address_of_two_that_kube_vip_does_not_show_is_named(
    #[case] shown: &[&str],
    #[case] expected: Option<&str>,
) {
    let object = object("cluster", &allocation("10.0.0.9", "fd00::9"));
    let service = asking(&["IPv4", "IPv6"], PREFER, "10.0.0.9,fd00::9", shown);
    let decision = decided(&service, Some(&object), |seen| seen.waited = Duration::from_secs(60));
    let event = decision.events.iter().find(|event| event.reason == "AddressNotPublished");
    let message = event.map(|event| event.message.as_str());
    match expected {
        None => assert_eq!(message, None),
        Some(part) => {
            let message = message.unwrap_or_default();
            assert!(message.contains(part) && message.contains("from version 0.7 on"), "{message}");
        }
    }
}

const UNREADY: &str = "no pool of IPv6 matches";

#[rstest]
#[case::not_yet(&["IPv4", "IPv6"], REQUIRE, false, 9, None, Some(1))]
#[case::no_answer(&["IPv4", "IPv6"], REQUIRE, false, 10, Some("no IPv6 address, and the Service requires both"), None)]
#[case::an_answer(&["IPv4", "IPv6"], REQUIRE, true, 0, Some(UNREADY), Some(10))]
// an address of the wrong family is an answer
#[case::ipv6_alone(&["IPv6"], "SingleStack", false, 0, Some("gave 10.0.0.9 and no IPv6 address"), Some(10))]
#[case::preferred(&["IPv4", "IPv6"], PREFER, true, 99, None, None)]
#[case::usual(&["IPv4"], "SingleStack", false, 99, None, None)]
fn a_family_that_harvester_does_not_give_is_told(
    #[case] families: &[&str],
    #[case] policy: &str,
    #[case] answered: bool,
    #[case] waited: u64,
    #[case] expected: Option<&str>,
    #[case] again: Option<u64>,
) {
    let mut status = allocation("10.0.0.9", "");
    if answered {
        status["conditions"] = json!([{"type": "Ready", "status": "False", "message": UNREADY}]);
    }
    let service = asking(families, policy, "", &["10.0.0.9"]);
    let decision = decided(&service, Some(&object("cluster", &status)), |seen| {
        seen.waited = Duration::from_secs(waited);
    });
    let event = decision.events.iter().find(|event| event.reason == "IPFamilyNotSupported");
    let message = event.map(|event| event.message.as_str());
    assert!(
        expected.map_or(message.is_none(), |part| message.is_some_and(|it| it.contains(part))),
        "{message:?}"
    );
    assert_eq!(decision.view.waiting, None, "one Event is enough");
    assert_eq!(decision.view.again, again.map(Duration::from_secs));
}

// docs/contract/addresses.md#9
#[test]
fn while_the_load_balancer_shows_none_of_two_required_addresses_its_sentence_names_the_family() {
    let why = "two addresses are required: no IPv6 address: no matched IPPool";
    let ready = json!([{"type": "Ready", "status": "False", "reason": "NoMatchingPool", "message": why}]);
    let service = asking(&["IPv4", "IPv6"], REQUIRE, "", &[]);
    let mut status = json!({"conditions": ready});
    let decision = decided(&service, Some(&object("cluster", &status)), |_| ());
    assert_eq!((decision.view.waiting.as_deref(), asked(&decision)), (Some(why), None));
    status["conditions"][0] = json!({"type": "Ready", "status": "True"});
    status["allocatedAddress"] = allocation("10.0.0.9", "fd00::9")["allocatedAddress"].clone();
    let decision = decided(&service, Some(&object("cluster", &status)), |_| ());
    assert_eq!((decision.view.waiting.as_deref(), asked(&decision)), (None, Some("10.0.0.9,fd00::9")));
}

#[test]
fn a_sentence_about_a_lease_says_that_dhcp_has_one_family() {
    let mut object = object("cluster", &allocation("0.0.0.0", "")).json();
    object["spec"]["ipam"] = "dhcp".into();
    let object = controller_kit::RawObject::from_json(object).unwrap();
    let decision = decided(&asking(&["IPv6"], "SingleStack", "", &[]), Some(&object), |_| ());
    let event = decision.events.iter().find(|event| event.reason == "IPFamilyNotSupported");
    let message = &event.expect("it is told").message;
    assert!(message.contains("DHCP gives IPv4 addresses alone") && !message.contains("0.0.0.0"), "{message}");
}

/// Carries decisions out until nothing changes: annotations first, then the status. Answers all Events.
fn settle(service: &mut Service, status: &Value) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    for _ in 0..10 {
        let decision = decided(service, Some(&object("cluster", status)), |_| ());
        told.extend(decision.events.iter().map(|event| (event.reason, event.message.clone())));
        let before = service.clone();
        for (key, value) in decision.view.annotations {
            match value {
                Some(value) => drop(service.annotations_mut().insert(key, value)),
                None => drop(service.annotations_mut().remove(&key)),
            }
        }
        if *service != before {
            continue;
        }
        match decision.view.publish {
            Publish::Addresses(addresses) => {
                let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                show(service, &texts.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Publish::Withdrawn => show(service, &[]),
            Publish::NotOurs | Publish::Unchanged => {}
        }
        if *service == before {
            told.sort();
            // an Event is recorded once
            told.dedup();
            return told;
        }
    }
    panic!("it does not come to rest: {service:?}")
}

fn state(service: &Service) -> (Option<&str>, Option<&str>, Vec<&str>) {
    let text = |key: &str| service.annotations().get(key).map(String::as_str);
    (text(ASKED), text(GIVEN), super::super::ingress(service))
}

const TWO: &[&str] = &["10.0.0.9", "fd00::9"];

#[rstest]
#[case::ipv6(PREFER, "10.0.0.9", "", &["10.0.0.9"], "fd00::9")]
#[case::ipv4(PREFER, "", "fd00::9", &["fd00::9"], "10.0.0.9")]
#[case::of_required_ones(REQUIRE, "10.0.0.9", "", &["10.0.0.9"], "fd00::9")]
fn an_address_that_is_taken_back_of_one_family_leaves_the_other_alone(
    #[case] policy: &str,
    #[case] ip: &str,
    #[case] ipv6: &str,
    #[case] left: &[&str],
    #[case] lost: &str,
) {
    let mut service = asking(&["IPv4", "IPv6"], policy, "10.0.0.9,fd00::9", TWO);
    let mut status = allocation(ip, ipv6);
    status["conditions"] = json!([{"type": "Ready", "status": "False", "message": UNREADY}]);
    let told = settle(&mut service, &status);
    assert_eq!(state(&service), (Some(left[0]), Some(left[0]), left.to_vec()));
    let taken: Vec<_> = told.iter().filter(|(reason, _)| *reason == "AddressTakenBack").collect();
    assert!(taken.len() == 1 && taken[0].1.contains(&format!("took {lost} back")), "{told:?}");
    let says_what_is_missing = told.iter().any(|(reason, message)| {
        *reason == "IPFamilyNotSupported" && message.contains("it goes on with 10.0.0.9")
    });
    assert_eq!(says_what_is_missing, policy == REQUIRE);
    // and the rest of it
    let gone = json!({"conditions": [{"type": "Ready", "status": "False", "message": "taken back"}]});
    settle(&mut service, &gone);
    assert_eq!(state(&service), (None, Some(left[0]), vec![]));
}

#[test]
fn a_crash_after_the_annotation_was_written_forgets_no_address_in_the_status() {
    let mut service = asking(&["IPv4", "IPv6"], PREFER, "10.0.0.9", TWO);
    service.annotations_mut().insert(GIVEN.into(), "10.0.0.9,fd00::9".into());
    settle(&mut service, &allocation("10.0.0.9", ""));
    assert_eq!(state(&service), (Some("10.0.0.9"), Some("10.0.0.9"), vec!["10.0.0.9"]));
}

#[test]
fn all_addresses_go_where_the_second_is_taken_back_while_the_status_still_shows_the_first_that_went() {
    let mut service = asking(&["IPv4", "IPv6"], PREFER, "10.0.0.9", TWO);
    service.annotations_mut().insert(GIVEN.into(), "10.0.0.9,fd00::9".into());
    settle(
        &mut service,
        &json!({"conditions": [{"type": "Ready", "status": "False", "message": "taken back"}]}),
    );
    assert_eq!(state(&service), (None, Some("10.0.0.9,fd00::9"), vec![]));
}

// Kubernetes allows the change while the Service lives
#[rstest]
#[case::prefers(PREFER)]
#[case::requires(REQUIRE)]
fn a_service_that_gets_a_second_family_and_gives_it_up_keeps_its_first_address(#[case] policy: &str) {
    let mut service = asking(&["IPv4"], "SingleStack", "10.0.0.9", &["10.0.0.9"]);
    assert_eq!(settle(&mut service, &allocation("10.0.0.9", "")), []);
    let set = |service: &mut Service, families: &[&str], policy: &str| {
        let new = super::super::tests::service(&json!({}), &spec(families, policy));
        service.spec = new.spec;
    };
    set(&mut service, &["IPv4", "IPv6"], policy);
    let asked = |service: &Service, status: &Value| {
        let decision = decided(service, Some(&object("cluster", status)), |_| ());
        let Some(Write::Update(json)) = decision.write else { panic!("{decision:?}") };
        json["metadata"]["annotations"][annotations::IP_FAMILIES].clone()
    };
    assert_eq!(asked(&service, &allocation("10.0.0.9", "")), "IPv4,IPv6");
    assert_eq!(settle(&mut service, &allocation("10.0.0.9", "")), []);
    assert_eq!(state(&service), (Some("10.0.0.9"), Some("10.0.0.9"), vec!["10.0.0.9"]));

    settle(&mut service, &allocation("10.0.0.9", "fd00::9"));
    assert_eq!(state(&service).0, Some("10.0.0.9,fd00::9"));
    show(&mut service, TWO);

    // kube-vip is asked for it no more before Harvester hears of it: the write of the object comes last
    set(&mut service, &["IPv4"], "SingleStack");
    assert_eq!(asked(&service, &allocation("10.0.0.9", "fd00::9")), Value::Null);
    assert_eq!(settle(&mut service, &allocation("10.0.0.9", "fd00::9")), [], "nobody took anything back");
    assert_eq!(state(&service), (Some("10.0.0.9"), Some("10.0.0.9"), vec!["10.0.0.9"]));
}

#[rstest]
#[case::preferred(PREFER, false, None, Some("one of the two that it prefers"))]
#[case::required(REQUIRE, false, Some("use PreferDualStack, or data-path: guest"), None)]
// it was served before families mattered
#[case::required_and_served(REQUIRE, true, None, Some("requires both families"))]
fn the_host_datapath_serves_one_family(
    #[case] policy: &str,
    #[case] exists: bool,
    #[case] refused: Option<&str>,
    #[case] told: Option<&str>,
) {
    let host = json!({"cloudprovider.harvesterhci.io/data-path": "host"});
    let service = service(&host, &spec(&["IPv6", "IPv4"], policy));
    let object = exists.then(|| object("vm", &json!({"address": "10.0.0.9"})));
    let decision = decided(&service, object.as_ref(), |_| ());
    assert_eq!(decision.write.is_none(), refused.is_some());
    assert_eq!(reasons(&decision), ["IPFamilyNotSupported"]);
    let message = &decision.events[0].message;
    assert!(message.contains(refused.or(told).unwrap()), "{message}");
}

#[rstest]
#[case::both(&["IPv6", "IPv4"], REQUIRE, false, Ok("fd00::9,10.0.0.9"))]
#[case::one(&["IPv6"], "SingleStack", false, Ok("fd00::9"))]
#[case::a_preferred_one(&["IPv4", "IPv6"], PREFER, false, Ok("10.0.0.9,fd00::9"))]
fn a_secondary_gets_the_addresses_of_its_families(
    #[case] families: &[&str],
    #[case] policy: &str,
    #[case] uses: bool,
    #[case] expected: Result<&str, &str>,
) {
    let of = |primary: &str| of_secondary(&asking(families, policy, "", &[]), primary, uses);
    assert_eq!(of("10.0.0.9,fd00::9"), expected.map(str::to_owned).map_err(str::to_owned));
}

#[rstest]
#[case::preferred(&["IPv4", "IPv6"], PREFER, false, Ok("10.0.0.9"))]
#[case::required(&["IPv4", "IPv6"], REQUIRE, false, Err("IPv6"))]
#[case::required_and_shared_before(&["IPv4", "IPv6"], REQUIRE, true, Ok("10.0.0.9"))]
#[case::only_the_other(&["IPv6"], "SingleStack", true, Err("IPv6"))]
fn a_secondary_of_a_primary_with_one_family_gets_what_fits(
    #[case] families: &[&str],
    #[case] policy: &str,
    #[case] uses: bool,
    #[case] expected: Result<&str, &str>,
) {
    let fits = of_secondary(&asking(families, policy, "", &[]), "10.0.0.9", uses);
    assert_eq!(fits, expected.map(str::to_owned).map_err(str::to_owned));
}

#[test]
fn a_secondary_lets_go_of_the_address_that_its_primary_lost() {
    let mut service = asking(&["IPv4", "IPv6"], PREFER, "10.0.0.9,fd00::9", TWO);
    for _ in 0..3 {
        let primary = Primary {
            service: controller_kit::ObjectKey::new("shop", "main"),
            path: Datapath::Guest,
            address: Some("10.0.0.9".to_owned()),
            network: None,
            carries: true,
            taken_back: false,
        };
        let view = decided(&service, None, |seen| seen.sharing = Sharing::With(primary)).view;
        for (key, value) in view.annotations {
            if let Some(value) = value {
                service.annotations_mut().insert(key, value);
            }
        }
        if let Publish::Addresses(addresses) = view.publish {
            let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            show(&mut service, &texts.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    assert_eq!(state(&service), (Some("10.0.0.9"), Some("10.0.0.9"), vec!["10.0.0.9"]));
}

const ALL: &[&[&str]] = &[&["IPv4"], &["IPv6"], &["IPv4", "IPv6"], &["IPv6", "IPv4"]];

proptest::proptest! {
    // one decision may be made on any state: none asks kube-vip for what Harvester did not give
    #[test]
    fn kube_vip_is_asked_for_nothing_that_harvester_did_not_give(
        families in proptest::sample::select(ALL),
        policy in proptest::sample::select(&["SingleStack", PREFER, REQUIRE][..]),
        ip in proptest::sample::select(&["", "10.0.0.9", "fd00::8"][..]),
        ipv6 in proptest::sample::select(&["", "fd00::9"][..]),
        given in proptest::sample::select(&["", "10.0.0.9", "10.0.0.9,fd00::9", "10.0.0.7,fd00::7", ",x,"][..]),
        shown in proptest::sample::subsequence(vec!["10.0.0.9", "fd00::9", "10.0.0.7", "fd00::7"], 0..4),
    ) {
        let mut service = asking(families, policy, given, &shown);
        let status = allocation(ip, ipv6);
        settle(&mut service, &status);
        let object = object("cluster", &status);
        let has = allocated(&object);
        let wanted = Families::of(&service);
        if !served(&service, &object).is_empty() {
            let (asked, _, shown) = state(&service);
            for address in asked.into_iter().flat_map(listed) {
                proptest::prop_assert!(has.contains(&address), "{address} of {has:?}");
                proptest::prop_assert_eq!(wanted.pick(&[address]), [address]);
            }
            for address in given.split(',').filter(|it| shown.contains(it)) {
                let is_of_a_family_that_is_there = has.iter().any(|it| Family::of(it) == Family::of(address));
                proptest::prop_assert!(is_of_a_family_that_is_there, "{address} is shown");
            }
        }
    }
}
