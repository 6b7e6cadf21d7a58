//! The objects of a Harvester with a guest cluster: hosts in zones, and VMs that are the guest's nodes; and what it serves
//! besides objects.

use anyhow::Result;
use harvester_api::{annotations, labels};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_harvester::{
    admission::{self, Place},
    guest,
    host::HOSTNAME,
    subresources,
};

use super::Environment;
use crate::{
    clusters::{Cluster, aggregated},
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

/// Lets the simulation answer for `subresources.kubevirt.io` and, where `for_webhooks` is a client to look with, refuse what
/// KubeVirt and Harvester refuse of VMs and claims. It does so until `tasks` ends.
///
/// # Errors
/// When it cannot be served, or the API server refuses to be told.
pub(super) async fn serve(
    harvester: &Cluster,
    for_webhooks: Option<Client>,
    tasks: &TaskGroup,
) -> Result<()> {
    let Some(server) = harvester.simulated() else {
        return aggregated::serve(&harvester.admin, for_webhooks.as_ref(), tasks).await;
    };
    server.aggregate("subresources.kubevirt.io", subresources::router(server.client("admin")));
    if let Some(client) = for_webhooks {
        let (namespace, name) = admission::SERVICE;
        server.webhook(namespace, name, admission::router(client));
        admission::register(&harvester.admin, Place::Service).await.map_err(plain)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use harvester_api::VirtualMachine;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use kube::api::DeleteParams;
    use rstest::rstest;

    use super::*;
    use crate::{clusters::Clusters, folder::Folder, options::Options};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// The code of a refusal.
    fn refusal<T>(answer: kube::Result<T>) -> Option<u16> {
        match answer {
            Ok(_) => None,
            Err(kube::Error::Api(status)) => Some(status.code),
            Err(error) => panic!("{error}"),
        }
    }

    #[rstest]
    #[case::before_disks_grow_in_use("v1.5.2", Some(422))]
    #[case::today("v1.7.1", None)]
    #[tokio::test]
    async fn a_claim_that_a_vm_lists_is_not_deleted_and_grows_where_the_release_lets_it(
        #[case] release: &str,
        #[case] growth: Option<u16>,
    ) {
        let options = Line::parse_from(["sandbox", "--harvester-behaviour", release]).options;
        let (dir, tasks) = (Folder::take(None).unwrap(), TaskGroup::new());
        let clusters = Clusters::start(&options, &dir, &tasks).await.unwrap();
        let harvester = &clusters.harvester.admin;
        hosts_and_vms(harvester, 1, &options.harvester_behaviour.version).await.unwrap();
        let for_webhooks = clusters.harvester.client_for_webhooks().unwrap();
        serve(&clusters.harvester, Some(for_webhooks), &tasks).await.unwrap();
        let claims = Api::<PersistentVolumeClaim>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
        let vms = Api::<VirtualMachine>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
        let patching = PatchParams::default();
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteMany"],
            "volumeMode": "Block", "storageClassName": "harvester-longhorn",
            "resources": {"requests": {"storage": "1Gi"}}}});
        claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
        let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        claims.patch_status("data", &patching, &Patch::Merge(bound)).await.unwrap();
        let has_it = json!({"spec": {"template": {"spec": {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}}],
            "domain": {"devices": {"disks": [{"name": "data", "disk": {"bus": "scsi"}}]}}}}}});
        vms.patch("demo-1", &patching, &Patch::Merge(has_it)).await.unwrap();

        let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        assert_eq!(refusal(claims.patch("data", &patching, &Patch::Merge(larger)).await), growth);
        assert_eq!(refusal(claims.delete("data", &DeleteParams::default()).await), Some(409));
        assert!(claims.get("data").await.unwrap().metadata.deletion_timestamp.is_none());
        tasks.end().await;
    }
}
