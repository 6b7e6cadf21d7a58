//! The calls on a machine that exists.

use serde_json::json;
use sim_apiserver::faults::{Answer, Rule, When};

use node_driver::driver::State;

use crate::support::{Harvester, MACHINE, NAMESPACE, instance_path, vm_path};

#[tokio::test(start_paused = true)]
async fn a_machine_is_stopped_started_restarted_and_killed() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    assert_eq!(driver.state().await, Ok(State::Running));
    let uid = async || harvester.get(&instance_path()).await["metadata"]["uid"].clone();
    let first = uid().await;

    driver.stop().await.unwrap();
    assert_eq!(driver.state().await, Ok(State::Stopped));
    assert_eq!(driver.ip().await.unwrap_err().to_string(), "Host is not running");
    assert_eq!(driver.url().await.unwrap_err().to_string(), "Host is not running");
    let error = driver.restart().await.unwrap_err().to_string();
    assert!(error.contains("does not run: start it"), "{error}");
    driver.stop().await.expect("what is stopped stays stopped");

    driver.start().await.unwrap();
    let second = uid().await;
    assert_ne!(first, second);
    driver.start().await.expect("what runs runs on");
    assert_eq!(uid().await, second);

    driver.restart().await.unwrap();
    assert_ne!(uid().await, second);
    assert_eq!(driver.config().ip_address, driver.ip().await.unwrap());
    assert_eq!(driver.url().await.unwrap(), format!("tcp://{}:2376", driver.config().ip_address));

    driver.kill().await.unwrap();
    assert_eq!(driver.state().await, Ok(State::Stopped));
}

/// Ten minutes until the new instance runs, and ten more for its address.
#[tokio::test(start_paused = true)]
async fn a_restart_has_ten_minutes_for_each_phase() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    let metadata = json!({"name": MACHINE, "namespace": NAMESPACE});
    harvester
        .put(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata,
            "spec": {"runStrategy": "RerunOnFailure", "template": {}}}))
        .await;
    let instance = |address: &str| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata,
            "spec": {"networks": [{"name": "nic-0"}]},
            "status": {"phase": "Running", "interfaces": [{"name": "nic-0", "ipAddress": address}]}})
    };
    harvester.put(instance("192.0.2.9")).await;
    let restarting = driver.driver.clone();
    let restarting = tokio::spawn(async move { restarting.restart().await });
    tokio::time::sleep(std::time::Duration::from_secs(590)).await;
    harvester.delete(&instance_path()).await;
    harvester.put(instance("")).await;
    tokio::time::sleep(std::time::Duration::from_secs(590)).await;
    assert!(!restarting.is_finished());
    let status = instance("192.0.2.10")["status"].clone();
    harvester.patch(&instance_path(), &json!({"status": status})).await;
    restarting.await.unwrap().unwrap();
    assert_eq!(driver.config().ip_address, "192.0.2.10");
}

/// KubeVirt answers 409 where the VM is there already, and also where another writer was quicker
/// (`jsonpatch test operation does not apply`) or where the VM's state forbids it.
fn conflict(order: &str) -> Rule {
    let mut rule = Rule::new(Answer::Code(409));
    (rule.verb, rule.resource) = (Some("update".into()), Some(format!("virtualmachines/{order}")));
    rule
}

#[tokio::test(start_paused = true)]
async fn an_order_that_lost_a_race_is_given_again() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    for order in ["stop", "start"] {
        harvester.server.faults().add(Rule { nth: Some(2), ..conflict(order) });
        harvester.server.faults().add(Rule { nth: Some(1), ..conflict(order) });
    }
    driver.stop().await.unwrap();
    assert_eq!(driver.state().await, Ok(State::Stopped));
    driver.start().await.unwrap();
    assert_eq!(driver.state().await, Ok(State::Running));
    harvester.server.faults().clear();

    harvester.server.faults().add(Rule { nth: Some(1), ..conflict("stop") });
    driver.kill().await.unwrap();
    assert_eq!(driver.state().await, Ok(State::Stopped));
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_refused_for_good_fails_with_the_servers_words() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    harvester.server.faults().add(conflict("stop"));
    let error = driver.stop().await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("stop VM {NAMESPACE}/{MACHINE}: Conflict: ")), "{error}");
    assert_eq!(driver.state().await, Ok(State::Running));
}

#[tokio::test(start_paused = true)]
async fn an_order_whose_answer_was_wrong_is_not_given_twice() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    harvester.server.faults().add(Rule { when: When::After, ..conflict("stop") });
    let before = harvester.server.audit().total();
    driver.stop().await.unwrap();
    let orders = harvester.asked(before).into_iter().filter(|request| request.ends_with("/stop"));
    assert_eq!(orders.count(), 1);
    assert_eq!(driver.state().await, Ok(State::Stopped));
}

/// What Harvester writes on a VM that it stopped for a quota stays until the VM runs again.
#[tokio::test(start_paused = true)]
async fn a_machine_that_a_quota_stopped_starts_once_the_quota_is_raised() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.up(store.path()).await;
    driver.stop().await.unwrap();
    harvester
        .put(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "default", "namespace": NAMESPACE},
            "spec": {"hard": {"limits.memory": "1Gi"}}}))
        .await;
    let error = driver.start().await.unwrap_err().to_string();
    assert!(error.contains("quota") && error.contains("limits.memory"), "{error}");
    while harvester.vm().await["spec"]["runStrategy"] != "Halted" {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let annotation = "harvesterhci.io/insufficient-resource-quota";
    assert!(harvester.vm().await["metadata"]["annotations"][annotation].is_string());

    let quota = format!("/api/v1/namespaces/{NAMESPACE}/resourcequotas/default");
    harvester.patch(&quota, &json!({"spec": {"hard": {"limits.memory": "64Gi"}}})).await;
    // Harvester is slow to take its annotation away
    let mark = json!({"metadata": {"annotations": {annotation: "limits.memory"}}});
    harvester.patch(&vm_path(), &mark).await;
    driver.start().await.unwrap();
    assert_eq!(driver.state().await, Ok(State::Running));
}

#[tokio::test(start_paused = true)]
async fn only_an_absent_vm_is_not_found() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    assert!(driver.state().await.unwrap_err().to_string().ends_with("not found"));
    for code in [401, 403, 404, 500] {
        let mut rule = Rule::new(Answer::Code(code));
        rule.resource = Some("virtualmachines".into());
        harvester.server.faults().add(rule);
        let error = driver.state().await.unwrap_err().to_string();
        assert!(!error.contains("not found"), "{code}: {error}");
        harvester.server.faults().clear();
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_machine_the_getters_have_their_defaults() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path());
    assert_eq!((driver.ssh_port(), driver.ssh_user()), (22, "root".into()));
    assert!(
        driver.ssh_key_path().ends_with("/machines/demo-pool1-x7k2m-9d4tq/id_rsa"),
        "{}",
        driver.ssh_key_path()
    );
    driver
        .set_config_raw(
            json!({"SSHUser": "opensuse", "SSHPort": 2222, "SSHKeyPath": "/k"}).to_string().as_bytes(),
        )
        .unwrap();
    assert_eq!(
        (driver.ssh_port(), driver.ssh_user(), driver.ssh_key_path()),
        (2222, "opensuse".into(), "/k".into())
    );
    assert_eq!(driver.ipv6().unwrap_err().to_string(), "IPv6 address is not set");
}
