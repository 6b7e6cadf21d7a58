//! A driver with the rights of its account, one with all rights that prepares and cleans up, and each call of CSI.

use std::{collections::HashMap, sync::Arc, time::Duration};

use csi_driver::{
    attach::{Attacher, Options as Attaching},
    controller::{ControllerService, Settings},
    csi::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest,
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateSnapshotRequest,
        CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, GetSnapshotRequest,
        ListSnapshotsRequest, ListVolumesRequest, VolumeCapability, VolumeContentSource,
        controller_server::Controller,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
        volume_content_source::{SnapshotSource, Type, VolumeSource},
    },
    host::{Host, kinds::NetworkFilesystem, missing::Missing},
};
use futures::FutureExt as _;
use harvester_api::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};
use kube::{Client, client::Body};
use program::{Clock, TaskGroup, pod::OwnPod};
use serde_json::json;
use sim_harvester::{HotPlug, admission, host_objects, subresources};
use test_cluster::{TestCluster, User};
use tonic::{Code, Request, Status};

use crate::support;

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
const MACHINE: &str = "vm-1";
const VM: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm-1, namespace: team-a}
spec:
  runStrategy: Always
  template:
    spec:
      domain: {devices: {disks: [], interfaces: [{name: default, bridge: {}}]}}
      networks: [{name: default, pod: {}}]
      volumes: []
---
apiVersion: v1
kind: Node
metadata: {name: host-1}
";
/// Volumes and snapshots that are there all the time.
const VOLUME: &str = "kept";
const SNAPSHOT: &str = "kept-snapshot";
const EXPORT: &str = "kept-export";
const BACKUP: &str = "backup:team-a/kept-backup";
/// What a call makes or deletes.
const NAME: &str = "of-this-call";

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Create,
    /// Of no class, with a file system: the host's default class decides.
    CreateOnDefault,
    CreateExport,
    Restore,
    RestoreBackup,
    Clone,
    Delete,
    DeleteExport,
    DeleteRestored,
    Publish,
    PublishExport,
    Unpublish,
    UnpublishExport,
    Expand,
    Get,
    List,
    Snapshot,
    Backup,
    DeleteSnapshot,
    DeleteBackup,
    GetSnapshot,
    GetBackup,
    ListSnapshots,
}

impl Call {
    pub(crate) const ALL: [Self; 23] = [
        Self::Create,
        Self::CreateOnDefault,
        Self::CreateExport,
        Self::Restore,
        Self::RestoreBackup,
        Self::Clone,
        Self::Delete,
        Self::DeleteExport,
        Self::DeleteRestored,
        Self::Publish,
        Self::PublishExport,
        Self::Unpublish,
        Self::UnpublishExport,
        Self::Expand,
        Self::Get,
        Self::List,
        Self::Snapshot,
        Self::Backup,
        Self::DeleteSnapshot,
        Self::DeleteBackup,
        Self::GetSnapshot,
        Self::GetBackup,
        Self::ListSnapshots,
    ];
}

pub(crate) struct Bed<'a> {
    cluster: &'a TestCluster,
    pub(crate) tasks: TaskGroup,
    whole: ControllerService,
    grown: std::sync::atomic::AtomicI64,
}

/// A process of the driver.
pub(crate) fn process(cluster: &TestCluster, client: Client, tasks: &TaskGroup) -> ControllerService {
    process_called("pod-a", cluster, client, tasks)
}

pub(crate) fn process_called(
    holder: &str,
    cluster: &TestCluster,
    client: Client,
    tasks: &TaskGroup,
) -> ControllerService {
    let pod =
        OwnPod { namespace: "kube-system".to_owned(), name: "csi-0".to_owned(), uid: Some("u".to_owned()) };
    let clock = Clock::starting_at(cluster.start());
    let missing = Missing::new(tasks, cluster.guest.client(User::CsiDriver), clock, Some(pod));
    let namespace = &*cluster.guest_cluster().vm_namespace;
    let host = Host::new(missing.observe(client, namespace), namespace);
    let attaching = Attaching { users: Arc::new(|_| async { Ok(vec![]) }.boxed()), ..Attaching::new(holder) };
    ControllerService::new(host.clone(), Settings::default(), Attacher::new(host, tasks, attaching))
}

