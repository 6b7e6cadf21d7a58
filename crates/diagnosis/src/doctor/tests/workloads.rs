//! Programs of the guest cluster, and what others of the same name may not decide.

use rstest::rstest;
use serde_json::{Value, json};

use super::{super::*, Verdict, answers, change, failed, healthy, list, told, workload};
use crate::doctor::facts::Trouble;

#[test]
fn another_program_whose_image_has_kube_vip_in_its_name_is_none() {
    let other = told(|facts| {
        change(&mut facts.guest, read::DAEMON_SETS, |all| {
            all["items"][0] =
                workload("kube-vip-cloud-provider", "kube-vip/kube-vip-cloud-provider:v0.0.11", &json!([]));
        });
        change(&mut facts.guest, read::SERVICES, |all| all["items"][0]["status"] = json!({}));
    });
    assert!(other.contains(&("kube-vip", Verdict::Red)), "{other:?}");
}

#[test]
fn a_cluster_in_which_no_provider_is_seen_is_not_called_one_with_one_provider() {
    let none = told(|facts| answers(&mut facts.guest, read::DEPLOYMENTS, list(&json!([]))));
    assert_eq!(none, [("one-provider", Verdict::NotAsked)]);
}

/// Somebody's in namespace `team`.
fn tenants(mut workload: Value) -> Value {
    workload["metadata"]["namespace"] = json!("team");
    workload["spec"]["template"]["spec"]["serviceAccountName"] = json!("builder");
    workload
}

fn add(facts: &mut Facts, path: &str, workload: Value) {
    change(&mut facts.guest, path, |all| all["items"].as_array_mut().unwrap().insert(0, workload));
}

#[rstest]
#[case::a_provider(read::DEPLOYMENTS, "x/harvester-cloud-provider:1", json!([]))]
#[case::a_driver(read::DAEMON_SETS, "x/harvester-csi-driver:1", json!([]))]
#[case::a_driver_by_its_word(read::DAEMON_SETS, "x/harvester-cloud-provider:1", json!(["csi-driver"]))]
fn what_a_tenant_runs_under_a_name_of_these_programs_counts_only_with_rights_in_the_whole_cluster(
    #[case] path: &str,
    #[case] image: &str,
    #[case] args: Value,
) {
    let second = || tenants(workload("second", image, &args));
    assert_eq!(told(|facts| add(facts, path, second())), []);
    let bound = told(|facts| {
        add(facts, path, second());
        let subjects = json!([{"kind": "ServiceAccount", "namespace": "team", "name": "builder"}]);
        answers(&mut facts.guest, read::BINDINGS, list(&json!([{ "subjects": subjects }])));
    });
    assert_eq!(bound, [("one-provider", Verdict::Red)]);
}

#[rstest]
#[case::scaled_down("x/harvester-cloud-provider:1", json!([]), 0)]
#[case::another_program_of_the_image("x/harvester-cloud-provider:1", json!(["dashboard", "--kubeconfig=x"]), 1)]
#[case::a_word_among_arguments("x/tool:1", json!(["csi-driver"]), 1)]
fn what_does_not_run_a_second_provider_is_none(
    #[case] image: &str,
    #[case] args: Value,
    #[case] replicas: i64,
) {
    let told = told(|facts| {
        let mut second = workload("second", image, &args);
        second["spec"]["replicas"] = json!(replicas);
        add(facts, read::DEPLOYMENTS, second.clone());
        if replicas > 0 {
            add(facts, read::DAEMON_SETS, second);
        }
    });
    assert_eq!(told, []);
}

#[test]
fn a_tenants_image_of_the_name_of_kube_vip_does_not_hide_that_the_real_one_is_down() {
    let hidden = told(|facts| {
        change(&mut facts.guest, read::DAEMON_SETS, |all| {
            all["items"][0]["status"]["numberReady"] = json!(0);
        });
        add(facts, read::DAEMON_SETS, tenants(workload("kube-vip", "x/kube-vip:1", &json!([]))));
    });
    let waiting = ["dhcp", "service-addresses"].map(|id| (id, Verdict::NotAsked));
    assert_eq!(hidden, [("kube-vip", Verdict::Red), waiting[0], waiting[1]]);
}

#[test]
fn where_every_address_is_shown_a_kube_vip_that_nobody_sees_is_told_and_no_fault() {
    let none = told(|facts| {
        change(&mut facts.guest, read::DAEMON_SETS, |all| {
            drop(all["items"].as_array_mut().unwrap().remove(0));
        });
    });
    assert_eq!(
        none,
        [("kube-vip", Verdict::Amber)],
        "a static Pod or another program may announce, or nobody"
    );
    let unneeded = told(|facts| {
        change(&mut facts.guest, read::DAEMON_SETS, |all| {
            all["items"][0]["status"] = json!({"numberReady": 0, "desiredNumberScheduled": 0});
        });
        answers(&mut facts.guest, read::SERVICES, list(&json!([])));
    });
    assert_eq!(unneeded.iter().find(|(id, _)| *id == "kube-vip"), None, "{unneeded:?}");
}

