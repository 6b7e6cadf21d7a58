//! What is broken in turn, with the id of its line.

use std::{collections::BTreeSet, fs, process::Command};

use http::Method;
use serde_json::{Value, json};

use super::{
    Broken, CSI_DRIVER, CSI_DRIVERS, DAEMON_SETS, DEPLOYMENTS, Fault, NAMESPACE, NODES, SERVICES,
    Side::{Guest, Harvester},
    World, binary, front, workload,
};

/// A token of account harvester-cloud-provider-demo that ended long ago, bound to its Secret: nobody has signed it.
pub(super) const ENDED: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6ZGVmYXVsdDpoYXJ2ZXN0ZXItY2xvdWQtcHJvdmlkZXItZGVtbyIsImlhdCI6MCwiZXhwIjoxLCJrdWJlcm5ldGVzLmlvIjp7InNlY3JldCI6eyJuYW1lIjoiaGFydmVzdGVyLWNsb3VkLXByb3ZpZGVyLWRlbW8tY3JlZGVudGlhbHMifX19.c2ln";

const BALANCERS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/default/loadbalancers";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/loadbalancers.loadbalancer.harvesterhci.io";
const OF_PROVIDER: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/harvesterhci.io:cloudprovider";
const OF_WEBHOOK: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/harvester-load-balancer-webhook";
const BINDING: &str =
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/harvester-cloud-provider-demo";
const SETTING: &str = "/apis/harvesterhci.io/v1beta1/settings/server-version";
const MACHINE: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/demo-1";
const CSI_LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/harvester-csi-attach";
const OF_CSI: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/harvester-csi-driver";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const POOL: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools/lab";
const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const VALIDATOR: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/harvester-validator";

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

