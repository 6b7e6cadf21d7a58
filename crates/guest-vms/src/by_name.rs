//! VMs that are read by the names of Nodes, while they cannot be listed: a role may grant `get` and not `list`, and the
//! Go program needed no more.
//!
//! A VM that is read this way has no watch, so this has a period ([`READ_AGAIN`]).

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{Action, Cache, ObjectKey, Queue, Watched};
use harvester_api::names::PROVIDER_ID_PREFIX;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, core::NamespaceResourceScope};
use program::TaskGroup;
use tokio::sync::Notify;

use crate::{GuestVms, directory::is_uid, other_owners::may_be_a_vm, vms::provider_id, watches::Watches};

/// Until the list works, the VM of each Node is read again after this time.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// The Nodes whose VM was read by name.
#[derive(Debug, Default)]
pub(crate) struct NamesRead {
    read: Mutex<Read>,
    /// Rung where another server answers by now.
    cleared: Notify,
}

#[derive(Debug, Default)]
struct Read {
    nodes: HashSet<String>,
    /// How often another server was the one that answers.
    server: u64,
}

impl NamesRead {
    pub(crate) fn contains(&self, node: &str) -> bool {
        self.read().nodes.contains(node)
    }

    pub(crate) fn is_used(&self) -> bool {
        !self.read().nodes.is_empty()
    }

    /// Another server answers by now: all are read again.
    pub(crate) fn clear(&self) {
        let mut read = self.read();
        *read = Read { nodes: HashSet::new(), server: read.server + 1 };
        drop(read);
        self.cleared.notify_one();
    }

    /// The server that answers now, of those that did.
    fn server(&self) -> u64 {
        self.read().server
    }

    fn read(&self) -> MutexGuard<'_, Read> {
        self.read.lock().expect("no panic while remembering")
    }

    /// Answers whether that is new. Of a read that began at a former server nothing is kept.
    fn add(&self, node: &str, server: u64) -> bool {
        let mut read = self.read();
        read.server == server && read.nodes.insert(node.to_owned())
    }

    /// Answers whether it was there.
    fn remove(&self, node: &str) -> bool {
        self.read().nodes.remove(node)
    }
}

#[derive(Clone)]
pub(crate) struct NamedReads {
    client: Client,
    vms: GuestVms,
    nodes: Cache<Node>,
}

impl NamedReads {
    pub(crate) fn start(tasks: &TaskGroup, client: &Client, vms: &GuestVms, nodes: &Cache<Node>) {
        let reads = Self { client: client.clone(), vms: vms.clone(), nodes: nodes.clone() };
        let queue: Queue<ObjectKey> = Queue::new();
        let worker = reads.clone();
        queue.run(tasks, 1, move |key| {
            let reads = worker.clone();
            async move { Ok::<_, kube::Error>(reads.read(&key).await) }
        });
        let (into, of) = (queue.clone(), nodes.clone());
        let add_all = move || of.list().iter().for_each(|node| into.add(ObjectKey::of(&**node)));
        for (_, mut errors) in vms.watch_errors() {
            let add_all = add_all.clone();
            tasks.spawn_until_stop(async move {
                while errors.changed().await.is_ok() {
                    if errors.borrow_and_update().is_some() {
                        add_all();
                    }
                }
            });
        }
        // the words of a refusal may be the same at another server
        let cleared = vms.clone();
        tasks.spawn_until_stop(async move {
            loop {
                cleared.names_read().cleared.notified().await;
                add_all();
            }
        });
        nodes.on_change(move |change| match (&change.old, &change.new) {
            (None, Some(node)) if reads.is_needed(node) => queue.add(change.key.clone()),
            (_, None) => reads.forget(&change.key.name),
            _ => {}
        });
    }

    fn is_needed(&self, node: &Node) -> bool {
        let (name, shared) = (vm_name(node), self.vms.shared());
        may_be_a_vm(node) && (shared.vms.is_broken(&name) || shared.vmis.is_broken(&name))
    }

    /// Nothing is known of the Node's VM by its name any more, and those who asked for it hear of that.
    fn forget(&self, node: &str) {
        if self.vms.names_read().remove(node) {
            self.vms.notify();
        }
    }

    async fn read(&self, key: &ObjectKey) -> Action {
        let Some(node) = self.nodes.get(key).filter(|node| self.is_needed(node)) else {
            self.forget(&key.name);
            return Action::AwaitChange;
        };
        let name = vm_name(&node);
        let (shared, server) = (self.vms.shared(), self.vms.names_read().server());
        let vm = refresh(&self.client, &shared.namespace, &name, &shared.vms).await;
        let vmi = refresh(&self.client, &shared.namespace, &name, &shared.vmis).await;
        match vm.and(vmi) {
            Ok(()) => {
                if self.vms.names_read().add(&key.name, server) {
                    tracing::info!(
                        node = key.name,
                        vm = name,
                        "VMs cannot be listed; this one was read by name"
                    );
                    self.vms.notify();
                }
            }
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    vm = name,
                    "a VM cannot be read by name"
                );
            }
        }
        Action::RequeueAfter(READ_AGAIN)
    }
}

/// The name to read a Node's VM by. Some tools write it into the provider ID, where the UID belongs.
fn vm_name(node: &Node) -> String {
    let id = provider_id(node).strip_prefix(PROVIDER_ID_PREFIX).filter(|id| !is_uid(id) && !id.is_empty());
    id.map_or_else(|| node.name_any(), str::to_owned)
}

/// Reads one object into its watch; one that is not there leaves it.
async fn refresh<K>(client: &Client, namespace: &str, name: &str, watches: &Watches<K>) -> kube::Result<()>
where
    K: Watched + kube::Resource<Scope = NamespaceResourceScope>,
{
    let answers = watches.answers(name);
    let found = Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await?;
    if let Some(answers) = answers {
        watches.was_read(name, found, &answers);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::new("", "worker-1")]
    #[case::initialised("harvester://d4b50d98-39ec-4d88-8098-36579de5db4a", "worker-1")]
    #[case::named("harvester://vm-7", "vm-7")]
    #[case::of_a_distribution("k3s://worker-7", "worker-1")]
    fn a_vm_is_read_by_the_name_that_its_node_has_or_gives(
        #[case] provider_id: &str,
        #[case] expected: &str,
    ) {
        let node = json!({"metadata": {"name": "worker-1"}, "spec": {"providerID": provider_id}});
        assert_eq!(vm_name(&serde_json::from_value(node).unwrap()), expected);
    }

    #[test]
    fn a_read_that_began_at_the_former_server_does_not_count_at_another() {
        let read = NamesRead::default();
        let former = read.server();
        read.clear();
        assert!(!read.add("worker-1", former) && !read.contains("worker-1"));
        assert!(read.add("worker-1", read.server()) && read.contains("worker-1"));
    }
}
