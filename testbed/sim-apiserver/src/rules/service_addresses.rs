//! Cluster addresses and node ports for a Service, under the store's lock.

use std::net::IpAddr;

use serde_json::{Value, json};
use sim_apimachinery::json::{elements, items_mut};
use sim_apimachinery::service::{is_headless, wants_address, wants_health_port, wants_node_ports};
use sim_apimachinery::status::Cause;

use super::service_families;
use crate::store::addresses::{Addresses, Unavailable, holder};

/// Gives a Service what its type has and it lacks. A dry run does not look at what others hold, nor (as in a real server)
/// at the range of wanted ports.
///
/// # Errors
/// When a wanted address or port is taken or foreign, or none is left.
pub(crate) fn allocate(
    addresses: &mut Addresses,
    old: Option<&Value>,
    service: &mut Value,
    dry_run: bool,
) -> Result<(), Vec<Cause>> {
    let mut allocation = Allocation { addresses, holder: holder(service), dry_run, causes: vec![] };
    if wants_address(service) {
        let families = allocation.addresses.families();
        match service_families::settle(&families, old, service) {
            Ok(()) => allocation.address(old, service),
            Err(causes) => allocation.causes = causes,
        }
    }
    if allocation.causes.is_empty() {
        allocation.node_ports(service);
    }
    if allocation.causes.is_empty() && wants_health_port(service) {
        allocation.health_port(service);
    }
    if allocation.causes.is_empty() { Ok(()) } else { Err(allocation.causes) }
}

/// The addresses and ports that one Service gets.
struct Allocation<'a> {
    addresses: &'a mut Addresses,
    holder: String,
    dry_run: bool,
    causes: Vec<Cause>,
}

impl Allocation<'_> {
    fn address(&mut self, old: Option<&Value>, service: &mut Value) {
        if is_headless(service) {
            service["spec"]["clusterIPs"] = json!(["None"]);
            return;
        }
        let had =
            old.filter(|old| wants_address(old)).map_or(&[][..], |old| elements(&old["spec"]["clusterIPs"]));
        let families = elements(&service["spec"]["ipFamilies"]).iter().map(is_ipv6);
        let mut addresses = elements(&service["spec"]["clusterIPs"]).to_vec();
        let families: Vec<_> = families.collect();
        // what is to be given yet is told as an empty text
        addresses.resize(families.len().max(addresses.len()), "".into());
        for (i, ipv6) in families.into_iter().enumerate() {
            if had.get(i) == Some(&addresses[i]) {
                continue;
            }
            let given = match addresses[i].as_str().filter(|wanted| !wanted.is_empty()) {
                Some(wanted) => self
                    .wanted_address(wanted, ipv6)
                    .map_err(|why| format!("failed to allocate IP {wanted}: {why}")),
                None => self
                    .addresses
                    .free(ipv6)
                    .map_err(|_| "failed to allocate a serviceIP: range is full".to_owned()),
            };
            match given {
                Ok(ip) => addresses[i] = ip.to_string().into(),
                Err(detail) => {
                    self.causes.push(Cause::invalid("spec.clusterIPs", &json!(addresses), &detail));
                    return;
                }
            }
        }
        service["spec"]["clusterIP"] = addresses[0].clone();
        service["spec"]["clusterIPs"] = json!(addresses);
    }

    /// The address, or why it cannot be had.
    fn wanted_address(&self, wanted: &str, ipv6: bool) -> Result<IpAddr, String> {
        // kube-apiserver looks an address up among its ranges, but for a dry run in the one of its family
        let foreign = if self.dry_run {
            let range = self.addresses.network(ipv6).unwrap_or_default();
            format!("the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {range}")
        } else {
            "the provided network does not match the current range".to_owned()
        };
        let Ok(ip) = wanted.parse::<IpAddr>() else { return Err(foreign) };
        match self.addresses.check(ip, &self.holder) {
            Ok(()) => Ok(ip),
            Err(Unavailable::Taken) if self.dry_run => Ok(ip),
            Err(Unavailable::Taken) => Err("provided IP is already allocated".to_owned()),
            Err(Unavailable::OutOfRange | Unavailable::Exhausted) => Err(foreign),
        }
    }

    fn node_ports(&mut self, service: &mut Value) {
        let automatic = wants_node_ports(service);
        let mut chosen: Vec<(u16, String)> = vec![];
        for (i, port) in items_mut(service, "/spec/ports").enumerate() {
            let field = format!("spec.ports[{i}].nodePort");
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            if port["nodePort"].is_null() && !automatic {
                continue;
            }
            if let Some(number) = self.port(&field, &mut port["nodePort"], &protocol, &chosen) {
                chosen.push((number, protocol));
            }
        }
    }

    fn health_port(&mut self, service: &mut Value) {
        let ports = elements(&service["spec"]["ports"]).iter();
        let chosen: Vec<(u16, String)> = ports
            .filter_map(|port| Some((u16::try_from(port["nodePort"].as_u64()?).ok()?, "TCP".to_owned())))
            .collect();
        let field = "spec.healthCheckNodePort";
        let wanted = service["spec"]["healthCheckNodePort"].is_number();
        let chosen = if wanted { vec![] } else { chosen };
        self.port(field, &mut service["spec"]["healthCheckNodePort"], "TCP", &chosen);
    }

    /// The wanted port, or a free one where none is wanted; written to its place.
    fn port(
        &mut self,
        field: &str,
        place: &mut Value,
        protocol: &str,
        chosen: &[(u16, String)],
    ) -> Option<u16> {
        let given = if place.is_null() {
            self.addresses.free_port(protocol, chosen)
        } else {
            let number = place.as_u64().and_then(|wanted| u16::try_from(wanted).ok()).unwrap_or(0);
            if chosen.iter().any(|(other, of)| *other == number && of == protocol) {
                Err(Unavailable::Taken)
            } else if self.dry_run {
                return Some(number);
            } else {
                self.addresses.check_port(number, protocol, &self.holder).map(|()| number)
            }
        };
        let range = self.addresses.node_ports();
        let detail = match given {
            Ok(number) => {
                *place = number.into();
                return Some(number);
            }
            Err(Unavailable::Taken) => "provided port is already allocated".to_owned(),
            Err(Unavailable::OutOfRange) => format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                range.start(),
                range.end()
            ),
            Err(Unavailable::Exhausted) => "failed to allocate a nodePort: range is full".to_owned(),
        };
        self.causes.push(Cause::invalid(field, place, &detail));
        None
    }
}

fn is_ipv6(family: &Value) -> bool {
    family == "IPv6"
}
