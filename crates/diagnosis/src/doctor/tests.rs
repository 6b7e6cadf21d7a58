use cloud_config::expiry::Expiry;
use harvester_api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    facts::{Answer, Asked, Cluster, Config, Failed, Rancher, Trouble},
    *,
};

mod credential;
mod fields;
mod guest;
mod leftovers;
mod replacement;
mod way;
mod workloads;

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

/// A VirtualMachine of cluster `blue`, if its name begins so, with one claim.
fn machine(name: &str, uid: &str, claim: &str) -> Value {
    let labels = json!({"guestcluster.harvesterhci.io/name": name.split('-').next()});
    json!({"metadata": {"name": name, "uid": uid, "labels": labels}, "spec": {"template": {"spec": {"volumes": [
        {"name": "init", "cloudInitNoCloud": {}}, {"name": claim, "persistentVolumeClaim": {"claimName": claim}}]}}}})
}

/// Two clusters that are in order, with storage, a Service that kube-vip announces and one with DHCP.
pub(crate) fn healthy() -> Facts {
    let csi = names::CSI_DRIVER;
    let node = json!({"metadata": {"name": "blue-1", "annotations": {"projectcalico.org/IPv4Address": "10.0.0.1/24"}},
        "spec": {"providerID": "harvester://uid-1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "blue-1"}]}});
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
            list(&json!([workload(
                "harvester-cloud-provider",
                "r/harvester-cloud-provider:1",
                &json!(["--cluster-name=blue"])
            )])),
        ),
        (
            read::DAEMON_SETS,
            list(&json!([
                workload("kube-vip", "rancher/kube-vip-iptables:v1.2.3", &json!(["manager", "--services"])),
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
        (
            read::ATTACHMENTS,
            list(&json!([{"metadata": {"name": "csi-1"}, "status": {"attached": true},
                    "spec": {"attacher": csi, "nodeName": "blue-1", "source": {"persistentVolumeName": "pvc-1"}}}])),
        ),
        (read::VOLUMES, list(&json!([{"spec": {"csi": {"driver": csi, "volumeHandle": "pvc-1"}}}]))),
        (read::BINDINGS, list(&json!([]))),
        (read::HARVESTER_KINDS, Err(failed(Trouble::NotFound, "404 page not found"))),
        (
            read::SNAPSHOTS,
            Ok(json!({"resources": [{"name": "volumesnapshots"}, {"name": "volumesnapshotcontents"},
                {"name": "volumesnapshotclasses"}]})),
        ),
        (read::CCM_LEASE, lease("blue-1_1", NOW)),
        (read::CSI_LEASE, lease("blue-1_2", NOW)),
    ]);
    let harvester = cluster([
        (read::VERSION, Ok(json!({"gitVersion": "v1.34.2"}))),
        (read::HARVESTER_KINDS, Ok(json!({"resources": [{"name": "settings"}]}))),
        (read::HARVESTER_VERSION, Ok(json!({"value": "v1.9.0"}))),
        (read::BALANCER_KINDS, Ok(json!({"resources": [{"name": "loadbalancers"}, {"name": "ippools"}]}))),
        (read::BALANCER_SCHEMAS, Ok(fields::schemas(|_| true))),
        (read::POOLS, list(&json!([{"metadata": {"name": "lab"}, "status": {"available": 7}}]))),
        (read::STORAGE_CLASSES, list(&json!([{"metadata": {"name": "longhorn"}}]))),
        (
            &read::balancers("team-a"),
            list(&json!([{"metadata": {"namespace": "team-a", "name": "blue-web", "labels": {
                    "cloudprovider.harvesterhci.io/cluster": "blue",
                    "cloudprovider.harvesterhci.io/serviceNamespace": "shop",
                    "cloudprovider.harvesterhci.io/serviceName": "web"}},
                "spec": {"workloadType": "cluster", "healthCheck": {"port": 80}},
                "status": {"address": "10.0.0.50"}}])),
        ),
        (&read::former("team-a"), list(&json!([{"metadata": {"name": "blue-web"}}]))),
        (
            &read::machines("team-a"),
            list(&json!([machine("blue-1", "uid-1", "pvc-1"), machine("other", "uid-9", "disk-0")])),
        ),
        (
            &read::instances("team-a"),
            list(&json!([{"metadata": {"name": "blue-1", "uid": "uid-vmi"},
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
            authorities: vec![Expiry::At(at("2036-11-23T12:00:00Z"))],
            trusts_everybody: false,
            claims: None,
            note: None,
            renewal: None,
        }),
        rancher: Some(Ok(Rancher {
            server: "https://rancher/k8s/clusters/c-m-1".to_owned(),
            expiry: Expiry::Never,
            answer: Ok(json!({})),
        })),
        harvester,
        harvester_time: Some(NOW.parse().unwrap()),
        guest_time: Some(NOW.parse().unwrap()),
        rights: read::rights("team-a")
            .into_iter()
            .map(|asked| Asked { allowed: Some(true), ..asked })
            .collect(),
        trial: Err(failed(
            Trouble::Refused,
            "admission webhook \"validator.harvester-system.harvester-load-balancer-webhook\" denied the request: \
             listeners have duplicate name \"twice\"",
        )),
    }
}

fn of(verdict: Verdict, facts: &Facts) -> Vec<&'static str> {
    let findings = decide(facts, Occasion::Daily);
    findings.iter().filter(|finding| finding.verdict == verdict).map(|finding| finding.id).collect()
}

fn answers(cluster: &mut Cluster, path: &str, answer: Answer) {
    assert!(cluster.answers.insert(path.to_owned(), answer).is_some(), "{path} is not read");
}

/// Changes what was read at a path.
fn change(cluster: &mut Cluster, path: &str, change: impl FnOnce(&mut Value)) {
    change(cluster.answers.get_mut(path).unwrap().as_mut().unwrap());
}

#[rstest]
#[case(Occasion::Daily, 21)]
#[case(Occasion::BeforeUpgrade, 24)]
#[case(Occasion::BeforeRollback, 25)]
fn of_two_clusters_in_order_every_check_is_green(#[case] occasion: Occasion, #[case] at_least: usize) {
    let findings = decide(&healthy(), occasion);
    let green = findings.iter().all(|finding| finding.verdict == Verdict::Green && finding.mend.is_none());
    assert!(green, "{findings:#?}");
    assert!(findings.len() >= at_least, "{}", findings.len());
}

fn deny(facts: &mut Facts, verb: &str, resource: &str) {
    let denied = facts.rights.iter_mut().filter(|it| it.right.verb == verb && it.right.resource == resource);
    denied.for_each(|it| it.allowed = Some(false));
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
#[case("harvester-endpoint", |facts: &mut Facts| {
    // another port, and Rancher's path of a cluster that is away
    let other = failed(Trouble::NotFound, "404 page not found");
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(other.clone()));
})]
#[case("harvester-endpoint", |facts: &mut Facts| {
    let other = failed(Trouble::Refused, "503: cluster not found");
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(other.clone()));
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
#[case("credential-life", |facts: &mut Facts| {
    facts.config.as_mut().unwrap().expiry = Expiry::At(at("2026-11-01T00:00:00Z"));
    let gone = failed(Trouble::Unauthorized, "Unauthorized");
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(gone.clone()));
    facts.rights.iter_mut().for_each(|asked| asked.allowed = None);
    facts.trial = Err(gone);
})]
#[case("clock", |facts: &mut Facts| facts.guest_time = Some(at("2026-11-23T11:58:00Z")))]
#[case("clock", |facts: &mut Facts| facts.harvester_time = Some(at("2026-11-23T11:50:00Z")))]
#[case("harvester-version", |facts: &mut Facts| {
    answers(&mut facts.harvester, read::HARVESTER_VERSION, Ok(json!({"value": "v1.2.1"})));
})]
#[case("harvester-version", |facts: &mut Facts| {
    // the guest cluster itself: it has none of Harvester's kinds, and storage classes of its own
    let gone = failed(Trouble::NotFound, "the server could not find the requested resource");
    let of_kubernetes = [read::VERSION, read::STORAGE_CLASSES];
    let kinds = facts.harvester.answers.iter_mut().filter(|(path, _)| !of_kubernetes.contains(&path.as_str()));
    kinds.for_each(|(_, answer)| *answer = Err(gone.clone()));
    answers(&mut facts.harvester, read::STORAGE_CLASSES, list(&json!([{"metadata": {"name": "fast"}}])));
    facts.rights.iter_mut().for_each(|asked| asked.allowed = Some(false));
    facts.trial = Err(gone);
})]
#[case("guest-api", |facts: &mut Facts| {
    // Harvester's kubeconfig: nothing is to be done to its Nodes
    answers(&mut facts.guest, read::HARVESTER_KINDS, Ok(json!({"resources": [{"name": "settings"}]})));
    change(&mut facts.guest, read::NODES, |nodes| nodes["items"][0]["spec"] = json!({}));
})]
#[case("rights-load-balancers", |facts: &mut Facts| deny(facts, "create", "loadbalancers"))]
#[case("rights-load-balancers", |facts: &mut Facts| {
    // its RoleBinding is gone
    facts.rights.iter_mut().for_each(|asked| asked.allowed = Some(false));
    let refused = failed(Trouble::Forbidden, "forbidden");
    let namespaced = facts.harvester.answers.iter_mut().filter(|(path, _)| path.contains("/namespaces/team-a/"));
    namespaced.for_each(|(_, answer)| *answer = Err(refused.clone()));
})]
#[case("rights-machines", |facts: &mut Facts| deny(facts, "list", "virtualmachineinstances"))]
#[case("machines", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::machines("team-a"), |all| drop(all["items"].as_array_mut().unwrap().remove(0)));
})]
#[case("rights-volumes", |facts: &mut Facts| deny(facts, "patch", "persistentvolumeclaims"))]
#[case("load-balancer-crds", |facts: &mut Facts| {
    change(&mut facts.harvester, read::BALANCER_KINDS, |kinds| drop(kinds["resources"].as_array_mut().unwrap().remove(0)));
    let gone = failed(Trouble::NotFound, "not found");
    answers(&mut facts.harvester, &read::balancers("team-a"), Err(gone.clone()));
    answers(&mut facts.harvester, &read::former("team-a"), Err(gone.clone()));
    facts.trial = Err(gone);
})]
#[case("load-balancer-crds", |facts: &mut Facts| {
    answers(&mut facts.harvester, read::BALANCER_KINDS, Err(failed(Trouble::NotFound, "not found")));
})]
#[case("conversion", |facts: &mut Facts| {
    let broken = failed(Trouble::Refused, "conversion webhook failed: 404");
    answers(&mut facts.harvester, &read::former("team-a"), Err(broken));
})]
#[case("webhook", |facts: &mut Facts| facts.trial = Ok(()))]
#[case("webhook", |facts: &mut Facts| {
    let down = "failed calling webhook \"validator.x.harvester-load-balancer-webhook\": connection refused";
    facts.trial = Err(failed(Trouble::Refused, down));
    let broken = failed(Trouble::Refused, "conversion webhook failed: connection refused");
    answers(&mut facts.harvester, &read::former("team-a"), Err(broken));
})]
#[case("webhook", |facts: &mut Facts| {
    let down = "failed calling webhook \"mutator.x.harvester-load-balancer-webhook\": no endpoints";
    facts.trial = Err(failed(Trouble::Refused, down));
})]
#[case("load-balancer", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["status"] = json!({});
        all["items"][0]["metadata"]["creationTimestamp"] = json!("2026-11-23T11:58:00Z");
    });
})]
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
    change(&mut facts.guest, read::SERVICES, |all| all["items"][0]["status"] = json!({}));
})]
#[case("tunnel-address", |facts: &mut Facts| {
    let took = json!({"projectcalico.org/IPv4Address": "10.0.0.50/24"});
    change(&mut facts.guest, read::NODES, |nodes| nodes["items"][0]["metadata"]["annotations"] = took);
})]
#[case("dhcp", |facts: &mut Facts| {
    change(&mut facts.guest, read::SERVICES, |all| all["items"][1]["status"] = json!({}));
})]
#[case("leftovers", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"] = json!("gone");
        all["items"][0]["status"] = json!({"address": "10.0.0.99"});
    });
})]
#[case("csi-driver", |facts: &mut Facts| answers(&mut facts.guest, read::CSI_DRIVERS, list(&json!([]))))]
#[case("csi-driver", |facts: &mut Facts| {
    change(&mut facts.guest, read::CSI_NODES, |all| all["items"][0]["spec"]["drivers"] = json!([]));
})]
#[case("csi-driver", |facts: &mut Facts| {
    change(&mut facts.guest, read::DAEMON_SETS, |all| drop(all["items"].as_array_mut().unwrap().remove(1)));
})]
#[case("csi-driver", |facts: &mut Facts| {
    change(&mut facts.guest, read::DAEMON_SETS, |all| all["items"][1]["status"]["numberReady"] = json!(0));
})]
#[case("csi-leader", |facts: &mut Facts| {
    answers(&mut facts.guest, read::CSI_LEASE, Err(failed(Trouble::NotFound, "not found")));
})]
#[case("storage-classes", |facts: &mut Facts| {
    answers(&mut facts.harvester, read::STORAGE_CLASSES, list(&json!([])));
})]
#[case("rancher-credential", |facts: &mut Facts| facts.rancher = Some(Err("rancher.yaml: no current context".to_owned())))]
#[case("rancher-credential", |facts: &mut Facts| rancher(facts).expiry = Expiry::At(at("2026-11-01T00:00:00Z")))]
#[case("rancher-credential", |facts: &mut Facts| {
    rancher(facts).answer = Err(failed(Trouble::Unauthorized, "Unauthorized"));
})]
fn of_one_thing_that_is_broken_that_line_alone_is_red(#[case] id: &str, #[case] broken: fn(&mut Facts)) {
    let mut facts = healthy();
    broken(&mut facts);
    let findings = decide(&facts, Occasion::Daily);
    assert_eq!(of(Verdict::Red, &facts), [id], "{findings:#?}");
    let red = findings.iter().find(|finding| finding.verdict == Verdict::Red).unwrap();
    assert!(red.mend.as_ref().is_some_and(|mend| !mend.is_empty()), "{red:?}");
    let waits = findings.iter().filter(|finding| finding.verdict == Verdict::NotAsked);
    let says_why =
        |finding: &&Finding| finding.because == Some(red.id) || finding.sentence.contains("forbidden");
    assert!(waits.clone().all(|finding| says_why(&finding)), "{findings:#?}");
}

