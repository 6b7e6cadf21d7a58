//! The built-in kinds that the simulated server knows.
//!
//! Facts as in kube-apiserver 1.36's discovery and registry; kinds that few controllers and few people
//! use are left out; a request for one gets the answer of a server on which that API is turned off.

use std::sync::LazyLock;

use crate::kind::{ALL_VERBS, Kind, Origin, Scope};

/// One kind a line: group/version, plural, kind, flags, then `key=a,b` for short names (`s`), categories (`c`),
/// subresources (`r`) and selectable fields (`f`).
///
/// Flags: `n` namespaced, `g` keeps a generation, `u` PUT without a version is accepted, `c` PUT creates,
/// `o` can only be created (reviews), `k` has no deletecollection.
const TABLE: &str = "
v1 configmaps ConfigMap nu s=cm
v1 endpoints Endpoints nuc s=ep
v1 events Event nuc s=ev f=involvedObject.kind,involvedObject.namespace,involvedObject.name,involvedObject.uid,involvedObject.apiVersion,involvedObject.resourceVersion,involvedObject.fieldPath,reason,reportingComponent,source,type
v1 limitranges LimitRange nuc s=limits
v1 namespaces Namespace uk s=ns r=finalize,status f=status.phase
v1 nodes Node u s=no r=status f=spec.unschedulable
v1 persistentvolumeclaims PersistentVolumeClaim nu s=pvc r=status
v1 persistentvolumes PersistentVolume u s=pv r=status
v1 pods Pod nug s=po c=all r=ephemeralcontainers,eviction,status f=spec.nodeName,spec.restartPolicy,spec.schedulerName,spec.serviceAccountName,spec.hostNetwork,status.phase,status.podIP,status.podIPs,status.nominatedNodeName
v1 resourcequotas ResourceQuota nu s=quota r=status
v1 secrets Secret nu f=type
v1 serviceaccounts ServiceAccount nu s=sa r=token
v1 services Service nuc s=svc c=all r=status f=spec.clusterIP,spec.type
admissionregistration.k8s.io/v1 mutatingwebhookconfigurations MutatingWebhookConfiguration g c=api-extensions
admissionregistration.k8s.io/v1 validatingwebhookconfigurations ValidatingWebhookConfiguration g c=api-extensions
apiextensions.k8s.io/v1 customresourcedefinitions CustomResourceDefinition g s=crd,crds c=api-extensions r=status
apiregistration.k8s.io/v1 apiservices APIService - c=api-extensions r=status
apps/v1 controllerrevisions ControllerRevision nu
apps/v1 daemonsets DaemonSet nug s=ds c=all r=status
apps/v1 deployments Deployment nug s=deploy c=all r=scale,status
apps/v1 replicasets ReplicaSet nug s=rs c=all r=scale,status
apps/v1 statefulsets StatefulSet nug s=sts c=all r=scale,status
authentication.k8s.io/v1 selfsubjectreviews SelfSubjectReview o
authentication.k8s.io/v1 tokenreviews TokenReview o
authorization.k8s.io/v1 localsubjectaccessreviews LocalSubjectAccessReview no
authorization.k8s.io/v1 selfsubjectaccessreviews SelfSubjectAccessReview o
authorization.k8s.io/v1 selfsubjectrulesreviews SelfSubjectRulesReview o
authorization.k8s.io/v1 subjectaccessreviews SubjectAccessReview o
batch/v1 cronjobs CronJob nug s=cj c=all r=status
batch/v1 jobs Job nug c=all r=status f=status.successful
coordination.k8s.io/v1 leases Lease nc
discovery.k8s.io/v1 endpointslices EndpointSlice nug
events.k8s.io/v1 events Event nuc s=ev f=reason,regarding.kind,regarding.namespace,regarding.name,regarding.uid,regarding.apiVersion,regarding.resourceVersion,regarding.fieldPath,reportingController,type
networking.k8s.io/v1 ingressclasses IngressClass ug
networking.k8s.io/v1 ingresses Ingress nug s=ing r=status
networking.k8s.io/v1 networkpolicies NetworkPolicy nug s=netpol
policy/v1 poddisruptionbudgets PodDisruptionBudget ng s=pdb r=status
rbac.authorization.k8s.io/v1 clusterrolebindings ClusterRoleBinding uc
rbac.authorization.k8s.io/v1 clusterroles ClusterRole uc
rbac.authorization.k8s.io/v1 rolebindings RoleBinding nuc
rbac.authorization.k8s.io/v1 roles Role nuc
scheduling.k8s.io/v1 priorityclasses PriorityClass ug s=pc
storage.k8s.io/v1 csidrivers CSIDriver g
storage.k8s.io/v1 csinodes CSINode -
storage.k8s.io/v1 csistoragecapacities CSIStorageCapacity n
storage.k8s.io/v1 storageclasses StorageClass u s=sc
storage.k8s.io/v1 volumeattachments VolumeAttachment - r=status
";

