//! Which objects a kubeconfig needs, in their order, and what is to be done about each. Pure.

use credential_rotation::token::anchor_name;
use serde_json::{Value, json};

use crate::request::{Part, Request};

/// Harvester's role for a guest cluster, in the namespace of its VMs.
pub(crate) const CLOUD_PROVIDER: &str = "harvesterhci.io:cloudprovider";
/// Harvester's role for a CSI driver, in the whole cluster.
pub(crate) const CSI_DRIVER: &str = "harvesterhci.io:csi-driver";
/// What a CSI driver needs outside of its namespace, where it is bound there alone.
const LEAST: &str = "harvester-csi-driver-least";
const HARVESTER_SYSTEM: &str = "harvester-system";
const LONGHORN_SYSTEM: &str = "longhorn-system";
const RBAC: &str = "rbac.authorization.k8s.io";

/// One step, in the order of the output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Makes what is not there.
    Ensure { title: String, object: Value },
    /// As `Ensure`, where this namespace is there.
    EnsureIn { namespace: &'static str, title: String, object: Value },
    /// Tells of a ClusterRoleBinding that grants this role to the account in all namespaces.
    TellOfWide { name: String, role: &'static str },
}

/// The account; the steps after it need none of its fields.
pub(crate) fn account(request: &Request) -> (String, Value) {
    let Request { account, namespace, .. } = request;
    let title = format!("Creating a service account in {namespace} namespace: {account}");
    (
        title,
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}),
    )
}

/// Roles of Harvester that must be there.
pub(crate) fn roles(part: Part) -> &'static [&'static str] {
    match part {
        Part::CloudProvider => &[CLOUD_PROVIDER],
        Part::CsiDriver => &[CLOUD_PROVIDER, CSI_DRIVER],
    }
}

/// The rights of the account.
pub(crate) fn rights(request: &Request) -> Vec<Step> {
    let Request { part, account, namespace, least, .. } = request;
    let name = format!("{namespace}-{account}");
    let own = Some(namespace.as_str());
    let mut steps = vec![binding(request, &name, own, "ClusterRole", CLOUD_PROVIDER)];
    match (part, least) {
        (Part::CloudProvider, _) => {}
        (Part::CsiDriver, false) => steps.push(binding(request, &name, None, "ClusterRole", CSI_DRIVER)),
        (Part::CsiDriver, true) => {
            // no account's name has a colon
            let split = format!("{name}:csi-driver");
            steps.push(binding(request, &split, own, "ClusterRole", CSI_DRIVER));
            steps.push(role(None, &wide_rules()));
            steps.push(binding(request, &split, None, "ClusterRole", LEAST));
            steps.push(role(Some(HARVESTER_SYSTEM), &export_rules()));
            steps.push(binding(request, &split, Some(HARVESTER_SYSTEM), "Role", LEAST));
            let in_longhorn = [
                role(Some(LONGHORN_SYSTEM), &volume_rules()),
                binding(request, &split, Some(LONGHORN_SYSTEM), "Role", LEAST),
            ];
            for step in in_longhorn {
                let Step::Ensure { title, object } = step else { continue };
                steps.push(Step::EnsureIn { namespace: LONGHORN_SYSTEM, title, object });
            }
            steps.push(Step::TellOfWide { name, role: CSI_DRIVER });
        }
    }
    // what the Go program's script made
    steps.push(Step::TellOfWide { name: account.clone(), role: CLOUD_PROVIDER });
    steps
}

fn wide_rules() -> Value {
    json!([
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshotclasses"], "verbs": ["get"]},
        {"apiGroups": ["harvesterhci.io"], "resources": ["settings"],
         "resourceNames": ["csi-driver-config", "csi-online-expand-validation"], "verbs": ["get"]},
    ])
}

fn export_rules() -> Value {
    json!([{"apiGroups": ["harvesterhci.io"], "resources": ["networkfilesystems"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]}])
}

fn volume_rules() -> Value {
    json!([{"apiGroups": ["longhorn.io"], "resources": ["volumes"], "verbs": ["get"]}])
}

fn binding(request: &Request, name: &str, place: Option<&str>, role_kind: &str, role: &str) -> Step {
    let kind = if place.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
    let mut object = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": request.account, "namespace": request.namespace}],
    });
    if let Some(place) = place {
        object["metadata"]["namespace"] = place.into();
    }
    Step::Ensure { title: title(kind, place, name), object }
}

