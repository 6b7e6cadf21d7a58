//! The guest cluster: which node ID kubelet noted for a Node, and which Nodes use a volume.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::{
    core::v1::{Node, ObjectReference, PersistentVolume, PersistentVolumeSpec},
    storage::v1::{CSINode, VolumeAttachment},
};
use kube::{Api, Client, api::ListParams};
use sha2::{Digest, Sha256};

use crate::{
    host,
    volume::{
        context,
        topology::{self, Segments},
    },
};

/// Kubelet's taint of a Node to which the cloud controller manager has not given its labels yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The external attacher notes the node ID here, on the VolumeAttachment.
pub(crate) const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// The guest cluster. Cheap to clone.
#[derive(Clone)]
pub struct Guest {
    client: Client,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

/// A Node that uses a volume, or is to use it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    pub node: String,
    /// Name of the VolumeAttachment.
    pub attachment: String,
    pub is_attached: bool,
    /// The attacher has been asked to detach.
    pub is_leaving: bool,
}

/// A Node that an export was published to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mounted {
    pub(crate) node: String,
    /// Name of the VolumeAttachment.
    pub(crate) attachment: String,
    /// The handle.
    pub(crate) volume: String,
    pub(crate) export: String,
    /// The address of the first publication.
    pub(crate) endpoint: String,
    /// The PersistentVolumeClaim.
    pub(crate) owner: Option<ObjectReference>,
}

/// A registration of this driver on a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    pub node_id: String,
    /// How many volumes the scheduler gives the Node.
    pub volumes: Option<u32>,
}

impl Guest {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What kubelet keeps in the Node's CSINode of an earlier registration of this driver.
    ///
    /// # Errors
    /// When the API server does not answer, or the role lacks `get` on CSINodes.
    pub async fn noted(&self, node: &str) -> kube::Result<Option<Noted>> {
        let found = Api::<CSINode>::all(self.client()).get_opt(node).await?;
        let driver =
            found.and_then(|found| found.spec.drivers.into_iter().find(|driver| driver.name == CSI_DRIVER));
        Ok(driver.filter(|driver| !driver.node_id.is_empty()).map(|driver| {
            let count = driver.allocatable.and_then(|allocatable| allocatable.count);
            Noted { node_id: driver.node_id, volumes: count.and_then(|count| u32::try_from(count).ok()) }
        }))
    }

    /// The Nodes that use the volume: those with a VolumeAttachment of a PersistentVolume that has this handle. A
    /// PersistentVolume may have any name.
    ///
    /// # Errors
    /// When one of the lists cannot be had. Then nobody knows, and nothing may be taken away.
    pub async fn users(&self, volume: &str) -> kube::Result<Vec<User>> {
        // the attachments first: of each of them the PersistentVolume was there before
        let attachments = host::list(&Api::<VolumeAttachment>::all(self.client())).await?;
        let volumes = host::list(&Api::<PersistentVolume>::all(self.client())).await?;
        // that of the provisioner may be gone by force, and its attachment be left
        let mut names = BTreeSet::from([volume.to_owned()]);
        names.extend(
            volumes
                .into_iter()
                .filter(|one| is_of(one.spec.as_ref(), volume))
                .filter_map(|one| one.metadata.name),
        );
        let ours = attachments.into_iter().filter(|one| one.spec.attacher == CSI_DRIVER).filter(|one| {
            let source = &one.spec.source;
            source.persistent_volume_name.as_ref().is_some_and(|name| names.contains(name))
                || is_of(source.inline_volume_spec.as_ref(), volume)
        });
        let mut users: Vec<_> = ours.map(User::from).collect();
        users.sort();
        Ok(users)
    }

