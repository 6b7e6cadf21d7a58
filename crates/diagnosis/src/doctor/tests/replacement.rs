//! What is looked at before programs are replaced.

use cloud_config::expiry::Expiry;
use rstest::rstest;
use serde_json::json;

use super::{
    super::{facts::Trouble, *},
    NOW, answers, at, change, failed, healthy, machine, of,
};

/// The one check that says something else than green before a replacement.
fn not_green(facts: &Facts, occasion: Occasion) -> Vec<(&'static str, Verdict, String)> {
    let findings = decide(facts, occasion).into_iter().filter(|finding| finding.verdict != Verdict::Green);
    let told = findings.map(|finding| {
        assert!(finding.mend.as_ref().is_some_and(|mend| !mend.is_empty()), "{finding:?}");
        (finding.id, finding.verdict, finding.sentence)
    });
    told.collect()
}

#[rstest]
#[case::detaching("attachments", Verdict::Red, "pvc-1 on blue-1", |facts: &mut Facts| {
    change(&mut facts.guest, read::ATTACHMENTS, |all| all["items"][0]["metadata"]["deletionTimestamp"] = json!(NOW));
})]
#[case::attaching("attachments", Verdict::Red, "pvc-1 on blue-1", |facts: &mut Facts| {
    change(&mut facts.guest, read::ATTACHMENTS, |all| all["items"][0]["status"] = json!({"attached": false}));
})]
#[case::twice("one-machine", Verdict::Red, "pvc-1 (blue-1 and other)", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::machines("team-a"), |all| all["items"][1] = machine("other", "uid-9", "pvc-1"));
})]
#[case::unserved("service-addresses", Verdict::Amber, "shop/web", |facts: &mut Facts| {
    change(&mut facts.guest, read::SERVICES, |all| all["items"][0]["status"] = json!({}));
})]
#[case::names("cluster-name", Verdict::Red, "blue, kubernetes", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        let mut second = all["items"][0].clone();
        second["metadata"]["labels"]["cloudprovider.harvesterhci.io/cluster"] = json!("kubernetes");
        all["items"].as_array_mut().unwrap().push(second);
    });
})]
fn before_an_upgrade_the_check_of_what_is_not_ready_says_so(
    #[case] id: &str,
    #[case] verdict: Verdict,
    #[case] names: &str,
    #[case] broken: fn(&mut Facts),
) {
    let mut facts = healthy();
    broken(&mut facts);
    let told = not_green(&facts, Occasion::BeforeUpgrade);
    assert!(
        matches!(&told[..], [(told, word, sentence)] if *told == id && *word == verdict && sentence.contains(names)),
        "{told:#?}"
    );
}

/// The Go program has this name where its chart was given none, as two clusters may have it.
#[rstest]
#[case::of_the_machines("blue", "set global.cattle.clusterName to blue,")]
#[case::that_nobody_knows("", "set global.cattle.clusterName to a name that no other guest cluster has")]
fn before_an_upgrade_a_cluster_without_a_name_is_to_get_one(#[case] label: &str, #[case] expected: &str) {
    let mut facts = healthy();
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["metadata"]["labels"]["cloudprovider.harvesterhci.io/cluster"] = json!("kubernetes");
    });
    change(&mut facts.harvester, &read::machines("team-a"), |all| {
        all["items"][0]["metadata"]["labels"]["guestcluster.harvesterhci.io/name"] = json!(label);
    });
    let findings = decide(&facts, Occasion::BeforeUpgrade).into_iter();
    let told: Vec<_> = findings.filter(|finding| finding.verdict != Verdict::Green).collect();
    assert!(
        matches!(&told[..], [one] if (one.id, one.verdict) == ("cluster-name", Verdict::Amber)),
        "{told:#?}"
    );
    assert!(told[0].mend.as_ref().unwrap().starts_with(expected), "{told:#?}");
}

