//! Volumes for many nodes: an export of the host that is there for as long as a node uses it.

use std::{collections::HashMap, net::Ipv4Addr, time::Duration};

use csi_driver::{
    attach::{Attacher, Options as Attaching},
    controller::{ControllerService, Settings},
    csi::{
        CapacityRange, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
        DeleteVolumeRequest, VolumeCapability,
        controller_server::Controller,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
    guest::Guest,
    host::{Host, kinds::NetworkFilesystem},
    run::users,
    volume::context,
};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::VolumeAttachment};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_harvester::{Carrier, Lan, Options, Release, SimHarvester, host_objects, settings::Dhcp};
use test_cluster::{TestCluster, User};
use tonic::{Request, Status};

const VOLUME: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";
const PV: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Gi}
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: driver.harvesterhci.io, volumeHandle: pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11}
";

struct Bed<'a> {
    cluster: &'a TestCluster,
    tasks: TaskGroup,
    service: ControllerService,
}

impl<'a> Bed<'a> {
    /// A volume for many nodes.
    async fn start(cluster: &'a TestCluster) -> Self {
        let (tasks, harvester) = (TaskGroup::new(), cluster.harvester.client(User::Driver));
        host_objects::apply(&harvester, "v1.8.0").await.unwrap();
        let range = |last| Ipv4Addr::new(127, 84, 0, last);
        let options = Options {
            harvester,
            guest: cluster.guest.client(User::Driver),
            cluster: cluster.guest_cluster().name.clone(),
            network: "198.18.246.0/24".parse().unwrap(),
            workloads: vec![],
            writes_slices: cluster.guest.simulated().is_some(),
            harvester_vip: Release::From12,
            guest_vip: Release::From12,
            carrier: Carrier::Memory,
            lan: Lan::memory(),
            dhcp: Dhcp { pool: (range(100), range(120)), lease_seconds: 600, silent: false },
            clock: Clock::starting_at(cluster.start()),
            seed: 7,
        };
        drop(SimHarvester::start(options, &tasks));
        let namespace = &*cluster.guest_cluster().vm_namespace;
        let host = Host::new(cluster.harvester.client(User::CsiDriver), namespace);
        let guest = Guest::new(cluster.guest.client(User::CsiDriver));
        let attaching = Attaching { users: users(guest), ..Attaching::new("pod-a") };
        let service =
            ControllerService::new(host.clone(), Settings::default(), Attacher::new(host, &tasks, attaching));
        let bed = Self { cluster, tasks, service };
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

    /// The attacher's VolumeAttachment for this node.
    async fn attachment(&self, node: &str) {
        let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": format!("va-{node}")},
            "spec": {"attacher": "driver.harvesterhci.io", "nodeName": node,
                "source": {"persistentVolumeName": "shared"}}});
        self.cluster.guest.apply(&attachment.to_string()).await;
    }

    async fn publish(&self, node: &str) -> Result<HashMap<String, String>, Status> {
        let request = ControllerPublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(many_nodes()),
            ..ControllerPublishVolumeRequest::default()
        };
        let answer = self.service.controller_publish_volume(Request::new(request)).await?;
        Ok(answer.into_inner().publish_context)
    }

    /// The attacher lets the node go: first the call, then its object.
    async fn leave(&self, node: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            node_id: node.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        self.service.controller_unpublish_volume(Request::new(request)).await.map(drop)
    }

    async fn export(&self) -> NetworkFilesystem {
        let claim = format!("{}/{VOLUME}", self.cluster.guest_cluster().vm_namespace);
        let claim = self.cluster.harvester.get::<PersistentVolumeClaim>(&claim).await.unwrap();
        let key = format!("harvester-system/{}", claim.spec.unwrap().volume_name.unwrap());
        self.cluster.harvester.get(&key).await.unwrap()
    }

    async fn until_export(&self, what: &str, is_so: impl Fn(&NetworkFilesystem) -> bool) {
        for _ in 0..300 {
            if is_so(&self.export().await) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: {:?}", self.export().await);
    }
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
    async fn the_next_publication_has_the_address_that_an_export_has_moved_to(cluster: TestCluster) {
        let bed = Bed::start(&cluster).await;
        bed.attachment("node-a").await;
        bed.publish("vm-a").await.unwrap();
        let key = format!("harvester-system/{}", bed.export().await.metadata.name.unwrap());
        let moved = json!({"metadata": {"annotations": {"sim.harvesterhci.io/endpoint": "10.53.99.1"}}});
        cluster.harvester.patch::<NetworkFilesystem>(&key, moved).await;
        bed.until_export("the export has moved", |export| export.status.endpoint == "10.53.99.1").await;
        assert_eq!(bed.publish("vm-a").await.unwrap()[context::ENDPOINT], "10.53.99.1");
        cluster.guest.delete::<VolumeAttachment>("va-node-a").await;
        bed.tasks.end().await;
    }
}
