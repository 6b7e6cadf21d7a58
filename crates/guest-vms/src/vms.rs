//! The VMs of the guest cluster in the namespace, from watches.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex},
};

use controller_kit::{Cache, Change};
use harvester_api::{
    VirtualMachine, VirtualMachineInstance,
    kubevirt::{VmCondition, VmInterface, VmNetwork},
    labels,
    names::PROVIDER_ID_PREFIX,
};
use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt};
use program::{Subscribers, TaskGroup, capabilities::Capabilities};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use crate::{
    addresses::{self, Report},
    by_name::{NamedReads, NamesRead},
    directory::{Directory, FoundBy, is_uid},
    host_names::{HostNames, is_agent},
    instance_labels::{self, InstanceLabels, TopologyLabels},
    other_owners::{is_externally_managed, may_be_a_vm},
    run_state,
    search::Search,
    watches::Watches,
};

/// The VMs of one namespace of Harvester, and which of them are Nodes of the guest cluster. Cheap to clone.
#[derive(Clone)]
pub struct GuestVms(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) vms: Watches<VirtualMachine>,
    pub(crate) vmis: Watches<VirtualMachineInstance>,
    pub(crate) namespace: String,
    topology: TopologyLabels,
    /// The names to watch may have changed.
    pub(crate) names: Notify,
    directory: Mutex<Directory>,
    names_read: NamesRead,
    subscribers: Subscribers,
}

/// The VMs to look at, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmSettings {
    /// Namespace of the cloud-config.
    pub namespace: String,
    /// Name of the guest cluster; `None` where nobody chose one: such a name distinguishes no clusters, and VMs are
    /// watched by name alone.
    pub cluster: Option<String>,
    /// Labels of Nodes beside zone and region.
    pub topology: TopologyLabels,
}

/// The VM of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    Found(Vm),
    /// The Node has no VM; the sentence says how it was looked for.
    Missing(String),
    /// The VMs are not listed, so absence proves nothing.
    Unknown,
}

/// The facts about a VM that go into its Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vm {
    pub name: String,
    pub uid: String,
    /// Its labels; none while it does not run.
    pub labels: InstanceLabels,
    /// Its networks and their addresses; `None` while it does not run.
    pub report: Option<Report>,
}

/// The VMs behind eligible Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    /// Names of the VMs of the Nodes.
    pub eligible: BTreeSet<String>,
    /// A VM is there with the UID that the provider ID of its Node names: any namespace, and another Harvester, may have VMs
    /// of the same names. Where no Node has a UID there, that a VM is there says it.
    pub are_identified: bool,
    /// Nodes whose VM is not known.
    pub nodes_without_vm: Vec<String>,
    /// All VMs that carry the label of the cluster, and those of the Nodes.
    pub all: Vec<Backend>,
}

/// The name of a VM, and the labels that its instance carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    pub vm: String,
    /// Label `guestcluster.harvesterhci.io/name`.
    pub cluster: Option<String>,
    /// Label `harvesterhci.io/vmName`.
    pub name: Option<String>,
}

impl GuestVms {
    /// Starts the watches.
    pub fn start(tasks: &TaskGroup, client: &Client, settings: VmSettings) -> Self {
        let VmSettings { namespace, cluster, topology } = settings;
        let selector = cluster.as_deref().map(labels::legal);
        let selector = selector.map(|cluster| format!("{}={cluster}", labels::GUEST_CLUSTER));
        let (by, kept) = (selector.as_deref(), topology.clone());
        let vms = Watches::start(tasks, client, &namespace, by, trim_vm);
        let vmis = Watches::start(tasks, client, &namespace, by, move |vmi| trim_vmi(vmi, &kept));
        let settings = VmSettings { namespace, cluster, topology };
        let all = Self::following(vms, vmis, settings);
        let settled = all.clone();
        all.0.vms.on_settled(move || settled.notify());
        let settled = all.clone();
        all.0.vmis.on_settled(move || settled.notify());
        let waiting = all.clone();
        tasks.spawn_until_stop(async move {
            waiting.ready().await;
            waiting.notify();
        });
        for (_, mut errors) in all.watch_errors() {
            let waiting = all.clone();
            tasks.spawn_until_stop(async move {
                // an answer that waited for the end of an error is given then
                while errors.wait_for(Option::is_some).await.is_ok()
                    && errors.wait_for(Option::is_none).await.is_ok()
                {
                    waiting.notify();
                }
            });
        }
        all
    }

