//! The rules for `metadata`, the same for every kind.

use serde_json::{Value, json};
use sim_apimachinery::status::Cause;
use sim_apimachinery::validate::names;

use crate::Failure;
use crate::kind::{Behaviour, Kind};
use crate::request::Verb;
use crate::server::{ApiServer, Ask};

/// The longest name that `generateName` may give; what is longer loses its end before the random characters.
const GENERATED: usize = 58;
/// All annotations of an object together, keys and values, as a real server allows.
const ANNOTATIONS: usize = 256 * 1024;
/// Finalizers of built-in kinds that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
/// The letters of generated names: no vowels, so no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A fresh uid.
pub(crate) fn uid(server: &ApiServer) -> String {
    let bits = server.random(|random| random.u128(..));
    let hex = format!("{bits:032x}");
    // version 4, variant 1
    let variant = ["8", "9", "a", "b"][usize::try_from(bits & 3).expect("less than four")];
    format!("{}-{}-4{}-{variant}{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
}

/// What the server writes into the metadata of a new object.
pub(super) fn stamp(server: &ApiServer, ask: &Ask, object: &mut Value) -> Result<(), Failure> {
    let given = &object["metadata"];
    if !matches!(given["resourceVersion"].as_str().unwrap_or_default(), "" | "0") {
        let message = "resourceVersion should not be set on objects to be created".to_owned();
        return Err(Failure { code: 500, reason: "", message, details: Value::Null });
    }
    if ask.kind.namespaced {
        let in_body = given["namespace"].as_str().unwrap_or_default();
        if !in_body.is_empty() && in_body != ask.namespace() {
            let message =
                "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Failure::bad_request(message));
        }
    }
    let name = match (given["name"].as_str().unwrap_or_default(), given["generateName"].as_str()) {
        ("", Some(prefix)) if !prefix.is_empty() => {
            let prefix: String = prefix.chars().take(GENERATED).collect();
            prefix + &server.random(suffix)
        }
        (name, _) => name.to_owned(),
    };
    // a PATCH that creates names its object in the path
    let name = if name.is_empty() { ask.name().to_owned() } else { name };
    let time = server.0.clock.text();
    let uid = uid(server);
    let metadata = object["metadata"].as_object_mut().expect("`checked` has seen to it");
    for field in
        ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"]
    {
        metadata.remove(field);
    }
    metadata.retain(|_, value| !says_nothing(value));
    metadata.insert("name".to_owned(), name.into());
    if ask.kind.namespaced {
        metadata.insert("namespace".to_owned(), ask.namespace().into());
    } else {
        metadata.remove("namespace");
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), time.into());
    if ask.api().keeps_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
    Ok(())
}

/// What Go's `omitempty` leaves out.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn suffix(random: &mut fastrand::Rng) -> String {
    (0..5).map(|_| char::from(LETTERS[random.usize(..LETTERS.len())])).collect()
}

