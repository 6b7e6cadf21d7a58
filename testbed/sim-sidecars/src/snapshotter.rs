//! The snapshot controller, which binds a VolumeSnapshot to a content, and external-snapshotter, which calls the driver for
//! contents. The driver is called until it says that the snapshot can be used.

use std::{fmt, sync::Arc};

use controller_kit::ObjectKey;
use csi_driver::csi::{CreateSnapshotRequest, DeleteSnapshotRequest, ListSnapshotsRequest, Snapshot};
use harvester_api::names::CSI_DRIVER;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use program::TaskGroup;
use serde_json::{Map, Value, json};
use tonic::Status;

use crate::{
    kinds::{VolumeSnapshot, VolumeSnapshotContent},
    plugin::within,
    provisioner::may_go_on,
    retries,
    world::{
        Problem, World, delete, handle as handle_of, held, is_going, let_go, patch, patch_status, quantity,
    },
};

const OF_SNAPSHOT: [&str; 2] = [
    "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
    "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
];
const OF_CONTENT: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Snapshot(ObjectKey),
    Content(String),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(key) => write!(out, "snapshot {key}"),
            Self::Content(name) => write!(out, "content {name}"),
        }
    }
}

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let items = |world: &World| {
        let snapshots = world.snapshots.list().into_iter().map(|one| Item::Snapshot(ObjectKey::of(&*one)));
        let contents = world.contents.list().into_iter().map(|one| Item::Content(one.name_any()));
        snapshots.chain(contents).collect()
    };
    retries::start(world, tasks, items, |world, item| async move {
        match item {
            Item::Snapshot(key) => snapshot(&world, &key).await,
            Item::Content(name) => content(&world, &name).await,
        }
    });
}

fn text(fields: &Map<String, Value>, pointer: &[&str]) -> Option<String> {
    let (first, rest) = pointer.split_first()?;
    let mut value = fields.get(*first)?;
    for part in rest {
        value = value.get(part)?;
    }
    value.as_str().map(str::to_owned)
}

fn status_of(snapshot: &VolumeSnapshot) -> Map<String, Value> {
    snapshot.status.clone().unwrap_or_default().fields
}

pub(crate) fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    status_of(snapshot).get("readyToUse") == Some(&Value::Bool(true))
}

/// The driver's own name of a snapshot.
pub(crate) fn handle(content: &VolumeSnapshotContent) -> Option<String> {
    text(&content.status.clone().unwrap_or_default().fields, &["snapshotHandle"])
}

/// The content that a snapshot is bound to, or is to be.
pub(crate) fn content_of(world: &World, snapshot: &VolumeSnapshot) -> Option<Arc<VolumeSnapshotContent>> {
    let given = text(&snapshot.spec.fields, &["source", "volumeSnapshotContentName"]);
    let name = given.unwrap_or_else(|| format!("snapcontent-{}", snapshot.uid().unwrap_or_default()));
    world.contents.get(&ObjectKey::new("", name))
}

async fn snapshot(world: &World, key: &ObjectKey) -> Result<(), Problem> {
    let Some(snapshot) = world.snapshots.get(key) else { return Ok(()) };
    let api = Api::<VolumeSnapshot>::namespaced(world.guest.clone(), &key.namespace);
    let content = content_of(world, &snapshot);
    if is_going(&*snapshot) {
        return remove(world, &api, &snapshot, content).await;
    }
    if let Some(hold) = held(&*snapshot, &OF_SNAPSHOT) {
        return Ok(patch(&api, &world.snapshots, &key.name, hold).await?);
    }
    let Some(content) = content else { return create_content(world, &snapshot).await };
    let told = content.status.clone().unwrap_or_default().fields;
    let mut status = json!({"boundVolumeSnapshotContentName": content.name_any(),
        "readyToUse": told.get("readyToUse").and_then(Value::as_bool).unwrap_or_default(),
        "error": told.get("error").cloned().unwrap_or_default()});
    if let Some(size) = told.get("restoreSize").and_then(Value::as_i64) {
        status["restoreSize"] = quantity(size).into();
    }
    if told.contains_key("creationTime") {
        status["creationTime"] = status_of(&snapshot)
            .get("creationTime")
            .cloned()
            .unwrap_or_else(|| world.clock.now_text().into());
    }
    let known = Value::Object(status_of(&snapshot));
    let fields = status.as_object().into_iter().flatten();
    if fields.into_iter().any(|(field, value)| known.get(field).unwrap_or(&Value::Null) != value) {
        patch_status(&api, &world.snapshots, &key.name, status).await?;
    }
    Ok(())
}

