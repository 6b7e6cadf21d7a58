//! An object that asks for an address. The pools edge (10.0.1.0/24) and core (10.0.2.0/24) serve it, lab
//! (10.0.3.0/24) does not.
// docs/contract/addresses.md#5

use harvester_api::Condition;

use super::*;

const WISH: &str = annotations::REQUESTED_IP;
const DEMAND: &str = annotations::REQUESTED_IP_STRICT;

fn asking(key: &str, text: &str, has: Option<(&str, &str)>) -> LoadBalancer {
    let mut lb = load_balancer("", has);
    lb.annotations_mut().insert(key.to_owned(), text.to_owned());
    lb
}

fn exactly(pool: &str, ip: &str, meanwhile: Option<AllocatedAddress>) -> Decision {
    let exactly = Some(ip.parse().unwrap());
    Decision::Claim { pool: pool.into(), known: None, exactly, meanwhile, lost: None }
}

fn in_use(pool: &str, ip: &str) -> (String, Refused) {
    (pool.to_owned(), Refused::AddressInUse { pool: pool.to_owned(), address: ip.parse().unwrap() })
}

#[derive(Default)]
struct Given<'a> {
    recorded: &'a [(&'a str, &'a str)],
    refused: Vec<(String, Refused)>,
    rivals: &'a [(&'a str, &'a str)],
    leaving: &'a [IpAddr],
    foreign_records: &'a [(&'a str, &'a str)],
}

fn decided(lb: &LoadBalancer, holder: RecordedHolder, given: Given<'_>) -> Decided {
    let Given { recorded, refused, rivals, leaving, foreign_records } = given;
    let rivals: Vec<_> = rivals.iter().map(|(ip, by)| (ip.parse().unwrap(), (*by).to_owned())).collect();
    decide(&Seen {
        lb,
        pools: &pools(),
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder,
        recorded: &records(recorded),
        service_names_address: false,
        refused: &refused,
        rivals: &rivals,
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving,
        foreign_records: &records(foreign_records),
    })
}

#[rstest]
#[case::a_wish_of_a_new_one(asking(WISH, "10.0.1.9", None), &[], exactly("edge", "10.0.1.9", None))]
#[case::a_demand_of_a_new_one(asking(DEMAND, "10.0.1.9", None), &[], exactly("edge", "10.0.1.9", None))]
#[case::answered(asking(DEMAND, "10.0.1.9", None), &[("edge", "10.0.1.9")], has(given("edge", "10.0.1.9")))]
#[case::changed(
    asking(DEMAND, "10.0.1.9", Some(("core", "10.0.2.5"))), &[("core", "10.0.2.5")],
    exactly("edge", "10.0.1.9", Some(address("core", "10.0.2.5"))))]
// the controller ended between its PUT of the pool and that of the object
#[case::changed_and_answered(
    asking(DEMAND, "10.0.1.9", Some(("core", "10.0.2.5"))), &[("core", "10.0.2.5"), ("edge", "10.0.1.9")],
    has(given("edge", "10.0.1.9")))]
#[case::changed_in_the_same_pool_and_answered(
    asking(WISH, "10.0.2.9", Some(("core", "10.0.2.5"))), &[("core", "10.0.2.5"), ("core", "10.0.2.9")],
    has(given("core", "10.0.2.9")))]
#[case::moved_and_not_released(
    asking(DEMAND, "10.0.1.9", Some(("edge", "10.0.1.9"))), &[("core", "10.0.2.5"), ("edge", "10.0.1.9")],
    has(address("edge", "10.0.1.9")))]
#[case::given_up_after_the_answer(
    load_balancer("", Some(("core", "10.0.2.5"))), &[("core", "10.0.2.5"), ("edge", "10.0.1.9")],
    has(address("core", "10.0.2.5")))]
#[case::the_first_of_two(asking(DEMAND, "10.0.1.9,fd00::9", None), &[], exactly("edge", "10.0.1.9", None))]
fn a_requested_address_is_claimed_before_the_former_one_goes(
    #[case] lb: LoadBalancer,
    #[case] recorded: &[(&str, &str)],
    #[case] expected: Decision,
) {
    let holder = if lb.status.is_some() { RecordedHolder::Us } else { RecordedHolder::Nobody };
    let Decided { decision, note, .. } = decided(&lb, holder, Given { recorded, ..Given::default() });
    assert_eq!((decision, note), (expected, None));
}

