//! Each grant of each role of the program, taken away in turn: what is off then and nothing else, one notice that names the
//! right, and all of it back after the grant. A grant without a row fails. With our roles: those of the Go programs lack more
//! than one right.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::BTreeSet, time::Duration};

use cloud_controller_manager::{Parts, notices::Notices, rights::GRANTS, run};
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Node, Secret, Service},
};
use program::{Clock, TaskGroup};
use serde_json::json;
use test_cluster::{
    Rights, Side, TestCluster, User,
    grants::{Grant, all_but, of},
};

use super::{
    event_reasons::{hears, on_pod},
    harness::{
        Ccm, create_service, delete_vm, harvester_says, ingress, join, load_balancer, node, service,
        settings, told,
    },
    host_datapath::{CHECKED, spec},
    rotation::{SECRET, candidate, source, token_of_copy},
    sharing::told_about,
};

const IN_GUEST: [&str; 2] =
    ["harvester-cloud-controller-manager", "harvester-cloud-controller-manager-credential"];
const IN_HARVESTER: [&str; 1] = ["harvesterhci.io:cloudprovider"];
/// Of Harvester's role, for other programs; the last one for nobody.
const OF_OTHERS: [&str; 7] = [
    "pods",
    "persistentvolumeclaims",
    "persistentvolumeclaims/status",
    "virtualmachines/addvolume",
    "virtualmachines/removevolume",
    "virtualmachineinstances/addvolume",
    "virtualmachineinstances/removevolume",
];
/// Granted and never asked for.
const UNUSED: [(&str, &str); 3] =
    [("get", "nodes"), ("get", "configmaps"), ("update", "virtualmachineinstances/guestosinfo")];

const LEASE: &str = "kube-system/cloud-controller-manager";
const MAPPING: &str = "kube-system/harvester-nad-mapping";
/// Longer than a right is refused before it is asked about again, and than an object that failed waits.
const BACK_WITHIN: Duration = Duration::from_secs(90);
const A_WHILE: Duration = Duration::from_secs(20);

/// What is done for a Service and for Nodes that come.
const MADE: [&str; 7] = ["prepared", "object", "published", "told", "initialised", "addresses", "networks"];
/// What is done when they change and go.
const CHANGED: [&str; 4] = ["listeners", "removed Service", "removed Node", "networks"];

/// What of [`MADE`] and of [`CHANGED`] is not done without a grant.
fn off(
    (verb, resource): (&str, &str),
    side: Side,
) -> Option<(&'static [&'static str], &'static [&'static str])> {
    let row: (&[&str], &[&str]) = match (side, verb, resource) {
        (Side::Guest, "list", "services" | "nodes") => (&MADE, &CHANGED),
        (Side::Guest, "watch", "nodes") => (&MADE, &[]),
        (Side::Guest, "watch", "services") => {
            (&["prepared", "object", "published", "told"], &["listeners", "removed Service"])
        }
        // load balancers without a Service are not reported
        (Side::Guest, "get", "services") => (&[], &[]),
        (Side::Guest, "patch", "services") => {
            (&["prepared", "object", "published", "told"], &["removed Service"])
        }
        (Side::Guest, "patch", "services/status") => (&["published", "told"], &["removed Service"]),
        (Side::Guest, "patch", "nodes") => (&["initialised"], &[]),
        (Side::Guest, "patch", "nodes/status") => (&["initialised", "addresses"], &[]),
        (Side::Guest, "delete", "nodes") => (&[], &["removed Node"]),
        (Side::Guest, "create", "events") => (&["told"], &[]),
        (Side::Guest, "patch", "events") => (&[], &[]),
        (Side::Guest, "list" | "watch", "configmaps") => (&["networks"], &["networks"]),
        (Side::Guest, "create", "configmaps") => (&["networks"], &[]),
        (Side::Guest, "update", "configmaps") => (&[], &["networks"]),
        (Side::Harvester, "list", "loadbalancers") => {
            (&["prepared", "object", "published", "told"], &["listeners", "removed Service"])
        }
        (Side::Harvester, "create", "loadbalancers") => (&["object", "published", "told"], &[]),
        (Side::Harvester, "update", "loadbalancers") => (&[], &["listeners"]),
        (Side::Harvester, "delete", "loadbalancers") => (&[], &["removed Service"]),
        (Side::Harvester, "watch", "loadbalancers") => (&["published", "told"], &[]),
        // Nodes are initialised by their names
        (Side::Harvester, "list", "virtualmachines" | "virtualmachineinstances") => {
            (&["prepared", "object", "published", "told"], &["listeners", "removed Node"])
        }
        (Side::Harvester, "watch", "virtualmachines" | "virtualmachineinstances") => (&[], &["removed Node"]),
        // what they are for, the story has not: see the table of rights
        (Side::Harvester, "get", _) => (&[], &[]),
        _ => return None,
    };
    Some(row)
}

