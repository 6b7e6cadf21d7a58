use cloud_config::expiry::Expiry;
use harvester_api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    facts::{Answer, Cluster, Config, Failed, Trouble},
    *,
};

const NOW: &str = "2026-11-23T12:00:00Z";

fn list(items: &Value) -> Answer {
    Ok(json!({ "items": items }))
}

fn failed(trouble: Trouble, why: &str) -> Failed {
    Failed { trouble, why: why.to_owned() }
}

fn lease(holder: &str, renewed: &str) -> Answer {
    Ok(json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}}))
}

fn workload(name: &str, image: &str, args: &Value) -> Value {
    json!({"metadata": {"namespace": "kube-system", "name": name},
        "spec": {"template": {"spec": {"containers": [{"image": image, "args": args}]}}},
        "status": {"numberReady": 1, "desiredNumberScheduled": 1}})
}

fn cluster<const N: usize>(answers: [(&str, Answer); N]) -> Cluster {
    Cluster { answers: answers.map(|(path, answer)| (path.to_owned(), answer)).into_iter().collect() }
}

/// Two clusters that are in order, with storage, a Service that kube-vip announces and one with DHCP.
fn healthy() -> Facts {
    let csi = names::CSI_DRIVER;
    let node = json!({"metadata": {"name": "blue-1", "annotations": {"projectcalico.org/IPv4Address": "10.0.0.1/24"}},
        "spec": {"providerID": "harvester://uid-1"}});
    let service = |name: &str, asked: &str, shown: &str| {
        json!({"metadata": {"namespace": "shop", "name": name, "creationTimestamp": "2026-11-23T10:00:00Z",
                "annotations": {"kube-vip.io/loadbalancerIPs": asked}},
            "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": shown}]}}})
    };
    let guest = cluster([
        (read::VERSION, Ok(json!({"gitVersion": "v1.36.0+rke2r1"}))),
        (read::NODES, list(&json!([node]))),
        (
            read::SERVICES,
            list(&json!([
                service("web", "10.0.0.50", "10.0.0.50"),
                service("leased", "0.0.0.0", "10.0.0.60")
            ])),
        ),
        (
            read::DEPLOYMENTS,
            list(&json!([workload("harvester-cloud-provider", "r/harvester-cloud-provider:1", &json!([]))])),
        ),
        (
            read::DAEMON_SETS,
            list(&json!([
                workload("kube-vip", "rancher/kube-vip-iptables:v1.2.3", &json!([])),
                workload("harvester-csi-driver", "r/harvester-cloud-provider:1", &json!(["csi-driver"])),
            ])),
        ),
        (read::CSI_DRIVERS, list(&json!([{"metadata": {"name": csi}}]))),
        (
            read::CSI_NODES,
            list(&json!([{"metadata": {"name": "blue-1"}, "spec": {"drivers": [{"name": csi}]}}])),
        ),
        (
            read::STORAGE_CLASSES,
            list(
                &json!([{"metadata": {"name": "fast"}, "provisioner": csi, "parameters": {"hostStorageClass": "longhorn"}}]),
            ),
        ),
        (read::SNAPSHOTS, Ok(json!({"versions": [{"version": "v1"}]}))),
        (read::CCM_LEASE, lease("blue-1_1", NOW)),
        (read::CSI_LEASE, lease("blue-1_2", NOW)),
    ]);
    let harvester = cluster([
        (read::VERSION, Ok(json!({"gitVersion": "v1.34.2"}))),
        (read::HARVESTER_VERSION, Ok(json!({"value": "v1.9.0"}))),
        (read::BALANCER_GROUP, Ok(json!({"versions": [{"version": "v1beta1"}]}))),
        (read::POOLS, list(&json!([{"metadata": {"name": "lab"}, "status": {"available": 7}}]))),
        (read::STORAGE_CLASSES, list(&json!([{"metadata": {"name": "longhorn"}}]))),
        (
            &read::balancers("team-a"),
            list(&json!([{"metadata": {"namespace": "team-a", "name": "blue-web"}}])),
        ),
        (&read::former("team-a"), list(&json!([]))),
        (&read::machines("team-a"), list(&json!([{"metadata": {"name": "blue-1", "uid": "uid-1"}}]))),
        (
            &read::instances("team-a"),
            list(&json!([{"metadata": {"name": "blue-1"},
                "status": {"conditions": [{"type": "AgentConnected", "status": "True"}]}}])),
        ),
    ]);
    Facts {
        now: NOW.parse().unwrap(),
        guest,
        config: Ok(Config {
            file: "cloud-config".to_owned(),
            server: "https://harvester:6443".to_owned(),
            namespace: "team-a".to_owned(),
            expiry: Expiry::Never,
        }),
        harvester,
        harvester_time: Some(NOW.parse().unwrap()),
        grants: read::GRANTS.iter().map(|grant| (*grant, Some(true))).collect(),
        trial: Ok(()),
    }
}

