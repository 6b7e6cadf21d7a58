//! Nobody gives what they do not hold: what a write of a role or a binding may grant.
//!
//! ```text
//! rules of the role ─► pieces (one verb, one resource) ─► those that the writer does not hold ─► 403 that lists them
//! ```
//! Members of `system:masters` may grant everything; so may who has the verb `escalate` on roles or `bind` on the role
//! that is bound.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{GROUP, Policy, Request, Rule, User, rules};
use crate::json::{elements, text};
use crate::kind::Kind;
use crate::status::Status;

/// A write of a role or binding.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The writer.
    pub user: &'a User,
    /// The kind of the written object.
    pub kind: &'a Kind,
    /// Empty for kinds without namespaces.
    pub namespace: &'a str,
    /// As the path names the object: empty in a POST.
    pub name: &'a str,
    /// The state before, if there is one.
    pub old: Option<&'a Value>,
    /// The state that is wanted.
    pub new: &'a Value,
}

impl Policy {
    /// Whether the writer may grant that. Objects of other kinds grant nothing.
    ///
    /// # Errors
    /// 403 with what the writer does not hold; 404 where a binding names a role that does not exist.
    pub fn check_grant(&self, grant: &Grant<'_>) -> Result<(), Status> {
        let Grant { user, kind, old, new, .. } = grant;
        let none = kind.group != GROUP || user.may_do_everything();
        if none || old.is_some_and(|old| same_but_for_the_collector(old, new)) {
            return Ok(());
        }
        match kind.kind.as_str() {
            "Role" | "ClusterRole" => self.check_role(grant),
            "RoleBinding" | "ClusterRoleBinding" => self.check_binding(grant),
            _ => Ok(()),
        }
    }

    fn check_role(&self, grant: &Grant<'_>) -> Result<(), Status> {
        let Grant { user, kind, namespace, name, old, new } = *grant;
        if self.may(user, "escalate", &kind.plural, namespace, name) {
            return Ok(());
        }
        let gathers = |role: &Value| !elements(&role["aggregationRule"]["clusterRoleSelectors"]).is_empty();
        if gathers(new) || old.is_some_and(gathers) {
            let everything = [Rule::of(&["*"], &["*"], &["*"]), Rule::of_paths(&["*"], &["*"])];
            if !self.missing(user, namespace, &everything).is_empty() {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                return Err(Status::forbidden(kind, text(&new["metadata"]["name"]), why));
            }
        }
        self.check_rules(grant, &rules(new))
    }

    fn check_binding(&self, grant: &Grant<'_>) -> Result<(), Status> {
        let Grant { user, kind, namespace, new, .. } = *grant;
        let (role_kind, role) = (text(&new["roleRef"]["kind"]), text(&new["roleRef"]["name"]));
        let (plural, at) = if role_kind == "Role" { ("roles", namespace) } else { ("clusterroles", "") };
        if self.may(user, "bind", plural, namespace, role) {
            return Ok(());
        }
        match self.roles.get(&(at.to_owned(), role.to_owned())) {
            Some(rules) => self.check_rules(grant, rules),
            None => Err(Status::not_found(kind, role)),
        }
    }

    fn check_rules(&self, grant: &Grant<'_>, rules: &[Rule]) -> Result<(), Status> {
        let Grant { user, kind, namespace, new, .. } = *grant;
        let missing = self.missing(user, namespace, rules);
        if missing.is_empty() {
            return Ok(());
        }
        let why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            quoted(&user.groups),
            missing.join("\n")
        );
        Err(Status::forbidden(kind, text(&new["metadata"]["name"]), &why))
    }

    fn may(&self, user: &User, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let request = Request::Resource { verb, group: GROUP, resource, subresource: "", namespace, name };
        self.allows(user, &request)
    }

    /// Returns the rules that the user does not hold in that namespace, in the words of the real server.
    fn missing(&self, user: &User, namespace: &str, rules: &[Rule]) -> Vec<String> {
        let held: Vec<&Rule> = self.rules_of(user, namespace).collect();
        let pieces = rules.iter().flat_map(pieces);
        let lost = pieces.filter(|piece| !held.iter().any(|rule| rule.covers_rule(piece)));
        // one line for each object of the rules, with its verbs together
        let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for piece in lost {
            let verbs = lines.entry(piece.object_text()).or_default();
            for verb in piece.verbs {
                if !verbs.contains(&verb) {
                    verbs.push(verb);
                }
            }
        }
        lines.iter().map(|(object, verbs)| format!("{{{object}, Verbs:{}}}", quoted(verbs))).collect()
    }
}

/// Go's `%q` of a list.
fn quoted(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

/// The garbage collector must be able to end what it may not grant: owners and finalizers are nobody's rights.
fn same_but_for_the_collector(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut rest = object.clone();
        if let Some(metadata) = rest["metadata"].as_object_mut() {
            for field in ["ownerReferences", "finalizers", "managedFields"] {
                metadata.remove(field);
            }
        }
        rest
    };
    rest(old) == rest(new)
}

