//! A simulated Harvester behind test servers, with nothing but its storage to do.

use std::net::Ipv4Addr;

use kube::Client;
use program::{Clock, TaskGroup};
use sim_harvester::{Carrier, Lan, Options, Release, SimHarvester, settings::Dhcp};
use test_cluster::{TestCluster, User};

/// Starts it behind the servers of a test. Tests of one program have different numbers.
pub(crate) fn start_behind(cluster: &TestCluster, number: u8, tasks: &TaskGroup) {
    let guest = cluster.guest.client(User::Driver);
    let options = options([cluster.harvester.client(User::Driver), guest], number);
    let options = Options {
        cluster: cluster.guest_cluster().name.clone(),
        writes_slices: cluster.guest.simulated().is_some(),
        clock: Clock::starting_at(cluster.start()),
        ..options
    };
    drop(SimHarvester::start(options, tasks));
}

/// For the servers of Harvester and of the guest.
pub(crate) fn options([harvester, guest]: [Client; 2], number: u8) -> Options {
    let range = |last| Ipv4Addr::new(127, 80, number, last);
    Options {
        harvester,
        guest,
        cluster: "demo".to_owned(),
        network: format!("198.18.{number}.0/24").parse().unwrap(),
        workloads: vec![],
        writes_slices: false,
        harvester_vip: Release::From12,
        guest_vip: Release::From12,
        carrier: Carrier::Memory,
        lan: Lan::memory(),
        dhcp: Dhcp { pool: (range(100), range(120)), lease_seconds: 600, silent: false },
        clock: Clock::system(),
        seed: 7,
    }
}
