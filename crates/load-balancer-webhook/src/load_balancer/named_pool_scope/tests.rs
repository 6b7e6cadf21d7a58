use harvester_api::{VirtualMachine, VirtualMachineInstance};
use rstest::rstest;
use serde_json::{Value, json};

use super::super::{mutate, validate};
use super::*;
use crate::patch::patched;
use crate::review::{Change, Kind, Reason};
use crate::steps::steps_of;

const PROJECT: &str = "c-1/p-1";

fn policy() -> Policy {
    Policy { status_writer: "writer".to_owned(), enforce_named_pool_scope: true }
}

/// Of namespace team-a: annotations, and the pool that it names.
fn object(workload: &str, annotations: &Value, pool: &str) -> Value {
    let mut object = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "team-a", "annotations": annotations},
        "spec": {"workloadType": workload,
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}]},
    });
    if !pool.is_empty() {
        object["spec"]["ipPool"] = pool.into();
    }
    object
}

/// `old`: null creates it.
fn write(new: &Value, old: &Value) -> Write {
    let read = |json: &Value| Box::new(serde_json::from_value(json.clone()).unwrap());
    let change = match old {
        Value::Null => Change::Create(read(new)),
        old => Change::Update { old: read(old), new: read(new) },
    };
    let text = ToOwned::to_owned;
    Write {
        kind: Kind::LoadBalancer,
        user: text("alice"),
        namespace: text("team-a"),
        name: text("web"),
        change,
    }
}

fn pool(name: &str, network: &str, scope: [&str; 3]) -> IPPool {
    let [namespace, project, cluster] = scope;
    let scope = json!([{"namespace": namespace, "project": project, "guestCluster": cluster}]);
    let selector = json!({"network": network, "scope": scope});
    let pool = json!({"metadata": {"name": name}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}], "selector": selector}});
    serde_json::from_value(pool).unwrap()
}

/// The VM `gc1-pool1-x` of guest cluster gc1 is on infra/shared.
fn seen() -> Seen {
    let labels = json!({"guestcluster.harvesterhci.io/name": "gc1"});
    let networks =
        json!([{"name": "default", "pod": {}}, {"name": "one", "multus": {"networkName": "infra/shared"}}]);
    let meta = json!({"name": "gc1-pool1-x", "namespace": "team-a", "labels": labels});
    let vm: VirtualMachine = serde_json::from_value(json!({"metadata": meta, "spec": {}})).unwrap();
    let vmi: VirtualMachineInstance =
        serde_json::from_value(json!({"metadata": meta, "spec": {"networks": networks}})).unwrap();
    let pools = vec![
        pool("own", "", ["team-a", "*", "*"]),
        pool("others", "", ["team-b", "*", "*"]),
        pool("project", "", ["*", PROJECT, "*"]),
        pool("foreign", "", ["*", "c-1/p-9", "*"]),
        pool("gc1", "", ["*", "*", "gc1"]),
        pool("blue", "", ["*", "*", "blue"]),
        pool("vlan", "infra/shared", ["team-a", "*", "*"]),
        pool("global", "", ["*", "*", "*"]),
    ];
    let facts = Facts { project: PROJECT.to_owned(), is_cluster_of_others: false, pools: pools.into() };
    Seen { namespace: None, vms: vec![Arc::new(vm)], vmis: vec![Arc::new(vmi)], facts: Some(facts) }
}

fn faults(write: &Write, seen: &Seen) -> Vec<String> {
    let faults = validate(write, seen, &policy());
    assert!(faults.named().iter().all(|fault| fault.reason == Reason::Forbidden), "{faults:?}");
    faults.named().iter().map(|fault| fault.message.clone()).collect()
}

const NOT_IN_IT: &str = "annotation loadbalancer.harvesterhci.io/project is \"c-1/p-9\", but namespace team-a is in project \
                         \"c-1/p-1\": leave the annotation out";
const NOT_ON_IT: &str =
    "but no running VM of namespace team-a is on this network, nor is it one of the namespace";
const NOT_OF_IT: &str = "but no VM of namespace team-a belongs to that guest cluster";

