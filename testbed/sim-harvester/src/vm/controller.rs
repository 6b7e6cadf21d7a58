//! Carries out what is decided for VMs and migrations: one worker, so that two VMs are never given one
//! address or one place.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, ResourceQuota, Secret};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};

use controller_kit::{Action, Cache, ObjectKey, PendingEvent, Queue, RawObject, Recorder};
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use program::{Clock, TaskGroup};
use tokio::time::Instant;

use super::{
    Instance, Step, VirtualMachineInstanceMigration, Vm, VmState, hotplug, migration,
    obstacle::{self, Around, Obstacle},
};
use crate::{
    HotPlug,
    host::{self, Host},
    kube_vip::controller::KubeVip,
    quota::{self, Usage},
    refused::{Error, unless_gone, unless_there},
    settings::Unknown,
};

/// KubeVirt asks guest agents for their interfaces every so often.
const AGENT_IS_ASKED: Duration = Duration::from_secs(10);

/// virt-controller gives the instances of a host up when its virt-handler was silent for so long, and by then Harvester has
/// removed what was left of their pods (docs/contract/csi-driver.md#node-lost).
const GIVEN_UP_AFTER: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Vm(ObjectKey),
    Migration(ObjectKey),
    Quota(ObjectKey),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vm(key) => write!(out, "VM {key}"),
            Self::Migration(key) => write!(out, "migration {key}"),
            Self::Quota(key) => write!(out, "quota {key}"),
        }
    }
}

/// The VMs of the Harvester cluster, kept as KubeVirt would.
#[derive(Clone)]
pub(crate) struct VmController {
    harvester: Client,
    network: Ipv4Net,
    clock: Clock,
    pub(crate) vms: Cache<Vm>,
    pub(crate) instances: Cache<Instance>,
    migrations: Cache<migration::Migration>,
    pub(crate) hosts: Cache<Node>,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    secrets: Cache<Secret>,
    quotas: Cache<ResourceQuota>,
    events: Recorder,
    queue: Queue<Item>,
    /// kube-vip in the guest: guest agents report the addresses that it puts on interfaces.
    guest_vip: Arc<OnceLock<KubeVip>>,
    /// How disks come into VMs that run; nothing while the Settings are not known.
    hot_plug: Arc<Mutex<Option<HotPlug>>>,
    /// Since when hosts are silent.
    silent: Arc<Mutex<BTreeMap<String, Instant>>>,
    /// When the pods that bring volumes were made, of VMs where they take some time.
    pods: Arc<Mutex<BTreeMap<String, Instant>>>,
    /// The last report about the annotations of each VM.
    said: Arc<Mutex<BTreeMap<ObjectKey, Vec<Unknown>>>>,
}

impl VmController {
    pub(crate) fn start(
        tasks: &TaskGroup,
        harvester: &Client,
        hosts: &Cache<Node>,
        network: Ipv4Net,
        clock: Clock,
        events: &Recorder,
    ) -> Self {
        let vm_controller = Self {
            harvester: harvester.clone(),
            network,
            clock,
            vms: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
            instances: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
            migrations: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
            hosts: hosts.clone(),
            claims: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
            secrets: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
            quotas: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
            events: events.clone(),
            queue: Queue::new(),
            guest_vip: Arc::default(),
            hot_plug: Arc::default(),
            silent: Arc::default(),
            pods: Arc::default(),
            said: Arc::default(),
        };
        let queue = vm_controller.queue.clone();
        vm_controller.subscribe(&queue);
        let (worker, ready) = (vm_controller.clone(), vm_controller.clone());
        let in_life = tasks.clone();
        tasks.spawn_until_stop(async move {
            ready.ready().await;
            queue.run(&in_life, 1, move |item| {
                let worker = worker.clone();
                async move { worker.reconcile(item).await.map(|()| Action::AwaitChange) }
            });
        });
        vm_controller
    }

    /// Waits until everything that exists is known.
    pub(crate) async fn ready(&self) {
        self.vms.ready().await;
        self.instances.ready().await;
        self.migrations.ready().await;
        self.hosts.ready().await;
        self.claims.ready().await;
        self.secrets.ready().await;
        self.quotas.ready().await;
    }

