use rstest::rstest;

use super::super::patch::patched;
use super::*;
use crate::review::{FaultKind, Subject};

const WRITER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";

fn policy() -> Policy {
    Policy { status_writer: WRITER.to_owned() }
}

fn request(user: &str, object: Value, old: Value) -> Request {
    Request {
        uid: "u1".to_owned(),
        operation: if old.is_null() { Operation::Create } else { Operation::Update },
        subject: Subject::LoadBalancer,
        user: user.to_owned(),
        namespace: "team-a".to_owned(),
        name: "web".to_owned(),
        object,
        old,
    }
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

fn texts(faults: &[Fault]) -> Vec<&str> {
    faults.iter().map(|fault| fault.text.as_str()).collect()
}

/// Every expected text occurs in a fault of its own, and there are no others.
fn assert_faults(faults: &[Fault], expected: &[&str]) {
    assert_eq!(faults.len(), expected.len(), "{:?}", texts(faults));
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.text.contains(expected), "{:?} does not say {expected:?}", fault.text);
    }
}

fn listener(name: &str, port: i64, protocol: &str, backend_port: i64) -> Value {
    json!({"name": name, "port": port, "protocol": protocol, "backendPort": backend_port})
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
#[case::two_unnamed(json!({"listeners": [listener("", 80, "TCP", 80), listener("", 81, "TCP", 81)]}), &["duplicate name \"\""])]
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
#[case::health_values_count_only_with_a_port(json!({"healthCheck": {"failureThreshold": -1}}), &[])]
// pitfalls-load-balancer.md LB-16: there, such selectors are accepted and fail for ever
#[case::selector_without_values(json!({"backendServerSelector": {"tier": []}}), &["\"tier\" has no values"])]
#[case::selector_with_bad_key(json!({"backendServerSelector": {"a b": ["x"]}}), &["\"a b\" is not a label key"])]
#[case::selector_with_bad_value(json!({"backendServerSelector": {"tier": ["-x", ""]}}), &["\"-x\" is not a label value"])]
#[case::several_at_once(
    json!({"listeners": [listener("a", 80, "TCP", 8080), listener("a", 80, "TCP", 8081)], "backendServerSelector": {"tier": []}}),
    &["duplicate name", "duplicate port", "has no values"])]
fn the_spec_of_a_vm_object_is_judged_by_every_rule(#[case] change: Value, #[case] expected: &[&str]) {
    let mut object = vm(&change);
    // a merge would leave the sample's key beside the new one
    if change["backendServerSelector"].is_object() {
        object["spec"]["backendServerSelector"] = change["backendServerSelector"].clone();
    }
    let faults = validate(&request("alice", object, Value::Null), &World::default(), &policy());
    assert_faults(&faults, expected);
    assert!(faults.iter().all(|fault| fault.kind == FaultKind::Invalid));
}

#[test]
fn a_cluster_object_needs_no_listener() {
    let object = cluster(&json!({}), &json!({}));
    assert_faults(&validate(&request("ccm", object, Value::Null), &World::default(), &policy()), &[]);
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
    assert_faults(&validate(&request("alice", new, old), &World::default(), &policy()), expected);
}

#[test]
fn an_object_from_before_a_rule_can_still_be_labelled_and_get_its_status() {
    let old = vm(&json!({"listeners": []}));
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"team": "a"});
    new["status"] = json!({"backendServers": ["192.168.7.11"]});
    assert_faults(&validate(&request(WRITER, new, old), &World::default(), &policy()), &[]);
}

#[test]
fn an_object_on_its_way_out_is_left_alone() {
    let mut new = vm(&json!({"listeners": []}));
    new["metadata"]["deletionTimestamp"] = "2026-08-20T10:00:00Z".into();
    let request = request("alice", new, vm(&json!({})));
    assert_faults(&validate(&request, &World::default(), &policy()), &[]);
    assert_eq!(mutate(&request, &World::default(), &policy()), Ok(vec![]));
}

fn machine(cluster: &str, removing: bool) -> Arc<VirtualMachine> {
    let annotations =
        if removing { json!({"harvesterhci.io/removeAllPersistentVolumeClaims": "true"}) } else { json!({}) };
    let labels = json!({"harvesterhci.io/creator": "docker-machine-driver-harvester", "guestcluster.harvesterhci.io/name": cluster});
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": {},
        "metadata": {"name": format!("{cluster}-pool1-x"), "namespace": "team-a", "labels": labels, "annotations": annotations}});
    Arc::new(serde_json::from_value(vm).unwrap())
}

#[rstest]
#[case::being_removed("gc1", vec![machine("gc1", false), machine("gc1", true)], &["guest cluster check: the VM team-a/gc1-pool1-x shows"])]
#[case::alive("gc1", vec![machine("gc1", false)], &[])]
#[case::another_is_removed("gc1", vec![machine("gc2", true)], &[])]
#[case::no_machines("gc1", vec![], &[])]
#[case::default_name("kubernetes", vec![machine("kubernetes", true)], &[])]
#[case::empty_name("", vec![machine("", true)], &[])]
fn no_new_object_for_a_guest_cluster_that_is_being_removed(
    #[case] name: &str,
    #[case] vms: Vec<Arc<VirtualMachine>>,
    #[case] expected: &[&str],
) {
    let object = cluster(&json!({"cloudprovider.harvesterhci.io/cluster": name}), &json!({}));
    let world = World { vms, ..World::default() };
    let faults = validate(&request("ccm", object.clone(), Value::Null), &world, &policy());
    assert_faults(&faults, expected);
    assert!(faults.iter().all(|fault| fault.kind == FaultKind::Forbidden));
    let update = request("ccm", object.clone(), object);
    assert_faults(&validate(&update, &world, &policy()), &[]);
}

