//! Disks that the host does not bring, and that keep others out: they leave their machine again, and none that came does.

use std::{sync::Arc, time::Duration};

use csi_driver::attach::UNMOUNTED_FOR;
use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::json;
use sim_harvester::{host_objects::STORAGE_CLASS, settings::HOTPLUG};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::{
    bed::{Bed, VOLUME},
    one_pod::{WAITS, bed},
    process::{Process, Stop},
    round::Deeds,
};

const TAKEN_OUT: &str = "was taken out of the machine again";

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

/// Calls as the attacher does, until the volume is there.
async fn calls(driver: &Process, volume: &str) {
    while driver.publish(volume, 100).await.is_err() {
        seconds(1).await;
    }
}

/// Calls until the disk is taken out of the machine. Says after how long.
async fn until_taken_out(driver: &Process, volume: &str) -> (Duration, String) {
    let begun = Instant::now();
    loop {
        let refusal = driver.publish(volume, 100).await.unwrap_err();
        assert_eq!(refusal.code, Code::Aborted, "{refusal}");
        if refusal.message.contains(TAKEN_OUT) {
            return (begun.elapsed(), refusal.message);
        }
        assert!(begun.elapsed() < Duration::from_secs(600), "it is not taken out: {refusal}");
    }
}

impl Bed {
    async fn annotation_of(&self, claim: &str) -> String {
        let annotations = self.claims().get(claim).await.unwrap().metadata.annotations.unwrap_or_default();
        annotations.get(harvester_api::annotations::CSI_ATTACH).cloned().unwrap_or_default()
    }
}

// docs/contract/csi-driver.md#hot-plug-pod
#[rstest]
#[case::not_bound(false)]
#[case::attached_by_no_host_node(true)]
#[tokio::test(start_paused = true)]
async fn a_disk_that_the_host_cannot_bring_leaves_when_another_waits(#[case] is_bound: bool) {
    let (bed, driver) = bed().await;
    bed.class_that_waits().await;
    bed.class_has_room(false).await;
    bed.claim("bad", if is_bound { STORAGE_CLASS } else { WAITS }).await;
    if is_bound {
        bed.host_attaches("bad", Some("stuck")).await;
    }
    for name in ["good-1", "good-2"] {
        bed.claim(name, STORAGE_CLASS).await;
    }
    let good = async |name: &str| {
        seconds(2).await;
        timeout(Duration::from_secs(120), calls(&driver, name)).await
    };
    let ((took, message), came) = tokio::join!(until_taken_out(&driver, "bad"), good("good-1"));
    let limit = UNMOUNTED_FOR..UNMOUNTED_FOR + Duration::from_secs(5);
    assert!(limit.contains(&took), "{took:?}");
    let names = if is_bound { "Pod shop/hp-volume-" } else { "PersistentVolumeClaim shop/bad on the host" };
    for part in ["volume bad", names] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!bed.template_has("bad").await);
    assert_eq!(bed.annotation_of("bad").await, "");
    came.expect("it is kept out");

    // it comes again, later each time, and may stay for longer
    let revision = bed.server.revision();
    seconds(1).await;
    let refusal = driver.publish("bad", 100).await.unwrap_err();
    assert!(refusal.code == Code::Aborted && refusal.message.contains(names), "{refusal}");
    assert_eq!(bed.server.revision(), revision, "nothing was written");
    seconds(15).await;
    let ((took, _), came) = tokio::join!(until_taken_out(&driver, "bad"), good("good-2"));
    assert!(took >= 2 * UNMOUNTED_FOR, "{took:?}");
    came.expect("it is kept out");
    seconds(15).await;
    let revision = bed.server.revision();
    driver.publish("bad", 100).await.unwrap_err();
    assert_eq!(bed.server.revision(), revision, "nothing was written");
    seconds(15).await;
    match is_bound {
        true => bed.host_attaches("bad", None).await,
        false => bed.class_has_room(true).await,
    }
    driver.publish("bad", 20).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_nobody_waits_for_stays_however_long_it_takes() {
    let (bed, driver) = bed().await;
    bed.claim("bad", STORAGE_CLASS).await;
    bed.host_attaches("bad", Some("stuck")).await;
    let host = async {
        for _ in 0..20 {
            seconds(10).await;
            assert!(bed.template_has("bad").await);
        }
        bed.host_attaches("bad", None).await;
    };
    tokio::join!(calls(&driver, "bad"), host);
}

/// Alone at its first try.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_disk_that_the_host_brings_in_45_s_comes_at_its_second_try_at_the_latest(
    #[values(true, false)] is_alone: bool,
) {
    let (bed, driver) = bed().await;
    bed.plugs("a", "slow=45s").await;
    for name in ["slow", "other"] {
        bed.claim(name, STORAGE_CLASS).await;
    }
    let tries = async {
        let (mut tries, mut had) = (0, false);
        loop {
            let has = bed.template_has("slow").await;
            tries += usize::from(has && !had);
            had = has;
            assert!(tries <= if is_alone { 1 } else { 2 });
            sleep(Duration::from_millis(200)).await;
        }
    };
    let other = async {
        if !is_alone {
            calls(&driver, "other").await;
        }
    };
    let both = async { tokio::join!(calls(&driver, "slow"), other) };
    tokio::select! {
        came = timeout(Duration::from_secs(300), both) => drop(came.expect("it never comes")),
        () = tries => {}
    }
}

