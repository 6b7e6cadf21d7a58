//! Cluster addresses and node ports for a Service, under the store's lock.

use std::net::IpAddr;

use serde_json::{Value, json};
use sim_apimachinery::status::Cause;

use super::{is_headless, type_of, wants_address, wants_health_port, wants_node_ports};
use crate::rules::{is_unset, items_mut};
use crate::store::addresses::{Addresses, Unavailable, holder};

/// Gives a Service what its type has and it lacks.
///
/// # Errors
/// When a wanted address or port is taken or foreign, or none is left.
pub(crate) fn allocate(
    addresses: &mut Addresses,
    old: Option<&Value>,
    service: &mut Value,
) -> Result<(), Vec<Cause>> {
    let mut causes = vec![];
    if wants_address(service) {
        families(service, &mut causes);
        if causes.is_empty() {
            address(addresses, old, service, &mut causes);
        }
    }
    if causes.is_empty() {
        node_ports(addresses, service, &mut causes);
    }
    if causes.is_empty() && wants_health_port(service) {
        health_port(addresses, service, &mut causes);
    }
    if causes.is_empty() { Ok(()) } else { Err(causes) }
}

/// The server has one family, IPv4.
fn families(service: &mut Value, causes: &mut Vec<Cause>) {
    let spec = &mut service["spec"];
    if spec["ipFamilyPolicy"] == "RequireDualStack" {
        let detail = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], detail));
    }
    for (i, family) in spec["ipFamilies"].as_array().into_iter().flatten().enumerate() {
        if family != "IPv4" {
            let field = format!("spec.ipFamilies[{i}]");
            causes.push(Cause::invalid(&field, family, "not configured on this cluster"));
        }
    }
    if is_unset(&spec["ipFamilyPolicy"]) {
        spec["ipFamilyPolicy"] = "SingleStack".into();
    }
    if spec["ipFamilies"].as_array().is_none_or(Vec::is_empty) {
        spec["ipFamilies"] = json!(["IPv4"]);
    }
}

fn address(addresses: &mut Addresses, old: Option<&Value>, service: &mut Value, causes: &mut Vec<Cause>) {
    if is_headless(service) {
        service["spec"]["clusterIPs"] = json!(["None"]);
        return;
    }
    let wanted = match service["spec"]["clusterIP"].as_str() {
        Some(wanted) => Some(wanted.to_owned()),
        None => service["spec"]["clusterIPs"][0].as_str().map(str::to_owned),
    };
    let given = match wanted {
        Some(wanted) => {
            let kept = old.is_some_and(|old| old["spec"]["clusterIP"] == wanted.as_str());
            if kept {
                return;
            }
            let verdict = wanted.parse::<IpAddr>().map_err(|_| Unavailable::OutOfRange);
            let holder = holder(service);
            verdict.and_then(|ip| addresses.check(ip, &holder).map(|()| ip)).map_err(|why| (wanted, why))
        }
        None => addresses.free().map_err(|why| (String::new(), why)),
    };
    match given {
        Ok(ip) => {
            service["spec"]["clusterIP"] = ip.to_string().into();
            service["spec"]["clusterIPs"] = json!([ip.to_string()]);
        }
        Err((wanted, why)) => {
            let detail = match why {
                Unavailable::Taken => {
                    format!("failed to allocate IP {wanted}: provided IP is already allocated")
                }
                Unavailable::OutOfRange => format!(
                    "failed to allocate IP {wanted}: the provided network does not match the current range"
                ),
                Unavailable::Exhausted => "failed to allocate a serviceIP: range is full".to_owned(),
            };
            causes.push(Cause::invalid("spec.clusterIPs", &json!([wanted]), &detail));
        }
    }
}

fn refused(addresses: &Addresses, field: &str, port: u16, why: Unavailable) -> Cause {
    let range = addresses.node_ports();
    let detail = match why {
        Unavailable::Taken => "provided port is already allocated".to_owned(),
        Unavailable::OutOfRange => format!(
            "provided port is not in the valid range. The range of valid ports is {}-{}",
            range.start(),
            range.end()
        ),
        Unavailable::Exhausted => "failed to allocate a nodePort: range is full".to_owned(),
    };
    Cause::invalid(field, &json!(port), &detail)
}

fn node_ports(addresses: &mut Addresses, service: &mut Value, causes: &mut Vec<Cause>) {
    let allowed = matches!(type_of(service), "NodePort" | "LoadBalancer");
    let automatic = wants_node_ports(service);
    let holder = holder(service);
    let mut chosen: Vec<(u16, String)> = vec![];
    for (i, port) in items_mut(service, "/spec/ports").enumerate() {
        let field = format!("spec.ports[{i}].nodePort");
        let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
        let wanted = port["nodePort"].as_u64();
        let given = match wanted {
            Some(_) if !allowed => {
                causes.push(Cause::forbidden(&field, "may not be used when `type` is 'ClusterIP'"));
                continue;
            }
            Some(wanted) => {
                let number = u16::try_from(wanted).unwrap_or(0);
                let twice = chosen.contains(&(number, protocol.clone()));
                let free = addresses.check_port(number, &protocol, &holder);
                let free = if twice { Err(Unavailable::Taken) } else { free };
                free.map(|()| number).map_err(|why| (number, why))
            }
            None if !automatic => continue,
            None => addresses.free_port(&protocol, &chosen).map_err(|why| (0, why)),
        };
        match given {
            Ok(number) => {
                port["nodePort"] = number.into();
                chosen.push((number, protocol));
            }
            Err((number, why)) => causes.push(refused(addresses, &field, number, why)),
        }
    }
}

fn health_port(addresses: &mut Addresses, service: &mut Value, causes: &mut Vec<Cause>) {
    let holder = holder(service);
    let chosen: Vec<(u16, String)> = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|port| Some((u16::try_from(port["nodePort"].as_u64()?).ok()?, "TCP".to_owned())))
        .collect();
    let wanted = service["spec"]["healthCheckNodePort"].as_u64();
    let given = match wanted.map(|wanted| u16::try_from(wanted).unwrap_or(0)) {
        Some(number) => {
            addresses.check_port(number, "TCP", &holder).map(|()| number).map_err(|why| (number, why))
        }
        None => addresses.free_port("TCP", &chosen).map_err(|why| (0, why)),
    };
    match given {
        Ok(number) => service["spec"]["healthCheckNodePort"] = number.into(),
        Err((number, why)) => causes.push(refused(addresses, "spec.healthCheckNodePort", number, why)),
    }
}
