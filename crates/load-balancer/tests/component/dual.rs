//! Load balancers with two addresses: docs/contract/addresses.md#9

use std::time::Duration;

use harvester_api::{ConditionStatus, IPPool, LoadBalancer, annotations};
use k8s_openapi::{
    api::discovery::v1::EndpointSlice,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};

use super::{
    fixtures::{Controller, controller, faults, in_step, pool, ready_of, record_of, status_of, work},
    lab::{A_WHILE, Lab},
};

const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

/// A pool of fd00:6::10 to fd00:6::20.
async fn ipv6_pool(cluster: &TestCluster, name: &str) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: {name}}},
           spec: {{ranges: [{{subnet: 'fd00:6::/64', rangeStart: 'fd00:6::10', rangeEnd: 'fd00:6::20'}}],
                  selector: {{scope: [{{project: '*', namespace: team-a, guestCluster: '*'}}]}}}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

/// As the cloud controller manager makes it for a Service of both families.
async fn asking(cluster: &TestCluster, name: &str, policy: &str) {
    let (families, key) = (annotations::IP_FAMILIES, annotations::IP_FAMILY_POLICY);
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
           metadata: {{name: {name}, namespace: team-a, annotations: {{{families}: 'IPv6,IPv4', {key}: {policy}}},
                       labels: {{cloudprovider.harvesterhci.io/cluster: blue}}}},
           spec: {{workloadType: cluster}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

async fn allocated(cluster: &TestCluster, name: &str) -> Value {
    serde_json::to_value(status_of(cluster, name).await.allocated_address).unwrap()
}

/// The holders in a pool, by address.
async fn holders(cluster: &TestCluster, pool: &str) -> Value {
    serde_json::to_value(record_of(cluster, pool).await.allocated).unwrap()
}

fn writes(cluster: &TestCluster) -> Vec<String> {
    let writes = work(cluster).into_iter().filter(|request| request.is_write());
    let writes = writes.map(|request| format!("{} {}", request.verb, request.resource())).collect();
    cluster.harvester.forget_requests();
    writes
}

fn both() -> Value {
    json!({"ipPool": "edge", "ip": "192.0.2.10", "mask": "255.255.255.0", "gateway": "192.0.2.1",
        "ipv6Pool": "six", "ipv6IP": "fd00:6::10", "ipv6Mask": "ffff:ffff:ffff:ffff::", "ipv6Gateway": "fd00:6::1"})
}

/// A load balancer of VMs with an IPv6 address, as the Go program gives one out of a pool of IPv6.
async fn vms_at_ipv6(cluster: &TestCluster) {
    ipv6_pool(cluster, "six").await;
    let record = json!({"status": {"total": 17, "available": 16, "lastAllocated": "fd00:6::15",
        "allocated": {"fd00:6::15": "team-a/vms"}}});
    cluster.harvester.patch::<IPPool>("six", record).await;
    let yaml = "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
        metadata: {name: vms, namespace: team-a, finalizers: [wrangler.cattle.io/harvester-lb-controller]},
        spec: {workloadType: vm, listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]},
        status: {allocatedAddress: {ipPool: six, ip: 'fd00:6::15'}, address: 'fd00:6::15'}}";
    cluster.harvester.apply(yaml).await;
}

/// The definition of load balancers before and after `change`, which gets what it says of a status in v1beta1.
async fn change_definition(cluster: &TestCluster, change: impl FnOnce(&mut Value)) -> [Value; 2] {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.harvester.client(User::Driver));
    let name = "loadbalancers.loadbalancer.harvesterhci.io";
    let mut definition = serde_json::to_value(definitions.get(name).await.unwrap()).unwrap();
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    let version = versions.iter_mut().find(|version| version["name"] == "v1beta1").unwrap();
    let status = version.pointer_mut("/schema/openAPIV3Schema/properties/status/properties").unwrap();
    let before = status.clone();
    change(status);
    let after = status.clone();
    let definition = serde_json::from_value(definition).unwrap();
    definitions.replace(name, &PostParams::default(), &definition).await.unwrap();
    cluster.settle().await;
    [before, after]
}

/// As Harvester ships it.
fn without_fields_of_ours(status: &mut Value) {
    let status = status.as_object_mut().unwrap();
    status.remove("backends");
    status.remove("addresses");
    let allocated = status["allocatedAddress"]["properties"].as_object_mut().unwrap();
    allocated.retain(|field, _| !field.starts_with("ipv6"));
}

