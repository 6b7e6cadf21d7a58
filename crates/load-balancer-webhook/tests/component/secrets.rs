//! The secrets with the certificates: filled where they are there, made where the role may, else waited for.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use load_balancer_webhook::{Address, Metrics, prepare};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_apiserver::faults::{Answer, Rule};
use test_cluster::{Rights, Side, TestCluster, User, component_tests};

use super::fixtures::{NAME, WRITER, bundle, config, policy, unregister};

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

/// A certificate and its key, as another program writes them.
fn foreign() -> [ByteString; 2] {
    let foreign = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
    [foreign.cert.pem(), foreign.signing_key.serialize_pem()].map(|text| ByteString(text.into_bytes()))
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
        let [certificate, key] = foreign();
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

    #[simulated_only("the API server fails on purpose")]
    async fn a_registration_is_put_right_while_the_authority_cannot_be_put_back(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        start(&cluster, &tasks).await.unwrap();
        cluster.settle().await;
        let registered = bundle(&cluster, 8443).await;
        // the webhook stored its own at its start
        cluster.advance(Duration::from_mins(11)).await;
        let server = cluster.harvester.simulated().unwrap();
        // as of a Secret that somebody has made immutable
        let mut rule = Rule::new(Answer::Code(422));
        let webhook = User::Webhook.account(Side::Harvester, cluster.guest_cluster()).name.clone();
        (rule.user, rule.verb, rule.resource) =
            (Some(webhook), Some("update".to_owned()), Some("secrets".to_owned()));
        server.faults().add(rule);
        let ([ca, _], [certificate, key]) = (keys(), foreign());
        let theirs = json!({"data": {"tls.crt": certificate, "tls.key": key}});
        cluster.harvester.patch::<Secret>(&ca, theirs).await;
        cluster.settle().await;
        assert!(server.faults().hits() > 0, "nothing was put back");
        let configuration = cluster.harvester.get::<ValidatingWebhookConfiguration>(NAME).await.unwrap();
        let mut webhooks = configuration.webhooks.unwrap();
        webhooks.iter_mut().for_each(|webhook| webhook.client_config.ca_bundle = None);
        let emptied = json!({"webhooks": webhooks});
        cluster.harvester.patch::<ValidatingWebhookConfiguration>(NAME, emptied).await;
        cluster.settle().await;
        assert_eq!(bundle(&cluster, 8443).await, registered);
        // it waits for a person, and is tried ever less often
        let hits = server.faults().hits();
        cluster.advance(Duration::from_mins(10)).await;
        assert!(server.faults().hits() < hits + 10, "{} after {hits}", server.faults().hits());
        server.faults().clear();
        tasks.end().await;
        unregister(&cluster).await;
    }

    // a Pod that is made anew while an ExternalSecret holds the Secret
    #[simulated_only("nobody but the test writes into the Secret meanwhile")]
    async fn a_replica_that_starts_beside_another_programs_authority_trusts_what_the_others_serve(cluster: TestCluster) {
        let others = TaskGroup::new();
        start(&cluster, &others).await.unwrap();
        cluster.settle().await;
        others.end().await;
        let ([ca, tls], [certificate, key]) = (keys(), foreign());
        let served = cluster.harvester.get::<Secret>(&tls).await.unwrap().data.unwrap();
        let trusted = String::from_utf8(served["ca.crt"].0.clone()).unwrap();
        let theirs = json!({"data": {"tls.crt": certificate, "tls.key": key}});
        cluster.harvester.patch::<Secret>(&ca, theirs).await;
        let tasks = TaskGroup::new();
        start(&cluster, &tasks).await.unwrap();
        cluster.settle().await;
        let bundle = String::from_utf8(bundle(&cluster, 8443).await).unwrap();
        assert!(bundle.contains(trusted.trim()), "{bundle}");
        let foreign = String::from_utf8(certificate.0).unwrap();
        assert!(!bundle.contains(foreign.trim()), "{bundle}");
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
