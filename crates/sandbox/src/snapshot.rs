//! Every object of a cluster by name: what must be the same before and after.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams},
    discovery::{Discovery, verbs},
};

/// Kinds that come and go by themselves, or show others' objects a second time.
const APART: [&str; 4] = ["Event", "Lease", "ComponentStatus", "APIService"];

/// `Kind namespace/name` of every object, Events and Leases apart.
///
/// # Errors
/// When the cluster cannot be listed.
pub(crate) async fn snapshot(client: &Client) -> Result<BTreeSet<String>> {
    let discovery = Discovery::new(client.clone()).run().await.context("ask which kinds there are")?;
    let mut seen = BTreeSet::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) || APART.contains(&&*resource.kind) {
                continue;
            }
            let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
            let objects = api.list(&ListParams::default()).await;
            let objects = objects.with_context(|| format!("list {}", resource.plural))?;
            seen.extend(objects.iter().map(|object| {
                let namespace = object.namespace().map(|namespace| namespace + "/").unwrap_or_default();
                format!("{} {namespace}{}", resource.kind, object.name_any())
            }));
        }
    }
    Ok(seen)
}

/// What came and what went, one line each; empty when nothing did.
pub(crate) fn difference(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let came = after.difference(before).map(|object| format!("+ {object}"));
    let went = before.difference(after).map(|object| format!("- {object}"));
    came.chain(went).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_came_and_what_went() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let lines = difference(&set(&["Service a", "Service b"]), &set(&["Service b", "Service c"]));
        assert_eq!(lines, ["+ Service c", "- Service a"]);
    }
}
