//! The few lines of HTTP with which a connection to a Go RPC server begins.
//!
//! ```text
//! client: CONNECT /_goRPC_ HTTP/1.0␊␊
//! server: HTTP/1.0 200 Connected to Go RPC␊␊
//! ```
//! No HTTP library would write that: line feeds are bare, no header follows, and Go's client compares the
//! whole status text. After it the connection carries gobs.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The path at which Go's `rpc.HandleHTTP` listens.
pub const PATH: &str = "/_goRPC_";

const STATUS: &str = "200 Connected to Go RPC";

/// A request or answer with more header bytes than this is none of Go's.
const LONGEST_HEAD: usize = 8 << 10;

/// Why a connection did not become one for RPC.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The transport failed.
    #[error("connection failed during the HTTP upgrade")]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("unexpected EOF")]
    Cut,
    /// The head is too long.
    #[error("more than {LONGEST_HEAD} bytes without the end of the HTTP head")]
    TooLong,
    /// The server answered something else.
    #[error("unexpected HTTP response: {0}")]
    Response(String),
    /// The client wanted something else; it has been told so.
    #[error("not a request for RPC: {0}")]
    Request(String),
}

/// Asks for the upgrade. What the server sent behind its answer stays in `buffer`.
pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    buffer: &mut BytesMut,
) -> Result<(), HandshakeError> {
    stream.write_all(format!("CONNECT {PATH} HTTP/1.0\n\n").as_bytes()).await?;
    stream.flush().await?;
    let line = head(stream, buffer).await?;
    match line.split_once(' ') {
        Some((version, STATUS)) if version.starts_with("HTTP/") => Ok(()),
        Some((version, status)) if version.starts_with("HTTP/") => {
            Err(HandshakeError::Response(status.into()))
        }
        _ => Err(HandshakeError::Response(line)),
    }
}

/// Waits for the request and answers it. What the client sent behind it stays in `buffer`.
pub(crate) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    buffer: &mut BytesMut,
) -> Result<(), HandshakeError> {
    let line = head(stream, buffer).await?;
    let (answer, fine) = match judge(&line) {
        Verdict::Upgrade => (format!("HTTP/1.0 {STATUS}\n\n"), true),
        Verdict::Refuse { status, body } => (
            format!(
                "HTTP/1.0 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            ),
            false,
        ),
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.flush().await?;
    if fine { Ok(()) } else { Err(HandshakeError::Request(line)) }
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Upgrade,
    Refuse { status: &'static str, body: &'static str },
}

fn judge(line: &str) -> Verdict {
    let mut words = line.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(method), Some(path), Some(version), None) if version.starts_with("HTTP/1.") => {
            match (method, path) {
                ("CONNECT", PATH) => Verdict::Upgrade,
                (_, PATH) => Verdict::Refuse { status: "405 Method Not Allowed", body: "405 must CONNECT\n" },
                _ => Verdict::Refuse { status: "404 Not Found", body: "404 page not found\n" },
            }
        }
        _ => Verdict::Refuse { status: "400 Bad Request", body: "400 Bad Request" },
    }
}

/// Reads up to the empty line; returns the first line.
async fn head<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut BytesMut) -> Result<String, HandshakeError> {
    loop {
        if let Some(end) = end_of_head(buffer) {
            let head = buffer.split_to(end);
            let line = head[..].split(|&byte| byte == b'\n').next().unwrap_or_default();
            return Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
        }
        if buffer.len() > LONGEST_HEAD {
            return Err(HandshakeError::TooLong);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(HandshakeError::Cut);
        }
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let mut end = 0;
    lines.find_map(|line| {
        end += line.len();
        matches!(line, b"\n" | b"\r\n").then_some(end)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value as Json;
    use tokio::io::duplex;

    use super::*;

    fn vectors() -> Vec<Json> {
        serde_json::from_str(include_str!("../tests/vectors/10-http-upgrade.json")).unwrap()
    }

    fn unhex(text: &Json) -> Vec<u8> {
        let text = text.as_str().unwrap();
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    #[tokio::test]
    async fn the_client_accepts_and_rejects_the_answers_that_gos_client_does() {
        let mut seen = 0;
        for vector in vectors().iter().filter(|vector| vector.get("response_hex").is_some()) {
            let (mut ours, mut theirs) = duplex(1 << 16);
            theirs.write_all(&unhex(&vector["response_hex"])).await.unwrap();
            let mut rest = BytesMut::new();
            let result = ask(&mut ours, &mut rest).await;
            match vector["go_client"].as_str().unwrap().strip_prefix("rejects: ") {
                None => result.unwrap(),
                Some(text) => assert_eq!(result.unwrap_err().to_string(), text),
            }
            assert!(rest.is_empty());
            drop(ours);
            let mut request = String::new();
            theirs.read_to_string(&mut request).await.unwrap();
            assert_eq!(request, "CONNECT /_goRPC_ HTTP/1.0\n\n");
            seen += 1;
        }
        assert_eq!(seen, 6);
    }

    #[tokio::test]
    async fn the_server_answers_requests_as_gos_server_does() {
        let mut seen = 0;
        for vector in vectors().iter().filter(|vector| vector.get("request_hex").is_some()) {
            let (mut ours, mut theirs) = duplex(1 << 16);
            theirs.write_all(&unhex(&vector["request_hex"])).await.unwrap();
            let result = answer(&mut ours, &mut BytesMut::new()).await;
            drop(ours);
            let mut answer = Vec::new();
            theirs.read_to_end(&mut answer).await.unwrap();
            let expected = unhex(&vector["answer_hex_first_64"]);
            assert_eq!(&answer[..answer.len().min(64)], expected, "{}", vector["name"]);
            assert_eq!(result.is_ok(), answer.len() == expected.len());
            seen += 1;
        }
        assert_eq!(seen, 4);
    }

    #[tokio::test]
    async fn bytes_behind_the_head_are_kept() {
        let (mut ours, mut theirs) = duplex(1 << 16);
        theirs.write_all(b"CONNECT /_goRPC_ HTTP/1.1\r\nHost: x\r\n\r\ngobs").await.unwrap();
        let mut rest = BytesMut::new();
        answer(&mut ours, &mut rest).await.unwrap();
        assert_eq!(&rest[..], b"gobs");
    }

    #[tokio::test]
    async fn a_head_without_end_is_cut_off() {
        let (mut ours, mut theirs) = duplex(1 << 16);
        theirs.write_all(&[b'x'; 10_000]).await.unwrap();
        assert!(matches!(answer(&mut ours, &mut BytesMut::new()).await, Err(HandshakeError::TooLong)));
    }

    #[rstest]
    #[case("", "400 Bad Request")]
    #[case("CONNECT /_goRPC_", "400 Bad Request")]
    #[case("GET / HTTP/1.1", "404 Not Found")]
    #[case("POST /_goRPC_ HTTP/1.1", "405 Method Not Allowed")]
    fn refusals(#[case] line: &str, #[case] expected: &str) {
        assert!(matches!(judge(line), Verdict::Refuse { status, .. } if status == expected));
    }
}
