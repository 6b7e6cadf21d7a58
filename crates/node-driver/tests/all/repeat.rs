//! Attempts that are cut off, and the next one: one VM, nothing left over.

use std::time::Duration;

use kube::{Api, ResourceExt as _, api::ListParams};
use node_driver::config::Config;
use rstest::rstest;
use serde_json::json;
use sim_apiserver::faults::{Answer, Rule, When};

use crate::support::{Harvester, MACHINE, NAMESPACE, USER, long_user_data, options, read};

/// What exists of machines: names of VMs and of Secrets.
async fn left(harvester: &Harvester) -> (Vec<String>, Vec<String>) {
    let vms: Api<harvester_api::VirtualMachine> = Api::namespaced(harvester.admin(), NAMESPACE);
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(harvester.admin(), NAMESPACE);
    let names = |list: Vec<String>| list;
    let vms = vms.list(&ListParams::default()).await.unwrap().items;
    let secrets = secrets.list(&ListParams::default()).await.unwrap().items;
    (
        names(vms.iter().map(kube::ResourceExt::name_any).collect()),
        names(secrets.iter().map(|secret| secret.name_any()).collect()),
    )
}

fn one_machine() -> (Vec<String>, Vec<String>) {
    (vec![MACHINE.into()], vec![format!("{MACHINE}-cloudinit")])
}

fn cut(nth: u64, when: When) -> Rule {
    let mut rule = Rule::new(Answer::Delay(Duration::from_secs(3600)));
    (rule.user, rule.nth, rule.when) = (Some(USER.into()), Some(nth), when);
    rule
}

/// As if the process got SIGKILL at its nth request, before or after the server has carried it out.
#[rstest]
#[tokio::test(start_paused = true)]
async fn whatever_request_is_the_last_the_next_attempt_goes_on_from_there(
    #[values(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)] nth: u64,
    #[values(When::Before, When::After)] when: When,
) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let given = read(&options(&[("harvester-user-data", long_user_data())]));
    harvester.server.faults().add(cut(nth, when));
    let first = harvester.driver_as(store.path(), USER, 1);
    first.set_config_from_flags(&given).unwrap();
    let whole = async {
        first.pre_create_check().await?;
        first.create().await
    };
    // before a watch without an answer is no obstacle any more
    let ended = tokio::time::timeout(Duration::from_secs(9), whole).await;
    assert!(ended.is_err() || nth > 12, "request {nth} was answered, of 12");
    drop(first);
    harvester.server.faults().clear();

    let next = harvester.driver_as(store.path(), USER, 2);
    next.set_config_from_flags(&given).unwrap();
    next.pre_create_check().await.unwrap();
    next.create().await.unwrap();
    assert_eq!(left(&harvester).await, one_machine());
    assert_eq!(next.config().ip_address, next.ip().await.unwrap());
    next.remove().await.unwrap();
    assert_eq!(left(&harvester).await, (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn of_two_at_once_the_loser_leaves_the_winners_machine_alone() {
    let harvester = Harvester::start().await.with_machines().await;
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let given = read(&options(&[("harvester-user-data", long_user_data())]));
    let one = harvester.driver_as(one.path(), USER, 1);
    let two = harvester.driver_with_key(two.path(), USER, 2, crate::support::other_key);
    for driver in [&one, &two] {
        driver.set_config_from_flags(&given).unwrap();
        driver.pre_create_check().await.unwrap();
    }
    let (winner, lost) = match tokio::join!(one.create(), two.create()) {
        (Ok(()), Err(lost)) => (one, lost),
        (Err(lost), Ok(())) => (two, lost),
        both => panic!("one wins: {both:?}"),
    };
    let text = lost.to_string();
    assert!(
        text.contains(&format!("VM {NAMESPACE}/{MACHINE} exists")) && text.contains("choose another name"),
        "{text}"
    );
    assert_eq!(left(&harvester).await, one_machine());
    assert_eq!(winner.ip().await.unwrap(), winner.config().ip_address);
}

#[tokio::test(start_paused = true)]
async fn two_at_once_from_one_store_end_with_one_machine_for_both() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let given = read(&options(&[("harvester-user-data", long_user_data())]));
    let one = harvester.driver_as(store.path(), USER, 1);
    let two = harvester.driver_with_key(store.path(), USER, 2, crate::support::other_key);
    for driver in [&one, &two] {
        driver.set_config_from_flags(&given).unwrap();
        driver.pre_create_check().await.unwrap();
    }
    let (first, second) = tokio::join!(one.create(), two.create());
    first.unwrap();
    second.unwrap();
    assert_eq!(left(&harvester).await, one_machine());
    assert_eq!(one.config().ssh_public_key, two.config().ssh_public_key);
}

// docs/contract/node-driver.md#B5: upstream refuses its own VM of an earlier attempt for ever
#[tokio::test(start_paused = true)]
async fn other_inputs_are_another_machine() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let first = harvester.driver(store.path()).configured(&[]);
    first.create().await.unwrap();

    let more = harvester.driver(store.path()).configured(&[("harvester-cpu-count", json!(8))]);
    for error in [more.pre_create_check().await.unwrap_err(), more.create().await.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("delete it or choose another name"), "{text}");
    }
    let changes =
        [("harvester-kubeconfig-content", json!("a: renewed")), ("harvester-create-timeout", json!("90"))];
    let renewed = harvester.driver(store.path()).configured(&changes);
    renewed.pre_create_check().await.unwrap();
    assert_ne!(renewed.config(), Config::default());
}

