//! `doctor` from outside: of twenty things and more that are broken in turn, exactly the line about each turns red (or amber, for
//! what goes on without), and none stays so when it is mended. [`faults`] breaks every id of `doctor --list`, or says why not.
//! Those of volumes are left out where VMs have no insides (docs/sandbox.md).

mod faults;
mod front;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use http::{Method, Request, header};
use kube::{Client, Config, config::Kubeconfig};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Sandbox, TURN, binary};

/// So long is `doctor` asked until it says what is expected: a Lease is given back, an agent falls silent, and a Service waits
/// when it has had no address for a minute.
const ASKED_FOR: Duration = Duration::from_secs(150);
const NAMESPACE: &str = "default";
const CSI_DRIVER: &str = "driver.harvesterhci.io";

const NODES: &str = "/api/v1/nodes";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/kube-system/deployments";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets";
const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

/// One is carried by the guest, as one without health check is. The others ask for a lease, and for a pool that is not there, as soon
/// as they are of type LoadBalancer, and will be old enough by then to have an address.
const GUEST: &str = "
{apiVersion: v1, kind: Service, metadata: {name: plain}, spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: leased, annotations: {cloudprovider.harvesterhci.io/ipam: dhcp}},
 spec: {type: ClusterIP, selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: waiting, annotations: {cloudprovider.harvesterhci.io/ip-pool: nowhere}},
 spec: {type: ClusterIP, selector: {app: web}, ports: [{port: 80}]}}
