//! The rights that the driver needs in both clusters: which role grants each, since when, and what is off without it. Pure.
//!
//! An API server says in one sentence which verb on which resource it refuses. This module adds what the reader needs
//! next: the role, the release that grants it, and what is off without it. The rights on the Secret of a renewed token are
//! not here: whoever renews it tells of them.

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use program::capabilities::Right;

use crate::lease;

/// A role that grants rights to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Of the host, bound in the namespace of the machines.
    CloudProvider,
    /// Of the host, bound in the whole cluster.
    CsiDriver,
    /// Of the guest cluster.
    Guest,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::CloudProvider => "harvesterhci.io:cloudprovider",
            Self::CsiDriver => "harvesterhci.io:csi-driver",
            Self::Guest => "harvester-csi-driver",
        }
    }
}

/// A right, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub verb: &'static str,
    /// API group; empty for the core.
    pub group: &'static str,
    /// Plural, and a subresource behind a slash.
    pub resource: &'static str,
    /// The one object that it is about.
    pub name: Option<&'static str>,
    pub role: Role,
    /// The first release of Harvester whose role has it; empty for all.
    pub since: &'static str,
    /// What is so while it is refused.
    pub off: &'static str,
}

const KUBEVIRT: &str = "kubevirt.io";
const SUBRESOURCES: &str = "subresources.kubevirt.io";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const LONGHORN: &str = "longhorn.io";
const HARVESTER: &str = "harvesterhci.io";
const STORAGE: &str = "storage.k8s.io";
const CLAIMS: &str = "persistentvolumeclaims";
const MACHINES: &str = "virtualmachines";
const INSTANCES: &str = "virtualmachineinstances";
const EXPORTS: &str = "networkfilesystems";
const BACKUPS: &str = "volumeremotebackups";
const RESTORES: &str = "volumeremoterestores";
const TAKEN: &str = "volumesnapshots";
const LEASES: &str = "leases";

const LATE: &str = "changes are noticed up to ten seconds late";
/// Healing acts on what is watched alone.
const UNHEALED: &str = "changes are noticed up to ten seconds late; no volume is healed";
/// So do those who look for lost machines.
const BLIND: &str = "changes are noticed up to ten seconds late; no volume is healed, and no Node of a lost machine gets the taint";
const NO_EXPORTS: &str = "no volume for many nodes is created, or none is attached: ask for ReadWriteOnce";
const BY_WATCH: &str = "volumes are attached and detached only while the watches work";
const NO_RESTORE: &str = "no remote backup is restored";
const UNTAINTED: &str = "no Node of a lost machine gets the taint";
/// Healing and the search for lost machines both begin with it.
const UNKNOWN_MACHINES: &str = "no volume is healed, and no Node of a lost machine gets the taint";
const NO_HEALING: &str = "no volume is healed, and no token is renewed";
const NO_MONITOR: &str = "no Node of a lost machine gets the taint, and no claim gets its cluster's label";
const SLOW_CHANGE: &str = "the next holder of the Lease comes up to two seconds later";

const fn machine(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    off: &'static str,
) -> Grant {
    Grant { verb, group, resource, name: None, role: Role::CloudProvider, since: "", off }
}

const fn wide(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    since: &'static str,
    off: &'static str,
) -> Grant {
    Grant { verb, group, resource, name: None, role: Role::CsiDriver, since, off }
}

const fn guest(verb: &'static str, group: &'static str, resource: &'static str, off: &'static str) -> Grant {
    Grant { verb, group, resource, name: None, role: Role::Guest, since: "", off }
}

const fn on_lease(verb: &'static str, name: &'static str, off: &'static str) -> Grant {
    Grant { name: Some(name), ..guest(verb, "coordination.k8s.io", LEASES, off) }
}

