//! `Remove` and what is not the machine's own: other VMs of its name, other Harvesters, other volumes and Secrets.

use std::time::Duration;

use node_driver::driver::Error;
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule};
use tokio::task::JoinHandle;

use crate::support::{
    Harvester, MACHINE, NAMESPACE, SERVER, TestDriver, USER, claim_path, claims, is_going, long_user_data,
    own_claim, put_claim, refused, vm_path,
};

const CREATOR: &str = "harvesterhci.io/creator";
const CLUSTER: &str = "guestcluster.harvesterhci.io/name";

/// The text of a failed removal, which rancher-machine must not take for a success.
async fn refusal(driver: &TestDriver) -> String {
    let text = driver.remove().await.unwrap_err().to_string();
    assert!(!text.to_ascii_lowercase().contains("not found"), "{text}");
    text
}

/// Nothing of the machine is deleted or on its way.
async fn is_untouched(harvester: &Harvester) -> bool {
    let vm = harvester.vm().await;
    let named = &vm["metadata"]["annotations"]["harvesterhci.io/removedPersistentVolumeClaims"];
    let claims = claims(harvester).await;
    vm["metadata"]["uid"].is_string()
        && vm["metadata"]["deletionTimestamp"].is_null()
        && named.is_null()
        && !harvester.secret().await.is_null()
        && claims.iter().all(|claim| claim["metadata"]["deletionTimestamp"].is_null())
}

#[rstest]
#[case::of_a_user(json!({CREATOR: null}), "was not made by the node driver")]
#[case::of_harvesters_form(json!({CREATOR: "harvester"}), "was not made by the node driver")]
#[case::of_another_cluster(json!({CLUSTER: "other"}), "belongs to guest cluster other, this machine to demo")]
#[tokio::test(start_paused = true)]
async fn a_vm_of_somebody_else_is_not_removed(#[case] labels: Value, #[case] part: &str) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    harvester.patch(&vm_path(), &json!({"metadata": {"labels": labels}})).await;
    let text = refusal(&driver).await;
    assert!(text.contains(part), "{text}");
    assert!(is_untouched(&harvester).await);
}

/// Upstream's older versions know no cluster label, and store no cluster, no UID and no identity.
#[rstest]
#[case::vm_without_cluster(json!({CLUSTER: null}), json!({}))]
#[case::machine_without_cluster(json!({}), json!({"ClusterName": ""}))]
#[tokio::test(start_paused = true)]
async fn a_vm_of_upstreams_driver_is_removed(#[case] labels: Value, #[case] stored: Value) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    harvester.up(store.path()).await;
    let unknown =
        json!({"node-driver.harvesterhci.io/inputs": null, "node-driver.harvesterhci.io/attempt": null});
    harvester.patch(&vm_path(), &json!({"metadata": {"labels": labels, "annotations": unknown}})).await;
    let driver = harvester.driver(store.path());
    let mut upstreams = json!({"ClusterName": "demo", "VMNamespace": NAMESPACE});
    for (key, value) in stored.as_object().unwrap() {
        upstreams[key] = value.clone();
    }
    driver.set_config_raw(upstreams.to_string().as_bytes()).unwrap();
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
}

/// Somebody deletes the VM and makes it as it was, without what the server had written; another UID comes by itself.
async fn made_anew(harvester: &Harvester, vm: &Value) {
    harvester.delete(&vm_path()).await;
    let metadata = json!({"name": MACHINE, "namespace": NAMESPACE, "labels": vm["metadata"]["labels"],
        "annotations": vm["metadata"]["annotations"]});
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata,
        "spec": vm["spec"]});
    harvester.put(vm).await;
}

