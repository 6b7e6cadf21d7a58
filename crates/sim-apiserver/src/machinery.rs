//! Where the pure functions of `sim-apimachinery` meet a request.

use jiff::Timestamp;
use serde_json::{Map, Value};
use sim_apimachinery::status::Cause;

use crate::Failure;
use crate::kind::Kind;
use crate::server::{ApiServer, Ask};

/// How a writer comes to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Update,
    Apply,
}

/// The object in a protobuf body.
pub(crate) fn protobuf(_body: &[u8]) -> Result<Value, Failure> {
    Err(Failure::unsupported_media_type(&["application/json", "application/yaml"]))
}

/// Drops what the kind does not know and fills in the defaults of its schema.
pub(crate) fn conform(kind: &Kind, version: usize, object: &mut Value) {
    let schema = &kind.versions[version].schema;
    schema.prune(object);
    schema.default_object(object);
}

/// The faults that a schema finds.
pub(crate) fn validate(ask: &Ask, new: &Value, causes: &mut Vec<Cause>) {
    causes.extend(ask.schema().validate(new));
}

/// Writes down who owns which fields.
pub(crate) fn own(
    _server: &ApiServer,
    _ask: &Ask,
    _operation: Operation,
    _old: Option<&Value>,
    _new: &mut Value,
) {
}

/// Whether two states differ in who applies what.
pub(crate) fn ownership_differs(_kind: &Kind, _old: &Map<String, Value>, _new: &Map<String, Value>) -> bool {
    false
}

/// What a strategic merge patch makes of an object.
pub(crate) fn strategic_merge(_kind: &Kind, object: &Value, patch: &Value) -> Result<Value, Failure> {
    let mut object = object.clone();
    json_patch::merge(&mut object, patch);
    Ok(object)
}

/// What server-side apply makes of an object.
pub(crate) fn apply(_server: &ApiServer, _ask: &Ask, old: &Value, applied: &Value) -> Result<Value, Failure> {
    let mut object = old.clone();
    json_patch::merge(&mut object, applied);
    Ok(object)
}

/// A table for kubectl.
pub(crate) fn table(
    _kind: &Kind,
    _version: usize,
    _objects: &[Value],
    _rows: Vec<Value>,
    _now: Timestamp,
) -> Value {
    Value::Null
}