/// What of an object's metadata its writers cannot change.
pub(super) fn keep(ask: &Ask, old: &Value, new: &mut Value) -> Result<(), Failure> {
    let given = &new["metadata"];
    let text = |field: &str| given[field].as_str().unwrap_or_default();
    let (name, namespace, uid) = (text("name"), text("namespace"), text("uid"));
    if name.is_empty() {
        let message = format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            ask.name()
        );
        return Err(Failure::bad_request(message));
    }
    if name != ask.name() {
        let message =
            format!("the name of the object ({name}) does not match the name on the URL ({})", ask.name());
        return Err(Failure::bad_request(message));
    }
    if !namespace.is_empty() && namespace != ask.namespace() {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Failure::bad_request(message));
    }
    if !uid.is_empty() && old["metadata"]["uid"] != uid {
        if ask.verb == Verb::Patch {
            let cause = Cause::invalid("metadata.uid", &given["uid"], "field is immutable");
            return Err(Failure::invalid(ask.api(), ask.name(), &[cause]));
        }
        let kept = old["metadata"]["uid"].as_str().unwrap_or_default();
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {kept}");
        return Err(Failure::conflict(ask.api(), ask.name(), &why));
    }
    match given["resourceVersion"].as_str().unwrap_or_default() {
        "" | "0" if !ask.api().unconditional_update => {
            let cause =
                Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
            // it names the resource here where it names the kind everywhere else
            return Err(Failure::invalid_kind(&ask.kind.group, &ask.kind.plural, ask.name(), &[cause]));
        }
        "" | "0" => {}
        version if old["metadata"]["resourceVersion"] != version => {
            return Err(Failure::stale(ask.api(), ask.name()));
        }
        _ => {}
    }
    let kept = &old["metadata"];
    let metadata = new["metadata"].as_object_mut().expect("`checked` has seen to it");
    metadata.retain(|_, value| !says_nothing(value));
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
        "selfLink",
    ] {
        match kept.get(field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    Ok(())
}

/// The faults in an object's metadata.
pub(crate) fn validate(kind: &Kind, old: Option<&Value>, object: &Value, causes: &mut Vec<Cause>) {
    let metadata = &object["metadata"];
    let mut fault = |field: &str, value: &Value, details: Vec<String>| {
        causes.extend(details.iter().map(|detail| Cause::invalid(field, value, detail)));
    };
    let not_text = || vec!["must be a string".to_owned()];
    let name = metadata["name"].as_str().unwrap_or_default();
    if old.is_none() && !name.is_empty() {
        fault("metadata.name", &metadata["name"], name_faults(kind, name));
    }
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        fault("metadata.labels", &json!(key), names::label_key(key));
        fault("metadata.labels", value, value.as_str().map_or_else(not_text, names::label_value));
    }
    let mut size = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        fault("metadata.annotations", &json!(key), names::label_key(&key.to_ascii_lowercase()));
        match value.as_str() {
            Some(text) => size += key.len() + text.len(),
            None => fault("metadata.annotations", value, not_text()),
        }
    }
    for (i, finalizer) in metadata["finalizers"].as_array().into_iter().flatten().enumerate() {
        fault("metadata.finalizers", finalizer, finalizer.as_str().map_or_else(not_text, names::label_key));
        let text = finalizer.as_str().unwrap_or_default();
        if !kind.is_custom() && !text.contains('/') && !STANDARD_FINALIZERS.contains(&text) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified".to_owned();
            fault(&format!("metadata.finalizers[{i}]"), finalizer, vec![detail]);
        }
    }
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    }
    if size > ANNOTATIONS {
        causes.push(Cause::too_long("metadata.annotations", ANNOTATIONS));
    }
    validate_owners(metadata, causes);
    validate_finalizers(old, metadata, causes);
}

fn name_faults(kind: &Kind, name: &str) -> Vec<String> {
    match (kind.behaviour, kind.group.as_str()) {
        (Behaviour::Namespace | Behaviour::Service, _) => names::dns1123_label(name),
        (_, "rbac.authorization.k8s.io") => names::path_segment(name),
        _ => names::dns1123_subdomain(name),
    }
}

fn validate_owners(metadata: &Value, causes: &mut Vec<Cause>) {
    let mut controllers = 0;
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                causes.push(Cause::invalid(&path, &json!(""), "must not be empty"));
            }
        }
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        let detail = "Only one reference can have Controller set to true";
        causes.push(Cause::invalid("metadata.ownerReferences", &metadata["ownerReferences"], detail));
    }
}

fn validate_finalizers(old: Option<&Value>, metadata: &Value, causes: &mut Vec<Cause>) {
    let finalizers = || metadata["finalizers"].as_array().into_iter().flatten();
    let Some(old) = old.filter(|old| old["metadata"]["deletionTimestamp"].is_string()) else { return };
    let before = old["metadata"]["finalizers"].as_array();
    let new: Vec<_> = finalizers().filter(|f| !before.is_some_and(|b| b.contains(f))).cloned().collect();
    if !new.is_empty() {
        let list: Vec<String> = new.iter().map(Value::to_string).collect();
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            list.join(", ")
        );
        causes.push(Cause::forbidden("metadata.finalizers", &detail));
    }
}
