//! The networks of the Nodes: the interface by which kube-vip in the guest announces a Service that asks for a network.
//!
//! ```text
//!  VMs of the Nodes: network, interface ──┬──────────────────────────────► kube-vip.io/serviceInterface
//!                                         └──► ConfigMap harvester-nad-mapping ──┘ where no guest agent speaks
//!                                                            └──► Rancher's choice of networks
//! ```
//! The Go program makes the ConfigMap in one controller and reads it in another
//! (docs/contract/cloud-controller-manager.md#17.4). Here the reports of the VMs count, and the ConfigMap where there are
//! none: with `--disable-vmi-controller`, or while the guest agents are silent.

mod mapping;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use controller_kit::{Action, Cache, ObjectKey, Queue, RawObject, replace};
use guest_vms::{GuestVms, Lookup, Report};
use harvester_api::names::{KUBE_SYSTEM, NETWORKS_CONFIG_MAP};
use k8s_openapi::{
    Resource as _,
    api::core::v1::{ConfigMap, Node},
};
use kube::{Api, Client, ResourceExt, api::PostParams, runtime::watcher};
use program::{
    Subscribers, TaskGroup,
    capabilities::{Capabilities, Right},
};
use serde_json::json;
use tokio::time::timeout;

pub(crate) use self::mapping::Interface;
use self::mapping::{Mapping, Nics, common, interface};

const NAMESPACE: &str = KUBE_SYSTEM;
const KEY: &str = "interface-nad-mapping";
/// After this time Services no longer wait for the ConfigMap: it counts as absent. For VMs the end is an [`Outage`].
///
/// [`Outage`]: crate::outage::Outage
const OUT_OF_REACH: Duration = Duration::from_secs(10);
/// Changes of VMs within this time are one.
const JOIN: Duration = Duration::from_secs(1);

/// On the one ConfigMap; no rule can name what is to be created.
fn right(verb: &'static str) -> Right {
    let right = Right::new(verb, "", "configmaps").within(NAMESPACE);
    if verb == "create" { right } else { right.named(NETWORKS_CONFIG_MAP) }
}

/// The rights to the ConfigMap. Without the first two it is neither read nor written, without the others not written.
pub(crate) fn rights() -> [Right; 4] {
    ["list", "watch", "create", "update"].map(right)
}

/// The networks of the Nodes.
pub(crate) struct Networks {
    client: Client,
    /// `None`: `--disable-vmi-controller`.
    vms: Option<GuestVms>,
    nodes: Cache<Node>,
    capabilities: Capabilities,
    config_map: OnceLock<Cache<RawObject<ConfigMap>>>,
    /// The ConfigMap was listed, or is out of reach.
    is_mapping_known: AtomicBool,
    /// Nothing will be listed that is not listed now.
    is_one_look: bool,
    /// What the VMs report, until that may have changed.
    nics: Mutex<Option<Arc<Vec<Nics>>>>,
    /// How often it may have changed: a look that began before is not kept.
    changes: AtomicU64,
    subscribers: Subscribers,
}

