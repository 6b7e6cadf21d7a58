//! What is counted, and which write is refused.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn size(object: &Value) -> Size {
    serde_json::from_str(&object.to_string()).unwrap()
}

#[rstest]
#[case::null(json!(null), 0, 0)]
#[case::text(json!("spec"), 0, 0)]
#[case::empty(json!({}), 0, 0)]
#[case::listeners(json!({"spec": {"listeners": [{"port": 80}, {}, 7]}}), 3, 6)]
#[case::elsewhere(json!({"listeners": [1], "status": {"listeners": [1]}, "spec": {"other": {"listeners": [1]}}}), 0, 9)]
#[case::within_a_listener(json!({"spec": {"listeners": [{"listeners": [1, 2]}]}}), 1, 6)]
#[case::scalars(json!([true, -1, 1.5, null, u64::MAX, "x"]), 0, 6)]
#[case::no_list(json!({"spec": {"listeners": {"listeners": [1]}}}), 0, 4)]
fn fields_list_entries_and_listeners_are_counted(
    #[case] object: Value,
    #[case] listeners: usize,
    #[case] values: usize,
) {
    let counted = Size { bytes: 0, own_values: 0, ..size(&object) };
    assert_eq!(counted, Size { listeners, values, ..Size::default() });
}

#[rstest]
#[case::at_the_limit((100, 0), (0, 0), None)]
#[case::created_above((101, 0), (0, 0), Some("spec.listeners has 101 entries"))]
#[case::raised_above((101, 0), (100, 0), Some("spec.listeners has 101 entries"))]
#[case::stands_above((4_000, 0), (4_000, 0), None)]
#[case::lowered((3_999, 0), (4_000, 0), None)]
#[case::raised_from_above((4_001, 0), (4_000, 0), Some("spec.listeners has 4001 entries"))]
#[case::values_at_the_limit((0, 20_000), (0, 0), None)]
#[case::too_many_values((0, 20_001), (0, 20_000), Some("the object has 20001 fields"))]
#[case::as_many_values_as_before((0, 20_001), (0, 20_001), None)]
#[case::both((101, 20_001), (0, 0), Some("spec.listeners"))]
fn only_a_write_that_raises_a_count_above_its_limit_is_refused(
    #[case] new: (usize, usize),
    #[case] former: (usize, usize),
    #[case] expected: Option<&str>,
) {
    let size = |(listeners, values)| Size { listeners, values, ..Size::default() };
    let refusal = [LISTENERS, VALUES].iter().find_map(|limit| limit.refusal(&size(new), &size(former)));
    assert_eq!(refusal.is_some(), expected.is_some(), "{refusal:?}");
    assert!(refusal.unwrap_or_default().starts_with(expected.unwrap_or_default()));
}

#[test]
fn ranges_scopes_and_quotas_of_a_pool_are_counted() {
    let spec = json!({"ranges": [{"subnet": "192.0.2.0/24"}, {}], "scope": [{}],
        "selector": {"ranges": [{}], "scope": [{}, {"scope": [{}]}, {}]}, "quota": [{}]});
    assert_eq!(
        Size { bytes: 0, own_values: 0, ..size(&json!({"spec": spec, "ranges": [{}]})) },
        Size { ranges: 2, scopes: 3, quotas: 1, values: 20, ..Size::default() }
    );
}

fn review(user: &str, kind: &str, listeners: usize) -> String {
    let listeners: Vec<Value> = vec![json!({}); listeners];
    json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": "CREATE", "kind": {"group": GROUP, "version": "v1beta1", "kind": kind},
        "namespace": "team-a", "name": "web", "userInfo": {"username": user},
        "object": {"spec": {"listeners": listeners}}, "oldObject": null}})
    .to_string()
}