fn rancher(facts: &mut Facts) -> &mut Rancher {
    facts.rancher.as_mut().unwrap().as_mut().unwrap()
}

#[test]
fn a_rancher_that_forgot_this_harvester_is_told_of_the_cloud_credential_too() {
    let mut facts = healthy();
    rancher(&mut facts).answer =
        Err(failed(Trouble::NotFound, "clusters.management.cattle.io \"c-m-1\" not found"));
    let findings = decide(&facts, Occasion::Daily);
    let credential = findings.iter().find(|finding| finding.id == "rancher-credential").unwrap();
    assert!(credential.mend.as_ref().unwrap().contains("53642"), "{credential:?}");
    assert_eq!(of(Verdict::Red, &facts), ["rancher-credential"]);
}

#[test]
fn a_cloud_credential_that_was_not_given_is_not_asked_and_the_line_says_where_it_is() {
    let mut facts = healthy();
    facts.rancher = None;
    let findings = decide(&facts, Occasion::Daily);
    let credential = findings.iter().find(|finding| finding.id == "rancher-credential").unwrap();
    assert_eq!(credential.verdict, Verdict::NotAsked);
    assert!(credential.sentence.contains("harvestercredentialConfig-kubeconfigContent"), "{credential:?}");
}

#[test]
fn a_credential_that_ends_in_five_days_is_amber_and_one_that_is_about_to_be_renewed_is_not() {
    let mut facts = healthy();
    facts.config.as_mut().unwrap().expiry = Expiry::At(at("2026-11-28T00:00:00Z"));
    assert_eq!((of(Verdict::Amber, &facts), of(Verdict::Red, &facts)), (vec!["credential-life"], vec![]));
    facts.config.as_mut().unwrap().expiry = Expiry::At(at("2026-12-03T00:00:00Z"));
    assert_eq!(of(Verdict::Amber, &facts), [""; 0]);
}

