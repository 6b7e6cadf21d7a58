//! Objects between this program and the Go programs, and what users' scripts do to them.

use std::net::IpAddr;

use controller_kit::replace;
use harvester_api::{ConditionStatus, IPPool, LoadBalancer, annotations, finalizers, labels};
use k8s_openapi::{
    api::core::v1::Event, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};

use super::{
    fixtures::{
        address_of, controller, granted, in_step, load_balancer, pool, ready_of, record_of, status_of,
    },
    lab::Lab,
};

/// The fields that the Go programs know. They read an object into structs of these, and write it as a whole.
mod go {
    use serde::{Deserialize, Serialize};
    use serde_json::Value;

    macro_rules! fields {
        ($($name:ident { $($field:ident: $of:ty),* })*) => {
            $(#[derive(Serialize, Deserialize)]
            #[serde(rename_all = "camelCase")]
            pub(super) struct $name {
                $(#[serde(skip_serializing_if = "Option::is_none")]
                $field: Option<$of>,)*
            })*
        };
    }

    fields! {
        IPPool { api_version: Value, kind: Value, metadata: Value, spec: PoolSpec, status: PoolStatus }
        PoolSpec { description: Value, ranges: Vec<Range>, selector: Selector }
        Range { subnet: Value, range_start: Value, range_end: Value, gateway: Value }
        Selector { priority: Value, network: Value, scope: Value }
        PoolStatus { total: Value, available: Value, last_allocated: Value, allocated: Value, allocated_history: Value,
            conditions: Value }
        LoadBalancer { api_version: Value, kind: Value, metadata: Value, spec: Spec, status: Status }
        Spec { description: Value, workload_type: Value, ipam: Value, ip_pool: Value, listeners: Value,
            backend_server_selector: Value, health_check: HealthCheck }
        HealthCheck { port: Value, success_threshold: Value, failure_threshold: Value, period_seconds: Value,
            timeout_seconds: Value }
        Status { backend_servers: Value, allocated_address: Address, address: Value, conditions: Value }
        Address { ip_pool: Value, ip: Value, mask: Value, gateway: Value }
    }

    /// The object after the Go program has written it.
    pub(super) fn written_back<Go: Serialize + for<'de> Deserialize<'de>>(object: &impl Serialize) -> Value {
        let known: Go = serde_json::from_value(serde_json::to_value(object).unwrap()).unwrap();
        serde_json::to_value(known).unwrap()
    }
}

/// The Go program writes every pool and every load balancer.
async fn write_back(cluster: &TestCluster) {
    let client = cluster.harvester.client(User::LoadBalancer);
    for pool in cluster.harvester.list::<IPPool>().await {
        replace::<IPPool>(&client, &go::written_back::<go::IPPool>(&pool)).await.unwrap();
    }
    for lb in cluster.harvester.list::<LoadBalancer>().await {
        replace::<LoadBalancer>(&client, &go::written_back::<go::LoadBalancer>(&lb)).await.unwrap();
    }
}

/// The address that the load balancer in Go gives next: the first free one after the cursor, range by range in the order of
/// the specification and round, whatever its family.
async fn next_of_go(cluster: &TestCluster, pool: &str) -> IpAddr {
    let pool = cluster.harvester.get::<IPPool>(pool).await.expect("the pool is there");
    let ranges = ip_pools::definition(&pool).unwrap().ranges;
    let status = pool.status.unwrap_or_default();
    let is_free = |address: &IpAddr| !status.allocated.contains_key(&address.to_string());
    let next = ranges.turn(status.last_allocated.parse().ok()).find(is_free);
    next.expect("an address is free")
}

const TWO_FAMILIES: &str = "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
    metadata: {name: two, namespace: team-a, labels: {cloudprovider.harvesterhci.io/cluster: blue},
               annotations: {cloudprovider.harvesterhci.io/ip-families: 'IPv4,IPv6',
                             cloudprovider.harvesterhci.io/ip-family-policy: RequireDualStack}},
    spec: {workloadType: cluster}}";

const HTTP_CHECK: &str = "{port: 8080, path: /ready, scheme: HTTP, successThreshold: 1, failureThreshold: 2,
    periodSeconds: 1, timeoutSeconds: 1}";

