use rstest::rstest;

use super::*;
use crate::patch::patched;
use crate::review::{Kind, Reason};

const WRITER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";

fn policy() -> Policy {
    Policy { status_writer: WRITER.to_owned(), ..Policy::default() }
}

fn object(json: Value) -> Box<DynamicObject> {
    Box::new(serde_json::from_value(json).unwrap())
}

/// `user` writes `new` over `old`; null creates it.
fn write(user: &str, new: Value, old: Value) -> Write {
    let change = if old.is_null() {
        Change::Create(object(new))
    } else {
        Change::Update { old: object(old), new: object(new) }
    };
    let text = ToOwned::to_owned;
    Write { kind: Kind::LoadBalancer, user: text(user), namespace: text("team-a"), name: text("web"), change }
}

/// The object after the mutator.
fn completed(write: &Write, seen: &Seen) -> Value {
    let operations = mutate(write, seen, &policy()).unwrap();
    patched(&serde_json::to_value(write.stored().unwrap()).unwrap(), &operations)
}

/// A load balancer as the UI makes it, with `change` merged into its spec.
fn vm(change: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {
            "workloadType": "vm", "ipam": "dhcp", "healthCheck": {},
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
            "backendServerSelector": {"harvesterhci.io/vmName": ["web-1", "web-2"]},
        },
    });
    json_patch::merge(&mut object["spec"], change);
    object
}

fn cluster(labels: &Value, annotations: &Value) -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "gc1-default-web-1a2b3c4d", "namespace": "team-a", "labels": labels, "annotations": annotations},
        "spec": {"workloadType": "cluster", "ipam": "pool"},
    })
}

/// Every expected text occurs in a fault of its own, and there are no others.
fn assert_faults(faults: &Faults, expected: &[&str]) {
    assert_eq!(faults.named().len(), expected.len(), "{faults:?}");
    for (fault, expected) in faults.named().iter().zip(expected) {
        assert!(fault.message.contains(expected), "{:?} does not say {expected:?}", fault.message);
    }
}

fn listener(name: &str, port: i64, protocol: &str, backend_port: i64) -> Value {
    json!({"name": name, "port": port, "protocol": protocol, "backendPort": backend_port})
}

fn numbers(success: i64, failure: i64, period: i64, timeout: i64) -> Value {
    json!({"port": 8080, "successThreshold": success, "failureThreshold": failure, "periodSeconds": period,
        "timeoutSeconds": timeout})
}

/// A selector with so many values under each of so many keys.
fn under_keys(keys: usize, values: usize) -> Value {
    (0..keys).map(|n| (format!("k{n}"), json!(vec!["a"; values]))).collect()
}

fn http_check(path: &str, scheme: &str) -> Value {
    json!({"port": 8080, "successThreshold": 1, "failureThreshold": 1, "periodSeconds": 1, "timeoutSeconds": 1,
        "path": path, "scheme": scheme})
}

#[rstest]
#[case::as_the_ui_sends_it(json!({}), &[])]
#[case::as_terraform_sends_it(
    json!({"ipam": "pool", "ipPool": "edge", "listeners": [listener("https", 443, "TCP", 8443), listener("dns", 53, "UDP", 53)],
        "healthCheck": {"port": 8443, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3}}), &[])]
#[case::tcp_and_udp_on_one_port(json!({"listeners": [listener("a", 53, "TCP", 53), listener("b", 53, "UDP", 53)]}), &[])]
#[case::no_selector(json!({"backendServerSelector": null}), &[])]
#[case::no_health_check(json!({"healthCheck": null}), &[])]
#[case::no_listener(json!({"listeners": []}), &["needs at least one listener"])]
#[case::two_unnamed(json!({"listeners": [listener("", 80, "TCP", 80), listener("", 81, "TCP", 81)]}), &["has a name that no port", "has a name that no port", "duplicate name \"\""])]
#[case::two_on_one_port(
    json!({"listeners": [listener("a", 80, "TCP", 8080), listener("b", 80, "TCP", 8081)]}),
    &["listener \"b\" has duplicate port TCP:80 with listener \"a\""])]
#[case::two_on_one_backend_port(
    json!({"listeners": [listener("a", 80, "TCP", 8080), listener("b", 81, "TCP", 8080)]}),
    &["listener \"b\" has duplicate backend port TCP:8080 with listener \"a\""])]
#[case::ports_out_of_range(
    json!({"listeners": [listener("a", 0, "TCP", 65_536)]}), &["port 0, must be >= 1", "backendPort 65536, must be <= 65535"])]
