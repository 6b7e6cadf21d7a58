//! The charts on a real API server: what they render is accepted, and a release of the Go programs' charts, or rather of
//! those in `tests/charts/go`, is upgraded in place.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{LazyLock, Mutex, PoisonError},
};

use outside_tools::{REAL_SERVER, Tool};
use serde_json::Value;
use test_cluster::{GuestCluster, Side, User, manifests::documents, real};
use tokio::runtime::Runtime;

use super::{
    CHARTS, EVERYTHING, args, chart, container,
    examples::{example, examples},
    leave_out, object, output, root, text, try_render,
};

/// A real API server, and the programs that speak with it.
pub(crate) struct Lab {
    pub(crate) helm: PathBuf,
    pub(crate) kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// For the other server, on which nothing is installed.
    empty: PathBuf,
    pub(crate) folder: PathBuf,
    /// The servers end with it.
    _servers: (Runtime, real::Servers),
}

/// One for all tests of this process, or why there is none.
static LAB: LazyLock<Result<Lab, String>> = LazyLock::new(start);

fn start() -> Result<Lab, String> {
    let found = |tool: Tool| tool.find().ok_or_else(|| format!("{} is not on this machine", tool.name()));
    let (helm, kubectl) = (found(Tool::Helm)?, found(Tool::Kubectl)?);
    for tool in REAL_SERVER {
        found(tool)?;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("charts");
    // what a run that was killed has left
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    let runtime = Runtime::new().unwrap();
    let account = |side| User::Driver.account(side, &GuestCluster::default());
    let servers = runtime.block_on(real::start(&folder.join("servers"), |side| vec![account(side)])).unwrap();
    let kubeconfig = folder.join("kubeconfig");
    let empty = folder.join("kubeconfig-empty");
    for (side, file) in [(Side::Guest, &kubeconfig), (Side::Harvester, &empty)] {
        fs::write(file, servers.side(side).kubeconfig(&account(side).name, "default")).unwrap();
    }
    let lab = Lab { helm, kubectl, kubeconfig, empty, folder, _servers: (runtime, servers) };
    let kinds = lab.folder.join("kinds.yaml");
    super::kinds::write(&kinds);
    let kinds = kinds.to_str().unwrap();
    for file in [&lab.kubeconfig, &lab.empty] {
        let on = format!("--kubeconfig={}", file.display());
        lab.kubectl(&[&on, "create", "namespace", "harvester-system"]);
        lab.kubectl(&[&on, "apply", "--server-side", "-f", kinds]);
        lab.kubectl(&[&on, "wait", "--for=condition=Established", "--timeout=60s", "-f", kinds]);
    }
    Ok(lab)
}

pub(crate) fn lab() -> Option<&'static Lab> {
    match &*LAB {
        Ok(lab) => Some(lab),
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "{why}");
            leave_out(&format!("the charts on a real API server: {why}"));
            None
        }
    }
}

impl Lab {
    pub(crate) fn try_run(&self, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        // nothing of the person's own
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.folder.join("helm"));
        }
        output(&mut command)
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_run(&self.kubectl, arguments).unwrap_or_else(|why| panic!("kubectl {arguments:?}: {why}"))
    }

    pub(crate) fn helm(&self, arguments: &[&str]) -> String {
        self.try_run(&self.helm, arguments).unwrap_or_else(|why| panic!("helm {arguments:?}: {why}"))
    }

    /// Installs or upgrades the release of a chart's own name in a namespace for this test.
    pub(crate) fn release(&self, verb: &str, folder: &Path, namespace: &str, options: &[&str]) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let mut arguments = vec![verb, name, folder.to_str().unwrap(), "--namespace", namespace];
        arguments.extend(options);
        self.helm(&arguments);
    }

    pub(crate) fn get(&self, namespace: &str, object: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["-n", namespace, "get", object, "-o", "json"])).unwrap()
    }
}

pub(crate) fn go(name: &str) -> PathBuf {
    root().join("tests/charts/go").join(name)
}

