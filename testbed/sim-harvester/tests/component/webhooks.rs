//! The webhooks of KubeVirt and Harvester, where the API server of a test finds them.

use std::net::Ipv4Addr;

use axum_server::tls_rustls::RustlsConfig;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::json;

use program::TaskGroup;
use sim_harvester::admission::{self, Place, SERVICE};
use test_cluster::TestCluster;

/// Serves them until `tasks` ends, and waits until the server asks them.
pub(crate) async fn serve(cluster: &TestCluster, harvester: &Client, tasks: &TaskGroup) {
    let router = admission::router(harvester.clone());
    if let Some(server) = cluster.harvester.simulated() {
        server.webhook(SERVICE.0, SERVICE.1, router);
        admission::register(harvester, Place::Service).await.unwrap();
        return;
    }
    drop(rustls::crypto::ring::default_provider().install_default());
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let root = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
    let tls = RustlsConfig::from_pem(certificate.clone().into(), key.into()).await.unwrap();
    let server = axum_server::from_tcp_rustls(listener, tls).unwrap();
    tasks.spawn_until_stop(async move { server.serve(router.into_make_service()).await.unwrap() });
    admission::register(harvester, Place::Url { root: &root, authority: &certificate }).await.unwrap();
    until_asked(harvester).await;
}

/// A real server takes a moment to ask a webhook that it was told of: it is asked about a VM that the webhook refuses.
async fn until_asked(harvester: &Client) {
    let gvk = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine");
    let api: Api<DynamicObject> =
        Api::namespaced_with(harvester.clone(), "default", &ApiResource::from_gvk(&gvk));
    let lone = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "probe"},
        "spec": {"template": {"spec": {"volumes": [{"name": "a"}]}}}});
    let lone: DynamicObject = serde_json::from_value(lone).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    while api.create(&dry_run, &lone).await.is_ok() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
