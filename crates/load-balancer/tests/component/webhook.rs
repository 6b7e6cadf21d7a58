//! Stories of the admission webhook: over TLS as an API server asks it, and behind both API servers.

use std::net::TcpListener;
use std::time::Duration;

use harvester_api::{IPPool, LoadBalancer};
use ip_pools::managers;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::core::ApiResource;
use kube::{Api, Client};
use load_balancer_webhook::{Address, Config, Policy, prepare, run};
use program::{Clock, TaskGroup};
use rstest::rstest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use test_cluster::{Rights, TestCluster, User};

use super::stage;

const WRITER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";
const NAME: &str = "harvester-load-balancer-webhook";

fn config(address: Address, status_writer: &str) -> Config {
    let policy = Policy { status_writer: status_writer.to_owned() };
    Config { namespace: "harvester-system".to_owned(), policy, address }
}

/// Starts a replica; its port.
fn start(cluster: &TestCluster, tasks: &TaskGroup) -> u16 {
    start_for(cluster, tasks, WRITER)
}

fn start_for(cluster: &TestCluster, tasks: &TaskGroup, status_writer: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = config(Address::Url(format!("https://127.0.0.1:{port}")), status_writer);
    let (client, clock, inner) = (cluster.harvester.client(User::Webhook), Clock::system(), tasks.clone());
    tasks.spawn(async move { run(client, clock, config, listener, &inner).await.unwrap() });
    port
}

/// The authorities that the API server is told to believe, once both configurations are there.
async fn bundle(cluster: &TestCluster, port: u16) -> Vec<u8> {
    for _ in 0..200 {
        let validating = cluster.harvester.get::<ValidatingWebhookConfiguration>(NAME).await;
        let mutating = cluster.harvester.get::<MutatingWebhookConfiguration>(NAME).await;
        if let (Some(validating), Some(mutating)) = (validating, mutating) {
            let (one, other) = (validating.webhooks.unwrap().remove(0), mutating.webhooks.unwrap().remove(0));
            let url = one.client_config.url.unwrap();
            if url.starts_with(&format!("https://127.0.0.1:{port}/")) {
                assert_eq!(one.client_config.ca_bundle, other.client_config.ca_bundle);
                return one.client_config.ca_bundle.unwrap().0;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the API server was not told");
}

/// A client that believes `bundle` and nobody else.
fn believing(port: u16, bundle: &[u8]) -> Client {
    rustls::crypto::ring::default_provider().install_default().ok();
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
    let authorities = CertificateDer::pem_slice_iter(bundle).map(|one| one.unwrap().to_vec()).collect();
    config.root_cert = Some(authorities);
    Client::try_from(config).unwrap()
}

/// Status code and body of the answer.
async fn ask(client: &Client, path: &str, body: impl Into<Vec<u8>>) -> (u16, String) {
    let request =
        http::Request::post(format!("/v1/webhook/{path}")).header("content-type", "application/json");
    let response = client.send(request.body(Body::from(body.into())).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status.as_u16(), String::from_utf8(body.collect_bytes().await.unwrap().to_vec()).unwrap())
}

async fn answer(client: &Client, path: &str, body: Vec<u8>) -> Value {
    let (code, text) = ask(client, path, body).await;
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn review(operation: &str, object: &Value) -> Vec<u8> {
    let kind = json!({"group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "kind": "LoadBalancer"});
    let resource =
        json!({"group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "resource": "loadbalancers"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": operation, "kind": kind, "resource": resource, "namespace": "team-a", "name": "web",
        "userInfo": {"username": "alice"}, "object": object, "oldObject": null, "dryRun": true}})
    .to_string()
    .into_bytes()
}

fn web(listeners: &Value) -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"workloadType": "vm", "ipam": "dhcp", "healthCheck": {"port": 8080}, "listeners": listeners,
            "backendServerSelector": {"harvesterhci.io/vmName": ["web-1", "web-2"]}},
    })
}

fn http() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}])
}

