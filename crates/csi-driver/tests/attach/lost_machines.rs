//! Volumes of machines that are lost: they are free as soon as nothing of them is in a machine that may run, and no earlier.

use std::sync::atomic::Ordering;

use kube::api::{DeleteParams, Patch, PatchParams};
use rstest::rstest;
use serde_json::json;
use tonic::Code;

use super::host::{Bed, Process};

/// How machine `a` is lost. KubeVirt's controllers are of no help.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Its instance is gone; the template has the volume.
    Stopped,
    /// Its instance has ended and is there yet, with the volume.
    Ended,
    Deleted,
    /// Its instance has ended and is there yet, without its machine.
    DeletedAndEnded,
}

impl Bed {
    async fn lose(&self, loss: Loss) {
        self.works.store(false, Ordering::Relaxed);
        let all = DeleteParams::default();
        if matches!(loss, Loss::Ended | Loss::DeletedAndEnded) {
            self.instance_is("Failed").await;
        } else {
            self.instances().delete("a", &all).await.unwrap();
        }
        if matches!(loss, Loss::Deleted | Loss::DeletedAndEnded) {
            self.machines().delete("a", &all).await.unwrap();
        }
    }

    async fn instance_is(&self, phase: &str) {
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        self.instances().patch("a", &PatchParams::default(), &patch).await.unwrap();
    }

    fn virt_controller_works(&self) {
        self.works.store(true, Ordering::Relaxed);
        self.wake();
    }
}

// docs/contract/csi-driver.md#node-lost
#[rstest]
#[case(Loss::Stopped)]
#[case(Loss::Ended)]
#[case(Loss::Deleted)]
#[case(Loss::DeletedAndEnded)]
#[tokio::test(start_paused = true)]
async fn the_volume_of_a_lost_machine_is_detached_at_once_and_attaches_elsewhere(
    #[case] loss: Loss,
    #[values(false, true)] by_another_process: bool,
) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.lose(loss).await;
    let other = Process::new(&bed, "p2");
    let driver = if by_another_process { &other } else { &driver };
    let begun = tokio::time::Instant::now();
    driver.unpublish("a").await.unwrap();
    assert!(begun.elapsed().as_secs() < 1, "{:?}", begun.elapsed());
    assert_eq!((bed.annotation().await, bed.with_volume().await), (None, vec![]));
    driver.unpublish("a").await.unwrap();
    bed.virt_controller_works();
    driver.publish("b").await.unwrap();
    assert_eq!(bed.with_volume().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn the_volume_of_a_machine_that_is_gone_needs_no_detachment_first() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.lose(Loss::Deleted).await;
    bed.virt_controller_works();
    driver.publish("b").await.unwrap();
    // the attacher comes late with what it was asked for before
    driver.unpublish("a").await.unwrap();
    assert_eq!(bed.with_volume().await, ["b"]);
    assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
}

#[tokio::test(start_paused = true)]
async fn the_machine_that_replaces_a_lost_one_under_its_name_gets_the_volume() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    let former = bed.annotation().await.unwrap()["vmUid"].clone();
    bed.lose(Loss::Deleted).await;
    bed.virt_controller_works();
    bed.machine("a", true).await;
    driver.publish("a").await.unwrap();
    assert_eq!(bed.with_volume().await, ["a"]);
    assert_ne!(bed.annotation().await.unwrap()["vmUid"], former);
    driver.unpublish("a").await.unwrap();
    assert!(bed.with_volume().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_detachment_removes_the_annotation_of_a_machine_that_was_made_again() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.lose(Loss::Deleted).await;
    bed.virt_controller_works();
    bed.machine("a", true).await;
    for _ in 0..2 {
        driver.unpublish("a").await.unwrap();
        assert_eq!(bed.annotation().await, None);
    }
}

/// A machine on a host node that does not answer may run on, and write.
#[rstest]
#[case("Running")]
#[case("Unknown")]
#[tokio::test(start_paused = true)]
async fn a_volume_stays_with_a_machine_that_may_run_until_the_host_gives_it_up(#[case] phase: &str) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.works.store(false, Ordering::Relaxed);
    bed.instance_is(phase).await;
    for _ in 0..3 {
        let refusal = driver.unpublish("a").await.unwrap_err();
        assert_eq!(refusal.code, Code::Aborted, "{refusal}");
        assert!(refusal.message.contains("VirtualMachine shop/a"), "{refusal}");
        bed.server.audit().clear();
        let refusal = driver.publish("b").await.unwrap_err();
        assert!(refusal.message.contains("VirtualMachine shop/a"), "{refusal}");
        let requests = bed.requests("p1");
        assert!(requests.len() <= 20, "{} requests: {requests:?}", requests.len());
        assert_eq!(bed.annotation().await.unwrap()["vm"], "a");
    }
    bed.instance_is("Failed").await;
    driver.unpublish("a").await.unwrap();
    bed.virt_controller_works();
    driver.publish("b").await.unwrap();
    assert_eq!(bed.with_volume().await, ["b"]);
}
