//! A Harvester with machines `a` and `b` and one volume, on a paused clock, and an observer of all states that its
//! machines and instances go through.

use std::{
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations::CSI_ATTACH};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use program::TaskGroup;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sim_apiserver::{ApiServer, User};
use sim_harvester::{SimHarvester, host_objects, settings::HOTPLUG};
use tokio::time::{Instant, sleep};

use crate::support;

pub(crate) const NAMESPACE: &str = "shop";
pub(crate) const VOLUME: &str = "pvc-1";
pub(crate) const MACHINES: [&str; 2] = ["a", "b"];
/// A version of Harvester whose machines get disks by subresources alone.
pub(crate) const OLD: &str = "v1.7.1";

/// One state of one object, of those that say where a volume is.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) revision: u64,
    pub(crate) at: Instant,
    pub(crate) machine: String,
    /// Of the instance; else of the machine's template.
    pub(crate) is_instance: bool,
    pub(crate) has_volume: bool,
}

pub(crate) struct Bed {
    pub(crate) server: ApiServer,
    pub(crate) admin: Client,
    pub(crate) tasks: TaskGroup,
    pub(crate) states: Arc<Mutex<Vec<State>>>,
    /// The role of CSI drivers grants to patch machines, as it does from Harvester 1.8 on.
    pub(crate) may_patch: Arc<AtomicBool>,
    /// KubeVirt takes `addvolume` and `removevolume`.
    pub(crate) takes_requests: Arc<AtomicBool>,
    pub(crate) guest: ApiServer,
}

impl Bed {
    /// A Harvester of this version.
    pub(crate) async fn new(version: &str) -> Self {
        let server = ApiServer::builder()
            .namespace(NAMESPACE)
            .namespace("harvester-system")
            .history(50_000)
            .seed(1)
            .build();
        let guest = ApiServer::builder().namespace("kube-system").history(50_000).seed(2).build();
        let (admin, tasks) = (server.client(User::admin()), TaskGroup::new());
        sim_harvester::crds::apply(&admin).await.unwrap();
        host_objects::apply(&admin, version).await.unwrap();
        let harvester = server.client(User::named("sim-harvester").with_group("system:masters"));
        let options = support::options([harvester, guest.client(User::admin())], 83);
        drop(SimHarvester::start(options, &tasks));
        server.aggregate("subresources.kubevirt.io", sim_harvester::subresources::router(admin.clone()));
        let (may_patch, takes_requests) = (Arc::new((version != OLD).into()), Arc::new(true.into()));
        let bed = Self { server, admin, tasks, states: Arc::default(), may_patch, takes_requests, guest };
        bed.create(Api::<Node>::all(bed.admin.clone()), json!({"metadata": {"name": "host-1"}})).await;
        for name in MACHINES {
            bed.machine(name).await;
        }
        let class = host_objects::STORAGE_CLASS;
        let claim = json!({"metadata": {"name": VOLUME}, "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block",
            "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}});
        bed.create(bed.claims(), claim).await;
        bed.until("the machines run and the volume is bound", async || {
            let instances = bed.instances().list(&ListParams::default()).await.unwrap().items;
            let run =
                |one: &VirtualMachineInstance| one.status.as_ref().is_some_and(|it| it.phase == "Running");
            let status = bed.claims().get(VOLUME).await.unwrap().status;
            let is_bound = status.and_then(|it| it.phase).as_deref() == Some("Bound");
            is_bound && instances.len() == MACHINES.len() && instances.iter().all(run)
        })
        .await;
        bed.observe(bed.machines(), false, |vm| {
            csi_driver::attach::hotplug::claims(Some(vm), None).any(|claim| claim == VOLUME)
        });
        bed.observe(bed.instances(), true, |vmi| {
            csi_driver::attach::hotplug::claims(None, Some(vmi)).any(|claim| claim == VOLUME)
        });
        sleep(Duration::from_secs(1)).await;
        bed
    }

    pub(crate) async fn create<K>(&self, api: Api<K>, json: Value)
    where
        K: Resource + serde::Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    {
        api.create(&PostParams::default(), &serde_json::from_value(json).unwrap()).await.unwrap();
    }

    async fn machine(&self, name: &str) {
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
            "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {"devices": {"disks": []}}, "volumes": []}}}});
        self.create(self.machines(), vm).await;
    }

    pub(crate) fn guest(&self) -> Client {
        self.guest.client(User::admin())
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

    /// A process has died that was to add the volume to this machine.
    pub(crate) async fn claimed_for(&self, machine: &str) {
        let uid = self.machines().get(machine).await.unwrap().metadata.uid;
        let text = json!({"vm": machine, "vmUid": uid, "op": "attach", "holder": "dead"}).to_string();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {CSI_ATTACH: text}}}));
        self.claims().patch(VOLUME, &PatchParams::default(), &patch).await.unwrap();
    }

    /// How disks come into this machine and leave it.
    pub(crate) async fn plugs(&self, machine: &str, how: &str) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {HOTPLUG: how}}}));
        self.machines().patch(machine, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn annotation(&self) -> Option<Value> {
        let claim = self.claims().get(VOLUME).await.unwrap();
        let text = claim.metadata.annotations?.get(CSI_ATTACH)?.clone();
        Some(serde_json::from_str(&text).unwrap())
    }

    /// The machines that have the volume, or whose instance has it.
    pub(crate) async fn with_volume(&self) -> Vec<String> {
        let vms = self.machines().list(&ListParams::default()).await.unwrap().items;
        let vmis = self.instances().list(&ListParams::default()).await.unwrap().items;
        let of = |name: &str| vmis.iter().find(|vmi| vmi.name_any() == name);
        let has = |vm: &&VirtualMachine| {
            let mut claims = csi_driver::attach::hotplug::claims(Some(vm), of(&vm.name_any()));
            claims.any(|claim| claim == VOLUME)
        };
        vms.iter().filter(has).map(ResourceExt::name_any).collect()
    }

    pub(crate) async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        for _ in 0..1_200 {
            if is_so().await {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: not in two minutes");
    }

    fn observe<K>(&self, api: Api<K>, is_instance: bool, has: impl Fn(&K) -> bool + Send + 'static)
    where
        K: Resource + DeserializeOwned + Clone + std::fmt::Debug + Send + 'static,
    {
        let (states, mut from) = (self.states.clone(), self.server.revision());
        self.tasks.spawn_until_stop(async move {
            loop {
                let events = api.watch(&WatchParams::default(), &from.to_string()).await.unwrap();
                let mut events = events.boxed();
                while let Some(event) = events.try_next().await.unwrap() {
                    let (object, is_gone) = match &event {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                        WatchEvent::Deleted(object) => (object, true),
                        WatchEvent::Bookmark(_) => continue,
                        WatchEvent::Error(error) => panic!("{error:?}"),
                    };
                    from = object.meta().resource_version.as_ref().unwrap().parse().unwrap();
                    let (machine, has_volume) = (object.name_any(), !is_gone && has(object));
                    let state =
                        State { revision: from, at: Instant::now(), machine, is_instance, has_volume };
                    states.lock().unwrap().push(state);
                }
            }
        });
    }
}
