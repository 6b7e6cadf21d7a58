//! One call for one volume: what it reads, the annotation that it writes, and how it waits.

use std::{
    collections::HashMap,
    future::pending,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use controller_kit::{Cache, Watched};
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations::CSI_ATTACH};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::{
    sync::{OnceCell, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    Attacher,
    hotplug::{self, Disk, Progress},
    ownership::{Operation, Ownership, Recorded, There},
    plug,
    watches::{self, Changes, SILENT_AFTER},
    why::{ClaimPhase, Pod, Waiting, why_not},
    worker::Worker,
};
use crate::{host, refusal::Refusal, volume::name::HostName};

/// A call that hears of no change looks again after so long, past watches that do not work.
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// A volume that the host says is blocked, or that does not leave its machine: a caller hears of it after so long without
/// a change. It comes again, and the sidecar's few workers serve other volumes meanwhile.
pub const BLOCKED_FOR: Duration = Duration::from_secs(10);
/// The same where the host says nothing: it may be at work.
pub const SILENT_FOR: Duration = Duration::from_secs(30);
/// Machines in one answer of a list.
const PAGE: u32 = 100;

/// What a call has read.
pub(super) struct Seen {
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    pub(super) vm: Option<Arc<VirtualMachine>>,
    pub(super) vmi: Option<Arc<VirtualMachineInstance>>,
    /// No watch had a part in it. What a watch says may be old: by it the driver writes, since a write names the
    /// version that it is for, and it answers after it has read afresh.
    pub(super) is_fresh: bool,
}

impl Seen {
    pub(super) fn recorded(&self) -> Recorded {
        self.claim.as_deref().map_or(Recorded::Nothing, recorded)
    }

    /// Whether the machine has this version still.
    pub(super) fn has_version(&self, version: &str) -> bool {
        self.vm.as_ref().is_some_and(|vm| plug::version(vm) == version)
    }

    /// Whether the annotation says that the volume is in a machine, or on its way there.
    pub(super) fn is_attached(&self) -> bool {
        matches!(self.recorded(), Recorded::Ownership(ownership) if ownership.operation == Operation::Attach)
    }
}

/// What the annotation of a claim (PersistentVolumeClaim) says.
pub(crate) fn recorded(claim: &PersistentVolumeClaim) -> Recorded {
    let text = claim.metadata.annotations.as_ref().and_then(|all| all.get(CSI_ATTACH));
    text.map_or(Recorded::Nothing, |text| {
        Ownership::parse(text).map_or(Recorded::Unreadable, Recorded::Ownership)
    })
}

/// One call for one volume.
pub(super) struct Session<'a> {
    pub(super) attacher: &'a Attacher,
    pub(super) call: watches::Watching,
    pub(super) volume: &'a HostName,
    /// What the call waits for, for its caller when the deadline passes.
    pub(super) waits_for: &'a Mutex<String>,
    /// A caller comes again, so it hears early that nothing changes; the reconciler goes on waiting.
    pub(super) has_caller: bool,
    worker: Option<&'a Worker>,
    /// Since when the call waits for the same, and how long a caller waits with it.
    waits: Mutex<(Instant, Duration)>,
    /// When silent watches are compared with the host next, and how long after that again.
    compares: Mutex<(Instant, Duration)>,
    binds_at_use: OnceCell<bool>,
}

impl<'a> Session<'a> {
    pub(super) fn new(attacher: &'a Attacher, volume: &'a HostName, waits_for: &'a Mutex<String>) -> Self {
        let call = attacher.watches.begin();
        let waits = Mutex::new((Instant::now(), SILENT_FOR));
        let compares = Mutex::new((Instant::now() + SILENT_AFTER, LOOK_AGAIN));
        let (has_caller, worker, binds_at_use) = (false, None, OnceCell::new());
        Self { attacher, call, volume, waits_for, has_caller, worker, waits, compares, binds_at_use }
    }

    /// The same, by this worker, which others have while the session waits.
    pub(super) fn by(self, worker: Option<&'a Worker>) -> Self {
        Self { worker, ..self }
    }

