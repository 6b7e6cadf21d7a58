//! Health and metrics over HTTP, for the kubelet and Prometheus.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};

pub use crate::health::Health;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics to serve.
pub type Metrics = Arc<Mutex<Registry>>;

#[derive(Clone)]
struct Served {
    health: Health,
    metrics: Metrics,
}

/// `/livez` and `/healthz` (liveness), `/readyz` (liveness and readiness): 200 `ok`, or 503 and a line for each check
/// that fails. `/metrics`: OpenMetrics.
pub fn router(health: Health, metrics: Metrics) -> Router {
    let (live, ready) = (Health::liveness_report, Health::readiness_report);
    Router::new()
        .route(
            "/healthz",
            get(move |State(served): State<Served>| async move { answer(live(&served.health)) }),
        )
        .route("/livez", get(move |State(served): State<Served>| async move { answer(live(&served.health)) }))
        .route(
            "/readyz",
            get(move |State(served): State<Served>| async move { answer(ready(&served.health)) }),
        )
        .route("/metrics", get(scrape))
        .with_state(Served { health, metrics })
}

fn answer(report: String) -> Response {
    if report.is_empty() {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, report).into_response()
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
