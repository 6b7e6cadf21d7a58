//! The four kinds of patches, each from the state that is there and a body to the state that is wanted.

use serde_json::{Map, Value};
use sim_apimachinery::body::Body;
use sim_apimachinery::kind::group_version;
use sim_apimachinery::schema::unknown_fields;

use super::{checked, in_kept_words, validation};
use crate::Failure;
use crate::form::in_version;
use crate::machinery;
use crate::request::Media;
use crate::server::{ApiServer, Ask};

pub(super) const MEDIA_TYPES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
/// More operations than this a real server refuses, too.
const OPERATIONS: usize = 10_000;

/// The state that a patch wants.
pub(super) fn patched(server: &ApiServer, ask: &Ask, old: &Value) -> Result<Value, Failure> {
    // clients know the object in the words of the version that they ask for
    let mut object = in_version(&ask.kind, ask.version, old);
    let mut duplicates = vec![];
    let mut strategic = None;
    match ask.media {
        Media::MergePatch => {
            let patch = document(ask)?;
            json_patch::merge(&mut object, &patch.value);
            duplicates = patch.duplicates;
        }
        Media::JsonPatch => operations(&mut object, &ask.body, ask)?,
        Media::StrategicMergePatch if ask.kind.is_custom() => {
            return Err(Failure::unsupported_media_type(MEDIA_TYPES));
        }
        Media::StrategicMergePatch => {
            let patch = document(ask)?;
            let kind = object["kind"].clone();
            object = machinery::strategic_merge(ask, &object, &patch.value)?;
            // such a patch is of the kind of the path, whatever it says
            for (field, kept) in [("apiVersion", ask.api().api_version().into()), ("kind", kind)] {
                if object[field].is_string() || object[field].is_null() {
                    object[field] = kept;
                }
            }
            duplicates = patch.duplicates;
            strategic = Some(patch.value);
        }
        Media::ApplyPatch => return machinery::apply(server, ask, Some(old), &applied(ask)?),
        _ => return Err(Failure::unsupported_media_type(MEDIA_TYPES)),
    }
    let body = Body { value: object, duplicates };
    let (object, warnings) =
        body.into_patched(ask.api(), ask.schema(), validation(ask), strategic.as_ref())?;
    Ok(in_kept_words(ask, object, warnings))
}

/// The object that an apply patch makes where there is none.
pub(super) fn applied_to_nothing(server: &ApiServer, ask: &Ask) -> Result<Value, Failure> {
    machinery::apply(server, ask, None, &applied(ask)?)
}

/// The object in an apply patch, which must say what it is, and may have no field that the kind does not know: that
/// would be nobody's. A real server answers this as if it were its own fault.
fn applied(ask: &Ask) -> Result<Value, Failure> {
    let Body { value, .. } = document(ask)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&value["apiVersion"]), text(&value["kind"]));
    let (group, version) = group_version(&api_version);
    let kind = format!("{group}/{version}, Kind={kind}");
    if api_version != ask.api().api_version() || value["kind"] != ask.kind.kind.as_str() {
        return Err(Failure::bad_request(format!("invalid object type: {kind}")));
    }
    let metadata = &value["metadata"];
    let object = format!("{}/{}; {kind}", text(&metadata["namespace"]), text(&metadata["name"]));
    let untyped = |why: String| {
        let message = format!("failed to create typed patch object ({object}): {why}");
        Failure { code: 500, reason: "", message, details: Value::Null }
    };
    if let Some(field) = unknown_fields(ask.schema(), &value).first() {
        return Err(untyped(format!(".{field}: field not declared in schema")));
    }
    checked(ask, Body { value, duplicates: vec![] }).map_err(|failure| match failure.code {
        400 => untyped(failure.message),
        _ => failure,
    })
}

/// The `Scale` that the body makes of the present one.
pub(super) fn scale(ask: &Ask, old: &Value) -> Result<Value, Failure> {
    let mut scale = crate::scale::read(&ask.kind, ask.version, old)?;
    match ask.media {
        Media::MergePatch | Media::StrategicMergePatch => {
            json_patch::merge(&mut scale, &document(ask)?.value);
        }
        Media::JsonPatch => operations(&mut scale, &ask.body, ask)?,
        Media::ApplyPatch => return Err(Failure::unsupported_media_type(&MEDIA_TYPES[..2])),
        media => scale = media.document(&ask.body)?,
    }
    Ok(scale)
}

fn document(ask: &Ask) -> Result<Body, Failure> {
    let document = match ask.media {
        Media::ApplyPatch => Body { value: ask.media.document(&ask.body)?, duplicates: vec![] },
        _ => Body::read(&ask.body).map_err(|e| undecodable(&e))?,
    };
    if document.value.is_object() { Ok(document) } else { Err(undecodable(&"it is no JSON object")) }
}

fn undecodable(why: &dyn std::fmt::Display) -> Failure {
    Failure::bad_request(format!("error decoding patch: {why}"))
}

fn operations(object: &mut Value, body: &[u8], ask: &Ask) -> Result<(), Failure> {
    let operations: Vec<Map<String, Value>> = serde_json::from_slice(body).map_err(|e| undecodable(&e))?;
    let operations = operations.into_iter().map(Value::Object).collect();
    let patch: json_patch::Patch = serde_json::from_value(operations).map_err(|e| inapplicable(&e, ask))?;
    if patch.0.len() > OPERATIONS {
        return Err(Failure::too_large(OPERATIONS));
    }
    let patch = json_patch::Patch(
        patch.0.into_iter().filter(|operation| !tests_for_absence(operation, object)).collect(),
    );
    json_patch::patch(object, &patch).map_err(|e| inapplicable(&e, ask))
}

fn inapplicable(error: &dyn std::fmt::Display, ask: &Ask) -> Failure {
    tracing::debug!(%error, name = ask.name(), "JSON patch does not apply");
    let message = "the server rejected our request due to an error in our request".to_owned();
    Failure { code: 422, reason: "Invalid", message, details: Value::Object(Map::new()) }
}

/// Go's library lets `test` with null pass on a path that is not there, and clients rely on it.
fn tests_for_absence(operation: &json_patch::PatchOperation, object: &Value) -> bool {
    match operation {
        json_patch::PatchOperation::Test(test) => {
            test.value.is_null() && object.pointer(test.path.as_str()).is_none()
        }
        _ => false,
    }
}
