use harvester_api::{IPPoolSpec, IPPoolStatus};
use kube::api::ObjectMeta;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

const BETA: &str = V1BETA1;
const ALPHA: &str = V1ALPHA1;

fn object(version: &str, parts: &Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "team-a", "uid": "u-1", "generation": 4}});
    for (key, value) in parts.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

fn beta() -> Value {
    object(
        BETA,
        &json!({
            "spec": {"description": "d", "workloadType": "vm", "ipPool": "lab", "listeners": [
                    {"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
                "backendServerSelector": {"app": ["web"]},
                "healthCheck": {"port": 8080, "periodSeconds": 7}},
            "status": {"address": "192.0.2.7", "backendServers": ["10.0.0.1"],
                "allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7", "mask": "255.255.255.0"},
                "conditions": [{"type": "Ready", "status": "True"}]},
        }),
    )
}

fn lab(holder: &str) -> Vec<IPPool> {
    let status = IPPoolStatus {
        allocated: [("192.0.2.7".to_owned(), holder.to_owned())].into(),
        ..Default::default()
    };
    let metadata = ObjectMeta { name: Some("lab".to_owned()), ..ObjectMeta::default() };
    vec![IPPool { metadata, spec: IPPoolSpec::default(), status: Some(status) }]
}

// docs/contract/load-balancer.md#9.5
#[test]
fn an_object_of_today_is_shown_as_one_of_the_former_version() {
    let alpha = convert(beta(), ALPHA, &Lookup::default());
    assert_eq!(
        alpha["spec"],
        json!({"description": "d", "ipam": "pool", "backendServers": ["10.0.0.1"],
        "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
        "healthCheck": {"port": 8080, "successThreshold": 2, "failureThreshold": 2, "PeriodSeconds": 7, "timeoutSeconds": 1}})
    );
    assert_eq!(
        alpha["status"],
        json!({"address": "192.0.2.7", "conditions": [{"type": "Ready", "status": "True"}]})
    );
    assert_eq!(alpha["apiVersion"], ALPHA);
}

// docs/contract/load-balancer.md#9.5
#[test]
fn an_object_that_was_stored_before_harvester_1_2_keeps_address_pool_and_backends() {
    let stored = object(
        ALPHA,
        &json!({
        "spec": {"ipam": "pool", "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}],
            "backendServers": ["10.0.0.1", "10.0.0.9"],
            "healthCheck": {"port": 80, "successThreshold": 1, "failureThreshold": 3, "PeriodSeconds": 5, "timeoutSeconds": 3}},
        "status": {"address": "192.0.2.7"}}),
    );
    let pools = lab("team-a/web");
    let machines = BTreeMap::from([
        (("team-a", "10.0.0.1"), BTreeSet::from(["vm-1"])),
        (("team-b", "10.0.0.9"), BTreeSet::from(["vm-9"])),
    ]);
    let beta = convert(stored, BETA, &Lookup { pools: &pools, machines });
    assert_eq!(
        beta["spec"],
        json!({"ipam": "pool", "ipPool": "lab",
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP", "backendPort": 80}],
        "backendServerSelector": {"harvesterhci.io/vmName": ["vm-1"]},
        "healthCheck": {"port": 80, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3}})
    );
    assert_eq!(
        beta["status"],
        json!({"address": "192.0.2.7", "backendServers": ["10.0.0.1", "10.0.0.9"],
        "allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7"}})
    );
}

// docs/contract/load-balancer.md#WH-3: one such object broke every list
#[rstest]
#[case::no_record("pool", lab("team-a/other"), None)]
#[case::no_pool("pool", vec![], None)]
#[case::leased("dhcp", vec![], Some(json!({"ip": "0.0.0.0"})))]
fn an_address_that_no_pool_knows_is_no_error(
    #[case] ipam: &str,
    #[case] pools: Vec<IPPool>,
    #[case] allocated: Option<Value>,
) {
    let stored = object(ALPHA, &json!({"spec": {"ipam": ipam}, "status": {"address": "192.0.2.7"}}));
    let beta = convert(stored, BETA, &Lookup { pools: &pools, machines: BTreeMap::new() });
    assert_eq!(beta["status"]["address"], "192.0.2.7");
    assert_eq!(beta["status"].get("allocatedAddress"), allocated.as_ref());
}

