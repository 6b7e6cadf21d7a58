//! The two clusters of a test.

mod prepare;
mod rest;
mod shared;

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::time::Duration;

use jiff::Timestamp;
use sim_apiserver::ApiServer;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use self::rest::{Look, Rest, SILENCE};
use self::shared::Shared;
use crate::cluster::{Backend, Cluster};
use crate::inventory;
use crate::manifests::{self, Rights};
use crate::real;
use crate::run::Roles;
use crate::user::{GuestCluster, Side};

const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
const BETWEEN_REAL_LOOKS: Duration = Duration::from_millis(10);
/// Whoever has not come to rest by then never will.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// A guest cluster and the Harvester cluster under it, with kinds, namespaces and roles, and nothing else.
///
/// Starting the parts under test is the test's business: it gives them clients of their users.
#[derive(Debug)]
pub struct TestCluster {
    /// The Kubernetes cluster in the VMs.
    pub guest: Cluster,
    /// The cluster that runs the VMs.
    pub harvester: Cluster,
    rights: Rights,
    /// Whether the test is run with the other roles too.
    may_ask: bool,
    /// Whether the test is for the simulated servers only, whose clock it may move.
    may_advance: bool,
    guest_cluster: GuestCluster,
    start: Timestamp,
    /// How far things had moved at the last rest.
    rested_at: std::sync::Mutex<Option<u64>>,
    /// The real servers are there once: the next test waits until this one is over.
    _turn: Option<MutexGuard<'static, Option<Result<Shared, String>>>>,
}

static SERVERS: Mutex<Option<Result<Shared, String>>> = Mutex::const_new(None);

impl TestCluster {
    /// Two simulated servers, fresh ones. Inside a runtime whose clock is paused.
    pub async fn simulated(rights: Rights) -> Self {
        Box::pin(Self::simulated_with(rights, false)).await
    }

    /// As [`TestCluster::simulated`], where Services of Harvester may have both families, as those of the guest.
    pub async fn simulated_with_ipv6(rights: Rights) -> Self {
        Box::pin(Self::simulated_with(rights, true)).await
    }

    async fn simulated_with(rights: Rights, harvester_has_ipv6: bool) -> Self {
        let guest_cluster = GuestCluster::default();
        let start: Timestamp = "2026-01-05T09:00:00Z".parse().expect("a constant time");
        let cluster = |side| {
            let builder = ApiServer::builder().seed(side as u64).starting_at(start);
            let builder = match side {
                // Services may have both families, as on the real server
                Side::Harvester if !harvester_has_ipv6 => builder,
                Side::Guest | Side::Harvester => {
                    builder.ipv6_service_network(Ipv6Addr::new(0xfd43, 0, 0, 0, 0, 0, 0, 0), 112)
                }
            };
            let server = manifests::namespaces(side, &guest_cluster)
                .into_iter()
                .fold(builder, |b, ns| b.namespace(ns));
            let backend = Backend::Simulated { server: server.build(), heard: std::sync::Mutex::default() };
            Cluster::new(side, guest_cluster.clone(), backend)
        };
        let (guest, harvester) = (cluster(Side::Guest), cluster(Side::Harvester));
        for cluster in [&guest, &harvester] {
            prepare::kinds(cluster).await;
            prepare::roles(cluster, rights, &guest_cluster).await;
            prepare::secrets(cluster, rights, &guest_cluster).await;
        }
        Self {
            guest,
            harvester,
            rights,
            may_ask: true,
            may_advance: true,
            guest_cluster,
            start,
            rested_at: std::sync::Mutex::default(),
            _turn: None,
        }
    }

    /// Two real servers, those that this process has already, wiped.
    ///
    /// # Panics
    /// Where this machine has none; the message says how to have them.
    #[expect(clippy::disallowed_methods, reason = "the real servers live in real time")]
    pub async fn real(rights: Rights) -> Self {
        let guest_cluster = GuestCluster::default();
        let mut turn = SERVERS.lock().await;
        if turn.is_none() {
            *turn = Some(Shared::start(&guest_cluster).await.map_err(|error| chain(&error)));
        }
        let shared = match turn.as_mut().expect("it was just started") {
            Ok(shared) => shared,
            Err(error) => panic!("no real API server for this test: {error}"),
        };
        let cluster = |side| {
            let server = shared.servers.side(side).clone();
            let log = std::sync::Mutex::new(server.audit_log());
            Cluster::new(side, guest_cluster.clone(), Backend::Real { server, log })
        };
        let (guest, harvester) = (cluster(Side::Guest), cluster(Side::Harvester));
        shared.wipe(&guest, &harvester).await;
        shared.give(rights, &guest, &harvester, &guest_cluster).await;
        guest.forget_requests();
        harvester.forget_requests();
        Self {
            guest,
            harvester,
            rights,
            may_ask: true,
            may_advance: false,
            guest_cluster,
            start: Timestamp::now(),
            rested_at: std::sync::Mutex::default(),
            _turn: Some(turn),
        }
    }

