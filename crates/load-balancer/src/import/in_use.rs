//! The addresses that kube-vip-cloud-provider gave out, and the load balancers that the import takes for their holders.
//!
//! Tenants write the ConfigMaps that name them: an address that several namespaces name only one can have had, and a
//! namespace can name any number of addresses that it never had.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use controller_kit::ObjectKey;
use harvester_api::{Ipam, LoadBalancer, WorkloadType};
use serde::Deserialize;

use super::plan::GLOBAL;

/// An address, and the Service that a ConfigMap names for it: the load balancer has the Service's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InUse {
    pub(super) holder: ObjectKey,
    pub(super) address: IpAddr,
}

#[derive(Deserialize)]
struct Services {
    #[serde(default)]
    services: Vec<ServiceEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ServiceEntry {
    vip: String,
    service_name: String,
}

/// The most characters of an error: it quotes the text, which a tenant writes.
const ERROR_MAX: usize = 200;

/// Reads the key `kubevip-services` of a namespace's ConfigMap. Entries that are no addresses are passed over, and so are
/// those of names that no Service can have.
///
/// # Errors
/// The text is no list of Services: a sentence that says so.
pub(super) fn services(namespace: &str, text: &str) -> Result<Vec<InUse>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let read = serde_json::from_str::<Services>(text).map_err(|error| {
        let error: String = error.to_string().chars().take(ERROR_MAX).collect();
        format!("ConfigMap {namespace}/kubevip, kubevip-services cannot be read, so addresses in use are not known: {error}")
    });
    let of = |entry: ServiceEntry| {
        let address = entry.vip.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified())?;
        let holder = ObjectKey::new(namespace, entry.service_name);
        is_label(&holder.name).then_some(InUse { holder, address })
    };
    Ok(read?.services.into_iter().filter_map(of).collect())
}

/// As Kubernetes asks it of a Service's name; where a `-` stands does not matter here.
fn is_label(name: &str) -> bool {
    let is_admitted = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(is_admitted)
}

/// The address of a pool that a load balancer shows and that its tenant cannot write: the webhook restores the status of
/// objects of type vm, and with DHCP the address comes from elsewhere.
pub(super) fn shown_by(lb: &LoadBalancer) -> Option<IpAddr> {
    let is_trusted = lb.spec.workload() == WorkloadType::Vm && lb.spec.ipam() == Ipam::Pool;
    lb.status.as_ref().filter(|_| is_trusted)?.address.parse().ok()
}

/// The load balancers that are named for each address.
pub(super) struct Holders<'a> {
    named: BTreeMap<IpAddr, BTreeSet<&'a ObjectKey>>,
    shown: &'a BTreeMap<ObjectKey, IpAddr>,
}

impl<'a> Holders<'a> {
    /// `shown`: the addresses that the load balancers show.
    pub(super) fn new(in_use: &'a [InUse], shown: &'a BTreeMap<ObjectKey, IpAddr>) -> Self {
        let mut named: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for InUse { holder, address } in in_use {
            named.entry(*address).or_default().insert(holder);
        }
        Self { named, shown }
    }

    /// All addresses, each with the load balancers that are named for it.
    pub(super) fn all(&self) -> impl Iterator<Item = (IpAddr, &BTreeSet<&'a ObjectKey>)> {
        self.named.iter().map(|(address, holders)| (*address, holders))
    }

    /// The load balancer of the only namespace that shows the address of this pool.
    pub(super) fn showing(&self, pool: &str, address: IpAddr) -> Option<&'a ObjectKey> {
        of_one_namespace(&self.that_show(pool, address))
    }

    /// The one that shows the address of this pool; where nobody shows it, the one of the only namespace that names it.
    pub(super) fn believed(&self, pool: &str, address: IpAddr) -> Option<&'a ObjectKey> {
        let showing = self.that_show(pool, address);
        of_one_namespace(&if showing.is_empty() { self.of_pool(pool, address) } else { showing })
    }

    fn that_show(&self, pool: &str, address: IpAddr) -> Vec<&'a ObjectKey> {
        let mut holders = self.of_pool(pool, address);
        holders.retain(|holder| self.shown.get(*holder) == Some(&address));
        holders
    }

    /// The load balancers that may draw from the pool.
    fn of_pool(&self, pool: &str, address: IpAddr) -> Vec<&'a ObjectKey> {
        let named = self.named.get(&address).into_iter().flatten().copied();
        named.filter(|holder| pool == GLOBAL || holder.namespace == pool).collect()
    }
}

/// The first holder, if all are of one namespace: the Services of a namespace may share an address.
fn of_one_namespace<'a>(holders: &[&'a ObjectKey]) -> Option<&'a ObjectKey> {
    let first = holders.first()?;
    holders.iter().all(|other| other.namespace == first.namespace).then_some(first)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::of_a_pool(json!({"workloadType": "vm", "ipam": "pool"}), Some([10, 0, 0, 7]))]
    #[case::as_converted(json!({}), Some([10, 0, 0, 7]))]
    #[case::with_dhcp(json!({"workloadType": "vm", "ipam": "dhcp"}), None)]
    #[case::of_a_guest_cluster(json!({"workloadType": "cluster", "ipam": "pool"}), None)]
    fn only_an_address_that_no_tenant_writes_counts_as_shown(
        #[case] spec: Value,
        #[case] expected: Option<[u8; 4]>,
    ) {
        let lb = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec, "status": {"address": "10.0.0.7"}});
        let lb: LoadBalancer = serde_json::from_value(lb).unwrap();
        assert_eq!(shown_by(&lb), expected.map(IpAddr::from));
    }

    #[test]
    fn of_the_services_of_a_namespace_that_share_an_address_the_one_that_shows_it_is_its_holder() {
        let text = json!({"services": [{"vip": "10.0.0.7", "serviceName": "api"}, {"vip": "10.0.0.7", "serviceName": "web"}]});
        let in_use = services("shop", &text.to_string()).unwrap();
        let address = IpAddr::from([10, 0, 0, 7]);
        for (shown, expected) in [(None, "shop/api"), (Some("web"), "shop/web")] {
            let shown = shown.map(|name| (ObjectKey::new("shop", name), address)).into_iter().collect();
            let holders = Holders::new(&in_use, &shown);
            assert_eq!(holders.believed(GLOBAL, address).map(ToString::to_string).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_config_map_that_cannot_be_read_is_a_short_sentence() {
        let why = services("evil", &json!({"services": "a".repeat(900_000)}).to_string()).unwrap_err();
        assert!(why.len() < 400, "{}", why.len());
    }
}
