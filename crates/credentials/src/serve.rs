//! `cloud-config serve`: the kubeconfig API of Harvester's documentation, on an address of our own.
//!
//! ```text
//! caller ──TLS──► token, rate, names ──► generate, as the caller ──► Harvester
//! ```
//! POST makes what is not there, GET reads what is.
//! The process has no rights and no kubeconfig: each request does what the caller's own token may do. Of the caller's
//! headers the token alone reaches Harvester. Nobody logs it.

pub mod cli;
mod question;
mod rate;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::to_bytes,
    extract::{ConnectInfo, Request, State},
    response::{IntoResponse as _, Response},
    routing::any,
};
use cloud_config::Options;
use http::{HeaderValue, Method, StatusCode, header};
use kube::config::Kubeconfig;
use program::text::cut_clean;
use tokio::time::{Instant, timeout};

use crate::{
    generate::{Administrator, Run},
    output::{self, Content},
};
use question::{Fields, Question, Refusal, bearer, refuse};
use rate::{Rate, Refusals, Work};

/// The path of the documentation.
pub(crate) const PATH: &str = "/v1/harvester/kubeconfig";
/// As Harvester's own API says it.
const YAML: &str = "application/x-yaml; charset=utf-8";
/// Name of cluster, user and context in a kubeconfig, as Harvester's own API has it.
const NAME: &str = "default";
/// Longest body.
const BODY_MAX: usize = 4 << 10;
/// How long a body may take.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// How long Harvester may take: the token of a new account comes within half a minute.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Longest reason of a refusal in the log.
const WHY_MAX: usize = 300;

/// Where requests lead.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Harvester's API server, as this process reaches it.
    pub(crate) api_server: String,
    /// Base64 of its authority in PEM; empty for the authorities of the system.
    pub(crate) ca: String,
    /// The address that kubeconfigs have; else Harvester's VIP.
    pub(crate) server: Option<String>,
    /// Try each kubeconfig before it is given out.
    pub(crate) check: bool,
    pub(crate) options: Options,
}

#[derive(Clone)]
struct Api {
    target: Arc<Target>,
    rate: Arc<Mutex<Rate>>,
    refusals: Arc<Mutex<Refusals>>,
    work: Work,
}

impl Api {
    fn of(target: Target) -> Self {
        Self {
            target: Arc::new(target),
            rate: Arc::new(Mutex::new(Rate::starting(Instant::now()))),
            refusals: Arc::default(),
            work: Work::default(),
        }
    }
}

/// The API at its path, and nothing else.
pub(crate) fn router(target: Target) -> Router {
    Router::new().route(PATH, any(answer)).with_state(Api::of(target))
}

async fn answer(State(api): State<Api>, peer: ConnectInfo<SocketAddr>, request: Request) -> Response {
    let method = request.method().clone();
    let mut response = match api.kubeconfig(peer.0, request).await {
        Ok((kind, text)) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(Answer { refusal: Refusal { status, why }, wait }) => {
            let reason = cut_clean(&why, WHY_MAX);
            tracing::debug!(peer = %peer.0.ip(), %method, status = status.as_u16(), "refused: {reason}");
            let told = api.refusals.lock().unwrap_or_else(PoisonError::into_inner).add(Instant::now());
            if let Some(count) = told {
                tracing::info!(count, "requests were refused; --loglevel debug tells each");
            }
            let body = serde_json::json!({"type": "error", "status": status.as_u16(), "message": why});
            let mut response = (status, axum::Json(body)).into_response();
            let headers = response.headers_mut();
            match status {
                StatusCode::METHOD_NOT_ALLOWED => {
                    headers.insert(header::ALLOW, HeaderValue::from_static("GET, POST"));
                }
                StatusCode::UNAUTHORIZED => {
                    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                }
                StatusCode::TOO_MANY_REQUESTS => {
                    headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
                }
                _ => {}
            }
            response
        }
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A refusal, and how long to wait before the next try.
struct Answer {
    refusal: Refusal,
    wait: Duration,
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, wait: Duration::ZERO }
    }
}

