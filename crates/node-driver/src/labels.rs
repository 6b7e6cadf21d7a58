//! The labels of a VM, which the cloud controller manager, the load balancer, the affinity terms and users select by.
//!
//! The driver sets them on the VM and on its template; KubeVirt copies those of the template to the VMI, where they are
//! read. Upstream sets both only because its builder shares one map (docs/contract/node-driver.md#1.4).

use std::collections::BTreeMap;

use harvester_api::labels::{
    CREATOR, GUEST_CLUSTER, MACHINE_SET, NODE_DRIVER, NODE_POOL, STABLE_POOL, VM_NAME,
};
pub(crate) use harvester_api::labels::{is_value, legal};

/// Keys that a user may not set, because other programs rely on the driver's values.
pub(crate) const OURS: [&str; 6] = [CREATOR, VM_NAME, MACHINE_SET, GUEST_CLUSTER, NODE_POOL, STABLE_POOL];

/// All labels of a machine. `own` are the user's.
pub(crate) fn of_machine(
    machine: &str,
    namespace: &str,
    cluster: &str,
    own: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut labels = own.clone();
    let mut set = |key: &str, value: String| labels.insert(key.to_owned(), value);
    set(CREATOR, NODE_DRIVER.to_owned());
    set(VM_NAME, machine.to_owned());
    set(MACHINE_SET, machine_set(machine, namespace));
    if !cluster.is_empty() {
        set(GUEST_CLUSTER, legal(cluster));
        if let Some(pool) = pool(machine, cluster, 1) {
            set(NODE_POOL, legal(pool));
        }
        if let Some(pool) = pool(machine, cluster, 2).filter(|pool| !pool.is_empty()) {
            set(STABLE_POOL, legal(pool));
        }
    }
    labels
}

/// Value of [`MACHINE_SET`]: the namespace and the machine's name without its last two parts.
pub(crate) fn machine_set(machine: &str, namespace: &str) -> String {
    let parts: Vec<&str> = machine.split('-').collect();
    let value = match parts.len() {
        1 => String::new(),
        2 => namespace.to_owned(),
        count => format!("{namespace}-{}", parts[..count - 2].join("-")),
    };
    legal(&value)
}

/// The machine's name without its last `parts` parts, the cluster's name in front, and dashes in front of the rest.
/// A name of too few parts has no pool (upstream panics there, docs/contract/node-driver.md#B12).
fn pool<'a>(machine: &'a str, cluster: &str, parts: usize) -> Option<&'a str> {
    let end = machine.rmatch_indices('-').nth(parts - 1)?.0;
    let rest = &machine[..end];
    Some(rest.strip_prefix(cluster).unwrap_or(rest).trim_start_matches('-'))
}

/// Whether Kubernetes takes this as a label's key: a name, and perhaps a DNS name and a slash in front.
pub(crate) fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_name(text),
        Some((prefix, name)) => {
            let label = |label: &str| {
                let mut letters = label.bytes();
                let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
                ends(label.as_bytes().first())
                    && ends(label.as_bytes().last())
                    && letters.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            };
            is_name(name) && prefix.len() <= 253 && prefix.split('.').all(label)
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && is_value(text)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual("demo-pool1-x7k2m-9d4tq", "default-demo-pool1")]
    #[case::one_part("machine", "")]
    #[case::two_parts("machine-1", "default")]
    #[case::three_parts("a-b-c", "default-a")]
    #[case::illegal_end("demo--x7k2m-9d4tq", "hash__0GDhQ_z")]
    #[case::as_long_as_it_may_be(&format!("{}-b-c", "a".repeat(55)), &format!("default-{}", "a".repeat(55)))]
    #[case::too_long(&format!("{}-b-c", "a".repeat(56)), "hash_cdKVIQ_z")]
    fn the_machine_set_is_upstreams(#[case] machine: &str, #[case] expected: &str) {
        assert_eq!(machine_set(machine, "default"), expected);
    }

    #[test]
    fn what_is_no_label_value_becomes_upstreams_hash() {
        assert_eq!(legal(&"machineSetName".repeat(12)), "hash_FR_ghQ_z");
    }

    #[rstest]
    #[case::usual("demo-pool1-x7k2m-9d4tq", "demo", Some("pool1-x7k2m"), Some("pool1"))]
    #[case::another_cluster("demo-pool1-x7k2m-9d4tq", "shop", Some("demo-pool1-x7k2m"), Some("demo-pool1"))]
    // docs/contract/node-driver.md#B12
    #[case::no_dash("machine", "demo", None, None)]
    #[case::one_dash("demo-1", "demo", Some(""), None)]
    // docs/contract/node-driver.md#B13
    #[case::illegal("demo-pool_-x-y", "demo", Some("pool_-x"), Some("hash_e6bVVA_z"))]
    fn pools_are_named_with_and_without_the_machine_set(
        #[case] machine: &str,
        #[case] cluster: &str,
        #[case] name: Option<&str>,
        #[case] stable: Option<&str>,
    ) {
        let labels = of_machine(machine, "default", cluster, &BTreeMap::new());
        let found = |key: &str| labels.get(key).map(String::as_str);
        assert_eq!((found(NODE_POOL), found(STABLE_POOL)), (name, stable));
        assert!(labels.values().all(|value| is_value(value)), "{labels:?}");
    }

    #[test]
    fn without_a_cluster_there_is_no_pool() {
        let labels = of_machine("demo-pool1-x7k2m-9d4tq", "shop", "", &BTreeMap::new());
        assert_eq!(labels.keys().collect::<Vec<_>>(), [CREATOR, MACHINE_SET, VM_NAME]);
        assert_eq!(labels[CREATOR], "docker-machine-driver-harvester");
    }

    #[rstest]
    #[case("team", true)]
    #[case("example.com/team", true)]
    #[case("Example.com/team", false)]
    #[case("example.com/", false)]
    #[case("a/b/c", false)]
    #[case("", false)]
    fn keys_are_judged_as_kubernetes_does(#[case] key: &str, #[case] expected: bool) {
        assert_eq!(is_key(key), expected);
    }
}
