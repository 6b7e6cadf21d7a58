//! Roles of Harvester that grew with its releases: what a guest's CSI driver may do on an older one
//! (docs/contract/csi-driver.md#rights).

use serde_json::{Value, json};

/// The role that grew: of CSI drivers, in the whole cluster.
const CSI_DRIVER: &str = "harvesterhci.io:csi-driver";
/// Ours, which stand for it and are cut alike: on an older Harvester its administrator would leave out the same.
const OURS: [&str; 2] = ["harvester-csi-driver-machines", "harvester-csi-driver-shared"];

/// Since which 1.x the roles for a guest's credentials grant a resource; `names` are the rule's `resourceNames`. `None`
/// for a role that all releases have as it is, and for a resource that no release had.
#[must_use]
pub fn since(role: &str, group: &str, resource: &str, names: &[&str]) -> Option<u32> {
    match (role, resource, group) {
        ("harvesterhci.io:cloudprovider", ..) => Some(2),
        (CSI_DRIVER, resource, group) => match (resource, group) {
            ("storageclasses", _) => Some(2),
            ("networkfilesystems" | "networkfilesystems/status", _) | (_, "longhorn.io") => Some(4),
            ("volumeattachments", _) => Some(5),
            ("settings", _) if names == ["csi-online-expand-validation"] => Some(6),
            ("settings", _) | (_, "snapshot.storage.k8s.io") => Some(7),
            ("volumeremotebackups" | "volumeremoterestores" | "virtualmachines", _) => Some(8),
            _ => None,
        },
        _ => None,
    }
}

fn grew(role: &Value) -> bool {
    let name = role["metadata"]["name"].as_str().unwrap_or_default();
    role["kind"] == "ClusterRole" && (name == CSI_DRIVER || OURS.contains(&name))
}

/// Leaves in the roles of CSI drivers what Harvester 1.`minor` grants; any other role stays as it is.
pub fn cut(role: &mut Value, minor: u32) {
    let Some(rules) = role["rules"].as_array().filter(|_| grew(role)) else {
        return;
    };
    let granted = rules.iter().flat_map(pieces).filter(|piece| {
        let text = |field: &str| piece[field][0].as_str().unwrap_or_default();
        let names: Vec<_> = piece["resourceNames"].as_array().into_iter().flatten().collect();
        let names: Vec<_> = names.iter().filter_map(|name| name.as_str()).collect();
        // to read machines is granted by the role for the namespace, since ever
        if text("resources") == "virtualmachines" && !piece["verbs"].to_string().contains("patch") {
            return true;
        }
        since(CSI_DRIVER, text("apiGroups"), text("resources"), &names).is_none_or(|since| minor >= since)
    });
    role["rules"] = granted.collect();
}

/// A rule for each group, resource and name that `rule` is for.
fn pieces(rule: &Value) -> Vec<Value> {
    let list = |field: &str| rule[field].as_array().cloned().unwrap_or_default();
    let mut pieces = Vec::new();
    for group in list("apiGroups") {
        for resource in list("resources") {
            let piece = json!({"apiGroups": [group], "resources": [resource], "verbs": rule["verbs"]});
            let named = list("resourceNames").into_iter().map(|name| {
                let mut piece = piece.clone();
                piece["resourceNames"] = json!([name]);
                piece
            });
            let before = pieces.len();
            pieces.extend(named);
            if pieces.len() == before {
                pieces.push(piece);
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{GuestCluster, Rights, Side, manifests::roles};

    /// Resources, and names of Settings, that the role of the CSI driver has on a release.
    fn granted(minor: u32) -> Vec<String> {
        let roles = roles(Rights::Existing, Side::Harvester, &GuestCluster::default());
        let is_it = |role: &Value| role["metadata"]["name"] == CSI_DRIVER;
        let mut role = roles.into_iter().find(is_it).unwrap();
        cut(&mut role, minor);
        let rules = role["rules"].as_array().unwrap();
        let text = |rule: &Value| {
            let name = rule["resourceNames"][0].as_str().or_else(|| rule["resources"][0].as_str());
            name.unwrap().to_owned()
        };
        rules.iter().map(text).collect()
    }

    #[rstest]
    #[case(3, 4, &["networkfilesystems", "networkfilesystems/status", "volumes", "volumes/status"])]
    #[case(4, 5, &["volumeattachments"])]
    #[case(5, 6, &["csi-online-expand-validation"])]
    #[case(7, 8, &["virtualmachines", "volumeremotebackups", "volumeremoterestores"])]
    #[case(8, 9, &[])]
    fn each_release_grants_what_the_one_before_did_and_its_own(
        #[case] before: u32,
        #[case] minor: u32,
        #[case] expected: &[&str],
    ) {
        let (old, new) = (granted(before), granted(minor));
        assert!(old.iter().all(|resource| new.contains(resource)), "{old:?} {new:?}");
        let mut more: Vec<_> = new.into_iter().filter(|resource| !old.contains(resource)).collect();
        more.sort();
        assert_eq!(more, expected);
    }

    #[test]
    fn the_newest_release_grants_every_resource_of_the_role() {
        assert_eq!((granted(3), granted(9).len()), (vec!["storageclasses".to_owned()], 16));
    }

    #[test]
    fn our_roles_are_cut_as_harvesters_is() {
        let mut roles = roles(Rights::Ours, Side::Harvester, &GuestCluster::default());
        roles.retain(|role| OURS.contains(&role["metadata"]["name"].as_str().unwrap()));
        roles.iter_mut().for_each(|role| cut(role, 3));
        let rules: Vec<_> = roles.iter().flat_map(|role| role["rules"].as_array().unwrap()).collect();
        let granted = |resource: &str| rules.iter().filter(|rule| rule["resources"][0] == resource).count();
        let resources =
            ["persistentvolumeclaims", "virtualmachines", "storageclasses", "volumesnapshots", "volumes"];
        assert_eq!(resources.map(granted), [1, 1, 1, 0, 0]);
    }

    #[test]
    fn roles_of_other_programs_stay_as_they_are() {
        for side in [Side::Guest, Side::Harvester] {
            let others = roles(Rights::Ours, side, &GuestCluster::default());
            for role in others.into_iter().filter(|role| !grew(role)) {
                let mut after = role.clone();
                cut(&mut after, 3);
                assert_eq!(after, role);
            }
        }
    }
}
