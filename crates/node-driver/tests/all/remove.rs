//! `Remove`, in any state of the machine.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{
    Harvester, MACHINE, NAMESPACE, TestDriver, claim_path, is_going, own_claim, put_claim, refused, vm_path,
};

/// Plugs a volume in, as the guest's CSI driver does.
async fn plug(harvester: &Harvester, claim: &str) {
    let mut volumes = harvester.vm().await["spec"]["template"]["spec"]["volumes"].clone();
    let volume =
        json!({"name": "plugged", "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}});
    volumes.as_array_mut().unwrap().push(volume);
    harvester.patch(&vm_path(), &json!({"spec": {"template": {"spec": {"volumes": volumes}}}})).await;
}

/// The claims in the VM's annotation, after the removal by a driver that may not delete the VM.
async fn named_claims(harvester: &Harvester, driver: &TestDriver) -> Vec<String> {
    harvester.server.faults().add(refused("delete", "virtualmachines", 403));
    let error = driver.remove().await.unwrap_err().to_string();
    assert!(error.contains("no right to that (403)"), "{error}");
    let vm = harvester.vm().await;
    let named = vm["metadata"]["annotations"]["harvesterhci.io/removedPersistentVolumeClaims"].as_str();
    named.unwrap_or_default().split(',').map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn the_machines_own_volumes_go_and_plugged_ones_stay() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    plug(&harvester, "pvc-of-the-guest").await;
    assert_eq!(named_claims(&harvester, &driver).await, [own_claim(&harvester).await]);
}

#[tokio::test(start_paused = true)]
async fn with_the_whole_cluster_all_volumes_go() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    plug(&harvester, "pvc-of-the-guest").await;
    put_claim(&harvester, "pvc-unplugged", json!({"guestcluster.harvesterhci.io/name": "demo"})).await;
    put_claim(&harvester, "pvc-of-another", json!({"guestcluster.harvesterhci.io/name": "other"})).await;
    let mark =
        json!({"metadata": {"annotations": {"harvesterhci.io/removeAllPersistentVolumeClaims": "true"}}});
    harvester.patch(&vm_path(), &mark).await;
    let expected = [own_claim(&harvester).await, "pvc-of-the-guest".to_owned(), "pvc-unplugged".to_owned()];
    assert_eq!(named_claims(&harvester, &driver).await, expected);
}

// docs/contract/node-driver.md#B8: Harvester's webhook refuses the annotation, and upstream's removal is stuck
#[rstest]
#[case::webhook(422)]
#[case::right(403)]
#[case::conflict(409)]
#[case::something_else_is_not_there(404)]
#[case::failure(500)]
#[tokio::test(start_paused = true)]
async fn a_refused_annotation_does_not_stop_the_removal(#[case] code: u16) {
    for verbs in [&["patch"][..], &["patch", "update"]] {
        let harvester = Harvester::start().await.with_machines().await;
        let store = tempfile::tempdir().unwrap();
        let driver = harvester.up(store.path()).await;
        let claim = own_claim(&harvester).await;
        assert!(!harvester.get(&claim_path(&claim)).await.is_null(), "Harvester made it");
        for verb in verbs {
            harvester.server.faults().add(refused(verb, "virtualmachines", code));
        }
        driver.remove().await.unwrap();
        assert!(harvester.vm().await.is_null());
        assert!(is_going(&harvester, &claim).await, "{verbs:?}");
        let one_by_one = driver.output().iter().any(|line| line.contains("are deleted one by one"));
        assert_eq!(one_by_one, verbs.len() == 2, "{:?}", driver.output());
    }
}

/// Upstream reads, writes and deletes VMs, and has nothing to do with volumes.
#[tokio::test(start_paused = true)]
async fn upstreams_rights_are_enough_for_the_volumes_to_go() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    let claim = own_claim(&harvester).await;
    harvester.server.faults().add(refused("patch", "virtualmachines", 403));
    harvester.server.faults().add(refused("delete", "persistentvolumeclaims", 403));
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && is_going(&harvester, &claim).await);
}

/// Gives a user these rights in all namespaces.
async fn allow(harvester: &Harvester, user: &str, role: &str, rules: Value) {
    let (group, kind) = ("rbac.authorization.k8s.io", "ClusterRole");
    let version = format!("{group}/v1");
    harvester
        .put(json!({"apiVersion": version, "kind": kind, "metadata": {"name": role}, "rules": rules}))
        .await;
    harvester
        .put(json!({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": role},
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}]}))
        .await;
}

