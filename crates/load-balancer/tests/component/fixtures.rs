//! The parts that the tests share: a running controller, faults, and sentences about objects.

use std::{collections::BTreeMap, sync::Arc};

use futures::FutureExt;
use harvester_api::{Condition, IPPool, IPPoolStatus, LoadBalancer, LoadBalancerStatus, condition};
use health_check::{Dial, DialError};
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use load_balancer::{Config, ElectionTimes, Parts, run};
use program::{Clock, TaskGroup, health::Health};
use serde_json::json;
use test_cluster::{Request, Rights, TestCluster, User};
use tokio::task::JoinHandle;

fn nobody_answers() -> Dial {
    Arc::new(|_| async { Err(DialError::Refused) }.boxed())
}

/// A controller that runs until it is dropped or stopped.
pub(crate) struct Controller {
    /// What its `/healthz` and `/readyz` answer.
    pub(crate) health: Health,
    tasks: TaskGroup,
    run: JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Controller {
    /// Where nobody answers a health check.
    pub(crate) fn start(cluster: &TestCluster, identity: &str) -> Self {
        Self::dialling(cluster, identity, nobody_answers())
    }

    pub(crate) fn dialling(cluster: &TestCluster, identity: &str, dial: Dial) -> Self {
        Self::run(cluster, identity, dial, cluster.harvester.client(User::LoadBalancer))
    }

    /// With a client that is not quite the cluster's.
    pub(crate) fn asking(cluster: &TestCluster, client: Client) -> Self {
        Self::run(cluster, "one", nobody_answers(), client)
    }

    fn run(cluster: &TestCluster, identity: &str, dial: Dial, client: Client) -> Self {
        let (tasks, health) = (TaskGroup::new(), Health::default());
        let parts = Parts {
            client,
            clock: Clock::starting_at(cluster.start()),
            dial,
            seed: 1,
            identity: identity.into(),
            metrics: None,
            health: health.clone(),
        };
        let config = Config {
            workers: 32,
            pod_cidrs: vec!["10.52.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.53.0.0/16".parse().unwrap()],
            dummy_endpoint: [10, 52, 0, 255].into(),
        };
        let inner = tasks.clone();
        let run = tokio::spawn(async move {
            let ended = Box::pin(run(parts, ElectionTimes::default(), config, inner)).await;
            ended.expect("the controller keeps its Lease");
        });
        Self { health, tasks, run }
    }

    /// It renews its Lease no more and does not give it back, and what it has begun goes on.
    pub(crate) fn hang(&mut self) {
        self.run.abort();
    }

    /// As after SIGTERM: gives the Lease back.
    pub(crate) async fn stop(mut self) {
        self.tasks.stop.cancel();
        (&mut self.run).await.expect("the controller stops in order");
    }
}

/// The requests that the load balancer sent to do its work, without its questions about rights and CRDs, which it
/// repeats every ten minutes.
pub(crate) fn work(cluster: &TestCluster) -> Vec<Request> {
    let mut work = cluster.harvester.work_of(User::LoadBalancer);
    work.retain(|request| {
        !matches!(request.resource().as_str(), "selfsubjectaccessreviews" | "customresourcedefinitions")
    });
    work
}

/// A controller that has come to rest.
pub(crate) async fn controller(cluster: &TestCluster) -> Controller {
    let controller = Controller::start(cluster, "one");
    cluster.settle().await;
    controller
}

/// Rules for the simulated server, as a person writes them.
pub(crate) async fn faults(cluster: &TestCluster, rules: &str) {
    let yaml = format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: sim-faults, namespace: kube-system}}, data: {{rules: '{rules}'}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

/// How many Events with this reason were written. The existing role of the load balancer grants none.
pub(crate) async fn told(cluster: &TestCluster, reason: &str) -> usize {
    let events = cluster.harvester.list::<Event>().await;
    events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count()
}

/// So many Events where they may be written, else none.
pub(crate) fn granted(cluster: &TestCluster, count: usize) -> usize {
    if cluster.rights() == Rights::Ours { count } else { 0 }
}

/// A pool for everybody in 192.0.2.0/24, from `.first` to `.last`.
pub(crate) async fn pool(cluster: &TestCluster, name: &str, first: u8, last: u8) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: {name}}},
           spec: {{ranges: [{{subnet: 192.0.2.0/24, rangeStart: 192.0.2.{first}, rangeEnd: 192.0.2.{last}}}],
                  selector: {{scope: [{{project: '*', namespace: team-a, guestCluster: '*'}}]}}}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

/// Makes a LoadBalancer object as the cloud controller manager of a guest cluster does.
pub(crate) async fn load_balancer(cluster: &TestCluster, name: &str, spec: &str) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
           metadata: {{name: {name}, namespace: team-a, labels: {{cloudprovider.harvesterhci.io/cluster: blue}}}},
           spec: {{workloadType: cluster{spec}}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

pub(crate) async fn status_of(cluster: &TestCluster, name: &str) -> LoadBalancerStatus {
    let lb = cluster.harvester.get::<LoadBalancer>(&format!("team-a/{name}")).await;
    lb.unwrap_or_else(|| panic!("there is no load balancer {name}")).status.unwrap_or_default()
}

/// Its address, or the empty text.
pub(crate) async fn address_of(cluster: &TestCluster, name: &str) -> String {
    status_of(cluster, name).await.allocated_address.unwrap_or_default().ip
}

pub(crate) async fn ready_of(cluster: &TestCluster, name: &str) -> Condition {
    let status = status_of(cluster, name).await;
    condition::ready(&status.conditions)
        .cloned()
        .unwrap_or_else(|| panic!("{name} has no condition: {status:?}"))
}

pub(crate) async fn record_of(cluster: &TestCluster, pool: &str) -> IPPoolStatus {
    let pool = cluster.harvester.get::<IPPool>(pool).await.expect("the pool is there");
    pool.status.unwrap_or_default()
}

/// The invariants of docs/contract/testing.md#5: every pool address of a load balancer is recorded for it, nothing else is
/// recorded, and the numbers fit.
pub(crate) async fn in_step(cluster: &TestCluster) {
    let mut recorded = BTreeMap::new();
    for pool in cluster.harvester.list::<IPPool>().await {
        let status = pool.status.unwrap_or_default();
        let held = i64::try_from(status.allocated.len()).unwrap();
        assert_eq!(status.total - status.available, held, "numbers of pool {:?}", pool.metadata.name);
        for (address, holder) in status.allocated {
            assert_eq!(recorded.insert(address.clone(), holder), None, "{address} is in two pools");
        }
    }
    let balancers = cluster.harvester.list::<LoadBalancer>().await;
    let believed: BTreeMap<_, _> = balancers
        .iter()
        .filter_map(|lb| {
            let has = lb.status.as_ref()?.allocated_address.clone().filter(|has| !has.ip_pool.is_empty())?;
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            Some((has.ip, format!("{}/{}", text(&lb.metadata.namespace), text(&lb.metadata.name))))
        })
        .collect();
    assert_eq!(believed, recorded, "left: load balancers, right: pools");
}

/// Puts a status in place of what is there.
pub(crate) async fn overwrite_pool_status(cluster: &TestCluster, pool: &str, status: serde_json::Value) {
    let erase = json!({"status": null});
    cluster.harvester.patch::<IPPool>(pool, erase).await;
    if !status.is_null() {
        cluster.harvester.patch::<IPPool>(pool, json!({"status": status})).await;
    }
}

/// The object goes while nobody looks: its address stays in the record.
pub(crate) async fn vanish(cluster: &TestCluster, key: &str) {
    cluster.harvester.patch::<LoadBalancer>(key, json!({"metadata": {"finalizers": null}})).await;
    cluster.harvester.delete::<LoadBalancer>(key).await;
}
