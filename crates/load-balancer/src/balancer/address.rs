//! Which address a LoadBalancer object should have: a pure function from the object and the pools.

use std::net::IpAddr;

use harvester_api::{AllocatedAddress, Ipam, LoadBalancer, WorkloadType, annotations, names};
use ipam::{Mode, Requirement, select};
use kube::ResourceExt;

use super::host::Waiting;
use ip_pools::Judged;

/// Who holds an address according to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Ours,
    SomebodyElses,
    Nobodys,
    /// The pool is not there. The address stays with an object that uses it; nobody could say whose it is.
    NoSuchPool,
}

/// What the address depends on.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub lb: &'a LoadBalancer,
    /// Every pool, with what speaks against it.
    pub pools: &'a [Judged],
    /// What the record says of the address in the object's status.
    pub standing: Standing,
    /// Pools whose record names this object, in the order of their names.
    pub recorded: &'a [String],
    /// Whether the network carries the status' address for this object already (its Service names it).
    pub served: bool,
}

/// What to do about the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It is as it should be.
    Keep(AllocatedAddress),
    /// Ask these pools, in this order.
    Claim {
        pools: Vec<String>,
        /// The address that the object believes to have.
        known: Option<IpAddr>,
        /// Stays until a new one is there: the object was told to move to another pool.
        meanwhile: Option<AllocatedAddress>,
        /// The status names an address that is somebody else's.
        lost: Option<String>,
    },
    /// No pool serves the object.
    Wait { waiting: Waiting, lost: Option<String> },
}

/// Decides.
pub fn decide(seen: &Seen<'_>) -> Plan {
    let lb = seen.lb;
    if lb.spec.ipam() == Ipam::Dhcp {
        let ip = names::DHCP_ADDRESS.to_owned();
        return Plan::Keep(AllocatedAddress { ip, ..AllocatedAddress::default() });
    }
    let wanted = lb.spec.ip_pool.as_str();
    let Some(has) = allocated(lb) else { return fresh(seen, None) };
    let trusted = match seen.standing {
        Standing::Ours => true,
        Standing::NoSuchPool => lb.spec.workload() == WorkloadType::Cluster || seen.served,
        Standing::SomebodyElses | Standing::Nobodys => false,
    };
    if !wanted.is_empty() && wanted != has.ip_pool {
        let (pools, meanwhile) = (vec![wanted.to_owned()], trusted.then_some(has));
        return Plan::Claim { pools, known: None, meanwhile, lost: None };
    }
    if trusted {
        return Plan::Keep(has);
    }
    if seen.standing == Standing::Nobodys && seen.pools.iter().any(|judged| judged.pool.name == has.ip_pool) {
        let known = has.ip.parse().ok();
        return Plan::Claim { pools: vec![has.ip_pool], known, meanwhile: None, lost: None };
    }
    fresh(seen, Some(has.ip))
}

fn fresh(seen: &Seen<'_>, lost: Option<String>) -> Plan {
    let lb = seen.lb;
    let claim = |pools| Plan::Claim { pools, known: None, meanwhile: None, lost: lost.clone() };
    if !lb.spec.ip_pool.is_empty() {
        return claim(vec![lb.spec.ip_pool.clone()]);
    }
    if let [recorded, ..] = seen.recorded {
        return claim(vec![recorded.clone()]);
    }
    let requirement = requirement(lb);
    let mode = match lb.spec.workload() {
        WorkloadType::Cluster => Mode::StrictThenLoose,
        WorkloadType::Vm => Mode::Strict,
    };
    let pools: Vec<_> = seen.pools.iter().map(|judged| &judged.pool).collect();
    let blocked = |pool: &ipam::Pool| {
        let judged = seen.pools.iter().find(|judged| judged.pool.name == pool.name);
        judged.and_then(|judged| judged.blocked.clone()).map_or(Ok(()), Err)
    };
    let choice = select(&pools, &requirement, mode, blocked);
    if choice.order.is_empty() {
        let waiting = Waiting { reason: "NoMatchingPool", message: choice.explain(&requirement) };
        return Plan::Wait { waiting, lost };
    }
    claim(choice.order)
}

/// The address in the object's status that came from a pool.
pub fn allocated(lb: &LoadBalancer) -> Option<AllocatedAddress> {
    let has = lb.status.as_ref()?.allocated_address.clone()?;
    (!has.ip_pool.is_empty() && !has.ip.is_empty()).then_some(has)
}

