//! Clocks, rights, the webhook, Nodes: what is asked, and what is not.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::{Client, client::Body};
use rstest::rstest;
use serde_json::json;

use super::{super::*, NOW, Verdict, answers, at, change, deny, failed, healthy, list, told};
use crate::doctor::facts::Trouble;

#[test]
fn where_there_is_no_object_nothing_is_said_about_conversion() {
    let empty = told(|facts| answers(&mut facts.harvester, &read::former("team-a"), list(&json!([]))));
    assert_eq!(empty, [("conversion", Verdict::NotAsked)]);
}

#[rstest]
#[case::of_the_schema("LoadBalancer is invalid: spec.listeners: Required value")]
#[case::of_another_webhook(
    "admission webhook \"validate.kyverno.svc-fail\" denied the request: no team label"
)]
#[case::of_another_webhook_that_is_down("failed calling webhook \"validate.kyverno.svc-fail\": no endpoints")]
#[case::of_a_server_that_is_busy("etcdserver: request timed out")]
fn a_refusal_that_is_not_the_webhooks_says_nothing_about_it(#[case] why: &str) {
    let refused = told(|facts| facts.trial = Err(failed(Trouble::Refused, why)));
    assert_eq!(refused, [("webhook", Verdict::NotAsked)]);
}

#[test]
fn a_laptop_whose_clock_is_wrong_has_one_red_line() {
    let fast = told(|facts| facts.now = at("2026-11-23T12:10:00Z"));
    assert_eq!(fast, [("clock", Verdict::Red)]);
}

#[test]
fn a_right_that_a_feature_needs_is_amber_where_the_release_has_it() {
    let denied = |version: &'static str| {
        told(move |facts| {
            answers(&mut facts.harvester, read::HARVESTER_VERSION, Ok(json!({"value": version})));
            deny(facts, "create", "volumesnapshots");
        })
    };
    assert_eq!(denied("v1.9.0"), [("rights-volumes", Verdict::Amber)]);
    assert_eq!(denied("v1.5.0"), [], "its role has no such right");
}

#[rstest]
#[case::works_without(
    "update",
    "loadbalancers",
    "rights-load-balancers",
    Verdict::Amber,
    "changed Services keep"
)]
#[case::is_late_without("watch", "virtualmachines", "rights-machines", Verdict::Amber, "noticed late")]
#[case::is_lost_without(
    "create",
    "loadbalancers",
    "rights-load-balancers",
    Verdict::Red,
    "no Service gets an address"
)]
fn a_missing_right_is_red_where_the_part_does_not_work_without_and_the_line_says_what_is_off(
    #[case] verb: &str,
    #[case] resource: &str,
    #[case] id: &str,
    #[case] verdict: Verdict,
    #[case] words: &str,
) {
    let mut facts = healthy();
    deny(&mut facts, verb, resource);
    let found = decide(&facts, Occasion::Daily).into_iter().find(|finding| finding.id == id).unwrap();
    assert_eq!(found.verdict, verdict, "{found:?}");
    assert!(found.sentence.contains(words), "{found:?}");
    let mend = found.mend.unwrap();
    assert!(
        mend.contains("`KUBECONFIG=harvester.kubeconfig ") || mend.contains("inspect cloud-config`"),
        "{mend}"
    );
}

#[test]
fn of_the_two_ways_into_a_machine_one_is_enough() {
    let without = |patch: bool, subresources: bool| {
        told(move |facts| {
            let ways = facts.rights.iter_mut().filter(|it| it.check == "rights-volumes");
            for asked in ways {
                let is_patch = (asked.right.verb, asked.right.resource) == ("patch", "virtualmachines");
                let is_sub = asked.right.subresource.ends_with("volume");
                asked.allowed = Some(!(is_patch && patch || is_sub && subresources));
            }
        })
    };
    assert_eq!(without(true, false), []);
    assert_eq!(without(false, true), []);
    assert_eq!(without(true, true), [("rights-volumes", Verdict::Red)]);
}

#[test]
fn a_cloud_config_that_trusts_whoever_answers_is_amber() {
    let trusting = told(|facts| facts.config.as_mut().unwrap().trusts_everybody = true);
    assert_eq!(trusting, [("harvester-ca", Verdict::Amber)]);
}

#[test]
fn a_laptop_whose_clock_is_a_year_ahead_does_not_call_the_credential_ended() {
    let fast = told(|facts| {
        facts.now = at("2027-11-23T12:00:00Z");
        facts.config.as_mut().unwrap().expiry = cloud_config::expiry::Expiry::At(at("2027-06-01T00:00:00Z"));
    });
    assert_eq!(fast, [("clock", Verdict::Red)]);
}

