//! Why a call is refused: CSI's code, and one line that names the object, the reason and the next step.
//!
//! The external sidecars act by the code. For the provisioner Canceled, DeadlineExceeded, Unavailable, ResourceExhausted
//! and Aborted mean "it may still be under way": it comes again, and cleans up. Any other code is final, so a write whose
//! outcome is unknown has to answer with one of these (docs/contract/csi-driver.md#codes).

use tonic::{Code, Status};

use crate::host::rights;

/// What Kubernetes says when a ResourceQuota is used up.
const QUOTA: &str = "exceeded quota";
/// Bytes of a sentence in an answer, in the log and in an Event. Hosts, guest agents and callers write texts of any length.
pub const LONGEST: usize = 1024;
/// Of them those that somebody else wrote, so that the next step has room behind.
const LONGEST_QUOTE: usize = 640;
/// How Kubernetes begins when an admission webhook says no.
const WEBHOOK: &str = "admission webhook";

/// What an error says, on one line that is not too long.
pub fn error_message(error: &(dyn std::error::Error + 'static)) -> String {
    cut(&controller_kit::error_message(error), LONGEST_QUOTE)
}

/// As much of a text as fits, on one line.
pub(crate) fn cut(text: &str, most: usize) -> String {
    const CUT: char = '…';
    let is_whole = text.len() <= most;
    let end = if is_whole { text.len() } else { text.floor_char_boundary(most - CUT.len_utf8()) };
    let line = text[..end].chars().map(|one| if one.is_control() { ' ' } else { one });
    line.chain((!is_whole).then_some(CUT)).collect()
}

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub code: Code,
    pub message: String,
}

impl Refusal {
    /// A sentence that is too long is cut.
    pub fn new(code: Code, message: impl AsRef<str>) -> Self {
        Self { code, message: cut(message.as_ref(), LONGEST) }
    }

    /// A field of the request is missing or is nothing that it may be.
    pub fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// There is no such volume, snapshot or node.
    pub fn not_found(message: impl AsRef<str>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// Another call for the same object is under way, or somebody else wrote first: the caller comes again.
    pub fn aborted(message: impl AsRef<str>) -> Self {
        Self::new(Code::Aborted, message)
    }

    /// Coming again does not help before somebody changed something.
    pub fn precondition(message: impl AsRef<str>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// Somebody does not answer: it may be another time.
    pub fn unavailable(message: impl AsRef<str>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// What the host's answer to a request means for the call, or that there is none. `doing` says what the request was for, as in
    /// "create PersistentVolumeClaim shop/pvc-1 on the host".
    pub fn of_host(doing: &str, error: &kube::Error) -> Self {
        let refusal = Self::of_guest(doing, error);
        match unanswered(error) {
            Some(next) => Self::new(refusal.code, format!("{}; {next}", refusal.message)),
            None => refusal,
        }
    }

    /// What the answer of the guest cluster's API server means for the call.
    pub fn of_guest(doing: &str, error: &kube::Error) -> Self {
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
        Self::new(code, format!("{doing}: {}", rights::explained(error_message(error))))
    }
}

/// Whom to look at where no connection came to be, or it broke off before the answer.
fn unanswered(error: &kube::Error) -> Option<&'static str> {
    let first: &(dyn std::error::Error + 'static) = error;
    let mut causes = std::iter::successors(Some(first), |error| error.source());
    causes.any(|error| error.is::<std::io::Error>()).then(|| {
        if error_message(error).contains("certificate") {
            "the driver's kubeconfig does not trust whoever answers there: check its certificate-authority-data and its server"
        } else {
            "Harvester does not answer: if that lasts, check the server of the driver's kubeconfig"
        }
    })
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, refusal.message)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rstest::rstest;

    use super::*;

    #[test]
    fn a_long_text_of_the_host_is_cut_and_what_grants_a_right_is_said_all_the_same() {
        let long = "é\n".repeat(LONGEST);
        let refused = format!(
            "volumesnapshots is forbidden: User \"csi\" cannot list resource \"volumesnapshots\" in API group \
             \"snapshot.storage.k8s.io\" {long}"
        );
        let status = kube::core::Status::failure(&refused, "Forbidden").with_code(403);
        let refusal = Refusal::of_host("list snapshots", &kube::Error::Api(Box::new(status)));
        assert!(refusal.message.len() <= LONGEST && refusal.message.contains('…'), "{refusal}");
        assert!(refusal.message.contains("; until then snapshots are not listed"), "{refusal}");
        let status = Status::from(Refusal::not_found(format!("there is no volume {long:?}")));
        assert!(status.message().len() <= LONGEST && status.message().ends_with('…'));
    }

    #[rstest]
    #[case("abc", 3, "abc")]
    #[case("abcdef", 5, "ab…")]
    #[case("aéé", 4, "a…")]
    #[case("a\u{0}b\r\n", 5, "a b  ")]
    fn a_text_is_cut_between_characters_and_stays_one_line(
        #[case] text: &str,
        #[case] most: usize,
        #[case] expected: &str,
    ) {
        assert_eq!(cut(text, most), expected);
    }

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
    #[case::broken_off(
        io::ErrorKind::UnexpectedEof,
        "peer closed connection",
        "; Harvester does not answer: if that lasts"
    )]
    #[case::silent(
        io::ErrorKind::TimedOut,
        "no answer within 30 s",
        "; Harvester does not answer: if that lasts"
    )]
    #[case::somebody_else(
        io::ErrorKind::InvalidData,
        "invalid peer certificate: UnknownIssuer",
        "; the driver's kubeconfig does not trust"
    )]
    fn a_harvester_that_does_not_answer_is_said_with_what_to_check(
        #[case] kind: io::ErrorKind,
        #[case] said: &str,
        #[case] next: &str,
    ) {
        let broken = || kube::Error::Service(Box::new(io::Error::new(kind, said)));
        let refusal = Refusal::of_host("read PersistentVolumeClaim shop/pvc-1 on the host", &broken());
        assert_eq!(refusal.code, Code::Unavailable);
        assert!(refusal.message.contains(said) && refusal.message.contains(next), "{refusal}");
        assert!(Refusal::of_guest("read Node worker-1", &broken()).message.ends_with(said));
        let unread = kube::Error::Service("there is no kubeconfig yet".into());
        assert!(Refusal::of_host("read it", &unread).message.ends_with("there is no kubeconfig yet"));
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
