//! AdmissionReviews, read and answered. Nothing that a client can send makes this panic.

use serde_json::{Value, json};

/// What is being done to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// CONNECT, and whatever the future brings: not ours to judge.
    Other,
}

/// Which of our kinds it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    LoadBalancer,
    IPPool,
    /// Not ours: a configuration that was written by hand sends us too much.
    Other,
}

/// A request to judge.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub uid: String,
    pub operation: Operation,
    pub subject: Subject,
    /// Who asks, as the API server knows them.
    pub user: String,
    pub namespace: String,
    pub name: String,
    /// As it would be stored; null for [`Operation::Delete`].
    pub object: Value,
    /// As it is; null for [`Operation::Create`].
    pub old: Value,
}

impl Request {
    /// The request of a review.
    ///
    /// # Errors
    /// A sentence about what is missing.
    pub fn of_review(review: &Value) -> Result<Self, String> {
        if review["kind"] != "AdmissionReview" {
            return Err(format!("expected an AdmissionReview, got kind {}", review["kind"]));
        }
        let request = &review["request"];
        let text =
            |pointer: &str| request.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        if text("/uid").is_empty() {
            return Err("the AdmissionReview has no request with a uid".to_owned());
        }
        let ours = text("/kind/group") == "loadbalancer.harvesterhci.io" && text("/subResource").is_empty();
        let subject = match text("/kind/kind").as_str() {
            "LoadBalancer" if ours => Subject::LoadBalancer,
            "IPPool" if ours => Subject::IPPool,
            _ => Subject::Other,
        };
        let operation = match text("/operation").as_str() {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            _ => Operation::Other,
        };
        let named =
            |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str).map(ToOwned::to_owned);
        let (object, old) = (request["object"].clone(), request["oldObject"].clone());
        // with generateName there is no name yet
        let name = Some(text("/name")).filter(|name| !name.is_empty());
        let name = name.or_else(|| named(&object)).or_else(|| named(&old)).unwrap_or_default();
        Ok(Self {
            uid: text("/uid"),
            operation,
            subject,
            user: text("/userInfo/username"),
            namespace: text("/namespace"),
            name,
            object,
            old,
        })
    }

    /// Whether the object is on its way out: then nothing about it is judged or changed any more.
    pub fn deleting(&self) -> bool {
        !self.object["metadata"]["deletionTimestamp"].is_null()
    }
}

/// One thing that speaks against a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub text: String,
    pub kind: FaultKind,
}

/// Whether other values would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The object is wrong in itself: 422.
    Invalid,
    /// This may not be done now, or not by this user: 403.
    Forbidden,
}

impl Fault {
    pub fn invalid(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FaultKind::Invalid }
    }

    pub fn forbidden(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FaultKind::Forbidden }
    }
}

/// What we say.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Allow,
    /// Allowed, with these operations of a JSON patch.
    Patch(Vec<Value>),
    /// Denied, with a code and a message.
    Deny(u16, String),
}

impl Answer {
    /// Denies for `faults`, all in one message behind `prefix`; allows when there are none.
    pub fn to_faults(prefix: &str, faults: &[Fault]) -> Self {
        let Some(kind) = faults.iter().map(|fault| fault.kind).max() else { return Self::Allow };
        let code = match kind {
            FaultKind::Invalid => 422,
            FaultKind::Forbidden => 403,
        };
        let texts: Vec<&str> = faults.iter().map(|fault| fault.text.as_str()).collect();
        Self::Deny(code, format!("{prefix}{}", texts.join("; ")))
    }

    /// The review to send back: of the version that came, with the request's uid.
    pub fn into_review(self, review: &Value) -> Value {
        let version = review["apiVersion"].as_str().unwrap_or("admission.k8s.io/v1");
        let uid = review["request"]["uid"].as_str().unwrap_or_default();
        let mut response = json!({"uid": uid, "allowed": !matches!(self, Self::Deny(..))});
        match self {
            Self::Allow => {}
            Self::Patch(operations) if operations.is_empty() => {}
            Self::Patch(operations) => {
                let patch = Value::from(operations).to_string();
                response["patchType"] = "JSONPatch".into();
                response["patch"] = base64(patch.as_bytes());
            }
            Self::Deny(code, message) => {
                let reason = match code {
                    400 => "BadRequest",
                    403 => "Forbidden",
                    _ => "Invalid",
                };
                response["status"] = json!({
                    "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                    "code": code, "reason": reason, "message": message,
                });
            }
        }
        json!({"apiVersion": version, "kind": "AdmissionReview", "response": response})
    }
}

fn base64(bytes: &[u8]) -> Value {
    // ByteString is the type of such fields, and knows how they are written
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).expect("bytes always become text")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(json!(null))]
    #[case(json!([1, 2]))]
    #[case(json!({"kind": "Pod"}))]
    #[case(json!({"kind": "AdmissionReview"}))]
    #[case(json!({"kind": "AdmissionReview", "request": {"uid": 7}}))]
    #[case(json!({"kind": "AdmissionReview", "request": "text"}))]
    fn what_is_no_review_is_answered_with_a_sentence(#[case] review: Value) {
        let why = Request::of_review(&review).unwrap_err();
        let answer = Answer::Deny(400, why).into_review(&review);
        assert_eq!(answer["response"]["allowed"], false);
        assert_eq!(answer["kind"], "AdmissionReview");
    }

    #[test]
    fn a_review_is_answered_in_its_own_version_under_its_own_uid() {
        let review = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": "UPDATE", "kind": {"group": "loadbalancer.harvesterhci.io", "kind": "IPPool"},
            "userInfo": {"username": "alice"}, "name": "edge", "object": {"metadata": {}}, "oldObject": null}});
        let request = Request::of_review(&review).unwrap();
        assert_eq!(
            (request.operation, request.subject, request.user.as_str()),
            (Operation::Update, Subject::IPPool, "alice")
        );
        let answer = Answer::Patch(vec![json!({"op": "remove", "path": "/status"})]).into_review(&review);
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1beta1");
        assert_eq!(answer["response"]["uid"], "u1");
        assert_eq!(answer["response"]["patch"], "W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL3N0YXR1cyJ9XQ==");
    }

    #[rstest]
    #[case(&[], None)]
    #[case(&[Fault::invalid("a"), Fault::invalid("b")], Some((422, "create web failed: a; b")))]
    #[case(&[Fault::forbidden("a"), Fault::invalid("b")], Some((403, "create web failed: a; b")))]
    fn all_faults_come_in_one_message(#[case] faults: &[Fault], #[case] expected: Option<(u16, &str)>) {
        // pitfalls-load-balancer.md WH-7: there, a denial looks like a broken server
        let expected = expected.map_or(Answer::Allow, |(code, text)| Answer::Deny(code, text.to_owned()));
        assert_eq!(Answer::to_faults("create web failed: ", faults), expected);
    }
}
