//! `doctor` from outside: of twenty things and more that are broken in turn, exactly the line about each turns red, and
//! none stays red when it is mended.
//!
//! Three ids cannot be broken here: `guest-version` and `clock` are the servers' own, and `dhcp` waits for a minute that no
//! test waits for. Those of volumes are left out where VMs have no insides (docs/sandbox.md).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use http::{Method, Request, header};
use kube::{Client, Config, config::Kubeconfig};
use serde_json::{Value, json};

use super::{Sandbox, TURN, binary};

/// So often is `doctor` asked until it says what is expected: a Lease is given back, an agent falls silent.
const ASKED_AT_MOST: usize = 400;
const NAMESPACE: &str = "default";
const CSI_DRIVER: &str = "driver.harvesterhci.io";

const BALANCERS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/default/loadbalancers";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/loadbalancers.loadbalancer.harvesterhci.io";
const OF_PROVIDER: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/harvesterhci.io:cloudprovider";
const OF_WEBHOOK: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/harvester-load-balancer-webhook";
const BINDING: &str =
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/harvester-cloud-provider-demo";
const SETTING: &str = "/apis/harvesterhci.io/v1beta1/settings/server-version";
const MACHINE: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/demo-1";
const NODES: &str = "/api/v1/nodes";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/kube-system/deployments";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets";
const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
const CSI_LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/harvester-csi-attach";
const OF_CSI: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/harvester-csi-driver";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// Two Services: one is carried by the guest, as one without health check is.
const GUEST: &str = "
{apiVersion: v1, kind: Service, metadata: {name: plain}, spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}}
";
/// So many addresses, and one more.
const HARVESTER: &str = "
{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: lab},
 spec: {ranges: [{subnet: 198.19.251.0/24, rangeStart: 198.19.251.2, rangeEnd: 198.19.251.3}],
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

    /// What charts and an administrator bring: the workloads' objects, and more rights for the cloud-config.
    async fn furnish(&self) {
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
            let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": CSI_DRIVER},
                "spec": {}});
            self.create(Guest, CSI_DRIVERS, &driver).await;
            self.create(Guest, DAEMON_SETS, &workload("DaemonSet", "driver", "harvester-csi-driver:1")).await;
            // a driver that was called leads
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
            self.create(Guest, "/api/v1/namespaces/default/persistentvolumeclaims", &claim).await;
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "with-volume"}, "spec": {
                "containers": [{"name": "main", "image": "pause:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}});
            self.create(Guest, "/api/v1/namespaces/default/pods", &pod).await;
        }
    }

    /// Whether this computer lets VMs have insides, in which the CSI driver runs.
    async fn has_storage(&self) -> bool {
        let nodes = self.send(Guest, Method::GET, CSI_NODES, None).await;
        nodes["items"].as_array().is_some_and(|nodes| !nodes.is_empty())
    }

    /// The address of Service `plain`, when it has one.
    async fn address(&self) -> String {
        for _ in 0..ASKED_AT_MOST {
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

    /// Asks until these ids are red and no other one, or in vain: then the last findings.
    fn expect(&self, ids: &[&str], arguments: &[String]) -> Result<(), Vec<Value>> {
        let mut last = Vec::new();
        for _ in 0..ASKED_AT_MOST {
            last = self.findings(arguments);
            let red: Vec<_> = last.iter().filter(|finding| finding["verdict"] == "red").collect();
            if red.iter().map(|finding| finding["id"].as_str().unwrap()).eq(ids.iter().copied()) {
                assert!(red.iter().all(|finding| finding["mend"].is_string()), "{red:?}");
                return Ok(());
            }
        }
        last.retain(|finding| finding["verdict"] != "green");
        Err(last)
    }
}

fn workload(kind: &str, name: &str, image: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "main", "image": image}]}}}})
}

