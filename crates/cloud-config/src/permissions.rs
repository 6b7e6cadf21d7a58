//! What a credential may do, asked beforehand: a right that is missing is named before anything is made.

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};

/// A right on a kind in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    pub verb: &'static str,
    /// API group; empty for the core.
    pub group: &'static str,
    /// Plural.
    pub resource: &'static str,
    /// Empty for the object itself.
    pub subresource: &'static str,
}

const fn may(verb: &'static str, group: &'static str, resource: &'static str) -> Permission {
    Permission { verb, group, resource, subresource: "" }
}

/// What the node driver cannot do without. What it merely does better with (watches, pods, quotas, Events) is not here.
pub const NODE_DRIVER: [Permission; 3] = [
    may("create", "kubevirt.io", "virtualmachines"),
    may("delete", "kubevirt.io", "virtualmachines"),
    may("create", "", "secrets"),
];

/// The rights of the table that the server denies in this namespace. A question that is not answered denies nothing: the
/// request itself will tell.
pub async fn missing(client: &Client, namespace: &str, table: &[Permission]) -> Vec<Permission> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let denied = join_all(table.iter().map(|permission| {
        let api = api.clone();
        async move {
            let answer = api.create(&PostParams::default(), &question(permission, namespace)).await;
            answer.is_ok_and(|review| review.status.is_some_and(|status| !status.allowed))
        }
    }));
    table.iter().zip(denied.await).filter(|(_, denied)| *denied).map(|(permission, _)| *permission).collect()
}

fn question(permission: &Permission, namespace: &str) -> SelfSubjectAccessReview {
    let Permission { verb, group, resource, subresource } = *permission;
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        namespace: text(namespace),
        verb: text(verb),
        group: text(group),
        resource: text(resource),
        subresource: text(subresource),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
}
