//! A volume for many nodes: an NFS export of the host, switched on by a NetworkFilesystem object.
//!
//! The export is for all nodes together, so who uses it decides: it goes off when no VolumeAttachment needs it. A
//! question about them that gets no answer never counts as "nobody" (docs/contract/csi-driver.md#exports). Each cluster
//! sees its own VolumeAttachments alone, so the object names the clusters that have the export on, and the last of them
//! switches it off.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture};
use harvester_api::{annotations::CSI_EXPORT_ON_FOR, labels::GUEST_CLUSTER};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::json;

use super::{
    on_for::{self, Leaves},
    ownership::{Recorded, STALE_AFTER},
    session::{Session, recorded},
    unpublish::Own,
};
use crate::{
    guest::User,
    host::{HARVESTER_SYSTEM as NAMESPACE, bound_volume, is_absent, kinds::NetworkFilesystem},
    node_monitor::labels::NOBODYS,
    refusal::Refusal,
    volume::{access::Reach, context, record},
};

/// Asks the guest for the VolumeAttachments of a volume. The error is a sentence.
pub type Users = dyn Fn(&str) -> BoxFuture<'static, Result<Vec<User>, String>> + Send + Sync;

/// An export that others write at the same moment is written so often.
const REJOINS: usize = 20;
/// An export that the role does not let us watch is read again so often.
const READ_AGAIN: Duration = Duration::from_secs(2);
const LONGHORN: &str = "driver.longhorn.io";
const PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

