//! A pool as its spec describes it, and what speaks against it: alone, and beside the other pools.

use std::{fmt, net::IpAddr};

use crate::ranges::{RangeFault, Ranges};

/// A checked pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub name: String,
    /// Seconds since 1970: ties between pools go to the older one.
    pub created: i64,
    pub ranges: Ranges,
    pub selector: Selector,
}

/// The load balancers that may draw from a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The highest wins; 0 means none.
    pub priority: i64,
    pub network: String,
    pub scopes: Vec<Scope>,
}

impl Selector {
    /// Whether the pool is everybody's fallback: exactly one scope, all of it `*`.
    pub fn is_global(&self) -> bool {
        matches!(self.scopes.as_slice(), [Scope { project, namespace, guest_cluster }]
            if project == "*" && namespace == "*" && guest_cluster == "*")
    }
}

/// One admitted combination; `*` stands for any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub project: String,
    pub namespace: String,
    pub guest_cluster: String,
}

impl Scope {
    /// Every part equal, or `*` on either side.
    pub fn matches(&self, other: &Self) -> bool {
        part(&self.project, &other.project)
            && part(&self.namespace, &other.namespace)
            && part(&self.guest_cluster, &other.guest_cluster)
    }

    /// As [`Scope::matches`], but an empty project or cluster of this scope matches anything.
    pub fn matches_loosely(&self, other: &Self) -> bool {
        (self.project.is_empty() || part(&self.project, &other.project))
            && part(&self.namespace, &other.namespace)
            && (self.guest_cluster.is_empty() || part(&self.guest_cluster, &other.guest_cluster))
    }
}

fn part(one: &str, other: &str) -> bool {
    one == other || one == "*" || other == "*"
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { project, namespace, guest_cluster } = self;
        write!(f, "(project {project:?}, namespace {namespace:?}, guestCluster {guest_cluster:?})")
    }
}

/// A fault of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFault {
    #[error(transparent)]
    Range(#[from] RangeFault),
    #[error("the ranges overlap with other pools: {own} with {other} of pool {pool}")]
    Overlap { own: String, other: String, pool: String },
    #[error("allocated IP {address} is excluded: {holder} holds it and no range covers it")]
    Excluded { address: String, holder: String },
    #[error("there is already a global IP pool: {0}")]
    SecondGlobal(String),
    #[error("selector invalid: scope {first} overlaps {second}")]
    ScopesOverlap { first: Scope, second: Scope },
    #[error("the priority can't be the same as the pool {pool}: both have {priority}")]
    SamePriority { pool: String, priority: i64 },
    #[error(
        "scope selector is same as the pool {pool} with priority 0: {own} and {other} match the same load balancers, \
         set a different priority or scope"
    )]
    SameScope { pool: String, own: Scope, other: Scope },
    #[error("priority {0} is outside of 0 to 4294967295")]
    Priority(i64),
}

/// So many of the scopes that match one scope are named.
const MATCHES: usize = 20;

impl Pool {
    /// The faults of this pool beside `others` (entries of the same name do not count), and those of its own scopes.
    /// Every fault at once, in the order of the rules.
    pub fn faults<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Vec<PoolFault> {
        let mut faults = Vec::new();
        let others: Vec<_> = others.into_iter().filter(|other| other.name != self.name).collect();
        for other in &others {
            if let Some((own, its)) = self.ranges.overlap(&other.ranges) {
                let (own, its) = (own.to_string(), its.to_string());
                faults.push(PoolFault::Overlap { own, other: its, pool: other.name.clone() });
            }
        }
        let Selector { priority, network, scopes } = &self.selector;
        // the schema says int32, the Go program reads an unsigned number
        if !(0..=i64::from(u32::MAX)).contains(priority) {
            faults.push(PoolFault::Priority(*priority));
        }
        if self.selector.is_global() {
            let second = others.iter().filter(|other| other.selector.is_global());
            faults.extend(second.map(|other| PoolFault::SecondGlobal(other.name.clone())));
            return faults;
        }
        for (index, first) in scopes.iter().enumerate() {
            let matching = scopes[index + 1..].iter().filter(|second| first.matches(second));
            // every scope may match every other: a thousand of them would make half a million faults
            for second in matching.take(MATCHES) {
                faults.push(PoolFault::ScopesOverlap { first: first.clone(), second: second.clone() });
            }
        }
        for other in others.iter().filter(|other| !other.selector.is_global()) {
            if *priority != 0 && *priority == other.selector.priority {
                faults.push(PoolFault::SamePriority { pool: other.name.clone(), priority: *priority });
            }
            if *priority == 0 && other.selector.priority == 0 && *network == other.selector.network {
                let same = scopes.iter().find_map(|own| {
                    other.selector.scopes.iter().find(|its| own.matches(its)).map(|its| (own, its))
                });
                if let Some((own, its)) = same {
                    let (own, its) = (own.clone(), its.clone());
                    faults.push(PoolFault::SameScope { pool: other.name.clone(), own, other: its });
                }
            }
        }
        faults
    }

