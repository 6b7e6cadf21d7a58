//! NFS exports that have moved from where nodes mounted them (docs/contract/csi-driver.md#moved).
//!
//! The external attacher keeps the publish context in the status of the VolumeAttachment, and publishes an export again
//! each minute. So the context of an export that moved has the former address besides, until the VolumeAttachment goes:
//! then no Pod of the node uses the volume any more, and the next one mounts it where it is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use controller_kit::PendingEvent;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use tonic::Code;

use crate::{
    guest::{Guest, Mounted, Place},
    host::{Host, is_refused, kinds::NetworkFilesystem, missing::Missing},
    refusal::{LONGEST, Refusal, cut, error_message},
    volume::{context, name::HostName},
};

/// Exports that are read at once.
const AT_ONCE: usize = 8;
/// Reason of the Events.
pub const REASON: &str = "ExportMoved";

/// Compares what nodes mounted with where the exports are now. Clones are the same.
#[derive(Clone)]
pub struct Exports(Arc<Inner>);

struct Inner {
    guest: Guest,
    events: Missing,
    /// What was said last of each volume.
    told: Mutex<HashMap<String, String>>,
    /// The names of Nodes by their machines, where these are not the same.
    nodes: Mutex<HashMap<String, String>>,
}

/// An export that is no more where nodes have it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moved {
    pub(crate) message: String,
    /// The PersistentVolumeClaim of the guest.
    owner: Option<ObjectReference>,
}

impl Exports {
    /// Events are written by `events`.
    pub fn new(guest: Guest, events: Missing) -> Self {
        Self(Arc::new(Inner { guest, events, told: Mutex::default(), nodes: Mutex::default() }))
    }

    /// The exports that have moved, by their volumes, or the one of this volume; each is told once. What cannot be read
    /// has not moved: nobody is to wait for a list of volumes because of it.
    pub(crate) async fn moved(&self, host: &Host, only: Option<&HostName>) -> BTreeMap<String, Moved> {
        let moved = match self.look(host, only).await {
            Ok(moved) => moved,
            // what was told stays told
            Err(error) => {
                tracing::debug!("where NFS exports are mounted is not known: {}", error_message(&error));
                return BTreeMap::new();
            }
        };
        let mut told = self.0.told.lock().expect("no panic while noting");
        told.retain(|volume, _| {
            moved.contains_key(volume) || only.is_some_and(|only| only.as_str() != volume)
        });
        for (volume, Moved { message, owner }) in &moved {
            let Some(owner) = owner.as_ref().filter(|_| told.get(volume) != Some(message)) else { continue };
            told.insert(volume.clone(), message.clone());
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                resource_version: None,
                ..owner.clone()
            };
            self.0.events.recorder().publish(&about, &PendingEvent::warning(REASON, message.clone()));
        }
        moved
    }

    async fn look(&self, host: &Host, only: Option<&HostName>) -> kube::Result<BTreeMap<String, Moved>> {
        let mut mounted = self.0.guest.mounted().await?;
        mounted.retain(|one| only.is_none_or(|only| only.as_str() == one.volume));
        if mounted.is_empty() {
            return Ok(BTreeMap::new());
        }
        // the list has the exports of all tenants
        let names: BTreeSet<_> =
            mounted.iter().filter_map(|one| HostName::from_handle(&one.export)).collect();
        let api = host.network_filesystems();
        let read = stream::iter(names).map(|name| {
            let api = api.clone();
            async move { api.get_opt(name.as_str()).await }
        });
        let exports: Vec<_> = read.buffered(AT_ONCE).try_collect().await?;
        Ok(moved(&mounted, &exports.into_iter().flatten().collect::<Vec<_>>()))
    }

    /// The publish context, with the address at which the node has the export already, where that is another one.
    ///
    /// # Errors
    /// UNAVAILABLE while the guest does not say where that is: the attacher replaces what it kept by this answer, and the
    /// former address would be forgotten. A guest whose role does not let the driver ask has the context without it.
    pub(super) async fn with_former(
        &self,
        volume: &HostName,
        machine: &str,
        mut context: HashMap<String, String>,
    ) -> Result<HashMap<String, String>, Refusal> {
        let Some(export) = context.get(context::EXPORT) else { return Ok(context) };
        let known = self.nodes().get(machine).cloned();
        let node = known.as_deref().unwrap_or(machine);
        let found = self.0.guest.mounted_in(Place { volume: volume.as_str(), export, machine, node }).await;
        let found = match found {
            Err(error) if is_refused(&error) => None,
            Err(error) => {
                let doing = "read the guest's VolumeAttachments to see where the node has the export of";
                let text = format!("{doing} volume {volume}: {}: call again", error_message(&error));
                return Err(Refusal::new(Code::Unavailable, text));
            }
            Ok(found) => found,
        };
        if let Some((endpoint, found)) = found {
            if found != node {
                self.nodes().insert(machine.to_owned(), found);
            }
            if context.get(context::ENDPOINT) != Some(&endpoint) {
                context.insert(context::FORMER.to_owned(), endpoint);
            }
        }
        Ok(context)
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.nodes.lock().expect("no panic while noting")
    }
}

