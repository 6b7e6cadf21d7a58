//! Releases of kube-vip that behave alike, and the Harvester that brings each.

/// A range of releases that behave alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// Up to 0.6: the annotation, then `spec.loadBalancerIP`.
    UpTo06,
    /// 0.7 and 0.8: an address in the status beats `spec.loadBalancerIP`.
    From07,
    /// 0.9 to 1.1: `spec.loadBalancerIP` counts again where the status disagrees with it.
    From09,
    /// 1.2 and newer: like 0.9, and no address for a Service without endpoints.
    From12,
}

impl Release {
    /// The range that a version such as `0.8.1` or `v1.2.3` falls into.
    pub fn of(version: &str) -> Option<Self> {
        let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(match (major, minor) {
            (0, ..=6) => Self::UpTo06,
            (0, 7 | 8) => Self::From07,
            (0, _) | (1, ..=1) => Self::From09,
            _ => Self::From12,
        })
    }

    /// The range that a Harvester release such as `v1.4.2` brings on its hosts.
    pub fn of_harvester(version: &str) -> Option<Self> {
        let mut numbers =
            version.trim_start_matches('v').split(['.', '-']).map(|part| part.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(match (major, minor) {
            (0, _) | (1, ..=3) => Self::UpTo06,
            (1, 4..=6) => Self::From07,
            (1, 7 | 8) => Self::From09,
            _ => Self::From12,
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0.3.7", Some(Release::UpTo06))]
    #[case("v0.6.0", Some(Release::UpTo06))]
    #[case("0.8.1", Some(Release::From07))]
    #[case("v0.9.2", Some(Release::From09))]
    #[case("1.0.4", Some(Release::From09))]
    #[case("1.1.2", Some(Release::From09))]
    #[case("v1.2.3", Some(Release::From12))]
    #[case("2.0.0", Some(Release::From12))]
    #[case("latest", None)]
    fn every_version_has_its_range(#[case] version: &str, #[case] expected: Option<Release>) {
        assert_eq!(Release::of(version), expected);
    }

    #[rstest]
    #[case("v1.3.2", Release::UpTo06)]
    #[case("v1.4.1", Release::From07)]
    #[case("v1.6.0", Release::From07)]
    #[case("v1.7.0", Release::From09)]
    #[case("v1.8.0", Release::From09)]
    #[case("v1.9.0-rc6", Release::From12)]
    fn every_harvester_brings_one(#[case] version: &str, #[case] expected: Release) {
        assert_eq!(Release::of_harvester(version), Some(expected));
    }
}
