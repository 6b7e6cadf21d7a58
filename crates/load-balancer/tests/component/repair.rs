//! Lost records and statuses come back, and abandoned records are released.

use std::time::Duration;

use harvester_api::{IPPool, LoadBalancer, annotations};
use ip_pools::managers;
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::fixtures::{
    Controller, address_of, controller, faults, granted, in_step, load_balancer, overwrite_pool_status, pool,
    ready_of, record_of, told, vanish,
};

test_cluster::component_tests! {
    async fn a_load_balancer_whose_status_was_erased_keeps_its_address(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "api", "").await;
        cluster.settle().await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"status": null})).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.11");
        in_step(&cluster).await;
    }

    async fn a_pool_whose_status_was_erased_is_filled_from_its_load_balancers(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        for name in ["web", "api", "db"] {
            load_balancer(&cluster, name, "").await;
        }
        cluster.settle().await;
        let before = record_of(&cluster, "edge").await.allocated;
        overwrite_pool_status(&cluster, "edge", Value::Null).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated, before);
        load_balancer(&cluster, "new", "").await;
        cluster.settle().await;
        in_step(&cluster).await;
    }

    #[each_role]
    async fn an_address_that_the_pool_gives_to_another_is_lost_and_replaced(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let stolen = json!({"status": {"allocated": {"192.0.2.10": "machines/node-1"}}});
        cluster.harvester.patch::<IPPool>("edge", stolen).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.11");
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.10"], "machines/node-1");
        assert_eq!(told(&cluster, "AddressLost").await, granted(&cluster, 1));
    }

    // docs/contract/addresses.md#1: the PUT of a former leader arrived late
    #[each_role]
    async fn of_two_pools_that_record_one_address_the_older_is_right_and_the_other_holder_gets_another(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "a-older", 10, 20).await;
        pool(&cluster, "b-younger", 30, 40).await;
        load_balancer(&cluster, "web", ", ipPool: a-older").await;
        load_balancer(&cluster, "api", ", ipPool: b-younger").await;
        cluster.settle().await;
        let late = |ip: &str, holder: &str| json!({"status": {"allocated": {ip: holder}}});
        cluster.harvester.patch::<IPPool>("b-younger", late("192.0.2.10", "machines/node-1")).await;
        cluster.harvester.patch::<IPPool>("a-older", late("192.0.2.30", "machines/node-2")).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.31");
        assert_eq!(told(&cluster, "AddressLost").await, granted(&cluster, 1));
        let entries = |record: harvester_api::IPPoolStatus| {
            record.allocated.into_iter().map(|(ip, holder)| format!("{ip} {holder}")).collect::<Vec<_>>()
        };
        let older = entries(record_of(&cluster, "a-older").await);
        assert_eq!(older, ["192.0.2.10 team-a/web", "192.0.2.30 machines/node-2"]);
        let younger = entries(record_of(&cluster, "b-younger").await);
        assert_eq!(younger, ["192.0.2.10 machines/node-1", "192.0.2.31 team-a/api"]);

        for name in ["web", "api"] {
            cluster.harvester.delete::<LoadBalancer>(&format!("team-a/{name}")).await;
        }
        cluster.settle().await;
        assert_eq!(entries(record_of(&cluster, "a-older").await), ["192.0.2.30 machines/node-2"]);
        assert_eq!(entries(record_of(&cluster, "b-younger").await), ["192.0.2.10 machines/node-1"]);
    }

    #[each_role]
    async fn an_object_that_went_while_nobody_looked_gives_its_address_back_to_those_who_ask_by_hand(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        load_balancer(&cluster, "api", "").await;
        cluster.settle().await;
        running.stop().await;
        vanish(&cluster, "team-a/web").await;
        let _again = controller(&cluster).await;
        let held = |record: harvester_api::IPPoolStatus| record.allocated.into_values().collect::<Vec<_>>();
        assert_eq!(held(record_of(&cluster, "edge").await).len(), 2, "the record garbage collector has patience");
        let address = record_of(&cluster, "edge").await.allocated.into_iter()
            .find(|(_, holder)| holder == "team-a/web").unwrap().0;

        let ask = |text: String| json!({"metadata": {"annotations": {annotations::MANUALLY_RELEASE_IP: text}}});
        let kept = record_of(&cluster, "edge").await.allocated.into_keys().find(|other| *other != address).unwrap();
        let refusals = [
            ("nonsense".to_owned(), "is no record of this pool"),
            (format!("{address}: team-a/other"), "is no record of this pool"),
            (format!("{kept}: team-a/api"), "exists: delete that"),
        ];
        for (refused, why) in refusals {
            cluster.harvester.patch::<IPPool>("edge", ask(refused.clone())).await;
            cluster.settle().await;
            assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
            // also where the role grants no Events
            let pool = cluster.harvester.get::<IPPool>("edge").await.unwrap();
            let told = pool.metadata.annotations.unwrap_or_default();
            assert_eq!(told.get(annotations::MANUALLY_RELEASE_IP), None);
            let refusal = told.get("loadbalancer.harvesterhci.io/manual-release-refused").unwrap();
            assert!(refusal.contains(&refused) && refusal.contains(why), "{refusal}");
        }
        cluster.harvester.patch::<IPPool>("edge", ask(format!("{address}: team-a/web"))).await;
        cluster.settle().await;
        assert_eq!(held(record_of(&cluster, "edge").await), ["team-a/api"]);
        let pool = cluster.harvester.get::<IPPool>("edge").await.unwrap();
        let asked: Vec<_> = pool.metadata.annotations.unwrap_or_default().into_keys()
            .filter(|key| key.contains("elease")).collect();
        assert_eq!(asked, [""; 0], "neither the question nor the last refusal");
        in_step(&cluster).await;
        assert_eq!(told(&cluster, "ManualReleaseRefused").await, granted(&cluster, 3));
    }

    // the node driver records static addresses under the name of the machine
    #[each_role]
    async fn a_load_balancer_that_has_the_name_of_a_machine_takes_no_record_of_it(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        let machine = |name: &str| format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: {name}, namespace: team-a}},
               spec: {{runStrategy: Always, template: {{spec: {{domain: {{devices: {{}}}}}}}}}}}}");
        let recorded = json!({"status": {"allocated": {"192.0.2.10": "team-a/demo-1", "192.0.2.11": "team-a/demo-2",
            "192.0.2.12": "team-a/web"}}});
        cluster.harvester.patch::<IPPool>("edge", recorded).await;
        cluster.harvester.apply(&machine("demo-1")).await;
        cluster.settle().await;
        for name in ["demo-1", "demo-2", "web"] {
            load_balancer(&cluster, name, "").await;
            cluster.settle().await;
        }
        assert_eq!(address_of(&cluster, "demo-1").await, "192.0.2.13");
        let told = ready_of(&cluster, "demo-1").await.message;
        assert!(told.contains("records 192.0.2.10 for the VirtualMachine of this name"), "{told}");
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.12", "an administrator may write a record back");
        assert_eq!(address_of(&cluster, "demo-2").await, "192.0.2.11");
        cluster.harvester.apply(&machine("demo-2")).await;
        cluster.harvester.patch::<LoadBalancer>("team-a/demo-2", json!({"spec": {"description": "looked at again"}})).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "demo-2").await, "192.0.2.11", "what an object shows stays");
        for name in ["demo-1", "demo-2"] {
            cluster.harvester.delete::<LoadBalancer>(&format!("team-a/{name}")).await;
        }
        cluster.settle().await;
        let held = record_of(&cluster, "edge").await.allocated.into_iter();
        let held: Vec<_> = held.map(|(address, holder)| format!("{address} {holder}")).collect();
        assert_eq!(held, ["192.0.2.10 team-a/demo-1", "192.0.2.12 team-a/web"]);
    }

    // docs/contract/load-balancer.md#LB-3
    async fn a_load_balancer_deleted_before_its_finalizer_leaves_nothing(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        for turn in 0..5 {
            let name = format!("web-{turn}");
            load_balancer(&cluster, &name, "").await;
            cluster.harvester.delete::<LoadBalancer>(&format!("team-a/{name}")).await;
        }
        cluster.settle().await;
        in_step(&cluster).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
    }

    async fn the_server_tells_who_made_a_record(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let foreign = json!({"status": {"allocated": {"192.0.2.19": "machines/node-1"}}});
        cluster.harvester.patch::<IPPool>("edge", foreign).await;
        cluster.settle().await;
        let pool = cluster.harvester.get::<IPPool>("edge").await.unwrap();
        assert_eq!(managers::foreign(&pool, [192, 0, 2, 10].into()), None);
        assert!(managers::foreign(&pool, [192, 0, 2, 19].into()).is_some());
    }

    #[simulated_only("the patience of the record garbage collector is half a minute")]
    async fn abandoned_records_are_released_after_half_a_minute_and_foreign_ones_never(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        running.stop().await;
        vanish(&cluster, "team-a/web").await;
        let foreign = json!({"status": {"allocated": {"192.0.2.19": "machines/node-1"}}});
        cluster.harvester.patch::<IPPool>("edge", foreign).await;
        let _again = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(25)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
        cluster.advance(Duration::from_secs(10)).await;
        let record = record_of(&cluster, "edge").await;
        let held: Vec<_> = record.allocated.iter().map(|(address, holder)| (address.as_str(), holder.as_str())).collect();
        assert_eq!(held, [("192.0.2.19", "machines/node-1")]);
        assert_eq!(record.total - record.available, 1);
        cluster.advance(Duration::from_secs(3600)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 1);
    }

    #[simulated_only("the patience of the record garbage collector is half a minute")]
    async fn an_abandoned_record_is_released_beside_one_whose_holder_has_no_name_that_a_server_takes(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        // those of lower addresses come first
        let strange = ["vms/a b", "vms/a?b", "../web", "vms/-", "VMS/web"];
        let entry = |(at, holder): (usize, &&str)| (format!("192.0.2.{}", at + 10), json!(holder));
        let records: Value = strange.iter().enumerate().map(entry).collect();
        cluster.harvester.patch::<IPPool>("edge", json!({"status": {"allocated": records}})).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), strange.len() + 1);
        running.stop().await;
        vanish(&cluster, "team-a/web").await;
        let _again = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(40)).await;
        let held = record_of(&cluster, "edge").await.allocated;
        assert_eq!(held.into_values().collect::<Vec<_>>(), strange);
    }

    #[simulated_only("the patience of the record garbage collector is half a minute")]
    async fn an_abandoned_record_is_released_where_the_server_refuses_to_tell_of_another(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        for name in ["web", "api"] {
            load_balancer(&cluster, name, "").await;
            cluster.settle().await;
        }
        running.stop().await;
        for name in ["web", "api"] {
            vanish(&cluster, &format!("team-a/{name}")).await;
        }
        faults(&cluster, "[{verb: get, resource: loadbalancers, name: web, answer: 403}]").await;
        let _again = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(40)).await;
        let held = record_of(&cluster, "edge").await.allocated;
        assert_eq!(held.into_values().collect::<Vec<_>>(), ["team-a/web"]);
        faults(&cluster, "[]").await;
        cluster.advance(Duration::from_secs(60)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
    }

    #[simulated_only("the patience of the record garbage collector is half a minute")]
    async fn an_abandoned_record_is_released_while_another_pool_cannot_be_written(cluster: TestCluster) {
        let running = controller(&cluster).await;
        for (name, from) in [("core", 30), ("edge", 10), ("lab", 50)] {
            pool(&cluster, name, from, from + 5).await;
            load_balancer(&cluster, &format!("in-{name}"), &format!(", ipPool: {name}")).await;
        }
        cluster.settle().await;
        running.stop().await;
        for name in ["core", "edge", "lab"] {
            vanish(&cluster, &format!("team-a/in-{name}")).await;
        }
        let slow = |name: &str| format!("{{verb: update, resource: ippools, name: {name}, answer: delay=600s}}");
        // whichever comes first
        faults(&cluster, &format!("[{}, {}]", slow("core"), slow("lab"))).await;
        let _again = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(40)).await;
        for (name, expected) in [("core", 1), ("edge", 0), ("lab", 1)] {
            assert_eq!(record_of(&cluster, name).await.allocated.len(), expected, "{name}");
        }
    }
}
