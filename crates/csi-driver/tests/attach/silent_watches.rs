//! Watches that hear nothing and have no error: a proxy, or a load balancer, holds their connections. Requests are answered.

use std::{sync::atomic::Ordering, time::Duration};

use harvester_api::annotations::CSI_VOLUME;
use kube::api::{DeleteParams, Patch, PatchParams};
use rstest::rstest;
use serde_json::json;
use sim_apiserver::faults::{Answer, Rule};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::host::{Bed, Process, STUCK, VOLUME};

impl Bed {
    /// Those that begin from now on.
    fn hold_watches_of(&self, user: &str, resource: Option<&str>) {
        self.delay(user, "watch", resource, 300_000);
    }

    fn delay(&self, user: &str, verb: &str, resource: Option<&str>, millis: u64) {
        self.server.faults().add(Rule {
            user: Some(user.to_owned()),
            verb: Some(verb.to_owned()),
            resource: resource.map(str::to_owned),
            ..Rule::new(Answer::Delay(Duration::from_millis(millis)))
        });
    }

    /// The instance has let go of a disk, and the host tells of it.
    fn works_again(&self) {
        self.works.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Those of this moment. Later ones work.
    async fn silence_the_watches_of(&self, user: &str) {
        self.silence_one_watch_of(user, None).await;
    }

    pub(crate) async fn silence_one_watch_of(&self, user: &str, resource: Option<&str>) {
        self.hold_watches_of(user, resource);
        self.server.faults().close_watches();
        sleep(Duration::from_millis(100)).await;
        self.server.faults().clear();
    }

    /// Somebody writes to the machine so often.
    fn keeps_changing(&self, machine: &'static str, each: Duration) {
        let machines = self.machines();
        self.tasks.spawn_until_stop(async move {
            for number in 0_u64.. {
                let label = Patch::Merge(json!({"metadata": {"labels": {"n": number.to_string()}}}));
                machines.patch(machine, &PatchParams::default(), &label).await.unwrap();
                sleep(each).await;
            }
        });
    }

    async fn is_made_by_this_driver(&self) {
        let record = json!({"name": "data", "size": 1 << 30, "reach": "disk"}).to_string();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {CSI_VOLUME: record}}}));
        self.claims().patch(VOLUME, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A driver that ignores annotations brought the volume into the machine, and has taken it out of the template since. The
    /// instance has it yet.
    async fn leaves_slowly(&self, machine: &str) {
        self.go_driver_adds(machine).await;
        sleep(Duration::from_secs(1)).await;
        let stuck = Patch::Merge(json!({"metadata": {"labels": {STUCK: "yes"}}}));
        self.instances().patch(machine, &PatchParams::default(), &stuck).await.unwrap();
        self.go_driver_removes(machine).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(self.phase(machine).await.as_deref(), Some("Ready"));
    }

    /// The machine has no instance any more.
    async fn halt(&self, machine: &str) {
        self.instances().delete(machine, &DeleteParams::default()).await.unwrap();
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

/// Of a volume that this driver made nobody expects it: nothing is listed before the disk is added.
#[tokio::test(start_paused = true)]
async fn an_attachment_that_the_watch_does_not_tell_of_is_looked_for_elsewhere_and_gives_way() {
    let bed = Bed::new().await;
    bed.is_made_by_this_driver().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_the_watches_of("p1").await;
    bed.go_driver_adds("b").await;
    let refusal = driver.publish("a").await.unwrap_err();
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
    assert_eq!(bed.with_volume().await, ["b"]);
}

/// `c` has been started since the watch is silent.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_volume_that_leaves_one_machine_slowly_comes_into_no_other_though_the_watch_of_instances_is_silent(
    #[values(true, false)] is_ours: bool,
) {
    let bed = Bed::new().await;
    if is_ours {
        bed.is_made_by_this_driver().await;
    }
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_one_watch_of("p1", Some("virtualmachineinstances")).await;
    bed.machine("c", true).await;
    bed.keeps_changing("c", Duration::from_millis(700));
    sleep(Duration::from_secs(5)).await;
    bed.leaves_slowly("b").await;
    let refusal = driver.publish("c").await.unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition, "{refusal}");
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
    assert!(bed.with_volume().await.is_empty());
    bed.tasks.end().await;
}

