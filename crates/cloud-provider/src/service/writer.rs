//! The writes of the service controller. Each can be repeated: already so and already gone are no failures.

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::FINALIZER;
use crate::{Annotations, IngressAddress, Labels};

/// Patches Services: our own keys only, and only the version that the decision was made on. A leader that was stopped
/// for a while must not undo the writes of its successor.
#[derive(Clone)]
pub(super) struct ServiceWriter {
    client: Client,
}

impl ServiceWriter {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    fn api(&self, service: &Service) -> Api<Service> {
        Api::namespaced(self.client.clone(), &service.namespace().unwrap_or_default())
    }

    /// A strategic merge adds our finalizer to the list, whatever else is in it.
    pub(super) async fn prepare(
        &self,
        service: &Service,
        add_finalizer: bool,
        annotations: &Annotations,
        labels: &Labels,
    ) -> kube::Result<Service> {
        let finalizers = if add_finalizer { json!({"finalizers": [FINALIZER]}) } else { json!({}) };
        self.patch(service, with(finalizers, annotations, labels)).await
    }

    pub(super) async fn release(
        &self,
        service: &Service,
        annotations: &Annotations,
        labels: &Labels,
    ) -> kube::Result<Service> {
        let finalizers = json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]});
        self.patch(service, with(finalizers, annotations, labels)).await
    }

    async fn patch(&self, service: &Service, mut metadata: Value) -> kube::Result<Service> {
        metadata["resourceVersion"] = json!(service.metadata.resource_version);
        let patch = Patch::Strategic(json!({"metadata": metadata}));
        self.api(service).patch(&service.name_any(), &PatchParams::default(), &patch).await
    }

    /// Writes `addresses` as the whole of `status.loadBalancer.ingress`.
    pub(super) async fn publish(
        &self,
        service: &Service,
        addresses: &[IngressAddress],
    ) -> kube::Result<Service> {
        let entry = |address: &IngressAddress| match address {
            IngressAddress::Ip(ip) => json!({"ip": ip}),
            IngressAddress::Hostname(name) => json!({"hostname": name}),
        };
        let ingress = match addresses {
            [] => Value::Null,
            addresses => addresses.iter().map(entry).collect(),
        };
        let metadata = json!({"resourceVersion": service.metadata.resource_version});
        let patch =
            Patch::Merge(json!({"metadata": metadata, "status": {"loadBalancer": {"ingress": ingress}}}));
        self.api(service).patch_status(&service.name_any(), &PatchParams::default(), &patch).await
    }
}

fn with(mut metadata: Value, annotations: &Annotations, labels: &Labels) -> Value {
    for (key, values) in [("annotations", annotations), ("labels", labels)] {
        if !values.is_empty() {
            metadata[key] = json!(values);
        }
    }
    metadata
}
