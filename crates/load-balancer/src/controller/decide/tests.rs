//! The table of what becomes of a LoadBalancer object.

use harvester_api::{ConditionStatus, annotations, condition, labels};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::host_datapath::TOO_MANY_LISTENERS;
mod dual;
mod families;
mod pace;
mod pending;
mod requested;
mod source_ranges;

fn seen() -> Seen {
    let pool = |name: &str, third: u8| {
        json!({"metadata": {"name": name}, "spec": {"ranges": [{"subnet": format!("10.0.{third}.0/24")}],
            "selector": {"scope": [{"namespace": "*", "project": "*", "guestCluster": name}]}}})
    };
    let pools = [pool("core", 2), pool("edge", 1)].map(|pool| serde_json::from_value(pool).unwrap());
    Seen {
        key: ObjectKey::new("shop", "web"),
        object: None,
        address: SeenAddress { pools: Arc::new(ip_pools::check_specs(&pools)), ..SeenAddress::default() },
        service: None,
        slice: None,
        vm_list: VmList::Complete,
        backends: Backends::default(),
        unlisted: None,
        refused_writes: Vec::new(),
        records_held: BTreeSet::new(),
        may_delete_services: true,
        has_backends_field: false,
        has_second_address_field: true,
        has_addresses_field: true,
        dummy_endpoint: [10, 52, 0, 255].into(),
        backend_status_in: None,
        backend_due_in: BTreeMap::new(),
        slice_readiness_in: None,
        now: "now".to_owned(),
    }
}

fn merged(mut object: Value, rest: &Value) -> Value {
    json_patch::merge(&mut object, rest);
    object
}

/// `web` of UID `u1`, named to pool `edge`, as `kubectl apply` makes it.
fn object(workload: &str, rest: &Value) -> Option<Arc<RawObject<LoadBalancer>>> {
    let object = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"namespace": "shop", "name": "web", "uid": "u1"},
        "spec": {"workloadType": workload, "ipPool": "edge",
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}]}});
    Some(Arc::new(RawObject::from_json(merged(object, rest)).unwrap()))
}

/// With finalizer and the address that the pool `edge` records for it.
fn settled(workload: &str, rest: &Value) -> Option<Arc<RawObject<LoadBalancer>>> {
    let address = json!({"ipPool": "edge", "ip": "10.0.1.7", "mask": "255.255.255.0", "gateway": "10.0.1.1"});
    let ready = json!([{"type": "Ready", "status": "True", "reason": "AddressAllocated"}]);
    let mut own = json!({"metadata": {"finalizers": [finalizers::LOAD_BALANCER]},
        "status": {"allocatedAddress": address, "conditions": ready}});
    json_patch::merge(&mut own, rest);
    object(workload, &own)
}

fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-08-20T10:00:00Z"}})
}

fn recorded(seen: Seen, records: &[(&str, &str)]) -> Seen {
    let recorded = records.iter().map(|(pool, ip)| ((*pool).to_owned(), ip.parse().unwrap())).collect();
    Seen { address: SeenAddress { recorded, holder: RecordedHolder::Us, ..seen.address }, ..seen }
}

/// The Service `web`, which asks for `ip` and shows it; `owner` is the UID of the LoadBalancer object.
fn service(owner: Option<&str>, ip: &str, shown: &str) -> Option<Arc<RawObject<Service>>> {
    let owner = Owner { key: ObjectKey::new("shop", "web"), uid: owner.unwrap_or_default().to_owned() };
    let listeners = serde_json::from_value::<Vec<harvester_api::Listener>>(
        json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}]),
    );
    let Write::Create(mut json) = host_datapath::service::write(None, &owner, &listeners.unwrap(), ip, None)
    else {
        panic!("no Service to create")
    };
    json["metadata"]["uid"] = "s1".into();
    if owner.uid.is_empty() {
        json["metadata"]["ownerReferences"] = json!([]);
    }
    json["status"] = json!({"loadBalancer": {"ingress": [{"ip": shown}]}});
    Some(Arc::new(RawObject::from_json(json).unwrap()))
}

/// One that has our label and another owner.
fn of_a_stranger(ip: &str) -> Option<Arc<RawObject<Service>>> {
    let mut json = service(None, ip, "").unwrap().json();
    json["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": "c1"}]);
    Some(Arc::new(RawObject::from_json(json).unwrap()))
}