    /// All VMs that have an address. Of one whose host is silent nothing answers.
    pub(crate) fn list(&self) -> Vec<VmState> {
        let of = |vm: Arc<Vm>| {
            let instance = self.instances.get(&ObjectKey::of(&*vm));
            VmState::of(&vm, instance.filter(|instance| self.silent_for(instance).is_none()).as_deref())
        };
        self.vms.list().into_iter().filter_map(of).collect()
    }

    /// For how long the host of an instance has been silent, if it is.
    fn silent_for(&self, instance: &Instance) -> Option<Duration> {
        let host = instance.status.as_ref().map(|status| &status.node_name)?;
        // one that is gone, or was never chosen, says nothing of what runs
        let is_ready = self.hosts.get(&ObjectKey::new("", host)).is_none_or(|node| host::is_ready(&node));
        let mut silent = self.silent.lock().expect("no panic while remembering");
        if is_ready {
            silent.remove(host);
            return None;
        }
        Some(silent.entry(host.clone()).or_insert_with(Instant::now).elapsed())
    }

    /// From now on guest agents report the addresses that this kube-vip puts on the interfaces of its nodes.
    pub(crate) fn report_vips(&self, guest_vip: &KubeVip) {
        let (queue, vms) = (self.queue.clone(), self.vms.clone());
        guest_vip.on_change(move || {
            for vm in vms.list() {
                queue.add_after(Item::Vm(ObjectKey::of(&*vm)), AGENT_IS_ASKED);
            }
        });
        drop(self.guest_vip.set(guest_vip.clone()));
    }

    /// From now on disks come into VMs that run in this way.
    pub(crate) fn set_hot_plug(&self, way: HotPlug) {
        *self.hot_plug.lock().expect("no panic while remembering") = Some(way);
        for vm in self.vms.list() {
            self.queue.add(Item::Vm(ObjectKey::of(&*vm)));
        }
    }

    fn subscribe(&self, queue: &Queue<Item>) {
        let add = queue.clone();
        self.vms.on_change(move |change| add.add(Item::Vm(change.key.clone())));
        let (add, migrations, this) = (queue.clone(), self.migrations.clone(), self.clone());
        self.instances.on_change(move |change| {
            add.add(Item::Vm(change.key.clone()));
            this.look_at_quotas(&add, &change.key.namespace);
            for migration in migrations.list() {
                add.add(Item::Migration(ObjectKey::of(&*migration)));
            }
        });
        let (add, migrations) = (queue.clone(), self.migrations.clone());
        self.migrations.on_change(move |change| {
            add.add(Item::Migration(change.key.clone()));
            if change.new.as_deref().is_none_or(migration::ended) {
                // another one that waited for it may go on
                for migration in migrations.list() {
                    add.add(Item::Migration(ObjectKey::of(&*migration)));
                }
            }
        });
        let (add, this) = (queue.clone(), self.clone());
        self.claims.on_change(move |change| {
            this.look_at_namespace(&add, &change.key.namespace);
            this.look_at_quotas(&add, &change.key.namespace);
        });
        let (add, this) = (queue.clone(), self.clone());
        self.secrets.on_change(move |change| this.look_at_namespace(&add, &change.key.namespace));
        let (add, this) = (queue.clone(), self.clone());
        self.quotas.on_change(move |change| {
            add.add(Item::Quota(change.key.clone()));
            this.look_at_namespace(&add, &change.key.namespace);
        });
        let (add, vms, migrations) = (queue.clone(), self.vms.clone(), self.migrations.clone());
        self.hosts.on_change(move |_| {
            for vm in vms.list() {
                add.add(Item::Vm(ObjectKey::of(&*vm)));
            }
            for migration in migrations.list() {
                add.add(Item::Migration(ObjectKey::of(&*migration)));
            }
        });
    }

