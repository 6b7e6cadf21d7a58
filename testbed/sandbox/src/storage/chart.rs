//! What the driver's chart makes in a cluster besides its processes: the CSIDriver, and the workloads that they belong to. The
//! simulated controllers give these workloads a pod on every Node whose VM has an inside, and their status.

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::manifests::{self, plain};

/// Label of Nodes on which the driver runs: a VM that comes later has no inside.
const RUNS: &str = "sim.harvesterhci.io/csi-driver";

const OBJECTS: &str = "
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: driver.harvesterhci.io
spec:
  attachRequired: true
  podInfoOnMount: true
  fsGroupPolicy: ReadWriteOnceWithFSType
  volumeLifecycleModes: [Persistent]
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: harvester-csi-driver
  namespace: kube-system
  labels: {app.kubernetes.io/name: harvester-csi-driver}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: harvester-csi-driver, component: csi-driver}}
  template:
    metadata: {labels: {app.kubernetes.io/name: harvester-csi-driver, component: csi-driver}}
    spec:
      nodeSelector: {sim.harvesterhci.io/csi-driver: 'true'}
      containers:
      - {name: harvester-csi-driver, image: harvester-csi-driver, command: [harvester-csi-driver]}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: harvester-csi-driver-controllers
  namespace: kube-system
  labels: {app.kubernetes.io/name: harvester-csi-driver}
spec:
  replicas: 1
  selector: {matchLabels: {app.kubernetes.io/name: harvester-csi-driver, component: csi-controllers}}
  template:
    metadata: {labels: {app.kubernetes.io/name: harvester-csi-driver, component: csi-controllers}}
    spec:
      containers:
      - {name: harvester-csi-driver, image: harvester-csi-driver, command: [harvester-csi-driver]}
";

/// Applies them, where `nodes` are those on which the driver runs.
///
/// # Errors
/// When one is refused.
pub(super) async fn apply(guest: &Client, nodes: &[String]) -> Result<()> {
    let label = Patch::Merge(json!({"metadata": {"labels": {RUNS: "true"}}}));
    for node in nodes {
        let api = Api::<Node>::all(guest.clone());
        api.patch(node, &PatchParams::default(), &label).await.map_err(plain)?;
    }
    manifests::apply(guest, "the CSI driver's chart", OBJECTS).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csi_driver_is_the_one_of_the_chart() {
        let chart = include_str!("../../../../deploy/charts/harvester-csi-driver/templates/classes.yaml");
        let (_, ours) = OBJECTS.split_once("\nspec:\n").unwrap();
        let (ours, _) = ours.split_once("---").unwrap();
        assert!(chart.contains("\n  name: driver.harvesterhci.io\n"), "{chart}");
        assert!(chart.contains(&format!("\nspec:\n{ours}")), "{ours}");
    }

    #[test]
    fn the_daemon_set_runs_where_its_label_is() {
        assert!(OBJECTS.contains(&format!("nodeSelector: {{{RUNS}: 'true'}}")));
    }
}
