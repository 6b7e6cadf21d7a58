//! A kind from a CustomResourceDefinition, and the definition's status.

use std::sync::Arc;

use serde_json::{Value, json};
use sim_apimachinery::json::{elements, set_default};
use sim_apimachinery::kind as api;
use sim_apimachinery::schema::Schema;

use super::{Behaviour, Kind, Version};

/// The kind that a definition describes; none if it is not one that `sim-apimachinery` finds nothing wrong with.
pub(crate) fn kind(definition: &Value) -> Option<Kind> {
    let spec = &definition["spec"];
    let (group, plural) = (spec["group"].as_str()?, spec["names"]["plural"].as_str()?);
    let versions = elements(&spec["versions"]);
    let mut schemas = vec![];
    for version in versions {
        schemas.push(Arc::new(Schema::of_crd(&version["schema"]["openAPIV3Schema"], "").ok()?));
    }
    let storage = versions.iter().find(|version| version["storage"] == true)?;
    let described = api::Kind::of_crd(definition).into_iter();
    Some(Kind {
        group: group.to_owned(),
        plural: plural.to_owned(),
        kind: spec["names"]["kind"].as_str()?.to_owned(),
        namespaced: spec["scope"] == "Namespaced",
        stored_as: format!("{group}/{}", storage["name"].as_str()?),
        versions: described.map(|api| version(versions, &schemas, api)).collect(),
        behaviour: Behaviour::Custom,
        conversion: (spec["conversion"]["strategy"] == "Webhook")
            .then(|| Arc::new(spec["conversion"]["webhook"].clone())),
        table: api::qualified(plural, group).into(),
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
    if let Some(service) = definition.pointer_mut("/spec/conversion/webhook/clientConfig/service") {
        set_default(service, "port", 443);
    }
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message});
    let storage = api::group_version(&kind.stored_as).1;
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