    fn look_at_namespace(&self, queue: &Queue<Item>, namespace: &str) {
        let vms = self.vms.list().into_iter().map(|vm| ObjectKey::of(&*vm));
        vms.filter(|key| key.namespace == namespace).for_each(|key| queue.add(Item::Vm(key)));
    }

    fn look_at_quotas(&self, queue: &Queue<Item>, namespace: &str) {
        let quotas = self.quotas.list().into_iter().map(|quota| ObjectKey::of(&*quota));
        quotas.filter(|key| key.namespace == namespace).for_each(|key| queue.add(Item::Quota(key)));
    }

    /// The resources that the VMs of a namespace use, of those with a host; all but `apart`.
    fn used(&self, namespace: &str, apart: Option<&ObjectKey>) -> Usage {
        let mut used = Usage::new();
        for instance in self.instances.list() {
            let key = ObjectKey::of(&*instance);
            if key.namespace == namespace && Some(&key) != apart && super::instance::is_placed(&instance) {
                quota::add(&mut used, &quota::of_vm(&instance.json()["spec"]));
            }
        }
        used
    }

    fn obstacle(&self, key: &ObjectKey, vm: &Vm) -> Option<Obstacle> {
        let of = |name: &str| ObjectKey::new(&key.namespace, name);
        let bound = |name: &str| {
            let claim = self.claims.get(&of(name))?;
            Some(claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound"))
        };
        let quotas: Vec<_> = self
            .quotas
            .list()
            .into_iter()
            .filter(|quota| ObjectKey::of(&**quota).namespace == key.namespace)
            .collect();
        let refusal = if quotas.is_empty() {
            None
        } else {
            let wanted = quota::of_vm(&vm.json()["spec"]["template"]["spec"]);
            quota::refusal(
                quotas.iter().map(|quota| &**quota),
                &self.used(&key.namespace, Some(key)),
                &wanted,
            )
        };
        obstacle::of(
            vm,
            &Around { bound: &bound, has_secret: &|name| self.secrets.get(&of(name)).is_some(), refusal },
        )
    }

    async fn count(&self, key: &ObjectKey) -> Result<(), Error> {
        let Some(quota) = self.quotas.get(key) else { return Ok(()) };
        let mut used = self.used(&key.namespace, None);
        let claims = self.claims.list();
        let claims = claims.iter().filter(|claim| claim.metadata.namespace.as_ref() == Some(&key.namespace));
        quota::add(&mut used, &quota::of_claims(claims.map(|claim| &**claim)));
        let Some(patch) = quota::status(&quota, &used) else { return Ok(()) };
        let api: Api<ResourceQuota> = Api::namespaced(self.harvester.clone(), &key.namespace);
        let answer = api.patch_status(&key.name, &merge(), &Patch::Merge(patch)).await;
        if let Some(quota) = unless_gone(answer).map_err(Error::of("write status of quota", key))? {
            self.quotas.wrote(quota);
        }
        Ok(())
    }

    async fn reconcile(&self, item: Item) -> Result<(), Error> {
        let hosts: Vec<_> = self.hosts.list().iter().map(|node| Host::of(node)).collect();
        let mut vms_on = BTreeMap::new();
        for instance in self.instances.list() {
            if let Some(status) = instance.status.as_ref().filter(|status| !status.node_name.is_empty()) {
                *vms_on.entry(status.node_name.clone()).or_default() += 1;
            }
        }
        match item {
            Item::Vm(key) => {
                let (vm, instance) = (self.vms.get(&key), self.instances.get(&key));
                if let Some(vm) = &vm {
                    self.complain(&key, vm, instance.as_deref());
                }
                let runs = instance.as_deref().filter(|instance| super::instance::is_running(instance));
                if let Some(silent_for) = runs.and_then(|instance| self.silent_for(instance)) {
                    let left = GIVEN_UP_AFTER.saturating_sub(silent_for);
                    if left.is_zero() {
                        return self.act(&key, Step::PatchInstance(super::instance::given_up())).await;
                    }
                    self.queue.add_after(Item::Vm(key), left);
                    return Ok(());
                }
                let others = self.vms.list().into_iter().filter(|vm| ObjectKey::of(&**vm) != key);
                let taken: BTreeSet<_> = others.filter_map(|vm| super::address(&vm)).collect();
                let obstacle = vm.as_ref().and_then(|vm| self.obstacle(&key, vm));
                let node = vm.as_ref().map(|vm| super::hostname(vm, instance.as_deref()));
                let vips = self.guest_vip.get().zip(node);
                let vips = vips.map(|(kube_vip, node)| kube_vip.on_node(&node)).unwrap_or_default();
                let steps = super::decide(&super::Seen {
                    vm: vm.as_deref(),
                    instance: instance.as_deref(),
                    hosts: &hosts,
                    vms_on: &vms_on,
                    taken: &taken,
                    network: self.network,
                    obstacle: obstacle.as_ref(),
                    vips: &vips,
                });
                if let Some(vm) = vm.filter(|_| steps.is_empty()) {
                    return self.plug(&key, &vm, instance.as_deref()).await;
                }
                for step in steps {
                    self.act(&key, step).await?;
                }
                Ok(())
            }
            Item::Quota(key) => self.count(&key).await,
            Item::Migration(key) => {
                let Some(migration) = self.migrations.get(&key) else {
                    return self.abort(&key.namespace).await;
                };
                let of = ObjectKey::new(&key.namespace, &migration.spec.vmi_name);
                let instance = self.instances.get(&of);
                let open =
                    self.migrations.list().into_iter().filter(|migration| !migration::ended(migration));
                let open: Vec<_> = open.filter_map(|migration| migration.uid()).collect();
                let step = migration::decide(&migration::Seen {
                    migration: &migration,
                    instance: instance.as_deref(),
                    hosts: &hosts,
                    vms_on: &vms_on,
                    open: &open,
                    now: &self.clock.now_text(),
                });
                match step {
                    None => Ok(()),
                    Some(migration::Step::PatchInstance(patch)) => {
                        self.act(&of, Step::PatchInstance(patch)).await
                    }
                    Some(migration::Step::PatchMigrationStatus(patch)) => {
                        let api = self.api::<VirtualMachineInstanceMigration>(&key);
                        let answer = api.patch_status(&key.name, &merge(), &Patch::Merge(patch)).await;
                        let error = Error::of("write status of migration", &key);
                        if let Some(migration) = unless_gone(answer).map_err(error)? {
                            self.migrations.wrote(migration);
                        }
                        Ok(())
                    }
                }
            }
        }
    }

    /// Ends migrations of this namespace that are there no more.
    async fn abort(&self, namespace: &str) -> Result<(), Error> {
        let known: Vec<_> = self.migrations.list().iter().filter_map(|migration| migration.uid()).collect();
        for instance in self.instances.list().iter().filter(|it| it.namespace().as_deref() == Some(namespace))
        {
            if let Some(patch) = migration::abort(instance, &known, &self.clock.now_text()) {
                self.act(&ObjectKey::of(&**instance), Step::PatchInstance(patch)).await?;
            }
        }
        Ok(())
    }

    /// Disks that come and go, when nothing else is to be done for the VM.
    async fn plug(&self, key: &ObjectKey, vm: &Vm, instance: Option<&Instance>) -> Result<(), Error> {
        let Some(way) = *self.hot_plug.lock().expect("no panic while remembering") else { return Ok(()) };
        if vm.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let (behaviour, _) = super::instance::behaviour(vm, instance);
        let running = instance.filter(|instance| {
            super::instance::is_running(instance) && instance.metadata.deletion_timestamp.is_none()
        });
        let claim =
            |name: &str| self.claims.get(&ObjectKey::new(&key.namespace, name)).map(|claim| (*claim).clone());
        let has_started = |pod: &str| self.has_started(key, pod, behaviour.hotplug_takes);
        let step = hotplug::decide(&hotplug::Seen {
            vm: &vm.json(),
            instance: running.map(|instance| instance.json()).as_ref(),
            claim: &claim,
            way,
            // virt-handler plugs nothing while the instance moves
            works: behaviour.hotplug_works && !instance.is_some_and(super::instance::migrating),
            has_started: &has_started,
        });
        let step = match step {
            None => return Ok(()),
            Some(hotplug::Step::Vm(patch)) => Step::PatchVm(patch),
            Some(hotplug::Step::VmStatus(patch)) => Step::PatchVmStatus(patch),
            Some(hotplug::Step::Instance(patch)) => Step::PatchInstance(patch),
        };
        match self.act(key, step).await {
            // somebody else was faster: the newer version is on its way to us
            Err(error) if error.is_conflict() => Ok(()),
            done => done,
        }
    }

    /// Whether a pod that brings volumes has had its time, since it was seen first.
    fn has_started(&self, key: &ObjectKey, pod: &str, takes: Duration) -> bool {
        if takes.is_zero() {
            return true;
        }
        let now = Instant::now();
        let mut pods = self.pods.lock().expect("no panic while remembering");
        let begun = *pods.entry(format!("{key} {pod}")).or_insert(now);
        let rest = takes.saturating_sub(now - begun);
        if !rest.is_zero() {
            self.queue.add_after(Item::Vm(key.clone()), rest);
        }
        rest.is_zero()
    }

    /// An annotation that says nothing is told on the VM, once.
    fn complain(&self, key: &ObjectKey, vm: &Vm, instance: Option<&Instance>) {
        let (_, unknown) = super::instance::behaviour(vm, instance);
        let before =
            self.said.lock().expect("no panic while remembering").insert(key.clone(), unknown.clone());
        for unknown in unknown.iter().filter(|unknown| before.iter().all(|before| !before.contains(unknown)))
        {
            let about = vm.object_ref(&());
            self.events.publish(&about, &PendingEvent::warning(unknown.reason(), unknown.to_string()));
        }
    }

    async fn act(&self, key: &ObjectKey, step: Step) -> Result<(), Error> {
        tracing::debug!(vm = %key, ?step);
        let error = |what| Error::of(what, key);
        let (vms, instances) = (self.api::<VirtualMachine>(key), self.api::<VirtualMachineInstance>(key));
        match step {
            Step::PatchVm(patch) => {
                let answer = vms.patch(&key.name, &merge(), &Patch::Merge(patch)).await;
                if let Some(vm) = unless_gone(answer).map_err(error("write VM"))? {
                    self.vms.wrote(vm);
                }
            }
            Step::PatchVmStatus(patch) => {
                let answer = vms.patch_status(&key.name, &merge(), &Patch::Merge(patch)).await;
                if let Some(vm) = unless_gone(answer).map_err(error("write status of VM"))? {
                    self.vms.wrote(vm);
                }
            }
            Step::CreateInstance(json) => {
                let instance = RawObject::from_json(json).expect("what we made is an instance");
                let answer = instances.create(&PostParams::default(), &instance).await;
                if let Some(instance) = unless_there(answer).map_err(error("start VM"))? {
                    self.instances.wrote(instance);
                }
            }
            Step::PatchInstance(patch) => {
                let answer = instances.patch(&key.name, &merge(), &Patch::Merge(patch)).await;
                if let Some(instance) = unless_gone(answer).map_err(error("write instance of VM"))? {
                    self.instances.wrote(instance);
                }
            }
            Step::Warn { reason, message } => {
                if let Some(instance) = self.instances.get(key) {
                    self.events.publish(&instance.object_ref(&()), &PendingEvent::warning(reason, message));
                }
            }
            Step::DeleteInstance { uid } => {
                let params = DeleteParams::default();
                let params =
                    params.preconditions(kube::api::Preconditions { uid: Some(uid), resource_version: None });
                match instances.delete(&key.name, &params).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                    answer => drop(answer.map_err(error("stop VM"))?),
                }
            }
        }
        Ok(())
    }

    fn api<K>(&self, key: &ObjectKey) -> Api<RawObject<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.harvester.clone(), &key.namespace)
    }
}

fn merge() -> PatchParams {
    PatchParams::default()
}
