//! Fixtures of every test, those of `diagnosis` too: the program in this process, and the user actions and answers that
//! it works with.

use cloud_controller_manager::{
    AddressRules, ElectionSettings, Parts, Settings,
    cluster::GuestCluster,
    datapath::{AllowedDatapaths, Policy},
    load_balancers::ServiceSettings,
    notices::Notices,
    requested::Aliases,
    run,
};
use cloud_provider::Duties;
use harvester_api::{LoadBalancer, VirtualMachine, VirtualMachineInstance};
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{Client, client::Body};
use program::{Clock, TaskGroup, health::Health};
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};
use tokio::task::JoinHandle;

/// What kube-vip in the guest is asked for.
pub(crate) const LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";
/// The address that Harvester gave last.
pub(crate) const ALLOCATED_ADDRESS: &str = "cloudprovider.harvesterhci.io/allocated-address";
pub(crate) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// The flags of the sandbox: `--data-path=annotation`.
pub(crate) fn rules(cluster: &TestCluster) -> ServiceSettings {
    ServiceSettings {
        cluster: GuestCluster::new(&cluster.guest_cluster().name),
        namespace: cluster.guest_cluster().vm_namespace.clone(),
        management_network: None,
        policy: Policy::Annotation,
        allowed: AllowedDatapaths::default(),
        restrict_sharing: false,
        aliases: Aliases::default(),
    }
}

/// Everything is on.
pub(crate) fn settings(cluster: &TestCluster) -> Settings {
    Settings {
        rules: rules(cluster),
        addresses: AddressRules::default(),
        topology: cloud_controller_manager::TopologyLabels::new(),
        election: Some(ElectionSettings::usual("first")),
        services: true,
        host_names: true,
        nodes: Duties { initialise: true, follow_topology: true },
        node_lifecycle: true,
        service_workers: None,
        node_workers: 1,
    }
}

/// A running cloud controller manager.
pub(crate) struct Ccm {
    /// Its liveness and readiness.
    pub(crate) health: Health,
    tasks: TaskGroup,
    task: JoinHandle<()>,
}

impl Ccm {
    /// With [`rules`].
    pub(crate) async fn start(cluster: &TestCluster) -> Self {
        Self::start_with(cluster, |_| ()).await
    }

    pub(crate) async fn start_with(cluster: &TestCluster, change: impl FnOnce(&mut Settings)) -> Self {
        let harvester = cluster.harvester.client(User::CloudControllerManager);
        Self::start_on(cluster, harvester, change).await
    }

    /// With another client for Harvester.
    pub(crate) async fn start_on(
        cluster: &TestCluster,
        harvester: Client,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let guest = cluster.guest.client(User::CloudControllerManager);
        Self::start_between(cluster, guest, harvester, change).await
    }

    /// With other clients for both clusters.
    pub(crate) async fn start_between(
        cluster: &TestCluster,
        guest: Client,
        harvester: Client,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let parts = Parts::new(guest, harvester, Clock::starting_at(cluster.start()));
        Self::start_parts(cluster, parts, change).await
    }

    /// With a place for what it says about itself; the clients are those of the guest and of Harvester.
    pub(crate) async fn start_telling(
        cluster: &TestCluster,
        [guest, harvester]: [Client; 2],
        notices: Notices,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let parts = Parts::new(guest, harvester, Clock::starting_at(cluster.start()));
        Self::start_parts(cluster, Parts { notices, ..parts }, change).await
    }

    pub(crate) async fn start_parts(
        cluster: &TestCluster,
        parts: Parts,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = settings(cluster);
        change(&mut settings);
        let (tasks, health) = (TaskGroup::new(), parts.health.clone());
        let own = tasks.clone();
        let task = tokio::spawn(async move { run(parts, settings, &own).await.expect("the Lease is kept") });
        cluster.settle().await;
        Self { health, tasks, task }
    }

    /// As SIGTERM does.
    pub(crate) async fn stop(self) {
        self.tasks.end().await;
        self.task.await.expect("the program ends without a panic");
    }
}

/// `client`, but `answer` sees every request first: it may answer itself, or do something before the request goes on.
pub(crate) fn interposed<F, A>(client: Client, answer: F) -> Client
where
    F: Fn(Method, String) -> A + Send + Sync + 'static,
    A: Future<Output = Option<Value>> + Send + 'static,
{
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, answer) =
            (client.clone(), answer(request.method().clone(), request.uri().path().to_owned()));
        async move {
            match answer.await {
                Some(json) => Ok(Response::new(Body::from(json.to_string().into_bytes()))),
                None => client.send(request).await.map_err(tower::BoxError::from),
            }
        }
    });
    Client::new(service, namespace)
}

