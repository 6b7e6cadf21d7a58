use harvester_api::annotations::{ADDITIONAL_INTERNAL_IPS, PROVIDED_NODE_IP};
use k8s_openapi::api::core::v1::NodeStatus;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// The VM of the Go program's vectors (docs/contract/cloud-controller-manager.md#25.2).
fn report(networks: &Value, interfaces: &Value, has_agent: bool) -> Report {
    let conditions = json!([{"type": "AgentConnected", "status": if has_agent { "True" } else { "False" }}]);
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm-a", "namespace": "team-a"},
        "spec": {"networks": networks}, "status": {"interfaces": interfaces, "conditions": conditions},
    });
    Report::of(&serde_json::from_value(instance).unwrap())
}

fn two_networks() -> Value {
    json!([{"name": "nic-0", "multus": {"networkName": "default/mgmt"}},
        {"name": "nic-1", "multus": {"networkName": "default/net2"}}])
}

fn usual() -> Report {
    let interfaces = json!([{"name": "nic-0", "ipAddresses": ["192.168.1.10", "192.168.1.200", "fd00::10", "fe80::1"]},
        {"name": "nic-1", "ipAddress": "10.0.0.5"}, {"ipAddresses": ["10.42.0.1"], "interfaceName": "cni0"}]);
    report(&two_networks(), &interfaces, true)
}

/// `nic-0` reports these.
fn reporting(ips: &[&str]) -> Report {
    report(&two_networks(), &json!([{"name": "nic-0", "ipAddresses": ips}]), true)
}

fn node(annotations: &[(&str, &str)]) -> Node {
    let annotations: serde_json::Map<_, _> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    serde_json::from_value(json!({"metadata": {"name": "n1", "annotations": annotations}})).unwrap()
}

fn rules(flags: &[(&str, &str)]) -> AddressRules {
    let of = |name| flags.iter().filter(move |(flag, _)| *flag == name).map(|(_, value)| *value);
    let nets = |name| {
        let single = |text: &str| text.parse::<IpAddr>().map_or_else(|_| text.parse().unwrap(), IpNet::from);
        of(name).map(single).collect()
    };
    AddressRules {
        management_network: of("management-network").next().map(str::to_owned),
        prefixes: nets("node-ip-cidr"),
        excluded: nets("node-exclude-ip-ranges"),
        ignore_annotations: of("disable-annotation").next().is_some(),
    }
}

fn decide(rules: &AddressRules, node: &Node, report: Option<Report>, announced: &[&str]) -> NodeAddresses {
    let vm = Vm { name: "vm-a".into(), report, ..Vm::default() };
    rules.addresses(node, &vm, |ip, _| announced.contains(&&*ip.to_string()))
}

/// As `I 192.168.1.10`.
fn texts(addresses: &NodeAddresses) -> Vec<String> {
    addresses.list.iter().map(|it| format!("{} {}", &it.type_[..1], it.address)).collect()
}

const PROVIDED: &str = PROVIDED_NODE_IP;
const HIDDEN: &str = ADDITIONAL_INTERNAL_IPS;
const CIDR: &str = "node-ip-cidr";
const EXCLUDED: &str = "node-exclude-ip-ranges";
const NETWORK: &str = "management-network";
const DISABLED: (&str, &str) = ("disable-annotation", "");

/// The recipes of the published documents, as they are printed there.
#[rstest]
#[case::many_networks(&[(NETWORK, "default/vlan-100")], &["I 192.168.100.10", "E 192.168.100.200", "E 192.168.1.10", "I fd00::10"])]
#[case::two_families_on_one_nic(&[(NETWORK, "default/vlan-100"), (CIDR, "192.168.100.0/25")],
    &["I 192.168.100.10", "E 192.168.100.200", "E 192.168.1.10", "E fd00::10"])]
