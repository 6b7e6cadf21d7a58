//! Longhorn's own object for each volume that it made: its size, and how far it is filled.
//!
//! ```text
//! claim bound ─► Volume of the same name as its volume ──of a snapshot or a claim──► initiated ──2 s──► completed
//! claim gone ──► no Volume
//! ```
//! Nothing is copied. A state that somebody wrote stays where it is an end. Without the namespace of Longhorn
//! ([`crate::host_objects`]) there are none.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, CustomResource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use controller_kit::{Action, Cache, ObjectKey, Queue};
use program::TaskGroup;

use super::{PROVISIONER, is_bound};
use crate::{
    admission::LONGHORN,
    host_objects::LONGHORN_SYSTEM,
    quota::thousandths,
    refused::{Error, unless_gone, unless_there},
};

/// A copy takes so long.
const COPIED_WITHIN: Duration = Duration::from_secs(2);

/// A volume, as far as drivers read it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "longhorn.io",
    version = "v1beta2",
    kind = "Volume",
    plural = "volumes",
    namespaced,
    schema = "disabled",
    status = "VolumeStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// In bytes.
    pub size: String,
    /// What it is a copy of; empty where it is none.
    pub data_source: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    pub clone_status: CloneStatus,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// How far a copy is: `initiated`, `completed`, `failed`; empty where it has not begun.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CloneStatus {
    pub state: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The step for a volume whose copy has been in its state for `so_long`.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Nothing,
    Wait(Duration),
    Make(VolumeSpec),
    Delete,
    /// A merge patch.
    Size(Value),
    /// The merge patch of its status.
    Copy(Value),
}

fn of_volume(claim: Option<&PersistentVolumeClaim>, volume: Option<&Volume>, so_long: Duration) -> Step {
    let (wanted, volume) = match (claim.map(spec), volume) {
        (None, None) => return Step::Nothing,
        (None, Some(_)) => return Step::Delete,
        (Some(wanted), None) => return Step::Make(wanted),
        (Some(wanted), Some(volume)) => (wanted, volume),
    };
    if volume.spec.size != wanted.size {
        return Step::Size(json!({"spec": {"size": wanted.size}}));
    }
    let enter = |state: &str| Step::Copy(json!({"status": {"cloneStatus": {"state": state}}}));
    if volume.spec.data_source.is_empty() {
        return Step::Nothing;
    }
    let status = volume.status.clone().unwrap_or_default();
    match status.clone_status.state.as_str() {
        "completed" | "failed" => Step::Nothing,
        "initiated" => match COPIED_WITHIN.checked_sub(so_long).filter(|left| !left.is_zero()) {
            Some(left) => Step::Wait(left),
            None => enter("completed"),
        },
        _ => enter("initiated"),
    }
}

fn spec(claim: &PersistentVolumeClaim) -> VolumeSpec {
    let spec = claim.spec.clone().unwrap_or_default();
    let request = spec.resources.and_then(|resources| resources.requests?.remove("storage"));
    let size = request.and_then(|size| thousandths(&size.0)).unwrap_or_default() / 1000;
    let source = spec.data_source.map(|source| (source.kind, source.name));
    let source = source.or_else(|| spec.data_source_ref.map(|source| (source.kind, source.name)));
    let data_source = source.map_or_else(String::new, |(kind, name)| match kind.as_str() {
        "VolumeSnapshot" => format!("snap://{name}"),
        _ => format!("vol://{name}"),
    });
    VolumeSpec { size: size.to_string(), data_source, rest: Map::new() }
}

/// Keeps Longhorn's volumes until `tasks` ends.
pub(crate) fn start(tasks: &TaskGroup, harvester: &Client, claims: &Cache<PersistentVolumeClaim>) {
    let volumes: Cache<Volume> = Cache::start(tasks, Api::all(harvester.clone()), Default::default());
    let queue: Queue<ObjectKey> = Queue::new();
    let add = queue.clone();
    volumes.on_change(move |change| add.add(change.key.clone()));
    let add = queue.clone();
    claims.on_change(move |change| {
        let states = change.old.iter().chain(&change.new);
        let names = states.filter_map(|claim| claim.spec.as_ref()?.volume_name.clone());
        names.for_each(|name| add.add(ObjectKey::new(LONGHORN_SYSTEM, &name)));
    });
    let worker =
        Volumes { harvester: harvester.clone(), volumes, claims: claims.clone(), since: Arc::default() };
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        worker.volumes.ready().await;
        worker.claims.ready().await;
        queue.run(&in_life, 1, move |key| {
            let worker = worker.clone();
            async move { worker.reconcile(key).await }
        });
    });
}

#[derive(Clone)]
struct Volumes {
    harvester: Client,
    volumes: Cache<Volume>,
    claims: Cache<PersistentVolumeClaim>,
    /// The state of each copy, by UID, and since when it is seen.
    since: Arc<Mutex<HashMap<String, (String, Instant)>>>,
}

