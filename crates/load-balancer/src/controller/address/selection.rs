//! Which pools may serve an object.

use std::collections::HashMap;

use harvester_api::{LoadBalancer, WorkloadType};
use ip_pools::CheckedPool;
use ipam::{Choice, Mode, Rules, select};

use super::{Seen, requirement};
use crate::steps::step;

/// The pools that may serve the object, best first.
pub(super) fn order(seen: &Seen<'_>) -> Vec<String> {
    let Some(candidates) = seen.candidates else { return choice(seen).order };
    let usable = |place: usize| {
        step();
        let CheckedPool { pool, blocked, .. } = &seen.pools[place];
        blocked.clone().map_or(Ok(pool), Err)
    };
    let order = candidates.order(usable, &requirement(seen.lb), rules(seen));
    order.into_iter().map(|place| seen.pools[place].pool.name.clone()).collect()
}

/// The pools that may serve the object, and why each of the others does not.
pub(crate) fn choice(seen: &Seen<'_>) -> Choice {
    let requirement = requirement(seen.lb);
    let pools: Vec<_> = seen.pools.iter().map(|checked| &checked.pool).collect();
    let blocked: HashMap<_, _> = seen
        .pools
        .iter()
        .filter_map(|checked| Some((checked.pool.name.as_str(), checked.blocked.as_ref()?)))
        .collect();
    let usable = |pool: &ipam::Pool| match blocked.get(pool.name.as_str()) {
        Some(why) => Err((*why).clone()),
        None => Ok(()),
    };
    select(&pools, &requirement, rules(seen), usable)
}

fn rules(seen: &Seen<'_>) -> Rules {
    Rules { mode: mode(seen.lb), strict_global_network: seen.pool_choice.strict_global_network }
}

/// The rounds of a selection.
pub(super) fn mode(lb: &LoadBalancer) -> Mode {
    match lb.spec.workload() {
        WorkloadType::Cluster => Mode::StrictThenLoose,
        WorkloadType::Vm => Mode::Strict,
    }
}
