//! Each grant of each role of the load balancer, taken away in turn: what is off then and nothing else, one line of the log that
//! names the right, and all of it back after the grant. A grant without a row fails. With our roles: those of the Go program
//! lack more than one right.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use harvester_api::{IPPool, LoadBalancer, VirtualMachine, VirtualMachineInstance, annotations};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Service},
    discovery::v1::EndpointSlice,
};
use serde_json::json;
use test_cluster::{
    Rights, Side, TestCluster,
    grants::{Grant, all_but, of},
};
use tracing::subscriber::DefaultGuard;

use super::fixtures::{Controller, told};

const ROLES: [&str; 1] = ["harvester-load-balancer"];
/// Granted and never asked for.
const UNUSED: [(&str, &str); 2] = [("get", "configmaps"), ("get", "nodes")];
const LEASE: &str = "kube-system/harvester-load-balancer";
const MAP: &str = "kube-system/kubevip";

/// Longer than a right is refused before it is asked about again, and than an object that failed waits; a record without
/// holder waits twice a minute.
const BACK_WITHIN: Duration = Duration::from_secs(240);
const A_WHILE: Duration = Duration::from_secs(60);

/// What is done for objects that come.
const MADE: [&str; 7] = ["address", "service", "slice", "imported", "marked", "VM", "VMI"];
/// What is done when they change and go.
const CHANGED: [&str; 7] = ["backends", "ports", "cluster", "object", "service", "record", "told"];

const LISTS: [&str; 4] = ["loadbalancers", "ippools", "services", "endpointslices"];

/// What of [`MADE`] and of [`CHANGED`] is not done without a grant.
fn off((verb, resource): (&str, &str)) -> Option<(&'static [&'static str], &'static [&'static str])> {
    let row: (&[&str], &[&str]) = match (verb, resource) {
        ("list", list) if LISTS.contains(&list) => (&MADE, &CHANGED),
        ("get", "loadbalancers") => (&[], &[]),
        ("watch", "loadbalancers") => {
            (&["address", "service", "slice"], &["ports", "cluster", "object", "service", "record"])
        }
        // what goes has a finalizer of ours
        ("update", "loadbalancers") => (&["address", "service", "slice"], &["cluster", "object"]),
        ("delete", "loadbalancers") => (&[], &["cluster"]),
        ("get", "ippools") => (&[], &[]),
        ("watch", "ippools") => (&["address", "service", "slice"], &[]),
        ("create", "ippools") => (&["imported", "marked"], &[]),
        ("update", "ippools") => (&["address", "service", "slice"], &["cluster", "object", "record"]),
        ("get", "services") => (&["address", "service", "slice"], &["cluster", "object", "record"]),
        ("create", "services") => (&["service"], &[]),
        ("update", "services") => (&[], &["ports"]),
        // Kubernetes' garbage collector ends them
        ("watch" | "delete", "services") => (&[], &[]),
        ("get", "endpointslices") => (&["address", "service", "slice"], &[]),
        ("create", "endpointslices") => (&["service", "slice"], &[]),
        ("update", "endpointslices") => (&["slice"], &["backends", "ports"]),
        ("watch", "endpointslices") => (&[], &[]),
        ("list", "virtualmachines") => (&["VM"], &["cluster"]),
        ("watch", "virtualmachines") => (&["VM"], &["cluster"]),
        ("get" | "update", "virtualmachines") => (&["VM"], &[]),
        ("list", "virtualmachineinstances") => (&["service", "slice", "VMI"], &["backends", "ports"]),
        ("watch", "virtualmachineinstances") => (&["slice", "VMI"], &["backends"]),
        ("get" | "update", "virtualmachineinstances") => (&["VMI"], &[]),
        ("get" | "list" | "watch", "customresourcedefinitions") => (&[], &[]),
        ("list", "configmaps") => (&["imported", "marked"], &["told"]),
        ("watch", "configmaps") => (&["imported", "marked"], &["told"]),
        ("update", "configmaps") => (&["marked"], &[]),
        ("list" | "watch", "nodes") => (&[], &[]),
        ("create", "events") => (&[], &["told"]),
        ("patch", "events") => (&[], &[]),
        _ => return None,
    };
    Some(row)
}

