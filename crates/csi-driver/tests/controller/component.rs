//! The controller service with the rights of its account and no others, on simulated and on real servers, with a
//! simulated Harvester behind them.

use std::{collections::HashMap, time::Duration};

use csi_driver::{
    attach::{Attacher, hotplug},
    controller::{ControllerService, Settings},
    csi::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest,
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateSnapshotRequest,
        CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, ListSnapshotsRequest,
        ListVolumesRequest, Snapshot, VolumeCapability, VolumeContentSource,
        controller_server::Controller,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
        volume_content_source::{SnapshotSource, Type, VolumeSource},
    },
    host::Host,
};
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use program::TaskGroup;
use sim_harvester::host_objects;
use test_cluster::{TestCluster, User};
use tonic::{Code, Request};

use crate::support;

const GIB: i64 = 1 << 30;
const HOST_NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: host-1}}";

const MACHINE: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm-1, namespace: team-a}
spec:
  runStrategy: Always
  template: {spec: {domain: {devices: {disks: []}}, volumes: []}}
";

/// The service, with a Harvester of this release behind the servers.
async fn start(cluster: &TestCluster, tasks: &TaskGroup) -> ControllerService {
    let harvester = cluster.harvester.client(User::Driver);
    sim_harvester::crds::apply(&harvester).await.unwrap();
    host_objects::apply(&harvester, "v1.8.0").await.unwrap();
    cluster.harvester.apply(HOST_NODE).await;
    support::start_behind(cluster, 80, tasks);
    let host = Host::new(cluster.harvester.client(User::CsiDriver), &*cluster.guest_cluster().vm_namespace);
    ControllerService::new(
        host.clone(),
        Settings::default(),
        Attacher::new(host, tasks, csi_driver::attach::Options::new("pod-a")),
    )
}

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

