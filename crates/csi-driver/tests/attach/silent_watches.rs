//! Watches that hear nothing and have no error: a proxy, or a load balancer, holds their connections. Requests are answered.

use std::{sync::atomic::Ordering, time::Duration};

use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::json;
use sim_apiserver::faults::{Answer, Rule};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::host::{Bed, Process};

impl Bed {
    async fn silence_the_watches_of(&self, user: &str) {
        self.server.faults().add(Rule {
            user: Some(user.to_owned()),
            verb: Some("watch".to_owned()),
            ..Rule::new(Answer::Delay(Duration::from_secs(300)))
        });
        self.server.faults().close_watches();
        sleep(Duration::from_millis(100)).await;
    }

    async fn claim_is(&self, name: &str, phase: &str) {
        let status = Patch::Merge(json!({"status": {"phase": phase}}));
        self.claims().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }
}

impl Process {
    /// From then on all is watched.
    async fn warm_up(&self) {
        self.publish("b").await.unwrap();
        self.unpublish("b").await.unwrap();
        sleep(Duration::from_secs(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_comes_and_leaves_by_one_call_each_though_the_watches_are_silent() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_the_watches_of("p1").await;
    let within = Duration::from_secs(20);
    timeout(within, driver.publish("a")).await.unwrap().unwrap();
    assert_eq!(bed.with_volume().await, ["a"]);
    timeout(within, driver.unpublish("a")).await.unwrap().unwrap();
    assert!(bed.with_volume().await.is_empty());
}

/// The watch shows the disk as ready for as long as it is silent.
#[tokio::test(start_paused = true)]
async fn a_disk_that_came_before_the_watches_fell_silent_leaves_by_one_call() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    driver.publish("a").await.unwrap();
    sleep(Duration::from_secs(3)).await;
    bed.silence_the_watches_of("p1").await;
    timeout(Duration::from_secs(20), driver.unpublish("a")).await.unwrap().unwrap();
    assert_eq!((bed.with_volume().await, bed.annotation().await), (vec![], None));
}

/// A driver that ignores annotations has it in `b`. Before the watches count as silent, this one adds it and takes it back.
// docs/contract/csi-driver.md#claims
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_elsewhere_stays_there_alone_though_the_watches_are_silent(
    #[values(false, true)] are_long_silent: bool,
) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_the_watches_of("p1").await;
    if are_long_silent {
        sleep(Duration::from_secs(60)).await;
    }
    bed.go_driver_adds("b").await;
    let refusal = driver.publish("a").await.unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition, "{refusal}");
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
    assert_eq!(bed.with_volume().await, ["b"]);
    if are_long_silent {
        assert_eq!(bed.most.load(Ordering::Relaxed), 1, "machines that had it at once");
    }
}

/// A process died before it had added the disk to `a`, and a driver that ignores annotations has brought it into `b`.
#[tokio::test(start_paused = true)]
async fn an_annotation_is_no_reason_to_add_what_is_elsewhere_though_the_watches_are_silent() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.annotate(&bed.claim_text("a", None, "attach").await).await;
    sleep(Duration::from_secs(1)).await;
    bed.silence_the_watches_of("p1").await;
    sleep(Duration::from_secs(60)).await;
    bed.go_driver_adds("b").await;
    let refusal = driver.publish("a").await.unwrap_err();
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
    assert_eq!((bed.with_volume().await, bed.most.load(Ordering::Relaxed)), (vec!["b".to_owned()], 1));
}

#[rstest]
#[case::before_the_call(0)]
#[case::while_it_waits(5)]
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_bound_is_attached_though_its_watch_is_silent(#[case] after: u64) {
    let bed = Bed::new().await;
    bed.volume("pvc-2").await;
    bed.claim_is("pvc-2", "Pending").await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_the_watches_of("p1").await;
    let bound = async {
        sleep(Duration::from_secs(after)).await;
        bed.claim_is("pvc-2", "Bound").await;
    };
    let (answer, ()) =
        tokio::join!(timeout(Duration::from_secs(25), driver.publish_volume("pvc-2", "a")), bound);
    answer.unwrap().unwrap();
}