";
/// Three addresses.
const HARVESTER: &str = "
{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: lab},
 spec: {ranges: [{subnet: 198.19.251.0/24, rangeStart: 198.19.251.2, rangeEnd: 198.19.251.4}],
  selector: {scope: [{namespace: default, project: \"*\", guestCluster: demo}]}}}
";

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Guest,
    Harvester,
}
use Side::{Guest, Harvester};

/// A way to break something, which [`World::do_it`] carries out and reverses.
enum Fault {
    /// `doctor` gets other arguments.
    Arguments(Vec<String>),
    /// A merge patch.
    Patch(Side, String, Value),
    /// In this collection.
    Create(Side, &'static str, Value),
    Delete(Side, String),
    /// The same of an object that its owner makes again.
    Lose(Side, String),
    /// SIGTERM for a part of the sandbox.
    Stop(&'static str),
    Several(Vec<Fault>),
}

/// What mends a fault.
enum Mend {
    Nothing,
    Patch(Side, String, Value),
    Create(Side, String, Value),
    Delete(Side, String),
    Start(&'static str),
    Several(Vec<Mend>),
}

/// The running sandbox, and what this test started in it.
struct World {
    folder: PathBuf,
    guest: Client,
    harvester: Client,
    started: Vec<Child>,
    // the last to be dropped
    _sandbox: Sandbox,
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.started {
            // it may have ended
            child.kill().ok();
            child.wait().ok();
        }
    }
}

async fn client(file: &Path) -> Client {
    let config = Kubeconfig::read_from(file).unwrap();
    Client::try_from(Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap()).unwrap()
}

/// The patch that takes `patch` back where it was applied to `former`.
fn reverse(patch: &Value, former: &Value) -> Value {
    match (patch, former) {
        (Value::Object(fields), Value::Object(_)) => {
            fields.iter().map(|(key, value)| (key.clone(), reverse(value, &former[key]))).collect()
        }
        _ => former.clone(),
    }
}

impl World {
    async fn start(folder: &Path) -> Self {
        fs::write(folder.join("guest.yaml"), GUEST).unwrap();
        fs::write(folder.join("harvester.yaml"), HARVESTER).unwrap();
        let manifests = ["--guest-manifest", "guest.yaml", "--harvester-manifest", "harvester.yaml"];
        let sandbox = Sandbox::start_with(folder, "sim", &manifests);
        let folder = folder.join("target/sandbox");
        let guest = client(&folder.join("guest.kubeconfig")).await;
        let harvester = client(&folder.join("harvester.kubeconfig")).await;
        let world = Self { folder, guest, harvester, started: Vec::new(), _sandbox: sandbox };
        world.furnish().await;
        world
    }

    /// What the cloud provider's chart and an administrator bring: its workload, and more rights for the cloud-config.
    async fn furnish(&self) {
        // the one of the cloud-config, which the sandbox knows by a token alone
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "harvester-cloud-provider-demo"}});
        self.create(Harvester, "/api/v1/namespaces/default/serviceaccounts", &account).await;
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "pools"},
            "rules": [{"apiGroups": ["loadbalancer.harvesterhci.io"], "resources": ["ippools"], "verbs": ["list"]}]});
        self.create(Harvester, "/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
        for role in ["pools", "harvesterhci.io:csi-driver"] {
            let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": format!("doctor-{role}")},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": "harvester-cloud-provider-demo"}]});
            self.create(Harvester, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await;
        }
        self.create(Guest, DEPLOYMENTS, &workload("Deployment", "provider", "harvester-cloud-provider:1"))
            .await;
        if self.has_storage().await {
            // for faults in the use of volumes
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
            self.create(Guest, "/api/v1/namespaces/default/persistentvolumeclaims", &claim).await;
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "with-volume"}, "spec": {
                "containers": [{"name": "main", "image": "pause:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}});
            self.create(Guest, "/api/v1/namespaces/default/pods", &pod).await;
            self.attached().await;
        }
    }

    /// Waits until the volume is attached: its machine is one of the things to break.
    async fn attached(&self) {
        let begun = Instant::now();
        while begun.elapsed() < ASKED_FOR {
            let attachments = self.send(Guest, Method::GET, ATTACHMENTS, None).await;
            if attachments["items"][0]["status"]["attached"] == true {
                return;
            }
            self.findings(&[]);
        }
        panic!("the volume is not attached");
    }

    /// Whether this computer lets VMs have insides, in which the CSI driver runs.
    async fn has_storage(&self) -> bool {
        let nodes = self.send(Guest, Method::GET, CSI_NODES, None).await;
        nodes["items"].as_array().is_some_and(|nodes| !nodes.is_empty())
    }

    /// The address of Service `plain`, when it has one.
    async fn address(&self) -> String {
        let begun = Instant::now();
        while begun.elapsed() < ASKED_FOR {
            let plain = self.send(Guest, Method::GET, &format!("{SERVICES}/plain"), None).await;
            if let Some(address) = plain["status"]["loadBalancer"]["ingress"][0]["ip"].as_str() {
                return address.to_owned();
            }
            self.findings(&[]);
        }
        panic!("Service plain gets no address");
    }

    async fn send(&self, side: Side, method: Method, path: &str, body: Option<&Value>) -> Value {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(&method).uri(path).header(header::CONTENT_TYPE, kind);
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let client = if side == Guest { &self.guest } else { &self.harvester };
        let answer = client.request::<Value>(request.body(body).unwrap()).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    async fn create(&self, side: Side, path: &str, object: &Value) {
        self.send(side, Method::POST, path, Some(object)).await;
    }

    /// The process of a part, and the words that start it again.
    fn part(&self, name: &str) -> (u64, Vec<String>) {
        let text = fs::read_to_string(self.folder.join("endpoints.json")).unwrap();
        let endpoints: Value = serde_json::from_str(&text).unwrap();
        let part = endpoints["parts"].as_array().unwrap().iter().find(|part| part["name"] == name).unwrap();
        (part["pid"].as_u64().unwrap(), serde_json::from_value(part["command"].clone()).unwrap())
    }

    /// Breaks it; answers the arguments for `doctor`, and what mends it.
    async fn do_it(&mut self, fault: &Fault) -> (Vec<String>, Mend) {
        match fault {
            Fault::Arguments(arguments) => (arguments.clone(), Mend::Nothing),
            Fault::Patch(side, path, patch) => {
                let former = self.send(*side, Method::GET, path, None).await;
                self.send(*side, Method::PATCH, path, Some(patch)).await;
                (Vec::new(), Mend::Patch(*side, path.clone(), reverse(patch, &former)))
            }
            Fault::Create(side, path, object) => {
                self.create(*side, path, object).await;
                let name = object["metadata"]["name"].as_str().unwrap();
                (Vec::new(), Mend::Delete(*side, format!("{path}/{name}")))
            }
            Fault::Delete(side, path) => {
                let mut former = self.send(*side, Method::GET, path, None).await;
                for field in ["resourceVersion", "uid", "creationTimestamp", "managedFields", "generation"] {
                    former["metadata"].as_object_mut().unwrap().remove(field);
                }
                self.send(*side, Method::DELETE, path, None).await;
                let (collection, _) = path.rsplit_once('/').unwrap();
                (Vec::new(), Mend::Create(*side, collection.to_owned(), former))
            }
            Fault::Lose(side, path) => {
                self.send(*side, Method::DELETE, path, None).await;
                (Vec::new(), Mend::Nothing)
            }
            Fault::Stop(part) => {
                let (pid, _) = self.part(part);
                let told = Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
                assert!(told.success(), "{part} does not run");
                (Vec::new(), Mend::Start(part))
            }
            Fault::Several(faults) => {
                let (mut arguments, mut mends) = (Vec::new(), Vec::new());
                for fault in faults {
                    let (more, mend) = Box::pin(self.do_it(fault)).await;
                    arguments.extend(more);
                    mends.insert(0, mend);
                }
                (arguments, Mend::Several(mends))
            }
        }
    }

    async fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Nothing => {}
            Mend::Patch(side, path, patch) => drop(self.send(side, Method::PATCH, &path, Some(&patch)).await),
            Mend::Create(side, path, object) => self.create(side, &path, &object).await,
            Mend::Delete(side, path) => drop(self.send(side, Method::DELETE, &path, None).await),
            Mend::Start(part) => {
                let (_, words) = self.part(part);
                let log =
                    fs::File::options().append(true).open(self.folder.join(format!("{part}.log"))).unwrap();
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
                self.started.push(command.spawn().unwrap());
            }
            Mend::Several(mends) => {
                for mend in mends {
                    Box::pin(self.mend(mend)).await;
                }
            }
        }
    }

    /// A copy of a file of the sandbox, changed.
    fn copy(&self, file: &str, name: &str, change: impl FnOnce(&mut Value)) -> String {
        let text = fs::read_to_string(self.folder.join(file)).unwrap();
        let mut config: Value = serde_saphyr::from_str(&text).unwrap();
        change(&mut config);
        let copy = self.folder.join(format!("copy-{name}"));
        fs::write(&copy, config.to_string()).unwrap();
        copy.display().to_string()
    }

    /// What `doctor` says.
    fn findings(&self, arguments: &[String]) -> Vec<Value> {
        let mut command = Command::new(binary());
        command.args(["doctor", "--output", "json"]).current_dir(&self.folder).env_remove("KUBECONFIG");
        for (flag, file) in [("--kubeconfig", "guest.kubeconfig"), ("--cloud-config", "cloud-config")] {
            if !arguments.iter().any(|argument| argument == flag) {
                command.args([flag, file]);
            }
        }
        let told = command.args(arguments).output().unwrap();
        let findings: Vec<Value> =
            serde_json::from_slice(&told.stdout).unwrap_or_else(|error| panic!("{error}: {told:?}"));
        let is_red = findings.iter().any(|finding| finding["verdict"] == "red");
        assert_eq!(told.status.code(), Some(i32::from(is_red)), "{told:?}");
        findings
    }

    /// The lines that are red, and those that are amber.
    fn seen(&self, arguments: &[String]) -> Seen {
        Seen::of(&self.findings(arguments))
    }

    /// Asks until just this is seen, or in vain: then the last findings.
    fn expect(&self, expected: &Expected<'_>, arguments: &[String]) -> Result<(), Vec<Value>> {
        let (mut last, begun) = (Vec::new(), Instant::now());
        while begun.elapsed() < ASKED_FOR {
            last = self.findings(arguments);
            if expected.is_met(&Seen::of(&last)) {
                let told = last
                    .iter()
                    .filter(|finding| ["red", "amber"].map(Into::into).contains(&finding["verdict"]));
                assert!(told.clone().all(|finding| finding["mend"].is_string()), "{last:#?}");
                return Ok(());
            }
        }
        last.retain(|finding| finding["verdict"] != "green");
        Err(last)
    }
}

