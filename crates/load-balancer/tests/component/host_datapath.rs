//! Tests of vm load balancers: from object to traffic and back.

use std::time::Duration;

use harvester_api::{IPPool, LoadBalancer, VirtualMachineInstance, condition, labels};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::ResourceExt as _;
use serde_json::json;
use test_cluster::{Rights, Side, TestCluster};

use super::fixtures::{address_of, controller, faults, load_balancer, pool, ready_of, record_of, work};
use super::lab::{A_WHILE, Lab};

/// Every second, one good answer, two bad ones.
const CHECK: &str =
    "{port: 8080, successThreshold: 1, failureThreshold: 2, periodSeconds: 1, timeoutSeconds: 1}";

/// The load balancer's role.
const ROLE: &str = "harvester-load-balancer";

async fn vm_load_balancer(cluster: &TestCluster, name: &str) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {{name: {name}, namespace: team-a}},
           spec: {{workloadType: vm, listeners: [{{name: http, port: 80, protocol: TCP, backendPort: 8080}}]}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

/// A single backend, probed each second.
async fn serving_one_backend(cluster: TestCluster) -> Lab {
    let lab = Lab::start(cluster).await;
    lab.vm("api-1", "api", "192.168.7.11").await;
    lab.web("{port: 8080, successThreshold: 1, failureThreshold: 1, periodSeconds: 1, timeoutSeconds: 1}")
        .await;
    lab.answer("192.168.7.11");
    lab.until_endpoints(&["192.168.7.11+"]).await;
    lab.announce().await;
    lab.until_ready_says("").await;
    lab.cluster.advance(A_WHILE).await;
    lab
}

test_cluster::component_tests! {
    async fn a_service_that_somebody_fills_keeps_all_that_it_has_when_its_ports_change(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let filling = json!({"metadata": {"annotations": {"example.com/large": "x".repeat(100_000)}}});
        lab.cluster.harvester.patch::<Service>("team-a/web", filling).await;
        lab.cluster.settle().await;
        let moved = json!([{"name": "http", "port": 81, "protocol": "TCP", "backendPort": 8080}]);
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"listeners": moved}})).await;
        lab.cluster.settle().await;
        let service = lab.service().await.unwrap();
        assert_eq!(service.annotations()["example.com/large"].len(), 100_000);
        assert_eq!(service.spec.unwrap().ports.unwrap()[0].port, 81);
        lab.writes();
        lab.cluster.settle().await;
        assert_eq!(lab.writes(), [""; 0], "nothing is left to write");
    }

    // docs/contract/load-balancer.md#LB-4, #LB-6, #LB-7
    #[each_role]
    async fn a_vm_load_balancer_comes_with_few_writes_and_goes_without_a_trace(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.vm("db-1", "db", "192.168.7.13").await;
        lab.cluster.settle().await;
        let before = lab.cluster.objects(Side::Harvester).await;
        lab.writes();

        lab.web("{}").await;
        lab.until_ready_says("service is waiting for external IP").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        lab.announce().await;
        lab.until_ready_says("").await;
        let status = lab.load_balancer().await.status.unwrap();
        assert_eq!(status.address, "203.0.113.2");
        assert_eq!(status.backend_servers, ["192.168.7.11", "192.168.7.12"]);
        let writes = lab.writes();
        let place = |what: &str| writes.iter().position(|write| write == what).unwrap_or_else(|| panic!("{writes:#?}"));
        // docs/contract/load-balancer.md#LB-1: in the Go program the slice comes when the address is announced, and
        // that never is
        assert!(place("create endpointslices 201") < place("create services 201"), "{writes:#?}");
        let count = |resource: &str| writes.iter().filter(|write| write.contains(resource)).count();
        assert_eq!((count("endpointslices"), count("services"), count("ippools")), (1, 1, 1), "{writes:#?}");
        assert!(count("loadbalancers") <= 3, "{writes:#?}");

        lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        lab.until_gone().await;
        assert_eq!(lab.cluster.objects(Side::Harvester).await, before);
        let pool = lab.cluster.harvester.get::<IPPool>("edge").await.unwrap();
        assert_eq!(pool.status.unwrap().allocated, Default::default());
        let writes = lab.writes();
        let deletes = writes.iter().filter(|write| *write == "delete services 200").count();
        assert_eq!(deletes, usize::from(lab.cluster.rights() == Rights::Ours), "{writes:#?}");
    }

    // docs/contract/load-balancer.md#PR-3
    async fn a_backend_serves_once_it_answered_and_no_longer_when_it_stopped(cluster: TestCluster) {
        let mut lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.web(CHECK).await;
        // docs/contract/load-balancer.md#EP-1: the dummy is there exactly while nobody is ready
        lab.until_endpoints(&["192.168.7.11-", "192.168.7.12-", "dummy+"]).await;
        lab.announce().await;
        lab.until_ready_says("running backend servers are not probed as healthy total:2, healthy:0").await;

        lab.answer("192.168.7.11");
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12-"]).await;
        lab.until_ready_says("").await;
        lab.answer("192.168.7.12");
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        lab.refuse("192.168.7.11");
        lab.until_endpoints(&["192.168.7.11-", "192.168.7.12+"]).await;

        // verdicts survive a restart: nobody loses or gains traffic by it
        lab.cluster.settle().await;
        lab.stop_controller().await;
        lab.writes();
        lab.start_controller();
        lab.cluster.settle().await;
        lab.until_endpoints(&["192.168.7.11-", "192.168.7.12+"]).await;
        assert!(!lab.writes().iter().any(|write| write.contains("endpointslices")));

        lab.refuse("192.168.7.12");
        lab.until_endpoints(&["192.168.7.11-", "192.168.7.12-", "dummy+"]).await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn questions_at_the_start_that_fail_are_asked_again(cluster: TestCluster) {
        faults(&cluster, "[{verb: list, resource: nodes, nth: 1, answer: 500},
            {verb: get, resource: customresourcedefinitions, nth: 1, answer: drop}]").await;
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.web(CHECK).await;
        lab.until_endpoints(&["192.168.7.11-", "dummy+"]).await;
        // a question that failed is asked again within half a minute
        lab.cluster.advance(A_WHILE * 2).await;
        assert_eq!(lab.load_balancer().await.status.unwrap().backends.len(), 1);
    }

    // with the existing role, which does not list Nodes, the load balancer did not begin to work
    #[simulated_only("rights are tried every half minute")]
    async fn where_nobody_answers_for_rights_nodes_count_within_a_minute_of_the_right_to_list_them(cluster: TestCluster) {
        faults(&cluster, "[{resource: selfsubjectaccessreviews, probability: 1, answer: 403}]").await;
        cluster.harvester.apply("{apiVersion: v1, kind: Node, metadata: {name: host-1}}").await;
        let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.168.7.11"}]}});
        cluster.harvester.patch_status::<Node>("host-1", addresses).await;
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.web("{}").await;
        if lab.cluster.rights() == Rights::Existing {
            lab.until_endpoints(&["192.168.7.11+"]).await;
            lab.cluster.advance(A_WHILE * 4).await;
            let mut rules = lab.cluster.harvester.get::<ClusterRole>(ROLE).await.unwrap().rules.unwrap();
            rules.push(serde_json::from_value(
                json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]})).unwrap());
            lab.cluster.harvester.patch::<ClusterRole>(ROLE, json!({"rules": rules})).await;
            lab.cluster.advance(A_WHILE * 2).await;
        }
        lab.until_endpoints(&["dummy+"]).await;
    }

    async fn that_we_cannot_dial_takes_nobodys_traffic_away(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.answer("192.168.7.11");
        lab.no_dial("192.168.7.12");
        lab.web(CHECK).await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12-"]).await;
        lab.no_dial("192.168.7.11");
        lab.until_dialled("192.168.7.11", 5).await;
        lab.until_dialled("192.168.7.12", 5).await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12-"]).await;
        let backends = lab.load_balancer().await.status.unwrap().backends;
        let errors: Vec<_> = backends.iter().map(|backend| (backend.ready, backend.last_error.as_str())).collect();
        assert_eq!(errors, [(true, ""), (false, "could not dial: no file descriptor is left")]);
        lab.refuse("192.168.7.11");
        lab.answer("192.168.7.12");
        lab.until_endpoints(&["192.168.7.11-", "192.168.7.12+"]).await;
    }

    async fn an_address_that_another_tenant_writes_in_a_status_takes_no_backend_away(cluster: TestCluster) {
        // docs/contract/addresses.md#8: a user with the credentials of a guest cluster may write status.address of its
        // objects
        let lab = Lab::serving(cluster).await;
        lab.cluster.harvester.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").await;
        for (namespace, address) in [("shop", "192.168.7.11"), ("team-a", "192.168.7.13")] {
            lab.cluster.harvester.apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
                   metadata: {{name: guest, namespace: {namespace}}}, spec: {{workloadType: cluster, ipam: dhcp}}}}"
            )).await;
            lab.cluster.settle().await;
            let lease = json!({"status": {"address": address}});
            lab.cluster.harvester.patch::<LoadBalancer>(&format!("{namespace}/guest"), lease).await;
        }
        lab.cluster.settle().await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        // within the namespace it counts: the nodes of a guest cluster report the addresses that they announce
        lab.vm("api-3", "api", "192.168.7.13").await;
        lab.vm("api-4", "api", "192.168.7.14").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+", "192.168.7.14+"]).await;
    }

    async fn a_vm_that_was_refused_for_the_address_of_a_load_balancer_serves_when_that_is_gone(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        lab.cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
              metadata: {name: guest, namespace: team-a}, spec: {workloadType: cluster, ipam: dhcp}}",
        ).await;
        lab.cluster.settle().await;
        let lease = |address: &str| json!({"status": {"address": address}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/guest", lease("192.168.7.11")).await;
        lab.until_endpoints(&["dummy+"]).await;
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/guest", lease("192.168.7.99")).await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/guest", lease("192.168.7.11")).await;
        lab.until_endpoints(&["dummy+"]).await;
        lab.cluster.harvester.delete::<LoadBalancer>("team-a/guest").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
    }

    #[each_role]
    async fn what_lost_our_label_gets_it_back(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let bare = || json!({"metadata": {"labels": {labels::SERVICE_LB: null}}});
        lab.cluster.harvester.patch::<EndpointSlice>("team-a/web", bare()).await;
        lab.cluster.harvester.patch::<Service>("team-a/web", bare()).await;
        lab.cluster.settle().await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        lab.cluster.settle().await;
        let (slice, service) = (lab.slice().await.unwrap(), lab.service().await.unwrap());
        assert_eq!(slice.labels()[labels::SERVICE_LB], "true");
        assert_eq!(service.labels()[labels::SERVICE_LB], "true");

        // while nobody looks, and the object goes with it
        let mut lab = lab;
        lab.stop_controller().await;
        lab.cluster.harvester.patch::<EndpointSlice>("team-a/web", bare()).await;
        lab.cluster.harvester.patch::<Service>("team-a/web", bare()).await;
        lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        lab.writes();
        lab.start_controller();
        lab.until_gone().await;
        let deletes = lab.writes().iter().filter(|write| *write == "delete services 200").count();
        assert_eq!(deletes, usize::from(lab.cluster.rights() == Rights::Ours));
    }

    async fn who_enters_or_leaves_the_selector_enters_or_leaves_the_slice(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.vm("api-2", "db", "192.168.7.12").await;
        lab.web("{}").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        // docs/contract/load-balancer.md#LB-17: in the Go program a VM that loses the label keeps its traffic
        lab.vm("api-1", "db", "192.168.7.11").await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.until_endpoints(&["192.168.7.12+"]).await;
        lab.vm("api-2", "api", "127.0.0.1").await;
        lab.until_endpoints(&["dummy+"]).await;
        lab.announce().await;
        lab.until_ready_says("running backend servers have no IP; 127.0.0.1 of VM api-2 is a loopback address").await;
        lab.cluster.harvester.delete::<VirtualMachineInstance>("team-a/api-2").await;
        lab.until_ready_says("no running backend servers").await;
    }

    async fn a_settled_load_balancer_costs_nothing_and_a_heartbeat_wakes_nobody(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        lab.cluster.settle().await;
        lab.cluster.harvester.forget_requests();
        let heartbeat = json!({"status": {"phase": "Running", "nodeName": "host-2"}});
        lab.cluster.harvester.patch::<VirtualMachineInstance>("team-a/api-1", heartbeat).await;
        lab.cluster.settle().await;
        assert_eq!(work(&lab.cluster), []);
    }

    async fn what_somebody_changes_by_hand_is_repaired_and_what_they_added_stays(cluster: TestCluster) {
        // docs/contract/load-balancer.md#LB-12: the Go program does not watch them
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.web("{}").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        let change = json!({"metadata": {"annotations": {"kube-vip.io/hwaddr": "00:00:6c:01:02:03"}},
            "spec": {"ports": [{"name": "http", "port": 81, "targetPort": 8080}]}});
        lab.cluster.harvester.patch::<Service>("team-a/web", change).await;
        lab.cluster.harvester.delete::<EndpointSlice>("team-a/web").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.cluster.settle().await;
        let service = lab.service().await.unwrap();
        assert_eq!(service.spec.unwrap().ports.unwrap()[0].port, 80);
        assert_eq!(service.metadata.annotations.unwrap()["kube-vip.io/hwaddr"], "00:00:6c:01:02:03");
        lab.cluster.harvester.delete::<Service>("team-a/web").await;
        lab.until_ready_says("service is waiting for external IP").await;
        assert!(lab.service().await.is_some());
    }

    async fn a_health_check_that_comes_or_goes_takes_nobodys_traffic_away(cluster: TestCluster) {
        // docs/contract/load-balancer.md#10.5
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.web("{}").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        lab.answer("192.168.7.11");
        lab.web(CHECK).await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12-"]).await;
        let backends = lab.load_balancer().await.status.unwrap().backends;
        let errors: Vec<_> = backends.iter().map(|backend| (backend.name.as_str(), backend.last_error.as_str())).collect();
        assert_eq!(errors, [("api-1", ""), ("api-2", "connection refused")]);
        lab.vm("api-3", "api", "192.168.7.13").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12-", "192.168.7.13-"]).await;
        lab.web("{port: 0}").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+", "192.168.7.13+"]).await;
    }

    #[simulated_only("counts writes by the clock")]
    async fn health_checks_that_flap_write_the_status_once_a_second(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        let address = |n: u8| format!("192.168.7.{n}");
        for n in 11..=30 {
            lab.vm(&format!("api-{n}"), "api", &address(n)).await;
            lab.answer(&address(n));
        }
        lab.web(CHECK).await;
        let all: Vec<_> = (11..=30).map(|n| format!("{}+", address(n))).collect();
        lab.until_endpoints(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;
        lab.announce().await;
        lab.until_ready_says("").await;
        lab.cluster.advance(A_WHILE).await;
        lab.writes();
        (12..=30).for_each(|n| lab.refuse(&address(n)));
        lab.cluster.advance(Duration::from_secs(5)).await;
        let writes = lab.writes();
        let count = |resource: &str| writes.iter().filter(|write| write.contains(resource)).count();
        assert!(count("endpointslices") > 5, "traffic follows each verdict at once: {writes:#?}");
        assert!(count("loadbalancers") <= 6, "{writes:#?}");
        let backends = lab.load_balancer().await.status.unwrap().backends;
        let good: Vec<_> = backends.iter().filter(|backend| backend.ready).map(|backend| &*backend.address).collect();
        assert_eq!(good, ["192.168.7.11"], "the last verdict is told as well");
    }

    async fn a_new_load_balancer_that_waits_for_an_address_asks_for_no_service(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        cluster.harvester.forget_requests();
        vm_load_balancer(&cluster, "api").await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "api").await.reason, "NoMatchingPool");
        let asked = work(&cluster).into_iter().filter(|request| request.verb == "get").map(|request| request.resource().to_string());
        assert_eq!(asked.collect::<Vec<_>>(), Vec::<String>::new());
    }

    #[simulated_only("waits for the look of a minute later")]
    async fn a_strangers_service_that_names_an_address_is_told_in_the_pool_and_its_end_is_noticed(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        let owner = "{apiVersion: v1, kind: ConfigMap, metadata: {name: owner, namespace: team-a}}";
        cluster.harvester.apply(owner).await;
        let uid = cluster.harvester.get::<ConfigMap>("team-a/owner").await.unwrap().metadata.uid.unwrap();
        for is_watched in [false, true] {
            load_balancer(&cluster, "web", "").await;
            cluster.settle().await;
            let address = address_of(&cluster, "web").await;
            let labels = if is_watched { "{loadbalancer.harvesterhci.io/servicelb: 'true'}" } else { "{}" };
            cluster.harvester.apply(&format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: team-a, labels: {labels},
                   annotations: {{kube-vip.io/loadbalancerIPs: {address}}},
                   ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]}},
                   spec: {{type: ClusterIP, ports: [{{port: 8080}}]}}}}"
            )).await;
            cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
            cluster.settle().await;
            let record = record_of(&cluster, "edge").await;
            assert_eq!(record.allocated.len(), 1, "kube-vip may still announce it");
            let told = condition::ready(&record.conditions).unwrap().message.clone();
            assert!(told.contains(&format!("{address} by Service team-a/web; delete the Service")), "{told}");

            cluster.harvester.forget_requests();
            cluster.advance(Duration::from_secs(300)).await;
            let looks = work(&cluster).into_iter().filter(|request| request.resource() == "services").count();
            assert_eq!(looks == 0, is_watched, "{looks} looks at the Service");
            cluster.harvester.delete::<Service>("team-a/web").await;
            if !is_watched {
                cluster.advance(Duration::from_secs(90)).await;
            }
            cluster.settle().await;
            let record = record_of(&cluster, "edge").await;
            assert_eq!(record.allocated.len(), 0);
            assert_eq!(condition::ready(&record.conditions).unwrap().message, "");
        }
    }

    async fn the_error_of_a_backend_is_the_newest_one(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.web(CHECK).await;
        lab.until_error("connection refused").await;
        lab.silence("192.168.7.11");
        lab.until_error("no answer within 1 s").await;
        lab.answer("192.168.7.11");
        lab.until_error("").await;
    }

    async fn a_path_makes_the_health_check_an_http_request_whose_status_is_told(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.status("192.168.7.11", 503);
        lab.web(&CHECK.replace('}', ", path: /healthz}")).await;
        lab.until_error("HTTP 503").await;
        lab.status("192.168.7.11", 404);
        lab.until_error("HTTP 404").await;
        lab.until_endpoints(&["192.168.7.11-", "dummy+"]).await;
        lab.answer("192.168.7.11");
        lab.until_error("").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
    }

    async fn a_path_that_makes_no_request_is_told_and_the_backends_are_probed_by_tcp(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.status("192.168.7.11", 503);
        lab.web(&CHECK.replace('}', r#", path: "/ HTTP/1.1\r\nX: y"}"#)).await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.announce().await;
        lab.cluster.settle().await;
        let ready = lab.ready().await.unwrap();
        assert_eq!(ready.status, harvester_api::ConditionStatus::True);
        assert!(ready.message.contains("healthCheck: path has a blank"), "{}", ready.message);
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_service_that_the_server_refuses_is_told_and_tried_again(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.cluster.settle().await;
        faults(&lab.cluster, "[{verb: create, resource: services, probability: 1, answer: 403}]").await;
        lab.web("{}").await;
        lab.cluster.settle().await;
        let ready = lab.ready().await.unwrap();
        assert_eq!(ready.reason, "ServiceRefused");
        assert!(ready.message.starts_with("the Service was refused, correct what the server says"), "{}", ready.message);
        faults(&lab.cluster, "[]").await;
        lab.cluster.advance(A_WHILE * 3).await;
        lab.until_ready_says("service is waiting for external IP").await;
    }

    async fn a_leased_address_is_followed_and_zero_is_none(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.web_with("{}", "dhcp").await;
        lab.until_ready_says("service is waiting for external IP").await;
        let spec = lab.service().await.unwrap().spec.unwrap();
        assert_eq!(spec.load_balancer_ip.as_deref(), Some("0.0.0.0"));
        lab.announce_as("0.0.0.0").await;
        lab.cluster.settle().await;
        assert_eq!(lab.load_balancer().await.status.unwrap().address, "");
        lab.announce_as("203.0.113.77").await;
        lab.until_ready_says("").await;
        assert_eq!(lab.load_balancer().await.status.unwrap().address, "203.0.113.77");
        // docs/contract/load-balancer.md#LB-13: in the Go program a new lease goes unseen
        lab.announce_as("203.0.113.78").await;
        lab.until_address("203.0.113.78").await;
        assert_eq!(lab.load_balancer().await.status.unwrap().allocated_address.unwrap().ip, "0.0.0.0");
    }

    async fn a_load_balancer_made_again_at_once_does_not_take_the_old_ones_service(cluster: TestCluster) {
        // docs/contract/load-balancer.md#LB-11
        let lab = Lab::serving(cluster).await;
        let old = lab.load_balancer().await.metadata.uid;
        lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        while lab.cluster.harvester.get::<LoadBalancer>("team-a/web").await.is_some() {
            tokio::task::yield_now().await;
        }
        lab.web("{}").await;
        lab.until_ready_says("service is waiting for external IP").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        let new = lab.load_balancer().await.metadata.uid;
        assert_ne!(new, old);
        let owners = lab.service().await.unwrap().metadata.owner_references.unwrap();
        assert_eq!(Some(&owners[0].uid), new.as_ref());
        lab.announce().await;
        lab.until_ready_says("").await;
    }

    #[simulated_only("counts writes by the clock")]
    async fn a_backend_that_flaps_each_second_writes_the_slice_twelve_times_a_minute(cluster: TestCluster) {
        let lab = serving_one_backend(cluster).await;
        lab.writes();
        lab.refuse("192.168.7.11");
        lab.cluster.advance(Duration::from_millis(2500)).await;
        assert_eq!(lab.endpoints().await, [("192.168.7.11".to_owned(), false), ("dummy".to_owned(), true)], "at once");
        for _ in 0..28 {
            lab.answer("192.168.7.11");
            lab.cluster.advance(Duration::from_secs(1)).await;
            lab.refuse("192.168.7.11");
            lab.cluster.advance(Duration::from_secs(1)).await;
        }
        let writes = lab.writes();
        let slices = writes.iter().filter(|write| write.contains("endpointslices")).count();
        assert!((5..=12).contains(&slices), "{slices}");
        lab.until_endpoints(&["192.168.7.11-", "dummy+"]).await;
    }

    #[simulated_only("a second after the slice was written")]
    async fn the_only_backend_gets_traffic_again_as_soon_as_it_answers(cluster: TestCluster) {
        let lab = serving_one_backend(cluster).await;
        lab.refuse("192.168.7.11");
        lab.cluster.advance(Duration::from_millis(1500)).await;
        assert_eq!(lab.endpoints().await, [("192.168.7.11".to_owned(), false), ("dummy".to_owned(), true)]);
        lab.answer("192.168.7.11");
        lab.cluster.advance(Duration::from_millis(1500)).await;
        assert_eq!(lab.endpoints().await, [("192.168.7.11".to_owned(), true)]);
        assert_eq!(lab.ready().await.unwrap().message, "");
    }

    #[simulated_only("waits for the look of a minute later")]
    async fn a_service_of_somebody_else_is_not_touched_and_named(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.cluster.harvester.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: team-a}, spec: {ports: [{port: 8080}]}}",
        ).await;
        let theirs = lab.service().await.unwrap();
        lab.web("{}").await;
        let message = "the Service team-a/web belongs to somebody else: delete or rename it, or give the load balancer another name";
        lab.until_ready_says(message).await;
        assert_eq!(lab.service().await.unwrap(), theirs);
        assert_eq!(lab.slice().await, None, "no endpoint gets into a stranger's Service");
        lab.cluster.harvester.forget_requests();
        for tier in ["db", "api", "db", "api"] {
            lab.vm("api-1", tier, "192.168.7.11").await;
            lab.cluster.settle().await;
        }
        let reads = work(&lab.cluster).into_iter().filter(|request| request.verb == "get").count();
        assert_eq!(reads, 0, "each change of a VM has the object looked at");
        lab.cluster.harvester.delete::<Service>("team-a/web").await;
        lab.cluster.advance(A_WHILE * 3).await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
    }

    #[simulated_only("waits for the look of a minute later")]
    async fn a_slice_of_somebody_else_is_not_touched_and_named_and_its_end_is_noticed(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        let stranger = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web, namespace: team-a},
            addressType: IPv4, endpoints: [], ports: []}";
        let message = "the EndpointSlice team-a/web belongs to somebody else: delete or rename it, or give the load balancer another name";
        // newer than everything that the watch has told, and older than that
        for another in [false, true] {
            lab.cluster.harvester.apply(stranger).await;
            let theirs = lab.slice().await.unwrap();
            if another {
                lab.cluster.harvester.apply(&stranger.replace(
                    "{name: web,", "{name: other, labels: {loadbalancer.harvesterhci.io/servicelb: 'true'},")).await;
                lab.cluster.settle().await;
            }
            lab.web("{}").await;
            lab.until_ready_says(message).await;
            assert_eq!(lab.slice().await.unwrap(), theirs);
            assert_eq!(lab.service().await, None);
            lab.cluster.harvester.delete::<EndpointSlice>("team-a/web").await;
            lab.cluster.advance(A_WHILE * 3).await;
            lab.until_endpoints(&["192.168.7.11+"]).await;
            lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
            lab.until_gone().await;
        }
    }
}
