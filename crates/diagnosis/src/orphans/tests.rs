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
        (read::NODES, json!([{"metadata": {"name": "n1"}, "spec": {"providerID": "harvester://vm-1"}}])),
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
        (read::POOLS.to_owned(), json!([])),
    ];
    Facts {
        now: NOW.parse().unwrap(),
        namespace: "vms".to_owned(),
        guest: answers(guest.into_iter().map(|(path, items)| (path.to_owned(), items)).collect()),
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
        let Some(Ok(list)) = self.guest.answers.get_mut(path) else { panic!("{path}") };
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

    fn unread(mut self, path: &str) -> Self {
        let failed = Failed { trouble: Trouble::Forbidden, why: "forbidden".to_owned() };
        for cluster in [&mut self.guest, &mut self.harvester] {
            if let Some(answer) = cluster.answers.get_mut(path) {
                *answer = Err(failed.clone());
            }
        }
        self
    }
}

fn found(facts: &Facts) -> Vec<(String, Deletion)> {
    decide(facts).orphans.into_iter().map(|orphan| (orphan.name, orphan.delete)).collect()
}

fn one(name: &str, delete: Deletion) -> Vec<(String, Deletion)> {
    vec![(name.to_owned(), delete)]
}

#[test]
fn where_everything_is_used_nothing_is_left_behind() {
    assert_eq!(decide(&facts()), Report::default());
}

#[test]
fn an_object_with_this_clusters_uid_whose_service_is_gone_is_proved() {
    let facts = facts().balancer(balancer("old", "former", "gone", &of_cluster("c1", "s0")));
    assert_eq!(found(&facts), one("old", Deletion::Asked));
    // restored from the same backup under another name, beside its original
    let facts = facts.machine("m", "vm-7", Some("former"));
    assert_eq!((found(&facts), decide(&facts).kept.len()), (vec![], 1));
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
    assert_eq!(decide(&facts), Report::default());
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
#[case::a_machine_of_nobody(&[("m", None)], None)]
fn an_object_of_another_cluster_must_be_typed_and_only_where_no_machine_may_be_its(
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
#[case::instances(read::instances("vms"))]
fn what_cannot_be_read_counts_as_living(#[case] path: String) {
    let facts = facts()
        .balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")))
        .balancer(balancer("old", "blue", "gone", &json!({})))
        .claim(claim(VOLUME, Some("blue")));
    assert_eq!(found(&facts).len(), 3);
    let is_of_volumes =
        [facts::VOLUMES.to_owned(), facts::pods("vms"), facts::snapshots("vms"), read::instances("vms")];
    let facts = facts.unread(&path);
    let report = decide(&facts);
    let left = if is_of_volumes.contains(&path) { 2 } else { usize::from(path == read::SERVICES) };
    assert_eq!((report.orphans.len(), report.not_read.len()), (left, 1), "{report:#?}");
    assert!(
        report.orphans.iter().all(|orphan| !(left == 1 && orphan.kind == Kind::LoadBalancer)),
        "{report:#?}"
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

fn in_volumes() -> Value {
    json!({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": VOLUME}}]})
}

#[rstest]
#[case::volume(facts::VOLUMES.to_owned(), json!({"spec": {"csi": {"volumeHandle": VOLUME}}}))]
#[case::snapshot(facts::snapshots("vms"), json!({"spec": {"source": {"persistentVolumeClaimName": VOLUME}}}))]
#[case::machine(read::machines("vms"), json!({"metadata": {"uid": "vm-1"}, "spec": {"template": {"spec": in_volumes()}}}))]
#[case::instance(read::instances("vms"), json!({"spec": in_volumes()}))]
#[case::pod(facts::pods("vms"), json!({"spec": in_volumes()}))]
#[case::template(read::machines("vms"), json!({"metadata": {"uid": "vm-1", "annotations":
    {annotations::CLAIM_TEMPLATES: format!(r#"[{{"metadata": {{"name": "{VOLUME}"}}}}]"#)}}}))]
fn a_volume_that_something_names_is_used(#[case] path: String, #[case] object: Value) {
    let facts = facts().claim(claim(VOLUME, Some("blue")));
    assert_eq!(found(&facts), one(VOLUME, Deletion::Typed));
    let is_guests = path == facts::VOLUMES;
    let facts = if is_guests { facts.guest(&path, &[object]) } else { facts.harvester(&path, &[object]) };
    assert_eq!(decide(&facts), Report::default());
}

#[rstest]
#[case::in_a_machine("/metadata/annotations", json!({annotations::CSI_ATTACH: "{}"}))]
#[case::young("/metadata/creationTimestamp", json!("2026-11-23T11:30:00Z"))]
#[case::of_no_age("/metadata/creationTimestamp", json!(null))]
fn a_volume_that_may_be_on_its_way_is_kept(#[case] field: &str, #[case] value: Value) {
    let mut claim = claim(VOLUME, Some("blue"));
    let (_, name) = field.rsplit_once('/').unwrap();
    claim["metadata"][name] = value;
    let report = decide(&facts().claim(claim));
    assert_eq!((report.orphans.len(), report.kept.len()), (0, 1), "{report:#?}");
}

#[rstest]
#[case::ours(VOLUME, Some("blue"), 1)]
#[case::of_nobody_beside_us_alone(VOLUME, None, 1)]
#[case::a_disk_of_a_machine("root-disk", Some("blue"), 0)]
fn only_volumes_of_the_csi_driver_are_looked_at(
    #[case] name: &str,
    #[case] of: Option<&str>,
    #[case] count: usize,
) {
    assert_eq!(found(&facts().claim(claim(name, of))).len(), count);
}

#[test]
fn a_volume_of_nobody_beside_another_cluster_may_be_that_clusters() {
    let facts = facts().claim(claim(VOLUME, None)).machine("m", "vm-7", Some("green"));
    assert_eq!((found(&facts), decide(&facts).kept.len()), (vec![], 1));
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
fn the_undo_manifest_says_that_it_brings_no_data_back_and_names_no_volume_that_is_gone() {
    let report = decide(&facts().claim(claim(VOLUME, Some("blue"))));
    let text = delete::undo(&report.orphans.iter().collect::<Vec<_>>());
    assert!(text.contains("It brings no data back"), "{text}");
    let object = text.split_once("---\n").unwrap().1;
    let object: Value = serde_json::from_str(object).unwrap();
    assert_eq!((&object["metadata"]["name"], &object["spec"]["volumeName"]), (&json!(VOLUME), &Value::Null));
    assert!(object["metadata"]["uid"].is_null() && object["status"].is_null());
}
