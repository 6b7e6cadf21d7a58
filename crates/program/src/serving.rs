//! A router on a socket, with TLS or without, until the process ends. Requests under way may finish.
//!
//! Every pod can connect. So a connection without request is closed within a minute, and at the most 1,024 are open:
//! beyond that, a new connection takes the place of an idle one, or else of one of the peer that has the most. It takes
//! none from a peer that has fewer than its own.
//!
//! [`guarded`] is for a program that cannot ask the API server who sends a request: it answers this machine, and everybody
//! else on the paths that a flag opens.

mod connections;
mod listener;

use std::{io, net::SocketAddr, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use axum_server::{
    accept::{Accept, DefaultAcceptor},
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use http_body_util::BodyExt as _;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::connections::{CONNECTIONS, Connections};
pub use self::{connections::PeerAddress, listener::listen};
use crate::TaskGroup;

/// How long a connection may have no request under way; with [`GRACE`] within a minute.
const IDLE: Duration = Duration::from_secs(50);
/// How long to wait where a connection cannot be accepted, for want of file descriptors for instance.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How long to wait before a port that was taken is tried again.
const PORT_AGAIN: Duration = Duration::from_secs(60);
/// How long open connections may finish when the process ends.
const GRACE: Duration = Duration::from_secs(5);
/// How long a client may take for the headers of a request, the pause before it included; as in the API
/// server.
const HEADERS_WITHIN: Duration = Duration::from_secs(32);
/// Bytes that a connection reads at a time; the headers of a request must find room in them.
const READ_AHEAD: usize = 16 << 10;
/// The one protocol of every port, as TLS names it. API servers speak it to webhooks (kubernetes#75791), and the other
/// clients where nothing else is on offer. A connection of HTTP/2 could hold the bodies of many requests.
pub const PROTOCOL: &[u8] = b"http/1.1";

/// The source of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// Files in PEM.
    Files { certificate: PathBuf, key: PathBuf },
    /// Made in memory at each start: for clients that do not check it, such as the kubelet.
    SelfSigned,
}

/// Serves plain HTTP until `tasks` ends.
///
/// # Errors
/// A sentence when the port is taken.
pub fn http(tasks: &TaskGroup, address: SocketAddr, router: Router) -> Result<(), String> {
    let listener = listen(address).and_then(TcpListener::from_std);
    let listener = listener.map_err(|error| format!("serve HTTP at {address}: {error}"))?;
    http_on(tasks, listener, router);
    Ok(())
}

/// Serves plain HTTP on a listener until `tasks` ends.
pub fn http_on(tasks: &TaskGroup, listener: TcpListener, router: Router) {
    tasks.spawn(serve(tasks.stop.clone(), listener, DefaultAcceptor::new(), router));
}

/// Serves plain HTTP until `tasks` ends. Where the port is taken, this is logged and the port tried again: for what is
/// not worth the end of the process.
pub fn http_once_free(tasks: &TaskGroup, address: SocketAddr, router: Router) {
    let Err(error) = http(tasks, address, router.clone()) else { return };
    tracing::error!("{error}; it is tried again every {} s, and the rest goes on", PORT_AGAIN.as_secs());
    let own = tasks.clone();
    tasks.spawn_until_stop(async move {
        sleep(PORT_AGAIN).await;
        while let Err(error) = http(&own, address, router.clone()) {
            tracing::debug!("{error}");
            sleep(PORT_AGAIN).await;
        }
        tracing::info!("HTTP is served at {address}");
    });
}

/// Serves HTTPS until `tasks` ends.
///
/// # Errors
/// A sentence when the port is taken or the certificate cannot be used.
pub async fn https(
    tasks: &TaskGroup,
    address: SocketAddr,
    certificate: &Certificate,
    router: Router,
) -> Result<(), String> {
    let tls = tls_config(certificate).await?;
    let listener = listen(address).and_then(TcpListener::from_std);
    let listener = listener.map_err(|error| format!("serve HTTPS at {address}: {error}"))?;
    tasks.spawn(serve(tasks.stop.clone(), listener, RustlsAcceptor::new(tls), router));
    Ok(())
}

/// Serves on a listener with certificates that the caller keeps good, until `tasks` ends.
///
/// # Errors
/// When the listener cannot be used.
pub async fn tls(
    tasks: &TaskGroup,
    listener: std::net::TcpListener,
    certificates: RustlsConfig,
    router: Router,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    serve(tasks.stop.clone(), listener, RustlsAcceptor::new(certificates), router).await;
    Ok(())
}

/// Serves until `stop`; connections that are open then have [`GRACE`] to end.
async fn serve<A>(stop: CancellationToken, listener: TcpListener, acceptor: A, router: Router)
where
    A: Accept<TcpStream, (), Service = ()> + Clone + Send + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A::Future: Send,
{
    let open = Connections::default();
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener)).await {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!("cannot accept a connection: {error}");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        // without a place the connection is closed: its peer has the most, and all of them have requests under way
        let Some(place) = open.place(peer.ip().into(), CONNECTIONS) else { continue };
        let (stop, router, handshake) = (stop.clone(), router.clone(), acceptor.accept(stream, ()));
        connections.spawn(async move {
            let evicted = place.evicted.clone();
            let served = async {
                // a client that speaks no TLS is no news
                if let Ok((stream, ())) = handshake.await {
                    connection(stream, peer, router, &place.requests, stop).await;
                }
            };
            evicted.run_until_cancelled(served).await;
        });
    }
    drop(listener);
    // what is left after that is dropped with the set
    drop(timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await);
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    // a socket of both families has a peer of IPv4 in the notation of IPv6, in which nobody knows loopback
    Ok((stream, SocketAddr::new(peer.ip().to_canonical(), peer.port())))
}