// docs/contract/load-balancer.md#S-3, #WH-11
#[rstest]
#[case::nothing(json!({}), &[])]
#[case::own_project(json!({annotations::LB_PROJECT: PROJECT}), &[])]
#[case::another_project(json!({annotations::LB_PROJECT: "c-1/p-9"}), &[NOT_IN_IT])]
#[case::every_project(json!({annotations::LB_PROJECT: "*"}), &["is \"*\", but namespace team-a is in project"])]
#[case::network_of_a_vm(json!({annotations::LB_NETWORK: "infra/shared"}), &[])]
#[case::network_of_the_namespace(json!({annotations::LB_NETWORK: "team-a/vlan10"}), &[])]
#[case::bare_name(json!({annotations::LB_NETWORK: "vlan10"}), &[])]
#[case::network_of_others(json!({annotations::LB_NETWORK: "team-b/vlan20"}), &[NOT_ON_IT])]
#[case::own_cluster(json!({annotations::LB_CLUSTER: "gc1"}), &[])]
#[case::no_name_of_a_cluster(json!({annotations::LB_CLUSTER: "kubernetes"}), &[])]
#[case::another_cluster(json!({annotations::LB_CLUSTER: "gc2"}), &[NOT_OF_IT])]
#[case::empty(json!({annotations::LB_PROJECT: "", annotations::LB_NETWORK: "", annotations::LB_CLUSTER: ""}), &[])]
#[case::all(
    json!({annotations::LB_PROJECT: "c-1/p-9", annotations::LB_NETWORK: "team-b/vlan20", annotations::LB_CLUSTER: "gc2"}),
    &[NOT_IN_IT, NOT_ON_IT, NOT_OF_IT])]
fn a_load_balancer_says_nothing_untrue_of_itself(#[case] said: Value, #[case] expected: &[&str]) {
    let object = object("vm", &said, "");
    let made = faults(&write(&object, &Value::Null), &seen());
    assert_eq!(made.len(), expected.len(), "{made:?}");
    for (fault, expected) in made.iter().zip(expected) {
        assert!(fault.contains(expected), "{fault:?} does not say {expected:?}");
    }
    // one that stands from before the flag, with whatever it says
    let mut changed = object.clone();
    changed["spec"]["description"] = "new".into();
    assert_eq!(faults(&write(&changed, &object), &seen()), [""; 0]);
}

#[test]
fn a_guest_clusters_own_word_for_its_name_counts() {
    let said = json!({annotations::LB_CLUSTER: "by-hand", annotations::LB_NETWORK: "infra/shared"});
    assert_eq!(faults(&write(&object("cluster", &said, ""), &Value::Null), &seen()), [""; 0]);
    let evil = json!({annotations::LB_NETWORK: "team-b/vlan20"});
    assert_eq!(faults(&write(&object("cluster", &evil, ""), &Value::Null), &seen()).len(), 1);
}

/// Of the node driver; `cluster`: its label.
fn machine(namespace: &str, name: &str, cluster: Option<&str>) -> Arc<VirtualMachine> {
    let mut labels = json!({labels::CREATOR: labels::NODE_DRIVER});
    if let Some(cluster) = cluster {
        labels[labels::GUEST_CLUSTER] = cluster.into();
    }
    let vm = json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {}});
    Arc::new(serde_json::from_value(vm).unwrap())
}

/// What the validator sees where these VMs are in the cluster.
fn among(vms: &[Arc<VirtualMachine>], write: &Write) -> Seen {
    let mut seen = seen();
    let is_here = |vm: &&Arc<VirtualMachine>| vm.namespace().as_ref() == Some(&write.namespace);
    (seen.vms, seen.vmis) = (vms.iter().filter(is_here).cloned().collect(), Vec::new());
    let is_of_others = is_cluster_of_others(write, &seen, || (vms.to_vec(), Vec::new()));
    seen.facts.as_mut().unwrap().is_cluster_of_others = is_of_others;
    seen
}