/// The rules of a role, changed.
async fn rules(world: &World, path: &str, change: impl Fn(&mut Value)) -> Fault {
    let mut rules = world.send(Harvester, Method::GET, path, None).await["rules"].clone();
    rules.as_array_mut().unwrap().iter_mut().for_each(change);
    Fault::Patch(Harvester, path.to_owned(), json!({ "rules": rules }))
}

/// Takes a verb on a resource out of a rule.
fn without<'a>(verb: &'a str, resource: &'a str) -> impl Fn(&mut Value) + 'a {
    move |rule| {
        if rule["resources"].as_array().unwrap().iter().any(|it| it == resource) {
            let all = ["get", "list", "watch", "create", "update", "patch", "delete"];
            rule["verbs"] = all.into_iter().filter(|it| *it != verb).collect();
        }
    }
}

/// Everything that is broken, with the id of its line.
async fn faults(world: &World) -> Vec<(&'static str, Fault)> {
    let arguments = |flag: &str, file: String| Fault::Arguments(vec![flag.to_owned(), file]);
    let config = |name: &str, change: &dyn Fn(&mut Value)| {
        arguments("--cloud-config", world.copy("cloud-config", name, |config| change(config)))
    };
    let server =
        |config: &mut Value| config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    let token = |token: &'static str| {
        move |config: &mut Value| config["users"][0]["user"] = json!({ "token": token })
    };
    let authority = fs::read_to_string(world.folder.join("guest.kubeconfig")).unwrap();
    let authority: Value = serde_saphyr::from_str(&authority).unwrap();
    let authority = authority["clusters"][0]["cluster"]["certificate-authority-data"].clone();
    let of_others = world.copy("harvester.kubeconfig", "of-others", |config| {
        config["contexts"][0]["context"]["namespace"] = json!("harvester-system");
    });
    let node = world.send(Guest, Method::GET, &format!("{NODES}/demo-1"), None).await;
    let machine = node["spec"]["providerID"].as_str().unwrap().to_owned();
    assert!(machine.starts_with("harvester://"), "{machine}");
    let address = world.address().await;
    let kubernetes = world.send(Guest, Method::GET, &format!("{SERVICES}/kubernetes"), None).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "last", "namespace": NAMESPACE},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let lost = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "lost"}, "spec": {"taints": [
        {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]}});
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "wrong"},
        "provisioner": CSI_DRIVER, "parameters": {"hostStorageClass": "nowhere"}});
    let left = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "left", "namespace": NAMESPACE,
            "annotations": {"cloudprovider.harvesterhci.io/cluster-uid": kubernetes["metadata"]["uid"]},
            "labels": {"cloudprovider.harvesterhci.io/cluster": "demo",
                "cloudprovider.harvesterhci.io/serviceNamespace": NAMESPACE,
                "cloudprovider.harvesterhci.io/serviceName": "gone"}},
        "spec": {"workloadType": "cluster", "ipam": "dhcp"}});
    let elsewhere = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/convert", "service": null}}}}});
    let mut versions = world.send(Harvester, Method::GET, DEFINITION, None).await["spec"]["versions"].clone();
    let current = versions.as_array_mut().unwrap().iter_mut().find(|version| version["name"] == "v1beta1");
    current.unwrap()["served"] = json!(false);
    // it would mend the definition
    let none_of_webhook = Fault::Patch(Harvester, OF_WEBHOOK.to_owned(), json!({"rules": []}));
    let none_of_csi = Fault::Patch(Guest, OF_CSI.to_owned(), json!({"rules": []}));
    // its Pods wait for a volume
    let mut unready = workload("DaemonSet", "kube-vip", "kube-vip:1");
    unready["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "none", "persistentVolumeClaim": {"claimName": "nowhere"}}]);
    let mut faults = vec![
        ("guest-api", arguments("--kubeconfig", world.copy("guest.kubeconfig", "guest", server))),
        ("cloud-config", arguments("--cloud-config", "nowhere".to_owned())),
        ("harvester-endpoint", config("endpoint", &server)),
        (
            "harvester-ca",
            config("ca", &|config| {
                config["clusters"][0]["cluster"]["certificate-authority-data"] = authority.clone();
            }),
        ),
        // {"alg":"none"}.{"exp":1}
        ("credential-life", config("life", &token("eyJhbGciOiJub25lIn0.eyJleHAiOjF9.c2ln"))),
        ("harvester-login", config("login", &token("revoked"))),
        (
            "rancher-credential",
            arguments("--rancher-credential", world.copy("cloud-config", "rancher", token("revoked"))),
        ),
        ("machines", arguments("--cloud-config", of_others)),
        ("harvester-version", Fault::Patch(Harvester, SETTING.to_owned(), json!({"value": "v1.2.1"}))),
        ("rights-load-balancers", rules(world, OF_PROVIDER, without("create", "loadbalancers")).await),
        ("rights-load-balancers", Fault::Delete(Harvester, BINDING.to_owned())),
        ("rights-machines", rules(world, OF_PROVIDER, without("list", "virtualmachines")).await),
        ("pools", Fault::Create(Guest, SERVICES, service)),
        (
            "one-provider",
            Fault::Create(Guest, DEPLOYMENTS, workload("Deployment", "second", "harvester-cloud-provider:2")),
        ),
        ("nodes", Fault::Create(Guest, NODES, lost)),
        (
            "guest-agents",
            Fault::Patch(
                Harvester,
                MACHINE.to_owned(),
                json!({"metadata": {"annotations": {"sim.harvesterhci.io/agent": "silent"}}}),
            ),
        ),
        ("kube-vip", Fault::Create(Guest, DAEMON_SETS, unready)),
        (
            "tunnel-address",
            Fault::Patch(
                Guest,
                format!("{NODES}/demo-1"),
                json!({"metadata": {"annotations": {"projectcalico.org/IPv4Address": format!("{address}/24")}}}),
            ),
        ),
        ("leftovers", Fault::Create(Harvester, BALANCERS, left)),
        ("ccm", Fault::Stop("harvester-cloud-provider")),
        (
            "conversion",
            Fault::Several(vec![none_of_webhook, Fault::Patch(Harvester, DEFINITION.to_owned(), elsewhere)]),
        ),
        ("webhook", Fault::Stop("harvester-load-balancer-webhook")),
        (
            "load-balancer-crds",
            Fault::Patch(Harvester, DEFINITION.to_owned(), json!({"spec": {"versions": versions}})),
        ),
    ];
    if world.has_storage().await {
        faults.extend([
            ("rights-volumes", rules(world, OF_PROVIDER, without("patch", "persistentvolumeclaims")).await),
            ("csi-driver", Fault::Delete(Guest, format!("{CSI_DRIVERS}/{CSI_DRIVER}"))),
            ("storage-classes", Fault::Create(Guest, CLASSES, class)),
            ("csi-leader", Fault::Several(vec![none_of_csi, Fault::Lose(Guest, CSI_LEASE.to_owned())])),
        ]);
    }
    assert!(faults.len() >= 20, "{}", faults.len());
    faults
}

async fn of_everything_that_is_broken_in_turn_exactly_its_line_turns_red() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::start(folder.path()).await;
    let sound = world.expect(&[], &[]);
    assert!(sound.is_ok(), "red before anything is broken: {sound:#?}");
    let mut wrong = Vec::new();
    for (id, fault) in faults(&world).await {
        let (arguments, mend) = world.do_it(&fault).await;
        if let Err(findings) = world.expect(&[id], &arguments) {
            wrong.push(format!("{id} is broken: {findings:#?}"));
        }
        world.mend(mend).await;
        if let Err(findings) = world.expect(&[], &[]) {
            wrong.push(format!("{id} is mended: {findings:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

mod simulated {
    #[test]
    fn of_everything_that_is_broken_in_turn_exactly_its_line_turns_red() {
        let _turn = super::TURN.lock().unwrap_or_else(|broken| broken.into_inner());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(super::of_everything_that_is_broken_in_turn_exactly_its_line_turns_red());
    }
}
