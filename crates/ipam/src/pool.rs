//! A pool as its spec describes it, and what speaks against it: alone, and beside the other pools.

use std::{collections::HashMap, fmt, hash::Hash, net::IpAddr};

use crate::{
    quota::Quotas,
    ranges::{RangeFault, Ranges},
    scopes::ScopeIndex,
};

/// A checked pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub name: String,
    /// Seconds since 1970: ties between pools go to the older one.
    pub created: i64,
    pub ranges: Ranges,
    pub selector: Selector,
    /// Only load balancers that name it draw from it.
    pub by_name_only: bool,
    pub quotas: Quotas,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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
    #[error(
        "allocated IP {address} is excluded: {holder} holds it and no range covers it; give it a range with drain: true until \
         it is released"
    )]
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

/// So many pairs of a pool's own scopes that match each other are named.
const PAIRS: usize = 20;

impl Pool {
    /// The faults of this pool beside `others` (entries of the same name do not count), and those of its own scopes, in
    /// the order of the rules. Of the pairs of its own scopes the first twenty that are found are named.
    pub fn faults<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Vec<PoolFault> {
        let others: Vec<_> = others.into_iter().collect();
        let mut faults = self.overlaps(others.iter().copied());
        faults.extend(self.selector_faults(None, others));
        faults
    }

    /// One overlap with each of the other pools.
    pub fn overlaps<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Vec<PoolFault> {
        let overlap = |other: &Self| {
            let (own, its) = self.ranges.overlap(&other.ranges)?;
            let (own, its) = (own.to_string(), its.to_string());
            Some(PoolFault::Overlap { own, other: its, pool: other.name.clone() })
        };
        self.besides(others).filter_map(overlap).collect()
    }

    /// The faults of the selector that it has and `former` had not.
    pub fn selector_faults<'a>(
        &self,
        former: Option<&Selector>,
        others: impl IntoIterator<Item = &'a Self>,
    ) -> Vec<PoolFault> {
        let mut faults = Vec::new();
        let Selector { priority, network, scopes } = &self.selector;
        let had_priority = former.is_some_and(|former| former.priority == *priority);
        // the schema says int32, the Go program reads an unsigned number
        if !had_priority && !(0..=i64::from(u32::MAX)).contains(priority) {
            faults.push(PoolFault::Priority(*priority));
        }
        let was_global = former.is_some_and(Selector::is_global);
        if self.selector.is_global() {
            let second = self.besides(others).filter(|other| !was_global && other.selector.is_global());
            faults.extend(second.map(|other| PoolFault::SecondGlobal(other.name.clone())));
            return faults;
        }
        let added = added(scopes, former.map_or(&[], |former| &former.scopes));
        faults.extend(pairs(scopes, &added).map(|(first, second)| PoolFault::ScopesOverlap {
            first: scopes[first].clone(),
            second: scopes[second].clone(),
        }));
        // a global pool's priority is compared with nobody's
        let priority_stood = had_priority && !was_global;
        let network_stood = priority_stood && former.is_some_and(|former| former.network == *network);
        // where neither priority nor network changes, only scopes that were not there can be the same as another pool's
        let indices = if network_stood { added } else { (0..scopes.len()).collect() };
        let index = ScopeIndex::of(indices.into_iter().map(|index| (index, &scopes[index])));
        for other in self.besides(others).filter(|other| !other.selector.is_global()) {
            let its = &other.selector;
            if !priority_stood && *priority != 0 && *priority == its.priority {
                faults.push(PoolFault::SamePriority { pool: other.name.clone(), priority: *priority });
            }
            if *priority == 0 && its.priority == 0 && *network == its.network {
                let same = its.scopes.iter().find_map(|its| Some((index.matching(its).next()?, its)));
                faults.extend(same.map(|(own, its)| PoolFault::SameScope {
                    pool: other.name.clone(),
                    own: scopes[own].clone(),
                    other: its.clone(),
                }));
            }
        }
        faults
    }

    /// The other pools.
    fn besides<'a>(&self, pools: impl IntoIterator<Item = &'a Self>) -> impl Iterator<Item = &'a Self> {
        pools.into_iter().filter(|other| other.name != self.name)
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

/// The indices of the items of `now` that `former` has not: of equal items as many stood as there were.
pub fn added<T: Eq + Hash>(now: &[T], former: &[T]) -> Vec<usize> {
    let mut stood: HashMap<&T, usize> = HashMap::new();
    for item in former {
        *stood.entry(item).or_default() += 1;
    }
    let is_added = |index: &usize| match stood.get_mut(&now[*index]) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    (0..now.len()).filter(is_added).collect()
}

