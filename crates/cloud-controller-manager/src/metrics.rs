//! Metrics under the names that dashboards for Kubernetes' components know, with their types, labels and units.

use std::time::Duration;

use cloud_config::Answered;
use controller_kit::{Cache, QueueMetrics, WorkQueues};
use k8s_openapi::api::core::v1::Node;
use program::{Clock, capabilities::RightsMissing};
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

/// The taint of a Node that no cloud controller manager has initialised.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Label `manager` of all controllers.
const MANAGER: &str = "cloud-controller-manager";
/// Buckets of client-go, in seconds.
const REQUEST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    name: &'static str,
    manager: &'static str,
}

/// Of leader election, queues and controllers. Clones are the same metrics.
#[derive(Clone, Debug)]
pub(crate) struct OwnMetrics {
    clock: Clock,
    leading: Family<Name, Gauge>,
    controllers: Family<Controller, Gauge>,
    queues: WorkQueues,
    taint_removal: Histogram,
    first_sync: Histogram,
    /// Of the roles in both clusters.
    pub(crate) rights: RightsMissing,
}

impl OwnMetrics {
    pub(crate) fn new(clock: Clock) -> Self {
        let node_seconds = || Histogram::new(exponential_buckets(1.0, 4.0, 6));
        Self {
            clock,
            leading: Family::default(),
            controllers: Family::default(),
            queues: WorkQueues::default(),
            taint_removal: node_seconds(),
            first_sync: node_seconds(),
            rights: RightsMissing::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "leader_election_master_status",
            "1 while this process leads",
            self.leading.clone(),
        );
        registry.register("running_managed_controllers", "Controllers that run", self.controllers.clone());
        registry.register(
            "node_controller_cloud_provider_taint_removal_delay_seconds",
            "From the creation of a Node until it has no taint of an uninitialised one",
            self.taint_removal.clone(),
        );
        registry.register(
            "node_controller_initial_node_sync_delay_seconds",
            "From the creation of a Node until it is initialised",
            self.first_sync.clone(),
        );
        self.rights.register(registry, "harvester_rights_missing");
        registry.register_collector(Box::new(self.queues.clone()));
    }

    pub(crate) fn set_leading(&self, lease: &str, leads: bool) {
        self.leading.get_or_create(&Name { name: lease.to_owned() }).set(i64::from(leads));
    }

    /// A controller runs, on this queue.
    pub(crate) fn started(&self, queue: &'static str, controller: &'static str, metrics: QueueMetrics) {
        self.controllers.get_or_create(&Controller { name: controller, manager: MANAGER }).set(1);
        self.queues.add(queue, metrics);
    }

    /// Measures how long Nodes wait: one write initialises a Node and takes the taint away, so that both are one time.
    pub(crate) fn follow_nodes(&self, nodes: &Cache<Node>) {
        let own = self.clone();
        nodes.on_change(move |change| {
            if let (Some(old), Some(new)) = (&change.old, &change.new)
                && is_tainted(old)
                && !is_tainted(new)
                && let Some(created) = &new.metadata.creation_timestamp
            {
                let waited = own.clock.now().duration_since(created.0);
                let waited = Duration::try_from(waited).unwrap_or_default().as_secs_f64();
                own.taint_removal.observe(waited);
                own.first_sync.observe(waited);
            }
        });
    }
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == UNINITIALIZED))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Served {
    verb: String,
    host: String,
}

/// Of requests to API servers. Clones are the same metrics.
#[derive(Clone, Debug)]
pub(crate) struct RestClient {
    requests: Family<Request, Counter>,
    durations: Family<Served, Histogram, fn() -> Histogram>,
    waits: Family<Served, Histogram, fn() -> Histogram>,
}

impl Default for RestClient {
    fn default() -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(REQUEST_SECONDS);
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(seconds),
            waits: Family::new_with_constructor(seconds),
        }
    }
}