    /// All VMs of the namespace, from one list of each kind that nobody follows. `client` is never asked.
    pub fn of(
        client: &Client,
        settings: VmSettings,
        vms: Cache<VirtualMachine>,
        vmis: Cache<VirtualMachineInstance>,
    ) -> Self {
        let vms = Watches::of(client, &settings.namespace, vms);
        let vmis = Watches::of(client, &settings.namespace, vmis);
        Self::following(vms, vmis, settings)
    }

    fn following(
        vms: Watches<VirtualMachine>,
        vmis: Watches<VirtualMachineInstance>,
        settings: VmSettings,
    ) -> Self {
        let VmSettings { namespace, cluster, topology } = settings;
        let all = Self(Arc::new(Shared {
            vms,
            vmis,
            namespace,
            topology,
            names: Notify::new(),
            directory: Mutex::new(Directory::new(cluster.as_deref().map(labels::legal))),
            names_read: NamesRead::default(),
            subscribers: Subscribers::default(),
        }));
        let vms = all.clone();
        all.0.vms.on_leave(move |vm| {
            vms.directory().left(&vm.name_any(), &vm.uid().unwrap_or_default());
        });
        let vms = all.clone();
        all.0.vms.on_change(move |change| vms.vm_changed(change));
        let vmis = all.clone();
        all.0.vmis.on_change(move |change| vmis.vmi_changed(change));
        all
    }

    /// The namespace of Harvester.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// Watches the VMs of `nodes` that lack the cluster's label by name, or reads them while they cannot be listed; asks
    /// guest agents for their host names while no Node is known to be their VM (`capabilities` of Harvester, where that
    /// is wanted), and searches for the VMs of Nodes that nobody knows.
    pub fn follow_nodes(
        &self,
        tasks: &TaskGroup,
        client: &Client,
        nodes: &Cache<Node>,
        host_names: Option<&Capabilities>,
    ) {
        self.watch_by_name(tasks, nodes);
        NamedReads::start(tasks, client, self, nodes);
        let ask = host_names.map(|rights| HostNames::start(tasks, client, self, nodes, rights));
        Search::start(tasks, client, self, nodes, ask);
    }

    fn watch_by_name(&self, tasks: &TaskGroup, nodes: &Cache<Node>) {
        let changed = self.clone();
        nodes.on_change(move |change| {
            let facts = |node: &Option<Arc<Node>>| {
                node.as_ref().map(|node| (provider_id(node).to_owned(), is_externally_managed(node)))
            };
            if facts(&change.old) != facts(&change.new) {
                changed.0.names.notify_one();
            }
        });
        let (this, nodes) = (self.clone(), nodes.clone());
        tasks.spawn_until_stop(async move {
            nodes.ready().await;
            // what carries the label needs no watch of its own
            this.ready().await;
            loop {
                let names: BTreeSet<_> = nodes.list().iter().flat_map(|node| this.candidates(node)).collect();
                this.0.vms.follow(&names);
                this.0.vmis.follow(&names);
                this.0.names.notified().await;
            }
        });
    }

    /// Waits until both kinds were listed once, as far as they carry the cluster's label.
    pub async fn ready(&self) {
        self.0.vms.ready().await;
        self.0.vmis.ready().await;
    }

    /// Lists both kinds anew: another server answers by now, and of watches that come to it one by one no list says what is
    /// not there. Until that is complete no VM is known to be absent, nor to be there: what is shown is the former server's.
    pub fn relist_elsewhere(&self, tasks: &TaskGroup) {
        self.0.vms.relist_elsewhere();
        self.0.vmis.relist_elsewhere();
        self.0.names_read.clear();
        self.notify();
        let waiting = self.clone();
        tasks.spawn_until_stop(async move {
            waiting.ready().await;
            waiting.notify();
        });
    }