fn slice(owner: &str) -> Option<Arc<RawObject<EndpointSlice>>> {
    let owner = Owner { key: ObjectKey::new("shop", "web"), uid: owner.to_owned() };
    let listeners = serde_json::from_value::<Vec<harvester_api::Listener>>(
        json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}]),
    );
    let write = slice::write(None, &owner, &listeners.unwrap(), &[], [10, 52, 0, 255].into());
    let Write::Create(json) = write else { panic!("no slice to create") };
    Some(Arc::new(RawObject::from_json(json).unwrap()))
}

/// A vm object that serves at 10.0.1.7.
fn serving(rest: &Value) -> Seen {
    let seen = recorded(seen(), &[("edge", "10.0.1.7")]);
    let shown = json!({"status": {"address": "10.0.1.7",
        "conditions": [{"type": "Ready", "status": "False", "reason": "NoBackends", "message": "no running backend servers"}]}});
    Seen {
        object: settled("vm", &merged(shown, rest)),
        service: service(Some("u1"), "10.0.1.7", "10.0.1.7"),
        slice: slice("u1"),
        ..seen
    }
}

fn refused(kinds: &[&'static str]) -> Vec<RefusedWrite> {
    kinds.iter().map(|&kind| RefusedWrite { kind, why: "denied".to_owned() }).collect()
}

fn steps(seen: &Seen) -> Vec<String> {
    decide(seen).steps.iter().map(ToString::to_string).collect()
}

/// The status of the first PUT.
fn written(seen: &Seen) -> Value {
    let plan = decide(seen);
    let written = plan.steps.iter().find_map(|step| match step {
        Step::WriteObject(json) => Some(json["status"].clone()),
        _ => None,
    });
    written.unwrap_or_else(|| panic!("{:?}", plan.steps))
}

fn reason(status: &Value) -> (bool, String) {
    let conditions: Vec<harvester_api::Condition> =
        serde_json::from_value(status["conditions"].clone()).unwrap();
    let ready = condition::ready(&conditions).unwrap();
    (ready.status == ConditionStatus::True, ready.reason.clone())
}

#[rstest]
#[case::a_new_one_claims(Seen { object: object("cluster", &json!({})), ..seen() }, &["claim from edge"])]
#[case::the_record_is_the_answer(
    recorded(Seen { object: object("cluster", &json!({})), ..seen() }, &[("edge", "10.0.1.7")]), &["write object"])]
#[case::settled(recorded(Seen { object: settled("cluster", &json!({})), ..seen() }, &[("edge", "10.0.1.7")]), &[])]
#[case::a_second_record_goes_back(
    recorded(Seen { object: settled("cluster", &json!({})), ..seen() }, &[("core", "10.0.2.5"), ("edge", "10.0.1.7")]),
    &["release 10.0.2.5 of core"])]
#[case::a_dhcp_object_has_no_record(
    recorded(Seen { object: settled("cluster", &json!({"spec": {"ipam": "dhcp"}, "status": {"allocatedAddress":
        {"ipPool": null, "ip": "0.0.0.0", "mask": null, "gateway": null}}})), ..seen() }, &[("edge", "10.0.1.7")]),
    &["release 10.0.1.7 of edge"])]
#[case::one_that_goes_releases_first(
    recorded(Seen { object: settled("cluster", &deleting()), ..seen() }, &[("edge", "10.0.1.7")]), &["release 10.0.1.7 of edge"])]
#[case::and_then_its_finalizer_goes(Seen { object: settled("cluster", &deleting()), ..seen() }, &["write object"])]
// docs/contract/load-balancer.md#LB-19: in the Go program it never ends
#[case::one_whose_pool_was_removed_by_force_ends(
    Seen { address: SeenAddress { holder: RecordedHolder::NoSuchPool, ..SeenAddress::default() },
        object: settled("cluster", &deleting()), ..seen() }, &["write object"])]
#[case::one_without_our_finalizer_is_left_to_others(
    recorded(Seen { object: object("cluster", &deleting()), ..seen() }, &[("edge", "10.0.1.7")]), &[])]
#[case::one_that_is_gone_releases(recorded(seen(), &[("edge", "10.0.1.7")]), &["release 10.0.1.7 of edge"])]
#[case::one_that_is_gone_and_announced_does_not(
    Seen { records_held: [("edge".to_owned(), [10, 0, 1, 7].into())].into(), ..recorded(seen(), &[("edge", "10.0.1.7")]) }, &[])]
