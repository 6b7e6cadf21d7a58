use rstest::rstest;
use serde_json::json;

use super::*;

fn kubernetes() -> Value {
    json!({"metadata": {"namespace": "default", "name": "kubernetes", "uid": "c1"}})
}

fn node(machine: &str, ready: &str, uuid: &str) -> Value {
    json!({"metadata": {"name": machine}, "spec": {"providerID": format!("harvester://uid-{machine}")},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"systemUUID": uuid}}})
}

fn machine(name: &str, cluster: &str) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {labels::GUEST_CLUSTER: cluster}}})
}

fn instance(name: &str, uuid: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"domain": {"firmware": {"uuid": uuid}}}})
}

fn balancer(cluster: &str, uid: &str) -> Value {
    json!({"metadata": {"name": "lb", "labels": {labels::CLUSTER: cluster},
        "annotations": {annotations::CLUSTER_UID: uid}}})
}

/// Whose a LoadBalancer of this cluster name and UID is, beside these Nodes, machines and instances.
fn whose(object: &Value, nodes: &[Value], machines: &[Value], instances: &[Value]) -> String {
    let services = [kubernetes()];
    match Machines::of(&services, nodes, machines, instances).whose(object) {
        Whose::Ours => "ours".to_owned(),
        Whose::Another(machine) => format!("another's: {}", name(machine)),
        Whose::Doubtful(machine) => format!("doubtful: {}", name(machine)),
        Whose::Unproved => "unproved".to_owned(),
    }
}

#[rstest]
#[case::by_uid("other", "c1", "ours")]
#[case::by_the_uid_of_another("blue", "c2", "unproved")]
#[case::by_name("blue", "", "ours")]
#[case::by_the_name_of_another("red", "", "unproved")]
#[case::by_no_name("", "", "unproved")]
fn an_object_is_ours_by_the_uid_on_it_else_by_the_name_of_our_machines(
    #[case] cluster: &str,
    #[case] uid: &str,
    #[case] expected: &str,
) {
    let (nodes, machines) = ([node("n1", "True", "")], [machine("n1", "blue")]);
    assert_eq!(whose(&balancer(cluster, uid), &nodes, &machines, &[]), expected);
}

/// Another cluster may have a machine of that name.
#[test]
fn a_node_whose_provider_id_is_a_machines_name_proves_nothing() {
    let mut by_name = node("n1", "True", "");
    by_name["spec"]["providerID"] = json!("harvester://n1");
    let machines = [machine("n1", "blue")];
    assert_eq!(machine_of(&by_name, &machines), Some(&machines[0]));
    assert_eq!(whose(&balancer("blue", ""), &[by_name], &machines, &[]), "unproved");
}

// the machine beside ours and its cluster; the object's cluster
#[rstest]
#[case::of_the_name("blue", "blue", "another's: m")]
#[case::of_nobody("", "blue", "doubtful: m")]
#[case::of_another_name("red", "blue", "ours")]
#[case::of_another_name_and_the_object_has_none("red", "kubernetes", "doubtful: m")]
fn no_proof_counts_while_another_clusters_machine_may_have_it_too(
    #[case] beside: &str,
    #[case] cluster: &str,
    #[case] expected: &str,
) {
    let (nodes, machines) = ([node("n1", "True", "")], [machine("n1", "blue"), machine("m", beside)]);
    assert_eq!(whose(&balancer(cluster, "c1"), &nodes, &machines, &[]), expected);
}

/// The name on objects, which users choose, need not be that of the machines.
#[rstest]
#[case::beside_a_machine_of_the_name_of_ours(&["n1", "n0"], true)]
#[case::whose_node_was_deleted(&["n1", "n0"], false)]
#[case::where_no_machine_is_ours(&["n0"], true)]
fn what_the_original_of_a_restored_cluster_made_is_its_under_any_name_of_the_cluster(
    #[case] machines: &[&str],
    #[case] has_node: bool,
) {
    let mut nodes = vec![node("n1", "True", "")];
    nodes.extend(has_node.then(|| node("n0", "Unknown", "")));
    let machines: Vec<_> = machines.iter().map(|name| machine(name, "blue")).collect();
    assert_eq!(whose(&balancer("other", "c1"), &nodes, &machines, &[]), "another's: n0");
}

/// Beside ours a machine whose VirtualMachine is stopped, or whose instance could not be read.
#[test]
fn a_ready_node_that_tells_its_uuid_proves_no_machine_without_an_instance() {
    let nodes = [node("n1", "True", ""), node("n0", "True", "1111-AA")];
    let machines = [machine("n1", "blue"), machine("n0", "blue")];
    assert_eq!(whose(&balancer("blue", "c1"), &nodes, &machines, &[]), "another's: n0");
}

