//! Which machine a node is and who uses a volume, from both clusters, with the rights that the driver has there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cloud_config::{CloudConfig, Followed, Options, places, proxy::Environment};
use credential_rotation::{RotationMetrics, SecretName, life::Life, token};
use csi_driver::{
    attach::{self, Attacher},
    credential::{Credential, Way},
    guest::{Guest, User as VolumeUser},
    healing::lead::{self, Candidate},
    host::{Host, missing::Missing, reach::Reached},
    leading::Leading,
    node_id::{Finder, OwnMachine, Told},
};
use http::Request;
use jiff::SignedDuration;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Secret},
    storage::v1::VolumeAttachment,
};
use kube::Client;
use program::{Clock, TaskGroup, health::Health, pod::OwnPod};
use serde_json::{Value, json};
use test_cluster::{TestCluster, User, component_tests};
use tokio::sync::watch;

const MACHINES: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: node-a, namespace: team-a}
spec: {domain: {devices: {}}, networks: [{name: nic-0}]}
status: {interfaces: [{name: nic-0, mac: '52:54:00:00:00:0a'}]}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm-1, namespace: team-a}
spec:
  domain: {devices: {}}
  networks: [{name: nic-0}]
  volumes:
  - {name: root, persistentVolumeClaim: {claimName: root}}
  - {name: pvc-1, persistentVolumeClaim: {claimName: pvc-1, hotpluggable: true}}
status: {interfaces: [{name: nic-0, mac: '52:54:00:00:00:01'}]}
";

const NOTED: &str = "
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-a}
spec:
  drivers:
  - {name: other.example.com, nodeID: other, topologyKeys: null}
  - {name: driver.harvesterhci.io, nodeID: vm-1, topologyKeys: null, allocatable: {count: 250}}
";

const VOLUMES: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  csi: {driver: driver.harvesterhci.io, volumeHandle: pvc-1}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: others}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  csi: {driver: other.example.com, volumeHandle: pvc-1}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: by-name}
spec: {attacher: driver.harvesterhci.io, nodeName: node-b, source: {persistentVolumeName: pvc-1}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: by-handle}
spec: {attacher: driver.harvesterhci.io, nodeName: node-a, source: {persistentVolumeName: shared}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: of-another-driver}
spec: {attacher: other.example.com, nodeName: node-c, source: {persistentVolumeName: others}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: of-another-volume}
spec: {attacher: driver.harvesterhci.io, nodeName: node-c, source: {persistentVolumeName: pvc-2}}
";

/// What a node with a MAC address finds of its machine.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    told: Option<Told>,
    own: OwnMachine,
    /// Why it finds none.
    why: String,
}

async fn found(cluster: &TestCluster, host: Reached, address: &str) -> Found {
    let folder = tempfile::tempdir().unwrap();
    interface(folder.path(), address);
    let (_reached, host) = watch::channel(host);
    let finder = Finder {
        node: "node-a".to_owned(),
        guest: Guest::new(cluster.guest.client(User::CsiDriver)),
        host,
        interfaces: folder.path().to_owned(),
    };
    let ((name, told), (says, own), health) =
        (watch::channel(None), watch::channel(OwnMachine::default()), Health::default());
    let finding = tokio::spawn(finder.find(name, says, Some(health.readiness("node-id"))));
    cluster.settle().await;
    let (told, own) = (told.borrow().clone(), own.borrow().clone());
    finding.abort();
    Found { told, own, why: health.readiness_report() }
}

fn interface(folder: &Path, address: &str) {
    std::fs::create_dir(folder.join("enp1s0")).unwrap();
    std::fs::write(folder.join("enp1s0/address"), address).unwrap();
}

fn host(cluster: &TestCluster) -> Reached {
    Ok(Host::new(cluster.harvester.client(User::CsiDriver), "team-a"))
}

