//! What the webhook tells Prometheus. Each metric has a row in docs/messages.md.

use std::sync::atomic::AtomicI64;

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use program::capabilities::RightsMissing;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::time::Instant;

/// The metrics of one webhook. Clones share them.
#[derive(Clone, Default)]
pub struct Metrics {
    reviews: Family<Answered, Counter>,
    seconds: Seconds,
    /// Seconds since 1970; 0 before there is a certificate.
    pub(crate) certificate_ends: Gauge<i64, AtomicI64>,
    pub(crate) rights_missing: RightsMissing,
}

#[derive(Clone)]
struct Seconds(Family<Asked, Histogram, fn() -> Histogram>);

impl Default for Seconds {
    fn default() -> Self {
        // one millisecond to sixteen seconds: an API server waits ten
        Self(Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15))))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    review: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    review: &'static str,
    outcome: &'static str,
}

/// Marks the answer of a review that denies a write, or the conversion of one object for its size.
#[derive(Clone, Copy)]
struct Denied;

/// Marks the answer of a review of conversion that says why nothing was converted.
#[derive(Clone, Copy)]
struct Failed;

/// The answer of a review of conversion that converts nothing: the request of the API server's client fails.
pub(crate) fn failed(mut answer: Response) -> Response {
    answer.extensions_mut().insert(Failed);
    answer
}

/// The answer of a review of admission, or the refusal of one of conversion for the size of one object.
pub(crate) fn decided(allowed: bool, answer: impl IntoResponse) -> Response {
    let mut answer = answer.into_response();
    if !allowed {
        answer.extensions_mut().insert(Denied);
    }
    answer
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("harvester_load_balancer_webhook");
        registry.register("reviews", "Reviews that were answered", self.reviews.clone());
        registry.register(
            "review_duration_seconds",
            "From the head of a review to its answer",
            self.seconds.0.clone(),
        );
        registry.register(
            "certificate_expiration_timestamp_seconds",
            "The end of the serving certificate, in seconds since 1970",
            self.certificate_ends.clone(),
        );
        self.rights_missing.register(registry, "rights_missing");
    }

    /// The router, with its reviews counted.
    pub(crate) fn count(&self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(self.clone(), count))
    }
}

async fn count(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let review = match request.uri().path() {
        "/v1/webhook/validation" => "validation",
        "/v1/webhook/mutation" => "mutation",
        "/v1/webhook/conversion" => "conversion",
        _ => return next.run(request).await,
    };
    let begun = Instant::now();
    let answer = next.run(request).await;
    let outcome = if !answer.status().is_success() || answer.extensions().get::<Failed>().is_some() {
        "failed"
    } else if answer.extensions().get::<Denied>().is_some() {
        "denied"
    } else {
        "answered"
    };
    metrics.seconds.0.get_or_create(&Asked { review }).observe(begun.elapsed().as_secs_f64());
    metrics.reviews.get_or_create(&Answered { review, outcome }).inc();
    answer
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use axum::{body::Body, http::StatusCode, routing::post};
    use program::capabilities::Right;
    use prometheus_client::encoding::text::encode;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reviews_are_counted_by_kind_and_outcome() {
        let router = Router::new()
            .route("/v1/webhook/validation", post(|| async { decided(false, "no") }))
            .route("/v1/webhook/mutation", post(|| async { decided(true, "yes") }))
            .route("/v1/webhook/conversion", post(|| async { StatusCode::SERVICE_UNAVAILABLE }));
        let metrics = Metrics::default();
        let router = metrics.count(router);
        for path in ["validation", "validation", "mutation", "conversion", "forged"] {
            let request = Request::post(format!("/v1/webhook/{path}")).body(Body::empty()).unwrap();
            let _answer = router.clone().oneshot(request).await.unwrap();
        }
        let (mut registry, mut text) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"harvester_load_balancer_webhook_reviews_total{review="validation",outcome="denied"} 2"#,
            r#"harvester_load_balancer_webhook_reviews_total{review="mutation",outcome="answered"} 1"#,
            r#"harvester_load_balancer_webhook_reviews_total{review="conversion",outcome="failed"} 1"#,
            r#"harvester_load_balancer_webhook_review_duration_seconds_count{review="validation"} 2"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        assert!(!text.contains("forged"), "a foreign path makes no series");
    }

    /// The metrics in the table of the webhook, wherever in docs/ it is.
    fn documented() -> BTreeSet<String> {
        let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
        let pages = folder.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let pages: String = pages.filter_map(|page| fs::read_to_string(page).ok()).collect();
        let head = "| Metric of `harvester-load-balancer-webhook` |";
        let (_, table) = pages.split_once(head).expect("a table");
        let first = |row: &str| row.strip_prefix("| ")?.split('|').next().map(str::to_owned);
        let cells: Vec<_> = table.lines().skip(2).map_while(first).collect();
        let names = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
        names.filter_map(|name| name.split('{').next()).map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn every_metric_is_documented_and_every_documented_metric_is_there() {
        let metrics = Metrics::default();
        let router = Router::new().route("/v1/webhook/mutation", post(|| async { decided(true, "yes") }));
        let request = Request::post("/v1/webhook/mutation").body(Body::empty()).unwrap();
        let _answer = metrics.count(router).oneshot(request).await.unwrap();
        metrics.rights_missing.set("harvester", &Right::new("list", "", "namespaces"), true);
        let (mut registry, mut text) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let name = |(name, of): (&str, &str)| {
            if of == "counter" { format!("{name}_total") } else { name.to_owned() }
        };
        assert_eq!(types.map(name).collect::<BTreeSet<_>>(), documented());
    }
}
