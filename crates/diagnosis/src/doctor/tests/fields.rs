//! The fields of this project in Harvester's CRDs.

use load_balancer::fields::{KINDS, OPTIONAL_FIELDS, kind_of};
use program::capabilities::Field;
use rstest::rstest;
use serde_json::{Value, json};

use super::{super::*, answers, change, failed, healthy, of};
use crate::doctor::facts::{Answer, Trouble};

/// What a server says of kinds that have these fields.
pub(super) fn schemas(has: impl Fn(&Field) -> bool) -> Value {
    let mut document = json!({"components": {"schemas": {"a.ObjectMeta": {"properties": {}}}}});
    for kind in KINDS {
        let mut root = json!({"x-kubernetes-group-version-kind": [{"kind": kind}], "properties": {}});
        for field in OPTIONAL_FIELDS.iter().filter(|field| kind_of(field) == kind && has(field)) {
            let mut at = &mut root;
            for name in field.path {
                at = &mut at["properties"][*name];
                if *name == "ranges" {
                    at = &mut at["items"];
                }
            }
            at["type"] = json!("string");
        }
        document["components"]["schemas"][format!("a.{kind}")] = root;
    }
    document
}

fn is_drain(field: &Field) -> bool {
    field.path.ends_with(&["drain"])
}

fn line(has_drain: bool, condition: &Value) -> Finding {
    let mut facts = healthy();
    let document = schemas(|field| has_drain || !is_drain(field));
    answers(&mut facts.harvester, read::BALANCER_SCHEMAS, Ok(document));
    change(&mut facts.harvester, &read::balancers("team-a"), |all| {
        all["items"][0]["status"]["conditions"] = json!([condition]);
    });
    let findings = decide(&facts, Occasion::Daily);
    let others = findings.iter().filter(|it| it.id != "load-balancer-fields");
    assert!(others.clone().all(|it| it.verdict == Verdict::Green), "{findings:#?}");
    findings.into_iter().find(|it| it.id == "load-balancer-fields").unwrap()
}

// whether a range can drain, the condition of an object
#[rstest]
#[case::all_are_there(true, json!({"type": "Ready", "status": "True", "reason": "AddressAllocated"}), false)]
#[case::ours_serves(false, json!({"type": "Ready", "status": "True", "reason": "AddressAllocated"}), true)]
#[case::the_go_program_serves(false, json!({"type": "Ready", "status": "True"}), false)]
#[case::the_go_program_serves(false, json!({"type": "Ready", "status": "True", "reason": ""}), false)]
fn fields_that_the_crds_lack_are_missed_where_the_load_balancer_of_this_project_serves(
    #[case] has_drain: bool,
    #[case] condition: Value,
    #[case] is_missed: bool,
) {
    let found = line(has_drain, &condition);
    assert_eq!(found.verdict == Verdict::Amber, is_missed, "{found:?}");
    let is_named = found.sentence.contains("have no spec.ranges.drain of IPPool: ");
    assert_eq!(is_named, !has_drain, "{found:?}");
}

#[rstest]
#[case::unread(Err(failed(Trouble::Refused, "no")))]
#[case::of_no_kind(Ok(json!({})))]
fn of_schemas_that_say_nothing_no_field_is_called_there(#[case] answer: Answer) {
    let mut facts = healthy();
    answers(&mut facts.harvester, read::BALANCER_SCHEMAS, answer);
    assert_eq!(of(Verdict::NotAsked, &facts), ["load-balancer-fields"]);
}

/// The second of the commands alone would keep Harvester from being upgraded.
#[test]
fn the_next_step_leads_to_both_commands_and_has_none_of_them_alone() {
    let ready = json!({"type": "Ready", "status": "True", "reason": "AddressAllocated"});
    let mend = line(false, &ready).mend.unwrap();
    assert!(mend.contains("docs/install.md, Harvester,") && !mend.contains('`'), "{mend}");
    let page = include_str!("../../../../../docs/install.md");
    let section = page.split("\n## Harvester\n").nth(1).unwrap();
    let at = |command: &str| section.find(command).unwrap();
    assert!(at("examples/install/harvester-diff-patch.yaml\n") < at("-f deploy/crds\n"));
}

#[test]
fn every_field_that_is_missing_is_named() {
    let mut facts = healthy();
    answers(&mut facts.harvester, read::BALANCER_SCHEMAS, Ok(schemas(|_| false)));
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
