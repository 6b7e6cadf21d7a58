//! The pools of Harvester's own pages, with their addresses and selectors (docs/contract/user-docs.md), and an Event that no other
//! test provokes (docs/reference/events.md).

use harvester_api::LoadBalancer;
use serde_json::json;
use test_cluster::{TestCluster, addresses::granted};

use super::{
    fixtures::{controller, in_step, told},
    lab::Lab,
};

/// A pool of the pages; ranges and selector in YAML.
async fn pool(cluster: &TestCluster, name: &str, ranges: &str, selector: &str) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: {name}}},
           spec: {{ranges: [{{{ranges}}}], selector: {{{selector}}}}}}}"
    );
    cluster.harvester.apply(&yaml).await;
    cluster.settle().await;
}

/// Makes a load balancer that asks as the webhook and the cloud controller manager write it, and says its pool and address.
async fn given(
    cluster: &TestCluster,
    name: &str,
    [project, namespace, guest, network]: [&str; 4],
) -> (String, String) {
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
           metadata: {{name: {name}, namespace: team-a, annotations: {{
             loadbalancer.harvesterhci.io/project: '{project}', loadbalancer.harvesterhci.io/namespace: '{namespace}',
             loadbalancer.harvesterhci.io/cluster: '{guest}', loadbalancer.harvesterhci.io/network: '{network}'}}}},
           spec: {{workloadType: cluster}}}}"
    );
    cluster.harvester.apply(&yaml).await;
    cluster.settle().await;
    let lb = cluster.harvester.get::<LoadBalancer>(&format!("team-a/{name}")).await.unwrap();
    let address = lb.status.unwrap_or_default().allocated_address.unwrap_or_default();
    (address.ip_pool, address.ip)
}

const DEFAULT: &str = "scope: [{project: '*', namespace: default, guestCluster: '*'}]";

fn is(pool: &str, address: &str) -> (String, String) {
    (pool.to_owned(), address.to_owned())
}

test_cluster::component_tests! {
    async fn the_four_pools_of_the_official_pages_serve_whom_they_say(cluster: TestCluster) {
        let controller = controller(&cluster).await;
        pool(&cluster, "default-ip-pool", "subnet: 192.168.100.0/24", DEFAULT).await;
        pool(&cluster, "rke2-ip-pool", "subnet: 192.168.10.0/24, rangeStart: 192.168.10.10, rangeEnd: 192.168.10.20",
            "network: default/vlan1, scope: [{project: product, namespace: default, guestCluster: rke2}]").await;
        pool(&cluster, "global-ip-pool", "subnet: 192.168.20.0/24",
            "scope: [{project: '*', namespace: '*', guestCluster: '*'}]").await;
        let ours = ["", "default", "", ""];
        // the first host is the gateway
        assert_eq!(given(&cluster, "a", ours).await, is("default-ip-pool", "192.168.100.2"));
        let of_rke2 = ["product", "default", "rke2", "default/vlan1"];
        assert_eq!(given(&cluster, "b", of_rke2).await, is("rke2-ip-pool", "192.168.10.10"));
        assert_eq!(given(&cluster, "c", ["", "elsewhere", "", ""]).await, is("global-ip-pool", "192.168.20.2"));
        // from the old pool to a new one: the higher priority wins, and who has an address keeps it
        pool(&cluster, "default-ip-pool-2", "subnet: 192.168.200.0/24", &format!("priority: 1, {DEFAULT}")).await;
        assert_eq!(given(&cluster, "d", ours).await, is("default-ip-pool-2", "192.168.200.2"));
        assert_eq!(given(&cluster, "a", ours).await, is("default-ip-pool", "192.168.100.2"));
        in_step(&cluster).await;
        controller.stop().await;
    }

    /// Its role may grant no Events.
    #[each_role]
    async fn an_object_with_more_than_a_hundred_listeners_is_told_once_and_serves(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let listener = |port: usize| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP", "backendPort": 8080});
        let many: Vec<_> = (1..=101).map(listener).collect();
        let many = json!({"spec": {"listeners": many}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", many).await;
        let told_to = "101 listeners: a load balancer has at most 100; spread them over several load balancers";
        lab.until_ready_says(told_to).await;
        assert_eq!(told(&lab.cluster, "TooManyListeners").await, granted(&lab.cluster, 1));
        lab.until_endpoints(&["192.168.7.11+"]).await;
    }
}
