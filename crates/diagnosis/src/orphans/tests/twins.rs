//! A cluster beside the one that it was restored from, and a look into the wrong namespace.

use serde_json::json;

use super::*;

/// Cluster blue was restored from a backup of etcd, on machine `n1`; its original lives on machine `n0`, whose Node is in the backup.
fn restored(ready: &str) -> Facts {
    facts()
        .guest(read::NODES, &[node("n0", "vm-0", ready)])
        .machine("n0", "vm-0", Some("blue"))
        .balancer(balancer("new", "blue", "gone", &of_cluster("c1", "s0")))
        .claim(claim(VOLUME, Some("blue")))
}

#[test]
fn what_the_living_original_of_a_restored_cluster_made_is_kept() {
    let twin = restored("Unknown");
    assert_eq!(found(&twin), []);
    let kept = decide(&twin).kept;
    let reason = "VirtualMachine vms/n0 may be a machine of its cluster";
    assert!(kept.len() == 2 && kept.iter().all(|kept| kept.why == reason), "{kept:#?}");
    // both machines are this cluster's
    let whole = restored("True");
    assert_eq!(found(&whole), [("new".to_owned(), Deletion::Asked), (VOLUME.to_owned(), Deletion::Typed)]);
}

/// A kubelet on another machine goes on under the Node's name, whose provider ID does not change.
#[test]
fn a_node_that_goes_on_on_another_machine_proves_nothing() {
    let mut twin = restored("True");
    let nodes = twin.guest.as_mut().unwrap().answers.get_mut(read::NODES).unwrap().as_mut().unwrap();
    nodes["items"][1]["status"]["nodeInfo"] = json!({"systemUUID": "1111-AA"});
    let instance = |uuid: &str| json!({"metadata": {"namespace": "vms", "name": "n0"}, "spec": {"domain": {"firmware": {"uuid": uuid}}}});
    assert_eq!(found(&twin.clone().harvester(&read::instances("vms"), &[instance("1111-aa")])).len(), 2);
    assert_eq!(found(&twin.clone().harvester(&read::instances("vms"), &[instance("2222-bb")])), []);
    assert_eq!(found(&twin.clone()), [], "no kubelet runs in a machine that is stopped");
    assert_eq!(found(&twin.unread(&read::instances("vms"))), [], "whose machine it is cannot be read");
}

/// An administrator's kubeconfig names no namespace, and so `default` counts.
#[test]
fn in_a_namespace_without_the_nodes_machines_nothing_is_called_left_behind_by_proof_and_that_is_said() {
    let mut facts = facts().balancer(balancer("old", "blue", "gone", &of_cluster("c1", "s0")));
    facts.harvester.answers.insert(read::machines("vms"), list(&json!([])));
    let report = decide(&facts);
    assert!(report.is_incomplete, "{report:#?}");
    let why = "no Node's VirtualMachine is in namespace vms: give the right one by --harvester-namespace";
    assert_eq!(report.not_read, [why]);
    assert_eq!(doubted(&facts, "old").doubt.as_deref(), Some(why));
    facts.harvester.answers.insert(read::balancers("vms"), list(&json!([])));
    let text = render(&decide(&facts));
    assert!(text.contains("in the lists that could be read") && text.contains(why), "{text}");
}

#[test]
fn what_got_a_doubt_after_the_question_is_not_deleted() {
    let far = || facts().balancer(balancer("far", "red", "web2", &of_cluster("c7", "s7")));
    let shown = decide(&far());
    let chosen: Vec<_> = shown.orphans.iter().collect();
    let again = decide(&far().machine("m", "vm-9", None));
    assert_eq!(found(&far().machine("m", "vm-9", None)), one("far", Deletion::Typed));
    let (same, rest) = delete::unchanged(&chosen, &again);
    assert_eq!((same.len(), rest.len()), (0, 1));
    // a doubt that is gone was answered all the same
    let doubted: Vec<_> = again.orphans.iter().collect();
    assert_eq!(delete::unchanged(&doubted, &shown).0.len(), 1);
}