// docs/contract/load-balancer.md#WH-2
#[rstest]
#[case::no_status(json!({"spec": {"ipam": "pool"}}), json!({"ipam": "pool"}))]
#[case::no_spec(json!({}), json!({}))]
#[case::no_backend_port(json!({"spec": {"ipam": "pool", "listeners": [{"name": "a", "port": 1, "protocol": "TCP"}]}}),
    json!({"ipam": "pool", "listeners": [{"name": "a", "port": 1, "protocol": "TCP", "backendPort": 1}]}))]
fn what_the_former_schema_lets_be_absent_is_filled_in(#[case] parts: Value, #[case] spec: Value) {
    let beta = convert(object(ALPHA, &parts), BETA, &Lookup::default());
    assert_eq!((&beta["spec"], beta.get("status")), (&spec, None));
}

// docs/contract/load-balancer.md#WH-4
#[test]
fn what_is_edited_in_the_former_version_is_edited_and_the_rest_stays() {
    let mut alpha = convert(beta(), ALPHA, &Lookup::default());
    alpha["spec"]["description"] = "other".into();
    alpha["spec"]["healthCheck"]["PeriodSeconds"] = 9.into();
    alpha["spec"]["listeners"][0]["port"] = 81.into();
    alpha["metadata"]["generation"] = 5.into();
    let mut expected = beta();
    expected["metadata"]["generation"] = 5.into();
    expected["spec"]["description"] = "other".into();
    expected["spec"]["listeners"][0]["port"] = 81.into();
    expected["spec"]["healthCheck"] = json!({"port": 8080, "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 9, "timeoutSeconds": 1});
    assert_eq!(convert(alpha, BETA, &Lookup::default()), expected);
}

#[test]
fn a_health_check_stays_an_http_request_when_the_former_version_edits_the_rest_of_it() {
    let mut stored = beta();
    stored["spec"]["healthCheck"]["path"] = "/healthz".into();
    stored["spec"]["healthCheck"]["scheme"] = "HTTPS".into();
    let mut alpha = convert(stored, ALPHA, &Lookup::default());
    alpha["spec"]["healthCheck"]["PeriodSeconds"] = 9.into();
    alpha["metadata"]["generation"] = 5.into();
    let beta = convert(alpha, BETA, &Lookup::default());
    let expected = json!({"port": 8080, "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 9, "timeoutSeconds": 1,
        "path": "/healthz", "scheme": "HTTPS"});
    assert_eq!(beta["spec"]["healthCheck"], expected);
}

#[rstest]
#[case::of_another_object("uid", json!("u-2"))]
#[case::of_an_earlier_version("generation", json!(6))]
#[case::of_a_new_object("uid", json!(null))]
fn what_was_kept_counts_for_its_object_and_version_alone(#[case] field: &str, #[case] value: Value) {
    let mut alpha = convert(beta(), ALPHA, &Lookup::default());
    alpha["metadata"][field] = value;
    let beta = convert(alpha, BETA, &Lookup::default());
    assert_eq!((&beta["spec"]["ipPool"], beta["status"].get("allocatedAddress")), (&Value::Null, None));
    assert_eq!(beta["metadata"].get("annotations"), None, "it is not stored");
}

/// It was written through v1alpha1 before the API server had the webhook convert, and edited in v1beta1 since.
#[test]
fn an_object_that_was_stored_without_a_backend_port_keeps_the_rest_when_the_former_version_edits_it() {
    let mut stored = beta();
    stored["spec"]["listeners"] = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let mut alpha = convert(stored.clone(), ALPHA, &Lookup::default());
    alpha["spec"]["description"] = "other".into();
    let edited = convert(alpha, BETA, &Lookup::default());
    assert_eq!(edited["spec"]["backendServerSelector"], stored["spec"]["backendServerSelector"]);
    assert_eq!(edited["spec"]["listeners"][0]["backendPort"], 80);
    assert_eq!(edited["spec"]["description"], "other");
}

#[test]
fn an_object_too_large_to_be_kept_is_shown_all_the_same() {
    let mut large = beta();
    large["spec"]["description"] = "x".repeat(KEPT_MAX).into();
    let alpha = convert(large, ALPHA, &Lookup::default());
    assert_eq!((&alpha["metadata"].get("annotations"), &alpha["spec"]["ipam"]), (&None, &json!("pool")));
}

// an API server refuses what a conversion makes larger than it takes from a client, and with it the whole list
#[rstest]
#[case::room(200 << 10, true)]
#[case::no_room((256 << 10) - 300, false)]
fn annotations_that_leave_no_room_break_no_list(#[case] bytes: usize, #[case] kept: bool) {
    let mut full = beta();
    full["metadata"]["annotations"] = json!({"of-the-user": "x".repeat(bytes)});
    let alpha = convert(full, ALPHA, &Lookup::default());
    let annotations = alpha["metadata"]["annotations"].as_object().unwrap();
    let size: usize = annotations.iter().map(|(key, text)| key.len() + text.as_str().unwrap().len()).sum();
    assert!(size <= 262_144, "{size}");
    assert_eq!(annotations.contains_key(KEPT), kept);
}

#[test]
fn an_annotation_that_somebody_stored_is_not_shown_as_one_of_ours() {
    let mut large = beta();
    large["spec"]["description"] = "x".repeat(KEPT_MAX).into();
    large["metadata"]["annotations"] = json!({KEPT: "forged", "note": "n"});
    let alpha = convert(large, ALPHA, &Lookup::default());
    assert_eq!(alpha["metadata"]["annotations"], json!({"note": "n"}));
}

fn review(to: &str, objects: &Value) -> Value {
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "r-1", "desiredAPIVersion": to, "objects": objects}})
    .to_string();
    serde_json::from_str(&answered(review.as_bytes())).unwrap()
}

