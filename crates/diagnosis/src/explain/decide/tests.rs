use std::sync::Arc;

use cloud_controller_manager::{
    cluster::GuestCluster,
    load_balancers::{
        ServiceSettings,
        dry_run::{Lists, dry_run},
    },
    requested::Aliases,
};
use controller_kit::{Cache, ObjectKey};
use guest_vms::{GuestVms, VmSettings};
use k8s_openapi::api::coordination::v1::Lease;
use load_balancer::{PoolChoice, dry_run as pools};
use rstest::rstest;
use serde_json::{Value, json};

use super::{super::render, *};
use crate::access::nobody;

const KEY: &str = "cloudprovider.harvesterhci.io/";
const NOW: &str = "2026-01-05T09:10:00Z";

/// A Service of namespace `shop` of type LoadBalancer with one port.
fn service(name: &str, more: &Value) -> Service {
    let mut json = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1",
            "creationTimestamp": "2026-01-05T09:00:00Z"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]}});
    merge(&mut json, more);
    serde_json::from_value(json).unwrap()
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.iter().for_each(|(key, value)| merge(into.entry(key.clone()).or_insert(Value::Null), value));
        }
        (into, more) => *into = more.clone(),
    }
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {format!("{KEY}{key}"): value}}})
}

/// The object that the controller made for `shop/web`.
fn object(status: &Value) -> RawObject<LoadBalancer> {
    object_with(status, &json!({}))
}

fn object_with(status: &Value, more: &Value) -> RawObject<LoadBalancer> {
    let mut json = json!({"metadata": {"name": "blue-web", "namespace": "team-a", "resourceVersion": "1",
            "creationTimestamp": "2026-01-05T09:00:00Z",
            "labels": {format!("{KEY}cluster"): "blue", format!("{KEY}serviceNamespace"): "shop",
                format!("{KEY}serviceName"): "web"},
            "annotations": {format!("{KEY}service-uid"): "web", format!("{KEY}lb-network"): ""}},
        "spec": {"workloadType": "cluster", "ipam": "pool"}, "status": status});
    merge(&mut json, more);
    RawObject::from_json(json).unwrap()
}

fn waiting() -> Value {
    json!({"conditions": [{"type": "Ready", "status": "False", "reason": "NoMatchingPool",
        "lastTransitionTime": "2026-01-05T09:00:01Z", "message": "no matched IPPool"}]})
}

/// What is read of these Services, the first of which is explained, and of this object.
fn read(services: Vec<Service>, lb: Option<RawObject<LoadBalancer>>) -> Read {
    let vm = json!({"metadata": {"name": "worker-1", "namespace": "team-a", "uid": "vm-1", "resourceVersion": "1"},
        "spec": {}});
    read_with(services, lb, Cache::of([serde_json::from_value(vm).unwrap()]))
}

fn read_with(
    services: Vec<Service>,
    lb: Option<RawObject<LoadBalancer>>,
    vms: Cache<harvester_api::VirtualMachine>,
) -> Read {
    let now = NOW.parse().unwrap();
    let rules = ServiceSettings {
        cluster: GuestCluster::new("blue"),
        namespace: "team-a".to_owned(),
        management_network: None,
        policy: Policy::Annotation,
        allowed: AllowedDatapaths::default(),
        restrict_sharing: false,
        aliases: Aliases::default(),
    };
    let node = json!({"metadata": {"name": "worker-1"}});
    let nodes: Vec<Arc<k8s_openapi::api::core::v1::Node>> =
        vec![Arc::new(serde_json::from_value(node).unwrap())];
    let settings = VmSettings {
        namespace: "team-a".to_owned(),
        cluster: Some("blue".to_owned()),
        ..VmSettings::default()
    };
    let vms = GuestVms::of(&nobody(), settings, vms, Cache::of([]));
    let service = services[0].clone();
    let load_balancers = Cache::of(lb);
    let lists = Lists {
        services: Cache::of(services),
        nodes: nodes.clone(),
        load_balancers: load_balancers.clone(),
        vms: vms.clone(),
        networks: None,
        follows_vms: true,
    };
    let pool = json!({"metadata": {"name": "lab", "resourceVersion": "1"}, "spec": {"ranges": [{"subnet": "192.0.2.0/28"}],
        "selector": {"scope": [{"namespace": "team-b", "project": "*", "guestCluster": "*"}]}}});
    let pools = pools::Lists {
        pools: Cache::of([RawObject::from_json(pool).unwrap()]),
        load_balancers,
        services: Cache::of([]),
    };
    let since = |object: Option<&LoadBalancer>| waited(&service, object, now);
    let dry_run = dry_run(nobody(), rules.clone(), lists, &service, since);
    let lease = json!({"spec": {"holderIdentity": "ccm-0", "leaseDurationSeconds": 15,
        "renewTime": "2026-01-05T09:09:59.000000Z"}});
    Read {
        pools: pools::dry_run(&pools, &dry_run.key, now.as_second(), PoolChoice::default()),
        service,
        nodes,
        events: Vec::new(),
        lease: Some(Some(serde_json::from_value::<Lease>(lease).unwrap())),
        has_endpoint: None,
        vms,
        dry_run,
        not_read: Vec::new(),
        assumed: Assumed { rules, host_names: true, follows_vms: true, pool_choice: PoolChoice::default() },
        now,
    }
}