test_cluster::component_tests! {
    #[simulated_only("the definition of a real server is that of all tests")]
    async fn an_event_tells_of_load_balancers_that_may_be_stored_as_v1alpha1(cluster: TestCluster) {
        let stored = json!({"status": {"storedVersions": ["v1alpha1", "v1beta1"]}});
        let definition = "loadbalancers.loadbalancer.harvesterhci.io";
        cluster.harvester.patch_status::<CustomResourceDefinition>(definition, stored).await;
        let _running = controller(&cluster).await;
        cluster.settle().await;
        let events = cluster.harvester.list::<Event>().await;
        let told = events.iter().filter(|event| event.reason.as_deref() == Some("FormerVersionStored"));
        let about = |event: &Event| {
            (event.metadata.namespace.clone().unwrap(), event.involved_object.name.clone().unwrap())
        };
        let expected = ("default".to_owned(), definition.to_owned());
        // the existing role may not write Events: the log of the webhook tells it there
        assert_eq!(told.map(about).collect::<Vec<_>>(), vec![expected; granted(&cluster, 1)]);
    }

    async fn an_object_that_the_go_program_wrote_back_is_served_and_has_lost_what_it_does_not_know(
        cluster: TestCluster
    ) {
        let mut lab = Lab::start(cluster).await;
        let spec = json!({"spec": {"quarantineSeconds": 600, "quota": [{"namespace": "team-a", "max": 5}], "ranges": [
            {"subnet": "203.0.113.0/25"}, {"subnet": "203.0.113.128/25", "drain": true},
            {"subnet": "fd00:6::/64", "rangeStart": "fd00:6::10", "rangeEnd": "fd00:6::20"}]}});
        lab.cluster.harvester.patch::<IPPool>("edge", spec).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.answer("192.168.7.11");
        lab.web(HTTP_CHECK).await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.announce().await;
        lab.until_ready_says("").await;
        lab.cluster.harvester.apply(TWO_FAMILIES).await;
        lab.cluster.settle().await;
        let before = (record_of(&lab.cluster, "edge").await.allocated, status_of(&lab.cluster, "two").await);
        assert_eq!(before.0.len(), 3, "{before:?}");

        // what the Go programs look for, docs/contract/load-balancer.md
        let edge = lab.cluster.harvester.get::<IPPool>("edge").await.unwrap();
        assert_eq!(edge.finalizers(), [finalizers::IP_POOL]);
        let text = serde_json::to_value(&edge.status).unwrap();
        assert!(["total", "available", "lastAllocated"].iter().all(|key| !text[key].is_null()), "{text}");
        let web = lab.load_balancer().await;
        assert_eq!(web.finalizers(), [finalizers::LOAD_BALANCER]);
        let status = web.status.clone().unwrap();
        let has = status.allocated_address.unwrap();
        assert_eq!((status.address.as_str(), has.ip_pool.as_str()), (has.ip.as_str(), "edge"));
        assert!(!has.mask.is_empty() && !has.gateway.is_empty(), "{has:?}");
        assert_eq!((status.conditions[0].status, status.backend_servers.len()), (ConditionStatus::True, 1));
        assert_eq!(lab.service().await.unwrap().labels()[labels::SERVICE_LB], "true");
        let slice = lab.slice().await.unwrap();
        assert_eq!(slice.labels()["kubernetes.io/service-name"], "web");

        lab.stop_controller().await;
        write_back(&lab.cluster).await;
        let edge = lab.cluster.harvester.get::<IPPool>("edge").await.unwrap().spec;
        assert!(edge.quota.is_empty() && edge.quarantine_seconds == 0);
        assert!(edge.ranges.iter().all(|range| !range.drain));
        let check = lab.load_balancer().await.spec.health_check.unwrap();
        assert_eq!((check.path.as_str(), check.scheme.as_str(), check.port), ("", "", Some(8080)));
        let two = status_of(&lab.cluster, "two").await;
        assert_eq!((two.allocated_address.unwrap().ipv6_ip.as_str(), two.addresses.len()), ("", 0));

        lab.start_controller();
        lab.cluster.settle().await;
        lab.until_ready_says("").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        assert_eq!(record_of(&lab.cluster, "edge").await.allocated, before.0, "everybody keeps the address");
        let two = status_of(&lab.cluster, "two").await;
        assert_eq!(two.allocated_address, before.1.allocated_address, "the second one is shown again");
        assert_eq!((&two.addresses, two.addresses.len()), (&before.1.addresses, 2));
        assert_eq!(ready_of(&lab.cluster, "two").await.status, ConditionStatus::True);
        in_step(&lab.cluster).await;
    }

    // docs/contract/addresses.md#5
    async fn an_object_of_the_go_cloud_controller_manager_gets_ipv4_of_a_pool_of_both_families(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        let ranges = json!({"spec": {"ranges": [
            {"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10", "rangeEnd": "192.0.2.20"},
            {"subnet": "fd00:6::/64", "rangeStart": "fd00:6::10", "rangeEnd": "fd00:6::20"}]}});
        cluster.harvester.patch::<IPPool>("edge", ranges).await;
        cluster.harvester.apply(TWO_FAMILIES).await;
        cluster.settle().await;
        load_balancer(&cluster, "of-go", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "of-go").await, "192.0.2.11");
        cluster.harvester.apply(&TWO_FAMILIES.replace("name: two", "name: more")).await;
        cluster.settle().await;
        let more = status_of(&cluster, "more").await.allocated_address.unwrap();
        assert_eq!((more.ip.as_str(), more.ipv6_ip.as_str()), ("192.0.2.12", "fd00:6::11"));
        running.stop().await;
        assert_eq!(next_of_go(&cluster, "edge").await.to_string(), "192.0.2.13");

        // each family goes on where it stood
        let _running = controller(&cluster).await;
        load_balancer(&cluster, "silent", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "silent").await, "192.0.2.13");
        cluster.harvester.apply(&TWO_FAMILIES.replace("name: two", "name: last")).await;
        cluster.settle().await;
        let last = status_of(&cluster, "last").await.allocated_address.unwrap();
        assert_eq!((last.ip.as_str(), last.ipv6_ip.as_str()), ("192.0.2.14", "fd00:6::12"));
        in_step(&cluster).await;
    }

    // docs/contract/load-balancer.md#9.5: the Go webhook loses the period of a health check, and keeps an annotation of ours that
    // a client of v1alpha1 sent back
    async fn an_object_that_the_go_webhook_converted_is_served_on_at_its_address(cluster: TestCluster) {
        let mut lab = Lab::serving(cluster).await;
        let before = lab.load_balancer().await.status.unwrap();
        lab.stop_controller().await;
        let kept = json!({"uid": "u-1", "generation": 1, "spec": {"ipPool": "other"}, "status": null}).to_string();
        let check = json!({"port": 8080, "successThreshold": 1, "failureThreshold": 2, "timeoutSeconds": 1});
        let converted = json!({"metadata": {"annotations": {annotations::V1BETA1: kept}}, "spec": {"healthCheck": check}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", converted).await;
        lab.answer("192.168.7.11");
        lab.start_controller();
        lab.until_dialled("192.168.7.11", 2).await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.until_ready_says("").await;
        let after = lab.load_balancer().await.status.unwrap();
        assert_eq!((after.address, after.allocated_address), (before.address, before.allocated_address));
        in_step(&lab.cluster).await;
    }

    // Harvester's article of 2023-08-21, keepip.sh: the name of a guest cluster changes, and with it those of its load
    // balancers; the script deletes each and then names the new one in the history of its pool
    async fn the_recipe_that_keeps_addresses_through_a_change_of_a_clusters_name_works(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        for rest in [0, 3600] {
            cluster.harvester.patch::<IPPool>("edge", json!({"spec": {"quarantineSeconds": rest}})).await;
            let names = ["web", "api"].map(|name| {
                [("kubernetes", "1a2b3c4d"), ("blue", "9f8e7d6c")]
                    .map(|(cluster, digest)| format!("{cluster}-default-{name}{rest}-{digest}"))
            });
            let mut addresses = Vec::new();
            for [former, _] in &names {
                load_balancer(&cluster, former, "").await;
                cluster.settle().await;
                addresses.push(address_of(&cluster, former).await);
            }
            for ([former, new], address) in names.iter().zip(&addresses) {
                cluster.harvester.delete::<LoadBalancer>(&format!("team-a/{former}")).await;
                cluster.settle().await;
                let history = record_of(&cluster, "edge").await.allocated_history;
                assert_eq!(history[address], format!("team-a/{former}"), "the script replaces an entry that is there");
                let renamed: Value = json!({"status": {"allocatedHistory": {address: format!("team-a/{new}")}}});
                cluster.harvester.patch::<IPPool>("edge", renamed).await;
            }
            cluster.settle().await;
            load_balancer(&cluster, &format!("stranger-{rest}"), "").await;
            cluster.settle().await;
            // in the other order
            for ([_, new], address) in names.iter().zip(&addresses).rev() {
                load_balancer(&cluster, new, "").await;
                cluster.settle().await;
                assert_eq!(address_of(&cluster, new).await, *address);
            }
            in_step(&cluster).await;
        }
        let edge = cluster.harvester.get::<IPPool>("edge").await.unwrap();
        assert_eq!(edge.annotations().get(annotations::QUARANTINE), None, "nothing rests any more");
    }
}
