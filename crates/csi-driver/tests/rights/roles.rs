//! The roles of the driver on the host, with something cut out of them.

use std::collections::BTreeSet;

use csi_driver::host::rights::{GRANTS, Grant, Role};
use k8s_openapi::api::rbac::v1::ClusterRole;
use serde_json::{Value, json};
use test_cluster::{GuestCluster, Rights, Side, TestCluster, manifests, releases};

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// One verb on one resource that a role grants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) role: String,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    names: Vec<String>,
}

impl Piece {
    pub(crate) fn is_asked_for(&self) -> Option<&'static Grant> {
        let is_it = |grant: &&Grant| {
            (grant.verb, grant.group, grant.resource) == (&*self.verb, &*self.group, &*self.resource)
                && grant.role != Role::Guest
        };
        GRANTS.iter().find(is_it)
    }
}

/// For the namespace of the machines, and for the whole cluster.
fn names(rights: Rights) -> [&'static str; 2] {
    match rights {
        Rights::Existing => ["harvesterhci.io:cloudprovider", "harvesterhci.io:csi-driver"],
        Rights::Ours => ["harvester-csi-driver-machines", "harvester-csi-driver-shared"],
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// All that the CSI roles on the host grant, as the files of `deploy/rbac` have it.
pub(crate) fn pieces(cluster: &TestCluster) -> Vec<Piece> {
    pieces_of(cluster.rights(), cluster.guest_cluster())
}

fn pieces_of(rights: Rights, guest: &GuestCluster) -> Vec<Piece> {
    let roles = manifests::roles(rights, Side::Harvester, guest);
    let mut pieces = vec![];
    for role in
        roles.iter().filter(|role| names(rights).contains(&role["metadata"]["name"].as_str().unwrap()))
    {
        for rule in role["rules"].as_array().into_iter().flatten() {
            let verbs = texts(&rule["verbs"]);
            let all = if verbs == ["*"] { VERBS.map(str::to_owned).to_vec() } else { verbs };
            for (group, resource) in texts(&rule["apiGroups"])
                .iter()
                .flat_map(|g| texts(&rule["resources"]).into_iter().map(move |r| (g.clone(), r)))
            {
                pieces.extend(all.iter().map(|verb| Piece {
                    role: role["metadata"]["name"].as_str().unwrap().to_owned(),
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    names: texts(&rule["resourceNames"]),
                }));
            }
        }
    }
    pieces
}

/// Lets the roles grant these and nothing else.
pub(crate) async fn grant(cluster: &TestCluster, pieces: &[Piece]) {
    for role in names(cluster.rights()) {
        let rule = |piece: &Piece| {
            let mut rule =
                json!({"apiGroups": [piece.group], "resources": [piece.resource], "verbs": [piece.verb]});
            if !piece.names.is_empty() {
                rule["resourceNames"] = json!(piece.names);
            }
            rule
        };
        let rules: Vec<_> = pieces.iter().filter(|piece| piece.role == role).map(rule).collect();
        cluster.harvester.patch::<ClusterRole>(role, json!({"rules": rules})).await;
    }
}

/// As on a K3s guest whose kubeconfig was made by hand: the RoleBinding of Harvester's role in the namespace of the
/// machines alone.
pub(crate) async fn unbind_in_the_cluster(cluster: &TestCluster) {
    let mut left = pieces(cluster);
    left.retain(|piece| piece.is_asked_for().is_some_and(|right| right.role == Role::CloudProvider));
    grant(cluster, &left).await;
}

/// Whether Harvester's roles of this release grant it.
pub(crate) fn is_granted_by(piece: &Piece, minor: u32) -> bool {
    let names: Vec<_> = piece.names.iter().map(String::as_str).collect();
    let role = piece.is_asked_for().map_or(&*piece.role, |right| right.role.name());
    let since = releases::since(role, &piece.group, &piece.resource, &names);
    minor >= since.unwrap_or_else(|| panic!("no row for {piece:?}"))
}

#[test]
fn harvesters_roles_grant_on_the_host_what_the_driver_asks_for() {
    let granted = pieces_of(Rights::Existing, &GuestCluster::default());
    let of = |right: &Grant| {
        let role = right.role.name();
        granted.iter().any(|piece| piece.role == role && piece.is_asked_for() == Some(right))
    };
    let missing: Vec<_> = GRANTS.iter().filter(|right| right.role != Role::Guest && !of(right)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn ours_grants_on_the_host_what_the_driver_asks_for_and_nothing_more() {
    let text = |verb: &str, group: &str, resource: &str, name: Option<&str>| {
        format!("{verb} {resource}.{group} {}", name.unwrap_or_default())
    };
    let pieces = pieces_of(Rights::Ours, &GuestCluster::default());
    let granted: BTreeSet<_> = pieces
        .iter()
        .map(|one| text(&one.verb, &one.group, &one.resource, one.names.first().map(String::as_str)))
        .collect();
    let asked = GRANTS.iter().filter(|right| right.role != Role::Guest);
    let asked: BTreeSet<_> =
        asked.map(|right| text(right.verb, right.group, right.resource, right.name)).collect();
    assert_eq!(granted, asked);
    assert_eq!(pieces.len(), granted.len(), "a right is granted twice");
}

/// A neighbour's machines, claims, snapshots and restores are in other namespaces.
#[test]
fn ours_reaches_other_namespaces_of_the_host_for_exports_and_reading_alone() {
    let guest = GuestCluster::default();
    let roles = manifests::roles(Rights::Ours, Side::Harvester, &guest);
    let account = guest.csi_account();
    let bound = |kind: &str| {
        let ours =
            roles.iter().filter(|role| role["kind"] == kind && role["subjects"][0]["name"] == *account);
        ours.map(|binding| binding["roleRef"]["name"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let [machines, shared] = names(Rights::Ours);
    assert_eq!((bound("RoleBinding"), bound("ClusterRoleBinding")), (vec![machines], vec![shared]));
    let pieces = pieces_of(Rights::Ours, &guest);
    let wide = pieces.iter().filter(|one| one.role == shared && one.resource != "networkfilesystems");
    let writes: Vec<_> = wide.filter(|one| !matches!(&*one.verb, "get" | "list")).collect();
    assert!(writes.is_empty(), "{writes:?}");
}