#[test]
fn a_named_pool_gives_the_requested_address_or_nobody_does() {
    let mut lb = asking(DEMAND, "10.0.1.9", None);
    for (pool, reason) in
        [("edge", None), ("core", Some("AddressNotInPool")), ("none", Some("AddressNotInPool"))]
    {
        lb.spec.ip_pool = pool.to_owned();
        match decided(&lb, RecordedHolder::Nobody, Given::default()).decision {
            Decision::Claim { pool: asked, .. } => assert_eq!((asked.as_str(), reason), (pool, None)),
            Decision::Wait { waiting, .. } => assert_eq!(Some(waiting.reason), reason),
            other @ Decision::Has { .. } => panic!("{other:?}"),
        }
    }
}

#[rstest]
#[case::of_a_pool_that_is_not_for_it("10.0.3.9", &[], "AddressNotInPool")]
#[case::a_gateway("10.0.1.1", &[], "AddressNotInPool")]
#[case::a_network("10.0.1.0", &[], "AddressNotInPool")]
#[case::a_broadcast("10.0.1.255", &[], "AddressNotInPool")]
#[case::taken("10.0.1.9", &[("10.0.1.9", "shop/api")], "AddressInUse")]
// which of the pools of others has it, and for whom, is nobody's business
#[case::taken_in_a_pool_that_is_not_for_it("10.0.3.9", &[("10.0.3.9", "lab/db")], "AddressNotInPool")]
fn a_demand_waits_until_its_address_is_free_and_a_wish_is_answered_with_another(
    #[case] ip: &str,
    #[case] rivals: &[(&str, &str)],
    #[case] reason: &str,
) {
    let given = || Given { rivals, ..Given::default() };
    let Decided { decision, note: None, .. } =
        decided(&asking(DEMAND, ip, None), RecordedHolder::Nobody, given())
    else {
        panic!("a note beside the reason")
    };
    let Decision::Wait { waiting, meanwhile: None, lost: None, asked, until_free } = decision else {
        panic!("{decision:?}")
    };
    assert_eq!((waiting.reason, asked.len(), until_free), (reason, 0, ip.parse().ok()));

    let wish = decided(&asking(WISH, ip, None), RecordedHolder::Nobody, given());
    assert_eq!(wish.decision, claim("core"));
    let note = wish.note.unwrap();
    assert!(note.starts_with(&format!("requested address {ip} is not used: ")), "{note}");
}

/// Its Service was made again, and wishes for what the former object has until it is gone.
#[test]
fn a_wish_for_the_address_of_an_object_that_goes_waits_unless_there_is_an_address() {
    let rivals = &[("10.0.1.9", "shop/api")];
    let wished: IpAddr = "10.0.1.9".parse().unwrap();
    let leaving = [wished];
    let given = |leaving| Given { rivals, leaving, ..Given::default() };
    let new = asking(WISH, "10.0.1.9", None);
    let Decision::Wait { waiting, until_free, .. } =
        decided(&new, RecordedHolder::Nobody, given(&leaving)).decision
    else {
        panic!("it takes another")
    };
    assert_eq!((waiting.reason, until_free), ("AddressInUse", Some(wished)));
    assert_eq!(decided(&new, RecordedHolder::Nobody, given(&[])).decision, claim("core"));
    let freed = decided(&new, RecordedHolder::Nobody, Given::default());
    assert_eq!(freed.decision, exactly("edge", "10.0.1.9", None));

    let lb = asking(WISH, "10.0.1.9", Some(("core", "10.0.2.5")));
    let recorded = &[("core", "10.0.2.5")];
    let stays = decided(&lb, RecordedHolder::Us, Given { recorded, ..given(&leaving) });
    assert_eq!(stays.decision, has(address("core", "10.0.2.5")));
    assert!(stays.note.is_some());
}

