//! Carrying out the steps. Every one can be repeated: already so and already gone are no failures.

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{FINALIZER, decide::Marks};

/// Writes to Services. Patches of our own keys only, and only on the version that the decision was made on: the write
/// of a leader that was stopped for a while must not undo what its successor did.
#[derive(Clone)]
pub(super) struct Pen {
    pub(super) client: Client,
}

impl Pen {
    fn api(&self, service: &Service) -> Api<Service> {
        Api::namespaced(self.client.clone(), &service.namespace().unwrap_or_default())
    }

    /// A strategic merge: our finalizer is added to the list whatever else is in it.
    pub(super) async fn mark(
        &self,
        service: &Service,
        finalize: bool,
        marks: &Marks,
    ) -> kube::Result<Service> {
        let mut metadata = json!({});
        if finalize {
            metadata["finalizers"] = json!([FINALIZER]);
        }
        if !marks.is_empty() {
            metadata["annotations"] = json!(marks);
        }
        self.patch(service, metadata).await
    }

    pub(super) async fn release(&self, service: &Service, marks: &Marks) -> kube::Result<Service> {
        let mut metadata = json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]});
        if !marks.is_empty() {
            metadata["annotations"] = json!(marks);
        }
        self.patch(service, metadata).await
    }

    async fn patch(&self, service: &Service, mut metadata: Value) -> kube::Result<Service> {
        metadata["resourceVersion"] = json!(service.metadata.resource_version);
        let patch = Patch::Strategic(json!({"metadata": metadata}));
        self.api(service).patch(&service.name_any(), &PatchParams::default(), &patch).await
    }

    /// One address in `status.loadBalancer`, or none.
    pub(super) async fn publish(&self, service: &Service, address: Option<&str>) -> kube::Result<Service> {
        let ingress = match address {
            Some(address) if address.parse::<std::net::IpAddr>().is_ok() => json!([{"ip": address}]),
            Some(name) => json!([{"hostname": name}]),
            None => Value::Null,
        };
        let metadata = json!({"resourceVersion": service.metadata.resource_version});
        let patch =
            Patch::Merge(json!({"metadata": metadata, "status": {"loadBalancer": {"ingress": ingress}}}));
        self.api(service).patch_status(&service.name_any(), &PatchParams::default(), &patch).await
    }
}