/// What two healthy clusters say after a change, green lines left out.
fn told(changed: impl FnOnce(&mut Facts)) -> Vec<(&'static str, Verdict)> {
    let mut facts = healthy();
    changed(&mut facts);
    let findings = decide(&facts, Occasion::Daily).into_iter();
    findings.filter(|it| it.verdict != Verdict::Green).map(|it| (it.id, it.verdict)).collect()
}

#[test]
fn a_machine_of_the_former_life_is_missed_and_a_cloud_config_of_another_cluster_turns_one_line_red() {
    let facts = |uid: &'static str| {
        let mut facts = healthy();
        change(&mut facts.harvester, &read::machines("team-a"), |all| {
            all["items"][0]["metadata"]["uid"] = json!(uid);
        });
        facts
    };
    assert_eq!(of(Verdict::Red, &facts("made-anew")), ["machines"]);
    let findings = decide(&facts("made-anew"), Occasion::Daily);
    let machines = findings.iter().find(|finding| finding.id == "machines").unwrap();
    assert!(machines.mend.as_ref().unwrap().contains("another cluster's"), "{machines:?}");
}

#[test]
fn a_machine_that_is_stopped_is_named() {
    let stopped = told(|facts| answers(&mut facts.harvester, &read::instances("team-a"), list(&json!([]))));
    assert_eq!(stopped, [("guest-agents", Verdict::Amber)]);
}

