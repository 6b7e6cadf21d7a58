//! The roles of a program with one grant cut out of them, for tests of what is off without it.

use std::{collections::BTreeSet, fs};

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use serde_json::{Value, json};

use crate::{Side, TestCluster, manifests};

/// One verb on one resource that a role grants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    role: RoleName,
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RoleName {
    Cluster(String),
    /// `<namespace>/<name>`.
    Namespaced(String),
}

impl Grant {
    /// As the programs write it: `patch services/status`, `list ippools.loadbalancer.harvesterhci.io`.
    #[must_use]
    pub fn text(&self) -> String {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        let with =
            |sign: &str, text: &str| if text.is_empty() { String::new() } else { format!("{sign}{text}") };
        format!("{} {resource}{}{}", self.verb, with(".", &self.group), with("/", subresource))
    }

    /// For tables of tests: verb and resource.
    #[must_use]
    pub fn key(&self) -> (&str, &str) {
        (&self.verb, &self.resource)
    }
}

/// All that the ClusterRoles and Roles of these names grant in one cluster.
///
/// # Panics
/// When the file of roles has another form.
#[must_use]
pub fn of(cluster: &TestCluster, side: Side, names: &[&str]) -> Vec<Grant> {
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|text| text.as_str().expect("a text").to_owned()).collect()
    };
    let mut grants = Vec::new();
    for role in manifests::roles(cluster.rights(), side, cluster.guest_cluster()) {
        let name = role["metadata"]["name"].as_str().expect("a role has a name").to_owned();
        let kind = match role["kind"].as_str() {
            Some("ClusterRole") => RoleName::Cluster(name.clone()),
            Some("Role") => {
                let namespace = role["metadata"]["namespace"].as_str().expect("it is in a namespace");
                RoleName::Namespaced(format!("{namespace}/{name}"))
            }
            _ => continue,
        };
        if !names.contains(&name.as_str()) {
            continue;
        }
        for rule in role["rules"].as_array().into_iter().flatten() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    grants.extend(texts(&rule["verbs"]).into_iter().map(|verb| Grant {
                        role: kind.clone(),
                        verb,
                        group: group.clone(),
                        resource: resource.clone(),
                        names: texts(&rule["resourceNames"]),
                    }));
                }
            }
        }
    }
    assert!(!grants.is_empty(), "no role of {names:?}");
    grants
}

/// Lets the roles grant all of `grants` but this one.
pub async fn all_but(cluster: &TestCluster, side: Side, grants: &[Grant], without: Option<&Grant>) {
    let rule = |grant: &Grant| {
        let mut rule =
            json!({"apiGroups": [grant.group], "resources": [grant.resource], "verbs": [grant.verb]});
        if !grant.names.is_empty() {
            rule["resourceNames"] = json!(grant.names);
        }
        rule
    };
    let roles: BTreeSet<_> = grants.iter().map(|grant| &grant.role).collect();
    for role in roles {
        let left = grants.iter().filter(|grant| grant.role == *role && Some(*grant) != without);
        let rules = json!({"rules": left.map(rule).collect::<Vec<_>>()});
        match role {
            RoleName::Cluster(name) => drop(cluster.side(side).patch::<ClusterRole>(name, rules).await),
            RoleName::Namespaced(key) => drop(cluster.side(side).patch::<Role>(key, rules).await),
        }
    }
}

/// A resource and its verbs.
type Granted<'a> = (String, Vec<&'a str>);

/// Verb, resource, and what is off without the right: one row of a document for each thing that is off.
///
/// # Panics
/// When no page of `docs/` has one of the rows; it says all that are missing.
pub fn assert_documented<'a>(needs: impl IntoIterator<Item = (&'a str, String, &'a str)>) {
    let mut rows: Vec<(&str, Vec<Granted<'_>>)> = Vec::new();
    for (verb, resource, off) in needs {
        let row = match rows.iter().position(|(there, _)| *there == off) {
            Some(row) => row,
            None => {
                rows.push((off, Vec::new()));
                rows.len() - 1
            }
        };
        let resources = &mut rows[row].1;
        match resources.iter_mut().find(|(there, _)| *there == resource) {
            Some((_, verbs)) => verbs.push(verb),
            None => resources.push((resource, vec![verb])),
        }
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let pages = fs::read_dir(folder)
        .expect("docs/ is there")
        .filter_map(|page| fs::read_to_string(page.ok()?.path()).ok());
    let pages: String = pages.collect();
    let cell = |(resource, verbs): Granted<'_>| format!("`{resource}: {}`", verbs.join(", "));
    let rows = rows.into_iter().map(|(off, resources)| {
        let cells: Vec<_> = resources.into_iter().map(cell).collect();
        format!("| {} | {off} |\n", cells.join(", "))
    });
    let missing: String = rows.filter(|row| !pages.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "no page of docs/ has\n{missing}");
}
