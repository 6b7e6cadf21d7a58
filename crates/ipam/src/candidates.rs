//! Selection without a look at every pool: those with a scope for the namespace are found by it. A cluster may have a pool for
//! each of a thousand tenants, and ten thousand load balancers that choose.

use std::collections::HashMap;

use crate::{
    pool::{Pool, Scope},
    selection::{Mode, Requirement, Rules, check, rank},
};

const ANY: &str = "*";

/// Where the pools of a list stand, by the namespaces of their scopes. To be made anew when the list changes.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Places in the list, best pool first.
    ranked: Vec<usize>,
    /// Ranks of the global pools.
    global: Vec<usize>,
    /// Ranks of the others.
    by_namespace: HashMap<String, Vec<usize>>,
}

impl Candidates {
    pub fn of(pools: &[&Pool]) -> Self {
        let mut ranked: Vec<_> = (0..pools.len()).collect();
        ranked.sort_by(|one, other| rank(pools[*one]).cmp(&rank(pools[*other])));
        let mut found = Self { ranked, ..Self::default() };
        for (rank, place) in found.ranked.iter().enumerate() {
            let selector = &pools[*place].selector;
            if selector.is_global() {
                found.global.push(rank);
                continue;
            }
            for scope in &selector.scopes {
                let ranks = found.by_namespace.entry(scope.namespace.clone()).or_default();
                if ranks.last() != Some(&rank) {
                    ranks.push(rank);
                }
            }
        }
        found
    }

