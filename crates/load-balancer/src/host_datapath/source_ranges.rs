//! Who may reach a load balancer of VMs: the ranges that its annotation names, on its Service.
//!
//! The object's confirmation says what the Service has now. It goes before the Service is given other ranges, and comes
//! when they are stored. The Service has the annotation too, by which ranges of ours are told from those of a person.

use harvester_api::{LoadBalancer, WorkloadType, annotations, load_balancer::MAX_SOURCE_RANGES};
use ipam::Family;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::api::core::v1::Service;
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use super::seen_family;
use crate::ownership::Owner;

/// The length of so many IPv6 ranges.
const LONGEST: usize = MAX_SOURCE_RANGES * 44;

/// The ranges, as the annotation has them and one by one, without host bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceRanges<'a> {
    text: &'a str,
    ranges: Vec<IpNet>,
}

/// Reads the annotation of an object.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub(crate) fn of(lb: &LoadBalancer) -> Result<Option<SourceRanges<'_>>, String> {
    let Some(text) = lb.annotations().get(annotations::SOURCE_RANGES).map(String::as_str) else {
        return Ok(None);
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    let fault = |what: String| {
        format!(
            "annotation {}: {what}; write ranges such as 192.0.2.0/24 with commas between them, at most {MAX_SOURCE_RANGES}. Until \
             then the load balancer has no backends",
            annotations::SOURCE_RANGES
        )
    };
    if text.len() > LONGEST || text.split(',').count() > MAX_SOURCE_RANGES {
        return Err(fault("it is too long".to_owned()));
    }
    let mut ranges = Vec::new();
    for range in text.split(',').map(str::trim) {
        let Some(net) = read(range) else {
            let shown: String = range.chars().take(60).collect();
            return Err(fault(format!("{shown:?} is no range of addresses")));
        };
        ranges.push(net);
    }
    // kube-proxy leaves those of the other family out, and where none is left it admits everybody
    let family = seen_family(lb, None);
    if !ranges.iter().any(|range| Family::of(range.addr()) == family) {
        return Err(fault(format!("it has no range of {family}")));
    }
    Ok(Some(SourceRanges { text, ranges }))
}

/// Reads a range as every server takes it: newer ones refuse the host bits and leading zeros that older ones pass over.
fn read(range: &str) -> Option<IpNet> {
    range.trim().parse::<IpNet>().ok().map(|range| range.trunc())
}

/// Whether the Service that stands admits somebody whom these ranges keep out.
pub(super) fn admits_others(
    wanted: Option<&SourceRanges<'_>>,
    family: Family,
    service: Option<&Service>,
) -> bool {
    let (Some(wanted), Some(service)) = (wanted, service) else { return false };
    let has = service.spec.as_ref().and_then(|spec| spec.load_balancer_source_ranges.as_deref());
    let has: Vec<_> = has.unwrap_or_default().iter().filter_map(|range| read(range)).collect();
    if has == wanted.ranges {
        return false;
    }
    let wanted = IpNet::aggregate(&wanted.ranges);
    let is_within = |range: &IpNet| wanted.iter().any(|wanted| wanted.contains(range));
    // kube-proxy leaves those of the other family out, and where none is left it admits everybody
    let everybody = match family {
        Family::V4 => IpNet::V4(Ipv4Net::default()),
        Family::V6 => IpNet::V6(Ipv6Net::default()),
    };
    let mut counting = has.iter().filter(|range| Family::of(range.addr()) == family).peekable();
    if counting.peek().is_none() { !is_within(&everybody) } else { !counting.all(is_within) }
}

/// Gives the Service the ranges, or takes those away that it has from us.
pub(super) fn put_on(service: &mut Value, ranges: Option<&SourceRanges<'_>>) {
    if let Some(SourceRanges { text, ranges }) = ranges {
        service["metadata"]["annotations"][annotations::SOURCE_RANGES] = (*text).into();
        let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        service["spec"]["loadBalancerSourceRanges"] = ranges.into();
        return;
    }
    let found = service.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let ours = found.and_then(|found| found.remove(annotations::SOURCE_RANGES)).is_some();
    if let (true, Some(spec)) = (ours, service["spec"].as_object_mut()) {
        spec.remove("loadBalancerSourceRanges");
    }
}

/// The annotation of the object, if its Service has just these ranges now.
pub(crate) fn applied<'a>(lb: &'a LoadBalancer, service: Option<&Service>) -> Option<&'a str> {
    if lb.spec.workload() != WorkloadType::Vm {
        return None;
    }
    let wanted = of(lb).ok().flatten()?;
    let is_ours = |service: &&Service| {
        Owner::of(lb).ownership(service.meta()).is_writable() && service.meta().deletion_timestamp.is_none()
    };
    let spec = service.filter(is_ours)?.spec.as_ref()?;
    let has = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    has.iter().map(|range| read(range)).eq(wanted.ranges.iter().copied().map(Some)).then_some(wanted.text)
}

/// The confirmation that the object has.
pub(crate) fn confirmed(lb: &LoadBalancer) -> Option<&str> {
    lb.annotations().get(annotations::SOURCE_RANGES_APPLIED).map(String::as_str)
}

