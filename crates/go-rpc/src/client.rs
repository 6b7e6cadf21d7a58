//! The asking side of net/rpc.
//!
//! One task per connection writes requests in the order of their sequence numbers and hands replies to the
//! callers that wait for them, in whatever order they come.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::convert::{FromGob, Mismatch, ToGob};
use crate::decode::{DecodeError, Limits};
use crate::encode::{EncodeError, Encoder};
use crate::handshake::{HandshakeError, ask};
use crate::header::{Request, Response};
use crate::stream::{StreamError, Values};
use crate::value::{GoString, Typed};

/// Requests that wait for the connection; further ones wait in their callers.
const WAITING_REQUESTS: usize = 16;

/// Why a call has no reply.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered with this error.
    #[error("{0}")]
    Server(String),
    /// The argument's value is not of its type; nothing was sent.
    #[error(transparent)]
    Argument(#[from] EncodeError),
    /// The reply is another value than the caller wants.
    #[error(transparent)]
    Reply(#[from] Mismatch),
    /// The reply is no value.
    #[error("reading body {0}")]
    Body(DecodeError),
    /// The connection has ended, for this reason.
    #[error("connection is shut down: {0}")]
    ShutDown(String),
}

/// Calls methods of one server over one connection, any number at a time. Clones share the connection; it
/// ends with the last of them.
#[derive(Clone, Debug)]
pub struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    requests: mpsc::Sender<Call>,
    ended: Arc<OnceLock<String>>,
    task: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Call {
    method: String,
    argument: Typed,
    reply: Waiting,
}

type Waiting = oneshot::Sender<Result<Typed, CallError>>;
type Pending = Mutex<HashMap<u64, Waiting>>;

impl Client {
    /// Asks for the HTTP upgrade on a fresh connection.
    ///
    /// # Errors
    /// If the server does not answer as a Go RPC server does.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect<S>(mut stream: S, limits: Limits) -> Result<Self, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut buffer = BytesMut::new();
        ask(&mut stream, &mut buffer).await?;
        Ok(Self::start(stream, buffer, limits))
    }

    /// Takes a connection that carries gobs from the first byte.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new<S>(stream: S, limits: Limits) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self::start(stream, BytesMut::new(), limits)
    }

    fn start<S>(stream: S, buffer: BytesMut, limits: Limits) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, mut to_write) = mpsc::channel(WAITING_REQUESTS);
        let ended = Arc::new(OnceLock::new());
        let reason = ended.clone();
        let task = tokio::spawn(async move {
            let (read, write) = tokio::io::split(stream);
            let pending = Pending::default();
            let error = tokio::select! {
                error = read_replies(Values::new(read, buffer, limits), &pending) => error,
                error = write_requests(write, &mut to_write, &pending) => error,
            };
            reason.set(chain(&error)).expect("the connection ends once");
            // dropping `pending` and `to_write` now tells the callers
        });
        Self(Arc::new(Shared { requests, ended, task: task.abort_handle() }))
    }

    /// Calls `Service.Method` and waits for its reply. A caller that stops waiting cancels nothing.
    ///
    /// # Errors
    /// If the server refuses the call, the reply is not an `R`, or the connection ends.
    pub async fn call<R: FromGob>(&self, method: &str, argument: &impl ToGob) -> Result<R, CallError> {
        let reply = self.call_typed(method, argument.to_typed()).await?;
        Ok(R::from_value(reply.value)?)
    }

    /// [`Self::call`] where the types are known only now.
    ///
    /// # Errors
    /// If the server refuses the call, the argument does not fit its type, or the connection ends.
    pub async fn call_typed(&self, method: &str, argument: Typed) -> Result<Typed, CallError> {
        let (reply, replied) = oneshot::channel();
        let call = Call { method: method.into(), argument, reply };
        self.0.requests.send(call).await.map_err(|_| self.shut_down())?;
        replied.await.unwrap_or_else(|_| Err(self.shut_down()))
    }

    /// Closes the connection; calls that wait end with an error.
    pub fn close(&self) {
        self.0.task.abort();
    }

    fn shut_down(&self) -> CallError {
        CallError::ShutDown(self.0.ended.get().cloned().unwrap_or_else(|| "closed by this side".into()))
    }
}

fn chain(error: &StreamError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

async fn write_requests<W: AsyncWrite + Unpin>(
    mut to: W,
    calls: &mut mpsc::Receiver<Call>,
    pending: &Pending,
) -> StreamError {
    let mut encoder = Encoder::new();
    let mut seq = 0;
    while let Some(Call { method, argument, reply }) = calls.recv().await {
        let request = Request { service_method: method.into(), seq };
        let bytes = match encode(&mut encoder, &request, &argument) {
            Ok(bytes) => bytes,
            Err(error) => {
                // a caller that is gone does not want to know
                reply.send(Err(error.into())).ok();
                continue;
            }
        };
        pending.lock().expect("no panic while a call is noted").insert(seq, reply);
        seq += 1;
        let written = async {
            to.write_all(&bytes).await?;
            to.flush().await
        };
        if let Err(error) = written.await {
            return error.into();
        }
    }
    StreamError::Cut // all clients are gone, and nobody will ask why
}

fn encode(encoder: &mut Encoder, request: &Request, argument: &Typed) -> Result<Vec<u8>, EncodeError> {
    let mark = encoder.mark();
    let mut bytes = Vec::new();
    encoder.encode_typed(&request.to_typed(), &mut bytes)?;
    if let Err(error) = encoder.encode_typed(argument, &mut bytes) {
        encoder.forget(mark);
        return Err(error);
    }
    Ok(bytes)
}

async fn read_replies<R: AsyncRead + Unpin>(mut values: Values<R>, pending: &Pending) -> StreamError {
    loop {
        let (response, body) = match next_reply(&mut values).await {
            Ok(reply) => reply,
            Err(error) => return error,
        };
        let waiting = pending.lock().expect("no panic while a call is noted").remove(&response.seq);
        let Some(waiting) = waiting else { continue };
        let result = match body {
            _ if response.error != GoString::default() => {
                Err(CallError::Server(response.error.to_lossy().into_owned()))
            }
            Ok(body) => Ok(body),
            Err(error) => Err(CallError::Body(error)),
        };
        // a caller that is gone does not want to know
        waiting.send(result).ok();
    }
}

async fn next_reply<R: AsyncRead + Unpin>(
    values: &mut Values<R>,
) -> Result<(Response, Result<Typed, DecodeError>), StreamError> {
    let header = values.next().await?.ok_or(StreamError::Cut)?;
    let response = Response::from_value(header.value)?;
    match values.next().await {
        Ok(body) => Ok((response, Ok(body.ok_or(StreamError::Cut)?))),
        Err(StreamError::Value(error)) => Ok((response, Err(error))),
        Err(error) => Err(error),
    }
}
