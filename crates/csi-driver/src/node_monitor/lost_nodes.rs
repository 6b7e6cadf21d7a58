//! The running part: taints the Nodes of lost machines, and removes these taints.
//!
//! ```text
//! Nodes, CSINodes of the guest ──┐
//! machines, instances, claims ───┼─► decide ─► read Node and machine afresh ─► PUT of the Node
//!               of the host      │
//! time, by the process's clock ──┘
//! ```

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use controller_kit::{
    Action, Cache, Change, ObjectKey, PendingEvent, Queue, RawObject, Recorder, Watched, replace,
};
use harvester_api::{
    VirtualMachine, VirtualMachineInstance, annotations, labels,
    names::{CSI_DRIVER, PROVIDER_ID_PREFIX},
};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::CSINode,
};
use kube::{Api, Client, Resource, ResourceExt};
use program::{
    TaskGroup,
    capabilities::{Capabilities, Right},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    GUEST_ROLE, HOST_ROLE,
    decide::{self, Plan, Seen, Step, decide, is_unready, spell},
    labels::NOBODYS,
    machine::{self, Machine, Traces},
};
use crate::{
    attach::ownership::Ownership,
    host::{self, Host},
    node_id::OwnMachine,
    refusal::error_message,
    volume::name::HostName,
};

/// Without it no Node is tainted; an Event says so where one would be. Existing roles grant no `patch` on Nodes.
pub const UPDATE_NODES: Right = Right::new("update", "", "nodes");

/// Machines whose deletion the watch has told, at most: the oldest knowledge is given up all at once.
const MOST_DELETED: usize = 10_000;

/// What both clusters show.
#[derive(Clone)]
pub struct Sources {
    pub nodes: Cache<Node>,
    pub csi_nodes: Cache<CSINode>,
    pub volumes: Cache<PersistentVolume>,
    pub machines: Cache<VirtualMachine>,
    pub instances: Cache<VirtualMachineInstance>,
    pub claims: Cache<PersistentVolumeClaim>,
    /// The machine that this process runs in.
    pub machine: watch::Receiver<OwnMachine>,
}

struct LostNodes {
    guest: Client,
    host: Host,
    sources: Sources,
    recorder: Recorder,
    capabilities: Capabilities,
    /// The server answers no questions about rights: the next write is tried, although the last was refused.
    is_try_due: AtomicBool,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// By the UIDs of Nodes.
    spells: HashMap<String, Spell>,
    deleted: Vec<Deleted>,
}

/// A machine whose deletion the watch told, whosever it was.
struct Deleted {
    name: String,
    uid: Option<String>,
    /// By its label.
    cluster: Option<String>,
}

/// A time in which a Node is not ready.
struct Spell {
    is: String,
    unready: Instant,
    lost: Option<Instant>,
    /// The Event that was recorded last.
    told: Option<PendingEvent>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("node {node}: {doing}")]
    Request { node: String, doing: String, source: kube::Error },
}

/// The machine that a Node names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Named {
    /// Empty where only the UID is known.
    name: String,
    uid: Option<String>,
    /// Only machines of this host have such names.
    is_sure: bool,
}

/// Starts the controller; it works until `tasks` ends.
pub fn start(
    tasks: &TaskGroup,
    guest: Client,
    host: Host,
    sources: Sources,
    recorder: Recorder,
    capabilities: &Capabilities,
) {
    let controller = Arc::new(LostNodes {
        guest,
        host,
        sources,
        recorder,
        capabilities: capabilities.clone(),
        is_try_due: AtomicBool::new(false),
        memory: Mutex::default(),
    });
    let queue = Queue::<ObjectKey>::new();
    let worker = controller.clone();
    queue.run(tasks, 1, move |key| {
        let controller = worker.clone();
        async move { controller.reconcile(&key).await }
    });
    controller.follow(tasks, &queue);
}