#[test]
fn a_node_that_somebody_else_manages_needs_no_machine() {
    let foreign = told(|facts| {
        change(&mut facts.guest, read::NODES, |all| {
            let labels = json!({"cloudprovider.harvesterhci.io/externally-managed": "true"});
            let node = json!({"metadata": {"name": "metal-1", "labels": labels}, "spec": {}});
            all["items"].as_array_mut().unwrap().push(node);
        });
    });
    assert_eq!(foreign, []);
}

#[test]
fn a_harvester_that_uses_dhcp_alone_and_a_pool_that_nobody_looked_at_yet_are_not_red() {
    let none = told(|facts| answers(&mut facts.harvester, read::POOLS, list(&json!([]))));
    assert_eq!(none, [("pools", Verdict::Amber)]);
    let fresh = told(|facts| {
        answers(&mut facts.harvester, read::POOLS, list(&json!([{"metadata": {"name": "new"}}])));
    });
    assert_eq!(fresh, [("pools", Verdict::NotAsked)]);
}

#[test]
fn a_cluster_without_the_kinds_of_snapshots_is_amber() {
    let none = told(|facts| {
        answers(&mut facts.guest, read::SNAPSHOTS, Err(failed(Trouble::NotFound, "not found")));
    });
    assert_eq!(none, [("snapshot-crds", Verdict::Amber)]);
    let some = told(|facts| {
        let classes = json!({"resources": [{"name": "volumesnapshotclasses"}]});
        answers(&mut facts.guest, read::SNAPSHOTS, Ok(classes));
    });
    assert_eq!(some, [("snapshot-crds", Verdict::Amber)], "the sidecar ends without the other two");
}