/// The Secret and the role of the chart.
const ROTATED: &str = "
{apiVersion: v1, kind: Secret, metadata: {name: harvester-csi-driver-rotated, namespace: kube-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: rotates, namespace: kube-system}
rules: [{apiGroups: [''], resources: [secrets], resourceNames: [harvester-csi-driver-rotated], verbs: [get, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: rotates, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: rotates}
subjects: [{kind: ServiceAccount, name: harvester-csi-driver, namespace: kube-system}]
";
const ROTATED_SECRET: &str = "kube-system/harvester-csi-driver-rotated";

/// A kubeconfig whose token, of ten minutes, its account may renew.
async fn made_to_rotate(cluster: &TestCluster) -> String {
    let (namespace, name) = (&cluster.guest_cluster().vm_namespace, cluster.guest_cluster().csi_account());
    let anchor = token::anchor_name(&name);
    let objects = format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}, namespace: {namespace}}}}}
---
{{apiVersion: v1, kind: Secret, metadata: {{name: {anchor}, namespace: {namespace}}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: rotates, namespace: {namespace}}}
rules: [{{apiGroups: [''], resources: [serviceaccounts/token], resourceNames: [{name}], verbs: [create]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: rotates, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: rotates}}
subjects: [{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}]
"
    );
    cluster.harvester.apply(&objects).await;
    let question = token::request(&name, SignedDuration::from_mins(10)).to_string().into_bytes();
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let request = Request::post(path).header("Content-Type", "application/json").body(question).unwrap();
    let answer: Value = cluster.harvester.client(User::Driver).request(request).await.unwrap();
    let token = answer["status"]["token"].as_str().unwrap();
    format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'https://harvester.example'}}}}],
           users: [{{name: a, user: {{token: '{token}'}}}}],
           contexts: [{{name: a, context: {{cluster: a, user: a, namespace: {namespace}}}}}]}}"
    )
}

/// Without the time that answers tell.
fn without_date(client: Client) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            let mut answer = client.send(request).await?;
            answer.headers_mut().remove(http::header::DATE);
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, "default")
}

/// A candidate for healing with this credential, which says on its Pod, of the same name, what becomes of it.
struct Process<'a> {
    name: &'a str,
    kubeconfig: &'a str,
    fault: Option<&'a str>,
    /// The Secret for the copy with a newer token, and whether that copy is mounted.
    secret: Option<&'a str>,
    rotates: bool,
    /// By how many seconds its clock is ahead.
    later: u64,
}

impl Process<'_> {
    fn start(&self, cluster: &TestCluster, tasks: &TaskGroup) {
        let ahead = SignedDuration::try_from(Duration::from_secs(self.later)).unwrap();
        let clock = Clock::starting_at(cluster.start() + ahead);
        let guest = cluster.guest.client(User::CsiDriver);
        let harvester = without_date(cluster.harvester.client(User::CsiDriver));
        let pod =
            OwnPod { namespace: "kube-system".into(), name: self.name.into(), uid: Some("a-1".to_owned()) };
        let missing = Missing::new(tasks, guest.clone(), clock, Some(pod));
        let config = CloudConfig::parse(self.kubeconfig, "cloud-config", &Environment::default()).unwrap();
        let (follows, followed) = watch::channel(Followed { config, fault: self.fault.map(str::to_owned) });
        let way = Way { followed, client: harvester.clone() };
        let (ways, way) = watch::channel(Some(way));
        let credential = Credential {
            way,
            secret: self.secret.map(|name| SecretName::read(name).unwrap()),
            rotates: self.rotates,
            options: Options::named("csi/1"),
            connect: Arc::new(move |_| Ok(harvester.clone())),
            clock,
            life: Life::new(clock),
            metrics: RotationMetrics::default(),
            missing,
        };
        let host = Host::new(cluster.harvester.client(User::CsiDriver), "team-a");
        let attacher = Attacher::new(host, tasks, attach::Options::new(self.name));
        let (calls, called) = watch::channel(true);
        let (attachers, attacher) = watch::channel(Arc::new(attacher));
        let (identity, leading) = (self.name.to_owned(), Leading::default());
        let candidate =
            Candidate { guest, clock, identity, called, attacher, leading, credential: Some(credential) };
        let standing = lead::stand(candidate, tasks.clone());
        tasks.spawn(async move {
            let _senders = (follows, ways, calls, attachers);
            standing.await;
        });
    }
}

