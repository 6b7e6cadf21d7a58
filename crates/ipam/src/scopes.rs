//! Finds the scopes that match a scope without a look at all of them: a pool may have many, and whoever can reach the
//! webhook can make it check tens of thousands.
//!
//! For example, `(pj1, ns1, *)` (project, namespace, guest cluster) is in the index with these keys, all under its exact
//! parts, project and namespace:
//!
//! ```text
//! a scope that matches it has in common with it    key
//! project and namespace                            (pj1, ns1, *)
//! project                                          (pj1, *,   *)
//! namespace                                        (*,   ns1, *)
//! nothing                                          (*,   *,   *)
//! ```
//!
//! A search for `(pj1, *, c1)` looks under each set of exact parts for the parts of `(pj1, *, c1)` that are in the set: under
//! project and namespace for `(pj1, *, *)`, which is the second key.

use crate::pool::Scope;

const ANY: &str = "*";
/// Every set of the three parts of a scope, a bit for each.
const SETS: std::ops::Range<u8> = 0..1 << 3;

type Parts<'a> = [&'a str; 3];

/// Scopes and their indices, sorted. Two scopes match where they are equal in the parts in which neither has `*`. So a
/// scope stands here once for each set of parts that another may have in common with it, with `*` for the others.
#[derive(Debug)]
pub(crate) struct ScopeIndex<'a>(Vec<((u8, Parts<'a>), usize)>);

impl<'a> ScopeIndex<'a> {
    pub(crate) fn of(scopes: impl Iterator<Item = (usize, &'a Scope)>) -> Self {
        let mut entries = Vec::new();
        for (index, scope) in scopes {
            let exact = exact(scope);
            let common = SETS.filter(|set| set & !exact == 0);
            entries.extend(common.map(|common| ((exact, only(scope, common)), index)));
        }
        entries.sort_unstable();
        Self(entries)
    }

    /// The indices of the scopes that match this one, each once.
    pub(crate) fn matching(&self, scope: &Scope) -> impl Iterator<Item = usize> {
        SETS.flat_map(move |exact| {
            let key = (exact, only(scope, exact));
            let first = self.0.partition_point(|(other, _)| *other < key);
            self.0[first..].iter().take_while(move |(other, _)| *other == key).map(|(_, index)| *index)
        })
    }
}

fn parts(scope: &Scope) -> Parts<'_> {
    [&scope.project, &scope.namespace, &scope.guest_cluster]
}

/// The parts that are not `*`.
fn exact(scope: &Scope) -> u8 {
    parts(scope).iter().rev().fold(0, |set, part| set << 1 | u8::from(*part != ANY))
}

/// The scope with `*` for all parts but these.
fn only(scope: &Scope, set: u8) -> Parts<'_> {
    let mut parts = parts(scope);
    for (bit, part) in parts.iter_mut().enumerate() {
        if set >> bit & 1 == 0 {
            *part = ANY;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scope() -> impl Strategy<Value = Scope> {
        let part = || prop::sample::select(vec!["", "*", "a", "b"]).prop_map(str::to_owned);
        (part(), part(), part()).prop_map(|(project, namespace, guest_cluster)| Scope {
            project,
            namespace,
            guest_cluster,
        })
    }

    proptest! {
        #[test]
        fn the_index_finds_the_scopes_that_a_look_at_all_of_them_finds(
            scopes in prop::collection::vec(scope(), 0..30),
            sought in scope(),
        ) {
            let index = ScopeIndex::of(scopes.iter().enumerate());
            let mut found: Vec<_> = index.matching(&sought).collect();
            found.sort_unstable();
            let matching = (0..scopes.len()).filter(|index| scopes[*index].matches(&sought));
            prop_assert_eq!(found, matching.collect::<Vec<_>>());
        }
    }
}
