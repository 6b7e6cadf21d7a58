//! NFS exports of volumes (NetworkFilesystem), as Harvester's networkfs-manager keeps them.
//!
//! ```text
//! desiredState Enabled ──► Enabling ──the share manager runs, 2 s──► Enabled, Ready, endpoint
//! desiredState Disabled ─► Disabling ─the share manager is gone, 2 s─► Disabled, no endpoint
//! annotation sim.harvesterhci.io/endpoint ──► the share manager has moved: EndpointChanged
//! ```
//! An export that is switched on again before it is off is first switched off (docs/contract/csi-driver.md#exports). A
//! status that somebody wrote stays where it is one of these. Nothing is served: an endpoint is an address and no more.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, CustomResource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use controller_kit::{Action, Cache, ObjectKey, Queue};
use program::TaskGroup;

use super::is_bound;
use crate::refused::{Error, unless_gone};

/// A share manager starts, or ends, in so long.
pub(crate) const SHARED_WITHIN: Duration = Duration::from_secs(2);
/// On a NetworkFilesystem: the address that its share manager has moved to.
pub(crate) const ENDPOINT: &str = "sim.harvesterhci.io/endpoint";

/// An export, as far as the simulation reads it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "harvesterhci.io",
    version = "v1beta1",
    kind = "NetworkFilesystem",
    plural = "networkfilesystems",
    namespaced,
    schema = "disabled",
    status = "NetworkFilesystemStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NetworkFilesystemSpec {
    pub desired_state: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What became of an export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NetworkFilesystemStatus {
    pub state: String,
    pub status: String,
    pub endpoint: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The step for an export that has been in its state for `so_long`.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Nothing,
    Wait(Duration),
    /// The merge patch of its status.
    Write(Value),
}

/// `address` is where a share manager of this export would run.
fn of_export(export: &NetworkFilesystem, has_volume: bool, so_long: Duration, address: &str) -> Step {
    let status = export.status.clone().unwrap_or_default();
    let moved_to = export.annotations().get(ENDPOINT).filter(|text| !text.is_empty());
    let enter = |state: &str, status: &str, endpoint: &str, condition: &str| {
        Step::Write(json!({"status": {"state": state, "status": status, "endpoint": endpoint, "type": "NFS",
            "conditions": [{"type": condition, "status": "True", "reason": condition, "message": ""}]}}))
    };
    let then = |step: Step| match SHARED_WITHIN.checked_sub(so_long).filter(|left| !left.is_zero()) {
        Some(left) => Step::Wait(left),
        None => step,
    };
    let is_wanted = export.spec.desired_state == "Enabled";
    match (is_wanted, status.state.as_str()) {
        (_, "Disabling") => then(enter("Disabled", "NotReady", "", "NotReady")),
        (true, "Enabled") => match moved_to.filter(|to| **to != status.endpoint) {
            Some(to) => enter("Enabled", "Ready", to, "EndpointChanged"),
            None => Step::Nothing,
        },
        // without a volume there is no share manager
        (true, "Enabling") if has_volume => {
            then(enter("Enabled", "Ready", moved_to.map_or(address, String::as_str), "Ready"))
        }
        (true, "Enabling") | (false, "" | "Disabled") => Step::Nothing,
        (true, _) => enter("Enabling", "Reconciling", "", "Reconciling"),
        (false, _) => enter("Disabling", "Reconciling", &status.endpoint, "Reconciling"),
    }
}

/// Keeps exports until `tasks` ends.
pub(crate) fn start(tasks: &TaskGroup, harvester: &Client, claims: &Cache<PersistentVolumeClaim>) {
    let exports: Cache<NetworkFilesystem> =
        Cache::start(tasks, Api::all(harvester.clone()), Default::default());
    let queue: Queue<ObjectKey> = Queue::new();
    let add = queue.clone();
    exports.on_change(move |change| add.add(change.key.clone()));
    let (add, all) = (queue.clone(), exports.clone());
    claims.on_change(move |_| all.list().iter().for_each(|export| add.add(ObjectKey::of(&**export))));
    let worker =
        Exports { harvester: harvester.clone(), exports, claims: claims.clone(), since: Arc::default() };
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        worker.exports.ready().await;
        worker.claims.ready().await;
        queue.run(&in_life, 1, move |key| {
            let worker = worker.clone();
            async move { worker.reconcile(key).await }
        });
    });
}

