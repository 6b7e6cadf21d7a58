//! What the server refuses, with the causes of the real one.
//!
//! Names, labels and their like are in [`names`]; [`faults`] holds an object of a built-in kind against the rules that
//! need nothing but the object. What needs other objects (addresses, node ports, the state before) is the server's.

use serde_json::Value;

use crate::{kind::Kind, status::Cause};

pub mod names;
mod rbac;
mod storage;

/// Everything that is wrong with the content of an object of these kinds: Role, ClusterRole and their bindings,
/// ConfigMap, Secret, StorageClass. Nothing for other kinds, and nothing about `metadata`.
pub fn faults(kind: &Kind, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => rbac::role(kind, object, &mut causes),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::binding(kind, object, &mut causes);
        }
        ("", "ConfigMap") => storage::config_map(object, &mut causes),
        ("", "Secret") => storage::secret(object, &mut causes),
        ("storage.k8s.io", "StorageClass") => storage::class(object, &mut causes),
        _ => {}
    }
    causes
}

/// A cause for each text that [`names`] found.
fn named(field: &str, value: &str, faults: Vec<String>, causes: &mut Vec<Cause>) {
    causes.extend(faults.into_iter().map(|fault| Cause::invalid(field, &value.into(), &fault)));
}

fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests;
