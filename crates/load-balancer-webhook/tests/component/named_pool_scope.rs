//! What load balancers say of themselves, and the pools that they name: docs/contract/load-balancer.md#S-3, #WH-11

use harvester_api::{annotations, labels};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use load_balancer_webhook::Policy;
use program::TaskGroup;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule};
use test_cluster::addresses::{address_of, create_pool};
use test_cluster::{Side, TestCluster, User};

use super::fixtures::{
    Controller, WRITER, http, load_balancers, object, policy, pools, reachable_with, refusal, unregister, web,
};

const PROJECT: &str = "c-m-abcde:p-12345";

/// `web`, as a tenant writes it.
fn saying(said: &Value, pool: &str) -> Value {
    let mut web = web(&http());
    web["metadata"]["annotations"] = said.clone();
    json_patch::merge(&mut web["spec"], &json!({"ipam": "pool", "ipPool": pool, "healthCheck": {}}));
    web
}

test_cluster::component_tests! {
    async fn a_tenant_gets_no_address_of_a_pool_of_others_by_saying_something_untrue(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let project = json!({"metadata": {"annotations": {(annotations::PROJECT_ID): PROJECT}}});
        cluster.harvester.patch::<Namespace>("team-a", project).await;
        create_pool(&cluster, "own", 10, 20).await;
        let scoped = [
            ("project", "c-m-abcde/p-12345", "*", 30),
            ("others", "c-m-abcde/p-99999", "*", 40),
            ("blue", "*", "blue", 50),
        ];
        for (name, project, of_cluster, first) in scoped {
            cluster.harvester.apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: {name}}},
                   spec: {{ranges: [{{subnet: 192.0.2.0/24, rangeStart: 192.0.2.{first}, rangeEnd: 192.0.2.{first}}}],
                          selector: {{priority: {first}, scope: [{{project: '{project}', namespace: '*', guestCluster: '{of_cluster}'}}]}}}}}}"
            )).await;
        }
        let strict = Policy { enforce_named_pool_scope: true, ..policy(WRITER) };
        reachable_with(&cluster, &tasks, strict).await;
        let _running = Controller::configured(&cluster, "one", true);
        cluster.settle().await;
        let driver = load_balancers(cluster.harvester.client(User::Driver));
        let post = PostParams::default();
        let claims = [
            (json!({annotations::LB_PROJECT: "c-m-abcde/p-99999"}), "", "but namespace team-a is in project"),
            (json!({annotations::LB_NETWORK: "team-b/vlan20"}), "", "no running VM of namespace team-a is on this network"),
            (json!({annotations::LB_CLUSTER: "prod"}), "", "no VM of namespace team-a belongs to that guest cluster"),
            (json!({}), "others", "pool others does not serve this load balancer"),
            // of a pool that it names it says nothing untrue either: the webhook says its project
            (json!({annotations::LB_PROJECT: "c-m-abcde/p-99999"}), "others", "pool others does not serve this load balancer"),
        ];
        // what the kubeconfig of a guest cluster may write, which may not label VMs
        for of in ["blue", "green"] {
            let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": format!("{of}-1"), "namespace": "default", "labels": {(labels::GUEST_CLUSTER): of}},
                "spec": {"running": false, "template": {"spec": {"domain": {"devices": {}}}}}});
            cluster.harvester.apply(&vm.to_string()).await;
        }
        cluster.settle().await;
        let of_cluster = |name: &str| {
            let mut said = saying(&json!({annotations::LB_CLUSTER: name}), "");
            said["spec"]["workloadType"] = "cluster".into();
            object(said)
        };
        // no pool is for green: what others write on their VMs takes nothing from whoever has that name
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        driver.create(&dry_run, &of_cluster("green")).await.unwrap();
        let (code, message) = refusal(driver.create(&post, &of_cluster("blue")).await);
        assert_eq!(code, 403, "{message}");
        assert!(message.contains("VMs of another namespace do, and an IPPool is for that cluster"), "{message}");
        for (said, pool, expected) in claims {
            let (code, message) = refusal(driver.create(&post, &object(saying(&said, pool))).await);
            assert_eq!(code, 403, "{message}");
            assert!(message.contains(expected), "{message}");
        }
        let made = driver.create(&post, &object(saying(&json!({}), "project"))).await.unwrap();
        assert_eq!(made.metadata.annotations.unwrap()[annotations::LB_PROJECT], "c-m-abcde/p-12345");
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30");
        // a pool that is taken away from the project takes nothing from who has its address
        let change = json!({"spec": {"selector": {"scope": [{"project": "c-m-abcde/p-99999", "namespace": "*", "guestCluster": "*"}], "priority": 35}}});
        let pools = pools(cluster.harvester.client(User::Driver));
        pools.patch("project", &Default::default(), &kube::api::Patch::Merge(change)).await.unwrap();
        cluster.settle().await;
        let described = kube::api::Patch::Merge(json!({"spec": {"description": "stands"}}));
        driver.patch("web", &Default::default(), &described).await.unwrap();
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30");
        tasks.end().await;
        unregister(&cluster).await;
        let none = json!({"metadata": {"annotations": {(annotations::PROJECT_ID): null}}});
        cluster.harvester.patch::<Namespace>("team-a", none).await;
    }

    #[simulated_only("the API server fails on purpose")]
    async fn a_claim_that_cannot_be_judged_yet_is_not_admitted(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let server = cluster.harvester.simulated().unwrap();
        let mut rule = Rule::new(Answer::Code(500));
        let webhook = User::Webhook.account(Side::Harvester, cluster.guest_cluster()).name.clone();
        (rule.user, rule.resource) = (Some(webhook), Some("virtualmachines".to_owned()));
        server.faults().add(rule);
        let strict = Policy { enforce_named_pool_scope: true, ..policy(WRITER) };
        reachable_with(&cluster, &tasks, strict).await;
        let driver = load_balancers(cluster.harvester.client(User::Driver));
        let post = PostParams::default();
        for said in [json!({annotations::LB_CLUSTER: "prod"}), json!({annotations::LB_NETWORK: "team-b/vlan20"})] {
            let (code, message) = refusal(driver.create(&post, &object(saying(&said, ""))).await);
            assert_eq!(code, 500, "{message}");
            assert!(message.contains("are not listed yet: try again"), "{message}");
        }
        // who claims neither goes on
        driver.create(&post, &object(saying(&json!({annotations::LB_NETWORK: "vlan10"}), ""))).await.unwrap();
        tasks.end().await;
        unregister(&cluster).await;
    }
}
