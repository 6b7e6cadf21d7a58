//! VMs on several networks.

use harvester_api::{LoadBalancer, VirtualMachineInstance, annotations, condition};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use test_cluster::{Rights, TestCluster};

use super::lab::Lab;

/// On the management network, on team-a/blue and on infra/red, which the agent tells in another order.
const VM: &str = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance,
    metadata: {name: api-1, namespace: team-a, labels: {tier: api}},
    spec: {domain: {devices: {}}, networks: [{name: default, pod: {}}, {name: one, multus: {networkName: blue}},
        {name: two, multus: {networkName: infra/red}}]},
    status: {interfaces: [{name: '', interfaceName: docker0, ipAddress: 172.17.0.1}, {name: two, ipAddress: 198.51.100.9},
        {name: one, ipAddress: 192.168.7.11}, {name: default, ipAddress: 10.52.0.9}]}}";

/// A load balancer of this VM that serves, and announces its address.
async fn serving(cluster: TestCluster) -> Lab {
    let lab = Lab::start(cluster).await;
    lab.cluster.harvester.apply(VM).await;
    lab.web("{}").await;
    lab.until_endpoints(&["10.52.0.9+"]).await;
    lab.announce().await;
    lab.cluster.settle().await;
    lab
}

async fn name_network(lab: &Lab, network: Value) {
    let patch = json!({"metadata": {"annotations": {(annotations::LB_NETWORK): network}}});
    lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", patch).await;
}

async fn report(lab: &Lab, interfaces: Value) {
    let patch = json!({"status": {"interfaces": interfaces}});
    lab.cluster.harvester.patch::<VirtualMachineInstance>("team-a/api-1", patch).await;
}

async fn told(lab: &Lab) -> (bool, String) {
    lab.cluster.settle().await;
    let ready = lab.ready().await.expect("it has a condition");
    (ready.status == harvester_api::ConditionStatus::True, ready.message)
}

fn good(message: &str) -> (bool, String) {
    (true, message.to_owned())
}

test_cluster::component_tests! {
    // docs/contract/load-balancer.md#EP-5
    async fn a_vm_on_several_networks_is_reached_on_the_one_that_the_load_balancer_names(cluster: TestCluster) {
        let lab = serving(cluster).await;
        assert_eq!(told(&lab).await, good("VM api-1 is reached on the management network"));
        name_network(&lab, "infra/red".into()).await;
        lab.until_endpoints(&["198.51.100.9+"]).await;
        assert_eq!(told(&lab).await, good("VM api-1 is reached on network infra/red"));
        name_network(&lab, "team-a/blue".into()).await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        assert_eq!(told(&lab).await, good("VM api-1 is reached on network team-a/blue"));
        // the VM loses that network's address, and has it again
        report(&lab, json!([{"name": "default", "ipAddress": "10.52.0.9"}])).await;
        lab.until_endpoints(&["10.52.0.9+"]).await;
        let instead = "VM api-1 is reached on the management network, without a usable address on network team-a/blue";
        assert_eq!(told(&lab).await, good(instead));
        report(&lab, json!([{"name": "default", "ipAddress": "10.52.0.9"}, {"name": "one", "ipAddress": "192.168.7.12"}])).await;
        lab.until_endpoints(&["192.168.7.12+"]).await;
        name_network(&lab, Value::Null).await;
        assert_eq!(told(&lab).await, good("VM api-1 is reached on network team-a/blue"));
        lab.until_endpoints(&["192.168.7.12+"]).await;
        lab.writes();
        lab.cluster.settle().await;
        assert_eq!(lab.writes(), [""; 0], "at rest nothing is written");
    }

    // docs/contract/addresses.md#8: only our role lists Nodes
    #[each_role]
    async fn an_address_that_a_node_has_in_the_network_of_its_pods_is_no_backends(cluster: TestCluster) {
        cluster.harvester.apply(
            "{apiVersion: v1, kind: Node, metadata: {name: host-1}, spec: {podCIDR: 10.52.0.0/24, podCIDRs: [10.52.0.0/24]}}",
        ).await;
        let lab = serving(cluster).await;
        for address in ["10.52.0.1", "10.52.0.0"] {
            report(&lab, json!([{"name": "default", "ipAddress": address}])).await;
            if lab.cluster.rights() == Rights::Existing {
                lab.until_endpoints(&[format!("{address}+").as_str()]).await;
                continue;
            }
            lab.until_endpoints(&["dummy+"]).await;
            lab.until_ready_says(&format!(
                "running backend servers have no IP; {address} of VM api-1 is the address of a Harvester node"
            )).await;
        }
    }

    // docs/contract/load-balancer.md#5.5
    async fn the_address_that_the_go_program_took_stays_the_vms_while_it_is_right(cluster: TestCluster) {
        let mut lab = serving(cluster).await;
        lab.stop_controller().await;
        let slice = lab.slice().await.expect("it serves");
        let uid = slice.endpoints[0].target_ref.as_ref().and_then(|target| target.uid.clone());
        let endpoint = json!({"addresses": ["198.51.100.9"], "conditions": {"ready": true},
            "targetRef": {"namespace": "team-a", "name": "api-1", "uid": uid}});
        lab.cluster.harvester.patch::<EndpointSlice>("team-a/web", json!({"endpoints": [endpoint]})).await;
        lab.start_controller();
        assert_eq!(told(&lab).await, good("VM api-1 is reached on network infra/red"));
        lab.until_endpoints(&["198.51.100.9+"]).await;
        let status = lab.load_balancer().await.status.unwrap();
        assert_eq!(status.backend_servers, ["198.51.100.9"]);
        assert!(condition::ready(&status.conditions).is_some());
    }
}