impl Volumes {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let volume = self.volumes.get(&key);
        let claim = self.claims.list().into_iter().find(|claim| {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
            let is_longhorns = claim.annotations().get(PROVISIONER).is_some_and(|driver| driver == LONGHORN);
            is_bound(claim) && is_longhorns && volume == Some(&key.name)
        });
        let api: Api<Volume> = Api::namespaced(self.harvester.clone(), &key.namespace);
        let (name, params) = (key.name.as_str(), PatchParams::default());
        let so_long = volume.as_deref().map_or(Duration::ZERO, |volume| self.has_been(volume));
        let written = match of_volume(claim.as_deref(), volume.as_deref(), so_long) {
            Step::Nothing => return Ok(Action::AwaitChange),
            Step::Wait(left) => return Ok(Action::RequeueAfter(left)),
            Step::Delete => {
                let answer = api.delete(name, &DeleteParams::default()).await;
                unless_gone(answer).map_err(Error::of("delete Longhorn's volume", &key))?;
                return Ok(Action::AwaitChange);
            }
            // where there is no such namespace, nobody asks for it
            Step::Make(spec) => {
                match unless_there(api.create(&PostParams::default(), &Volume::new(name, spec)).await) {
                    Ok(made) => made,
                    refused => {
                        unless_gone(refused).map_err(Error::of("make Longhorn's volume", &key))?.flatten()
                    }
                }
            }
            Step::Size(patch) => unless_gone(api.patch(name, &params, &Patch::Merge(patch)).await)
                .map_err(Error::of("grow Longhorn's volume", &key))?,
            Step::Copy(patch) => unless_gone(api.patch_status(name, &params, &Patch::Merge(patch)).await)
                .map_err(Error::of("write status of Longhorn's volume", &key))?,
        };
        if let Some(volume) = written {
            self.volumes.wrote(volume);
        }
        Ok(Action::AwaitChange)
    }

    /// For how long its copy has been in its state.
    fn has_been(&self, volume: &Volume) -> Duration {
        let state = volume.status.clone().unwrap_or_default().clone_status.state;
        let mut since = self.since.lock().expect("no panic while remembering");
        let known =
            since.entry(volume.uid().unwrap_or_default()).or_insert_with(|| (state.clone(), Instant::now()));
        if known.0 != state {
            *known = (state, Instant::now());
        }
        known.1.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn claim(size: &str, source: &Value) -> PersistentVolumeClaim {
        let claim = json!({"metadata": {"name": "root"},
            "spec": {"resources": {"requests": {"storage": size}}, "dataSource": source}});
        serde_json::from_value(claim).unwrap()
    }

    fn snapshot() -> Value {
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"})
    }

    fn volume(size: &str, of: &str, state: &str) -> Volume {
        let spec = json!({"size": size, "dataSource": of});
        let mut volume = Volume::new("pvc-u", serde_json::from_value(spec).unwrap());
        let status = json!({"cloneStatus": {"state": state}});
        volume.status = (!state.is_empty()).then(|| serde_json::from_value(status).unwrap());
        volume
    }

    const KIB: &str = "1024";

    #[rstest]
    #[case::nobody(None, None, NOW, "nothing")]
    #[case::claim_is_gone(None, Some(volume(KIB, "", "")), NOW, "delete")]
    #[case::bound(Some(claim("1Ki", &Value::Null)), None, NOW, "make 1024 ")]
    #[case::bound_to_a_copy(Some(claim("1Ki", &snapshot())), None, NOW, "make 1024 snap://s")]
    #[case::empty(Some(claim("1Ki", &Value::Null)), Some(volume(KIB, "", "")), NOW, "nothing")]
    #[case::grown(Some(claim("2Ki", &Value::Null)), Some(volume(KIB, "", "")), NOW, "size 2048")]
    #[case::copy(Some(claim("1Ki", &snapshot())), Some(volume(KIB, "snap://s", "")), NOW, "initiated")]
    #[case::copies(Some(claim("1Ki", &snapshot())), Some(volume(KIB, "snap://s", "initiated")), NOW, "wait")]
    #[case::copied(
        Some(claim("1Ki", &snapshot())),
        Some(volume(KIB, "snap://s", "initiated")),
        COPIED_WITHIN,
        "completed"
    )]
    #[case::filled(
        Some(claim("1Ki", &snapshot())),
        Some(volume(KIB, "snap://s", "completed")),
        NOW,
        "nothing"
    )]
    #[case::failed(Some(claim("1Ki", &snapshot())), Some(volume(KIB, "snap://s", "failed")), NOW, "nothing")]
    fn a_volume_is_there_for_its_claim_and_is_filled_after_a_while(
        #[case] claim: Option<PersistentVolumeClaim>,
        #[case] volume: Option<Volume>,
        #[case] so_long: Duration,
        #[case] expected: &str,
    ) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let told = match of_volume(claim.as_ref(), volume.as_ref(), so_long) {
            Step::Nothing => "nothing".to_owned(),
            Step::Wait(_) => "wait".to_owned(),
            Step::Make(spec) => format!("make {} {}", spec.size, spec.data_source),
            Step::Delete => "delete".to_owned(),
            Step::Size(patch) => format!("size {}", text(&patch["spec"]["size"])),
            Step::Copy(patch) => text(&patch["status"]["cloneStatus"]["state"]),
        };
        assert_eq!(told, expected);
    }
}
