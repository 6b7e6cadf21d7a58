//! Services that share an address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use harvester_api::{LoadBalancer, WorkloadType, annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{ingress, is_ipv6, is_leased_out, is_wanted, pool_address, pool_addresses};
use crate::user_actions::{Families, ServiceOptions};

/// All Services, and the object of each that has one.
pub(super) struct Sharing<'a> {
    services: BTreeMap<String, &'a Service>,
    objects: BTreeMap<String, &'a LoadBalancer>,
    /// UIDs of Services whose address kube-vip announces and does not write again.
    not_written_again: BTreeSet<String>,
}

/// The primary of a Service and the address that the two share.
pub(super) struct Shared<'a> {
    pub(super) primary: &'a Service,
    pub(super) object: &'a LoadBalancer,
    pub(super) address: Option<String>,
}

impl<'a> Sharing<'a> {
    pub(super) fn of(
        services: &'a [Service],
        objects: &BTreeMap<String, &'a LoadBalancer>,
        not_written_again: BTreeSet<String>,
    ) -> Self {
        let by_name = services.iter().map(|service| (service.name_any(), service)).collect();
        let object = |service: &Service| objects.get(&service.uid().unwrap_or_default()).copied();
        let objects = services.iter().filter_map(|it| Some((it.name_any(), object(it)?))).collect();
        Self { services: by_name, objects, not_written_again }
    }

