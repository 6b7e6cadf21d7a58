//! What users and machines do meanwhile.

mod service;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use controller_kit::{ObjectKey, RawObject, replace};
use harvester_api::{IPPool, LoadBalancer, annotations};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sim_harvester::machine::VirtualMachineInstanceMigration;
use sim_harvester::{Backend, Cluster, SimHarvester};
use test_cluster::{TestCluster, User};
use tokio::time::Instant;

pub(crate) use self::service::{Kind, Source};
use crate::land::{MACHINES, POOLS};
use crate::{invariants, weather};

/// More Services than addresses, so that some wait for others to go.
const NAMES: usize = 16;
/// Whoever makes a Service again at once waits so long for its finalizers to go.
const AT_ONCE: Duration = Duration::from_secs(8);
const GLANCE: Duration = Duration::from_millis(100);

/// Users with a plan.
pub(crate) struct Deeds {
    cluster: Arc<TestCluster>,
    simulation: SimHarvester,
    random: fastrand::Rng,
    there: BTreeSet<usize>,
    migrations: u32,
}

impl Deeds {
    pub(crate) fn new(cluster: Arc<TestCluster>, simulation: SimHarvester, random: fastrand::Rng) -> Self {
        Self { cluster, simulation, random, there: BTreeSet::new(), migrations: 0 }
    }

