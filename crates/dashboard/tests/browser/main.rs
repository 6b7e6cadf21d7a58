//! The page in a real browser, beside a simulated server that changes. Without Chromium it is left out, which is said.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![expect(clippy::needless_pass_by_value, reason = "json! makes values")]

mod chromium;

use std::{
    io::{self, Write as _},
    sync::{Mutex, MutexGuard, Once},
};

use dashboard::{Feed, Scope, router};
use harvester_api::{IPPool, LoadBalancer, annotations};
use program::{TaskGroup, serving};
use serde_json::{Value, json};
use test_cluster::{Rights, TestCluster, User};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};

use crate::chromium::Browser;

/// Text that would be markup, and would say so in the page's title.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

/// A page, the cluster that it shows, and what it takes to change that.
struct Stage {
    browser: Browser,
    runtime: Runtime,
    cluster: TestCluster,
    url: String,
    tasks: TaskGroup,
    _turn: MutexGuard<'static, ()>,
}

/// Browsers at a time would be in each other's way on a small machine.
static TURN: Mutex<()> = Mutex::new(());

impl Stage {
    fn set(user: User) -> Option<Self> {
        let Some(program) = chromium::find() else {
            // past the test harness, which shows nothing of a test that passes
            let why =
                "left out: the dashboard in a browser (apt-get install --no-install-recommends chromium)";
            static SAID: Once = Once::new();
            SAID.call_once(|| io::stderr().write_all(format!("{why}\n").as_bytes()).unwrap());
            return None;
        };
        let turn = TURN.lock().unwrap_or_else(|broken| broken.into_inner());
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let tasks = TaskGroup::new();
        let (cluster, url) = runtime.block_on(async {
            let cluster = Box::pin(TestCluster::simulated(Rights::Ours)).await;
            let scope = Scope { namespace: None, cluster: "harvester.kubeconfig".to_owned() };
            let feed = Feed::start(&tasks, &cluster.harvester.client(user), &scope);
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            serving::http_on(&tasks, listener, router(feed, address, tasks.stop.clone()));
            (cluster, format!("http://{address}/"))
        });
        let mut browser = Browser::start(&program);
        browser.resize(1280, 900);
        browser.open(&url);
        browser.until("document.getElementById('live')?.textContent === 'live'");
        Some(Self { browser, runtime, cluster, url, tasks, _turn: turn })
    }

    fn apply(&self, object: &Value) {
        self.runtime.block_on(self.cluster.harvester.apply(&object.to_string()));
    }

    fn patch_pool(&self, name: &str, patch: Value) {
        self.runtime.block_on(self.cluster.harvester.patch::<IPPool>(name, patch));
    }

    /// Ends it; the page had nothing to complain of.
    fn strike(self) {
        assert_eq!(self.browser.complaints, [""; 0]);
        drop(self.browser);
        self.runtime.block_on(self.tasks.end());
    }
}

fn pool(name: &str, ranges: Value, allocated: Value) -> Value {
    json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": name}, "spec": {"ranges": ranges},
        "status": {"total": 0, "available": 0, "lastAllocated": "", "allocated": allocated,
            "conditions": [{"type": "Ready", "status": "True", "reason": "RangesValid"}]}})
}

fn balancer(name: &str, ready: &str, message: &str, backends: Value) -> Value {
    json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"listeners": [{"name": "a", "port": 80, "protocol": "TCP", "backendPort": 8080}],
            "healthCheck": {"port": 8080}},
        "status": {"backends": backends, "conditions": [{"type": "Ready", "status": ready, "reason": "Why",
            "message": message, "lastTransitionTime": "2026-01-05T09:00:00Z"}]}})
}

