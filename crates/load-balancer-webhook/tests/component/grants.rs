//! Each grant of each role of the webhook, taken away in turn: what is off then and nothing else, one line of the log and one
//! series that name the right, and all of it back after the grant. A grant without a row fails. With our roles: those of the Go program lack more
//! than one right.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use harvester_api::{annotations, labels};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use load_balancer_webhook::{Address, Metrics, prepare};
use program::{Clock, TaskGroup};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use test_cluster::grants::{Grant, all_but, of};
use test_cluster::{Rights, Side, TestCluster, User};
use tokio::task::JoinHandle;
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, span};

use super::fixtures::{
    DEFINITION, NAME, WRITER, config, global_pool, http, load_balancers, object, policy, pools, unregister,
    web,
};
use super::secrets::make_empty;

const ROLES: [&str; 1] = [NAME];
/// Granted and never asked for.
const UNUSED: [(&str, &str); 5] = [
    ("get", "virtualmachines"),
    ("get", "virtualmachineinstances"),
    ("get", "validatingwebhookconfigurations"),
    ("get", "mutatingwebhookconfigurations"),
    ("get", "customresourcedefinitions"),
];
/// Longer than a right is refused before it is asked about again. A registration or a Secret that is forbidden waits no
/// longer.
const BACK_WITHIN: Duration = Duration::from_secs(120);
const A_WHILE: Duration = Duration::from_secs(30);

const REGISTERED: [&str; 4] = ["certificate", "validating", "mutating", "definition"];
const ANSWERED: [&str; 6] = ["judged", "project", "network", "pool", "network of a pool", "converted"];
/// Of them, what is not so where the API server calls nobody; all but the first are what the webhook fills in.
const UNSERVED: [&str; 4] = ["judged", "project", "network", "network of a pool"];

/// What is not done without a grant: when the webhook starts in a new cluster, what it answers then, and what of the
/// registrations is behind after its certificates were made anew.
type Row = [&'static [&'static str]; 3];

fn off((verb, resource): (&str, &str)) -> Option<Row> {
    let row: Row = match (verb, resource) {
        // from another replica, or while another one stores at the same time
        ("get" | "watch", "secrets") | ("get" | "watch" | "list", "namespaces") => [&[], &[], &[]],
        // what watches goes on to do so
        ("list", "secrets") => [&REGISTERED, &UNSERVED, &[]],
        ("update", "secrets") => [&REGISTERED, &UNSERVED, &REGISTERED],
        ("create" | "list", "validatingwebhookconfigurations") => [&["validating"], &["judged"], &[]],
        ("create" | "list", "mutatingwebhookconfigurations") => [&["mutating"], &UNSERVED[1..], &[]],
        ("update", "validatingwebhookconfigurations") => [&[], &[], &["validating"]],
        ("update", "mutatingwebhookconfigurations") => [&[], &[], &["mutating"]],
        ("list", "customresourcedefinitions") => [&["definition"], &[], &[]],
        ("update", "customresourcedefinitions") => [&["definition"], &[], &["definition"]],
        ("get", "network-attachment-definitions") => [&[], &["network of a pool"], &[]],
        ("list", "ippools") => [&[], &["pool", "network of a pool"], &[]],
        ("list", "virtualmachineinstances") => [&[], &["network", "converted"], &[]],
        ("list", "virtualmachines") => [&[], &[], &[]],
        ("watch", _) => [&[], &[], &[]],
        _ => return None,
    };
    Some(row)
}

