//! The small HTTP/1.1 server in every VM and pod: it answers each request with who it is.

use std::io;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::BackendName;

/// A request whose head is longer is not one of ours.
const HEAD_MAX: usize = 16 * 1024;

/// The head of a request, as far as an answer needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    body: u64,
    keep_alive: bool,
}

/// Reads the next request and throws its body away. Nothing at the orderly end of the connection.
///
/// # Errors
/// The connection's, and `InvalidData` for what is not HTTP/1.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Request>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        // byte by byte from a buffered stream: what follows the head is the body
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && head.is_empty() => return Ok(None),
            Err(error) => return Err(error),
        }
        if head.len() > HEAD_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the request's head is too long"));
        }
    }
    let request =
        parse(&head).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP/1 request"))?;
    tokio::io::copy(&mut stream.take(request.body), &mut tokio::io::sink()).await?;
    Ok(Some(request))
}

fn parse(head: &[u8]) -> Option<Request> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path, version) = (first.next()?, first.next()?, first.next()?);
    let minor = version.strip_prefix("HTTP/1.")?;
    let mut request =
        Request { method: method.to_owned(), path: path.to_owned(), body: 0, keep_alive: minor != "0" };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => request.body = value.parse().ok()?,
            "connection" => request.keep_alive = !value.eq_ignore_ascii_case("close"),
            // we do not read chunks: the body ends with the connection
            "transfer-encoding" => request.keep_alive = false,
            _ => {}
        }
    }
    Some(request)
}

/// Answers with one line of JSON; `false` says that the connection ends here.
///
/// # Errors
/// The connection's.
pub(crate) async fn respond(
    stream: &mut (impl AsyncWrite + Unpin),
    request: &Request,
    name: &BackendName,
) -> io::Result<bool> {
    let Request { method, path, keep_alive, .. } = request;
    let body = format!("{}\n", json!({"vm": name.vm, "pod": name.pod, "path": path}));
    let connection = if *keep_alive { "keep-alive" } else { "close" };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: {connection}\r\n\r\n",
        body.len()
    );
    let text = if method == "HEAD" { head } else { head + &body };
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await?;
    Ok(*keep_alive)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[tokio::test]
    async fn requests_on_one_connection_are_answered_one_after_the_other() {
        let name = BackendName { vm: "vm-1".to_owned(), pod: Some("default/web-vm-1".to_owned()) };
        let mut input: &[u8] = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nxyz\
            GET /b HTTP/1.1\r\nConnection: close\r\n\r\n";
        let mut output = Vec::new();
        let mut stays = Vec::new();
        while let Some(request) = read(&mut input).await.unwrap() {
            stays.push(respond(&mut output, &request, &name).await.unwrap());
        }
        assert_eq!(stays, [true, false]);
        let text = String::from_utf8(output).unwrap();
        let expected = r#"{"path":"/b","pod":"default/web-vm-1","vm":"vm-1"}"#;
        assert!(text.ends_with(&format!("{expected}\n")), "{text}");
    }

    #[rstest]
    #[case::not_http(b"SSH-2.0-x\r\n\r\n")]
    #[case::cut_short(b"GET / HTTP/1.1\r\n")]
    #[case::length_is_no_number(b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n")]
    #[tokio::test]
    async fn what_is_no_request_is_an_error(#[case] mut input: &[u8]) {
        assert!(read(&mut input).await.is_err());
    }
}
