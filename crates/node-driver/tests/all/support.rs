//! A small Harvester: the simulated API server with the kinds and objects that the driver asks for, and, where a test
//! wants it, KubeVirt.

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock, Mutex},
};

use cloud_config::expiry::Expiry;
use futures::FutureExt as _;
use go_rpc::{FromGob as _, Interface, Struct, ToGob as _, Type, Value as Gob};
use http::Request;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use program::{Clock, TaskGroup};
use serde_json::{Value, json};
use sim_apiserver::{
    ApiServer, User,
    faults::{Answer, Rule},
};
use sim_harvester::{
    Carrier, Lan, Options as SimOptions, Release, SimHarvester, settings::Dhcp, subresources,
};

use node_driver::{
    driver::{Access, Dependencies, Driver},
    options::Options,
    output::Output,
    ssh_key::{self, KeyPair},
};

/// Who the driver is, for rights and faults.
pub(crate) const USER: &str = "u-rancher";
pub(crate) const NAMESPACE: &str = "shop";
pub(crate) const MACHINE: &str = "demo-pool1-x7k2m-9d4tq";
/// Address of the API, as a kubeconfig has it.
pub(crate) const SERVER: &str = "https://harvester.example:6443";
const START: &str = "2026-11-21T12:00:00Z";

/// A Harvester in this process.
pub(crate) struct Harvester {
    pub(crate) server: ApiServer,
    tasks: TaskGroup,
}

impl Drop for Harvester {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Harvester {
    /// With an image, a network, a key pair; the driver's user may do everything.
    pub(crate) async fn start() -> Self {
        Self::start_with_seed(1).await
    }

    /// Another seed makes another Harvester: its objects have other UIDs.
    pub(crate) async fn start_with_seed(seed: u64) -> Self {
        let server = ApiServer::builder().seed(seed).namespace(NAMESPACE).build();
        let this = Self { server, tasks: TaskGroup::new() };
        sim_harvester::crds::apply(&this.admin()).await.unwrap();
        for object in objects() {
            this.put(object).await;
        }
        this.server.aggregate("subresources.kubevirt.io", subresources::router(this.admin()));
        this
    }

    pub(crate) fn admin(&self) -> Client {
        self.server.client(User::admin())
    }

    /// Starts KubeVirt: VMs run from their objects.
    pub(crate) async fn with_machines(self) -> Self {
        let guest = ApiServer::builder().seed(2).build();
        for host in ["host-1", "host-2"] {
            let labels = json!({"topology.kubernetes.io/zone": "east", "kubernetes.io/hostname": host});
            self.put(
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": host, "labels": labels}}),
            )
            .await;
        }
        let pool = ("127.77.0.10".parse().unwrap(), "127.77.0.20".parse().unwrap());
        SimHarvester::start(
            SimOptions {
                harvester: self.admin(),
                guest: guest.client(User::admin()),
                cluster: "demo".into(),
                network: "198.18.7.0/24".parse().unwrap(),
                workloads: vec![],
                writes_slices: false,
                harvester_vip: Release::From12,
                guest_vip: Release::From12,
                carrier: Carrier::Memory,
                lan: Lan::memory(),
                dhcp: Dhcp { pool, lease_seconds: 3600, silent: false },
                clock: Clock::system(),
                seed: 3,
            },
            &self.tasks,
        );
        self
    }