/// A rule as rules of one verb on one resource (or one path), and of at most one name.
fn pieces(rule: &Rule) -> Vec<Rule> {
    let one = |text: &String| vec![text.clone()];
    let mut pieces = Vec::new();
    for group in &rule.groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let piece = Rule {
                    verbs: one(verb),
                    groups: one(group),
                    resources: one(resource),
                    ..Rule::default()
                };
                if rule.names.is_empty() {
                    pieces.push(piece.clone());
                }
                pieces.extend(rule.names.iter().map(|name| Rule { names: one(name), ..piece.clone() }));
            }
        }
    }
    for path in &rule.paths {
        let of = |verb| Rule { verbs: one(verb), paths: one(path), ..Rule::default() };
        pieces.extend(rule.verbs.iter().map(of));
    }
    pieces
}

impl Rule {
    fn of(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self { verbs: owned(verbs), groups: owned(groups), resources: owned(resources), ..Self::default() }
    }

    fn of_paths(verbs: &[&str], paths: &[&str]) -> Self {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        Self { paths, ..Self::of(verbs, &[], &[]) }
    }

    /// Whether who has this rule has that one.
    fn covers_rule(&self, other: &Self) -> bool {
        let all = |held: &[String], asked: &[String]| {
            held.iter().any(|item| item == "*") || asked.iter().all(|item| held.contains(item))
        };
        let resource = |asked: &String| {
            let (resource, subresource) = asked.split_once('/').unwrap_or((asked, ""));
            self.covers(resource, subresource)
        };
        let named = || !other.names.is_empty() && other.names.iter().all(|name| self.names.contains(name));
        all(&self.verbs, &other.verbs)
            && all(&self.groups, &other.groups)
            && other.resources.iter().all(resource)
            && (self.names.is_empty() || named())
            && other.paths.iter().all(|path| self.covers_path(path))
    }

    /// A piece without its verbs.
    fn object_text(&self) -> String {
        if !self.paths.is_empty() {
            return format!("NonResourceURLs:{}", quoted(&self.paths));
        }
        let names = if self.names.is_empty() {
            String::new()
        } else {
            format!(", ResourceNames:{}", quoted(&self.names))
        };
        format!("APIGroups:{}, Resources:{}{names}", quoted(&self.groups), quoted(&self.resources))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::builtin;
    use crate::rbac::bootstrap;

    /// Joe writes roles and bindings and reads pods and Services; Eve may escalate roles, and bind the role `view`.
    fn policy() -> Policy {
        let mut objects = bootstrap();
        let rbac = json!(["roles", "clusterroles", "rolebindings", "clusterrolebindings"]);
        let bind = |name: &str, namespace: Option<&str>| {
            let kind = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
            json!({"kind": kind, "metadata": {"name": name, "namespace": namespace},
                "roleRef": {"kind": "ClusterRole", "name": name}, "subjects": [{"kind": "User", "name": name}]})
        };
        objects.extend([
            json!({"kind": "ClusterRole", "metadata": {"name": "joe"}, "rules": [
                {"apiGroups": [GROUP], "resources": rbac, "verbs": ["create", "update"]},
                {"apiGroups": [""], "resources": ["pods", "services", "*/scale"], "verbs": ["get", "list"]},
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["*"]},
                {"nonResourceURLs": ["/debug/*"], "verbs": ["get"]}]}),
            bind("joe", None),
            json!({"kind": "ClusterRole", "metadata": {"name": "eve"}, "rules": [
                {"apiGroups": [GROUP], "resources": ["roles"], "verbs": ["escalate"]},
                {"apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["view"], "verbs": ["bind"]}]}),
            bind("eve", None),
            json!({"kind": "ClusterRole", "metadata": {"name": "jim"}, "rules": [
                {"apiGroups": [""], "resources": ["*"], "verbs": ["*"]}]}),
            bind("jim", Some("shop")),
            json!({"kind": "Role", "metadata": {"name": "local", "namespace": "shop"}, "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ]);
        Policy::of(&objects)
    }

    /// The refusal's code and message; nothing where it is allowed.
    fn answer(
        who: &str,
        kind: &str,
        namespace: &str,
        old: Option<&Value>,
        new: &Value,
    ) -> Option<(u16, String)> {
        let groups = if who == "root" { "system:masters" } else { "system:authenticated" };
        let user = User { name: who.into(), groups: vec![groups.into()] };
        let kind = builtin::find("rbac.authorization.k8s.io/v1", kind).unwrap();
        let grant = Grant { user: &user, kind, namespace, name: "", old, new };
        policy().check_grant(&grant).err().map(|status| (status.code, status.message))
    }

    fn role(rules: &Value) -> Value {
        json!({"metadata": {"name": "made"}, "rules": rules})
    }

    #[rstest]
    #[case::held("joe", json!([{"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]}]), "")]
    #[case::wildcard_subresource("joe", json!([{"apiGroups": [""], "resources": ["x/scale"], "verbs": ["get"]}]), "")]
    #[case::own_name("joe", json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["delete"]}]), "")]
    #[case::path("joe", json!([{"nonResourceURLs": ["/debug/pprof"], "verbs": ["get"]}]), "")]
    #[case::nothing("joe", json!([]), "")]
    #[case::masters("root", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]), "")]
    #[case::everything("joe", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        r#"{APIGroups:["*"], Resources:["*"], Verbs:["*"]}"#)]
    #[case::any_name("joe", json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]),
        r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#)]
    #[case::other_names("joe", json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["b", "a"], "verbs": ["get"]}]),
        "{APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"a\"], Verbs:[\"get\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"b\"], Verbs:[\"get\"]}")]
    #[case::several("joe", json!([
            {"apiGroups": [""], "resources": ["secrets", "pods"], "verbs": ["get", "list", "watch"]},
            {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]),
        "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\" \"watch\"]}\n\
         {NonResourceURLs:[\"/metrics\"], Verbs:[\"get\"]}")]
    #[case::subresource("joe", json!([{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["get"]}]),
        r#"{APIGroups:[""], Resources:["pods/status"], Verbs:["get"]}"#)]
    #[case::escalates_only_roles("eve", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
        r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#)]
    fn a_cluster_role_gives_only_what_its_writer_holds(
        #[case] who: &str,
        #[case] rules: Value,
        #[case] missing: &str,
    ) {
        let expected = (!missing.is_empty()).then(|| {
            let why = "is attempting to grant RBAC permissions not currently held:";
            let message = format!(
                "clusterroles.rbac.authorization.k8s.io \"made\" is forbidden: user {who:?} \
                 (groups=[\"system:authenticated\"]) {why}\n{missing}"
            );
            (403, message)
        });
        assert_eq!(answer(who, "ClusterRole", "", None, &role(&rules)), expected);
    }

    #[rstest]
    #[case::what_a_namespace_gives_stays_in_it("jim", "shop", true)]
    #[case::it_is_nothing_elsewhere("jim", "other", false)]
    #[case::escalate("eve", "other", true)]
    fn a_role_is_measured_in_its_namespace(
        #[case] who: &str,
        #[case] namespace: &str,
        #[case] allowed: bool,
    ) {
        let role = role(&json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["delete"]}]));
        assert_eq!(answer(who, "Role", namespace, None, &role).is_none(), allowed);
    }