impl Session<'_> {
    /// Switches the export on, waits until it is ready, and answers with the publish context.
    pub(super) async fn export(&self) -> Result<HashMap<String, String>, Refusal> {
        let host = &self.attacher.host;
        let name = host.claim_name(self.volume);
        let claim = host.claims().get_opt(self.volume.as_str()).await;
        let claim = claim.map_err(|error| Refusal::of_host(&format!("read {name}"), &error))?;
        let claim = claim.ok_or_else(|| Refusal::not_found(format!("there is no {name}")))?;
        host.check_owner(&claim).await?;
        let spec = claim.spec.clone().unwrap_or_default();
        if spec.volume_mode.as_deref() == Some("Block") {
            return Err(Refusal::precondition(format!(
                "{name} is a block device, which one node uses at a time: make a volume with ReadWriteMany"
            )));
        }
        record::fits(&claim, Reach::Export).map_err(Refusal::invalid)?;
        let Some(volume) = bound_volume(&claim).map(str::to_owned) else {
            return Err(Refusal::aborted(format!(
                "{name} is not bound yet: look at its Events and its class"
            )));
        };
        let api = self.attacher.host.network_filesystems();
        let doing = |verb: &str| format!("{verb} NetworkFilesystem {NAMESPACE}/{volume} on the host");
        let found = api.get_opt(&volume).await.map_err(|error| Refusal::of_host(&doing("read"), &error))?;
        let found = match found {
            Some(found) => found,
            None => {
                if let Some(other) = other_provisioner(&claim) {
                    return Err(Refusal::precondition(format!(
                        "{name} is a volume of {other}, and the host exports volumes of {LONGHORN} alone: use another class"
                    )));
                }
                self.create_export(&api, &volume).await?
            }
        };
        let is_on = on_for::is_on(&found);
        // nobody wrote whether it is a disk or an export
        let is_unknown = record::reach_of(&claim).is_none();
        let mut is_annotated = is_annotated(&claim);
        if is_unknown && self.is_left_behind(&claim).await? {
            match recorded(&claim) {
                // a write that is on its way there fails then
                Recorded::Ownership(left) => self.detach_by(&left.vm, Own::left_behind(&left)).await?,
                Recorded::Unreadable => {
                    let removed = self.annotate(&claim, None).await?;
                    removed
                        .ok_or_else(|| Refusal::aborted(format!("somebody else has just written {name}")))?;
                }
                Recorded::Nothing => {}
            }
            is_annotated = self.is_annotated().await?;
        }
        // on already, and annotated: who switched it on ended before its second look
        if is_unknown && (is_annotated || !is_on && self.has_machines().await?) {
            return Err(self.is_in_machines(&name));
        }
        let own = self.own_name().await?;
        let lacks = |export: &NetworkFilesystem| on_for::lacks(own.as_deref(), export, label(&claim));
        if let Some(clusters) = lacks(&found) {
            let on = match self.set_export(&api, &found, "Enabled", &clusters).await {
                // another node is published to at once
                Err(why) if why.code == tonic::Code::Aborted => {
                    let read = api
                        .get_opt(&volume)
                        .await
                        .map_err(|error| Refusal::of_host(&doing("read"), &error))?;
                    read.filter(|export| lacks(export).is_none()).ok_or(why)?
                }
                on => on?,
            };
            // a call that has written its annotation since looks at the export before it adds the disk
            if !is_on && is_unknown && self.is_annotated().await? {
                self.set_export(&api, &on, "Disabled", &BTreeSet::new()).await?;
                return Err(self.is_in_machines(&name));
            }
        }
        // a share manager that does not come keeps no worker of the attacher for longer than a disk
        self.wait_for(format!("NetworkFilesystem {NAMESPACE}/{volume} on the host is not ready yet"));
        let only = watcher::Config::default().fields(&format!("metadata.name={volume}"));
        let mut events = watcher(api.clone(), only).boxed();
        while let Some(event) = self.in_patience(events.next()).await? {
            match event {
                Ok(watcher::Event::Apply(export) | watcher::Event::InitApply(export)) => {
                    if is_ready(&export) {
                        return Ok(publish_context(&volume, &export));
                    }
                    let status = &export.status;
                    self.wait_for(format!(
                        "NetworkFilesystem {NAMESPACE}/{volume} on the host is not ready yet (status {:?}{}): look \
                         at the share manager of Longhorn volume {volume}",
                        status.status,
                        conditions(&export)
                    ));
                }
                Ok(_) => {}
                Err(error) => {
                    // a role without the watch may have the object read
                    if let Ok(Some(export)) = api.get_opt(&volume).await
                        && is_ready(&export)
                    {
                        return Ok(publish_context(&volume, &export));
                    }
                    self.wait_for(format!("{}: {error}", doing("watch")));
                    self.in_patience(tokio::time::sleep(READ_AGAIN)).await?;
                }
            }
        }
        Err(Refusal::aborted(format!("{}: the watch ended", doing("watch"))))
    }

    /// Switches the export off where the volume has one and nobody uses it.
    pub(super) async fn end_export(&self) -> Result<(), Refusal> {
        let host = &self.attacher.host;
        let claim = match self.watched_claim().await {
            Some(claim) => Some(claim),
            None => {
                let read = host.claims().get_opt(self.volume.as_str()).await;
                let doing = format!("read {}", host.claim_name(self.volume));
                read.map_err(|error| Refusal::of_host(&doing, &error))?.map(std::sync::Arc::new)
            }
        };
        let Some(spec) = claim.as_ref().and_then(|claim| claim.spec.as_ref()) else { return Ok(()) };
        let Some(volume) = claim.as_deref().and_then(bound_volume) else { return Ok(()) };
        if spec.volume_mode.as_deref() == Some("Block") {
            return Ok(());
        }
        let api = host.network_filesystems();
        let doing = format!("read NetworkFilesystem {NAMESPACE}/{volume} on the host");
        let found = match api.get_opt(volume).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            // the kind came with Harvester 1.4, and the right to it
            Err(kube::Error::Api(status)) if status.code == 403 => return Ok(()),
            Err(error) => return Err(Refusal::of_host(&doing, &error)),
        };
        if found.spec.desired_state == "Disabled" {
            return Ok(());
        }
        if self.is_used().await? {
            return Ok(());
        }
        match host.check_owner(claim.as_deref().expect("its spec was read")).await {
            // this cluster had no part in it
            Err(refusal) if refusal.code == tonic::Code::PermissionDenied => return Ok(()),
            Err(refusal) => return Err(refusal),
            Ok(()) => {}
        }
        let (own, label) = (self.own_name().await?, claim.as_deref().and_then(label));
        let (state, rest) = match on_for::left(own.as_deref(), &on_for::clusters(&found), label) {
            Leaves::Nothing => return Ok(()),
            Leaves::On(rest) => ("Enabled", rest),
            Leaves::Off => ("Disabled", BTreeSet::new()),
        };
        self.set_export(&api, &found, state, &rest).await?;
        // A node that was published to since the first question found the export on for this cluster, and wrote nothing.
        let is_used = self.is_used().await;
        if !matches!(is_used, Ok(false)) {
            self.join_again(&api, volume, own.as_deref(), label).await?;
        }
        is_used.map(drop)
    }

    /// Has the export on for this cluster again, beside those that have joined meanwhile.
    async fn join_again(
        &self,
        api: &Api<NetworkFilesystem>,
        volume: &str,
        own: Option<&str>,
        label: Option<&str>,
    ) -> Result<(), Refusal> {
        let doing = format!("read NetworkFilesystem {NAMESPACE}/{volume} on the host");
        let mut tries = 0;
        loop {
            let read = api.get_opt(volume).await.map_err(|error| Refusal::of_host(&doing, &error))?;
            let lacks = read.as_ref().and_then(|export| Some((export, on_for::lacks(own, export, label)?)));
            let Some((export, clusters)) = lacks else { return Ok(()) };
            tries += 1;
            match self.set_export(api, export, "Enabled", &clusters).await {
                // the host has begun to write its status, or another cluster has joined
                Err(why) if why.code == tonic::Code::Aborted && tries < REJOINS => {}
                done => return done.map(drop),
            }
        }
    }

    /// The name of this cluster, where it has one of its own.
    async fn own_name(&self) -> Result<Option<String>, Refusal> {
        let name = self.attacher.host.own_cluster().await?;
        Ok(name.filter(|name| name != NOBODYS))
    }

    /// Whether a machine has the volume.
    async fn has_machines(&self) -> Result<bool, Refusal> {
        Ok(!self.machines_with_volume(None, true).await?.is_empty())
    }

    async fn is_annotated(&self) -> Result<bool, Refusal> {
        Ok(self.read_claim().await?.is_some_and(|claim| is_annotated(&claim)))
    }

    /// Whether nobody has changed the annotation for long, and no machine has the volume: a process that was to add the
    /// disk, or had given up, ended before it took the annotation back. A text that is none of ours counts as long.
    async fn is_left_behind(&self, claim: &PersistentVolumeClaim) -> Result<bool, Refusal> {
        let is_stale = is_annotated(claim) && self.attacher.ages.unchanged_for(claim) >= STALE_AFTER;
        Ok(is_stale && !self.has_machines().await?)
    }

    fn is_in_machines(&self, claim: &str) -> Refusal {
        Refusal::precondition(format!(
            "{claim} is a disk of a machine: end what uses it there before it is exported"
        ))
    }

    /// For a volume of which nobody wrote whether it is a disk: refused while it is exported, since both at once write to
    /// one file system.
    pub(super) async fn is_not_exported(&self, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
        let Some(volume) = bound_volume(claim).filter(|_| record::reach_of(claim).is_none()) else {
            return Ok(());
        };
        let export = match self.attacher.host.network_filesystems().get_opt(volume).await {
            Ok(Some(export)) => export,
            Ok(None) => return Ok(()),
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => {
                let doing = format!("read NetworkFilesystem {NAMESPACE}/{volume} on the host");
                return Err(Refusal::of_host(&doing, &error));
            }
        };
        if !on_for::is_on(&export) {
            return Ok(());
        }
        Err(Refusal::precondition(format!(
            "{} is exported by NetworkFilesystem {NAMESPACE}/{volume} on the host: it is no disk before that is Disabled",
            self.attacher.host.claim_name(self.volume)
        )))
    }

    async fn is_used(&self) -> Result<bool, Refusal> {
        let users = (self.attacher.options.users)(self.volume.as_str()).await.map_err(|why| {
            let doing = "read the guest's VolumeAttachments to see who else uses";
            Refusal::new(tonic::Code::Unavailable, format!("{doing} volume {}: {why}", self.volume))
        })?;
        // that of the node that is detached is being deleted
        Ok(users.iter().any(|user| !user.is_leaving))
    }

    async fn create_export(
        &self,
        api: &Api<NetworkFilesystem>,
        volume: &str,
    ) -> Result<NetworkFilesystem, Refusal> {
        let object = NetworkFilesystem::disabled(volume);
        let doing = format!("create NetworkFilesystem {NAMESPACE}/{volume} on the host");
        match api.create(&PostParams::default(), &object).await {
            Ok(made) => Ok(made),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Err(Refusal::aborted(format!("{doing}: somebody else has just created it")))
            }
            Err(error) => Err(Refusal::of_host(&doing, &error)),
        }
    }

    /// Writes the state on the version that was read: of two processes one loses, and its caller comes again.
    async fn set_export(
        &self,
        api: &Api<NetworkFilesystem>,
        on: &NetworkFilesystem,
        state: &str,
        clusters: &BTreeSet<String>,
    ) -> Result<NetworkFilesystem, Refusal> {
        let names: Vec<_> = clusters.iter().map(String::as_str).collect();
        let names = (!names.is_empty()).then(|| names.join(","));
        let version = &on.metadata.resource_version;
        let mut patch = json!({"metadata": {"resourceVersion": version}, "spec": {"desiredState": state}});
        if on.annotations().get(CSI_EXPORT_ON_FOR) != names.as_ref() {
            patch["metadata"]["annotations"] = json!({CSI_EXPORT_ON_FOR: names});
        }
        let name = on.metadata.name.as_deref().unwrap_or_default();
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        let doing = format!("set NetworkFilesystem {NAMESPACE}/{name} on the host to {state}");
        patched.map_err(|error| Refusal::of_host(&doing, &error))
    }
}

