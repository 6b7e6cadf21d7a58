//! Ownership of a Service or EndpointSlice that has the name of a LoadBalancer object.

use controller_kit::ObjectKey;
use harvester_api::{LoadBalancer, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
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

    /// Tells for which LoadBalancer object the controller made `found`, an object with this owner's name.
    pub(crate) fn ownership(&self, found: &ObjectMeta) -> Ownership {
        let owners = found.owner_references.as_deref().unwrap_or_default();
        if owners.iter().any(|owner| owner.uid == self.uid) {
            Ownership::Ours
        } else if owners.iter().any(|owner| is_load_balancer(owner, &self.key.name)) {
            Ownership::Former
        } else if owners.is_empty() && is_labelled(found) {
            Ownership::Orphaned
        } else {
            Ownership::Foreign
        }
    }
}

/// Ownership of a Service or slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Made for this LoadBalancer object.
    Ours,
    /// One of ours without owner reference: `kubectl delete --cascade=orphan` took the reference away, and the garbage
    /// collector never comes.
    Orphaned,
    /// Made for an earlier LoadBalancer object of the same name: the garbage collector is on its way to it.
    Former,
    /// Made by somebody else: never touched.
    Foreign,
}

impl Ownership {
    /// Whether a LoadBalancer object of type vm may write it.
    pub(crate) fn is_writable(self) -> bool {
        matches!(self, Self::Ours | Self::Orphaned)
    }
}

fn is_load_balancer(owner: &OwnerReference, name: &str) -> bool {
    owner.kind == LoadBalancer::kind(&()) && owner.name == name
}

/// Whether a LoadBalancer object of this name had the Service or slice made: the one of today, a former one, or one that
/// nobody names any more. A labelled one of another owner is a stranger's: anybody may write the label.
pub(crate) fn is_of_load_balancer(meta: &ObjectMeta, name: &str) -> bool {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| is_load_balancer(owner, name)) || owners.is_empty() && is_labelled(meta)
}

pub(crate) fn is_labelled(meta: &ObjectMeta) -> bool {
    meta.labels.iter().flatten().any(|(key, value)| key == labels::SERVICE_LB && value == "true")
}

/// Sets the label and the owner reference that are ours and leaves all others alone.
pub(crate) fn set_owner(object: &mut Value, owner: &Owner, own_labels: &[(&str, &str)]) {
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
    #[case::made_for_it(json!([{"kind": "LoadBalancer", "name": "web", "uid": "u1"}]), true, Ownership::Ours)]
    #[case::label_lost(json!([{"kind": "LoadBalancer", "name": "web", "uid": "u1"}]), false, Ownership::Ours)]
    #[case::orphan(json!([]), true, Ownership::Orphaned)]
    // docs/contract/load-balancer.md#LB-11: in the Go program the new object adopts what the collector is about to
    // remove
    #[case::of_a_former_one(json!([{"kind": "LoadBalancer", "name": "web", "uid": "u0"}]), true, Ownership::Former)]
    #[case::by_hand(json!([]), false, Ownership::Foreign)]
    #[case::of_another_kind(json!([{"kind": "Ingress", "name": "web", "uid": "u9"}]), true, Ownership::Foreign)]
    fn an_object_of_the_same_name_is_ours_only_by_owner_or_label(
        #[case] owners: Value,
        #[case] labelled: bool,
        #[case] expected: Ownership,
    ) {
        let mut owners = owners;
        for owner in owners.as_array_mut().unwrap() {
            owner["apiVersion"] = "x/v1".into();
        }
        let labels = if labelled { json!({labels::SERVICE_LB: "true"}) } else { json!({"app": "web"}) };
        let found = serde_json::from_value(json!({"ownerReferences": owners, "labels": labels})).unwrap();
        let owner = Owner { key: ObjectKey::new("shop", "web"), uid: "u1".to_owned() };
        assert_eq!(owner.ownership(&found), expected);
    }
}
