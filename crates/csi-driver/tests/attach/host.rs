//! The host: an API server, machines `a` and `b`, one volume, and a stand-in for virt-controller that keeps count of the
//! machines that have it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::time::Duration;

use controller_kit::Cache;
use csi_driver::{
    attach::{Attacher, Options, hotplug},
    csi::{
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
    host::Host,
    node_id::OwnMachine,
    refusal::Refusal,
};
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    client::Body,
    runtime::watcher,
};
use program::TaskGroup;
use serde_json::{Value, json};
use sim_apiserver::{ApiServer, User};
use tokio::sync::Notify;

use super::old_host;

pub(crate) const NAMESPACE: &str = "shop";
pub(crate) const VOLUME: &str = "pvc-1";
/// Label of an instance that virt-controller does nothing for.
pub(crate) const STUCK: &str = "stuck";
/// In a patch that removes the annotation.
const REMOVAL: &str = r#""driver.harvesterhci.io/attach":null"#;

pub(crate) struct Bed {
    pub(crate) server: ApiServer,
    pub(crate) admin: Client,
    pub(crate) tasks: TaskGroup,
    /// The most machines that had the volume at once.
    pub(crate) most: Arc<AtomicUsize>,
    /// virt-controller does its work.
    pub(crate) works: Arc<AtomicBool>,
    /// Instances take nothing from their machines' templates.
    pub(crate) is_old: Arc<AtomicBool>,
    /// The role grants processes to patch machines.
    pub(crate) may_patch: Arc<AtomicBool>,
    /// The host refuses to add this volume to a machine, with this status.
    refused: Arc<Mutex<Option<(String, http::StatusCode)>>>,
    /// Where the volume was each time that a process removed its annotation.
    removals: Arc<Mutex<Vec<String>>>,
    wake: Arc<Notify>,
}

/// What happens at a write of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mishap {
    /// The process dies before it.
    DiesBefore,
    /// The process dies, and the write takes effect.
    DiesAfter,
    /// The process dies, and the write arrives so long after.
    ArrivesAfter(u64),
    /// The process stops for so long, and goes on.
    StopsFor(u64),
}

impl Bed {
    pub(crate) async fn new() -> Self {
        let server = ApiServer::builder().namespace(NAMESPACE).namespace("kube-system").build();
        let admin = server.client(User::admin());
        sim_harvester::crds::apply(&admin).await.unwrap();
        let (tasks, most) = (TaskGroup::new(), Arc::new(AtomicUsize::new(0)));
        let (works, wake) = (Arc::new(AtomicBool::new(true)), Arc::new(Notify::new()));
        let (is_old, removals, may_patch) = (Arc::default(), Arc::default(), Arc::new(true.into()));
        let refused = Arc::default();
        let bed = Self { server, admin, tasks, most, works, is_old, may_patch, refused, removals, wake };
        bed.machine("a", true).await;
        bed.machine("b", true).await;
        bed.volume(VOLUME).await;
        bed.start_virt_controller();
        bed
    }

