//! Virtual machines: old finalizers go, and with a removed guest cluster go its load balancers.

use harvester_api::{LoadBalancer, VirtualMachine, VirtualMachineInstance};
use serde_json::json;
use test_cluster::TestCluster;

use super::stage::{balancer, controller, in_step, pool};

test_cluster::component_tests! {
    async fn old_finalizers_are_taken_off_and_everything_else_stays(cluster: TestCluster) {
        let finalizers = "[wrangler.cattle.io/harvester-lb-vm-controller, other.io/keep]";
        cluster.harvester.apply(&format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine,
               metadata: {{name: blue-1, namespace: team-a, finalizers: {finalizers}}},
               spec: {{runStrategy: Always, template: {{spec: {{domain: {{devices: {{}}}}}}}}}}}}"
        )).await;
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance,
              metadata: {name: blue-1, namespace: team-a, finalizers: [wrangler.cattle.io/harvester-lb-vmi-controller]},
              spec: {domain: {devices: {}}}}",
        ).await;
        let _running = controller(&cluster).await;
        let vm = cluster.harvester.get::<VirtualMachine>("team-a/blue-1").await.unwrap();
        assert_eq!(vm.metadata.finalizers, Some(vec!["other.io/keep".to_owned()]));
        assert_eq!(vm.spec.rest["template"]["spec"]["domain"], json!({"devices": {}}));
        let vmi = cluster.harvester.get::<VirtualMachineInstance>("team-a/blue-1").await.unwrap();
        assert_eq!(vmi.metadata.finalizers.unwrap_or_default(), Vec::<String>::new());
        cluster.harvester.patch::<VirtualMachine>("team-a/blue-1", json!({"metadata": {"finalizers": null}})).await;
    }

    async fn with_a_removed_guest_cluster_its_load_balancers_go(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        balancer(&cluster, "web", "").await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
              metadata: {name: other, namespace: team-a, labels: {cloudprovider.harvesterhci.io/cluster: green}},
              spec: {workloadType: cluster}}",
        ).await;
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine,
              metadata: {name: blue-1, namespace: team-a,
                labels: {harvesterhci.io/creator: docker-machine-driver-harvester, guestcluster.harvesterhci.io/name: blue}},
              spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}}",
        ).await;
        cluster.settle().await;
        let mark = json!({"metadata": {"annotations": {"harvesterhci.io/removeAllPersistentVolumeClaims": "true"}}});
        cluster.harvester.patch::<VirtualMachine>("team-a/blue-1", mark).await;
        cluster.settle().await;
        assert_eq!(cluster.harvester.list::<LoadBalancer>().await.len(), 2);
        cluster.harvester.delete::<VirtualMachine>("team-a/blue-1").await;
        cluster.settle().await;
        let left: Vec<_> = cluster.harvester.list::<LoadBalancer>().await.into_iter().filter_map(|lb| lb.metadata.name).collect();
        assert_eq!(left, ["other"]);
        in_step(&cluster).await;
    }
}
