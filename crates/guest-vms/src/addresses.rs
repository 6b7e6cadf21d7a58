//! The IP addresses of a Node: a decision about what its VM reports, what its annotations say, and the flags.
//!
//! One network of the VM counts, and its order. An address that no node can have is left out, and so is one that a
//! Service announces. InternalIPs are the kubelet's own choice, else what is in `--node-ip-cidr`, else the first address
//! of each family, and one that the Node has stays (docs/contract/cloud-controller-manager.md#8.6).

mod annotations;
mod report;

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::ResourceExt;

pub use self::report::Report;
use self::{
    annotations::Annotations,
    report::{LeftOut, Network, listed},
};
pub(crate) use self::{annotations::shown, report::ips};
use crate::Vm;

/// What flags say about the addresses of Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// `--management-network`, with namespace.
    pub management_network: Option<String>,
    /// `--node-ip-cidr`: where InternalIPs are. Empty: anywhere.
    pub prefixes: Vec<IpNet>,
    /// `--node-exclude-ip-ranges`: no ExternalIPs are there. Without `prefixes` it means nothing.
    pub excluded: Vec<IpNet>,
    /// `--disable-annotation-alpha-provided-ip-addr`: the annotations of Nodes mean nothing.
    pub ignore_annotations: bool,
}

/// The addresses of a Node, and what a person should know about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAddresses {
    /// InternalIPs and ExternalIPs in the order of the Node's list. Empty: nothing can be said now.
    pub list: Vec<NodeAddress>,
    /// Why there is none, or no InternalIP.
    pub problem: Option<AddressProblem>,
    /// What the annotations of the Node say in vain.
    pub faults: Vec<String>,
}

/// Why a VM gives its Node no address, or no InternalIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressProblem {
    /// With the next step.
    pub sentence: String,
    /// A VM that starts or stops is in this state for a while.
    pub is_passing: bool,
}

impl AddressProblem {
    fn passing(sentence: String) -> Self {
        Self { sentence, is_passing: true }
    }

    fn lasting(sentence: String) -> Self {
        Self { sentence, is_passing: false }
    }
}

