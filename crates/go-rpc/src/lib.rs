#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod convert;
mod decode;
mod descriptor;
mod encode;
mod handshake;
mod header;
mod server;
mod stream;
mod types;
mod value;
mod wire;

pub use client::{CallError, Client};
pub use convert::{FromGob, Mismatch, ToGob, type_of};
pub use decode::{DecodeError, Decoder, Limits, next_value};
pub use encode::{EncodeError, Encoder};
pub use handshake::{HandshakeError, PATH};
pub use server::{ServeError, Server, Service};
pub use stream::StreamError;
pub use types::{Kind, Marshaler, Type};
pub use value::{GoString, Interface, Struct, Typed, Value};
