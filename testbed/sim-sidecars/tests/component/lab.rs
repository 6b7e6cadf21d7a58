//! Both clusters, a Harvester with two VMs that are nodes of the guest, the driver's controller service, and the stand-ins.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use csi_driver::{
    attach::{self, Attacher},
    controller::{ControllerService, Settings},
    csi::controller_server::ControllerServer,
    host::Host,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, Resource, api::DeleteParams};
use program::{Clock, TaskGroup};
use serde::de::DeserializeOwned;
use sim_harvester::{
    Carrier, Lan, Options as Harvester, Release, SimHarvester, host_objects, settings::Dhcp,
};
use sim_sidecars::{Options, Pace, Plugin, Sidecars, kinds, machine};
use test_cluster::{TestCluster, User};
use tonic::service::Routes;
use tower::ServiceExt as _;

pub(crate) const NODES: [&str; 2] = ["node-1", "node-2"];

const CLASSES: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: harvester, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}
provisioner: driver.harvesterhci.io
reclaimPolicy: Delete
volumeBindingMode: Immediate
allowVolumeExpansion: true
";

fn vm(name: &str, cluster: &str) -> String {
    format!(
        "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}, namespace: team-a, labels: &labels {{guestcluster.harvesterhci.io/name: {cluster}}}}}
spec:
  runStrategy: Always
  template:
    metadata: {{labels: *labels}}
    spec:
      domain: {{devices: {{disks: [], interfaces: [{{name: default, bridge: {{}}}}]}}}}
      networks: [{{name: default, pod: {{}}}}]
      volumes: []
"
    )
}

/// Names of the calls that the driver got, in their order.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    /// The services with an ear before them.
    pub(crate) fn plugin(&self, routes: Routes) -> Plugin {
        let calls = self.0.clone();
        Plugin::of(tower::service_fn(move |request: http::Request<tonic::body::Body>| {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            calls.lock().unwrap().push(name);
            routes.clone().oneshot(request)
        }))
    }

    /// The calls since the last question. One that was made again at once is there once.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut calls = std::mem::take(&mut *self.0.lock().unwrap());
        calls.retain(|call| !["ControllerGetCapabilities", "ListVolumes"].contains(&call.as_str()));
        calls.dedup();
        calls
    }
}

pub(crate) struct Lab {
    pub(crate) guest: Client,
    pub(crate) sidecars: Sidecars,
    pub(crate) simulation: SimHarvester,
    pub(crate) calls: Calls,
}

impl Lab {
    pub(crate) async fn start(cluster: &TestCluster, tasks: &TaskGroup, pace: Pace, clock: Clock) -> Self {
        let (guest, harvester) = (cluster.guest.client(User::Driver), cluster.harvester.client(User::Driver));
        host_objects::apply(&harvester, "v1.8.0").await.unwrap();
        kinds::apply(&guest).await.unwrap();
        let file_system = machine::growing_file_system().unwrap_or("ext4");
        let parameters = format!("parameters: {{csi.storage.k8s.io/fstype: {file_system}}}\n");
        cluster.guest.apply(&format!("{CLASSES}{parameters}")).await;
        apply_snapshot_classes(&guest).await;
        cluster.harvester.apply("{apiVersion: v1, kind: Node, metadata: {name: host-1}}").await;
        let lease = |last| Ipv4Addr::new(127, 81, 0, last);
        let options = Harvester {
            harvester: harvester.clone(),
            guest: guest.clone(),
            cluster: cluster.guest_cluster().name.clone(),
            network: "198.18.248.0/24".parse().unwrap(),
            workloads: vec![],
            writes_slices: true,
            harvester_vip: Release::From12,
            guest_vip: Release::From12,
            carrier: Carrier::Memory,
            lan: Lan::memory(),
            dhcp: Dhcp { pool: (lease(100), lease(120)), lease_seconds: 600, silent: false },
            clock,
            seed: 7,
        };
        let simulation = SimHarvester::start(options, tasks);
        for name in NODES {
            cluster.harvester.apply(&vm(name, &cluster.guest_cluster().name)).await;
        }
        let host = Host::new(cluster.harvester.client(User::CsiDriver), "team-a");
        let attacher = Attacher::new(host.clone(), tasks, attach::Options::new("pod-a"));
        let service = ControllerService::new(host, Settings::default(), attacher);
        let calls = Calls::default();
        let controller = calls.plugin(Routes::new(ControllerServer::new(service)).prepare());
        let options = Options { guest: guest.clone(), controller, pace, clock };
        let lab = Self { sidecars: Sidecars::start(options, tasks), guest, simulation, calls };
        for name in NODES {
            let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(lab.guest.clone());
            until(&format!("node {name} to be ready"), || async {
                let status = nodes.get_opt(name).await.unwrap()?.status?;
                status
                    .conditions?
                    .iter()
                    .any(|one| one.type_ == "Ready" && one.status == "True")
                    .then_some(())
            })
            .await;
            // nobody initialises it here
            cluster
                .guest
                .patch::<k8s_openapi::api::core::v1::Node>(
                    name,
                    serde_json::json!({"spec": {"taints": null}}),
                )
                .await;
        }
        lab
    }