    /// Does this and that until `time` has passed.
    pub(crate) async fn go_on(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.one().await;
            let pause = Duration::from_millis(self.random.u64(..4_000));
            self.cluster.advance(pause).await;
            invariants::nobody_shares(&self.cluster).await;
        }
        // so that everybody must be reachable in the end
        self.answer(MACHINES[0], Backend::Ok).await;
    }

    /// Makes a Service.
    pub(crate) async fn make(&mut self, index: usize, kind: Kind) {
        self.cluster.guest.create(&service::of(index, kind)).await;
        self.there.insert(index);
    }

    /// Deletes a Service.
    pub(crate) async fn delete(&mut self, index: usize) {
        self.there.remove(&index);
        self.cluster.guest.delete::<Service>(&service::key(index)).await;
    }

    /// Deletes everything that was made.
    pub(crate) async fn undo(&mut self) {
        for index in std::mem::take(&mut self.there) {
            self.delete(index).await;
        }
        let namespace = &self.cluster.guest_cluster().vm_namespace;
        for number in 0..self.migrations {
            let key = format!("{namespace}/move-{number}");
            self.cluster.harvester.delete::<VirtualMachineInstanceMigration>(&key).await;
        }
    }

    /// Deletes the LoadBalancers without Service, as their report tells users to: a program that was stopped while it
    /// made one finishes that when it goes on, and nobody else may take the object away (`addresses.md`, section 4).
    /// Says whether there were any.
    ///
    /// # Panics
    /// Where there are more than `at_most`, or one is not reported.
    pub(crate) async fn follow_reports(&self, at_most: usize) -> bool {
        let services = self.cluster.guest.list::<Service>().await;
        let uids: BTreeSet<_> = services.iter().filter_map(ResourceExt::uid).collect();
        let mut balancers = self.cluster.harvester.list::<LoadBalancer>().await;
        balancers.retain(|balancer| {
            balancer.annotations().get(annotations::SERVICE_UID).is_none_or(|uid| !uids.contains(uid))
        });
        assert!(balancers.len() <= at_most, "{} without Service, {at_most} made late", balancers.len());
        for balancer in &balancers {
            let key = ObjectKey::of(balancer);
            let report = balancer.annotations().get(annotations::WITHOUT_SERVICE);
            assert!(report.is_some(), "{key} is without Service, and nobody says so");
            tracing::info!(%key, "deleted by a user");
            self.cluster.harvester.delete::<LoadBalancer>(&key.to_string()).await;
        }
        !balancers.is_empty()
    }

    async fn one(&mut self) {
        let index = self.random.usize(..NAMES);
        if !self.there.contains(&index) {
            // one that is still being deleted is made again later
            if self.is_gone(index).await {
                let kind = Kind::drawn(&mut self.random);
                self.make(index, kind).await;
            }
            return;
        }
        match self.random.u8(..23) {
            0..5 => self.delete(index).await,
            5 | 6 => self.make_again_at_once(index).await,
            7 | 8 => self.change(index, json!({"spec": {"type": "ClusterIP"}})).await,
            9 | 10 => self.change(index, json!({"spec": {"type": "LoadBalancer"}})).await,
            11 => {
                let ports = json!([{"name": "http", "port": 80}, {"name": "https", "port": 443}]);
                self.change(index, json!({"spec": {"ports": ports}})).await;
            }
            12 => self.annotate_a_pool().await,
            13 => self.replace_without_status().await,
            14 => self.migrate().await,
            15..18 => {
                let states = [Backend::Ok, Backend::Stopped, Backend::Refusing];
                let machine = MACHINES[self.random.usize(..MACHINES.len())];
                let state = states[self.random.usize(..states.len())];
                self.answer(machine, state).await;
            }
            18 => {
                let side = if self.random.bool() { Cluster::Guest } else { Cluster::Harvester };
                tracing::info!(?side, "kube-vip starts again");
                self.simulation.restart_vip(side);
            }
            19 | 20 => self.change_policy(index).await,
            _ => weather::gust(&self.cluster, &mut self.random),
        }
    }

    async fn is_gone(&self, index: usize) -> bool {
        self.cluster.guest.get::<Service>(&service::key(index)).await.is_none()
    }

    async fn change(&self, index: usize, patch: Value) {
        self.cluster.guest.patch::<Service>(&service::key(index), patch).await;
    }

    /// Of a Service that has such a policy now.
    async fn change_policy(&mut self, index: usize) {
        let service = self.cluster.guest.get::<Service>(&service::key(index)).await;
        let spec = service.and_then(|service| service.spec).unwrap_or_default();
        let policy = if self.random.bool() { "Local" } else { "Cluster" };
        if spec.type_.as_deref() == Some("LoadBalancer") {
            self.change(index, json!({"spec": {"externalTrafficPolicy": policy}})).await;
        }
    }

    async fn make_again_at_once(&mut self, index: usize) {
        self.delete(index).await;
        let until = Instant::now() + AT_ONCE;
        while Instant::now() < until {
            if self.is_gone(index).await {
                let kind = Kind::drawn(&mut self.random);
                return self.make(index, kind).await;
            }
            self.cluster.advance(GLANCE).await;
        }
    }

    async fn answer(&self, machine: &str, backend: Backend) {
        let namespace = &self.cluster.guest_cluster().vm_namespace;
        let outcome = self.simulation.set_backend(&ObjectKey::new(namespace, machine), backend).await;
        outcome.expect("nothing is in the way of the administrator");
    }

    async fn migrate(&mut self) {
        let machine = MACHINES[self.random.usize(..MACHINES.len())];
        let namespace = &self.cluster.guest_cluster().vm_namespace;
        let migration = json!({"metadata": {"name": format!("move-{}", self.migrations), "namespace": namespace},
            "spec": {"vmiName": machine}});
        let migration: VirtualMachineInstanceMigration =
            serde_json::from_value(migration).expect("this is a migration");
        self.cluster.harvester.create(&migration).await;
        self.migrations += 1;
    }

    /// The webhook may be dead, and then nobody can do such things.
    async fn annotate_a_pool(&mut self) {
        let pools: Api<IPPool> = Api::all(self.cluster.harvester.client(User::Driver));
        let note = json!({"spec": {"description": self.random.u16(..).to_string()}});
        let name = POOLS[self.random.usize(..POOLS.len())].name;
        let outcome = pools.patch(name, &PatchParams::default(), &Patch::Merge(note)).await;
        tracing::debug!(name, refusal = ?outcome.err(), "annotated a pool");
    }

    /// As `kubectl replace` does with an old manifest: the address is gone from the object, until somebody notices.
    async fn replace_without_status(&mut self) {
        let client = self.cluster.harvester.client(User::Driver);
        let objects = self.cluster.harvester.list::<LoadBalancer>().await;
        let Some(chosen) = self.random.choice(&objects) else { return };
        let namespace = chosen.namespace().unwrap_or_default();
        let objects: Api<RawObject<LoadBalancer>> = Api::namespaced(client.clone(), &namespace);
        let Ok(object) = objects.get(&chosen.name_any()).await else { return };
        let mut json = object.json();
        json.as_object_mut().expect("an object").remove("status");
        let outcome = replace::<LoadBalancer>(&client, &json).await;
        tracing::debug!(name = chosen.name_any(), refusal = ?outcome.err(), "replaced without status");
    }
}