impl AddressRules {
    /// The addresses of `node`, whose VM is `vm`. An address for which `is_announced` holds belongs to a Service; it is
    /// told too whether the Node has the address as InternalIP.
    pub fn addresses(
        &self,
        node: &Node,
        vm: &Vm,
        is_announced: impl Fn(IpAddr, bool) -> bool,
    ) -> NodeAddresses {
        let annotations =
            if self.ignore_annotations { Annotations::default() } else { Annotations::of(node) };
        let (list, problem) = match self.decide(node, vm, &annotations, is_announced) {
            Ok((list, problem)) => (list, problem),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        NodeAddresses { list, problem, faults: annotations.faults }
    }

    fn decide(
        &self,
        node: &Node,
        vm: &Vm,
        annotations: &Annotations,
        is_announced: impl Fn(IpAddr, bool) -> bool,
    ) -> Result<(Vec<NodeAddress>, Option<AddressProblem>), AddressProblem> {
        let provided = annotations.provided.as_ref().map_err(|why| AddressProblem::lasting(why.clone()))?;
        let report = vm.report.as_ref().ok_or_else(|| {
            AddressProblem::passing(format!(
                "VM {} of node {} is not running: start it",
                vm.name,
                node.name_any()
            ))
        })?;
        let network = self.network(&vm.name, report, provided)?;
        let present = internal_ips(node);
        // an address that the kubelet serves at is the node's, whoever announces it too
        let (usable, left_out) =
            network.usable(|ip| !provided.contains(&ip) && is_announced(ip, present.contains(&ip)));
        if usable.is_empty() {
            return Err(nothing_usable(&vm.name, report, network, &left_out));
        }

        if let Some(missing) = provided.iter().find(|ip| !usable.contains(ip)) {
            return Err(AddressProblem::lasting(format!(
                "the kubelet of node {} serves at {missing} (--node-ip), which VM {} does not report on {} ({}): set \
                 --management-network to the network of that address, or correct --node-ip",
                node.name_any(),
                vm.name,
                network.called(),
                listed(&usable)
            )));
        }
        let (by_kubelet, by_prefix) = (!provided.is_empty(), !self.prefixes.is_empty());
        let is_candidate = |ip: &IpAddr| {
            if by_kubelet { provided.contains(ip) } else { !by_prefix || is_in(&self.prefixes, ip) }
        };
        let hides = |ip: &IpAddr| {
            if by_prefix && !by_kubelet { is_in(&self.excluded, ip) } else { annotations.hidden.contains(ip) }
        };
        // one that the Node has stays while it is reported: the first one may be a Service's that is gone, and whose
        // address kube-vip has not taken away yet
        let first = |of: fn(&IpAddr) -> bool| {
            let mut candidates = usable.iter().copied().filter(|ip| of(ip) && is_candidate(ip));
            candidates.clone().find(|ip| present.contains(ip)).or_else(|| candidates.next())
        };
        let internal = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)];
        let is_internal = |ip: &IpAddr| internal.contains(&Some(*ip));
        let others = usable.iter().filter(|ip| !provided.contains(ip));
        let shown = provided.iter().chain(others).filter(|ip| is_internal(ip) || !hides(ip));
        let list: Vec<_> = shown
            .map(|ip| NodeAddress {
                type_: if is_internal(ip) { INTERNAL } else { EXTERNAL }.to_owned(),
                address: ip.to_string(),
            })
            .collect();
        let problem = (internal == [None, None]).then(|| {
            AddressProblem::lasting(format!(
                "--node-ip-cidr ({}) contains no address that VM {} reports on {} ({}): correct the flag",
                listed(&self.prefixes),
                vm.name,
                network.called(),
                listed(&usable)
            ))
        });
        Ok((list, problem))
    }

    /// The management network; without that flag the network where the kubelet serves, else the first one that is not
    /// the pod network, else the pod network (docs/contract/cloud-controller-manager.md#N4).
    fn network<'a>(
        &self,
        vm: &str,
        report: &'a Report,
        provided: &[IpAddr],
    ) -> Result<&'a Network, AddressProblem> {
        let networks = &report.networks;
        if let Some(wanted) = &self.management_network {
            return networks.iter().find(|network| network.name.as_ref() == Some(wanted)).ok_or_else(|| {
                let called: Vec<_> = networks.iter().map(Network::called).collect();
                AddressProblem::lasting(format!(
                    "VM {vm} has no network {wanted} (it has {}): correct --management-network, or give the VM an \
                     interface there",
                    if called.is_empty() { "none".to_owned() } else { listed(&called) }
                ))
            });
        }
        let served = networks.iter().find(|network| provided.iter().any(|ip| network.reports(*ip)));
        let first = || networks.iter().find(|network| network.name.is_some());
        served
            .or_else(first)
            .or_else(|| networks.first())
            .ok_or_else(|| AddressProblem::lasting(format!("VM {vm} has no network: give it an interface")))
    }
}

/// The types of a Node's IP addresses.
const INTERNAL: &str = "InternalIP";
const EXTERNAL: &str = "ExternalIP";

fn internal_ips(node: &Node) -> Vec<IpAddr> {
    let list = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    list.iter().filter(|it| it.type_ == INTERNAL).filter_map(|it| report::read(&it.address)).collect()
}

fn is_in(ranges: &[IpNet], ip: &IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(ip))
}

fn nothing_usable(vm: &str, report: &Report, network: &Network, left_out: &[LeftOut]) -> AddressProblem {
    let on = network.called();
    AddressProblem::passing(if !left_out.is_empty() {
        format!(
            "VM {vm} reports no address for a node on {on}, only {}: give it one, by DHCP or in the VM",
            listed(left_out)
        )
    } else if report.has_agent {
        format!(
            "the guest agent of VM {vm} reports no address on {on}: give the VM one, by DHCP or in the VM"
        )
    } else {
        format!("the guest agent of VM {vm} is not connected: install and start qemu-guest-agent in the VM")
    })
}

#[cfg(test)]
mod tests;
