//! A load balancer of VMs asks its backends by HTTP, and says of each what came instead.

use anyhow::{Context, Result, ensure};
use harvester_api::{LoadBalancer, labels};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::Tour;
use crate::manifests::plain;

const NAME: &str = "asked";

/// An object of type vm at the node port of the Service of step 2: its backends answer by HTTP, and wait in silence for the end
/// of a request where a TLS handshake begins.
pub(super) async fn by_status(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let ports = observer.service("checked").await?.spec.and_then(|spec| spec.ports).unwrap_or_default();
    let port = ports.first().and_then(|port| port.node_port).context("Service checked has no node port")?;
    let machines: Vec<_> = tour.environment.vms.iter().map(|vm| &vm.name).collect();
    let api = Api::<LoadBalancer>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    let object = json!({"metadata": {"name": NAME}, "spec": {"workloadType": "vm", "ipam": "pool",
        "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": port}],
        "backendServerSelector": {labels::VM_NAME: machines},
        "healthCheck": {"port": port, "path": "/healthz?full=1", "successThreshold": 1, "failureThreshold": 1,
            "periodSeconds": 1, "timeoutSeconds": 1}}});
    let object = serde_json::from_value(object).context("describe a LoadBalancer")?;
    api.create(&PostParams::default(), &object).await.map_err(plain)?;
    let all_say = |error: &'static str| {
        let api = api.clone();
        let observer = observer.clone();
        async move {
            observer
                .wait(&format!("the last error {error:?} of all VMs"), || async {
                    let status = api.get(NAME).await.map_err(plain)?.status.unwrap_or_default();
                    let of_all = status.backends.len() == tour.environment.vms.len()
                        && status
                            .backends
                            .iter()
                            .all(|backend| backend.last_error == error && backend.ready == error.is_empty());
                    ensure!(of_all, "status.backends is {:?}", status.backends);
                    Ok(())
                })
                .await
        }
    };
    all_say("").await?;
    let by_https = json!({"spec": {"healthCheck": {"scheme": "HTTPS"}}});
    api.patch(NAME, &PatchParams::default(), &Patch::Merge(by_https)).await.map_err(plain)?;
    all_say("no answer within 1 s").await?;
    let by_http = json!({"spec": {"healthCheck": {"scheme": "HTTP"}}});
    api.patch(NAME, &PatchParams::default(), &Patch::Merge(by_http)).await.map_err(plain)?;
    all_say("").await?;
    api.delete(NAME, &DeleteParams::default()).await.map_err(plain)?;
    observer
        .wait("the LoadBalancer to be gone", || async {
            ensure!(api.get_opt(NAME).await.map_err(plain)?.is_none(), "it is there");
            Ok(())
        })
        .await?;
    Ok(format!(
        "{} VMs answer at /healthz?full=1; by HTTPS each has the last error \"no answer within 1 s\"",
        machines.len()
    ))
}