async fn told(cluster: &TestCluster, name: &str) -> (ConditionStatus, String, String) {
    let ready = ready_of(cluster, name).await;
    (ready.status, ready.reason, ready.message)
}

test_cluster::component_tests! {
    // docs/contract/addresses.md#7
    #[simulated_only("the definition of a real server is that of all tests")]
    async fn where_the_crd_has_no_fields_the_condition_says_so_until_it_has_them(cluster: TestCluster) {
        let [with, without] = change_definition(&cluster, without_fields_of_ours).await;
        assert_ne!(with, without);
        let lab = Lab::start(cluster).await;
        ipv6_pool(&lab.cluster, "six").await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.web("{}").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.announce().await;
        asking(&lab.cluster, "required", REQUIRE).await;
        asking(&lab.cluster, "preferred", PREFER).await;
        lab.cluster.settle().await;
        let lacks =
            |field: &str| format!("the CRD of LoadBalancer objects has no field {field}, or may not be read: install that of this project");
        let served = |text: String| (ConditionStatus::True, "AddressAllocated".to_owned(), text);
        assert_eq!(told(&lab.cluster, "web").await, served(lacks("status.backends")));
        let no_second = lacks("status.allocatedAddress.ipv6IP");
        assert_eq!(
            told(&lab.cluster, "preferred").await,
            served(format!("only one of two families: {no_second}"))
        );
        let (status, reason, message) = told(&lab.cluster, "required").await;
        assert_eq!((status, reason.as_str()), (ConditionStatus::False, "DualStackNotSupported"));
        assert!(message.contains(&no_second), "{message}");
        lab.writes();
        lab.cluster.advance(A_WHILE).await;
        assert_eq!(lab.writes(), [""; 0], "what the server drops is not written for ever");

        // an earlier version of this project had no list of both addresses
        let add = |status: &mut Value| {
            *status = with.clone();
            status.as_object_mut().unwrap().remove("addresses");
        };
        change_definition(&lab.cluster, add).await;
        assert_eq!(told(&lab.cluster, "web").await, served(String::new()));
        let backends = status_of(&lab.cluster, "web").await.backends;
        assert_eq!(backends.iter().map(|backend| backend.name.as_str()).collect::<Vec<_>>(), ["api-1"]);
        for name in ["required", "preferred"] {
            assert_eq!(told(&lab.cluster, name).await, served(lacks("status.addresses")), "{name}");
            let status = status_of(&lab.cluster, name).await;
            assert!(status.allocated_address.unwrap().ipv6().is_some() && status.addresses.is_empty());
        }
        lab.writes();
        lab.cluster.advance(A_WHILE).await;
        assert_eq!(lab.writes(), [""; 0], "nor is this");

        change_definition(&lab.cluster, |status| *status = with.clone()).await;
        for name in ["required", "preferred"] {
            assert_eq!(told(&lab.cluster, name).await, served(String::new()), "{name}");
            let status = status_of(&lab.cluster, name).await;
            let has = status.allocated_address.unwrap();
            assert_eq!(status.addresses, [has.ipv6_ip, has.ip], "in the order of its families");
        }
    }

    // docs/contract/addresses.md#7, #9
    #[simulated_only("faults are the simulated server's")]
    async fn a_leader_that_reads_the_crd_at_the_second_try_takes_nothing_away_and_shows_no_half(cluster: TestCluster) {
        let mut lab = Lab::serving(cluster).await;
        let one = "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: six},
            spec: {ranges: [{subnet: 'fd00:6::10/128'}], selector: {scope: [{project: '*', namespace: team-a, guestCluster: '*'}]}}}";
        lab.cluster.harvester.apply(one).await;
        asking(&lab.cluster, "required", REQUIRE).await;
        lab.cluster.settle().await;
        asking(&lab.cluster, "waits", REQUIRE).await;
        lab.cluster.settle().await;
        let half = holders(&lab.cluster, "edge").await;
        assert!(half.as_object().unwrap().values().any(|holder| holder == "team-a/waits"), "{half}");
        let before = [told(&lab.cluster, "required").await, told(&lab.cluster, "waits").await, told(&lab.cluster, "web").await];
        assert_eq!((before[0].0, before[1].0), (ConditionStatus::True, ConditionStatus::False));
        lab.stop_controller().await;
        faults(&lab.cluster, "[{verb: get, resource: customresourcedefinitions,
            name: loadbalancers.loadbalancer.harvesterhci.io, nth: 1, answer: 503}]").await;
        lab.writes();
        lab.start_controller();
        lab.cluster.advance(A_WHILE * 2).await;
        let written = lab.writes().into_iter().filter(|write| write.contains("balancer")).collect::<Vec<_>>();
        assert_eq!(written, [""; 0]);
        assert_eq!([told(&lab.cluster, "required").await, told(&lab.cluster, "waits").await, told(&lab.cluster, "web").await], before);
        assert_eq!(allocated(&lab.cluster, "waits").await, Value::Null, "nothing is shown until both are recorded");
    }

    // docs/contract/load-balancer.md#IP-10: the Go program says that it is ready
    async fn a_load_balancer_of_vms_at_an_ipv6_address_says_that_nobody_is_reached_there(cluster: TestCluster) {
        vms_at_ipv6(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        let _running = controller(&cluster).await;
        let ready = ready_of(&cluster, "vms").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "IPFamilyNotSupported"));
        // one of IPv4 alone
        let begin = "nobody is reached at fd00:6::15: the server makes no Service of IPv6: ";
        assert!(ready.message.starts_with(begin), "{}", ready.message);
        assert_eq!(holders(&cluster, "six").await, json!({"fd00:6::15": "team-a/vms"}), "it stays");
        cluster.harvester.patch::<LoadBalancer>("team-a/vms", json!({"spec": {"ipPool": "edge"}})).await;
        cluster.settle().await;
        assert_eq!(allocated(&cluster, "vms").await["ip"], "192.0.2.10");
        assert_eq!(ready_of(&cluster, "vms").await.reason, "WaitingForExternalIP");
        let slice: EndpointSlice = cluster.harvester.get("team-a/vms").await.unwrap();
        assert_eq!(slice.address_type, "IPv4");
    }

    #[simulated_only("Harvester's real server has one family")]
    async fn a_load_balancer_of_vms_at_an_ipv6_address_is_served_where_the_cluster_has_ipv6(cluster: TestCluster) {
        let cluster = Box::pin(TestCluster::simulated_with_ipv6(cluster.rights())).await;
        let lab = Lab::start(cluster).await;
        ipv6_pool(&lab.cluster, "six").await;
        for (name, addresses) in [("api-1", "192.168.7.11, 'fd00:7::11', 'fe80::11'"), ("api-2", "192.168.7.12, 'fe80::12'")] {
            let yaml = format!(
                "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: {name}, namespace: team-a, labels: {{tier: api}}}},
                   spec: {{domain: {{devices: {{}}}}}}, status: {{interfaces: [{{name: vlan, ipAddresses: [{addresses}]}}]}}}}"
            );
            lab.cluster.harvester.apply(&yaml).await;
        }
        lab.answer("[fd00:7::11]");
        let yaml = format!(
            "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
               metadata: {{name: web, namespace: team-a, annotations: {{{}: IPv6}}}},
               spec: {{workloadType: vm, ipPool: six, backendServerSelector: {{tier: [api]}},
                      listeners: [{{name: http, port: 80, protocol: TCP, backendPort: 8080}}],
                      healthCheck: {{port: 8080, successThreshold: 1, failureThreshold: 2, periodSeconds: 1, timeoutSeconds: 1}}}}}}",
            annotations::IP_FAMILIES
        );
        lab.cluster.harvester.apply(&yaml).await;
        lab.until_endpoints(&["fd00:7::11+"]).await;
        lab.announce().await;
        lab.until_address("fd00:6::10").await;
        assert_eq!(lab.ready().await.unwrap().status, ConditionStatus::True);
        assert_eq!(lab.slice().await.unwrap().address_type, "IPv6");
        let families = lab.service().await.unwrap().spec.unwrap().ip_families.unwrap();
        assert_eq!((families, holders(&lab.cluster, "six").await), (vec!["IPv6".to_owned()], json!({"fd00:6::10": "team-a/web"})));
        let status = status_of(&lab.cluster, "web").await;
        let backends: Vec<_> = status.backends.iter().map(|it| (it.name.as_str(), it.ready, it.last_error.as_str())).collect();
        assert_eq!(backends[0], ("api-1", true, ""));
        assert!(backends[1].0 == "api-2" && !backends[1].1 && backends[1].2.contains("link-local"), "{backends:?}");
    }

    async fn two_pools_give_an_address_each_and_take_it_back(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        ipv6_pool(&cluster, "six").await;
        cluster.settle().await;
        cluster.harvester.forget_requests();
        asking(&cluster, "web", REQUIRE).await;
        cluster.settle().await;
        assert_eq!(writes(&cluster), ["update ippools", "update ippools", "update loadbalancers"]);
        assert_eq!(allocated(&cluster, "web").await, both());
        assert_eq!(status_of(&cluster, "web").await.addresses, ["fd00:6::10", "192.0.2.10"]);
        assert_eq!(ready_of(&cluster, "web").await.status, ConditionStatus::True);
        assert_eq!(holders(&cluster, "edge").await, json!({"192.0.2.10": "team-a/web"}));
        assert_eq!(holders(&cluster, "six").await, json!({"fd00:6::10": "team-a/web"}));
        in_step(&cluster).await;

        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert_eq!(holders(&cluster, "edge").await, json!({}));
        assert_eq!(holders(&cluster, "six").await, json!({}));
        // the same ones again after re-creation
        asking(&cluster, "other", PREFER).await;
        cluster.settle().await;
        asking(&cluster, "web", PREFER).await;
        cluster.settle().await;
        assert_eq!(allocated(&cluster, "web").await, both());
        in_step(&cluster).await;
    }

    async fn one_pool_of_both_families_gives_both(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        let ranges = json!({"spec": {"ranges": [
            {"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10", "rangeEnd": "192.0.2.20"},
            {"subnet": "fd00:6::/64", "rangeStart": "fd00:6::10", "rangeEnd": "fd00:6::20"}]}});
        cluster.harvester.patch::<IPPool>("edge", ranges).await;
        asking(&cluster, "web", REQUIRE).await;
        cluster.settle().await;
        let record = record_of(&cluster, "edge").await.allocated;
        assert_eq!(record.len(), 2, "{record:?}");
        assert!(record.values().all(|holder| holder == "team-a/web"), "{record:?}");
        in_step(&cluster).await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert_eq!(holders(&cluster, "edge").await, json!({}));
    }

    async fn who_prefers_two_is_served_with_one_and_gets_the_other_when_a_pool_comes(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        asking(&cluster, "web", PREFER).await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::True, "AddressAllocated"));
        assert!(ready.message.starts_with("no IPv6 address: no matched IPPool"), "{}", ready.message);
        assert_eq!(status_of(&cluster, "web").await.allocated_address.unwrap().ip, "192.0.2.10");
        cluster.harvester.forget_requests();
        cluster.settle().await;
        assert_eq!(work(&cluster), [], "waiting costs nothing");

        ipv6_pool(&cluster, "six").await;
        cluster.settle().await;
        assert_eq!(allocated(&cluster, "web").await, both());
        assert_eq!(ready_of(&cluster, "web").await.message, "");
        in_step(&cluster).await;
    }

    async fn who_requires_two_shows_none_until_both_are_there(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        asking(&cluster, "web", REQUIRE).await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "NoMatchingPool"));
        assert!(ready.message.starts_with("two addresses are required: no IPv6 address: "), "{}", ready.message);
        assert_eq!(allocated(&cluster, "web").await, Value::Null);
        assert_eq!(holders(&cluster, "edge").await, json!({"192.0.2.10": "team-a/web"}), "held");

        ipv6_pool(&cluster, "six").await;
        cluster.settle().await;
        assert_eq!(allocated(&cluster, "web").await, both());
        assert_eq!(ready_of(&cluster, "web").await.status, ConditionStatus::True);
        in_step(&cluster).await;

        // and what is held while the other is missing goes with the object
        let none = json!({"spec": {"ranges": [{"subnet": "fd00:6::/64", "rangeStart": "fd00:6::10", "rangeEnd": "fd00:6::10"}]}});
        cluster.harvester.patch::<IPPool>("six", none).await;
        asking(&cluster, "third", REQUIRE).await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "third").await.reason, "PoolExhausted");
        assert_eq!(holders(&cluster, "edge").await, json!({"192.0.2.10": "team-a/web", "192.0.2.11": "team-a/third"}));
        cluster.harvester.delete::<LoadBalancer>("team-a/third").await;
        cluster.settle().await;
        assert!(!record_of(&cluster, "edge").await.allocated.values().any(|holder| holder == "team-a/third"));
    }

    // a crash between the two claims
    async fn a_controller_that_starts_between_the_claims_goes_on_with_the_first_one(cluster: TestCluster) {
        let first = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        asking(&cluster, "web", REQUIRE).await;
        cluster.settle().await;
        first.stop().await;
        let record = holders(&cluster, "edge").await;
        assert_eq!(record, json!({"192.0.2.10": "team-a/web"}));
        ipv6_pool(&cluster, "six").await;
        let _second = Controller::start(&cluster, "two");
        cluster.settle().await;
        assert_eq!(holders(&cluster, "edge").await, record);
        assert_eq!(allocated(&cluster, "web").await, both());
        in_step(&cluster).await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_crash_at_any_write_of_two_claims_leaves_both_or_none(cluster: TestCluster) {
        pool(&cluster, "edge", 10, 40).await;
        ipv6_pool(&cluster, "six").await;
        for (index, rule) in [
            "{verb: update, resource: ippools, name: edge, answer: drop, when: before}",
            "{verb: update, resource: ippools, name: edge, answer: drop, when: after}",
            "{verb: update, resource: ippools, name: six, answer: drop, when: before}",
            "{verb: update, resource: ippools, name: six, answer: drop, when: after}",
            "{verb: update, resource: loadbalancers, answer: drop, when: before}",
            "{verb: update, resource: loadbalancers, answer: drop, when: after}",
        ].into_iter().enumerate() {
            let name = format!("web-{index}");
            let running = controller(&cluster).await;
            faults(&cluster, &format!("[{rule}]")).await;
            asking(&cluster, &name, REQUIRE).await;
            cluster.advance(Duration::from_secs(2)).await;
            drop(running);
            faults(&cluster, "[]").await;
            let shown = allocated(&cluster, &name).await;
            assert!(shown.is_null() || shown["ipv6IP"].is_string(), "{rule}: {shown}");
            let running = Controller::start(&cluster, &format!("next-{index}"));
            cluster.advance(Duration::from_secs(180)).await;
            let shown = allocated(&cluster, &name).await;
            for (pool, ip) in [("edge", &shown["ip"]), ("six", &shown["ipv6IP"])] {
                let own = holders(&cluster, pool).await;
                let own: Vec<_> = own.as_object().unwrap().iter().filter(|(_, holder)| **holder == format!("team-a/{name}")).map(|(ip, _)| ip.clone()).collect();
                assert_eq!(json!(own), json!([ip]), "{rule}: pool {pool}");
            }
            in_step(&cluster).await;
            running.stop().await;
        }
    }

    async fn an_erased_second_record_comes_back_and_one_that_another_has_is_replaced(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        ipv6_pool(&cluster, "six").await;
        asking(&cluster, "web", PREFER).await;
        cluster.settle().await;
        let shown = json!({"status": {"address": "192.0.2.10"}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", shown).await;
        let erase = |holder: Value| json!({"status": {"allocated": {"fd00:6::10": holder}}});
        cluster.harvester.patch::<IPPool>("six", erase(Value::Null)).await;
        cluster.settle().await;
        assert_eq!(allocated(&cluster, "web").await, both());
        in_step(&cluster).await;

        cluster.harvester.patch::<IPPool>("six", erase(json!("capi/machine-1"))).await;
        cluster.settle().await;
        let has = status_of(&cluster, "web").await.allocated_address.unwrap();
        assert_eq!((has.ip.as_str(), has.ipv6_ip.as_str()), ("192.0.2.10", "fd00:6::11"));
    }

    // docs/contract/addresses.md#1
    async fn nobody_else_gets_a_second_address_whose_pool_was_removed_by_force(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        ipv6_pool(&cluster, "six").await;
        asking(&cluster, "web", REQUIRE).await;
        cluster.settle().await;
        let shown = json!({"status": {"address": "192.0.2.10"}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", shown).await;
        cluster.settle().await;
        // the controller's finalizer would come back before
        cluster.harvester.delete::<IPPool>("six").await;
        cluster.harvester.patch::<IPPool>("six", json!({"metadata": {"finalizers": null}})).await;
        cluster.settle().await;
        ipv6_pool(&cluster, "heir").await;
        asking(&cluster, "other", REQUIRE).await;
        cluster.settle().await;
        assert_eq!(allocated(&cluster, "web").await, both());
        assert_eq!(status_of(&cluster, "other").await.allocated_address.unwrap().ipv6_ip, "fd00:6::11");
    }
}