/// Every right that the driver asks for.
pub static GRANTS: [Grant; 64] = [
    machine("get", "", CLAIMS, "no volume is found"),
    machine(
        "list",
        "",
        CLAIMS,
        "volumes are neither listed, deleted nor healed, and changes are noticed up to ten seconds late",
    ),
    machine("watch", "", CLAIMS, UNHEALED),
    machine("create", "", CLAIMS, "no volume is created"),
    machine("patch", "", CLAIMS, "no volume is attached, detached or grown"),
    machine("delete", "", CLAIMS, "no volume is deleted"),
    machine("get", KUBEVIRT, MACHINES, BY_WATCH),
    machine("list", KUBEVIRT, MACHINES, "no volume is attached, grown or listed"),
    machine("watch", KUBEVIRT, MACHINES, BLIND),
    machine("get", KUBEVIRT, INSTANCES, BY_WATCH),
    machine("list", KUBEVIRT, INSTANCES, "no volume is attached, and a node has to have its machine's name"),
    machine("watch", KUBEVIRT, INSTANCES, BLIND),
    machine(
        "update",
        SUBRESOURCES,
        "virtualmachines/addvolume",
        "no volume is attached on Harvester before 1.8",
    ),
    machine(
        "update",
        SUBRESOURCES,
        "virtualmachines/removevolume",
        "no volume is detached on Harvester before 1.8",
    ),
    machine(
        "update",
        SUBRESOURCES,
        "virtualmachineinstances/removevolume",
        "a volume that the running instance alone has is not detached on Harvester before 1.8",
    ),
    wide(
        "patch",
        KUBEVIRT,
        MACHINES,
        "1.8",
        "machines are changed by subresources, and what a process left behind is taken over a minute later",
    ),
    wide("get", STORAGE, "storageclasses", "1.2", "the class of a new volume is not checked"),
    wide("list", STORAGE, "storageclasses", "1.2", "the default class of the host is not known"),
    wide("get", HARVESTER, EXPORTS, "1.4", "no volume for many nodes is created, attached or deleted"),
    wide("list", HARVESTER, EXPORTS, "1.4", "no volume for many nodes is created: ask for ReadWriteOnce"),
    wide("watch", HARVESTER, EXPORTS, "1.4", LATE),
    wide("create", HARVESTER, EXPORTS, "1.4", NO_EXPORTS),
    wide("patch", HARVESTER, EXPORTS, "1.4", NO_EXPORTS),
    wide("delete", HARVESTER, EXPORTS, "1.4", "no volume for many nodes is deleted"),
    wide("get", HARVESTER, BACKUPS, "1.8", "no remote backup is made, restored or deleted"),
    wide("list", HARVESTER, BACKUPS, "1.8", "remote backups are not listed"),
    wide("watch", HARVESTER, BACKUPS, "1.8", LATE),
    wide("create", HARVESTER, BACKUPS, "1.8", "no remote backup is made"),
    wide("delete", HARVESTER, BACKUPS, "1.8", "no remote backup is deleted"),
    wide("get", HARVESTER, RESTORES, "1.8", NO_RESTORE),
    wide("list", HARVESTER, RESTORES, "1.8", LATE),
    wide("watch", HARVESTER, RESTORES, "1.8", LATE),
    wide("create", HARVESTER, RESTORES, "1.8", NO_RESTORE),
    wide("delete", HARVESTER, RESTORES, "1.8", "no volume that was restored from a remote backup is deleted"),
    wide(
        "get",
        LONGHORN,
        "volumes",
        "1.4",
        "a restored or copied volume counts as filled when its claim on Harvester is bound",
    ),
    Grant {
        name: Some("csi-driver-config"),
        ..wide("get", HARVESTER, "settings", "1.7", "no snapshot is made")
    },
    wide("get", SNAPSHOTS, TAKEN, "1.7", "no snapshot is made or restored"),
    wide(
        "list",
        SNAPSHOTS,
        TAKEN,
        "1.7",
        "snapshots are not listed, and a volume is deleted with those that it has",
    ),
    wide("watch", SNAPSHOTS, TAKEN, "1.7", LATE),
    wide("create", SNAPSHOTS, TAKEN, "1.7", "no snapshot is made"),
    wide("delete", SNAPSHOTS, TAKEN, "1.7", "no snapshot is deleted"),
    wide(
        "get",
        SNAPSHOTS,
        "volumesnapshotclasses",
        "1.7",
        "a volume is not deleted before its snapshots that are backups either, and those are restored into the size that \
         it has now",
    ),
    guest("get", STORAGE, "csinodes", "a node has no ID at its start while the host is away"),
    guest("list", STORAGE, "csinodes", UNKNOWN_MACHINES),
    guest("watch", STORAGE, "csinodes", UNKNOWN_MACHINES),
    guest("get", "", "persistentvolumes", "no claim gets its cluster's label"),
    guest(
        "list",
        "",
        "persistentvolumes",
        "no volume is healed, no claim gets its cluster's label, and no volume for many nodes is detached from its last \
         node",
    ),
    guest(
        "watch",
        "",
        "persistentvolumes",
        "no volume is healed, and no claim of a new volume gets its cluster's label",
    ),
    guest(
        "list",
        STORAGE,
        "volumeattachments",
        "no volume is healed, no volume for many nodes is detached from its last node, and no disk that keeps others out \
         of a machine is taken out of it",
    ),
    guest("watch", STORAGE, "volumeattachments", "no volume is healed"),
    guest(
        "patch",
        STORAGE,
        "volumeattachments",
        "the external attacher is not woken, and looks again by itself, after five minutes at most",
    ),
    guest(
        "get",
        "",
        "nodes",
        "no Node of a lost machine gets the taint, a disk of which no VolumeAttachment is left stays in its machine, and \
         with --topology a node does not register",
    ),
    guest(
        "list",
        "",
        "nodes",
        "no Node of a lost machine gets the taint, and with --topology no volume is created whose class has \
         allowedTopologies",
    ),
    guest("watch", "", "nodes", UNTAINTED),
    guest("update", "", "nodes", UNTAINTED),
    guest("create", "", "events", "what is off is in the log alone"),
    guest("patch", "", "events", "an Event that is repeated is not counted up"),
    on_lease("get", lease::HEALING, NO_HEALING),
    on_lease("watch", lease::HEALING, SLOW_CHANGE),
    on_lease("update", lease::HEALING, NO_HEALING),
    on_lease("get", lease::NODE_MONITOR, NO_MONITOR),
    on_lease("watch", lease::NODE_MONITOR, SLOW_CHANGE),
    on_lease("update", lease::NODE_MONITOR, NO_MONITOR),
    guest(
        "create",
        "coordination.k8s.io",
        LEASES,
        "no volume is healed, no token is renewed, no Node of a lost machine gets the taint, and no claim gets its \
         cluster's label",
    ),
];

