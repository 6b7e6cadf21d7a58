//! Services: what the server gives them, what it fills in, what it refuses.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{cluster, object, refusal};

fn services(client: &kube::Client) -> Api<Service> {
    Api::namespaced(client.clone(), "shop")
}

fn service(spec: Value) -> Service {
    object(json!({"metadata": {"name": "web"}, "spec": spec}))
}

async fn made(client: &kube::Client, spec: Value) -> Value {
    let made = services(client).create(&PostParams::default(), &service(spec)).await.unwrap();
    serde_json::to_value(made).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_service_reads_as_on_a_real_server() {
    let (_server, client) = cluster();
    let made = made(&client, json!({"type": "LoadBalancer", "ports": [{"port": 80}]})).await;
    let spec = &made["spec"];
    let (address, port) = (&spec["clusterIP"], &spec["ports"][0]["nodePort"]);
    assert!(address.as_str().unwrap().starts_with("10.96."));
    assert!((30_000..=32_767).contains(&port.as_i64().unwrap()));
    assert_eq!(
        *spec,
        json!({
            "type": "LoadBalancer", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster",
            "allocateLoadBalancerNodePorts": true,
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": port}],
        })
    );
    assert_eq!(made["status"], json!({"loadBalancer": {}}));
    assert_eq!(made["metadata"].get("generation"), None, "Services have no generation");
}

#[tokio::test(start_paused = true)]
async fn no_two_services_share_an_address_or_a_node_port() {
    let (_server, client) = cluster();
    let services = services(&client);
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for i in 0..50 {
        let service: Service = object(json!({
            "metadata": {"name": format!("web-{i}")},
            "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                     "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
        }));
        let spec = services.create(&PostParams::default(), &service).await.unwrap().spec.unwrap();
        addresses.insert(spec.cluster_ip.unwrap());
        ports.extend(spec.ports.unwrap().iter().map(|port| port.node_port.unwrap()));
        ports.insert(spec.health_check_node_port.unwrap());
    }
    assert_eq!((addresses.len(), ports.len()), (50, 150));
}

#[tokio::test(start_paused = true)]
async fn an_address_can_be_asked_for_once() {
    let (_server, client) = cluster();
    let services = services(&client);
    let fixed = json!({"clusterIP": "10.96.7.7", "ports": [{"port": 80}]});
    services.create(&PostParams::default(), &service(fixed.clone())).await.unwrap();
    let mut other = service(fixed);
    other.metadata.name = Some("other".into());
    let status = refusal(services.create(&PostParams::default(), &other).await);
    assert_eq!(
        status.message,
        "Service \"other\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.7.7\"]: failed to allocate IP 10.96.7.7: provided IP is already allocated"
    );
    services.delete("web", &DeleteParams::default()).await.unwrap();
    services.create(&PostParams::default(), &other).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_update_keeps_what_the_server_gave() {
    let (_server, client) = cluster();
    let services = services(&client);
    let made = services
        .create(&PostParams::default(), &service(json!({"type": "LoadBalancer", "ports": [{"port": 80}]})))
        .await
        .unwrap();
    let bare = service(json!({"type": "LoadBalancer", "ports": [{"port": 80}, {"name": "b", "port": 81}]}));
    let status = refusal(services.replace("web", &PostParams::default(), &bare).await);
    assert!(status.message.contains("spec.ports[0].name: Required value"), "{}", status.message);
    let bare = service(json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    let replaced = services.replace("web", &PostParams::default(), &bare).await.unwrap();
    assert_eq!(replaced.spec, made.spec);
    let other = Patch::Merge(json!({"spec": {"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"]}}));
    let status = refusal(services.patch("web", &PatchParams::default(), &other).await);
    assert!(status.message.contains("may not change once set"), "{}", status.message);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_no_load_balancer_any_more_gives_its_ports_back() {
    let (_server, client) = cluster();
    made(&client, json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]}))
        .await;
    let patch = Patch::Merge(json!({"spec": {"type": "ClusterIP"}}));
    let plain = services(&client).patch("web", &PatchParams::default(), &patch).await.unwrap();
    let spec = serde_json::to_value(plain.spec.unwrap()).unwrap();
    assert_eq!(spec["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]));
    for field in ["healthCheckNodePort", "externalTrafficPolicy", "allocateLoadBalancerNodePorts"] {
        assert_eq!(spec.get(field), None, "{field}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_has_a_path_of_its_own_and_says_how_its_address_works() {
    let (_server, client) = cluster();
    made(&client, json!({"type": "LoadBalancer", "ports": [{"port": 80}]})).await;
    let patch = Patch::Merge(json!({
        "metadata": {"annotations": {"a": "b"}}, "spec": {"ports": [{"port": 99}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    }));
    let patched = services(&client).patch_status("web", &PatchParams::default(), &patch).await.unwrap();
    let patched = serde_json::to_value(patched).unwrap();
    assert_eq!(patched["status"]["loadBalancer"]["ingress"], json!([{"ip": "192.0.2.1", "ipMode": "VIP"}]));
    assert_eq!(patched["spec"]["ports"][0]["port"], 80);
    assert_eq!(patched["metadata"]["annotations"]["a"], "b");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_no_load_balancer_any_more_has_no_published_address() {
    let (_server, client) = cluster();
    made(&client, json!({"type": "LoadBalancer", "ports": [{"port": 80}]})).await;
    let published = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}));
    services(&client).patch_status("web", &PatchParams::default(), &published).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"type": "ClusterIP"}}));
    let plain = services(&client).patch("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(serde_json::to_value(plain.status.unwrap()).unwrap(), json!({"loadBalancer": {}}));
    let status = refusal(services(&client).patch_status("web", &PatchParams::default(), &published).await);
    assert!(status.is_invalid());
}

#[tokio::test(start_paused = true)]
async fn kubernetes_is_there_from_the_start() {
    let (_server, client) = cluster();
    let services: Api<Service> = Api::namespaced(client, "default");
    let spec = services.get("kubernetes").await.unwrap().spec.unwrap();
    assert_eq!((spec.cluster_ip.as_deref(), spec.ports.unwrap()[0].port), (Some("10.96.0.1"), 443));
}

/// Checks of ports that a dry run leaves out, so that the vectors do not show them.
#[rstest]
#[case::below(
    80,
    "Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"
)]
#[case::no_port_at_all(
    70_000,
    "Invalid value: 70000: provided port is not in the valid range. The range of valid ports is 30000-32767"
)]
#[tokio::test(start_paused = true)]
async fn a_node_port_comes_from_the_range_of_node_ports(#[case] port: i32, #[case] message: &str) {
    let (_server, client) = cluster();
    let wanted = service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}));
    let status = refusal(services(&client).create(&PostParams::default(), &wanted).await);
    let causes = status.details.unwrap().causes;
    assert_eq!((causes[0].field.as_str(), causes[0].message.as_str()), ("spec.ports[0].nodePort", message));
}

#[tokio::test(start_paused = true)]
async fn a_new_object_has_no_version_yet() {
    let (_server, client) = cluster();
    let mut web = service(json!({"ports": [{"port": 80}]}));
    web.metadata.resource_version = Some("5".into());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    services(&client).create(&dry, &web).await.unwrap();
    let status = refusal(services(&client).create(&PostParams::default(), &web).await);
    assert_eq!(
        (status.code, status.message.as_str()),
        (500, "resourceVersion should not be set on objects to be created")
    );
}