/// The warnings of this thread, on which everything runs.
struct Log {
    lines: Lines,
    _here: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Visit for Lines {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Log {
    fn start() -> Self {
        let lines = Lines::default();
        Self { lines: lines.clone(), _here: tracing::subscriber::set_default(lines) }
    }

    /// What is wrong with what was said about rights since the last look: one line is to name this one, and no other.
    fn wrong_line(&self, grant: &Grant) -> Option<String> {
        let mut lines = std::mem::take(&mut *self.lines.0.lock().unwrap());
        lines.retain(|line| line.contains(" does not grant "));
        let named = format!(" does not grant {}", grant.text());
        // a rule for two Secrets is two rights
        let rights = grant.names.len().max(1);
        let is_it = matches!(&*lines, [only] if only.contains(&named) && only.matches("without it").count() == rights);
        (!is_it).then(|| format!("{}: said {lines:?}", grant.text()))
    }
}

/// A replica, which the API server calls once it is ready.
struct Replica {
    tasks: TaskGroup,
    metrics: Metrics,
    prepared: Option<JoinHandle<Router>>,
}

impl Replica {
    fn start(cluster: &TestCluster) -> Self {
        let (tasks, client) = (TaskGroup::new(), cluster.harvester.client(User::Webhook));
        let (inner, clock) = (tasks.clone(), Clock::starting_at(cluster.start()));
        let metrics = Metrics::default();
        let shown = metrics.clone();
        let prepared = tokio::spawn(async move {
            let config = config(Address::Service, policy(WRITER));
            prepare(client, clock, config, &shown, &inner).await.unwrap().0
        });
        Self { tasks, metrics, prepared: Some(prepared) }
    }

    /// The rights of which Prometheus is told that they are missing.
    fn missing(&self) -> Vec<String> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        let series = text.lines().filter(|line| line.contains("_rights_missing{") && line.ends_with(" 1"));
        series.map(str::to_owned).collect()
    }

    async fn advance(&mut self, cluster: &TestCluster, time: Duration) {
        cluster.advance(time).await;
        if let Some(prepared) = self.prepared.take_if(|prepared| prepared.is_finished()) {
            let server = cluster.harvester.simulated().unwrap();
            server.webhook("harvester-system", NAME, prepared.await.unwrap());
            cluster.advance(A_WHILE).await;
        }
    }

    async fn stop(self, cluster: &TestCluster) {
        if let Some(prepared) = self.prepared {
            prepared.abort();
        }
        self.tasks.end().await;
        unregister(cluster).await;
        for of in ["ca", "tls"] {
            cluster.harvester.delete::<Secret>(&format!("harvester-system/{NAME}-{of}")).await;
        }
        make_empty(cluster).await;
    }
}

/// The authorities that the API server trusts, in the order of [`REGISTERED`] without the first.
async fn bundles(cluster: &TestCluster) -> [Value; 3] {
    let validating = cluster.harvester.get::<ValidatingWebhookConfiguration>(NAME).await;
    let mutating = cluster.harvester.get::<MutatingWebhookConfiguration>(NAME).await;
    let definition = cluster.harvester.get::<CustomResourceDefinition>(DEFINITION).await;
    let of = |object: Value, path: &str| object.pointer(path).cloned().unwrap_or_default();
    let of_webhook = "/webhooks/0/clientConfig/caBundle";
    [
        of(json!(validating), of_webhook),
        of(json!(mutating), of_webhook),
        of(json!(definition), "/spec/conversion/webhook/clientConfig/caBundle"),
    ]
}

fn undone<const N: usize>(names: [&'static str; N], done: [bool; N]) -> BTreeSet<&'static str> {
    names.into_iter().zip(done).filter(|(_, done)| !done).map(|(name, _)| name).collect()
}

/// What of [`REGISTERED`] is not done; `former` were trusted before.
async fn not_registered(cluster: &TestCluster, former: &[Value; 3]) -> BTreeSet<&'static str> {
    let mut is_filled = true;
    for of in ["ca", "tls"] {
        let secret = cluster.harvester.get::<Secret>(&format!("harvester-system/{NAME}-{of}")).await.unwrap();
        is_filled &= secret.data.is_some_and(|data| data.contains_key("tls.crt"));
    }
    let now = bundles(cluster).await;
    let is_new = |nth: usize| !now[nth].is_null() && now[nth] != former[nth];
    undone(REGISTERED, [is_filled, is_new(0), is_new(1), is_new(2)])
}

/// What of [`ANSWERED`] is not so. Nothing is stored.
async fn not_answered(cluster: &TestCluster) -> BTreeSet<&'static str> {
    let driver = cluster.harvester.client(User::Driver);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let refused = load_balancers(driver.clone()).create(&dry_run, &object(web(&json!([])))).await;
    let judged = refused.is_err_and(|error| error.to_string().contains("needs at least one listener"));
    let mut of_cluster = web(&http());
    of_cluster["spec"]["workloadType"] = "cluster".into();
    of_cluster["metadata"]["annotations"] = json!({annotations::LB_CLUSTER: "blue"});
    let made = load_balancers(driver.clone()).create(&dry_run, &object(of_cluster)).await.ok();
    let annotation = |key: &str| made.as_ref()?.metadata.annotations.as_ref()?.get(key).cloned();
    let pool = pools(driver.clone()).create(&dry_run, &global_pool("edge", "203.0.113.0/24")).await;
    let mut on_network = global_pool("edge", "203.0.113.0/24");
    on_network.data["spec"]["selector"]["network"] = "team-a/mgmt".into();
    let network = pools(driver.clone()).create(&dry_run, &on_network).await;
    let kind = GroupVersionKind::gvk("loadbalancer.harvesterhci.io", "v1alpha1", "LoadBalancer");
    let resource = ApiResource::from_gvk_with_plural(&kind, "loadbalancers");
    let former: Api<DynamicObject> = Api::namespaced_with(driver, "team-a", &resource);
    let alpha = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1alpha1", "kind": "LoadBalancer",
        "metadata": {"name": "old", "namespace": "team-a"},
        "spec": {"ipam": "dhcp", "listeners": http(), "backendServers": ["192.168.7.11"]}});
    let converted = former.create(&dry_run, &object(alpha)).await;
    let done = [
        judged,
        annotation(annotations::LB_PROJECT).is_some_and(|project| project == "p-1"),
        annotation(annotations::LB_NETWORK).is_some_and(|network| network == "team-a/mgmt"),
        pool.is_ok(),
        network.is_ok_and(|pool| {
            pool.metadata.labels.is_some_and(|all| all.get(labels::VID).is_some_and(|vid| vid == "5"))
        }),
        converted.is_ok(),
    ];
    undone(ANSWERED, done)
}

