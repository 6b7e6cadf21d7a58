//! A VM as the node driver makes it, on simulated and on real servers: its volumes, its Secret, a quota against it.

use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, ResourceQuota};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
    runtime::wait::{await_condition, conditions::is_deleted},
};
use serde_json::{Value, json};

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use program::TaskGroup;
use sim_harvester::{LonghornVolume, VolumeSnapshot};
use test_cluster::{TestCluster, User};

use crate::servers::{PATIENCE, start, until};

const GROUND: &str = "
{apiVersion: v1, kind: Node, metadata: {name: host-1, labels: {topology.kubernetes.io/zone: east}}}
---
apiVersion: harvesterhci.io/v1beta1
kind: VirtualMachineImage
metadata: {name: leap, namespace: default}
spec: {displayName: Leap, sourceType: download, url: 'https://images.example/leap.qcow2'}
";

const PLUGGED: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: plugged, namespace: default}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: longhorn-leap
  resources: {requests: {storage: 1Gi}}
";

/// Two disks, one of them plugged in while it runs, and user data in a Secret.
fn vm(name: &str) -> String {
    let root = json!([{"metadata": {"name": format!("{name}-disk-0"), "annotations": {"harvesterhci.io/imageId": "default/leap"}},
        "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "longhorn-leap",
            "resources": {"requests": {"storage": "40Gi"}}}}]);
    let claim = |name: &str, hot: bool| json!({"claimName": name, "hotpluggable": hot});
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": "default",
            "annotations": {"harvesterhci.io/volumeClaimTemplates": root.to_string()}},
        "spec": {"runStrategy": "RerunOnFailure", "template": {"spec": {
            "domain": {"resources": {"limits": {"cpu": "2", "memory": "4Gi"}}},
            "volumes": [
                {"name": "cloudinitdisk", "cloudInitNoCloud": {"secretRef": {"name": format!("{name}-cloudinit")}}},
                {"name": "disk-0", "persistentVolumeClaim": claim(&format!("{name}-disk-0"), false)},
                {"name": "disk-1", "persistentVolumeClaim": claim("plugged", true)}]}}}})
    .to_string()
}

fn secret(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-cloudinit"), "namespace": "default"},
        "stringData": {"userdata": "#cloud-config"}})
    .to_string()
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

fn printed(vm: &VirtualMachine) -> &str {
    vm.status.as_ref().map_or("", |status| &status.printable_status)
}