#[case::health_port_unknown(
    json!({"healthCheck": {"port": 80, "successThreshold": 1, "failureThreshold": 1, "periodSeconds": 1, "timeoutSeconds": 1}}),
    &["healthyCheck: port 80 is not in the listener backend port list [8080]"])]
#[case::health_port_udp(
    json!({"listeners": [listener("a", 53, "UDP", 53)], "healthCheck": {"port": 53, "successThreshold": 1, "failureThreshold": 1, "periodSeconds": 1, "timeoutSeconds": 1}}),
    &["healthyCheck: port 53 can only be a TCP backend port"])]
#[case::health_values(
    json!({"healthCheck": {"port": 8080, "successThreshold": 1, "failureThreshold": -1, "periodSeconds": 0}}),
    &["FailureThreshold should be > 0", "PeriodSeconds should be > 0", "TimeoutSeconds should be > 0"])]
#[case::health_values_count_only_with_a_port(json!({"healthCheck": {"failureThreshold": 0}}), &[])]
#[case::a_sign_counts_without_a_port(
    json!({"healthCheck": {"failureThreshold": -1}}), &["spec.healthCheck.failureThreshold is -1: write 0 or more"])]
#[case::period_huge(json!({"healthCheck": numbers(1, 1, i64::MAX, 1)}),
    &["spec.healthCheck.periodSeconds is 9223372036854775807: write 86400 or less"])]
#[case::all_huge(json!({"healthCheck": numbers(1_001, 1_001, 86_401, 86_401)}),
    &["successThreshold is 1001: write 1000 or less", "failureThreshold is 1001", "periodSeconds is 86401", "timeoutSeconds is 86401"])]
#[case::largest(json!({"healthCheck": numbers(1_000, 1_000, 86_400, 86_400)}), &[])]
#[case::http_check(json!({"healthCheck": http_check("/healthz?full=1", "")}), &[])]
#[case::https_check(json!({"healthCheck": http_check("/", "HTTPS")}), &[])]
#[case::no_slash(json!({"healthCheck": http_check("healthz", "")}), &["healthyCheck: path does not begin with a slash"])]
#[case::another_line_of_the_request(
    json!({"healthCheck": http_check("/ HTTP/1.1\r\nX: y", "")}), &["healthyCheck: path has a blank, a control character"])]
#[case::path_too_long(json!({"healthCheck": http_check(&"/".repeat(1_025), "")}), &["path has 1025 bytes, at most 1024"])]
#[case::fragment(json!({"healthCheck": http_check("/#top", "")}), &["path has a fragment"])]
#[case::unknown_scheme(json!({"healthCheck": http_check("/", "TCP")}), &["scheme is neither HTTP nor HTTPS"])]
#[case::scheme_without_path(json!({"healthCheck": http_check("", "HTTP")}), &["scheme has no effect without a path"])]
#[case::path_without_port(json!({"healthCheck": {"path": "/healthz"}}), &["path has no effect without a port"])]
#[case::several_faults_of_a_path(
    json!({"healthCheck": http_check("a b", "ftp")}), &["does not begin with a slash", "has a blank", "scheme is neither"])]
// docs/contract/load-balancer.md#LB-16: in the Go program such selectors are accepted and fail for ever
#[case::selector_without_values(json!({"backendServerSelector": {"tier": []}}), &["\"tier\" has no values"])]
#[case::selector_with_bad_key(json!({"backendServerSelector": {"a b": ["x"]}}), &["\"a b\" is not a label key"])]
#[case::selector_with_bad_value(json!({"backendServerSelector": {"tier": ["-x", ""]}}), &["\"-x\" is not a label value"])]
// the API server takes such listeners into no Service
#[case::name_of_an_environment_variable(json!({"listeners": [listener("A_B", 80, "TCP", 80)]}), &["listener \"A_B\" has a name that no port of a Service can have"])]
#[case::name_too_long(json!({"listeners": [listener(&"a".repeat(64), 80, "TCP", 80)]}), &["has a name that no port of a Service can have"])]
#[case::name_as_long_as_allowed(json!({"listeners": [listener(&"a".repeat(63), 80, "TCP", 80)]}), &[])]
#[case::the_only_listener_unnamed(json!({"listeners": [listener("", 80, "TCP", 80)]}), &[])]
#[case::one_of_two_unnamed(json!({"listeners": [listener("", 80, "TCP", 80), listener("b", 81, "TCP", 81)]}), &["listener \"\" has a name that no port of a Service can have"])]
#[case::protocol_in_lower_case(json!({"listeners": [listener("a", 80, "tcp", 80)]}), &["listener \"a\" has protocol \"tcp\""])]
#[case::protocol_of_another_layer(json!({"listeners": [listener("a", 80, "HTTP", 80)]}), &["listener \"a\" has protocol \"HTTP\""])]
#[case::protocols_of_services(
    json!({"listeners": [listener("a", 80, "UDP", 80), listener("b", 81, "SCTP", 81), listener("c", 82, "", 82)]}), &[])]