/// All rights but one that only newer releases of Harvester can do anything with: to change a VirtualMachine.
fn as_of(version: &str, cluster: &TestCluster) -> Client {
    let (all, nobody) = (cluster.harvester.client(User::Driver), cluster.harvester.client(User::Nobody));
    let may_patch = matches!(HotPlug::of_harvester(version), Some(HotPlug::Declarative));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let is_patch =
            request.method() == http::Method::PATCH && request.uri().path().contains("/virtualmachines/");
        let client = if is_patch && !may_patch { nobody.clone() } else { all.clone() };
        async move { client.send(request).await.map_err(tower::BoxError::from) }
    });
    Client::new(service, "default")
}

impl<'a> Bed<'a> {
    /// With a Harvester of this version behind the servers, and what is there all the time.
    pub(crate) async fn start(cluster: &'a TestCluster, version: &str) -> Self {
        let bed = Self::empty(cluster, version).await;
        cluster.harvester.apply(VM).await;
        bed.prepare().await;
        bed
    }

    /// Without any machine or volume.
    pub(crate) async fn empty(cluster: &'a TestCluster, version: &str) -> Self {
        let (tasks, harvester) = (TaskGroup::new(), cluster.harvester.client(User::Driver));
        host_objects::apply(&harvester, version).await.unwrap();
        if let Some(server) = cluster.harvester.simulated() {
            server.aggregate("subresources.kubevirt.io", subresources::router(harvester.clone()));
            server.webhook(admission::SERVICE.0, admission::SERVICE.1, admission::router(harvester.clone()));
            admission::register(&harvester, admission::Place::Service).await.unwrap();
        }
        support::start_behind(cluster, 81, &tasks);
        let whole = process(cluster, as_of(version, cluster), &tasks);
        Self { cluster, tasks, whole, grown: (GIB / MIB).into() }
    }

    async fn prepare(&self) {
        let runs = async || {
            let vmi = self.cluster.harvester.get::<VirtualMachineInstance>("team-a/vm-1").await;
            vmi.and_then(|vmi| vmi.status).is_some_and(|status| status.phase == "Running")
        };
        self.until("the machine runs", runs).await;
        self.create(&self.whole, VOLUME, Mode::SingleNodeWriter, None).await.unwrap();
        self.ready_snapshot(SNAPSHOT).await;
        self.exported(EXPORT).await;
        self.back_up(&self.whole, "kept-backup").await.unwrap();
    }

    pub(crate) async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        for _ in 0..600 {
            if is_so().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("{what}: not in two minutes");
    }

    async fn ready_snapshot(&self, name: &str) {
        let ready = async || {
            let taken = self.snapshot(&self.whole, name, false).await.unwrap();
            taken.into_inner().snapshot.unwrap().ready_to_use
        };
        self.until("the snapshot is ready", ready).await;
    }

    /// A volume for many nodes whose export is ready when it is switched on, and is switched on.
    async fn exported(&self, name: &str) {
        self.create(&self.whole, name, Mode::MultiNodeMultiWriter, None).await.unwrap();
        let claim =
            self.cluster.harvester.get::<PersistentVolumeClaim>(&format!("team-a/{name}")).await.unwrap();
        let key = format!("harvester-system/{}", claim.spec.unwrap().volume_name.unwrap());
        let ready = json!({"status": {"state": "Enabled", "status": "Ready", "endpoint": "10.0.0.9"}});
        self.cluster.harvester.patch_status::<NetworkFilesystem>(&key, ready).await;
    }

    async fn back_up(&self, service: &ControllerService, name: &str) -> Result<(), Status> {
        self.snapshot(service, name, true).await.map(drop)
    }

    async fn restore_backup(&self, service: &ControllerService, name: &str) -> Result<(), Status> {
        let from = Type::Snapshot(SnapshotSource { snapshot_id: BACKUP.to_owned() });
        self.create(service, name, Mode::SingleNodeWriter, Some(from)).await
    }

