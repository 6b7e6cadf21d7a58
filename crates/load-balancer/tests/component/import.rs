//! The pools of Harvester before 1.2.

use std::time::Duration;

use harvester_api::{IPPool, annotations};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use test_cluster::{Request, TestCluster};

use super::fixtures::{address_of, controller, faults, granted, in_step, load_balancer, record_of, told};

const MAP: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: kubevip, namespace: kube-system},
    data: {cidr-default: 192.0.2.0/28, cidr-team-a: 192.0.2.200/29, range-team-a: 192.0.2.100-192.0.2.110,
           nodash: x, cidr-broken: '192.0.2.0/33, 198.51.100.0/28'}}";

async fn annotations_of(cluster: &TestCluster) -> std::collections::BTreeMap<String, String> {
    let map = cluster.harvester.get::<ConfigMap>("kube-system/kubevip").await.unwrap();
    map.metadata.annotations.unwrap_or_default()
}

test_cluster::component_tests! {
    async fn pools_of_the_old_config_map_serve_their_namespaces(cluster: TestCluster) {
        cluster.harvester.apply(MAP).await;
        cluster.harvester.apply(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: kubevip, namespace: team-a}, data: {kubevip-services:
               '{\"services\":[{\"vip\":\"192.0.2.105\",\"serviceName\":\"web\"},{\"vip\":\"192.0.2.201\",\"serviceName\":\"api\"}]}'}}",
        ).await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {name: api, namespace: team-a},
              spec: {workloadType: vm, listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]},
              status: {address: 192.0.2.201}}",
        ).await;
        let _running = controller(&cluster).await;
        let names: Vec<_> = cluster.harvester.list::<IPPool>().await.into_iter().filter_map(|pool| pool.metadata.name).collect();
        assert_eq!(names, ["broken", "default", "team-a"]);
        let found = annotations_of(&cluster).await;
        assert_eq!(found[annotations::AFTER_CONVERSION], "true");
        let report = &found[annotations::IMPORT_ERRORS];
        assert_eq!(report.lines().count(), 2, "{report}");
        assert!(report.contains("nodash") && report.contains("192.0.2.0/33"), "{report}");

        // each finds the address that it had, also the one that a range of today would not give out
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.201");
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.105");
        in_step(&cluster).await;
    }

    async fn an_address_that_two_namespaces_name_is_not_remembered_for_one_whose_tenant_writes_what_it_shows(
        cluster: TestCluster
    ) {
        cluster.harvester.apply(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: kubevip, namespace: kube-system},
              data: {cidr-global: 192.0.2.0/28}}",
        ).await;
        for (namespace, service) in [("team-a", "web"), ("default", "mine")] {
            cluster.harvester.apply(&format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: kubevip, namespace: {namespace}}}, data: {{kubevip-services:
                   '{{\"services\":[{{\"vip\":\"192.0.2.7\",\"serviceName\":\"{service}\"}}]}}'}}}}"
            )).await;
        }
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {name: mine, namespace: default},
              spec: {workloadType: cluster, ipam: dhcp}, status: {address: 192.0.2.7}}",
        ).await;
        let _running = controller(&cluster).await;
        assert_eq!(record_of(&cluster, "global").await.allocated_history.len(), 0);
        let report = annotations_of(&cluster).await[annotations::IMPORT_ERRORS].clone();
        assert!(report.contains("192.0.2.7 of default/mine and team-a/web"), "{report}");
    }

    async fn a_map_that_comes_later_is_imported_once(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        cluster.harvester.apply(MAP).await;
        cluster.settle().await;
        assert!(!address_of(&cluster, "web").await.is_empty(), "it waited for a pool");
        let before = record_of(&cluster, "default").await;
        let change = json!({"data": {"cidr-default": "203.0.113.0/24", "cidr-late": "203.0.113.0/28"}});
        cluster.harvester.patch::<ConfigMap>("kube-system/kubevip", change).await;
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "default").await, before);
        assert!(cluster.harvester.get::<IPPool>("late").await.is_none());
    }

    #[each_role]
    async fn who_edits_an_imported_map_is_told_once_which_pool_to_edit(cluster: TestCluster) {
        cluster.harvester.apply(MAP).await;
        let first = controller(&cluster).await;
        assert_eq!(told(&cluster, "EditHasNoEffect").await, 0);
        let edit = |range: &str| json!({"data": {"cidr-default": range, "cidr-late": "203.0.113.0/28"}});
        cluster.harvester.patch::<ConfigMap>("kube-system/kubevip", edit("203.0.113.128/25")).await;
        cluster.settle().await;
        assert_eq!(told(&cluster, "EditHasNoEffect").await, granted(&cluster, 1));
        // an annotation is no edit, and a restart tells nothing again
        let annotated = json!({"metadata": {"annotations": {"team": "a"}}});
        cluster.harvester.patch::<ConfigMap>("kube-system/kubevip", annotated).await;
        first.stop().await;
        let _second = controller(&cluster).await;
        assert_eq!(told(&cluster, "EditHasNoEffect").await, granted(&cluster, 1));
    }

    #[each_role]
    async fn an_edit_while_the_program_was_away_is_told(cluster: TestCluster) {
        cluster.harvester.apply(MAP).await;
        let first = controller(&cluster).await;
        first.stop().await;
        let edit = json!({"data": {"cidr-default": null}});
        cluster.harvester.patch::<ConfigMap>("kube-system/kubevip", edit).await;
        let _second = controller(&cluster).await;
        cluster.settle().await;
        assert_eq!(told(&cluster, "EditHasNoEffect").await, granted(&cluster, 1));
    }

    #[each_role]
    async fn a_pool_that_has_the_name_already_and_other_ranges_is_told(cluster: TestCluster) {
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: default},
              spec: {ranges: [{subnet: 203.0.113.0/24}],
                     selector: {scope: [{project: '*', namespace: default, guestCluster: '*'}]}}}",
        ).await;
        cluster.harvester.apply(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: kubevip, namespace: kube-system},
              data: {cidr-default: 192.0.2.0/28}}",
        ).await;
        let _running = controller(&cluster).await;
        let report = annotations_of(&cluster).await[annotations::IMPORT_ERRORS].clone();
        assert!(report.starts_with("pool default: there is an IPPool of this name already, without 192.0.2.1-"), "{report}");
        assert_eq!(told(&cluster, "ImportIncomplete").await, granted(&cluster, 1));
        let pool = cluster.harvester.get::<IPPool>("default").await.unwrap();
        assert_eq!(pool.spec.ranges[0].subnet, "203.0.113.0/24");
    }

    // docs/contract/load-balancer.md#IM-5
    async fn an_import_that_was_interrupted_is_finished(cluster: TestCluster) {
        cluster.harvester.apply(MAP).await;
        let first = controller(&cluster).await;
        first.stop().await;
        // it came after the pool had been made
        cluster.harvester.apply(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: kubevip, namespace: team-a}, data: {kubevip-services:
               '{\"services\":[{\"vip\":\"192.0.2.105\",\"serviceName\":\"web\"}]}'}}",
        ).await;
        let again = json!({"metadata": {"annotations": {annotations::AFTER_CONVERSION: null}}});
        cluster.harvester.patch::<ConfigMap>("kube-system/kubevip", again).await;
        cluster.harvester.patch::<IPPool>("default", json!({"metadata": {"finalizers": null}})).await;
        cluster.harvester.delete::<IPPool>("default").await;
        let _second = controller(&cluster).await;
        assert_eq!(cluster.harvester.list::<IPPool>().await.len(), 3);
        let report = annotations_of(&cluster).await[annotations::IMPORT_ERRORS].clone();
        assert_eq!(report.lines().count(), 2, "what is there already is no fault: {report}");
        assert_eq!(record_of(&cluster, "team-a").await.allocated_history["192.0.2.105"], "team-a/web");
    }

    // docs/contract/load-balancer.md#IM-4
    async fn an_import_lists_no_other_config_maps(cluster: TestCluster) {
        cluster.harvester.apply(MAP).await;
        cluster.harvester.forget_requests();
        let _running = controller(&cluster).await;
        let requests = cluster.harvester.requests().into_iter();
        let lists: Vec<_> = requests
            .filter(|request| request.user.ends_with("harvester-load-balancer") && request.resource() == "configmaps")
            .filter(|request| request.verb == "list" || request.verb == "watch")
            .collect();
        let named = |request: &Request| request.uri.contains("fieldSelector=metadata.name%3Dkubevip");
        assert!(lists.len() >= 2 && lists.iter().all(named), "{lists:#?}");
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_pool_that_cannot_be_written_keeps_no_history_from_the_others(cluster: TestCluster) {
        for (pool, namespace, subnet, service, ip) in [
            ("default", "default", "192.0.2.0/28", "web", "192.0.2.5"),
            ("team-a", "team-a", "192.0.2.64/28", "api", "192.0.2.70"),
        ] {
            cluster.harvester.apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: {pool}}},
                   spec: {{ranges: [{{subnet: {subnet}}}],
                          selector: {{scope: [{{project: '*', namespace: {namespace}, guestCluster: '*'}}]}}}}}}"
            )).await;
            cluster.harvester.apply(&format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: kubevip, namespace: {namespace}}}, data: {{kubevip-services:
                   '{{\"services\":[{{\"vip\":\"{ip}\",\"serviceName\":\"{service}\"}}]}}'}}}}"
            )).await;
        }
        cluster.harvester.apply(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: kubevip, namespace: kube-system},
              data: {cidr-default: 192.0.2.0/28, cidr-team-a: 192.0.2.64/28}}",
        ).await;
        faults(&cluster, "[{verb: update, resource: ippools, name: default, answer: 500}]").await;
        let _running = controller(&cluster).await;
        let known = |name: &'static str| {
            let cluster = &cluster;
            async move { record_of(cluster, name).await.allocated_history }
        };
        assert_eq!(known("team-a").await["192.0.2.70"], "team-a/api");
        assert_eq!(known("default").await.len(), 0);
        assert_eq!(annotations_of(&cluster).await.get(annotations::AFTER_CONVERSION), None);
        faults(&cluster, "[]").await;
        cluster.advance(Duration::from_secs(60)).await;
        assert_eq!(known("default").await["192.0.2.5"], "default/web");
        assert_eq!(annotations_of(&cluster).await[annotations::AFTER_CONVERSION], "true");
    }
}
