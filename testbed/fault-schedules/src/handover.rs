//! An address that goes from one load balancer to another, in each way that there is: kube-vip must have withdrawn it from
//! the first before the pool records it for the second.

use std::net::IpAddr;
use std::time::Duration;

use harvester_api::{IPPool, LoadBalancer, annotations};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use sim_harvester::{Cluster, Release};
use test_cluster::{Rights, TestCluster, User};

use crate::cluster_setup::VMS;
use crate::fixture::Fixture;
use crate::invariants;
use crate::process::{CrashPoint, Interruption};
use crate::system::{Program, System};

/// The pool whose one address both load balancers want, and a pool with another one.
const POOLS: [(&str, &str); 2] = [("wanted", "203.0.113.10"), ("other", "203.0.113.20")];
/// Long enough for an address to be given and announced.
const START: Duration = Duration::from_secs(20);
/// Long enough for another leader, and for the record garbage collector to look twice.
const HANDOVER: Duration = Duration::from_secs(150);
const GLANCE: Duration = Duration::from_millis(250);

/// The way in which the first load balancer loses the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// A user deletes it.
    Deleted,
    /// A user deletes it and makes it again under its name, with another pool.
    AnotherPool,
    /// A user deletes it and makes it again under its name, as one of type cluster.
    AnotherType,
    /// A user deletes it and makes it again under its name, with DHCP.
    AnotherIpam,
    /// A user deletes it, and the program dies when it has removed the finalizer.
    CrashAfterFinalizer,
    /// A user moves it to another pool.
    MoveBetweenPools,
    /// A user deletes it with `--cascade=orphan`: its Service stays.
    Orphaned,
    /// A user has kube-vip pass over its Service, and deletes it before the program sees that.
    Ignored,
    /// A user gives its Service another type, and deletes it before the program sees that.
    OfAnotherType,
}

/// The load balancer `first` has the only address of a pool, and `second` waits for it. Then `first` loses it.
///
/// # Panics
/// When the pool records the address for `second`, or for none, while kube-vip announces it for `first`; when `second`
/// does not get it in the end; or when something is left after both are deleted.
pub async fn hand_over(way: Handover, release: Release, cluster: TestCluster) {
    let mut random = fastrand::Rng::with_seed(11);
    let fixture = Fixture::with_releases(cluster, [release; 2], &mut random).await;
    let system = System::start_planned(Program::LoadBalancer, &fixture.environment(), &mut random);
    let cluster = fixture.cluster.clone();
    let harvester = cluster.harvester.simulated().expect("these schedules run on simulated servers");
    let watch = async |time: Duration| {
        let mut judged = None;
        for _ in 0..time.as_millis() / GLANCE.as_millis() {
            cluster.advance(GLANCE).await;
            let now = (harvester.revision(), fixture.simulation.announced());
            // most glances show nothing new
            if judged.as_ref() != Some(&now) {
                invariants::hold_at_any_time(&cluster, &fixture.simulation, &system.late_creations()).await;
                judged = Some(now);
            }
        }
    };
    for (pool, address) in POOLS {
        cluster.harvester.apply(&manifest_of_pool(pool, address)).await;
    }
    let wanted: IpAddr = POOLS[0].1.parse().expect("an address");
    make(&cluster, "first", json!({"ipPool": "wanted"})).await;
    watch(START).await;
    let announcer = || {
        let announced = fixture.simulation.announced();
        let of = announced.into_iter().find(|(of, vip)| {
            *of == Cluster::Harvester && !vip.passed_over && vip.addresses.contains(&wanted)
        });
        of.map(|(_, vip)| vip.service.name)
    };
    assert_eq!(announcer().as_deref(), Some("first"), "the first load balancer has the address");
    make(&cluster, "second", json!({"ipPool": "wanted"})).await;
    watch(START).await;

    take_from_first(way, &cluster, &system).await;
    watch(HANDOVER).await;
    if way == Handover::CrashAfterFinalizer {
        assert!(system.has_crashed(), "the program died");
    }
    if way == Handover::Orphaned && cluster.rights() == Rights::Existing {
        // this role deletes no Service: the address stays with it until a user deletes it; from 1.2 on kube-vip is silent
        // as long as the emptied slice has no endpoint
        let announced = (release != Release::From12).then_some("first");
        assert_eq!(announcer().as_deref(), announced);
        cluster.harvester.delete::<Service>(&key(&cluster, "first")).await;
        watch(HANDOVER).await;
    }
    if way == Handover::Orphaned {
        // no garbage collector takes a slice without owner
        cluster.harvester.delete::<EndpointSlice>(&key(&cluster, "first")).await;
    }
    assert_eq!(announcer().as_deref(), Some("second"), "the second load balancer has the address in the end");

    system.end_crashes();
    for name in ["first", "second"] {
        cluster.harvester.delete::<LoadBalancer>(&key(&cluster, name)).await;
    }
    watch(HANDOVER).await;
    for (pool, _) in POOLS {
        cluster.harvester.delete::<IPPool>(pool).await;
    }
    cluster.settle().await;
    fixture.must_be_as_before().await;
    system.end().await;
}

