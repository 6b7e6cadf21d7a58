//! Defaults for fields that a writer leaves out.
//!
//! Custom resources have their schema for this; here are the kinds that a real server has compiled in.

mod pod;
mod service;
mod workload;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub use self::pod::{admit_pod, new_pod_status};
pub use self::service::carry_over;
use crate::json::{elements, entries, items_mut, set_default, text};
use crate::kind::Kind;

/// Fills in the defaults of an object of a built-in kind.
pub fn fill(kind: &Kind, object: &mut Value) {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Namespace") => namespace(object),
        ("", "Pod") => pod::fill(object),
        ("", "Secret") => secret(object),
        ("", "Service") => service::fill(object),
        ("admissionregistration.k8s.io", _) => webhooks(object),
        ("apps", "DaemonSet" | "Deployment") => workload::fill(kind, object),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(object),
        ("rbac.authorization.k8s.io", _) => binding(object),
        ("storage.k8s.io", "StorageClass") => storage_class(object),
        _ => {}
    }
}

/// Every namespace carries its name as a label, so that it can be selected.
fn namespace(namespace: &mut Value) {
    let name = namespace["metadata"]["name"].clone();
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
}

/// `stringData` is for writing only.
fn secret(secret: &mut Value) {
    set_default(secret, "type", "Opaque");
    let Some(plain) = secret.as_object_mut().and_then(|secret| secret.remove("stringData")) else { return };
    for (key, value) in entries(&plain) {
        secret["data"][key] = STANDARD.encode(text(value)).into();
    }
}

/// A node begins as one that is not ready, whatever it says.
pub fn taint_new_node(node: &mut Value) {
    const NOT_READY: &str = "node.kubernetes.io/not-ready";
    let taints = elements(&node["spec"]["taints"]).to_vec();
    if taints.iter().any(|taint| taint["key"] == NOT_READY) {
        return;
    }
    let not_ready = json!({"key": NOT_READY, "effect": "NoSchedule"});
    node["spec"]["taints"] = taints.into_iter().chain([not_ready]).collect();
}

/// Sets the defaults of the webhooks in a configuration.
fn webhooks(configuration: &mut Value) {
    let mutating = configuration["kind"] == "MutatingWebhookConfiguration";
    for webhook in items_mut(configuration, "/webhooks") {
        set_default(webhook, "failurePolicy", "Fail");
        set_default(webhook, "matchPolicy", "Equivalent");
        if webhook["timeoutSeconds"].is_null() {
            webhook["timeoutSeconds"] = 10.into();
        }
        for selector in ["namespaceSelector", "objectSelector"] {
            if webhook[selector].is_null() {
                webhook[selector] = json!({});
            }
        }
        if mutating {
            set_default(webhook, "reinvocationPolicy", "Never");
        }
        if webhook["clientConfig"]["service"].is_object()
            && webhook["clientConfig"]["service"]["port"].is_null()
        {
            webhook["clientConfig"]["service"]["port"] = 443.into();
        }
        for rule in items_mut(webhook, "/rules") {
            set_default(rule, "scope", "*");
        }
    }
}

/// Sets the defaults of a StorageClass.
fn storage_class(class: &mut Value) {
    set_default(class, "reclaimPolicy", "Delete");
    set_default(class, "volumeBindingMode", "Immediate");
}

/// Subjects and roles are in RBAC's own group unless they say otherwise.
fn binding(binding: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    if let Some(role) = binding.get_mut("roleRef") {
        set_default(role, "apiGroup", GROUP);
    }
    for subject in items_mut(binding, "/subjects") {
        if subject["kind"] != "ServiceAccount" {
            set_default(subject, "apiGroup", GROUP);
        }
    }
}

/// Ports of an EndpointSlice have a protocol and a name, be it an empty one.
fn endpoint_slice(slice: &mut Value) {
    if slice["endpoints"].is_null() {
        slice["endpoints"] = json!([]);
    }
    for port in items_mut(slice, "/ports") {
        set_default(port, "protocol", "TCP");
        if port["name"].is_null() {
            port["name"] = "".into();
        }
    }
}