/// The answer to a POST is lost, or the server fails once: what was made is found again.
#[rstest]
#[case::vm_answer_lost("virtualmachines", Answer::Drop, When::After)]
#[case::vm_request_lost("virtualmachines", Answer::Drop, When::Before)]
#[case::vm_500("virtualmachines", Answer::Code(500), When::Before)]
#[case::vm_500_after("virtualmachines", Answer::Code(500), When::After)]
#[case::vm_429("virtualmachines", Answer::Code(429), When::Before)]
#[case::vm_timeout("virtualmachines", Answer::Delay(Duration::from_secs(3600)), When::Before)]
#[case::vm_timeout_after("virtualmachines", Answer::Delay(Duration::from_secs(3600)), When::After)]
#[case::secret_answer_lost("secrets", Answer::Drop, When::After)]
#[case::secret_timeout_after("secrets", Answer::Delay(Duration::from_secs(3600)), When::After)]
#[case::secret_503("secrets", Answer::Code(503), When::Before)]
#[tokio::test(start_paused = true)]
async fn a_passing_failure_changes_nothing(
    #[case] resource: &str,
    #[case] answer: Answer,
    #[case] when: When,
) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver =
        harvester.impatient_driver(store.path()).configured(&[("harvester-user-data", long_user_data())]);
    driver.pre_create_check().await.unwrap();
    let mut rule = Rule::new(answer);
    (rule.verb, rule.resource, rule.when, rule.nth) =
        (Some("create".into()), Some(resource.into()), when, Some(1));
    harvester.server.faults().add(rule);
    driver.create().await.unwrap();
    assert_eq!(harvester.server.faults().hits(), 1);
    assert_eq!(left(&harvester).await, one_machine());
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_an_earlier_machine_gives_way_and_a_users_does_not() {
    for (owned, expected) in [(true, true), (false, false)] {
        let harvester = Harvester::start().await.with_machines().await;
        let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": MACHINE,
            "uid": "00000000-0000-0000-0000-000000000000"}]);
        let labels = json!({"harvesterhci.io/creator": "docker-machine-driver-harvester"});
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": format!("{MACHINE}-cloudinit"), "namespace": NAMESPACE}});
        if owned {
            secret["metadata"]["labels"] = labels;
            secret["metadata"]["ownerReferences"] = owner;
        }
        harvester.put(secret).await;
        let store = tempfile::tempdir().unwrap();
        let driver = harvester.driver(store.path()).configured(&[("harvester-user-data", long_user_data())]);
        let made = driver.create().await;
        assert_eq!(made.is_ok(), expected, "{made:?}");
        if let Err(error) = made {
            assert!(error.to_string().contains("delete it or choose another name"), "{error}");
            assert_eq!(left(&harvester).await, (vec![], vec![format!("{MACHINE}-cloudinit")]));
        }
    }
}
