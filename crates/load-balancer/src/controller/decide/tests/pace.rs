//! Writes that say only what health checks found.

use harvester_api::names;

use super::*;
use crate::host_datapath::{
    backends,
    networks::{Network, Taken},
};

#[test]
fn a_write_that_carries_only_verdicts_waits_and_every_other_goes_out_at_once() {
    let backend = |ready: bool, error: &str| {
        json!({"status": {"backends": [{"name": "api-1", "address": "192.168.7.11", "ready": ready,
            "lastError": error, "since": "then"}]}})
    };
    let id = BackendId { uid: "v1".to_owned(), address: [192, 168, 7, 11].into() };
    let selected = backends::Selected {
        backends: vec![backends::Backend { id: id.clone(), name: "api-1".to_owned() }],
        ..backends::Selected::default()
    };
    let verdict = health_check::Verdict { ready: false, error: Some(health_check::DialError::Refused) };
    let probed = json!({"spec": {"healthCheck": {"port": 80}}, "status": {"backendServers": ["192.168.7.11"],
        "conditions": [{"type": "Ready", "status": "False", "reason": "NoHealthyBackend",
            "message": "running backend servers are not probed as healthy total:1, healthy:0"}]}});
    let mut seen = serving(&merged(backend(false, "no answer in time"), &probed));
    seen.backends = Backends { selected, verdicts: [(id, verdict)].into() };
    seen.has_backends_field = true;
    let mut json = seen.slice.as_ref().unwrap().json();
    json["endpoints"] = json!([
        {"addresses": ["192.168.7.11"], "conditions": {"ready": false},
            "targetRef": {"namespace": "shop", "name": "api-1", "uid": "v1"}},
        json["endpoints"][0]]);
    seen.slice = Some(Arc::new(RawObject::from_json(json).unwrap()));
    assert_eq!(steps(&seen), ["write backend status"]);

    seen.backend_status_in = Some(Duration::from_millis(300));
    assert_eq!((steps(&seen), decide(&seen).again), (vec![], seen.backend_status_in));
    let turned = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let turned = Seen { object: seen.object.as_ref().map(|lb| patched(lb, &turned)), ..seen.clone() };
    assert_eq!(steps(&turned), ["write object"], "the condition turns");
    let renamed =
        json!({"status": {"backends": [{"name": "api-0", "address": "192.168.7.11", "ready": false}]}});
    let renamed = Seen { object: seen.object.as_ref().map(|lb| patched(lb, &renamed)), ..seen.clone() };
    assert_eq!(steps(&renamed), ["write object"], "a backend is another");
}

fn without_address(name: &str) -> backends::Unusable {
    backends::Unusable { name: name.to_owned(), refused: None }
}

/// The object after the PUT that the only step makes: one of backend status.
fn with_backend_status(seen: &Seen) -> Seen {
    let steps = decide(seen).steps;
    let [Step::WriteBackendStatus(json)] = &steps[..] else { panic!("{steps:?}") };
    Seen { object: Some(Arc::new(RawObject::from_json(json.clone()).unwrap())), ..seen.clone() }
}

// somebody writes the label of a VM on and off that never runs
#[rstest]
#[case::beside_one_that_serves(true, true)]
#[case::as_the_only_one(false, true)]
#[case::where_the_crd_has_no_list(false, false)]
fn a_vm_without_usable_address_comes_and_goes_at_the_pace_of_backend_status(
    #[case] is_served: bool,
    #[case] has_backends_field: bool,
) {
    let one = [backend("api-1", 11)];
    let one = if is_served { &one[..] } else { &[] };
    let listed = json!({"status": {"backends": [{"name": "api-1", "address": "192.168.7.11", "ready": true, "since": "then"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "AddressAllocated"}]}});
    let mut without = Seen { has_backends_field, ..selecting(one, one) };
    if is_served {
        without.object = without.object.map(|lb| patched(&lb, &listed));
    }
    assert_eq!(steps(&without), [""; 0]);
    let mut with = without.clone();
    with.backends.selected.unusable.push(without_address("api-2"));
    let waiting = Seen { backend_status_in: Some(LATER), ..with.clone() };
    assert_eq!((steps(&waiting), decide(&waiting).again), (vec![], Some(LATER)), "it comes");

    let shown = with_backend_status(&with);
    assert_eq!(steps(&shown), [""; 0]);
    let gone = Seen { object: shown.object.clone(), ..without };
    let waiting = Seen { backend_status_in: Some(LATER), ..gone.clone() };
    assert_eq!((steps(&waiting), decide(&waiting).again), (vec![], Some(LATER)), "it goes");
    assert_eq!(steps(&with_backend_status(&gone)), [""; 0]);

    let elsewhere = json!({"status": {"address": "10.0.1.9"}});
    let elsewhere = Seen { object: gone.object.as_ref().map(|lb| patched(lb, &elsewhere)), ..gone };
    assert_eq!(steps(&Seen { backend_status_in: Some(LATER), ..elsewhere }), ["write object"]);
}

