//! Step 3: one backend stops answering. Until the verdict only connections sent to it may fail; from then on none
//! fails and none reaches it; and after it answers again it is not reached before the verdict says so.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Result, ensure};
use harvester_api::VirtualMachine;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use super::{Tour, eyes::backend_of};
use crate::{
    curl::curl,
    manifests::plain,
    stage::{Machine, wire_port},
};

/// Between two requests.
const BEAT: Duration = Duration::from_millis(20);
/// What the announcer and kube-proxy may take to hear of a verdict that we have just seen ourselves.
const SPREAD: Duration = Duration::from_millis(500);
/// How long the state after a verdict is looked at.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
struct Request {
    begun: Instant,
    /// Who answered, or why nobody did.
    answer: Result<String, String>,
}

/// A user who keeps asking.
pub(super) struct Load {
    log: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Load {
    pub(super) fn on(address: IpAddr, port: u16) -> Self {
        let socket = SocketAddr::new(address, wire_port(port));
        let log = Arc::new(Mutex::new(Vec::new()));
        let into = log.clone();
        let task = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                let into = into.clone();
                tokio::spawn(async move {
                    let answer = match curl(socket).await {
                        Ok(text) => backend_of(&text).map_err(|error| error.to_string()),
                        Err(error) => Err(error.to_string()),
                    };
                    into.lock().expect("no panic while logging").push(Request { begun, answer });
                });
                tokio::time::sleep(BEAT).await;
            }
        });
        Self { log, task }
    }

    fn between(&self, from: Instant, to: Instant) -> Vec<Request> {
        let log = self.log.lock().expect("no panic while logging");
        log.iter().filter(|request| request.begun >= from && request.begun < to).cloned().collect()
    }

    /// Requests so far, and the first failure among them.
    pub(super) fn verdict(&self) -> (usize, Option<String>) {
        let log = self.log.lock().expect("no panic while logging");
        (log.len(), log.iter().find_map(|request| request.answer.clone().err()))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) async fn one_backend(tour: &Tour<'_>) -> Result<String> {
    let eyes = tour.eyes();
    let address = eyes.address("checked").await?;
    let balancer = eyes.balancer("checked").await?;
    let machine = tour.stage.machines[0].clone();
    let load = Load::on(address, 80);

    set_backend(tour, &machine, Some("stopped")).await?;
    let stopped = Instant::now();
    let ready = |wanted: bool| {
        let (eyes, balancer, machine) = (eyes.clone(), balancer.clone(), machine.clone());
        async move {
            let what = format!("the verdict ready={wanted} on {}", machine.vm);
            eyes.wait(&what, || async {
                ensure!(eyes.is_ready(&balancer, &machine.address).await? == wanted, "not yet");
                Ok(Instant::now())
            })
            .await
        }
    };
    let down = ready(false).await?;
    tokio::time::sleep(SPREAD + LOOK).await;

    let before = load.between(stopped, down);
    let others =
        before.iter().filter(|request| matches!(&request.answer, Ok(vm) if *vm != machine.vm)).count();
    let failed = before.iter().filter(|request| request.answer.is_err()).count();
    ensure!(others > 0, "no other backend answered while {} was failing", machine.vm);
    ensure!(
        failed < before.len() * 2 / 3,
        "{failed} of {} requests failed; only one of the VMs is down",
        before.len()
    );
    let after = load.between(down + SPREAD, down + SPREAD + LOOK);
    for request in &after {
        match &request.answer {
            Err(why) => anyhow::bail!("a request failed after the verdict: {why}"),
            Ok(vm) => ensure!(*vm != machine.vm, "{vm} was reached after the verdict against it"),
        }
    }

    let healed = Instant::now();
    set_backend(tour, &machine, None).await?;
    let up = ready(true).await?;
    let early = load.between(healed, up);
    let early = early.iter().filter(|request| {
        request.begun + SPREAD < up && matches!(&request.answer, Ok(vm) if *vm == machine.vm)
    });
    ensure!(early.count() == 0, "{} was reached before enough good probes", machine.vm);
    eyes.wait("the backend to serve again", || async {
        let since = load.between(up, Instant::now());
        ensure!(
            since.iter().any(|request| request.answer.as_ref().is_ok_and(|vm| *vm == machine.vm)),
            "not yet"
        );
        Ok(())
    })
    .await?;
    Ok(format!(
        "{}: verdict after {:.1} s, {failed} of {} requests failed before it, 0 of {} after it; back after {:.1} s",
        machine.vm,
        (down - stopped).as_secs_f64(),
        before.len(),
        after.len(),
        (up - healed).as_secs_f64(),
    ))
}

async fn set_backend(tour: &Tour<'_>, machine: &Machine, state: Option<&str>) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {"sim.harvesterhci.io/backend": state}}});
    let machines = Api::<VirtualMachine>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    machines.patch(&machine.vm, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(plain)?;
    Ok(())
}
