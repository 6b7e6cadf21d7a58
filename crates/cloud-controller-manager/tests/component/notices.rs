//! What the program says about itself, on its own Pod.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cloud_config::{CloudConfig, Connection, Options, proxy::Environment};
use cloud_controller_manager::notices::Notices;
use credential_rotation::life::{self, Life};
use k8s_openapi::api::core::v1::Event;
use program::{Clock, TaskGroup, pod::OwnPod};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::harness::until;

const DAY: u64 = 24 * 3600;

/// The part of the program that follows a credential which ends after `days`.
fn start(cluster: &TestCluster, days: u64) -> TaskGroup {
    let (tasks, clock) = (TaskGroup::new(), Clock::starting_at(cluster.start()));
    let end = cluster.start().as_second() + i64::try_from(days * DAY).expect("not so many days");
    let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(json!({"exp": end}).to_string()));
    let kubeconfig = format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'https://harvester.example'}}}}],
           users: [{{name: a, user: {{token: {token}}}}}], contexts: [{{name: a, context: {{cluster: a, user: a}}}}]}}"
    );
    let config =
        CloudConfig::parse(&kubeconfig, "cloud-config", &Environment::default()).expect("it is good");
    let options = Options::named("part/1");
    let connection = Connection::open(&config, &options).expect("nothing is sent");
    let (notices, guest) = (Notices::default(), cluster.guest.client(User::CloudControllerManager));
    let pod = OwnPod { namespace: "kube-system".into(), name: "ccm-0".into(), uid: Some("a-1".to_owned()) };
    notices.write_to(&tasks, guest, clock, Some(pod));
    let followed = connection.followed();
    tasks.spawn_until_stop(async move {
        // the connection lives as long as the one who follows it
        let _connection = connection;
        life::follow(followed, options, clock, Life::new(clock), false, |event| notices.tell(event)).await;
    });
    tasks
}

/// Reasons of the Events on the Pod, and what they say of the time that is left.
async fn told(cluster: &TestCluster) -> Vec<String> {
    let all = cluster.guest.list::<Event>().await;
    let of_pod = |event: &&Event| {
        let about = &event.involved_object;
        about.kind.as_deref() == Some("Pod") && about.name.as_deref() == Some("ccm-0")
    };
    let mut all: Vec<_> = all.iter().filter(of_pod).collect();
    all.sort_by_key(|event| event.first_timestamp.clone());
    let text = |event: &Event| {
        let message = event.message.clone().unwrap_or_default();
        let left = message.split_once(", in ").and_then(|(_, rest)| rest.split_once(':'));
        format!("{} {}", event.reason.clone().unwrap_or_default(), left.map_or("", |(left, _)| left))
    };
    all.into_iter().map(text).collect()
}

test_cluster::component_tests! {
    /// With both sets of rights: each grants Events in the guest cluster.
    #[each_role]
    async fn a_credential_that_ends_soon_is_told_once_on_the_pod(cluster: TestCluster) {
        let _both = cluster.rights();
        let tasks = start(&cluster, 5);
        until(&cluster, "it is told", async || !told(&cluster).await.is_empty()).await;
        cluster.settle().await;
        let all = told(&cluster).await;
        assert_eq!(all.len(), 1, "the nearest stage alone: {all:?}");
        assert!(all[0].starts_with("CredentialExpires "), "{all:?}");
        tasks.end().await;
    }

    /// docs/contract/cloud-controller-manager.md#S4: nobody is surprised by the end of a credential.
    #[simulated_only("waits for weeks")]
    async fn the_end_of_a_credential_is_told_a_fortnight_a_week_and_a_day_before_and_when_it_comes(cluster: TestCluster) {
        let tasks = start(&cluster, 15);
        cluster.advance(Duration::from_secs(1)).await;
        assert_eq!(told(&cluster).await, [""; 0]);
        let stages = [
            (1, "CredentialExpires 14 days"),
            (7, "CredentialExpires 7 days"),
            (6, "CredentialExpires 1 day"),
            (1, "CredentialExpired "),
        ];
        for (told_so_far, (days, text)) in stages.into_iter().enumerate() {
            cluster.advance(Duration::from_secs(days * DAY)).await;
            let all = told(&cluster).await;
            assert_eq!((all.len(), all.last().map(String::as_str)), (told_so_far + 1, Some(text)), "{all:?}");
        }
        cluster.advance(Duration::from_secs(DAY)).await;
        assert_eq!(told(&cluster).await.len(), 4);
        tasks.end().await;
    }
}