/// It was listed anew some seconds ago, with the first disk.
#[tokio::test(start_paused = true)]
async fn a_volume_that_leaves_one_machine_slowly_comes_into_no_other_under_a_proxy_that_holds_that_watch() {
    let bed = Bed::new().await;
    bed.is_made_by_this_driver().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.hold_watches_of("p1", Some("virtualmachineinstances"));
    bed.server.faults().close_watches();
    sleep(Duration::from_millis(100)).await;
    driver.publish("a").await.unwrap();
    driver.unpublish("a").await.unwrap();
    bed.leaves_slowly("b").await;
    let refusal = driver.publish("a").await.unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition, "{refusal}");
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
    assert!(bed.with_volume().await.is_empty());
}

/// An earlier call of this process added the disk to `a`, whose host was slow.
#[tokio::test(start_paused = true)]
async fn a_disk_of_an_earlier_call_is_looked_for_elsewhere_before_it_counts_as_attached() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.works.store(false, Ordering::Relaxed);
    bed.silence_the_watches_of("p1").await;
    assert_eq!(driver.publish("a").await.unwrap_err().code, Code::Aborted);
    bed.silence_the_watches_of("p1").await;
    bed.go_driver_adds("b").await;
    bed.works.store(true, Ordering::Relaxed);
    bed.wake();
    sleep(Duration::from_secs(10)).await;
    let refusal = driver.publish("a").await.unwrap_err();
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
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
    sleep(Duration::from_secs(60)).await;
    timeout(within, driver.unpublish("a")).await.unwrap().unwrap();
    assert!(bed.with_volume().await.is_empty());
}

#[rstest]
#[case::before_the_call(0)]
#[case::while_it_waits(3)]
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

/// Each watch has a connection of its own.
#[tokio::test(start_paused = true)]
async fn a_machine_that_is_written_all_the_time_hides_no_silent_watch_of_claims() {
    let bed = Bed::new().await;
    bed.volume("pvc-2").await;
    bed.claim_is("pvc-2", "Pending").await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_one_watch_of("p1", Some("persistentvolumeclaims")).await;
    bed.keeps_changing("a", Duration::from_secs(3));
    bed.claim_is("pvc-2", "Bound").await;
    timeout(Duration::from_secs(25), driver.publish_volume("pvc-2", "a")).await.unwrap().unwrap();
    bed.tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_comes_and_leaves_by_one_call_each_under_a_proxy_that_holds_every_watch() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.hold_watches_of("p1", None);
    bed.server.faults().close_watches();
    for _ in 0..3 {
        driver.publish("a").await.unwrap();
        driver.unpublish("a").await.unwrap();
    }
}

/// By one call, in the time that its caller waits.
#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_during_a_detachment_is_found_by_it() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.works.store(false, Ordering::Relaxed);
    let host = async {
        sleep(Duration::from_secs(1)).await;
        bed.silence_the_watches_of("p1").await;
        bed.works_again();
    };
    let (answer, ()) = tokio::join!(driver.unpublish("a"), host);
    answer.unwrap();
}

