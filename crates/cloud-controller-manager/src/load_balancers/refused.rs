//! Services whose objects Harvester refuses to make. Each is tried again and again; but what its former object held may be
//! another's by now, so it goes on with that no longer.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard},
};

use kube::core::Status;

/// UIDs of the Services whose object was refused for good at the last answer that says so.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<HashSet<String>>);

impl Refused {
    /// Harvester did not make the object of this Service.
    pub(super) fn answered(&self, service_uid: &str, answer: &Status) {
        if is_lasting(answer) {
            self.uids().insert(service_uid.to_owned());
        }
    }

    pub(super) fn has(&self, service_uid: &str) -> bool {
        self.uids().contains(service_uid)
    }

    /// The object is there, or is wanted no more.
    pub(super) fn forget(&self, service_uid: &str) {
        self.uids().remove(service_uid);
    }

    fn uids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().expect("no panic while remembering")
    }
}

/// Whether the server answers the same request in the same way until somebody changes the Service, a rule or a right. The
/// server passes on whatever code a webhook gives; the words are its own, for webhooks and for policies.
fn is_lasting(answer: &Status) -> bool {
    // 404 for a POST: the namespace or the kind is not there yet
    let may_pass = matches!(answer.code, 401 | 404 | 408 | 409 | 429);
    let is_denied = ["denied the request", "denied request"].iter().any(|it| answer.message.contains(it));
    matches!(answer.code, 400..500) && !may_pass || is_denied
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::no_right_or_no_quota(403, "loadbalancers is forbidden", true)]
    #[case::invalid(422, "LoadBalancer \"blue\" is invalid: spec", true)]
    #[case::a_webhook_with_a_code_of_its_own(500, "admission webhook \"v\" denied the request: no", true)]
    #[case::a_policy(401, "ValidatingAdmissionPolicy 'freeze' with binding 'all' denied request: no", true)]
    #[case::expired_credentials(401, "Unauthorized", false)]
    #[case::no_such_kind(404, "the server could not find the requested resource", false)]
    #[case::busy(429, "too many requests", false)]
    #[case::a_webhook_that_is_away(500, "failed calling webhook \"v\": connection refused", false)]
    #[case::away(503, "the server is currently unable to handle the request", false)]
    fn an_object_is_refused_where_the_next_try_gets_the_same_answer(
        #[case] code: u16,
        #[case] message: &str,
        #[case] expected: bool,
    ) {
        let refused = Refused::default();
        refused.answered("1", &Status::failure(message, "").with_code(code));
        assert_eq!((refused.has("1"), refused.has("2")), (expected, false));
        refused.forget("1");
        assert!(!refused.has("1"));
    }
}