#[rstest]
#[tokio::test]
async fn reviews_are_answered_over_tls_and_replicas_agree(
    #[values(Rights::Ours, Rights::Existing)] rights: Rights,
) {
    let cluster = TestCluster::simulated(rights).await;
    let (tasks, second) = (TaskGroup::new(), TaskGroup::new());
    let port = start(&cluster, &tasks);
    let believed = bundle(&cluster, port).await;
    let client = believing(port, &believed);

    let denied = answer(&client, "validation", review("CREATE", &web(&json!([])))).await;
    assert_eq!(denied["response"]["uid"], "u1");
    assert_eq!(denied["response"]["status"]["code"], 422);
    let message = denied["response"]["status"]["message"].as_str().unwrap();
    let first = "create loadbalancer team-a/web failed: the load balancer needs at least one listener; ";
    assert!(message.starts_with(first), "{message}");
    assert!(
        message.contains("healthyCheck: port 8080 is not in the listener backend port list"),
        "{message}"
    );
    let completed = answer(&client, "mutation", review("CREATE", &web(&http()))).await;
    let response = &completed["response"];
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));

    for nonsense in
        ["", "[", "null", "{\"kind\": \"Pod\"}", "{\"kind\": \"AdmissionReview\", \"request\": 7}"]
    {
        assert_eq!(ask(&client, "validation", nonsense).await.0, 400, "{nonsense}");
    }
    assert_eq!(ask(&client, "mutation", vec![b' '; 9 << 20]).await.0, 413);
    assert_eq!(ask(&client, "conversion", "{}").await.0, 404);
    answer(&client, "validation", review("CREATE", &web(&http()))).await;

    // another replica takes the same certificates, and says where it is
    let secrets = [format!("harvester-system/{NAME}-ca"), format!("harvester-system/{NAME}-tls")];
    let versions = async || {
        let mut versions = Vec::new();
        for secret in &secrets {
            versions.push(cluster.harvester.get::<Secret>(secret).await.unwrap().metadata.resource_version);
        }
        versions
    };
    let before = versions().await;
    tasks.end().await;
    let port = start(&cluster, &second);
    assert_eq!(bundle(&cluster, port).await, believed);
    assert_eq!(versions().await, before);

    // certificates that are gone are made anew, and served in place
    for secret in &secrets {
        cluster.harvester.delete::<Secret>(secret).await;
    }
    for _ in 0..200 {
        if bundle(&cluster, port).await != believed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let renewed = bundle(&cluster, port).await;
    assert_ne!(renewed, believed);
    let client = believing(port, &renewed);
    answer(&client, "validation", review("CREATE", &web(&http()))).await;
    second.end().await;
}

fn balancers(client: Client) -> Api<DynamicObject> {
    Api::namespaced_with(client, "team-a", &ApiResource::erase::<LoadBalancer>(&()))
}

fn pools(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<IPPool>(&()))
}

fn object(json: Value) -> DynamicObject {
    serde_json::from_value(json).unwrap()
}

fn pool(name: &str, subnet: &str) -> DynamicObject {
    let scope = json!([{"namespace": "*", "project": "*", "guestCluster": "*"}]);
    object(
        json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool", "metadata": {"name": name},
        "spec": {"ranges": [{"subnet": subnet}], "selector": {"scope": scope}}}),
    )
}

fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> (u16, String) {
    match answer.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other}"),
    }
}

