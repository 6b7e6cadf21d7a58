//! The roles of the driver on the host, with something cut out of them.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde_json::{Value, json};
use test_cluster::{Side, TestCluster, manifests};

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const ROLES: [&str; 2] = ["harvesterhci.io:cloudprovider", "harvesterhci.io:csi-driver"];

/// One verb on one resource that a role grants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) role: String,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    names: Vec<String>,
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// All that the CSI roles on the host grant, as the files of `deploy/rbac` have it.
pub(crate) fn pieces(cluster: &TestCluster) -> Vec<Piece> {
    let roles = manifests::roles(cluster.rights(), Side::Harvester, cluster.guest_cluster());
    let mut pieces = vec![];
    for role in roles.iter().filter(|role| ROLES.contains(&role["metadata"]["name"].as_str().unwrap())) {
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
    for role in ROLES {
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

/// As on a K3s guest whose kubeconfig was made by hand: the RoleBinding in the namespace of the machines alone.
pub(crate) async fn unbind_in_the_cluster(cluster: &TestCluster) {
    cluster.harvester.delete::<ClusterRoleBinding>(&cluster.guest_cluster().csi_account()).await;
}

/// The rows of the releases: since when the role for the whole cluster grants what.
pub(crate) fn is_granted_by(piece: &Piece, minor: u32) -> bool {
    let since = match (piece.role.as_str(), piece.resource.as_str(), piece.group.as_str()) {
        ("harvesterhci.io:cloudprovider", ..) | (_, "storageclasses", _) => 2,
        (_, "networkfilesystems" | "networkfilesystems/status", _) | (_, _, "longhorn.io") => 4,
        (_, "volumeattachments", _) => 5,
        (_, "settings", _) if piece.names == ["csi-online-expand-validation"] => 6,
        (_, "settings", _) | (_, _, "snapshot.storage.k8s.io") => 7,
        (_, "volumeremotebackups" | "volumeremoterestores", _) | (_, "virtualmachines", _) => 8,
        other => panic!("no row for {other:?}"),
    };
    minor >= since
}
