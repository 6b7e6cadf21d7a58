//! What lies on a cluster before a test begins: the kinds of `deploy/crds/` and of a Harvester host, and the roles of
//! `deploy/rbac/`.

use std::sync::LazyLock;

use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::ApiResource;
use serde_json::Value;

use crate::user::{GuestCluster, Side};

/// Which set of roles the parts run with. Every component test runs with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Those of the existing charts: only the images were swapped.
    Existing,
    /// The least that our parts need to do all that they can do.
    Ours,
}

/// Label of each role: the cluster that it belongs to.
const APPLIES_TO: &str = "/metadata/labels/harvesterhci.io~1applies-to";
/// Guest cluster that the bindings of the files stand for: their names end so, and those of their subjects.
const EXAMPLE: &str = "-demo";

/// The roles for one cluster, with the binding of `guest`'s account, and the Secrets that a program with our roles fills, and
/// may not make.
///
/// # Panics
/// When a file of `deploy/rbac/` is not YAML; a test of this crate would have told.
#[must_use]
pub fn roles(rights: Rights, side: Side, guest: &GuestCluster) -> Vec<Value> {
    let file = match rights {
        Rights::Existing => include_str!("../../../deploy/rbac/existing.yaml"),
        Rights::Ours => include_str!("../../../deploy/rbac/ours.yaml"),
    };
    let mut roles = documents(file).expect("the files of deploy/rbac are YAML");
    roles.retain(|role| role.pointer(APPLIES_TO).and_then(Value::as_str) == Some(side.name()));
    for role in &mut roles {
        let name = role["metadata"]["name"].as_str().unwrap_or_default();
        let Some(binding) = name.strip_suffix(EXAMPLE) else { continue };
        let (binding, namespace) = (format!("{binding}-{}", guest.name), guest.vm_namespace.as_str());
        role["metadata"]["name"] = binding.into();
        let account = role["subjects"][0]["name"].as_str().unwrap_or_default();
        let account = format!("{}-{}", account.trim_end_matches(EXAMPLE), guest.name);
        if role["kind"] == "RoleBinding" {
            role["metadata"]["namespace"] = namespace.into();
        }
        role["subjects"][0]["name"] = account.into();
        role["subjects"][0]["namespace"] = namespace.into();
    }
    roles
}

/// The kinds that a cluster has besides those of Kubernetes: none in a guest.
///
/// # Panics
/// When a file of `deploy/crds/` is not YAML; a test of this crate would have told.
#[must_use]
pub fn kinds(side: Side) -> &'static [Value] {
    // read once: whoever applies an object looks its kind up here
    static HARVESTERS: LazyLock<Vec<Value>> = LazyLock::new(|| {
        let files = [
            include_str!("../../../deploy/crds/loadbalancers.yaml"),
            include_str!("../../../deploy/crds/ippools.yaml"),
            include_str!("../../sim-harvester/crds/kubevirt.io_virtualmachines.yaml"),
            include_str!("../../sim-harvester/crds/kubevirt.io_virtualmachineinstances.yaml"),
            include_str!("../../sim-harvester/crds/kubevirt.io_virtualmachineinstancemigrations.yaml"),
            include_str!("../../sim-harvester/crds/k8s.cni.cncf.io_network-attachment-definitions.yaml"),
            include_str!("../../sim-harvester/crds/harvesterhci.io_settings.yaml"),
            include_str!("../../sim-harvester/crds/harvesterhci.io_virtualmachineimages.yaml"),
            include_str!("../../sim-harvester/crds/harvesterhci.io_keypairs.yaml"),
            include_str!("../../sim-harvester/crds/snapshot.storage.k8s.io_volumesnapshots.yaml"),
            include_str!("../../sim-harvester/crds/snapshot.storage.k8s.io_volumesnapshotclasses.yaml"),
            include_str!("../../sim-harvester/crds/harvesterhci.io_volumeremotebackups.yaml"),
            include_str!("../../sim-harvester/crds/harvesterhci.io_volumeremoterestores.yaml"),
            include_str!("../../sim-harvester/crds/harvesterhci.io_networkfilesystems.yaml"),
        ];
        files.iter().flat_map(|file| documents(file).expect("the files of deploy/crds are YAML")).collect()
    });
    match side {
        Side::Guest => &[],
        Side::Harvester => &HARVESTERS,
    }
}

