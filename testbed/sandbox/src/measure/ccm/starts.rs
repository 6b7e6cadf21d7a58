//! How long a start takes, and how long nobody acts when the leader is told to stop.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use controller_kit::Cache;
use http::Request;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Service};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, PostParams},
    runtime::watcher,
};
use program::TaskGroup;
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::{LEASE_TIMES, NAME, settled};
use crate::{
    commands,
    environment::Environment,
    manifests::plain,
    measure::percentile,
    parts::{Part, PartCommand},
};

const STARTS: usize = 7;
const TAKEOVERS: usize = 5;
const LEASE: &str = "cloud-controller-manager";
/// A line of `/readyz?verbose` that only a leader has whose lists are complete.
pub(super) const IN_STEP: &str = "[+]guest nodes ok";
/// A candidate has this one instead.
const CANDIDATE: &str = "[+]harvester-access ok";
const GLANCE: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// Milliseconds from exec to `/readyz` of a leader that knows everything. The process before it gave its Lease back.
pub(super) async fn start(environment: &mut Environment) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        environment.stop_part(NAME).await?;
        let probe = Probe::of(&environment.command(NAME)?)?;
        let begun = Instant::now();
        environment.start_part_again(NAME)?;
        probe.until(IN_STEP).await?;
        times.push(begun.elapsed().as_secs_f64() * 1_000.0);
        settled(environment).await?;
    }
    Ok(percentile(&mut times, 0.50))
}

/// Milliseconds from SIGTERM for a leader to the first write of the next one, with the Lease times of production (15, 10
/// and 2 s). What is written first is the finalizer of a Service that is created when the Lease is free: the old leader
/// writes nothing any more then.
pub(super) async fn takeover(environment: &mut Environment) -> Result<f64> {
    environment.stop_part(NAME).await?;
    let usual = environment.command(NAME)?;
    let mut seen = Seen::start(&environment.guest).await;
    let (mut leader, probe) = another(environment, &usual)?;
    probe.until(IN_STEP).await?;
    let mut times = Vec::new();
    for number in 0..TAKEOVERS {
        let (candidate, probe) = another(environment, &usual)?;
        probe.until(CANDIDATE).await?;
        settled(environment).await?;
        let holder = seen.holder();
        let begun = Instant::now();
        leader.terminate()?;
        seen.until("the Lease is given back", |seen| seen.holder != holder).await?;
        let name = format!("bench-takeover-{number}");
        let services = Api::<Service>::namespaced(environment.guest.clone(), "default");
        let service = json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer",
            "ports": [{"name": "http", "port": 80}]}});
        let service = serde_json::from_value(service).context("describe a Service")?;
        services.create(&PostParams::default(), &service).await.map_err(plain)?;
        let written = |seen: &State| seen.written.as_ref().is_some_and(|(of, _)| *of == name);
        seen.until("the next leader writes", written).await?;
        let at = seen.now().written.context("it was seen")?.1;
        times.push(at.duration_since(begun).as_secs_f64() * 1_000.0);
        probe.until(IN_STEP).await?;
        services.delete(&name, &DeleteParams::default()).await.map_err(plain)?;
        leader.stop().await;
        leader = candidate;
    }
    settled(environment).await?;
    leader.stop().await;
    environment.start_part_again(NAME)?;
    Probe::of(&usual)?.until(IN_STEP).await?;
    Ok(percentile(&mut times, 0.50))
}

/// A further process, on a port of its own, and with the usual times of the Lease.
fn another(environment: &Environment, usual: &PartCommand) -> Result<(Part, Probe)> {
    let mut command = usual.clone();
    command.args.retain(|flag| !flag.starts_with(LEASE_TIMES) && !flag.starts_with(PORT));
    command.args.push(format!("{PORT}{}", commands::free_port()?));
    let probe = Probe::of(&command)?;
    Ok((environment.another(command)?, probe))
}

const PORT: &str = "--secure-port=";

/// Asks a process for its readiness.
pub(crate) struct Probe(Client);

impl Probe {
    pub(crate) fn of(command: &PartCommand) -> Result<Self> {
        let port = command.args.iter().find_map(|flag| flag.strip_prefix(PORT)).context("no port")?;
        let mut config = Config::new(format!("https://127.0.0.1:{port}").parse()?);
        // it signs its certificate itself
        config.accept_invalid_certs = true;
        config.default_retry = false;
        Ok(Self(Client::try_from(config).map_err(plain)?))
    }

    pub(crate) async fn metrics(&self) -> Result<String> {
        let request = Request::get("/metrics").body(Vec::new())?;
        self.0.request_text(request).await.map_err(plain)
    }

    /// Waits until it is ready, and its checks have this line.
    pub(super) async fn until(&self, line: &str) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let request = Request::get("/readyz?verbose").body(Vec::new())?;
            // not ready is an error, as is a process that does not listen yet
            let answer = self.0.request_text(request).await;
            if answer.as_ref().is_ok_and(|answer| answer.lines().any(|there| there == line)) {
                return Ok(());
            }
            if Instant::now() > give_up {
                bail!("/readyz does not say {line:?} after {} s: {answer:?}", PATIENCE.as_secs());
            }
            tokio::time::sleep(GLANCE).await;
        }
    }
}

/// What watches of the guest cluster have told.
#[derive(Clone, Debug, Default)]
struct State {
    holder: String,
    /// The last Service that somebody changed, and when.
    written: Option<(String, Instant)>,
}

struct Seen {
    state: Arc<Mutex<State>>,
    moved: watch::Receiver<()>,
    tasks: TaskGroup,
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Seen {
    async fn start(guest: &Client) -> Self {
        let (tasks, config) = (TaskGroup::new(), watcher::Config::default);
        let leases: Cache<Lease> =
            Cache::start(&tasks, Api::namespaced(guest.clone(), "kube-system"), config());
        let services: Cache<Service> =
            Cache::start(&tasks, Api::namespaced(guest.clone(), "default"), config());
        let state = Arc::new(Mutex::new(State::default()));
        let (tell, moved) = watch::channel(());
        let (into, bell) = (state.clone(), tell.clone());
        leases.on_change(move |change| {
            if let Some(lease) = change.new.as_ref().filter(|lease| lease.name_any() == LEASE) {
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
                into.lock().expect("no panic while noting").holder = holder.unwrap_or_default();
                bell.send_replace(());
            }
        });
        let into = state.clone();
        services.on_change(move |change| {
            if let (Some(_), Some(new)) = (&change.old, &change.new)
                && !new.finalizers().is_empty()
            {
                let mut state = into.lock().expect("no panic while noting");
                if state.written.as_ref().is_none_or(|(of, _)| *of != change.key.name) {
                    state.written = Some((change.key.name.clone(), Instant::now()));
                }
                tell.send_replace(());
            }
        });
        leases.ready().await;
        services.ready().await;
        Self { state, moved, tasks }
    }

    fn now(&self) -> State {
        self.state.lock().expect("no panic while noting").clone()
    }

    fn holder(&self) -> String {
        self.now().holder
    }

    async fn until(&mut self, what: &str, enough: impl Fn(&State) -> bool) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.moved.borrow_and_update();
            if enough(&self.now()) {
                return Ok(());
            }
            let changed = tokio::time::timeout_at(give_up, self.moved.changed()).await;
            changed.with_context(|| format!("waited {} s until {what}", PATIENCE.as_secs()))??;
        }
    }
}