impl Networks {
    /// Follows the VMs of `nodes` and the ConfigMap, which it writes too, in the guest cluster behind `client`.
    /// `capabilities` are asked for [`rights`].
    pub(crate) fn start(
        tasks: &TaskGroup,
        client: Client,
        vms: Option<GuestVms>,
        nodes: &Cache<Node>,
        capabilities: &Capabilities,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            client,
            vms,
            nodes: nodes.clone(),
            capabilities: capabilities.clone(),
            config_map: OnceLock::new(),
            is_mapping_known: AtomicBool::new(false),
            is_one_look: false,
            nics: Mutex::default(),
            changes: AtomicU64::new(0),
            subscribers: Subscribers::default(),
        });
        let queue = Queue::new();
        let writer = this.clone();
        queue.run(tasks, 1, move |_| {
            let writer = writer.clone();
            async move { writer.write().await }
        });
        if let Some(vms) = &this.vms {
            let (into, write) = (Arc::downgrade(&this), queue.clone());
            vms.on_change(move || {
                let Some(this) = into.upgrade() else { return };
                this.forget();
                write.add_after(key(), JOIN);
            });
        }
        let (into, write) = (Arc::downgrade(&this), queue.clone());
        nodes.on_change(move |change| {
            let provider = |node: &Option<Arc<Node>>| {
                node.as_ref().map(|node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone()))
            };
            // whose VM it is
            if provider(&change.old) != provider(&change.new)
                && let Some(this) = into.upgrade()
            {
                this.forget();
                write.add_after(key(), JOIN);
            }
        });
        let write = queue.clone();
        capabilities.on_change(move || write.add_after(key(), JOIN));
        tasks.spawn_until_stop(this.clone().watch(tasks.clone(), queue));
        this
    }

    /// From one look at the Nodes and the ConfigMap. `client` is never asked, and VMs that are not listed are out of reach.
    pub(crate) fn of(
        client: Client,
        vms: Option<GuestVms>,
        nodes: &[Arc<Node>],
        config_map: Option<RawObject<ConfigMap>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            vms,
            nodes: Cache::of(nodes.iter().map(|node| (**node).clone())),
            capabilities: Capabilities::assumed([]),
            config_map: OnceLock::from(Cache::of(config_map)),
            is_mapping_known: AtomicBool::new(true),
            is_one_look: true,
            nics: Mutex::default(),
            changes: AtomicU64::new(0),
            subscribers: Subscribers::default(),
        })
    }

    /// Starts the watch of the ConfigMap as soon as the role grants it.
    async fn watch(self: Arc<Self>, tasks: TaskGroup, write: Queue<ObjectKey>) {
        let [list, watch, ..] = rights();
        let woken = Arc::new(tokio::sync::Notify::new());
        let wake = woken.clone();
        self.capabilities.on_change(move || wake.notify_one());
        self.capabilities.known().await;
        let mut is_told = false;
        while let Some(missing) = [&list, &watch].into_iter().find(|right| !self.capabilities.allows(right)) {
            if !is_told {
                tracing::info!(
                    "ConfigMap {NAMESPACE}/{NETWORKS_CONFIG_MAP} is not looked at, because the right to {missing} is missing: the \
                     interfaces of networks come from the VMs alone"
                );
                is_told = true;
                self.tell_mapping_known();
            }
            woken.notified().await;
        }
        let only = watcher::Config::default().fields(&format!("metadata.name={NETWORKS_CONFIG_MAP}"));
        let cache: Cache<RawObject<ConfigMap>> = Cache::start(&tasks, self.api(), only);
        let into = Arc::downgrade(&self);
        cache.on_change(move |_| {
            if let Some(this) = into.upgrade() {
                this.subscribers.tell(&());
            }
        });
        let done = write.clone();
        cache.on_change(move |_| done.add_after(key(), JOIN));
        if self.config_map.set(cache.clone()).is_err() {
            return;
        }
        if timeout(OUT_OF_REACH, cache.ready()).await.is_err() {
            self.tell_mapping_known();
            cache.ready().await;
        }
        self.tell_mapping_known();
        write.add_after(key(), JOIN);
    }

    fn tell_mapping_known(&self) {
        self.is_mapping_known.store(true, Ordering::SeqCst);
        self.subscribers.tell(&());
    }

    /// Calls `subscriber` when the ConfigMap changes or is known; a subscriber of the VMs hears of their reports.
    pub(crate) fn on_change(&self, subscriber: impl Fn() + Send + Sync + 'static) {
        self.subscribers.add(move |()| subscriber());
    }

    /// The interface of the Nodes on a network; empty for a Service that asks for none.
    /// `vms_out_of_reach`: nobody knows when the VMs will be listed.
    pub(crate) fn interface(&self, network: &str, vms_out_of_reach: bool) -> Interface {
        if network.is_empty() {
            return Interface::NotAsked;
        }
        let nics = self.nics();
        let may_come = self.vms.is_some() && !vms_out_of_reach && !self.is_one_look;
        if nics.is_none() && may_come {
            return Interface::NotYetKnown;
        }
        let nics = nics.unwrap_or_default();
        if !nics.iter().any(Nics::speak) && !self.is_mapping_known.load(Ordering::SeqCst) {
            return Interface::NotYetKnown;
        }
        interface(network, &nics, &self.mapping())
    }

    fn mapping(&self) -> Mapping {
        let config_map = self.config_map.get().and_then(|cache| cache.get(&key()));
        let data = config_map.as_ref().and_then(|config_map| config_map.data.as_ref());
        Mapping::read(data.and_then(|data| data.get(KEY)).map(String::as_str).unwrap_or_default())
    }

    /// What the VMs report; nothing while they are not known.
    fn nics(&self) -> Option<Arc<Vec<Nics>>> {
        let vms = self.vms.as_ref()?;
        if let Some(known) = &*self.nics.lock().expect("no panic while remembering") {
            return Some(known.clone());
        }
        let changes = self.changes.load(Ordering::SeqCst);
        let mut all = Vec::new();
        for node in self.nodes.list() {
            match vms.find(&node) {
                Lookup::Unknown => return None,
                Lookup::Missing(_) => {}
                Lookup::Found(vm) => {
                    let is_heard = vm.report.as_ref().is_some_and(Report::names_interfaces);
                    let mut interfaces = BTreeMap::new();
                    for (network, name) in vm.report.iter().flat_map(|report| report.interfaces()) {
                        interfaces.insert(network.to_owned(), name.to_owned());
                    }
                    all.push(Nics { node: node.name_any(), is_heard, interfaces });
                }
            }
        }
        let all = Arc::new(all);
        self.keep(&all, changes);
        Some(all)
    }

    /// `changes`: how many there had been before the look.
    fn keep(&self, all: &Arc<Vec<Nics>>, changes: u64) {
        let mut nics = self.nics.lock().expect("no panic while remembering");
        if self.changes.load(Ordering::SeqCst) == changes {
            *nics = Some(all.clone());
        }
    }

    fn forget(&self) {
        let mut nics = self.nics.lock().expect("no panic while remembering");
        self.changes.fetch_add(1, Ordering::SeqCst);
        *nics = None;
    }

    fn api(&self) -> Api<RawObject<ConfigMap>> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Writes what the VMs report into the ConfigMap. Silence takes nothing out of it.
    async fn write(&self) -> Result<Action, kube::Error> {
        let Some(cache) = self.config_map.get().filter(|cache| cache.is_ready()) else {
            return Ok(Action::AwaitChange);
        };
        let Some(common) = self.nics().and_then(|nics| common(&nics)) else { return Ok(Action::AwaitChange) };
        let text = if common.is_empty() { String::new() } else { json!(common).to_string() };
        let there = cache.get(&key());
        let (verb, answer) = match &there {
            // nothing to say, and nothing there that says something else
            None if text.is_empty() => return Ok(Action::AwaitChange),
            None => {
                let metadata = json!({"namespace": NAMESPACE, "name": NETWORKS_CONFIG_MAP});
                let mut body = json!({"metadata": metadata, "data": {KEY: text}});
                body["apiVersion"] = ConfigMap::API_VERSION.into();
                body["kind"] = ConfigMap::KIND.into();
                let body = RawObject::from_json(body).expect("made from the type's own fields");
                if !self.allows("create") {
                    return Ok(Action::AwaitChange);
                }
                ("create", self.api().create(&PostParams::default(), &body).await)
            }
            Some(there) => {
                let Some(edited) = there.edited(|json| json["data"][KEY] = text.into()) else {
                    return Ok(Action::AwaitChange);
                };
                if !self.allows("update") {
                    return Ok(Action::AwaitChange);
                }
                ("update", replace::<ConfigMap>(&self.client, &edited).await)
            }
        };
        match answer {
            Ok(written) => drop(cache.wrote(written)),
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                self.capabilities.refused(&right(verb));
            }
            // the watch brings what is there now
            Err(kube::Error::Api(status))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(Action::AwaitChange)
    }

    fn allows(&self, verb: &'static str) -> bool {
        self.capabilities.allows(&right(verb))
    }
}

fn key() -> ObjectKey {
    ObjectKey::new(NAMESPACE, NETWORKS_CONFIG_MAP)
}

#[cfg(test)]
mod tests;