/// What the object's annotations require of a pool. An object that the webhook never saw has none.
pub fn requirement(lb: &LoadBalancer) -> Requirement {
    let text = |key: &str| lb.annotations().get(key).cloned().unwrap_or_default();
    let namespace = text(annotations::LB_NAMESPACE);
    Requirement {
        network: text(annotations::LB_NETWORK),
        project: text(annotations::LB_PROJECT),
        namespace: if namespace.is_empty() { lb.namespace().unwrap_or_default() } else { namespace },
        cluster: text(annotations::LB_CLUSTER),
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::{IPPool, LoadBalancerSpec, LoadBalancerStatus};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use ip_pools::judge;

    fn pool(name: &str, third: u8, namespace: &str) -> Judged {
        let json = json!({"metadata": {"name": name}, "spec": {
            "ranges": [{"subnet": format!("10.0.{third}.0/24")}],
            "selector": {"scope": [{"namespace": namespace, "project": "*", "guestCluster": "*"}]},
        }});
        judge(&serde_json::from_value::<IPPool>(json).unwrap(), [])
    }

    fn balancer(pool: &str, has: Option<(&str, &str)>) -> LoadBalancer {
        let spec = LoadBalancerSpec {
            workload_type: Some(WorkloadType::Cluster),
            ip_pool: pool.to_owned(),
            ..LoadBalancerSpec::default()
        };
        let mut lb = LoadBalancer::new("web", spec);
        lb.metadata.namespace = Some("shop".into());
        lb.status = has.map(|has| LoadBalancerStatus {
            allocated_address: Some(address(has.0, has.1)),
            ..LoadBalancerStatus::default()
        });
        lb
    }

    fn address(pool: &str, ip: &str) -> AllocatedAddress {
        AllocatedAddress { ip_pool: pool.into(), ip: ip.into(), ..AllocatedAddress::default() }
    }

    fn claim(pools: &[&str]) -> Plan {
        let pools = pools.iter().map(|&pool| pool.to_owned()).collect();
        Plan::Claim { pools, known: None, meanwhile: None, lost: None }
    }

    fn plan(lb: &LoadBalancer, standing: Standing, recorded: &[&str]) -> Plan {
        let pools = [pool("edge", 1, "shop"), pool("core", 2, "shop"), pool("lab", 3, "lab")];
        let recorded: Vec<_> = recorded.iter().map(|&pool| pool.to_owned()).collect();
        decide(&Seen { lb, pools: &pools, standing, recorded: &recorded, served: false })
    }

    #[rstest]
    #[case::new(balancer("", None), Standing::Nobodys, &[], claim(&["core", "edge"]))]
    #[case::new_by_name(balancer("lab", None), Standing::Nobodys, &[], claim(&["lab"]))]
    #[case::by_the_name_of_none(balancer("nowhere", None), Standing::Nobodys, &[], claim(&["nowhere"]))]
    // pitfalls-load-balancer.md LB-20: an object that lost its status gave its address away and took another
    #[case::status_erased(balancer("", None), Standing::Nobodys, &["edge"], claim(&["edge"]))]
    #[case::settled(balancer("", Some(("edge", "10.0.1.5"))), Standing::Ours, &["edge"], Plan::Keep(address("edge", "10.0.1.5")))]
    #[case::settled_though_nothing_matches(balancer("", Some(("lab", "10.0.3.5"))), Standing::Ours, &["lab"], Plan::Keep(address("lab", "10.0.3.5")))]
    #[case::pool_name_taken_away(balancer("", Some(("core", "10.0.2.5"))), Standing::Ours, &["core"], Plan::Keep(address("core", "10.0.2.5")))]
    #[case::pool_is_gone(balancer("", Some(("old", "10.0.9.5"))), Standing::NoSuchPool, &[], Plan::Keep(address("old", "10.0.9.5")))]
    #[case::moved(
        balancer("core", Some(("edge", "10.0.1.5"))), Standing::Ours, &["edge"],
        Plan::Claim { pools: vec!["core".into()], known: None, meanwhile: Some(address("edge", "10.0.1.5")), lost: None }
    )]
    // pitfalls-load-balancer.md IP-16: the pool lost its record
    #[case::record_erased(
        balancer("", Some(("edge", "10.0.1.5"))), Standing::Nobodys, &[],
        Plan::Claim { pools: vec!["edge".into()], known: Some([10, 0, 1, 5].into()), meanwhile: None, lost: None }
    )]
    #[case::given_to_another(
        balancer("", Some(("edge", "10.0.1.5"))), Standing::SomebodyElses, &[],
        Plan::Claim { pools: vec!["core".into(), "edge".into()], known: None, meanwhile: None, lost: Some("10.0.1.5".into()) }
    )]
    fn an_object_gets_this_address(
        #[case] lb: LoadBalancer,
        #[case] standing: Standing,
        #[case] recorded: &[&str],
        #[case] expected: Plan,
    ) {
        assert_eq!(plan(&lb, standing, recorded), expected);
    }

    #[test]
    fn without_a_matching_pool_the_object_says_what_it_waits_for() {
        let mut lb = balancer("", None);
        lb.annotations_mut().insert(annotations::LB_NETWORK.into(), "shop/vlan10".into());
        let Plan::Wait { waiting, lost: None } = plan(&lb, Standing::Nobodys, &[]) else {
            panic!("a pool matched")
        };
        assert_eq!(waiting.reason, "NoMatchingPool");
        assert!(
            waiting.message.starts_with("no matched IPPool with requirement network \"shop/vlan10\""),
            "{}",
            waiting.message
        );
    }

    // pitfalls-load-balancer.md S-9: a status written by a tenant put any address on the network
    #[test]
    fn a_vm_object_cannot_bring_its_own_address_by_naming_a_pool_that_is_not_there() {
        let mut lb = balancer("", Some(("nowhere", "10.0.1.1")));
        lb.spec.workload_type = None;
        assert!(matches!(plan(&lb, Standing::NoSuchPool, &[]), Plan::Claim { lost: Some(_), .. }));
        let pools = [pool("edge", 1, "shop")];
        let seen =
            Seen { lb: &lb, pools: &pools, standing: Standing::NoSuchPool, recorded: &[], served: true };
        assert_eq!(decide(&seen), Plan::Keep(address("nowhere", "10.0.1.1")));
    }

    #[test]
    fn dhcp_needs_no_pool() {
        let mut lb = balancer("edge", None);
        lb.spec.ipam = Some(Ipam::Dhcp);
        assert_eq!(plan(&lb, Standing::Nobodys, &[]), Plan::Keep(address("", "0.0.0.0")));
    }

    #[test]
    fn an_object_that_the_webhook_never_saw_counts_with_its_own_namespace() {
        let requirement = requirement(&balancer("", None));
        assert_eq!(requirement, Requirement { namespace: "shop".into(), ..Requirement::default() });
    }
}
