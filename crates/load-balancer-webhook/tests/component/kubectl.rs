//! An unmodified kubectl, with the webhook behind both API servers.

use harvester_api::{IPPool, LoadBalancer, annotations};
use kube::ResourceExt as _;
use kube::api::PostParams;
use outside_tools::kubectl::Kubectl;
use program::TaskGroup;
use serde_json::{Value, json};
use test_cluster::{Side, TestCluster, User};
use tokio::net::TcpListener;

use super::conversion::converting;
use super::fixtures::{WRITER, load_balancers, pools, reachable, unregister};

const POOL: &str = "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: edge}
spec:
  quarantineSeconds: 60
  quota: [{namespace: team-a, max: 5}]
  ranges:
  - {subnet: 203.0.113.0/25}
  - {subnet: 203.0.113.128/25, drain: true}
  - {subnet: 'fd00:6::/64'}
  selector: {scope: [{project: '*', namespace: '*', guestCluster: '*'}]}
";
/// With a health check of which the webhook fills in the rest.
const WEB: &str = "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: web}
spec:
  workloadType: vm
  ipPool: edge
  listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]
  backendServerSelector: {app: [web]}
  healthCheck: {port: 8080, path: /healthz, scheme: HTTPS}
";
const TWO: &str = "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: two}
spec:
  workloadType: cluster
  ipPool: edge
  ipv6Pool: edge
  ipFamilyPolicy: RequireDualStack
  listeners: [{name: http, port: 80, protocol: TCP, backendPort: 30080}]
";

/// Files, and what kubectl calls the objects in them.
const FILES: [(&str, &str, &str); 3] = [
    ("pool.yaml", "ippool.loadbalancer.harvesterhci.io/edge", POOL),
    ("web.yaml", "loadbalancer.loadbalancer.harvesterhci.io/web", WEB),
    ("two.yaml", "loadbalancer.loadbalancer.harvesterhci.io/two", TWO),
];

/// Makes kubectl the administrator of Harvester.
async fn connect(kubectl: &Kubectl, cluster: &TestCluster) {
    let account = User::Driver.account(Side::Harvester, cluster.guest_cluster());
    let kubeconfig = match (cluster.harvester.simulated(), cluster.harvester.real()) {
        (Some(server), _) => {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let kubeconfig = server.kubeconfig(account, listener.local_addr().unwrap());
            let server = server.clone();
            tokio::spawn(async move { server.serve(listener).await });
            // kubectl does not know the paused clock
            tokio::time::resume();
            kubeconfig
        }
        (None, server) => server.unwrap().kubeconfig(&account.name, "team-a"),
    };
    kubectl.file("kubeconfig", &kubeconfig);
}

/// What the load balancer writes: addresses, a record, a history and a rest.
async fn serve(cluster: &TestCluster) {
    let (client, post) = (cluster.harvester.client(User::LoadBalancer), PostParams::default());
    let mut pool = pools(client.clone()).get("edge").await.unwrap();
    let rests = json!({"203.0.113.20": "2100-01-01T00:00:00Z"}).to_string();
    pool.annotations_mut().insert(annotations::QUARANTINE.to_owned(), rests);
    pool.data["status"] = json!({"total": 500, "available": 497, "lastAllocated": "203.0.113.10",
        "allocated": {"203.0.113.9": "team-a/web", "203.0.113.10": "team-a/two", "fd00:6::10": "team-a/two"},
        "allocatedHistory": {"203.0.113.20": "team-a/former"}});
    pools(client.clone()).replace("edge", &post, &pool).await.unwrap();
    let statuses = [
        (
            "web",
            json!({"address": "203.0.113.9", "allocatedAddress": {"ipPool": "edge", "ip": "203.0.113.9"}}),
        ),
        (
            "two",
            json!({"address": "203.0.113.10", "addresses": ["203.0.113.10", "fd00:6::10"], "allocatedAddress": {
                "ipPool": "edge", "ip": "203.0.113.10", "ipv6Pool": "edge", "ipv6IP": "fd00:6::10"}}),
        ),
    ];
    for (name, status) in statuses {
        let api = load_balancers(client.clone());
        let mut balancer = api.get(name).await.unwrap();
        balancer.data["status"] = status;
        api.replace(name, &post, &balancer).await.unwrap();
    }
}

