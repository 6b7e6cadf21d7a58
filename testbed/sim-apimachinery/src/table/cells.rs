//! The cells that are more than a field of the object.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::age;

const NONE: &str = "<none>";

/// The non-empty text at the path.
pub(super) fn text<'a>(object: &'a Value, path: &str) -> Option<&'a str> {
    object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty())
}

pub(super) fn number(object: &Value, path: &str) -> u64 {
    object.pointer(path).and_then(Value::as_u64).unwrap_or_default()
}

pub(super) fn count(value: &Value) -> u64 {
    let length = value.as_array().map(Vec::len).or_else(|| value.as_object().map(serde_json::Map::len));
    length.unwrap_or_default() as u64
}

fn items<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn or_none(text: String) -> String {
    if text.is_empty() { NONE.to_owned() } else { text }
}

fn joined<'a>(texts: impl IntoIterator<Item = &'a str>, separator: &str) -> String {
    texts.into_iter().collect::<Vec<_>>().join(separator)
}

/// `a=b,c=d`.
pub(super) fn labels(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let mut pairs = pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>();
    pairs.sort();
    or_none(pairs.join(","))
}

/// A label selector in its text form.
pub(super) fn selector(selector: &Value) -> String {
    let mut terms = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        terms.push((key.as_str(), format!("{key}={}", value.as_str().unwrap_or_default())));
    }
    for expression in items(selector, "/matchExpressions") {
        let key = expression["key"].as_str().unwrap_or_default();
        let values = items(expression, "/values").iter().filter_map(Value::as_str).collect::<BTreeSet<_>>();
        let values = joined(values, ",");
        let term = match expression["operator"].as_str() {
            Some("Exists") => key.to_owned(),
            Some("DoesNotExist") => format!("!{key}"),
            Some("NotIn") => format!("{key} notin ({values})"),
            _ => format!("{key} in ({values})"),
        };
        terms.push((key, term));
    }
    // stable: labels before expressions of the same key
    terms.sort_by_key(|(key, _)| *key);
    joined(terms.iter().map(|(_, term)| term.as_str()), ",")
}