impl LostNodes {
    fn follow(self: &Arc<Self>, tasks: &TaskGroup, queue: &Queue<ObjectKey>) {
        let Sources { nodes, csi_nodes, machines, instances, .. } = &self.sources;
        let (controller, changed) = (self.clone(), queue.clone());
        nodes.on_change(move |change| match &change.new {
            None => {
                let uid = change.old.as_ref().and_then(|node| node.uid()).unwrap_or_default();
                controller.memory().spells.remove(&uid);
            }
            Some(_) if matters(change) => changed.add(change.key.clone()),
            Some(_) => {}
        });
        let changed = queue.clone();
        csi_nodes.on_change(move |change| changed.add(change.key.clone()));
        let controller = self.clone();
        machines.on_delete(move |machine| {
            let mut memory = controller.memory();
            if memory.deleted.len() >= MOST_DELETED {
                memory.deleted.clear();
            }
            let (name, uid) = (machine.name_any(), machine.uid());
            memory.deleted.push(Deleted { name, uid, cluster: cluster(machine) });
        });
        let (nodes, queue) = (nodes.clone(), queue.clone());
        // the rest is about Nodes that are not ready; there are none at most times
        let wake = move || {
            for node in nodes.list() {
                if is_unready(&node) || decide::has_own_taint(&node) {
                    queue.add(ObjectKey::of(&*node));
                }
            }
        };
        wakes(tasks, machines, &wake);
        wakes(tasks, instances, &wake);
        follow_errors(tasks, csi_nodes, &wake);
        self.capabilities.on_change(wake.clone());
        let controller = self.clone();
        self.capabilities.on_try(move |right| {
            if *right == UPDATE_NODES {
                controller.is_try_due.store(true, Ordering::SeqCst);
                wake();
            }
        });
    }

    async fn reconcile(&self, key: &ObjectKey) -> Result<Action, Error> {
        let Some(node) = self.sources.nodes.get(key) else { return Ok(Action::AwaitChange) };
        let named = is_unready(&node).then(|| self.named(&node)).flatten();
        let machine = if is_unready(&node) { self.machine(&node, named.as_ref()) } else { Machine::Runs };
        let (unready_for, lost_for) = self.durations(&node, &machine);
        let may_write = self.capabilities.allows(&UPDATE_NODES) || self.is_try_due.load(Ordering::SeqCst);
        let seen =
            Seen { node: &node, machine: &machine, unready_for, lost_for, may_write, role: GUEST_ROLE };
        let Plan { step, event, again } = decide(&seen);
        if let Some(event) = event {
            self.tell(&node, event);
        }
        let Some(step) = step else {
            return Ok(again.map_or(Action::AwaitChange, Action::RequeueAfter));
        };
        if step == Step::Taint && !self.is_lost_afresh(&node, named.as_ref()).await? {
            return Ok(Action::RequeueAfter(decide::LOST_FOR));
        }
        self.write(&node, step, &machine).await
    }

    /// For how long the Node has not been ready, and its machine lost as well.
    fn durations(&self, node: &Node, machine: &Machine) -> (Duration, Duration) {
        let (uid, now) = (node.uid().unwrap_or_default(), Instant::now());
        let mut memory = self.memory();
        if !is_unready(node) {
            // what was told of a Node that is ready is told again of its next silence
            if !decide::has_taint(node) {
                memory.spells.remove(&uid);
            }
            return (Duration::ZERO, Duration::ZERO);
        }
        let is = spell(node);
        let new = || Spell { is: is.clone(), unready: now, lost: None, told: None };
        let spell = memory.spells.entry(uid).or_insert_with(new);
        if spell.is != is {
            *spell = new();
        }
        spell.lost = match machine {
            Machine::Lost(_) => spell.lost.or(Some(now)),
            Machine::Runs | Machine::Unknown(_) => None,
        };
        (now - spell.unready, spell.lost.map_or(Duration::ZERO, |since| now - since))
    }

    /// Records the Event unless it was the last one about this Node.
    fn tell(&self, node: &Node, event: PendingEvent) {
        let now = Instant::now();
        let new = || Spell { is: spell(node), unready: now, lost: None, told: None };
        let mut memory = self.memory();
        let known = memory.spells.entry(node.uid().unwrap_or_default()).or_insert_with(new);
        if known.told.as_ref() != Some(&event) {
            self.recorder.publish(&node.object_ref(&()), &event);
            known.told = Some(event);
        }
    }