#[case::a_second_subnet_on_one_nic(
    &[(NETWORK, "default/vlan-100"), (CIDR, "192.168.100.0/25"), (EXCLUDED, "192.168.100.128/25")],
    &["I 192.168.100.10", "E 192.168.1.10", "E fd00::10"])]
#[case::all_of_them(
    &[(NETWORK, "default/vlan-100"), (CIDR, "192.168.100.0/25"), (EXCLUDED, "192.168.100.128/25"), DISABLED],
    &["I 192.168.100.10", "E 192.168.1.10", "E fd00::10"])]
fn the_documented_recipes_choose_the_addresses_that_they_promise(
    #[case] flags: &[(&str, &str)],
    #[case] expected: &[&str],
) {
    let networks = json!([{"name": "nic-0", "multus": {"networkName": "default/vlan-1"}},
        {"name": "nic-1", "multus": {"networkName": "default/vlan-100"}}]);
    let ips = ["192.168.100.10", "192.168.100.200", "192.168.1.10", "fd00::10"];
    let interfaces =
        json!([{"name": "nic-0", "ipAddress": "10.0.0.5"}, {"name": "nic-1", "ipAddresses": ips}]);
    // the last recipe shall not mind what kubelet was told
    let annotations = if flags.contains(&DISABLED) { &[(PROVIDED, "192.168.1.10")][..] } else { &[] };
    let addresses =
        decide(&rules(flags), &node(annotations), Some(report(&networks, &interfaces, true)), &[]);
    assert_eq!(
        (texts(&addresses), addresses.problem),
        (expected.iter().map(ToString::to_string).collect(), None)
    );
}

// docs/contract/cloud-controller-manager.md#8.6 and #25.2: of the Go program's results, with those of its framework
#[rstest]
#[case::no_flags(&[], &[], &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::management_network(&[(NETWORK, "default/net2")], &[], &["I 10.0.0.5"])]
#[case::cidr(&[(CIDR, "192.168.1.200")], &[], &["E 192.168.1.10", "I 192.168.1.200", "E fd00::10"])]
#[case::cidr_and_excluded(&[(CIDR, "192.168.1.200"), (EXCLUDED, "192.168.1.0/24")], &[], &["I 192.168.1.200", "E fd00::10"])]
#[case::cidrs_of_both_families(&[(CIDR, "192.168.1.128/25"), (CIDR, "fd00::/64")], &[],
    &["E 192.168.1.10", "I 192.168.1.200", "I fd00::10"])]
#[case::host_bits(&[(CIDR, "192.168.1.3/24")], &[], &["I 192.168.1.10", "E 192.168.1.200", "E fd00::10"])]
#[case::cidr_of_nothing(&[(CIDR, "172.16.0.0/12")], &[], &["E 192.168.1.10", "E 192.168.1.200", "E fd00::10"])]
#[case::excluded_alone(&[(EXCLUDED, "192.168.1.0/24")], &[], &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::provided(&[], &[(PROVIDED, "192.168.1.200")], &["I 192.168.1.200", "E 192.168.1.10", "E fd00::10"])]
// the kubelet's choice before the flag, and its network where no flag names one
#[case::provided_before_cidr(&[(CIDR, "192.168.1.10")], &[(PROVIDED, "192.168.1.200")],
    &["I 192.168.1.200", "E 192.168.1.10", "E fd00::10"])]
#[case::provided_on_another_network(&[], &[(PROVIDED, "10.0.0.5")], &["I 10.0.0.5"])]
// docs/contract/cloud-controller-manager.md#N6: the Go program compared the whole text, and made InternalIPs of none
#[case::provided_both(&[], &[(PROVIDED, "192.168.1.10,fd00::10")], &["I 192.168.1.10", "I fd00::10", "E 192.168.1.200"])]
#[case::provided_ipv6_first(&[], &[(PROVIDED, "fd00::10,192.168.1.200")],
    &["I fd00::10", "I 192.168.1.200", "E 192.168.1.10"])]
