//! What the servers make of our custom resources: the existing schemas of Harvester, by which existing clients live.
#![cfg(test)]

use harvester_api::{IPPool, LoadBalancer};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use test_cluster::{TestCluster, User, component_tests};

async fn stored(cluster: &TestCluster, kind: &str, key: &str) -> Value {
    let gvk = GroupVersionKind::gvk("loadbalancer.harvesterhci.io", "v1beta1", kind);
    let client = cluster.harvester.client(User::Driver);
    let resource = ApiResource::from_gvk(&gvk);
    let object = match key.split_once('/') {
        Some((namespace, name)) => {
            Api::<DynamicObject>::namespaced_with(client, namespace, &resource).get(name).await
        }
        None => Api::<DynamicObject>::all_with(client, &resource).get(key).await,
    };
    object.unwrap().data
}

component_tests! {
    async fn a_listener_without_protocol_is_tcp_and_unknown_fields_are_dropped(cluster: TestCluster) {
        cluster.harvester.apply("
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: web, namespace: team-a}
spec:
  unknown: field
  listeners: [{name: http, port: 80, backendPort: 30080, type: helper}]
").await;
        let listener = json!({"name": "http", "port": 80, "backendPort": 30080, "protocol": "TCP"});
        assert_eq!(stored(&cluster, "LoadBalancer", "team-a/web").await["spec"], json!({"listeners": [listener]}));
    }

    /// docs/contract/load-balancer.md#IP-16 is what follows from this; the contract needs it nevertheless.
    async fn status_travels_with_an_ordinary_put_and_a_put_without_it_erases_it(cluster: TestCluster) {
        cluster.harvester.apply("
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: lab}
spec: {ranges: [{subnet: 127.3.0.0/24, type: cidr}]}
status: {total: 254, available: 253, lastAllocated: 127.3.0.1, allocated: {127.3.0.1: team-a/web}}
").await;
        let pools: Api<IPPool> = Api::all(cluster.harvester.client(User::LoadBalancer));
        let mut pool = pools.get("lab").await.unwrap();
        assert_eq!(pool.status.as_ref().unwrap().allocated["127.3.0.1"], "team-a/web");
        pool.status = None;
        let pool = pools.replace("lab", &PostParams::default(), &pool).await.unwrap();
        assert_eq!(pool.status, None);
        assert_eq!(pool.metadata.generation, Some(2));
    }

    async fn the_verdicts_on_backends_are_kept(cluster: TestCluster) {
        let backend = json!({
            "name": "blue-1", "address": "198.18.0.1", "ready": false,
            "lastError": "connection refused", "since": "2026-01-05T09:00:00Z",
        });
        let object = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": "team-a", "name": "web"}, "spec": {}, "status": {"backends": [backend]},
        });
        let balancer: LoadBalancer = serde_json::from_value(object.clone()).unwrap();
        cluster.harvester.create(&balancer).await;
        assert_eq!(stored(&cluster, "LoadBalancer", "team-a/web").await["status"], object["status"]);
    }

    async fn both_versions_of_a_load_balancer_are_served(cluster: TestCluster) {
        cluster.harvester.apply("
apiVersion: loadbalancer.harvesterhci.io/v1alpha1
kind: LoadBalancer
metadata: {name: old, namespace: team-a}
spec:
  ipam: pool
  listeners: [{name: http, port: 80}]
  healthCheck: {port: 80, successThreshold: 1, failureThreshold: 1, PeriodSeconds: 1, timeoutSeconds: 1}
").await;
        // without the webhook's conversion only the version changes; what v1beta1 does not know is dropped
        let listener = json!({"name": "http", "port": 80, "protocol": "TCP"});
        let check = json!({"port": 80, "successThreshold": 1, "failureThreshold": 1, "timeoutSeconds": 1});
        let spec = json!({"ipam": "pool", "listeners": [listener], "healthCheck": check});
        assert_eq!(stored(&cluster, "LoadBalancer", "team-a/old").await["spec"], spec);
    }

    async fn changes_of_status_and_of_spec_both_make_a_new_generation(cluster: TestCluster) {
        let create = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": "team-a", "name": "web"}, "spec": {},
        });
        cluster.harvester.create::<LoadBalancer>(&serde_json::from_value(create).unwrap()).await;
        let patch = json!({"status": {"address": "127.3.0.1"}});
        let patched = cluster.harvester.patch::<LoadBalancer>("team-a/web", patch.clone()).await;
        assert_eq!(patched.metadata.generation, Some(2));
        let again = cluster.harvester.patch::<LoadBalancer>("team-a/web", patch).await;
        assert_eq!(again.metadata.resource_version, patched.metadata.resource_version);
    }
}
