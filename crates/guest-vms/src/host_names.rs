//! Host names, from the guest agents.
//!
//! A guest agent is asked when it is connected and no Node is known to be its VM; then once for the VM's life, unless
//! the agent goes away and comes back. One that reports no host name is asked again after a growing pause. The Go
//! program asked at every change of every VM of the namespace (docs/contract/cloud-controller-manager.md#V1).

mod asked;

use std::sync::{Arc, Mutex, MutexGuard};

use controller_kit::{Action, Cache, ObjectKey, Queue};
use harvester_api::VirtualMachineInstance;
use http::Request;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt};
use program::{
    TaskGroup,
    capabilities::{Capabilities, REFUSED_PERIOD, Right},
};
use serde::Deserialize;

use self::asked::Asked;
use crate::{GuestVms, directory, other_owners::may_be_a_vm, vms::provider_id};

pub(crate) struct HostNames {
    client: Client,
    vms: GuestVms,
    nodes: Cache<Node>,
    capabilities: Capabilities,
    right: Right,
    asked: Mutex<Asked>,
}

#[derive(Deserialize)]
struct GuestOsInfo {
    #[serde(default)]
    hostname: String,
}

/// The facts that decide whether a VM is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    has_agent: bool,
    /// This VMI has answered.
    answered: bool,
    /// The role grants the question.
    allowed: bool,
    /// The VM may be of this cluster, and it is the VM of no known Node.
    useful: bool,
}

/// Whether to ask. A refused right needs no period here: `Capabilities` notices the grant, which requeues every VM.
fn decide(seen: Seen) -> bool {
    let Seen { has_agent, answered, allowed, useful } = seen;
    has_agent && !answered && allowed && useful
}

/// The right to ask the VMs of `namespace` for their host names; the existing role grants it since Harvester 1.3.
pub fn right(namespace: &str) -> Right {
    Right::new("get", "subresources.kubevirt.io", "virtualmachineinstances")
        .on("guestosinfo")
        .within(namespace)
}

impl HostNames {
    pub(crate) fn start(
        tasks: &TaskGroup,
        client: &Client,
        vms: &GuestVms,
        nodes: &Cache<Node>,
        capabilities: &Capabilities,
    ) -> impl Fn() + Send + Sync + 'static + use<> {
        let names = Arc::new(Self {
            client: client.clone(),
            vms: vms.clone(),
            nodes: nodes.clone(),
            capabilities: capabilities.clone(),
            right: right(&vms.shared().namespace),
            asked: Mutex::default(),
        });
        let queue: Queue<ObjectKey> = Queue::new();
        let worker = names.clone();
        queue.run(tasks, 2, move |key| {
            let names = worker.clone();
            async move { names.ask(key).await }
        });
        let everybody = {
            let (queue, vms, names) = (queue.clone(), vms.clone(), names.clone());
            move || {
                names.asked().keep(|vm| vms.directory().is_known(vm));
                for vmi in vms.shared().vmis.list() {
                    queue.add(ObjectKey::of(&*vmi));
                }
                let strangers = vms.directory().strangers();
                for name in strangers {
                    queue.add(ObjectKey::new(&vms.shared().namespace, &name));
                }
            }
        };
        capabilities.on_change(everybody.clone());
        let (waiting, all) = (names.clone(), everybody.clone());
        tasks.spawn_until_stop(async move {
            waiting.nodes.ready().await;
            waiting.vms.ready().await;
            all();
        });
        vms.shared().vmis.on_change(move |change| {
            let is_connected = change.new.as_ref().is_some_and(|vmi| has_agent(vmi));
            if !is_connected {
                names.asked().forget(&change.key.name);
            } else if !change.old.as_ref().is_some_and(|vmi| has_agent(vmi)) {
                queue.add(change.key.clone());
            }
        });
        let all = everybody.clone();
        nodes.on_change(move |change| {
            if change.old.is_none() {
                all();
            }
        });
        everybody
    }

    async fn ask(&self, key: ObjectKey) -> Result<Action, kube::Error> {
        // the VMs of the Nodes are known only when the lists are complete, which a refused list never is: a worker that
        // waited for it would hold up the end of the process
        if !(self.nodes.is_ready() && self.vms.is_complete()) {
            return Ok(Action::AwaitChange);
        }
        let watched = self.vms.shared().vmis.get(&key.name);
        let found = match &watched {
            Some(vmi) => vmi.uid().map(|uid| (uid, has_agent(vmi))),
            // a search looks for those with an agent alone
            None => self.vms.directory().stranger(&key.name).map(|uid| (uid.to_owned(), true)),
        };
        let Some((uid, has_agent)) = found else { return Ok(Action::AwaitChange) };
        let seen = Seen {
            has_agent,
            answered: self.asked().is_answered(&key.name, &uid),
            allowed: self.capabilities.allows(&self.right),
            useful: self.is_useful(&key.name),
        };
        if !decide(seen) {
            // where the server answers no questions about rights, nobody says when the next try is due
            let waits_for_the_right = decide(Seen { allowed: true, ..seen });
            return Ok(if waits_for_the_right {
                Action::RequeueAfter(REFUSED_PERIOD)
            } else {
                Action::AwaitChange
            });
        }
        let answer = guest_os_info(&self.client, &key).await;
        if answer.is_ok() {
            self.capabilities.worked(&self.right);
        }
        match answer {
            Ok(info) if info.hostname.is_empty() => {
                tracing::debug!(vm = %key, "the guest agent does not report the host name yet");
                Ok(Action::RequeueAfter(self.asked().silent(&key.name, &uid)))
            }
            Ok(info) => {
                let (changed, is_known) = {
                    let mut directory = self.vms.directory();
                    (directory.set_host_name(&key.name, &info.hostname), directory.is_known(&key.name))
                };
                if changed {
                    self.vms.shared().names.notify_one();
                    self.vms.notify();
                }
                // a system that is just booting may say "(none)"
                let Some(host_name) = directory::node_name(&info.hostname) else {
                    tracing::debug!(vm = %key, "the guest agent reports a host name that no Node can have");
                    return Ok(Action::RequeueAfter(self.asked().silent(&key.name, &uid)));
                };
                // the answer for a VM that was dropped meanwhile went nowhere: the next search asks again
                if is_known {
                    self.asked().given(&key.name, &uid);
                }
                if changed {
                    tracing::info!(vm = %key, host_name, "learned a host name");
                }
                Ok(Action::AwaitChange)
            }
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                self.capabilities.refused(&self.right);
                tracing::debug!("host names of VMs may not be read: nodes must have the names of their VMs");
                Ok(Action::RequeueAfter(REFUSED_PERIOD))
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Action::AwaitChange),
            Err(error) => match self.asked().failed(&key.name, &uid) {
                Some(pause) => Ok(Action::RequeueAfter(pause)),
                None => Err(error),
            },
        }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().expect("no panic while remembering")
    }

    fn is_useful(&self, vm: &str) -> bool {
        is_useful(&self.vms, &self.nodes.list(), vm)
    }
}