#[case::selector_at_the_limit(json!({"backendServerSelector": {"tier": vec!["a"; 1_000]}}), &[])]
#[case::selector_at_the_limit_under_ten_keys(json!({"backendServerSelector": under_keys(10, 100)}), &[])]
#[case::selector_with_many_values(
    json!({"backendServerSelector": {"tier": vec!["a"; 1_001]}}), &["backendServerSelector has 1001 values, at most 1000 are allowed"])]
#[case::selector_with_many_values_under_ten_keys(
    json!({"backendServerSelector": under_keys(10, 101)}), &["has 1010 values, at most 1000 are allowed under all keys together"])]
#[case::selector_with_many_keys(
    json!({"backendServerSelector": under_keys(101, 1)}), &["backendServerSelector has 101 keys, at most 100 are allowed"])]
#[case::several_at_once(
    json!({"listeners": [listener("a", 80, "TCP", 8080), listener("a", 80, "TCP", 8081)], "backendServerSelector": {"tier": []}}),
    &["duplicate name", "duplicate port", "has no values"])]
fn every_rule_applies_to_the_spec_of_a_vm_object(#[case] change: Value, #[case] expected: &[&str]) {
    let mut object = vm(&change);
    // a merge would leave the sample's key beside the new one
    if change["backendServerSelector"].is_object() {
        object["spec"]["backendServerSelector"] = change["backendServerSelector"].clone();
    }
    let faults = validate(&write("alice", object, Value::Null), &Seen::default(), &policy());
    assert_faults(&faults, expected);
    assert!(faults.named().iter().all(|fault| fault.reason == Reason::Invalid));
}

#[rstest]
#[case::none(json!(null), json!(null), false)]
#[case::own(json!("team-a"), json!(null), false)]
#[case::empty(json!(""), json!(null), false)]
#[case::foreign(json!("team-b"), json!(null), true)]
#[case::changed(json!("team-c"), json!("team-b"), true)]
#[case::stood(json!("team-b"), json!("team-b"), false)]
fn the_namespace_for_the_choice_of_a_pool_is_the_objects_own(
    #[case] new: Value,
    #[case] old: Value,
    #[case] refused: bool,
) {
    let with = |namespace: &Value| {
        let mut object = vm(&json!({}));
        object["metadata"]["annotations"] = json!({});
        if !namespace.is_null() {
            object["metadata"]["annotations"][annotations::LB_NAMESPACE] = namespace.clone();
        }
        object
    };
    let expected: &[&str] = if refused { &["but the object is in namespace team-a"] } else { &[] };
    for old in [json!(null), with(&old)].into_iter().skip(usize::from(!old.is_null())) {
        let bypassing = write("alice", with(&new), old.clone());
        assert_faults(&validate(&bypassing, &Seen::default(), &policy()), expected);
        // behind the mutator nothing is refused
        let completed = write("alice", completed(&bypassing, &Seen::default()), old);
        assert_faults(&validate(&completed, &Seen::default(), &policy()), &[]);
    }
}

#[rstest]
#[case::longest(&"w".repeat(63), &[])]
#[case::too_long(&"w".repeat(64), &["has at most 63 characters and no dot"])]
#[case::dot("web.shop", &["has at most 63 characters and no dot"])]
// the API server of Kubernetes 1.33 takes no such Service
#[case::digit("1web", &["begins with a letter and has at most 63 characters"])]
#[case::made_up_later("", &[])]
fn a_new_vm_object_has_a_name_that_a_service_can_have(#[case] name: &str, #[case] expected: &[&str]) {
    let named = |change: &Value, old| Write { name: name.to_owned(), ..write("alice", vm(change), old) };
    let created = named(&json!({}), Value::Null);
    assert_faults(&validate(&created, &Seen::default(), &policy()), expected);
    // one that stands can be changed, and a guest cluster's has no Service
    let updated = named(&json!({"ipPool": "edge"}), vm(&json!({})));
    assert_faults(&validate(&updated, &Seen::default(), &policy()), &[]);
    let of_cluster =
        Write { name: name.to_owned(), ..write("ccm", cluster(&json!({}), &json!({})), Value::Null) };
    assert_faults(&validate(&of_cluster, &Seen::default(), &policy()), &[]);
}

