//! Which objects a kubeconfig needs, in their order, and what is to be done about each. Pure.

use std::{collections::BTreeSet, fmt};

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
pub(crate) fn rights(request: &Request, uid: &str) -> Vec<Step> {
    let Request { part, account, namespace, least, .. } = request;
    let name = format!("{namespace}-{account}");
    let own = Some(namespace.as_str());
    let mut steps = vec![binding(request, uid, &name, own, "ClusterRole", CLOUD_PROVIDER)];
    match (part, least) {
        (Part::CloudProvider, _) => {}
        (Part::CsiDriver, false) => steps.push(binding(request, uid, &name, None, "ClusterRole", CSI_DRIVER)),
        (Part::CsiDriver, true) => {
            // no account's name has a colon
            let split = format!("{name}:csi-driver");
            steps.push(binding(request, uid, &split, own, "ClusterRole", CSI_DRIVER));
            steps.push(role(None, &wide_rules()));
            steps.push(binding(request, uid, &split, None, "ClusterRole", LEAST));
            steps.push(role(Some(HARVESTER_SYSTEM), &export_rules()));
            steps.push(binding(request, uid, &split, Some(HARVESTER_SYSTEM), "Role", LEAST));
            let in_longhorn = [
                role(Some(LONGHORN_SYSTEM), &volume_rules()),
                binding(request, uid, &split, Some(LONGHORN_SYSTEM), "Role", LEAST),
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

// together those of harvester-csi-driver-shared in deploy/rbac/ours.yaml
fn wide_rules() -> Value {
    json!([
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list"]},
        {"apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshotclasses"], "verbs": ["get"]},
        {"apiGroups": ["harvesterhci.io"], "resources": ["settings"],
         "resourceNames": ["csi-driver-config"], "verbs": ["get"]},
        // whoever has the ID of a backup may restore it in another namespace
        {"apiGroups": ["harvesterhci.io"], "resources": ["volumeremotebackups"], "verbs": ["get"]},
    ])
}

fn export_rules() -> Value {
    json!([{"apiGroups": ["harvesterhci.io"], "resources": ["networkfilesystems"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]}])
}

fn volume_rules() -> Value {
    json!([{"apiGroups": ["longhorn.io"], "resources": ["volumes"], "verbs": ["get"]}])
}

/// Who makes an account of this name anew gets nothing that goes with the account.
fn owners(request: &Request, uid: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": "ServiceAccount", "name": request.account, "uid": uid}])
}

fn binding(
    request: &Request,
    uid: &str,
    name: &str,
    place: Option<&str>,
    role_kind: &str,
    role: &str,
) -> Step {
    let kind = if place.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
    let mut object = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": request.account, "namespace": request.namespace}],
    });
    if let Some(place) = place {
        object["metadata"]["namespace"] = place.into();
        if place == request.namespace {
            object["metadata"]["ownerReferences"] = owners(request, uid);
        }
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
        "metadata": {"name": anchor, "namespace": namespace, "ownerReferences": owners(request, uid)},
    });
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "Role",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owners(request, uid)},
        "rules": [{"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [account],
                   "verbs": ["create"]}],
    });
    let secret_title = format!("\nCreating a secret that revokes tokens in {namespace} namespace: {anchor}");
    vec![
        Step::Ensure { title: secret_title, object: secret },
        Step::Ensure { title: title("Role", Some(namespace), &name), object: role },
        binding(request, uid, &name, Some(namespace), "Role", &name),
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
            "ownerReferences": owners(request, uid),
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
        "Secret" if wanted["type"] == TOKEN_TYPE => {
            let uid = wanted["metadata"]["annotations"][OWNER].as_str().unwrap_or_default();
            own_secret(is_token_of(found, uid))
        }
        // the anchor: one of the same name may hold somebody's password, who replaces it when he likes
        "Secret" => {
            let uid = |object: &Value| object["metadata"]["ownerReferences"][0]["uid"].clone();
            own_secret(found["type"] == wanted["type"] && uid(found) == uid(wanted))
        }
        "Role" | "ClusterRole" => {
            let (found, wanted) = (Right::all(&found["rules"]), Right::all(&wanted["rules"]));
            match (found.difference(&wanted).next(), wanted.difference(&found).next()) {
                (Some(more), _) => Verdict::Refuse(format!("grants {more} too")),
                (None, Some(less)) => Verdict::Refuse(format!("lacks {less}")),
                (None, None) => Verdict::Unchanged,
            }
        }
        _ => Verdict::Unchanged,
    }
}

fn own_secret(is_own: bool) -> Verdict {
    if is_own { Verdict::Unchanged } else { Verdict::Refuse("is not of this account".to_owned()) }
}

/// Whether the Secret has the token of the account with this UID.
pub(crate) fn is_token_of(secret: &Value, uid: &str) -> bool {
    secret["type"] == TOKEN_TYPE && !uid.is_empty() && secret["metadata"]["annotations"][OWNER] == uid
}

/// One verb of a rule on one resource, however the rules are put together.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: String,
    group: String,
    resource: String,
    /// Empty: every object.
    name: String,
}

