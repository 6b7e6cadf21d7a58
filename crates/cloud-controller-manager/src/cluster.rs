//! The guest cluster's name, and the names in Harvester that contain it.

use harvester_api::{labels, names::DEFAULT_CLUSTER_NAME};

/// An object name holds so much of the base; the digest follows.
const BASE_MAX: usize = 55;
/// Longest DNS label.
const LABEL_MAX: usize = 63;

/// The name given by `--cluster-name`, without the quotes and blanks that charts and shells leave around it.
///
/// The Go program cut them off in one place and used the raw text in others
/// (docs/contract/cloud-controller-manager.md#L24). The API server refuses every name that still has them, so no
/// existing object has another name because of the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestCluster(String);

impl GuestCluster {
    pub fn new(flag: &str) -> Self {
        Self(flag.trim_matches(|c| matches!(c, ' ' | '\t' | '\r' | '\n' | '\'' | '"' | '`')).to_owned())
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name that everybody has who chose none.
    pub fn default_name() -> Self {
        Self(DEFAULT_CLUSTER_NAME.to_owned())
    }

    /// The name, unless nobody chose it.
    pub fn chosen_name(&self) -> Option<&str> {
        Some(self.name()).filter(|_| !self.is_anonymous())
    }

    /// Whether nobody chose the name. Such a name distinguishes no clusters, and no label of VMs with it can be
    /// trusted.
    pub fn is_anonymous(&self) -> bool {
        self.0.is_empty() || self.0 == DEFAULT_CLUSTER_NAME
    }

    /// A warning about the flag's value, if it needs one.
    pub fn warning(&self, flag: &str) -> Option<String> {
        if self.is_anonymous() {
            return Some(format!(
                "--cluster-name is {:?}: other guest clusters without a name share it; set global.cattle.clusterName in the chart",
                self.0
            ));
        }
        if self.0 != flag {
            return Some(format!("--cluster-name {flag:?} is used as {:?}", self.0));
        }
        let label = self.0.len() <= LABEL_MAX
            && self.0.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !self.0.starts_with('-')
            && !self.0.ends_with('-');
        (!label).then(|| {
            format!("--cluster-name {:?} is no DNS label (RFC 1123): Harvester may refuse objects", self.0)
        })
    }

    /// The name as the value of a label, of VMs and of LoadBalancer objects: Harvester compares the two when a cluster is
    /// removed. Where the Go program wrote a name that no label can have, its objects were refused
    /// (docs/contract/cloud-controller-manager.md#L23).
    pub fn label_value(&self) -> String {
        labels::legal(&self.0)
    }

    /// Name of the LoadBalancer object of a Service: public contract, people recompute it.
    ///
    /// Cluster, namespace and name, cut to 55 bytes, and the CRC-32 of the uncut text followed by the UID. The
    /// letter `a` goes in front where the cluster's name is no DNS-1035 label.
    pub fn load_balancer_name(&self, namespace: &str, service: &str, uid: &str) -> String {
        let prefix = if is_dns_1035(&self.0) { "" } else { "a" };
        let mut base = format!("{prefix}{}-{namespace}-{service}-", self.0);
        let mut digest = crc32fast::Hasher::new();
        digest.update(base.as_bytes());
        digest.update(uid.as_bytes());
        base.truncate(base.floor_char_boundary(BASE_MAX));
        format!("{base}{:08x}", digest.finalize())
    }
}

fn is_dns_1035(name: &str) -> bool {
    let letter_or_digit = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= LABEL_MAX
        && bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.last().copied().is_some_and(letter_or_digit)
        && bytes.iter().all(|b| letter_or_digit(*b) || *b == b'-')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const UID: &str = "d4b50d98-39ec-4d88-8098-36579de5db4a";

    #[rstest]
    #[case("test", "default", "abcd", "test-default-abcd-7198d990")]
    #[case("1test", "default", "abcd", "a1test-default-abcd-725d6700")]
    #[case(
        "test",
        "default-default",
        "kube-system-rke2-ingress-nginx-controller",
        "test-default-default-kube-system-rke2-ingress-nginx-con5cd57013"
    )]
    #[case(
        "test",
        "default-default",
        "kube-system-rke2-ingress-nginx-co-abcd",
        "test-default-default-kube-system-rke2-ingress-nginx-co-88b790f1"
    )]
    #[case("kubernetes", "default", "nginx", "kubernetes-default-nginx-5b217836")]
    #[case("Prod", "default", "nginx", "aProd-default-nginx-0ad55262")]
    #[case("", "default", "nginx", "a-default-nginx-a147e1a6")]
    #[case("my.cluster", "default", "nginx", "amy.cluster-default-nginx-24a7d3a6")]
    #[case(
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "default",
        "nginx",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa8a16e472"
    )]
    fn the_name_of_a_load_balancer_is_the_one_that_people_recompute(
        #[case] cluster: &str,
        #[case] namespace: &str,
        #[case] service: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(GuestCluster::new(cluster).load_balancer_name(namespace, service, UID), expected);
    }

    // docs/contract/cloud-controller-manager.md#L24
    #[rstest]
    #[case("\"prod\"", "prod")]
    #[case(" 'prod'\n", "prod")]
    #[case("prod", "prod")]
    fn quotes_and_blanks_around_the_name_are_not_part_of_it(#[case] flag: &str, #[case] name: &str) {
        assert_eq!(GuestCluster::new(flag).name(), name);
    }

    // docs/contract/cloud-controller-manager.md#L23
    #[test]
    fn a_label_value_is_always_valid_and_short_names_are_kept() {
        assert_eq!(GuestCluster::new("my.cluster").label_value(), "my.cluster");
        for odd in ["a".repeat(64), "-".repeat(80), "Käse Kuchen".into(), "a/b".into(), "_".into()] {
            let value = GuestCluster::new(&odd).label_value();
            assert!(labels::is_value(&value) && !value.is_empty(), "{odd:?} became {value:?}");
        }
        let long = |end: &str| GuestCluster::new(&format!("{}{end}", "a".repeat(70))).label_value();
        assert_ne!(long("x"), long("y"));
    }

    #[test]
    fn only_a_name_that_nobody_else_has_goes_without_a_warning() {
        assert_eq!(GuestCluster::new("prod").warning("prod"), None);
        for flag in ["", "kubernetes", "Prod", "'prod'", "a.b", "-a"] {
            assert!(GuestCluster::new(flag).warning(flag).is_some(), "{flag:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_name_is_never_longer_than_a_label(cluster in ".{0,80}", service in "[a-z]{1,63}") {
            proptest::prop_assert!(GuestCluster::new(&cluster).load_balancer_name("default", &service, UID).len() <= 63);
        }
    }
}