#[test]
fn what_nobody_knows_of_a_credentials_end_hinders_no_check() {
    let unknown = told(|facts| facts.config.as_mut().unwrap().expiry = cloud_config::expiry::Expiry::Unknown);
    assert_eq!(unknown, [("credential-life", Verdict::NotAsked)]);
}

#[test]
fn of_a_cluster_without_nodes_nothing_is_called_green() {
    let empty = told(|facts| {
        answers(&mut facts.guest, read::NODES, list(&json!([])));
        answers(&mut facts.guest, read::CSI_NODES, list(&json!([])));
        change(&mut facts.guest, read::DAEMON_SETS, |all| {
            all["items"][1]["status"] = json!({"numberReady": 0, "desiredNumberScheduled": 0});
        });
    });
    let ids: Vec<_> = empty.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["nodes", "machines", "guest-agents", "tunnel-address", "csi-driver"], "{empty:?}");
    assert!(empty.iter().all(|(_, verdict)| *verdict == Verdict::NotAsked), "{empty:?}");
}

#[rstest]
#[case::k3s("k3s://blue-1", "K3s has built in took blue-1", "disable-cloud-controller: true")]
#[case::rke2("rke2://blue-1", "RKE2 has built in took blue-1", "cloud-provider-name: harvester")]
fn the_controller_that_a_distribution_has_built_in_is_named_by_the_nodes_that_it_took(
    #[case] provider_id: &str,
    #[case] words: &str,
    #[case] setting: &str,
) {
    let mut facts = healthy();
    change(&mut facts.guest, read::NODES, |all| {
        all["items"][0]["spec"]["providerID"] = json!(provider_id);
    });
    let findings = decide(&facts, Occasion::Daily);
    let red: Vec<_> = findings.iter().filter(|finding| finding.verdict == Verdict::Red).collect();
    assert!(matches!(red[..], [nodes] if nodes.id == "nodes"), "{red:?}");
    assert!(red[0].sentence.contains(words), "{red:?}");
    assert!(red[0].mend.as_ref().unwrap().contains(setting), "{red:?}");
}

#[rstest]
#[case::of_a_service("10.0.0.50/24", &[("tunnel-address", Verdict::Red)])]
#[case::of_a_service_that_is_gone("10.0.0.51/24", &[("tunnel-address", Verdict::Amber)])]
#[case::its_own("10.0.0.1/24", &[])]
#[case::none("", &[("tunnel-address", Verdict::NotAsked)])]
fn the_address_of_tunnels_is_compared_with_services_and_with_the_nodes_own(
    #[case] address: &str,
    #[case] expected: &[(&str, Verdict)],
) {
    let told = told(|facts| {
        let annotations = json!({"projectcalico.org/IPv4Address": address});
        change(&mut facts.guest, read::NODES, |all| all["items"][0]["metadata"]["annotations"] = annotations);
    });
    assert_eq!(told, expected);
}

#[tokio::test]
async fn load_balancers_are_read_before_services_so_that_one_that_is_made_meanwhile_is_no_leftover() {
    let asked: Arc<Mutex<Vec<(&str, String)>>> = Arc::default();
    let client = |side| {
        let asked = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            if request.method() == Method::GET {
                asked.lock().unwrap().push((side, request.uri().path().to_owned()));
            }
            async { Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec()))) }
        });
        Client::new(service, "default")
    };
    read::read_with(&client("guest"), healthy().config, Some(client("Harvester")), at(NOW)).await;
    let asked = asked.lock().unwrap();
    let place = |side, path: &str| asked.iter().position(|it| *it == (side, path.to_owned())).unwrap();
    assert!(place("Harvester", &read::balancers("team-a")) < place("guest", read::SERVICES), "{asked:?}");
}

#[tokio::test]
async fn a_guest_cluster_that_cannot_be_opened_is_one_red_line_with_the_reason() {
    let settings = cloud_config::Options::named("doctor");
    let unopened = Err("guest.kubeconfig: no such file".to_owned());
    let facts = read::read(unopened, Err("no cloud-config found".to_owned()), &settings, at(NOW)).await;
    let findings = decide(&facts, Occasion::Daily);
    let red = findings.iter().filter(|finding| finding.verdict == Verdict::Red);
    let red: Vec<_> = red.map(|finding| (finding.id, finding.sentence.as_str())).collect();
    let expected =
        [("guest-api", "guest.kubeconfig: no such file"), ("cloud-config", "no cloud-config found")];
    assert_eq!(red, expected);
}