fn of(verdict: Verdict, facts: &Facts) -> Vec<&'static str> {
    let findings = examine(facts);
    findings.iter().filter(|finding| finding.verdict == verdict).map(|finding| finding.id).collect()
}

fn answers(cluster: &mut Cluster, path: &str, answer: Answer) {
    assert!(cluster.answers.insert(path.to_owned(), answer).is_some(), "{path} is not read");
}

/// Changes what was read at a path.
fn change(cluster: &mut Cluster, path: &str, change: impl FnOnce(&mut Value)) {
    change(cluster.answers.get_mut(path).unwrap().as_mut().unwrap());
}

#[test]
fn of_two_clusters_in_order_every_check_is_green() {
    let findings = examine(&healthy());
    let green = findings.iter().all(|finding| finding.verdict == Verdict::Green && finding.mend.is_none());
    assert!(green, "{findings:#?}");
    assert!(CHECKS.len() >= 20, "{}", CHECKS.len());
}

fn deny(facts: &mut Facts, verb: &str, resource: &str) {
    for (grant, allowed) in &mut facts.grants {
        if grant.verb == verb && grant.resource == resource {
            *allowed = Some(false);
        }
    }
}

fn at(text: &str) -> jiff::Timestamp {
    text.parse().unwrap()
}

#[rstest]
#[case("guest-api", |facts: &mut Facts| {
    let gone = failed(Trouble::NoAnswer, "connection refused");
    facts.guest.answers.values_mut().for_each(|answer| *answer = Err(gone.clone()));
})]
#[case("guest-version", |facts: &mut Facts| {
    answers(&mut facts.guest, read::VERSION, Ok(json!({"gitVersion": "v1.20.3"})));
})]
#[case("cloud-config", |facts: &mut Facts| facts.config = Err("no cloud-config found".to_owned()))]
#[case("harvester-endpoint", |facts: &mut Facts| {
    let gone = failed(Trouble::NoAnswer, "no route to host");
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(gone.clone()));
})]
#[case("harvester-ca", |facts: &mut Facts| {
    let strange = failed(Trouble::Certificate, "invalid peer certificate: UnknownIssuer");
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(strange.clone()));
})]
#[case("harvester-login", |facts: &mut Facts| {
    answers(&mut facts.harvester, &read::balancers("team-a"), Err(failed(Trouble::Unauthorized, "Unauthorized")));
})]
#[case("credential-life", |facts: &mut Facts| {
    facts.config.as_mut().unwrap().expiry = Expiry::At(at("2026-11-01T00:00:00Z"));
})]
#[case("clock", |facts: &mut Facts| facts.harvester_time = Some(at("2026-11-23T11:50:00Z")))]
#[case("harvester-version", |facts: &mut Facts| {
    answers(&mut facts.harvester, read::HARVESTER_VERSION, Ok(json!({"value": "v1.2.1"})));
})]
#[case("rights-load-balancers", |facts: &mut Facts| deny(facts, "create", "loadbalancers"))]
#[case("rights-machines", |facts: &mut Facts| deny(facts, "watch", "virtualmachineinstances"))]
#[case("rights-volumes", |facts: &mut Facts| deny(facts, "patch", "persistentvolumeclaims"))]
#[case("load-balancer-crds", |facts: &mut Facts| {
    answers(&mut facts.harvester, read::BALANCER_GROUP, Err(failed(Trouble::NotFound, "not found")));
})]
#[case("conversion", |facts: &mut Facts| {
    let broken = failed(Trouble::Refused, "conversion webhook failed: 404");
    answers(&mut facts.harvester, &read::former("team-a"), Err(broken));
})]
#[case("webhook", |facts: &mut Facts| {
    facts.trial = Err(failed(Trouble::Refused, "Internal error: failed calling webhook \"x\": no endpoints"));
})]
#[case("pools", |facts: &mut Facts| answers(&mut facts.harvester, read::POOLS, list(&json!([]))))]
#[case("pools", |facts: &mut Facts| {
    change(&mut facts.harvester, read::POOLS, |pools| pools["items"][0]["status"]["available"] = json!(0));
})]
#[case("ccm", |facts: &mut Facts| {
    answers(&mut facts.guest, read::CCM_LEASE, lease("blue-1_1", "2026-11-23T11:58:00Z"));
})]
#[case("ccm", |facts: &mut Facts| answers(&mut facts.guest, read::CCM_LEASE, lease("", NOW)))]
#[case("one-provider", |facts: &mut Facts| {
    let second = workload("old", "rancher/harvester-cloud-provider:v0.2.5", &json!([]));
    change(&mut facts.guest, read::DEPLOYMENTS, |all| all["items"].as_array_mut().unwrap().push(second));
})]
#[case("one-provider", |facts: &mut Facts| {
    let second = workload("old", "rancher/harvester-csi-driver:v0.1.20", &json!([]));
    change(&mut facts.guest, read::DAEMON_SETS, |all| all["items"].as_array_mut().unwrap().push(second));
})]
#[case("nodes", |facts: &mut Facts| {
    let taint = json!([{"key": "node.cloudprovider.kubernetes.io/uninitialized"}]);
    change(&mut facts.guest, read::NODES, |nodes| nodes["items"][0]["spec"]["taints"] = taint);
})]
#[case("guest-agents", |facts: &mut Facts| {
    let silent = |all: &mut Value| all["items"][0]["status"]["conditions"] = json!([]);
    change(&mut facts.harvester, &read::instances("team-a"), silent);
})]
#[case("kube-vip", |facts: &mut Facts| {
    change(&mut facts.guest, read::DAEMON_SETS, |all| all["items"][0]["status"]["numberReady"] = json!(0));
})]
#[case("kube-vip", |facts: &mut Facts| {
    change(&mut facts.guest, read::DAEMON_SETS, |all| drop(all["items"].as_array_mut().unwrap().remove(0)));
})]
#[case("tunnel-address", |facts: &mut Facts| {
    let took = json!({"projectcalico.org/IPv4Address": "10.0.0.50/24"});
    change(&mut facts.guest, read::NODES, |nodes| nodes["items"][0]["metadata"]["annotations"] = took);
})]
#[case("dhcp", |facts: &mut Facts| {
    change(&mut facts.guest, read::SERVICES, |all| all["items"][1]["status"] = json!({}));
})]
#[case("leftovers", |facts: &mut Facts| {
    let told = json!({"cloudprovider.harvesterhci.io/without-service": "since yesterday"});
    change(&mut facts.harvester, &read::balancers("team-a"), |all| all["items"][0]["metadata"]["annotations"] = told);
})]
#[case("csi-driver", |facts: &mut Facts| answers(&mut facts.guest, read::CSI_DRIVERS, list(&json!([]))))]
#[case("csi-driver", |facts: &mut Facts| {
    change(&mut facts.guest, read::CSI_NODES, |all| all["items"][0]["spec"]["drivers"] = json!([]));
})]
#[case("csi-leader", |facts: &mut Facts| {
    answers(&mut facts.guest, read::CSI_LEASE, Err(failed(Trouble::NotFound, "not found")));
})]
#[case("snapshot-crds", |facts: &mut Facts| {
    answers(&mut facts.guest, read::SNAPSHOTS, Err(failed(Trouble::NotFound, "not found")));
})]
#[case("storage-classes", |facts: &mut Facts| {
    answers(&mut facts.harvester, read::STORAGE_CLASSES, list(&json!([])));
})]
fn of_one_thing_that_is_broken_that_line_alone_is_red(#[case] id: &str, #[case] broken: fn(&mut Facts)) {
    let mut facts = healthy();
    broken(&mut facts);
    let findings = examine(&facts);
    assert_eq!(of(Verdict::Red, &facts), [id], "{findings:#?}");
    let red = findings.iter().find(|finding| finding.verdict == Verdict::Red).unwrap();
    assert!(red.mend.as_ref().is_some_and(|mend| !mend.is_empty()), "{red:?}");
    let waits = findings.iter().filter(|finding| finding.verdict == Verdict::NotAsked);
    assert!(waits.clone().all(|finding| finding.because == Some(red.id)), "{findings:#?}");
}