fn explained(more: &Value, lb: Option<RawObject<LoadBalancer>>) -> Report {
    decide(&read(vec![service("web", more)], lb))
}

#[tokio::test]
async fn a_service_that_waits_for_a_pool_is_explained_from_its_class_to_its_nodes() {
    let report = explained(&json!({}), Some(object(&waiting())));
    let text = render(&report);
    assert_eq!(
        text,
        "\
Service shop/web waits for an address: no matched IPPool

Class        type LoadBalancer with no class: the cloud controller manager serves it
Data path    guest, as recorded in the workloadType of its LoadBalancer object
             the path host can be had by creating the Service anew with cloudprovider.harvesterhci.io/data-path: host
Object       LoadBalancer team-a/blue-web in Harvester: its annotation names the Service's UID, and no annotation names a cluster
             Ready is False, NoMatchingPool since 2026-01-05T09:00:01Z: no matched IPPool
Address      none: no matched IPPool with requirement network \"\", project \"\", namespace \"team-a\", cluster \"\": none of 1 \
pools matches (1 without a scope that matches); waiting for a pool whose selector matches
             a pool must match network \"\", project \"\", namespace \"team-a\", cluster \"\"
               POOL  FREE      ANSWER    BECAUSE
               lab   13 of 13  rejected  none of its scopes matches
Traffic      kube-vip in the guest has not been asked to announce an address
               NODE      BACKEND  VM        FOUND
               worker-1  yes      worker-1  by name
Controller   ccm-0 holds Lease kube-system/cloud-controller-manager
             due, if its flags are those below: it writes its finalizer, annotations and labels on the Service, then it writes the load balancer
Waits until  the load balancer in Harvester allocates an address
Findings     Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: no matched IPPool
Assumed      a cloud controller manager with --allowed-data-paths=guest,host --cluster-name=blue --data-path=annotation \
--restrict-shared-address=false
"
    );
    assert_eq!(report.state, State::Waiting);
}

#[tokio::test]
async fn the_page_says_which_lookups_are_off() {
    let mut read = read(vec![service("web", &json!({}))], None);
    (read.assumed.host_names, read.assumed.follows_vms) = (false, false);
    let flags = decide(&read).flags;
    for flag in ["disable-hostname-lookup", "disable-vmi-controller"] {
        assert_eq!(flags.get(flag).map(String::as_str), Some("true"), "{flag}");
    }
}

#[tokio::test]
async fn an_object_of_another_cluster_name_is_told() {
    let mut json = object(&waiting()).json();
    json["metadata"]["annotations"]["loadbalancer.harvesterhci.io/cluster"] = json!("green");
    let sentence = explained(&json!({}), RawObject::from_json(json).ok()).object.sentence;
    assert!(sentence.ends_with("it names cluster \"green\", and --cluster-name is \"blue\""), "{sentence}");
}

#[tokio::test]
async fn the_fields_of_the_json_are_these() {
    let json = serde_json::to_value(explained(&json!({}), Some(object(&waiting())))).unwrap();
    let fields = |json: &Value| json.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let mut told = fields(&json).split(' ').map(str::to_owned).collect::<Vec<_>>();
    told.sort();
    assert_eq!(
        told.join(" "),
        "address class controller dataPath events findings flags headline notRead object service sharing state traffic \
         waitsUntil"
    );
    assert_eq!((&json["state"], &json["dataPath"]["rule"]), (&json!("waiting"), &json!("recorded")));
    assert_eq!(json["address"]["pools"][0]["verdict"], "rejected");
}

#[rstest]
#[case::of_another_type(json!({"spec": {"type": "ClusterIP"}}), State::NotOurs, "is of type ClusterIP")]
#[case::of_another_class(json!({"spec": {"loadBalancerClass": "metallb"}}), State::NotOurs, "class metallb, which another")]
#[case::deleted(json!({"metadata": {"deletionTimestamp": NOW}}), State::Leaving, "is being deleted")]
#[case::given_up(json!({"metadata": {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"]},
    "spec": {"type": "ClusterIP"}}), State::Leaving, "gives its load balancer up")]