#[case::provided_with_blanks(&[], &[(PROVIDED, " fd00::10 , 192.168.1.10 ")],
    &["I fd00::10", "I 192.168.1.10", "E 192.168.1.200"])]
#[case::provided_in_another_form(&[], &[(PROVIDED, "FD00:0:0::0010")],
    &["I fd00::10", "E 192.168.1.10", "E 192.168.1.200"])]
#[case::provided_empty(&[], &[(PROVIDED, "")], &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::hidden(&[], &[(HIDDEN, r#"["192.168.1.200"]"#)], &["I 192.168.1.10", "I fd00::10"])]
#[case::hidden_in_another_form(&[], &[(PROVIDED, "192.168.1.10"), (HIDDEN, r#"["FD00::0010"]"#)],
    &["I 192.168.1.10", "E 192.168.1.200"])]
#[case::no_internal_ip_is_hidden(&[], &[(HIDDEN, r#"["192.168.1.10"]"#)],
    &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::hidden_by_the_flag_with_a_cidr(&[(CIDR, "192.168.1.10")], &[(HIDDEN, r#"["192.168.1.200"]"#)],
    &["I 192.168.1.10", "E 192.168.1.200", "E fd00::10"])]
#[case::hidden_null(&[], &[(HIDDEN, "null")], &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::hidden_none(&[], &[(HIDDEN, "[]")], &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
// docs/contract/cloud-controller-manager.md#N7: the flag reached only half of the Go program
#[case::annotations_disabled(&[DISABLED], &[(PROVIDED, "192.168.1.200"), (HIDDEN, r#"["192.168.1.200"]"#)],
    &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::a_node_that_says_otherwise_is_not_refused(&[DISABLED, (CIDR, "192.168.1.200")], &[(PROVIDED, "10.9.9.9")],
    &["E 192.168.1.10", "I 192.168.1.200", "E fd00::10"])]
fn flags_and_annotations_choose_among_the_addresses_of_one_network(
    #[case] flags: &[(&str, &str)],
    #[case] annotations: &[(&str, &str)],
    #[case] expected: &[&str],
) {
    let addresses = decide(&rules(flags), &node(annotations), Some(usual()), &[]);
    assert_eq!(texts(&addresses), expected);
    assert_eq!(addresses.faults, Vec::<String>::new());
    let has_internal = expected.iter().any(|text| text.starts_with('I'));
    assert_eq!(addresses.problem.is_none(), has_internal, "{:?}", addresses.problem);
}

#[rstest]
#[case::as_kubevirt_says(&["192.168.1.10", "192.168.1.10"], &[], &["I 192.168.1.10"])]
// docs/contract/cloud-controller-manager.md#N5: one entry that cannot be read took all others along
#[case::one_is_unreadable(&["bad", "192.168.1.10", "fe80::1%eth0"], &[], &["I 192.168.1.10"])]
#[case::of_no_node(&["127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "0.0.0.0", "::1", "::", "ff02::1", "fe80::1",
    "192.168.1.10"], &[], &["I 192.168.1.10"])]
#[case::ipv6_in_any_form(&["FD00:0::10"], &[], &["I fd00::10"])]
#[case::ipv4_in_ipv6(&["::ffff:192.168.1.10"], &[], &["I 192.168.1.10"])]
// docs/contract/cloud-controller-manager.md#N10
#[case::announced(&["192.168.1.77", "192.168.1.10", "fd00::77", "fd00::10"], &["192.168.1.77", "fd00::77"],
    &["I 192.168.1.10", "I fd00::10"])]
fn an_address_that_no_node_can_have_is_left_out(
    #[case] reported: &[&str],
    #[case] announced: &[&str],
    #[case] expected: &[&str],
) {
    let addresses = decide(&AddressRules::default(), &node(&[]), Some(reporting(reported)), announced);
    assert_eq!(texts(&addresses), expected);
}

