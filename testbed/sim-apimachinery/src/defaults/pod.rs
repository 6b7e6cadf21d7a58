//! Pods, and what Deployments and DaemonSets make Pods of.

use serde_json::{Value, json};

use crate::json::{elements, is_unset, items_mut, set_default, text};

/// Sets the defaults of a Pod.
pub(super) fn fill(pod: &mut Value) {
    if !pod["spec"].is_object() {
        pod["spec"] = json!({});
    }
    let Some(pod) = pod.get_mut("spec") else { return };
    if pod["enableServiceLinks"].is_null() {
        pod["enableServiceLinks"] = true.into();
    }
    for list in ["/containers", "/initContainers"] {
        for container in items_mut(pod, list) {
            // who names a limit and no request asks for as much
            let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (resource, limit) in limits {
                set_default_in(container, "/resources/requests", &resource, limit);
            }
        }
    }
    spec(pod);
}

/// Sets the defaults of the spec of a Pod, or of a template of Pods.
pub(super) fn spec(spec: &mut Value) {
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "schedulerName", "default-scheduler");
    for (field, default) in [("securityContext", json!({})), ("terminationGracePeriodSeconds", json!(30))] {
        set_default(spec, field, default);
    }
    for list in ["/containers", "/initContainers", "/ephemeralContainers"] {
        items_mut(spec, list).for_each(container);
    }
    for volume in items_mut(spec, "/volumes") {
        if volume.as_object().is_some_and(|volume| volume.keys().all(|key| key == "name")) {
            volume["emptyDir"] = json!({});
        }
        for (source, field, default) in [
            ("secret", "defaultMode", json!(0o644)),
            ("configMap", "defaultMode", json!(0o644)),
            ("hostPath", "type", json!("")),
        ] {
            if let Some(source) = volume.get_mut(source).filter(|source| source.is_object()) {
                set_default(source, field, default);
            }
        }
    }
}

fn container(container: &mut Value) {
    let image = text(&container["image"]);
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let policy = if tag.is_none_or(|tag| tag == "latest") { "Always" } else { "IfNotPresent" };
    set_default(container, "imagePullPolicy", policy);
    set_default(container, "resources", json!({}));
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    for port in items_mut(container, "/ports") {
        set_default(port, "protocol", "TCP");
    }
}

fn set_default_in(object: &mut Value, pointer: &str, field: &str, default: Value) {
    let place = pointer.split('/').skip(1).fold(object, |place, key| &mut place[key]);
    if is_unset(&place[field]) {
        place[field] = default;
    }
}

/// Adds to a new Pod what a real server's admission adds: a priority, and tolerations for a Node that is lost.
pub fn admit_pod(pod: &mut Value) {
    let spec = &mut pod["spec"];
    if spec["priority"].is_null() {
        spec["priority"] = 0.into();
    }
    set_default(spec, "preemptionPolicy", "PreemptLowerPriority");
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let mut tolerations = elements(&spec["tolerations"]).to_vec();
        let tolerates = |toleration: &Value| {
            let any = is_unset(&toleration["key"]) && toleration["operator"] == "Exists";
            (any || toleration["key"] == key) && matches!(text(&toleration["effect"]), "" | "NoExecute")
        };
        if !tolerations.iter().any(tolerates) {
            tolerations.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
            spec["tolerations"] = tolerations.into();
        }
    }
}

/// The status of a new Pod.
pub fn new_pod_status(pod: &Value) -> Value {
    let containers =
        ["containers", "initContainers"].into_iter().flat_map(|list| elements(&pod["spec"][list]));
    let resources: Vec<&Value> = containers.map(|container| &container["resources"]).collect();
    let asks = |resources: &&Value| {
        ["limits", "requests"].iter().any(|kind| resources[kind].as_object().is_some_and(|of| !of.is_empty()))
    };
    let sure = |resources: &&Value| {
        ["cpu", "memory"].iter().all(|resource| {
            let limit = &resources["limits"][resource];
            !is_unset(limit) && resources["requests"][resource] == *limit
        })
    };
    let class = if !resources.iter().any(asks) {
        "BestEffort"
    } else if resources.iter().all(sure) {
        "Guaranteed"
    } else {
        "Burstable"
    };
    json!({"phase": "Pending", "qosClass": class})
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_pod_says_what_a_real_server_lets_it_say() {
        let mut pod = json!({"spec": {
            "containers": [{"name": "c", "image": "nginx:1", "resources": {"limits": {"cpu": "1"}}}],
            "initContainers": [{"name": "i", "image": "a/b@sha256:0"}],
            "volumes": [{"name": "e"}, {"name": "s", "secret": {"secretName": "x"}}, {"name": "h", "hostPath": {"path": "/x"}}],
        }});
        fill(&mut pod);
        admit_pod(&mut pod);
        let lost = |key: &str| {
            json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 300})
        };
        let container = |name: &str, image: &str, resources: Value| {
            json!({"name": name, "image": image, "resources": resources, "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"})
        };
        let resources = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
        assert_eq!(
            pod["spec"],
            json!({
                "containers": [container("c", "nginx:1", resources)],
                "initContainers": [container("i", "a/b@sha256:0", json!({}))],
                "volumes": [
                    {"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}},
                    {"name": "h", "hostPath": {"path": "/x", "type": ""}},
                ],
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
                "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": true,
                "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
                "tolerations": [lost("not-ready"), lost("unreachable")],
            })
        );
    }

    #[test]
    fn a_pod_that_tolerates_everything_is_given_no_end() {
        let mut pod = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        admit_pod(&mut pod);
        assert_eq!(pod["spec"]["tolerations"], json!([{"operator": "Exists"}]));
    }

    #[rstest]
    #[case(json!({}), "BestEffort")]
    #[case(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}), "Burstable")]
    #[case(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed")]
    fn a_pod_is_of_the_class_that_its_resources_say(#[case] resources: Value, #[case] class: &str) {
        let status = new_pod_status(&json!({"spec": {"containers": [{"resources": resources}]}}));
        assert_eq!(status, json!({"phase": "Pending", "qosClass": class}));
    }
}