    /// Where exports were when they were published first, by the VolumeAttachments that are there to stay.
    ///
    /// # Errors
    /// When one of the lists cannot be had.
    pub(crate) async fn mounted(&self) -> kube::Result<Vec<Mounted>> {
        let mut attachments = host::list(&Api::<VolumeAttachment>::all(self.client())).await?;
        attachments.retain(|one| one.spec.attacher == CSI_DRIVER && published(one).is_some());
        if attachments.is_empty() {
            return Ok(vec![]);
        }
        let volumes = host::list(&Api::<PersistentVolume>::all(self.client())).await?;
        let volumes: HashMap<_, _> =
            volumes.into_iter().filter_map(|one| Some((one.metadata.name?, one.spec?))).collect();
        let mounted = attachments.into_iter().filter_map(|one| {
            let (endpoint, export) = published(&one).map(|(a, b)| (a.to_owned(), b.to_owned()))?;
            let volume = volumes.get(one.spec.source.persistent_volume_name.as_deref()?)?;
            Some(Mounted {
                node: one.spec.node_name,
                attachment: one.metadata.name.unwrap_or_default(),
                volume: volume.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER)?.volume_handle.clone(),
                export,
                endpoint,
                owner: volume.claim_ref.clone(),
            })
        });
        Ok(mounted.collect())
    }

    /// Where the export was when it was published first to this machine, and the Node's name. Kubernetes names a
    /// VolumeAttachment by its volume and Node, so nothing is listed where the Node's name is known, or is the machine's.
    ///
    /// # Errors
    /// When the VolumeAttachments cannot be read.
    pub(crate) async fn mounted_in(&self, at: Place<'_>) -> kube::Result<Option<(String, String)>> {
        let api = Api::<VolumeAttachment>::all(self.client());
        let is_it = |one: &VolumeAttachment| {
            let export = published(one).map(|(_, export)| export);
            one.spec.attacher == CSI_DRIVER && node_id(one) == Some(at.machine) && export == Some(at.export)
        };
        let found = |one: VolumeAttachment| {
            let endpoint = published(&one)?.0.to_owned();
            Some((endpoint, one.spec.node_name))
        };
        // the driver's role lists VolumeAttachments and does not get them
        let name = attachment_name(at.volume, at.node);
        let named = api.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await?.items;
        // one by this name that another machine has is of a Node that has this machine's name
        if let Some(one) = named.into_iter().find(|one| node_id(one) == Some(at.machine)) {
            return Ok(Some(one).filter(is_it).and_then(found));
        }
        Ok(host::list(&api).await?.into_iter().find(is_it).and_then(found))
    }

    /// Region and zone of a Node; `None` while it has not got its labels, or is not there.
    ///
    /// # Errors
    /// When the API server does not answer, or the role lacks `get` on Nodes.
    pub async fn topology(&self, node: &str) -> kube::Result<Option<Segments>> {
        let found = Api::<Node>::all(self.client()).get_opt(node).await?;
        Ok(found
            .filter(|node| !is_new(node))
            .map(|node| topology::of_node(&node.metadata.labels.unwrap_or_default())))
    }

    /// Region and zone of all Nodes.
    ///
    /// # Errors
    /// When the list cannot be had.
    pub async fn topologies(&self) -> kube::Result<BTreeSet<Segments>> {
        let nodes = host::list(&Api::<Node>::all(self.client())).await?;
        Ok(nodes
            .into_iter()
            .map(|node| topology::of_node(&node.metadata.labels.unwrap_or_default()))
            .collect())
    }
}

/// An export that is published to a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The handle.
    pub(crate) volume: &'a str,
    pub(crate) export: &'a str,
    pub(crate) machine: &'a str,
    /// The name of the Node, as far as it is known.
    pub(crate) node: &'a str,
}

/// The name that kubelet and Kubernetes' attach-detach controller give to a VolumeAttachment.
fn attachment_name(volume: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{volume}{CSI_DRIVER}{node}"));
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{digits}")
}

/// The node ID that the external attacher noted before it published.
fn node_id(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.metadata.annotations.as_ref()?.get(NODE_ID).map(String::as_str)
}

impl From<VolumeAttachment> for User {
    fn from(attachment: VolumeAttachment) -> Self {
        Self {
            node: attachment.spec.node_name,
            is_attached: attachment.status.is_some_and(|status| status.attached),
            is_leaving: attachment.metadata.deletion_timestamp.is_some(),
            attachment: attachment.metadata.name.unwrap_or_default(),
        }
    }
}

/// Address and name of the export of a VolumeAttachment that is not being deleted.
fn published(attachment: &VolumeAttachment) -> Option<(&str, &str)> {
    let status = attachment.status.as_ref().filter(|status| status.attached)?;
    let context = status.attachment_metadata.as_ref()?;
    let endpoint = context.get(context::FORMER).or_else(|| context.get(context::ENDPOINT))?;
    let stays = attachment.metadata.deletion_timestamp.is_none();
    stays.then_some((endpoint.as_str(), context.get(context::EXPORT)?.as_str()))
}

fn is_new(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == UNINITIALIZED)
}

fn is_of(spec: Option<&PersistentVolumeSpec>, volume: &str) -> bool {
    let csi = spec.and_then(|spec| spec.csi.as_ref());
    csi.is_some_and(|csi| csi.driver == CSI_DRIVER && csi.volume_handle == volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kubernetes, pkg/volume/csi/csi_attacher.go, getAttachmentName: the handle, the driver and the Node one after the
    /// other, without anything between. The digest is by sha256sum.
    #[test]
    fn a_volume_attachment_has_the_name_that_kubernetes_gives_it() {
        assert_eq!(
            attachment_name("pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11", "worker-1"),
            "csi-dad4a69ca98a443bb6a9f260e60eeba5350b42ffb6863e8ffee79f6ce09f11d8"
        );
    }
}