#[test]
fn an_address_at_which_the_kubelet_serves_is_the_nodes_whoever_announces_it() {
    let node = node(&[(PROVIDED, "192.168.1.10")]);
    let addresses = decide(&AddressRules::default(), &node, Some(usual()), &["192.168.1.10", "fd00::10"]);
    assert_eq!(texts(&addresses), ["I 192.168.1.10", "E 192.168.1.200"]);
}

#[rstest]
#[case::first_network(two_networks(), None, &["I 192.168.1.10"])]
#[case::behind_the_pod_network(json!([{"name": "pod", "pod": {}}, {"name": "nic-1", "multus": {"networkName": "default/net2"}}]),
    None, &["I 10.0.0.5"])]
// docs/contract/cloud-controller-manager.md#N4
#[case::pod_network_alone(json!([{"name": "pod", "pod": {}}]), None, &["I 10.52.0.7"])]
// docs/contract/cloud-controller-manager.md#N8: the VM's namespace, team-a
#[case::bare_name(json!([{"name": "nic-0", "multus": {"networkName": "mgmt"}}]), Some("team-a/mgmt"), &["I 192.168.1.10"])]
#[case::bare_name_in_another_namespace(json!([{"name": "nic-0", "multus": {"networkName": "mgmt"}}]), Some("default/mgmt"),
    &[])]
#[case::second_of_two_with_one_network(json!([{"name": "none", "multus": {"networkName": "default/mgmt"}},
    {"name": "nic-0", "multus": {"networkName": "default/mgmt"}}]), Some("default/mgmt"), &[])]
fn one_network_counts(#[case] networks: Value, #[case] wanted: Option<&str>, #[case] expected: &[&str]) {
    let interfaces = json!([{"name": "nic-0", "ipAddresses": ["192.168.1.10"]}, {"name": "nic-1", "ipAddress": "10.0.0.5"},
        {"name": "pod", "ipAddresses": ["10.52.0.7", "127.0.0.1"]}]);
    let rules = AddressRules { management_network: wanted.map(str::to_owned), ..AddressRules::default() };
    let addresses = decide(&rules, &node(&[]), Some(report(&networks, &interfaces, true)), &[]);
    assert_eq!(texts(&addresses), expected);
}

#[rstest]
#[case::not_running(None, &[], &[], &[], true, "VM vm-a of node n1 is not running: start it")]
#[case::no_agent(Some(report(&two_networks(), &json!([{"name": "nic-0"}]), false)), &[], &[], &[], true,
    "the guest agent of VM vm-a is not connected: install and start qemu-guest-agent in the VM")]
#[case::an_agent_without_address(Some(reporting(&[])), &[], &[], &[], true,
    "the guest agent of VM vm-a reports no address on network default/mgmt: give the VM one, by DHCP or in the VM")]
#[case::all_left_out(Some(reporting(&["fe80::1", "bad", "10.0.0.9"])), &[], &[], &["10.0.0.9"], true,
    "VM vm-a reports no address for a node on network default/mgmt, only fe80::1 (link-local), bad (no IP address), \
     10.0.0.9 (announced for a Service): give it one, by DHCP or in the VM")]
// docs/contract/cloud-controller-manager.md#N9: a wrong flag took the addresses of all Nodes
#[case::network_not_found(Some(usual()), &[(NETWORK, "default/none")], &[], &[], false,
    "VM vm-a has no network default/none (it has network default/mgmt, network default/net2): correct \
     --management-network, or give the VM an interface there")]
#[case::no_network(Some(report(&json!([]), &json!([]), true)), &[], &[], &[], false,
    "VM vm-a has no network: give it an interface")]
#[case::provided_elsewhere(Some(usual()), &[(NETWORK, "default/net2")], &[(PROVIDED, "192.168.1.10")], &[], false,
    "the kubelet of node n1 serves at 192.168.1.10 (--node-ip), which VM vm-a does not report on network default/net2 \
     (10.0.0.5): set --management-network to the network of that address, or correct --node-ip")]
