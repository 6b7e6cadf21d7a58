//! Whatever is true of every gRPC call: it is one line of the log and one count, it ends at its caller's deadline and soon
//! after SIGTERM, a panic in its handler is its own answer, and only so many are under way at once.
//!
//! ```text
//! socket ──► Calls ──► Identity, Controller, Node
//!             └─ reads method, volume and node of the request, and no other field: secrets stay in it
//! ```

pub(crate) mod deadline;
mod method;

use std::{
    any::Any,
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt as _;
use harvester_api::names::CSI_DRIVER;
use http_body_util::{BodyExt as _, Full, Limited};
use program::TaskGroup;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{Request, Response},
    },
};

use self::{
    deadline::TIMEOUT,
    method::{Method, Named},
};
use crate::refusal::{LONGEST, cut};

/// Bytes of a request. The fields of CSI are small: a map of parameters has 4 KiB at most.
pub const LARGEST_REQUEST: usize = 1 << 20;
/// Calls under way at once: of the controller service, of the node service, and of those that end what a Pod has. The
/// sidecars may have more than a hundred that wait for the host, and a hundred mounts may wait for a server that is away;
/// kubelet of the same node is to get its Pods on and off all the same.
pub(crate) const CALLS_AT_ONCE: usize = 128;
/// How long calls of the controller service go on after SIGTERM. Most of what they do is to wait for the host, and any
/// other process can go on with that.
const CONTROLLER_ENDS_WITHIN: Duration = Duration::from_secs(2);
/// How long those of the node service go on: they run programs on this machine that should come to their end.
const NODE_ENDS_WITHIN: Duration = Duration::from_secs(8);
/// How prost begins when bytes are no message.
const UNDECODED: &str = "failed to decode Protobuf message";
/// Characters of a name from a request that a line of the log shows.
const SHOWN: usize = 128;
/// Upper bounds in seconds, as the sidecars' own metrics have them.
const SECONDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    driver_name: &'static str,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

/// The calls of one process. Clones share their count and limit.
#[derive(Clone, Debug)]
pub struct Calls {
    slots: Arc<Slots>,
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
    tasks: TaskGroup,
}

impl Calls {
    /// Calls that end with `tasks`.
    pub fn new(tasks: &TaskGroup) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        Self {
            slots: Arc::new(Slots {
                controller: Semaphore::new(CALLS_AT_ONCE),
                node: Semaphore::new(CALLS_AT_ONCE),
                ends: Semaphore::new(CALLS_AT_ONCE),
            }),
            seconds: Family::new_with_constructor(seconds),
            tasks: tasks.clone(),
        }
    }

    /// The name is that of the sidecars' library for a driver's own calls.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "csi_plugin_operations",
            "Duration of a CSI call, by method and code",
            Unit::Seconds,
            self.seconds.clone(),
        );
    }

    /// The calls that `service` answers.
    pub fn of<S>(&self, service: S) -> Observed<S> {
        Observed { service, calls: self.clone() }
    }

    /// Ends when a call of `method` that is under way has to end, for the process does.
    async fn ended(&self, method: &Method) {
        self.tasks.stop.cancelled().await;
        sleep(if method.is_of_node() { NODE_ENDS_WITHIN } else { CONTROLLER_ENDS_WITHIN }).await;
    }
}

/// A gRPC service whose calls are observed.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    service: S,
    calls: Calls,
}

impl<S> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    /// Each call waits for its own clone of the service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (service, calls) = (self.service.clone(), self.calls.clone());
        let method = Method::of(request.uri().path());
        let within = request.headers().get(TIMEOUT).and_then(|value| timeout(value.to_str().ok()?));
        let mut line = Line::new(method, &calls);
        Box::pin(async move {
            let late = async {
                match within {
                    Some(within) => sleep(within).await,
                    None => std::future::pending().await,
                }
            };
            let response = tokio::select! {
                // an answer that is there counts, however late it is
                biased;
                answer = AssertUnwindSafe(answer(service, request, &calls, &mut line)).catch_unwind() => {
                    answer.unwrap_or_else(|panic| Status::internal(fault(&*panic)).into_http())
                }
                () = late => Status::deadline_exceeded("no end before the caller's deadline: call again").into_http(),
                () = calls.ended(method) => Status::unavailable("the driver is ending: call again").into_http(),
            };
            line.end(response.extensions().get::<Status>());
            Ok(response)
        })
    }
}