/// Such a leader alone, until it gives this reason.
async fn hears(cluster: &TestCluster, process: Process<'_>, reason: &str) {
    let tasks = TaskGroup::new();
    process.start(cluster, &tasks);
    let mut found = vec![];
    for _ in 0..100 {
        cluster.settle().await;
        let events = cluster.guest.list::<Event>().await.into_iter();
        let of_pod = events.filter(|it| it.involved_object.name.as_deref() == Some(process.name));
        found = of_pod.filter_map(|it| it.reason).collect();
        if found.iter().any(|it| it == reason) {
            return tasks.end().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{reason} is not among {found:?}");
}

/// A host that shows the machine from the second list on, and nothing else; also a guest cluster that knows nothing.
fn late_host() -> Client {
    let lists = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let is_list = request.uri().path().ends_with("/virtualmachineinstances");
        let is_first = is_list && lists.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            let machine = json!({"metadata": {"name": "vm-1"}, "spec": {"networks": [{"name": "nic-0"}]},
                "status": {"interfaces": [{"name": "nic-0", "mac": "52:54:00:00:00:01"}]}});
            let items = if is_first { vec![] } else { vec![machine] };
            let (code, body) = if is_list {
                let list = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceList",
                    "metadata": {}, "items": items});
                (200, list)
            } else {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                    "reason": "NotFound", "message": "not found"});
                (404, status)
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            http::Response::builder().status(code).body(body)
        }
    });
    Client::new(service, "team-a")
}

// whose volumes are this cluster's follows from the machine
#[tokio::test(start_paused = true)]
async fn a_machine_that_the_host_does_not_show_yet_is_asked_about_until_it_does() {
    let folder = tempfile::tempdir().unwrap();
    interface(folder.path(), "52:54:00:00:00:01");
    let client = late_host();
    let (_reached, host) = watch::channel(Ok(Host::new(client.clone(), "team-a")));
    let (node, interfaces) = ("node-a".to_owned(), folder.path().to_owned());
    let finder = Finder { node, guest: Guest::new(client), host, interfaces };
    let ((name, mut told), (says, mut own)) = (watch::channel(None), watch::channel(OwnMachine::default()));
    let finding = tokio::spawn(finder.find(name, says, None));
    told.wait_for(|told| *told == Some(Told::named("node-a"))).await.unwrap();
    own.wait_for(|own| matches!(own, OwnMachine::None { .. })).await.unwrap();
    own.wait_for(|own| own.name() == Some("vm-1")).await.unwrap();
    finding.await.unwrap();
    assert_eq!(*told.borrow(), Some(Told { room: Some(256), ..Told::named("vm-1") }));
}