fn is_useful(vms: &GuestVms, nodes: &[Arc<Node>], vm: &str) -> bool {
    let nodes = nodes.iter().filter(|node| may_be_a_vm(node));
    let facts = nodes.filter_map(|node| Some((node.metadata.name.as_deref()?, provider_id(node))));
    vms.directory().is_worth_asking(vm, facts)
}

async fn guest_os_info(client: &Client, key: &ObjectKey) -> kube::Result<GuestOsInfo> {
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{}/guestosinfo",
        key.namespace, key.name
    );
    client.request(Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?).await
}

/// A program that looks once asks so many guest agents at most.
const ASKED_ONCE: usize = 100;

impl GuestVms {
    /// Asks the guest agents of the VMs that none of `nodes` is known to be for their host names, once and as long as
    /// one of `nodes` has no VM. The watches of a running program ask by themselves ([`GuestVms::follow_nodes`]).
    ///
    /// # Errors
    /// The server refuses the question. A single agent that does not answer is no error.
    pub async fn ask_host_names_once(&self, client: &Client, nodes: &[Arc<Node>]) -> kube::Result<()> {
        for vmi in self.shared().vmis.list().iter().filter(|vmi| has_agent(vmi)).take(ASKED_ONCE) {
            let key = ObjectKey::of(&**vmi);
            let all_found = nodes.iter().all(|node| self.vm_of(node).is_some());
            if all_found || !is_useful(self, nodes, &key.name) {
                continue;
            }
            match guest_os_info(client, &key).await {
                Ok(info) if info.hostname.is_empty() => {}
                Ok(info) => {
                    self.directory().set_host_name(&key.name, &info.hostname);
                }
                Err(kube::Error::Api(status)) if !status.is_forbidden() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

pub(crate) fn has_agent(vmi: &VirtualMachineInstance) -> bool {
    let conditions = vmi.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    conditions.iter().any(|condition| is_agent(&condition.r#type, &condition.status))
}

/// Whether a condition of an instance says that its guest agent is connected.
pub(crate) fn is_agent(condition: &str, status: &str) -> bool {
    condition == "AgentConnected" && status == "True"
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const ASK: Seen = Seen { has_agent: true, answered: false, allowed: true, useful: true };

    #[rstest]
    #[case::unknown_vm(ASK, true)]
    #[case::no_agent(Seen { has_agent: false, ..ASK }, false)]
    #[case::has_answered(Seen { answered: true, ..ASK }, false)]
    #[case::not_granted(Seen { allowed: false, ..ASK }, false)]
    #[case::the_node_is_known(Seen { useful: false, ..ASK }, false)]
    fn a_guest_agent_is_asked_only_where_nothing_else_tells(#[case] seen: Seen, #[case] asked: bool) {
        assert_eq!(decide(seen), asked);
    }
}