/// The warnings of this thread, on which everything runs.
pub(super) struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    _here: DefaultGuard,
}

struct Writes(Arc<Mutex<Vec<u8>>>);

impl io::Write for Writes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(super) fn start() -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let into = text.clone();
        let writes = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || Writes(into.clone()));
        Self { text, _here: tracing::subscriber::set_default(writes.finish()) }
    }

    /// What was said since the last look.
    pub(super) fn take(&self) -> String {
        let text = std::mem::take(&mut *self.text.lock().unwrap());
        String::from_utf8(text).unwrap()
    }

    /// What is wrong with what was said about rights since the last look: one line is to name this one, and no other.
    fn wrong_line(&self, grant: &Grant) -> Option<String> {
        let text = self.take();
        let lines: Vec<_> = text.lines().filter(|line| line.contains(" does not grant ")).collect();
        let named = format!(" does not grant {}", grant.text());
        let is_it =
            matches!(&*lines, [only] if only.contains(&named) && only.matches("without it").count() == 1);
        (!is_it).then(|| format!("{}: said {lines:?}", grant.text()))
    }
}

const OBJECTS: &str = "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: edge}
spec: {ranges: [{subnet: 203.0.113.0/24}], selector: {scope: [{namespace: '*', project: '*', guestCluster: '*'}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kubevip, namespace: kube-system}
data: {cidr-default: 192.0.2.0/28}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: old, namespace: team-a, finalizers: [wrangler.cattle.io/harvester-lb-vm-controller]}
spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: old, namespace: team-a, finalizers: [wrangler.cattle.io/harvester-lb-vmi-controller]}
spec: {domain: {devices: {}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: red-1
  namespace: team-a
  labels: {harvesterhci.io/creator: docker-machine-driver-harvester, guestcluster.harvesterhci.io/name: red}
  annotations: {harvesterhci.io/removeAllPersistentVolumeClaims: 'true'}
  finalizers: [other.io/keep]
spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: web, namespace: team-a}
spec:
  workloadType: vm
  ipam: pool
  listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]
  backendServerSelector: {tier: [api]}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: red, namespace: team-a, labels: {cloudprovider.harvesterhci.io/cluster: red}}
spec: {workloadType: cluster, ipam: pool}
";

async fn backend(cluster: &TestCluster, name: &str, address: &str) {
    let yaml = format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance,
           metadata: {{name: {name}, namespace: team-a, labels: {{tier: api}}}}, spec: {{domain: {{devices: {{}}}}}},
           status: {{interfaces: [{{name: vlan, ipAddress: {address}}}]}}}}"
    );
    cluster.harvester.apply(&yaml).await;
}

async fn make(cluster: &TestCluster) {
    cluster.harvester.apply(OBJECTS).await;
    backend(cluster, "api-1", "192.168.7.11").await;
    cluster.advance(A_WHILE).await;
}

async fn endpoints(cluster: &TestCluster) -> String {
    let slice = cluster.harvester.get::<EndpointSlice>("team-a/web").await;
    json!(slice.map(|slice| slice.endpoints)).to_string()
}