    /// The recorded addresses that no range covers. A key that is no address counts as such; one that has become a
    /// gateway does not, since imported pools hold such addresses.
    pub fn excluded<'a>(
        &self,
        allocated: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Vec<PoolFault> {
        let covered = |key: &str| {
            key.parse::<IpAddr>().is_ok_and(|address| self.ranges.covering(address.to_canonical()).is_some())
        };
        allocated
            .into_iter()
            .filter(|(key, _)| !covered(key))
            .map(|(key, holder)| PoolFault::Excluded { address: key.clone(), holder: holder.clone() })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;
    use crate::RangeSpec;

    const ALL: (&str, &str, &str) = ("*", "*", "*");

    fn pool(name: &str, priority: i64, scopes: &[(&str, &str, &str)]) -> Pool {
        let scopes = scopes.iter().map(|(namespace, project, cluster)| Scope {
            namespace: (*namespace).into(),
            project: (*project).into(),
            guest_cluster: (*cluster).into(),
        });
        let selector = Selector { priority, network: String::new(), scopes: scopes.collect() };
        Pool { name: name.into(), created: 0, ranges: Ranges::default(), selector }
    }

    fn stretch(name: &str, stretches: &[(&str, &str)]) -> Pool {
        let specs: Vec<_> = stretches
            .iter()
            .map(|(start, end)| RangeSpec {
                subnet: "10.0.0.0/24".into(),
                start: (*start).into(),
                end: (*end).into(),
                gateway: String::new(),
            })
            .collect();
        Pool { ranges: Ranges::parse(&specs).unwrap(), ..pool(name, 0, &[]) }
    }

    #[test]
    fn a_thousand_equal_scopes_are_a_few_faults_each() {
        let faults = pool("edge", 0, &[("ns1", "pj1", "*"); 1_000]).faults([]);
        assert!(faults.len() <= 1_000 * MATCHES, "{} faults", faults.len());
    }

    #[rstest]
    #[case::second_global(pool("old", 0, &[ALL]), pool("new", 0, &[ALL]), &["already a global IP pool: old"])]
    #[case::first_global(pool("old", 0, &[("ns1", "*", "*")]), pool("new", 0, &[ALL]), &[])]
    #[case::beside_a_global(
        pool("old", 0, &[ALL]),
        pool("new", 0, &[("ns1", "pj1", "*"), ("ns2", "pj1", "*"), ("ns1", "pj2", "cluster1")]),
        &[]
    )]
    #[case::overlap_in_itself(
        pool("old", 0, &[]),
        pool("new", 0, &[("ns1", "pj1", "*"), ("*", "pj1", "cluster1")]),
        &["selector invalid: scope (project \"pj1\", namespace \"ns1\""]
    )]
    #[case::other_priority(pool("old", 1, &[("*", "pj1", "*")]), pool("new", 2, &[("*", "pj1", "*")]), &[])]
    #[case::one_without_priority(pool("old", 5, &[("*", "pj1", "*")]), pool("new", 0, &[("*", "pj1", "*")]), &[])]
    #[case::another_without_priority(pool("old", 0, &[("*", "pj1", "*")]), pool("new", 5, &[("*", "pj1", "*")]), &[])]
    #[case::same_priority(pool("old", 1, &[("a", "*", "*")]), pool("new", 1, &[("b", "*", "*")]), &["pool old: both have 1"])]
    #[case::side_by_side(
        pool("old", 0, &[("ns1", "pj1", "cluster1")]),
        pool("new", 0, &[("ns1", "pj1", "cluster2"), ("ns2", "pj1", "cluster1"), ("*", "pj2", "*")]),
        &[]
    )]
    #[case::same_scope(
        pool("old", 0, &[("*", "pj1", "*")]),
        pool("new", 0, &[("ns1", "pj1", "cluster2")]),
        &["same as the pool old with priority 0"]
    )]
    #[case::negative_priority(pool("old", 0, &[]), pool("new", -1, &[]), &["priority -1 is outside"])]
    #[case::same_subnet(stretch("old", &[("10.0.0.10", "10.0.0.20"), ("10.0.0.30", "10.0.0.40")]), stretch("new", &[("10.0.0.50", "10.0.0.60")]), &[])]
    #[case::whole_subnet(
        stretch("old", &[("10.0.0.10", "10.0.0.20"), ("10.0.0.30", "10.0.0.40")]),
        stretch("new", &[("", "")]),
        &["10.0.0.1-10.0.0.254 with 10.0.0.10-10.0.0.20 of pool old"]
    )]
    fn faults_beside_another_pool(#[case] old: Pool, #[case] new: Pool, #[case] expected: &[&str]) {
        let faults: Vec<_> = new.faults([&old, &new]).iter().map(ToString::to_string).collect();
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn held_addresses_must_stay_in_the_ranges() {
        let pool = stretch("edge", &[("10.0.0.10", "10.0.0.20")]);
        let held =
            |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), "shop/web".to_owned())).collect();
        let allocated: BTreeMap<String, String> = held(&["10.0.0.11", "10.0.0.12"]);
        assert_eq!(pool.excluded(&allocated), []);
        let allocated: BTreeMap<String, String> = held(&["10.0.0.30", "nonsense"]);
        let faults: Vec<_> = pool.excluded(&allocated).iter().map(ToString::to_string).collect();
        assert_eq!(faults[0], "allocated IP 10.0.0.30 is excluded: shop/web holds it and no range covers it");
        assert_eq!(faults.len(), 2);
    }
}
