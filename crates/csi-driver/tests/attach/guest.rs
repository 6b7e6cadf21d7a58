//! The guest: Nodes `node-a` to `node-c` on machines `a` to `c`, a volume, and a stand-in for the external attacher that
//! has failed so often that it comes again in five minutes, unless somebody changes its VolumeAttachment.

use std::{collections::HashMap, sync::Arc, time::Duration};

use controller_kit::{CREATE_EVENTS, Recorder};
use csi_driver::{
    attach::{Attacher, Options},
    healing::{Parts, lead, run},
    lease,
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, PersistentVolume},
    storage::v1::{CSINode, VolumeAttachment},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use program::{Clock, TaskGroup, capabilities::Capabilities};
use serde_json::{Value, json};
use sim_apiserver::User;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::host::{Bed, Process, STUCK, VOLUME};

/// A process that may lead.
pub(crate) struct Candidate {
    pub(crate) tasks: TaskGroup,
    called: watch::Sender<bool>,
    _attachers: watch::Sender<Arc<Attacher>>,
}

impl Candidate {
    pub(crate) fn call(&self) {
        self.called.send_replace(true);
    }
}

const ATTACHER: &str = "external-attacher/driver-harvesterhci-io";
const NUDGE: &str = harvester_api::annotations::CSI_NUDGE;

impl Bed {
    pub(crate) async fn guest(&self) {
        for machine in ["a", "b", "c"] {
            self.node(machine).await;
        }
        self.persistent_volume("pv", VOLUME).await;
    }

    async fn node(&self, machine: &str) {
        let node = json!({"metadata": {"name": format!("node-{machine}")}, "spec": {"drivers":
            [{"name": "driver.harvesterhci.io", "nodeID": machine, "topologyKeys": null}]}});
        let node = serde_json::from_value(node).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
    }

