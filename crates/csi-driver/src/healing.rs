//! The attach reconciler: brings VolumeAttachments of the guest, machines, instances and annotations of the host together
//! again, whichever of them is old (docs/storage.md, section Healing).
//!
//! ```text
//! guest: VolumeAttachments, PersistentVolumes, CSINodes ─┐
//! host:  machines, instances, claims (attach::watches) ──┼─► join ─► decide ─► Attacher::{attach, detach}, nudge, Event
//!                                                  time ─┘
//! ```
//! It writes to the host by the same annotation as the calls do ([`crate::attach`]), so that a second leader, a call
//! and a former process at once do no harm: the Lease saves requests, and nothing is safe because of it. Before each step
//! the VolumeAttachments are read afresh, and the step has to be right for those too. At rest it asks the host nothing.
//!
//! Only a process that sidecars call stands for election, which is the one beside them; the others of a DaemonSet do not.

pub mod decide;
pub(crate) mod in_use;
mod join;
pub mod lead;
mod tell;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{Cache, Recorder};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{AbortHandle, Aborted, BoxFuture, abortable},
    stream::FuturesUnordered,
};
use harvester_api::annotations::CSI_NUDGE;
use k8s_openapi::api::{
    core::v1::PersistentVolume,
    storage::v1::{CSINode, VolumeAttachment},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::watcher,
};
use program::TaskGroup;
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    attach::{Attacher, watches, worker::Workers},
    host,
    refusal::{Refusal, error_message},
};
use decide::{Seen, Step, TELL_AFTER, decide, is_void};
use join::{GuestState, HostState, Volume};
use tell::Told;

/// One call for one volume lasts no longer; then it is decided anew.
pub(crate) const CALL_LASTS: Duration = Duration::from_secs(100);
/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(100);
/// While a call is under way, what it waits for is looked at so often.
const LOOK_AT_CALLS: Duration = Duration::from_secs(1);
/// While the host's watches do not work.
const HOST_AGAIN: Duration = Duration::from_secs(5);
/// A step that did not help is repeated after so long, doubled each time …
const AGAIN_FIRST: Duration = Duration::from_secs(5);
/// … up to this.
const AGAIN_LAST: Duration = Duration::from_secs(60);
/// Calls at work at once, of all volumes. Those that wait are not, nor is waking the attacher.
const CALLS_AT_ONCE: usize = 16;
/// The attacher that was woken so often does not act.
const DEAF_AFTER: u32 = 3;

/// What the reconciler works with.
pub struct Parts {
    /// The guest cluster; writes by it end with the Lease.
    pub guest: Client,
    pub attacher: Arc<Attacher>,
    pub recorder: Recorder,
}

/// What is remembered of one volume.
struct State {
    seen: Seen,
    since: Instant,
    is_ours: bool,
    /// Steps that were taken in this state: how often, and from when on again.
    tries: HashMap<Step, (u32, Instant)>,
    busy: Option<Busy>,
    told: Told,
}

/// A call under way.
struct Busy {
    step: Step,
    begun: Instant,
    abort: AbortHandle,
    waits_for: Arc<Mutex<String>>,
    /// What it waited for at the last look.
    was: String,
}

type Done = (String, Step, Result<(), Refusal>);

struct Reconciler {
    parts: Parts,
    attachments: Cache<VolumeAttachment>,
    volumes: Cache<PersistentVolume>,
    nodes: Cache<CSINode>,
    states: BTreeMap<String, State>,
    /// The volumes of the last pass.
    volumes_seen: BTreeMap<String, Volume>,
    /// Steps whose time has come, by volumes.
    due: Vec<(String, Step)>,
    workers: Workers,
    calls: FuturesUnordered<BoxFuture<'static, Result<Done, Aborted>>>,
    said: String,
}