#[test]
fn a_demand_that_cannot_be_had_keeps_the_former_address_and_says_so() {
    let lb = asking(DEMAND, "10.0.1.9", Some(("core", "10.0.2.5")));
    let recorded = &[("core", "10.0.2.5")];
    for given in [
        Given { recorded, rivals: &[("10.0.1.9", "shop/api")], ..Given::default() },
        Given { recorded, refused: vec![in_use("edge", "10.0.1.9")], ..Given::default() },
    ] {
        let Decision::Wait { waiting, meanwhile, .. } = decided(&lb, RecordedHolder::Us, given).decision
        else {
            panic!("it moved")
        };
        assert_eq!(meanwhile, Some(address("core", "10.0.2.5")));
        assert!(
            waiting.message.ends_with("; address 10.0.2.5 of pool core stays until then"),
            "{}",
            waiting.message
        );
    }
    // the status was lost: the record tells the object its address
    let new = asking(DEMAND, "10.0.1.9", None);
    let given = Given { recorded, rivals: &[("10.0.1.9", "shop/api")], ..Given::default() };
    let Decision::Wait { meanwhile, .. } = decided(&new, RecordedHolder::Nobody, given).decision else {
        panic!("it moved")
    };
    assert_eq!(meanwhile, Some(self::given("core", "10.0.2.5")));
}

#[test]
fn a_demand_that_was_lost_to_another_keeps_no_address_and_waits() {
    let lb = asking(DEMAND, "10.0.1.9", Some(("edge", "10.0.1.9")));
    let given = Given { rivals: &[("10.0.1.9", "shop/api")], ..Given::default() };
    let decision = decided(&lb, RecordedHolder::SomebodyElse, given).decision;
    let Decision::Wait { waiting, meanwhile: None, lost, .. } = decision else { panic!("{decision:?}") };
    assert_eq!((waiting.reason, lost.as_deref()), ("AddressInUse", Some("10.0.1.9")));
}

#[test]
fn a_record_that_was_erased_is_asked_for_exactly_while_a_demand_waits() {
    let lb = asking(DEMAND, "10.0.1.9", Some(("core", "10.0.2.5")));
    let rivals = &[("10.0.1.9", "shop/api")];
    let decide =
        |refused| decided(&lb, RecordedHolder::Nobody, Given { rivals, refused, ..Given::default() });
    assert_eq!(decide(Vec::new()).decision, exactly("core", "10.0.2.5", None));
    let Decision::Wait { meanwhile: None, .. } = decide(vec![in_use("core", "10.0.2.5")]).decision else {
        panic!("it asks again")
    };
    // its own address, demanded: no other will do
    let lb = asking(DEMAND, "10.0.1.9", Some(("edge", "10.0.1.9")));
    let decision = decided(&lb, RecordedHolder::Nobody, Given::default()).decision;
    assert_eq!(decision, exactly("edge", "10.0.1.9", None));
}

#[test]
fn a_wish_that_was_refused_is_followed_by_a_claim_of_any_address() {
    let lb = asking(WISH, "10.0.2.9", None);
    let refused = vec![in_use("core", "10.0.2.9")];
    let given = Given { refused, ..Given::default() };
    assert_eq!(decided(&lb, RecordedHolder::Nobody, given).decision, claim("core"));
}

#[test]
fn an_address_stays_when_one_comes_free_that_was_wished_for_before() {
    let mut lb = asking(WISH, "10.0.1.9", Some(("core", "10.0.2.5")));
    let recorded = &[("core", "10.0.2.5")];
    let look = |lb: &LoadBalancer, rivals| {
        decided(lb, RecordedHolder::Us, Given { recorded, rivals, ..Given::default() })
    };
    let taken = look(&lb, &[("10.0.1.9", "shop/api")]);
    assert_eq!(taken.decision, has(address("core", "10.0.2.5")));
    let note = taken.note.clone().unwrap();
    assert_eq!(
        note,
        "requested address 10.0.1.9 is not used: load balancer shop/api had it when this one asked"
    );
    let ready: Condition =
        serde_json::from_value(json!({"type": "Ready", "status": "True", "message": note})).unwrap();
    lb.status.as_mut().unwrap().conditions = vec![ready];
    assert_eq!(look(&lb, &[]), taken, "it is free now");
    lb.annotations_mut().insert(WISH.to_owned(), "10.0.1.8".to_owned());
    let moves = exactly("edge", "10.0.1.8", Some(address("core", "10.0.2.5")));
    assert_eq!(look(&lb, &[]), moves.into(), "a new wish is a new one");
}

