//! RBAC: who may do what, from the Roles and bindings of a cluster.
//!
//! ```text
//! Role, ClusterRole ──┐
//!                     ├─ Policy::of ─► Policy ── allows(user, request) ─► yes or no
//! bindings ───────────┘                      ├── rules(user, namespace) ─► SelfSubjectRulesReview.status
//!                                            └── check_grant(write of a role or binding) ─► 403: who cannot, cannot give
//! ```
//! Rules only add; without a rule the answer is no. Members of `system:masters` may do everything. A binding of a
//! role that does not exist gives nothing. Aggregated ClusterRoles are taken by the rules that stand in them, which
//! [`gather`] says.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::json::{elements, text};

pub use bootstrap::bootstrap;
pub use gather::gather;
pub use grant::Grant;

mod bootstrap;
mod gather;
mod grant;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";
/// The group whose members may do everything.
pub const MASTERS: &str = "system:masters";
/// Prefix of the user names of service accounts; namespace and name follow.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The user name of a service account.
pub fn service_account(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT}{namespace}:{name}")
}

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User name, such as `system:serviceaccount:kube-system:cloud-controller-manager`.
    pub name: String,
    /// Groups, such as `system:authenticated`.
    pub groups: Vec<String>,
}

impl User {
    /// The service account behind the name, as (namespace, name).
    pub fn service_account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')
    }

    /// Whether no rule is asked.
    pub fn may_do_everything(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}

/// The action of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// A verb on objects.
    Resource {
        /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or any other word.
        verb: &'a str,
        /// API group, empty for core.
        group: &'a str,
        /// Plural.
        resource: &'a str,
        /// `status` and so on, empty for the object itself.
        subresource: &'a str,
        /// Empty for cluster-scoped kinds and for lists over all namespaces.
        namespace: &'a str,
        /// Empty where no single object is named.
        name: &'a str,
    },
    /// A verb on a path outside the API, such as `/healthz`.
    Path {
        /// The HTTP method in lower case.
        verb: &'a str,
        /// The whole path.
        path: &'a str,
    },
}

impl Request<'_> {
    /// The sentence that a refusal gives (to be put into a Status by [`crate::status::Status::unauthorized_by_rbac`]).
    pub fn refusal(&self, user: &User) -> String {
        let who = &user.name;
        match *self {
            Request::Path { verb, path } => format!("User {who:?} cannot {verb} path {path:?}"),
            Request::Resource { verb, group, resource, subresource, namespace, .. } => {
                let resource = full_name(resource, subresource);
                let place = if namespace.is_empty() {
                    "at the cluster scope".to_owned()
                } else {
                    format!("in the namespace {namespace:?}")
                };
                format!("User {who:?} cannot {verb} resource {resource:?} in API group {group:?} {place}")
            }
        }
    }
}

/// The rules and bindings of a cluster, ready to be asked; made anew when one of them changes.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    bindings: Vec<Binding>,
    /// By namespace (of a ClusterRole empty) and name.
    roles: HashMap<(String, String), Arc<[Rule]>>,
}

#[derive(Clone, Debug)]
struct Binding {
    /// Of a RoleBinding; rules of a ClusterRoleBinding hold everywhere.
    namespace: Option<String>,
    subjects: Vec<Subject>,
    rules: Arc<[Rule]>,
}

#[derive(Clone, Debug)]
enum Subject {
    User(String),
    Group(String),
}

#[derive(Clone, Debug, Default)]
struct Rule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    paths: Vec<String>,
}

