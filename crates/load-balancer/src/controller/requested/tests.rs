use harvester_api::{LoadBalancerSpec, LoadBalancerStatus};
use rstest::rstest;
use serde_json::json;

use super::*;

fn asking(wish: &str, demand: &str) -> LoadBalancer {
    let mut lb = LoadBalancer::new("web", LoadBalancerSpec::default());
    lb.metadata.namespace = Some("shop".into());
    for (key, text) in [(annotations::REQUESTED_IP, wish), (annotations::REQUESTED_IP_STRICT, demand)] {
        lb.annotations_mut().insert(key.to_owned(), text.to_owned());
    }
    lb
}

fn told(mut lb: LoadBalancer, reason: &str, message: &str) -> LoadBalancer {
    let ready = json!({"type": condition::READY, "status": "False", "reason": reason, "message": message});
    let conditions = vec![serde_json::from_value(ready).unwrap()];
    lb.status = Some(LoadBalancerStatus { conditions, ..LoadBalancerStatus::default() });
    lb
}

#[rstest]
#[case::nothing("", " ", None)]
#[case::a_wish("10.0.0.5", "", Some((&["10.0.0.5"][..], false)))]
#[case::a_demand_counts_first("10.0.0.5", "10.0.0.6", Some((&["10.0.0.6"][..], true)))]
#[case::both_families(" 10.0.0.5 , FD00::5", "", Some((&["10.0.0.5", "fd00::5"][..], false)))]
#[case::mapped("::ffff:10.0.0.5", "", Some((&["10.0.0.5"][..], false)))]
fn an_annotation_asks_for_an_address_of_each_family(
    #[case] wish: &str,
    #[case] demand: &str,
    #[case] expected: Option<(&[&str], bool)>,
) {
    let expected = expected.map_or(Requested::Nothing, |(addresses, is_demand)| {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Requested::Addresses { addresses, is_demand }
    });
    assert_eq!(of(&asking(wish, demand)), expected);
}

#[rstest]
#[case::a_name("web.example.com")]
#[case::a_prefix("10.0.0.0/24")]
#[case::of_one_family_twice("10.0.0.5,10.0.0.6")]
#[case::three("10.0.0.5,fd00::5,10.0.0.6")]
#[case::an_empty_part("10.0.0.5,")]
#[case::huge(&"9".repeat(10_000))]
#[case::many(&"10.0.0.5,".repeat(10_000))]
fn what_is_no_address_is_shown_in_part_with_what_to_write(#[case] text: &str) {
    let Requested::Unreadable { why, is_demand: true } = of(&asking("", text)) else { panic!("it was read") };
    assert!(why.starts_with("annotation cloudprovider.harvesterhci.io/requested-ip-strict: \""), "{why}");
    assert!(why.contains("is no address; write an IPv4 address") && why.len() < 300, "{why}");
}

// to wait for a pool that gives it would be to wait for ever
#[rstest]
#[case::none("0.0.0.0")]
#[case::none_of_the_other_family("10.0.0.5,::")]
#[case::loopback("127.0.0.1")]
#[case::multicast("224.0.0.5")]
#[case::all("255.255.255.255")]
fn an_address_that_nobody_can_have_is_not_waited_for(#[case] text: &str) {
    let Requested::Unreadable { why, is_demand: true } = of(&asking("", text)) else { panic!("it was read") };
    assert!(why.contains("is no address that anybody can have; write an IPv4 address"), "{why}");
}

