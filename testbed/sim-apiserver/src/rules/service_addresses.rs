//! Cluster addresses and node ports for a Service, under the store's lock.

use std::net::IpAddr;

use serde_json::{Value, json};
use sim_apimachinery::json::{elements, items_mut, set_default};
use sim_apimachinery::service::{is_headless, wants_address, wants_health_port, wants_node_ports};
use sim_apimachinery::status::Cause;

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
        allocation.families(service);
        if allocation.causes.is_empty() {
            allocation.address(old, service);
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
    /// The server has one family, IPv4.
    fn families(&mut self, service: &mut Value) {
        let spec = &mut service["spec"];
        set_default(spec, "ipFamilyPolicy", "SingleStack");
        let policy = &spec["ipFamilyPolicy"];
        let families = elements(&spec["ipFamilies"]);
        if policy == "RequireDualStack" {
            let detail = "this cluster is not configured for dual-stack services";
            self.causes.push(Cause::invalid("spec.ipFamilyPolicy", policy, detail));
        }
        if policy == "SingleStack" && families.len() > 1 {
            let detail =
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
            self.causes.push(Cause::invalid("spec.ipFamilyPolicy", policy, detail));
        } else if let Some(i) = families.iter().position(|family| family != "IPv4") {
            let field = format!("spec.ipFamilies[{i}]");
            self.causes.push(Cause::invalid(&field, &families[i], "not configured on this cluster"));
        }
        if families.is_empty() {
            spec["ipFamilies"] = json!(["IPv4"]);
        }
    }

    fn address(&mut self, old: Option<&Value>, service: &mut Value) {
        if is_headless(service) {
            service["spec"]["clusterIPs"] = json!(["None"]);
            return;
        }
        let given = match service["spec"]["clusterIP"].as_str() {
            Some(wanted) if old.is_some_and(|old| old["spec"]["clusterIP"] == wanted) => return,
            Some(wanted) => self.wanted_address(wanted).map_err(|(field, why)| {
                let detail = match why {
                    Some(why) => format!("failed to allocate IP {wanted}: {why}"),
                    None => "IPv6 is not configured on this cluster".to_owned(),
                };
                Cause::invalid(field, &json!([wanted]), &detail)
            }),
            None => self.addresses.free().map_err(|_| {
                let detail = "failed to allocate a serviceIP: range is full";
                Cause::invalid("spec.clusterIPs", &json!([""]), detail)
            }),
        };
        match given {
            Ok(ip) => {
                service["spec"]["clusterIP"] = ip.to_string().into();
                service["spec"]["clusterIPs"] = json!([ip.to_string()]);
            }
            Err(cause) => self.causes.push(cause),
        }
    }

    /// The field and, except for a family that is not there, the reason of a refusal.
    fn wanted_address(&self, wanted: &str) -> Result<IpAddr, (&'static str, Option<String>)> {
        const FIELD: &str = "spec.clusterIPs";
        let range = self.addresses.network();
        let foreign = format!(
            "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {range}"
        );
        let Ok(ip) = wanted.parse::<IpAddr>() else { return Err((FIELD, Some(foreign))) };
        if ip.is_ipv6() {
            return Err(("spec.clusterIPs[0]", None));
        }
        match self.addresses.check(ip, &self.holder) {
            Ok(()) => Ok(ip),
            Err(Unavailable::Taken) if self.dry_run => Ok(ip),
            Err(Unavailable::Taken) => Err((FIELD, Some("provided IP is already allocated".to_owned()))),
            Err(Unavailable::OutOfRange | Unavailable::Exhausted) => Err((FIELD, Some(foreign))),
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