    /// The machine that kubelet's record, else the provider ID, else the Node's own name names.
    fn named(&self, node: &Node) -> Option<Named> {
        let name = node.name_any();
        let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let by_provider = provider_id.strip_prefix(PROVIDER_ID_PREFIX).filter(|id| !id.is_empty());
        let csi_node = self.sources.csi_nodes.get(&ObjectKey::new("", &name));
        let noted = csi_node.and_then(|csi_node| {
            let driver = csi_node.spec.drivers.iter().find(|driver| driver.name == CSI_DRIVER)?;
            Some(driver.node_id.clone()).filter(|id| !id.is_empty())
        });
        Some(match (noted, by_provider) {
            (Some(id), by_provider) => {
                let is_sure = by_provider.is_some() || id != name || self.has_volume(&id);
                Named { name: id, uid: None, is_sure }
            }
            (None, Some(id)) => {
                let machines = self.sources.machines.list();
                let found = machines.iter().find(|vm| vm.metadata.uid.as_deref() == Some(id));
                match found {
                    Some(vm) => Named { name: vm.name_any(), uid: Some(id.to_owned()), is_sure: true },
                    None if id == name => Named { name, uid: None, is_sure: true },
                    None => Named { name: String::new(), uid: Some(id.to_owned()), is_sure: true },
                }
            }
            (None, None) => Named { is_sure: self.has_volume(&name), name, uid: None },
        })
        // each kubelet writes its own CSINode, and the name becomes part of a path
        .filter(|named| named.name.is_empty() || HostName::from_handle(&named.name).is_some())
    }

    /// Whether a volume of this guest is in the machine of this name, by the driver's annotation. The namespace has claims
    /// of others too, which anybody may annotate.
    fn has_volume(&self, machine: &str) -> bool {
        let Sources { volumes, machines, claims, .. } = &self.sources;
        let vm = machines.get(&ObjectKey::new(self.host.namespace(), machine));
        let claims = claims.list();
        let mut within = claims.iter().filter(|claim| {
            recorded(claim).is_some_and(|recorded| {
                recorded.vm == machine && vm.as_ref().is_none_or(|vm| vm.uid() == Some(recorded.vm_uid))
            })
        });
        within.any(|claim| {
            let name = claim.name_any();
            volumes.list().iter().any(|volume| {
                let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
                csi.is_some_and(|csi| csi.driver == CSI_DRIVER && csi.volume_handle == name)
            })
        })
    }

    /// The Node's machine as the caches show it.
    fn machine(&self, node: &Node, named: Option<&Named>) -> Machine {
        let Sources { csi_nodes, machines, instances, .. } = &self.sources;
        let unheard = [
            (unheard(csi_nodes), "CSINodes", GUEST_ROLE),
            (unheard(machines), "VirtualMachines", HOST_ROLE),
            (unheard(instances), "VirtualMachineInstances", HOST_ROLE),
        ];
        if let Some((Some(why), kind, role)) = unheard.into_iter().find(|(why, ..)| why.is_some()) {
            return Machine::Unknown(format!("{kind} cannot be read ({why}; {role} grants list and watch)"));
        }
        let Some(named) = named else { return Machine::Unknown("it names no machine".to_owned()) };
        let key = ObjectKey::new(self.host.namespace(), &named.name);
        let (vm, vmi) = (machines.get(&key), instances.get(&key));
        let machine = self.host.machine_name(shown(named));
        if vm.as_deref().is_some_and(|vm| !self.is_proved(named, vm)) {
            return Machine::Unknown(format!(
                "{machine} has the Node's name, and nothing proves that it is the Node's machine: a provider ID \
                 {PROVIDER_ID_PREFIX}… of the Node would, or the label {} of this cluster on the machine",
                labels::GUEST_CLUSTER
            ));
        }
        let traces = self.traces(node, named, vm.is_some());
        machine::state(&machine, vm.as_deref(), vmi.as_deref(), traces)
    }

    /// Whether a machine of the Node's name is the Node's: another cluster of the namespace may have one of that name.
    fn is_proved(&self, named: &Named, vm: &VirtualMachine) -> bool {
        named.is_sure || self.cluster().is_some_and(|own| cluster(vm) == Some(own))
    }