#[test]
fn a_rancher_that_knows_this_harvester_by_another_name_is_told_with_its_issue() {
    let mut facts = healthy();
    let gone = failed(Trouble::NotFound, "clusters.management.cattle.io \"c-m-1\" not found");
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(gone.clone()));
    let findings = decide(&facts, Occasion::Daily);
    let login = findings.iter().find(|finding| finding.id == "harvester-login").unwrap();
    assert!(login.verdict == Verdict::Red && login.mend.as_ref().unwrap().contains("53642"), "{login:?}");
    assert_eq!(of(Verdict::Red, &facts), ["harvester-login"]);
}

#[test]
fn what_the_kubeconfig_may_not_read_is_not_asked_and_named() {
    let mut facts = healthy();
    answers(&mut facts.harvester, read::POOLS, Err(failed(Trouble::Forbidden, "ippools is forbidden")));
    let findings = decide(&facts, Occasion::Daily);
    let pools = findings.iter().find(|finding| finding.id == "pools").unwrap();
    assert_eq!((pools.verdict, pools.because), (Verdict::NotAsked, None));
    assert!(pools.sentence.contains("ippools is forbidden"), "{pools:?}");
}

#[test]
fn a_cluster_without_storage_has_no_fault_for_it_until_it_has_volumes_that_need_it() {
    let mut facts = healthy();
    let volumes = std::mem::replace(facts.guest.answers.get_mut(read::VOLUMES).unwrap(), list(&json!([])));
    answers(&mut facts.guest, read::CSI_DRIVERS, list(&json!([])));
    change(&mut facts.guest, read::DAEMON_SETS, |all| drop(all["items"].as_array_mut().unwrap().remove(1)));
    answers(&mut facts.guest, read::CSI_LEASE, Err(failed(Trouble::NotFound, "not found")));
    answers(&mut facts.guest, read::SNAPSHOTS, Err(failed(Trouble::NotFound, "not found")));
    assert_eq!(of(Verdict::Red, &facts), [""; 0]);
    answers(&mut facts.guest, read::VOLUMES, volumes);
    assert_eq!(of(Verdict::Red, &facts), ["csi-driver"]);
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
    let findings = decide(&facts, Occasion::Daily);
    let text = render(&findings, Colour(false));
    assert_eq!(text.lines().count(), findings.len() + 1);
    assert!(text.contains("cloud-config           red       no cloud-config found\n"), "{text}");
    assert!(!text.contains('\u{1b}') && render(&findings, Colour(true)).contains('\u{1b}'));
}

#[test]
fn no_control_character_of_others_reaches_a_terminal() {
    let mut facts = healthy();
    answers(&mut facts.guest, read::VERSION, Ok(json!({"gitVersion": "v1.36.0\u{1b}]0;x\u{7}"})));
    change(&mut facts.guest, read::DAEMON_SETS, |all| {
        all["items"][0]["metadata"]["name"] = json!("kube\u{1b}[2J-vip");
        all["items"][0]["status"]["numberReady"] = json!(0);
    });
    let findings = decide(&facts, Occasion::Daily);
    assert_eq!(of(Verdict::Red, &facts), ["kube-vip"]);
    assert!(!render(&findings, Colour(false)).contains(['\u{1b}', '\u{7}']), "{findings:#?}");
}

#[test]
fn the_document_names_every_check() {
    let document = include_str!("../../../../docs/doctor.md");
    for check in CHECKS {
        let row = format!("| `{}` | {} |\n", check.id, check.about);
        assert!(document.contains(&row), "docs/doctor.md lacks: {row}");
    }
}
