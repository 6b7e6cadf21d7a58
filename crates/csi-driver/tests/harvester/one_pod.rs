//! One pod on the host brings all disks of a machine (docs/contract/csi-driver.md#hot-plug-pod): what one volume does to
//! the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use csi_driver::{
    attach::{WAITED_FOR, hotplug},
    csi::{
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
    refusal::Refusal,
};
use futures::future::join_all;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use sim_harvester::{
    host_objects,
    settings::{FULL, HOTPLUG},
};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::{
    bed::{Bed, VOLUME},
    process::Process,
    round::Deeds,
};

/// A class that binds a claim when a machine has it.
pub(crate) const WAITS: &str = "lvm";

impl Bed {
    pub(crate) async fn class_that_waits(&self) {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": WAITS},
            "provisioner": "lvm.driver.harvesterhci.io", "volumeBindingMode": "WaitForFirstConsumer"});
        self.create(Api::<StorageClass>::all(self.admin.clone()), class).await;
    }

    pub(crate) async fn class_has_room(&self, has_room: bool) {
        let full = (!has_room).then_some("yes");
        let patch = Patch::Merge(json!({"metadata": {"annotations": {FULL: full}}}));
        let classes = Api::<StorageClass>::all(self.admin.clone());
        classes.patch(WAITS, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn claim(&self, name: &str, class: &str) {
        let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block",
            "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}});
        self.create(self.claims(), claim).await;
        sleep(Duration::from_secs(1)).await;
    }

    pub(crate) async fn host_attaches(&self, claim: &str, how: Option<&str>) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {HOTPLUG: how}}}));
        self.claims().patch(claim, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn template_has(&self, claim: &str) -> bool {
        let vm = self.machines().get("a").await.unwrap();
        hotplug::claims(Some(&vm), None).any(|name| name == claim)
    }

    async fn go_driver_adds(&self, claim: &str) {
        let vm = self.machines().get("a").await.unwrap();
        let patch = serde_json::from_value(hotplug::add(&vm, claim).unwrap()).unwrap();
        let patch = Patch::<harvester_api::VirtualMachine>::Json(patch);
        self.machines().patch("a", &PatchParams::default(), &patch).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
}

impl Process {
    pub(crate) async fn publish(&self, volume: &str, within: u64) -> Result<(), Refusal> {
        let capability = VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        };
        let request = ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: "a".to_owned(),
            volume_capability: Some(capability),
            ..ControllerPublishVolumeRequest::default()
        };
        self.attacher.publish(&request, Duration::from_secs(within)).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, volume: &str, within: u64) -> Result<(), Refusal> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: "a".to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        self.attacher.unpublish(&request, Duration::from_secs(within)).await
    }
}

pub(crate) async fn bed() -> (Bed, Process) {
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "p1", 0, &Deeds::default());
    // from then on everything is watched
    driver.publish(VOLUME, 100).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    (bed, driver)
}

/// kubevirt#16937
#[tokio::test(start_paused = true)]
async fn a_volume_that_comes_and_goes_keeps_no_other_out_of_its_machine() {
    let (bed, driver) = bed().await;
    bed.plugs("a", "slow=8s").await;
    for name in ["busy-1", "busy-2", "other"] {
        bed.claim(name, host_objects::STORAGE_CLASS).await;
    }
    let goes_on = Arc::new(AtomicBool::new(true));
    let busy = async |name: &str, after: u64| {
        sleep(Duration::from_millis(after)).await;
        while goes_on.load(Ordering::Relaxed) {
            let (_, ()) = tokio::join!(driver.publish(name, 4), sleep(Duration::from_millis(2_500)));
            let (_, ()) = tokio::join!(driver.unpublish(name, 4), sleep(Duration::from_millis(2_500)));
        }
    };
    let other = async {
        sleep(Duration::from_secs(20)).await;
        let came = timeout(Duration::from_secs(60), driver.publish("other", 100)).await;
        let left = timeout(Duration::from_secs(60), driver.unpublish("other", 100)).await;
        goes_on.store(false, Ordering::Relaxed);
        (came, left)
    };
    let (_, _, (came, left)) = tokio::join!(busy("busy-1", 0), busy("busy-2", 1_250), other);
    came.expect("it is kept out").unwrap();
    left.expect("it is kept in").unwrap();
}