    /// Makes an object of any kind.
    pub(crate) async fn put(&self, object: Value) {
        let (api, object) = self.of(&object);
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    fn of(&self, object: &Value) -> (Api<DynamicObject>, DynamicObject) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let kind = GroupVersionKind::gvk(group, version, &kind);
        let resource = match kind.kind.as_str() {
            "NetworkAttachmentDefinition" => {
                ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions")
            }
            _ => ApiResource::from_gvk(&kind),
        };
        let api = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.admin(), namespace, &resource),
            None => Api::all_with(self.admin(), &resource),
        };
        (api, serde_json::from_value(object.clone()).unwrap())
    }

    /// An object as it is, or null.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let request = Request::get(path).body(vec![]).unwrap();
        match self.admin().request(request).await {
            Ok(object) => object,
            Err(kube::Error::Api(status)) if status.is_not_found() => Value::Null,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub(crate) async fn vm(&self) -> Value {
        self.get(&vm_path()).await
    }

    pub(crate) async fn secret(&self) -> Value {
        self.get(&format!("/api/v1/namespaces/{NAMESPACE}/secrets/{MACHINE}-cloudinit")).await
    }

    /// Sends a merge patch as the administrator.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) {
        let request = Request::patch(path).header("content-type", "application/merge-patch+json");
        let request = request.body(patch.to_string().into_bytes()).unwrap();
        self.admin().request::<Value>(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Deletes an object as the administrator.
    pub(crate) async fn delete(&self, path: &str) {
        let request = Request::delete(path).body(vec![]).unwrap();
        self.admin().request_text(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Requests of the driver since the log had `total` records, as `verb path`.
    pub(crate) fn asked(&self, total: u64) -> Vec<String> {
        let records = self.server.audit().since(total).into_iter().filter(|record| record.user == USER);
        let path = |uri: &str| uri.split('?').next().unwrap_or_default().to_owned();
        records.map(|record| format!("{} {}", record.verb, path(&record.uri))).collect()
    }

    /// A driver with its own memory and files, as a fresh process has.
    pub(crate) fn driver(&self, store: &std::path::Path) -> TestDriver {
        self.driver_as(store, USER, 7)
    }

    /// One whose credential ends.
    pub(crate) fn driver_that_expires(&self, store: &std::path::Path, expiry: Expiry) -> TestDriver {
        self.any_driver(store, USER, 7, key, expiry)
    }

    pub(crate) fn driver_as(&self, store: &std::path::Path, user: &str, seed: u64) -> TestDriver {
        self.any_driver(store, user, seed, key, Expiry::Unknown)
    }

    pub(crate) fn driver_with_key(
        &self,
        store: &std::path::Path,
        user: &str,
        seed: u64,
        make_key: fn() -> KeyPair,
    ) -> TestDriver {
        self.any_driver(store, user, seed, make_key, Expiry::Unknown)
    }

    /// One that waits for answers as long as the process does, and no longer.
    pub(crate) fn impatient_driver(&self, store: &std::path::Path) -> TestDriver {
        let options = cloud_config::Options::named("node-driver");
        let client = cloud_config::Connection::limiting(self.server.client(USER), &options);
        self.driver_with(client, store, 7, key, Expiry::Unknown)
    }

    fn any_driver(
        &self,
        store: &std::path::Path,
        user: &str,
        seed: u64,
        make_key: fn() -> KeyPair,
        expiry: Expiry,
    ) -> TestDriver {
        self.driver_with(self.server.client(user), store, seed, make_key, expiry)
    }

    fn driver_with(
        &self,
        client: Client,
        store: &std::path::Path,
        seed: u64,
        make_key: fn() -> KeyPair,
        expiry: Expiry,
    ) -> TestDriver {
        let output = Arc::new(Mutex::new(vec![]));
        let to = output.clone();
        let driver = Driver::new(Dependencies {
            connect: Arc::new(move |_| {
                let expiry = std::future::ready(expiry).boxed();
                Ok(Access { client: client.clone(), server: SERVER.to_owned(), expiry })
            }),
            make_key,
            output: Output::to(move |line| to.lock().unwrap().push(line.to_owned())),
            now: || START.parse().unwrap(),
            seed,
            kubeconfig: None,
        });
        let json = json!({"MachineName": MACHINE, "StorePath": store});
        driver.set_config_raw(json.to_string().as_bytes()).unwrap();
        TestDriver { driver: Arc::new(driver), output }
    }

    /// The driver of a machine that is up.
    pub(crate) async fn up(&self, store: &std::path::Path) -> TestDriver {
        let driver = self.driver(store).configured(&[("harvester-user-data", long_user_data())]);
        driver.create().await.unwrap();
        driver
    }

    /// The driver of a machine that is up in a Harvester whose KubeVirt does nothing by itself.
    pub(crate) async fn up_without_kubevirt(&self, store: &std::path::Path) -> TestDriver {
        let driver = self.driver(store).configured(&[("harvester-user-data", long_user_data())]);
        self.put(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": MACHINE, "namespace": NAMESPACE}, "spec": {"networks": [{"name": "nic-0"}]},
            "status": {"phase": "Running", "interfaces": [{"name": "nic-0", "ipAddress": "192.0.2.9"}]}}))
            .await;
        driver.create().await.unwrap();
        driver
    }

    /// Serves over TLS; the answer is a kubeconfig for the driver's user.
    pub(crate) async fn serve(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let server = self.server.clone();
        self.tasks.spawn_until_stop(async move { drop(server.serve(listener).await) });
        self.server.kubeconfig(USER, address)
    }
}

/// The key of the process under test: one for all, making them takes time.
pub(crate) fn key() -> KeyPair {
    static KEY: LazyLock<KeyPair> = LazyLock::new(ssh_key::generate);
    KEY.clone()
}

/// Of another process.
pub(crate) fn other_key() -> KeyPair {
    static KEY: LazyLock<KeyPair> = LazyLock::new(ssh_key::generate);
    KEY.clone()
}

/// A driver, and the lines that it printed.
pub(crate) struct TestDriver {
    pub(crate) driver: Arc<Driver>,
    pub(crate) output: Arc<Mutex<Vec<String>>>,
}

impl std::ops::Deref for TestDriver {
    type Target = Arc<Driver>;

    fn deref(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl TestDriver {
    /// With the flags of a plain machine and these changes.
    pub(crate) fn configured(self, changes: &[(&str, Value)]) -> Self {
        self.set_config_from_flags(&read(&options(changes))).unwrap();
        self
    }

    pub(crate) fn output(&self) -> Vec<String> {
        self.output.lock().unwrap().clone()
    }
}

pub(crate) fn vm_path() -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/{MACHINE}")
}

pub(crate) fn instance_path() -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/{MACHINE}")
}

pub(crate) fn refused(verb: &str, resource: &str, code: u16) -> Rule {
    let mut rule = Rule::new(Answer::Code(code));
    (rule.verb, rule.resource) = (Some(verb.into()), Some(resource.into()));
    rule
}

pub(crate) fn claim_path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{name}")
}