/// A machine and its instance are believed by their watches while these show the disk. The proxy holds them for five minutes.
#[tokio::test(start_paused = true)]
async fn a_disk_leaves_in_two_minutes_though_all_watches_are_silent_and_the_host_answers_slowly() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    // the claims are watched too by then
    sleep(Duration::from_secs(1)).await;
    bed.silence_the_watches_of("p1").await;
    bed.delay("p1", "get", None, 2_500);
    let leaves = async {
        while let Err(refusal) = driver.unpublish("a").await {
            assert_eq!(refusal.code, Code::Aborted, "{refusal}");
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(Duration::from_secs(120), leaves).await.unwrap();
    assert!(bed.with_volume().await.is_empty());
}

/// KubeVirt writes to a machine after each of its changes.
#[tokio::test(start_paused = true)]
async fn a_disk_leaves_by_one_call_though_answers_of_the_host_come_one_after_the_other() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.silence_the_watches_of("p1").await;
    bed.delay("p1", "get", Some("virtualmachineinstances"), 50);
    let kubevirt = async {
        sleep(Duration::from_secs(1)).await;
        let label = Patch::Merge(json!({"metadata": {"labels": {"n": "1"}}}));
        bed.machines().patch("a", &PatchParams::default(), &label).await.unwrap();
    };
    let (answer, _) = tokio::join!(driver.unpublish("a"), kubevirt);
    answer.unwrap();
}

/// Somebody writes to another machine, so that the watch of machines is silent for five seconds only after the answer.
#[tokio::test(start_paused = true)]
async fn nothing_is_compared_with_the_host_for_a_call_that_has_been_answered() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    bed.works.store(false, Ordering::Relaxed);
    let host = async {
        sleep(Duration::from_secs(3)).await;
        let label = Patch::Merge(json!({"metadata": {"labels": {"n": "1"}}}));
        bed.machines().patch("b", &PatchParams::default(), &label).await.unwrap();
        sleep(Duration::from_millis(2_500)).await;
        bed.works_again();
    };
    let (answer, ()) = tokio::join!(driver.unpublish("a"), host);
    answer.unwrap();
    bed.server.audit().clear();
    sleep(Duration::from_secs(20)).await;
    let requests = bed.requests("p1");
    assert!(requests.iter().all(|request| !request.starts_with("get ")), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_written_all_the_time_hides_no_silent_watch_of_instances() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_one_watch_of("p1", Some("virtualmachineinstances")).await;
    bed.keeps_changing("a", Duration::from_millis(700));
    timeout(Duration::from_secs(25), driver.publish("a")).await.unwrap().unwrap();
    bed.tasks.end().await;
}

/// In the ten seconds that the caller of a detachment waits. Others tell of another machine all the time, and lists are slow.
#[tokio::test(start_paused = true)]
async fn a_busy_namespace_hides_no_silent_watch_of_instances_from_a_detachment() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.works.store(false, Ordering::Relaxed);
    bed.silence_one_watch_of("p1", Some("virtualmachineinstances")).await;
    bed.keeps_changing("b", Duration::from_millis(200));
    bed.delay("p1", "list", None, 5_000);
    let host = async {
        sleep(Duration::from_secs(1)).await;
        bed.works_again();
    };
    let (answer, ()) = tokio::join!(driver.unpublish("a"), host);
    answer.unwrap();
    bed.tasks.end().await;
}

/// The first watch that is seen to be stale has all of them listed anew.
#[rstest]
#[case::all_answers_together(0)]
#[case::the_instance_last(50)]
#[tokio::test(start_paused = true)]
async fn a_disk_leaves_by_one_call_though_all_watches_are_silent_and_lists_are_slow(#[case] late: u64) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    // the claims are watched too by then
    sleep(Duration::from_secs(1)).await;
    bed.works.store(false, Ordering::Relaxed);
    bed.silence_the_watches_of("p1").await;
    bed.delay("p1", "list", None, 5_000);
    bed.delay("p1", "get", Some("virtualmachineinstances"), late);
    let host = async {
        sleep(Duration::from_secs(1)).await;
        bed.works_again();
    };
    let (answer, ()) = tokio::join!(driver.unpublish("a"), host);
    answer.unwrap();
    assert!(bed.with_volume().await.is_empty());
}

