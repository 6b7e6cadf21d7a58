//! What the server itself knows of kinds: defaults, what may not change, what is wrong, what it allocates.
//!
//! Custom resources have their schema for all of this; here are the kinds that a real server has compiled in.

pub(crate) mod core;
pub(crate) mod endpoint_slice;
pub(crate) mod event;
pub(crate) mod service;

use serde_json::{Value, json};
use sim_apimachinery::status::Cause;

use crate::Failure;
use crate::kind::{Behaviour, Kind, custom};
use crate::machinery;
use crate::server::{ApiServer, Ask};
use crate::store::Inner;
use crate::write::metadata;

/// Fills in defaults and drops what the kind does not know.
pub(crate) fn complete(ask: &Ask, new: &mut Value) {
    // events are kept in the words of the other group
    if ask.kind.behaviour != Behaviour::NewEvent {
        machinery::conform(&ask.kind, ask.version, new);
    }
    match ask.kind.behaviour {
        Behaviour::Service => service::defaults(new),
        Behaviour::Namespace => core::namespace_defaults(new),
        Behaviour::Secret => core::secret_defaults(new),
        Behaviour::Workload => core::workload_defaults(&ask.kind, new),
        Behaviour::EndpointSlice => endpoint_slice::defaults(new),
        _ if ask.kind.group == "admissionregistration.k8s.io" => core::webhook_defaults(new),
        _ if ask.kind.plural == "storageclasses" => core::storage_class_defaults(new),
        _ if ask.kind.group == "rbac.authorization.k8s.io" => core::binding_defaults(new),
        _ => {}
    }
}

/// What a new object starts with, whatever its maker wrote.
pub(crate) fn prepare_create(server: &ApiServer, ask: &Ask, object: &mut Value) -> Result<(), Failure> {
    match ask.kind.behaviour {
        Behaviour::Service => object["status"] = json!({"loadBalancer": {}}),
        Behaviour::Namespace => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        Behaviour::Node => core::taint_new_node(object),
        Behaviour::Pod => object["status"] = json!({"phase": "Pending"}),
        Behaviour::Workload => object["status"] = json!({}),
        Behaviour::Definition => {
            drop(object.as_object_mut().and_then(|definition| definition.remove("status")));
            let kind = custom::kind(object).map_err(|causes| {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                Failure::invalid(ask.api(), name, &causes)
            })?;
            custom::complete(object, &kind, &server.0.clock.text());
        }
        Behaviour::Custom if ask.api().has_status() => {
            drop(object.as_object_mut().and_then(|object| object.remove("status")));
        }
        _ => match ask.kind.plural.as_str() {
            "persistentvolumeclaims" | "persistentvolumes" => object["status"] = json!({"phase": "Pending"}),
            _ => {}
        },
    }
    Ok(())
}

/// What follows from a change.
pub(crate) fn prepare_update(server: &ApiServer, ask: &Ask, old: &Value, new: &mut Value) {
    if ask.kind.behaviour == Behaviour::Service && ask.subresource().is_empty() {
        service::carry_over(old, new);
    }
    if ask.kind.behaviour == Behaviour::Definition
        && ask.subresource().is_empty()
        && let Ok(kind) = custom::kind(new)
    {
        custom::complete(new, &kind, &server.0.clock.text());
    }
}

/// Refuses an object with everything that is wrong with it.
pub(crate) fn validate(ask: &Ask, old: Option<&Value>, new: &Value) -> Result<(), Failure> {
    let mut causes: Vec<Cause> = vec![];
    metadata::validate(&ask.kind, old, new, &mut causes);
    causes.extend(sim_apimachinery::validate::faults(ask.api(), new));
    match ask.kind.behaviour {
        Behaviour::Service if ask.subresource() == "status" => service::validate_status(new, &mut causes),
        Behaviour::Service => service::validate(old, new, &mut causes),
        Behaviour::EndpointSlice => endpoint_slice::validate(old, new, &mut causes),
        Behaviour::ConfigMap => core::validate_config_map(old, new, &mut causes),
        Behaviour::Secret => core::validate_secret(old, new, &mut causes),
        Behaviour::Node => core::validate_node(old, new, &mut causes),
        Behaviour::Lease => core::validate_lease(new, &mut causes),
        Behaviour::Event | Behaviour::NewEvent => event::validate(new, &mut causes),
        Behaviour::Custom => machinery::validate(ask, new, &mut causes),
        Behaviour::Definition => {
            if let Err(faults) = custom::kind(new) {
                causes.extend(faults);
            }
        }
        _ if ask.kind.group == "rbac.authorization.k8s.io" => core::validate_binding(old, new, &mut causes),
        _ => {}
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid(ask.api(), new["metadata"]["name"].as_str().unwrap_or_default(), &causes))
}

/// Gives an object what only one can have: cluster addresses and node ports.
pub(crate) fn allocate(
    inner: &mut Inner,
    ask: &Ask,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Failure> {
    let kind: &Kind = &ask.kind;
    if kind.behaviour != Behaviour::Service || ask.subresource() == "status" {
        return Ok(());
    }
    service::allocate::allocate(&mut inner.addresses, old, new).map_err(|causes| {
        Failure::invalid(ask.api(), new["metadata"]["name"].as_str().unwrap_or_default(), &causes)
    })
}

/// The elements of a list; none where there is no list.
pub(crate) fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The objects in a list at a JSON pointer, to change. Nothing is made where there is none.
pub(crate) fn items_mut<'a>(object: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Value> {
    let items = object.pointer_mut(pointer).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter(|item| item.is_object())
}

/// Whether a field says nothing: absent, null, empty text.
pub(crate) fn is_unset(value: &Value) -> bool {
    value.is_null() || value == ""
}

/// Writes a default where a field says nothing.
pub(crate) fn set_default(object: &mut Value, field: &str, default: impl Into<Value>) {
    if object.is_object() && is_unset(&object[field]) {
        object[field] = default.into();
    }
}

/// Removes a field.
pub(crate) fn unset(object: &mut Value, field: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(field);
    }
}
