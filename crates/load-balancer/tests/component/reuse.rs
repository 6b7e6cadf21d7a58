//! Addresses that something may still announce are given to nobody else, whatever happened to their load balancer.

use std::time::Duration;

use harvester_api::{ConditionStatus, IPPool, LoadBalancer, annotations, condition};
use k8s_openapi::api::{core::v1::Service, rbac::v1::ClusterRole};
use serde_json::json;
use test_cluster::{Request, Rights, TestCluster};

use super::fixtures::{
    address_of, controller, faults, in_step, load_balancer, pool, ready_of, record_of, vanish, work,
};
use super::lab::{A_WHILE, Lab};

/// The first address of the lab's pool.
const ADDRESS: &str = "203.0.113.2";

/// Somebody else's finalizer keeps the Service, as a garbage collector that is slow would.
async fn hold(lab: &Lab, held: bool) {
    let finalizers = if held { json!(["example.com/hold"]) } else { json!(null) };
    lab.cluster
        .harvester
        .patch::<Service>("team-a/web", json!({"metadata": {"finalizers": finalizers}}))
        .await;
}

async fn holder_of(lab: &Lab, address: &str) -> Option<String> {
    record_of(&lab.cluster, "edge").await.allocated.get(address).cloned()
}

/// Grants the load balancer these verbs on Services.
async fn grant_on_services(cluster: &TestCluster, verbs: &[&str]) {
    const ROLE: &str = "harvester-load-balancer";
    let role = cluster.harvester.get::<ClusterRole>(ROLE).await.unwrap();
    let mut rules = role.rules.unwrap();
    for rule in &mut rules {
        let services = |resources: &Vec<String>| resources.iter().any(|resource| resource == "services");
        if rule.resources.as_ref().is_some_and(services) {
            rule.verbs = verbs.iter().map(|&verb| verb.to_owned()).collect();
        }
    }
    cluster.harvester.patch::<ClusterRole>(ROLE, json!({"rules": rules})).await;
}

/// The object goes while no controller runs, and the garbage collector waits for somebody else's finalizer.
async fn gone_before_its_service(cluster: TestCluster) -> Lab {
    let mut lab = Lab::serving(cluster).await;
    lab.stop_controller().await;
    hold(&lab, true).await;
    vanish(&lab.cluster, "team-a/web").await;
    lab
}

async fn gives_an_address_within_twenty_seconds(cluster: TestCluster) {
    let _running = controller(&cluster).await;
    pool(&cluster, "edge", 10, 20).await;
    load_balancer(&cluster, "web", "").await;
    cluster.advance(Duration::from_secs(20)).await;
    assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
}

/// `web` has 192.0.2.30 of pool `b-second`; pool `a-first` has one address of its own.
async fn served_by_the_second_of_two_pools(cluster: &TestCluster) -> super::fixtures::Controller {
    let running = controller(cluster).await;
    pool(cluster, "a-first", 10, 10).await;
    pool(cluster, "b-second", 30, 30).await;
    load_balancer(cluster, "web", ", ipPool: b-second").await;
    cluster.settle().await;
    running
}

async fn orphan_goes_within_a_minute_of_the_right_to_delete_it(cluster: TestCluster) {
    let all = ["get", "list", "watch", "create", "update"];
    grant_on_services(&cluster, &all).await;
    let mut lab = Lab::serving(cluster).await;
    lab.stop_controller().await;
    lab.cluster
        .harvester
        .patch::<Service>("team-a/web", json!({"metadata": {"ownerReferences": null}}))
        .await;
    vanish(&lab.cluster, "team-a/web").await;
    lab.start_controller();
    lab.cluster.advance(A_WHILE * 4).await;
    assert!(lab.service().await.is_some());
    grant_on_services(&lab.cluster, &[&all[..], &["delete"]].concat()).await;
    lab.cluster.advance(Duration::from_secs(60)).await;
    assert!(lab.service().await.is_none());
    lab.until_gone().await;
}

