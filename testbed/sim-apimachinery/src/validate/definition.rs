//! CustomResourceDefinitions.

use serde_json::Value;

use super::{elements, text};
use crate::schema::Schema;
use crate::status::Cause;

pub(super) fn faults(definition: &Value, causes: &mut Vec<Cause>) {
    let spec = &definition["spec"];
    let fields = [
        ("spec.group", &spec["group"]),
        ("spec.names.plural", &spec["names"]["plural"]),
        ("spec.names.kind", &spec["names"]["kind"]),
        ("spec.scope", &spec["scope"]),
    ];
    for (field, _) in fields.iter().filter(|(_, value)| text(value).is_empty()) {
        causes.push(Cause::required(field, ""));
        if *field == "spec.names.kind" {
            // two more names are made from it
            for made in ["singular", "listKind"].into_iter().filter(|name| spec["names"][*name].is_null()) {
                causes.push(Cause::required(&format!("spec.names.{made}"), ""));
            }
        }
    }
    if !matches!(text(&spec["scope"]), "Namespaced" | "Cluster" | "") {
        causes.push(Cause::not_supported("spec.scope", &spec["scope"], &["Cluster", "Namespaced"]));
    }
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let name = &definition["metadata"]["name"];
    if text(name) != format!("{plural}.{group}") {
        let detail = r#"must be spec.names.plural+"."+spec.group"#;
        causes.push(Cause::invalid("metadata.name", name, detail));
    }
    let versions = elements(&spec["versions"]);
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], detail));
    }
    let schemas = versions.iter().map(|version| &version["schema"]["openAPIV3Schema"]).enumerate();
    // one schema for all versions is one schema of the definition, as it was in v1beta1
    let shared = schemas
        .clone()
        .all(|(_, schema)| schema.is_object() && *schema == versions[0]["schema"]["openAPIV3Schema"]);
    for (i, schema) in schemas.take(if shared { 1 } else { versions.len() }) {
        let mut field = format!("spec.versions[{i}].schema.openAPIV3Schema");
        if !schema.is_object() {
            causes.push(Cause::required(&field, ""));
            continue;
        }
        if shared {
            field = "spec.validation.openAPIV3Schema".to_owned();
        }
        causes.extend(Schema::of_crd(schema, &field).err().into_iter().flatten());
    }
}