// else one object would hold as many addresses as it names while kube-vip does not follow
#[test]
fn whoever_asks_for_one_address_after_the_other_holds_no_more_than_two() {
    let recorded = &[("core", "10.0.2.5"), ("edge", "10.0.1.9")];
    let given = || Given { recorded, ..Given::default() };
    let lb = |key| asking(key, "10.0.1.8", Some(("edge", "10.0.1.9")));
    let decision = decided(&lb(DEMAND), RecordedHolder::Us, given()).decision;
    let Decision::Wait { waiting, meanwhile, .. } = decision else { panic!("it asks for a third one") };
    assert_eq!((waiting.reason, meanwhile), ("ReleaseUnderWay", Some(address("edge", "10.0.1.9"))));
    assert_eq!(decided(&lb(WISH), RecordedHolder::Us, given()), has(address("edge", "10.0.1.9")).into());
}

#[test]
fn a_record_that_stays_for_good_is_none_of_the_two() {
    let recorded = &[("core", "10.0.2.5"), ("edge", "10.0.1.9")];
    for key in [DEMAND, WISH] {
        let lb = asking(key, "10.0.1.8", Some(("edge", "10.0.1.9")));
        let given = Given { recorded, foreign_records: &recorded[..1], ..Given::default() };
        let claim = exactly("edge", "10.0.1.8", Some(address("edge", "10.0.1.9")));
        assert_eq!(decided(&lb, RecordedHolder::Us, given), claim.into());
    }
}

#[test]
fn a_wish_that_was_answered_stays_so_while_a_former_address_is_given_back() {
    let mut lb = asking(WISH, "10.0.1.8", Some(("edge", "10.0.1.9")));
    let note = "requested address 10.0.1.8 is not used: it is in use";
    let ready = json!([{"type": "Ready", "status": "True", "message": note}]);
    lb.status.as_mut().unwrap().conditions = serde_json::from_value(ready).unwrap();
    let recorded = &[("core", "10.0.2.5"), ("edge", "10.0.1.9")];
    let looked = decided(&lb, RecordedHolder::Us, Given { recorded, ..Given::default() });
    assert_eq!((looked.decision, looked.note.as_deref()), (has(address("edge", "10.0.1.9")), Some(note)));
}

// kube-vip in the guest is just taking the address to which the object moved: nobody else may get it
#[test]
fn whoever_asks_for_the_former_address_again_gets_it_after_the_guest_has_followed() {
    let recorded = &[("core", "10.0.2.5"), ("core", "10.0.2.9")];
    let look = |mut lb: LoadBalancer, shown: &str| {
        lb.status.as_mut().unwrap().address = shown.to_owned();
        decided(&lb, RecordedHolder::Us, Given { recorded, ..Given::default() })
    };
    let moved = |key| asking(key, "10.0.2.9", Some(("core", "10.0.2.5")));
    let Decision::Wait { waiting, meanwhile, asked, .. } = look(moved(DEMAND), "10.0.2.9").decision else {
        panic!("it goes back in the middle of a move")
    };
    assert_eq!((waiting.reason, asked.len()), ("ReleaseUnderWay", 0));
    assert_eq!(meanwhile, Some(address("core", "10.0.2.5")));
    assert!(waiting.message.contains("announces address 10.0.2.5, then for"), "{}", waiting.message);
    assert_eq!(look(moved(WISH), "10.0.2.9"), has(address("core", "10.0.2.5")).into());
    for key in [DEMAND, WISH] {
        for followed in ["10.0.2.5", ""] {
            assert_eq!(look(moved(key), followed), has(given("core", "10.0.2.9")).into(), "{followed}");
        }
        // the first move, while the guest has not heard of it
        let stays = asking(key, "10.0.2.5", Some(("core", "10.0.2.5")));
        assert_eq!(look(stays, "10.0.2.9"), has(address("core", "10.0.2.5")).into());
    }
    // nothing in the guest announces the address of such an object
    let mut vm = moved(DEMAND);
    vm.spec.workload_type = None;
    assert_eq!(look(vm, "10.0.2.9"), has(given("core", "10.0.2.9")).into());
}

