//! One HTTP request the way `curl` makes it: a connection of its own, a GET, the whole answer.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Nothing in the sandbox needs longer.
const TIME_OUT: Duration = Duration::from_secs(3);
/// Answers are a line or two.
const ANSWER_MAX: u64 = 64 * 1024;

/// The body of the answer.
///
/// # Errors
/// Connection refused or reset, time-out, or an answer that is not HTTP 200.
pub(crate) async fn curl(address: SocketAddr) -> io::Result<String> {
    timeout(TIME_OUT, get(address)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn get(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!(
            "no answer from {address}: {:?}",
            answer.lines().next().unwrap_or_default()
        ))),
    }
}
