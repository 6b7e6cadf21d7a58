//! Limits of what one tenant may hold of a pool.

use std::{collections::BTreeMap, fmt};

use crate::{record::Record, resting::Resting};

/// The holders whose addresses count together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    Namespace(String),
    /// What its objects in one namespace hold. An object says itself which cluster it is of, and nobody can make one in
    /// another's namespace.
    GuestCluster {
        namespace: String,
        cluster: String,
    },
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::GuestCluster { namespace, cluster } => {
                write!(f, "guest cluster {cluster} of namespace {namespace}")
            }
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
    #[error("spec.quota[{index}] names {name} a second time: give it one entry")]
    Twice { index: usize, name: String },
}

/// So many faults are named.
const FAULTS: usize = 20;

/// How many addresses of a pool each tenant may hold: a guest cluster in each namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    namespaces: BTreeMap<String, u64>,
    clusters: BTreeMap<String, u64>,
}

impl Quotas {
    /// Reads the limits of a pool. One that is negative gives nothing, of several for one tenant the smallest counts, and
    /// one that names no tenant limits nobody.
    pub fn parse(specs: &[QuotaSpec]) -> (Self, Vec<QuotaFault>) {
        let (mut quotas, mut faults) = (Self::default(), Vec::new());
        for (index, QuotaSpec { guest_cluster, namespace, max }) in specs.iter().enumerate() {
            let named = match (guest_cluster.as_str(), namespace.as_str()) {
                ("", "") => Err(QuotaFault::NoName(index)),
                (cluster, "") => Ok((&mut quotas.clusters, "guest cluster", cluster)),
                ("", namespace) => Ok((&mut quotas.namespaces, "namespace", namespace)),
                _ => Err(QuotaFault::BothNames(index)),
            };
            let (limits, kind, name) = match named {
                Ok(named) => named,
                Err(fault) => {
                    faults.push(fault);
                    continue;
                }
            };
            if *max < 0 {
                faults.push(QuotaFault::Negative { index, max: *max });
            }
            let max = u64::try_from(*max).unwrap_or(0);
            let before = limits.get(name).copied();
            if before.is_some() {
                faults.push(QuotaFault::Twice { index, name: format!("{kind} {name}") });
            }
            limits.insert(name.to_owned(), before.unwrap_or(max).min(max));
        }
        faults.truncate(FAULTS);
        (quotas, faults)
    }

    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.clusters.is_empty()
    }

    /// Whether there is a limit for the guest cluster.
    pub fn limits_cluster(&self, cluster: &str) -> bool {
        self.clusters.contains_key(cluster)
    }

    /// The limits of a holder of this cluster, each with its tenant.
    pub fn of(&self, holder: &str, cluster: Option<&str>) -> Vec<(Tenant, u64)> {
        let Some((namespace, _)) = holder.split_once('/') else { return Vec::new() };
        let own = self.namespaces.get(namespace).map(|max| (Tenant::Namespace(namespace.to_owned()), *max));
        let of_cluster = cluster.and_then(|cluster| {
            let max = *self.clusters.get(cluster)?;
            let (namespace, cluster) = (namespace.to_owned(), cluster.to_owned());
            Some((Tenant::GuestCluster { namespace, cluster }, max))
        });
        own.into_iter().chain(of_cluster).collect()
    }

    /// The tenants that hold more of a pool than their limit; `members` are the holders of a guest cluster.
    pub fn exceeded(&self, record: &Record, members: impl Fn(&str) -> Vec<String>) -> Vec<Tenant> {
        let namespaces = self.namespaces.iter().filter(|(name, max)| record.held_in(name) as u64 > **max);
        let mut exceeded: Vec<_> = namespaces.map(|(name, _)| Tenant::Namespace(name.clone())).collect();
        for (cluster, max) in &self.clusters {
            let mut held: BTreeMap<String, u64> = BTreeMap::new();
            for member in members(cluster) {
                let Some((namespace, _)) = member.split_once('/') else { continue };
                *held.entry(namespace.to_owned()).or_default() += record.of(&member).count() as u64;
            }
            let above = held.into_iter().filter(|(_, held)| held > max);
            exceeded.extend(
                above.map(|(namespace, _)| Tenant::GuestCluster { namespace, cluster: cluster.clone() }),
            );
        }
        exceeded
    }
}

impl Record {
    /// How many addresses a tenant holds; `members` are the holders of a guest cluster, in whatever namespace. It looks at
    /// the addresses of that tenant alone.
    pub fn held_by(&self, tenant: &Tenant, members: impl FnOnce(&str) -> Vec<String>) -> u64 {
        let held = match tenant {
            Tenant::Namespace(namespace) => self.held_in(namespace),
            Tenant::GuestCluster { namespace, cluster } => {
                let is_in = |holder: &&String| holder.split_once('/').is_some_and(|(of, _)| of == namespace);
                members(cluster).iter().filter(is_in).map(|holder| self.of(holder).count()).sum()
            }
        };
        held as u64
    }

    /// How many of the addresses that rest a tenant had last; `members` as in [`Record::held_by`].
    pub fn resting_by(
        &self,
        tenant: &Tenant,
        resting: &Resting,
        members: impl FnOnce(&str) -> Vec<String>,
    ) -> u64 {
        if resting.is_empty() {
            return 0;
        }
        let is_in =
            |holder: &str, namespace: &str| holder.split_once('/').is_some_and(|(of, _)| of == namespace);
        let rests = match tenant {
            Tenant::Namespace(namespace) => {
                let last = resting.iter().filter_map(|(address, _)| self.last_holder(address));
                last.filter(|holder| is_in(holder, namespace)).count()
            }
            Tenant::GuestCluster { namespace, cluster } => {
                let members = members(cluster);
                let own = members.iter().filter(|holder| is_in(holder, namespace));
                let past = own.flat_map(|holder| self.past_of(holder));
                past.filter(|address| resting.end_of(*address).is_some()).count()
            }
        };
        rests as u64
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
        let limit = |name: &str, max| (name.to_owned(), max);
        assert_eq!(quotas.namespaces, [limit("lab", 0), limit("shop", 3)].into());
        assert_eq!(quotas.clusters, [limit("blue", 1)].into());
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
        let members = |_: &str| ["shop/api", "shop-2/web", "a", "none"].map(str::to_owned).to_vec();
        let held = |tenant| record.held_by(&tenant, members);
        let blue =
            |namespace: &str| Tenant::GuestCluster { namespace: namespace.into(), cluster: "blue".into() };
        assert_eq!(held(Tenant::Namespace("shop".into())), 3);
        assert_eq!(held(Tenant::Namespace("lab".into())), 0);
        assert_eq!((held(blue("shop")), held(blue("shop-2")), held(blue("lab"))), (1, 1, 0));
        let (quotas, _) = Quotas::parse(&[spec("blue", "", 0), spec("", "shop", 2), spec("", "shoq", 1)]);
        let exceeded = [Tenant::Namespace("shop".into()), blue("shop"), blue("shop-2")];
        assert_eq!(quotas.exceeded(&record, members), exceeded);
    }
}