    /// [`crate::Choice::order`] of [`crate::select`], as places in the list that this was made of. `pool` is the pool at a
    /// place, or the fault that keeps it from serving.
    pub fn order<'a>(
        &self,
        pool: impl Fn(usize) -> Result<&'a Pool, String>,
        requirement: &Requirement,
        rules: impl Into<Rules>,
    ) -> Vec<usize> {
        let rules = rules.into();
        let strict = self.round(&pool, requirement, rules, Scope::matches);
        if strict.is_empty() && rules.mode == Mode::StrictThenLoose {
            return self.round(&pool, requirement, rules, Scope::matches_loosely);
        }
        strict
    }

    fn round<'a>(
        &self,
        pool: &impl Fn(usize) -> Result<&'a Pool, String>,
        requirement: &Requirement,
        rules: Rules,
        matches: fn(&Scope, &Scope) -> bool,
    ) -> Vec<usize> {
        let wanted = requirement.scope();
        let serves = |rank: &usize, as_global: bool| {
            let place = self.ranked[*rank];
            let checked = pool(place).ok()?;
            let is_global = check(checked, (requirement, &wanted), rules, matches, |_| Ok(())).ok()?;
            (is_global == as_global).then_some(place)
        };
        let own = self.for_namespace(&requirement.namespace);
        let own: Vec<_> = own.iter().filter_map(|rank| serves(rank, false)).collect();
        if own.is_empty() { self.global.iter().filter_map(|rank| serves(rank, true)).collect() } else { own }
    }

    /// Ranks of the pools with a scope whose namespace matches.
    fn for_namespace(&self, namespace: &str) -> Vec<usize> {
        let mut ranks: Vec<usize> = if namespace == ANY {
            self.by_namespace.values().flatten().copied().collect()
        } else {
            let under = |name| self.by_namespace.get(name).into_iter().flatten().copied();
            under(namespace).chain(under(ANY)).collect()
        };
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::{Quotas, RangeSpec, Ranges, Selector, select};

    fn pool(name: String, priority: i64, network: &str, scopes: &[[&str; 3]]) -> Pool {
        let scopes = scopes.iter().map(|[namespace, project, cluster]| Scope {
            namespace: (*namespace).into(),
            project: (*project).into(),
            guest_cluster: (*cluster).into(),
        });
        let selector = Selector { priority, network: network.into(), scopes: scopes.collect() };
        let ranges = Ranges::parse(&[RangeSpec::subnet("10.0.0.0/24")]).unwrap();
        Pool { name, created: 0, ranges, selector, by_name_only: false, quotas: Quotas::default() }
    }

    fn need(network: &str, [namespace, project, cluster]: [&str; 3]) -> Requirement {
        Requirement {
            network: network.into(),
            project: project.into(),
            namespace: namespace.into(),
            cluster: cluster.into(),
            family: None,
        }
    }

    #[test]
    fn a_choice_looks_at_no_pool_of_another_namespace() {
        let mut pools: Vec<_> = (0..1000)
            .map(|n| pool(format!("pool-{n}"), 0, "", &[[&format!("tenant-{n}"), "*", "*"]]))
            .collect();
        pools.push(pool("global".into(), 0, "", &[["*", "*", "*"]]));
        pools.push(pool("all".into(), 5, "vlan", &[["*", "red", "*"]]));
        let refs: Vec<_> = pools.iter().collect();
        let (candidates, looks) = (Candidates::of(&refs), Cell::new(0));
        let order = |namespace| {
            looks.set(0);
            let at = |place: usize| {
                looks.set(looks.get() + 1);
                Ok(refs[place])
            };
            let order = candidates.order(at, &need("", [namespace, "", ""]), Mode::Strict);
            (order.into_iter().map(|place| refs[place].name.as_str()).collect::<Vec<_>>(), looks.get())
        };
        assert_eq!(order("tenant-7"), (vec!["pool-7"], 2));
        assert_eq!(order("elsewhere"), (vec!["global"], 2));
    }

    // the webhook refuses such a pool, and one may have got in without it
    #[test]
    fn a_pool_of_ten_thousand_scopes_serves_whom_they_name_and_costs_others_no_look() {
        let tenants: Vec<_> = (0..10_000).map(|n| format!("tenant-{n}")).collect();
        let scopes: Vec<_> = tenants.iter().map(|tenant| [tenant.as_str(), "*", "*"]).collect();
        let pools =
            [pool("huge".into(), 0, "", &scopes), pool("edge".into(), 0, "", &[["team-a", "*", "*"]])];
        let refs: Vec<_> = pools.iter().collect();
        let (candidates, looks) = (Candidates::of(&refs), Cell::new(0));
        for (namespace, expected) in [("team-a", "edge"), ("tenant-9999", "huge")] {
            looks.set(0);
            let at = |place: usize| {
                looks.set(looks.get() + 1);
                Ok(refs[place])
            };
            let order = candidates.order(at, &need("", [namespace, "", ""]), Mode::Strict);
            let names: Vec<_> = order.into_iter().map(|place| refs[place].name.as_str()).collect();
            assert_eq!((names, looks.get()), (vec![expected], 1));
        }
    }

    proptest! {
        #[test]
        fn it_is_the_choice_of_a_walk_over_all_pools(
            pools in prop::collection::vec(
                (0..3_i64, "[nm]?", prop::collection::vec(["[ab*]", "[p*]?", "[c*]?"], 0..3), prop::bool::weighted(0.2), any::<bool>()),
                0..6,
            ),
            (network, parts) in ("[nm]?", ["[abc*]", "[pq]?", "[cd]?"]),
            (loosely, strict_global_network) in any::<(bool, bool)>(),
        ) {
            let pools: Vec<_> = pools.iter().enumerate().map(|(n, (priority, network, scopes, broken, by_name_only))| {
                let scopes: Vec<_> = scopes.iter().map(|scope| scope.each_ref().map(String::as_str)).collect();
                let pool = pool(n.to_string(), *priority, network, &scopes);
                (Pool { by_name_only: *by_name_only && n % 2 == 0, ..pool }, *broken)
            }).collect();
            let refs: Vec<_> = pools.iter().map(|(pool, _)| pool).collect();
            let fault = |place: usize| if pools[place].1 { Err("broken".to_owned()) } else { Ok(()) };
            let mode = if loosely { Mode::StrictThenLoose } else { Mode::Strict };
            let rules = Rules { mode, strict_global_network };
            let requirement = need(&network, parts.each_ref().map(String::as_str));
            let walked = select(&refs, &requirement, rules, |pool| fault(pool.name.parse().unwrap())).order;
            let found = Candidates::of(&refs).order(|place| fault(place).map(|()| refs[place]), &requirement, rules);
            prop_assert_eq!(found.into_iter().map(|place| refs[place].name.clone()).collect::<Vec<_>>(), walked);
        }
    }
}
