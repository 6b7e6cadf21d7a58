//! Whose is a Service or EndpointSlice that has the name of a LoadBalancer object?

use controller_kit::ObjectKey;
use harvester_api::{LoadBalancer, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde_json::{Value, json};

/// The LoadBalancer object that a Service and a slice are made for. They have its name and namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
}

impl Owner {
    pub(crate) fn of(lb: &impl Resource) -> Self {
        Self { key: ObjectKey::of(lb), uid: lb.uid().unwrap_or_default() }
    }

    /// The owner reference as the Go program writes it: neither `controller` nor `blockOwnerDeletion`.
    pub(crate) fn reference(&self) -> Value {
        json!({
            "apiVersion": LoadBalancer::api_version(&()),
            "kind": LoadBalancer::kind(&()),
            "name": self.key.name,
            "uid": self.uid,
        })
    }

    /// Where `found`, an object with the name of the LoadBalancer object, stands.
    pub(crate) fn standing(&self, found: &ObjectMeta) -> Standing {
        let owners = found.owner_references.as_deref().unwrap_or_default();
        let labelled =
            found.labels.iter().flatten().any(|(key, value)| key == labels::SERVICE_LB && value == "true");
        if owners.iter().any(|owner| owner.uid == self.uid) {
            Standing::Ours
        } else if owners
            .iter()
            .any(|owner| owner.kind == LoadBalancer::kind(&()) && owner.name == self.key.name)
        {
            Standing::Former
        } else if owners.is_empty() && labelled {
            Standing::Ours
        } else {
            Standing::Foreign
        }
    }
}

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Made for this LoadBalancer object, or one of ours that lost its owner (`kubectl delete --cascade=orphan`).
    Ours,
    /// Made for an earlier LoadBalancer object of the same name: the garbage collector is on its way to it.
    Former,
    /// Somebody else's: never touched.
    Foreign,
}

/// Sets the label and the owner reference that are ours and leaves all others alone.
pub(crate) fn claim(object: &mut Value, owner: &Owner, own_labels: &[(&str, &str)]) {
    for (key, value) in own_labels {
        object["metadata"]["labels"][*key] = (*value).into();
    }
    let reference = owner.reference();
    let references = &mut object["metadata"]["ownerReferences"];
    match references.as_array_mut() {
        Some(references) if references.iter().any(|found| found["uid"] == reference["uid"]) => {}
        Some(references) => references.push(reference),
        None => *references = json!([reference]),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::made_for_it(json!([{"kind": "LoadBalancer", "name": "web", "uid": "u1"}]), true, Standing::Ours)]
    #[case::label_lost(json!([{"kind": "LoadBalancer", "name": "web", "uid": "u1"}]), false, Standing::Ours)]
    #[case::orphan(json!([]), true, Standing::Ours)]
    // pitfalls-load-balancer.md LB-11: there, the new object adopts what the collector is about to remove
    #[case::of_a_former_one(json!([{"kind": "LoadBalancer", "name": "web", "uid": "u0"}]), true, Standing::Former)]
    #[case::by_hand(json!([]), false, Standing::Foreign)]
    #[case::of_another_kind(json!([{"kind": "Ingress", "name": "web", "uid": "u9"}]), true, Standing::Foreign)]
    fn an_object_of_the_same_name_is_ours_only_by_owner_or_label(
        #[case] owners: Value,
        #[case] labelled: bool,
        #[case] expected: Standing,
    ) {
        let mut owners = owners;
        for owner in owners.as_array_mut().unwrap() {
            owner["apiVersion"] = "x/v1".into();
        }
        let labels = if labelled { json!({labels::SERVICE_LB: "true"}) } else { json!({"app": "web"}) };
        let found = serde_json::from_value(json!({"ownerReferences": owners, "labels": labels})).unwrap();
        let owner = Owner { key: ObjectKey::new("shop", "web"), uid: "u1".to_owned() };
        assert_eq!(owner.standing(&found), expected);
    }
}
