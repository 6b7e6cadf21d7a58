//! Two processes that move one volume between two machines, stopped and with clocks apart: it is never in both.
//!
//! A driver that ignores the annotation can bring the volume into a second machine by itself, and so can two of them. Of
//! rounds against one, this holds: no process of ours begins to add the volume while another machine has it, and none
//! says that a disk is ready that it added into such a state. The same is all that holds of writes by subresources that
//! are late by minutes.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::json;
use tokio::time::sleep;
use tonic::Code;

use super::{
    bed::{Bed, OLD},
    process::Process,
    replay::Replay,
    round::{Against, Deeds, Plan, Sides},
};

const ROUNDS: u64 = 100;
/// Rounds of the kinds that take longer.
const FEWER_ROUNDS: u64 = 40;
/// Wall clocks of the two processes are so far apart.
const MINUTES: u64 = 10;

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_volume_that_two_processes_move_is_never_in_two_machines(#[values(0, 1, 2, 3, 4)] part: u64) {
    rounds(Kind::Ours, part * ROUNDS..(part + 1) * ROUNDS).await;
}

// docs/contract/csi-driver.md#claims
#[rstest]
#[tokio::test(start_paused = true)]
async fn beside_the_go_driver_no_process_takes_a_volume_that_another_machine_has(
    #[values(0, 1, 2, 3, 4)] part: u64,
) {
    rounds(Kind::Go, part * ROUNDS..(part + 1) * ROUNDS).await;
}

// docs/contract/csi-driver.md#ways
#[tokio::test(start_paused = true)]
async fn by_subresources_a_volume_that_two_processes_move_is_never_in_two_machines() {
    rounds(Kind::Subresources, 0..FEWER_ROUNDS).await;
}

// docs/contract/csi-driver.md#ways
#[tokio::test(start_paused = true)]
async fn by_subresources_no_process_that_is_late_by_minutes_says_that_a_disk_is_ready_which_another_machine_has()
 {
    rounds(Kind::LateSubresources, 0..FEWER_ROUNDS).await;
}

#[tokio::test(start_paused = true)]
async fn while_both_processes_reconcile_a_volume_that_they_move_is_never_in_two_machines() {
    rounds(Kind::Reconcilers, 0..FEWER_ROUNDS).await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Two processes of this driver.
    Ours,
    /// One of them is the Go driver.
    Go,
    /// On a host where nobody may patch machines.
    Subresources,
    /// The same, and a write may be on its way for longer than others wait for it. Nothing makes it fail, so the volume
    /// may come into a second machine; whoever brought it there sees that, and takes it back.
    LateSubresources,
    /// Both heal what VolumeAttachments want, without a Lease.
    Reconcilers,
}