#[test]
fn listeners_that_stand_are_not_checked_again() {
    let old = vm(&json!({"listeners": [listener("A_B", 80, "tcp", 80)]}));
    let mut new = old.clone();
    new["spec"]["listeners"] = json!([listener("A_B", 80, "tcp", 80), listener("http", 81, "TCP", 81)]);
    assert_faults(&validate(&write("alice", new, old), &Seen::default(), &policy()), &[]);
}

#[test]
fn a_cluster_object_needs_no_listener() {
    let object = cluster(&json!({}), &json!({}));
    assert_faults(&validate(&write("ccm", object, Value::Null), &Seen::default(), &policy()), &[]);
}

#[rstest]
#[case::dhcp_to_pool(vm(&json!({"ipam": "pool"})), vm(&json!({})), &["can't change the IPAM from dhcp to pool"])]
#[case::dhcp_to_absent(vm(&json!({"ipam": null})), vm(&json!({})), &["can't change the IPAM from dhcp to pool"])]
#[case::pool_to_absent(vm(&json!({"ipam": null})), vm(&json!({"ipam": "pool"})), &[])]
#[case::vm_to_cluster(vm(&json!({"workloadType": "cluster"})), vm(&json!({})), &["can't change the WorkloadType from vm to cluster"])]
#[case::vm_to_absent(vm(&json!({"workloadType": null})), vm(&json!({})), &[])]
fn ipam_and_workload_type_stay_in_their_class(
    #[case] new: Value,
    #[case] old: Value,
    #[case] expected: &[&str],
) {
    assert_faults(&validate(&write("alice", new, old), &Seen::default(), &policy()), expected);
}

#[test]
fn an_object_from_before_a_rule_can_still_be_labelled_and_get_its_status() {
    let old = vm(&json!({"listeners": []}));
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"team": "a"});
    new["status"] = json!({"backendServers": ["192.168.7.11"]});
    assert_faults(&validate(&write(WRITER, new, old), &Seen::default(), &policy()), &[]);
}

#[rstest]
#[case::another_field(json!({"ipPool": "edge"}), &[])]
#[case::the_selector(json!({"backendServerSelector": {"a b": ["x"], "many": vec!["x"; 4_999]}}), &["is not a label key"])]
// two more are in the sample
#[case::more_values(json!({"backendServerSelector": {"many": vec!["x"; 5_001]}}), &["backendServerSelector has 5003 values"])]
#[case::more_values_under_another_key(json!({"backendServerSelector": {"tier": ["x"]}}), &["backendServerSelector has 5003 values"])]
#[case::as_many_under_another_key(json!({"backendServerSelector": {"many": vec!["x"; 4_999], "tier": ["x"]}}), &[])]
#[case::fewer_values(json!({"backendServerSelector": {"many": vec!["x"; 4_999]}}), &[])]
#[case::the_health_check(json!({"healthCheck": {"port": 81}}), &["duplicate name", "healthyCheck: port 81", "Success", "Failure", "Period", "Timeout"])]
#[case::the_listeners(
    json!({"listeners": [listener("a", 80, "TCP", 80), listener("a", 81, "TCP", 81), listener("b", 0, "UDP", 1)]}),
    &["duplicate name", "port 0, must be >= 1"])]
fn an_update_is_checked_by_the_fields_that_it_changes(#[case] change: Value, #[case] expected: &[&str]) {
    let mut old = vm(&json!({"listeners": [listener("a", 80, "TCP", 80), listener("a", 81, "UDP", 82)]}));
    old["spec"]["backendServerSelector"]["many"] = vec!["x"; 5_000].into();
    let mut new = old.clone();
    json_patch::merge(&mut new["spec"], &change);
    assert_faults(&validate(&write("alice", new, old), &Seen::default(), &policy()), expected);
}

