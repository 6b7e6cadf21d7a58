//! Two controllers that both believe to lead (`--leader-elect=false` twice): what keeps them apart are the versions of pools
//! and objects alone.

use std::collections::BTreeSet;

use futures::future::join_all;
use harvester_api::LoadBalancer;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use test_cluster::{Side, TestCluster};

use super::fixtures::{Controller, address_of, in_step, load_balancer, pool, record_of};

/// As many are made and deleted, five times over.
const AT_ONCE: usize = 40;
const ROUNDS: usize = 5;

/// One of ten is for VMs, so that both write its Service and its slice.
async fn make(cluster: &TestCluster, number: usize, name: &str) {
    if !number.is_multiple_of(10) {
        return load_balancer(cluster, name, "").await;
    }
    let yaml = format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {{name: {name}, namespace: team-a}},
           spec: {{workloadType: vm, listeners: [{{name: http, port: 80, protocol: TCP, backendPort: 8080}}],
                  backendServerSelector: {{tier: [api]}}}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

test_cluster::component_tests! {
    #[each_role]
    async fn two_that_both_believe_to_lead_give_each_its_own_address_and_keep_none(cluster: TestCluster) {
        let _both = ["one", "two"].map(|name| Controller::without_election(&cluster, name));
        pool(&cluster, "edge", 10, 200).await;
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: api-1, namespace: team-a, labels: {tier: api}},
              spec: {domain: {devices: {}}}, status: {interfaces: [{name: vlan, ipAddress: 192.168.7.11}]}}",
        ).await;
        cluster.settle().await;
        let before = cluster.objects(Side::Harvester).await;
        for round in 0..ROUNDS {
            let names: Vec<_> = (0..AT_ONCE).map(|n| format!("web-{round}-{n}")).collect();
            join_all(names.iter().enumerate().map(|(number, name)| make(&cluster, number, name))).await;
            cluster.settle().await;
            in_step(&cluster).await;
            let slices = cluster.harvester.list::<EndpointSlice>().await.into_iter();
            let of_vms = slices.filter(|slice| slice.name_any().starts_with(&format!("web-{round}-")));
            assert_eq!(of_vms.filter(|slice| slice.endpoints.len() == 1).count(), AT_ONCE / 10);
            let addresses = join_all(names.iter().map(|name| address_of(&cluster, name))).await;
            let addresses: BTreeSet<_> = addresses.into_iter().collect();
            assert_eq!((addresses.len(), addresses.contains("")), (AT_ONCE, false));
            // half of them go while the next ones come
            let keys: Vec<_> = names.iter().map(|name| format!("team-a/{name}")).collect();
            let (first, rest) = keys.split_at(AT_ONCE / 2);
            join_all(first.iter().map(|key| cluster.harvester.delete::<LoadBalancer>(key))).await;
            cluster.settle().await;
            in_step(&cluster).await;
            join_all(rest.iter().map(|key| cluster.harvester.delete::<LoadBalancer>(key))).await;
        }
        cluster.settle().await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
        assert_eq!(cluster.objects(Side::Harvester).await, before);
    }
}
