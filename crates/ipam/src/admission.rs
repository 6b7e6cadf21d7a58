//! Whether a pool that a load balancer names admits it by its selector.
//!
//! Without `--enforce-named-pool-scope` nobody asks: a name goes before all selectors, as in the Go program.

use crate::{
    pool::{Scope, Selector},
    selection::{Mode, Rejection, Requirement},
};

/// Whether the selector would let the load balancer choose the pool, if there were no other. The global pool admits
/// everybody.
///
/// # Errors
/// The rule that keeps it away.
pub fn admits(selector: &Selector, requirement: &Requirement, mode: Mode) -> Result<(), Rejection> {
    if selector.is_global() {
        return Ok(());
    }
    if selector.network != requirement.network {
        return Err(Rejection::Network(selector.network.clone()));
    }
    let wanted = Scope {
        project: requirement.project.clone(),
        namespace: requirement.namespace.clone(),
        guest_cluster: requirement.cluster.clone(),
    };
    let matches = match mode {
        Mode::Strict => Scope::matches,
        Mode::StrictThenLoose => Scope::matches_loosely,
    };
    match selector.scopes.as_slice() {
        [] => Err(Rejection::NoScope),
        scopes if scopes.iter().any(|scope| matches(scope, &wanted)) => Ok(()),
        _ => Err(Rejection::Scope),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{Pool, Ranges, select};

    fn selector(network: &str, scopes: &[[&str; 3]]) -> Selector {
        let scopes = scopes.iter().map(|[namespace, project, cluster]| Scope {
            namespace: (*namespace).into(),
            project: (*project).into(),
            guest_cluster: (*cluster).into(),
        });
        Selector { priority: 0, network: network.into(), scopes: scopes.collect() }
    }

    fn need([network, project, namespace, cluster]: [&str; 4]) -> Requirement {
        Requirement {
            network: network.into(),
            project: project.into(),
            namespace: namespace.into(),
            cluster: cluster.into(),
            family: None,
        }
    }

    // docs/contract/load-balancer.md#S-2
    #[rstest]
    #[case::own_namespace(selector("", &[["shop", "*", "*"]]), ["", "", "shop", ""], Ok(()))]
    #[case::another_namespace(selector("", &[["shop", "*", "*"]]), ["", "", "evil", ""], Err(Rejection::Scope))]
    #[case::another_project(selector("", &[["*", "c/p1", "*"]]), ["", "c/p2", "shop", ""], Err(Rejection::Scope))]
    #[case::no_project(selector("", &[["*", "c/p1", "*"]]), ["", "", "shop", ""], Err(Rejection::Scope))]
    #[case::another_cluster(selector("", &[["*", "*", "gc1"]]), ["", "", "shop", "gc2"], Err(Rejection::Scope))]
    #[case::one_of_several(selector("", &[["a", "*", "*"], ["*", "*", "gc1"]]), ["", "", "shop", "gc1"], Ok(()))]
    #[case::another_network(selector("a/b", &[["shop", "*", "*"]]), ["", "", "shop", ""], Err(Rejection::Network("a/b".into())))]
    #[case::no_scope(selector("", &[]), ["", "", "shop", ""], Err(Rejection::NoScope))]
    #[case::global(selector("a/b", &[["*", "*", "*"]]), ["c/d", "", "shop", ""], Ok(()))]
    fn a_named_pool_admits_those_who_might_choose_it(
        #[case] selector: Selector,
        #[case] requirement: [&str; 4],
        #[case] expected: Result<(), Rejection>,
    ) {
        let requirement = need(requirement);
        for mode in [Mode::Strict, Mode::StrictThenLoose] {
            assert_eq!(admits(&selector, &requirement, mode), expected, "{mode:?}");
            let pool = Pool {
                name: "a".into(),
                created: 0,
                ranges: Ranges::default(),
                selector: selector.clone(),
                by_name_only: false,
                quotas: crate::Quotas::default(),
            };
            let chosen = select(&[&pool], &requirement, mode, |_| Ok(())).order;
            assert_eq!(chosen.len(), usize::from(expected.is_ok()), "as selection decides");
        }
    }

    #[test]
    fn an_empty_project_or_cluster_of_a_scope_admits_any_guest_cluster_and_no_vm_that_has_one() {
        let (selector, requirement) = (selector("", &[["shop", "", ""]]), need(["", "c/p1", "shop", "gc1"]));
        assert_eq!(admits(&selector, &requirement, Mode::StrictThenLoose), Ok(()));
        assert_eq!(admits(&selector, &requirement, Mode::Strict), Err(Rejection::Scope));
    }
}