/// KubeVirt makes the UUID of the machine's name, so a machine of that name in another namespace has it too.
#[rstest]
#[case::elsewhere("flannel.alpha.coreos.com/public-ip", "10.9.0.5", &["10.0.0.5"], "another's: n0")]
#[case::elsewhere_by_kubelet(annotations::PROVIDED_NODE_IP, "10.9.0.5,fd00::9", &["10.0.0.5"], "another's: n0")]
#[case::there("projectcalico.org/IPv4Address", "10.0.0.5/24", &["10.1.0.5", "10.0.0.5"], "ours")]
#[case::there_in_one_family(annotations::PROVIDED_NODE_IP, "10.9.0.5, fd00:0::5", &["fd00::5"], "ours")]
#[case::the_node_says_nothing("x/y", "10.9.0.5", &["10.0.0.5"], "ours")]
#[case::the_instance_says_nothing("flannel.alpha.coreos.com/public-ip", "10.9.0.5", &[], "ours")]
fn a_node_proves_no_machine_of_its_uuid_that_has_none_of_the_addresses_which_the_node_says(
    #[case] key: &str,
    #[case] says: &str,
    #[case] has: &[&str],
    #[case] expected: &str,
) {
    let mut node = node("n0", "True", "u");
    node["metadata"]["annotations"] = json!({key: says});
    let mut instance = instance("n0", "u");
    instance["status"] = json!({"interfaces": [{"ipAddresses": has}]});
    assert_eq!(whose(&balancer("blue", "c1"), &[node], &[machine("n0", "blue")], &[instance]), expected);
}

/// A cluster that was restored from a backup of etcd has the Nodes of its original, whose machines run.
#[rstest]
#[case::lost("Unknown", "", "", "another's: n0")]
#[case::not_ready("False", "", "", "another's: n0")]
#[case::under_the_same_name_on_another_machine("True", "1111-AA", "2222-bb", "another's: n0")]
#[case::really_ours("True", "1111-AA", "1111-aa", "ours")]
#[case::nobody_says_the_uuid("True", "1111-AA", "", "ours")]
fn a_node_of_the_original_of_a_restored_cluster_proves_no_machine(
    #[case] ready: &str,
    #[case] told: &str,
    #[case] known: &str,
    #[case] expected: &str,
) {
    let nodes = [node("n1", "True", ""), node("n0", ready, told)];
    let machines = [machine("n1", "blue"), machine("n0", "blue")];
    let instances = [instance("n0", known)];
    for object in [balancer("blue", "c1"), balancer("blue", "")] {
        assert_eq!(whose(&object, &nodes, &machines, &instances), expected);
    }
}

#[rstest]
#[case::there(&["n1"], false)]
#[case::in_part(&["n1", "m"], false)]
#[case::in_another_namespace(&["m"], true)]
#[case::without_machines(&[], true)]
fn where_no_machine_of_the_nodes_is_the_namespace_is_another(#[case] there: &[&str], #[case] expected: bool) {
    let (services, nodes) = ([kubernetes()], [node("n1", "Unknown", "")]);
    let machines: Vec<_> = there.iter().map(|name| machine(name, "blue")).collect();
    assert_eq!(Machines::of(&services, &nodes, &machines, &[]).are_elsewhere, expected);
    assert!(!Machines::of(&services, &[], &machines, &[]).are_elsewhere, "no Node says where");
}

#[test]
fn the_surest_sign_says_which_service_uses_an_object() {
    let service = |name: &str, uid: &str, shown: &str, asked: &str| {
        json!({"metadata": {"namespace": "shop", "name": name, "uid": uid,
                "annotations": {annotations::KUBE_VIP_LOADBALANCER_IPS: asked}},
            "status": {"loadBalancer": {"ingress": [{"ip": shown}]}}})
    };
    let services = [service("web", "s1", "10.0.0.1", ""), service("asks", "s2", "", "10.0.0.2, fd00::2")];
    let object = |uid: &str, named: &str, status: Value| {
        json!({"metadata": {"annotations": {annotations::SERVICE_UID: uid},
                "labels": {labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: named}}, "status": status})
    };
    let used = |object: &Value| used_by(object, &services);
    assert_eq!(used(&object("s2", "web", json!({}))), Some(Use::Uid));
    assert_eq!(used(&object("s9", "web", json!({"address": "10.0.0.2"}))), Some(Use::Name(&services[0])));
    assert_eq!(used(&object("s9", "gone", json!({"address": "10.0.0.1"}))), Some(Use::Address(&services[0])));
    let ipv6 = json!({"allocatedAddress": {"ipv6IP": "fd00:0::2"}});
    assert_eq!(used(&object("s9", "gone", ipv6)), Some(Use::Address(&services[1])));
    assert_eq!(used(&object("s9", "gone", json!({"address": "0.0.0.0"}))), None);
}