test_cluster::component_tests! {
    // docs/contract/load-balancer.md#LB-10
    #[each_role]
    async fn a_service_keeps_its_type_until_it_is_gone_and_then_its_address_goes_back(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        hold(&lab, true).await;
        lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        lab.cluster.settle().await;
        let service = lab.service().await.unwrap();
        assert!(service.metadata.deletion_timestamp.is_some());
        assert_eq!(service.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));
        assert_eq!(service.metadata.annotations.unwrap_or_default().get("kube-vip.io/ignore"), None);
        assert_eq!(lab.slice().await.map_or(0, |slice| slice.endpoints.len()), 0, "nothing is reachable");
        assert_eq!(holder_of(&lab, ADDRESS).await.as_deref(), Some("team-a/web"));
        hold(&lab, false).await;
        lab.until_gone().await;
    }

    #[each_role]
    async fn an_object_made_again_waits_for_the_former_service_whatever_it_asks_for(cluster: TestCluster) {
        let mut lab = gone_before_its_service(cluster).await;
        pool(&lab.cluster, "core", 30, 40).await;
        let specs = [
            "workloadType: cluster",
            "workloadType: cluster, ipPool: core",
            "workloadType: cluster, ipam: dhcp",
            "workloadType: vm, ipPool: core, listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]",
            "workloadType: vm, ipam: dhcp, listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]",
        ];
        lab.start_controller();
        for spec in specs {
            lab.cluster.harvester.apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
                   metadata: {{name: web, namespace: team-a}}, spec: {{{spec}}}}}"
            )).await;
            lab.cluster.settle().await;
            assert_eq!(address_of(&lab.cluster, "web").await, "", "{spec}");
            assert_eq!(ready_of(&lab.cluster, "web").await.reason, "FormerServiceGoing", "{spec}");
            assert_eq!(holder_of(&lab, ADDRESS).await.as_deref(), Some("team-a/web"), "{spec}");
            lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
            lab.cluster.settle().await;
            assert!(lab.cluster.harvester.get::<LoadBalancer>("team-a/web").await.is_none(), "{spec}");
            assert_eq!(holder_of(&lab, ADDRESS).await.as_deref(), Some("team-a/web"), "{spec}");
        }
        load_balancer(&lab.cluster, "web", ", ipPool: core").await;
        lab.cluster.settle().await;
        hold(&lab, false).await;
        lab.cluster.settle().await;
        assert_eq!(address_of(&lab.cluster, "web").await, "192.0.2.30");
        assert_eq!(holder_of(&lab, ADDRESS).await, None);
        in_step(&lab.cluster).await;
    }

    #[simulated_only("the patience of the record garbage collector is half a minute")]
    async fn a_crash_after_the_finalizer_went_gives_the_address_back_when_the_service_is_gone(cluster: TestCluster) {
        let mut lab = gone_before_its_service(cluster).await;
        lab.start_controller();
        lab.cluster.advance(A_WHILE * 4).await;
        assert_eq!(holder_of(&lab, ADDRESS).await.as_deref(), Some("team-a/web"), "still announced");
        lab.stop_controller().await;
        hold(&lab, false).await;
        lab.cluster.settle().await;
        assert!(lab.service().await.is_none());
        lab.start_controller();
        lab.cluster.advance(Duration::from_secs(90)).await;
        assert_eq!(holder_of(&lab, ADDRESS).await, None);
    }

    #[simulated_only("the patience of the record garbage collector is half a minute")]
    async fn an_address_stays_held_while_a_service_shows_it_that_lost_our_label_and_owner(cluster: TestCluster) {
        let mut lab = Lab::serving(cluster).await;
        lab.stop_controller().await;
        let bare = json!({"metadata": {"labels": null, "ownerReferences": null}});
        lab.cluster.harvester.patch::<Service>("team-a/web", bare).await;
        vanish(&lab.cluster, "team-a/web").await;
        lab.start_controller();
        lab.cluster.advance(Duration::from_secs(300)).await;
        assert_eq!(holder_of(&lab, ADDRESS).await.as_deref(), Some("team-a/web"));
        lab.cluster.harvester.delete::<Service>("team-a/web").await;
        lab.cluster.advance(Duration::from_secs(90)).await;
        assert_eq!(holder_of(&lab, ADDRESS).await, None);
    }

    #[each_role]
    async fn a_release_by_hand_waits_until_nothing_can_announce_the_address_any_more(cluster: TestCluster) {
        let mut lab = Lab::serving(cluster).await;
        lab.stop_controller().await;
        // docs/contract/load-balancer.md#IP-13: no cache tells of it
        let bare = json!({"metadata": {"labels": null, "ownerReferences": null}});
        lab.cluster.harvester.patch::<Service>("team-a/web", bare).await;
        vanish(&lab.cluster, "team-a/web").await;
        lab.start_controller();
        let ask = json!({"metadata": {"annotations": {annotations::MANUALLY_RELEASE_IP: format!("{ADDRESS}: team-a/web")}}});
        lab.cluster.harvester.patch::<IPPool>("edge", ask.clone()).await;
        lab.cluster.settle().await;
        assert_eq!(holder_of(&lab, ADDRESS).await.as_deref(), Some("team-a/web"));
        let pool = lab.cluster.harvester.get::<IPPool>("edge").await.unwrap();
        let refusal = pool.metadata.annotations.unwrap_or_default()
            .remove("loadbalancer.harvesterhci.io/manual-release-refused").unwrap();
        assert!(refusal.ends_with("its Service names the address or shows it: delete Service team-a/web"), "{refusal}");

        lab.cluster.harvester.delete::<Service>("team-a/web").await;
        lab.cluster.harvester.patch::<IPPool>("edge", ask).await;
        lab.cluster.settle().await;
        assert_eq!(holder_of(&lab, ADDRESS).await, None);
    }

    async fn an_address_that_a_service_shows_is_given_to_nobody_though_its_pool_was_removed_by_force(cluster: TestCluster) {
        let mut lab = gone_before_its_service(cluster).await;
        lab.start_controller();
        lab.cluster.settle().await;
        lab.cluster.harvester.delete::<IPPool>("edge").await;
        lab.cluster.harvester.patch::<IPPool>("edge", json!({"metadata": {"finalizers": null}})).await;
        assert!(lab.cluster.harvester.get::<IPPool>("edge").await.is_none());
        lab.cluster.harvester.apply(&format!(
            "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: successor}},
              spec: {{ranges: [{{subnet: 203.0.113.0/24, rangeStart: {ADDRESS}, rangeEnd: {ADDRESS}}}],
                      selector: {{scope: [{{namespace: team-a, project: '*', guestCluster: '*'}}]}}}}}}"
        )).await;
        load_balancer(&lab.cluster, "api", "").await;
        lab.cluster.settle().await;
        assert_eq!(ready_of(&lab.cluster, "api").await.reason, "PoolExhausted");
        hold(&lab, false).await;
        lab.cluster.settle().await;
        assert!(lab.service().await.is_none());
        assert_eq!(address_of(&lab.cluster, "api").await, ADDRESS);
        in_step(&lab.cluster).await;
    }

    #[each_role]
    async fn an_orphaned_service_is_deleted_or_named_and_its_address_stays_held_until_then(cluster: TestCluster) {
        let mut lab = Lab::serving(cluster).await;
        lab.stop_controller().await;
        // as `kubectl delete --cascade=orphan` does
        lab.cluster.harvester.patch::<Service>("team-a/web", json!({"metadata": {"ownerReferences": null}})).await;
        vanish(&lab.cluster, "team-a/web").await;
        lab.start_controller();
        lab.cluster.settle().await;
        if lab.cluster.rights() == Rights::Existing {
            let service = lab.service().await.expect("our role may not delete it");
            assert_eq!(service.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));
            assert_eq!(holder_of(&lab, ADDRESS).await.as_deref(), Some("team-a/web"));
            let ready = condition::ready(&record_of(&lab.cluster, "edge").await.conditions).cloned().unwrap();
            assert_eq!(ready.status, ConditionStatus::True);
            assert!(ready.message.contains("203.0.113.2 by Service team-a/web; delete the Service"), "{}", ready.message);
            lab.cluster.harvester.delete::<Service>("team-a/web").await;
            lab.cluster.settle().await;
        }
        assert!(lab.service().await.is_none());
        let record = record_of(&lab.cluster, "edge").await;
        assert_eq!(record.allocated.len(), 0);
        assert_eq!(condition::ready(&record.conditions).unwrap().message, "");
    }

    // each write sends everybody's records
    #[simulated_only("little time passes between two writes of an object")]
    async fn a_service_that_loses_its_owner_again_and_again_has_a_large_pool_written_at_the_pace_of_its_namespace(
        cluster: TestCluster
    ) {
        let owned_by = |kind: &str| {
            let owner = json!({"apiVersion": "v1", "kind": kind, "name": "web", "uid": "u0"});
            json!({"metadata": {"finalizers": ["a/b"], "ownerReferences": [owner]}})
        };
        let mut lab = Lab::serving(cluster).await;
        lab.stop_controller().await;
        lab.cluster.harvester.patch::<Service>("team-a/web", owned_by("ConfigMap")).await;
        vanish(&lab.cluster, "team-a/web").await;
        let description = json!({"spec": {"description": "x".repeat(70_000)}});
        lab.cluster.harvester.patch::<IPPool>("edge", description).await;
        lab.start_controller();
        lab.cluster.advance(Duration::from_secs(60)).await;
        lab.cluster.harvester.forget_requests();
        for turn in 0..400 {
            let owner = owned_by(["LoadBalancer", "ConfigMap"][turn % 2]);
            lab.cluster.harvester.patch::<Service>("team-a/web", owner).await;
            lab.cluster.advance(Duration::from_millis(1)).await;
        }
        let is_pool = |request: &&Request| request.is_write() && request.resource() == "ippools";
        let puts = work(&lab.cluster).iter().filter(is_pool).count();
        assert!((150..=205).contains(&puts), "{puts}");
    }

    // an API server asks others about what its own roles do not grant, and they may be slow
    #[simulated_only("time passes at once")]
    async fn a_start_waits_some_seconds_for_slow_answers_about_rights_however_many_there_are(cluster: TestCluster) {
        faults(&cluster, "[{resource: selfsubjectaccessreviews, probability: 1, answer: delay=25s}]").await;
        gives_an_address_within_twenty_seconds(cluster).await;
    }

    // who is asked about rights is asked about each request that no role grants, too
    #[simulated_only("faults are the simulated server's")]
    async fn a_start_waits_for_no_list_of_nodes_that_never_comes(cluster: TestCluster) {
        faults(&cluster, "[{resource: selfsubjectaccessreviews, probability: 1, answer: delay=40s},
            {resource: nodes, probability: 1, answer: delay=40s}]").await;
        gives_an_address_within_twenty_seconds(cluster).await;
    }

    #[simulated_only("rights are asked for every half minute")]
    async fn a_right_that_is_granted_while_the_controller_runs_is_used_within_a_minute(cluster: TestCluster) {
        orphan_goes_within_a_minute_of_the_right_to_delete_it(cluster).await;
    }

    // only a DELETE that is tried tells that it is allowed again, and nothing had it tried
    #[simulated_only("rights are tried every half minute")]
    async fn a_right_that_comes_back_is_used_within_a_minute_also_where_nobody_answers_for_rights(cluster: TestCluster) {
        faults(&cluster, "[{resource: selfsubjectaccessreviews, probability: 1, answer: 403}]").await;
        orphan_goes_within_a_minute_of_the_right_to_delete_it(cluster).await;
    }

    async fn an_address_in_use_of_a_pool_that_was_removed_by_force_is_not_given_by_its_successor(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        // as the cloud controller manager does
        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"status": {"address": "192.0.2.10"}})).await;
        cluster.harvester.delete::<IPPool>("edge").await;
        cluster.settle().await;
        cluster.harvester.patch::<IPPool>("edge", json!({"metadata": {"finalizers": null}})).await;
        assert!(cluster.harvester.get::<IPPool>("edge").await.is_none());
        pool(&cluster, "successor", 10, 11).await;
        load_balancer(&cluster, "api", "").await;
        load_balancer(&cluster, "db", "").await;
        cluster.settle().await;
        let held = record_of(&cluster, "successor").await.allocated;
        assert_eq!(held.into_keys().collect::<Vec<_>>(), ["192.0.2.11"]);
        let waiting = [ready_of(&cluster, "api").await, ready_of(&cluster, "db").await];
        assert_eq!(waiting.iter().filter(|ready| ready.reason == "PoolExhausted").count(), 1);
    }

    async fn an_announced_address_that_is_released_goes_to_one_who_waits(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"status": {"address": "192.0.2.10"}})).await;
        load_balancer(&cluster, "api", "").await;
        cluster.settle().await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.10");
        in_step(&cluster).await;
    }

    async fn a_tenant_who_writes_an_allocated_address_blocks_nobody(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        load_balancer(&cluster, "web", ", ipPool: nowhere").await;
        cluster.settle().await;
        let forged = json!({"status": {"allocatedAddress": {"ipPool": "nowhere", "ip": "192.0.2.10"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", forged).await;
        pool(&cluster, "edge", 10, 10).await;
        load_balancer(&cluster, "api", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.10");
    }

    #[each_role]
    async fn a_service_that_a_tenant_wrote_blocks_no_address_whatever_it_claims_to_be(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        let owner = "ownerReferences: [{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, name: owned, uid: u1}], ";
        for (name, owner) in [("bare", ""), ("owned", owner)] {
            cluster.harvester.apply(&format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: team-a, {owner}
                     labels: {{loadbalancer.harvesterhci.io/servicelb: 'true'}}, finalizers: [example.com/hold],
                     annotations: {{kube-vip.io/loadbalancerIPs: '192.0.2.10,192.0.2.11'}}}},
                   spec: {{type: LoadBalancer, loadBalancerIP: 192.0.2.10, ports: [{{port: 80}}]}}}}"
            )).await;
        }
        let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10"}]}}});
        cluster.harvester.patch_status::<Service>("team-a/bare", shown).await;
        cluster.settle().await;
        pool(&cluster, "edge", 10, 11).await;
        load_balancer(&cluster, "api", "").await;
        load_balancer(&cluster, "db", "").await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
    }

    // after our finalizer went no controller corrects what a tenant writes
    async fn a_load_balancer_that_its_tenant_keeps_beyond_its_end_blocks_no_address(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
              metadata: {name: web, namespace: team-a, finalizers: [example.com/hold]},
              spec: {workloadType: vm, ipPool: nowhere, listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]}}",
        ).await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        let forged = json!({"status": {"allocatedAddress": {"ipPool": "nowhere", "ip": "192.0.2.10"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", forged).await;
        cluster.harvester.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: team-a, finalizers: [example.com/hold],
                labels: {loadbalancer.harvesterhci.io/servicelb: 'true'}},
              spec: {type: LoadBalancer, loadBalancerIP: 192.0.2.10, ports: [{port: 80}]}}",
        ).await;
        cluster.settle().await;
        pool(&cluster, "edge", 10, 10).await;
        load_balancer(&cluster, "api", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.10");
    }

    #[simulated_only("it lasts ten minutes")]
    async fn records_that_stay_without_load_balancer_cost_fewer_and_fewer_requests(cluster: TestCluster) {
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 120).await;
        let names: Vec<_> = (0..100).map(|n| format!("web-{n}")).collect();
        futures::future::join_all(names.iter().map(|name| load_balancer(&cluster, name, ""))).await;
        cluster.settle().await;
        running.stop().await;
        // without our label: no watch tells of them
        for name in &names {
            let ip = address_of(&cluster, name).await;
            cluster.harvester.apply(&format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: team-a}},
                   spec: {{type: LoadBalancer, loadBalancerIP: {ip}, ports: [{{port: 80}}]}}}}"
            )).await;
            vanish(&cluster, &format!("team-a/{name}")).await;
        }
        let _again = controller(&cluster).await;
        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_secs(600)).await;
        let gets = |resource: &str| work(&cluster).iter()
            .filter(|request| request.verb == "get" && request.resource() == resource).count();
        assert!(gets("ippools") <= 50, "{} reads of the pool", gets("ippools"));
        let first = gets("services");
        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_secs(3600)).await;
        assert!(gets("services") <= first, "{} in an hour, {first} in the first ten minutes", gets("services"));
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 100);
    }

    async fn of_pools_that_overlap_after_an_edit_none_gives_what_the_other_records(cluster: TestCluster) {
        let _running = served_by_the_second_of_two_pools(&cluster).await;
        pool(&cluster, "a-first", 30, 31).await;
        load_balancer(&cluster, "api", ", ipPool: a-first").await;
        load_balancer(&cluster, "db", ", ipPool: a-first").await;
        cluster.settle().await;
        let held = record_of(&cluster, "a-first").await.allocated;
        assert_eq!(held.into_keys().collect::<Vec<_>>(), ["192.0.2.31"]);
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30");
    }

    async fn an_address_that_one_pool_frees_goes_to_one_who_waits_for_another_pool_that_has_it(cluster: TestCluster) {
        let _running = served_by_the_second_of_two_pools(&cluster).await;
        pool(&cluster, "a-first", 30, 30).await;
        load_balancer(&cluster, "api", ", ipPool: a-first").await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "api").await.reason, "PoolExhausted");
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.30");
        in_step(&cluster).await;
    }

    // The cloud controller manager knows of it, tells it (VipStillAnnounced), and may write nothing into pools.
    async fn an_address_that_a_guest_cluster_goes_on_announcing_rests_as_others_do(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 10).await;
        cluster.harvester.patch::<IPPool>("edge", json!({"spec": {"quarantineSeconds": 86_400}})).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let announced = json!({"status": {"address": "192.0.2.10"}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", announced).await;
        cluster.settle().await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        load_balancer(&cluster, "next", "").await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
        assert_eq!(address_of(&cluster, "next").await, "");
        let edge = cluster.harvester.get::<IPPool>("edge").await.unwrap();
        let rests = edge.metadata.annotations.unwrap_or_default().remove(annotations::QUARANTINE);
        assert!(rests.unwrap().contains("\"192.0.2.10\":"));
    }
}
