//! A webhook, a controller and objects for component tests.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use harvester_api::{IPPool, LoadBalancer};
use health_check::DialError;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use load_balancer::ElectionTimes;
use load_balancer_webhook::{Address, Config, Metrics, Policy, prepare, run};
use program::{Clock, TaskGroup, health::Health};
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};
use tokio::task::JoinHandle;

/// The user of the controller in these tests.
pub(crate) const WRITER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";
/// Name of both webhook configurations, and of the webhook's Service.
pub(crate) const NAME: &str = "harvester-load-balancer-webhook";
/// Name of LoadBalancer's definition.
pub(crate) const DEFINITION: &str = "loadbalancers.loadbalancer.harvesterhci.io";

pub(crate) fn policy(status_writer: &str) -> Policy {
    Policy { status_writer: status_writer.to_owned(), ..Policy::default() }
}

pub(crate) fn config(address: Address, policy: Policy) -> Config {
    Config { namespace: "harvester-system".to_owned(), policy, address }
}

/// Starts a replica on a port of its own and returns the port.
pub(crate) fn start(cluster: &TestCluster, tasks: &TaskGroup) -> u16 {
    start_for(cluster, tasks, policy(WRITER))
}

pub(crate) fn start_for(cluster: &TestCluster, tasks: &TaskGroup, policy: Policy) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = config(Address::Url(format!("https://127.0.0.1:{port}")), policy);
    let (client, clock, inner) = (cluster.harvester.client(User::Webhook), Clock::system(), tasks.clone());
    tasks.spawn(async move { run(client, clock, config, listener, &inner).await.unwrap() });
    port
}

/// Waits until both configurations name the webhook on this port, and returns their CA bundle.
pub(crate) async fn bundle(cluster: &TestCluster, port: u16) -> Vec<u8> {
    for _ in 0..200 {
        let validating = cluster.harvester.get::<ValidatingWebhookConfiguration>(NAME).await;
        let mutating = cluster.harvester.get::<MutatingWebhookConfiguration>(NAME).await;
        if let (Some(validating), Some(mutating)) = (validating, mutating) {
            let (one, other) = (validating.webhooks.unwrap().remove(0), mutating.webhooks.unwrap().remove(0));
            let url = one.client_config.url.unwrap();
            if url.starts_with(&format!("https://127.0.0.1:{port}/")) {
                assert_eq!(one.client_config.ca_bundle, other.client_config.ca_bundle);
                return one.client_config.ca_bundle.unwrap().0;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the configurations do not name the webhook");
}

pub(crate) fn web(listeners: &Value) -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"workloadType": "vm", "ipam": "dhcp", "healthCheck": {"port": 8080}, "listeners": listeners,
            "backendServerSelector": {"harvesterhci.io/vmName": ["web-1", "web-2"]}},
    })
}

pub(crate) fn http() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}])
}

pub(crate) fn load_balancers(client: Client) -> Api<DynamicObject> {
    Api::namespaced_with(client, "team-a", &ApiResource::erase::<LoadBalancer>(&()))
}

pub(crate) fn pools(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<IPPool>(&()))
}

pub(crate) fn object(json: Value) -> DynamicObject {
    serde_json::from_value(json).unwrap()
}

pub(crate) fn global_pool(name: &str, subnet: &str) -> DynamicObject {
    let scope = json!([{"namespace": "*", "project": "*", "guestCluster": "*"}]);
    object(
        json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool", "metadata": {"name": name},
        "spec": {"ranges": [{"subnet": subnet}], "selector": {"scope": scope}}}),
    )
}

pub(crate) fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> (u16, String) {
    match answer.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other}"),
    }
}

/// Starts a webhook and waits until the API server calls it: without a socket where the server is simulated, on its
/// paused clock.
pub(crate) async fn reachable(cluster: &TestCluster, tasks: &TaskGroup, status_writer: &str) {
    reachable_with(cluster, tasks, policy(status_writer)).await;
}

pub(crate) async fn reachable_with(cluster: &TestCluster, tasks: &TaskGroup, policy: Policy) {
    match cluster.harvester.simulated() {
        Some(server) => {
            let config = config(Address::Service, policy);
            let clock = Clock::starting_at(cluster.start());
            let (router, _) =
                prepare(cluster.harvester.client(User::Webhook), clock, config, &Metrics::default(), tasks)
                    .await
                    .unwrap();
            server.webhook("harvester-system", NAME, router);
            cluster.settle().await;
        }
        None => {
            let port = start_for(cluster, tasks, policy);
            bundle(cluster, port).await;
        }
    }
    // the API server calls the webhook only once it has read the configuration
    let driver = load_balancers(cluster.harvester.client(User::Driver));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for _ in 0..100 {
        if driver.create(&dry_run, &object(web(&json!([])))).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the API server does not call the webhook");
}

/// The API server calls the webhook no more.
pub(crate) async fn unregister(cluster: &TestCluster) {
    cluster.harvester.delete::<ValidatingWebhookConfiguration>(NAME).await;
    cluster.harvester.delete::<MutatingWebhookConfiguration>(NAME).await;
    let none = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
    cluster.harvester.patch::<CustomResourceDefinition>(DEFINITION, none).await;
}

/// A controller that runs until it is dropped or stopped.
pub(crate) struct Controller {
    tasks: TaskGroup,
    run: JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Controller {
    /// Where no backend answers a health check.
    pub(crate) fn start(cluster: &TestCluster, identity: &str) -> Self {
        Self::configured(cluster, identity, false)
    }

    pub(crate) fn configured(cluster: &TestCluster, identity: &str, enforce_named_pool_scope: bool) -> Self {
        let tasks = TaskGroup::new();
        let parts = load_balancer::Parts {
            client: cluster.harvester.client(User::LoadBalancer),
            clock: Clock::starting_at(cluster.start()),
            dial: Arc::new(|_| async { Err(DialError::Refused) }.boxed()),
            seed: 1,
            identity: identity.into(),
            health: Health::default(),
            metrics: None,
        };
        let pool_choice =
            load_balancer::PoolChoice { enforce_named_pool_scope, ..load_balancer::PoolChoice::default() };
        let config = load_balancer::Config { pool_choice, ..load_balancer::Config::default() };
        let inner = tasks.clone();
        let run = tokio::spawn(async move {
            let ended = Box::pin(load_balancer::run(parts, ElectionTimes::default(), config, inner)).await;
            ended.expect("the controller keeps its Lease");
        });
        Self { tasks, run }
    }

    /// As after SIGTERM: the controller gives its Lease back.
    pub(crate) async fn stop(mut self) {
        self.tasks.stop.cancel();
        (&mut self.run).await.expect("the controller stops in order");
    }
}

/// A controller that has come to rest.
pub(crate) async fn controller(cluster: &TestCluster) -> Controller {
    let controller = Controller::start(cluster, "one");
    cluster.settle().await;
    controller
}