/// Where an export is, where it was, the nodes that have it there, and one of them.
type Found<'a> = (&'a str, BTreeSet<&'a str>, BTreeSet<String>, &'a Mounted);

fn moved(mounted: &[Mounted], exports: &[NetworkFilesystem]) -> BTreeMap<String, Moved> {
    let now: HashMap<_, _> = exports
        .iter()
        .filter(|export| !export.status.endpoint.is_empty())
        .map(|export| (export.name_any(), export.status.endpoint.as_str()))
        .collect();
    let mut found: BTreeMap<&str, Found<'_>> = BTreeMap::new();
    for one in mounted {
        let Some(to) = now.get(&one.export).filter(|to| **to != one.endpoint) else { continue };
        let (_, from, nodes, _) =
            found.entry(&one.volume).or_insert((to, BTreeSet::new(), BTreeSet::new(), one));
        from.insert(&one.endpoint);
        nodes.insert(format!("{} (until VolumeAttachment {} is gone)", one.node, one.attachment));
    }
    found
        .into_iter()
        .map(|(volume, (to, from, nodes, one))| {
            let message = format!(
                "the NFS export of volume {volume} has moved from {} to {to}: end all Pods that use it on a node before \
                 new ones start there, so that it is mounted anew; a Pod that started on a node after all others there had \
                 ended has it where it is; nodes that mounted it where it was: {}",
                from.into_iter().collect::<Vec<_>>().join(" and "),
                nodes.into_iter().collect::<Vec<_>>().join(" and ")
            );
            (volume.to_owned(), Moved { message: cut(&message, LONGEST), owner: one.owner.clone() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn mounted(node: &str, endpoint: &str) -> Mounted {
        Mounted {
            node: node.to_owned(),
            attachment: format!("csi-{node}"),
            volume: "pvc-1".to_owned(),
            export: "export-1".to_owned(),
            endpoint: endpoint.to_owned(),
            owner: None,
        }
    }

    // docs/contract/csi-driver.md#moved
    #[rstest]
    #[case::where_it_was(&[("a", "10.0.0.1")], "export-1", "10.0.0.1", "")]
    #[case::off(&[("a", "10.0.0.1")], "export-1", "", "")]
    #[case::another(&[("a", "10.0.0.1")], "export-2", "10.0.0.2", "")]
    #[case::of_one_node(&[("a", "10.0.0.1"), ("b", "10.0.0.2")], "export-1", "10.0.0.2", "from 10.0.0.1 to 10.0.0.2; was: a (until VolumeAttachment csi-a is gone)")]
    #[case::twice(&[("b", "10.0.0.2"), ("a", "10.0.0.1")], "export-1", "10.0.0.3",
        "from 10.0.0.1 and 10.0.0.2 to 10.0.0.3; was: a (until VolumeAttachment csi-a is gone) and b (until VolumeAttachment csi-b is gone)")]
    fn what_is_said_of_a_moved_export_names_the_volume_attachment_that_ends_it(
        #[case] nodes: &[(&str, &str)],
        #[case] name: &str,
        #[case] endpoint: &str,
        #[case] expected: &str,
    ) {
        let nodes: Vec<_> = nodes.iter().map(|(node, endpoint)| mounted(node, endpoint)).collect();
        let export = json!({"metadata": {"name": name}, "status": {"endpoint": endpoint}});
        let moved = moved(&nodes, &[serde_json::from_value(export).unwrap()]);
        let message = moved.get("pvc-1").map_or("", |moved| &moved.message);
        assert_eq!(message.is_empty(), expected.is_empty(), "{message}");
        assert!(expected.split("; ").all(|part| message.contains(part)), "{message}");
    }
}
