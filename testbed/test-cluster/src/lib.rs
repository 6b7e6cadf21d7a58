//! One API for component tests on the simulated and on the real API server.
//!
//! ```text
//!                       ┌ guest ────── services, nodes, …        simulated: in this process, on a paused clock
//! test ──► TestCluster ─┤
//!                       └ harvester ── load balancers, pools, …  real: etcd, kube-apiserver, kube-controller-manager
//! ```
//! A component test is written once, takes a [`TestCluster`] and does not mention time; [`component_tests!`] makes of
//! it a test on each kind of server:
//!
//! ```
//! test_cluster::component_tests! {
//!     async fn a_pool_is_found_again(cluster: test_cluster::TestCluster) {
//!         cluster.harvester.apply(
//!             "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: lab},
//!               spec: {ranges: [{subnet: 127.3.0.0/24}]}}",
//!         ).await;
//!         cluster.settle().await;
//!         assert!(cluster.harvester.get::<harvester_api::IPPool>("lab").await.is_some());
//!     }
//! }
//! # fn main() {}
//! ```
//!
//! The parts under test are started by the test, with [`Cluster::client`]s of their users and a clock that begins at
//! [`TestCluster::start`]. Nothing is faked: RBAC, admission and schemas are the servers' own.
#![forbid(unsafe_code)]

pub mod addresses;
mod cluster;
pub mod grants;
mod inventory;
pub mod manifests;
pub mod real;
pub mod releases;
mod request;
mod run;
mod test_cluster;
mod traffic;
mod user;

pub use cluster::Cluster;
pub use inventory::objects;
pub use manifests::Rights;
pub use request::{Class, Request};
pub use run::{Roles, on_real, on_simulated, on_simulated_as_on_real, only_on_simulated};
pub use test_cluster::TestCluster;
pub use user::{GuestCluster, Side, User};
