//! Copies of volumes in the backup target, and volumes that are made of them, on simulated and on real servers.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::Value;

use program::TaskGroup;
use sim_harvester::host_objects;
use test_cluster::{TestCluster, User};

use crate::{
    hotplug::{bound, claim},
    servers::{start, until},
};

const BACKUPS: &str = "
apiVersion: harvesterhci.io/v1beta1
kind: VolumeRemoteBackup
metadata: {name: copy, namespace: default}
spec: {type: lh, source: data}
---
apiVersion: harvesterhci.io/v1beta1
kind: VolumeRemoteBackup
metadata: {name: nowhere, namespace: default, annotations: {sim.harvesterhci.io/fails: there is no backup target}}
spec: {type: lh, source: data}
";

pub(crate) fn backup(name: &str, of: &str) -> String {
    format!(
        "{{apiVersion: harvesterhci.io/v1beta1, kind: VolumeRemoteBackup, \
         metadata: {{name: {name}, namespace: default}}, spec: {{type: lh, source: {of}}}}}"
    )
}

pub(crate) fn restore(name: &str, from: &str) -> String {
    format!(
        "{{apiVersion: harvesterhci.io/v1beta1, kind: VolumeRemoteRestore, \
         metadata: {{name: {name}, namespace: default}}, spec: {{type: lh, from: default/{from}}}}}"
    )
}

/// The status of a backup or a restore when its one condition says this.
pub(crate) async fn when(harvester: &Client, kind: &str, name: &str, says: &str) -> Value {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("harvesterhci.io", "v1beta1", kind));
    let api = Api::<DynamicObject>::namespaced_with(harvester.clone(), "default", &resource);
    let mut last = Value::Null;
    for _ in 0..300 {
        last = api.get(name).await.unwrap().data["status"].clone();
        if last["conditions"][0]["message"] == says {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("{kind} {name} is never so: {says}, but {last}");
}

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#restore
    async fn a_volume_is_copied_to_the_backup_target_and_made_anew_of_that(cluster: TestCluster) {
        let (tasks, harvester) = (TaskGroup::new(), cluster.harvester.client(User::Driver));
        sim_harvester::crds::apply(&harvester).await.unwrap();
        host_objects::apply(&harvester, "v1.8.0").await.unwrap();
        start(&cluster, &tasks);
        cluster.harvester.apply(&claim("data", host_objects::STORAGE_CLASS, "Block")).await;
        until::<PersistentVolumeClaim>(&harvester, "data", bound).await;
        cluster.harvester.apply(BACKUPS).await;
        let copy = when(&harvester, "VolumeRemoteBackup", "copy", "Operation complete").await;
        assert_eq!((&copy["success"], &copy["sourceSpec"]["resources"]["requests"]["storage"]), (&true.into(), &"1Gi".into()));
        let failed = when(&harvester, "VolumeRemoteBackup", "nowhere", "there is no backup target").await;
        assert_eq!(failed["success"], Value::Null);

        cluster.harvester.apply(&restore("again", "copy")).await;
        when(&harvester, "VolumeRemoteRestore", "again", "Operation complete").await;
        let made = until::<PersistentVolumeClaim>(&harvester, "again", bound).await;
        assert_eq!(made.owner_references()[0].kind, "VolumeRemoteRestore");
        cluster.harvester.apply(&restore("never", "nowhere")).await;
        let why = "source VolumeRemoteBackup default/nowhere has no handle";
        when(&harvester, "VolumeRemoteRestore", "never", why).await;
        tasks.end().await;
    }
}
