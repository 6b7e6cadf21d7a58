//! A write that arrives late changes nothing: it names the version or the UID of the object that it is for.
//!
//! Two kinds of write name neither. A POST makes a new object, or is refused because one is there. The patch of an Event
//! sets the count of an Event that this process made under a random name; nobody else writes it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Request};
use kube::client::Body;
use serde_json::Value;

/// The writes of all programs that break this rule. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnconditionalWrites(Arc<Mutex<BTreeSet<String>>>);

impl UnconditionalWrites {
    /// Reads a request, and returns it.
    pub(crate) async fn read(&self, request: Request<Body>) -> kube::Result<Request<Body>> {
        let judged = matches!(*request.method(), Method::PUT | Method::PATCH | Method::DELETE);
        if !judged || request.uri().path().contains("/events/") {
            return Ok(request);
        }
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        if !is_conditional(&head.method, &serde_json::from_slice(&body).unwrap_or_default()) {
            let write = format!("{} {}", head.method, head.uri.path());
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(write);
        }
        Ok(Request::from_parts(head, Body::from(body)))
    }

    /// # Panics
    /// When there is one.
    pub(crate) fn must_be_none(&self) {
        let writes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(writes.is_empty(), "writes without resourceVersion and UID: {writes:#?}");
    }
}

fn is_conditional(method: &Method, body: &Value) -> bool {
    if let Some(operations) = body.as_array() {
        let first = operations.first();
        return first
            .is_some_and(|first| first["op"] == "test" && first["path"] == "/metadata/resourceVersion");
    }
    let conditions = if *method == Method::DELETE { &body["preconditions"] } else { &body["metadata"] };
    ["resourceVersion", "uid"].iter().any(|key| conditions[key].as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_write_is_conditional_if_it_names_a_version_or_a_uid() {
        assert!(is_conditional(&Method::PUT, &json!({"metadata": {"resourceVersion": "7"}})));
        assert!(is_conditional(&Method::DELETE, &json!({"preconditions": {"uid": "a-1"}})));
        assert!(!is_conditional(
            &Method::PATCH,
            &json!({"metadata": {"resourceVersion": null}, "status": {}})
        ));
        assert!(!is_conditional(&Method::DELETE, &json!({"metadata": {"uid": "a-1"}})));
        assert!(!is_conditional(&Method::DELETE, &Value::Null));
        let write = json!({"op": "add", "path": "/spec/a", "value": 1});
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
        assert!(is_conditional(&Method::PATCH, &json!([test, write])));
        assert!(!is_conditional(&Method::PATCH, &json!([write, test])), "tests come first");
    }
}
