//! LoadBalancers that may be stored as v1alpha1: told in an Event of their definition, where an administrator looks before
//! an upgrade that drops the version.

use controller_kit::{PendingEvent, Recorder};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, Resource as _};

const LOAD_BALANCERS: &str = "loadbalancers.loadbalancer.harvesterhci.io";
const FORMER: &str = "v1alpha1";

/// Reads the definition once. A role may not grant that; the webhook's log tells the same.
pub(crate) async fn tell(client: Client, recorder: Recorder) {
    match Api::<CustomResourceDefinition>::all(client).get_opt(LOAD_BALANCERS).await {
        Ok(found) => {
            let Some(definition) = found else { return };
            if let Some(event) = advice(&definition) {
                recorder.publish(&definition.object_ref(&()), &event);
            }
        }
        Err(error) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                crd = LOAD_BALANCERS,
                "which versions are stored is not known"
            );
        }
    }
}

fn advice(definition: &CustomResourceDefinition) -> Option<PendingEvent> {
    let stored = definition.status.as_ref()?.stored_versions.as_ref()?;
    // a Harvester from before 1.2 writes it still: there is nothing to migrate to
    let writes = definition.spec.versions.iter().any(|version| version.name == FORMER && version.storage);
    (stored.iter().any(|version| version == FORMER) && !writes).then(|| {
        let message = format!(
            "LoadBalancers may be stored as {FORMER}, and are converted each time they are read: write each of them once, then take \
             {FORMER} off status.storedVersions; the log of harvester-load-balancer-webhook has the commands"
        );
        PendingEvent::warning("FormerVersionStored", message)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::both(json!(["v1alpha1", "v1beta1"]), "v1beta1", true)]
    #[case::migrated(json!(["v1beta1"]), "v1beta1", false)]
    #[case::before(json!(["v1alpha1"]), "v1alpha1", false)]
    fn a_definition_that_may_have_stored_the_former_version_gets_an_event(
        #[case] stored: Value,
        #[case] storage: &str,
        #[case] expected: bool,
    ) {
        let version = |name: &str| json!({"name": name, "served": true, "storage": name == storage});
        let definition = json!({"metadata": {"name": LOAD_BALANCERS},
            "spec": {"group": "loadbalancer.harvesterhci.io", "scope": "Namespaced",
                "names": {"plural": "loadbalancers", "kind": "LoadBalancer"},
                "versions": [version("v1alpha1"), version("v1beta1")]},
            "status": {"storedVersions": stored}});
        assert_eq!(advice(&serde_json::from_value(definition).unwrap()).is_some(), expected);
    }
}
