use prometheus_client::encoding::text::encode;
use rstest::rstest;
use tonic::codegen::http::HeaderValue;
use tower::ServiceExt as _;

use super::*;

const STAGE: &str = "/csi.v1.Node/NodeStageVolume";
const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";

/// What a handler does with a call.
#[derive(Clone, Copy)]
enum Handler {
    Serves,
    Refuses,
    Panics,
    Hangs,
}

fn observed(
    calls: &Calls,
    handler: Handler,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + use<>
{
    calls.of(tower::service_fn(move |_: Request<Body>| async move {
        match handler {
            Handler::Serves => Ok(Response::new(Body::empty())),
            Handler::Refuses => Ok(Status::aborted("another call is under way").into_http()),
            Handler::Panics => panic!("index out of bounds"),
            Handler::Hangs => std::future::pending().await,
        }
    }))
}

fn request(path: &str, timeout: Option<&'static str>) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().unwrap();
    if let Some(timeout) = timeout {
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(timeout));
    }
    request
}

async fn code(calls: &Calls, handler: Handler, request: Request<Body>) -> Code {
    let response = observed(calls, handler).oneshot(request).await.unwrap();
    response.extensions().get::<Status>().map_or(Code::Ok, Status::code)
}

fn metrics(calls: &Calls) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    calls.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_method_and_code() {
    let calls = Calls::new(&TaskGroup::new());
    for handler in [Handler::Serves, Handler::Serves, Handler::Refuses] {
        code(&calls, handler, request(STAGE, None)).await;
    }
    code(&calls, Handler::Serves, request("/of/an/attacker", None)).await;
    let text = metrics(&calls);
    for (method, code, count) in [(STAGE, "OK", 2), (STAGE, "Aborted", 1), ("unknown", "OK", 1)] {
        let line = format!(
            "csi_plugin_operations_seconds_count{{driver_name=\"{CSI_DRIVER}\",method_name=\"{method}\",grpc_status_code=\"{code}\"}} {count}"
        );
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
}

// docs/contract/csi-driver.md#crashes
#[tokio::test]
async fn a_panic_in_a_handler_is_the_answer_of_its_call_alone() {
    let calls = Calls::new(&TaskGroup::new());
    assert_eq!(code(&calls, Handler::Panics, request(STAGE, None)).await, Code::Internal);
    assert_eq!(code(&calls, Handler::Serves, request(STAGE, None)).await, Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_callers_deadline() {
    let calls = Calls::new(&TaskGroup::new());
    let begun = Instant::now();
    let code = code(&calls, Handler::Hangs, request(PUBLISH, Some("110S"))).await;
    assert_eq!((code, begun.elapsed().as_secs()), (Code::DeadlineExceeded, 110));
}

// docs/contract/csi-driver.md#end
#[rstest]
#[case(PUBLISH, CONTROLLER_ENDS_WITHIN)]
#[case(STAGE, NODE_ENDS_WITHIN)]
#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_answered_soon_after_sigterm(#[case] path: &str, #[case] within: Duration) {
    let tasks = TaskGroup::new();
    let calls = Calls::new(&tasks);
    tasks.stop.cancel();
    let begun = Instant::now();
    assert_eq!(code(&calls, Handler::Hangs, request(path, None)).await, Code::Unavailable);
    assert_eq!(begun.elapsed().as_secs(), within.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_went_away_leaves_its_call_counted_and_its_slot_free() {
    let calls = Calls::new(&TaskGroup::new());
    let hanging = observed(&calls, Handler::Hangs).oneshot(request(STAGE, None));
    assert!(tokio::time::timeout(Duration::from_secs(1), hanging).await.is_err());
    assert!(metrics(&calls).contains("grpc_status_code=\"Canceled\""));
    assert_eq!(calls.slots.node.available_permits(), CALLS_AT_ONCE);
}

#[tokio::test]
async fn one_call_too_many_is_refused_at_once_and_the_identity_service_is_not() {
    let calls = Calls::new(&TaskGroup::new());
    let _others = calls.slots.node.acquire_many(u32::try_from(CALLS_AT_ONCE).unwrap()).await.unwrap();
    assert_eq!(code(&calls, Handler::Serves, request(STAGE, None)).await, Code::ResourceExhausted);
    for method in ["/csi.v1.Identity/Probe", "/csi.v1.Controller/CreateVolume"] {
        assert_eq!(code(&calls, Handler::Serves, request(method, None)).await, Code::Ok, "{method}");
    }
}

#[tokio::test]
async fn a_pod_ends_while_as_many_calls_as_may_be_wait_for_what_they_mount() {
    let calls = Calls::new(&TaskGroup::new());
    let mut waiting = vec![];
    for _ in 0..CALLS_AT_ONCE {
        let mut call = Box::pin(observed(&calls, Handler::Hangs).oneshot(request(STAGE, None)));
        assert!(futures::poll!(call.as_mut()).is_pending());
        waiting.push(call);
    }
    assert_eq!(code(&calls, Handler::Serves, request(STAGE, None)).await, Code::ResourceExhausted);
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume", "NodeGetVolumeStats"] {
        let call = request(&format!("/csi.v1.Node/{method}"), None);
        assert_eq!(code(&calls, Handler::Serves, call).await, Code::Ok, "{method}");
    }
}

#[rstest]
#[case::largest(LARGEST_REQUEST, Code::Ok)]
#[case::larger(LARGEST_REQUEST + 1, Code::InvalidArgument)]
#[tokio::test]
async fn a_request_may_be_so_large(#[case] bytes: usize, #[case] expected: Code) {
    let calls = Calls::new(&TaskGroup::new());
    let large = request(STAGE, None).map(|_| Body::new(Full::from(vec![0; bytes])));
    assert_eq!(code(&calls, Handler::Serves, large).await, expected);
}

#[rstest]
#[case("110S", Some(Duration::from_secs(110)))]
#[case("2H", Some(Duration::from_secs(7200)))]
#[case("99999999M", Some(Duration::from_secs(99_999_999 * 60)))]
#[case("1500m", Some(Duration::from_millis(1500)))]
#[case("7u", Some(Duration::from_micros(7)))]
#[case("7n", Some(Duration::from_nanos(7)))]
#[case("", None)]
#[case("S", None)]
#[case("110", None)]
#[case("123456789S", None)]
#[case("-1S", None)]
#[case("+1S", None)]
fn a_deadline_is_digits_and_a_unit(#[case] text: &str, #[case] expected: Option<Duration>) {
    assert_eq!(timeout(text), expected);
}

#[test]
fn a_long_name_is_shown_by_its_beginning() {
    assert_eq!((shown(""), shown("pvc-1")), (None, Some("pvc-1")));
    assert_eq!(shown(&"ü".repeat(SHOWN + 1)), Some(&*"ü".repeat(SHOWN)));
}