#[rstest]
#[case::in_the_same_namespace(Obstacle::InUse(Some("shop/api".into())), "load balancer shop/api had it when this one asked")]
#[case::in_another(Obstacle::InUse(Some("secret/api".into())), "it is in use")]
#[case::a_machine_of_another_program(Obstacle::InUse(Some("capi".into())), "it is in use")]
#[case::on_its_way(Obstacle::InUse(None), "it is in use")]
#[case::nowhere(Obstacle::NotInPool(None), "no pool that may serve this load balancer gives it")]
#[case::not_in_the_named_pool(Obstacle::NotInPool(Some("edge".into())), "pool edge does not give it")]
fn a_holder_is_named_within_its_namespace_only(#[case] obstacle: Obstacle, #[case] why: &str) {
    let address = [10, 0, 0, 5].into();
    let wish = wish_refused(&asking("10.0.0.5", ""), address, &obstacle);
    assert_eq!(wish, format!("requested address 10.0.0.5 is not used: {why}"));
    let demand = demand_waits(&asking("", "10.0.0.5"), address, &obstacle, "; x stays until then");
    assert!(
        demand.starts_with(&format!("requested address 10.0.0.5 is not to be had: {why}; waiting")),
        "{demand}"
    );
    assert!(demand.ends_with("; x stays until then"), "{demand}");
}

// a tenant with thousands of them would make as many writes with each new holder
#[test]
fn the_sentence_about_a_taken_address_stays_when_its_holder_changes() {
    let address = [10, 0, 0, 5].into();
    let held_by = |name: &str| Obstacle::InUse(Some(format!("shop/{name}")));
    let first = demand_waits(&asking("", "10.0.0.5"), address, &held_by("api"), "");
    let lb = told(asking("", "10.0.0.5"), "AddressInUse", &first);
    assert_eq!(demand_waits(&lb, address, &held_by("db"), ""), first);
    assert_ne!(demand_waits(&lb, address, &held_by("db"), "; 10.0.0.9 stays until then"), first);
    assert_ne!(demand_waits(&lb, [10, 0, 0, 6].into(), &held_by("api"), ""), first);
    let of_both = format!("two addresses are required: no IPv4 address: {first}; no IPv6 address: x");
    let two = told(asking("", "10.0.0.5"), "AddressInUse", &of_both);
    assert_eq!(demand_waits(&two, address, &held_by("db"), ""), first);
    let other = demand_waits(&lb, address, &Obstacle::NotInPool(None), "");
    assert!(other.contains("no pool that may serve"), "{other}");
}

#[test]
fn a_wish_that_was_answered_is_known_by_the_condition_whatever_else_it_says() {
    let sentence = wish_refused(&asking("10.0.0.5", ""), [10, 0, 0, 5].into(), &Obstacle::InUse(None));
    let lb = told(asking("10.0.0.5", ""), "NoBackends", &format!("no running backend servers; {sentence}"));
    assert_eq!(refused_wish(&lb, [10, 0, 0, 5].into()), Some(sentence));
    assert_eq!(refused_wish(&lb, [10, 0, 0, 50].into()), None);
    assert_eq!(refused_wish(&asking("10.0.0.5", ""), [10, 0, 0, 5].into()), None);
}

#[rstest]
#[case::nothing_else("", "requested address 10.0.0.5 is not used: it is in use")]
#[case::of_two_families(
    "no field; ",
    "requested address 10.0.0.5 is not used: it is in use; requested address fd00::5 is not used: x; y"
)]
#[case::a_demand_of_the_other_family(
    "no IPv6 address: requested address fd00::5 is not to be had: it is in use; waiting until it is released; ",
    "requested address 10.0.0.5 is not used: it is in use"
)]
#[case::none("no IPv6 address: requested address fd00::5 is not to be had: it is in use; waiting", "")]
fn refused_wishes_are_the_end_of_a_note(#[case] before: &str, #[case] wishes: &str) {
    assert_eq!(refused_wishes_at(&format!("{before}{wishes}")), before.len());
}

#[test]
fn why_a_wish_is_refused_is_told_in_part_where_it_is_long() {
    let name = "n".repeat(253);
    let in_use = Obstacle::InUse(Some(format!("shop/{name}")));
    let told = wish_refused(&asking("10.0.0.5", ""), [10, 0, 0, 5].into(), &in_use);
    assert!(told.contains(&name) && told.ends_with(" had it when this one asked"), "{told}");
    let refused = Obstacle::Pool("PoolNotReady", "x".repeat(5000));
    let told = wish_refused(&asking("10.0.0.5", ""), [10, 0, 0, 5].into(), &refused);
    assert!(told.chars().count() < 500, "{told}");
}