/// Ids of lines.
#[derive(Debug, PartialEq)]
struct Seen {
    red: BTreeSet<String>,
    amber: BTreeSet<String>,
}

impl Seen {
    fn of(findings: &[Value]) -> Self {
        let of = |verdict: &str| {
            let found = findings.iter().filter(|finding| finding["verdict"] == verdict);
            found.map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
        };
        Self { red: of("red"), amber: of("amber") }
    }
}

/// What is to be seen.
enum Expected<'a> {
    /// Nothing red.
    Sound,
    /// What was seen before.
    Mended(&'a Seen),
    /// This line is red besides; what is amber counts for nothing, as more is not asked.
    Red(&'a Seen, &'a str),
    /// This line is amber besides.
    Amber(&'a Seen, &'a str),
}

impl Expected<'_> {
    fn is_met(&self, seen: &Seen) -> bool {
        let and = |before: &BTreeSet<String>, id: &str| {
            let mut more = before.clone();
            more.insert(id.to_owned());
            more
        };
        match self {
            Self::Sound => seen.red.is_empty(),
            Self::Mended(before) => seen == *before,
            Self::Red(before, id) => seen.red == and(&before.red, id),
            Self::Amber(before, id) => seen.red == before.red && seen.amber == and(&before.amber, id),
        }
    }
}

