//! Probes over sockets, of backends that mean well and of others.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use health_check::{DialError, HttpGet, Probe, network, network_by};
use rstest::rstest;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const ANY_IPV4: &str = "127.0.0.1:0";

fn probe(address: SocketAddr, path: &str, scheme: &str) -> Probe {
    Probe { address, http: HttpGet::parse(path, scheme).unwrap() }
}

async fn listen(at: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(at).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Reads a request to its end.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        request.push(char::from(stream.read_u8().await.unwrap()));
    }
    request
}

/// Reads until the connection ends, and says how.
async fn end(stream: &mut TcpStream) -> io::ErrorKind {
    let mut buffer = [0; 4_096];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => return io::ErrorKind::UnexpectedEof,
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

/// The result of an HTTP probe of a backend that behaves so.
async fn result_of<F>(scheme: &str, backend: impl FnOnce(TcpStream) -> F) -> Result<(), DialError>
where
    F: Future<Output = ()>,
{
    let (listener, address) = listen(ANY_IPV4).await;
    let backend = async {
        let (stream, _) = listener.accept().await.unwrap();
        backend(stream).await;
    };
    tokio::join!(network()(probe(address, "/healthz", scheme)), backend).0
}

/// A backend whose certificate is its own and names another.
fn tls(tickets: usize) -> TlsAcceptor {
    tls_of_chain(tickets, 0, 0)
}

/// One that shows so many certificates besides, of so many bytes.
fn tls_of_chain(tickets: usize, more: usize, bytes: usize) -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut chain = vec![made.cert.der().clone()];
    chain.resize(1 + more, vec![0; bytes].into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.send_tls13_tickets = tickets;
    TlsAcceptor::from(Arc::new(config))
}

async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), answer: &str) {
    request(stream).await;
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
}