    /// A session for a call of CSI.
    pub(super) fn of_caller(
        attacher: &'a Attacher,
        volume: &'a HostName,
        waits_for: &'a Mutex<String>,
    ) -> Self {
        Self { has_caller: true, ..Self::new(attacher, volume, waits_for) }
    }

    /// Reads the claim, the machine and its instance, from watches unless `is_fresh`.
    pub(super) async fn see(&self, machine: &str, is_fresh: bool) -> Result<Seen, Refusal> {
        if is_fresh {
            let (vm, vmi) = tokio::try_join!(self.read_machine(machine), self.read_instance(machine))?;
            // last: a disk that was seen before is there, unless its annotation says that it is to go (super::give_back)
            let claim = self.read_claim().await?;
            return Ok(Seen { claim, vm, vmi, is_fresh });
        }
        let (watched, instances) = tokio::join!(self.watched_claim(), self.call.instances());
        let claim = match watched {
            Some(claim) => Some(claim),
            None => self.read_claim().await?,
        };
        let vmi = match instances {
            Some(instances) => self.watched_instance(&instances, machine),
            None => self.read_instance(machine).await?,
        };
        // a machine that a watch does not show may be new
        let watched = self.call.machines().await.and_then(|machines| machines.get(&self.call.key(machine)));
        let vm = match watched {
            Some(vm) => Some(vm),
            None => self.read_machine(machine).await?,
        };
        Ok(Seen { claim, vm, vmi, is_fresh })
    }

    /// Refuses another cluster's claim. Our own one is known by the label of our machine, which is mostly watched.
    pub(super) async fn check_owner(&self, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
        let host = &self.attacher.host;
        if let (Some(own), Some(machines)) = (host.own_machine(), self.call.machines().await)
            && let Some(vm) = machines.get(&self.call.key(&own))
        {
            host.note_own(&vm);
        }
        host.check_owner(claim).await
    }

    pub(super) async fn watched_claim(&self) -> Option<Arc<PersistentVolumeClaim>> {
        self.call.claims().await?.get(&self.call.key(self.volume.as_str()))
    }

    pub(super) async fn read_claim(&self) -> Result<Option<Arc<PersistentVolumeClaim>>, Refusal> {
        let host = &self.attacher.host;
        let doing = || format!("read {}", host.claim_name(self.volume));
        let read = host.claims().get_opt(self.volume.as_str()).await;
        match read.map_err(|error| Refusal::of_host(&doing(), &error))? {
            Some(claim) => Ok(Some(self.known_claim(claim).await)),
            None => Ok(None),
        }
    }

    async fn known_claim(&self, claim: PersistentVolumeClaim) -> Arc<PersistentVolumeClaim> {
        match self.call.claims().await {
            Some(claims) => claims.wrote(claim),
            None => Arc::new(claim),
        }
    }

    pub(super) async fn read_machine(&self, name: &str) -> Result<Option<Arc<VirtualMachine>>, Refusal> {
        let host = &self.attacher.host;
        let read = host.machines().get_opt(name).await;
        let read =
            read.map_err(|error| Refusal::of_host(&format!("read {}", host.machine_name(name)), &error))?;
        match read {
            Some(vm) => Ok(Some(self.known_machine(vm).await)),
            None => Ok(None),
        }
    }

    /// From now on this version of the machine is known, trimmed.
    pub(super) async fn known_machine(&self, mut vm: VirtualMachine) -> Arc<VirtualMachine> {
        match self.call.machines().await {
            Some(machines) => machines.wrote(vm),
            None => {
                hotplug::trim_machine(&mut vm);
                Arc::new(vm)
            }
        }
    }

    pub(super) async fn read_instance(
        &self,
        name: &str,
    ) -> Result<Option<Arc<VirtualMachineInstance>>, Refusal> {
        let host = &self.attacher.host;
        let doing = || format!("read VirtualMachineInstance {}/{name} on the host", host.namespace());
        let read = host.instances().get_opt(name).await;
        let read = read.map_err(|error| Refusal::of_host(&doing(), &error))?;
        Ok(read.map(|mut vmi| {
            hotplug::trim_instance(&mut vmi);
            self.attacher.migrations.believed(Arc::new(vmi))
        }))
    }