#[test]
fn a_credential_that_ends_in_ten_days_is_amber() {
    let mut facts = healthy();
    facts.config.as_mut().unwrap().expiry = Expiry::At(at("2026-12-03T00:00:00Z"));
    assert_eq!((of(Verdict::Amber, &facts), of(Verdict::Red, &facts)), (vec!["credential-life"], vec![]));
}

#[test]
fn a_rancher_that_knows_this_harvester_by_another_name_is_told_with_its_issue() {
    let mut facts = healthy();
    let gone = failed(Trouble::NotFound, "clusters.management.cattle.io \"c-m-1\" not found");
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(gone.clone()));
    let findings = examine(&facts);
    let login = findings.iter().find(|finding| finding.id == "harvester-login").unwrap();
    assert!(login.verdict == Verdict::Red && login.mend.as_ref().unwrap().contains("53642"), "{login:?}");
    assert_eq!(of(Verdict::Red, &facts), ["harvester-login"]);
}

#[test]
fn what_the_kubeconfig_may_not_read_is_not_asked_and_named() {
    let mut facts = healthy();
    answers(&mut facts.harvester, read::POOLS, Err(failed(Trouble::Forbidden, "ippools is forbidden")));
    let findings = examine(&facts);
    let pools = findings.iter().find(|finding| finding.id == "pools").unwrap();
    assert_eq!((pools.verdict, pools.because), (Verdict::NotAsked, None));
    assert!(pools.sentence.contains("ippools is forbidden"), "{pools:?}");
}

