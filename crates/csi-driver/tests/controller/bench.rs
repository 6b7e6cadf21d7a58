//! An API server with Harvester's kinds, a service in front of it, and short ways to call it and to play the host.

use std::{collections::HashMap, sync::Arc, time::Duration};

use csi_driver::{
    attach::Attacher,
    controller::{ControllerService, Settings},
    csi::{
        CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
        DeleteVolumeRequest, ListSnapshotsRequest, ListSnapshotsResponse, Snapshot, Volume, VolumeCapability,
        VolumeContentSource,
        controller_server::Controller,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
        volume_content_source::{SnapshotSource, Type, VolumeSource},
    },
    host::Host,
    node_id::OwnMachine,
};
use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    client::Body,
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use sim_apiserver::{
    ApiServer, User,
    faults::{Answer, Rule},
};
use tonic::{Request, Status};

pub(crate) const NAMESPACE: &str = "shop";
pub(crate) const GIB: i64 = 1 << 30;
/// The name that a provisioner gives.
pub(crate) const UID: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";
pub(crate) const SNAPSHOT: &str = "snapshot.storage.k8s.io/v1";
pub(crate) const HARVESTER: &str = "harvesterhci.io/v1beta1";
const USER: &str = "csi";
const KINDS: [(&str, &str, &str, &str, &str); 9] = [
    ("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots", "Namespaced"),
    ("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses", "Cluster"),
    ("longhorn.io", "v1beta2", "Volume", "volumes", "Namespaced"),
    ("harvesterhci.io", "v1beta1", "VolumeRemoteBackup", "volumeremotebackups", "Namespaced"),
    ("harvesterhci.io", "v1beta1", "VolumeRemoteRestore", "volumeremoterestores", "Namespaced"),
    ("harvesterhci.io", "v1beta1", "NetworkFilesystem", "networkfilesystems", "Namespaced"),
    ("harvesterhci.io", "v1beta1", "Setting", "settings", "Cluster"),
    ("kubevirt.io", "v1", "VirtualMachine", "virtualmachines", "Namespaced"),
    ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances", "Namespaced"),
];

