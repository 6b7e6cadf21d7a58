//! Accepts requests: in process, or over TLS on a socket.

pub(crate) mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use kube::client::Body as KubeBody;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use self::tls::Authority;
use crate::Failure;
use crate::server::{ApiServer, BODY_LIMIT, Dropped, refusal};
use crate::user::User;

/// Watches of one client share a connection: so many at once.
const STREAMS: u32 = 2000;

impl ApiServer {
    /// A client that is this user, without a socket: it works on a paused clock. Its namespace is `default`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn client(&self, user: impl Into<User>) -> kube::Client {
        let server = self.clone();
        let user = Arc::new(user.into());
        let service = tower::service_fn(move |request: Request<KubeBody>| {
            let server = server.clone();
            let user = user.clone();
            async move { server.request(Some(user), request).await }
        });
        kube::Client::new(service, "default")
    }

    /// The token by which a user is known; a new one where there is none.
    pub fn token(&self, user: &User) -> String {
        self.0.tokens.of(user).unwrap_or_else(|| {
            let token = self.random(|random| format!("{:032x}", random.u128(..)));
            self.0.tokens.add(token.clone(), user.clone());
            token
        })
    }

    /// The certificate of the authority that signs this server's certificates, in PEM.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.authority().pem()
    }

    /// A kubeconfig for this user at the address where [`ApiServer::serve`] listens.
    #[must_use]
    pub fn kubeconfig(&self, user: impl Into<User>, address: SocketAddr) -> String {
        let user = user.into();
        let token = self.token(&user);
        let authority = STANDARD.encode(self.ca_pem());
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: default\n\
             clusters:\n- name: default\n  cluster:\n    server: https://{address}\n    certificate-authority-data: {authority}\n\
             contexts:\n- name: default\n  context:\n    cluster: default\n    user: {name:?}\n    namespace: default\n\
             users:\n- name: {name:?}\n  user:\n    token: {token}\n",
            name = user.name,
        )
    }

    /// Serves over TLS, HTTP/1.1 and 2, until the future is dropped; open connections end with it.
    ///
    /// # Errors
    /// When the listener fails or no certificate can be made.
    pub async fn serve(&self, listener: TcpListener) -> std::io::Result<()> {
        let config = self.authority().server_config(listener.local_addr()?.ip())?;
        let acceptor = TlsAcceptor::from(config);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, _) = accepted?;
                    let server = self.clone();
                    let acceptor = acceptor.clone();
                    connections.spawn(async move { server.connection(stream, acceptor).await });
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
    }

    async fn connection(self, stream: TcpStream, acceptor: TlsAcceptor) {
        let Ok(()) = stream.set_nodelay(true) else { return };
        // a client that speaks no TLS, or does not trust the authority, is no business of ours
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
            let server = self.clone();
            async move { server.request(None, request).await }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended");
        }
    }

    fn authority(&self) -> &Authority {
        self.0.authority.get_or_init(|| Authority::new().expect("a key can be made and signs itself"))
    }

    /// Answers a request with any kind of body. Without a user, the bearer token says who asks.
    async fn request<B>(
        &self,
        user: Option<Arc<User>>,
        request: Request<B>,
    ) -> Result<Response<Body>, Dropped>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        match Limited::new(body, BODY_LIMIT).collect().await {
            Ok(body) => self.handle(user, Request::from_parts(head, body.to_bytes())).await,
            Err(_) => Ok(refusal(&Failure::too_large(BODY_LIMIT))),
        }
    }
}