/// The driver, about to give back `bad`, for which `other` waits, stops at its next write but this many.
async fn about_to_give_back(after: u32, is_sent: bool) -> (Bed, Arc<Process>) {
    let (bed, driver) = bed().await;
    for name in ["bad", "other"] {
        bed.claim(name, STORAGE_CLASS).await;
    }
    bed.host_attaches("bad", Some("stuck")).await;
    let driver = Arc::new(driver);
    for name in ["bad", "other"] {
        let driver = driver.clone();
        bed.tasks.spawn(async move { drop(driver.publish(name, 100).await) });
        seconds(2).await;
    }
    seconds(18).await;
    driver.stop_at(Some(Stop { after, is_sent, lasts: Duration::from_secs(20) }), 0);
    assert!(bed.template_has("bad").await && bed.annotation_of("bad").await.contains("attach"));
    (bed, driver)
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_came_while_it_was_about_to_be_given_back_stays() {
    let (bed, driver) = about_to_give_back(0, true).await;
    seconds(15).await;
    assert!(bed.annotation_of("bad").await.contains("detach"), "it was not about to be given back");
    bed.host_attaches("bad", None).await;
    for _ in 0..60 {
        seconds(1).await;
        assert!(bed.template_has("bad").await);
    }
    assert!(bed.annotation_of("bad").await.contains("attach"));
    driver.publish("bad", 5).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_call_answers_ok_for_a_disk_that_another_process_is_giving_back() {
    let (bed, _driver) = about_to_give_back(1, false).await;
    let other = Process::new(&bed, "p2", 0, &Deeds::default());
    let host = async {
        seconds(15).await;
        assert!(bed.annotation_of("bad").await.contains("detach"), "it was not about to be given back");
        assert!(bed.template_has("bad").await);
        bed.host_attaches("bad", None).await;
    };
    let (answer, ()) = tokio::join!(other.publish("bad", 100), host);
    assert_eq!(answer.unwrap_err().code, Code::Aborted);
    bed.until("the late write takes it out", async || !bed.template_has("bad").await).await;
    timeout(Duration::from_secs(120), calls(&other, "bad")).await.expect("it never comes again");
}

/// Of the disk's second stay in `a` the process that gives it back sees the first one still, and then its end.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_a_whole_stay_behind_ends_no_giving_back() {
    let bed = Bed::new("v1.8.0").await;
    let deeds = Deeds::default();
    let [late, second] = ["p1", "p2"].map(|name| Arc::new(Process::new(&bed, name, 0, &deeds)));
    for name in ["other", "third"] {
        bed.claim(name, STORAGE_CLASS).await;
    }
    for name in [VOLUME, "third"] {
        bed.host_attaches(name, Some("stuck")).await;
    }
    for name in [VOLUME, "other"] {
        let late = late.clone();
        bed.tasks.spawn(async move { calls(&late, name).await });
        seconds(5).await;
    }
    // it tells of another machine all the time: one that is silent would be found stale
    let shown = bed.server.revision();
    late.shows_instances.send_replace(shown);
    for number in 0..100 {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"n": number.to_string()}}}));
        bed.instances().patch("b", &PatchParams::default(), &patch).await.unwrap();
    }
    let shows = late.shows_instances.clone();
    bed.tasks.spawn_until_stop(async move {
        for number in 1..=100 {
            seconds(2).await;
            shows.send_modify(|until| *until = (*until).max(shown + number));
        }
    });
    second.unpublish(VOLUME, 100).await.unwrap();
    let end_of_first_stay = bed.server.revision();
    second.publish("third", 5).await.unwrap_err();
    second.publish(VOLUME, 25).await.unwrap_err();
    late.stop_at(Some(Stop { after: 1, is_sent: false, lasts: Duration::from_secs(20) }), 0);
    bed.until("it is about to be given back", async || bed.annotation_of(VOLUME).await.contains("detach"))
        .await;
    // it comes before the write arrives, and virt-handler hangs then
    for name in [VOLUME, "third"] {
        bed.host_attaches(name, None).await;
    }
    seconds(10).await;
    let hangs = Patch::Merge(json!({"metadata": {"annotations": {HOTPLUG: "stuck"}}}));
    bed.instances().patch("a", &PatchParams::default(), &hangs).await.unwrap();
    late.shows_instances.send_replace(end_of_first_stay);
    seconds(15).await;
    assert!(!bed.template_has(VOLUME).await);
    assert_eq!(bed.with_volume().await, ["a"]);
    assert!(bed.annotation_of(VOLUME).await.contains("detach"), "the volume is in the machine still");
    second.call(true, "b").await.unwrap_err();
    assert_eq!(bed.with_volume().await, ["a"]);
    bed.tasks.end().await;
}