impl Right {
    fn all(rules: &Value) -> BTreeSet<Self> {
        let texts = |rule: &Value, field: &str| {
            let list = rule[field].as_array().into_iter().flatten();
            list.filter_map(|text| text.as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        let mut all = BTreeSet::new();
        for rule in rules.as_array().into_iter().flatten() {
            let mut add = |group: &str, resource: &str, name: &str| {
                let one = |verb| Self {
                    verb,
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    name: name.to_owned(),
                };
                all.extend(texts(rule, "verbs").into_iter().map(one));
            };
            let mut names = texts(rule, "resourceNames");
            if names.is_empty() {
                names.push(String::new());
            }
            for group in texts(rule, "apiGroups") {
                for resource in texts(rule, "resources") {
                    names.iter().for_each(|name| add(&group, &resource, name));
                }
            }
            texts(rule, "nonResourceURLs").iter().for_each(|path| add("", path, ""));
        }
        all
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " {}", self.name) }
    }
}

/// Who else is in a binding, as `ServiceAccount vms/demo`.
pub(crate) fn others(binding: &Value, wanted: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let title = |one: &Value| {
        let place = one["namespace"].as_str().map(|place| format!("{place}/")).unwrap_or_default();
        format!("{} {place}{}", text(&one["kind"]), text(&one["name"]))
    };
    names(binding).filter(|one| !is_same(one, &wanted["subjects"][0])).map(title).collect()
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
        rights(request, "1").into_iter().filter_map(object).map(name).collect()
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

    /// The garbage collector of Kubernetes takes what the account owns, in its own namespace alone.
    #[test]
    fn what_is_in_the_namespace_of_the_account_goes_with_it() {
        let request = request(Part::CsiDriver, "vms", "demo", true);
        let mut objects: Vec<_> = rotation(&request, "1").into_iter().map(object_of).collect();
        let of_rights =
            rights(&request, "1").into_iter().filter(|step| !matches!(step, Step::TellOfWide { .. }));
        objects.extend(of_rights.map(object_of));
        objects.push(secret(&request, "1"));
        for object in objects {
            let owner = &object["metadata"]["ownerReferences"][0];
            let expected = if object["metadata"]["namespace"] == "vms" { json!("1") } else { Value::Null };
            assert_eq!(owner["uid"], expected, "{object}");
        }
    }

    fn object_of(step: Step) -> Value {
        match step {
            Step::Ensure { object, .. } | Step::EnsureIn { object, .. } => object,
            Step::TellOfWide { .. } => panic!("{step:?}"),
        }
    }

    #[test]
    fn a_role_of_that_name_with_other_rules_is_named_and_nothing_is_bound_to_it() {
        let wanted = object_of(role(None, &wide_rules()));
        assert_eq!(decide(Some(&wanted), &wanted), Verdict::Unchanged);
        let with = |rules: Value| {
            let mut found = wanted.clone();
            found["rules"] = rules;
            decide(Some(&found), &wanted)
        };
        // the same rights, written in another way
        let mut split = wide_rules();
        split[0]["verbs"] = json!(["get"]);
        let list =
            json!({"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["list"]});
        split.as_array_mut().unwrap().push(list);
        assert_eq!(with(split), Verdict::Unchanged);
        let mut more = wide_rules();
        more[1]["verbs"] = json!(["get", "delete"]);
        let mut all = wide_rules();
        all[2]["resourceNames"] = json!([]);
        let mut health = wide_rules();
        health.as_array_mut().unwrap().push(json!({"nonResourceURLs": ["*"], "verbs": ["*"]}));
        for (rules, why) in [
            (more, "grants delete volumesnapshotclasses too"),
            (all, "grants get settings too"),
            (health, "grants * * too"),
            (json!([]), "lacks get settings csi-driver-config"),
            (Value::Null, "lacks get settings csi-driver-config"),
        ] {
            assert_eq!(with(rules.clone()), Verdict::Refuse(why.to_owned()), "{rules}");
        }
    }

    #[test]
    fn a_secret_of_another_purpose_is_not_made_the_anchor() {
        let request = request(Part::CloudProvider, "vms", "demo", false);
        let anchor = |uid: &str| object_of(rotation(&request, uid).remove(0));
        assert_eq!(decide(Some(&anchor("1")), &anchor("1")), Verdict::Unchanged);
        let mut passwords = anchor("1");
        passwords["metadata"]["ownerReferences"] = Value::Null;
        for other in [passwords, anchor("2")] {
            assert!(matches!(decide(Some(&other), &anchor("1")), Verdict::Refuse(_)), "{other}");
        }
    }

    #[test]
    fn a_binding_that_gets_a_second_subject_is_told_with_the_first() {
        let own = json!([{"kind": "ServiceAccount", "name": "d", "namespace": "v"}]);
        let other = json!([{"kind": "ServiceAccount", "name": "c", "namespace": "v-d"}, {"kind": "User", "name": "u"}]);
        let told = others(&bound(&other, "r"), &bound(&own, "r"));
        assert_eq!(told, ["ServiceAccount v-d/c", "User u"]);
        assert_eq!(others(&bound(&own, "r"), &bound(&own, "r")), Vec::<String>::new());
    }

    #[test]
    fn a_secret_of_a_former_account_is_not_taken() {
        let request = request(Part::CloudProvider, "vms", "demo", false);
        let former = secret(&request, "1");
        assert_eq!(decide(Some(&former), &secret(&request, "1")), Verdict::Unchanged);
        assert!(matches!(decide(Some(&former), &secret(&request, "2")), Verdict::Refuse(_)));
        assert!(is_token_of(&former, "1") && !is_token_of(&former, "2") && !is_token_of(&former, ""));
    }
}
