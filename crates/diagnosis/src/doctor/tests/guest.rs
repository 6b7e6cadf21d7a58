//! Nodes with a wrong provider ID, and Services that wait: what is told, and what helps.

use rstest::rstest;
use serde_json::json;

use super::{super::*, change, healthy, machine};

/// What is red where a Node `blue-2` with this provider ID joins `blue-1`.
fn red(provider_id: &str, has_machine: bool) -> Vec<Finding> {
    let mut facts = healthy();
    change(&mut facts.guest, read::NODES, |all| {
        let node = json!({"metadata": {"name": "blue-2"}, "spec": {"providerID": provider_id}});
        all["items"].as_array_mut().unwrap().push(node);
    });
    if has_machine {
        change(&mut facts.harvester, &read::machines("team-a"), |all| {
            all["items"].as_array_mut().unwrap().push(machine("blue-2", "uid-2", "pvc-2"));
        });
    }
    let findings = decide(&facts, Occasion::Daily).into_iter();
    findings.filter(|finding| finding.verdict == Verdict::Red).collect()
}

// whether there is a VirtualMachine of the Node's name; words of the sentence and of the next step
#[rstest]
#[case::none_and_no_taint(
    "",
    true,
    "nodes",
    "blue-2",
    "`kubectl taint node blue-2 node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule`"
)]
#[case::of_another_cloud("aws:///eu-west-1a/i-0123", true, "nodes", "blue-2", "without --provider-id")]
#[case::of_the_former_machine("harvester://uid-0", true, "machines", ": blue-2", "delete blue-2 and restart")]
#[case::namespace_and_name(
    "harvester://team-a/blue-2",
    true,
    "machines",
    ": blue-2",
    "delete blue-2 and restart"
)]
#[case::of_another_node(
    "harvester://uid-1",
    true,
    "machines",
    "blue-1 and blue-2 (blue-1)",
    "does not run in"
)]
#[case::of_no_machine(
    "harvester://uid-0",
    false,
    "machines",
    ": blue-2",
    "delete blue-2 if the machine is gone"
)]
fn a_wrong_provider_id_is_one_red_line_whose_next_step_is_for_just_that(
    #[case] provider_id: &str,
    #[case] has_machine: bool,
    #[case] id: &str,
    #[case] words: &str,
    #[case] mend: &str,
) {
    let found = red(provider_id, has_machine);
    let [found] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(found.id, id);
    assert!(found.sentence.contains(words), "{found:?}");
    assert!(found.mend.as_ref().unwrap().contains(mend), "{found:?}");
}

// the cloud controller manager finds it by either
#[rstest]
#[case::uid("harvester://uid-2")]
#[case::name("harvester://blue-2")]
fn a_provider_id_that_is_the_machines_uid_or_its_name_is_none(#[case] provider_id: &str) {
    assert_eq!(red(provider_id, true), []);
}

/// The machine was made anew under its name, or the cloud-config is that of a cluster whose machines have the same names.
#[test]
fn of_nodes_that_all_have_the_provider_id_of_a_former_machine_both_reasons_are_told() {
    let mut facts = healthy();
    change(&mut facts.harvester, &read::machines("team-a"), |all| {
        all["items"][0]["metadata"]["uid"] = json!("made-anew");
    });
    let findings = decide(&facts, Occasion::Daily);
    let mend = findings.iter().find(|finding| finding.id == "machines").unwrap().mend.as_ref().unwrap();
    assert!(mend.contains("another cluster's") && mend.contains("delete blue-1 and restart"), "{mend}");
}

#[rstest]
#[case::for_two_minutes("11:58:00", json!({}), json!({}), true)]
#[case::for_a_moment("11:59:30", json!({}), json!({}), false)]
#[case::on_its_way_out("11:58:00", json!({"deletionTimestamp": "2026-11-23T11:59:00Z"}), json!({}), false)]
#[case::of_others("11:58:00", json!({}), json!({"loadBalancerClass": "metallb"}), false)]
fn a_service_that_waits_for_its_address_is_told_with_the_command_that_says_why(
    #[case] made: &str,
    #[case] metadata: serde_json::Value,
    #[case] spec: serde_json::Value,
    #[case] is_told: bool,
) {
    let mut facts = healthy();
    change(&mut facts.guest, read::SERVICES, |all| {
        let mut service = json!({"metadata": {"namespace": "shop", "name": "new",
            "creationTimestamp": format!("2026-11-23T{made}Z")}, "spec": {"type": "LoadBalancer"}});
        for (field, more) in [("metadata", metadata), ("spec", spec)] {
            service[field].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        all["items"].as_array_mut().unwrap().push(service);
    });
    let findings = decide(&facts, Occasion::Daily).into_iter();
    let told: Vec<_> = findings.filter(|finding| finding.verdict != Verdict::Green).collect();
    assert_eq!(told.len(), usize::from(is_told), "{told:#?}");
    for finding in told {
        assert_eq!((finding.id, finding.verdict), ("service-addresses", Verdict::Amber));
        assert!(
            finding.mend.unwrap().starts_with("`harvester-cloud-provider explain service shop/new` says why")
        );
    }
}