// docs/contract/load-balancer.md#S-3
#[rstest]
#[case::of_others("blue", &[machine("team-b", "x", Some("blue"))], true)]
#[case::of_others_by_name("blue", &[machine("team-b", "blue-pool1-x", None)], true)]
#[case::here_as_well("blue", &[machine("team-b", "x", Some("blue")), machine("team-a", "y", Some("blue"))], false)]
#[case::nobodys("blue", &[machine("team-b", "x", Some("green"))], false)]
#[case::no_name_of_a_cluster("kubernetes", &[machine("team-b", "x", Some("kubernetes"))], false)]
fn a_guest_cluster_names_no_cluster_whose_vms_are_in_another_namespace(
    #[case] said: &str,
    #[case] vms: &[Arc<VirtualMachine>],
    #[case] is_refused: bool,
) {
    let object = object("cluster", &json!({annotations::LB_CLUSTER: said}), "");
    let write = write(&object, &Value::Null);
    let faults = faults(&write, &among(vms, &write));
    let expected = "belongs to that guest cluster, VMs of another namespace do, and an IPPool is for that cluster: give the cluster another --cluster-name";
    assert_eq!(
        faults.iter().filter(|fault| fault.contains(expected)).count(),
        usize::from(is_refused),
        "{faults:?}"
    );
    assert_eq!(faults.len(), usize::from(is_refused), "{faults:?}");
}

// the VMs of team-a's own cluster carry no label
#[rstest]
#[case::no_pool(&[], false)]
#[case::every_cluster(&[pool("p", "", ["*", "*", "*"]), pool("q", "", ["team-a", "*", "*"])], false)]
#[case::another_cluster(&[pool("p", "", ["*", "*", "green"])], false)]
#[case::in_its_namespace(&[pool("p", "", ["team-a", "*", "blue"])], false)]
#[case::in_another_namespace(&[pool("p", "", ["team-b", "*", "blue"])], false)]
#[case::in_another_project(&[pool("p", "", ["*", "c-1/p-9", "blue"])], false)]
#[case::everywhere(&[pool("p", "", ["*", "*", "*"]), pool("q", "", ["*", "*", "blue"])], true)]
#[case::in_the_project(&[pool("p", "", ["*", PROJECT, "blue"])], true)]
#[case::loosely(&[pool("p", "", ["*", "", "blue"])], true)]
fn a_vm_that_others_label_with_the_clusters_name_refuses_it_only_what_a_pool_gives_for_the_name(
    #[case] pools: &[IPPool],
    #[case] is_refused: bool,
) {
    let object = object("cluster", &json!({annotations::LB_CLUSTER: "blue"}), "");
    let write = write(&object, &Value::Null);
    let mut seen = among(&[machine("team-b", "x", Some("blue"))], &write);
    seen.facts.as_mut().unwrap().pools = pools.into();
    let faults = faults(&write, &seen);
    assert_eq!(faults.len(), usize::from(is_refused), "{faults:?}");
}

#[rstest]
#[case::by_its_label("prod", &[machine("team-a", "prod-2-pool1-x", Some("prod-2"))], true)]
#[case::by_the_label_of_another("prod", &[machine("team-a", "prod-2-pool1-x", None), machine("team-a", "y", Some("prod-2"))], true)]
#[case::a_part_of_a_name("pr", &[machine("team-a", "prod-2-pool1-x", None)], true)]
#[case::its_own("prod-2", &[machine("team-a", "prod-2-pool1-x", None), machine("team-a", "y", Some("prod"))], false)]
#[case::without_any_label("prod", &[machine("team-a", "prod-pool1-x", None)], false)]
#[case::label_of_nobody("prod", &[machine("team-a", "prod-pool1-x", Some("kubernetes"))], false)]
// whoever may label VMs of another namespace changes nothing here
#[case::label_of_another_namespace("prod", &[machine("team-a", "prod-pool1-x", None), machine("team-b", "y", Some("prod-pool1"))], false)]
fn a_vm_of_prod_2_is_no_vm_of_prod(
    #[case] said: &str,
    #[case] vms: &[Arc<VirtualMachine>],
    #[case] is_refused: bool,
) {
    let object = object("vm", &json!({annotations::LB_CLUSTER: said}), "");
    let write = write(&object, &Value::Null);
    let faults = faults(&write, &among(vms, &write));
    assert_eq!(faults.len(), usize::from(is_refused), "{faults:?}");
}