fn label(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.labels().get(GUEST_CLUSTER).map(String::as_str)
}

fn is_annotated(claim: &PersistentVolumeClaim) -> bool {
    recorded(claim) != Recorded::Nothing
}

fn is_ready(export: &NetworkFilesystem) -> bool {
    let status = &export.status;
    status.status == "Ready" && status.state == "Enabled" && !status.endpoint.is_empty()
}

fn publish_context(volume: &str, export: &NetworkFilesystem) -> HashMap<String, String> {
    let mut context = HashMap::from([
        (context::ENDPOINT.to_owned(), export.status.endpoint.clone()),
        (context::EXPORT.to_owned(), volume.to_owned()),
    ]);
    let options = &export.status.mount_opts;
    if !options.is_empty() {
        context.insert(context::OPTIONS.to_owned(), options.clone());
    }
    context
}

/// The provisioner of a volume that the host cannot export. A claim that does not say is tried.
fn other_provisioner(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.metadata.annotations.as_ref()?;
    let provisioner = PROVISIONERS.iter().find_map(|key| annotations.get(*key))?;
    (provisioner != LONGHORN).then_some(provisioner)
}

fn conditions(export: &NetworkFilesystem) -> String {
    let messages = export.status.conditions.iter().map(|condition| &condition.message);
    messages.filter(|message| !message.is_empty()).map(|message| format!(", {message}")).collect()
}
