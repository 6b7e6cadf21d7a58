//! The meaning of an API server's refusal, one function for each question.

use kube::core::Status;

/// Whether admission denied the request. The server passes on whatever code from 400 a webhook gives, and 400 where it gives
/// none; the words are the server's own, for webhooks and for policies.
pub fn is_denial(status: &Status) -> bool {
    ["denied the request", "denied request"].iter().any(|words| status.message.contains(words))
}

/// Whether the server answers the same request of ours in the same way until somebody changes the object, a rule or a right.
pub fn is_lasting(status: &Status) -> bool {
    // 404 for a POST: the namespace or the kind is not there yet
    let may_pass = matches!(status.code, 401 | 404 | 408 | 409 | 429);
    matches!(status.code, 400..500) && !may_pass || is_denial(status)
}

/// Whether nothing but another object, or another rule, ends the refusal. A right may be granted and a quota freed at any
/// time.
pub fn is_about_the_object(status: &Status) -> bool {
    is_lasting(status) && status.code != 403 || is_denial(status)
}

/// Whether the request changed nothing and never will: a server that gave up waiting for etcd may still store it.
pub fn stored_nothing(status: &Status) -> bool {
    status.code < 500 || is_denial(status)
}

/// Whether the server says that there is no object of this name. A proxy on the way has answers of this code too, and so has a
/// server without the kind.
pub fn is_gone(status: &Status, name: &str) -> bool {
    status.is_not_found() && status.details.as_ref().is_some_and(|details| details.name == name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const WEBHOOK: &str = "admission webhook \"pools.example.com\" denied the request: not during the freeze";
    const POLICY: &str = "ippools \"edge\" is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'all' denied \
                          request: not now";

    #[rstest]
    #[case::invalid(422, "IPPool \"edge\" is invalid: metadata.name", [true, true, true])]
    #[case::a_webhook_without_code(400, WEBHOOK, [true, true, true])]
    #[case::a_webhook_that_forbids(403, WEBHOOK, [true, true, true])]
    #[case::a_webhook_with_a_code_of_its_own(500, WEBHOOK, [true, true, true])]
    #[case::a_webhook_that_says_busy(429, WEBHOOK, [true, true, true])]
    #[case::a_policy(401, POLICY, [true, true, true])]
    #[case::no_right_or_no_quota(403, "ippools \"edge\" is forbidden", [true, false, true])]
    #[case::expired_credentials(401, "Unauthorized", [false, false, true])]
    #[case::no_such_kind(404, "the server could not find the requested resource", [false, false, true])]
    #[case::slow(408, "Timeout", [false, false, true])]
    #[case::busy(429, "too many requests", [false, false, true])]
    #[case::away(503, "the server is currently unable to handle the request", [false, false, false])]
    #[case::a_webhook_that_is_away(500, "failed calling webhook \"x\": connection refused", [false, false, false])]
    fn a_refusal_says_who_may_end_it(#[case] code: u16, #[case] message: &str, #[case] expected: [bool; 3]) {
        let status = Status::failure(message, "").with_code(code);
        let answers = [is_lasting, is_about_the_object, stored_nothing].map(|asked| asked(&status));
        assert_eq!(answers, expected, "lasting, about the object, nothing stored");
    }

    #[rstest]
    #[case::of_the_object(404, Some("edge"), true)]
    #[case::of_another(404, Some("lab"), false)]
    #[case::of_a_proxy_or_of_a_server_without_the_kind(404, None, false)]
    #[case::forbidden(403, Some("edge"), false)]
    fn an_object_is_gone_where_the_answer_names_it(
        #[case] code: u16,
        #[case] named: Option<&str>,
        #[case] expected: bool,
    ) {
        let details = named.map(|name| json!({"name": name}));
        let reason = if code == 404 { "NotFound" } else { "Forbidden" };
        let status = json!({"code": code, "message": "no", "reason": reason, "details": details});
        assert_eq!(is_gone(&serde_json::from_value(status).unwrap(), "edge"), expected);
    }
}
