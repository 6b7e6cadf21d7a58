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
    let other = Process::new(&bed, "other");
    if !is_publish {
        other.publish("a").await.unwrap();
    }
    let first = Process::with(&bed, "first", Some((nth, MISHAPS[mishap])), Options::new("first"));
    let work = async {
        let call = async { if is_publish { first.publish("a").await } else { first.unpublish("a").await } };
        // a process that died says nothing; one that stopped may be refused
        drop(timeout(Duration::from_secs(250), call).await);
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
    assert_eq!(bed.most.load(Ordering::Relaxed), 1);
    assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
    assert_eq!(bed.with_volume().await, ["b"]);
}