fn an_object_of_a_guest_cluster_takes_these_steps(#[case] seen: Seen, #[case] expected: &[&str]) {
    assert_eq!(steps(&seen), expected);
}

#[rstest]
#[case::a_new_one_claims(Seen { object: object("vm", &json!({})), ..seen() }, &["claim from edge"])]
#[case::finalizer_and_address_come_before_the_slice_and_that_before_the_service(
    recorded(Seen { object: object("vm", &json!({})), ..seen() }, &[("edge", "10.0.1.7")]),
    &["write object", "write slice", "write service"])]
#[case::serving(serving(&json!({})), &[])]
#[case::waits_for_the_list_of_vms(Seen { vm_list: VmList::Awaited, ..serving(&json!({})) }, &[])]
#[case::moved_and_not_followed(
    Seen { service: service(Some("u1"), "10.0.1.7", "10.0.2.5"), ..recorded(serving(&json!({"status": {"address": "10.0.2.5",
        "conditions": [{"type": "Ready", "status": "False", "reason": "WaitingForExternalIP",
        "message": "service is waiting for external IP 10.0.1.7, still has 10.0.2.5"}]}})), &[("core", "10.0.2.5"), ("edge", "10.0.1.7")]) },
    &[])]
#[case::moved_and_followed(
    recorded(serving(&json!({})), &[("core", "10.0.2.5"), ("edge", "10.0.1.7")]), &["release 10.0.2.5 of core"])]
#[case::ends_with_the_service(
    Seen { slice: slice("u1"), ..serving(&deleting()) }, &["write slice", "delete service"])]
#[case::ends_without_the_right(
    Seen { may_delete_services: false, ..serving(&deleting()) }, &["write slice", "write object"])]
#[case::the_service_is_gone(Seen { service: None, slice: None, ..serving(&deleting()) }, &["release 10.0.1.7 of edge"])]
#[case::all_is_gone(
    Seen { object: settled("vm", &deleting()), ..seen() }, &["write object"])]
#[case::gone_before_the_collector_came(Seen { object: None, ..serving(&json!({})) }, &[])]
#[case::gone_and_orphaned(
    Seen { object: None, service: service(None, "10.0.1.7", "10.0.1.7"), ..serving(&json!({})) }, &["delete orphan"])]
#[case::gone_and_a_strangers_service_has_our_label(
    Seen { object: None, service: of_a_stranger("10.0.1.7"), ..serving(&json!({})) }, &["release 10.0.1.7 of edge"])]
#[case::moved_and_a_strangers_service_has_our_label(
    recorded(Seen { object: settled("cluster", &json!({})), service: of_a_stranger("10.0.2.5"), ..seen() },
        &[("core", "10.0.2.5"), ("edge", "10.0.1.7")]), &["release 10.0.2.5 of core"])]
#[case::gone_and_orphaned_without_the_right(
    Seen { object: None, service: service(None, "10.0.1.7", "10.0.1.7"), may_delete_services: false, ..serving(&json!({})) }, &[])]
fn an_object_of_vms_takes_these_steps(#[case] seen: Seen, #[case] expected: &[&str]) {
    assert_eq!(steps(&seen), expected);
}

// kube-vip up to 1.2.3 passes over every event of a Service of another type or with that annotation, the deletion
// included: the address would stay on its interface for ever
#[test]
fn no_service_changes_its_type_and_none_is_ignored() {
    for seen in [
        Seen { may_delete_services: false, ..serving(&deleting()) },
        Seen {
            address: SeenAddress { holder: RecordedHolder::SomebodyElse, ..SeenAddress::default() },
            may_delete_services: false,
            ..serving(&json!({}))
        },
        recorded(Seen { object: object("vm", &json!({})), ..seen() }, &[("edge", "10.0.1.7")]),
    ] {
        for step in decide(&seen).steps {
            if let Step::WriteService(Write::Create(json) | Write::Replace(json)) = step {
                assert_eq!(json["spec"]["type"], "LoadBalancer");
                assert_eq!(json["metadata"]["annotations"].get(annotations::KUBE_VIP_IGNORE), None);
            }
        }
    }
}