pub(crate) struct Bench {
    pub(crate) server: ApiServer,
    pub(crate) admin: Client,
    pub(crate) service: ControllerService,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let server = ApiServer::builder()
            .namespace(NAMESPACE)
            .namespace("other")
            .namespace("harvester-system")
            .namespace("longhorn-system")
            .build();
        let admin = server.client(User::admin());
        let definitions: Api<CustomResourceDefinition> = Api::all(admin.clone());
        for (group, version, kind, plural, scope) in KINDS {
            let definition = json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": {
                "group": group, "scope": scope,
                "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
            let definition = serde_json::from_value(definition).unwrap();
            definitions.create(&PostParams::default(), &definition).await.unwrap();
        }
        let service = Self::another(&server);
        let bench = Self { server, admin, service };
        bench
            .create(
                "storage.k8s.io/v1",
                "StorageClass",
                "",
                json!({"metadata": {"name": "longhorn"},
            "provisioner": "driver.longhorn.io", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true}),
            )
            .await;
        bench
            .create(
                "harvesterhci.io/v1beta1",
                "Setting",
                "",
                json!({"metadata": {"name": "csi-driver-config"}, "value": "",
            "default": r#"{"driver.longhorn.io":{"volumeSnapshotClassName":"longhorn-snapshot"}}"#}),
            )
            .await;
        bench
    }

    /// With a volume `source` and a snapshot `s` of it, both of 1 GiB; the snapshot is ready.
    pub(crate) async fn with_a_snapshot() -> Self {
        let bench = Self::new().await;
        bench.create_volume(volume("source", GIB)).await.unwrap();
        bench.taken("s", "source", None).await.unwrap();
        let status = json!({"status": {"readyToUse": true, "restoreSize": "1Gi"}});
        bench.patch(SNAPSHOT, "VolumeSnapshot", "s", status).await;
        bench
    }

    /// The same servers, called through another process.
    pub(crate) fn in_another_process(&self) -> Self {
        Self { server: self.server.clone(), admin: self.admin.clone(), service: Self::another(&self.server) }
    }

    /// The service of another process.
    pub(crate) fn another(server: &ApiServer) -> ControllerService {
        Self::on(Self::host(server), csi_driver::attach::Options::new("pod-a"))
    }

    /// The same, with the driver in this machine.
    pub(crate) async fn in_machine(name: &str) -> Self {
        Self::new().await.moved_into_machine(name)
    }

    pub(crate) fn moved_into_machine(self, name: &str) -> Self {
        self.where_the_host_says(OwnMachine::Confirmed(name.to_owned()))
    }

    /// The same, with a driver that has this answer about its machine.
    pub(crate) fn where_the_host_says(self, machine: OwnMachine) -> Self {
        self.with(machine, csi_driver::attach::Options::new("pod-a"))
    }

    /// The same, in this machine, of a cluster in which no node uses a volume.
    pub(crate) fn moved_where_nobody_uses_a_volume(self, name: &str) -> Self {
        self.with(OwnMachine::Confirmed(name.to_owned()), Self::options(Ok(vec![])))
    }

    fn with(self, machine: OwnMachine, options: csi_driver::attach::Options) -> Self {
        let machine = tokio::sync::watch::channel(machine).1;
        let host = Self::host(&self.server).for_cluster_of(machine);
        Self { service: Self::on(host, options), ..self }
    }

    /// The same on a host up to Harvester 1.7, whose role grants no patch of machines.
    pub(crate) fn where_machines_are_not_patched(self) -> Self {
        let client = self.server.client(User::named(USER).with_group("system:masters"));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let client = client.clone();
            async move {
                let is_of_machine = request.uri().path().contains("/virtualmachines/");
                if !is_of_machine || request.method() != http::Method::PATCH {
                    return client.send(request).await;
                }
                let message = "virtualmachines.kubevirt.io is forbidden: User \"csi\" cannot patch resource \
                               \"virtualmachines\" in API group \"kubevirt.io\" in the namespace \"shop\"";
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                    "reason": "Forbidden", "message": message});
                let answer = http::Response::builder().status(http::StatusCode::FORBIDDEN);
                Ok(answer.body(Body::from(status.to_string().into_bytes())).unwrap())
            }
        });
        let host = Host::new(Client::new(service, NAMESPACE), NAMESPACE);
        Self { service: Self::on(host, csi_driver::attach::Options::new("pod-a")), ..self }
    }

    /// The same, of a guest cluster whose objects are on the same server.
    pub(crate) fn with_guest(self) -> Self {
        let guest = csi_driver::guest::Guest::new(self.admin.clone());
        let users = csi_driver::run::users(guest.clone());
        let options = csi_driver::attach::Options {
            users,
            guest: Some(guest),
            ..csi_driver::attach::Options::new("pod-a")
        };
        Self { service: Self::on(Self::host(&self.server), options), ..self }
    }

    /// From now on these nodes use each volume, or nobody knows.
    pub(crate) fn used_by(&mut self, nodes: Result<Vec<String>, String>) {
        self.service = Self::on(Self::host(&self.server), Self::options(nodes));
    }

    fn options(nodes: Result<Vec<String>, String>) -> csi_driver::attach::Options {
        let users: Arc<csi_driver::attach::export::Users> = Arc::new(move |_| {
            let user = |node: String| csi_driver::guest::User {
                attachment: format!("va-{node}"),
                node,
                is_attached: true,
                is_leaving: false,
            };
            let users = nodes.clone().map(|nodes| nodes.into_iter().map(user).collect());
            Box::pin(async move { users })
        });
        csi_driver::attach::Options { users, ..csi_driver::attach::Options::new("pod-a") }
    }

    fn host(server: &ApiServer) -> Host {
        Host::new(server.client(User::named(USER).with_group("system:masters")), NAMESPACE)
    }

    fn on(host: Host, options: csi_driver::attach::Options) -> ControllerService {
        let attacher = Attacher::new(host.clone(), &program::TaskGroup::new(), options);
        ControllerService::new(host, Settings::default(), attacher)
    }

    /// A request of the service's has this answer, the nth one or each.
    pub(crate) fn fault(&self, verb: &str, resource: &str, nth: Option<u64>, answer: Answer) {
        let mut rule = Rule::new(answer);
        rule.user = Some(USER.to_owned());
        rule.verb = Some(verb.to_owned());
        rule.resource = Some(resource.to_owned());
        rule.nth = nth;
        self.server.faults().add(rule);
    }

    /// The requests of the service since the last call of this.
    pub(crate) fn requests(&self) -> Vec<String> {
        let records = self.server.audit().records();
        self.server.audit().clear();
        let path = |uri: &str| {
            uri.split('?').next().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned()
        };
        let ours = records.into_iter().filter(|record| record.user == USER);
        ours.map(|record| format!("{} {}", record.verb, path(&record.uri))).collect()
    }

    pub(crate) fn api(&self, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if namespace.is_empty() {
            Api::all_with(self.admin.clone(), &resource)
        } else {
            Api::namespaced_with(self.admin.clone(), namespace, &resource)
        }
    }

    pub(crate) async fn create(&self, version: &str, kind: &str, namespace: &str, mut json: Value) {
        json["apiVersion"] = version.into();
        json["kind"] = kind.into();
        let object = serde_json::from_value(json).unwrap();
        self.api(version, kind, namespace).create(&PostParams::default(), &object).await.unwrap();
    }

    pub(crate) async fn machine_with(&self, name: &str, claim: &str) {
        let volumes = json!([{"name": claim, "persistentVolumeClaim": {"claimName": claim}}]);
        let spec = json!({"template": {"spec": {"volumes": volumes}}});
        self.create(
            "kubevirt.io/v1",
            "VirtualMachine",
            NAMESPACE,
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await;
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) async fn claim(&self, name: &str) -> PersistentVolumeClaim {
        self.claims().get(name).await.unwrap()
    }

    /// The host gives the claim a volume of this size.
    pub(crate) async fn bind(&self, name: &str, capacity: &str) {
        let spec = json!({"spec": {"volumeName": format!("pvc-of-{name}")}});
        self.claims().patch(name, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
        let status = json!({"status": {"phase": "Bound", "capacity": {"storage": capacity}}});
        self.claims().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    pub(crate) async fn patch(&self, version: &str, kind: &str, name: &str, patch: Value) {
        let api = self.api(version, kind, NAMESPACE);
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        Ok(self.service.create_volume(Request::new(request)).await?.into_inner().volume.unwrap())
    }

    /// A claim that the host will make of `source` when it is attached.
    pub(crate) async fn waits_for_its_first_consumer(&self, name: &str, kind: &str, source: &str) {
        let class = json!({"metadata": {"name": "waits"}, "provisioner": "driver.longhorn.io",
            "volumeBindingMode": "WaitForFirstConsumer"});
        self.create("storage.k8s.io/v1", "StorageClass", "", class).await;
        self.pending(name, "waits", kind, source).await;
    }

    /// A claim of this class that is to be made of `source` and is not bound.
    pub(crate) async fn pending(&self, name: &str, class: &str, kind: &str, source: &str) {
        let group = (kind == "VolumeSnapshot").then_some("snapshot.storage.k8s.io");
        let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteMany"],
            "storageClassName": class, "dataSource": {"apiGroup": group, "kind": kind, "name": source},
            "resources": {"requests": {"storage": "1Gi"}}}});
        self.claims().create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    }

    /// A volume on a host that gives claims their volumes.
    pub(crate) async fn filled(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        tokio::select! {
            answer = self.create_volume(request) => answer,
            () = self.binds() => unreachable!("it goes on for ever"),
        }
    }

    /// A second later a claim has a volume of the size that it asks for.
    async fn binds(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for claim in self.claims().list(&ListParams::default()).await.unwrap().items {
                let json = serde_json::to_value(&claim).unwrap();
                let size = json["spec"]["resources"]["requests"]["storage"].as_str().unwrap();
                if json["status"]["capacity"]["storage"] != size {
                    self.bind(&claim.name_any(), size).await;
                }
            }
        }
    }

    pub(crate) async fn delete_volume(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
        self.service.delete_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn snapshot(
        &self,
        name: &str,
        source: &str,
        kind: Option<&str>,
    ) -> Result<Snapshot, Status> {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            parameters: kind.map(|kind| ("type".to_owned(), kind.to_owned())).into_iter().collect(),
            secrets: HashMap::new(),
        };
        Ok(self.service.create_snapshot(Request::new(request)).await?.into_inner().snapshot.unwrap())
    }

    /// A snapshot on a host that takes snapshots and makes backups.
    pub(crate) async fn taken(
        &self,
        name: &str,
        source: &str,
        kind: Option<&str>,
    ) -> Result<Snapshot, Status> {
        tokio::select! {
            answer = self.snapshot(name, source, kind) => answer,
            () = self.takes_snapshots() => unreachable!("it goes on for ever"),
        }
    }

    /// What was asked for is cut a second later, and a backup is complete.
    async fn takes_snapshots(&self) {
        let cut = json!({"creationTime": "2026-01-01T00:00:05Z"});
        let kinds =
            [(SNAPSHOT, "VolumeSnapshot", cut), (HARVESTER, "VolumeRemoteBackup", json!({"success": true}))];
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for (version, kind, status) in &kinds {
                let all = self.api(version, kind, NAMESPACE).list(&ListParams::default()).await.unwrap();
                for object in all.items.into_iter().filter(|one| one.data.get("status").is_none()) {
                    self.patch(version, kind, &object.name_any(), json!({"status": status})).await;
                }
            }
        }
    }

    pub(crate) async fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        let request =
            DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() };
        self.service.delete_snapshot(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn list_snapshots(
        &self,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        Ok(self.service.list_snapshots(Request::new(request)).await?.into_inner())
    }
}

/// A volume with a file system for one node.
pub(crate) fn volume(name: &str, required: i64) -> CreateVolumeRequest {
    volume_for(name, required, Mode::SingleNodeWriter)
}

pub(crate) fn volume_for(name: &str, required: i64, mode: Mode) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: required, limit_bytes: 0 }),
        volume_capabilities: vec![files(mode)],
        parameters: HashMap::from([("hostStorageClass".to_owned(), "longhorn".to_owned())]),
        ..CreateVolumeRequest::default()
    }
}

pub(crate) fn files(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn from_snapshot(request: CreateVolumeRequest, id: &str) -> CreateVolumeRequest {
    let source = Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() });
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..request
    }
}

pub(crate) fn from_volume(request: CreateVolumeRequest, id: &str) -> CreateVolumeRequest {
    let source = Type::Volume(VolumeSource { volume_id: id.to_owned() });
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..request
    }
}