/// Begins to remove the machine. The server keeps the driver's `verb` on the VM waiting, and meanwhile the VM is made
/// anew.
async fn removing_while_made_anew(
    harvester: &Harvester,
    driver: &TestDriver,
    vm: &Value,
    verb: &str,
) -> JoinHandle<Result<(), Error>> {
    let mut slow = Rule::new(Answer::Delay(Duration::from_secs(20)));
    (slow.verb, slow.resource) = (Some(verb.into()), Some("virtualmachines".into()));
    slow.user = Some(USER.into());
    harvester.server.faults().add(slow);
    let driver = driver.driver.clone();
    let removing = tokio::spawn(async move { driver.remove().await });
    tokio::time::sleep(Duration::from_secs(10)).await;
    made_anew(harvester, vm).await;
    removing
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_a_later_create_made_is_not_removed() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up_without_kubevirt(store.path()).await;
    let vm = harvester.vm().await;
    made_anew(&harvester, &vm).await;
    let text = refusal(&driver).await;
    assert!(text.contains("is another one than this machine's"), "{text}");
    assert!(harvester.vm().await["metadata"]["deletionTimestamp"].is_null());
}

/// Between the look at the VM and its deletion, somebody makes another one of its name.
#[tokio::test(start_paused = true)]
async fn a_vm_that_takes_the_name_during_the_removal_is_not_touched() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up_without_kubevirt(store.path()).await;
    let vm = harvester.vm().await;
    let removing = removing_while_made_anew(&harvester, &driver, &vm, "delete").await;
    let later = harvester.vm().await;
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": MACHINE,
        "uid": later["metadata"]["uid"]});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{MACHINE}-cloudinit"),
        "namespace": NAMESPACE, "labels": {CREATOR: "docker-machine-driver-harvester"}, "ownerReferences": [owner]}});
    if !harvester.secret().await.is_null() {
        harvester.delete(&format!("/api/v1/namespaces/{NAMESPACE}/secrets/{MACHINE}-cloudinit")).await;
    }
    harvester.put(secret).await;
    removing.await.unwrap().unwrap();
    assert_eq!(harvester.vm().await["metadata"]["uid"], later["metadata"]["uid"]);
    assert!(harvester.vm().await["metadata"]["deletionTimestamp"].is_null());
    assert!(!harvester.secret().await.is_null(), "it is the later VM's");
    assert!(
        driver.output().iter().any(|line| line.contains("another VM has its name")),
        "{:?}",
        driver.output()
    );
}

/// Between the look at the VM and the annotation that names its volumes, somebody makes it anew on the same volumes.
#[tokio::test(start_paused = true)]
async fn the_volumes_of_a_vm_that_takes_the_name_during_the_removal_are_not_touched() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up_without_kubevirt(store.path()).await;
    let (vm, claim) = (harvester.vm().await, own_claim(&harvester).await);
    put_claim(&harvester, &claim, json!({})).await;
    let removing = removing_while_made_anew(&harvester, &driver, &vm, "patch").await;
    removing.await.unwrap().unwrap();
    assert!(harvester.vm().await["metadata"]["deletionTimestamp"].is_null());
    assert!(!is_going(&harvester, &claim).await, "it is the later VM's");
}

/// Makes a VM of another name, and a Secret with this machine's Secret's name that it owns.
async fn put_secret_of_another_vm(harvester: &Harvester) {
    let metadata = json!({"name": "other", "namespace": NAMESPACE});
    let vm =
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": {}});
    harvester.put(vm).await;
    let path = format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/other");
    let uid = harvester.get(&path).await["metadata"]["uid"].clone();
    let owner =
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "other", "uid": uid});
    let metadata = json!({"name": format!("{MACHINE}-cloudinit"), "namespace": NAMESPACE,
        "labels": {CREATOR: "docker-machine-driver-harvester"}, "ownerReferences": [owner]});
    harvester.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})).await;
}