const OBJECTS: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: blue-1, namespace: team-a, labels: {guestcluster.harvesterhci.io/name: blue, harvesterhci.io/vmName: blue-1}}
spec: {networks: [{name: nic-0, multus: {networkName: team-a/mgmt}}], domain: {devices: {}}}
status: {interfaces: [{name: nic-0, ipAddress: 192.168.7.11}]}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: mgmt, namespace: team-a, labels: {network.harvesterhci.io/vlan-id: '5'}}
spec: {config: '{}'}
";

/// The whole story without this grant.
async fn without(cluster: &TestCluster, log: &Log, all: &[Grant], grant: &Grant) -> Vec<String> {
    let Some([registered, answered, renewed]) = off(grant.key()) else {
        return vec![format!("{}: no row", grant.text())];
    };
    let mut wrong = vec![];
    let mut expect = |when: &str, is: &BTreeSet<&'static str>, expected: &[&'static str]| {
        if *is != expected.iter().copied().collect() {
            wrong.push(format!("{}, {when}: off is {is:?}", grant.text()));
        }
    };
    let nothing = [Value::Null, Value::Null, Value::Null];
    all_but(cluster, Side::Harvester, all, Some(grant)).await;
    let mut replica = Replica::start(cluster);
    replica.advance(cluster, A_WHILE).await;
    expect("registered", &not_registered(cluster, &nothing).await, registered);
    expect("answered", &not_answered(cluster).await, answered);
    let line = log.wrong_line(grant);
    let missing = replica.missing();
    all_but(cluster, Side::Harvester, all, None).await;
    replica.advance(cluster, BACK_WITHIN).await;
    let (verb, resource) = grant.key();
    let is_it = |line: &String| line.contains(&format!(r#"verb="{verb}",resource="{resource}"#));
    let counted = [missing.len(), missing.iter().filter(|line| is_it(line)).count(), replica.missing().len()];
    expect("registered after the grant", &not_registered(cluster, &nothing).await, &[]);
    expect("answered after the grant", &not_answered(cluster).await, &[]);

    let former = bundles(cluster).await;
    all_but(cluster, Side::Harvester, all, Some(grant)).await;
    for of in ["ca", "tls"] {
        let empty = json!({"data": null});
        cluster.harvester.patch::<Secret>(&format!("harvester-system/{NAME}-{of}"), empty).await;
    }
    replica.advance(cluster, A_WHILE).await;
    expect("renewed", &not_registered(cluster, &former).await, renewed);
    all_but(cluster, Side::Harvester, all, None).await;
    replica.advance(cluster, BACK_WITHIN).await;
    expect("renewed after the grant", &not_registered(cluster, &former).await, &[]);
    replica.stop(cluster).await;
    drop(log.wrong_line(grant));
    wrong.extend(line);
    if counted != [1, 1, 0] {
        wrong.push(format!("{}: counted {counted:?} {missing:?}", grant.text()));
    }
    wrong
}

async fn each(cluster: &TestCluster, is_here: impl Fn(&Grant) -> bool) {
    if cluster.rights() == Rights::Existing {
        return;
    }
    cluster.harvester.apply(OBJECTS).await;
    let project = json!({"metadata": {"annotations": {annotations::PROJECT_ID: "p-1"}}});
    cluster.harvester.patch::<Namespace>("team-a", project).await;
    make_empty(cluster).await;
    let (log, all) = (Log::start(), of(cluster, Side::Harvester, &ROLES));
    let mut wrong = vec![];
    for grant in all.iter().filter(|grant| is_here(grant) && !UNUSED.contains(&grant.key())) {
        wrong.extend(without(cluster, &log, &all, grant).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn is_registration(grant: &Grant) -> bool {
    ["admissionregistration.k8s.io", "apiextensions.k8s.io"].contains(&&*grant.group)
        || grant.resource == "secrets"
}

test_cluster::component_tests! {
    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_secrets_or_registrations_what_needs_it_is_off_and_told(cluster: TestCluster) {
        each(&cluster, is_registration).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_to_what_reviews_read_what_needs_it_is_off_and_told(cluster: TestCluster) {
        each(&cluster, |grant| !is_registration(grant)).await;
    }
}