#[case::one_of_two_provided(Some(usual()), &[], &[(PROVIDED, "192.168.1.10,fd00::99")], &[], false,
    "the kubelet of node n1 serves at fd00::99 (--node-ip), which VM vm-a does not report on network default/mgmt \
     (192.168.1.10, 192.168.1.200, fd00::10): set --management-network to the network of that address, or correct \
     --node-ip")]
#[case::outside_all_prefixes(Some(usual()), &[(CIDR, "172.16.0.0/12"), (EXCLUDED, "0.0.0.0/0"), (EXCLUDED, "::/0")], &[], &[],
    false, "--node-ip-cidr (172.16.0.0/12) contains no address that VM vm-a reports on network default/mgmt \
     (192.168.1.10, 192.168.1.200, fd00::10): correct the flag")]
fn a_vm_without_address_says_what_is_missing(
    #[case] report: Option<Report>,
    #[case] flags: &[(&str, &str)],
    #[case] annotations: &[(&str, &str)],
    #[case] announced: &[&str],
    #[case] is_passing: bool,
    #[case] sentence: &str,
) {
    let addresses = decide(&rules(flags), &node(annotations), report, announced);
    let problem = Some(AddressProblem { sentence: sentence.to_owned(), is_passing });
    assert_eq!((addresses.list, addresses.problem), (vec![], problem));
}

#[rstest]
#[case::no_address("worker-1", "\"worker-1\"")]
#[case::two_of_a_family("10.0.0.1,10.0.0.2", "\"10.0.0.1,10.0.0.2\"")]
#[case::three("10.0.0.1,fd00::1,10.0.0.2", "\"10.0.0.1,fd00::1,10.0.0.2\"")]
#[case::half("10.0.0.1,", "\"10.0.0.1,\"")]
fn a_kubelets_address_that_cannot_be_read_changes_nothing(#[case] value: &str, #[case] part: &str) {
    let addresses = decide(&AddressRules::default(), &node(&[(PROVIDED, value)]), Some(usual()), &[]);
    let problem = addresses.problem.unwrap();
    assert!(addresses.list.is_empty() && !problem.is_passing);
    assert!(
        problem.sentence.starts_with(&format!("annotation {PROVIDED} of node n1 is {part}: use")),
        "{problem:?}"
    );
}

#[rstest]
#[case::no_json("192.168.1.200", &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::no_list(r#"{"a": "192.168.1.200"}"#, &["I 192.168.1.10", "E 192.168.1.200", "I fd00::10"])]
#[case::one_is_no_address(r#"["x", "192.168.1.200"]"#, &["I 192.168.1.10", "I fd00::10"])]
fn a_list_of_hidden_addresses_that_cannot_be_read_is_told(#[case] value: &str, #[case] expected: &[&str]) {
    let addresses = decide(&AddressRules::default(), &node(&[(HIDDEN, value)]), Some(usual()), &[]);
    assert_eq!(
        (texts(&addresses), addresses.problem),
        (expected.iter().map(|it| (*it).to_owned()).collect(), None)
    );
    assert!(addresses.faults.len() == 1 && addresses.faults[0].contains(HIDDEN), "{:?}", addresses.faults);
}

#[test]
fn a_value_of_any_length_gives_a_short_sentence() {
    let long = "ä".repeat(10_000);
    let node = node(&[(PROVIDED, &long), (HIDDEN, &long)]);
    let many: Vec<_> = (0..100).map(|_| &*long).collect();
    let addresses = decide(&AddressRules::default(), &node, Some(usual()), &[]);
    let left_out = decide(&AddressRules::default(), &self::node(&[]), Some(reporting(&many)), &[]);
    let sentences = [addresses.problem, left_out.problem].map(|problem| problem.unwrap().sentence);
    for sentence in sentences.iter().chain(&addresses.faults) {
        assert!(sentence.len() < 900, "{sentence}");
    }
}

