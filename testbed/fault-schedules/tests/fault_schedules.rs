//! Runs the seeds that `FAULT_SEEDS` names, as `55,840,0..100`, or a few. Each seed runs in a process of its own: tokio
//! numbers the runtimes of a process, and its random choices depend on the number.
#![cfg(test)]

#[path = "fault_schedules/chance.rs"]
mod chance;
#[path = "fault_schedules/runs.rs"]
mod runs;

use std::env;

use fault_schedules::{
    Handover, Meanwhile, failed_seeds, hand_over, parse_seeds, stopped_before_a_mark,
    stopped_before_an_object, stopped_leader,
};
use runs::Runs;
use sim_harvester::Release;
use test_cluster::{Rights, on_simulated};

/// Enough to see that the harness works; `cargo xtask seeds` runs more.
const A_FEW: &str = "0..6";

fn seeds() -> Vec<u64> {
    let text = env::var("FAULT_SEEDS");
    parse_seeds(text.as_deref().unwrap_or(A_FEW)).expect("FAULT_SEEDS is a list of seeds and ranges")
}

const RUNS: Runs = Runs { test: "one_run", seed: "FAULT_SEED" };

#[test]
#[ignore = "the other tests run it, with the seed in FAULT_SEED"]
fn one_run() {
    RUNS.one(|seed, cluster| Box::pin(fault_schedules::run(seed, cluster)));
}

#[test]
fn after_any_storm_everything_is_as_if_there_had_been_none() {
    RUNS.must_hold(&seeds());
}

#[test]
fn every_seed_that_ever_failed_holds() {
    RUNS.must_hold(&failed_seeds());
}

#[test]
fn a_seed_always_makes_the_same_run() {
    for seed in [1, 2] {
        let [first, second] = [seed; 2].map(|seed| RUNS.report(seed).expect("the seed holds"));
        assert_eq!(first, second);
    }
}

#[test]
fn a_leader_that_was_stopped_between_two_writes_of_a_claim_does_no_harm_when_it_goes_on() {
    for rights in [Rights::Ours, Rights::Existing] {
        for on_host in [false, true] {
            for meanwhile in [Meanwhile::Stays, Meanwhile::Goes, Meanwhile::GoesBeforeOthers] {
                println!("{rights:?}, on the data path host: {on_host}, the owner: {meanwhile:?}");
                on_simulated(rights, async |cluster| {
                    Box::pin(stopped_leader(on_host, meanwhile, cluster)).await;
                });
            }
        }
    }
}

/// Seed 55 found it: nothing announced the Service, because the mark tells the guest's kube-vip to ignore it.
#[test]
fn the_mark_of_a_manager_that_was_stopped_does_not_come_over_a_new_service_of_the_same_name() {
    for rights in [Rights::Ours, Rights::Existing] {
        on_simulated(rights, async |cluster| Box::pin(stopped_before_a_mark(cluster)).await);
    }
}

/// Seed 2026112800199 found it.
#[test]
fn a_service_that_requires_two_addresses_and_got_a_late_object_on_the_host_has_one_and_is_told() {
    for rights in [Rights::Ours, Rights::Existing] {
        on_simulated(rights, async |cluster| Box::pin(stopped_before_an_object(cluster)).await);
    }
}

fn hands_over(way: Handover, rights: Rights) {
    for release in [Release::UpTo06, Release::From07, Release::From09, Release::From12] {
        println!("{way:?}, {rights:?}, kube-vip {release:?}");
        on_simulated(rights, async |cluster| Box::pin(hand_over(way, release, cluster)).await);
    }
}

#[test]
fn a_deleted_load_balancers_address_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role() {
    hands_over(Handover::Deleted, Rights::Ours);
}

#[test]
fn a_deleted_load_balancers_address_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role() {
    hands_over(Handover::Deleted, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::AnotherPool, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::AnotherPool, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::AnotherType, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::AnotherType, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_dhcp_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::AnotherIpam, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_dhcp_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::AnotherIpam, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_whose_program_died_after_the_finalizer_went_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::CrashAfterFinalizer, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_whose_program_died_after_the_finalizer_went_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::CrashAfterFinalizer, Rights::Existing);
}

#[test]
fn the_former_address_of_a_load_balancer_that_moves_to_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::MoveBetweenPools, Rights::Ours);
}

#[test]
fn the_former_address_of_a_load_balancer_that_moves_to_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::MoveBetweenPools, Rights::Existing);
}

#[test]
fn the_address_of_an_orphaned_service_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role() {
    hands_over(Handover::Orphaned, Rights::Ours);
}

#[test]
fn the_address_of_an_orphaned_service_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
{
    hands_over(Handover::Orphaned, Rights::Existing);
}

#[test]
fn the_address_of_a_service_that_kube_vip_ignores_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::Ignored, Rights::Ours);
}

#[test]
fn the_address_of_a_service_that_kube_vip_ignores_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::Ignored, Rights::Existing);
}

#[test]
fn the_address_of_a_service_of_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role() {
    hands_over(Handover::OfAnotherType, Rights::Ours);
}

#[test]
fn the_address_of_a_service_of_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::OfAnotherType, Rights::Existing);
}
