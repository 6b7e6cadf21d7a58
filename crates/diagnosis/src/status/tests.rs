use harvester_api::labels;
use serde_json::json;

use super::*;
use crate::doctor::{
    facts::{Failed, Trouble},
    tests::healthy,
};

#[test]
fn of_two_clusters_in_order_the_screen_shows_services_nodes_and_pools() {
    let status = decide(&healthy());
    assert_eq!((status.findings.len(), status.services.len(), status.nodes.len()), (0, 2, 1), "{status:#?}");
    assert_eq!((status.pools[0].name.as_str(), status.pools[0].available), ("lab", 7));
    assert_eq!(status.nodes[0].machine.as_deref(), Some("blue-1"));
    let page = render(&status, Colour(false));
    for part in [
        "Kubernetes v1.36.0",
        "https://harvester:6443, namespace team-a; v1.9.0",
        "0 amber, 0 red",
        "10.0.0.50",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains('\u{1b}') && render(&status, Colour(true)).contains('\u{1b}'));
}

#[test]
fn a_service_without_address_stands_first_with_the_sentence_of_its_load_balancer() {
    let mut facts = healthy();
    let services = facts.guest.answers.get_mut(read::SERVICES).unwrap().as_mut().unwrap();
    let waiting = json!({"metadata": {"namespace": "shop", "name": "zoo", "uid": "s9"}, "spec": {"type": "LoadBalancer"}});
    let foreign = json!({"metadata": {"namespace": "shop", "name": "metal", "uid": "s8"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "metallb"}});
    services["items"].as_array_mut().unwrap().extend([waiting, foreign]);
    assert_eq!(decide(&facts).services[0].because, "it has no LoadBalancer in Harvester");
    let balancers = facts.harvester.answers.get_mut(&read::balancers("team-a")).unwrap().as_mut().unwrap();
    balancers["items"][0] = json!({"metadata": {"namespace": "team-a", "name": "blue-zoo",
            "labels": {labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "zoo"}},
        "status": {"conditions": [{"type": "Ready", "status": "False", "message": "no pool\u{1b}[31m is free"}]}});
    let status = decide(&facts);
    let first = &status.services[0];
    assert_eq!(
        (first.name.as_str(), first.object.as_str(), first.is_served),
        ("shop/zoo", "blue-zoo", false)
    );
    assert_eq!(
        first.because, "no pool\u{fffd}[31m is free",
        "of the text of others no control character is shown"
    );
    assert_eq!(status.services.len(), 3, "Services of other classes are others'");
}

#[test]
fn a_node_whose_provider_id_is_its_machines_name_is_shown_with_the_machine() {
    let mut facts = healthy();
    facts.guest.answers.get_mut(read::NODES).unwrap().as_mut().unwrap()["items"][0]["spec"]["providerID"] =
        json!("harvester://blue-1");
    assert_eq!(decide(&facts).nodes[0].machine.as_deref(), Some("blue-1"));
}

#[test]
fn what_is_red_is_told_with_its_next_step_and_what_cannot_be_read_is_named() {
    let mut facts = healthy();
    let failed = Failed { trouble: Trouble::Forbidden, why: "ippools is forbidden".to_owned() };
    facts.harvester.answers.insert(read::POOLS.to_owned(), Err(failed));
    facts.guest.answers.get_mut(read::NODES).unwrap().as_mut().unwrap()["items"][0]["spec"]["providerID"] =
        json!("harvester://gone");
    let status = decide(&facts);
    assert_eq!(status.findings.iter().map(|it| it.id).collect::<Vec<_>>(), ["machines"]);
    let page = render(&status, Colour(false));
    assert!(page.contains("  red   machines: ") && page.contains("        → "), "{page}");
    assert!(page.contains("Pools: not read\n") && page.contains("not read: Harvester: GET"), "{page}");
}

#[test]
fn without_a_cloud_config_the_guest_is_shown_alone() {
    let mut facts = healthy();
    facts.config = Err("no cloud-config found".to_owned());
    facts.harvester.answers.clear();
    let page = render(&decide(&facts), Colour(false));
    assert!(page.contains("Harvester  no cloud-config found\n") && page.contains("shop/web"), "{page}");
    assert!(page.contains("Pools: not read\n"), "{page}");
}

#[test]
fn a_service_that_is_being_deleted_is_no_served_one_like_the_others() {
    let mut facts = healthy();
    let services = facts.guest.answers.get_mut(read::SERVICES).unwrap().as_mut().unwrap();
    services["items"][0]["metadata"]["deletionTimestamp"] = json!("2026-11-23T11:58:00Z");
    let told: Vec<_> = decide(&facts).services.into_iter().map(|row| (row.name, row.because)).collect();
    let expected = [("shop/leased", ""), ("shop/web", "it is being deleted")];
    assert_eq!(told, expected.map(|(name, because)| (name.to_owned(), because.to_owned())));
}