/// Writes or removes the confirmation.
pub(crate) fn confirm(object: &mut Value, applied: Option<&str>) {
    match applied {
        Some(text) => object["metadata"]["annotations"][annotations::SOURCE_RANGES_APPLIED] = text.into(),
        None => {
            let found = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
            if let Some(found) = found {
                found.remove(annotations::SOURCE_RANGES_APPLIED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::LoadBalancerSpec;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn with(text: &str) -> LoadBalancer {
        let mut lb = LoadBalancer::new("web", LoadBalancerSpec::default());
        lb.metadata.uid = Some("u1".into());
        lb.annotations_mut().insert(annotations::SOURCE_RANGES.to_owned(), text.to_owned());
        lb
    }

    fn service(owner: &str, ranges: &[&str]) -> Service {
        let owners = [json!({"apiVersion": "x/v1", "kind": "LoadBalancer", "name": "web", "uid": owner})];
        let json = json!({"metadata": {"name": "web", "ownerReferences": owners},
            "spec": {"loadBalancerSourceRanges": ranges}});
        serde_json::from_value(json).unwrap()
    }

    #[rstest]
    #[case::nonsense("everybody")]
    #[case::an_address("10.0.0.1")]
    #[case::one_of_two("10.0.0.0/8,x")]
    #[case::an_empty_part("10.0.0.0/8,")]
    #[case::of_ipv6_alone("fd00::/8")]
    #[case::many(&["10.0.0.0/8"; 501].join(","))]
    #[case::huge(&"9".repeat(100_000))]
    fn what_cannot_be_read_is_shown_in_part_and_confirmed_by_nothing(#[case] text: &str) {
        let lb = with(text);
        let why = of(&lb).unwrap_err();
        assert!(
            why.starts_with("annotation loadbalancer.harvesterhci.io/source-ranges: ") && why.len() < 400,
            "{why}"
        );
        assert_eq!(applied(&lb, Some(&service("u1", &[]))), None);
    }

    #[test]
    fn only_what_the_service_has_is_confirmed() {
        let lb = with("10.0.0.0/8,fd00::/8");
        let has = |owner, ranges: &[&str]| applied(&lb, Some(&service(owner, ranges)));
        assert_eq!(has("u1", &["10.0.0.0/8", "fd00::/8"]), Some("10.0.0.0/8,fd00::/8"));
        assert_eq!(has("u1", &["10.0.0.0/8"]), None);
        assert_eq!(has("u1", &["10.0.0.0/8", "fd00::/8", "0.0.0.0/0"]), None);
        assert_eq!(has("u0", &["10.0.0.0/8", "fd00::/8"]), None, "of a former object");
        assert_eq!(applied(&lb, None), None);
        assert_eq!(applied(&with(" "), Some(&service("u1", &[]))), None);
    }

    #[test]
    fn the_service_has_ranges_as_every_server_takes_them() {
        let lb = with("10.0.0.5/8, 010.1.0.0/16");
        let mut written = json!({"metadata": {}, "spec": {}});
        put_on(&mut written, of(&lb).unwrap().as_ref());
        assert_eq!(written["spec"]["loadBalancerSourceRanges"], json!(["10.0.0.0/8", "10.1.0.0/16"]));
        for stored in [["10.0.0.0/8", "10.1.0.0/16"], ["10.0.0.5/8", "10.1.0.0/16"]] {
            assert_eq!(applied(&lb, Some(&service("u1", &stored))), Some("10.0.0.5/8, 010.1.0.0/16"));
        }
    }

    #[rstest]
    #[case::nobody_is_kept_out("", &["0.0.0.0/0"], false)]
    #[case::these("10.0.0.0/8,fd00::/8", &["10.0.0.0/8", "fd00::/8"], false)]
    #[case::within("10.0.0.0/8", &["10.1.0.0/16", "10.2.0.9/16"], false)]
    #[case::everybody("10.0.0.0/8", &[], true)]
    #[case::everybody_is_wanted("0.0.0.0/0", &[], false)]
    #[case::everybody_in_two_halves("0.0.0.0/1,128.0.0.0/1", &[], false)]
    #[case::in_two_parts("10.0.0.0/9,10.128.0.0/9", &["10.0.0.0/8"], false)]
    #[case::more("10.0.0.0/9", &["10.0.0.0/8"], true)]
    #[case::others_too("10.0.0.0/8", &["10.0.0.0/8", "192.0.2.0/24"], true)]
    // kube-proxy leaves them out
    #[case::of_the_other_family_alone("10.0.0.0/8", &["fd00::/8"], true)]
    #[case::of_the_other_family_too("10.0.0.0/8", &["10.0.0.0/8", "fd00::/8"], false)]
    fn a_service_admits_others_where_its_ranges_are_not_within_those_of_the_object(
        #[case] wanted: &str,
        #[case] has: &[&str],
        #[case] expected: bool,
    ) {
        let lb = with(wanted);
        let wanted = of(&lb).unwrap();
        let admits = |service| admits_others(wanted.as_ref(), Family::V4, service);
        assert_eq!((admits(Some(&service("u1", has))), admits(None)), (expected, false));
    }

    #[test]
    fn ranges_of_a_person_stay_and_ours_go_with_the_annotation() {
        let mut by_hand = json!({"metadata": {}, "spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}});
        let before = by_hand.clone();
        put_on(&mut by_hand, None);
        assert_eq!(by_hand, before);
        let lb = with("10.0.0.0/8, fd00::/8");
        put_on(&mut by_hand, of(&lb).unwrap().as_ref());
        assert_eq!(by_hand["spec"]["loadBalancerSourceRanges"], json!(["10.0.0.0/8", "fd00::/8"]));
        put_on(&mut by_hand, None);
        assert_eq!(by_hand, json!({"metadata": {"annotations": {}}, "spec": {}}));
    }
}
