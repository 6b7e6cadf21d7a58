//! The `Status` answers of a Kubernetes API server, and the field errors inside them.
//!
//! The texts are those of kube-apiserver 1.36 because people search for them and programs match on them.

use serde::Serialize;
use serde_json::{Value, json};

use crate::kind::{Kind, qualified};

/// One fault of one field; ends up in `details.causes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Machine readable, such as `FieldValueInvalid`.
    pub reason: String,
    /// For people: `Invalid value: 0: must be between 1 and 65535, inclusive`.
    pub message: String,
    /// Path of the field, such as `spec.ports[0].port`.
    pub field: String,
}

impl Cause {
    /// A cause with a reason of its own.
    pub fn new(reason: &str, field: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into(), field: field.to_owned() }
    }

    /// The field must be given.
    pub fn required(field: &str, detail: &str) -> Self {
        Self::new("FieldValueRequired", field, with_detail("Required value".into(), detail))
    }

    /// The value is malformed or out of bounds.
    pub fn invalid(field: &str, value: &Value, detail: &str) -> Self {
        Self::new("FieldValueInvalid", field, with_detail(format!("Invalid value: {}", shown(value)), detail))
    }

    /// The value has the wrong JSON type.
    pub fn type_invalid(field: &str, value: &Value, detail: &str) -> Self {
        Self::new(
            "FieldValueTypeInvalid",
            field,
            with_detail(format!("Invalid value: {}", shown(value)), detail),
        )
    }

    /// The value is none of those allowed.
    pub fn not_supported(field: &str, value: &Value, supported: &[&str]) -> Self {
        let list = supported.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
        let detail = if list.is_empty() { list } else { format!("supported values: {list}") };
        let message = with_detail(format!("Unsupported value: {}", shown(value)), &detail);
        Self::new("FieldValueNotSupported", field, message)
    }

    /// The value may not occur twice.
    pub fn duplicate(field: &str, value: &Value) -> Self {
        Self::new("FieldValueDuplicate", field, format!("Duplicate value: {}", shown(value)))
    }

    /// The value is well-formed, but not permitted here.
    pub fn forbidden(field: &str, detail: &str) -> Self {
        Self::new("FieldValueForbidden", field, with_detail("Forbidden".into(), detail))
    }

    /// The thing that the value names does not exist.
    pub fn not_found(field: &str, value: &Value) -> Self {
        Self::new("FieldValueNotFound", field, format!("Not found: {}", shown(value)))
    }

    /// The value has more than `max` bytes.
    pub fn too_long(field: &str, max: usize) -> Self {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        Self::new("FieldValueTooLong", field, format!("Too long: may not be more than {max} {bytes}"))
    }

    /// The list has more than `max` items.
    pub fn too_many(field: &str, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new("FieldValueTooMany", field, format!("Too many: {actual}: must have at most {max} {items}"))
    }
}

fn with_detail(body: String, detail: &str) -> String {
    if detail.is_empty() { body } else { format!("{body}: {detail}") }
}

fn shown(value: &Value) -> String {
    // both the string and the composite form are JSON there, too
    value.to_string()
}