component_tests! {
    async fn the_leader_of_healing_tells_of_the_credential_on_its_pod_and_renews_it(cluster: TestCluster) {
        let source = made_to_rotate(&cluster).await;
        let process = |fault, later| Process {
            name: "csi-1", kubeconfig: &source, fault, secret: None, rotates: false, later,
        };
        let renews = || Process { secret: Some(ROTATED_SECRET), rotates: true, ..process(None, 450) };
        hears(&cluster, process(Some("its current-context names nothing"), 0), "CloudConfigNotUsed").await;
        hears(&cluster, process(None, 0), "CredentialExpires").await;
        hears(&cluster, process(None, 3_600), "CredentialExpired").await;
        hears(&cluster, renews(), "CredentialNotRotated").await;
        cluster.guest.apply(ROTATED).await;
        hears(&cluster, renews(), "CredentialRotated").await;
        let secret = cluster.guest.get::<Secret>(ROTATED_SECRET).await.unwrap();
        let copy = String::from_utf8(secret.data.unwrap().remove(places::COPY_KEY).unwrap().0).unwrap();
        assert!(places::is_copy_of(&copy, &source), "{copy}");
    }

    // In an upgrade the Go chart's sidecars call the drivers of the nodes, which have the copy and not the Secret of it.
    async fn a_process_that_cannot_renew_the_credential_leaves_the_lease_to_one_that_can(cluster: TestCluster) {
        let source = made_to_rotate(&cluster).await;
        cluster.guest.apply(ROTATED).await;
        let tasks = TaskGroup::new();
        let of_node = Process {
            name: "csi-node", kubeconfig: &source, fault: None, secret: None, rotates: true, later: 0,
        };
        of_node.start(&cluster, &tasks);
        cluster.settle().await;
        Process { name: "csi-1", secret: Some(ROTATED_SECRET), ..of_node }.start(&cluster, &tasks);
        cluster.settle().await;
        let lease = cluster.guest.get::<Lease>("kube-system/harvester-csi-attach").await.unwrap();
        assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("csi-1"));
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#node-id
    async fn the_machine_of_a_node_is_the_one_with_its_mac_address(cluster: TestCluster) {
        cluster.harvester.apply(MACHINES).await;
        cluster.guest.apply(NOTED).await;
        let is = |name: &str, room| {
            let told = Told { room: Some(room), noted: Some(250), ..Told::named(name) };
            Found { told: Some(told), own: OwnMachine::Confirmed(name.to_owned()), why: String::new() }
        };
        assert_eq!(found(&cluster, host(&cluster), "52:54:00:00:00:0a").await, is("node-a", 256));
        assert_eq!(found(&cluster, host(&cluster), "52:54:00:00:00:01").await, is("vm-1", 255));
    }

    // docs/contract/csi-driver.md#exits
    async fn while_the_host_is_away_the_machine_is_the_one_that_kubelet_noted(cluster: TestCluster) {
        let away = || Err("the host is away".to_owned());
        let Found { told, why, .. } = found(&cluster, away(), "52:54:00:00:00:01").await;
        assert_eq!((told, why.contains("the host is away")), (None, true));
        cluster.guest.apply(NOTED).await;
        let own = OwnMachine::NotAsked { why: "the host is away".to_owned() };
        let told = Told { noted: Some(250), ..Told::named("vm-1") };
        let noted = Found { told: Some(told), own, why: String::new() };
        assert_eq!(found(&cluster, away(), "52:54:00:00:00:01").await, noted);
    }

    // docs/contract/csi-driver.md#cluster-label
    async fn a_machine_that_merely_has_the_nodes_name_does_not_say_whose_volumes_are_ours(cluster: TestCluster) {
        cluster.harvester.apply(MACHINES).await;
        let found = found(&cluster, host(&cluster), "52:54:00:00:00:0f").await;
        assert_eq!((found.told.clone(), &*found.why), (Some(Told::named("node-a")), ""));
        assert!(matches!(found.own, OwnMachine::None { .. }), "{found:?}");
    }

    async fn the_users_of_a_volume_are_the_nodes_with_an_attachment_of_it(cluster: TestCluster) {
        cluster.guest.apply(VOLUMES).await;
        let attached = serde_json::json!({"status": {"attached": true}});
        cluster.guest.patch_status::<VolumeAttachment>("by-handle", attached).await;
        let users = Guest::new(cluster.guest.client(User::CsiDriver)).users("pvc-1").await.unwrap();
        let user = |node: &str, attachment: &str, is_attached| VolumeUser {
            node: node.to_owned(),
            attachment: attachment.to_owned(),
            is_attached,
            is_leaving: false,
        };
        assert_eq!(users, [user("node-a", "by-handle", true), user("node-b", "by-name", false)]);
    }
}