/// The answer where nothing is known of the cluster.
fn answered(review: &[u8]) -> String {
    let read = Review::read(review).and_then(|review| review.needs().map(|_| review));
    let answer = read.and_then(|review| answer(&review, &Lookup::default()));
    answer.unwrap_or_else(|(uid, why)| refusal(&uid, &why))
}

#[test]
fn objects_of_both_versions_come_back_in_their_order() {
    let alpha = convert(beta(), ALPHA, &Lookup::default());
    let answer = review(BETA, &json!([alpha, beta()]));
    assert_eq!(answer["response"]["uid"], "r-1");
    assert_eq!(answer["response"]["result"], json!({"status": "Success"}));
    assert_eq!(answer["response"]["convertedObjects"], json!([beta(), beta()]));
}

#[rstest]
#[case::foreign_kind(BETA, json!([{"apiVersion": "v1", "kind": "Pod"}]), "Pod")]
#[case::pool(ALPHA, json!([{"apiVersion": BETA, "kind": "IPPool"}]), "IPPool")]
#[case::no_object(BETA, json!(["text"]), "not converted")]
#[case::other_version("loadbalancer.harvesterhci.io/v2", json!([]), "v2")]
fn what_cannot_be_converted_is_named_to_the_api_server(
    #[case] to: &str,
    #[case] objects: Value,
    #[case] part: &str,
) {
    let answer = review(to, &objects);
    let result = &answer["response"]["result"];
    assert_eq!((&result["status"], &answer["response"]["uid"]), (&json!("Failure"), &json!("r-1")));
    assert!(result["message"].as_str().unwrap().contains(part), "{result}");
}

#[rstest]
#[case(json!([]))]
#[case(json!(null))]
fn a_review_without_objects_is_answered(#[case] objects: Value) {
    assert_eq!(review(ALPHA, &objects)["response"]["result"]["status"], "Success");
}