/// The first call has the claims listed anew.
#[tokio::test(start_paused = true)]
async fn a_claim_is_seen_to_be_bound_while_the_list_that_another_call_wanted_is_under_way() {
    let bed = Bed::new().await;
    for volume in ["pvc-2", "pvc-3"] {
        bed.volume(volume).await;
        bed.claim_is(volume, "Pending").await;
    }
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.silence_one_watch_of("p1", Some("persistentvolumeclaims")).await;
    bed.delay("p1", "list", None, 8_000);
    let second = async {
        sleep(Duration::from_secs(2)).await;
        driver.publish_volume("pvc-3", "b").await
    };
    let host = async {
        sleep(Duration::from_secs(1)).await;
        bed.claim_is("pvc-2", "Bound").await;
        sleep(Duration::from_secs(2)).await;
        // its call looks again, and waits on
        let label = Patch::Merge(json!({"metadata": {"labels": {"n": "1"}}}));
        bed.machines().patch("b", &PatchParams::default(), &label).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        bed.claim_is("pvc-3", "Bound").await;
    };
    let (first, second, ()) = tokio::join!(driver.publish_volume("pvc-2", "a"), second, host);
    first.unwrap();
    second.unwrap();
}

/// The watch of machines alone is held, and the disk came by an earlier call.
#[tokio::test(start_paused = true)]
async fn a_disk_of_ours_from_an_earlier_call_is_looked_for_elsewhere_too() {
    let bed = Bed::new().await;
    bed.is_made_by_this_driver().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    driver.publish("a").await.unwrap();
    bed.silence_one_watch_of("p1", Some("virtualmachines")).await;
    sleep(Duration::from_secs(6)).await;
    bed.halt("b").await;
    bed.go_driver_adds("b").await;
    let refusal = driver.publish("a").await.unwrap_err();
    assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
}

/// What tells of others is only late, and a list would make a busy host slower.
#[tokio::test(start_paused = true)]
async fn a_watch_that_tells_of_others_is_not_listed_anew() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.works.store(false, Ordering::Relaxed);
    bed.keeps_changing("b", Duration::from_secs(3));
    bed.server.audit().clear();
    drop(driver.publish("a").await);
    let requests = bed.requests("p1");
    let of_machines = |one: &&String| *one == "get virtualmachines" || one.starts_with("list ");
    assert_eq!(requests.iter().filter(of_machines).collect::<Vec<_>>(), [""; 0]);
    bed.tasks.end().await;
}

/// The host has asked for rest.
#[tokio::test(start_paused = true)]
async fn a_watch_that_the_host_refuses_is_not_listed_anew_because_another_one_is_silent() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.works.store(false, Ordering::Relaxed);
    bed.hold_watches_of("p1", Some("virtualmachineinstances"));
    bed.server.faults().add(Rule {
        user: Some("p1".to_owned()),
        verb: Some("watch".to_owned()),
        resource: Some("virtualmachines".to_owned()),
        ..Rule::new(Answer::Code(429))
    });
    bed.server.faults().close_watches();
    sleep(Duration::from_secs(1)).await;
    bed.server.audit().clear();
    let host = async {
        sleep(Duration::from_secs(1)).await;
        bed.works_again();
    };
    let (answer, ()) = tokio::join!(driver.unpublish("a"), host);
    answer.unwrap();
    sleep(Duration::from_secs(1)).await;
    let requests = bed.requests("p1");
    let lists = |kind: &str| requests.iter().filter(|one| **one == format!("list {kind}")).count();
    assert_eq!((lists("virtualmachineinstances"), lists("virtualmachines")), (1, 0), "{requests:?}");
}

/// A host that is slow to tell is not asked for lists by each call.
#[tokio::test(start_paused = true)]
async fn silent_watches_are_listed_anew_no_more_often_than_each_half_minute() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.warm_up().await;
    bed.hold_watches_of("p1", None);
    bed.server.faults().close_watches();
    bed.server.audit().clear();
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        drop(timeout(Duration::from_secs(20), driver.publish("a")).await);
        drop(timeout(Duration::from_secs(20), driver.unpublish("a")).await);
    }
    let is_list = |uri: &str| uri.contains("/persistentvolumeclaims?");
    let records = bed.server.audit().records();
    let lists =
        records.iter().filter(|one| one.verb == "list" && one.user == "p1" && is_list(&one.uri)).count();
    assert!((1..=3).contains(&lists), "{lists} lists");
}
