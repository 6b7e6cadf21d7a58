//! The order of the calls, with a node service that only listens: nothing is mounted, and time costs nothing.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, ResourceExt};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_sidecars::{NodeStub, Pace, kinds::VolumeSnapshot};
use test_cluster::TestCluster;

use crate::lab::{Lab, NODES, OF_SNAPSHOT, SNAPSHOT, claim, pod, root, until};

/// A class of the guest for a class of the host that nobody has made.
const TIERED: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: tiered}
provisioner: driver.harvesterhci.io
reclaimPolicy: Delete
volumeBindingMode: Immediate
parameters: {hostStorageClass: gold}
";
const GOLD: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: gold}
provisioner: driver.longhorn.io
reclaimPolicy: Delete
volumeBindingMode: Immediate
";

test_cluster::component_tests! {
    // the provisioner writes the driver's message into an Event on the claim
    #[simulated_only("the order is that of the stand-ins: the server makes no difference")]
    async fn a_class_that_the_host_does_not_have_is_named_in_an_event_on_the_guests_claim(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let lab = Lab::start(&cluster, &tasks, Pace::quick(), Clock::starting_at(cluster.start())).await;
        cluster.guest.apply(TIERED).await;
        cluster.guest.apply(&claim("data", "1Gi", "").replace("storageClassName: harvester", "storageClassName: tiered"))
            .await;
        let events = Api::<Event>::namespaced(lab.guest.clone(), "default");
        let message = until("an Event on the claim", || async {
            let of_claim = |event: &Event| {
                let about = &event.involved_object;
                (about.kind.as_deref(), about.name.as_deref()) == (Some("PersistentVolumeClaim"), Some("data"))
                    && event.reason.as_deref() == Some("ProvisioningFailed")
            };
            events.list(&Default::default()).await.unwrap().items.into_iter().find(of_claim)?.message
        })
        .await;
        let next = "StorageClass gold does not exist on the host: create it there, or name another one by hostStorageClass";
        assert!(message.contains(next), "{message}");
        cluster.harvester.apply(GOLD).await;
        lab.bound("data").await;
        tasks.end().await;
    }

    #[simulated_only("the order is that of the stand-ins: the server makes no difference")]
    async fn a_volume_goes_through_its_life_in_the_order_of_the_originals(cluster: TestCluster) {
        let (tasks, folder) = (TaskGroup::new(), tempfile::tempdir().unwrap());
        let lab = Lab::start(&cluster, &tasks, Pace::default(), Clock::starting_at(cluster.start())).await;
        for node in NODES {
            let plugin = lab.calls.plugin(NodeStub::new(node).routes());
            lab.sidecars.kubelet(node, plugin, &root(folder.path(), node), &tasks);
        }
        cluster.settle().await;
        assert_eq!(lab.calls.take(), ["NodeGetInfo"]);

        cluster.guest.apply(&claim("data", "1Gi", "")).await;
        let volume = lab.bound("data").await;
        cluster.guest.apply(&pod("writer", "data", "")).await;
        let (node, _) = lab.mounted("writer").await;
        let order = ["CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"];
        assert_eq!(lab.calls.take(), order);
        let attachments = Api::<VolumeAttachment>::all(lab.guest.clone());
        let attachment = attachments.list(&Default::default()).await.unwrap().items.remove(0);
        assert_eq!((&attachment.spec.node_name, attachment.finalizers()),
            (&node, &["external-attacher/driver-harvesterhci-io".to_owned()][..]));
        assert!(attachment.status.unwrap().attached);

        // a second pod elsewhere has to wait for the end of the first
        let other = NODES.into_iter().find(|other| *other != node).unwrap();
        cluster.guest.apply(&pod("next", "data", other)).await;
        cluster.settle().await;
        assert_eq!(lab.calls.take(), [""; 0]);
        lab.delete::<Pod>("writer").await;
        assert_eq!(lab.mounted("next").await.0, other);
        let order = ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
            "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"];
        assert_eq!(lab.calls.take(), order);

        let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        cluster.guest.patch::<PersistentVolumeClaim>("default/data", larger).await;
        lab.has_size("data", "2Gi").await;
        assert_eq!(lab.calls.take(), ["ControllerExpandVolume", "NodeExpandVolume"]);
        let volumes = Api::<PersistentVolume>::all(lab.guest.clone());
        let size = volumes.get(&volume).await.unwrap().spec.unwrap().capacity.unwrap()["storage"].0.clone();
        assert_eq!(size, "2Gi");

        apply_snapshot(&lab, SNAPSHOT).await;
        cluster.guest.apply(&claim("restored", "2Gi", OF_SNAPSHOT)).await;
        lab.bound("restored").await;
        assert_eq!(lab.calls.take(), ["CreateSnapshot", "CreateVolume"]);

        lab.delete::<Pod>("next").await;
        lab.none::<VolumeAttachment>().await;
        let order = ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"];
        assert_eq!(lab.calls.take(), order);
        lab.delete::<VolumeSnapshot>("before").await;
        lab.none::<VolumeSnapshot>().await;
        lab.delete::<PersistentVolumeClaim>("data").await;
        lab.delete::<PersistentVolumeClaim>("restored").await;
        lab.none::<PersistentVolume>().await;
        assert_eq!(lab.calls.take(), ["DeleteSnapshot", "DeleteVolume"]);
        let left = Api::<PersistentVolumeClaim>::all(cluster.harvester.client(test_cluster::User::Driver));
        assert_eq!(left.list(&Default::default()).await.unwrap().items.len(), 0);
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#limits
    #[simulated_only("the scheduler is a stand-in: the server makes no difference")]
    async fn a_pod_goes_to_no_node_that_has_as_many_volumes_as_its_driver_said(cluster: TestCluster) {
        let (tasks, folder) = (TaskGroup::new(), tempfile::tempdir().unwrap());
        let lab = Lab::start(&cluster, &tasks, Pace::default(), Clock::starting_at(cluster.start())).await;
        for (node, most) in NODES.into_iter().zip([1, 0]) {
            let plugin = lab.calls.plugin(NodeStub::new(node).taking(most).routes());
            lab.sidecars.kubelet(node, plugin, &root(folder.path(), node), &tasks);
        }
        for name in ["a", "b", "c"] {
            cluster.guest.apply(&claim(name, "1Gi", "")).await;
            lab.bound(name).await;
        }
        // the second node has more pods, and the first one no room
        let [first, second] = NODES;
        for (name, claim, node, expected) in
            [("one", "a", first, first), ("two", "b", second, second), ("three", "b", second, second), ("four", "c", "", second)]
        {
            cluster.guest.apply(&pod(name, claim, node)).await;
            assert_eq!(lab.mounted(name).await.0, expected, "{name}");
        }
        // what is there already takes no more room
        cluster.guest.apply(&pod("five", "a", "")).await;
        assert_eq!(lab.mounted("five").await.0, first);
        cluster.guest.apply(&pod("six", "c", first)).await;
        cluster.settle().await;
        let six = Api::<Pod>::namespaced(lab.guest.clone(), "default").get("six").await.unwrap();
        assert_eq!(six.spec.unwrap().node_name, None);
        tasks.end().await;
    }

    #[simulated_only("the order is that of the stand-ins: the server makes no difference")]
    async fn a_snapshot_that_is_deleted_while_it_is_made_is_made_first_and_deleted_then(cluster: TestCluster) {
        let (tasks, clock) = (TaskGroup::new(), Clock::starting_at(cluster.start()));
        let pace = Pace { call: Duration::from_secs(1), ..Pace::default() };
        let lab = Lab::start(&cluster, &tasks, pace, clock).await;
        cluster.guest.apply(&claim("data", "1Gi", "")).await;
        lab.bound("data").await;
        lab.calls.take();
        // the host takes two seconds, and the first call is given up after one
        drop(create_snapshot(&lab, SNAPSHOT).await);
        cluster.advance(Duration::from_millis(1500)).await;
        lab.delete::<VolumeSnapshot>("before").await;
        lab.none::<VolumeSnapshot>().await;
        assert_eq!(lab.calls.take(), ["CreateSnapshot", "DeleteSnapshot"]);
        assert!(cluster.harvester.list::<sim_harvester::VolumeSnapshot>().await.is_empty());
        tasks.end().await;
    }
}

async fn create_snapshot(lab: &Lab, yaml: &str) -> Api<VolumeSnapshot> {
    let snapshots = Api::<VolumeSnapshot>::namespaced(lab.guest.clone(), "default");
    let snapshot: VolumeSnapshot =
        serde_json::from_value(test_cluster::manifests::documents(yaml).unwrap().remove(0)).unwrap();
    snapshots.create(&Default::default(), &snapshot).await.unwrap();
    snapshots
}

/// Makes a snapshot and waits until all that there are can be used.
pub(crate) async fn apply_snapshot(lab: &Lab, yaml: &str) {
    let snapshots = create_snapshot(lab, yaml).await;
    let is_ready = |one: &VolumeSnapshot| {
        one.status.as_ref().is_some_and(|status| status.fields.get("readyToUse") == Some(&true.into()))
    };
    until("the snapshots to be ready", || async {
        let all = snapshots.list(&Default::default()).await.unwrap().items;
        all.iter().all(is_ready).then_some(())
    })
    .await;
}