/// An answer that is not an object: a failure, or the success of a DELETE.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine readable reason, such as `NotFound`; empty in a success.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// `details`: name, group, kind, causes, retryAfterSeconds; null if there are none.
    pub details: Value,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.details = resource_details(&kind.group, &kind.plural, name);
        self
    }

    /// The object as it goes over the wire.
    pub fn to_value(&self) -> Value {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}});
        status["status"] = if self.code < 400 { "Success".into() } else { "Failure".into() };
        if !self.message.is_empty() {
            status["message"] = self.message.as_str().into();
        }
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if self.code != 200 {
            status["code"] = self.code.into();
        }
        status
    }

    /// Seconds after which the client should try again, if the answer says so.
    pub fn retry_after(&self) -> Option<u64> {
        self.details["retryAfterSeconds"].as_u64()
    }

    /// The success of a DELETE that removed the object.
    pub fn deleted(kind: &Kind, name: &str, uid: &str) -> Self {
        let mut status = Self::new(200, "", "").about(kind, name);
        status.details["uid"] = uid.into();
        status
    }

    /// The success of a create that leaves nothing to show, such as an Eviction.
    pub fn created() -> Self {
        Self::new(201, "", "")
    }

    /// There is no such object.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.qualified_resource());
        Self::new(404, "NotFound", message).about(kind, name)
    }

    /// There is no such path.
    pub fn no_such_path() -> Self {
        let mut status = Self::new(404, "NotFound", "the server could not find the requested resource");
        status.details = json!({});
        status
    }

    /// An object of that name exists.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified_resource());
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    /// The write cannot be done because of the state of the object.
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified_resource());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// The object was changed since the client read it.
    pub fn stale(kind: &Kind, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// Another manager owns fields of an apply request.
    pub fn apply_conflict(causes: &[Cause], message: String) -> Self {
        let mut status = Self::new(409, "Conflict", message);
        status.details = json!({"causes": causes});
        status
    }

    /// The object is wrong; every fault is listed.
    pub fn invalid(kind: &Kind, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(&kind.group, &kind.kind, name, causes)
    }

    /// As [`Status::invalid`], for kinds that have no description.
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        // an aggregate names each text once
        let mut faults: Vec<String> = Vec::with_capacity(causes.len());
        for cause in causes {
            let fault = format!("{}: {}", cause.field, cause.message);
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        let faults = match faults.as_slice() {
            [] => String::new(),
            [one] => format!(": {one}"),
            many => format!(": [{}]", many.join(", ")),
        };
        let message = format!("{} {name:?} is invalid{faults}", qualified(kind, group));
        let mut status = Self::new(422, "Invalid", message);
        status.details = resource_details(group, kind, name);
        if !causes.is_empty() {
            status.details["causes"] = json!(causes);
        }
        status
    }

    /// The request is not permitted for a reason other than RBAC (admission, a terminating namespace).
    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let resource = kind.qualified_resource();
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {name:?} is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(kind, name)
    }

    /// Nothing new may be created in a namespace that is being deleted.
    pub fn namespace_terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut status = Self::forbidden(kind, name, &why);
        status.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        status
    }

    /// RBAC does not allow it. `why` is the whole sentence (`User "jane" cannot …`).
    pub fn unauthorized_by_rbac(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let resource = qualified(plural, group);
        let (message, details) = match (plural.is_empty(), name.is_empty()) {
            (true, _) => (format!("forbidden: {why}"), json!({})),
            (_, true) => (format!("{resource} is forbidden: {why}"), resource_details(group, plural, name)),
            _ => (format!("{resource} {name:?} is forbidden: {why}"), resource_details(group, plural, name)),
        };
        let mut status = Self::new(403, "Forbidden", message);
        status.details = details;
        status
    }

    /// Nobody is known by that token.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// The request itself is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The path knows no such method.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut status = Self::new(405, "MethodNotAllowed", message);
        status.details = json!({});
        status
    }

    /// No representation that the client accepts.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(406, "NotAcceptable", message)
    }

    /// The body's content type is none that this path reads.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// The version or continue token is older than what is kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// A version in the future, or one that the server does not have yet.
    pub fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut status = Self::new(504, "Timeout", format!("Timeout: {message}"));
        status.details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        status
    }

    /// The body is larger than the server reads.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// Try again later.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u64) -> Self {
        let mut status = Self::new(429, "TooManyRequests", message);
        status.details = json!({"retryAfterSeconds": retry_after});
        status
    }

    /// Something that is the server's own fault, or a webhook's.
    pub fn internal(why: &str) -> Self {
        let mut status = Self::new(500, "InternalError", format!("Internal error occurred: {why}"));
        status.details = json!({"causes": [{"message": why}]});
        status
    }

    /// The server cannot answer now.
    pub fn unavailable(why: &str) -> Self {
        Self::new(503, "ServiceUnavailable", why)
    }

    /// An admission webhook refused; `code` 0 is 403 as in the real server. `details` are the webhook's own, or null.
    pub fn denied_by_webhook(webhook: &str, code: u16, message: &str, details: &Value) -> Self {
        let message = if message.is_empty() {
            format!("admission webhook {webhook:?} denied the request without explanation")
        } else {
            format!("admission webhook {webhook:?} denied the request: {message}")
        };
        let code = if (400..600).contains(&code) { code } else { 400 };
        Self { details: details.clone(), ..Self::new(code, reason_of(code), message) }
    }
}

/// The reason that belongs to a code where nothing better is known.
fn reason_of(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        500 => "InternalError",
        _ => "",
    }
}

fn resource_details(group: &str, kind: &str, name: &str) -> Value {
    let mut details = json!({});
    for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
        if !value.is_empty() {
            details[key] = value.into();
        }
    }
    details
}