impl Policy {
    /// Reads Roles, ClusterRoles, RoleBindings and ClusterRoleBindings; other objects are passed over.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut roles: HashMap<(String, String), Arc<[Rule]>> = HashMap::new();
        let mut bindings = Vec::new();
        for object in objects {
            let metadata = &object["metadata"];
            let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]).to_owned());
            match text(&object["kind"]) {
                "Role" => drop(roles.insert((namespace.to_owned(), name), rules(object).into())),
                "ClusterRole" => drop(roles.insert((String::new(), name), rules(object).into())),
                "RoleBinding" | "ClusterRoleBinding" => bindings.push(object),
                _ => {}
            }
        }
        let bindings = bindings
            .into_iter()
            .filter_map(|binding| {
                let namespace =
                    (binding["kind"] == "RoleBinding").then(|| text(&binding["metadata"]["namespace"]));
                let role = &binding["roleRef"];
                let at = if role["kind"] == "Role" { namespace? } else { "" };
                let rules = roles.get(&(at.to_owned(), text(&role["name"]).to_owned()))?.clone();
                let subjects = elements(&binding["subjects"])
                    .iter()
                    .filter_map(|s| subject(s, namespace.unwrap_or_default()))
                    .collect();
                Some(Binding { namespace: namespace.map(str::to_owned), subjects, rules })
            })
            .collect();
        Self { bindings, roles }
    }

    /// Whether the user may do that.
    pub fn allows(&self, user: &User, request: &Request<'_>) -> bool {
        if user.may_do_everything() {
            return true;
        }
        let asked = match request {
            Request::Resource { namespace, .. } => *namespace,
            Request::Path { .. } => "",
        };
        self.rules_of(user, asked).any(|rule| rule.allows(request))
    }

    /// `status` of a SelfSubjectRulesReview: what the user may do in that namespace.
    ///
    /// As on a real server only what the rules say: of `system:masters` it shows what the binding of `cluster-admin`
    /// gives (see [`bootstrap`]).
    pub fn rules(&self, user: &User, namespace: &str) -> Value {
        let (mut resources, mut paths) = (Vec::new(), Vec::new());
        for rule in self.rules_of(user, namespace) {
            if !rule.resources.is_empty() {
                let mut shown =
                    json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources});
                if !rule.names.is_empty() {
                    shown["resourceNames"] = json!(rule.names);
                }
                resources.push(shown);
            }
            if !rule.paths.is_empty() {
                paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths}));
            }
        }
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
    }

    /// The rules that hold for the user in that namespace (empty: only those that hold everywhere).
    fn rules_of<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Rule> {
        self.bindings
            .iter()
            .filter(move |b| b.namespace.as_deref().is_none_or(|n| n == namespace && !namespace.is_empty()))
            .filter(|b| b.subjects.iter().any(|subject| subject.is(user)))
            .flat_map(|b| &*b.rules)
    }
}

impl Subject {
    fn is(&self, user: &User) -> bool {
        match self {
            Self::User(name) => *name == user.name,
            Self::Group(name) => user.groups.contains(name),
        }
    }
}

fn subject(value: &Value, binding_namespace: &str) -> Option<Subject> {
    let name = text(&value["name"]);
    match text(&value["kind"]) {
        "User" => Some(Subject::User(name.to_owned())),
        "Group" => Some(Subject::Group(name.to_owned())),
        "ServiceAccount" => {
            let namespace = match text(&value["namespace"]) {
                "" => binding_namespace,
                given => given,
            };
            Some(Subject::User(service_account(namespace, name)))
        }
        _ => None,
    }
}

impl Rule {
    fn allows(&self, request: &Request<'_>) -> bool {
        let any = |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        match *request {
            Request::Resource { verb, group, resource, subresource, name, .. } => {
                any(&self.verbs, verb)
                    && any(&self.groups, group)
                    && self.covers(resource, subresource)
                    && (self.names.is_empty() || self.names.iter().any(|n| n == name))
            }
            Request::Path { verb, path } => any(&self.verbs, verb) && self.covers_path(path),
        }
    }

    fn covers_path(&self, path: &str) -> bool {
        self.paths.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => pattern == path,
        })
    }

    /// `pods` does not cover `pods/status`; `*` and `*/status` do.
    fn covers(&self, resource: &str, subresource: &str) -> bool {
        let full = full_name(resource, subresource);
        self.resources.iter().any(|item| {
            item == "*"
                || *item == full
                || (!subresource.is_empty() && item.strip_prefix("*/").is_some_and(|sub| sub == subresource))
        })
    }
}

fn full_name(resource: &str, subresource: &str) -> String {
    if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") }
}

fn rules(role: &Value) -> Vec<Rule> {
    let texts = |value: &Value| elements(value).iter().map(|t| text(t).to_owned()).collect();
    elements(&role["rules"])
        .iter()
        .map(|rule| Rule {
            verbs: texts(&rule["verbs"]),
            groups: texts(&rule["apiGroups"]),
            resources: texts(&rule["resources"]),
            names: texts(&rule["resourceNames"]),
            paths: texts(&rule["nonResourceURLs"]),
        })
        .collect()
}

#[cfg(test)]
mod tests;
