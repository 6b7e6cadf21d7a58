use rstest::rstest;
use serde_json::json;

use super::*;

const OWN: &str = "52:54:00:00:00:01";
const OTHER: &str = "52:54:00:00:00:02";

fn machine(name: &str, addresses: &[&str]) -> Machine {
    let addresses = addresses.iter().map(|one| (*one).to_owned()).collect();
    Machine { name: name.to_owned(), addresses, own_volumes: 0 }
}

fn away<T>() -> Asked<T> {
    Err("the host is away".to_owned())
}

fn seen(
    same_name: Asked<Option<Machine>>,
    all: Option<Asked<Vec<Machine>>>,
    noted: Asked<Option<&str>>,
) -> Seen {
    Seen {
        node: "node-a".to_owned(),
        own: BTreeSet::from([OWN.to_owned()]),
        same_name,
        all,
        noted: noted.map(|noted| noted.map(str::to_owned)),
    }
}

/// `name`, `name!` with a doubt, `name?` to be asked again, or nothing.
fn said(id: &NodeId) -> String {
    match id {
        NodeId::Settled { name, doubt: None } => name.clone(),
        NodeId::Settled { name, doubt: Some(_) } => format!("{name}!"),
        NodeId::Noted { name, .. } => format!("{name}?"),
        NodeId::Unknown { .. } => String::new(),
    }
}

// docs/contract/csi-driver.md#node-id
#[rstest]
#[case::same_name(Ok(Some(machine("node-a", &[OTHER, OWN]))), None, away(), "node-a")]
#[case::another_name(Ok(None), Some(Ok(vec![machine("vm-9", &[OTHER]), machine("vm-1", &[OWN])])), Ok(None), "vm-1")]
#[case::somebody_elses_name(
    Ok(Some(machine("node-a", &[OTHER]))),
    Some(Ok(vec![machine("node-a", &[OTHER]), machine("vm-1", &[OWN])])),
    Ok(Some("node-a")),
    "vm-1"
)]
#[case::found_though_the_first_question_failed(away(), Some(Ok(vec![machine("vm-1", &[OWN])])), Ok(None), "vm-1")]
#[case::none_has_it(Ok(None), Some(Ok(vec![machine("vm-9", &[OTHER])])), Ok(None), "node-a!")]
#[case::none_has_it_and_kubelet_knows(Ok(None), Some(Ok(vec![])), Ok(Some("vm-1")), "vm-1!")]
#[case::none_has_it_yet(away(), Some(Ok(vec![])), Ok(None), "")]
#[case::two_have_it(Ok(None), Some(Ok(vec![machine("vm-1", &[OWN]), machine("vm-2", &[OWN])])), Ok(None), "")]
#[case::two_have_it_and_kubelet_knows(
    Ok(None),
    Some(Ok(vec![machine("vm-1", &[OWN]), machine("vm-2", &[OWN])])),
    Ok(Some("vm-2")),
    "vm-2!"
)]
#[case::host_away(away(), Some(away()), Ok(Some("vm-1")), "vm-1?")]
#[case::host_away_at_the_first_start(away(), Some(away()), Ok(None), "")]
#[case::both_away(away(), Some(away()), away(), "")]
#[case::list_refused(Ok(None), Some(away()), Ok(Some("vm-1")), "vm-1?")]
fn the_mac_addresses_decide_and_kubelets_note_stands_in_for_the_host(
    #[case] same_name: Asked<Option<Machine>>,
    #[case] all: Option<Asked<Vec<Machine>>>,
    #[case] noted: Asked<Option<&str>>,
    #[case] expected: &str,
) {
    let seen = seen(same_name, all, noted);
    assert_eq!(said(&decide(&seen)), expected);
    // what stands in for the host may be the name of another cluster's machine
    let is_shown = !expected.is_empty() && !expected.ends_with(['!', '?']);
    assert_eq!(own_machine(&seen).name(), is_shown.then_some(expected));
}