async fn rounds(kind: Kind, seeds: Range<u64>) {
    let is_old = matches!(kind, Kind::Subresources | Kind::LateSubresources);
    let bed = Bed::new(if is_old { OLD } else { "v1.8.0" }).await;
    let deeds = Deeds::default();
    let process = |name, minutes| Process::new(&bed, name, minutes, &deeds);
    let processes = [process("first", 0), process("second", MINUTES)];
    let mut sides = Sides::new(&bed, &processes);
    if kind == Kind::Reconcilers {
        bed.has_nodes_and_a_volume().await;
        processes.iter().for_each(|process| process.reconcile(&bed));
        sides = sides.with_attachments();
    }
    let against = if kind == Kind::Go { Against::Go } else { Against::Ours };
    // by subresources a write that is on its way for longer cannot be made to fail
    let stops_for = if kind == Kind::Subresources { 55 } else { 120 };
    let mut additions = 0;
    let rounds = seeds.end - seeds.start;
    for seed in seeds {
        let plan = Plan::drawn(against, stops_for, seed);
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
        let broken = match kind {
            Kind::Ours | Kind::Subresources | Kind::Reconcilers => replay.in_two_machines(),
            Kind::Go | Kind::LateSubresources => {
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
    let enough = usize::try_from(rounds / 10).unwrap();
    let is_fenced = fences > enough || is_old;
    assert!(additions > 5 * enough && is_fenced && stops > enough, "the rounds are worth something: {done}");
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

/// Of the volume's second stay in `a` one process sees the first one still, and then its end.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_a_whole_stay_behind_ends_no_detachment() {
    let bed = Bed::new("v1.8.0").await;
    let deeds = Deeds::default();
    let [late, other] = ["first", "second"].map(|name| Process::new(&bed, name, 0, &deeds));
    late.call(true, "a").await.unwrap();
    sleep(Duration::from_secs(3)).await;
    late.shows_instances.send_replace(bed.server.revision());
    other.call(false, "a").await.unwrap();
    let end_of_first_stay = bed.server.revision();
    other.call(true, "a").await.unwrap();
    bed.plugs("a", "stuck").await;
    let watch = async {
        sleep(Duration::from_secs(3)).await;
        late.shows_instances.send_replace(end_of_first_stay);
        sleep(Duration::from_secs(1)).await;
        let seen = (bed.annotation().await, bed.with_volume().await);
        bed.plugs("a", "ok").await;
        seen
    };
    let (answer, (annotation, with)) = tokio::join!(late.call(false, "a"), watch);
    assert_eq!(with, ["a"]);
    assert_eq!(annotation.unwrap()["op"], "detach", "the volume is in the machine still");
    answer.unwrap();
    assert_eq!(bed.with_volume().await, Vec::<String>::new());
    bed.tasks.end().await;
}

/// Of the volume's first stay in `a` one process sees still that it is ready.
#[tokio::test(start_paused = true)]
async fn a_watch_that_shows_a_former_stay_makes_no_disk_ready() {
    let bed = Bed::new("v1.8.0").await;
    let deeds = Deeds::default();
    let [late, other] = ["first", "second"].map(|name| Process::new(&bed, name, 0, &deeds));
    late.call(true, "a").await.unwrap();
    sleep(Duration::from_secs(3)).await;
    late.shows_instances.send_replace(bed.server.revision());
    other.call(false, "a").await.unwrap();
    bed.plugs("a", "stuck").await;
    sleep(Duration::from_secs(1)).await;
    let refused = late.call(true, "a").await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert_eq!(bed.with_volume().await, ["a"]);
    bed.plugs("a", "ok").await;
    late.call(true, "a").await.unwrap();
    bed.tasks.end().await;
}

/// The instances' watch is behind the machine's start.
#[tokio::test(start_paused = true)]
async fn a_machine_that_runs_is_not_taken_for_one_that_does_not_since_a_watch_is_late() {
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "first", 0, &Deeds::default());
    driver.call(true, "b").await.unwrap();
    driver.call(false, "b").await.unwrap();
    let runs = |strategy: &str| {
        let patch = Patch::Merge(json!({"spec": {"runStrategy": strategy}}));
        let machines = bed.machines();
        async move { drop(machines.patch("a", &PatchParams::default(), &patch).await.unwrap()) }
    };
    runs("Halted").await;
    bed.until("it is stopped", async || bed.instances().get_opt("a").await.unwrap().is_none()).await;
    sleep(Duration::from_secs(1)).await;
    driver.shows_instances.send_replace(bed.server.revision());
    bed.plugs("a", "stuck").await;
    runs("Always").await;
    bed.until("it runs", async || {
        let vmi = bed.instances().get_opt("a").await.unwrap();
        vmi.is_some_and(|vmi| vmi.status.is_some_and(|status| status.phase == "Running"))
    })
    .await;
    let refused = driver.call(true, "a").await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert_eq!(bed.with_volume().await, ["a"]);
    bed.plugs("a", "ok").await;
    driver.call(true, "a").await.unwrap();
    bed.tasks.end().await;
}
