//! A LoadBalancer object as a row of the page.

use controller_kit::ObjectKey;
use harvester_api::{
    BackendStatus, Condition, ConditionStatus, HealthCheck, Ipam, LoadBalancer, WorkloadType, annotations,
    condition, labels, names,
};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::text;

/// Backends that are named.
const BACKENDS: usize = 200;
/// Listeners that are named.
const PORTS: usize = 20;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BalancerRow {
    kind: &'static str,
    namespace: String,
    name: String,
    /// `ready`, `waits` or `leaves`.
    state: &'static str,
    reason: String,
    message: String,
    /// Since when the state lasts, RFC 3339.
    since: String,
    /// `vm` or `cluster`.
    workload: &'static str,
    /// Name of the guest cluster.
    cluster: String,
    /// The Service in the guest cluster.
    service: String,
    dhcp: bool,
    pools: Vec<String>,
    addresses: Vec<String>,
    ports: Vec<String>,
    more_ports: usize,
    /// How backends are probed, if they are.
    check: Option<String>,
    backends: Vec<BackendRow>,
    more_backends: usize,
    /// Of all backends, also of those that are not named.
    good: usize,
    bad: usize,
}

#[derive(Serialize)]
struct BackendRow {
    name: String,
    address: String,
    /// `good`, `bad`, or `unknown` where nobody probes it.
    verdict: &'static str,
    error: String,
    since: String,
}

/// The name of the row of an object.
pub(crate) fn row_name(key: &ObjectKey) -> String {
    format!("balancer/{key}")
}

/// The Ready condition in a word.
pub(crate) fn word(ready: Option<&Condition>) -> &'static str {
    match ready.map(|ready| ready.status) {
        Some(ConditionStatus::True) => "true",
        Some(ConditionStatus::False) => "false",
        Some(ConditionStatus::Unknown) | None => "unknown",
    }
}

/// The row of an object.
pub(crate) fn row(object: &LoadBalancer) -> String {
    let (spec, status) = (&object.spec, object.status.clone().unwrap_or_default());
    let ready = condition::ready(&status.conditions);
    let state = match word(ready) {
        _ if object.metadata.deletion_timestamp.is_some() => "leaves",
        "true" => "ready",
        _ => "waits",
    };
    let (reason, message) = match ready {
        Some(ready) => (text::name(&ready.reason), text::sentence(&ready.message)),
        None => (String::new(), "no load balancer has looked at this object yet: does it run?".to_owned()),
    };
    let label = |key: &str| object.labels().get(key).map(String::as_str).unwrap_or_default();
    let service = (label(labels::SERVICE_NAMESPACE), label(labels::SERVICE_NAME));
    let cluster = object.annotations().get(annotations::LB_CLUSTER).map(String::as_str);
    let cluster = cluster.filter(|cluster| !cluster.is_empty());
    let allocated = status.allocated_address.clone().unwrap_or_default();
    let given: Vec<_> = allocated.primary().into_iter().chain(allocated.ipv6()).collect();
    let mut addresses: Vec<_> = given.iter().map(|(_, address)| text::name(address)).collect();
    // with DHCP the address that is announced, and not what stands for a lease
    if !status.address.is_empty() && (spec.ipam() == Ipam::Dhcp || addresses.is_empty()) {
        addresses = vec![text::name(&status.address)];
    }
    addresses.retain(|address| address != names::DHCP_ADDRESS);
    let mut pools: Vec<_> = given.iter().map(|(pool, _)| text::name(pool)).collect();
    pools.retain(|pool| !pool.is_empty());
    let check = spec.health_check.as_ref().and_then(check);
    let mut backends = status.backends;
    if backends.is_empty() {
        let unprobed = |address| BackendStatus { address, ..BackendStatus::default() };
        backends = status.backend_servers.into_iter().map(unprobed).collect();
    }
    let verdict = |backend: &BackendStatus| match (&check, backend.ready) {
        // whoever failed, or has no address, has an error: this one has not been tried often enough
        (Some(_), false) if backend.last_error.is_empty() => "unknown",
        (Some(_), true) => "good",
        (None, _) if backend.last_error.is_empty() => "unknown",
        _ => "bad",
    };
    let row = BalancerRow {
        kind: "balancer",
        state,
        reason,
        message,
        since: ready.map(|ready| text::name(&ready.last_transition_time)).unwrap_or_default(),
        workload: match spec.workload() {
            WorkloadType::Vm => "vm",
            WorkloadType::Cluster => "cluster",
        },
        cluster: text::name(cluster.unwrap_or_else(|| label(labels::CLUSTER))),
        service: match service {
            ("", _) | (_, "") => String::new(),
            (namespace, name) => format!("{}/{}", text::name(namespace), text::name(name)),
        },
        dhcp: spec.ipam() == Ipam::Dhcp,
        pools,
        addresses,
        ports: spec.listeners.iter().take(PORTS).map(port).collect(),
        more_ports: spec.listeners.len().saturating_sub(PORTS),
        good: backends.iter().filter(|backend| verdict(backend) == "good").count(),
        bad: backends.iter().filter(|backend| verdict(backend) == "bad").count(),
        more_backends: backends.len().saturating_sub(BACKENDS),
        backends: backends
            .iter()
            .take(BACKENDS)
            .map(|backend| BackendRow {
                name: text::name(&backend.name),
                address: text::name(&backend.address),
                verdict: verdict(backend),
                error: text::name(&backend.last_error),
                since: text::name(&backend.since),
            })
            .collect(),
        check,
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    };
    crate::json(&row)
}