#[test]
fn who_got_past_the_mutator_with_a_forged_status_is_refused() {
    let old = vm(&json!({}));
    let mut new = old.clone();
    new["status"] = json!({"allocatedAddress": {"ip": "10.0.0.1"}, "address": "10.0.0.1"});
    let forged = request("alice", new.clone(), old.clone());
    let faults = validate(&forged, &World::default(), &policy());
    assert_faults(
        &faults,
        &["status.allocatedAddress is written by system:serviceaccount", "status.address"],
    );
    assert_faults(&validate(&request(WRITER, new, old), &World::default(), &policy()), &[]);

    let after = patched(&forged.object, &mutate(&forged, &World::default(), &policy()).unwrap());
    assert!(after["status"].is_null());
    assert_faults(&validate(&request("alice", after, forged.old), &World::default(), &policy()), &[]);
}

fn world(project: Option<&str>, vmis: Vec<Arc<VirtualMachineInstance>>) -> World {
    let annotations =
        project.map(|id| (annotations::PROJECT_ID.to_owned(), id.to_owned())).into_iter().collect();
    World { namespace: Some(annotations), vmis, vms: vec![] }
}

#[rstest]
#[case::ui(vm(&json!({})), json!({}))]
#[case::port_only(vm(&json!({"healthCheck": {"port": 8080}})), json!({"successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1, "timeoutSeconds": 1}))]
#[case::zeros(vm(&json!({"healthCheck": {"port": 8080, "successThreshold": 0, "failureThreshold": 3}})), json!({"successThreshold": 2, "failureThreshold": 3, "periodSeconds": 1, "timeoutSeconds": 1}))]
#[case::all_given(
    vm(&json!({"healthCheck": {"port": 8080, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3}})),
    json!({"successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3}))]
fn a_vm_object_gets_its_namespace_and_the_missing_health_values(#[case] object: Value, #[case] check: Value) {
    let operations =
        mutate(&request("alice", object.clone(), Value::Null), &World::default(), &policy()).unwrap();
    assert!(operations.iter().all(|operation| operation["op"] == "add"));
    let after = patched(&object, &operations);
    assert_eq!(after["metadata"]["annotations"], json!({"loadbalancer.harvesterhci.io/namespace": "team-a"}));
    let mut expected = check;
    if let Some(port) = object["spec"]["healthCheck"].get("port") {
        expected["port"] = port.clone();
    }
    assert_eq!(after["spec"]["healthCheck"], expected);
    let again = request("alice", after, object);
    assert_eq!(mutate(&again, &World::default(), &policy()), Ok(vec![]));
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
#[case::by_name(json!({annotations::LB_CLUSTER: "gc2"}), "team-a/vlan20")]
#[case::unknown_cluster(json!({annotations::LB_CLUSTER: "gc3"}), "")]
#[case::no_cluster(json!({}), "")]
fn the_network_of_a_cluster_object_is_the_first_that_somebody_knows(
    #[case] given: Value,
    #[case] expected: &str,
) {
    let creator = json!({"harvesterhci.io/creator": "docker-machine-driver-harvester"});
    let vmis = vec![
        node(
            "a-1",
            &json!({"guestcluster.harvesterhci.io/name": "gc1"}),
            &json!([{"name": "default", "pod": {}}]),
        ),
        node("a-2", &json!({"guestcluster.harvesterhci.io/name": "gc1"}), &multus("team-a/vlan10")),
        node("gc2-pool1-x", &creator, &multus("vlan20")),
        node("gc3-by-hand", &json!({}), &multus("team-a/vlan30")),
    ];
    let object = cluster(&json!({}), &given);
    let request = request("ccm", object.clone(), Value::Null);
    let operations = mutate(&request, &world(Some("c-q4xz6:p-6vvfz"), vmis), &policy()).unwrap();
    let annotations = &patched(&object, &operations)["metadata"]["annotations"];
    assert_eq!(annotations[annotations::LB_NETWORK], expected);
    assert_eq!(annotations[annotations::LB_PROJECT], "c-q4xz6/p-6vvfz");
    assert_eq!(annotations[annotations::LB_NAMESPACE], "team-a");
}

#[rstest]
#[case::no_project(world(None, vec![]), Ok(""))]
#[case::no_namespace(World::default(), Err("there is no namespace team-a"))]
fn the_project_of_a_cluster_object_is_its_namespaces(
    #[case] world: World,
    #[case] expected: Result<&str, &str>,
) {
    let object = cluster(&json!({}), &json!({annotations::LB_PROJECT: "c-evil/p-evil"}));
    let answer = mutate(&request("ccm", object.clone(), Value::Null), &world, &policy());
    let project = answer.map(|operations| {
        patched(&object, &operations)["metadata"]["annotations"][annotations::LB_PROJECT]
            .as_str()
            .unwrap()
            .to_owned()
    });
    assert_eq!(
        project.map_err(|fault| fault.text),
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