pub(crate) async fn put_claim(harvester: &Harvester, name: &str, labels: Value) {
    harvester
        .put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
}

/// The claim of the machine's disk.
pub(crate) async fn own_claim(harvester: &Harvester) -> String {
    let vm = harvester.vm().await;
    vm["spec"]["template"]["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Whether a claim is gone, or goes once no pod uses it.
pub(crate) async fn is_going(harvester: &Harvester, claim: &str) -> bool {
    let claim = harvester.get(&claim_path(claim)).await;
    claim.is_null() || claim["metadata"]["deletionTimestamp"].is_string()
}

/// All claims in the namespace.
pub(crate) async fn claims(harvester: &Harvester) -> Vec<Value> {
    let list = harvester.get(&format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims")).await;
    list["items"].as_array().cloned().unwrap_or_default()
}

fn objects() -> Vec<Value> {
    vec![
        json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting", "metadata": {"name": "server-version"}, "value": "v1.7.1"}),
        json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "VirtualMachineImage",
            "metadata": {"name": "leap", "namespace": "default"}, "spec": {"displayName": "leap.qcow2"},
            "status": {"progress": 100, "storageClassName": "longhorn-leap", "virtualSize": 10_737_418_240_i64}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "longhorn-leap"},
            "provisioner": "driver.longhorn.io", "volumeBindingMode": "Immediate"}),
        json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "KeyPair", "metadata": {"name": "ops", "namespace": NAMESPACE},
            "spec": {"publicKey": "ssh-ed25519 OPS"}, "status": {"conditions": [{"type": "validated", "status": "True"}]}}),
        json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "vlan1", "namespace": "default"}, "spec": {"config": "{}"}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "rancher"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]}),
    ]
}

/// What rancher-machine sends for a pool of Rancher's form: all flags, and some of its own.
pub(crate) fn options(changes: &[(&str, Value)]) -> Value {
    let mut options = json!({"swarm-master": false, "swarm-host": "tcp://0.0.0.0:3376", "swarm-discovery": "",
        "driver": "harvester", "custom-install-script": "/run/secrets/machine/value"});
    for flag in &node_driver::flags::ALL {
        options[flag.name] = match flag.flag_type {
            node_driver::flags::FlagType::Text(default) => json!(default),
            node_driver::flags::FlagType::Number(default) => json!(default),
            node_driver::flags::FlagType::Switch => json!(false),
        };
    }
    options["harvester-vm-namespace"] = json!(NAMESPACE);
    options["harvester-cluster-name"] = json!("demo");
    options["harvester-disk-info"] =
        json!(r#"{"disks":[{"imageName":"default/leap","bootOrder":1,"size":40}]}"#);
    options["harvester-network-info"] =
        json!(r#"{"interfaces":[{"networkName":"default/vlan1","macAddress":""}]}"#);
    for (name, value) in changes {
        options[*name] = value.clone();
    }
    options
}

/// Options as they are on the wire.
pub(crate) fn as_gob(options: &Value) -> go_rpc::Typed {
    let held = |value: &Value| {
        let (name, of, gob) = match value {
            Value::String(text) => ("string", Type::STRING, Gob::from(text.as_str())),
            Value::Bool(switch) => ("bool", Type::BOOL, Gob::Bool(*switch)),
            number => ("int", Type::INT, Gob::Int(number.as_i64().unwrap())),
        };
        Gob::Interface(Some(Box::new(Interface::new(name, of, gob))))
    };
    let values =
        options.as_object().unwrap().iter().map(|(name, value)| (Gob::from(name.as_str()), held(value)));
    let of = Type::structure("RPCFlags", [("Values", Type::map(Type::STRING, Type::INTERFACE))]);
    let flags = Struct::new().with("Values", Gob::Map(values.collect()));
    Some(Interface::new("*rpcdriver.RPCFlags", of, flags)).to_typed()
}

/// The same, as the driver reads them.
pub(crate) fn read(options: &Value) -> Options {
    Options::from_value(as_gob(options).value).unwrap()
}

/// User data as long as an install script makes it.
pub(crate) fn long_user_data() -> Value {
    json!(format!(
        "#cloud-config\npackages: [qemu-guest-agent]\nwrite_files: [{{path: /x, content: '{}'}}]\n",
        "x".repeat(4000)
    ))
}
