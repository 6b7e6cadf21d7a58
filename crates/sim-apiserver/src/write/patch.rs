//! The four kinds of patches, each from the state that is there and a body to the state that is wanted.

use serde_json::Value;
use sim_apimachinery::body::Body;

use super::checked;
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
    match ask.media {
        Media::MergePatch => json_patch::merge(&mut object, &document(ask)?),
        Media::JsonPatch => operations(&mut object, &ask.body, ask)?,
        Media::StrategicMergePatch if ask.kind.is_custom() => {
            return Err(Failure::unsupported_media_type(MEDIA_TYPES));
        }
        Media::StrategicMergePatch => {
            object = machinery::strategic_merge(ask, &object, &document(ask)?)?;
        }
        Media::ApplyPatch => {
            let applied = checked(ask, Body { value: document(ask)?, duplicates: vec![] })?;
            return machinery::apply(server, ask, Some(old), &applied);
        }
        _ => return Err(Failure::unsupported_media_type(MEDIA_TYPES)),
    }
    checked(ask, Body { value: object, duplicates: vec![] })
}

/// The object that an apply patch makes where there is none.
pub(super) fn applied_to_nothing(server: &ApiServer, ask: &Ask) -> Result<Value, Failure> {
    let applied = checked(ask, Body { value: document(ask)?, duplicates: vec![] })?;
    machinery::apply(server, ask, None, &applied)
}

/// The `Scale` that the body makes of the present one.
pub(super) fn scale(ask: &Ask, old: &Value) -> Result<Value, Failure> {
    let mut scale = crate::scale::read(&ask.kind, ask.version, old)?;
    match ask.media {
        Media::MergePatch | Media::StrategicMergePatch => json_patch::merge(&mut scale, &document(ask)?),
        Media::JsonPatch => operations(&mut scale, &ask.body, ask)?,
        Media::ApplyPatch => return Err(Failure::unsupported_media_type(&MEDIA_TYPES[..2])),
        media => scale = media.document(&ask.body)?,
    }
    Ok(scale)
}

fn document(ask: &Ask) -> Result<Value, Failure> {
    let document = ask.media.document(&ask.body)?;
    if document.is_object() {
        Ok(document)
    } else {
        Err(Failure::bad_request("error decoding patch: it is no JSON object"))
    }
}

fn operations(object: &mut Value, body: &[u8], ask: &Ask) -> Result<(), Failure> {
    let patch: json_patch::Patch = serde_json::from_slice(body)
        .map_err(|e| Failure::bad_request(format!("error decoding patch: {e}")))?;
    if patch.0.len() > OPERATIONS {
        return Err(Failure::too_large(OPERATIONS));
    }
    let patch = json_patch::Patch(
        patch.0.into_iter().filter(|operation| !tests_for_absence(operation, object)).collect(),
    );
    json_patch::patch(object, &patch).map_err(|e| {
        tracing::debug!(error = %e, name = ask.name(), "JSON patch does not apply");
        let details = Value::Object(serde_json::Map::new());
        let message = "the server rejected our request due to an error in our request".to_owned();
        Failure { code: 422, reason: "Invalid", message, details }
    })
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