#[tokio::test]
async fn a_harvester_that_does_not_answer_is_asked_for_its_version_alone() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let silent = tower::service_fn(move |request: Request<Body>| {
        noted.lock().unwrap().push(request.uri().path().to_owned());
        async { Err::<Response<Body>, tower::BoxError>("connect: timed out".into()) }
    });
    let guest = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec())))
    });
    let harvester = Some(Client::new(silent, "default"));
    let facts = read::read_with(&Client::new(guest, "default"), healthy().config, harvester, at(NOW)).await;
    let asked = asked.lock().unwrap();
    assert!(!asked.is_empty() && asked.iter().all(|path| path == read::VERSION), "{asked:?}");
    let findings = decide(&facts, Occasion::Daily);
    let endpoint = findings.iter().find(|finding| finding.id == "harvester-endpoint").unwrap();
    assert!(endpoint.verdict == Verdict::Red && endpoint.sentence.contains("timed out"), "{endpoint:?}");
}

#[test]
fn of_a_proxy_that_is_of_no_use_the_next_step_names_the_variable_and_makes_no_cloud_config() {
    let mend = |broken: &dyn Fn(&mut Facts), id: &str| {
        let mut facts = healthy();
        broken(&mut facts);
        let found = decide(&facts, Occasion::Daily).into_iter().find(|finding| finding.id == id).unwrap();
        assert_eq!(found.verdict, Verdict::Red, "{found:?}");
        found.mend.unwrap()
    };
    let unread = "kubeconfig cloud-config, context \"a\": proxy: a proxy of scheme socks5h is not supported, use http or https";
    let dead = failed(
        Trouble::NoAnswer,
        "client error (Connect): tunnel error: failed to create underlying connection",
    );
    let of_file = mend(&|facts| facts.config = Err(unread.to_owned()), "cloud-config");
    let of_dead = mend(
        &|facts| facts.harvester.answers.values_mut().for_each(|answer| *answer = Err(dead.clone())),
        "harvester-endpoint",
    );
    for mend in [of_file, of_dead] {
        assert!(mend.contains("HTTPS_PROXY") && !mend.contains("generate"), "{mend}");
    }
}

#[rstest]
#[case::that_was_made_a_moment_ago(json!({"creationTimestamp": "2026-11-23T11:59:30Z"}))]
#[case::that_somebody_deleted(
    json!({"creationTimestamp": "2026-11-23T11:00:00Z", "deletionTimestamp": "2026-11-23T11:00:00Z"}))]
fn a_load_balancer_without_a_status_says_nothing_about_who_is_to_answer(#[case] times: serde_json::Value) {
    let told = told(|facts| {
        change(&mut facts.harvester, &read::balancers("team-a"), |all| {
            all["items"][0]["status"] = json!({});
            let metadata = all["items"][0]["metadata"].as_object_mut().unwrap();
            metadata.extend(times.as_object().unwrap().clone());
        });
    });
    assert_eq!(told, [("load-balancer", Verdict::NotAsked)]);
}

/// Its finalizer goes once its addresses are given back, which takes the load balancer a moment.
#[rstest]
#[case::two_minutes_ago("2026-11-23T11:58:00Z", Some(Verdict::Red))]
#[case::a_moment_ago("2026-11-23T11:59:30Z", None)]
fn a_load_balancer_that_was_deleted_waits_for_harvesters_load_balancer_too(
    #[case] since: &str,
    #[case] expected: Option<Verdict>,
) {
    let told = told(|facts| {
        change(&mut facts.harvester, &read::balancers("team-a"), |all| {
            let metadata = &mut all["items"][0]["metadata"];
            metadata["deletionTimestamp"] = json!(since);
            metadata["finalizers"] = json!([harvester_api::finalizers::LOAD_BALANCER]);
        });
    });
    let told: Vec<_> = told.into_iter().filter(|(id, _)| *id != "service-addresses").collect();
    let expected: Vec<_> = expected.map(|verdict| ("load-balancer", verdict)).into_iter().collect();
    assert_eq!(told, expected);
}

#[test]
fn pools_that_nobody_has_looked_at_are_not_called_free() {
    let young = told(|facts| {
        change(&mut facts.harvester, read::POOLS, |all| all["items"][0]["status"] = json!({}));
    });
    assert_eq!(young, [("pools", Verdict::NotAsked)]);
    let half = told(|facts| {
        let pools = json!([{"metadata": {"name": "full"}, "status": {"available": 0}}, {"metadata": {"name": "new"}}]);
        answers(&mut facts.harvester, read::POOLS, list(&pools));
    });
    assert_eq!(half, [("pools", Verdict::NotAsked)]);
}
