//! The example: the files under `examples/`, with the addresses of this sandbox in place of the documentation's.

use ipnet::Ipv4Net;

use crate::address_plan::AddressPlan;

const IP_POOL: &str = include_str!("../../../examples/harvester/ip-pool.yaml");
const LEGACY_POOLS: &str = include_str!("../../../examples/harvester/legacy-pools.yaml");
const CHECKED_SERVICE: &str = include_str!("../../../examples/guest/checked-service.yaml");

/// Pools, for the Harvester cluster.
pub(crate) fn pools(address_plan: &AddressPlan) -> String {
    let mut halves = address_plan
        .legacy_vips()
        .subnets(25)
        .expect("25 is longer than 24")
        .map(|net: Ipv4Net| net.to_string());
    let mut half = || halves.next().expect("a /24 has two halves");
    let legacy = LEGACY_POOLS.replace("192.168.200.0/25", &half()).replace("192.168.200.128/25", &half());
    format!("{}---\n{legacy}", pool(&address_plan.vips().to_string()))
}

/// The pool alone, with these addresses.
pub(crate) fn pool(addresses: &str) -> String {
    IP_POOL.replace("192.168.100.0/24", addresses)
}

/// The Service that the sandbox shows.
pub(crate) fn service() -> &'static str {
    CHECKED_SERVICE
}

/// Name of [`service`], in namespace `default`.
pub(crate) const SERVICE: &str = "web";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::Manifest;

    #[test]
    fn the_example_is_the_files_of_the_repository_with_addresses_of_this_sandbox() {
        let address_plan = AddressPlan::take().unwrap();
        let pools = pools(&address_plan);
        assert!(pools.contains(&address_plan.vips().to_string()) && !pools.contains("192.168."));
        Manifest::read("pools", &pools).unwrap();
        let service: serde_json::Value = serde_saphyr::from_str(service()).unwrap();
        assert_eq!(service["metadata"]["name"], SERVICE);
    }
}