    pub(crate) fn with(mut self, roles: Roles) -> Self {
        self.may_ask = matches!(roles, Roles::Each(_));
        self
    }

    pub(crate) fn limited_as_on_real(self) -> Self {
        Self { may_advance: false, ..self }
    }

    /// Which roles the parts have.
    ///
    /// # Panics
    /// In a component test without `#[each_role]`: it would be run on the real servers with one set of roles only.
    #[must_use]
    pub fn rights(&self) -> Rights {
        assert!(self.may_ask, "a component test that asks for roles is #[each_role]");
        self.rights
    }

    /// What Harvester calls the guest cluster, and where its VMs are.
    #[must_use]
    pub fn guest_cluster(&self) -> &GuestCluster {
        &self.guest_cluster
    }

    /// The time of day at which the test began, for the clocks of the parts.
    #[must_use]
    pub fn start(&self) -> Timestamp {
        self.start
    }

    /// One of the two clusters.
    #[must_use]
    pub fn side(&self, side: Side) -> &Cluster {
        match side {
            Side::Guest => &self.guest,
            Side::Harvester => &self.harvester,
        }
    }

    /// Waits until nothing goes on in either cluster any more, leader election apart.
    ///
    /// # Panics
    /// When that does not come to pass within two minutes; the message has the last requests.
    pub async fn settle(&self) {
        let mut rest = Rest::new(self.movements(), *self.rested_at.lock().expect("no panic while noting"));
        let until = Instant::now() + SETTLED_WITHIN;
        let between = if self.is_simulated() { BETWEEN_LOOKS } else { BETWEEN_REAL_LOOKS };
        loop {
            let before = Instant::now();
            sleep(between).await;
            // a machine that was too busy to wake us in time was too busy for the parts as well
            let late = before.elapsed() > between + BETWEEN_LOOKS;
            match rest.look(self.movements(), if late { Duration::ZERO } else { between }, self.is_idle()) {
                Look::Moving => {}
                Look::Quiet => break,
                Look::Idle => {
                    let seen = self.guest.is_seen_as_it_is().await && self.harvester.is_seen_as_it_is().await;
                    if seen && rest.is_same(self.movements()) && self.is_idle() {
                        break;
                    }
                }
            }
            assert!(Instant::now() < until, "no rest; the last requests: {:#?}", self.last_requests());
        }
        *self.rested_at.lock().expect("no panic while noting") = Some(self.movements());
    }

    /// Lets time pass, timer by timer. Only where time is simulated.
    ///
    /// # Panics
    /// In a test that runs on the real servers too, whose clock nobody can move.
    pub async fn advance(&self, time: Duration) {
        assert!(self.may_advance, "a test that advances the clock is #[simulated_only(\"why\")]");
        sleep(time).await;
    }

    /// Paths of all objects of one cluster, Events and Leases apart: equal before and after when nothing leaks.
    ///
    /// # Panics
    /// Where the server cannot list them.
    pub async fn objects(&self, side: Side) -> BTreeSet<String> {
        let objects = inventory::objects(self.side(side).driver(), side).await;
        objects.unwrap_or_else(|error| panic!("list the objects of the {} cluster: {error}", side.name()))
    }

    fn is_simulated(&self) -> bool {
        self.guest.simulated().is_some()
    }

    /// Grows with all that happens in the clusters and between them and the parts.
    fn movements(&self) -> u64 {
        let of = |cluster: &Cluster| cluster.activity() as u64 + cluster.traffic().movements();
        of(&self.guest) + of(&self.harvester)
    }

    /// Whether the parts have nothing to do. On the simulated servers only silence tells: it costs no time there.
    fn is_idle(&self) -> bool {
        !self.is_simulated()
            && self.guest.traffic().in_flight() + self.harvester.traffic().in_flight() == 0
            && !controller_kit::pending_within(SILENCE)
    }

    fn last_requests(&self) -> Vec<crate::Request> {
        let last = |cluster: &Cluster| {
            let requests = cluster.requests();
            requests[requests.len().saturating_sub(10)..].to_vec()
        };
        [last(&self.guest), last(&self.harvester)].concat()
    }
}

/// An error with its causes.
fn chain(error: &real::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
