//! The roles and bindings that a fresh cluster has.

use serde_json::{Value, json};

use super::{GROUP, gather};

/// The rules of `view`, `edit` and `admin` for the kinds of this server: role, groups, verbs, resources. `read`,
/// `write` and `all` stand for what ordinary resources offer.
const FOR_USERS: &str = "
view core read configmaps,endpoints,persistentvolumeclaims,persistentvolumeclaims/status,pods,serviceaccounts,services,services/status
view core read bindings,limitranges,namespaces/status,pods/log,pods/status,resourcequotas,resourcequotas/status
view core read namespaces
view core,events.k8s.io read events
view discovery.k8s.io read endpointslices
view apps read controllerrevisions,daemonsets,daemonsets/status,deployments,deployments/scale,deployments/status,replicasets,replicasets/scale,replicasets/status,statefulsets,statefulsets/scale,statefulsets/status
view batch read cronjobs,cronjobs/status,jobs,jobs/status
view policy read poddisruptionbudgets,poddisruptionbudgets/status
view networking.k8s.io read ingresses,ingresses/status,networkpolicies
edit core read pods/attach,pods/exec,pods/portforward,pods/proxy,secrets,services/proxy
edit core impersonate serviceaccounts
edit core write pods,pods/attach,pods/exec,pods/portforward,pods/proxy
edit core create pods/eviction
edit core write configmaps,persistentvolumeclaims,secrets,serviceaccounts,services,services/proxy
edit core create serviceaccounts/token
edit core,events.k8s.io write events
edit apps write daemonsets,deployments,deployments/scale,replicasets,replicasets/scale,statefulsets,statefulsets/scale
edit batch write cronjobs,jobs
edit policy write poddisruptionbudgets
edit networking.k8s.io write ingresses,networkpolicies
edit coordination.k8s.io all leases
admin authorization.k8s.io create localsubjectaccessreviews
admin rbac.authorization.k8s.io all rolebindings,roles
";

/// `cluster-admin`, what every authenticated user may do (discovery, health, version and the self reviews), and the roles
/// for people: `admin`, `edit`, `view`.
pub fn bootstrap() -> Vec<Value> {
    let discovery = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    let mut objects = vec![
        role(
            "cluster-admin",
            &json!([
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ]),
        ),
        role(
            "system:basic-user",
            &json!([
                {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                 "verbs": ["create"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
            ]),
        ),
        role("system:discovery", &json!([{"nonResourceURLs": discovery, "verbs": ["get"]}])),
        role(
            "system:public-info-viewer",
            &json!([
                {"nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"], "verbs": ["get"]},
            ]),
        ),
        binding("cluster-admin", &["system:masters"]),
        binding("system:basic-user", &["system:authenticated"]),
        binding("system:discovery", &["system:authenticated"]),
        binding("system:public-info-viewer", &["system:authenticated", "system:unauthenticated"]),
    ];
    objects.extend(["view", "edit", "admin"].into_iter().flat_map(for_users));
    loop {
        let gathered = gather(objects.iter().filter(|object| object["kind"] == "ClusterRole"));
        if gathered.is_empty() {
            return objects;
        }
        for (name, rules) in gathered {
            let role =
                objects.iter_mut().find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == name);
            role.expect("only roles of this list gather")["rules"] = rules;
        }
    }
}

/// A role that gathers what others give to it, among them the next smaller of the three, and what is given to it here.
fn for_users(name: &str) -> [Value; 2] {
    const READ: &[&str] = &["get", "list", "watch"];
    const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
    let label = |to: &str| format!("{GROUP}/aggregate-to-{to}");
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, groups, verbs, resources] = words[..] else {
            unreachable!("the table has four words a line")
        };
        let groups: Vec<&str> =
            groups.split(',').map(|group| if group == "core" { "" } else { group }).collect();
        let mut verbs = match verbs {
            "read" => READ.to_vec(),
            "write" => WRITE.to_vec(),
            "all" => [READ, WRITE].concat(),
            other => vec![other],
        };
        verbs.sort_unstable();
        json!({"apiGroups": groups, "resources": resources.split(',').collect::<Vec<_>>(), "verbs": verbs})
    };
    let own = FOR_USERS.lines().filter(|line| line.split(' ').next() == Some(name));
    let mut gives = role(&format!("system:aggregate-to-{name}"), &own.map(line).collect());
    gives["metadata"]["labels"][label(name)] = "true".into();
    let mut gathers = role(name, &json!([]));
    let larger = match name {
        "view" => Some("edit"),
        "edit" => Some("admin"),
        _ => None,
    };
    if let Some(larger) = larger {
        gathers["metadata"]["labels"][label(larger)] = "true".into();
    }
    gathers["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label(name): "true"}}]});
    [gives, gathers]
}

fn role(name: &str, rules: &Value) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": metadata(name), "rules": rules})
}

fn binding(role: &str, groups: &[&str]) -> Value {
    let subjects = groups
        .iter()
        .map(|group| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}))
        .collect::<Vec<_>>();
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": metadata(role),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": subjects})
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}})
}