fn uid(object: &Value) -> String {
    text(object, "/metadata/uid").to_owned()
}

fn ccm_args(lab: &Lab) -> Vec<String> {
    let deployment = lab.get("kube-system", "deployment/harvester-cloud-provider");
    let found = [deployment];
    let ccm = container(&found, "Deployment", "harvester-cloud-provider", "harvester-cloud-provider");
    args(ccm).into_iter().map(str::to_owned).collect()
}

pub(crate) fn data_path(lab: &Lab) -> Option<String> {
    ccm_args(lab).iter().find_map(|arg| arg.strip_prefix("--data-path=")).map(str::to_owned)
}

/// One release after another: their roles are the cluster's.
pub(crate) static CLOUD_PROVIDER: Mutex<()> = Mutex::new(());

#[test]
fn a_release_of_the_go_cloud_provider_is_upgraded_in_place_and_keeps_its_data_path() {
    let Some(lab) = lab() else { return };
    let _turn = CLOUD_PROVIDER.lock().unwrap_or_else(PoisonError::into_inner);
    let (ours, namespace) = (chart("harvester-cloud-provider"), "kube-system");
    let name = ["--set", "global.cattle.clusterName=blue"];
    lab.release("install", &go("harvester-cloud-provider"), namespace, &name);
    let before = [
        "deployment/harvester-cloud-provider",
        "daemonset/kube-vip",
        "serviceaccount/harvester-cloud-provider",
    ]
    .map(|object| (object, uid(&lab.get(namespace, object))));
    lab.release("upgrade", &ours, namespace, &["--reset-then-reuse-values"]);
    for (object, uid_before) in &before {
        assert_eq!(uid(&lab.get(namespace, object)), *uid_before, "{object} was replaced");
    }
    assert_eq!(data_path(lab).as_deref(), Some("guest"), "a Service would move to Harvester");
    assert!(ccm_args(lab).contains(&"--cluster-name=blue".to_owned()));
    // once ours, an upgrade changes nothing of it
    lab.release("upgrade", &ours, namespace, &["--reset-then-reuse-values"]);
    assert_eq!(data_path(lab).as_deref(), Some("guest"));
    lab.release("upgrade", &ours, namespace, &["--reset-then-reuse-values", "--set", "dataPath=annotation"]);
    assert_eq!(data_path(lab).as_deref(), Some("annotation"));
    // the way back
    lab.helm(&["rollback", "harvester-cloud-provider", "1", "--namespace", namespace]);
    assert_eq!(data_path(lab), None);
    for (object, uid_before) in &before {
        assert_eq!(uid(&lab.get(namespace, object)), *uid_before, "{object} was replaced on the way back");
    }
    lab.helm(&["uninstall", "harvester-cloud-provider", "--namespace", namespace]);

    // a first install, and its upgrade
    lab.release("install", &ours, namespace, &name);
    assert_eq!(data_path(lab).as_deref(), Some("annotation"));
    lab.release("upgrade", &ours, namespace, &["--reset-then-reuse-values", "--set", "replicasCount=2"]);
    assert_eq!(data_path(lab).as_deref(), Some("annotation"), "an upgrade would move a Service to the guest");
    lab.helm(&["uninstall", "harvester-cloud-provider", "--namespace", namespace]);
}

const OTHER_DEFAULT: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: chosen, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: other.example.com
"#;

/// One release after another: its classes are the cluster's.
pub(crate) static CSI: Mutex<()> = Mutex::new(());

