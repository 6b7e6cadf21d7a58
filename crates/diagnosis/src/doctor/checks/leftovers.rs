//! LoadBalancers of this guest cluster whose Service is gone. [`crate::whose`] says whose an object is.

use super::{
    super::{Outcome, facts::Facts, read},
    config, items, some,
};
use crate::{
    json::{is_deleted, key},
    whose::{Machines, Whose, machine_of, used_by},
};

pub(super) fn leftovers(facts: &Facts) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let services = items(&facts.guest, read::SERVICES)?;
    let nodes = items(&facts.guest, read::NODES)?;
    let machines = items(&facts.harvester, &read::machines(namespace))?;
    let instances = items(&facts.harvester, &read::instances(namespace))?;
    let are_named = nodes.iter().any(|node| machine_of(node, machines).is_some());
    let machines = Machines::of(services, nodes, machines, instances);
    if machines.are_elsewhere && are_named {
        return Err(Outcome::not_asked(
            "the Nodes' provider IDs are names of VirtualMachines, and another cluster may have machines of these names: nothing \
             proves whose a LoadBalancer is",
        ));
    }
    if machines.are_elsewhere {
        return Err(Outcome::waits_for("machines"));
    }
    let (mut left, mut doubtful) = (Vec::new(), Vec::new());
    for object in items(&facts.harvester, &read::balancers(namespace))? {
        if is_deleted(object) || used_by(object, services).is_some() {
            continue;
        }
        match machines.whose(object) {
            Whose::Ours => left.push(key(object)),
            Whose::Another(_) | Whose::Doubtful(_) => doubtful.push(key(object)),
            Whose::Unproved if machines.may_be_ours(object) => doubtful.push(key(object)),
            Whose::Unproved => {}
        }
    }
    Ok(if !left.is_empty() {
        Outcome::red(
            format!("their Services are gone: {}", some(&left)),
            "`harvester-cloud-provider orphans --delete` shows what proves whose each is, and asks: they hold addresses that \
             nobody uses",
        )
    } else if !doubtful.is_empty() {
        Outcome::not_asked(format!(
            "VirtualMachines that are no ready Nodes of this cluster by their UID carry its name, or none, so these may be another \
             one's: {}",
            some(&doubtful)
        ))
    } else {
        Outcome::green("none")
    })
}
