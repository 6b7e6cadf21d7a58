//! Two clusters in this process, with hosts and VMs as a user would have them.

use std::{
    fmt::Debug,
    net::{Ipv4Addr, Ipv6Addr},
};

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use harvester_api::VirtualMachine;
use program::{Clock, TaskGroup};
use sim_apiserver::{ApiServer, User};
use sim_harvester::{Lan, Options, Release, SimHarvester, Workload, settings::Dhcp, simulation::Carrier};
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

pub(crate) struct Clusters {
    pub(crate) guest: ApiServer,
    pub(crate) harvester: ApiServer,
}

impl Clusters {
    /// Two hosts in two zones, three VMs of the guest cluster `demo` in namespace `shop`.
    pub(crate) async fn new() -> Self {
        if let Some(levels) = program::logging::given_levels() {
            let lines = tracing_subscriber::fmt::layer().with_test_writer();
            drop(tracing_subscriber::registry().with(levels).with(lines).try_init());
        }
        let ipv6 = Ipv6Addr::new(0xfd43, 0, 0, 0, 0, 0, 0, 0);
        let guest = ApiServer::builder().ipv6_service_network(ipv6, 112).seed(1).build();
        let harvester = ApiServer::builder().seed(2).namespace("shop").build();
        let clusters = Self { guest, harvester };
        sim_harvester::crds::apply(&clusters.harvester()).await.unwrap();
        for (name, zone) in [("host-1", "east"), ("host-2", "west")] {
            let labels = json!({"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "eu",
                "kubernetes.io/hostname": name});
            let host =
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
            create::<Node>(Api::all(clusters.harvester()), host).await;
        }
        for number in 1..=3 {
            let labels = json!({"guestcluster.harvesterhci.io/name": "demo",
                "harvesterhci.io/creator": "docker-machine-driver-harvester"});
            let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": format!("guest-{number}"), "namespace": "shop", "labels": labels},
                "spec": {"runStrategy": "RerunOnFailure", "template": {"metadata": {"labels": labels}, "spec": {
                    "networks": [{"name": "nic-0", "multus": {"networkName": "default/mgmt"}}]}}}});
            create::<VirtualMachine>(Api::namespaced(clusters.harvester(), "shop"), vm).await;
        }
        clusters
    }

    pub(crate) fn guest(&self) -> Client {
        self.guest.client(User::admin())
    }

    pub(crate) fn harvester(&self) -> Client {
        self.harvester.client(User::admin())
    }

    pub(crate) fn options(&self, release: Release, carrier: Carrier) -> Options {
        let user = || User::named("sim-harvester").with_group("system:masters");
        options(self.guest.client(user()), self.harvester.client(user()), release, carrier)
    }

    pub(crate) fn start(&self, release: Release, tasks: &TaskGroup) -> SimHarvester {
        SimHarvester::start(self.options(release, Carrier::Memory), tasks)
    }

    /// A Service of the guest as kube-vip should announce it, with the example's selector.
    pub(crate) async fn guest_service(&self, name: &str, annotations: Value) -> Service {
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}});
        create(Api::namespaced(self.guest(), "default"), service).await
    }

    pub(crate) async fn vm(&self, name: &str) -> VirtualMachine {
        Api::namespaced(self.harvester(), "shop").get(name).await.unwrap()
    }

    pub(crate) async fn patch_vm(&self, name: &str, patch: Value) {
        let api: Api<VirtualMachine> = Api::namespaced(self.harvester(), "shop");
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn service(&self, name: &str) -> Service {
        Api::namespaced(self.guest(), "default").get(name).await.unwrap()
    }
}

/// A simulation of guest cluster `demo` with the example's pods.
pub(crate) fn options(guest: Client, harvester: Client, release: Release, carrier: Carrier) -> Options {
    let range = |last| Ipv4Addr::new(127, 79, 0, last);
    Options {
        harvester,
        guest,
        cluster: "demo".to_owned(),
        network: "198.18.250.0/24".parse().unwrap(),
        workloads: vec![Workload::web()],
        writes_slices: true,
        harvester_vip: release,
        guest_vip: release,
        carrier,
        lan: Lan::memory(),
        dhcp: Dhcp { pool: (range(100), range(120)), lease_seconds: 600, silent: false },
        clock: Clock::system(),
        seed: 7,
    }
}

pub(crate) async fn create<K>(api: Api<K>, json: Value) -> K
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(json).unwrap()).await.unwrap()
}

pub(crate) fn ingress(service: &Service) -> Vec<String> {
    let status = service.status.clone().unwrap_or_default().load_balancer.unwrap_or_default();
    status.ingress.unwrap_or_default().into_iter().filter_map(|ingress| ingress.ip).collect()
}