impl Api {
    async fn kubeconfig(&self, peer: SocketAddr, request: Request) -> Result<(&'static str, String), Answer> {
        if ![Method::GET, Method::POST].contains(request.method()) {
            return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST").into());
        }
        // who sends no token is answered without being counted: who is behind the same address may have one
        let token = bearer(request.headers())?.to_owned();
        let (digest, admitted) = {
            let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
            let digest = rate.digest(&token);
            (digest, rate.admit(peer.ip().into(), digest, Instant::now()))
        };
        let many =
            |wait| Answer { refusal: refuse(StatusCode::TOO_MANY_REQUESTS, "too many requests"), wait };
        admitted.map_err(many)?;
        let makes = request.method() == Method::POST;
        let fields = fields(request).await?;
        let question = Question::of(fields, self.target.server.as_deref(), self.target.check)?;
        let _place = self.work.begin(digest).ok_or_else(|| many(Duration::from_secs(1)))?;
        let made = timeout(ANSWER_WITHIN, self.target.kubeconfig(&question, &token, makes)).await;
        let late = |_| refuse(StatusCode::GATEWAY_TIMEOUT, "Harvester did not answer within a minute");
        let text = made.map_err(late)??;
        let request = &question.request;
        tracing::info!(peer = %peer.ip(), namespace = request.namespace, account = request.account, makes, "gave a kubeconfig");
        if question.yaml {
            return Ok((YAML, output::user_data(&text)));
        }
        let broken = |error: serde_json::Error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        Ok(("application/json", serde_json::to_string(&text).map_err(broken)?))
    }
}

async fn fields(request: Request) -> Result<Fields, Refusal> {
    if request.method() == Method::GET {
        return Ok(Fields::of_query(request.uri().query().unwrap_or_default()));
    }
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    let large = || refuse(StatusCode::PAYLOAD_TOO_LARGE, "a body has at most 4 KiB");
    if announced.is_some_and(|length: usize| length > BODY_MAX) {
        return Err(large());
    }
    let slow = |_| refuse(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
    let body = timeout(BODY_WITHIN, to_bytes(request.into_body(), BODY_MAX)).await.map_err(slow)?;
    Fields::of_body(&body.map_err(|_| large())?)
}

impl Target {
    /// What `cloud-config generate` does, with the caller's rights; or the kubeconfig of what is there.
    async fn kubeconfig(&self, question: &Question, token: &str, makes: bool) -> Result<String, Refusal> {
        let caller = Content {
            ca: self.ca.clone(),
            server: self.api_server.clone(),
            server_name: String::new(),
            cluster: NAME.to_owned(),
            user: "caller".to_owned(),
            namespace: "default".to_owned(),
        };
        let unusable = |_: kube::config::KubeconfigError| {
            // its text may have parts of the token
            refuse(StatusCode::UNAUTHORIZED, "the token cannot be used")
        };
        let kubeconfig = Kubeconfig::from_yaml(&caller.kubeconfig(token)).map_err(unusable)?;
        let administrator = Administrator::of(&kubeconfig, &self.options);
        let administrator = administrator.map_err(|error| {
            refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string().replace(token, "…"))
        })?;
        let (mut nowhere, mut unsaid) = (io::sink(), io::sink());
        let run = Run {
            request: &question.request,
            administrator,
            options: &self.options,
            program: "cloud-config serve",
            progress: &mut nowhere,
            notes: &mut unsaid,
            user: Some(NAME),
        };
        let outcome = if makes { run.generate().await } else { run.existing().await };
        outcome.map_err(|error| {
            let status = match error.code {
                Some(401) => StatusCode::UNAUTHORIZED,
                Some(403) => StatusCode::FORBIDDEN,
                Some(404) => StatusCode::NOT_FOUND,
                Some(409) => StatusCode::CONFLICT,
                _ => StatusCode::BAD_GATEWAY,
            };
            refuse(status, error.to_string().replace(token, "…"))
        })
    }
}

#[cfg(test)]
mod tests;
