//! Two processes that move one volume between two machines, stopped and with clocks apart: it is never in both.
//!
//! A driver that ignores the annotation can bring the volume into a second machine by itself, and so can two of them. Of
//! rounds against one, this holds: no process of ours begins to add the volume while another machine has it, and none
//! says that a disk is ready that it added into such a state.

use std::{collections::BTreeSet, time::Duration};

use rstest::rstest;
use tokio::time::sleep;
use tonic::Code;

use super::{
    bed::Bed,
    process::Process,
    replay::Replay,
    round::{Against, Deeds, Plan, Sides},
};

const ROUNDS: u64 = 100;
/// Wall clocks of the two processes are so far apart.
const MINUTES: u64 = 10;

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_volume_that_two_processes_move_is_never_in_two_machines(#[values(0, 1, 2, 3, 4)] part: u64) {
    rounds(Against::Ours, part).await;
}

// docs/contract/csi-driver.md#claims
#[rstest]
#[tokio::test(start_paused = true)]
async fn beside_the_go_driver_no_process_takes_a_volume_that_another_machine_has(
    #[values(0, 1, 2, 3, 4)] part: u64,
) {
    rounds(Against::Go, part).await;
}

async fn rounds(against: Against, part: u64) {
    let bed = Bed::new("v1.8.0").await;
    let deeds = Deeds::default();
    let process = |name, minutes| Process::new(&bed, name, minutes, &deeds);
    let processes = [process("first", 0), process("second", MINUTES)];
    let sides = Sides::new(&bed, &processes);
    let mut additions = 0;
    for seed in part * ROUNDS..(part + 1) * ROUNDS {
        let plan = Plan::drawn(against, seed);
        println!("seed {seed}: {plan:?}");
        {
            let mut deeds = deeds.lock().unwrap();
            (deeds.begun, deeds.log) = (Some(tokio::time::Instant::now()), vec![]);
        }
        let answers = sides.play(&plan).await;
        sleep(Duration::from_secs(130)).await;
        assert_eq!(bed.with_volume().await, Vec::<String>::new(), "seed {seed}: the volume has left");
        let replay = Replay::of(std::mem::take(&mut *bed.states.lock().unwrap()));
        let done = std::mem::take(&mut deeds.lock().unwrap().additions);
        let broken = match against {
            Against::Ours => replay.in_two_machines(),
            Against::Go => {
                replay.taken_while_in_use(&done).or_else(|| replay.answered_while_in_use(&done, &answers))
            }
        };
        assert_eq!(broken, None, "seed {seed}: {plan:?}\n{}", deeds.lock().unwrap().log.join("\n"));
        if against == Against::Ours {
            assert_eq!(bed.annotation().await, None, "seed {seed}: nobody claims a volume that is nowhere");
        }
        additions += done.len();
        bed.server.audit().clear();
    }
    let (fences, stops) = {
        let deeds = deeds.lock().unwrap();
        (deeds.fences, deeds.stops)
    };
    let done = format!("{additions} additions, {fences} fences, {stops} stops");
    assert!(additions > 50 && fences > 10 && stops > 10, "the rounds are worth something: {done}");
    bed.tasks.end().await;
}

// an API server gives no new version to an object that a write leaves as it is
#[tokio::test(start_paused = true)]
async fn a_process_that_takes_over_from_one_machine_twice_changes_its_version_twice() {
    let bed = Bed::new("v1.8.0").await;
    let deeds = Deeds::default();
    let process = Process::new(&bed, "first", 0, &deeds);
    let mut versions = BTreeSet::new();
    for _ in 0..3 {
        bed.claimed_for("b").await;
        versions.insert(bed.machines().get("b").await.unwrap().metadata.resource_version);
        process.call(true, "a").await.unwrap();
        process.call(false, "a").await.unwrap();
    }
    versions.insert(bed.machines().get("b").await.unwrap().metadata.resource_version);
    assert_eq!((versions.len(), deeds.lock().unwrap().fences), (4, 3));
    bed.tasks.end().await;
}

// the annotation of an attachment stays while the volume is in its machine, and the Go driver knows nothing of it
#[tokio::test(start_paused = true)]
async fn a_volume_that_another_driver_has_moved_is_not_added_where_an_old_annotation_has_it() {
    let bed = Bed::new("v1.8.0").await;
    let deeds = Deeds::default();
    let processes = ["first", "second"].map(|name| Process::new(&bed, name, 0, &deeds));
    let sides = Sides::new(&bed, &processes);
    processes[0].call(true, "a").await.unwrap();
    sides.go_unpublishes("a").await.unwrap_err();
    sleep(Duration::from_secs(5)).await;
    sides.go_publishes("b").await.unwrap();
    for process in &processes {
        let refused = process.call(true, "a").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("VirtualMachine shop/b"), "{refused}");
    }
    let replay = Replay::of(std::mem::take(&mut *bed.states.lock().unwrap()));
    assert_eq!(replay.in_two_machines(), None);
    // it may be used where it is, and comes back when it is free
    processes[1].call(true, "b").await.unwrap();
    processes[1].call(false, "b").await.unwrap();
    processes[0].call(true, "a").await.unwrap();
    bed.tasks.end().await;
}
