//! Validation, with the causes of the real server.
//!
//! Names, labels and their like are in [`names`]; [`metadata`] and [`faults`] hold an object against the rules that need
//! nothing but the object and its state before. What needs other objects (addresses, node ports) is the server's.

use serde_json::Value;

use crate::json::{elements, entries, text};
use crate::{kind::Kind, status::Cause};

mod address;
mod definition;
mod endpoint_slice;
mod event;
mod lease;
pub(crate) mod metadata;
pub mod names;
mod node;
mod pod;
mod rbac;
pub mod review;
mod service;
mod storage;

pub use self::metadata::faults as metadata;
pub use self::service::status_faults as service_status;

/// Everything that is wrong with the content of an object of a built-in kind; `old` is the state before an update.
/// Events are in the words of the core group. Nothing about `metadata`.
pub fn faults(kind: &Kind, old: Option<&Value>, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "ConfigMap") => storage::config_map(old, object, &mut causes),
        ("", "Node") => node::faults(old, object, &mut causes),
        ("", "Pod") => pod::faults(object, &mut causes),
        ("", "Secret") => storage::secret(old, object, &mut causes),
        ("", "Service") => service::faults(old, object, &mut causes),
        ("" | "events.k8s.io", "Event") => event::faults(object, &mut causes),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition::faults(object, &mut causes),
        ("coordination.k8s.io", "Lease") => lease::faults(object, &mut causes),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice::faults(old, object, &mut causes),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => rbac::role(kind, object, &mut causes),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::binding(kind, old, object, &mut causes);
        }
        ("storage.k8s.io", "StorageClass") => storage::class(old, object, &mut causes),
        _ => {}
    }
    causes
}

/// A cause for each text that [`names`] found.
fn named(field: &str, value: &str, faults: Vec<String>, causes: &mut Vec<Cause>) {
    causes.extend(faults.into_iter().map(|fault| Cause::invalid(field, &value.into(), &fault)));
}

#[cfg(test)]
mod tests;