impl RestClient {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Requests by answer, method and server",
            self.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "From a request to the head of its answer",
            self.durations.clone(),
        );
        registry.register(
            "rest_client_rate_limiter_duration_seconds",
            "How long requests waited for --kube-api-qps",
            self.waits.clone(),
        );
    }

    pub(crate) fn count(&self, answered: &Answered<'_>) {
        let (method, host) = (answered.method.to_string(), answered.host.to_owned());
        let code = answered.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let served = Served { verb: method.clone(), host: host.clone() };
        self.requests.get_or_create(&Request { code, method, host }).inc();
        self.durations.get_or_create(&served).observe(answered.took.as_secs_f64());
        self.waits.get_or_create(&served).observe(answered.queued.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cloud_config::expiry::Expiry;
    use credential_rotation::{RotationMetrics, life::Life};
    use http::Method;
    use k8s_openapi::jiff::Timestamp;
    use program::capabilities::Right;
    use prometheus_client::encoding::text::encode;
    use serde_json::json;

    use super::*;

    fn text(registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn check(registry: &Registry, expected: &[&str]) {
        let lines = text(registry);
        for line in expected {
            assert!(lines.iter().any(|it| it == line), "{line} is not in\n{}", lines.join("\n"));
        }
    }

    /// The metrics in the table of this program in docs/messages.md.
    fn documented(program: &str) -> BTreeSet<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/messages.md");
        let document = std::fs::read_to_string(path).unwrap();
        let head = format!("| Metric of `{program}` |");
        let rows = document.lines().skip_while(|line| !line.starts_with(&head)).skip(2);
        let first = |row: &str| row.split('|').nth(1).map(str::to_owned);
        let cells = rows.map_while(first).collect::<Vec<_>>().join("");
        let names = cells.split('`').skip(1).step_by(2).filter_map(|name| name.split('{').next());
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// The metrics that the registry has.
    fn registered(registry: &Registry) -> BTreeSet<String> {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        types
            .map(|(name, of)| if of == "counter" { format!("{name}_total") } else { name.to_owned() })
            .collect()
    }

    fn answered(code: Option<u16>) -> Answered<'static> {
        Answered {
            method: &Method::GET,
            host: "harvester:6443",
            code,
            headers: None,
            took: Duration::from_millis(20),
            queued: Duration::ZERO,
        }
    }

    #[tokio::test]
    async fn every_metric_is_documented_and_every_documented_metric_is_there() {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let (own, life, requests) = (OwnMetrics::new(clock), Life::new(clock), RestClient::default());
        let mut registry = Registry::default();
        own.register(&mut registry);
        requests.register(&mut registry);
        RotationMetrics::default().register(&mut registry);
        registry.register_collector(Box::new(life.clone()));
        own.set_leading("cloud-controller-manager", true);
        own.rights.set("guest", &Right::new("patch", "", "nodes"), true);
        for queue in ["service", "node", "node_lifecycle"] {
            let metrics = QueueMetrics::default();
            metrics.register(&mut registry, queue);
            own.started(queue, queue, metrics);
        }
        requests.count(&answered(Some(200)));
        life.set(Expiry::At("2026-01-02T00:00:00Z".parse().unwrap()));
        let mut documented = documented("harvester-cloud-provider");
        // those of crate `program`
        documented.retain(|name| !name.starts_with("process_"));
        assert_eq!(registered(&registry), documented);
    }

    // docs/contract/cloud-controller-manager.md#S14
    #[tokio::test(start_paused = true)]
    async fn metrics_have_the_names_types_and_labels_of_kubernetes() {
        let start: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let (own, mut registry) = (OwnMetrics::new(Clock::starting_at(start)), Registry::default());
        own.register(&mut registry);
        own.set_leading("cloud-controller-manager", true);
        own.started("Nodes", "cloud-node", QueueMetrics::default());
        let nodes = Cache::empty();
        own.follow_nodes(&nodes);
        for taints in [json!([{"key": UNINITIALIZED, "effect": "NoSchedule"}]), json!([])] {
            let version = if taints == json!([]) { "2" } else { "1" };
            nodes.wrote(
                serde_json::from_value(
                    json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": version,
                "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"taints": taints}}),
                )
                .unwrap(),
            );
        }
        check(
            &registry,
            &[
                "# TYPE leader_election_master_status gauge",
                r#"leader_election_master_status{name="cloud-controller-manager"} 1"#,
                r#"running_managed_controllers{name="cloud-node",manager="cloud-controller-manager"} 1"#,
                "# TYPE workqueue_adds counter",
                r#"workqueue_adds_total{name="Nodes"} 0"#,
                r#"workqueue_depth{name="Nodes"} 0"#,
                r#"workqueue_retries_total{name="Nodes"} 0"#,
                "# TYPE workqueue_queue_duration_seconds histogram",
                r#"workqueue_work_duration_seconds_count{name="Nodes"} 0"#,
                r#"workqueue_unfinished_work_seconds{name="Nodes"} 0.0"#,
                r#"workqueue_longest_running_processor_seconds{name="Nodes"} 0.0"#,
                "node_controller_initial_node_sync_delay_seconds_count 1",
                r#"node_controller_cloud_provider_taint_removal_delay_seconds_bucket{le="16.0"} 0"#,
                r#"node_controller_cloud_provider_taint_removal_delay_seconds_bucket{le="64.0"} 1"#,
            ],
        );
    }

    #[test]
    fn requests_are_counted_by_answer_method_and_server() {
        let (requests, mut registry) = (RestClient::default(), Registry::default());
        requests.register(&mut registry);
        for code in [Some(200), Some(200), None] {
            requests.count(&answered(code));
        }
        check(
            &registry,
            &[
                "# TYPE rest_client_requests counter",
                r#"rest_client_requests_total{code="200",method="GET",host="harvester:6443"} 2"#,
                r#"rest_client_requests_total{code="<error>",method="GET",host="harvester:6443"} 1"#,
                r#"rest_client_request_duration_seconds_bucket{le="0.025",verb="GET",host="harvester:6443"} 3"#,
                r#"rest_client_rate_limiter_duration_seconds_count{verb="GET",host="harvester:6443"} 3"#,
            ],
        );
    }
}