    /// The label of the machine that this process runs in.
    fn cluster(&self) -> Option<String> {
        let name = self.sources.machine.borrow().name()?.to_owned();
        cluster(&*self.sources.machines.get(&ObjectKey::new(self.host.namespace(), name))?)
    }

    fn traces(&self, node: &Node, named: &Named, is_there: bool) -> Traces {
        if is_there {
            return Traces::default();
        }
        let own = self.cluster();
        let deleted = self.memory().deleted.iter().any(|deleted| match (&deleted.cluster, &own) {
            _ if named.uid.is_some() => deleted.uid == named.uid,
            _ if deleted.name != named.name => false,
            // one of another cluster may have had the Node's name
            (Some(cluster), Some(own)) => cluster == own,
            _ => named.is_sure,
        });
        let machines = &self.sources.machines;
        let others = self.sources.nodes.list();
        let has_others = || {
            others.iter().filter(|other| other.uid() != node.uid()).any(|other| {
                let named = self.named(other).filter(|named| named.is_sure && !named.name.is_empty());
                named.is_some_and(|named| {
                    machines.get(&ObjectKey::new(self.host.namespace(), &named.name)).is_some()
                })
            })
        };
        Traces { deleted, named: named.is_sure, has_others: named.is_sure && has_others() }
    }

    /// Whether uncached reads of both clusters show the same: a process that stood still for a while has caches of then.
    async fn is_lost_afresh(&self, node: &Node, named: Option<&Named>) -> Result<bool, Error> {
        let Some(named) = named else { return Ok(false) };
        let failed = |doing: String| move |source| Error::Request { node: node.name_any(), doing, source };
        let now = Api::<Node>::all(self.guest.clone()).get_opt(&node.name_any()).await;
        let now = now.map_err(failed("read it".to_owned()))?;
        if now.is_none_or(|now| spell(&now) != spell(node)) {
            return Ok(false);
        }
        let machine = self.host.machine_name(shown(named));
        let (vm, vmi) = if named.name.is_empty() {
            let all = host::list(&self.host.machines()).await;
            let all = all.map_err(failed(format!("look for {machine}")))?;
            (all.into_iter().find(|vm| vm.metadata.uid == named.uid), None)
        } else {
            let (machines, instances) = (self.host.machines(), self.host.instances());
            let read = tokio::try_join!(machines.get_opt(&named.name), instances.get_opt(&named.name));
            read.map_err(failed(format!("read {machine} and its instance")))?
        };
        if vm.as_ref().is_some_and(|vm| !self.is_proved(named, vm)) {
            return Ok(false);
        }
        let traces = self.traces(node, named, vm.is_some());
        let state = machine::state(&machine, vm.as_ref(), vmi.as_ref(), traces);
        Ok(matches!(state, Machine::Lost(_)) && !(named.name.is_empty() && vm.is_some()))
    }

    /// Writes the Node as it is now, if it is as it was.
    async fn write(&self, node: &Node, step: Step, machine: &Machine) -> Result<Action, Error> {
        let name = node.name_any();
        let failed = |doing: &str| {
            let (node, doing) = (name.clone(), doing.to_owned());
            move |source| Error::Request { node, doing, source }
        };
        let api = Api::<RawObject<Node>>::all(self.guest.clone());
        let read = api.get_opt(&name).await.map_err(failed("read it"))?;
        let Some(read) = read.filter(|read| spell(read) == spell(node)) else {
            // the watch will tell
            return Ok(Action::RequeueAfter(decide::LOST_FOR));
        };
        let Some(changed) = read.edited(|json| change(json, step)) else { return Ok(Action::AwaitChange) };
        self.is_try_due.store(false, Ordering::SeqCst);
        match replace::<Node>(&self.guest, &changed).await {
            Ok(_) => {
                self.capabilities.worked(&UPDATE_NODES);
                tracing::info!(node = name, ?step, ?machine);
                self.recorder.publish(&node.object_ref(&()), &decide::done(step, &name, machine));
                Ok(Action::AwaitChange)
            }
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                // decided again without the right, the Node is told
                self.capabilities.refused(&UPDATE_NODES);
                Ok(Action::RequeueAfter(Duration::ZERO))
            }
            Err(source) => {
                tracing::warn!(node = name, ?step, "the Node was not written: {}", error_message(&source));
                Err(failed("write its taints")(source))
            }
        }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().expect("no panic while the memory is changed")
    }
}