// docs/contract/csi-driver.md#cluster-label
#[rstest]
#[case::confirmed(Ok(Some(machine("node-a", &[OWN]))), None, "Confirmed")]
#[case::none_has_it(Ok(None), Some(Ok(vec![machine("vm-9", &[OTHER])])), "None")]
#[case::none_has_it_and_the_first_question_failed(away(), Some(Ok(vec![])), "NotAsked")]
#[case::two_have_it(Ok(None), Some(Ok(vec![machine("vm-1", &[OWN]), machine("vm-2", &[OWN])])), "Several")]
#[case::host_away(away(), Some(away()), "NotAsked")]
#[case::list_refused(Ok(None), Some(away()), "NotAsked")]
fn that_we_are_no_machine_of_the_host_is_for_the_host_to_say(
    #[case] same_name: Asked<Option<Machine>>,
    #[case] all: Option<Asked<Vec<Machine>>>,
    #[case] expected: &str,
) {
    for noted in [Ok(None), Ok(Some("vm-1")), away()] {
        let own = own_machine(&seen(same_name.clone(), all.clone(), noted));
        assert!(format!("{own:?}").starts_with(expected), "{own:?}");
    }
}

#[test]
fn without_an_address_of_our_own_kubelets_note_counts_and_then_the_nodes_name() {
    let own = BTreeSet::new();
    let seen = |noted| Seen { own: own.clone(), ..seen(Ok(Some(machine("node-a", &[OTHER]))), None, noted) };
    assert_eq!(said(&decide(&seen(Ok(Some("vm-1"))))), "vm-1!");
    assert_eq!(said(&decide(&seen(Ok(None)))), "node-a!");
    assert_eq!(said(&decide(&Seen { node: String::new(), ..seen(Ok(None)) })), "");
}

#[test]
fn all_machines_are_read_only_where_the_one_of_our_name_is_not_ours() {
    let own = BTreeSet::from([OWN.to_owned()]);
    assert!(!needs_all(&own, &Ok(Some(machine("node-a", &[OWN])))));
    assert!(needs_all(&own, &Ok(Some(machine("node-a", &[OTHER])))));
    assert!(needs_all(&own, &Ok(None)) && needs_all(&own, &away()));
    assert!(!needs_all(&BTreeSet::new(), &Ok(None)));
}

#[test]
fn why_a_machine_is_unknown_names_what_both_clusters_said() {
    let Seen { node, own, .. } = seen(away(), None, Ok(None));
    let seen = Seen { node, own, same_name: away(), all: Some(away()), noted: Err("no CSINode".to_owned()) };
    assert_eq!(decide(&seen), NodeId::Unknown { why: "the host is away; no CSINode".to_owned() });
}

#[test]
fn calicos_and_loopbacks_addresses_are_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let interface = |name: &str, address: Option<&str>| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        if let Some(address) = address {
            fs::write(path.join("address"), address).unwrap();
        }
    };
    interface("lo", Some("00:00:00:00:00:00\n"));
    interface("cali1", Some("ee:ee:ee:ee:ee:ee\n"));
    interface("enp1s0", Some("52:54:00:AB:CD:EF\n"));
    interface("ib0", Some("80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01\n"));
    interface("tun0", Some("\n"));
    interface("gone", None);
    fs::write(folder.path().join("bonding_masters"), "").unwrap();
    assert_eq!(own_addresses(folder.path()).unwrap(), BTreeSet::from(["52:54:00:ab:cd:ef".to_owned()]));
    assert!(own_addresses(&folder.path().join("none")).is_err());
}

const THIRD: &str = "52:54:00:00:00:03";