fn port(listener: &harvester_api::Listener) -> String {
    let protocol = if listener.protocol == "TCP" { "" } else { &listener.protocol };
    let separator = if protocol.is_empty() { "" } else { "/" };
    text::name(&format!("{}{separator}{protocol}", listener.port))
}

/// `TCP 30080`, `HTTP 30080 /healthz`.
fn check(check: &HealthCheck) -> Option<String> {
    let port = check.port.filter(|port| *port > 0)?;
    Some(match (check.path.as_str(), check.scheme.as_str()) {
        ("", _) => format!("TCP {port}"),
        (path, "") => text::name(&format!("HTTP {port} {path}")),
        (path, scheme) => text::name(&format!("{scheme} {port} {path}")),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn shown(object: Value) -> Value {
        let object: LoadBalancer = serde_json::from_value(object).unwrap();
        serde_json::from_str(&row(&object)).unwrap()
    }

    fn ready(status: &str, message: &str) -> Value {
        json!([{"type": "Ready", "status": status, "reason": "Why", "message": message,
            "lastTransitionTime": "2026-01-05T09:00:00Z"}])
    }

    #[test]
    fn verdicts_are_shown_with_their_errors() {
        let object = json!({"metadata": {"name": "web", "namespace": "shop"},
            "spec": {"listeners": [{"port": 80, "backendPort": 8080}, {"port": 53, "protocol": "UDP", "backendPort": 53}],
                "healthCheck": {"port": 8080, "path": "/healthz"}},
            "status": {"address": "10.0.0.5", "allocatedAddress": {"ipPool": "edge", "ip": "10.0.0.5"},
                "conditions": ready("True", ""), "backends": [
                    {"name": "vm-1", "address": "10.1.0.1", "ready": true, "since": "2026-01-05T09:00:00Z"},
                    {"name": "vm-2", "address": "10.1.0.2", "ready": false, "lastError": "connection refused",
                        "since": "2026-01-05T09:00:00Z"},
                    {"name": "vm-3", "address": "10.1.0.3", "ready": false, "since": "2026-01-05T09:00:00Z"}]}});
        let row = shown(object);
        let verdicts: Vec<_> =
            row["backends"].as_array().unwrap().iter().map(|backend| &backend["verdict"]).collect();
        assert_eq!(verdicts, ["good", "bad", "unknown"]);
        assert_eq!(row["backends"][1]["error"], "connection refused");
        assert_eq!((&row["good"], &row["check"]), (&json!(1), &json!("HTTP 8080 /healthz")));
        assert_eq!((&row["ports"], &row["state"]), (&json!(["80", "53/UDP"]), &json!("ready")));
        assert_eq!((&row["addresses"], &row["pools"]), (&json!(["10.0.0.5"]), &json!(["edge"])));
    }

    #[rstest]
    #[case::ready(json!({"conditions": ready("True", "")}), None, "ready")]
    #[case::waits(json!({"conditions": ready("False", "no pool matches")}), None, "waits")]
    #[case::odd(json!({"conditions": ready("maybe", "")}), None, "waits")]
    #[case::new(json!({}), None, "waits")]
    #[case::leaves(json!({"conditions": ready("True", "")}), Some("2026-01-05T09:00:00Z"), "leaves")]
    fn an_object_is_ready_or_waits_or_leaves(
        #[case] status: Value,
        #[case] deleted: Option<&str>,
        #[case] expected: &str,
    ) {
        let metadata = json!({"name": "web", "namespace": "shop", "deletionTimestamp": deleted});
        let row = shown(json!({"metadata": metadata, "spec": {}, "status": status}));
        assert_eq!(row["state"], expected);
        let has_reason = status.get("conditions").is_none_or(|it| it[0]["message"] != "");
        assert_eq!(!row["message"].as_str().unwrap().is_empty(), has_reason);
    }

    #[test]
    fn an_object_of_a_guest_cluster_names_its_service_and_both_addresses() {
        let row = shown(json!({"metadata": {"name": "a", "namespace": "team-a",
                "labels": {labels::CLUSTER: "blue", labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"}},
            "spec": {"workloadType": "cluster"},
            "status": {"address": "10.0.0.5",
                "allocatedAddress": {"ipPool": "edge", "ip": "10.0.0.5", "ipv6Pool": "edge6", "ipv6IP": "fd00::5"}}}));
        assert_eq!((&row["service"], &row["cluster"]), (&json!("shop/web"), &json!("blue")));
        assert_eq!(
            (&row["addresses"], &row["workload"]),
            (&json!(["10.0.0.5", "fd00::5"]), &json!("cluster"))
        );
    }

    #[test]
    fn a_lease_is_shown_and_not_what_stands_for_it() {
        let row = shown(json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"ipam": "dhcp"},
            "status": {"address": "10.0.0.77", "allocatedAddress": {"ip": "0.0.0.0"}}}));
        assert_eq!((&row["addresses"], &row["pools"]), (&json!(["10.0.0.77"]), &json!([])));
        let row = shown(json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"ipam": "dhcp"},
            "status": {"address": "0.0.0.0", "allocatedAddress": {"ip": "0.0.0.0"}}}));
        assert_eq!(row["addresses"], json!([]));
    }

    #[test]
    fn backends_that_nobody_probes_have_no_verdict() {
        let row = shown(json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {},
            "status": {"backendServers": ["10.1.0.1", "10.1.0.2"]}}));
        assert_eq!((&row["backends"][1]["verdict"], &row["check"]), (&json!("unknown"), &Value::Null));
    }

    #[test]
    fn an_empty_annotation_hides_no_label_of_the_guest_cluster() {
        let metadata = json!({"name": "a", "namespace": "b", "labels": {labels::CLUSTER: "gc1"},
            "annotations": {annotations::LB_CLUSTER: ""}});
        assert_eq!(shown(json!({"metadata": metadata, "spec": {}}))["cluster"], "gc1");
    }

    #[test]
    fn a_tenant_does_not_make_the_page_of_others_large() {
        let (listener, long) = (json!({"port": 1, "backendPort": 1}), "x".repeat(100_000));
        let backend = json!({"name": long, "address": long, "ready": false, "lastError": long});
        let row = shown(json!({"metadata": {"name": "a", "namespace": "b"},
            "spec": {"listeners": vec![listener; 5_000], "healthCheck": {"port": 1, "path": long}},
            "status": {"backends": vec![backend; 1_000], "conditions": ready("False", &long)}}));
        assert_eq!((&row["moreBackends"], &row["morePorts"]), (&json!(800), &json!(4_980)));
        assert_eq!(
            (&row["good"], &row["bad"]),
            (&json!(0), &json!(1_000)),
            "those that are not named count too"
        );
        assert!(row.to_string().len() < 500_000);
    }
}