#[rstest]
#[case::of_vms_with_the_same_pool("vm", "edge", &json!({}))]
#[case::of_vms_with_another_pool("vm", "core", &json!({}))]
#[case::of_vms_with_dhcp("vm", "", &json!({"spec": {"ipam": "dhcp"}}))]
#[case::of_a_guest_cluster("cluster", "edge", &json!({}))]
#[case::of_a_guest_cluster_with_dhcp("cluster", "", &json!({"spec": {"ipam": "dhcp"}}))]
fn an_object_that_is_made_again_waits_for_the_former_service_and_keeps_its_record(
    #[case] workload: &str,
    #[case] pool: &str,
    #[case] rest: &Value,
) {
    let object = object(workload, &merged(json!({"spec": {"ipPool": pool}}), rest));
    let former =
        Seen { object, service: service(Some("u0"), "10.0.1.7", "10.0.1.7"), slice: slice("u0"), ..seen() };
    let former = recorded(former, &[("edge", "10.0.1.7")]);
    assert_eq!(steps(&former), ["write object"]);
    let status = written(&former);
    assert_eq!(status.get("allocatedAddress"), None, "nobody may announce anything for it");
    assert_eq!(reason(&status), (false, "FormerServiceGoing".to_owned()));
    let orphan = Seen { service: service(None, "10.0.1.7", "10.0.1.7"), slice: None, ..former };
    if workload == "cluster" {
        assert_eq!(steps(&orphan), ["delete service", "write object"]);
        let plan = decide(&Seen { may_delete_services: false, ..orphan });
        assert!(plan.orphaned && !plan.steps.iter().any(|step| matches!(step, Step::DeleteService { .. })));
    } else {
        // a Service without owner becomes the new object's, with its address
        assert!(!steps(&orphan).iter().any(|step| step.starts_with("release")));
    }
}

#[test]
fn a_service_that_lost_our_label_is_looked_at_again_because_nothing_tells_of_its_end() {
    let mut seen = Seen { object: object("vm", &json!({})), ..recorded(seen(), &[("edge", "10.0.1.7")]) };
    seen.service = service(Some("u0"), "10.0.1.7", "10.0.1.7");
    assert_eq!((decide(&seen).again, decide(&seen).unwatched), (None, false));
    let mut bare = seen.service.as_ref().unwrap().json();
    bare["metadata"]["labels"] = json!({});
    seen.service = Some(Arc::new(RawObject::from_json(bare).unwrap()));
    assert!(decide(&seen).unwatched);
}

#[test]
fn what_is_announced_stays_shown_when_a_write_is_refused() {
    let other = json!({"spec": {"listeners": [{"name": "https", "port": 443, "protocol": "TCP", "backendPort": 8443}]},
        "status": {"backendServers": ["192.168.7.11"]}});
    let mut refused = serving(&other);
    let mut json = refused.slice.as_ref().unwrap().json();
    json["endpoints"] = json!([{"addresses": ["192.168.7.11"], "conditions": {"ready": true},
        "targetRef": {"namespace": "shop", "name": "api-1", "uid": "v1"}}]);
    refused.slice = Some(Arc::new(RawObject::from_json(json).unwrap()));
    assert_eq!(steps(&refused), ["write slice", "write service"]);
    refused.refused_writes = vec![RefusedWrite { kind: "Service", why: "exceeded quota".to_owned() }];
    assert_eq!(steps(&refused), ["write object"], "not a second time");
    let status = written(&refused);
    assert_eq!(
        (&status["address"], &status["backendServers"]),
        (&json!("10.0.1.7"), &json!(["192.168.7.11"]))
    );
    assert_eq!(reason(&status), (false, "ServiceRefused".to_owned()));
    assert!(decide(&refused).unwatched);
}

#[rstest]
#[case::as_many_as_there_may_be(100, true)]
#[case::more(101, false)]
#[case::thousands(4_000, false)]
fn an_object_with_more_than_a_hundred_listeners_gets_no_node_ports_and_says_why(
    #[case] count: i32,
    #[case] is_served: bool,
) {
    let listeners: Vec<_> = (1..=count)
        .map(|n| json!({"name": format!("p{n}"), "port": n, "protocol": "TCP", "backendPort": n}))
        .collect();
    let listeners = json!({"spec": {"listeners": listeners}});
    let new = recorded(Seen { object: object("vm", &listeners), ..seen() }, &[("edge", "10.0.1.7")]);
    assert_eq!(steps(&new).contains(&"write service".to_owned()), is_served);
    let raised = serving(&listeners);
    assert_eq!(steps(&raised).contains(&"write service".to_owned()), is_served);
    if !is_served {
        let status = written(&raised);
        assert_eq!(status["address"], "10.0.1.7", "the old ports still serve");
        assert_eq!(reason(&status), (false, TOO_MANY_LISTENERS.to_owned()));
        assert_eq!(decide(&raised).events.len(), 1);
        let told = Seen { object: raised.object.as_ref().map(|lb| with_status(lb, &status)), ..raised };
        assert_eq!((steps(&told), decide(&told).events), (vec![], vec![]), "told once");
    }
}