#[rstest]
#[case::tenant("alice", "LoadBalancer", true)]
#[case::controller("writer", "LoadBalancer", true)]
#[case::another_kind("alice", "IPPool", false)]
fn nobody_may_write_a_load_balancer_with_too_many_listeners(
    #[case] user: &str,
    #[case] kind: &str,
    #[case] refused: bool,
) {
    let policy = Policy { status_writer: "writer".to_owned(), ..Policy::default() };
    let review = review(user, kind, 4_000);
    let refusal = Outline::read(review.as_bytes()).unwrap().refusal(&policy);
    assert_eq!(refusal.is_some(), refused);
    if let Some(response) = refusal {
        assert!(!response.allowed);
        assert_eq!((response.uid.as_str(), response.result.code), ("u1", 422));
        assert_eq!(response.types.api_version, "admission.k8s.io/v1beta1");
        let message = "create loadbalancer team-a/web failed: spec.listeners has 4000 entries, at most 100 are \
                       allowed: spread them over several load balancers";
        assert_eq!(response.result.message, message);
    }
}

fn review_of(kind: &str, operation: &str, user: &str, object: &Value, old: &Value) -> String {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": operation, "kind": {"group": GROUP, "version": "v1beta1", "kind": kind},
        "name": "edge", "userInfo": {"username": user}, "object": object, "oldObject": old}})
    .to_string()
}

fn message(review: &str) -> Option<String> {
    let policy = Policy { status_writer: "writer".to_owned(), ..Policy::default() };
    let refusal = Outline::read(review.as_bytes()).unwrap().refusal(&policy)?;
    assert_eq!((refusal.allowed, refusal.result.code), (false, 422));
    Some(refusal.result.message)
}

#[rstest]
#[case::at_the_limit(1_000, 1_000, 0, None)]
#[case::many_ranges(1_001, 0, 1_000, Some("spec.ranges has 1001 entries"))]
#[case::many_scopes(0, 1_001, 1_000, Some("spec.selector.scope has 1001 entries"))]
#[case::stands_above(5_000, 5_000, 5_000, None)]
#[case::lowered(4_999, 4_999, 5_000, None)]
fn a_pool_may_not_grow_beyond_its_limits(
    #[values("admin", "writer")] user: &str,
    #[case] ranges: usize,
    #[case] scopes: usize,
    #[case] former: usize,
    #[case] expected: Option<&str>,
) {
    let pool = |ranges: usize, scopes: usize| json!({"spec": {"ranges": vec![json!({}); ranges], "selector": {"scope": vec![json!({}); scopes]}}});
    let review = review_of("IPPool", "UPDATE", user, &pool(ranges, scopes), &pool(former, former));
    let expected = expected.map(|fault| {
        format!("can't update IP pool edge because {fault}, at most 1000 are allowed: spread them over several pools")
    });
    assert_eq!(message(&review), expected);
}

#[rstest]
#[case::tenant("alice", true)]
#[case::controller("writer", false)]
fn a_status_may_grow_by_its_controller(#[case] user: &str, #[case] refused: bool) {
    let object = json!({"status": {"conditions": vec![0; 30_000]}});
    assert_eq!(message(&review_of("LoadBalancer", "UPDATE", user, &object, &json!({}))).is_some(), refused);
}

#[rstest]
#[case::any_user("LoadBalancer", "UPDATE", "writer", "update loadbalancer /edge failed: ")]
#[case::any_kind("Pod", "CREATE", "alice", "create loadbalancer /edge failed: ")]
#[case::pool("IPPool", "DELETE", "alice", "can't delete IP pool edge because ")]
fn no_review_may_have_more_values_than_real_objects_have(
    #[case] kind: &str,
    #[case] operation: &str,
    #[case] user: &str,
    #[case] prefix: &str,
) {
    // whoever writes a review can put a large former object into it
    let large = json!({"status": vec![0; 100_000]});
    let review = review_of(kind, operation, user, &large, &large);
    let values = "the review has 200016 fields and list entries, at most 200000 are allowed";
    assert_eq!(message(&review), Some(format!("{prefix}{values}")));
}

