//! Services of IPv6 and of both families. The tests play the load balancer and kube-vip.

use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;
use test_cluster::TestCluster;

use super::{
    harness::{
        Ccm, LOADBALANCER_IPS, allocate, annotation, create_service, events, harvester_says, load_balancer,
        service, until,
    },
    sharing::{ask, is, shared},
};

const FAMILIES: &str = "cloudprovider.harvesterhci.io/ip-families";
const POLICY: &str = "cloudprovider.harvesterhci.io/ip-family-policy";

/// Two addresses out of pools.
async fn allocate_both(cluster: &TestCluster, ip: &str, ipv6: &str) {
    let both = json!({"ipPool": "lab", "ip": ip, "ipv6Pool": "six", "ipv6IP": ipv6});
    harvester_says(cluster, json!({"status": {"allocatedAddress": both}})).await;
}

async fn announce_all(cluster: &TestCluster, addresses: &[&str]) {
    let host = json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "worker-1"}}});
    cluster.guest.patch::<Service>("shop/web", host).await;
    let ingress: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
    cluster.guest.patch_status::<Service>("shop/web", status).await;
    cluster.settle().await;
}

async fn requested(cluster: &TestCluster) -> (Option<String>, Option<String>) {
    let object = load_balancer(cluster).await.expect("there is a LoadBalancer");
    (object.annotations().get(FAMILIES).cloned(), object.annotations().get(POLICY).cloned())
}

async fn handed_over(cluster: &TestCluster) -> Option<String> {
    annotation(&service(cluster).await.expect("there is a Service"), LOADBALANCER_IPS).map(str::to_owned)
}

test_cluster::component_tests! {
    async fn a_service_of_both_families_is_handed_both_addresses_in_the_order_of_its_families(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6, IPv4]").await;
        let expected = (Some("IPv6,IPv4".to_owned()), Some("PreferDualStack".to_owned()));
        assert_eq!(requested(&cluster).await, expected);
        allocate(&cluster, "10.0.0.7").await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.7"), "one is better than none");
        allocate_both(&cluster, "10.0.0.7", "fd00::7").await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("fd00::7,10.0.0.7"));
        announce_all(&cluster, &["fd00::7", "10.0.0.7"]).await;
        let address = load_balancer(&cluster).await.and_then(|object| object.status).map(|status| status.address);
        assert_eq!(address.as_deref(), Some("10.0.0.7"), "the load balancer knows by it what the guest announces");
        ccm.stop().await;
    }

    async fn a_service_that_requires_both_families_has_none_until_both_are_there(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "ipFamilyPolicy: RequireDualStack").await;
        let expected = (Some("IPv4,IPv6".to_owned()), Some("RequireDualStack".to_owned()));
        assert_eq!(requested(&cluster).await, expected);
        let why = "two addresses are required: no IPv6 address: no matched IPPool";
        let ready = json!({"type": "Ready", "status": "False", "reason": "NoMatchingPool", "message": why});
        harvester_says(&cluster, json!({"status": {"conditions": [ready]}})).await;
        until(&cluster, "the Service is told", async || {
            events(&cluster).await.iter().any(|(_, message)| message.contains(why))
        })
        .await;
        assert_eq!(handed_over(&cluster).await, None);
        // one of two from a load balancer that knows no second
        allocate(&cluster, "10.0.0.7").await;
        assert_eq!(handed_over(&cluster).await, None);
        harvester_says(&cluster, json!({"status": {"conditions": []}})).await;
        allocate_both(&cluster, "10.0.0.7", "fd00::7").await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.7,fd00::7"));
        ccm.stop().await;
    }

    async fn a_service_of_ipv6_alone_is_handed_no_ipv4_address(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "ipFamilies: [IPv6]").await;
        assert_eq!(requested(&cluster).await, (Some("IPv6".to_owned()), Some("SingleStack".to_owned())));
        allocate(&cluster, "10.0.0.7").await;
        assert_eq!(handed_over(&cluster).await, None);
        allocate(&cluster, "fd00::7").await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("fd00::7"));
        ccm.stop().await;
    }

    async fn a_service_of_one_family_keeps_what_it_shares_while_the_object_of_its_primary_is_made_anew(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv4, IPv6]").await;
        allocate_both(&cluster, "10.0.0.7", "fd00::7").await;
        announce_all(&cluster, &["10.0.0.7", "fd00::7"]).await;
        ask(&cluster, "api", 81, "web", "").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("10.0.0.7", "shop.web"));
        let object = load_balancer(&cluster).await.expect("there is a LoadBalancer").name_any();
        let key = format!("{}/{object}", cluster.guest_cluster().vm_namespace);
        cluster.harvester.delete::<LoadBalancer>(&key).await;
        cluster.settle().await;
        assert_eq!(shared(&cluster, "shop/api").await, is("10.0.0.7", "shop.web"));
        ccm.stop().await;
    }
}
