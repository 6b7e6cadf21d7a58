//! Reviews for tests and benchmarks: what a hostile tenant makes the API server send.

use serde_json::{Value, json};

use crate::review::GROUP;

/// A LoadBalancer object of a VM with so many equal listeners.
pub fn load_balancer_with_listeners(count: usize) -> Value {
    let listener = json!({"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080});
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"), "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"workloadType": "vm", "ipam": "dhcp", "listeners": vec![listener; count]},
    })
}

/// A review that asks for so many objects of VMs in `desired` version.
pub fn conversion_review(desired: &str, count: usize) -> Vec<u8> {
    let mut object = load_balancer_with_listeners(3);
    object["spec"]["healthCheck"] = json!({"port": 8080, "periodSeconds": 5});
    object["status"] = json!({"address": "192.0.2.7", "backendServers": ["10.0.0.1", "10.0.0.2"],
        "allocatedAddress": {"ipPool": "edge", "ip": "192.0.2.7", "mask": "255.255.255.0"}});
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u1", "desiredAPIVersion": desired, "objects": vec![object; count]}});
    review.to_string().into_bytes()
}

/// The review of its creation, as the body of a POST to `/v1/webhook/validation` or `/v1/webhook/mutation`.
pub fn review_with_listeners(count: usize) -> Vec<u8> {
    let name = |key: &str, value: &str| json!({"group": GROUP, "version": "v1beta1", key: value});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": "CREATE", "namespace": "team-a", "name": "web", "dryRun": true,
        "kind": name("kind", "LoadBalancer"), "resource": name("resource", "loadbalancers"),
        "userInfo": {"username": "alice"}, "object": load_balancer_with_listeners(count), "oldObject": null}});
    review.to_string().into_bytes()
}
