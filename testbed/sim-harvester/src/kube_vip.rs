//! kube-vip, simulated: the addresses that it announces for a Service, and what it writes to the Service.
//!
//! One kube-vip runs in the guest, one in Harvester. Releases differ ([`Release`]). [`decide`] chooses the next step from
//! one event of a Service; it writes nothing, waits for nothing and knows no DHCP.
//!
//! Up to 1.2.3 kube-vip passes over every event, the deletion included, of a Service whose type is not LoadBalancer or
//! that carries `kube-vip.io/ignore: "true"` (`watch_services.go`, later `processor.go`; kube-vip issue 1700, Harvester
//! issue 11440). An address that it announced before such a change stays on its interface for ever. It tells Services
//! apart by UID, so a Service that is made again under the name does not take the address away either. The world that
//! [`crate::SimHarvester::announced`] shows has these stale addresses, marked [`passed_over`](crate::Vip::passed_over).

pub(crate) mod controller;
mod publish;
mod release;

use std::net::IpAddr;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::ResourceExt;

use harvester_api::annotations::{KUBE_VIP_IGNORE, KUBE_VIP_LOADBALANCER_IPS};

use crate::datapath::endpoints_of;

pub use release::Release;

/// The only load balancer class that kube-vip serves besides none.
pub const CLASS: &str = "kube-vip.io/kube-vip-class";
/// Allows announcing without endpoints from 1.2.1 on, for external traffic policy Cluster only.
pub const WITHOUT_ENDPOINTS: &str = "kube-vip.io/allow-reconcile-without-endpoints";

/// The addresses that a Service asks kube-vip to announce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// These addresses, each once, in the order in which the Service names them: another order is another request
    /// (`serviceChanged`, `processor.go`), and the status has this one.
    Addresses(Vec<IpAddr>),
    /// An address to be leased: the Service asks for `0.0.0.0`.
    Dhcp,
}

/// One event of a Service, as kube-vip sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The Service; of a deletion, its last version.
    pub service: &'a Service,
    /// The event is the deletion.
    pub deleted: bool,
    /// The slices that name the Service.
    pub slices: &'a [&'a EndpointSlice],
    /// The node whose kube-vip leads.
    pub node: &'a str,
    /// kube-vip announces this for the Service's UID until now.
    pub previous: Option<&'a Wanted>,
}

/// kube-vip's answer to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// kube-vip goes on as before.
    Keep,
    /// kube-vip does not look at the Service: it announces nothing anew, writes nothing, and withdraws nothing.
    PassOver {
        /// kube-vip answers for no address while the Service has no endpoints, and does again when it has some.
        silent: bool,
    },
    /// kube-vip announces this and nothing else.
    Announce(Wanted),
    /// kube-vip announces nothing any more. It clears nothing that it wrote to the Service.
    Withdraw,
}

/// The step that kube-vip of this release takes.
pub fn decide(seen: &Seen<'_>, release: Release) -> Step {
    let withdraw = || if seen.previous.is_some() { Step::Withdraw } else { Step::Keep };
    let silent = release >= Release::From12 && !has_endpoints(seen);
    if is_passed_over(seen.service) {
        return Step::PassOver { silent };
    }
    if seen.deleted {
        return withdraw();
    }
    let class = seen.service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    if class.is_some_and(|class| !class.is_empty() && class != CLASS) {
        return Step::PassOver { silent };
    }
    if silent {
        return withdraw();
    }
    match wanted(seen.service, release) {
        None => Step::Keep,
        Some(wanted) if seen.previous == Some(&wanted) => Step::Keep,
        Some(wanted) => Step::Announce(wanted),
    }
}

/// kube-vip looks at no event of such a Service.
fn is_passed_over(service: &Service) -> bool {
    let service_type = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    let ignored = service.annotations().get(KUBE_VIP_IGNORE).is_some_and(|value| value == "true");
    service_type != Some("LoadBalancer") || ignored
}

/// The first source that names an address decides.
fn wanted(service: &Service, release: Release) -> Option<Wanted> {
    let annotation = service.annotations().get(KUBE_VIP_LOADBALANCER_IPS);
    let annotation = addresses(annotation.map(String::as_str).into_iter().flat_map(|list| list.split(',')));
    let spec = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let spec = addresses(spec);
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    let status = addresses(ingress.filter_map(|ingress| ingress.ip.as_deref()));
    let order = match release {
        Release::UpTo06 => vec![annotation, spec],
        Release::From07 => vec![annotation, status, spec],
        Release::From09 | Release::From12 => {
            // an address of the other family is no contradiction
            let disagrees =
                |wish: &IpAddr| status.iter().any(|it| it.is_ipv4() == wish.is_ipv4() && it != wish);
            let spec_first = if spec.iter().any(disagrees) { spec.clone() } else { Vec::new() };
            vec![annotation, spec_first, status, spec]
        }
    };
    let first = order.into_iter().find(|addresses| !addresses.is_empty())?;
    Some(if first.iter().any(IpAddr::is_unspecified) { Wanted::Dhcp } else { Wanted::Addresses(first) })
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in texts.into_iter().filter_map(|text| text.trim().parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

fn has_endpoints(seen: &Seen<'_>) -> bool {
    let (all, local) = endpoints_of(seen.slices.iter().copied(), seen.node);
    let policy = seen.service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref());
    match policy {
        Some("Local") => local > 0,
        _ => {
            all > 0 || seen.service.annotations().get(WITHOUT_ENDPOINTS).is_some_and(|value| value == "true")
        }
    }
}

#[cfg(test)]
mod tests;
