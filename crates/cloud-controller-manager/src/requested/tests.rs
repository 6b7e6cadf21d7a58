use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const NONE: Aliases = Aliases { metallb: false, cilium: false };
const BOTH: Aliases = Aliases { metallb: true, cilium: true };

fn service(annotations: &Value, spec: &Value) -> Service {
    let json =
        json!({"metadata": {"name": "web", "namespace": "shop", "annotations": annotations}, "spec": spec});
    serde_json::from_value(json).unwrap()
}

fn read(service: &Service, aliases: Aliases) -> (Requested, Vec<Explanation>) {
    let mut faults = Vec::new();
    let requested = Requested::of(service, aliases, &mut faults);
    (requested, faults)
}

fn demanded(text: &str) -> Result<String, String> {
    let (requested, faults) = read(&service(&json!({annotations::SERVICE_IP: text}), &json!({})), NONE);
    match (requested.demand, &faults[..]) {
        (Asked::For(addresses), []) => Ok(addresses.to_string()),
        (Asked::Nothing, []) => Ok(String::new()),
        (Asked::Malformed, [fault]) => Err(fault.message.clone()),
        other => panic!("{other:?}"),
    }
}

// docs/contract/addresses.md#5
#[rstest]
#[case::one("10.0.0.7", "10.0.0.7")]
#[case::blanks(" 10.0.0.7 ", "10.0.0.7")]
#[case::both(" 10.0.0.7 , fd00::7", "10.0.0.7,fd00::7")]
#[case::the_other_way_round("fd00::7,10.0.0.7", "10.0.0.7,fd00::7")]
#[case::long_form("fd00:0:0:0::0007", "fd00::7")]
// docs/contract/cloud-controller-manager.md#L18
#[case::empty(" ", "")]
fn a_demand_names_an_address_of_each_family_at_most(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(demanded(text).as_deref(), Ok(expected));
}

#[rstest]
#[case::a_name("web.example.org", "is no IP address")]
#[case::a_prefix("10.0.0.0/24", "is no IP address")]
#[case::a_list_without_end("10.0.0.7,", "is no IP address")]
#[case::with_zone("fe80::1%eth0", "is no IP address")]
#[case::two_of_one_family("10.0.0.7,10.0.0.8", "two addresses of one family")]
#[case::two_of_the_other("fd00::7,fd00::8", "two addresses of one family")]
#[case::the_same_twice("10.0.0.7,10.0.0.7", "two addresses of one family")]
#[case::unspecified("0.0.0.0", "no load balancer can have")]
#[case::unspecified_v6("::", "no load balancer can have")]
#[case::loopback("127.0.0.1", "no load balancer can have")]
#[case::loopback_v6("::1", "no load balancer can have")]
#[case::multicast("224.0.0.5", "no load balancer can have")]
#[case::multicast_v6("ff02::1", "no load balancer can have")]
#[case::broadcast("255.255.255.255", "no load balancer can have")]
#[case::link_local("169.254.0.1", "no load balancer can have")]
#[case::link_local_v6("fe80::1", "no load balancer can have")]
#[case::v4_in_v6("::ffff:10.0.0.7", "no load balancer can have")]
fn a_wrong_demand_is_a_fault_that_names_key_value_and_form(#[case] text: &str, #[case] part: &str) {
    let message = demanded(text).unwrap_err();
    let named = ["cloudprovider.harvesterhci.io/ip", text, part, "v4,v6"];
    assert!(named.iter().all(|named| message.contains(named)), "{message}");
}

#[test]
fn requests_of_ten_thousand_characters_are_told_in_part() {
    let long = "9".repeat(10_000);
    let annotations = json!({annotations::SERVICE_IP: long, annotations::SERVICE_IP_POOL: long});
    let (requested, faults) = read(&service(&annotations, &json!({"loadBalancerIP": long})), NONE);
    let told =
        faults.iter().map(|fault| &fault.message).chain(requested.events.iter().map(|event| &event.message));
    let lengths: Vec<_> = told.map(String::len).collect();
    assert!(lengths.len() == 3 && lengths.iter().all(|length| *length < 300), "{lengths:?}");
    assert_eq!(
        (requested.demand, requested.wish, requested.pool),
        (Asked::Malformed, None, Asked::Malformed)
    );
}

#[rstest]
#[case::usual("10.0.0.7", &[], Some("10.0.0.7"), 0)]
#[case::both("10.0.0.7,fd00::7", &["IPv4", "IPv6"], Some("10.0.0.7,fd00::7"), 0)]
#[case::of_another_family("fd00::7", &["IPv4"], None, 1)]
#[case::of_one_family_too_many("10.0.0.7,fd00::7", &["IPv4"], Some("10.0.0.7"), 1)]
#[case::wrong("my-address", &[], None, 1)]
#[case::empty("", &[], None, 0)]
fn a_wrong_wish_is_told_and_forbids_nothing(
    #[case] text: &str,
    #[case] families: &[&str],
    #[case] wish: Option<&str>,
    #[case] told: usize,
) {
    let spec = json!({"loadBalancerIP": text, "ipFamilies": families});
    let (requested, faults) = read(&service(&json!({}), &spec), NONE);
    assert_eq!(requested.wish.map(|wish| wish.to_string()).as_deref(), wish);
    assert_eq!((requested.events.len(), faults), (told, vec![]));
    assert!(requested.events.iter().all(|event| event.message.contains("spec.loadBalancerIP")));
}