#[test]
fn what_may_not_be_read_of_bindings_is_not_guessed() {
    let unread = told(|facts| {
        let refused = failed(Trouble::Forbidden, "clusterrolebindings is forbidden");
        answers(&mut facts.guest, read::BINDINGS, Err(refused));
    });
    assert!(unread.iter().all(|(_, verdict)| *verdict == Verdict::NotAsked), "{unread:?}");
    assert!(unread.iter().any(|(id, _)| *id == "one-provider"), "{unread:?}");
}

#[test]
fn a_driver_that_no_node_is_to_run_is_no_second_one() {
    let left = told(|facts| {
        let mut left = workload("old", "rancher/harvester-csi-driver:v0.1.20", &json!([]));
        left["status"] = json!({"numberReady": 0, "desiredNumberScheduled": 0});
        change(&mut facts.guest, read::DAEMON_SETS, |all| all["items"].as_array_mut().unwrap().push(left));
    });
    assert_eq!(left, []);
}

#[test]
fn the_command_about_kube_vip_names_the_kind_that_it_has() {
    let mend = |set: &str, field: &str| {
        let mut facts = healthy();
        let mut vip = workload("vip", "kube-vip:1", &json!([]));
        vip["status"] = json!({});
        vip["spec"][field] = json!(1);
        change(&mut facts.guest, read::DAEMON_SETS, |all| {
            drop(all["items"].as_array_mut().unwrap().remove(0));
        });
        change(&mut facts.guest, set, |all| all["items"].as_array_mut().unwrap().push(vip));
        let findings = decide(&facts, Occasion::Daily);
        findings.into_iter().find(|finding| finding.id == "kube-vip").unwrap().mend.unwrap()
    };
    assert_eq!(
        mend(read::DEPLOYMENTS, "replicas"),
        "`kubectl -n kube-system describe deployment vip` shows why"
    );
    assert_eq!(
        mend(read::DAEMON_SETS, "minReadySeconds"),
        "`kubectl -n kube-system describe daemonset vip` shows why"
    );
}

#[test]
fn a_driver_whose_pods_are_ready_on_some_nodes_alone_is_amber() {
    let some = told(|facts| {
        change(&mut facts.guest, read::DAEMON_SETS, |all| {
            all["items"][1]["status"] = json!({"numberReady": 1, "desiredNumberScheduled": 2});
        });
        change(&mut facts.guest, read::CSI_NODES, |all| {
            let second = all["items"][0].clone();
            all["items"].as_array_mut().unwrap().push(second);
        });
    });
    assert_eq!(some, [("csi-driver", Verdict::Amber)]);
}

#[test]
fn of_a_kube_vip_that_no_node_is_to_run_it_is_not_said_that_it_is_turned_off() {
    let mut facts = healthy();
    change(&mut facts.guest, read::DAEMON_SETS, |all| {
        all["items"][0]["status"] = json!({"numberReady": 0, "desiredNumberScheduled": 0});
    });
    let findings = decide(&facts, Occasion::Daily);
    let found = findings.into_iter().find(|finding| finding.id == "kube-vip").unwrap();
    assert_eq!(found.verdict, Verdict::Amber);
    assert!(found.sentence.contains("no Node matches DaemonSet kube-system/kube-vip"), "{found:?}");
    assert!(found.mend.as_ref().unwrap().contains("kube-vip.affinity"), "{found:?}");
}

#[test]
fn whoever_may_not_read_the_version_and_may_list_load_balancers_is_logged_in() {
    let told = told(|facts| {
        answers(&mut facts.harvester, read::VERSION, Err(failed(Trouble::Forbidden, "forbidden")));
    });
    assert_eq!(told, []);
}

/// Its Lease is of a Role in its namespace, so that it leads all the same.
#[rstest]
#[case::by_itself(json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "provider"}), "any", &[])]
#[case::as_a_user(json!({"kind": "User", "name": "system:serviceaccount:kube-system:provider"}), "any", &[])]
#[case::of_its_namespace(json!({"kind": "Group", "name": "system:serviceaccounts:kube-system"}), "any", &[])]
#[case::of_all(json!({"kind": "Group", "name": "system:serviceaccounts"}), "cluster-admin", &[])]
#[case::of_another_namespace(json!({"kind": "ServiceAccount", "namespace": "team", "name": "provider"}), "any",
    &[("ccm", Verdict::Red), ("service-addresses", Verdict::NotAsked)])]
#[case::what_everybody_may(json!({"kind": "Group", "name": "system:authenticated"}), "system:discovery",
    &[("ccm", Verdict::Red), ("service-addresses", Verdict::NotAsked)])]