#[test]
fn who_knows_the_addresses_of_services_is_told_which_the_node_has_as_internal_ip() {
    let vm = Vm { report: Some(reporting(&["10.0.0.1", "10.0.0.2", "fd00::2"])), ..Vm::default() };
    let mut node = node(&[]);
    let entry = |type_: &str, address: &str| NodeAddress { type_: type_.into(), address: address.into() };
    let list = vec![entry("ExternalIP", "10.0.0.1"), entry("InternalIP", "10.0.0.2")];
    node.status = Some(NodeStatus { addresses: Some(list.clone()), ..NodeStatus::default() });
    // Services announce all, and take none from the Node that it has as InternalIP
    let addresses = AddressRules::default().addresses(&node, &vm, |_, is_of_node| !is_of_node);
    assert_eq!(addresses.list, list[1..]);
}

proptest::proptest! {
    #[test]
    fn whatever_a_vm_reports_and_people_write_the_list_is_one_that_a_node_may_have(
        reported in proptest::collection::vec("10\\.0\\.0\\.[0-3]|fd00::[0-3]|fe80::1|.{0,6}", 0..8),
        provided in "|10\\.0\\.0\\.[0-3](,fd00::[0-3])?|.{0,8}",
        hidden in "|\\[\"10\\.0\\.0\\.[0-3]\"\\]|.{0,8}",
        cidr in proptest::option::of("10\\.0\\.0\\.[0-3]/3[0-2]"),
        announced in 0..4_u8,
    ) {
        let reported: Vec<_> = reported.iter().map(String::as_str).collect();
        let flags: Vec<_> = cidr.iter().map(|cidr| (CIDR, cidr.as_str())).collect();
        let announced = format!("10.0.0.{announced}");
        let node = node(&[(PROVIDED, &provided), (HIDDEN, &hidden)]);
        let addresses = decide(&rules(&flags), &node, Some(reporting(&reported)), &[&announced]);
        let internal: Vec<IpAddr> = addresses.list.iter().filter(|it| it.type_ == INTERNAL)
            .map(|it| it.address.parse().unwrap()).collect();
        proptest::prop_assert!(internal.iter().filter(|ip| ip.is_ipv4()).count() < 2);
        proptest::prop_assert!(internal.iter().filter(|ip| ip.is_ipv6()).count() < 2);
        let all: std::collections::BTreeSet<_> = addresses.list.iter().map(|it| &it.address).collect();
        proptest::prop_assert_eq!(all.len(), addresses.list.len(), "an address twice");
        proptest::prop_assert_eq!(internal.is_empty(), addresses.problem.is_some());
        proptest::prop_assert!(provided.contains(&announced) || !all.contains(&announced));
    }
}

/// kube-vip has not taken away the address of a Service that is gone, and the kernel lists it first.
#[rstest]
#[case::stays(&[("InternalIP", "198.18.0.5"), ("InternalIP", "fd00::5")],
    &["E 198.18.0.77", "I 198.18.0.5", "I fd00::5", "E fd00::6"])]
#[case::is_not_reported_any_more(&[("InternalIP", "198.18.0.99")],
    &["I 198.18.0.77", "E 198.18.0.5", "I fd00::5", "E fd00::6"])]
#[case::was_external(&[("ExternalIP", "198.18.0.5")], &["I 198.18.0.77", "E 198.18.0.5", "I fd00::5", "E fd00::6"])]
fn an_internal_ip_stays_while_it_is_reported(#[case] there: &[(&str, &str)], #[case] expected: &[&str]) {
    let list: Vec<_> = there.iter().map(|(kind, ip)| json!({"type": kind, "address": ip})).collect();
    let mut node = node(&[]);
    node.status = serde_json::from_value(json!({"addresses": list})).unwrap();
    let report = reporting(&["198.18.0.77", "198.18.0.5", "fd00::5", "fd00::6"]);
    assert_eq!(texts(&decide(&rules(&[]), &node, Some(report), &[])), expected);
}
