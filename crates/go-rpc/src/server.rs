//! The answering side of net/rpc.
//!
//! ```text
//! connection ──header, argument──► call ─┐ each in a task of its own
//!            ──header, argument──► call ─┤
//!            ◄──header, reply── writer ◄─┘ in the order in which calls end
//! ```
//! A connection that ends cancels no call: what has begun runs to its end, as in Go.

use std::any::Any;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::convert::{FromGob, Mismatch, ToGob};
use crate::decode::Limits;
use crate::encode::{EncodeError, Encoder};
use crate::handshake::{HandshakeError, answer};
use crate::header::{Request, Response};
use crate::stream::{StreamError, Values};
use crate::value::{GoString, Typed};

/// Calls of one connection that run at the same time; further ones wait in the connection.
const MOST_CALLS: usize = 1024;

/// Replies that wait for the connection; further ones wait in their calls.
const WAITING_REPLIES: usize = 16;

/// Pauses after failures to accept a connection.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

type Outcome = Result<Typed, String>;
type Handler = Arc<dyn Fn(Typed) -> Result<BoxFuture<'static, Outcome>, Mismatch> + Send + Sync>;
type After = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone)]
struct Method {
    handler: Handler,
    after: Option<After>,
}

/// The methods of one service.
///
/// ```
/// # use go_rpc::{Service, gob_struct};
/// #[derive(Default)]
/// struct Args { a: i64, b: i64 }
/// gob_struct!(Args as "Args" { a => "A", b => "B" });
///
/// let arith = Service::new()
///     .method("Multiply", async |args: Args| Ok::<_, String>(args.a * args.b))
///     .method("Divide", async |args: Args| {
///         args.a.checked_div(args.b).ok_or("divide by zero")
///     });
/// ```
#[derive(Clone, Default)]
pub struct Service {
    methods: HashMap<String, Method>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.methods.keys()).finish()
    }
}

impl Service {
    /// A service without methods.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method. An argument that is not an `A` is answered with an error; so is an `Err`, by its text.
    #[must_use]
    pub fn method<A, R, E, F>(self, name: &str, handler: impl Fn(A) -> F + Send + Sync + 'static) -> Self
    where
        A: FromGob,
        R: ToGob,
        E: fmt::Display,
        F: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.add(name, handler, None)
    }

    /// Adds a method, and calls `after` once its reply is on its way, or cannot be any more: the place to end
    /// a process whose peer has asked for that.
    #[must_use]
    pub fn method_then<A, R, E, F>(
        self,
        name: &str,
        handler: impl Fn(A) -> F + Send + Sync + 'static,
        after: impl Fn() + Send + Sync + 'static,
    ) -> Self
    where
        A: FromGob,
        R: ToGob,
        E: fmt::Display,
        F: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.add(name, handler, Some(Arc::new(after)))
    }

    /// Adds a method for arguments whose type only the caller knows, and replies likewise.
    #[must_use]
    pub fn typed_method<E, F>(
        mut self,
        name: &str,
        handler: impl Fn(Typed) -> F + Send + Sync + 'static,
    ) -> Self
    where
        E: fmt::Display,
        F: Future<Output = Result<Typed, E>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |argument| {
            Ok(handler(argument).map(|result| result.map_err(|e| e.to_string())).boxed())
        });
        self.methods.insert(name.into(), Method { handler, after: None });
        self
    }

    fn add<A, R, E, F>(
        mut self,
        name: &str,
        handler: impl Fn(A) -> F + Send + Sync + 'static,
        after: Option<After>,
    ) -> Self
    where
        A: FromGob,
        R: ToGob,
        E: fmt::Display,
        F: Future<Output = Result<R, E>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |argument| {
            let call = handler(A::from_value(argument.value)?);
            Ok(call
                .map(|result| match result {
                    Ok(reply) => Ok(reply.to_typed()),
                    Err(error) => Err(error.to_string()),
                })
                .boxed())
        });
        self.methods.insert(name.into(), Method { handler, after });
        self
    }
}

/// Answers calls on any number of connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Server(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    services: HashMap<String, Service>,
    limits: Limits,
}