#[case::wrong_annotation(annotated("ipam", "static"), State::Refused, "gets no load balancer: annotation")]
#[case::primary_of_a_wrong_form(annotated("primary-service", "a/b/c"), State::Refused, "namespace/name")]
#[case::primary_that_is_itself(
    annotated("primary-service", "web"),
    State::Refused,
    "cannot share its own address"
)]
#[case::primary_in_a_ring(annotated("primary-service", "api"), State::Refused, "in a ring of Services")]
#[case::primary_that_is_not_there(annotated("primary-service", "nobody"), State::Waiting, "is not there")]
#[case::new(json!({}), State::Waiting, "waits for the cloud controller manager to make its load balancer")]
#[tokio::test]
async fn the_headline_says_the_state(#[case] more: Value, #[case] state: State, #[case] part: &str) {
    let others = [("api", "admin"), ("admin", "api")];
    let others = others.map(|(name, primary)| service(name, &annotated("primary-service", primary)));
    let all = [service("web", &more)].into_iter().chain(others).collect();
    let report = decide(&read(all, None));
    assert_eq!(report.state, state, "{}", report.headline);
    assert!(report.headline.contains(part), "{}", report.headline);
}

#[tokio::test]
async fn without_the_lists_of_vms_a_service_on_the_host_datapath_is_not_called_refused() {
    let host = annotated("data-path", "host");
    let report = decide(&read_with(vec![service("web", &host)], None, Cache::empty()));
    assert_eq!(report.state, State::Unknown, "{}", report.headline);
    let mut wrong = host;
    merge(&mut wrong, &annotated("ipam", "static"));
    let report = decide(&read_with(vec![service("web", &wrong)], None, Cache::empty()));
    assert_eq!(report.state, State::Refused, "{}", report.headline);
}

#[tokio::test]
async fn an_address_is_served_when_the_status_shows_it() {
    let has = json!({"allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7"}, "conditions": [{"type": "Ready", "status": "True"}]});
    let shown = |ip: &str| {
        let annotations =
            json!({"kube-vip.io/loadbalancerIPs": "192.0.2.7", "kube-vip.io/vipHost": "worker-1"});
        json!({"metadata": {"annotations": annotations}, "status": {"loadBalancer": {"ingress": [{"ip": ip}]}}})
    };
    let served = explained(&shown("192.0.2.7"), Some(object(&has)));
    assert_eq!((served.state, served.address.sentence.as_str()), (State::Served, "192.0.2.7 of pool lab"));
    assert!(served.headline.contains("served at 192.0.2.7"), "{}", served.headline);
    assert!(served.traffic.sentence.contains("on node worker-1"), "{}", served.traffic.sentence);
    let waits = explained(&shown("198.51.100.9"), Some(object(&has)));
    assert_eq!(waits.state, State::Waiting, "{}", waits.headline);
    assert_eq!(waits.waits_until.unwrap(), "kube-vip in the guest writes 192.0.2.7 to the Service's status");
}

#[tokio::test]
async fn of_a_deleted_service_it_is_told_that_harvesters_load_balancer_holds_its_object() {
    let deleted = |finalizer: &str| json!({"metadata": {"deletionTimestamp": "2026-01-05T09:05:00Z", "finalizers": [finalizer]}});
    let held = object_with(&waiting(), &deleted(finalizers::LOAD_BALANCER));
    let report = explained(&deleted("service.kubernetes.io/load-balancer-cleanup"), Some(held));
    assert_eq!(report.state, State::Leaving, "{}", report.headline);
    let until = "the load balancer in Harvester takes its finalizer off LoadBalancer team-a/blue-web, which it does within \
        seconds where it runs";
    assert_eq!(report.waits_until.as_deref(), Some(until));
    assert!(report.headline.ends_with(&format!("; it waits until {until}")), "{}", report.headline);
}

/// docs/contract/kube-vip.md#endpoints
#[rstest]
#[case::without_a_pod(json!({"app": "none"}), Some(false), Some("no Pod is ready behind it (selector app=none)"))]
#[case::without_a_selector(json!({}), Some(false), Some("no EndpointSlice of it has a ready address"))]
#[case::with_a_pod(json!({"app": "none"}), Some(true), None)]
#[case::not_read(json!({"app": "none"}), None, None)]
#[tokio::test]
async fn of_a_service_without_a_ready_endpoint_the_headline_says_that_kube_vip_waits_for_one(
    #[case] selector: Value,
    #[case] has_endpoint: Option<bool>,
    #[case] expected: Option<&str>,
) {
    let has = json!({"allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7"}, "conditions": [{"type": "Ready", "status": "True"}]});
    let more = json!({"metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": "192.0.2.7"}}, "spec": {"selector": selector}});
    let mut read = read(vec![service("web", &more)], Some(object(&has)));
    read.has_endpoint = has_endpoint;
    let report = decide(&read);
    assert_eq!(report.state, State::Waiting, "{}", report.headline);
    assert_eq!(report.headline.contains("kube-vip 1.2 and later"), expected.is_some(), "{}", report.headline);
    assert!(expected.is_none_or(|words| report.headline.contains(words)), "{}", report.headline);
}