/// EXTERNAL-IP of a Service.
pub(super) fn external_ip(service: &Value) -> String {
    let external = items(service, "/spec/externalIPs").iter().filter_map(Value::as_str);
    match service["spec"]["type"].as_str().unwrap_or_default() {
        "ClusterIP" | "NodePort" => or_none(joined(external, ",")),
        "LoadBalancer" => {
            let ingress = items(service, "/status/loadBalancer/ingress");
            let published = ingress
                .iter()
                .filter_map(|i| text(i, "/ip").or_else(|| text(i, "/hostname")))
                .collect::<BTreeSet<_>>();
            let all = joined(published.into_iter().chain(external), ",");
            if all.is_empty() { "<pending>".to_owned() } else { all }
        }
        "ExternalName" => text(service, "/spec/externalName").unwrap_or_default().to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// PORT(S) of a Service: `80:30080/TCP`.
pub(super) fn service_ports(service: &Value) -> String {
    let ports = items(service, "/spec/ports").iter().map(|port| {
        let protocol = text(port, "/protocol").unwrap_or("TCP");
        match number(port, "/nodePort") {
            0 => format!("{}/{protocol}", number(port, "/port")),
            node_port => format!("{}:{node_port}/{protocol}", number(port, "/port")),
        }
    });
    or_none(ports.collect::<Vec<_>>().join(","))
}

pub(super) fn node_status(node: &Value) -> String {
    let ready = items(node, "/status/conditions").iter().find(|c| c["type"] == "Ready");
    let status = match ready.map(|condition| condition["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    };
    if node["spec"]["unschedulable"] == true {
        format!("{status},SchedulingDisabled")
    } else {
        status.to_owned()
    }
}

pub(super) fn node_roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let roles = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect::<BTreeSet<_>>();
    or_none(joined(roles, ","))
}

pub(super) fn node_address(node: &Value, r#type: &str) -> String {
    let address = items(node, "/status/addresses").iter().find(|a| a["type"] == r#type);
    or_none(address.and_then(|a| text(a, "/address")).unwrap_or_default().to_owned())
}

pub(super) fn kernel(node: &Value) -> String {
    let version = text(node, "/status/nodeInfo/kernelVersion").unwrap_or("<unknown>");
    match text(node, "/status/nodeInfo/architecture") {
        Some(architecture) => format!("{version} ({architecture})"),
        None => version.to_owned(),
    }
}

pub(super) fn pod_ready(pod: &Value) -> String {
    let statuses = items(pod, "/status/containerStatuses");
    let ready = statuses.iter().filter(|c| c["ready"] == true && !c["state"]["running"].is_null()).count();
    format!("{ready}/{}", items(pod, "/spec/containers").len())
}

/// STATUS of a Pod: its phase, or what its containers say (init containers are not looked into).
pub(super) fn pod_status(pod: &Value) -> String {
    let mut status =
        text(pod, "/status/reason").or_else(|| text(pod, "/status/phase")).unwrap_or_default().to_owned();
    let statuses = items(pod, "/status/containerStatuses");
    for container in statuses.iter().rev() {
        if let Some(reason) = text(container, "/state/waiting/reason") {
            reason.clone_into(&mut status);
        } else if let Some(ended) = container.pointer("/state/terminated") {
            status = match text(ended, "/reason") {
                Some(reason) => reason.to_owned(),
                None => format!("ExitCode:{}", ended["exitCode"].as_i64().unwrap_or_default()),
            };
        }
    }
    let terminal = matches!(text(pod, "/status/phase"), Some("Succeeded" | "Failed"));
    if !pod["metadata"]["deletionTimestamp"].is_null() && !terminal {
        "Terminating".to_owned()
    } else {
        status
    }
}

pub(super) fn pod_restarts(pod: &Value) -> String {
    let statuses = items(pod, "/status/containerStatuses").iter();
    statuses.map(|c| number(c, "/restartCount")).fold(0_u64, u64::saturating_add).to_string()
}

pub(super) fn readiness_gates(pod: &Value) -> String {
    let gates = items(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let met = gates
        .iter()
        .filter(|gate| {
            items(pod, "/status/conditions")
                .iter()
                .any(|c| c["type"] == gate["conditionType"] && c["status"] == "True")
        })
        .count();
    format!("{met}/{}", gates.len())
}

/// The part of an Event in either version's words.
fn event_field<'a>(event: &'a Value, core: &str, new: &str) -> &'a Value {
    event
        .pointer(core)
        .filter(|value| !value.is_null())
        .or_else(|| event.pointer(new))
        .unwrap_or(&Value::Null)
}

pub(super) fn first_seen(event: &Value, now: Timestamp) -> String {
    let first = event_field(event, "/firstTimestamp", "/deprecatedFirstTimestamp");
    age(if first.is_null() { &event["eventTime"] } else { first }, now)
}

pub(super) fn last_seen(event: &Value, now: Timestamp) -> String {
    let series = &event["series"]["lastObservedTime"];
    let last = event_field(event, "/lastTimestamp", "/deprecatedLastTimestamp");
    match (series.is_null(), last.is_null()) {
        (false, _) => age(series, now),
        (true, false) => age(last, now),
        (true, true) => first_seen(event, now),
    }
}

pub(super) fn event_count(event: &Value) -> u64 {
    let series = event["series"]["count"].as_u64();
    series.unwrap_or_else(|| {
        event_field(event, "/count", "/deprecatedCount").as_u64().unwrap_or_default().max(1)
    })
}

pub(super) fn event_object(event: &Value) -> String {
    let object = event_field(event, "/involvedObject", "/regarding");
    let kind = text(object, "/kind").unwrap_or_default().to_lowercase();
    match text(object, "/name") {
        Some(name) => format!("{kind}/{name}"),
        None => kind,
    }
}

pub(super) fn event_field_path(event: &Value) -> String {
    text(event_field(event, "/involvedObject", "/regarding"), "/fieldPath").unwrap_or_default().to_owned()
}

pub(super) fn event_message(event: &Value) -> String {
    event_field(event, "/message", "/note").as_str().unwrap_or_default().trim().to_owned()
}

pub(super) fn event_source(event: &Value) -> String {
    let source = event_field(event, "/source", "/deprecatedSource");
    let reporter =
        event_field(event, "/reportingComponent", "/reportingController").as_str().unwrap_or_default();
    let component = text(source, "/component").unwrap_or(reporter);
    let instance = text(source, "/host").or_else(|| text(event, "/reportingInstance"));
    match instance {
        Some(instance) => format!("{component}, {instance}"),
        None => component.to_owned(),
    }
}

/// The first three, and how many more there are.
fn some_of(all: &[String], none: &str) -> String {
    const SHOWN: usize = 3;
    match all.len() {
        0 => none.to_owned(),
        n if n > SHOWN => format!("{} + {} more...", all[..SHOWN].join(","), n - SHOWN),
        _ => all.join(","),
    }
}

pub(super) fn slice_ports(slice: &Value) -> String {
    let port = |p: &Value| match (p["port"].as_u64(), text(p, "/name")) {
        (Some(port), _) => port.to_string(),
        (None, name) => name.unwrap_or("*").to_owned(),
    };
    some_of(&items(slice, "/ports").iter().map(port).collect::<Vec<_>>(), "<unset>")
}

pub(super) fn slice_endpoints(slice: &Value) -> String {
    let endpoints = items(slice, "/endpoints").iter();
    let addresses = endpoints.flat_map(|e| items(e, "/addresses")).filter_map(Value::as_str);
    some_of(&addresses.map(str::to_owned).collect::<Vec<_>>(), "<unset>")
}

pub(super) fn endpoints(endpoints: &Value) -> String {
    let mut all = Vec::new();
    for subset in items(endpoints, "/subsets") {
        let addresses = || items(subset, "/addresses").iter().filter_map(|a| text(a, "/ip"));
        let ports = items(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            let port = number(port, "/port");
            all.extend(
                addresses().map(|ip| {
                    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
                }),
            );
        }
    }
    some_of(&all, NONE)
}

pub(super) fn ready_of(workload: &Value, desired: &str) -> String {
    format!("{}/{}", number(workload, "/status/readyReplicas"), number(workload, desired))
}

pub(super) fn containers(workload: &Value, field: &str) -> String {
    let containers = items(workload, "/spec/template/spec/containers").iter();
    joined(containers.filter_map(|c| c[field].as_str()), ",")
}

pub(super) fn role(binding: &Value) -> String {
    let role = |field| binding["roleRef"][field].as_str().unwrap_or_default();
    format!("{}/{}", role("kind"), role("name"))
}

pub(super) fn subjects(binding: &Value, kind: &str) -> String {
    let subjects = items(binding, "/subjects").iter().filter(|s| s["kind"] == kind).map(|subject| {
        let name = text(subject, "/name").unwrap_or_default();
        match text(subject, "/namespace") {
            Some(namespace) if kind == "ServiceAccount" => format!("{namespace}/{name}"),
            _ => name.to_owned(),
        }
    });
    subjects.collect::<Vec<_>>().join(", ")
}

pub(super) fn phase(volume: &Value) -> String {
    let deleting = !volume["metadata"]["deletionTimestamp"].is_null();
    if deleting { "Terminating" } else { text(volume, "/status/phase").unwrap_or_default() }.to_owned()
}

pub(super) fn access_modes(modes: &Value) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.as_array().is_some_and(|modes| modes.iter().any(|m| m == mode));
    joined(SHORT.into_iter().filter(|(mode, _)| has(mode)).map(|(_, short)| short), ",")
}

fn is_bound(claim: &Value) -> bool {
    text(claim, "/spec/volumeName").is_some()
}

pub(super) fn claim_capacity(claim: &Value) -> String {
    if is_bound(claim) { text(claim, "/status/capacity/storage").unwrap_or("0") } else { "" }.to_owned()
}

pub(super) fn claim_modes(claim: &Value) -> String {
    if is_bound(claim) { access_modes(&claim["status"]["accessModes"]) } else { String::new() }
}

pub(super) fn claim(volume: &Value) -> String {
    match (text(volume, "/spec/claimRef/namespace"), text(volume, "/spec/claimRef/name")) {
        (None, None) => String::new(),
        (namespace, name) => format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default()),
    }
}

pub(super) fn class_name(class: &Value) -> String {
    let name = text(class, "/metadata/name").unwrap_or_default();
    let default = class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
    if default { format!("{name} (default)") } else { name.to_owned() }
}
