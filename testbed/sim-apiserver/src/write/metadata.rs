//! The rules for `metadata`, the same for every kind.

use serde_json::{Value, json};
use sim_apimachinery::status::Cause;

use crate::Failure;
use crate::request::Verb;
use crate::server::{ApiServer, Ask};

/// The longest name that `generateName` may give; what is longer loses its end before the random characters.
const GENERATED: usize = 58;
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

/// Writes the server's part of a new object's metadata.
pub(super) fn stamp(server: &ApiServer, ask: &Ask, object: &mut Value) -> Result<(), Failure> {
    let given = &object["metadata"];
    // it is the storage that refuses this, and a dry run does not get there
    let versioned = !matches!(given["resourceVersion"].as_str().unwrap_or_default(), "" | "0");
    if versioned && !ask.is_dry_run() {
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
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
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

/// Returns whether Go's `omitempty` leaves the value out.
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

/// A PUT that makes its object: the uid of a former one is a condition that nothing meets, its version says nothing.
pub(super) fn made_by_update(ask: &Ask, object: &mut Value) -> Result<(), Failure> {
    let metadata = object["metadata"].as_object_mut().expect("`checked` has seen to it");
    metadata.remove("resourceVersion");
    match metadata.get("uid").and_then(Value::as_str).unwrap_or_default() {
        "" => Ok(()),
        uid => Err(another(ask, uid, "")),
    }
}

/// The object that is there, if any, is not the one that was meant.
fn another(ask: &Ask, meant: &str, there: &str) -> Failure {
    let why = format!("Precondition failed: UID in precondition: {meant}, UID in object meta: {there}");
    Failure::conflict(ask.api(), ask.name(), &why)
}

/// Restores the metadata that a writer cannot change.
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
        return Err(another(ask, uid, old["metadata"]["uid"].as_str().unwrap_or_default()));
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
