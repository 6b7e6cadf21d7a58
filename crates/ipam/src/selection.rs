//! Selection of a pool for a load balancer, and the sentence that explains it.
//!
//! A pool that is not global is a candidate when its network equals the required one as text and one of its scopes
//! matches; the highest priority wins. The global pool serves load balancers without candidate, whatever its network
//! (unless [`Rules::strict_global_network`]).
//! For guest clusters a second, loose round follows: there an empty project or cluster of a scope matches anything.

use std::{cmp::Reverse, fmt};

use crate::{
    family::Family,
    pool::{Pool, Scope},
};

/// A load balancer's requirement of its pool, from its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// `namespace/name` of a network, compared as text: empty is a value like any other.
    pub network: String,
    pub project: String,
    pub namespace: String,
    pub cluster: String,
    /// The family that the address must have; `None`: whichever the pool has.
    pub family: Option<Family>,
}

impl Requirement {
    pub(crate) fn scope(&self) -> Scope {
        Scope {
            project: self.project.clone(),
            namespace: self.namespace.clone(),
            guest_cluster: self.cluster.clone(),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { network, project, namespace, cluster, family } = self;
        write!(f, "network {network:?}, project {project:?}, namespace {namespace:?}, cluster {cluster:?}")?;
        family.map_or(Ok(()), |family| write!(f, ", family {family}"))
    }
}

/// Whether a loose round may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For VMs: only the strict round.
    Strict,
    /// For guest clusters: the loose round where the strict one, global pool included, found nothing.
    StrictThenLoose,
}

/// How pools are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub mode: Mode,
    /// The global pool serves its own network alone, as every other pool does.
    pub strict_global_network: bool,
}

impl From<Mode> for Rules {
    fn from(mode: Mode) -> Self {
        Self { mode, strict_global_network: false }
    }
}

/// Why a pool was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The pool's own faults keep it from serving anybody.
    Unusable(String),
    Network(String),
    /// No range of the pool is of the family.
    Family,
    /// Every range (of the family) drains.
    Draining,
    /// A pool without scope serves nobody.
    NoScope,
    Scope,
    /// It serves only those who name it.
    ByName,
    /// The global pool serves only those whom no other pool serves.
    Global,
}

impl Rejection {
    /// Without names: whoever reads the sentence may not see the pools.
    fn kind(&self) -> &'static str {
        match self {
            Self::Unusable(_) => "not usable",
            Self::Network(_) => "for another network",
            Self::Family => "without addresses of that family",
            Self::Draining => "draining",
            Self::NoScope => "without scope",
            Self::Scope => "without a scope that matches",
            Self::ByName => "for those who name it",
            Self::Global => "global",
        }
    }
}

impl fmt::Display for Rejection {
    /// With names, for whoever may see the pools.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(why) => write!(f, "not usable: {why}"),
            Self::Network(network) if network.is_empty() => f.write_str("it is for no network"),
            Self::Network(network) => write!(f, "it is for network {network:?}"),
            Self::Family => f.write_str("it has no addresses of that family"),
            Self::Draining => f.write_str("every range of it drains"),
            Self::NoScope => f.write_str("its selector has no scope, so it serves nobody"),
            Self::Scope => f.write_str("none of its scopes matches"),
            Self::ByName => f.write_str("it serves only those who name it in spec.ipPool"),
            Self::Global => f.write_str("it is global, and serves only where no other pool matches"),
        }
    }
}

/// The outcome of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Pools that may serve, best first. The first one is the choice; the others are for records that are full.
    pub order: Vec<String>,
    /// Every other pool, by name, and why not.
    pub rejected: Vec<(String, Rejection)>,
}