fn a_cloud_provider_that_leads_and_may_do_nothing_in_the_guest_cluster_is_red(
    #[case] subject: Value,
    #[case] role: &str,
    #[case] expected: &[(&str, Verdict)],
) {
    let told = told(|facts| {
        change(&mut facts.guest, read::DEPLOYMENTS, |all| {
            all["items"][0]["spec"]["template"]["spec"]["serviceAccountName"] = json!("provider");
        });
        let binding = json!({"roleRef": {"name": role}, "subjects": [subject]});
        answers(&mut facts.guest, read::BINDINGS, list(&json!([binding])));
    });
    assert_eq!(told, expected);
}

#[test]
fn a_cloud_provider_with_a_kubeconfig_of_its_own_needs_no_account() {
    let told = told(|facts| {
        change(&mut facts.guest, read::DEPLOYMENTS, |all| {
            let pod = &mut all["items"][0]["spec"]["template"]["spec"];
            pod["serviceAccountName"] = json!("provider");
            pod["containers"][0]["args"] = json!(["--kubeconfig=/etc/guest"]);
        });
        let binding = json!({"roleRef": {"name": "x"}, "subjects": [{"kind": "User", "name": "other"}]});
        answers(&mut facts.guest, read::BINDINGS, list(&json!([binding])));
    });
    assert_eq!(told, []);
}

/// K3s makes it where `disable: [servicelb]` was forgotten, also with `disable-cloud-controller: true`.
#[test]
fn service_lb_of_k3s_is_a_second_provider() {
    let mut facts = healthy();
    let set = workload("svclb-web-1234", "rancher/klipper-lb:v0.4.9", &json!([]));
    add(&mut facts, read::DAEMON_SETS, set);
    let findings = decide(&facts, Occasion::Daily);
    let red: Vec<_> = findings.iter().filter(|finding| finding.verdict == Verdict::Red).collect();
    assert!(matches!(red[..], [one] if one.id == "one-provider"), "{red:?}");
    assert!(red[0].sentence.contains("kube-system/svclb-web-1234"), "{red:?}");
    assert!(red[0].mend.as_ref().unwrap().contains("disable: [servicelb]"), "{red:?}");
}

#[rstest]
#[case::for_all("quay.io/metallb/controller:v0.15.2", json!(["--port=7472"]), Some(Verdict::Amber))]
#[case::by_another_name("docker.io/bitnami/metallb-controller:0.15", json!([]), Some(Verdict::Amber))]
#[case::for_a_class("quay.io/metallb/controller:v0.15.2", json!(["--lb-class=metallb"]), None)]
#[case::of_somebody_else("registry.example/shop/controller:1", json!([]), None)]
fn metallb_is_told_where_it_serves_services_of_no_class(
    #[case] image: &str,
    #[case] args: Value,
    #[case] expected: Option<Verdict>,
) {
    let told = told(|facts| add(facts, read::DEPLOYMENTS, workload("controller", image, &args)));
    let expected: Vec<_> = expected.map(|verdict| ("one-provider", verdict)).into_iter().collect();
    assert_eq!(told, expected);
}

/// The chart of kube-vip, and `kube-vip manifest daemonset --controlplane`, ask one of them for the control plane's address alone.
#[rstest]
#[case::both_announce(&[("svc_enable", "true")], "manager", Verdict::Amber)]
#[case::by_another_word_of_go(&[("svc_enable", "1")], "manager", Verdict::Amber)]
#[case::by_the_flag(&[("cp_enable", "true")], "--services=true", Verdict::Amber)]
#[case::for_the_control_plane(&[("cp_enable", "true")], "manager", Verdict::Green)]
#[case::with_a_flag_that_begins_so(&[("cp_enable", "true")], "--servicesElection", Verdict::Green)]
#[case::by_a_variable_that_counts_before_the_flag(&[("svc_enable", "False")], "--services", Verdict::Green)]
#[case::for_one_class(&[("svc_enable", "true"), ("lb_class_only", "true")], "manager", Verdict::Green)]
#[case::for_one_class_by_the_flag(&[("svc_enable", "true")], "--lbClassOnly", Verdict::Green)]
fn of_two_kube_vips_it_is_told_where_both_announce_services(
    #[case] env: &[(&str, &str)],
    #[case] arg: &str,
    #[case] expected: Verdict,
) {
    let mut facts = healthy();
    let mut second = workload("second", "ghcr.io/kube-vip/kube-vip:v1.0.1", &json!([arg]));
    second["spec"]["template"]["spec"]["containers"][0]["env"] =
        env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    add(&mut facts, read::DAEMON_SETS, second);
    let findings = decide(&facts, Occasion::Daily);
    let found = findings.iter().find(|finding| finding.id == "kube-vip").unwrap();
    assert_eq!(found.verdict, expected, "{found:?}");
    let is_told_first = |mend: &String| mend.starts_with("set svc_enable to \"false\"");
    assert!(found.mend.as_ref().is_none_or(is_told_first), "{found:?}");
}