#[derive(Clone)]
struct Exports {
    harvester: Client,
    exports: Cache<NetworkFilesystem>,
    claims: Cache<PersistentVolumeClaim>,
    /// The state of each, by UID, and since when it is seen.
    since: Arc<Mutex<HashMap<String, (String, Instant)>>>,
}

impl Exports {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(export) = self.exports.get(&key) else { return Ok(Action::AwaitChange) };
        let state = export.status.clone().unwrap_or_default().state;
        let so_long = {
            let mut since = self.since.lock().expect("no panic while remembering");
            let known = since
                .entry(export.uid().unwrap_or_default())
                .or_insert_with(|| (state.clone(), Instant::now()));
            if known.0 != state {
                *known = (state, Instant::now());
            }
            known.1.elapsed()
        };
        let is_its = |claim: &Arc<PersistentVolumeClaim>| {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
            is_bound(claim) && volume == Some(&key.name)
        };
        let has_volume = self.claims.list().iter().any(is_its);
        match of_export(&export, has_volume, so_long, &address(&key.name).to_string()) {
            Step::Nothing => Ok(Action::AwaitChange),
            Step::Wait(left) => Ok(Action::RequeueAfter(left)),
            Step::Write(patch) => {
                let api: Api<NetworkFilesystem> = Api::namespaced(self.harvester.clone(), &key.namespace);
                let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
                if let Some(export) =
                    unless_gone(answer).map_err(Error::of("write status of export", &key))?
                {
                    self.exports.wrote(export);
                }
                Ok(Action::AwaitChange)
            }
        }
    }
}

/// An address of the storage network, by the export's name.
fn address(name: &str) -> Ipv4Addr {
    let sum = name.bytes().fold(0_u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let [high, low] = sum.to_be_bytes();
    Ipv4Addr::new(10, 53, high, low)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn export(desired: &str, state: &str, moved_to: &str) -> NetworkFilesystem {
        let mut export = NetworkFilesystem::new(
            "pvc-1",
            NetworkFilesystemSpec { desired_state: desired.to_owned(), rest: Map::new() },
        );
        if !moved_to.is_empty() {
            export.annotations_mut().insert(ENDPOINT.to_owned(), moved_to.to_owned());
        }
        let endpoint = if state == "Enabled" { "10.0.0.9" } else { "" };
        export.status = (!state.is_empty()).then(|| NetworkFilesystemStatus {
            state: state.to_owned(),
            endpoint: endpoint.to_owned(),
            ..NetworkFilesystemStatus::default()
        });
        export
    }

    // docs/contract/csi-driver.md#exports
    #[rstest]
    #[case::made("Disabled", "", "", NOW, "nothing")]
    #[case::asked("Enabled", "", "", NOW, "Enabling Reconciling ")]
    #[case::starting("Enabled", "Enabling", "", NOW, "wait")]
    #[case::started("Enabled", "Enabling", "", SHARED_WITHIN, "Enabled Ready 10.53.0.1")]
    #[case::there("Enabled", "Enabled", "", NOW, "nothing")]
    #[case::moved("Enabled", "Enabled", "10.0.0.7", NOW, "Enabled Ready 10.0.0.7")]
    #[case::has_moved("Enabled", "Enabled", "10.0.0.9", NOW, "nothing")]
    #[case::no_longer_asked("Disabled", "Enabled", "", NOW, "Disabling Reconciling 10.0.0.9")]
    #[case::ending("Disabled", "Disabling", "", NOW, "wait")]
    #[case::ended("Disabled", "Disabling", "", SHARED_WITHIN, "Disabled NotReady ")]
    #[case::asked_too_early("Enabled", "Disabling", "", NOW, "wait")]
    #[case::off("Disabled", "Disabled", "", SHARED_WITHIN, "nothing")]
    fn an_export_goes_from_state_to_state(
        #[case] desired: &str,
        #[case] state: &str,
        #[case] moved_to: &str,
        #[case] so_long: Duration,
        #[case] expected: &str,
    ) {
        let step = of_export(&export(desired, state, moved_to), true, so_long, "10.53.0.1");
        let told = match step {
            Step::Nothing => "nothing".to_owned(),
            Step::Wait(_) => "wait".to_owned(),
            Step::Write(patch) => ["state", "status", "endpoint"]
                .map(|field| patch["status"][field].as_str().unwrap().to_owned())
                .join(" "),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn a_volume_that_is_not_there_is_never_exported() {
        let step = of_export(&export("Enabled", "Enabling", ""), false, SHARED_WITHIN, "10.53.0.1");
        assert_eq!(step, Step::Nothing);
    }
}