/// As the PUT leaves it that is the only step.
pub(super) fn shown_at_once(seen: &Seen) -> Seen {
    let steps = decide(seen).steps;
    let [Step::WriteObject(json)] = &steps[..] else { panic!("{steps:?}") };
    Seen { object: Some(Arc::new(RawObject::from_json(json.clone()).unwrap())), ..seen.clone() }
}

// somebody writes the label of a VM on and off that has an address
#[rstest]
#[case::none_is_made_for_ipv6(families::refused(), &[])]
#[case::the_server_refuses_it(
    Seen { refused_writes: refused(&["EndpointSlice"]), slice: None, ..serving(&json!({})) }, &[])]
#[case::the_server_refuses_another(
    Seen { refused_writes: refused(&["EndpointSlice"]), ..selecting(&[backend("api-1", 11)], &[]) }, &["192.168.7.11"])]
#[case::of_too_many_listeners(of_too_many_listeners(), &["192.168.7.11"])]
fn where_no_slice_follows_a_vm_comes_and_goes_at_the_pace_of_backend_status(
    #[case] without: Seen,
    #[case] servers: &[&str],
) {
    let without = shown_at_once(&Seen { has_backends_field: true, ..without });
    assert_eq!(steps(&without), [""; 0]);
    let mut with = without.clone();
    with.backends.selected.backends = vec![backend("api-1", 11)];
    let waiting = Seen { backend_status_in: Some(LATER), ..with.clone() };
    assert_eq!((steps(&waiting), decide(&waiting).again), (vec![], Some(LATER)), "it comes");

    let shown = with_backend_status(&with);
    assert_eq!(steps(&shown), [""; 0]);
    let status = shown.object.as_ref().unwrap().json()["status"].clone();
    assert_eq!(status["backends"][0]["name"], "api-1");
    let reached = status["backendServers"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(reached, servers);
    let gone = Seen { object: shown.object.clone(), ..without };
    let waiting = Seen { backend_status_in: Some(LATER), ..gone.clone() };
    assert_eq!((steps(&waiting), decide(&waiting).again), (vec![], Some(LATER)), "it goes");
    assert_eq!(steps(&with_backend_status(&gone)), [""; 0]);
}

/// As one stands that was made before there was a limit: the Service has fewer ports, and the slice one VM.
fn of_too_many_listeners() -> Seen {
    let listeners: Vec<_> = (1..=101)
        .map(|n| json!({"name": format!("l{n}"), "port": n, "protocol": "TCP", "backendPort": n}))
        .collect();
    let seen = selecting(&[backend("api-1", 11)], &[]);
    let listeners = json!({"spec": {"listeners": listeners}});
    Seen { object: seen.object.as_ref().map(|lb| patched(lb, &listeners)), ..seen }
}

#[test]
fn a_vm_that_gets_a_usable_address_is_told_at_once() {
    let one = [backend("api-1", 11)];
    let mut idle = Seen { has_backends_field: true, ..selecting(&[], &[]) };
    idle.backends.selected.unusable.push(without_address("api-1"));
    let shown = with_backend_status(&idle).object;
    let served = json!({"status": {"backendServers": ["192.168.7.11"],
        "conditions": [{"type": "Ready", "status": "True", "reason": "AddressAllocated"}]}});
    let seen = Seen { has_backends_field: true, backend_status_in: Some(LATER), ..selecting(&one, &one) };
    let seen = Seen { object: shown.map(|lb| patched(&lb, &served)), ..seen };
    assert_eq!(steps(&seen), ["write object"]);
}

#[test]
fn the_number_of_vms_that_the_list_has_no_room_for_is_told_at_the_pace_of_backend_status() {
    let one = [backend("api-1", 11)];
    let listed =
        json!({"status": {"backends": [{"name": "api-1", "address": "192.168.7.11", "ready": true}]}});
    let mut seen = Seen { has_backends_field: true, ..selecting(&one, &one) };
    seen.object = seen.object.map(|lb| patched(&lb, &listed));
    seen.backends.selected.unusable = (0..1_500).map(|n| without_address(&format!("idle-{n:0>4}"))).collect();
    for more in [501, 502] {
        let shown = with_backend_status(&seen);
        let status = shown.object.as_ref().unwrap().json()["status"].clone();
        assert_eq!(status["backends"].as_array().map(Vec::len), Some(1_000));
        let told = format!("status.backends has no room for {more} more of the selected VMs");
        assert_eq!(status["conditions"][0]["message"], told);
        assert_eq!(steps(&shown), [""; 0], "it is told once");
        seen = shown;
        seen.backends.selected.unusable.push(without_address("idle-9999"));
    }
}

#[test]
fn where_the_crd_has_no_list_of_backends_the_condition_says_so() {
    let seen = probed([true, true], [true, true]);
    assert_eq!(steps(&seen), [""; 0], "it is told once");
    let silent = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "AddressAllocated"}]}});
    let seen = Seen { object: seen.object.as_ref().map(|lb| patched(lb, &silent)), ..seen };
    let status = written(&seen);
    assert_eq!(
        (&status["conditions"][0]["message"], status.get("backends")),
        (&json!(serve::NO_BACKENDS), None)
    );
    assert!(reason(&status).0, "it is served");
    let status = written(&Seen { has_backends_field: true, ..seen });
    assert_eq!(status["backends"].as_array().map(Vec::len), Some(2));
}