#[test]
fn a_pool_that_an_object_left_and_is_named_again_waits_for_the_guest_too() {
    let mut lb = load_balancer("edge", Some(("core", "10.0.2.5")));
    let recorded = &[("core", "10.0.2.5"), ("edge", "10.0.1.5")];
    let look =
        |lb: &LoadBalancer| decided(lb, RecordedHolder::Us, Given { recorded, ..Given::default() }).decision;
    lb.status.as_mut().unwrap().address = "10.0.1.5".to_owned();
    let Decision::Wait { waiting, meanwhile, .. } = look(&lb) else { panic!("it goes back") };
    assert_eq!((waiting.reason, meanwhile), ("ReleaseUnderWay", Some(address("core", "10.0.2.5"))));
    lb.status.as_mut().unwrap().address = "10.0.2.5".to_owned();
    assert_eq!(look(&lb), has(given("edge", "10.0.1.5")));
}

#[test]
fn nonsense_keeps_the_address_and_a_demand_of_it_is_told() {
    let recorded = &[("core", "10.0.2.5")];
    let look = |key| {
        let lb = asking(key, "not-an-address", Some(("core", "10.0.2.5")));
        decided(&lb, RecordedHolder::Us, Given { recorded, ..Given::default() })
    };
    let Decision::Wait { waiting, meanwhile, .. } = look(DEMAND).decision else { panic!("it was read") };
    assert_eq!((waiting.reason, meanwhile), ("InvalidRequestedAddress", Some(address("core", "10.0.2.5"))));
    let wish = look(WISH);
    assert_eq!(wish.decision, has(address("core", "10.0.2.5")));
    assert!(wish.note.unwrap().contains("is no address"));
}

#[test]
fn with_dhcp_a_requested_address_is_told_to_be_without_effect() {
    for key in [WISH, DEMAND] {
        let mut lb = asking(key, "10.0.1.9", None);
        lb.spec.ipam = Some(Ipam::Dhcp);
        let Decided { decision, note, .. } = decided(&lb, RecordedHolder::Nobody, Given::default());
        assert_eq!(decision, has(address("", "0.0.0.0")));
        assert!(note.unwrap().ends_with("the DHCP server chooses"));
    }
}

/// The whole pool edge drains.
fn draining() -> [CheckedPool; 3] {
    let mut pools = pools();
    let json = json!({"metadata": {"name": "edge"}, "spec": {
        "ranges": [{"subnet": "10.0.1.0/24", "drain": true}],
        "selector": {"scope": [{"namespace": "shop", "project": "*", "guestCluster": "*"}]},
    }});
    pools[0] = check(&serde_json::from_value::<IPPool>(json).unwrap(), []);
    pools
}

#[rstest]
#[case::by_selection("")]
#[case::by_name("edge")]
fn a_demand_for_an_address_of_a_range_that_drains_is_refused_with_that_reason(#[case] pool: &str) {
    let mut lb = asking(DEMAND, "10.0.1.9", None);
    lb.spec.ip_pool = pool.to_owned();
    let pools = draining();
    let seen = Seen {
        lb: &lb,
        pools: &pools,
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder: RecordedHolder::Nobody,
        recorded: &[],
        service_names_address: false,
        refused: &[],
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving: &[],
        foreign_records: &[],
    };
    let Decision::Wait { waiting, .. } = decide(&seen).decision else { panic!("it does not wait") };
    assert_eq!(waiting.reason, "AddressNotInPool");
    assert!(waiting.message.contains("the range that it is of drains"), "{}", waiting.message);

    let recorded = [("edge".to_owned(), "10.0.1.9".parse().unwrap())];
    let holder = Seen { recorded: &recorded, ..seen };
    assert_eq!(decide(&holder).decision, has(given("edge", "10.0.1.9")), "who holds it may ask for it again");
}
