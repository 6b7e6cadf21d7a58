//! A stream of gob values over any transport.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::convert::Mismatch;
use crate::decode::{DecodeError, Decoder, Limits, message_length};
use crate::value::Typed;

/// Why a connection ended other than by the peer's closing it between two calls.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The transport failed.
    #[error("connection failed")]
    Io(#[from] io::Error),
    /// The peer went away in the middle of a value.
    #[error("unexpected EOF")]
    Cut,
    /// The length of a message is none, or above the limit: where the next one begins is unknown.
    #[error("message refused")]
    Length(#[source] DecodeError),
    /// A message was read, but is no value.
    #[error("value refused")]
    Value(#[from] DecodeError),
    /// A header that is none.
    #[error("header refused")]
    Header(#[from] Mismatch),
}

/// Reads values. Dropping a read and starting another loses nothing.
pub(crate) struct Values<R> {
    from: R,
    buffer: BytesMut,
    decoder: Decoder,
    limits: Limits,
}

impl<R: AsyncRead + Unpin> Values<R> {
    /// `buffer` holds what has been read from the stream already.
    pub(crate) fn new(from: R, buffer: BytesMut, limits: Limits) -> Self {
        Self { from, buffer, decoder: Decoder::new(limits), limits }
    }

    /// The next value; none if the peer closed the stream before it. After [`StreamError::Value`] the stream
    /// goes on with the next message.
    pub(crate) async fn next(&mut self) -> Result<Option<Typed>, StreamError> {
        loop {
            let length = message_length(&self.buffer, &self.limits).map_err(StreamError::Length)?;
            if let Some((length, start)) = length
                && self.buffer.len() >= start + length
            {
                let message = self.buffer.split_to(start + length);
                match self.decoder.push(&message[start..])? {
                    Some(typed) => return Ok(Some(typed)),
                    None => continue,
                }
            }
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                let whole = self.buffer.is_empty() && !self.decoder.is_inside();
                return if whole { Ok(None) } else { Err(StreamError::Cut) };
            }
        }
    }
}
