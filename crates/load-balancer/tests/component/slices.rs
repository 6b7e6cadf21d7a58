//! EndpointSlices that somebody else labels or fills, and those that Kubernetes makes.

use harvester_api::{LoadBalancer, labels};
use k8s_openapi::api::{core::v1::ConfigMap, discovery::v1::EndpointSlice};
use kube::{ResourceExt as _, core::ObjectList};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::lab::Lab;

/// How often the cluster may come to rest before Kubernetes has made a slice.
const RESTS: usize = 80;

/// As kube-controller-manager makes it for the Service of the test, whose labels it copies.
const OF_KUBERNETES: &str = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
    metadata: {name: filled-pods, namespace: team-a, labels: {loadbalancer.harvesterhci.io/servicelb: 'true',
        kubernetes.io/service-name: filled, endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}},
    addressType: IPv4, endpoints: [], ports: []}";

/// docs/contract/load-balancer.md#6.2: the Go load balancer sets no label that says who writes the slice.
const OF_THE_GO_PROGRAM: &str = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
    metadata: {name: of-go, namespace: team-a, labels: {loadbalancer.harvesterhci.io/servicelb: 'true',
        kubernetes.io/service-name: of-go}},
    addressType: IPv4, endpoints: [], ports: []}";

test_cluster::component_tests! {
    async fn a_slice_that_kubernetes_makes_of_a_tenants_service_is_not_listed(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let harvester = &lab.cluster.harvester;
        let owner = "{apiVersion: v1, kind: ConfigMap, metadata: {name: owner, namespace: team-a}}";
        harvester.apply(owner).await;
        let uid = harvester.get::<ConfigMap>("team-a/owner").await.unwrap().metadata.uid.unwrap();
        harvester.apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: filled, namespace: team-a,
               labels: {{loadbalancer.harvesterhci.io/servicelb: 'true'}},
               ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]}},
               spec: {{selector: {{a: b}}, ports: [{{port: 80}}]}}}}"
        )).await;
        harvester.apply(OF_THE_GO_PROGRAM).await;
        if harvester.simulated().is_some() {
            harvester.apply(OF_KUBERNETES).await;
        }
        let is_of_filled = |slice: &EndpointSlice| {
            slice.labels().get(labels::SLICE_SERVICE_NAME).is_some_and(|service| service == "filled")
        };
        let mut made = None;
        for _ in 0..RESTS {
            lab.cluster.settle().await;
            made = harvester.list::<EndpointSlice>().await.into_iter().find(is_of_filled);
            if made.is_some() {
                break;
            }
        }
        let made = made.expect("Kubernetes makes a slice of a Service with a selector");
        assert_eq!(made.labels()[labels::SERVICE_LB], "true", "it copies the Service's labels");

        let is_question = |uri: &String| uri.contains("/endpointslices?") && uri.contains("servicelb");
        let mut questions = harvester.requests().into_iter().filter(|request| request.verb == "list");
        let question = questions.find(|request| is_question(&request.uri)).expect("it lists slices").uri;
        let question = http::Request::get(question).body(Vec::new()).unwrap();
        let listed: ObjectList<EndpointSlice> = harvester.client(User::Driver).request(question).await.unwrap();
        let names: Vec<_> = listed.iter().map(|slice| slice.name_any()).collect();
        assert_eq!(names, ["of-go", "web"]);
    }

    async fn a_slice_of_ours_that_is_given_the_label_of_kubernetes_gets_ours_back(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let label = json!({"metadata": {"labels": {labels::SLICE_MANAGED_BY: "endpointslice-controller.k8s.io"}}});
        lab.cluster.harvester.patch::<EndpointSlice>("team-a/web", label).await;
        lab.cluster.settle().await;
        let slice = lab.slice().await.unwrap();
        assert_eq!(slice.labels()[labels::SLICE_MANAGED_BY], labels::SLICE_MANAGED_BY_US);
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
    }

    async fn a_slice_that_somebody_fills_keeps_all_that_it_has_when_its_backends_change(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let filling = json!({"metadata": {"annotations": {"example.com/large": "x".repeat(100_000)}}});
        lab.cluster.harvester.patch::<EndpointSlice>("team-a/web", filling).await;
        lab.cluster.settle().await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        let slice = lab.slice().await.unwrap();
        assert_eq!(slice.annotations()["example.com/large"].len(), 100_000);
        assert_eq!(slice.ports.unwrap()[0].port, Some(8080));

        lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        lab.until_gone().await;
    }
}
