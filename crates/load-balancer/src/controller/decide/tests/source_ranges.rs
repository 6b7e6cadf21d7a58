//! The confirmation of source ranges says what the Service has, never what it is about to get:
//! docs/contract/data-paths.md#row-15-harvester

use super::*;

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
