//! Limits of what one tenant may hold of a pool.

use std::{collections::BTreeMap, fmt};

use crate::record::Record;

/// The holders whose addresses count together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    Namespace(String),
    GuestCluster(String),
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::GuestCluster(name) => write!(f, "guest cluster {name}"),
        }
    }
}

/// One limit as the user wrote it; empty text means absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaSpec {
    pub guest_cluster: String,
    pub namespace: String,
    pub max: i64,
}

/// A fault of a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaFault {
    #[error("spec.quota[{0}] names neither guestCluster nor namespace: give one of them")]
    NoName(usize),
    #[error(
        "spec.quota[{0}] names both guestCluster and namespace: give one of them, and the other in an entry of its own"
    )]
    BothNames(usize),
    #[error("spec.quota[{index}].max {max} is negative: 0 means that no address is given")]
    Negative { index: usize, max: i64 },
    #[error("spec.quota[{index}] names {tenant} a second time: give it one entry")]
    Twice { index: usize, tenant: Tenant },
}

/// So many faults are named.
const FAULTS: usize = 20;

/// How many addresses of a pool each tenant may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas(BTreeMap<Tenant, u64>);

impl Quotas {
    /// Reads the limits of a pool. One that is negative gives nothing, of several for one tenant the smallest counts, and
    /// one that names no tenant limits nobody.
    pub fn parse(specs: &[QuotaSpec]) -> (Self, Vec<QuotaFault>) {
        let (mut quotas, mut faults) = (BTreeMap::new(), Vec::new());
        for (index, QuotaSpec { guest_cluster, namespace, max }) in specs.iter().enumerate() {
            let tenant = match (guest_cluster.as_str(), namespace.as_str()) {
                ("", "") => Err(QuotaFault::NoName(index)),
                (cluster, "") => Ok(Tenant::GuestCluster(cluster.to_owned())),
                ("", namespace) => Ok(Tenant::Namespace(namespace.to_owned())),
                _ => Err(QuotaFault::BothNames(index)),
            };
            let tenant = match tenant {
                Ok(tenant) => tenant,
                Err(fault) => {
                    faults.push(fault);
                    continue;
                }
            };
            if *max < 0 {
                faults.push(QuotaFault::Negative { index, max: *max });
            }
            let max = u64::try_from(*max).unwrap_or(0);
            if let Some(before) = quotas.get(&tenant).copied() {
                faults.push(QuotaFault::Twice { index, tenant: tenant.clone() });
                quotas.insert(tenant, max.min(before));
            } else {
                quotas.insert(tenant, max);
            }
        }
        faults.truncate(FAULTS);
        (Self(quotas), faults)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The limits of a holder of this cluster, each with its tenant.
    pub fn of(&self, holder: &str, cluster: Option<&str>) -> Vec<(Tenant, u64)> {
        let namespace = holder.split_once('/').map(|(namespace, _)| Tenant::Namespace(namespace.to_owned()));
        let cluster = cluster.map(|cluster| Tenant::GuestCluster(cluster.to_owned()));
        let limited = |tenant: Tenant| self.0.get(&tenant).map(|max| (tenant, *max));
        [namespace, cluster].into_iter().flatten().filter_map(limited).collect()
    }

    /// Every tenant with its limit, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Tenant, u64)> {
        self.0.iter().map(|(tenant, max)| (tenant, *max))
    }
}

impl Record {
    /// How many addresses a tenant holds; `members` are the holders of a guest cluster. It looks at the addresses of that
    /// tenant alone.
    pub fn held_by(&self, tenant: &Tenant, members: impl FnOnce(&str) -> Vec<String>) -> u64 {
        let held = match tenant {
            Tenant::Namespace(namespace) => self.held_in(namespace),
            Tenant::GuestCluster(cluster) => {
                members(cluster).iter().map(|holder| self.of(holder).count()).sum()
            }
        };
        held as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(guest_cluster: &str, namespace: &str, max: i64) -> QuotaSpec {
        QuotaSpec { guest_cluster: guest_cluster.into(), namespace: namespace.into(), max }
    }

    #[test]
    fn the_smallest_limit_of_a_tenant_counts_and_every_fault_is_told() {
        let specs = [
            spec("", "shop", 3),
            spec("blue", "", 2),
            spec("", "", 1),
            spec("blue", "shop", 0),
            spec("", "lab", -7),
            spec("", "shop", 9),
            spec("blue", "", 1),
        ];
        let (quotas, faults) = Quotas::parse(&specs);
        let limits: Vec<_> = quotas.iter().map(|(tenant, max)| (tenant.to_string(), max)).collect();
        let limit = |tenant: &str, max| (tenant.to_owned(), max);
        assert_eq!(
            limits,
            [limit("namespace lab", 0), limit("namespace shop", 3), limit("guest cluster blue", 1)]
        );
        let told: Vec<_> = faults.iter().map(ToString::to_string).collect();
        let expected = [
            "[2] names neither",
            "[3] names both",
            "[4].max -7 is negative",
            "[5] names namespace shop a second time",
            "[6] names guest cluster blue a second time",
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.contains(expected), "{told}");
        }
        assert_eq!(Quotas::parse(&vec![spec("", "", -1); 100_000]).1.len(), FAULTS);
    }

    #[test]
    fn a_holder_has_the_limits_of_its_namespace_and_of_its_cluster() {
        let (quotas, _) = Quotas::parse(&[spec("", "shop", 3), spec("blue", "", 2)]);
        let of = |holder: &str, cluster: Option<&str>| {
            quotas.of(holder, cluster).into_iter().map(|(_, max)| max).collect::<Vec<_>>()
        };
        assert_eq!(of("shop/web", Some("blue")), [3, 2]);
        assert_eq!(of("shop/web", Some("red")), [3]);
        assert_eq!(of("lab/web", Some("blue")), [2]);
        assert_eq!(of("shop", None), [0; 0], "another program's holder may be no name of a load balancer");
    }

    #[test]
    fn the_addresses_of_a_tenant_are_counted_and_no_others() {
        let mut record = Record::default();
        for (last, holder) in
            ["shop/web", "shop/web", "shop-2/web", "shop/api", "shoq/x", "a"].iter().enumerate()
        {
            record.put([10, 0, 0, u8::try_from(last).unwrap()].into(), holder);
        }
        let held = |tenant| record.held_by(&tenant, |_| vec!["shop/api".into(), "a".into(), "none".into()]);
        assert_eq!(held(Tenant::Namespace("shop".into())), 3);
        assert_eq!(held(Tenant::Namespace("lab".into())), 0);
        assert_eq!(held(Tenant::GuestCluster("blue".into())), 2);
    }
}
