//! The headers of arguments and replies.
//!
//! Its strings are whatever a Go program put into them: an error that quotes foreign bytes must not end the
//! connection.

use crate::gob_struct;
use crate::value::GoString;

/// `rpc.Request` of Go.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Request {
    pub(crate) service_method: GoString,
    pub(crate) seq: u64,
}

gob_struct!(Request as "Request" { service_method => "ServiceMethod", seq => "Seq" });

/// `rpc.Response` of Go: method and sequence number come back, an error is a text that is not empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Response {
    pub(crate) service_method: GoString,
    pub(crate) seq: u64,
    pub(crate) error: GoString,
}

gob_struct!(Response as "Response" { service_method => "ServiceMethod", seq => "Seq", error => "Error" });
