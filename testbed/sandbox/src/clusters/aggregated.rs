//! KubeVirt's subresources on a real API server: an aggregated API whose service is this process, where the webhooks of
//! KubeVirt and Harvester answer too.
//!
//! docs/contract/testing.md#1: an APIService on a Service of type ExternalName `localhost` needs neither a pod network nor a
//! kubelet. The API server has authenticated and authorised the client.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use program::TaskGroup;
use sim_harvester::{
    admission::{self, Place},
    subresources,
};

use crate::manifests::{apply, plain};

/// Serves `subresources.kubevirt.io` until `tasks` ends, and the webhooks where `for_webhooks` is their client; tells the API
/// server of `harvester` where.
///
/// # Errors
/// When it cannot be served, or the API server refuses to be told.
pub(crate) async fn serve(
    harvester: &Client,
    for_webhooks: Option<&Client>,
    tasks: &TaskGroup,
) -> Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a port")?;
    listener.set_nonblocking(true).context("share a port with the runtime")?;
    let port = listener.local_addr().context("ask for a port")?.port();
    let identity =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).context("make a certificate")?;
    let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
    let tls =
        RustlsConfig::from_pem(certificate.clone().into(), key.into()).await.context("use a certificate")?;
    let mut router = subresources::router(harvester.clone());
    if let Some(client) = for_webhooks {
        router = router.merge(admission::router(client.clone()));
    }
    let server = axum_server::from_tcp_rustls(listener, tls).context("serve KubeVirt's subresources")?;
    tasks.spawn_until_stop(async move {
        if let Err(error) = server.serve(router.into_make_service()).await {
            tracing::error!(%error, "KubeVirt's subresources and webhooks are not served any more");
        }
    });
    let registration = format!(
        "apiVersion: v1
kind: Service
metadata: {{namespace: kube-system, name: kubevirt-subresources}}
spec: {{type: ExternalName, externalName: localhost, ports: [{{port: {port}}}]}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: v1.subresources.kubevirt.io}}
spec:
  group: subresources.kubevirt.io
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {{namespace: kube-system, name: kubevirt-subresources, port: {port}}}
"
    );
    apply(harvester, "KubeVirt's subresources", &registration).await?;
    if for_webhooks.is_some() {
        let root = format!("https://localhost:{port}");
        let place = Place::Url { root: &root, authority: &certificate };
        admission::register(harvester, place).await.map_err(plain)?;
    }
    Ok(())
}