pub(super) const LATER: Duration = Duration::from_secs(3);

pub(super) fn backend(name: &str, last: u8) -> backends::Backend {
    let id = BackendId { uid: format!("uid-{name}"), address: [192, 168, 7, last].into() };
    backends::Backend { id, name: name.to_owned() }
}

/// Two backends, of which the slice and the prober say who is ready. The status is as the slice has it.
fn probed(slice: [bool; 2], prober: [bool; 2]) -> Seen {
    let both = [backend("api-0", 10), backend("api-1", 11)];
    let condition = if slice.contains(&true) {
        json!({"type": "Ready", "status": "True", "reason": "AddressAllocated", "message": serve::NO_BACKENDS})
    } else {
        let none = "running backend servers are not probed as healthy total:2, healthy:0";
        json!({"type": "Ready", "status": "False", "reason": "NoHealthyBackend",
            "message": format!("{none}; {}", serve::NO_BACKENDS)})
    };
    let mut seen = serving(&json!({"spec": {"healthCheck": {"port": 80}},
        "status": {"backendServers": ["192.168.7.10", "192.168.7.11"], "conditions": [condition]}}));
    let verdict = |ready| health_check::Verdict { ready, error: None };
    let ids = both.iter().map(|backend| backend.id.clone());
    seen.backends.verdicts = ids.zip(prober.map(verdict)).collect();
    let mut json = seen.slice.as_ref().unwrap().json();
    let dummy = json["endpoints"][0].clone();
    let endpoint = |(backend, ready): (&backends::Backend, bool)| {
        json!({"addresses": [backend.id.address.to_string()], "conditions": {"ready": ready},
            "targetRef": {"namespace": "shop", "name": backend.name, "uid": backend.id.uid}})
    };
    let endpoints = both.iter().zip(slice).map(endpoint);
    json["endpoints"] = endpoints.chain((!slice.contains(&true)).then_some(dummy)).collect();
    seen.slice = Some(Arc::new(RawObject::from_json(json).unwrap()));
    seen.backends.selected.backends = both.to_vec();
    seen
}

fn written_lately(backend: &backends::Backend, seen: Seen) -> Seen {
    Seen { backend_due_in: [(backend.id.clone(), LATER)].into(), ..seen }
}