/// A Service on the data path host, and a Node whose guest agent reports.
async fn make(cluster: &TestCluster) {
    for name in ["worker-1", "worker-2"] {
        join(cluster, name, name, "").await;
        report(cluster, name, "enp1s0").await;
    }
    create_service(cluster, CHECKED, "").await;
    cluster.advance(A_WHILE).await;
    give_address(cluster).await;
}

async fn report(cluster: &TestCluster, name: &str, interface: &str) {
    let interfaces = [json!({"name": "nic-0", "interfaceName": interface, "ipAddresses": ["198.18.0.5"]})];
    let patch = json!({"status": {"interfaces": interfaces}});
    cluster.harvester.patch::<VirtualMachineInstance>(&format!("team-a/{name}"), patch).await;
}

async fn give_address(cluster: &TestCluster) {
    if load_balancer(cluster).await.is_some() {
        harvester_says(cluster, json!({"status": {"address": "127.9.0.1"}})).await;
    }
    cluster.advance(A_WHILE).await;
}

async fn mapping(cluster: &TestCluster) -> String {
    let data = cluster.guest.get::<ConfigMap>(MAPPING).await.and_then(|map| map.data).unwrap_or_default();
    data.into_values().collect()
}

/// What of [`MADE`] is not done.
async fn not_made(cluster: &TestCluster) -> BTreeSet<&'static str> {
    let service = service(cluster).await.unwrap();
    let node = node(cluster, "worker-1").await.unwrap();
    let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
    let addresses = node.status.unwrap_or_default().addresses.unwrap_or_default();
    let done = [
        service.metadata.finalizers.is_some(),
        load_balancer(cluster).await.is_some(),
        !ingress(&service).is_empty(),
        told(cluster, "EnsuredLoadBalancer").await > 0,
        taints.iter().all(|taint| taint.key != "node.cloudprovider.kubernetes.io/uninitialized"),
        addresses.iter().any(|address| address.type_ == "InternalIP"),
        mapping(cluster).await.contains("enp1s0"),
    ];
    MADE.into_iter().zip(done).filter(|(_, done)| !done).map(|(name, _)| name).collect()
}

async fn change(cluster: &TestCluster) -> bool {
    report(cluster, "worker-1", "eth9").await;
    delete_vm(cluster, "worker-2").await;
    let ports = json!({"spec": {"ports": [{"name": "http", "port": 80, "nodePort": 31080},
        {"name": "more", "port": 81, "nodePort": 31081}]}});
    cluster.guest.patch::<Service>("shop/web", ports).await;
    cluster.advance(A_WHILE).await;
    let listeners = spec(&load_balancer(cluster).await.unwrap())["listeners"].to_string();
    cluster.guest.delete::<Service>("shop/web").await;
    cluster.advance(A_WHILE).await;
    listeners.contains("\"port\":81")
}

async fn not_changed(cluster: &TestCluster, listeners: bool) -> BTreeSet<&'static str> {
    let done = [
        listeners,
        service(cluster).await.is_none() && load_balancer(cluster).await.is_none(),
        node(cluster, "worker-2").await.is_none(),
        mapping(cluster).await.contains("eth9"),
    ];
    CHANGED.into_iter().zip(done).filter(|(_, done)| !done).map(|(name, _)| name).collect()
}

/// Without the Lease, which has rows of its own.
async fn start(cluster: &TestCluster, notices: Notices) -> Ccm {
    let clients = [&cluster.guest, &cluster.harvester].map(|side| side.client(User::CloudControllerManager));
    Ccm::start_telling(cluster, clients, notices, |settings| settings.election = None).await
}

/// What is wrong with the notices on the Pod of this name: one is to name the right, and no other.
async fn wrong_notices(cluster: &TestCluster, pod: &str, grant: &Grant) -> Option<String> {
    let all = told_about(cluster, pod, "RightsMissing").await;
    let is_it = match &*all {
        [only] => {
            only.contains(&format!(" does not grant {}", grant.text()))
                && only.matches("without it").count() == 1
        }
        none => none.is_empty() && grant.key() == ("create", "events"),
    };
    (!is_it).then(|| format!("{pod}: told {all:?}"))
}

async fn clean(cluster: &TestCluster) {
    for name in ["worker-1", "worker-2"] {
        cluster.guest.delete::<Node>(name).await;
        cluster.harvester.delete::<VirtualMachineInstance>(&format!("team-a/{name}")).await;
        cluster.harvester.delete::<VirtualMachine>(&format!("team-a/{name}")).await;
    }
    cluster.guest.delete::<ConfigMap>(MAPPING).await;
    for event in cluster.guest.list::<Event>().await {
        let (namespace, name) = (event.metadata.namespace.unwrap(), event.metadata.name.unwrap());
        cluster.guest.delete::<Event>(&format!("{namespace}/{name}")).await;
    }
}

