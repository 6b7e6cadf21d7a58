//! Steps of an object that asks for an address. Pools edge (10.0.1.0/24) and core (10.0.2.0/24); the object names edge.
// docs/contract/addresses.md#5

use super::*;

fn asks(key: &str, ip: &str) -> Value {
    json!({"metadata": {"annotations": {(key): ip}}})
}

const DEMAND: &str = annotations::REQUESTED_IP_STRICT;
const BOTH: &[(&str, &str)] = &[("edge", "10.0.1.7"), ("edge", "10.0.1.9")];

#[test]
fn the_new_address_is_recorded_then_shown_and_the_former_one_released_last() {
    let object = |rest: &Value| settled("cluster", &merged(asks(DEMAND, "10.0.1.9"), rest));
    let had = Seen { object: object(&json!({})), ..seen() };
    let had = recorded(had, &[("edge", "10.0.1.7")]);
    assert_eq!(steps(&had), ["claim 10.0.1.9 from edge"]);

    let both = recorded(had, BOTH);
    assert_eq!(steps(&both), ["write object"]);
    let status = written(&both);
    assert_eq!(status["allocatedAddress"]["ip"], "10.0.1.9");

    // the guest still announces the former one
    let announced = merged(status, &json!({"address": "10.0.1.7"}));
    let announced = recorded(Seen { object: object(&json!({"status": announced})), ..seen() }, BOTH);
    assert_eq!(steps(&announced), [""; 0]);
    let followed = merged(written(&both), &json!({"address": "10.0.1.9"}));
    let followed = recorded(Seen { object: object(&json!({"status": followed})), ..seen() }, BOTH);
    assert_eq!(steps(&followed), ["release 10.0.1.7 of edge"]);
    let released = recorded(followed, &[("edge", "10.0.1.9")]);
    assert_eq!(steps(&released), [""; 0]);
}

// an administrator wrote it back, or the pool came back from a backup
#[test]
fn a_record_of_another_program_that_an_object_left_keeps_no_later_request_waiting() {
    let object = |shown: &str| {
        let status = json!({"status": {"address": shown, "allocatedAddress": {"ip": "10.0.1.9"}}});
        settled("cluster", &merged(asks(DEMAND, "10.0.1.8"), &status))
    };
    let waits = |seen: &Seen| reason(&written(seen)).1;
    let mut seen = recorded(Seen { object: object("10.0.1.9"), ..seen() }, BOTH);
    assert_eq!(waits(&seen), "ReleaseUnderWay", "nobody knows yet who made it");
    let record: (String, IpAddr) = ("edge".to_owned(), [10, 0, 1, 7].into());
    seen.address.made_by_others = [(record, "kubectl".to_owned())].into();
    assert_eq!(steps(&seen), ["claim 10.0.1.8 from edge"]);

    seen.address.rivals = vec![([10, 0, 1, 8].into(), "shop/api".to_owned())];
    assert_eq!(waits(&seen), "AddressInUse");
    let status = written(&seen);
    let told = status["conditions"][0]["message"].as_str().unwrap();
    let kept = "pool edge records 10.0.1.7 for this load balancer too, and keeps it as long as the load balancer is there: \
                kubectl made that record";
    assert!(told.ends_with(kept), "{told}");

    // one that the guest announces still is one of the two that an object may hold
    seen.object = object("10.0.1.7");
    seen.address.rivals = Vec::new();
    assert_eq!(waits(&seen), "ReleaseUnderWay");
}

#[test]
fn a_service_of_vms_asks_for_the_new_address_after_the_object_shows_it() {
    let both = recorded(serving(&asks(DEMAND, "10.0.1.9")), BOTH);
    assert_eq!(steps(&both), ["write object", "write service"]);
    assert_eq!(written(&both)["allocatedAddress"]["ip"], "10.0.1.9");
    let plan = decide(&both);
    let writes = plan.steps.iter().filter_map(|step| match step {
        Step::WriteService(Write::Replace(json)) => Some(json["spec"]["loadBalancerIP"].clone()),
        _ => None,
    });
    assert_eq!(writes.collect::<Vec<_>>(), ["10.0.1.9"]);
}

#[test]
fn a_demand_that_waits_hears_of_its_address_alone_and_serves_on() {
    let mut seen = serving(&asks(DEMAND, "10.0.1.9"));
    seen.address.rivals = vec![([10, 0, 1, 9].into(), "shop/api".into())];
    let plan = decide(&seen);
    assert_eq!(plan.waits_for, Some(WaitingFor::Address([10, 0, 1, 9].into())));
    assert_eq!(plan.probes.map(|probes| probes.len()), Some(0), "as before: nothing to probe");
    let status = written(&seen);
    assert_eq!(reason(&status), (false, "AddressInUse".to_owned()));
    assert_eq!(status["allocatedAddress"]["ip"], "10.0.1.7");
    assert_eq!(status["address"], "10.0.1.7");
}

#[test]
fn a_wish_that_is_not_used_is_told_in_a_condition_that_is_true() {
    let object = settled("cluster", &asks(annotations::REQUESTED_IP, "10.0.1.9"));
    let mut seen = recorded(Seen { object, ..seen() }, &[("edge", "10.0.1.7")]);
    seen.address.rivals = vec![([10, 0, 1, 9].into(), "other/api".into())];
    let status = written(&seen);
    assert_eq!(reason(&status), (true, "AddressAllocated".to_owned()));
    let message = "requested address 10.0.1.9 is not used: it is in use";
    assert_eq!(status["conditions"][0]["message"], message);
    seen.object =
        settled("cluster", &merged(asks(annotations::REQUESTED_IP, "10.0.1.9"), &json!({"status": status})));
    assert_eq!(steps(&seen), [""; 0], "and is not written again");
    seen.address.rivals = Vec::new();
    assert_eq!(steps(&seen), [""; 0]);
}

// the wish that was refused is read from the condition: a sentence behind it would be taken for its end
#[test]
fn a_wish_that_is_not_used_and_the_network_of_a_vm_are_told_once() {
    let one = [pace::backend("api-1", 11)];
    let mut seen = pace::selecting(&one, &one);
    seen.object = seen.object.map(|lb| patched(&lb, &asks(annotations::REQUESTED_IP, "10.0.1.9")));
    seen.address.rivals = vec![([10, 0, 1, 9].into(), "other/api".into())];
    seen.backends.selected.taken = vec![pace::on_the_management_network("api-1")];
    // whatever else was written a moment ago: the condition alone remembers it
    seen.backend_status_in = Some(pace::LATER);
    let mut seen = pace::shown_at_once(&seen);
    let told =
        "VM api-1 is reached on the management network; requested address 10.0.1.9 is not used: it is in use";
    let conditions = &seen.object.as_ref().unwrap().status.as_ref().unwrap().conditions;
    let message = condition::ready(conditions).map(|ready| ready.message.clone());
    assert_eq!(message, Some(format!("{}; {told}", serve::NO_BACKENDS)));
    seen.address.rivals = Vec::new();
    assert_eq!(steps(&seen), [""; 0]);
}