#[test]
fn a_demand_for_a_family_that_the_service_does_not_have_is_a_fault() {
    let annotations = json!({annotations::SERVICE_IP: "10.0.0.7,fd00::7"});
    let reasons = |families: &[&str]| {
        let (_, faults) = read(&service(&annotations, &json!({"ipFamilies": families})), NONE);
        faults.iter().map(|fault| fault.reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&["IPv4"]), ["InvalidRequestedAddress"]);
    assert_eq!(reasons(&["IPv6", "IPv4"]), [""; 0]);
}

#[rstest]
#[case::usual("edge", Asked::For("edge".to_owned()))]
#[case::blanks(" edge.v2 ", Asked::For("edge.v2".to_owned()))]
#[case::empty("", Asked::Nothing)]
#[case::upper_case("Edge", Asked::Malformed)]
#[case::a_path("default/edge", Asked::Malformed)]
#[case::a_dash_first("-edge", Asked::Malformed)]
#[case::json("{\"name\": \"edge\"}", Asked::Malformed)]
fn a_pool_is_asked_for_by_a_name_that_a_pool_can_have(#[case] text: &str, #[case] expected: Asked<String>) {
    let (requested, faults) = read(&service(&json!({annotations::SERVICE_IP_POOL: text}), &json!({})), NONE);
    let reasons: Vec<_> = faults.iter().map(|fault| fault.reason).collect();
    let expected_reasons: &[&str] = if expected == Asked::Malformed { &["InvalidIPPool"] } else { &[] };
    assert_eq!((requested.pool, &reasons[..]), (expected, expected_reasons));
}

#[rstest]
#[case::metallb("metallb.io/loadBalancerIPs", "metallb.io/address-pool")]
#[case::metallb_before_0_15("metallb.universe.tf/loadBalancerIPs", "metallb.universe.tf/address-pool")]
#[case::cilium("lbipam.cilium.io/ips", "")]
#[case::cilium_before_1_15("io.cilium/lb-ipam-ips", "")]
fn annotations_of_other_programs_count_only_where_the_flag_says_so(
    #[case] address: &str,
    #[case] pool: &str,
) {
    let service = service(&json!({address: "10.0.0.7,fd00::7", pool: "edge"}), &json!({}));
    let asked = |aliases| {
        let (requested, faults) = read(&service, aliases);
        assert_eq!((faults, &requested.events[..]), (vec![], &[][..]));
        (requested.demand, requested.pool)
    };
    assert_eq!(asked(NONE), (Asked::Nothing, Asked::Nothing));
    let addresses = Addresses::parse("10.0.0.7,fd00::7").unwrap();
    let pool = if pool.is_empty() { Asked::Nothing } else { Asked::For("edge".to_owned()) };
    assert_eq!(asked(BOTH), (Asked::For(addresses), pool));
    let is_metallb = address.starts_with("metallb");
    assert_eq!(asked(Aliases { metallb: !is_metallb, cilium: is_metallb }).0, Asked::Nothing);
}

#[rstest]
#[case::another("10.0.0.8", 1)]
#[case::the_same("10.0.0.7", 0)]
#[case::empty("", 0)]
fn our_own_annotation_wins_and_the_other_is_told(#[case] alias: &str, #[case] told: usize) {
    let annotations = json!({annotations::SERVICE_IP: "10.0.0.7", "metallb.io/loadBalancerIPs": alias});
    let (requested, faults) = read(&service(&annotations, &json!({})), BOTH);
    assert_eq!(requested.demand, Asked::For(Addresses::parse("10.0.0.7").unwrap()));
    assert_eq!((requested.events.len(), faults), (told, vec![]));
    assert!(requested.events.iter().all(|event| event.message.contains("metallb.io/loadBalancerIPs")));
}

#[test]
fn a_wrong_alias_is_named_by_its_own_key() {
    let (_, faults) = read(&service(&json!({"lbipam.cilium.io/ips": "10.0.0.7,10.0.0.8"}), &json!({})), BOTH);
    assert!(faults.len() == 1 && faults[0].message.contains("lbipam.cilium.io/ips"), "{faults:?}");
}

#[test]
fn a_key_for_sharing_of_another_program_is_told_to_have_no_effect() {
    let annotations =
        json!({"metallb.universe.tf/allow-shared-ip": "a", "lbipam.cilium.io/sharing-key": "b"});
    let service = service(&annotations, &json!({}));
    let (requested, _) = read(&service, BOTH);
    let [event] = &requested.events[..] else { panic!("{requested:?}") };
    assert!(event.message.contains("allow-shared-ip") && event.message.contains("primary-service"));
    assert_eq!(read(&service, NONE).0, Requested::default());
}

#[test]
fn with_dhcp_a_demand_is_a_fault_and_the_rest_is_told() {
    let annotations = json!({annotations::SERVICE_IP_POOL: "edge", annotations::SERVICE_IP: "10.0.0.7"});
    let (requested, _) = read(&service(&annotations, &json!({"loadBalancerIP": "10.0.0.8"})), NONE);
    let (mut faults, mut events) = (Vec::new(), Vec::new());
    assert_eq!(requested.with_ipam(Ipam::Pool, &mut faults, &mut events), requested);
    assert_eq!((faults.len(), events.len()), (0, 0));
    assert_eq!(requested.with_ipam(Ipam::Dhcp, &mut faults, &mut events), Requested::default());
    let reasons: Vec<_> = faults.iter().map(|fault| fault.reason).collect();
    assert_eq!((&reasons[..], events.len()), (&["RequestedAddressNotUsed"][..], 1));
    assert!(events[0].message.contains("spec.loadBalancerIP, cloudprovider.harvesterhci.io/ip-pool"));
    assert!(events[0].message.contains("remove that field"), "{}", events[0].message);
}