    pub(crate) async fn bound(&self, claim: &str) -> String {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.guest.clone(), "default");
        until(&format!("claim {claim} to be bound"), || async {
            let claim = claims.get_opt(claim).await.unwrap()?;
            claim.status?.phase.filter(|phase| phase == "Bound")?;
            claim.spec?.volume_name
        })
        .await
    }

    /// Waits for a pod whose volumes are mounted; its node and UID.
    pub(crate) async fn mounted(&self, pod: &str) -> (String, String) {
        let pods = Api::<Pod>::namespaced(self.guest.clone(), "default");
        until(&format!("pod {pod} to run"), || async {
            let pod = pods.get_opt(pod).await.unwrap()?;
            pod.status?.phase.filter(|phase| phase == "Running")?;
            Some((pod.spec?.node_name?, pod.metadata.uid?))
        })
        .await
    }

    /// Waits until the claim has this size.
    pub(crate) async fn has_size(&self, claim: &str, size: &str) {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.guest.clone(), "default");
        until(&format!("claim {claim} to have {size}"), || async {
            let status = claims.get(claim).await.unwrap().status?;
            (status.capacity?.get("storage")?.0 == size).then_some(())
        })
        .await;
    }

    pub(crate) async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let api = Api::<K>::namespaced(self.guest.clone(), "default");
        api.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    /// Waits until no object of a kind is left.
    pub(crate) async fn none<K>(&self)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api = Api::<K>::all(self.guest.clone());
        until(&format!("every {} to go", K::kind(&())), || async {
            api.list(&Default::default()).await.unwrap().items.is_empty().then_some(())
        })
        .await;
    }
}

async fn apply_snapshot_classes(guest: &Client) {
    use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
    let kind = ApiResource::from_gvk_with_plural(&kind, "volumesnapshotclasses");
    let api = Api::<DynamicObject>::all_with(guest.clone(), &kind);
    for (of, is_default) in [("snapshot", "true"), ("backup", "false")] {
        let class = serde_json::json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": format!("harvester-{of}"),
                "annotations": {"snapshot.storage.kubernetes.io/is-default-class": is_default}},
            "driver": "driver.harvesterhci.io", "deletionPolicy": "Delete", "parameters": {"type": of}});
        let class: DynamicObject = serde_json::from_value(class).unwrap();
        api.create(&PostParams::default(), &class).await.unwrap();
    }
}

/// Looks until there is something.
pub(crate) async fn until<T, L: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> L) -> T {
    for _ in 0..1_200 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited a minute for {what}");
}

pub(crate) fn claim(name: &str, size: &str, source: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, namespace: default}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: harvester
  resources: {{requests: {{storage: {size}}}}}
{source}"
    )
}

pub(crate) fn pod(name: &str, claim: &str, node: &str) -> String {
    let place = if node.is_empty() {
        String::new()
    } else {
        format!("nodeSelector: {{kubernetes.io/hostname: {node}}}, ")
    };
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec: {{{place}containers: [{{name: main, image: busybox}}],
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]}}"
    )
}

pub(crate) const SNAPSHOT: &str = "
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: before, namespace: default}
spec: {source: {persistentVolumeClaimName: data}}
";

/// One that goes to the host's backup target.
pub(crate) const BACKUP: &str = "
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: kept, namespace: default}
spec: {volumeSnapshotClassName: harvester-backup, source: {persistentVolumeClaimName: data}}
";

/// As `dataSource` of a claim.
pub(crate) const OF_SNAPSHOT: &str =
    "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before}\n";

/// As `dataSource` of a claim.
pub(crate) const OF_BACKUP: &str =
    "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: kept}\n";

pub(crate) fn root(folder: &Path, node: &str) -> std::path::PathBuf {
    folder.join("kubelet").join(node)
}