fn role(place: Option<&str>, rules: &Value) -> Step {
    let kind = if place.is_some() { "Role" } else { "ClusterRole" };
    let mut object = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": LEAST}, "rules": rules,
    });
    if let Some(place) = place {
        object["metadata"]["namespace"] = place.into();
    }
    Step::Ensure { title: title(kind, place, LEAST), object }
}

fn title(kind: &str, place: Option<&str>, name: &str) -> String {
    let place = place.map(|place| format!(" in {place} namespace")).unwrap_or_default();
    format!("\nCreating a {}{place}: {name}", kind.to_lowercase())
}

/// What an account needs that renews its own token.
pub(crate) fn rotation(request: &Request, uid: &str) -> Vec<Step> {
    let Request { account, namespace, .. } = request;
    let (anchor, name) = (anchor_name(account), format!("{namespace}-{account}:token"));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": anchor, "namespace": namespace, "ownerReferences": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "name": account, "uid": uid}]},
    });
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": {"name": name, "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [account],
                   "verbs": ["create"]}],
    });
    let secret_title = format!("\nCreating a secret that revokes tokens in {namespace} namespace: {anchor}");
    vec![
        Step::Ensure { title: secret_title, object: secret },
        Step::Ensure { title: title("Role", Some(namespace), &name), object: role },
        binding(request, &name, Some(namespace), "Role", &name),
    ]
}

/// Name of the Secret that gets the account's token.
pub(crate) fn secret_name(account: &str) -> String {
    format!("{account}-token")
}

/// The Secret that gets the account's token.
pub(crate) fn secret(request: &Request, uid: &str) -> Value {
    let Request { account, namespace, .. } = request;
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": TOKEN_TYPE,
        "metadata": {
            "name": secret_name(account), "namespace": namespace,
            "annotations": {"kubernetes.io/service-account.name": account, OWNER: uid},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ServiceAccount", "name": account, "uid": uid}],
        },
    })
}

const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
const OWNER: &str = "kubernetes.io/service-account.uid";

/// What is to be done about an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Create,
    Unchanged,
    /// The object as it was, with the account in it too.
    Replace(Value),
    /// It is there and means something else; what.
    Refuse(String),
}

/// Compares the object that is there with the one that is wanted. What others have put into it stays.
pub(crate) fn decide(found: Option<&Value>, wanted: &Value) -> Verdict {
    let Some(found) = found else { return Verdict::Create };
    match wanted["kind"].as_str().unwrap_or_default() {
        "RoleBinding" | "ClusterRoleBinding" => {
            let role =
                |object: &Value| (object["roleRef"]["kind"].clone(), object["roleRef"]["name"].clone());
            if role(found) != role(wanted) {
                let other = found["roleRef"]["name"].as_str().unwrap_or_default();
                return Verdict::Refuse(format!("grants the role {other}"));
            }
            let subject = &wanted["subjects"][0];
            if names(found).any(|one| is_same(one, subject)) {
                return Verdict::Unchanged;
            }
            let mut object = found.clone();
            let mut subjects: Vec<Value> = names(found).cloned().collect();
            subjects.push(subject.clone());
            object["subjects"] = subjects.into();
            Verdict::Replace(object)
        }
        "Secret" => {
            let owner =
                |object: &Value| (object["type"].clone(), object["metadata"]["annotations"][OWNER].clone());
            if owner(found) == owner(wanted) {
                Verdict::Unchanged
            } else {
                Verdict::Refuse("is not of this account".to_owned())
            }
        }
        _ => Verdict::Unchanged,
    }
}

fn names(binding: &Value) -> impl Iterator<Item = &Value> {
    binding["subjects"].as_array().into_iter().flatten()
}

fn is_same(one: &Value, other: &Value) -> bool {
    ["kind", "name", "namespace"].iter().all(|field| one[field] == other[field])
}