#[tokio::test]
async fn a_probe_of_a_listening_port_succeeds_without_data_and_ends_in_a_reset() {
    let (listener, address) = listen(ANY_IPV4).await;
    network()(Probe { address, http: None }).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_probe_of_a_closed_port_is_refused() {
    let (listener, address) = listen(ANY_IPV4).await;
    drop(listener);
    for (path, scheme) in [("", ""), ("/", "HTTP"), ("/", "HTTPS")] {
        assert_eq!(network()(probe(address, path, scheme)).await, Err(DialError::Refused));
    }
}

#[rstest]
#[case::ipv4(ANY_IPV4)]
#[case::ipv6("[::1]:0")]
#[tokio::test]
async fn an_http_probe_names_the_backends_address_as_host_and_ends_in_a_reset(#[case] at: &str) {
    // docs/contract/load-balancer.md#PR-10
    let (listener, address) = listen(at).await;
    let dialled = tokio::spawn(network()(probe(address, "/healthz?full=1", "")));
    let (mut stream, _) = listener.accept().await.unwrap();
    let request = request(&mut stream).await;
    assert!(
        request.starts_with(&format!("GET /healthz?full=1 HTTP/1.1\r\nHost: {address}\r\n")),
        "{request}"
    );
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    assert_eq!(dialled.await.unwrap(), Ok(()));
    assert_eq!(end(&mut stream).await, io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn the_host_is_the_backends_address_wherever_it_is_found_on_the_wire() {
    let (listener, address) = listen(ANY_IPV4).await;
    let backend = SocketAddr::from(([192, 168, 7, 11], 8080));
    let dialled = tokio::spawn(network_by(move |_| address)(probe(backend, "/", "")));
    let (mut stream, _) = listener.accept().await.unwrap();
    assert!(request(&mut stream).await.contains("\r\nHost: 192.168.7.11:8080\r\n"));
    drop(stream);
    assert!(dialled.await.unwrap().is_err());
}

#[rstest]
#[case::good("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Ok(()))]
#[case::redirection("HTTP/1.1 301 x\r\nLocation: http://192.0.2.1/\r\n\r\n", Ok(()))]
#[case::unavailable("HTTP/1.1 503 Service Unavailable\r\n\r\nplease wait", Err(DialError::Status(503)))]
#[case::after_continue("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 x\r\n\r\n", Ok(()))]
#[case::garbage("\x01\x02\x03\n", Err(DialError::NotHttp))]
#[case::http_0_9("<html>", Err(DialError::NotHttp))]
#[case::nothing("", Err(DialError::Closed))]
#[case::half_a_head("HTTP/1.1 200 OK\r\nServer: x\r\n", Err(DialError::Closed))]
#[tokio::test]
async fn the_answer_decides(
    #[values("HTTP", "HTTPS")] scheme: &str,
    #[case] text: &str,
    #[case] expected: Result<(), DialError>,
) {
    let result = result_of(scheme, async |mut stream| {
        if scheme == "HTTP" {
            answer(&mut stream, text).await;
            return;
        }
        let mut stream = tls(2).accept(stream).await.unwrap();
        answer(&mut stream, text).await;
    });
    assert_eq!(result.await, expected);
}

#[rstest]
#[case::endless_headers("HTTP/1.1 200 OK\r\n", "A: bcdefghijklmnopqrstuvwxyz\r\n", Ok(()))]
#[case::one_endless_header("HTTP/1.1 200 OK\r\nA: ", "b", Ok(()))]
#[case::endless_body("HTTP/1.1 500 x\r\n\r\n", "0123456789abcdef", Err(DialError::Status(500)))]
#[case::endless_reason("HTTP/1.1 200 ", "OK", Err(DialError::NotHttp))]
#[case::endless_blank_lines("", "\r\n", Err(DialError::NotHttp))]
#[case::continue_for_ever("", "HTTP/1.1 100 Continue\r\n\r\n", Err(DialError::Status(100)))]
#[tokio::test]
async fn a_backend_that_never_stops_sending_is_read_for_a_kilobyte_and_reset(
    #[case] begin: &str,
    #[case] again: &str,
    #[case] expected: Result<(), DialError>,
) {
    let result = result_of("HTTP", async |mut stream| {
        answer(&mut stream, begin).await;
        // ends when the probe does
        while stream.write_all(again.as_bytes()).await.is_ok() {}
    });
    assert_eq!(result.await, expected);
}

#[rstest]
#[case::silent(b"")]
#[case::byte_by_byte(b"HTTP/1.1 200 OK\r\nA: b\r\n")]
#[case::never_through_with_tls(b"\x16\x03\x03\x40\x00")]
#[tokio::test]
async fn a_backend_that_is_slow_is_waited_for_until_the_time_out_which_ends_the_connection(
    #[case] bytes: &[u8],
) {
    let scheme = if bytes.starts_with(&[22]) { "HTTPS" } else { "HTTP" };
    let (listener, address) = listen(ANY_IPV4).await;
    let dialled = tokio::spawn(network()(probe(address, "/", scheme)));
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.read_u8().await.unwrap();
    for byte in bytes {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(!dialled.is_finished());
    dialled.abort();
    assert_eq!(end(&mut stream).await, io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_backend_that_speaks_no_tls_is_told_so() {
    let result = result_of("HTTPS", async |mut stream| {
        stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await.unwrap();
        end(&mut stream).await;
    });
    assert_eq!(result.await, Err(DialError::NotTls));
    let result = result_of("HTTP", async |stream| {
        drop(tls(2).accept(stream).await);
    });
    assert_eq!(result.await, Err(DialError::NotHttp));
}

/// Answers by TLS, and sends so many bytes after the head in one write.
async fn served(stream: TcpStream, acceptor: TlsAcceptor, body: usize) {
    // what the probe does not read is not taken
    if let Ok(mut stream) = acceptor.accept(stream).await {
        let text = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(body));
        drop(stream.write_all(text.as_bytes()).await);
        drop(stream.flush().await);
        let mut buffer = [0; 4_096];
        while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
    }
}

#[rstest]
#[case::many(16, 1)]
#[case::thousands(2_000, 1)]
#[case::long(1, 16 * 1_024)]
#[tokio::test]
async fn a_backend_that_shows_a_chain_out_of_measure_fails_with_tls(
    #[case] more: usize,
    #[case] bytes: usize,
) {
    let result = result_of("HTTPS", |stream| served(stream, tls_of_chain(2, more, bytes), 0)).await;
    let error = result.unwrap_err();
    let DialError::Tls(why) = &error else { panic!("{error:?}") };
    assert!(why.ends_with("at most 16 with 16384 are taken: shorten the chain"), "{why}");
}

#[tokio::test]
async fn the_longest_chain_the_tickets_of_every_server_and_an_answer_of_one_whole_record_are_taken() {
    let result = result_of("HTTPS", |stream| served(stream, tls_of_chain(8, 15, 1_000), 16_000)).await;
    assert_eq!(result, Ok(()));
}

#[rstest]
#[case::some_hundreds(400)]
#[case::thousands(2_000)]
#[tokio::test]
async fn a_backend_that_sends_tickets_without_end_is_read_for_20_kib(#[case] tickets: usize) {
    let result = result_of("HTTPS", |stream| served(stream, tls(tickets), 0)).await;
    assert_eq!(result, Err(DialError::Closed));
}
