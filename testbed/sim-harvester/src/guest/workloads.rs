//! Carries out what DaemonSets and Deployments want.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Pod,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};

use controller_kit::{Action, Cache, ObjectKey, Queue};
use program::TaskGroup;

use super::{
    controller::Kubelets,
    workload::{Step, Wants, decide},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    DaemonSet(ObjectKey),
    Deployment(ObjectKey),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DaemonSet(key) => write!(out, "DaemonSet {key}"),
            Self::Deployment(key) => write!(out, "Deployment {key}"),
        }
    }
}

/// A write was refused.
#[derive(Debug, thiserror::Error)]
#[error("{step} for {item}")]
struct Error {
    step: &'static str,
    item: Item,
    source: kube::Error,
}

#[derive(Clone)]
struct Workloads {
    guest: Client,
    kubelets: Kubelets,
    daemon_sets: Cache<DaemonSet>,
    deployments: Cache<Deployment>,
}

/// Keeps the pods of workloads until the life ends.
pub(crate) fn start(tasks: &TaskGroup, guest: &Client, kubelets: &Kubelets) {
    let this = Workloads {
        guest: guest.clone(),
        kubelets: kubelets.clone(),
        daemon_sets: Cache::start(tasks, Api::all(guest.clone()), Default::default()),
        deployments: Cache::start(tasks, Api::all(guest.clone()), Default::default()),
    };
    let queue = Queue::new();
    this.subscribe(&queue);
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        this.kubelets.ready().await;
        this.daemon_sets.ready().await;
        this.deployments.ready().await;
        queue.run(&in_life, 1, move |item| {
            let this = this.clone();
            async move { this.reconcile(&item).await.map(|()| Action::AwaitChange) }
        });
    });
}

impl Workloads {
    fn subscribe(&self, queue: &Queue<Item>) {
        let add = queue.clone();
        self.daemon_sets.on_change(move |change| add.add(Item::DaemonSet(change.key.clone())));
        let add = queue.clone();
        self.deployments.on_change(move |change| add.add(Item::Deployment(change.key.clone())));
        let (add, this) = (queue.clone(), self.clone());
        self.kubelets.pods.on_change(move |_| this.all(&add));
        let (add, this) = (queue.clone(), self.clone());
        self.kubelets.nodes.on_change(move |_| this.all(&add));
    }

    fn all(&self, queue: &Queue<Item>) {
        let sets = self.daemon_sets.list().into_iter().map(|set| Item::DaemonSet(ObjectKey::of(&*set)));
        let deployments = self.deployments.list().into_iter().map(|of| Item::Deployment(ObjectKey::of(&*of)));
        sets.chain(deployments).for_each(|item| queue.add(item));
    }

    async fn reconcile(&self, item: &Item) -> Result<(), Error> {
        let wants = match item {
            Item::DaemonSet(key) => self.daemon_sets.get(key).and_then(|set| Wants::of_daemon_set(&set)),
            Item::Deployment(key) => self.deployments.get(key).and_then(|of| Wants::of_deployment(&of)),
        };
        let Some(wants) = wants else { return Ok(()) };
        let running = self.kubelets.vms().into_iter().filter(|vm| vm.running.is_some());
        let registered = |node: &String| {
            let node = self.kubelets.nodes.get(&ObjectKey::new("", node));
            node.is_some_and(|node| wants.selects(&node))
        };
        let nodes: BTreeSet<_> = running.map(|vm| vm.node).filter(registered).collect();
        let pods = self.kubelets.pods.list();
        let owned: Vec<_> = pods.iter().map(|pod| &**pod).filter(|pod| wants.owns(pod)).collect();
        for step in decide(&wants, &nodes, &owned) {
            let name = match &step {
                Step::Create(_) => "create Pod",
                Step::Delete { .. } => "delete Pod",
                Step::PatchStatus(_) => "write status",
            };
            let done = self.act(item, &wants, step).await;
            done.map_err(|source| Error { step: name, item: item.clone(), source })?;
        }
        Ok(())
    }

    async fn act(&self, item: &Item, wants: &Wants, step: Step) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.guest.clone(), &wants.namespace);
        let params = PatchParams::default();
        let done = match (step, item) {
            (Step::Create(json), _) => {
                let pod = serde_json::from_value(json).expect("what we made is a Pod");
                pods.create(&PostParams::default(), &pod).await.map(|pod| drop(self.kubelets.pods.wrote(pod)))
            }
            (Step::Delete { pod }, _) => {
                let known = self.kubelets.pods.get(&ObjectKey::new(&wants.namespace, &pod));
                let uid = known.and_then(|pod| pod.uid()).unwrap_or_default();
                let gone = pods.delete(&pod, &DeleteParams::default().grace_period(0)).await;
                gone.map(|_| self.kubelets.pods.gone(&ObjectKey::new(&wants.namespace, &pod), &uid))
            }
            (Step::PatchStatus(patch), Item::DaemonSet(key)) => {
                let api: Api<DaemonSet> = Api::namespaced(self.guest.clone(), &key.namespace);
                let answer = api.patch_status(&key.name, &params, &Patch::Merge(patch)).await;
                answer.map(|set| drop(self.daemon_sets.wrote(set)))
            }
            (Step::PatchStatus(patch), Item::Deployment(key)) => {
                let api: Api<Deployment> = Api::namespaced(self.guest.clone(), &key.namespace);
                let answer = api.patch_status(&key.name, &params, &Patch::Merge(patch)).await;
                answer.map(|deployment| drop(self.deployments.wrote(deployment)))
            }
        };
        match done {
            // made or gone meanwhile: the watch brings us back
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_not_found() => Ok(()),
            done => done,
        }
    }
}
