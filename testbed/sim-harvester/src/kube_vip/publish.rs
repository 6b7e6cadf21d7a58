//! The annotations and the status that kube-vip writes to a Service.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use dhcp_client::Mac;
use harvester_api::annotations::{KUBE_VIP_HWADDR, KUBE_VIP_REQUESTED_IP, KUBE_VIP_VIP_HOST};

/// The node that announces, and with DHCP the identity by which the address can be leased again.
pub(super) fn annotations(node: &str, leased_by: Option<Mac>, addresses: &[IpAddr]) -> Value {
    let mut annotations = json!({KUBE_VIP_VIP_HOST: node});
    if let Some(mac) = leased_by {
        annotations[KUBE_VIP_HWADDR] = mac.to_string().into();
        annotations[KUBE_VIP_REQUESTED_IP] = addresses.first().map(IpAddr::to_string).into();
    }
    annotations
}

/// `status.loadBalancer.ingress` for these addresses.
pub(super) fn ingress(service: &Service, addresses: &[IpAddr]) -> Value {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports: Vec<_> = ports
        .map(|port| json!({"port": port.port, "protocol": port.protocol.as_deref().unwrap_or("TCP")}))
        .collect();
    addresses.iter().map(|address| json!({"ip": address, "ports": ports})).collect()
}

/// Whether the status names exactly these addresses.
pub(super) fn has_ingress(service: &Service, addresses: &[IpAddr]) -> bool {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    let named: Vec<_> = ingress.map(|ingress| ingress.ip.as_deref().unwrap_or_default().to_owned()).collect();
    named == addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
}