/// The resource of a kind, and whether it lies in namespaces.
pub(crate) fn resource(side: Side, types: &TypeMeta) -> (ApiResource, bool) {
    let gvk = GroupVersionKind::try_from(types).expect("an apiVersion has at most one slash");
    let mut custom = kinds(side).iter().map(|kind| &kind["spec"]);
    match custom.find(|spec| spec["group"] == gvk.group && spec["names"]["kind"] == gvk.kind) {
        Some(spec) => {
            let plural = spec["names"]["plural"].as_str().expect("a kind has a plural");
            (ApiResource::from_gvk_with_plural(&gvk, plural), spec["scope"] == "Namespaced")
        }
        None => (ApiResource::from_gvk(&gvk), !CLUSTER_SCOPED.contains(&gvk.kind.as_str())),
    }
}

/// Kinds of Kubernetes that lie in no namespace.
const CLUSTER_SCOPED: [&str; 13] = [
    "APIService",
    "CSIDriver",
    "CSINode",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "PersistentVolume",
    "StorageClass",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
];

/// The namespaces that a cluster has besides those of Kubernetes.
#[must_use]
pub fn namespaces(side: Side, guest: &GuestCluster) -> Vec<String> {
    match side {
        Side::Guest => vec![],
        Side::Harvester => vec!["harvester-system".to_owned(), guest.vm_namespace.clone()],
    }
}

