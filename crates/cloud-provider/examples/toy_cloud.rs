//! A cloud that keeps its load balancers and instances in memory: a small implementation of the traits.
//!
//!     cargo run -p cloud-provider --example toy_cloud     runs it against an API server in this process
//!     cargo test -p cloud-provider --example toy_cloud    the same as tests, on a paused clock

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, MutexGuard},
};

use cloud_provider::{
    Decision, Duties, Failure, IngressAddress, Instance, InstanceMetadata, Instances, LoadBalancerState,
    LoadBalancers, NodeController, Publish, Requeue, RequeueFn, ServiceController, View, wants_load_balancer,
};
use controller_kit::{Cache, ObjectKey, PendingEvent, Recorder};
use k8s_openapi::api::core::v1::{Node, NodeAddress, Service};
use kube::{Api, Client, ResourceExt, runtime::watcher};
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Wanted},
};

/// The cloud. Its "API" is this map, by the UID of the Service.
#[derive(Default)]
struct ToyCloud {
    load_balancers: Mutex<BTreeMap<String, IpAddr>>,
    requeue: Mutex<Option<RequeueFn>>,
}

/// The write that the cloud decided on.
struct Create {
    uid: String,
    service: ObjectKey,
}

impl ToyCloud {
    fn load_balancers(&self) -> MutexGuard<'_, BTreeMap<String, IpAddr>> {
        self.load_balancers.lock().expect("no panic while the cloud is locked")
    }

    /// Requeues a Service, as the watch of a cloud with an API would.
    fn changed(&self, service: ObjectKey) {
        let requeue = self.requeue.lock().expect("no panic while subscribing").clone();
        if let Some(requeue) = requeue {
            requeue(Requeue::One(service));
        }
    }
}

impl LoadBalancers for ToyCloud {
    type Write = Create;

    fn decide(&self, service: &Service, nodes: &[Arc<Node>]) -> Decision<Create> {
        let uid = service.uid().unwrap_or_default();
        let addresses = self.load_balancers().get(&uid).map(|ip| vec![IngressAddress::Ip(*ip)]);
        let is_missing = wants_load_balancer(service, None) && addresses.is_none();
        let write = is_missing.then(|| Create { uid, service: ObjectKey::of(service) });
        let mut events = Vec::new();
        if nodes.is_empty() {
            events.push(PendingEvent::warning("UnAvailableLoadBalancer", "There are no available nodes"));
        }
        let view = View {
            publish: addresses.clone().map_or(Publish::Unchanged, Publish::Addresses),
            load_balancer: addresses
                .map_or(LoadBalancerState::Absent, |addresses| LoadBalancerState::Present { addresses }),
            ..View::default()
        };
        Decision { view, write, events }
    }

    async fn apply(&self, Create { uid, service }: Create) -> Result<(), Failure> {
        let free = {
            let taken = self.load_balancers();
            (1..=254)
                .map(|host| IpAddr::from(Ipv4Addr::new(203, 0, 113, host)))
                .find(|ip| taken.values().all(|other| other != ip))
        };
        let ip = free.ok_or_else(|| Failure::Failed {
            why: "the toy cloud has no address left".to_owned(),
            source: None,
        })?;
        self.load_balancers().insert(uid, ip);
        self.changed(service);
        Ok(())
    }

    async fn delete(&self, service: &Service) -> Result<(), Failure> {
        self.load_balancers().remove(&service.uid().unwrap_or_default());
        Ok(())
    }

    fn subscribe(&self, requeue: RequeueFn) {
        *self.requeue.lock().expect("no panic while subscribing") = Some(requeue);
    }
}

impl Instances for ToyCloud {
    fn instance(&self, node: &Node) -> Instance {
        Instance::Found(Box::new(InstanceMetadata {
            provider_id: format!("toy://{}", node.name_any()),
            zone: Some("playroom".to_owned()),
            addresses: vec![NodeAddress { type_: "InternalIP".to_owned(), address: "192.0.2.1".to_owned() }],
            ..InstanceMetadata::default()
        }))
    }

    /// Instances of this cloud never change.
    fn subscribe(&self, _requeue: Arc<dyn Fn() + Send + Sync>) {}
}