/// The VM is all that tells which volumes are its own.
#[tokio::test(start_paused = true)]
async fn a_vm_stays_while_its_volumes_would_be_left_behind() {
    let harvester = Harvester::start().await.with_machines().await;
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "create"]},
        {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"], "verbs": ["delete"]}]);
    allow(&harvester, "u-poor", "poor", all).await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver_as(store.path(), "u-poor", 1).configured(&[]);
    driver.create().await.unwrap();
    let claim = own_claim(&harvester).await;

    let error = driver.remove().await.unwrap_err().to_string();
    assert!(error.contains(&format!("stays, because its volumes {claim} would be left behind")), "{error}");
    assert!(error.contains("right to delete persistentvolumeclaims in namespace shop"), "{error}");
    assert!(harvester.vm().await["metadata"]["deletionTimestamp"].is_null(), "nothing has happened to it");

    let volumes = json!([{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["delete"]}]);
    allow(&harvester, "u-poor", "volumes", volumes).await;
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && is_going(&harvester, &claim).await);
}

#[tokio::test(start_paused = true)]
async fn volumes_that_are_left_in_the_end_are_named() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    let claim = own_claim(&harvester).await;
    for (verb, resource) in
        [("patch", "virtualmachines"), ("update", "virtualmachines"), ("delete", "persistentvolumeclaims")]
    {
        harvester.server.faults().add(refused(verb, resource, 422));
    }
    let error = driver.remove().await.unwrap_err().to_string();
    assert!(
        error.contains("its volumes are left, delete them in Harvester") && error.contains(&claim),
        "{error}"
    );
}

// docs/contract/node-driver.md#1.2: any 404 is success for upstream, and rancher-machine swallows every `not found`
#[rstest]
#[case::not_about_the_vm("get", 404)]
#[case::credential("get", 401)]
#[case::right("get", 403)]
#[case::failure("get", 500)]
#[case::delete_refused("delete", 403)]
#[case::delete_conflicts("delete", 409)]
#[case::delete_of_nothing_known("delete", 404)]
#[tokio::test(start_paused = true)]
async fn an_error_is_never_taken_for_success(#[case] verb: &str, #[case] code: u16) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    harvester.server.faults().add(refused(verb, "virtualmachines", code));
    let error = driver.remove().await.unwrap_err().to_string();
    assert!(!error.to_ascii_lowercase().contains("not found"), "{error}");
    assert!(!harvester.vm().await.is_null());
    harvester.server.faults().clear();
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_held_is_not_gone() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    harvester.patch(&vm_path(), &json!({"metadata": {"finalizers": ["example.com/backup"]}})).await;
    let error = driver.remove().await.unwrap_err().to_string();
    assert!(
        error.contains("still exists after 600 s: held by") && error.contains("example.com/backup"),
        "{error}"
    );
    assert!(
        !harvester.secret().await.is_null()
            || harvester.vm().await["metadata"]["deletionTimestamp"].is_string()
    );
    harvester.patch(&vm_path(), &json!({"metadata": {"finalizers": null}})).await;
    driver.remove().await.expect("the next one sees it gone");
}

#[rstest]
#[case::halted(json!({"spec": {"runStrategy": "Halted"}}))]
#[case::without_annotations(json!({"metadata": {"annotations": null}}))]
#[case::without_volumes(json!({"spec": {"template": {"spec": {"volumes": null}}}}))]
#[tokio::test(start_paused = true)]
async fn a_machine_is_removed_in_any_state(#[case] patch: Value) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    harvester.patch(&vm_path(), &patch).await;
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
}

#[tokio::test(start_paused = true)]
async fn the_secret_of_a_vm_that_is_gone_is_removed_and_a_users_stays() {
    for (labels, stays) in
        [(json!({"harvesterhci.io/creator": "docker-machine-driver-harvester"}), false), (json!({}), true)]
    {
        let harvester = Harvester::start().await;
        harvester
            .put(json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": format!("{MACHINE}-cloudinit"), "namespace": NAMESPACE, "labels": labels}}))
            .await;
        let store = tempfile::tempdir().unwrap();
        let driver = harvester.driver(store.path()).configured(&[]);
        driver.remove().await.unwrap();
        assert_eq!(!harvester.secret().await.is_null(), stays);
    }
}
