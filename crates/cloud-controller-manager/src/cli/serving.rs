//! Health and metrics over HTTPS. Health is for everybody; other paths only for this machine and where a flag opens
//! them, because the roles of the charts do not let us ask who somebody is.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use program::{
    TaskGroup,
    http::{Health, Metrics, router},
};

use super::options::Serving;

/// Serves until `tasks` ends.
///
/// # Errors
/// A sentence when the port is taken or the certificate cannot be used.
pub(super) async fn start(
    tasks: &TaskGroup,
    serving: &Serving,
    health: Health,
    metrics: Metrics,
) -> Result<(), String> {
    if serving.port == 0 {
        return Ok(());
    }
    let address = SocketAddr::new(serving.address, serving.port);
    let tls = certificate(serving).await?;
    let listener =
        std::net::TcpListener::bind(address).map_err(|error| format!("serve HTTPS at {address}: {error}"))?;
    listener.set_nonblocking(true).map_err(|error| format!("serve HTTPS at {address}: {error}"))?;
    let service = guarded(router(health, metrics), &serving.open_paths);
    let handle = Handle::new();
    let (stop, ending) = (tasks.stop.clone(), handle.clone());
    tasks.spawn(async move {
        stop.cancelled().await;
        ending.shutdown();
    });
    let server =
        axum_server::from_tcp_rustls(listener, tls).map_err(|error| format!("serve HTTPS: {error}"))?;
    tasks.spawn(async move {
        let service = service.into_make_service_with_connect_info::<SocketAddr>();
        if let Err(error) = server.handle(handle).serve(service).await {
            tracing::error!("health and metrics are not served any more: {error}");
        }
    });
    Ok(())
}

async fn certificate(serving: &Serving) -> Result<RustlsConfig, String> {
    if let Some((certificate, key)) = &serving.files {
        let read = RustlsConfig::from_pem_file(certificate, key).await;
        return read.map_err(|error| format!("use certificate {}: {error}", certificate.display()));
    }
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
        .map_err(|error| format!("make a certificate: {error}"))?;
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let config = RustlsConfig::from_pem(certificate.into_bytes(), key.into_bytes()).await;
    config.map_err(|error| format!("use a certificate of our own: {error}"))
}

fn guarded(router: Router, open_paths: &[String]) -> Router {
    let open: Arc<[String]> = open_paths.into();
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

/// `/healthz` opens this path, `/healthz/*` what is below it.
fn is_open(path: &str, open: &[String]) -> bool {
    open.iter().any(|pattern| match pattern.strip_suffix("/*") {
        Some(folder) => path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')),
        None => pattern == path,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/healthz", true)]
    #[case("/metrics", false)]
    #[case("/debug/pprof", true)]
    #[case("/debug", false)]
    #[case("/debugger", false)]
    fn only_named_paths_are_open(#[case] path: &str, #[case] expected: bool) {
        assert_eq!(is_open(path, &["/healthz".into(), "/debug/*".into()]), expected);
    }

    #[tokio::test]
    async fn health_is_served_with_a_certificate_of_our_own_until_the_end() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let serving = Serving {
            address: free.ip(),
            port: free.port(),
            files: None,
            open_paths: vec!["/healthz".into()],
        };
        let (tasks, health) = (TaskGroup::new(), Health::default());
        start(&tasks, &serving, health.clone(), Metrics::default()).await.unwrap();
        let taken = start(&tasks, &serving, health.clone(), Metrics::default()).await.unwrap_err();
        assert!(taken.contains(&free.to_string()), "{taken}");

        let file = format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: a}}}}], clusters: [{{name: a, cluster:
              {{server: 'https://{free}', insecure-skip-tls-verify: true}}}}]}}"
        );
        let config = cloud_config::CloudConfig::parse(&file, "file", &Default::default()).unwrap();
        let connection =
            cloud_config::Connection::open(&config, &cloud_config::Options::named("test")).unwrap();
        let get = async |path: &str| {
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            connection.client().request_text(request).await
        };
        assert_eq!(get("/healthz").await.unwrap(), "ok");
        assert_eq!(get("/livez").await.unwrap(), "ok");
        health.wrong("harvester", "not listed yet");
        assert!(get("/readyz").await.is_err());
        assert!(get("/metrics").await.unwrap().ends_with("# EOF\n"));
        tasks.end().await;
        assert!(get("/healthz").await.is_err());
    }
}
