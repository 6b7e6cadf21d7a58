//! Roles and bindings.

use serde_json::Value;

use super::{elements, named, names, text};
use crate::{json::in_order, kind::Kind, status::Cause};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn role(kind: &Kind, role: &Value, causes: &mut Vec<Cause>) {
    for (index, rule) in elements(&role["rules"]).iter().enumerate() {
        let path = |field: &str| format!("rules[{index}].{field}");
        let empty = |field: &str| elements(&rule[field]).is_empty();
        if empty("verbs") {
            causes.push(Cause::required(&path("verbs"), "verbs must contain at least one value"));
        }
        if !empty("nonResourceURLs") {
            let mut refuse = |detail| {
                causes.push(Cause::invalid(&path("nonResourceURLs"), &rule["nonResourceURLs"], detail));
            };
            if kind.namespaced() {
                refuse("namespaced rules cannot apply to non-resource URLs");
            }
            if !(empty("apiGroups") && empty("resources") && empty("resourceNames")) {
                refuse("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if empty("apiGroups") {
            let detail = "resource rules must supply at least one api group";
            causes.push(Cause::required(&path("apiGroups"), detail));
        }
        if empty("resources") {
            let detail = "resource rules must supply at least one resource";
            causes.push(Cause::required(&path("resources"), detail));
        }
    }
}

pub(super) fn binding(kind: &Kind, old: Option<&Value>, binding: &Value, causes: &mut Vec<Cause>) {
    let role = &binding["roleRef"];
    if old.is_some_and(|old| old["roleRef"] != *role) {
        let fields = [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")];
        let shown = in_order(fields.map(|(name, field)| (name, role[field].clone())));
        let message = format!("Invalid value: {shown}: cannot change roleRef");
        causes.push(Cause::new("FieldValueInvalid", "roleRef", message));
    }
    check_group("roleRef.apiGroup", role, GROUP, causes);
    let kinds = if kind.namespaced() { &["Role", "ClusterRole"][..] } else { &["ClusterRole"][..] };
    if !kinds.contains(&text(&role["kind"])) {
        causes.push(Cause::not_supported("roleRef.kind", &text(&role["kind"]).into(), kinds));
    }
    match text(&role["name"]) {
        "" => causes.push(Cause::required("roleRef.name", "")),
        name => named("roleRef.name", name, names::path_segment(name), causes),
    }
    for (index, subject) in elements(&binding["subjects"]).iter().enumerate() {
        let path = |field: &str| format!("subjects[{index}].{field}");
        let name = text(&subject["name"]);
        if name.is_empty() {
            causes.push(Cause::required(&path("name"), ""));
        }
        match text(&subject["kind"]) {
            "ServiceAccount" => {
                if !name.is_empty() {
                    named(&path("name"), name, names::dns1123_subdomain(name), causes);
                }
                check_group(&path("apiGroup"), subject, "", causes);
                if !kind.namespaced() && text(&subject["namespace"]).is_empty() {
                    causes.push(Cause::required(&path("namespace"), ""));
                }
            }
            "User" | "Group" => check_group(&path("apiGroup"), subject, GROUP, causes),
            other => {
                let supported = ["ServiceAccount", "User", "Group"];
                causes.push(Cause::not_supported(&path("kind"), &other.into(), &supported));
            }
        }
    }
}

/// The server fills in the only group that is possible, so only another one is wrong.
fn check_group(path: &str, value: &Value, wanted: &str, causes: &mut Vec<Cause>) {
    let given = text(&value["apiGroup"]);
    if !given.is_empty() && given != wanted {
        causes.push(Cause::not_supported(path, &given.into(), &[wanted]));
    }
}