/// The verb, the resource and the group that an API server's sentence says it refuses. An admission webhook speaks
/// otherwise.
fn refused(message: &str) -> Option<(&str, &str, &str)> {
    let (_, rest) = message.split_once(" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let group = rest.strip_prefix(" in API group \"")?.split('"').next()?;
    Some((verb, resource, group))
}

impl Grant {
    /// The right that an API server's sentence says it refuses, if it is one of ours.
    pub fn refused_by(message: &str) -> Option<&'static Self> {
        let (verb, resource, group) = refused(message)?;
        let is_it = |one: &&Self| {
            (one.verb, one.resource, one.group) == (verb, resource, group)
                && one.name.is_none_or(|name| message.contains(&format!("\"{name}\"")))
        };
        GRANTS.iter().find(is_it)
    }

    /// The right that a question asks about, if it is one of ours.
    pub fn asked_about(asked: &ResourceAttributes) -> Option<&'static Self> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let subresource = asked.subresource.iter().map(|name| format!("/{name}")).collect::<String>();
        let resource = text(&asked.resource) + &subresource;
        let is_it = |one: &&Self| {
            (one.verb, one.group, one.resource) == (&*text(&asked.verb), &*text(&asked.group), &*resource)
                && one.name.is_none_or(|name| asked.name.as_deref() == Some(name))
        };
        GRANTS.iter().find(is_it)
    }

    /// What grants the right, and what is so until then: the second half of a refusal.
    pub fn next_step(&self) -> String {
        let (role, off) = (self.role.name(), self.off);
        let role = match self.resource {
            LEASES => format!("Role {role} in namespace {}", lease::NAMESPACE),
            _ => format!("ClusterRole {role}"),
        };
        let (of, whose) = match (self.role, self.since) {
            (Role::Guest, _) => ("the guest cluster".to_owned(), "the driver's service account"),
            (_, "") => ("Harvester".to_owned(), "the account of the kubeconfig"),
            (_, since) => (format!("Harvester {since} and later"), "the account of the kubeconfig"),
        };
        format!("{role} of {of} grants this right, bind it to {whose}; until then {off}")
    }

    /// The right as a question for the API server of the host, whose machines are in this namespace.
    pub fn right(&self, namespace: &str) -> Right {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let right = Right::new(self.verb, self.group, resource).on(subresource);
        let right = match self.name {
            Some(name) => right.named(name),
            None => right,
        };
        match (self.role, resource) {
            (_, LEASES) => right.within(lease::NAMESPACE),
            (Role::Guest, _) | (_, "storageclasses" | "volumesnapshotclasses" | "settings") => right,
            (_, EXPORTS) => right.within(super::HARVESTER_SYSTEM),
            _ if self.group == LONGHORN => right.within(super::LONGHORN_SYSTEM),
            _ => right.within(namespace),
        }
    }
}

