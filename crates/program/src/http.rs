//! Health and metrics over HTTP, for the kubelet and Prometheus.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};

pub use crate::health::Health;
use crate::{
    health::{CheckResult, Probe},
    slis::Slis,
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// A check that passes where anybody answers.
const PING: &str = "ping";
/// The paths of probes, and what they ask.
const PROBES: [(&str, Probe); 3] =
    [("healthz", Probe::Liveness), ("livez", Probe::Liveness), ("readyz", Probe::Readiness)];

/// Metrics to serve.
pub type Metrics = Arc<Mutex<Registry>>;

#[derive(Clone)]
struct Served {
    health: Health,
    slis: Slis,
}

/// `/livez` and `/healthz` (liveness), `/readyz` (liveness and readiness): 200 `ok`, or 503 and a line for each check
/// that fails. `?verbose` lists every check, `?exclude=NAME` passes over one, and `/healthz/NAME` asks one alone, as in the
/// components of Kubernetes. `/metrics`: OpenMetrics; `/metrics/slis`: what the checks answer.
pub fn router(health: Health, metrics: Metrics) -> Router {
    let mut router = Router::new().route("/metrics/slis", get(scrape_slis));
    for (path, probe) in PROBES {
        router = router
            .route(
                &format!("/{path}"),
                get(move |State(served): State<Served>, Query(query): Query<Vec<(String, String)>>| async move {
                    answer(&served.ask(path, probe), path, &query)
                }),
            )
            .route(
                &format!("/{path}/{{check}}"),
                get(move |State(served): State<Served>, Path(check): Path<String>| async move {
                    let mut results = served.ask(path, probe);
                    results.retain(|result| result.name == check);
                    if results.is_empty() {
                        return (StatusCode::NOT_FOUND, format!("there is no check {check:?}\n")).into_response();
                    }
                    answer(&results, path, &[])
                }),
            );
    }
    router.with_state(Served { health, slis: Slis::default() }).merge(self::metrics(metrics))
}

impl Served {
    fn results(&self, probe: Probe) -> Vec<CheckResult> {
        let ping = CheckResult { name: PING, failure: None };
        std::iter::once(ping).chain(self.health.results(probe)).collect()
    }

    fn ask(&self, path: &'static str, probe: Probe) -> Vec<CheckResult> {
        let results = self.results(probe);
        self.slis.count(path, &results);
        results
    }
}

fn answer(results: &[CheckResult], path: &str, query: &[(String, String)]) -> Response {
    let excluded = |name: &str| query.iter().any(|(key, value)| key == "exclude" && value == name);
    let failed: Vec<_> =
        results.iter().filter(|result| result.failure.is_some() && !excluded(result.name)).collect();
    let code = if failed.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if query.iter().any(|(key, _)| key == "verbose") {
        let lines = results.iter().map(|result| match &result.failure {
            _ if excluded(result.name) => format!("[+]{} excluded: ok\n", result.name),
            None => format!("[+]{} ok\n", result.name),
            Some(why) => format!("[-]{} failed: {why}\n", result.name),
        });
        let outcome = if failed.is_empty() { "passed" } else { "failed" };
        return (code, format!("{}{path} check {outcome}\n", lines.collect::<String>())).into_response();
    }
    if failed.is_empty() {
        return "ok".into_response();
    }
    let line = |result: &&CheckResult| {
        format!("{}: {}\n", result.name, result.failure.as_deref().unwrap_or_default())
    };
    (code, failed.iter().map(line).collect::<String>()).into_response()
}

/// `/metrics` alone, for a port that everybody can reach.
pub fn metrics(metrics: Metrics) -> Router {
    Router::new().route(
        "/metrics",
        get(async move || encoded(&metrics.lock().expect("no panic while encoding metrics"))),
    )
}

/// `/configz`: the effective configuration under the name of its kind, for people who want to know how a component runs.
pub fn configz(kind: &str, config: &serde_json::Value) -> Router {
    let document = serde_json::json!({kind: config});
    Router::new().route("/configz", get(async move || axum::Json(document)))
}

async fn scrape_slis(State(served): State<Served>) -> Response {
    let now = PROBES.map(|(path, probe)| (path, served.results(probe)));
    served.slis.set_now(&now);
    encoded(&served.slis.registry())
}

fn encoded(registry: &Registry) -> Response {
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use rstest::rstest;

    use super::*;

    fn served() -> Router {
        let health = Health::default();
        health.liveness("lease");
        health.readiness("lists").fail("pools are not listed");
        router(health, Metrics::default())
    }

    async fn got(router: &Router, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(router.clone(), request).await.unwrap();
        let code = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[rstest]
    #[case::alive("/healthz", 200, "ok")]
    #[case::alive_by_its_other_name("/livez", 200, "ok")]
    #[case::not_ready("/readyz", 503, "lists: pools are not listed\n")]
    #[case::verbose(
        "/readyz?verbose",
        503,
        "[+]ping ok\n[+]lease ok\n[-]lists failed: pools are not listed\nreadyz check failed\n"
    )]
    #[case::verbose_with_a_value(
        "/healthz?verbose=true",
        200,
        "[+]ping ok\n[+]lease ok\nhealthz check passed\n"
    )]
    #[case::excluded("/readyz?exclude=lists", 200, "ok")]
    #[case::excluded_verbosely(
        "/readyz?verbose&exclude=lists",
        200,
        "[+]ping ok\n[+]lease ok\n[+]lists excluded: ok\nreadyz check passed\n"
    )]
    #[case::one_check("/readyz/lease", 200, "ok")]
    #[case::one_check_that_fails("/readyz/lists", 503, "lists: pools are not listed\n")]
    #[case::ping("/healthz/ping", 200, "ok")]
    #[case::of_another_probe("/healthz/lists", 404, "there is no check \"lists\"\n")]
    #[tokio::test]
    async fn probes_answer_as_those_of_kubernetes_do(
        #[case] path: &str,
        #[case] code: u16,
        #[case] body: &str,
    ) {
        assert_eq!(got(&served(), path).await, (code, body.to_owned()));
    }

    #[tokio::test]
    async fn configz_shows_the_configuration_under_its_kind() {
        let router = configz("greeter.config.example.com", &serde_json::json!({"name": "world"}));
        let document = r#"{"greeter.config.example.com":{"name":"world"}}"#;
        assert_eq!(got(&router, "/configz").await, (200, document.to_owned()));
    }

    #[tokio::test]
    async fn slis_say_what_the_checks_answer_now_and_what_they_answered_to_probes() {
        let router = served();
        for _ in 0..2 {
            got(&router, "/readyz").await;
        }
        let (code, text) = got(&router, "/metrics/slis").await;
        assert_eq!(code, 200);
        for line in [
            r#"kubernetes_healthcheck{name="lists",type="readyz"} 0"#,
            r#"kubernetes_healthcheck{name="lease",type="healthz"} 1"#,
            r#"kubernetes_healthcheck{name="ping",type="livez"} 1"#,
            r#"kubernetes_healthchecks_total{name="lists",type="readyz",status="error"} 2"#,
            r#"kubernetes_healthchecks_total{name="ping",type="readyz",status="success"} 2"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}