    pub(crate) fn machines(&self) -> Api<VirtualMachine> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) fn instances(&self) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) async fn machine(&self, name: &str, runs: bool) {
        let spec = json!({"volumes": [{"name": "root", "dataVolume": {"name": format!("{name}-root")}}],
            "domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}}});
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
            "spec": {"runStrategy": "Always", "template": {"spec": spec}}});
        let vm = serde_json::from_value(vm).unwrap();
        self.machines().create(&PostParams::default(), &vm).await.unwrap();
        if runs {
            let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": name}, "spec": {"volumes": []}, "status": {"phase": "Running"}});
            let vmi = serde_json::from_value(vmi).unwrap();
            self.instances().create(&PostParams::default(), &vmi).await.unwrap();
        }
    }

    pub(crate) async fn volume(&self, name: &str) {
        let claim = json!({"metadata": {"name": name}, "spec": {"volumeMode": "Block", "volumeName": format!("pv-{name}"),
            "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}});
        let claim = serde_json::from_value(claim).unwrap();
        self.claims().create(&PostParams::default(), &claim).await.unwrap();
        let status = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        self.claims().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    /// A driver that ignores annotations adds the volume.
    pub(crate) async fn go_driver_adds(&self, machine: &str) {
        let vm = self.machines().get(machine).await.unwrap();
        self.go_driver_patches(machine, hotplug::add(&vm, VOLUME).unwrap()).await;
    }

    /// It removes the volume from the machine's template.
    pub(crate) async fn go_driver_removes(&self, machine: &str) {
        let vm = self.machines().get(machine).await.unwrap();
        self.go_driver_patches(machine, hotplug::remove(&vm, VOLUME).unwrap()).await;
    }

    async fn go_driver_patches(&self, machine: &str, patch: Value) {
        let patch = Patch::<VirtualMachine>::Json(serde_json::from_value(patch).unwrap());
        self.machines().patch(machine, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Which machines have the volume in their templates.
    pub(crate) async fn with_volume(&self) -> Vec<String> {
        let all = self.machines().list(&kube::api::ListParams::default()).await.unwrap();
        let with = all.items.iter().filter(|vm| volumes(vm).iter().any(|volume| volume["name"] == VOLUME));
        with.map(|vm| vm.metadata.name.clone().unwrap()).collect()
    }

    pub(crate) async fn annotation(&self) -> Option<Value> {
        let claim = self.claims().get(VOLUME).await.unwrap();
        let text = claim.metadata.annotations?.get(harvester_api::annotations::CSI_ATTACH)?.clone();
        Some(serde_json::from_str(&text).unwrap())
    }

    pub(crate) fn removals(&self) -> Vec<String> {
        self.removals.lock().unwrap().clone()
    }

    pub(crate) fn host_refuses(&self, volume: Option<(&str, u16)>) {
        *self.refused.lock().unwrap() =
            volume.map(|(volume, code)| (volume.to_owned(), http::StatusCode::from_u16(code).unwrap()));
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// The writes of a user since the audit was cleared, and all its requests.
    pub(crate) fn requests(&self, user: &str) -> Vec<String> {
        let records = self.server.audit().records().into_iter().filter(|record| record.user == user);
        let path = |uri: &str| uri.split('?').next().unwrap_or_default().to_owned();
        let requests = records.map(|record| {
            let path = path(&record.uri);
            let kinds = [
                "persistentvolumeclaims",
                "virtualmachineinstances",
                "virtualmachines",
                "settings",
                "storageclasses",
            ];
            let kind = kinds.iter().find(|kind| path.contains(*kind)).copied().unwrap_or(&path);
            format!("{} {kind}", record.verb)
        });
        requests.collect()
    }

    fn start_virt_controller(&self) {
        let (machines, instances) = (
            Cache::start(&self.tasks, self.machines(), watcher::Config::default()),
            Cache::start(&self.tasks, self.instances(), watcher::Config::default()),
        );
        let (most, wake, works) = (self.most.clone(), self.wake.clone(), self.works.clone());
        let is_old = self.is_old.clone();
        let (count, bell) = (machines.clone(), wake.clone());
        machines.on_change(move |_| {
            let with =
                count.list().iter().filter(|vm| volumes(vm).iter().any(|it| it["name"] == VOLUME)).count();
            most.fetch_max(with, Ordering::Relaxed);
            bell.notify_one();
        });
        let bell = wake.clone();
        instances.on_change(move |_| bell.notify_one());
        let api = self.instances();
        self.tasks.spawn_until_stop(async move {
            machines.ready().await;
            instances.ready().await;
            loop {
                wake.notified().await;
                for vmi in instances.list() {
                    if vmi.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(STUCK)) {
                        continue;
                    }
                    let name = vmi.metadata.name.clone().unwrap();
                    let key = controller_kit::ObjectKey::new(NAMESPACE, &name);
                    let wanted: Vec<_> = machines.get(&key).map(|vm| volumes(&vm)).unwrap_or_default();
                    let wanted: Vec<_> =
                        wanted.into_iter().filter(|it| it.get("persistentVolumeClaim").is_some()).collect();
                    let has = vmi.spec.rest.get("volumes").cloned().unwrap_or_default();
                    let wanted = match &has {
                        Value::Array(has) if is_old.load(Ordering::Relaxed) => has.clone(),
                        _ => wanted,
                    };
                    let status =
                        vmi.status.as_ref().and_then(|status| status.rest.get("volumeStatus").cloned());
                    let status = status.unwrap_or_else(|| json!([]));
                    let next = next_status(&wanted, status.as_array().unwrap());
                    if works.load(Ordering::Relaxed) && (has != json!(wanted) || status != next) {
                        let patch = json!({"spec": {"volumes": wanted}, "status": {"volumeStatus": next}});
                        let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                        if let Ok(vmi) = patched {
                            drop(instances.wrote(vmi));
                        }
                    }
                }
            }
        });
    }
}

/// One step of each volume: into the machine, or out of it.
fn next_status(wanted: &[Value], status: &[Value]) -> Value {
    let is_wanted = |name: &Value| wanted.iter().any(|volume| volume["name"] == *name);
    let mut next: Vec<_> = status
        .iter()
        .filter_map(|entry| match (is_wanted(&entry["name"]), entry["phase"].as_str().unwrap()) {
            (true, "Detaching") | (false, "Detaching") => None,
            (true, "Bound") => Some("Ready"),
            (true, phase) => Some(phase),
            (false, _) => Some("Detaching"),
        }
        .map(|phase| json!({"name": entry["name"], "phase": phase, "hotplugVolume": {"attachPodName": "hp-volume-x"}})))
        .collect();
    for volume in wanted.iter().filter(|volume| !status.iter().any(|entry| entry["name"] == volume["name"])) {
        next.push(json!({"name": volume["name"], "phase": "Bound", "hotplugVolume": {}}));
    }
    Value::Array(next)
}

fn volumes(vm: &VirtualMachine) -> Vec<Value> {
    let volumes = vm.spec.rest.get("template").and_then(|template| template.pointer("/spec/volumes"));
    volumes.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Where the volume is, by templates and instances.
async fn places(admin: &Client) -> String {
    let machines: Api<VirtualMachine> = Api::namespaced(admin.clone(), NAMESPACE);
    let instances: Api<VirtualMachineInstance> = Api::namespaced(admin.clone(), NAMESPACE);
    let (machines, instances) = (
        machines.list(&Default::default()).await.unwrap(),
        instances.list(&Default::default()).await.unwrap(),
    );
    let in_machines = machines.items.iter().flat_map(|vm| hotplug::claims(Some(vm), None));
    let mut in_all =
        in_machines.chain(instances.items.iter().flat_map(|vmi| hotplug::claims(None, Some(vmi))));
    if in_all.any(|claim| claim == VOLUME) { "in a machine" } else { "no machine has it" }.to_owned()
}

/// What the host does with the requests of a process.
#[derive(Clone)]
struct Way {
    client: Client,
    admin: Client,
    may_patch: Arc<AtomicBool>,
    refused: Arc<Mutex<Option<(String, http::StatusCode)>>>,
    removals: Arc<Mutex<Vec<String>>>,
}

impl Way {
    async fn send(&self, request: http::Request<Body>) -> kube::Result<http::Response<Body>> {
        if request.method() == http::Method::GET {
            return self.client.send(request).await;
        }
        let (head, body) = request.into_parts();
        let is_patch = head.method == http::Method::PATCH && head.uri.path().contains("/virtualmachines/");
        if is_patch && !self.may_patch.load(Ordering::Relaxed) {
            return Ok(old_host::no_right_to_patch());
        }
        let body = body.collect_bytes().await?;
        if let Some(answer) = old_host::subresource(&self.admin, head.uri.path(), &body).await {
            return Ok(answer);
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        let refused =
            self.refused.lock().unwrap().clone().filter(|(volume, _)| {
                text.contains("hotpluggable") && text.contains(&format!("\"{volume}\""))
            });
        if let Some((_, code)) = refused {
            return Ok(old_host::status(code, "admission webhook denied the request"));
        }
        let answer = self.client.send(http::Request::from_parts(head, Body::from(body))).await;
        if text.contains(REMOVAL) && answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
            let with = places(&self.admin).await;
            self.removals.lock().unwrap().push(with);
        }
        answer
    }
}

/// A process of the driver.
pub(crate) struct Process {
    pub(crate) attacher: Attacher,
    pub(crate) tasks: TaskGroup,
}

impl Process {
    pub(crate) fn new(bed: &Bed, name: &str) -> Self {
        Self::with(bed, name, None, Options::new(name))
    }

    /// A process that meets its mishap at the nth write.
    pub(crate) fn with(bed: &Bed, name: &str, mishap: Option<(usize, Mishap)>, options: Options) -> Self {
        let way = Way {
            client: bed.server.client(User::named(name).with_group("system:masters")),
            admin: bed.admin.clone(),
            may_patch: bed.may_patch.clone(),
            refused: bed.refused.clone(),
            removals: bed.removals.clone(),
        };
        let writes = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (way, writes) = (way.clone(), writes.clone());
            async move {
                let is_write = request.method() != http::Method::GET;
                let nth = writes.fetch_add(usize::from(is_write), Ordering::Relaxed) + 1;
                let now = mishap.filter(|(at, _)| is_write && *at == nth).map(|(_, mishap)| mishap);
                match now {
                    None => {}
                    Some(Mishap::DiesBefore) => std::future::pending().await,
                    Some(Mishap::DiesAfter) => {
                        drop(way.send(request).await);
                        return std::future::pending().await;
                    }
                    Some(Mishap::ArrivesAfter(seconds)) => {
                        tokio::spawn(async move {
                            tokio::time::sleep(Duration::from_secs(seconds)).await;
                            drop(way.send(request).await);
                        });
                        return std::future::pending().await;
                    }
                    Some(Mishap::StopsFor(seconds)) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                }
                way.send(request).await
            }
        });
        let tasks = TaskGroup::new();
        let host = Host::new(Client::new(service, NAMESPACE), NAMESPACE);
        let machine = OwnMachine::Confirmed("a".to_owned());
        let host = host.for_cluster_of(tokio::sync::watch::channel(machine).1);
        Self { attacher: Attacher::new(host, &tasks, options), tasks }
    }

    pub(crate) async fn publish(&self, machine: &str) -> Result<(), Refusal> {
        self.publish_volume(VOLUME, machine).await
    }

    pub(crate) async fn publish_volume(&self, volume: &str, machine: &str) -> Result<(), Refusal> {
        let request = request(volume, machine);
        self.attacher.publish(&request, Duration::from_secs(100)).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, machine: &str) -> Result<(), Refusal> {
        self.unpublish_volume(VOLUME, machine).await
    }

    pub(crate) async fn unpublish_volume(&self, volume: &str, machine: &str) -> Result<(), Refusal> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: machine.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        self.attacher.unpublish(&request, Duration::from_secs(100)).await
    }
}

pub(crate) fn request(volume: &str, machine: &str) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: machine.to_owned(),
        volume_capability: Some(VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }),
        ..ControllerPublishVolumeRequest::default()
    }
}
