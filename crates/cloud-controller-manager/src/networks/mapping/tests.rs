use rstest::rstest;

use super::*;

const MGMT: &str = "default/mgmt";
const NET2: &str = "default/net2";

fn nics(node: &str, interfaces: &[(&str, &str)]) -> Nics {
    let is_heard = interfaces.iter().any(|(_, name)| !name.is_empty());
    let interfaces = interfaces.iter().map(|(network, name)| ((*network).to_owned(), (*name).to_owned()));
    Nics { node: node.to_owned(), is_heard, interfaces: interfaces.collect() }
}

/// Its guest agent reports the interface on the pod network.
fn on_the_pod_network(node: &str) -> Nics {
    Nics { is_heard: true, ..nics(node, &[]) }
}

fn both(node: &str) -> Nics {
    nics(node, &[(MGMT, "enp1s0"), (NET2, "enp2s0")])
}

fn named(name: &str) -> Interface {
    Interface::Named(name.to_owned())
}

// docs/contract/cloud-controller-manager.md#17.4
#[rstest]
#[case::alike(vec![both("a"), both("b")], named("enp2s0"))]
#[case::one_node(vec![both("a")], named("enp2s0"))]
// a silent agent takes nothing away
#[case::silent_agent(vec![both("a"), nics("b", &[(MGMT, ""), (NET2, "")])], named("enp2s0"))]
#[case::not_running(vec![both("a"), nics("b", &[])], named("enp2s0"))]
#[case::no_agent_at_all(vec![nics("a", &[(MGMT, ""), (NET2, "")])], Interface::Unknown)]
#[case::no_node(vec![], Interface::Unknown)]
fn the_interface_of_a_network_is_the_one_that_all_nodes_report(
    #[case] all: Vec<Nics>,
    #[case] expected: Interface,
) {
    assert_eq!(interface(NET2, &all, &Mapping::Absent), expected);
    assert_eq!(interface("", &all, &Mapping::Absent), Interface::NotAsked);
}

#[test]
fn vms_on_the_pod_network_alone_have_no_network_and_their_agents_need_no_start() {
    let all = [on_the_pod_network("a"), nics("b", &[])];
    let Interface::OnNoVm(why) = interface(NET2, &all, &Mapping::Absent) else { panic!("found") };
    let told = "no VM of this cluster has network default/net2 (they have the pod network alone): make the Service anew with another";
    assert!(why.starts_with(told), "{why}");
    let Interface::OnNoVm(why) = interface("net2", &all, &Mapping::Absent) else { panic!("found") };
    assert!(why.contains("written as namespace/name"), "{why}");

    let mapping = Mapping::read(r#"{"default/net2":"enp2s0"}"#);
    assert_eq!(interface(NET2, &all, &mapping), named("enp2s0"), "a person may know more");
    let has_it = [on_the_pod_network("a"), nics("b", &[(NET2, "")])];
    assert_eq!(interface(NET2, &has_it, &Mapping::Absent), Interface::Unknown, "its agent is silent");
}

#[rstest]
#[case::nowhere(vec![nics("a", &[(MGMT, "enp1s0")])], "no VM of this cluster has network default/net2 (they have default/mgmt)")]
#[case::missing_on_one(vec![both("a"), nics("b", &[(MGMT, "enp1s0")])], "(enp2s0 on node a, none on node b)")]
#[case::swapped(vec![both("a"), nics("b", &[(NET2, "enp1s0")])], "(enp2s0 on node a, enp1s0 on node b)")]
#[case::not_reported(vec![nics("a", &[(MGMT, "enp1s0"), (NET2, "")])], "(none on node a)")]
#[case::name_too_long(vec![nics("a", &[(NET2, "sixteen-letters-")])], "\"sixteen-letters-\", and an interface has at most 15")]
#[case::slash(vec![nics("a", &[(NET2, "../x")])], "no slash")]
fn a_network_that_is_not_on_one_interface_everywhere_has_none(#[case] all: Vec<Nics>, #[case] part: &str) {
    let Interface::Missing(why) = interface(NET2, &all, &Mapping::Absent) else { panic!("found") };
    assert!(why.contains(part), "{why}");
}

#[rstest]
#[case::named(r#"{"default/mgmt":"enp1s0","default/net2":"enp2s0"}"#, Ok(named("enp2s0")))]
#[case::empty_text("", Ok(Interface::Unknown))]
#[case::empty("{}", Ok(Interface::Unknown))]
#[case::other_entry_wrong(r#"{"default/mgmt":7,"default/net2":"enp2s0"}"#, Ok(named("enp2s0")))]
#[case::not_named(
    r#"{"default/mgmt":"enp1s0"}"#,
    Err("does not name network default/net2 (it has default/mgmt)")
)]
#[case::cut_off(r#"{"default/mgmt":"enp1"#, Err("cannot be read, it is no JSON: EOF"))]
#[case::a_list("[]", Err("no JSON object of networks"))]
#[case::name_too_long(r#"{"default/net2":"a-very-long-interface"}"#, Err("at most 15 characters"))]
#[case::no_name(r#"{"default/net2":""}"#, Err("at most 15 characters"))]
fn the_mapping_counts_where_no_guest_agent_speaks(
    #[case] text: &str,
    #[case] expected: Result<Interface, &str>,
) {
    let mapping = Mapping::read(text);
    assert_eq!(interface(NET2, &[both("a")], &mapping), named("enp2s0"), "the VMs know better");
    match (interface(NET2, &[nics("a", &[(NET2, "")])], &mapping), expected) {
        (Interface::Missing(why), Err(part)) => assert!(why.contains(part), "{why}"),
        (found, expected) => assert_eq!(Ok(found), expected),
    }
}

