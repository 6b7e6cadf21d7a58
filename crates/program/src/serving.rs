//! A router on a socket, with TLS or without, until the process ends. Requests under way may finish.
//!
//! [`guarded`] keeps paths from strangers where a program cannot ask the API server who somebody is: they are open to
//! this machine, and to everybody where a flag says so.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};

use crate::TaskGroup;

/// How long open connections may finish when the process ends.
const GRACE: Duration = Duration::from_secs(5);
/// How long a client of HTTP/1 may take for the headers of a request, the pause before it included; as in the API
/// server.
const HEADERS_WITHIN: Duration = Duration::from_secs(32);
/// Bytes of a request that a connection reads before the router asks for them.
const READ_AHEAD: u32 = 64 << 10;
/// Requests that one connection of HTTP/2 may have under way.
const STREAMS: u32 = 64;

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
    let listener = listen(address).map_err(|error| format!("serve HTTP at {address}: {error}"))?;
    let handle = ending(tasks);
    let mut server =
        axum_server::from_tcp(listener).map_err(|error| format!("serve HTTP at {address}: {error}"))?;
    bound(server.http_builder());
    tasks.spawn(async move {
        ended(server.handle(handle).serve(router.into_make_service_with_connect_info::<SocketAddr>()).await);
    });
    Ok(())
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
    let tls = rustls(certificate).await?;
    let listener = listen(address).map_err(|error| format!("serve HTTPS at {address}: {error}"))?;
    let handle = ending(tasks);
    let mut server = axum_server::from_tcp_rustls(listener, tls)
        .map_err(|error| format!("serve HTTPS at {address}: {error}"))?;
    bound(server.http_builder());
    tasks.spawn(async move {
        ended(server.handle(handle).serve(router.into_make_service_with_connect_info::<SocketAddr>()).await);
    });
    Ok(())
}

/// Serves on a listener with certificates that the caller keeps good, until `tasks` ends.
///
/// # Errors
/// When the listener fails.
pub async fn tls(
    tasks: &TaskGroup,
    listener: std::net::TcpListener,
    certificates: RustlsConfig,
    router: Router,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut server = axum_server::from_tcp_rustls(listener, certificates)?.handle(ending(tasks));
    bound(server.http_builder());
    server.serve(router.into_make_service()).await
}

/// Bounds what a client can make a connection hold. HTTP/2 gets room for every stream at once: the bytes of a request
/// that waits must not keep those of another request on the same connection away.
fn bound(builder: &mut Builder<TokioExecutor>) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(READ_AHEAD as usize);
    builder
        .http2()
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(READ_AHEAD)
        .initial_connection_window_size(STREAMS * READ_AHEAD);
}

fn listen(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn ending(tasks: &TaskGroup) -> Handle<SocketAddr> {
    let handle = Handle::new();
    let (stop, ending) = (tasks.stop.clone(), handle.clone());
    tasks.spawn(async move {
        stop.cancelled().await;
        ending.graceful_shutdown(Some(GRACE));
    });
    handle
}

fn ended(served: std::io::Result<()>) {
    if let Err(error) = served {
        tracing::error!("health and metrics are not served any more: {error}");
    }
}

async fn rustls(certificate: &Certificate) -> Result<RustlsConfig, String> {
    match certificate {
        Certificate::Files { certificate, key } => {
            let read = RustlsConfig::from_pem_file(certificate, key).await;
            read.map_err(|error| format!("use certificate {}: {error}", certificate.display()))
        }
        Certificate::SelfSigned => {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
                .map_err(|error| format!("make a certificate: {error}"))?;
            let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
            let config = RustlsConfig::from_pem(certificate.into_bytes(), key.into_bytes()).await;
            config.map_err(|error| format!("use a certificate of our own: {error}"))
        }
    }
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
    use kube::{Client, Config};
    use rstest::rstest;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        time::timeout,
    };

    use super::*;
    use crate::{
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
        drop(::rustls::crypto::ring::default_provider().install_default());
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

    #[tokio::test]
    async fn a_certificate_that_cannot_be_read_is_named() {
        let certificate =
            Certificate::Files { certificate: "/nowhere/tls.crt".into(), key: "/nowhere/tls.key".into() };
        let fault = https(&TaskGroup::new(), free(), &certificate, Router::new()).await.unwrap_err();
        assert!(fault.contains("/nowhere/tls.crt"), "{fault}");
    }
}