#[rstest]
#[case::the_listeners(numbers(1, 1, i64::MAX, 1), json!({"listeners": [listener("web", 80, "TCP", 8080)]}), &[])]
#[case::another_number(numbers(1, 1, i64::MAX, 1), json!({"healthCheck": {"timeoutSeconds": 5}}), &[])]
#[case::this_number(numbers(1, 1, i64::MAX, 1), json!({"healthCheck": {"periodSeconds": 100_000}}), &["periodSeconds is 100000"])]
#[case::now_it_is_probed(json!({"periodSeconds": i64::MAX}), json!({"healthCheck": numbers(1, 1, i64::MAX, 1)}), &["periodSeconds is 9"])]
fn a_huge_number_of_a_health_check_that_is_made_stays_until_it_is_changed(
    #[case] check: Value,
    #[case] change: Value,
    #[case] expected: &[&str],
) {
    let old = vm(&json!({"healthCheck": check}));
    let mut new = old.clone();
    json_patch::merge(&mut new["spec"], &change);
    assert_faults(&validate(&write("alice", new, old), &Seen::default(), &policy()), expected);
}

/// One refusal of bounded length, whatever the object holds.
#[rstest]
#[case::equal_listeners(json!({"listeners": vec![listener("a", 80, "TCP", 80); 4_000]}), 3 * 3_999)]
#[case::listeners_out_of_range(
    json!({"listeners": (0..4_000).map(|n| listener(&n.to_string(), -n - 1, "TCP", 70_000 + n)).collect::<Vec<_>>()}), 2 * 4_000)]
#[case::long_names(json!({"listeners": vec![listener(&"x".repeat(100_000), 80, &"T".repeat(100_000), 80); 10]}), 3 * 9 + 2 * 10)]
#[case::unicode(json!({"listeners": vec![listener(&"\u{202e}\u{0}é🦀".repeat(1_000), 80, "TCP", 80); 10]}), 3 * 9 + 10)]
#[case::selector_keys(json!({"backendServerSelector": (0..4_000).map(|n| (format!("{} {n}", "k".repeat(500)), json!([]))).collect::<serde_json::Map<_, _>>()}), 2 * 4_000 + 1)]
#[case::selector_values(json!({"backendServerSelector": {"tier": vec!["-".repeat(1_000); 4_000]}}), 4_000 + 1)]
#[case::health_port(
    json!({"listeners": (0..4_000).map(|n| listener(&n.to_string(), n + 1, "TCP", n + 1)).collect::<Vec<_>>(),
        "healthCheck": {"port": 60_000, "successThreshold": 1, "failureThreshold": 1, "periodSeconds": 1, "timeoutSeconds": 1}}), 1)]
fn a_hostile_object_gets_an_answer_of_bounded_length(#[case] change: Value, #[case] count: usize) {
    let old = vm(&json!({"listeners": [listener("a", 1, "UDP", 1)]}));
    let faults = validate(&write("alice", vm(&change), old), &Seen::default(), &policy());
    assert_eq!(faults.named().len(), count.min(20));
    let (_, message) = faults.denial("").unwrap();
    let more = if count > 20 { format!("; and {} more", count - 20) } else { String::new() };
    assert!(message.ends_with(&more), "{message}");
    assert!(message.len() < 20_000, "{} bytes", message.len());
}

#[test]
fn an_object_with_more_listeners_than_allowed_can_still_be_changed() {
    let many: Vec<Value> = (0..4_000).map(|n| listener(&n.to_string(), n + 1, "TCP", n + 1)).collect();
    let old = vm(&json!({"listeners": many.clone()}));
    let new = vm(&json!({"listeners": many[1..], "ipPool": "edge"}));
    assert_faults(&validate(&write("alice", new, old), &Seen::default(), &policy()), &[]);
}

#[rstest]
#[case::text(json!({"listeners": "many"}))]
#[case::numbers(json!({"listeners": [1, 2]}))]
#[case::selector(json!({"backendServerSelector": [1]}))]
#[case::ipam(json!({"ipam": "magic"}))]
fn an_object_that_cannot_be_read_is_refused(#[case] change: Value) {
    let created = write("alice", vm(&change), Value::Null);
    assert_faults(&validate(&created, &Seen::default(), &policy()), &["it cannot be read: spec: "]);
    assert!(mutate(&created, &Seen::default(), &policy()).is_ok());
}

#[test]
fn a_huge_annotation_is_repeated_in_no_patch() {
    let mut object = vm(&json!({}));
    object["metadata"]["annotations"] = json!({"note": "x".repeat(250_000)});
    let created = write("alice", object, Value::Null);
    let operations = mutate(&created, &Seen::default(), &policy()).unwrap();
    assert!(serde_json::to_vec(&operations).unwrap().len() < 1_000);
}

fn deleting(mut object: Value) -> Value {
    object["metadata"]["deletionTimestamp"] = "2026-08-20T10:00:00Z".into();
    object["metadata"]["finalizers"] = json!(["team-a/keep"]);
    object
}

