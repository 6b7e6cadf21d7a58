use harvester_api::annotations;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn owned_by(uid: &str) -> Value {
    let owner = json!({"apiVersion": LoadBalancer::api_version(&()), "kind": "LoadBalancer", "name": "web", "uid": uid});
    json!({"ownerReferences": [owner]})
}

fn going_away(mut meta: Value) -> Value {
    meta["deletionTimestamp"] = "2026-08-20T10:00:00Z".into();
    meta
}

fn object<K: serde::de::DeserializeOwned>(api_version: &str, kind: &str, meta: &Value) -> RawObject<K> {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": meta});
    object["metadata"]["namespace"] = "shop".into();
    object["metadata"]["name"] = "web".into();
    if kind == "EndpointSlice" {
        json_patch::merge(&mut object, &json!({"addressType": "IPv4", "endpoints": [], "ports": []}));
    }
    RawObject::from_json(object).unwrap()
}

#[rstest]
#[case::nothing_there(None, None, None)]
#[case::ours(Some(owned_by("u1")), Some(owned_by("u1")), None)]
#[case::ours_on_its_way_out(Some(going_away(owned_by("u1"))), None, Some("ServiceGoing"))]
#[case::a_former_ones(Some(owned_by("u0")), None, Some("FormerServiceGoing"))]
#[case::a_former_ones_slice(None, Some(owned_by("u0")), Some("FormerServiceGoing"))]
#[case::somebody_elses(Some(json!({})), None, Some("NameTaken"))]
#[case::somebody_elses_slice(Some(owned_by("u1")), Some(json!({})), Some("NameTaken"))]
fn what_is_not_ours_or_on_its_way_out_stands_in_the_way(
    #[case] service: Option<Value>,
    #[case] slice: Option<Value>,
    #[case] expected: Option<&str>,
) {
    let owner = Owner { key: ObjectKey::new("shop", "web"), uid: "u1".to_owned() };
    let service = service.map(|meta| object::<Service>("v1", "Service", &meta));
    let slice = slice.map(|meta| object::<EndpointSlice>("discovery.k8s.io/v1", "EndpointSlice", &meta));
    let waiting = obstacle(&owner, service.as_ref(), slice.as_ref());
    assert_eq!(waiting.map(|waiting| waiting.reason), expected);
}

#[rstest]
#[case::needs_none(json!({"spec": {"workloadType": "cluster"}}), false, Some("forbidden"), "complete")]
#[case::no_object(Value::Null, false, Some("forbidden"), "complete")]
#[case::at_the_start(json!({}), false, None, "awaited")]
#[case::without_kubevirt(json!({}), false, Some("404 page not found"), "WaitingForMachines")]
#[case::listed(json!({}), true, None, "complete")]
// a list stays true while the watch that follows it is broken
#[case::broke_later(json!({}), true, Some("connection refused"), "complete")]
// it has no backends, whatever VMs there are
#[case::no_selector(json!({"spec": {"backendServerSelector": null}}), false, Some("forbidden"), "complete")]
#[case::selects_nothing(json!({"spec": {"backendServerSelector": {"tier": []}}}), false, None, "complete")]
#[case::wrong_source_ranges(json!({"metadata": {"annotations": {(annotations::SOURCE_RANGES): "office"}}}),
    false, Some("forbidden"), "complete")]
#[case::source_ranges(json!({"metadata": {"annotations": {(annotations::SOURCE_RANGES): "10.0.0.0/8"}}}),
    false, None, "awaited")]
fn backends_are_chosen_from_a_whole_list(
    #[case] rest: Value,
    #[case] is_listed: bool,
    #[case] error: Option<&str>,
    #[case] expected: &str,
) {
    let mut json = json!({"metadata": {"name": "web"},
        "spec": {"workloadType": "vm", "backendServerSelector": {"tier": ["api"]}}});
    json_patch::merge(&mut json, &rest);
    let lb: Option<LoadBalancer> = (!rest.is_null()).then(|| serde_json::from_value(json).unwrap());
    let list = match VmList::of(lb.as_ref(), is_listed, error) {
        VmList::Complete => "complete",
        VmList::Awaited => "awaited",
        VmList::Unavailable(why) => {
            assert!(why.message.contains(error.unwrap()), "{why}");
            why.reason
        }
    };
    assert_eq!(list, expected);
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_load_balancer_looks_at_no_vm_of_another_namespace() {
    let (caches, queues, tasks) = (Caches::empty(), Queues::default(), TaskGroup::new());
    let pools = crate::pool::PoolIndex::follow(&caches);
    let hosts = host_addresses::HostAddresses::unknown();
    let vips = Vips::follow(&caches, &pools, hosts, &queues.load_balancers);
    let dial: Dial = std::sync::Arc::new(|_| Box::pin(std::future::pending()));
    let datapath = HostDatapath::start(&tasks, dial, 7, Config::default(), &caches, vips, &queues);
    for n in 0..300 {
        let namespace = if n < 3 { "shop" } else { "others" };
        let vmi = json!({"metadata": {"namespace": namespace, "name": format!("web-{n}"), "uid": format!("u{n}"),
            "labels": {"tier": "web"}}, "spec": {}});
        caches.vmis.wrote(serde_json::from_value(vmi).unwrap());
    }
    let lb = json!({"metadata": {"namespace": "shop", "name": "web"},
        "spec": {"workloadType": "vm", "backendServerSelector": {"tier": ["web"]}}});
    let lb: LoadBalancer = serde_json::from_value(lb).unwrap();
    assert_eq!(crate::steps::steps_of(|| datapath.see(&lb, None, None)), 3);
    tasks.end().await;
}