/// A machine that was restarted gets its disks again, and their Nodes use them without another call.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_disk_whose_volume_attachment_is_true_is_never_given_back(
    #[values(true, false)] is_attached: bool,
) {
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "p1", 0, &Deeds::default());
    bed.has_nodes_and_a_volume().await;
    bed.wants("a").await;
    if is_attached {
        bed.is_told_attached("a").await;
    }
    bed.claim("other", STORAGE_CLASS).await;
    bed.host_attaches(VOLUME, Some("stuck")).await;
    let stays = async {
        seconds(3).await;
        for _ in 0..1_000 {
            if !bed.template_has(VOLUME).await {
                return false;
            }
            sleep(Duration::from_millis(100)).await;
        }
        true
    };
    // one that comes before it waits for nothing
    let other = async {
        seconds(2).await;
        calls(&driver, "other").await;
    };
    tokio::select! {
        _ = async { tokio::join!(calls(&driver, VOLUME), other) } => panic!("they came"),
        stays = stays => assert_eq!(stays, is_attached),
    }
}

/// What waits behind one that never leaves is not to blame.
#[tokio::test(start_paused = true)]
async fn beside_a_disk_whose_volume_attachment_is_true_none_is_taken_out_and_all_come_when_it_does() {
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "p1", 0, &Deeds::default());
    bed.has_nodes_and_a_volume().await;
    bed.wants("a").await;
    bed.is_told_attached("a").await;
    bed.claim("other", STORAGE_CLASS).await;
    bed.host_attaches(VOLUME, Some("stuck")).await;
    let host = async {
        bed.until("it was added", async || bed.template_has("other").await).await;
        for _ in 0..600 {
            assert!(bed.template_has("other").await && bed.template_has(VOLUME).await);
            seconds(1).await;
        }
        bed.host_attaches(VOLUME, None).await;
        Instant::now()
    };
    let other = async {
        calls(&driver, "other").await;
        Instant::now()
    };
    let (freed, came, ()) = tokio::join!(host, other, calls(&driver, VOLUME));
    assert!(came < freed + Duration::from_secs(120), "{:?}", came - freed);
}

/// The attached one comes last by its name.
#[tokio::test(start_paused = true)]
async fn many_disks_that_wait_ask_little_about_one_another() {
    const COUNT: usize = 12;
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "p1", 0, &Deeds::default());
    bed.has_nodes_and_a_volume().await;
    bed.wants("a").await;
    bed.is_told_attached("a").await;
    bed.host_attaches(VOLUME, Some("stuck")).await;
    let names: Vec<_> = (0..COUNT).map(|number| format!("a-{number}")).collect();
    for name in &names {
        bed.claim(name, STORAGE_CLASS).await;
    }
    let asked = async {
        seconds(300).await;
        bed.guest.audit().clear();
        seconds(100).await;
        let records = bed.guest.audit().records();
        records.iter().filter(|one| one.verb == "list" && one.uri.contains("/volumeattachments")).count()
    };
    let all = futures::future::join_all(names.iter().map(|name| calls(&driver, name)));
    tokio::select! {
        _ = async { tokio::join!(all, calls(&driver, VOLUME)) } => panic!("they came"),
        // each looks again each ten seconds: about itself, not about all others
        asked = asked => assert!((1..10 * COUNT * COUNT / 2).contains(&asked), "{asked}"),
    }
}

/// Volumes that Harvester never brings, and that their Pods want for half an hour.
#[rstest]
#[case::they_wait(false)]
#[case::one_dies_and_comes_again(true)]
#[tokio::test(start_paused = true)]
async fn a_disk_comes_within_two_minutes_whatever_else_never_does(#[case] one_dies: bool) {
    let (bed, driver) = bed().await;
    let names = ["bad-1", "bad-2", "bad-3", "bad-4"];
    for name in names {
        bed.claim(name, STORAGE_CLASS).await;
        bed.host_attaches(name, Some("stuck")).await;
    }
    let bad = names.map(|name| {
        let driver = &driver;
        async move {
            loop {
                if one_dies && name == "bad-1" {
                    let (_, ()) = tokio::join!(driver.publish(name, 50), seconds(50));
                    let (_, ()) = tokio::join!(driver.unpublish(name, 10), seconds(10));
                } else {
                    calls(driver, name).await;
                }
            }
        }
    });
    let good = async {
        for number in 0..3 {
            seconds(1_800).await;
            let name = format!("good-{number}");
            bed.claim(&name, STORAGE_CLASS).await;
            let left = async {
                bed.until("it was added", async || bed.template_has(&name).await).await;
                while bed.template_has(&name).await {
                    sleep(Duration::from_millis(200)).await;
                }
            };
            tokio::select! {
                came = timeout(Duration::from_secs(120), calls(&driver, &name)) => came.expect("it is kept out"),
                () = left => panic!("it was taken out"),
            }
        }
    };
    tokio::select! {
        _ = futures::future::join_all(bad) => panic!("they came"),
        () = good => {}
    }
}
