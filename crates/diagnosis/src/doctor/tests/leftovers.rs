//! Which LoadBalancers an administrator is told to delete.

use serde_json::{Value, json};

use super::{super::*, Verdict, change, told, workload};

#[test]
fn a_mark_on_an_object_whose_service_is_there_and_another_clusters_object_are_no_leftovers() {
    let marked = told(|facts| {
        change(&mut facts.harvester, &read::balancers("team-a"), |all| {
            let mark = json!({"cloudprovider.harvesterhci.io/without-service": "since yesterday"});
            all["items"][0]["metadata"]["annotations"] = mark;
            let mut other = all["items"][0].clone();
            other["metadata"]["labels"] = json!({"cloudprovider.harvesterhci.io/cluster": "red"});
            all["items"].as_array_mut().unwrap().push(other);
        });
    });
    assert_eq!(marked, []);
}

/// A LoadBalancer whose Service is gone carries this UID and this name of a cluster; that of the guest cluster is `c1`.
fn marked(facts: &mut Facts, uid: &str, cluster: &str) {
    change(&mut facts.guest, read::SERVICES, |all| {
        let kubernetes = json!({"metadata": {"namespace": "default", "name": "kubernetes", "uid": "c1"}});
        all["items"].as_array_mut().unwrap().push(kubernetes);
    });
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["metadata"]["annotations"] =
            json!({"cloudprovider.harvesterhci.io/cluster-uid": uid});
        all["items"][0]["metadata"]["labels"] = json!({"cloudprovider.harvesterhci.io/cluster": cluster});
        all["items"][0]["status"] = json!({"conditions": [{"type": "Ready"}]});
    });
}

#[test]
fn an_object_that_names_this_cluster_by_uid_is_a_leftover_under_any_name_of_the_cluster() {
    let of = |uid: &'static str| told(move |facts| marked(facts, uid, "blue"));
    assert_eq!(of("c1"), [("leftovers", Verdict::Red)]);
    assert_eq!(of("c2"), [], "it is another cluster's");
}

/// A leftover of a cluster `red`, which no annotation proves.
fn red(facts: &mut Facts) {
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        let mut other = all["items"][0].clone();
        other["metadata"]["labels"]["cloudprovider.harvesterhci.io/cluster"] = json!("red");
        other["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"] = json!("gone");
        other["status"]["address"] = json!("10.0.0.99");
        all["items"].as_array_mut().unwrap().push(other);
    });
}

#[test]
fn what_a_pod_of_the_guest_cluster_says_of_its_cluster_proves_nothing() {
    let lied = told(|facts| {
        change(&mut facts.guest, read::DEPLOYMENTS, |all| {
            let mut lie = workload("x", "busybox", &json!(["--cluster-name=red"]));
            lie["metadata"]["namespace"] = json!("aaa");
            all["items"].as_array_mut().unwrap().insert(0, lie);
        });
        red(facts);
    });
    assert_eq!(lied, []);
}

#[test]
fn the_name_of_a_cluster_proves_nothing_where_a_machine_has_it_that_is_no_node() {
    let left = |facts: &mut Facts| {
        change(&mut facts.harvester, &read::balancers("team-a"), |all| {
            all["items"][0]["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"] =
                json!("gone");
            all["items"][0]["status"] = json!({"conditions": [{"type": "Ready"}]});
        });
    };
    assert_eq!(told(left), [("leftovers", Verdict::Red)]);
    let beside = |cluster: Value| {
        told(move |facts| {
            left(facts);
            change(&mut facts.harvester, &read::machines("team-a"), |all| {
                all["items"][1]["metadata"]["labels"] = json!({"guestcluster.harvesterhci.io/name": cluster});
            });
        })
    };
    assert_eq!(beside(json!("blue")), [("leftovers", Verdict::NotAsked)]);
    assert_eq!(beside(json!("")), [("leftovers", Verdict::NotAsked)], "nothing says whose machine it is");
    assert_eq!(beside(json!("red")), [("leftovers", Verdict::Red)]);
}

// a cluster that was restored beside its original has the UID of that one
#[test]
fn the_uid_of_a_cluster_proves_nothing_beside_machines_that_may_be_of_its_original() {
    let restored = |name: &'static str, of_other: &'static str| {
        told(move |facts| {
            marked(facts, "c1", name);
            change(&mut facts.harvester, &read::machines("team-a"), |all| {
                all["items"][1]["metadata"]["labels"] =
                    json!({"guestcluster.harvesterhci.io/name": of_other});
            });
        })
    };
    assert_eq!(restored("blue", "red"), [("leftovers", Verdict::Red)]);
    for (name, of_other) in [("blue", ""), ("blue", "blue"), ("kubernetes", "red"), ("", "red")] {
        assert_eq!(restored(name, of_other), [("leftovers", Verdict::NotAsked)], "{name:?} {of_other:?}");
    }
}

// its backup has the Node of that one, whose machine runs
#[test]
fn a_node_that_is_not_ready_proves_nothing() {
    let told = told(|facts| {
        marked(facts, "c1", "blue");
        change(&mut facts.guest, read::NODES, |all| {
            let mut lost = all["items"][0].clone();
            lost["metadata"] = json!({"name": "blue-0"});
            lost["spec"]["providerID"] = json!("harvester://uid-9");
            lost["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
            all["items"].as_array_mut().unwrap().push(lost);
        });
        change(&mut facts.harvester, &read::machines("team-a"), |all| {
            all["items"][1]["metadata"]["labels"] = json!({"guestcluster.harvesterhci.io/name": "blue"});
        });
    });
    assert!(told.contains(&("leftovers", Verdict::NotAsked)), "{told:?}");
}

// with its only machine its name is not proved either, and the Go program marks nothing with its UID
#[test]
fn what_carries_the_name_of_nodes_that_are_not_ready_is_not_passed_over() {
    let told = told(|facts| {
        change(&mut facts.guest, read::NODES, |all| {
            for node in all["items"].as_array_mut().unwrap() {
                node["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
            }
        });
        change(&mut facts.harvester, &read::balancers("team-a"), |all| {
            all["items"][0]["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"] =
                json!("gone");
            all["items"][0]["status"] = json!({"conditions": [{"type": "Ready"}]});
        });
    });
    assert!(told.contains(&("leftovers", Verdict::NotAsked)), "{told:?}");
}

#[test]
fn a_load_balancer_that_is_being_deleted_or_whose_address_is_in_use_is_no_leftover() {
    let changed = |fields: &'static [(&'static str, &'static str)]| {
        told(move |facts| {
            change(&mut facts.harvester, &read::balancers("team-a"), |all| {
                let object = &mut all["items"][0];
                object["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"] = json!("gone");
                for (pointer, value) in fields {
                    let (parent, field) = pointer.rsplit_once('/').unwrap();
                    object.pointer_mut(parent).unwrap()[field] = json!(value);
                }
            });
        })
    };
    assert_eq!(changed(&[("/status/address", "10.0.0.99")]), [("leftovers", Verdict::Red)]);
    let deleted =
        changed(&[("/status/address", "10.0.0.99"), ("/metadata/deletionTimestamp", "2026-11-23T11:59:59Z")]);
    assert_eq!(deleted, []);
    assert_eq!(changed(&[("/status/address", "10.0.0.50")]), [], "a Service shows it");
}
