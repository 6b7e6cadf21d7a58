//! The parts that the tests share: a running controller, faults, and sentences about objects.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use futures::FutureExt;
use harvester_api::{Condition, IPPool, LoadBalancer, LoadBalancerStatus, condition};
use health_check::{Dial, DialError};
use kube::Client;
use load_balancer::{Config, ElectionTimes, Parts, PoolChoice, run};
use program::{Clock, TaskGroup, health::Health};
use serde_json::json;
pub(crate) use test_cluster::addresses::{
    address_of, assert_records_match as in_step, create_load_balancer as load_balancer, create_pool as pool,
    delete_unseen as vanish, events as told, granted, record_of,
};
use test_cluster::{Request, TestCluster, User};
use tokio::{
    net::TcpListener,
    task::{JoinHandle, spawn_blocking},
};

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
        let client = cluster.harvester.client(User::LoadBalancer);
        Self::run(cluster, identity, dial, client, PoolChoice::default())
    }

    /// With other rules of the choice of a pool.
    pub(crate) async fn choosing(cluster: &TestCluster, pool_choice: PoolChoice) -> Self {
        let client = cluster.harvester.client(User::LoadBalancer);
        let controller = Self::run(cluster, "one", nobody_answers(), client, pool_choice);
        cluster.settle().await;
        controller
    }

    /// With a client that is not quite the cluster's.
    pub(crate) fn asking(cluster: &TestCluster, client: Client) -> Self {
        Self::run(cluster, "one", nobody_answers(), client, PoolChoice::default())
    }

    /// With `--enforce-named-pool-scope`.
    pub(crate) fn enforcing_scope(cluster: &TestCluster) -> Self {
        let client = cluster.harvester.client(User::LoadBalancer);
        let pool_choice = PoolChoice { enforce_named_pool_scope: true, ..PoolChoice::default() };
        Self::run(cluster, "one", nobody_answers(), client, pool_choice)
    }

    /// As with `--leader-elect=false`.
    pub(crate) fn without_election(cluster: &TestCluster, identity: &str) -> Self {
        let client = cluster.harvester.client(User::LoadBalancer);
        Self::leading(cluster, identity, nobody_answers(), client, PoolChoice::default(), None, None)
    }

    /// With the address of its metrics; it has come to rest.
    pub(crate) async fn measured(cluster: &TestCluster, identity: &str) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let client = cluster.harvester.client(User::LoadBalancer);
        let (times, choice) = (Some(ElectionTimes::default()), PoolChoice::default());
        let controller =
            Self::leading(cluster, identity, nobody_answers(), client, choice, times, Some(listener));
        cluster.settle().await;
        (controller, address)
    }

    fn run(
        cluster: &TestCluster,
        identity: &str,
        dial: Dial,
        client: Client,
        pool_choice: PoolChoice,
    ) -> Self {
        Self::leading(cluster, identity, dial, client, pool_choice, Some(ElectionTimes::default()), None)
    }

    fn leading(
        cluster: &TestCluster,
        identity: &str,
        dial: Dial,
        client: Client,
        pool_choice: PoolChoice,
        times: Option<ElectionTimes>,
        metrics: Option<TcpListener>,
    ) -> Self {
        let (tasks, health) = (TaskGroup::new(), Health::default());
        let parts = Parts {
            client,
            clock: Clock::starting_at(cluster.start()),
            dial,
            seed: 1,
            identity: identity.into(),
            metrics,
            health: health.clone(),
        };
        let config = Config { pool_choice, ..Config::default() };
        let inner = tasks.clone();
        let run = tokio::spawn(async move {
            let ended = Box::pin(run(parts, times, config, inner)).await;
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

/// The lines of `/metrics` at this address. A paused clock stands still while a thread reads them.
pub(crate) async fn scrape(address: SocketAddr) -> Vec<String> {
    let read = move || -> io::Result<String> {
        let (mut stream, mut text) = (TcpStream::connect(address)?, String::new());
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = spawn_blocking(read).await.expect("it does not panic").expect("the metrics are served");
    text.lines().map(str::to_owned).collect()
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

pub(crate) async fn status_of(cluster: &TestCluster, name: &str) -> LoadBalancerStatus {
    let lb = cluster.harvester.get::<LoadBalancer>(&format!("team-a/{name}")).await;
    lb.unwrap_or_else(|| panic!("there is no load balancer {name}")).status.unwrap_or_default()
}

pub(crate) async fn ready_of(cluster: &TestCluster, name: &str) -> Condition {
    let status = status_of(cluster, name).await;
    condition::ready(&status.conditions)
        .cloned()
        .unwrap_or_else(|| panic!("{name} has no condition: {status:?}"))
}

/// Puts a status in place of what is there.
pub(crate) async fn overwrite_pool_status(cluster: &TestCluster, pool: &str, status: serde_json::Value) {
    let erase = json!({"status": null});
    cluster.harvester.patch::<IPPool>(pool, erase).await;
    if !status.is_null() {
        cluster.harvester.patch::<IPPool>(pool, json!({"status": status})).await;
    }
}
