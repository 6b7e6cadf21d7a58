//! The smaller kinds: ConfigMaps, Secrets, Nodes, Namespaces, Leases, workloads, roles.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sim_apimachinery::status::Cause;
use sim_apimachinery::validate::names;

use super::{elements, is_unset, items_mut, set_default};
use crate::faults;
use crate::kind::Kind;

/// Every namespace carries its name as a label, so that it can be selected.
pub(crate) fn namespace_defaults(namespace: &mut Value) {
    let name = namespace["metadata"]["name"].clone();
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
}

/// `stringData` is for writing only.
pub(crate) fn secret_defaults(secret: &mut Value) {
    set_default(secret, "type", "Opaque");
    let Some(plain) = secret.as_object_mut().and_then(|secret| secret.remove("stringData")) else { return };
    for (key, text) in plain.as_object().into_iter().flatten() {
        secret["data"][key] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
    }
}

/// What a Deployment or DaemonSet has unless it says otherwise.
pub(crate) fn workload_defaults(kind: &Kind, workload: &mut Value) {
    let Some(spec) = workload.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    if let Some(pod) = spec.pointer_mut("/template/spec").filter(|pod| pod.is_object()) {
        pod_defaults(pod);
    }
    if spec["revisionHistoryLimit"].is_null() {
        spec["revisionHistoryLimit"] = 10.into();
    }
    if kind.plural == "deployments" {
        if spec["replicas"].is_null() {
            spec["replicas"] = 1.into();
        }
        if spec["progressDeadlineSeconds"].is_null() {
            spec["progressDeadlineSeconds"] = 600.into();
        }
        if !spec["strategy"].is_object() || is_unset(&spec["strategy"]["type"]) {
            spec["strategy"] = json!({
                "type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
            });
        }
    } else if !spec["updateStrategy"].is_object() || is_unset(&spec["updateStrategy"]["type"]) {
        spec["updateStrategy"] =
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    }
}

/// What a Pod's spec has unless it says otherwise.
fn pod_defaults(spec: &mut Value) {
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "schedulerName", "default-scheduler");
    for (field, default) in [("securityContext", json!({})), ("terminationGracePeriodSeconds", json!(30))] {
        set_default(spec, field, default);
    }
    for container in items_mut(spec, "/containers") {
        let image = container["image"].as_str().unwrap_or_default();
        let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
        let policy = if tag.is_none_or(|tag| tag == "latest") { "Always" } else { "IfNotPresent" };
        set_default(container, "imagePullPolicy", policy);
        set_default(container, "resources", json!({}));
        set_default(container, "terminationMessagePath", "/dev/termination-log");
        set_default(container, "terminationMessagePolicy", "File");
        for port in items_mut(container, "/ports") {
            set_default(port, "protocol", "TCP");
        }
    }
}

/// A node begins as one that is not ready, whatever it says.
pub(crate) fn taint_new_node(node: &mut Value) {
    const NOT_READY: &str = "node.kubernetes.io/not-ready";
    let taints = elements(&node["spec"]["taints"]).cloned().collect::<Vec<_>>();
    if taints.iter().any(|taint| taint["key"] == NOT_READY) {
        return;
    }
    let not_ready = json!({"key": NOT_READY, "effect": "NoSchedule"});
    node["spec"]["taints"] = taints.into_iter().chain([not_ready]).collect();
}

/// What a webhook has unless its configuration says otherwise.
pub(crate) fn webhook_defaults(configuration: &mut Value) {
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

/// What a StorageClass has unless it says otherwise.
pub(crate) fn storage_class_defaults(class: &mut Value) {
    set_default(class, "reclaimPolicy", "Delete");
    set_default(class, "volumeBindingMode", "Immediate");
}

/// Subjects and roles are in RBAC's own group unless they say otherwise.
pub(crate) fn binding_defaults(binding: &mut Value) {
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

/// A binding keeps its role for life.
pub(crate) fn validate_binding(old: Option<&Value>, new: &Value, causes: &mut Vec<Cause>) {
    if old.is_some_and(|old| old["roleRef"] != new["roleRef"]) {
        causes.push(Cause::invalid("roleRef", &new["roleRef"], "cannot change roleRef"));
    }
}

fn validate_immutable(old: Option<&Value>, new: &Value, fields: &[&str], causes: &mut Vec<Cause>) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    let detail = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        causes.push(Cause::forbidden("immutable", detail));
    }
    for field in fields.iter().filter(|field| old[**field] != new[**field]) {
        causes.push(Cause::forbidden(field, detail));
    }
}

pub(crate) fn validate_config_map(old: Option<&Value>, new: &Value, causes: &mut Vec<Cause>) {
    validate_immutable(old, new, &["data", "binaryData"], causes);
    let place = (new["metadata"]["namespace"].as_str(), new["metadata"]["name"].as_str());
    let (namespace, name) = faults::CONFIG_MAP;
    if place == (Some(namespace), Some(name))
        && let Err(fault) = faults::Rule::parse(new["data"]["rules"].as_str().unwrap_or_default())
    {
        causes.push(Cause::invalid("data[rules]", &new["data"]["rules"], &fault));
    }
}

pub(crate) fn validate_secret(old: Option<&Value>, new: &Value, causes: &mut Vec<Cause>) {
    validate_immutable(old, new, &["data"], causes);
    if let Some(old) = old
        && old["type"] != new["type"]
    {
        causes.push(Cause::invalid("type", &new["type"], "field is immutable"));
    }
}

pub(crate) fn validate_node(old: Option<&Value>, new: &Value, causes: &mut Vec<Cause>) {
    if let Some(old) = old {
        let before = &old["spec"]["providerID"];
        if !is_unset(before) && new["spec"]["providerID"] != *before {
            let detail = "node updates may not change providerID except from \"\" to valid";
            causes.push(Cause::forbidden("spec.providerID", detail));
        }
    }
    for (i, taint) in elements(&new["spec"]["taints"]).enumerate() {
        let key = taint["key"].as_str().unwrap_or_default();
        let at = |field: &str| format!("metadata.taints[{i}].{field}");
        let faults = names::label_key(key);
        causes.extend(faults.iter().map(|f| Cause::invalid(&at("key"), &taint["key"], f)));
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !taint["effect"].as_str().is_some_and(|effect| effects.contains(&effect)) {
            causes.push(Cause::not_supported(&at("effect"), &taint["effect"], &effects));
        }
    }
    let mut seen = vec![];
    for (i, address) in elements(&new["status"]["addresses"]).enumerate() {
        if seen.contains(&address) {
            causes.push(Cause::duplicate(&format!("status.addresses[{i}]"), address));
        }
        seen.push(address);
    }
}

pub(crate) fn validate_lease(lease: &Value, causes: &mut Vec<Cause>) {
    let spec = &lease["spec"];
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64()
        && seconds <= 0
    {
        let value = &spec["leaseDurationSeconds"];
        causes.push(Cause::invalid("spec.leaseDurationSeconds", value, "must be greater than 0"));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|transitions| transitions < 0) {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid("spec.leaseTransitions", &spec["leaseTransitions"], detail));
    }
}
