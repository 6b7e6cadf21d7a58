//! Health and metrics over HTTP, for whoever asks: the kubelet and Prometheus.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::net::TcpListener;

use crate::TaskGroup;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is not in order, by name. Nothing named: healthy.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Health {
    /// `name` does not work, because of `why`.
    pub fn wrong(&self, name: &'static str, why: impl Into<String>) {
        self.0.lock().expect("no panic while health is locked").insert(name, why.into());
    }

    /// `name` works.
    pub fn right(&self, name: &'static str) {
        self.0.lock().expect("no panic while health is locked").remove(name);
    }

    /// One line for each thing that does not work; empty when all is well.
    pub fn report(&self) -> String {
        let wrong = self.0.lock().expect("no panic while health is locked");
        wrong.iter().map(|(name, why)| format!("{name}: {why}\n")).collect()
    }
}

/// Metrics to serve.
pub type Metrics = Arc<Mutex<Registry>>;

#[derive(Clone)]
struct Served {
    health: Health,
    metrics: Metrics,
}

/// `/healthz`, `/livez`, `/readyz` (200 `ok`, or 503 and what is wrong) and `/metrics` (OpenMetrics).
pub fn router(health: Health, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(healthz))
        .route("/metrics", get(scrape))
        .with_state(Served { health, metrics })
}

/// Serves [`router`] without TLS until `tasks` ends.
pub fn serve(tasks: &TaskGroup, listener: TcpListener, health: Health, metrics: Metrics) {
    let stop = tasks.stop.clone().cancelled_owned();
    tasks.spawn(async move {
        let served = axum::serve(listener, router(health, metrics)).with_graceful_shutdown(stop).await;
        if let Err(error) = served {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "health and metrics are not served any more"
            );
        }
    });
}

async fn healthz(State(served): State<Served>) -> Response {
    match served.health.report() {
        fine if fine.is_empty() => "ok".into_response(),
        report => (StatusCode::SERVICE_UNAVAILABLE, report).into_response(),
    }
}

async fn scrape(State(served): State<Served>) -> Response {
    let mut text = String::new();
    let encoded = encode(&mut text, &served.metrics.lock().expect("no panic while encoding metrics"));
    match encoded {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
