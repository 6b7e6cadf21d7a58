use rstest::rstest;
use serde_json::json;

use super::*;

fn policy() -> Policy {
    let mut objects = bootstrap();
    objects.extend(
        json!([
            {"kind": "ClusterRole", "metadata": {"name": "ccm"}, "rules": [
                {"apiGroups": [""], "resources": ["services", "nodes/status"], "verbs": ["get", "list"]},
                {"apiGroups": ["", "apps"], "resources": ["*/scale"], "verbs": ["update"]},
                {"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]}]},
            {"kind": "ClusterRoleBinding", "metadata": {"name": "ccm"},
             "roleRef": {"kind": "ClusterRole", "name": "ccm"},
             "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "ccm"}]},
            {"kind": "Role", "metadata": {"name": "one", "namespace": "shop"}, "rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["leader"], "verbs": ["*"]}]},
            {"kind": "RoleBinding", "metadata": {"name": "one", "namespace": "shop"},
             "roleRef": {"kind": "Role", "name": "one"},
             "subjects": [{"kind": "ServiceAccount", "name": "lead"}, {"kind": "Group", "name": "dev"}]},
            {"kind": "RoleBinding", "metadata": {"name": "admin", "namespace": "shop"},
             "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}, "subjects": [{"kind": "User", "name": "jane"}]},
            {"kind": "RoleBinding", "metadata": {"name": "lost", "namespace": "shop"},
             "roleRef": {"kind": "Role", "name": "absent"}, "subjects": [{"kind": "User", "name": "jane"}]},
        ])
        .as_array()
        .unwrap()
        .clone(),
    );
    Policy::of(&objects)
}

fn user(name: &str) -> User {
    let (name, group) = name.split_once('/').unwrap_or((name, "system:authenticated"));
    User { name: name.into(), groups: vec![group.into()] }
}

const CCM: &str = "system:serviceaccount:kube-system:ccm";
const LEAD: &str = "system:serviceaccount:shop:lead";

#[rstest]
#[case(CCM, "get", ("", "services", ""), ("shop", "web"), true)]
#[case(CCM, "list", ("", "services", ""), ("", ""), true)]
#[case(CCM, "update", ("", "services", ""), ("shop", "web"), false)]
#[case(CCM, "get", ("", "services", "status"), ("shop", "web"), false)]
#[case(CCM, "get", ("", "nodes", "status"), ("", "n1"), true)]
#[case(CCM, "get", ("", "nodes", ""), ("", "n1"), false)]
#[case(CCM, "update", ("apps", "deployments", "scale"), ("shop", "d"), true)]
#[case(CCM, "update", ("batch", "deployments", "scale"), ("shop", "d"), false)]
#[case(LEAD, "update", ("coordination.k8s.io", "leases", ""), ("shop", "leader"), true)]
#[case(LEAD, "update", ("coordination.k8s.io", "leases", ""), ("shop", "other"), false)]
#[case(LEAD, "create", ("coordination.k8s.io", "leases", ""), ("shop", ""), false)]
#[case(LEAD, "get", ("coordination.k8s.io", "leases", ""), ("other", "leader"), false)]
#[case("joe/dev", "get", ("coordination.k8s.io", "leases", ""), ("shop", "leader"), true)]
#[case("jane", "delete", ("x", "anything", "y"), ("shop", ""), true)]
#[case("jane", "list", ("", "services", ""), ("", ""), false)]
#[case("jane", "get", ("", "nodes", ""), ("", "n1"), false)]
#[case("root/system:masters", "x", ("y", "z", ""), ("", ""), true)]
fn on_resources(
    #[case] who: &str,
    #[case] verb: &str,
    #[case] (group, resource, subresource): (&str, &str, &str),
    #[case] (namespace, name): (&str, &str),
    #[case] allowed: bool,
) {
    let request = Request::Resource { verb, group, resource, subresource, namespace, name };
    assert_eq!(policy().allows(&user(who), &request), allowed);
}

#[rstest]
#[case(CCM, "/metrics", true)]
#[case(CCM, "/metrics/x", false)]
#[case(CCM, "/debug/pprof", true)]
#[case(CCM, "/readyz", true)]
#[case(CCM, "/logs", false)]
#[case("ghost/system:unauthenticated", "/version", true)]
#[case("ghost/system:unauthenticated", "/apis", false)]
#[case("jane", "/logs", false)] // a RoleBinding gives no paths
fn on_paths(#[case] who: &str, #[case] path: &str, #[case] allowed: bool) {
    assert_eq!(policy().allows(&user(who), &Request::Path { verb: "get", path }), allowed);
}

#[test]
fn a_refusal_names_user_verb_resource_and_place() {
    let request = Request::Resource {
        verb: "update",
        group: "apps",
        resource: "deployments",
        subresource: "status",
        namespace: "default",
        name: "d",
    };
    assert_eq!(
        request.refusal(&user("jane")),
        "User \"jane\" cannot update resource \"deployments/status\" in API group \"apps\" in the namespace \"default\""
    );
    let path = Request::Path { verb: "get", path: "/metrics" };
    assert_eq!(path.refusal(&user("jane")), "User \"jane\" cannot get path \"/metrics\"");
}

#[test]
fn a_rules_review_lists_what_holds_in_the_namespace() {
    let rules = policy().rules(&User { name: "joe".into(), groups: vec!["dev".into()] }, "shop");
    assert_eq!(
        rules,
        json!({"incomplete": false, "nonResourceRules": [], "resourceRules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["leader"], "verbs": ["*"]}]})
    );
    assert_eq!(
        policy().rules(&user("root/system:masters"), "shop")["resourceRules"][0]["verbs"],
        json!(["*"])
    );
}

#[test]
fn the_roles_for_people_contain_each_other() {
    let objects = bootstrap();
    let rules = |name: &str| {
        let role = objects.iter().find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == name);
        elements(&role.unwrap()["rules"]).to_vec()
    };
    let (view, edit, admin) = (rules("view"), rules("edit"), rules("admin"));
    assert!(view.iter().all(|rule| edit.contains(rule)) && edit.iter().all(|rule| admin.contains(rule)));
    assert!(view.len() > 5 && view.len() < edit.len() && edit.len() < admin.len());
    let verbs = view.iter().flat_map(|rule| elements(&rule["verbs"]));
    assert!(verbs.map(text).all(|verb| ["get", "list", "watch"].contains(&verb)));
    assert!(gather(objects.iter().filter(|o| o["kind"] == "ClusterRole")).is_empty());
}