/// The object as it is shown in the former version, with another change of metadata; it lists no addresses of backends.
fn shown(metadata: &Value) -> Value {
    let mut alpha = convert(beta(), ALPHA, &Lookup::default());
    alpha["spec"]["backendServers"] = json!([]);
    json_patch::merge(&mut alpha["metadata"], metadata);
    alpha
}

fn with_backends(addresses: &[&str], generation: i64) -> Value {
    let mut alpha = shown(&json!({"generation": generation}));
    alpha["spec"]["backendServers"] = json!(addresses);
    alpha
}

#[rstest]
#[case::kept(beta(), BETA, false, false)]
#[case::today(beta(), ALPHA, false, false)]
#[case::stored(object(ALPHA, &json!({"spec": {"ipam": "pool"}, "status": {"address": "192.0.2.7"}})), BETA, true, false)]
#[case::leased(object(ALPHA, &json!({"spec": {"ipam": "dhcp"}, "status": {"address": "192.0.2.7"}})), BETA, false, false)]
#[case::backends(object(ALPHA, &json!({"spec": {"ipam": "pool", "backendServers": ["10.0.0.1"]}})), BETA, false, true)]
#[case::kept_and_edited(shown(&json!({})), BETA, false, false)]
#[case::kept_with_its_backends(with_backends(&["10.0.0.1"], 4), BETA, false, false)]
#[case::kept_with_other_backends(with_backends(&["10.0.0.9"], 4), BETA, false, true)]
#[case::backends_of_an_earlier_version(with_backends(&["10.0.0.1"], 6), BETA, true, true)]
#[case::of_another_object(shown(&json!({"uid": "u-2"})), BETA, true, false)]
#[case::of_an_earlier_version(shown(&json!({"generation": 6})), BETA, true, false)]
fn the_cluster_is_asked_only_for_what_an_object_needs(
    #[case] object: Value,
    #[case] to: &str,
    #[case] pools: bool,
    #[case] machines: bool,
) {
    let review = json!({"request": {"uid": "r", "desiredAPIVersion": to, "objects": [object]}}).to_string();
    let machines = machines.then(|| "team-a".to_owned()).into_iter().collect();
    assert_eq!(Review::read(review.as_bytes()).unwrap().needs(), Ok(Needs { pools, machines }));
}

// there may be thousands of VMs, and a list of a thousand objects is a thousand reviews
#[test]
fn only_virtual_machines_of_the_objects_own_namespaces_are_looked_up() {
    let of = |namespace: &str| {
        let mut object = object(ALPHA, &json!({"spec": {"ipam": "pool", "backendServers": ["10.0.0.1"]}}));
        object["metadata"]["namespace"] = namespace.into();
        object
    };
    let objects = [of("team-b"), of("team-a"), of("team-b"), of(&"x".repeat(64))];
    let review = json!({"request": {"uid": "r", "desiredAPIVersion": BETA, "objects": objects}}).to_string();
    let needs = Review::read(review.as_bytes()).unwrap().needs().unwrap();
    assert_eq!(needs.machines, BTreeSet::from(["team-a", "team-b"].map(str::to_owned)));
}

// everybody in the cluster's network can send a review
#[rstest]
#[case::objects(json!(vec![0; 200_000]), "200000 objects are asked for, at most 50000 are converted at once")]
#[case::values(json!([of_values(200_000)]), "team-a/web has 200012 fields and list entries, at most 200000 are converted")]
#[case::length(json!([object(ALPHA, &json!({"spec": {"description": "x".repeat(5 << 20)}}))]),
    "team-a/web has 5243056 bytes, at most 4194304 are converted")]
#[case::no_object(json!([vec![0; 300_000]]), "an object has 300000 fields")]
fn what_would_take_more_memory_than_real_objects_is_refused(
    #[values(ALPHA, BETA)] to: &str,
    #[case] objects: Value,
    #[case] part: &str,
) {
    let answer = review(to, &objects);
    let message = answer["response"]["result"]["message"].as_str().unwrap();
    assert_eq!(answer["response"]["uid"], "r-1");
    assert!(message.contains(part), "{message}");
}