#[test]
fn the_page_moves_as_the_cluster_moves() {
    let Some(mut stage) = Stage::set(User::LoadBalancer) else { return };
    stage.apply(&pool("edge", json!([{"subnet": "192.0.2.0/28"}]), json!({"192.0.2.5": "team-a/web"})));
    stage.browser.until("document.querySelectorAll('.map .cell').length === 14");
    stage.browser.until("document.querySelectorAll('.map .held').length === 1");
    stage.apply(&balancer("web", "False", "no pool matches", json!([])));
    stage.browser.until("document.querySelector('#waits p')?.textContent === 'no pool matches'");
    // the map knows that its holder waits
    stage.browser.until("document.querySelectorAll('.map .held.waits').length === 1");

    stage.apply(&balancer(
        "web",
        "True",
        "",
        json!([
        {"name": "vm-1", "address": "10.0.0.1", "ready": true, "since": "2026-01-05T09:00:00Z"},
        {"name": "vm-2", "address": "10.0.0.2", "ready": false, "lastError": "connection refused",
            "since": "2026-01-05T09:00:00Z"}]),
    ));
    stage.browser.until("document.querySelector('#rows summary')?.textContent === '1 of 2 answer'");
    stage.browser.until("document.getElementById('waiting').hidden");
    assert_eq!(stage.browser.value("document.querySelectorAll('.map .held.waits').length"), 0);

    let rest = json!({"192.0.2.6": "2999-01-01T00:00:00Z", "192.0.2.7": "2001-01-01T00:00:00Z"}).to_string();
    stage.patch_pool("edge", json!({"metadata": {"annotations": {annotations::QUARANTINE: rest}}}));
    stage.browser.until("document.querySelectorAll('.map .resting').length === 1");
    stage.patch_pool("edge", json!({"spec": {"ranges": [{"subnet": "192.0.2.0/28", "drain": true}]}}));
    stage.browser.until("document.querySelectorAll('.map .draining').length === 11");

    stage.runtime.block_on(stage.cluster.harvester.delete::<LoadBalancer>("team-a/web"));
    stage.browser.until("document.querySelectorAll('#rows tr').length === 0");
    stage.runtime.block_on(stage.cluster.harvester.delete::<IPPool>("edge"));
    stage.browser.until("document.querySelectorAll('.pool').length === 0");
    stage.strike();
}