    #[rstest]
    #[case::held("joe", "RoleBinding", ("Role", "local"), 0)]
    #[case::not_held("joe", "RoleBinding", ("ClusterRole", "cluster-admin"), 403)]
    #[case::not_held_anywhere("joe", "ClusterRoleBinding", ("ClusterRole", "view"), 403)]
    #[case::bind("eve", "ClusterRoleBinding", ("ClusterRole", "view"), 0)]
    #[case::bind_names_the_role("eve", "RoleBinding", ("ClusterRole", "edit"), 403)]
    #[case::absent("joe", "RoleBinding", ("ClusterRole", "absent"), 404)]
    #[case::absent_role("joe", "RoleBinding", ("Role", "view"), 404)]
    #[case::masters("root", "RoleBinding", ("Role", "absent"), 0)]
    fn a_binding_gives_only_what_its_writer_holds(
        #[case] who: &str,
        #[case] kind: &str,
        #[case] (role_kind, role): (&str, &str),
        #[case] code: u16,
    ) {
        let namespace = if kind == "RoleBinding" { "shop" } else { "" };
        let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": role_kind, "name": role}});
        let answer = answer(who, kind, namespace, None, &binding);
        assert_eq!(answer.map_or(0, |(code, _)| code), code);
    }

    #[test]
    fn only_who_may_do_everything_gathers_rules() {
        let gathers = json!({"metadata": {"name": "agg"},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
        let (code, message) = answer("joe", "ClusterRole", "", None, &gathers).unwrap();
        assert_eq!(code, 403);
        assert!(
            message.ends_with("must have cluster-admin privileges to use the aggregationRule"),
            "{message}"
        );
        assert!(answer("joe", "ClusterRole", "", Some(&gathers), &role(&json!([]))).is_some());
        assert!(answer("root", "ClusterRole", "", None, &gathers).is_none());
    }

    #[test]
    fn the_garbage_collector_ends_what_it_could_not_grant() {
        let mut old = role(&json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
        old["metadata"]["finalizers"] = json!(["a"]);
        let mut new = old.clone();
        new["metadata"]["finalizers"] = json!([]);
        assert!(answer("joe", "ClusterRole", "", Some(&old), &new).is_none());
        new["metadata"]["labels"] = json!({"a": "b"});
        assert!(answer("joe", "ClusterRole", "", Some(&old), &new).is_some());
    }
}
