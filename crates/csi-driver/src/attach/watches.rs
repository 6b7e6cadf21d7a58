//! What the host has, as watches tell it: machines, their instances and the claims (PersistentVolumeClaims) of volumes,
//! from the first call until ten minutes after the last one.
//!
//! The controller service runs in every pod of the DaemonSet, and only that beside the leading sidecars is called; the
//! others watch nothing. A first call waits for machines and instances, whose changes it needs to know of: their first
//! lists are as fresh as any that it could ask for. Its claim it reads by itself, and the watch of all claims begins when
//! it has ended, or with the next call.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{Cache, ObjectKey, Watched, refusal};
use futures::future::join_all;
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, runtime::watcher};
use program::TaskGroup;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::hotplug;
use crate::host::{self, Host, PAGE};

/// The watches end so long after the last call.
pub const KEPT_FOR: Duration = Duration::from_secs(600);
/// A call waits so long for the first list of a watch, then it reads the object by itself.
const LISTED_WITHIN: Duration = Duration::from_secs(2);
/// A watch that has told nothing for so long may be held by a proxy, without an error.
pub const SILENT_AFTER: Duration = Duration::from_secs(5);
/// A watch that works delivers so soon what the host has answered.
const ECHOED_WITHIN: Duration = Duration::from_secs(1);
/// A read by which a watch is judged; one that takes longer says nothing. It may be slow, as the host is: the watch has the more
/// time to deliver what it shows.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// A comparison of a machine serves all calls that begin one so soon after it.
const COMPARED_FOR_ALL: Duration = Duration::from_secs(2);
/// Stale watches are listed anew, and not again before: a host may be slow, and lists cost it more than watches.
const RELIST_AT_MOST_EVERY: Duration = Duration::from_secs(30);
/// What of a claim's annotations is read.
const ANNOTATIONS: [&str; 4] = [
    annotations::CSI_ATTACH,
    annotations::CSI_VOLUME,
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

/// The watches. Clones share them.
#[derive(Clone)]
pub struct Watches(Arc<Inner>);

struct Inner {
    host: Host,
    /// Its end is the end of the watches when no call is under way: those that are go on for a moment, and wait for what
    /// the host does.
    process: TaskGroup,
    tasks: TaskGroup,
    state: Mutex<State>,
    /// Counts changes of machines, instances and claims.
    changes: watch::Sender<u64>,
    /// Calls that wait for changes of single objects, by the names of these.
    waiting: Mutex<HashMap<String, Vec<Arc<Notify>>>>,
    /// Machines that were compared with the host, and when.
    compared: Mutex<HashMap<String, Instant>>,
}

#[derive(Default)]
struct State {
    calls: usize,
    last_call: Option<Instant>,
    running: Option<Running>,
}

struct Running {
    tasks: TaskGroup,
    machines: Cache<VirtualMachine>,
    instances: Cache<VirtualMachineInstance>,
    claims: Option<Cache<PersistentVolumeClaim>>,
    relisted_at: Option<Instant>,
}

impl Running {
    /// They share the route to the host: what holds one connection holds others. One that tells of anything is only late,
    /// a list that is under way is let finish, and one that is broken begins anew by itself, when the host lets it.
    fn relist_silent(&mut self) {
        if self.relisted_at.is_some_and(|last| last.elapsed() < RELIST_AT_MOST_EVERY) {
            return;
        }
        let claims = self.claims.as_ref().is_some_and(relist_if_silent);
        if relist_if_silent(&self.machines) | relist_if_silent(&self.instances) | claims {
            tracing::info!("watches are silent and stale: a proxy may hold their connections");
            self.relisted_at = Some(Instant::now());
        }
    }
}

fn relist_if_silent<K: Watched>(cache: &Cache<K>) -> bool {
    let is_due = cache.is_ready() && cache.watch_error().is_none() && cache.silent_for() >= SILENT_AFTER;
    if is_due {
        cache.relist();
    }
    is_due
}

/// A call under way. The watches last while there is one.
pub struct Watching(Watches);

impl Watches {
    pub fn new(host: Host, tasks: &TaskGroup) -> Self {
        Self(Arc::new(Inner {
            host,
            process: tasks.clone(),
            tasks: TaskGroup::new(),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            waiting: Mutex::default(),
            compared: Mutex::default(),
        }))
    }

    /// Begins a call, and the watches where they do not run. Inside a runtime.
    pub fn begin(&self) -> Watching {
        let mut state = self.state();
        if let Some(running) = &mut state.running {
            self.complete(running);
        }
        self.count(&mut state)
    }

    /// [`Watches::begin`] for a call that asks for machines and instances, and for no claims.
    pub fn begin_for_machines(&self) -> Watching {
        self.count(&mut self.state())
    }

    fn count(&self, state: &mut State) -> Watching {
        state.calls += 1;
        if state.running.is_none() {
            let (host, tasks) = (&self.0.host, self.0.tasks.child());
            let machines = Cache::start_trimmed(&tasks, host.machines(), config(), hotplug::trim_machine);
            let instances = Cache::start_trimmed(&tasks, host.instances(), config(), hotplug::trim_instance);
            self.tell_changes(&machines);
            self.tell_changes(&instances);
            state.running = Some(Running { tasks, machines, instances, claims: None, relisted_at: None });
            let watches = self.clone();
            self.0.tasks.spawn_until_stop(async move { watches.end_when_unused().await });
        }
        Watching(self.clone())
    }

    /// Whether the host is watched now.
    pub fn are_running(&self) -> bool {
        self.state().running.is_some()
    }

    fn complete(&self, running: &mut Running) {
        if running.claims.is_none() {
            let claims = Cache::start_trimmed(&running.tasks, self.0.host.claims(), config(), trim_claim);
            self.tell_changes(&claims);
            running.claims = Some(claims);
        }
    }

    fn tell_changes<K: Watched>(&self, cache: &Cache<K>) {
        // the caches do not keep alive what keeps them
        let this = Arc::downgrade(&self.0);
        cache.on_change(move |change| {
            let Some(this) = this.upgrade() else { return };
            this.changes.send_modify(|count| *count += 1);
            for bell in this.waiting().get(&change.key.name).into_iter().flatten() {
                bell.notify_one();
            }
        });
    }

    /// Reads these past watches that are silent. Each watch is judged by itself: one that tells of others is waited for longer.
    async fn compare(&self, claim: &ObjectKey, machines: &[ObjectKey]) {
        let watched = {
            let state = self.state();
            let Some(running) = &state.running else { return };
            (running.machines.clone(), running.instances.clone(), running.claims.clone())
        };
        let (watched_machines, watched_instances, watched_claims) = &watched;
        let host = &self.0.host;
        let of_machines = join_all(machines.iter().map(async |key| {
            let machine = self.look_past(watched_machines, host.machines(), key);
            tokio::join!(machine, self.look_past(watched_instances, host.instances(), key));
        }));
        let of_claim = async {
            if let Some(claims) = watched_claims {
                self.look_past(claims, host.claims(), claim).await;
            }
        };
        tokio::join!(of_machines, of_claim);
    }

    /// Has the cache know what a read shows that its silent watch does not deliver, and silent watches listed anew. A list that
    /// begins now does not name what is gone.
    async fn look_past<K: Watched>(&self, cache: &Cache<K>, api: Api<K>, key: &ObjectKey) {
        sleep(SILENT_AFTER.saturating_sub(cache.silent_for())).await;
        // who waited may have been answered
        if !self.0.waiting().contains_key(&key.name) {
            return;
        }
        match past(cache, api, key).await {
            Some(Read::There(object)) => cache.saw(object),
            Some(Read::Gone(uid)) => cache.gone(key, &uid),
            None => return,
        }
        self.relist_silent();
    }

    fn relist_silent(&self) {
        if let Some(running) = &mut self.state().running {
            running.relist_silent();
        }
    }

    async fn end_when_unused(&self) {
        loop {
            let ends_at = {
                let mut state = self.state();
                let last_call = state.last_call.filter(|_| state.calls == 0).unwrap_or_else(Instant::now);
                if last_call.elapsed() >= KEPT_FOR {
                    if let Some(running) = state.running.take() {
                        running.tasks.stop.cancel();
                    }
                    return;
                }
                last_call + KEPT_FOR
            };
            if self.0.process.stop.run_until_cancelled(sleep_until(ends_at)).await.is_none() {
                return self.end_with_process(&self.state());
            }
        }
    }

    fn end_with_process(&self, state: &State) {
        if state.calls == 0 && self.0.process.stop.is_cancelled() {
            self.0.tasks.stop.cancel();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while the watches are changed")
    }
}

impl Inner {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Notify>>>> {
        self.waiting.lock().expect("no panic while the calls that wait are changed")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Watching {
    /// Told at each change of what is watched.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.0.changes.subscribe()
    }

    /// Told at each change of machines, instances and claims of this name.
    pub fn changes_of(&self, name: &str) -> Changes {
        let changes = Changes { watches: self.0.clone(), bell: Arc::default(), names: vec![] };
        changes.with(name)
    }

    /// Why a watch does not work, as it was told last.
    pub fn error(&self) -> Option<String> {
        let state = self.0.state();
        let running = state.running.as_ref()?;
        let claims = running.claims.as_ref().and_then(Cache::watch_error);
        running.machines.watch_error().or_else(|| running.instances.watch_error()).or(claims)
    }

    /// The instances, where their watch works.
    pub async fn instances(&self) -> Option<Cache<VirtualMachineInstance>> {
        let instances = self.0.state().running.as_ref()?.instances.clone();
        working(instances).await
    }

    /// The machines, where their watch works.
    pub async fn machines(&self) -> Option<Cache<VirtualMachine>> {
        let machines = self.0.state().running.as_ref()?.machines.clone();
        working(machines).await
    }

    /// The claims, where they are watched and the watch works.
    pub async fn claims(&self) -> Option<Cache<PersistentVolumeClaim>> {
        let claims = self.0.state().running.as_ref()?.claims.clone()?;
        working(claims).await
    }

    /// Whether the watch of machines, or that of instances, has told nothing for so long that it may be held by a proxy.
    pub async fn may_be_silent(&self) -> bool {
        let watched = tokio::join!(self.machines(), self.instances());
        let (Some(machines), Some(instances)) = watched else { return true };
        machines.silent_for().max(instances.silent_for()) >= SILENT_AFTER
    }

    /// Whether the watches of machines and of instances have passed this version of the machine, which the host has answered. A
    /// disk that comes changes the instance after its machine. Where no instance is known none is waited for.
    pub async fn echoes(&self, machine: &str, version: &str) -> bool {
        let watched = tokio::join!(self.machines(), self.instances());
        let (Some(machines), Some(instances)) = watched else { return false };
        let Ok(version) = version.parse::<u64>() else { return false };
        instances.get(&self.key(machine)).is_some()
            && tokio::join!(delivers(&machines, version), delivers(&instances, version)) == (true, true)
    }

    /// Compares the watches with the host in the background: a change that rings meanwhile ends no comparison, and what comes of
    /// it rings as any change does. A call tells the claim and the machines that it waits for.
    pub fn compare(&self, claim: &str, changes: &Changes) {
        let (watches, claim) = (self.0.clone(), self.key(claim));
        let names = changes.names.iter().filter(|name| **name != claim.name);
        let machines: Vec<_> = names.filter(|name| self.begins(name)).map(|name| self.key(name)).collect();
        self.0.0.tasks.spawn_until_stop(async move { watches.compare(&claim, &machines).await });
    }

    /// Whether no other call has begun to compare this machine just now: calls for many volumes wait for one machine.
    fn begins(&self, machine: &str) -> bool {
        let mut compared = self.0.0.compared.lock().expect("no panic while the times are changed");
        compared.retain(|_, at| at.elapsed() < COMPARED_FOR_ALL);
        let begins = !compared.contains_key(machine);
        if begins {
            compared.insert(machine.to_owned(), Instant::now());
        }
        begins
    }

    /// Has the silent watches listed anew, where one of them is seen to be stale.
    pub fn relist_silent(&self) {
        self.0.relist_silent();
    }

    /// Begins the watch that the next call will need.
    pub fn complete(&self) {
        if let Some(running) = &mut self.0.state().running {
            self.0.complete(running);
        }
    }

    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(self.0.0.host.namespace(), name)
    }
}

/// Changes of some objects since they were asked for last. What others change in the namespace wakes nobody.
pub struct Changes {
    watches: Watches,
    bell: Arc<Notify>,
    names: Vec<String>,
}

impl Changes {
    /// Told of machines, instances and claims of this name too.
    #[must_use]
    pub fn with(mut self, name: &str) -> Self {
        self.add(name);
        self
    }

    /// [`Changes::with`].
    pub fn add(&mut self, name: &str) {
        if self.names.iter().any(|known| known == name) {
            return;
        }
        self.names.push(name.to_owned());
        self.watches.0.waiting().entry(name.to_owned()).or_default().push(self.bell.clone());
    }

    /// Waits for the next change. One that came before counts.
    pub async fn next(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut waiting = self.watches.0.waiting();
        for name in &self.names {
            let Some(bells) = waiting.get_mut(name) else { continue };
            bells.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
            if bells.is_empty() {
                waiting.remove(name);
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.calls -= 1;
        state.last_call = Some(Instant::now());
        self.0.end_with_process(&state);
    }
}

async fn working<K: Watched>(cache: Cache<K>) -> Option<Cache<K>> {
    if cache.watch_error().is_none() {
        // a list that does not come is no reason to refuse: the object is read by itself
        drop(timeout(LISTED_WITHIN, cache.ready()).await);
    }
    (cache.is_ready() && cache.watch_error().is_none()).then_some(cache)
}

/// Whether the watch passes this version soon. One that tells of others is only late, and is waited for.
async fn delivers<K: Watched>(cache: &Cache<K>, version: u64) -> bool {
    let is_late = cache.silent_for() < ECHOED_WITHIN;
    let within = if is_late { SILENT_AFTER } else { ECHOED_WITHIN };
    timeout(within, cache.wait_until_watched(version)).await.is_ok()
}

/// What a read past a watch has shown.
enum Read<K> {
    There(K),
    /// With the UID of the object that the watch shows.
    Gone(String),
}

/// What a read returns that a silent watch does not deliver: then it is stale.
async fn past<K: Watched>(cache: &Cache<K>, api: Api<K>, key: &ObjectKey) -> Option<Read<K>> {
    // a list may be under way: another call has found the watch stale
    let is_silent = cache.watch_error().is_none() && cache.silent_for() >= SILENT_AFTER;
    let known = is_silent.then(|| cache.get(key))?;
    let read = match timeout(READ_WITHIN, api.get(&key.name)).await.ok()? {
        Ok(object) => Read::There(object),
        Err(kube::Error::Api(answer)) if refusal::is_gone(&answer, &key.name) => {
            Read::Gone(known?.meta().uid.clone()?)
        }
        Err(_) => return None,
    };
    let version = match &read {
        Read::There(object) => object.meta().resource_version.as_deref()?.parse().ok()?,
        // no watch passes this: that it is gone shows otherwise
        Read::Gone(_) => u64::MAX,
    };
    let is_delivered = timeout(ECHOED_WITHIN, cache.wait_until_watched(version)).await.is_ok();
    // another comparison may have it listed anew by now, and lists may be slow: what was read is known before
    (!is_delivered && cache.silent_for() >= SILENT_AFTER).then_some(read)
}

fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Removes what nobody here reads: whoever may write claims in the namespace decides what else is on them.
fn trim_claim(claim: &mut PersistentVolumeClaim) {
    host::trim_claim(claim, &ANNOTATIONS);
    if let Some(spec) = &mut claim.spec {
        spec.selector = None;
        spec.data_source = None;
        spec.data_source_ref = None;
    }
    if let Some(status) = &mut claim.status {
        status.conditions = None;
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::labels::GUEST_CLUSTER;
    use serde_json::json;

    use super::*;
    use crate::attach::{ownership::Recorded, session::recorded};

    #[test]
    fn what_others_write_on_claims_is_not_kept_in_memory() {
        let long = "x".repeat(250 << 10);
        let claim = json!({
            "metadata": {"name": "pvc-1", "finalizers": [long], "labels": {"a": long, GUEST_CLUSTER: "demo"},
                "annotations": {annotations::CSI_ATTACH: long, ANNOTATIONS[2]: "driver.longhorn.io", "b": "c"}},
            "spec": {"volumeName": "pv-1", "selector": {"matchLabels": {"a": long}}},
            "status": {"phase": "Bound", "capacity": {long.clone(): "1", "storage": "1Gi"}}});
        let mut claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        trim_claim(&mut claim);
        let kept = serde_json::to_string(&claim).unwrap();
        assert!(kept.len() < 4 << 10, "{} bytes", kept.len());
        for read in ["\"demo\"", "driver.longhorn.io", "pv-1", "Bound", "1Gi"] {
            assert!(kept.contains(read), "{read}: {kept}");
        }
        assert_eq!(recorded(&claim), Recorded::Unreadable, "there is an annotation, and none of ours");
    }
}