// the zeros would be in memory before the depth is seen
#[test]
fn an_object_that_is_too_deep_to_be_read_is_refused_before_anything_is_built_of_it() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let object = format!("{{\"a\": [0{}], \"b\": {deep}}}", ",0".repeat(300_000));
    let body = format!(
        "{{\"request\": {{\"uid\": \"u\", \"desiredAPIVersion\": \"{BETA}\", \"objects\": [{object}]}}}}"
    );
    let (uid, why) = Review::read(body.as_bytes()).unwrap().needs().unwrap_err();
    assert!(uid == "u" && why.contains("no JSON that can be read: recursion limit"), "{why}");
}

/// An object of the former version with an annotation of ours, and so many zeros.
fn of_values(zeros: usize) -> Value {
    let mut alpha = convert(beta(), ALPHA, &Lookup::default());
    alpha["spec"] = json!({"more": vec![0; zeros]});
    alpha["status"] = Value::Null;
    alpha
}

#[rstest]
#[case::uid("uid", "request.uid")]
#[case::version("desiredAPIVersion", "objects are converted to")]
#[case::objects("objects", "the body is no ConversionReview: invalid type: string")]
#[case::object_of_another_kind("kind", "is not converted here")]
fn a_long_text_of_a_peer_is_not_repeated(#[case] field: &str, #[case] part: &str) {
    let mut request =
        json!({"uid": "u", "desiredAPIVersion": BETA, "objects": [{"kind": "x".repeat(100_000)}]});
    if field != "kind" {
        request[field] = "x".repeat(100_000).into();
    }
    let answer = answered(json!({"request": request}).to_string().as_bytes());
    assert!(answer.len() < 3_000, "{} bytes", answer.len());
    assert!(answer.contains(part), "{answer}");
}

#[test]
fn an_annotation_longer_than_any_of_ours_is_not_read() {
    let mut alpha = convert(beta(), ALPHA, &Lookup::default());
    let kept = alpha["metadata"]["annotations"][KEPT].as_str().unwrap();
    let padded = |length: usize| format!("{kept}{}", " ".repeat(length - kept.len()));
    let [longest, longer] = [KEPT_MAX, KEPT_MAX + 1].map(padded);
    alpha["metadata"]["annotations"][KEPT] = longest.into();
    assert_eq!(convert(alpha.clone(), BETA, &Lookup::default())["spec"]["ipPool"], "lab");
    alpha["metadata"]["annotations"][KEPT] = longer.into();
    assert_eq!(convert(alpha, BETA, &Lookup::default())["spec"].get("ipPool"), None);
}

#[test]
fn an_answer_takes_no_more_memory_than_the_largest_review() {
    // each quotation mark is four bytes in the annotation
    let mut object = beta();
    object["spec"]["description"] = "\"".repeat(60_000).into();
    let message = review(ALPHA, &vec![object; 100].into())["response"]["result"]["message"].take();
    assert!(message.as_str().unwrap().contains("ask for fewer at once"), "{message}");
}

#[test]
fn a_thousand_objects_with_everything_in_them_are_converted_and_come_back() {
    let mut full = beta();
    let listener = |n: u32| json!({"name": format!("l{n}"), "port": n, "protocol": "TCP", "backendPort": n});
    full["spec"]["listeners"] =
        (1..=harvester_api::load_balancer::MAX_LISTENERS as u32).map(listener).collect();
    full["status"]["backendServers"] = (0..500).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    let objects = Value::from(vec![full; 1_000]);
    let mut alpha = review(ALPHA, &objects)["response"].take();
    assert_eq!(alpha["result"]["status"], "Success", "{}", alpha["result"]);
    let beta = review(BETA, &alpha["convertedObjects"].take())["response"].take();
    assert!(beta["convertedObjects"] == objects, "{}", beta["result"]);
}