/// The whole story without this grant.
async fn without(cluster: &TestCluster, side: Side, all: &[Grant], grant: &Grant) -> Vec<String> {
    let (tasks, name) = (TaskGroup::new(), grant.text().replace([' ', '/'], "-"));
    let Some((made, changed)) = off(grant.key(), side) else {
        return vec![format!("{}: no row", grant.text())];
    };
    let mut wrong = vec![];
    let mut expect = |when: &str, is: &BTreeSet<&'static str>, expected: &[&'static str]| {
        if *is != expected.iter().copied().collect() {
            wrong.push(format!("{} in {}, {when}: off is {is:?}", grant.text(), side.name()));
        }
    };
    let [first, second] = ["make", "change"].map(|phase| format!("{phase}-{name}"));
    all_but(cluster, side, all, Some(grant)).await;
    let ccm = start(cluster, on_pod(cluster, &tasks, &first)).await;
    make(cluster).await;
    expect("made", &not_made(cluster).await, made);
    let mut notices = vec![wrong_notices(cluster, &first, grant).await];
    all_but(cluster, side, all, None).await;
    cluster.advance(BACK_WITHIN).await;
    give_address(cluster).await;
    let mut left = not_made(cluster).await;
    // it was said while nothing could be said
    left.remove("told");
    expect("made after the grant", &left, &[]);
    ccm.stop().await;

    all_but(cluster, side, all, Some(grant)).await;
    let ccm = start(cluster, on_pod(cluster, &tasks, &second)).await;
    let listeners = change(cluster).await;
    expect("changed", &not_changed(cluster, listeners).await, changed);
    notices.push(wrong_notices(cluster, &second, grant).await);
    all_but(cluster, side, all, None).await;
    cluster.advance(BACK_WITHIN).await;
    expect("changed after the grant", &not_changed(cluster, true).await, &[]);
    ccm.stop().await;
    tasks.end().await;
    clean(cluster).await;
    wrong.extend(notices.into_iter().flatten());
    wrong
}