async fn create_content(world: &World, snapshot: &VolumeSnapshot) -> Result<(), Problem> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let Some(claim) = text(&snapshot.spec.fields, &["source", "persistentVolumeClaimName"]) else {
        return Ok(());
    };
    let Some(volume) = world.bound(&ObjectKey::new(&namespace, &claim)) else {
        return Err(Problem::Waits(format!("the PVC {claim} is not yet bound to a PV")));
    };
    let class = class(world, text(&snapshot.spec.fields, &["volumeSnapshotClassName"])).await?;
    let content = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": format!("snapcontent-{}", snapshot.uid().unwrap_or_default()), "finalizers": [OF_CONTENT]},
        "spec": {"driver": CSI_DRIVER, "deletionPolicy": class.data["deletionPolicy"],
            "volumeSnapshotClassName": class.name_any(), "source": {"volumeHandle": handle_of(&volume)},
            "volumeSnapshotRef": {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "name": snapshot.name_any(), "namespace": namespace, "uid": snapshot.uid(),
                "resourceVersion": snapshot.resource_version()}}});
    let content: VolumeSnapshotContent = serde_json::from_value(content).expect("what we made is one");
    match world.all::<VolumeSnapshotContent>().create(&PostParams::default(), &content).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        answer => drop(world.contents.wrote(answer?)),
    }
    Ok(())
}

/// The class of this name, or the default one for this driver.
async fn class(world: &World, name: Option<String>) -> Result<DynamicObject, Problem> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
    let kind = ApiResource::from_gvk_with_plural(&kind, "volumesnapshotclasses");
    let classes =
        Api::<DynamicObject>::all_with(world.guest.clone(), &kind).list(&ListParams::default()).await?;
    let is_it = |class: &DynamicObject| match &name {
        Some(name) => class.name_any() == *name,
        None => class.annotations().get(DEFAULT_CLASS).is_some_and(|it| it == "true"),
    };
    let mut ours = classes.items.into_iter().filter(|class| class.data["driver"] == CSI_DRIVER);
    ours.find(is_it)
        .ok_or_else(|| Problem::Waits(format!("there is no VolumeSnapshotClass {name:?} of {CSI_DRIVER}")))
}

async fn remove(
    world: &World,
    api: &Api<VolumeSnapshot>,
    snapshot: &VolumeSnapshot,
    content: Option<Arc<VolumeSnapshotContent>>,
) -> Result<(), Problem> {
    let (name, namespace) = (snapshot.name_any(), snapshot.namespace());
    let is_source = world.claims.list().iter().any(|claim| {
        let source = claim.spec.as_ref().and_then(|spec| spec.data_source.as_ref());
        claim.metadata.namespace == namespace
            && claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound")
            && source.is_some_and(|source| source.kind == "VolumeSnapshot" && source.name == name)
    });
    if is_source {
        return Err(Problem::Waits("a volume is being made of it".to_owned()));
    }
    if let Some(content) = content {
        if !content.annotations().contains_key(BEING_DELETED) {
            let mark = json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}});
            patch(&world.all(), &world.contents, &content.name_any(), mark).await?;
        }
        if text(&content.spec.fields, &["deletionPolicy"]).as_deref() == Some("Delete") {
            if !is_going(&*content) {
                delete(&world.all::<VolumeSnapshotContent>(), &*content).await?;
            }
            // its end brings us back
            return Ok(());
        }
    }
    match let_go(snapshot, &OF_SNAPSHOT) {
        Some(free) => Ok(patch(api, &world.snapshots, &name, free).await?),
        None => Ok(()),
    }
}