fn volume(name: &str, required_bytes: i64, source: Option<Type>) -> Request<CreateVolumeRequest> {
    Request::new(CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        parameters: HashMap::from([("hostStorageClass".to_owned(), host_objects::STORAGE_CLASS.to_owned())]),
        volume_content_source: source.map(|source| VolumeContentSource { r#type: Some(source) }),
        ..CreateVolumeRequest::default()
    })
}

async fn runs(cluster: &TestCluster) {
    for _ in 0..300 {
        let vmi = cluster.harvester.get::<VirtualMachineInstance>("team-a/vm-1").await;
        if vmi.and_then(|vmi| vmi.status).is_some_and(|status| status.phase == "Running") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("the machine does not run after 300 looks");
}

/// Whether the machine and its instance have a disk for the claim, as virt-controller and the driver have written it.
async fn has_disk(cluster: &TestCluster, claim: &str) -> [bool; 2] {
    let vm = cluster.harvester.get::<VirtualMachine>("team-a/vm-1").await.unwrap();
    let vmi = cluster.harvester.get::<VirtualMachineInstance>("team-a/vm-1").await.unwrap();
    let phase = |status: &serde_json::Value| status["name"] == claim && status["phase"] == "Ready";
    let status = vmi.status.as_ref().and_then(|status| status.rest.get("volumeStatus")?.as_array());
    let mut in_template = hotplug::claims(Some(&vm), None);
    [in_template.any(|one| one == claim), status.is_some_and(|all| all.iter().any(phase))]
}

async fn published(service: &ControllerService, id: &str) -> Vec<String> {
    let get = ControllerGetVolumeRequest { volume_id: id.to_owned() };
    let answer = service.controller_get_volume(Request::new(get)).await.unwrap().into_inner();
    answer.status.unwrap().published_node_ids
}

/// Asks for a snapshot as the external snapshotter does, until it is ready.
async fn snapshot(service: &ControllerService, name: &str, source: &str) -> Snapshot {
    for _ in 0..60 {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..CreateSnapshotRequest::default()
        };
        let answer =
            service.create_snapshot(Request::new(request)).await.unwrap().into_inner().snapshot.unwrap();
        if answer.ready_to_use {
            return answer;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("snapshot {name} is not ready after 60 questions");
}

async fn volumes(service: &ControllerService) -> usize {
    let list = service.list_volumes(Request::new(ListVolumesRequest::default())).await.unwrap();
    list.into_inner().entries.len()
}

async fn snapshots(service: &ControllerService) -> usize {
    let list = service.list_snapshots(Request::new(ListSnapshotsRequest::default())).await.unwrap();
    list.into_inner().entries.len()
}

test_cluster::component_tests! {
    /// Created, grown, copied, restored, listed and deleted, each call with the rights of the role alone.
    #[each_role]
    async fn a_volume_lives_its_life_with_the_rights_of_the_driver(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let service = start(&cluster, &tasks).await;
        let id = service.create_volume(volume("Sanity-Volume", GIB, None)).await.unwrap().into_inner().volume.unwrap().volume_id;
        let taken = snapshot(&service, "Sanity-Snapshot", &id).await;
        assert_eq!((taken.size_bytes, taken.source_volume_id.as_str()), (GIB, id.as_str()));

        let grow = ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: Some(CapacityRange { required_bytes: 2 * GIB, limit_bytes: 0 }),
            ..ControllerExpandVolumeRequest::default()
        };
        let grown = service.controller_expand_volume(Request::new(grow)).await.unwrap().into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (2 * GIB, false));

        let from = Type::Snapshot(SnapshotSource { snapshot_id: taken.snapshot_id.clone() });
        let restored = service.create_volume(volume("restored", GIB, Some(from))).await.unwrap().into_inner();
        assert_eq!(restored.volume.unwrap().capacity_bytes, 2 * GIB, "Longhorn copies into the size of the volume of now");
        let from = Type::Volume(VolumeSource { volume_id: id.clone() });
        let small = service.create_volume(volume("copy", GIB, Some(from.clone()))).await.unwrap_err();
        assert_eq!(small.code(), Code::OutOfRange);
        service.create_volume(volume("copy", 2 * GIB, Some(from))).await.unwrap();
        assert_eq!((volumes(&service).await, snapshots(&service).await), (3, 1));
        let get = ControllerGetVolumeRequest { volume_id: id.clone() };
        let state = service.controller_get_volume(Request::new(get)).await.unwrap().into_inner().status.unwrap();
        assert!(!state.volume_condition.unwrap().abnormal);

        let request = DeleteSnapshotRequest { snapshot_id: taken.snapshot_id, ..DeleteSnapshotRequest::default() };
        service.delete_snapshot(Request::new(request)).await.unwrap();
        for volume_id in [id.as_str(), "restored", "copy", "copy"] {
            let request = DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..DeleteVolumeRequest::default() };
            service.delete_volume(Request::new(request)).await.unwrap();
        }
        assert_eq!((volumes(&service).await, snapshots(&service).await), (0, 0));
        tasks.end().await;
    }

    /// A machine that runs gets the disk and gives it back, by patches that the API server and its rights let pass.
    #[each_role]
    async fn a_disk_comes_into_a_machine_that_runs_and_leaves_it_with_the_rights_of_the_driver(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let service = start(&cluster, &tasks).await;
        cluster.harvester.apply(MACHINE).await;
        runs(&cluster).await;
        let id = service.create_volume(volume("data", GIB, None)).await.unwrap().into_inner().volume.unwrap().volume_id;
        for _ in 0..2 {
            let publish = ControllerPublishVolumeRequest {
                volume_id: id.clone(),
                node_id: "vm-1".to_owned(),
                volume_capability: Some(capability()),
                ..ControllerPublishVolumeRequest::default()
            };
            service.controller_publish_volume(Request::new(publish)).await.unwrap();
            assert_eq!(has_disk(&cluster, &id).await, [true, true]);
            assert_eq!(published(&service, &id).await, ["vm-1"]);
            let unpublish = ControllerUnpublishVolumeRequest {
                volume_id: id.clone(),
                node_id: "vm-1".to_owned(),
                ..ControllerUnpublishVolumeRequest::default()
            };
            service.controller_unpublish_volume(Request::new(unpublish)).await.unwrap();
            assert_eq!(has_disk(&cluster, &id).await, [false, false]);
            assert_eq!(published(&service, &id).await, [""; 0]);
        }
        tasks.end().await;
    }
}
