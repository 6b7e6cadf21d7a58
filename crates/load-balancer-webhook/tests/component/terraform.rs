//! The objects of the published Terraform samples, `tests/terraform`, as Harvester's provider sends them: it writes protocols in
//! capitals, whatever the sample says.

use harvester_api::{IPPool, LoadBalancer};
use kube::api::PostParams;
use program::TaskGroup;
use serde_json::{Value, from_str, json};
use test_cluster::{TestCluster, User};

use super::fixtures::{WRITER, controller, load_balancers, object, pools, reachable, unregister};

const POOL: &str = include_str!("../../../../tests/terraform/ippool.json");
const BALANCER: &str = include_str!("../../../../tests/terraform/loadbalancer.json");

/// The network of the sample.
const NETWORK: &str = "
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: vm-network, namespace: default, labels: {network.harvesterhci.io/vlan-id: '100'}}
spec: {config: '{}'}
";

/// All of `part` is in `whole` as it was sent; the server and the webhook may have added to it.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| holds(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| holds(whole, part))
        }
        _ => whole == part,
    }
}

test_cluster::component_tests! {
    async fn the_pool_and_the_load_balancer_of_the_terraform_sample_are_taken_and_get_an_address(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let _running = controller(&cluster).await;
        cluster.harvester.apply(NETWORK).await;
        let driver = cluster.harvester.client(User::Driver);
        let (pool, balancer): (Value, Value) = (from_str(POOL).unwrap(), from_str(BALANCER).unwrap());
        let post = PostParams::default();
        let made = pools(driver.clone()).create(&post, &object(pool.clone())).await.unwrap();
        assert!(holds(&made.data["spec"], &pool["spec"]), "{}", made.data);
        let made = load_balancers(driver).create(&post, &object(balancer.clone())).await.unwrap();
        assert!(holds(&made.data["spec"], &balancer["spec"]), "{}", made.data);
        cluster.settle().await;
        let given = cluster.harvester.get::<LoadBalancer>("team-a/service-loadbalancer").await.unwrap();
        let status = serde_json::to_value(given.status).unwrap();
        assert_eq!(status["allocatedAddress"]["ipPool"], "service-ips", "{status}");
        let pool = cluster.harvester.get::<IPPool>("service-ips").await.unwrap();
        let record = serde_json::to_value(pool.status.unwrap().allocated).unwrap();
        let address = status["allocatedAddress"]["ip"].as_str().unwrap();
        // the subnet of the sample is the address of a host in it
        assert!(address.starts_with("192.168.1."), "{address}");
        assert_eq!(record, json!({address: "team-a/service-loadbalancer"}));
        tasks.end().await;
        unregister(&cluster).await;
    }
}
