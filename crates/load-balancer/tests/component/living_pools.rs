//! Pools whose ranges are emptied, that limit what somebody may have, and whose addresses rest.

use std::{collections::BTreeSet, time::Duration};

use harvester_api::{ConditionStatus, IPPool, LoadBalancer, annotations, labels};
use kube::ResourceExt as _;
use load_balancer::PoolChoice;
use serde_json::{Value, json};
use test_cluster::{Request, TestCluster};

use super::fixtures::{
    Controller, address_of, controller, in_step, load_balancer, pool, ready_of, record_of, work,
};

/// Two ranges of one address each: .10, and .20.
async fn two_ranges(cluster: &TestCluster, drain: bool) {
    let range = |last: u8, drain: bool| {
        let address = format!("192.0.2.{last}");
        let mut range = json!({"subnet": "192.0.2.0/24", "rangeStart": address, "rangeEnd": address});
        if drain {
            range["drain"] = true.into();
        }
        range
    };
    edit(cluster, json!({"ranges": [range(10, drain), range(20, false)]})).await;
}

/// Two pools of one address that match alike; edge comes first.
async fn two_pools(cluster: &TestCluster) {
    pool(cluster, "edge", 10, 10).await;
    pool(cluster, "next", 30, 30).await;
    edit(cluster, json!({"selector": {"priority": 7}})).await;
}

/// Says who may draw from pool edge.
async fn assign(cluster: &TestCluster, auto: &str) {
    let annotation = json!({"metadata": {"annotations": {annotations::AUTO_ASSIGN: auto}}});
    cluster.harvester.patch::<IPPool>("edge", annotation).await;
    cluster.settle().await;
}

/// The annotation of pool edge that names the addresses that rest.
async fn rests(cluster: &TestCluster) -> String {
    let pool = cluster.harvester.get::<IPPool>("edge").await.unwrap();
    pool.annotations().get(annotations::QUARANTINE).cloned().unwrap_or_default()
}

/// Changes the spec of pool edge.
async fn edit(cluster: &TestCluster, spec: Value) {
    cluster.harvester.patch::<IPPool>("edge", json!({"spec": spec})).await;
    cluster.settle().await;
}

/// Gives a load balancer the label of a guest cluster.
async fn move_to(cluster: &TestCluster, name: &str, guest_cluster: &str) {
    let label = json!({"metadata": {"labels": {labels::CLUSTER: guest_cluster}}});
    cluster.harvester.patch::<LoadBalancer>(&format!("team-a/{name}"), label).await;
}

