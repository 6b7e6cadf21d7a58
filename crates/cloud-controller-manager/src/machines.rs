//! Which VM is a Node, and what the Node learns from it.
//!
//! Everything comes from two watches, of VirtualMachines and of their instances. The one thing that has no watch is
//! the host name inside a VM; it is asked of the guest agent only where a Node cannot be told otherwise
//! (`host_names`).

mod addresses;
mod directory;
mod host_names;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use cloud_provider::{Instance, Instances, Machine};
use controller_kit::{Cache, Change, ObjectKey};
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations, labels, names::PROVIDER_ID_PREFIX};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, runtime::watcher};
use program::TaskGroup;
use serde_json::Value;

use self::{directory::Directory, host_names::HostNames};
use crate::{balancers::selector::Backend, cluster::GuestCluster, outage::Trouble};
pub use addresses::AddressRules;

type Listener = Arc<dyn Fn() + Send + Sync>;

/// The VMs of the namespace, as machines for Nodes and as backends for balancers. Cheap to clone.
#[derive(Clone)]
pub struct Machines(Arc<Shared>);

struct Shared {
    vms: Cache<VirtualMachine>,
    instances: Cache<VirtualMachineInstance>,
    namespace: String,
    rules: AddressRules,
    directory: Mutex<Directory>,
    listeners: Mutex<Vec<Listener>>,
    complete: AtomicBool,
}

/// The backends that eligible Nodes stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    /// Names of the VMs of the Nodes.
    pub eligible: BTreeSet<String>,
    /// Nodes whose VM is not known.
    pub nodes_without_vm: Vec<String>,
    /// All VMs of the namespace.
    pub all: Vec<Backend>,
}

impl Machines {
    /// Starts the watches, in the namespace of the cloud-config.
    pub fn start(
        tasks: &TaskGroup,
        client: &Client,
        namespace: &str,
        cluster: &GuestCluster,
        rules: AddressRules,
    ) -> Self {
        let config = watcher::Config::default;
        let vms = Api::namespaced(client.clone(), namespace);
        let instances = Api::namespaced(client.clone(), namespace);
        let machines = Self(Arc::new(Shared {
            vms: Cache::start_trimmed(tasks, vms, config(), trim_vm),
            instances: Cache::start_trimmed(tasks, instances, config(), trim_instance),
            namespace: namespace.to_owned(),
            rules,
            directory: Mutex::new(Directory::new(cluster)),
            listeners: Mutex::default(),
            complete: AtomicBool::new(false),
        }));
        let vms = machines.clone();
        machines.0.vms.on_change(move |change| vms.vm_changed(&change.key));
        let instances = machines.clone();
        machines.0.instances.on_change(move |change| instances.instance_changed(change));
        let waiting = machines.clone();
        tasks.spawn_until_stop(async move {
            waiting.0.vms.ready().await;
            waiting.0.instances.ready().await;
            waiting.0.complete.store(true, Ordering::Release);
            waiting.tell();
        });
        machines
    }

    /// Learns from now on the host names of VMs, where nothing else tells which Node they are.
    pub fn ask_for_host_names(&self, tasks: &TaskGroup, client: &Client, nodes: &Cache<Node>) {
        HostNames::start(tasks, client, self, nodes);
    }

    /// Waits until both kinds were listed once.
    pub async fn ready(&self) {
        self.0.vms.ready().await;
        self.0.instances.ready().await;
    }

    /// What cannot be listed now, and why.
    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        let kinds = [
            ("VirtualMachines", self.0.vms.trouble()),
            ("VirtualMachineInstances", self.0.instances.trouble()),
        ];
        kinds.into_iter().filter_map(|(kind, why)| Some((kind, why?))).collect()
    }

    /// Calls `listener` when a Node's VM, or anything that is said of VMs here, may have changed.
    pub fn on_change(&self, listener: Listener) {
        self.0.listeners.lock().expect("no panic while subscribing").push(listener);
    }

    /// The VMs behind `nodes`; nothing while the lists are not complete, because absence proves nothing then.
    pub fn backends(&self, nodes: &[Arc<Node>]) -> Option<Backends> {
        if !self.0.complete.load(Ordering::Acquire) {
            return None;
        }
        let mut backends = Backends::default();
        for node in nodes {
            match self.vm_of(node) {
                Some(vm) => {
                    backends.eligible.insert(vm);
                }
                None => backends.nodes_without_vm.push(node.name_any()),
            }
        }
        backends.all = self.0.vms.list().iter().map(|vm| self.backend(vm)).collect();
        Some(backends)
    }

    fn backend(&self, vm: &VirtualMachine) -> Backend {
        let instance = self.0.instances.get(&ObjectKey::of(vm));
        let label = |key: &str| match &instance {
            Some(instance) => instance.labels().get(key).cloned(),
            None => template_label(vm, key),
        };
        Backend { vm: vm.name_any(), cluster: label(labels::GUEST_CLUSTER), name: label(labels::VM_NAME) }
    }

    fn vm_of(&self, node: &Node) -> Option<String> {
        let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        self.directory().find(&node.name_any(), provider_id)
    }

    fn vm_changed(&self, key: &ObjectKey) {
        let vm = self.0.vms.get(key);
        let entry = vm.as_ref().map(|vm| {
            let cluster = vm.labels().get(labels::GUEST_CLUSTER).cloned();
            (vm.uid().unwrap_or_default(), cluster.or_else(|| template_label(vm, labels::GUEST_CLUSTER)))
        });
        let changed = self.directory().set_vm(&key.name, entry);
        if changed {
            self.tell();
        }
    }

    fn instance_changed(&self, change: &Change<VirtualMachineInstance>) {
        if change.old.as_deref().map(Essence::of) != change.new.as_deref().map(Essence::of) {
            self.tell();
        }
    }

    fn tell(&self) {
        let listeners = self.0.listeners.lock().expect("no panic while subscribing").clone();
        for listener in listeners {
            listener();
        }
    }

    fn directory(&self) -> std::sync::MutexGuard<'_, Directory> {
        self.0.directory.lock().expect("no panic while looking up")
    }
}