/// Comes to rest again and again until it is so: changes of Nodes and VMs are joined before somebody acts on them, and
/// Leases are looked at now and then.
pub(crate) async fn until(cluster: &TestCluster, what: &str, is_so: impl AsyncFn() -> bool) {
    const RESTS: usize = 100;
    for _ in 0..RESTS {
        cluster.settle().await;
        if is_so().await {
            return;
        }
    }
    panic!("it does not come to pass that {what}");
}

/// A Service `shop/web` of type LoadBalancer with one port; `annotations` as a YAML map, `spec` as more fields.
pub(crate) async fn create_service(cluster: &TestCluster, annotations: &str, spec: &str) {
    let yaml = format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: shop}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop, annotations: {annotations}}}
spec: {{type: LoadBalancer, selector: {{app: web}}, ports: [{{name: http, port: 80}}], {spec}}}
"
    );
    cluster.guest.apply(&yaml).await;
    cluster.settle().await;
}

pub(crate) async fn service(cluster: &TestCluster) -> Option<Service> {
    cluster.guest.get("shop/web").await
}

/// The only LoadBalancer object, if there is one.
pub(crate) async fn load_balancer(cluster: &TestCluster) -> Option<LoadBalancer> {
    let mut all = cluster.harvester.list::<LoadBalancer>().await;
    assert!(all.len() <= 1, "{all:?}");
    all.pop()
}

/// Changes the only LoadBalancer object as Harvester's load balancer would.
pub(crate) async fn harvester_says(cluster: &TestCluster, patch: Value) {
    let name =
        load_balancer(cluster).await.expect("there is a LoadBalancer").metadata.name.expect("it has a name");
    let key = format!("{}/{name}", cluster.guest_cluster().vm_namespace);
    cluster.harvester.patch::<LoadBalancer>(&key, patch).await;
    cluster.settle().await;
}

/// An address out of a pool.
pub(crate) async fn allocate(cluster: &TestCluster, ip: &str) {
    harvester_says(cluster, json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": ip}}})).await;
}

/// kube-vip in the guest announces an address: first its annotation, then the status.
pub(crate) async fn announce(cluster: &TestCluster, ip: &str) {
    let host = json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "worker-1"}}});
    cluster.guest.patch::<Service>("shop/web", host).await;
    cluster
        .guest
        .patch_status::<Service>("shop/web", json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}}))
        .await;
    cluster.settle().await;
}

/// [`create_service`], with address 127.9.0.1 from a pool, which kube-vip in the guest announces.
pub(crate) async fn announced_service(cluster: &TestCluster, annotations: &str) {
    create_service(cluster, annotations, "").await;
    allocate(cluster, "127.9.0.1").await;
    announce(cluster, "127.9.0.1").await;
}

/// Makes the Service one of this type.
pub(crate) async fn set_type(cluster: &TestCluster, spec_type: &str) {
    cluster.guest.patch::<Service>("shop/web", json!({"spec": {"type": spec_type}})).await;
    cluster.settle().await;
}

/// Reason and message of every Event of ours about `shop/web`, oldest first; a real server has words of its own.
pub(crate) async fn events(cluster: &TestCluster) -> Vec<(String, String)> {
    let all = cluster.guest.list::<Event>().await;
    let about = all.into_iter().filter(|event| {
        let source = event.source.as_ref().and_then(|source| source.component.as_deref());
        event.involved_object.name.as_deref() == Some("web") && source == Some("service-controller")
    });
    about.map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
}

/// How often an Event with this reason was written.
pub(crate) async fn told(cluster: &TestCluster, reason: &str) -> usize {
    events(cluster).await.iter().filter(|(told, _)| told == reason).count()
}

pub(crate) fn annotation<'a>(service: &'a Service, key: &str) -> Option<&'a str> {
    service.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn finalizers(service: &Service) -> &[String] {
    service.metadata.finalizers.as_deref().unwrap_or_default()
}

/// Addresses in the Service's status.
pub(crate) fn ingress(service: &Service) -> Vec<String> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let list = balancer.and_then(|balancer| balancer.ingress.clone()).unwrap_or_default();
    list.into_iter().filter_map(|entry| entry.ip).collect()
}