fn with_status(lb: &RawObject<LoadBalancer>, status: &Value) -> Arc<RawObject<LoadBalancer>> {
    let mut json = lb.json();
    json["status"] = status.clone();
    Arc::new(RawObject::from_json(json).unwrap())
}

#[test]
fn an_address_that_is_somebody_elses_is_withdrawn_and_told() {
    let mut lost = serving(&json!({}));
    lost.address.holder = RecordedHolder::SomebodyElse;
    lost.address.recorded.clear();
    lost.object = settled("vm", &json!({"spec": {"ipPool": ""}}));
    // no pool matches: there is none to be had
    assert_eq!(steps(&lost), ["write slice", "delete service", "write object"]);
    assert_eq!(reason(&written(&lost)), (false, "NoMatchingPool".to_owned()));
    assert_eq!(decide(&lost).events.len(), 1);
    let kept = Seen { may_delete_services: false, ..lost };
    assert_eq!(steps(&kept), ["write slice", "write object"]);
}

#[rstest]
#[case::no_pool_matches(&json!({"spec": {"ipPool": ""}}), "NoMatchingPool")]
#[case::the_other_pool_is_full(&json!({"spec": {"ipPool": "core"}}), "PoolExhausted")]
fn a_lost_address_is_shown_nowhere_and_told_while_there_is_no_other(
    #[case] rest: &Value,
    #[case] expected: &str,
) {
    let shown = json!({"status": {"address": "10.0.1.7", "backendServers": ["192.168.7.11"]}});
    let mut lost = serving(&json!({}));
    lost.address.holder = RecordedHolder::SomebodyElse;
    lost.address.recorded.clear();
    lost.address.refused = vec![(
        "core".to_owned(),
        Refused::Exhausted {
            pool: "core".to_owned(),
            ranges: String::new(),
            family: None,
            drains: false,
            rests_for: 0,
        },
    )];
    lost.object = settled("vm", &merged(rest.clone(), &shown));
    assert_eq!(steps(&lost), ["write slice", "delete service", "write object"]);
    let status = written(&lost);
    for field in ["address", "allocatedAddress", "backendServers"] {
        assert_eq!(status.get(field), None, "{field} of {status}");
    }
    assert_eq!(reason(&status), (false, expected.to_owned()));
    assert_eq!(decide(&lost).events.len(), 1);
}

#[test]
fn a_lost_address_is_shown_nowhere_while_the_service_follows_to_the_new_one() {
    let mut lost = serving(&json!({"status": {"backendServers": ["192.168.7.11"]}}));
    lost.address.holder = RecordedHolder::SomebodyElse;
    lost.address.recorded = vec![("edge".to_owned(), [10, 0, 1, 8].into())];
    lost.address.of_others = [[10, 0, 1, 7].into()].into();
    assert_eq!(steps(&lost), ["write object", "write service"]);
    let status = written(&lost);
    assert_eq!((&status["allocatedAddress"]["ip"], status.get("address")), (&json!("10.0.1.8"), None));
    assert_eq!(status["backendServers"], json!(["192.168.7.11"]), "they serve the new address next");

    lost.object = lost.object.as_ref().map(|lb| with_status(lb, &status));
    lost.address.holder = RecordedHolder::Us;
    lost.service = service(Some("u1"), "10.0.1.8", "10.0.1.7");
    let status = written(&lost);
    assert_eq!((reason(&status).1.as_str(), status.get("address")), ("WaitingForExternalIP", None));
}

fn patched(lb: &RawObject<LoadBalancer>, patch: &Value) -> Arc<RawObject<LoadBalancer>> {
    Arc::new(RawObject::from_json(merged(lb.json(), patch)).unwrap())
}

