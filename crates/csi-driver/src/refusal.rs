//! Why a call is refused: CSI's code, and one line that names the object, the reason and the next step.
//!
//! The external sidecars act by the code. For the provisioner Canceled, DeadlineExceeded, Unavailable, ResourceExhausted
//! and Aborted mean "it may still be under way": it comes again, and cleans up. Any other code is final, so a write whose
//! outcome is unknown has to answer with one of these (docs/contract/csi-driver.md#codes).

use controller_kit::error_message;
use tonic::{Code, Status};

use crate::host::rights;

/// What Kubernetes says when a ResourceQuota is used up.
const QUOTA: &str = "exceeded quota";
/// How Kubernetes begins when an admission webhook says no.
const WEBHOOK: &str = "admission webhook";

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub code: Code,
    pub message: String,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A field of the request is missing or is nothing that it may be.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// There is no such volume, snapshot or node.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// Another call for the same object is under way, or somebody else wrote first: the caller comes again.
    pub fn aborted(message: impl Into<String>) -> Self {
        Self::new(Code::Aborted, message)
    }

    /// Coming again does not help before somebody changed something.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// Somebody does not answer: it may be another time.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// What the host's answer to a request means for the call. `doing` says what the request was for, as in
    /// "create PersistentVolumeClaim shop/pvc-1 on the host".
    pub fn of_host(doing: &str, error: &kube::Error) -> Self {
        let code = match error {
            kube::Error::Api(status) => match status.code {
                401 => Code::Unauthenticated,
                403 if status.message.contains(QUOTA) => Code::ResourceExhausted,
                403 if status.message.starts_with(WEBHOOK) => Code::FailedPrecondition,
                403 => Code::PermissionDenied,
                404 => Code::NotFound,
                409 => Code::Aborted,
                400 | 422 => Code::FailedPrecondition,
                429 => Code::ResourceExhausted,
                // what the server did before it failed is unknown
                _ => Code::Unavailable,
            },
            _ => Code::Unavailable,
        };
        // a webhook may write many lines
        let message = rights::explained(error_message(error)).replace(['\n', '\r'], " ");
        Self::new(code, format!("{doing}: {message}"))
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, refusal.message)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn answer(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(
            kube::core::Status::failure("the server says why", "Reason").with_code(code),
        ))
    }

    #[rstest]
    #[case::role(
        "claims is forbidden: User \"a\" cannot get resource \"x\" in API group \"\"",
        Code::PermissionDenied
    )]
    #[case::quota(
        "claims is forbidden: exceeded quota: small, requested: requests.storage=1Gi",
        Code::ResourceExhausted
    )]
    #[case::webhook("admission webhook \"v\" denied the request:\nin use", Code::FailedPrecondition)]
    fn a_refusal_is_the_roles_the_quotas_or_the_webhooks(#[case] message: &str, #[case] expected: Code) {
        let status = kube::core::Status::failure(message, "Forbidden").with_code(403);
        let refusal = Refusal::of_host("read it", &kube::Error::Api(Box::new(status)));
        assert_eq!(refusal.code, expected);
        assert!(!refusal.message.contains('\n'), "{refusal}");
    }

    #[rstest]
    #[case(401, Code::Unauthenticated)]
    #[case(403, Code::PermissionDenied)]
    #[case(404, Code::NotFound)]
    #[case(409, Code::Aborted)]
    #[case(422, Code::FailedPrecondition)]
    #[case(429, Code::ResourceExhausted)]
    #[case(500, Code::Unavailable)]
    #[case(504, Code::Unavailable)]
    fn the_hosts_answer_decides_the_code_and_its_sentence_is_passed_on(
        #[case] code: u16,
        #[case] expected: Code,
    ) {
        let refusal = Refusal::of_host("create PersistentVolumeClaim shop/pvc-1 on the host", &answer(code));
        assert_eq!(refusal.code, expected);
        assert!(refusal.message.starts_with("create PersistentVolumeClaim shop/pvc-1 on the host: "));
        assert!(refusal.message.contains("the server says why"));
    }
}