#[test]
fn whatever_people_write_into_objects_the_page_shows_it_as_text() {
    let Some(mut stage) = Stage::set(User::LoadBalancer) else { return };
    let mut pool =
        pool("edge", json!([{"subnet": "192.0.2.0/28"}]), json!({HOSTILE: HOSTILE, "192.0.2.5": HOSTILE}));
    pool["spec"]["description"] = HOSTILE.into();
    pool["spec"]["selector"] = json!({"network": HOSTILE, "scope": [{"namespace": HOSTILE}]});
    pool["status"]["conditions"][0]["message"] = HOSTILE.into();
    stage.apply(&pool);
    let backends = json!([{"name": HOSTILE, "address": HOSTILE, "ready": false, "lastError": HOSTILE, "since": HOSTILE}]);
    let mut object = balancer("web", "False", HOSTILE, backends);
    object["status"]["conditions"][0]["reason"] = HOSTILE.into();
    object["status"]["address"] = HOSTILE.into();
    stage.apply(&object);
    stage.browser.until(&format!("document.querySelector('#waits p')?.textContent === {}", json!(HOSTILE)));
    stage.browser.until("document.querySelectorAll('.map .held').length === 1");
    // all of it is looked at
    stage
        .browser
        .value("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
    stage.browser.until("document.querySelectorAll('.addresses tbody tr').length === 2");
    let shown = stage.browser.value("document.body.innerText.split('<img src=x').length - 1");
    assert!(shown.as_u64().unwrap() >= 10, "{shown}");
    assert_eq!(stage.browser.value("document.querySelectorAll('img, body script').length"), 0);
    assert_eq!(stage.browser.value("document.title"), "Load balancing");
    // and where a script of the page forgot it, the browser would refuse
    let markup = format!(
        "try {{ document.body.innerHTML = {}; 'taken' }} catch (error) {{ error.name }}",
        json!(HOSTILE)
    );
    assert_eq!(stage.browser.value(&markup), "TypeError");
    stage.browser.complaints.clear();
    stage.strike();
}

#[test]
fn who_waits_in_one_namespace_hides_nobody_of_another() {
    let Some(mut stage) = Stage::set(User::LoadBalancer) else { return };
    // more than the table shows, older than the other's, and before it in every order
    let mut loud = balancer("0", "False", "demands the address of another", json!([]));
    loud["metadata"]["namespace"] = "default".into();
    for number in 0..510 {
        loud["metadata"]["name"] = format!("web-{number}").into();
        stage.apply(&loud);
    }
    let mut quiet = balancer("shop", "False", "no pool matches", json!([]));
    quiet["status"]["conditions"][0]["lastTransitionTime"] = "2026-02-05T09:00:00Z".into();
    stage.apply(&quiet);
    stage.browser.until("document.getElementById('shown').textContent.startsWith('511 ')");
    let shows = |part: &str| {
        format!("[...document.querySelectorAll('{part}')].some((name) => name.textContent === 'team-a/shop')")
    };
    stage.browser.until(&shows("#waits a"));
    stage.browser.until(&shows("#rows .name"));
    let shown =
        "[document.querySelectorAll('#waits li').length, document.querySelectorAll('#rows tr').length]";
    assert_eq!(stage.browser.value(shown), json!([20, 500]));
    stage.strike();
}

#[test]
fn the_page_fits_a_telephone_and_a_wide_screen_in_light_and_dark() {
    let Some(mut stage) = Stage::set(User::LoadBalancer) else { return };
    let long = "a-name-that-is-as-long-as-a-name-may-be-which-is-63-characters-x";
    stage.apply(&pool("edge", json!([{"subnet": "192.0.2.0/24"}, {"subnet": "10.0.0.0/16"}, {"subnet": "fd00::/64"}]),
        json!({"192.0.2.5": format!("team-a/{long}"), "10.0.7.7": "team-a/web", "fd00::1:2:3:4": "team-a/api"})));
    stage.apply(&balancer(
        "web",
        "False",
        &"word ".repeat(150),
        json!([{"name": long, "address": "10.0.0.1", "ready": true}]),
    ));
    stage
        .browser
        .until("document.querySelectorAll('#rows tr').length === 1 && document.querySelector('.pool')");
    // a large range has a cell for many addresses
    let cells =
        stage.browser.value("[...document.querySelectorAll('.map')].map((map) => map.childElementCount)");
    assert_eq!(cells, json!([254, 256, 0]));
    stage
        .browser
        .value("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        stage.browser.call("Emulation.setEmulatedMedia", features);
        grounds.push(stage.browser.value("getComputedStyle(document.body).backgroundColor"));
        for width in [400, 1600] {
            stage.browser.resize(width, 900);
            let needed = stage.browser.value("document.documentElement.scrollWidth");
            assert_eq!(needed, width, "{scheme}");
        }
    }
    assert_ne!(grounds[0], grounds[1]);
    stage.strike();
}

#[test]
fn a_map_is_read_with_the_keyboard() {
    let Some(mut stage) = Stage::set(User::LoadBalancer) else { return };
    stage.apply(&pool("edge", json!([{"subnet": "192.0.2.0/28"}]), json!({"192.0.2.3": "team-a/web"})));
    stage.apply(&balancer("web", "True", "", json!([])));
    stage
        .browser
        .until("document.querySelectorAll('.map .held').length === 1 && document.querySelector('#rows tr')");
    let said = |stage: &mut Stage| stage.browser.value("document.querySelector('.line').textContent");
    stage.browser.value("document.querySelector('.map').focus()");
    stage.browser.press("ArrowRight");
    assert_eq!(said(&mut stage), "192.0.2.2 is free");
    stage.browser.press("Home");
    assert_eq!(said(&mut stage), "192.0.2.1 is the gateway");
    stage.browser.press("ArrowRight");
    stage.browser.press("ArrowRight");
    assert_eq!(said(&mut stage), "192.0.2.3 is held by team-a/web");
    stage.browser.press("Enter");
    let focused = stage.browser.value("document.activeElement.querySelector('.name').textContent");
    assert_eq!(focused, "team-a/web");
    stage.strike();
}

#[test]
fn a_kubeconfig_without_rights_gets_a_page_that_names_them() {
    let Some(mut stage) = Stage::set(User::Nobody) else { return };
    let named = |part: &str, right: &str| {
        format!(
            "document.getElementById('panel-{part}').textContent.includes('{right}.loadbalancer.harvesterhci.io')"
        )
    };
    stage.browser.until(&named("pools", "list ippools"));
    stage.browser.until(&named("balancers", "list loadbalancers"));
    let text = stage.browser.value("document.getElementById('panel-balancers').textContent");
    assert!(text.as_str().unwrap().contains("--namespace=NAMESPACE"), "{text}");
    stage.strike();
}

#[test]
fn a_page_of_another_site_hears_nothing() {
    let Some(mut stage) = Stage::set(User::LoadBalancer) else { return };
    let url = stage.url.clone();
    // another port is another origin, and the name leads here
    stage.browser.open(&url.replace("127.0.0.1", "localhost"));
    stage.browser.until("document.getElementById('live')?.textContent === 'live'");
    stage.browser.open("about:blank");
    let fetch = format!("fetch('{url}events').then(() => 'answered', () => 'refused')");
    assert_eq!(stage.browser.value(&fetch), "refused");
    stage.browser.complaints.clear();
    stage.strike();
}
