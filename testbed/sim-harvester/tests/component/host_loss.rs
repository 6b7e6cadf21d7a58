//! A host of Harvester that falls silent, and what becomes of the VM that ran on it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use program::TaskGroup;
use serde_json::json;

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use test_cluster::{TestCluster, User};

use crate::{
    hotplug::vm,
    servers::{start, until},
};

const HOSTS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: host-1}}
---
{apiVersion: v1, kind: Node, metadata: {name: host-2}}
";

async fn says(cluster: &TestCluster, host: &str, ready: &str) {
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
    cluster.harvester.patch_status::<Node>(host, status).await;
    cluster.settle().await;
}

async fn instance(cluster: &TestCluster) -> VirtualMachineInstance {
    cluster.harvester.get("default/guest-1").await.unwrap()
}

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#node-lost
    #[simulated_only("virt-controller waits for five minutes")]
    async fn a_vm_of_a_host_that_is_lost_runs_elsewhere_five_minutes_later(cluster: TestCluster) {
        let (tasks, harvester) = (TaskGroup::new(), cluster.harvester.client(User::Driver));
        sim_harvester::crds::apply(&harvester).await.unwrap();
        let simulation = start(&cluster, &tasks);
        cluster.harvester.apply(HOSTS).await;
        for (name, strategy) in [("guest-1", "RerunOnFailure"), ("guest-2", "Always")] {
            cluster.harvester.apply(&vm(name).replace("Always", strategy)).await;
            until::<VirtualMachine>(&harvester, name, |vm| vm.status.as_ref().is_some_and(|status| status.ready)).await;
        }
        cluster.settle().await;
        let before = instance(&cluster).await;
        let lost = before.status.unwrap().node_name;
        let runs = || simulation.vms().into_iter().filter(|vm| vm.running.is_some()).count();
        assert_eq!(runs(), 2);
        says(&cluster, &lost, "Unknown").await;
        assert_eq!(runs(), 1, "nothing of the VM answers");
        assert_eq!(instance(&cluster).await.status.unwrap().phase, "Running", "nobody knows");
        // it comes back, and nothing has happened
        cluster.advance(Duration::from_secs(200)).await;
        says(&cluster, &lost, "True").await;
        assert_eq!(runs(), 2);
        says(&cluster, &lost, "Unknown").await;
        cluster.advance(Duration::from_secs(299)).await;
        assert_eq!(instance(&cluster).await.metadata.uid, before.metadata.uid);
        cluster.advance(Duration::from_secs(2)).await;
        cluster.settle().await;
        let after = instance(&cluster).await;
        assert_ne!(after.uid(), before.metadata.uid);
        let status = after.status.unwrap();
        assert_eq!(status.phase, "Running");
        assert_ne!(status.node_name, lost);
        assert_eq!(runs(), 2);
        tasks.end().await;
    }
}