    /// The two kinds that are listed, and why each cannot be listed now.
    pub fn watch_errors(&self) -> [(&'static str, watch::Receiver<Option<String>>); 2] {
        [
            ("VirtualMachines", self.0.vms.watch_errors()),
            ("VirtualMachineInstances", self.0.vmis.watch_errors()),
        ]
    }

    /// Whether VMs that cannot be listed are read by the names of Nodes.
    pub fn are_read_by_name(&self) -> bool {
        self.0.names_read.is_used()
    }

    /// Calls `subscriber` when a Node's VM, or an answer about a VM, may have changed.
    pub fn on_change(&self, subscriber: impl Fn() + Send + Sync + 'static) {
        self.0.subscribers.add(move |()| subscriber());
    }

    /// The VM of a Node.
    pub fn find(&self, node: &Node) -> Lookup {
        let name = node.name_any();
        let read = self.0.names_read.contains(&name);
        let is_known = read || self.is_complete() && self.is_settled(node);
        match self.vm_of(node).and_then(|vm| self.0.vms.get(&vm)) {
            Some(vm) if is_known => Lookup::Found(self.describe(&vm)),
            None if read || is_known && self.0.vms.watch_error().is_none() => Lookup::Missing(format!(
                "no VM in Harvester namespace {} is node {name}: none has this name, and no guest agent reports it as host name",
                self.0.namespace
            )),
            _ => Lookup::Unknown,
        }
    }

    /// Whether every VM that the Node may be was looked at.
    pub(crate) fn is_settled(&self, node: &Node) -> bool {
        let is_settled = |name: &String| self.0.vms.is_settled(name) && self.0.vmis.is_settled(name);
        self.candidates(node).iter().all(is_settled)
    }

    fn candidates(&self, node: &Node) -> BTreeSet<String> {
        if !may_be_a_vm(node) {
            return BTreeSet::new();
        }
        self.directory().candidates(&node.name_any(), provider_id(node))
    }

    fn describe(&self, vm: &VirtualMachine) -> Vm {
        let vmi = self.0.vmis.get(&vm.name_any());
        Vm {
            name: vm.name_any(),
            uid: vm.uid().unwrap_or_default(),
            labels: vmi.as_ref().map(|vmi| InstanceLabels::of(vmi, &self.0.topology)).unwrap_or_default(),
            report: vmi.as_ref().map(|vmi| Report::of(vmi)),
        }
    }

    /// Whether some VM reports an address for which `wanted` holds.
    pub fn report_any(&self, wanted: impl Fn(IpAddr) -> bool) -> bool {
        self.0.vmis.list().iter().any(|vmi| addresses::ips(vmi).any(&wanted))
    }

    /// All addresses that VMs report.
    pub fn reported(&self) -> HashSet<IpAddr> {
        self.0.vmis.list().iter().flat_map(|vmi| addresses::ips(vmi).collect::<Vec<_>>()).collect()
    }

    /// The VMs behind `nodes`; nothing while the lists, those by name too, are not complete, because absence proves nothing
    /// then.
    pub fn backends(&self, nodes: &[Arc<Node>]) -> Option<Backends> {
        if !self.is_complete() {
            return None;
        }
        let mut backends = Backends::default();
        let mut some_have_uids = false;
        for node in nodes {
            let uid = provider_id(node).strip_prefix(PROVIDER_ID_PREFIX).filter(|id| is_uid(id));
            some_have_uids |= uid.is_some();
            match self.vm_of(node) {
                // one that is watched by name may be that of another server, until its own list has come
                Some(vm) if self.0.vms.is_settled(&vm) || self.0.names_read.contains(&node.name_any()) => {
                    let has_uid =
                        |vm: Arc<VirtualMachine>| uid.is_some() && vm.metadata.uid.as_deref() == uid;
                    backends.are_identified |= self.0.vms.get(&vm).is_some_and(has_uid);
                    backends.eligible.insert(vm);
                }
                None if self.is_settled(node) => backends.nodes_without_vm.push(node.name_any()),
                Some(_) | None => return None,
            }
        }
        backends.are_identified |= !some_have_uids && !backends.eligible.is_empty();
        let (vms, vmis) = (self.0.vms.list(), self.0.vmis.list());
        let names: BTreeSet<_> =
            vms.iter().map(|vm| vm.name_any()).chain(vmis.iter().map(|vmi| vmi.name_any())).collect();
        backends.all = names.into_iter().map(|name| self.backend(name)).collect();
        Some(backends)
    }

    /// Whether both kinds were listed once, as far as they carry the cluster's label.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.vms.is_ready() && self.0.vmis.is_ready()
    }

    fn backend(&self, vm: String) -> Backend {
        let (machine, vmi) = (self.0.vms.get(&vm), self.0.vmis.get(&vm));
        let label = |key: &str| match &vmi {
            Some(vmi) => vmi.labels().get(key).cloned(),
            None => machine.as_ref().and_then(|vm| template_label(vm, key)),
        };
        Backend { cluster: label(labels::GUEST_CLUSTER), name: label(labels::VM_NAME), vm }
    }

    pub(crate) fn vm_of(&self, node: &Node) -> Option<String> {
        self.found_by(node).map(|(vm, _)| vm)
    }