    async fn create(
        &self,
        service: &ControllerService,
        name: &str,
        mode: Mode,
        source: Option<Type>,
    ) -> Result<(), Status> {
        let class = HashMap::from([("hostStorageClass".to_owned(), host_objects::STORAGE_CLASS.to_owned())]);
        let size = if source.is_some() { self.size() } else { GIB };
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
            volume_capabilities: vec![capability(mode)],
            parameters: class,
            volume_content_source: source.map(|source| VolumeContentSource { r#type: Some(source) }),
            ..CreateVolumeRequest::default()
        };
        service.create_volume(Request::new(request)).await.map(drop)
    }

    async fn snapshot(
        &self,
        service: &ControllerService,
        name: &str,
        is_backup: bool,
    ) -> Result<tonic::Response<csi_driver::csi::CreateSnapshotResponse>, Status> {
        let parameters = is_backup.then(|| ("type".to_owned(), "backup".to_owned()));
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: VOLUME.to_owned(),
            parameters: parameters.into_iter().collect(),
            ..CreateSnapshotRequest::default()
        };
        service.create_snapshot(Request::new(request)).await
    }

    async fn delete_snapshot(&self, service: &ControllerService, id: &str) -> Result<(), Status> {
        let request =
            DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() };
        service.delete_snapshot(Request::new(request)).await.map(drop)
    }

    async fn delete(&self, service: &ControllerService, volume: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: volume.to_owned(), ..DeleteVolumeRequest::default() };
        service.delete_volume(Request::new(request)).await.map(drop)
    }

    async fn publish(&self, service: &ControllerService, volume: &str, mode: Mode) -> Result<(), Status> {
        let request = ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: MACHINE.to_owned(),
            volume_capability: Some(capability(mode)),
            ..ControllerPublishVolumeRequest::default()
        };
        service.controller_publish_volume(Request::new(request)).await.map(drop)
    }

    async fn unpublish(&self, service: &ControllerService, volume: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: MACHINE.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        service.controller_unpublish_volume(Request::new(request)).await.map(drop)
    }

    /// Prepares a call with all rights, makes it with `service`, and cleans up.
    pub(crate) async fn call(&self, service: &ControllerService, call: Call) -> Result<(), Status> {
        self.prepare_for(call).await;
        let answer = self.act(service, call).await;
        self.clean_up().await;
        answer
    }

    /// What a call needs beside what is there all the time.
    pub(crate) async fn prepare_for(&self, call: Call) {
        let (whole, disk, shared) = (&self.whole, Mode::SingleNodeWriter, Mode::MultiNodeMultiWriter);
        match call {
            Call::Delete => self.create(whole, NAME, disk, None).await.unwrap(),
            Call::DeleteExport => self.create(whole, NAME, shared, None).await.unwrap(),
            Call::DeleteRestored => self.restore_backup(whole, NAME).await.unwrap(),
            Call::Unpublish => self.publish(whole, VOLUME, disk).await.unwrap(),
            Call::UnpublishExport => self.publish(whole, EXPORT, shared).await.unwrap(),
            Call::Expand => {
                self.grown.fetch_add(2, std::sync::atomic::Ordering::Relaxed);
            }
            Call::DeleteSnapshot => self.ready_snapshot(NAME).await,
            Call::DeleteBackup => self.back_up(whole, NAME).await.unwrap(),
            _ => {}
        }
    }

    /// Makes the call itself.
    pub(crate) async fn act(&self, service: &ControllerService, call: Call) -> Result<(), Status> {
        let (name, disk, shared) = (NAME, Mode::SingleNodeWriter, Mode::MultiNodeMultiWriter);
        match call {
            Call::Create => self.create(service, name, disk, None).await,
            Call::CreateOnDefault => {
                let request = CreateVolumeRequest {
                    name: name.to_owned(),
                    volume_capabilities: vec![capability(disk)],
                    parameters: HashMap::from([("hostVolumeMode".to_owned(), "filesystem".to_owned())]),
                    ..CreateVolumeRequest::default()
                };
                service.create_volume(Request::new(request)).await.map(drop)
            }
            Call::CreateExport => self.create(service, name, shared, None).await,
            Call::Restore => {
                let from = Type::Snapshot(SnapshotSource { snapshot_id: SNAPSHOT.to_owned() });
                self.create(service, name, disk, Some(from)).await
            }
            Call::RestoreBackup => self.restore_backup(service, name).await,
            Call::Clone => {
                let from = Type::Volume(VolumeSource { volume_id: VOLUME.to_owned() });
                self.create(service, name, disk, Some(from)).await
            }
            Call::Delete | Call::DeleteExport | Call::DeleteRestored => self.delete(service, name).await,
            Call::Publish => self.publish(service, VOLUME, disk).await,
            Call::PublishExport => self.publish(service, EXPORT, shared).await,
            Call::Unpublish => self.unpublish(service, VOLUME).await,
            Call::UnpublishExport => self.unpublish(service, EXPORT).await,
            Call::Expand => {
                let request = ControllerExpandVolumeRequest {
                    volume_id: VOLUME.to_owned(),
                    capacity_range: Some(CapacityRange { required_bytes: self.size(), limit_bytes: 0 }),
                    ..ControllerExpandVolumeRequest::default()
                };
                service.controller_expand_volume(Request::new(request)).await.map(drop)
            }
            Call::Get => {
                let request = ControllerGetVolumeRequest { volume_id: VOLUME.to_owned() };
                service.controller_get_volume(Request::new(request)).await.map(drop)
            }
            Call::List => {
                let answer = service.list_volumes(Request::new(ListVolumesRequest::default())).await;
                answer.map(|list| assert_eq!(list.into_inner().entries.len(), 2, "a list is whole or fails"))
            }
            Call::Snapshot => self.snapshot(service, name, false).await.map(drop),
            Call::Backup => self.back_up(service, name).await,
            Call::DeleteSnapshot => self.delete_snapshot(service, name).await,
            Call::DeleteBackup => self.delete_snapshot(service, &format!("backup:team-a/{name}")).await,
            Call::GetSnapshot | Call::GetBackup => {
                let id = if call == Call::GetBackup { BACKUP } else { SNAPSHOT };
                let request =
                    GetSnapshotRequest { snapshot_id: id.to_owned(), ..GetSnapshotRequest::default() };
                service.get_snapshot(Request::new(request)).await.map(drop)
            }
            Call::ListSnapshots => {
                service.list_snapshots(Request::new(ListSnapshotsRequest::default())).await.map(drop)
            }
        }
    }

    /// What the volume that is there all the time has been asked to have.
    pub(crate) fn size(&self) -> i64 {
        self.grown.load(std::sync::atomic::Ordering::Relaxed) * MIB
    }

    pub(crate) async fn clean_up(&self) {
        for volume in [VOLUME, EXPORT] {
            self.unpublish(&self.whole, volume).await.unwrap();
        }
        self.delete_snapshot(&self.whole, &format!("backup:team-a/{NAME}")).await.unwrap();
        self.delete(&self.whole, NAME).await.unwrap();
        let key = format!("team-a/{NAME}");
        let gone = async || self.cluster.harvester.get::<PersistentVolumeClaim>(&key).await.is_none();
        self.until("the volume is gone", gone).await;
        // one that the host made for a backup or a restore goes with that, and is not the driver's to delete
        let gone = async || self.delete_snapshot(&self.whole, NAME).await.is_ok();
        self.until("the snapshot is gone", gone).await;
    }

    /// The calls that are refused, and how.
    pub(crate) async fn refused(&self, service: &ControllerService) -> Vec<(Call, Status)> {
        let mut refused = vec![];
        for call in Call::ALL {
            if let Err(status) = self.call(service, call).await {
                refused.push((call, status));
            }
        }
        refused
    }

    /// What the driver's Pod was told of its rights.
    pub(crate) async fn told(&self) -> Vec<String> {
        let events = self.cluster.guest.list::<Event>().await;
        let of_pod = |event: &&Event| {
            let about = &event.involved_object;
            (about.kind.as_deref(), about.name.as_deref()) == (Some("Pod"), Some("csi-0"))
                && event.reason.as_deref() == Some("MissingRight")
        };
        events.iter().filter(of_pod).map(|event| event.message.clone().unwrap()).collect()
    }

    pub(crate) async fn forget_told(&self) {
        for event in self.cluster.guest.list::<Event>().await {
            let metadata = event.metadata;
            let key = format!("{}/{}", metadata.namespace.unwrap(), metadata.name.unwrap());
            self.cluster.guest.delete::<Event>(&key).await;
        }
    }
}

pub(crate) fn codes(refused: &[(Call, Status)]) -> Vec<(Call, Code)> {
    refused.iter().map(|(call, status)| (*call, status.code())).collect()
}

fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}
