//! Carries out what kubelets do. One worker, so that no two pods get one address.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
};

use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};

use controller_kit::{Action, Cache, ObjectKey, Queue};
use program::{Clock, TaskGroup};

use super::{NodeStep, PodStep, Workload, decide_node, decide_pod, pod_address, pod_of};
use crate::{
    refused::{Error, unless_gone, unless_there},
    vm::{VmState, controller::VmController},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    /// A Node with the pods that the workloads want on it.
    Node(String),
    Pod(ObjectKey),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(out, "Node {name}"),
            Self::Pod(key) => write!(out, "Pod {key}"),
        }
    }
}

/// The kubelets of the guest cluster.
#[derive(Clone)]
pub(crate) struct Kubelets {
    guest: Client,
    cluster: String,
    network: Ipv4Net,
    workloads: Arc<Vec<Workload>>,
    clock: Clock,
    vm_controller: VmController,
    pub(crate) nodes: Cache<Node>,
    pub(crate) pods: Cache<Pod>,
    /// For each Node the instance whose kubelet has registered it: what a kubelet itself knows.
    registered: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Kubelets {
    pub(crate) fn start(
        tasks: &TaskGroup,
        guest: &Client,
        vm_controller: &VmController,
        cluster: &str,
        network: Ipv4Net,
        workloads: Vec<Workload>,
        clock: Clock,
    ) -> Self {
        let kubelets = Self {
            guest: guest.clone(),
            cluster: cluster.to_owned(),
            network,
            workloads: Arc::new(workloads),
            clock,
            vm_controller: vm_controller.clone(),
            nodes: Cache::start(tasks, Api::all(guest.clone()), Default::default()),
            pods: Cache::start(tasks, Api::all(guest.clone()), Default::default()),
            registered: Arc::default(),
        };
        let queue = Queue::new();
        kubelets.subscribe(&queue);
        let (worker, in_life) = (kubelets.clone(), tasks.clone());
        tasks.spawn_until_stop(async move {
            worker.ready().await;
            queue.run(&in_life, 1, move |item| {
                let worker = worker.clone();
                async move { worker.reconcile(item).await.map(|()| Action::AwaitChange) }
            });
        });
        kubelets
    }

    /// Waits until everything that exists is known.
    pub(crate) async fn ready(&self) {
        self.vm_controller.ready().await;
        self.nodes.ready().await;
        self.pods.ready().await;
    }

    /// The VMs of this guest cluster.
    pub(crate) fn vms(&self) -> Vec<VmState> {
        let mut vms = self.vm_controller.list();
        vms.retain(|vm| vm.cluster.as_deref() == Some(&self.cluster));
        vms
    }

    /// The VM behind a Node.
    pub(super) fn vm_of(&self, node: &str) -> Option<VmState> {
        self.vms().into_iter().find(|vm| vm.node == node)
    }

    /// Calls `hear` whenever something about a VM may have changed.
    pub(super) fn on_vms(&self, hear: impl Fn() + Clone + Send + Sync + 'static) {
        let (instances, hosts) = (hear.clone(), hear.clone());
        self.vm_controller.hosts.on_change(move |_| hosts());
        self.vm_controller.vms.on_change(move |_| hear());
        self.vm_controller.instances.on_change(move |_| instances());
    }

    fn subscribe(&self, queue: &Queue<Item>) {
        let (add, this) = (queue.clone(), self.clone());
        // a VM's Node is known from its VM and instance together, and a VM that is gone from its Node alone
        let all = move || {
            let vms = this.vms().into_iter().map(|vm| vm.node);
            let nodes = this.nodes.list().into_iter().map(|node| node.name_any());
            vms.chain(nodes).for_each(|node| add.add(Item::Node(node)));
            this.pods.list().iter().for_each(|pod| add.add(Item::Pod(ObjectKey::of(&**pod))));
        };
        self.on_vms(all);
        let add = queue.clone();
        self.nodes.on_change(move |change| add.add(Item::Node(change.key.name.clone())));
        let add = queue.clone();
        self.pods.on_change(move |change| {
            add.add(Item::Pod(change.key.clone()));
            if let Some(node) = change.old.as_deref().and_then(node_of) {
                add.add(Item::Node(node.to_owned()));
            }
        });
    }

    async fn reconcile(&self, item: Item) -> Result<(), Error> {
        match item {
            Item::Node(name) => self.reconcile_node(&name).await,
            Item::Pod(key) => self.reconcile_pod(&key).await,
        }
    }

    async fn reconcile_node(&self, name: &str) -> Result<(), Error> {
        let key = ObjectKey::new("", name);
        let error = |what| Error::of(what, &key);
        let api: Api<Node> = Api::all(self.guest.clone());
        let vm = self.vm_of(name);
        let registered = self.registered().get(name).cloned();
        if vm.is_none() && registered.is_none() {
            // somebody else's Node
            return Ok(());
        }
        let node = self.nodes.get(&key);
        match decide_node(node.as_deref(), vm.as_ref(), registered.as_deref(), &self.clock.now_text()) {
            None => {}
            Some(NodeStep::Register(json)) => {
                let node = serde_json::from_value(json).expect("what we made is a Node");
                let answer = api.create(&PostParams::default(), &node).await;
                if let Some(node) = unless_there(answer).map_err(error("register Node"))? {
                    self.nodes.wrote(node);
                }
            }
            Some(NodeStep::PatchStatus(patch)) => {
                let answer = api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
                if let Some(node) = unless_gone(answer).map_err(error("report Node"))? {
                    self.nodes.wrote(node);
                }
            }
        }
        let Some(running) = vm.and_then(|vm| vm.running) else { return Ok(()) };
        self.registered().insert(name.to_owned(), running);
        for workload in &*self.workloads {
            let json = pod_of(workload, name);
            let pod: Pod = serde_json::from_value(json).expect("what we made is a Pod");
            let key = ObjectKey::of(&pod);
            if self.pods.get(&key).is_some() {
                continue;
            }
            let api: Api<Pod> = Api::namespaced(self.guest.clone(), &key.namespace);
            let answer = api.create(&PostParams::default(), &pod).await;
            if let Some(pod) = unless_there(answer).map_err(Error::of("create Pod", &key))? {
                self.pods.wrote(pod);
            }
        }
        Ok(())
    }

    async fn reconcile_pod(&self, key: &ObjectKey) -> Result<(), Error> {
        let Some(pod) = self.pods.get(key) else { return Ok(()) };
        let Some(node) = node_of(&pod) else { return Ok(()) };
        let vm = self.vm_of(node);
        if vm.is_none() && !self.registered().contains_key(node) {
            return Ok(());
        }
        let others = self.pods.list().into_iter().filter(|other| ObjectKey::of(&**other) != *key);
        let taken: BTreeSet<_> = others.filter_map(|pod| pod_address(&pod)).collect();
        let api: Api<Pod> = Api::namespaced(self.guest.clone(), &key.namespace);
        let error = |what| Error::of(what, key);
        match decide_pod(&pod, vm.as_ref(), &taken, self.network, &self.clock.now_text()) {
            None => Ok(()),
            Some(PodStep::PatchStatus(patch)) => {
                let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
                if let Some(pod) = unless_gone(answer).map_err(error("report Pod"))? {
                    self.pods.wrote(pod);
                }
                Ok(())
            }
            Some(PodStep::Delete) => {
                let answer = api.delete(&key.name, &DeleteParams::default().grace_period(0)).await;
                unless_gone(answer).map(drop).map_err(error("remove Pod"))
            }
        }
    }

    fn registered(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.registered.lock().expect("no panic while registering")
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}
