//! The actions of users during a run.

mod service;
mod vms;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use controller_kit::{ObjectKey, RawObject, replace};
use harvester_api::{IPPool, LoadBalancer, annotations};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sim_harvester::vm::VirtualMachineInstanceMigration;
use sim_harvester::{Backend, Cluster, SimHarvester};
use test_cluster::{TestCluster, User};
use tokio::time::Instant;

pub(crate) use self::service::{AddressSource, Families, ServiceOptions, first_port};
use crate::cluster_setup::{EDGE, LAB, POOLS, VMS};
use crate::invariants::NodesSeen;
use crate::process::LateCreations;
use crate::{fault_injection, invariants};

/// More Services than addresses, so that some wait for others to go.
const NAMES: usize = 16;
/// One in so many actions is a demand, where there are any.
const DEMAND_ONE_IN: u8 = 6;
/// A user who makes a Service again at once waits this long for its finalizers to go.
const AT_ONCE: Duration = Duration::from_secs(8);
/// When faults and crashes are over, the webhook answers within this time.
const OPENED_WITHIN: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(100);

/// Users whose actions follow from a seed.
pub(crate) struct Users {
    cluster: Arc<TestCluster>,
    simulation: SimHarvester,
    late: LateCreations,
    random: fastrand::Rng,
    there: BTreeSet<usize>,
    migrations: u32,
    nodes: NodesSeen,
    /// Where users demand addresses too: their choices. Runs without them are as if there were no demands.
    demands: Option<fastrand::Rng>,
}

impl Users {
    pub(crate) fn new(
        cluster: Arc<TestCluster>,
        simulation: SimHarvester,
        late: LateCreations,
        random: fastrand::Rng,
        demands: Option<fastrand::Rng>,
    ) -> Self {
        Self {
            cluster,
            simulation,
            late,
            random,
            there: BTreeSet::new(),
            migrations: 0,
            nodes: NodesSeen::default(),
            demands,
        }
    }

    pub(crate) fn late_creations(&self) -> &LateCreations {
        &self.late
    }