// one tenant can have thousands of VMs and of labels
#[rstest]
fn whose_vm_it_is_costs_no_look_at_other_clusters(#[values("team-a", "team-b")] namespace: &str) {
    let unlabelled = (0..2_000).map(|n| machine(namespace, &format!("prod-pool1-{n}"), None));
    let labelled = (0..2_000).map(|n| machine(namespace, &format!("x-{n}"), Some(&format!("prod-{n}"))));
    let last = machine(namespace, "y", Some("prod-pool1"));
    let vms: Vec<_> = unlabelled.chain(labelled).chain([last]).collect();
    let object = object("cluster", &json!({annotations::LB_CLUSTER: "prod"}), "");
    let write = write(&object, &Value::Null);
    let steps = steps_of(|| assert!(!among(&vms, &write).facts.unwrap().is_cluster_of_others));
    assert!((4_000..20_000).contains(&steps), "{steps}");
}

#[test]
fn a_cluster_that_has_vms_here_costs_no_look_at_those_of_others() {
    let others = (0..2_000).map(|n| machine("team-b", &format!("blue-{n}"), Some("blue")));
    let vms: Vec<_> = others.chain([machine("team-a", "x", Some("blue"))]).collect();
    let object = object("cluster", &json!({annotations::LB_CLUSTER: "blue"}), "");
    let write = write(&object, &Value::Null);
    let steps = steps_of(|| assert!(!among(&vms, &write).facts.unwrap().is_cluster_of_others));
    assert!(steps < 10, "{steps}");
}

#[rstest]
fn who_names_a_pool_is_judged_by_what_stood_as_well(#[values("ipPool", "ipv6Pool")] field: &str) {
    let said = json!({annotations::LB_CLUSTER: "gc2", annotations::LB_NETWORK: "team-b/vlan20", annotations::LB_PROJECT: "c-1/p-9"});
    let stood = object("vm", &said, "");
    let mut named = stood.clone();
    named["spec"][field] = "global".into();
    assert_eq!(faults(&write(&named, &stood), &seen()).len(), 3);
    let mut next = named.clone();
    next["spec"]["description"] = "the pool stands".into();
    assert_eq!(faults(&write(&next, &named), &seen()), [""; 0]);
}

#[rstest]
#[case::network_of_others(json!({annotations::LB_NETWORK: "team-b/vlan20"}), true)]
#[case::cluster(json!({annotations::LB_CLUSTER: "gc2"}), true)]
#[case::own_network(json!({annotations::LB_NETWORK: "vlan10"}), false)]
#[case::no_name_of_a_cluster(json!({annotations::LB_CLUSTER: "kubernetes"}), false)]
#[case::project(json!({annotations::LB_PROJECT: PROJECT}), false)]
fn only_claims_of_networks_and_clusters_need_the_lists_of_vms(#[case] said: Value, #[case] expected: bool) {
    let object = object("vm", &said, "");
    assert_eq!(needs_vms(&write(&object, &Value::Null)), expected);
    // what stands needs nothing
    assert!(!needs_vms(&write(&object, &object)));
}

