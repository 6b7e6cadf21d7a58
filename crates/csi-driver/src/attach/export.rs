//! A volume for many nodes: an NFS export of the host, switched on by a NetworkFilesystem object.
//!
//! The export is for all nodes together, so who uses it decides: it goes off when no VolumeAttachment needs it. A
//! question about them that gets no answer never counts as "nobody" (docs/contract/csi-driver.md#exports).

use std::{collections::HashMap, time::Duration};

use futures::{StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::json;

use super::session::Session;
use crate::{
    guest::User,
    host::{HARVESTER_SYSTEM as NAMESPACE, bound_volume, kinds::NetworkFilesystem},
    refusal::Refusal,
    volume::context,
};

/// Asks the guest for the VolumeAttachments of a volume. The error is a sentence.
pub type Users = dyn Fn(&str) -> BoxFuture<'static, Result<Vec<User>, String>> + Send + Sync;

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
        if found.spec.desired_state != "Enabled" {
            self.set_export(&api, &found, "Enabled").await?;
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
        let mut off = self.set_export(&api, &found, "Disabled").await?;
        // A node that was published to since the first question found the export on, and wrote nothing to it.
        let is_used = self.is_used().await;
        if !matches!(is_used, Ok(false)) {
            // on whatever version: the host has begun to write its status
            off.metadata.resource_version = None;
            self.set_export(&api, &off, "Enabled").await?;
        }
        is_used.map(drop)
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

    /// Writes the state on the version that was read, where `on` has one: of two processes one loses, and its caller comes again.
    async fn set_export(
        &self,
        api: &Api<NetworkFilesystem>,
        on: &NetworkFilesystem,
        state: &str,
    ) -> Result<NetworkFilesystem, Refusal> {
        let mut patch = json!({"spec": {"desiredState": state}});
        if let Some(version) = &on.metadata.resource_version {
            patch["metadata"] = json!({ "resourceVersion": version });
        }
        let name = on.metadata.name.as_deref().unwrap_or_default();
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        let doing = format!("set NetworkFilesystem {NAMESPACE}/{name} on the host to {state}");
        patched.map_err(|error| Refusal::of_host(&doing, &error))
    }
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
