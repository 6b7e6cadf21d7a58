//! Admission reviews: read into a [`Write`] that the rules decide on, and answered.

use kube::api::DynamicObject;
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, META_KIND, Operation};
use kube::core::response::StatusSummary;
use kube::core::response::{StatusCause, StatusDetails};
use program::text;
use serde_json::Value;

use crate::dns;

/// The API group of both kinds.
pub(crate) const GROUP: &str = "loadbalancer.harvesterhci.io";

/// At most so many faults are named in an answer.
const NAMED: usize = 20;
/// At most so many characters of a text that a user wrote are repeated in an answer.
const REPEATED: usize = 64;
/// At most so many characters of a name, and of the reason why something cannot be read, are logged or answered.
const LONGEST: usize = 256;
/// At most so many characters of a fault, which may name several things that users wrote.
const LONGEST_FAULT: usize = 1_024;

/// The kind of the object that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    LoadBalancer,
    IPPool,
}

/// A write that the API server is about to store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) kind: Kind,
    /// The user who writes, as the API server knows them.
    pub(crate) user: String,
    pub(crate) namespace: String,
    /// Empty for an object with `generateName`, unless the API server has named it already.
    pub(crate) name: String,
    pub(crate) change: Change,
}

/// An object before and after the write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Create(Box<DynamicObject>),
    Update { old: Box<DynamicObject>, new: Box<DynamicObject> },
    Delete(Box<DynamicObject>),
}

impl Write {
    /// The write of a request; nothing where no rule is about it: a configuration written by hand may send any
    /// request here.
    ///
    /// # Errors
    /// A sentence that names the missing object, or says that no Namespace has such a name: an API server sends neither.
    pub(crate) fn of(request: AdmissionRequest<DynamicObject>) -> Result<Option<Self>, String> {
        let AdmissionRequest {
            kind,
            sub_resource,
            name,
            namespace,
            operation,
            user_info,
            object,
            old_object,
            ..
        } = request;
        if kind.group != GROUP || sub_resource.is_some_and(|name| !name.is_empty()) {
            return Ok(None);
        }
        let kind = match kind.kind.as_str() {
            "LoadBalancer" => Kind::LoadBalancer,
            "IPPool" => Kind::IPPool,
            _ => return Ok(None),
        };
        let there = |object: Option<DynamicObject>, field: &str| {
            object.map(Box::new).ok_or_else(|| format!("the request has no {field}"))
        };
        let change = match operation {
            Operation::Create => Change::Create(there(object, "object")?),
            Operation::Update => {
                Change::Update { old: there(old_object, "oldObject")?, new: there(object, "object")? }
            }
            Operation::Delete => Change::Delete(there(old_object, "oldObject")?),
            Operation::Connect => return Ok(None),
        };
        let (Change::Create(object) | Change::Update { new: object, .. } | Change::Delete(object)) = &change;
        // the request names no object that has a `generateName`
        let name = Some(name).filter(|name| !name.is_empty()).or_else(|| object.metadata.name.clone());
        let (user, namespace) = (user_info.username.unwrap_or_default(), namespace.unwrap_or_default());
        // the mutator reads the Namespace: another text would lead to other objects
        if !namespace.is_empty() && !dns::is_label(&namespace) {
            return Err(format!("no Namespace can have the name {}", quoted(&namespace)));
        }
        Ok(Some(Self { kind, user, namespace, name: name.unwrap_or_default(), change }))
    }

    /// The object as it would be stored; nothing for a delete.
    pub(crate) fn stored(&self) -> Option<&DynamicObject> {
        let (Change::Create(object) | Change::Update { new: object, .. }) = &self.change else { return None };
        Some(object)
    }

    /// Like [`Write::stored`]; nothing once the object is being deleted: then no rule looks at more than its status.
    /// The stored object says whether it is: a user can write a time of deletion into any object.
    pub(crate) fn reviewed(&self) -> Option<&DynamicObject> {
        let deleting = self.old().is_some_and(|old| old.metadata.deletion_timestamp.is_some());
        self.stored().filter(|_| !deleting)
    }

