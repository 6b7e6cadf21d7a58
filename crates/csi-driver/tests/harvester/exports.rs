//! Volumes for many nodes: an export of the host that is there for as long as a node uses it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use csi_driver::{
    attach::{
        Attacher, Options as Attaching,
        export::Users,
        moved::{Exports, REASON},
    },
    controller::{ControllerService, Settings},
    csi::{
        CapacityRange, ControllerGetVolumeRequest, ControllerPublishVolumeRequest,
        ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, ListVolumesRequest,
        VolumeCapability, VolumeCondition,
        controller_server::Controller,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
    guest::Guest,
    host::{Host, kinds::NetworkFilesystem, missing::Missing},
    node_id::OwnMachine,
    run::users,
    volume::context,
};
use futures::FutureExt as _;
use harvester_api::annotations::CSI_EXPORT_ON_FOR;
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolumeClaim},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use program::{Clock, TaskGroup};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sim_apiserver::faults::{Answer, Rule};
use sim_harvester::host_objects;
use test_cluster::{TestCluster, User};
use tonic::{Code, Request, Status};

use crate::support;

pub(super) const VOLUME: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";
const PV: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Gi}
  persistentVolumeReclaimPolicy: Retain
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: default, name: data, uid: uid-data}
  csi: {driver: driver.harvesterhci.io, volumeHandle: pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11}
";

pub(super) struct Bed<'a> {
    cluster: &'a TestCluster,
    pub(super) tasks: TaskGroup,
    service: ControllerService,
    host: Host,
}

impl<'a> Bed<'a> {
    /// A volume for many nodes.
    pub(super) async fn start(cluster: &'a TestCluster) -> Self {
        let (tasks, harvester) = (TaskGroup::new(), cluster.harvester.client(User::Driver));
        host_objects::apply(&harvester, "v1.8.0").await.unwrap();
        support::start_behind(cluster, 84, &tasks);
        let namespace = &*cluster.guest_cluster().vm_namespace;
        let host = Host::new(cluster.harvester.client(User::CsiDriver), namespace);
        let guest = Guest::new(cluster.guest.client(User::CsiDriver));
        let clock = Clock::starting_at(cluster.start());
        let events = Missing::new(&tasks, cluster.guest.client(User::CsiDriver), clock, None);
        let exports = Some(Exports::new(guest.clone(), events));
        let attaching = Attaching { users: users(guest), exports, ..Attaching::new("pod-a") };
        let attacher = Attacher::new(host.clone(), &tasks, attaching);
        let service = ControllerService::new(host.clone(), Settings::default(), attacher);
        let bed = Self { cluster, tasks, service, host };
        let class = HashMap::from([("hostStorageClass".to_owned(), host_objects::STORAGE_CLASS.to_owned())]);
        let request = CreateVolumeRequest {
            name: VOLUME.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
            volume_capabilities: vec![many_nodes()],
            parameters: class,
            ..CreateVolumeRequest::default()
        };
        bed.service.create_volume(Request::new(request)).await.unwrap();
        cluster.guest.apply(PV).await;
        bed
    }

    /// The same, called through a process that has this answer about its machine.
    fn where_the_host_says(&self, machine: OwnMachine) -> Self {
        self.asking(machine, users(Guest::new(self.cluster.guest.client(User::CsiDriver))))
    }

    /// The same, that asks so for the Nodes that use a volume.
    fn asking(&self, machine: OwnMachine, users: Arc<Users>) -> Self {
        let host = self.host.clone().for_cluster_of(tokio::sync::watch::channel(machine).1);
        let attaching = Attaching { users, ..Attaching::new("pod-b") };
        let attacher = Attacher::new(host.clone(), &self.tasks, attaching);
        let service = ControllerService::new(host.clone(), Settings::default(), attacher);
        Self { cluster: self.cluster, tasks: self.tasks.clone(), service, host }
    }

    /// The attacher's VolumeAttachment for this node.
    pub(super) async fn attachment(&self, node: &str) {
        self.cluster.guest.apply(&attachment(&format!("va-{node}"), node).to_string()).await;
    }