/// Chooses. `usable` answers the fault that keeps a pool from serving, if there is one.
/// Ties go to the older pool, then to the name that comes first.
pub fn select(
    pools: &[&Pool],
    requirement: &Requirement,
    rules: impl Into<Rules>,
    usable: impl Fn(&Pool) -> Result<(), String>,
) -> Choice {
    let rules = rules.into();
    let mut sorted = pools.to_vec();
    sorted.sort_by(|one, other| rank(one).cmp(&rank(other)));
    let strict = round(&sorted, requirement, rules, Scope::matches, &usable);
    if strict.order.is_empty() && rules.mode == Mode::StrictThenLoose {
        return round(&sorted, requirement, rules, Scope::matches_loosely, &usable);
    }
    strict
}

/// Pools come in this order.
pub(crate) fn rank(pool: &Pool) -> impl Ord {
    (Reverse(pool.selector.priority), pool.created, &*pool.name)
}

fn round(
    sorted: &[&Pool],
    requirement: &Requirement,
    rules: Rules,
    matches: fn(&Scope, &Scope) -> bool,
    usable: &impl Fn(&Pool) -> Result<(), String>,
) -> Choice {
    let wanted = requirement.scope();
    let mut choice = Choice::default();
    let mut global = Vec::new();
    for pool in sorted {
        match check(pool, (requirement, &wanted), rules, matches, usable) {
            Ok(false) => choice.order.push(pool.name.clone()),
            Ok(true) => global.push(pool.name.clone()),
            Err(rejection) => choice.rejected.push((pool.name.clone(), rejection)),
        }
    }
    if choice.order.is_empty() {
        choice.order = global;
    } else {
        choice.rejected.extend(global.into_iter().map(|name| (name, Rejection::Global)));
    }
    choice
}

/// Whether the pool may serve the requirement, whose parts are those of `wanted`; the answer is whether it is global.
pub(crate) fn check(
    pool: &Pool,
    (requirement, wanted): (&Requirement, &Scope),
    rules: Rules,
    matches: fn(&Scope, &Scope) -> bool,
    usable: impl FnOnce(&Pool) -> Result<(), String>,
) -> Result<bool, Rejection> {
    usable(pool).map_err(Rejection::Unusable)?;
    // also the global pool: one that has no such address keeps nobody from the loose round
    if requirement.family.is_some_and(|family| !pool.ranges.has_family(family)) {
        return Err(Rejection::Family);
    }
    if pool.ranges.drains(requirement.family) {
        return Err(Rejection::Draining);
    }
    if pool.by_name_only {
        return Err(Rejection::ByName);
    }
    let is_global = pool.selector.is_global();
    if is_global && !rules.strict_global_network {
        return Ok(true);
    }
    if pool.selector.network != requirement.network {
        return Err(Rejection::Network(pool.selector.network.clone()));
    }
    if is_global {
        return Ok(true);
    }
    match pool.selector.scopes.as_slice() {
        [] => Err(Rejection::NoScope),
        scopes if scopes.iter().any(|scope| matches(scope, wanted)) => Ok(false),
        _ => Err(Rejection::Scope),
    }
}

