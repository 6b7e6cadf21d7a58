//! The page's server beside a cluster that changes, on the simulated servers and on real ones.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
};
use dashboard::{Feed, Scope, router};
use harvester_api::{IPPool, LoadBalancer};
use http_body_util::BodyExt as _;
use kube::Client;
use program::TaskGroup;
use serde_json::{Value, json};
use test_cluster::{
    TestCluster, User,
    addresses::{create_load_balancer, create_pool},
    component_tests,
};
use tower::ServiceExt as _;

const ADDRESS: &str = "127.0.0.1:7710";

struct Dashboard {
    tasks: TaskGroup,
    router: Router,
}

impl Dashboard {
    fn start(client: &Client, namespace: Option<&str>) -> Self {
        let tasks = TaskGroup::new();
        let scope = Scope { namespace: namespace.map(str::to_owned), cluster: "harvester".to_owned() };
        let feed = Feed::start(&tasks, client, &scope);
        let address: SocketAddr = ADDRESS.parse().unwrap();
        Self { router: router(feed, address, tasks.stop.clone()), tasks }
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn get(&self, path: &str) -> Response<Body> {
        self.ask("GET", path, &[("host", ADDRESS)]).await
    }

    async fn page(&self) -> Page {
        let answer = self.get("/events").await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Page { body: answer.into_body(), rows: BTreeMap::new(), events: 0 }
    }
}

/// A page that listens, and what it shows.
struct Page {
    body: Body,
    rows: BTreeMap<String, Value>,
    /// So many came.
    events: usize,
}

impl Page {
    /// Takes the next event; false when there is no more.
    async fn next(&mut self) -> bool {
        let Some(frame) = self.body.frame().await else { return false };
        let bytes = frame.unwrap().into_data().unwrap();
        // an event is one frame here
        let Some(data) = std::str::from_utf8(&bytes).unwrap().strip_prefix("data: ") else { return true };
        let event: Value = serde_json::from_str(data).unwrap();
        self.events += 1;
        if event["reset"] == true {
            self.rows.clear();
        }
        for row in event["rows"].as_array().unwrap() {
            let name = row[0].as_str().unwrap().to_owned();
            match &row[1] {
                Value::Null => self.rows.remove(&name),
                row => self.rows.insert(name, row.clone()),
            };
        }
        true
    }