#[rstest]
#[case::data_path("way-back-data-path", Verdict::Amber, "team-a/blue-web", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::balancers("team-a"), |all| all["items"][0]["spec"]["workloadType"] = json!("vm"));
})]
#[case::path("way-back-fields", Verdict::Amber, "blue-web (spec.healthCheck.path)", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["spec"]["healthCheck"]["path"] = json!("/ready");
    });
})]
#[case::a_negative_number("way-back-fields", Verdict::Red, "blue-web (spec.healthCheck.periodSeconds is -5)", |facts: &mut Facts| {
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["spec"]["healthCheck"]["periodSeconds"] = json!(-5);
    });
})]
#[case::drain("way-back-fields", Verdict::Amber, "lab (spec.ranges.drain)", |facts: &mut Facts| {
    let ranges = json!({"ranges": [{"subnet": "10.0.0.0/24", "drain": true}]});
    change(&mut facts.harvester, read::POOLS, |all| all["items"][0]["spec"] = ranges);
})]
#[case::auto_assign("way-back-fields", Verdict::Amber, "lab (auto-assign)", |facts: &mut Facts| {
    let annotations = json!({"loadbalancer.harvesterhci.io/auto-assign": " False"});
    change(&mut facts.harvester, read::POOLS, |all| all["items"][0]["metadata"]["annotations"] = annotations);
})]
#[case::ipv6("way-back-fields", Verdict::Amber, "are at their end or not there: lab", |facts: &mut Facts| {
    let ranges = json!({"ranges": [{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]});
    change(&mut facts.harvester, read::POOLS, |all| all["items"][0]["spec"] = ranges);
})]
#[case::a_second_record("way-back-fields", Verdict::Amber, "blue-web (fd00::2 of pool six)", |facts: &mut Facts| {
    second_of(facts, "six");
})]
#[case::credential("way-back-credential", Verdict::Red, "2027-11-01", |facts: &mut Facts| {
    facts.config.as_mut().unwrap().expiry = Expiry::At(at("2027-11-01T00:00:00Z"));
})]
#[case::attaching("attachments", Verdict::Red, "pvc-1 on blue-1", |facts: &mut Facts| {
    change(&mut facts.guest, read::ATTACHMENTS, |all| all["items"][0]["status"] = json!({}));
})]
fn before_a_rollback_the_check_of_what_the_go_programs_do_not_know_says_so(
    #[case] id: &str,
    #[case] verdict: Verdict,
    #[case] names: &str,
    #[case] broken: fn(&mut Facts),
) {
    let mut facts = healthy();
    broken(&mut facts);
    let told = not_green(&facts, Occasion::BeforeRollback);
    assert!(
        matches!(&told[..], [(told, word, sentence)] if *told == id && *word == verdict && sentence.contains(names)),
        "{told:#?}"
    );
}

/// The load balancer has a second address of this pool, beside the first of `lab`.
fn second_of(facts: &mut Facts, pool: &str) {
    let has = json!({"ipPool": "lab", "ip": "10.0.0.50", "ipv6Pool": pool, "ipv6IP": "fd00::2"});
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["status"]["allocatedAddress"] = has;
    });
}

/// What the check of this id says before a rollback.
fn said(broken: fn(&mut Facts), id: &str) -> (Verdict, String) {
    let mut facts = healthy();
    broken(&mut facts);
    let mut findings = decide(&facts, Occasion::BeforeRollback).into_iter();
    let finding = findings.find(|finding| finding.id == id).unwrap();
    (finding.verdict, finding.sentence)
}

#[test]
fn before_a_rollback_pools_that_nobody_may_list_are_not_called_free_of_new_fields() {
    let unread: fn(&mut Facts) =
        |facts| answers(&mut facts.harvester, read::POOLS, Err(failed(Trouble::Forbidden, "forbidden")));
    let (verdict, sentence) = said(unread, "way-back-fields");
    assert!(verdict == Verdict::NotAsked && sentence.contains(read::POOLS), "{sentence}");
}

#[test]
fn before_a_rollback_a_second_address_of_the_same_pool_is_called_unknown_and_not_lost() {
    let (verdict, sentence) = said(|facts| second_of(facts, "lab"), "way-back-fields");
    let expected = "unknown to the Go programs: blue-web (status.allocatedAddress.ipv6IP)";
    assert_eq!((verdict, sentence.as_str()), (Verdict::Amber, expected));
}

#[test]
fn before_a_rollback_a_credential_that_does_not_say_when_it_ends_is_not_called_lasting() {
    let opaque: fn(&mut Facts) = |facts| facts.config.as_mut().unwrap().expiry = Expiry::Unknown;
    assert_eq!(said(opaque, "way-back-credential").0, Verdict::NotAsked);
}

#[test]
fn before_an_upgrade_nobody_misses_the_lease_that_the_go_driver_does_not_have() {
    let mut facts = healthy();
    answers(&mut facts.guest, read::CSI_LEASE, Err(failed(Trouble::NotFound, "not found")));
    assert_eq!(not_green(&facts, Occasion::BeforeUpgrade), []);
    assert_eq!(of(Verdict::Red, &facts), ["csi-leader"]);
}
