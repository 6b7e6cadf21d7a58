//! The kinds that every cluster has, and what the server does with each.

use std::sync::Arc;

use sim_apimachinery::schema::Schema;
use sim_apimachinery::{builtin, kind as api, schema};

use super::{Behaviour, Kind, Version};

/// Every built-in kind.
pub(super) fn kinds() -> impl Iterator<Item = Kind> {
    builtin::kinds().iter().map(|api| {
        let behaviour = behaviour(api);
        Kind {
            group: api.group.clone(),
            plural: api.plural.clone(),
            kind: api.kind.clone(),
            namespaced: api.namespaced(),
            stored_as: if behaviour == Behaviour::NewEvent { "v1".to_owned() } else { api.api_version() },
            versions: vec![Version {
                api: api.clone(),
                scale: api.has_subresource("scale").then(replicas_of_a_workload),
                raw_schema: None,
                schema: schema::builtin(&api.group, &api.kind)
                    .unwrap_or_else(|| Arc::new(Schema::anything())),
            }],
            behaviour,
            conversion: None,
            // both groups of events are one storage
            table: if behaviour == Behaviour::NewEvent {
                api.plural.as_str().into()
            } else {
                api.qualified_resource().into()
            },
        }
    })
}

fn behaviour(api: &api::Kind) -> Behaviour {
    if !api.offers("get") {
        return Behaviour::Review;
    }
    match (api.group.as_str(), api.plural.as_str()) {
        ("", "namespaces") => Behaviour::Namespace,
        ("", "nodes") => Behaviour::Node,
        ("", "pods") => Behaviour::Pod,
        ("", "services") => Behaviour::Service,
        ("apiextensions.k8s.io", "customresourcedefinitions") => Behaviour::Definition,
        ("apps", "daemonsets" | "deployments") => Behaviour::Workload,
        ("events.k8s.io", "events") => Behaviour::NewEvent,
        _ => Behaviour::Plain,
    }
}

fn replicas_of_a_workload() -> serde_json::Value {
    serde_json::json!({
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    })
}