#[test]
fn a_cluster_without_storage_has_no_fault_for_it() {
    let mut facts = healthy();
    answers(&mut facts.guest, read::CSI_DRIVERS, list(&json!([])));
    change(&mut facts.guest, read::DAEMON_SETS, |all| drop(all["items"].as_array_mut().unwrap().remove(1)));
    answers(&mut facts.guest, read::CSI_LEASE, Err(failed(Trouble::NotFound, "not found")));
    answers(&mut facts.guest, read::SNAPSHOTS, Err(failed(Trouble::NotFound, "not found")));
    assert_eq!(of(Verdict::Red, &facts), [""; 0]);
}

#[test]
fn a_check_needs_only_those_that_stand_before_it_and_each_id_is_there_once() {
    for (place, check) in CHECKS.iter().enumerate() {
        for needed in check.needs {
            assert!(CHECKS[..place].iter().any(|before| before.id == *needed), "{} needs {needed}", check.id);
        }
        assert!(CHECKS[..place].iter().all(|before| before.id != check.id), "{}", check.id);
    }
}

#[test]
fn each_finding_is_one_line_and_its_next_step_another() {
    let mut facts = healthy();
    facts.config = Err("no cloud-config found".to_owned());
    let findings = examine(&facts);
    let text = render(&findings, false);
    assert_eq!(text.lines().count(), CHECKS.len() + 1);
    assert!(text.contains("cloud-config           red       no cloud-config found\n"), "{text}");
    assert!(!text.contains('\u{1b}') && render(&findings, true).contains('\u{1b}'));
}

#[test]
fn the_document_names_every_check() {
    let document = include_str!("../../../../docs/doctor.md");
    for check in CHECKS {
        let row = format!("| `{}` | {} |\n", check.id, check.about);
        assert!(document.contains(&row), "docs/doctor.md lacks: {row}");
    }
}