    /// The primary whose address the Service uses, by its label or as a former one.
    pub(super) fn used_by(&self, service: &Service) -> Option<Shared<'a>> {
        if let Some(former) = self.former(service) {
            return Some(former);
        }
        let name = service.labels().get(labels::PRIMARY_SERVICE)?.strip_prefix("shop.")?;
        let Some(shared) = self.primary(name) else {
            panic!("{} uses the address of {name}, which has none", service.name_any())
        };
        // the server empties the status of a primary that is of another type, and waits for this Service; of one that is wanted
        // again kube-vip goes on to announce the lease, and does not write it a second time
        let uid = shared.primary.uid().unwrap_or_default();
        let is_unwritten = ingress(shared.primary).is_empty() && self.not_written_again.contains(&uid);
        let is_left = is_leased_out(shared.object) && (!is_wanted(shared.primary) || is_unwritten);
        let asked =
            service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).filter(|_| is_left).cloned();
        Some(Shared { address: shared.address.or(asked), ..shared })
    }

    /// The primary whose address the Service shows, with an empty label: it asks for the address of another primary that it
    /// cannot share, and the former one carries its ports on.
    fn former(&self, service: &Service) -> Option<Shared<'a>> {
        let shown = ingress(service);
        let waits = asked(service).is_some() && service.labels().get(labels::PRIMARY_SERVICE)?.is_empty();
        let of_others = self.objects.keys().filter(|name| **name != service.name_any());
        let mut primaries = of_others.filter_map(|name| self.primary(name));
        primaries.find(|it| {
            waits
                && it.object.spec.workload() == WorkloadType::Vm
                && it.address.as_ref().is_some_and(|address| shown.contains(address))
        })
    }

    fn primary(&self, name: &str) -> Option<Shared<'a>> {
        let (primary, object) = (*self.services.get(name)?, *self.objects.get(name)?);
        let address = match object.spec.workload() {
            // who shares an address asks for IPv4
            _ if !is_leased_out(object) => pool_address(object).filter(|address| !is_ipv6(address)),
            WorkloadType::Vm => object.status.as_ref().map(|status| status.address.clone()),
            WorkloadType::Cluster => ingress(primary).first().cloned(),
        };
        // a primary that requires both families has neither while one is missing, unless it had that one before, or is on
        // the host data path, where there is no second one
        let lacks_one = object.spec.workload() == WorkloadType::Cluster
            && ServiceOptions::asked_by(primary).families == Families::Required
            && !primary.annotations().contains_key(annotations::KUBE_VIP_LOADBALANCER_IPS)
            && pool_addresses(object).len() < 2;
        // nor has one with a demand that is not met, unless it had another address before; one that is no load balancer any more
        // demands nothing
        let address = address.filter(|address| {
            let is_withheld =
                is_wanted(primary) && demands_another(primary, address) && ingress(primary).is_empty();
            !address.is_empty() && !lacks_one && !is_withheld
        });
        Some(Shared { primary, object, address })
    }

    /// Whether other Services use the address of this one.
    pub(super) fn is_used(&self, primary: &Service) -> bool {
        let label = format!("shop.{}", primary.name_any());
        self.services.values().any(|it| {
            it.labels().get(labels::PRIMARY_SERVICE) == Some(&label)
                || self.former(it).is_some_and(|of| of.primary.name_any() == primary.name_any())
        })
    }

    /// # Panics
    /// Where the Service asks for the address of another, does not have it, and nothing is in the way.
    pub(super) fn must_not_wait(&self, service: &Service) {
        let Some(end) = self.end(service) else { return };
        let Some(Shared { primary, object, address: Some(address) }) = self.primary(end) else { return };
        let address = &address;
        let label = format!("shop.{end}");
        let has_it = |it: &Service| it.labels().get(labels::PRIMARY_SERVICE) == Some(&label);
        if has_it(service) {
            return;
        }
        let wanted = ports(service);
        let mut group = self.services.values().filter(|it| it.name_any() == end || has_it(it));
        let conflicts = group.any(|it| !ports(it).is_disjoint(&wanted)) || demands_another(service, address);
        let own = self.objects.get(&service.name_any());
        let annotation = |key: &str| service.annotations().get(key).map_or("", String::as_str);
        let host = object.spec.workload() == WorkloadType::Vm;
        let settled = [
            annotations::KUBE_VIP_VIP_HOST,
            annotations::KUBE_VIP_LOADBALANCER_IPS,
            annotations::ALLOCATED_ADDRESS,
        ];
        let is_host = own.map_or(annotation(annotations::RECORDED_DATA_PATH) == "host", |own| {
            own.spec.workload() == WorkloadType::Vm
        });
        let asks_host = [annotations::DATA_PATH, annotations::HEALTH_CHECK_PORT]
            .iter()
            .any(|key| !annotation(key).is_empty());
        let hindered = if host {
            let local = service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref())
                == Some("Local");
            local
                || !(is_host || asks_host)
                || settled.iter().any(|key| !annotation(key).is_empty())
                || !annotation(annotations::SERVICE_NETWORK).is_empty()
        } else {
            let network = annotation(annotations::SERVICE_NETWORK);
            is_host
                || asks_host
                || !network.is_empty()
                    && object.annotations().get(annotations::LB_NETWORK_REQUEST).map(String::as_str)
                        != Some(network)
        };
        assert!(
            conflicts || hindered,
            "Service {} could share {address} with {}, and does not",
            service.name_any(),
            primary.name_any()
        );
    }

    /// The Service at the end of the chain, if it comes to a good one.
    fn end(&self, service: &Service) -> Option<&'a str> {
        let mut next = asked(service)?.to_owned();
        let mut passed = BTreeSet::from([service.name_any()]);
        while passed.insert(next.clone()) {
            let (name, found) =
                self.services.get_key_value(&next).map(|(name, found)| (name.clone(), *found))?;
            if !is_wanted(found) {
                return None;
            }
            match asked(found) {
                None => return found.metadata.name.as_deref().filter(|it| *it == name),
                Some(further) => further.clone_into(&mut next),
            }
        }
        None
    }
}

/// The name of the Service whose address this one asks for.
pub(super) fn asked(service: &Service) -> Option<&str> {
    service.annotations().get(annotations::PRIMARY_SERVICE)?.strip_prefix("shop/")
}

/// Whether the Service demands another address than this.
fn demands_another(service: &Service, address: &str) -> bool {
    service.annotations().get(annotations::SERVICE_IP).is_some_and(|demanded| demanded != address)
}

/// # Panics
/// Where two Services have one port at one address.
pub(super) fn nobody_shares_a_port(published: &BTreeMap<IpAddr, Vec<&Service>>) {
    for (address, services) in published {
        let mut holders = BTreeMap::new();
        for service in services {
            for port in ports(service) {
                let name = service.name_any();
                let other = holders.insert(port.clone(), name.clone());
                assert_eq!(other, None, "port {port:?} at {address} is {name}'s too");
            }
        }
    }
}

fn ports(service: &Service) -> BTreeSet<(i32, Option<String>)> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.map(|port| (port.port, port.protocol.clone())).collect()
}