#[derive(Debug)]
struct Slots {
    controller: Semaphore,
    node: Semaphore,
    ends: Semaphore,
}

impl Slots {
    fn of(&self, method: &Method) -> &Semaphore {
        if method.is_end() {
            &self.ends
        } else if method.is_of_node() {
            &self.node
        } else {
            &self.controller
        }
    }
}

/// Reads the request, tells `line` what it is about, and lets `service` answer it.
async fn answer<S>(mut service: S, request: Request<Body>, calls: &Calls, line: &mut Line) -> Response<Body>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let _slot = match line.method.is_limited().then(|| calls.slots.of(line.method).try_acquire()) {
        Some(Err(_)) => {
            let full = format!("{CALLS_AT_ONCE} other calls are under way: call again later");
            return Status::resource_exhausted(full).into_http();
        }
        Some(Ok(slot)) => Some(slot),
        None => None,
    };
    let (head, body) = request.into_parts();
    let read = match Limited::new(body, LARGEST_REQUEST).collect().await {
        Ok(read) => read.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            let large = format!("the request has more than {LARGEST_REQUEST} bytes");
            return Status::invalid_argument(large).into_http();
        }
        Err(error) => return Status::from_error(error).into_http(),
    };
    line.named = line.method.named(&read);
    let request = Request::from_parts(head, Body::new(Full::new(read)));
    let ready = std::future::poll_fn(|context| service.poll_ready(context)).await;
    let answered = match ready {
        Ok(()) => service.call(request).await,
        Err(never) => match never {},
    };
    match answered {
        Ok(response) => with_callers_code(response),
        Err(never) => match never {},
    }
}

/// Bytes that are no message have INTERNAL from tonic, as gRPC asks of its libraries. People take that for a fault of the
/// driver, which they are to report, so they get the code of any other request that cannot be.
fn with_callers_code(response: Response<Body>) -> Response<Body> {
    match response.extensions().get::<Status>() {
        Some(status) if status.code() == Code::Internal && status.message().starts_with(UNDECODED) => {
            let message = format!("the request is no message of this method: {}", status.message());
            Status::invalid_argument(cut(&message, LONGEST)).into_http()
        }
        _ => response,
    }
}

/// What a call becomes in the log, and in the counts: when it ends, or when its caller went away and it is dropped.
struct Line {
    method: &'static Method,
    named: Named,
    begun: Instant,
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
    is_ended: bool,
}

impl Line {
    fn new(method: &'static Method, calls: &Calls) -> Self {
        let (named, seconds) = (Named::default(), calls.seconds.clone());
        Self { method, named, begun: Instant::now(), seconds, is_ended: false }
    }

    /// Writes it; `status` is that of a call that was not served.
    fn end(mut self, status: Option<&Status>) {
        let (code, message) = status.map_or((Code::Ok, ""), |status| (status.code(), status.message()));
        self.write(code, message);
    }

    fn write(&mut self, code: Code, message: &str) {
        self.is_ended = true;
        let took = self.begun.elapsed();
        let labels =
            Labels { driver_name: CSI_DRIVER, method_name: self.method.path, grpc_status_code: name(code) };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
        let (method, code, ms) = (self.method.path, name(code), took.as_millis());
        let Named { volume, snapshot, node } = &self.named;
        let (volume, snapshot, node) = (shown(volume), shown(snapshot), shown(node));
        match (code, self.method.is_quiet()) {
            ("OK", true) => tracing::trace!(method, volume, snapshot, node, ms, code),
            ("OK", false) => tracing::info!(method, volume, snapshot, node, ms, code),
            _ => tracing::warn!(method, volume, snapshot, node, ms, code, message),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.is_ended {
            self.write(Code::Cancelled, "the caller went away");
        }
    }
}

/// The beginning of a name, if there is one. A request's text may be of any length.
fn shown(name: &str) -> Option<&str> {
    let end = name.char_indices().nth(SHOWN).map_or(name.len(), |(end, _)| end);
    (!name.is_empty()).then(|| &name[..end])
}

/// The code as Go's library of gRPC writes it, which the sidecars' dashboards know.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The sentence for a panic.
fn fault(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
    let text = cut(text.unwrap_or("no word of it"), LONGEST);
    format!("a fault in the driver, which is to be reported: {text}")
}

/// The time that a caller waits, as its header [`TIMEOUT`] has it: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u32 = digits.parse().ok().filter(|_| is_number)?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    unit.checked_mul(number)
}

#[cfg(test)]
mod tests;
