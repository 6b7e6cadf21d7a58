//! Host names, from the guest agents.
//!
//! A VM is asked when its agent is connected and no Node is known to be it; then once for its life, unless the agent
//! goes away and comes back. The Go program asked at every change of every VM of the namespace (pitfalls-ccm.md V1).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use controller_kit::{Action, Cache, ObjectKey, Queue};
use harvester_api::VirtualMachineInstance;
use http::Request;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt};
use program::TaskGroup;
use serde::Deserialize;

use super::Machines;

/// An agent that answers without a host name has no news for us either: this is the only question with a period.
const ASK_AGAIN: Duration = Duration::from_secs(30);

pub(super) struct HostNames {
    client: Client,
    machines: Machines,
    nodes: Cache<Node>,
    /// UID of the instance that answered, by name.
    answered: Mutex<HashMap<ObjectKey, String>>,
    /// Set once the role turned out not to allow the question.
    forbidden: AtomicBool,
}

#[derive(Deserialize)]
struct GuestOsInfo {
    #[serde(default)]
    hostname: String,
}

impl HostNames {
    pub(super) fn start(tasks: &TaskGroup, client: &Client, machines: &Machines, nodes: &Cache<Node>) {
        let names = Arc::new(Self {
            client: client.clone(),
            machines: machines.clone(),
            nodes: nodes.clone(),
            answered: Mutex::default(),
            forbidden: AtomicBool::new(false),
        });
        let queue: Queue<ObjectKey> = Queue::new();
        let worker = names.clone();
        queue.run(tasks, 2, move |key| {
            let names = worker.clone();
            async move { names.ask(key).await }
        });
        let (instances, woken) = (machines.0.instances.clone(), queue.clone());
        instances.on_change(move |change| {
            let is_connected = change.new.as_ref().is_some_and(|instance| has_agent(instance));
            if !is_connected {
                names.answered.lock().expect("no panic while remembering").remove(&change.key);
            } else if !change.old.as_ref().is_some_and(|instance| has_agent(instance)) {
                woken.add(change.key.clone());
            }
        });
        let instances = machines.0.instances.clone();
        nodes.on_change(move |change| {
            if change.old.is_none() {
                for instance in instances.list() {
                    queue.add(ObjectKey::of(&*instance));
                }
            }
        });
    }

    async fn ask(&self, key: ObjectKey) -> Result<Action, kube::Error> {
        // whom the Nodes are is known only when the lists are complete
        self.nodes.ready().await;
        self.machines.ready().await;
        let Some(instance) = self.machines.0.instances.get(&key).filter(|instance| has_agent(instance))
        else {
            return Ok(Action::AwaitChange);
        };
        let uid = instance.uid().unwrap_or_default();
        let answered = self.answered.lock().expect("no panic while remembering").get(&key) == Some(&uid);
        if answered || self.forbidden.load(Ordering::Relaxed) || !self.is_worth_asking(&key.name) {
            return Ok(Action::AwaitChange);
        }
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{}/guestosinfo",
            key.namespace, key.name
        );
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        match self.client.request::<GuestOsInfo>(request).await {
            Ok(info) if info.hostname.is_empty() => {
                tracing::debug!(vm = %key, "the guest agent does not say the host name yet");
                Ok(Action::RequeueAfter(ASK_AGAIN))
            }
            Ok(info) => {
                self.answered.lock().expect("no panic while remembering").insert(key.clone(), uid);
                let changed = self.machines.directory().set_host_name(&key.name, &info.hostname);
                if changed {
                    tracing::info!(vm = %key, host_name = info.hostname, "learned a host name");
                    self.machines.tell();
                }
                Ok(Action::AwaitChange)
            }
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                self.forbidden.store(true, Ordering::Relaxed);
                tracing::warn!("host names of VMs may not be read: nodes must have the names of their VMs");
                Ok(Action::AwaitChange)
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Action::AwaitChange),
            Err(error) => Err(error),
        }
    }

    fn is_worth_asking(&self, vm: &str) -> bool {
        let nodes = self.nodes.list();
        let facts = nodes.iter().filter_map(|node| {
            let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
            Some((node.metadata.name.as_deref()?, provider_id.unwrap_or_default()))
        });
        self.machines.directory().is_worth_asking(vm, facts)
    }
}

fn has_agent(instance: &VirtualMachineInstance) -> bool {
    let conditions = instance.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    conditions.iter().any(|condition| condition.r#type == "AgentConnected" && condition.status == "True")
}
