//! The kinds of snapshots, which are no part of Kubernetes.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResource, api::PostParams};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const FILES: [&str; 3] = [
    include_str!("../../sim-harvester/crds/snapshot.storage.k8s.io_volumesnapshots.yaml"),
    include_str!("../../sim-harvester/crds/snapshot.storage.k8s.io_volumesnapshotclasses.yaml"),
    include_str!("../crds/snapshot.storage.k8s.io_volumesnapshotcontents.yaml"),
];

/// The definitions.
///
/// # Panics
/// Never: a test reads every file.
pub fn all() -> Vec<CustomResourceDefinition> {
    FILES.iter().map(|text| serde_saphyr::from_str(text).expect("a test reads every file")).collect()
}

/// Creates those that are not there.
///
/// # Errors
/// The server's first refusal.
pub async fn apply(guest: &Client) -> kube::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(guest.clone());
    for definition in all() {
        match api.create(&PostParams::default(), &definition).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            answer => drop(answer?),
        }
    }
    Ok(())
}

macro_rules! snapshot_kind {
    ($(#[$doc:meta])* $spec:ident, $kind:literal, $plural:literal $(, $scope:ident)?) => {
        $(#[$doc])*
        #[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[kube(
            group = "snapshot.storage.k8s.io",
            version = "v1",
            kind = $kind,
            plural = $plural,
            $($scope,)?
            schema = "disabled",
            status = "Fields",
            derive = "PartialEq"
        )]
        pub struct $spec {
            #[serde(flatten)]
            pub fields: Map<String, Value>,
        }
    };
}

/// Fields as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fields {
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

snapshot_kind!(
    /// A snapshot that a user asks for.
    VolumeSnapshotSpec, "VolumeSnapshot", "volumesnapshots", namespaced
);
snapshot_kind!(
    /// The driver's snapshot behind it.
    VolumeSnapshotContentSpec, "VolumeSnapshotContent", "volumesnapshotcontents"
);

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;

    #[test]
    fn every_file_is_a_definition_named_after_its_kind() {
        for definition in all() {
            let expected = format!("{}.{}", definition.spec.names.plural, definition.spec.group);
            assert_eq!(definition.name_any(), expected);
        }
    }
}