async fn take_from_first(way: Handover, cluster: &TestCluster, system: &System) {
    let first = key(cluster, "first");
    let delete = || cluster.harvester.delete::<LoadBalancer>(&first);
    match way {
        Handover::Deleted => delete().await,
        Handover::AnotherPool => {
            delete().await;
            make_when_gone(cluster, json!({"ipPool": "other"})).await;
        }
        Handover::AnotherType => {
            delete().await;
            make_when_gone(cluster, json!({"ipPool": "other", "workloadType": "cluster"})).await;
        }
        Handover::AnotherIpam => {
            delete().await;
            make_when_gone(cluster, json!({"ipam": "dhcp"})).await;
        }
        Handover::CrashAfterFinalizer => {
            let interruption = Interruption::DieAfter;
            system.crash_next(CrashPoint { writes: 0, plural: "loadbalancers", interruption });
            delete().await;
        }
        Handover::MoveBetweenPools => {
            let other = json!({"spec": {"ipPool": "other"}});
            cluster.harvester.patch::<LoadBalancer>(&first, other).await;
        }
        Handover::Orphaned => {
            let namespace = &cluster.guest_cluster().vm_namespace;
            let api: Api<LoadBalancer> = Api::namespaced(cluster.harvester.client(User::Driver), namespace);
            let orphan = DeleteParams::orphan();
            drop(api.delete("first", &orphan).await.expect("the load balancer is there"));
        }
        Handover::Ignored => {
            let ignored = json!({"metadata": {"annotations": {annotations::KUBE_VIP_IGNORE: "true"}}});
            cluster.harvester.patch::<Service>(&first, ignored).await;
            delete().await;
        }
        Handover::OfAnotherType => {
            cluster.harvester.patch::<Service>(&first, json!({"spec": {"type": "ClusterIP"}})).await;
            delete().await;
        }
    }
}

/// Makes `first` again as soon as its name is free.
async fn make_when_gone(cluster: &TestCluster, spec: Value) {
    let first = key(cluster, "first");
    while cluster.harvester.get::<LoadBalancer>(&first).await.is_some() {
        cluster.advance(Duration::from_millis(1)).await;
    }
    make(cluster, "first", spec).await;
}

/// A load balancer of type vm for all VMs, but for what `spec` says.
async fn make(cluster: &TestCluster, name: &str, spec: Value) {
    let mut manifest = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": cluster.guest_cluster().vm_namespace},
        "spec": {"workloadType": "vm", "ipam": "pool",
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
            "backendServerSelector": {"harvesterhci.io/vmName": VMS}},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        manifest["spec"][field] = value.clone();
    }
    cluster.harvester.apply(&manifest.to_string()).await;
}

fn key(cluster: &TestCluster, name: &str) -> String {
    format!("{}/{name}", cluster.guest_cluster().vm_namespace)
}

fn manifest_of_pool(name: &str, address: &str) -> String {
    format!(
        "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {{name: {name}}},
           spec: {{ranges: [{{subnet: 203.0.113.0/24, rangeStart: {address}, rangeEnd: {address}}}]}}}}"
    )
}
