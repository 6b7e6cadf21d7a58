use std::{sync::atomic::Ordering, time::Duration};

use csi_driver::attach::Options;
use rstest::rstest;
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::host::{Bed, Mishap, Process};

const MISHAPS: [Mishap; 7] = [
    Mishap::DiesBefore,
    Mishap::DiesAfter,
    Mishap::ArrivesAfter(1),
    Mishap::ArrivesAfter(70),
    Mishap::ArrivesAfter(200),
    Mishap::StopsFor(20),
    Mishap::StopsFor(120),
];

/// Calls until the answer is good, as the attacher does.
async fn until_done(driver: &Process, is_publish: bool, machine: &str) {
    for _ in 0..20 {
        let answer = if is_publish { driver.publish(machine).await } else { driver.unpublish(machine).await };
        match answer {
            Ok(()) => return,
            // the other call was alive, and has brought it to `a` meanwhile
            Err(refusal) if refusal.code == Code::FailedPrecondition => {
                assert!(refusal.message.contains("VirtualMachine shop/a"), "{refusal}");
                drop(driver.unpublish("a").await);
            }
            Err(_) => sleep(Duration::from_secs(5)).await,
        }
    }
    panic!("{machine}: publish {is_publish} never comes to an end");
}

/// One process attaches the volume to `a` or detaches it, and meets its mishap; another one brings it to `b`.
#[derive(Clone, Copy)]
struct Story {
    nth: usize,
    mishap: Mishap,
    is_publish: bool,
    is_detached_first: bool,
    later: u64,
}

/// Plays it. The other process is returned, which goes on.
async fn play(bed: &Bed, story: Story) -> Process {
    let Story { nth, mishap, is_publish, is_detached_first, later } = story;
    let other = Process::new(bed, "other");
    if !is_publish {
        other.publish("a").await.unwrap();
    }
    let first = Process::with(bed, "first", Some((nth, mishap)), Options::new("first"));
    let work = async {
        let call = async { if is_publish { first.publish("a").await } else { first.unpublish("a").await } };
        // a process that died says nothing; one that stopped may be refused
        if let Ok(Ok(())) = timeout(Duration::from_secs(250), call).await
            && is_publish
        {
            assert_eq!(bed.with_volume().await, ["a"], "the disk is said to be ready");
        }
    };
    let after = async {
        sleep(Duration::from_secs(later)).await;
        if is_detached_first || !is_publish {
            until_done(&other, false, "a").await;
        }
        if !is_detached_first && is_publish {
            // it may be in `a` for good: then it is not taken away from there
            drop(other.publish("b").await);
            sleep(Duration::from_secs(300)).await;
            until_done(&other, false, "a").await;
        }
        until_done(&other, true, "b").await;
    };
    tokio::join!(work, after);
    sleep(Duration::from_secs(300)).await;
    other
}

// docs/contract/csi-driver.md#claims
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_or_stops_between_two_writes_brings_no_volume_into_two_machines(
    #[values(1, 2, 3)] nth: usize,
    #[values(true, false)] is_publish: bool,
    #[values(true, false)] is_detached_first: bool,
    #[values(0, 1, 2, 3, 4, 5, 6)] mishap: usize,
    #[values(0, 10)] later: u64,
) {
    let bed = Bed::new().await;
    Box::pin(play(&bed, Story { nth, mishap: MISHAPS[mishap], is_publish, is_detached_first, later })).await;
    assert_eq!(bed.most.load(Ordering::Relaxed), 1);
    assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
    assert_eq!(bed.with_volume().await, ["b"]);
}

// docs/contract/csi-driver.md#ways
#[rstest]
#[tokio::test(start_paused = true)]
async fn by_requests_a_process_that_dies_or_stops_for_less_than_others_wait_brings_no_volume_into_two_machines(
    #[values(1, 2, 3, 4, 5)] nth: usize,
    #[values(true, false)] is_publish: bool,
    #[values(true, false)] is_detached_first: bool,
    #[values(Mishap::DiesBefore, Mishap::DiesAfter, Mishap::ArrivesAfter(1), Mishap::StopsFor(20))]
    mishap: Mishap,
    #[values(0, 10)] later: u64,
) {
    let bed = Bed::old().await;
    bed.may_patch.store(false, Ordering::Relaxed);
    Box::pin(play(&bed, Story { nth, mishap, is_publish, is_detached_first, later })).await;
    assert_eq!(bed.most.load(Ordering::Relaxed), 1);
    assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
    assert_eq!((bed.with_volume().await, bed.in_instance("a").await), (vec!["b".to_owned()], vec![]));
}

/// No host of before 1.8 can be made to refuse a request that is so late. A process that goes on takes the disk back; of one
/// that died, the next detachment does.
#[rstest]
#[tokio::test(start_paused = true)]
async fn by_requests_a_write_that_is_late_by_minutes_ends_in_no_two_machines(
    #[values(1, 2, 3, 4, 5)] nth: usize,
    #[values(true, false)] is_publish: bool,
    #[values(true, false)] is_detached_first: bool,
    #[values(Mishap::ArrivesAfter(70), Mishap::StopsFor(120))] mishap: Mishap,
    #[values(0, 10)] later: u64,
) {
    let bed = Bed::old().await;
    bed.may_patch.store(false, Ordering::Relaxed);
    let other = Box::pin(play(&bed, Story { nth, mishap, is_publish, is_detached_first, later })).await;
    if mishap != Mishap::StopsFor(120) {
        until_done(&other, false, "a").await;
    }
    assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
    assert_eq!((bed.with_volume().await, bed.in_instance("a").await), (vec!["b".to_owned()], vec![]));
}