/// As the cloud controller manager makes it for a Service that requires both families.
async fn requiring_two(cluster: &TestCluster, name: &str) {
    let (families, policy) = (annotations::IP_FAMILIES, annotations::IP_FAMILY_POLICY);
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
           metadata: {{name: {name}, namespace: team-a,
                       annotations: {{{families}: 'IPv4,IPv6', {policy}: RequireDualStack}},
                       labels: {{cloudprovider.harvesterhci.io/cluster: blue}}}},
           spec: {{workloadType: cluster}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

test_cluster::component_tests! {
    async fn a_range_that_drains_keeps_its_holders_and_gives_nothing_new(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        two_ranges(&cluster, false).await;
        load_balancer(&cluster, "first", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "first").await, "192.0.2.10");
        two_ranges(&cluster, true).await;
        load_balancer(&cluster, "second", "").await;
        cluster.settle().await;
        load_balancer(&cluster, "third", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "first").await, "192.0.2.10");
        assert_eq!(ready_of(&cluster, "first").await.status, ConditionStatus::True);
        assert_eq!(address_of(&cluster, "second").await, "192.0.2.20");
        assert_eq!(ready_of(&cluster, "third").await.reason, "PoolExhausted");

        cluster.harvester.delete::<LoadBalancer>("team-a/first").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "third").await, "", "the address of the range that drains stays free");
        let record = record_of(&cluster, "edge").await;
        assert_eq!((record.total, record.available, record.allocated.len()), (2, 0, 1));
        cluster.harvester.forget_requests();
        cluster.settle().await;
        assert_eq!(work(&cluster), [], "a pool that drains costs nothing");

        two_ranges(&cluster, false).await;
        assert_eq!(address_of(&cluster, "third").await, "192.0.2.10", "who waits hears of the end of the drain");
        in_step(&cluster).await;
    }

    async fn a_pool_that_drains_whole_is_passed_over_and_says_so(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        edit(&cluster, json!({"ranges": [{"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10",
            "rangeEnd": "192.0.2.20", "drain": true}]})).await;
        load_balancer(&cluster, "any", "").await;
        load_balancer(&cluster, "named", ", ipPool: edge").await;
        cluster.settle().await;
        let (any, named) = (ready_of(&cluster, "any").await, ready_of(&cluster, "named").await);
        assert_eq!((any.reason.as_str(), named.reason.as_str()), ("NoMatchingPool", "PoolDraining"));
        assert!(any.message.contains("none of 1 pools matches (1 draining)"), "{}", any.message);
        assert!(named.message.contains("every range of it drains"), "{}", named.message);
        pool(&cluster, "next", 30, 39).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "any").await, "192.0.2.30");
        assert_eq!(address_of(&cluster, "named").await, "");
    }

    // each write sends everybody's records
    #[simulated_only("little time passes between two writes of an object")]
    async fn an_object_that_changes_its_guest_cluster_again_and_again_has_a_large_pool_written_at_the_pace_of_its_namespace(
        cluster: TestCluster
    ) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        let quota = json!([{"guestCluster": "blue", "max": 1}]);
        edit(&cluster, json!({"description": "x".repeat(70_000), "quota": quota})).await;
        for name in ["first", "second"] {
            load_balancer(&cluster, name, "").await;
            move_to(&cluster, name, "blue").await;
        }
        cluster.advance(Duration::from_secs(60)).await;
        cluster.harvester.forget_requests();
        for turn in 0..400 {
            move_to(&cluster, "second", ["red", "blue"][turn % 2]).await;
            cluster.advance(Duration::from_millis(1)).await;
        }
        let is_pool = |request: &&Request| request.is_write() && request.resource() == "ippools";
        let puts = work(&cluster).iter().filter(is_pool).count();
        assert!((150..=205).contains(&puts), "{puts}");
        cluster.advance(Duration::from_secs(1)).await;
        let told = record_of(&cluster, "edge").await.conditions[0].message.clone();
        assert!(told.ends_with("by guest cluster blue of namespace team-a"), "{told}");
    }

    // docs/contract/load-balancer.md#9.4, rule 5: the webhook refuses this; here it was away
    async fn a_pool_that_shrank_below_what_is_held_serves_its_holders_and_names_them(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 11).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        edit(&cluster, json!({"ranges": [{"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.11",
            "rangeEnd": "192.0.2.12"}]})).await;
        let record = record_of(&cluster, "edge").await;
        let told = &record.conditions[0];
        assert_eq!((told.status, told.reason.as_str()), (ConditionStatus::False, "PoolInvalid"));
        assert!(told.message.contains("192.0.2.10 is excluded: team-a/web holds it"), "{}", told.message);
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        assert_eq!(ready_of(&cluster, "web").await.status, ConditionStatus::True);
        load_balancer(&cluster, "next", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "next").await, "192.0.2.11");
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        let record = record_of(&cluster, "edge").await;
        assert_eq!(record.conditions[0].status, ConditionStatus::True);
        assert!(!record.allocated_history.contains_key("192.0.2.10"), "nobody gets it back");
    }
    async fn a_pool_for_those_who_name_it_is_given_to_nobody_else(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        two_pools(&cluster).await;
        load_balancer(&cluster, "before", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "before").await, "192.0.2.10");
        assign(&cluster, "false").await;
        assert_eq!(address_of(&cluster, "before").await, "192.0.2.10", "who has one keeps it");
        cluster.harvester.delete::<LoadBalancer>("team-a/before").await;
        load_balancer(&cluster, "any", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "any").await, "192.0.2.30");
        load_balancer(&cluster, "waits", "").await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "waits").await.reason, "PoolExhausted");
        assign(&cluster, "true").await;
        assert_eq!(address_of(&cluster, "waits").await, "192.0.2.10", "who waits hears of it");
        cluster.harvester.delete::<LoadBalancer>("team-a/waits").await;
        assign(&cluster, "false").await;
        load_balancer(&cluster, "named", ", ipPool: edge").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "named").await, "192.0.2.10");
        in_step(&cluster).await;
    }

    // docs/contract/load-balancer.md#IP-8
    async fn where_the_flag_says_so_a_full_pool_is_passed_over_for_the_next_that_matches(cluster: TestCluster) {
        let rules = PoolChoice { fall_over_when_full: true, ..PoolChoice::default() };
        let _running = Controller::choosing(&cluster, rules).await;
        two_pools(&cluster).await;
        for name in ["first", "second", "third"] {
            load_balancer(&cluster, name, "").await;
            cluster.settle().await;
        }
        assert_eq!(address_of(&cluster, "first").await, "192.0.2.10");
        assert_eq!(address_of(&cluster, "second").await, "192.0.2.30");
        assert_eq!(ready_of(&cluster, "third").await.reason, "PoolExhausted");
        cluster.harvester.delete::<LoadBalancer>("team-a/second").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "third").await, "192.0.2.30", "it waits for both");
        in_step(&cluster).await;
    }

    // docs/contract/load-balancer.md#IP-15
    async fn a_global_pool_that_no_webhook_has_labelled_serves_everybody(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        edit(&cluster, json!({"selector": {"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]}})).await;
        assert!(cluster.harvester.get::<IPPool>("edge").await.unwrap().labels().is_empty());
        load_balancer(&cluster, "web", "").await;
        let network = json!({"metadata": {"annotations": {annotations::LB_NETWORK: "team-a/vlan10"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", network).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
    }

    // docs/contract/load-balancer.md#IP-7
    async fn a_strict_global_pool_gives_no_address_to_another_network(cluster: TestCluster) {
        let rules = PoolChoice { strict_global_network: true, ..PoolChoice::default() };
        let _running = Controller::choosing(&cluster, rules).await;
        pool(&cluster, "edge", 10, 20).await;
        edit(&cluster, json!({"selector": {"network": "team-a/vlan10",
            "scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]}})).await;
        load_balancer(&cluster, "without", "").await;
        load_balancer(&cluster, "of-it", "").await;
        let network = json!({"metadata": {"annotations": {annotations::LB_NETWORK: "team-a/vlan10"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/of-it", network).await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "without").await;
        assert_eq!(ready.reason, "NoMatchingPool");
        assert!(ready.message.contains("1 for another network"), "{}", ready.message);
        assert_eq!(address_of(&cluster, "of-it").await, "192.0.2.10");
    }
    async fn a_quota_of_a_guest_cluster_holds_it_back_until_one_of_its_addresses_is_released(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        // the fixtures' load balancers are of this one
        edit(&cluster, json!({"quota": [{"guestCluster": "blue", "max": 2}]})).await;
        let names = ["first", "second", "third"];
        futures::future::join_all(names.iter().map(|name| load_balancer(&cluster, name, ""))).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
        let mut with = Vec::new();
        let mut without = "";
        for name in names {
            if address_of(&cluster, name).await.is_empty() { without = name } else { with.push(name) }
        }
        let ready = ready_of(&cluster, without).await;
        assert_eq!(ready.reason, "QuotaExceeded");
        assert!(ready.message.contains("gives guest cluster blue of namespace team-a at most 2 addresses, and 2 are held"), "{}", ready.message);
        // one of another cluster waits for nobody
        load_balancer(&cluster, "red", "").await;
        let red = json!({"metadata": {"annotations": {annotations::LB_CLUSTER: "red"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/red", red).await;
        cluster.settle().await;
        assert!(!address_of(&cluster, "red").await.is_empty());

        cluster.harvester.delete::<LoadBalancer>(&format!("team-a/{}", with[0])).await;
        cluster.settle().await;
        assert!(!address_of(&cluster, without).await.is_empty(), "who waits hears of the release");
        in_step(&cluster).await;
        cluster.harvester.forget_requests();
        cluster.settle().await;
        assert_eq!(work(&cluster), []);
    }

    async fn of_ten_who_require_two_with_a_quota_of_ten_five_are_served(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 30).await;
        edit(&cluster, json!({"quota": [{"namespace": "team-a", "max": 10}], "ranges": [
            {"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10", "rangeEnd": "192.0.2.30"},
            {"subnet": "fd00:6::/64", "rangeStart": "fd00:6::10", "rangeEnd": "fd00:6::30"}]})).await;
        let names: Vec<_> = (0..10).map(|n| format!("lb-{n}")).collect();
        futures::future::join_all(names.iter().map(|name| requiring_two(&cluster, name))).await;
        cluster.settle().await;
        let (mut served, mut waiting) = (Vec::new(), Vec::new());
        for name in &names {
            let ready = ready_of(&cluster, name).await;
            if ready.status == ConditionStatus::True {
                served.push(name);
            } else {
                assert_eq!(ready.reason, "QuotaExceeded");
                waiting.push(name);
            }
        }
        assert_eq!((served.len(), waiting.len()), (5, 5));
        let record = record_of(&cluster, "edge").await.allocated;
        let holders: BTreeSet<_> = record.values().collect();
        assert_eq!((record.len(), holders.len()), (10, 5), "nobody holds half: {record:?}");
        // a pair for a pair
        cluster.harvester.delete::<LoadBalancer>(&format!("team-a/{}", served[0])).await;
        cluster.settle().await;
        let record = record_of(&cluster, "edge").await.allocated;
        let holders: BTreeSet<_> = record.values().collect();
        assert_eq!((record.len(), holders.len()), (10, 5), "{record:?}");
        in_step(&cluster).await;
        cluster.harvester.forget_requests();
        cluster.settle().await;
        assert_eq!(work(&cluster), []);
    }

    async fn a_quota_that_is_lowered_takes_nothing_and_one_that_is_raised_is_heard_of(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        for name in ["first", "second"] {
            load_balancer(&cluster, name, "").await;
        }
        cluster.settle().await;
        edit(&cluster, json!({"quota": [{"namespace": "team-a", "max": 1}]})).await;
        load_balancer(&cluster, "third", "").await;
        cluster.settle().await;
        let record = record_of(&cluster, "edge").await;
        assert_eq!(record.allocated.len(), 2);
        assert_eq!((record.conditions[0].status, record.conditions[0].reason.as_str()),
            (ConditionStatus::True, "QuotaExceeded"));
        assert_eq!(ready_of(&cluster, "third").await.reason, "QuotaExceeded");
        edit(&cluster, json!({"quota": [{"namespace": "team-a", "max": 3}]})).await;
        assert!(!address_of(&cluster, "third").await.is_empty());
        assert_eq!(record_of(&cluster, "edge").await.conditions[0].message, "");
        in_step(&cluster).await;
    }
    async fn a_pool_says_no_more_that_a_cluster_holds_too_much_when_its_object_moved(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        for name in ["first", "second"] {
            load_balancer(&cluster, name, "").await;
        }
        cluster.settle().await;
        edit(&cluster, json!({"quota": [{"guestCluster": "blue", "max": 1}]})).await;
        let told = record_of(&cluster, "edge").await.conditions[0].clone();
        assert!(told.message.contains("guest cluster blue of namespace team-a"), "{}", told.message);
        let red = json!({"metadata": {"annotations": {annotations::LB_CLUSTER: "red"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/first", red).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.conditions[0].message, "");
    }

    // sixty stand for them
    async fn a_thousand_who_wait_write_nothing_when_an_address_begins_to_rest(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        edit(&cluster, json!({"quarantineSeconds": 86400})).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let names: Vec<_> = (0..60).map(|n| format!("lb-{n}")).collect();
        for name in &names {
            load_balancer(&cluster, name, "").await;
        }
        for name in &names[30..] {
            let demand = json!({"metadata": {"annotations": {annotations::REQUESTED_IP_STRICT: "192.0.2.10"}}});
            cluster.harvester.patch::<LoadBalancer>(&format!("team-a/{name}"), demand).await;
        }
        cluster.settle().await;
        let written = |requests: Vec<Request>| {
            let written = requests.into_iter().filter(|request| request.is_write());
            written.filter(|request| request.resource() == "loadbalancers").count()
        };
        cluster.harvester.forget_requests();
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert!(rests(&cluster).await.contains("192.0.2.10"));
        assert_eq!(written(work(&cluster)), 1, "the finalizer of the one that went");
        cluster.harvester.forget_requests();
        let end = json!({"metadata": {"annotations": {annotations::QUARANTINE: null}}});
        cluster.harvester.patch::<IPPool>("edge", end).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 1);
        assert_eq!(written(work(&cluster)), 1, "the one that got it");
    }

    async fn a_released_address_rests_for_all_but_its_former_holder_until_somebody_ends_that(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        edit(&cluster, json!({"quarantineSeconds": 86400})).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        load_balancer(&cluster, "next", "").await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "next").await;
        assert_eq!(ready.reason, "PoolExhausted");
        let record = record_of(&cluster, "edge").await;
        assert_eq!((record.total, record.available, record.allocated.len()), (1, 0, 0));
        assert!(rests(&cluster).await.contains("\"192.0.2.10\":"));
        cluster.harvester.forget_requests();
        cluster.settle().await;
        assert_eq!(work(&cluster), [], "a rest costs nothing");

        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        in_step(&cluster).await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "next").await, "");
        let end = json!({"metadata": {"annotations": {annotations::QUARANTINE: null}}});
        cluster.harvester.patch::<IPPool>("edge", end).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "next").await, "192.0.2.10");
        in_step(&cluster).await;
    }

    #[simulated_only("a rest lasts for its seconds")]
    async fn who_waits_for_an_address_that_rests_gets_it_at_the_end_of_the_rest(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        edit(&cluster, json!({"quarantineSeconds": 600})).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        load_balancer(&cluster, "next", "").await;
        cluster.settle().await;
        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_secs(300)).await;
        assert_eq!(work(&cluster), []);
        // another process knows of the rest from the pool; its clock begins anew, and is behind
        running.stop().await;
        let _next = Controller::start(&cluster, "two");
        cluster.settle().await;
        cluster.advance(Duration::from_secs(550)).await;
        assert_eq!(address_of(&cluster, "next").await, "");
        cluster.advance(Duration::from_secs(60)).await;
        assert_eq!(address_of(&cluster, "next").await, "192.0.2.10");
        assert_eq!(rests(&cluster).await, "");
        in_step(&cluster).await;
    }
}
