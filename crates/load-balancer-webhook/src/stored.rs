//! What to do where LoadBalancers may still be stored as v1alpha1. Pure.
//!
//! A write stores an object in v1beta1, so most objects are; the others are converted at each read, and no version of the
//! definition can be dropped while `status.storedVersions` names it. Reading and writing each object is an admin's step.

use serde_json::Value;

use crate::conversion::V1ALPHA1;

/// What an admin runs.
const MIGRATION: &str = "kubectl get loadbalancers.v1beta1.loadbalancer.harvesterhci.io -A -o json | kubectl replace -f - && \
    kubectl patch crd loadbalancers.loadbalancer.harvesterhci.io --subresource=status --type=merge \
    -p '{\"status\":{\"storedVersions\":[\"v1beta1\"]}}'";

/// What is said about a definition under which objects of the former version may be stored.
pub(crate) fn advice(definition: &Value) -> Option<String> {
    let (_, former) = V1ALPHA1.split_once('/').expect("a version has a group");
    let stored = definition["status"]["storedVersions"].as_array()?;
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let written = versions.into_iter().any(|version| version["name"] == former && version["storage"] == true);
    (stored.iter().any(|version| version == former) && !written).then(|| {
        format!(
            "LoadBalancers may be stored as {former}, and are converted each time they are read; to store all of them as \
             v1beta1, run: {MIGRATION}"
        )
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::both(json!(["v1alpha1", "v1beta1"]), "v1beta1", true)]
    #[case::migrated(json!(["v1beta1"]), "v1beta1", false)]
    #[case::unknown(json!(null), "v1beta1", false)]
    // a Harvester from before 1.2: there is nothing to migrate to
    #[case::before(json!(["v1alpha1"]), "v1alpha1", false)]
    fn a_definition_that_may_have_stored_the_former_version_says_what_to_run(
        #[case] stored: Value,
        #[case] storage: &str,
        #[case] expected: bool,
    ) {
        let versions = ["v1beta1", "v1alpha1"].map(|name| json!({"name": name, "storage": name == storage}));
        let advice = advice(&json!({"spec": {"versions": versions}, "status": {"storedVersions": stored}}));
        assert_eq!(
            advice.as_deref().is_some_and(|advice| advice.contains("kubectl replace")),
            expected,
            "{advice:?}"
        );
    }
}
