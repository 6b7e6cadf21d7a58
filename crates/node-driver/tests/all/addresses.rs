//! Static addresses of machines from Harvester's IPPools.

use std::{net::IpAddr, path::Path, time::Duration};

use harvester_api::IPPool;
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule, When};

use crate::support::{Harvester, MACHINE, NAMESPACE, TestDriver, USER, long_user_data, refused, vm_path};

const WRITER: &str = "docker-machine-driver-harvester";
const PATH: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools/edge";

fn holder() -> String {
    format!("{NAMESPACE}/{MACHINE}")
}

/// A Harvester in which machines come up, with the pool `edge`.
async fn harvester() -> Harvester {
    let harvester = Harvester::start().await.with_machines().await;
    let kind = include_str!("../../../../deploy/crds/ippools.yaml");
    harvester.put(serde_saphyr::from_str(kind).unwrap()).await;
    harvester
        .put(json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
            "metadata": {"name": "edge"},
            "spec": {"ranges": [{"subnet": "192.0.2.0/29", "gateway": "192.0.2.1"}]}}))
        .await;
    harvester
}

fn flags() -> [(&'static str, Value); 1] {
    let info = json!({"interfaces": [
        {"networkName": "default/vlan1", "ipPool": "edge", "nameservers": ["192.0.2.53"]},
        {"networkName": "default/vlan1"}]});
    [("harvester-network-info", json!(info.to_string()))]
}

fn driver(harvester: &Harvester, store: &Path, seed: u64) -> TestDriver {
    harvester.driver_as(store, USER, seed).configured(&flags())
}

async fn allocated(harvester: &Harvester) -> Value {
    harvester.get(PATH).await["status"]["allocated"].clone()
}

async fn network_data(harvester: &Harvester) -> Value {
    let vm = harvester.vm().await;
    let text = &vm["spec"]["template"]["spec"]["volumes"][0]["cloudInitNoCloud"]["networkData"];
    serde_saphyr::from_str(text.as_str().unwrap_or_else(|| panic!("{vm}"))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_machine_gets_an_address_of_its_pool_and_gives_it_back() {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    let driver = driver(&harvester, store.path(), 1);
    driver.pre_create_check().await.unwrap();
    assert!(allocated(&harvester).await.is_null(), "the check writes nothing");
    driver.create().await.unwrap();

    assert_eq!(allocated(&harvester).await, json!({"192.0.2.2": holder()}));
    let pool: IPPool = serde_json::from_value(harvester.get(PATH).await).unwrap();
    let address = IpAddr::from([192, 0, 2, 2]);
    let writer = ip_pools::managers::foreign(&pool, address);
    assert_eq!(writer.as_deref(), Some(WRITER), "the load balancer releases no record of another writer");

    let data = network_data(&harvester).await;
    let vm = harvester.vm().await;
    let nics = &vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    assert_eq!(
        data["config"][0]["subnets"],
        json!([{"type": "static", "address": "192.0.2.2/29", "gateway": "192.0.2.1", "dns_nameservers": ["192.0.2.53"]}])
    );
    assert_eq!(data["config"][1]["subnets"], json!([{"type": "dhcp"}]));
    for nic in 0..2 {
        let mac = &data["config"][nic]["mac_address"];
        assert!(
            mac.as_str().is_some_and(|mac| mac.starts_with("02:")) && *mac == nics[nic]["macAddress"],
            "{data}"
        );
    }
    assert_ne!(nics[0]["macAddress"], nics[1]["macAddress"]);

    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && allocated(&harvester).await.is_null());
    driver.remove().await.expect("gone is gone");
}

fn cut(nth: u64, when: When) -> Rule {
    let mut rule = Rule::new(Answer::Delay(Duration::from_secs(3600)));
    (rule.user, rule.resource, rule.verb) =
        (Some(USER.into()), Some("ippools".into()), Some("update".into()));
    (rule.nth, rule.when) = (Some(nth), when);
    rule
}

/// As if the process got SIGKILL at this request. The first PUT of a pool is the check's dry run.
#[rstest]
#[case::before_the_claim(cut(2, When::Before))]
#[case::after_the_claim(cut(2, When::After))]
#[case::before_the_vm(Rule { verb: Some("create".into()), resource: Some("virtualmachines".into()), ..cut(1, When::Before) })]
#[case::after_the_vm(Rule { verb: Some("create".into()), resource: Some("virtualmachines".into()), ..cut(1, When::After) })]
#[tokio::test(start_paused = true)]
async fn a_create_that_was_killed_leaves_no_second_address_and_no_record_after_the_removal(
    #[case] rule: Rule,
    #[values(true, false)] goes_on: bool,
) {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    harvester.server.faults().add(rule);
    let first = driver(&harvester, store.path(), 1);
    first.pre_create_check().await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(9), first.create()).await;
    assert!(ended.is_err(), "it was cut off");
    let stored = first.config().to_json();
    drop(first);
    harvester.server.faults().clear();

    let next = driver(&harvester, store.path(), 2);
    next.set_config_raw(&stored).unwrap();
    if goes_on {
        next.pre_create_check().await.unwrap();
        next.create().await.unwrap();
        assert_eq!(allocated(&harvester).await, json!({"192.0.2.2": holder()}));
        assert_eq!(network_data(&harvester).await["config"][0]["subnets"][0]["address"], "192.0.2.2/29");
    }
    next.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && allocated(&harvester).await.is_null());
}

