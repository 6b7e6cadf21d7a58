//! What an account may do that the scripts have made, and what they leave alone.

use std::collections::BTreeSet;

use k8s_openapi::serde_json::{Value, from_str};

use super::host::{Host, How};

const ADDON: &str = "generate_addon.sh";
const CSI: &str = "generate_addon_csi.sh";

#[tokio::test(flavor = "multi_thread")]
async fn the_cloud_provider_may_work_in_its_namespace_alone() {
    let Some(host) = Host::open().await else { return };
    host.works(&How::default(), ADDON, "demo vms").await;
    assert!(host.may("vms:demo", "create loadbalancers.loadbalancer.harvesterhci.io -n vms").await);
    assert!(!host.may("vms:demo", "get loadbalancers.loadbalancer.harvesterhci.io -n blue").await);
    let (_, bindings) = host.kubectl("get clusterrolebindings -o name").await;
    assert!(!bindings.contains("demo"), "{bindings}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_csi_driver_reaches_other_namespaces_unless_the_least_is_asked_for() {
    let Some(host) = Host::open().await else { return };
    let server = format!("--server {}", host.address);
    host.works(&How::default(), CSI, &format!("wide vms rke2 {server}")).await;
    host.works(&How::default(), CSI, &format!("least vms rke2 {server} --least")).await;
    let snapshots = "delete volumesnapshots.snapshot.storage.k8s.io";
    for (account, elsewhere) in [("vms:wide", true), ("vms:least", false)] {
        for right in [
            "patch virtualmachines.kubevirt.io -n vms",
            "create persistentvolumeclaims -n vms",
            &format!("{snapshots} -n vms"),
            "list storageclasses.storage.k8s.io",
            "get volumesnapshotclasses.snapshot.storage.k8s.io",
            "get settings.harvesterhci.io/csi-driver-config",
            "create networkfilesystems.harvesterhci.io -n harvester-system",
        ] {
            assert!(host.may(account, right).await, "{account} {right}");
        }
        for right in [
            "patch virtualmachines.kubevirt.io -n blue",
            &format!("{snapshots} -n blue"),
            "delete volumesnapshotcontents.snapshot.storage.k8s.io",
        ] {
            assert_eq!(host.may(account, right).await, elsewhere, "{account} {right}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_of_one_name_in_two_namespaces_do_not_disturb_each_other() {
    let Some(host) = Host::open().await else { return };
    let server = format!("--server {}", host.address);
    for namespace in ["blue", "green"] {
        host.works(&How::default(), CSI, &format!("demo {namespace} rke2 {server}")).await;
    }
    for namespace in ["blue", "green"] {
        let account = format!("{namespace}:demo");
        assert!(host.may(&account, &format!("create persistentvolumeclaims -n {namespace}")).await);
        assert!(host.may(&account, "list storageclasses.storage.k8s.io").await);
    }
    assert!(!host.may("blue:demo", "create persistentvolumeclaims -n green").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_that_somebody_else_put_into_a_binding_stay_there() {
    let Some(host) = Host::open().await else { return };
    for binary in [false, true] {
        // namespace `blue`, account `a-demo`; namespace `blue-a`, account `demo`: one name of the ClusterRoleBinding
        let account = format!("demo-{binary}");
        host.apply(&format!(
            "{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {{name: blue-{account}}},
               roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'harvesterhci.io:csi-driver'}},
               subjects: [{{kind: ServiceAccount, name: other, namespace: vms}}]}}"
        ))
        .await;
        let how = How { binary, ..How::default() };
        let told = host.works(&how, CSI, &format!("{account} blue rke2 --server {}", host.address)).await;
        let next = format!(
            "/blue-{account} is for ServiceAccount vms/other too: take this account back by its subject alone"
        );
        assert!(told.err.contains(&next), "{}", told.err);
        for account in ["vms:other".to_owned(), format!("blue:{account}")] {
            assert!(host.may(&account, "list storageclasses.storage.k8s.io").await, "{account}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_means_something_else_is_named_and_left_alone() {
    let Some(host) = Host::open().await else { return };
    host.apply(
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: vms-demo, namespace: vms},
          roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}}
---
{apiVersion: v1, kind: Secret, metadata: {name: taken-token, namespace: vms}, stringData: {a: b}}",
    )
    .await;
    for binary in [false, true] {
        let how = How { binary, ..How::default() };
        let told = host.run(&how, ADDON, "demo vms").await;
        let next = "RoleBinding vms-demo is there and grants the role view: if nothing needs it, delete it, then run this \
                    again: kubectl delete rolebinding vms-demo --namespace vms";
        assert!(told.code == Some(1) && told.err.contains(next), "{}", told.err);
        let told = host.run(&how, ADDON, "taken vms").await;
        let next = "Secret taken-token is there and is not of this account";
        assert!(told.code == Some(1) && told.err.contains(next), "{}", told.err);
    }
    assert_eq!(host.get("secret taken-token -n vms").await["data"]["a"], "Yg==");
}

/// Each verb of the rules on each resource, as text.
fn rights<'a>(rules: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let texts = |rule: &Value, field: &str| {
        let list = rule[field].as_array().into_iter().flatten();
        list.map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut all = BTreeSet::new();
    for rule in rules.into_iter().flat_map(|rules| rules.as_array().unwrap()) {
        for verb in texts(rule, "verbs") {
            for resource in texts(rule, "resources") {
                all.insert(format!("{verb} {:?} {resource} {:?}", rule["apiGroups"], rule["resourceNames"]));
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_is_what_our_roles_grant_outside_of_the_namespace() {
    let Some(host) = Host::open().await else { return };
    host.apply("{apiVersion: v1, kind: Namespace, metadata: {name: longhorn-system}}").await;
    host.works(&How::default(), CSI, &format!("demo vms rke2 --least --server {}", host.address)).await;
    let name = "harvester-csi-driver-least";
    let made = [
        host.get(&format!("clusterrole {name}")).await,
        host.get(&format!("role {name} -n harvester-system")).await,
        host.get(&format!("role {name} -n longhorn-system")).await,
    ];
    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rbac/ours.yaml");
    let ours = test_cluster::manifests::documents(&std::fs::read_to_string(ours).unwrap()).unwrap();
    let shared = ours.iter().find(|role| role["metadata"]["name"] == "harvester-csi-driver-shared").unwrap();
    assert_eq!(rights(made.iter().map(|role| &role["rules"])), rights([&shared["rules"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_documented_commands_an_account_of_the_same_name_has_no_right() {
    let Some(host) = Host::open().await else { return };
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/credentials.md")).unwrap();
    let (_, section) = document.split_once("\n## Take it back\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let commands: Vec<_> = section.lines().filter_map(|line| line.strip_prefix("    kubectl ")).collect();
    assert!(commands.last().unwrap().ends_with("delete serviceaccount demo"), "{commands:?}");
    host.apply("{apiVersion: v1, kind: Namespace, metadata: {name: longhorn-system}}").await;
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = host
        .cloud_config(
            folder.path(),
            "generate --rotate --no-check --for csi --server https://192.0.2.1:6443 demo vms",
        )
        .await;
    assert_eq!(code, Some(0), "{err}");
    host.works(&How::default(), CSI, &format!("demo vms rke2 --server {} --least", host.address)).await;
    for command in commands {
        let (done, told) = host.kubectl(command).await;
        assert!(done, "{command}: {told}");
    }
    // what is in its own namespace goes with it; elsewhere nobody does that
    for kind in ["clusterrolebindings", "rolebindings -A"] {
        let (_, told) = host.kubectl(&format!("get {kind} -o json")).await;
        let bindings: Value = from_str(&told).unwrap();
        for binding in bindings["items"].as_array().unwrap() {
            let is_left = binding["subjects"].to_string().contains("\"demo\"");
            let owner = &binding["metadata"]["ownerReferences"][0];
            assert!(!is_left || owner["name"] == "demo" && owner["kind"] == "ServiceAccount", "{binding}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_grants_more_or_less_than_the_least_is_named_and_nothing_is_bound_to_it() {
    let Some(host) = Host::open().await else { return };
    let role = |rules: &str| {
        format!(
            "{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {{name: harvester-csi-driver-least}},
               rules: [{{apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [{rules}]}}]}}"
        )
    };
    for (rules, why) in [
        ("get, list, delete", "grants delete storageclasses too"),
        ("get, list", "lacks get settings csi-driver-config"),
    ] {
        host.apply(&role(rules)).await;
        for binary in [false, true] {
            let how = How { binary, ..How::default() };
            let told = host.run(&how, CSI, &format!("demo vms rke2 --least --server {}", host.address)).await;
            let next =
                format!("ClusterRole harvester-csi-driver-least is there and {why}: if nothing needs it");
            assert!(told.code == Some(1) && told.err.contains(&next), "{}", told.err);
        }
    }
    assert!(!host.may("vms:demo", "list storageclasses.storage.k8s.io").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wide_binding_of_the_former_script_is_told() {
    let Some(host) = Host::open().await else { return };
    host.apply(
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: demo},
          roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'harvesterhci.io:cloudprovider'},
          subjects: [{kind: ServiceAccount, name: demo, namespace: vms}]}",
    )
    .await;
    for binary in [false, true] {
        let how = How { binary, ..How::default() };
        let told = host.works(&how, ADDON, "demo vms").await;
        assert!(told.err.contains("kubectl delete clusterrolebinding demo\n"), "{}", told.err);
        // of another account of the same name
        let told = host.works(&how, ADDON, "demo blue").await;
        assert!(!told.err.contains("clusterrolebinding"), "{}", told.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_the_account_is_its_secrets_and_goes_with_the_account() {
    let Some(host) = Host::open().await else { return };
    host.works(&How::default(), ADDON, "demo vms").await;
    let account = host.get("serviceaccount demo -n vms").await;
    let secret = host.get("secret demo-token -n vms").await;
    assert_eq!(secret["type"], "kubernetes.io/service-account-token");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], account["metadata"]["uid"]);
    let annotations = &secret["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/service-account.name"], "demo");
    assert_eq!(annotations["kubernetes.io/service-account.uid"], account["metadata"]["uid"]);
}