/// Something that is broken, with the id of its line.
struct Broken {
    id: &'static str,
    /// It is amber, not red.
    goes_on: bool,
    /// Further arguments of `doctor`, also while nothing is broken.
    occasion: &'static [&'static str],
    fault: Fault,
}

fn workload(kind: &str, name: &str, image: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "main", "image": image}]}}}})
}

async fn of_everything_that_is_broken_in_turn_exactly_its_line_turns_red() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::start(folder.path()).await;
    let sound = world.expect(&Expected::Sound, &[]);
    assert!(sound.is_ok(), "red before anything is broken: {sound:#?}");
    let all = faults::all(&world).await;
    faults::assert_complete(&all, world.has_storage().await);
    // once: a Service of the fault before may be on its way out
    let occasions: BTreeSet<_> = all.iter().map(|broken| broken.occasion).collect();
    let of = |occasion: &[&str]| occasion.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>();
    let sound: BTreeMap<_, _> =
        occasions.into_iter().map(|occasion| (occasion, world.seen(&of(occasion)))).collect();
    let mut wrong = Vec::new();
    for Broken { id, goes_on, occasion, fault } in all {
        let (before, occasion) = (&sound[occasion], of(occasion));
        let (mut arguments, mend) = world.do_it(&fault).await;
        arguments.extend(occasion.iter().cloned());
        let expected = if goes_on { Expected::Amber(before, id) } else { Expected::Red(before, id) };
        if let Err(findings) = world.expect(&expected, &arguments) {
            wrong.push(format!("{id} is broken: {findings:#?}"));
        }
        world.mend(mend).await;
        if let Err(findings) = world.expect(&Expected::Mended(before), &occasion) {
            wrong.push(format!("{id} is mended: {findings:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    after_a_rotation(&world).await;
}

/// The token of the cloud-config that somebody gave has ended, and the leader keeps a newer one in the guest cluster.
async fn after_a_rotation(world: &World) {
    let tokens = "/api/v1/namespaces/default/serviceaccounts/harvester-cloud-provider-demo/token";
    let question = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
    let fresh = world.send(Harvester, Method::POST, tokens, Some(&question)).await["status"]["token"].clone();
    // {"alg":"none"}. with exp 1, bound to harvester-cloud-provider-demo-credentials
    let ended = faults::ENDED;
    let given =
        world.copy("cloud-config", "given", |config| config["users"][0]["user"] = json!({ "token": ended }));
    let arguments = ["--cloud-config".to_owned(), given.clone()];
    assert_eq!(world.seen(&arguments).red, ["credential-life".to_owned()].into());
    let text = fs::read_to_string(&given).unwrap();
    let told = Command::new("sha256sum").arg(&given).output().unwrap();
    let sum = String::from_utf8(told.stdout).unwrap();
    let copy = format!("# made from sha256:{}\n{}", &sum[..64], text.replace(ended, fresh.as_str().unwrap()));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"cloud-config": copy},
        "metadata": {"name": "harvester-cloud-provider-rotated", "namespace": "kube-system"}});
    world.create(Guest, "/api/v1/namespaces/kube-system/secrets", &secret).await;
    let findings = world.findings(&arguments);
    assert_eq!(Seen::of(&findings).red, BTreeSet::new(), "{findings:#?}");
    let config = findings.iter().find(|finding| finding["id"] == "cloud-config").unwrap();
    assert!(config["sentence"].as_str().unwrap().contains("has a newer token"), "{config}");
}

mod simulated {
    #[test]
    fn of_everything_that_is_broken_in_turn_exactly_its_line_turns_red() {
        let _turn = super::TURN.lock().unwrap_or_else(|broken| broken.into_inner());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(super::of_everything_that_is_broken_in_turn_exactly_its_line_turns_red());
    }
}
