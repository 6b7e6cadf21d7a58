//! The calls on a machine that exists.

use serde_json::json;
use sim_apiserver::faults::{Answer, Rule};

use node_driver::driver::State;

use crate::support::{Harvester, instance_path, options, read};

#[tokio::test(start_paused = true)]
async fn a_machine_is_stopped_started_restarted_and_killed() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path());
    driver.set_config_from_flags(&read(&options(&[]))).unwrap();
    driver.create().await.unwrap();
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

#[tokio::test(start_paused = true)]
async fn only_an_absent_vm_is_not_found() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path());
    driver.set_config_from_flags(&read(&options(&[]))).unwrap();
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