#[rstest]
#[case::as_it_is(deleting(vm(&json!({"listeners": []}))))]
#[case::unreadable(deleting(vm(&json!({"listeners": "many"}))))]
fn the_metadata_of_an_object_that_is_being_deleted_are_left_alone(#[case] old: Value) {
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    new["metadata"]["labels"] = json!({"team": "a"});
    let write = write("alice", new, old);
    assert_faults(&validate(&write, &Seen::default(), &policy()), &[]);
    assert_eq!(mutate(&write, &Seen::default(), &policy()), Ok(vec![]));
}

/// One that some program cannot read breaks its list of all objects, of every tenant.
#[rstest]
#[case::text("spec", json!({"healthCheck": {"periodSeconds": "7"}}), "it cannot be read: spec: ")]
#[case::large("spec", json!({"listeners": [{"port": 4_294_967_296_i64, "backendPort": 1}]}), "it cannot be read: spec: ")]
#[case::negative("spec", json!({"healthCheck": {"periodSeconds": -1}}), "spec.healthCheck.periodSeconds is -1")]
#[case::status("status", json!({"backendServers": "one"}), "it cannot be read: status: ")]
fn nobody_writes_what_some_program_cannot_read(
    #[case] part: &str,
    #[case] change: Value,
    #[case] expected: &str,
    #[values(true, false)] is_of_cluster: bool,
    #[values(true, false)] is_deleting: bool,
) {
    let mut old = if is_of_cluster { cluster(&json!({}), &json!({})) } else { vm(&json!({})) };
    if is_deleting {
        old = deleting(old);
    }
    let mut new = old.clone();
    json_patch::merge(&mut new[part], &change);
    let faults = validate(&write("alice", new, old), &Seen::default(), &policy());
    assert!(faults.named().iter().any(|fault| fault.message.starts_with(expected)), "{faults:?}");
}

/// An earlier version of this webhook took such numbers.
#[test]
fn an_object_that_is_being_deleted_gets_its_status_whatever_its_health_check_says() {
    let old = deleting(vm(&json!({"healthCheck": {"periodSeconds": -1}})));
    let mut new = old.clone();
    new["status"] = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    assert_faults(&validate(&write(WRITER, new, old), &Seen::default(), &policy()), &[]);
}

#[test]
fn an_object_that_is_being_deleted_stays_of_its_class() {
    let old = deleting(vm(&json!({})));
    let mut new = old.clone();
    new["spec"]["workloadType"] = "cluster".into();
    let faults = validate(&write("alice", new, old), &Seen::default(), &policy());
    assert_faults(&faults, &["can't change the WorkloadType from vm to cluster"]);
}

#[rstest]
#[case::none_before(json!(null), json!({"ipPool": "edge", "ip": "192.0.2.10"}), "192.0.2.10")]
#[case::another_before(
    json!({"allocatedAddress": {"ipPool": "edge", "ip": "192.0.2.9"}, "address": "192.0.2.9"}),
    json!({"ipPool": "edge", "ip": "192.0.2.10"}), "192.0.2.10")]
#[case::a_lease(
    json!({"allocatedAddress": {"ip": "0.0.0.0"}, "address": "192.0.2.9"}), json!({"ip": "0.0.0.0"}), "192.0.2.10")]
fn nobody_forges_the_status_of_an_object_that_is_being_deleted(
    #[case] status: Value,
    #[case] allocated: Value,
    #[case] address: &str,
    #[values("vm", "cluster")] workload: &str,
) {
    let mut old = deleting(vm(&json!({})));
    if !status.is_null() {
        old["status"] = status;
    }
    let mut new = old.clone();
    // a tenant must not get the rights of a cloud controller manager by another workload type either
    new["spec"]["workloadType"] = workload.into();
    new["status"] = json!({"allocatedAddress": allocated, "address": address});
    let forged = write("alice", new.clone(), old.clone());
    let faults = validate(&forged, &Seen::default(), &policy());
    assert!(faults.named().iter().any(|fault| fault.message.contains("is written by")), "{faults:?}");
    assert_eq!(completed(&forged, &Seen::default()).get("status"), old.get("status"));
    new["spec"] = old["spec"].clone();
    let by_writer = write(WRITER, new, old);
    assert_faults(&validate(&by_writer, &Seen::default(), &policy()), &[]);
    assert_eq!(mutate(&by_writer, &Seen::default(), &policy()), Ok(vec![]));
}