// docs/contract/load-balancer.md#S-2, #WH-9
#[rstest]
#[case::own("vm", json!({}), "own", None)]
#[case::global("vm", json!({}), "global", None)]
#[case::of_its_project("vm", json!({}), "project", None)]
#[case::of_its_cluster("vm", json!({annotations::LB_CLUSTER: "gc1"}), "gc1", None)]
#[case::of_its_network("vm", json!({annotations::LB_NETWORK: "infra/shared"}), "vlan", None)]
// it may come, and the controller looks then
#[case::not_there("vm", json!({}), "nowhere", None)]
#[case::another_namespaces("vm", json!({}), "others", Some("none of its scopes matches"))]
#[case::another_projects("vm", json!({}), "foreign", Some("none of its scopes matches"))]
#[case::a_clusters("vm", json!({}), "gc1", Some("none of its scopes matches"))]
#[case::every_clusters("vm", json!({annotations::LB_CLUSTER: "*"}), "gc1", Some("none of its scopes matches"))]
#[case::another_network("vm", json!({}), "vlan", Some("it is for another network; name another pool, or none"))]
#[case::of_a_guest_cluster("cluster", json!({annotations::LB_CLUSTER: "gc1"}), "gc1", None)]
#[case::not_of_a_guest_cluster("cluster", json!({annotations::LB_CLUSTER: "gc1"}), "others", Some("none of its scopes matches"))]
fn a_pool_is_named_by_those_whom_its_selector_admits(
    #[case] workload: &str,
    #[case] said: Value,
    #[case] pool: &str,
    #[case] expected: Option<&str>,
) {
    let of_pool = |faults: Vec<String>| faults.into_iter().find(|fault| fault.starts_with("pool "));
    let (named, unnamed) = (object(workload, &said, pool), object(workload, &said, ""));
    for old in [&Value::Null, &unnamed] {
        let fault = of_pool(faults(&write(&named, old), &seen()));
        match (&fault, expected) {
            (Some(fault), Some(expected)) => {
                let begin = format!("pool {pool} does not serve this load balancer, which has network ");
                assert!(fault.starts_with(&begin) && fault.contains(expected), "{fault}");
                assert!(!fault.contains("infra/"), "{fault}: that is another tenant's network");
            }
            (fault, expected) => {
                assert_eq!((fault.is_some(), expected.is_some()), (false, false), "{fault:?}");
            }
        }
    }
    // it stands
    let mut changed = named.clone();
    changed["metadata"]["annotations"]["note"] = "new".into();
    assert_eq!(of_pool(faults(&write(&changed, &named), &seen())), None);
}

#[test]
fn the_pool_for_an_ipv6_address_is_judged_as_well() {
    let mut object = object("cluster", &json!({}), "own");
    object["spec"]["ipv6Pool"] = "others".into();
    let faults = faults(&write(&object, &Value::Null), &seen());
    assert!(faults.len() == 1 && faults[0].starts_with("pool others does not serve"), "{faults:?}");
}

#[rstest]
#[case::off(false, "own", "c-1/p-9", None)]
#[case::no_pool(true, "", "c-1/p-9", None)]
#[case::forged(true, "own", "c-1/p-9", Some(PROJECT))]
#[case::absent(true, "own", "", Some(PROJECT))]
fn a_vm_object_that_names_a_pool_says_the_project_of_its_namespace(
    #[case] enforce_named_pool_scope: bool,
    #[case] pool: &str,
    #[case] said: &str,
    #[case] expected: Option<&str>,
) {
    let policy = Policy { enforce_named_pool_scope, ..policy() };
    let object = object("vm", &json!({annotations::LB_PROJECT: said}), pool);
    let write = write(&object, &Value::Null);
    let namespace = super::super::names_pool(&write, &policy)
        .then(|| BTreeMap::from([(annotations::PROJECT_ID.to_owned(), PROJECT.replace('/', ":"))]));
    let seen = Seen { namespace, ..Seen::default() };
    let after = patched(&object, &mutate(&write, &seen, &policy).unwrap());
    assert_eq!(after["metadata"]["annotations"][annotations::LB_PROJECT], expected.unwrap_or(said));
}

#[test]
fn without_the_flag_nothing_is_judged() {
    let said = json!({annotations::LB_PROJECT: "c-1/p-9", annotations::LB_CLUSTER: "gc2"});
    let write = write(&object("vm", &said, "others"), &Value::Null);
    assert!(needs_facts(&write, &policy()));
    assert!(!needs_facts(&write, &Policy { enforce_named_pool_scope: false, ..policy() }));
    let seen = Seen { facts: None, ..seen() };
    assert!(validate(&write, &seen, &policy()).named().is_empty());
}