    /// The name of a Node's VM, as far as the lists tell, and the sign by which it was found.
    pub fn found_by(&self, node: &Node) -> Option<(String, FoundBy)> {
        may_be_a_vm(node).then(|| self.directory().find_by(&node.name_any(), provider_id(node)))?
    }

    fn vm_changed(&self, change: &Change<VirtualMachine>) {
        let key = &change.key;
        let vm = self.0.vms.get(&key.name);
        let entry = vm.as_ref().map(|vm| {
            let cluster = vm.labels().get(labels::GUEST_CLUSTER).cloned();
            (vm.uid().unwrap_or_default(), cluster.or_else(|| template_label(vm, labels::GUEST_CLUSTER)))
        });
        let changed = self.directory().set_vm(&key.name, entry);
        let facts = |vm| Option::map(vm, run_state::facts);
        if changed || change.old.is_none() || change.new.is_none() {
            self.0.names.notify_one();
        }
        if changed || facts(change.old.as_deref()) != facts(change.new.as_deref()) {
            self.notify();
        }
    }

    fn vmi_changed(&self, change: &Change<VirtualMachineInstance>) {
        let name = &change.key.name;
        let vmi = self.0.vmis.get(name);
        let entry =
            vmi.map(|vmi| (vmi.uid().unwrap_or_default(), vmi.labels().get(labels::GUEST_CLUSTER).cloned()));
        self.directory().set_instance(name, entry);
        if change.old.is_none() || change.new.is_none() {
            self.0.names.notify_one();
        }
        if change.old.as_deref().map(Facts::of) != change.new.as_deref().map(Facts::of) {
            self.notify();
        }
    }

    pub(crate) fn notify(&self) {
        self.0.subscribers.tell(&());
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }

    pub(crate) fn names_read(&self) -> &NamesRead {
        &self.0.names_read
    }

    pub(crate) fn directory(&self) -> std::sync::MutexGuard<'_, Directory> {
        self.0.directory.lock().expect("no panic while looking up")
    }
}

pub(crate) fn provider_id(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}

/// A VMI that migrates or stops carries the annotations of the place that it leaves.
pub(crate) fn stays_put(vmi: &VirtualMachineInstance) -> bool {
    let migration = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    vmi.metadata.deletion_timestamp.is_none() && migration.is_none_or(|state| state.completed)
}

/// The fields of a VMI that an answer depends on; its status changes much more often than these.
#[derive(PartialEq)]
struct Facts<'a> {
    uid: Option<String>,
    /// Trimmed to what makes labels.
    annotations: &'a BTreeMap<String, String>,
    kind: &'a Map<String, Value>,
    labels: [Option<&'a String>; 2],
    stays_put: bool,
    report: Report,
    phase: Option<&'a str>,
}

impl<'a> Facts<'a> {
    fn of(vmi: &'a VirtualMachineInstance) -> Self {
        Self {
            uid: vmi.uid(),
            annotations: vmi.annotations(),
            kind: &vmi.spec.rest,
            labels: [labels::GUEST_CLUSTER, labels::VM_NAME].map(|key| vmi.labels().get(key)),
            stays_put: stays_put(vmi),
            report: Report::of(vmi),
            phase: vmi.status.as_ref().map(|status| &*status.phase),
        }
    }
}

/// A label that the instance of a stopped VM would have.
fn template_label(vm: &VirtualMachine, key: &str) -> Option<String> {
    let template = vm.spec.rest.get("template")?;
    template.get("metadata")?.get("labels")?.get(key)?.as_str().map(str::to_owned)
}

/// Keeps the parts of a VM that are read here: its labels, and whether it should run.
fn trim_vm(vm: &mut VirtualMachine) {
    if let Some(status) = &mut vm.status {
        status.printable_status.clear();
        status.rest.retain(|field, _| run_state::STATUS_FIELDS.contains(&&**field));
    }
    vm.metadata.annotations = None;
    let labels = vm.spec.rest.get("template").and_then(|it| it.get("metadata")?.get("labels")).cloned();
    vm.spec.rest.retain(|field, _| field == "running");
    if let Some(labels) = labels {
        let template = serde_json::json!({"metadata": {"labels": labels}});
        vm.spec.rest.insert("template".to_owned(), template);
    }
}

/// Bytes that are kept of a text that the guest agent reports: an address has 45 at the most, an interface 15 in Linux.
/// What is longer is of no use; its beginning stays for the sentence that tells of it.
const REPORTED: usize = 64;
/// Bytes of the name of a network in a VM's specification. That of a real one is shorter.
const NETWORK: usize = 253;
/// Interfaces of a VM, and addresses on all of them, that are kept. kube-vip gives a node an address for each Service.
const INTERFACES: usize = 256;
const ADDRESSES: usize = 4_096;