    /// The object as it stands, if there is one.
    pub(crate) fn old(&self) -> Option<&DynamicObject> {
        match &self.change {
            Change::Create(_) => None,
            Change::Update { old, .. } | Change::Delete(old) => Some(old),
        }
    }

    /// Everything of [`Write::old`] but its metadata; null where there is none.
    pub(crate) fn old_data(&self) -> &Value {
        self.old().map_or(&Value::Null, |old| &old.data)
    }
}

/// A reason to refuse a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

/// Whether other values would help. The greater one decides the answer's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// The object is wrong in itself: 422.
    Invalid,
    /// This user may not write this, or nobody may now: 403.
    Forbidden,
}

impl Fault {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { reason: Reason::Invalid, message: message.into() }
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self { reason: Reason::Forbidden, message: message.into() }
    }
}

/// The faults of a write, of which the first 20 are kept and the others counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    named: Vec<Fault>,
    more: usize,
}

impl Faults {
    /// Adds a fault. Makes its message only where that is kept: a hostile object can have thousands of faults.
    pub(crate) fn add(&mut self, fault: impl FnOnce() -> Fault) {
        if self.named.len() < NAMED {
            let Fault { reason, message } = fault();
            self.named.push(Fault { reason, message: text::cut(&message, LONGEST_FAULT) });
        } else {
            self.more += 1;
        }
    }

    /// The faults that are named in the answer.
    #[cfg(test)]
    pub(crate) fn named(&self) -> &[Fault] {
        &self.named
    }

    /// All of them in one message after `prefix`, with the code; nothing where there is none.
    pub(crate) fn denial(&self, prefix: &str) -> Option<(Reason, String)> {
        let reason = self.named.iter().map(|fault| fault.reason).max()?;
        let messages: Vec<&str> = self.named.iter().map(|fault| fault.message.as_str()).collect();
        let more = if self.more > 0 { format!("; and {} more", self.more) } else { String::new() };
        Some((reason, format!("{prefix}{}{more}", messages.join("; "))))
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        let mut faults = Self::default();
        faults.add(|| fault);
        faults
    }
}

/// A text that a user may have written, cut to a length that fits a line of the log.
pub(crate) fn cut(text: &str) -> String {
    text::cut(text, LONGEST)
}

/// A text that a user wrote, in quotation marks and cut to a length that fits a message.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(REPEATED) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// The request of a review.
///
/// # Errors
/// A sentence that says why the body is no review.
pub(crate) fn read(body: &[u8]) -> Result<AdmissionRequest<DynamicObject>, String> {
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|error| format!("the body is no AdmissionReview: {error}"))?;
    if review.types.kind != META_KIND {
        return Err(format!("expected an AdmissionReview, got kind {}", quoted(&review.types.kind)));
    }
    let request: AdmissionRequest<DynamicObject> =
        review.try_into().map_err(|_| "the AdmissionReview has no request".to_owned())?;
    if request.uid.is_empty() {
        return Err("the AdmissionReview has a request without uid".to_owned());
    }
    Ok(request)
}

/// Denies the request of `response`. `kubectl edit` shows an object that is invalid again, and above it the causes alone.
pub(crate) fn deny(mut response: AdmissionResponse, reason: Reason, message: String) -> AdmissionResponse {
    let (code, reason) = match reason {
        Reason::Invalid => (422, "Invalid"),
        Reason::Forbidden => (403, "Forbidden"),
    };
    response.allowed = false;
    let cause = || StatusCause {
        reason: "FieldValueInvalid".to_owned(),
        message: message.clone(),
        field: "spec".to_owned(),
    };
    let details = (code == 422).then(|| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: vec![cause()],
        retry_after_seconds: 0,
    });
    response.result = Status {
        status: Some(StatusSummary::Failure),
        code,
        reason: reason.to_owned(),
        details,
        message,
        ..Status::default()
    };
    response
}