/// All that nobody but the load balancer may change.
async fn served(cluster: &TestCluster) -> Value {
    let pool = cluster.harvester.get::<IPPool>("edge").await.unwrap();
    let status = async |name: &str| {
        let balancer = cluster.harvester.get::<LoadBalancer>(&format!("team-a/{name}")).await.unwrap();
        serde_json::to_value(balancer.status).unwrap()
    };
    json!({"rests": pool.annotations().get(annotations::QUARANTINE), "pool": pool.status,
        "web": status("web").await, "two": status("two").await})
}

test_cluster::component_tests! {
    async fn kubectl_applies_replaces_and_edits_load_balancers_and_pools(cluster: TestCluster) {
        let Some(kubectl) = Kubectl::find("team-a") else { return };
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        converting(&cluster).await;
        connect(&kubectl, &cluster).await;
        for (file, name, content) in FILES {
            kubectl.file(file, content);
            assert_eq!(kubectl.works(&format!("apply -f {file}")).await, format!("{name} created\n"));
        }
        serve(&cluster).await;
        let before = served(&cluster).await;
        assert_eq!(before["two"]["addresses"], json!(["203.0.113.10", "fd00:6::10"]));

        // docs/contract/load-balancer.md#LB-20, #IP-16: in the Go programs a replace loses the address and the record
        let verbs = [
            ("apply", "unchanged"),
            ("apply", "unchanged"),
            ("apply --server-side", "serverside-applied"),
            ("apply --server-side", "serverside-applied"),
            ("replace", "replaced"),
            ("replace", "replaced"),
        ];
        for (verb, outcome) in verbs {
            for (file, name, _) in FILES {
                let said = kubectl.works(&format!("{verb} -f {file}")).await;
                assert_eq!(said, format!("{name} {outcome}\n"), "{verb}");
            }
            assert_eq!(served(&cluster).await, before, "{verb}");
        }

        // a refusal is shown with its sentence, and what was typed is there to be mended
        let edits = [
            ("loadbalancer web", "path: /healthz", "path: healthz", "path: /ready", "healthyCheck: "),
            ("ippool edge", "quarantineSeconds: 60", "quarantineSeconds: -60", "quarantineSeconds: 90",
                "spec.quarantineSeconds -60 is outside of"),
        ];
        for (object, from, wrong, right, sentence) in edits {
            kubectl.editor(from, wrong, right);
            kubectl.works(&format!("edit {object}")).await;
            let told = kubectl.told();
            assert!(told.lines().any(|line| line.starts_with("# * ") && line.contains(sentence)), "{told}");
            assert!(told.contains(wrong), "{told}");
            let stored = kubectl.works(&format!("get {object} -o yaml")).await;
            assert!(stored.contains(right), "{stored}");
        }
        assert_eq!(served(&cluster).await, before, "edit");
        kubectl.file("bad.yaml", &WEB.replace("/healthz", "healthz"));
        for verb in ["apply", "apply --server-side --force-conflicts", "replace"] {
            let said = kubectl.fails(&format!("{verb} -f bad.yaml")).await;
            assert!(said.contains("update loadbalancer team-a/web failed: healthyCheck: "), "{said}");
        }

        // docs/contract/load-balancer.md#9.5
        for (version, is_it) in [("v1beta1", "workloadType"), ("v1alpha1", "PeriodSeconds")] {
            let path = format!("/apis/loadbalancer.harvesterhci.io/{version}/namespaces/team-a/loadbalancers");
            // it warns of a version that is deprecated, after the list
            let said = kubectl.works(&format!("get --raw {path}")).await;
            let list = serde_json::Deserializer::from_str(&said).into_iter::<Value>().next().unwrap().unwrap();
            let items = list["items"].as_array().unwrap();
            let addresses: Vec<_> = items.iter().map(|item| &item["status"]["address"]).collect();
            assert_eq!(addresses, ["203.0.113.10", "203.0.113.9"], "{version}");
            assert!(items[1]["spec"].to_string().contains(is_it), "{version}");
        }
        tasks.end().await;
        unregister(&cluster).await;
    }
}
