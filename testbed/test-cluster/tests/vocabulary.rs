//! The types of `harvester-api` and the schemas of `deploy/crds/` say the same.
#![cfg(test)]

use std::collections::BTreeSet;

use harvester_api::{
    AllocatedAddress, BackendStatus, Condition, HealthCheck, IPPool, IPPoolSpec, IPPoolStatus,
    IpFamilyPolicy, Ipam, Listener, LoadBalancer, LoadBalancerSpec, LoadBalancerStatus, PoolQuota, PoolRange,
    PoolScope, PoolSelector, WorkloadType,
};
use kube::{CustomResourceExt, Resource as _};
use serde_json::Value;
use test_cluster::{Side, manifests};

fn text() -> String {
    "x".to_owned()
}

fn conditions() -> Vec<Condition> {
    serde_json::from_value(serde_json::json!([{
        "type": "Ready", "status": "True", "lastUpdateTime": "x", "lastTransitionTime": "x", "reason": "x", "message": "x",
    }]))
    .unwrap()
}

/// Every field set: a struct without `..` does not let one be forgotten.
fn full_load_balancer() -> LoadBalancer {
    let spec = LoadBalancerSpec {
        description: text(),
        workload_type: Some(WorkloadType::Vm),
        ipam: Some(Ipam::Pool),
        ip_pool: text(),
        ipv6_pool: text(),
        ip_family_policy: Some(IpFamilyPolicy::RequireDualStack),
        listeners: vec![Listener { name: text(), port: 1, protocol: text(), backend_port: 1 }],
        backend_server_selector: [(text(), vec![text()])].into(),
        health_check: Some(HealthCheck {
            port: Some(1),
            success_threshold: Some(1),
            failure_threshold: Some(1),
            period_seconds: Some(1),
            timeout_seconds: Some(1),
            path: text(),
            scheme: text(),
        }),
    };
    let mut balancer = LoadBalancer::new("web", spec);
    balancer.status = Some(LoadBalancerStatus {
        backend_servers: vec![text()],
        allocated_address: Some(AllocatedAddress {
            ip_pool: text(),
            ip: text(),
            mask: text(),
            gateway: text(),
            ipv6_pool: text(),
            ipv6_ip: text(),
            ipv6_mask: text(),
            ipv6_gateway: text(),
        }),
        addresses: vec![text()],
        address: text(),
        conditions: conditions(),
        backends: vec![BackendStatus {
            name: text(),
            address: text(),
            ready: true,
            last_error: text(),
            since: text(),
        }],
    });
    balancer
}

fn full_pool() -> IPPool {
    let spec = IPPoolSpec {
        description: text(),
        ranges: vec![PoolRange {
            subnet: text(),
            range_start: text(),
            range_end: text(),
            gateway: text(),
            drain: true,
        }],
        selector: PoolSelector {
            priority: 1,
            network: text(),
            scope: vec![PoolScope { project: text(), namespace: text(), guest_cluster: text() }],
        },
        quota: vec![PoolQuota { guest_cluster: text(), namespace: text(), max: 1 }],
        quarantine_seconds: 1,
    };
    let mut pool = IPPool::new("lab", spec);
    pool.status = Some(IPPoolStatus {
        total: 1,
        available: 1,
        last_allocated: text(),
        allocated: [(text(), text())].into(),
        allocated_history: [(text(), text())].into(),
        conditions: conditions(),
    });
    pool
}

/// Paths of a value; the keys of a map whose keys are data are one `*`, so are the items of a list.
fn paths_of(value: &Value, schema: &Value, path: &str, paths: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let is_data = schema["additionalProperties"].is_object();
                let (step, below) = if is_data {
                    ("*", &schema["additionalProperties"])
                } else {
                    (name.as_str(), &schema["properties"][name])
                };
                paths_of(field, below, &format!("{path}.{step}"), paths);
            }
        }
        Value::Array(items) => {
            for item in items {
                paths_of(item, &schema["items"], &format!("{path}.*"), paths);
            }
        }
        _ => {
            paths.insert(path.to_owned());
        }
    }
}

/// Paths of all values that a schema knows.
fn paths_in(schema: &Value, path: &str, paths: &mut BTreeSet<String>) {
    if let Some(fields) = schema["properties"].as_object() {
        for (name, field) in fields {
            paths_in(field, &format!("{path}.{name}"), paths);
        }
    } else if schema["items"].is_object() {
        paths_in(&schema["items"], &format!("{path}.*"), paths);
    } else if schema["additionalProperties"].is_object() {
        paths_in(&schema["additionalProperties"], &format!("{path}.*"), paths);
    } else {
        paths.insert(path.to_owned());
    }
}

fn check<K: CustomResourceExt + kube::Resource<DynamicType = ()> + serde::Serialize>(full: &K) {
    let kinds = manifests::kinds(Side::Harvester);
    let crd = kinds.iter().find(|crd| crd["metadata"]["name"] == K::crd_name()).unwrap();
    let ours = serde_json::to_value(K::crd()).unwrap();
    for field in ["group", "scope"] {
        assert_eq!(ours["spec"][field], crd["spec"][field]);
    }
    for field in ["kind", "plural", "singular", "shortNames"] {
        assert_eq!(ours["spec"]["names"][field], crd["spec"]["names"][field]);
    }
    let version =
        crd["spec"]["versions"].as_array().unwrap().iter().find(|one| one["name"] == "v1beta1").unwrap();
    // the status travels with an ordinary PUT: that is the contract
    assert!(version["subresources"].is_null());
    let schema = &version["schema"]["openAPIV3Schema"];
    let value = serde_json::to_value(full).unwrap();
    let (mut written, mut known) = (BTreeSet::new(), BTreeSet::new());
    for part in ["spec", "status"] {
        paths_of(&value[part], &schema["properties"][part], part, &mut written);
        paths_in(&schema["properties"][part], part, &mut known);
    }
    assert_eq!(written, known);
}

#[test]
fn what_we_write_into_a_load_balancer_is_what_its_schema_knows() {
    assert_eq!(LoadBalancer::version(&()), "v1beta1");
    check(&full_load_balancer());
}

#[test]
fn what_we_write_into_a_pool_is_what_its_schema_knows() {
    check(&full_pool());
}