/// Heals until it is dropped, or `tasks` ends.
pub async fn run(parts: Parts, tasks: &TaskGroup) {
    let tasks = tasks.child();
    let _ends = tasks.stop.clone().drop_guard();
    let config = || watcher::Config::default().page_size(host::PAGE);
    let bell = Arc::new(Notify::new());
    let guest = &parts.guest;
    let attachments = Cache::start_trimmed(&tasks, Api::all(guest.clone()), config(), join::trim_attachment);
    let volumes = Cache::start_trimmed(&tasks, Api::all(guest.clone()), config(), join::trim_volume);
    let nodes = Cache::start_trimmed(&tasks, Api::all(guest.clone()), config(), join::trim_node);
    let (a, b, c) = (bell.clone(), bell.clone(), bell.clone());
    attachments.on_change(move |_| a.notify_one());
    volumes.on_change(move |_| b.notify_one());
    nodes.on_change(move |_| c.notify_one());
    let errors = [attachments.watch_errors(), volumes.watch_errors(), nodes.watch_errors()];
    for mut error in errors {
        let bell = bell.clone();
        tasks.spawn_until_stop(async move {
            while error.changed().await.is_ok() {
                bell.notify_one();
            }
        });
    }
    // the host is watched for as long as this leads
    let call = parts.attacher.watches().begin();
    call.complete();
    let reconciler = Reconciler {
        parts,
        attachments,
        volumes,
        nodes,
        states: BTreeMap::new(),
        volumes_seen: BTreeMap::new(),
        due: vec![],
        workers: Workers::new(CALLS_AT_ONCE),
        calls: FuturesUnordered::new(),
        said: String::new(),
    };
    let stop = tasks.stop.clone();
    stop.run_until_cancelled(reconciler.work(&call, &bell)).await;
}

impl Reconciler {
    async fn work(mut self, call: &watches::Watching, bell: &Notify) {
        while !(self.attachments.is_ready() && self.volumes.is_ready() && self.nodes.is_ready()) {
            tokio::select! {
                _ = async { tokio::join!(self.attachments.ready(), self.volumes.ready(), self.nodes.ready()) } => {}
                () = bell.notified() => {}
            }
            self.is_guest_watched();
        }
        let mut changes = call.changes();
        loop {
            changes.borrow_and_update();
            let wake = self.pass(call).await;
            tokio::select! {
                Some(done) = self.calls.next() => if let Ok(done) = done { self.done(done) },
                () = bell.notified() => sleep(TOGETHER).await,
                changed = changes.changed() => {
                    drop(changed);
                    sleep(TOGETHER).await;
                }
                () = until(wake) => {}
            }
        }
    }

    /// Looks at all volumes once, and begins what is to be done. Says when to look again.
    async fn pass(&mut self, call: &watches::Watching) -> Option<Instant> {
        if !self.is_guest_watched() {
            return None;
        }
        let (machines, instances, claims) = tokio::join!(call.machines(), call.instances(), call.claims());
        let (Some(machines), Some(instances), Some(claims)) = (machines, instances, claims) else {
            let why = call.error().unwrap_or_else(|| "it has not answered yet".to_owned());
            self.say(format!("volumes are not healed while the host is not watched: {why}"));
            return Some(Instant::now() + HOST_AGAIN);
        };
        self.said.clear();
        let host = HostState::of(machines.list(), instances.list(), claims.list());
        let guest = Arc::new(self.guest());
        let nodes = host.machines_beside(&guest.machines());
        let volumes = self.disks(&guest);
        self.states.retain(|name, state| {
            let is_there = volumes.contains_key(name);
            if let (false, Some(busy)) = (is_there, &state.busy) {
                busy.abort.abort();
            }
            is_there
        });
        let wakes = volumes.iter().filter_map(|(name, volume)| self.look(name, volume, &host, &nodes));
        let wake = wakes.min();
        let due = std::mem::take(&mut self.due);
        let is_busy = !due.is_empty();
        for (name, step) in due {
            self.begin(&name, step, &volumes, &guest);
        }
        self.volumes_seen = volumes;
        let look = is_busy.then(|| Instant::now() + LOOK_AT_CALLS);
        wake.into_iter().chain(look).min()
    }

    /// Begins a step. A volume whose step did not help is left alone for a while.
    fn begin(&mut self, name: &str, step: Step, volumes: &BTreeMap<String, Volume>, guest: &Arc<GuestState>) {
        let (Some(volume), Some(state)) = (volumes.get(name), self.states.get_mut(name)) else { return };
        let now = Instant::now();
        let count = state.tries.get(&step).map_or(0, |(count, _)| *count);
        let pause = (AGAIN_FIRST * 2_u32.saturating_pow(count)).min(AGAIN_LAST);
        state.tries.insert(step.clone(), (count + 1, now + pause));
        if let (Step::Nudge { attachment }, DEAF_AFTER..) = (&step, count) {
            state.told.tell(
                &self.parts.recorder,
                volume,
                std::slice::from_ref(attachment),
                &tell::deaf(volume),
            );
        }
        let (busy, work) = begin(&self.parts, &self.workers, guest.clone(), name, volume, &state.now(), step);
        state.busy = Some(busy);
        self.calls.push(work);
    }

