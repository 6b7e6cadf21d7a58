//! Watches that hear nothing and have no error: a proxy, or a load balancer, holds their connections. Requests are answered.

use std::{sync::atomic::Ordering, time::Duration};

use sim_apiserver::faults::{Answer, Rule};
use tokio::time::sleep;
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
}

impl Process {
    /// From then on all is watched.
    async fn warm_up(&self) {
        self.publish("b").await.unwrap();
        self.unpublish("b").await.unwrap();
        sleep(Duration::from_secs(3)).await;
    }
}

/// A driver that ignores annotations has it in `b`.
// docs/contract/csi-driver.md#claims
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_elsewhere_stays_there_alone_though_the_watches_are_silent() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_the_watches_of("p1").await;
    sleep(Duration::from_secs(60)).await;
    bed.go_driver_adds("b").await;
    let refusal = driver.publish("a").await.unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition, "{refusal}");
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
    assert_eq!(bed.with_volume().await, ["b"]);
    assert_eq!(bed.most.load(Ordering::Relaxed), 1, "machines that had it at once");
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