// a guest agent reports the addresses of an interface in any order
#[test]
fn a_vm_is_found_by_each_of_its_addresses() {
    let vmi = json!({"metadata": {"name": "vm-1", "namespace": "team-a"}, "spec": {}, "status": {"interfaces": [
        {"ipAddress": "", "ipAddresses": ["fd00::1", "10.0.0.1"]}, {"ipAddress": "10.0.0.2"}]}});
    let vmis = [Arc::new(serde_json::from_value(vmi).unwrap())];
    let found: Vec<_> = machines(&vmis).into_keys().collect();
    assert_eq!(found, ["10.0.0.1", "10.0.0.2", "fd00::1"].map(|address| ("team-a", address)));
}

/// Anything that could stand in the place of a field.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9.:/]{0,12}".prop_map(Value::from),
    ];
    let fields = prop::sample::select(vec![
        "metadata",
        "annotations",
        "spec",
        "status",
        "listeners",
        "name",
        "port",
        "backendPort",
        "healthCheck",
        "PeriodSeconds",
        "periodSeconds",
        "address",
        "backendServers",
        "ipam",
        "allocatedAddress",
        "uid",
        "generation",
        KEPT,
    ]);
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((fields.clone(), inner), 0..6)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// An object of v1beta1 as its schema lets it be.
fn any_beta() -> impl Strategy<Value = Value> {
    let text = || prop::option::of("[a-z]{1,8}");
    let number = || prop::option::of(0..70_000_i64);
    let listener = (text(), 1..65_536_i64, 1..65_536_i64).prop_map(|(name, port, backend)| {
        let mut listener = json!({"port": port, "protocol": "TCP", "backendPort": backend});
        set(&mut listener, "name", name.map(Value::from));
        listener
    });
    let check = (number(), number(), number()).prop_map(|(port, period, success)| {
        let mut check = json!({});
        set(&mut check, "port", port.map(Value::from));
        set(&mut check, "periodSeconds", period.map(Value::from));
        set(&mut check, "successThreshold", success.map(Value::from));
        check
    });
    let spec = (
        text(),
        text(),
        text(),
        prop::option::of(prop::collection::vec(listener, 0..3)),
        prop::option::of(check),
    );
    let status =
        prop::option::of((text(), text(), prop::option::of(prop::collection::vec("[a-z]{1,4}", 0..3))));
    (spec, status).prop_map(|((description, pool, workload, listeners, check), status)| {
        let workload = workload.map(|text| if text.len() > 4 { "vm" } else { "cluster" });
        let mut object = object(BETA, &json!({"spec": {}}));
        set(&mut object["spec"], "workloadType", workload.map(Value::from));
        for (field, value) in [("description", description), ("ipPool", pool)] {
            set(&mut object["spec"], field, value.map(Value::from));
        }
        set(&mut object["spec"], "listeners", listeners.map(Value::from));
        set(&mut object["spec"], "healthCheck", check);
        if let Some((address, from, servers)) = status {
            object["status"] = json!({});
            set(&mut object["status"], "address", address.map(Value::from));
            set(&mut object["status"], "allocatedAddress", from.map(|ip| json!({"ip": ip})));
            set(&mut object["status"], "addresses", servers.clone().map(Value::from));
            set(&mut object["status"], "backendServers", servers.map(Value::from));
        }
        object
    })
}