#[test]
fn a_slice_that_says_only_who_is_ready_waits_and_every_other_goes_out_at_once() {
    let seen = probed([true, false], [true, true]);
    assert_eq!(steps(&seen), ["write slice readiness"]);

    let other = written_lately(&backend("api-2", 12), seen.clone());
    assert_eq!(steps(&other), ["write slice readiness"], "it is another backend that flaps");
    let seen = written_lately(&backend("api-1", 11), seen);
    assert_eq!((steps(&seen), decide(&seen).again), (vec![], Some(LATER)), "nor does the status tell");
    let mut more = seen.clone();
    more.backends.selected.backends.push(backend("api-2", 12));
    assert_eq!(steps(&more), ["write slice"]);
    let moved =
        json!({"spec": {"listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 81}]}});
    let moved = Seen { object: seen.object.as_ref().map(|lb| patched(lb, &moved)), ..seen };
    assert_eq!(steps(&moved), ["write slice", "write service"]);
}

#[rstest]
#[case::the_first_is_ready_again([false, false], [false, true], &["write slice readiness"])]
#[case::another_one_is_ready([true, false], [true, true], &[])]
#[case::the_last_one_dies([false, true], [false, false], &[])]
fn of_backends_that_wait_only_the_first_that_is_ready_again_goes_out_at_once(
    #[case] slice: [bool; 2],
    #[case] prober: [bool; 2],
    #[case] expected: &[&str],
) {
    assert_eq!(steps(&written_lately(&backend("api-1", 11), probed(slice, prober))), expected);
}

#[test]
fn what_does_not_depend_on_a_slice_that_waits_is_told_at_once() {
    let mut seen = written_lately(&backend("api-1", 11), probed([true, false], [true, true]));
    seen.has_backends_field = true;
    seen.service = service(Some("u1"), "10.0.1.7", "10.0.1.9");
    let status = written(&seen);
    assert_eq!(status["address"], "10.0.1.9");
    assert_eq!(reason(&status), (false, "WaitingForExternalIP".to_owned()));
    assert_eq!(status.get("backends"), None, "they are told with the slice");
    assert_eq!(decide(&seen).again, Some(LATER));
}

#[test]
fn the_condition_goes_by_the_slice_while_that_waits() {
    let seen = written_lately(&backend("api-0", 10), probed([true, false], [false, false]));
    assert_eq!((steps(&seen), decide(&seen).again), (vec![], Some(LATER)), "traffic still goes there");
}

#[test]
fn readiness_waits_for_its_turn_among_those_of_its_namespace_and_other_writes_of_a_slice_do_not() {
    let seen = Seen { slice_readiness_in: Some(LATER), ..probed([false, false], [false, true]) };
    assert_eq!(
        (steps(&seen), decide(&seen).again),
        (vec![], Some(LATER)),
        "also the first that is ready again"
    );
    let mut more = seen;
    more.backends.selected.backends.push(backend("api-2", 12));
    assert_eq!(steps(&more), ["write slice"]);
}

/// The slice has these backends, ready, and these VMs are selected.
pub(super) fn selecting(slice: &[backends::Backend], selected: &[backends::Backend]) -> Seen {
    let servers: Vec<_> = slice.iter().map(|backend| backend.id.address.to_string()).collect();
    let mut seen = serving(&json!({"status": {"backendServers": servers}}));
    if !slice.is_empty() {
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "AddressAllocated",
            "message": serve::NO_BACKENDS}]}});
        seen.object = seen.object.map(|lb| patched(&lb, &ready));
    }
    let mut json = seen.slice.as_ref().unwrap().json();
    let endpoint = |backend: &backends::Backend| {
        json!({"addresses": [backend.id.address.to_string()], "conditions": {"ready": true},
            "targetRef": {"namespace": "shop", "name": backend.name, "uid": backend.id.uid}})
    };
    if !slice.is_empty() {
        json["endpoints"] = slice.iter().map(endpoint).collect();
    }
    seen.slice = Some(Arc::new(RawObject::from_json(json).unwrap()));
    seen.backends.selected.backends = selected.to_vec();
    seen
}