/// A webhook that the API server reaches and asks: without a socket where the server is simulated, on its paused clock.
pub(crate) async fn reachable(cluster: &TestCluster, tasks: &TaskGroup, status_writer: &str) {
    match cluster.harvester.simulated() {
        Some(server) => {
            let config = config(Address::Service, status_writer);
            let clock = Clock::starting_at(cluster.start());
            let (router, _) =
                prepare(cluster.harvester.client(User::Webhook), clock, config, tasks).await.unwrap();
            server.webhook("harvester-system", NAME, router);
            cluster.settle().await;
        }
        None => {
            let port = start_for(cluster, tasks, status_writer);
            bundle(cluster, port).await;
        }
    }
    // the API server asks us from the moment on when it has read its configuration
    let driver = balancers(cluster.harvester.client(User::Driver));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for _ in 0..100 {
        if driver.create(&dry_run, &object(web(&json!([])))).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the API server does not ask");
}

/// The API server asks no more.
pub(crate) async fn unregister(cluster: &TestCluster) {
    cluster.harvester.delete::<ValidatingWebhookConfiguration>(NAME).await;
    cluster.harvester.delete::<MutatingWebhookConfiguration>(NAME).await;
}

test_cluster::component_tests! {
    async fn the_api_server_judges_and_completes_as_we_say(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let (driver, controller) =
            (cluster.harvester.client(User::Driver), cluster.harvester.client(User::LoadBalancer));
        let post = PostParams::default();

        let answer = balancers(driver.clone()).create(&post, &object(web(&json!([])))).await;
        let (code, message) = refusal(answer);
        assert_eq!(code, 422, "{message}");
        assert!(
            message
                .contains("create loadbalancer team-a/web failed: the load balancer needs at least one listener"),
            "{message}"
        );

        // an object as the UI makes it, with a forged status
        let mut forged = web(&http());
        forged["status"] = json!({"allocatedAddress": {"ip": "203.0.113.1"}, "address": "203.0.113.1"});
        let made = balancers(driver.clone()).create(&post, &object(forged)).await.unwrap();
        assert_eq!(
            made.metadata.annotations.clone().unwrap()["loadbalancer.harvesterhci.io/namespace"],
            "team-a"
        );
        assert_eq!(
            made.data["spec"]["healthCheck"],
            json!({"port": 8080, "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1, "timeoutSeconds": 1})
        );
        assert!(made.data["status"].is_null(), "{}", made.data);

        // its controller gives it an address; a replace without status does not take it away
        let mut given = made.clone();
        let status =
            json!({"allocatedAddress": {"ip": "203.0.113.9", "ipPool": "edge"}, "address": "203.0.113.9"});
        given.data["status"] = status.clone();
        let given = balancers(controller.clone()).replace("web", &post, &given).await.unwrap();
        assert_eq!(given.data["status"], status);
        let mut wiped = given.clone();
        wiped.data.as_object_mut().unwrap().remove("status");
        let kept = balancers(driver.clone()).replace("web", &post, &wiped).await.unwrap();
        assert_eq!(kept.data["status"], status);
        let change = Patch::Merge(json!({"spec": {"ipam": "pool"}}));
        let (code, message) =
            refusal(balancers(driver.clone()).patch("web", &PatchParams::default(), &change).await);
        assert_eq!(code, 422);
        assert!(message.contains("can't change the IPAM from dhcp to pool"), "{message}");

        // pools: labels, overlap, the record
        let made = pools(driver.clone()).create(&post, &pool("edge", "203.0.113.0/24")).await.unwrap();
        assert_eq!(made.metadata.labels.clone().unwrap()["loadbalancer.harvesterhci.io/global-ip-pool"], "true");
        let (code, message) =
            refusal(pools(driver.clone()).create(&post, &pool("other", "203.0.113.128/25")).await);
        assert_eq!(code, 422);
        assert!(
            message.contains("can't create IP pool other because the ranges overlap with other pools"),
            "{message}"
        );
        assert!(message.contains("; there is already a global IP pool: edge"), "{message}");
        let mut recorded = made;
        let record = json!({"total": 253, "available": 252, "lastAllocated": "203.0.113.9", "allocated": {"203.0.113.9": "team-a/web"}});
        recorded.data["status"] = record.clone();
        let mut robbed = pools(controller).replace("edge", &post, &recorded).await.unwrap();
        robbed.data["status"]["allocated"]["203.0.113.9"] = "evil/lb".into();
        let kept = pools(driver.clone()).replace("edge", &post, &robbed).await.unwrap();
        assert_eq!(kept.data["status"], record);
        let (code, message) = refusal(pools(driver).delete("edge", &Default::default()).await);
        assert_eq!(code, 403);
        assert!(
            message.contains("can't delete IP pool edge because can't delete pool before releasing"),
            "{message}"
        );
        tasks.end().await;
        unregister(&cluster).await;
    }

    async fn who_made_a_record_is_known_after_a_replace_without_status(cluster: TestCluster) {
        // addresses.md 8: providers of Cluster API hold addresses for machines, which nobody else may release
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let (driver, controller) =
            (pools(cluster.harvester.client(User::Driver)), pools(cluster.harvester.client(User::LoadBalancer)));
        let by = |manager: &str| PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let makers = |pool: &DynamicObject| {
            let pool: IPPool = serde_json::from_value(serde_json::to_value(pool).unwrap()).unwrap();
            ["203.0.113.9", "203.0.113.10"].map(|address| managers::foreign(&pool, address))
        };
        let expected = [None, Some("capi".to_owned())];

        let mut pool = driver.create(&by("kubectl"), &pool("edge", "203.0.113.0/24")).await.unwrap();
        pool.data["status"] = json!({"total": 253, "available": 252, "lastAllocated": "203.0.113.9",
            "allocated": {"203.0.113.9": "team-a/web"}});
        let mut pool = controller.replace("edge", &by(managers::OURS), &pool).await.unwrap();
        pool.data["status"]["allocated"]["203.0.113.10"] = "machines/node-1".into();
        let pool = driver.replace("edge", &by("capi"), &pool).await.unwrap();
        assert_eq!(makers(&pool), expected);
        let status = pool.data["status"].clone();

        let mut wiped = pool.clone();
        wiped.data.as_object_mut().unwrap().remove("status");
        wiped.metadata.managed_fields = None;
        let kept = driver.replace("edge", &by("kubectl-replace"), &wiped).await.unwrap();
        assert_eq!((&kept.data["status"], makers(&kept)), (&status, expected.clone()));
        // nor does who tries to take one become its maker, who might remove it
        let mut robbed = kept.clone();
        for address in ["203.0.113.9", "203.0.113.10"] {
            robbed.data["status"]["allocated"][address] = "evil/lb".into();
        }
        let kept = driver.replace("edge", &by("evil"), &robbed).await.unwrap();
        assert_eq!((&kept.data["status"], makers(&kept)), (&status, expected));
        // what the other made, it may remove, and nothing else
        let mut removed = kept;
        removed.data["status"]["allocated"] = json!({});
        let left = driver.replace("edge", &by("capi"), &removed).await.unwrap();
        assert_eq!(left.data["status"]["allocated"], json!({"203.0.113.9": "team-a/web"}));
        tasks.end().await;
        unregister(&cluster).await;
    }

    #[simulated_only("the patience of the sweep is half a minute")]
    async fn a_foreign_record_outlives_a_replace_without_status_and_a_restart(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let running = stage::controller(&cluster).await;
        stage::pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        let foreign = json!({"status": {"allocated": {"192.0.2.19": "machines/node-1"}}});
        cluster.harvester.patch::<IPPool>("edge", foreign).await;
        let pools = pools(cluster.harvester.client(User::Driver));
        let mut wiped = pools.get("edge").await.unwrap();
        wiped.data.as_object_mut().unwrap().remove("status");
        wiped.metadata.managed_fields = None;
        pools.replace("edge", &PostParams::default(), &wiped).await.unwrap();
        running.stop().await;
        let _again = stage::Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(300)).await;
        assert_eq!(stage::record_of(&cluster, "edge").await.allocated["192.0.2.19"], "machines/node-1");
        tasks.end().await;
        unregister(&cluster).await;
    }
}