async fn content(world: &World, name: &str) -> Result<(), Problem> {
    let Some(content) = world.contents.get(&ObjectKey::new("", name)) else { return Ok(()) };
    let spec = &content.spec.fields;
    if text(spec, &["driver"]).as_deref() != Some(CSI_DRIVER) {
        return Ok(());
    }
    let api = world.all::<VolumeSnapshotContent>();
    // what the driver may still be making is made first, and deleted then
    let is_being_made = content.annotations().contains_key(BEING_CREATED) && handle(&content).is_none();
    if is_going(&*content) && !is_being_made {
        let deletes = text(spec, &["deletionPolicy"]).as_deref() == Some("Delete");
        if let Some(snapshot_id) = handle(&content).filter(|_| deletes) {
            let mut driver = world.controller.controller();
            let request = DeleteSnapshotRequest { snapshot_id, ..DeleteSnapshotRequest::default() };
            let call = |request| async move { driver.delete_snapshot(request).await };
            within(world.pace.call, request, call).await?;
        }
        return match let_go(&*content, &[OF_CONTENT]) {
            Some(free) => Ok(patch(&api, &world.contents, name, free).await?),
            None => Ok(()),
        };
    }
    let status = content.status.clone().unwrap_or_default().fields;
    if status.get("readyToUse") == Some(&Value::Bool(true)) {
        return is_made(world, &content).await;
    }
    let told = match take(world, &content).await {
        Ok(told) => told,
        Err(problem) => {
            let message = format!("Failed to check and update snapshot content: {problem}");
            let error = json!({"message": message, "time": world.clock.now_text()});
            patch_status(&api, &world.contents, name, json!({"readyToUse": false, "error": error})).await?;
            if matches!(&problem, Problem::Call(status) if !may_go_on(status.code())) {
                is_made(world, &content).await?;
            }
            return Err(problem);
        }
    };
    let time = told.creation_time.map(|time| time.seconds * 1_000_000_000 + i64::from(time.nanos));
    let status = json!({"snapshotHandle": told.snapshot_id, "readyToUse": told.ready_to_use, "error": null,
        "restoreSize": told.size_bytes, "creationTime": time});
    patch_status(&api, &world.contents, name, status).await?;
    is_made(world, &content).await?;
    if told.ready_to_use { Ok(()) } else { Err(Problem::Waits("the snapshot is not ready".to_owned())) }
}

/// The driver is making nothing for the content any more.
async fn is_made(world: &World, content: &VolumeSnapshotContent) -> Result<(), Problem> {
    let api = world.all::<VolumeSnapshotContent>();
    let name = content.name_any();
    let known = world.contents.get(&ObjectKey::new("", &*name));
    if !known.is_some_and(|content| content.annotations().contains_key(BEING_CREATED)) {
        return Ok(());
    }
    let done = json!({"metadata": {"annotations": {BEING_CREATED: null}}});
    Ok(patch(&api, &world.contents, &name, done).await?)
}

/// Asks the driver to take the snapshot, or about one that was taken elsewhere.
async fn take(world: &World, content: &VolumeSnapshotContent) -> Result<Snapshot, Problem> {
    let spec = &content.spec.fields;
    let mut driver = world.controller.controller();
    if let Some(snapshot_id) = text(spec, &["source", "snapshotHandle"]) {
        let request = ListSnapshotsRequest { snapshot_id, ..ListSnapshotsRequest::default() };
        let call = |request| async move { driver.list_snapshots(request).await };
        let listed = within(world.pace.call, request, call).await?;
        let found = listed.entries.into_iter().next().and_then(|entry| entry.snapshot);
        return Ok(found.ok_or_else(|| Status::not_found("the driver lists no such snapshot"))?);
    }
    let class = class(world, text(spec, &["volumeSnapshotClassName"])).await?;
    if !content.annotations().contains_key(BEING_CREATED) {
        let mark = json!({"metadata": {"annotations": {BEING_CREATED: "yes"}}});
        patch(&world.all(), &world.contents, &content.name_any(), mark).await?;
    }
    let parameters = class.data["parameters"].as_object().into_iter().flatten();
    let request = CreateSnapshotRequest {
        name: format!("snapshot-{}", text(spec, &["volumeSnapshotRef", "uid"]).unwrap_or_default()),
        source_volume_id: text(spec, &["source", "volumeHandle"]).unwrap_or_default(),
        parameters: parameters
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
        ..CreateSnapshotRequest::default()
    };
    let call = |request| async move { driver.create_snapshot(request).await };
    let taken = within(world.pace.call, request, call).await?.snapshot;
    Ok(taken.ok_or_else(|| Status::internal("the driver answers without a snapshot"))?)
}