impl Server {
    /// A server of these services, by name. One service may have several names.
    pub fn new<'a>(limits: Limits, services: impl IntoIterator<Item = (&'a str, Service)>) -> Self {
        let services = services.into_iter().map(|(name, service)| (name.into(), service)).collect();
        Self(Arc::new(Inner { services, limits }))
    }

    /// Accepts connections for ever; dropping the future ends all of them and their calls.
    ///
    /// A failed accept (no file descriptor left, no memory, a peer that is gone already) passes or concerns only one
    /// connection, so the server accepts again after a pause, as Go's servers do.
    pub async fn listen(&self, listener: TcpListener) -> Infallible {
        let (mut connections, mut failures) = (JoinSet::new(), 0_u32);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        failures = 0;
                        let server = self.clone();
                        connections.spawn(async move { server.serve(stream).await });
                    }
                    Err(_) => {
                        failures = failures.saturating_add(1);
                        tokio::time::sleep(pause(failures)).await;
                    }
                },
                // how a connection ended is the peer's business
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// Serves one connection from its HTTP request on.
    ///
    /// # Errors
    /// If the request is not one for RPC, or as [`Self::serve_gobs`].
    pub async fn serve<S>(&self, mut stream: S) -> Result<(), ServeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut buffer = BytesMut::new();
        if let Err(error) = answer(&mut stream, &mut buffer).await {
            // says goodbye to a client that was refused; if it is gone, so much the better
            stream.shutdown().await.ok();
            return Err(error.into());
        }
        Ok(self.connection(stream, buffer).await?)
    }

    /// Serves one connection that carries gobs from the first byte, until the client closes it and all its
    /// calls have ended.
    ///
    /// # Errors
    /// If the connection ends otherwise: it fails, it is cut inside a call, or a header is malformed.
    pub async fn serve_gobs<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Result<(), StreamError> {
        self.connection(stream, BytesMut::new()).await
    }

    async fn connection<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        buffer: BytesMut,
    ) -> Result<(), StreamError> {
        let (read, write) = tokio::io::split(stream);
        let (replies, to_write) = mpsc::channel(WAITING_REPLIES);
        let values = Values::new(read, buffer, self.0.limits);
        let (result, ()) = tokio::join!(self.requests(values, replies), write_replies(write, to_write));
        result
    }

    async fn requests<R: AsyncRead + Unpin>(
        &self,
        mut values: Values<R>,
        replies: mpsc::Sender<Reply>,
    ) -> Result<(), StreamError> {
        let mut calls = JoinSet::new();
        let ended = loop {
            let (request, argument) = match next_request(&mut values).await {
                Ok(Some(request)) => request,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            while calls.try_join_next().is_some() {}
            if calls.len() >= MOST_CALLS {
                calls.join_next().await;
            }
            let (call, after) = self.begin(&request.service_method.to_lossy(), argument);
            let replies = replies.clone();
            calls.spawn(async move {
                let outcome = AssertUnwindSafe(call).catch_unwind().await;
                let outcome = outcome.unwrap_or_else(|panic| Err(panicked(&request, panic.as_ref())));
                // refused only if the connection's future is gone
                replies.send(Reply { request, outcome, after }).await.ok();
            });
        };
        while calls.join_next().await.is_some() {}
        ended
    }

    fn begin(
        &self,
        name: &str,
        argument: Result<Typed, String>,
    ) -> (BoxFuture<'static, Outcome>, Option<After>) {
        let begun = self.find(name).and_then(|method| {
            let call = (method.handler)(argument?).map_err(|mismatch| mismatch.to_string())?;
            Ok((call, method.after.clone()))
        });
        begun.unwrap_or_else(|error| (std::future::ready(Err(error)).boxed(), None))
    }

    /// The method behind `Service.Method`, or the text that Go answers.
    fn find(&self, name: &str) -> Result<&Method, String> {
        let (service, method) =
            name.rsplit_once('.').ok_or_else(|| format!("rpc: service/method request ill-formed: {name}"))?;
        let service =
            self.0.services.get(service).ok_or_else(|| format!("rpc: can't find service {name}"))?;
        service.methods.get(method).ok_or_else(|| format!("rpc: can't find method {name}"))
    }
}

/// The pause before the next attempt to accept, after so many failures in a row.
fn pause(failures: u32) -> Duration {
    (FIRST_PAUSE * (1 << failures.saturating_sub(1).min(8))).min(LONGEST_PAUSE)
}

/// Why a connection was not served to its end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It did not begin as one.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// It broke.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// A request's header, and its argument or why that is none; none if the client closed the connection.
async fn next_request<R: AsyncRead + Unpin>(
    values: &mut Values<R>,
) -> Result<Option<(Request, Result<Typed, String>)>, StreamError> {
    let Some(header) = values.next().await? else { return Ok(None) };
    let request = Request::from_value(header.value)?;
    match values.next().await {
        Ok(Some(argument)) => Ok(Some((request, Ok(argument)))),
        Ok(None) => Err(StreamError::Cut),
        Err(StreamError::Value(error)) => Ok(Some((request, Err(error.to_string())))),
        Err(error) => Err(error),
    }
}

struct Reply {
    request: Request,
    outcome: Outcome,
    after: Option<After>,
}

/// Writes replies until no call is left that could send one. A client that does not listen any more changes
/// nothing for the calls.
async fn write_replies<W: AsyncWrite + Unpin>(mut to: W, mut replies: mpsc::Receiver<Reply>) {
    let mut encoder = Encoder::new();
    let mut failed = false;
    while let Some(Reply { request, outcome, after }) = replies.recv().await {
        if !failed {
            let bytes = encode(&mut encoder, request, outcome);
            failed = to.write_all(&bytes).await.is_err() || to.flush().await.is_err();
        }
        if let Some(after) = after {
            after();
        }
    }
    if !failed {
        // the peer may be gone already
        to.shutdown().await.ok();
    }
}

fn encode(encoder: &mut Encoder, request: Request, outcome: Outcome) -> Vec<u8> {
    let mark = encoder.mark();
    let response =
        Response { service_method: request.service_method, seq: request.seq, error: GoString::default() };
    let error = match outcome {
        Ok(body) => match put(encoder, &response, &body) {
            Ok(bytes) => return bytes,
            Err(error) => error.to_string(),
        },
        // an empty text would be no error for the client
        Err(error) if error.is_empty() => "unspecified error".into(),
        Err(error) => error,
    };
    encoder.forget(mark);
    put(encoder, &Response { error: error.into(), ..response }, &().to_typed())
        .expect("headers and empty structs fit their types")
}

fn put(encoder: &mut Encoder, response: &Response, body: &Typed) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::new();
    encoder.encode_typed(&response.to_typed(), &mut bytes)?;
    encoder.encode_typed(body, &mut bytes)?;
    Ok(bytes)
}

fn panicked(request: &Request, panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    format!("rpc: {} panicked: {text}", request.service_method.to_lossy())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::first(1, 5)]
    #[case::second(2, 10)]
    #[case::eighth(8, 640)]
    #[case::ninth(9, 1000)]
    #[case::for_ever(u32::MAX, 1000)]
    fn pauses_double_up_to_a_second(#[case] failures: u32, #[case] milliseconds: u64) {
        assert_eq!(pause(failures), Duration::from_millis(milliseconds));
    }
}