/// The Node's JSON with our taint or without it; taints of others stay as they are.
fn change(json: &mut Value, step: Step) {
    let taints = &mut json["spec"]["taints"];
    let list = taints.as_array_mut().map(std::mem::take).unwrap_or_default();
    let is_key = |taint: &Value| taint["key"] == decide::OUT_OF_SERVICE;
    let list: Vec<_> = match step {
        Step::Taint if list.iter().any(is_key) => list,
        Step::Taint => list.into_iter().chain([json!(decide::own_taint())]).collect(),
        Step::Untaint => {
            list.into_iter().filter(|taint| !(is_key(taint) && taint["value"] == CSI_DRIVER)).collect()
        }
    };
    *taints = if list.is_empty() { Value::Null } else { Value::Array(list) };
    if taints.is_null()
        && let Some(spec) = json["spec"].as_object_mut()
    {
        spec.remove("taints");
    }
}

/// Where the driver's annotation says that the volume is.
fn recorded(claim: &PersistentVolumeClaim) -> Option<Ownership> {
    Ownership::parse(claim.metadata.annotations.as_ref()?.get(annotations::CSI_ATTACH)?)
}

/// The cluster of a machine by its label.
fn cluster(vm: &VirtualMachine) -> Option<String> {
    vm.labels().get(labels::GUEST_CLUSTER).filter(|name| *name != NOBODYS).cloned()
}

fn shown(named: &Named) -> String {
    match &named.uid {
        Some(uid) if named.name.is_empty() => format!("with UID {uid}"),
        _ => named.name.clone(),
    }
}

/// Why the list of a kind says nothing now.
fn unheard<K: Watched>(cache: &Cache<K>) -> Option<String> {
    let unlisted = || (!cache.is_ready()).then(|| "the first list is not complete".to_owned());
    cache.watch_error().or_else(unlisted)
}

/// Whether a change of a Node is about more than a heartbeat, addresses or annotations.
fn matters(change: &Change<Node>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    (spell(old), &old.spec, old.labels()) != (spell(new), &new.spec, new.labels())
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
}

fn wakes<K: Watched>(
    tasks: &TaskGroup,
    cache: &Cache<K>,
    wake: &(impl Fn() + Clone + Send + Sync + 'static),
) {
    let woken = wake.clone();
    cache.on_change(move |_| woken());
    follow_errors(tasks, cache, wake);
}

fn follow_errors<K: Watched>(
    tasks: &TaskGroup,
    cache: &Cache<K>,
    wake: &(impl Fn() + Clone + Send + Sync + 'static),
) {
    let (listed, mut errors, wake) = (cache.clone(), cache.watch_errors(), wake.clone());
    tasks.spawn_until_stop(async move {
        listed.ready().await;
        wake();
        while errors.changed().await.is_ok() {
            wake();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_changes_our_taint_and_nothing_else() {
        let before = json!({"spec": {"podCIDR": "10.42.0.0/24", "taints": [{"key": "a", "effect": "NoSchedule", "future": 1}]}});
        let mut node = before.clone();
        change(&mut node, Step::Taint);
        let ours = json!({"key": decide::OUT_OF_SERVICE, "value": CSI_DRIVER, "effect": "NoExecute"});
        assert_eq!(node["spec"]["taints"][1], ours);
        change(&mut node, Step::Untaint);
        assert_eq!(node, before);
        let mut bare = json!({"spec": {}});
        change(&mut bare, Step::Taint);
        change(&mut bare, Step::Untaint);
        assert_eq!(bare, json!({"spec": {}}));
    }

    #[test]
    fn a_taint_that_came_meanwhile_is_not_doubled_and_not_removed() {
        let before = json!({"spec": {"taints": [{"key": decide::OUT_OF_SERVICE, "effect": "NoExecute"}]}});
        for step in [Step::Taint, Step::Untaint] {
            let mut node = before.clone();
            change(&mut node, step);
            assert_eq!(node, before);
        }
    }
}
