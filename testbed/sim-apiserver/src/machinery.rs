//! Calls the pure functions of `sim-apimachinery` for a request.

use jiff::Timestamp;
use serde_json::{Map, Value};
use sim_apimachinery::managed_fields::{self, Writer};
use sim_apimachinery::schema::{self, Schema};
use sim_apimachinery::{apply as server_side, protobuf, strategic_merge as strategic, table};

use crate::Failure;
use crate::kind::{Behaviour, Kind};
use crate::server::{ApiServer, Ask};

/// The operation by which a writer comes to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// By what a write changes.
    Update,
    /// By what it applies: already written down.
    Apply,
}

/// The object in a protobuf body.
pub(crate) fn protobuf(body: &[u8]) -> Result<Value, Failure> {
    protobuf::decode(body).map_err(|e| Failure::bad_request(e.to_string()))
}

/// Drops what the kind does not know and fills in the defaults of its schema.
pub(crate) fn conform(kind: &Kind, version: usize, object: &mut Value) {
    let schema = &kind.versions[version].schema;
    schema.prune(object);
    schema.default_object(object);
}

/// Calls `f` with the schema of the kept form, and with who writes.
fn with_writer<T>(server: &ApiServer, ask: &Ask, f: impl FnOnce(&Schema, &Writer<'_>) -> T) -> T {
    let now = server.0.clock.text();
    let api_version = ask.api().api_version();
    let writer = Writer {
        manager: &ask.manager,
        api_version: &api_version,
        subresource: ask.subresource(),
        now: &now,
    };
    // both groups of events are kept in the words of the core group
    if ask.kind.behaviour == Behaviour::NewEvent
        && let Some(core) = schema::builtin("", "Event")
    {
        return f(&core, &writer);
    }
    f(ask.schema(), &writer)
}

/// Writes down who owns which fields.
pub(crate) fn own(server: &ApiServer, ask: &Ask, operation: Operation, old: Option<&Value>, new: &mut Value) {
    if operation == Operation::Apply {
        return;
    }
    // a status that has a path of its own is not what a create writes
    let hidden = (old.is_none() && ask.api().has_status())
        .then(|| new.as_object_mut().and_then(|object| object.remove("status")))
        .flatten();
    with_writer(server, ask, |schema, writer| managed_fields::track(schema, old, new, writer));
    if let Some(status) = hidden {
        new["status"] = status;
    }
}

/// Puts back the list of owners that was there `before` webhooks were asked, where they left one that cannot be read.
/// Else they may correct it. What else it changes is nobody's, as on a real server.
pub(crate) fn own_after_webhooks(before: &Value, new: &mut Value) {
    if managed_fields::is_readable(&new["metadata"]["managedFields"]) {
        return;
    }
    let Some(metadata) = new["metadata"].as_object_mut() else { return };
    match before["metadata"].get("managedFields") {
        Some(fields) => drop(metadata.insert("managedFields".to_owned(), fields.clone())),
        None => drop(metadata.remove("managedFields")),
    }
}

/// Whether two states differ in who owns what, times apart.
pub(crate) fn ownership_differs(old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    let entries = |object: &Map<String, Value>| -> Vec<Value> {
        let metadata = object.get("metadata").unwrap_or(&Value::Null);
        let mut entries = metadata["managedFields"].as_array().cloned().unwrap_or_default();
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.remove("time");
        }
        entries
    };
    entries(old) != entries(new)
}

/// Returns the object after a strategic merge patch.
pub(crate) fn strategic_merge(ask: &Ask, object: &Value, patch: &Value) -> Result<Value, Failure> {
    strategic::patch(ask.schema(), object, patch)
}

/// Returns the object after server-side apply; without an object, the new one.
pub(crate) fn apply(
    server: &ApiServer,
    ask: &Ask,
    live: Option<&Value>,
    applied: &Value,
) -> Result<Value, Failure> {
    with_writer(server, ask, |schema, writer| {
        server_side::apply(ask.api(), schema, live, applied, writer, ask.query.force == Some(true))
    })
}

/// A table for kubectl.
pub(crate) fn table(
    kind: &Kind,
    version: usize,
    objects: &[Value],
    rows: Vec<Value>,
    now: Timestamp,
) -> Value {
    table::table(kind.api(version), objects, rows, now)
}