static KINDS: LazyLock<Vec<Kind>> =
    LazyLock::new(|| TABLE.lines().filter(|line| !line.is_empty()).map(kind).collect());

/// The built-in kinds, in the order of group, version and plural.
pub fn kinds() -> &'static [Kind] {
    &KINDS
}

/// The built-in kind that an object names by `apiVersion` and `kind`.
pub fn find(api_version: &str, kind: &str) -> Option<&'static Kind> {
    let (group, version) = crate::kind::group_version(api_version);
    KINDS.iter().find(|k| k.kind == kind && k.group == group && k.version == version)
}

fn kind(line: &str) -> Kind {
    const SHAPE: &str = "the table has group/version, plural, kind and flags in every line";
    let mut words = line.split(' ');
    let (group, version) = crate::kind::group_version(words.next().expect(SHAPE));
    let plural = words.next().expect(SHAPE);
    let kind = words.next().expect(SHAPE);
    let flags = words.next().expect(SHAPE);
    let mut lists = [("s", vec![]), ("c", vec![]), ("r", vec![]), ("f", vec![])];
    for word in words {
        let (key, values) = word.split_once('=').expect(SHAPE);
        let list = lists.iter_mut().find(|(name, _)| *name == key).expect(SHAPE);
        list.1 = values.split(',').map(str::to_owned).collect();
    }
    let [(_, short_names), (_, categories), (_, subresources), (_, selectable)] = lists;
    let has = |flag: char| flags.contains(flag);
    let verbs = match (has('o'), has('k')) {
        (true, _) => vec!["create".to_owned()],
        (false, no_collection) => ALL_VERBS
            .into_iter()
            .filter(|verb| !(no_collection && *verb == "deletecollection"))
            .map(str::to_owned)
            .collect(),
    };
    Kind {
        group: group.to_owned(),
        version: version.to_owned(),
        list_kind: format!("{kind}List"),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        short_names,
        categories,
        scope: if has('n') { Scope::Namespaced } else { Scope::Cluster },
        subresources,
        verbs,
        columns: Vec::new(),
        selectable,
        keeps_generation: has('g'),
        unconditional_update: has('u'),
        create_on_update: has('c'),
        storage: true,
        origin: Origin::Builtin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_kind_and_none_is_there_twice() {
        let mut names = kinds().iter().map(|k| (k.api_version(), &k.plural)).collect::<Vec<_>>();
        assert_eq!(names.len(), TABLE.lines().count() - 1);
        names.dedup();
        assert_eq!(names.len(), kinds().len());
    }

    #[test]
    fn a_service_is_described_as_the_real_server_describes_it() {
        let service = find("v1", "Service").unwrap();
        assert_eq!((service.plural.as_str(), service.singular.as_str()), ("services", "service"));
        assert_eq!(service.short_names, ["svc"]);
        assert!(service.namespaced() && service.has_status() && service.offers("deletecollection"));
        // pitfalls of real clusters: a Service has no generation, a Lease is never updated blindly
        assert!(!service.keeps_generation && service.unconditional_update);
        assert!(!find("coordination.k8s.io/v1", "Lease").unwrap().unconditional_update);
        assert_eq!(find("authorization.k8s.io/v1", "SelfSubjectAccessReview").unwrap().verbs, ["create"]);
        assert!(find("v1", "Deployment").is_none());
    }
}
