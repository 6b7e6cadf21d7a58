//! The fields of this project in Harvester's CRDs.

use rstest::rstest;
use serde_json::{Value, json};

use super::{super::*, answers, change, healthy};

/// What the server says of its kinds, of which a pool's ranges have these fields.
fn schemas(ranges: &Value) -> Value {
    let spec = json!({"quota": {}, "quarantineSeconds": {}, "ranges": {"items": {"properties": ranges}}});
    let pool = json!({"x-kubernetes-group-version-kind": [{"kind": "IPPool"}], "properties": {"spec": {"properties": spec}}});
    json!({"components": {"schemas": {"a.IPPool": pool, "a.ObjectMeta": {"properties": {}}}}})
}

fn line(ranges: &Value, condition: &Value) -> Finding {
    let mut facts = healthy();
    answers(&mut facts.harvester, read::BALANCER_SCHEMAS, Ok(schemas(ranges)));
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["status"]["conditions"] = json!([condition]);
    });
    let findings = decide(&facts, Occasion::Daily);
    let others = findings.iter().filter(|it| it.id != "load-balancer-fields");
    assert!(others.clone().all(|it| it.verdict == Verdict::Green), "{findings:#?}");
    findings.into_iter().find(|it| it.id == "load-balancer-fields").unwrap()
}

// the fields of a range, the condition of an object
#[rstest]
#[case::all_are_there(json!({"drain": {}}), json!({"type": "Ready", "status": "True", "reason": "AddressAllocated"}), false)]
#[case::ours_serves(json!({"subnet": {}}), json!({"type": "Ready", "status": "True", "reason": "AddressAllocated"}), true)]
#[case::the_go_program_serves(json!({"subnet": {}}), json!({"type": "Ready", "status": "True"}), false)]
#[case::the_go_program_serves(json!({"subnet": {}}), json!({"type": "Ready", "status": "True", "reason": ""}), false)]
fn fields_that_the_crds_lack_are_missed_where_the_load_balancer_of_this_project_serves(
    #[case] ranges: Value,
    #[case] condition: Value,
    #[case] is_missed: bool,
) {
    let found = line(&ranges, &condition);
    assert_eq!(found.verdict == Verdict::Amber, is_missed, "{found:?}");
    let is_named = found.sentence.contains("have no spec.ranges.drain of IPPool: ");
    assert_eq!(is_named, ranges.get("drain").is_none(), "{found:?}");
}

/// The second of the commands alone would keep Harvester from being upgraded.
#[test]
fn the_next_step_leads_to_both_commands_and_has_none_of_them_alone() {
    let ready = json!({"type": "Ready", "status": "True", "reason": "AddressAllocated"});
    let mend = line(&json!({}), &ready).mend.unwrap();
    assert!(mend.contains("docs/install.md, Harvester,") && !mend.contains('`'), "{mend}");
    let page = include_str!("../../../../../docs/install.md");
    let section = page.split("\n## Harvester\n").nth(1).unwrap();
    let at = |command: &str| section.find(command).unwrap();
    assert!(at("examples/install/harvester-diff-patch.yaml\n") < at("-f deploy/crds\n"));
}

#[test]
fn every_field_that_is_missing_is_named() {
    let mut facts = healthy();
    let spec = |kind: &str| json!({"x-kubernetes-group-version-kind": [{"kind": kind}], "properties": {}});
    let none = json!({"components": {"schemas": {"a": spec("IPPool"), "b": spec("LoadBalancer")}}});
    answers(&mut facts.harvester, read::BALANCER_SCHEMAS, Ok(none));
    let findings = decide(&facts, Occasion::Daily);
    let found = findings.iter().find(|it| it.id == "load-balancer-fields").unwrap();
    for field in load_balancer::fields::missing(|_| false) {
        assert!(found.sentence.contains(&field), "{field}: {}", found.sentence);
    }
}

/// The Go programs, which run before the one and after the other, know none of them.
#[rstest]
#[case(Occasion::BeforeUpgrade)]
#[case(Occasion::BeforeRollback)]
fn nobody_is_told_of_them_before_programs_are_replaced(#[case] occasion: Occasion) {
    let findings = decide(&healthy(), occasion);
    assert!(findings.iter().all(|it| it.id != "load-balancer-fields"), "{findings:#?}");
}
