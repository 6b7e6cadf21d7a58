//! A machine that moves to another node of Harvester while its volume comes or goes: KubeVirt plugs nothing meanwhile, and
//! the driver writes nothing into its template.

use std::time::Duration;

use csi_driver::attach::{BELIEVED_FOR, hotplug};
use harvester_api::{VirtualMachine, annotations::CSI_ATTACH};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use rstest::rstest;
use serde_json::{Value, json};
use sim_harvester::{settings::MIGRATION, vm::VirtualMachineInstanceMigration};
use tokio::time::sleep;
use tonic::Code;

use super::{
    bed::{Bed, NAMESPACE, OLD, VOLUME},
    process::Process,
    replay::Replay,
    round::Deeds,
};

impl Bed {
    fn migrations(&self) -> Api<VirtualMachineInstanceMigration> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// Machine `a` begins to move, and goes on doing so.
    async fn migrates(&self) {
        self.create(Api::<Node>::all(self.admin.clone()), json!({"metadata": {"name": "host-2"}})).await;
        let migration = json!({"metadata": {"name": "move", "annotations": {MIGRATION: "stuck"}},
            "spec": {"vmiName": "a"}});
        self.create(self.migrations(), migration).await;
        self.until("it moves", async || {
            let status = self.instances().get("a").await.unwrap().status.unwrap();
            status.migration_state.is_some_and(|state| !state.completed)
        })
        .await;
        sleep(Duration::from_secs(1)).await;
    }

    async fn arrives(&self) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {MIGRATION: null}}}));
        self.migrations().patch("move", &PatchParams::default(), &patch).await.unwrap();
        self.until("it has moved", async || {
            self.instances().get("a").await.unwrap().status.unwrap().node_name == "host-2"
        })
        .await;
    }

    /// The template of machine `a`, and what it is asked for by requests.
    async fn template(&self) -> (Value, Option<Value>) {
        let vm = self.machines().get("a").await.unwrap();
        let requests = vm.status.and_then(|status| status.rest.get("volumeRequests").cloned());
        (vm.spec.rest["template"].clone(), requests)
    }

    fn was_in_one_machine_at_a_time(&self) {
        let replay = Replay::of(std::mem::take(&mut *self.states.lock().unwrap()));
        assert_eq!(replay.in_two_machines(), None);
    }
}

/// Machine `a`, which migrates while the volume is to come into it, or to leave it.
async fn moving(version: &str, is_publish: bool) -> (Bed, Process) {
    let bed = Bed::new(version).await;
    let driver = Process::new(&bed, "first", 0, &Deeds::default());
    if !is_publish {
        driver.call(true, "a").await.unwrap();
    }
    bed.migrates().await;
    (bed, driver)
}

fn expected(is_publish: bool) -> &'static [&'static str] {
    if is_publish { &["a"] } else { &[] }
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_machine_that_migrates_is_written_when_it_has_arrived(
    #[values(true, false)] is_publish: bool,
    #[values("v1.8.0", OLD)] version: &str,
) {
    let (bed, driver) = moving(version, is_publish).await;
    let before = bed.template().await;
    for _ in 0..3 {
        let refused = driver.call(is_publish, "a").await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{refused}");
        assert!(refused.message().ends_with("look at the live migration of the machine"), "{refused}");
        assert_eq!(bed.template().await, before);
    }
    let arrives = async {
        sleep(Duration::from_secs(3)).await;
        bed.arrives().await;
    };
    let (answer, ()) = tokio::join!(driver.call(is_publish, "a"), arrives);
    answer.unwrap();
    assert_eq!(bed.with_volume().await, expected(is_publish));
    bed.was_in_one_machine_at_a_time();
    bed.tasks.end().await;
}

// docs/contract/csi-driver.md#migrates
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_machine_whose_migration_was_never_begun_is_written_at_once(
    #[values(true, false)] is_publish: bool,
) {
    let (bed, driver) = moving("v1.8.0", is_publish).await;
    let left = Patch::Merge(json!({"status": {"migrationState": {"startTimestamp": null}}}));
    bed.instances().patch("a", &PatchParams::default(), &left).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    driver.call(is_publish, "a").await.unwrap();
    assert_eq!(bed.with_volume().await, expected(is_publish));
    bed.tasks.end().await;
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_machine_whose_migration_does_not_end_is_written_after_an_hour(
    #[values(true, false)] is_publish: bool,
) {
    let (bed, driver) = moving("v1.8.0", is_publish).await;
    let before = bed.template().await;
    for _ in 0..2 {
        driver.call(is_publish, "a").await.unwrap_err();
        assert_eq!(bed.template().await, before);
        sleep(BELIEVED_FOR / 2).await;
    }
    // the host plugs nothing yet
    driver.call(is_publish, "a").await.unwrap_err();
    let has_it = bed.template().await.0.to_string().contains(VOLUME);
    assert_eq!(has_it, is_publish);
    bed.tasks.end().await;
}

// docs/contract/csi-driver.md#migrates
#[tokio::test(start_paused = true)]
async fn a_disk_that_another_machine_has_too_leaves_one_that_migrates() {
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "first", 0, &Deeds::default());
    driver.call(true, "a").await.unwrap();
    bed.migrates().await;
    // as the Go driver adds it
    let b = bed.machines().get("b").await.unwrap();
    let patch = serde_json::from_value(hotplug::add(&b, VOLUME).unwrap()).unwrap();
    bed.machines().patch("b", &PatchParams::default(), &Patch::<VirtualMachine>::Json(patch)).await.unwrap();
    let text = json!({"vm": "b", "vmUid": b.metadata.uid, "op": "attach", "holder": "dead", "leaving": "a"});
    let told = Patch::Merge(json!({"metadata": {"annotations": {CSI_ATTACH: text.to_string()}}}));
    bed.claims().patch(VOLUME, &PatchParams::default(), &told).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let refused = driver.call(true, "b").await.unwrap_err();
    assert!(!refused.message().contains("live migration"), "{refused}");
    assert!(!bed.template().await.0.to_string().contains(VOLUME));
    bed.arrives().await;
    bed.until("it has left", async || driver.call(true, "b").await.is_ok()).await;
    assert_eq!(bed.with_volume().await, ["b"]);
    bed.tasks.end().await;
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn what_is_to_be_healed_in_a_machine_that_migrates_is_healed_when_it_has_arrived(
    #[values(true, false)] is_wanted: bool,
) {
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "first", 0, &Deeds::default());
    bed.has_nodes_and_a_volume().await;
    bed.wants("a").await;
    if !is_wanted {
        driver.call(true, "a").await.unwrap();
        bed.is_told_attached("a").await;
        bed.no_longer_wants("a").await;
    }
    bed.migrates().await;
    let before = bed.template().await;
    driver.reconcile(&bed);
    sleep(Duration::from_secs(400)).await;
    assert_eq!(bed.template().await, before);
    bed.arrives().await;
    bed.until("it is healed", async || bed.with_volume().await == expected(is_wanted)).await;
    bed.was_in_one_machine_at_a_time();
    bed.tasks.end().await;
}