// docs/contract/csi-driver.md#node-id
#[rstest]
#[case::of_the_spec(
    json!({"networks": [{"name": "a"}], "domain": {"devices": {"interfaces": [{"name": "a", "macAddress": OWN}]}}}),
    json!([]),
    &[OWN]
)]
#[case::shown_for_a_network_of_the_spec(json!({"networks": [{"name": "a"}]}), json!([{"name": "a", "mac": OWN}]), &[OWN])]
#[case::told_by_the_guest_agent(
    json!({"networks": [{"name": "a"}]}),
    json!([{"name": "a", "mac": OWN}, {"interfaceName": "br0", "mac": OTHER, "infoSource": "guest-agent"}]),
    &[OWN]
)]
#[case::told_under_a_name_that_the_spec_lacks(json!({"networks": [{"name": "a"}]}), json!([{"name": "b", "mac": OTHER}]), &[])]
#[case::shown_otherwise_than_the_spec_has_it(
    json!({"domain": {"devices": {"interfaces": [{"name": "a", "macAddress": OWN}, {"name": "b"}]}}}),
    json!([{"name": "a", "mac": OTHER}, {"name": "b", "mac": THIRD}]),
    &[OWN, THIRD]
)]
#[case::in_its_one_form(
    json!({"networks": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
    json!([{"name": "a", "mac": "52:54:00:00:00:0A"}, {"name": "b", "mac": "ee:ee:ee:ee:ee:ee"}, {"name": "c"}]),
    &["52:54:00:00:00:0a"]
)]
#[case::strange_types(json!({"domain": {"devices": {"interfaces": [7, {"name": 7}]}}}), json!([{"mac": OWN}]), &[])]
fn no_guest_agent_gives_its_machine_the_address_of_another(
    #[case] spec: Value,
    #[case] shown: Value,
    #[case] expected: &[&str],
) {
    let instance = json!({"metadata": {"name": "vm-1"}, "spec": spec, "status": {"interfaces": shown}});
    let instance: VirtualMachineInstance = serde_json::from_value(instance).unwrap();
    assert_eq!(Machine::from(&instance), machine("vm-1", expected));
}

// docs/contract/csi-driver.md#limits
#[rstest]
#[case::none(json!({}), 0)]
#[case::with_plugged_ones(
    json!({"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}, {"name": "init", "cloudInitNoCloud": {}},
        {"name": "data", "dataVolume": {"name": "data", "hotpluggable": false}},
        {"name": "pvc-1", "persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": true}},
        {"name": "plugged", "dataVolume": {"name": "plugged", "hotpluggable": true}}]}),
    3
)]
#[case::an_empty_drive(
    json!({"volumes": [{"name": "root", "containerDisk": {}}],
        "domain": {"devices": {"disks": [{"name": "root"}, {"name": "cd"}]}}}),
    2
)]
#[case::strange_types(json!({"volumes": [7, {"name": 7}], "domain": {"devices": {"disks": "no"}}}), 2)]
fn volumes_that_were_plugged_in_are_none_of_the_machines_own(#[case] spec: Value, #[case] expected: usize) {
    let instance = json!({"metadata": {"name": "vm-1"}, "spec": spec});
    let instance: VirtualMachineInstance = serde_json::from_value(instance).unwrap();
    assert_eq!(Machine::from(&instance).own_volumes, expected);
}

// docs/contract/csi-driver.md#limits
#[rstest]
#[case::same_name(Ok(Some(Machine { own_volumes: 3, ..machine("node-a", &[OWN]) })), None, Some(253))]
#[case::another_name(
    Ok(Some(Machine { own_volumes: 9, ..machine("node-a", &[OTHER]) })),
    Some(Ok(vec![machine("vm-9", &[OTHER]), Machine { own_volumes: 2, ..machine("vm-1", &[OWN]) }])),
    Some(254)
)]
#[case::full_of_its_own(Ok(Some(Machine { own_volumes: 256, ..machine("node-a", &[OWN]) })), None, Some(1))]
#[case::none_has_our_address(Ok(Some(Machine { own_volumes: 9, ..machine("node-a", &[OTHER]) })), Some(Ok(vec![])), None)]
#[case::host_away(away(), Some(away()), None)]
fn the_machines_own_volumes_take_the_room_of_others(
    #[case] same_name: Asked<Option<Machine>>,
    #[case] all: Option<Asked<Vec<Machine>>>,
    #[case] expected: Option<u32>,
) {
    assert_eq!(room(&seen(same_name, all, Ok(None))), expected);
}
