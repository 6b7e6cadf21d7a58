//! Deployments, DaemonSets and their Pods.

use serde_json::{Value, json};

use crate::json::{is_unset, items_mut, set_default, text};
use crate::kind::Kind;

/// What a Deployment or DaemonSet has unless it says otherwise.
pub(super) fn fill(kind: &Kind, workload: &mut Value) {
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
        let image = text(&container["image"]);
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