    async fn persistent_volume(&self, name: &str, handle: &str) {
        let volume = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}, "csi": {"driver": "driver.harvesterhci.io", "volumeHandle": handle},
            "claimRef": {"namespace": "default", "name": "data", "uid": "uid-data"}}});
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        let api: Api<PersistentVolume> = Api::all(self.admin.clone());
        api.create(&PostParams::default(), &volume).await.unwrap();
    }

    pub(crate) fn nodes(&self) -> Api<CSINode> {
        Api::all(self.admin.clone())
    }

    pub(crate) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.admin.clone())
    }

    /// A VolumeAttachment of the volume to the Node of this machine.
    pub(crate) async fn wants(&self, machine: &str, is_attached: bool) {
        let name = format!("va-{machine}");
        self.attachment(&name, machine, "pv").await;
        if is_attached {
            self.set_attached(&name).await;
        }
    }

    async fn attachment(&self, name: &str, machine: &str, volume: &str) {
        let attachment = json!({"metadata": {"name": name, "finalizers": [ATTACHER],
            "annotations": {"csi.alpha.kubernetes.io/node-id": machine}},
            "spec": {"attacher": "driver.harvesterhci.io", "nodeName": format!("node-{machine}"),
                "source": {"persistentVolumeName": volume}}});
        let attachment = serde_json::from_value(attachment).unwrap();
        self.attachments().create(&PostParams::default(), &attachment).await.unwrap();
    }

    async fn set_attached(&self, name: &str) {
        let status = Patch::Merge(json!({"status": {"attached": true}}));
        self.attachments().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    pub(crate) async fn no_longer_wants(&self, machine: &str) {
        self.attachments().delete(&format!("va-{machine}"), &DeleteParams::default()).await.unwrap();
    }

    /// Writes the annotation of the claim.
    pub(crate) async fn annotate(&self, text: &str) {
        let patch = json!({"metadata": {"annotations": {harvester_api::annotations::CSI_ATTACH: text}}});
        self.claims().patch(VOLUME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Whether the VolumeAttachment says that it is attached.
    pub(crate) async fn is_attached(&self, machine: &str) -> bool {
        let attachment = self.attachments().get_opt(&format!("va-{machine}")).await.unwrap();
        attachment.and_then(|one| one.status).is_some_and(|status| status.attached)
    }

    /// Phase of the volume in the running instance.
    pub(crate) async fn phase(&self, machine: &str) -> Option<String> {
        let vmi = self.instances().get_opt(machine).await.unwrap()?;
        let status = vmi.status?.rest.get("volumeStatus")?.clone();
        let one = status.as_array()?.iter().find(|one| one["name"] == VOLUME)?.clone();
        one["phase"].as_str().map(str::to_owned)
    }

    /// So many more volumes, with VolumeAttachments that want them in machine `d`, where nothing gets on.
    pub(crate) async fn many_hang(&self, count: usize) {
        self.machine("d", true).await;
        let stuck = Patch::Merge(json!({"metadata": {"labels": {STUCK: "yes"}}}));
        self.instances().patch("d", &PatchParams::default(), &stuck).await.unwrap();
        self.node("d").await;
        for n in 0..count {
            let (volume, persistent) = (format!("pvc-hangs-{n}"), format!("pv-hangs-{n}"));
            self.volume(&volume).await;
            self.persistent_volume(&persistent, &volume).await;
            self.attachment(&format!("va-hangs-{n}"), "d", &persistent).await;
        }
    }

    /// Waits until the volume is in the machine alone, and its VolumeAttachment says so.
    pub(crate) async fn healed(&self, machine: &str, within: u64) {
        let begun = Instant::now();
        loop {
            let is_whole = self.is_attached(machine).await
                && self.phase(machine).await.as_deref() == Some("Ready")
                && self.with_volume().await == [machine];
            if is_whole {
                return;
            }
            let state = (self.with_volume().await, self.annotation_text().await, self.said().await);
            assert!(begun.elapsed() < Duration::from_secs(within), "not within {within} s: {state:?}");
            sleep(Duration::from_millis(250)).await;
        }
    }

    async fn annotation_text(&self) -> Value {
        let claim = self.claims().get(VOLUME).await.unwrap();
        json!(claim.metadata.annotations)
    }

    /// Events: kind, reason, count, message.
    pub(crate) async fn said(&self) -> Vec<(String, String, i32, String)> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), "default");
        let events = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        let said = events.map(|event| {
            let kind = event.involved_object.kind.unwrap_or_default();
            (kind, event.reason.unwrap(), event.count.unwrap(), event.message.unwrap())
        });
        said.collect()
    }

    /// What the external attacher does, on the calls of this process.
    pub(crate) fn start_attacher(self: &Arc<Self>, driver: &Arc<Process>) {
        let (bed, driver) = (self.clone(), driver.clone());
        let stop = self.tasks.stop.clone();
        self.tasks.spawn(async move {
            let mut known: HashMap<String, (Instant, Value)> = HashMap::new();
            while !stop.is_cancelled() {
                for one in bed.attachments().list(&ListParams::default()).await.unwrap().items {
                    // its workers for other volumes are busy elsewhere
                    if one.spec.source.persistent_volume_name.as_deref() != Some("pv") {
                        continue;
                    }
                    let nudge = json!([one.annotations().get(NUDGE), one.metadata.deletion_timestamp]);
                    let later = Instant::now() + Duration::from_secs(300);
                    let (due, was) = known.entry(one.name_any()).or_insert((later, nudge.clone()));
                    if *was == nudge && Instant::now() < *due {
                        continue;
                    }
                    (*due, *was) = (later, nudge);
                    let machine = one.spec.node_name.trim_start_matches("node-").to_owned();
                    let is_attached = one.status.as_ref().is_some_and(|status| status.attached);
                    if one.metadata.deletion_timestamp.is_some() {
                        if driver.unpublish(&machine).await.is_ok() {
                            let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                            drop(
                                bed.attachments()
                                    .patch(&one.name_any(), &PatchParams::default(), &patch)
                                    .await,
                            );
                        }
                    } else if !is_attached && driver.publish(&machine).await.is_ok() {
                        bed.set_attached(&one.name_any()).await;
                    }
                }
                sleep(Duration::from_millis(200)).await;
            }
        });
    }

    /// A process that reconciles. It leads for as long as the answer is kept.
    pub(crate) fn start_reconciler(&self, name: &str) -> TaskGroup {
        let process = Process::with(self, name, None, Options::new(name));
        let guest = self.server.client(User::named(format!("{name}-guest")).with_group("system:masters"));
        let tasks = self.tasks.child();
        let capabilities = Capabilities::assumed([]);
        assert!(capabilities.allows(&CREATE_EVENTS));
        let recorder = Recorder::start(
            &tasks,
            self.admin.clone(),
            "harvester-csi-driver",
            Clock::system(),
            &capabilities,
        );
        let running = tasks.clone();
        tasks.spawn(async move {
            let parts = Parts { guest, attacher: Arc::new(process.attacher), recorder };
            run(parts, &running).await;
        });
        tasks
    }

    /// A process that stands for election when somebody calls it.
    pub(crate) fn start_candidate(&self, name: &str) -> Candidate {
        let called = watch::Sender::new(false);
        let mut options = Options::new(name);
        options.called = called.clone();
        let process = Process::with(self, name, None, options);
        let (attachers, attacher) = watch::channel(Arc::new(process.attacher));
        let tasks = TaskGroup::new();
        let guest = self.server.client(User::named(format!("{name}-guest")).with_group("system:masters"));
        let candidate = lead::Candidate {
            guest,
            clock: Clock::system(),
            identity: name.to_owned(),
            called: called.subscribe(),
            attacher,
            leading: csi_driver::leading::Leading::default(),
            credential: None,
        };
        tasks.spawn(lead::stand(candidate, tasks.clone()));
        Candidate { tasks, called, _attachers: attachers }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.admin.clone(), lease::NAMESPACE)
    }

    pub(crate) async fn leader(&self) -> Option<String> {
        let lease = self.leases().get_opt(lease::HEALING).await.unwrap()?;
        lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
    }

    pub(crate) async fn steal_the_lease(&self) {
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": "thief", "leaseTransitions": 9}}));
        self.leases().patch(lease::HEALING, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Machine `c` does not run.
    pub(crate) async fn stopped_machine(&self) {
        self.machine("c", false).await;
    }

    pub(crate) async fn claim_text(&self, machine: &str, uid: Option<&str>, operation: &str) -> String {
        let uid = match uid {
            Some(uid) => uid.to_owned(),
            None => self.machines().get(machine).await.unwrap().uid().unwrap(),
        };
        json!({"vm": machine, "vmUid": uid, "op": operation, "holder": "dead"}).to_string()
    }
}
