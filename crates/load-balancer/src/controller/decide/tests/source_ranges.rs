//! The confirmation of source ranges says what the Service has, never what it is about to get:
//! docs/contract/data-paths.md#row-15-harvester

use super::{
    pace::{backend, selecting, slice_written},
    *,
};

const RANGES: &str = "10.0.0.0/8,192.0.2.0/24";

fn asks(wanted: Option<&str>, confirmed: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {
        (annotations::SOURCE_RANGES): wanted, (annotations::SOURCE_RANGES_APPLIED): confirmed}}})
}

/// It serves, and its Service has these ranges by our hand.
fn serving_with(rest: &Value, ranges: &str) -> Seen {
    let mut seen = serving(rest);
    let mut json = seen.service.unwrap().json();
    if !ranges.is_empty() {
        json["metadata"]["annotations"][annotations::SOURCE_RANGES] = ranges.into();
        json["spec"]["loadBalancerSourceRanges"] = ranges.split(',').collect();
    }
    seen.service = Some(Arc::new(RawObject::from_json(json).unwrap()));
    seen
}

fn confirmation(seen: &Seen) -> Option<Value> {
    let plan = decide(seen);
    let object = plan.steps.iter().find_map(|step| match step {
        Step::WriteObject(json) => Some(json),
        _ => None,
    });
    object.map(|json| json["metadata"]["annotations"][annotations::SOURCE_RANGES_APPLIED].clone())
}

fn ranges_written(seen: &Seen) -> Vec<Value> {
    let plan = decide(seen);
    let written = plan.steps.iter().filter_map(|step| match step {
        Step::WriteService(Write::Create(json) | Write::Replace(json)) => {
            Some(json["spec"]["loadBalancerSourceRanges"].clone())
        }
        _ => None,
    });
    written.collect()
}

#[test]
fn a_new_service_begins_with_its_ranges_and_nothing_is_confirmed_before_it_has_them() {
    let object = object("vm", &asks(Some(RANGES), None));
    let new = recorded(Seen { object, ..seen() }, &[("edge", "10.0.1.7")]);
    assert_eq!(steps(&new), ["write object", "write slice", "write service"]);
    assert_eq!(confirmation(&new), Some(Value::Null));
    assert_eq!(ranges_written(&new), [json!(["10.0.0.0/8", "192.0.2.0/24"])]);
    let served = serving_with(&asks(Some(RANGES), None), RANGES);
    assert_eq!(
        (steps(&served), confirmation(&served)),
        (vec!["write object".to_owned()], Some(RANGES.into()))
    );
    assert_eq!(steps(&serving_with(&asks(Some(RANGES), Some(RANGES)), RANGES)), [""; 0]);
}

#[rstest]
#[case::other_ranges(Some("10.0.0.0/8"), Some(RANGES), &[json!(["10.0.0.0/8"])])]
#[case::no_ranges(None, Some(RANGES), &[Value::Null])]
fn a_confirmation_goes_before_the_service_gets_other_ranges(
    #[case] wanted: Option<&str>,
    #[case] confirmed: Option<&str>,
    #[case] expected: &[Value],
) {
    let changed = serving_with(&asks(wanted, confirmed), RANGES);
    assert_eq!(steps(&changed), ["write object", "write service"]);
    assert_eq!(confirmation(&changed), Some(Value::Null));
    assert_eq!(ranges_written(&changed), expected);
}

#[test]
fn a_confirmation_of_what_the_service_does_not_have_is_taken_back() {
    let forged = serving_with(&asks(Some(RANGES), Some(RANGES)), "");
    assert_eq!(steps(&forged), ["write object", "write service"]);
    assert_eq!(confirmation(&forged), Some(Value::Null));
    let no_service = Seen { service: None, ..forged };
    assert_eq!(confirmation(&no_service), Some(Value::Null));
}

#[test]
fn ranges_that_cannot_be_read_open_no_backend_and_are_told() {
    let object = object("vm", &asks(Some("everybody"), None));
    let new = recorded(Seen { object, ..seen() }, &[("edge", "10.0.1.7")]);
    assert_eq!(steps(&new), ["write object"], "neither slice nor Service");
    assert_eq!(reason(&written(&new)), (false, "InvalidSourceRanges".to_owned()));
    let shown = with_status(new.object.as_ref().unwrap(), &written(&new));
    let shown = patched(&shown, &json!({"metadata": {"finalizers": [finalizers::LOAD_BALANCER]}}));
    assert_eq!(steps(&Seen { object: Some(shown), ..new }), [""; 0], "all is said with the address");
    let former = serving_with(&asks(Some("everybody"), Some(RANGES)), RANGES);
    assert_eq!(confirmation(&former), Some(Value::Null));
    assert_eq!(ranges_written(&former), [Value::Null; 0], "the Service keeps what it has");
}

/// Two VMs are selected, of which the slice has the first; the Service has `ranges`, and the object asks for [`RANGES`].
fn asking_beside(ranges: &str) -> Seen {
    let (one, two) = (backend("api-1", 11), backend("api-2", 12));
    let seen = selecting(std::slice::from_ref(&one), &[one.clone(), two]);
    let object = seen.object.as_ref().map(|lb| patched(lb, &asks(Some(RANGES), None)));
    Seen { object, service: serving_with(&json!({}), ranges).service, ..seen }
}

#[rstest]
#[case::everybody("")]
#[case::others("10.0.0.0/7")]
fn no_backend_gets_traffic_while_the_server_refuses_ranges_that_the_service_does_not_have(
    #[case] ranges: &str,
) {
    let seen = asking_beside(ranges);
    assert_eq!(steps(&seen), ["write service"], "nobody is added before it is stored");
    let closing = Seen { refused_writes: refused(&["Service"]), ..seen.clone() };
    assert_eq!((steps(&closing), slice_written(&closing)), (vec!["write slice".to_owned()], vec![]));
    let slice_refused = Seen { refused_writes: refused(&["EndpointSlice"]), ..seen.clone() };
    assert_eq!(steps(&slice_refused), ["write service"], "it alone closes the load balancer");
    for kinds in [["Service", "EndpointSlice"], ["EndpointSlice", "Service"]] {
        let stuck = Seen { refused_writes: refused(&kinds), ..seen.clone() };
        assert_eq!(steps(&stuck), ["write object"], "neither is sent again");
        let status = written(&stuck);
        let message = status["conditions"][0]["message"].as_str().unwrap();
        assert!(!message.contains("no backends"), "those of before are there: {message}");
    }

    let closed = Seen { slice: slice("u1"), ..seen };
    assert_eq!(steps(&closed), ["write service"], "the slice is not filled to be emptied again");
    let closed = Seen { refused_writes: refused(&["Service"]), ..closed };
    let status = written(&closed);
    assert_eq!(reason(&status), (false, "ServiceRefused".to_owned()));
    let message = status["conditions"][0]["message"].as_str().unwrap();
    assert!(message.ends_with("no backends until the Service has the source ranges"), "{message}");
    assert!(decide(&closed).unwatched);
}

#[test]
fn a_service_that_admits_fewer_than_the_object_asks_for_goes_on_serving_when_the_server_refuses_more() {
    let narrower = asking_beside("10.0.0.0/9");
    assert_eq!(steps(&narrower), ["write slice", "write service"]);
    let refused = Seen { refused_writes: refused(&["Service"]), ..narrower };
    assert_eq!(steps(&refused), ["write object"]);
    assert_eq!(reason(&written(&refused)), (false, "ServiceRefused".to_owned()));
}