impl Choice {
    /// One sentence of at most 1,024 characters: why nobody serves this requirement, and what would end the wait. It
    /// counts pools and names none: a tenant reads it, and pools and their networks may be other tenants'. It begins as
    /// the Go program's message does, which people search for.
    pub fn explain(&self, requirement: &Requirement) -> String {
        const LIMIT: usize = 1024;
        let mut kinds: Vec<(&str, usize)> = Vec::new();
        for (_, rejection) in &self.rejected {
            match kinds.iter_mut().find(|(kind, _)| *kind == rejection.kind()) {
                Some((_, count)) => *count += 1,
                None => kinds.push((rejection.kind(), 1)),
            }
        }
        let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let why = match self.rejected.len() {
            0 => "there is no IPPool".to_owned(),
            pools => format!("none of {pools} pools matches ({})", kinds.join(", ")),
        };
        let why = format!(": {why}; waiting for a pool whose selector matches");
        let text = format!("no matched IPPool with requirement {requirement}");
        text.chars().take(LIMIT - why.len()).collect::<String>() + &why
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{Quotas, RangeSpec, Ranges, Selector};

    fn pool(name: &str, network: &str, priority: i64, scopes: &[(&str, &str, &str)]) -> Pool {
        let scopes = scopes.iter().map(|(namespace, project, cluster)| Scope {
            namespace: (*namespace).into(),
            project: (*project).into(),
            guest_cluster: (*cluster).into(),
        });
        Pool {
            name: name.into(),
            created: 0,
            ranges: Ranges::default(),
            selector: Selector { priority, network: network.into(), scopes: scopes.collect() },
            by_name_only: false,
            quotas: Quotas::default(),
        }
    }

    /// The pools of the contract's vectors, by letter.
    fn vector(letter: char) -> Pool {
        match letter {
            'D' => pool("D", "n1", 0, &[("default", "*", "*")]),
            'P' => pool("P", "n1", 100, &[("default", "*", "*")]),
            'G' => pool("G", "", 0, &[("*", "*", "*")]),
            'H' => pool("H", "n1", 0, &[("*", "*", "*")]),
            'N' => pool("N", "n1", 0, &[("default", "", "")]),
            'W' => pool("W", "n1", 0, &[("default", "project1", "cluster1")]),
            'E' => pool("E", "n1", 0, &[]),
            _ => unreachable!("a letter without pool"),
        }
    }

    fn need(network: &str, project: &str, namespace: &str, cluster: &str) -> Requirement {
        Requirement {
            network: network.into(),
            project: project.into(),
            namespace: namespace.into(),
            cluster: cluster.into(),
            family: None,
        }
    }

    #[rstest]
    #[case("DG", need("n1", "", "default", ""), Mode::Strict, "D")]
    #[case("DG", need("n1", "", "test", ""), Mode::Strict, "G")]
    #[case("DG", need("n1", "unknown", "", "cluster1"), Mode::Strict, "G")]
    #[case("D", need("n1", "", "test", ""), Mode::Strict, "")]
    #[case("D", need("n1", "unknown", "guest-ns", "cluster1"), Mode::Strict, "")]
    #[case("DP", need("n1", "", "default", ""), Mode::Strict, "PD")]
    #[case("WN", need("n1", "project1", "default", "cluster1"), Mode::Strict, "W")]
    #[case("WN", need("n1", "unknown", "default", "cluster1"), Mode::StrictThenLoose, "N")]
    #[case("WN", need("n1", "", "default", ""), Mode::StrictThenLoose, "N")]
    #[case("D", need("", "", "default", ""), Mode::Strict, "")]
    #[case("H", need("", "", "default", ""), Mode::Strict, "H")]
    // docs/contract/load-balancer.md#IP-6
    #[case::a_global_pool_hides_the_loose_round(
        "NG",
        need("n1", "p", "default", "c"),
        Mode::StrictThenLoose,
        "G"
    )]
    #[case::no_scope_is_not_every_scope("E", need("n1", "", "default", ""), Mode::StrictThenLoose, "")]
    #[case::loose_is_not_loose_about_namespaces("N", need("n1", "p", "test", "c"), Mode::StrictThenLoose, "")]
    fn pools_are_chosen(
        #[case] pools: &str,
        #[case] requirement: Requirement,
        #[case] mode: Mode,
        #[case] order: &str,
    ) {
        let pools: Vec<_> = pools.chars().map(vector).collect();
        let choice = select(&pools.iter().collect::<Vec<_>>(), &requirement, mode, |_| Ok(()));
        assert_eq!(choice.order.concat(), order);
        assert_eq!(choice.order.len() + choice.rejected.len(), pools.len());
    }

    // docs/contract/load-balancer.md#IP-5: the last in random order won
    #[test]
    fn of_equals_the_older_wins_and_then_the_name() {
        let mut pools = ["b", "c", "a"].map(|name| pool(name, "", 0, &[("x", "*", "*")]));
        pools[1].created = -5;
        for turn in 0..3 {
            pools.rotate_left(turn);
            let refs: Vec<_> = pools.iter().collect();
            assert_eq!(
                select(&refs, &need("", "", "x", ""), Mode::Strict, |_| Ok(())).order,
                ["c", "a", "b"]
            );
        }
    }

    #[test]
    fn a_pool_serves_those_who_ask_for_a_family_that_it_has() {
        let with = |letter, subnets: &[&str]| {
            let specs: Vec<_> = subnets.iter().map(|subnet| RangeSpec::subnet(*subnet)).collect();
            Pool { ranges: Ranges::parse(&specs).unwrap(), ..vector(letter) }
        };
        let pools = [
            with('D', &["10.0.0.0/24"]),
            with('P', &["fd00::/64"]),
            with('G', &["10.1.0.0/24", "fd01::/64"]),
        ];
        let pools: Vec<_> = pools.iter().collect();
        let order = |family| {
            let requirement = Requirement { family, ..need("n1", "", "default", "") };
            select(&pools, &requirement, Mode::Strict, |_| Ok(()))
        };
        assert_eq!(order(Some(Family::V4)).order, ["D"]);
        assert_eq!(order(Some(Family::V6)).order, ["P"]);
        assert_eq!(order(None).order, ["P", "D"]);
        assert_eq!(order(Some(Family::V4)).rejected[0], ("P".to_owned(), Rejection::Family));
        let global = Requirement { family: Some(Family::V6), ..need("n2", "", "test", "") };
        assert_eq!(select(&pools, &global, Mode::Strict, |_| Ok(())).order, ["G"]);
        let only_v4 = Requirement { family: Some(Family::V6), ..need("n1", "", "default", "") };
        let text = select(&pools[..1], &only_v4, Mode::Strict, |_| Ok(())).explain(&only_v4);
        assert!(
            text.contains("family IPv6: none of 1 pools matches (1 without addresses of that family)"),
            "{text}"
        );
    }

    #[test]
    fn a_pool_whose_ranges_all_drain_is_passed_over_and_told() {
        let with = |letter, drain: &[bool]| {
            let spec = |(third, drain): (usize, &bool)| RangeSpec {
                drain: *drain,
                ..RangeSpec::subnet(format!("10.{}.{third}.0/24", letter as u32))
            };
            let specs: Vec<_> = drain.iter().enumerate().map(spec).collect();
            Pool { ranges: Ranges::parse(&specs).unwrap(), ..vector(letter) }
        };
        let order = |pools: &[Pool]| {
            let requirement = need("n1", "", "default", "");
            select(&pools.iter().collect::<Vec<_>>(), &requirement, Mode::StrictThenLoose, |_| Ok(()))
        };
        assert_eq!(order(&[with('P', &[true, true]), with('D', &[true, false])]).order, ["D"]);
        // also a global one keeps nobody from the loose round
        let drained = order(&[with('P', &[true]), with('G', &[true]), with('N', &[false])]);
        assert_eq!(drained.order, ["N"]);
        let nobody = order(&[with('P', &[true])]);
        assert_eq!(nobody.rejected, [("P".to_owned(), Rejection::Draining)]);
        let text = nobody.explain(&need("n1", "", "default", ""));
        assert!(text.contains("none of 1 pools matches (1 draining)"), "{text}");
    }

    // docs/contract/load-balancer.md#IP-7: an address of VLAN 10 on VLAN 20 is reached by nobody
    #[rstest]
    #[case::of_its_network("H", "n1", "H")]
    #[case::of_another("H", "n2", "")]
    #[case::of_none("G", "n1", "")]
    #[case::that_is_none_either("G", "", "G")]
    #[case::which_frees_the_way_to_the_loose_round("GN", "n1", "N")]
    fn a_strict_global_pool_serves_its_own_network_alone(
        #[case] pools: &str,
        #[case] network: &str,
        #[case] order: &str,
    ) {
        let pools: Vec<_> = pools.chars().map(vector).collect();
        let rules = Rules { mode: Mode::StrictThenLoose, strict_global_network: true };
        let requirement = need(network, "p", "default", "c");
        let choice = select(&pools.iter().collect::<Vec<_>>(), &requirement, rules, |_| Ok(()));
        assert_eq!(choice.order.concat(), order, "{:?}", choice.rejected);
        if order.is_empty() {
            assert_eq!(choice.rejected[0].1, Rejection::Network(pools[0].selector.network.clone()));
        }
    }

    #[test]
    fn a_pool_for_those_who_name_it_is_chosen_for_nobody() {
        let pools = ['P', 'G', 'D'].map(|letter| Pool { by_name_only: letter != 'D', ..vector(letter) });
        let requirement = need("n1", "", "default", "");
        let choice = select(&pools.iter().collect::<Vec<_>>(), &requirement, Mode::Strict, |_| Ok(()));
        assert_eq!(choice.order, ["D"]);
        assert!(choice.rejected.iter().all(|(_, why)| *why == Rejection::ByName), "{:?}", choice.rejected);
        let elsewhere = need("n1", "", "test", "");
        let nobody = select(&pools.iter().collect::<Vec<_>>(), &elsewhere, Mode::Strict, |_| Ok(()));
        let text = nobody.explain(&elsewhere);
        assert!(text.contains("(2 for those who name it, 1 without a scope that matches)"), "{text}");
    }

    #[test]
    fn an_unusable_pool_serves_nobody_and_says_why() {
        let pools = [vector('D'), vector('G')];
        let usable = |pool: &Pool| if pool.name == "D" { Err("overlaps pool older".into()) } else { Ok(()) };
        let choice =
            select(&pools.iter().collect::<Vec<_>>(), &need("n1", "", "default", ""), Mode::Strict, usable);
        assert_eq!(choice.order, ["G"]);
        assert_eq!(choice.rejected, [("D".to_owned(), Rejection::Unusable("overlaps pool older".into()))]);
    }

    #[test]
    fn the_sentence_counts_pools_by_rule_and_names_neither_pools_nor_their_networks() {
        let pools =
            [vector('D'), vector('E'), pool("vlan", "team/vlan10", 0, &[("x", "*", "*")]), vector('W')];
        let requirement = need("n1", "", "x", "");
        let choice = select(&pools.iter().collect::<Vec<_>>(), &requirement, Mode::Strict, |_| Ok(()));
        assert_eq!(
            choice.explain(&requirement),
            "no matched IPPool with requirement network \"n1\", project \"\", namespace \"x\", cluster \"\": none of 4 \
             pools matches (2 without a scope that matches, 1 without scope, 1 for another network); waiting for a pool \
             whose selector matches"
        );
        assert!(Choice::default().explain(&requirement).contains("there is no IPPool; waiting"));
    }

    #[test]
    fn the_sentence_has_at_most_1024_characters_and_keeps_its_end() {
        for length in [3, 60, 253, 2000] {
            let pools: Vec<_> =
                (0..200).map(|n| pool(&n.to_string(), "team/vlan10", 0, &[("x", "*", "*")])).collect();
            let requirement = need(&"ü".repeat(length), &"p".repeat(length), "x", "c");
            let choice = select(&pools.iter().collect::<Vec<_>>(), &requirement, Mode::Strict, |_| Ok(()));
            let text = choice.explain(&requirement);
            assert!(text.chars().count() <= 1024, "{}", text.chars().count());
            assert!(
                text.ends_with(
                    "200 pools matches (200 for another network); waiting for a pool whose selector matches"
                ),
                "{text}"
            );
        }
    }
}