    /// The machine's instance as its watch shows it.
    pub(super) fn watched_instance(
        &self,
        instances: &Cache<VirtualMachineInstance>,
        machine: &str,
    ) -> Option<Arc<VirtualMachineInstance>> {
        instances.get(&self.call.key(machine)).map(|vmi| self.attacher.migrations.believed(vmi))
    }

    /// Lists all machines, uncached.
    async fn list_machines(&self) -> Result<Vec<VirtualMachine>, Refusal> {
        self.list_all(self.attacher.host.machines(), hotplug::trim_machine).await
    }

    async fn list_instances(&self) -> Result<Vec<VirtualMachineInstance>, Refusal> {
        self.list_all(self.attacher.host.instances(), hotplug::trim_instance).await
    }

    async fn list_all<K: Watched>(&self, api: Api<K>, trim: impl Fn(&mut K)) -> Result<Vec<K>, Refusal> {
        let namespace = self.attacher.host.namespace();
        let doing = || format!("list the {}s of namespace {namespace} on the host", K::kind(&()));
        let (mut all, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let list = api.list(&page).await.map_err(|error| Refusal::of_host(&doing(), &error))?;
            all.extend(list.items.into_iter().map(|mut object| {
                trim(&mut object);
                object
            }));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// The machines that have the volume, but `without`: from watches unless `is_fresh`.
    pub(super) async fn machines_with_volume(
        &self,
        without: Option<&str>,
        is_fresh: bool,
    ) -> Result<Vec<String>, Refusal> {
        let machines = if is_fresh { None } else { self.call.machines().await };
        match machines {
            Some(machines) => {
                let all = machines.list();
                self.with_volume(all.iter().map(AsRef::as_ref), without, is_fresh).await
            }
            None => self.with_volume(&self.list_machines().await?, without, is_fresh).await,
        }
    }

    pub(super) async fn with_volume<'b>(
        &self,
        vms: impl IntoIterator<Item = &'b VirtualMachine>,
        without: Option<&str>,
        is_fresh: bool,
    ) -> Result<Vec<String>, Refusal> {
        let watched = if is_fresh { None } else { self.call.instances().await };
        let instances = match watched {
            Some(instances) => instances.list(),
            None => self.list_instances().await?.into_iter().map(Arc::new).collect(),
        };
        let by_name: HashMap<_, _> =
            instances.iter().filter_map(|vmi| Some((vmi.metadata.name.as_deref()?, vmi.as_ref()))).collect();
        let mut with = Vec::new();
        let mut seen = Vec::new();
        for vm in vms {
            let name = vm.metadata.name.as_deref().unwrap_or_default();
            seen.push(name);
            if hotplug::disk(Some(vm), by_name.get(name).copied(), self.volume.as_str()) != Disk::Absent {
                with.push(name.to_owned());
            }
        }
        for (name, vmi) in &by_name {
            if hotplug::disk(None, Some(vmi), self.volume.as_str()) != Disk::Absent && !seen.contains(name) {
                with.push((*name).to_owned());
            }
        }
        with.retain(|name| Some(name.as_str()) != without);
        with.sort();
        Ok(with)
    }

    /// What the machine of an annotation has, read uncached.
    pub(super) async fn there(
        &self,
        ownership: &Ownership,
    ) -> Result<(There, Option<Arc<VirtualMachine>>), Refusal> {
        let (vm, vmi) =
            tokio::try_join!(self.read_machine(&ownership.vm), self.read_instance(&ownership.vm))?;
        let vm = vm.filter(|vm| vm.metadata.uid.as_deref() == Some(&ownership.vm_uid));
        let there = match hotplug::disk(vm.as_deref(), vmi.as_deref(), self.volume.as_str()) {
            Disk::Absent if vm.is_none() => There::NoMachine,
            Disk::Absent => There::NoVolume,
            _ => There::Volume,
        };
        Ok((there, vm))
    }

    /// Writes the annotation, or removes it, on the version of the claim that was decided on. Nothing where somebody
    /// wrote first.
    pub(super) async fn annotate(
        &self,
        on: &PersistentVolumeClaim,
        ownership: Option<Ownership>,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, Refusal> {
        let host = &self.attacher.host;
        let text = ownership.map(|mut ownership| {
            ownership.holder = self.attacher.next_holder();
            serde_json::to_string(&ownership).expect("names and words")
        });
        let patch = json!({"metadata": {"resourceVersion": on.metadata.resource_version,
            "annotations": {CSI_ATTACH: text}}});
        let patched =
            host.claims().patch(self.volume.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
        match patched {
            Ok(claim) => {
                let claim = self.known_claim(claim).await;
                self.attacher.ages.unchanged_for(&claim);
                Ok(Some(claim))
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => {
                let doing = format!("write annotation {CSI_ATTACH} on {}", host.claim_name(self.volume));
                Err(Refusal::of_host(&doing, &error))
            }
        }
    }

    /// Whether the claim is bound, or is bound by its first use.
    pub(super) async fn may_be_used(&self, claim: &PersistentVolumeClaim) -> Result<bool, Refusal> {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        match phase {
            "Bound" => return Ok(true),
            "Lost" => {
                let name = self.attacher.host.claim_name(self.volume);
                return Err(Refusal::precondition(format!(
                    "{name} has lost its volume: restore a backup of it"
                )));
            }
            _ => {}
        }
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
        if class.is_empty() {
            return Ok(false);
        }
        let binds = self.binds_at_use.get_or_try_init(async || {
            match self.attacher.host.classes().get(&class).await {
                Ok(class) => Ok(class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")),
                // a class that this role may not read says nothing against its use
                Err(error) if host::is_refused(&error) => Ok(true),
                // the host can bind no claim of a class that is gone
                Err(error) if host::is_not_found(&error) => Ok(false),
                Err(error) => {
                    Err(Refusal::of_host(&format!("read StorageClass {class} on the host"), &error))
                }
            }
        });
        binds.await.copied()
    }

    /// What the call waits for from now on.
    pub(super) fn wait_for(&self, what: impl Into<String>) {
        self.wait_for_long(what, BLOCKED_FOR);
    }

    /// [`Session::wait_for`], and how long a caller waits without a change.
    pub(super) fn wait_for_long(&self, what: impl Into<String>, no_longer_than: Duration) {
        let what = what.into();
        let mut waits_for = self.waits_for.lock().expect("no panic while the text is replaced");
        let mut waits = self.waits.lock().expect("no panic while the time is replaced");
        if *waits_for != what {
            (*waits_for, waits.0) = (what, Instant::now());
        }
        waits.1 = no_longer_than;
    }

    /// The call has done something: what it waits for is younger.
    pub(super) fn gets_on(&self) {
        self.waits.lock().expect("no panic while the time is replaced").0 = Instant::now();
    }

    /// What `work` answers, where a caller waits so long for it; without a caller there is no hurry.
    ///
    /// # Errors
    /// ABORTED, which is CSI's code for what is under way, with what a caller has waited for long enough.
    pub(super) async fn in_patience<T>(&self, work: impl Future<Output = T>) -> Result<T, Refusal> {
        if !self.has_caller {
            return Ok(work.await);
        }
        let (since, patience) = *self.waits.lock().expect("no panic while the time is replaced");
        timeout_at(since + patience, work).await.map_err(|_| {
            Refusal::aborted(self.waits_for.lock().expect("no panic while the text is replaced").clone())
        })
    }

    /// Waits for a change of what is watched, at most until then. Meanwhile a watch that tells of none may be found stale.
    pub(super) async fn change(&self, changes: &Changes, until: Option<Instant>) {
        let longest = until.map_or(LOOK_AGAIN, |until| until.saturating_duration_since(Instant::now()));
        let (compare_at, pause) = *self.compares.lock().expect("no panic while the time is replaced");
        let comparing = async {
            sleep_until(compare_at).await;
            self.call.compare(self.volume.as_str(), changes);
            let later = if self.has_caller { pause } else { 2 * pause };
            *self.compares.lock().expect("no panic while the time is replaced") =
                (Instant::now() + pause, later);
            // what it shows wakes the call as any change does
            pending::<()>().await;
        };
        self.wait(async {
            tokio::select! {
                () = changes.next() => {}
                () = sleep(longest.min(LOOK_AGAIN)) => self.call.complete(),
                () = comparing => {}
            }
        })
        .await;
    }

    /// Waits, and has others work meanwhile.
    pub(super) async fn wait(&self, wait: impl Future<Output = ()>) {
        match self.worker {
            Some(worker) => worker.free_during(wait).await,
            None => wait.await,
        }
    }

    /// Whom a machine waits for that has a volume not yet, or still.
    pub(super) async fn explain(
        &self,
        doing: &str,
        machine: &str,
        progress: &Progress,
        vm: Option<&VirtualMachine>,
        vmi: Option<&VirtualMachineInstance>,
        no_longer_than: Duration,
    ) {
        let claims = self.call.claims().await;
        let phase_of = |name: &str| match &claims {
            Some(claims) => ClaimPhase::of(claims.get(&self.call.key(name)).as_deref()),
            None => ClaimPhase::NotWatched,
        };
        let pod = &Pod::of(vm, vmi, self.volume.as_str(), phase_of);
        let waiting = Waiting { volume: self.volume, doing, machine, progress, vm, vmi, pod };
        self.wait_for_long(why_not(&self.attacher.host, &waiting), no_longer_than);
    }
}

/// Whether the instance is as of after this version of its machine: one server counts the versions of all kinds up
/// together. Else a watch may show a former stay of a volume.
pub(super) fn is_later(vmi: Option<&VirtualMachineInstance>, version: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    let of_vmi = vmi.and_then(|vmi| number(vmi.metadata.resource_version.as_deref()?));
    matches!((of_vmi, number(version)), (Some(of_vmi), Some(version)) if of_vmi > version)
}

/// The claim's class.
pub(super) fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref().filter(|class| !class.is_empty())
}

pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// For how long this process has seen claims at their versions, by its own clock.
#[derive(Default)]
pub(super) struct Ages(Mutex<HashMap<String, (String, Instant)>>);

/// More claims than one namespace has volumes on their way.
const MOST_AGES: usize = 4096;

impl Ages {
    pub(super) fn unchanged_for(&self, claim: &PersistentVolumeClaim) -> Duration {
        let metadata = &claim.metadata;
        let version = format!(
            "{} {}",
            metadata.uid.as_deref().unwrap_or_default(),
            metadata.resource_version.as_deref().unwrap_or_default()
        );
        let mut ages = self.0.lock().expect("no panic while the ages are changed");
        if ages.len() >= MOST_AGES {
            // they count anew: others wait longer, and nobody takes over too early
            ages.clear();
        }
        let name = metadata.name.clone().unwrap_or_default();
        let age = ages.entry(name).or_insert_with(|| (version.clone(), Instant::now()));
        if age.0 != version {
            *age = (version, Instant::now());
        }
        age.1.elapsed()
    }

    pub(super) fn forget(&self, name: &str) {
        self.0.lock().expect("no panic while the ages are changed").remove(name);
    }
}

/// The writes to each machine: of those that add disks several at once, which one write then makes, and of others one at a
/// time, so that the calls of this process do not fail one another's versions.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<RwLock<()>>>>);

/// A turn of one call at a machine; it ends when this is dropped.
pub(super) enum Turn {
    Alone(#[expect(dead_code, reason = "it is held")] OwnedRwLockWriteGuard<()>),
    BesideOthers(#[expect(dead_code, reason = "it is held")] OwnedRwLockReadGuard<()>),
}

impl Turns {
    pub(super) async fn alone(&self, machine: &str) -> Turn {
        Turn::Alone(self.of(machine).write_owned().await)
    }

    pub(super) async fn beside_others(&self, machine: &str) -> Turn {
        Turn::BesideOthers(self.of(machine).read_owned().await)
    }

    fn of(&self, machine: &str) -> Arc<RwLock<()>> {
        let mut turns = self.0.lock().expect("no panic while the turns are changed");
        turns.retain(|_, turn| turn.strong_count() > 0);
        let known = turns.get(machine).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let turn = Arc::default();
            turns.insert(machine.to_owned(), Arc::downgrade(&turn));
            turn
        })
    }
}

/// The holder of the annotations that one process writes.
pub(super) struct Holder {
    pub(super) name: String,
    pub(super) written: AtomicU64,
}

impl Holder {
    pub(super) fn next(&self) -> String {
        format!("{}#{}", self.name, self.written.fetch_add(1, Ordering::Relaxed))
    }
}