    fn is_guest_watched(&mut self) -> bool {
        let errors = [self.attachments.watch_error(), self.volumes.watch_error(), self.nodes.watch_error()];
        let error = errors.into_iter().flatten().next();
        if let Some(error) = &error {
            self.say(format!("volumes are not healed while the guest cluster is not watched: {error}"));
        }
        error.is_none()
    }

    fn guest(&self) -> GuestState {
        GuestState { volumes: self.volumes.list(), nodes: self.nodes.list() }
    }

    fn disks(&self, guest: &GuestState) -> BTreeMap<String, Volume> {
        guest.disks(self.attachments.list().iter().map(AsRef::as_ref))
    }

    fn say(&mut self, what: String) {
        if self.said != what {
            tracing::warn!("{what}");
            self.said = what;
        }
    }

    /// Looks at one volume, and begins what is to be done.
    fn look(
        &mut self,
        name: &str,
        volume: &Volume,
        host: &HostState,
        nodes: &BTreeSet<String>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let seen = host.seen(volume, nodes);
        let state = self.states.entry(name.to_owned()).or_insert_with(|| State::new(seen.clone()));
        if state.seen != seen {
            (state.seen, state.since) = (seen, now);
            state.tries.clear();
        }
        let seen = state.now();
        if let Some(busy) = state.busy.take_if(|busy| is_void(&busy.step, &seen)) {
            busy.abort.abort();
        }
        let steps = decide(&seen);
        if steps.is_empty() && state.busy.is_none() {
            state.is_ours = false;
            state.told.forget();
            return None;
        }
        let attacher = &self.parts.attacher;
        let mut wake: Option<Instant> = None;
        let mut at = |then: Instant| wake = Some(wake.map_or(then, |wake| wake.min(then)));
        let (mut told, mut is_due) = (Vec::new(), false);
        for step in steps {
            match &step {
                Step::Look(rest) => at(now + *rest),
                Step::Await { attachments, machine } => {
                    told.push((
                        attachments.clone(),
                        tell::awaited(attacher.host(), volume, host, &seen, machine),
                    ));
                }
                Step::Tell { attachments, why } => {
                    told.push((attachments.clone(), tell::blocked(attacher.host(), volume, why)));
                }
                Step::Attach { .. } | Step::Detach { .. } | Step::Nudge { .. } => {
                    let then = state.tries.get(&step).map_or(now, |(_, then)| *then);
                    if state.busy.is_some() || is_due {
                        continue;
                    }
                    if then > now {
                        at(then);
                        continue;
                    }
                    is_due = true;
                    self.due.push((name.to_owned(), step));
                }
            }
        }
        if let Some(busy) = &mut state.busy {
            at(now + LOOK_AT_CALLS);
            let waits_for = busy.waits_for.lock().expect("no panic while the text is replaced").clone();
            let is_late = now - busy.begun.min(state.since) >= TELL_AFTER;
            if is_late && !waits_for.is_empty() && waits_for == busy.was {
                told.push((about(&busy.step), tell::waits(&busy.step, &waits_for)));
            }
            busy.was = waits_for;
        }
        for (attachments, event) in told {
            state.told.tell(&self.parts.recorder, volume, &attachments, &event);
        }
        wake
    }

    fn done(&mut self, (name, step, result): Done) {
        let Some(state) = self.states.get_mut(&name) else { return };
        if state.busy.as_ref().is_none_or(|busy| busy.step != step) {
            return;
        }
        state.busy = None;
        match result {
            Ok(()) => {
                tracing::info!(volume = name, ?step, "healed a step");
                if !matches!(step, Step::Nudge { .. }) {
                    state.is_ours = true;
                }
            }
            Err(refusal) if refusal.code == tonic::Code::Aborted => {}
            Err(refusal) => {
                tracing::info!(volume = name, ?step, "not healed: {refusal}");
                if let Some(volume) = self.volumes_seen.get(&name) {
                    let event = tell::waits(&step, &refusal.message);
                    state.told.tell(&self.parts.recorder, volume, &about(&step), &event);
                }
            }
        }
    }
}