impl Instances for Machines {
    fn instance(&self, node: &Node) -> Instance {
        let found = self.vm_of(node).map(|name| ObjectKey::new(&self.0.namespace, name));
        let Some(vm) = found.as_ref().and_then(|key| self.0.vms.get(key)) else {
            let name = node.name_any();
            return Instance::Missing(format!(
                "no VM in Harvester namespace {} is node {name}: none has this name, and no guest agent reports it as host name",
                self.0.namespace
            ));
        };
        let instance = self.0.instances.get(&ObjectKey::of(&*vm));
        let place = |key: &str| {
            let instance = instance.as_ref().filter(|instance| stays_put(instance))?;
            instance.annotations().get(key).cloned()
        };
        Instance::Found(Machine {
            provider_id: format!("{PROVIDER_ID_PREFIX}{}", vm.uid().unwrap_or_default()),
            zone: place(annotations::TOPOLOGY_ZONE),
            region: place(annotations::TOPOLOGY_REGION),
            internal_ips: instance.as_ref().map(|it| self.0.rules.internal_ips(it)).unwrap_or_default(),
        })
    }

    fn subscribe(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.on_change(wake);
    }
}

/// Annotations of an instance that is on the move, or on its way out, are not those of the place where it will be.
fn stays_put(instance: &VirtualMachineInstance) -> bool {
    let migration = instance.status.as_ref().and_then(|status| status.migration_state.as_ref());
    instance.metadata.deletion_timestamp.is_none() && migration.is_none_or(|state| state.completed)
}

/// What of an instance matters to anybody; its status changes much more often than this.
#[derive(PartialEq)]
struct Essence<'a> {
    uid: Option<String>,
    places: [Option<&'a String>; 2],
    labels: [Option<&'a String>; 2],
    stays_put: bool,
    addresses: Vec<(&'a str, &'a [String], &'a str)>,
}

impl<'a> Essence<'a> {
    fn of(instance: &'a VirtualMachineInstance) -> Self {
        let interfaces = instance.status.as_ref().map(|status| &status.interfaces[..]).unwrap_or_default();
        Self {
            uid: instance.uid(),
            places: [annotations::TOPOLOGY_ZONE, annotations::TOPOLOGY_REGION]
                .map(|key| instance.annotations().get(key)),
            labels: [labels::GUEST_CLUSTER, labels::VM_NAME].map(|key| instance.labels().get(key)),
            stays_put: stays_put(instance),
            addresses: interfaces
                .iter()
                .map(|it| (&*it.name, &it.ip_addresses[..], &*it.ip_address))
                .collect(),
        }
    }
}

/// A label that the instance of a stopped VM would have.
fn template_label(vm: &VirtualMachine, key: &str) -> Option<String> {
    let template = vm.spec.rest.get("template")?;
    template.get("metadata")?.get("labels")?.get(key)?.as_str().map(str::to_owned)
}

/// Of a VM the labels are read, nothing else.
fn trim_vm(vm: &mut VirtualMachine) {
    vm.status = None;
    vm.metadata.annotations = None;
    let labels = vm.spec.rest.get("template").and_then(|it| it.get("metadata")?.get("labels")).cloned();
    vm.spec.rest.clear();
    if let Some(labels) = labels {
        let template = serde_json::json!({"metadata": {"labels": labels}});
        vm.spec.rest.insert("template".to_owned(), template);
    }
}

fn trim_instance(instance: &mut VirtualMachineInstance) {
    instance.spec.rest.clear();
    if let Some(status) = &mut instance.status {
        status.rest.retain(|_, value| matches!(value, Value::Null));
    }
}