/// Verb and resource of the program's requests to one side, in order. Questions about rights are no work.
pub(crate) fn asked(cluster: &test_cluster::Cluster) -> Vec<String> {
    let work = cluster.work_of(User::CloudControllerManager);
    let work = work.iter().filter(|request| request.resource() != "selfsubjectaccessreviews");
    work.map(|request| format!("{} {} {}", request.verb, request.resource(), request.code)).collect()
}

/// Verbs of the program's Event requests, in order.
pub(crate) fn event_requests(cluster: &TestCluster) -> Vec<String> {
    let ours =
        |request: &test_cluster::Request| request.user.ends_with(":harvester-cloud-controller-manager");
    let all = cluster.guest.requests();
    let all = all.iter().filter(|request| request.class() == test_cluster::Class::Event && ours(request));
    all.map(|request| request.verb.clone()).collect()
}

/// The program's client for Harvester, but `refused` requests go there without any right.
pub(crate) fn limited(
    cluster: &TestCluster,
    refused: impl Fn(&Method, &str) -> bool + Clone + Send + Sync + 'static,
) -> Client {
    limited_to(&cluster.harvester, refused)
}

/// The program's client for one side, but `refused` requests go there without any right.
pub(crate) fn limited_to(
    cluster: &test_cluster::Cluster,
    refused: impl Fn(&Method, &str) -> bool + Clone + Send + Sync + 'static,
) -> Client {
    let (ours, nobody) = (cluster.client(User::CloudControllerManager), cluster.client(User::Nobody));
    let namespace = ours.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_refused = refused(request.method(), request.uri().path());
        let client = if is_refused { nobody.clone() } else { ours.clone() };
        async move { client.send(request).await.map_err(tower::BoxError::from) }
    });
    Client::new(service, namespace)
}

/// A Node and its VM, with the labels of the node driver; `labels` are more labels of the VM.
pub(crate) async fn join(cluster: &TestCluster, name: &str, vm: &str, labels: &str) {
    let (namespace, blue) = (&cluster.guest_cluster().vm_namespace, &cluster.guest_cluster().name);
    let labels = if labels.is_empty() {
        format!("{{guestcluster.harvesterhci.io/name: {blue}, harvesterhci.io/vmName: {vm}}}")
    } else {
        labels.to_owned()
    };
    let yaml = format!(
        "apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {vm}, namespace: {namespace}, labels: {labels}}}
spec: {{runStrategy: Always, template: {{metadata: {{labels: {labels}}}, spec: {{}}}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {vm}
  namespace: {namespace}
  labels: {labels}
  annotations: {{topology.kubernetes.io/zone: zone-a, topology.kubernetes.io/region: region-1}}
spec: {{networks: [{{name: nic-0, multus: {{networkName: {namespace}/mgmt}}}}], domain: {{devices: {{}}}}}}
status: {{phase: Running, interfaces: [{{name: nic-0, ipAddresses: [198.18.0.5]}}]}}
"
    );
    cluster.harvester.apply(&yaml).await;
    cluster
        .guest
        .apply(&format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{taints: [{{key: \
             node.cloudprovider.kubernetes.io/uninitialized, value: 'true', effect: NoSchedule}}]}}}}"
        ))
        .await;
    cluster.settle().await;
}

pub(crate) async fn node(cluster: &TestCluster, name: &str) -> Option<Node> {
    cluster.guest.get::<Node>(name).await
}

/// The kubelet, or Kubernetes when it hears nothing of the kubelet, says whether the Node is ready.
pub(crate) async fn set_ready(cluster: &TestCluster, node: &str, status: &str) {
    let condition = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    cluster.guest.patch_status::<Node>(node, condition).await;
    cluster.settle().await;
}

/// Whether the Node is tainted as one whose VM is stopped.
pub(crate) async fn is_shut_down(cluster: &TestCluster, name: &str) -> bool {
    let taints = node(cluster, name).await.expect("the Node is there").spec.unwrap_or_default().taints;
    let is_it = |key: &str| key == "node.cloudprovider.kubernetes.io/shutdown";
    taints.unwrap_or_default().iter().any(|taint| is_it(&taint.key) && taint.effect == "NoSchedule")
}

pub(crate) async fn delete_vm(cluster: &TestCluster, name: &str) {
    let key = format!("team-a/{name}");
    cluster.harvester.delete::<VirtualMachineInstance>(&key).await;
    cluster.harvester.delete::<VirtualMachine>(&key).await;
    cluster.settle().await;
}

/// Comes to rest so often that every change that is joined was acted on.
pub(crate) async fn rest(cluster: &TestCluster) {
    for _ in 0..10 {
        cluster.settle().await;
    }
}