/// Serves one connection until its client closes it, or it is idle, or `stop`.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    router: Router,
    requests: &watch::Sender<usize>,
    stop: CancellationToken,
) {
    let (requests, under_way) = (requests.clone(), requests.subscribe());
    let router = router.layer(Extension(ConnectInfo(peer))).layer(middleware::from_fn(
        move |request: Request, next: Next| {
            let under_way = UnderWay::begin(requests.clone());
            async move {
                let answer = next.run(request).await;
                // a body that is dropped has been sent, or will not be
                answer.map(|body| {
                    Body::new(body.map_err(move |error| {
                        let _until_then = &under_way;
                        error
                    }))
                })
            }
        },
    ));
    let builder = builder();
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    tokio::select! {
        _ = &mut connection => return,
        () = idle(under_way) => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(timeout(GRACE, connection).await);
}

/// Ends when no request has been under way for [`IDLE`].
async fn idle(mut under_way: watch::Receiver<usize>) {
    while under_way.wait_for(|count| *count == 0).await.is_ok() {
        if timeout(IDLE, under_way.changed()).await.is_err() {
            return;
        }
    }
}

/// A request of a connection whose answer has not been sent yet.
struct UnderWay(watch::Sender<usize>);

impl UnderWay {
    fn begin(requests: watch::Sender<usize>) -> Self {
        requests.send_modify(|count| *count += 1);
        Self(requests)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Bounds what a client can make a connection hold.
fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(READ_AHEAD);
    builder
}

async fn tls_config(certificate: &Certificate) -> Result<RustlsConfig, String> {
    let config = match certificate {
        Certificate::Files { certificate, key } => {
            let read = RustlsConfig::from_pem_file(certificate, key).await;
            read.map_err(|error| format!("use certificate {}: {error}", certificate.display()))?
        }
        Certificate::SelfSigned => {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
                .map_err(|error| format!("make a certificate: {error}"))?;
            let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
            let config = RustlsConfig::from_pem(certificate.into_bytes(), key.into_bytes()).await;
            config.map_err(|error| format!("use a certificate of our own: {error}"))?
        }
    };
    let mut offered = ServerConfig::clone(&config.get_inner());
    offered.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(RustlsConfig::from_config(Arc::new(offered)))
}

/// The router, which answers 401 to other machines on paths that are not in `open`. `/healthz` opens this path,
/// `/healthz/*` the paths below it.
pub fn guarded(router: Router, open: &[String]) -> Router {
    let open: Arc<[String]> = open.into();
    router.layer(middleware::from_fn(move |peer: ConnectInfo<SocketAddr>, request: Request, next: Next| {
        let open = open.clone();
        async move { admit(peer.0, &open, request, next).await }
    }))
}

async fn admit(peer: SocketAddr, open: &[String], request: Request, next: Next) -> Response {
    if peer.ip().is_loopback() || is_open(request.uri().path(), open) {
        next.run(request).await
    } else {
        (StatusCode::UNAUTHORIZED, "Unauthorized\n").into_response()
    }
}

fn is_open(path: &str, open: &[String]) -> bool {
    open.iter().any(|pattern| match pattern.strip_suffix("/*") {
        Some(folder) => path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')),
        None => pattern == path,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        net::{IpAddr, Ipv4Addr, Ipv6Addr},
        sync::atomic::{AtomicUsize, Ordering},
    };

    use axum::routing::post;
    use futures::StreamExt as _;
    use kube::{Client, Config};
    use rstest::rstest;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        net::TcpStream,
        time::timeout,
    };

    use super::*;
    use crate::{
        flags::listen_address,
        health::Health,
        http::{Metrics, router},
    };

    #[rstest]
    #[case("/healthz", true)]
    #[case("/metrics", false)]
    #[case("/debug/pprof", true)]
    #[case("/debug", false)]
    #[case("/debugger", false)]
    fn only_named_paths_are_open(#[case] path: &str, #[case] expected: bool) {
        assert_eq!(is_open(path, &["/healthz".into(), "/debug/*".into()]), expected);
    }

    fn free() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn client(scheme: &str, address: SocketAddr) -> Client {
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut config = Config::new(format!("{scheme}://{address}").parse().unwrap());
        (config.accept_invalid_certs, config.default_retry) = (true, false);
        Client::try_from(config).unwrap()
    }

    async fn get(client: &Client, path: &str) -> kube::Result<String> {
        client.request_text(axum::http::Request::get(path).body(Vec::new()).unwrap()).await
    }

    #[tokio::test]
    async fn health_is_served_with_a_certificate_of_our_own_until_the_end() {
        let (address, tasks, health) = (free(), TaskGroup::new(), Health::default());
        let client = client("https", address);
        let router = guarded(router(health.clone(), Metrics::default()), &["/healthz".into()]);
        https(&tasks, address, &Certificate::SelfSigned, router.clone()).await.unwrap();
        let taken = https(&tasks, address, &Certificate::SelfSigned, router).await.unwrap_err();
        assert!(taken.contains(&address.to_string()), "{taken}");

        assert_eq!(get(&client, "/healthz").await.unwrap(), "ok");
        assert_eq!(get(&client, "/livez").await.unwrap(), "ok");
        let lists = health.readiness("harvester");
        assert!(get(&client, "/readyz").await.is_err());
        assert_eq!(
            get(&client, "/healthz").await.unwrap(),
            "ok",
            "another cluster is no reason for a restart"
        );
        lists.pass();
        assert_eq!(get(&client, "/readyz").await.unwrap(), "ok");
        assert!(get(&client, "/metrics").await.unwrap().ends_with("# EOF\n"));
        tasks.end().await;
        assert!(get(&client, "/healthz").await.is_err());
    }

    #[tokio::test]
    async fn the_same_is_served_without_tls() {
        let (address, tasks, health) = (free(), TaskGroup::new(), Health::default());
        http(&tasks, address, router(health.clone(), Metrics::default())).unwrap();
        let client = client("http", address);
        assert_eq!(get(&client, "/livez").await.unwrap(), "ok");
        health.liveness("lease").fail("overdue");
        assert!(get(&client, "/livez").await.is_err());
        tasks.end().await;
        assert!(get(&client, "/livez").await.is_err());
    }

    #[rstest]
    #[case::a_port_alone(":0")]
    #[case::all_addresses("0.0.0.0:0")]
    #[tokio::test]
    async fn a_port_is_served_in_both_families_and_this_machine_is_known_in_either(#[case] address: &str) {
        let listener = listen(listen_address(address).unwrap()).unwrap();
        let (port, tasks) = (listener.local_addr().unwrap().port(), TaskGroup::new());
        let router = guarded(router(Health::default(), Metrics::default()), &[]);
        http_on(&tasks, TcpListener::from_std(listener).unwrap(), router);
        // a machine may have no IPv6
        let there = |own: &IpAddr| std::net::TcpListener::bind((*own, 0)).is_ok();
        let own = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        for own in own.into_iter().filter(there) {
            let client = client("http", SocketAddr::new(own, port));
            let metrics = get(&client, "/metrics").await;
            assert!(metrics.as_ref().is_ok_and(|text| text.ends_with("# EOF\n")), "{own}: {metrics:?}");
        }
        tasks.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_ends_its_headers_loses_its_connection() {
        let (address, tasks) = (free(), TaskGroup::new());
        http(&tasks, address, router(Health::default(), Metrics::default())).unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /healthz HTTP/1.1\r\nHost: a").await.unwrap();
        let mut answer = Vec::new();
        let end = timeout(Duration::from_hours(1), slow.read_to_end(&mut answer)).await;
        assert!(end.is_ok(), "the server closes the connection");
        tasks.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_was_taken_is_listened_on_once_it_is_free() {
        let others = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, tasks) = (others.local_addr().unwrap(), TaskGroup::new());
        http_once_free(&tasks, address, router(Health::default(), Metrics::default()));
        sleep(PORT_AGAIN * 5 / 2).await;
        drop(others);
        sleep(PORT_AGAIN).await;
        assert!(TcpStream::connect(address).await.is_ok());
        tasks.end().await;
    }

    // else its connection is taken for an idle one, and ended in the middle of a long answer
    #[tokio::test]
    async fn a_request_is_under_way_until_its_answer_has_been_sent() {
        let (mut client, server) = duplex(1 << 10);
        let requests = watch::Sender::new(0);
        let parts = || futures::stream::iter([Ok::<_, io::Error>("part")]).chain(futures::stream::pending());
        let router = Router::new().route("/", axum::routing::get(async move || Body::from_stream(parts())));
        let counted = requests.clone();
        let served = tokio::spawn(async move {
            connection(server, ([127, 0, 0, 1], 40_000).into(), router, &counted, CancellationToken::new())
                .await;
        });
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = [0; 1 << 10];
        let mut read = 0;
        while !String::from_utf8_lossy(&answer[..read]).contains("part") {
            read += client.read(&mut answer[read..]).await.unwrap();
        }
        assert_eq!(*requests.borrow(), 1);
        drop(client);
        served.await.unwrap();
        assert_eq!(*requests.borrow(), 0);
    }

    #[rstest]
    #[case::that_says_nothing(b"")]
    #[case::that_keeps_its_connection_alive(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")]
    #[case::of_http_2_without_request(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")]
    #[tokio::test(start_paused = true)]
    async fn a_client_without_request_loses_its_connection_within_a_minute(#[case] said: &[u8]) {
        let (address, tasks) = (free(), TaskGroup::new());
        http(&tasks, address, router(Health::default(), Metrics::default())).unwrap();
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(said).await.unwrap();
        let mut answer = Vec::new();
        let end = timeout(Duration::from_secs(60), idle.read_to_end(&mut answer)).await;
        assert!(end.is_ok(), "the server closes the connection");
        tasks.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_http_2_gets_no_connection() {
        let (address, tasks) = (free(), TaskGroup::new());
        http(&tasks, address, router(Health::default(), Metrics::default())).unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"", "the server speaks HTTP/1.1 only");
        tasks.end().await;

        let tls = tls_config(&Certificate::SelfSigned).await.unwrap();
        assert_eq!(tls.get_inner().alpn_protocols, [b"http/1.1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_holds_little_of_a_body_that_nobody_reads_on() {
        const PIPE: usize = 256 << 10;
        let (asked, read) = (1 << 20, Arc::new(AtomicUsize::new(0)));
        let counted = read.clone();
        let handler = async move |body: Body| {
            let mut parts = body.into_data_stream();
            while counted.load(Ordering::Relaxed) < asked {
                let part = parts.next().await.unwrap().unwrap();
                counted.fetch_add(part.len(), Ordering::Relaxed);
            }
            pending::<()>().await;
        };
        let router = Router::new().route("/", post(handler));
        let (mut client, server) = duplex(PIPE);
        let peer = SocketAddr::from(([192, 0, 2, 1], 40_000));
        let served = tokio::spawn(async move {
            connection(server, peer, router, &watch::Sender::new(0), CancellationToken::new()).await;
        });
        client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n").await.unwrap();
        let mut sent = 0;
        while let Ok(part) = timeout(Duration::from_secs(1), client.write(&[b'x'; 1_024])).await {
            sent += part.unwrap();
        }
        let ahead = sent - PIPE - read.load(Ordering::Relaxed);
        assert!(ahead <= 32 << 10, "{ahead} bytes that the handler did not read");
        served.abort();
    }

    #[tokio::test]
    async fn a_certificate_that_cannot_be_read_is_named() {
        let certificate =
            Certificate::Files { certificate: "/nowhere/tls.crt".into(), key: "/nowhere/tls.key".into() };
        let fault = https(&TaskGroup::new(), free(), &certificate, Router::new()).await.unwrap_err();
        assert!(fault.contains("/nowhere/tls.crt"), "{fault}");
    }
}