fn node_vm(cluster: &str, removing: bool) -> Arc<VirtualMachine> {
    let annotations =
        if removing { json!({"harvesterhci.io/removeAllPersistentVolumeClaims": "true"}) } else { json!({}) };
    let labels = json!({"harvesterhci.io/creator": "docker-machine-driver-harvester", "guestcluster.harvesterhci.io/name": cluster});
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": {},
        "metadata": {"name": format!("{cluster}-pool1-x"), "namespace": "team-a", "labels": labels, "annotations": annotations}});
    Arc::new(serde_json::from_value(vm).unwrap())
}

#[rstest]
#[case::being_removed("gc1", vec![node_vm("gc1", false), node_vm("gc1", true)], &["guest cluster check: the VM team-a/gc1-pool1-x shows"])]
#[case::alive("gc1", vec![node_vm("gc1", false)], &[])]
#[case::another_is_removed("gc1", vec![node_vm("gc2", true)], &[])]
#[case::no_vms("gc1", vec![], &[])]
#[case::default_name("kubernetes", vec![node_vm("kubernetes", true)], &[])]
#[case::empty_name("", vec![node_vm("", true)], &[])]
fn no_new_object_for_a_guest_cluster_that_is_being_removed(
    #[case] name: &str,
    #[case] vms: Vec<Arc<VirtualMachine>>,
    #[case] expected: &[&str],
) {
    let object = cluster(&json!({"cloudprovider.harvesterhci.io/cluster": name}), &json!({}));
    let seen = Seen { vms, ..Seen::default() };
    let faults = validate(&write("ccm", object.clone(), Value::Null), &seen, &policy());
    assert_faults(&faults, expected);
    assert!(faults.named().iter().all(|fault| fault.reason == Reason::Forbidden));
    let update = write("ccm", object.clone(), object);
    assert_faults(&validate(&update, &seen, &policy()), &[]);
}

#[test]
fn a_forged_status_that_bypassed_the_mutator_is_refused() {
    let old = vm(&json!({}));
    let mut new = old.clone();
    new["status"] = json!({"allocatedAddress": {"ip": "10.0.0.1"}, "address": "10.0.0.1"});
    let forged = write("alice", new.clone(), old.clone());
    let faults = validate(&forged, &Seen::default(), &policy());
    assert_faults(
        &faults,
        &["status.allocatedAddress is written by system:serviceaccount", "status.address"],
    );
    assert_faults(&validate(&write(WRITER, new, old.clone()), &Seen::default(), &policy()), &[]);

    let after = completed(&forged, &Seen::default());
    assert!(after["status"].is_null());
    assert_faults(&validate(&write("alice", after, old), &Seen::default(), &policy()), &[]);
}

fn seen(project: Option<&str>, vmis: Vec<Arc<VirtualMachineInstance>>) -> Seen {
    let annotations =
        project.map(|id| (annotations::PROJECT_ID.to_owned(), id.to_owned())).into_iter().collect();
    Seen { namespace: Some(annotations), vmis, ..Seen::default() }
}

// docs/contract/load-balancer.md#WH-1
#[rstest]
#[case::ui(vm(&json!({})), json!({}))]
#[case::port_only(vm(&json!({"healthCheck": {"port": 8080}})), json!({"successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1, "timeoutSeconds": 1}))]
#[case::zeros(vm(&json!({"healthCheck": {"port": 8080, "successThreshold": 0, "failureThreshold": 3}})), json!({"successThreshold": 2, "failureThreshold": 3, "periodSeconds": 1, "timeoutSeconds": 1}))]
#[case::all_given(
    vm(&json!({"healthCheck": {"port": 8080, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3}})),
    json!({"successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3}))]
fn a_vm_object_gets_its_namespace_and_the_missing_health_values(#[case] object: Value, #[case] check: Value) {
    let created = write("alice", object.clone(), Value::Null);
    let operations = mutate(&created, &Seen::default(), &policy()).unwrap();
    assert!(operations.iter().all(|operation| matches!(operation, PatchOperation::Add(_))));
    let after = completed(&created, &Seen::default());
    assert_eq!(after["metadata"]["annotations"], json!({"loadbalancer.harvesterhci.io/namespace": "team-a"}));
    let mut expected = check;
    if let Some(port) = object["spec"]["healthCheck"].get("port") {
        expected["port"] = port.clone();
    }
    assert_eq!(after["spec"]["healthCheck"], expected);
    let again = write("alice", after, object);
    assert_eq!(mutate(&again, &Seen::default(), &policy()), Ok(vec![]));
}

#[rstest]
#[case::float(json!(1e300))]
#[case::unsigned(json!(u64::MAX))]
#[case::text(json!("7"))]
fn a_number_of_a_health_check_that_does_not_fit_is_refused_and_not_taken_for_absent(#[case] period: Value) {
    let object = vm(&json!({"healthCheck": {"port": 8080, "periodSeconds": period}}));
    let after = completed(&write("alice", object, Value::Null), &Seen::default());
    assert_eq!(after["spec"]["healthCheck"]["periodSeconds"], period);
    let created = write("alice", after, Value::Null);
    assert_faults(&validate(&created, &Seen::default(), &policy()), &["it cannot be read: spec: "]);
}

fn node(name: &str, labels: &Value, networks: &Value) -> Arc<VirtualMachineInstance> {
    let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "team-a", "labels": labels}, "spec": {"networks": networks}});
    Arc::new(serde_json::from_value(vmi).unwrap())
}

