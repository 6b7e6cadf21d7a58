//! Nodes with a wrong provider ID, and Services that wait: what is told, and what helps.

use rstest::rstest;
use serde_json::json;

use super::{super::*, answers, change, healthy, lease, machine, of};

/// What is red where a Node `blue-2` with this provider ID joins `blue-1`.
fn red(provider_id: &str, has_machine: bool) -> Vec<Finding> {
    red_with(provider_id, has_machine, |_| {})
}

/// The same after a further change.
fn red_with(provider_id: &str, has_machine: bool, changed: impl FnOnce(&mut Facts)) -> Vec<Finding> {
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
    changed(&mut facts);
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
    "--cloud-provider=external; then, with the guest cluster's kubeconfig, \
     `kubectl taint node blue-2 node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule`"
)]
#[case::of_another_cloud("aws:///eu-west-1a/i-0123", true, "nodes", "blue-2", "without --provider-id")]
#[case::of_the_former_machine(
    "harvester://uid-0",
    true,
    "machines",
    ": blue-2",
    "drain each Node whose name a VirtualMachine has (blue-2), delete it"
)]
#[case::namespace_and_name(
    "harvester://team-a/blue-2",
    true,
    "machines",
    ": blue-2",
    "drain each Node whose name a VirtualMachine has (blue-2), delete it"
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

/// Kubernetes ends the Pods of a deleted Node past every PodDisruptionBudget, and RKE2 and K3s take its etcd member away.
#[rstest]
#[case::of_k3s("k3s://blue-2", json!({}), false)]
#[case::of_another_cloud("aws:///eu-west-1a/i-0123", json!({}), false)]
#[case::of_the_former_machine("harvester://uid-0", json!({}), false)]
#[case::of_another_node("harvester://uid-1", json!({}), false)]
#[case::of_k3s_with_etcd("k3s://blue-2", json!({"node-role.kubernetes.io/etcd": "true"}), true)]
#[case::of_another_cloud_with_etcd("aws:///i-0123", json!({"node-role.kubernetes.io/etcd": "true"}), true)]
#[case::of_the_former_machine_with_etcd("harvester://uid-0", json!({"node-role.kubernetes.io/etcd": "true"}), true)]
#[case::of_the_control_plane("harvester://uid-1", json!({"node-role.kubernetes.io/control-plane": ""}), true)]
fn a_node_is_drained_before_it_is_deleted_and_a_server_with_etcd_is_replaced(
    #[case] provider_id: &str,
    #[case] labels: serde_json::Value,
    #[case] is_replaced: bool,
) {
    let found = red_with(provider_id, true, |facts| {
        change(&mut facts.guest, read::NODES, |all| all["items"][1]["metadata"]["labels"] = labels);
    });
    let [found] = &found[..] else { panic!("{found:#?}") };
    let mend = found.mend.as_ref().unwrap();
    assert!(mend.contains(", delete it and start its kubelet anew"), "{mend}");
    let (expected, unwanted) = ("one Node at a time, with each ", ", one Node at a time");
    let server = " by a new server where RKE2 or K3s runs etcd on it";
    if is_replaced {
        assert!(mend.contains(expected) && !mend.contains(unwanted), "{mend}");
        assert!(mend.contains(&format!(": replace it{server}")), "{mend}");
        assert!(mend.contains("(perhaps on blue-2)"), "{mend}");
        assert!(mend.contains("; where none runs, drain it, "), "{mend}");
    } else {
        assert!(mend.contains("drain each ") && mend.contains(unwanted) && !mend.contains(server), "{mend}");
    }
}

/// Whoever replaces two of three servers at once, or one that is right, has lost etcd's quorum.
#[rstest]
#[case::of_rke2("rke2://blue", "nodes", "; then one Node at a time, with each of these Nodes: replace it ")]
#[case::of_another_cloud(
    "aws:///i-0123",
    "nodes",
    "one Node at a time, with each that is a VirtualMachine of Harvester: replace it "
)]
#[case::of_one_machine(
    "harvester://uid-1",
    "machines",
    "one Node at a time, with each Node that does not run in that machine: replace it "
)]
fn servers_with_etcd_are_replaced_one_at_a_time_and_those_that_are_right_stay(
    #[case] provider_id: &str,
    #[case] id: &str,
    #[case] words: &str,
) {
    let found = red_with(provider_id, true, |facts| {
        change(&mut facts.guest, read::NODES, |all| {
            for node in all["items"].as_array_mut().unwrap() {
                node["metadata"]["labels"] = json!({"node-role.kubernetes.io/etcd": "true"});
                node["spec"]["providerID"] = json!(provider_id);
            }
        });
    });
    let found = found.iter().find(|finding| finding.id == id).unwrap();
    let mend = found.mend.as_ref().unwrap();
    assert!(mend.contains(words) && mend.contains("(perhaps on blue-1, blue-2)"), "{mend}");
    assert_eq!(mend.matches("replace").count(), 1, "{mend}");
}

/// It is the one that takes the taint away.
#[test]
fn while_no_cloud_controller_manager_runs_nobody_is_told_to_taint_a_node() {
    let found = red_with("", true, |facts| {
        answers(&mut facts.guest, read::CCM_LEASE, lease("blue-1_1", "2026-11-23T11:58:00Z"));
    });
    let [ccm, nodes] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((ccm.id, nodes.id), ("ccm", "nodes"));
    let mend = nodes.mend.as_ref().unwrap();
    assert!(
        mend.contains("--cloud-provider=external, mend `ccm`") && !mend.contains("kubectl taint"),
        "{mend}"
    );
}

/// A healthy cluster whose Node has this provider ID.
fn healthy_by(provider_id: &str) -> Facts {
    let mut facts = healthy();
    change(&mut facts.guest, read::NODES, |all| all["items"][0]["spec"]["providerID"] = json!(provider_id));
    facts
}

#[rstest]
#[case::uid("harvester://uid-1")]
#[case::name("harvester://blue-1")]
fn a_silent_guest_agent_is_told_whether_the_provider_id_is_the_machines_uid_or_its_name(
    #[case] provider_id: &str,
) {
    let mut facts = healthy_by(provider_id);
    change(&mut facts.harvester, &read::instances("team-a"), |all| {
        all["items"][0]["status"]["conditions"] = json!([]);
    });
    assert_eq!(of(Verdict::Red, &facts), ["guest-agents"]);
}

/// Another cluster may have a machine of that name.
#[test]
fn a_provider_id_that_is_a_name_proves_no_leftover_and_the_line_says_so() {
    let findings = decide(&healthy_by("harvester://blue-1"), Occasion::Daily);
    let told: Vec<_> = findings.iter().filter(|finding| finding.verdict != Verdict::Green).collect();
    let [leftovers] = told[..] else { panic!("{told:#?}") };
    assert_eq!((leftovers.id, leftovers.verdict), ("leftovers", Verdict::NotAsked));
    assert!(leftovers.sentence.contains("names of VirtualMachines"), "{leftovers:?}");
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
    assert!(
        mend.contains("another cluster's") && mend.contains("whose name a VirtualMachine has (blue-1)"),
        "{mend}"
    );
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