async fn each(cluster: &TestCluster, side: Side, roles: &[&str], is_here: impl Fn(&Grant) -> bool) {
    if cluster.rights() == Rights::Existing {
        return;
    }
    let all = of(cluster, side, roles);
    let mut wrong = vec![];
    for grant in all.iter().filter(|grant| is_here(grant) && !UNUSED.contains(&grant.key())) {
        wrong.extend(without(cluster, side, &all, grant).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a Node that joins is initialised by a program that needs the Lease; and how the program ended, if it did.
async fn leads(cluster: &TestCluster, pod: &str) -> (bool, Option<String>) {
    let (tasks, own) = (TaskGroup::new(), TaskGroup::new());
    let [guest, harvester] =
        [&cluster.guest, &cluster.harvester].map(|side| side.client(User::CloudControllerManager));
    let notices = on_pod(cluster, &tasks, pod);
    let parts = Parts { notices, ..Parts::new(guest, harvester, Clock::starting_at(cluster.start())) };
    let (settings, inner) = (settings(cluster), own.clone());
    let running = tokio::spawn(async move { run(parts, settings, &inner).await });
    join(cluster, "worker-1", "worker-1", "").await;
    cluster.advance(A_WHILE).await;
    let is_led = node(cluster, "worker-1").await.unwrap().spec.and_then(|spec| spec.provider_id).is_some();
    own.stop.cancel();
    let ended = running.await.unwrap().err().map(|error| error.to_string());
    own.end().await;
    tasks.end().await;
    (is_led, ended)
}

test_cluster::component_tests! {
    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_services_what_needs_it_is_off_and_told(cluster: TestCluster) {
        let is_here = |grant: &Grant| grant.resource.starts_with("services");
        each(&cluster, Side::Guest, &IN_GUEST, is_here).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_nodes_what_needs_it_is_off_and_told(cluster: TestCluster) {
        let is_here = |grant: &Grant| grant.resource.starts_with("nodes");
        each(&cluster, Side::Guest, &IN_GUEST, is_here).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_another_right_in_the_guest_what_needs_it_is_off_and_told(cluster: TestCluster) {
        let elsewhere = ["services", "nodes", "leases", "secrets"];
        let is_here = |grant: &Grant| !elsewhere.iter().any(|part| grant.resource.starts_with(part));
        each(&cluster, Side::Guest, &IN_GUEST, is_here).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_in_harvester_what_needs_it_is_off_and_told(cluster: TestCluster) {
        each(&cluster, Side::Harvester, &IN_HARVESTER, |grant| !OF_OTHERS.contains(&&*grant.resource)).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_the_lease_nobody_leads_and_the_right_is_told(cluster: TestCluster) {
        if cluster.rights() == Rights::Existing {
            return;
        }
        let all = of(&cluster, Side::Guest, &IN_GUEST);
        for grant in all.iter().filter(|grant| grant.resource == "leases") {
            let verb = grant.verb.as_str();
            cluster.guest.delete::<Lease>(LEASE).await;
            all_but(&cluster, Side::Guest, &all, Some(grant)).await;
            let (is_led, ended) = leads(&cluster, &format!("pod-{verb}")).await;
            assert_eq!(is_led, ["update", "watch"].contains(&verb), "{verb}");
            let refusal = format!("cannot {verb} resource \"leases\"");
            assert_eq!(ended.is_some_and(|why| why.contains(&refusal)), verb == "update", "{verb}");
            assert_eq!(wrong_notices(&cluster, &format!("pod-{verb}"), grant).await, None);
            all_but(&cluster, Side::Guest, &all, None).await;
            cluster.guest.delete::<Lease>(LEASE).await;
            clean(&cluster).await;
            assert_eq!(leads(&cluster, &format!("granted-{verb}")).await, (true, None));
            clean(&cluster).await;
        }
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_the_secret_the_token_is_not_renewed_and_the_right_is_told(cluster: TestCluster) {
        if cluster.rights() == Rights::Existing {
            return;
        }
        let (source, all) = (source(&cluster).await, of(&cluster, Side::Guest, &IN_GUEST));
        for grant in all.iter().filter(|grant| grant.resource == "secrets") {
            let (tasks, pod) = (TaskGroup::new(), format!("pod-{}", grant.verb));
            let empty = "{apiVersion: v1, kind: Secret, metadata: {name: harvester-cloud-provider-rotated, namespace: kube-system}}";
            cluster.guest.apply(empty).await;
            all_but(&cluster, Side::Guest, &all, Some(grant)).await;
            let (guest, notices) = (cluster.guest.client(User::CloudControllerManager), on_pod(&cluster, &tasks, &pod));
            let only = candidate(&cluster, "first", &source, guest, notices).await;
            hears(&cluster, &pod, "CredentialNotRotated").await;
            assert_eq!(wrong_notices(&cluster, &pod, grant).await, None);
            all_but(&cluster, Side::Guest, &all, None).await;
            cluster.advance(BACK_WITHIN).await;
            assert!(token_of_copy(&cluster, &source).await.is_some(), "{pod}");
            only.stop().await;
            tasks.end().await;
            cluster.guest.delete::<Secret>(SECRET).await;
            clean(&cluster).await;
        }
    }

    /// On a real server too.
    #[each_role]
    async fn a_right_that_is_missing_is_told_once_with_what_is_off_and_works_after_the_grant(cluster: TestCluster) {
        if cluster.rights() == Rights::Existing {
            return;
        }
        let (tasks, all) = (TaskGroup::new(), of(&cluster, Side::Guest, &IN_GUEST[..1]));
        let is_it = |grant: &&Grant| grant.key() == ("patch", "nodes/status");
        let grant = all.iter().find(is_it).unwrap();
        all_but(&cluster, Side::Guest, &all, Some(grant)).await;
        let ccm = start(&cluster, on_pod(&cluster, &tasks, "ccm-1")).await;
        hears(&cluster, "ccm-1", "RightsMissing").await;
        assert_eq!(wrong_notices(&cluster, "ccm-1", grant).await, None);
        all_but(&cluster, Side::Guest, &all, None).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        super::harness::until(&cluster, "the Node has its address", async || {
            let status = node(&cluster, "worker-1").await.unwrap().status.unwrap_or_default();
            status.addresses.unwrap_or_default().iter().any(|address| address.type_ == "InternalIP")
        }).await;
        ccm.stop().await;
        tasks.end().await;
    }

    #[simulated_only("compares two tables")]
    async fn the_table_of_harvesters_rights_is_what_its_role_grants_the_program(cluster: TestCluster) {
        let granted = of(&cluster, Side::Harvester, &IN_HARVESTER);
        let granted = granted.iter().filter(|grant| !OF_OTHERS.contains(&&*grant.resource));
        let granted: BTreeSet<_> = granted.map(Grant::key).filter(|key| !UNUSED.contains(key)).collect();
        let asked: BTreeSet<_> = GRANTS.iter().map(|grant| (grant.verb, grant.resource)).collect();
        assert_eq!(granted, asked);
    }
}