fn undone<const N: usize>(names: [&'static str; N], done: [bool; N]) -> BTreeSet<&'static str> {
    names.into_iter().zip(done).filter(|(_, done)| !done).map(|(name, _)| name).collect()
}

/// What of [`MADE`] is not done.
async fn not_made(cluster: &TestCluster) -> BTreeSet<&'static str> {
    let harvester = &cluster.harvester;
    let status = harvester.get::<LoadBalancer>("team-a/web").await.unwrap().status.unwrap_or_default();
    let map = harvester.get::<ConfigMap>(MAP).await.unwrap();
    let is_free = |finalizers: Option<Vec<String>>| finalizers.unwrap_or_default().is_empty();
    undone(
        MADE,
        [
            status.allocated_address.is_some(),
            harvester.get::<Service>("team-a/web").await.is_some(),
            endpoints(cluster).await.contains("192.168.7.11"),
            harvester.get::<IPPool>("default").await.is_some(),
            map.metadata.annotations.is_some_and(|all| all.contains_key(annotations::AFTER_CONVERSION)),
            is_free(harvester.get::<VirtualMachine>("team-a/old").await.unwrap().metadata.finalizers),
            is_free(harvester.get::<VirtualMachineInstance>("team-a/old").await.unwrap().metadata.finalizers),
        ],
    )
}

async fn ports(cluster: &TestCluster) -> String {
    let service = cluster.harvester.get::<Service>("team-a/web").await;
    json!(service.and_then(|service| service.spec?.ports)).to_string()
}

/// Whether backends and ports follow; then objects go.
async fn change(cluster: &TestCluster) -> [bool; 2] {
    let harvester = &cluster.harvester;
    backend(cluster, "api-2", "192.168.7.12").await;
    let listener = json!([{"name": "http", "port": 81, "protocol": "TCP", "backendPort": 8080}]);
    harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"listeners": listener}})).await;
    let edit = json!({"data": {"cidr-default": "192.0.2.0/29"}});
    harvester.patch::<ConfigMap>(MAP, edit).await;
    harvester.delete::<VirtualMachine>("team-a/red-1").await;
    cluster.advance(A_WHILE).await;
    let follows =
        [endpoints(cluster).await.contains("192.168.7.12"), ports(cluster).await.contains("\"port\":81")];
    harvester.delete::<LoadBalancer>("team-a/web").await;
    cluster.advance(A_WHILE).await;
    follows
}

/// What of [`CHANGED`] is not done.
async fn not_changed(cluster: &TestCluster, [backends, ports]: [bool; 2]) -> BTreeSet<&'static str> {
    let harvester = &cluster.harvester;
    let record = harvester.get::<IPPool>("edge").await.unwrap().status.unwrap_or_default().allocated;
    undone(
        CHANGED,
        [
            backends,
            ports,
            harvester.get::<LoadBalancer>("team-a/red").await.is_none(),
            harvester.get::<LoadBalancer>("team-a/web").await.is_none(),
            harvester.get::<Service>("team-a/web").await.is_none(),
            !record.values().any(|holder| holder == "team-a/web"),
            told(cluster, "EditHasNoEffect").await > 0,
        ],
    )
}

async fn clean(cluster: &TestCluster) {
    let harvester = &cluster.harvester;
    let free = json!({"metadata": {"finalizers": null}});
    for pool in ["edge", "default"] {
        harvester.patch::<IPPool>(pool, free.clone()).await;
        harvester.delete::<IPPool>(pool).await;
    }
    for name in ["old", "api-1", "api-2"] {
        harvester.delete::<VirtualMachineInstance>(&format!("team-a/{name}")).await;
    }
    harvester.patch::<VirtualMachine>("team-a/red-1", free.clone()).await;
    harvester.delete::<VirtualMachine>("team-a/old").await;
    harvester.delete::<ConfigMap>(MAP).await;
    for event in harvester.list::<Event>().await {
        let (namespace, name) = (event.metadata.namespace.unwrap(), event.metadata.name.unwrap());
        harvester.delete::<Event>(&format!("{namespace}/{name}")).await;
    }
}

