//! The rules for `metadata`, the same for every kind.

use serde_json::{Value, json};

use super::{elements, names, text};
use crate::json::{entries, in_order};
use crate::kind::{Kind, Origin, group_version};
use crate::status::Cause;

/// All annotations of an object together, keys and values, as a real server allows.
const ANNOTATIONS: usize = 256 * 1024;
/// Finalizers of built-in kinds that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// The faults in an object's metadata; `old` is the state before an update.
pub fn faults(kind: &Kind, old: Option<&Value>, object: &Value) -> Vec<Cause> {
    let mut causes = vec![];
    let metadata = &object["metadata"];
    let name = text(&metadata["name"]);
    if old.is_none() {
        let prefix = text(&metadata["generateName"]);
        if !prefix.is_empty() {
            causes.extend(invalid(
                "metadata.generateName",
                &metadata["generateName"],
                prefix_faults(kind, prefix),
            ));
        }
        if !name.is_empty() {
            causes.extend(invalid("metadata.name", &metadata["name"], name_faults(kind, name)));
        }
    }
    if metadata["generation"].as_i64().is_some_and(|generation| generation < 0) {
        let detail = "must be greater than or equal to 0".to_owned();
        causes.extend(invalid("metadata.generation", &metadata["generation"], vec![detail]));
    }
    causes.extend(label_faults("metadata.labels", &metadata["labels"]));
    let (annotations, too_long) = annotation_faults("metadata.annotations", &metadata["annotations"]);
    causes.extend(annotations);
    for (i, finalizer) in elements(&metadata["finalizers"]).iter().enumerate() {
        causes.extend(invalid(
            "metadata.finalizers",
            finalizer,
            finalizer.as_str().map_or_else(not_text, names::label_key),
        ));
        let name = text(finalizer);
        if kind.origin == Origin::Builtin && !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified".to_owned();
            causes.extend(invalid(&format!("metadata.finalizers[{i}]"), finalizer, vec![detail]));
        }
    }
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    }
    causes.extend(too_long);
    owners(elements(&metadata["ownerReferences"]), &mut causes);
    finalizers(old, metadata, &mut causes);
    causes
}

/// The faults of labels.
pub(crate) fn label_faults(field: &str, labels: &Value) -> Vec<Cause> {
    let faults = entries(labels).flat_map(|(key, value)| {
        let of_value = value.as_str().map_or_else(not_text, names::label_value);
        [(json!(key), names::label_key(key)), (value.clone(), of_value)]
    });
    faults.flat_map(|(value, details)| invalid(field, &value, details)).collect()
}

/// The faults of annotations, and the one of all together.
pub(crate) fn annotation_faults(field: &str, annotations: &Value) -> (Vec<Cause>, Option<Cause>) {
    let (mut causes, mut size) = (vec![], 0);
    for (key, value) in entries(annotations) {
        causes.extend(invalid(field, &json!(key), names::label_key(&key.to_ascii_lowercase())));
        match value.as_str() {
            Some(text) => size += key.len() + text.len(),
            None => causes.extend(invalid(field, value, not_text())),
        }
    }
    (causes, (size > ANNOTATIONS).then(|| Cause::too_long(field, ANNOTATIONS)))
}

fn not_text() -> Vec<String> {
    vec!["must be a string".to_owned()]
}

fn invalid(field: &str, value: &Value, details: Vec<String>) -> Vec<Cause> {
    details.into_iter().map(|detail| Cause::invalid(field, value, &detail)).collect()
}

fn name_faults(kind: &Kind, name: &str) -> Vec<String> {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Namespace" | "Service") => names::dns1123_label(name),
        ("rbac.authorization.k8s.io", _) => names::path_segment(name),
        _ => names::dns1123_subdomain(name),
    }
}

/// A prefix may end in a hyphen: something follows.
fn prefix_faults(kind: &Kind, prefix: &str) -> Vec<String> {
    match prefix.strip_suffix('-') {
        Some(start) if !start.is_empty() => name_faults(kind, &format!("{start}a")),
        _ => name_faults(kind, prefix),
    }
}

fn owners(owners: &[Value], causes: &mut Vec<Cause>) {
    let mut controller: Option<String> = None;
    for owner in owners {
        let mut refuse = |field: &str, detail: &str| {
            let path = format!("metadata.ownerReferences.{field}");
            causes.push(Cause::invalid(&path, &text(&owner[field]).into(), detail));
        };
        let (group, version) = group_version(text(&owner["apiVersion"]));
        if version.is_empty() || version.contains('/') {
            refuse("apiVersion", "version must not be empty");
        }
        for field in ["kind", "name", "uid"].into_iter().filter(|field| text(&owner[*field]).is_empty()) {
            refuse(field, "must not be empty");
        }
        if text(&owner["kind"]) == "Event" && matches!((group, version), ("" | "events.k8s.io", "v1")) {
            let message = format!(
                "Invalid value: {}: {group}/{version}, Kind=Event is disallowed from being an owner",
                shown(owner)
            );
            causes.push(Cause::new("FieldValueInvalid", "metadata.ownerReferences", message));
        }
    }
    for owner in owners.iter().filter(|owner| owner["controller"] == true) {
        let this = format!("{}/{}", text(&owner["kind"]), text(&owner["name"]));
        let Some(first) = &controller else {
            controller = Some(this);
            continue;
        };
        let all: Vec<String> = owners.iter().map(shown).collect();
        let message = format!(
            "Invalid value: [{}]: Only one reference can have Controller set to true. Found \"true\" in references for \
             {first} and {this}",
            all.join(",")
        );
        causes.push(Cause::new("FieldValueInvalid", "metadata.ownerReferences", message));
    }
}

/// An owner's reference as error texts show it.
fn shown(owner: &Value) -> String {
    let fields = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    in_order(fields.iter().filter_map(|field| Some((*field, owner.get(*field)?.clone()))))
}

fn finalizers(old: Option<&Value>, metadata: &Value, causes: &mut Vec<Cause>) {
    let all = elements(&metadata["finalizers"]);
    let has = |name: &str| all.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid("metadata.finalizers", &metadata["finalizers"], detail));
    }
    let Some(old) = old.filter(|old| old["metadata"]["deletionTimestamp"].is_string()) else { return };
    let before = elements(&old["metadata"]["finalizers"]);
    let new: Vec<String> = all.iter().filter(|f| !before.contains(f)).map(Value::to_string).collect();
    if !new.is_empty() {
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            new.join(", ")
        );
        causes.push(Cause::forbidden("metadata.finalizers", &detail));
    }
}
