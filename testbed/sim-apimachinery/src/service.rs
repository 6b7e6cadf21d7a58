//! Rules that follow from a Service's type.
//!
//! `ExternalName` has no address, `ClusterIP` one, `NodePort` ports of the nodes besides, `LoadBalancer` (unless told
//! otherwise) those too, and with local traffic policy a port for health checks.

use serde_json::Value;

/// The type, which is `ClusterIP` unless it says otherwise.
pub fn type_of(service: &Value) -> &str {
    service["spec"]["type"].as_str().unwrap_or("ClusterIP")
}

/// Returns whether the Service has no cluster address on purpose.
pub fn is_headless(service: &Value) -> bool {
    service["spec"]["clusterIP"] == "None"
}

/// Whether a Service of its type has a cluster address.
pub fn wants_address(service: &Value) -> bool {
    type_of(service) != "ExternalName"
}

/// Whether the server gives it node ports.
pub fn wants_node_ports(service: &Value) -> bool {
    match type_of(service) {
        "NodePort" => true,
        "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

/// Whether its type lets traffic in from outside the cluster.
pub fn is_external(service: &Value) -> bool {
    matches!(type_of(service), "NodePort" | "LoadBalancer")
}

/// Returns whether the Service has a port for the health checks of a load balancer.
pub fn wants_health_port(service: &Value) -> bool {
    type_of(service) == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local"
}

/// Returns the key that tells the ports of one Service apart.
pub fn port_key(port: &Value) -> (Option<&str>, Option<i64>) {
    (port["protocol"].as_str(), port["port"].as_i64())
}
