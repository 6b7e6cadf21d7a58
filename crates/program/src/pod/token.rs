//! The claims of a service account's token. The token is ours: there is nobody to deceive, so the signature is not
//! checked.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

/// The claim `kubernetes.io/pod/uid`. A legacy token has none.
pub(super) fn pod_uid(token: &str) -> Option<String> {
    Some(claims(token)?.get("pod")?.get("uid")?.as_str()?.to_owned())
}

/// Namespace and name of the Pod that the token is bound to.
pub(super) fn pod_name(token: &str) -> Option<(String, String)> {
    let claims = claims(token)?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some((text(claims.get("namespace")?)?, text(claims.get("pod")?.get("name")?)?))
}

fn claims(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    claims.get("kubernetes.io").cloned()
}
