//! The secrets with the certificates: filled where they are there, made where the role may, else waited for.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use load_balancer_webhook::{Address, Metrics, prepare};
use program::{Clock, TaskGroup};
use serde_json::json;
use test_cluster::{Rights, TestCluster, User, component_tests};

use super::fixtures::{NAME, WRITER, config, policy, unregister};

fn keys() -> [String; 2] {
    ["ca", "tls"].map(|one| format!("harvester-system/{NAME}-{one}"))
}

/// As the chart makes them.
pub(crate) async fn make_empty(cluster: &TestCluster) {
    for key in keys() {
        let name = key.split_once('/').unwrap().1;
        let empty = "{apiVersion: v1, kind: Secret, metadata: {namespace: harvester-system, name: ";
        cluster.harvester.apply(&format!("{empty}{name}}}}}")).await;
    }
}

/// Whether there is a certificate in each of them; `None` for one that is not there.
async fn filled(cluster: &TestCluster) -> [Option<bool>; 2] {
    let mut found = [None; 2];
    for (found, key) in found.iter_mut().zip(keys()) {
        let secret = cluster.harvester.get::<Secret>(&key).await;
        *found = secret.map(|secret| secret.data.is_some_and(|data| data.contains_key("tls.crt")));
    }
    found
}

/// Starts the webhook, which is there when the handle ends.
fn start(cluster: &TestCluster, tasks: &TaskGroup) -> tokio::task::JoinHandle<()> {
    let (client, inner) = (cluster.harvester.client(User::Webhook), tasks.clone());
    let clock = Clock::starting_at(cluster.start());
    let config = config(Address::Url("https://127.0.0.1:8443".to_owned()), policy(WRITER));
    tokio::spawn(async move {
        drop(prepare(client, clock, config, &Metrics::default(), &inner).await.unwrap());
    })
}

component_tests! {
    #[each_role]
    async fn the_secrets_of_the_chart_are_filled_and_none_is_made_beside_them(cluster: TestCluster) {
        make_empty(&cluster).await;
        let tasks = TaskGroup::new();
        start(&cluster, &tasks).await.unwrap();
        cluster.settle().await;
        assert_eq!(filled(&cluster).await, [Some(true); 2]);
        let writes: Vec<_> = cluster.harvester.work_of(User::Webhook);
        let made = writes.iter().filter(|one| one.verb == "create" && one.resource() == "secrets");
        assert_eq!(made.count(), 0, "{writes:#?}");
        tasks.end().await;
        unregister(&cluster).await;
    }

    // an ExternalSecret, or a GitOps agent that heals what drifts
    #[simulated_only("what came back is left for ten minutes")]
    async fn what_another_program_puts_into_a_secret_again_is_replaced_once_and_then_rarely(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        start(&cluster, &tasks).await.unwrap();
        // the webhook stored its own at its start
        cluster.advance(Duration::from_mins(11)).await;
        let foreign = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
        let texts = [foreign.cert.pem(), foreign.signing_key.serialize_pem()];
        let [certificate, key] = texts.map(|text| ByteString(text.into_bytes()));
        let theirs = json!({"data": {"tls.crt": certificate, "tls.key": key}});
        let written = || {
            let requests = cluster.harvester.work_of(User::Webhook).into_iter();
            let writes = requests.filter(|request| request.is_write());
            writes.map(|request| request.resource()).collect::<Vec<_>>()
        };
        for key in keys() {
            let is_there = async || {
                let secret = cluster.harvester.get::<Secret>(&key).await.unwrap();
                secret.data.unwrap()["tls.crt"] == certificate
            };
            cluster.harvester.forget_requests();
            for is_left in [false, true] {
                cluster.harvester.patch::<Secret>(&key, theirs.clone()).await;
                cluster.settle().await;
                // neither a new authority nor a registration
                assert_eq!((is_there().await, written()), (is_left, vec!["secrets".to_owned()]), "{key}");
            }
            cluster.advance(Duration::from_mins(10)).await;
            cluster.settle().await;
            assert_eq!((is_there().await, written()), (false, vec!["secrets".to_owned(); 2]), "{key}");
        }
        tasks.end().await;
        unregister(&cluster).await;
    }

    #[each_role]
    async fn missing_secrets_are_made_where_the_role_may_and_else_waited_for(cluster: TestCluster) {
        for key in keys() {
            cluster.harvester.delete::<Secret>(&key).await;
        }
        let tasks = TaskGroup::new();
        let started = start(&cluster, &tasks);
        cluster.settle().await;
        if cluster.rights() == Rights::Ours {
            assert_eq!(filled(&cluster).await, [None; 2]);
            assert!(!started.is_finished(), "it gave up");
            make_empty(&cluster).await;
        }
        started.await.unwrap();
        cluster.settle().await;
        assert_eq!(filled(&cluster).await, [Some(true); 2]);
        tasks.end().await;
        unregister(&cluster).await;
    }
}
