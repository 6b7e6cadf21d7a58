//! An address for each load load_balancer, and what it says while there is none.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use harvester_api::{ConditionStatus, IPPool, LoadBalancer, condition, finalizers};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use test_cluster::{Side, TestCluster};

use super::fixtures::{
    address_of, controller, in_step, load_balancer, pool, ready_of, record_of, status_of, work,
};
use super::vms::RESTS;

test_cluster::component_tests! {
    // docs/contract/load-balancer.md#LB-2
    async fn a_load_balancer_has_an_address_while_it_lives_and_leaves_nothing(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        let before = cluster.objects(Side::Harvester).await;

        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let status = status_of(&cluster, "web").await;
        assert_eq!(
            serde_json::to_value(status.allocated_address).unwrap(),
            json!({"ipPool": "edge", "ip": "192.0.2.10", "mask": "255.255.255.0", "gateway": "192.0.2.1"})
        );
        assert_eq!(condition::ready(&status.conditions).map(|ready| (ready.status, ready.message.as_str())),
            Some((ConditionStatus::True, "")));
        assert_eq!(status.address, "", "that one is the cloud controller manager's");
        let lb = cluster.harvester.get::<LoadBalancer>("team-a/web").await.unwrap();
        assert_eq!(lb.metadata.finalizers, Some(vec![finalizers::LOAD_BALANCER.to_owned()]));
        in_step(&cluster).await;

        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert_eq!(cluster.objects(Side::Harvester).await, before);
        let record = record_of(&cluster, "edge").await;
        assert_eq!((record.total, record.available, record.last_allocated.as_str()), (11, 11, "192.0.2.10"));
        assert_eq!(record.allocated_history["192.0.2.10"], "team-a/web");
    }

    async fn a_hundred_at_once_cost_no_more_than_three_writes_each(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 200).await;
        cluster.settle().await;
        cluster.harvester.forget_requests();
        let names: Vec<_> = (0..100).map(|n| format!("web-{n}")).collect();
        futures::future::join_all(names.iter().map(|name| load_balancer(&cluster, name, ""))).await;
        cluster.settle().await;
        in_step(&cluster).await;
        let mut addresses = BTreeSet::new();
        for name in &names {
            addresses.insert(address_of(&cluster, name).await);
        }
        assert_eq!((addresses.len(), addresses.contains("")), (100, false));
        let reads = work(&cluster).into_iter().filter(|request| request.verb == "get").collect::<Vec<_>>();
        let of_services = reads.iter().filter(|request| request.resource() == "services").count();
        assert!(of_services <= 2, "{of_services} reads of Services for first addresses: {reads:?}");

        let keys: Vec<_> = names.iter().map(|name| format!("team-a/{name}")).collect();
        futures::future::join_all(keys.iter().map(|key| cluster.harvester.delete::<LoadBalancer>(key))).await;
        cluster.settle().await;
        assert!(cluster.harvester.list::<LoadBalancer>().await.is_empty());
        in_step(&cluster).await;
        let work = work(&cluster);
        let writes = work.iter().filter(|request| request.is_write()).count();
        assert!(writes <= 300, "{writes} writes");
        let conflicts = work.iter().filter(|request| request.code == 409).count();
        assert!(conflicts <= 2, "{conflicts} conflicts among our own writes");
    }

    async fn a_load_balancer_waits_for_a_pool_and_says_so(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        load_balancer(&cluster, "web", "").await;
        load_balancer(&cluster, "named", ", ipPool: edge").await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "NoMatchingPool"));
        assert!(ready.message.starts_with("no matched IPPool with requirement "), "{}", ready.message);
        let ready = ready_of(&cluster, "named").await;
        assert_eq!(ready.reason, "PoolNotFound");
        assert!(ready.message.starts_with("fail to get allocator edge"), "{}", ready.message);

        cluster.harvester.forget_requests();
        cluster.settle().await;
        assert_eq!(work(&cluster), [], "waiting costs nothing");
        pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        in_step(&cluster).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
    }

    // a tenant reads it, and pools and networks may be other tenants'
    async fn the_condition_names_no_pools_that_the_load_balancer_did_not_ask(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "a-secret", 10, 20).await;
        let lab = json!({"spec": {"selector": {"network": "lab/vlan7", "scope": [
            {"project": "*", "namespace": "lab", "guestCluster": "*"}]}}});
        cluster.harvester.patch::<IPPool>("a-secret", lab).await;
        pool(&cluster, "overlapping", 20, 30).await;
        load_balancer(&cluster, "any", "").await;
        load_balancer(&cluster, "named", ", ipPool: overlapping").await;
        cluster.settle().await;
        let (any, named) = (ready_of(&cluster, "any").await, ready_of(&cluster, "named").await);
        assert_eq!((any.reason.as_str(), named.reason.as_str()), ("NoMatchingPool", "PoolNotReady"));
        assert!(any.message.contains("none of 2 pools matches (1 for another network, 1 not usable); waiting"), "{}", any.message);
        assert!(named.message.contains("its ranges overlap those of an older pool; name another pool"), "{}", named.message);
        for text in [any.message, named.message] {
            assert!(!text.contains("secret") && !text.contains("vlan7") && !text.contains("192.0.2."), "{text}");
        }
        let told = record_of(&cluster, "overlapping").await.conditions;
        let told = &condition::ready(&told).unwrap().message;
        assert!(told.contains("of pool a-secret"), "an administrator reads the pool: {told}");
    }

    // docs/contract/load-balancer.md#LB-8
    async fn a_freed_address_goes_to_one_who_waits(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        load_balancer(&cluster, "first", "").await;
        cluster.settle().await;
        load_balancer(&cluster, "second", "").await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "second").await;
        assert_eq!(ready.reason, "PoolExhausted");
        assert!(ready.message.contains("no IP addresses available in range set: 192.0.2.10-192.0.2.10"), "{}", ready.message);

        cluster.harvester.delete::<LoadBalancer>("team-a/first").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "second").await, "192.0.2.10");
        assert_eq!(ready_of(&cluster, "second").await.status, ConditionStatus::True);
        in_step(&cluster).await;
    }

    async fn a_wider_range_serves_those_who_wait(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        load_balancer(&cluster, "first", "").await;
        load_balancer(&cluster, "second", "").await;
        cluster.settle().await;
        pool(&cluster, "edge", 10, 11).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
        in_step(&cluster).await;
    }

    // docs/contract/load-balancer.md#5.3: in the Go program nothing wakes an object that waits for an address
    async fn one_who_waits_for_a_full_pool_is_served_by_another_as_soon_as_that_comes_first(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        let scope = |namespace: &str| json!({"spec": {"selector": {"scope": [
            {"project": "*", "namespace": namespace, "guestCluster": "*"}]}}});
        pool(&cluster, "everybody", 10, 10).await;
        cluster.harvester.patch::<IPPool>("everybody", scope("*")).await;
        pool(&cluster, "lab", 50, 50).await;
        cluster.harvester.patch::<IPPool>("lab", scope("lab")).await;
        cluster.settle().await;
        load_balancer(&cluster, "first", "").await;
        cluster.settle().await;
        load_balancer(&cluster, "second", "").await;
        load_balancer(&cluster, "third", "").await;
        cluster.settle().await;
        for waiting in ["second", "third"] {
            assert_eq!(ready_of(&cluster, waiting).await.reason, "PoolExhausted");
        }

        pool(&cluster, "team", 30, 30).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "team").await.allocated.len(), 1, "one that appeared");
        cluster.harvester.patch::<IPPool>("lab", scope("team-a")).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "lab").await.allocated.len(), 1, "one whose scope was edited");
        in_step(&cluster).await;
    }

    async fn dhcp_needs_no_pool_and_no_record(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        load_balancer(&cluster, "web", ", ipam: dhcp").await;
        cluster.settle().await;
        let status = status_of(&cluster, "web").await;
        assert_eq!(serde_json::to_value(&status.allocated_address).unwrap(), json!({"ip": "0.0.0.0"}));
        assert_eq!(ready_of(&cluster, "web").await.status, ConditionStatus::True);
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert!(cluster.harvester.list::<LoadBalancer>().await.is_empty());
    }

    async fn a_load_balancer_moves_to_the_pool_that_it_names(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"ipPool": "core"}})).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10", "kept until there is another");
        let ready = ready_of(&cluster, "web").await;
        assert!(ready.message.ends_with("address 192.0.2.10 of pool edge stays until then"), "{}", ready.message);
        pool(&cluster, "core", 30, 40).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30");
        in_step(&cluster).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated_history["192.0.2.10"], "team-a/web");

        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"ipPool": ""}})).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30", "nobody said where else");
    }

    // docs/contract/addresses.md#1
    async fn the_old_address_of_a_guest_cluster_goes_back_when_its_status_has_left_it(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        pool(&cluster, "core", 30, 40).await;
        load_balancer(&cluster, "web", ", ipPool: edge").await;
        cluster.settle().await;
        // as the cloud controller manager does when kube-vip in the guest has shown it
        let shown = |ip: &str| json!({"status": {"address": ip}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", shown("192.0.2.10")).await;
        load_balancer(&cluster, "api", ", ipPool: edge").await;
        cluster.settle().await;

        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"ipPool": "core"}})).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30", "the new address is there to be published");
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.10"], "team-a/web", "the guest still announces it");
        assert_eq!(ready_of(&cluster, "api").await.reason, "PoolExhausted");

        cluster.harvester.patch::<LoadBalancer>("team-a/web", shown("192.0.2.30")).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.10");
        in_step(&cluster).await;
    }

    // docs/contract/load-balancer.md#LB-9
    async fn the_old_address_of_a_vm_goes_back_when_the_network_has_left_it(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        pool(&cluster, "core", 30, 40).await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {name: web, namespace: team-a},
              spec: {workloadType: vm, ipPool: edge, listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]}}",
        ).await;
        cluster.settle().await;
        let announce = |ip: &str| json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        cluster.harvester.patch_status::<Service>("team-a/web", announce("192.0.2.10")).await;
        cluster.settle().await;
        assert_eq!(status_of(&cluster, "web").await.address, "192.0.2.10");

        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"ipPool": "core"}})).await;
        cluster.settle().await;
        let service = cluster.harvester.get::<Service>("team-a/web").await.unwrap();
        assert_eq!(service.spec.unwrap().load_balancer_ip.as_deref(), Some("192.0.2.30"));
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.10"], "team-a/web", "still announced");
        cluster.harvester.patch_status::<Service>("team-a/web", announce("192.0.2.30")).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
        in_step(&cluster).await;
    }

    async fn a_restart_writes_nothing(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 40).await;
        for n in 0..20 {
            load_balancer(&cluster, &format!("web-{n}"), "").await;
        }
        cluster.settle().await;
        running.stop().await;
        cluster.harvester.forget_requests();
        let _again = controller(&cluster).await;
        let writes: Vec<_> = work(&cluster);
        assert!(writes.iter().all(|request| !request.is_write()), "{writes:?}");
        in_step(&cluster).await;
    }

    // docs/contract/load-balancer.md#WH-6
    async fn of_two_pools_that_overlap_the_younger_gives_nothing(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "first", 10, 20).await;
        cluster.settle().await;
        // a second is the finest that creation times tell; equal ones are told apart by name
        pool(&cluster, "second", 20, 30).await;
        load_balancer(&cluster, "web", ", ipPool: second").await;
        cluster.settle().await;
        let record = record_of(&cluster, "second").await;
        let ready = condition::ready(&record.conditions).cloned().unwrap();
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "PoolInvalid"));
        assert!(ready.message.contains("overlap with other pools"), "{}", ready.message);
        assert_eq!(ready_of(&cluster, "web").await.reason, "PoolNotReady");
        let first = record_of(&cluster, "first").await;
        assert_eq!(condition::ready(&first.conditions).unwrap().status, ConditionStatus::True);

        cluster.harvester.delete::<IPPool>("first").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.20");
        in_step(&cluster).await;
    }

    async fn a_record_that_is_full_leaves_the_load_balancer_to_the_next_pool(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "second", 30, 40).await;
        pool(&cluster, "first", 10, 20).await;
        // fifteen thousand records would do as well
        let full = json!({"spec": {"description": "x".repeat(1_200_000), "selector": {"priority": 9}}});
        cluster.harvester.patch::<IPPool>("first", full).await;
        load_balancer(&cluster, "named", ", ipPool: first").await;
        load_balancer(&cluster, "any", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "any").await, "192.0.2.30");
        let ready = ready_of(&cluster, "named").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "RecordFull"));
        in_step(&cluster).await;
    }

    // docs/contract/addresses.md#3: beside them the server keeps whose each record is
    async fn a_pool_takes_records_until_its_object_has_no_room_and_the_server_stores_all_of_them(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: edge},
              spec: {ranges: [{subnet: 192.168.0.0/16}], selector: {scope: [{project: '*', namespace: team-a, guestCluster: '*'}]}}}",
        ).await;
        cluster.settle().await;
        let mut bare = serde_json::to_value(cluster.harvester.get::<IPPool>("edge").await.unwrap()).unwrap();
        bare["metadata"].as_object_mut().unwrap().remove("managedFields");
        let mut size = bare.to_string().len();
        // of other programs, which nobody releases
        let mut records = BTreeMap::new();
        for number in 512_u32.. {
            let address = Ipv4Addr::from_bits(0xc0a8_0000 + number).to_string();
            size += address.len() + 35 + r#""":"","#.len() + address.len() + r#""f:":{},"#.len();
            // a few are left to us
            if size > 1_200_000 - 250 {
                break;
            }
            records.insert(address, format!("shop/{number:030}"));
        }
        let before = records.len();
        assert!((14_500..=16_500).contains(&before), "{before}");
        cluster.harvester.patch::<IPPool>("edge", json!({"status": {"allocated": records}})).await;
        cluster.settle().await;
        let names: Vec<_> = (0..8).map(|number| format!("lb-{number}")).collect();
        futures::future::join_all(names.iter().map(|name| load_balancer(&cluster, name, ""))).await;
        // a busy server takes a while to tell of an object of this size
        for name in &names {
            let mut rests = 0;
            while status_of(&cluster, name).await.conditions.is_empty() && rests < RESTS {
                rests += 1;
                cluster.settle().await;
            }
        }
        cluster.settle().await;
        let mut given = 0;
        for name in &names {
            if address_of(&cluster, name).await.is_empty() {
                assert_eq!(ready_of(&cluster, name).await.reason, "RecordFull");
            } else {
                given += 1;
            }
        }
        assert!((1..=6).contains(&given), "{given}");
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), before + given);
    }

    async fn a_pool_with_faults_names_them_all_and_hinders_nobody(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: broken},
              spec: {ranges: [{subnet: 192.0.2.0}, {subnet: 192.0.2.0/24, rangeEnd: 192.0.3.1}]}}",
        ).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        let broken = record_of(&cluster, "broken").await;
        let message = &condition::ready(&broken.conditions).unwrap().message;
        assert!(message.contains("is not a CIDR") && message.contains("outside of subnet"), "{message}");
    }

    // the webhook refuses more than a thousand; here it was away
    async fn a_pool_of_ten_thousand_scopes_hinders_nobody(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        let scope = |n| json!({"project": "*", "namespace": format!("tenant-{n}"), "guestCluster": "*"});
        let huge = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool", "metadata": {"name": "huge"},
            "spec": {"ranges": [{"subnet": "198.51.100.0/24"}], "selector": {"scope": (0..10_000).map(scope).collect::<Vec<_>>()}}});
        cluster.harvester.apply(&huge.to_string()).await;
        load_balancer(&cluster, "web", "").await;
        load_balancer(&cluster, "named", ", ipPool: huge").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        // a pool of this size is written with pauses, in which nothing is under way
        for _ in 0..80 {
            if !address_of(&cluster, "named").await.is_empty() {
                break;
            }
            cluster.settle().await;
        }
        assert_eq!(address_of(&cluster, "named").await, "198.51.100.2");
        in_step(&cluster).await;
    }

    async fn a_pool_that_is_deleted_goes_when_its_last_address_came_back(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        cluster.harvester.delete::<IPPool>("edge").await;
        cluster.settle().await;
        assert!(cluster.harvester.get::<IPPool>("edge").await.is_some(), "somebody holds an address");
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert!(cluster.harvester.get::<IPPool>("edge").await.is_none());
    }

    #[simulated_only("a quiet hour would last an hour")]
    async fn a_settled_cluster_costs_no_request(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        load_balancer(&cluster, "waiting", ", ipPool: none").await;
        cluster.settle().await;
        cluster.harvester.forget_requests();
        cluster.advance(std::time::Duration::from_secs(3600)).await;
        assert_eq!(work(&cluster), []);
    }
}
