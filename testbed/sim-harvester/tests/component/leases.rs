//! Addresses that kube-vip leases of the simulated DHCP server.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Service};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use program::TaskGroup;
use serde_json::json;
use sim_harvester::{Cluster, Release};

use crate::{
    clusters::settle,
    fixtures::{Clusters, create, ingress},
};

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_over_renewals_and_over_a_restart() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": "0.0.0.0"})).await;
    settle().await;
    let service = clusters.service("web").await;
    assert_eq!(ingress(&service), ["127.79.0.100"]);
    assert_eq!(service.annotations()["kube-vip.io/requestedIP"], "127.79.0.100");
    let mac = service.annotations()["kube-vip.io/hwaddr"].clone();
    tokio::time::sleep(Duration::from_secs(6000)).await;
    assert_eq!(
        clusters.service("web").await.resource_version(),
        service.resource_version(),
        "ten leases long"
    );
    tasks.end().await;
    // another Service comes first, to a server that has forgotten everything
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    clusters
        .guest_service(
            "api",
            json!({"kube-vip.io/loadbalancerIPs": "0.0.0.0",
        "kube-vip.io/requestedIP": "127.79.0.110"}),
        )
        .await;
    let tasks = TaskGroup::new();
    let sim = clusters.start(Release::From12, &tasks);
    settle().await;
    let service = api.get("web").await.unwrap();
    assert_eq!(ingress(&service), ["127.79.0.100"]);
    assert_eq!(service.annotations()["kube-vip.io/hwaddr"], mac);
    assert_eq!(ingress(&api.get("api").await.unwrap()), ["127.79.0.110"], "a requested address is asked for");
    assert!(sim.carry("127.79.0.100".parse().unwrap(), 80).is_ok());
    tasks.end().await;
}

/// Nobody else gets its address before the lease ends.
#[tokio::test(start_paused = true)]
async fn a_kube_vip_that_starts_again_gives_no_lease_back() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From12, &tasks);
    let leased = json!({"kube-vip.io/loadbalancerIPs": "0.0.0.0"});
    clusters.guest_service("web", leased.clone()).await;
    settle().await;
    assert_eq!(ingress(&clusters.service("web").await), ["127.79.0.100"]);
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    let ignored = json!({"metadata": {"annotations": {"kube-vip.io/ignore": "true"}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(&ignored)).await.unwrap();
    settle().await;
    sim.restart_vip(Cluster::Guest);
    settle().await;
    assert_eq!(sim.announced().len(), 0);
    clusters.guest_service("api", leased.clone()).await;
    settle().await;
    assert_eq!(ingress(&clusters.service("api").await), ["127.79.0.101"]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    clusters.guest_service("docs", leased).await;
    settle().await;
    assert_eq!(ingress(&clusters.service("docs").await), ["127.79.0.100"]);
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_dhcp_server_obeys_the_annotation_of_a_setting_and_one_that_cannot_be_read_gets_an_event() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    let kind = GroupVersionKind::gvk("harvesterhci.io", "v1beta1", "Setting");
    let api: Api<DynamicObject> = Api::all_with(clusters.harvester(), &ApiResource::from_gvk(&kind));
    let pool = r#"{"pool": "127.79.0.200-127.79.0.210", "leaseSeconds": 60}"#;
    let annotations = |text: &str| json!({"metadata": {"annotations": {"sim.harvesterhci.io/dhcp": text}}});
    let mut setting = annotations(pool);
    setting["apiVersion"] = "harvesterhci.io/v1beta1".into();
    setting["kind"] = "Setting".into();
    setting["metadata"]["name"] = "sim-dhcp".into();
    create(api.clone(), setting).await;
    settle().await;
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": "0.0.0.0"})).await;
    settle().await;
    assert_eq!(ingress(&clusters.service("web").await), ["127.79.0.200"]);
    let wrong = Patch::Merge(annotations(r#"{"pool": "everything"}"#));
    api.patch("sim-dhcp", &PatchParams::default(), &wrong).await.unwrap();
    settle().await;
    let events: Api<Event> = Api::namespaced(clusters.harvester(), "default");
    let events = events.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].involved_object.name.as_deref(), Some("sim-dhcp"));
    assert!(events[0].message.as_ref().unwrap().contains("not a range"));
    assert_eq!(ingress(&clusters.service("web").await), ["127.79.0.200"]);
    tasks.end().await;
}