#[tokio::test(start_paused = true)]
async fn the_secret_of_another_vm_is_neither_removed_nor_replaced() {
    let harvester = Harvester::start().await.with_machines().await;
    put_secret_of_another_vm(&harvester).await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[("harvester-user-data", long_user_data())]);
    driver.remove().await.unwrap();
    assert!(!harvester.secret().await.is_null());
    let text = driver.create().await.unwrap_err().to_string();
    assert!(text.contains("delete it or choose another name for the machine"), "{text}");
    assert!(!harvester.secret().await.is_null());
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_not_removed_from_another_harvester() {
    let first = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = first.driver(store.path()).configured(&[("harvester-user-data", long_user_data())]);
    driver.pre_create_check().await.unwrap();
    // what rancher-machine stores before Create
    let stored = driver.config().to_json();
    driver.create().await.unwrap();

    let second = Harvester::start_with_seed(5).await.with_machines().await;
    for twin in [false, true] {
        if twin {
            let store = tempfile::tempdir().unwrap();
            second.up(store.path()).await;
        }
        let driver = second.driver(store.path());
        driver.set_config_raw(&stored).unwrap();
        let text = refusal(&driver).await;
        assert!(text.contains("another Harvester") && text.contains(SERVER), "{text}");
        assert_eq!(is_untouched(&second).await, twin);
    }
    let driver = first.driver(store.path());
    driver.set_config_raw(&stored).unwrap();
    driver.remove().await.unwrap();
    assert!(first.vm().await.is_null());
}

#[rstest]
#[case::no_right(403)]
#[case::failure(500)]
#[case::no_such_kind(404)]
#[tokio::test(start_paused = true)]
async fn while_nobody_knows_which_harvester_it_is_nothing_is_removed(#[case] code: u16) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    harvester.server.faults().add(refused("get", "settings", code));
    let text = refusal(&driver).await;
    assert!(text.contains("whether this is the Harvester of VM"), "{text}");
    assert!(is_untouched(&harvester).await);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_not_there_is_said_with_the_server() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    driver.remove().await.unwrap();
    assert_eq!(driver.output(), [format!("no VM {NAMESPACE}/{MACHINE} at {SERVER}")]);
}

/// A removal that deletes the volumes itself dies between the VM and them.
#[tokio::test(start_paused = true)]
async fn volumes_are_found_by_their_names_where_the_vm_is_gone() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    let own = own_claim(&harvester).await;
    let used = format!("{MACHINE}-disk-7-bcdfg");
    let mut others = vec![
        format!("{MACHINE}-disk-0-bcdfg-disk-0-bcdfg"),
        format!("{MACHINE}-disk-0-abcde"),
        format!("{MACHINE}-disk-0"),
        format!("{MACHINE}-disk-x-bcdfg"),
        format!("{MACHINE}2-disk-0-bcdfg"),
        "pvc-of-the-guest".to_owned(),
    ];
    for name in &others {
        put_claim(&harvester, name, json!({})).await;
    }
    put_claim(&harvester, &used, json!({})).await;
    let owners = json!([{"schema": "kubevirt.io.virtualmachine", "refs": [format!("{NAMESPACE}/other")]}]);
    let annotations = json!({"harvesterhci.io/owned-by": owners.to_string()});
    harvester.patch(&claim_path(&used), &json!({"metadata": {"annotations": annotations}})).await;
    others.push(used);

    for verb in ["patch", "update"] {
        harvester.server.faults().add(refused(verb, "virtualmachines", 422));
    }
    let mut dies = Rule::new(Answer::Delay(Duration::from_secs(3600)));
    (dies.verb, dies.resource) = (Some("delete".into()), Some("persistentvolumeclaims".into()));
    dies.user = Some(USER.into());
    harvester.server.faults().add(dies);
    assert!(tokio::time::timeout(Duration::from_secs(60), driver.remove()).await.is_err());
    assert!(harvester.vm().await.is_null() && !is_going(&harvester, &own).await);
    harvester.server.faults().clear();

    let next = harvester.driver(store.path());
    next.set_config_raw(&driver.config().to_json()).unwrap();
    next.remove().await.unwrap();
    assert!(is_going(&harvester, &own).await);
    for name in &others {
        assert!(!is_going(&harvester, name).await, "{name}");
    }
    assert!(next.output().iter().any(|line| line.contains(&own)), "{:?}", next.output());
}