/// Pairs of scopes that match each other, at least one of them added: those that are found first.
fn pairs(scopes: &[Scope], added: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    // without an added scope nobody asks
    let indexed = if added.is_empty() { &[] } else { scopes };
    let index = ScopeIndex::of(indexed.iter().enumerate());
    let of_one = |one: &usize| {
        let one = *one;
        // a pair of two added ones is found from both sides
        let is_new =
            move |other: &usize| *other > one || (*other < one && added.binary_search(other).is_err());
        index.matching(&scopes[one]).filter(is_new).map(move |other| (one.min(other), one.max(other)))
    };
    let mut pairs: Vec<_> = added.iter().flat_map(of_one).take(PAIRS).collect();
    pairs.sort_unstable();
    pairs.into_iter()
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
        let ranges = Ranges::default();
        Pool {
            name: name.into(),
            created: 0,
            ranges,
            selector,
            by_name_only: false,
            quotas: Quotas::default(),
        }
    }

    fn stretch(name: &str, stretches: &[(&str, &str)]) -> Pool {
        let specs: Vec<_> = stretches
            .iter()
            .map(|(start, end)| RangeSpec {
                subnet: "10.0.0.0/24".into(),
                start: (*start).into(),
                end: (*end).into(),
                ..RangeSpec::default()
            })
            .collect();
        Pool { ranges: Ranges::parse(&specs).unwrap(), ..pool(name, 0, &[]) }
    }

    #[rstest]
    #[case::none_before(&[1, 2], &[], &[0, 1])]
    #[case::all_before(&[1, 2], &[2, 1], &[])]
    #[case::twice_and_once_before(&[1, 1], &[1], &[1])]
    fn items_that_stood_before_are_taken_off_one_by_one(
        #[case] now: &[i32],
        #[case] former: &[i32],
        #[case] expected: &[usize],
    ) {
        assert_eq!(added(now, former), expected);
    }

    #[test]
    fn many_equal_scopes_are_a_few_faults() {
        let faults = pool("edge", 0, &[("ns1", "pj1", "*"); 66_000]).faults([]);
        assert_eq!(faults.len(), PAIRS);
    }

    #[rstest]
    #[case::nothing(&["a", "b", "*"], &["a", "b", "*"], &[])]
    #[case::another_order(&["*", "b", "a"], &["a", "b", "*"], &[])]
    #[case::one_less(&["b", "*"], &["a", "b", "*"], &[])]
    #[case::one_more(&["a", "b", "*"], &["b", "*"], &[("a", "*")])]
    #[case::one_twice(&["a", "c", "a"], &["a", "c"], &[("a", "a")])]
    #[case::all(&["a", "a", "a"], &[], &[("a", "a"), ("a", "a"), ("a", "a")])]
    fn of_the_scopes_that_match_each_other_those_with_a_new_one_are_faults(
        #[case] now: &[&str],
        #[case] before: &[&str],
        #[case] expected: &[(&str, &str)],
    ) {
        let [now, before] = [now, before].map(|namespaces| {
            let scopes: Vec<_> = namespaces.iter().map(|namespace| (*namespace, "pj1", "c1")).collect();
            pool("edge", 0, &scopes)
        });
        let faults = now.selector_faults(Some(&before.selector), []);
        let faults: Vec<_> = faults
            .iter()
            .map(|fault| match fault {
                PoolFault::ScopesOverlap { first, second } => (&*first.namespace, &*second.namespace),
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(faults, expected);
    }

    #[rstest]
    #[case::stood(pool("edge", 0, &[("a", "*", "*")]), pool("edge", 0, &[("a", "*", "*")]), 0)]
    #[case::a_scope_more(pool("edge", 0, &[("a", "*", "*"), ("b", "*", "*")]), pool("edge", 0, &[("a", "*", "*")]), 2)]
    #[case::no_priority_any_more(pool("edge", 0, &[("a", "*", "*")]), pool("edge", 5, &[("a", "*", "*")]), 2)]
    #[case::the_priority_of_another(pool("edge", 7, &[("a", "*", "*")]), pool("edge", 5, &[("a", "*", "*")]), 1)]
    #[case::the_same_priority(pool("edge", 7, &[("c", "*", "*")]), pool("edge", 7, &[("a", "*", "*")]), 0)]
    #[case::not_global_any_more(pool("edge", 0, &[("a", "*", "*")]), pool("edge", 0, &[ALL]), 2)]
    #[case::global(pool("edge", 0, &[ALL]), pool("edge", 0, &[("a", "*", "*")]), 1)]
    #[case::still_global(pool("edge", 0, &[ALL]), pool("edge", 0, &[ALL]), 0)]
    #[case::no_priority_at_all(pool("edge", -1, &[]), pool("edge", -1, &[]), 0)]
    fn a_fault_beside_other_pools_counts_where_a_change_brings_it_about(
        #[case] now: Pool,
        #[case] before: Pool,
        #[case] expected: usize,
    ) {
        let others = [
            pool("one", 0, &[("*", "pj1", "*")]),
            pool("two", 0, &[("*", "pj2", "*")]),
            pool("seven", 7, &[("z", "*", "*")]),
            pool("global", 0, &[ALL]),
        ];
        let faults = now.selector_faults(Some(&before.selector), &others);
        assert_eq!(faults.len(), expected, "{faults:?}");
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
        assert_eq!(
            faults[0],
            "allocated IP 10.0.0.30 is excluded: shop/web holds it and no range covers it; give it a range with drain: true \
             until it is released"
        );
        assert_eq!(faults.len(), 2);
    }
}