/// Everything that is broken, in turn.
pub(super) async fn all(world: &World) -> Vec<Broken> {
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
    let service = |name: &str, annotations: Value| {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}})
    };
    let rest = ["last-1", "last-2"].map(|name| Fault::Create(Guest, SERVICES, service(name, json!({}))));
    let old = front::guest(world, |version| version["gitVersion"] = json!("v1.20.3"), None).await;
    let of_2000 = front::guest(world, |_| {}, Some("Sat, 01 Jan 2000 00:00:00 GMT")).await;
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
    let mut faults: Vec<(&'static str, Fault)> = vec![
        ("guest-version", arguments("--kubeconfig", old)),
        ("clock", arguments("--kubeconfig", of_2000)),
        ("guest-api", arguments("--kubeconfig", world.copy("guest.kubeconfig", "guest", server))),
        ("guest-api", arguments("--kubeconfig", "harvester.kubeconfig".to_owned())),
        ("harvester-version", arguments("--cloud-config", "guest.kubeconfig".to_owned())),
        ("cloud-config", arguments("--cloud-config", "nowhere".to_owned())),
        ("harvester-endpoint", config("endpoint", &server)),
        (
            "harvester-ca",
            config("ca", &|config| {
                config["clusters"][0]["cluster"]["certificate-authority-data"] = authority.clone();
            }),
        ),
        ("credential-life", config("life", &token(ENDED))),
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
        ("pools", Fault::Several(rest.into())),
        (
            "one-provider",
            Fault::Create(Guest, DEPLOYMENTS, workload("Deployment", "second", "harvester-cloud-provider:2")),
        ),
        (
            "one-provider",
            Fault::Create(
                Guest,
                DAEMON_SETS,
                workload("DaemonSet", "svclb-web", "rancher/klipper-lb:v0.4.9"),
            ),
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
    let storage = world.has_storage().await;
    if storage {
        faults.extend([
            ("rights-volumes", rules(world, OF_PROVIDER, without("patch", "persistentvolumeclaims")).await),
            ("csi-driver", Fault::Delete(Guest, format!("{CSI_DRIVERS}/{CSI_DRIVER}"))),
            ("storage-classes", Fault::Create(Guest, CLASSES, class)),
            ("csi-leader", Fault::Several(vec![none_of_csi, Fault::Lose(Guest, CSI_LEASE.to_owned())])),
        ]);
    }
    let red = |(id, fault)| Broken { id, goes_on: false, occasion: &[], fault };
    let mut all: Vec<_> = faults.into_iter().map(red).collect();
    all.extend(of_occasions(world, &service, storage).await);
    all.push(without_a_field(world).await);
    if storage {
        let kinds = ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"];
        let kinds =
            kinds.map(|kind| Fault::Delete(Guest, format!("{DEFINITIONS}/{kind}.snapshot.storage.k8s.io")));
        all.push(Broken {
            id: "snapshot-crds",
            goes_on: true,
            occasion: &[],
            fault: Fault::Several(kinds.into()),
        });
    }
    // the last one: by now the Service is older than a minute, or almost
    let silent = json!({"metadata": {"annotations": {"sim.harvesterhci.io/dhcp":
        json!({"pool": "127.21.0.10-127.21.0.250", "leaseSeconds": 60, "silent": true}).to_string()}}});
    all.push(red((
        "dhcp",
        Fault::Several(vec![
            Fault::Create(Guest, DAEMON_SETS, workload("DaemonSet", "kube-vip", "kube-vip:1")),
            Fault::Patch(Harvester, SETTING.to_owned(), silent),
            Fault::Patch(Guest, format!("{SERVICES}/leased"), json!({"spec": {"type": "LoadBalancer"}})),
        ]),
    )));
    all
}

/// As Harvester's own definition of pools has it.
async fn without_a_field(world: &World) -> Broken {
    let path = format!("{DEFINITIONS}/ippools.loadbalancer.harvesterhci.io");
    let mut versions = world.send(Harvester, Method::GET, &path, None).await["spec"]["versions"].clone();
    let fields = versions[0]
        .pointer_mut("/schema/openAPIV3Schema/properties/spec/properties")
        .and_then(Value::as_object_mut);
    assert!(fields.unwrap().remove("quota").is_some());
    let fault = Fault::Patch(Harvester, path, json!({"spec": {"versions": versions}}));
    Broken { id: "load-balancer-fields", goes_on: true, occasion: &[], fault }
}

/// What is looked at before programs are replaced.
async fn of_occasions(world: &World, service: &dyn Fn(&str, Value) -> Value, storage: bool) -> Vec<Broken> {
    const UPGRADE: &[&str] = &["--before-upgrade"];
    const ROLLBACK: &[&str] = &["--before-rollback"];
    let tokens = "/api/v1/namespaces/default/serviceaccounts/harvester-cloud-provider-demo/token";
    let question = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
    let bounded =
        world.send(Harvester, Method::POST, tokens, Some(&question)).await["status"]["token"].clone();
    let bounded = world
        .copy("cloud-config", "bounded", |config| config["users"][0]["user"] = json!({ "token": bounded }));
    let on_host = json!({"cloudprovider.harvesterhci.io/data-path": "host", "cloudprovider.harvesterhci.io/healthcheck-port": "80"});
    let by_name = json!({"metadata": {"annotations": {"loadbalancer.harvesterhci.io/auto-assign": "false"}}});
    let mut all = vec![
        Broken {
            id: "service-addresses",
            goes_on: true,
            occasion: &[],
            fault: Fault::Patch(
                Guest,
                format!("{SERVICES}/waiting"),
                json!({"spec": {"type": "LoadBalancer"}}),
            ),
        },
        Broken {
            id: "way-back-data-path",
            goes_on: true,
            occasion: ROLLBACK,
            fault: Fault::Create(Guest, SERVICES, service("on-host", on_host)),
        },
        Broken {
            id: "way-back-fields",
            goes_on: true,
            occasion: ROLLBACK,
            fault: Fault::Patch(Harvester, POOL.to_owned(), by_name),
        },
        Broken {
            id: "way-back-credential",
            goes_on: false,
            occasion: ROLLBACK,
            fault: Fault::Arguments(vec!["--cloud-config".to_owned(), bounded]),
        },
    ];
    if storage {
        let volumes = world.send(Guest, Method::GET, "/api/v1/persistentvolumes", None).await;
        let handle = volumes["items"][0]["spec"]["csi"]["volumeHandle"].clone();
        let machine = |name: &str| {
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"runStrategy": "Halted", "template": {"metadata": {}, "spec": {"domain": {"devices": {}},
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": handle}}]}}}})
        };
        // Harvester refuses such machines as long as it has its webhook
        let mut twice = vec![Fault::Delete(Harvester, VALIDATOR.to_owned())];
        twice.extend(["twice-1", "twice-2"].map(|name| Fault::Create(Harvester, MACHINES, machine(name))));
        all.push(Broken {
            id: "one-machine",
            goes_on: false,
            occasion: UPGRADE,
            fault: Fault::Several(twice),
        });
    }
    all
}

/// Ids that nothing here breaks, and why.
const UNBROKEN: [(&str, &str); 3] = [
    (
        "cluster-name",
        "a cloud controller manager writes its own name on every LoadBalancer whose Service has an address, so that two names \
         cannot stay while it runs",
    ),
    (
        "load-balancer",
        "it is red when an object has had no status for a minute, which nobody sits out here: doctor/tests.rs has such an object",
    ),
    (
        "attachments",
        "the stand-in for Kubernetes' controller ends an attachment that no Pod wants, and one that a Pod wants is not under way \
         for long",
    ),
];
/// Ids that are broken only where VMs have insides.
const OF_STORAGE: [&str; 6] =
    ["rights-volumes", "csi-driver", "storage-classes", "csi-leader", "snapshot-crds", "one-machine"];

/// Every id of `doctor --list` is broken, or it is said why not.
pub(super) fn assert_complete(all: &[Broken], storage: bool) {
    let told = Command::new(binary()).args(["doctor", "--list"]).output().unwrap();
    let listed = String::from_utf8(told.stdout).unwrap();
    let listed: BTreeSet<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let left_out = if storage { &[][..] } else { &OF_STORAGE };
    let known = all.iter().map(|broken| broken.id).chain(UNBROKEN.map(|(id, _)| id));
    let known: BTreeSet<_> = known.chain(left_out.iter().copied()).collect();
    assert_eq!(known, listed, "break each id here, or say why nothing does");
    assert!(all.len() >= 20, "{}", all.len());
}