/// The whole story without this grant.
async fn without(cluster: &TestCluster, log: &Log, all: &[Grant], grant: &Grant) -> Vec<String> {
    let Some((made, changed)) = off(grant.key()) else { return vec![format!("{}: no row", grant.text())] };
    let mut wrong = vec![];
    let mut expect = |when: &str, is: &BTreeSet<&'static str>, expected: &[&'static str]| {
        if *is != expected.iter().copied().collect() {
            wrong.push(format!("{}, {when}: off is {is:?}", grant.text()));
        }
    };
    all_but(cluster, Side::Harvester, all, Some(grant)).await;
    let controller = Controller::without_election(cluster, "one");
    make(cluster).await;
    expect("made", &not_made(cluster).await, made);
    let mut lines = vec![log.wrong_line(grant)];
    all_but(cluster, Side::Harvester, all, None).await;
    cluster.advance(BACK_WITHIN).await;
    expect("made after the grant", &not_made(cluster).await, &[]);
    controller.stop().await;

    all_but(cluster, Side::Harvester, all, Some(grant)).await;
    let controller = Controller::without_election(cluster, "two");
    let follows = change(cluster).await;
    expect("changed", &not_changed(cluster, follows).await, changed);
    lines.push(log.wrong_line(grant));
    all_but(cluster, Side::Harvester, all, None).await;
    cluster.advance(BACK_WITHIN).await;
    let mut left = not_changed(cluster, [true; 2]).await;
    // it was said while nothing could be said
    left.remove("told");
    expect("changed after the grant", &left, &[]);
    controller.stop().await;
    clean(cluster).await;
    wrong.extend(lines.into_iter().flatten());
    wrong
}

async fn each(cluster: &TestCluster, resources: &[&str]) {
    if cluster.rights() == Rights::Existing {
        return;
    }
    let (log, all) = (Log::start(), of(cluster, Side::Harvester, &ROLES));
    let mut wrong = vec![];
    for grant in all.iter().filter(|grant| resources.contains(&&*grant.resource)) {
        if !UNUSED.contains(&grant.key()) {
            wrong.extend(without(cluster, &log, &all, grant).await);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const OTHERS: [&str; 6] = [
    "virtualmachines",
    "virtualmachineinstances",
    "customresourcedefinitions",
    "configmaps",
    "nodes",
    "events",
];

test_cluster::component_tests! {
    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_load_balancers_or_pools_what_needs_it_is_off_and_told(cluster: TestCluster) {
        each(&cluster, &LISTS[..2]).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_services_or_slices_what_needs_it_is_off_and_told(cluster: TestCluster) {
        each(&cluster, &LISTS[2..]).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_another_right_what_needs_it_is_off_and_told(cluster: TestCluster) {
        each(&cluster, &OTHERS).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_the_lease_nobody_leads_and_the_right_is_told(cluster: TestCluster) {
        if cluster.rights() == Rights::Existing {
            return;
        }
        let (log, all) = (Log::start(), of(&cluster, Side::Harvester, &ROLES));
        let known: BTreeSet<_> = all.iter().map(|grant| &*grant.resource).collect();
        let covered = LISTS.into_iter().chain(OTHERS).chain(["leases"]);
        assert_eq!(known, covered.collect(), "each has a test here");
        for grant in all.iter().filter(|grant| grant.resource == "leases") {
            let verb = grant.verb.as_str();
            cluster.harvester.delete::<Lease>(LEASE).await;
            all_but(&cluster, Side::Harvester, &all, Some(grant)).await;
            let candidate = Controller::start(&cluster, verb);
            cluster.advance(Duration::from_secs(20)).await;
            let leads = cluster.harvester.get::<Lease>(LEASE).await.is_some();
            assert_eq!(leads, ["update", "watch"].contains(&verb), "{verb}");
            let report = candidate.health.readiness_report();
            assert_eq!(report.contains(&format!("cannot {verb} resource \"leases\"")), !leads, "{verb}: {report}");
            assert_eq!(log.wrong_line(grant), None);
            all_but(&cluster, Side::Harvester, &all, None).await;
            if !leads {
                cluster.advance(Duration::from_secs(20)).await;
                assert!(cluster.harvester.get::<Lease>(LEASE).await.is_some(), "{verb}");
            }
            candidate.stop().await;
        }
    }
}
