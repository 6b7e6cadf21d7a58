//! `spec.loadBalancerSourceRanges` on the host datapath, where the load balancer in Harvester enforces them. In the
//! guest kube-proxy does.

use std::fmt;

use controller_kit::Explanation;
use harvester_api::{LoadBalancer, annotations, load_balancer::MAX_SOURCE_RANGES};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::service_config::SOURCE_RANGES;

/// A value in an Event has at most so many characters.
const SHOWN: usize = 63;

/// Prefixes, without host bits, sorted, each once: one text for one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceRanges(Vec<IpNet>);

impl SourceRanges {
    /// `None`: the Service admits everybody.
    pub(crate) fn of(service: &Service) -> Option<Result<Self, Explanation>> {
        let texts = service.spec.as_ref()?.load_balancer_source_ranges.as_deref().unwrap_or_default();
        if texts.is_empty() {
            return None;
        }
        let fault = |sentence: String| Some(Err(Explanation::new("InvalidSourceRanges", sentence)));
        let mut nets = Vec::with_capacity(texts.len());
        for text in texts {
            match text.trim().parse::<IpNet>() {
                Ok(net) => nets.push(net),
                Err(_) => {
                    let shown: String = text.chars().take(SHOWN).collect();
                    return fault(format!(
                        "{SOURCE_RANGES} has {shown:?}: write prefixes such as 10.0.0.0/8"
                    ));
                }
            }
        }
        if !nets.iter().any(|net| matches!(net, IpNet::V4(_))) {
            // kube-proxy leaves out prefixes of the other family, and admits everybody where none is left
            let sentence = "has no IPv4 prefix, and the address on the data path host is IPv4: add one, or use data-path: guest";
            return fault(format!("{SOURCE_RANGES} {sentence}"));
        }
        let ranges = Self::from(nets);
        if ranges.0.len() > MAX_SOURCE_RANGES {
            // the load balancer would let nobody in
            let count = ranges.0.len();
            return fault(format!(
                "{SOURCE_RANGES} has {count} prefixes, and the data path host carries at most {MAX_SOURCE_RANGES}: join \
                 some, or use data-path: guest"
            ));
        }
        Some(Ok(ranges))
    }

    fn from(nets: Vec<IpNet>) -> Self {
        let mut nets: Vec<_> = nets.into_iter().map(|net| net.trunc()).collect();
        nets.sort_unstable();
        nets.dedup();
        Self(nets)
    }

    /// The ranges that the Service in Harvester has, as its load balancer confirms them.
    pub(crate) fn confirmed(object: &LoadBalancer) -> Option<Self> {
        let text = object.annotations().get(annotations::SOURCE_RANGES_APPLIED)?;
        let nets: Result<Vec<IpNet>, _> = text.split(',').map(|net| net.trim().parse()).collect();
        nets.ok().map(Self::from)
    }

    /// Whether nobody is admitted here whom `other` does not admit.
    pub(crate) fn are_within(&self, other: &Self) -> bool {
        self.0.iter().all(|net| other.0.iter().any(|other| other.contains(net)))
    }
}

/// Separated by commas.
impl fmt::Display for SourceRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn of(ranges: &[&str]) -> Option<Result<String, String>> {
        let service = serde_json::from_value(json!({"spec": {"loadBalancerSourceRanges": ranges}})).unwrap();
        SourceRanges::of(&service)
            .map(|ranges| ranges.map(|ranges| ranges.to_string()).map_err(|fault| fault.message))
    }

    // docs/contract/data-paths.md#row-15
    #[rstest]
    #[case::one(&["10.0.0.0/8"], "10.0.0.0/8")]
    #[case::host_bits_and_blanks(&[" 10.1.2.3/8 "], "10.0.0.0/8")]
    #[case::in_any_order(&["192.168.0.0/16", "fd00::/8", "10.0.0.0/8"], "10.0.0.0/8,192.168.0.0/16,fd00::/8")]
    #[case::twice(&["10.0.0.0/8", "10.0.0.1/8"], "10.0.0.0/8")]
    #[case::everybody(&["0.0.0.0/0"], "0.0.0.0/0")]
    fn ranges_with_one_meaning_have_one_text(#[case] ranges: &[&str], #[case] expected: &str) {
        assert_eq!(of(ranges), Some(Ok(expected.to_owned())));
        assert_eq!(of(&[]), None);
    }

    #[rstest]
    #[case::an_address(&["10.0.0.1"], "\"10.0.0.1\"")]
    #[case::a_name(&["10.0.0.0/8", "office"], "\"office\"")]
    #[case::too_long_a_prefix(&["10.0.0.0/33"], "10.0.0.0/33")]
    #[case::empty(&[""], "\"\"")]
    // kube-proxy would admit everybody
    #[case::of_the_other_family(&["fd00::/8"], "no IPv4 prefix")]
    fn wrong_ranges_are_a_fault(#[case] ranges: &[&str], #[case] part: &str) {
        let message = of(ranges).unwrap().unwrap_err();
        assert!(message.contains(part) && message.contains("spec.loadBalancerSourceRanges"), "{message}");
    }

    #[test]
    fn a_range_of_ten_thousand_characters_is_told_in_part() {
        let message = of(&[&"1".repeat(10_000)]).unwrap().unwrap_err();
        assert!(message.len() < 200, "{message}");
    }

    #[test]
    fn no_more_ranges_are_asked_for_than_the_load_balancer_takes() {
        let ranges = |count: usize| (0..count).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect();
        let [most, more]: [Vec<String>; 2] = [MAX_SOURCE_RANGES, MAX_SOURCE_RANGES + 1].map(ranges);
        let texts = |ranges: &[String]| of(&ranges.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(texts(&most).is_ok());
        assert!(texts(&[&most[..], &most[..1]].concat()).is_ok(), "one stands there twice");
        assert!(texts(&more).unwrap_err().contains("at most 500"));
    }

    #[rstest]
    #[case::equal(&["10.0.0.0/8"], &["10.0.0.0/8"], true)]
    #[case::narrower(&["10.1.0.0/16"], &["10.0.0.0/8"], true)]
    #[case::wider(&["10.0.0.0/8"], &["10.1.0.0/16"], false)]
    #[case::one_more(&["10.0.0.0/8", "192.168.0.0/16"], &["10.0.0.0/8"], false)]
    #[case::one_less(&["10.0.0.0/8"], &["10.0.0.0/8", "192.168.0.0/16"], true)]
    fn ranges_are_within_others_that_admit_all_of_theirs(
        #[case] one: &[&str],
        #[case] other: &[&str],
        #[case] expected: bool,
    ) {
        let ranges =
            |texts: &[&str]| SourceRanges::from(texts.iter().map(|text| text.parse().unwrap()).collect());
        assert_eq!(ranges(one).are_within(&ranges(other)), expected);
    }
}