/// Whether a ClusterRoleBinding grants this role to the account.
pub(crate) fn is_wide(binding: &Value, role: &str, request: &Request) -> bool {
    let subject = json!({"kind": "ServiceAccount", "name": request.account, "namespace": request.namespace});
    binding["roleRef"]["name"] == role && names(binding).any(|one| is_same(one, &subject))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::request::Format;

    fn request(part: Part, namespace: &str, account: &str, least: bool) -> Request {
        Request {
            part,
            account: account.to_owned(),
            namespace: namespace.to_owned(),
            format: Format::CloudInit,
            server: None,
            least,
            keep: false,
            check: true,
            rotate: None,
        }
    }

    /// Kind, namespace and name of what a plan makes.
    fn made(request: &Request) -> Vec<String> {
        let object = |step| match step {
            Step::Ensure { object, .. } | Step::EnsureIn { object, .. } => Some(object),
            Step::TellOfWide { .. } => None,
        };
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let name = |object: Value| {
            let metadata = &object["metadata"];
            let role = object["roleRef"]["name"].as_str().unwrap_or("rules").to_owned();
            format!(
                "{} {}/{} {role}",
                text(&object["kind"]),
                text(&metadata["namespace"]),
                text(&metadata["name"])
            )
        };
        rights(request).into_iter().filter_map(object).map(name).collect()
    }

    #[test]
    fn the_cloud_provider_has_rights_in_one_namespace_alone() {
        let made = made(&request(Part::CloudProvider, "vms", "demo", false));
        assert_eq!(made, ["RoleBinding vms/vms-demo harvesterhci.io:cloudprovider"]);
    }

    #[test]
    fn the_csi_driver_has_its_role_in_the_whole_cluster_unless_the_least_is_asked_for() {
        let all = made(&request(Part::CsiDriver, "vms", "demo", false));
        assert_eq!(all[1], "ClusterRoleBinding -/vms-demo harvesterhci.io:csi-driver");
        let least = made(&request(Part::CsiDriver, "vms", "demo", true));
        let wide: Vec<_> = least.iter().filter(|one| one.starts_with("ClusterRoleBinding")).collect();
        assert_eq!(wide, ["ClusterRoleBinding -/vms-demo:csi-driver harvester-csi-driver-least"]);
        assert!(
            least.contains(&"RoleBinding vms/vms-demo:csi-driver harvesterhci.io:csi-driver".to_owned()),
            "{least:?}"
        );
    }

    #[test]
    fn clusters_of_one_name_in_two_namespaces_share_no_object() {
        for least in [false, true] {
            let of = |namespace| made(&request(Part::CsiDriver, namespace, "demo", least));
            let (blue, green) = (of("blue"), of("green"));
            let shared: Vec<_> = blue.iter().filter(|one| green.contains(one)).collect();
            assert!(shared.iter().all(|one| one.ends_with(" rules")), "{shared:?}");
        }
    }

    fn bound(subjects: &Value, role: &str) -> Value {
        json!({"kind": "ClusterRoleBinding", "metadata": {"name": "a", "resourceVersion": "7"}, "subjects": subjects,
               "roleRef": {"kind": "ClusterRole", "name": role}})
    }

    #[rstest]
    #[case::absent(None, "create")]
    #[case::there(Some(bound(&json!([{"kind": "ServiceAccount", "name": "d", "namespace": "v", "apiGroup": ""}]), "r")), "unchanged")]
    #[case::others(Some(bound(&json!([{"kind": "ServiceAccount", "name": "d", "namespace": "w"}]), "r")), "2")]
    #[case::nobody(Some(bound(&Value::Null, "r")), "1")]
    #[case::other_role(Some(bound(&json!([]), "s")), "grants the role s")]
    fn a_binding_that_is_there_keeps_what_others_put_into_it(
        #[case] found: Option<Value>,
        #[case] expected: &str,
    ) {
        let wanted = bound(&json!([{"kind": "ServiceAccount", "name": "d", "namespace": "v"}]), "r");
        let told = match decide(found.as_ref(), &wanted) {
            Verdict::Create => "create".to_owned(),
            Verdict::Unchanged => "unchanged".to_owned(),
            Verdict::Refuse(why) => why,
            Verdict::Replace(object) => {
                assert_eq!(
                    object["metadata"]["resourceVersion"], "7",
                    "the write is for the version that was read"
                );
                names(&object).count().to_string()
            }
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn a_secret_of_a_former_account_is_not_taken() {
        let request = request(Part::CloudProvider, "vms", "demo", false);
        let former = secret(&request, "1");
        assert_eq!(decide(Some(&former), &secret(&request, "1")), Verdict::Unchanged);
        assert!(matches!(decide(Some(&former), &secret(&request, "2")), Verdict::Refuse(_)));
    }
}
