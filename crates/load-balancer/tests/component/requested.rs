//! Load balancers that ask for addresses: docs/contract/addresses.md#5

use std::time::Duration;

use harvester_api::{ConditionStatus, IPPool, LoadBalancer, annotations};
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::fixtures::{
    Controller, address_of, controller, faults, in_step, load_balancer, pool, ready_of, record_of, work,
};
use super::lab::Lab;

const WISH: &str = annotations::REQUESTED_IP;
const DEMAND: &str = annotations::REQUESTED_IP_STRICT;

async fn asking(cluster: &TestCluster, name: &str, key: &str, ip: &str) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
           metadata: {{name: {name}, namespace: team-a, annotations: {{{key}: '{ip}'}},
                       labels: {{cloudprovider.harvesterhci.io/cluster: blue}}}},
           spec: {{workloadType: cluster}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

async fn ask(cluster: &TestCluster, name: &str, key: &str, ip: impl Into<Value>) {
    let ip: Value = ip.into();
    let patch = json!({"metadata": {"annotations": {(key): ip}}});
    cluster.harvester.patch::<LoadBalancer>(&format!("team-a/{name}"), patch).await;
}

/// The guest's kube-vip announces this, and the cloud controller manager shows it.
async fn announce(cluster: &TestCluster, name: &str, ip: &str) {
    let patch = json!({"status": {"address": ip}});
    cluster.harvester.patch::<LoadBalancer>(&format!("team-a/{name}"), patch).await;
}

/// Verb and resource of the load balancer's writes since the last look.
fn writes(cluster: &TestCluster) -> Vec<String> {
    let writes = work(cluster).into_iter().filter(|request| request.is_write());
    let writes = writes.map(|request| format!("{} {}", request.verb, request.resource())).collect();
    cluster.harvester.forget_requests();
    writes
}

test_cluster::component_tests! {
    async fn a_demand_waits_for_the_address_of_another_and_gets_it_when_that_one_goes(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        asking(&cluster, "first", DEMAND, "192.0.2.15").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "first").await, "192.0.2.15");
        asking(&cluster, "second", DEMAND, "192.0.2.15").await;
        asking(&cluster, "outside", DEMAND, "192.0.2.99").await;
        asking(&cluster, "nonsense", DEMAND, "web.example.com").await;
        cluster.settle().await;
        let told = |name: &'static str| ready_of(&cluster, name);
        let ready = told("second").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "AddressInUse"));
        assert!(ready.message.contains("load balancer team-a/first had it"), "{}", ready.message);
        assert_eq!(told("outside").await.reason, "AddressNotInPool");
        assert_eq!(told("nonsense").await.reason, "InvalidRequestedAddress");
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 1);

        load_balancer(&cluster, "any", "").await;
        cluster.settle().await;
        cluster.harvester.forget_requests();
        cluster.harvester.delete::<LoadBalancer>("team-a/any").await;
        cluster.settle().await;
        assert_eq!(writes(&cluster), ["update ippools", "update loadbalancers"], "only the one that goes");

        cluster.harvester.delete::<LoadBalancer>("team-a/first").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "second").await, "192.0.2.15");
        assert_eq!(told("second").await.status, ConditionStatus::True);

        pool(&cluster, "more", 90, 99).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "outside").await, "192.0.2.99");
        in_step(&cluster).await;
    }

    async fn a_wish_is_answered_with_another_address_and_a_sentence(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        for name in ["first", "second"] {
            asking(&cluster, name, WISH, "192.0.2.15").await;
            cluster.settle().await;
        }
        assert_eq!(address_of(&cluster, "first").await, "192.0.2.15");
        let (second, ready) = (address_of(&cluster, "second").await, ready_of(&cluster, "second").await);
        assert_eq!(second, "192.0.2.10");
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::True, "AddressAllocated"));
        assert_eq!(ready.message,
            "requested address 192.0.2.15 is not used: load balancer team-a/first had it when this one asked");
        // nobody's address changes because one comes free that was wished for before
        cluster.harvester.delete::<LoadBalancer>("team-a/first").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "second").await, second);
        in_step(&cluster).await;
    }

    async fn a_new_request_moves_a_load_balancer_without_a_moment_between_two_addresses(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let former = address_of(&cluster, "web").await;
        announce(&cluster, "web", &former).await;
        cluster.settle().await;
        cluster.harvester.forget_requests();

        ask(&cluster, "web", DEMAND, "192.0.2.15").await;
        cluster.settle().await;
        assert_eq!(writes(&cluster), ["update ippools", "update loadbalancers"]);
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.15");
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2, "the guest announces the former one");
        // as long as it does there is no third one
        ask(&cluster, "web", DEMAND, "192.0.2.16").await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "web").await.reason, "ReleaseUnderWay");
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
        // nor is there a way back, because the guest may be taking the new one
        ask(&cluster, "web", DEMAND, former.as_str()).await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "web").await.reason, "ReleaseUnderWay");
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.15");
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
        ask(&cluster, "web", DEMAND, "192.0.2.16").await;
        announce(&cluster, "web", "192.0.2.15").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.16");
        announce(&cluster, "web", "192.0.2.16").await;
        cluster.settle().await;
        in_step(&cluster).await;

        ask(&cluster, "web", DEMAND, Value::Null).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.16", "who asks for nothing keeps what it has");
        in_step(&cluster).await;
    }

    async fn a_record_that_an_administrator_wrote_back_hinders_no_later_request(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        let recorded = json!({"status": {"allocated": {"192.0.2.10": "team-a/web"}}});
        cluster.harvester.patch::<IPPool>("edge", recorded).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        announce(&cluster, "web", "192.0.2.10").await;
        for ip in ["192.0.2.15", "192.0.2.16"] {
            ask(&cluster, "web", DEMAND, ip).await;
            cluster.settle().await;
            assert_eq!(address_of(&cluster, "web").await, ip);
            announce(&cluster, "web", ip).await;
            cluster.settle().await;
        }
        let held: Vec<_> = record_of(&cluster, "edge").await.allocated.into_keys().collect();
        assert_eq!(held, ["192.0.2.10", "192.0.2.16"], "what another program wrote stays while the object does");
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        in_step(&cluster).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
    }

    async fn who_asks_for_an_address_moves_no_round_robin(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        let yaml = "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: edge},
            spec: {ranges: [{subnet: 192.0.2.0/24, rangeStart: 192.0.2.10, rangeEnd: 192.0.2.20}, {subnet: 'fd00::/120'}],
            selector: {scope: [{project: '*', namespace: '*', guestCluster: '*'}]}}}";
        cluster.harvester.apply(yaml).await;
        // each one in a write of its own
        for (name, key, text, address) in [
            ("first", annotations::IP_FAMILIES, "IPv4", "192.0.2.10"),
            ("asks", DEMAND, "192.0.2.20", "192.0.2.20"),
            ("six", annotations::IP_FAMILIES, "IPv6", "fd00::2"),
        ] {
            asking(&cluster, name, key, text).await;
            cluster.settle().await;
            assert_eq!(address_of(&cluster, name).await, address);
        }
        cluster.harvester.delete::<LoadBalancer>("team-a/first").await;
        cluster.settle().await;
        asking(&cluster, "stranger", annotations::IP_FAMILIES, "IPv4").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "stranger").await, "192.0.2.11");
        in_step(&cluster).await;
    }

    async fn a_service_of_vms_follows_to_the_address_that_is_asked_for(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        ask(&lab.cluster, "web", DEMAND, "203.0.113.77").await;
        lab.until_ready_says("service is waiting for external IP 203.0.113.77, still has 203.0.113.2").await;
        assert_eq!(record_of(&lab.cluster, "edge").await.allocated.len(), 2);
        lab.announce().await;
        lab.until_address("203.0.113.77").await;
        lab.cluster.settle().await;
        in_step(&lab.cluster).await;
    }

    async fn a_hundred_demands_of_taken_addresses_cost_a_write_each_and_none_later(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 29).await;
        for n in 0..10 {
            asking(&cluster, &format!("first-{n}"), DEMAND, &format!("192.0.2.{}", 10 + n)).await;
        }
        cluster.settle().await;
        cluster.harvester.forget_requests();
        for n in 0..100 {
            asking(&cluster, &format!("second-{n}"), DEMAND, &format!("192.0.2.{}", 10 + n % 10)).await;
        }
        cluster.settle().await;
        let first = writes(&cluster);
        assert_eq!(first.iter().filter(|write| *write == "update ippools").count(), 0, "{first:?}");
        assert_eq!(first.len(), 100, "{first:?}");
        cluster.harvester.delete::<LoadBalancer>("team-a/first-3").await;
        cluster.settle().await;
        let later = writes(&cluster);
        assert!(later.len() <= 4, "two for the one that goes, two for the one that comes: {later:?}");
        in_step(&cluster).await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_crash_at_any_write_of_a_move_leaves_one_address_in_the_end(cluster: TestCluster) {
        pool(&cluster, "edge", 10, 40).await;
        for (index, rule) in [
            "{verb: update, resource: ippools, answer: drop, when: before}",
            "{verb: update, resource: ippools, answer: drop, when: after}",
            "{verb: update, resource: loadbalancers, answer: drop, when: before}",
            "{verb: update, resource: loadbalancers, answer: drop, when: after}",
        ].into_iter().enumerate() {
            let (name, ip) = (format!("web-{index}"), format!("192.0.2.{}", 30 + index));
            let running = controller(&cluster).await;
            load_balancer(&cluster, &name, "").await;
            cluster.settle().await;
            let former = address_of(&cluster, &name).await;
            faults(&cluster, &format!("[{rule}]")).await;
            ask(&cluster, &name, DEMAND, ip.as_str()).await;
            cluster.advance(Duration::from_secs(2)).await;
            drop(running);
            faults(&cluster, "[]").await;
            let held = record_of(&cluster, "edge").await.allocated;
            let own: Vec<_> = held.iter().filter(|(_, holder)| holder.ends_with(&name)).map(|(ip, _)| ip.clone()).collect();
            assert!(own.contains(&former) || own.contains(&ip), "{rule}: {own:?}");
            let running = Controller::start(&cluster, &format!("next-{index}"));
            cluster.advance(Duration::from_secs(180)).await;
            assert_eq!(address_of(&cluster, &name).await, ip, "{rule}");
            in_step(&cluster).await;
            running.stop().await;
        }
    }
}