/// The cloud controller manager.
async fn run(client: Client, cloud: &Arc<ToyCloud>, tasks: &TaskGroup) {
    let services: Cache<Service> = Cache::start(tasks, Api::all(client.clone()), watcher::Config::default());
    let nodes: Cache<Node> = Cache::start(tasks, Api::all(client.clone()), watcher::Config::default());
    services.ready().await;
    nodes.ready().await;
    let capabilities = Capabilities::start(tasks, client.clone(), Wanted::default());
    let recorder = |name| Recorder::start(tasks, client.clone(), name, Clock::system(), &capabilities);
    let duties = Duties { initialise: true, follow_topology: true };
    NodeController::start(tasks, client.clone(), cloud, &nodes, recorder("cloud-node-controller"), 1, duties);
    ServiceController::start(
        tasks,
        client.clone(),
        cloud,
        &services,
        &nodes,
        recorder("service-controller"),
        4,
    );
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = sim_apiserver::ApiServer::builder().build();
    let (client, tasks) = (server.client("admin"), TaskGroup::new());
    let cloud = Arc::new(ToyCloud::default());
    run(client.clone(), &cloud, &tasks).await;
    let api = Api::<Service>::default_namespaced(client);
    let service = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    }))?;
    api.create(&kube::api::PostParams::default(), &service).await?;
    let published = |service: Option<&Service>| {
        service.and_then(|it| it.status.as_ref()?.load_balancer.as_ref()?.ingress.clone()).is_some()
    };
    let done = kube::runtime::wait::await_condition(api, "web", published).await?;
    let status = done.and_then(|service| service.status).and_then(|status| status.load_balancer);
    println!("the Service has its address: {status:?}");
    tasks.end().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Event;
    use kube::api::{DeleteParams, ListParams, PostParams};
    use serde_json::json;
    use sim_apiserver::ApiServer;

    use super::*;

    struct World {
        server: ApiServer,
        client: Client,
        cloud: Arc<ToyCloud>,
        tasks: TaskGroup,
    }

    async fn world() -> World {
        let server = ApiServer::builder().build();
        let (client, cloud) = (server.client("admin"), Arc::new(ToyCloud::default()));
        let tasks = TaskGroup::new();
        run(client.clone(), &cloud, &tasks).await;
        World { server, client, cloud, tasks }
    }

    /// The clock is paused: it moves on when everybody waits.
    async fn settle() {
        tokio::time::sleep(Duration::from_secs(10)).await;
    }

    async fn create_service(world: &World) -> Api<Service> {
        let api = Api::<Service>::namespaced(world.client.clone(), "default");
        let service = json!({"metadata": {"name": "web"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
        api.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
        settle().await;
        api
    }

    fn ingress(service: &Service) -> Vec<String> {
        let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let list = status.and_then(|status| status.ingress.clone()).unwrap_or_default();
        list.into_iter().filter_map(|entry| entry.ip).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_gets_an_address_and_gives_it_back() {
        let world = world().await;
        let api = create_service(&world).await;
        let served = api.get("web").await.unwrap();
        assert_eq!(ingress(&served), ["203.0.113.1"]);
        assert_eq!(served.finalizers(), [cloud_provider::FINALIZER]);
        api.delete("web", &DeleteParams::default()).await.unwrap();
        settle().await;
        assert_eq!(api.get_opt("web").await.unwrap(), None);
        assert!(world.cloud.load_balancers().is_empty());
        world.tasks.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_that_vanishes_in_the_cloud_is_made_again() {
        let world = world().await;
        create_service(&world).await;
        world.cloud.load_balancers().clear();
        world.cloud.changed(ObjectKey::new("default", "web"));
        settle().await;
        assert_eq!(world.cloud.load_balancers().len(), 1);
        world.tasks.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn creating_a_load_balancer_takes_two_patches_and_one_event() {
        let world = world().await;
        create_service(&world).await;
        let writes: Vec<_> = world
            .server
            .audit()
            .records()
            .iter()
            .filter(|record| record.uri.contains("/services/web"))
            .map(|record| record.verb.to_string())
            .collect();
        assert_eq!(writes, ["patch", "patch"]);
        let events = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await.unwrap();
        let ensured = events.iter().filter(|event| event.reason.as_deref() == Some("EnsuredLoadBalancer"));
        assert_eq!(ensured.map(|event| event.count).collect::<Vec<_>>(), [Some(1)]);
        world.tasks.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_initialised_from_its_instance() {
        let world = world().await;
        let node = json!({"metadata": {"name": "worker-1"}, "spec": {"taints": [
            {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}]}});
        let api = Api::<Node>::all(world.client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        settle().await;
        let node = api.get("worker-1").await.unwrap();
        assert_eq!(node.labels()["topology.kubernetes.io/zone"], "playroom");
        assert!(!cloud_provider::waits_for_cloud(&node), "{node:?}");
        assert_eq!(node.spec.unwrap().provider_id.as_deref(), Some("toy://worker-1"));
        world.tasks.end().await;
    }
}