/// The review to send back. kube-rs writes the patch as a list of numbers; the API server takes that as well, but the
/// documented form is base64, in a third of the bytes.
pub(crate) fn to_json(mut response: AdmissionResponse) -> Value {
    let patch = response.patch.take();
    let mut review = serde_json::to_value(response.into_review()).expect("a review has text keys only");
    if let Some(patch) = patch {
        let patch = k8s_openapi::ByteString(patch);
        review["response"]["patch"] = serde_json::to_value(patch).expect("bytes always become text");
    }
    review
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn review(change: &Value) -> Vec<u8> {
        let mut review = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": "UPDATE", "userInfo": {"username": "alice"}, "name": "edge",
            "kind": {"group": GROUP, "version": "v1beta1", "kind": "IPPool"},
            "resource": {"group": GROUP, "version": "v1beta1", "resource": "ippools"},
            "object": {"metadata": {"name": "new"}, "spec": {}}, "oldObject": {"metadata": {"name": "old"}}}});
        json_patch::merge(&mut review, change);
        review.to_string().into_bytes()
    }

    #[rstest]
    #[case::no_json("[")]
    #[case::null("null")]
    #[case::list("[1, 2]")]
    #[case::another_kind("{\"kind\": \"Pod\", \"apiVersion\": \"v1\"}")]
    #[case::no_request("{\"kind\": \"AdmissionReview\", \"apiVersion\": \"admission.k8s.io/v1\"}")]
    #[case::wrong_request(
        "{\"kind\": \"AdmissionReview\", \"apiVersion\": \"admission.k8s.io/v1\", \"request\": 7}"
    )]
    fn a_body_that_is_no_review_is_named(#[case] body: &str) {
        assert!(read(body.as_bytes()).is_err());
    }

    #[rstest]
    #[case::number(json!({"request": {"uid": 7}}))]
    #[case::empty(json!({"request": {"uid": ""}}))]
    #[case::metadata(json!({"request": {"object": {"metadata": 7}}}))]
    #[case::managed_fields(json!({"request": {"object": {"metadata": {"managedFields": {}}}}}))]
    #[case::another_kind(json!({"kind": "Pod"}))]
    fn a_review_that_is_malformed_is_named(#[case] change: Value) {
        assert!(read(&review(&change)).is_err());
    }

    #[test]
    fn a_review_is_answered_in_its_own_version_under_its_own_uid() {
        let request = read(&review(&json!({}))).unwrap();
        let patch = serde_json::from_value(json!([{"op": "remove", "path": "/status"}])).unwrap();
        let answer = to_json(AdmissionResponse::from(&request).with_patch(patch).unwrap());
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1beta1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(
            (&answer["response"]["uid"], &answer["response"]["allowed"]),
            (&json!("u1"), &json!(true))
        );
        assert_eq!(answer["response"]["patch"], "W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL3N0YXR1cyJ9XQ==");
        assert_eq!(answer["response"]["patchType"], "JSONPatch");

        let denied = deny(AdmissionResponse::from(&request), Reason::Forbidden, "no".to_owned());
        let expected = json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"});
        assert_eq!(to_json(denied)["response"], json!({"uid": "u1", "allowed": false, "status": expected}));
        let denied = deny(AdmissionResponse::from(&request), Reason::Invalid, "no".to_owned());
        let status = &to_json(denied)["response"]["status"];
        assert_eq!((&status["code"], &status["message"]), (&json!(422), &json!("no")));
        let cause = json!({"reason": "FieldValueInvalid", "message": "no", "field": "spec"});
        assert_eq!(status["details"], json!({"causes": [cause]}));
    }

    #[rstest]
    #[case::update(json!({}), Some("update new"))]
    #[case::create(json!({"operation": "CREATE", "name": "", "oldObject": null}), Some("create new"))]
    #[case::generated(json!({"operation": "CREATE", "name": "", "object": {"metadata": {"name": null}}}), Some("create "))]
    #[case::delete(json!({"operation": "DELETE", "name": "", "object": null}), Some("delete old"))]
    #[case::connect(json!({"operation": "CONNECT"}), None)]
    #[case::subresource(json!({"subResource": "status"}), None)]
    #[case::no_subresource(json!({"subResource": ""}), Some("update new"))]
    #[case::another_kind(json!({"kind": {"kind": "Pod"}}), None)]
    #[case::another_group(json!({"kind": {"group": "example.com"}}), None)]
    fn a_write_is_read_from_a_request(#[case] change: Value, #[case] expected: Option<&str>) {
        let change = json!({"request": change});
        let mut merged = change;
        if merged["request"]["name"].is_null() {
            merged["request"]["name"] = "".into();
        }
        let write = Write::of(read(&review(&merged)).unwrap()).unwrap();
        let text = write.map(|write| {
            let verb = match write.change {
                Change::Create(_) => "create",
                Change::Update { .. } => "update",
                Change::Delete(_) => "delete",
            };
            format!("{verb} {}", write.name)
        });
        assert_eq!(text.as_deref(), expected);
    }

    #[rstest]
    #[case::update(json!({"operation": "UPDATE", "oldObject": null}), "oldObject")]
    #[case::create(json!({"operation": "CREATE", "object": null}), "object")]
    #[case::delete(json!({"operation": "DELETE", "oldObject": null}), "oldObject")]
    fn a_request_without_its_object_is_named(#[case] change: Value, #[case] expected: &str) {
        let request = read(&review(&json!({"request": change}))).unwrap();
        assert_eq!(Write::of(request), Err(format!("the request has no {expected}")));
    }

    #[rstest]
    #[case::path("kube-system/secrets/token")]
    #[case::query("team-a?watch=true")]
    #[case::long(&"x".repeat(64))]
    fn a_review_of_an_impossible_namespace_is_refused(#[case] namespace: &str) {
        let request = read(&review(&json!({"request": {"namespace": namespace}}))).unwrap();
        let fault = Write::of(request).unwrap_err();
        assert!(fault.starts_with("no Namespace can have the name "), "{fault}");
    }

    #[test]
    fn an_object_that_is_being_deleted_is_not_reviewed() {
        let going = json!({"metadata": {"deletionTimestamp": "2026-08-20T10:00:00Z"}});
        let going = json!({"request": {"object": going, "oldObject": going}});
        let write = Write::of(read(&review(&going)).unwrap()).unwrap().unwrap();
        assert!(write.reviewed().is_none() && write.old().is_some());
    }

    #[test]
    fn a_user_who_writes_a_deletion_timestamp_into_an_object_escapes_no_review() {
        let forged = json!({"metadata": {"deletionTimestamp": "2026-08-20T10:00:00Z"}});
        for change in [
            json!({"operation": "UPDATE", "object": forged}),
            json!({"operation": "CREATE", "object": forged, "oldObject": null}),
        ] {
            let write = Write::of(read(&review(&json!({"request": change}))).unwrap()).unwrap().unwrap();
            assert!(write.reviewed().is_some(), "{change}");
        }
    }

    #[rstest]
    #[case(&[], None)]
    #[case(&[Fault::invalid("a"), Fault::invalid("b")], Some((Reason::Invalid, "create web failed: a; b")))]
    #[case(&[Fault::forbidden("a"), Fault::invalid("b")], Some((Reason::Forbidden, "create web failed: a; b")))]
    fn all_faults_come_in_one_message(#[case] given: &[Fault], #[case] expected: Option<(Reason, &str)>) {
        // docs/contract/load-balancer.md#WH-7: in the Go program a denial looks like a broken server
        let mut faults = Faults::default();
        given.iter().for_each(|fault| faults.add(|| fault.clone()));
        let expected = expected.map(|(reason, message)| (reason, message.to_owned()));
        assert_eq!(faults.denial("create web failed: "), expected);
    }

    #[test]
    fn twenty_faults_are_named_and_the_others_counted() {
        let mut faults = Faults::default();
        for number in 0..4_000 {
            faults.add(|| Fault::invalid(format!("<{number}>")));
        }
        let (_, message) = faults.denial("").unwrap();
        assert_eq!(message.matches('<').count(), 20);
        assert!(message.ends_with("<19>; and 3980 more"), "{message}");
    }

    #[rstest]
    #[case::short("web", "\"web\"")]
    #[case::control("a\nb\u{202e}", "\"a\\nb\\u{202e}\"")]
    #[case::at_the_limit(&"é".repeat(64), &format!("\"{}\"", "é".repeat(64)))]
    #[case::cut(&"é".repeat(65), &format!("\"{}\"…", "é".repeat(64)))]
    fn a_users_text_is_quoted_and_cut(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(quoted(text), expected);
    }
}