    /// Acts until `time` has passed.
    pub(crate) async fn act_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if !self.demand().await {
                self.act().await;
            }
            let pause = Duration::from_millis(self.random.u64(..4_000));
            self.cluster.advance(pause).await;
            self.look().await;
        }
        // every Service must be reachable in the end
        self.restore(VMS[0]).await;
    }

    /// # Panics
    /// Where a condition does not hold that holds at any time.
    pub(crate) async fn look(&mut self) {
        self.nodes.look(&self.cluster).await;
        invariants::hold_at_any_time(&self.cluster, &self.simulation, &self.late).await;
    }

    /// Makes a Service.
    pub(crate) async fn make(&mut self, index: usize, options: ServiceOptions) {
        self.cluster.guest.create(&service::of(index, options)).await;
        self.there.insert(index);
    }

    /// Deletes a Service.
    pub(crate) async fn delete(&mut self, index: usize) {
        self.there.remove(&index);
        self.cluster.guest.delete::<Service>(&service::key(index)).await;
    }

    /// Deletes everything that users made.
    pub(crate) async fn delete_all(&mut self) {
        for index in std::mem::take(&mut self.there) {
            self.delete(index).await;
        }
        let namespace = &self.cluster.guest_cluster().vm_namespace;
        for number in 0..self.migrations {
            let key = format!("{namespace}/move-{number}");
            self.cluster.harvester.delete::<VirtualMachineInstanceMigration>(&key).await;
        }
    }

    /// Deletes the LoadBalancers that serve no Service, as their report tells users to: a program that was stopped while
    /// it created one finishes the creation when it goes on, and no program may delete the object
    /// (docs/contract/addresses.md#4). Returns whether there were any.
    ///
    /// # Panics
    /// Where there are more than stopped programs created, or one has no report.
    pub(crate) async fn follow_reports(&self) -> bool {
        let at_most = self.late.of("loadbalancers").len();
        let services = self.cluster.guest.list::<Service>().await;
        let uids: BTreeSet<_> = services.iter().filter_map(ResourceExt::uid).collect();
        let balancers = self.cluster.harvester.list::<LoadBalancer>().await;
        let service_of =
            |balancer: &LoadBalancer| balancer.annotations().get(annotations::SERVICE_UID).cloned();
        let is_reported =
            |balancer: &LoadBalancer| balancer.annotations().contains_key(annotations::WITHOUT_SERVICE);
        let served: BTreeSet<_> = balancers
            .iter()
            .filter(|balancer| !is_reported(balancer))
            .filter_map(service_of)
            .filter(|uid| uids.contains(uid))
            .collect();
        // a Service that a successor gave another object has that one, and the report is about the late one
        let serves = |balancer: &&LoadBalancer| {
            service_of(balancer)
                .is_some_and(|uid| uids.contains(&uid) && !(is_reported(balancer) && served.contains(&uid)))
        };
        let others: Vec<_> = balancers.iter().filter(|balancer| !serves(balancer)).collect();
        assert!(others.len() <= at_most, "{} serve no Service, {at_most} made late", others.len());
        for balancer in &others {
            let key = ObjectKey::of(*balancer);
            assert!(is_reported(balancer), "{key} serves no Service, and has no report");
            tracing::info!(%key, "deleted by a user");
            self.cluster.harvester.delete::<LoadBalancer>(&key.to_string()).await;
        }
        !others.is_empty()
    }

    async fn act(&mut self) {
        let index = self.random.usize(..NAMES);
        if !self.there.contains(&index) {
            // a Service that is still under deletion is made again later
            if self.is_gone(index).await {
                let options = ServiceOptions::drawn(&mut self.random);
                self.make(index, options).await;
            }
            return;
        }
        match self.random.u8(..31) {
            0..5 => self.delete(index).await,
            5 | 6 => self.make_again_at_once(index).await,
            7 | 8 => self.change(index, json!({"spec": {"type": "ClusterIP"}})).await,
            9 | 10 => self.change(index, json!({"spec": {"type": "LoadBalancer"}})).await,
            11 | 12 => self.change_ports(index).await,
            13 => self.replace_without_status().await,
            14 => self.migrate().await,
            15..18 => {
                let states = [Backend::Ok, Backend::Stopped, Backend::Refusing];
                let vm = VMS[self.random.usize(..VMS.len())];
                let state = states[self.random.usize(..states.len())];
                self.set_backend(vm, state).await;
            }
            18 => {
                let side = if self.random.bool() { Cluster::Guest } else { Cluster::Harvester };
                tracing::info!(?side, "kube-vip starts again");
                self.simulation.restart_vip(side);
            }
            19 | 20 => self.change_policy(index).await,
            21 => self.annotate_a_pool().await,
            22..25 => self.ask_for_another(index).await,
            25..29 => self.change_a_vm().await,
            _ => fault_injection::disturb_watches(&self.cluster, &mut self.random),
        }
    }

    async fn is_gone(&self, index: usize) -> bool {
        self.cluster.guest.get::<Service>(&service::key(index)).await.is_none()
    }

    async fn change(&self, index: usize, patch: Value) {
        self.cluster.guest.patch::<Service>(&service::key(index), patch).await;
    }

    /// Only a LoadBalancer Service has such a policy.
    async fn change_policy(&mut self, index: usize) {
        let service = self.cluster.guest.get::<Service>(&service::key(index)).await;
        let is_unchecked = service.as_ref().is_some_and(service::is_on_host_unchecked);
        let spec = service.and_then(|service| service.spec).unwrap_or_default();
        let policy = if self.random.bool() { "Local" } else { "Cluster" };
        if spec.type_.as_deref() == Some("LoadBalancer") && !is_unchecked {
            self.change(index, json!({"spec": {"externalTrafficPolicy": policy}})).await;
        }
    }

    /// Perhaps a Service demands one address, so that it moves, or waits for whoever has it; or gives its demand up.
    async fn demand(&mut self) -> bool {
        let Some(random) = self.demands.as_mut() else { return false };
        if random.u8(..DEMAND_ONE_IN) > 0 {
            return false;
        }
        let index = random.usize(..NAMES);
        let gives_up = random.u8(..3) == 0;
        let address = if random.u8(..4) == 0 { EDGE.address(random) } else { LAB.address(random) };
        let service = self.cluster.guest.get::<Service>(&service::key(index)).await;
        let Some(options) = service.map(|service| ServiceOptions::asked_by(&service)) else { return false };
        if options.families != Families::One || options.source == AddressSource::Dhcp {
            return false;
        }
        self.demand_address(index, if gives_up { Value::Null } else { json!(address) }).await;
        true
    }

    async fn demand_address(&self, index: usize, address: Value) {
        tracing::info!(index, %address, "demanded");
        self.change(index, json!({"metadata": {"annotations": {annotations::SERVICE_IP: address}}})).await;
    }

    /// Half of the Services demand no address any more: each keeps the one that it has, or takes any.
    pub(crate) async fn withdraw_demands(&self) {
        if self.demands.is_some() {
            for index in self.there.iter().copied().filter(|index| index.is_multiple_of(2)) {
                self.demand_address(index, Value::Null).await;
            }
        }
    }

    /// A health check is of port 80.
    async fn change_ports(&mut self, index: usize) {
        let Some(there) = self.cluster.guest.get::<Service>(&service::key(index)).await else { return };
        let numbers: &[u16] = match self.random.u8(..4) {
            _ if there.annotations().contains_key(annotations::HEALTH_CHECK_PORT) => &[80, 443],
            0 => &[80, 443],
            1 => &[81],
            2 => &[82, 83],
            _ => &[84],
        };
        let ports: Value =
            numbers.iter().map(|port| json!({"name": format!("p-{port}"), "port": port})).collect();
        self.change(index, json!({"spec": {"ports": ports}})).await;
    }

    /// The Service asks for the address of another, or for one of its own. One of two families has addresses of its own.
    async fn ask_for_another(&mut self, index: usize) {
        let other = self.random.usize(..NAMES);
        let wish = if self.random.u8(..3) == 0 { Value::Null } else { json!(service::key(other)) };
        let service = self.cluster.guest.get::<Service>(&service::key(index)).await;
        if service.is_none_or(|service| ServiceOptions::asked_by(&service).families != Families::One) {
            return;
        }
        self.change(index, json!({"metadata": {"annotations": {annotations::PRIMARY_SERVICE: wish}}})).await;
    }

    async fn make_again_at_once(&mut self, index: usize) {
        self.delete(index).await;
        let until = Instant::now() + AT_ONCE;
        while Instant::now() < until {
            if self.is_gone(index).await {
                let options = ServiceOptions::drawn(&mut self.random);
                return self.make(index, options).await;
            }
            self.cluster.advance(GLANCE).await;
        }
    }

    async fn migrate(&mut self) {
        let vm = VMS[self.random.usize(..VMS.len())];
        let namespace = &self.cluster.guest_cluster().vm_namespace;
        let migration = json!({"metadata": {"name": format!("move-{}", self.migrations), "namespace": namespace},
            "spec": {"vmiName": vm}});
        let migration: VirtualMachineInstanceMigration =
            serde_json::from_value(migration).expect("this is a migration");
        self.cluster.harvester.create(&migration).await;
        self.migrations += 1;
    }

    /// The webhook may be dead; then the server refuses this.
    async fn annotate_a_pool(&mut self) {
        let pools: Api<IPPool> = Api::all(self.cluster.harvester.client(User::Driver));
        let number = self.random.u16(..);
        let pool = POOLS[self.random.usize(..POOLS.len())];
        // half of a pool drains, what is released rests, and nobody gets an address who does not name the pool, until
        // somebody annotates it again; who asks for a network would have an address of the global pool instead, and keep it
        let is_by_name = pool.name == LAB.name && number.is_multiple_of(7);
        let auto_assign = if is_by_name { json!("false") } else { Value::Null };
        let rest = if number.is_multiple_of(3) { 20 } else { 0 };
        let ranges = pool.ranges(number.is_multiple_of(4));
        let mut note = json!({"metadata": {"annotations": {annotations::AUTO_ASSIGN: auto_assign}},
                "spec": {"description": number.to_string(), "ranges": ranges, "quarantineSeconds": rest}});
        // it stays: less than what is held, or a little more
        if number % 5 < 2 {
            let guest = self.cluster.guest_cluster();
            let (key, tenant) =
                [("namespace", &guest.vm_namespace), ("guestCluster", &guest.name)][usize::from(number % 5)];
            note["spec"]["quota"] = json!([{key: tenant, "max": number / 5 % 6}]);
        }
        let name = pool.name;
        let outcome = pools.patch(name, &PatchParams::default(), &Patch::Merge(note)).await;
        tracing::debug!(name, refusal = ?outcome.err(), "annotated a pool");
    }

    /// Every address of every pool may be given again. The webhook may not be back yet; then the server refuses this.
    pub(crate) async fn open_pools(&self) {
        let pools: Api<IPPool> = Api::all(self.cluster.harvester.client(User::Driver));
        for pool in POOLS {
            let spec = json!({"metadata": {"annotations": {annotations::AUTO_ASSIGN: null}},
                "spec": {"ranges": pool.ranges(false), "quarantineSeconds": 0}});
            let until = Instant::now() + OPENED_WITHIN;
            while let Err(refusal) =
                pools.patch(pool.name, &PatchParams::default(), &Patch::Merge(&spec)).await
            {
                assert!(Instant::now() < until, "open pool {}: {refusal}", pool.name);
                self.cluster.advance(GLANCE).await;
            }
        }
    }

    /// As `kubectl replace` with an old manifest: the address is gone from the object until a program puts it back.
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