/// Their charts say nothing of it, or did not in former releases: then the API server has put a rolling update there.
#[test]
fn a_single_replica_is_upgraded_where_the_former_chart_said_no_strategy() {
    let Some(lab) = lab() else { return };
    let _turn = CSI.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace = "kube-system";
    // as helm 4 writes, and as helm 3 does
    for how in ["--server-side=true", "--server-side=false"] {
        let one = ["--set", "replicasCount=1", how];
        lab.release("install", &go("harvester-csi-driver"), namespace, &one);
        let strategy = || {
            lab.release("upgrade", &chart("harvester-csi-driver"), namespace, &["--reset-then-reuse-values"]);
            lab.get(namespace, "deployment/harvester-csi-driver-controllers")["spec"]["strategy"].clone()
        };
        let first = strategy();
        // one that is nobody's cannot be applied away: the first upgrade makes it the release's
        let is_ours = first["type"] == "Recreate" || first["rollingUpdate"]["maxSurge"] == 0;
        assert!(is_ours, "{how}: {first}");
        assert_eq!(strategy(), serde_json::json!({"type": "Recreate"}), "{how}");
        lab.helm(&["rollback", "harvester-csi-driver", "1", "--namespace", namespace]);
        lab.helm(&["uninstall", "harvester-csi-driver", "--namespace", namespace]);
    }
}

/// As Rancher's form does it: the values of the old release, its chart's defaults included.
#[test]
fn a_release_of_the_go_csi_driver_is_upgraded_in_place_with_its_values() {
    let Some(lab) = lab() else { return };
    let _turn = CSI.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace = "kube-system";
    lab.release("install", &go("harvester-csi-driver"), namespace, &[]);
    let objects = [
        "daemonset/harvester-csi-driver",
        "deployment/harvester-csi-driver-controllers",
        "csidriver/driver.harvesterhci.io",
        "storageclass/harvester",
    ];
    let before = objects.map(|object| uid(&lab.get(namespace, object)));
    let old_account_may = |verb_and_resource: &[&str]| {
        let account = "--as=system:serviceaccount:kube-system:harvester-csi-driver";
        let mut arguments = vec!["auth", "can-i", account];
        arguments.extend(verb_and_resource);
        lab.try_run(&lab.kubectl, &arguments).is_ok()
    };
    lab.release("upgrade", &chart("harvester-csi-driver"), namespace, &["--reuse-values"]);
    // its Pods work until they are replaced, and they are not where the new ones do not start
    assert!(old_account_may(&["create", "persistentvolumes"]));
    assert!(old_account_may(&["update", "leases", "-n", namespace]));
    // it is every node's, and the Go controllers know nothing of this one
    assert!(!old_account_may(&["update", "secrets/harvester-csi-driver-rotated", "-n", namespace]));
    assert_eq!(objects.map(|object| uid(&lab.get(namespace, object))), before);
    let driver = lab.get(namespace, "daemonset/harvester-csi-driver");
    let volumes = super::array(&driver, "/spec/template/spec/volumes");
    assert!(
        volumes.iter().all(|volume| volume["name"] != "rootfs"),
        "what only the Go driver mounts is gone"
    );
    lab.release("upgrade", &chart("harvester-csi-driver"), namespace, &["--reset-then-reuse-values"]);
    assert!(!old_account_may(&["create", "persistentvolumes"]), "the account of every node keeps them");
    // docs/contract/csi-driver.md#default-class
    let is_default = || {
        let class = lab.get(namespace, "storageclass/harvester");
        class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"
    };
    assert!(is_default());
    let other = lab.folder.join("class.yaml");
    fs::write(&other, OTHER_DEFAULT).unwrap();
    lab.kubectl(&["create", "-f", other.to_str().unwrap()]);
    lab.release("upgrade", &chart("harvester-csi-driver"), namespace, &["--reset-then-reuse-values"]);
    assert!(!is_default(), "the cluster would have two");
    lab.helm(&["rollback", "harvester-csi-driver", "1", "--namespace", namespace]);
    assert_eq!(objects.map(|object| uid(&lab.get(namespace, object))), before);
    lab.helm(&["uninstall", "harvester-csi-driver", "--namespace", namespace]);

    // a default that is older, as K3s has one: of two Kubernetes takes the younger
    lab.release("install", &chart("harvester-csi-driver"), namespace, &[]);
    assert!(is_default());
    lab.release("upgrade", &chart("harvester-csi-driver"), namespace, &["--reset-then-reuse-values"]);
    assert!(is_default(), "an upgrade would send new volumes to the nodes' disks");
    for no in ["=false", "-"] {
        let mark = format!("storageclass.kubernetes.io/is-default-class{no}");
        lab.kubectl(&["annotate", "--overwrite", "storageclass", "harvester", &mark]);
        lab.release("upgrade", &chart("harvester-csi-driver"), namespace, &["--reset-then-reuse-values"]);
        assert!(!is_default(), "somebody has said no by {mark}");
    }
    lab.helm(&["uninstall", "harvester-csi-driver", "--namespace", namespace]);
    lab.kubectl(&["delete", "-f", other.to_str().unwrap()]);
}

