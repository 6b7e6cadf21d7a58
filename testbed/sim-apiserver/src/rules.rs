//! The steps between reading an object and keeping it: defaults, checks, and the fields that the server adds.
//!
//! `sim-apimachinery` has the steps that need the object alone. This module calls them, and has those that need the
//! server.

mod service_addresses;
mod service_families;

use serde_json::{Value, json};
use sim_apimachinery::status::Cause;
use sim_apimachinery::{defaults, rbac, validate as rules};

use crate::Failure;
use crate::faults;
use crate::kind::{Behaviour, custom};
use crate::machinery;
use crate::server::{ApiServer, Ask};
use crate::store::Inner;

/// Fills in defaults and drops what the kind does not know.
pub(crate) fn complete(ask: &Ask, new: &mut Value) {
    // events are kept in the words of the other group
    if ask.kind.behaviour != Behaviour::NewEvent {
        machinery::conform(&ask.kind, ask.version, new);
    }
    if !ask.kind.is_custom() {
        defaults::fill(ask.api(), new);
    }
}

/// A custom resource is kept as the version that is stored knows it, whatever version it was written in.
pub(crate) fn as_stored(ask: &Ask, new: &mut Value) {
    let stored = ask.kind.versions.iter().position(|version| version.api.storage);
    let pruned = ask.kind.is_custom() && ask.kind.conversion.is_none();
    if let Some(stored) = stored.filter(|stored| pruned && *stored != ask.version) {
        machinery::conform(&ask.kind, stored, new);
    }
}

/// Sets the fields of a new object that its maker cannot choose.
pub(crate) fn prepare_create(server: &ApiServer, ask: &Ask, object: &mut Value) -> Result<(), Failure> {
    match ask.kind.behaviour {
        Behaviour::Service => object["status"] = json!({"loadBalancer": {}}),
        Behaviour::Namespace => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        Behaviour::Node => defaults::taint_new_node(object),
        Behaviour::Pod => {
            defaults::admit_pod(object);
            object["status"] = defaults::new_pod_status(object);
        }
        Behaviour::Workload => object["status"] = json!({}),
        Behaviour::Definition => {
            drop(object.as_object_mut().and_then(|definition| definition.remove("status")));
            let causes = rules::faults(ask.api(), None, object);
            let kind = custom::kind(object).ok_or_else(|| refusal(ask, object, &causes))?;
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

/// Refuses a role or binding that gives what its writer does not hold.
pub(crate) fn may_grant(
    server: &ApiServer,
    ask: &Ask,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), Failure> {
    let policy = server.0.rights.policy(&server.0.store);
    policy.check_grant(&rbac::Grant {
        user: &ask.user,
        kind: ask.api(),
        namespace: ask.namespace(),
        name: ask.name(),
        old,
        new,
    })
}

/// Sets the fields that follow from a change.
pub(crate) fn prepare_update(server: &ApiServer, ask: &Ask, old: &Value, new: &mut Value) {
    if ask.kind.behaviour == Behaviour::Service && ask.subresource().is_empty() {
        defaults::carry_over(old, new);
    }
    if ask.kind.behaviour == Behaviour::Definition
        && ask.subresource().is_empty()
        && let Some(kind) = custom::kind(new)
    {
        custom::complete(new, &kind, &server.0.clock.text());
    }
}

/// Refuses an object with everything that is wrong with it.
pub(crate) fn validate(
    server: &ApiServer,
    ask: &Ask,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), Failure> {
    let mut causes = rules::metadata(ask.api(), old, new);
    match ask.kind.behaviour {
        Behaviour::Service if ask.subresource() == "status" => causes.extend(rules::service_status(new)),
        Behaviour::Custom => causes.extend(ask.schema().validate(new)),
        _ => causes.extend(rules::faults(ask.api(), old, new)),
    }
    if orders_faults(ask, new) {
        causes.extend(wrong_rules(new));
        ask.warn(server.doubts(new["data"]["rules"].as_str().unwrap_or_default()));
    }
    if causes.is_empty() { Ok(()) } else { Err(refusal(ask, new, &causes)) }
}

/// Whether this is the ConfigMap that orders this server's faults.
fn orders_faults(ask: &Ask, new: &Value) -> bool {
    let place = (ask.namespace(), new["metadata"]["name"].as_str().unwrap_or_default());
    ask.kind.plural == "configmaps" && place == faults::CONFIG_MAP
}

/// The rules must be ones that can be read, where they are read.
fn wrong_rules(new: &Value) -> impl Iterator<Item = Cause> {
    let keys = new["data"].as_object().into_iter().flatten();
    let stray = keys.filter(|(key, _)| *key != "rules").map(|(key, text)| {
        let told = "nobody reads this key: rules are a YAML list in the key rules";
        Cause::invalid(&format!("data[{key}]"), text, told)
    });
    let text = &new["data"]["rules"];
    let fault = faults::Rule::parse(text.as_str().unwrap_or_default()).err();
    stray.chain(fault.map(|fault| Cause::invalid("data[rules]", text, &fault)))
}

/// Gives an object what only one can have: cluster addresses and node ports.
pub(crate) fn allocate(
    inner: &mut Inner,
    ask: &Ask,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Failure> {
    if ask.kind.behaviour != Behaviour::Service || ask.subresource() == "status" {
        return Ok(());
    }
    let dry_run = ask.is_dry_run();
    service_addresses::allocate(&mut inner.addresses, old, new, dry_run)
        .map_err(|causes| refusal(ask, new, &causes))
}

fn refusal(ask: &Ask, object: &Value, causes: &[Cause]) -> Failure {
    Failure::invalid(ask.api(), object["metadata"]["name"].as_str().unwrap_or_default(), causes)
}