// somebody writes the label of a VM on and off, or its guest agent reports one address and another
#[test]
fn a_vm_that_leaves_leaves_at_once_and_one_that_comes_back_soon_after_waits() {
    let (one, two) = (backend("api-1", 11), backend("api-2", 12));
    let moved = backends::Backend {
        id: BackendId { address: [192, 168, 7, 99].into(), ..one.id.clone() },
        ..one.clone()
    };
    let all = [two.clone(), one.clone()];
    let (without, with) = (&all[..1], &all[..]);
    assert_eq!(steps(&selecting(with, without)), ["write slice"]);
    assert_eq!(
        steps(&written_lately(&one, selecting(with, without))),
        ["write slice"],
        "also soon after it came"
    );
    assert_eq!(steps(&selecting(without, with)), ["write slice"], "nobody knows it");
    let back = written_lately(&one, selecting(without, with));
    assert_eq!((steps(&back), decide(&back).again), (vec![], Some(LATER)));
    let alone = written_lately(&one, selecting(&[], &all[1..]));
    assert_eq!((steps(&alone), decide(&alone).again), (vec![], Some(LATER)), "also as the only one");
    let elsewhere = [two.clone(), moved];
    assert_eq!(steps(&selecting(with, &elsewhere)), ["write slice"]);
    let again = written_lately(&one, selecting(with, &elsewhere));
    assert_eq!((steps(&again), decide(&again).again), (vec![], Some(LATER)), "its address moves to and fro");
    let new = [all.to_vec(), vec![backend("api-3", 13)]].concat();
    let beside_a_new_one = written_lately(&one, selecting(without, &new));
    assert_eq!(slice_written(&beside_a_new_one), ["api-2", "api-3"], "nobody takes it along");
    let leaving = Seen { slice_readiness_in: Some(LATER), ..selecting(with, without) };
    assert_eq!(steps(&leaving), ["write slice"], "who leaves waits for no turn");
}

/// As of a VM with several networks.
pub(super) fn on_the_management_network(vm: &str) -> Taken {
    let address = [192, 168, 7, 11].into();
    Taken { vm: vm.to_owned(), address, network: Network::Pod, instead: false }
}

#[test]
fn on_which_network_a_vm_is_reached_is_told_when_the_slice_has_it() {
    let all = [backend("api-1", 11), backend("api-2", 12)];
    let seen = |slice: &[backends::Backend]| {
        let mut seen = selecting(slice, &all);
        seen.backends.selected.taken = vec![on_the_management_network("api-1")];
        seen
    };
    let back = written_lately(&all[0], seen(&all[1..]));
    assert_eq!((steps(&back), decide(&back).again), (vec![], Some(LATER)));
    let shown = with_backend_status(&seen(&all));
    let told = condition::ready(&shown.object.as_ref().unwrap().status.as_ref().unwrap().conditions);
    let told = told.map_or("", |ready| ready.message.as_str());
    assert!(told.ends_with("VM api-1 is reached on the management network"), "{told}");

    // its guest reports an address on another network, and the slice takes it later
    let mut moved = Seen { backend_status_in: Some(LATER), ..shown };
    moved.backends.selected.taken[0].address = [192, 168, 8, 11].into();
    assert_eq!((steps(&moved), decide(&moved).again), (vec![], Some(LATER)));
}

/// The names of the VMs in the slice that is written.
pub(super) fn slice_written(seen: &Seen) -> Vec<String> {
    let steps = decide(seen).steps;
    let [Step::WriteSliceWithout { write: Write::Replace(slice), .. }] = &steps[..] else {
        panic!("{steps:?}")
    };
    let targets = slice["endpoints"].as_array().unwrap().iter().map(|endpoint| &endpoint["targetRef"]);
    let vms = targets.filter(|target| target["uid"] != names::DUMMY_ENDPOINT_UID);
    vms.map(|vm| vm["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn of_two_vms_that_swap_a_label_one_leaves_at_once_and_the_other_comes_back_in_its_own_time() {
    let (one, two) = (backend("api-1", 11), backend("api-2", 12));
    let (one, two) = (std::slice::from_ref(&one), std::slice::from_ref(&two));
    assert_eq!(slice_written(&selecting(one, two)), ["api-2"]);
    for turn in [None, Some(LATER * 2)] {
        let back = Seen { slice_readiness_in: turn, ..written_lately(&one[0], selecting(two, one)) };
        assert_eq!(slice_written(&back), Vec::<String>::new(), "who leaves waits for nobody");
        assert_eq!(decide(&back).again, Some(LATER));
    }
    let gone = written_lately(&one[0], selecting(&[], one));
    assert_eq!((steps(&gone), decide(&gone).again), (vec![], Some(LATER)));
}