const CHANGED_POOL: &str = r#"{"metadata": {"labels": {"changed": "yes"}}}"#;

/// One release after another: their definitions and registrations are the cluster's.
pub(crate) static LOAD_BALANCER: Mutex<()> = Mutex::new(());

/// The API server follows registrations of webhooks with a delay; each question is a process.
fn eventually(is_so: impl FnMut() -> bool) {
    assert!(std::iter::repeat_with(is_so).take(200).any(|so| so), "it did not come so");
}

/// Also when the release is removed for good.
#[test]
fn load_balancers_and_pools_outlive_the_release_of_their_chart() {
    let Some(lab) = lab() else { return };
    let _turn = LOAD_BALANCER.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace = "harvester-system";
    let kinds =
        ["crd/ippools.loadbalancer.harvesterhci.io", "crd/loadbalancers.loadbalancer.harvesterhci.io"];
    lab.release("install", &go("harvester-load-balancer"), namespace, &[]);
    let before = kinds.map(|kind| uid(&lab.get(namespace, kind)));
    let deployments = ["deployment/harvester-load-balancer", "deployment/harvester-load-balancer-webhook"];
    let workloads = deployments.map(|object| uid(&lab.get(namespace, object)));
    lab.release("upgrade", &chart("harvester-load-balancer"), namespace, &["--reset-then-reuse-values"]);
    assert_eq!(deployments.map(|object| uid(&lab.get(namespace, object))), workloads);
    let pool = root().join("examples/harvester/ip-pool.yaml");
    lab.kubectl(&["wait", "--for=condition=Established", kinds[0], "--timeout=30s"]);
    lab.kubectl(&["create", "-f", pool.to_str().unwrap()]);
    lab.helm(&["uninstall", "harvester-load-balancer", "--namespace", namespace]);
    assert_eq!(kinds.map(|kind| uid(&lab.get(namespace, kind))), before);
    let pools = lab.kubectl(&["get", "ippools.loadbalancer.harvesterhci.io", "-o", "name"]);
    assert!(!pools.is_empty(), "the pool went with the release");
    // the webhook, which is gone, has registered itself
    let webhook = r#"{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "harvester-load-balancer-webhook"}, "webhooks": [{
            "name": "validator.harvester-system.harvester-load-balancer-webhook", "failurePolicy": "Fail",
            "clientConfig": {"service": {"namespace": "harvester-system", "name": "harvester-load-balancer-webhook"}},
            "rules": [{"apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["v1beta1"],
                "resources": ["ippools"], "operations": ["UPDATE", "DELETE"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"]}]}"#;
    let file = lab.folder.join("webhook.json");
    fs::write(&file, webhook).unwrap();
    lab.kubectl(&["create", "-f", file.to_str().unwrap()]);
    let change = ["patch", "ippools.loadbalancer.harvesterhci.io/edge", "--type=merge", "-p", CHANGED_POOL];
    eventually(|| lab.try_run(&lab.kubectl, &change).is_err());
    let document = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let commands: Vec<_> = document
        .lines()
        .filter_map(|line| line.strip_prefix("    kubectl "))
        .filter(|line| line.starts_with("delete validating") || line.starts_with("patch crd loadbalancers"))
        .collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        let line = format!("'{}' {command}", lab.kubectl.display());
        lab.try_run(Path::new("sh"), &["-c", &line]).unwrap();
    }
    eventually(|| lab.try_run(&lab.kubectl, &change).is_ok());
    lab.kubectl(&["delete", "ippools.loadbalancer.harvesterhci.io/edge"]);
    // and a release made anew takes them over
    lab.release("install", &chart("harvester-load-balancer"), namespace, &[]);
    lab.helm(&["uninstall", "harvester-load-balancer", "--namespace", namespace]);
}

/// helm deletes what a release has no longer, unless the live object says keep, and the Go chart's definitions do not.
#[test]
fn no_upgrade_of_a_go_release_deletes_the_load_balancers_and_pools() {
    let Some(lab) = lab() else { return };
    let _turn = LOAD_BALANCER.lock().unwrap_or_else(PoisonError::into_inner);
    let (namespace, ours) = ("harvester-system", chart("harvester-load-balancer"));
    let kinds =
        ["crd/ippools.loadbalancer.harvesterhci.io", "crd/loadbalancers.loadbalancer.harvesterhci.io"];
    let upgrade = |option: &str| {
        let folder = ours.to_str().unwrap();
        let arguments = [
            "upgrade",
            "harvester-load-balancer",
            folder,
            "-n",
            namespace,
            "--reset-then-reuse-values",
            "--set",
        ];
        lab.try_run(&lab.helm, &[&arguments[..], &[option]].concat())
    };
    for option in ["crds.enabled=false", "insideHarvester=true"] {
        // as the first installation finds it: without definitions that were kept
        for kind in kinds {
            lab.kubectl(&["delete", kind, "--ignore-not-found"]);
        }
        lab.release("install", &go("harvester-load-balancer"), namespace, &[]);
        let before = kinds.map(|kind| uid(&lab.get(namespace, kind)));
        let told = upgrade(option).unwrap_err();
        let advice = "kubectl annotate crd ippools.loadbalancer.harvesterhci.io helm.sh/resource-policy=keep";
        assert!(told.contains(advice), "{option}: {told}");
        for kind in kinds {
            lab.kubectl(&["annotate", kind, "helm.sh/resource-policy=keep"]);
        }
        upgrade(option).unwrap();
        lab.helm(&["uninstall", "harvester-load-balancer", "--namespace", namespace]);
        assert_eq!(kinds.map(|kind| uid(&lab.get(namespace, kind))), before, "{option}");
    }
    // definitions of ours are kept in any case
    lab.release("install", &ours, namespace, &[]);
    let before = kinds.map(|kind| uid(&lab.get(namespace, kind)));
    upgrade("crds.enabled=false").unwrap();
    lab.helm(&["uninstall", "harvester-load-balancer", "--namespace", namespace]);
    assert_eq!(kinds.map(|kind| uid(&lab.get(namespace, kind))), before);
}

#[test]
fn an_upgrade_leaves_it_to_the_release_whether_pools_admit_by_their_selectors() {
    let Some(lab) = lab() else { return };
    let _turn = LOAD_BALANCER.lock().unwrap_or_else(PoisonError::into_inner);
    let (namespace, ours) = ("harvester-system", chart("harvester-load-balancer"));
    let strict = || {
        ["harvester-load-balancer", "harvester-load-balancer-webhook"].map(|name| {
            let found = [lab.get(namespace, &format!("deployment/{name}"))];
            args(container(&found, "Deployment", name, name)).contains(&"--enforce-named-pool-scope")
        })
    };
    lab.release("install", &go("harvester-load-balancer"), namespace, &[]);
    for _ in 0..2 {
        lab.release("upgrade", &ours, namespace, &["--reset-then-reuse-values"]);
        assert_eq!(strict(), [false; 2], "a load balancer would lose its address");
    }
    lab.helm(&["uninstall", "harvester-load-balancer", "--namespace", namespace]);
    lab.release("install", &ours, namespace, &[]);
    assert_eq!(strict(), [true; 2]);
    lab.release("upgrade", &ours, namespace, &["--reset-then-reuse-values"]);
    assert_eq!(strict(), [true; 2]);
    lab.release("upgrade", &ours, namespace, &["--set", "enforceNamedPoolScope=false"]);
    assert_eq!(strict(), [false; 2]);
    lab.helm(&["uninstall", "harvester-load-balancer", "--namespace", namespace]);
}

/// Strictly: a field that the server does not know would be dropped without a word. The kinds of other projects are stand-ins
/// (kinds.yaml), which take any object.
#[test]
fn what_the_charts_and_examples_say_is_accepted_by_the_api_server() {
    let Some(lab) = lab() else { return };
    let accepts = |file: &str| {
        let on = format!("--kubeconfig={}", lab.empty.display());
        lab.kubectl(&[&on, "apply", "--dry-run=server", "--validate=strict", "-f", file]);
    };
    for (name, _) in CHARTS {
        let all: Vec<_> = EVERYTHING.into_iter().chain(["kube-vip.podMonitor.enabled=true"]).collect();
        let secret = ["cloudConfig.secretName=own", "global.cattle.imagePullSecrets={one}"];
        for options in [&[][..], &all, &secret, &["insideHarvester=true"]] {
            let objects = try_render(&lab.helm, name, options).unwrap();
            let file = lab.folder.join(format!("{name}.json"));
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
            fs::write(&file, list.to_string()).unwrap();
            accepts(file.to_str().unwrap());
        }
    }
    // values and patches are no objects
    for name in examples().iter().filter(|name| !name.contains("values") && !name.ends_with("-patch.yaml")) {
        accepts(&example(name));
    }
}

/// Where no successor can start, a budget would hold up the drain of the node for ever.
#[test]
fn a_chart_that_is_installed_where_there_is_one_node_has_no_budget() {
    let Some(lab) = lab() else { return };
    let on = format!("--kubeconfig={}", lab.empty.display());
    let has_budgets = || {
        CHARTS.map(|(name, _)| {
            let folder = chart(name);
            let template = ["template", name, folder.to_str().unwrap(), "--dry-run=server", &on];
            lab.helm(&template).contains("kind: PodDisruptionBudget")
        })
    };
    assert_eq!(has_budgets(), [true; 3]);
    let node = |name: &str| {
        let file = lab.folder.join(format!("node-{name}.yaml"));
        fs::write(&file, format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n")).unwrap();
        lab.kubectl(&[&on, "create", "-f", file.to_str().unwrap()]);
    };
    node("one");
    assert_eq!(has_budgets(), [false; 3]);
    node("two");
    assert_eq!(has_budgets(), [true; 3]);
    lab.kubectl(&[&on, "delete", "node", "one", "two"]);
}

/// Rancher's Grafana, which Harvester's add-on is too, reads the dashboards of one namespace.
#[test]
fn the_dashboard_is_where_ranchers_grafana_looks() {
    let Some(lab) = lab() else { return };
    let on = format!("--kubeconfig={}", lab.empty.display());
    let folder = chart("harvester-load-balancer");
    let namespace = |options: &[&str]| {
        let template = ["template", "lb", folder.to_str().unwrap(), "-n", "lab", "--dry-run=server", &on];
        let rendered = documents(&lab.helm(&[&template[..], options].concat())).unwrap();
        let dashboard = object(&rendered, "ConfigMap", "harvester-load-balancer-dashboard");
        text(dashboard, "/metadata/namespace").to_owned()
    };
    assert_eq!(namespace(&[]), "lab");
    lab.kubectl(&[&on, "create", "namespace", "cattle-dashboards"]);
    assert_eq!(namespace(&[]), "cattle-dashboards");
    assert_eq!(namespace(&["--set", "metrics.dashboard.namespace=own"]), "own");
    lab.kubectl(&[&on, "delete", "namespace", "cattle-dashboards", "--wait=false"]);
}
