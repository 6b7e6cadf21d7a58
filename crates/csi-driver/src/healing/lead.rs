//! Who reconciles: the leader by Lease `kube-system/harvester-csi-attach` of the guest, among the processes that sidecars
//! have called, and that renew the credential where anybody does.

use std::{future, sync::Arc};

use controller_kit::{CREATE_EVENTS, PATCH_EVENTS, Recorder, election};
use kube::Client;
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Wanted},
};
use tokio::sync::watch;

use super::{Parts, run};
use crate::{
    attach::Attacher,
    credential::Credential,
    leading::Leading,
    lease::{self, HEALING},
};

/// The source of Events.
const COMPONENT: &str = "harvester-csi-driver";

/// What an election needs.
pub struct Candidate {
    pub guest: Client,
    pub clock: Clock,
    /// Unique among all processes.
    pub identity: String,
    /// Whether somebody has called the controller service.
    pub called: watch::Receiver<bool>,
    /// The attacher on the host as it is known now.
    pub attacher: watch::Receiver<Arc<Attacher>>,
    /// Counts the Lease.
    pub leading: Leading,
    /// Whoever leads looks after it.
    pub credential: Option<Credential>,
}

/// Stands for election until `tasks` ends. A lost Lease ends the work, and nothing else: the process stands again.
pub async fn stand(mut candidate: Candidate, tasks: TaskGroup) {
    let is_called = candidate.called.wait_for(|called| *called);
    if !matches!(tasks.stop.run_until_cancelled(is_called).await, Some(Ok(_))) {
        return;
    }
    // Sidecars of a former release call the driver of their node during an upgrade; as leader it would never end, and never renew.
    if candidate.credential.as_ref().is_some_and(Credential::is_renewed_by_others) {
        tracing::info!("Lease {HEALING} is left to processes with --rotated-credential-secret");
        return;
    }
    candidate.leading.stands_by(HEALING);
    // a candidate that lacks a right would try, and say so, every two seconds
    while tasks.stop.run_until_cancelled(lease::granted(&candidate.guest, HEALING)).await.is_some() {
        let election = lease::of_healing(&candidate.identity);
        let round = tasks.child();
        let (guest, clock) = (candidate.guest.clone(), candidate.clock);
        let (attacher, leading) = (candidate.attacher.clone(), candidate.leading.clone());
        let credential = candidate.credential.clone();
        let work = |leadership: election::Leadership| {
            let fenced = leadership.client(guest.clone());
            let led = lead(fenced.clone(), clock, attacher, round.clone());
            async move {
                let _leads = leading.leads(HEALING);
                let looks_after = async {
                    if let Some(credential) = credential {
                        credential.lead(fenced, &leadership).await;
                    }
                    future::pending::<()>().await;
                };
                tokio::select! {
                    () = led => {}
                    () = looks_after => {}
                }
            }
        };
        let outcome = Box::pin(election::lead(guest.clone(), election, clock, &round, work)).await;
        round.stop.cancel();
        if let Err(why) = outcome {
            tracing::warn!("{why}; volumes are healed by another process, or by this one later");
        }
    }
}

async fn lead(guest: Client, clock: Clock, mut attacher: watch::Receiver<Arc<Attacher>>, round: TaskGroup) {
    let tasks = round.child();
    let _ends = tasks.stop.clone().drop_guard();
    let wanted = Wanted { rights: vec![CREATE_EVENTS, PATCH_EVENTS], ..Wanted::default() };
    let capabilities = Capabilities::start(&tasks, guest.clone(), wanted);
    let recorder = Recorder::start(&tasks, guest.clone(), COMPONENT, clock, &capabilities);
    while !tasks.stop.is_cancelled() {
        let now = attacher.borrow_and_update().clone();
        let parts = Parts { guest: guest.clone(), attacher: now, recorder: recorder.clone() };
        tokio::select! {
            () = run(parts, &tasks) => {}
            changed = attacher.changed() => if changed.is_err() {
                return tasks.stop.cancelled().await;
            },
        }
    }
}
