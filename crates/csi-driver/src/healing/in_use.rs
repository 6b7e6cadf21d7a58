//! A disk that kubelet has mounted stays in its machine, although no VolumeAttachment stands for it: somebody may have
//! removed that by force, or restored an old backup of the guest cluster. Kubernetes' own controller holds a detachment
//! back by the same field.

use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::{core::v1::Node, storage::v1::CSINode};
use kube::{Api, Client};

use super::join::{GuestState, nodes_of};
use crate::{host, node_monitor::decide::OUT_OF_SERVICE, refusal::Refusal};

/// Asks the Nodes of this machine whether kubelet has the volume mounted: those of the CSINodes, and while the driver of a
/// node restarts, the one of the machine's name.
///
/// # Errors
/// FAILED_PRECONDITION where one of them has; as the server answers where it cannot be asked.
pub(super) async fn refuse_if_mounted(
    client: &Client,
    guest: &GuestState,
    machine: &str,
    handle: &str,
) -> Result<(), Refusal> {
    let known: Vec<_> = guest.nodes_of(machine).collect();
    let names = if known.is_empty() { &[machine][..] } else { &known[..] };
    for name in names {
        let node = read(client, name, handle).await?;
        if node.is_none() && known.is_empty() {
            return Err(Refusal::precondition(format!(
                "nothing says which Node VirtualMachine {machine} is, which has volume {handle}: look at the Pod of the \
                 driver on that node, or, if the Node was deleted, stop the machine"
            )));
        }
        if node.is_some_and(|node| has_mounted(&node, handle)) {
            return Err(mounted(name, handle));
        }
    }
    Ok(())
}

/// [`refuse_if_mounted`] for a caller that watches no CSINodes: it lists them, and refuses also where no Node can say whether
/// the volume is mounted.
///
/// # Errors
/// FAILED_PRECONDITION where it may have; as the server answers where it cannot be asked.
pub(crate) async fn refuse_unless_unmounted(
    client: &Client,
    machine: &str,
    handle: &str,
) -> Result<(), Refusal> {
    let nodes = host::list(&Api::<CSINode>::all(client.clone())).await.map_err(|error| {
        let doing = format!("list the CSINodes of the guest cluster, to see which Node has volume {handle}");
        Refusal::of_guest(&doing, &error)
    })?;
    let (mut is_unmounted, mut unheard) = (false, None);
    for name in nodes_of(&nodes, machine) {
        match read(client, name, handle).await? {
            Some(node) if has_mounted(&node, handle) => return Err(mounted(name, handle)),
            // a kubelet that does not report may have mounted it since
            Some(node) if is_ready(&node) || is_out_of_service(&node) => is_unmounted = true,
            Some(_) => unheard = Some((name, "does not report")),
            None => unheard = Some((name, "is gone")),
        }
    }
    if is_unmounted && unheard.is_none() {
        return Ok(());
    }
    let who = match unheard {
        Some((node, why)) => format!("Node {node}, which is VirtualMachine {machine} on the host, {why}"),
        None => format!("no CSINode of this cluster names VirtualMachine {machine} on the host"),
    };
    Err(Refusal::precondition(format!(
        "{who}, so nothing says whether volume {handle} is mounted there: if it is not, remove the disk from the machine on \
         the host"
    )))
}

async fn read(client: &Client, name: &str, handle: &str) -> Result<Option<Node>, Refusal> {
    let node = Api::<Node>::all(client.clone()).get_opt(name).await;
    node.map_err(|error| {
        let doing = format!("read Node {name}, whose kubelet may have volume {handle} mounted");
        Refusal::of_guest(&doing, &error)
    })
}

fn mounted(name: &str, handle: &str) -> Refusal {
    Refusal::precondition(format!(
        "kubelet of Node {name} has volume {handle} mounted, and no VolumeAttachment stands for it: end the Pod there, or, if \
         nothing runs on the Node any more, set the taint {OUT_OF_SERVICE}"
    ))
}

fn has_mounted(node: &Node, handle: &str) -> bool {
    let unique_name = format!("kubernetes.io/csi/{CSI_DRIVER}^{handle}");
    let in_use = node.status.as_ref().and_then(|status| status.volumes_in_use.as_ref());
    in_use.is_some_and(|names| names.contains(&unique_name)) && !is_out_of_service(node)
}

/// Somebody vouches that nothing runs there any more.
fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Whether the kubelet reports, so that what it has mounted is listed. One that was restarted lists of the volumes that it
/// found mounted those that `status.volumesAttached` names: who removes a VolumeAttachment while its unmount hangs is warned in
/// docs/storage.md.
fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