/// The documents of a YAML file, empty ones left out.
///
/// # Errors
/// Where it is not YAML.
pub fn documents(yaml: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    documents.retain(|document| !document.is_null());
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rights: Rights, side: Side) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let roles = roles(rights, side, &GuestCluster::default());
        roles
            .iter()
            .map(|role| format!("{} {}", text(&role["kind"]), text(&role["metadata"]["name"])))
            .collect()
    }

    #[test]
    fn the_existing_roles_are_split_between_the_clusters() {
        assert_eq!(
            names(Rights::Existing, Side::Guest),
            [
                "ClusterRole harvester-cloud-controller-manager",
                "ClusterRoleBinding harvester-cloud-controller-manager",
                "ClusterRole harvester-csi-driver",
                "ClusterRoleBinding harvester-csi-driver",
            ]
        );
        assert_eq!(
            names(Rights::Existing, Side::Harvester),
            [
                "ClusterRole harvester-load-balancer",
                "ClusterRoleBinding harvester-load-balancer",
                "ClusterRole harvester-load-balancer-webhook",
                "ClusterRoleBinding harvester-load-balancer-webhook",
                "ClusterRole harvesterhci.io:cloudprovider",
                "ClusterRole harvesterhci.io:csi-driver",
                "ClusterRole harvester-authenticated",
                "ClusterRoleBinding harvester-authenticated",
                "RoleBinding harvester-cloud-provider-blue",
                "RoleBinding harvester-csi-driver-blue",
                "ClusterRoleBinding harvester-csi-driver-blue",
            ]
        );
    }

    /// A rule for `create` cannot name what may be created, and a Secret may be a token of any account.
    #[test]
    fn no_role_of_ours_may_create_secrets_and_those_that_one_fills_are_there_empty() {
        let roles = roles(Rights::Ours, Side::Harvester, &GuestCluster::default());
        let names = |list: &Value, name: &str| {
            list.as_array().is_some_and(|list| list.iter().any(|one| one == name || one == "*"))
        };
        let rules = roles.iter().flat_map(|role| role["rules"].as_array().into_iter().flatten());
        let on_secrets: Vec<_> = rules.filter(|rule| names(&rule["resources"], "secrets")).collect();
        let named: Vec<_> =
            on_secrets.iter().flat_map(|rule| rule["resourceNames"].as_array().unwrap()).collect();
        assert!(on_secrets.iter().all(|rule| !names(&rule["verbs"], "create")), "{on_secrets:?}");
        let secrets: Vec<_> = roles.iter().filter(|one| one["kind"] == "Secret").collect();
        assert_eq!(secrets.iter().map(|one| &one["metadata"]["name"]).collect::<Vec<_>>(), named);
        let nothing_is_said = |one: &&Value| one.as_object().unwrap().len() == 3;
        assert!(secrets.iter().all(nothing_is_said), "an apply would empty one: {secrets:?}");
    }

    #[test]
    fn every_role_says_which_cluster_it_is_for() {
        for file in [
            include_str!("../../../deploy/rbac/existing.yaml"),
            include_str!("../../../deploy/rbac/ours.yaml"),
        ] {
            for role in documents(file).unwrap() {
                let side = role.pointer(APPLIES_TO).and_then(Value::as_str);
                assert!(matches!(side, Some("guest" | "harvester")), "{role}");
            }
        }
    }

    #[test]
    fn the_bindings_of_a_guest_cluster_name_its_accounts_and_namespace() {
        let roles = roles(Rights::Ours, Side::Harvester, &GuestCluster::default());
        let bindings: Vec<_> = roles[roles.len() - 3..]
            .iter()
            .map(|role| (role["metadata"]["namespace"].as_str(), role["subjects"].clone()))
            .collect();
        let subject =
            |name| serde_json::json!([{"kind": "ServiceAccount", "namespace": "team-a", "name": name}]);
        let (ccm, csi) = (subject("harvester-cloud-provider-blue"), subject("harvester-csi-driver-blue"));
        assert_eq!(bindings, [(Some("team-a"), ccm), (Some("team-a"), csi.clone()), (None, csi)]);
    }

    /// A watch that a role refuses costs a feature its promptness, in silence.
    #[test]
    fn the_load_balancer_may_watch_every_kind_that_it_follows() {
        const FOLLOWED: [(&str, &str); 8] = [
            ("loadbalancer.harvesterhci.io", "loadbalancers"),
            ("loadbalancer.harvesterhci.io", "ippools"),
            ("", "services"),
            ("", "configmaps"),
            ("discovery.k8s.io", "endpointslices"),
            ("kubevirt.io", "virtualmachines"),
            ("kubevirt.io", "virtualmachineinstances"),
            ("apiextensions.k8s.io", "customresourcedefinitions"),
        ];
        for rights in [Rights::Existing, Rights::Ours] {
            let roles = roles(rights, Side::Harvester, &GuestCluster::default());
            let is_it = |role: &&Value| {
                role["kind"] == "ClusterRole" && role["metadata"]["name"] == "harvester-load-balancer"
            };
            let rules = roles.iter().find(is_it).unwrap()["rules"].as_array().unwrap();
            let names = |list: &Value, name: &str| list.as_array().unwrap().contains(&name.into());
            for (group, resource) in FOLLOWED {
                let granted = |verb: &str| {
                    rules.iter().any(|rule| {
                        names(&rule["apiGroups"], group)
                            && names(&rule["resources"], resource)
                            && names(&rule["verbs"], verb)
                    })
                };
                let missing: Vec<_> =
                    ["get", "list", "watch"].into_iter().filter(|verb| !granted(verb)).collect();
                assert!(missing.is_empty(), "{rights:?} role: {missing:?} {resource}.{group}");
            }
        }
    }

    /// The roles are part of Harvester: ours stand beside them.
    #[test]
    fn what_a_guests_credentials_may_do_is_harvesters_and_the_same_in_both_sets() {
        for name in ["harvesterhci.io:cloudprovider", "harvesterhci.io:csi-driver", "harvester-authenticated"]
        {
            let role = |rights| {
                let roles = roles(rights, Side::Harvester, &GuestCluster::default());
                roles.into_iter().find(|role| role["metadata"]["name"] == name).unwrap()
            };
            assert_eq!(role(Rights::Existing), role(Rights::Ours));
        }
    }
}
