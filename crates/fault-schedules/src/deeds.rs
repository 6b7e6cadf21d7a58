//! What users do meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use harvester_api::IPPool;
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use test_cluster::TestCluster;
use tokio::time::Instant;

use crate::weather;

/// More Services than addresses, so that some wait for others to go.
const NAMES: usize = 12;
const POOL: &str = "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: lab}
spec:
  ranges: [{subnet: 192.0.2.0/24, rangeStart: 192.0.2.10, rangeEnd: 192.0.2.17}]
  selector: {scope: [{project: '*', namespace: '*', guestCluster: '*'}]}
";
/// Addresses of the pool.
pub(crate) const ADDRESSES: usize = 8;

/// Users with a plan.
#[derive(Debug)]
pub(crate) struct Deeds {
    cluster: Arc<TestCluster>,
    random: fastrand::Rng,
    there: BTreeSet<usize>,
}

impl Deeds {
    pub(crate) async fn begin(cluster: Arc<TestCluster>, random: fastrand::Rng) -> Self {
        cluster.guest.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").await;
        cluster.harvester.apply(POOL).await;
        Self { cluster, random, there: BTreeSet::new() }
    }

    /// Does this and that until `time` has passed.
    pub(crate) async fn go_on(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.one().await;
            let pause = Duration::from_millis(self.random.u64(..4_000));
            self.cluster.advance(pause).await;
        }
    }

    /// Deletes every Service.
    pub(crate) async fn undo(&mut self) {
        for index in std::mem::take(&mut self.there) {
            self.cluster.guest.delete::<Service>(&key(index)).await;
        }
    }

    async fn one(&mut self) {
        let index = self.random.usize(..NAMES);
        if !self.there.contains(&index) {
            // one that is still being deleted is made again later
            if self.cluster.guest.get::<Service>(&key(index)).await.is_none() {
                self.cluster.guest.apply(&service(index)).await;
                self.there.insert(index);
            }
            return;
        }
        match self.random.u8(..10) {
            0..5 => {
                self.there.remove(&index);
                self.cluster.guest.delete::<Service>(&key(index)).await;
            }
            5 => self.change(index, json!({"spec": {"type": "ClusterIP"}})).await,
            6 => self.change(index, json!({"spec": {"type": "LoadBalancer"}})).await,
            7 => {
                let ports = json!([{"name": "http", "port": 80}, {"name": "https", "port": 443}]);
                self.change(index, json!({"spec": {"ports": ports}})).await;
            }
            8 => {
                let note = json!({"spec": {"description": self.random.u16(..).to_string()}});
                self.cluster.harvester.patch::<IPPool>("lab", note).await;
            }
            _ => weather::gust(&self.cluster, &mut self.random),
        }
    }

    async fn change(&self, index: usize, patch: Value) {
        self.cluster.guest.patch::<Service>(&key(index), patch).await;
    }
}

fn key(index: usize) -> String {
    format!("shop/web-{index}")
}

fn service(index: usize) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: web-{index}, namespace: shop}},
           spec: {{type: LoadBalancer, selector: {{app: web}}, ports: [{{name: http, port: 80}}]}}}}"
    )
}