/// An object of v1alpha1 as its schema lets it be, with what v1beta1 requires.
fn any_alpha() -> impl Strategy<Value = Value> {
    let text = || prop::option::of("[a-z]{1,8}");
    let listener = ("[a-z]{0,8}", 1..65_536_i64, 1..65_536_i64).prop_map(
        |(name, port, backend)| json!({"name": name, "port": port, "protocol": "UDP", "backendPort": backend}),
    );
    let check = (1..65_536_i64, 0..9_i64, 0..9_i64, 0..9_i64, 0..9_i64).prop_map(|(port, a, b, c, d)| {
        json!({"port": port, "successThreshold": a, "failureThreshold": b, "PeriodSeconds": c, "timeoutSeconds": d})
    });
    let spec = (
        text(),
        prop::sample::select(vec!["pool", "dhcp"]),
        prop::option::of(prop::collection::vec(listener, 0..3)),
        prop::option::of(prop::collection::vec("[a-z]{1,4}", 0..3)),
        prop::option::of(check),
    );
    let address = prop::option::of(text());
    (spec, address).prop_map(|((description, ipam, listeners, servers, check), status)| {
        let mut object = object(ALPHA, &json!({"spec": {"ipam": ipam}}));
        set(&mut object["spec"], "description", description.map(Value::from));
        set(&mut object["spec"], "listeners", listeners.map(Value::from));
        set(&mut object["spec"], "backendServers", servers.map(Value::from));
        set(&mut object["spec"], "healthCheck", check);
        if let Some(address) = status {
            object["status"] = json!({});
            set(&mut object["status"], "address", address.map(Value::from));
        }
        object
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_object_comes_back_from_the_former_version_as_it_was(beta in any_beta(), written in any::<bool>()) {
        let mut alpha = convert(beta.clone(), ALPHA, &Lookup::default());
        prop_assert!(alpha["spec"]["ipam"].is_string(), "the former schema requires it");
        let mut expected = beta;
        if written {
            alpha["metadata"]["generation"] = 5.into();
            expected["metadata"]["generation"] = 5.into();
        }
        prop_assert_eq!(convert(alpha, BETA, &Lookup::default()), expected);
    }

    // storage migration writes each object in v1beta1, and clients of the former version read it there
    #[test]
    fn every_object_of_the_former_version_is_the_same_after_it_was_stored_in_todays(alpha in any_alpha()) {
        let mut stored = convert(alpha.clone(), BETA, &Lookup::default());
        prop_assert!(stored["spec"].is_object(), "the schema requires it");
        prop_assert_eq!(stored["metadata"].get("annotations"), None);
        stored["metadata"]["generation"] = 9.into();
        let back = convert(stored, ALPHA, &Lookup::default());
        prop_assert_eq!(&back["spec"], &alpha["spec"]);
        let said = |object: &Value| object["status"]["address"].clone();
        prop_assert_eq!(said(&back), said(&alpha));
    }

    // whoever may write objects in one namespace can write the annotation himself
    #[test]
    fn whatever_the_annotation_says_the_object_is_one_that_the_schema_allows(
        alpha in any_alpha(),
        spec in any_value(),
        status in any_value(),
        beta in any_beta(),
    ) {
        let mut mixed = beta["spec"].clone();
        json_patch::merge(&mut mixed, &spec);
        for spec in [spec, mixed] {
            let mut alpha = alpha.clone();
            let kept = json!({"uid": "u-1", "generation": 4, "spec": spec, "status": status});
            alpha["metadata"]["annotations"] = json!({KEPT: kept.to_string()});
            let stored = convert(alpha, BETA, &Lookup::default());
            prop_assert!(schema::allows(&schema::SPEC, &stored["spec"]), "{}", stored["spec"]);
            let status = stored.get("status").is_none_or(|status| schema::allows(&schema::STATUS, status));
            prop_assert!(status, "{}", stored["status"]);
        }
    }

    #[test]
    fn whatever_an_object_is_made_of_it_is_converted_without_a_panic(parts in any_value(), to_beta in any::<bool>()) {
        let (from, to) = if to_beta { (ALPHA, BETA) } else { (BETA, ALPHA) };
        let mut object = if parts.is_object() { parts } else { json!({"spec": parts.clone(), "metadata": parts}) };
        object["apiVersion"] = from.into();
        let converted = convert(object, to, &Lookup::default());
        prop_assert_eq!(&converted["apiVersion"], to);
    }

    #[test]
    fn any_bytes_are_read_as_a_review_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let review = [&b"{\"request\":{\"uid\":\"u\",\"desiredAPIVersion\":"[..], &bytes, b"}}"].concat();
        drop(Review::read(&review));
        drop(Review::read(&bytes));
    }
}