fn trim_vmi(vmi: &mut VirtualMachineInstance, topology: &TopologyLabels) {
    instance_labels::trim(vmi, topology);
    vmi.spec.networks.retain(VmNetwork::has_real_names);
    vmi.spec.networks.truncate(INTERFACES);
    vmi.spec.networks.shrink_to_fit();
    let Some(status) = &mut vmi.status else { return };
    status.rest = Map::new();
    status.node_name = String::new();
    if status.phase.len() > REPORTED {
        status.phase = String::new();
    }
    status.conditions.retain(|condition| is_agent(&condition.r#type, &condition.status));
    status.conditions.truncate(1);
    status.conditions.shrink_to_fit();
    for condition in &mut status.conditions {
        let VmCondition { r#type: _, status: _, reason, message, rest } = condition;
        (*reason, *message, *rest) = Default::default();
    }
    if let Some(migration) = &mut status.migration_state {
        migration.rest.clear();
    }
    status.interfaces.truncate(INTERFACES);
    status.interfaces.shrink_to_fit();
    let mut room = ADDRESSES;
    for interface in &mut status.interfaces {
        let VmInterface { name, interface_name, ip_address, ip_addresses, mac, rest } = interface;
        ip_addresses.truncate(room);
        room -= ip_addresses.len();
        ip_addresses.shrink_to_fit();
        // a name that is cut might be another's
        if name.len() > NETWORK {
            *name = String::new();
        }
        for text in [interface_name, ip_address, mac].into_iter().chain(&mut *ip_addresses) {
            text.truncate(text.floor_char_boundary(REPORTED));
            text.shrink_to_fit();
        }
        rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::host_names::has_agent;

    #[test]
    fn a_guest_agent_that_reports_too_much_fills_no_memory() {
        let long = "é".repeat(500_000);
        let mut addresses = vec![long.clone()];
        addresses.extend((0..80_000).map(|n| format!("10.{}.{}.1", n / 250, n % 250)));
        let interface = json!({"name": "vlan", "interfaceName": long, "mac": long, "ipAddress": long,
            "ipAddresses": addresses, "infoSource": long});
        let mut vmi: VirtualMachineInstance = serde_json::from_value(
            json!({"metadata": {"name": "web-1"}, "spec": {}, "status": {"interfaces": vec![interface; 3]}}),
        )
        .unwrap();
        trim_vmi(&mut vmi, &TopologyLabels::new());
        let interfaces = vmi.status.unwrap().interfaces;
        assert_eq!(interfaces.iter().map(|it| it.ip_addresses.len()).sum::<usize>(), ADDRESSES);
        assert_eq!(interfaces[0].ip_addresses[1], "10.0.0.1", "an address behind it stays");
        let VmInterface { interface_name, ip_address, mac, ip_addresses, rest, .. } = &interfaces[0];
        let lengths = [interface_name, ip_address, mac, &ip_addresses[0]].map(String::len);
        assert_eq!((lengths, rest.len()), ([REPORTED; 4], 0));
    }

    // the server stores the status with which a user makes an instance
    #[test]
    fn what_a_user_writes_into_the_status_of_an_instance_fills_no_memory() {
        let long = "x".repeat(1_000_000);
        let condition = json!({"type": "AgentConnected", "status": "True", "message": long, "more": long});
        let network = json!({"name": "vlan", "multus": {"networkName": long}});
        let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({"metadata": {"name": "web-1"},
            "spec": {"networks": [network, {"name": "mgmt", "pod": {}}]},
            "status": {"phase": long, "nodeName": long, "conditions": vec![condition; 5],
                "migrationState": {"completed": true, "more": long}, "interfaces": [{"name": long}]}}))
        .unwrap();
        let status = vmi.status.as_mut().unwrap();
        status.interfaces.resize(100_000, VmInterface::default());
        status.conditions.resize(100_000, VmCondition::default());
        trim_vmi(&mut vmi, &TopologyLabels::new());
        assert!(has_agent(&vmi) && vmi.spec.networks.len() == 1);
        let status = vmi.status.unwrap();
        assert!(status.interfaces.capacity() < 2 * INTERFACES && status.conditions.capacity() < 10);
        let size = serde_json::to_string(&status).unwrap().len();
        assert!(size < 100 * INTERFACES, "{size}");
    }
}