#[rstest]
#[case::before(When::Before)]
#[case::after(When::After)]
#[tokio::test(start_paused = true)]
async fn a_removal_that_was_killed_at_the_release_is_ended_by_the_next(#[case] when: When) {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    let first = driver(&harvester, store.path(), 1);
    first.create().await.unwrap();
    // each rule counts from when it was added
    harvester.server.faults().add(cut(1, when));
    let ended = tokio::time::timeout(Duration::from_secs(60), first.remove()).await;
    assert!(ended.is_err() && harvester.vm().await.is_null(), "the address goes after the VM");
    harvester.server.faults().clear();
    let next = driver(&harvester, store.path(), 2);
    next.set_config_raw(&first.config().to_json()).unwrap();
    next.remove().await.unwrap();
    assert!(allocated(&harvester).await.is_null());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_come_up_gives_its_address_back() {
    let harvester = harvester().await;
    harvester.server.faults().add(refused("create", "virtualmachines", 422));
    let store = tempfile::tempdir().unwrap();
    let driver = driver(&harvester, store.path(), 1);
    driver.create().await.unwrap_err();
    assert!(allocated(&harvester).await.is_null());
}

#[tokio::test(start_paused = true)]
async fn of_two_machines_at_once_each_gets_an_address_of_its_own() {
    let harvester = harvester().await;
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, two) = (driver(&harvester, one.path(), 1), driver(&harvester, two.path(), 2));
    two.set_config_raw(br#"{"MachineName": "demo-pool1-x7k2m-other"}"#).unwrap();
    let (first, second) = tokio::join!(one.create(), two.create());
    first.unwrap();
    second.unwrap();
    let records = allocated(&harvester).await;
    let mut holders: Vec<&str> = records.as_object().unwrap().values().filter_map(Value::as_str).collect();
    holders.sort_unstable();
    assert_eq!(holders, [holder().as_str(), "shop/demo-pool1-x7k2m-other"]);
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_vm_that_has_the_name_now_stays() {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    let driver = driver(&harvester, store.path(), 1);
    driver.create().await.unwrap();
    harvester
        .patch(&vm_path(), &json!({"metadata": {"labels": {"harvesterhci.io/creator": "somebody"}}}))
        .await;
    let error = driver.remove().await.unwrap_err().to_string();
    assert!(error.contains("was not made by the node driver"), "{error}");
    assert_eq!(allocated(&harvester).await, json!({"192.0.2.2": holder()}));
}

#[tokio::test(start_paused = true)]
async fn an_address_that_a_load_balancer_has_under_the_machines_name_is_left_to_it() {
    let harvester = harvester().await;
    let record = json!({"status": {"total": 5, "available": 4, "lastAllocated": "", "allocated": {"192.0.2.4": holder()}}});
    harvester.patch(&format!("{PATH}?fieldManager=harvester-load-balancer"), &record).await;
    let store = tempfile::tempdir().unwrap();
    let driver = driver(&harvester, store.path(), 1);
    for error in [driver.pre_create_check().await.unwrap_err(), driver.create().await.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("gives 192.0.2.4 to") && text.contains("choose another one"), "{text}");
    }
    assert!(harvester.vm().await.is_null());
    driver.remove().await.unwrap();
    assert_eq!(allocated(&harvester).await, json!({"192.0.2.4": holder()}));
}

#[rstest]
#[case::may_not_read("get", 403, "read IPPool edge: the credential has no right to that (403)")]
#[case::may_not_write("update", 403, "the rights get and update on ippools.loadbalancer.harvesterhci.io")]
#[case::admission("update", 422, "write IPPool edge")]
#[tokio::test(start_paused = true)]
async fn a_pool_that_refuses_the_driver_is_named_before_anything_is_made(
    #[case] verb: &str,
    #[case] code: u16,
    #[case] part: &str,
) {
    let harvester = harvester().await;
    harvester.server.faults().add(refused(verb, "ippools", code));
    let store = tempfile::tempdir().unwrap();
    let text = driver(&harvester, store.path(), 1).pre_create_check().await.unwrap_err().to_string();
    assert!(text.contains(part) && text.lines().count() == 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_rights_get_and_update_are_enough() {
    let harvester = harvester().await;
    harvester.server.faults().add(refused("list", "ippools", 403));
    let store = tempfile::tempdir().unwrap();
    let driver = driver(&harvester, store.path(), 1);
    driver.pre_create_check().await.unwrap();
    driver.create().await.unwrap();
    assert_eq!(allocated(&harvester).await, json!({"192.0.2.2": holder()}));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_released_is_named_and_the_next_removal_releases_it() {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    let driver = driver(&harvester, store.path(), 1);
    driver.create().await.unwrap();
    harvester.server.faults().add(refused("update", "ippools", 403));
    let error = driver.remove().await.unwrap_err().to_string();
    assert!(
        harvester.vm().await.is_null() && error.contains("loadbalancer.harvesterhci.io/manuallyReleaseIP"),
        "{error}"
    );
    harvester.server.faults().clear();
    driver.remove().await.unwrap();
    assert!(allocated(&harvester).await.is_null());
}

/// Long user data takes the network data into a Secret.
#[rstest]
#[case::in_the_vm(None)]
#[case::in_a_secret(Some(long_user_data()))]
#[tokio::test(start_paused = true)]
async fn a_vm_of_an_earlier_attempt_whose_record_is_lost_gets_no_other_address(
    #[case] user_data: Option<Value>,
) {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    let user_data = user_data.map(|text| ("harvester-user-data", text));
    let changes: Vec<_> = flags().into_iter().chain(user_data).collect();
    let driver = |seed| harvester.driver_as(store.path(), USER, seed).configured(&changes);
    driver(1).create().await.unwrap();
    harvester.patch(PATH, &json!({"status": {"allocated": null, "lastAllocated": "192.0.2.2"}})).await;
    for seed in 2..5 {
        let error = driver(seed).create().await.unwrap_err().to_string();
        assert!(error.contains("IPPool edge has no record any more of the address"), "{error}");
        assert!(allocated(&harvester).await.is_null(), "the pool has the other address back");
    }
    // as one that could not give it back left it
    let other = json!({"status": {"allocated": {"192.0.2.5": holder()}}});
    harvester.patch(&format!("{PATH}?fieldManager={WRITER}"), &other).await;
    let error = driver(5).create().await.unwrap_err().to_string();
    assert!(error.contains("IPPool edge has no record any more of the address"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_record_of_a_vm_is_made_again_where_the_pool_gives_the_same_address() {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    driver(&harvester, store.path(), 1).create().await.unwrap();
    let lost = json!({"status": {"allocated": null, "lastAllocated": "", "allocatedHistory": null}});
    harvester.patch(PATH, &lost).await;
    driver(&harvester, store.path(), 2).create().await.unwrap();
    assert_eq!(allocated(&harvester).await, json!({"192.0.2.2": holder()}));
}

#[tokio::test(start_paused = true)]
async fn the_stored_configuration_names_the_pool_and_is_upstreams_where_there_is_none() {
    let harvester = harvester().await;
    let store = tempfile::tempdir().unwrap();
    let json: Value =
        serde_json::from_slice(&driver(&harvester, store.path(), 1).config().to_json()).unwrap();
    let nics = &json["NetworkInfo"]["interfaces"];
    assert_eq!((&nics[0]["ipPool"], &nics[0]["nameservers"]), (&json!("edge"), &json!(["192.0.2.53"])));
    assert_eq!(
        nics[1].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["macAddress", "model", "networkName", "type"],
        "without a pool it is upstream's JSON"
    );
}
