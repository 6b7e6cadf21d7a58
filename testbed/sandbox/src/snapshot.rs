//! Every object of a cluster by name, and every address that a pool has given: what must be the same before and after.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams},
    discovery::{Discovery, verbs},
};
use serde_json::Value;

/// Kinds that come and go by themselves, or show others' objects a second time.
const APART: [&str; 4] = ["Event", "Lease", "ComponentStatus", "APIService"];

/// `Kind namespace/name` of every object, Events and Leases apart, and `IPPool name: address of owner` of what is in a
/// pool's record.
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
            for object in &objects {
                let namespace = object.namespace().map(|namespace| namespace + "/").unwrap_or_default();
                let title = format!("{} {namespace}{}", resource.kind, object.name_any());
                seen.extend(given(&resource.kind, &object.data).map(|given| format!("{title}: {given}")));
                seen.insert(title);
            }
        }
    }
    Ok(seen)
}

/// The addresses in a pool's record, with their owners; an object that is no pool has none.
fn given(kind: &str, object: &Value) -> impl Iterator<Item = String> {
    let allocated = object.pointer("/status/allocated").filter(|_| kind == "IPPool");
    let allocated = allocated.and_then(Value::as_object).into_iter().flatten();
    allocated.map(|(address, owner)| format!("{address} of {}", owner.as_str().unwrap_or("?")))
}

/// The objects that came and those that went, one line each.
pub(crate) fn difference(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let came = after.difference(before).map(|object| format!("+ {object}"));
    let went = before.difference(after).map(|object| format!("- {object}"));
    came.chain(went).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::given("IPPool", json!({"status": {"allocated": {"10.0.0.2": "default/web", "10.0.0.9": "a/b"}}}),
        &["10.0.0.2 of default/web", "10.0.0.9 of a/b"])]
    #[case::none_yet("IPPool", json!({"spec": {}}), &[])]
    #[case::no_pool("Pump", json!({"status": {"allocated": {"10.0.0.2": "default/web"}}}), &[])]
    fn the_addresses_that_a_pool_has_given_are_seen(
        #[case] kind: &str,
        #[case] object: Value,
        #[case] expected: &[&str],
    ) {
        assert_eq!(given(kind, &object).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_difference_names_what_came_and_what_went() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let lines = difference(&set(&["Service a", "Service b"]), &set(&["Service b", "Service c"]));
        assert_eq!(lines, ["+ Service c", "- Service a"]);
    }
}