fn multus(network: &str) -> Value {
    json!([{"name": "default", "pod": {}}, {"name": "nic-1", "multus": {"networkName": network}}])
}

#[rstest]
#[case::explicit(json!({annotations::LB_NETWORK: "team-a/vlan9", annotations::MANAGEMENT_NETWORK: "team-a/mgmt"}), "team-a/vlan9")]
#[case::management(json!({annotations::LB_NETWORK: "", annotations::MANAGEMENT_NETWORK: "team-a/mgmt"}), "team-a/mgmt")]
#[case::by_label(json!({annotations::LB_CLUSTER: "gc1"}), "team-a/vlan10")]
// docs/contract/node-driver.md#B13: the node driver hashes what no label can be
#[case::by_label_of_an_odd_name(json!({annotations::LB_CLUSTER: "a b"}), "team-a/vlan40")]
#[case::by_name(json!({annotations::LB_CLUSTER: "gc2"}), "team-a/vlan20")]
#[case::unknown_cluster(json!({annotations::LB_CLUSTER: "gc3"}), "")]
#[case::no_cluster(json!({}), "")]
fn the_network_of_a_cluster_object_is_the_first_one_known(#[case] given: Value, #[case] expected: &str) {
    let creator = json!({"harvesterhci.io/creator": "docker-machine-driver-harvester"});
    let vmis = vec![
        node(
            "a-1",
            &json!({"guestcluster.harvesterhci.io/name": "gc1"}),
            &json!([{"name": "default", "pod": {}}]),
        ),
        node("a-2", &json!({"guestcluster.harvesterhci.io/name": "gc1"}), &multus("team-a/vlan10")),
        node("a-4", &json!({"guestcluster.harvesterhci.io/name": "hash_EKP58g_z"}), &multus("team-a/vlan40")),
        node("gc2-pool1-x", &creator, &multus("vlan20")),
        node("gc3-by-hand", &json!({}), &multus("team-a/vlan30")),
    ];
    let write = write("ccm", cluster(&json!({}), &given), Value::Null);
    let annotations = &completed(&write, &seen(Some("c-q4xz6:p-6vvfz"), vmis))["metadata"]["annotations"];
    assert_eq!(annotations[annotations::LB_NETWORK], expected);
    assert_eq!(annotations[annotations::LB_PROJECT], "c-q4xz6/p-6vvfz");
    assert_eq!(annotations[annotations::LB_NAMESPACE], "team-a");
}

#[rstest]
#[case::no_project(seen(None, vec![]), Ok(""))]
#[case::no_namespace(Seen::default(), Err("there is no namespace team-a"))]
fn the_project_of_a_cluster_object_is_its_namespaces(
    #[case] seen: Seen,
    #[case] expected: Result<&str, &str>,
) {
    let object = cluster(&json!({}), &json!({annotations::LB_PROJECT: "c-evil/p-evil"}));
    let answer = mutate(&write("ccm", object.clone(), Value::Null), &seen, &policy());
    let project = answer.map(|operations| {
        patched(&object, &operations)["metadata"]["annotations"][annotations::LB_PROJECT]
            .as_str()
            .unwrap()
            .to_owned()
    });
    assert_eq!(
        project.map_err(|fault| fault.message),
        expected.map(ToOwned::to_owned).map_err(ToOwned::to_owned)
    );
}

#[rstest]
#[case("tier", true)]
#[case("harvesterhci.io/vmName", true)]
#[case("a/b/c", false)]
#[case("/a", false)]
#[case("Upper.io/a", false)]
#[case("", false)]
#[case("-a", false)]
fn label_keys_are_those_of_kubernetes(#[case] key: &str, #[case] expected: bool) {
    assert_eq!(is_label_key(key), expected);
}
