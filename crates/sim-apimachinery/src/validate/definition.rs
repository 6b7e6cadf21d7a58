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
    }
    if !matches!(text(&spec["scope"]), "Namespaced" | "Cluster" | "") {
        causes.push(Cause::not_supported("spec.scope", &spec["scope"], &["Cluster", "Namespaced"]));
    }
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let name = &definition["metadata"]["name"];
    if !group.is_empty() && !plural.is_empty() && text(name) != format!("{plural}.{group}") {
        let detail = r#"must be spec.names.plural+"."+spec.group"#;
        causes.push(Cause::invalid("metadata.name", name, detail));
    }
    let versions = elements(&spec["versions"]);
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], detail));
    }
    for (i, version) in versions.iter().enumerate() {
        let field = format!("spec.versions[{i}].schema.openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            causes.push(Cause::required(&field, "schemas are required"));
        }
        if let Err(faults) = Schema::of_crd(schema, &field) {
            causes.extend(faults);
        }
    }
}
