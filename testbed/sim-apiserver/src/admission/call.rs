//! One HTTPS request to a webhook, over connections that are kept.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::{Body, HttpBody};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::endpoint::Endpoint;
use crate::form::to_bytes;
use crate::server::BODY_LIMIT;

/// So many idle connections to one webhook are kept.
const IDLE: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    host: String,
    address: String,
    bundle: String,
}

/// The connections to webhooks.
#[derive(Debug, Default)]
pub(super) struct Caller(Mutex<HashMap<Peer, Vec<SendRequest<Full<Bytes>>>>>);

impl Caller {
    /// Posts a review to a URL; `address` is where its host is, when the name does not say so.
    pub(super) async fn post(
        &self,
        url: &str,
        address: Option<SocketAddr>,
        bundle: &str,
        review: &Value,
    ) -> Result<Value, String> {
        let in_words = |e: &dyn std::fmt::Display| format!("Post {url:?}: {e}");
        let uri: Uri = url.parse().map_err(|e| in_words(&e))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let target = address.map_or_else(
            || format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(443)),
            |address| address.to_string(),
        );
        let peer = Peer { host, address: target, bundle: bundle.to_owned() };
        let mut connection = match self.idle(&peer) {
            Some(connection) => connection,
            None => connect(&peer).await.map_err(|e| in_words(&e))?,
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = request(path, uri.authority().map_or("", |authority| authority.as_str()), review)
            .map_err(|e| in_words(&e))?;
        let response = connection.send_request(request.map(Full::new)).await.map_err(|e| in_words(&e))?;
        let answer = read(response).await.map_err(|e| in_words(&e))?;
        self.keep(peer, connection);
        Ok(answer)
    }

    fn idle(&self, peer: &Peer) -> Option<SendRequest<Full<Bytes>>> {
        let mut connections = self.0.lock().expect("no panic while a connection is kept");
        let idle = connections.get_mut(peer)?;
        while let Some(connection) = idle.pop() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn keep(&self, peer: Peer, connection: SendRequest<Full<Bytes>>) {
        let mut connections = self.0.lock().expect("no panic while a connection is kept");
        let idle = connections.entry(peer).or_default();
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }
}

/// Asks a webhook in this process.
pub(super) async fn in_process(endpoint: &Endpoint, url: &str, review: &Value) -> Result<Value, String> {
    let in_words = |e: &dyn std::fmt::Display| format!("Post {url:?}: {e}");
    let uri: Uri = url.parse().map_err(|e| in_words(&e))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = request(path, host, review).map_err(|e| in_words(&e))?;
    read(endpoint.call(request.map(Body::from)).await).await.map_err(|e| in_words(&e))
}

fn request(path: &str, host: &str, review: &Value) -> Result<Request<Bytes>, http::Error> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(header::ACCEPT, HeaderValue::from_static("application/json"))
        .header(header::USER_AGENT, HeaderValue::from_static("kube-apiserver-admission"))
        .body(to_bytes(review))
}

async fn read<B>(response: Response<B>) -> Result<Value, String>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let code = response.status();
    let body = Limited::new(response.into_body(), BODY_LIMIT).collect().await.map_err(|e| e.to_string())?;
    let body = body.to_bytes();
    if code.is_server_error() {
        let text = String::from_utf8_lossy(&body);
        return Err(format!("an error on the server ({text:?}) has prevented the request from succeeding"));
    }
    if !code.is_success() {
        return Err(format!("the webhook answered {code}"));
    }
    serde_json::from_slice(&body).map_err(|e| format!("the webhook's answer is no review: {e}"))
}

async fn connect(peer: &Peer) -> Result<SendRequest<Full<Bytes>>, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let config = trust(&peer.bundle)?;
    let name = ServerName::try_from(peer.host.clone()).map_err(|e| text(&e))?;
    let stream =
        TcpStream::connect(&peer.address).await.map_err(|e| format!("dial tcp {}: {e}", peer.address))?;
    stream.set_nodelay(true).map_err(|e| text(&e))?;
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(|e| format!("tls: {e}"))?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| text(&e))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to a webhook ended");
        }
    });
    Ok(sender)
}

/// Trusts what the `caBundle` says, and nothing else.
fn trust(bundle: &str) -> Result<Arc<ClientConfig>, String> {
    let pem = STANDARD.decode(bundle).map_err(|e| format!("caBundle: {e}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|e| format!("caBundle: {e}"))?;
        roots.add(certificate).map_err(|e| format!("caBundle: {e}"))?;
    }
    if roots.is_empty() {
        return Err(
            "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned()
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
