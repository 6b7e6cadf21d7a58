//! The definitions of the foreign kinds that Harvester would bring. Their schemas keep every field, since they are
//! not ours; names, scopes, printer columns and status subresources are those of the originals.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt, api::PostParams};

const FILES: [&str; 13] = [
    include_str!("../crds/kubevirt.io_virtualmachines.yaml"),
    include_str!("../crds/kubevirt.io_virtualmachineinstances.yaml"),
    include_str!("../crds/kubevirt.io_virtualmachineinstancemigrations.yaml"),
    include_str!("../crds/k8s.cni.cncf.io_network-attachment-definitions.yaml"),
    include_str!("../crds/harvesterhci.io_settings.yaml"),
    include_str!("../crds/harvesterhci.io_virtualmachineimages.yaml"),
    include_str!("../crds/harvesterhci.io_keypairs.yaml"),
    include_str!("../crds/snapshot.storage.k8s.io_volumesnapshots.yaml"),
    include_str!("../crds/snapshot.storage.k8s.io_volumesnapshotclasses.yaml"),
    include_str!("../crds/harvesterhci.io_volumeremotebackups.yaml"),
    include_str!("../crds/harvesterhci.io_volumeremoterestores.yaml"),
    include_str!("../crds/harvesterhci.io_networkfilesystems.yaml"),
    include_str!("../crds/longhorn.io_volumes.yaml"),
];

/// All definitions, in a fixed order.
pub fn all() -> Vec<CustomResourceDefinition> {
    FILES.iter().map(|text| serde_saphyr::from_str(text).expect("a test reads every file")).collect()
}

/// Creates those that are not there; one that is there stays as it is, since somebody brought a better one.
///
/// # Errors
/// The server's first refusal.
pub async fn apply(harvester: &Client) -> kube::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(harvester.clone());
    for definition in all() {
        match api.create(&PostParams::default(), &definition).await {
            Ok(_) => tracing::debug!(crd = %definition.name_any(), "created"),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_definition_named_after_its_kind() {
        let names: Vec<_> = all().iter().map(ResourceExt::name_any).collect();
        let expected: Vec<_> =
            all().iter().map(|crd| format!("{}.{}", crd.spec.names.plural, crd.spec.group)).collect();
        assert_eq!(names, expected);
        assert_eq!(names.len(), 13);
    }

    #[test]
    fn only_kinds_that_have_it_with_their_owner_have_a_status_subresource() {
        let with: Vec<_> = all()
            .iter()
            .filter(|crd| crd.spec.versions.iter().any(|version| version.subresources.is_some()))
            .map(|crd| crd.spec.names.kind.clone())
            .collect();
        let of_volumes =
            ["VolumeSnapshot", "VolumeRemoteBackup", "VolumeRemoteRestore", "NetworkFilesystem", "Volume"];
        let expected =
            ["VirtualMachine", "VirtualMachineInstanceMigration", "Setting"].iter().chain(&of_volumes);
        assert!(with.iter().eq(expected), "{with:?}");
    }
}
