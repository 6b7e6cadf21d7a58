//! The object of a Service while others write and delete objects too.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::harness::{
    Ccm, FINALIZER, allocate, announced_service, asked, create_service, events, finalizers, harvester_says,
    interposed, load_balancer, service, told, until,
};
use super::sharing::{allocated, ask, ask_again, object_of, says_about, shared};

test_cluster::component_tests! {
    /// The Go program repairs no drift.
    async fn an_object_deleted_in_harvester_comes_back(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let key = format!("team-a/{}", load_balancer(&cluster).await.unwrap().metadata.name.unwrap());
        cluster.harvester.delete::<LoadBalancer>(&key).await;
        cluster.settle().await;
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    /// The labels are how a change of the object finds its Service.
    async fn labels_that_somebody_takes_off_an_object_come_back(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let labels = load_balancer(&cluster).await.unwrap().metadata.labels;
        harvester_says(&cluster, json!({"metadata": {"labels": null}})).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().metadata.labels, labels);
        ccm.stop().await;
    }

    /// So its secondaries hear what becomes of the address.
    async fn labels_that_somebody_takes_off_the_object_of_a_primary_that_goes_come_back(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "api", 81, "web", "").await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        let labels = load_balancer(&cluster).await.unwrap().metadata.labels;
        harvester_says(&cluster, json!({"metadata": {"labels": null}})).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().metadata.labels, labels);
        let ready = json!({"type": "Ready", "status": "False", "message": "no address is free"});
        harvester_says(&cluster, json!({"status": {"allocatedAddress": null, "conditions": [ready]}})).await;
        assert_eq!(shared(&cluster, "shop/api").await.0, None);
        ccm.stop().await;
    }

    /// It is there until kube-vip shows the shared address.
    async fn labels_that_somebody_takes_off_the_object_of_a_service_that_is_to_share_come_back(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "docs", 82, "''", "").await;
        says_about(&cluster, "docs", allocated("127.9.0.2")).await;
        ask_again(&cluster, "shop/web", json!("docs")).await;
        let labels = object_of(&cluster, "web").await.expect("kube-vip shows its address still").metadata.labels;
        says_about(&cluster, "web", json!({"metadata": {"labels": null}})).await;
        assert_eq!(object_of(&cluster, "web").await.unwrap().metadata.labels, labels);
        ccm.stop().await;
    }

    // docs/contract/cloud-controller-manager.md#L10
    /// docs/contract/cloud-controller-manager.md#L8: conflicts with Harvester's own writes surface as failed syncs in
    /// the Go program.
    async fn a_conflict_is_repeated_on_the_newer_object_and_nobody_hears_of_it(cluster: TestCluster) {
        let driver = cluster.harvester.client(User::Driver);
        let first = Arc::new(AtomicBool::new(true));
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |method, path| {
            let (driver, first) = (driver.clone(), first.clone());
            async move {
                let put = method == http::Method::PUT && path.contains("/loadbalancers/");
                if put && first.swap(false, Ordering::SeqCst) {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let change = Patch::Merge(json!({"metadata": {"annotations": {"foreign": "newer"}}}));
                    let api = Api::<LoadBalancer>::namespaced(driver, "team-a");
                    api.patch(name, &PatchParams::default(), &change).await.expect("the driver may do everything");
                }
                None
            }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        announced_service(&cluster, "{}").await;
        let balancer = load_balancer(&cluster).await.unwrap();
        assert_eq!(balancer.status.unwrap().address, "127.9.0.1");
        assert_eq!(balancer.metadata.annotations.unwrap()["foreign"], "newer");
        assert_eq!(
            asked(&cluster.harvester),
            ["create loadbalancers 201", "update loadbalancers 409", "update loadbalancers 200"]
        );
        assert_eq!(told(&cluster, "SyncLoadBalancerFailed").await, 0);
        ccm.stop().await;
    }

    /// A webhook that undoes what we write answers as if it were done: two would write for ever, and tell of it each
    /// time.
    async fn a_change_that_admission_takes_back_is_a_failed_sync_and_is_made_when_it_may(cluster: TestCluster) {
        let (driver, undoes) = (cluster.harvester.client(User::Driver), Arc::new(AtomicBool::new(true)));
        let webhook = undoes.clone();
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |method, path| {
            let (driver, webhook) = (driver.clone(), webhook.clone());
            async move {
                let put = method == http::Method::PUT && path.contains("/loadbalancers/");
                if !put || !webhook.load(Ordering::SeqCst) {
                    return None;
                }
                let name = path.rsplit('/').next().unwrap_or_default();
                let stored = Api::<LoadBalancer>::namespaced(driver, "team-a").get(name).await;
                Some(json!(stored.expect("it is there to be changed")))
            }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        announced_service(&cluster, "{}").await;
        until(&cluster, "the Service is told", async || told(&cluster, "SyncLoadBalancerFailed").await == 1).await;
        let (_, message) = events(&cluster).await.into_iter().find(|(reason, _)| reason == "SyncLoadBalancerFailed").unwrap();
        assert!(message.ends_with("in Harvester: admission there took the change back"), "{message}");
        assert_eq!(told(&cluster, "EnsuredLoadBalancer").await, 1);
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201"]);
        undoes.store(false, Ordering::SeqCst);
        let published = async || load_balancer(&cluster).await.unwrap().status.unwrap().address == "127.9.0.1";
        until(&cluster, "the address is written", published).await;
        ccm.stop().await;
    }

    /// Somebody deletes the object and makes one under its name before our DELETE arrives.
    async fn an_object_made_again_under_the_name_is_not_deleted_for_the_one_before(cluster: TestCluster) {
        let (driver, first) = (cluster.harvester.client(User::Driver), Arc::new(AtomicBool::new(true)));
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |method, path| {
            let (driver, first) = (driver.clone(), first.clone());
            async move {
                let delete = method == http::Method::DELETE && path.contains("/loadbalancers/");
                if delete && first.swap(false, Ordering::SeqCst) {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let api = Api::<LoadBalancer>::namespaced(driver, "team-a");
                    let mut object = api.get(name).await.expect("it is there to be deleted");
                    api.delete(name, &DeleteParams::default()).await.expect("the driver may do everything");
                    (object.metadata.uid, object.metadata.resource_version) = (None, None);
                    api.create(&PostParams::default(), &object).await.expect("the name is free");
                }
                None
            }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        create_service(&cluster, "{}", "").await;
        cluster.harvester.forget_requests();
        cluster.guest.delete::<Service>("shop/web").await;
        until(&cluster, "the Service is gone", async || service(&cluster).await.is_none()).await;
        assert_eq!(asked(&cluster.harvester), ["delete loadbalancers 409", "delete loadbalancers 200"]);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#12.5; the Go program made the secondary.
    async fn a_primary_keeps_its_object_while_a_secondary_names_it(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        cluster.guest.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop, labels: \
             {cloudprovider.harvesterhci.io/primary-service: shop.web}, annotations: \
             {cloudprovider.harvesterhci.io/primary-service: shop/web, kube-vip.io/loadbalancerIPs: 127.9.0.1}}, \
             spec: {type: LoadBalancer, ports: [{port: 81}]}}",
        ).await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert!(load_balancer(&cluster).await.unwrap().metadata.deletion_timestamp.is_none());
        assert_eq!(finalizers(&service(&cluster).await.unwrap()), [FINALIZER]);
        let all = events(&cluster).await;
        let used = |message: &str| message.contains("failed to delete load balancer: ") && message.contains("shop/api");
        assert!(all.iter().any(|(reason, message)| reason == "SyncLoadBalancerFailed" && used(message)), "{all:?}");
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }
}