/// The annotation is the reason here, and a Pod would change nothing.
#[tokio::test]
async fn what_the_event_says_of_an_overdue_address_is_in_the_headline_beside_the_missing_pod() {
    let has = json!({"allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7"}, "conditions": [{"type": "Ready", "status": "True"}]});
    let annotations = json!({"kube-vip.io/loadbalancerIPs": "192.0.2.7", "kube-vip.io/ignore": "true"});
    let metadata = json!({"annotations": annotations, "creationTimestamp": "2026-01-05T09:08:00Z"});
    let more = json!({"metadata": metadata, "spec": {"selector": {"app": "none"}}});
    let mut read = read(vec![service("web", &more)], Some(object(&has)));
    read.has_endpoint = Some(false);
    let report = decide(&read);
    let told =
        ["remove the annotation", "no Pod is ready behind it"].map(|words| report.headline.find(words));
    assert!(told[0].is_some() && told[0] < told[1], "{}", report.headline);
}

#[tokio::test]
async fn a_value_of_ten_thousand_characters_is_cut_and_what_turns_text_round_does_not_reach_the_terminal() {
    let mut more = annotated("data-path", &"w".repeat(10_000));
    merge(&mut more, &annotated("ip", &format!("\u{1b}[2J\u{202e}{}", "9".repeat(10_000))));
    let report = explained(&more, None);
    let (text, json) = (render(&report), serde_json::to_string(&report).unwrap());
    assert!(text.len() < 8_000 && json.len() < 12_000, "{} {}", text.len(), json.len());
    assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.contains('…'), "{text}");
}

#[rstest]
#[case::renewed("2026-01-05T09:09:59.000000Z", Some(true))]
#[case::stale("2026-01-05T08:00:00.000000Z", Some(false))]
#[tokio::test]
async fn a_controller_that_does_not_run_is_in_the_headline(
    #[case] renewed: &str,
    #[case] runs: Option<bool>,
) {
    let mut read = read(vec![service("web", &json!({}))], None);
    let lease = read.lease.as_mut().unwrap().as_mut().unwrap();
    lease.spec.as_mut().unwrap().renew_time = serde_json::from_value(json!(renewed)).unwrap();
    let report = decide(&read);
    assert_eq!(report.controller.runs, runs);
    let told = report.headline.contains("no cloud controller manager runs: ccm-0 renewed Lease");
    assert_eq!(told, runs == Some(false), "{}", report.headline);
    read.lease = Some(None);
    assert!(decide(&read).headline.contains("there is no Lease"));
    assert_eq!(decide(&Read { lease: None, ..read }).controller.runs, None);
}

#[tokio::test]
async fn an_object_that_the_status_does_not_know_of_is_told_with_its_pools_answer() {
    let mut read = read(vec![service("web", &json!({}))], Some(object(&waiting())));
    let key = ObjectKey::new("team-a", "blue-web");
    assert_eq!(read.dry_run.key, key);
    read.pools.as_mut().unwrap().outcome =
        Outcome::Gets { pool: "lab".into(), address: "192.0.2.2".parse().unwrap() };
    let sentence = decide(&read).address.sentence;
    assert!(sentence.contains("pool lab has 192.0.2.2 to give"), "{sentence}");
    read.pools = None;
    let sentence = decide(&read).address.sentence;
    assert!(sentence.contains("without the right to list ippools"), "{sentence}");
}

#[tokio::test]
async fn what_another_flag_of_the_load_balancer_decides_is_a_line_of_its_own_and_a_flag_that_is_given_is_told()
 {
    let mut read = read(vec![service("web", &json!({}))], Some(object(&waiting())));
    let gets = Outcome::Gets { pool: "next".to_owned(), address: "192.0.2.7".parse().unwrap() };
    read.pools.as_mut().unwrap().depends = vec![("fall-over-when-full", gets)];
    read.assumed.pool_choice.strict_global_network = true;
    let report = decide(&read);
    let expected = "under a load balancer with --fall-over-when-full it gets 192.0.2.7 of pool next";
    assert_eq!(report.address.depends, [expected]);
    let text = render(&report);
    assert!(text.contains(&format!("\n             {expected}\n")), "{text}");
    assert!(
        text.contains("\n             a load balancer in Harvester with --strict-global-network=true"),
        "{text}"
    );
}
