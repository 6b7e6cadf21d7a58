//! The `scale` subresource: the replicas of an object, the same for every kind that has them.

use serde_json::{Value, json};

use crate::Failure;
use crate::kind::Kind;
use crate::server::Ask;

fn pointer(path: &Value) -> String {
    path.as_str().unwrap_or_default().replace('.', "/")
}

/// The scale of an object.
pub(crate) fn read(kind: &Kind, version: usize, object: &Value) -> Result<Value, Failure> {
    let scale = kind.versions[version].scale.as_ref().ok_or_else(Failure::no_such_path)?;
    let at = |field: &str| object.pointer(&pointer(&scale[field])).cloned();
    let metadata = &object["metadata"];
    let mut answer = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"], "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": at("specReplicasPath").unwrap_or_else(|| 0.into())},
        "status": {"replicas": at("statusReplicasPath").unwrap_or_else(|| 0.into())},
    });
    if let Some(namespace) = metadata["namespace"].as_str() {
        answer["metadata"]["namespace"] = namespace.into();
    }
    let labels = object["spec"]["selector"]["matchLabels"].as_object().filter(|_| !kind.is_custom());
    if let Some(labels) = labels {
        let pairs = labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        answer["status"]["selector"] = pairs.collect::<Vec<_>>().join(",").into();
    } else if let Some(Value::String(selector)) = at("labelSelectorPath") {
        answer["status"]["selector"] = selector.into();
    }
    Ok(answer)
}

/// The object with the replicas of a scale.
pub(crate) fn write(ask: &Ask, object: &Value, wanted: &Value) -> Result<Value, Failure> {
    let scale = ask.kind.versions[ask.version].scale.as_ref().ok_or_else(Failure::no_such_path)?;
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        return Err(Failure::bad_request("spec.replicas: must be greater than or equal to 0"));
    }
    let path = pointer(&scale["specReplicasPath"]);
    let mut scaled = object.clone();
    let mut field = &mut scaled;
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        if !field.is_object() {
            *field = json!({});
        }
        field = &mut field[segment];
    }
    *field = replicas.into();
    if let Some(version) = wanted["metadata"]["resourceVersion"].as_str() {
        scaled["metadata"]["resourceVersion"] = version.into();
    }
    Ok(scaled)
}