#[rstest]
#[case::created(100_000, None, true)]
#[case::raised(100_000, Some(99_999), true)]
#[case::stands(100_000, Some(100_000), false)]
#[case::lowered(99_999, Some(100_000), false)]
#[case::short(10_000, None, false)]
fn no_tenant_makes_an_object_larger_than_all_its_fields_need(
    #[values("description", "annotation", "name of a label")] what: &str,
    #[case] new: usize,
    #[case] former: Option<usize>,
    #[case] refused: bool,
) {
    let object = |length: usize| {
        let text = "x".repeat(length);
        match what {
            "description" => json!({"spec": {"description": text}}),
            "annotation" => json!({"metadata": {"annotations": {"note": text}}}),
            _ => json!({"metadata": {"labels": {text: "y"}}}),
        }
    };
    let old = former.map_or(Value::Null, object);
    let verb = if former.is_some() { "UPDATE" } else { "CREATE" };
    let told = message(&review_of("LoadBalancer", verb, "alice", &object(new), &old));
    assert_eq!(told.is_some(), refused);
    let advice = "at most 65536 are allowed: shorten spec.description, annotations or labels";
    assert!(told.is_none_or(|told| told.ends_with(advice)));
    // its controller adds a finalizer to what stands
    assert_eq!(message(&review_of("LoadBalancer", verb, "writer", &object(new), &old)), None);
}

#[test]
fn status_and_managed_fields_count_for_no_length() {
    let text = "x".repeat(100_000);
    let object = json!({"metadata": {"managedFields": [{"fieldsV1": {&text: {}}}]},
        "status": {"conditions": [{"message": text}], "backends": vec![0; 10_000]}});
    assert_eq!(message(&review_of("LoadBalancer", "CREATE", "alice", &object, &Value::Null)), None);
}

fn of_short_annotations(count: usize) -> Value {
    let annotations: Value = (0..count).map(|n| (n.to_string(), json!(""))).collect();
    json!({"metadata": {"annotations": annotations}})
}

// the two others are metadata and annotations
#[rstest]
#[case::at_the_limit(2_998, None, None)]
#[case::above(2_999, None, Some("the object has 3001 fields"))]
#[case::many(10_000, None, Some("the object has 10002 fields"))]
#[case::raised(2_999, Some(2_998), Some("the object has 3001 fields"))]
#[case::stands(10_000, Some(10_000), None)]
#[case::lowered(9_999, Some(10_000), None)]
fn no_tenant_makes_an_object_of_more_fields_than_all_its_parts_need(
    #[case] new: usize,
    #[case] former: Option<usize>,
    #[case] expected: Option<&str>,
) {
    let (object, old) = (of_short_annotations(new), former.map_or(Value::Null, of_short_annotations));
    let verb = if former.is_some() { "UPDATE" } else { "CREATE" };
    let told = message(&review_of("LoadBalancer", verb, "alice", &object, &old));
    assert_eq!(told.is_some(), expected.is_some(), "{told:?}");
    let told = told.unwrap_or_default();
    assert!(told.contains(expected.unwrap_or_default()), "{told}");
    let advice =
        "beside status and metadata.managedFields, at most 3000 are allowed: remove annotations or labels";
    assert!(told.is_empty() || told.ends_with(advice), "{told}");
    // what stands with more gets its status and loses its finalizer
    assert_eq!(message(&review_of("LoadBalancer", verb, "writer", &object, &old)), None);
    let mut released = of_short_annotations(new);
    released["metadata"]["finalizers"] = json!([]);
    let mut held = released.clone();
    held["metadata"]["finalizers"] = json!(["team-a/keep"]);
    assert_eq!(message(&review_of("LoadBalancer", "UPDATE", "alice", &released, &held)), None);
}