/// rancher-machine stores the machine after `PreCreateCheck`, and again only after `Create`. Somebody removes the VM in
/// between, with Harvester's choice to keep the volumes.
#[tokio::test(start_paused = true)]
async fn volumes_of_a_create_that_was_killed_before_it_answered_are_removed() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    driver.pre_create_check().await.unwrap();
    let stored = driver.config().to_json();
    driver.create().await.unwrap();
    let own = own_claim(&harvester).await;
    let kept = format!("{MACHINE}-disk-0-bcdfg");
    put_claim(&harvester, &kept, json!({})).await;
    harvester.delete(&vm_path()).await;
    while !harvester.vm().await.is_null() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!is_going(&harvester, &own).await);

    let next = harvester.driver(store.path());
    next.set_config_raw(&stored).unwrap();
    assert_eq!(next.config().vm_uid, "");
    next.remove().await.unwrap();
    assert!(is_going(&harvester, &own).await);
    assert!(!is_going(&harvester, &kept).await);
}

/// A user keeps the volumes of an earlier machine, and this machine of its name never got a VM. Upstream's driver stores no
/// UID at all, and no identity of its Harvester.
#[rstest]
#[case::create_made_no_vm(json!({}))]
#[case::upstreams_machine(json!({"HarvesterUID": "", "HarvesterServer": ""}))]
#[tokio::test(start_paused = true)]
async fn volumes_stay_if_nothing_proves_that_the_machine_had_a_vm(#[case] stored: Value) {
    let harvester = Harvester::start().await;
    let kept = format!("{MACHINE}-disk-0-bcdfg");
    put_claim(&harvester, &kept, json!({})).await;
    harvester.server.faults().add(refused("create", "virtualmachines", 403));
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    driver.create().await.unwrap_err();
    driver.set_config_raw(stored.to_string().as_bytes()).unwrap();
    driver.remove().await.unwrap();
    assert!(!is_going(&harvester, &kept).await);
    let told = format!("volume {kept} stays");
    assert!(driver.output().iter().any(|line| line.starts_with(&told)), "{:?}", driver.output());
}

#[tokio::test(start_paused = true)]
async fn a_refused_list_of_volumes_is_said() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    let whole_cluster =
        json!({"metadata": {"annotations": {"harvesterhci.io/removeAllPersistentVolumeClaims": "true"}}});
    harvester.patch(&vm_path(), &whole_cluster).await;
    harvester.server.faults().add(refused("list", "persistentvolumeclaims", 403));
    let text = refusal(&driver).await;
    assert!(text.contains("list volumes") && text.contains("no right to that (403)"), "{text}");
    assert!(is_untouched(&harvester).await, "the VM alone tells that the whole cluster goes");

    harvester.delete(&vm_path()).await;
    while !harvester.vm().await.is_null() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    driver.remove().await.unwrap();
    let said = driver.output();
    let line = said.iter().find(|line| line.contains("volumes")).unwrap_or_else(|| panic!("{said:?}"));
    assert!(line.contains("no right to that (403)"), "{line}");
}

/// A volume that somebody else made under the name of one that was just removed.
#[tokio::test(start_paused = true)]
async fn a_volume_that_takes_the_name_during_the_removal_is_not_touched() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    let own = own_claim(&harvester).await;
    for verb in ["patch", "update"] {
        harvester.server.faults().add(refused(verb, "virtualmachines", 422));
    }
    let mut slow = Rule::new(Answer::Delay(Duration::from_secs(20)));
    (slow.verb, slow.resource) = (Some("delete".into()), Some("persistentvolumeclaims".into()));
    slow.user = Some(USER.into());
    harvester.server.faults().add(slow);
    let removing = driver.driver.clone();
    let removing = tokio::spawn(async move { removing.remove().await });
    while harvester.server.faults().hits() < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    harvester.patch(&claim_path(&own), &json!({"metadata": {"finalizers": null}})).await;
    harvester.delete(&claim_path(&own)).await;
    put_claim(&harvester, &own, json!({"app": "database"})).await;
    removing.await.unwrap().unwrap();
    assert!(!is_going(&harvester, &own).await);
}
