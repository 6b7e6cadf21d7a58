//! The host path: what a Service and the cluster must bring along, and how the object carries the traffic.

use cloud_provider::Notice;
use harvester_api::annotations;
use kube::ResourceExt;

use super::{NO_NODES, Sight};
use crate::{
    balancers::{
        object::{Carried, listeners},
        selector::select,
    },
    wishes::{Fault, health_check},
};

/// What the host path needs of a Service and of the cluster; faults and remarks are added where they belong.
pub(super) fn carried(
    sight: &Sight<'_>,
    exists: bool,
    faults: &mut Vec<Fault>,
    notices: &mut Vec<Notice>,
) -> Option<Carried> {
    let Sight { identity, service, wishes, backends, .. } = sight;
    let spec = service.spec.as_ref();
    let own = faults.len();
    let listeners = listeners(service).map_err(|found| faults.extend(found)).ok();
    let check = health_check(service).map_err(|found| faults.extend(found)).ok();
    if !wishes.network.is_empty() {
        let sentence = format!(
            "annotation {} is not for the data path host, which speaks on the management network: remove it, or use data-path: guest",
            annotations::SERVICE_NETWORK
        );
        faults.push(Fault::new("NetworkNotSupported", sentence));
    }
    if wishes.only_ipv6 {
        faults.push(Fault::new("IPFamilyNotSupported", "the data path host has IPv4 addresses only"));
    }
    if spec.and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local") {
        if matches!(check, Some(None)) {
            let sentence = format!(
                "externalTrafficPolicy Local needs a health check on the data path host: set annotation {}",
                annotations::HEALTH_CHECK_PORT
            );
            faults.push(Fault::new("HealthCheckNeeded", sentence));
        } else {
            let sentence =
                "externalTrafficPolicy Local does not preserve the client's address on the data path host";
            notices.push(Notice::normal("ClientAddressNotPreserved", sentence));
        }
    }
    let has = |key: &str| service.annotations().get(key).is_some_and(|value| !value.is_empty());
    let shown = has(annotations::KUBE_VIP_VIP_HOST);
    if exists && shown {
        let sentence = "kube-vip in the guest announces this address too and does not let go of it: restart kube-vip, or \
            create the Service anew";
        notices.push(Notice::warning("VipAnnouncedTwice", sentence));
    } else if !exists && (shown || has(annotations::KUBE_VIP_LOADBALANCER_IPS)) {
        let sentence = "kube-vip in the guest has announced this Service and would announce its address a second time: \
            create the Service anew for the data path host";
        faults.push(Fault::new("AnnouncedInGuest", sentence));
    }

    let backends = backends.as_ref()?;
    if !backends.nodes_without_vm.is_empty() {
        let sentence =
            format!("no VM is known for nodes {}: they get no traffic", backends.nodes_without_vm.join(", "));
        notices.push(Notice::warning("NodeWithoutVM", sentence));
    }
    if backends.eligible.is_empty() {
        if exists {
            notices.push(Notice::warning("UnAvailableLoadBalancer", NO_NODES));
        } else {
            faults.push(Fault::new("UnAvailableLoadBalancer", NO_NODES));
        }
        return None;
    }
    let selector = select(&identity.cluster, &backends.eligible, &backends.all).map_err(|vms| {
        let sentence = format!(
            "VMs {} have neither label guestcluster.harvesterhci.io/name={} nor harvesterhci.io/vmName: label them and their templates in Harvester",
            vms.join(", "),
            identity.cluster.name()
        );
        faults.push(Fault::new("NodesNotSelectable", sentence));
    });
    let carried = Carried::Host { listeners: listeners?, selector: selector.ok()?, health_check: check? };
    // an object that exists follows what can be followed; a new one is made only without fault
    (exists && faults.len() == own || faults.is_empty()).then_some(carried)
}