#[test]
fn values_of_ten_thousand_characters_are_named_in_part() {
    let long = "x".repeat(10_000);
    let all = [nics("a", &[(&long, &long)])];
    let sentences = [
        interface(&long, &[both("a")], &Mapping::Absent),
        interface(&long, &all, &Mapping::Absent),
        interface(NET2, &all, &Mapping::Absent),
        interface(NET2, &[], &Mapping::read(&long)),
        interface(NET2, &[], &Mapping::read(&format!("{{\"{long}\":\"{long}\"}}"))),
    ];
    for found in sentences {
        let Interface::Missing(why) = found else { panic!("{found:?}") };
        assert!(why.len() < 700, "{} characters", why.len());
    }
    let many: Vec<_> = (0..1000).map(|i| nics(&i.to_string(), &[(NET2, &format!("eth{i}"))])).collect();
    let Interface::Missing(why) = interface(NET2, &many, &Mapping::Absent) else { panic!("found") };
    assert!(why.contains("994 more") && why.len() < 700, "{why}");
}

#[rstest]
#[case::alike(vec![both("a"), both("b")], Some(&[MGMT, NET2][..]))]
#[case::shifted(vec![both("a"), nics("b", &[(MGMT, "enp1s0"), (NET2, "enp3s0")])], Some(&[MGMT][..]))]
#[case::nothing_in_common(vec![both("a"), nics("b", &[("default/x", "enp1s0")])], Some(&[][..]))]
#[case::silent_agent(vec![both("a"), nics("b", &[(MGMT, "")])], Some(&[MGMT, NET2][..]))]
#[case::silence(vec![nics("a", &[(MGMT, "")])], None)]
#[case::wrong_name(vec![nics("a", &[(MGMT, "enp1s0"), (NET2, "a b")])], Some(&[MGMT][..]))]
fn the_config_map_has_the_networks_that_are_alike_on_all_nodes(
    #[case] all: Vec<Nics>,
    #[case] expected: Option<&[&str]>,
) {
    let networks = common(&all).map(|common| common.into_keys().collect::<Vec<_>>());
    assert_eq!(
        networks.as_deref(),
        expected.map(|it| it.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).as_deref()
    );
}

proptest::proptest! {
    #[test]
    fn whatever_stands_in_the_mapping_is_read_without_a_panic(text in ".{0,40}", name in ".{0,20}") {
        interface(NET2, &[], &Mapping::read(&text));
        let text = serde_json::json!({NET2: name}).to_string();
        let found = interface(NET2, &[], &Mapping::read(&text));
        proptest::prop_assert!(matches!(found, Interface::Named(found) if found == name) == is_valid(&name));
    }
}