#[test]
fn a_service_of_somebody_else_is_in_the_way_and_left_alone() {
    let mut foreign = serving(&json!({}));
    let mut json = foreign.service.as_ref().unwrap().json();
    json["metadata"] = json!({"namespace": "shop", "name": "web", "labels": {labels::SERVICE_LB: "false"}});
    foreign.service = Some(Arc::new(RawObject::from_json(json).unwrap()));
    assert_eq!(steps(&foreign), ["write object"]);
    assert_eq!(reason(&written(&foreign)), (false, "NameTaken".to_owned()));
    assert!(decide(&foreign).unwatched);
}

#[test]
fn an_address_that_an_older_pool_gives_to_somebody_else_is_not_shown() {
    let mut outranked = serving(&json!({}));
    outranked.address.holder = RecordedHolder::SomebodyElse;
    outranked.address.recorded = vec![("core".to_owned(), [10, 0, 2, 8].into())];
    outranked.address.outranked = vec![("edge".to_owned(), [10, 0, 1, 7].into())];
    outranked.object = settled("vm", &json!({"spec": {"ipPool": "core"}, "status": {"address": "10.0.1.7"}}));
    let status = written(&outranked);
    assert_eq!((&status["allocatedAddress"]["ip"], status.get("address")), (&json!("10.0.2.8"), None));
}

/// `serving`, whose address the pool gives to somebody else, and 10.0.1.8 to it.
fn with_another_address() -> Seen {
    let mut seen = serving(&json!({}));
    seen.address.holder = RecordedHolder::SomebodyElse;
    seen.address.recorded = vec![("edge".to_owned(), [10, 0, 1, 8].into())];
    seen.address.of_others = [[10, 0, 1, 7].into()].into();
    seen
}

/// The object's status is written, and with that nothing remembers which address was lost.
fn with_its_status_written(mut seen: Seen) -> Seen {
    let status = written(&seen);
    seen.object = seen.object.as_ref().map(|lb| with_status(lb, &status));
    seen.address.holder = RecordedHolder::Us;
    seen
}

fn service_written(seen: &Seen) -> Value {
    let plan = decide(seen);
    let written = plan.steps.iter().find_map(|step| match step {
        Step::WriteService(Write::Replace(json)) => Some(json.clone()),
        _ => None,
    });
    written.unwrap_or_else(|| panic!("{:?}", plan.steps))
}

#[test]
fn a_service_leaves_a_lost_address_also_while_no_vm_can_be_listed() {
    let mut lost = with_another_address();
    lost.vm_list = VmList::Unavailable(Explanation::new("WaitingForMachines", "forbidden"));
    assert_eq!(steps(&lost), ["write object", "write service"]);
    let later = with_its_status_written(lost.clone());
    assert_eq!(steps(&later), ["write service"], "the first PUT of it may have failed");
    for seen in [lost, later] {
        assert_eq!(service_written(&seen)["spec"]["loadBalancerIP"], "10.0.1.8");
    }
}

#[rstest]
#[case::and_the_vms_are_known(VmList::Complete)]
#[case::and_no_vm_can_be_listed(VmList::Unavailable(Explanation::new("WaitingForMachines", "forbidden")))]
fn a_service_that_may_not_leave_a_lost_address_is_withdrawn(#[case] vm_list: VmList) {
    let mut lost = with_its_status_written(Seen { vm_list, ..with_another_address() });
    lost.refused_writes = refused(&["Service"]);
    assert_eq!(steps(&lost)[..2], ["write slice", "delete service"]);
    lost.may_delete_services = false;
    assert_eq!(steps(&lost)[..1], ["write slice"]);
    lost.slice = lost.slice.as_ref().map(|slice| emptied(slice));
    assert!(steps(&lost).iter().all(|step| step == "write object"), "nothing else is left to be done");
    lost.refused_writes.clear();
    assert_eq!(steps(&lost)[0], "write service", "no backend serves the lost address in between");
}

#[test]
fn a_strangers_slice_keeps_no_service_at_a_lost_address() {
    let mut lost = with_its_status_written(with_another_address());
    let mut json = lost.slice.as_ref().unwrap().json();
    json["metadata"] = json!({"namespace": "shop", "name": "web"});
    lost.slice = Some(Arc::new(RawObject::from_json(json).unwrap()));
    assert_eq!(steps(&lost), ["write service"]);
    assert_eq!(service_written(&lost)["spec"]["loadBalancerIP"], "10.0.1.8");
}