    pub(super) async fn publish(&self, node: &str) -> Result<HashMap<String, String>, Status> {
        let request = ControllerPublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(many_nodes()),
            ..ControllerPublishVolumeRequest::default()
        };
        let answer = self.service.controller_publish_volume(Request::new(request)).await?;
        Ok(answer.into_inner().publish_context)
    }

    pub(super) async fn publish_disk(&self, node: &str) -> Result<(), Status> {
        let mut capability = many_nodes();
        capability.access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
        let request = ControllerPublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(capability),
            ..ControllerPublishVolumeRequest::default()
        };
        self.service.controller_publish_volume(Request::new(request)).await.map(drop)
    }

    /// The attacher lets the node go: first the call, then its object.
    pub(super) async fn leave(&self, node: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            node_id: node.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        self.service.controller_unpublish_volume(Request::new(request)).await.map(drop)
    }

    /// The attacher publishes, at first or again, and writes the context into the status.
    async fn attach(&self, node: &str) -> HashMap<String, String> {
        let context = self.publish(&node.replace("node", "vm")).await.unwrap();
        let status = json!({"status": {"attached": true, "attachmentMetadata": context}});
        self.cluster.guest.patch_status::<VolumeAttachment>(&format!("va-{node}"), status).await;
        context
    }

    /// The same by both calls.
    async fn condition(&self) -> VolumeCondition {
        let list = self.service.list_volumes(Request::new(ListVolumesRequest::default())).await.unwrap();
        let listed = list.into_inner().entries.remove(0).status.unwrap().volume_condition.unwrap();
        let request = ControllerGetVolumeRequest { volume_id: VOLUME.to_owned() };
        let read = self.service.controller_get_volume(Request::new(request)).await.unwrap();
        assert_eq!(read.into_inner().status.unwrap().volume_condition.as_ref(), Some(&listed));
        listed
    }

    async fn moves_to(&self, address: &str) {
        let key = format!("harvester-system/{}", self.export().await.metadata.name.unwrap());
        let moved = json!({"metadata": {"annotations": {"sim.harvesterhci.io/endpoint": address}}});
        self.cluster.harvester.patch::<NetworkFilesystem>(&key, moved).await;
        self.until_export("the export has moved", |export| export.status.endpoint == address).await;
    }

    /// Events about moved exports on the claim of the guest.
    async fn told(&self) -> Vec<String> {
        let events = self.cluster.guest.list::<Event>().await;
        let is_it = |event: &Event| {
            let about = &event.involved_object;
            (about.kind.as_deref(), about.name.as_deref()) == (Some("PersistentVolumeClaim"), Some("data"))
                && event.reason.as_deref() == Some(REASON)
        };
        events
            .into_iter()
            .filter(is_it)
            .map(|event| format!("{} {}", event.count.unwrap(), event.message.unwrap()))
            .collect()
    }

    pub(super) async fn export(&self) -> NetworkFilesystem {
        let claim = format!("{}/{VOLUME}", self.cluster.guest_cluster().vm_namespace);
        let claim = self.cluster.harvester.get::<PersistentVolumeClaim>(&claim).await.unwrap();
        let key = format!("harvester-system/{}", claim.spec.unwrap().volume_name.unwrap());
        self.cluster.harvester.get(&key).await.unwrap()
    }

    pub(super) async fn until_export(&self, what: &str, is_so: impl Fn(&NetworkFilesystem) -> bool) {
        for _ in 0..300 {
            if is_so(&self.export().await) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: {:?}", self.export().await);
    }
}

/// A machine of cluster `demo` that does not run.
pub(super) async fn machine(cluster: &TestCluster, name: &str) {
    let namespace = &*cluster.guest_cluster().vm_namespace;
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace, "labels": {"guestcluster.harvesterhci.io/name": "demo"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {"disks": []}}, "volumes": []}}}});
    cluster.harvester.apply(&vm.to_string()).await;
}

fn attachment(name: &str, node: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": name,
            "annotations": {"csi.alpha.kubernetes.io/node-id": node.replace("node", "vm")}},
        "spec": {"attacher": "driver.harvesterhci.io", "nodeName": node,
            "source": {"persistentVolumeName": "shared"}}})
}

