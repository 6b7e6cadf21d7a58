//! `Retry-After` of a server that is too busy, where callers find it.
//!
//! An API server says in a header when to come again, and only sometimes also in the `Status` (priority and fairness
//! answers with plain text). Callers see no headers, so the header goes into `details.retryAfterSeconds`. This crate sends
//! nothing twice: the queue or watch whose request it was waits.

use http::{Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use serde_json::{Value, json};
use tower::BoxError;

/// A `Status` is small; of a longer answer the text is of no use.
const LONGEST: usize = 64 * 1024;

/// The seconds that the answer asks for, if it is of this sort.
fn seconds(answer: &Response<Body>) -> Option<u32> {
    if !matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// The answer, with the header's seconds in its `Status`.
///
/// # Errors
/// When the body breaks off.
pub(crate) async fn told(answer: Response<Body>) -> Result<Response<Body>, BoxError> {
    let Some(seconds) = seconds(&answer) else { return Ok(answer) };
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST).collect().await?.to_bytes();
    let status = with_seconds(&body, head.status, seconds);
    Ok(Response::from_parts(head, Body::from(status.to_string().into_bytes())))
}

fn with_seconds(body: &[u8], code: StatusCode, seconds: u32) -> Value {
    let is_status = |value: &Value| value["kind"] == "Status";
    let mut status = serde_json::from_slice(body).ok().filter(is_status).unwrap_or_else(|| {
        let reason = if code == StatusCode::TOO_MANY_REQUESTS { "TooManyRequests" } else { "ServiceUnavailable" };
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason,
            "message": String::from_utf8_lossy(body).trim()})
    });
    if status["details"]["retryAfterSeconds"].as_u64().unwrap_or_default() == 0 {
        status["details"]["retryAfterSeconds"] = seconds.into();
    }
    status
}

#[cfg(test)]
mod tests {
    use http::Request;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, Client};
    use rstest::rstest;

    use super::*;
    use crate::{Connection, Options};

    const WITHOUT: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"busy","reason":"TooManyRequests","code":429}"#;
    const WITH: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"busy","reason":"TooManyRequests","details":{"retryAfterSeconds":9},"code":429}"#;

    #[rstest]
    #[case::priority_and_fairness(429, Some("7"), "Too many requests, please try again later.", 7)]
    #[case::status(429, Some("7"), WITHOUT, 7)]
    #[case::status_that_says_it(429, Some("7"), WITH, 9)]
    #[case::unavailable(503, Some("3"), "", 3)]
    #[case::no_header(429, None, WITHOUT, 0)]
    #[case::a_date(503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), "later", 0)]
    #[case::another_error(500, Some("7"), "broken", 0)]
    #[tokio::test]
    async fn a_busy_servers_retry_after_reaches_the_caller(
        #[case] code: u16,
        #[case] header: Option<&'static str>,
        #[case] body: &'static str,
        #[case] expected: u32,
    ) {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let mut answer = Response::builder().status(code);
            if let Some(header) = header {
                answer = answer.header(RETRY_AFTER, header);
            }
            answer.body(Body::from(body.as_bytes().to_vec()))
        });
        let client = Connection::limiting(Client::new(service, "shop"), &Options::named("part/1"));
        let error = Api::<ConfigMap>::default_namespaced(client).get("a").await.unwrap_err();
        let kube::Error::Api(status) = error else { panic!("{error}") };
        assert_eq!(status.code, code);
        assert_eq!(status.details.map_or(0, |details| details.retry_after_seconds), expected);
    }
}
