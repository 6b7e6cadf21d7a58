//! A kind from a CustomResourceDefinition, and the definition's status.

use std::sync::Arc;

use serde_json::{Value, json};
use sim_apimachinery::kind as api;
use sim_apimachinery::schema::Schema;
use sim_apimachinery::status::Cause;

use super::{Behaviour, Kind, Version, table_name};

/// The kind that a definition describes.
///
/// # Errors
/// The fields that are missing or contradict each other.
pub(crate) fn kind(definition: &Value) -> Result<Kind, Vec<Cause>> {
    let mut causes = vec![];
    let spec = &definition["spec"];
    let mut text = |field: &str, value: &Value| {
        let text = value.as_str().unwrap_or_default();
        if text.is_empty() {
            causes.push(Cause::required(field, ""));
        }
        text.to_owned()
    };
    let group = text("spec.group", &spec["group"]);
    let plural = text("spec.names.plural", &spec["names"]["plural"]);
    let kind = text("spec.names.kind", &spec["names"]["kind"]);
    let scope = text("spec.scope", &spec["scope"]);
    if !matches!(scope.as_str(), "Namespaced" | "Cluster" | "") {
        causes.push(Cause::not_supported("spec.scope", &spec["scope"], &["Cluster", "Namespaced"]));
    }
    let name = definition["metadata"]["name"].as_str().unwrap_or_default();
    if !group.is_empty() && !plural.is_empty() && name != format!("{plural}.{group}") {
        let detail = r#"must be spec.names.plural+"."+spec.group"#;
        causes.push(Cause::invalid("metadata.name", &definition["metadata"]["name"], detail));
    }
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], detail));
    }
    for (i, version) in versions.iter().enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let field = format!("spec.versions[{i}].schema.openAPIV3Schema");
            causes.push(Cause::required(&field, "schemas are required"));
        }
    }
    let mut schemas = vec![];
    for (i, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{i}].schema.openAPIV3Schema");
        match Schema::of_crd(&version["schema"]["openAPIV3Schema"], &path) {
            Ok(schema) => schemas.push(Arc::new(schema)),
            Err(faults) => causes.extend(faults),
        }
    }
    if !causes.is_empty() {
        return Err(causes);
    }
    let storage = versions.iter().find(|version| version["storage"] == true);
    let storage = storage.and_then(|version| version["name"].as_str()).unwrap_or_default();
    let described = api::Kind::of_crd(definition).into_iter();
    Ok(Kind {
        namespaced: scope == "Namespaced",
        stored_as: format!("{group}/{storage}"),
        versions: described.map(|api| version(versions, &schemas, api)).collect(),
        behaviour: Behaviour::Custom,
        table: table_name(&group, &plural),
        group,
        plural,
        kind,
    })
}

fn version(specs: &[Value], schemas: &[Arc<Schema>], api: api::Kind) -> Version {
    let at = specs.iter().position(|spec| spec["name"] == api.version.as_str());
    let spec = at.map_or(&Value::Null, |at| &specs[at]);
    Version {
        scale: spec["subresources"].get("scale").cloned(),
        raw_schema: spec["schema"].get("openAPIV3Schema").cloned().map(Arc::new),
        schema: at.map_or_else(Arc::default, |at| schemas[at].clone()),
        api,
    }
}

/// Fills in what the real server fills in: names, conversion, and a status that says Established.
pub(crate) fn complete(definition: &mut Value, kind: &Kind, now: &str) {
    let names = &mut definition["spec"]["names"];
    if let Some(version) = kind.versions.first() {
        names["singular"] = version.api.singular.clone().into();
        names["listKind"] = version.api.list_kind.clone().into();
    }
    let accepted = names.clone();
    if definition["spec"].get("conversion").is_none() {
        definition["spec"]["conversion"] = json!({"strategy": "None"});
    }
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message});
    let storage = sim_apimachinery::kind::group_version(&kind.stored_as).1;
    let mut stored: Vec<Value> =
        definition["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    if !stored.iter().any(|v| v == storage) {
        stored.push(storage.into());
    }
    let conditions = match definition["status"]["conditions"].as_array() {
        Some(known) if !known.is_empty() => known.clone(),
        _ => vec![
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    };
    definition["status"] =
        json!({"acceptedNames": accepted, "conditions": conditions, "storedVersions": stored});
}
