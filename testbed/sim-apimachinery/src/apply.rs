//! Server-side apply: the caller sends what it wants to own, the server merges it in.
//!
//! ```text
//! live + config ──merge──► merged ──remove what the caller owned and no longer sends──► new
//!                                     │ compare with live
//!                                     └─► fields of others that would change: conflict, unless forced
//! ```
//! Lists and maps are merged by their types in the schema. The steps and texts are those of the real server
//! (`tests/vectors/apply.json` was recorded there).

use serde_json::Value;

use crate::{
    kind::{Kind, Origin},
    managed_fields::{Entry, FieldSet, Operation, Writer, compare, entries, set_of, write},
    schema::Schema,
    status::{Cause, Status},
};

mod merge;
mod remove;

/// Returns the object after the apply, with `metadata.managedFields`. The caller defaults and validates it like any
/// other.
///
/// `live` is none if there is no such object yet. Of a kind with a status subresource, `status` is applied only there.
///
/// # Errors
/// 409 with a cause for each field of another manager that would change (unless `force`), 400 if the config brings
/// `managedFields`.
pub fn apply(
    kind: &Kind,
    schema: &Schema,
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, Status> {
    if config["metadata"].get("managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let mut config = config.clone();
    if kind.origin == Origin::Builtin {
        drop_nulls(&mut config);
    }
    let mut set = set_of(schema, &config);
    restrict(kind, writer, &mut set);
    let mut managers = live.and_then(|live| entries(&live["metadata"]["managedFields"])).unwrap_or_default();
    if let Some(live) = live.filter(|_| managers.is_empty()) {
        // an object from before the bookkeeping began: everything in it is somebody's
        let before = Writer { manager: "before-first-apply", ..*writer };
        managers.push(Entry { fields: set_of(schema, live), ..Entry::new(&before, Operation::Update) });
    }
    let own = |entry: &Entry| entry.is(writer, Operation::Apply);
    let last = managers.iter().find(|entry| own(entry)).map(|entry| entry.fields.clone()).unwrap_or_default();

    let mut object = match live {
        Some(live) => merge::merge(schema, live, &config),
        None => config,
    };
    let owned =
        managers.iter().filter(|entry| !own(entry)).fold(set.clone(), |all, entry| all.union(&entry.fields));
    remove::remove(schema, &mut object, &last, &owned);

    if let Some(live) = live {
        let changes = compare(schema, Some(live), Some(&object));
        let changed = changes.added.union(&changes.modified);
        let conflicts = managers
            .iter()
            .filter(|entry| !own(entry))
            .map(|entry| (entry, entry.fields.intersection(&changed)))
            .filter(|(_, fields)| !fields.is_empty())
            .collect::<Vec<_>>();
        if !force && !conflicts.is_empty() {
            return Err(conflict(&conflicts));
        }
        for entry in managers.iter_mut().filter(|entry| !own(entry)) {
            entry.fields = entry.fields.difference(&changed).difference(&changes.removed);
        }
    }
    if kind.origin == Origin::Builtin {
        // only now: a container that became null is not a removed one to the comparison
        drop_nulls(&mut object);
    }
    match managers.iter_mut().find(|entry| own(entry)) {
        Some(entry) if entry.fields == set => {}
        Some(entry) => *entry = Entry { fields: set, ..Entry::new(writer, Operation::Apply) },
        None => managers.push(Entry { fields: set, ..Entry::new(writer, Operation::Apply) }),
    }
    write(&mut object, managers);
    Ok(object)
}

/// Takes out of the set what this request cannot write.
fn restrict(kind: &Kind, writer: &Writer<'_>, set: &mut FieldSet) {
    if writer.subresource == "status" {
        set.keep_below("f:status");
    } else if kind.has_status() {
        set.remove_below(&["f:status"]);
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, inner| !inner.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn conflict(conflicts: &[(&Entry, FieldSet)]) -> Status {
    let mut managers =
        conflicts.iter().map(|(entry, fields)| (named(entry), fields.paths())).collect::<Vec<_>>();
    managers.sort();
    let causes = managers
        .iter()
        .flat_map(|(manager, paths)| {
            paths
                .iter()
                .map(move |path| Cause::new("FieldManagerConflict", path, format!("conflict with {manager}")))
        })
        .collect::<Vec<_>>();
    let message = match causes.as_slice() {
        [one] => format!("Apply failed with 1 conflict: {}: {}", one.message, one.field),
        many => {
            let lines = managers.iter().map(|(manager, paths)| {
                let paths = paths.iter().map(|path| format!("\n- {path}")).collect::<String>();
                format!("conflicts with {manager}:{paths}")
            });
            let lines = lines.collect::<Vec<_>>().join("\n");
            format!("Apply failed with {} conflicts: {lines}", many.len())
        }
    };
    Status::apply_conflict(&causes, message)
}

fn named(entry: &Entry) -> String {
    let mut text = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", entry.subresource));
    }
    if entry.operation == Operation::Update {
        text.push_str(&format!(" using {}", entry.api_version));
    }
    text
}

#[cfg(test)]
mod tests;
