//! The roles of the driver on the host, with something cut out of them.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde_json::{Value, json};
use test_cluster::{Side, TestCluster, manifests, releases};

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

/// Whether the roles of this release grant it.
pub(crate) fn is_granted_by(piece: &Piece, minor: u32) -> bool {
    let names: Vec<_> = piece.names.iter().map(String::as_str).collect();
    let since = releases::since(&piece.role, &piece.group, &piece.resource, &names);
    minor >= since.unwrap_or_else(|| panic!("no row for {piece:?}"))
}