test_cluster::component_tests! {
    /// Claims come from the annotation and are bound; the Secret is waited for; named claims go with the VM, others stay.
    async fn a_vm_has_its_volumes_and_takes_those_named_with_it(cluster: TestCluster) {
        let harvester = cluster.harvester.client(User::Driver);
        sim_harvester::crds::apply(&harvester).await.unwrap();
        let tasks = TaskGroup::new();
        start(&cluster, &tasks);
        cluster.harvester.apply(GROUND).await;
        cluster.harvester.apply(PLUGGED).await;
        cluster.harvester.apply(&vm("demo-4")).await;

        until::<PersistentVolumeClaim>(&harvester, "demo-4-disk-0", |claim| phase(claim) == Some("Bound")).await;
        until::<PersistentVolumeClaim>(&harvester, "plugged", |claim| phase(claim) == Some("Bound")).await;
        until::<VirtualMachine>(&harvester, "demo-4", |vm| printed(vm) == "Starting").await;
        let waits = until::<VirtualMachineInstance>(&harvester, "demo-4", |_| true).await;
        assert_eq!(waits.status.unwrap().phase, "Scheduling");
        cluster.harvester.apply(&secret("demo-4")).await;
        until::<VirtualMachine>(&harvester, "demo-4", |vm| printed(vm) == "Running").await;

        let vms: Api<VirtualMachine> = Api::namespaced(harvester.clone(), "default");
        let named = json!({"metadata": {"annotations": {"harvesterhci.io/removedPersistentVolumeClaims": "demo-4-disk-0"}}});
        let vm = vms.patch("demo-4", &PatchParams::default(), &Patch::Merge(named)).await.unwrap();
        let how = DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..DeleteParams::default() };
        vms.delete("demo-4", &how).await.unwrap();
        let uid = vm.uid().unwrap();
        let gone = await_condition(vms.clone(), "demo-4", is_deleted(&uid));
        let gone = tokio::time::timeout(PATIENCE, gone).await;
        assert!(gone.is_ok(), "{:#?}", vms.get_opt("demo-4").await);
        cluster.settle().await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(harvester, "default");
        let left: Vec<_> = claims.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
        assert_eq!(left, ["plugged"]);
        tasks.end().await;
    }

    /// A snapshot becomes ready, and then a claim that was to be made of it is bound; so is one that is made of a claim.
    async fn a_volume_is_made_of_a_snapshot_and_of_another_volume(cluster: TestCluster) {
        let harvester = cluster.harvester.client(User::Driver);
        sim_harvester::crds::apply(&harvester).await.unwrap();
        sim_harvester::host_objects::apply(&harvester, "v1.8.0").await.unwrap();
        let tasks = TaskGroup::new();
        start(&cluster, &tasks);
        let claim = |name: &str, source: Value| {
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
                "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "harvester-longhorn", "dataSource": source,
                    "resources": {"requests": {"storage": "1Gi"}}}}).to_string()
        };
        let of_snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        cluster.harvester.apply(&claim("restored", of_snapshot)).await;
        cluster.harvester.apply(&claim("copy", json!({"kind": "PersistentVolumeClaim", "name": "a"}))).await;
        cluster.harvester.apply("{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot,
            metadata: {name: s, namespace: default},
            spec: {source: {persistentVolumeClaimName: a}, volumeSnapshotClassName: longhorn-snapshot}}").await;
        cluster.settle().await;
        assert_eq!(cluster.harvester.get::<VolumeSnapshot>("default/s").await.unwrap().status, None);
        cluster.harvester.apply(&claim("a", Value::Null)).await;
        until::<PersistentVolumeClaim>(&harvester, "copy", |claim| phase(claim) == Some("Bound")).await;
        let ready = |snapshot: &VolumeSnapshot| {
            snapshot.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
        };
        let snapshot = until::<VolumeSnapshot>(&harvester, "s", ready).await.status.unwrap();
        assert_eq!(snapshot.restore_size.as_deref(), Some("1Gi"));
        until::<PersistentVolumeClaim>(&harvester, "restored", |claim| phase(claim) == Some("Bound")).await;
        // Longhorn copies after it has told Kubernetes of the volume
        let name_of_volume = async |claim: &str| {
            let claim = cluster.harvester.get::<PersistentVolumeClaim>(&format!("default/{claim}")).await.unwrap();
            claim.spec.unwrap().volume_name.unwrap()
        };
        let volumes: Api<LonghornVolume> = Api::namespaced(harvester.clone(), "longhorn-system");
        for (name, source, state) in [("a", "", ""), ("copy", "vol://a", "completed"), ("restored", "snap://s", "completed")] {
            let is_filled = |volume: Option<&LonghornVolume>| {
                let status = volume.and_then(|volume| volume.status.clone()).unwrap_or_default();
                volume.is_some() && status.clone_status.state == state
            };
            let name = name_of_volume(name).await;
            let filled = await_condition(volumes.clone(), &name, is_filled);
            let volume = tokio::time::timeout(PATIENCE, filled).await.unwrap().unwrap().unwrap();
            assert_eq!((&*volume.spec.size, &*volume.spec.data_source), ("1073741824", source));
        }
        let its = volumes.get(&name_of_volume("copy").await).await.unwrap();
        cluster.harvester.delete::<PersistentVolumeClaim>("default/copy").await;
        let (name, uid) = (its.name_any(), its.metadata.uid.unwrap());
        let gone = await_condition(volumes.clone(), &name, is_deleted(&uid));
        assert!(tokio::time::timeout(PATIENCE, gone).await.is_ok());
        tasks.end().await;
    }

    /// The refusal stands on the VM, the VM is stopped, and the quota counts what runs.
    async fn a_vm_beyond_a_quota_is_stopped_and_says_why(cluster: TestCluster) {
        let harvester = cluster.harvester.client(User::Driver);
        sim_harvester::crds::apply(&harvester).await.unwrap();
        let tasks = TaskGroup::new();
        start(&cluster, &tasks);
        cluster.harvester.apply(GROUND).await;
        cluster.harvester.apply("{apiVersion: v1, kind: ResourceQuota, metadata: {name: small, namespace: default},
            spec: {hard: {limits.cpu: '3'}}}").await;
        cluster.harvester.apply(PLUGGED).await;
        for name in ["demo-4", "demo-5"] {
            cluster.harvester.apply(&secret(name)).await;
            cluster.harvester.apply(&vm(name)).await;
            until::<VirtualMachine>(&harvester, name, |vm| matches!(printed(vm), "Running" | "Stopped")).await;
        }
        let annotation = "harvesterhci.io/insufficient-resource-quota";
        let stopped = until::<VirtualMachine>(&harvester, "demo-5", |vm| vm.annotations().contains_key(annotation)).await;
        assert_eq!(stopped.spec.run_strategy, "Halted");
        let why = &stopped.annotations()[annotation];
        let part = "exceeded quota: small, requested: limits.cpu=2, used: limits.cpu=2, limited: limits.cpu=3";
        assert!(why.contains(part), "{why}");
        let used = |quota: &ResourceQuota| {
            Some(quota.status.as_ref()?.used.as_ref()?.get("limits.cpu")?.0.clone())
        };
        until::<ResourceQuota>(&harvester, "small", |quota| used(quota).as_deref() == Some("2")).await;
        cluster.settle().await;
        let events: Api<Event> = Api::namespaced(harvester, "default");
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let failed = events.iter().filter(|event| event.reason.as_deref() == Some("FailedCreate")).count();
        assert_eq!(failed, 1);
        tasks.end().await;
    }
}