/// An API server's sentence with what grants the right that it refuses.
pub fn explained(message: String) -> String {
    match Grant::refused_by(&message) {
        Some(grant) => format!("{message}: {}", grant.next_step()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const REFUSED: &str = "volumesnapshots.snapshot.storage.k8s.io \"s\" is forbidden: User \"csi\" cannot get resource \
                           \"volumesnapshots\" in API group \"snapshot.storage.k8s.io\" in the namespace \"shop\"";

    #[test]
    fn a_refusal_names_verb_resource_role_release_and_what_is_off() {
        assert_eq!(
            explained(REFUSED.to_owned()),
            format!(
                "{REFUSED}: ClusterRole harvesterhci.io:csi-driver of Harvester 1.7 and later grants this right, bind it \
                 to the account of the kubeconfig; until then no snapshot is made or restored"
            )
        );
    }

    #[test]
    fn a_right_in_the_guest_cluster_is_granted_there() {
        let refused =
            "User \"csi\" cannot list resource \"persistentvolumes\" in API group \"\" at the cluster scope";
        let text = explained(refused.to_owned());
        assert!(
            text.contains("ClusterRole harvester-csi-driver of the guest cluster grants this right"),
            "{text}"
        );
    }

    #[test]
    fn a_right_on_a_lease_is_granted_in_its_namespace_and_is_about_that_lease() {
        let refused = "leases.coordination.k8s.io \"harvester-csi-attach\" is forbidden: User \"csi\" cannot update resource \
                       \"leases\" in API group \"coordination.k8s.io\" in the namespace \"kube-system\"";
        let grant = Grant::refused_by(refused).unwrap();
        assert_eq!((grant.name, grant.off), (Some(lease::HEALING), NO_HEALING));
        let named = "update leases.coordination.k8s.io harvester-csi-attach in namespace kube-system";
        assert_eq!(grant.right("shop").to_string(), named);
        let role =
            "Role harvester-csi-driver in namespace kube-system of the guest cluster grants this right";
        assert!(grant.next_step().starts_with(role), "{}", grant.next_step());
    }

    #[rstest]
    #[case::of_a_name(("get", "coordination.k8s.io", "leases"), "", Some(lease::NODE_MONITOR), true)]
    #[case::of_another_name(("get", "coordination.k8s.io", "leases"), "", Some("kube-scheduler"), false)]
    #[case::of_all_names(("get", "coordination.k8s.io", "leases"), "", None, false)]
    #[case::of_any_name(("create", "coordination.k8s.io", "leases"), "", None, true)]
    #[case::of_the_core(("update", "", "nodes"), "", None, true)]
    #[case::of_another_group(("update", "metrics.k8s.io", "nodes"), "", None, false)]
    #[case::of_a_subresource(("update", SUBRESOURCES, "virtualmachines"), "addvolume", None, true)]
    #[case::of_another_subresource(("update", "", "nodes"), "status", None, false)]
    fn a_question_is_about_the_right_that_it_names(
        #[case] (verb, group, resource): (&str, &str, &str),
        #[case] subresource: &str,
        #[case] name: Option<&str>,
        #[case] is_ours: bool,
    ) {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let asked = ResourceAttributes {
            verb: text(verb),
            group: text(group),
            resource: text(resource),
            subresource: text(subresource),
            name: name.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let found = Grant::asked_about(&asked);
        assert_eq!(found.is_some(), is_ours, "{found:?}");
        assert!(found.is_none_or(|grant| grant.verb == verb && grant.name == name), "{found:?}");
    }

    #[rstest]
    #[case::of_a_webhook(
        "admission webhook \"validator.harvesterhci.io\" denied the request: PVC_EXPAND: no"
    )]
    #[case::of_nobody_here(
        "User \"csi\" cannot get resource \"secrets\" in API group \"\" in the namespace \"shop\""
    )]
    #[case::another_setting(
        "settings \"server-version\" is forbidden: User \"a\" cannot get resource \"settings\" in API group \"harvesterhci.io\""
    )]
    #[case::cut("User \"csi\" cannot get resource \"volumesnapshots\" in API gr")]
    #[case::empty("")]
    fn another_sentence_stays_as_it_is(#[case] message: &str) {
        assert_eq!(explained(message.to_owned()), message);
    }

    #[test]
    fn a_right_is_there_once_and_is_asked_about_where_it_is_used() {
        for (index, grant) in GRANTS.iter().enumerate() {
            let same = |one: &&Grant| {
                let key = |it: &Grant| (it.verb, it.group, it.resource, it.name);
                key(one) == key(grant)
            };
            assert_eq!(GRANTS.iter().position(|one| same(&one)), Some(index), "{grant:?}");
        }
        let text = |resource: &str| {
            let grant =
                GRANTS.iter().find(|grant| grant.resource == resource && grant.role != Role::Guest).unwrap();
            grant.right("shop").to_string()
        };
        assert_eq!(text(CLAIMS), "get persistentvolumeclaims in namespace shop");
        assert_eq!(text(EXPORTS), "get networkfilesystems.harvesterhci.io in namespace harvester-system");
        assert_eq!(text("settings"), "get settings.harvesterhci.io csi-driver-config");
        assert_eq!(
            text("virtualmachines/addvolume"),
            "update virtualmachines.subresources.kubevirt.io/addvolume in namespace shop"
        );
    }

    // healing gives a pass up while one of the three is not watched, and then no machine is known to be lost
    #[test]
    fn without_a_watch_on_machines_nothing_is_healed_and_the_right_says_so() {
        for resource in [CLAIMS, MACHINES, INSTANCES] {
            let grant = GRANTS.iter().find(|it| it.verb == "watch" && it.resource == resource);
            let off = grant.expect("the driver watches it").off;
            assert!(off.contains("no volume is healed"), "{resource}: {off}");
            assert_eq!(off.contains("no Node of a lost machine gets the taint"), resource != CLAIMS, "{off}");
        }
    }

    // what people read is complete
    #[test]
    fn the_document_lists_every_right_with_what_is_off_without_it() {
        let document = include_str!("../../../../docs/storage.md");
        let missing: Vec<_> = GRANTS
            .iter()
            .map(|grant| {
                let Grant { verb, resource, since, off, .. } = grant;
                let name = grant.name.map(|name| format!(" `{name}`")).unwrap_or_default();
                format!("| {verb} | `{resource}`{name} | {since} | {off} |")
            })
            .filter(|row| !document.contains(row.as_str()))
            .collect();
        assert!(missing.is_empty(), "add to docs/storage.md:\n{}", missing.join("\n"));
    }
}