/// Somebody else adds a disk each five seconds.
#[tokio::test(start_paused = true)]
async fn a_volume_waits_no_longer_however_many_others_come() {
    let (bed, driver) = bed().await;
    let foreign: Vec<_> = (0..12).map(|number| format!("foreign-{number}")).collect();
    for name in foreign.iter().map(String::as_str).chain(["other"]) {
        bed.claim(name, host_objects::STORAGE_CLASS).await;
    }
    bed.plugs("a", "slow=8s").await;
    let others = async {
        for name in &foreign {
            bed.go_driver_adds(name).await;
            sleep(Duration::from_secs(4)).await;
        }
    };
    let added = async {
        sleep(Duration::from_secs(7)).await;
        let begun = Instant::now();
        let is_added = bed.until("it is added", async || bed.template_has("other").await);
        let in_time = async {
            is_added.await;
            assert!(begun.elapsed() < WAITED_FOR + Duration::from_secs(3), "{:?}", begun.elapsed());
        };
        // it may end without the disk: others come still
        let (_, ()) = tokio::join!(driver.publish("other", 60), in_time);
    };
    tokio::join!(others, added);
}

#[tokio::test(start_paused = true)]
async fn the_sentence_about_a_disk_that_waits_names_the_claim_that_holds_its_pod() {
    let (bed, driver) = bed().await;
    for (name, class) in [("lvm-1", WAITS), ("good", host_objects::STORAGE_CLASS)] {
        bed.claim(name, class).await;
    }
    bed.go_driver_adds("lvm-1").await;
    let refusal = driver.publish("good", 100).await.unwrap_err();
    assert_eq!(refusal.code, Code::Aborted);
    for part in ["volume good", "PersistentVolumeClaim shop/lvm-1 on the host", "Pod shop/hp-volume-"] {
        assert!(refusal.message.contains(part), "{part}: {refusal}");
    }
    // and of one that is on its way out
    let refusal = driver.unpublish(VOLUME, 100).await.unwrap_err();
    for part in ["volume pvc-1 is still in", "PersistentVolumeClaim shop/lvm-1 on the host"] {
        assert!(refusal.message.contains(part), "{part}: {refusal}");
    }
}

/// The most claims of these that were in the template at once while they were not bound, until all are; looks each so many
/// milliseconds.
async fn most_unbound(bed: &Bed, names: &[String], each: u64) -> usize {
    let mut most = 0;
    loop {
        let claims = bed.claims().list(&Default::default()).await.unwrap().items;
        let vm = bed.machines().get("a").await.unwrap();
        let mut unbound = claims.iter().filter(|claim| {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            phase != Some("Bound") && names.contains(claim.metadata.name.as_ref().unwrap())
        });
        let is_there = |name: &str| hotplug::claims(Some(&vm), None).any(|there| there == name);
        most = most.max(unbound.clone().filter(|it| is_there(it.metadata.name.as_deref().unwrap())).count());
        if unbound.next().is_none() {
            return most;
        }
        sleep(Duration::from_millis(each)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_of_a_class_that_binds_at_use_come_together() {
    let (bed, driver) = bed().await;
    bed.class_that_waits().await;
    bed.plugs("a", "slow=8s").await;
    let names: Vec<_> = (0..20).map(|number| format!("lvm-{number}")).collect();
    for name in &names {
        bed.claim(name, WAITS).await;
    }
    let all = join_all(names.iter().map(|name| driver.publish(name, 110)));
    let both = async { tokio::join!(all, most_unbound(&bed, &names, 1)) };
    let (answers, most) = timeout(Duration::from_secs(120), both).await.expect("they come one by one");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(most, names.len(), "one change of the machine adds all");
}

#[tokio::test(start_paused = true)]
async fn after_one_did_not_come_its_class_comes_one_at_a_time() {
    let (bed, driver) = bed().await;
    bed.class_that_waits().await;
    // bound by its first stay in the machine
    bed.claim("bound", WAITS).await;
    driver.publish("bound", 100).await.unwrap();
    driver.unpublish("bound", 100).await.unwrap();
    bed.class_has_room(false).await;
    let names: Vec<_> = (1..=3).map(|number| format!("lvm-{number}")).collect();
    for name in &names {
        bed.claim(name, WAITS).await;
    }
    bed.claim("good", host_objects::STORAGE_CLASS).await;
    let comes = async |name: &str| {
        while driver.publish(name, 100).await.is_err() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let good = async {
        sleep(Duration::from_secs(2)).await;
        comes("good").await;
    };
    tokio::join!(async { driver.publish(&names[0], 100).await.unwrap_err() }, good);
    assert!(!bed.template_has(&names[0]).await, "it was taken out");
    // which says nothing of the room that the class has
    driver.publish("bound", 100).await.unwrap();
    let has_room = async {
        sleep(Duration::from_secs(20)).await;
        bed.class_has_room(true).await;
    };
    let all = join_all(names.iter().map(|name| comes(name)));
    let (_, most, ()) = tokio::join!(all, most_unbound(&bed, &names, 250), has_room);
    assert_eq!(most, 1);
}
