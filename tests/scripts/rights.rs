//! What an account may do that the scripts have made, and what they leave alone.

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
        host.works(&how, CSI, &format!("{account} blue rke2 --server {}", host.address)).await;
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
        let next = "RoleBinding vms-demo is there and grants the role view: delete it, then run this again: kubectl delete \
                    rolebinding vms-demo --namespace vms";
        assert!(told.code == Some(1) && told.err.contains(next), "{}", told.err);
        let told = host.run(&how, ADDON, "taken vms").await;
        let next = "Secret taken-token is there and is not of this account";
        assert!(told.code == Some(1) && told.err.contains(next), "{}", told.err);
    }
    assert_eq!(host.get("secret taken-token -n vms").await["data"]["a"], "Yg==");
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