impl State {
    fn new(seen: Seen) -> Self {
        let (tries, told) = (HashMap::new(), Told::default());
        Self { seen, since: Instant::now(), is_ours: false, tries, busy: None, told }
    }

    /// What was seen, and for how long.
    fn now(&self) -> Seen {
        Seen { unchanged_for: self.since.elapsed(), is_ours: self.is_ours, ..self.seen.clone() }
    }
}

/// The VolumeAttachments that a step is for.
fn about(step: &Step) -> Vec<String> {
    match step {
        Step::Attach { attachment, .. } | Step::Nudge { attachment } => vec![attachment.clone()],
        Step::Detach { attachments, .. }
        | Step::Await { attachments, .. }
        | Step::Tell { attachments, .. } => attachments.clone(),
        Step::Look(_) => vec![],
    }
}

/// Begins a step, which is taken only if it is right for VolumeAttachments that are read afresh.
fn begin(
    parts: &Parts,
    workers: &Workers,
    guest: Arc<GuestState>,
    name: &str,
    volume: &Volume,
    seen: &Seen,
    step: Step,
) -> (Busy, BoxFuture<'static, Result<Done, Aborted>>) {
    let waits_for = Arc::new(Mutex::new(String::new()));
    let (client, attacher, text) = (parts.guest.clone(), parts.attacher.clone(), waits_for.clone());
    let (name, host_name, seen) = (name.to_owned(), volume.name.clone(), seen.clone());
    let (taken, worker) = (step.clone(), workers.take());
    let work = async move {
        let result = async {
            let worker = match &taken {
                Step::Nudge { .. } => None,
                _ => Some(worker.await),
            };
            let fresh = fresh(&client, &guest, &name, seen).await?;
            if !decide(&fresh.0).contains(&taken) {
                return Err(Refusal::aborted("the VolumeAttachments have changed"));
            }
            if let Some(machine) = fresh.0.runs_unwanted(&taken) {
                in_use::refuse_if_mounted(&client, &guest, machine, &name).await?;
            }
            match (&taken, &worker) {
                (Step::Attach { machine, .. }, Some(worker)) => {
                    attacher.attach(&host_name, machine, &text, worker, CALL_LASTS).await
                }
                (Step::Detach { machine, .. }, worker) => {
                    attacher.detach_by(&host_name, machine, &text, worker.as_ref(), CALL_LASTS).await
                }
                (Step::Nudge { attachment }, _) => nudge(&client, attachment, &fresh.1).await,
                _ => Ok(()),
            }
        };
        let result = result.await;
        (name, taken, result)
    };
    let (work, abort) = abortable(work);
    (Busy { step, begun: Instant::now(), abort, waits_for, was: String::new() }, work.boxed())
}

/// What was seen, with VolumeAttachments of now, and their versions.
async fn fresh(
    client: &Client,
    guest: &GuestState,
    name: &str,
    seen: Seen,
) -> Result<(Seen, HashMap<String, String>), Refusal> {
    let list = host::list(&Api::<VolumeAttachment>::all(client.clone())).await;
    let list = list.map_err(|error| {
        Refusal::unavailable(format!(
            "list the VolumeAttachments of the guest cluster: {}",
            host::rights::explained(error_message(&error))
        ))
    })?;
    let versions = list.iter();
    let versions = versions.map(|it| (it.name_any(), it.resource_version().unwrap_or_default())).collect();
    let attachments = guest.disks(&list).remove(name).map(|volume| volume.attachments);
    Ok((Seen { attachments: attachments.unwrap_or_default(), ..seen }, versions))
}

async fn nudge(client: &Client, attachment: &str, versions: &HashMap<String, String>) -> Result<(), Refusal> {
    // the attacher passes over what changes nothing
    let version = versions.get(attachment);
    let patch = json!({"metadata": {"resourceVersion": version, "annotations": {CSI_NUDGE: version}}});
    let api: Api<VolumeAttachment> = Api::all(client.clone());
    match api.patch(attachment, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => {
            Err(Refusal::of_guest(&format!("wake the attacher by VolumeAttachment {attachment}"), &error))
        }
    }
}

async fn until(then: Option<Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => std::future::pending().await,
    }
}