/// The name that Kubernetes gives to the VolumeAttachment of the volume.
fn name_of_kubernetes(node: &str) -> String {
    let digest = Sha256::digest(format!("{VOLUME}driver.harvesterhci.io{node}"));
    format!("csi-{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn many_nodes() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
    }
}

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#exports
    async fn an_export_is_on_while_a_node_has_a_volume_attachment_and_off_after_the_last(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        assert_eq!(bed.export().await.spec.desired_state, "Disabled");
        for node in ["node-a", "node-b"] {
            bed.attachment(node).await;
        }
        let first = bed.publish("vm-a").await.unwrap();
        let export = bed.export().await;
        assert_eq!(first[context::ENDPOINT], export.status.endpoint);
        assert_eq!(Some(&first[context::EXPORT]), export.metadata.name.as_ref());
        assert_eq!(bed.publish("vm-b").await.unwrap(), first);

        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.leave("vm-a").await.unwrap();
        let export = bed.export().await;
        assert_eq!((&*export.spec.desired_state, &*export.status.state), ("Enabled", "Enabled"));

        cluster.guest.delete::<VolumeAttachment>("va-node-b").await;
        bed.leave("vm-b").await.unwrap();
        bed.until_export("the export is off", |export| export.status.state == "Disabled").await;

        bed.attachment("node-a").await;
        assert_eq!(bed.publish("vm-a").await.unwrap(), first, "it is on again");
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.leave("vm-a").await.unwrap();
        let request = DeleteVolumeRequest { volume_id: VOLUME.to_owned(), ..DeleteVolumeRequest::default() };
        bed.service.delete_volume(Request::new(request)).await.unwrap();
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#list: the attacher publishes to all of them each minute
    async fn an_export_is_published_to_many_nodes_at_once(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        for node in ["node-a", "node-b"] {
            bed.attachment(node).await;
        }
        let (first, second) = tokio::join!(bed.publish("vm-a"), bed.publish("vm-b"));
        assert_eq!(first.unwrap(), second.unwrap());
        let (same, again) = tokio::join!(bed.publish("vm-a"), bed.publish("vm-a"));
        assert_ne!(same.is_ok(), again.is_ok(), "for one node one call is under way");
        for node in ["node-a", "node-b"] {
            cluster.guest.delete::<VolumeAttachment>(&format!("va-{node}")).await;
        }
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#exports: a PersistentVolume may name the claim of another cluster
    async fn an_export_that_another_cluster_has_on_stays_on(cluster: TestCluster) {
        const ON_FOR: &str = "driver.harvesterhci.io/on-for";
        let bed = Bed::start(&cluster).await;
        machine(&cluster, "vm-a").await;
        let bed = bed.where_the_host_says(OwnMachine::Confirmed("vm-a".to_owned()));
        let export = format!("harvester-system/{}", bed.export().await.metadata.name.unwrap());
        let on_for = async || {
            let export = bed.export().await;
            let names = export.metadata.annotations.and_then(|mut all| all.remove(ON_FOR));
            (export.spec.desired_state, names.unwrap_or_default())
        };
        let state = |state: &str, names: &str| (state.to_owned(), names.to_owned());
        bed.publish("vm-a").await.unwrap();
        assert_eq!(on_for().await, state("Enabled", "demo"));
        let shop = json!({"metadata": {"annotations": {ON_FOR: "shop"}}});
        cluster.harvester.patch::<NetworkFilesystem>(&export, shop).await;
        bed.publish("vm-a").await.unwrap();
        assert_eq!(on_for().await, state("Enabled", "demo,shop"));
        bed.leave("vm-a").await.unwrap();
        assert_eq!(on_for().await, state("Enabled", "shop"));
        bed.leave("vm-a").await.unwrap();
        assert_eq!(on_for().await, state("Enabled", "shop"));
        // the Go driver names nobody
        let bare = json!({"metadata": {"annotations": {ON_FOR: null}}});
        cluster.harvester.patch::<NetworkFilesystem>(&export, bare).await;
        bed.publish("vm-a").await.unwrap();
        bed.leave("vm-a").await.unwrap();
        assert_eq!(on_for().await, state("Enabled", ""));
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#cluster-label: nobody would be named for it, and nobody would switch it off
    async fn an_export_waits_until_the_host_has_said_which_machine_is_ours(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await.where_the_host_says(OwnMachine::default());
        let state = async || bed.export().await.spec.desired_state;
        let refusal = bed.publish("vm-a").await.unwrap_err();
        assert_eq!(refusal.code(), Code::Unavailable, "{refusal}");
        assert!(refusal.message().contains("which machine this process runs in"), "{refusal}");
        assert_eq!(state().await, "Disabled");
        let served = bed.where_the_host_says(OwnMachine::None { why: "no machine has our address".to_owned() });
        served.publish("vm-a").await.unwrap();
        let refusal = bed.leave("vm-a").await.unwrap_err();
        assert_eq!(refusal.code(), Code::Unavailable, "{refusal}");
        assert_eq!(state().await, "Enabled");
        served.leave("vm-a").await.unwrap();
        assert_eq!(state().await, "Disabled");
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#exports
    async fn a_node_that_comes_while_the_export_goes_off_waits_until_it_is_on_again(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        bed.attachment("node-a").await;
        bed.publish("vm-a").await.unwrap();
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.leave("vm-a").await.unwrap();
        // the share manager has not ended yet
        bed.attachment("node-b").await;
        let context = bed.publish("vm-b").await.unwrap();
        let export = bed.export().await;
        assert_eq!((&*export.status.state, &export.status.endpoint), ("Enabled", &context[context::ENDPOINT]));
        cluster.guest.delete::<VolumeAttachment>("va-node-b").await;
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#exports
    async fn an_export_that_somebody_joined_meanwhile_is_on_again(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        bed.attachment("node-a").await;
        bed.publish("vm-a").await.unwrap();
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        // another process publishes to node-b, which writes nothing: it finds the export on
        let client = cluster.guest.client(User::Driver);
        let asked = users(Guest::new(client.clone()));
        let meanwhile = Arc::new(move |volume: &str| {
            let (answer, api) = (asked(volume), Api::<VolumeAttachment>::all(client.clone()));
            async move {
                let answer = answer.await;
                let joined = serde_json::from_value(attachment("va-node-b", "node-b")).unwrap();
                drop(api.create(&PostParams::default(), &joined).await);
                answer
            }
            .boxed()
        });
        let attaching = Attaching { users: meanwhile, ..Attaching::new("pod-b") };
        let attacher = Attacher::new(bed.host.clone(), &bed.tasks, attaching);
        let service = ControllerService::new(bed.host.clone(), Settings::default(), attacher);
        let other = Bed { cluster: &cluster, tasks: bed.tasks.clone(), service, host: bed.host.clone() };
        other.leave("vm-a").await.unwrap();
        assert_eq!(bed.export().await.spec.desired_state, "Enabled");
        cluster.guest.delete::<VolumeAttachment>("va-node-b").await;
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#exports
    async fn a_cluster_that_has_a_node_again_is_named_again_beside_those_that_joined_meanwhile(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        machine(&cluster, "vm-a").await;
        let bed = bed.where_the_host_says(OwnMachine::Confirmed("vm-a".to_owned()));
        bed.publish("vm-a").await.unwrap();
        let export = format!("harvester-system/{}", bed.export().await.metadata.name.unwrap());
        let on_for = |names: &str| json!({"metadata": {"annotations": {CSI_EXPORT_ON_FOR: names}}, "spec": {"desiredState": "Enabled"}});
        let names = async || {
            let export = bed.export().await;
            let names = export.metadata.annotations.and_then(|mut all| all.remove(CSI_EXPORT_ON_FOR));
            (export.spec.desired_state, names.unwrap_or_default())
        };
        // who has it on before; and whether somebody joins while the last node leaves, and the guest says nothing then
        for (before, is_away) in [("demo,shop", false), ("demo", true)] {
            cluster.harvester.patch::<NetworkFilesystem>(&export, on_for(before)).await;
            let asked = Arc::new(AtomicUsize::new(0));
            let joins = Patch::Merge(on_for("shop"));
            let api = Api::<NetworkFilesystem>::namespaced(cluster.harvester.client(User::Driver), "harvester-system");
            let name = export.split('/').next_back().unwrap().to_owned();
            let meanwhile = Arc::new(move |_: &str| {
                let (is_second, api, joins, name) =
                    (asked.fetch_add(1, Ordering::Relaxed) == 1, api.clone(), joins.clone(), name.clone());
                async move {
                    if is_second && is_away {
                        api.patch(&name, &PatchParams::default(), &joins).await.unwrap();
                        return Err("the guest is away".to_owned());
                    }
                    let user = csi_driver::guest::User {
                        node: "node-b".to_owned(), attachment: "va-node-b".to_owned(), is_attached: true, is_leaving: false,
                    };
                    Ok(if is_second { vec![user] } else { vec![] })
                }
                .boxed()
            });
            let other = bed.asking(OwnMachine::Confirmed("vm-a".to_owned()), meanwhile);
            assert_eq!(other.leave("vm-a").await.is_err(), is_away);
            assert_eq!(names().await, ("Enabled".to_owned(), "demo,shop".to_owned()), "{before}");
        }
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#moved
    #[simulated_only("a fault")]
    async fn an_export_that_moved_is_told_though_a_list_of_the_guest_failed(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        bed.attachment("node-a").await;
        let former = bed.attach("node-a").await[context::ENDPOINT].clone();
        bed.moves_to("10.53.99.1").await;
        let faults = cluster.guest.simulated().unwrap().faults();
        for resource in ["volumeattachments", "persistentvolumes"] {
            let mut rule = Rule::new(Answer::Code(500));
            rule.user = Some("harvester-csi-driver".to_owned());
            rule.resource = Some(resource.to_owned());
            faults.add(rule);
        }
        // the attacher keeps what it has
        let refusal = bed.publish("vm-a").await.unwrap_err();
        assert_eq!(refusal.code(), Code::Unavailable, "{refusal}");
        faults.clear();
        assert_eq!(bed.attach("node-a").await[context::FORMER], former);
        assert!(bed.condition().await.abnormal);
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#moved
    #[simulated_only("a fault")]
    async fn a_look_that_failed_tells_no_moved_export_twice(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        bed.attachment("node-a").await;
        bed.attach("node-a").await;
        bed.moves_to("10.53.99.1").await;
        assert!(bed.condition().await.abnormal);
        let faults = cluster.harvester.simulated().unwrap().faults();
        let mut rule = Rule::new(Answer::Code(500));
        rule.resource = Some("networkfilesystems".to_owned());
        faults.add(rule);
        assert!(!bed.condition().await.abnormal);
        faults.clear();
        assert!(bed.condition().await.abnormal);
        cluster.settle().await;
        let told = bed.told().await;
        assert!(told.len() == 1 && told[0].starts_with("1 the NFS export of volume"), "{told:?}");
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#list: each minute, for each node and export
    async fn publishing_an_export_again_lists_nothing(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        // one Node has the name of its machine, the other has not
        for node in ["vm-a", "node-b"] {
            let name = name_of_kubernetes(node);
            cluster.guest.apply(&attachment(&name, node).to_string()).await;
            let context = bed.publish(&node.replace("node", "vm")).await.unwrap();
            let status = json!({"status": {"attached": true, "attachmentMetadata": context}});
            cluster.guest.patch_status::<VolumeAttachment>(&name, status).await;
        }
        bed.publish("vm-b").await.unwrap();
        bed.moves_to("10.53.99.1").await;
        cluster.guest.forget_requests();
        for machine in ["vm-a", "vm-b"] {
            assert!(bed.publish(machine).await.unwrap().contains_key(context::FORMER), "{machine}");
        }
        let asked = cluster.guest.work_of(User::CsiDriver);
        assert!(asked.iter().all(|one| one.uri.contains("metadata.name")), "{asked:?}");
        for node in ["vm-a", "node-b"] {
            cluster.guest.delete::<VolumeAttachment>(&name_of_kubernetes(node)).await;
        }
        bed.tasks.end().await;
    }

    async fn a_moved_export_is_found_without_the_exports_of_others(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        bed.attachment("node-a").await;
        bed.attach("node-a").await;
        bed.moves_to("10.53.99.1").await;
        cluster.harvester.forget_requests();
        assert!(bed.condition().await.abnormal);
        let asked = cluster.harvester.work_of(User::CsiDriver);
        let exports: Vec<_> = asked.iter().filter(|one| one.resource() == "networkfilesystems").collect();
        assert!(!exports.is_empty() && exports.iter().all(|one| one.verb == "get"), "{exports:?}");
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#exports
    async fn the_next_publication_has_the_address_that_an_export_has_moved_to(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        bed.attachment("node-a").await;
        bed.publish("vm-a").await.unwrap();
        bed.moves_to("10.53.99.1").await;
        assert_eq!(bed.publish("vm-a").await.unwrap()[context::ENDPOINT], "10.53.99.1");
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#moved
    async fn an_export_that_moved_from_where_a_node_has_it_is_told_until_the_node_mounts_it_anew(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        for node in ["node-a", "node-b"] {
            bed.attachment(node).await;
        }
        let former = bed.attach("node-a").await[context::ENDPOINT].clone();
        assert!(!bed.condition().await.abnormal);
        bed.moves_to("10.53.99.1").await;
        // one that comes now has the new address
        assert_eq!(bed.attach("node-b").await.get(context::FORMER), None);
        for _ in 0..3 {
            let condition = bed.condition().await;
            assert!(condition.abnormal, "{condition:?}");
            let moved = format!("from {former} to 10.53.99.1: end all Pods that use it");
            assert!(condition.message.contains(&moved) && condition.message.ends_with(": node-a (until VolumeAttachment va-node-a is gone)"), "{condition:?}");
            // each minute the attacher publishes again
            let context = bed.attach("node-a").await;
            assert_eq!((&*context[context::ENDPOINT], &context[context::FORMER]), ("10.53.99.1", &former));
        }
        cluster.settle().await;
        let told = bed.told().await;
        assert!(told.len() == 1 && told[0].starts_with("1 the NFS export of volume"), "{told:?}");

        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.attachment("node-a").await;
        assert_eq!(bed.attach("node-a").await.get(context::FORMER), None);
        assert!(!bed.condition().await.abnormal);
        for node in ["va-node-a", "va-node-b"] {
            cluster.guest.delete::<VolumeAttachment>(node).await;
        }
        bed.tasks.end().await;
    }
}
