//! Pools and LoadBalancer objects in tests, and the record that ties them.

use std::collections::BTreeMap;

use harvester_api::{IPPool, IPPoolStatus, LoadBalancer};
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

use crate::{Rights, TestCluster};

/// Creates a pool of namespace team-a in 192.0.2.0/24, from `.first` to `.last`.
pub async fn create_pool(cluster: &TestCluster, name: &str, first: u8, last: u8) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: {name}}},
           spec: {{ranges: [{{subnet: 192.0.2.0/24, rangeStart: 192.0.2.{first}, rangeEnd: 192.0.2.{last}}}],
                  selector: {{scope: [{{project: '*', namespace: team-a, guestCluster: '*'}}]}}}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

/// Creates the object that a guest cluster's cloud controller manager makes; `spec` begins with a comma or is empty.
pub async fn create_load_balancer(cluster: &TestCluster, name: &str, spec: &str) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
           metadata: {{name: {name}, namespace: team-a, labels: {{cloudprovider.harvesterhci.io/cluster: blue}}}},
           spec: {{workloadType: cluster{spec}}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

/// The address of a load balancer in team-a, or the empty text.
pub async fn address_of(cluster: &TestCluster, name: &str) -> String {
    let lb = cluster.harvester.get::<LoadBalancer>(&format!("team-a/{name}")).await;
    let lb = lb.unwrap_or_else(|| panic!("there is no load balancer {name}"));
    lb.status.unwrap_or_default().allocated_address.unwrap_or_default().ip
}

pub async fn record_of(cluster: &TestCluster, pool: &str) -> IPPoolStatus {
    let pool = cluster.harvester.get::<IPPool>(pool).await.expect("the pool is there");
    pool.status.unwrap_or_default()
}

/// Asserts the invariants of docs/contract/testing.md#5: both pool addresses of a load balancer are recorded for it, nothing
/// else is recorded, and the counts fit.
pub async fn assert_records_match(cluster: &TestCluster) {
    let mut recorded = BTreeMap::new();
    for pool in cluster.harvester.list::<IPPool>().await {
        let status = pool.status.unwrap_or_default();
        let held = i64::try_from(status.allocated.len()).expect("a number of addresses");
        assert_eq!(status.total - status.available, held, "counts of pool {:?}", pool.metadata.name);
        for (address, holder) in status.allocated {
            assert_eq!(recorded.insert(address.clone(), holder), None, "{address} is in two pools");
        }
    }
    let load_balancers = cluster.harvester.list::<LoadBalancer>().await;
    let shown: BTreeMap<_, _> = load_balancers
        .iter()
        .flat_map(|lb| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            let holder = format!("{}/{}", text(&lb.metadata.namespace), text(&lb.metadata.name));
            lb.pool_addresses()
                .map(move |(_, address)| (address.to_string(), holder.clone()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(shown, recorded, "left: load balancers, right: pools");
}

/// Deletes a load balancer while no controller runs: its address stays recorded.
pub async fn delete_unseen(cluster: &TestCluster, key: &str) {
    cluster.harvester.patch::<LoadBalancer>(key, json!({"metadata": {"finalizers": null}})).await;
    cluster.harvester.delete::<LoadBalancer>(key).await;
}

/// How many Events with this reason were written. The existing role of the load balancer grants none.
pub async fn events(cluster: &TestCluster, reason: &str) -> usize {
    let events = cluster.harvester.list::<Event>().await;
    events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count()
}

/// So many Events where the role grants them, else none.
pub fn granted(cluster: &TestCluster, count: usize) -> usize {
    if cluster.rights() == Rights::Ours { count } else { 0 }
}