// the validator sees what the mutator has made of the object
#[rstest]
#[case::fields_of_their_own(10_000, 0)]
#[case::fields(30_000, 0)]
#[case::text(0, 100_000)]
fn an_object_that_stands_over_a_limit_does_not_grow_by_what_the_mutator_adds(
    #[case] labels: usize,
    #[case] text: usize,
) {
    let labels: Value = (0..labels).map(|n| (n.to_string(), json!(""))).collect();
    let spec = json!({"description": "x".repeat(text), "healthCheck": {"port": 80}});
    let old = json!({"metadata": {"labels": labels}, "spec": spec});
    let mut mutated = old.clone();
    let keys = [annotations::LB_NAMESPACE, annotations::LB_PROJECT, annotations::LB_NETWORK];
    mutated["metadata"]["annotations"] = keys.map(|key| (key, json!("x".repeat(300)))).into_iter().collect();
    for field in ["successThreshold", "failureThreshold", "periodSeconds", "timeoutSeconds"] {
        mutated["spec"]["healthCheck"][field] = json!(2);
    }
    let told = |new: &Value, old: &Value| message(&review_of("LoadBalancer", "UPDATE", "alice", new, old));
    assert_eq!(told(&mutated, &old), None);
    let mut grown = mutated.clone();
    grown["metadata"]["annotations"]["more"] = json!("");
    assert!(told(&grown, &old).is_some(), "by the user");
    let mut long = mutated.clone();
    long["metadata"]["annotations"][annotations::LB_NETWORK] = json!("x".repeat(70_000));
    assert!(told(&long, &old).is_some(), "a user can write it too");
}

#[test]
fn an_object_that_is_at_all_other_limits_at_once_is_within_that_of_its_fields() {
    let texts = |count: usize, text: &str| -> Vec<_> { (0..count).map(|n| format!("{text}{n}")).collect() };
    let selector: Value =
        texts(100, "key-").into_iter().map(|key| (key, json!(texts(10, "value-")))).collect();
    let listener =
        |n: usize| json!({"name": format!("l{n}"), "port": n, "protocol": "TCP", "backendPort": n});
    let labels: Value = texts(100, "label-").into_iter().map(|key| (key, json!("x"))).collect();
    let ranges = texts(harvester_api::load_balancer::MAX_SOURCE_RANGES, "192.168.100.0/24,").concat();
    let object = json!({
        "metadata": {"name": "web", "labels": labels, "annotations": {"ranges": ranges, "more": labels.to_string()}},
        "spec": {"listeners": (1..=harvester_api::load_balancer::MAX_LISTENERS).map(listener).collect::<Vec<_>>(),
            "backendServerSelector": selector,
            "healthCheck": {"port": 1, "path": "/", "scheme": "HTTP", "periodSeconds": 1, "timeoutSeconds": 1,
                "successThreshold": 1, "failureThreshold": 1}},
    });
    assert_eq!(message(&review_of("LoadBalancer", "CREATE", "alice", &object, &Value::Null)), None);
    assert!(size(&object).own_values < 2_000);
}

#[test]
fn kinds_of_other_groups_have_no_limits_of_their_own() {
    let review = review("alice", "LoadBalancer", 4_000).replace(GROUP, "example.com");
    assert_eq!(message(&review), None);
}

#[rstest]
#[case::ordinary(100, Weight::Turns(1))]
#[case::large(40_000, Weight::Turns(3))]
#[case::largest(79_998, Weight::Turns(4))]
#[case::heavy(79_999, Weight::Heavy)]
#[case::heaviest(200_000, Weight::Heavy)]
fn a_large_review_counts_for_several(#[case] values: usize, #[case] weight: Weight) {
    let review = json!({"more": vec![0; values]}).to_string();
    assert_eq!(Outline::read(review.as_bytes()).unwrap().weight(), weight);
}

#[rstest]
#[case::nothing("")]
#[case::half("{\"request\": {\"object\": {\"spec\":")]
#[case::deep(&"[".repeat(100_000))]
fn a_body_that_is_no_review_is_an_error(#[case] body: &str) {
    assert!(Outline::read(body.as_bytes()).is_err());
}

#[test]
fn a_deep_object_is_an_error_and_no_stack_overflow() {
    let body = format!("{{\"request\": {{\"object\": {}", "{\"a\":".repeat(1_000_000));
    assert!(Outline::read(body.as_bytes()).is_err());
}

#[rstest]
#[case::null("{\"request\": null}")]
#[case::none("{}")]
#[case::unknown_fields("{\"more\": [[]], \"request\": {\"uid\": \"\\u00e4\", \"options\": {}}}")]
fn a_review_without_object_is_within_the_limits(#[case] body: &str) {
    let policy = Policy { status_writer: String::new(), ..Policy::default() };
    assert!(Outline::read(body.as_bytes()).unwrap().refusal(&policy).is_none());
}