fn emptied(slice: &RawObject<EndpointSlice>) -> Arc<RawObject<EndpointSlice>> {
    Arc::new(RawObject::from_json(merged(slice.json(), &json!({"endpoints": []}))).unwrap())
}

// kube-vip up to 1.2.3 passes over every event of such a Service, the deletion included
#[rstest]
#[case::ignored(&json!({"metadata": {"annotations": {annotations::KUBE_VIP_IGNORE: "true"}}}))]
#[case::of_another_type(&json!({"spec": {"type": "ClusterIP"}}))]
fn kube_vip_sees_a_service_again_before_it_goes(#[case] change: &Value) {
    let changed = |mut seen: Seen| {
        let json = merged(seen.service.as_ref().unwrap().json(), change);
        seen.service = Some(Arc::new(RawObject::from_json(json).unwrap()));
        seen
    };
    let serving_on = changed(serving(&json!({})));
    assert_eq!(steps(&serving_on), ["write service"]);
    let ending = changed(serving(&deleting()));
    assert_eq!(steps(&ending), ["write slice", "write service", "delete service"]);
    let without_right = Seen { may_delete_services: false, ..ending.clone() };
    assert_eq!(steps(&without_right), ["write slice", "write service", "write object"]);
    let orphaned = changed(Seen { object: None, service: service(None, "10.0.1.7", "10.0.1.7"), ..seen() });
    assert_eq!(steps(&orphaned), ["write service", "delete orphan"]);
    for seen in [&serving_on, &ending, &without_right, &orphaned] {
        let written = service_written(seen);
        assert_eq!(written["spec"]["type"], "LoadBalancer");
        assert_eq!(written["metadata"]["annotations"].get(annotations::KUBE_VIP_IGNORE), None);
    }
    let going = json!({"metadata": {"deletionTimestamp": "2026-08-20T10:00:00Z"}});
    let json = merged(ending.service.as_ref().unwrap().json(), &going);
    let going = Seen { service: Some(Arc::new(RawObject::from_json(json).unwrap())), ..ending.clone() };
    assert_eq!(steps(&going), ["write slice", "write service"]);

    for seen in [ending, without_right] {
        let told = |refused: &Seen| (decide(refused).unwatched, decide(refused).events.len());
        let first = Seen { refused_writes: refused(&["Service"]), ..seen };
        assert_eq!(steps(&first), ["write slice"], "kube-vip would announce the address for ever");
        assert_eq!(told(&first), (true, 1));
        let both = Seen { refused_writes: refused(&["EndpointSlice", "Service"]), ..first };
        assert_eq!((steps(&both), told(&both)), (vec![], (true, 1)));
    }
}

#[test]
fn a_refused_write_of_the_slice_keeps_no_load_balancer_from_ending() {
    let refused_writes = refused(&["EndpointSlice"]);
    let ending = Seen { refused_writes: refused_writes.clone(), ..serving(&deleting()) };
    assert_eq!(steps(&ending), ["delete service"]);
    assert_eq!(steps(&Seen { may_delete_services: false, ..ending.clone() }), ["write object"]);
    assert_eq!(steps(&Seen { service: None, ..ending }), ["release 10.0.1.7 of edge"]);
    let mut lost = Seen { refused_writes, ..serving(&json!({})) };
    lost.address.holder = RecordedHolder::SomebodyElse;
    lost.address.recorded.clear();
    lost.object = settled("vm", &json!({"spec": {"ipPool": ""}}));
    assert_eq!(steps(&lost), ["delete service", "write object"]);
}

#[rstest]
#[case::of_vms(serving(&json!({})))]
#[case::of_a_guest_cluster(recorded(Seen { object: object("cluster", &json!({"spec": {"ipPool": ""}})), ..seen() }, &[]))]
fn a_condition_names_the_list_that_fails_in_place_of_what_may_not_be_true(#[case] seen: Seen) {
    let why = "list ippools.loadbalancer.harvesterhci.io: ippools is forbidden".to_owned();
    let seen = Seen { unlisted: Some(why.clone()), ..seen };
    let status = written(&seen);
    assert_eq!(reason(&status), (false, "NotListed".to_owned()));
    let message = status["conditions"][0]["message"].as_str().unwrap();
    assert!(message.ends_with(&why), "{message}");
    assert!(decide(&seen).unwatched);
}
