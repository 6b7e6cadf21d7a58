//! The guest of the rounds in which processes reconcile: VolumeAttachments of Pods, and what they name.

use controller_kit::Recorder;
use csi_driver::healing::{Parts, run};
use k8s_openapi::api::{
    core::v1::PersistentVolume,
    storage::v1::{CSINode, VolumeAttachment},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use program::{Clock, capabilities::Capabilities};
use serde_json::json;

use super::{
    bed::{Bed, MACHINES, VOLUME},
    process::Process,
};

const DRIVER: &str = "driver.harvesterhci.io";

impl Bed {
    pub(crate) async fn has_nodes_and_a_volume(&self) {
        let nodes: Api<CSINode> = Api::all(self.guest());
        for machine in MACHINES {
            let node = json!({"metadata": {"name": format!("node-{machine}")}, "spec": {"drivers":
                [{"name": DRIVER, "nodeID": machine, "topologyKeys": null}]}});
            nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        }
        let volumes: Api<PersistentVolume> = Api::all(self.guest());
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}, "csi": {"driver": DRIVER, "volumeHandle": VOLUME}}});
        volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    }

    fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.guest())
    }

    pub(crate) async fn wants(&self, machine: &str) {
        let attachment = json!({"metadata": {"name": format!("va-{machine}"), "finalizers": ["external-attacher/x"]},
            "spec": {"attacher": DRIVER, "nodeName": format!("node-{machine}"),
                "source": {"persistentVolumeName": "pv"}}});
        let attachment = serde_json::from_value(attachment).unwrap();
        self.attachments().create(&PostParams::default(), &attachment).await.unwrap();
    }

    pub(crate) async fn is_told_attached(&self, machine: &str) {
        let status = Patch::Merge(json!({"status": {"attached": true}}));
        let name = format!("va-{machine}");
        self.attachments().patch_status(&name, &PatchParams::default(), &status).await.unwrap();
    }

    pub(crate) async fn no_longer_wants(&self, machine: &str) {
        self.attachments().delete(&format!("va-{machine}"), &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn is_told_detached(&self, machine: &str) {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let name = format!("va-{machine}");
        self.attachments().patch(&name, &PatchParams::default(), &patch).await.unwrap();
    }
}

impl Process {
    /// It reconciles until the bed ends.
    pub(crate) fn reconcile(&self, bed: &Bed) {
        let tasks = bed.tasks.child();
        let recorder = Recorder::start(
            &tasks,
            bed.guest(),
            "harvester-csi-driver",
            Clock::system(),
            &Capabilities::assumed([]),
        );
        let parts = Parts { guest: self.guest.clone(), attacher: self.attacher.clone(), recorder };
        bed.tasks.spawn(async move { run(parts, &tasks).await });
    }
}