    async fn until(&mut self, what: impl Fn(&BTreeMap<String, Value>) -> bool) {
        while !what(&self.rows) {
            assert!(self.next().await, "the stream ended: {:#?}", self.rows);
        }
    }
}

fn is(rows: &BTreeMap<String, Value>, row: &str, field: &str, value: impl Into<Value>) -> bool {
    rows.get(row).is_some_and(|row| row[field] == value.into())
}

/// Grants User::Nobody to list and watch a resource: everywhere, or in a namespace.
async fn grant(cluster: &TestCluster, resource: &str, namespace: Option<&str>) {
    let (prefix, place) = match namespace {
        Some(namespace) => ("", format!(", namespace: {namespace}")),
        None => ("Cluster", String::new()),
    };
    let yaml = format!(
        "
apiVersion: rbac.authorization.k8s.io/v1
kind: {prefix}Role
metadata: {{name: see-{resource}{place}}}
rules: [{{apiGroups: [loadbalancer.harvesterhci.io], resources: [{resource}], verbs: [list, watch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {prefix}RoleBinding
metadata: {{name: see-{resource}{place}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {prefix}Role, name: see-{resource}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: nobody}}]
"
    );
    cluster.harvester.apply(&yaml).await;
}

component_tests! {
    async fn a_page_is_told_what_there_is_and_then_each_change(cluster: TestCluster) {
        create_pool(&cluster, "edge", 10, 19).await;
        create_load_balancer(&cluster, "web", "").await;
        let namespace = cluster.guest_cluster().vm_namespace.clone();
        let (web, late) = (format!("balancer/{namespace}/web"), format!("balancer/{namespace}/late"));
        let dashboard = Dashboard::start(&cluster.harvester.client(User::LoadBalancer), None);
        let mut page = dashboard.page().await;
        page.until(|rows| is(rows, &web, "state", "waits") && is(rows, "pool/edge/", "held", 0)).await;
        page.until(|rows| is(rows, "panel/pools", "listed", true)).await;

        create_load_balancer(&cluster, "late", "").await;
        page.until(|rows| rows.contains_key(&late)).await;
        let address = "192.0.2.12";
        let record = json!({"status": {"total": 10, "available": 9, "lastAllocated": address,
            "allocated": {address: format!("{namespace}/late")}}});
        cluster.harvester.patch::<IPPool>("edge", record).await;
        page.until(|rows| is(rows, "pool/edge/", "held", 1)).await;
        cluster.harvester.delete::<LoadBalancer>(&format!("{namespace}/web")).await;
        page.until(|rows| !rows.contains_key(&web)).await;
        assert!(page.rows.contains_key(&late));
        dashboard.tasks.end().await;
        while page.next().await {}
    }

    async fn a_page_that_comes_later_shows_what_the_first_one_shows(cluster: TestCluster) {
        let dashboard = Dashboard::start(&cluster.harvester.client(User::LoadBalancer), None);
        let mut first = dashboard.page().await;
        create_pool(&cluster, "edge", 10, 19).await;
        first.until(|rows| rows.contains_key("pool/edge/") && is(rows, "panel/balancers", "listed", true)).await;
        let mut second = dashboard.page().await;
        second.until(|rows| *rows == first.rows).await;
        dashboard.tasks.end().await;
    }

    async fn two_kinds_are_read_and_nothing_is_written(cluster: TestCluster) {
        create_pool(&cluster, "edge", 10, 19).await;
        let dashboard = Dashboard::start(&cluster.harvester.client(User::LoadBalancer), None);
        dashboard.page().await.until(|rows| rows.contains_key("pool/edge/")).await;
        for method in ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"] {
            let answer = dashboard.ask(method, "/", &[("host", ADDRESS)]).await;
            assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{method}");
        }
        cluster.settle().await;
        assert_eq!(cluster.harvester.work_of(User::LoadBalancer), []);
        let asked: BTreeSet<_> = cluster.harvester.requests().iter().map(|request| request.resource()).collect();
        assert_eq!(asked, ["ippools", "loadbalancers", "selfsubjectaccessreviews"].map(str::to_owned).into());
        dashboard.tasks.end().await;
    }

    #[simulated_only("rights are asked for every 30 seconds")]
    async fn a_panel_says_which_right_is_missing_and_comes_when_it_is_granted(cluster: TestCluster) {
        let namespace = cluster.guest_cluster().vm_namespace.clone();
        create_pool(&cluster, "edge", 10, 19).await;
        create_load_balancer(&cluster, "web", "").await;
        grant(&cluster, "loadbalancers", Some(&namespace)).await;
        let dashboard = Dashboard::start(&cluster.harvester.client(User::Nobody), Some(&namespace));
        let mut page = dashboard.page().await;
        let missing = json!(["list ippools.loadbalancer.harvesterhci.io", "watch ippools.loadbalancer.harvesterhci.io"]);
        page.until(|rows| is(rows, "panel/pools", "missing", missing.clone())).await;
        // what the kubeconfig may read is there
        page.until(|rows| rows.contains_key(&format!("balancer/{namespace}/web"))).await;
        assert_eq!(page.rows["panel/balancers"]["missing"], json!([]));
        assert_eq!(page.rows["panel/pools"]["listed"], false);

        grant(&cluster, "ippools", None).await;
        page.until(|rows| rows.contains_key("pool/edge/") && is(rows, "panel/pools", "missing", json!([]))).await;
        page.until(|rows| is(rows, "panel/pools", "error", Value::Null)).await;
        assert_eq!(page.rows["panel/pools"]["listed"], true);
        dashboard.tasks.end().await;
    }

    #[simulated_only("rights are asked for every 30 seconds")]
    async fn who_may_read_one_namespace_is_told_of_the_flag(cluster: TestCluster) {
        let namespace = cluster.guest_cluster().vm_namespace.clone();
        grant(&cluster, "loadbalancers", Some(&namespace)).await;
        let dashboard = Dashboard::start(&cluster.harvester.client(User::Nobody), None);
        let mut page = dashboard.page().await;
        let missing = ["list", "watch"].map(|verb| format!("{verb} loadbalancers.loadbalancer.harvesterhci.io"));
        page.until(|rows| is(rows, "panel/balancers", "missing", json!(missing))).await;
        let hint = page.rows["panel/balancers"]["hint"].as_str().unwrap();
        assert!(hint.contains("--namespace=NAMESPACE"), "{hint}");
        dashboard.tasks.end().await;
    }

    #[simulated_only("a page that does not read while 100 changes come")]
    async fn a_slow_page_gets_the_last_state_and_not_every_change(cluster: TestCluster) {
        create_pool(&cluster, "edge", 10, 19).await;
        let dashboard = Dashboard::start(&cluster.harvester.client(User::LoadBalancer), None);
        let mut page = dashboard.page().await;
        page.until(|rows| rows.contains_key("pool/edge/") && is(rows, "panel/balancers", "listed", true)).await;
        let before = page.events;
        for number in 1..=100 {
            let change = json!({"spec": {"description": format!("change {number}")}});
            cluster.harvester.patch::<IPPool>("edge", change).await;
            cluster.settle().await;
        }
        page.until(|rows| is(rows, "pool/edge/", "description", "change 100")).await;
        assert_eq!(page.events - before, 1);
        dashboard.tasks.end().await;
    }

    async fn the_page_is_for_this_machine_and_for_no_other_site(cluster: TestCluster) {
        let dashboard = Dashboard::start(&cluster.harvester.client(User::LoadBalancer), None);
        for host in ["rebound.example:7710", "localhost", "127.0.0.1:80", "192.0.2.1:7710"] {
            for path in ["/", "/app.js", "/events", "/nothing"] {
                let answer = dashboard.ask("GET", path, &[("host", host)]).await;
                assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST, "{host} {path}");
            }
        }
        assert_eq!(dashboard.ask("GET", "/", &[]).await.status(), StatusCode::MISDIRECTED_REQUEST);
        for (site, status) in [
            ("cross-site", StatusCode::FORBIDDEN),
            ("same-site", StatusCode::FORBIDDEN),
            ("same-origin", StatusCode::OK),
            ("none", StatusCode::OK),
        ] {
            let answer = dashboard.ask("GET", "/events", &[("host", ADDRESS), ("sec-fetch-site", site)]).await;
            assert_eq!(answer.status(), status, "{site}");
        }
        // an old browser says no more
        let own = format!("http://{ADDRESS}");
        for (origin, status) in
            [("http://evil.example", StatusCode::FORBIDDEN), ("null", StatusCode::FORBIDDEN), (&*own, StatusCode::OK)]
        {
            let answer = dashboard.ask("GET", "/events", &[("host", ADDRESS), ("origin", origin)]).await;
            assert_eq!(answer.status(), status, "{origin}");
        }
        for path in ["/", "/app.js", "/map.js", "/style.css", "/icon.svg", "/events", "/nothing"] {
            let answer = dashboard.get(path).await;
            let policy = answer.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
            assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
            assert_eq!(answer.headers()["cross-origin-resource-policy"], "same-origin");
            assert!(answer.headers().get("access-control-allow-origin").is_none());
        }
        dashboard.tasks.end().await;
    }

    async fn sixteen_pages_listen_at_once_and_the_next_one_when_one_of_them_goes(cluster: TestCluster) {
        let dashboard = Dashboard::start(&cluster.harvester.client(User::LoadBalancer), None);
        let mut pages = Vec::new();
        for _ in 0..16 {
            pages.push(dashboard.page().await);
        }
        let refused = dashboard.get("/events").await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let text = refused.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, "16 pages are open already: close one.\n");
        pages.pop();
        dashboard.page().await.until(|rows| rows.contains_key("cluster")).await;
        dashboard.tasks.end().await;
    }

    async fn names_and_sentences_of_others_stay_text(cluster: TestCluster) {
        let hostile = "</script><img src=x onerror=alert(1)>";
        create_pool(&cluster, "edge", 10, 19).await;
        cluster.harvester.patch::<IPPool>("edge", json!({"spec": {"description": hostile}})).await;
        let dashboard = Dashboard::start(&cluster.harvester.client(User::LoadBalancer), None);
        let mut page = dashboard.page().await;
        page.until(|rows| is(rows, "pool/edge/", "description", hostile)).await;
        dashboard.tasks.end().await;
    }
}
