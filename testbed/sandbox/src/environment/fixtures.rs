//! The objects of a Harvester with a guest cluster: hosts in zones, and VMs that are the guest's nodes.

use anyhow::Result;
use harvester_api::{annotations, labels};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use program::Clock;
use serde_json::json;
use sim_apiserver::ApiServer;
use sim_harvester::{guest, host::HOSTNAME, subresources};

use super::Environment;
use crate::{
    manifests::{apply_one, plain},
    rancher::{self, Rancher},
};

/// Hosts of the Harvester cluster and their zones; more hosts than zones would hide whether labels follow.
const HOSTS: [(&str, &str); 3] = [("host-1", "zone-a"), ("host-2", "zone-b"), ("host-3", "zone-c")];
const REGION: &str = "lab";

/// Makes hosts of a Harvester of this release, what the node driver makes machines of, and `count` VMs that carry what the node driver writes on its machines.
pub(super) async fn hosts_and_vms(harvester: &Client, count: u8, version: &str) -> Result<()> {
    use k8s_openapi::api::core::v1::Node;
    let hosts = Api::<Node>::all(harvester.clone());
    for (name, zone) in HOSTS {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": {
            annotations::TOPOLOGY_REGION: REGION, annotations::TOPOLOGY_ZONE: zone, HOSTNAME: name}}}))?;
        hosts.create(&PostParams::default(), &node).await.map_err(plain)?;
        let mut status = guest::ready_status(&Clock::system().now_text());
        status["status"]["addresses"] = json!([{"type": "Hostname", "address": name}]);
        hosts.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.map_err(plain)?;
    }
    rancher::fixtures::apply(harvester, version).await?;
    for number in 1..=count {
        let name = format!("{}-{number}", crate::GUEST_CLUSTER);
        let labels = json!({labels::CREATOR: labels::NODE_DRIVER, labels::GUEST_CLUSTER: crate::GUEST_CLUSTER,
            labels::VM_NAME: name});
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": crate::VM_NAMESPACE, "labels": labels},
            "spec": {"runStrategy": "RerunOnFailure", "template": {"metadata": {"labels": labels}, "spec": {
                "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
                "networks": [{"name": "default", "pod": {}}]}}}});
        apply_one(harvester, &vm).await?;
    }
    Ok(())
}

/// `subresources.kubevirt.io` of the simulated server is the simulation's.
pub(super) fn serve_subresources(server: &ApiServer) {
    server.aggregate("subresources.kubevirt.io", subresources::router(server.client("admin")));
}

impl Environment {
    /// Rancher, with a credential of the Harvester cluster.
    ///
    /// # Errors
    /// When its folder cannot be made.
    pub(crate) fn rancher(&self) -> Result<Rancher> {
        let kubeconfig = self.clusters.harvester.kubeconfig_for_rancher();
        Rancher::new(&self.dir.run().join("rancher"), self.program.as_deref(), kubeconfig)
    }
}
