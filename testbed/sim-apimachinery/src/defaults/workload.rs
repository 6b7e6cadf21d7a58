//! Deployments and DaemonSets.

use serde_json::{Value, json};

use crate::json::is_unset;
use crate::kind::Kind;

/// Sets the defaults of a Deployment or DaemonSet.
pub(super) fn fill(kind: &Kind, workload: &mut Value) {
    let Some(spec) = workload.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    if let Some(pod) = spec.pointer_mut("/template/spec").filter(|pod| pod.is_object()) {
        super::pod::spec(pod);
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
