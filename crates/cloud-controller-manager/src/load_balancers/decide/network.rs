//! The network of a Service on the guest datapath: kube-vip is told its interface together with the address.
//!
//! On another interface the address would be one of the wrong network, so it is not handed over while there is none. A
//! Service that was handed its address keeps it: a guest agent that reports something else for a moment, or an older
//! version that knew no interfaces, takes it from nobody. Before the VMs and the ConfigMap were listed, and while the VM of
//! a Node that just joined is looked for, nobody can say whether there is one: the address waits then too.

use cloud_provider::Annotations;
use controller_kit::PendingEvent;
use harvester_api::{
    annotations,
    names::{KUBE_SYSTEM, NETWORKS_CONFIG_MAP},
};

use super::{Seen, families::served, handover::given};
use crate::networks::Interface;

/// Whether the address waits for its interface.
pub(super) fn withholds(seen: &Seen<'_>) -> bool {
    let object = seen.load_balancer.object().map(|object| &**object);
    matches!(seen.interface, Interface::Missing(_) | Interface::NotYetKnown)
        && object.is_some_and(|object| !served(seen.service, object).is_empty())
        && !has_address(seen)
}

/// Whether kube-vip was asked for an address of the Service.
fn has_address(seen: &Seen<'_>) -> bool {
    given(seen.service, seen.load_balancer.object().map(|object| &**object)).is_some()
}

/// Adds the interface to the annotations for kube-vip, or takes the address out of them.
pub(super) fn bind(seen: &Seen<'_>, annotations: &mut Annotations) {
    let asked = annotations.get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    if !matches!(asked, Some(Some(_))) {
        return;
    }
    if withholds(seen) {
        annotations.remove(annotations::KUBE_VIP_LOADBALANCER_IPS);
        annotations.remove(annotations::ALLOCATED_ADDRESS);
    } else if let Interface::Named(name) = &seen.interface {
        // one that the Go program wrote, and for the same network nobody else
        annotations.insert(annotations::KUBE_VIP_SERVICE_INTERFACE.to_owned(), Some(name.clone()));
    }
}

/// The Event about a network without interface.
pub(super) fn told(seen: &Seen<'_>) -> Option<PendingEvent> {
    let sentence = match &seen.interface {
        Interface::NotAsked | Interface::Named(_) | Interface::NotYetKnown => return None,
        Interface::Missing(why) if !has_address(seen) => {
            format!("the Service gets no address until its network has an interface: {why}")
        }
        Interface::Missing(why) => {
            format!("the Service stays on the interface that it has: {why}")
        }
        Interface::OnNoVm(_) | Interface::Unknown if !has_address(seen) => return None,
        Interface::OnNoVm(why) => format!("kube-vip takes its own interface: {why}"),
        Interface::Unknown => {
            let config_map = format!("ConfigMap {KUBE_SYSTEM}/{NETWORKS_CONFIG_MAP}");
            format!(
                "neither the VMs nor {config_map} name the interface of the Service's network, so kube-vip takes its own: \
                 start the guest agents, or name it in that ConfigMap"
            )
        }
    };
    Some(PendingEvent::warning("NetworkWithoutInterface", sentence))
}

#[cfg(test)]
mod tests;
