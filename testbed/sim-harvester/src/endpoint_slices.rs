//! EndpointSlices of Services with selectors. A real cluster has kube-controller-manager for this; beside the simulated
//! API server we play it.

pub(crate) mod controller;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{Pod, Service, ServicePort},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use harvester_api::labels::{SLICE_MANAGED_BY, SLICE_SERVICE_NAME};

use crate::{guest::pod_is_ready, merge_patch};

/// The writer of these slices, in the label that keeps writers apart.
const MANAGED_BY: &str = "endpointslice-controller.k8s.io";

/// On slices of headless Services.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The labels of a Service that its slices do not have from it.
const RESERVED: [&str; 3] = [SLICE_SERVICE_NAME, SLICE_MANAGED_BY, HEADLESS];

/// One write about a slice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Create(Value),
    Patch(Value),
    Delete,
}

/// Each family of a Service has a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// In the words of `spec.ipFamilies` and `addressType`.
    fn word(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Ends the name of the slice, and keeps it apart from slices of other writers.
    fn suffix(self) -> &'static str {
        match self {
            Self::V4 => "-pods",
            Self::V6 => "-pods-ipv6",
        }
    }

    /// Name of the slice that a Service gets.
    pub(crate) fn slice_name(self, service: &str) -> String {
        format!("{service}{}", self.suffix())
    }

    /// The Service whose slice this is.
    pub(crate) fn service_of(self, slice: &str) -> Option<&str> {
        slice.strip_suffix(self.suffix())
    }

    /// The pod's address of this family.
    fn address(self, pod: &Pod) -> Option<&str> {
        let status = pod.status.as_ref()?;
        let all = status.pod_ips.iter().flatten().map(|it| it.ip.as_str()).chain(status.pod_ip.as_deref());
        let mut own = all.filter(|address| address.contains(':') == (self == Self::V6));
        own.next()
    }
}

/// The step for the slice of a Service, if there is one.
pub(crate) fn decide(
    service: Option<&Service>,
    slice: Option<&EndpointSlice>,
    pods: &[&Pod],
    family: Family,
) -> Option<Step> {
    let wanted = service.and_then(|service| wanted(service, pods, family));
    match (wanted, slice) {
        (None, None) => None,
        (None, Some(_)) => Some(Step::Delete),
        (Some(wanted), None) => Some(Step::Create(wanted)),
        (Some(wanted), Some(slice)) => {
            let json = serde_json::to_value(slice).expect("a slice is JSON");
            let mut labels = wanted["metadata"]["labels"].clone();
            for key in
                slice.labels().keys().filter(|key| wanted["metadata"]["labels"].get(key.as_str()).is_none())
            {
                labels[key.as_str()] = Value::Null;
            }
            let patch = json!({"metadata": {"labels": labels}, "endpoints": wanted["endpoints"], "ports": wanted["ports"]});
            merge_patch::needed(&json, patch).map(Step::Patch)
        }
    }
}

fn wanted(service: &Service, pods: &[&Pod], family: Family) -> Option<Value> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref().filter(|selector| !selector.is_empty())?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let is_usual = families.is_empty() && family == Family::V4;
    if !is_usual && !families.iter().any(|word| word == family.word()) {
        return None;
    }
    let pods: Vec<_> = pods
        .iter()
        .filter(|pod| pod.namespace() == service.namespace() && selects(selector, pod.labels()))
        .filter(|pod| family.address(pod).is_some())
        .collect();
    let endpoints = pods.iter().map(|pod| {
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let serving = pod_is_ready(pod);
        json!({
            "addresses": [family.address(pod)],
            "conditions": {"ready": serving && !terminating, "serving": serving, "terminating": terminating},
            "nodeName": pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            "targetRef": {"kind": "Pod", "namespace": pod.namespace(), "name": pod.name_any(), "uid": pod.uid()},
        })
    });
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        // a named port may differ from pod to pod; one slice can only say one number: the first pod's
        let number = target(port, pods.first().copied().copied())?;
        Some(json!({"name": port.name.clone().unwrap_or_default(), "port": number,
            "protocol": port.protocol.as_deref().unwrap_or("TCP")}))
    });
    Some(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": family.slice_name(&service.name_any()),
            "namespace": service.namespace(),
            "labels": labels(service),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": service.name_any(),
                "uid": service.uid(), "controller": true, "blockOwnerDeletion": true}],
        },
        "addressType": family.word(),
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
    }))
}

/// All labels of the Service but the reserved ones, and these by what is true of it, as in `setEndpointSliceLabels` of Kubernetes.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels().clone();
    labels.retain(|key, _| !RESERVED.contains(&key.as_str()));
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    if matches!(address, None | Some("" | "None")) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SLICE_SERVICE_NAME.to_owned(), service.name_any());
    labels.insert(SLICE_MANAGED_BY.to_owned(), MANAGED_BY.to_owned());
    labels
}

fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn target(port: &ServicePort, pod: Option<&Pod>) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let containers = pod.and_then(|pod| pod.spec.as_ref()).map(|spec| spec.containers.iter());
            let mut ports =
                containers.into_iter().flatten().flat_map(|container| container.ports.iter().flatten());
            ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port)
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Family::V4, *};

    fn service(spec: &Value) -> Service {
        let mut json = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "s"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}});
        json_patch::merge(&mut json["spec"], spec);
        serde_json::from_value(json).unwrap()
    }

    fn pod(name: &str, app: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": app}},
            "spec": {"nodeName": "guest-1", "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
            "status": {"podIP": "198.18.7.131", "podIPs": [{"ip": "198.18.7.131"}, {"ip": "fd18::7"}], "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn a_slice_has_the_selected_pods_and_whether_they_are_ready() {
        let pods = [pod("a", "web", "True"), pod("b", "web", "False"), pod("c", "db", "True")];
        let pods: Vec<_> = pods.iter().collect();
        let Some(Step::Create(slice)) = decide(Some(&service(&json!({}))), None, &pods, V4) else { panic!() };
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "web");
        let endpoints = slice["endpoints"].as_array().unwrap();
        let ready: Vec<_> = endpoints.iter().map(|endpoint| &endpoint["conditions"]["ready"]).collect();
        assert_eq!(ready, [&json!(true), &json!(false)]);
        assert_eq!(slice["ports"], json!([{"name": "http", "port": 80, "protocol": "TCP"}]));
        let slice = serde_json::from_value(slice).unwrap();
        assert_eq!(decide(Some(&service(&json!({}))), Some(&slice), &pods, V4), None, "nothing moves");
        assert!(matches!(
            decide(Some(&service(&json!({}))), Some(&slice), &pods[..1], V4),
            Some(Step::Patch(_))
        ));
    }

    #[test]
    fn a_slice_has_all_labels_of_its_service_but_the_reserved_ones() {
        let labelled = |labels: &Value| {
            let mut service = service(&json!({"clusterIP": "10.43.0.7"}));
            service.metadata.labels = serde_json::from_value(labels.clone()).unwrap();
            service
        };
        let before = labelled(
            &json!({"app": "shop", "tier": "web", SLICE_SERVICE_NAME: "other", SLICE_MANAGED_BY: "me", HEADLESS: ""}),
        );
        let Some(Step::Create(slice)) = decide(Some(&before), None, &[], V4) else { panic!() };
        let labels =
            json!({"app": "shop", "tier": "web", SLICE_SERVICE_NAME: "web", SLICE_MANAGED_BY: MANAGED_BY});
        assert_eq!(slice["metadata"]["labels"], labels);

        let slice = serde_json::from_value(slice).unwrap();
        assert_eq!(decide(Some(&before), Some(&slice), &[], V4), None, "nothing moves");
        let after = labelled(&json!({"tier": "db"}));
        let Some(Step::Patch(patch)) = decide(Some(&after), Some(&slice), &[], V4) else { panic!() };
        let labels =
            json!({"app": null, "tier": "db", SLICE_SERVICE_NAME: "web", SLICE_MANAGED_BY: MANAGED_BY});
        assert_eq!(patch["metadata"]["labels"], labels);

        let headless = service(&json!({"clusterIP": "None"}));
        let Some(Step::Create(slice)) = decide(Some(&headless), None, &[], V4) else { panic!() };
        assert_eq!(slice["metadata"]["labels"][HEADLESS], "");
    }

    #[rstest]
    #[case::none_said(json!(null), Some("198.18.7.131"), None)]
    #[case::ipv6(json!(["IPv6"]), None, Some("fd18::7"))]
    #[case::both(json!(["IPv6", "IPv4"]), Some("198.18.7.131"), Some("fd18::7"))]
    fn each_family_of_a_service_has_a_slice(
        #[case] families: Value,
        #[case] v4: Option<&str>,
        #[case] v6: Option<&str>,
    ) {
        let (service, pod) = (service(&json!({"ipFamilies": families})), pod("a", "web", "True"));
        for (family, expected) in Family::ALL.into_iter().zip([v4, v6]) {
            let slice = match decide(Some(&service), None, &[&pod], family) {
                Some(Step::Create(slice)) => slice,
                step => {
                    assert_eq!((step, expected), (None, None));
                    continue;
                }
            };
            assert_eq!(slice["addressType"], family.word());
            assert_eq!(slice["endpoints"][0]["addresses"], json!([expected]));
            assert_eq!(family.service_of(slice["metadata"]["name"].as_str().unwrap()), Some("web"));
        }
    }

    #[rstest]
    #[case::service_port(json!({}), json!(80))]
    #[case::number(json!(9090), json!(9090))]
    #[case::name(json!("web"), json!(8080))]
    fn target_ports_are_numbers_names_or_the_services_own(#[case] target: Value, #[case] expected: Value) {
        let mut port = json!({"name": "http", "port": 80});
        if !target.is_object() {
            port["targetPort"] = target;
        }
        let pod = pod("a", "web", "True");
        let step = decide(Some(&service(&json!({"ports": [port]}))), None, &[&pod], V4);
        let Some(Step::Create(slice)) = step else { panic!() };
        assert_eq!(slice["ports"][0]["port"], expected);
    }

    #[rstest]
    #[case::no_selector(json!({"selector": null}))]
    #[case::external_name(json!({"type": "ExternalName"}))]
    fn services_whose_endpoints_are_somebody_elses_get_none(#[case] spec: Value) {
        assert_eq!(decide(Some(&service(&spec)), None, &[], V4), None);
    }

    #[test]
    fn a_slice_goes_with_its_service() {
        let slice = EndpointSlice::default();
        assert_eq!(decide(None, Some(&slice), &[], V4), Some(Step::Delete));
    }
}
