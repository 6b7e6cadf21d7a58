//! Nodes that join: when each can be used, and what Harvester is asked for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use controller_kit::Cache;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, runtime::watcher};
use program::TaskGroup;
use sim_harvester::guest::UNINITIALIZED;
use tokio::{sync::watch, time::Instant};

use super::{
    QUIET, Tally,
    fleet::{self, Machine},
    settled,
};
use crate::{environment::Environment, measure::percentile};

/// Nodes that join one after the other.
pub(super) const ONE_BY_ONE: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// From the POST of a Node to its last taint of this kind, as a watch sees it; its VM runs and its agent has reported.
pub(super) async fn added(environment: &Environment, say: impl Fn(&str, f64)) -> Result<()> {
    let mut usable = Usable::watch(&environment.guest).await;
    settled(environment).await?;
    let mut asked = Tally::new(environment.audit_files());
    let mut times = Vec::new();
    for number in 0..ONE_BY_ONE {
        let machine = Machine::ours(number);
        fleet::post(&environment.harvester, std::slice::from_ref(&machine)).await?;
        // the watches have told of the VM, and what was to be asked about it was asked
        asked.quiet(QUIET / 2).await?;
        let begun = Instant::now();
        machine.join(&environment.guest).await?;
        let at = usable.until(&[machine.name]).await?;
        times.push(at.duration_since(begun).as_secs_f64() * 1_000.0);
    }
    say("node-init-p50-ms", percentile(&mut times, 0.50));
    asked.quiet(QUIET).await?;
    let requests = asked.total().ccm_in_harvester_of_its_own as f64;
    say("node-add-harvester-requests", requests / ONE_BY_ONE as f64);
    Ok(())
}

fn waits_for_cloud(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == UNINITIALIZED)
}

/// When each Node was first seen without the taint of those that wait for their cloud.
pub(super) struct Usable {
    since: Arc<Mutex<BTreeMap<String, Instant>>>,
    moved: watch::Receiver<()>,
    tasks: TaskGroup,
}

impl Drop for Usable {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Usable {
    pub(super) async fn watch(guest: &Client) -> Self {
        let tasks = TaskGroup::new();
        let nodes: Cache<Node> = Cache::start(&tasks, Api::all(guest.clone()), watcher::Config::default());
        let since = Arc::new(Mutex::new(BTreeMap::new()));
        let (tell, moved) = watch::channel(());
        let into = since.clone();
        nodes.on_change(move |change| {
            if change.new.as_ref().is_some_and(|node| !waits_for_cloud(node)) {
                let mut since = into.lock().expect("no panic while noting");
                since.entry(change.key.name.clone()).or_insert_with(Instant::now);
                tell.send_replace(());
            }
        });
        nodes.ready().await;
        Self { since, moved, tasks }
    }

    /// Waits until all of these can be used, and answers since when.
    pub(super) async fn until(&mut self, names: &[String]) -> Result<Instant> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.moved.borrow_and_update();
            let seen: Option<Vec<Instant>> = {
                let since = self.since.lock().expect("no panic while noting");
                names.iter().map(|name| since.get(name).copied()).collect()
            };
            if let Some(last) = seen.and_then(|all| all.into_iter().max()) {
                return Ok(last);
            }
            let changed = tokio::time::timeout_at(give_up, self.moved.changed()).await;
            changed
                .with_context(|| format!("not all Nodes are initialised after {} s", PATIENCE.as_secs()))??;
        }
    }
}
