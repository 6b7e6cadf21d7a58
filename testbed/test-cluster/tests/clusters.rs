//! What a component test may rely on, whatever the servers are.
#![cfg(test)]

use std::time::Duration;

use harvester_api::{IPPool, LoadBalancer};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use test_cluster::{Side, TestCluster, User, component_tests};

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  ports: [{port: 80, name: http}]
";
const SHOP: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";

component_tests! {
    async fn a_test_begins_with_nothing_of_another_test(cluster: TestCluster) {
        // on shared servers: whichever of the tests comes second would meet what the first has left
        assert_eq!(cluster.guest.get::<Namespace>("shop").await, None);
        cluster.guest.apply(SHOP).await;
        cluster.guest.apply(WEB).await;
        let finalizers = json!({"metadata": {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"]}});
        cluster.guest.patch::<Service>("shop/web", finalizers).await;
        assert_eq!(cluster.guest.requests(), []);
    }

    /// The same again, so that there is a second.
    async fn a_test_begins_with_nothing_of_yet_another_test(cluster: TestCluster) {
        assert_eq!(cluster.guest.get::<Namespace>("shop").await, None);
        cluster.guest.apply(SHOP).await;
        cluster.guest.apply(WEB).await;
        cluster.guest.delete::<Namespace>("shop").await;
    }

    async fn a_test_may_have_a_comma_behind_its_cluster(cluster: TestCluster,) {
        assert_eq!(cluster.guest.requests(), []);
    }

    async fn objects_are_created_read_changed_and_deleted(cluster: TestCluster) {
        let before = cluster.objects(Side::Guest).await;
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": "colours"}, "data": {"sky": "blue"},
        })).unwrap();
        let map = cluster.guest.create(&map).await;
        assert!(map.metadata.uid.is_some());
        cluster.guest.patch::<ConfigMap>("default/colours", json!({"data": {"sky": "grey"}})).await;
        let read = cluster.guest.get::<ConfigMap>("default/colours").await.unwrap();
        assert_eq!(read.data.unwrap()["sky"], "grey");
        assert!(cluster.guest.list::<ConfigMap>().await.iter().any(|map| map.metadata.uid == read.metadata.uid));
        assert_ne!(cluster.objects(Side::Guest).await, before);
        cluster.guest.delete::<ConfigMap>("default/colours").await;
        cluster.guest.delete::<ConfigMap>("default/colours").await;
        assert_eq!(cluster.objects(Side::Guest).await, before);
    }

    async fn what_is_applied_twice_is_merged(cluster: TestCluster) {
        cluster.guest.apply(SHOP).await;
        cluster.guest.apply(WEB).await;
        cluster.guest.apply("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, labels: {a: b}}}").await;
        let web = cluster.guest.get::<Service>("shop/web").await.unwrap();
        assert_eq!(web.metadata.labels.unwrap()["a"], "b");
        assert_eq!(web.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));
    }

    async fn requests_are_counted_by_user_and_the_tests_own_are_not(cluster: TestCluster) {
        cluster.harvester.apply("{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: lab}, spec: {ranges: []}}").await;
        let pools: Api<IPPool> = Api::all(cluster.harvester.client(User::LoadBalancer));
        let mut pool = pools.get("lab").await.unwrap();
        pools.list(&kube::api::ListParams::default()).await.unwrap();
        pool.spec.description = "of the laboratory".to_owned();
        pools.replace("lab", &PostParams::default(), &pool).await.unwrap();
        cluster.settle().await;
        let work = cluster.harvester.work_of(User::LoadBalancer);
        let verbs: Vec<_> = work.iter().map(|one| (one.verb.as_str(), one.resource(), one.code)).collect();
        assert_eq!(verbs, [("get", "ippools".to_owned(), 200), ("update", "ippools".to_owned(), 200)]);
        assert_eq!(cluster.harvester.work_of(User::Webhook), []);
        cluster.harvester.forget_requests();
        assert_eq!(cluster.harvester.requests(), []);
    }

    async fn a_client_has_the_rights_of_its_user_and_no_more(cluster: TestCluster) {
        let client = cluster.harvester.client(User::LoadBalancer);
        let balancers: Api<LoadBalancer> = Api::namespaced(client, &cluster.guest_cluster().vm_namespace);
        let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        let refused = balancers.patch("web", &PatchParams::default(), &patch).await.unwrap_err();
        assert!(matches!(&refused, kube::Error::Api(status) if status.is_forbidden()), "{refused}");
        assert!(balancers.get_opt("web").await.unwrap().is_none());
    }

    async fn what_a_deleted_object_owned_goes_too(cluster: TestCluster) {
        let vms = cluster.guest_cluster().vm_namespace.clone();
        cluster.harvester.apply(&format!("
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {{name: web, namespace: {vms}}}
spec: {{listeners: [{{port: 80, backendPort: 30080}}]}}
")).await;
        let key = format!("{vms}/web");
        let balancer = cluster.harvester.get::<LoadBalancer>(&key).await.unwrap();
        let service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": vms, "name": "web", "ownerReferences": [{
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
                "name": "web", "uid": balancer.metadata.uid,
            }]},
            "spec": {"ports": [{"port": 80}]},
        })).unwrap();
        cluster.harvester.create(&service).await;
        cluster.harvester.delete::<LoadBalancer>(&key).await;
        cluster.settle().await;
        assert_eq!(cluster.harvester.get::<Service>(&key).await, None);
    }

    #[simulated_only("time that is let pass")]
    async fn a_day_passes_at_once(cluster: TestCluster) {
        let before = tokio::time::Instant::now();
        cluster.advance(Duration::from_secs(24 * 3600)).await;
        assert_eq!(before.elapsed(), Duration::from_secs(24 * 3600));
    }
}
